"""Redis as the fast tier: acknowledged records for replay, and news for waiters. It never grants a claim.

It knows nothing of work in flight. Its invariant: no entry is served after the record's window ended, nor after a purge
that was reported to the tier.

Theory of operation
-------------------
*Windows.* An entry expires at a time of Redis's own clock. Each batch of writes brings a reading of that clock; Redis's
time at an earlier local moment `m` was at least `reading - (local time after the reply - m)`, so counting the window
from there can only end it too early. An entry ends with its window also where its writer froze in between. A read
computes the time left, and asks for `TIME` after the entries, so that the time left is never too long.

*Copies.* A copy is called an entry: the era of the server, the time until which it is valid, and the record, so that an
entry under a wrong key is recognised. Bytes that are not exactly an entry of this version are None: another version,
another program's value, a cut value.

*Stores.* One Redis may serve several durable stores, and two of one service make the same operation ids. So the keys of
entries (which are also the channels of news) and of the era name the store, by the part of its identity that survives a
promotion. Until `bind` has named the store, the tier is not up.

*Eras.* Each read and each entry names its era (`lua/era.lua`); entries of another era are ignored. A flush, a restart
from an old file or a failover can bring back what was purged, and each changes the era. A record that was read before
its writer knew the era is not put: it may be older than what ended the last era.

*Purges.* A purge ends the era for all operations. That costs copies, which are made again, and leaves no purge to be
remembered by operation. No single process is responsible for it: in the durable store a purge makes a new generation,
in its own transaction, and any gateway that learns of it (`bind`) ends the era of the previous one, unless another did.
It suffices that *some* era begins after the purge. Two gateways that know different generations for a moment may end
each other's eras, which costs copies again; so who purged ends the era for the generation that it finds in the durable
store then. A gateway that has to end an era, and could not yet, serves nothing.

*Masters.* A single server is a cluster of one node with one bucket, and Sentinel is another way to find its address.
Each server that is found is a `Node`, whose verbs use its link only while that leads to the server process whose eras
are known. The route of an operation is by the first byte of its id. A bucket is what has one era. In a cluster each
byte is a bucket, and its keys have one hash tag, so that they are at one node and one script may use them; an era is
bound to a server process, so what is copied or moved to another node is not believed there. Another address, or a
bucket at another node, begins with an unknown era: each purge is reported to it anew. While a slot is moved, Redis
refuses commands of several keys in it, and its operations have no copies.

*What remains.* A master that was abandoned, and does not know it yet, serves those who have not left it. A purge that
was reported to the new one reaches them with the durable store's generation, or when they leave: at the next look with
Sentinel, and in a cluster when the old one notices that it has lost the others.

*Outages.* A verb waits at most for its deadline. After one such timeout the node is down and every verb on its buckets
fails at once, until its keeper task, which alone connects, gets replies again. The tier is up while one node is.

*The note* (`RedisSeen`). What gateways saw of their durable store, and what it acknowledged to them, is shared here for
a host that has no note of its own. No conclusions are drawn here (`epoch` does), and no request waits for it. Between
writes it keeps its connection, and each read looks for the master anew. As long as Redis keeps the note, its token for
one memory never decreases, nor does its number for one link. A link is dropped once a later one stands for it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import secrets
import struct
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from itertools import chain
from typing import Any, Final
from uuid import UUID, uuid4
from zlib import crc32

from gateway.core.confidential import NO_SEALING, Sealing, Unopenable
from gateway.core.operation import MICROSECONDS, Record, Snapshot, State
from gateway.store.base import NotApplied, StoreError, Unreadable, boot_seconds, end_tasks
from gateway.store.batching import Batcher
from gateway.store.memory.epoch import FORMER_MAX, Seen, WitnessNote, lineage
from gateway.store.redis.connection import (
    CAUSES,
    CONNECT_SECONDS,
    KEY_PREFIX,
    PURGES_CHANNEL,
    Access,
    Address,
    Link,
    News,
    RedisCommand,
    find_masters,
    listen_for_masters,
    parse,
    refusal,
    refusal_code,
    run_lines,
    script,
    slot_of,
    time_us,
)
from gateway.store.relational import rows
from gateway.store.relational.rows import pack, unpack

_LOG = logging.getLogger("gateway")

# -- the note ----------------------------------------------------------------------------------------------------------

# Nobody but the start of a gateway waits for this.
SEEN_SECONDS: Final = 1.0

# No store draws a higher token, and taking one over would leave the store no numbers.
TOKEN_MAX: Final = 2**62
LINKS_MAX: Final = 1_024
# A change takes seconds at the most: one that began so much later was made when the other one had been acknowledged.
STOOD_FOR_US: Final = 600 * MICROSECONDS
_NUMBER_MAX: Final = 2**53
_DIGITS: Final = 20
_IDENTITY_CHARACTERS_MAX: Final = 256
_FORMER_BYTES_MAX: Final = 2 * FORMER_MAX * _IDENTITY_CHARACTERS_MAX
_LINK_BYTES_MAX: Final = 160
_NOTE_BYTES_MAX: Final = _FORMER_BYTES_MAX + 2 * LINKS_MAX * _LINK_BYTES_MAX

_SCRIPT: Final = script("seen.lua")


class RedisSeen:
    """Satisfies `SharedNote`. `name` identifies the service and its durable store."""

    def __init__(self, url: str, name: str) -> None:
        """Raises ValueError when the URL is none of Redis's."""
        self._key = f"{KEY_PREFIX}seen:{name}"
        self._access = parse(url)
        self._lock = asyncio.Lock()
        self._link: Link | None = None

    async def read(self) -> Seen | None:
        await self.close()
        try:
            return _seen(await self._call())
        finally:
            await self.close()

    async def write(self, seen: Seen, compared: str) -> None:
        """See `SharedNote`. A note that could not be read back is rejected, so that the current one stays in force."""
        fields = _fields(seen)
        if _seen([each.encode() for each in fields]) is None:
            raise NotApplied("the note of what was seen of the durable store does not fit Redis")
        _, identity, _, token, _, former, *links = fields
        if not await self._call(identity, token, former, compared, STOOD_FOR_US, *links):
            raise NotApplied("the note of what was seen is about another store, which has to be compared first")

    async def close(self) -> None:
        """Close the connection; the next call opens another one."""
        async with self._lock:
            if self._link is not None:
                self._link.close()
                self._link = None

    async def _call(self, *arguments: str | int) -> Any:
        command = ("EVALSHA", _SCRIPT, 1, self._key, LINKS_MAX, _NOTE_BYTES_MAX, *arguments)
        async with self._lock:
            if self._link is not None:
                # It may have been closed since, or lead to a former master. What is written twice stays as it was.
                with suppress(StoreError):
                    (reply,) = await self._link.run([command], SEEN_SECONDS)
                    if not refusal(reply):
                        return reply
                self._link.close()
            self._link = await self._connect()
            (reply,) = await self._link.run([command], SEEN_SECONDS)
        reply = await self._access.follow_ask(command, reply, SEEN_SECONDS)
        if error := refusal(reply):
            raise NotApplied(f"Redis refused: {error}")
        return reply

    async def _connect(self) -> Link:
        masters, slot = (await find_masters(self._access)).slots, slot_of(self._key)
        address = next((each for each, slots in masters.items() if _has(slots, slot)), None)
        if address is None:
            raise NotApplied("no master has the slot of the note of what was seen")
        return await self._access.open(address)


