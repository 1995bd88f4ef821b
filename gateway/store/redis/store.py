"""Redis as the fast tier: acknowledged records for replay, and news for waiters. It never grants a claim.

It knows nothing of work in flight. Its invariant: no entry is served after the record's window ended, nor after a purge
that was reported to the tier.

Theory of operation
-------------------
*Windows.* An entry expires at a time of Redis's own clock. Each batch of writes brings a reading of that clock; Redis's
time at an earlier local moment `m` was at least `reading - (local time after the reply - m)`, so counting the window
from there can only end it too early. An entry ends with its window also where its writer froze in between. A read
computes the time left, and asks for `TIME` after the entries, so that the time left is never too long.

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
Each server that is found is a `Node`. The route of an operation is by the first byte of its id. In a cluster each byte
is a bucket with an era of its own; an era is bound to a server process, so what is copied or moved to another node is
not believed there. Another address, or a bucket at another node, begins with an unknown era: each purge is reported to
it anew. While a slot is moved, Redis refuses commands of several keys in it, and its operations have no copies.

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
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import Any, Final
from uuid import UUID, uuid4

from gateway.core.confidential import NO_SEALING, Sealing
from gateway.core.operation import MICROSECONDS, Snapshot, State
from gateway.store.base import NotApplied, StoreError, boot_seconds, end_tasks
from gateway.store.memory.epoch import FORMER_MAX, Seen, WitnessNote, lineage
from gateway.store.redis.connection import (
    Address,
    Link,
    find_masters,
    listen_for_masters,
    parse,
    refusal,
    script,
    slot_of,
)
from gateway.store.redis.layout import KEY_PREFIX, PARTS, PURGES_CHANNEL, Keyspace
from gateway.store.redis.news import News
from gateway.store.redis.node import DOWN, PUT_SECONDS, Node

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


# -- the fast tier -----------------------------------------------------------------------------------------------------

# Enough of a digest to tell the stores of one Redis apart; a key is as much longer.
_STORE_DIGITS: Final = 16

# Keys of one step of a walk over all of them: the server does nothing else meanwhile.
_SCANNED_KEYS: Final = 500

# While a master is missing it is looked for this often; and there is a pause before each look.
_MISSING_SECONDS: Final = 0.5
_PAUSE_SECONDS: Final = 0.1

_COMPLETED: Final = State.COMPLETED

_LOG = logging.getLogger("gateway")


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
