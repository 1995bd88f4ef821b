"""How a record is written as a row, and read back; and how the values of a row are bytes, where there are no tables.

It owns the columns of a record and their order, which `statements` are made of. A row with an unknown version, state or
event is an error and stays as it is.

*A tombstone* has a narrow row once a sweep has written it, because nearly all keys that are remembered are tombstones.
The row gives up what `Record` says, and what it has in common with many others is in a row of `kind`.

*As bytes*, a row is the number of its values, the kind of each, the numbers and the sizes of the others, and these one
after the other. Rows of the same kinds come again and again, so what is to be done for these is found once.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib.resources import files
from itertools import count
from operator import attrgetter, itemgetter
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple
from uuid import UUID

from gateway.core.confidential import kept_headers, sealed_by
from gateway.core.delivery import rank, stopped_us
from gateway.core.identity.body import digest
from gateway.core.identity.key import is_of
from gateway.core.lifecycle import STEP_US, due_us
from gateway.core.message import StoredResponse, pack_headers
from gateway.core.operation import (
    NO_ATTEMPT,
    SHORT_DIGEST_BYTES,
    SHORT_SCOPE_BYTES,
    Delivery,
    Event,
    Fingerprint,
    Identity,
    ProbeTarget,
    Record,
    RequestInfo,
    State,
)
from gateway.store.agreement import EVENT_TYPES, RECORD_VERSION, RECORD_VERSIONS
from gateway.store.base import Unreadable
from gateway.store.operations import ACTIVITY_AHEAD_US, AHEAD_MAX, EVENT_LEASE_US_MAX, RECOVERY_LEASE_US_MAX
from gateway.store.sealed import SEALED, Place

Row = tuple[Any, ...]

# More kinds are not made: the tombstones stay wide.
KINDS_MAX: Final = 100_000
# Two kinds with the same id are not made either, which so many bytes make unlikely.
_KIND_BYTES: Final = 4

# The columns of a record in their order: those that never change, and those that a change may write.
_IDENTITY: Final = ("id", "route", "operation", "scope_digest", "key_digest", "key")
_CHANGED: Final = (
    "version", "state", "token", "attempt_id", "last_event", "holder", "carried_us",
    "fingerprint_recipe", "fingerprint_digest", "fingerprint_raw", "fingerprint_key_id", "fingerprint_parts",
    "attempts", "first_claimed_us", "claimed_us", "lease_until_us", "lease_us", "replay_until_us", "remember_until_us",
    "completed_us", "doubt", "resolution_id", "status", "reason", "headers", "api_version", "resource",
    "body_kept", "request_kept", "due_us",
    "probe_target", "probe_host", "sealed_by", "request", "request_id", "trace_id", "history",
)  # fmt: skip
COLUMNS: Final = _IDENTITY + _CHANGED
# Where those begin that a change may write.
CHANGED: Final = len(_IDENTITY)

# Those that a completion writes of the claim that it ends; the others are as they were granted.
COMPLETED: Final = (
    "version", "state", "last_event", "carried_us", "lease_until_us", "lease_us", "replay_until_us",
    "remember_until_us", "completed_us", "doubt", "resolution_id", "status", "reason", "headers", "api_version",
    "resource", "body_kept", "due_us", "sealed_by",
)  # fmt: skip
completed_of: Final = itemgetter(*map(COLUMNS.index, COMPLETED))
"""These of a row of `encode`."""

# Those with what may be encrypted; and last, with which keys.
RESEALED: Final = ("key", "request", "probe_target", "probe_host", "reason", "headers", "resource", "sealed_by")
resealed_of: Final[Callable[[Row], Row]] = itemgetter(*map(COLUMNS.index, RESEALED))
"""These of a row of `encode`."""

# Those that a narrow row is given, with its id, and those that it gives up; it keeps all others. What is in its kind.
NARROW: Final = ("kind", "scope_digest", "fingerprint_digest", "fingerprint_raw", "sealed_by")
_KEPT: Final = frozenset(("id", "version", "token", "remember_until_us", "resource"))
NARROW_NULLS: Final = tuple(column for column in COLUMNS if column not in _KEPT.union(NARROW))
KIND: Final = (
    "kind", "attempts", "status", "kept_us", "service", "route", "operation", "last_event", "fingerprint_key_id",
    "fingerprint_recipe", "api_version",
)  # fmt: skip

# Those of a delivery: in the order of `Delivery`, those that a change may write, and what indexes need besides.
DELIVERY: Final = (
    "service", "acceptance_id", "accepted_us", "since_us", "next_attempt_us", "deliver_until_us", "request_bytes",
    "answers", "failure", "reason", "lane", "lane_number", "stops_lane", "is_behind",
)  # fmt: skip
DELIVERY_CHANGED: Final = (
    "since_us", "next_attempt_us", "deliver_until_us", "answers", "failure", "reason", "is_behind",
    "is_accepted", "lane_rank", "stopped_us",
)  # fmt: skip
# What a new one has, with its row.
DELIVERY_INSERTED: Final = (*DELIVERY, "is_accepted", "lane_rank", "stopped_us", "operation", "route", "scope_digest")
delivery_changed_of: Final[Callable[[Row], Row]] = itemgetter(
    *map((*DELIVERY_INSERTED, "row").index, (*DELIVERY_CHANGED, "row"))
)
"""Of a row of `encode_delivery`, those that a change may write, and the id of its operation."""


_STATES: Final = {state.value: state for state in State}
_EVENTS: Final = {event.value: event for event in Event}
# In a row of `{record}`, behind `row`.
_BODY_KEPT: Final = 1 + COLUMNS.index("body_kept")
_REQUEST_KEPT: Final = 1 + COLUMNS.index("request_kept")
_KIND_PLACE: Final = 1 + len(COLUMNS)


def encode(record: Record) -> Row:
    identity, fingerprint, response = record.identity, record.fingerprint, record.response
    probe, request, resource = record.probe, record.request, record.resource
    return (
        *(identity.operation_id.bytes, identity.route, identity.operation),
        *(identity.scope_digest, identity.key_digest, identity.key, RECORD_VERSION),
        # State and event are strings themselves; `.value` would cost a Python call.
        *(record.state, record.token, record.attempt_id.bytes, record.last_event, record.holder, record.carried_us),
        *(
            (None,) * 5
            if fingerprint is None
            else (fingerprint.recipe, fingerprint.digest, fingerprint.raw, fingerprint.key_id, fingerprint.parts)
        ),
        *_columns_of(record),
        None if record.resolution_id is None else record.resolution_id.bytes,
        *(
            (None,) * 4
            if response is None
            else (response.status, response.reason, pack_headers(response.headers), response.version or None)
        ),
        None if resource is None else resource.encode(),
        response is not None and response.body is not None,
        record.delivery is not None,
        due_us(record),
        *((None, None) if probe is None else (probe.target, probe.host)),
        sealed_by(identity, probe, request, response, resource),
        *(("", None, None) if request is None else (line_of(request), request.request_id, request.trace_id)),
        record.history,
    )


_columns_of: Final = attrgetter(
    "attempts", "first_claimed_us", "claimed_us", "lease_until_us", "lease_us", "replay_until_us",
    "remember_until_us", "completed_us", "doubt",
)  # fmt: skip
_NO_HOST: Final = "-"


def line_of(request: RequestInfo | None) -> str:
    """The request of an attempt as one line such as `POST api.example.com /v1/charges`, without its ids; empty if it is
    not known. Most requests of a route have the same one."""
    return "" if request is None else f"{request.method} {request.host or _NO_HOST} {request.path}"


def _request_of(line: str, request_id: str | None, trace_id: str | None) -> RequestInfo | None:
    if not line:
        return None
    method, host, path = line.split(" ", 2)
    return RequestInfo(method, "" if host == _NO_HOST else host, path, request_id, trace_id)


_delivery_columns: Final = attrgetter(*DELIVERY)


def encode_delivery(record: Record, delivery: Delivery) -> Row:
    """The columns of a delivery, and the id of its operation."""
    service, acceptance_id, *rest = _delivery_columns(delivery)
    identity = record.identity
    copied = (identity.operation, identity.route, identity.scope_digest, identity.operation_id.bytes)
    state = (record.state is State.ACCEPTED, rank(record), stopped_us(record))
    return (service, acceptance_id.bytes, *rest, *state, *copied)


def encode_tombstone(record: Record, services: Iterable[str]) -> tuple[Row, Row] | None:
    """The kind of a tombstone, and the columns of its narrow row with its id; None if it does not fit one. `services`
    are those that the operation may be of."""
    identity, fingerprint, response = record.identity, record.fingerprint, record.response
    if record.state is not State.TOMBSTONE or fingerprint is None or response is None:
        return None
    # It is dropped with the record, and not before.
    if record.history is not None:
        return None
    if min(len(fingerprint.digest), len(fingerprint.raw)) < SHORT_DIGEST_BYTES:
        return None
    service = next((each for each in services if is_of(identity, each, identity.operation)), None)
    if service is None or len(identity.scope_digest) < SHORT_SCOPE_BYTES:
        return None
    # For how long after its completion it is remembered.
    kept_us = record.remember_until_us - (record.completed_us or 0)
    numbers = (record.attempts, response.status, kept_us)
    names = (service, identity.route, identity.operation, record.last_event.value, fingerprint.key_id)
    digests = (fingerprint.recipe, response.version)
    framed = (*(b"%d" % number for number in numbers), *(name.encode() for name in names), *digests)
    kind = digest(b"kind", *framed)[:_KIND_BYTES]
    return (kind, *numbers, *names, *digests), (
        kind,
        identity.scope_digest[:SHORT_SCOPE_BYTES],
        fingerprint.digest[:SHORT_DIGEST_BYTES],
        fingerprint.raw[:SHORT_DIGEST_BYTES],
        sealed_by(resource=record.resource),
        identity.operation_id.bytes,
    )


def decode(columns: Row, delivery: Row | None = None, kind: Row | None = None) -> Record:
    """The record of a row of `{record}` and the body, of a row of `{delivery}` where `keeps_request`, and of a row of
    `{kind}` where there is a `kind_of`. Raises `Unreadable` when this program cannot read it."""
    if columns[_KIND_PLACE] is not None:
        return _decode_tombstone(columns, kind)
    (
        _, operation_id, route, operation, scope_digest, key_digest, key,
        version, state, token, attempt_id, last_event, holder, carried_us,
        recipe, digest, raw, key_id, parts,
        attempts, first_claimed_us, claimed_us, lease_until_us, lease_us, replay_until_us, remember_until_us,
        completed_us, doubt, resolution_id, status, reason, headers, api_version, resource, body_kept, request_kept, _,
        probe_target, probe_host, _, request, request_id, trace_id, history, _, body,
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
        None if resource is None else resource.decode(),
        None if probe_target is None else ProbeTarget(probe_target, probe_host),
        _request_of(request, request_id, trace_id),
        None
        if delivery is None
        else Delivery(delivery[0], UUID(bytes=delivery[1]), *delivery[2:-2], *map(bool, delivery[-2:])),
        lease_us,
        history,
    )


def _decode_tombstone(columns: Row, kind: Row | None) -> Record:
    found = dict(zip(COLUMNS, columns[1:], strict=False))
    operation_id = UUID(bytes=found["id"])
    shared = dict(zip(KIND, kind or (), strict=False))
    if found["version"] not in RECORD_VERSIONS or shared.get("last_event") not in _EVENTS:
        raise Unreadable(f"operation {operation_id} was written by another version of this program, or lacks its kind")
    completed_us = found["remember_until_us"] - shared["kept_us"]
    return Record(
        Identity(
            operation_id, shared["route"], shared["operation"], found["scope_digest"], b"", None, shared["service"]
        ),
        State.TOMBSTONE,
        found["token"],
        NO_ATTEMPT,
        _EVENTS[shared["last_event"]],
        holder="",
        carried_us=None,
        fingerprint=Fingerprint(
            shared["fingerprint_recipe"],
            found["fingerprint_digest"],
            found["fingerprint_raw"],
            shared["fingerprint_key_id"],
        ),
        attempts=shared["attempts"],
        first_claimed_us=completed_us,
        claimed_us=completed_us,
        remember_until_us=found["remember_until_us"],
        completed_us=completed_us,
        response=StoredResponse(shared["status"], b"", (), None, shared["api_version"]),
        resource=None if found["resource"] is None else found["resource"].decode(),
    )


def encode_whole(record: Record) -> Row:
    """All columns of a record but the body, and behind them those of its delivery: for a store without tables."""
    if record.delivery is None:
        return encode(record)
    return encode(record) + encode_delivery(record, record.delivery)[: len(DELIVERY)]


def decode_whole(columns: Row, body: bytes | None) -> Record:
    """Undo `encode_whole`. Raises `Unreadable` when this program cannot read it."""
    if columns[CHANGED] not in RECORD_VERSIONS or len(columns) < len(COLUMNS):
        raise Unreadable(f"operation {UUID(bytes=columns[0])} was written by another version of this program")
    return decode((None, *columns[: len(COLUMNS)], None, body), columns[len(COLUMNS) :] or None)


def keeps_body(columns: Row) -> bool:
    """Whether the row's body is in the table `response`."""
    return bool(columns[_BODY_KEPT])


