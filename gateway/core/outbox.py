"""The events that consumers receive about operations: which change has which event, and how it is rendered.

A store writes one row per event and sink in the transaction that makes the change (the transactional outbox). An event
is made from nothing but the record before and after its change, so its id is the same for every publication, and
another one after the key was forgotten and used again. The store adds the time, its clock's at the change. Everything
else is in the `content` of the row but what an event has nothing of, which `_NOTHING` fills in. So later publications
are equal byte for byte, whatever became of the record, the configuration or the program.

Of an ordered sink's events, those of one *line* have places, in the order in which their changes were written. Only the
first may be published. A dead event leaves its line, so the others pass it; delivered again, it is the last.

An event describes what was *written*: a lapse that was not written before the operation completed has no event.
"""

from __future__ import annotations

import struct
from base64 import b32encode
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final

import orjson

from gateway.core import immutable
from gateway.core.confidential import NO_SEALING, SEALED, Sealing, Unopenable
from gateway.core.delivery import RETRY_AFTER_US_MAX
from gateway.core.identity.body import framed, parse_media_type
from gateway.core.identity.key import is_of
from gateway.core.message import StoredResponse, header_values
from gateway.core.operation import Event, Record, State, microseconds
from gateway.core.outcome import is_address

# Without a time zone, which takes as long to write as the rest of a time.
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001
_ID_BYTES: Final = 16
_SPAN_BYTES: Final = 8
# How far a pause before the next publication differs from the schedule's.
_JITTER: Final = 0.2


class EventType(StrEnum):
    COMPLETED = "operation.completed"
    IN_DOUBT = "operation.in_doubt"
    RESOLVED = "operation.resolved"
    DEAD_LETTERED = "operation.dead_lettered"
    REQUEUED = "operation.requeued"
    WITHDRAWN = "operation.withdrawn"
    ACCEPTED = "operation.accepted"


DEFAULT_TYPES: Final = frozenset(EventType) - {EventType.ACCEPTED}
_TYPES: Final = frozenset(each.value for each in EventType)


Part = StrEnum("Part", "KEY SCOPE LOCATION RESPONSE")
"""What an event contains by choice alone, because it may be confidential."""

_PARTS: Final = frozenset(each.value for each in Part)
# The members of an event's data that are encrypted, beside the response.
_CONFIDENTIAL: Final = frozenset(("key", "location", "resource"))
# That of `framed`.
_LENGTH: Final = struct.Struct(">Q")


@immutable
class Subscription:
    """Which events a sink receives. `routes` None: those of all routes. `is_ordered`: one at a time of each line."""

    sink: str
    types: frozenset[EventType] = DEFAULT_TYPES
    routes: frozenset[str] | None = None
    include: frozenset[Part] = frozenset()
    is_ordered: bool = False


@immutable
class OutboxRow:
    """An event for one sink, without its time. `response` is the JSON text of the upstream's response, if included.
    With encryption it is a sealed value, which has the key and the `Location`, too. `line` has the events that an
    ordered sink receives one after the other; None where the sink has no order."""

    sink: str
    event_id: str
    type: EventType
    content: bytes
    response: bytes | None = None
    line: bytes | None = None


