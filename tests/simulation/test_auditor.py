"""The auditor can fail: for each invariant a history that breaks it, and the line that says so."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

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
Spoil = Callable[[History, Scribe], None]

_SPOILS: list[tuple[str, str, Spoil]] = []


def breaks(invariant: str) -> Callable[[Spoil], Spoil]:
    """The function makes a history that this check has to report."""

    def note(spoil: Spoil) -> Spoil:
        _SPOILS.append((invariant, spoil.__name__, spoil))
        return spoil

    return note


# -- execution --------------------------------------------------------------------------------------------------------


@breaks("01")
def sent_again_without_leave(made: History, scribe: Scribe) -> None:
    scribe.claim(3.0, 2)
    scribe.send(3.1, 2, "n2", effect=False)


@breaks("01")
def sent_twice_under_one_token(made: History, scribe: Scribe) -> None:
    scribe.send(1.03, 1, "n2", effect=False)


@breaks("01")
def two_effects(made: History, scribe: Scribe) -> None:
    scribe.say(3.0, "release", "released")
    scribe.claim(3.1, 2)
    scribe.send(3.2, 2, "n2")


@breaks("01")
def released_while_doubt_is_carried(made: History, scribe: Scribe) -> None:
    other = Scribe(made, OTHER, "k2")
    other.claim(3.0, 2, event="takeover")
    other.say(3.5, "release", "released")


@breaks("01")
def the_same_request_under_another_key(made: History, scribe: Scribe) -> None:
    made.terms = replace(made.terms, refusing_repeats=frozenset((made.sent[0].route,)))
    other = Scribe(made, OTHER, "k2")
    other.claim(3.0, 2)
    other.send(3.1, 2, "n2")


@breaks("02")
def sent_before_the_claim_was_acknowledged(made: History, scribe: Scribe) -> None:
    made.store_calls[0].acknowledged = 1.5


@breaks("02")
def sent_without_a_claim(made: History, scribe: Scribe) -> None:
    made.sent[0].token = 7


@breaks("03")
def an_answer_that_nobody_gave(made: History, scribe: Scribe) -> None:
    scribe.call(3.0, "replayed", "n9")


@breaks("03")
def other_bytes_than_the_upstream_gave(made: History, scribe: Scribe) -> None:
    answer(made.calls[1]).body = b"n1 "


@breaks("03")
def a_replay_of_nothing(made: History, scribe: Scribe) -> None:
    scribe.call(3.0, "replayed")


@breaks("04")
def two_answers(made: History, scribe: Scribe) -> None:
    answer(made.calls[1]).status = 200


@breaks("04")
def two_expiries(made: History, scribe: Scribe) -> None:
    for number, call in enumerate(made.calls):
        answer(call).headers += (("Idempotency-Expires", f"at {number}"),)


@breaks("04")
def other_bytes_than_the_record_has(made: History, scribe: Scribe) -> None:
    made.changes[-1] = replace(made.changes[-1], after=replace(view(scribe), response_digest=b"others"))


@breaks("05")
def released_after_an_effect(made: History, scribe: Scribe) -> None:
    other = Scribe(made, OTHER, "k2")
    other.claim(3.0, 2)
    other.send(3.1, 2, "n2")
    other.say(3.2, "release", "released")


@breaks("05")
def sent_although_unreachable(made: History, scribe: Scribe) -> None:
    answer(made.calls[0]).verdict = "upstream-unreachable"


@breaks("06")
def disproved_although_there_was_an_effect(made: History, scribe: Scribe) -> None:
    other = in_doubt(made)
    other.change(3.5, "disprove", replace(view(other), state="released"), read_token=2)


@breaks("06")
def gone_although_there_was_an_effect(made: History, scribe: Scribe) -> None:
    in_doubt(made).change(3.5, "sweep", None)


@breaks("08")
def stored_twice(made: History, scribe: Scribe) -> None:
    scribe.call(3.0, "stored", "n1")


@breaks("09")
def a_different_request_was_sent(made: History, scribe: Scribe) -> None:
    scribe.say(3.0, "release", "released")
    scribe.claim(3.1, 2)
    scribe.send(3.2, 2, "n2").body = b"other"


@breaks("09")
def the_answer_to_another_request(made: History, scribe: Scribe) -> None:
    made.calls[1].body = b"other"


@breaks("10")
def refused_as_another_request_although_it_is_the_same(made: History, scribe: Scribe) -> None:
    scribe.call(3.0, "key-reused", status=422)


@breaks("10")
def another_request_with_the_same_fingerprint(made: History, scribe: Scribe) -> None:
    scribe.say(3.0, "release", "released")
    scribe.claim(3.1, 2)
    scribe.send(3.2, 2, "n2").target = "/charge?again=1"


@breaks("25")
def a_truncated_answer_in_the_record(made: History, scribe: Scribe) -> None:
    made.sent[0].cut, made.sent[0].is_kept_whole = 1, False


@breaks("25")
def a_truncated_answer_that_ends_cleanly(made: History, scribe: Scribe) -> None:
    other = in_doubt(made)
    made.sent[1].cut, made.sent[1].is_kept_whole = 1, False
    other.call(3.3, "in-doubt", "n2", 502)


@breaks("26")
def a_long_answer_in_the_record(made: History, scribe: Scribe) -> None:
    made.sent[0].answer_body = b"x" * 5000


# -- state ------------------------------------------------------------------------------------------------------------


@breaks("11")
def a_step_that_the_table_does_not_have(made: History, scribe: Scribe) -> None:
    scribe.say(3.0, "abandon", "in_doubt")


@breaks("11")
def a_change_out_of_nothing(made: History, scribe: Scribe) -> None:
    scribe.view = None
    scribe.claim(3.0, 2)


@breaks("11")
def a_claim_by_a_different_request(made: History, scribe: Scribe) -> None:
    other = Scribe(made, OTHER, "k2")
    other.claim(3.0, 2)
    other.say(3.1, "release", "released", fingerprint=b"g")
    other.claim(3.2, 3)


@breaks("12")
def sent_after_the_lease(made: History, scribe: Scribe) -> None:
    made.sent[0].sent = 7.5


@breaks("13")
def a_token_again(made: History, scribe: Scribe) -> None:
    other = Scribe(made, OTHER, "k2")
    other.claim(3.0, 5)
    other.say(3.1, "release", "released")
    other.claim(3.2, 5)


@breaks("14")
def stored_and_the_record_says_otherwise(made: History, scribe: Scribe) -> None:
    made.changes[-1] = replace(made.changes[-1], after=replace(view(scribe), nonce="n9"))


@breaks("14")
def stored_and_the_record_says_otherwise_after_another_was_lost(made: History, scribe: Scribe) -> None:
    stored_and_the_record_says_otherwise(made, scribe)
    other = Scribe(made, OTHER, "k2")
    other.claim(3.0, 2)
    other.change(3.1, "lost", None)


@breaks("14")
def a_zombie_writes(made: History, scribe: Scribe) -> None:
    made.changes[-1] = replace(made.changes[-1], token=9)


@breaks("15")
def a_lease_that_ends_by_itself(made: History, scribe: Scribe) -> None:
    other = Scribe(made, OTHER, "k2")
    other.claim(3.0, 2)
    other.change(20.0, "sweep", replace(view(other), state="in_doubt"))


@breaks("16")
def a_completed_record_is_claimed(made: History, scribe: Scribe) -> None:
    scribe.claim(3.0, 2)


@breaks("17")
def sent_while_in_doubt(made: History, scribe: Scribe) -> None:
    other = in_doubt(made)
    made.sent[1].sent = 3.4
    assert view(other).state == "in_doubt"


@breaks("18")
def a_doubt_is_swept(made: History, scribe: Scribe) -> None:
    in_doubt(made).change(3.5, "sweep", None)


@breaks("18")
def swept_too_early(made: History, scribe: Scribe) -> None:
    scribe.change(3.0, "sweep", None)


@breaks("19")
def swept_between_claim_and_bytes(made: History, scribe: Scribe) -> None:
    other = Scribe(made, OTHER, "k2")
    other.claim(3.0, 2)
    other.change(3.05, "sweep", None)
    other.send(3.1, 2, "n2")


@breaks("20")
def replayed_after_its_window(made: History, scribe: Scribe) -> None:
    scribe.call(150.0, "replayed", "n1")


@breaks("20")
def replayed_after_a_purge(made: History, scribe: Scribe) -> None:
    purge(made, scribe, told=3.1)
    scribe.call(3.1 + CACHE_SECONDS, "replayed", "n1")


@breaks("20")
def replayed_after_its_window_although_the_clock_was_set(made: History, scribe: Scribe) -> None:
    made.jumps.append(Jump(2.0, HOUR_US))
    scribe.call(1.06 + REPLAY_SECONDS, "replayed", "n1")


@breaks("29")
def claimed_as_absent_after_a_loss(made: History, scribe: Scribe) -> None:
    made.store_calls.append(StoreCall(9, "g0", "check_memory", None, 0.1, 0.2, 0.3))
    scribe.change(3.0, "lost", None)
    scribe.claim(4.0, 2)


@breaks("29")
def claimed_as_absent_by_a_fresh_host_that_was_told(made: History, scribe: Scribe) -> None:
    scribe.change(3.0, "lost", None)
    made.faults.append(Fault("note_lost", 3.1, 3.1, "g0"))
    made.note_reads.append(NoteRead("g0", 3.2, 0.4))
    made.store_calls.append(StoreCall(9, "g0", "check_memory", None, 3.2, 3.3, 3.4))
    scribe.claim(4.0, 2)


@breaks("29")
def claimed_on_an_older_release(made: History, scribe: Scribe) -> None:
    other = Scribe(made, OTHER, "k2")
    other.claim(3.0, 2)
    other.say(3.1, "release", "released")
    released = view(other)
    other.claim(3.2, 3)
    made.store_calls.append(StoreCall(9, "g0", "check_memory", None, 0.1, 0.2, 0.3))
    other.change(3.3, "lost", released)
    other.claim(3.4, 4)


@breaks("28")
def forgotten_after_it_was_acknowledged(made: History, scribe: Scribe) -> None:
    del made.final[OPERATION]


@breaks("28")
def other_bytes_in_the_end(made: History, scribe: Scribe) -> None:
    made.final[OPERATION] = replace(view(scribe), response_digest=b"others")


# -- what clients see -------------------------------------------------------------------------------------------------


@breaks("07")
def in_doubt_after_it_was_stored(made: History, scribe: Scribe) -> None:
    scribe.call(3.0, "in-doubt", status=409)


@breaks("07")
def a_different_request_is_not_refused(made: History, scribe: Scribe) -> None:
    scribe.call(3.0, "in-flight", status=409).body = b"other"


@breaks("21")
def another_scope_gets_the_answer(made: History, scribe: Scribe) -> None:
    made.calls[1].scope = "t2"


@breaks("22")
def two_subjects_under_one_operation(made: History, scribe: Scribe) -> None:
    scribe.key = "k2"
    scribe.send(1.03, 1, "n2", effect=False)


@breaks("22")
def two_operations_for_one_subject(made: History, scribe: Scribe) -> None:
    Scribe(made, OTHER).send(3.0, 1, "n2")


@breaks("23")
def somebody_else_got_what_was_said_to_this_call(made: History, scribe: Scribe) -> None:
    made.sent[0].call = 1


@breaks("23")
def the_answer_to_another_operation(made: History, scribe: Scribe) -> None:
    Scribe(made, OTHER, "k2").call(3.0, "replayed", "n1")


@breaks("24")
def the_upstream_sees_another_body(made: History, scribe: Scribe) -> None:
    made.sent[0].body = BODY + b" "


@breaks("24")
def the_upstream_sees_another_client(made: History, scribe: Scribe) -> None:
    made.sent[0].headers = (*made.sent[0].headers[:2], ("X-Forwarded-For", "198.51.100.1"))


@breaks("24")
def the_caller_misses_a_field(made: History, scribe: Scribe) -> None:
    made.sent[0].answer_headers += (("X-More", "1"),)


@breaks("27")
def passed_through_twice(made: History, scribe: Scribe) -> None:
    for _ in range(2):
        unprotected(scribe)


@breaks("27")
def recorded_without_a_key(made: History, scribe: Scribe) -> None:
    made.calls[0].key = ""


@breaks("30")
def claimed_for_ever(made: History, scribe: Scribe) -> None:
    made.final[OPERATION] = replace(view(scribe), state="claimed")


@breaks("30")
def a_call_that_never_ends(made: History, scribe: Scribe) -> None:
    made.calls[0].ended = None


@breaks("31")
def nobody_answers_in_the_end(made: History, scribe: Scribe) -> None:
    call = scribe.call(50.0, "in-flight", status=409)
    call.is_final_check = True


@breaks("32")
def a_waiter_sends(made: History, scribe: Scribe) -> None:
    call = scribe.call(1.0, "in-flight", status=409)
    made.sent[0].call = call.number


@breaks("32")
def a_wait_without_end(made: History, scribe: Scribe) -> None:
    made.calls[1].left_gateway = 30.0


@breaks("33")
def doubt_without_a_fault(made: History, scribe: Scribe) -> None:
    in_doubt(made)


@breaks("33")
def an_error_of_our_own_without_a_fault(made: History, scribe: Scribe) -> None:
    scribe.call(3.0, "store-unavailable", status=503)


@breaks("33")
def lapsed_and_completed_in_time_for_nobody_to_see(made: History, scribe: Scribe) -> None:
    other = Scribe(made, OTHER, "k2")
    other.claim(3.0, 2)
    other.send(3.1, 2, "n2")
    other.complete(3.0 + LEASE_SECONDS, "n2")


@breaks("33")
def a_lease_lost_without_a_fault(made: History, scribe: Scribe) -> None:
    made.facts.append(("g0", "LeaseLost", ""))


@breaks("33")
def a_waiter_refused_for_a_release_that_was_not(made: History, scribe: Scribe) -> None:
    scribe.call(3.0, "released", status=503)


@breaks("34")
def drained_and_still_claimed(made: History, scribe: Scribe) -> None:
    made.lives.append(Life("g0", "g0.1", 0.0, 3.5, "drained"))
    Scribe(made, OTHER, "k2").claim(3.0, 2)


@breaks("35")
def free_again_after_the_clock_was_set(made: History, scribe: Scribe) -> None:
    clock_set_while_open(made).change(3.3, "sweep", None)


@breaks("35")
def claimed_again_after_the_clock_was_set(made: History, scribe: Scribe) -> None:
    clock_set_while_open(made).claim(3.3, 3)


@breaks("35")
def taken_over_where_nothing_may_be_sent_again(made: History, scribe: Scribe) -> None:
    clock_set_while_open(made).claim(3.3, 3, event="takeover")


@breaks("35")
def sent_after_it_was_said_not_to_be(made: History, scribe: Scribe) -> None:
    clock_set_while_open(made).change(
        3.3, "disprove", replace(made.changes[-1].after or view(scribe), state="released")
    )
    made.sent[1].sent = 3.4


@breaks("36")
def a_task_is_left(made: History, scribe: Scribe) -> None:
    made.lives.append(Life("g0", "g0.2", 0.0, 59.0, "drained", leftovers=("1 runs",)))


@breaks("36")
def the_program_failed(made: History, scribe: Scribe) -> None:
    made.errors.append("a run failed because of a bug")


@breaks("37")
def told_of_what_was_not(made: History, scribe: Scribe) -> None:
    made.facts.append(("g0", "claimed", "9"))


@breaks("37")
def told_of_an_ending_that_was_not(made: History, scribe: Scribe) -> None:
    made.facts.append(("g0", "settled", "1 release"))


def test_a_lease_may_end_where_something_was_wrong() -> None:
    """A lapse is no one's fault when the owner could not renew."""
    made, _ = well()
    a_lease_that_ends_by_itself(made, Scribe(made))
    made.faults.append(Fault("freeze", 4.0, 12.0, "g0"))
    assert not any(line.startswith("15_") for line in audit(made))