def _fields(seen: Seen) -> list[str]:
    """The fields of a note, each with its value after it."""
    fields = ["identity", seen.identity, "token", f"{seen.token:0{_DIGITS}}"]
    fields += ["former", json.dumps(seen.former, separators=(",", ":"))]
    for note in seen.acknowledged:
        numbers = " ".join(f"{number:0{_DIGITS}}" for number in (note.number, note.at_us, note.beyond))
        fields += [note.link.hex, f"{numbers} {note.memory.hex()}"]
    return fields


def _seen(fields: Sequence[bytes]) -> Seen | None:
    """Decode a note; None if it is not one."""
    noted = dict(zip(fields[::2], fields[1::2], strict=True))
    try:
        identity, token = noted.pop(b"identity").decode(), int(noted.pop(b"token"))
        former = tuple(json.loads(noted.pop(b"former")))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if not (0 <= token <= TOKEN_MAX and len(former) <= FORMER_MAX):
        return None
    if not all(isinstance(each, str) and 0 < len(each) <= _IDENTITY_CHARACTERS_MAX for each in (identity, *former)):
        return None
    acknowledged = tuple(note for link, value in noted.items() if (note := _acknowledged(link, value)) is not None)
    # Its writer had read the note before it.
    return Seen(identity, token, former, is_compared=True, acknowledged=acknowledged)