def keeps_request(columns: Row) -> bool:
    """Whether the row's delivery and request are in the tables `delivery` and `request`."""
    return bool(columns[_REQUEST_KEPT])


def kind_of(columns: Row) -> bytes | None:
    """The id of the row's kind, where it is narrow."""
    found: bytes | None = columns[_KIND_PLACE]
    return found


# -- as bytes ----------------------------------------------------------------------------------------------------------

_NONE, _TRUTH, _INTEGER, _TEXT, _BYTES = range(5)
_COUNT: Final = struct.Struct(">I")
_LAYOUTS_MAX: Final = 256
# What is found begins with these: None is of a place that has nothing, and an `itemgetter` of one returns no tuple.
_PADDING: Final = (None, None)
# Of a value that is a text and more, as a state is, what it is first.
_KINDS: Final[dict[type, int]] = {type(None): _NONE, bool: _TRUTH, int: _INTEGER, str: _TEXT, bytes: _BYTES}


class _Layout(NamedTuple):
    """What is where, for values of these kinds."""

    texts: int
    parts: int
    """Likewise of texts and bytes."""
    sorted: itemgetter[Any]
    """Takes texts, bytes and numbers, in this order, out of `_PADDING` and the values."""
    fixed: struct.Struct
    """The sizes, and the numbers."""
    sized: str
    ordered: itemgetter[Any]
    """Takes the values out of what `sorted` has taken."""


