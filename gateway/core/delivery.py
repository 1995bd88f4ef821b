"""How a kept request is delivered, as decisions: when the next attempt starts, and when there is none.

Decides about attempts that are known to have had no effect, and about those in doubt on a route that sends again. What
an attempt comes to is decided by `outcome`. An outage of the upstream is no failure of the request: an attempt under
which nothing was sent does not count, and never ends the delivery. Only responses count, until the operation is in
doubt. Each pause is drawn from its second half, so that what failed together is not repeated together.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from math import ceil
from typing import Final

from gateway.core import immutable
from gateway.core.identity.body import digest
from gateway.core.lifecycle import DEADLINE
from gateway.core.message import Headers, header_values
from gateway.core.operation import (
    MICROSECONDS,
    Bury,
    Identity,
    Postpone,
    Record,
    Snapshot,
    State,
    delivery_of,
    in_doubt_since_us,
    microseconds,
)
from gateway.core.outcome import REFUSED_AT_THE_DOOR

# -- delivery ----------------------------------------------------------------------------------------------------------

_HOUR_US: Final = microseconds(3600)

# What a `Retry-After` may ask for.
RETRY_AFTER_US_MIN: Final = MICROSECONDS
RETRY_AFTER_US_MAX: Final = 24 * _HOUR_US
# The longest pause after an attempt under which nothing was sent. The breaker spares an upstream that is down, so this
# bounds only how long a request waits after the outage.
UNSENT_PAUSE_US_MAX: Final = microseconds(60)

# Why a kept request is a dead letter; by the clock for `lifecycle.DEADLINE`.
ATTEMPTS_EXHAUSTED: Final = "attempts-exhausted"
UNAUTHORIZED: Final = "unauthorized"
UNREADABLE: Final = "unreadable"
REASONS: Final = (UNAUTHORIZED, ATTEMPTS_EXHAUSTED, UNREADABLE, DEADLINE)

# How many dead letters an operator requeues at once, and how fast: so many more requests does the service get.
REQUEUE_LIMIT_MAX: Final = 10_000
REQUEUE_RATE_MAX: Final = 1_000

# RFC 9110 section 5.6.7: the preferred form, then the two obsolete ones that a recipient must accept.
_HTTP_DATES: Final = ("%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %d %H:%M:%S %Y")
_SECONDS: Final = re.compile(rb"[0-9]+\Z")
# Digits of a number of seconds that cannot exceed the longest pause.
_SECONDS_DIGITS_MAX: Final = len(str(RETRY_AFTER_US_MAX // MICROSECONDS))


@dataclass(frozen=True, slots=True)
class Delivering:
    """Which kept requests a configuration delivers. `accepting` are the names and operation names of the routes that
    accept, `names` the names of all routes, `alone` the operation names that an accepting route shares with no other
    one."""

    accepting: frozenset[tuple[str, str]]
    names: frozenset[str]
    alone: frozenset[str]

    def route_of(self, identity: Identity) -> str | None:
        """The route that delivers this operation: its own, or the one that it was renamed to; None where none does."""
        if (identity.route, identity.operation) in self.accepting:
            return identity.route
        if identity.route in self.names or identity.operation not in self.alone:
            return None
        return next(name for name, operation in self.accepting if operation == identity.operation)

    def includes(self, identity: Identity) -> bool:
        return self.route_of(identity) is not None

    def only(self, names: Collection[str]) -> Delivering:
        accepting = frozenset(each for each in self.accepting if each[0] in names)
        return Delivering(accepting, self.names, self.alone & {operation for _, operation in accepting})


def delivering_of(operations: Mapping[str, str], accepting: Collection[str]) -> Delivering:
    """What a configuration delivers: `operations` has the operation name of each route by its name, and `accepting` are
    the names of those that accept."""
    sharing = Counter(operations.values())
    return Delivering(
        accepting=frozenset((name, operations[name]) for name in accepting),
        names=frozenset(operations),
        alone=frozenset(operations[name] for name in accepting if sharing[operations[name]] == 1),
    )


@dataclass(frozen=True, slots=True)
class DeliveryPolicy:
    """A route's `delivery` settings. `schedule_us` are the pauses after the first, second, ... attempt without effect;
    the last one repeats. No attempt starts later than `deliver_within_us` after the acceptance. After `answers_max`
    answers without effect the request is a dead letter. `in_flight_max` bounds the attempts of one process at a time.
    `buries_unauthorized`: a 401 or 403 makes a dead letter at once."""

    schedule_us: tuple[int, ...] = tuple(microseconds(pause) for pause in (1, 5, 30, 120, 600, 1800, 3600))
    deliver_within_us: int = 24 * _HOUR_US
    answers_max: int = 20
    in_flight_max: int = 64
    buries_unauthorized: bool = True


def conclude_unsent(record: Record, policy: DeliveryPolicy, failure: str, draw: float) -> Postpone:
    """The attempt sent nothing. `draw` is uniform in [0, 1), here and below."""
    pause_us = min(_scheduled_us(policy, record.attempts), UNSENT_PAUSE_US_MAX)
    return _postpone(record, drawn_us(pause_us, draw), failure, is_answered=False)


def conclude_answered(
    record: Record, policy: DeliveryPolicy, status: int, retry_after_us: int | None, failure: str, draw: float
) -> Postpone | Bury:
    """The upstream answered with this status, which means that the attempt had no effect."""
    answers = delivery_of(record).answers + 1
    if status in REFUSED_AT_THE_DOOR and policy.buries_unauthorized:
        return bury(record, UNAUTHORIZED, failure, is_answered=True)
    if answers >= policy.answers_max:
        return bury(record, ATTEMPTS_EXHAUSTED, failure, is_answered=True)
    pause_us = drawn_us(_scheduled_us(policy, answers), draw)
    return _postpone(record, max(pause_us, retry_after_us or 0), failure, is_answered=True)


def bury(record: Record, reason: str, failure: str, *, is_answered: bool) -> Bury:
    """The claim ends without effect, and the request becomes a dead letter."""
    return Bury(record.identity.operation_id, record.token, record.attempt_id, reason, failure, is_answered)


def resend_us(record: Record, policy: DeliveryPolicy) -> int | None:
    """From when on a kept request in doubt is sent again, on a route that does so; None: it stays in doubt. Since it
    came into doubt each attempt counts like an answer, also one that sent nothing: the breaker lets few of those
    through. After `answers_max` of both, and from `deliver_until_us` on, the operation stays in doubt. The pause runs
    from the start of the last attempt. All gateways draw the same one."""
    delivery = delivery_of(record)
    counted = delivery.answers + 1
    if counted >= policy.answers_max:
        return None
    draw = record.attempt_id.int % MICROSECONDS / MICROSECONDS
    from_us = record.claimed_us + drawn_us(_scheduled_us(policy, counted), draw)
    return None if from_us >= delivery.deliver_until_us else from_us


def resend_due(record: Record, policy: DeliveryPolicy, now_us: int) -> bool:
    """Whether a kept request in doubt may be sent again now, on a route that does so. A pause that starts in the
    future, because the store's clock was set back, is over."""
    from_us = resend_us(record, policy)
    if from_us is None or now_us >= delivery_of(record).deliver_until_us:
        return False
    return not record.claimed_us <= now_us < from_us


