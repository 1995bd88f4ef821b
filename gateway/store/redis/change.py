"""What the durable store writes: the bytes of a value, and one atomic change of several.

A value is a revision, the version of the packing, and columns; those of a record are the ones that the relational
stores have. The revision is random: two values with one revision are the same write. A `Change` says what must be as it
was read, and what is then written; it is a call of `lua/change.lua`, which decides nothing. `Kept` is an operation as
it was read, and writes the record that `lifecycle` returned for it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from gateway.core.operation import Record, SealedRequest, State
from gateway.store.base import Unreadable
from gateway.store.redis import layout
from gateway.store.redis.connection import RedisCommand, script
from gateway.store.relational.packing import pack, unpack
from gateway.store.relational.rows import COLUMNS, Row, decode_whole, encode_whole

SCRIPT: Final = script("change.lua")

DONE: Final = b"OK"
MEMORY: Final = b"MEMORY"
WITNESS: Final = b"WITNESS"
"""Replies of the script. Any other says that something else was changed meanwhile."""

REVISION_BYTES: Final = 16
"""As in `lua/change.lua`."""
PACKING: Final = 1
_HEAD: Final = REVISION_BYTES + 1
_SEALED_BY: Final = COLUMNS.index("sealed_by")


def packed(values: tuple[Any, ...]) -> bytes:
    """A new value, with a revision of its own."""
    return os.urandom(REVISION_BYTES) + bytes((PACKING,)) + pack(values)


def unpacked(value: bytes) -> tuple[Any, ...]:
    """Undo `packed`. Raises `Unreadable` for what this program has not packed."""
    if len(value) < _HEAD or value[REVISION_BYTES] != PACKING:
        raise Unreadable("a value in Redis was written by another version of this program, or is damaged")
    return unpack(value, _HEAD)


@dataclass(slots=True)
class Witnessed:
    """The witness that a change raises: the link, the number that was acknowledged last, and the next one."""

    link: UUID
    acknowledged: int
    number: int


@dataclass(slots=True)
class Change:
    """Conditions and commands."""

    floor: int | None = None
    """What the floor of tokens must be; None: anything."""
    _keys: dict[str | bytes, int] = field(default_factory=lambda: {layout.MEMORY: 1, layout.WITNESSES: 2})
    _conditions: list[str | bytes | int] = field(default_factory=list)
    _commands: list[str | bytes | int] = field(default_factory=list)

    def require(self, key: str | bytes, value: bytes | None) -> None:
        """The key has this value, or is absent."""
        self._conditions += (self._index(key), b"" if value is None else value[:REVISION_BYTES])

    def then(self, command: str, key: str | bytes, *arguments: str | bytes | int) -> None:
        self._commands += (command, self._index(key), len(arguments), *arguments)

    def free(self) -> None:
        """To be called first: a server whose memory is full refuses a script whose first write may need room, and a
        deletion needs none."""
        self.then("DEL", layout.TRIAL)

    def call(self, identity: str, witnessed: Witnessed | None = None) -> RedisCommand:
        """The call, on this memory."""
        witness = ("", 0, 0) if witnessed is None else (witnessed.link.bytes, witnessed.acknowledged, witnessed.number)
        held = "" if self.floor is None else self.floor
        conditions = len(self._conditions) // 2
        head = (identity, held, *witness, conditions)
        return ("EVALSHA", SCRIPT, len(self._keys), *self._keys, *head, *self._conditions, *self._commands)

    def count_sealed(self, before: str | None, after: str | None) -> None:
        """Count that something is sealed with other keys than before; None: with none."""
        if before != after:
            for key_ids, by in ((before, -1), (after, 1)):
                if key_ids is not None:
                    self.then("HINCRBY", layout.SEALED, key_ids, by)

    def _index(self, key: str | bytes) -> int:
        return self._keys.setdefault(key, len(self._keys) + 1)


def lesson() -> RedisCommand:
    """A call that leaves nothing behind, with every command that a change may have. A server whose memory is full
    executes it, too."""
    change = Change()
    change.free()
    for kind, commands in _LESSON.items():
        for command, *arguments in commands:
            change.then(str(command), f"{layout.TRIAL}:{kind}", *arguments)
        change.then("DEL", f"{layout.TRIAL}:{kind}")
    return change.call("")


_LESSON: Final[dict[str, tuple[tuple[str | int, ...], ...]]] = {
    "string": (("SET", ""),),
    "hash": (("HSET", "a", ""), ("HSETNX", "b", ""), ("HDEL", "a"), ("HINCRBY", "c", 1)),
    "sorted": (("ZADD", "GT", 1, "a"), ("ZREM", "a"), ("ZREMRANGEBYSCORE", 0, 1)),
}


@dataclass(slots=True)
class Kept:
    """An operation as it was read: the bytes of its record, and the record; None where there is none."""

    operation_id: UUID
    value: bytes | None = None
    record: Record | None = None
    has_body: bool = False
    row: Row | None = None
    """The columns of the record."""

    def change(self) -> Change:
        """A change that requires the record to be as it was read."""
        change = Change()
        change.require(layout.record_key(self.operation_id), self.value)
        return change

    def replace(
        self, change: Change, after: Record | None, floor: int, now_us: int, request: SealedRequest | None = None
    ) -> None:
        """Write the record that the table returned, with the request that is kept from now on. The floor of tokens, as
        it was read with the record, is raised over the token of a record that goes."""
        before = self.record
        is_new = before is None or after is None or after.identity is not before.identity
        if before is not None and is_new and before.token > floor:
            change.floor = floor
            change.then("HSET", layout.MEMORY, "floor", max(before.token, now_us))
        self.write(change, after, request)

    def write(self, change: Change, after: Record | None, request: SealedRequest | None = None) -> None:
        """As `replace`, where no token goes."""
        operation_id, before = self.operation_id, self.record
        row = None if after is None else encode_whole(after)
        if row is None:
            change.then("DEL", layout.record_key(operation_id))
        else:
            change.then("SET", layout.record_key(operation_id), packed(row))
        was, is_ = layout.place_of(before, self.row), layout.place_of(after, row)
        if was is not None and (is_ is None or was[:2] != is_[:2]):
            change.then("ZREM", was[0], was[1])
        if is_ is not None and is_ != was:
            change.then("ZADD", is_[0], is_[2], is_[1])
        change.count_sealed(sealed_by_of(self.row), sealed_by_of(row))
        body = None if after is None or after.response is None else after.response.body
        if body is not None:
            change.then("SET", layout.body_key(operation_id), body)
        elif self.has_body:
            change.then("DEL", layout.body_key(operation_id))
        if after is None or after.delivery is None:
            if before is not None and before.delivery is not None:
                change.then("DEL", layout.request_key(operation_id))
        elif request is not None:
            value = packed((request.acceptance_id.bytes, request.key_id, request.sealed))
            change.then("SET", layout.request_key(operation_id), value)
        if before is not None and before.state in _DOUBTED and not _is_same_doubt(before, after):
            change.then("DEL", layout.recovery_key(operation_id))


# What the clock alone may have brought into doubt is still written as claimed.
_DOUBTED: Final = (State.CLAIMED, State.IN_DOUBT)


def kept(operation_id: UUID, value: bytes | None, body: bytes | None) -> Kept | Unreadable:
    """The operation whose record and body have these bytes, or why this program cannot read it."""
    if value is None:
        return Kept(operation_id, has_body=body is not None)
    try:
        row = unpacked(value)
        return Kept(operation_id, value, decode_whole(row, body), body is not None, row)
    except Unreadable as error:
        return error


def _is_same_doubt(before: Record, after: Record | None) -> bool:
    return after is not None and after.token == before.token and after.state is State.IN_DOUBT


def sealed_by_of(row: Row | None) -> str | None:
    """With which keys the columns of a record are sealed; None: with none, or there is none."""
    found: str | None = None if row is None else row[_SEALED_BY]
    return found
