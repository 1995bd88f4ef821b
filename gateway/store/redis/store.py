"""Redis as the fast tier: acknowledged records for replay, and news for waiters. It never grants a claim.

It knows nothing of work in flight. Its invariant: no entry is served after the record's window ended, nor after a purge
that was reported to the tier.

Theory of operation
-------------------
*Windows.* An entry expires at a time of Redis's own clock. Each reply on the writing link brings a reading of that
clock; Redis's time at an earlier local moment `m` was at least `reading - (local time after the reply - m)`, so
counting the window from there can only end it too early. The script compares with its own `TIME`: it rejects the entry
of a writer that froze in between. A read computes the time left, and asks for `TIME` after the entries, so that the
time left is never too long.

*Stores.* One Redis may serve several durable stores, and two of one service make the same operation ids. So the keys of
entries (which are also the channels of news) and of the era name the store, by the part of its identity that survives a
promotion. Until `bind` has named the store, the tier is not up.

*Eras.* Each read and each put names its era (`lua/era.lua`); entries of another era are ignored. A flush, a restart
from an old file or a failover can bring back what was purged, and each changes the era. A record that was read before
its writer knew the era is not put: it may be older than what ended the last era.

*Purges.* A purge ends the era for all operations. That costs copies, which are made again, and leaves no purge to be
remembered by operation. No single process is responsible for it either. In the durable store a purge makes a new
generation, in its own transaction. Any gateway that learns of a new generation (`bind`) ends the era of the previous
one, unless another did. So it does not matter which gateway purged, whether it reached Redis, or whether it still runs:
an era that began under the generation of a purge began after it, and what was read before that era was known is not
put. It suffices that *some* era begins after the purge. Two gateways that know different generations for a moment may
end each other's eras, which costs copies again. A gateway that has to end an era, and could not yet, serves nothing.

*Outages.* A verb waits at most for its deadline. After one such timeout the tier is down and every verb fails at once,
until the keeper task, which alone connects, gets replies again. Its pauses grow while connections do not last. It drops
connections to a server that rejects writes, or to two different servers: the next may lead to the new master. A link
has one exchange under way at a time, and is closed when one is cut short, so replies cannot be mixed up; and an entry
names its operation.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid4

from gateway.core.confidential import NO_SEALING, Sealing
from gateway.core.immutable import immutable
from gateway.core.operation import Snapshot, State
from gateway.core.sealing import Unopenable
from gateway.store.base import NotApplied, StoreError, Watch, boot_seconds
from gateway.store.batching import Batcher
from gateway.store.epoch import lineage
from gateway.store.redis.codec import ERA_BYTES, decode, encode
from gateway.store.redis.connection import Link, RedisCommand, Room, make_link, refusal, refusal_code, time_us
from gateway.store.redis.news import News

KEY_PREFIX: Final = "idempotency-gateway:"
ERA_KEY: Final = f"{KEY_PREFIX}era"
# Enough of a digest to tell the stores of one Redis apart; a key is as much longer.
_STORE_DIGITS: Final = 16
_PURGES_CHANNEL: Final = f"{KEY_PREFIX}purges"

# Every first request waits for a read, so it must cost less than the call of the durable store that it may save.
GET_SECONDS: Final = 0.25
PUT_SECONDS: Final = 2.0

# A larger entry would make its neighbours in a batch miss their deadline on a slow wire.
ENTRY_BYTES_MAX: Final = 256 * 1024

_BATCH_SIZE_MAX: Final = 64
_QUEUE_MAX: Final = 10_000
# Keys of one step of a walk over all of them: the server does nothing else meanwhile.
_SCANNED_KEYS: Final = 500

# The keeper checks the server this often; while the tier is down, it pauses between these bounds.
_CHECK_SECONDS: Final = 5.0
_PAUSE_SECONDS_MIN: Final = 0.1
_PAUSE_SECONDS_MAX: Final = 5.0

_LUA: Final = Path(__file__).parent / "lua"
_PUT_SCRIPT: Final = (_LUA / "put.lua").read_bytes()
_DOWN: Final = "the fast tier is down"
_COMPLETED: Final = State.COMPLETED


@immutable
class _Put:
    key: str
    operation_id: UUID
    snapshot: Snapshot
    started_seconds: float


@immutable
class _News:
    channel: str
    operation_id: UUID
    message: str


_Write = _Put | _News

# The key of a content, the operation that has it, and for how many milliseconds that is kept.
_First = tuple[str, UUID, int]
# The operation, and when its caller began to wait.
_Get = tuple[UUID, float]


class RedisFastTier:
    """The `FastTier` on Redis. Satisfies the protocol of `base`; an unreachable server never fails `start`."""

    def __init__(self, url: str, *, clock: Callable[[], float] = boot_seconds, sealing: Sealing = NO_SEALING) -> None:
        """`sealing` opens the copies, which are of records as they are stored. Raises ValueError when the URL is none
        of Redis's."""
        self._url = url
        self._clock = clock
        self._sealing = sealing
        self._reader = make_link(url, ERA_KEY, clock)
        self._writer = make_link(url, ERA_KEY, clock)
        self._news = News(make_link(url, ERA_KEY, clock), self._key_of, _PURGES_CHANNEL, self._report_purge)
        self._gets: Batcher[_Get, Snapshot | None] = Batcher(
            self._execute_gets, size_max=_BATCH_SIZE_MAX, queue_max=_QUEUE_MAX
        )
        self._writes: Batcher[_Write, None] = Batcher(
            self._execute_writes,
            key=lambda write: write.operation_id.int,
            size_max=_BATCH_SIZE_MAX,
            queue_max=_QUEUE_MAX,
        )
        self._firsts: Batcher[_First, UUID | None] = Batcher(
            self._execute_firsts, size_max=_BATCH_SIZE_MAX, queue_max=_QUEUE_MAX
        )
        self._purge_listeners: list[Callable[[UUID], None]] = []
        self._change_listeners: list[Callable[[bool, str], None]] = []
        # The key prefix of the bound store.
        self._prefix = ""
        self._generation: str | None = None
        self._is_reached = False
        self._why_down = ""
        self._wake = asyncio.Event()
        self._room = Room(clock)
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def up(self) -> bool:
        return self._is_reached and self._prefix != ""

    @property
    def has_forgotten(self) -> bool:
        return self._reader.era != b"" and self._writer.era != b""

    def bind(self, identity: str, generation: str | None = None) -> None:
        """Serve only the store with this `Epoch.identity`."""
        store = sha256(lineage(identity).encode()).hexdigest()[:_STORE_DIGITS]
        prefix, was_up = f"{KEY_PREFIX}{store}:", self.up
        if prefix == self._prefix and generation in (None, self._generation):
            return
        self._prefix, self._generation = prefix, generation
        self._bind_links(generation or "")
        if self.up and not was_up:
            self._report_change()

    def _bind_links(self, generation: str) -> None:
        for link in (self._reader, self._writer):
            link.bind(self._era_key, generation)
        self._wake.set()

    async def drop_copies(self) -> int:
        """Delete all copies of the bound store; returns how many. Needs no `start`. Raises `StoreError`.

        Gateways that run make new copies, of what the durable store has then.
        """
        link = make_link(self._url, ERA_KEY, self._clock)
        cursor, dropped = b"0", 0
        try:
            await link.connect()
            while True:
                scan = ("SCAN", cursor, "MATCH", f"{self._prefix}{{*}}", "COUNT", _SCANNED_KEYS)
                (page,) = await link.exchange([scan], PUT_SECONDS)
                if why := refusal(page):
                    raise NotApplied(f"Redis refused: {why}")
                cursor, keys = page
                if keys:
                    (number,) = await link.exchange([("UNLINK", *keys)], PUT_SECONDS)
                    if why := refusal(number):
                        raise NotApplied(f"Redis refused: {why}")
                    dropped += number
                if cursor == b"0":
                    return dropped
        finally:
            await link.close()

    def on_purge(self, listener: Callable[[UUID], None]) -> None:
        self._purge_listeners.append(listener)

    def on_change(self, listener: Callable[[bool, str], None]) -> None:
        self._change_listeners.append(listener)

    async def start(self) -> None:
        if self._tasks:
            return
        await self._try_open()
        self._tasks = [asyncio.create_task(self._keep()), asyncio.create_task(self._news.run())]

    async def close(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._gets.close()
        await self._writes.close()
        await self._firsts.close()
        await self._reader.close()
        await self._writer.close()
        self._is_reached = False

    def get(self, operation_id: UUID) -> Awaitable[Snapshot | None]:
        self._check_up()
        return self._gets.submit((operation_id, self._clock()))

    def put(self, snapshot: Snapshot, started_seconds: float) -> Awaitable[None]:
        record = snapshot.record
        if record is None or record.state is not _COMPLETED:
            raise ValueError("only completed records may be put")
        operation_id = record.identity.operation_id
        return self._write(_Put(self._key_of(operation_id), operation_id, snapshot, started_seconds))

    def first_of(self, content: bytes, operation_id: UUID, within_ms: int) -> Awaitable[UUID | None]:
        self._check_up()
        return self._firsts.submit((f"{self._prefix}content:{content.hex()}", operation_id, within_ms))

    async def _execute_firsts(self, firsts: list[_First]) -> list[UUID | None]:
        """Write all contents that nobody has, and read who has them."""
        commands: list[RedisCommand] = []
        for key, operation_id, within_ms in firsts:
            commands += (("SET", key, operation_id.bytes, "PX", within_ms, "NX"), ("GET", key))
        replies = await self._exchange(self._writer, commands, PUT_SECONDS)
        # A refused command, or the value of another program, tells nothing.
        return [UUID(bytes=reply) if isinstance(reply, bytes) and len(reply) == 16 else None for reply in replies[1::2]]

    async def forget(self, operation_id: UUID) -> None:
        # A generation that no other gateway knows ends any era.
        self._bind_links(uuid4().hex)
        # A write without an era first reports this generation to the server.
        await self._write(_News(_PURGES_CHANNEL, operation_id, operation_id.hex))

    def announce(self, operation_id: UUID) -> Awaitable[None]:
        return self._write(_News(self._key_of(operation_id), operation_id, ""))

    @asynccontextmanager
    async def watch(self, operation_id: UUID) -> AsyncIterator[Watch]:
        async with self._news.watch(operation_id) as watch:
            yield watch

    def _check_up(self) -> None:
        if not self.up:
            raise NotApplied(_DOWN)

    @property
    def _era_key(self) -> str:
        # Before `bind`, a key that belongs to no store.
        return f"{self._prefix or KEY_PREFIX}era"

    def _key_of(self, operation_id: UUID) -> str:
        # In braces, so that a cluster would keep the keys of one operation together.
        return f"{self._prefix}{{{operation_id.hex}}}"

    def _write(self, write: _Write) -> Awaitable[None]:
        self._check_up()
        return self._writes.submit(write)

    async def _exchange(self, link: Link, commands: Sequence[RedisCommand], seconds: float) -> list[Any]:
        """`Link.exchange`; a failure marks the tier as down, so that later calls need not wait for the same."""
        try:
            return await link.exchange(commands, seconds)
        except StoreError as error:
            self._set_down(error)
            raise

    async def _execute_gets(self, gets: list[_Get]) -> list[Snapshot | StoreError | None]:
        """Read all entries at once. A caller that has waited for `GET_SECONDS` already gets `NotApplied`."""
        oldest_seconds = self._clock() - GET_SECONDS
        # Keyed by integers, which hash much faster than UUIDs.
        wanted = {each.int: each for each, since_seconds in gets if since_seconds > oldest_seconds}
        found = await self._find(list(wanted.values())) if wanted else {}
        return [
            found.get(operation_id.int) if since_seconds > oldest_seconds else NotApplied("Redis is slow")
            for operation_id, since_seconds in gets
        ]

    async def _find(self, operation_ids: list[UUID]) -> dict[int, Snapshot | None]:
        """The valid copies of the operations, by their ids as integers."""
        prefix = self._prefix
        await self._require_era(self._reader)
        commands: list[RedisCommand] = [("MGET", self._era_key, *map(self._key_of, operation_ids)), ("TIME",)]
        values, time = await self._exchange(self._reader, commands, GET_SECONDS)
        if error := refusal(values) or refusal(time):
            raise NotApplied(f"Redis refused: {error}")
        if prefix != self._prefix:
            # `bind` changed the store meanwhile.
            return {}
        held_era, *entries = values
        if held_era is None or held_era[-ERA_BYTES:] != self._reader.era:
            await self._refresh_era(self._reader)
            return {}
        now_us = time_us(time)
        return {
            operation_id.int: self._opened(_valid_snapshot(entry, operation_id, self._reader.era, now_us))
            for operation_id, entry in zip(operation_ids, entries, strict=True)
            if entry is not None
        }

    def _opened(self, copy: Snapshot | None) -> Snapshot | None:
        """The copy in clear; None if it cannot be opened, because the durable store may have the record whole."""
        record = None if copy is None else copy.record
        if copy is None or record is None:
            return None
        try:
            clear = self._sealing.opened_copy(record)
        except Unopenable:
            return None
        return copy if clear is record else Snapshot(clear, copy.now_us)

    async def _execute_writes(self, writes: list[_Write]) -> list[StoreError | None]:
        """All puts by one script, the others by one command each. A refused command fails the writes that it is for."""
        link = self._writer
        await self._require_era(link)
        keys: list[str] = []
        arguments: list[bytes | int] = []
        commands: list[RedisCommand] = []
        # For each command, the indexes in `writes` that it is for; those of the puts come last.
        places: list[list[int]] = []
        put_places: list[int] = []
        for place, write in enumerate(writes):
            if isinstance(write, _News):
                commands.append(("PUBLISH", write.channel, write.message))
                places.append([place])
            elif (entry := self._entry(write)) is not None:
                keys.append(write.key)
                arguments += entry
                put_places.append(place)
            else:
                commands.append(("PUBLISH", write.key, b""))
                places.append([place])
        era = link.era
        if keys:
            commands.append(("EVAL", _PUT_SCRIPT, len(keys) + 1, self._era_key, *keys, era, *arguments))
            places.append(put_places)
        replies = await self._exchange(link, commands, PUT_SECONDS)
        errors = [refusal(reply) for reply in replies]
        if keys and not errors[-1]:
            held_era, *time, text = replies[-1]
            errors[-1] = refusal_code(text.decode())
            link.note_time(time)
            if held_era != era:
                await self._refresh_era(link)
        results: list[StoreError | None] = [None] * len(writes)
        for error, its_places in zip(errors, places, strict=True):
            for place in its_places if error else ():
                results[place] = NotApplied(f"Redis refused: {error}")
        return results

    def _entry(self, put: _Put) -> tuple[bytes, int] | None:
        """The entry's bytes, and when it expires (ms). None if it cannot be put."""
        link, record = self._writer, put.snapshot.record
        if record is None or put.started_seconds < link.era_seconds or not put.key.startswith(self._prefix):
            return None
        started_us = link.server_us(put.started_seconds)
        expires_us = started_us + record.replay_until_us - put.snapshot.now_us
        try:
            entry = encode(record.sealed or record, link.era, expires_us)
        except ValueError:
            return None
        return None if len(entry) > ENTRY_BYTES_MAX else (entry, expires_us // 1000)

    def _report_purge(self, operation_id: UUID) -> None:
        for listener in self._purge_listeners:
            listener(operation_id)

    async def _keep(self) -> None:
        """Check the server regularly. While the tier is down, reconnect, with pauses that grow until it lasts."""
        pause_seconds, tried_seconds = _PAUSE_SECONDS_MIN, self._clock()
        while True:
            if self._is_reached and await self._stays_reached():
                continue
            if self._clock() - tried_seconds > _PAUSE_SECONDS_MAX:
                pause_seconds = _PAUSE_SECONDS_MIN
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, _PAUSE_SECONDS_MAX)
            await self._try_open()
            tried_seconds = self._clock()

    async def _stays_reached(self) -> bool:
        """Check once: after a while, or as soon as a verb failed or a purge is to be reported."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_CHECK_SECONDS):
                await self._wake.wait()
        if self._is_reached:
            await self._try_open()
            self._room.note(self._writer.refused)
        return self._is_reached

    async def _try_open(self) -> None:
        self._wake.clear()
        try:
            await self._reader.open()
            await self._writer.open()
            if self._reader.run_id != self._writer.run_id:
                # One connection outlived a failover: a purge reported over the other does not reach its server.
                await self._reader.leave()
                await self._writer.leave()
                raise NotApplied("two connections to Redis lead to different servers")
        except StoreError as error:
            self._set_down(error)
        else:
            # A verb may have failed meanwhile, and closed its link.
            if self._reader.is_open and self._writer.is_open:
                self._set_up()

    async def _require_era(self, link: Link) -> None:
        """Learn the era if it is unknown. Raises NotApplied if that fails."""
        if not link.era:
            await self._refresh_era(link)
            if not link.era:
                raise NotApplied(_DOWN)

    async def _refresh_era(self, link: Link) -> None:
        try:
            await link.refresh_era()
        except StoreError as error:
            self._set_down(error)

    def _set_up(self) -> None:
        if not self._is_reached:
            self._is_reached, self._why_down = True, ""
            if self.up:
                self._report_change()

    def _set_down(self, error: StoreError) -> None:
        why = str(error)
        if self._is_reached or why != self._why_down:
            self._is_reached, self._why_down = False, why
            self._wake.set()
            self._report_change()

    def _report_change(self) -> None:
        for listener in self._change_listeners:
            listener(self.up, self._why_down)


def _valid_snapshot(entry: bytes, operation_id: UUID, era: bytes, now_us: int) -> Snapshot | None:
    decoded = decode(entry, operation_id, era)
    if decoded is None:
        return None
    record, expires_us = decoded
    left_us = expires_us - now_us
    # More time left than the whole window: the server's clock was set back, by an unknown amount.
    if left_us <= 0 or left_us > record.replay_until_us - (record.completed_us or 0):
        return None
    return Snapshot(record, record.replay_until_us - left_us)
