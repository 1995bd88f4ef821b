"""The table as a whole, and what `settle` and `step` promise of any record at any time."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.lifecycle import (
    FORGOTTEN_REMEMBER_US,
    LAPSED_DOUBT,
    ROWS,
    TABLE,
    Fence,
    settle,
    step,
    tombstone_response,
    written_down,
)
from gateway.core.message import StoredResponse
from gateway.core.operation import (
    EVENT_OF,
    HISTORY_FIRST,
    HISTORY_LAST,
    PROBE,
    Accept,
    Applied,
    Claim,
    ClaimingCommand,
    Command,
    Entry,
    Event,
    Fenced,
    History,
    Lapsed,
    ProbeTarget,
    Record,
    Snapshot,
    State,
    history_with,
    unpacked_history,
)
from tests.conformance.cases import HISTORIES, MOVES, SPEECHES, play
from tests.conformance.hand import ANSWER, LEASE_US, OTHER, REMEMBER_US, SAME, SAME_BY_RAW, Hand, increasing
from tests.support.memory_store import Memory, MemoryStore

# The events that draw a token.
DRAWING = {Event.CLAIM, Event.ACCEPT, Event.DISPATCH, Event.TAKEOVER}
TIME_EVENTS = {row.event for row in TABLE if row.fence is Fence.CLOCK}


def no_token() -> int:
    raise AssertionError("a token was drawn where nothing is granted")


# The table


def test_the_table_uses_every_word_and_says_each_thing_once() -> None:
    """Nothing in the vocabulary is without use; commands and rows of the clock share the events among them."""
    assert {row.next for row in TABLE} == {state for row in TABLE for state in row.states} == set(State)
    assert {row.event for row in TABLE} == set(Event)
    assert len(ROWS) == sum(len(row.states) for row in TABLE)
    assert set(EVENT_OF.values()) == set(Event) - TIME_EVENTS


def test_every_state_can_be_left_but_by_time_alone_never_from_doubt() -> None:
    """From doubt nothing leads away by itself: no clock, no purge, no erasing."""
    events = {event for state, event in ROWS if state is State.IN_DOUBT}
    assert events == {
        Event.COMPLETE, Event.RELEASE, Event.FORGET, Event.ABANDON, Event.TAKEOVER, Event.PROVE, Event.DISPROVE,
        Event.POSTPONE, Event.BURY, Event.REINSTATE,
    }  # fmt: skip
    assert not events & TIME_EVENTS


def test_a_holders_verb_is_fenced_on_the_holder() -> None:
    """Each event has one fence in all its rows, but for a new request: free on nothing, and fenced on a release."""
    new = {Event.CLAIM, Event.ACCEPT}
    read = {Event.DISPATCH, Event.TAKEOVER, Event.PROVE, Event.DISPROVE, Event.REINSTATE, Event.REQUEUE, Event.WITHDRAW}
    hold = {Event.RENEW, Event.COMPLETE, Event.RELEASE, Event.FORGET, Event.ABANDON, Event.POSTPONE, Event.BURY}
    assert {fence: {row.event for row in TABLE if row.fence is fence} for fence in Fence} == {
        Fence.NONE: new,
        Fence.READ_TOKEN: new | read,
        Fence.HOLDER: hold,
        Fence.CLOCK: {Event.LAPSE, Event.EXPIRE, Event.RETIRE, Event.COLLECT},
        Fence.OPERATOR: {Event.PURGE, Event.ERASE},
    }


def test_what_says_that_nothing_happened_is_refused_under_doubt() -> None:
    """Every row by which the holder frees or keeps the request is closed to a claim that carries doubt."""
    for row in TABLE:
        says_so = row.next in (State.RELEASED, State.ACCEPTED, State.DEAD_LETTER) and row.fence is Fence.HOLDER
        assert row.refused_under_doubt == says_so, row


def test_execution_is_granted_only_from_absent_released_or_doubt() -> None:
    """Only the first claim, the retry and the takeover lead to a new attempt, no time does, and what is kept stays."""
    grants = {(state, row.event) for row in TABLE for state in row.states if row.next is State.CLAIMED}
    assert grants == {
        (State.ABSENT, Event.CLAIM), (State.RELEASED, Event.CLAIM), (State.ACCEPTED, Event.DISPATCH),
        (State.CLAIMED, Event.RENEW), (State.IN_DOUBT, Event.TAKEOVER),
    }  # fmt: skip
    ends = {(state, row.next) for row in TABLE if row.fence is Fence.CLOCK for state in row.states}
    assert not {after for _, after in ends} & {State.ACCEPTED, State.CLAIMED, State.RELEASED}
    assert {after for state, after in ends if state is State.CLAIMED} == {State.IN_DOUBT}
    for state in (State.ACCEPTED, State.DEAD_LETTER):
        assert State.ABSENT not in {row.next for row in TABLE if state in row.states}


def test_what_was_completed_stays_answered_until_it_is_forgotten() -> None:
    """From completed the only way is to a tombstone, and from there to absent."""
    assert {row.next for row in TABLE if State.COMPLETED in row.states} == {State.TOMBSTONE}
    assert {row.next for row in TABLE if State.TOMBSTONE in row.states} == {State.ABSENT}


# Any record at any time. Records come from histories, so that none is impossible.


@st.composite
def histories(draw: st.DrawFn) -> tuple[Hand, Memory]:
    """A record that a history of the table leads to, with moments in between that are nobody's round number."""
    hand, memory = play(HISTORIES[draw(st.sampled_from(sorted(HISTORIES)))])
    store = MemoryStore(memory)
    for name in draw(st.lists(st.sampled_from(sorted(MOVES)), max_size=3)):
        memory.clock.now_us += draw(st.integers(0, 2 * LEASE_US))
        command = MOVES[name](hand)
        hand.see(command, store.apply_now(command))
    return hand, memory


