"""The guard of a durable store: who gets through, and what it does about a memory that was lost."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from gateway.core.operation import Accept, Applied, Claim, Fenced, Fingerprint, Identity, Release, Snapshot, State
from gateway.observe.facts import Fact, MemoryChanged
from gateway.store.agreement import RUNNING_US
from gateway.store.base import Amnesic, EpochChanged, Indefinite, NotApplied, StartRefused, Store
from gateway.store.memory import guard as guard_module
from gateway.store.memory.epoch import (
    TOKENS_SKIPPED,
    Seen,
    SeenFile,
    SharedNote,
    WitnessFiles,
    amnesia_of,
)
from gateway.store.memory.guard import EpochGuard
from gateway.store.redis.store import RedisSeen
from tests.conformance.hand import SERVICE, Hand, Speech, all_of, do, started
from tests.store.guards import WINDOW_US, a_guard
from tests.support.eventually import eventually
from tests.support.faulty_store import Fault, FaultyStore
from tests.support.memory_store import Memory, MemoryStore
from tests.support.redis import RedisServer
from tests.support.serving import serving


def claim(number: int, read_token: int | None = None) -> Claim:
    identity = Identity(UUID(int=number), "route", "route", b"scope", b"key")
    return Claim(identity, uuid4(), "holder", Fingerprint(b"r", b"d", b"w"), 30_000_000, read_token)


def opened(
    memory: Memory, directory: Path, facts: list[Fact] | None = None, store: Store | None = None, **options: Any
) -> AbstractAsyncContextManager[EpochGuard]:
    """A gateway's guard, with what it noted earlier in this directory, and what all noted in Redis."""
    return started(a_guard(store or MemoryStore(memory), directory, facts, **options))


def host(directory: Path, name: str) -> Path:
    """The state directory of a host that never ran a gateway."""
    (directory / name).mkdir()
    return directory / name


async def grown(memory: Memory, directory: Path, claims: int, shared: SharedNote | None = None) -> None:
    """Let a gateway see a store that grants so many claims, and stop."""
    async with opened(memory, directory, shared=shared) as guard:
        for number in range(claims):
            assert isinstance(await guard.apply(claim(number)), Applied)
        await guard.exchange_notes()


def lose(memory: Memory, loss: str) -> None:
    if loss == "older-state":
        memory.token = 2
        del memory.records[UUID(int=4)]
    else:
        memory.identity = "another"


async def check_lost(guard: EpochGuard, memory: Memory, facts: list[Fact]) -> str:
    """Absent keys are refused for the window, known ones are served, and tokens jump. Returns why."""
    with pytest.raises(Amnesic):
        await guard.apply(claim(99))
    assert isinstance(await guard.apply(claim(1)), Fenced)
    (changed,) = [fact for fact in facts if isinstance(fact, MemoryChanged)]
    assert (changed.is_lost, changed.left_seconds) == (True, WINDOW_US / 1e6)
    memory.clock.advance(WINDOW_US / 1e6)
    result = await guard.apply(claim(99))
    assert isinstance(result, Applied)
    assert result.snapshot.record.token > TOKENS_SKIPPED
    return changed.why


LOSSES = ("older-state", "other-store")


@pytest.mark.parametrize("loss", LOSSES)
async def test_a_lost_memory_is_noticed(tmp_path: Path, loss: str) -> None:
    """After a restore or a failover."""
    memory, facts = Memory(), list[Fact]()
    await grown(memory, tmp_path, 5)
    lose(memory, loss)
    async with opened(memory, tmp_path, facts) as guard:
        await check_lost(guard, memory, facts)


@pytest.mark.parametrize("loss", LOSSES)
async def test_a_host_without_a_note_knows_what_the_others_saw(
    tmp_path: Path, redis_url: str, no_haste: None, loss: str
) -> None:
    """The first gateway after a loss notices it by the note in Redis, though its own directory is empty."""
    memory, facts, shared = Memory(), list[Fact](), RedisSeen(redis_url, "shop")
    await grown(memory, host(tmp_path, "one"), 5, shared=shared)
    lose(memory, loss)
    async with opened(memory, host(tmp_path, "fresh"), facts, shared=shared) as guard:
        assert "as other gateways noted" in await check_lost(guard, memory, facts)


