"""Watches the durable store's clock: since when has it surely not been set ahead?

Owns one comparison, of the store's clock with this machine's boot-time clock. It knows no store; whoever asks one tells
what its clock showed and when it was asked. Its invariant: a step of more than `_UNSEEN_SECONDS` ahead, between two
things that were told, is noticed with the second of them. What was before the first is not known, and counts as a step.

The store read its clock somewhere between question and answer, so each answer gives a lower and an upper bound of that
clock's lead over the boot clock. A lower bound above the upper one of before is a step ahead. Clocks drift apart
slowly, and by that much a lead may grow.
"""

from __future__ import annotations

from typing import Final

from gateway.core.operation import MICROSECONDS

# A step that is less than this goes unnoticed; whoever waits for things to settle waits for longer.
_UNSEEN_SECONDS: Final = 1.0
# Seconds a second: more than clocks drift apart, or are slewed.
_DRIFT: Final = 0.001


class Steadiness:
    """Of one store's clock, as seen from one process. All seconds are the boot-time clock's."""

    __slots__ = ("_lead_max_seconds", "_since_seconds", "_told_seconds")

    def __init__(self) -> None:
        self._lead_max_seconds = float("-inf")
        self._since_seconds = float("inf")
        self._told_seconds = 0.0

    def note(self, store_now_us: int, started_seconds: float, ended_seconds: float) -> None:
        """The store's clock showed this at some moment of a call between these two."""
        now_seconds = store_now_us / MICROSECONDS
        drifted_seconds = self._lead_max_seconds + _DRIFT * max(0.0, ended_seconds - self._told_seconds)
        if now_seconds - ended_seconds > drifted_seconds + _UNSEEN_SECONDS:
            self._since_seconds = ended_seconds
            drifted_seconds = float("inf")
        self._lead_max_seconds = min(drifted_seconds, now_seconds - started_seconds)
        self._told_seconds = ended_seconds

    def steady_seconds(self, now_seconds: float) -> float:
        """For how long no step ahead was noticed; 0 while nothing was told."""
        return max(0.0, now_seconds - self._since_seconds)
