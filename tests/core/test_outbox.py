"""Events as values: what they contain, what their ids are made of, and when they are published again."""

from __future__ import annotations

from dataclasses import replace

import orjson

from gateway.core.confidential import NO_SEALING
from gateway.core.delivery import RETRY_AFTER_US_MAX
from gateway.core.message import Headers, StoredResponse
from gateway.core.outbox import (
    BROKER_SCHEDULE_US,
    WEBHOOK_SCHEDULE_US,
    EventType,
    Outbox,
    Part,
    PublishedEvent,
    Subscription,
    pause_us,
    unpack,
)
from tests.conformance.hand import Hand
from tests.core.rows import rows
from tests.events.support import new_event, outbox, record_after
from tests.support.memory_store import EPOCH_US

JSON = (b"Content-Type", b"application/json; charset=utf-8")


def data_of(event: PublishedEvent) -> dict[str, object]:
    data: dict[str, object] = orjson.loads(event.data())
    return data


def test_an_event_is_thin_unless_it_is_told_otherwise() -> None:
    """Nothing of the request or the response but the status, and no key; it is in the trace of the request."""
    event = new_event()
    assert [name for name, value in data_of(event).items() if value is not None] == [
        *("operation_id", "route", "state", "outcome", "status", "attempts", "token", "completed_at", "recovered")
    ]
    assert orjson.loads(event.cloudevent())["traceparent"].startswith("00-0af7651916cd43dd8448eb211c80319c-")


@rows(
    "headers, body, shown",
    json=((JSON,), b'{"n": 1.10, "big": 123456789012345678901234567890}', True),
    problem=(((b"content-type", b"application/problem+json"),), b"[]", True),
    text=(((b"content-type", b"text/plain"),), b"{}", False),
    coded=((JSON, (b"content-encoding", b"gzip")), b"{}", False),
    malformed=((JSON,), b"{not json", False),
    not_utf_8=((JSON,), b"\xff", False),
)
def test_a_response_is_in_it_as_the_service_wrote_it(headers: Headers, body: bytes | None, shown: bool) -> None:
    """Where it is JSON; everything else is null."""
    event = new_event(StoredResponse(200, b"", headers, body), Part.RESPONSE)
    if shown:
        assert b'"response":' + (body or b"") in event.cloudevent()
    else:
        assert data_of(event)["response"] is None
    assert "truncated" not in data_of(event)


def test_a_long_response_is_left_out_and_that_is_said() -> None:
    """Truncated JSON would be none."""
    long = StoredResponse(200, b"", (JSON,), b'"' + b"x" * 100 + b'"')
    before, after = record_after(Hand(), Hand.claim, lambda hand: hand.complete(long))
    (row,) = outbox(Part.RESPONSE, event_bytes_max=50).rows(before, after)
    data = data_of(PublishedEvent(row.event_id, row.type, EPOCH_US, row.content, row.response))
    assert (data["response"], data["truncated"]) == (None, True)


def test_an_id_is_made_of_the_change_alone() -> None:
    """The same for every sink and whatever it contains; another one for another source, token or type."""
    before, after = record_after(Hand(), Hand.claim, Hand.complete)
    (thin,), (full,) = outbox().rows(before, after), outbox(*Part).rows(before, after)
    assert thin.event_id == full.event_id
    assert thin.event_id.startswith("evt_")
    assert thin.event_id.removeprefix("evt_").isalnum()
    (source,) = replace(outbox(), source="urn:other").rows(before, after)
    (token,) = outbox().rows(before, replace(after, token=after.token + 1))
    assert len({thin.event_id, source.event_id, token.event_id}) == 3


def test_text_that_utf_8_cannot_express_breaks_nothing() -> None:
    """Events are written with the change: what cannot be rendered must not stop it."""
    response = StoredResponse(201, b"", ((b"Location", b"/\xff\xfe"),), b"")
    before, after = record_after(Hand(), Hand.claim, lambda hand: hand.complete(response))
    after = replace(after, identity=replace(after.identity, key="\ud800"))
    (row,) = outbox(*Part).rows(before, after)
    assert data_of(PublishedEvent(row.event_id, row.type, EPOCH_US, row.content))["key"] == "?"


def test_what_an_event_says_is_in_its_row() -> None:
    """A state of another program is published as that program wrote it."""
    event = new_event()
    content = orjson.loads(event.content)
    content["data"] |= {"state": "sung", "outcome": "loud"}
    data = data_of(replace(event, content=orjson.dumps(content)))
    assert (data["state"], data["outcome"], data["completed_at"]) == ("sung", "loud", None)


def test_what_a_row_leaves_out_is_filled_in_the_same_for_ever() -> None:
    """Rows wait for later programs, which publish the same bytes under the same id."""
    assert replace(new_event(), content=b'{"source":"urn:test","data":{}}').data() == (
        b'{"operation_id":null,"route":null,"state":null,"outcome":null,"reason":null,"status":null,"location":null,'
        b'"resource":null,"attempts":null,"token":null,"accepted_at":null,"completed_at":null,"recovered":false,'
        b'"key":null,"scope":null,"response":null}'
    )


def test_subscriptions_are_read_as_they_were_packed() -> None:
    """What only a newer program knows is left out."""
    known = Subscription("a", frozenset((EventType.COMPLETED,)), frozenset(("pay",)), frozenset((Part.KEY,)))
    packed = Outbox("shop", "urn:x", (known,), 5)
    assert unpack(packed.pack(), NO_SEALING) == packed
    newer = packed.pack().replace(b"operation.completed", b"operation.sung").replace(b'"key"', b'"song"')
    left = replace(known, types=frozenset(), include=frozenset())
    assert unpack(newer, NO_SEALING).subscriptions == (left,)


def test_the_pauses_between_publications() -> None:
    """Those of the schedule, a fifth more or less, and the last again; a longer `Retry-After` counts, up to a day."""
    for schedule in (WEBHOOK_SCHEDULE_US, BROKER_SCHEDULE_US):
        assert pause_us(schedule, 1, 0.0) == round(0.8 * schedule[0])
        assert pause_us(schedule, len(schedule) + 2, 0.5) == schedule[-1]
    assert pause_us(BROKER_SCHEDULE_US, 1, 0.5, 90_000_000) == 90_000_000
    assert pause_us(WEBHOOK_SCHEDULE_US, 3, 0.5, 1_000_000) == WEBHOOK_SCHEDULE_US[2]
    assert pause_us(BROKER_SCHEDULE_US, 1, 0.5, 10 * RETRY_AFTER_US_MAX) == RETRY_AFTER_US_MAX