def kept(hand: Hand, memory: Memory) -> Record | None:
    """The record as it was written, which may be behind the clock."""
    return memory.records.get(hand.operation_id)


durations = st.integers(0, 3 * REMEMBER_US)
speeches = st.sampled_from(sorted(SPEECHES))


@given(histories(), durations, durations)
def test_settling_does_not_depend_on_how_often_it_is_done(
    history: tuple[Hand, Memory], first: int, second: int
) -> None:
    """Settling on the way changes nothing about where time leads, and settling twice is settling once."""
    record, now_us = kept(*history), history[1].clock()
    direct = settle(record, now_us + first + second)
    assert settle(settle(record, now_us + first), now_us + first + second) == direct
    assert settle(direct, now_us + first + second) is direct


HELD = sorted(
    name for name, moves in HISTORIES.items() if play(moves)[0].snapshot.state in (State.CLAIMED, State.IN_DOUBT)
)


@given(st.sampled_from(HELD), durations)
def test_doubt_outlasts_any_time(name: str, elapsed: int) -> None:
    """A record in doubt is in doubt however late it is, and a claim becomes nothing but doubt."""
    hand, memory = play(HISTORIES[name])
    record, now_us = hand.record, memory.clock() + elapsed
    assert record is not None
    settled = settle(record, now_us)
    if record.state is State.IN_DOUBT or record.lease_until_us > now_us:
        assert settled is record
    else:
        assert settled == replace(record, state=State.IN_DOUBT, doubt=LAPSED_DOUBT)


@given(histories(), speeches, durations)
def test_what_is_not_applied_changes_nothing_but_what_time_did(
    history: tuple[Hand, Memory], name: str, elapsed: int
) -> None:
    """Fenced and lapsed leave the settled record, draw no token, and show the record as it is."""
    hand, memory = history
    record, now_us = kept(hand, memory), memory.clock() + elapsed
    result, after = step(record, SPEECHES[name](hand), now_us, memory.draw_token)
    assert result.snapshot == Snapshot(after, now_us)
    if not isinstance(result, Applied):
        assert after == settle(record, now_us)
        again, _ = step(record, SPEECHES[name](hand), now_us, no_token)
        assert again == result


