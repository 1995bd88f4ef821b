"""The auditor can fail: for each invariant histories that break it, and the line that says so."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.simulation import audit as audit_package
from tests.simulation import auditor, history
from tests.simulation.auditor import CHECKS, audit
from tests.simulation.history import (
    Answer,
    Call,
    Drop,
    Fault,
    Forward,
    History,
    Jump,
    Life,
    NoteRead,
    Sent,
    StoreCall,
    View,
)
from tests.simulation.scribe import BODY, CACHE_SECONDS, LEASE_SECONDS, OPERATION, REPLAY_SECONDS, Scribe, well

OTHER = "22222222-2222-8222-8222-222222222222"
HOUR_US = 3_600_000_000
MET_BEFORE = StoreCall(9, "g0", "check_memory", None, 0.1, 0.2, 0.3)
"""The host knew the memory from before it lost anything."""


def put(what: Any, **changes: object) -> None:
    for name, value in changes.items():
        setattr(what, name, value)


def answer(call: Call) -> Answer:
    assert call.answer is not None
    return call.answer


def view(scribe: Scribe) -> View:
    assert scribe.view is not None
    return scribe.view


def other(made: History) -> Scribe:
    return Scribe(made, OTHER, "k2")


def claimed(made: History, **how: Any) -> Scribe:
    """Another operation."""
    found = other(made)
    found.claim(3.0, 2, **how)
    return found


def sent(made: History) -> Scribe:
    """Another operation, sent with an effect."""
    found = claimed(made)
    found.send(3.1, 2, "n2")
    return found


def in_doubt(made: History) -> Scribe:
    """Another operation, sent with an effect, whose answer was lost."""
    found = sent(made)
    found.say(3.3, "abandon", "in_doubt")
    return found


def clock_set_while_open(made: History) -> Scribe:
    """Another operation, sent with an effect, under whose lease the store's clock was set an hour ahead."""
    found = sent(made)
    made.jumps.append(Jump(3.2, HOUR_US))
    made.faults.append(Fault("clock_jump", 3.2, 3.2))
    return found


def released(scribe: Scribe, at: float, token: int) -> Scribe:
    """Released at the moment, and claimed again."""
    scribe.say(at, "release", "released")
    scribe.claim(at + 0.1, token)
    return scribe


def accepted(made: History, *, dispatched: bool = False) -> Scribe:
    """Another operation, whose request is kept."""
    found = other(made)
    found.accept(3.0, 2)
    if dispatched:
        found.claim(4.0, 3, event="dispatch")
    return found


def purge(made: History, scribe: Scribe, told: float) -> None:
    """An operator drops the answer, and hears at `told` that no copy is left."""
    scribe.change(3.0, "purge", replace(view(scribe), state="tombstone", last_event="purge", replay_until_us=0))
    made.final[OPERATION] = view(scribe)
    made.drops.append(Drop(OPERATION, told, is_erasure=False))


def expires(call: Call) -> None:
    """At another time for each call."""
    answer(call).headers += (("Idempotency-Expires", f"at {call.number}"),)


def unprotected(scribe: Scribe, **changes: object) -> Sent:
    found = scribe.send(3.0, 0, "n3", 1)
    put(found, is_protected=False, **changes)
    return found


def record_with(made: History, scribe: Scribe, **changes: Any) -> None:
    """The last change wrote something else."""
    made.changes[-1] = replace(made.changes[-1], after=replace(view(scribe), **changes))


def fresh_host_was_told(made: History, scribe: Scribe) -> None:
    scribe.change(3.0, "lost", None)
    made.faults.append(Fault("note_lost", 3.1, 3.1, "g0"))
    made.note_reads.append(NoteRead("g0", 3.2, 0.4))
    made.store_calls.append(StoreCall(9, "g0", "check_memory", None, 3.2, 3.3, 3.4))
    scribe.claim(4.0, 2)


def claimed_on_an_older_release(made: History, scribe: Scribe) -> None:
    found = claimed(made)
    found.say(3.1, "release", "released")
    before = view(found)
    found.claim(3.2, 3)
    made.store_calls.append(MET_BEFORE)
    found.change(3.3, "lost", before)
    found.claim(3.4, 4)