@lru_cache(_LAYOUTS_MAX)
def _layout(kinds: bytes) -> _Layout:
    """Raises ValueError for a kind that there is not."""
    if any(kind > _BYTES for kind in kinds):
        raise ValueError("no value has this kind")
    texts, blobs, numbers = (
        [place for place, kind in enumerate(kinds, len(_PADDING)) if kind in wanted]
        for wanted in ((_TEXT,), (_BYTES,), (_TRUTH, _INTEGER))
    )
    there = [*range(len(_PADDING)), *texts, *blobs, *numbers]
    back = [there.index(place) if kinds[place - len(_PADDING)] else 0 for place in range(2, len(kinds) + 2)]
    formats = ("?" if kinds[place - len(_PADDING)] == _TRUTH else "q" for place in numbers)
    parts = len(texts) + len(blobs)
    fixed = struct.Struct(f">{parts}I{''.join(formats)}")
    return _Layout(len(texts), parts, itemgetter(*there), fixed, "%ds" * parts, itemgetter(0, 1, *back))


@lru_cache(_LAYOUTS_MAX)
def _kinds(types: tuple[type, ...]) -> bytes:
    return bytes(next(_KINDS[base] for base in each.__mro__ if base in _KINDS) for each in types)


def pack(values: tuple[Any, ...]) -> bytes:
    """None, booleans, integers, texts and bytes."""
    kinds = _kinds(tuple(map(type, values)))
    layout = _layout(kinds)
    first, last = len(_PADDING) + layout.texts, len(_PADDING) + layout.parts
    found = layout.sorted((*_PADDING, *values))
    parts = (*map(str.encode, found[len(_PADDING) : first]), *found[first:last])
    fixed = layout.fixed.pack(*map(len, parts), *found[last:])
    return b"".join((_COUNT.pack(len(kinds)), kinds, fixed, *parts))


