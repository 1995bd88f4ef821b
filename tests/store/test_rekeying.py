"""Rows that are encrypted again while others change them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from gateway.core.confidential import EncryptionKey, KeyRing, Resealing, Sealing, of_request
from gateway.core.message import StoredResponse
from gateway.core.operation import Accept, Audit, Complete, ProbeTarget, Record, RequestInfo, SealedRequest, Takeover
from gateway.core.outbox import NO_EVENTS
from gateway.store.operations import EventFate, EventReport, ManagedStore
from gateway.store.sealed import Place, SealedStore, rekey
from tests.conformance.hand import SERVICE, Hand, Script, Speech, do, new_identity, started
from tests.store.backends import Backend

OLD, NEW = EncryptionKey("eldest", bytes(32)), EncryptionKey("newest", bytes(range(32)))
SECRET = "a-sentinel-of-somebody"
AUDIT = Audit(SECRET, SECRET)
RESPONSE = StoredResponse(201, b"Made", ((b"Location", b"/made/1"),), b"made")


@pytest.fixture
async def durable(backend: Backend) -> AsyncIterator[ManagedStore]:
    async with started(backend.open_bare(NO_EVENTS)) as store:
        yield store


def sealing(*keys: EncryptionKey) -> Sealing:
    return Sealing(KeyRing(keys, os.urandom) if keys else None)


async def seen(store: SealedStore, hand: Hand) -> tuple[Record | None, RequestInfo | None]:
    record = (await store.read(hand.operation_id)).record
    return record, None if record is None else record.request


def _complete(hand: Hand) -> Complete:
    return hand.complete(RESPONSE)


async def made(store: SealedStore, *speeches: Speech) -> Hand:
    """An operation that had every part but a response, and of which this was said then."""
    hand = Hand(Script(new_identity(key=SECRET)))
    request = RequestInfo("POST", "api.test", "/charges")
    claim = replace(hand.claim(), probe=ProbeTarget(b"/probes/1", b"api.test"), request=request)
    await do(store, hand, lambda _: claim, *speeches)
    return hand


CHANGES: dict[str, tuple[Speech, ...]] = {
    "completed": (Hand.complete,),
    "released": (Hand.release,),
    "in doubt": (Hand.abandon,),
    "taken over": (Hand.abandon, Hand.takeover),
    "purged": (_complete, Hand.purge),
    "erased": (_complete, Hand.purge, Hand.erase),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("before", [OLD, None], ids=["other key", "clear"])
async def test_a_change_in_between_wins(durable: ManagedStore, name: str, before: EncryptionKey | None) -> None:
    """What was read before the change is not written over it; the next pass encrypts what there is then."""
    *first, change = CHANGES[name]
    old = SealedStore(durable, sealing(*([] if before is None else [before])))
    both = SealedStore(durable, sealing(*([NEW] if before is None else [NEW, before])))
    hand = await made(old, *first)
    (row,) = await durable.sealed_rows(Place.RECORDS, None, 10)
    assert isinstance(row.kept, Record)
    resealing = Resealing(sealing(*([NEW] if before is None else [NEW, before])))
    again = resealing.resealed(row.kept)
    assert again != row.kept
    assert resealing.reasons == []
    await do(old, hand, change)
    # A change that keeps all confidential values may be followed.
    unchanged = await seen(both, hand)
    number = await durable.reseal([(row, again)])
    assert await seen(both, hand) == unchanged
    if change in (Hand.complete, Hand.purge, Hand.erase, Hand.takeover):
        assert number == 0
    for place in (Place.RECORDS, Place.AUDITS):
        assert (await rekey(durable, place, both.sealing)).left == 0
    assert await seen(SealedStore(durable, sealing(NEW)), hand) == unchanged
    assert set((await durable.cold.tally()).sealed) <= {NEW.id}


async def _with_everything(store: SealedStore, both: SealedStore) -> None:
    """Rows in every table that keeps anything confidential, some of them changed by a gateway that has a newer key."""
    await made(store, _complete, lambda hand: replace(hand.purge(), audit=AUDIT))
    await made(store, _complete)
    await made(store, Hand.abandon)
    # The newer gateway replaces all that is confidential in the row of the operation, and the kept request stays.
    waiting = Hand(Script(new_identity(key=None)))
    await do(store, waiting, _accept)
    await do(both, waiting, Hand.dispatch, Hand.abandon, _takeover)
    assert await store.cold.pause(SERVICE, "charges", AUDIT)
    assert await store.cold.pause(SERVICE, "refunds", AUDIT)
    assert await store.cold.resume(SERVICE, "refunds", AUDIT)
    # Why an event failed, under the key that the rest of the event has and under the other one.
    for reporting, leased in zip((store, both), await store.cold.lease_events(SERVICE, {"sink": 2}, 1), strict=True):
        ids = (leased.sink, leased.event.id, leased.tries, leased.redeliveries)
        await reporting.cold.report_events(SERVICE, [EventReport(*ids, EventFate.DEAD, AUDIT.why)])
    assert await store.cold.suspend_sink(SERVICE, "sink", AUDIT.why)


def _accept(hand: Hand) -> Accept:
    command = hand.accept()
    acceptance_id = command.kept.acceptance_id
    ring = KeyRing([OLD], os.urandom)
    kept = SealedRequest(acceptance_id, *ring.seal(b"whole", of_request(hand.operation_id, acceptance_id)))
    return replace(command, kept=kept, probe=None, request=RequestInfo("POST", "api.test", "/charges"))


def _takeover(hand: Hand) -> Takeover:
    return replace(hand.takeover(), request=RequestInfo("POST", "api.test", "/charges"))


@pytest.mark.parametrize("before", [OLD, None], ids=["other key", "clear"])
async def test_everything_is_encrypted_again(backend: Backend, before: EncryptionKey | None) -> None:
    """As long as anything in any table needs a key, the start check knows that; and in the end nothing does."""
    stores = [
        await backend.store(sealing(*keys))
        for keys in ([] if before is None else [before], [NEW] if before is None else [NEW, before])
    ]
    bare = backend.bare
    await _with_everything(*stores)
    text = SECRET if before is None else OLD.id
    assert await backend.tables(text) >= {"operation", "event", "audit", "pause", "pause_audit", "suspension"}
    assert {OLD.id, NEW.id} == set((await bare.cold.tally()).sealed)
    await _rekey_all(bare, backend, list(Place), NEW, OLD)
    assert await backend.tables(text) == set()
    if before is not None:
        # To and fro, so that each place is once the last one that needs a key.
        keys = [OLD, NEW]
        for last in Place:
            await _rekey_all(bare, backend, [*(each for each in Place if each is not last), last], *keys)
            keys.reverse()


async def _rekey_all(
    store: ManagedStore, backend: Backend, places: Sequence[Place], new: EncryptionKey, old: EncryptionKey
) -> None:
    for place in places:
        assert (old.id in (await store.cold.tally()).sealed) is (await backend.tables(old.id) != set()), place
        done = await rekey(store, place, sealing(new, old))
        assert (done.left, done.changed > 0) == (0, True), place
    assert await backend.tables(old.id) == set()
    assert set((await store.cold.tally()).sealed) == {new.id}
