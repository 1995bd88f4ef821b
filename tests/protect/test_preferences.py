"""What a caller prefers: how long it waits."""

from __future__ import annotations

import pytest

from gateway.protect.forwarding import wait_preference, without_heeded


@pytest.mark.parametrize(
    ("value", "seconds", "sent"),
    [
        (b"wait=10", 10, b""),
        (b'wait="10"', 10, b""),
        (b'wait=10; x="a, b"; y, return=minimal', 10, b"return=minimal"),
        (b"wait=" + b"9" * 5000, 10**9, b""),
        (b"respond-async, , wait=3", 3, b"respond-async"),
        (b"wait=3, wait=600", 3, b""),
        (b"wait=soon, wait=600", None, b""),
        (b"wait=1.5", None, b""),
        (b'wait="5, wait=600', None, b""),
        (b'note="a, wait=600"', None, b'note="a, wait=600"'),
        (b'note="a \\", wait=600"', None, b'note="a \\", wait=600"'),
        (b'note="a, wait=600', None, b'note="a, wait=600'),
        (b'note="a, wait=600", wait=2', 2, b'note="a, wait=600"'),
        (b"x; wait=600", None, b"x; wait=600"),
        (b"awaiting=600, waiting=1", None, b"awaiting=600, waiting=1"),
    ],
    ids=lambda value: value[:24].decode() if isinstance(value, bytes) else None,
)
def test_the_wait_is_read_and_removed_by_the_same_rule(value: bytes, seconds: int | None, sent: bytes) -> None:
    """What the gateway waits by is what the service does not get; nothing inside quotes is either."""
    assert wait_preference(((b"Prefer", value),)) == seconds
    assert without_heeded(value, heeds_async=False) == sent