def delivered_again_by_a_host_that_was_told(made: History, scribe: Scribe) -> None:
    found = accepted(made)
    pending = view(found)
    deliver(found, 3.1, 3)
    found.change(3.5, "lost", pending)
    made.faults.append(Fault("note_lost", 3.6, 3.6, "g0"))
    made.note_reads.append(NoteRead("g0", 3.7, 0.4))
    made.store_calls.append(StoreCall(99, "g0", "check_memory", None, 3.7, 3.8, 3.9))
    deliver(found, 4.0, 4)


def claimed_as_absent_after_a_loss(made: History, scribe: Scribe) -> None:
    made.store_calls.append(MET_BEFORE)
    scribe.change(3.0, "lost", None)
    scribe.claim(4.0, 2)


def a_lease_that_ends_by_itself(made: History, scribe: Scribe) -> None:
    found = claimed(made)
    found.change(20.0, "sweep", replace(view(found), state="in_doubt"))


def lane(made: History, *numbers: int) -> list[Scribe]:
    """Operations of one account, accepted one after the other."""
    made.terms = replace(made.terms, ordered=frozenset(("move",)))
    found = []
    for number in numbers:
        one = Scribe(made, OTHER[:-1] + str(number), f"k{number}")
        one.accept(3.0 + number / 10, number)
        one.view = replace(view(one), lane="a1")
        made.changes[-1] = replace(made.changes[-1], after=one.view)
        found.append(one)
    return found


def deliver(one: Scribe, at: float, token: int) -> None:
    """It has its effect, and its record says so."""
    one.claim(at, token, event="dispatch")
    put(one.send(at + 0.1, token, f"n{token}"), route="move", body=b'{"amount":1,"account":"a1"}')
    one.complete(at + 0.2, f"n{token}")


def passed(made: History, event: str, state: str, **how: object) -> None:
    """The first of a lane comes to this state, and the second one is dispatched."""
    first, second = lane(made, 2, 3)
    first.claim(4.0, 4, event="dispatch")
    first.say(4.5, event, state, **how)
    second.claim(5.0, 5, event="dispatch")


def behind_a_doubt(made: History, ended: float) -> None:
    """A lane whose first operation was in doubt until then; the second one waits."""
    first, second = lane(made, 2, 3)
    first.claim(4.0, 4, event="dispatch")
    first.say(4.5, "abandon", "in_doubt")
    first.complete(ended, "n4", event="prove")
    made.final = {one.operation_id: view(one) for one in (first, second)}


def effects_in_another_order(made: History, scribe: Scribe) -> None:
    first, second = lane(made, 2, 3)
    for change in made.changes[-2:]:
        made.changes[change.number] = replace(change, after=replace(change.after or view(first), lane=None))
    deliver(second, 4.0, 4)
    deliver(first, 5.0, 5)


def events_in_another_order(made: History, scribe: Scribe) -> None:
    for token, one in enumerate(lane(made, 2, 3), 4):
        deliver(one, float(token), token)
    made.events.reverse()


def at_home(made: History) -> None:
    """There are two regions, the operation is at home in the second one, and all that happened did so there."""
    made.terms = replace(made.terms, homes=("eu", "us"))
    made.region_of = {"g0": "us", "g1": "eu"}
    made.changes = [replace(change, region="us") for change in made.changes]


def forwarded(made: History, scribe: Scribe, verdict: str, body: bytes = b"", sent: float | None = None) -> None:
    """A request for the other region, of which nothing came back."""
    call = scribe.call(3.0, verdict, status=503)
    answer(call).body = body
    made.forwards.append(Forward(call.number, "g1", "us", sent=sent))


