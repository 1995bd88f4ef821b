"""The durable store for many gateways: Postgres, or distributed SQL in what CockroachDB, YugabyteDB, Citus and
PostgreSQL have in common (the portable dialect).

It owns which connections there are and which command uses which. `Store` defines what it promises.

Theory of operation
-------------------
Commands that arrive while a statement is under way form the next one. There are four queues: claims; completions and
acceptances; all other commands; reads.

All but one of the `connections` change operations and raise witnesses. With four, no claim waits for a commit of large
bodies, and no renewal for either; with three, the other commands wait for bodies; with two, all share one. The last
connection raises no witness, and nothing that takes long may go over it: it is for reads, news, and what gateways tell
each other. Votes about a promotion must go over such a one (`promotion`): before it is accepted, the notes of the
former server must not be replaced.

Upkeep, delivery, recovery and operators share one more, which is closed while nobody needs it: in a fleet, a gateway
without a turn has none. It compares no notes: a start uses it before it judges what the notes say, and what is found
over it is claimed or changed over another one.

The portable dialect differs from the contract of `base` in this: tokens increase per operation, and news reaches only
waiters in this process; those of others poll, or are woken through Redis. Where an engine's nodes have clocks of their
own, the store's clock is that of whichever node responds; the engine bounds how far they are apart. Its transactions
are serializable. There are no partitions, no members, and no walk for lapsed claims.

*News.* An operation without waiters costs nothing. A gateway that opens a watch announces its *interest* in the
operation to all gateways, and repeats that while the watch stays open. A gateway that changes an operation of interest
announces the *change*. If it changed the operation shortly before it received the interest, it announces the change
then, since the watching gateway may have read the record before.

News of work by itself is sent to all gateways, also by a command that ends at once. A gateway that cannot listen (its
connection is down, or a pooler gives it no session) receives and sends nothing. After a reconnection it wakes all its
waiters, since news may have been lost.

*Backlog.* Up to `BACKLOG_COUNT_MAX` rows are counted by their index. Beyond that a sample of the table says how many
there are: a limit of more than that is held to, too. A count of many rows is kept for a while, because every gateway
that accepts asks once a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar
from uuid import UUID

from gateway.core.operation import Accept, Applied, Claim, Command, Complete, Renew, Result, Snapshot, operation_id_of
from gateway.core.outbox import NO_EVENTS, Outbox
from gateway.store import operations
from gateway.store.base import WORK, LocalWatch, NotApplied, StartRefused, StoreError, Watch, Watchers, end_tasks
from gateway.store.batching import Batcher
from gateway.store.memory.epoch import WitnessFiles
from gateway.store.memory.promotion import Joined, Member
from gateway.store.postgres import schema
from gateway.store.postgres.connection import (
    INSUFFICIENT_PRIVILEGE,
    READING,
    SERIALIZABLE,
    Connection,
    Durability,
    ServerRefused,
    transaction,
)
from gateway.store.postgres.dialer import COMMAND_SECONDS, CONNECT_SECONDS, Connect, Dialer, Link, WitnessedLink
from gateway.store.postgres.executor import Executor, Horizon, Transactions
from gateway.store.postgres.statements import EPOCH_LOCK, Dialect, load
from gateway.store.relational import store as relational
from gateway.store.relational.executor import Cursor, decode, read_batch, snapshot_of
from gateway.store.relational.store import Mode, RelationalStore

# -- backlog -----------------------------------------------------------------------------------------------------------

# What an estimate reads of the table.
_SAMPLED_BYTES: Final = 16 << 20
# Of more rows than this, the count is kept: for so many times as long as it took, within these seconds.
_COUNTED_ANEW_MAX: Final = 1_000
_KEPT_TIMES: Final = 50
_KEPT_SECONDS_MIN: Final = 1.0
_KEPT_SECONDS_MAX: Final = 5.0


def _rows_of(counted: operations.RouteBacklog) -> int:
    return counted.accepted + sum(counted.dead_letters.values())


async def _counted(service: str, cursor: Cursor) -> operations.Backlog:
    backlog = await relational.backlog(cursor, service)
    accepted = sum(route.accepted for route in backlog.waiting.values())
    dead = sum(map(_rows_of, backlog.waiting.values())) - accepted
    if max(accepted, dead) < operations.BACKLOG_COUNT_MAX:
        return backlog
    ((size_bytes,),) = await cursor.rows("delivery_bytes")
    share = min(1.0, _SAMPLED_BYTES / max(size_bytes, 1))
    # A sample may miss the oldest, so that and what is stopped stay as they were found.
    waiting = {
        name: replace(route, accepted=0, request_bytes=0, dead_letters={}) for name, route in backlog.waiting.items()
    }
    for name, reason, found, request_bytes in await cursor.rows("sample_backlog", (100 * share, service)):
        route, number = waiting.get(name, operations.RouteBacklog()), round(found / share)
        if reason:
            waiting[name] = replace(route, dead_letters={**route.dead_letters, reason: number})
        else:
            waiting[name] = replace(route, accepted=number, request_bytes=round(request_bytes / share))
    return replace(backlog, waiting=waiting)


# -- news between gateways ---------------------------------------------------------------------------------------------

INTEREST: Final = "idempotency_gateway_interest"
CHANGED: Final = "idempotency_gateway_changed"

_INTEREST_SECONDS: Final = 60.0
_INTERESTS_MAX: Final = 20_000
_RECENT_SECONDS: Final = 5.0
_RECENT_MAX: Final = 4_096
_PENDING_MAX: Final = 20_000
_HEARTBEAT_SECONDS: Final = 20.0
# Pauses after a failure; they grow while it lasts, because each try may be a log-in.
_NEWS_PAUSE_SECONDS_MIN: Final = 0.5
_NEWS_PAUSE_SECONDS_MAX: Final = 5.0
_LAST_SECONDS: Final = 1.0

_SEND: Final = "SELECT pg_notify(channel, payload) FROM unnest($1::text[], $2::text[]) AS n (channel, payload)"

_LOG = logging.getLogger("gateway")


class _Recent:
    """A bounded set of ids, each kept for a while. As integers, which hash much faster."""

    def __init__(self, seconds: float, size_max: int) -> None:
        self._seconds = seconds
        self._size_max = size_max
        self._until: OrderedDict[int, float] = OrderedDict()

    def add(self, operation_id: UUID) -> None:
        until, number = self._until, operation_id.int
        until[number] = time.monotonic() + self._seconds
        until.move_to_end(number)
        if len(until) > self._size_max:
            until.popitem(last=False)

    def __contains__(self, operation_id: UUID) -> bool:
        until = self._until.get(operation_id.int)
        return until is not None and until > time.monotonic()


class News:
    """The news of one store object, by NOTIFY: it owns the channels and the interests of other gateways, and knows ids
    only, never records. Any message may be lost: waiters also poll. Belongs to the event loop that runs it."""

    def __init__(self, watchers: Watchers) -> None:
        self._watchers = watchers
        self._link: Link | None = None
        self._task: asyncio.Task[None] | None = None
        self._pending: dict[tuple[str, UUID], None] = {}
        self._wanted = asyncio.Event()
        self._interests = _Recent(_INTEREST_SECONDS, _INTERESTS_MAX)
        self._changes = _Recent(_RECENT_SECONDS, _RECENT_MAX)
        # Interests that the other gateways still know: several watches of one operation announce it once.
        self._announced = _Recent(_INTEREST_SECONDS / 2, _INTERESTS_MAX)
        self.listening = asyncio.Event()

    def start(self, link: Link) -> None:
        """Send from now on, over a link that calls `listen` on each connection."""
        self._link = link
        self._repeat_interests()
        self._task = asyncio.create_task(self._run(link), name="postgres-news")

    async def close(self) -> None:
        await end_tasks((self._task,))
        # What was announced just before the end, as by an operator's command.
        if self._link is not None and (CHANGED, WORK) in self._pending:
            with contextlib.suppress(StoreError, TimeoutError):
                async with asyncio.timeout(_LAST_SECONDS):
                    await self._link.fetch(_SEND, [CHANGED], [str(WORK)])

    async def listen(self, connection: Connection) -> None:
        own_pid = connection.get_server_pid()

        def receive(_connection: object, pid: int, channel: str, payload: str) -> None:
            if pid != own_pid:
                self._receive(channel, payload)

        def lose(_connection: object) -> None:
            self.listening.clear()
            self._wanted.set()

        connection.add_termination_listener(lose)
        for channel in (INTEREST, CHANGED):
            await connection.add_listener(channel, receive)
        self.listening.set()
        for operation_id in self._watchers.watched():
            self._watchers.announce(operation_id)
        self._repeat_interests()

    @asynccontextmanager
    async def watch(self, operation_id: UUID) -> AsyncIterator[LocalWatch]:
        async with self._watchers.watch(operation_id) as watch:
            if operation_id not in self._announced:
                self._announced.add(operation_id)
                self._send(INTEREST, operation_id)
            yield watch

    def announce(self, operation_id: UUID) -> None:
        """Wake the waiters of an operation that this gateway changed, here and on other gateways."""
        self._watchers.announce(operation_id)
        if self._link is not None:
            self._changes.add(operation_id)
            if operation_id == WORK or operation_id in self._interests:
                self._send(CHANGED, operation_id)

    def _receive(self, channel: str, payload: str) -> None:
        try:
            operation_id = UUID(payload)
        except ValueError:
            return
        if channel == CHANGED:
            self._watchers.announce(operation_id)
        elif channel == INTEREST:
            self._interests.add(operation_id)
            if operation_id in self._changes:
                self._send(CHANGED, operation_id)

    def _send(self, channel: str, operation_id: UUID) -> None:
        # News of work goes to all, whoever has an interest.
        if (channel, operation_id) == (INTEREST, WORK):
            return
        if self._link is not None and len(self._pending) < _PENDING_MAX:
            self._pending[channel, operation_id] = None
            self._wanted.set()

    def _repeat_interests(self) -> None:
        for operation_id in self._watchers.watched():
            self._send(INTEREST, operation_id)

    async def _run(self, link: Link) -> None:
        announced_at, pause_seconds = time.monotonic(), _NEWS_PAUSE_SECONDS_MIN
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0 if not self.listening.is_set() else _HEARTBEAT_SECONDS):
                    await self._wanted.wait()
            self._wanted.clear()
            now = time.monotonic()
            if now - announced_at >= _HEARTBEAT_SECONDS:
                announced_at = now
                self._repeat_interests()
            pending, self._pending = self._pending, {}
            try:
                # An empty one is the heartbeat: it detects a dead connection, and reconnects after a loss.
                await link.fetch(_SEND, [channel for channel, _ in pending], [str(each) for _, each in pending])
            except StoreError as error:
                _LOG.debug("no news between gateways: %s", error)
                await asyncio.sleep(pause_seconds)
                pause_seconds = min(2 * pause_seconds, _NEWS_PAUSE_SECONDS_MAX)
            else:
                pause_seconds = _NEWS_PAUSE_SECONDS_MIN


# -- store -------------------------------------------------------------------------------------------------------------

T = TypeVar("T")

CONNECTIONS: Final = 3
_CONNECTIONS_MAX: Final = 4
# After so long without use, the connection for what is slow is closed. Longer than the pauses of upkeep.
_IDLE_SECONDS: Final = 45.0
# A batch of reads may return as many bodies; the statement limits their total size.
_READS_SIZE_MAX: Final = 32

_MODES: Final[Mapping[Mode, tuple[str, Mapping[str, str] | None]]] = {
    "read": (READING, None),
    "change": (SERIALIZABLE, None),
    "unsynced": (SERIALIZABLE, {"synchronous_commit": "off"}),
}


@dataclass(frozen=True, slots=True)
class _Running:
    links: list[Link]
    claims: Executor
    bodies: Executor
    others: Executor
    reads: Batcher[UUID, Snapshot]
    plain: Transactions
    slow: Transactions
    news: News

    async def close(self) -> None:
        for batches in (self.claims.batches, self.bodies.batches, self.others.batches, self.reads):
            await batches.close()
        await self.news.close()
        await asyncio.gather(*(link.close() for link in self.links))


class PostgresStore(RelationalStore):
    """See `Store` and `Fleet`."""

    # Its row locks are held until it commits.
    sweep_records_max = 256
    has_one_writer = False

    def __init__(
        self,
        url: str,
        *,
        connect_seconds: float = CONNECT_SECONDS,
        command_seconds: float = COMMAND_SECONDS,
        connections: int = CONNECTIONS,
        durability: Durability = "server",
        clock_us: Callable[[], int] | None = None,
        witness_files: WitnessFiles | None = None,
        outbox: Outbox = NO_EVENTS,
        met: str = "",
        dialect: Dialect = "postgres",
        connect: Connect | None = None,
    ) -> None:
        """`url` as in libpq, optionally with `?pgbouncer=true`. `connections` are 2 to 4 that stay open, besides the
        one for what is slow. `clock_us` replaces the server's clock, and `connect` the driver, in tests.

        `witness_files` are open from before `start` until after `close`; without them, only the epoch reveals a loss.
        `outbox` says which events are written. `met` is the identity of the memory that this host saw last: of several
        hosts, none of an earlier timeline is used.
        """
        super().__init__(outbox)
        self._dialer = Dialer(
            url, connect_seconds, command_seconds, durability, witness_files, dialect, clock_us, connect
        )
        self.is_portable = self.syncs_always = dialect == "portable"
        self._connections = _CONNECTIONS_MAX if self.is_portable else connections
        if met:
            self._dialer.meet(met)
        self._horizon = Horizon()
        self._days = schema.Days(self._dialer.clock_us)
        # The last large count of each service: when it began, and until when it is used, by the event loop's clock.
        self._backlogs: dict[str, tuple[float, float, operations.Backlog]] = {}
        self._running: _Running | None = None

    @property
    def partitions_late(self) -> int:
        """How often a response had to wait until its partition was made."""
        return self._days.late

    @property
    def may_fail_over(self) -> bool:
        """Whether a standby may be promoted, which the gateways have to believe first."""
        return not self.is_portable

    async def start(self) -> None:
        if self._running is not None:
            raise RuntimeError("the store was started already")
        dialer = self._dialer
        # Reset here, not in `close`: a claim still under way then must not run in a memory that was not compared.
        dialer.epoch, dialer.seen_token = None, 0
        news = News(self._watchers)
        plain = Link(dialer, None if not dialer.can_listen else lambda connection, _: news.listen(connection))
        try:
            await _prepare(plain, dialer.dialect, schema.bring_up_to_date, schema.MIGRATE_SECONDS)
            if not self.is_portable:
                await plain.run(schema.check_role)
            dialer.epoch = await plain.run(dialer.check_memory)
        except BaseException:
            await plain.close()
            raise
        changing = [WitnessedLink(dialer, place) for place in range(self._connections - 1)]
        slow = Link(dialer, idle_seconds=_IDLE_SECONDS, compares_notes=False)
        executors = [self._executor(link) for link in changing]
        self._running = _Running(
            [*changing, plain, slow],
            executors[0],
            executors[min(1, len(executors) - 1)],
            executors[-1],
            Batcher(self._read_all, size_max=_READS_SIZE_MAX),
            Transactions(dialer, plain, self._horizon),
            Transactions(dialer, slow, self._horizon),
            news,
        )
        if dialer.can_listen:
            news.start(plain)

    async def close(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            await running.close()

    def apply(self, command: Command) -> Awaitable[Result]:
        running = self._started()
        match command:
            case Claim():
                return running.claims.apply(command)
            case Complete() | Accept():
                return running.bodies.apply(command)
            case _:
                return running.others.apply(command)

    async def read(self, operation_id: UUID) -> Snapshot:
        return await self._started().reads.submit(operation_id)

    async def sweep(self, limit: int) -> operations.Swept:
        if self.is_portable:
            return await super().sweep(limit)
        swept, link = operations.Swept(), self._started().slow.link
        try:
            await self._horizon.reach(link)
            swept = await super().sweep(limit)
        except ServerRefused as refused:
            # Somebody else changes what is due, for long; the next sweep comes to it.
            if not refused.is_locked:
                raise
        await self._days.keep(link)
        return swept

    async def compare_configuration(
        self, serving: operations.Serving, *, is_trial: bool = False
    ) -> operations.Agreement:
        agreement = await super().compare_configuration(serving, is_trial=is_trial)
        if not (agreement.conflicts or is_trial or self.is_portable):
            await self._days.begin(self._started().slow.link, serving.replay_us)
            await self.note_running(serving.gateway_id, is_running=True)
        return agreement

    async def count_pending(self, service: str, route: str, scope_digest: bytes, limit: int) -> int:
        # An acceptance waits for it.
        return await self._started().plain.work(
            lambda cursor: relational.count_pending(cursor, service, route, scope_digest, limit), READING
        )

    async def backlog(self, service: str) -> operations.Backlog:
        if self.is_portable:
            return await super().backlog(service)
        clock = asyncio.get_running_loop().time
        now = clock()
        began, until, kept = self._backlogs.get(service, (now, now, operations.Backlog()))
        if now < until:
            # Pauses are never of before.
            pauses = await self._work(lambda cursor: cursor.rows("select_pauses", (service,)))
            paused = {name: operations.Pause(*rest) for name, *rest in pauses}
            return replace(kept, paused=paused, age_seconds=now - began)
        counted = await self._work(partial(_counted, service))
        if sum(map(_rows_of, counted.waiting.values())) > _COUNTED_ANEW_MAX:
            ended = clock()
            kept_seconds = min(max(_KEPT_TIMES * (ended - now), _KEPT_SECONDS_MIN), _KEPT_SECONDS_MAX)
            self._backlogs[service] = (now, ended + kept_seconds, counted)
        return counted

    def watch(self, operation_id: UUID) -> AbstractAsyncContextManager[Watch]:
        if self._running is None:
            return self._watchers.watch(operation_id)
        return self._running.news.watch(operation_id)

    def announce_work(self) -> None:
        if self._running is not None:
            self._running.news.announce(WORK)

    async def wait_listening(self) -> None:
        """Return when news of other gateways can arrive. Never returns behind pgbouncer."""
        await self._started().news.listening.wait()

    def _started(self) -> _Running:
        if self._running is None:
            raise NotApplied("the store is not open")
        return self._running

    def _executor(self, link: WitnessedLink) -> Executor:
        transactions = Transactions(self._dialer, link, self._horizon)
        return Executor(link, transactions, self._outbox, self._days, self._announce, self.read)

    def _announce(self, commands: Sequence[Command], results: Sequence[Any]) -> None:
        if (running := self._running) is None:
            return
        for command, result in zip(commands, results, strict=True):
            if isinstance(result, Applied):
                record, dialer = result.snapshot.record, self._dialer
                if record is not None and record.token > dialer.seen_token:
                    dialer.seen_token = record.token
                if not isinstance(command, Renew):
                    running.news.announce(operation_id_of(command))

    async def _work(self, work: Callable[[Cursor], Awaitable[T]], mode: Mode = "read") -> T:
        return await self._started().slow.work(work, *_MODES[mode])

    # -- what gateways tell each other ---------------------------------------------------------------------------------

    @property
    def _link(self) -> Link:
        """The one for all this. Raises `NotApplied` while the store is not started."""
        return self._started().plain.link

    async def check_memory(self, links: Collection[UUID] = ()) -> operations.Epoch:
        epoch = await self._link.run(lambda connection: self._dialer.check_memory(connection, links))
        self._know_memo(epoch.memo)
        return epoch

    async def begin_epoch(self, memo: bytes, beyond_token: int) -> None:
        if self.is_portable:
            await super().begin_epoch(memo, beyond_token)
        else:
            await self._locked("begin_epoch", memo, beyond_token)
        self._know_memo(memo)

    def _know_memo(self, memo: bytes) -> None:
        """Remember the memo that this store has read or written; a connection that finds another one is not used."""
        if self._dialer.epoch is not None and self._dialer.epoch.memo != memo:
            self._dialer.epoch = replace(self._dialer.epoch, memo=memo)

    async def note_running(self, gateway_id: UUID, *, is_running: bool) -> None:
        if self.is_portable:
            await super().note_running(gateway_id, is_running=is_running)
        elif is_running:
            arguments = self._dialer.clock_us(), gateway_id.bytes, self._days.longest_us
            await self._fetch("note_running", *arguments, is_compared=False)
        else:
            # Flushed: who stays on the list has to vouch before a promotion is accepted.
            await self._fetch("note_stopped", gateway_id.bytes, is_compared=False)

    async def take_turns(self, holder: UUID, names: Collection[str], lease_us: int) -> frozenset[str]:
        if self.is_portable:
            return await super().take_turns(holder, names, lease_us)
        rows = await self._fetch("lease_turns", self._dialer.clock_us(), holder.bytes, sorted(names), lease_us)
        return frozenset(row["name"] for row in rows)

    async def leave_turns(self, holder: UUID) -> None:
        await self._started().plain.work(lambda cursor: relational.leave_turns(cursor, holder), SERIALIZABLE)

    async def save_activity(self, service: str, *rows: operations.ActivityRow) -> None:
        # Not over the link for what is slow, which would be opened for it once a minute.
        values = [(row.writer.bytes, row.span_us, row.at_us, row.until_us, row.body) for row in rows]
        await self._fetch("upsert_activity", service, *zip(*values, strict=True))

    async def join(self, gateway_id: UUID, notes: UUID, host: str, boot: str, ended: Collection[UUID]) -> Joined:
        """See `Fleet`, also for the next four."""
        rows = await self._fetch(
            "join", self._dialer.clock_us(), gateway_id.bytes, notes.bytes, host, boot, _bytes(ended)
        )
        if not rows:
            raise NotApplied("the store does not know this gateway any more")
        row = rows[0]
        # The commit was synchronous only if nobody changed the settings before it, as far as that is said.
        (after,) = await self._fetch("terms")
        is_unchanged = row["loaded_at"] is not None and row["loaded_at"] == after["loaded_at"]
        is_synchronous = row["is_synchronous"] and after["is_synchronous"] and is_unchanged
        may_fail_over = row["may_have_standby"] or self._dialer.has_several_hosts
        return Joined(row["beat"], row["was_listed"], is_synchronous, may_fail_over)

    async def beat(self, gateway_id: UUID, silent: Collection[tuple[UUID, int]]) -> tuple[bool, list[Member]]:
        ids, beats = _bytes(each for each, _ in silent), [beat for _, beat in silent]
        rows = await self._fetch("beat", self._dialer.clock_us(), gateway_id.bytes, ids, beats, self._days.longest_us)
        return bool(rows) and rows[0]["is_synchronous"], [_member(row) for row in rows]

    async def members(self) -> list[Member]:
        return [_member(row) for row in await self._fetch("members")]

    async def vouch(self, identity: str, gateway_id: UUID, boot: str, ended: Collection[UUID]) -> None:
        await self._fetch("vouch", identity, gateway_id.bytes, _bytes(ended), boot)

    async def accept_promotion(self, epoch: operations.Epoch, memo: bytes, *, is_trusted: bool) -> bool:
        before, _, _, timeline = epoch.parent.split("/")
        is_done = await self._locked("accept_promotion", memo, epoch.memo, before, timeline, is_trusted, epoch.identity)
        if is_done:
            self._dialer.epoch = await self.check_memory()
        return bool(is_done)

    async def _locked(self, statement: str, *arguments: Any) -> Sequence[Any]:
        """What the statement returns, while nobody else changes which memory this is."""

        async def change(connection: Connection) -> Sequence[Any]:
            async with transaction(connection, {"lock_timeout": "1s"}):
                await connection.execute(f"SELECT pg_advisory_xact_lock({EPOCH_LOCK})")
                return await connection.fetch(load(statement), *arguments)

        return await self._link.run(change)

    async def _fetch(self, statement: str, *arguments: Any, is_compared: bool = True) -> Sequence[Any]:
        return await self._link.fetch(load(statement), *arguments, is_compared=is_compared)

    # -- reads ---------------------------------------------------------------------------------------------------------

    async def _read_all(self, operation_ids: list[UUID]) -> Sequence[Snapshot | Exception]:
        if self.is_portable:
            return await self._started().plain.work(partial(read_batch, operation_ids), READING)
        found: dict[UUID, Snapshot | Exception] = {}
        # A statement leaves bodies beyond a total size to another one.
        while left := [each for each in dict.fromkeys(operation_ids) if each not in found]:
            found |= await self._read_some(left)
        return [found[each] for each in operation_ids]

    async def _read_some(self, operation_ids: list[UUID]) -> dict[UUID, Snapshot | Exception]:
        wanted = [operation_id.bytes for operation_id in operation_ids]
        # On a compared memory: a record that another one lacks would look absent to the caller.
        rows = await self._fetch("read", self._dialer.clock_us(), wanted)
        there = {row[2]: row for row in rows if row[1] is not None}
        found: dict[UUID, Snapshot | Exception] = {}
        for operation_id, id_ in zip(operation_ids, wanted, strict=True):
            if (row := there.get(id_)) is None:
                found[operation_id] = snapshot_of(None, rows[0][0])
            elif not row["is_left"]:
                delivery = None if row["delivery"] is None else tuple(row["delivery"])
                found[operation_id] = snapshot_of(decode(tuple(row[1:-3]), delivery, row["shared"]), row[0])
        return found


def _member(row: Any) -> Member:
    return Member(UUID(bytes=row["id"]), row["host"], row["beat"], row["seen_us"], row["vouched_for"])


def _bytes(ids: Iterable[UUID]) -> list[bytes]:
    return [each.bytes for each in ids]


async def migrate(
    url: str, durability: Durability = "server", dialect: Dialect = "postgres", *, grant_to: str | None = None
) -> list[str]:
    """Bring the schema up to date and return the names of the applied migrations. Raises as `start` does. The role
    `grant_to` gets the rights that a gateway needs."""
    link = Link(Dialer(url, durability=durability, dialect=dialect))
    try:
        applied = await _prepare(link, dialect, schema.bring_up_to_date, schema.MIGRATE_SECONDS)
        if grant_to is not None:
            await link.run(lambda connection: schema.grant(connection, grant_to, dialect))
    finally:
        await link.close()
    return applied


async def is_migrated(url: str, durability: Durability = "server", dialect: Dialect = "postgres") -> bool:
    """Whether the schema exists and is up to date. Changes nothing; raises as `start` does."""
    link = Link(Dialer(url, durability=durability, dialect=dialect))
    try:
        return await _prepare(link, dialect, schema.up_to_date_or_refused)
    finally:
        await link.close()


async def _prepare(
    link: Link, dialect: Dialect, prepare: Callable[[Connection, Dialect], Awaitable[T]], seconds: float | None = None
) -> T:
    """Connect for the first time, and bring the schema up to date, or ask whether it is. Raises `StartRefused`."""
    try:
        await link.open()
        return await link.run(lambda connection: prepare(connection, dialect), seconds)
    except ServerRefused as refused:
        if refused.sqlstate == INSUFFICIENT_PRIVILEGE:
            raise StartRefused(f"{refused}: {schema.advice_on(str(refused))}") from refused
        if refused.is_misconfigured:
            raise StartRefused(*refused.args) from refused
        raise
