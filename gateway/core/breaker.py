"""A breaker for one upstream, as a value: while nothing can be sent to it, nothing is tried.

    closed    --`failures` in a row, or half of >= 20 in 30 s--> open
    open      --its time is over, and somebody asks----------> half open: one attempt
    half open --it sends something--------------------------> slow start: one place
    half open --it sent nothing-----------------------------> open, for twice as long
    slow start --a second without a failure-----------------> twice as many places; with enough of them, closed
    slow start --as from closed-----------------------------> open, for twice as long

A failure is an attempt under which nothing was sent. A response is none, whatever its status: the upstream is there.
So half open ends with the first byte (`sent`), however long the response takes.
In slow start `places` bounds both the attempts at a time and those that begin in one second, so that an upstream that
comes back is not met by all that piled up.

Each time it opens, a new generation begins. Attempts of an earlier one still run; their ends change nothing.
Time is the caller's, in seconds on any clock that never goes back.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import Final

from gateway.core.immutable import immutable

# The window in which half of the attempts must have failed, and how many it takes.
WINDOW_SECONDS: Final = 30
WINDOW_ATTEMPTS_MIN: Final = 20
# With so many places in slow start, the breaker is closed.
PLACES_MAX: Final = 1024


class Phase(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"
    SLOW_START = "slow_start"


@immutable
class BreakerPolicy:
    """When a breaker opens, and for how long: `open_seconds` at first, at most `open_seconds_max`."""

    failures: int = 5
    open_seconds: float = 10.0
    open_seconds_max: float = 300.0


@immutable
class _Second:
    """The ends of one second of the window."""

    number: int
    ends: int = 0
    failures: int = 0


@immutable
class Breaker:
    """`begin`, `sent` and `end` return the next value. `running` are the attempts of this `generation`.

    `open_until` and `open_seconds` are of the last opening. In slow start, `second` is when the current second began,
    with `begun` attempts since then.
    """

    policy: BreakerPolicy = BreakerPolicy()
    phase: Phase = Phase.CLOSED
    generation: int = 0
    running: int = 0
    failures_in_a_row: int = 0
    window: tuple[_Second, ...] = ()
    open_seconds: float = 0.0
    open_until: float = 0.0
    places: int = PLACES_MAX
    second: float = 0.0
    begun: int = 0
    has_failed: bool = False

    def free(self, now: float) -> int | None:
        """How many attempts may begin now; None where the breaker sets no bound."""
        current = self._advanced(now)
        match current.phase:
            case Phase.CLOSED:
                return None
            case Phase.OPEN:
                return 1 if now >= current.open_until else 0
            case Phase.HALF_OPEN:
                return max(0, 1 - current.running)
            case Phase.SLOW_START:
                return max(0, current.places - max(current.running, current.begun))

    def begin(self, now: float, attempts: int = 1) -> Breaker | None:
        """Attempts begin, under the `generation` of the value that is returned; None where none may."""
        current = self._advanced(now)
        if current.free(now) == 0:
            return None
        if current.phase is Phase.OPEN:
            current = replace(current, phase=Phase.HALF_OPEN)
        return replace(current, running=current.running + attempts, begun=current.begun + attempts)

    def sent(self, now: float, generation: int) -> Breaker:
        """The first byte of an attempt goes out. It still runs, and only its end counts in the window."""
        current = self._advanced(now)
        if generation != current.generation or current.phase is not Phase.HALF_OPEN:
            return current
        return _started_slowly(current, now)

    def end(self, now: float, generation: int, attempts: int = 1, *, is_sent: bool | None) -> Breaker:
        """Attempts ended alike. `is_sent`: whether a byte was sent; None where nobody tried, for a reason on this
        side."""
        current = self._advanced(now)
        if generation != current.generation:
            return current
        if is_sent is None:
            return replace(current, running=current.running - attempts)
        if current.phase is Phase.HALF_OPEN:
            current = replace(current, running=current.running - attempts)
            return _started_slowly(current, now) if is_sent else _opened(current, now)
        current = _counted(current, now, attempts, is_failure=not is_sent)
        return _opened(current, now) if _is_failing(current) else current

    def wake_seconds(self, now: float) -> float | None:
        """How long until more may begin by the passing of time alone; None where time changes nothing."""
        current = self._advanced(now)
        match current.phase:
            case Phase.OPEN:
                return max(0.0, current.open_until - now)
            case Phase.SLOW_START:
                return max(0.0, current.second + 1 - now)
            case Phase.CLOSED | Phase.HALF_OPEN:
                return None

    def _advanced(self, now: float) -> Breaker:
        """The value at this time: slow start has more places after each second."""
        if self.phase is not Phase.SLOW_START:
            return self
        places, second, begun, has_failed = self.places, self.second, self.begun, self.has_failed
        while now >= second + 1 and places < PLACES_MAX:
            if not has_failed:
                places *= 2
            second, begun, has_failed = second + 1, 0, False
        if places >= PLACES_MAX:
            return replace(self, phase=Phase.CLOSED, places=PLACES_MAX, begun=0, has_failed=False, open_seconds=0.0)
        if second == self.second:
            return self
        return replace(self, places=places, second=second, begun=begun, has_failed=has_failed)


def _opened(breaker: Breaker, now: float) -> Breaker:
    policy = breaker.policy
    seconds = max(policy.open_seconds, min(2 * breaker.open_seconds, policy.open_seconds_max))
    return Breaker(policy, Phase.OPEN, breaker.generation + 1, open_seconds=seconds, open_until=now + seconds, places=0)


def _started_slowly(breaker: Breaker, now: float) -> Breaker:
    return replace(
        breaker,
        phase=Phase.SLOW_START,
        places=1,
        second=now,
        begun=1,
        failures_in_a_row=0,
        window=(),
    )


def _counted(breaker: Breaker, now: float, attempts: int, *, is_failure: bool) -> Breaker:
    number, window, failures = int(now), breaker.window, attempts if is_failure else 0
    if window and window[-1].number == number:
        earlier, last = window[:-1], window[-1]
    else:
        earlier, last = tuple(each for each in window if each.number > number - WINDOW_SECONDS), _Second(number)
    return replace(
        breaker,
        running=breaker.running - attempts,
        window=(*earlier, _Second(number, last.ends + attempts, last.failures + failures)),
        failures_in_a_row=breaker.failures_in_a_row + failures if is_failure else 0,
        has_failed=breaker.has_failed or is_failure,
    )


def _is_failing(breaker: Breaker) -> bool:
    if breaker.failures_in_a_row >= breaker.policy.failures:
        return True
    ends = sum(each.ends for each in breaker.window)
    failures = sum(each.failures for each in breaker.window)
    return ends >= WINDOW_ATTEMPTS_MIN and 2 * failures >= ends
