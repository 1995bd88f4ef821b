"""The model that every other store is compared with: `lifecycle.step` on a dictionary, under a clock that is moved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from gateway.core.confidential import sealed_by
from gateway.core.delivery import Delivering, rank, stopped_us, with_turn
from gateway.core.identity.key import is_of
from gateway.core.lifecycle import STEP_US, is_due, settle, step, written_down
from gateway.core.operation import (
    EVENT_OF,
    MICROSECONDS,
    Accept,
    Applied,
    Audit,
    Command,
    Erase,
    Purge,
    Record,
    Result,
    SealedRequest,
    Snapshot,
    State,
    audit_of,
    content_of,
    in_doubt_since_us,
    is_same_digest,
    microseconds,
    operation_id_of,
)
from gateway.core.outbox import NO_EVENTS, Outbox, OutboxRow, PublishedEvent, swept_rows, unpack
from gateway.store import operations
from gateway.store.agreement import PROGRAM_LEVEL, RUNNING_US, Name, Remembered, compare, names_without_route
from gateway.store.base import WORK, EpochChanged, NotApplied, Watch, Watchers
from gateway.store.memory.epoch import Reading, WitnessFiles, WitnessNote, memory_digest, missing
from gateway.store.sealed import EXAMPLES_MAX
from gateway.store.sealed import Kept as KeptRow

# How far a sweep moves the end of the delivery of what is paused, and how soon that must be.
_PAUSE_STEP_US = 3600 * MICROSECONDS
# The states without an end by the clock.
_ENDLESS = (State.CLAIMED, State.IN_DOUBT)
# Any instant will do; one that looks like a wall clock lets databases show it as a date.
EPOCH_US = 1_800_000_000 * MICROSECONDS


def holds_content(record: Record | None, fingerprint_digest: bytes, until_us: int, now_us: int) -> bool:
    """Whether an operation holds a content at `now_us`, by its record; `until_us` is when that ends if it completed.

    It does while it may still have its effect: a dead letter may be requeued. `fingerprint_digest` is that of the
    request which claimed the content: a key that was free again may have been used for another request.
    """
    settled = settle(record, now_us)
    if settled is None or settled.fingerprint is None or settled.state is State.RELEASED:
        return False
    if not is_same_digest(settled.fingerprint.digest, fingerprint_digest):
        return False
    return settled.state not in (State.COMPLETED, State.TOMBSTONE) or now_us < until_us


class ManualClock:
    """Microseconds that pass only when told. Callable, as the `clock_us` of a store."""

    def __init__(self, now_us: int = EPOCH_US) -> None:
        self.now_us = now_us

    def __call__(self) -> int:
        return self.now_us

    def advance(self, seconds: float) -> None:
        self.now_us += microseconds(seconds)


@dataclass(slots=True)
class Kept:
    """An audit, and until when it is kept whatever becomes of its record."""

    entry: operations.AuditEntry
    until_us: int


class Serves(NamedTuple):
    """What a gateway serves, and when it was last seen to run."""

    names: frozenset[Name]
    seen_us: int


class Held(NamedTuple):
    """That an operation claimed a content: with which fingerprint, and until when it holds it once it completed."""

    fingerprint_digest: bytes
    until_us: int


@dataclass(slots=True)
class WaitingEvent:
    """An event that a sink has yet to receive."""

    row: OutboxRow
    at_us: int
    since_us: int
    due_us: int
    lease_until_us: int = 0
    tries: int = 0
    redeliveries: int = 0
    is_dead: bool = False
    why: str = ""
    # In its line, lowest first.
    place: int = 0

    @property
    def published(self) -> PublishedEvent:
        return PublishedEvent(self.row.event_id, self.row.type, self.at_us, self.row.content, self.row.response)

    @property
    def as_kept(self) -> operations.KeptEvent:
        row, operation_id = self.row, UUID(self.published.operation_id)
        return operations.KeptEvent(
            row.sink, row.event_id, row.type, operation_id, self.at_us, self.tries, self.is_dead, self.why
        )

    def lease(self, now_us: int, lease_us: int) -> operations.LeasedEvent:
        self.lease_until_us, self.tries = now_us + lease_us, self.tries + 1
        age_us = now_us - self.since_us
        return operations.LeasedEvent(
            self.row.sink, self.published, self.tries, self.redeliveries, age_us, self.row.line
        )


@dataclass(slots=True)
class Memory:
    """What a restart does not forget."""

    clock: ManualClock = field(default_factory=ManualClock)
    records: dict[UUID, Record] = field(default_factory=dict)
    token: int = 0
    identity: str = field(default_factory=lambda: uuid4().hex)
    memo: bytes = b""
    generation: str = ""
    level: int = PROGRAM_LEVEL
    recipes: dict[Name, Remembered] = field(default_factory=dict)
    gateways: dict[UUID, Serves] = field(default_factory=dict)
    recovery_leases: dict[UUID, operations.RecoveryState] = field(default_factory=dict)
    requests: dict[UUID, SealedRequest] = field(default_factory=dict)
    # The pauses of operation names, and what was done about them, by service.
    pauses: dict[Name, operations.Pause] = field(default_factory=dict)
    # Up to when pauses were added to the time of an operation.
    credited_us: dict[UUID, int] = field(default_factory=dict)
    pause_audits: list[tuple[str, operations.PauseAudit]] = field(default_factory=list)
    # By content, by operation.
    contents: dict[bytes, dict[UUID, Held]] = field(default_factory=dict)
    # By service, sink and event id; and why a sink is suspended, by service and sink.
    events: dict[tuple[str, str, str], WaitingEvent] = field(default_factory=dict)
    places: int = 0
    suspensions: dict[tuple[str, str], str] = field(default_factory=dict)
    outboxes: dict[str, Outbox] = field(default_factory=dict)
    audits: dict[UUID, list[Kept]] = field(default_factory=dict)
    # Who has a turn, and until when.
    turns: dict[str, tuple[UUID, int]] = field(default_factory=dict)
    # By service, span, time and writer.
    activity: dict[tuple[str, int, int, UUID], operations.ActivityRow] = field(default_factory=dict)
    witnesses: dict[UUID, int] = field(default_factory=dict)
    # The number at the last look at a witness, and when the next one is due.
    witnesses_due_us: dict[UUID, tuple[int, int]] = field(default_factory=dict)
    watchers: Watchers = field(default_factory=Watchers)

    def draw_token(self) -> int:
        self.token += 1
        return self.token

    def write_events(self, service: str, rows: Iterable[OutboxRow]) -> None:
        now_us = self.clock()
        for row in rows:
            event = WaitingEvent(row, now_us, now_us, now_us, place=self.draw_place())
            self.events.setdefault((service, row.sink, row.event_id), event)

    def draw_place(self) -> int:
        self.places += 1
        return self.places

    def keep(self, operation_id: UUID, record: Record | None) -> None:
        """Write the record as it now is. An unchanged one is no news."""
        if record is self.records.get(operation_id):
            return
        if record is None:
            self.records.pop(operation_id)
        else:
            self.records[operation_id] = record
        if record is None or record.delivery is None:
            self.requests.pop(operation_id, None)
            self.credited_us.pop(operation_id, None)
        self._give_turns()
        self.watchers.announce(operation_id)

    def _give_turns(self) -> None:
        """Mark the head of each lane as not behind, and the rest of its line as behind."""
        lines: dict[bytes, list[tuple[int, UUID]]] = {}
        for operation_id in self.requests:
            record = self.records.get(operation_id)
            lane = None if record is None or record.delivery is None else record.delivery.lane
            if record is not None and lane is not None and (place := rank(record)) is not None:
                lines.setdefault(lane, []).append((place, operation_id))
        for line in lines.values():
            for place, operation_id in line:
                record = self.records[operation_id]
                assert record.delivery is not None
                delivery = replace(record.delivery, is_behind=place != min(line)[0])
                self.records[operation_id] = replace(record, delivery=delivery)


class MemoryStore:
    """The `Store` of the tests. Atomic because no verb awaits anything between reading and writing."""

    def __init__(
        self, memory: Memory | None = None, witness_files: WitnessFiles | None = None, outbox: Outbox = NO_EVENTS
    ) -> None:
        self.memory = Memory() if memory is None else memory
        self._outbox = outbox
        self._witness_files = witness_files
        self.cold = self
        self._link = uuid4()
        self._started = False

    async def start(self) -> None:
        self._link = uuid4()
        self._started = True

    async def close(self) -> None:
        self._started = False

    async def apply(self, command: Command) -> Result:
        reading = self._compared()
        result = self.apply_now(command)
        if isinstance(result, Applied):
            self._witness(reading)
        return result

    def _compared(self) -> Reading:
        """What is noted of this memory. Raises `EpochChanged` where it lacks some of that."""
        files, memory = self._witness_files, self._open
        if files is None:
            return Reading()
        reading = files.read()
        epoch = operations.Epoch(
            memory.identity, memory.token, memory.clock(), memory.memo, memory.generation, memory.witnesses
        )
        if (why := missing(reading.notes, epoch, files.beyond)) is not None:
            raise EpochChanged(why)
        return reading

    def _witness(self, reading: Reading) -> None:
        files, memory = self._witness_files, self.memory
        if files is None:
            return
        number = memory.witnesses[self._link] = memory.witnesses.get(self._link, 0) + 1
        memory.witnesses_due_us.setdefault(self._link, (0, memory.clock() + operations.WITNESS_KEEP_US))
        files.write(0, WitnessNote(self._link, number, memory.clock(), files.beyond, memory_digest(memory.identity)))
        files.cover(reading)

    def apply_now(self, command: Command) -> Result:
        """`apply`, for those who have no event loop."""
        memory, operation_id = self.memory, operation_id_of(command)
        now_us = memory.clock()
        before = settle(memory.records.get(operation_id), now_us)
        result, record = step(before, command, now_us, memory.draw_token, self._content_holder(command))
        stored = memory.records.get(operation_id)
        if isinstance(command, Accept) and record is not before and record is not None:
            memory.requests[operation_id] = command.kept
        content = content_of(command)
        if content is not None and record is not before and record is not None and record.fingerprint is not None:
            held = Held(record.fingerprint.digest, now_us + content.within_us)
            memory.contents.setdefault(content.digest, {})[operation_id] = held
        if record is not stored:
            memory.write_events(self._outbox.service, self._outbox.rows(stored, record))
            memory.keep(operation_id, record)
            after = memory.records.get(operation_id)
            if after is not None and after.delivery is not None:
                result = replace(result, snapshot=with_turn(result.snapshot, is_behind=after.delivery.is_behind))
        if isinstance(command, Purge | Erase) and record is not before:
            memory.generation = uuid4().hex
        audit = audit_of(command)
        if audit is not None and before is not None and record is not before:
            entry = operations.AuditEntry(now_us, EVENT_OF[type(command)], before.token, audit.who, audit.why)
            memory.audits.setdefault(operation_id, []).append(Kept(entry, now_us + operations.AUDIT_KEEP_US))
        return result

    def _content_holder(self, command: Command) -> UUID | None:
        """Another operation that holds the command's content, the one that claimed it first."""
        content, memory = content_of(command), self.memory
        if content is None or content.is_distinct:
            return None
        own, now_us = operation_id_of(command), memory.clock()
        holders = [
            (held.until_us, other)
            for other, held in memory.contents.get(content.digest, {}).items()
            if other != own and holds_content(memory.records.get(other), held.fingerprint_digest, held.until_us, now_us)
        ]
        return min(holders)[1] if holders else None

    async def read(self, operation_id: UUID) -> Snapshot:
        self._check_started()
        return self.read_now(operation_id)

    def read_now(self, operation_id: UUID) -> Snapshot:
        """`read`, for those who have no event loop."""
        now_us = self.memory.clock()
        return Snapshot(settle(self.memory.records.get(operation_id), now_us), now_us)

    async def sweep(self, limit: int) -> operations.Swept:
        memory, now_us, written = self._open, self.memory.clock(), Counter[State]()
        self._move_pauses(now_us)
        lapsed: list[tuple[str, UUID]] = []
        for operation_id, record in list(memory.records.items()):
            pause = self._pause_of(record)
            if pause is not None and _expires_soon(record, now_us):
                self._credit(record, pause, self._credited_us(record, pause) + _PAUSE_STEP_US)
                continue
            after = written_down(record, now_us)
            if after is record:
                continue
            if written.total() == limit:
                return _swept(written, lapsed, more=True)
            outboxes = {**memory.outboxes, self._outbox.service: self._outbox}
            memory.write_events(*swept_rows(outboxes.values(), record, after))
            memory.keep(operation_id, after)
            state = State.ABSENT if after is None else after.state
            written[State.CLAIMED if state is record.state else state] += 1
            if after is not None and state is not record.state and state is State.IN_DOUBT:
                lapsed.append((after.identity.route, operation_id))
        return _swept(written, lapsed, more=not self._tidy(limit - written.total()))

    def _tidy(self, limit: int) -> bool:
        """Clear away what is kept beside records and needed no more; False when the limit was reached."""
        memory, now_us = self.memory, self.memory.clock()
        for operation_id, lease in list(memory.recovery_leases.items()):
            record = memory.records.get(operation_id)
            if record is None or record.token != lease.token or record.state is not State.IN_DOUBT:
                del memory.recovery_leases[operation_id]
        for link, (kept_number, due_us) in list(memory.witnesses_due_us.items()):
            if due_us > now_us:
                continue
            if memory.witnesses[link] == kept_number:
                del memory.witnesses[link], memory.witnesses_due_us[link]
            else:
                memory.witnesses_due_us[link] = (memory.witnesses[link], now_us + operations.WITNESS_KEEP_US)
        for operation_id, audits in list(memory.audits.items()):
            for kept in [kept for kept in audits if kept.until_us <= now_us]:
                if limit <= 0:
                    return False
                limit -= 1
                if operation_id in memory.records:
                    kept.until_us = now_us + operations.AUDIT_KEEP_US
                else:
                    audits.remove(kept)
        return self._tidy_activity(limit)

    def _tidy_activity(self, limit: int) -> bool:
        now_us, rows = self.memory.clock(), self.memory.activity
        old = [
            place for place, row in rows.items() if not now_us < row.until_us <= now_us + operations.ACTIVITY_AHEAD_US
        ]
        for place in old[:limit]:
            del rows[place]
        return len(old) <= limit

    async def save_activity(self, service: str, *rows: operations.ActivityRow) -> None:
        self._open.activity.update({(service, row.span_us, row.at_us, row.writer): row for row in rows})

    async def activity(self, service: str, span_us: int, since_us: int, until_us: int) -> list[operations.ActivityRow]:
        found = [
            row
            for place, row in self._open.activity.items()
            if place[:2] == (service, span_us) and since_us <= row.at_us < until_us
        ]
        return sorted(found, key=lambda row: row.at_us, reverse=True)[: operations.ACTIVITY_ROWS_MAX]

    async def take_turns(self, holder: UUID, names: Collection[str], lease_us: int) -> frozenset[str]:
        turns, now_us = self._open.turns, self.memory.clock()
        for name in names:
            other, until_us = turns.get(name, (holder, 0))
            if other == holder or not now_us < until_us <= now_us + lease_us:
                turns[name] = (holder, now_us + lease_us)
        return frozenset(name for name in names if turns[name][0] == holder)

    async def leave_turns(self, holder: UUID) -> None:
        turns = self._open.turns
        for name in [name for name, (other, _) in turns.items() if other == holder]:
            del turns[name]

    async def tally(self) -> operations.Tally:
        now_us = self._open.clock()
        settled = (settle(record, now_us) for record in self.memory.records.values())
        in_doubt = [record for record in settled if record is not None and record.state is State.IN_DOUBT]
        oldest_us = max((max(0, now_us - in_doubt_since_us(record)) for record in in_doubt), default=0)
        return operations.Tally(Counter(record.identity.route for record in in_doubt), oldest_us / MICROSECONDS)

    async def sealed_examples(self, key_id: str) -> list[KeptRow]:
        records = self._open.records.values()
        found = (each for each in records if _sealed_by(each) == key_id)
        return list(islice(found, EXAMPLES_MAX))

    async def compare_configuration(
        self, serving: operations.Serving, *, is_trial: bool = False
    ) -> operations.Agreement:
        memory, now_us = self._open, self.memory.clock()
        running = {
            name
            for gateway_id, serves in memory.gateways.items()
            if gateway_id != serving.gateway_id and 0 <= now_us - serves.seen_us <= RUNNING_US
            for name in serves.names
        }
        comparison = compare(memory.recipes.values(), running, serving)
        agreement = comparison.agreement({name: self._living(name) for name in comparison.names})
        if not agreement.conflicts and not is_trial:
            memory.recipes.update({row.name: row for row in comparison.written})
            names = frozenset((serving.service, operation) for operation in serving.recipes)
            memory.gateways[serving.gateway_id] = Serves(names, now_us)
            memory.outboxes[serving.service] = unpack(self._outbox.pack(), self._outbox.sealing)
        return agreement

    async def note_running(self, gateway_id: UUID, *, is_running: bool) -> None:
        serves = self._open.gateways.pop(gateway_id, None)
        if is_running and serves is not None:
            self.memory.gateways[gateway_id] = serves._replace(seen_us=self.memory.clock())

    def _living(self, name: Name) -> operations.Living:
        settled = (settle(record, self.memory.clock()) for record in self.memory.records.values())
        alive = [record for record in settled if record is not None and is_of(record.identity, *name)]
        by_key = Counter("" if each.fingerprint is None else each.fingerprint.key_id for each in alive)
        if any(record.delivery is not None or record.state in _ENDLESS for record in alive):
            return operations.Living(len(alive), None, by_key)
        return operations.Living(len(alive), max((_kept_until_us(record) for record in alive), default=0), by_key)

    async def count_without_route(self, service: str, operations: Collection[str]) -> dict[str, int]:
        names = names_without_route(self._open.recipes.values(), service, operations)
        return {name[1]: living.keys for name in names if (living := self._living(name)).keys}

    async def find(self, query: operations.Query) -> list[Snapshot]:
        now_us = self._open.clock()
        found: list[Snapshot] = []
        for operation_id, kept in sorted(self.memory.records.items()):
            record = settle(kept, now_us)
            is_passed = query.after is not None and operation_id <= query.after
            if record is not None and not is_passed and self._fits(query, record, now_us):
                response = None if record.response is None else replace(record.response, body=None)
                found.append(Snapshot(replace(record, response=response), now_us))
        return found[: query.limit]

    def _fits(self, query: operations.Query, record: Record, now_us: int) -> bool:
        if record.state not in query.states:
            return False
        if query.recoverable:
            lease = self.memory.recovery_leases.get(record.identity.operation_id)
            is_its = lease is not None and lease.token == record.token
            is_taken = lease is not None and (lease.is_held(now_us) or lease.is_put_off(now_us))
            if record.state is not State.IN_DOUBT or (is_its and is_taken):
                return False
        if query.reason is not None and (record.delivery is None or record.delivery.reason != query.reason):
            return False
        is_on_route = query.routes is None or record.identity.route in query.routes
        is_old = not now_us - query.age_us < record.first_claimed_us <= now_us
        return is_on_route and is_old

    async def recover(
        self, operation_id: UUID, token: int, lease_us: int, *, is_urgent: bool
    ) -> operations.RecoveryLease | None:
        now_us, leases = self._open.clock(), self.memory.recovery_leases
        record = settle(self.memory.records.get(operation_id), now_us)
        if record is None or record.state is not State.IN_DOUBT or record.token != token:
            return None
        before = leases.get(operation_id)
        if before is None or before.token != token:
            before = operations.RecoveryState(token)
        if (state := before.leased(now_us, lease_us, is_urgent=is_urgent)) is None:
            return None
        leases[operation_id] = state
        return operations.RecoveryLease(operation_id, token, before.tries, before.background_tries)

    async def put_off(self, lease: operations.RecoveryLease, pause_us: int, finding: str) -> None:
        now_us, leases = self._open.clock(), self.memory.recovery_leases
        kept, record = leases.get(lease.operation_id), self.memory.records.get(lease.operation_id)
        if kept is None or (kept.token, kept.tries) != (lease.token, lease.tries + 1):
            return
        leases[lease.operation_id] = replace(
            kept, held_until_us=0, asked_us=now_us, finding=finding, put_off_until_us=now_us + pause_us
        )
        if record is not None and (history := operations.with_finding(record, lease, finding, now_us)) is not None:
            self.memory.records[lease.operation_id] = replace(record, history=history)

    async def recovery(self, operation_id: UUID) -> operations.RecoveryState | None:
        return self._open.recovery_leases.get(operation_id)

    async def find_due(self, service: str, delivering: Delivering, limit: int) -> operations.Due:
        now_us, due = self._open.clock(), list[tuple[int, Record]]()
        for record in self._undelivered(service):
            delivery = record.delivery
            if delivery is None or record.state is not State.ACCEPTED or self._pause_of(record):
                continue
            may_start = is_due(record, now_us) and not delivery.is_behind
            if delivering.includes(record.identity) and may_start:
                due.append((delivery.next_attempt_us, record))
        due.sort(key=lambda one: one[0])
        return operations.Due([Snapshot(record, now_us) for _, record in due[:limit]], frozenset(self._pauses(service)))

    async def read_kept(self, operation_id: UUID) -> SealedRequest | None:
        return self._open.requests.get(operation_id)

    async def count_pending(self, service: str, route: str, scope_digest: bytes, limit: int) -> int:
        pending = [
            record
            for record in self._undelivered(service)
            if record.state is State.ACCEPTED
            and (record.identity.route, record.identity.scope_digest) == (route, scope_digest)
        ]
        return min(len(pending), limit)

    async def backlog(self, service: str) -> operations.Backlog:
        now_us, waiting = self._open.clock(), dict[str, operations.RouteBacklog]()
        for record in self._undelivered(service):
            route, delivery, changes = record.identity.route, record.delivery, dict[str, Any]()
            assert delivery is not None
            known = waiting.get(route, operations.RouteBacklog())
            if record.state is State.ACCEPTED:
                changes["accepted"] = known.accepted + 1
                changes["request_bytes"] = known.request_bytes + delivery.request_bytes
                age_seconds = (now_us - delivery.accepted_us) / MICROSECONDS
                changes["oldest_seconds"] = max(known.oldest_seconds, age_seconds)
            elif record.state is State.DEAD_LETTER:
                changes["dead_letters"] = dict(Counter(known.dead_letters) + Counter([str(delivery.reason)]))
            since_us = None if delivery.is_behind else stopped_us(record)
            if since_us is not None:
                changes["lanes_stopped"] = known.lanes_stopped + 1
                age_seconds = (now_us - since_us) / MICROSECONDS
                changes["oldest_stopped_seconds"] = max(known.oldest_stopped_seconds, age_seconds)
            if changes:
                waiting[route] = replace(known, **changes)
        return operations.Backlog(waiting, self._pauses(service))

    def _pauses(self, service: str) -> dict[str, operations.Pause]:
        return {operation: pause for (paused, operation), pause in self.memory.pauses.items() if paused == service}

    async def pause(self, service: str, operation: str, audit: Audit) -> bool:
        if (service, operation) in self._open.pauses:
            return False
        now_us = self.memory.clock()
        self.memory.pauses[service, operation] = operations.Pause(now_us, audit.who, audit.why)
        self._audit_pause(service, operations.PauseAudit(now_us, operation, False, audit.who, audit.why))
        return True

    def _audit_pause(self, service: str, entry: operations.PauseAudit) -> None:
        kept = [each for each in self.memory.pause_audits if each[1].at_us >= entry.at_us - operations.AUDIT_KEEP_US]
        self.memory.pause_audits = [*kept, (service, entry)]

    async def pause_audits(self, service: str) -> list[operations.PauseAudit]:
        return [entry for owner, entry in self._open.pause_audits if owner == service][-operations.AUDITS_MAX :]

    async def resume(self, service: str, operation: str, audit: Audit) -> bool:
        now_us, pause = self._open.clock(), self.memory.pauses.pop((service, operation), None)
        if pause is None:
            return False
        self._audit_pause(service, operations.PauseAudit(now_us, operation, True, audit.who, audit.why))
        pause = replace(pause, since_us=min(pause.since_us, now_us))
        for record in self._undelivered(service):
            if record.state is State.ACCEPTED and record.identity.operation == operation:
                since_us = 0 if record.delivery is None else record.delivery.since_us
                self._credit(record, pause, max(now_us, since_us))
        return True

    def _move_pauses(self, now_us: int) -> None:
        for name, pause in self.memory.pauses.items():
            self.memory.pauses[name] = replace(pause, since_us=min(pause.since_us, now_us))

    def _credited_us(self, record: Record, pause: operations.Pause) -> int:
        assert record.delivery is not None
        credited_us = self.memory.credited_us.get(record.identity.operation_id, 0)
        return max(pause.since_us, record.delivery.since_us, credited_us)

    def _credit(self, record: Record, pause: operations.Pause, until_us: int) -> None:
        """Let the pause count up to this time, and no longer, for the end of the record's delivery."""
        by_us, operation_id = until_us - self._credited_us(record, pause), record.identity.operation_id
        assert record.delivery is not None
        later = replace(record.delivery, deliver_until_us=record.delivery.deliver_until_us + by_us)
        self.memory.records[operation_id] = replace(record, delivery=later)
        self.memory.credited_us[operation_id] = until_us

    def _undelivered(self, service: str) -> list[Record]:
        now_us = self._open.clock()
        kept = (self.memory.records[operation_id] for operation_id in self.memory.requests)
        settled = (settle(record, now_us) for record in kept)
        return [record for record in settled if record and record.delivery and record.delivery.service == service]

    def _pause_of(self, record: Record) -> operations.Pause | None:
        delivery = record.delivery
        if delivery is None:
            return None
        return self.memory.pauses.get((delivery.service, record.identity.operation))

    async def lease_events(
        self, service: str, wanted: Mapping[str, int], lease_us: int
    ) -> list[operations.LeasedEvent]:
        now_us, leased = self._open.clock(), list[operations.LeasedEvent]()
        for sink, number in wanted.items():
            if (service, sink) in self.memory.suspensions:
                continue
            due = [
                each
                for each in self._heads(service, sink)
                if _is_due(each, now_us) and not now_us < each.lease_until_us <= now_us + operations.EVENT_LEASE_US_MAX
            ]
            for each in sorted(due, key=lambda one: one.due_us)[:number]:
                leased.append(each.lease(now_us, lease_us))
        return leased

    async def report_events(self, service: str, reports: Collection[operations.EventReport]) -> None:
        events = self._open.events
        for report in reports:
            key = (service, report.sink, report.event_id)
            event = events.get(key)
            if event is None:
                continue
            if report.fate is operations.EventFate.PUBLISHED:
                del events[key]
            elif (event.tries, event.redeliveries) == (report.tries, report.redeliveries) and not event.is_dead:
                event.why = report.why
                event.is_dead = report.fate is operations.EventFate.DEAD
                event.lease_until_us = self.memory.clock()
                event.due_us = event.lease_until_us + report.pause_us

    async def find_events(
        self, service: str, sink: str, *, is_dead: bool, after: str | None, limit: int
    ) -> list[operations.KeptEvent]:
        found = [
            each.as_kept
            for each in self._events(service, sink)
            if each.is_dead is is_dead and (after is None or each.row.event_id > after)
        ]
        return sorted(found, key=lambda one: one.event_id)[:limit]

    async def redeliver_event(self, service: str, event_id: str, sink: str | None) -> int:
        now_us, number = self._open.clock(), 0
        for (of_service, of_sink, of_id), event in self.memory.events.items():
            if (of_service, of_id, sink or of_sink) == (service, event_id, of_sink) and event.is_dead:
                event.is_dead, event.tries, event.redeliveries = False, 0, event.redeliveries + 1
                event.why = ""
                event.since_us = event.due_us = now_us
                event.place = self.memory.draw_place()
                number += 1
        return number

    async def suspend_sink(self, service: str, sink: str, why: str) -> bool:
        was_suspended = (service, sink) in self._open.suspensions
        self.memory.suspensions.setdefault((service, sink), why)
        return not was_suspended

    async def resume_sink(self, service: str, sink: str) -> bool:
        if self._open.suspensions.pop((service, sink), None) is None:
            return False
        for each in self._events(service, sink):
            if not each.is_dead:
                each.due_us = min(each.due_us, self.memory.clock())
        return True

    async def sinks(self, service: str) -> dict[str, operations.SinkBacklog]:
        now_us, found = self._open.clock(), dict[str, operations.SinkBacklog]()
        names = [*self.memory.suspensions, *((of, sink) for of, sink, _ in self.memory.events)]
        for sink in sorted({sink for of_service, sink in names if of_service == service}):
            events = self._events(service, sink)
            waiting = sorted((each for each in events if not each.is_dead), key=lambda one: one.due_us)
            oldest_us = max((now_us - each.since_us for each in waiting), default=0)
            dead, why = len(events) - len(waiting), next((each.why for each in reversed(waiting) if each.why), "")
            suspended = self.memory.suspensions.get((service, sink))
            found[sink] = operations.SinkBacklog(len(waiting), oldest_us / MICROSECONDS, dead, why, suspended)
        return found

    def _heads(self, service: str, sink: str) -> list[WaitingEvent]:
        """The events that no other one of their line goes before."""
        first: dict[object, WaitingEvent] = {}
        for each in self._events(service, sink):
            line = each.row.event_id if each.row.line is None else each.row.line
            if not each.is_dead and (line not in first or each.place < first[line].place):
                first[line] = each
        return list(first.values())

    def _events(self, service: str, sink: str) -> list[WaitingEvent]:
        return [event for key, event in self._open.events.items() if key[:2] == (service, sink)]

    async def audits(self, operation_id: UUID) -> list[operations.AuditEntry]:
        self._check_started()
        return self.audits_now(operation_id)

    async def latest_audits(self, before: int | None, limit: int) -> list[operations.NumberedAudit]:
        kept = [(each.entry, operation_id) for operation_id, audits in self._open.audits.items() for each in audits]
        ordered = sorted(kept, key=lambda each: each[0].at_us)
        numbered = [
            operations.NumberedAudit(number, operation_id, entry)
            for number, (entry, operation_id) in enumerate(ordered)
        ]
        return [each for each in reversed(numbered) if before is None or each.number < before][:limit]

    def audits_now(self, operation_id: UUID) -> list[operations.AuditEntry]:
        """`audits`, for those who have no event loop."""
        return [kept.entry for kept in self.memory.audits.get(operation_id, [])][-operations.AUDITS_MAX :]

    async def check_memory(self, links: Collection[UUID] = ()) -> operations.Epoch:
        memory = self._open
        witnesses = {link: memory.witnesses[link] for link in links if link in memory.witnesses}
        return operations.Epoch(
            memory.identity, memory.token, memory.clock(), memory.memo, memory.generation, witnesses, level=memory.level
        )

    async def begin_epoch(self, memo: bytes, beyond_token: int) -> None:
        self._open.memo = memo
        self.memory.token = max(self.memory.token, beyond_token)

    def watch(self, operation_id: UUID) -> AbstractAsyncContextManager[Watch]:
        return self.memory.watchers.watch(operation_id)

    def announce_work(self) -> None:
        self.memory.watchers.announce(WORK)

    @property
    def _open(self) -> Memory:
        self._check_started()
        return self.memory

    def _check_started(self) -> None:
        if not self._started:
            raise NotApplied("the store is not open")


