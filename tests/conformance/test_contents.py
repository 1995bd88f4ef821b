"""Where likely duplicates are refused: which operation holds a content, and that one does, whoever asks at once."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import uuid4

from gateway.core.operation import Accept, Applied, Claim, Command, Content, Fenced, Result, State
from gateway.store.base import Store
from gateway.store.operations import ManagedStore
from tests.conformance.cases import HISTORIES, MOVES, PAUSES
from tests.conformance.hand import LEASE_SECONDS, REMEMBER_SECONDS, REPLAY_SECONDS, Hand, do, microseconds
from tests.conformance.stores import Database
from tests.support.memory_store import MemoryStore

# Longer than a lapsed lease takes in a history, and shorter than a response is kept.
WITHIN_SECONDS = 5 * LEASE_SECONDS
assert 2.5 * LEASE_SECONDS < WITHIN_SECONDS < REPLAY_SECONDS


def content(digest: bytes | None = None, *, is_distinct: bool = False) -> Content:
    return Content(uuid4().bytes if digest is None else digest, microseconds(WITHIN_SECONDS), is_distinct)


def having(command: Command, content: Content) -> Command:
    return replace(command, content=content) if isinstance(command, Claim | Accept) else command


async def say(store: Store, hand: Hand, command: Command) -> Result:
    result = await store.apply(command)
    hand.see(command, result)
    return result


async def test_each_history_holds_or_frees_its_content(store: Store, database: Database) -> None:
    """After each kind of history, another operation with the content is refused or not as the table has it: not while
    the first may have its effect, nor in the window of its completion; at once where it is known to have had none."""
    model, expected = MemoryStore(), set[tuple[State, bool]]()
    for number, history in enumerate(HISTORIES.values()):
        theirs, ours, wanted = Hand(), Hand(), content()
        theirs.script = ours.script
        for name in history:
            if name in PAUSES:
                model.memory.clock.advance(PAUSES[name])
                await database.advance(PAUSES[name])
                ours.look(model.read_now(ours.operation_id))
                theirs.look(await store.read(theirs.operation_id))
            else:
                for hand in (ours, theirs):
                    command = having(MOVES[name](hand), wanted)
                    result = model.apply_now(command) if hand is ours else await store.apply(command)
                    hand.see(command, result)
        rival = Hand()
        command = having(rival.accept() if number % 2 else rival.claim(), wanted)
        judged, result = model.apply_now(command), await store.apply(command)
        assert type(result) is type(judged), history
        is_held = isinstance(judged, Fenced)
        assert (result.content_holder if isinstance(result, Fenced) else None) == (
            ours.operation_id if is_held else None
        ), history
        expected.add((ours.snapshot.state, is_held))
    held = {state for state, is_held in expected if is_held}
    assert held == {State.ACCEPTED, State.CLAIMED, State.IN_DOUBT, State.DEAD_LETTER, State.COMPLETED, State.TOMBSTONE}
    assert {state for state, is_held in expected if not is_held} >= {State.ABSENT, State.RELEASED, State.TOMBSTONE}


async def test_the_window_counts_from_the_claim(store: Store, database: Database) -> None:
    """A completed operation holds its content until the window is over; one in doubt for as long as it is."""
    done, doubted, wanted = Hand(), Hand(), [content(), content()]
    for hand, each in zip((done, doubted), wanted, strict=True):
        await say(store, hand, having(hand.claim(), each))
    await database.advance(0.9 * LEASE_SECONDS)
    await do(store, done, Hand.complete)
    await do(store, doubted, Hand.abandon)
    await database.advance(WITHIN_SECONDS - LEASE_SECONDS)
    rivals = [having(Hand().claim(), each) for each in wanted]
    assert [(await store.apply(rival)).content_holder for rival in rivals] == [
        done.operation_id,
        doubted.operation_id,
    ]
    await database.advance(LEASE_SECONDS)
    results = [await store.apply(rival) for rival in rivals]
    assert [type(result) for result in results] == [Applied, Fenced]


async def at_once(commands: list[Command], *stores: Store) -> list[Result]:
    return await asyncio.gather(*(stores[index % len(stores)].apply(each) for index, each in enumerate(commands)))


async def test_of_many_at_once_one_holds_the_content(store: Store, other_store: Store) -> None:
    """Fifty new keys with one content through two gateways: one takes effect, and all others learn which."""
    for say in (Hand.claim, Hand.accept):
        wanted, hands = content(), [Hand() for _ in range(50)]
        results = await at_once([having(say(hand), wanted) for hand in hands], store, other_store)
        (winner,) = (hand for hand, result in zip(hands, results, strict=True) if isinstance(result, Applied))
        refused = [result for result in results if isinstance(result, Fenced)]
        assert len(refused) == len(hands) - 1
        assert {(each.content_holder, each.snapshot.record) for each in refused} == {(winner.operation_id, None)}


async def test_distinct_ones_are_all_let_through_and_held_against_others(store: Store, other_store: Store) -> None:
    """Who says that each is meant gets all of them, also at once; others are refused until the last one is released."""
    digest = uuid4().bytes
    hands = [Hand() for _ in range(8)]
    commands = [having(hand.claim(), content(digest, is_distinct=True)) for hand in hands]
    results = await at_once(commands, store, other_store)
    for hand, command, result in zip(hands, commands, results, strict=True):
        assert isinstance(result, Applied)
        hand.see(command, result)
    rival = having(Hand().claim(), content(digest))
    for hand in hands:
        assert isinstance(await store.apply(rival), Fenced)
        await do(store, hand, Hand.release)
    assert isinstance(await store.apply(rival), Applied)


async def test_what_nobody_holds_is_swept(store: ManagedStore, database: Database) -> None:
    """A sweep keeps what may still have an effect, and its rows do not pile up."""
    doubted, wanted = Hand(), content()
    for hand, each in ((doubted, wanted), (Hand(), content()), (Hand(), content())):
        await say(store, hand, having(hand.claim(), each))
        await do(store, hand, Hand.abandon if hand is doubted else Hand.complete)
    await database.advance(REMEMBER_SECONDS)
    while (await store.sweep(100)).more:
        pass
    refused = await store.apply(having(Hand().claim(), wanted))
    assert isinstance(refused, Fenced)
    assert refused.content_holder == doubted.operation_id
