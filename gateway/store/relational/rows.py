"""How a record is written as a row, and read back; and how statements are loaded.

It owns the columns of a record and their order, for which the `.sql` files have placeholders, and the version of the
row format. It never guesses: a row with an unknown version, state or event is an error and stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from itertools import count
from operator import attrgetter
from typing import Any, Final
from uuid import UUID

from gateway.core.confidential import kept_headers, sealed_by
from gateway.core.lane import rank, stopped_us
from gateway.core.lifecycle import STEP_US, due_us
from gateway.core.message import StoredResponse, pack_headers
from gateway.core.operation import Delivery, Event, Fingerprint, Identity, ProbeTarget, Record, State
from gateway.store.base import Unreadable
from gateway.store.level import EVENT_TYPES, RECORD_VERSION, RECORD_VERSIONS
from gateway.store.operations import AHEAD_MAX, EVENT_LEASE_US_MAX, RECOVERY_LEASE_US_MAX
from gateway.store.request_line import line_of, request_of

Row = tuple[Any, ...]

# The columns that a change may write, and those that never change.
_CHANGED: Final = (
    "version", "state", "token", "attempt_id", "last_event", "holder", "carried_us",
    "fingerprint_recipe", "fingerprint_digest", "fingerprint_raw", "fingerprint_key_id", "fingerprint_parts",
    "attempts", "first_claimed_us", "claimed_us", "lease_until_us", "lease_us", "replay_until_us", "remember_until_us",
    "completed_us", "doubt", "resolution_id", "status", "reason", "headers", "api_version", "resource",
    "body_kept", "request_kept", "due_us",
    "probe_target", "probe_host", "sealed_by", "request", "request_id", "trace_id",
)  # fmt: skip
_IDENTITY: Final = ("id", "route", "operation", "scope_digest", "key_digest", "key")

# Those of a delivery: in the order of `Delivery`, those that a change may write, and what indexes need besides.
_DELIVERY: Final = (
    "service", "acceptance_id", "accepted_us", "since_us", "next_attempt_us", "deliver_until_us", "request_bytes",
    "answers", "failure", "reason", "lane", "lane_number", "stops_lane", "is_behind",
)  # fmt: skip
_DELIVERY_CHANGED: Final = (
    "since_us", "next_attempt_us", "deliver_until_us", "answers", "failure", "reason", "is_behind",
)  # fmt: skip
_DELIVERY_STATE: Final = ("is_accepted", "lane_rank", "stopped_us")
_DELIVERY_COPIED: Final = ("operation", "route", "scope_digest", "row")


def _inserted(columns: tuple[str, ...]) -> str:
    return f"({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"


def _set(columns: tuple[str, ...]) -> str:
    return ", ".join(f"{column} = ?" for column in columns)


_PLACEHOLDERS: Final = {
    # For the table alias `o`. The body, or NULL, has to follow.
    "{record}": ", ".join(f"o.{column}" for column in ("{row}", "id", *_CHANGED, *_IDENTITY[1:])),
    "{inserted}": _inserted(_CHANGED + _IDENTITY),
    "{changed}": _set(_CHANGED),
    "{record_versions}": f"{RECORD_VERSIONS[0]} AND {RECORD_VERSIONS[-1]}",
    "{event_types}": EVENT_TYPES,
    "{event_lease_us_max}": str(EVENT_LEASE_US_MAX),
    "{recovery_lease_us_max}": str(RECOVERY_LEASE_US_MAX),
    "{ahead_max}": str(AHEAD_MAX),
    "{step_us}": str(STEP_US),
    "{delivery}": ", ".join(_DELIVERY),
    "{delivery inserted}": _inserted(_DELIVERY + _DELIVERY_STATE + _DELIVERY_COPIED),
    "{delivery changed}": _set(_DELIVERY_CHANGED + _DELIVERY_STATE),
}


@cache
def statements(dialect: str, row: str, greatest: str, join: str) -> Mapping[str, str]:
    """The statements by the names of their files: those that all dialects share, and those in the folder `sql` of the
    package `dialect`. Without comments, because drivers cache statements by their text.

    `row` is the column that identifies an operation here, `greatest` the function with the greater of two values, and
    `join` joins tables in the order in which they are named.
    """
    placeholders = _PLACEHOLDERS | {"{row}": row, "{greatest}": greatest, "{join}": join}
    found = {}
    for package in (__package__, dialect):
        for file in files(package).joinpath("sql").iterdir():
            found[file.name.removesuffix(".sql")] = _bare(file.read_text("utf-8"), placeholders)
    return found


_PARAMETER: Final = re.compile(r"\?(\d*)")


def numbered(text: str) -> str:
    """The statement with its parameters written as PostgreSQL has them."""
    numbers = count(1)
    return _PARAMETER.sub(lambda found: f"${found.group(1) or next(numbers)}", text)


def _bare(text: str, placeholders: Mapping[str, str]) -> str:
    lines = (line.strip() for line in text.splitlines())
    bare = " ".join(line for line in lines if not line.startswith("--"))
    for name, columns in placeholders.items():
        bare = bare.replace(name, columns)
    return bare


_STATES: Final = {state.value: state for state in State}
_EVENTS: Final = {event.value: event for event in Event}
# Behind `row` and `id`.
_BODY_KEPT: Final = 2 + _CHANGED.index("body_kept")
_REQUEST_KEPT: Final = 2 + _CHANGED.index("request_kept")
_WHOLE: Final = 1 + len(_CHANGED) + len(_IDENTITY)


def encode(record: Record) -> Row:
    """The columns that a change may change."""
    fingerprint, response, probe, request = record.fingerprint, record.response, record.probe, record.request
    return (
        RECORD_VERSION,
        # State and event are strings themselves; `.value` would cost a Python call.
        record.state,
        record.token,
        record.attempt_id.bytes,
        record.last_event,
        record.holder,
        record.carried_us,
        *((None,) * 5 if fingerprint is None else _fingerprint_columns(fingerprint)),
        record.attempts,
        record.first_claimed_us,
        record.claimed_us,
        record.lease_until_us,
        record.lease_us,
        record.replay_until_us,
        record.remember_until_us,
        record.completed_us,
        record.doubt,
        None if record.resolution_id is None else record.resolution_id.bytes,
        *((None,) * 4 if response is None else _response_columns(response)),
        encode_resource(record.resource),
        response is not None and response.body is not None,
        record.delivery is not None,
        due_us(record),
        *((None, None) if probe is None else (probe.target, probe.host)),
        sealed_by(record.identity, probe, request, response, record.resource),
        line_of(request),
        *((None, None) if request is None else (request.request_id, request.trace_id)),
    )


def _fingerprint_columns(fingerprint: Fingerprint) -> Row:
    return (fingerprint.recipe, fingerprint.digest, fingerprint.raw, fingerprint.key_id, fingerprint.parts)


def _response_columns(response: StoredResponse) -> Row:
    return (response.status, response.reason, pack_headers(response.headers), response.version or None)


def encode_resource(resource: str | None) -> bytes | None:
    """A resource as one value."""
    return None if resource is None else resource.encode()


def decode_resource(encoded: bytes | None) -> str | None:
    """Undo `encode_resource`."""
    return None if encoded is None else encoded.decode()


def encode_identity(identity: Identity) -> Row:
    """The columns that never change."""
    return (
        identity.operation_id.bytes,
        identity.route,
        identity.operation,
        identity.scope_digest,
        identity.key_digest,
        identity.key,
    )


def encode_delivery(row: int, record: Record, delivery: Delivery) -> Row:
    """The columns of a new delivery; `row` is the operation's."""
    service, acceptance_id, *rest = _delivery_columns(delivery)
    identity = record.identity
    copied = (identity.operation, identity.route, identity.scope_digest, row)
    return (service, acceptance_id.bytes, *rest, *_delivery_state(record), *copied)


