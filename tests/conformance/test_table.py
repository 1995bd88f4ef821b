"""Every record that can come to be, and everything that can be said to it: each store answers as the table does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from gateway.core.lifecycle import ROWS
from gateway.core.operation import State
from gateway.store.base import Store
from tests.conformance.cases import HISTORIES, MOVES, PAUSES, SPEECHES, play
from tests.conformance.hand import Speech, increasing
from tests.conformance.pair import Pair
from tests.conformance.stores import Database
from tests.support.memory_store import ManualClock


async def play_pairs(
    history: tuple[str, ...],
    pairs: list[Pair],
    store: Store,
    database: Database,
    clock: ManualClock,
    said: Callable[[Speech], Speech] = lambda move: move,
) -> None:
    """Play the history on all of them, move by move, so that a store that batches has something to batch."""
    for name in history:
        if name in PAUSES:
            await database.advance(PAUSES[name])
            clock.advance(PAUSES[name])
            await asyncio.gather(*(pair.look(store) for pair in pairs))
        else:
            await asyncio.gather(*(pair.say(store, said(MOVES[name])) for pair in pairs))


@pytest.mark.parametrize("history", HISTORIES)
async def test_every_event_has_the_effect_that_the_table_gives_it(
    history: str, store: Store, database: Database
) -> None:
    """Whoever says what to a record of this kind gets the table's answer, and the record is the table's afterwards."""
    clock = ManualClock()
    pairs = {name: Pair.new(clock) for name in SPEECHES}
    await play_pairs(HISTORIES[history], list(pairs.values()), store, database, clock)
    for name, pair in pairs.items():
        assert pair.differences(exact=database.exact) == [], f"before {name}"
    told = await asyncio.gather(*(pair.say(store, SPEECHES[name]) for name, pair in pairs.items()))
    found = {name: wrong for name, wrong in zip(pairs, told, strict=True) if wrong}
    for name, pair in pairs.items():
        if wrong := pair.differences(exact=database.exact):
            found[name] = [*found.get(name, []), "answer", *wrong]
    await asyncio.gather(*(pair.look(store) for pair in pairs.values()))
    for name, pair in pairs.items():
        if wrong := pair.differences(exact=database.exact):
            found[name] = [*found.get(name, []), "read", *wrong]
    audits = await asyncio.gather(*(pair.audit_differences(store) for pair in pairs.values()))
    for name, wrong in zip(pairs, audits, strict=True):
        if wrong:
            found[name] = [*found.get(name, []), *wrong]
    # As text, because the difference of two large dictionaries takes minutes to draw.
    assert not found, "\n".join(f"{name}: {'; '.join(wrong)}" for name, wrong in found.items())
    assert all(increasing(pair.theirs.tokens) for pair in pairs.values())


def test_the_cases_meet_every_row_of_the_table() -> None:
    """The histories reach every state, and from every state every event of its rows is said."""
    said, reached = set(), set()
    for history in HISTORIES.values():
        hand, memory = play(history)
        reached.add(hand.snapshot.state)
        for speech in SPEECHES.values():
            said.add((hand.snapshot.state, type(speech(hand)).__name__.lower()))
        assert memory.clock() == hand.snapshot.now_us or not history
    assert reached == set(State)
    assert {(state, event.value) for state, event in ROWS} - said == {
        (State.ACCEPTED, "expire"),
        (State.CLAIMED, "lapse"),
        (State.COMPLETED, "retire"),
        (State.RELEASED, "collect"),
        (State.TOMBSTONE, "collect"),
    }
