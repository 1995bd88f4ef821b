"""Rows that are encrypted again while others change them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.core.confidential import Sealing
from gateway.core.message import StoredResponse
from gateway.core.operation import ProbeTarget, Record, RequestInfo
from gateway.core.sealing import EncryptionKey, KeyRing
from gateway.store import rekeying
from gateway.store.postgres.store import PostgresStore
from gateway.store.rekeying import Place, Rekeyed, rekey
from gateway.store.sealed import SealedStore
from gateway.store.sqlite.store import SqliteStore
from tests.conformance.hand import Hand, Script, do, new_identity

OLD, NEW = EncryptionKey("old", bytes(32)), EncryptionKey("new", bytes(range(32)))
RESPONSE = StoredResponse(201, b"Made", ((b"Location", b"/made/1"),), b"made")
Durable = SqliteStore | PostgresStore


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str | None:
    """That of a Postgres; None for SQLite."""
    return request.getfixturevalue("postgres_url") if request.param == "postgres" else None


@pytest.fixture
async def durable(url: str | None, tmp_path: Path) -> AsyncIterator[Durable]:
    """A bare store of each kind."""
    store = SqliteStore(tmp_path / "store" / "operations.db") if url is None else PostgresStore(url)
    await store.start()
    try:
        yield store
    finally:
        await store.close()


def sealing(*keys: EncryptionKey) -> Sealing:
    return Sealing(KeyRing(keys, os.urandom) if keys else None)


async def seen(store: SealedStore, hand: Hand) -> tuple[Record | None, RequestInfo | None]:
    """The record in clear."""
    record = (await store.read(hand.operation_id)).record
    return record, None if record is None else record.request


async def claimed(store: SealedStore) -> Hand:
    """An operation that has every part but a response."""
    hand = Hand(Script(new_identity(key="its-key")))
    request = RequestInfo("POST", "api.test", "/charges")
    claim = replace(hand.claim(), probe=ProbeTarget(b"/probes/1", b"api.test"), request=request)
    hand.see(claim, await store.apply(claim))
    return hand


async def completed(store: SealedStore) -> Hand:
    hand = await claimed(store)
    await do(store, hand, lambda hand: hand.complete(RESPONSE))
    return hand


async def purged(store: SealedStore) -> Hand:
    hand = await completed(store)
    await do(store, hand, Hand.purge)
    return hand


async def in_doubt(store: SealedStore) -> Hand:
    hand = await claimed(store)
    await do(store, hand, Hand.abandon)
    return hand


CHANGES: dict[str, tuple[Callable[[SealedStore], Awaitable[Hand]], str]] = {
    "completed": (claimed, "complete"),
    "released": (claimed, "release"),
    "in doubt": (claimed, "abandon"),
    "taken over": (in_doubt, "takeover"),
    "purged": (completed, "purge"),
    "erased": (purged, "erase"),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("before", [OLD, None], ids=["other key", "clear"])
async def test_a_change_in_between_wins(durable: Durable, name: str, before: EncryptionKey | None) -> None:
    """What was read before the change is not written over it; the next pass encrypts what there is then."""
    make, change = CHANGES[name]
    old = SealedStore(durable, sealing(*([] if before is None else [before])))
    both = SealedStore(durable, sealing(*([NEW] if before is None else [NEW, before])))
    hand = await make(old)
    (row,) = await durable.sealed_rows(Place.RECORDS, None, 10, "new")
    assert isinstance(row.kept, Record)
    again = sealing(*([NEW] if before is None else [NEW, before])).resealed(row.kept)
    assert again != row.kept
    await do(old, hand, getattr(Hand, change))
    # A change that keeps all confidential values may be followed.
    unchanged = await seen(both, hand)
    number = await durable.reseal(Place.RECORDS, [(row, again)])
    assert await seen(both, hand) == unchanged
    if change in ("complete", "purge", "erase", "takeover"):
        assert number == 0
    done = await rekey(durable, Place.RECORDS, both._sealing, "new")
    assert done.left == 0
    assert await seen(SealedStore(durable, sealing(NEW)), hand) == unchanged
    assert set((await durable.tally()).sealed) <= {"new"}


async def test_it_goes_on_where_it_was_stopped(durable: Durable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped behind each page, it leaves nothing unreadable, and what is left is less each time."""
    monkeypatch.setattr(rekeying, "PAGE_ROWS_MAX", 3)
    old, both = SealedStore(durable, sealing(OLD)), SealedStore(durable, sealing(NEW, OLD))
    hands = [await completed(old) for _ in range(10)]
    records = [await seen(old, hand) for hand in hands]
    left = [10]
    while True:
        try:
            done = await rekey(durable, Place.RECORDS, both._sealing, "new", _stop)
        except _Stopped:
            left.append((await durable.tally()).sealed.get("old", 0))
            assert [await seen(both, hand) for hand in hands] == records
            continue
        break
    assert (left, done) == ([10, 7, 4, 1, 0], Rekeyed())
    assert [await seen(SealedStore(durable, sealing(NEW)), hand) for hand in hands] == records


async def test_what_cannot_be_read_stays(durable: Durable) -> None:
    """Without its key a record is left as it is, is counted, and hides no other one."""
    third = EncryptionKey("third", b"3" * 32)
    lost, kept = (
        await completed(SealedStore(durable, sealing(OLD))),
        await completed(SealedStore(durable, sealing(third))),
    )
    records = [await seen(SealedStore(durable, sealing(OLD, third)), hand) for hand in (lost, kept)]
    done = await rekey(durable, Place.RECORDS, sealing(NEW, third), "new")
    assert (done.changed, done.left) == (1, 1)
    assert "key 'old', which is not configured" in done.why
    assert (await durable.tally()).sealed == {"old": 1, "new": 1}
    assert [await seen(SealedStore(durable, sealing(NEW, OLD)), hand) for hand in (lost, kept)] == records


class _Stopped(Exception):
    pass


def _stop(_: int) -> None:
    raise _Stopped
