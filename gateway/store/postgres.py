"""The durable store for many gateways: Postgres, through asyncpg.

It owns which connections there are and which command goes over which. Rows, statements, batches, errors, schema and
news are the neighbours' (`postgres_*`); this is the only module that imports the driver. What it promises stands on
`Store`.

Theory of operation
-------------------
Commands that arrive while a statement is under way go together in the next one. There are four queues, each with a
connection of its own: claims; answers; everything else that a holder says; reads. So no claim waits for a commit of
large bodies, and no renewal for either. Upkeep has a fifth connection, news a sixth. What recovery and operators ask
goes over a seventh, which is opened when the first of them asks.

A plain connection is told at its start to plan every statement once and by index: the plan must not depend on how full
the tables were when the first statement came. Behind pgbouncer nothing of that can be said (`?pgbouncer=true`, or
noticed): there every statement is planned as it comes, nothing is prepared, and nobody listens. And since a pooler may
go over to another server without a word, each batch of claims compares there which memory it is about to change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Final, cast
from urllib.parse import parse_qsl, urlencode, urlsplit
from uuid import UUID

import asyncpg

from gateway.core.lifecycle import settle
from gateway.core.operation import (
    Applied,
    Claim,
    Command,
    Complete,
    Prove,
    Renew,
    Result,
    Snapshot,
    State,
    Takeover,
    operation_id_of,
)
from gateway.store.base import (
    AuditEntry,
    Epoch,
    NotApplied,
    Query,
    RecipeConflict,
    RecoveryLease,
    StartRefused,
    Swept,
    Tally,
    Watch,
)
from gateway.store.batching import Batcher
from gateway.store.postgres_batch import Answer, Executor, Unclear, Windows, judge
from gateway.store.postgres_inquiry import Inquiry
from gateway.store.postgres_link import Connection, Link, Refused
from gateway.store.postgres_news import News
from gateway.store.postgres_rows import WIDTH, record_of, with_answer
from gateway.store.postgres_schema import (
    MIGRATE_SECONDS,
    add_partitions,
    bring_up_to_date,
    check_epoch,
    greet,
    is_up_to_date,
    look_epoch,
)
from gateway.store.postgres_statements import load
from gateway.store.postgres_upkeep import Upkeep
from gateway.store.watching import Watchers

CONNECT_SECONDS: Final = 5.0
COMMAND_SECONDS: Final = 5.0

_BATCH_SIZE_MAX: Final = 256
# A batch of reads may bring as many bodies.
_READS_SIZE_MAX: Final = 32
_TRIES: Final = 10

_READ: Final = load("read")


class PostgresStore:
    """See `Store`. Up to seven connections."""

    def __init__(
        self,
        url: str,
        *,
        connect_seconds: float = CONNECT_SECONDS,
        command_seconds: float = COMMAND_SECONDS,
        clock_us: Callable[[], int] | None = None,
    ) -> None:
        """`url` as libpq takes it, and `?pgbouncer=true`. `clock_us` replaces the server's clock, for tests."""
        self._dialer = Dialer(url, connect_seconds, command_seconds)
        self._command_seconds = command_seconds
        self._clock_us: Callable[[], int | None] = clock_us or _server_clock
        self._watchers = Watchers()
        self._windows = Windows()
        self._opened: _Opened | None = None

    async def start(self) -> None:
        if self._opened is not None:
            raise RuntimeError("the store was started already")
        # Not when it is closed: what is still under way then must not say a claim to a memory that nobody compared.
        self._dialer.epoch, self._dialer.seen_token = None, 0
        link = self._link()
        try:
            await _prepare(link)
        except BaseException:
            await link.close()
            raise
        upkeep = Upkeep(link, self._clock_us, self._command_seconds, lambda: not self._dialer.pgbouncer)
        try:
            self._dialer.epoch = await upkeep.look_epoch()
        except BaseException:
            await link.close()
            raise
        self._opened = _Opened(self._link, upkeep, self._executor, self._read_all, self._clock_us, self._watchers)
        if not self._dialer.pgbouncer:
            news = self._opened.news
            self._opened.news.start(self._link(news.listen))

    async def close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.close()

    async def apply(self, command: Command) -> Result:
        opened = self._open()
        for _ in range(_TRIES):
            answer: Answer = await opened.batcher_of(command).submit(command)
            if isinstance(answer, Unclear):
                answer = judge(await self.read(operation_id_of(command)), command, has_answer=True)
            if not isinstance(answer, Unclear):
                if isinstance(answer, Applied):
                    record, dialer = answer.snapshot.record, self._dialer
                    if record is not None and record.token > dialer.seen_token:
                        dialer.seen_token = record.token
                    if not isinstance(command, Renew):
                        opened.news.tell(operation_id_of(command))
                return answer
        # Every try was answered, and changed nothing.
        raise NotApplied("the operation changed each time between two looks at it")

    async def read(self, operation_id: UUID) -> Snapshot:
        return await self._open().reads.submit(operation_id)

    async def sweep(self, limit: int) -> Swept:
        return await self._open().upkeep.sweep(limit)

    async def tally(self) -> Tally:
        return await self._open().upkeep.tally()

    async def agree_recipes(self, recipes: Mapping[str, bytes], accept: frozenset[str]) -> list[RecipeConflict]:
        return await self._open().upkeep.agree_recipes(recipes, accept)

    async def find(self, query: Query) -> list[Snapshot]:
        return await self._open().inquiry.find(query)

    async def recover(self, operation_id: UUID, token: int, lease_us: int, *, is_urgent: bool) -> RecoveryLease | None:
        return await self._open().inquiry.recover(operation_id, token, lease_us, is_urgent=is_urgent)

    async def put_off(self, lease: RecoveryLease, pause_us: int) -> None:
        await self._open().inquiry.put_off(lease, pause_us)

    async def audits(self, operation_id: UUID) -> list[AuditEntry]:
        return await self._open().inquiry.audits(operation_id)

    async def look_epoch(self) -> Epoch:
        return await self._open().upkeep.look_epoch()

    async def begin_epoch(self, memo: bytes, beyond_token: int) -> None:
        await self._open().upkeep.begin_epoch(memo, beyond_token)

    def watch(self, operation_id: UUID) -> AbstractAsyncContextManager[Watch]:
        if self._opened is None:
            return self._watchers.watch(operation_id)
        return self._opened.news.watch(operation_id)

    async def wait_listening(self) -> None:
        """Return when other gateways' news can be heard. Never returns behind pgbouncer."""
        await self._open().news.wait_listening()

    def _open(self) -> _Opened:
        if self._opened is None:
            raise NotApplied("the store is not open")
        return self._opened

    def _link(self, prepare: Callable[[Connection], Awaitable[None]] | None = None) -> Link:
        return self._dialer.link(prepare)

    def _executor(self, link: Link, *, grants: bool = False) -> Executor:
        async def make_room(replay_us: Any) -> None:
            await link.run(lambda connection: add_partitions(connection, replay_us, self._clock_us()))

        async def fetch_compared(query: str, *arguments: Any) -> Sequence[Any]:
            if not self._dialer.pgbouncer:
                return await link.fetch(query, *arguments)
            return await link.run(lambda connection: self._dialer.fetch_compared(connection, query, *arguments))

        return Executor(fetch_compared if grants else link.fetch, make_room, self._clock_us, self._windows)

    async def _read_all(self, link: Link, operation_ids: list[UUID]) -> list[Snapshot | Exception]:
        rows = await link.fetch(_READ, self._clock_us(), list(set(operation_ids)))
        now_us = rows[0][0]
        found: dict[UUID, Snapshot | Exception] = {}
        for row in rows:
            try:
                record = record_of(row[1 : 1 + WIDTH])
                if record is not None and record.state is State.COMPLETED:
                    record = with_answer(record, *row[1 + WIDTH :])
            except NotApplied as error:
                found[row[1]] = error
            else:
                found[row[1]] = Snapshot(settle(record, now_us), now_us)
        absent = Snapshot(None, now_us)
        return [found.get(operation_id, absent) for operation_id in operation_ids]


