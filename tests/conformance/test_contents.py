"""Where likely duplicates are refused: which operation holds a content, and that one does, whoever asks at once."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from uuid import uuid4

from gateway.core.operation import Accept, Applied, Claim, Command, Content, Fenced, State
from gateway.store.base import Store
from gateway.store.operations import ManagedStore
from tests.conformance.cases import HISTORIES
from tests.conformance.hand import LEASE_SECONDS, REMEMBER_SECONDS, REPLAY_SECONDS, Hand, Speech, do, microseconds
from tests.conformance.pair import Pair
from tests.conformance.stores import Database
from tests.conformance.test_races import apply_all
from tests.conformance.test_retention import sweep_all
from tests.conformance.test_table import play_pairs
from tests.support.memory_store import ManualClock

# Longer than a lapsed lease takes in a history, and shorter than a response is kept.
WITHIN_SECONDS = 5 * LEASE_SECONDS
assert 2.5 * LEASE_SECONDS < WITHIN_SECONDS < REPLAY_SECONDS


def content(digest: bytes | None = None, *, is_distinct: bool = False) -> Content:
    return Content(uuid4().bytes if digest is None else digest, microseconds(WITHIN_SECONDS), is_distinct)


def of(speech: Speech, content: Content) -> Speech:
    """The same, with this content where a request is claimed or accepted."""

    def said(hand: Hand) -> Command:
        command = speech(hand)
        return replace(command, content=content) if isinstance(command, Claim | Accept) else command

    return said


async def test_each_history_holds_or_frees_its_content(store: Store, database: Database) -> None:
    """After each kind of history, another operation with the content is refused or not as the table has it: not while
    the first may have its effect, nor in the window of its completion; at once where it is known to have had none."""
    expected = set[tuple[State, bool]]()
    for number, history in enumerate(HISTORIES.values()):
        clock, wanted = ManualClock(), content()
        pair = Pair.new(clock)
        await play_pairs(history, [pair], store, database, clock, partial(of, content=wanted))
        command = of(Hand.accept if number % 2 else Hand.claim, wanted)(Hand())
        judged, result = pair.model.apply_now(command), await store.apply(command)
        assert type(result) is type(judged), history
        is_held = isinstance(judged, Fenced)
        assert not is_held or result.content_holder == pair.mine.operation_id, history
        expected.add((pair.mine.snapshot.state, is_held))
    held = {state for state, is_held in expected if is_held}
    assert held == {State.ACCEPTED, State.CLAIMED, State.IN_DOUBT, State.DEAD_LETTER, State.COMPLETED, State.TOMBSTONE}
    assert {state for state, is_held in expected if not is_held} >= {State.ABSENT, State.RELEASED, State.TOMBSTONE}


async def test_the_window_counts_from_the_claim(store: Store, database: Database) -> None:
    """A completed operation holds its content until the window is over; one in doubt for as long as it is."""
    done, doubted, wanted = Hand(), Hand(), [content(), content()]
    for hand, each in zip((done, doubted), wanted, strict=True):
        await do(store, hand, of(Hand.claim, each))
    await database.advance(0.9 * LEASE_SECONDS)
    await do(store, done, Hand.complete)
    await do(store, doubted, Hand.abandon)
    await database.advance(WITHIN_SECONDS - LEASE_SECONDS)
    rivals = [of(Hand.claim, each)(Hand()) for each in wanted]
    holders = [(await store.apply(rival)).content_holder for rival in rivals]
    assert holders == [done.operation_id, doubted.operation_id]
    await database.advance(LEASE_SECONDS)
    results = [await store.apply(rival) for rival in rivals]
    assert [type(result) for result in results] == [Applied, Fenced]


async def test_of_many_at_once_one_holds_the_content(store: Store, other_store: Store) -> None:
    """Fifty new keys with one content through two gateways: one takes effect, and all others learn which."""
    for say in (Hand.claim, Hand.accept):
        wanted, hands = content(), [Hand() for _ in range(50)]
        results = await apply_all([store, other_store], [of(say, wanted)(hand) for hand in hands])
        (winner,) = (hand for hand, result in zip(hands, results, strict=True) if isinstance(result, Applied))
        refused = [result for result in results if isinstance(result, Fenced)]
        assert len(refused) == len(hands) - 1
        assert {(each.content_holder, each.snapshot.record) for each in refused} == {(winner.operation_id, None)}


async def test_distinct_ones_are_all_let_through_and_held_against_others(store: Store, other_store: Store) -> None:
    """Who says that each is meant gets all of them, also at once; others are refused until the last one is released."""
    digest = uuid4().bytes
    hands = [Hand() for _ in range(8)]
    distinct = of(Hand.claim, content(digest, is_distinct=True))
    await asyncio.gather(*(do((store, other_store)[n % 2], hand, distinct) for n, hand in enumerate(hands)))
    rival = of(Hand.claim, content(digest))(Hand())
    for hand in hands:
        assert isinstance(await store.apply(rival), Fenced)
        await do(store, hand, Hand.release)
    assert isinstance(await store.apply(rival), Applied)


async def test_what_nobody_holds_is_swept(store: ManagedStore, database: Database) -> None:
    """A sweep keeps what may still have an effect, and its rows do not pile up."""
    doubted, wanted = Hand(), content()
    for hand, each in ((doubted, wanted), (Hand(), content()), (Hand(), content())):
        await do(store, hand, of(Hand.claim, each))
        await do(store, hand, Hand.abandon if hand is doubted else Hand.complete)
    await database.advance(REMEMBER_SECONDS)
    await sweep_all(store)
    refused = await store.apply(of(Hand.claim, wanted)(Hand()))
    assert isinstance(refused, Fenced)
    assert refused.content_holder == doubted.operation_id