@pytest.mark.parametrize("noted", [None, 3.05], ids=["nothing", "the-new-memory"])
def test_who_was_told_nothing_of_a_memory_believes_the_next(noted: float | None) -> None:
    """A host without a note of its own, to which the fast tier told nothing from before the loss, cannot know of it."""
    made, scribe = well()
    claimed_as_absent_by_a_fresh_host_that_was_told(made, scribe)
    made.note_reads[:] = [NoteRead("g0", 3.2, noted)]
    assert not any(line.startswith("29_") for line in audit(made))


def test_who_claimed_need_not_hear_of_a_clock_that_was_set() -> None:
    """A request may leave for as long as its lease was given, also when the store's clock has ended it meanwhile."""
    made, _ = well()
    other = clock_set_while_open(made)
    made.sent[1].sent = 3.5
    assert made.store_us(3.5) > view(other).lease_until_us
    other.complete(3.6, "n2")
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


def answer(call: Call) -> Answer:
    assert call.answer is not None
    return call.answer


def view(scribe: Scribe) -> View:
    assert scribe.view is not None
    return scribe.view


def in_doubt(made: History) -> Scribe:
    """Another operation, sent with an effect, whose answer was lost."""
    other = Scribe(made, OTHER, "k2")
    other.claim(3.0, 2)
    other.send(3.1, 2, "n2")
    other.say(3.3, "abandon", "in_doubt")
    return other


