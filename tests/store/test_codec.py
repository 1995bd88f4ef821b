"""The entries of a fast tier: nothing is lost in them, and nothing else is taken for one."""

from __future__ import annotations

import struct
from dataclasses import replace
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.lifecycle import TABLE
from gateway.core.message import StoredResponse
from gateway.core.operation import Event, Fingerprint, Identity, ProbeTarget, Record, State
from gateway.store.redis.codec import ERA_BYTES, decode, encode
from tests.conformance.hand import ANSWER, Hand
from tests.support.memory_store import MemoryStore

ERA = b"e" * ERA_BYTES
EXPIRES_US = 1_800_000_000_000_000


def completed() -> Record:
    """A record as the table makes it."""
    store, hand = MemoryStore(), Hand()
    for say in (hand.claim, hand.complete):
        command = say()
        hand.see(command, store.apply_now(command))
    assert hand.record is not None
    return hand.record


def read_back(record: Record, entry: bytes) -> Record | None:
    decoded = decode(entry, record.identity.operation_id, ERA)
    return None if decoded is None else decoded[0]


# A record that was proven, as version 1 writes it.
PROVEN = Record(
    Identity(UUID(int=1), "r", "o", b"s", b"k"),
    State.COMPLETED,
    token=7,
    attempt_id=UUID(int=2),
    last_event=Event.PROVE,
    holder="h",
    carried_us=None,
    fingerprint=Fingerprint(b"c", b"d", b"w", "", b"p"),
    attempts=1,
    first_claimed_us=10,
    claimed_us=11,
    replay_until_us=20,
    remember_until_us=30,
    completed_us=12,
    resolution_id=UUID(int=3),
    response=StoredResponse(201, b"Created", ((b"A", b"b"),), b"{}"),
)
PROVEN_ENTRY = bytes.fromhex(
    "696752000000000000000765656565656565656565656565656565010000000000000063000000000000000000000000"
    "00000001000000000000000000000000000000020000000000000000000000000000000300000001000000000000000a"
    "000000000000000b0000000000000014000000000000001e000000000000000c00c9010e001300000001000000010000"
    "000100000001000000000000000100000001000000010000000100000000000000010000000000000000000000000000"
    "000000000007000000010000000100000002726f736b68636477704372656174656441627b7d"
)


def test_an_entry_of_this_version_keeps_its_bytes() -> None:
    """Gateways of two releases share a Redis: what one of them wrote means the same to the other."""
    assert encode(PROVEN, ERA, 99) == PROVEN_ENTRY
    assert decode(PROVEN_ENTRY, PROVEN.identity.operation_id, ERA) == (PROVEN, 99)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="as-completed"),
        pytest.param({"fingerprint": None}, id="no-fingerprint"),
        pytest.param({"fingerprint": Fingerprint(b"", b"", b"", "")}, id="empty-fingerprint"),
        pytest.param({"resolution_id": uuid4(), "last_event": Event.PROVE}, id="proven"),
        pytest.param({"response": replace(ANSWER, body=None)}, id="body-not-kept"),
        pytest.param({"response": replace(ANSWER, body=b"", headers=(), reason=b"")}, id="empty-answer"),
        pytest.param({"resource": None}, id="nothing-made"),
        pytest.param({"probe": None}, id="no-probe"),
        pytest.param({"probe": ProbeTarget(b"", b"\xff")}, id="odd-probe"),
        pytest.param({"token": 2**63 - 1}, id="highest-token"),
        pytest.param({"holder": "a ü 漢"}, id="holder-beyond-ascii"),
    ],
)
def test_an_entry_gives_back_the_record_it_was_made_of(changes: dict[str, object]) -> None:
    """Whatever a completed record may hold comes back equal."""
    record = replace(completed(), **changes)  # type: ignore[arg-type]
    decoded = decode(encode(record, ERA, EXPIRES_US), record.identity.operation_id, ERA)
    assert decoded == (record, EXPIRES_US)


