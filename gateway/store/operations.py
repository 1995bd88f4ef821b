"""What upkeep, operators and starting gateways call on a store. `base` has what requests call.

No request waits for anything here, except for the recovery lease when it probes the service itself.

Theory of operation
-------------------
*Audits.* An audit is written in the transaction of the change that it describes, once: a repeated command writes no
second one. It is kept for `AUDIT_KEEP_US`, and as long again each time the record still exists then.

*Recovery leases* (`recover`) are not part of the record. One that a crash of the store loses costs one more probe.

*Kept requests.* The request of an accepted operation is in a table of its own, encrypted as it came, and goes in the
transaction after which the record has no `delivery`. `find_due` and `backlog` read about as much as they return,
however many operations wait. What is due is in the order of its operation name, its route and its time, so that what
one route leaves hides nothing of another.

*Lanes.* A change that moves the line of a lane, or draws a number in it, is one after the other with all that do, and
marks the new head (`core.lane`). A unique index of lane and rank keeps a second operation from being under way.

*Pauses.* The time of a pause does not count against `deliver_until_us`: sweeps move that for what would soon expire,
and `resume` for all.

*Events.* With the `Outbox` that it was built with, a store writes a row for each event and sink in the transaction of
the change, also where a sweep or a flushed journal makes the change. The rows survive the record. A relay leases rows,
publishes them and reports the result. A lease that is not reported on lapses: a duplicate, never a loss.

*Activity.* A row that is lost leaves a gap in a picture, and no more.

*Turns* spare work, and nothing depends on them: sweeps, probes and tallies of several gateways at once are safe.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol, Self
from uuid import UUID

from gateway.core import immutable
from gateway.core.confidential import is_key_id
from gateway.core.delivery import Delivering
from gateway.core.lifecycle import settle
from gateway.core.observation import Finding, Observation
from gateway.core.operation import (
    MICROSECONDS,
    PROBE,
    Audit,
    Entry,
    Event,
    Record,
    SealedRequest,
    Snapshot,
    State,
    history_with,
)
from gateway.core.outbox import EventType, PublishedEvent
from gateway.core.routing import ServedRoute
from gateway.core.verdict import Verdict
from gateway.store.base import Store, Unreadable

if TYPE_CHECKING:
    from gateway.store.sealed import Kept


# How long an audit is kept, and how much longer each time the record still exists then.
AUDIT_KEEP_US: Final = 90 * 86_400 * MICROSECONDS
# The witness of a link without changes for this long may be removed, and no earlier.
WITNESS_KEEP_US: Final = 90 * 86_400 * MICROSECONDS
# Beside its own name, what is due of the only route with an operation name is looked for under so many former names.
FORMER_ROUTES_MAX: Final = 1000
# Sweeps move the end of paused operations that would expire sooner than this by as much.
PAUSE_STEP_US: Final = 3_600 * MICROSECONDS
# The end of a pause is under way for so long after its last piece. Meanwhile sweeps move by as much only: what they add
# to an operation that it came to already stays.
PAUSE_END_US: Final = 60 * MICROSECONDS
# Rows of activity that are kept longer than this from now on are of a clock that was set back, and are dropped.
ACTIVITY_AHEAD_US: Final = 8 * 86_400 * MICROSECONDS
# The most rows of activity that are read at once; the latest.
ACTIVITY_ROWS_MAX: Final = 40_000
# The most audits that one operation shows.
AUDITS_MAX: Final = 200
# A lease of an event that ends later than this from now is of a clock that was set back, and over. Relays take half of
# it, so that a clock that is set back a little ends no lease.
EVENT_LEASE_US_MAX: Final = 60 * MICROSECONDS
# The same of a recovery lease.
RECOVERY_LEASE_US_MAX: Final = 180 * MICROSECONDS
# Of what is due last, so much is looked at for what began in the future: a clock that was set back put it there.
AHEAD_MAX: Final = 100
# The least time between two probes of one operation, also when a client waits.
PROBE_FLOOR_US: Final = MICROSECONDS
# With more claims than this waiting for a sweep, `find` may miss lapsed ones until the sweep.
UNSWEPT_CLAIMS_MAX: Final = 20_000
# Of more undelivered operations of one service than this, `backlog` may return estimates.
BACKLOG_COUNT_MAX: Final = 100_000
UNEXECUTED: Final = (State.RELEASED, State.ACCEPTED, State.DEAD_LETTER)
"""The states of which the record says that no attempt had an effect."""
# The most lapsed operations that a sweep names.
LAPSES_NAMED_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Swept:
    """How many records one bounded pass of a sweep changed; `more` when it reached its bound. `named` has route and
    operation id of some lapsed ones."""

    lapsed: int = 0
    retired: int = 0
    collected: int = 0
    more: bool = False
    expired: int = 0
    named: tuple[tuple[str, UUID], ...] = field(default=(), compare=False)

    @classmethod
    def of(cls, written: Counter[State], lapsed: Sequence[tuple[str, UUID]], *, more: bool) -> Self:
        """Of how many records were written in each state, and which of them have lapsed."""
        lapses, retired, collected = written[State.IN_DOUBT], written[State.TOMBSTONE], written[State.ABSENT]
        return cls(lapses, retired, collected, more, written[State.DEAD_LETTER], tuple(lapsed[:LAPSES_NAMED_MAX]))

    def __add__(self, later: Swept) -> Swept:
        """The sum of both passes; `more` is that of the later one."""
        return Swept(
            self.lapsed + later.lapsed,
            self.retired + later.retired,
            self.collected + later.collected,
            later.more,
            self.expired + later.expired,
            (self.named + later.named)[:LAPSES_NAMED_MAX],
        )


SEALED_COUNT_MAX: Final = 10_000
"""Of more rows of a table under one key, or under the same ones, no more are counted."""


def sealed_counts(counted: Iterable[tuple[str, int]]) -> dict[str, int]:
    """How many rows each key has, of the numbers by what is in the columns `sealed_by`. What is no id was changed."""
    found: dict[str, int] = {}
    for key_ids, number in counted:
        for key_id in filter(is_key_id, key_ids.split(" ")):
            found[key_id] = found.get(key_id, 0) + number
    return found


@dataclass(frozen=True, slots=True)
class Tally:
    """The operations in doubt by route name, and the age of the oldest. How many rows (operations, kept requests,
    audits, events) have something that is encrypted with which key, by its id, `SEALED_COUNT_MAX` per table at most."""

    in_doubt: Mapping[str, int] = field(default_factory=dict)
    oldest_in_doubt_seconds: float = 0.0
    sealed: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Serving:
    """What a gateway serves; the store learns it when the gateway starts.

    `recipes` define by operation name how identities are made. `routes` are in routing order. `accepted` are the
    operation names whose routes accept that keys are lost, `mode_accepted` those that accept it for a change of mode.
    `gateway_id` identifies one process. `key_ids` are those of its encryption keys; None: it accepts records that it
    cannot decrypt. `replay_us` is the longest replay window of its routes. `delivering` are the kept requests that it
    delivers; None: it keeps none, or that is not known. `fingerprint_keys` are the ids of the keys under which it
    compares fingerprints, each with a check of its secret; `compare_accepted` are the operation names that replay what
    cannot be compared.
    """

    gateway_id: UUID
    service: str
    recipes: Mapping[str, bytes]
    routes: tuple[ServedRoute, ...] = ()
    accepted: frozenset[str] = frozenset()
    key_ids: frozenset[str] | None = None
    mode_accepted: frozenset[str] = frozenset()
    host: str = field(default_factory=socket.gethostname)
    replay_us: int = 0
    delivering: Delivering | None = None
    fingerprint_keys: Mapping[str, str] = field(default_factory=dict)
    compare_accepted: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Living:
    """How many keys of an operation name are remembered, and until when (microseconds of the store's clock).
    `by_fingerprint_key`: how many by the id of the key of their fingerprint; empty where that is not keyed. `until_us`
    is None where one of them is claimed, in doubt or not delivered: that one is kept until it is resolved."""

    keys: int = 0
    until_us: int | None = 0
    by_fingerprint_key: Mapping[str, int] = field(default_factory=dict, compare=False)

    def __add__(self, others: Living) -> Living:
        until_us = None if None in (self.until_us, others.until_us) else max(self.until_us or 0, others.until_us or 0)
        by_key = Counter(self.by_fingerprint_key) + Counter(others.by_fingerprint_key)
        return Living(self.keys + others.keys, until_us, by_key)


@dataclass(frozen=True, slots=True)
class RecipeConflict:
    """An operation whose keys a configuration would no longer find. `heirs` are the operation names of the new
    configuration that take its requests. Empty: the operation keeps its requests, but its recipe changed, or with
    `is_mode` a smaller share of its keys is enforced, or repeats cannot be compared for want of these
    `fingerprint_keys`. `is_served`: another running gateway serves it."""

    service: str
    operation: str
    living: Living = Living()
    heirs: tuple[str, ...] = ()
    is_served: bool = False
    is_mode: bool = False
    fingerprint_keys: tuple[str, ...] = ()

    @property
    def name(self) -> tuple[str, str]:
        return self.service, self.operation


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A running operation of another service with the same requests as `heirs` of this one."""

    service: str
    operation: str
    heirs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Agreement:
    """The result of `compare_configuration`. With any conflict the store has remembered nothing."""

    conflicts: tuple[RecipeConflict, ...] = ()
    neighbours: tuple[Neighbour, ...] = ()


@dataclass(frozen=True, slots=True)
class RouteBacklog:
    """The undelivered operations of one route: how many are accepted, the bytes of their requests, and the age of the
    oldest since its acceptance; how many are dead letters, by reason; how many lanes are stopped, and for how long the
    first of them (`core.lane.stopped_us`)."""

    accepted: int = 0
    request_bytes: int = 0
    oldest_seconds: float = 0.0
    dead_letters: Mapping[str, int] = field(default_factory=dict)
    lanes_stopped: int = 0
    oldest_stopped_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Pause:
    """The pause of an operation name: since when (microseconds of the store's clock), by whom and why."""

    since_us: int
    who: str
    why: str


@dataclass(frozen=True, slots=True)
class PauseAudit:
    """That an operation name was paused or resumed: when (microseconds of the store's clock), by whom and why."""

    at_us: int
    operation: str
    is_resumed: bool
    who: str
    why: str


@dataclass(frozen=True, slots=True)
class Backlog:
    """What a service has not delivered, by route name, and which of its operation names are paused. The counts are so
    old, and beyond `BACKLOG_COUNT_MAX` estimates."""

    waiting: Mapping[str, RouteBacklog] = field(default_factory=dict)
    paused: Mapping[str, Pause] = field(default_factory=dict)
    age_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Due:
    """Accepted operations that may be dispatched now, the longest due first, and all operation names of the service
    that are paused: of these there are none."""

    found: list[Snapshot]
    paused: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Query:
    """Which records to find: in these states, of these routes (None: all), first claimed at least `age_us` ago.
    `recoverable`: only operations in doubt whose recovery lease is free and whose pause is over. `reason`: only such
    dead letters. At most `limit`, in the order of operation ids, after that one; fewer: there are no more."""

    states: frozenset[State]
    routes: frozenset[str] | None = None
    age_us: int = 0
    recoverable: bool = False
    reason: str | None = None
    after: UUID | None = None
    limit: int = 100

    @property
    def wanted(self) -> frozenset[State]:
        """Those of the states that records have which match."""
        found = self.states if self.limit > 0 else frozenset()
        if self.recoverable:
            found &= {State.IN_DOUBT}
        return found if self.reason is None else found & {State.DEAD_LETTER}


def listed(record: Record, now_us: int) -> Snapshot:
    """As `find` returns it: without the body of its response."""
    response = record.response
    return Snapshot(replace(record, response=response and replace(response, body=None)), now_us)


@dataclass(frozen=True, slots=True)
class RecoveryLease:
    """The right to probe the outcome of an operation in doubt, for one prober at a time. A late completion by the first
    caller may still win. `tries` counts earlier leases in the same doubt, `background_tries` those that were not
    urgent."""

    operation_id: UUID
    token: int
    tries: int
    background_tries: int = 0


def with_finding(record: Record, lease: RecoveryLease, finding: str, now_us: int) -> bytes | None:
    """The history of a record, as it is stored, with the finding of a probe that changed nothing; None if the doubt is
    over that it was about."""
    settled = settle(record, now_us)
    if settled is None or settled.state is not State.IN_DOUBT or settled.token != lease.token:
        return None
    return history_with(record.history, Entry(PROBE, now_us, lease.token, finding))


@dataclass(frozen=True, slots=True)
class RecoveryState:
    """The probes of an operation in doubt under this token; they say nothing about another token. `tries` and
    `background_tries` as in a lease. No background probe starts before `put_off_until_us`. `asked_us` is when the last
    probe ended (0: none has), and `finding` is its result."""

    token: int
    tries: int = 0
    held_until_us: int = 0
    put_off_until_us: int = 0
    asked_us: int = 0
    finding: str = ""
    background_tries: int = 0

    def is_held(self, now_us: int) -> bool:
        """Whether somebody has the lease. One that ends too late is of a clock that was set back, and over."""
        return now_us < self.held_until_us <= now_us + RECOVERY_LEASE_US_MAX

    def is_put_off(self, now_us: int) -> bool:
        """Whether no background probe starts yet. A pause that begins in the future is over, for the same reason."""
        return self.asked_us <= now_us < self.put_off_until_us

    def leased(self, now_us: int, lease_us: int, *, is_urgent: bool) -> RecoveryState | None:
        """With a new lease; None while there may be none."""
        if self.is_held(now_us) or (self.is_put_off(now_us) and not is_urgent):
            return None
        # A time in the future comes from before the clock was set back; ignore it.
        if self.asked_us <= now_us < self.asked_us + PROBE_FLOOR_US:
            return None
        # Urgent probes do not lengthen the pause.
        background_tries = self.background_tries + (not is_urgent)
        return replace(self, tries=self.tries + 1, held_until_us=now_us + lease_us, background_tries=background_tries)


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """A change of an operation: when (microseconds of the store's clock), by whom and why."""

    at_us: int
    event: Event
    token: int
    who: str
    why: str


def audit_entry(operation_id: UUID, at_us: int, event: str, token: int, who: str, why: str) -> AuditEntry:
    """A row that a store has read. Raises `Unreadable` for an event of a newer program."""
    try:
        return AuditEntry(at_us, Event(event), token, who, why)
    except ValueError:
        raise Unreadable(f"operation {operation_id} was resolved by a newer program in a way unknown to this") from None


@dataclass(frozen=True, slots=True)
class NumberedAudit:
    """An audit of any operation. Later changes have higher numbers."""

    number: int
    operation_id: UUID
    entry: AuditEntry


@immutable
class LeasedEvent:
    """An event that the caller is to publish to a sink, until its lease ends. `tries` counts the leases, this one
    included, since the change or the last redelivery, and `age_us` from then on. `line` is the event's at an ordered
    sink: no other one of it is leased before this one is published or dead."""

    sink: str
    event: PublishedEvent
    tries: int
    redeliveries: int
    age_us: int
    line: bytes | None = None


@immutable
class ActivityRow:
    """What one process (`writer`) counted for `span_us` from `at_us` on, as bytes; it is kept until `until_us`. These
    times are of its clock, whoever writes the row."""

    writer: UUID
    span_us: int
    at_us: int
    until_us: int
    body: bytes


class EventFate(StrEnum):
    PUBLISHED = "published"
    PUT_OFF = "put_off"
    DEAD = "dead"


@immutable
class EventReport:
    """What became of a leased event. `why` and `pause_us` are of one that is put off; a dead one has a `why`. `tries`,
    `redeliveries` and `line` as it was leased."""

    sink: str
    event_id: str
    tries: int
    redeliveries: int
    fate: EventFate
    why: str = ""
    pause_us: int = 0
    line: bytes | None = None


@dataclass(frozen=True, slots=True)
class KeptEvent:
    """An event as operators see it. `why` is why its last publication failed."""

    sink: str
    event_id: str
    type: EventType
    operation_id: UUID
    at_us: int
    tries: int
    is_dead: bool
    why: str


@dataclass(frozen=True, slots=True)
class SinkBacklog:
    """The events of a sink that were not published. `last_error` is why the one that failed last did, of those that
    wait; empty if none has. `suspended_why` is set while the sink is suspended."""

    pending: int = 0
    oldest_seconds: float = 0.0
    dead: int = 0
    last_error: str = ""
    suspended_why: str | None = None


@dataclass(frozen=True, slots=True)
class Epoch:
    """Which memory a store has (its data set and that set's history), as of `now_us` of its clock.

    `identity` changes with a failover or a copy. `token` is the last one drawn; it is lower in an older state of the
    same memory. `memo` is what gateways wrote down about lost memories. Each purge and erasure changes `generation`;
    before the first it is empty. `witnesses` are the numbers of the requested links, as far as the store has them.
    `parent` is the memory that this one was before a promotion that no gateway has accepted; empty if there was none.
    """

    identity: str
    token: int
    now_us: int
    memo: bytes
    generation: str = ""
    witnesses: Mapping[UUID, int] = field(default_factory=dict)
    parent: str = ""
    level: int = 1


class Upkeep(Protocol):
    """What a gateway does beside its requests."""

    async def sweep(self, limit: int) -> Swept:
        """Write the changes that time has made (`lifecycle.written_down`) to at most `limit` records, each decided
        under the lock of its record, by the time then. A command never waits for more than the lock of its one record.
        """

    async def take_turns(self, holder: UUID, names: Collection[str], lease_us: int) -> frozenset[str]:
        """Take or keep those of these turns that nobody else has, for `lease_us` from now on; returns them."""

    async def leave_turns(self, holder: UUID) -> None:
        """Leave all turns of this holder to others. Repeatable."""

    async def tally(self) -> Tally:
        """Count the operations in doubt, settled as of now."""

    async def sealed_examples(self, key_id: str) -> list[Kept]:
        """A few records and kept requests that are encrypted with the key of this id alone, as they are stored."""


class Agreements(Protocol):
    """What gateways tell one another about themselves and about the store's memory."""

    async def compare_configuration(self, serving: Serving, *, is_trial: bool = False) -> Agreement:
        """Remember what a gateway serves and that it runs, unless that would lose living keys (`agreement`). Concurrent
        calls are serialised: each is compared with those before it. Repeatable. A trial returns the same result and
        changes nothing."""

    async def note_running(self, gateway_id: UUID, *, is_running: bool) -> None:
        """Note that a gateway known from `compare_configuration` runs now, or has stopped. Repeatable. One that was not
        seen for `agreement.RUNNING_US` counts as stopped."""

    async def count_without_route(self, service: str, operations: Collection[str]) -> dict[str, int]:
        """The number of living keys of each remembered operation name of the service that has some, except for these
        `operations`. If any name remains to be counted, this reads all records."""

    async def check_memory(self, links: Collection[UUID] = ()) -> Epoch:
        """The store's epoch, with the witnesses of these links. Raises `EpochChanged`, until the store is restarted,
        when the memory is another one or lacks acknowledged changes."""

    async def begin_epoch(self, memo: bytes, beyond_token: int) -> None:
        """Replace the memo, and draw only tokens higher than this one from now on."""


class Recoveries(Protocol):
    """Operations in doubt, and their probes."""

    async def find(self, query: Query) -> list[Snapshot]:
        """The settled records that match, without response bodies. Too slow for the path of a request. No snapshot: a
        record that changes meanwhile is found in its old or its new state. One that only a newer program can read is
        left out, unless only its response is unreadable. Lapsed claims that no sweep has written are found too, unless
        more than `UNSWEPT_CLAIMS_MAX` claims wait for a sweep."""

    async def recover(self, operation_id: UUID, token: int, lease_us: int, *, is_urgent: bool) -> RecoveryLease | None:
        """Take the recovery lease of a record that is in doubt under this token, for `RECOVERY_LEASE_US_MAX` at most.
        None when the record is not in doubt under this token, when the lease is held, when the last one was returned
        less than `PROBE_FLOOR_US` ago, or when it was put off until later and no client waits (`is_urgent`). A lease
        that is not returned, or whose acknowledgement was lost, lapses."""

    async def put_off(self, lease: RecoveryLease, pause_us: int, finding: str) -> None:
        """Return the lease with the finding, which the record's history tells; for `pause_us` only urgent calls get it
        again. Repeatable. Does nothing once another prober took the lease."""

    async def recovery(self, operation_id: UUID) -> RecoveryState | None:
        """The probes of an operation; None when there were none, or when its doubt ended long ago."""


class Publications(Protocol):
    """Events that sinks are to get."""

    async def lease_events(self, service: str, wanted: Mapping[str, int], lease_us: int) -> list[LeasedEvent]:
        """Lease at most so many due events of each of these sinks, those that are due for the longest; returns them in
        the order of their changes, or of their redeliveries. None of a suspended sink. `lease_us` is at most
        `EVENT_LEASE_US_MAX`."""

    async def report_events(self, service: str, reports: Collection[EventReport]) -> None:
        """Write what became of leased events. Repeatable. A published event is gone, whichever relay reports it;
        another report counts only while nobody leased the event again or had it delivered again."""

    async def find_events(
        self, service: str, sink: str, *, is_dead: bool, after: str | None, limit: int
    ) -> list[KeptEvent]:
        """Events of a sink that wait, or are dead, in the order of their ids and after this one."""

    async def redeliver_event(self, service: str, event_id: str, sink: str | None) -> int:
        """Publish a dead event again to its sink (None: to each one where it is dead). Returns to how many."""

    async def suspend_sink(self, service: str, sink: str, why: str) -> bool:
        """Lease no event of this sink any more; False if it was suspended before. Its events are kept."""

    async def resume_sink(self, service: str, sink: str) -> bool:
        """Lease the sink's events again, all at once, also those of a clock that was set back; False if it was not
        suspended."""

    async def sinks(self, service: str) -> dict[str, SinkBacklog]:
        """The sinks of the service that have events here or are suspended, by name."""


class Activities(Protocol):
    """What the gateways counted, for pictures."""

    async def save_activity(self, service: str, *rows: ActivityRow) -> None:
        """Write these rows in one statement, each in place of an earlier one of the same writer, span and time, of
        which no two are. Repeatable. They need not be durable when it returns."""

    async def activity(self, service: str, span_us: int, since_us: int, until_us: int) -> list[ActivityRow]:
        """The latest `ACTIVITY_ROWS_MAX` rows of this span that begin in this time, latest first."""


class Cold(Upkeep, Agreements, Recoveries, Publications, Activities, Protocol):
    """All that no request waits for. Each verb may raise `NotApplied` or `Indefinite`; those about one operation may
    also raise `Unreadable`."""

    # Accepted operations.

    async def find_due(self, service: str, delivering: Delivering, limit: int) -> Due:
        """What of `delivering` may be dispatched now, of a lane its head at most; nothing else is read. No grant:
        another gateway may dispatch them first. Those that a lost memory may have dispatched are left out."""

    async def read_kept(self, operation_id: UUID) -> SealedRequest | None:
        """The kept request of an operation, None when it has none. Read it before the dispatch: then it is there for as
        long as nobody else changes the record."""

    async def count_pending(self, service: str, route: str, scope_digest: bytes, limit: int) -> int:
        """How many accepted operations this scope has on this route, counted up to `limit`."""

    async def backlog(self, service: str) -> Backlog:
        """Count what is not delivered."""

    async def pause(self, service: str, operation: str, audit: Audit) -> bool:
        """Dispatch nothing of this operation name any more; False if it was paused before. What runs goes on."""

    async def resume(self, service: str, operation: str, audit: Audit) -> bool:
        """End the pause; False if there was none. The name stays paused until this returns; if that takes too long,
        a repeated call goes on where the last one stopped."""

    async def pause_audits(self, service: str) -> list[PauseAudit]:
        """The latest `AUDITS_MAX` pauses and ends of pauses of the last `AUDIT_KEEP_US`, oldest first."""

    def announce_work(self) -> None:
        """Wake those who watch `WORK`, here and elsewhere. Never raises; a hint that may be lost."""

    # What was done by hand, and why.

    async def audits(self, operation_id: UUID) -> list[AuditEntry]:
        """The latest `AUDITS_MAX` audits of an operation, oldest first."""

    async def latest_audits(self, before: int | None, limit: int) -> list[NumberedAudit]:
        """The audits of all operations with numbers below this one (None: the latest), latest first."""


class ManagedStore(Store, Cold, Protocol):
    """A store itself, without layers: `cold` is the same object."""


EXAMPLES_MAX: Final = 5
"""How many operations `count_observed` names for each finding."""
FORGOTTEN_MAX: Final = 1_000
"""How many old observations one call of `save_observations` deletes at most."""


@immutable
class ObservedCount:
    """How many observed requests of a route have this finding; how many of them are repeats, and rekeyed; and some of
    their operations, the latest first."""

    route: str
    verdict: Verdict
    is_refused: bool
    number: int
    repeats: int
    rekeyed: int
    operations: tuple[UUID, ...] = ()


class ObservationStore(Protocol):
    """The observations of a service."""

    async def observed_before(self, service: str, operation_ids: Collection[UUID]) -> list[Observation]:
        """The oldest `HISTORY_MAX` observations of each of these operations, in the order in which they began."""

    async def observed_contents(
        self, service: str, contents: Collection[bytes], since_us: int
    ) -> list[tuple[bytes, UUID, int]]:
        """Each operation that was observed with one of these contents since then, and when that was last."""

    async def save_observations(
        self, service: str, found: Sequence[tuple[Observation, Finding]], forget_before_us: int
    ) -> None:
        """Write these observations, in place of earlier ones with the same entry, and delete some of the old ones of
        every service. Repeatable. They need not be durable when it returns."""

    async def count_observed(self, service: str, route: str | None) -> list[ObservedCount]:
        """Count the observations of a route, or of all routes, by what was found."""


CONTENTS_MAX: Final = 100
"""How many operations with one content `observed_contents` returns at most."""
