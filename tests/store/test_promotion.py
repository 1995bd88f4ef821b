"""Which promotions are believed: every combination of what the decision depends on."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import get_args
from uuid import UUID

import pytest

from gateway.store.memory.epoch import Amnesia, Seen, WitnessNote, after_promotion, loss, memory_digest
from gateway.store.memory.promotion import (
    Joined,
    Member,
    Promotion,
    Synchronous,
    Verdict,
    decide,
    seconds_before_grants,
)
from gateway.store.operations import Epoch

BEFORE = "uuid/system/1/00000001"
PROMOTED = Epoch("uuid/system/1/00000002", 100, 1_000_000, b"", parent=BEFORE)
LATE = Member(UUID(int=9), "shop-3", 7, 1_000_000)
LISTS = {
    "nobody": [],
    "all-vouched": [Member(UUID(int=n), "shop", 5, 0, PROMOTED.identity) for n in range(3)],
    "one-has-not": [Member(UUID(int=1), "shop", 5, 0, PROMOTED.identity), LATE],
    "for-a-twin": [replace(LATE, vouched_for="twin/system/1/00000002")],
    "for-an-earlier-one": [replace(LATE, vouched_for=BEFORE)],
}


def expected(
    policy: str, is_contradicted: bool, is_higher: bool, members: str, is_fresh: bool, is_patient: bool
) -> Verdict:
    """The rule in words: no contradiction, not forbidden, a later timeline, and everybody accounted for by somebody who
    was there until the end; whoever may still speak is waited for."""
    if is_contradicted or policy == "refuse" or not is_higher:
        return Verdict.REFUSE
    if policy == "trusted" or (members in ("nobody", "all-vouched") and is_fresh):
        return Verdict.ACCEPT
    return Verdict.WAIT if is_patient else Verdict.REFUSE


CASES = list(product(get_args(Promotion), (False, True), (True, False), LISTS, (True, False), (True, False)))


@pytest.mark.parametrize(("policy", "is_contradicted", "is_higher", "members", "is_fresh", "is_patient"), CASES)
def test_a_promotion_is_believed_when_it_is_proven(
    policy: Promotion, is_contradicted: bool, is_higher: bool, members: str, is_fresh: bool, is_patient: bool
) -> None:
    """And never otherwise, whatever else is in its favour."""
    epoch = PROMOTED if is_higher else replace(PROMOTED, parent="uuid/system/1/00000003")
    contradiction = "it lacks changes" if is_contradicted else None
    decision = decide(policy, epoch, contradiction, LISTS[members], is_fresh=is_fresh, is_patient=is_patient)
    assert decision.result == expected(policy, is_contradicted, is_higher, members, is_fresh, is_patient)
    assert decision.why
    if is_contradicted:
        assert decision.why == contradiction


def test_who_has_not_spoken_is_named() -> None:
    """With its host and since when; of many, some and the number of the others."""
    one = decide("proven", PROMOTED, None, [LATE], is_fresh=True, is_patient=True)
    assert one.why.endswith("gateway 00000000 on host shop-3 has not spoken since 1970-01-01T00:00:01Z")
    many = decide("proven", PROMOTED, None, [LATE] * 9, is_fresh=True, is_patient=True)
    assert many.why.endswith(", 6 more")
    assert many.unvouched == 9


@pytest.mark.parametrize("synchronous", get_args(Synchronous))
@pytest.mark.parametrize("is_synchronous", [True, False])
@pytest.mark.parametrize("may_fail_over", [True, False])
def test_how_long_a_new_gateway_waits(synchronous: Synchronous, is_synchronous: bool, may_fail_over: bool) -> None:
    """Not at all if a standby surely knows it, or if there is none; else as long as the others are believed unheard."""
    found = seconds_before_grants(Joined(1, False, is_synchronous, may_fail_over), synchronous, 5.0)
    if is_synchronous:
        assert found == 0.0
    elif synchronous == "require":
        assert found is None
    else:
        assert found == (5.0 if may_fail_over else 0.0)


ACCEPTED = replace(PROMOTED, identity="new/system/1/00000002", parent="")
KNOWN = after_promotion(PROMOTED, Amnesia(beyond=7), "timeline 2: all")
NOTE = WitnessNote(UUID(int=1), 5, 900_000, 7, memory_digest(BEFORE))


@pytest.mark.parametrize(("held", "is_lost"), [({UUID(int=1): 5}, False), ({UUID(int=1): 4}, True), ({}, True)])
def test_a_note_that_comes_late_is_compared(held: dict[UUID, int], is_lost: bool) -> None:
    """What a gateway nobody had heard of was told by the former primary must be there, or it is a loss after all."""
    epoch = replace(ACCEPTED, witnesses=held)
    assert (loss(Seen(BEFORE, 90), None, epoch, KNOWN, [NOTE]) is not None) == is_lost