def unpack(packed: bytes, at: int = 0) -> tuple[Any, ...]:
    """Undo `pack`, from this byte on. Raises `Unreadable` for what was not packed so."""
    try:
        (count,) = _COUNT.unpack_from(packed, at)
        kinds_end = at + _COUNT.size + count
        layout = _layout(packed[at + _COUNT.size : kinds_end])
        found = layout.fixed.unpack_from(packed, kinds_end)
        sizes, begin = found[: layout.parts], kinds_end + layout.fixed.size
        if begin + sum(sizes) != len(packed):
            raise ValueError
        parts = struct.unpack_from(layout.sized % sizes, packed, begin)
        texts = map(bytes.decode, parts[: layout.texts])
        values: tuple[Any, ...] = layout.ordered((*_PADDING, *texts, *parts[layout.texts :], *found[layout.parts :]))
    except (ValueError, struct.error):
        raise Unreadable("a value was written by another version of this program, or is damaged") from None
    return values[len(_PADDING) :]


# -- statements --------------------------------------------------------------------------------------------------------
#
# The statements: loaded from `.sql` files, and generated from the names of columns where they write rows as given.
#
# The files have placeholders for columns. Those that are generated `Cursor.change_all` executes, for one row or for
# many; for many they have an array for each column in which any row has a value, and are PostgreSQL's.

