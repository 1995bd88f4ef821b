"""The names of what the durable store keeps: its memory, lists of operations, and what each operation has.

The operations are listed in parts, each of which has those between two ids and is read as a whole. It knows no
connections.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from gateway.core.operation import Record, State, in_doubt_since_us
from gateway.store.redis.copies import KEY_PREFIX
from gateway.store.relational.rows import COLUMNS, Row

_TEXT: Final = f"{KEY_PREFIX}durable:"
_PREFIX: Final = _TEXT.encode()

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
CONFIGURATION: Final = f"{_TEXT}configuration"
GATEWAYS: Final = f"{_TEXT}gateways"
TURNS: Final = f"{_TEXT}turns"
TRIAL: Final = f"{_TEXT}trial"

PARTS: Final = 64
_FIRST_BYTES: Final = 256
# Of what stands in a member of a list.
_ID_BYTES: Final = 16
_SINCE_BYTES: Final = 8

LEASES: Final = [f"{_TEXT}leases:{part}" for part in range(PARTS)]
"""The claimed operations of each part, by the end of their lease."""
DOUBT: Final = [f"{_TEXT}doubt:{part}" for part in range(PARTS)]
"""Those in doubt, by the end of their lease; since when they are, and the route, stand behind the id."""
DUE: Final = [f"{_TEXT}due:{part}" for part in range(PARTS)]
"""All others, by the time of their next row of the clock."""
_NEVER: Final = "+inf"

_DUE_US: Final = COLUMNS.index("due_us")


def part_of(operation_id: UUID) -> int:
    return operation_id.bytes[0] * PARTS // _FIRST_BYTES


def record_key(operation_id: UUID) -> bytes:
    return _PREFIX + b"o:" + operation_id.bytes


def body_key(operation_id: UUID) -> bytes:
    return _PREFIX + b"b:" + operation_id.bytes


def request_key(operation_id: UUID) -> bytes:
    return _PREFIX + b"k:" + operation_id.bytes


def recovery_key(operation_id: UUID) -> bytes:
    return _PREFIX + b"r:" + operation_id.bytes


def audits_key(operation_id: UUID) -> bytes:
    """A hash by number."""
    return _PREFIX + b"a:" + operation_id.bytes


def place_of(record: Record | None, row: Row | None) -> tuple[str, bytes, int | str] | None:
    """The list that the record with these columns is in, under which name and with which score."""
    if record is None or row is None:
        return None
    operation_id = record.identity.operation_id
    part = part_of(operation_id)
    if record.state is State.CLAIMED:
        return LEASES[part], operation_id.bytes, record.lease_until_us
    if record.state is State.IN_DOUBT:
        since = in_doubt_since_us(record).to_bytes(_SINCE_BYTES)
        return DOUBT[part], operation_id.bytes + since + record.identity.route.encode(), record.lease_until_us
    due_us = row[_DUE_US]
    return DUE[part], operation_id.bytes, _NEVER if due_us is None else due_us


def in_list_of_doubt(member: bytes) -> tuple[int, str]:
    """Since when the operation of a member of `DOUBT` is in doubt, and its route."""
    since, route = member[_ID_BYTES:][:_SINCE_BYTES], member[_ID_BYTES + _SINCE_BYTES :]
    return int.from_bytes(since), route.decode()