def drawn_us(pause_us: int, draw: float) -> int:
    """A pause from the second half of `pause_us`."""
    return ceil(pause_us * (1 + draw) / 2)


def retry_after_us(headers: Headers, now_seconds: float) -> int | None:
    """The pause that the response asks for, at least a second and at most a day (RFC 9110 section 10.2.3). None where
    it asks for none, or in a way that cannot be read. A date counts from the response's own `Date`, if it has one: only
    then is it known what the sender's clock shows. `now_seconds` is this host's time since the epoch."""
    values = header_values(headers, b"retry-after")
    if len(values) != 1:
        return None
    value = values[0].strip(b" \t")
    if _SECONDS.match(value):
        digits = value.lstrip(b"0") or b"0"
        pause_us = RETRY_AFTER_US_MAX if len(digits) > _SECONDS_DIGITS_MAX else int(digits) * MICROSECONDS
    else:
        dates = header_values(headers, b"date")
        sent_seconds = http_date_seconds(dates[0].strip(b" \t"), now_seconds) if len(dates) == 1 else None
        from_seconds = now_seconds if sent_seconds is None else sent_seconds
        until_seconds = http_date_seconds(value, from_seconds)
        if until_seconds is None:
            return None
        pause_us = microseconds(until_seconds - from_seconds)
    return min(max(pause_us, RETRY_AFTER_US_MIN), RETRY_AFTER_US_MAX)


def http_date_seconds(text: bytes, now_seconds: float) -> float | None:
    """An HTTP date (RFC 9110 section 5.6.7) as seconds since the epoch; None where the text is none. `now_seconds`
    decides the century of a year with two digits."""
    # A leap second is the last one that a datetime can show.
    words = text.decode("latin-1").replace(":60 ", ":59 ")
    for form in _HTTP_DATES:
        with suppress(ValueError):
            date = datetime.strptime(words, form).replace(tzinfo=UTC)
            if "%y" in form:
                this_year = datetime.fromtimestamp(now_seconds, UTC).year
                year = this_year - this_year % 100 + date.year % 100
                date = date.replace(year=year - 100 if year > this_year + 50 else year)
            return date.timestamp()
    return None


def _scheduled_us(policy: DeliveryPolicy, attempts: int) -> int:
    return policy.schedule_us[min(max(attempts, 1), len(policy.schedule_us)) - 1]


def _postpone(record: Record, pause_us: int, failure: str, *, is_answered: bool) -> Postpone:
    return Postpone(record.identity.operation_id, record.token, record.attempt_id, pause_us, failure, is_answered)


