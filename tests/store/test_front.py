"""The front of a durable store: who gets through, and what it does about a memory that was lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from gateway.core.operation import Applied, Claim, Fenced, Fingerprint, Identity, Release
from gateway.observe.facts import Fact, Herald, MemoryChanged
from gateway.store.base import Amnesic, EpochChanged, NotApplied, StartRefused
from gateway.store.epoch import TOKENS_SKIPPED, Amnesia, SeenFile, amnesia_of, memo_of
from gateway.store.front import Front
from tests.support.eventually import eventually
from tests.support.memory_store import Memory, MemoryStore

WINDOW_US = 3_600_000_000


def claim(number: int, read_token: int | None = None) -> Claim:
    identity = Identity(UUID(int=number), "route", "route", b"scope", b"key")
    return Claim(identity, uuid4(), "holder", Fingerprint(b"r", b"d", b"w"), 30_000_000, read_token)


@asynccontextmanager
async def opened(
    memory: Memory, directory: Path, facts: list[Fact] | None = None, store: MemoryStore | None = None
) -> AsyncIterator[Front]:
    """A gateway's front, with what it noted earlier in this directory."""
    front = Front(
        store or MemoryStore(memory),
        Herald(*([facts.append] if facts is not None else [])),
        {"route": b"recipe"},
        frozenset(),
        seen_file=SeenFile(directory / "seen.json"),
        amnesia_window_us=WINDOW_US,
    )
    await front.start()
    try:
        yield front
    finally:
        await front.close()


async def grown(memory: Memory, directory: Path, claims: int, first: int = 0) -> None:
    """Let a gateway see a store that grants so many claims, and stop."""
    async with opened(memory, directory) as front:
        for number in range(first, first + claims):
            assert isinstance(await front.apply(claim(number)), Applied)


async def test_a_whole_memory_is_believed(tmp_path: Path) -> None:
    """A store that remembers all that was seen of it grants as before, also after a restart."""
    memory = Memory()
    await grown(memory, tmp_path, 3)
    facts: list[Fact] = []
    async with opened(memory, tmp_path, facts) as front:
        assert isinstance(await front.apply(claim(7)), Applied)
    assert not [fact for fact in facts if isinstance(fact, MemoryChanged)]


@pytest.mark.parametrize("loss", ["older-state", "other-store"])
async def test_a_lost_memory_is_noticed(tmp_path: Path, loss: str) -> None:
    """After a restore or a failover absent keys are refused for the window, known ones are served, and tokens jump."""
    memory = Memory()
    await grown(memory, tmp_path, 5)
    if loss == "older-state":
        memory.token = 2
        del memory.records[UUID(int=4)]
    else:
        memory.identity = "another"
    facts: list[Fact] = []
    async with opened(memory, tmp_path, facts) as front:
        with pytest.raises(Amnesic):
            await front.apply(claim(99))
        assert isinstance(await front.apply(claim(1)), Fenced)
        (changed,) = [fact for fact in facts if isinstance(fact, MemoryChanged)]
        assert changed.is_lost
        assert changed.left_seconds == WINDOW_US / 1e6
        memory.clock.advance(WINDOW_US / 1e6)
        result = await front.apply(claim(99))
        assert isinstance(result, Applied)
        assert result.snapshot.record is not None
        assert result.snapshot.record.token > TOKENS_SKIPPED


async def test_a_gateway_that_never_saw_the_store_hears_of_the_loss(tmp_path: Path) -> None:
    """What one gateway found out is in the store, so that a new one does not grant what may have been used."""
    memory = Memory()
    await grown(memory, tmp_path / ".", 3)
    memory.identity = "another"
    async with opened(memory, tmp_path):
        pass
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    async with opened(memory, elsewhere) as front:
        with pytest.raises(Amnesic):
            await front.apply(claim(99))


async def test_a_loss_is_dealt_with_once(tmp_path: Path) -> None:
    """A gateway that comes late, with a note of the memory before the loss, does not refuse for another window."""
    memory = Memory()
    late = tmp_path / "late"
    late.mkdir()
    await grown(memory, late, 1)
    await grown(memory, tmp_path, 3, first=1)
    memory.identity = "another"
    async with opened(memory, tmp_path):
        pass
    memory.clock.advance(WINDOW_US / 1e6)
    async with opened(memory, late) as front:
        assert isinstance(await front.apply(claim(99)), Applied)