class _Opened:
    """What exists between start and close."""

    def __init__(
        self,
        link: Callable[[], Link],
        upkeep: Upkeep,
        executor: Callable[..., Executor],
        read_all: Callable[[Link, list[UUID]], Awaitable[list[Snapshot | Exception]]],
        clock_us: Callable[[], int | None],
        watchers: Watchers,
    ) -> None:
        claims, answers, others, reads, inquiries = self._links = [link() for _ in range(5)]
        self.upkeep = upkeep
        self.claims: Batcher[Command, Answer] = _batcher(executor(claims, grants=True))
        self.answers: Batcher[Command, Answer] = _batcher(executor(answers))
        self.others: Batcher[Command, Answer] = _batcher(executor(others))
        self._batchers = {
            Claim: self.claims,
            Takeover: self.claims,
            Complete: self.answers,
            Prove: self.answers,
        }
        self.reads: Batcher[UUID, Snapshot] = Batcher(partial(read_all, reads), size_max=_READS_SIZE_MAX)
        self.inquiry = Inquiry(inquiries.fetch, clock_us)
        self.news = News(watchers)

    def batcher_of(self, command: Command) -> Batcher[Command, Answer]:
        return self._batchers.get(type(command), self.others)

    async def close(self) -> None:
        for batcher in (self.claims, self.answers, self.others, self.reads):
            await batcher.close()
        await self.news.close()
        await asyncio.gather(self.upkeep.close(), *(link.close() for link in self._links))


def _batcher(executor: Executor) -> Batcher[Command, Answer]:
    return Batcher(executor.execute, key=_number_of, size_max=_BATCH_SIZE_MAX)


def _number_of(command: Command) -> int:
    """The operation id: as integers they have the same order, and are hashed and compared much faster."""
    operation_id = command.identity.operation_id if isinstance(command, Claim) else command.operation_id
    return operation_id.int


