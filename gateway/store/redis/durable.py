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
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, Self
from uuid import UUID, uuid4

from gateway.core.lifecycle import settle, step
from gateway.core.operation import (
    Accept,
    Applied,
    Command,
    Erase,
    Purge,
    Result,
    Snapshot,
    State,
    audit_of,
    content_of,
    operation_id_of,
)
from gateway.core.outbox import NO_EVENTS, Outbox
from gateway.store.agreement import PROGRAM_LEVEL, check_level
from gateway.store.base import WORK, Indefinite, NotApplied, StoreError, end_tasks
from gateway.store.batching import Batcher
from gateway.store.memory.epoch import Reading, WitnessFiles, WitnessNote, memory_digest, missing
from gateway.store.operations import Epoch
from gateway.store.redis import layout
from gateway.store.redis.connection import RedisCommand, parse
from gateway.store.redis.inquiry import TRIES_MAX, Inquiry, contended, write_audit
from gateway.store.redis.layout import CHANGES_CHANNEL, PURGES_CHANNEL, Change, Kept, lesson
from gateway.store.redis.members import Members, new_identity, promoted
from gateway.store.redis.news import News
from gateway.store.redis.primary import ANOTHER_MEMORY, Primary

# All of a batch, with the bodies, is in one exchange.
_BATCH_SIZE_MAX: Final = 64
# The place of the store's only link in the witness files.
_PLACE: Final = 0
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


def _refusing(what: str) -> Callable[..., Coroutine[Any, Any, Any]]:
    """A verb that is about this."""

    async def refused(*_: Any, **__: Any) -> NoReturn:
        _unsupported(what)

    return refused


