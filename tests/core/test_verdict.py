"""Verdicts: what a settled record means for a request, over every state and every comparison."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from gateway.core.message import StoredResponse
from gateway.core.operation import Fingerprint, Record, Snapshot, State
from gateway.core.verdict import (
    Claimable,
    Doubt,
    Judgement,
    Match,
    Refuse,
    Replay,
    Undelivered,
    Verdict,
    Wait,
    compare,
    judge,
)
from tests.core.records import KEPT, RECORD
from tests.core.rows import rows

OURS = Fingerprint(b"recipe", b"digest", b"raw", "k1")
SAME_RAW = Fingerprint(b"older", b"other", b"raw", "k1")
DIFFERENT = Fingerprint(b"recipe", b"different", b"other raw", "k1")
UNKNOWN = Fingerprint(b"older", b"other", b"other raw", "k1")
OTHER_KEY = Fingerprint(b"older", b"other", b"raw", "k0")

ANSWER = StoredResponse(201, b"Created", (), b"body")
STATES = [state for state in State if state is not State.ABSENT]
ALWAYS_KEPT = (State.ACCEPTED, State.DEAD_LETTER)
DELIVERED = (State.CLAIMED, State.IN_DOUBT)


def record(state: State, fingerprint: Fingerprint | None = OURS, response: StoredResponse | None = ANSWER) -> Record:
    delivery = KEPT if state in ALWAYS_KEPT else None
    return replace(RECORD, state=state, fingerprint=fingerprint, response=response, delivery=delivery)


def verdict(snapshot: Record | None, *, accept: bool = False) -> Judgement:
    return judge(Snapshot(snapshot, 0), [OURS], accept_recipe_change=accept)


@pytest.mark.parametrize("state", STATES)
def test_different_request_in_any_state(state: State) -> None:
    """A different request under a used key is refused whatever state the first one is in."""
    kept = record(state, DIFFERENT)
    for accept in (False, True):
        assert verdict(kept, accept=accept) == Refuse(Verdict.KEY_REUSED, kept)


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        # A new key is claimed by a first statement, which has read no token; after a forget, by who comes first.
        (None, lambda _: Claimable(OURS, None)),
        (record(State.RELEASED, None), lambda _: Claimable(OURS, 7)),
        (record(State.RELEASED), lambda _: Claimable(OURS, 7)),
        (record(State.CLAIMED), Wait),
        (record(State.IN_DOUBT), lambda kept: Doubt(kept, True)),
        (record(State.COMPLETED), Replay),
        (record(State.COMPLETED, response=replace(ANSWER, body=b"")), Replay),
        (record(State.TOMBSTONE), lambda kept: Refuse(Verdict.KEY_EXPIRED, kept)),
        (record(State.ACCEPTED), lambda kept: Undelivered(kept, True)),
        (record(State.DEAD_LETTER), lambda kept: Undelivered(kept, True)),
        # While the request of a record is kept, a worker delivers it: no repeat waits for it or sends it again.
        *[(replace(record(state), delivery=KEPT), lambda kept: Undelivered(kept, True)) for state in DELIVERED],
    ],
)
def test_same_request(kept: Record | None, expected: Callable[[Record | None], Judgement]) -> None:
    """The same request gets what its state has for it."""
    assert verdict(kept) == expected(kept)


@pytest.mark.parametrize(("state", "accept"), list(itertools.product(STATES, [False, True])), ids=str)
def test_recipe_changed(state: State, accept: bool) -> None:
    """Where sameness cannot be known, accepting gives the recorded answer and never an execution."""
    kept = record(state, UNKNOWN)
    found = verdict(kept, accept=accept)
    if not accept or state is State.RELEASED:
        assert found == Refuse(Verdict.KEY_REUSED, kept)
    else:
        assert not isinstance(found, Claimable)
        assert type(found) is type(verdict(record(state)))
        assert not isinstance(found, Doubt | Undelivered) or not found.is_same


@rows(
    "recorded, ours, expected",
    forgotten=(None, [OURS], (Match.SAME, OURS)),
    same=(OURS, [OURS], (Match.SAME, OURS)),
    different=(DIFFERENT, [OURS], (Match.DIFFERENT, OURS)),
    raw=(SAME_RAW, [OURS], (Match.SAME, OURS)),
    unknown=(UNKNOWN, [OURS], (Match.UNKNOWN, OURS)),
    other_key=(OTHER_KEY, [OURS], (Match.UNKNOWN, OURS)),
    retired_key=(OTHER_KEY, [OURS, OTHER_KEY], (Match.SAME, OTHER_KEY)),
    retired_key_different=(replace(OTHER_KEY, digest=b"x"), [OURS, OTHER_KEY], (Match.DIFFERENT, OTHER_KEY)),
)
def test_compare(recorded: Fingerprint | None, ours: list[Fingerprint], expected: tuple[Match, Fingerprint]) -> None:
    """The first of our fingerprints that can decide does."""
    assert compare(recorded, ours) == expected
