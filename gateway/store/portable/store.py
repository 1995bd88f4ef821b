"""The store on distributed SQL: CockroachDB, YugabyteDB, Citus, or PostgreSQL itself.

It differs from the contract of `base` in this: tokens increase per operation, and news reaches only waiters in this
process; those of others poll, or are woken through Redis. Where an engine's nodes have clocks of their own, the store's
clock is that of whichever node responds; the engine bounds how far they are apart.

Theory of operation
-------------------
Threads own a connection each: some for commands, one for what upkeep and operators change, one for reads. An
operation's commands are all executed by one thread, so that those of one gateway do not lose against one another."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar
from uuid import UUID

from gateway.core.operation import Command, Result, Snapshot, operation_id_of
from gateway.core.outbox import NO_EVENTS, Outbox
from gateway.store.base import NotApplied
from gateway.store.batching import QUEUE_MAX, Batcher
from gateway.store.memory.witness import Witness
from gateway.store.memory.witness_files import WitnessFiles
from gateway.store.portable import schema
from gateway.store.portable.connection import (
    COMMAND_SECONDS,
    CONNECT_SECONDS,
    Connect,
    Link,
    Unfit,
    check_url,
    open_session,
)
from gateway.store.portable.hot import HotVerb, insert_absent, is_absent_claim, is_granted_completion, replace_granted
from gateway.store.portable.memory import Memory
from gateway.store.portable.schema import TEXTS
from gateway.store.postgres.engine import Durability
from gateway.store.relational.executor import Cursor, apply_batch, drive, read_batch
from gateway.store.relational.store import RelationalStore
from gateway.store.worker import Worker

T = TypeVar("T")

# Threads that execute commands, and the most commands of a transaction.
COMMANDING: Final = 2
BATCH_SIZE_MAX: Final = 32


@dataclass(frozen=True, slots=True)
class _Running:
    """What exists between `start` and `close`."""

    commanding: tuple[Worker, ...]
    changing: Worker
    reading: Worker
    commands: tuple[Batcher[Command, Result], ...]
    reads: Batcher[UUID, Snapshot]
    claims: HotVerb | None
    completions: HotVerb | None


async def is_migrated(url: str) -> bool:
    """Whether the tables exist and are up to date. Changes nothing; raises as `start` does."""
    check_url(url)
    connection = await open_session(url)
    try:
        return await schema.applied_version(connection) >= schema.SCHEMA_VERSION
    finally:
        await connection.close()


async def migrate(url: str, *, grant_to: str | None = None) -> list[str]:
    """Bring the tables up to date and grant rights to `grant_to`; returns what was done. Raises as `start` does."""
    check_url(url)
    connection = await open_session(url)
    try:
        done = await schema.bring_up_to_date(connection)
        if grant_to is not None:
            await schema.grant(connection, grant_to)
        return done
    finally:
        await connection.close()


class PortableStore(RelationalStore):
    """The `Store` in the database at `url`. `clock_us` takes the place of the server's clock, in the store's
    threads."""

    # As many cost little more round trips than one, and other commands wait for none but these.
    sweep_records_max = 256
    has_one_writer = False
    syncs_always = True

    def __init__(
        self,
        url: str,
        *,
        clock_us: Callable[[], int] | None = None,
        durability: Durability = "server",
        witness_files: WitnessFiles | None = None,
        outbox: Outbox = NO_EVENTS,
        connect: Connect | None = None,
    ) -> None:
        """`witness_files` and `outbox` as for SQLite."""
        super().__init__(outbox)
        self._memory = Memory()
        self._url = url
        self._clock_us = clock_us
        self._changer, self._reader, *self._commanders = (
            Link(url, clock_us, self._memory, durability, connect) for _ in range(2 + COMMANDING)
        )
        self._witness_files = witness_files
        self._running: _Running | None = None

    async def start(self) -> None:
        if self._running is not None:
            return
        check_url(self._url)
        changing = Worker("portable-changes")
        try:
            await changing.run(self._changer.start)
        except BaseException:
            changing.end(self._changer.drop)
            raise
        files = self._witness_files
        commanding: list[Worker] = []
        commands: list[Batcher[Command, Result]] = []
        for place, link in enumerate(self._commanders):
            worker = Worker(f"portable-commands-{place}")
            witness = None if files is None else Witness(files, place)
            commanding.append(worker)
            commands.append(
                Batcher(
                    partial(self._apply, worker, link, witness),
                    key=operation_id_of,
                    size_max=BATCH_SIZE_MAX,
                    queue_max=QUEUE_MAX,
                )
            )
        reading = Worker("portable-reads")
        reads = Batcher(partial(self._read, reading), size_max=BATCH_SIZE_MAX, queue_max=QUEUE_MAX)
        self._running = _Running(tuple(commanding), changing, reading, tuple(commands), reads, *self._hot_verbs())

    def _hot_verbs(self) -> tuple[HotVerb | None, HotVerb | None]:
        if self._changer.texts is not TEXTS:
            return None, None
        opener, files, seconds = self._changer, self._witness_files, (CONNECT_SECONDS, COMMAND_SECONDS)
        claiming, completing = (
            HotVerb(
                statement,
                opener.dial,
                opener.where,
                seconds,
                self._clock_us,
                self._memory,
                None if files is None else Witness(files, place),
                self._announce,
                self._outbox,
            )
            for place, statement in enumerate((insert_absent, replace_granted), start=COMMANDING)
        )
        return claiming, completing

    async def close(self) -> None:
        running, self._running = self._running, None
        if running is None:
            return
        for hot in (running.claims, running.completions):
            if hot is not None:
                await hot.close()
        for batcher in running.commands:
            await batcher.close()
        await running.reads.close()
        for worker, link in zip(running.commanding, self._commanders, strict=True):
            await worker.stop(link.drop)
        await running.reading.stop(self._reader.drop)
        await running.changing.stop(self._changer.drop)

    async def apply(self, command: Command) -> Result:
        running, result = self._started(), None
        if running.claims is not None and is_absent_claim(command):
            result = await running.claims.apply(command)
        elif (
            running.completions is not None
            and is_granted_completion(command)
            # A place in a line follows from the events before it.
            and not self._outbox.is_ordered
        ):
            result = await running.completions.apply(command)
        if result is not None:
            return result
        batchers = running.commands
        return await batchers[operation_id_of(command).int % len(batchers)].submit(command)

    async def read(self, operation_id: UUID) -> Snapshot:
        return await self._started().reads.submit(operation_id)

    async def _query(self, work: Callable[[Cursor], Awaitable[T]]) -> T:
        return await self._started().reading.run(self._reader.query, partial(drive, work))

    async def _change(self, work: Callable[[Cursor], Awaitable[T]]) -> T:
        return await self._started().changing.run(self._changer.change, partial(drive, work))

    async def _change_without_fsync(self, work: Callable[[Cursor], Awaitable[T]]) -> T:
        return await self._change(work)

    def _started(self) -> _Running:
        if self._running is None:
            raise NotApplied("the store is not open")
        return self._running

    async def _apply(
        self, worker: Worker, link: Link, witness: Witness | None, commands: list[Command]
    ) -> Sequence[Result | Exception]:
        results = await worker.run(apply_batch, link.change, witness, (Unfit,), self._outbox, commands)
        # Here, and not in `apply`: its caller may have been cancelled.
        self._announce(commands, results)
        return results

    async def _read(self, reading: Worker, operation_ids: list[UUID]) -> Sequence[Snapshot | Exception]:
        return await reading.run(self._reader.query, partial(drive, partial(read_batch, operation_ids)))