async def test_a_release_from_before_the_loss_is_not_believed(tmp_path: Path) -> None:
    """A retry that was executed may have been forgotten along with its claim: the key waits as an absent one does. Who
    only wants to know hears no more than who claims: that nobody knows, for as long as keys are remembered."""
    memory = Memory()
    async with opened(memory, tmp_path) as guard:
        await guard.apply(claim(2))
        token = (await guard.apply(released := claim(1))).snapshot.record.token
        await guard.apply(Release(UUID(int=1), token, released.attempt_id, WINDOW_US * 10))
    memory.identity = "another"
    async with opened(memory, tmp_path) as guard:
        for read_token in (None, token):
            with pytest.raises(Amnesic):
                await guard.apply(claim(1, read_token))
        for number in (1, 99):
            with pytest.raises(Amnesic):
                await guard.read(UUID(int=number))
        assert (await guard.read(UUID(int=2))).state is State.CLAIMED
        memory.clock.advance(WINDOW_US / 1e6)
        assert (await guard.read(UUID(int=1))).state is State.RELEASED
        assert (await guard.read(UUID(int=99))).state is State.ABSENT
        assert isinstance(await guard.apply(claim(1, token)), Applied)


async def test_a_request_kept_before_the_loss_is_not_delivered(tmp_path: Path) -> None:
    """It may have been sent, which the store has forgotten, so nobody may call it off either."""
    memory, names = Memory(), all_of("charges")
    kept = [Hand() for _ in range(9)]
    dead, new = Hand(), Hand()

    def accept(hand: Hand) -> Accept:
        return replace(hand.accept(), deliver_within_us=2 * WINDOW_US)

    async with opened(memory, tmp_path) as guard:
        for hand in kept:
            await do(guard, hand, accept)
        await do(guard, dead, accept, Hand.dispatch, Hand.bury)
        assert len((await guard.cold.find_due(SERVICE, names, 99)).found) == 9
    memory.identity = "another"
    async with opened(memory, tmp_path) as guard:
        assert (await guard.cold.find_due(SERVICE, names, 1)).found == []
        for command in (kept[0].dispatch(), kept[0].withdraw(), kept[0].claim(), dead.withdraw(), new.accept()):
            with pytest.raises(Amnesic):
                await guard.apply(command)
        for hand in (kept[0], dead):
            with pytest.raises(Amnesic):
                await guard.read(hand.operation_id)
        # Nor does an operator who requeues it know more.
        await do(guard, dead, Hand.requeue)
        with pytest.raises(Amnesic):
            await guard.apply(dead.dispatch())
        # As if it had become known to be a new key since.
        granted = MemoryStore(memory).apply_now(accept(new))
        new.look(granted.snapshot)
        (due,) = (await guard.cold.find_due(SERVICE, names, 1)).found
        assert due.record == new.record
        await do(guard, new, Hand.dispatch, Hand.complete)
        memory.clock.advance(WINDOW_US / 1e6)
        assert len((await guard.cold.find_due(SERVICE, names, 99)).found) == 9
        await do(guard, kept[0], Hand.dispatch)


async def is_back(guard: EpochGuard) -> bool:
    """Whether the guard has met the store again, be its memory lost or not."""
    (told,) = await asyncio.gather(guard.read(UUID(int=1)), return_exceptions=True)
    return isinstance(told, Snapshot | Amnesic)


@pytest.mark.parametrize("command", [Hand.claim, Hand.accept], ids=["claim", "accept"])
async def test_a_grant_from_while_another_memory_was_found(tmp_path: Path, command: Speech) -> None:
    """A claim or an acceptance that was under way then is taken for lost, and not believed when it is said again."""
    memory = Memory()
    store = FaultyStore(MemoryStore(memory))
    async with opened(memory, tmp_path, store=store) as guard:
        memory.identity = "another"
        said, gate = command(Hand()), store.stop_after(command.__name__)
        claiming = asyncio.create_task(guard.apply(said))
        await gate.reached.wait()
        store.on("read", Fault(EpochChanged("another memory"), has_effect=False))
        with pytest.raises(EpochChanged):
            await guard.read(UUID(int=2))
        gate.opened.set()
        with pytest.raises(Indefinite):
            await claiming
        await eventually(lambda: is_back(guard))
        with pytest.raises(Amnesic):
            await guard.apply(said)


