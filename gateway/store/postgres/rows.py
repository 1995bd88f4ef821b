"""Converts between rows of Postgres and records of the core.

It owns the list of a record's columns, which all statements that return or write records use, and the packed form of
headers. It does no I/O, and knows neither what states mean nor the statements. What it cannot read, because a newer
program wrote it, is an error: it never guesses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from gateway.core.confidential import kept_headers, sealed_by
from gateway.core.lane import rank, stopped_us
from gateway.core.lifecycle import due_us, tombstone_response
from gateway.core.message import StoredResponse
from gateway.core.operation import Delivery, Event, Fingerprint, Identity, ProbeTarget, Record, State
from gateway.store.base import Unreadable
from gateway.store.level import RECORD_VERSIONS
from gateway.store.request_line import line_of, request_of

# How much later `due_us` of a claim is than the expected end of its response's window.
DUE_SLACK_US: Final = 5_000_000

# How soon upkeep checks again whether a tombstone can leave the table.
_MOVE_PAUSE_US: Final = 600_000_000

# The columns that a change may write, in the order of `encode`, with the types of their arrays.
_CHANGED: Final = {
    "attempt_id": "uuid", "resolution_id": "uuid", "token": "bigint", "first_claimed_us": "bigint",
    "claimed_us": "bigint", "lease_until_us": "bigint", "replay_until_us": "bigint", "remember_until_us": "bigint",
    "completed_us": "bigint", "attempts": "integer", "lease_us": "integer", "status": "smallint",
    "carried_us": "bigint", "is_kept": "boolean", "route": "text", "key": "text", "state": "text",
    "last_event": "text", "doubt": "text",
    "holder": "text", "recipe": "bytea", "digest": "bytea", "raw": "bytea", "key_id": "text", "parts": "bytea",
    "resource": "bytea", "api_version": "bytea",
    "probe_target": "bytea", "probe_host": "bytea", "request": "text", "request_id": "text",
    "trace_id": "text",
}  # fmt: skip
# The columns that no change writes: the id is derived from them.
_FIXED: Final = ("operation_id", "version", "operation", "of_service", "scope_digest", "key_digest")
# The store's own columns; the migration explains them.
_OWN: Final = {"due_us": "bigint", "attention_us": "bigint", "sealed_by": "text"}

_RECORD: Final = (*_FIXED, *_CHANGED)
_WRITTEN: Final = {"operation_id": "uuid", **_CHANGED, **_OWN}
WIDTH: Final = len(_RECORD)
_KEPT_PLACE: Final = _RECORD.index("is_kept")

# The columns of a delivery that a change may write, with the types of their arrays; the first are those of `Delivery`.
_DELIVERY: Final = {
    "service": "text", "acceptance_id": "uuid", "accepted_us": "bigint", "since_us": "bigint",
    "next_attempt_us": "bigint", "deliver_until_us": "bigint", "request_bytes": "integer", "answers": "integer",
    "failure": "text", "reason": "text", "lane": "bytea", "lane_number": "bigint", "stops_lane": "boolean",
    "is_behind": "boolean",
}  # fmt: skip
LANE_PLACE: Final = tuple(_DELIVERY).index("lane")
_WAITING: Final = (State.ACCEPTED, State.DEAD_LETTER)


def _named(columns: Sequence[str]) -> str:
    return ", ".join(f"o.{column}" for column in columns)


# For statements: the columns of a record in `o`; those and the store's own; and nulls in place of a record.
RECORD: Final = _named(_RECORD)
ROW: Final = _named((*_RECORD, "drop_day", *_OWN))
NO_RECORD: Final = ", ".join(["NULL"] * WIDTH)
# For the statement that writes changes: its arrays, their names, and what it sets from them.
CHANGE_ARRAYS: Final = ", ".join(f"${place}::{kind}[]" for place, kind in enumerate(_WRITTEN.values(), start=1))
CHANGE_NAMES: Final = ", ".join(_WRITTEN)
CHANGE_SETS: Final = ", ".join(f"{column} = c.{column}" for column in (*_CHANGED, *_OWN))
# The columns of a delivery in `d`, and in `o` beside its record; and, for the statement that writes deliveries, its
# arrays, their names, and what it sets from them.
DELIVERY: Final = ", ".join(f"d.{column}" for column in _DELIVERY)
FOUND_DELIVERY: Final = _named(tuple(_DELIVERY))
DELIVERY_WIDTH: Final = len(_DELIVERY)
_DERIVED: Final = {"waits": "text", "lane_rank": "bigint", "stopped_us": "bigint"}
_KEPT: Final = {"operation_id": "uuid", **_DELIVERY, **_DERIVED}
DELIVERY_ARRAYS: Final = ", ".join(f"${place}::{kind}[]" for place, kind in enumerate(_KEPT.values(), start=1))
DELIVERY_NAMES: Final = ", ".join(_KEPT)
DELIVERY_VALUES: Final = ", ".join(f"c.{column}" for column in _KEPT)
DELIVERY_SETS: Final = ", ".join(f"{column} = excluded.{column}" for column in (*_DELIVERY, *_DERIVED))

_STATES: Final = {state.value: state for state in State if state is not State.ABSENT}
_EVENTS: Final = {event.value: event for event in Event}


@dataclass(frozen=True, slots=True)
class Row:
    """A record as stored, and the store's own columns."""

    record: Record
    drop_day: int | None
    due_us: int | None
    attention_us: int | None
    sealed_by: str | None


