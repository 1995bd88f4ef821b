"""What the stores share whose transactions execute the table: all verbs but the start and the end.

Theory of operation
-------------------
Work is a coroutine over a transaction (`executor.Cursor`). Where statements wait for nothing, as in a thread that owns
a file, it is run to its end at once (`executor.drive`). Commands that arrive while a connection is busy form one batch
and one transaction. Queries over more than a few records run in pieces, so that other calls get their turn in between.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial, wraps
from typing import Any, ClassVar, Concatenate, Final, Literal, ParamSpec, Self, TypeVar
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
Mode = Literal["read", "change", "unsynced"]
"""On one consistent state, of which nothing is changed; in one durable transaction; in one that a crash may undo."""


def _verb(work: Work[P, T], mode: Mode = "read") -> Verb[P, T]:

    async def verb(self: RelationalStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._work(lambda cursor: work(cursor, *args, **kwargs), mode)

    return wraps(work)(verb)


class RelationalStore(ABC):
    """The verbs of `ManagedStore`, `SealedRows` and `ObservationStore` but for `start`, `close`, `apply` and `read`.
    Most are one piece of work in one transaction."""

    sweep_records_max: ClassVar[int] = SWEEP_TRANSACTION_MAX
    has_one_writer: ClassVar[bool] = True
    """Whether commands wait for a sweep."""
    syncs_always: bool
    """Whether what may be undone is as durable as all else."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._watchers = Watchers()

    @abstractmethod
    async def _work(self, work: Callable[[Cursor], Awaitable[T]], mode: Mode = "read") -> T: ...

    async def _piece(self, work: Callable[[Cursor], Awaitable[T]], mode: Mode) -> T:
        """Do a piece of work, and then let pass for as long whoever waits for the only writer."""

        async def timed(cursor: Cursor) -> tuple[T, float]:
            began = time.perf_counter()
            return await work(cursor), time.perf_counter() - began

        result, spent_seconds = await self._work(timed, mode)
        if self.has_one_writer:
            await asyncio.sleep(spent_seconds)
        return result

    @property
    def cold(self) -> Self:
        return self

    async def sweep(self, limit: int) -> Swept:
        swept, left, size_max = Swept(), limit, self.sweep_records_max
        if not await self._work(is_due):
            return swept
        while left > 0:
            size = min(left, size_max)
            try:
                part, operation_ids = await self._sweep_some(size)
            except Contended:
                if size == 1:
                    raise
                size_max = size // 2
                continue
            left -= size
            for operation_id in operation_ids:
                self._watchers.announce(operation_id)
            swept += part
            if not swept.more:
                break
        return swept

    async def _sweep_some(self, size: int) -> tuple[Swept, list[UUID]]:
        sweep = partial(sweep_some, limit=size, outbox=self._outbox)
        try:
            # What is lost of it is done again by the next sweep.
            return await self._piece(partial(sweep, is_synced=self.syncs_always), "unsynced")
        except EventsUnsynced:
            return await self._piece(partial(sweep, is_synced=True), "change")

    take_turns = _verb(inquiry.take_turns, "unsynced")
    leave_turns = _verb(inquiry.leave_turns, "unsynced")
    tally = _verb(inquiry.tally)
    sealed_examples = _verb(inquiry.sealed_examples)

    async def compare_configuration(self, serving: Serving, *, is_trial: bool = False) -> Agreement:
        counted: dict[Name, Living] = {}

        async def agree(cursor: Cursor) -> Agreement | frozenset[Name]:
            agreed = await inquiry.agree(cursor, serving, counted, writes=not is_trial)
            if not is_trial and isinstance(agreed, Agreement) and not agreed.conflicts:
                await inquiry.remember(cursor, serving.service, self._outbox)
            return agreed

        while True:
            agreed = await self._work(agree, "read" if is_trial else "change")
            if isinstance(agreed, Agreement):
                return agreed
            counted = await self._count_living(agreed)

    note_running = _verb(inquiry.note_running, "unsynced")
    raise_level = _verb(inquiry.raise_level, "change")

    async def count_without_route(self, service: str, operations: Collection[str]) -> dict[str, int]:
        names = await self._work(lambda cursor: inquiry.operations_without_route(cursor, service, operations))
        counted = await self._count_living(names)
        return {operation: living.keys for (_, operation), living in counted.items() if living.keys}

    async def _count_living(self, names: Collection[Name]) -> dict[Name, Living]:
        counted, after, has_more = dict.fromkeys(names, Living()), None, bool(names)
        while has_more:
            part, after = await self._count_some(names, after)
            counted = {name: inquiry.joined(living, part[name]) for name, living in counted.items()}
            has_more = after is not None
        return counted

    _count_some = _verb(inquiry.count_some)

    async def find(self, query: Query) -> list[Snapshot]:
        found: list[Snapshot] = []
        while True:
            piece, last = await self._find_some(replace(query, limit=query.limit - len(found)))
            found += piece
            if last is None or len(found) >= query.limit:
                return found
            query = replace(query, after=last)

    _find_some = _verb(inquiry.find_some)
    recover = _verb(inquiry.recover, "change")
    put_off = _verb(inquiry.put_off, "change")
    recovery = _verb(inquiry.recovery)

    find_due = _verb(inquiry.find_due)
    read_kept = _verb(inquiry.read_kept)
    count_pending = _verb(inquiry.count_pending)
    backlog = _verb(inquiry.backlog)
    pause = _verb(inquiry.pause, "change")
    pause_audits = _verb(inquiry.pause_audits)

    async def resume(self, service: str, operation: str, audit: Audit) -> bool:
        resume_some = partial(inquiry.resume_some, service=service, operation=operation, limit=RESUME_TRANSACTION_MAX)
        is_first = True
        while await self._piece(partial(resume_some, is_first=is_first), "unsynced"):
            is_first = False
        return await self._work(lambda cursor: inquiry.end_pause(cursor, service, operation, audit), "change")

    async def lease_events(self, service: str, wanted: Mapping[str, int], lease_us: int) -> list[LeasedEvent]:
        if not await self._work(lambda cursor: inquiry.are_due(cursor, service, wanted)):
            return []
        # A lease that is lost costs a duplicate.
        return await self._work(lambda cursor: inquiry.lease(cursor, service, wanted, lease_us), "unsynced")

    report_events = _verb(inquiry.report_events, "unsynced")
    find_events = _verb(inquiry.find_events)
    redeliver_event = _verb(inquiry.redeliver_event, "change")
    suspend_sink = _verb(inquiry.suspend_sink, "change")
    resume_sink = _verb(inquiry.resume_sink, "change")
    sinks = _verb(inquiry.sinks)

    latest_audits = _verb(inquiry.latest_audits)
    audits = _verb(inquiry.audits)

    sealed_rows = _verb(inquiry.sealed_rows)

    async def reseal(self, changes: Sequence[tuple[Row, Kept]]) -> int:
        changed = 0
        for begin in range(0, len(changes), RESEAL_TRANSACTION_MAX):
            some = changes[begin : begin + RESEAL_TRANSACTION_MAX]
            changed += await self._piece(partial(inquiry.reseal, changes=some), "change")
        return changed

    observed_before = _verb(inquiry.observed_before)
    observed_contents = _verb(inquiry.observed_contents)
    save_observations = _verb(inquiry.save_observations, "unsynced")
    count_observed = _verb(inquiry.count_observed)

    save_activity = _verb(inquiry.save_activity, "unsynced")
    activity = _verb(inquiry.activity)

    begin_epoch = _verb(inquiry.begin_epoch, "change")

    def watch(self, operation_id: UUID) -> AbstractAsyncContextManager[Watch]:
        return self._watchers.watch(operation_id)

    def announce_work(self) -> None:
        self._watchers.announce(WORK)

    def _announce(self, commands: Sequence[Command], results: Sequence[Result | Exception]) -> None:
        if self._watchers.number:
            for command, result in zip(commands, results, strict=True):
                if isinstance(result, Applied):
                    self._watchers.announce(operation_id_of(command))
