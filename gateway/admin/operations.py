"""What operators do about operations: read, list, resolve, requeue, purge. Knows neither HTTP nor terminals.

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
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

from gateway.admin import reports
from gateway.admin import resolution as rulings
from gateway.admin.inspection import Inspected
from gateway.admin.journal import UNENDED, ViewJournals, no_journal, why_it_happened
from gateway.admin.reports import MemoryState, Report, accept_loss, memory_state
from gateway.admin.resolution import (
    Changed,
    Malformed,
    NoSuch,
    NotDead,
    NothingHappened,
    Policies,
    Refusal,
    Refused,
    Ruling,
)
from gateway.admin.view import foreign, moment
from gateway.core.identity.key import Key, KeyFault, Scope, Unverified, VerifiedSpec, derive_operation_id, stored_digest
from gateway.core.message import Headers, IndexedHeaders
from gateway.core.operation import (
    Applied,
    Audit,
    Command,
    Erase,
    Prove,
    Purge,
    Record,
    Requeue,
    Result,
    Snapshot,
    State,
)
from gateway.observe.activity import Activity, Buckets, Window, gathered
from gateway.store.base import Indefinite, NotApplied, Store, StoreError, Unreadable, wall_clock_us
from gateway.store.journal import OF_ONE_MAX, JournalView
from gateway.store.operations import ActivityRow, AuditEntry, Backlog, ObservationStore, Query

T = TypeVar("T")

PAGE_SIZE_MAX: Final = 500
INDEXED: Final = (frozenset((State.IN_DOUBT,)), frozenset((State.DEAD_LETTER,)))
EVERY: Final = frozenset(State) - {State.ABSENT}
_WHY_CHARACTERS_MAX: Final = 1000
_WHO_CHARACTERS_MAX: Final = 128

_CALL_SECONDS: Final = 15.0
# How long a command whose response was lost is repeated before the operator is asked to.
_PATIENCE_SECONDS: Final = 20.0
_PAUSE_SECONDS: Final = 0.5


class Looked(NamedTuple):
    """What was found among so many records that were read; `after` is where to go on, None where these are all."""

    found: list[Snapshot]
    number: int
    after: UUID | None


class Operations:
    """Operators' actions on one store. `store` includes the fast tier, so that purges reach the copies;
    `purges_pending` counts those that did not. `cache_seconds` is how long a gateway may reply from its cache before it
    notices a purge, 0 where it is notified at once. `journal` reads the journals of this host, `observations` is the
    table of the same store. `counted` is what this process counted lately."""

    def __init__(
        self,
        store: Store,
        policies: Policies,
        *,
        purges_pending: Callable[[], int] = lambda: 0,
        cache_seconds: float = 0.0,
        patience_seconds: float = _PATIENCE_SECONDS,
        journal: ViewJournals = no_journal,
        observations: ObservationStore | None = None,
        counted: Callable[[], Buckets] = dict,
    ) -> None:
        self.store = store
        self.policies = policies
        self._purges_pending = purges_pending
        self._cache_seconds = cache_seconds
        self._patience_seconds = patience_seconds
        self._journal = journal
        self._observations = observations
        self._counted = counted

    # -- reading ------------------------------------------------------------------------------------------------------

    async def observed(self, route: str | None = None) -> list[Report]:
        """What was observed of the observed routes, or of this one. Raises as `reports.observed`."""
        if self._observations is None:
            raise NotApplied("this store keeps no observations")
        async with asyncio.timeout(_CALL_SECONDS):
            return await reports.observed(self._observations, self.policies, route)

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
        snapshot = await self.read(operation_id)
        audits = await self.audits(operation_id)
        record = snapshot.record
        treatment = self.policies.treatment_of(record) if record is not None and self.policies.is_own(record) else None
        journal = await self.journal(operation_id=operation_id, limit=OF_ONE_MAX)
        memory = await self.memory()
        lost = memory if memory.refuses(snapshot.record) else None
        probes, pause, is_stranded = None, None, False
        if record is not None and record.state is State.IN_DOUBT:
            probes = await bounded(self.store.cold.recovery(operation_id))
        if record is not None and record.state is State.ACCEPTED:
            pause = next((each for each in await self.paused() if each["operation"] == record.identity.operation), None)
            is_stranded = self.policies.is_own(record) and not self.policies.is_delivered(record)
        sinks: tuple[Report, ...] = ()
        if treatment is not None and self.policies.sinks:
            kept = self.store.cold, self.policies.service, self.policies.sinks
            sinks = await bounded(reports.events_of(*kept, operation_id))
        about = operation_id, snapshot, tuple(audits), treatment, journal
        return Inspected(*about, lost, probes, pause, is_stranded, sinks)

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
        return await asyncio.to_thread(self._journal, operation_id=operation_id, is_refused=is_refused, limit=limit)

    async def looked(self, query: Query, read_max: int = PAGE_SIZE_MAX) -> AsyncIterator[Looked]:
        """The matches, page by page, ordered by operation id. `query.limit` is the page size.

        The store has an index of what is in doubt and of dead letters. For other states all records are read,
        `read_max` at once, and left out here: the store would look through as many as there are before it says that
        there is none.
        """
        asked = query
        if query.states not in INDEXED and query.reason is None:
            asked = replace(query, states=EVERY, routes=None, limit=read_max)
        while True:
            page = await self.page(asked)
            after = _last_id(page) if len(page) == asked.limit else None
            yield Looked([snapshot for snapshot in page if _is_of(query, snapshot)], len(page), after)
            if after is None:
                return
            asked = replace(asked, after=after)

    async def pages(self, query: Query, limit: int | None = None) -> AsyncIterator[list[Snapshot]]:
        """What is found of it, up to `limit` in all."""
        left = limit
        if limit is not None:
            query = replace(query, limit=min(query.limit, limit))
        async for looked in self.looked(query):
            found = looked.found if left is None else looked.found[:left]
            if found:
                yield found
            if left is not None and (left := left - len(found)) <= 0:
                return

    async def page(self, query: Query) -> list[Snapshot]:
        return await bounded(self.store.cold.find(query))

    # -- resolving ----------------------------------------------------------------------------------------------------

    async def resolve(
        self,
        operation_id: UUID,
        ruling: Ruling,
        audit: Audit,
        *,
        is_forced: bool = False,
        token: int | None = None,
        is_dry_run: bool = False,
    ) -> Changed | Refused:
        """End the doubt about an operation. `token`: only if the attempt in doubt still has it. `is_dry_run`: change
        nothing, and say what would happen. Raises `NotApplied`, `Unreadable`, `Indefinite` (give the same command
        again), `Unstorable`."""
        snapshot = await self.read(operation_id)
        record = snapshot.record
        if record is None:
            return rulings.unknown(operation_id, snapshot)
        if not self.policies.is_own(record):
            return Refused(Refusal.SERVICE, foreign(), snapshot)
        treatment = self.policies.treatment_of(record)
        command = rulings.resolution(record, ruling, audit, treatment)
        ids = self.policies.stored_ids(command.resolution_id)
        if record.resolution_id in ids:
            return Changed(
                f"The same command has resolved it already, {rulings.when(snapshot)}.", snapshot, is_repeat=True
            )
        command = replace(command, resolution_id=ids[0])
        if token is not None and token != record.token:
            return rulings.moved(token, snapshot)
        if (refusal := await self._why_no_doubt(operation_id, ruling, snapshot)) is not None:
            return refusal
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
        return rulings.nothing_to_resolve(result.snapshot)

    async def _why_no_doubt(self, operation_id: UUID, ruling: Ruling, snapshot: Snapshot) -> Refused | None:
        """Why there is nothing to resolve so, whatever the operator knows; None where there is."""
        if isinstance(ruling, NothingHappened) and snapshot.state in UNENDED:
            journal = await self.journal(operation_id=operation_id, limit=OF_ONE_MAX)
            if (why := why_it_happened(operation_id, journal)) is not None:
                return Refused(Refusal.JOURNALED, why, snapshot)
        return None if snapshot.state is State.IN_DOUBT else rulings.nothing_to_resolve(snapshot)

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
        return await self._decide(operation_id, rulings.requeueing, audit, token)

    async def withdraw(self, operation_id: UUID, audit: Audit, *, token: int | None = None) -> Changed | Refused:
        """Call off what is accepted or a dead letter, and drop its request. Otherwise as `requeue`."""
        return await self._decide(operation_id, rulings.withdrawal, audit, token)

    async def _decide(
        self,
        operation_id: UUID,
        decision: Callable[[Record, Audit, rulings.Treatment], rulings.Decision],
        audit: Audit,
        token: int | None,
    ) -> Changed | Refused:
        snapshot = await self.read(operation_id)
        record = snapshot.record
        if record is None:
            return rulings.unknown(operation_id, snapshot)
        if not self.policies.is_own(record):
            return Refused(Refusal.SERVICE, foreign(), snapshot)
        command = decision(record, audit, self.policies.treatment_of(record))
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
        return rulings.nothing_to_decide(command, result.snapshot, audits)

    async def paused(self) -> list[Report]:
        paused = (await self.backlog()).paused
        return [reports.paused(name, self.policies.routes_with(name), pause) for name, pause in sorted(paused.items())]

    async def pause(self, name: str, audit: Audit) -> str:
        """Deliver nothing new of this route, or operation name; returns the text. Repeatable. Raises `NoSuch`,
        `NotApplied`, `Indefinite` (give the same command again)."""
        operation = rulings.operation_named(name, self.policies)
        is_new = await self.changed(self.store.cold.pause(self.policies.service, operation, audit))
        paused = "Paused" if is_new else "Paused already"
        about = rulings.named(operation, self.policies.routes_with(operation))
        return (
            f"{paused}: {about}. Within seconds gateways deliver nothing of it any more. Requests are accepted and "
            "kept, and the time does not count against their deadline; attempts under way go on. To end it: resume."
        )

    async def pause_audits(self) -> list[Report]:
        """The last pauses and their ends, oldest first. Raises `NotApplied`."""
        audits = await bounded(self.store.cold.pause_audits(self.policies.service))
        return [reports.pause_audit(entry) for entry in audits]

    async def resume(self, name: str, audit: Audit) -> str:
        """End a pause, also one of a name that no route has any more. Otherwise as `pause`."""
        operation = rulings.operation_named(name, self.policies, (await self.backlog()).paused)
        was_paused = await self.changed(self.store.cold.resume(self.policies.service, operation, audit))
        about = rulings.named(operation, self.policies.routes_with(operation))
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
        if isinstance(result, Applied):
            text = "Its response is dropped. The key is remembered and does not run again"
            return self._dropped(f"{text}, until {moment(snapshot.record.remember_until_us)}.", snapshot)
        text = _NOTHING_TO_PURGE.get(snapshot.record.state, _DOUBT_TO_PURGE).format(snapshot.record.holder)
        return Refused(Refusal.STATE, text, snapshot)

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
        return Refused(Refusal.STATE, _NOT_TO_ERASE.get(snapshot.state, "It changed meanwhile; look again."), snapshot)

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

    # -- memory -------------------------------------------------------------------------------------------------------

    async def memory(self) -> MemoryState:
        """Whether the store is trusted when it does not know a key."""
        return await bounded(memory_state(self.store.cold))

    async def accept_loss(self, audit: Audit) -> MemoryState:
        return await bounded(accept_loss(self.store.cold, audit))

    # -- the store ----------------------------------------------------------------------------------------------------

    async def _read_to_purge(self, operation_id: UUID) -> Snapshot:
        """The snapshot, without a response that is unreadable: it can be purged all the same. Raises as `resolve`."""
        try:
            return await self.read(operation_id)
        except Unreadable:
            # `find` does not read responses.
            before = UUID(int=max(0, operation_id.int - 1))
            page = await self.page(Query(frozenset((State.COMPLETED,)), after=before, limit=1))
            if not page or _last_id(page) != operation_id:
                raise
            return page[0]

    async def _apply(self, command: Command) -> tuple[Result, bool]:
        """Apply, and retry while the result is indefinite; also returns whether it was. Raises as `resolve`."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._patience_seconds
        was_lost = False
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