Spoil = Callable[[History, Scribe], object]
# What breaks an invariant: `m` is a history in which an operation is stored and replayed, `s` that one's scribe.
SPOILS: dict[str, Spoil] = {
    "01 sent again without leave": lambda m, s: (s.claim(3.0, 2), s.send(3.1, 2, "n2", effect=False)),
    "01 sent twice under one token": lambda m, s: s.send(1.03, 1, "n2", effect=False),
    "01 two effects": lambda m, s: released(s, 3.0, 2).send(3.2, 2, "n2"),
    "01 released in doubt": lambda m, s: claimed(m, event="takeover").say(3.5, "release", "released"),
    "01 the same request under another key": lambda m, s: (
        put(m, terms=replace(m.terms, refusing_repeats=frozenset((m.sent[0].route,)))),
        sent(m),
    ),
    "01 delivered again by a host that was told": delivered_again_by_a_host_that_was_told,
    "02 sent before the claim was acknowledged": lambda m, s: put(m.store_calls[0], acknowledged=1.5),
    "02 sent without a claim": lambda m, s: put(m.sent[0], token=7),
    "03 an answer that nobody gave": lambda m, s: s.call(3.0, "replayed", "n9"),
    "03 other bytes than the upstream gave": lambda m, s: put(answer(m.calls[1]), body=b"n1 "),
    "03 a replay of nothing": lambda m, s: s.call(3.0, "replayed"),
    "04 two answers": lambda m, s: put(answer(m.calls[1]), status=200),
    "04 two expiries": lambda m, s: [expires(call) for call in m.calls],
    "04 other bytes than the record has": lambda m, s: record_with(m, s, response_digest=b"others"),
    "05 released after an effect": lambda m, s: sent(m).say(3.2, "release", "released"),
    "05 sent although unreachable": lambda m, s: put(answer(m.calls[0]), verdict="upstream-unreachable"),
    "06 disproved although there was an effect": lambda m, s: (o := in_doubt(m)).change(
        3.5, "disprove", replace(view(o), state="released"), read_token=2
    ),
    "06 gone although there was an effect": lambda m, s: in_doubt(m).change(3.5, "sweep", None),
    "07 in doubt after it was stored": lambda m, s: s.call(3.0, "in-doubt", status=409),
    "07 a different one is not refused": lambda m, s: put(s.call(3.0, "in-flight", status=409), body=b"other"),
    "08 stored twice": lambda m, s: s.call(3.0, "stored", "n1"),
    "09 a different request": lambda m, s: put(released(s, 3.0, 2).send(3.2, 2, "n2"), body=b"other"),
    "09 the answer to another request": lambda m, s: put(m.calls[1], body=b"other"),
    "10 refused although it is the same": lambda m, s: s.call(3.0, "key-reused", status=422),
    "10 another request with the same fingerprint": lambda m, s: put(
        released(s, 3.0, 2).send(3.2, 2, "n2"), target="/charge?again=1"
    ),
    "11 a step that the table does not have": lambda m, s: s.say(3.0, "abandon", "in_doubt"),
    "11 a change out of nothing": lambda m, s: (put(s, view=None), s.claim(3.0, 2)),
    "11 a claim by a different request": lambda m, s: (
        (o := claimed(m)).say(3.1, "release", "released", fingerprint=b"g"),
        o.claim(3.2, 3),
    ),
    "11 dispatched before it was due": lambda m, s: (
        put(o := accepted(m), view=replace(view(o), next_attempt_us=m.store_us(9.0))),
        o.claim(4.0, 3, event="dispatch"),
    ),
    "12 sent after the lease": lambda m, s: put(m.sent[0], sent=7.5),
    "13 a token again": lambda m, s: ((o := other(m)).claim(3.0, 5), released(o, 3.1, 5)),
    "14 the record says otherwise": lambda m, s: record_with(m, s, nonce="n9"),
    "14 the record says otherwise, after another was lost": lambda m, s: (
        record_with(m, s, nonce="n9"),
        claimed(m).change(3.1, "lost", None),
    ),
    "14 a zombie writes": lambda m, s: m.changes.append(replace(m.changes.pop(), token=9)),
    "15 a lease that ends by itself": a_lease_that_ends_by_itself,
    "16 a completed record is claimed": lambda m, s: s.claim(3.0, 2),
    "17 sent while in doubt": lambda m, s: (in_doubt(m), put(m.sent[1], sent=3.4)),
    "18 a doubt is swept": lambda m, s: in_doubt(m).change(3.5, "sweep", None),
    "18 swept too early": lambda m, s: s.change(3.0, "sweep", None),
    "19 swept between claim and bytes": lambda m, s: (
        (o := claimed(m)).change(3.05, "sweep", None),
        o.send(3.1, 2, "n2"),
    ),
    "20 replayed after its window": lambda m, s: s.call(150.0, "replayed", "n1"),
    "20 replayed after a purge": lambda m, s: (purge(m, s, told=3.1), s.call(3.1 + CACHE_SECONDS, "replayed", "n1")),
    "20 replayed after its window although the clock was set": lambda m, s: (
        m.jumps.append(Jump(2.0, HOUR_US)),
        s.call(1.06 + REPLAY_SECONDS, "replayed", "n1"),
    ),
    "21 another scope gets the answer": lambda m, s: put(m.calls[1], scope="t2"),
    "22 two subjects": lambda m, s: (put(s, key="k2"), s.send(1.03, 1, "n2", effect=False)),
    "22 two operations for one subject": lambda m, s: Scribe(m, OTHER).send(3.0, 1, "n2"),
    "23 somebody else got what was said to this call": lambda m, s: put(m.sent[0], call=1),
    "23 the answer to another operation": lambda m, s: other(m).call(3.0, "replayed", "n1"),
    "24 the upstream sees another body": lambda m, s: put(m.sent[0], body=BODY + b" "),
    "24 the upstream sees another client": lambda m, s: put(
        m.sent[0], headers=(*m.sent[0].headers[:2], ("X-Forwarded-For", "198.51.100.1"))
    ),
    "24 the caller misses a field": lambda m, s: put(
        m.sent[0], answer_headers=(*m.sent[0].answer_headers, ("X-More", "1"))
    ),
    "25 a truncated answer in the record": lambda m, s: put(m.sent[0], cut=1, is_kept_whole=False),
    "25 a truncated answer that ends cleanly": lambda m, s: (
        in_doubt(m).call(3.3, "in-doubt", "n2", 502),
        put(m.sent[1], cut=1, is_kept_whole=False),
    ),
    "26 a long answer in the record": lambda m, s: put(m.sent[0], answer_body=b"x" * 5000),
    "27 passed through twice": lambda m, s: (unprotected(s), unprotected(s)),
    "27 recorded without a key": lambda m, s: put(m.calls[0], key=""),
    "28 forgotten after it was acknowledged": lambda m, s: m.final.clear(),
    "28 other bytes in the end": lambda m, s: put(m, final={OPERATION: replace(view(s), response_digest=b"others")}),
    "29 claimed as absent after a loss": claimed_as_absent_after_a_loss,
    "29 claimed as absent by a fresh host that was told": fresh_host_was_told,
    "29 claimed on an older release": claimed_on_an_older_release,
    "30 claimed for ever": lambda m, s: put(m, final={OPERATION: replace(view(s), state="claimed")}),
    "30 a call that never ends": lambda m, s: put(m.calls[0], ended=None),
    "30 a lane that stands long after its doubt": lambda m, s: behind_a_doubt(m, 40.0),
    "31 nobody answers": lambda m, s: put(s.call(50.0, "in-flight", status=409), is_final_check=True),
    "32 a waiter sends": lambda m, s: put(m.sent[0], call=s.call(1.0, "in-flight", status=409).number),
    "32 a wait without end": lambda m, s: put(m.calls[1], left_gateway=30.0),
    "33 doubt without a fault": lambda m, s: in_doubt(m),
    "33 an error of our own without a fault": lambda m, s: s.call(3.0, "store-unavailable", status=503),
    "33 lapsed, and completed for nobody to see": lambda m, s: sent(m).complete(3.0 + LEASE_SECONDS, "n2"),
    "33 a lease lost without a fault": lambda m, s: m.facts.append(("g0", "LeaseLost", "")),
    "33 a waiter refused for a release that was not": lambda m, s: s.call(3.0, "released", status=503),
    "34 still claimed": lambda m, s: (m.lives.append(Life("g0", "g0.1", 0.0, 3.5, "drained")), claimed(m)),
    "35 free after the clock was set": lambda m, s: clock_set_while_open(m).change(3.3, "sweep", None),
    "35 claimed after the clock was set": lambda m, s: clock_set_while_open(m).claim(3.3, 3),
    "35 taken over where nothing may be sent again": lambda m, s: clock_set_while_open(m).claim(
        3.3, 3, event="takeover"
    ),
    "35 sent after it was said not to be": lambda m, s: (
        (o := clock_set_while_open(m)).change(3.3, "disprove", replace(view(o), state="released")),
        put(m.sent[1], sent=3.4),
    ),
    "36 a task is left": lambda m, s: m.lives.append(Life("g0", "g0.2", 0.0, 59.0, "drained", leftovers=("1 runs",))),
    "36 the program failed": lambda m, s: m.errors.append("a run failed because of a bug"),
    "37 told of what was not": lambda m, s: m.facts.append(("g0", "claimed", "9")),
    "37 told of an ending that was not": lambda m, s: m.facts.append(("g0", "settled", "1 release")),
    "38 released although it was kept": lambda m, s: accepted(m, dispatched=True).say(
        4.5, "release", "released", is_kept=False
    ),
    "38 accepted without a record": lambda m, s: put(
        answer(s.call(5.0, "accepted", status=202)), body=b'{"id":"%s"}' % OTHER.encode()
    ),
    "39 postponed after an effect": lambda m, s: (
        (o := accepted(m, dispatched=True)).send(4.1, 3, "n2"),
        o.say(4.5, "postpone", "accepted"),
    ),
    "40 dispatched before its turn": lambda m, s: lane(m, 2, 3)[1].claim(4.0, 4, event="dispatch"),
    "40 two at once": lambda m, s: [one.claim(4.0, 4, event="dispatch") for one in lane(m, 2, 3)],
    "40 doubt is passed": lambda m, s: passed(m, "abandon", "in_doubt", stops_lane=False),
    "40 a dead letter that stops is passed": lambda m, s: passed(m, "bury", "dead_letter"),
    "40 effects in another order than the lane has": effects_in_another_order,
    "41 an event is missing": lambda m, s: m.events.pop(),
    "41 an event is there twice": lambda m, s: m.events.append(m.events[0]),
    "41 an event of what did not complete": lambda m, s: (
        in_doubt(m),
        m.events.append(replace(m.events[0], operation_id=OTHER, token=2)),
    ),
    "41 events of a lane in another order": events_in_another_order,
    "42 claimed in another region": lambda m, s: (
        at_home(m),
        m.changes.insert(0, replace(m.changes.pop(0), region="eu")),
    ),
    "42 sent from another region": lambda m, s: (at_home(m), put(m.sent[0], gateway="g1")),
    "42 sent unprotected from another region": lambda m, s: (at_home(m), unprotected(s, operation_id="", gateway="g1")),
    "42 probed from another region": lambda m, s: (
        at_home(m),
        unprotected(s, method="GET", target=f"/book?operation={OPERATION}", operation_id="", gateway="g1"),
    ),
    "43 a home that was not reached is said to know": lambda m, s: forwarded(m, s, "in-doubt"),
    "43 a home that was not reached is not named": lambda m, s: forwarded(m, s, "store-unavailable"),
    "43 what was lost on its way is said to have never left": lambda m, s: forwarded(
        m, s, "store-unavailable", b"Region us cannot be reached", sent=3.05
    ),
}