# -- breaker -----------------------------------------------------------------------------------------------------------
#
# A breaker for one upstream, as a value: while nothing can be sent to it, nothing is tried.
#
#     closed    --`failures` in a row, or half of >= 20 in 30 s--> open
#     open      --its time is over, and somebody asks----------> half open: one attempt
#     half open --it sends something--------------------------> slow start: one place
#     half open --it sent nothing-----------------------------> open, for twice as long
#     slow start --a second without a failure-----------------> twice as many places; with enough of them, closed
#     slow start --as from closed-----------------------------> open, for twice as long
#
# A failure is an attempt under which nothing was sent. A response is none, whatever its status, so half open ends with
# the first byte (`sent`), however long the response takes. In slow start `places` bounds both the attempts at a time
# and those that begin in one second, so that an upstream that comes back is not met by all that piled up.
#
# Each time it opens, a new generation begins. Attempts of an earlier one still run; their ends change nothing.
# Time is the caller's, in seconds on any clock that never goes back.

# The window in which half of the attempts must have failed, and how many it takes.
WINDOW_SECONDS: Final = 30
WINDOW_ATTEMPTS_MIN: Final = 20
# With so many places in slow start, the breaker is closed.
PLACES_MAX: Final = 1024


Phase = StrEnum("Phase", "CLOSED OPEN HALF_OPEN SLOW_START")


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
    """`begin`, `sent` and `end` return the next value. `running` are the attempts of this `generation`. `open_until`
    and `open_seconds` are of the last opening. In slow start, `second` is when the current second began, with `begun`
    attempts since then."""

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

    @property
    def is_open(self) -> bool:
        """As it is reported. Half open is, too: the upstream is still spared, and a single attempt would look like a
        recovery."""
        return self.phase in (Phase.OPEN, Phase.HALF_OPEN)

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
    return replace(breaker, phase=Phase.SLOW_START, places=1, second=now, begun=1, failures_in_a_row=0, window=())


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


# -- lanes -------------------------------------------------------------------------------------------------------------
#
# A lane is one ordering value of one scope under one operation name: its operations are delivered in the order of their
# acceptance, one at a time. Its *line* consists of the operations that others have to wait for: `rank` says where each
# one stands, and the lowest is the *head*. Only the head may be dispatched, and only where it is accepted. So a lane
# waits while its head is under way, stops where the head is in doubt or a dead letter (`stopped_us`), and goes on once
# the head is completed, withdrawn or disproved.
#
# A store gives out numbers and changes the line under a lock of the lane, so numbers are in the order of the commits.
# In the change that moves a record, it marks the head as not behind, and every other one as behind.
#
# Nothing lets a later operation pass but a dead letter that does not stop its lane; requeued, it is next of what is
# still waiting, and one that stopped it takes its old place. An operation that was withdrawn or disproved leaves the
# line; accepted again, it is the last.

_UNDER_WAY: Final = (State.CLAIMED, State.IN_DOUBT)


def lane_of(service: str, operation: str, scope_digest: bytes, value: bytes) -> bytes:
    """The lane of an ordering value; `value` is its digest."""
    return digest(b"lane", service.encode(), operation.encode(), scope_digest, value)


def rank(record: Record) -> int | None:
    """Where the operation stands in the line of its lane, lowest first; None where no other one waits for it. What is
    under way or in doubt is before everything else, also before what was requeued with a lower number."""
    delivery = record.delivery
    if delivery is None or delivery.lane is None:
        return None
    if record.state in _UNDER_WAY:
        return 0
    return delivery.lane_number if record.state is State.ACCEPTED or delivery.stops_lane else None


def stopped_us(record: Record) -> int | None:
    """Since when the operation, as the head of its lane, keeps it stopped until somebody decides; None if it does not.
    Of one in doubt, that is when its doubt began."""
    delivery = record.delivery
    if delivery is None or delivery.lane is None:
        return None
    if record.state is State.IN_DOUBT:
        return in_doubt_since_us(record)
    return delivery.since_us if record.state is State.DEAD_LETTER and delivery.stops_lane else None


def moved_lane(before: Record | None, after: Record | None) -> bytes | None:
    """The lane whose line the change of a record moves; None where it moves none."""
    was, now = _place(before), _place(after)
    if was == now:
        return None
    return now[0] or was[0]


def _place(record: Record | None) -> tuple[bytes | None, int | None, bool]:
    if record is None or record.delivery is None:
        return None, None, False
    return record.delivery.lane, rank(record), record.delivery.is_behind


def with_turn(snapshot: Snapshot, *, is_behind: bool) -> Snapshot:
    """The snapshot of a record of a lane, with what the store found about its turn."""
    record = snapshot.record
    if record is None or record.delivery is None or record.delivery.is_behind is is_behind:
        return snapshot
    return replace(snapshot, record=replace(record, delivery=replace(record.delivery, is_behind=is_behind)))
