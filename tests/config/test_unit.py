"""How durations and sizes are written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.leaf import duration_seconds, duration_text, size_bytes, size_text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("300ms", 0.3), ("5s", 5.0), ("2m", 120.0), ("24h", 86400.0), ("7d", 604800.0), ("0s", 0.0)],
)
def test_durations(text: str, seconds: float) -> None:
    """Each unit means what it says."""
    assert duration_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("4096", 4096), ("64KiB", 65536), ("1MiB", 2**20), ("2GiB", 2**31)]
)
def test_sizes(text: str, size: int) -> None:
    """Each unit means what it says."""
    assert size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "5", "s", "-5s", "5 s", "5S", "1.5s", "05s", "5sec", "1h30m", "5s\n", "٥s", "1w"])
def test_no_durations(text: str) -> None:
    """Nothing but a whole number and a known unit is a duration."""
    assert duration_seconds(text) is None


@pytest.mark.parametrize("text", ["", "KiB", "-1", "1.5MiB", "64KB", "64k", "1 MiB", "010", "0x10", "1_000", "1MiB\n"])
def test_no_sizes(text: str) -> None:
    """Nothing but a whole number, perhaps with a known unit, is a size."""
    assert size_bytes(text) is None


@given(st.integers(min_value=0, max_value=10**11))
def test_duration_round_trip(milliseconds: int) -> None:
    """A duration that is written is read as itself, to the millisecond."""
    if len(duration_text(milliseconds / 1000)) <= 12:
        assert round((duration_seconds(duration_text(milliseconds / 1000)) or 0) * 1000) == milliseconds


@given(st.integers(min_value=0, max_value=10**12))
def test_size_round_trip(size: int) -> None:
    """A size that is written is read as itself."""
    assert size_bytes(size_text(size)) == size


@given(st.text(max_size=12))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Whatever is written is a value of the grammar or none; nothing is guessed."""
    for value in (duration_seconds(text), size_bytes(text)):
        assert value is None or (text.isascii() and text[0].isdigit() and value >= 0)
