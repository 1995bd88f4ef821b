"""What operators do about operations: read, resolve, requeue, purge, pause. Knows neither HTTP nor terminals.

Theory of operation
-------------------
*Nothing is decided twice.* `core.lifecycle` decides what may happen to a record, `resolution` which command a ruling or
a decision becomes. It is fenced on the token that was read: if the record changed in between, the operator gets a
refusal.

*A command may be repeated.* An operator that did not see its result gives it again, and it is recognised as the same
one; so is a retry after the store's response was lost.

Every change writes its audit to the durable store, in the same transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final, TypeVar
from uuid import UUID

from gateway.admin import reports
from gateway.admin import resolution as rulings
from gateway.admin.journal import UNENDED, why_it_happened
from gateway.admin.reports import MemoryState, Report, accept_loss, memory_state, moment
from gateway.admin.resolution import Changed, Malformed, NoSuch, NotDead, Policies, Refusal, Refused
from gateway.admin.view import Inspected, foreign
from gateway.core.identity.key import Key, KeyFault, Scope, Unverified, VerifiedSpec, derive_operation_id, stored_digest
from gateway.core.message import Headers, IndexedHeaders
from gateway.core.operation import (
    Applied,
    Audit,
    Command,
    Erase,
    Event,
    Prove,
    Purge,
    Record,
    Requeue,
    Result,
    Snapshot,
    State,
)
from gateway.store.base import Indefinite, NotApplied, Store, StoreError, Unreadable, wall_clock_us
from gateway.store.journal import OF_ONE_MAX, HostJournals, JournalView
from gateway.store.operations import ActivityRow, AuditEntry, Backlog, ObservationStore, ObservedCount, Query
from gateway.upkeep.activity import Activity, Buckets, Window, gathered

T = TypeVar("T")

_WHY_CHARACTERS_MAX: Final = 1000
_WHO_CHARACTERS_MAX: Final = 128
_CALL_SECONDS: Final = 15.0
# How long a command whose response was lost is repeated before the operator is asked to.
_PATIENCE_SECONDS: Final = 20.0
_PAUSE_SECONDS: Final = 0.5

_ERASING: Final = (
    "To erase is to forget the key: a request with it runs again, and may have its effect a second time. Say yes to "
    "confirm that no client will repeat it."
)
_WITHOUT_ROUTE: Final = (
    "No route of this configuration delivers this operation: give its route back, with its `accept`, or withdraw it."
)


class Operations:
    """Operators' actions on one store. `store` includes the fast tier, so that purges reach the copies;
    `purges_pending` counts those that did not. `cache_seconds` is how long a gateway may reply from its cache before it
    notices a purge, 0 where it is notified at once. `journals` are those of this host, `observations` is the table of
    the same store. `counted` is what this process counted lately."""

    def __init__(
        self,
        store: Store,
        policies: Policies,
        journals: HostJournals,
        *,
        purges_pending: Callable[[], int] = lambda: 0,
        cache_seconds: float = 0.0,
        patience_seconds: float = _PATIENCE_SECONDS,
        observations: ObservationStore | None = None,
        counted: Callable[[], Buckets] = dict,
    ) -> None:
        self.store = store
        self.policies = policies
        self._purges_pending = purges_pending
        self._cache_seconds = cache_seconds
        self._patience_seconds = patience_seconds
        self.journals = journals
        self._observations = observations
        self._counted = counted

    # -- reading ------------------------------------------------------------------------------------------------------

    async def observed(self, route: str | None = None) -> list[Report]:
        """What was observed of the observed routes and of those that were in the last day, or of this one. Raises
        `NoSuch` for a route that neither the configuration nor the store knows, `NotApplied`."""
        if self._observations is None:
            raise NotApplied("this store keeps no observations")
        configured = {each.name: each for each in self.policies.routes}
        by_route: dict[str, list[ObservedCount]] = {
            name: [] for name, each in configured.items() if each.mode == "observe" and route in (None, name)
        }
        async with asyncio.timeout(_CALL_SECONDS):
            for count in await self._observations.count_observed(self.policies.service, route):
                by_route.setdefault(count.route, []).append(count)
        if route is not None and route not in by_route:
            if route not in configured:
                raise NoSuch("unknown", f"there is no route {route}; there are {', '.join(sorted(configured))}")
            by_route[route] = []
        found = []
        for name, counts in sorted(by_route.items()):
            policy = configured.get(name)
            mode, share = (None, 0.0) if policy is None else (policy.mode, policy.enforce_share)
            found.append(reports.observed(name, mode, share, counts))
        return found

    async def activity(self, window: Window) -> Activity:
        """What the gateways of the service did in this time; of this process alone where the store cannot be asked."""
        now_us, why, rows = wall_clock_us(), "", list[ActivityRow]()
        # A row may begin before the window, and end in it.
        since_us = now_us - window.length_us - window.row_us
        try:
            rows = await bounded(
                self.store.cold.activity(self.policies.service, window.row_us, since_us, now_us + window.row_us)
            )
        except StoreError as error:
            why = str(error) or type(error).__name__
        found = [(each.writer, each.at_us, each.body) for each in rows]
        return await asyncio.to_thread(gathered, window, now_us, self._counted(), found, why)

    def identify(self, route_name: str, headers: Headers, body: bytes | None) -> UUID:
        """The operation of a request, identified as the request would be, wherever its connection came from. Raises
        `Malformed`."""
        route = self.policies.named(route_name)
        if route is None:
            raise Malformed(str(rulings.no_such_route(route_name, self.policies)))
        if body is None and route.key.needs_body:
            raise Malformed(f"the key of route {route_name} is in the body of the request: give that too")
        by_name = IndexedHeaders(headers).by_name
        key = route.key.find_key(by_name, body)
        if isinstance(key, KeyFault):
            raise Malformed(key.detail)
        asserted: dict[VerifiedSpec, bytes] = {}
        spec = rulings.without_peer(route.scope)
        while isinstance(scope := spec.find_scope(by_name, None, asserted), Unverified):
            value = rulings.asserted_value(scope.part, headers)
            if value is None:
                raise Malformed(
                    f"these headers do not show whom route {route_name} would take for the caller: give the id of the "
                    "operation"
                )
            asserted[scope.part] = value
        if not isinstance(scope, Scope):
            raise Malformed(f"the caller of route {route_name} is not identified: {scope.detail}")
        if not isinstance(key, Key):
            raise Malformed(f"these headers have no key for route {route_name}")
        service, secret = self.policies.service, self.policies.identity_secret
        digests = stored_digest(scope, secret), stored_digest(key, secret)
        return derive_operation_id(service, route.operation, *digests)

    async def inspect(self, operation_id: UUID) -> Inspected:
        snapshot, audits = await self.read(operation_id), tuple(await self.audits(operation_id))
        record = snapshot.record
        is_own = record is not None and self.policies.is_own(record)
        journal = await self.journal(operation_id=operation_id, limit=OF_ONE_MAX)
        memory = await self.memory()
        probes, pause, is_stranded = None, None, False
        if record is not None and record.state is State.IN_DOUBT:
            probes = await bounded(self.store.cold.recovery(operation_id))
        if record is not None and record.state is State.ACCEPTED:
            pause = next((each for each in await self.paused() if each["operation"] == record.identity.operation), None)
            is_stranded = is_own and not self.policies.is_delivered(record)
        sinks: tuple[Report, ...] = ()
        if is_own and self.policies.sinks:
            about = self.store.cold, self.policies.service, self.policies.sinks
            sinks = await bounded(reports.events_of(*about, operation_id))
        return Inspected(
            operation_id,
            snapshot,
            audits,
            self.policies.treatment_of(record) if record is not None and is_own else None,
            journal,
            memory if memory.refuses(record) else None,
            probes,
            pause,
            is_stranded,
            sinks,
        )

    async def read(self, operation_id: UUID) -> Snapshot:
        return await bounded(self.store.read(operation_id))

    async def audits(self, operation_id: UUID) -> list[AuditEntry]:
        return await bounded(self.store.cold.audits(operation_id))

    async def backlog(self) -> Backlog:
        return await bounded(self.store.cold.backlog(self.policies.service))

    async def journal(
        self, *, operation_id: UUID | None = None, is_refused: bool | None = None, limit: int
    ) -> JournalView:
        """The outcomes in the journals of this host. Needs no store."""
        view = self.journals.view
        return await asyncio.to_thread(view, operation_id=operation_id, is_refused=is_refused, limit=limit)

    async def page(self, query: Query) -> tuple[list[Record], int]:
        """The records that the store finds, by operation id, and its time (µs); 0 where there is none."""
        found = await bounded(self.store.cold.find(query))
        return [each.record for each in found if each.record is not None], found[0].now_us if found else 0

    # -- resolving ----------------------------------------------------------------------------------------------------

    async def resolve(
        self,
        operation_id: UUID,
        ruling: rulings.Ruling,
        audit: Audit,
        *,
        is_forced: bool = False,
        token: int | None = None,
        is_dry_run: bool = False,
    ) -> Changed | Refused:
        """End the doubt about an operation. `token`: only if the attempt in doubt still has it. `is_dry_run`: change
        nothing, and say what would happen. Raises `NotApplied`, `Unreadable`, `Indefinite` (give the same command
        again), `Unstorable`."""
        snapshot, record = await self._own(operation_id)
        if isinstance(record, Refused):
            return record
        treatment = self.policies.treatment_of(record)
        command = rulings.resolution(record, ruling, audit, treatment)
        ids = self.policies.stored_ids(command.resolution_id)
        if record.resolution_id in ids:
            text = f"The same command has resolved it already, {rulings.when(snapshot)}."
            return Changed(text, snapshot, is_repeat=True)
        command = replace(command, resolution_id=ids[0])
        if token is not None and token != record.token:
            return rulings.moved(token, snapshot)
        if isinstance(ruling, rulings.NothingHappened) and (why := await self._why_it_happened(record)) is not None:
            return Refused(Refusal.JOURNALED, why, snapshot)
        if record.state is not State.IN_DOUBT:
            return rulings.nothing_to("resolve", snapshot)
        refusal = rulings.objection(ruling, snapshot, treatment)
        if refusal is not None:
            if not is_forced:
                return refusal
            command = replace(command, audit=rulings.forced(audit, refusal.reason))
        if is_dry_run:
            return Changed(rulings.would_resolve(command, record), snapshot)
        result, _ = await self._apply(command)
        if isinstance(result, Applied):
            text = rulings.resolved(command, record, result.snapshot)
            return Changed(text, result.snapshot, self._notes_on(record, command))
        after = result.snapshot.record
        if after is None:
            return rulings.unknown(operation_id, result.snapshot)
        if after.state is State.IN_DOUBT:
            return rulings.moved(record.token, result.snapshot)
        return rulings.nothing_to("resolve", result.snapshot)

    async def _own(self, operation_id: UUID) -> tuple[Snapshot, Record | Refused]:
        snapshot = await self.read(operation_id)
        if snapshot.record is None:
            return snapshot, rulings.unknown(operation_id, snapshot)
        if not self.policies.is_own(snapshot.record):
            return snapshot, Refused(Refusal.SERVICE, foreign(), snapshot)
        return snapshot, snapshot.record

    async def _why_it_happened(self, record: Record) -> str | None:
        if record.state not in UNENDED:
            return None
        operation_id = record.identity.operation_id
        return why_it_happened(operation_id, await self.journal(operation_id=operation_id, limit=OF_ONE_MAX))

    def _notes_on(self, record: Record, command: rulings.Resolution) -> tuple[str, ...]:
        notes = []
        if self.policies.route_of(record) is None:
            notes.append(
                f"Its route {record.identity.route} is not in the configuration: the longest times of the routes that "
                "it may have belonged to were used."
            )
        if isinstance(command, Prove) and command.response.body is None:
            notes.append(
                "The body is too long for the route, or a stream, or values of it cannot be redacted: only status and "
                "headers were recorded, and repeats get response-not-stored."
            )
        return tuple(notes)

    # -- kept requests ------------------------------------------------------------------------------------------------

    async def requeue(self, operation_id: UUID, audit: Audit, *, token: int | None = None) -> Changed | Refused:
        """Deliver a dead letter after all. `token`: only if it is the record's. Raises as `resolve`."""
        return await self._decide(operation_id, Event.REQUEUE, audit, token)

    async def withdraw(self, operation_id: UUID, audit: Audit, *, token: int | None = None) -> Changed | Refused:
        """Call off what is accepted or a dead letter, and drop its request. Otherwise as `requeue`."""
        return await self._decide(operation_id, Event.WITHDRAW, audit, token)

    async def _decide(self, operation_id: UUID, event: Event, audit: Audit, token: int | None) -> Changed | Refused:
        snapshot, record = await self._own(operation_id)
        if isinstance(record, Refused):
            return record
        command = rulings.decision(event, record, audit, self.policies.treatment_of(record))
        command = replace(command, resolution_id=self.policies.stored_ids(command.resolution_id)[0])
        before = rulings.earlier(await self.audits(operation_id), command)
        if before is not None and token in (None, before.token):
            return Changed(rulings.decided_before(before, snapshot), snapshot, is_repeat=True)
        if token is not None and token != record.token:
            return rulings.moved(token, snapshot)
        memory = await self.memory()
        if memory.refuses(record):
            # An attempt may be among what was lost: then "no attempt had an effect" is not known any more.
            return Refused(Refusal.STATE, memory.text, snapshot)
        result, _ = await self._apply(command)
        if isinstance(result, Applied):
            is_stranded = isinstance(command, Requeue) and not self.policies.is_delivered(record)
            notes = (_WITHOUT_ROUTE,) if is_stranded else ()
            return Changed(rulings.decided(command, result.snapshot), result.snapshot, notes)
        if result.snapshot.record is None:
            return rulings.unknown(operation_id, result.snapshot)
        audits = await self.audits(operation_id)
        done = rulings.earlier(audits, command)
        if done is not None and done != before:
            # The result of the first try was lost, and the operation has gone on since.
            return Changed(rulings.decided_before(done, result.snapshot), result.snapshot)
        return rulings.nothing_to(event, result.snapshot, audits)

    async def paused(self) -> list[Report]:
        paused = (await self.backlog()).paused
        return [reports.paused(name, self.policies.routes_with(name), pause) for name, pause in sorted(paused.items())]

    async def pause(self, name: str, audit: Audit) -> str:
        """Deliver nothing new of this route, or operation name; returns the text. Repeatable. Raises `NoSuch`,
        `NotApplied`, `Indefinite` (give the same command again)."""
        operation = rulings.operation_named(name, self.policies)
        is_new = await self.changed(self.store.cold.pause(self.policies.service, operation, audit))
        about = reports.named(operation, self.policies.routes_with(operation))
        return (
            f"{'Paused' if is_new else 'Paused already'}: {about}. Within seconds gateways deliver nothing of it any "
            "more. Requests are accepted and kept, and the time does not count against their deadline; attempts under "
            "way go on. To end it: resume."
        )

    async def pause_audits(self) -> list[Report]:
        """The last pauses and their ends, oldest first. Raises `NotApplied`."""
        audits = await bounded(self.store.cold.pause_audits(self.policies.service))
        return [reports.pause_audit(entry) for entry in audits]

    async def resume(self, name: str, audit: Audit) -> str:
        """End a pause, also one of a name that no route has any more. Otherwise as `pause`."""
        operation = rulings.operation_named(name, self.policies, (await self.backlog()).paused)
        was_paused = await self.changed(self.store.cold.resume(self.policies.service, operation, audit))
        about = reports.named(operation, self.policies.routes_with(operation))
        return f"Resumed: {about} is delivered again within seconds." if was_paused else f"It is not paused: {about}."

    # -- sinks --------------------------------------------------------------------------------------------------------

    async def sinks(self) -> list[Report]:
        """The sinks of the configuration, and those that have events left. Raises `NotApplied`."""
        return reports.sinks(self.policies.sinks, await bounded(self.store.cold.sinks(self.policies.service)))

    async def events(self, sink: str, *, is_dead: bool, after: str | None, limit: int) -> list[Report]:
        """A page of events that a sink has not received, by id. Raises `NoSuch`, `NotApplied`."""
        await self._known_sink(sink)
        find = self.store.cold.find_events(self.policies.service, sink, is_dead=is_dead, after=after, limit=limit)
        return [reports.event(each) for each in await bounded(find)]

    async def redeliver(self, event_id: str, sink: str | None) -> str:
        """Publish a dead event again, to this sink or to all where it is dead; returns the text. Raises `NotDead`,
        `NoSuch`, `NotApplied`, `Indefinite` (give the same command again)."""
        if sink is not None:
            await self._known_sink(sink)
        number = await self.changed(self.store.cold.redeliver_event(self.policies.service, event_id, sink))
        if not number:
            raise NotDead(f"There is no dead event {event_id} there; nothing was changed.")
        sinks = "1 sink" if number == 1 else f"{number} sinks"
        return f"Event {event_id} is published again, under the same id, to {sinks}."

    async def suspend_sink(self, name: str, audit: Audit) -> str:
        """Publish nothing to this sink any more; returns the text. Repeatable. Raises as `redeliver`."""
        await self._known_sink(name)
        suspend = self.store.cold.suspend_sink(self.policies.service, name, f"{audit.who}: {audit.why}")
        suspended = "Suspended" if await self.changed(suspend) else "Suspended already"
        kept = "all other events are kept until it is resumed"
        return f"{suspended}: {name}. Publications under way go on; {kept}."

    async def resume_sink(self, name: str) -> str:
        """Publish to this sink again; returns the text. Repeatable. Raises as `redeliver`."""
        await self._known_sink(name)
        if await self.changed(self.store.cold.resume_sink(self.policies.service, name)):
            return f"Resumed: {name} gets what waited within seconds."
        return f"It is not suspended: {name}."

    async def _known_sink(self, name: str) -> None:
        if name not in self.policies.sinks:
            names = [each["name"] for each in await self.sinks()]
            if name not in names:
                raise NoSuch("no-such-sink", f"there is no sink {name!r}; there are {', '.join(names) or 'none'}")

    # -- purging ------------------------------------------------------------------------------------------------------

    async def purge(self, operation_id: UUID, audit: Audit) -> Changed | Refused:
        """Drop the response and remember the key. Raises as `resolve`. Another service's operations are refused: only
        its configuration reaches all of their copies."""
        snapshot = await self._read_to_purge(operation_id)
        if snapshot.record is not None and not self.policies.is_own(snapshot.record):
            return Refused(Refusal.SERVICE, foreign(), snapshot)
        result, _ = await self._apply(Purge(operation_id, audit))
        snapshot = result.snapshot
        if snapshot.record is None:
            return rulings.unknown(operation_id, snapshot)
        if not isinstance(result, Applied):
            return rulings.nothing_to("purge", snapshot)
        until = moment(snapshot.record.remember_until_us)
        text = f"Its response is dropped. The key is remembered and does not run again, until {until}."
        return self._dropped(text, snapshot)

    async def erase(self, operation_id: UUID, audit: Audit, *, is_sure: bool) -> Changed | Refused:
        """Forget the key, so that a request with it runs again. Raises as `resolve`."""
        snapshot = await self.read(operation_id)
        if snapshot.record is not None and not self.policies.is_own(snapshot.record):
            return Refused(Refusal.SERVICE, foreign(), snapshot)
        if is_sure:
            before = snapshot.record
            # Also when there is no record: an erasure whose result was lost may still have copies to drop.
            result, was_lost = await self._apply(Erase(operation_id, audit))
            snapshot, after = result.snapshot, result.snapshot.record
            is_gone = before is not None and (after is None or after.token != before.token)
            if isinstance(result, Applied) or (was_lost and is_gone):
                return self._dropped("The key is forgotten: the next request with it runs.", snapshot)
        if snapshot.state is State.ABSENT:
            return rulings.unknown(operation_id, snapshot)
        if snapshot.state in (State.RELEASED, State.TOMBSTONE) and not is_sure:
            return Refused(Refusal.UNSURE, _ERASING, snapshot)
        return rulings.nothing_to("erase", snapshot)

    def _dropped(self, text: str, snapshot: Snapshot) -> Changed:
        notes, pending = [], self._purges_pending()
        if pending:
            notes.append(
                "The fast tier could not be purged. A gateway that reaches it may reply from a copy there until the "
                "durable store notifies it, within seconds; give the same command again if there may be a gateway "
                "that does not reach the durable store."
            )
        elif self._cache_seconds:
            notes.append(f"Running gateways may reply from their cache for {self._cache_seconds:g} s more.")
        return Changed(text, snapshot, tuple(notes), pending)

    async def _read_to_purge(self, operation_id: UUID) -> Snapshot:
        """The snapshot, without a response that is unreadable: it can be purged all the same. Raises as `resolve`."""
        try:
            return await self.read(operation_id)
        except Unreadable:
            # `find` does not read responses.
            before = UUID(int=max(0, operation_id.int - 1))
            records, now_us = await self.page(Query(frozenset((State.COMPLETED,)), after=before, limit=1))
            if not records or records[0].identity.operation_id != operation_id:
                raise
            return Snapshot(records[0], now_us)

    # -- the store ----------------------------------------------------------------------------------------------------

    async def memory(self) -> MemoryState:
        """Whether the store is trusted when it does not know a key."""
        return await bounded(memory_state(self.store.cold))

    async def accept_loss(self, audit: Audit) -> MemoryState:
        return await bounded(accept_loss(self.store.cold, audit))

    async def _apply(self, command: Command) -> tuple[Result, bool]:
        """Apply, and retry while the result is indefinite; also returns whether it was. Raises as `resolve`."""
        loop = asyncio.get_running_loop()
        until, was_lost = loop.time() + self._patience_seconds, False
        while True:
            try:
                return await self.changed(self.store.apply(command)), was_lost
            except Indefinite:
                was_lost = True
            except (NotApplied, Unreadable):
                # After an indefinite attempt this proves nothing about that one.
                if not was_lost:
                    raise
            if loop.time() >= until:
                raise Indefinite(
                    "the durable store did not respond: it is not known whether the change was recorded. Give the "
                    "same command again to find out; it is not done twice"
                )
            await asyncio.sleep(_PAUSE_SECONDS)

    async def changed(self, call: Awaitable[T]) -> T:
        """A change with a time limit, announced to workers. Raises as the change, and `Indefinite` at the limit."""
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                return await call
        except TimeoutError as error:
            raise Indefinite(
                "the durable store did not respond. Give the same command again; it is not done twice"
            ) from error
        finally:
            self.store.cold.announce_work()


async def bounded(call: Awaitable[T]) -> T:
    """A read with a time limit. Raises `NotApplied`, `Unreadable`."""
    try:
        async with asyncio.timeout(_CALL_SECONDS):
            return await call
    except (TimeoutError, Indefinite) as error:
        raise NotApplied(f"the durable store did not respond within {_CALL_SECONDS:g} s") from error


def audit_by(who: str, why: str) -> Audit:
    who, why = who.strip(), why.strip()
    if not why:
        raise Malformed("say why; it is recorded")
    if not who:
        raise Malformed("say who acts, or leave it out; it is recorded")
    for name, text, characters_max in (("who", who, _WHO_CHARACTERS_MAX), ("why", why, _WHY_CHARACTERS_MAX)):
        if len(text) > characters_max or not text.isprintable():
            raise Malformed(f"{name} must be one line of at most {characters_max} printable characters")
    return Audit(who, why)