class Dialer:
    """Opens connections as this store needs them."""

    def __init__(self, url: str, connect_seconds: float, command_seconds: float) -> None:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        self.pgbouncer = options.pop("pgbouncer", "false").lower() in ("1", "true", "yes", "on")
        self._dsn = parts._replace(query=urlencode(options)).geturl()
        self._connect_seconds = connect_seconds
        self._command_seconds = command_seconds
        self.epoch: Epoch | None = None
        """The memory that was there at the start. A connection to another one is not used."""
        self.seen_token = 0
        # Host and database only: the text goes to logs.
        self.where = f"PostgreSQL at {parts.netloc.rpartition('@')[2] or options.get('host', 'localhost')}{parts.path}"

    def link(self, prepare: Callable[[Connection], Awaitable[None]] | None = None) -> Link:
        """A connection that is opened when needed; `prepare` is called on each that it opens."""
        return Link(
            partial(self._dial, prepare),
            self.where,
            connect_seconds=self._connect_seconds,
            command_seconds=self._command_seconds,
        )

    async def _dial(self, prepare: Callable[[Connection], Awaitable[None]] | None) -> Connection:
        """A connection to a server that may be used, `prepare` called on it."""
        try:
            connection = await self._connect()
        except asyncpg.ProtocolViolationError:
            # "unsupported startup parameter": a pooler, which could not keep what we tell a session.
            if self.pgbouncer:
                raise
            self.pgbouncer = True
            connection = await self._connect()
        try:
            if self.pgbouncer:
                await _learn_types(connection)
            await greet(connection)
            # Both from before the server is asked: a token that is seen meanwhile is no sign of an older state.
            known, seen_token = self.epoch, self.seen_token
            if known is not None:
                check_epoch(await look_epoch(connection), known, seen_token)
            if prepare is not None:
                await prepare(connection)
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def fetch_compared(self, connection: Connection, query: str, *arguments: Any) -> Sequence[Any]:
        """One statement on a memory that was compared in the same transaction.

        Behind a pooler the server can be another one with each transaction, and no connection is lost by that.
        """
        known, seen_token = self.epoch, self.seen_token
        async with connection.transaction():
            if known is not None:
                check_epoch(await look_epoch(connection), known, seen_token)
            return await connection.fetch(query, *arguments)

    async def _connect(self) -> Connection:
        limit_ms = str(round(self._command_seconds * 1000))
        settings = {
            # By index and once, see above; compiling a plan costs more than running it.
            "enable_seqscan": "off",
            "plan_cache_mode": "force_generic_plan",
            "jit": "off",
            # A backend whose client is gone must not hold its locks for long.
            "statement_timeout": limit_ms,
            "lock_timeout": limit_ms,
            "idle_in_transaction_session_timeout": limit_ms,
        }
        connection: Any = await asyncpg.connect(
            self._dsn,
            timeout=self._connect_seconds,
            statement_cache_size=0 if self.pgbouncer else 100,
            max_cached_statement_lifetime=0,
            server_settings={"application_name": "idempotency-gateway", **({} if self.pgbouncer else settings)},
        )
        return cast("Connection", connection)


async def _learn_types(connection: Connection) -> None:
    """Let the driver look up the array types once, in a transaction that leaves nothing behind.

    It sets `jit` for that in whatever session it finds itself, which behind a pooler would be somebody else's next; and
    where it cannot, the server spends a second on compiling the look-up.
    """
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("SET LOCAL jit = off")
    await connection.fetch(
        "SELECT WHERE $1::uuid[] IS NULL OR $2::text[] IS NULL OR $3::bytea[] IS NULL OR $4::bigint[] IS NULL"
        " OR $5::smallint[] IS NULL",
        *([None] * 5),
    )
    await transaction.rollback()


async def migrate(url: str) -> list[str]:
    """Bring the schema up to date and return the names of the migrations that this took. Raises as `start`."""
    upkeep = Dialer(url, CONNECT_SECONDS, COMMAND_SECONDS).link()
    try:
        return await _prepare(upkeep)
    finally:
        await upkeep.close()


async def is_migrated(url: str) -> bool:
    """Whether `start` would find its schema up to date. Changes nothing; raises as `start`."""
    upkeep = Dialer(url, CONNECT_SECONDS, COMMAND_SECONDS).link()
    try:
        await upkeep.open()
        return await upkeep.run(is_up_to_date, COMMAND_SECONDS)
    except Refused as refused:
        if refused.is_misconfigured:
            raise StartRefused(*refused.args) from refused
        raise
    finally:
        await upkeep.close()


async def _prepare(upkeep: Link) -> list[str]:
    """Connect for the first time, and bring the schema up to date."""
    try:
        await upkeep.open()
        return await upkeep.run(bring_up_to_date, MIGRATE_SECONDS)
    except Refused as refused:
        if refused.sqlstate == "42501":
            raise StartRefused(
                f"{refused}: run `idempotency-gateway migrate` with a role that may create the schema, and grant this "
                "role the use of what is in it"
            ) from refused
        if refused.is_misconfigured:
            raise StartRefused(*refused.args) from refused
        raise


def _server_clock() -> None:
    """No time of ours: the statement asks the server."""