def clock_set_while_open(made: History) -> Scribe:
    """Another operation, sent with an effect, under whose lease the store's clock was set an hour ahead."""
    other = Scribe(made, OTHER, "k2")
    other.claim(3.0, 2)
    other.send(3.1, 2, "n2")
    made.jumps.append(Jump(3.2, HOUR_US))
    made.faults.append(Fault("clock_jump", 3.2, 3.2))
    return other


def purge(made: History, scribe: Scribe, told: float) -> None:
    """An operator drops the answer, and hears at `told` that no copy is left."""
    scribe.change(3.0, "purge", replace(view(scribe), state="tombstone", last_event="purge", replay_until_us=0))
    made.final[OPERATION] = view(scribe)
    made.drops.append(Drop(OPERATION, told, is_erasure=False))


def accepted(made: History) -> Scribe:
    """Another operation, whose request is kept."""
    other = Scribe(made, OTHER, "k2")
    other.accept(3.0, 2)
    return other


@breaks("01")
def delivered_again_after_a_loss_by_a_host_that_was_told(made: History, scribe: Scribe) -> None:
    other = accepted(made)
    pending = view(other)
    deliver(other, 3.1, 3)
    other.change(3.5, "lost", pending)
    made.faults.append(Fault("note_lost", 3.6, 3.6, "g0"))
    made.note_reads.append(NoteRead("g0", 3.7, 0.4))
    made.store_calls.append(StoreCall(99, "g0", "check_memory", None, 3.7, 3.8, 3.9))
    deliver(other, 4.0, 4)


