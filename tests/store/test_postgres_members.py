"""The list of workers that may grant, as a real Postgres keeps it, and what a worker does about its place there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from gateway.admin.reports import MemoryState, memory_state
from gateway.core.operation import Applied
from gateway.observe.facts import Events, Fact, PromotionJudged, StoreMet, SynchronyChanged
from gateway.store.base import Indefinite, NotApplied
from gateway.store.files import make_directory
from gateway.store.memory.epoch import SeenFile, WitnessFiles, amnesia_of
from gateway.store.memory.guard import EpochGuard
from gateway.store.memory.promotion import Conditions, Member
from gateway.store.operations import Epoch
from gateway.store.postgres.store import PostgresStore
from tests.conformance.hand import Hand, do
from tests.store.postgres_sessions import session
from tests.support.eventually import eventually
from tests.support.postgres import PostgresServer
from tests.support.serving import serving

PATIENCE_SECONDS = 20.0
QUICK = Conditions(wait_seconds=3.0, probation_seconds=2.0)
WINDOW_US = 3_600_000_000


@asynccontextmanager
async def listed(
    url: str, directory: Path, conditions: Conditions = QUICK, facts: list[Fact] | None = None
) -> AsyncIterator[EpochGuard]:
    """A gateway's guard that is a member, with the state of this host."""
    make_directory(directory)
    files = WitnessFiles(directory / "witness")
    store = PostgresStore(url, witness_files=files)
    guard = EpochGuard(
        store,
        Events(*([] if facts is None else [facts.append])),
        replace(serving(recipes={"route": b"recipe"}), gateway_id=uuid4()),
        seen_file=SeenFile(directory / "seen.json"),
        amnesia_window_us=WINDOW_US,
        witness_files=files,
        fleet=store,
        conditions=conditions,
    )
    await guard.start()
    try:
        yield guard
    finally:
        await guard.close()


async def members(url: str) -> list[Member]:
    store = PostgresStore(url)
    await store.start()
    try:
        return await store.members()
    finally:
        await store.close()


async def test_a_worker_that_is_silent_is_struck_off(migrated_url: str, tmp_path: Path) -> None:
    """By those that beat, and no sooner than it has surely stopped to grant."""
    gone = uuid4()
    async with session(migrated_url) as other, listed(migrated_url, tmp_path / "one"):
        await other.execute(
            "INSERT INTO idempotency_gateway.gateway (id, service, operations, seen_us, level, beat, host)"
            " VALUES ($1, 'shop', '[]', 0, 1, 5, 'gone')",
            gone.bytes,
        )

        async def is_struck_off() -> bool:
            return gone not in [each.gateway_id for each in await members(migrated_url)]

        await eventually(is_struck_off, PATIENCE_SECONDS)


async def test_a_worker_that_was_struck_off_is_listed_anew(migrated_url: str, tmp_path: Path) -> None:
    """It notices with its next beat, and goes on."""
    async with session(migrated_url) as other, listed(migrated_url, tmp_path / "one") as guard:
        await other.execute("UPDATE idempotency_gateway.gateway SET beat = NULL")
        await eventually(lambda: _has_members(migrated_url, 1), PATIENCE_SECONDS)
        await do(guard, Hand(), Hand.claim)


async def _has_members(url: str, number: int) -> bool:
    return len(await members(url)) == number


async def test_what_is_acknowledged_too_late_does_not_count(migrated_url: str, tmp_path: Path) -> None:
    """A worker that was frozen may have been struck off: neither a grant nor a record counts as taken, until it
    beats again."""
    async with listed(migrated_url, tmp_path / "one") as guard:
        await do(guard, hand := Hand(), Hand.claim)
        assert guard._membership is not None
        await guard._membership.pause()
        guard._membership.until_seconds = 0.0
        guard._update_trust()
        for command in (Hand().claim(), hand.complete()):
            with pytest.raises(Indefinite, match="was cut off"):
                await guard.apply(command)
        await guard._membership._beat()
        assert isinstance(await guard.apply(hand.complete()), Applied)
        assert isinstance(await guard.apply(Hand().claim()), Applied)


