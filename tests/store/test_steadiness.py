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


@pytest.mark.parametrize("ahead", [2.0, HOUR_SECONDS, -2.0, -HOUR_SECONDS])
def test_a_step_is_noticed(ahead: float) -> None:
    """With the first answer after it the clock begins anew to be steady."""
    assert told((50.0, 50.0, 0.0), (90.0, 90.0, ahead)).steady_seconds(100.01) == pytest.approx(10.0)


STEADY_SINCE_50 = {
    # Where the store looked at its clock within a slow call is not known, and is not held against it.
    "slow": [(50.0, 50.0, 0.0), (60.0, 75.0, 0.0), (80.0, 80.0, 0.0)],
    "gains": [(50.0 + at, 50.0 + at, at * 0.0005) for at in range(0, 100_000, 100)],
    "loses": [(50.0 + at, 50.0 + at, at * -0.0005) for at in range(0, 100_000, 100)],
}


@pytest.mark.parametrize("calls", STEADY_SINCE_50.values(), ids=STEADY_SINCE_50)
def test_slowness_and_drift_are_no_step(calls: list[tuple[float, float, float]]) -> None:
    """A clock that gains or loses a little all the time is steady, and what a slow call leaves open hides no step."""
    until = calls[-1][0] + 10.0
    assert told(*calls).steady_seconds(until) == pytest.approx(until - 50.01)
    for step in (3.0, -3.0):
        assert told(*calls, (until, until, calls[-1][2] + step)).steady_seconds(until + 5.01) == pytest.approx(5.0)