@immutable
class Outbox:
    """The subscriptions of a service. `source` is the CloudEvents source; `event_bytes_max` bounds a response. The
    records are as they are stored. `sealing` opens what an event includes of them, and seals it again."""

    service: str = ""
    source: str = ""
    subscriptions: tuple[Subscription, ...] = ()
    event_bytes_max: int = 64 * 1024
    sealing: Sealing = field(default=NO_SEALING, compare=False, repr=False)

    @property
    def is_ordered(self) -> bool:
        return any(each.is_ordered for each in self.subscriptions)

    def rows(self, before: Record | None, after: Record | None) -> tuple[OutboxRow, ...]:
        """What to write with a change of a record: `before` as it was stored, `after` as it is written."""
        if not self.subscriptions or after is None:
            return ()
        rows: list[OutboxRow] = []
        contents: dict[frozenset[Part], tuple[bytes, bytes | None, bytes | None]] = {}
        for type_ in types_of(before, after):
            event_id = ""
            for each in self.subscriptions:
                if type_ not in each.types or not (each.routes is None or after.identity.route in each.routes):
                    continue
                event_id = event_id or _id_of(self.source, type_, after)
                if each.include not in contents:
                    contents[each.include] = self._content(before, after, each.include)
                content, response, confidential = contents[each.include]
                if confidential is not None:
                    response = self.sealing.sealed_event(framed(confidential) + (response or b""), event_id, each.sink)
                line = line_of(before, after) if each.is_ordered else None
                rows.append(OutboxRow(each.sink, event_id, type_, content, response, line))
        return tuple(rows)

    def pack(self) -> bytes:
        """The outbox as bytes, for sweeps of other services in the same store."""
        subscriptions = [
            {"sink": e.sink, "types": e.types, "routes": e.routes, "include": e.include, "ordered": e.is_ordered}
            for e in self.subscriptions
        ]
        fields = {"service": self.service, "source": self.source, "event_bytes_max": self.event_bytes_max}
        return orjson.dumps({**fields, "subscriptions": subscriptions}, default=sorted)

    def _content(
        self, before: Record | None, after: Record, include: frozenset[Part]
    ) -> tuple[bytes, bytes | None, bytes | None]:
        """The content of an event, its response as JSON, and, where they have to be sealed, its key and `Location`."""
        if include:
            after = self.sealing.opened(after)
        identity, response, request = after.identity, after.response, after.request
        delivery = after.delivery or (None if before is None else before.delivery)
        data: dict[str, Any] = {
            # In words: a driver's own type of UUID is not one to orjson.
            "operation_id": str(identity.operation_id),
            "route": identity.route,
            "state": after.state,
            "outcome": _OUTCOMES[after.state],
            "attempts": after.attempts,
            "token": after.token,
        }
        if response is not None:
            data["status"] = response.status
        if (reason := _reason(after)) is not None:
            data["reason"] = reason
        if delivery is not None:
            data["accepted_at"] = timestamp(delivery.accepted_us)
        had_doubt = before is not None and before.carries_doubt
        if after.state is State.COMPLETED and (had_doubt or after.last_event is Event.PROVE):
            data["recovered"] = True
        json = self._add_parts(data, after, include) if include else None
        confidential = None
        if self.sealing.seals and (json is not None or not _CONFIDENTIAL.isdisjoint(data)):
            confidential = orjson.dumps({name: data.pop(name) for name in _CONFIDENTIAL & data.keys()})
        content: dict[str, Any] = {"source": self.source, "data": data}
        if delivery is not None and delivery.lane is not None:
            content["partitionkey"] = delivery.lane.hex()
        if request is not None and request.trace_id is not None:
            content["trace_id"] = request.trace_id
        return orjson.dumps(content), json, confidential

    def _add_parts(self, data: dict[str, Any], after: Record, include: frozenset[Part]) -> bytes | None:
        """Add what is chosen; returns the response as JSON, if that is chosen and there is one."""
        if Part.KEY in include and after.identity.key is not None:
            data["key"] = _text(after.identity.key)
        if Part.SCOPE in include:
            data["scope"] = after.identity.scope_digest.hex()
        if Part.LOCATION in include and after.resource is not None:
            data["resource"] = after.resource
            if is_address(after.resource):
                data["location"] = after.resource
        if Part.RESPONSE not in include or after.response is None or after.response.body is None:
            return None
        if len(after.response.body) > self.event_bytes_max:
            data["truncated"] = True
            return None
        return _json_of(after.response)


NO_EVENTS: Final = Outbox()
"""Nobody receives events: a store then writes nothing more than without them."""


def unpack(packed: bytes, sealing: Sealing) -> Outbox:
    """Undo `Outbox.pack`. What only a newer program knows is left out: its own gateways sweep, too."""
    fields = orjson.loads(packed)
    subscriptions = tuple(
        Subscription(
            each["sink"],
            frozenset(EventType(name) for name in each["types"] if name in _TYPES),
            None if each["routes"] is None else frozenset(each["routes"]),
            frozenset(Part(name) for name in each["include"] if name in _PARTS),
            each["ordered"],
        )
        for each in fields["subscriptions"]
    )
    return Outbox(fields["service"], fields["source"], subscriptions, fields["event_bytes_max"], sealing)


def swept_rows(outboxes: Iterable[Outbox], before: Record, after: Record | None) -> tuple[str, tuple[OutboxRow, ...]]:
    """What to write with a change that the clock made, and of which service: a sweep finds the records of all."""
    if after is None or not types_of(before, after):
        return "", ()
    identity = after.identity
    own = next((each for each in outboxes if is_of(identity, each.service, identity.operation)), NO_EVENTS)
    return own.service, own.rows(before, after)


