"""What the durable store keeps in Redis: the names of keys, the bytes of a value, and one atomic change of several. It
knows no connections.

It has a memory, lists of operations, and what each operation has. The operations are listed in parts,
each of which has those between two ids and is read as a whole. A value is a revision, the version of the packing, and
columns; those of a record are the ones that the relational stores have. The revision is random: two values with one
revision are the same write. A `Change` says what must be as it was read, and what is then written; it is a call of
`lua/change.lua`, which decides nothing. `Kept` is an operation as it was read, and writes the record that `lifecycle`
returned for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from gateway.core.lifecycle import due_us, settle
from gateway.core.operation import Record, SealedRequest, State, in_doubt_since_us
from gateway.store.base import Unreadable
from gateway.store.redis.connection import RedisCommand, script
from gateway.store.redis.news import KEY_PREFIX
from gateway.store.relational.rows import COLUMNS, decode_whole, encode_whole, pack, unpack

_TEXT: Final = f"{KEY_PREFIX}durable:"

MEMORY: Final = f"{_TEXT}memory"
"""A hash: the identity, the run and place that it was accepted at, the floor of tokens, memo and generation."""
WITNESSES: Final = f"{_TEXT}witnesses"
TOKENS: Final = f"{_TEXT}tokens"
"""The last token, as a score that only grows."""
SEALED: Final = f"{_TEXT}sealed"
"""How many records are sealed with which keys."""
AUDITS: Final = f"{_TEXT}audits"
OLD_AUDITS: Final = f"{_TEXT}audits:old"
"""Audits by the time until which they are kept."""
ACTIVITY: Final = f"{_TEXT}activity"
"""The rows of activity by the time until which they are kept: the name of each in its hash, and that of the hash."""
CONFIGURATION: Final = f"{_TEXT}configuration"
GATEWAYS: Final = f"{_TEXT}gateways"
TURNS: Final = f"{_TEXT}turns"
_TRIAL: Final = f"{_TEXT}trial"

LIST_PARTS: Final = 64
_FIRST_BYTES: Final = 256
# Of what stands in a member of a list.
ID_BYTES: Final = 16
_SINCE_BYTES: Final = 8

LEASES: Final = [f"{_TEXT}leases:{part}" for part in range(LIST_PARTS)]
"""The claimed operations of each part, by the end of their lease."""
DOUBT: Final = [f"{_TEXT}doubt:{part}" for part in range(LIST_PARTS)]
"""Those in doubt, by the end of their lease; since when they are, and the route, stand behind the id."""
DUE: Final = [f"{_TEXT}due:{part}" for part in range(LIST_PARTS)]
"""All others, by the time of their next row of the clock."""
_NEVER: Final = "+inf"


def part_of(operation_id: UUID) -> int:
    return operation_id.bytes[0] * LIST_PARTS // _FIRST_BYTES


def _key_of(kind: str) -> Callable[[UUID], bytes]:
    prefix = f"{_TEXT}{kind}:".encode()
    return lambda operation_id: prefix + operation_id.bytes


record_key: Final = _key_of("o")
body_key: Final = _key_of("b")
request_key: Final = _key_of("k")
recovery_key: Final = _key_of("r")
audits_key: Final = _key_of("a")
"""A hash by number."""


def activity_key(service: str, span_us: int) -> bytes:
    """A hash by time and writer."""
    return f"{_TEXT}n:{span_us}:{service}".encode()


def place_of(record: Record | None) -> tuple[str, bytes, int | str] | None:
    """The list that the record is in, under which name and with which score."""
    if record is None:
        return None
    operation_id = record.identity.operation_id
    part = part_of(operation_id)
    if record.state is State.CLAIMED:
        return LEASES[part], operation_id.bytes, record.lease_until_us
    if record.state is State.IN_DOUBT:
        since = in_doubt_since_us(record).to_bytes(_SINCE_BYTES)
        return DOUBT[part], operation_id.bytes + since + record.identity.route.encode(), record.lease_until_us
    due = due_us(record)
    return DUE[part], operation_id.bytes, _NEVER if due is None else due


def in_list_of_doubt(member: bytes) -> tuple[int, str]:
    """Since when the operation of a member of `DOUBT` is in doubt, and its route."""
    since, route = member[ID_BYTES:][:_SINCE_BYTES], member[ID_BYTES + _SINCE_BYTES :]
    return int.from_bytes(since), route.decode()


SCRIPT: Final = script("change.lua")

REVISION_BYTES: Final = 16
"""As in `lua/change.lua`."""
PACKING: Final = 1
_VALUE_HEAD: Final = REVISION_BYTES + 1
_SEALED_BY: Final = COLUMNS.index("sealed_by")


def packed(values: tuple[Any, ...]) -> bytes:
    """A new value, with a revision of its own."""
    return os.urandom(REVISION_BYTES) + bytes((PACKING,)) + pack(values)


def unpacked(value: bytes) -> tuple[Any, ...]:
    """Undo `packed`. Raises `Unreadable` for what this program has not packed."""
    if len(value) < _VALUE_HEAD or value[REVISION_BYTES] != PACKING:
        raise Unreadable("a value in Redis was written by another version of this program, or is damaged")
    return unpack(value, _VALUE_HEAD)


@dataclass(slots=True)
class Change:
    """Conditions and commands."""

    frees: bool = False
    """Whether it is executed where the memory is full. A server refuses a script whose first write may need room, and
    that of such a change is a deletion."""
    floor: int | None = None
    """What the floor of tokens must be; None: anything."""
    is_due: bool = False
    """Whether it does anything: it writes, or sees whether the memory is still the same one."""
    _keys: dict[str | bytes, int] = field(default_factory=lambda: {MEMORY: 1, WITNESSES: 2})
    _conditions: list[str | bytes | int] = field(default_factory=list)
    _commands: list[str | bytes | int] = field(default_factory=list)

    def require(self, key: str | bytes, value: bytes | None) -> None:
        """The key has this value, or is absent."""
        self._conditions += (self._index(key), b"" if value is None else value[:REVISION_BYTES])

    def then(self, command: str, key: str | bytes, *arguments: str | bytes | int) -> None:
        self.is_due = True
        self._commands += (command, self._index(key), len(arguments), *arguments)

    def call(self, identity: str, link: bytes = b"", acknowledged: int = 0, number: int = 0) -> RedisCommand:
        """The call, on this memory. It raises the witness of the link from what was acknowledged last."""
        floor = "" if self.floor is None else self.floor
        head = (identity, floor, link, acknowledged, number, len(self._conditions) // 2)
        first = ("DEL", self._index(_TRIAL), 0) if self.frees else ()
        return ("EVALSHA", SCRIPT, len(self._keys), *self._keys, *head, *self._conditions, *first, *self._commands)

    def count_sealed(self, before: str | None, after: str | None) -> None:
        """Count that something is sealed with other keys than before; None: with none."""
        if before != after:
            for key_ids, by in ((before, -1), (after, 1)):
                if key_ids is not None:
                    self.then("HINCRBY", SEALED, key_ids, by)

    def _index(self, key: str | bytes) -> int:
        return self._keys.setdefault(key, len(self._keys) + 1)


def lesson() -> RedisCommand:
    """A call that leaves nothing behind, with every command that a change may have. A server whose memory is full
    executes it, too."""
    change = Change(frees=True)
    for kind, commands in _LESSON.items():
        for command, *arguments in commands:
            change.then(str(command), f"{_TRIAL}:{kind}", *arguments)
        change.then("DEL", f"{_TRIAL}:{kind}")
    return change.call("")


_LESSON: Final[dict[str, tuple[tuple[str | int, ...], ...]]] = {
    "string": (("SET", ""),),
    "hash": (("HSET", "a", ""), ("HSETNX", "b", ""), ("HDEL", "a"), ("HINCRBY", "c", 1)),
    "sorted": (("ZADD", "GT", 1, "a"), ("ZREM", "a"), ("ZREMRANGEBYSCORE", 0, 1)),
}

# What the clock alone may have brought into doubt is still written as claimed.
_DOUBTED: Final = (State.CLAIMED, State.IN_DOUBT)


@dataclass(slots=True)
class Kept:
    """An operation as it was read: the bytes of its record and of its body, the record, and with which keys that is
    sealed; None where there is none."""

    operation_id: UUID
    value: bytes | None
    body: bytes | None
    floor: int
    """That of tokens."""
    now_us: int
    record: Record | None = None
    sealed_by: str | None = None
    error: Unreadable | None = None
    """Why this program cannot read the record."""

    def __post_init__(self) -> None:
        if self.value is not None:
            try:
                row = unpacked(self.value)
                self.record, self.sealed_by = decode_whole(row, self.body), row[_SEALED_BY]
            except Unreadable as error:
                self.error = error

    @property
    def settled(self) -> Record | None:
        """The record as time has left it."""
        return settle(self.record, self.now_us)

    def require(self, change: Change) -> Change:
        """Make the change require the record to be as it was read."""
        change.require(record_key(self.operation_id), self.value)
        return change

    def replace(self, change: Change, after: Record | None, request: SealedRequest | None = None) -> None:
        """Write the record that the table returned, with the request that is kept from now on. The floor of tokens is
        raised over the token of a record that goes."""
        before = self.record
        is_new = before is None or after is None or after.identity is not before.identity
        if before is not None and is_new and before.token > self.floor:
            change.floor = self.floor
            change.then("HSET", MEMORY, "floor", max(before.token, self.now_us))
        self.write(change, after, request)

    def write(self, change: Change, after: Record | None, request: SealedRequest | None = None) -> None:
        """As `replace`, where no token goes."""
        operation_id, before = self.operation_id, self.record
        sealed_by = None
        if after is None:
            change.then("DEL", record_key(operation_id))
        else:
            row = encode_whole(after)
            sealed_by = row[_SEALED_BY]
            change.then("SET", record_key(operation_id), packed(row))
        change.count_sealed(self.sealed_by, sealed_by)
        was, is_ = place_of(before), place_of(after)
        if was is not None and (is_ is None or was[:2] != is_[:2]):
            change.then("ZREM", was[0], was[1])
        if is_ is not None and is_ != was:
            change.then("ZADD", is_[0], is_[2], is_[1])
        body = None if after is None or after.response is None else after.response.body
        if body is not None:
            change.then("SET", body_key(operation_id), body)
        elif self.body is not None:
            change.then("DEL", body_key(operation_id))
        if after is None or after.delivery is None:
            if before is not None and before.delivery is not None:
                change.then("DEL", request_key(operation_id))
        elif request is not None:
            value = packed((request.acceptance_id.bytes, request.key_id, request.sealed))
            change.then("SET", request_key(operation_id), value)
        if before is not None and before.state in _DOUBTED and not _is_same_doubt(before, after):
            change.then("DEL", recovery_key(operation_id))


def _is_same_doubt(before: Record, after: Record | None) -> bool:
    return after is not None and after.token == before.token and after.state is State.IN_DOUBT
