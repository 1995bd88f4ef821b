"""What is known of how long an upstream lets an idle connection live.

Pure: it is told what was seen and when, and says whether a connection may be trusted.
"""

from __future__ import annotations

# An end-of-file may be under way for this long before it can be seen here.
_CLOSING_MARGIN_SECONDS = 0.05
_PROBATION_SECONDS = 10.0
_PROBATION_SECONDS_MAX = 300.0
_TOGETHER_SECONDS = 1.0


class IdleHistory:
    """How long idle connections to this upstream have been seen to live. All times in seconds, `now` on one clock.

    A connection that was closed early (a restart, a short timeout, a closing after each answer) begins a probation,
    twice as long each time it happens again during one; until its end nothing idle for as long as that one was is
    trusted. Those that are closed together, as at a restart, count once.
    """

    def __init__(self) -> None:
        self._survived_seconds = 0.0
        self._closed_after_seconds = float("inf")
        self._probation_seconds = 0.0
        self._probation_since = float("-inf")
        self._probation_until = float("-inf")

    def survived(self, idle_seconds: float) -> None:
        """An idle connection was seen to be open after so long."""
        self._survived_seconds = max(self._survived_seconds, idle_seconds)

    def closed_early(self, idle_seconds: float, now: float) -> None:
        """The upstream closed a connection that had been idle for so long."""
        if now >= self._probation_until:
            self._probation_seconds = _PROBATION_SECONDS
            self._closed_after_seconds = idle_seconds
        else:
            self._closed_after_seconds = min(self._closed_after_seconds, idle_seconds)
            if now < self._probation_since + _TOGETHER_SECONDS:
                return
            self._probation_seconds = min(self._probation_seconds * 2, _PROBATION_SECONDS_MAX)
        self._probation_since = now
        self._probation_until = now + self._probation_seconds

    def allows(self, idle_seconds: float, now: float) -> bool:
        """Whether a connection idle for so long may be trusted with a request."""
        limit = self._survived_seconds
        if now < self._probation_until:
            limit = min(limit, self._closed_after_seconds)
        return idle_seconds + _CLOSING_MARGIN_SECONDS <= limit
