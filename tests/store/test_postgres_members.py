"""The list of workers that may grant, as a real Postgres keeps it, and what a worker does about its place there."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, get_args
from uuid import UUID, uuid4

import pytest

from gateway.admin.reports import MemoryState, memory_state
from gateway.core.operation import Applied
from gateway.observe.facts import Fact, PromotionJudged, StoreMet, SynchronyChanged
from gateway.store.base import Indefinite, NotApplied
from gateway.store.memory.epoch import Amnesia, Seen, WitnessNote, after_promotion, amnesia_of, loss, memory_digest
from gateway.store.memory.guard import EpochGuard
from gateway.store.memory.promotion import (
    Conditions,
    Joined,
    Member,
    Promotion,
    Synchronous,
    Verdict,
    decide,
    seconds_before_grants,
)
from gateway.store.operations import Epoch
from gateway.store.postgres.store import PostgresStore
from tests.conformance.hand import Hand, do, started
from tests.store.guards import QUICK, a_member, witness_files_in
from tests.store.postgres_sessions import session
from tests.support.eventually import eventually
from tests.support.postgres import PostgresServer

PATIENCE_SECONDS = 20.0


def of_postgres(
    url: str, directory: Path, conditions: Conditions = QUICK, facts: list[Fact] | None = None
) -> EpochGuard:
    files = witness_files_in(directory)
    store = PostgresStore(url, witness_files=files)
    return a_member(store, files, directory, conditions=conditions, facts=facts)


def listed(url: str, directory: Path, *options: Any) -> AbstractAsyncContextManager[EpochGuard]:
    """A gateway's guard that is a member, with the state of this host."""
    return started(of_postgres(url, directory, *options))


async def add(beside: Any, gateway_id: UUID, **columns: object) -> None:
    row = {"id": gateway_id.bytes, "service": "shop", "operations": "[]", "seen_us": 0, "level": 1, **columns}
    places = ", ".join(f"${number}" for number in range(1, len(row) + 1))
    await beside.execute(f"INSERT INTO idempotency_gateway.gateway ({', '.join(row)}) VALUES ({places})", *row.values())


async def test_what_is_acknowledged_too_late_does_not_count(migrated_url: str, tmp_path: Path) -> None:
    """A worker that was frozen may have been struck off: neither a grant nor a record counts as taken, until it
    beats again."""
    async with listed(migrated_url, tmp_path / "one") as guard:
        await do(guard, hand := Hand(), Hand.claim)
        await guard._membership.pause()
        guard._membership.until_seconds = 0.0
        guard._update_trust()
        for command in (Hand().claim(), hand.complete()):
            with pytest.raises(Indefinite, match="was cut off"):
                await guard.apply(command)
        await guard._membership._beat()
        assert isinstance(await guard.apply(hand.complete()), Applied)
        assert isinstance(await guard.apply(Hand().claim()), Applied)


async def test_one_that_needs_a_synchronous_standby(own_postgres: PostgresServer, tmp_path: Path) -> None:
    """Grants nothing without one, and records what it has granted; it says so in the metric's fact."""
    facts: list[Fact] = []
    needs = replace(QUICK, synchronous="require")
    async with listed(own_postgres.url, tmp_path / "one", needs, facts) as guard:
        with pytest.raises(NotApplied, match="no synchronous standby"):
            await guard.apply(Hand().claim())
        await guard.read(uuid4())
    assert [each.is_synchronous for each in facts if isinstance(each, SynchronyChanged)] == [False]
    assert [each.timeline for each in facts if isinstance(each, StoreMet)] == [1]


async def restart_in_place(server: PostgresServer) -> None:
    """As a cluster manager does it: as a standby that is promoted, on the same data."""
    server.crash()
    server.await_promotion()
    server.launch()
    await eventually(server.is_ready, PATIENCE_SECONDS)
    await server.promote()


async def memory_of(url: str) -> Epoch:
    async with started(PostgresStore(url)) as store:
        return await store.cold.check_memory()


