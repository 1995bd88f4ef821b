"""What the stores share whose transactions execute the table: all verbs but the start and the end.

Theory of operation
-------------------
A store has threads that own a connection each. Work is a function of a transaction (`executor.Cursor`); it runs in
one of the threads, and reads, lets `lifecycle.step` decide, and writes. Commands that arrive while a thread is busy
form one batch and one transaction. Queries over more than a few records run in pieces, so that other calls get their
turn in between."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Final, Self, TypeVar
from uuid import UUID

from gateway.core.delivery import Delivering
from gateway.core.observation import Finding, Observation
from gateway.core.operation import Applied, Audit, Command, Result, SealedRequest, Snapshot, operation_id_of
from gateway.core.outbox import Outbox
from gateway.store.base import WORK, Watch
from gateway.store.memory import witness
from gateway.store.observations import ObservedCount
from gateway.store.operations import (
    Agreement,
    AuditEntry,
    Backlog,
    Due,
    Epoch,
    EventReport,
    KeptEvent,
    LeasedEvent,
    Living,
    NumberedAudit,
    PauseAudit,
    Query,
    RecoveryLease,
    RecoveryState,
    Serving,
    SinkBacklog,
    Swept,
    Tally,
)
from gateway.store.recipes import Name
from gateway.store.rekeying import Kept, Place, Row
from gateway.store.relational import event, inquiry, kept, observation, rekeying
from gateway.store.relational.executor import Contended, Cursor
from gateway.store.relational.sweep import EventsUnsynced, SweptPart, is_due, sweep_some
from gateway.store.watching import Watchers

T = TypeVar("T")

# Records per transaction of a sweep: what a command may have to wait for.
SWEEP_TRANSACTION_MAX: Final = 20
# The same for the end of a pause, which changes two integers of each.
RESUME_TRANSACTION_MAX: Final = 100
# The same for rows that are encrypted again.
RESEAL_TRANSACTION_MAX: Final = 20


class RelationalStore(ABC):
    """The verbs of `ManagedStore`, `SealedRows` and `ObservationStore` but for `start`, `close`, `apply` and `read`."""

    sweep_records_max: ClassVar[int] = SWEEP_TRANSACTION_MAX
    """Records per transaction of a sweep."""
    has_one_writer: ClassVar[bool] = True
    """Whether commands wait for a sweep."""
    syncs_always: ClassVar[bool]
    """Whether what `_change_without_fsync` does is as durable as all else."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._watchers = Watchers()

    @abstractmethod
    async def _query(self, work: Callable[[Cursor], T]) -> T:
        """Do this work, which only reads, on one consistent state."""

    @abstractmethod
    async def _change(self, work: Callable[[Cursor], T]) -> T:
        """Do this work in one durable transaction."""

    @abstractmethod
    async def _change_without_fsync(self, work: Callable[[Cursor], T]) -> T:
        """As `_change`, for what a crash may undo."""

    @property
    def cold(self) -> Self:
        return self

    async def sweep(self, limit: int) -> Swept:
        swept, left, size_max = Swept(), limit, self.sweep_records_max
        if not await self._query(lambda cursor: is_due(cursor, cursor.now_us)):
            return swept
        while left > 0:
            size = min(left, size_max)
            try:
                part, spent_seconds = await self._sweep_some(size)
            except Contended:
                if size == 1:
                    raise
                size_max = size // 2
                continue
            left -= size
            self._watchers.announce_all(part.operation_ids)
            swept += part.swept
            if self.has_one_writer:
                # Pause, or every command would find it busy sweeping.
                await asyncio.sleep(spent_seconds)
            if not swept.more:
                break
        return swept

    async def _sweep_some(self, size: int) -> tuple[SweptPart, float]:
        def sweep(cursor: Cursor, *, is_synced: bool) -> SweptPart:
            return sweep_some(cursor, cursor.now_us, size, self._outbox, is_synced=is_synced)

        try:
            # What is lost of it is done again by the next sweep.
            return await self._change_without_fsync(_timed(partial(sweep, is_synced=self.syncs_always)))
        except EventsUnsynced:
            return await self._change(_timed(partial(sweep, is_synced=True)))

    async def take_turns(self, holder: UUID, names: Collection[str], lease_us: int) -> frozenset[str]:
        # Look first: whoever has no turn writes nothing.
        free = await self._query(lambda cursor: inquiry.free_turns(cursor, holder, names, cursor.now_us, lease_us))
        if not free:
            return free
        return await self._change_without_fsync(
            lambda cursor: inquiry.take_turns(cursor, holder, free, cursor.now_us, lease_us)
        )

    async def leave_turns(self, holder: UUID) -> None:
        await self._change_without_fsync(lambda cursor: inquiry.leave_turns(cursor, holder, cursor.now_us))

    async def tally(self) -> Tally:
        return await self._query(lambda cursor: inquiry.tally(cursor, cursor.now_us))

    async def sealed_examples(self, key_id: str) -> list[Kept]:
        return await self._query(lambda cursor: rekeying.examples(cursor, key_id))

    async def compare_configuration(self, serving: Serving, *, is_trial: bool = False) -> Agreement:
        counted: dict[Name, Living] = {}

        def agree(cursor: Cursor) -> Agreement | frozenset[Name]:
            agreed = inquiry.agree(cursor, serving, counted, cursor.now_us, writes=not is_trial)
            if not is_trial and isinstance(agreed, Agreement) and not agreed.conflicts:
                event.remember(cursor, serving.service, self._outbox)
            return agreed

        while True:
            agreed = await (self._query(agree) if is_trial else self._change(agree))
            if isinstance(agreed, Agreement):
                return agreed
            counted = await self._count_living(agreed)

    async def note_running(self, gateway_id: UUID, *, is_running: bool) -> None:
        await self._change_without_fsync(
            lambda cursor: inquiry.note_running(cursor, gateway_id, cursor.now_us, is_running=is_running)
        )

    async def raise_level(self) -> bool:
        """Raise the level to this program's; returns whether it was lower. Raises `StartRefused` while gateways of an
        older program run."""
        return await self._change(lambda cursor: inquiry.raise_level(cursor, cursor.now_us))

    async def count_without_route(self, service: str, operations: Collection[str]) -> dict[str, int]:
        names = await self._query(lambda cursor: inquiry.operations_without_route(cursor, service, operations))
        counted = await self._count_living(names)
        return {operation: living.keys for (_, operation), living in counted.items() if living.keys}

    async def _count_living(self, names: Collection[Name]) -> dict[Name, Living]:
        """Count the living keys piece by piece."""
        counted, after, has_more = dict.fromkeys(names, Living()), None, bool(names)
        while has_more:
            part, after = await self._count_some(names, after)
            counted = {name: inquiry.joined(living, part[name]) for name, living in counted.items()}
            has_more = after is not None
        return counted

    async def _count_some(self, names: Collection[Name], after: Any) -> tuple[Mapping[Name, Living], Any]:
        return await self._query(lambda cursor: inquiry.count_some(cursor, names, after, cursor.now_us))

    async def find(self, query: Query) -> list[Snapshot]:
        found: list[Snapshot] = []
        while True:
            piece = await self._find_some(replace(query, limit=query.limit - len(found)))
            found += piece.found
            if piece.last is None or len(found) >= query.limit:
                return found
            query = replace(query, after=piece.last)

    async def _find_some(self, query: Query) -> inquiry.Piece:
        return await self._query(lambda cursor: inquiry.find_some(cursor, query, cursor.now_us))

    async def recover(self, operation_id: UUID, token: int, lease_us: int, *, is_urgent: bool) -> RecoveryLease | None:
        return await self._change(
            lambda cursor: inquiry.recover(cursor, operation_id, token, lease_us, cursor.now_us, is_urgent=is_urgent)
        )

    async def put_off(self, lease: RecoveryLease, pause_us: int, finding: str) -> None:
        await self._change(lambda cursor: inquiry.put_off(cursor, lease, cursor.now_us, pause_us, finding))

    async def recovery(self, operation_id: UUID) -> RecoveryState | None:
        return await self._query(lambda cursor: inquiry.recovery(cursor, operation_id))

    async def find_due(self, service: str, delivering: Delivering, limit: int) -> Due:
        return await self._query(lambda cursor: kept.find_due(cursor, service, delivering, cursor.now_us, limit))

    async def read_kept(self, operation_id: UUID) -> SealedRequest | None:
        return await self._query(lambda cursor: kept.read_request(cursor, operation_id))

    async def count_pending(self, service: str, route: str, scope_digest: bytes, limit: int) -> int:
        return await self._query(
            lambda cursor: kept.count_pending(cursor, service, route, scope_digest, cursor.now_us, limit)
        )

    async def backlog(self, service: str) -> Backlog:
        return await self._query(lambda cursor: kept.backlog(cursor, service, cursor.now_us))

    async def pause(self, service: str, operation: str, audit: Audit) -> bool:
        return await self._change(lambda cursor: kept.pause(cursor, service, operation, cursor.now_us, audit))

    async def pause_audits(self, service: str) -> list[PauseAudit]:
        return await self._query(lambda cursor: kept.pause_audits(cursor, service))

    async def resume(self, service: str, operation: str, audit: Audit) -> bool:
        def resume_some(cursor: Cursor, *, is_first: bool = False) -> bool:
            bounds = (cursor.now_us, RESUME_TRANSACTION_MAX)
            return kept.resume_some(cursor, service, operation, *bounds, is_first=is_first)

        has_more, spent_seconds = await self._change_without_fsync(_timed(partial(resume_some, is_first=True)))
        while has_more:
            await asyncio.sleep(spent_seconds)
            has_more, spent_seconds = await self._change_without_fsync(_timed(resume_some))
        return await self._change(lambda cursor: kept.end_pause(cursor, service, operation, cursor.now_us, audit))

    async def lease_events(self, service: str, wanted: Mapping[str, int], lease_us: int) -> list[LeasedEvent]:
        if not await self._query(lambda cursor: event.are_due(cursor, service, wanted, cursor.now_us)):
            return []
        # A lease or a report that is lost costs a duplicate.
        return await self._change_without_fsync(
            lambda cursor: event.lease(cursor, service, wanted, lease_us, cursor.now_us)
        )

    async def report_events(self, service: str, reports: Collection[EventReport]) -> None:
        await self._change_without_fsync(lambda cursor: event.report(cursor, service, reports, cursor.now_us))

    async def find_events(
        self, service: str, sink: str, *, is_dead: bool, after: str | None, limit: int
    ) -> list[KeptEvent]:
        return await self._query(lambda cursor: event.find(cursor, service, sink, after, limit, is_dead=is_dead))

    async def redeliver_event(self, service: str, event_id: str, sink: str | None) -> int:
        return await self._change(lambda cursor: event.redeliver(cursor, service, event_id, sink, cursor.now_us))

    async def suspend_sink(self, service: str, sink: str, why: str) -> bool:
        return await self._change(lambda cursor: event.suspend(cursor, service, sink, why))

    async def resume_sink(self, service: str, sink: str) -> bool:
        return await self._change(lambda cursor: event.resume(cursor, service, sink, cursor.now_us))

    async def sinks(self, service: str) -> dict[str, SinkBacklog]:
        return await self._query(lambda cursor: event.sinks(cursor, service, cursor.now_us))

    async def latest_audits(self, before: int | None, limit: int) -> list[NumberedAudit]:
        return await self._query(lambda cursor: inquiry.latest_audits(cursor, before, limit))

    async def audits(self, operation_id: UUID) -> list[AuditEntry]:
        return await self._query(lambda cursor: inquiry.audits(cursor, operation_id))

    async def sealed_rows(self, place: Place, after: Any, limit: int) -> list[Row]:
        """See `SealedRows`."""
        return await self._query(lambda cursor: rekeying.page(cursor, place, after, limit))

    async def reseal(self, changes: Sequence[tuple[Row, Kept]]) -> int:
        """See `SealedRows`."""
        changed = 0
        for begin in range(0, len(changes), RESEAL_TRANSACTION_MAX):
            some = changes[begin : begin + RESEAL_TRANSACTION_MAX]
            began = time.perf_counter()
            changed += await self._change(partial(rekeying.reseal, changes=some))
            # Pause, or gateways would find the file busy.
            await asyncio.sleep(time.perf_counter() - began)
        return changed

    async def observed_before(self, service: str, operation_ids: Collection[UUID]) -> list[Observation]:
        """See `ObservationStore`, also for the next three."""
        return await self._query(lambda cursor: observation.observed_before(cursor, service, operation_ids))

    async def observed_contents(
        self, service: str, contents: Collection[bytes], since_us: int
    ) -> list[tuple[bytes, UUID, int]]:
        return await self._query(lambda cursor: observation.observed_contents(cursor, service, contents, since_us))

    async def save_observations(
        self, service: str, found: Sequence[tuple[Observation, Finding]], forget_before_us: int
    ) -> None:
        await self._change_without_fsync(lambda cursor: observation.save(cursor, service, found, forget_before_us))

    async def count_observed(self, service: str, route: str | None) -> list[ObservedCount]:
        return await self._query(lambda cursor: observation.count(cursor, service, route))

    async def check_memory(self, links: Collection[UUID] = ()) -> Epoch:
        return await self._query(lambda cursor: witness.read_epoch(cursor, cursor.now_us, links))

    async def begin_epoch(self, memo: bytes, beyond_token: int) -> None:
        await self._change(lambda cursor: witness.begin_epoch(cursor, memo, beyond_token))

    def watch(self, operation_id: UUID) -> AbstractAsyncContextManager[Watch]:
        return self._watchers.watch(operation_id)

    def announce_work(self) -> None:
        self._watchers.announce(WORK)

    def _announce(self, commands: Sequence[Command], results: Sequence[Result | Exception]) -> None:
        if self._watchers.number:
            for command, result in zip(commands, results, strict=True):
                if isinstance(result, Applied):
                    self._watchers.announce(operation_id_of(command))


def _timed(work: Callable[[Cursor], T]) -> Callable[[Cursor], tuple[T, float]]:
    """The work, and for how many seconds it kept its thread busy."""

    def timed(cursor: Cursor) -> tuple[T, float]:
        began = time.perf_counter()
        return work(cursor), time.perf_counter() - began

    return timed