def test_who_was_told_nothing_of_a_memory_delivers_what_it_lost() -> None:
    """The store says that nothing of it ran, and nobody says otherwise."""
    made, scribe = well()
    delivered_again_after_a_loss_by_a_host_that_was_told(made, scribe)
    made.note_reads.clear()
    assert not any(line.startswith("01_") for line in audit(made))


@breaks("11")
def dispatched_before_it_was_due(made: History, scribe: Scribe) -> None:
    other = accepted(made)
    other.view = replace(view(other), next_attempt_us=made.store_us(9.0))
    other.claim(4.0, 3, event="dispatch")


@breaks("38")
def released_although_it_was_kept(made: History, scribe: Scribe) -> None:
    other = accepted(made)
    other.claim(4.0, 3, event="dispatch")
    other.say(4.5, "release", "released", is_kept=False)


@breaks("38")
def accepted_without_a_record(made: History, scribe: Scribe) -> None:
    call = scribe.call(5.0, "accepted", status=202)
    answer(call).body = b'{"id":"%s"}' % OTHER.encode()


@breaks("39")
def postponed_after_an_effect(made: History, scribe: Scribe) -> None:
    other = accepted(made)
    other.claim(4.0, 3, event="dispatch")
    other.send(4.1, 3, "n2")
    other.say(4.5, "postpone", "accepted")


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
    sent = one.send(at + 0.1, token, f"n{token}")
    sent.route, sent.body = "move", b'{"amount":1,"account":"a1"}'
    one.complete(at + 0.2, f"n{token}")


