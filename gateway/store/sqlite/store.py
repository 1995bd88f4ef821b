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

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final, TypeVar
from uuid import UUID

from gateway.core.operation import Command, Result, Snapshot
from gateway.core.outbox import NO_EVENTS, Outbox
from gateway.store.base import NotApplied, wall_clock_us
from gateway.store.batching import Worker, WorkerBatches
from gateway.store.memory.epoch import Witness, WitnessFiles
from gateway.store.relational.executor import Cursor, apply_batch, drive, read_batch
from gateway.store.relational.store import RelationalStore
from gateway.store.sqlite.connection import (
    DATA_ERRORS,
    SCHEMA_VERSION,
    Reader,
    SchemaReader,
    Writer,
    check_library,
    file_id,
    prepare_file,
)

T = TypeVar("T")

BUSY_SECONDS: Final = 5.0
# The place of the store's only link in the witness files.
_PLACE: Final = 0


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
        return connection.version >= SCHEMA_VERSION
    finally:
        connection.drop()


class SqliteStore(RelationalStore):
    """The `Store` in the file at `path`, which is created (0600, in a directory 0700) if it is missing.

    `clock_us` returns the store's time in microseconds and is called in the store's threads. `start` may follow
    `close`.
    """

    syncs_always = False

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
        super().__init__(outbox)
        self._path = Path(path).absolute()
        self._writer = Writer(self._path, busy_seconds, clock_us, erases=outbox.sealing.seals)
        self._reader = Reader(self._path, busy_seconds, clock_us)
        self._witness_files = witness_files
        # The writer's thread and the reader's, between `start` and `close`.
        self._threads: tuple[Worker, Worker] | None = None
        self._commands = WorkerBatches[Command, Result](self._announce, self._watchers)
        self._reads = WorkerBatches[UUID, Snapshot]()
        self.apply = self._commands.submit
        self.read = self._reads.submit

    async def start(self) -> None:
        if self._threads is not None:
            return
        check_library()
        witness = None if self._witness_files is None else Witness(self._witness_files, _PLACE)
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
        self._threads = writing, reading
        self._commands.open(writing, partial(apply_batch, self._writer.transact, witness, DATA_ERRORS, self._outbox))
        self._reads.open(reading, lambda ids: self._reader.query(partial(drive, partial(read_batch, ids))))

    async def close(self) -> None:
        threads, self._threads = self._threads, None
        if threads is None:
            return
        writing, reading = threads
        await self._commands.close()
        await self._reads.close()
        # The writer last: the last connection to close copies the log into the file and removes it.
        await reading.stop(self._reader.drop)
        await writing.stop(self._writer.drop)

    async def _query(self, work: Callable[[Cursor], Awaitable[T]]) -> T:
        """Read in the reader's thread."""
        _, reading = self._started()
        return await reading.run(self._reader.query, partial(drive, work))

    async def _change(self, work: Callable[[Cursor], Awaitable[T]]) -> T:
        """Change the file in the writer's thread, durably."""
        writing, _ = self._started()
        return await writing.run(self._writer.transact, partial(drive, work))

    async def _change_without_fsync(self, work: Callable[[Cursor], Awaitable[T]]) -> T:
        """As `_change`, for what a power loss may undo."""
        writing, _ = self._started()
        return await writing.run(self._writer.change_without_fsync, partial(drive, work))

    def _started(self) -> tuple[Worker, Worker]:
        if self._threads is None:
            raise NotApplied("the store is not open")
        return self._threads
