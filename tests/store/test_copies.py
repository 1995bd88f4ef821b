"""The entries of a fast tier: nothing is lost in them, and nothing else is taken for one."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.message import StoredResponse
from gateway.core.operation import Event, Fingerprint, ProbeTarget, Record, State
from gateway.store.redis.layout import ERA_BYTES, decode, encode
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


def test_a_damaged_entry_is_not_found() -> None:
    """Whichever byte of its record is another one."""
    record = completed()
    entry = encode(record, ERA, EXPIRES_US)
    for place in range(len(entry) - len(ANSWER.body or b""), len(entry)):
        assert read_back(record, entry[:place] + bytes((entry[place] ^ 1,)) + entry[place + 1 :]) is None


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
