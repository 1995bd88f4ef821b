"""What is encrypted of commands, records and events, and what it is bound to."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.confidential import NO_SEALING, EncryptionKey, KeyRing, Sealing, Unopenable, kept_headers, of_audit
from gateway.core.lifecycle import step
from gateway.core.message import Headers, pack_headers, unpack_headers
from gateway.core.operation import Applied, Command, Event, Record
from gateway.core.outbox import Outbox, Part, PublishedEvent, Subscription, opened_event
from tests.conformance.hand import ANSWER, RESOURCE, Hand

OLD = EncryptionKey("old", bytes(32))
NEW = EncryptionKey("new", bytes(range(32)))


def sealing(*keys: EncryptionKey, unreadable: list[tuple[UUID, str]] | None = None) -> Sealing:
    """Seals with the first key."""
    found = [] if unreadable is None else unreadable
    return Sealing(KeyRing(keys, os.urandom), lambda operation_id, why: found.append((operation_id, why)))


def stored(hand: Hand, by: Sealing, *speeches: Callable[[Hand], Command]) -> Record:
    """The record as a store has it after these commands."""
    record: Record | None = None
    for speech in speeches:
        command = speech(hand)
        result, record = step(record, by.sealed(command), 1_000, lambda: hand.token + 1)
        assert isinstance(result, Applied)
        hand.see(command, result)
    assert record is not None
    return record


def test_a_value_that_looks_sealed_is_encrypted_like_any_other() -> None:
    """A service may send any value: it cannot have its response kept in clear, or lost."""
    by, hand = sealing(NEW), Hand()
    response = replace(ANSWER, headers=((b"X-Odd", b"\x01new:"), *ANSWER.headers), body=b"\x01new:body")
    record = stored(hand, by, Hand.claim, lambda it: it.complete(response))
    assert b"X-Odd" not in repr(record).encode()
    assert by.opened(record).response == response


@pytest.mark.parametrize("part", ["headers", "body"])
@pytest.mark.parametrize("change", ["operation", "token", "part", "cut", "emptied", "flipped"])
def test_a_response_is_bound_to_its_place(part: str, change: str) -> None:
    """Of one that was moved or changed, the status is known, and it is reported."""
    unreadable: list[tuple[UUID, str]] = []
    by = sealing(NEW, unreadable=unreadable)
    record = stored(Hand(), by, Hand.claim, Hand.complete_grant)
    response = record.response
    assert response is not None
    ((name, headers),) = response.headers
    value, other = (headers, response.body) if part == "headers" else (response.body, headers)
    changed = {"part": other, "cut": value[:-1], "emptied": value[:1], "flipped": value[:-1] + bytes((value[-1] ^ 1,))}
    if change == "operation":
        record = replace(record, identity=replace(record.identity, operation_id=UUID(int=1)))
    elif change == "token":
        record = replace(record, token=record.token + 1)
    elif part == "headers":
        record = replace(record, response=replace(response, headers=((name, changed[change]),)))
    else:
        record = replace(record, response=replace(response, body=changed[change]))
    opened = by.opened(record)
    assert opened.response is not None
    assert (opened.response.status, opened.response.headers, opened.response.body) == (201, (), None)
    assert {operation_id for operation_id, _ in unreadable} == {record.identity.operation_id}


def test_what_was_written_with_a_claim_is_bound_to_its_operation() -> None:
    """None of it is believed of another one: a probe would ask about that."""
    by = sealing(NEW)
    mine, other = (stored(Hand(), by, Hand.claim, Hand.abandon) for _ in range(2))
    for moved in (
        replace(other, probe=mine.probe),
        replace(other, request=mine.request),
        replace(other, resource=mine.resource),
        replace(other, identity=replace(other.identity, key=mine.identity.key)),
    ):
        opened = by.opened(moved)
        assert (opened.probe, opened.request, opened.resource, opened.identity.key) == (None, None, None, None)


def test_a_response_from_a_journal_is_not_sealed_again_and_its_result_is_in_clear() -> None:
    """It goes on as it is, for its key may be another one, or missing; what comes of it is sent to callers."""
    by, hand = sealing(NEW), Hand()
    record = stored(hand, by, Hand.claim)
    journaled = by.sealed(hand.complete())
    assert sealing(OLD).sealed(journaled) == by.sealed(journaled) == journaled
    result, _ = step(record, journaled, 2_000, lambda: 0)
    opened = by.opened_result(result, journaled, journaled).snapshot.record
    assert opened is not None
    assert (opened.response, opened.resource) == (ANSWER, RESOURCE)


def test_no_two_are_alike() -> None:
    """The same content is never sealed to the same bytes, so nobody can tell that it is the same."""
    hand = Hand()
    first, second = (sealing(NEW).sealed(hand.claim()) for _ in range(2))
    assert first.identity.key != second.identity.key
    assert first.request != second.request


def test_an_audit_is_bound_to_its_change() -> None:
    """One of another operation, event or token says that it cannot be read."""
    by, hand = sealing(NEW), Hand()
    stored(hand, by, Hand.claim, Hand.abandon)
    command = hand.prove()
    sealed, clear, token = by.sealed(command).audit, command.audit, command.read_token
    assert sealed is not None
    assert clear is not None
    assert "was seen" not in repr(sealed)
    assert by.opened_texts(sealed, of_audit(hand.operation_id, Event.PROVE, token), hand.operation_id) == clear
    mine = hand.operation_id
    for place in ((UUID(int=1), Event.PROVE, token), (mine, Event.DISPROVE, token), (mine, Event.PROVE, token + 1)):
        assert "changed" in by.opened_texts(sealed, of_audit(*place), place[0]).why


def test_an_event_is_sealed_for_its_sink() -> None:
    """Opened, it is published in the very bytes that it has without encryption, for that sink and that event."""
    hand, by = Hand(), sealing(NEW)
    json = replace(ANSWER, headers=((b"Content-Type", b"application/json"), ANSWER.headers[1]), body=b'{"a": "b"}')
    subscriptions = tuple(Subscription(name, include=frozenset(Part)) for name in ("one", "two"))
    clear = Outbox("shop", "urn:shop", subscriptions)
    hand_clear = Hand(hand.script)
    after = stored(hand_clear, NO_SEALING, Hand.claim, lambda it: it.complete(json))
    sealed = stored(hand, by, Hand.claim, lambda it: it.complete(json))
    wanted = clear.rows(None, after)[0]
    one, two = replace(clear, sealing=by).rows(None, sealed)
    event = PublishedEvent(one.event_id, one.type, 1, one.content, one.response)
    assert b'"b"' not in one.content + (one.response or b"")
    assert b"/charges/1" not in one.content
    assert event.operation_id == str(hand.operation_id)
    published = replace(event, content=wanted.content, response=wanted.response).cloudevent()
    assert opened_event(event, "one", by).cloudevent() == published
    for moved, sink in (
        (event, "two"),
        (replace(event, response=two.response), "one"),
        (replace(event, id="x"), "one"),
    ):
        with pytest.raises(Unopenable):
            opened_event(moved, sink, by)


@given(st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=300)), max_size=20).map(tuple), st.data())
def test_packed_headers(headers: Headers, data: st.DataObject) -> None:
    """They come back in order, with repeats and every byte; wherever they are cut, and with anything behind, they are
    none."""
    packed = pack_headers(headers)
    assert unpack_headers(packed) == headers
    cut = packed[: data.draw(st.integers(0, len(packed) - 1))]
    for each in (cut, packed + b"x"):
        with pytest.raises(ValueError, match="packed headers end"):
            unpack_headers(each)
        assert kept_headers(each) != headers
