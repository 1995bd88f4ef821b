"""Copies in the fast tier: the names of their keys, by bucket, and the bytes of a copy.

A bucket is what has one era. Its keys have one hash tag, so that they are at one node and one script may use them.
Without a cluster there is one bucket, and no tag that matters.

A copy is called an entry. It begins with the era of the server and the time until which it is valid; behind that is the
record, as it is where there are no tables, so that an entry under a wrong key is recognised. Bytes that are not exactly
an entry of this version are None: another version, another program's value, a value that was cut. It knows no
connections.
"""

from __future__ import annotations

import struct
from hashlib import sha256
from typing import Final
from uuid import UUID
from zlib import crc32

from gateway.core.operation import Record, State
from gateway.store.base import Unreadable
from gateway.store.relational import rows
from gateway.store.relational.packing import pack, unpack

KEY_PREFIX: Final = "idempotency-gateway:"
PURGES_CHANNEL: Final = f"{KEY_PREFIX}purges"
CHANGES_CHANNEL: Final = f"{KEY_PREFIX}changes:"
"""Where Redis is the durable store, the id of an operation behind it is the channel of its changes."""
# As in `lua/era.lua`.
GENERATION_BYTES: Final = 16

PARTS: Final = 256
"""Operations are spread over the buckets by the first byte of their id."""


class Keyspace:
    """The keys of one durable store, whose purges have come to this generation. Compared by identity: each change of
    either makes a new one."""

    def __init__(self, prefix: str, generation: str, *, is_cluster: bool) -> None:
        """An empty prefix is that of no store. `generation` is empty where it is not known."""
        self.prefix = prefix
        self.generation = sha256(generation.encode()).digest()[:GENERATION_BYTES] if generation else b""
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
