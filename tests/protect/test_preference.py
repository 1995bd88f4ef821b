"""How long a caller prefers to wait, in whatever spelling, and what the service gets of its preferences."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protect.preference import wait_preference, without_wait


@pytest.mark.parametrize(
    ("value", "seconds", "sent"),
    [
        (b"wait=10", 10, b""),
        (b"WAIT \t=\t10", 10, b""),
        (b'wait="10"', 10, b""),
        (b'wait="1\\0"', 10, b""),
        (b'wait=10; x="a, b"; y, return=minimal', 10, b"return=minimal"),
        (b"wait=0000000000007", 7, b""),
        (b"wait=" + b"9" * 5000, 10**9, b""),
        (b"respond-async, , wait=3", 3, b"respond-async"),
        (b"wait=3, wait=600", 3, b""),
        (b"wait=soon, wait=600", None, b""),
        (b"wait", None, b""),
        (b"wait=", None, b""),
        (b"wait;x=1", None, b""),
        (b"wait=-1", None, b""),
        (b"wait=1.5", None, b""),
        (b"wait=5 5", None, b""),
        (b'wait="5', None, b""),
        (b'wait="5, wait=600', None, b""),
        (b'note="a, wait=600"', None, b'note="a, wait=600"'),
        (b'note="a \\", wait=600"', None, b'note="a \\", wait=600"'),
        (b'note="a, wait=600', None, b'note="a, wait=600'),
        (b'note="a, wait=600", wait=2', 2, b'note="a, wait=600"'),
        (b"note=wait=600", None, b"note=wait=600"),
        (b"x; wait=600", None, b"x; wait=600"),
        (b"awaiting=600, waiting=1", None, b"awaiting=600, waiting=1"),
        (b"'wait=600'", None, b"'wait=600'"),
    ],
    ids=lambda value: value[:24].decode() if isinstance(value, bytes) else None,
)
def test_the_wait_is_read_and_removed_by_the_same_rule(value: bytes, seconds: int | None, sent: bytes) -> None:
    """What the gateway waits by is what the service does not get; nothing inside quotes is either."""
    assert wait_preference(((b"Prefer", value),)) == seconds
    assert without_wait(value) == sent


def test_the_first_of_several_lines_counts() -> None:
    """Lines of one field are one list."""
    assert wait_preference(((b"prefer", b"return=minimal"), (b"PREFER", b"wait=2"), (b"Prefer", b"wait=9"))) == 2


@given(st.text(alphabet='wait=,;" \t\\059x', max_size=40))
def test_what_is_left_asks_for_no_wait(text: str) -> None:
    """Whatever is in a field, the service gets no preference that the gateway would have read."""
    left = without_wait(text.encode())
    assert wait_preference(((b"Prefer", left),)) is None
    assert without_wait(left) == left


@pytest.mark.parametrize("piece", [b'"\\', b'wait="', b"wait=\t", b'wait="\\"', b"wait ,", b";wait="])
def test_a_long_field_costs_little(piece: bytes) -> None:
    """One long field must not hold up the event loop."""
    value = piece * (64_000 // len(piece))
    started = time.process_time()
    wait_preference(((b"Prefer", value),))
    without_wait(value)
    assert time.process_time() - started < 2.0