async def test_nothing_is_granted_without_beats(own_postgres: PostgresServer, tmp_path: Path) -> None:
    """A worker that cannot beat refuses to ask for grants; when the store is back, it grants again."""
    async with listed(own_postgres.url, tmp_path / "one") as guard:
        await do(guard, Hand(), Hand.claim)
        own_postgres.stop()
        await eventually(lambda: "not reached" in guard._why_no_grants, PATIENCE_SECONDS)
        with pytest.raises(NotApplied, match="was not reached for too long"):
            await guard.apply(Hand().claim())
        await asyncio.to_thread(own_postgres.start)

        async def is_back() -> bool:
            try:
                return isinstance(await guard.apply(Hand().claim()), Applied)
            except (NotApplied, Indefinite):
                return False

        await eventually(is_back, PATIENCE_SECONDS)


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


# -- promotions -------------------------------------------------------------------------------------------------------


async def restart_in_place(server: PostgresServer) -> None:
    """As a cluster manager does it: as a standby that is promoted, on the same data."""
    server.crash()
    server.await_promotion()
    server.launch()
    await eventually(server.is_ready, PATIENCE_SECONDS)
    await server.promote()


async def memory_of(url: str) -> Epoch:
    store = PostgresStore(url)
    await store.start()
    try:
        return await store.cold.check_memory()
    finally:
        await store.close()


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


async def refused(url: str, directory: Path, conditions: Conditions = QUICK) -> str:
    """Why the promotion is refused, once votes are waited for no more."""
    # A gateway that starts until it is let in.
    files = WitnessFiles(directory / "witness")
    store = PostgresStore(url, witness_files=files)
    guard = EpochGuard(
        store,
        Events(),
        replace(serving(recipes={"route": b"recipe"}), gateway_id=uuid4()),
        seen_file=SeenFile(directory / "seen.json"),
        amnesia_window_us=WINDOW_US,
        witness_files=files,
        fleet=store,
        conditions=conditions,
    )

    async def starts() -> bool:
        try:
            await guard.start()
        except NotApplied:
            return False
        return True

    try:
        await eventually(starts, PATIENCE_SECONDS)
        return amnesia_of(await store.cold.check_memory()).why
    finally:
        await guard.close()


async def test_who_has_not_spoken_is_named(own_postgres: PostgresServer, tmp_path: Path) -> None:
    """A gateway that is gone, with the notes of its host, keeps a promotion from being believed, and is named."""
    # It is not struck off meanwhile.
    patient = replace(QUICK, probation_seconds=30.0)
    async with listed(own_postgres.url, tmp_path / "one", patient) as guard, session(own_postgres.url) as other:
        await other.execute(
            "INSERT INTO idempotency_gateway.gateway (id, service, operations, seen_us, level, beat, host)"
            " VALUES (uuid_send(gen_random_uuid()), 'shop', '[]', 0, 1, 5, 'gone')"
        )
        await do(guard, Hand(), Hand.claim)
        await restart_in_place(own_postgres)

        async def is_lost() -> bool:
            return "on host gone has not spoken since" in amnesia_of(await memory_of(own_postgres.url)).why

        await eventually(is_lost, PATIENCE_SECONDS)


async def test_nobody_was_there(own_postgres: PostgresServer, tmp_path: Path) -> None:
    """A promotion that no gateway ran through is not believed: others may have come and gone meanwhile."""
    async with listed(own_postgres.url, tmp_path / "one") as guard:
        await do(guard, Hand(), Hand.claim)
    await restart_in_place(own_postgres)
    assert "no gateway was in contact" in await refused(own_postgres.url, tmp_path / "one")


