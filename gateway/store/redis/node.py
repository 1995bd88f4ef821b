"""One master: a link to read and one to write, the eras of its buckets, and the batches that wait for it.

Its invariant: its verbs use the links only while both lead to the server process whose eras are known. It knows which
buckets it has been given, and not why. `store` has the theory of operation.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final
from uuid import UUID

from gateway.core.confidential import Sealing, Unopenable
from gateway.core.immutable import immutable
from gateway.core.operation import MICROSECONDS, Snapshot
from gateway.store.base import NotApplied, StoreError, end_tasks
from gateway.store.batching import Batcher
from gateway.store.redis.connection import (
    CAUSES,
    CONNECT_SECONDS,
    Access,
    Address,
    Link,
    RedisCommand,
    refusal,
    refusal_code,
    run_lines,
    script,
    time_us,
)
from gateway.store.redis.layout import ERA_BYTES, GENERATION_BYTES, Keyspace, decode, encode

# Every first request waits for a read, so it must cost less than the call of the durable store that it may save.
GET_SECONDS: Final = 0.25
PUT_SECONDS: Final = 2.0

# A larger entry would make its neighbours in a batch miss their deadline on a slow wire.
ENTRY_BYTES_MAX: Final = 256 * 1024

_BATCH_SIZE_MAX: Final = 64

# The keeper checks the server this often; while it is down, it pauses between these bounds.
_CHECK_SECONDS: Final = 5.0
_PAUSE_SECONDS_MIN: Final = 0.1
_PAUSE_SECONDS_MAX: Final = 5.0

# What two clocks may drift apart, as µs per second; NTP slews by half of it.
_DRIFT_US: Final = 1_000

ROOM_SECONDS: Final = 60.0

# Why a node of a cluster does not serve a slot, and what of it is a reason to look for the masters.
_MOVED: Final = frozenset(("MOVED", "CLUSTERDOWN"))
_ELSEWHERE: Final = _MOVED | {"ASK", "TRYAGAIN"}

DOWN: Final = "the fast tier is down"
_ERA: Final = script("era.lua")
_NO_ERA: Final = (b"", 0.0)

_LOG = logging.getLogger("gateway")


@immutable
class Write:
    """A message on a channel. Where there is a snapshot, its record is also put under the name of the channel."""

    channel: str
    operation_id: UUID
    message: str = ""
    snapshot: Snapshot | None = None
    started_seconds: float = 0.0


# The key of a content, the operation that has it, and for how many milliseconds that is kept.
First = tuple[str, UUID, int]
# The operation, and when its caller began to wait.
Get = tuple[UUID, float]


class Node:
    """A master, which is kept connected from `start` to `close`."""

    def __init__(
        self,
        access: Access,
        address: Address,
        keys: Keyspace,
        *,
        clock: Callable[[], float],
        sealing: Sealing,
        on_change: Callable[[], None],
        on_moved: Callable[[], None],
    ) -> None:
        """`on_change` is called when `is_reached` or `why_down` changes; `on_moved` when the server says that a bucket
        is elsewhere."""
        self.address = address
        self.is_reached = False
        """Whether the server was reachable at the last call. While False, verbs fail at once."""
        self.why_down = ""
        self.gets: Batcher[Get, Snapshot | None] = Batcher(self._execute_gets, size_max=_BATCH_SIZE_MAX)
        self.writes: Batcher[Write, None] = Batcher(
            self._execute_writes,
            key=lambda write: write.operation_id.int,
            size_max=_BATCH_SIZE_MAX,
        )
        self.firsts: Batcher[First, UUID | None] = Batcher(self._execute_firsts, size_max=_BATCH_SIZE_MAX)
        self._access = access
        self._keys = keys
        self._clock = clock
        self._sealing = sealing
        self._on_change = on_change
        self._on_moved = on_moved
        self._reader, self._writer = access.link(address), access.link(address)
        # The server process behind both links.
        self._run_id = b""
        self._buckets: frozenset[int] = frozenset()
        # By bucket, and since when it is known; there is none while it is unknown, or a generation has yet to be
        # reported.
        self._eras: dict[int, tuple[bytes, float]] = {}
        # A reading of the server's clock.
        self._time_us = 0
        self._time_seconds = 0.0
        self._refused = ""
        self._room = Room(clock)
        self._wake = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    @property
    def _unknown(self) -> frozenset[int]:
        return self._buckets - self._eras.keys()

    @property
    def knows_all_eras(self) -> bool:
        return self._run_id != b"" and not self._unknown

    def own(self, buckets: Iterable[int]) -> None:
        """Serve these buckets. The era of one that is new is unknown."""
        owned = frozenset(buckets)
        if owned != self._buckets:
            self._forget_eras(owned ^ self._buckets)
            self._buckets = owned
            self._wake.set()

    def bind(self, keys: Keyspace) -> None:
        """Use these keys, and report their generation before anything is served."""
        self._keys = keys
        self._forget_eras(self._buckets)
        self._wake.set()

    async def start(self) -> None:
        if self._keeper is None:
            await self._try_open()
            self._keeper = asyncio.create_task(self._keep())

    async def close(self) -> None:
        self.is_reached = False
        await end_tasks((self._keeper,))
        for batcher in (self.gets, self.writes, self.firsts):
            await batcher.close()
        await self._reader.close()
        await self._writer.close()

    def server_us(self, seconds: float) -> int:
        """A lower bound of the server's clock at this boot-time moment."""
        since_seconds = seconds - self._time_seconds
        return self._time_us + int(since_seconds * MICROSECONDS - abs(since_seconds) * _DRIFT_US)

    async def _execute_gets(self, gets: list[Get]) -> list[Snapshot | StoreError | None]:
        """Read all entries at once. A caller that has waited for `GET_SECONDS` already gets `NotApplied`."""
        oldest_seconds = self._clock() - GET_SECONDS
        # Keyed by integers, which hash much faster than UUIDs.
        wanted = {each.int: each for each, since_seconds in gets if since_seconds > oldest_seconds}
        found = await self._find(list(wanted.values())) if wanted else {}
        return [
            found.get(operation_id.int) if since_seconds > oldest_seconds else NotApplied("Redis is slow")
            for operation_id, since_seconds in gets
        ]

    async def _find(self, operation_ids: list[UUID]) -> dict[int, Snapshot | StoreError | None]:
        """The valid copies of the operations, by their ids as integers."""
        if not self.is_reached:
            raise NotApplied(DOWN)
        keys, eras = self._keys, self._eras
        by_bucket: dict[int, list[UUID]] = {}
        for operation_id in operation_ids:
            by_bucket.setdefault(keys.buckets[operation_id.int >> 120], []).append(operation_id)
        found: dict[int, Snapshot | StoreError | None] = {}
        if not eras.keys() >= by_bucket.keys():
            await self._refresh(self._reader)
            # Those whose era is still unknown.
            unknown = [each for bucket in self._unknown.intersection(by_bucket) for each in by_bucket.pop(bucket)]
            found = {each.int: NotApplied(DOWN) for each in unknown}
        commands: list[RedisCommand] = [
            ("MGET", keys.era_keys[bucket], *map(keys.key_of, ids)) for bucket, ids in by_bucket.items()
        ]
        commands.append(("TIME",))
        *pages, time = await self._checked(self._reader.exchange(commands, GET_SECONDS))
        if error := refusal(time):
            raise NotApplied(f"Redis refused: {error}")
        if keys is not self._keys:
            # It was bound anew meanwhile, to another store or after a purge.
            return {}
        now_us = time_us(time)
        stale: list[int] = []
        for (bucket, ids), values in zip(by_bucket.items(), pages, strict=True):
            if error := refusal(values):
                self._note_refusal(error)
                found |= {each.int: NotApplied(f"Redis refused: {error}") for each in ids}
                continue
            era, _ = eras.get(bucket, _NO_ERA)
            held_era, *entries = values
            if held_era is None or held_era[-ERA_BYTES:] != era:
                stale.append(bucket)
                continue
            for operation_id, entry in zip(ids, entries, strict=True):
                if entry is not None:
                    found[operation_id.int] = self._copy(entry, operation_id, era, now_us)
        if stale:
            await self._refresh(self._reader, is_stale=True)
        return found

    def _copy(self, entry: bytes, operation_id: UUID, era: bytes, now_us: int) -> Snapshot | None:
        """What an entry says, in clear; None if it is over, or cannot be opened, because the durable store may have the
        record whole."""
        if (decoded := decode(entry, operation_id, era)) is None:
            return None
        record, expires_us = decoded
        left_us = expires_us - now_us
        # More time left than the whole window: the server's clock was set back, by an unknown amount.
        if left_us <= 0 or left_us > record.replay_until_us - (record.completed_us or 0):
            return None
        try:
            return Snapshot(self._sealing.opened_copy(record), record.replay_until_us - left_us)
        except Unopenable:
            return None

    async def _execute_writes(self, writes: list[Write]) -> list[StoreError | None]:
        """A refused command fails the write that it is for. What is put in an era that is over is never believed."""
        await self._require_era()
        commands: list[RedisCommand] = []
        # For each command, the index in `writes` that it is for; and of what is put, the eras by bucket.
        places: list[int] = []
        eras: dict[int, bytes] = {}
        for place, write in enumerate(writes):
            if (entry := self._entry(write)) is not None:
                bucket = self._keys.buckets[write.operation_id.int >> 120]
                eras[bucket], _ = self._eras[bucket]
                commands.append(("SET", write.channel, entry[0], "PXAT", entry[1]))
                places.append(place)
            # Also where a full server takes no copies.
            commands.append(("PUBLISH", write.channel, write.message))
            places.append(place)
        looks: list[RedisCommand] = [("GET", self._keys.era_keys[bucket]) for bucket in eras]
        replies = await self._checked(self._writer.exchange([*commands, ("TIME",), *looks], PUT_SECONDS))
        time, *held = replies[len(commands) :]
        if not refusal(time):
            self._note_time(time)
        results: list[StoreError | None] = [None] * len(writes)
        for place, reply in zip(places, replies, strict=False):
            if error := refusal(reply):
                self._note_refusal(error)
                results[place] = NotApplied(f"Redis refused: {error}")
        found = [(era, b"" if now is None else now) for era, now in zip(eras.values(), held, strict=True)]
        if any(isinstance(now, bytes) and now[-ERA_BYTES:] != era for era, now in found):
            await self._refresh(self._writer, is_stale=True)
        return results

    def _entry(self, put: Write) -> tuple[bytes, int] | None:
        """The entry's bytes, and when it expires (ms). None if it cannot be put, or there is none."""
        snapshot, bucket = put.snapshot, self._keys.buckets[put.operation_id.int >> 120]
        (era, since_seconds), record = self._eras.get(bucket, _NO_ERA), None if snapshot is None else snapshot.record
        if snapshot is None or record is None or not era or not put.channel.startswith(self._keys.prefix):
            return None
        if put.started_seconds < since_seconds:
            return None
        started_us = self.server_us(put.started_seconds)
        expires_us = started_us + record.replay_until_us - snapshot.now_us
        entry = encode(record.sealed or record, era, expires_us)
        return None if len(entry) > ENTRY_BYTES_MAX else (entry, expires_us // 1000)

    async def _execute_firsts(self, firsts: list[First]) -> list[UUID | None]:
        """Write all contents that nobody has, and read who has them."""
        if not self.is_reached:
            raise NotApplied(DOWN)
        commands: list[RedisCommand] = []
        for key, operation_id, within_ms in firsts:
            commands += (("SET", key, operation_id.bytes, "PX", within_ms, "NX"), ("GET", key))
        replies = await self._checked(self._writer.exchange(commands, PUT_SECONDS))
        for place, (command, reply) in enumerate(zip(commands, replies, strict=True)):
            if error := refusal(reply):
                self._note_refusal(error)
                # Copies are not asked for elsewhere: they have no era where their slot is going, until it is there.
                with suppress(StoreError):
                    replies[place] = await self._access.follow_ask(command, reply, PUT_SECONDS)
        # A refused command, or the value of another program, proves nothing.
        return [UUID(bytes=reply) if isinstance(reply, bytes) and len(reply) == 16 else None for reply in replies[1::2]]

    async def _checked(self, exchange: Awaitable[list[Any]]) -> list[Any]:
        """A failure marks the node as down, so that later calls need not wait for the same."""
        try:
            return await exchange
        except StoreError as error:
            self._set_down(error)
            raise

    def _note_refusal(self, code: str) -> None:
        """A slot that is on its way (ASK, TRYAGAIN) is still this node's in the map."""
        if code in _MOVED:
            self._on_moved()

    def _note_time(self, time: Sequence[bytes]) -> None:
        """Take a reading of the server's clock from a reply that has just arrived."""
        self._time_us, self._time_seconds = time_us(time), self._clock()

    def _forget_eras(self, buckets: Collection[int]) -> None:
        for bucket in buckets:
            self._eras.pop(bucket, None)

    async def _keep(self) -> None:
        """Check the server regularly. While it is down, reconnect, with pauses that grow until it lasts."""
        pause_seconds, tried_seconds = _PAUSE_SECONDS_MIN, self._clock()
        while True:
            if self.is_reached and await self._stays_reached():
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
        if self.is_reached:
            await self._try_open()
            self._room.note(self._refused)
        return self.is_reached

    async def _try_open(self) -> None:
        self._wake.clear()
        try:
            run_ids = [await self._open(link) for link in (self._reader, self._writer)]
            if run_ids[0] != run_ids[1]:
                # One connection outlived a failover: a purge reported over the other does not reach its server.
                await self._reader.leave()
                await self._writer.leave()
                raise NotApplied("two connections to Redis lead to different servers")
            if run_ids[0] != self._run_id:
                # No purge was reported to this server, which may have run beside the previous one.
                self._run_id = run_ids[0]
                self._forget_eras(self._buckets)
            await self._learn(self._writer)
            await self._learn(self._reader)
        except StoreError as error:
            self._set_down(error)
        else:
            # A verb may have failed meanwhile, and closed its link.
            if self._reader.is_open and self._writer.is_open:
                self._set_up()

    async def _open(self, link: Link) -> bytes:
        """Connect, unless connected; returns the run id of the server. Raises StoreError."""
        if link.is_open:
            return link.run_id
        await link.connect()
        (info,) = await link.exchange([("INFO",)], CONNECT_SECONDS)
        try:
            link.run_id = self._checked_run_id(link, info)
        except NotApplied:
            await link.close()
            raise
        return link.run_id

    def _checked_run_id(self, link: Link, info: Any) -> bytes:
        """The run id in a reply of INFO. Raises NotApplied where the server is none to be used."""
        lines = run_lines(link, info)
        if lines.get("cluster_enabled") == "1" and self._access.kind != "cluster":
            raise NotApplied(f"{link} is a node of a cluster; write redis+cluster://{self.address}")
        if lines["role"] == "slave":
            raise NotApplied(f"{link} takes no writes: {CAUSES['READONLY']}")
        return lines["run_id"].encode()

    async def _learn(self, link: Link, *, is_stale: bool = False) -> None:
        """Read the server's time and the eras that are unknown; without any, one, to see whether the server takes
        writes. Where one `is_stale`, read all: a purge ends those of all buckets. An unknown era of another generation
        is ended first. Raises StoreError."""
        keys, unknown = self._keys, self._unknown
        if not (wanted := sorted(self._buckets if is_stale else unknown) or sorted(self._buckets)[:1]):
            return
        generation = keys.generation.ljust(GENERATION_BYTES, b"\0")
        commands: list[RedisCommand] = []
        for bucket in wanted:
            is_due = bucket in unknown and keys.generation != b""
            fresh = secrets.token_hex(ERA_BYTES // 2)
            commands.append(
                ("EVALSHA", _ERA, 1, keys.era_keys[bucket], self._run_id, fresh, generation, int(is_due)),
            )
        code = ""
        for bucket, reply in zip(wanted, await link.run(commands, CONNECT_SECONDS), strict=True):
            if error := refusal(reply):
                if error in _ELSEWHERE:
                    self._forget_eras({bucket} & self._buckets)
                    self._note_refusal(error)
                    continue
                # A server that was made a replica takes no writes: the next connection may lead to the new master.
                await link.leave()
                raise NotApplied(f"{link} takes no writes: {CAUSES.get(error, error)}")
            era, *time, text = reply
            self._note_time(time)
            code = refusal_code(text.decode()) or code
            # After a `bind` meanwhile, the next call learns the era.
            if keys is self._keys and bucket in self._buckets and era != self._eras.get(bucket, _NO_ERA)[0]:
                self._eras[bucket] = era, self._time_seconds
        self._refused = f"{link} takes no copies: {CAUSES.get(code, code)}" if code else ""

    async def _require_era(self) -> None:
        """Learn what is unknown. Raises NotApplied if nothing is known then."""
        if not self.is_reached:
            raise NotApplied(DOWN)
        if self._unknown:
            await self._refresh(self._writer)
            if self._unknown == self._buckets:
                raise NotApplied(DOWN)

    async def _refresh(self, link: Link, *, is_stale: bool = False) -> None:
        try:
            await self._learn(link, is_stale=is_stale)
        except StoreError as error:
            self._set_down(error)

    def _set_up(self) -> None:
        if not self.is_reached:
            self.is_reached, self.why_down = True, ""
            self._on_change()

    def _set_down(self, error: StoreError) -> None:
        why = str(error)
        if self.is_reached or why != self.why_down:
            self.is_reached, self.why_down = False, why
            self._wake.set()
            self._on_change()


class Room:
    """Logs whether a running server has room for copies: once when it has none, and once when it has room again.

    For the operator only: a full server stays full until one acts, while refused copies are counted and made again from
    the durable store. At its limit the server takes one copy and refuses the next, so room is reported only after it
    has taken all copies for a while. `clock` returns seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._reported = ""
        self._refused_seconds = 0.0

    def note(self, refused: str) -> None:
        """Take the result of a check: why the server takes no copies, empty if it does."""
        now = self._clock()
        if refused:
            self._refused_seconds = now
            if refused != self._reported:
                self._reported = refused
                _LOG.warning("%s; until then replays come from the durable store", refused)
        elif self._reported and now - self._refused_seconds >= ROOM_SECONDS:
            self._reported = ""
            _LOG.info("Redis takes copies again")