@given(histories(), speeches, durations)
def test_what_is_applied_is_a_row_of_the_table(history: tuple[Hand, Memory], name: str, elapsed: int) -> None:
    """An applied command either found its row, and the next state is that row's, or had been applied before."""
    hand, memory = history
    command, now_us = SPEECHES[name](hand), memory.clock() + elapsed
    before = settle(kept(hand, memory), now_us)
    result, after = step(before, command, now_us, memory.draw_token)
    if not isinstance(result, Applied) or after is before:
        return
    row = ROWS[Snapshot(before, now_us).state, EVENT_OF[type(command)]]
    assert Snapshot(after, now_us).state is row.next
    if before is not None and row.refused_under_doubt:
        assert not before.carries_doubt
    if after is not None:
        assert after.last_event is row.event
        assert (after.token != (before.token if before else None)) == (row.event in DRAWING)


@given(histories(), durations)
def test_a_repeat_is_recognised_whatever_time_did(history: tuple[Hand, Memory], pause: int) -> None:
    """The last applied command again is applied without effect, unless time took the grant or the whole record."""
    hand, memory = history
    command, now_us = hand.last, memory.clock() + pause
    # A renewal is new each time, and an erased record has nothing to recognise it by.
    if command is None or EVENT_OF[type(command)] in (Event.RENEW, Event.ERASE):
        return
    settled = settle(kept(hand, memory), now_us)
    result, after = step(kept(hand, memory), command, now_us, memory.draw_token if settled is None else no_token)
    if settled is None:
        # Only a new request finds a row.
        assert isinstance(result, Applied) == isinstance(command, Claim | Accept)
        return
    assert after == settled
    is_grant = isinstance(command, ClaimingCommand)
    assert isinstance(result, Lapsed if is_grant and settled.state is not State.CLAIMED else Applied)


@given(st.lists(st.tuples(st.sampled_from(sorted(MOVES | SPEECHES)), st.integers(0, 2 * LEASE_US)), max_size=40))
def test_any_history_keeps_the_invariants(said: list[tuple[str, int]]) -> None:
    """Tokens increase, attempts count up, completed answers stay, doubt ends only by those who may end it."""
    store, hand = MemoryStore(), Hand()
    known: list[Record | None] = [None]
    for name, pause in said:
        store.memory.clock.now_us += pause
        command = (MOVES | SPEECHES)[name](hand)
        before = store.read_now(hand.operation_id).record
        result = store.apply_now(command)
        hand.see(command, result)
        after = result.snapshot.record
        assert_fields_fit(after)
        known.append(after)
        if before is not None and before.state is State.COMPLETED and after is not None:
            assert after.state in (State.COMPLETED, State.TOMBSTONE)
            assert after.response in (before.response, tombstone_response(before.response))
        if before is not None and before.state is State.IN_DOUBT:
            assert after is not None
            if after.state is not State.IN_DOUBT:
                assert ends_doubt(before, command)
            elif before.carries_doubt:
                assert after.carries_doubt
        if before is not None and before.carries_doubt and after is not None and not after.carries_doubt:
            assert EVENT_OF[type(command)] in (Event.COMPLETE, Event.PROVE, Event.DISPROVE, Event.REINSTATE)
    assert increasing(hand.tokens)
    for one, other in pairwise(known):
        if one is not None and other is not None and one.token == other.token:
            assert one.attempt_id == other.attempt_id
            assert one.attempts == other.attempts


def ends_doubt(before: Record, command: Command) -> bool:
    """Whether this command may end the doubt of this record."""
    event, is_kept = EVENT_OF[type(command)], before.delivery is not None
    if event in (Event.RELEASE, Event.FORGET, Event.POSTPONE, Event.BURY):
        return not before.carries_doubt and is_kept == (event in (Event.POSTPONE, Event.BURY))
    return event in (Event.COMPLETE, Event.TAKEOVER, Event.PROVE, Event.DISPROVE) or (
        event is Event.REINSTATE and is_kept
    )