def reports(made: History, invariant: str) -> bool:
    return any(line.startswith(f"{invariant}_") for line in audit(made))


@pytest.mark.parametrize("name", SPOILS)
def test_a_broken_invariant_is_reported(name: str) -> None:
    """A history that breaks an invariant is reported under its name."""
    made, scribe = well()
    SPOILS[name](made, scribe)
    assert reports(made, name[:2]), audit(made)


def test_every_check_can_fail() -> None:
    """There is no check without a history that it reports."""
    assert {check.__name__.split("_")[1] for check in CHECKS} == {name[:2] for name in SPOILS}


def test_a_history_in_which_all_is_well_is_not_reported() -> None:
    """Nothing is found where nothing is wrong."""
    assert audit(well()[0]) == []


def test_a_lease_may_end_where_something_was_wrong() -> None:
    """A lapse is no one's fault when the owner could not renew."""
    made, scribe = well()
    a_lease_that_ends_by_itself(made, scribe)
    made.faults.append(Fault("freeze", 4.0, 12.0, "g0"))
    assert not reports(made, "15")


@pytest.mark.parametrize("noted", [None, 3.05], ids=["nothing", "the-new-memory"])
def test_who_was_told_nothing_of_a_memory_believes_the_next(noted: float | None) -> None:
    """A host without a note of its own, to which the fast tier told nothing from before the loss, cannot know of it."""
    made, scribe = well()
    fresh_host_was_told(made, scribe)
    made.note_reads[:] = [NoteRead("g0", 3.2, noted)]
    assert not reports(made, "29")