async def test_two_changes_close_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that changes again as soon as it is back is started anew once more, and by one at a time."""
    monkeypatch.setattr(guard_module, "_PAUSE_SECONDS_MIN", 0.0)
    memory = Memory()
    store = FaultyStore(MemoryStore(memory))
    gate, starting, overlaps = asyncio.Event(), asyncio.Lock(), list[bool]()
    gate.set()

    async def start() -> None:
        overlaps.append(starting.locked())
        async with starting:
            await gate.wait()
            await store.behind.start()

    store.start = start
    async with opened(memory, tmp_path, store=store) as guard:

        async def change() -> None:
            store.on("read", Fault(EpochChanged("another memory"), has_effect=False))
            told: object = None
            while not isinstance(told, EpochChanged):
                (told,) = await asyncio.gather(guard.read(UUID(int=1)), return_exceptions=True)

        await change()
        await change()
        gate.clear()
        for _ in range(100):
            await asyncio.sleep(0)
        gate.set()
        await eventually(lambda: is_back(guard))
        assert set(overlaps) == {False}


async def test_an_unreadable_note_is_refused(tmp_path: Path) -> None:
    """Without the note of what was seen a loss would go unnoticed, so a damaged one ends the start."""
    (tmp_path / "seen.json").write_text("{")
    with pytest.raises(StartRefused, match=r"seen\.json"):
        async with opened(Memory(), tmp_path):
            pass


async def is_refused(guard: EpochGuard, number: int = 99) -> bool:
    """Whether the claim on a key that the store does not have is refused for what it may have forgotten."""
    try:
        assert isinstance(await guard.apply(claim(number)), Applied)
    except Amnesic:
        return True
    return False


@pytest.fixture
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host without notes does not wait for Redis."""
    monkeypatch.setattr(guard_module, "_SHARED_WAIT_SECONDS", 0.0)


@pytest.mark.usefixtures("no_patience")
async def test_a_store_that_was_met_without_redis_is_compared_later(tmp_path: Path, own_redis: RedisServer) -> None:
    """A host that had to believe the store because Redis was away finds the loss out as soon as it is back."""
    memory, shared = Memory(), RedisSeen(own_redis.url, "shop")
    await grown(memory, host(tmp_path, "one"), 3, shared=shared)
    known = await shared.read()
    assert known is not None
    own_redis.kill()
    memory.identity = "another"
    async with opened(memory, host(tmp_path, "fresh"), shared=shared) as guard:
        assert not await is_refused(guard, 50)
        # To have met it twice is to have believed it twice.
        await guard.exchange_notes()
        own_redis.start()
        await shared.write(known, "")
        await guard.exchange_notes()
        assert await is_refused(guard)


async def test_a_memory_that_was_replaced_is_not_believed(tmp_path: Path, redis_url: str) -> None:
    """A gateway that still reaches the old memory, after others went on with a new one, grants nothing on it."""
    old, new, shared = Memory(), Memory(identity="promoted"), RedisSeen(redis_url, "shop")
    async with opened(old, host(tmp_path, "cut-off"), shared=shared) as guard:
        assert not await is_refused(guard, 1)
        async with opened(new, host(tmp_path, "one"), shared=shared) as other:
            assert await is_refused(other)
        await guard.exchange_notes()
        assert await is_refused(guard)
        # Neither takes what the other did for another loss.
        until_us = [amnesia_of(await guard.cold.check_memory()).until_us]
        for clock in (old.clock, new.clock):
            clock.advance(60)
        async with opened(new, tmp_path / "one", shared=shared) as other:
            await guard.exchange_notes()
            await other.exchange_notes()
            until_us.append(amnesia_of(await guard.cold.check_memory()).until_us)
        assert until_us[0] == until_us[1]


class CountedNote(RedisSeen):
    """The shared note, which counts how often it is written."""

    writes = 0

    async def write(self, seen: Seen, compared: str) -> None:
        self.writes += 1
        await super().write(seen, compared)


def witnessed(memory: Memory, directory: Path, shared: SharedNote) -> AbstractAsyncContextManager[EpochGuard]:
    """A gateway's guard of a store that notes what it acknowledges."""
    files = WitnessFiles(directory / "witness")
    return opened(memory, directory, store=MemoryStore(memory, files), shared=shared, witness_files=files)


async def wait_shared(shared: SharedNote, memory: Memory) -> None:
    """Return when the shared note has the numbers that the store has."""

    async def is_shared() -> bool:
        held = await shared.read()
        return held is not None and {note.link: note.number for note in held.acknowledged} == memory.witnesses

    await eventually(is_shared, what="the note has all that was acknowledged")


async def test_what_is_acknowledged_is_shared_at_once(tmp_path: Path, redis_url: str) -> None:
    """Soon after it was acknowledged, and not in a write for each: however many there are, two a second at the most."""
    memory, shared = Memory(), CountedNote(redis_url, "shop")
    async with witnessed(memory, tmp_path, shared) as guard:
        before = shared.writes
        assert isinstance(await guard.apply(claim(0)), Applied)
        await wait_shared(shared, memory)
        assert guard.unshared_seconds == 0
        for number in range(1, 200):
            assert isinstance(await guard.apply(claim(number)), Applied)
        await wait_shared(shared, memory)
        assert shared.writes <= before + 3
        assert isinstance(await guard.apply(claim(200)), Applied)
    await wait_shared(shared, memory)