_NOTHING_TO_PURGE: Final = {
    State.TOMBSTONE: "Its response is not replayed any more, and will be deleted by itself; there is nothing to purge.",
    State.RELEASED: "It has no response: nothing happened. To forget the key as well, erase it.",
    State.CLAIMED: "It is being executed by {}; there is no response to purge yet.",
    State.ACCEPTED: "It was not delivered, and has no response to purge. To drop its request, withdraw it.",
    State.DEAD_LETTER: "It was not delivered, and has no response to purge. To drop its request, withdraw it.",
}
_DOUBT_TO_PURGE: Final = "It is in doubt and has no response to purge. Doubt cannot be purged: resolve it."
_NOT_TO_ERASE: Final = {
    State.COMPLETED: "It still has a response: purge it first.",
    State.CLAIMED: "It is being executed, and cannot be erased.",
    State.IN_DOUBT: "It is in doubt, and doubt cannot be erased: resolve it first.",
    State.ACCEPTED: "Its request is kept, to be delivered: withdraw it first.",
    State.DEAD_LETTER: "Its request is kept, to be delivered: withdraw it first.",
}
_ERASING: Final = (
    "To erase is to forget the key: a request with it runs again, and may have its effect a second time. Say yes to "
    "confirm that no client will repeat it."
)