def test_who_was_told_nothing_of_a_memory_delivers_what_it_lost() -> None:
    """The store says that nothing of it ran, and nobody says otherwise."""
    made, scribe = well()
    delivered_again_by_a_host_that_was_told(made, scribe)
    made.note_reads.clear()
    assert not reports(made, "01")


def test_who_claimed_need_not_hear_of_a_clock_that_was_set() -> None:
    """A request may leave for as long as its lease was given, also when the store's clock has ended it meanwhile."""
    made, _ = well()
    found = clock_set_while_open(made)
    made.sent[1].sent = 3.5
    assert made.store_us(3.5) > view(found).lease_until_us
    found.complete(3.6, "n2")
    assert audit(made) == []


def test_a_copy_may_outlive_a_purge_for_a_while() -> None:
    """A gateway that missed the news may answer from its memory until its entry is too old."""
    made, scribe = well()
    purge(made, scribe, told=3.1)
    scribe.call(3.0 + CACHE_SECONDS, "replayed", "n1")
    assert audit(made) == []


def test_a_copy_keeps_the_window_that_it_was_made_in() -> None:
    """The store's clock ends a window early for its own record, and for no copy."""
    made, scribe = well()
    made.jumps.append(Jump(2.5, HOUR_US))
    scribe.call(3.0, "replayed", "n1")
    scribe.call(3.0, "key-expired", status=410)
    made.final.clear()
    assert audit(made) == []