class LateNote(RedisSeen):
    """The shared note in a Redis that starts together with the gateway."""

    refused = 0

    async def read(self) -> Seen | None:
        if self.refused < 3:
            self.refused += 1
            raise NotApplied("Redis is loading")
        return await super().read()


async def test_a_host_without_notes_waits_for_the_shared_one(tmp_path: Path, redis_url: str) -> None:
    """Where everything is started again at once, a Redis that comes a moment later is waited for, for some seconds."""
    memory = Memory()
    async with witnessed(memory, host(tmp_path, "first"), RedisSeen(redis_url, "shop")) as guard:
        assert isinstance(await guard.apply(claim(1)), Applied)
        copy = dict(memory.records), dict(memory.witnesses)
        assert isinstance(await guard.apply(claim(2)), Applied)
    memory.records, memory.witnesses = copy
    async with witnessed(memory, host(tmp_path, "second"), LateNote(redis_url, "shop")) as guard:
        with pytest.raises(Amnesic):
            await guard.apply(claim(2))


async def test_a_store_that_must_not_be_used_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has one line for each reason, however often it is tried."""
    monkeypatch.setattr(guard_module, "_PAUSE_SECONDS_MIN", 0.001)
    monkeypatch.setattr(guard_module, "_PAUSE_SECONDS_MAX", 0.001)
    memory = Memory()
    store = FaultyStore(MemoryStore(memory))
    reasons = ("it is of another", "it is newer")
    async with opened(memory, tmp_path, store=store) as guard:
        store.on("read", Fault(EpochChanged("another memory"), has_effect=False))
        refusals = [Fault(StartRefused(why), has_effect=False) for why in reasons for _ in range(5)]
        store.on("compare_configuration", *refusals)
        with pytest.raises(EpochChanged):
            await guard.read(uuid4())
        await eventually(lambda: is_back(guard))
    told = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert told == [f"the durable store must not be used any more: {why}" for why in reasons]


async def test_a_gateway_that_runs_is_seen(tmp_path: Path) -> None:
    """With every exchange it notes that it runs, so that it counts for as long as it does, and no longer."""
    memory = Memory()
    store = MemoryStore(memory)
    renamed = serving([("POST /a", "renamed")], gateway_id=UUID(int=2))
    async with opened(memory, tmp_path, serves=serving([("POST /a", "route")])) as guard:
        await store.start()
        for _ in range(3):
            memory.clock.advance(RUNNING_US / 1_000_000 - 1)
            await guard.exchange_notes()
        assert (await store.cold.compare_configuration(renamed)).conflicts
    assert not (await store.cold.compare_configuration(renamed)).conflicts


async def test_a_gateway_that_is_given_up_leaves_nothing_remembered(tmp_path: Path) -> None:
    """The next gateway is asked about keys that the one which goes on finds as before."""
    memory = Memory()
    changed = serving(recipes={"route": b"other"}, accepted=("route",), gateway_id=UUID(int=2))
    async with opened(memory, tmp_path, serves=serving(recipes={"route": b"recipe"})) as guard:
        assert isinstance(await guard.apply(claim(1)), Applied)
        async with opened(memory, tmp_path, serves=changed):
            pass
        await guard.remember_again()
        asked = serving(recipes={"route": b"other"}, gateway_id=UUID(int=3))
        third = a_guard(MemoryStore(memory), host(tmp_path, "third"), serves=asked)
        with pytest.raises(StartRefused):
            await third.start()
        await third.close()


class AwayStore(MemoryStore):
    """One that cannot be reached."""

    async def start(self) -> None:
        raise NotApplied("away")


@pytest.mark.parametrize(
    ("own", "shared", "told"),
    [
        ("id/1", "id/1", ["id/1"]),
        ("id/1", "id/2", ["id/1"]),
        ("id/1", "other/1", []),
        ("id/1", None, []),
        (None, "id/1", []),
    ],
    ids=["agree", "promoted-since", "disagree", "not-shared", "fresh-host"],
)
async def test_a_store_that_is_away_is_known_by_two_notes(
    tmp_path: Path, redis_url: str, no_haste: None, own: str | None, shared: str | None, told: list[str]
) -> None:
    """Before the store was met it is taken for the one that this host has seen, where the other hosts say the same."""
    note = RedisSeen(redis_url, "service shop, postgresql gateway")
    if own is not None:
        SeenFile(tmp_path / "seen.json").write(Seen(own, 7))
    if shared is not None:
        await note.write(Seen(shared, 7), "")
    met: list[str] = []
    guard = a_guard(AwayStore(Memory()), tmp_path, shared=note, met=lambda identity, _: met.append(identity))
    with pytest.raises(NotApplied):
        await guard.start()
    await guard.close()
    assert met == told