RECORD: Final = ", ".join(f"o.{column}" for column in ("{row}", *COLUMNS, "kind"))
_PLACEHOLDERS: Final = {
    # For the table alias `o`. The body, or NULL, has to follow.
    "{record}": RECORD,
    "{kind}": ", ".join(KIND),
    # Of what claimed the content `c`, as far as the operation `o` has it.
    "{fingerprint of c}": (
        f"CASE WHEN o.kind IS NULL THEN c.fingerprint ELSE substr(c.fingerprint, 1, {SHORT_DIGEST_BYTES}) END"
    ),
    "{kinds_max}": str(KINDS_MAX),
    "{completed}": ", ".join(f"{column} = ?" for column in COMPLETED),
    "{resealed}": ", ".join(f"{column} = ?" for column in RESEALED),
    # A narrow row has no request.
    "{as sealed before}": " AND ".join(
        "coalesce(request, '') = ?" if column == "request" else f"{column} IS NOT DISTINCT FROM ?"
        for column in RESEALED[:-1]
    ),
    "{record_versions}": f"{RECORD_VERSIONS[0]} AND {RECORD_VERSIONS[-1]}",
    "{event_types}": EVENT_TYPES,
    "{event_lease_us_max}": str(EVENT_LEASE_US_MAX),
    # Of the operation `o` at the time `?8`, as `RecoveryState` has it.
    "{may be probed}": (
        "NOT EXISTS (SELECT 1 FROM recovery AS r WHERE r.id = o.id AND r.token = o.token AND ("  # noqa: S608
        f"r.held_until_us > ?8 AND r.held_until_us <= ?8 + {RECOVERY_LEASE_US_MAX} "
        "OR r.asked_us <= ?8 AND r.put_off_until_us > ?8))"
    ),
    "{ahead_max}": str(AHEAD_MAX),
    "{activity_ahead_us}": str(ACTIVITY_AHEAD_US),
    "{step_us}": str(STEP_US),
    "{delivery}": ", ".join(DELIVERY),
}


SHARED_TABLES: Final = files("gateway.store").joinpath("postgres/sql/tables/0001_portable.sql").read_text("utf-8")
"""The tables of all stores, as distributed SQL has them, with what SQLite has instead."""


def statements(own: Mapping[str, str], words: Mapping[str, str]) -> Mapping[str, str]:
    """The statements by their names: those that are generated, those in files that all dialects share, and a dialect's
    own. Without comments, because drivers cache statements by their text.

    The dialect's `words` are `row`, the column that identifies an operation here, and `row_of`, its value for an id;
    `greatest`, the function with the greater of two values; `join`, which joins tables in the order in which they are
    named; `response`, by which `r` is the response of the operation `o`; `locked`, which locks what is read; `bytes`,
    the type; `each`, the rows with a `value` each of a list (JSON) of texts; `among`, which compares a column with the
    keys of `Cursor.among`; and `keys`, these as rows, where there can be many. A text with `{key}` is about one key.
    """
    placeholders = _PLACEHOLDERS | {f"{{{name}}}": word for name, word in words.items()}
    made = writes(is_numbered=words["row"] != "id")
    found = {name: of_one(write, words["row_of"]) for name, write in made.items()}
    shared = texts_of(__package__)
    # One that is a part of another.
    placeholders["{due events}"] = _bare(shared["select_due_events"], placeholders, None)
    for name, text in {**shared, **own}.items():
        found[name] = _bare(text, placeholders, words.get("keys"))
    return found | {name: _bare(text, placeholders, None) for name, text in _rekeying_texts().items()}