def test_a_lane_goes_on_some_time_after_its_doubt() -> None:
    """The end of the run may come before its next delivery."""
    made, _ = well()
    behind_a_doubt(made, 59.0)
    assert not reports(made, "30")


def test_regions_in_which_all_is_well() -> None:
    """What is at home there, a home that was away, and a link that was cut, are reported by nobody."""
    made, scribe = well()
    at_home(made)
    away, cut = scribe.call(3.0, "store-unavailable", status=503), scribe.call(4.0, "in-doubt", status=503)
    answer(away).body = b"Region us cannot be reached"
    made.faults.append(Fault("link_cut", 2.9, 4.1, "link"))
    made.forwards += [
        Forward(1, "g1", "us", sent=2.01, answered=2.05),
        Forward(away.number, "g1", "us"),
        Forward(cut.number, "g1", "us", sent=4.05),
    ]
    assert audit(made) == []


def test_a_token_that_a_store_gives_once_more_had_no_effect() -> None:
    """What the store forgot is not held against who could not know of it, and was granted the same token."""
    made, _ = well()
    found = sent(made)
    found.change(3.5, "lost", None)
    found.claim(4.0, 2)
    found.say(4.5, "release", "released")
    assert not reports(made, "05")
    made.store_calls.append(MET_BEFORE)
    assert reports(made, "05")


def test_another_regions_loss_is_none() -> None:
    """A store that forgot something says nothing of what the other one has."""
    made, scribe = well()
    claimed_as_absent_after_a_loss(made, scribe)
    assert reports(made, "29")
    made.changes = [replace(change, region="eu" if change.event == "lost" else "us") for change in made.changes]
    assert not reports(made, "29")


def test_a_dead_letter_may_be_passed_where_the_route_says_so() -> None:
    """Requeued, it takes effect after those that passed it."""
    made, _ = well()
    first, second = lane(made, 2, 3)
    for scribe in (first, second):
        scribe.view = replace(view(scribe), stops_lane=False)
    made.changes[-2:] = [
        replace(change, after=replace(change.after or view(first), stops_lane=False)) for change in made.changes[-2:]
    ]
    first.claim(4.0, 4, event="dispatch")
    first.say(4.5, "bury", "dead_letter")
    deliver(second, 5.0, 5)
    first.change(6.0, "requeue", replace(view(first), state="accepted"), read_token=4)
    deliver(first, 7.0, 6)
    assert not reports(made, "40")


def test_the_auditor_shares_nothing_with_the_program() -> None:
    """Neither the auditor nor what it reads imports anything of the gateway."""
    files = [Path(auditor.__file__), Path(history.__file__), *Path(audit_package.__file__).parent.glob("*.py")]
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            allowed = ("tests.simulation.audit", "tests.simulation.history")
            ours = [name for name in names if name.split(".")[0] in ("gateway", "tests")]
            assert all(name.startswith(allowed) for name in ours), f"{path.name} imports {names}"