def assert_fields_fit(record: Record | None) -> None:
    """Each field is set where the state gives it a meaning, and not elsewhere."""
    if record is None:
        return
    state = record.state
    is_answered = state in (State.COMPLETED, State.TOMBSTONE)
    assert (record.response is not None) == (record.completed_us is not None) == is_answered
    assert (record.doubt is not None) == (state is State.IN_DOUBT)
    assert (record.replay_until_us > 0) == (state is State.COMPLETED)
    assert (record.remember_until_us > 0) == (state in (State.RELEASED, State.COMPLETED, State.TOMBSTONE))
    # In doubt it stays, because a probe has to know when the last holder stopped.
    assert (record.lease_until_us > 0) == (state in (State.CLAIMED, State.IN_DOUBT))
    if record.delivery is None:
        assert state not in (State.ACCEPTED, State.DEAD_LETTER)
    else:
        assert state in (State.ACCEPTED, State.CLAIMED, State.IN_DOUBT, State.DEAD_LETTER)
        assert (record.delivery.reason is not None) == (state is State.DEAD_LETTER)
    assert not record.carries_doubt or state in (State.CLAIMED, State.IN_DOUBT)
    assert record.first_claimed_us <= record.claimed_us


# Single rules that no general statement says


def applied(memory: Memory, command: Command) -> Record:
    """The record after this command, which the store applies."""
    result = MemoryStore(memory).apply_now(command)
    assert isinstance(result, Applied)
    assert result.snapshot.record is not None
    return result.snapshot.record


def test_a_forgotten_claim_can_be_claimed_by_another_request() -> None:
    """After 401 or 403 the key is nobody's: the next request with the token that was read makes it its own."""
    hand, memory = play(("claim", "forget"))
    assert hand.record is not None
    assert hand.record.fingerprint is None
    assert hand.record.remember_until_us == memory.clock() + FORGOTTEN_REMEMBER_US
    assert applied(memory, replace(hand.retry(), fingerprint=OTHER)).fingerprint == OTHER


def test_a_first_statement_never_claims_what_it_has_not_read() -> None:
    """On a released record a claim without a token is shown the record, even for the same request."""
    hand, memory = play(("claim", "release"))
    result = MemoryStore(memory).apply_now(hand.claim())
    assert isinstance(result, Fenced)
    assert result.snapshot.record == hand.record


def test_a_takeover_keeps_the_request_and_the_beginning() -> None:
    """The new claim carries doubt, has a higher token, and is of the same operation since the same first claim."""
    hand, memory = play(("claim", "abandon"))
    before = hand.record
    assert before is not None
    memory.clock.now_us += 5
    after = applied(memory, hand.takeover())
    assert after.carries_doubt
    assert after.token > before.token
    assert (after.fingerprint, after.first_claimed_us) == (before.fingerprint, before.first_claimed_us)
    assert (after.attempts, after.claimed_us) == (2, memory.clock())


def test_a_retry_keeps_the_fingerprint_and_brings_its_own_probe() -> None:
    """What the request was is said by the first claim, also to one that is the same under another recipe."""
    hand, memory = play(("claim", "release"))
    target = ProbeTarget(b"/another", b"api.test")
    record = applied(memory, replace(hand.retry(), fingerprint=SAME_BY_RAW, probe=target))
    assert (record.fingerprint, record.probe) == (SAME, target)


def test_a_renewal_after_the_lease_is_lapsed_but_not_after_an_abandon() -> None:
    """The holder that lost its lease hears so; one that ended the claim itself is fenced, and so is anybody else."""
    hand, memory = play(("claim", "past-lease"))
    assert isinstance(MemoryStore(memory).apply_now(hand.renew()), Lapsed)
    assert isinstance(MemoryStore(memory).apply_now(replace(hand.renew(), attempt_id=hand.next_id)), Fenced)
    for ended in ("abandon", "release", "complete"):
        hand, memory = play(("claim", ended, "past-lease"))
        assert isinstance(MemoryStore(memory).apply_now(hand.renew()), Fenced)