def _acknowledged(link: bytes, value: bytes) -> WitnessNote | None:
    """Decode what was acknowledged over a link; None if it is something else."""
    try:
        number, at_us, beyond, memory = value.decode().split(" ")
        note = WitnessNote(UUID(hex=link.decode()), int(number), int(at_us), int(beyond), bytes.fromhex(memory))
    except (ValueError, AttributeError):
        return None
    is_sound = 0 < note.number <= _NUMBER_MAX and 0 <= note.at_us <= _NUMBER_MAX and 0 <= note.beyond <= 2 * TOKEN_MAX
    return note if is_sound else None


# -- copies ------------------------------------------------------------------------------------------------------------

# As in `lua/era.lua`.
_GENERATION_BYTES: Final = 16

PARTS: Final = 256
"""Operations are spread over the buckets by the first byte of their id."""


class Keyspace:
    """The keys of one durable store, whose purges have come to this generation. Compared by identity: each change of
    either makes a new one."""

    def __init__(self, prefix: str, generation: str, *, is_cluster: bool) -> None:
        """An empty prefix is that of no store. `generation` is empty where it is not known."""
        self.prefix = prefix
        self.generation = sha256(generation.encode()).digest()[:_GENERATION_BYTES] if generation else b""
        self.is_cluster = is_cluster
        self.buckets = bytes(range(PARTS) if is_cluster else PARTS)
        """The bucket of an operation, by the first byte of its id."""
        start = prefix or KEY_PREFIX
        tags = [f"{{{bucket:02x}}}:" for bucket in range(PARTS)] if is_cluster else [""]
        self.era_keys = [f"{start}{tag}era" for tag in tags]
        # Braces around the id, which stand there without a cluster, would be the tag.
        before, self._after = ("", "") if is_cluster else ("{", "}")
        self._before = [f"{start}{tags[bucket]}{before}" for bucket in self.buckets]
        self.copies = f"{start}{{??}}:{'?' * 32}" if is_cluster else f"{start}{{*}}"
        """A pattern that matches the keys of all copies, and no other."""

    def key_of(self, operation_id: UUID) -> str:
        return f"{self._before[operation_id.int >> 120]}{operation_id.hex}{self._after}"

    def content_key(self, content: bytes) -> str:
        """The key of a content's digest, in the bucket of its first byte."""
        tag = f"{{{content[0]:02x}}}:" if self.is_cluster else ""
        return f"{self.prefix}{tag}content:{content.hex()}"


_MAGIC: Final = b"igR"
ERA_BYTES: Final = 16
VERSION: Final = 1
# Magic, token, the era of the server, the version of what follows, the end of the window in µs of the server's clock,
# and a checksum of the record.
_HEAD: Final = struct.Struct(f">3sQ{ERA_BYTES}sBQI")
# A copy has not what was asked and what happened, the last columns of a record. No kind follows them.
_NOT_COPIED: Final = ("", None, None, None)
_NO_KIND: Final = None
_COMPLETED: Final = State.COMPLETED


def encode(record: Record, era: bytes, expires_us: int) -> bytes:
    """The entry of a completed record, valid in this era until `expires_us` of the server's clock."""
    if record.state is not _COMPLETED or record.response is None:
        raise ValueError("only a completed record has an entry")
    packed = pack((*rows.encode(record)[: -len(_NOT_COPIED)], record.response.body))
    return _HEAD.pack(_MAGIC, record.token, era, VERSION, expires_us, crc32(packed)) + packed


def decode(entry: bytes, operation_id: UUID, era: bytes) -> tuple[Record, int] | None:
    """The record and its `expires_us`, if these bytes are an entry of this operation in this era; else None."""
    try:
        kind, _, entry_era, version, expires_us, checksum = _HEAD.unpack_from(entry)
        if kind != _MAGIC or entry_era != era or version != VERSION or crc32(entry[_HEAD.size :]) != checksum:
            return None
        values = unpack(entry, _HEAD.size)
        record = rows.decode((None, *values[:-1], *_NOT_COPIED, _NO_KIND, values[-1]))
    except (struct.error, ValueError, LookupError, Unreadable):
        # Of other columns than these, too.
        return None
    return (record, expires_us) if record.identity.operation_id == operation_id else None


# -- a master ----------------------------------------------------------------------------------------------------------

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


class Node:
    """A master: the link to it, the eras of its buckets, and the batches that wait for it. Who has it calls `check` as
    long as it is used, and then `close`. It knows which buckets it has been given, and not why."""

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
        generation = keys.generation.ljust(_GENERATION_BYTES, b"\0")
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


# -- the fast tier -----------------------------------------------------------------------------------------------------

# Enough of a digest to tell the stores of one Redis apart; a key is as much longer.
_STORE_DIGITS: Final = 16

