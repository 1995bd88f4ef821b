"""Encryption in real stores: nothing can be read beside them, nothing can be moved in them, and nothing gets lost."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import apsw
import pytest

from gateway.core.confidential import NO_SEALING, EncryptionKey, KeyRing, Sealing
from gateway.core.message import StoredResponse
from gateway.core.operation import Complete, ProbeTarget, Record, RequestInfo, State
from gateway.observe.facts import Events
from gateway.protect.journaling import Journaling
from gateway.store.base import NotApplied
from gateway.store.journal import journal as view
from gateway.store.journal.journal import SqliteJournal
from gateway.store.operations import EventFate, EventReport, ManagedStore
from gateway.store.sealed import SealedStore
from gateway.store.sqlite.store import SqliteStore
from gateway.upkeep.leftover import Flusher
from tests.conformance.hand import SERVICE, Hand, Script, do, new_identity, started, state
from tests.store.backends import Backend

SECRET = "a-sentinel-of-the-caller"
K1, K2 = EncryptionKey("k1", bytes(32)), EncryptionKey("k2", bytes(range(32)))
RESPONSE = StoredResponse(
    201,
    SECRET.encode(),
    ((b"Content-Type", b"application/json"), (b"Location", b"/" + SECRET.encode()), (b"X-" + SECRET.encode(), b"1")),
    b'{"it": "%b"}' % SECRET.encode(),
)


def sealing_by(*keys: EncryptionKey, unreadable: list[UUID] | None = None) -> Sealing:
    """Seals with the first key; with none, recognises what is sealed."""
    found = [] if unreadable is None else unreadable
    return Sealing(KeyRing(keys, os.urandom) if keys else None, lambda operation_id, _: found.append(operation_id))


def journaling_of(journal: SqliteJournal, store: ManagedStore, sealing: Sealing) -> Journaling:
    async def memory_of(_: UUID) -> str:
        return "memory"

    async def unsent_of(_: UUID) -> set[UUID]:
        return set()

    return Journaling(journal, store, Events(), sealing, memory_of=memory_of, unsent_of=unsent_of)


def secretive() -> Hand:
    return Hand(Script(new_identity(key=SECRET)))


def claim(hand: Hand) -> Complete:
    request = RequestInfo("POST", f"{SECRET}.test", f"/{SECRET}")
    return replace(hand.claim(), probe=ProbeTarget(b"/" + SECRET.encode(), SECRET.encode()), request=request)


def complete(hand: Hand) -> Complete:
    return replace(hand.complete(RESPONSE), resource=f"/{SECRET}")


def granted(hand: Hand) -> Complete:
    """As `complete`, by who has the record of the grant."""
    return replace(complete(hand), granted=hand.granted)


async def read(store: ManagedStore, hand: Hand) -> Record:
    hand.look(await store.read(hand.operation_id))
    return hand.record


def is_status_alone(record: Record) -> bool:
    """Whether the record completed, and its response is as one that was not stored."""
    response = record.response
    return (
        record.state is State.COMPLETED
        and response is not None
        and (response.status, response.headers, response.body) == (201, (), None)
    )


async def test_a_response_of_an_earlier_attempt_is_not_replayed(backend: Backend) -> None:
    """It is of the same operation, and of another request under the key."""
    store = await backend.store(sealing_by(K1))
    hand = secretive()
    await do(store, hand, claim, complete)
    ((kept,),) = await backend.execute("SELECT headers FROM operation")
    assert isinstance(kept, bytes)
    await do(store, hand, Hand.purge, Hand.erase, claim, complete)
    await backend.execute(f"UPDATE operation SET headers = {backend.blob(kept)}")
    assert is_status_alone(await read(store, hand))


async def test_reasons_are_of_their_row(backend: Backend) -> None:
    """Two of one operation name are exchanged, or put before the end of a pause: each says that it cannot be read."""
    store = await backend.store(sealing_by(K1))
    hand = secretive()
    for why in ("one", "two"):
        assert await store.cold.pause(SERVICE, "charges", hand.audit(why))
        assert await store.cold.resume(SERVICE, "charges", hand.audit(f"{why} is over"))
    one, end, two, _ = [
        f"row = {number}" for (number,) in await backend.execute("SELECT row FROM pause_audit ORDER BY row")
    ]
    await backend.swap("pause_audit", "why", one, two)
    whys = [entry.why for entry in await store.cold.pause_audits(SERVICE)]
    assert [why.startswith("(it was changed, it belongs to another") for why in whys] == [True, False, True, False]
    await backend.swap("pause_audit", "why", one, two)
    for column in ("who", "why"):
        await backend.swap("pause_audit", column, one, end)
    whys = [entry.why for entry in await store.cold.pause_audits(SERVICE)]
    assert [why[:1] == "(" for why in whys] == [True, True, False, False]


async def failed(store: ManagedStore, fate: EventFate, why: str) -> str:
    """Report the event that is due as failed; returns its id."""
    (leased,) = await store.cold.lease_events(SERVICE, {"sink": 1}, 1_000_000)
    report = EventReport("sink", leased.event.id, leased.tries, leased.redeliveries, fate, why, 60_000_000)
    await store.cold.report_events(SERVICE, [report])
    return leased.event.id


async def whys(store: ManagedStore, *, is_dead: bool) -> list[str]:
    """Why events were not published, as operators see it."""
    found = await store.cold.find_events(SERVICE, "sink", is_dead=is_dead, after=None, limit=10)
    return [each.why for each in found]


async def test_why_an_event_failed_is_for_operators_alone(backend: Backend) -> None:
    """Consumers quote what they refuse: the reason is encrypted, and a list that lacks its key says so."""
    before, store = await backend.store(sealing_by(K1)), await backend.store(sealing_by(K2, K1))
    await do(before, secretive(), claim, complete)
    await failed(store, EventFate.PUT_OFF, f"HTTP 422 {SECRET}")
    await do(before, secretive(), claim, complete)
    await failed(store, EventFate.DEAD, f"HTTP 410 {SECRET}")
    assert not await backend.has(SECRET)
    assert (await store.cold.tally()).sealed[K2.id] == 2
    assert await whys(store, is_dead=False) == [f"HTTP 422 {SECRET}"]
    assert await whys(store, is_dead=True) == [f"HTTP 410 {SECRET}"]
    assert (await store.cold.sinks(SERVICE))["sink"].last_error == f"HTTP 422 {SECRET}"
    missing = "(it is encrypted with key 'k2', which is not configured)"
    assert await whys(before, is_dead=False) == await whys(before, is_dead=True) == [missing]
    assert (await before.cold.sinks(SERVICE))["sink"].last_error == missing


async def test_a_completion_keeps_count_of_the_keys_that_the_rest_needs(backend: Backend) -> None:
    """What was claimed under the key before is encrypted with it still: it may not be given up yet."""
    store = await backend.store(sealing_by(K1))
    newer = await backend.store(sealing_by(K2, K1))
    hand = secretive()
    await do(store, hand, claim, Hand.abandon)
    await do(newer, hand, Hand.takeover)
    before = (await newer.cold.tally()).sealed["k1"]
    await do(newer, hand, granted)
    assert (await newer.cold.tally()).sealed["k1"] == before


def _journal_file(directory: Path) -> closing[apsw.Connection]:
    (path,) = directory.glob("*.db")
    return closing(apsw.Connection(str(path)))


async def test_outcomes_in_a_journal(tmp_path: Path) -> None:
    """They are encrypted, too; one that was moved completes its operation all the same, without a response."""
    sealing = sealing_by(K1)
    async with started(SealedStore(SqliteStore(tmp_path / "operations.db"), sealing)) as store:
        directory = tmp_path / "journal"
        async with started(SqliteJournal(directory, "shop")) as journal:
            journaling = journaling_of(journal, store, sealing)
            hands = [secretive(), secretive(), secretive()]
            for hand in hands:
                await do(store, hand, claim)
                kept = await journaling.keep(hand.record, complete(hand), detail="by a test")
                assert kept.record.response == RESPONSE
            assert not any(SECRET.encode() in each.read_bytes() for each in directory.iterdir())
            with _journal_file(directory) as file:
                bodies = [body for (body,) in file.execute("SELECT body FROM entry WHERE id IN (1, 2) ORDER BY id")]
                file.execute("UPDATE entry SET body = ? WHERE id = 2", (bodies[0],))
                file.execute("UPDATE entry SET body = ? WHERE id = 1", (bodies[1],))
            found = [await journaling.find(hand.operation_id) for hand in hands]
            assert [each.record.response.body for each in found] == [None, None, RESPONSE.body]
            desk = view.HostJournals(directory, "shop", sealing)
            commands = [desk.outcomes(hand.operation_id)[0].command for hand in hands]
            assert commands == [None, None, complete(hands[2])]
            await Flusher(store, journal, Events()).run_once()
            assert journal.tally.waiting == 0
            assert [is_status_alone(await read(store, hand)) for hand in hands] == [True, True, False]
            assert await state(store, hands[2]) is State.COMPLETED


async def test_outcomes_in_a_journal_are_encrypted_again(tmp_path: Path) -> None:
    """Those of an older key and those in clear, once; what cannot be read, and what another one owns, stays."""
    async with started(SealedStore(SqliteStore(tmp_path / "operations.db"), sealing_by(K2))) as store:
        directory = tmp_path / "journal"
        async with started(SqliteJournal(directory, "shop")) as journal:
            hands = [secretive() for _ in range(3)]
            lost = EncryptionKey("lost", b"l" * 32)
            for hand, sealing in zip(hands, (sealing_by(K1), NO_SEALING, sealing_by(lost)), strict=True):
                await do(store, hand, claim)
                assert hand.record is not None
                journaling = journaling_of(journal, store, sealing)
                await journaling.keep(hand.record, complete(hand), detail="by a test")
            others = view.HostJournals(directory, "books", sealing_by(K2, K1))
            assert others.reseal() == (0, 0)
            desk = view.HostJournals(directory, "shop", sealing_by(K2, K1))
            assert (desk.reseal(), desk.reseal()) == ((2, 1), (0, 1))
            with _journal_file(directory) as file:
                entries = repr(list(file.execute("SELECT * FROM entry ORDER BY id")))
            assert (SECRET in entries, "k1:" in entries, "lost:" in entries) == (False, False, True)
            await Flusher(store, journal, Events()).run_once()
            for hand in hands[:2]:
                record = await read(store, hand)
                assert (record.response, record.resource) == (RESPONSE, f"/{SECRET}")
            assert is_status_alone(await read(store, hands[2]))


def test_a_journal_that_cannot_be_read_is_not_passed_over(tmp_path: Path) -> None:
    """Otherwise it would keep what the old key is needed for, and nobody would know."""
    (tmp_path / "journal").write_text("in the place of a directory")
    with pytest.raises(NotApplied, match="cannot be read"):
        view.HostJournals(tmp_path / "journal", "shop", sealing_by(K2, K1)).reseal()