def texts_of(package: str, subjects: Collection[str] = ()) -> dict[str, str]:
    """The statements in the folder `sql` of a package, by their names: those in the files of these subjects, each after
    a line `-- name:`, or in all files. One without such a line is a script of its name."""
    found: dict[str, str] = {}
    for file in files(package).joinpath("sql").iterdir():
        subject = file.name.removesuffix(".sql")
        if file.is_file() and (not subjects or subject in subjects):
            script, *texts = file.read_text("utf-8").split("-- name: ")
            found |= {text.split(None, 1)[0]: text.partition("\n")[2] for text in texts} or {subject: script}
    return found


_PARAMETER: Final = re.compile(r"\?(\d*)")
_EACH: Final = re.compile(r"\{each of ([\w.?]+)\}")


def numbered(text: str) -> str:
    numbers = count(1)
    return _PARAMETER.sub(lambda found: f"${found.group(1) or next(numbers)}", text)


def _bare(text: str, placeholders: Mapping[str, str], keys: str | None) -> str:
    lines = (line.strip() for line in text.splitlines())
    bare = " ".join(line for line in lines if not line.startswith("--"))
    for name, columns in placeholders.items():
        bare = bare.replace(name, columns)
    bare = _EACH.sub(lambda found: placeholders["{each}"].replace("?", found.group(1)), bare)
    if keys is None or "{key}" not in bare:
        return bare.replace("{key}", "?1")
    return f"SELECT f.* FROM {keys} AS k (key) CROSS JOIN LATERAL ({bare.replace('{key}', 'k.key')}) AS f"  # noqa: S608


# -- generated ---------------------------------------------------------------------------------------------------------

_TABLE: Final = re.compile(r"CREATE TABLE IF NOT EXISTS (\w+) \((.*?)^\)", re.DOTALL | re.MULTILINE)
_COLUMN: Final = re.compile(r"^    (?:--postgres: )?(\w+) (BIGINT|BOOLEAN|BYTEA|INTEGER|TEXT)\b", re.MULTILINE)
_TYPES: Final[Mapping[tuple[str, str], str]] = {
    (table, column): kind.replace("INTEGER", "BIGINT")
    for table, columns in _TABLE.findall(SHARED_TABLES)
    for column, kind in _COLUMN.findall(columns)
}


def type_of(column: str, table: str = "operation") -> str:
    """The type of a column of this table in PostgreSQL, or else of a response."""
    return _TYPES.get((table, column)) or _TYPES["response", column]


@dataclass(frozen=True)
class Write:
    """A statement that is given values of `columns` and then of `keys`, by which an existing row is found. `nulls` are
    set to NULL, `values` are expressions of what is given, by column."""

    verb: Literal["insert", "update", "delete"]
    table: str
    columns: Sequence[str] = ()
    keys: Sequence[str] = ()
    nulls: Sequence[str] = ()
    conflict: str = ""
    values: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def given(self) -> tuple[str, ...]:
        return (*self.columns, *self.keys)