@pytest.mark.parametrize("promotion", ["refuse", "trusted"])
async def test_the_operators_word(own_postgres: PostgresServer, tmp_path: Path, promotion: str) -> None:
    """With `refuse` even a proven promotion is a lost memory; with `trusted` nobody has to have been there."""
    conditions = replace(QUICK, promotion=promotion)
    async with listed(own_postgres.url, tmp_path / "one", conditions) as guard:
        await do(guard, Hand(), Hand.claim)
    await restart_in_place(own_postgres)
    if promotion == "refuse":
        assert "store.promotion is refuse" in await refused(own_postgres.url, tmp_path / "one", conditions)
        return
    async with listed(own_postgres.url, tmp_path / "one", conditions) as guard:
        assert await _grants(guard)


async def test_a_promotion_is_accepted_once_and_with_all_votes(own_postgres: PostgresServer, tmp_path: Path) -> None:
    """The store itself counts them, whatever the gateway counted before."""
    async with listed(own_postgres.url, tmp_path / "one"):
        pass
    await restart_in_place(own_postgres)
    store = PostgresStore(own_postgres.url)
    await store.start()
    try:
        epoch, gone = await store.cold.check_memory(), uuid4()
        assert "no gateway has accepted that yet" in (await memory_state(store)).text
        async with session(own_postgres.url) as other:
            await other.execute(
                "INSERT INTO idempotency_gateway.gateway (id, service, operations, seen_us, level, beat, host)"
                " VALUES ($1, 'shop', '[]', 0, 1, 5, 'gone')",
                gone.bytes,
            )
            assert not await store.accept_promotion(epoch, b"new", is_trusted=False)
            await store.vouch("another identity", gone, "boot", [])
            assert not await store.accept_promotion(epoch, b"new", is_trusted=False)
            assert not await store.accept_promotion(replace(epoch, memo=b"old"), b"new", is_trusted=False)
            await store.vouch(epoch.identity, gone, "boot", [])
            assert await store.accept_promotion(epoch, b"new", is_trusted=False)
            assert not await store.accept_promotion(epoch, b"new", is_trusted=True)
            await other.execute("DELETE FROM idempotency_gateway.gateway")
    finally:
        await store.close()


async def test_the_notes_of_a_host_vouch_for_its_ended_workers(own_postgres: PostgresServer, tmp_path: Path) -> None:
    """If it was not booted since: then the last notes may be missing."""
    store, notes = PostgresStore(own_postgres.url), uuid4()
    async with listed(own_postgres.url, tmp_path / "one"):
        pass
    await store.start()
    try:
        async with session(own_postgres.url) as other:
            await other.execute(
                "INSERT INTO idempotency_gateway.gateway"
                " (id, service, operations, seen_us, level, beat, host, notes, boot)"
                " VALUES (uuid_send(gen_random_uuid()), 'shop', '[]', 0, 1, 5, 'here', $1, 'this boot')",
                notes.bytes,
            )
            for boot, vouched in (("another boot", ""), ("this boot", "memory")):
                await store.vouch("memory", uuid4(), boot, [notes])
                assert [each.vouched_for for each in await store.members()] == [vouched]
            # Its successor on that host strikes it off.
            await other.execute(
                "INSERT INTO idempotency_gateway.gateway (id, service, operations, seen_us, level, host)"
                " VALUES ($1, 'shop', '[]', 0, 1, '')",
                (successor := uuid4()).bytes,
            )
            joined = await store.join(successor, uuid4(), "here", "this boot", [notes])
            assert (joined.was_listed, joined.is_synchronous, joined.may_fail_over) == (False, False, False)
            assert [each.gateway_id for each in await store.members()] == [successor]
            assert (await store.join(successor, uuid4(), "here", "this boot", [])).was_listed
            # Nobody is struck off whose beat has gone on since it was looked at.
            silent = uuid4()
            await other.execute(
                "INSERT INTO idempotency_gateway.gateway (id, service, operations, seen_us, level, beat, host)"
                " VALUES ($1, 'shop', '[]', 0, 1, 5, '')",
                silent.bytes,
            )
            for beat, number in ((4, 2), (5, 1)):
                await store.beat(successor, [(silent, beat)])
                assert len(await store.members()) == number
            await other.execute("DELETE FROM idempotency_gateway.gateway")
    finally:
        await store.close()