_WITHOUT_ROUTE: Final = (
    "No route of this configuration delivers this operation: give its route back, with its `accept`, or withdraw it."
)


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


async def bounded(call: Awaitable[T]) -> T:
    """A read with a time limit. Raises `NotApplied`, `Unreadable`."""
    try:
        async with asyncio.timeout(_CALL_SECONDS):
            return await call
    except (TimeoutError, Indefinite) as error:
        raise NotApplied(f"the durable store did not respond within {_CALL_SECONDS:g} s") from error


def _is_of(query: Query, snapshot: Snapshot) -> bool:
    record = snapshot.record
    if record is None or record.state not in query.states:
        return False
    return query.routes is None or record.identity.route in query.routes


def _last_id(page: list[Snapshot]) -> UUID:
    record = page[-1].record
    if record is None:
        raise RuntimeError("a store found a record that is absent")
    return record.identity.operation_id


# -- many dead letters -------------------------------------------------------------------------------------------------
#
# They are listed first, up to a limit, and then requeued or withdrawn at a rate. Each is done in order, as a single one
# would be: fenced, audited, and not twice by the same person for the same reason. So it may be done again.

# Matches beyond the limit are counted up to this.
_COUNT_MAX: Final = 100_000
# How many a preview shows, and how many of those that were skipped a result names.
_SHOWN_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class Verb:
    """What is decided about each of many dead letters."""

    name: str
    did: str
    done: str
    decide: Callable[[Operations, UUID, Audit], Awaitable[Changed | Refused]]