def writes(*, is_numbered: bool) -> dict[str, Write]:
    """The statements by their names, for a store that numbers its rows or not."""
    event = ("service", "sink", "event_id", "type", "at_us", "since_us", "due_us", "content", "response")
    found = {
        # absent --claim--> claimed, absent --accept--> accepted; does nothing if there is a record
        "insert_operation": Write("insert", "operation", COLUMNS, conflict="(id) DO NOTHING"),
        # every row that leaves a record: the record that the table returned, in the transaction that locked the old one
        "update_operation": Write("update", "operation", COLUMNS[CHANGED:], ("id",)),
        # no row of the table: what a probe found that changed nothing
        "update_history": Write("update", "operation", ("history",), ("id",)),
        # completed --retire--> tombstone: the record as a narrow row
        "narrow_operation": Write("update", "operation", NARROW, ("id",), nulls=NARROW_NULLS),
        # released | tombstone --collect | erase--> absent
        "delete_operation": Write("delete", "operation", keys=("id",)),
        # absent | released --accept--> accepted: what is known of the kept request
        "insert_delivery": Write("insert", "delivery", DELIVERY_INSERTED, ("row",)),
        # every row that leaves a kept request, and accepted --expire--> dead_letter
        "update_delivery": Write("update", "delivery", DELIVERY_CHANGED, ("row",)),
        # claimed | in_doubt | accepted | dead_letter --complete--> completed, in_doubt --prove--> completed,
        # in_doubt --disprove--> released, accepted | dead_letter --withdraw--> released
        "delete_delivery": Write("delete", "delivery", keys=("row",)),
        # no row of the table: whether another operation of its lane goes first
        "give_turn": Write("update", "delivery", ("is_behind",), ("row",)),
        # as the three before it: the encrypted request
        "insert_request": Write("insert", "request", ("key_id", "sealed"), ("row",)),
        "delete_request": Write("delete", "request", keys=("row",)),
        # every row that leads to completed, and those that leave it: the response body
        "insert_response": Write("insert", "response", ("body",), ("row",)),
        "delete_response": Write("delete", "response", keys=("row",)),
        # no row of the table: an operation claimed a content
        "upsert_content": Write(
            "insert",
            "content",
            ("digest", "id", "fingerprint", "until_us", "check_us"),
            conflict="(digest, id) DO UPDATE SET fingerprint = excluded.fingerprint, until_us = excluded.until_us, "
            "check_us = excluded.check_us",
        ),
    }
    if is_numbered:
        # no row of the table: an event for a sink without order. Written before: the same event.
        found["insert_event"] = Write("insert", "event", event, conflict="(event_id, sink) DO NOTHING")
    else:
        row = MappingProxyType({"row": "convert_to({event_id} || ' ' || {sink}, 'UTF8')"})
        found["insert_event"] = Write("insert", "event", event, conflict="(row) DO NOTHING", values=row)
    return found


def of_one(write: Write, row_of: str) -> str:
    """The statement for one row; `row_of` is the value of the column `row` by the id of its operation."""
    table = write.table
    where = " AND ".join(f"{key} = {row_of if key == 'row' else '?'}" for key in write.keys)
    if write.verb == "delete":
        return f"DELETE FROM {table} WHERE {where}"  # noqa: S608
    if write.verb == "update":
        return f"UPDATE {table} SET {_set(write, dict.fromkeys(write.columns, '?'))} WHERE {where}"  # noqa: S608
    places = {each: f"?{place}" for place, each in enumerate(write.given, 1)}
    values = [row_of.replace("?", place) if each == "row" else place for each, place in places.items()]
    values += (value.format_map(places) for value in write.values.values())
    names = ", ".join((*write.given, *write.values))
    return f"INSERT INTO {table} ({names}) VALUES ({', '.join(values)}){_conflict(write)}"  # noqa: S608


@cache
def _of_many(name: str, given: frozenset[str]) -> str:
    write = _UNNUMBERED[name]
    columns = [each for each in write.given if each in given]
    arrays = ", ".join(f"${place}::{type_of(each, write.table)}[]" for place, each in enumerate(columns, 1))
    rows = f"unnest({arrays}) AS i ({', '.join(columns)})"
    if write.verb == "insert":
        places = {each: f"i.{each}" for each in columns}
        values = ", ".join((*places.values(), *(value.format_map(places) for value in write.values.values())))
        names = ", ".join((*columns, *write.values))
        # In one order everywhere, or two that insert the same rows could wait for one another.
        order = f"ORDER BY i.{columns[-1] if write.keys else columns[0]}"
        return f"INSERT INTO {write.table} ({names}) SELECT {values} FROM {rows} {order}{_conflict(write)}"  # noqa: S608
    (key,) = write.keys
    # By it, no plan reads others.
    named = f"o.{key} = ANY(${columns.index(key) + 1}::{type_of(key)}[])"
    if write.verb == "delete":
        return f"DELETE FROM {write.table} AS o WHERE {named}"  # noqa: S608
    values_of = {each: f"i.{each}" if each in given else "NULL" for each in write.columns}
    return (
        f"UPDATE {write.table} AS o SET {_set(write, values_of)} FROM {rows} "  # noqa: S608
        f"WHERE o.{key} = i.{key} AND {named}"
    )


def of_many(name: str, rows: Sequence[Sequence[Any]]) -> tuple[str, list[Sequence[Any]]]:
    """The statement for these rows in a store that does not number them, and its arrays: the columns in which any has a
    value."""
    columns = zip(_UNNUMBERED[name].given, zip(*rows, strict=True), strict=True)
    given = {name: column for name, column in columns if any(value is not None for value in column)}
    return _of_many(name, frozenset(given)), list(given.values())


