"""Since when a store's clock has not been set, told from what it showed and when it was asked."""

from __future__ import annotations

import pytest

from gateway.core.operation import microseconds
from gateway.store.gate import Steadiness

# What the store's clock shows when the boot-time clock shows nothing.
LEAD_SECONDS = 1_800_000_000.0
HOUR_SECONDS = 3600.0


def told(*calls: tuple[float, float, float]) -> Steadiness:
    """From calls: when each began, when the store looked at its clock and found it set ahead, and by how much."""
    steadiness = Steadiness()
    for started, looked, ahead in calls:
        steadiness.observe(microseconds(LEAD_SECONDS + looked + ahead), started, looked + 0.01)
    return steadiness


def test_what_was_before_the_first_call_is_not_known() -> None:
    """A clock is steady since it was seen first."""
    assert told((50.0, 50.0, 0.0)).steady_seconds(60.01) == pytest.approx(10.0)


@pytest.mark.parametrize("ahead", [2.0, HOUR_SECONDS, -2.0, -HOUR_SECONDS])
def test_a_step_is_noticed(ahead: float) -> None:
    """With the first answer after it the clock begins anew to be steady."""
    assert told((50.0, 50.0, 0.0), (90.0, 90.0, ahead)).steady_seconds(100.01) == pytest.approx(10.0)


def test_a_step_ahead_is_noticed_once() -> None:
    """A clock that goes on from where it was set is steady again."""
    calls = ((50.0, 50.0, 0.0), (90.0, 90.0, HOUR_SECONDS), (95.0, 95.0, HOUR_SECONDS))
    assert told(*calls).steady_seconds(100.01) == pytest.approx(10.0)


def test_a_slow_answer_is_no_step() -> None:
    """Where the store looked at its clock within a slow call is not known, and is not held against it."""
    assert told((50.0, 50.0, 0.0), (60.0, 75.0, 0.0), (80.0, 80.0, 0.0)).steady_seconds(100.01) == pytest.approx(50.0)


def test_a_slow_answer_hides_no_later_step() -> None:
    """What a slow call leaves open is closed by the calls around it."""
    for step in (3.0, -3.0):
        calls = ((50.0, 50.0, 0.0), (60.0, 60.0, 0.0), (61.0, 75.0, 0.0), (90.0, 90.0, step))
        assert told(*calls).steady_seconds(100.01) == pytest.approx(10.0)


def test_drift_is_no_step() -> None:
    """A clock that gains or loses a little all the time is steady."""
    for rate in (0.0005, -0.0005):
        calls = [(50.0 + at, 50.0 + at, at * rate) for at in range(0, 100_000, 100)]
        assert told(*calls).steady_seconds(100_050.01) == pytest.approx(100_000.0)
