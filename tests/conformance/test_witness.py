"""Every store raises a link's witness with what it acknowledges, and notes the number before anybody hears."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from gateway.core.operation import Applied, State
from gateway.store.base import EpochChanged, Store
from gateway.store.memory.epoch import WitnessFiles, WitnessNote, memory_digest
from gateway.store.operations import WITNESS_KEEP_US, Agreement, Epoch, Tally
from tests.conformance.hand import Hand, do, started, state
from tests.conformance.stores import Database
from tests.support.serving import serving

KEEP_SECONDS = WITNESS_KEEP_US / 1_000_000


@pytest.fixture
def files(tmp_path: Path) -> Iterator[WitnessFiles]:
    with opened_files(tmp_path / "witness") as files:
        yield files


@contextmanager
def opened_files(directory: Path) -> Iterator[WitnessFiles]:
    """Those of one worker of the host."""
    files = WitnessFiles(directory)
    files.open()
    try:
        yield files
    finally:
        files.close()


def opened(database: Database, files: WitnessFiles) -> AbstractAsyncContextManager[Store]:
    """A started store that notes what it acknowledges."""
    return started(database.open_store(files))


def noted(files: WitnessFiles) -> int:
    """The sum of the numbers of all links: each acknowledgement raises one of them."""
    return sum(note.number for note in files.read().notes)


async def check_kept(store: Store, files: WitnessFiles) -> None:
    """The store has the number of every note, and they are of its memory."""
    notes = files.read().notes
    epoch = await store.check_memory([note.link for note in notes])
    assert epoch.witnesses == {note.link: note.number for note in notes}
    assert {note.memory for note in notes} == {memory_digest(epoch.identity)}


async def test_what_is_acknowledged_is_noted(database: Database, files: WitnessFiles) -> None:
    """Each change raises a number, which is noted when its caller hears; what changes nothing raises none."""
    async with opened(database, files) as store:
        hand = Hand()
        for speech in (Hand.claim, Hand.renew, Hand.complete, Hand.purge, Hand.erase):
            before = noted(files)
            await do(store, hand, speech)
            assert noted(files) > before
            await check_kept(store, files)
        await do(store, other := Hand(), Hand.claim)
        before = noted(files)
        assert not isinstance(await store.apply(replace(Hand().claim(), identity=other.script.identity)), Applied)
        await store.read(other.operation_id)
        assert noted(files) == before


async def test_a_command_that_took_effect_before_is_noted(database: Database, files: WitnessFiles) -> None:
    """Its first number may have been lost with its answer, so its repeat has one of its own."""
    async with opened(database, files) as store:
        hand = Hand()
        for speech in (Hand.claim, Hand.complete):
            await do(store, hand, speech)
            before = noted(files)
            assert isinstance(await store.apply(hand.last), Applied)
            assert noted(files) > before
            await check_kept(store, files)


@asynccontextmanager
async def lacking(database: Database, files: WitnessFiles) -> AsyncIterator[tuple[Hand, WitnessNote]]:
    """The store lacks what a worker of this host has noted that it acknowledged. The hand has claimed before."""
    async with opened(database, files) as store:
        await do(store, hand := Hand(), Hand.claim)
        identity = (await store.check_memory()).identity
    with opened_files(files._directory) as neighbour:
        lost = WitnessNote(uuid4(), 1, hand.snapshot.now_us, 0, memory_digest(identity))
        neighbour.write(0, lost)
        yield hand, lost


async def test_a_store_that_lacks_what_it_acknowledged(database: Database, files: WitnessFiles) -> None:
    """It grants nothing, whichever worker of the host it was that noted it."""
    async with lacking(database, files) as (hand, _):
        async with opened(database, files) as store:
            for command in (Hand().claim(), hand.complete()):
                with pytest.raises(EpochChanged):
                    await store.apply(command)
        # Once it is known what became of that memory, notes from before say nothing.
        files.beyond = 1
        async with opened(database, files) as store:
            assert await state(store, hand) is State.CLAIMED
            await do(store, Hand(), Hand.claim)


async def test_a_store_that_lacks_what_it_acknowledged_can_be_looked_at(
    database: Database, files: WitnessFiles
) -> None:
    """Until it is asked to change something: whoever judges what is lost has to see it first, and notes nothing."""
    async with lacking(database, files) as (_, lost):
        before, store = files.read().notes, database.open_store(files)
        assert await asyncio.gather(store.start(), return_exceptions=True) == [None]
        try:
            (found,) = await asyncio.gather(store.check_memory([lost.link]), return_exceptions=True)
            assert isinstance(found, Epoch)
            assert found.witnesses == {}
            # What a start does before it judges, because a wrong configuration must not declare a loss.
            compared, counted = await asyncio.gather(
                store.compare_configuration(serving({})), store.tally(), return_exceptions=True
            )
            assert compared == Agreement()
            assert isinstance(counted, Tally)
            assert files.read().notes == before
        finally:
            await store.close()


async def test_the_files_of_workers_that_ended_are_removed(database: Database, files: WitnessFiles) -> None:
    """As soon as a later acknowledgement of a living one is on the disk, and not before; the living keep theirs."""
    with opened_files(files._directory) as ended:
        async with opened(database, ended) as store:
            await do(store, Hand(), Hand.claim)
    with opened_files(files._directory):
        async with opened(database, files) as store:
            files.sync()
            assert len(list(files._directory.iterdir())) == 3
            await do(store, Hand(), Hand.claim)
            assert len(list(files._directory.iterdir())) == 3
            files.sync()
            assert len(list(files._directory.iterdir())) == 2
            await check_kept(store, files)


async def test_witnesses_that_nobody_raises_are_removed(database: Database, files: WitnessFiles) -> None:
    """Between two looks one that was raised is kept; one that was not goes."""
    async with opened(database, files) as store:
        await do(store, Hand(), Hand.claim)
        links = [note.link for note in files.read().notes]
        for left in (set(links), set()):
            await database.advance(KEEP_SECONDS + 1)
            await store.sweep(100)
            assert set((await store.check_memory(links)).witnesses) == left