def encode_delivery_change(record: Record, delivery: Delivery) -> Row:
    """The columns of a delivery that a change may change."""
    return (*_delivery_changed_columns(delivery), *_delivery_state(record))


_delivery_columns: Final = attrgetter(*_DELIVERY)
_delivery_changed_columns: Final = attrgetter(*_DELIVERY_CHANGED)


def _delivery_state(record: Record) -> Row:
    return (record.state is State.ACCEPTED, rank(record), stopped_us(record))


def decode(columns: Row, delivery: Row | None = None) -> Record:
    """The record of a row of `{record}` and the body, and of a row of `{delivery}` where `keeps_request`.

    Raises `Unreadable` when this program cannot read it.
    """
    (
        _, operation_id, version, state, token, attempt_id, last_event, holder, carried_us,
        recipe, digest, raw, key_id, parts,
        attempts, first_claimed_us, claimed_us, lease_until_us, lease_us, replay_until_us, remember_until_us,
        completed_us, doubt, resolution_id, status, reason, headers, api_version, resource, body_kept, request_kept, _,
        probe_target, probe_host, _, request, request_id, trace_id,
        route, operation, scope_digest, key_digest, key, body,
    ) = columns  # fmt: skip
    if version not in RECORD_VERSIONS or state not in _STATES or last_event not in _EVENTS:
        raise Unreadable(
            f"operation {UUID(bytes=operation_id)} was written by another version of this program "
            f"(version {version}, state {state!r}, event {last_event!r}); this one leaves it alone"
        )
    if bool(request_kept) is not (delivery is not None):
        raise Unreadable(f"operation {UUID(bytes=operation_id)} lacks what belongs to its kept request")
    if body_kept and body is None:
        # A removed body means a response that is no longer kept: its replay window is over.
        replay_until_us = 0
    return Record(
        Identity(UUID(bytes=operation_id), route, operation, scope_digest, key_digest, key),
        _STATES[state],
        token,
        UUID(bytes=attempt_id),
        _EVENTS[last_event],
        holder,
        carried_us,
        None if recipe is None else Fingerprint(recipe, digest, raw, key_id, parts),
        attempts,
        first_claimed_us,
        claimed_us,
        lease_until_us,
        replay_until_us,
        remember_until_us,
        completed_us,
        doubt,
        None if resolution_id is None else UUID(bytes=resolution_id),
        None if status is None else StoredResponse(status, reason, kept_headers(headers), body, api_version or b""),
        decode_resource(resource),
        None if probe_target is None else ProbeTarget(probe_target, probe_host),
        request_of(request, request_id, trace_id),
        None if delivery is None else _decode_delivery(delivery),
        lease_us,
    )


