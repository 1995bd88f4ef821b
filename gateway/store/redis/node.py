"""One master of the fast tier: the link to it, the eras of its buckets, and the batches that wait for it.

Its invariant: its verbs use the link only while it leads to the server process whose eras are known. It knows which
buckets it has been given, and not why. `store` has the theory of operation.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, Final
from uuid import UUID

from gateway.core.confidential import Sealing, Unopenable
from gateway.core.operation import MICROSECONDS, Snapshot
from gateway.store.base import NotApplied, StoreError
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

# A larger entry would make its neighbours miss their deadline on a slow wire, and so would more of them at once.
ENTRY_BYTES_MAX: Final = 256 * 1024
_WRITES_MAX: Final = 32
_GETS_MAX: Final = 64

# What two clocks may drift apart, as µs per second; NTP slews by half of it.
_DRIFT_US: Final = 1_000

ROOM_SECONDS: Final = 60.0

# Why a node of a cluster does not serve a slot, and what of it is a reason to look for the masters: a slot that is on
# its way (ASK, TRYAGAIN) is still this node's in the map.
_MOVED: Final = frozenset(("MOVED", "CLUSTERDOWN"))
_ELSEWHERE: Final = _MOVED | {"ASK", "TRYAGAIN"}

DOWN: Final = "the fast tier is down"
_ERA: Final = script("era.lua")
_NO_ERA: Final = (b"", 0.0)

_LOG = logging.getLogger("gateway")


class Node:
    """A master. Who has it calls `check` as long as it is used, and then `close`."""

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
        self.gets: Batcher[UUID, Snapshot | None] = Batcher(self._execute_gets, size_max=_GETS_MAX)
        self._writes: Batcher[list[RedisCommand], None] = Batcher(self._execute_writes, size_max=_WRITES_MAX)
        self._access = access
        self._keys = keys
        self._clock = clock
        self._sealing = sealing
        self._on_change = on_change
        self._on_moved = on_moved
        self._link = Link(address, access.database)
        # The server process that it leads to.
        self._run_id = ""
        self._buckets: frozenset[int] = frozenset()
        # By bucket, and since when it is known; there is none while it is unknown, or a generation has yet to be
        # reported.
        self._eras: dict[int, tuple[bytes, float]] = {}
        # A reading of the server's clock.
        self._time_us, self._time_seconds = 0, 0.0
        # Why it takes no copies, as was logged, and when that was last so.
        self._refused, self._refused_seconds = "", 0.0

    @property
    def _unknown(self) -> frozenset[int]:
        return self._buckets - self._eras.keys()

    @property
    def knows_all_eras(self) -> bool:
        return self._run_id != "" and not self._unknown

    def own(self, buckets: Iterable[int]) -> None:
        """Serve these buckets. The era of one that is new is unknown."""
        owned = frozenset(buckets)
        if owned != self._buckets:
            self._forget_eras(owned ^ self._buckets)
            self._buckets = owned

    def bind(self, keys: Keyspace) -> None:
        """Use these keys, and report their generation before anything is served."""
        self._keys = keys
        self._forget_eras(self._buckets)

    async def close(self) -> None:
        self.is_reached = False
        try:
            await self.gets.close()
            await self._writes.close()
        finally:
            self._link.close()

    def server_us(self, seconds: float) -> int:
        """A lower bound of the server's clock at this boot-time moment."""
        since_seconds = seconds - self._time_seconds
        return self._time_us + int(since_seconds * MICROSECONDS - abs(since_seconds) * _DRIFT_US)

    # -- verbs ---------------------------------------------------------------------------------------------------------

    async def _execute_gets(self, wanted: list[UUID]) -> list[Snapshot | StoreError | None]:
        """Read the valid copies of the operations at once."""
        keys, eras = self._keys, self._eras
        buckets = [keys.buckets[each.int >> 120] for each in wanted]
        if not eras.keys() >= set(buckets):
            await self._refresh()
        if not self.is_reached:
            raise NotApplied(DOWN)
        commands: list[RedisCommand] = [
            ("MGET", keys.era_keys[bucket], keys.key_of(each)) for each, bucket in zip(wanted, buckets, strict=True)
        ]
        *found, time = await self._exchange([*commands, ("TIME",)], GET_SECONDS)
        if error := refusal(time):
            raise NotApplied(f"Redis refused: {error}")
        if keys is not self._keys:
            # It was bound anew meanwhile, to another store or after a purge.
            return [None] * len(wanted)
        now_us, is_stale = time_us(time), False
        results: list[Snapshot | StoreError | None] = [None] * len(wanted)
        for place, (bucket, values) in enumerate(zip(buckets, found, strict=True)):
            if error := self._noted_refusal(values):
                results[place] = NotApplied(f"Redis refused: {error}")
            elif bucket not in eras:
                results[place] = NotApplied(DOWN)
            elif values[0] is None or values[0][-ERA_BYTES:] != eras[bucket][0]:
                is_stale = True
            else:
                results[place] = self._copy(values[1], wanted[place], eras[bucket][0], now_us)
        if is_stale:
            await self._refresh(is_stale=True)
        return results

    def _copy(self, entry: bytes | None, operation_id: UUID, era: bytes, now_us: int) -> Snapshot | None:
        """What an entry says, in clear; None if it is over, or cannot be opened, because the durable store may have the
        record whole."""
        if entry is None or (decoded := decode(entry, operation_id, era)) is None:
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

    def publish(self, channel: str, message: str = "") -> Awaitable[None]:
        return self._writes.submit([("PUBLISH", channel, message)])

    def put(self, operation_id: UUID, snapshot: Snapshot, started_seconds: float) -> Awaitable[None]:
        """Put the record of the snapshot, unless it was read before its era was known, and tell of it. What is put in
        an era that is over is never believed."""
        channel, record = self._keys.key_of(operation_id), snapshot.record
        era, since_seconds = self._eras.get(self._keys.buckets[operation_id.int >> 120], _NO_ERA)
        # Also where a full server takes no copies.
        commands: list[RedisCommand] = [("PUBLISH", channel, "")]
        if record is not None and era and started_seconds >= since_seconds:
            started_us = self.server_us(started_seconds)
            expires_us = started_us + record.replay_until_us - snapshot.now_us
            entry = encode(record.sealed or record, era, expires_us)
            if len(entry) <= ENTRY_BYTES_MAX:
                commands.insert(0, ("SET", channel, entry, "PXAT", expires_us // 1000))
        return self._writes.submit(commands)

    async def _execute_writes(self, writes: list[list[RedisCommand]]) -> list[StoreError | None]:
        """A refused command fails the write that it is of."""
        if self._unknown:
            # A purge is told of when its generation was reported.
            await self._refresh()
        if not self.is_reached or self._unknown == self._buckets:
            raise NotApplied(DOWN)
        *replies, time = await self._exchange([*chain.from_iterable(writes), ("TIME",)], PUT_SECONDS)
        if not refusal(time):
            self._note_time(time)
        reply_of = iter(replies)
        refusals = [[self._noted_refusal(next(reply_of)) for _ in commands] for commands in writes]
        errors = [next(filter(None, each), "") for each in refusals]
        return [NotApplied(f"Redis refused: {error}") if error else None for error in errors]

    async def first_of(self, key: str, operation_id: UUID, within_ms: int) -> UUID | None:
        """Write the content that nobody has under this key, and read who has it."""
        commands: list[RedisCommand] = [("SET", key, operation_id.bytes, "PX", within_ms, "NX"), ("GET", key)]
        replies = await self._exchange(commands, PUT_SECONDS)
        for place, (command, reply) in enumerate(zip(commands, replies, strict=True)):
            if self._noted_refusal(reply):
                # Copies are not asked for elsewhere: they have no era where their slot is going, until it is there.
                with suppress(StoreError):
                    replies[place] = await self._access.follow_ask(command, reply, PUT_SECONDS)
        first = replies[1]
        # A refused command, or the value of another program, proves nothing.
        return UUID(bytes=first) if isinstance(first, bytes) and len(first) == 16 else None

    async def _exchange(self, commands: Sequence[RedisCommand], seconds: float) -> list[Any]:
        """A failure marks the node as down, so that later calls need not wait for the same."""
        try:
            return await self._link.exchange(commands, seconds)
        except StoreError as error:
            self._set_down(error)
            raise

    def _noted_refusal(self, reply: Any) -> str:
        code = refusal(reply)
        if code in _MOVED:
            self._on_moved()
        return code

    # -- the server ----------------------------------------------------------------------------------------------------

    def _note_time(self, time: Sequence[bytes]) -> None:
        """Take a reading of the server's clock from a reply that has just arrived."""
        self._time_us, self._time_seconds = time_us(time), self._clock()

    def _forget_eras(self, buckets: Collection[int]) -> None:
        for bucket in buckets:
            self._eras.pop(bucket, None)

    async def check(self) -> None:
        """Connect, unless connected, and see whether the server can be used."""
        try:
            if not self._link.is_open:
                await self._open()
            self.note_room(await self._learn())
        except StoreError as error:
            # The next connection may lead to another server.
            self._link.close()
            self._set_down(error)
        else:
            # A verb may have failed meanwhile, and closed the link.
            if self._link.is_open and not self.is_reached:
                self.is_reached, self.why_down = True, ""
                self._on_change()

    async def _open(self) -> None:
        """Raises StoreError, also where the server is none to be used."""
        self._link = link = await self._access.open(self.address)
        (info,) = await link.exchange([("INFO",)], CONNECT_SECONDS)
        lines = run_lines(link, info)
        if lines.get("cluster_enabled") == "1" and self._access.kind != "cluster":
            raise NotApplied(f"{link} is a node of a cluster; write redis+cluster://{self.address}")
        if lines["role"] == "slave":
            raise NotApplied(f"{link} takes no writes: {CAUSES['READONLY']}")
        if lines["run_id"] != self._run_id:
            # No purge was reported to this server, which may have run beside the previous one.
            self._run_id = lines["run_id"]
            self._forget_eras(self._buckets)

    async def _learn(self, *, is_stale: bool = False) -> str:
        """Read the server's time and the eras that are unknown; without any, one, to see whether the server takes
        writes. Where one `is_stale`, read all: a purge ends those of all buckets. An unknown era of another generation
        is ended first. Returns why the server takes no copies; empty if it does. Raises StoreError."""
        link, keys, unknown = self._link, self._keys, self._unknown
        wanted = sorted(self._buckets if is_stale else unknown) or sorted(self._buckets)[:1]
        generation = keys.generation.ljust(GENERATION_BYTES, b"\0")
        due = unknown if keys.generation else frozenset[int]()
        commands: list[RedisCommand] = []
        for bucket in wanted:
            fresh, is_due = secrets.token_hex(ERA_BYTES // 2), int(bucket in due)
            commands.append(("EVALSHA", _ERA, 1, keys.era_keys[bucket], self._run_id, fresh, generation, is_due))
        code = ""
        for bucket, reply in zip(wanted, await link.run(commands, CONNECT_SECONDS), strict=True):
            if (error := self._noted_refusal(reply)) in _ELSEWHERE:
                self._forget_eras((bucket,))
                continue
            if error:
                # A server that was made a replica takes no writes: the next connection may lead to the new master.
                link.close()
                raise NotApplied(f"{link} takes no writes: {CAUSES.get(error, error)}")
            era, *time, text = reply
            self._note_time(time)
            code = refusal_code(text.decode()) or code
            # After a `bind` meanwhile, the next call learns the era.
            if keys is self._keys and bucket in self._buckets and era != self._eras.get(bucket, _NO_ERA)[0]:
                self._eras[bucket] = era, self._time_seconds
        return f"{link} takes no copies: {CAUSES.get(code, code)}" if code else ""

    async def _refresh(self, *, is_stale: bool = False) -> None:
        if self.is_reached:
            try:
                await self._learn(is_stale=is_stale)
            except StoreError as error:
                self._set_down(error)

    def _set_down(self, error: StoreError) -> None:
        why = str(error)
        if self.is_reached or why != self.why_down:
            self.is_reached, self.why_down = False, why
            self._on_change()

    def note_room(self, refused: str) -> None:
        """Log once that the server takes no copies, and once that it has taken all for a while: at its limit it takes
        one and refuses the next."""
        now = self._clock()
        if refused:
            if refused != self._refused:
                _LOG.warning("%s; until then replays come from the durable store", refused)
            self._refused, self._refused_seconds = refused, now
        elif self._refused and now - self._refused_seconds >= ROOM_SECONDS:
            self._refused = ""
            _LOG.info("Redis takes copies again")
