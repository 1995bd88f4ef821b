"""The names of a shard's keys: what has one memory, and is changed by one script at a time.

Its keys have one hash tag, so that they are in one slot of a cluster. The slots of all shards lie evenly over the
cluster's. Without a cluster there is one shard. The operations of a shard are listed in parts, each of which has those
between two ids and is read as a whole. It knows no connections.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Final
from uuid import UUID

from gateway.core.operation import Record, State, in_doubt_since_us
from gateway.store.redis.keys import KEY_PREFIX, SLOTS, slot_of

SHARDS_OF_A_CLUSTER: Final = 16
# Of all shards together.
_PARTS: Final = 64
_FIRST_BYTES: Final = 256
# Of what stands in a member of a list.
_ID_BYTES: Final = 16
_SINCE_BYTES: Final = 8


class Shard:
    """The keys of the shard with this number, of so many."""

    def __init__(self, number: int, of: int) -> None:
        self.number = number
        self.of = of
        self.parts = range(number * _PARTS // of, (number + 1) * _PARTS // of)
        prefix = f"{KEY_PREFIX}{{{_tag(number, of)}}}:"
        self.slot = slot_of(prefix)
        self.memory = f"{prefix}memory"
        """A hash: the identity, the run and place that it was accepted at, the floor of tokens, memo and generation."""
        self.witnesses = f"{prefix}witnesses"
        self.tokens = f"{prefix}tokens"
        """The last token, as a score that only grows."""
        self.sealed = f"{prefix}sealed"
        """How many records are sealed with which keys."""
        self.audits = f"{prefix}audits"
        self.old_audits = f"{prefix}audits:old"
        """Audits by the time until which they are kept."""
        self.configuration = f"{prefix}configuration"
        self.gateways = f"{prefix}gateways"
        self.turns = f"{prefix}turns"
        self.trial = f"{prefix}trial"
        self._text, self._prefix = prefix, prefix.encode()

    def part_of(self, operation_id: UUID) -> int:
        return operation_id.bytes[0] * _PARTS // _FIRST_BYTES

    def leases(self, part: int) -> str:
        """The claimed operations of a part, by the end of their lease."""
        return f"{self._text}leases:{part}"

    def doubt(self, part: int) -> str:
        """Those in doubt, by the end of their lease; since when they are, and the route, stand behind the id."""
        return f"{self._text}doubt:{part}"

    def dead(self, part: int) -> str:
        """The dead letters."""
        return f"{self._text}dead:{part}"

    def due(self, part: int) -> str:
        """All others, by the time of their next row of the clock."""
        return f"{self._text}due:{part}"

    def lists(self, part: int) -> tuple[str, str, str, str]:
        """All of them: each operation is in one."""
        return self.leases(part), self.doubt(part), self.dead(part), self.due(part)

    def record(self, operation_id: UUID) -> bytes:
        return self._prefix + b"o:" + operation_id.bytes

    def body(self, operation_id: UUID) -> bytes:
        return self._prefix + b"b:" + operation_id.bytes

    def request(self, operation_id: UUID) -> bytes:
        return self._prefix + b"k:" + operation_id.bytes

    def recovery(self, operation_id: UUID) -> bytes:
        return self._prefix + b"r:" + operation_id.bytes

    def audits_of(self, operation_id: UUID) -> bytes:
        """A hash by number."""
        return self._prefix + b"a:" + operation_id.bytes

    def place_of(self, record: Record, due_us: int | None) -> tuple[str, bytes, int]:
        """The list that a record is in, under which name and with which score."""
        operation_id = record.identity.operation_id
        part = self.part_of(operation_id)
        match record.state:
            case State.CLAIMED:
                return self.leases(part), operation_id.bytes, record.lease_until_us
            case State.IN_DOUBT:
                since = in_doubt_since_us(record).to_bytes(_SINCE_BYTES)
                return (
                    self.doubt(part),
                    operation_id.bytes + since + record.identity.route.encode(),
                    record.lease_until_us,
                )
            case State.DEAD_LETTER:
                return self.dead(part), operation_id.bytes, record.claimed_us
        return self.due(part), operation_id.bytes, due_us or 0


def in_list_of_doubt(member: bytes) -> tuple[int, str]:
    """Since when the operation of a member of `Shard.doubt` is in doubt, and its route."""
    since, route = member[_ID_BYTES:][:_SINCE_BYTES], member[_ID_BYTES + _SINCE_BYTES :]
    return int.from_bytes(since), route.decode()


def shards(*, is_cluster: bool) -> Sequence[Shard]:
    """All shards, in the order of their operations' ids."""
    of = SHARDS_OF_A_CLUSTER if is_cluster else 1
    return [Shard(number, of) for number in range(of)]


def _tag(number: int, of: int) -> str:
    """A hash tag whose slot is in this shard's part of all slots."""
    tags = (f"{number:02x}-{attempt}" for attempt in count())
    return next(tag for tag in tags if slot_of(f"{{{tag}}}") * of // SLOTS == number)