def _is_due(event: WaitingEvent, now_us: int) -> bool:
    """Whether it may be published, or was written or put off at a time in the future."""
    if event.due_us <= now_us or event.lease_until_us > now_us + operations.EVENT_LEASE_US_MAX:
        return True
    return event.due_us == event.since_us > now_us + STEP_US


def _swept(written: Counter[State], lapsed: list[tuple[str, UUID]], *, more: bool) -> operations.Swept:
    in_doubt, retired, gone = (written[state] for state in (State.IN_DOUBT, State.TOMBSTONE, State.ABSENT))
    return operations.Swept(
        in_doubt, retired, gone, more, written[State.DEAD_LETTER], tuple(lapsed[: operations.LAPSES_NAMED_MAX])
    )


def _sealed_by(record: Record) -> str | None:
    return sealed_by(record.identity, record.probe, record.request, record.response, record.resource)


def _expires_soon(record: Record, now_us: int) -> bool:
    """Whether an accepted operation whose name is paused would become a dead letter within an hour."""
    if record.delivery is None or record.state is not State.ACCEPTED:
        return False
    return now_us < record.delivery.deliver_until_us <= now_us + _PAUSE_STEP_US


def _kept_until_us(record: Record) -> int:
    """Until when a key is remembered that nothing more happens to."""
    is_answered = record.state is State.COMPLETED
    return max(record.remember_until_us, record.replay_until_us if is_answered else 0)