def pack_resource(resource: str | None) -> bytes | None:
    """A resource as one value."""
    return None if resource is None else resource.encode()


def is_kept(values: Sequence[Any]) -> bool:
    """Whether the record in the columns of `RECORD` has a delivery, which those do not show."""
    return bool(values[_KEPT_PLACE])


def record_of(values: Sequence[Any], delivery: Sequence[Any] = ()) -> Record | None:
    """The record in the columns of `RECORD`, with its delivery in those of `DELIVERY`; None when they are all null.

    Its response has only what is in the row, without reason and headers: enough for the table, not for a replay.
    Raises `Unreadable` for a record that a newer program wrote, and for one without the delivery that it should have.
    """
    (
        operation_id, version, operation, service, scope_digest, key_digest,
        attempt_id, resolution_id, token, first_claimed_us, claimed_us, lease_until_us, replay_until_us,
        remember_until_us, completed_us, attempts, lease_us, status, carried_us, has_delivery, route, key, state,
        last_event, doubt, holder, recipe, digest, raw, key_id, parts, resource, api_version, probe_target,
        probe_host, request, request_id, trace_id,
    ) = values  # fmt: skip
    if operation_id is None:
        return None
    if version not in RECORD_VERSIONS or state not in _STATES or last_event not in _EVENTS:
        raise Unreadable(f"operation {operation_id} was written by a newer program; this one must not touch it")
    if has_delivery and (not delivery or delivery[0] is None):
        raise Unreadable(f"operation {operation_id} keeps a request, and what is known of its delivery is missing")
    return Record(
        Identity(operation_id, route, operation, scope_digest, key_digest, key, service),
        _STATES[state],
        token,
        attempt_id,
        _EVENTS[last_event],
        holder,
        carried_us,
        None if recipe is None else Fingerprint(recipe, digest, raw, key_id, parts or b""),
        attempts,
        first_claimed_us,
        claimed_us,
        lease_until_us,
        replay_until_us,
        remember_until_us,
        completed_us,
        doubt,
        resolution_id,
        None if status is None else StoredResponse(status, b"", (), None, api_version or b""),
        None if resource is None else resource.decode(),
        None if probe_target is None else ProbeTarget(probe_target, probe_host),
        request_of(request, request_id, trace_id),
        Delivery(*delivery) if has_delivery else None,
        lease_us,
    )