def behind_a_doubt(made: History, ended: float) -> None:
    """A lane whose first operation was in doubt until then; the second one waits."""
    first, second = lane(made, 2, 3)
    first.claim(4.0, 4, event="dispatch")
    first.say(4.5, "abandon", "in_doubt")
    first.complete(ended, "n4", event="prove")
    made.final = {one.operation_id: view(one) for one in (first, second)}


@breaks("30")
def a_lane_that_stands_long_after_its_doubt(made: History, scribe: Scribe) -> None:
    behind_a_doubt(made, 40.0)


def test_a_lane_goes_on_some_time_after_its_doubt() -> None:
    """The end of the run may come before its next delivery."""
    made, _ = well()
    behind_a_doubt(made, 59.0)
    assert not any(line.startswith("30_") for line in audit(made))


@breaks("40")
def dispatched_before_its_turn(made: History, scribe: Scribe) -> None:
    _, second = lane(made, 2, 3)
    second.claim(4.0, 4, event="dispatch")


@breaks("40")
def two_at_once(made: History, scribe: Scribe) -> None:
    for one in lane(made, 2, 3):
        one.claim(4.0, 4, event="dispatch")


@breaks("40")
def doubt_is_passed(made: History, scribe: Scribe) -> None:
    first, second = lane(made, 2, 3)
    first.claim(4.0, 4, event="dispatch")
    first.say(4.5, "abandon", "in_doubt", stops_lane=False)
    second.claim(5.0, 5, event="dispatch")