async def test_a_restart_in_place_is_accepted_by_those_that_ran(own_postgres: PostgresServer, tmp_path: Path) -> None:
    """One of them accepts it, both go on, the memory has a new identity, and a late one with an old note agrees."""
    facts: list[Fact] = []
    async with listed(own_postgres.url, tmp_path / "late"):
        before = await memory_of(own_postgres.url)
    async with (
        listed(own_postgres.url, tmp_path / "one", QUICK, facts) as one,
        listed(own_postgres.url, tmp_path / "two", QUICK, facts) as two,
    ):
        for guard in (one, two):
            await do(guard, Hand(), Hand.claim, Hand.complete)
        await restart_in_place(own_postgres)
        for guard in (one, two):
            await eventually(lambda guard=guard: _grants(guard), PATIENCE_SECONDS)
        async with listed(own_postgres.url, tmp_path / "late") as late:
            assert await _grants(late)
    after = await memory_of(own_postgres.url)
    text = MemoryState(amnesia_of(after), after.now_us).text
    assert text.endswith("timeline 2: all 2 gateways have there what was acknowledged to them.")
    assert after.identity.split("/")[0] != before.identity.split("/")[0]
    assert after.parent == ""
    assert amnesia_of(after).continued == (before.identity,)
    judged = [each for each in facts if isinstance(each, PromotionJudged)]
    assert [each.result for each in judged].count("accepted") == 1
    assert {each.result for each in judged} <= {"accepted", "waiting"}


async def _grants(guard: EpochGuard) -> bool:
    """Whether a new key is granted; raises `Amnesic` if the store lost its memory."""
    try:
        return isinstance(await guard.apply(Hand().claim()), Applied)
    except (NotApplied, Indefinite):
        return False


async def refused(url: str, directory: Path, conditions: Conditions) -> str:
    """Why the promotion is refused, once votes are waited for no more."""
    guard = of_postgres(url, directory, conditions)

    async def starts() -> bool:
        try:
            await guard.start()
        except NotApplied:
            return False
        return True

    try:
        await eventually(starts, PATIENCE_SECONDS)
        return amnesia_of(await guard.cold.check_memory()).why
    finally:
        await guard.close()


async def test_who_has_not_spoken_is_named(own_postgres: PostgresServer, tmp_path: Path) -> None:
    """A gateway that is gone, with the notes of its host, keeps a promotion from being believed, and is named."""
    # It is not struck off meanwhile.
    patient = replace(QUICK, probation_seconds=30.0)
    async with listed(own_postgres.url, tmp_path / "one", patient) as guard, session(own_postgres.url) as other:
        await add(other, uuid4(), beat=5, host="gone")
        await do(guard, Hand(), Hand.claim)
        await restart_in_place(own_postgres)

        async def is_lost() -> bool:
            return "on host gone has not spoken since" in amnesia_of(await memory_of(own_postgres.url)).why

        await eventually(is_lost, PATIENCE_SECONDS)


@pytest.mark.parametrize(
    ("promotion", "why"),
    [("proven", "no gateway was in contact"), ("refuse", "store.promotion is refuse"), ("trusted", "")],
    ids=["proven", "refuse", "trusted"],
)
async def test_nobody_was_there(own_postgres: PostgresServer, tmp_path: Path, promotion: Promotion, why: str) -> None:
    """A promotion that no gateway ran through is not believed, as others may have come and gone meanwhile, unless an
    operator trusts it."""
    conditions = replace(QUICK, promotion=promotion)
    async with listed(own_postgres.url, tmp_path / "one", conditions) as guard:
        await do(guard, Hand(), Hand.claim)
    await restart_in_place(own_postgres)
    if why:
        assert why in await refused(own_postgres.url, tmp_path / "one", conditions)
        return
    async with listed(own_postgres.url, tmp_path / "one", conditions) as guard:
        assert await _grants(guard)


async def test_a_promotion_is_accepted_once_and_with_all_votes(own_postgres: PostgresServer, tmp_path: Path) -> None:
    """The store itself counts them, whatever the gateway counted before."""
    async with listed(own_postgres.url, tmp_path / "one"):
        pass
    await restart_in_place(own_postgres)
    async with started(PostgresStore(own_postgres.url)) as store:
        epoch, gone = await store.cold.check_memory(), uuid4()
        assert "no gateway has accepted that yet" in (await memory_state(store)).text
        async with session(own_postgres.url) as other:
            await add(other, gone, beat=5, host="gone")
            assert not await store.accept_promotion(epoch, b"new", is_trusted=False)
            await store.vouch("another identity", gone, "boot", [])
            assert not await store.accept_promotion(epoch, b"new", is_trusted=False)
            assert not await store.accept_promotion(replace(epoch, memo=b"old"), b"new", is_trusted=False)
            await store.vouch(epoch.identity, gone, "boot", [])
            assert await store.accept_promotion(epoch, b"new", is_trusted=False)
            assert not await store.accept_promotion(epoch, b"new", is_trusted=True)
            await other.execute("DELETE FROM idempotency_gateway.gateway")


