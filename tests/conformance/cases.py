"""The cases, generated from the table: every record that can come to be, and everything that can be said to it.

`HISTORIES` is found by search. From an absent operation every move is made on the model, by those entitled to it and by
the clock, and each *kind* of record that appears is kept with the shortest history that leads to it. `SPEECHES` is
every event by everybody: the holder, one with an old token, one with another's attempt, one from the future, the same
again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gateway.core.lifecycle import FORGOTTEN_REMEMBER_US
from gateway.core.operation import MICROSECONDS, Command, Record, State
from tests.conformance.hand import (
    ANSWER,
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
)
from tests.support.memory_store import Memory, MemoryStore

# The clock's moves: each is well beyond one limit and well before the next longer one.
PAUSES: Final[dict[str, float]] = {
    "past-lease": 2.5 * LEASE_SECONDS,
    "past-replay": 1.2 * REPLAY_SECONDS,
    "past-remember": max(1.2 * REMEMBER_SECONDS, 1.2 * FORGOTTEN_REMEMBER_US / MICROSECONDS),
}

# What those who are entitled to it say; the moves of a history.
MOVES: Final[dict[str, Speech]] = {
    "claim": Hand.claim,
    "retry": Hand.retry,
    "accept": Hand.accept,
    "accept-again": Hand.accept_again,
    "dispatch": Hand.dispatch,
    "renew": Hand.renew,
    "complete": Hand.complete,
    "complete-unkept": lambda hand: hand.complete(replace(ANSWER, body=None)),
    "release": Hand.release,
    "forget": Hand.forget,
    "abandon": Hand.abandon,
    "postpone": Hand.postpone,
    "bury": Hand.bury,
    "takeover": Hand.takeover,
    "prove": Hand.prove,
    "disprove": Hand.disprove,
    "reinstate": Hand.reinstate,
    "requeue": Hand.requeue,
    "withdraw": Hand.withdraw,
    "purge": Hand.purge,
    "erase": Hand.erase,
}

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


def _fenced(name: str, say: Speech) -> dict[str, Speech]:
    """A verb of the holder, by everybody who may take himself for it."""
    return {
        f"{name}-by-holder": say,
        f"{name}-with-stale-token": lambda hand: _replace(say(hand), token=hand.stale_token),
        f"{name}-with-future-token": lambda hand: _replace(say(hand), token=hand.future_token),
        f"{name}-by-other-attempt": lambda hand: _replace(say(hand), attempt_id=hand.next_id),
        f"{name}-by-superseded-holder": lambda hand: _replace(
            say(hand), token=hand.stale_token, attempt_id=hand.script.id(0)
        ),
    }


def _read(name: str, say: Speech) -> dict[str, Speech]:
    """A verb that is fenced on the token that was read, by those who read early, late, or wrong."""
    return {
        f"{name}-on-read-token": say,
        f"{name}-on-stale-token": lambda hand: _replace(say(hand), read_token=hand.stale_token),
        f"{name}-on-future-token": lambda hand: _replace(say(hand), read_token=hand.future_token),
    }


def _replace(command: Command, **changes: object) -> Command:
    return replace(command, **changes)  # type: ignore[arg-type]


def _again(hand: Hand) -> Command:
    """The last applied command, because its answer was lost. Before there is one, a claim."""
    return hand.last or hand.claim()


SPEECHES: Final[dict[str, Speech]] = {
    "claim": Hand.claim,
    "claim-by-the-attempt-of-the-record": lambda hand: replace(hand.claim(), attempt_id=hand.attempt_id),
    "claim-by-an-earlier-attempt": lambda hand: replace(hand.claim(), attempt_id=hand.script.id(0)),
    "claim-of-another-request": lambda hand: replace(hand.claim(), fingerprint=OTHER),
    **_read("retry", Hand.retry),
    "retry-with-another-request": lambda hand: replace(hand.retry(), fingerprint=OTHER),
    "retry-under-a-newer-recipe": lambda hand: replace(hand.retry(), fingerprint=SAME_BY_RAW),
    "retry-under-another-key": lambda hand: replace(hand.retry(), fingerprint=RAW_UNDER_ANOTHER_KEY),
    "retry-that-cannot-be-compared": lambda hand: replace(hand.retry(), fingerprint=UNCOMPARABLE),
    "retry-by-the-attempt-of-the-record": lambda hand: replace(hand.retry(), attempt_id=hand.attempt_id),
    "accept": Hand.accept,
    "accept-by-the-attempt-of-the-record": lambda hand: replace(hand.accept(), attempt_id=hand.attempt_id),
    **_read("accept-again", Hand.accept_again),
    "accept-again-of-another-request": lambda hand: replace(hand.accept_again(), fingerprint=OTHER),
    "accept-again-that-cannot-be-compared": lambda hand: replace(hand.accept_again(), fingerprint=UNCOMPARABLE),
    **_read("dispatch", Hand.dispatch),
    "dispatch-by-the-attempt-of-the-record": lambda hand: replace(hand.dispatch(), attempt_id=hand.attempt_id),
    **_fenced("renew", Hand.renew),
    **_fenced("complete", Hand.complete),
    **_fenced("complete-grant", Hand.complete_grant),
    "complete-with-another-answer": lambda hand: hand.complete(OTHER_ANSWER),
    **_fenced("release", Hand.release),
    **_fenced("forget", Hand.forget),
    **_fenced("abandon", Hand.abandon),
    **_fenced("postpone", Hand.postpone),
    **_fenced("bury", Hand.bury),
    **_read("takeover", Hand.takeover),
    "takeover-by-the-attempt-of-the-record": lambda hand: replace(hand.takeover(), attempt_id=hand.attempt_id),
    **_read("prove", Hand.prove),
    **_read("disprove", Hand.disprove),
    **_read("reinstate", Hand.reinstate),
    **_read("requeue", Hand.requeue),
    **_read("withdraw", Hand.withdraw),
    "purge": Hand.purge,
    "erase": Hand.erase,
    "the-same-again": _again,
}