# What is known of the effect in a state that has events.
_OUTCOMES: Final[Mapping[State, str]] = {
    State.COMPLETED: "final",
    State.IN_DOUBT: "in_doubt",
    State.DEAD_LETTER: "no_effect",
    State.ACCEPTED: "no_effect",
    State.RELEASED: "no_effect",
}
# All members of an event's data in their order. What is not in the content of a row is nothing. Later programs publish
# rows without these: no name, value or place may ever change, or an id would have other bytes.
_NOTHING: Final[dict[str, Any]] = {
    **dict.fromkeys(("operation_id", "route", "state", "outcome", "reason", "status", "location", "resource")),
    **dict.fromkeys(("attempts", "token", "accepted_at", "completed_at")),
    "recovered": False,
    **dict.fromkeys(("key", "scope", "response")),
}
_ENDED_BY: Final = {
    (State.ACCEPTED, Event.ACCEPT): EventType.ACCEPTED,
    (State.ACCEPTED, Event.REINSTATE): EventType.RESOLVED,
    (State.ACCEPTED, Event.REQUEUE): EventType.REQUEUED,
    (State.RELEASED, Event.DISPROVE): EventType.RESOLVED,
    (State.RELEASED, Event.WITHDRAW): EventType.WITHDRAWN,
}


def types_of(before: Record | None, after: Record) -> tuple[EventType, ...]:
    """The events of one change that was written; `before` is the record as it was stored, not settled."""
    if before is not None and before.state is after.state and _change_of(before) == _change_of(after):
        return ()
    was_in_doubt = before is not None and before.state is State.IN_DOUBT
    match after.state:
        case State.COMPLETED if after.last_event is Event.PROVE:
            return (EventType.COMPLETED, EventType.RESOLVED)
        case State.COMPLETED:
            return (EventType.COMPLETED,)
        case State.IN_DOUBT:
            return () if was_in_doubt else (EventType.IN_DOUBT,)
        case State.DEAD_LETTER:
            return (EventType.DEAD_LETTERED,)
        case State.ACCEPTED | State.RELEASED if was_in_doubt:
            # By whatever event: the doubt was told, so its end is.
            return (EventType.RESOLVED,)
    found = _ENDED_BY.get((after.state, after.last_event))
    return () if found is None else (found,)


def line_of(before: Record | None, after: Record) -> bytes:
    """Whose events have an order: those of the operation's lane, or else of the operation."""
    delivery = after.delivery or (None if before is None else before.delivery)
    lane = None if delivery is None else delivery.lane
    return after.identity.operation_id.bytes if lane is None else lane


def _change_of(record: Record) -> tuple[object, ...]:
    """What differs between any two changes of one record that have events."""
    return record.state, record.token, record.last_event, record.resolution_id


def _id_of(source: str, type_: EventType, after: Record) -> str:
    """The id of an event. It has no `.`, which separates the parts of what Standard Webhooks sign."""
    # Under one token, a request may expire and be requeued several times. All else happens once.
    number = 0
    if type_ in (EventType.DEAD_LETTERED, EventType.REQUEUED) and after.delivery is not None:
        number = after.delivery.since_us
    hashed = _hash_of(source).copy()
    hashed.update(framed(after.identity.operation_id.bytes, b"%d" % after.token, type_.encode(), b"%d" % number))
    return "evt_" + b32encode(hashed.digest()[:_ID_BYTES]).decode().rstrip("=").lower()


@lru_cache(maxsize=16)
def _hash_of(source: str) -> Any:
    """SHA-256 over what all ids of a source begin with. A copy of it takes a third of the time of a new one."""
    return sha256(framed(source.encode()))


def _reason(after: Record) -> str | None:
    if after.state is State.IN_DOUBT:
        return _text(after.doubt)
    return None if after.delivery is None else _text(after.delivery.reason)


def _text(text: str | None) -> str | None:
    """The text, with `?` for what UTF-8 cannot express."""
    return None if text is None else text.encode("utf-8", "replace").decode()


def _json_of(response: StoredResponse) -> bytes | None:
    """The body where it is JSON and not encoded otherwise; numbers and spelling stay as the upstream wrote them."""
    types, body = header_values(response.headers, b"content-type"), response.body
    if body is None or len(types) != 1 or header_values(response.headers, b"content-encoding"):
        return None
    if (media_type := parse_media_type(types[0])) is None or not media_type.is_json:
        return None
    try:
        orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return body


# -- rendering ---------------------------------------------------------------------------------------------------------


