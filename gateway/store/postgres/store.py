"""The durable store for many gateways: Postgres.

It owns which connections there are and which command uses which. `Store` defines what it promises.

Theory of operation
-------------------
Commands that arrive while a statement is under way form the next one. There are four queues: claims; completions and
acceptances; all other commands; reads.

All but one of the `connections` change operations and raise witnesses. With four, no claim waits for a commit of large
bodies, and no renewal for either; with three, the other commands wait for bodies; with two, all share one. The last
connection raises no witness: it is for reads, news, and what gateways tell each other. Votes about a promotion must go
over such a one (`promotion`), and nothing that takes long may.

Upkeep, delivery, recovery and operators share one more, which is closed while nobody needs it: in a fleet, a gateway
without a turn has none. The comparison of a configuration opens its own. These compare no notes: a start uses them
before it judges what the notes say, and what is found over them is claimed or changed over another one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Self, TypeVar
from uuid import UUID

from gateway.core.delivery import Delivering
from gateway.core.lifecycle import settle
from gateway.core.observation import Finding, Observation
from gateway.core.operation import (
    Accept,
    Applied,
    Audit,
    Claim,
    Command,
    Complete,
    Renew,
    Result,
    SealedRequest,
    Snapshot,
    State,
    operation_id_of,
)
from gateway.core.outbox import NO_EVENTS, Outbox
from gateway.store.base import KNOWN, WORK, NotApplied, StartRefused, StoreError, Unreadable, Watch
from gateway.store.batching import LATER, Batcher, Later
from gateway.store.memory.promotion import Joined, Member
from gateway.store.memory.witness_files import WitnessFiles
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
from gateway.store.postgres import observation, rekeying
from gateway.store.postgres.agreement import Agreements
from gateway.store.postgres.batch import BatchResult, Executor, Results, Unclear, Windows, result_of_read
from gateway.store.postgres.connection import INSUFFICIENT_PRIVILEGE, Connection, Link, ServerRefused
from gateway.store.postgres.delivery import Deliveries
from gateway.store.postgres.dialer import COMMAND_SECONDS, CONNECT_SECONDS, Dialer, Durability, WitnessedLink
from gateway.store.postgres.event import KeptEvents
from gateway.store.postgres.inquiry import Inquiry
from gateway.store.postgres.member import Members
from gateway.store.postgres.news import News
from gateway.store.postgres.rows import DELIVERY_WIDTH, WIDTH, record_of, with_response
from gateway.store.postgres.schema import (
    MIGRATE_SECONDS,
    add_partitions,
    advice_on,
    bring_up_to_date,
    check_role,
    grant,
    raise_level,
    up_to_date_or_refused,
)
from gateway.store.postgres.statements import load
from gateway.store.postgres.upkeep import Upkeep
from gateway.store.rekeying import Kept, Place, Row
from gateway.store.watching import Watchers

T = TypeVar("T")

_LOG = logging.getLogger("gateway")

CONNECTIONS: Final = 3
# After so long without use, the connection for what is slow is closed. Longer than the pauses of upkeep.
_IDLE_SECONDS: Final = 45.0
_BATCH_SIZE_MAX: Final = 256
# A batch of reads may return as many bodies; the statement limits their total size.
_READS_SIZE_MAX: Final = 32
_TRIES: Final = 10
# Tries to attach a partition. Each waits for a lock for a moment, while the rest of the queue waits.
_ATTACH_TRIES: Final = 5

_READ: Final = load("read")
_READ_NARROW: Final = load("read_narrow")
_DELIVERY_END: Final = 1 + WIDTH + DELIVERY_WIDTH


@dataclass(frozen=True, slots=True)
class _Queue:
    """Commands that wait for their statement, and the link that executes it."""

    batcher: Batcher[Command, BatchResult]
    link: WitnessedLink


@dataclass(frozen=True, slots=True)
class _Running:
    """What exists between `start` and `close`."""

    upkeep: Upkeep
    links: list[Link]
    agreements: Agreements
    claims: _Queue
    bodies: _Queue
    others: _Queue
    reads: Batcher[UUID, Snapshot]
    inquiry: Inquiry
    pending: Deliveries
    deliveries: Deliveries
    events: KeptEvents
    fetch: rekeying.Fetch
    members: Members
    news: News

    def queue_of(self, command: Command) -> _Queue:
        match command:
            case Claim():
                return self.claims
            case Complete() | Accept():
                return self.bodies
            case _:
                return self.others

    async def close(self) -> None:
        for batcher in (self.claims.batcher, self.bodies.batcher, self.others.batcher, self.reads):
            await batcher.close()
        await self.news.close()
        await asyncio.gather(*(link.close() for link in self.links))


class PostgresStore:
    """See `Store`."""

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
    ) -> None:
        """`url` as in libpq, optionally with `?pgbouncer=true`. `connections` are 2 to 4 that stay open, besides the
        one for what is slow. `clock_us` replaces the server's clock in tests.

        `witness_files` are open from before `start` until after `close`; without them, only the epoch reveals a loss.
        `outbox` says which events are written. `met` is the identity of the memory that this host saw last: of several
        hosts, none of an earlier timeline is used.
        """
        self._dialer = Dialer(url, connect_seconds, command_seconds, durability, witness_files)
        self._connections = connections
        if met:
            self._dialer.meet(met)
        self._command_seconds = command_seconds
        self._clock_us: Callable[[], int | None] = clock_us or _server_clock
        self._watchers = Watchers()
        self._windows = Windows()
        self._outbox = outbox
        self.partitions_late = 0
        """How often a response had to wait until its partition was made."""
        self._running: _Running | None = None

    @property
    def cold(self) -> Self:
        return self

    async def start(self) -> None:
        if self._running is not None:
            raise RuntimeError("the store was started already")
        dialer = self._dialer
        # Reset here, not in `close`: a claim still under way then must not run in a memory that was not compared.
        dialer.epoch, dialer.seen_token = None, 0
        news = News(self._watchers)
        plain = dialer.link(None if dialer.pgbouncer else lambda connection, _: news.listen(connection))
        members = Members(dialer, plain, self._clock_us, self._windows)
        try:
            await _prepare(plain, bring_up_to_date, MIGRATE_SECONDS)
            await plain.run(check_role)
            dialer.epoch = await members.check_memory()
        except BaseException:
            await plain.close()
            raise
        changing = [WitnessedLink(dialer, place, self._clock_us) for place in range(self._connections - 1)]
        slow = dialer.link(idle_seconds=_IDLE_SECONDS, compares_notes=False)
        fetch_slowly = partial(dialer.fetch, slow)
        self._running = _Running(
            Upkeep(dialer, slow, self._clock_us, self._outbox),
            [*(each.link for each in changing), plain, slow],
            Agreements(dialer, self._clock_us, self._command_seconds, self._windows, self._outbox),
            self._queue(changing[0], Executor.claim),
            self._queue(changing[min(1, len(changing) - 1)], Executor.record),
            self._queue(changing[-1], Executor.change),
            Batcher(partial(self._read_all, plain), size_max=_READS_SIZE_MAX),
            Inquiry(fetch_slowly, self._clock_us),
            # An acceptance waits for it.
            Deliveries(partial(dialer.fetch, plain), self._clock_us),
            Deliveries(fetch_slowly, self._clock_us),
            KeptEvents(fetch_slowly, partial(dialer.transact, slow), self._clock_us),
            fetch_slowly,
            members,
            news,
        )
        if not dialer.pgbouncer:
            news.start(plain)

    async def close(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            await running.close()

    async def apply(self, command: Command) -> Result:
        running = self._started()
        queue = running.queue_of(command)
        for _ in range(_TRIES):
            result: BatchResult = await queue.batcher.submit(command)
            if isinstance(result, Unclear):
                result = result_of_read(await self._read_known(command), command, has_response=True)
                if isinstance(result, Applied):
                    await queue.link.touch()
            if not isinstance(result, Unclear):
                if isinstance(result, Applied):
                    record, dialer = result.snapshot.record, self._dialer
                    if record is not None and record.token > dialer.seen_token:
                        dialer.seen_token = record.token
                    if not isinstance(command, Renew):
                        running.news.announce(operation_id_of(command))
                return result
        # Every try returned, and changed nothing.
        raise Unreadable("the operation changed each time between the statement and the read after it")

    async def _read_known(self, command: Command) -> Snapshot:
        """Read a record that a statement has found. Errors still report that the key is known."""
        try:
            return await self.read(operation_id_of(command))
        except StoreError as error:
            raise Unreadable(f"the key is known, and its record cannot be read: {error}") from error
        except asyncio.CancelledError as cancelled:
            raise asyncio.CancelledError(KNOWN) from cancelled

    async def read(self, operation_id: UUID) -> Snapshot:
        return await self._started().reads.submit(operation_id)

    async def sweep(self, limit: int) -> Swept:
        return await self._started().upkeep.sweep(limit)

    async def tally(self) -> Tally:
        return await self._started().upkeep.tally()

    async def sealed_examples(self, key_id: str) -> list[Kept]:
        return await rekeying.examples(self._started().fetch, key_id)

    async def take_turns(self, holder: UUID, names: Collection[str], lease_us: int) -> frozenset[str]:
        return await self._started().members.take_turns(holder, names, lease_us)

    async def leave_turns(self, holder: UUID) -> None:
        await self._started().members.leave_turns(holder)

    async def compare_configuration(self, serving: Serving, *, is_trial: bool = False) -> Agreement:
        return await self._started().agreements.compare_configuration(serving, is_trial=is_trial)

    async def note_running(self, gateway_id: UUID, *, is_running: bool) -> None:
        await self._started().members.note_running(gateway_id, is_running=is_running)

    async def count_without_route(self, service: str, operations: Collection[str]) -> dict[str, int]:
        return await self._started().agreements.count_without_route(service, operations)

    async def find(self, query: Query) -> list[Snapshot]:
        return await self._started().inquiry.find(query)

    async def recover(self, operation_id: UUID, token: int, lease_us: int, *, is_urgent: bool) -> RecoveryLease | None:
        return await self._started().inquiry.recover(operation_id, token, lease_us, is_urgent=is_urgent)

    async def put_off(self, lease: RecoveryLease, pause_us: int, finding: str) -> None:
        await self._started().inquiry.put_off(lease, pause_us, finding)

    async def recovery(self, operation_id: UUID) -> RecoveryState | None:
        return await self._started().inquiry.recovery(operation_id)

    async def find_due(self, service: str, delivering: Delivering, limit: int) -> Due:
        return await self._started().deliveries.find_due(service, delivering, limit)

    async def read_kept(self, operation_id: UUID) -> SealedRequest | None:
        return await self._started().deliveries.read_kept(operation_id)

    async def count_pending(self, service: str, route: str, scope_digest: bytes, limit: int) -> int:
        return await self._started().pending.count_pending(service, route, scope_digest, limit)

    async def backlog(self, service: str) -> Backlog:
        return await self._started().deliveries.backlog(service)

    async def pause(self, service: str, operation: str, audit: Audit) -> bool:
        return await self._started().deliveries.pause(service, operation, audit)

    async def resume(self, service: str, operation: str, audit: Audit) -> bool:
        return await self._started().deliveries.resume(service, operation, audit)

    async def pause_audits(self, service: str) -> list[PauseAudit]:
        return await self._started().deliveries.pause_audits(service)

    async def lease_events(self, service: str, wanted: Mapping[str, int], lease_us: int) -> list[LeasedEvent]:
        return await self._started().events.lease(service, wanted, lease_us)

    async def report_events(self, service: str, reports: Collection[EventReport]) -> None:
        await self._started().events.report(service, reports)

    async def find_events(
        self, service: str, sink: str, *, is_dead: bool, after: str | None, limit: int
    ) -> list[KeptEvent]:
        return await self._started().events.find(service, sink, after, limit, is_dead=is_dead)

    async def redeliver_event(self, service: str, event_id: str, sink: str | None) -> int:
        return await self._started().events.redeliver(service, event_id, sink)

    async def suspend_sink(self, service: str, sink: str, why: str) -> bool:
        return await self._started().events.suspend(service, sink, why)

    async def resume_sink(self, service: str, sink: str) -> bool:
        return await self._started().events.resume(service, sink)

    async def sinks(self, service: str) -> dict[str, SinkBacklog]:
        return await self._started().events.sinks(service)

    async def latest_audits(self, before: int | None, limit: int) -> list[NumberedAudit]:
        return await self._started().inquiry.latest_audits(before, limit)

    async def audits(self, operation_id: UUID) -> list[AuditEntry]:
        return await self._started().inquiry.audits(operation_id)

    async def sealed_rows(self, place: Place, after: Any, limit: int) -> list[Row]:
        """See `SealedRows`."""
        return await rekeying.page(self._started().fetch, place, after, limit)

    async def reseal(self, changes: Sequence[tuple[Row, Kept]]) -> int:
        """See `SealedRows`."""
        return await rekeying.reseal(self._started().fetch, changes)

    async def observed_before(self, service: str, operation_ids: Collection[UUID]) -> list[Observation]:
        """See `ObservationStore`, also for the next three."""
        return await observation.observed_before(self._started().fetch, service, operation_ids)

    async def observed_contents(
        self, service: str, contents: Collection[bytes], since_us: int
    ) -> list[tuple[bytes, UUID, int]]:
        return await observation.observed_contents(self._started().fetch, service, contents, since_us)

    async def save_observations(
        self, service: str, found: Sequence[tuple[Observation, Finding]], forget_before_us: int
    ) -> None:
        await observation.save(self._started().fetch, service, found, forget_before_us)

    async def count_observed(self, service: str, route: str | None) -> list[ObservedCount]:
        return await observation.count(self._started().fetch, service, route)

    async def check_memory(self, links: Collection[UUID] = ()) -> Epoch:
        epoch = await self._started().members.check_memory(links)
        self._know_memo(epoch.memo)
        return epoch

    async def begin_epoch(self, memo: bytes, beyond_token: int) -> None:
        await self._started().members.begin_epoch(memo, beyond_token)
        self._know_memo(memo)

    async def join(self, gateway_id: UUID, notes: UUID, host: str, boot: str, ended: Collection[UUID]) -> Joined:
        """See `Fleet`, also for the next four."""
        return await self._started().members.join(gateway_id, notes, host, boot, ended)

    async def beat(self, gateway_id: UUID, silent: Collection[tuple[UUID, int]]) -> tuple[bool, list[Member]]:
        return await self._started().members.beat(gateway_id, silent)

    async def members(self) -> list[Member]:
        return await self._started().members.members()

    async def vouch(self, identity: str, gateway_id: UUID, boot: str, ended: Collection[UUID]) -> None:
        await self._started().members.vouch(identity, gateway_id, boot, ended)

    async def accept_promotion(self, epoch: Epoch, memo: bytes, *, is_trusted: bool) -> bool:
        is_done = await self._started().members.accept_promotion(epoch, memo, is_trusted=is_trusted)
        if is_done:
            self._dialer.epoch = await self.check_memory()
        return is_done

    def _know_memo(self, memo: bytes) -> None:
        """Remember the memo that this store has read or written; a connection that finds another one is not used."""
        if self._dialer.epoch is not None and self._dialer.epoch.memo != memo:
            self._dialer.epoch = replace(self._dialer.epoch, memo=memo)

    def watch(self, operation_id: UUID) -> AbstractAsyncContextManager[Watch]:
        if self._running is None:
            return self._watchers.watch(operation_id)
        return self._running.news.watch(operation_id)

    def announce_work(self) -> None:
        if self._running is not None:
            self._running.news.announce(WORK)

    async def wait_listening(self) -> None:
        """Return when news of other gateways can arrive. Never returns behind pgbouncer."""
        await self._started().news.wait_listening()

    def _started(self) -> _Running:
        if self._running is None:
            raise NotApplied("the store is not open")
        return self._running

    def _queue(self, link: WitnessedLink, execute: Callable[[Executor, list[Any]], Awaitable[Results]]) -> _Queue:
        async def make_room(replay_us: Sequence[int]) -> None:
            self.partitions_late += 1
            _LOG.warning("a response had to wait until the partition for its day was made")
            for tries_left in reversed(range(_ATTACH_TRIES)):
                try:
                    await link.link.run(lambda connection: add_partitions(connection, replay_us, self._clock_us()))
                except ServerRefused as refused:
                    if not refused.is_locked or not tries_left:
                        raise
                else:
                    return

        executor = Executor(link, make_room, self._clock_us, self._windows, self._outbox)
        # Integers have the same order as the UUIDs, and hash and compare much faster.
        batcher: Batcher[Command, BatchResult] = Batcher(
            partial(execute, executor), key=lambda command: operation_id_of(command).int, size_max=_BATCH_SIZE_MAX
        )
        return _Queue(batcher, link)

    async def _read_all(self, link: Link, operation_ids: list[UUID]) -> list[Snapshot | Exception | Later]:
        # Compare the memory first: a record that another memory lacks would look absent to the caller.
        wanted = list(dict.fromkeys(operation_ids))

        async def read(connection: Connection) -> tuple[Sequence[Any], Sequence[Any]]:
            rows = await connection.fetch(_READ, self._clock_us(), wanted)
            there = {row[1] for row in rows}
            rest = [operation_id for operation_id in wanted if operation_id not in there]
            # Later than the other statement: a record may move in between, but never back.
            return rows, await connection.fetch(_READ_NARROW, rest) if rest else ()

        rows, narrow = await self._dialer.run_compared(link, read)
        now_us = rows[0][0]
        found: dict[UUID, Snapshot | Exception | Later] = {}
        for row in rows:
            if row[-1]:
                found[row[1]] = LATER
                continue
            try:
                record = record_of(row[1 : 1 + WIDTH], row[1 + WIDTH : _DELIVERY_END])
                if record is not None and record.state is State.COMPLETED:
                    record = with_response(record, *row[_DELIVERY_END:-1])
            except Unreadable as error:
                found[row[1]] = error
            else:
                found[row[1]] = Snapshot(settle(record, now_us), now_us)
        for row in narrow:
            try:
                found[row[0]] = Snapshot(settle(record_of(row), now_us), now_us)
            except Unreadable as error:
                found[row[0]] = error
        absent = Snapshot(None, now_us)
        return [found.get(operation_id, absent) for operation_id in operation_ids]


async def migrate(url: str, durability: Durability = "server", *, grant_to: str | None = None) -> list[str]:
    """Bring the schema up to date and return the names of the applied migrations. Raises as `start` does.

    The role `grant_to` gets the rights that a gateway needs.
    """
    link = Dialer(url, durability=durability).link()
    try:
        applied = await _prepare(link, bring_up_to_date, MIGRATE_SECONDS)
        if grant_to is not None:
            await link.run(lambda connection: grant(connection, grant_to))
    finally:
        await link.close()
    return applied


async def finish_upgrade(url: str, durability: Durability = "server") -> bool:
    """Raise the level of the store to this program's; returns whether it was lower. Raises as `start` does, and
    `StartRefused` while gateways of an older program run."""
    link = Dialer(url, durability=durability).link()
    try:
        await _prepare(link, bring_up_to_date, MIGRATE_SECONDS)
        return await link.run(raise_level)
    finally:
        await link.close()


async def is_migrated(url: str, durability: Durability = "server") -> bool:
    """Whether the schema exists and is up to date. Changes nothing; raises as `start` does."""
    link = Dialer(url, durability=durability).link()
    try:
        return await _prepare(link, up_to_date_or_refused)
    finally:
        await link.close()


async def _prepare(link: Link, prepare: Callable[[Connection], Awaitable[T]], seconds: float | None = None) -> T:
    """Connect for the first time, and bring the schema up to date, or ask whether it is. Raises `StartRefused`."""
    try:
        await link.open()
        return await link.run(prepare, seconds)
    except ServerRefused as refused:
        if refused.sqlstate == INSUFFICIENT_PRIVILEGE:
            raise StartRefused(f"{refused}: {advice_on(str(refused))}") from refused
        if refused.is_misconfigured:
            raise StartRefused(*refused.args) from refused
        raise


def _server_clock() -> None:
    """None: the statement uses the server's clock."""