@breaks("40")
def a_dead_letter_that_stops_is_passed(made: History, scribe: Scribe) -> None:
    first, second = lane(made, 2, 3)
    first.claim(4.0, 4, event="dispatch")
    first.say(4.5, "bury", "dead_letter")
    second.claim(5.0, 5, event="dispatch")


@breaks("40")
def effects_in_another_order_than_the_lane_has(made: History, scribe: Scribe) -> None:
    first, second = lane(made, 2, 3)
    for change in made.changes[-2:]:
        made.changes[change.number] = replace(change, after=replace(change.after or view(first), lane=None))
    deliver(second, 4.0, 4)
    deliver(first, 5.0, 5)


@breaks("41")
def an_event_is_missing(made: History, scribe: Scribe) -> None:
    made.events.pop()


@breaks("41")
def an_event_is_there_twice(made: History, scribe: Scribe) -> None:
    made.events.append(made.events[0])


@breaks("41")
def an_event_of_what_did_not_complete(made: History, scribe: Scribe) -> None:
    other = Scribe(made, OTHER, "k2")
    other.claim(3.0, 2)
    other.send(3.1, 2, "n2")
    made.events.append(replace(made.events[0], operation_id=OTHER, token=2))
    other.say(3.5, "abandon", "in_doubt")


@breaks("41")
def events_of_a_lane_in_another_order(made: History, scribe: Scribe) -> None:
    first, second = lane(made, 2, 3)
    deliver(first, 4.0, 4)
    deliver(second, 5.0, 5)
    made.events.reverse()


def at_home(made: History, home: str = "us") -> None:
    """There are two regions, the operation is at home in the second one, and all that happened did so there."""
    made.terms = replace(made.terms, homes=("eu", "us"))
    made.region_of = {"g0": home, "g1": "eu"}
    made.changes = [replace(change, region=home) for change in made.changes]


