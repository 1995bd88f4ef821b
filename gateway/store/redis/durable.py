"""A durable store on Redis alone.

It differs from the contract of `base` in this: a key's record is all that it has. Lanes, events and contents are over
several records, and so are not here (`Unsupported`); tokens increase per operation.

Theory of operation
-------------------
*Executing the table.* A batch of commands is read in one exchange, with the server's time; `lifecycle.step` decides
here; and each change is one call of a script that writes only if the record is as it was read. What lost against
another writer is read again. So the table runs in one place, and the script knows nothing of it.

*Acknowledged* is a batch when the disks and the replicas have it (`primary`), with one wait for all of it. A result
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
from collections.abc import Callable, Coroutine, Sequence
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
from gateway.store.base import WORK, Indefinite, NotApplied, StoreError, end_tasks
from gateway.store.batching import Batcher
from gateway.store.memory.epoch import Reading, WitnessFiles, WitnessNote, memory_digest, missing
from gateway.store.redis import layout
from gateway.store.redis.connection import RedisCommand, parse
from gateway.store.redis.inquiry import TRIES_MAX, Inquiry, contended, write_audit
from gateway.store.redis.layout import CHANGES_CHANNEL, PURGES_CHANNEL, Change, Kept, lesson
from gateway.store.redis.members import LAST, Members
from gateway.store.redis.news import News
from gateway.store.redis.primary import Primary

# All of a batch, with the bodies, is in one exchange.
_BATCH_SIZE_MAX: Final = 64
# The place of the store's only link in the witness files.
_PLACE: Final = 0


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
        self._commands: Batcher[Command, Result] | None = None
        self._reads: Batcher[UUID, Snapshot] | None = None
        self._looking: asyncio.Task[None] | None = None

    @property
    def may_fail_over(self) -> bool:
        """Whether a replica may be promoted that has all that was acknowledged."""
        return self.primary.replicas > 0

    @property
    def cold(self) -> Self:
        return self

    async def start(self) -> None:
        if self._commands is not None:
            return
        if self._outbox.subscriptions:
            _unsupported("events for sinks")
        self._link = uuid4()
        # The witness's number that was used last, and the one that was acknowledged last.
        self._number = self._acknowledged = 0
        # What was compared, and on which opening of the link.
        self._compared, self._reading, self._memory = 0, Reading(), b""
        self._withheld.clear()
        await self.primary.start()
        try:
            await self._meet()
        except BaseException:
            self.primary.close()
            raise
        self._commands = Batcher(self._apply, key=operation_id_of, size_max=_BATCH_SIZE_MAX)
        self._reads = Batcher(self._read_all, size_max=_BATCH_SIZE_MAX)
        self._looking = asyncio.create_task(self.primary.look())
        self._news.start()

    async def has_begun(self) -> bool:
        """Whether there is a memory, which otherwise the first start begins. Raises as `start`."""
        await self.primary.start()
        try:
            return await self.identity_kept() != ""
        finally:
            self.primary.close()

    async def close(self) -> None:
        batchers, self._commands, self._reads = (self._commands, self._reads), None, None
        await end_tasks((self._looking,))
        for batcher in batchers:
            if batcher is not None:
                await batcher.close()
        await self._news.close()
        self.primary.close()

    async def apply(self, command: Command) -> Result:
        if content_of(command) is not None:
            _unsupported("contents of requests (repeats: refuse)")
        if isinstance(command, Accept) and command.lane is not None:
            _unsupported("lanes")
        if self._commands is None:
            raise NotApplied("the store is not open")
        return await self._commands.submit(command)

    async def read(self, operation_id: UUID) -> Snapshot:
        if self._reads is None:
            raise NotApplied("the store is not open")
        return await self._reads.submit(operation_id)

    def announce_work(self) -> None:
        self._news.wake(WORK)

    async def _read_all(self, operation_ids: list[UUID]) -> Sequence[Snapshot | Exception]:
        kept = await self._kept(operation_ids, "reads")
        return [each.error or Snapshot(settle(each.record, each.now_us), each.now_us) for each in kept]

    # -- commands -----------------------------------------------------------------------------------------------------

    async def _apply(self, commands: list[Command]) -> Sequence[Result | Exception]:
        results: list[Result | Exception] = [contended()] * len(commands)
        left: Sequence[int] = range(len(commands))
        for tries in range(TRIES_MAX):
            try:
                left = await self._apply_some(commands, left, results)
            except StoreError as error:
                if not tries:
                    raise
                # Others of the batch took effect before.
                for place in left:
                    results[place] = type(error)(*error.args)
                break
            if not left:
                break
        return results

    async def _apply_some(
        self, commands: Sequence[Command], wanted: Sequence[int], results: list[Result | Exception]
    ) -> list[int]:
        """Execute these of the commands once; returns those that lost against others. Raises where none of them took
        effect."""
        # Before anything is read: what is compared must not be newer than what is written.
        await self._compare()
        kept = await self._kept([operation_id_of(commands[each]) for each in wanted])
        # After the records: an audit of the same operation that was written before them is seen.
        is_audited = any(audit_of(commands[each]) is not None for each in wanted)
        audited = await self._last_audit() if is_audited else 0
        calls: dict[int, RedisCommand] = {}
        news: list[RedisCommand] = []
        first = max(self._number + 1, kept[0].now_us)
        for place, each in zip(wanted, kept, strict=True):
            if each.error is not None:
                results[place] = each.error
                continue
            change = each.require(Change())
            results[place] = result = self._step(change, commands[place], each, audited)
            if change.is_due:
                witness = () if self._files is None else ((self._link.bytes, self._acknowledged, first + len(calls)),)
                calls[place] = change.call(self._identity, *witness)
                news += _news(commands[place], result.snapshot.state)
        self._number = first + len(calls)
        try:
            done = await self.primary.write(list(calls.values()), news=news)
        except Indefinite as error:
            done = [Indefinite(*error.args) for _ in calls]
        if highest := max((at for at, outcome in enumerate(done, 1) if outcome is True), default=0):
            self._acknowledge(first + highest - 1, kept[0].now_us)
        for place, outcome in zip(calls, done, strict=True):
            if outcome is True:
                self._news.wake(operation_id_of(commands[place]))
            else:
                results[place] = outcome or contended()
        return [place for place, outcome in zip(calls, done, strict=True) if outcome is False]

    def _step(self, change: Change, command: Command, kept: Kept, audited: int) -> Result:
        """Execute the command on the record that was read: its result once the change is made. `audited` is the number
        of the last audit."""
        now_us, floor = kept.now_us, kept.floor
        settled = settle(kept.record, now_us)

        def draw() -> int:
            change.floor = floor
            before = 0 if kept.record is None else kept.record.token
            token = self._draw(max(now_us, before + 1, floor + 1))
            change.then("ZADD", layout.TOKENS, "GT", token, LAST)
            return token

        result, record = step(settled, command, now_us, draw)
        # Also where it was applied before: what was acknowledged then may have been lost.
        change.is_due = isinstance(result, Applied)
        if change.is_due and record is not kept.record:
            kept.replace(change, record, command.kept if isinstance(command, Accept) else None)
            if isinstance(command, Purge | Erase):
                change.then("HSET", layout.MEMORY, "generation", uuid4().hex)
        # A repeated command leaves the settled record as it is, and so writes no second audit.
        audit = audit_of(command)
        if change.is_due and record is not settled and settled is not None and audit is not None:
            write_audit(change, command, audit, settled.token, self._draw(max(now_us, audited + 1)), now_us)
        return result

    # -- witnesses ----------------------------------------------------------------------------------------------------

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


def _channel_of(operation_id: UUID) -> str:
    return f"{CHANGES_CHANNEL}{operation_id.hex}"


def _news(command: Command, state: State) -> list[RedisCommand]:
    """What other gateways are told of a command, after which the operation is in this state. Nobody waits for a claim,
    or for its renewal."""
    operation_id = operation_id_of(command)
    if isinstance(command, Purge | Erase):
        return [("PUBLISH", PURGES_CHANNEL, operation_id.hex)]
    return [] if state is State.CLAIMED else [("PUBLISH", _channel_of(operation_id), b"")]
