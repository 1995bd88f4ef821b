"""The table as a whole, and what `settle` and `step` promise of any record at any time."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.lifecycle import LAPSED_DOUBT, ROWS, TABLE, Fence, settle, step, tombstone_response
from gateway.core.operation import (
    EVENT_OF,
    Accept,
    Applied,
    Claim,
    ClaimingCommand,
    Command,
    Entry,
    Event,
    History,
    Lapsed,
    Record,
    Snapshot,
    State,
    history_with,
    unpacked_history,
)
from tests.conformance.cases import HISTORIES, MOVES, SPEECHES, play
from tests.conformance.hand import LEASE_US, REMEMBER_US, Hand, increasing
from tests.support.memory_store import Memory, MemoryStore

# The events that draw a token.
DRAWING = {Event.CLAIM, Event.ACCEPT, Event.DISPATCH, Event.TAKEOVER}
TIME_EVENTS = {row.event for row in TABLE if row.fence is Fence.CLOCK}


def no_token() -> int:
    raise AssertionError("a token was drawn where nothing is granted")


# The table


def test_every_state_can_be_left_but_by_time_alone_never_from_doubt() -> None:
    """From doubt nothing leads away by itself: no clock, no purge, no erasing."""
    events = {event for state, event in ROWS if state is State.IN_DOUBT}
    assert events == {
        Event.COMPLETE, Event.RELEASE, Event.FORGET, Event.ABANDON, Event.TAKEOVER, Event.PROVE, Event.DISPROVE,
        Event.POSTPONE, Event.BURY, Event.REINSTATE,
    }  # fmt: skip
    assert not events & TIME_EVENTS


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


# Single rules that no general statement says


def test_a_lease_ends_at_its_moment() -> None:
    """At the microsecond at which it ends a lease is over."""
    record = play(("claim",))[0].record
    assert record is not None
    states = [settle(record, record.lease_until_us + moment).state for moment in (-1, 0, 1)]
    assert states == [State.CLAIMED, State.IN_DOUBT, State.IN_DOUBT]


def test_a_newer_program_may_tell_more() -> None:
    """Fields behind those that are known are left out."""
    packed = history_with(None, Entry("release", 2, 1, "answered_503", 1, "a", "POST"))
    dropped, entry = json.loads(packed)
    found = unpacked_history(json.dumps([dropped, [*entry, "more"]]).encode())
    assert found.entries == (Entry("release", 2, 1, "answered_503", 1, "a", "POST"),)
    assert unpacked_history(None) == History()
