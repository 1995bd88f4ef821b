"""The embedded store: one SQLite file, for one host.

It differs from the contract of `base` in this: the clock is the host's, several processes may open the file, and news
reaches only waiters in the process that made the change; others find the change when they poll.

Theory of operation
-------------------
Two threads own a connection each. The writer takes the commands that arrived while it was busy as one batch and
executes them in one `BEGIN IMMEDIATE` transaction, so that the table itself runs under the lock that excludes every
other process, and one `fsync` serves the whole batch. A claim on an absent key, and a completion whose granted record
is at hand, are written without a read, by a statement that changes nothing if the row is not the one that `step`
assumed.

The table `operation` only has a flag for a kept request; `delivery` and `request` have the rest. What waits for an
attempt is in partial indexes, and triggers count it, so that nobody reads more the more is waiting.

The reader sees only what is committed, which is all that was ever acknowledged, and waits for no write. Queries over
more than a few records run in pieces. `connection` defines what is known when one fails.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar
from uuid import UUID

from gateway.core.lifecycle import no_token, step
from gateway.core.operation import Applied, Claim, Command, Complete, Result, Snapshot
from gateway.core.outbox import NO_EVENTS, Outbox
from gateway.store.base import EpochChanged, NotApplied, StoreError, Unstorable, wall_clock_us
from gateway.store.batching import Batcher, Worker
from gateway.store.memory.epoch import Witness, WitnessFiles, missing
from gateway.store.operations import WITNESS_KEEP_US, Epoch
from gateway.store.relational.executor import Changes, Cursor, drive, execute, read_batch
from gateway.store.relational.rows import completed_of, encode
from gateway.store.relational.store import Mode, RelationalStore
from gateway.store.sqlite.connection import (
    DATA_ERRORS,
    SCHEMA_VERSION,
    TEXTS,
    Reader,
    Transaction,
    Writer,
    check_library,
    file_id,
    prepare_file,
)

T = TypeVar("T")

BUSY_SECONDS: Final = 5.0
# The place of the store's only link in the witness files.
_PLACE: Final = 0
_ADVANCE_WITNESS: Final = TEXTS["advance_witness"]
_RAISE_WITNESS: Final = TEXTS["raise_witness"]
_INSERT_OPERATION: Final = TEXTS["insert_operation"]
_UPDATE_GRANTED: Final = TEXTS["update_granted"]
_INSERT_RESPONSE: Final = TEXTS["insert_response"]


def is_migrated(path: Path) -> bool:
    """Whether the file exists with an up-to-date schema. Changes nothing; raises as `start` does. Blocks: do not call
    it on the event loop."""
    found = file_id(path)
    if found is None:
        return False
    connection = Reader(path, BUSY_SECONDS)
    try:
        connection.start(found)
        return connection.version >= SCHEMA_VERSION
    finally:
        connection.drop()


class SqliteStore(RelationalStore):
    """The `Store` in the file at `path`, which is created (0600, in a directory 0700) if it is missing. `clock_us`
    returns the store's time in microseconds and is called in the store's threads. `start` may follow `close`."""

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
        restored copy. `outbox` says which events are written."""
        super().__init__(outbox)
        self._path = Path(path).absolute()
        self._writer = Writer(self._path, busy_seconds, clock_us, erases=outbox.sealing.seals)
        self._reader = Reader(self._path, busy_seconds, clock_us)
        self._witness_files = witness_files
        # The writer's thread and the reader's, between `start` and `close`.
        self._threads: tuple[Worker, Worker] | None = None
        self._commands = Batcher[Command, Result](on_results=self._announce, watchers=self._watchers)
        self._reads = Batcher[UUID, Snapshot]()
        self.apply = self._commands.submit
        self.read = self._reads.submit

    async def start(self) -> None:
        if self._threads is not None:
            return
        check_library()
        witness = None if self._witness_files is None else _Witness(self._witness_files, _PLACE)
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
        self._commands.open(writing, partial(_apply_batch, self._writer, witness, self._outbox))
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

    async def check_memory(self, links: Collection[UUID] = ()) -> Epoch:
        _, reading = self._started()
        return await reading.run(self._reader.query, partial(_epoch_of, links))

    async def _work(self, work: Callable[[Cursor], Awaitable[T]], mode: Mode = "read") -> T:
        writing, reading = self._started()
        if mode == "read":
            return await reading.run(self._reader.query, partial(drive, work))
        change = self._writer.transact if mode == "change" else self._writer.change_without_fsync
        return await writing.run(change, partial(drive, work))

    def _started(self) -> tuple[Worker, Worker]:
        if self._threads is None:
            raise NotApplied("the store is not open")
        return self._threads


# -- in the writer's thread --------------------------------------------------------------------------------------------


class _Misfit(Exception):
    """Some of the commands cannot be written. Roll the transaction back."""


def _apply_batch(
    writer: Writer, witness: _Witness | None, outbox: Outbox, commands: Sequence[Command]
) -> list[Result | Exception]:
    """Execute the commands in one transaction, or in halves, down to single commands, where a value does not fit. Each
    half is a transaction and fails for itself. Raises what `transact` does."""
    try:
        results, number, now_us = writer.transact(partial(_apply_all, commands, witness, outbox))
    except _Misfit as error:
        failed = Unstorable(f"the store cannot keep this command: {type(error.__cause__).__name__}")
    else:
        if number and witness is not None:
            witness.acknowledge(number, now_us)
        return results
    if len(commands) == 1:
        return [failed]
    middle = len(commands) // 2
    results = []
    for half in (commands[:middle], commands[middle:]):
        try:
            results += _apply_batch(writer, witness, outbox, half)
        except StoreError as error:
            results += [type(error)(*error.args) for _ in half]
    return results