async def test_an_operator_accepts_the_loss(tmp_path: Path) -> None:
    """Once somebody accepted the loss, absent keys are granted, in gateways that run as well."""
    memory = Memory()
    await grown(memory, tmp_path, 3)
    memory.identity = "another"
    facts: list[Fact] = []
    async with opened(memory, tmp_path, facts) as front:
        accepted = amnesia_of(await front.look_epoch())
        memory.memo = memo_of(Amnesia(0, accepted.why, "ann", accepted.former, accepted.beyond))
        with pytest.raises(Amnesic):
            await front.apply(claim(98))
        await front.tally()
        assert isinstance(await front.apply(claim(99)), Applied)
        told = [fact for fact in facts if isinstance(fact, MemoryChanged)]
        assert [fact.is_lost for fact in told] == [True, False]
        assert told[-1].by == "ann"


async def test_a_release_from_before_the_loss_is_not_believed(tmp_path: Path) -> None:
    """A retry that was executed may have been forgotten along with its claim: the key waits as an absent one does."""
    memory = Memory()
    async with opened(memory, tmp_path) as front:
        token = await released(front)
    memory.identity = "another"
    async with opened(memory, tmp_path) as front:
        for read_token in (None, token):
            with pytest.raises(Amnesic):
                await front.apply(claim(1, read_token))
        memory.clock.advance(WINDOW_US / 1e6)
        assert isinstance(await front.apply(claim(1, token)), Applied)


async def test_a_release_from_after_the_loss_is_believed(tmp_path: Path) -> None:
    """What was claimed since the loss is known whole: its retry runs."""
    memory = Memory()
    await grown(memory, tmp_path, 3)
    memory.identity = "another"
    async with opened(memory, tmp_path) as front:
        granted = MemoryStore(memory).apply_now(claim(1 << 40))
        record = granted.snapshot.record
        assert record is not None
        await front.apply(Release(UUID(int=1 << 40), record.token, record.attempt_id, WINDOW_US * 10))
        assert isinstance(await front.apply(claim(1 << 40)), Fenced)
        assert isinstance(await front.apply(claim(1 << 40, record.token)), Applied)


async def released(front: Front) -> int:
    """Claim operation 1 and let it go; its token."""
    granted = await front.apply(claim(1))
    record = granted.snapshot.record
    assert record is not None
    await front.apply(Release(UUID(int=1), record.token, record.attempt_id, WINDOW_US * 10))
    return record.token


async def test_another_memory_behind_the_connection(tmp_path: Path) -> None:
    """A store that meets another memory while in use lets nothing through until that was compared, and goes on then."""
    memory = Memory()

    class Switched(MemoryStore):
        is_switched = False

        async def apply(self, command):  # type: ignore[no-untyped-def]
            if self.is_switched:
                raise EpochChanged("another memory")
            return await super().apply(command)

        async def start(self) -> None:
            self.is_switched = False
            await super().start()

    store = Switched(memory)
    async with opened(memory, tmp_path, store=store) as front:
        assert isinstance(await front.apply(claim(1)), Applied)
        store.is_switched = True
        memory.identity = "another"
        with pytest.raises(EpochChanged):
            await front.apply(claim(2))
        with pytest.raises(NotApplied):
            await front.apply(claim(2))

        async def is_back() -> bool:
            try:
                await front.read(UUID(int=1))
            except NotApplied:
                return False
            return True

        await eventually(is_back)
        with pytest.raises(Amnesic):
            await front.apply(claim(2))
        assert isinstance(await front.apply(claim(1)), Fenced)


async def test_an_unreadable_note_is_refused(tmp_path: Path) -> None:
    """Without the note of what was seen a loss would go unnoticed, so a damaged one ends the start."""
    (tmp_path / "seen.json").write_text("{")
    with pytest.raises(StartRefused, match=r"seen\.json"):
        async with opened(Memory(), tmp_path):
            pass


async def test_what_is_seen_is_noted_at_the_tally(tmp_path: Path) -> None:
    """A gateway that is killed has noted what it saw up to the last tally."""
    memory = Memory()
    async with opened(memory, tmp_path) as front:
        for number in range(4):
            await front.apply(claim(number))
        await front.tally()
        seen = await asyncio.to_thread(SeenFile(tmp_path / "seen.json").read)
        assert seen is not None
        assert (seen.identity, seen.token) == (memory.identity, 4)
