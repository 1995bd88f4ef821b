"""Measures durations more finely than the event loop's clock."""

from __future__ import annotations

import time


class Stopwatch:
    """Starts when it is made. Not for deadlines: it is not on the loop's clock.

    Under uvloop, that clock counts whole milliseconds and stands still within one turn of the loop.
    """

    __slots__ = ("_began_ns",)

    def __init__(self) -> None:
        self._began_ns = time.monotonic_ns()

    @property
    def seconds(self) -> float:
        """The time since it was made, to the nanosecond."""
        return (time.monotonic_ns() - self._began_ns) / 1e9