def encode_whole(record: Record) -> Row:
    """All columns of a record but the body, and behind them those of its delivery: for a store without tables."""
    operation_id, *identity = encode_identity(record.identity)
    delivery: Row = ()
    if record.delivery is not None:
        service, acceptance_id, *rest = _delivery_columns(record.delivery)
        delivery = (service, acceptance_id.bytes, *rest)
    return (None, operation_id, *encode(record), *identity, *delivery)


def decode_whole(columns: Row, body: bytes | None) -> Record:
    """Undo `encode_whole`. Raises `Unreadable` when this program cannot read it."""
    if columns[2] not in RECORD_VERSIONS or len(columns) < _WHOLE:
        raise Unreadable(f"operation {UUID(bytes=columns[1])} was written by another version of this program")
    return decode((*columns[:_WHOLE], body), columns[_WHOLE:] or None)


def _decode_delivery(columns: Row) -> Delivery:
    values: Row = (columns[0], UUID(bytes=columns[1]), *columns[2:-2], *map(bool, columns[-2:]))
    return Delivery(*values)


def keeps_body(columns: Row) -> bool:
    """Whether the row's body is in the table `response`."""
    return bool(columns[_BODY_KEPT])


def keeps_request(columns: Row) -> bool:
    """Whether the row's delivery and request are in the tables `delivery` and `request`."""
    return bool(columns[_REQUEST_KEPT])
