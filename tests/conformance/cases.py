"""The cases, generated from the table: every record that can come to be, and everything that can be said to it.

`HISTORIES` is found by search. From an absent operation every move is made on the model, by those entitled to it and by
the clock, and each *kind* of record that appears is kept with the shortest history that leads to it. `SPEECHES` is
every event by everybody: the holder, one with an old token, one with another's attempt, one from the future, the same
again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Final
from uuid import UUID

from gateway.core.lifecycle import FORGOTTEN_REMEMBER_US
from gateway.core.operation import MICROSECONDS, Command, Fingerprint, Record, State
from gateway.store.base import Store
from tests.conformance.hand import (
    LEASE_SECONDS,
    OTHER,
    OTHER_ANSWER,
    RAW_UNDER_ANOTHER_KEY,
    REMEMBER_SECONDS,
    REPLAY_SECONDS,
    SAME_BY_RAW,
    UNCOMPARABLE,
    Hand,
    Speech,
    do,
)
from tests.support.memory_store import Memory, MemoryStore

if TYPE_CHECKING:
    from tests.conformance.stores import Database

# The clock's moves: each is well beyond one limit and well before the next longer one.
PAUSES: Final[dict[str, float]] = {
    "past-lease": 2.5 * LEASE_SECONDS,
    "past-replay": 1.2 * REPLAY_SECONDS,
    "past-remember": max(1.2 * REMEMBER_SECONDS, 1.2 * FORGOTTEN_REMEMBER_US / MICROSECONDS),
}

# What those who are entitled to it say; the moves of a history.
_VERBS: Final = (
    "claim retry accept accept_again dispatch renew complete complete_unkept release forget abandon postpone bury "
    "takeover prove disprove reinstate requeue withdraw purge erase"
)
MOVES: Final[dict[str, Speech]] = {name.replace("_", "-"): getattr(Hand, name) for name in _VERBS.split()}

# More than one claim after another adds nothing new but tokens to be stale with.
HISTORY_MOVES_MAX: Final = 12

Kind = tuple[object, ...]


def kind_of(record: Record | None, tokens: int) -> Kind:
    """What makes two records alike to everything that can be said."""
    if record is None:
        return (State.ABSENT, tokens > 0)
    response, delivery = record.response, record.delivery
    return (
        record.state,
        record.last_event,
        record.carries_doubt,
        record.fingerprint is None,
        # How often a kept request was tried changes nothing.
        min(record.attempts, 2) if delivery is None else None,
        record.doubt,
        None if response is None else (response.status, response.body is None),
        delivery is not None,
        delivery is not None and delivery.reason,
    )


def play(history: tuple[str, ...]) -> tuple[Hand, Memory]:
    store, hand = MemoryStore(), Hand()
    for name in history:
        if name in PAUSES:
            store.memory.clock.advance(PAUSES[name])
            hand.look(store.read_now(hand.operation_id))
        else:
            command = MOVES[name](hand)
            hand.see(command, store.apply_now(command))
    return hand, store.memory


def _search() -> dict[str, tuple[str, ...]]:
    found: dict[Kind, tuple[str, ...]] = {kind_of(None, 0): ()}
    edge: list[tuple[str, ...]] = [()]
    for _ in range(HISTORY_MOVES_MAX):
        reached = []
        for history in edge:
            for name in (*MOVES, *PAUSES):
                longer = (*history, name)
                hand, _ = play(longer)
                kind = kind_of(hand.record, len(hand.tokens))
                if kind not in found:
                    found[kind] = longer
                    reached.append(longer)
        edge = reached
    assert not edge, "the search ended before it had found every kind of record"
    return {"-".join(history) or "nothing": history for history in found.values()}


HISTORIES: Final[dict[str, tuple[str, ...]]] = _search()


async def one_of_every_kind(store: Store, database: Database) -> dict[str, Hand]:
    """Every record that can come to be, by its history."""
    hands = {name: Hand() for name in HISTORIES}
    # Those that end together are told together: a pause is everybody's.
    told = sorted(HISTORIES, key=lambda name: sum(move in PAUSES for move in HISTORIES[name]), reverse=True)
    for name in told:
        for move in HISTORIES[name]:
            if move in PAUSES:
                await database.advance(PAUSES[move])
                hands[name].look(await store.read(hands[name].operation_id))
            else:
                await do(store, hands[name], MOVES[move])
    return hands


def _with(say: Speech, **changes: Callable[[Hand], object]) -> Speech:
    """The same by somebody else, or of something else."""
    return lambda hand: replace(say(hand), **{name: change(hand) for name, change in changes.items()})


def _first_id(hand: Hand) -> UUID:
    return hand.script.id(0)


Speakers = dict[str, dict[str, Callable[[Hand], object]]]
_STALE, _FUTURE = attrgetter("stale_token"), attrgetter("future_token")
# Everybody who may take himself for the holder; those who read early, late, or wrong; and one who is there already.
_HOLDERS: Final[Speakers] = {
    "by-holder": {},
    "with-stale-token": {"token": _STALE},
    "with-future-token": {"token": _FUTURE},
    "by-other-attempt": {"attempt_id": attrgetter("next_id")},
    "by-superseded-holder": {"token": _STALE, "attempt_id": _first_id},
}
_READERS: Final[Speakers] = {
    "on-read-token": {},
    "on-stale-token": {"read_token": _STALE},
    "on-future-token": {"read_token": _FUTURE},
}
_THE_SAME: Final[Speakers] = {"by-the-attempt-of-the-record": {"attempt_id": attrgetter("attempt_id")}}


def _each(speakers: Speakers, verbs: str) -> dict[str, Speech]:
    return {
        f"{verb.replace('_', '-')}-{who}": _with(getattr(Hand, verb), **changes)
        for verb in verbs.split()
        for who, changes in speakers.items()
    }


def _of(say: Speech, fingerprint: Fingerprint) -> Speech:
    return _with(say, fingerprint=lambda _: fingerprint)


def _again(hand: Hand) -> Command:
    """The last applied command, because its answer was lost. Before there is one, a claim."""
    return hand.last or hand.claim()


SPEECHES: Final[dict[str, Speech]] = {
    "claim": Hand.claim,
    "claim-by-an-earlier-attempt": _with(Hand.claim, attempt_id=_first_id),
    "claim-of-another-request": _of(Hand.claim, OTHER),
    "retry-with-another-request": _of(Hand.retry, OTHER),
    "retry-under-a-newer-recipe": _of(Hand.retry, SAME_BY_RAW),
    "retry-under-another-key": _of(Hand.retry, RAW_UNDER_ANOTHER_KEY),
    "retry-that-cannot-be-compared": _of(Hand.retry, UNCOMPARABLE),
    "accept": Hand.accept,
    "accept-again-of-another-request": _of(Hand.accept_again, OTHER),
    "accept-again-that-cannot-be-compared": _of(Hand.accept_again, UNCOMPARABLE),
    "complete-with-another-answer": lambda hand: hand.complete(OTHER_ANSWER),
    **_each(_THE_SAME, "claim retry accept dispatch takeover"),
    **_each(_READERS, "retry accept_again dispatch takeover prove disprove reinstate requeue withdraw"),
    **_each(_HOLDERS, "renew complete complete_grant release forget abandon postpone bury"),
    "purge": Hand.purge,
    "erase": Hand.erase,
    "the-same-again": _again,
}