@given(
    st.integers(100, 599),
    st.binary(max_size=20),
    st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=40)), max_size=20),
    st.none() | st.binary(max_size=200),
)
def test_answers_of_any_bytes_come_back(
    status: int, reason: bytes, headers: list[tuple[bytes, bytes]], body: bytes | None
) -> None:
    """Repeats, order, NULs and emptiness of fields and bodies are kept."""
    record = replace(completed(), response=StoredResponse(status, reason, tuple(headers), body))
    assert read_back(record, encode(record, ERA, EXPIRES_US)) == record


def test_an_entry_of_another_operation_is_not_found() -> None:
    """An answer that came for somebody else's question is recognised by the operation it names."""
    assert decode(encode(completed(), ERA, EXPIRES_US), uuid4(), ERA) is None


def test_an_entry_of_another_era_is_not_found() -> None:
    """What a server brought back from before is not believed."""
    record = completed()
    assert decode(encode(record, ERA, EXPIRES_US), record.identity.operation_id, b"f" * ERA_BYTES) is None


def test_an_entry_of_an_unknown_version_is_not_found() -> None:
    """A later program's entry is left alone, not guessed at."""
    record = completed()
    entry = bytearray(encode(record, ERA, EXPIRES_US))
    entry[11 + ERA_BYTES] += 1
    assert read_back(record, bytes(entry)) is None


def test_a_cut_entry_is_not_found() -> None:
    """An entry that ends at any other byte than its last, or goes on, is none."""
    record = completed()
    entry = encode(record, ERA, EXPIRES_US)
    assert [end for end in range(len(entry)) if read_back(record, entry[:end]) is not None] == []
    assert read_back(record, entry + b"x") is None


def test_an_entry_of_another_kind_is_not_found() -> None:
    """What begins otherwise is none, however much it looks like an entry behind that."""
    assert read_back(PROVEN, b"igX" + PROVEN_ENTRY[3:]) is None


@pytest.mark.parametrize(("count", "is_found"), [(0, False), (15, False), (16, False), (17, True), (18, False)])
def test_an_entry_with_a_number_of_parts_that_cannot_be_is_not_found(count: int, *, is_found: bool) -> None:
    """Parts that fill the entry but are too few, or leave a header field without a value, are not guessed at."""
    before_the_count = PROVEN_ENTRY[: PROVEN_ENTRY.index(bytes.fromhex("001300000001"))]
    entry = before_the_count + struct.pack(f">H{count}I", count, *[1] * count) + b"x" * count
    assert (read_back(PROVEN, entry) is not None) is is_found


@given(st.binary(max_size=300), st.integers(0, 400), st.binary(min_size=1, max_size=8))
def test_garbage_is_not_found_and_harms_nobody(garbage: bytes, place: int, patch: bytes) -> None:
    """Neither foreign bytes nor a damaged entry raise anything."""
    record = completed()
    entry = encode(record, ERA, EXPIRES_US)
    assert read_back(record, garbage) is None
    read_back(record, entry[:place] + patch + entry[place + len(patch) :])


@pytest.mark.parametrize("state", [state for state in State if state not in (State.ABSENT, State.COMPLETED)])
def test_only_completed_records_have_entries(state: State) -> None:
    """What is in flight, in doubt or gone cannot be encoded by mistake."""
    with pytest.raises(ValueError, match="completed"):
        encode(replace(completed(), state=state), ERA, EXPIRES_US)


def test_every_event_that_completes_a_record_has_its_number() -> None:
    """No other one has: it would be read back as one of them."""
    completing = {row.event for row in TABLE if row.next is State.COMPLETED}
    for event in Event:
        record = replace(completed(), last_event=event)
        if event in completing:
            assert read_back(record, encode(record, ERA, EXPIRES_US)) == record
        else:
            with pytest.raises(ValueError, match="does not fit"):
                encode(record, ERA, EXPIRES_US)


def test_a_record_that_does_not_fit_is_refused() -> None:
    """A value beyond its field's size is an error, never a shortened value."""
    with pytest.raises(ValueError, match="does not fit"):
        encode(replace(completed(), attempts=2**32), ERA, EXPIRES_US)
