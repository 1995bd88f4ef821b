"""Since when the durable store's clock has had no step, as seen from one process.

The store reads its clock between the start and the end of a call, so each call gives a lower and an upper bound of
that clock's lead over the boot-time clock. Bounds that lie beyond the earlier ones, plus the possible drift, are a
step. A step of more than `_UNSEEN_SECONDS` between two calls is noticed at the second one. The time before the
first call is unknown and counts as a step.
"""

from __future__ import annotations

from typing import Final

from gateway.core.operation import MICROSECONDS

# A call that says nothing new of the clock is passed over for no longer than this.
_OBSERVED_SECONDS: Final = 1.0
# A smaller step of the store's clock goes unnoticed; callers that wait for a steady clock wait longer than this.
_UNSEEN_SECONDS: Final = 1.0
# Seconds per second: more than clocks drift apart, or are slewed.
_DRIFT: Final = 0.001


class Steadiness:
    """All seconds are the boot-time clock's.

    A call says nothing new that ends before `again_seconds`, and whose bounds are outside of those that are known.
    """

    __slots__ = ("_observed_seconds", "_since_seconds", "again_seconds", "least_seconds", "most_seconds", "steps")

    def __init__(self) -> None:
        self.least_seconds, self.most_seconds = float("-inf"), float("inf")
        """The lead is between these."""
        self.again_seconds = float("-inf")
        """A call that ends after this is observed, even if it says nothing new: the clocks drift."""
        self._since_seconds = float("inf")
        self._observed_seconds = 0.0
        self.steps = 0
        """How many were noticed, the first call included."""

    def observe(self, store_now_us: int, started_seconds: float, ended_seconds: float) -> None:
        """The store's clock showed `store_now_us` at some moment of the call between these two times."""
        lead_seconds = store_now_us / MICROSECONDS
        least_seconds, most_seconds = lead_seconds - ended_seconds, lead_seconds - started_seconds
        drift_seconds = _DRIFT * max(0.0, ended_seconds - self._observed_seconds)
        low_seconds, high_seconds = self.least_seconds - drift_seconds, self.most_seconds + drift_seconds
        self._observed_seconds, self.again_seconds = ended_seconds, ended_seconds + _OBSERVED_SECONDS
        if (
            not self.steps
            or least_seconds > high_seconds + _UNSEEN_SECONDS
            or most_seconds < low_seconds - _UNSEEN_SECONDS
        ):
            self.steps += 1
            self._since_seconds = ended_seconds
            self.least_seconds, self.most_seconds = least_seconds, most_seconds
        else:
            self.least_seconds, self.most_seconds = max(low_seconds, least_seconds), min(high_seconds, most_seconds)

    def steady_seconds(self, now_seconds: float) -> float:
        """For how long no step was noticed; 0 before the first call."""
        return max(0.0, now_seconds - self._since_seconds)