def _apply_all(
    commands: Sequence[Command], witness: _Witness | None, outbox: Outbox, transaction: Transaction
) -> tuple[list[Result | Exception], int, int]:
    """The results, the number that the witness was raised to (0: it was not), and when."""
    number, now_us = 0, transaction.now_us
    if witness is not None:
        # https://sqlite.org/pragma.html#pragma_data_version: commits of this connection do not change it.
        state = transaction.connection, transaction.cursor.execute("PRAGMA data_version").fetchone()[0]
        if state != witness.compared:
            witness.compare(transaction, state)
    results: list[Any] = []
    rest: list[int] = []
    try:
        for place, command in enumerate(commands):
            result = None
            if type(command) is Claim:
                result = _insert_absent(transaction, command, now_us)
            elif type(command) is Complete:
                result = _replace_granted(transaction, command, now_us, outbox)
            results.append(result)
            if result is None:
                rest.append(place)
        if rest:
            others = drive(execute, transaction, [commands[place] for place in rest], outbox)
            for place, other in zip(rest, others, strict=True):
                results[place] = other
        if transaction.drawn:
            transaction.keep_tokens()
    except DATA_ERRORS as error:
        raise _Misfit from error
    # Also for a repeated command that took effect before: its number may never have been noted.
    if witness is not None and Applied in map(type, results):
        number = witness.raise_(transaction, now_us)
    return results, number, now_us


def _insert_absent(transaction: Transaction, command: Claim, now_us: int) -> Result | None:
    """Claim a key without a record; None if it has to be read, and nothing was changed."""
    if command.read_token is not None or command.content is not None:
        return None
    result, record = step(None, command, now_us, transaction.draw)
    if record is not None:
        transaction.cursor.execute(_INSERT_OPERATION, encode(record))
        if transaction.connection.changes():
            return result
    # The last token was not used, and need not be left out.
    transaction.drawn -= 1
    return None


def _replace_granted(transaction: Transaction, command: Complete, now_us: int, outbox: Outbox) -> Result | None:
    """Complete a claim without reading its record; None if it has to be read, and nothing was changed."""
    granted = command.granted
    # A kept request has to be dropped with the completion, which takes more than one statement.
    if granted is None or granted.delivery is not None:
        return None
    # Only its row knows whether it was renewed.
    if granted.lease_until_us <= now_us:
        return None
    result, record = step(granted, command, now_us, no_token)
    if record is None or not isinstance(result, Applied):
        return None
    row, cursor = encode(record), transaction.cursor
    # The fence identifies the record: token and attempt id belong to this claim alone. RETURNING the row would add more
    # than half of the update's cost.
    cursor.execute(_UPDATE_GRANTED, (*completed_of(row), row[0], record.token, record.attempt_id.bytes, now_us))
    if not transaction.connection.changes():
        return None
    if command.response.body is not None:
        cursor.execute(_INSERT_RESPONSE, (command.response.body, row[0]))
    if outbox.subscriptions:
        changes = Changes(transaction, now_us)
        changes.add_events(outbox.service, outbox.rows(granted, record))
        drive(changes.write)
    return result


class _Witness(Witness):
    """That of the writer's link, from one start to the next: compares the data with the notes, and raises the number,
    inside a transaction."""

    compared: object = None
    """What the data were like when they were compared; changes of this link's leave that as it is."""

    def compare(self, transaction: Transaction, state: object) -> None:
        """Compare the data, which are in this state, with all notes. Raises `EpochChanged`, before anything was
        changed."""
        # Before the epoch that they are compared with.
        reading = self.files.read()
        epoch = _epoch_of((note.link for note in reading.notes), transaction)
        why = missing(reading.notes, epoch, self.files.beyond)
        if why is not None:
            raise EpochChanged(why)
        self.stand_for(epoch, reading)
        self.compared = state

    def raise_(self, transaction: Transaction, now_us: int) -> int:
        """Raise and return the number. Raises `EpochChanged` if it is behind what was acknowledged."""
        cursor, link = transaction.cursor, self.link.bytes
        # A number that nobody lowered is raised without reading it.
        if self.number:
            cursor.execute(_ADVANCE_WITNESS, (link, self.number))
            if transaction.connection.changes():
                return self.number + 1
        # Fetch all rows: the change is complete only after the last one.
        ((number,),) = cursor.execute(_RAISE_WITNESS, (link, now_us + WITNESS_KEEP_US)).fetchall()
        if number <= self.number:
            raise EpochChanged("the store lacks changes that it had acknowledged")
        return int(number)


def _epoch_of(links: Iterable[UUID], transaction: Transaction) -> Epoch:
    cursor = transaction.cursor
    identity, token, memo, generation, level = cursor.execute(TEXTS["select_epoch"]).fetchone()
    witnesses = {}
    for link in links:
        for (number,) in cursor.execute(TEXTS["select_witness"], (link.bytes,)).fetchall():
            witnesses[link] = int(number)
    return Epoch(identity, int(token), transaction.now_us, memo, generation, witnesses, level=int(level))