def claimed(*further: str) -> Record:
    """A record that was claimed."""
    record = play(("claim", *further))[0].record
    assert record is not None
    return record


def test_a_lease_ends_at_its_moment() -> None:
    """At the microsecond at which it ends a lease is over."""
    states = [settle(claimed(), claimed().lease_until_us + moment).state for moment in (-1, 0, 1)]
    assert states == [State.CLAIMED, State.IN_DOUBT, State.IN_DOUBT]


@pytest.mark.parametrize("moment", [-1, 0, 1], ids=["just-before", "exactly-then", "just-after"])
@pytest.mark.parametrize("further", [(), ("abandon",)], ids=["claimed", "in-doubt"])
def test_a_lease_that_begins_in_the_future_begins_now(further: tuple[str, ...], moment: int) -> None:
    """What was claimed later than now, by a clock that was set back since, was claimed now; also what is in doubt."""
    record = claimed(*further)
    now_us = record.lease_until_us - LEASE_US + moment
    after = written_down(record, now_us)
    if moment >= 0:
        assert after is record
        return
    assert after == replace(record, first_claimed_us=now_us, claimed_us=now_us, lease_until_us=now_us + LEASE_US)
    assert written_down(after, now_us) is after


def test_what_was_claimed_before_a_renewal_in_the_future_stays() -> None:
    """Where the clock was ahead for a renewal only, the lease alone is moved."""
    record = replace(claimed(), lease_until_us=claimed().claimed_us + 10 * LEASE_US)
    now_us = record.claimed_us + LEASE_US
    assert written_down(record, now_us) == replace(record, lease_until_us=now_us + LEASE_US)


@given(histories(), durations)
def test_what_is_written_down_is_what_everybody_sees(history: tuple[Hand, Memory], elapsed: int) -> None:
    """By a clock that only went on, a sweep does nothing but settle."""
    record, now_us = kept(*history), history[1].clock() + elapsed
    if record is not None:
        assert written_down(record, now_us) == settle(record, now_us)


def test_a_tombstone_keeps_the_status_and_the_version() -> None:
    """Of an answer nothing else is left."""
    answer = StoredResponse(201, b"Created", ((b"Location", b"/a"), (b"Set-Cookie", b"s")), b"x", b"v")
    assert tombstone_response(answer) == StoredResponse(201, b"", (), None, b"v")
    assert tombstone_response(tombstone_response(answer)) == tombstone_response(answer)
    assert tombstone_response(None) is None
    assert tombstone_response(ANSWER) != ANSWER


def test_a_newer_program_may_tell_more() -> None:
    """Fields behind those that are known are left out."""
    packed = history_with(None, Entry("release", 2, 1, "answered_503", 1, "a", "POST"))
    dropped, entry = json.loads(packed)
    found = unpacked_history(json.dumps([dropped, [*entry, "more"]]).encode())
    assert found.entries == (Entry("release", 2, 1, "answered_503", 1, "a", "POST"),)
    assert unpacked_history(None) == History()


def test_the_oldest_probe_is_dropped_first() -> None:
    """An attempt between probes stays, and so does the last entry, whatever it is."""
    packed = None
    for at in range(HISTORY_FIRST + HISTORY_LAST):
        packed = history_with(packed, Entry("release" if at == HISTORY_FIRST else PROBE, at, 1))
    packed = history_with(packed, Entry("abandon", 99, 1))
    history = unpacked_history(packed)
    stay = [at for at in range(HISTORY_FIRST + HISTORY_LAST) if at != HISTORY_FIRST + 1]
    assert ([each.at_us for each in history.entries], history.dropped) == ([*stay, 99], 1)
    for at in range(2 * HISTORY_LAST):
        packed = history_with(packed, Entry("release", 100 + at, 1))
    events = [each.event for each in unpacked_history(packed).entries]
    assert events == [PROBE] * HISTORY_FIRST + ["release"] * HISTORY_LAST
