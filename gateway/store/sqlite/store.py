"""The embedded store: one SQLite file, for one host.

It differs from the contract of `base` in this: the clock is the host's, several processes may open the file, and news
reaches only waiters in the process that made the change; others find the change when they poll.

Theory of operation
-------------------
Two threads own a connection each. The writer takes the commands that arrived while it was busy as one batch and
executes them in one `BEGIN IMMEDIATE` transaction: read the row, let `lifecycle.step` decide, write the new record. So
the table itself runs, under the lock that excludes every other process, and one `fsync` serves the whole batch. A claim
on an absent key, and a completion whose granted record is at hand, are written without a read, by a statement that
changes nothing if the row is not the one that `step` assumed.

The table `operation` only has a flag for a kept request. What the record knows of it is in `delivery`, its bytes are in
`request`, and both rows go in the transaction after which the record has no `delivery`. What waits for an attempt is in
partial indexes, and triggers count it, so that neither workers nor claims read more the more is waiting.

The reader sees only what is committed, which is all that was ever acknowledged, and waits for no write. Queries over
more than a few records run in pieces, so that other calls get their turn in between. `connection` defines what is known
when one fails.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar
from uuid import UUID, uuid4

from gateway.core.lifecycle import settle
from gateway.core.observation import Finding, Observation
from gateway.core.operation import Applied, Audit, Command, Result, SealedRequest, Snapshot, operation_id_of
from gateway.core.outbox import NO_EVENTS, Outbox
from gateway.store.base import WORK, EpochChanged, NotApplied, Unstorable, Watch, wall_clock_us
from gateway.store.batching import BATCH_SIZE_MAX, QUEUE_MAX, Batcher
from gateway.store.epoch import WitnessNote, memory_digest, missing
from gateway.store.observations import ObservedCount
from gateway.store.operations import (
    Agreement,
    AuditEntry,
    Backlog,
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
from gateway.store.sqlite import event, inquiry, kept, observation, rekeying
from gateway.store.sqlite import statements as sql
from gateway.store.sqlite.connection import (
    DATA_ERRORS,
    Reader,
    SchemaReader,
    Writer,
    check_library,
    file_id,
    prepare_file,
)
from gateway.store.watching import Watchers
from gateway.store.witness_files import Reading, WitnessFiles
from gateway.store.worker import Worker

T = TypeVar("T")

BUSY_SECONDS: Final = 5.0
# Records per transaction of a sweep: what a command may have to wait for.
SWEEP_TRANSACTION_MAX: Final = 20
# The same for the end of a pause, which changes two integers of each.
RESUME_TRANSACTION_MAX: Final = 100
# The same for rows that are encrypted again.
RESEAL_TRANSACTION_MAX: Final = 20
# The place of the store's only link in the witness files.
_PLACE: Final = 0


@dataclass(frozen=True, slots=True)
class _Running:
    """What exists between `start` and `close`."""

    writing: Worker
    reading: Worker
    commands: Batcher[Command, Result]
    reads: Batcher[UUID, Snapshot]


def is_migrated(path: Path) -> bool:
    """Whether the file exists with an up-to-date schema. Changes nothing; raises as `start` does.

    Blocks: do not call it on the event loop.
    """
    found = file_id(path)
    if found is None:
        return False
    connection = SchemaReader(path, BUSY_SECONDS)
    try:
        connection.start(found)
        return connection.version >= sql.SCHEMA_VERSION
    finally:
        connection.drop()


class SqliteStore:
    """The `Store` in the file at `path`, which is created (0600, in a directory 0700) if it is missing.

    `clock_us` returns the store's time in microseconds and is called in the store's threads. `start` may follow
    `close`.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        clock_us: Callable[[], int] = wall_clock_us,
        busy_seconds: float = BUSY_SECONDS,
        witness_files: WitnessFiles | None = None,
        outbox: Outbox = NO_EVENTS,
    ) -> None:
        """`witness_files` are open from before `start` until after `close`; without them, only the epoch can reveal a
        restored copy. `outbox` says which events are written.
        """
        self._path = Path(path).absolute()
        self._clock_us = clock_us
        self._writer = Writer(self._path, busy_seconds, erases=outbox.sealing.seals)
        self._reader = Reader(self._path, busy_seconds)
        self._witness_files = witness_files
        self._outbox = outbox
        self._witness: _Witness | None = None
        self._watchers = Watchers()
        self._sweeper_id = uuid4().bytes
        self._is_sweeping = False
        self._running: _Running | None = None

    async def start(self) -> None:
        if self._running is not None:
            return
        check_library()
        self._witness = None if self._witness_files is None else _Witness(self._witness_files)
        writing, reading = Worker("sqlite-writer"), Worker("sqlite-reader")
        try:
            found = await writing.run(prepare_file, self._path)
            await writing.run(self._writer.start, found)
            await reading.run(self._reader.start, found)
        except Exception:
            await reading.stop(self._reader.drop)
            await writing.stop(self._writer.drop)
            raise
        except BaseException:
            reading.end(self._reader.drop)
            writing.end(self._writer.drop)
            raise
        self._running = _Running(
            writing,
            reading,
            Batcher(partial(self._apply, writing), size_max=BATCH_SIZE_MAX, queue_max=QUEUE_MAX),
            Batcher(partial(self._read, reading), size_max=BATCH_SIZE_MAX, queue_max=QUEUE_MAX),
        )

    async def close(self) -> None:
        running, self._running = self._running, None
        if running is None:
            return
        await running.commands.close()
        await running.reads.close()
        # The writer last: the last connection to close copies the log into the file and removes it.
        await running.reading.stop(self._reader.drop)
        await running.writing.stop(self._writer.drop)

    async def apply(self, command: Command) -> Result:
        return await self._started().commands.submit(command)

    async def read(self, operation_id: UUID) -> Snapshot:
        return await self._started().reads.submit(operation_id)

    async def sweep(self, limit: int) -> Swept:
        swept = Swept()
        if self._is_sweeping or not await self._query(lambda cursor: sql.is_due(cursor, self._clock_us())):
            return swept
        self._is_sweeping = True
        try:
            left = limit
            while left > 0:
                size = min(left, SWEEP_TRANSACTION_MAX)
                left -= size
                part, spent_seconds = await self._sweep_some(size, is_last=left == 0)
                self._watchers.announce_all(part.operation_ids)
                swept += part.swept
                # Pause, or every command would find the writer busy sweeping.
                await asyncio.sleep(spent_seconds)
                if not swept.more:
                    break
            return swept
        finally:
            self._is_sweeping = False

    async def _sweep_some(self, size: int, *, is_last: bool) -> tuple[sql.SweptPart, float]:
        return await self._note_timed(
            lambda cursor: sql.sweep_some(
                cursor, self._sweeper_id, self._clock_us(), size, self._outbox, is_last=is_last
            )
        )

    async def tally(self) -> Tally:
        return await self._query(lambda cursor: sql.tally(cursor, self._clock_us()))

    async def compare_configuration(self, serving: Serving, *, is_trial: bool = False) -> Agreement:
        counted: dict[Name, Living] = {}

        def agree(cursor: sql.Cursor) -> Agreement | frozenset[Name]:
            agreed = inquiry.agree(cursor, serving, counted, self._clock_us(), writes=not is_trial)
            if not is_trial and isinstance(agreed, Agreement) and not agreed.conflicts:
                event.remember(cursor, serving.service, self._outbox)
            return agreed

        while True:
            agreed = await (self._query(agree) if is_trial else self._change(agree))
            if isinstance(agreed, Agreement):
                return agreed
            counted = await self._count_living(agreed)

    async def note_running(self, gateway_id: UUID, *, is_running: bool) -> None:
        await self._note(
            lambda cursor: inquiry.note_running(cursor, gateway_id, self._clock_us(), is_running=is_running)
        )

    async def count_without_route(self, service: str, operations: Collection[str]) -> dict[str, int]:
        names = await self._query(lambda cursor: inquiry.operations_without_route(cursor, service, operations))
        counted = await self._count_living(names)
        return {operation: living.keys for (_, operation), living in counted.items() if living.keys}

    async def _count_living(self, names: Collection[Name]) -> dict[Name, Living]:
        """Count the living keys piece by piece."""
        counted, after = dict.fromkeys(names, Living()), 0 if names else None
        while after is not None:
            part, after = await self._count_some(names, after)
            counted = {name: inquiry.joined(living, part[name]) for name, living in counted.items()}
        return counted

    async def _count_some(self, names: Collection[Name], after: int) -> tuple[Mapping[Name, Living], int | None]:
        return await self._query(lambda cursor: inquiry.count_some(cursor, names, after, self._clock_us()))

    async def find(self, query: Query) -> list[Snapshot]:
        found: list[Snapshot] = []
        while True:
            piece = await self._find_some(replace(query, limit=query.limit - len(found)))
            found += piece.found
            if piece.last is None or len(found) >= query.limit:
                return found
            query = replace(query, after=piece.last)

    async def _find_some(self, query: Query) -> inquiry.Piece:
        return await self._query(lambda cursor: inquiry.find_some(cursor, query, self._clock_us()))

    async def recover(self, operation_id: UUID, token: int, lease_us: int, *, is_urgent: bool) -> RecoveryLease | None:
        return await self._change(
            lambda cursor: inquiry.recover(cursor, operation_id, token, lease_us, self._clock_us(), is_urgent=is_urgent)
        )

    async def put_off(self, lease: RecoveryLease, pause_us: int, finding: str) -> None:
        await self._change(lambda cursor: inquiry.put_off(cursor, lease, self._clock_us(), pause_us, finding))

    async def recovery(self, operation_id: UUID) -> RecoveryState | None:
        return await self._query(lambda cursor: inquiry.recovery(cursor, operation_id))

    async def find_due(self, service: str, operations: Collection[str], limit: int) -> list[Snapshot]:
        return await self._query(lambda cursor: kept.find_due(cursor, service, operations, self._clock_us(), limit))

    async def read_kept(self, operation_id: UUID) -> SealedRequest | None:
        return await self._query(lambda cursor: kept.read_request(cursor, operation_id))

    async def count_pending(self, service: str, operation: str, scope_digest: bytes, limit: int) -> int:
        return await self._query(
            lambda cursor: kept.count_pending(cursor, service, operation, scope_digest, self._clock_us(), limit)
        )

    async def backlog(self, service: str) -> Backlog:
        return await self._query(lambda cursor: kept.backlog(cursor, service, self._clock_us()))

    async def pause(self, service: str, operation: str, audit: Audit) -> bool:
        return await self._change(lambda cursor: kept.pause(cursor, service, operation, self._clock_us(), audit))

    async def pause_audits(self, service: str) -> list[PauseAudit]:
        return await self._query(lambda cursor: kept.pause_audits(cursor, service))

    async def resume(self, service: str, operation: str, audit: Audit) -> bool:
        has_more = True
        while has_more:
            has_more, spent_seconds = await self._note_timed(
                lambda cursor: kept.resume_some(cursor, service, operation, self._clock_us(), RESUME_TRANSACTION_MAX)
            )
            await asyncio.sleep(spent_seconds)
        return await self._change(lambda cursor: kept.end_pause(cursor, service, operation, self._clock_us(), audit))

    async def lease_events(self, service: str, wanted: Mapping[str, int], lease_us: int) -> list[LeasedEvent]:
        if not await self._query(lambda cursor: event.are_due(cursor, service, wanted, self._clock_us())):
            return []
        # A lease or a report that a power loss undoes costs a duplicate.
        return await self._note(lambda cursor: event.lease(cursor, service, wanted, lease_us, self._clock_us()))

    async def report_events(self, service: str, reports: Collection[EventReport]) -> None:
        await self._note(lambda cursor: event.report(cursor, service, reports, self._clock_us()))

    async def find_events(
        self, service: str, sink: str, *, is_dead: bool, after: str | None, limit: int
    ) -> list[KeptEvent]:
        return await self._query(lambda cursor: event.find(cursor, service, sink, after, limit, is_dead=is_dead))

    async def redeliver_event(self, service: str, event_id: str, sink: str | None) -> int:
        return await self._change(lambda cursor: event.redeliver(cursor, service, event_id, sink, self._clock_us()))

    async def suspend_sink(self, service: str, sink: str, why: str) -> bool:
        return await self._change(lambda cursor: event.suspend(cursor, service, sink, why))

    async def resume_sink(self, service: str, sink: str) -> bool:
        return await self._change(lambda cursor: event.resume(cursor, service, sink, self._clock_us()))

    async def sinks(self, service: str) -> dict[str, SinkBacklog]:
        return await self._query(lambda cursor: event.sinks(cursor, service, self._clock_us()))

    async def latest_audits(self, before: int | None, limit: int) -> list[NumberedAudit]:
        return await self._query(lambda cursor: inquiry.latest_audits(cursor, before, limit))

    async def audits(self, operation_id: UUID) -> list[AuditEntry]:
        return await self._query(lambda cursor: inquiry.audits(cursor, operation_id))

    async def sealed_rows(self, place: Place, after: Any, limit: int, current_id: str) -> list[Row]:
        """See `SealedRows`."""
        return await self._query(lambda cursor: rekeying.page(cursor, place, after, limit, current_id))

    async def reseal(self, place: Place, changes: Sequence[tuple[Row, Kept]]) -> int:
        """See `SealedRows`."""
        changed = 0
        for begin in range(0, len(changes), RESEAL_TRANSACTION_MAX):
            some = changes[begin : begin + RESEAL_TRANSACTION_MAX]
            began = time.perf_counter()
            changed += await self._change(partial(rekeying.reseal, place=place, changes=some))
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
        await self._note(lambda cursor: observation.save(cursor, service, found, forget_before_us))

    async def count_observed(self, service: str, route: str | None) -> list[ObservedCount]:
        return await self._query(lambda cursor: observation.count(cursor, service, route))

    async def check_memory(self, links: Collection[UUID] = ()) -> Epoch:
        return await self._query(lambda cursor: sql.check_memory(cursor, self._clock_us(), links))

    async def begin_epoch(self, memo: bytes, beyond_token: int) -> None:
        await self._change(lambda cursor: sql.begin_epoch(cursor, memo, beyond_token))

    def watch(self, operation_id: UUID) -> AbstractAsyncContextManager[Watch]:
        return self._watchers.watch(operation_id)

    def announce_work(self) -> None:
        self._watchers.announce(WORK)

    async def _query(self, work: Callable[[sql.Cursor], T]) -> T:
        """Read in the reader's thread."""
        return await self._started().reading.run(self._reader.query, work)

    async def _change(self, work: Callable[[sql.Cursor], T]) -> T:
        """Change the file in the writer's thread, durably."""
        return await self._started().writing.run(self._writer.transact, work)

    async def _note(self, work: Callable[[sql.Cursor], T]) -> T:
        """As `_change`, for what a power loss may undo."""
        return await self._started().writing.run(self._writer.note, work)

    async def _note_timed(self, work: Callable[[sql.Cursor], T]) -> tuple[T, float]:
        """As `_note`, and for how many seconds that kept the writer busy."""

        def note() -> tuple[T, float]:
            began = time.perf_counter()
            return self._writer.note(work), time.perf_counter() - began

        return await self._started().writing.run(note)

    def _started(self) -> _Running:
        if self._running is None:
            raise NotApplied("the store is not open")
        return self._running

    async def _apply(self, writing: Worker, commands: list[Command]) -> Sequence[Result | Exception]:
        results = await writing.run(self._apply_batch, commands)
        # Here, and not in `apply`: its caller may have been cancelled.
        if self._watchers:
            for command, result in zip(commands, results, strict=True):
                if isinstance(result, Applied):
                    self._watchers.announce(operation_id_of(command))
        return results

    async def _read(self, reading: Worker, operation_ids: list[UUID]) -> Sequence[Snapshot | Exception]:
        return await reading.run(self._read_batch, operation_ids)

    # -- in the threads ------------------------------------------------------------------------------------------------

    def _apply_batch(self, commands: Sequence[Command]) -> list[Result | Exception]:
        rejected: dict[int, Exception] = {}
        while True:
            try:
                results, number, now_us = self._writer.transact(
                    lambda cursor: self._execute(cursor, commands, rejected)
                )
                if number is not None and self._witness is not None:
                    self._witness.acknowledge(number, now_us)
                return results
            except sql.Misfit as misfit:
                rejected[misfit.index] = Unstorable(
                    f"SQLite cannot keep this command: {type(misfit.__cause__).__name__}"
                )

    def _execute(
        self, cursor: sql.Cursor, commands: Sequence[Command], rejected: Mapping[int, Exception]
    ) -> tuple[list[Result | Exception], int | None, int]:
        """Inside a transaction: the results, the witness number to note for them if any, and the time."""
        # Read the clock under the lock, so that the later of two processes has the later time.
        now_us, witness = self._clock_us(), self._witness
        if witness is not None:
            witness.compare(cursor, now_us)
        results = sql.apply_all(cursor, commands, rejected, now_us, DATA_ERRORS, self._outbox)
        number = None
        # Also for a repeated command that took effect before: its number may never have been noted.
        if witness is not None and any(isinstance(result, Applied) for result in results):
            number = witness.raise_(cursor, now_us)
        return results, number, now_us

    def _read_batch(self, operation_ids: Sequence[UUID]) -> list[Snapshot | Exception]:
        records = self._reader.query(lambda cursor: sql.read_all(cursor, operation_ids))
        # Read the clock after the records, or one that was just written would lie in the future.
        now_us = self._clock_us()
        return [
            record if isinstance(record, Exception) else Snapshot(settle(record, now_us), now_us) for record in records
        ]


