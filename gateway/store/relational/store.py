"""What the stores share whose transactions execute the table: all verbs but the start and the end.

Theory of operation
-------------------
Work is a coroutine over a transaction (`executor.Cursor`): it reads, lets `lifecycle.step` decide, and writes. Where
statements wait for nothing, as in a thread that owns a file, it is run to its end at once (`executor.drive`). Commands
that arrive while a connection is busy form one batch and one transaction. Queries over more than a few records run in
pieces, so that other calls get their turn in between."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial, wraps
from typing import Any, ClassVar, Concatenate, Final, ParamSpec, Self, TypeVar
from uuid import UUID

from gateway.core.operation import Applied, Audit, Command, Result, Snapshot, operation_id_of
from gateway.core.outbox import Outbox
from gateway.store.agreement import Name
from gateway.store.base import WORK, Watch
from gateway.store.operations import (
    Agreement,
    LeasedEvent,
    Living,
    Query,
    Serving,
    Swept,
)
from gateway.store.relational import inquiry
from gateway.store.relational.executor import Contended, Cursor, EventsUnsynced, is_due, sweep_some
from gateway.store.sealed import Kept, Row
from gateway.store.watching import Watchers

P = ParamSpec("P")
T = TypeVar("T")

# Records per transaction of a sweep: what a command may have to wait for.
SWEEP_TRANSACTION_MAX: Final = 20
# The same for the end of a pause, which changes two integers of each.
RESUME_TRANSACTION_MAX: Final = 100
# The same for rows that are encrypted again.
RESEAL_TRANSACTION_MAX: Final = 20


Work = Callable[Concatenate[Cursor, P], Awaitable[T]]
Verb = Callable[Concatenate["RelationalStore", P], Coroutine[Any, Any, T]]


def _reads(work: Work[P, T]) -> Verb[P, T]:
    """The verb that does this work on one consistent state, and changes nothing."""

    async def verb(self: RelationalStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._query(lambda cursor: work(cursor, *args, **kwargs))

    return wraps(work)(verb)


def _changes(work: Work[P, T]) -> Verb[P, T]:
    """The verb that does this work in one durable transaction."""

    async def verb(self: RelationalStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._change(lambda cursor: work(cursor, *args, **kwargs))

    return wraps(work)(verb)


def _unsynced(work: Work[P, T]) -> Verb[P, T]:
    """The verb that does this work, which a crash may undo."""

    async def verb(self: RelationalStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._change_without_fsync(lambda cursor: work(cursor, *args, **kwargs))

    return wraps(work)(verb)


class RelationalStore(ABC):
    """The verbs of `ManagedStore`, `SealedRows` and `ObservationStore` but for `start`, `close`, `apply` and `read`.
    Most are one piece of work in one transaction."""

    sweep_records_max: ClassVar[int] = SWEEP_TRANSACTION_MAX
    """Records per transaction of a sweep."""
    has_one_writer: ClassVar[bool] = True
    """Whether commands wait for a sweep."""
    syncs_always: bool
    """Whether what `_change_without_fsync` does is as durable as all else."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._watchers = Watchers()

    @abstractmethod
    async def _query(self, work: Callable[[Cursor], Awaitable[T]]) -> T:
        """Do this work, which only reads, on one consistent state."""

    @abstractmethod
    async def _change(self, work: Callable[[Cursor], Awaitable[T]]) -> T:
        """Do this work in one durable transaction."""

    @abstractmethod
    async def _change_without_fsync(self, work: Callable[[Cursor], Awaitable[T]]) -> T:
        """As `_change`, for what a crash may undo."""

    @property
    def cold(self) -> Self:
        return self

    async def sweep(self, limit: int) -> Swept:
        swept, left, size_max = Swept(), limit, self.sweep_records_max
        if not await self._query(is_due):
            return swept
        while left > 0:
            size = min(left, size_max)
            try:
                (part, operation_ids), spent_seconds = await self._sweep_some(size)
            except Contended:
                if size == 1:
                    raise
                size_max = size // 2
                continue
            left -= size
            for operation_id in operation_ids:
                self._watchers.announce(operation_id)
            swept += part
            if self.has_one_writer:
                # Pause, or every command would find it busy sweeping.
                await asyncio.sleep(spent_seconds)
            if not swept.more:
                break
        return swept

    async def _sweep_some(self, size: int) -> tuple[tuple[Swept, list[UUID]], float]:
        async def sweep(cursor: Cursor, *, is_synced: bool) -> tuple[Swept, list[UUID]]:
            return await sweep_some(cursor, size, self._outbox, is_synced=is_synced)

        try:
            # What is lost of it is done again by the next sweep.
            return await self._change_without_fsync(_timed(partial(sweep, is_synced=self.syncs_always)))
        except EventsUnsynced:
            return await self._change(_timed(partial(sweep, is_synced=True)))

    take_turns = _unsynced(inquiry.take_turns)
    leave_turns = _unsynced(inquiry.leave_turns)
    tally = _reads(inquiry.tally)
    sealed_examples = _reads(inquiry.sealed_examples)

    async def compare_configuration(self, serving: Serving, *, is_trial: bool = False) -> Agreement:
        counted: dict[Name, Living] = {}

        async def agree(cursor: Cursor) -> Agreement | frozenset[Name]:
            agreed = await inquiry.agree(cursor, serving, counted, writes=not is_trial)
            if not is_trial and isinstance(agreed, Agreement) and not agreed.conflicts:
                await inquiry.remember(cursor, serving.service, self._outbox)
            return agreed

        while True:
            agreed = await (self._query(agree) if is_trial else self._change(agree))
            if isinstance(agreed, Agreement):
                return agreed
            counted = await self._count_living(agreed)

    note_running = _unsynced(inquiry.note_running)
    raise_level = _changes(inquiry.raise_level)

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

    _count_some = _reads(inquiry.count_some)

    async def find(self, query: Query) -> list[Snapshot]:
        found: list[Snapshot] = []
        while True:
            piece, last = await self._find_some(replace(query, limit=query.limit - len(found)))
            found += piece
            if last is None or len(found) >= query.limit:
                return found
            query = replace(query, after=last)

    _find_some = _reads(inquiry.find_some)
    recover = _changes(inquiry.recover)
    put_off = _changes(inquiry.put_off)
    recovery = _reads(inquiry.recovery)

    find_due = _reads(inquiry.find_due)
    read_kept = _reads(inquiry.read_kept)
    count_pending = _reads(inquiry.count_pending)
    backlog = _reads(inquiry.backlog)
    pause = _changes(inquiry.pause)
    pause_audits = _reads(inquiry.pause_audits)

    async def resume(self, service: str, operation: str, audit: Audit) -> bool:
        resume_some = partial(inquiry.resume_some, service=service, operation=operation, limit=RESUME_TRANSACTION_MAX)
        has_more, is_first = True, True
        while has_more:
            has_more, spent_seconds = await self._change_without_fsync(_timed(partial(resume_some, is_first=is_first)))
            is_first = False
            if has_more:
                await asyncio.sleep(spent_seconds)
        return await self._change(lambda cursor: inquiry.end_pause(cursor, service, operation, audit))

    async def lease_events(self, service: str, wanted: Mapping[str, int], lease_us: int) -> list[LeasedEvent]:
        if not await self._query(lambda cursor: inquiry.are_due(cursor, service, wanted)):
            return []
        # A lease that is lost costs a duplicate.
        return await self._change_without_fsync(lambda cursor: inquiry.lease(cursor, service, wanted, lease_us))

    report_events = _unsynced(inquiry.report_events)
    find_events = _reads(inquiry.find_events)
    redeliver_event = _changes(inquiry.redeliver_event)
    suspend_sink = _changes(inquiry.suspend_sink)
    resume_sink = _changes(inquiry.resume_sink)
    sinks = _reads(inquiry.sinks)

    latest_audits = _reads(inquiry.latest_audits)
    audits = _reads(inquiry.audits)

    sealed_rows = _reads(inquiry.sealed_rows)

    async def reseal(self, changes: Sequence[tuple[Row, Kept]]) -> int:
        changed = 0
        for begin in range(0, len(changes), RESEAL_TRANSACTION_MAX):
            some = changes[begin : begin + RESEAL_TRANSACTION_MAX]
            part, spent_seconds = await self._change(_timed(partial(inquiry.reseal, changes=some)))
            changed += part
            # Pause, or gateways would find the file busy.
            await asyncio.sleep(spent_seconds)
        return changed

    observed_before = _reads(inquiry.observed_before)
    observed_contents = _reads(inquiry.observed_contents)
    save_observations = _unsynced(inquiry.save_observations)
    count_observed = _reads(inquiry.count_observed)

    save_activity = _unsynced(inquiry.save_activity)
    activity = _reads(inquiry.activity)

    begin_epoch = _changes(inquiry.begin_epoch)

    def watch(self, operation_id: UUID) -> AbstractAsyncContextManager[Watch]:
        return self._watchers.watch(operation_id)

    def announce_work(self) -> None:
        self._watchers.announce(WORK)

    def _announce(self, commands: Sequence[Command], results: Sequence[Result | Exception]) -> None:
        if self._watchers.number:
            for command, result in zip(commands, results, strict=True):
                if isinstance(result, Applied):
                    self._watchers.announce(operation_id_of(command))


def _timed(work: Callable[[Cursor], Awaitable[T]]) -> Callable[[Cursor], Awaitable[tuple[T, float]]]:
    """The work, and for how many seconds it kept its transaction open."""

    async def timed(cursor: Cursor) -> tuple[T, float]:
        began = time.perf_counter()
        return await work(cursor), time.perf_counter() - began

    return timed