async def test_the_notes_of_a_host_vouch_for_its_ended_workers(own_postgres: PostgresServer, tmp_path: Path) -> None:
    """If it was not booted since: then the last notes may be missing."""
    store, notes = PostgresStore(own_postgres.url), uuid4()
    async with listed(own_postgres.url, tmp_path / "one"):
        pass
    async with started(store), session(own_postgres.url) as other:
        await add(other, uuid4(), beat=5, host="here", notes=notes.bytes, boot="this boot")
        for boot, vouched in (("another boot", ""), ("this boot", "memory")):
            await store.vouch("memory", uuid4(), boot, [notes])
            assert [each.vouched_for for each in await store.members()] == [vouched]
        # Its successor on that host strikes it off.
        await add(other, successor := uuid4(), host="")
        joined = await store.join(successor, uuid4(), "here", "this boot", [notes])
        assert (joined.was_listed, joined.is_synchronous, joined.may_fail_over) == (False, False, False)
        assert [each.gateway_id for each in await store.members()] == [successor]
        assert (await store.join(successor, uuid4(), "here", "this boot", [])).was_listed
        # Nobody is struck off whose beat has gone on since it was looked at.
        silent = uuid4()
        await add(other, silent, beat=5, host="")
        for beat, number in ((4, 2), (5, 1)):
            await store.beat(successor, [(silent, beat)])
            assert len(await store.members()) == number
        await other.execute("DELETE FROM idempotency_gateway.gateway")


BEFORE = "uuid/system/1/00000001"
PROMOTED = Epoch("uuid/system/1/00000002", 100, 1_000_000, b"", parent=BEFORE)
LATE = Member(UUID(int=9), "shop-3", 7, 1_000_000)
LISTS = {
    "nobody": [],
    "all-vouched": [Member(UUID(int=n), "shop", 5, 0, PROMOTED.identity) for n in range(3)],
    "one-has-not": [Member(UUID(int=1), "shop", 5, 0, PROMOTED.identity), LATE],
    "for-a-twin": [replace(LATE, vouched_for="twin/system/1/00000002")],
    "for-an-earlier-one": [replace(LATE, vouched_for=BEFORE)],
}


def expected(
    policy: str, is_contradicted: bool, is_higher: bool, members: str, is_fresh: bool, is_patient: bool
) -> Verdict:
    """The rule in words: no contradiction, not forbidden, a later timeline, and everybody accounted for by somebody who
    was there until the end; whoever may still speak is waited for."""
    if is_contradicted or policy == "refuse" or not is_higher:
        return Verdict.REFUSE
    if policy == "trusted" or (members in ("nobody", "all-vouched") and is_fresh):
        return Verdict.ACCEPT
    return Verdict.WAIT if is_patient else Verdict.REFUSE


@pytest.mark.parametrize("policy", get_args(Promotion))
def test_a_promotion_is_believed_when_it_is_proven(policy: Promotion) -> None:
    """And never otherwise, whatever else is in its favour."""
    for case in product((False, True), (True, False), LISTS, (True, False), (True, False)):
        is_contradicted, is_higher, members, is_fresh, is_patient = case
        epoch = PROMOTED if is_higher else replace(PROMOTED, parent="uuid/system/1/00000003")
        contradiction = "it lacks changes" if is_contradicted else None
        decision = decide(policy, epoch, contradiction, LISTS[members], is_fresh=is_fresh, is_patient=is_patient)
        assert decision.result == expected(policy, *case), case
        assert decision.why == contradiction if is_contradicted else decision.why


def test_how_long_a_new_gateway_waits() -> None:
    """Not at all if a standby surely knows it, or if there is none; else as long as the others are believed unheard."""
    for synchronous, is_synchronous, may_fail_over in product(get_args(Synchronous), (True, False), (True, False)):
        found = seconds_before_grants(Joined(1, False, is_synchronous, may_fail_over), synchronous, 5.0)
        unheard = None if synchronous == "require" else 5.0 if may_fail_over else 0.0
        assert found == (0.0 if is_synchronous else unheard)


ACCEPTED = replace(PROMOTED, identity="new/system/1/00000002", parent="")
KNOWN = after_promotion(PROMOTED, Amnesia(beyond=7), "timeline 2: all")
NOTE = WitnessNote(UUID(int=1), 5, 900_000, 7, memory_digest(BEFORE))


@pytest.mark.parametrize(("held", "is_lost"), [({UUID(int=1): 5}, False), ({UUID(int=1): 4}, True), ({}, True)])
def test_a_note_that_comes_late_is_compared(held: dict[UUID, int], is_lost: bool) -> None:
    """What a gateway nobody had heard of was told by the former primary must be there, or it is a loss after all."""
    epoch = replace(ACCEPTED, witnesses=held)
    assert (loss(Seen(BEFORE, 90), None, epoch, KNOWN, [NOTE]) is not None) == is_lost
