"""A durable store on Redis alone.

It differs from the contract of `base` in this: a key's record is all that it has. Lanes, events and contents are over
several records, and so are not here (`Unsupported`); tokens increase per operation.

Theory of operation
-------------------
*Executing the table.* A batch of commands is read in one exchange, with the server's time; `lifecycle.step` decides
here; and each change is one call of a script that writes only if the record is as it was read. What lost against
another writer is read again. So the table runs in one place, and the script knows nothing of it.

*Acknowledged* is a batch when the disks and the replicas have it (`promise`), with one wait for all of it. A result
that the wait did not confirm is `Indefinite`. What a read returns may not be on the replicas yet: it may be lost with
the change itself, whose author then was not told either.

*Tokens* are times: the greatest of the server's clock, the operation's last token + 1 and the floor + 1. A record that
goes leaves its token in the floor.

*Memory.* The identity is in Redis itself, and so vanishes with a flush. Each script names it, and the witness of its
link; so a server that was flushed, or that took up older data, writes nothing. A server process that was not there
before is the same memory if it was restarted in its place. Another one may lack what was acknowledged: that is a
promotion (`gateway.store.memory.promotion`), and is judged like one of Postgres.

*News* is published behind each batch, and so of what was acknowledged, or is in doubt. Where it is lost, waiters poll.

*Room.* Everything is in the server's memory, for as long as keys are remembered. Nothing but the table removes a
record: no key has a TTL."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Concatenate, Final, NoReturn, ParamSpec, Self, TypeVar
from uuid import UUID, uuid4

from gateway.core.delivery import Delivering
from gateway.core.lifecycle import settle, step
from gateway.core.observation import Finding, Observation
from gateway.core.operation import (
    Accept,
    Applied,
    Audit,
    Command,
    Erase,
    Purge,
    Result,
    SealedRequest,
    Snapshot,
    State,
    audit_of,
    content_of,
    operation_id_of,
)
from gateway.core.outbox import NO_EVENTS, Outbox
from gateway.store.base import WORK, EpochChanged, Indefinite, NotApplied, StoreError, Watch
from gateway.store.batching import QUEUE_MAX, Batcher
from gateway.store.level import PROGRAM_LEVEL, check
from gateway.store.memory.epoch import WitnessNote, memory_digest, missing
from gateway.store.memory.promotion import Joined, Member
from gateway.store.memory.witness_files import Reading, WitnessFiles
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
from gateway.store.redis import inquiry, layout, members, resealing
from gateway.store.redis.change import Change, Kept, Witnessed, keep_token, lesson, write_record
from gateway.store.redis.client import TRIES_MAX, Client, contended
from gateway.store.redis.connection import RedisCommand, parse
from gateway.store.redis.entry import unpacked
from gateway.store.redis.keys import CHANGES_CHANNEL, PURGES_CHANNEL
from gateway.store.redis.members import new_identity, promoted
from gateway.store.redis.news import News
from gateway.store.redis.primary import Primary
from gateway.store.redis.upkeep import Upkeep
from gateway.store.rekeying import Kept as KeptRow
from gateway.store.rekeying import Place, Row

P = ParamSpec("P")
T = TypeVar("T")

# All of a batch, with the bodies, is in one exchange.
_BATCH_SIZE_MAX: Final = 64
# The place of the store's only link in the witness files.
_PLACE: Final = 0
_DELIVERIES: Final = "lists of requests to be delivered"
_EVENTS: Final = "events for sinks"
# The only member of the tokens.
_LAST: Final = "last"


@dataclass(frozen=True, slots=True)
class _Running:
    """What exists between `start` and `close`."""

    commands: Batcher[Command, Result]
    reads: Batcher[UUID, Snapshot]
    looking: asyncio.Task[None]


class Unsupported(NotApplied):
    """Redis alone does not keep this: the configuration that needs it is refused."""


def _unsupported(what: str) -> NoReturn:
    raise Unsupported(f"Redis alone keeps no {what}: use PostgreSQL or SQLite")


class RedisStore:
    """The `ManagedStore`, `Fleet`, `SealedRows` and `ObservationStore` at the master that the client's primary
    finds."""

    def __init__(
        self,
        client: Client,
        news: News,
        *,
        witness_files: WitnessFiles | None = None,
        outbox: Outbox = NO_EVENTS,
    ) -> None:
        """`witness_files` are open from before `start` until after `close`. `outbox` must be one without sinks."""
        self._client = client

        self._primary = client.primary
        self._files = witness_files
        self._outbox = outbox
        self._news = news
        self._link = uuid4()
        # The witness's number that was used last, and the one that was acknowledged last.
        self._number = self._acknowledged = 0
        # What was compared: on which opening of the link.
        self._compared = 0
        self._reading = Reading()
        self._memory = b""
        self._lost = ""
        self._upkeep = Upkeep(client)
        self._running: _Running | None = None

    @property
    def witness_files(self) -> WitnessFiles | None:
        """Where it notes what it acknowledged."""
        return self._files

    @property
    def may_fail_over(self) -> bool:
        """Whether a replica may be promoted that has all that was acknowledged."""
        return self._primary.replicas > 0

    @property
    def cold(self) -> Self:
        return self

    async def start(self) -> None:
        if self._running is not None:
            return
        if self._outbox.subscriptions:
            _unsupported(_EVENTS)
        self._link, self._number, self._acknowledged = uuid4(), 0, 0
        self._compared, self._lost = 0, ""
        self._upkeep = Upkeep(self._client)
        await self._primary.start()
        try:
            await self._meet()
        except BaseException:
            await self._primary.close()
            raise
        self._running = _Running(
            Batcher(self._apply, key=operation_id_of, size_max=_BATCH_SIZE_MAX, queue_max=QUEUE_MAX),
            Batcher(self._read, size_max=_BATCH_SIZE_MAX, queue_max=QUEUE_MAX),
            asyncio.create_task(self._primary.look()),
        )
        self._news.start()

    async def has_begun(self) -> bool:
        """Whether there is a memory, which otherwise the first start begins. Raises as `start`."""
        await self._primary.start()
        try:
            return await self._identity() != ""
        finally:
            await self._primary.close()

    async def _identity(self) -> str:
        (held,), _ = await self._client.read([("HGET", layout.MEMORY, "identity")], "changes")
        return held.decode() if held else ""

    async def _meet(self) -> None:
        """Find the memory, or begin one; note a restart in place. Raises `StartRefused`, `NotApplied`, `Indefinite`."""
        client = self._client

        async def attempt() -> Change | None:
            (held,), _ = await client.read([("HMGET", layout.MEMORY, "identity", "run", "place", "level")], "changes")
            identity, run, place, level = (each.decode() if each else "" for each in held)
            if identity:
                check(int(level))
            server, change = self._primary.server, Change()
            client.identity = identity
            if not identity:
                change.then("HSETNX", layout.MEMORY, "identity", new_identity())
                change.then("HSETNX", layout.MEMORY, "run", server.run_id)
                change.then("HSETNX", layout.MEMORY, "place", self._primary.place)
                change.then("HSETNX", layout.MEMORY, "level", PROGRAM_LEVEL)
                return change
            if run == server.run_id or not _is_same_server(place, self._primary):
                return None
            change.free()
            change.then("HSET", layout.MEMORY, "run", server.run_id)
            return change

        # A restart that is noted, and then lost, is noted again.
        await client.change(attempt, keeps=not await self._identity())
        if not client.identity:
            await client.change(attempt)

    async def close(self) -> None:
        running, self._running = self._running, None
        if running is None:
            return
        running.looking.cancel()
        await asyncio.gather(running.looking, return_exceptions=True)
        await running.commands.close()
        await running.reads.close()
        await self._news.close()
        await self._primary.close()

    async def apply(self, command: Command) -> Result:
        if content_of(command) is not None:
            _unsupported("contents of requests (repeats: refuse)")
        if isinstance(command, Accept) and command.lane is not None:
            _unsupported("lanes")
        return await self._started().commands.submit(command)

    async def read(self, operation_id: UUID) -> Snapshot:
        return await self._started().reads.submit(operation_id)

    async def _read(self, operation_ids: list[UUID]) -> Sequence[Snapshot | Exception]:
        with self._noticing():
            kept, _, now_us = await self._client.kept(operation_ids, "reads")
        return [each if isinstance(each, Exception) else Snapshot(settle(each.record, now_us), now_us) for each in kept]

    # -- commands -----------------------------------------------------------------------------------------------------

    async def _apply(self, commands: list[Command]) -> Sequence[Result | Exception]:
        with self._noticing():
            results: list[Result | Exception] = [contended()] * len(commands)
            left = list(range(len(commands)))
            for tries in range(TRIES_MAX):
                try:
                    left = await self._apply_some(commands, left, results)
                except StoreError as error:
                    if not tries:
                        raise
                    # Others of the batch took effect before.
                    for place in left:
                        results[place] = type(error)(*error.args)
                    left = []
                if not left:
                    break
            for each in results:
                if isinstance(each, EpochChanged):
                    self._lost = str(each)
        for command, result in zip(commands, results, strict=True):
            if isinstance(result, Applied):
                self._news.wake(operation_id_of(command))
        return results

    async def _apply_some(
        self, commands: Sequence[Command], wanted: Sequence[int], results: list[Result | Exception]
    ) -> list[int]:
        """Execute these of the commands once; returns those that lost against others. Raises where none of them took
        effect."""
        # Before anything is read: what is compared must not be newer than what is written.
        await self._compare()
        kept, floor, now_us = await self._client.kept([operation_id_of(commands[each]) for each in wanted], "changes")
        # After the records: an audit of the same operation that was written before them is seen.
        is_audited = any(audit_of(commands[each]) is not None for each in wanted)
        audited = await inquiry.last_audit(self._client) if is_audited else 0
        calls: dict[int, RedisCommand] = {}
        news: list[RedisCommand] = []
        first = max(self._number + 1, now_us)
        for place, each in zip(wanted, kept, strict=True):
            if isinstance(each, StoreError):
                results[place] = each
                continue
            result, change = self._step(commands[place], each, floor, audited, now_us)
            results[place] = result
            if change is not None:
                witness = Witnessed(self._link, self._acknowledged, first + len(calls))
                calls[place] = change.call(self._client.identity, None if self._files is None else witness)
                news += _news(commands[place], result.snapshot.state)
        self._number, left = first + len(calls), list[int]()
        for place, outcome in zip(calls, await self._write(list(calls.values()), news, first, now_us), strict=True):
            if isinstance(outcome, StoreError):
                results[place] = outcome
            elif not outcome:
                results[place] = contended()
                left.append(place)
        return left

    async def _write(
        self, calls: list[RedisCommand], news: list[RedisCommand], first: int, now_us: int
    ) -> list[bool | StoreError]:
        """What became of these calls, whose witness has numbers from `first` on. Raises where nothing was sent."""
        if not calls:
            return []
        try:
            done = await self._client.write(calls, news=news)
        except Indefinite as error:
            return [Indefinite(*error.args) for _ in calls]
        if highest := max((at for at, outcome in enumerate(done, 1) if outcome is True), default=0):
            self._acknowledge(first + highest - 1, now_us)
        return done

    def _step(
        self, command: Command, kept: Kept, floor: int, audited: int, now_us: int
    ) -> tuple[Result, Change | None]:
        """Execute the command on the record that was read: its result once the change is made. `audited` is the number
        of the last audit."""
        settled = settle(kept.record, now_us)
        change = kept.change()

        def draw() -> int:
            change.floor = floor
            before = 0 if kept.record is None else kept.record.token
            token = self._client.draw(max(now_us, before + 1, floor + 1))
            change.then("ZADD", layout.TOKENS, "GT", token, _LAST)
            return token

        result, record = step(settled, command, now_us, draw)
        if not isinstance(result, Applied):
            return result, None
        if record is not kept.record:
            keep_token(change, kept, record, floor, now_us)
            write_record(change, kept, record, command.kept if isinstance(command, Accept) else None)
            if isinstance(command, Purge | Erase):
                change.then("HSET", layout.MEMORY, "generation", uuid4().hex)
        # A repeated command leaves the settled record as it is, and so writes no second audit.
        audit = audit_of(command)
        if record is not settled and settled is not None and audit is not None:
            number = self._client.draw(max(now_us, audited + 1))
            inquiry.write_audit(change, command, audit, settled.token, number, now_us)
        return result, change

    # -- memory -------------------------------------------------------------------------------------------------------

    async def _compare(self) -> None:
        """Compare what is noted with what Redis has, on each new link. Raises `EpochChanged`."""
        await self._primary.link("changes")
        if self._files is None or self._compared == self._primary.opened:
            return
        opened, beyond = self._primary.opened, self._files.beyond
        reading = await asyncio.to_thread(self._files.read)
        epoch = await self._check_memory([note.link for note in reading.notes], "changes")
        if epoch.parent:
            raise EpochChanged("another Redis was promoted")
        if (why := missing(reading.notes, epoch, beyond)) is not None:
            raise EpochChanged(why)
        self._memory, self._reading, self._compared = memory_digest(epoch.identity), reading, opened

    def _acknowledge(self, number: int, now_us: int) -> None:
        """Note the number of the last change that was acknowledged, before anybody hears of it."""
        if self._files is not None:
            self._acknowledged = number
            self._files.write(_PLACE, WitnessNote(self._link, number, now_us, self._files.beyond, self._memory))
            self._files.cover(self._reading)

    async def check_memory(self, links: Collection[UUID] = ()) -> Epoch:
        self._started()
        with self._noticing():
            return await self._check_memory(links, "reads")

    async def _check_memory(self, links: Collection[UUID], link: str) -> Epoch:
        wanted = list(links)
        scores: list[RedisCommand] = [("ZSCORE", layout.WITNESSES, each.bytes) for each in wanted]
        fields = ("identity", "run", "place", "memo", "generation", "level")
        (held, token, *numbers), now_us = await self._client.read(
            [("HMGET", layout.MEMORY, *fields), ("ZSCORE", layout.TOKENS, _LAST), *scores], link
        )
        identity, run, place, generation = (each.decode() if each else "" for each in (*held[:3], held[4]))
        if identity != self._client.identity:
            raise EpochChanged("the memory of Redis is another one than before: it was flushed, or replaced")
        parent = ""
        if run != self._primary.server.run_id and not _is_same_server(place, self._primary):
            identity, parent = promoted(identity), identity
        witnesses = {each: int(number) for each, number in zip(wanted, numbers, strict=True) if number is not None}
        memo, level = held[3] or b"", int(held[5])
        return Epoch(identity, int(token or 0), now_us, memo, generation, witnesses, parent, level=level)

    async def begin_epoch(self, memo: bytes, beyond_token: int) -> None:
        """It also accepts the server as it is."""
        client = self._client
        self._started()

        async def attempt() -> Change | None:
            epoch = await self._check_memory((), "changes")
            (held,), _ = await client.read([("HGET", layout.MEMORY, "floor")], "changes")
            change = Change(floor=int(held or 0))
            run = (self._primary.server.run_id, self._primary.place)
            change.then("HSET", layout.MEMORY, "memo", memo, "identity", epoch.identity, "run", run[0], "place", run[1])
            change.then("HSET", layout.MEMORY, "floor", max(int(held or 0), beyond_token))
            change.then("ZADD", layout.TOKENS, "GT", beyond_token, _LAST)
            return change

        with self._noticing():
            await client.change(attempt)
            client.identity = await self._identity()

    @contextmanager
    def _noticing(self) -> Iterator[None]:
        """Once another memory was found, it stays so until the store is started again."""
        if self._lost:
            raise EpochChanged(self._lost)
        try:
            yield
        except EpochChanged as error:
            self._lost = str(error)
            raise

    def _started(self) -> _Running:
        if self._running is None:
            raise NotApplied("the store is not open")
        return self._running

    async def sweep(self, limit: int) -> Swept:
        self._started()
        with self._noticing():
            swept, operation_ids = await self._upkeep.sweep(limit)
        for operation_id in operation_ids:
            self._news.wake(operation_id)
        return swept

    # -- what recovery, operators and starting gateways call ----------------------------------------------------------

    async def tally(self) -> Tally:
        return await self._asked(inquiry.tally)

    async def sealed_examples(self, key_id: str) -> list[KeptRow]:
        return await self._asked(resealing.examples, key_id)

    async def compare_configuration(self, serving: Serving, *, is_trial: bool = False) -> Agreement:
        return await self._asked(members.agree, serving, is_trial=is_trial)

    async def take_turns(self, holder: UUID, names: Collection[str], lease_us: int) -> frozenset[str]:
        return await self._asked(members.take_turns, holder, names, lease_us)

    async def leave_turns(self, holder: UUID) -> None:
        await self._asked(members.leave_turns, holder)

    async def raise_level(self) -> bool:
        """Raise the level to this program's; returns whether it was lower. Raises `StartRefused` while gateways of an
        older program run."""
        return await self._asked(members.raise_level)

    async def note_running(self, gateway_id: UUID, *, is_running: bool) -> None:
        await self._asked(members.note_running, gateway_id, is_running=is_running)

    async def count_without_route(self, service: str, operations: Collection[str]) -> dict[str, int]:
        names = await self._asked(members.names_left, service, operations)
        counted = await self._asked(inquiry.count_living, names)
        return {operation: living.keys for (_, operation), living in counted.items() if living.keys}

    async def find(self, query: Query) -> list[Snapshot]:
        return await self._asked(inquiry.find, query)

    async def recover(self, operation_id: UUID, token: int, lease_us: int, *, is_urgent: bool) -> RecoveryLease | None:
        return await self._asked(inquiry.recover, operation_id, token, lease_us, is_urgent=is_urgent)

    async def put_off(self, lease: RecoveryLease, pause_us: int, finding: str) -> None:
        await self._asked(inquiry.put_off, lease, pause_us, finding)

    async def recovery(self, operation_id: UUID) -> RecoveryState | None:
        return await self._asked(inquiry.recovery, operation_id)

    async def audits(self, operation_id: UUID) -> list[AuditEntry]:
        return await self._asked(inquiry.audits, operation_id)

    async def latest_audits(self, before: int | None, limit: int) -> list[NumberedAudit]:
        return await self._asked(inquiry.latest_audits, before, limit)

    async def read_kept(self, operation_id: UUID) -> SealedRequest | None:
        (value,), _ = await self._asked(Client.read, [("GET", layout.request_key(operation_id))])
        if value is None:
            return None
        acceptance_id, key_id, sealed = unpacked(value)
        return SealedRequest(UUID(bytes=acceptance_id), key_id, sealed)

    async def sealed_rows(self, place: Place, after: Any, limit: int) -> list[Row]:
        """See `SealedRows`, also for the next one."""
        return await self._asked(resealing.page, place, after, limit)

    async def reseal(self, changes: Sequence[tuple[Row, KeptRow]]) -> int:
        return await self._asked(resealing.reseal, changes)

    async def join(self, gateway_id: UUID, notes: UUID, host: str, boot: str, ended: Collection[UUID]) -> Joined:
        """See `Fleet`, also for the next four."""
        return await self._asked(members.join, gateway_id, notes, host, boot, ended)

    async def beat(self, gateway_id: UUID, silent: Collection[tuple[UUID, int]]) -> tuple[bool, list[Member]]:
        return await self._asked(members.beat, gateway_id, silent)

    async def members(self) -> list[Member]:
        return await self._asked(members.members)

    async def vouch(self, identity: str, gateway_id: UUID, boot: str, ended: Collection[UUID]) -> None:
        await self._asked(members.vouch, identity, gateway_id, boot, ended)

    async def accept_promotion(self, epoch: Epoch, memo: bytes, *, is_trusted: bool) -> bool:
        return await self._asked(members.accept_promotion, epoch, memo, is_trusted=is_trusted)

    def watch(self, operation_id: UUID) -> AbstractAsyncContextManager[Watch]:
        return self._news.watch(operation_id)

    def on_purge(self, listener: Callable[[UUID], None]) -> None:
        """Call `listener` with each operation that a gateway purged, as far as the news arrives."""
        self._news.on_purge(listener)

    def announce_work(self) -> None:
        self._news.wake(WORK)

    async def _asked(
        self, ask: Callable[Concatenate[Client, P], Awaitable[T]], *arguments: P.args, **named: P.kwargs
    ) -> T:
        self._started()
        with self._noticing():
            return await ask(self._client, *arguments, **named)

    # -- what is over several records ---------------------------------------------------------------------------------

    async def find_due(self, service: str, delivering: Delivering, limit: int) -> Due:
        _unsupported(_DELIVERIES)

    async def count_pending(self, service: str, route: str, scope_digest: bytes, limit: int) -> int:
        _unsupported(_DELIVERIES)

    async def backlog(self, service: str) -> Backlog:
        _unsupported(_DELIVERIES)

    async def pause(self, service: str, operation: str, audit: Audit) -> bool:
        _unsupported(_DELIVERIES)

    async def resume(self, service: str, operation: str, audit: Audit) -> bool:
        _unsupported(_DELIVERIES)

    async def pause_audits(self, service: str) -> list[PauseAudit]:
        self._started()
        return []

    async def lease_events(self, service: str, wanted: Mapping[str, int], lease_us: int) -> list[LeasedEvent]:
        _unsupported(_EVENTS)

    async def report_events(self, service: str, reports: Collection[EventReport]) -> None:
        _unsupported(_EVENTS)

    async def find_events(
        self, service: str, sink: str, *, is_dead: bool, after: str | None, limit: int
    ) -> list[KeptEvent]:
        _unsupported(_EVENTS)

    async def redeliver_event(self, service: str, event_id: str, sink: str | None) -> int:
        _unsupported(_EVENTS)

    async def suspend_sink(self, service: str, sink: str, why: str) -> bool:
        _unsupported(_EVENTS)

    async def resume_sink(self, service: str, sink: str) -> bool:
        _unsupported(_EVENTS)

    async def sinks(self, service: str) -> dict[str, SinkBacklog]:
        self._started()
        return {}

    async def observed_before(self, service: str, operation_ids: Collection[UUID]) -> list[Observation]:
        """See `ObservationStore`, also for the next three."""
        _unsupported("observations")

    async def observed_contents(
        self, service: str, contents: Collection[bytes], since_us: int
    ) -> list[tuple[bytes, UUID, int]]:
        _unsupported("observations")

    async def save_observations(
        self, service: str, found: Sequence[tuple[Observation, Finding]], forget_before_us: int
    ) -> None:
        _unsupported("observations")

    async def count_observed(self, service: str, route: str | None) -> list[ObservedCount]:
        self._started()
        return []


def redis_store(
    url: str,
    *,
    replicas: int | None = None,
    clock_us: Callable[[], int] | None = None,
    witness_files: WitnessFiles | None = None,
    outbox: Outbox = NO_EVENTS,
) -> RedisStore:
    """The store at this URL. `replicas` is how many may be promoted; `clock_us` takes the place of the server's clock.
    Raises ValueError when the URL is none of Redis's."""
    primary = Primary(parse(url), replicas, lesson())
    news = News(primary.news_link, _channel_of)
    return RedisStore(Client(primary, clock_us), news, witness_files=witness_files, outbox=outbox)


def _channel_of(operation_id: UUID) -> str:
    return f"{CHANGES_CHANNEL}{operation_id.hex}"


def _news(command: Command, state: State) -> list[RedisCommand]:
    """What other gateways are told of a command, after which the operation is in this state. Nobody waits for a claim,
    or for its renewal."""
    operation_id = operation_id_of(command)
    if isinstance(command, Purge | Erase):
        return [("PUBLISH", PURGES_CHANNEL, operation_id.hex)]
    return [] if state is State.CLAIMED else [("PUBLISH", _channel_of(operation_id), b"")]


def _is_same_server(place: str, primary: Primary) -> bool:
    """Whether a server process at this place is the one that was there before, restarted."""
    return place == primary.place and not primary.server.has_history
