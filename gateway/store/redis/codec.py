"""The bytes of a completed record in the fast tier.

An entry has two parts. The *envelope* holds the era of the server and the time until which the entry is valid. The
*payload* holds the record with its operation id, so that an entry under a wrong key is recognised.

This file knows neither keys nor connections. Bytes that are not exactly an entry of this version decode to None:
another version, another program's value, a value that was cut.
"""

from __future__ import annotations

import struct
from typing import Final
from uuid import UUID

from gateway.core.message import StoredResponse
from gateway.core.operation import Event, Fingerprint, Identity, ProbeTarget, Record, State

_MAGIC: Final = b"igR"

ERA_BYTES: Final = 16
VERSION: Final = 1

# The head of an entry. The envelope: magic, token, the era of the server, the version of what follows, the end of the
# window in µs of the server's clock. The payload's head: operation id, attempt id, resolution id or zeros; attempts;
# first claimed, claimed, replay until, remember until, completed; status; last event; flags; the number of parts, whose
# lengths come next.
_ENTRY: Final = struct.Struct(f">3sQ {ERA_BYTES}sBQ 16s16s16sI5QHBBH")
_HAS_KEY, _HAS_FINGERPRINT, _HAS_RESOLUTION, _HAS_BODY, _HAS_PROBE = 1, 2, 4, 8, 16
_FIXED_PARTS: Final = 16
_ZEROS: Final = bytes(16)

_COMPLETED: Final = State.COMPLETED
# The events that complete a record, numbered in this order: a change of it needs a new `VERSION`.
_EVENTS: Final = (Event.COMPLETE, Event.PROVE)
_EVENT_NUMBERS: Final = {event: number for number, event in enumerate(_EVENTS)}


def encode(record: Record, era: bytes, expires_us: int) -> bytes:
    """The entry of a completed record, valid in this era until `expires_us` of the server's clock.

    Raises ValueError when the record does not fit the format.
    """
    response, completed_us = record.response, record.completed_us
    if record.state is not _COMPLETED or response is None or completed_us is None:
        raise ValueError("only a completed record has an entry")
    identity, fingerprint, probe = record.identity, record.fingerprint, record.probe
    flags = 0
    if identity.key is not None:
        flags |= _HAS_KEY
    if fingerprint is not None:
        flags |= _HAS_FINGERPRINT
    if record.resolution_id is not None:
        flags |= _HAS_RESOLUTION
    if response.body is not None:
        flags |= _HAS_BODY
    if probe is not None:
        flags |= _HAS_PROBE
    parts = [
        identity.route.encode(),
        identity.operation.encode(),
        identity.scope_digest,
        identity.key_digest,
        (identity.key or "").encode(),
        record.holder.encode(),
        *((fingerprint.recipe, fingerprint.digest, fingerprint.raw) if fingerprint else (b"", b"", b"")),
        *((fingerprint.key_id.encode(), fingerprint.parts) if fingerprint else (b"", b"")),
        *((probe.target, probe.host) if probe else (b"", b"")),
        (record.resource or "").encode(),
        response.version,
        response.reason,
    ]
    for header in response.headers:
        parts += header
    parts.append(response.body or b"")
    try:
        fixed = _ENTRY.pack(
            _MAGIC,
            record.token,
            era,
            VERSION,
            expires_us,
            identity.operation_id.bytes,
            record.attempt_id.bytes,
            record.resolution_id.bytes if record.resolution_id else _ZEROS,
            record.attempts,
            record.first_claimed_us,
            record.claimed_us,
            record.replay_until_us,
            record.remember_until_us,
            completed_us,
            response.status,
            _EVENT_NUMBERS[record.last_event],
            flags,
            len(parts),
        )
        lengths = struct.pack(f">{len(parts)}I", *map(len, parts))
    except (struct.error, KeyError) as error:
        raise ValueError(f"the record does not fit an entry: {error}") from None
    return b"".join((fixed, lengths, *parts))


def decode(entry: bytes, operation_id: UUID, era: bytes) -> tuple[Record, int] | None:
    """The record and its `expires_us`, if these bytes are an entry of this operation in this era; else None."""
    try:
        (
            kind, token, entry_era, version, expires_us, entry_id, attempt_id, resolution_id, attempts,
            first_claimed_us, claimed_us, replay_until_us, remember_until_us, completed_us,
            status, event_number, flags, part_count,
        ) = _ENTRY.unpack_from(entry)  # fmt: skip
        if kind != _MAGIC or entry_era != era or version != VERSION or entry_id != operation_id.bytes:
            return None
        parts, body = _parts(entry, _ENTRY.size, part_count)
        (
            route, operation, scope_digest, key_digest, key, holder, recipe, digest, raw, key_id, compared,
            probe_target, probe_host, resource, api_version, reason,
        ) = parts[:_FIXED_PARTS]  # fmt: skip
        headers = parts[_FIXED_PARTS:]
        # Positional arguments take a third of the time.
        record = Record(
            Identity(
                operation_id,
                route.decode(),
                operation.decode(),
                scope_digest,
                key_digest,
                key.decode() if flags & _HAS_KEY else None,
            ),
            _COMPLETED,
            token,
            UUID(bytes=attempt_id),
            _EVENTS[event_number],
            holder.decode(),
            None,  # carried_us
            Fingerprint(recipe, digest, raw, key_id.decode(), compared) if flags & _HAS_FINGERPRINT else None,
            attempts,
            first_claimed_us,
            claimed_us,
            0,  # lease_until_us
            replay_until_us,
            remember_until_us,
            completed_us,
            None,  # doubt
            UUID(bytes=resolution_id) if flags & _HAS_RESOLUTION else None,
            StoredResponse(
                status,
                reason,
                tuple(zip(headers[::2], headers[1::2], strict=True)),  # strict: no header without a value
                body if flags & _HAS_BODY else None,
                api_version,
            ),
            resource.decode() or None,
            ProbeTarget(probe_target, probe_host) if flags & _HAS_PROBE else None,
        )
    except (struct.error, ValueError, IndexError):
        return None
    return record, expires_us


def _parts(entry: bytes, offset: int, count: int) -> tuple[tuple[bytes, ...], bytes]:
    """The parts, the last one separately. Raises ValueError unless they end where the entry does."""
    lengths = struct.unpack_from(f">{count}I", entry, offset)
    start = offset + 4 * count
    if start + sum(lengths) != len(entry):
        raise ValueError("the parts do not fill the entry")
    # One call for all but the body: `struct` caches formats, and the body has another length each time.
    parts = struct.unpack_from("%ds" * (count - 1) % lengths[:-1], entry, start)
    return parts, entry[len(entry) - lengths[-1] :]
