"""Entries of the fast tier, as bytes: each comes back as what it was, and nothing else is taken for one."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.operation import Event, Fingerprint, ProbeTarget, Record
from gateway.store.redis.store import ERA_BYTES, decode, encode
from tests.conformance.hand import ANSWER
from tests.store.copies import completed

ERA = b"e" * ERA_BYTES
EXPIRES_US = 1_800_000_000_000_000


def read_back(record: Record, entry: bytes) -> Record | None:
    decoded = decode(entry, record.identity.operation_id, ERA)
    return None if decoded is None else decoded[0]


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="as-completed"),
        pytest.param(
            {"fingerprint": None, "resource": None, "probe": None, "response": replace(ANSWER, body=None)}, id="absent"
        ),
        pytest.param(
            {
                "fingerprint": Fingerprint(b"", b"", b"", ""),
                "probe": ProbeTarget(b"", b"\xff"),
                "response": replace(ANSWER, body=b"", headers=(), reason=b""),
            },
            id="empty",
        ),
        pytest.param(
            {"resolution_id": uuid4(), "last_event": Event.PROVE, "token": 2**63 - 1, "holder": "a ü 漢"}, id="proven"
        ),
    ],
)
def test_an_entry_gives_back_the_record_it_was_made_of(changes: dict[str, object]) -> None:
    """Whatever a completed record may hold comes back equal."""
    record = replace(completed().record, **changes)  # type: ignore[arg-type]
    decoded = decode(encode(record, ERA, EXPIRES_US), record.identity.operation_id, ERA)
    assert decoded == (record, EXPIRES_US)


def test_what_is_no_entry_of_this_record_and_era_is_not_found() -> None:
    """Of another era, of a later program, or with any other byte in its record."""
    record = completed().record
    assert decode(encode(record, ERA, EXPIRES_US), record.identity.operation_id, b"f" * ERA_BYTES) is None
    entry = bytearray(encode(record, ERA, EXPIRES_US))
    entry[11 + ERA_BYTES] += 1
    assert read_back(record, bytes(entry)) is None
    entry = encode(record, ERA, EXPIRES_US)
    for place in range(len(entry) - len(ANSWER.body or b""), len(entry)):
        assert read_back(record, entry[:place] + bytes((entry[place] ^ 1,)) + entry[place + 1 :]) is None


@given(st.binary(max_size=300), st.integers(0, 400), st.binary(min_size=1, max_size=8))
def test_garbage_is_not_found_and_harms_nobody(garbage: bytes, place: int, patch: bytes) -> None:
    """Neither foreign bytes nor a damaged entry raise anything."""
    record = completed().record
    entry = encode(record, ERA, EXPIRES_US)
    assert read_back(record, garbage) is None
    read_back(record, entry[:place] + patch + entry[place + len(patch) :])