def row_of(values: Sequence[Any], delivery: Sequence[Any] = ()) -> Row | None:
    """The row in the columns of `ROW`; otherwise as `record_of`."""
    record = record_of(values[:WIDTH], delivery)
    return None if record is None else Row(record, *values[WIDTH:])


def with_response(record: Record, reason: bytes | None, headers: bytes | None, body: bytes | None) -> Record:
    """A completed record with its response from the other table; a tombstone if the response is gone."""
    if record.response is None or reason is None or headers is None:
        return replace(record, state=State.TOMBSTONE, response=tombstone_response(record.response), replay_until_us=0)
    kept = record.response
    response = StoredResponse(kept.status, reason, kept_headers(headers), body, kept.version)
    return replace(record, response=response)


def encode(record: Record, before: Row, now_us: int) -> tuple[Any, ...]:
    """The columns that a change of this row writes, in the order of `CHANGE_NAMES`."""
    fingerprint, response, probe, request = record.fingerprint, record.response, record.probe, record.request
    return (
        record.identity.operation_id,
        record.attempt_id,
        record.resolution_id,
        record.token,
        record.first_claimed_us,
        record.claimed_us,
        record.lease_until_us,
        record.replay_until_us,
        record.remember_until_us,
        record.completed_us,
        record.attempts,
        record.lease_us,
        None if response is None else response.status,
        record.carried_us,
        record.delivery is not None,
        record.identity.route,
        record.identity.key,
        record.state,
        record.last_event,
        record.doubt,
        record.holder,
        *((None,) * 5 if fingerprint is None else _parts_of(fingerprint)),
        pack_resource(record.resource),
        None if response is None else response.version or None,
        *((None, None) if probe is None else (probe.target, probe.host)),
        line_of(request),
        *((None, None) if request is None else (request.request_id, request.trace_id)),
        _due_us(record, before, now_us),
        _attention_us(record, before, now_us),
        sealed_by(record.identity, probe, request, response, record.resource),
    )


def encode_delivery(record: Record, delivery: Delivery) -> tuple[Any, ...]:
    """The columns that a change of the delivery writes, in the order of `DELIVERY_NAMES`."""
    values = (getattr(delivery, column) for column in _DELIVERY)
    return (record.identity.operation_id, *values, waits_of(record), rank(record), stopped_us(record))


def waits_of(record: Record) -> str | None:
    """The state of a record whose kept request waits for a dispatch or for a person."""
    return record.state.value if record.state in _WAITING else None


def _parts_of(fingerprint: Fingerprint) -> tuple[Any, ...]:
    return (fingerprint.recipe, fingerprint.digest, fingerprint.raw, fingerprint.key_id, fingerprint.parts)


def _due_us(record: Record, before: Row, now_us: int) -> int | None:
    """When upkeep checks the record: not before the clock next changes it, and at most the slack later.

    Kept while it is within the slack, because the column is indexed. Lapsed claims are found by other means. Of an
    accepted record it is exact: statements read the end of its delivery here. A tombstone is checked earlier, because
    it is to leave the table: soon at first, and then after as long as it has existed.
    """
    due = due_us(record)
    if record.state is State.ACCEPTED:
        return due
    if record.state is State.TOMBSTONE:
        age_us = now_us - (record.completed_us or 0)
        return None if due is None else min(due, now_us + max(age_us, _MOVE_PAUSE_US))
    if record.state is State.CLAIMED or (
        due is not None and before.due_us is not None and due <= before.due_us <= due + DUE_SLACK_US
    ):
        return before.due_us
    return due


def _attention_us(record: Record, before: Row, now_us: int) -> int | None:
    """Since when the record needs attention: in doubt, taken over, dispatched, or long under way."""
    if record.state in (State.CLAIMED, State.IN_DOUBT):
        return now_us if before.attention_us is None else before.attention_us
    return None