def _set(write: Write, values: Mapping[str, str]) -> str:
    return ", ".join(f"{each} = {value}" for each, value in {**values, **dict.fromkeys(write.nulls, "NULL")}.items())


def _conflict(write: Write) -> str:
    return f" ON CONFLICT {write.conflict}" if write.conflict else ""


_UNNUMBERED: Final = writes(is_numbered=False)
WRITTEN: Final = frozenset(_UNNUMBERED)
"""The names of those that `of_many` has."""


# -- what is encrypted again -------------------------------------------------------------------------------------------

_REQUEST: Final = "request AS r {join} operation AS o ON o.{row} = r.row {join} delivery AS d ON d.row = r.row"
# Where the rows of a place are, the columns that order them with what is below the first (None: `Cursor.first_row`),
# and what their values are bound to.
REKEYED: Final[Mapping[Place, tuple[str, tuple[str, ...], tuple[Any, ...] | None, tuple[str, ...]]]] = {
    Place.REQUESTS: (_REQUEST, ("r.row",), None, ("o.id", "d.acceptance_id")),
    Place.AUDITS: ("audit", ("row",), (0,), ("id", "event", "token")),
    Place.PAUSES: ("pause", ("service", "operation"), ("", ""), SEALED[Place.PAUSES].about),
    Place.PAUSE_AUDITS: ("pause_audit", ("row",), (0,), SEALED[Place.PAUSE_AUDITS].about),
    Place.SUSPENSIONS: ("suspension", ("service", "sink"), ("", ""), SEALED[Place.SUSPENSIONS].about),
    Place.EVENTS: ("event", ("row",), None, SEALED[Place.EVENTS].about),
}
# The columns with the ids of keys that something of a row is encrypted with, each with an index.
_KEY_IDS: Final = (
    ("operation", "sealed_by"), ("request", "key_id"), ("audit", "sealed_by"), ("pause", "sealed_by"),
    ("pause_audit", "sealed_by"), ("suspension", "sealed_by"), ("event", "sealed_by"), ("event", "why_sealed_by"),
)  # fmt: skip
_COUNTED: Final = " UNION ALL ".join(
    f"SELECT 1 FROM (SELECT 1 FROM {table} AS t WHERE t.{column} = ?1 LIMIT ?2) AS t{place}"  # noqa: S608
    for place, (table, column) in enumerate(_KEY_IDS)
)
_NEXT: Final = " UNION ALL ".join(
    f"SELECT (SELECT t.{column} FROM {table} AS t WHERE t.{column} > ?1 ORDER BY t.{column} LIMIT 1) AS key_ids"  # noqa: S608
    for table, column in _KEY_IDS
)


def _rekeying_texts() -> dict[str, str]:
    """The statements that read pages of each place, and replace values, by their names; and those that find what is
    encrypted with which keys, from indexes alone, but of small tables."""
    found = {
        # no row of the table: how many rows are encrypted with these keys, of each column up to a bound
        "count_sealed": f"SELECT count(*) FROM ({_COUNTED}) AS counted",  # noqa: S608
        # no row of the table: the next ids of keys that rows are encrypted with, each set of them once
        "select_next_sealed": f"SELECT min(n.key_ids) FROM ({_NEXT}) AS n",  # noqa: S608
    }
    for place, (source, keys, _, about) in REKEYED.items():
        values, table = SEALED[place].values, source.partition(" ")[0]
        named, places = ", ".join(keys), ", ".join("?" for _ in keys)
        found[f"select_{place}_to_rekey"] = (
            # no row of the table: rows in their order
            f"SELECT {', '.join((*keys, *about, *values))} FROM {source} "  # noqa: S608
            f"WHERE ({named}) > ({places}) ORDER BY {named} LIMIT ?"
        )
        given = ", ".join(f"{each} = ?" for each in values)
        as_read = [f"{each.removeprefix('r.')} = ?" for each in keys]
        as_read += (f"{each} IS NOT DISTINCT FROM ?" for each in values)
        # no row of the table: the same values under another key, if they are as they were read
        found[f"reseal_{place}"] = f"UPDATE {table} SET {given} WHERE {' AND '.join(as_read)}"  # noqa: S608
    return found