@breaks("42")
def claimed_in_another_region(made: History, scribe: Scribe) -> None:
    at_home(made)
    made.changes[0] = replace(made.changes[0], region="eu")


@breaks("42")
def sent_from_another_region(made: History, scribe: Scribe) -> None:
    at_home(made)
    made.sent[0].gateway = "g1"


@breaks("42")
def sent_unprotected_from_another_region(made: History, scribe: Scribe) -> None:
    at_home(made)
    sent = unprotected(scribe)
    sent.operation_id, sent.gateway = "", "g1"


@breaks("42")
def probed_from_another_region(made: History, scribe: Scribe) -> None:
    at_home(made)
    sent = unprotected(scribe)
    sent.method, sent.target, sent.operation_id, sent.gateway = "GET", f"/book?operation={OPERATION}", "", "g1"


@breaks("43")
def a_home_that_was_not_reached_is_said_to_know(made: History, scribe: Scribe) -> None:
    made.forwards.append(Forward(scribe.call(3.0, "in-doubt", status=503).number, "g1", "us"))


@breaks("43")
def a_home_that_was_not_reached_is_not_named(made: History, scribe: Scribe) -> None:
    made.forwards.append(Forward(scribe.call(3.0, "store-unavailable", status=503).number, "g1", "us"))


@breaks("43")
def what_was_lost_on_its_way_is_said_to_have_never_left(made: History, scribe: Scribe) -> None:
    call = scribe.call(3.0, "store-unavailable", status=503)
    answer(call).body = b"Region us cannot be reached"
    made.forwards.append(Forward(call.number, "g1", "us", sent=3.05))


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
    other = Scribe(made, OTHER, "k2")
    other.claim(3.0, 2)
    other.send(3.1, 2, "n2")
    other.change(3.5, "lost", None)
    other.claim(4.0, 2)
    other.say(4.5, "release", "released")
    assert not any(line.startswith("05_") for line in audit(made))
    made.store_calls.append(StoreCall(9, "g0", "check_memory", None, 0.1, 0.2, 0.3))
    assert any(line.startswith("05_") for line in audit(made))


def test_another_regions_loss_is_none() -> None:
    """A store that forgot something says nothing of what the other one has."""
    made, scribe = well()
    claimed_as_absent_after_a_loss(made, scribe)
    assert any(line.startswith("29_") for line in audit(made))
    made.changes = [replace(change, region="eu" if change.event == "lost" else "us") for change in made.changes]
    assert not any(line.startswith("29_") for line in audit(made))


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
    assert [line for line in audit(made) if line.startswith("40_")] == []


def unprotected(scribe: Scribe) -> Sent:
    sent = scribe.send(3.0, 0, "n3", 1)
    sent.is_protected = False
    return sent


def test_a_history_in_which_all_is_well_is_not_reported() -> None:
    """Nothing is found where nothing is wrong."""
    made, _ = well()
    assert audit(made) == []


@pytest.mark.parametrize(("invariant", "spoil"), [pytest.param(i, s, id=f"{i}-{n}") for i, n, s in _SPOILS])
def test_a_broken_invariant_is_reported(invariant: str, spoil: Spoil) -> None:
    """A history that breaks an invariant is reported under its name."""
    made, scribe = well()
    spoil(made, scribe)
    assert any(line.startswith(f"{invariant}_") for line in audit(made)), audit(made)


def test_every_check_can_fail() -> None:
    """There is no check without a history that it reports."""
    shown = {invariant for invariant, _, _ in _SPOILS}
    assert {check.__name__.split("_")[1] for check in CHECKS} == shown


def test_the_auditor_shares_nothing_with_the_program() -> None:
    """Neither the auditor nor what it reads imports anything of the gateway."""
    files = [Path(auditor.__file__), Path(history.__file__), *Path(audit_package.__file__).parent.glob("*.py")]
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            allowed = ("tests.simulation.audit", "tests.simulation.history")
            bad = [
                name for name in names if name.split(".")[0] in ("gateway", "tests") and not name.startswith(allowed)
            ]
            assert not bad, f"{path.name} imports {bad}"