class _Witness:
    """The witness of the link over which a store changes its file, from one start to the next. `files` are open.

    It raises and compares the link's number inside a transaction, and notes it before the caller receives the results
    that it stands for. `epoch` explains what the numbers prove. Only for the writer's thread.
    """

    def __init__(self, files: WitnessFiles) -> None:
        self._files = files
        self._link = uuid4()
        self._number = 0
        self._memory = b""
        # The connection that was compared, and its `data_version`.
        self._compared: tuple[object, int] | None = None
        self._reading = Reading()

    def compare(self, cursor: sql.Cursor, now_us: int) -> None:
        """Compare the file with all notes if other processes may have changed it since the last transaction.

        Raises `EpochChanged`, before anything was changed.
        """
        # https://sqlite.org/pragma.html#pragma_data_version: commits of this connection do not change it.
        version = cursor.execute("PRAGMA data_version").fetchone()[0]
        compared = (cursor.connection, version)
        if compared == self._compared:
            return
        reading = self._files.read()
        epoch = sql.check_memory(cursor, now_us, (note.link for note in reading.notes))
        why = missing(reading.notes, epoch, self._files.beyond)
        if why is not None:
            raise EpochChanged(why)
        self._memory, self._reading, self._compared = memory_digest(epoch.identity), reading, compared

    def raise_(self, cursor: sql.Cursor, now_us: int) -> int:
        """Raise and return the number. Raises `EpochChanged` if it is behind what was acknowledged."""
        number = sql.raise_witness(cursor, self._link, now_us)
        if number <= self._number:
            raise EpochChanged("the file lacks changes that it had acknowledged")
        return number

    def acknowledge(self, number: int, now_us: int) -> None:
        """Note the number; the transaction that raised it is committed."""
        self._number = number
        self._files.write(_PLACE, WitnessNote(self._link, number, now_us, self._files.beyond, self._memory))
        self._files.cover(self._reading)