@immutable
class PublishedEvent:
    """An event as its sink receives it, the same each time. `at_us` is the time of the change by the store's clock."""

    id: str
    type: EventType
    at_us: int
    content: bytes
    response: bytes | None = None

    @property
    def route(self) -> str:
        return str(self._fields()["data"]["route"])

    @property
    def operation_id(self) -> str:
        return str(self._fields()["data"]["operation_id"])

    def attributes(self) -> dict[str, str]:
        """The CloudEvents attributes but `specversion`, in the order in which they are written."""
        return self._attributes(self._fields())

    def data(self) -> bytes:
        """The `data` member as JSON."""
        return orjson.dumps(self._fields()["data"])

    def cloudevent(self) -> bytes:
        """The event in the structured mode of CloudEvents 1.0 (JSON format, section 3)."""
        fields = self._fields()
        return orjson.dumps({"specversion": "1.0", **self._attributes(fields), "data": fields["data"]})

    def standard(self) -> bytes:
        """The event as the payload that Standard Webhooks recommends."""
        data = orjson.Fragment(self.data())
        return orjson.dumps({"type": self.type.value, "timestamp": timestamp(self.at_us), "data": data})

    def _fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = orjson.loads(self.content)
        data = fields["data"] = _NOTHING | fields["data"]
        if data["state"] == State.COMPLETED:
            data["completed_at"] = timestamp(self.at_us)
        if self.response is not None:
            data["response"] = orjson.Fragment(self.response)
        return fields

    def _attributes(self, fields: dict[str, Any]) -> dict[str, str]:
        data = fields["data"]
        attributes = {
            "id": self.id,
            "source": fields["source"],
            "type": self.type.value,
            "subject": data["operation_id"],
            "time": timestamp(self.at_us),
            "datacontenttype": "application/json",
            # Compares as text. The second event of one change has the number 1.
            "sequence": f"{data['token']:020}.{self.at_us:016}.{self.type is EventType.RESOLVED:d}",
            "partitionkey": fields.get("partitionkey", data["operation_id"]),
        }
        if "trace_id" in fields:
            span = sha256(self.id.encode()).digest()[:_SPAN_BYTES].hex()
            attributes["traceparent"] = f"00-{fields['trace_id']}-{span}-00"
        return attributes


def opened_event(event: PublishedEvent, sink: str, sealing: Sealing) -> PublishedEvent:
    """The event of a row of this sink in clear. Raises `Unopenable`."""
    if event.response == b"":
        raise Unopenable("it was cut")
    if event.response is None or event.response[:1] != SEALED:
        return event
    parts = sealing.opened_event(event.response, event.id, sink)
    (length,) = _LENGTH.unpack_from(parts)
    end = _LENGTH.size + length
    content = orjson.loads(event.content)
    content["data"] |= orjson.loads(parts[_LENGTH.size : end])
    return replace(event, content=orjson.dumps(content), response=parts[end:] or None)


def resealed_event(
    content: bytes, response: bytes | None, event_id: str, sink: str, sealing: Sealing
) -> tuple[bytes, bytes | None]:
    """`content` and `response` of a row with what is confidential under the current key; equal if it is already. Only
    where `seals`. Raises `Unopenable`."""
    if response is not None and response[:1] == SEALED:
        parts = sealing.opened_event(response, event_id, sink)
        return content, sealing.sealed_event(parts, event_id, sink) if sealing.is_old(response) else response
    data = orjson.loads(content)
    confidential = {name: data["data"].pop(name) for name in _CONFIDENTIAL & data["data"].keys()}
    if response is None and not confidential:
        return content, response
    parts = framed(orjson.dumps(confidential)) + (response or b"")
    return orjson.dumps(data), sealing.sealed_event(parts, event_id, sink)


@lru_cache(maxsize=4)
def timestamp(at_us: int) -> str:
    """A time of the store's clock in the form of RFC 3339, to the millisecond."""
    return (_EPOCH + timedelta(microseconds=at_us)).isoformat(timespec="milliseconds") + "Z"


# -- publishing again --------------------------------------------------------------------------------------------------

# The pauses after the first, second, ... failed publication; the last one repeats. The first is of the Standard
# Webhooks specification, and spans 75.6 hours.
WEBHOOK_SCHEDULE_US: Final = tuple(
    microseconds(pause) for pause in (5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400)
)
BROKER_SCHEDULE_US: Final = tuple(microseconds(pause) for pause in (1, 5, 15, 60))


def pause_us(schedule_us: tuple[int, ...], tries: int, draw: float, retry_after_us: int | None = None) -> int:
    """The pause after so many failed publications. `draw` is uniform in [0, 1). A longer `Retry-After` of the consumer
    is obeyed, up to a day."""
    scheduled_us = schedule_us[min(max(tries, 1), len(schedule_us)) - 1]
    pause = round(scheduled_us * (1 - _JITTER + 2 * _JITTER * draw))
    return max(pause, min(retry_after_us or 0, RETRY_AFTER_US_MAX))