# Keys of one step of a walk over all of them: the server does nothing else meanwhile.
_SCANNED_KEYS: Final = 500

# While a master is missing it is looked for this often; and there is a pause before each look.
_MISSING_SECONDS: Final = 0.5
_PAUSE_SECONDS: Final = 0.1


class RedisFastTier:
    """The `FastTier` on Redis. Satisfies the protocol of `base`; an unreachable server never fails `start`."""

    def __init__(self, url: str, *, clock: Callable[[], float] = boot_seconds, sealing: Sealing = NO_SEALING) -> None:
        """`sealing` opens the copies, which are of records as they are stored. Raises ValueError when the URL is none
        of Redis's."""
        self._access = parse(url)
        self._wake = asyncio.Event()
        self._is_cluster = self._access.kind == "cluster"
        self._keys = Keyspace("", "", is_cluster=self._is_cluster)
        self._generation: str | None = None
        self._slots = [slot_of(key) for key in self._keys.era_keys]
        self._new_node = partial(
            Node, self._access, clock=clock, sealing=sealing, on_change=self._on_node, on_moved=self._wake.set
        )
        self._nodes: dict[Address, Node] = {}
        # By the first byte of an operation's id.
        self._routes: list[Node | None] = [None] * PARTS
        self._news = News(self._news_link, self._channel_of)
        self.watch, self.on_purge = self._news.watch, self._news.on_purge
        self._change_listeners: list[Callable[[bool, str], None]] = []
        self._look_seconds = _MISSING_SECONDS
        self._is_reached = False
        self._why_no_master = ""
        self._reported = (False, "")
        # The masters that are not up, as was logged while the tier was.
        self._missing: set[Address] = set()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def up(self) -> bool:
        return self._is_reached and self._keys.prefix != ""

    @property
    def has_forgotten(self) -> bool:
        return None not in self._routes and all(node.knows_all_eras for node in self._nodes.values())

    def bind(self, identity: str, generation: str | None = None) -> None:
        """Serve only the store with this `Epoch.identity`."""
        store = sha256(lineage(identity).encode()).hexdigest()[:_STORE_DIGITS]
        prefix = f"{KEY_PREFIX}{store}:"
        if prefix == self._keys.prefix and generation in (None, self._generation):
            return
        self._generation = generation
        self._use(Keyspace(prefix, generation or "", is_cluster=self._is_cluster))

    def _use(self, keys: Keyspace) -> None:
        self._keys = keys
        for node in self._nodes.values():
            node.bind(keys)
        self._wake.set()
        self._note_change()

    async def drop_copies(self) -> int:
        """Delete all copies of the bound store; returns how many. Needs no `start`. Raises `StoreError`.

        Gateways that run make new copies, of what the durable store has then.
        """
        masters = await find_masters(self._access)
        return sum([await self._drop_copies_at(address) for address in masters.slots])

    async def _drop_copies_at(self, address: Address) -> int:
        cursor, dropped = None, 0
        link = await self._access.open(address)
        try:
            while cursor != b"0":
                scan = ("SCAN", cursor or b"0", "MATCH", self._keys.copies, "COUNT", _SCANNED_KEYS)
                (page,) = await link.exchange([scan], PUT_SECONDS)
                keys = () if refusal(page) else page[1]
                # One by one: in a cluster they are of several slots.
                replies = await link.exchange([("UNLINK", key) for key in keys], PUT_SECONDS)
                if why := next(filter(None, map(refusal, (page, *replies))), ""):
                    raise NotApplied(f"Redis refused: {why}")
                cursor, dropped = page[0], dropped + sum(replies)
            return dropped
        finally:
            link.close()

    def on_change(self, listener: Callable[[bool, str], None]) -> None:
        self._change_listeners.append(listener)

    async def start(self) -> None:
        if self._tasks:
            return
        await self._look()
        running = (listen_for_masters(self._access, self._wake.set), self._keep())
        self._tasks = [asyncio.create_task(each) for each in running]
        self._news.start()

    async def close(self) -> None:
        tasks, self._tasks = self._tasks, []
        await self._news.close()
        await end_tasks(tasks)
        nodes, self._nodes, self._routes = list(self._nodes.values()), {}, [None] * PARTS
        await asyncio.gather(*(node.close() for node in nodes))
        self._is_reached = False

    def get(self, operation_id: UUID) -> Awaitable[Snapshot | None]:
        return self._node_for(operation_id.int >> 120).gets.submit(operation_id)

    def put(self, snapshot: Snapshot, started_seconds: float) -> Awaitable[None]:
        record = snapshot.record
        if record is None or record.state is not _COMPLETED:
            raise ValueError("only completed records may be put")
        operation_id = record.identity.operation_id
        return self._node_for(operation_id.int >> 120).put(operation_id, snapshot, started_seconds)

    def first_of(self, content: bytes, operation_id: UUID, within_ms: int) -> Awaitable[UUID | None]:
        return self._node_for(content[0]).first_of(self._keys.content_key(content), operation_id, within_ms)

    async def forget(self, operation_id: UUID, generation: str | None = None) -> None:
        # One that no other gateway knows ends any era.
        self._generation = generation
        self._use(Keyspace(self._keys.prefix, generation or uuid4().hex, is_cluster=self._is_cluster))
        if not self.up:
            raise NotApplied(DOWN)
        # A write without an era first reports this generation to the server. Each node tells of the purge when that is
        # done: whoever hears it last finds no copy any more.
        reached = [node for node in self._nodes.values() if node.is_reached]
        told = await asyncio.gather(
            *(node.publish(PURGES_CHANNEL, operation_id.hex) for node in reached), return_exceptions=True
        )
        for error in told:
            if isinstance(error, BaseException):
                raise error
        if not self.has_forgotten:
            raise NotApplied("not every master of the fast tier can be told of a purge")

    def announce(self, operation_id: UUID) -> Awaitable[None]:
        return self._node_for(operation_id.int >> 120).publish(self._keys.key_of(operation_id))

    def _node_for(self, part: int) -> Node:
        """Raises NotApplied where its node is down."""
        node = self._routes[part]
        if node is None or not node.is_reached or not self._keys.prefix:
            raise NotApplied(DOWN)
        return node

    async def _news_link(self) -> Link:
        """To any master: each passes on what was published at another."""
        nodes = [node for node in self._nodes.values() if node.is_reached] or list(self._nodes.values())
        if not nodes:
            raise NotApplied(DOWN)
        return await self._access.open(random.choice(nodes).address)  # noqa: S311 - to spread the load

    def _channel_of(self, operation_id: UUID) -> str:
        return self._keys.key_of(operation_id)

    async def _keep(self) -> None:
        """Look regularly, and when there is a reason to."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._look_seconds if self._is_whole else _MISSING_SECONDS):
                    await self._wake.wait()
            await asyncio.sleep(_PAUSE_SECONDS)
            await self._look()

    @property
    def _is_whole(self) -> bool:
        return None not in self._routes and all(node.is_reached for node in self._nodes.values())

    async def _look(self) -> None:
        """Find the masters, open and close nodes accordingly, and see which of them can be used."""
        self._wake.clear()
        try:
            found, self._look_seconds = await find_masters(self._access, self._nodes.keys())
        except StoreError as error:
            # What is known is used as long as it can be.
            found, self._why_no_master = None, str(error)
        if found is not None:
            self._why_no_master = ""
            nodes = {address: self._nodes.get(address) or self._new_node(address, self._keys) for address in found}
            owners = [next((each for each in found if _has(found[each], slot)), None) for slot in self._slots]
            for address, node in nodes.items():
                node.own(bucket for bucket, owner in enumerate(owners) if owner == address)
            routes = [owners[bucket] for bucket in self._keys.buckets]
            self._routes = [None if owner is None else nodes[owner] for owner in routes]
            left, self._nodes = [node for node in self._nodes.values() if node.address not in found], nodes
            self._news.leave_all_but(found)
            await asyncio.gather(*(node.close() for node in left))
        await asyncio.gather(*(node.check() for node in self._nodes.values()))
        self._note_change()

    def _on_node(self) -> None:
        if not self._is_whole:
            self._wake.set()
        self._note_change()

    def _note_change(self) -> None:
        """Report whether the tier is up, and log which of its masters are not."""
        down = {node.address: node.why_down for node in self._nodes.values() if not node.is_reached and node.why_down}
        self._is_reached = any(node.is_reached for node in self._nodes.values())
        if self._is_reached:
            for address in down.keys() - self._missing:
                _LOG.warning("%s; until then its share of the replays comes from the durable store", down[address])
            if self._missing and not down:
                _LOG.info("all masters of Redis can be used again")
            self._missing = set(down)
        why = "" if self._is_reached else "; ".join(down.values()) or self._why_no_master
        if (self.up or why) and (self.up, why) != self._reported:
            self._reported = (self.up, why)
            for listener in self._change_listeners:
                listener(self.up, why)


def _has(slots: Iterable[range], slot: int) -> bool:
    return any(slot in part for part in slots)