REQUEUE: Final = Verb("requeue", "requeued", "requeued", Operations.requeue)
WITHDRAW: Final = Verb("withdraw", "withdrew", "withdrawn", Operations.withdraw)


def dead_letters(routes: frozenset[str] | None, reason: str | None, age_us: int, limit: int) -> Query:
    """At most `limit` dead letters: of these routes (None: all), for this reason (None: any), dead for `age_us`."""
    return Query(frozenset((State.DEAD_LETTER,)), routes, age_us, reason=reason, limit=limit)


@dataclass(slots=True)
class Bulk:
    """One decision about many. The counts hold at any time; one that is under way, or ended unknown, counts as left.
    `first` has the beginning of those that match."""

    verb: Verb
    rate: int
    operation_ids: list[UUID] = field(default_factory=list)
    first: list[Record] = field(default_factory=list)
    now_us: int = 0
    beyond: int = 0
    done: int = 0
    skipped: int = 0
    why_skipped: list[str] = field(default_factory=list)

    @property
    def matching(self) -> int:
        return len(self.operation_ids) + self.beyond

    @property
    def left(self) -> int:
        """Matches that were not tried, those beyond the limit included."""
        return self.matching - self.done - self.skipped

    def __str__(self) -> str:
        return f"{self.done} {self.verb.done}, {self.skipped} skipped, {self.left} left"

    @property
    def text(self) -> str:
        return f"{self}."

    @property
    def notes(self) -> list[str]:
        return [*self.why_skipped, *(["Those that are left need another step."] if self.left else [])]

    @property
    def document(self) -> dict[str, Any]:
        return {"detail": self.text, **self.counts}

    @property
    def counts(self) -> dict[str, int]:
        return {self.verb.done: self.done, "skipped": self.skipped, "left": self.left}

    async def run(
        self,
        operations: Operations,
        audit: Audit,
        *,
        seconds_max: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> AsyncIterator[tuple[UUID, Changed | Refused]]:
        """Decide about them in order, and yield what became of each; none begins later than `seconds_max` from now.
        Raises as `Operations.requeue`, except for a record that is unreadable: that is skipped."""
        started = due = clock()
        for operation_id in self.operation_ids:
            if due > clock():
                await sleep(due - clock())
            now = clock()
            if seconds_max is not None and now - started >= seconds_max:
                return
            # Counted from the later one, so that a slow store is not followed by a burst.
            due = max(due, now) + 1 / self.rate
            outcome = await self._decided(operations, operation_id, audit)
            if isinstance(outcome, Changed) and not outcome.is_repeat:
                self.done += 1
            else:
                self.skipped += 1
                if len(self.why_skipped) < _SHOWN_MAX:
                    self.why_skipped.append(f"Skipped `{operation_id}`: {outcome.text}")
            yield operation_id, outcome

    async def _decided(self, operations: Operations, operation_id: UUID, audit: Audit) -> Changed | Refused:
        try:
            return await self.verb.decide(operations, operation_id, audit)
        except Unreadable as error:
            return Refused(Refusal.STATE, f"The record cannot be read: {error}", Snapshot(None, 0))


async def listed(operations: Operations, wanted: Query, rate: int, verb: Verb = REQUEUE) -> Bulk:
    """The decision about the dead letters that match now, about `rate` a second. Raises `NotApplied`."""
    found = Bulk(verb, rate)
    async for page in operations.pages(replace(wanted, limit=PAGE_SIZE_MAX)):
        for snapshot in page:
            record = snapshot.record
            if record is None or record.delivery is None or not operations.policies.is_own(record):
                continue
            # The query's age is since the acceptance.
            if record.delivery.since_us > snapshot.now_us - wanted.age_us:
                continue
            if len(found.first) < _SHOWN_MAX:
                found.first.append(record)
                found.now_us = snapshot.now_us
            if len(found.operation_ids) < wanted.limit:
                found.operation_ids.append(record.identity.operation_id)
            else:
                found.beyond += 1
        if found.beyond >= _COUNT_MAX:
            break
    return found