def _empty(kind: Callable[[], Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """A verb that finds nothing."""

    async def found(store: Inquiry, *_: Any) -> Any:
        store.primary.require_open()
        return kind()

    return found


class RedisStore(Members):
    """The `ManagedStore`, `Fleet`, `SealedRows` and `ObservationStore`."""

    # What is over several records.
    find_due = count_pending = backlog = pause = resume = _refusing("lists of requests to be delivered")
    lease_events = report_events = find_events = _refusing("events for sinks")
    redeliver_event = suspend_sink = resume_sink = _refusing("events for sinks")
    observed_before = observed_contents = save_observations = _refusing("observations")
    pause_audits = count_observed = _empty(list)
    sinks = _empty(dict)

    def __init__(
        self,
        url: str,
        *,
        replicas: int | None = None,
        clock_us: Callable[[], int] | None = None,
        witness_files: WitnessFiles | None = None,
        outbox: Outbox = NO_EVENTS,
    ) -> None:
        """`replicas` is how many may be promoted. `clock_us` takes the place of the server's clock. `witness_files` are
        open from before `start` until after `close`. `outbox` must be one without sinks. Raises ValueError when the URL
        is none of Redis's."""
        primary = Primary(parse(url), replicas, lesson())
        super().__init__(primary, clock_us)
        self._files = witness_files
        self._outbox = outbox
        self._news = News(primary.news_link, _channel_of)
        self.watch, self.on_purge = self._news.watch, self._news.on_purge
        self._link = uuid4()
        # The witness's number that was used last, and the one that was acknowledged last.
        self._number = self._acknowledged = 0
        # What was compared: on which opening of the link.
        self._compared = 0
        self._reading = Reading()
        self._memory = b""
        self._withheld = set()
        self._running: _Running | None = None

    @property
    def may_fail_over(self) -> bool:
        """Whether a replica may be promoted that has all that was acknowledged."""
        return self.primary.replicas > 0

    @property
    def cold(self) -> Self:
        return self

    async def start(self) -> None:
        if self._running is not None:
            return
        if self._outbox.subscriptions:
            _unsupported("events for sinks")
        self._link, self._number, self._acknowledged, self._compared = uuid4(), 0, 0, 0
        self._withheld = set()
        await self.primary.start()
        try:
            await self._meet()
        except BaseException:
            self.primary.close()
            raise
        self._running = _Running(
            Batcher(self._apply, key=operation_id_of, size_max=_BATCH_SIZE_MAX),
            Batcher(self._read_all, size_max=_BATCH_SIZE_MAX),
            asyncio.create_task(self.primary.look()),
        )
        self._news.start()

    async def has_begun(self) -> bool:
        """Whether there is a memory, which otherwise the first start begins. Raises as `start`."""
        await self.primary.start()
        try:
            return await self._identity_kept() != ""
        finally:
            self.primary.close()

    async def close(self) -> None:
        running, self._running = self._running, None
        if running is None:
            return
        await end_tasks((running.looking,))
        await running.commands.close()
        await running.reads.close()
        await self._news.close()
        self.primary.close()

    async def apply(self, command: Command) -> Result:
        if content_of(command) is not None:
            _unsupported("contents of requests (repeats: refuse)")
        if isinstance(command, Accept) and command.lane is not None:
            _unsupported("lanes")
        return await self._started().commands.submit(command)

    async def read(self, operation_id: UUID) -> Snapshot:
        return await self._started().reads.submit(operation_id)

    def announce_work(self) -> None:
        self._news.wake(WORK)

    def _started(self) -> _Running:
        if self._running is None:
            raise NotApplied("the store is not open")
        return self._running

    # -- commands -----------------------------------------------------------------------------------------------------

    async def _read_all(self, operation_ids: list[UUID]) -> Sequence[Snapshot | Exception]:
        kept, _, now_us = await self._kept(operation_ids, "reads")
        return [each if isinstance(each, Exception) else Snapshot(settle(each.record, now_us), now_us) for each in kept]

    async def _apply(self, commands: list[Command]) -> Sequence[Result | Exception]:
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
        kept, floor, now_us = await self._kept([operation_id_of(commands[each]) for each in wanted], "changes")
        # After the records: an audit of the same operation that was written before them is seen.
        is_audited = any(audit_of(commands[each]) is not None for each in wanted)
        audited = await self._last_audit() if is_audited else 0
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
                witness = () if self._files is None else ((self._link.bytes, self._acknowledged, first + len(calls)),)
                calls[place] = change.call(self._identity, *witness)
                news += _news(commands[place], result.snapshot.state)
        self._number, left = first + len(calls), list[int]()
        for place, outcome in zip(calls, await self._done(list(calls.values()), news, first, now_us), strict=True):
            if isinstance(outcome, StoreError):
                results[place] = outcome
            elif not outcome:
                results[place] = contended()
                left.append(place)
        return left

    async def _done(
        self, calls: list[RedisCommand], news: list[RedisCommand], first: int, now_us: int
    ) -> list[bool | StoreError]:
        """What became of these calls, whose witness has numbers from `first` on. Raises where nothing was sent."""
        if not calls:
            return []
        try:
            done = await self.primary.write(calls, news=news)
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
            token = self._draw(max(now_us, before + 1, floor + 1))
            change.then("ZADD", layout.TOKENS, "GT", token, _LAST)
            return token

        result, record = step(settled, command, now_us, draw)
        if not isinstance(result, Applied):
            return result, None
        if record is not kept.record:
            kept.replace(change, record, floor, now_us, command.kept if isinstance(command, Accept) else None)
            if isinstance(command, Purge | Erase):
                change.then("HSET", layout.MEMORY, "generation", uuid4().hex)
        # A repeated command leaves the settled record as it is, and so writes no second audit.
        audit = audit_of(command)
        if record is not settled and settled is not None and audit is not None:
            number = self._draw(max(now_us, audited + 1))
            write_audit(change, command, audit, settled.token, number, now_us)
        return result, change

    # -- memory -------------------------------------------------------------------------------------------------------

    async def _compare(self) -> None:
        """Compare what is noted with what Redis has, on each new link. Raises `EpochChanged`."""
        await self.primary.link("changes")
        if self._files is None or self._compared == self.primary.opened:
            return
        opened, beyond = self.primary.opened, self._files.beyond
        reading = await asyncio.to_thread(self._files.read)
        epoch = await self.check_memory([note.link for note in reading.notes], "changes")
        if epoch.parent:
            raise self.primary.lose("another Redis was promoted")
        if (why := missing(reading.notes, epoch, beyond)) is not None:
            raise self.primary.lose(why)
        self._memory, self._reading, self._compared = memory_digest(epoch.identity), reading, opened

    def _acknowledge(self, number: int, now_us: int) -> None:
        """Note the number of the last change that was acknowledged, before anybody hears of it."""
        if self._files is not None:
            self._acknowledged = number
            self._files.write(_PLACE, WitnessNote(self._link, number, now_us, self._files.beyond, self._memory))
            self._files.cover(self._reading)

    async def check_memory(self, links: Collection[UUID] = (), link: str = "reads") -> Epoch:
        wanted = list(links)
        scores: list[RedisCommand] = [("ZSCORE", layout.WITNESSES, each.bytes) for each in wanted]
        fields = ("identity", "run", "place", "memo", "generation", "level")
        (held, token, *numbers), now_us = await self._read(
            [("HMGET", layout.MEMORY, *fields), ("ZSCORE", layout.TOKENS, _LAST), *scores], link
        )
        identity, run, place, generation = (each.decode() if each else "" for each in (*held[:3], held[4]))
        if identity != self._identity:
            raise self.primary.lose(ANOTHER_MEMORY)
        parent = ""
        if run != self.primary.server.run_id and not _is_same_server(place, self.primary):
            identity, parent = promoted(identity), identity
        witnesses = {each: int(number) for each, number in zip(wanted, numbers, strict=True) if number is not None}
        memo, level = held[3] or b"", int(held[5])
        return Epoch(identity, int(token or 0), now_us, memo, generation, witnesses, parent, level=level)

    async def begin_epoch(self, memo: bytes, beyond_token: int) -> None:
        """It also accepts the server as it is."""

        async def attempt() -> tuple[str, Change]:
            epoch = await self.check_memory((), "changes")
            (held,), _ = await self._read([("HGET", layout.MEMORY, "floor")], "changes")
            floor = int(held or 0)
            change = Change(floor=floor)
            run = ("run", self.primary.server.run_id, "place", self.primary.place)
            change.then("HSET", layout.MEMORY, "identity", epoch.identity, "memo", memo, *run)
            change.then("HSET", layout.MEMORY, "floor", max(floor, beyond_token))
            change.then("ZADD", layout.TOKENS, "GT", beyond_token, _LAST)
            return epoch.identity, change

        self._identity = await self._change(attempt)

    async def _identity_kept(self) -> str:
        (held,), _ = await self._read([("HGET", layout.MEMORY, "identity")], "changes")
        return held.decode() if held else ""

    async def _meet(self) -> None:
        """Find the memory, or begin one; note a restart in place. Raises `StartRefused`, `NotApplied`, `Indefinite`."""
        primary = self.primary

        async def attempt() -> tuple[None, Change | None]:
            fields = ("identity", "run", "place", "level")
            (held,), _ = await self._read([("HMGET", layout.MEMORY, *fields)], "changes")
            self._identity, run, place, level = (each.decode() if each else "" for each in held)
            change = Change()
            if not self._identity:
                new = {"identity": new_identity(), "run": primary.server.run_id, "place": primary.place}
                for field, value in (new | {"level": PROGRAM_LEVEL}).items():
                    change.then("HSETNX", layout.MEMORY, field, value)
                return None, change
            check_level(int(level))
            if run == primary.server.run_id or not _is_same_server(place, primary):
                return None, None
            change.free()
            change.then("HSET", layout.MEMORY, "run", primary.server.run_id)
            return None, change

        # A restart that is noted, and then lost, is noted again.
        await self._change(attempt, keeps=not await self._identity_kept())
        if not self._identity:
            await self._change(attempt)


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
