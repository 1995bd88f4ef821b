"""Rows of Postgres and records of the core, one into the other.

It owns the order of a record's columns, which every statement that returns records takes from here, and the bytes in
which header fields are kept. It does no I/O, and knows neither states' meaning nor statements. What it cannot read,
because a newer program wrote it, is an error: never a guess.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from gateway.core.lifecycle import epitaph
from gateway.core.message import Headers, StoredResponse
from gateway.core.operation import Event, Fingerprint, Identity, ProbeTarget, Record, State
from gateway.store.base import Withheld
from gateway.store.request_line import request_of

RECORD_VERSION: Final = 1

_COLUMNS: Final = (
    "operation_id", "attempt_id", "resolution_id", "token", "first_claimed_us", "claimed_us", "lease_until_us",
    "replay_until_us", "remember_until_us", "completed_us", "attempts", "drop_day", "version", "status",
    "carries_doubt", "state", "last_event", "doubt", "holder", "route", "operation", "scope_digest", "key_digest",
    "key", "recipe", "digest", "raw", "key_id", "location", "probe_target", "probe_host",
    "request", "request_id", "trace_id",
)  # fmt: skip
WIDTH: Final = len(_COLUMNS)

# What `{record}` and `{no_record}` stand for in the statements.
RECORD: Final = ", ".join(f"o.{column}" for column in _COLUMNS)
NO_RECORD: Final = ", ".join(["NULL"] * WIDTH)

_STATES: Final = {state.value: state for state in State if state is not State.ABSENT}
_EVENTS: Final = {event.value: event for event in Event}

_LENGTHS: Final = struct.Struct(">II")
_FORMAT: Final = b"\x01"


def pack_headers(headers: Headers) -> bytes:
    """The fields in order, each part behind its length, behind the number of this format."""
    parts = [_FORMAT]
    for name, value in headers:
        parts += (_LENGTHS.pack(len(name), len(value)), name, value)
    return b"".join(parts)


def unpack_headers(packed: bytes) -> Headers:
    """Undo `pack_headers`. Raises `Withheld` for another format."""
    if packed[:1] != _FORMAT:
        raise Withheld("an answer in the store is in a format that this program does not know")
    fields = []
    offset, end = 1, len(packed)
    while offset < end:
        name_bytes, value_bytes = _LENGTHS.unpack_from(packed, offset)
        name_from = offset + _LENGTHS.size
        value_from = name_from + name_bytes
        offset = value_from + value_bytes
        fields.append((packed[name_from:value_from], packed[value_from:offset]))
    return tuple(fields)


def pack_location(headers: Headers) -> bytes | None:
    """What a tombstone keeps of the fields, None for nothing."""
    kept = tuple(field for field in headers if field[0].lower() == b"location")
    return pack_headers(kept) if kept else None


def record_of(values: Sequence[Any]) -> Record | None:
    """The record in the columns of `RECORD`, None when they are all null.

    Of an answer it has what the row itself has, status and `Location`: enough to go on with, not to replay. It has no
    `Location` where that cannot be read, so that an answer in a newer format can be purged all the same.
    Raises `Withheld` for a record that a newer program wrote.
    """
    (
        operation_id, attempt_id, resolution_id, token, first_claimed_us, claimed_us, lease_until_us,
        replay_until_us, remember_until_us, completed_us, attempts, _, version, status,
        carries_doubt, state, last_event, doubt, holder, route, operation, scope_digest, key_digest,
        key, recipe, digest, raw, key_id, location, probe_target, probe_host,
        request, request_id, trace_id,
    ) = values  # fmt: skip
    if operation_id is None:
        return None
    if version != RECORD_VERSION or state not in _STATES or last_event not in _EVENTS:
        raise Withheld(f"operation {operation_id} was written by a newer program; this one must not touch it")
    response = None
    if status is not None:
        has_location = location is not None and location[:1] == _FORMAT
        response = StoredResponse(status, b"", unpack_headers(location) if has_location else (), None)
    return Record(
        Identity(operation_id, route, operation, scope_digest, key_digest, key),
        _STATES[state],
        token,
        attempt_id,
        _EVENTS[last_event],
        holder,
        carries_doubt,
        None if recipe is None else Fingerprint(recipe, digest, raw, key_id),
        attempts,
        first_claimed_us,
        claimed_us,
        lease_until_us,
        replay_until_us,
        remember_until_us,
        completed_us,
        doubt,
        resolution_id,
        response,
        None if probe_target is None else ProbeTarget(probe_target, probe_host),
        request_of(request, request_id, trace_id),
    )


def with_answer(record: Record, reason: bytes | None, headers: bytes | None, body: bytes | None) -> Record:
    """A completed record with what the answers' table has of it: its answer or, when that has left, a tombstone."""
    if record.response is None or reason is None or headers is None:
        return replace(record, state=State.TOMBSTONE, response=epitaph(record.response), replay_until_us=0)
    return replace(record, response=StoredResponse(record.response.status, reason, unpack_headers(headers), body))
