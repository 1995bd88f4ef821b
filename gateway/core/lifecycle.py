"""The life of an operation, as one table.

Every change of state in the product is a row of `TABLE`; nothing else may write one. The stores *execute* it under
their locks; the hot rows that a store has in SQL of its own are tested against this file, case by case; the diagram in
docs/how-it-works.md is drawn from it. This file knows neither stores nor HTTP, nor who sends a command and why.

Theory of operation
-------------------
A record is read *settled*: the rows whose fence is the clock are applied first, to a fixed point (`settle`). So a
lapsed lease or an expired response is visible to all readers at the moment it is due, whether or not a sweep has
written it.

A command then either finds its row or it does not (`step`). It finds none when the state has no such event, when its
fence does not fit, or when the claim carries doubt and the row would claim that nothing happened. Then nothing changes
and the result is `Fenced`, with the record as it is.

The result of a command can be lost, so each command may be retried: if the last event of the record is this one by this
attempt, the result is `Applied` and nothing is done twice. The clock's rows do not set the last event, so a retry that
comes after a lease or a window ended is still recognised; a retried claim whose lease is over is `Lapsed`, because it
no longer permits anything.

Doubt accumulates over attempts. A takeover carries the doubt of the attempts before it, and while it does none of
`release`, `forget`, `postpone` and `bury` has a row: one attempt without effect proves nothing about the earlier ones.
The clock never ends `in_doubt`.

A record *keeps* its request (`Record.delivery`) from `accept` until the operation is completed, or somebody says that
it is not to be delivered. `accepted` and `dead_letter` mean that no attempt can have an effect any more. So what is
kept returns to `accepted` only by what is known: by its holder (`postpone`), or by one who found that nothing happened
(`reinstate`). A lapsed attempt may have had an effect, and goes to `in_doubt` like any other.

Operations of one *lane* are delivered in the order of their acceptance, one at a time. The table sees one record, so
whether another one goes first (`Delivery.is_behind`) is kept by the store, in the change that decides it
(`core.delivery`). A record that enters the line here is behind until the store finds that it is the first. `dispatch`
has no row for one that is behind. A takeover needs no such condition: what is in doubt is the first of its lane.

A claim or an acceptance may hold the *content* of its request, so that another operation with the same content is not
executed as well. That is no state: the store keeps which operations claimed a content, and whether one of them holds it
follows from its record. It does while it may still have its effect, as a dead letter may, and for some time after it
completed. So whatever ends an operation without an effect frees its content, and a retry under its own key holds it
again.

A store's clock may be set back. Then what was written before lies ahead: it began, by that clock, at a time that is yet
to come. No wait is lengthened by that. A lease that begins in the future begins now, which a sweep writes
(`written_down`): its holder, if it lives, was granted no more. A pause that begins in the future is over (`is_due`):
what it holds back had no effect. Neither is a row: the state stays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from operator import attrgetter
from typing import Any, Final, assert_never
from uuid import UUID

from gateway.core.message import StoredResponse
from gateway.core.operation import (
    EVENT_OF,
    MICROSECONDS,
    Abandon,
    Accept,
    Applied,
    Bury,
    Claim,
    ClaimingCommand,
    Command,
    Complete,
    Delivery,
    Dispatch,
    Disprove,
    Entry,
    Erase,
    Event,
    Fenced,
    Forget,
    HolderCommand,
    Lapsed,
    OutcomeCommand,
    Postpone,
    Prove,
    Purge,
    Record,
    Reinstate,
    Release,
    Renew,
    Requeue,
    ResolvingCommand,
    Result,
    Snapshot,
    State,
    Takeover,
    Withdraw,
    audit_of,
    delivery_of,
    history_with,
    in_doubt_since_us,
)

# How long a forgotten claim is remembered: long enough to fence its late holder, too short to fill a store with.
FORGOTTEN_REMEMBER_US: Final = 3600 * MICROSECONDS

# The longest lease that a configuration may ask for.
LEASE_US_MAX: Final = 600 * MICROSECONDS

# A clock that is set back by no more than this, as time servers do, shortens no pause.
STEP_US: Final = MICROSECONDS

# The doubt of a record whose lease, or whose holder, ended without a report. Recovery depends on it: no holder uses it;
# whoever knows that the holder has ended does.
LAPSED_DOUBT: Final = "lapsed"

# Why a kept request that was not delivered in time is a dead letter.
DEADLINE: Final = "deadline"


class Fence(StrEnum):
    NONE = "none"
    HOLDER = "holder"  # token and attempt id are the record's
    READ_TOKEN = "read_token"  # the token is the one that was read
    OPERATOR = "operator"  # nothing: an operator decided it
    CLOCK = "clock"  # a time of the record has passed; there is no command


# Hot. Before Python 3.12, access to a member through its class takes ten times as long.
_ABSENT: Final = State.ABSENT
_CLAIMED: Final = State.CLAIMED
# The commands of a new request.
_NEW: Final = (Claim, Accept)
# Those that change what a record tells of an attempt that ended, or of a decision, in a way that `history` keeps.
_TOLD: Final = frozenset(
    (Accept, Release, Forget, Abandon, Postpone, Bury, Disprove, Reinstate, Requeue, Withdraw),
)
_Draw = Callable[[], int]


@dataclass(frozen=True, slots=True)
class Row:
    """One change of state.

    `refused_under_doubt` marks the rows that a claim carrying doubt does not have, `same_fingerprint` those that need
    an equal request, `when_due` those that wait for the time of the next attempt and for the turn in the lane.
    `last_event`, where set, is what the record's last event must be; `kept`, where set, whether its request must be
    kept.
    """

    states: tuple[State, ...]
    event: Event
    next: State
    fence: Fence
    meaning: str
    refused_under_doubt: bool = False
    same_fingerprint: bool = False
    last_event: Event | None = None
    kept: bool | None = None
    when_due: bool = False
    has_conditions: bool = field(init=False)

    def __post_init__(self) -> None:
        conditions = self.refused_under_doubt, self.same_fingerprint, self.last_event, self.when_due
        object.__setattr__(self, "has_conditions", any(conditions) or self.kept is not None)


_S, _E, _F = State, Event, Fence

TABLE: Final[tuple[Row, ...]] = (
    Row((_S.ABSENT,), _E.CLAIM, _S.CLAIMED, _F.NONE, "the first request with this key"),
    Row((_S.RELEASED,), _E.CLAIM, _S.CLAIMED, _F.READ_TOKEN, "the retry", same_fingerprint=True),
    Row((_S.RELEASED,), _E.COMPLETE, _S.COMPLETED, _F.HOLDER, "the last holder's response came after a disprove",
        last_event=_E.DISPROVE),
    Row((_S.ABSENT,), _E.ACCEPT, _S.ACCEPTED, _F.NONE, "the request is kept, to be delivered later"),
    Row((_S.RELEASED,), _E.ACCEPT, _S.ACCEPTED, _F.READ_TOKEN, "the retry, to be delivered later",
        same_fingerprint=True),
    Row((_S.ACCEPTED,), _E.DISPATCH, _S.CLAIMED, _F.READ_TOKEN, "its next attempt is due", when_due=True),
    Row((_S.CLAIMED,), _E.RENEW, _S.CLAIMED, _F.HOLDER, "the holder is alive"),
    Row((_S.CLAIMED,), _E.COMPLETE, _S.COMPLETED, _F.HOLDER, "a final response was recorded"),
    Row((_S.CLAIMED,), _E.RELEASE, _S.RELEASED, _F.HOLDER, "known to have had no effect", refused_under_doubt=True,
        kept=False),
    Row((_S.CLAIMED, _S.IN_DOUBT), _E.FORGET, _S.RELEASED, _F.HOLDER, "a first attempt got 401 or 403",
        refused_under_doubt=True, kept=False),
    Row((_S.CLAIMED, _S.IN_DOUBT), _E.POSTPONE, _S.ACCEPTED, _F.HOLDER,
        "known to have had no effect, to be sent again later", refused_under_doubt=True, kept=True),
    Row((_S.CLAIMED, _S.IN_DOUBT), _E.BURY, _S.DEAD_LETTER, _F.HOLDER,
        "known to have had no effect, not to be sent again by itself", refused_under_doubt=True, kept=True),
    Row((_S.CLAIMED,), _E.ABANDON, _S.IN_DOUBT, _F.HOLDER, "something was sent, and its effect is not known"),
    Row((_S.CLAIMED,), _E.LAPSE, _S.IN_DOUBT, _F.CLOCK, "the holder died or was cut off"),
    Row((_S.IN_DOUBT,), _E.COMPLETE, _S.COMPLETED, _F.HOLDER, "the last holder's response came late"),
    Row((_S.IN_DOUBT,), _E.RELEASE, _S.RELEASED, _F.HOLDER, "the last holder knows that nothing happened",
        refused_under_doubt=True, kept=False),
    Row((_S.IN_DOUBT,), _E.ABANDON, _S.IN_DOUBT, _F.HOLDER, "the last holder does not know either"),
    Row((_S.IN_DOUBT,), _E.TAKEOVER, _S.CLAIMED, _F.READ_TOKEN, "the upstream deduplicates: sent again, doubt carried"),
    Row((_S.IN_DOUBT,), _E.PROVE, _S.COMPLETED, _F.READ_TOKEN, "a probe or an operator found what happened"),
    Row((_S.IN_DOUBT,), _E.DISPROVE, _S.RELEASED, _F.READ_TOKEN, "a probe or an operator found that nothing happened"),
    Row((_S.IN_DOUBT,), _E.REINSTATE, _S.ACCEPTED, _F.READ_TOKEN,
        "nothing happened, and the request is to be delivered", kept=True),
    Row((_S.ACCEPTED, _S.DEAD_LETTER), _E.COMPLETE, _S.COMPLETED, _F.HOLDER,
        "the last holder's response came after a reinstate", last_event=_E.REINSTATE),
    Row((_S.ACCEPTED,), _E.EXPIRE, _S.DEAD_LETTER, _F.CLOCK, "it was not delivered in time"),
    Row((_S.DEAD_LETTER,), _E.REQUEUE, _S.ACCEPTED, _F.READ_TOKEN, "it is to be delivered after all"),
    Row((_S.ACCEPTED, _S.DEAD_LETTER), _E.WITHDRAW, _S.RELEASED, _F.READ_TOKEN, "it is called off"),
    Row((_S.COMPLETED,), _E.RETIRE, _S.TOMBSTONE, _F.CLOCK, "the replay window is over"),
    Row((_S.COMPLETED,), _E.PURGE, _S.TOMBSTONE, _F.OPERATOR, "an operator dropped the response"),
    Row((_S.RELEASED, _S.TOMBSTONE), _E.COLLECT, _S.ABSENT, _F.CLOCK, "the key is no longer remembered"),
    Row((_S.RELEASED, _S.TOMBSTONE), _E.ERASE, _S.ABSENT, _F.OPERATOR, "an operator forgot the key"),
)  # fmt: skip

ROWS: Final[dict[tuple[State, Event], Row]] = {(state, row.event): row for row in TABLE for state in row.states}


# Which time each row of the clock waits for, by event and by the state that the row ends: a field of the record or, of
# what is accepted, of its delivery.
_TIME_OF: Final = {
    _E.LAPSE: "lease_until_us",
    _E.EXPIRE: "deliver_until_us",
    _E.RETIRE: "replay_until_us",
    _E.COLLECT: "remember_until_us",
}
CLOCK_ROWS: Final[dict[State, Row]] = {state: row for row in TABLE if row.fence is _F.CLOCK for state in row.states}
DUE_TIMES: Final[dict[State, str]] = {state: _TIME_OF[row.event] for state, row in CLOCK_ROWS.items()}
_DUE: Final[dict[State, Callable[[Record], int]]] = {
    state: attrgetter(f"delivery.{time}" if state is _S.ACCEPTED else time) for state, time in DUE_TIMES.items()
}


def settle(record: Record | None, now_us: int) -> Record | None:
    """The record as it is at `now_us` of the store's clock: the clock's rows applied until none is due."""
    while record is not None and (due := _DUE.get(record.state)) is not None and due(record) <= now_us:
        record = _after_time(record)
    return record


def due_us(record: Record) -> int | None:
    """When the clock's next row is due; None where time changes nothing."""
    due = _DUE.get(record.state)
    return None if due is None else due(record)


def leading_to(states: frozenset[State]) -> frozenset[State]:
    """The stored states of records that settle, by the clock alone, into one of `states`."""
    before = frozenset(state for state, row in CLOCK_ROWS.items() if row.next in states)
    return before | leading_to(before) if before else before


def _after_time(record: Record) -> Record | None:
    row = CLOCK_ROWS[record.state]
    if row.next is State.IN_DOUBT:
        history = history_with(record.history, _end_of(record, row.event, record.lease_until_us, ""))
        return replace(record, state=row.next, doubt=LAPSED_DOUBT, history=history)
    if row.next is State.TOMBSTONE:
        return replace(record, state=row.next, response=tombstone_response(record.response), replay_until_us=0)
    if row.next is State.DEAD_LETTER:
        kept = delivery_of(record)
        return replace(
            record,
            state=row.next,
            delivery=replace(kept, since_us=kept.deliver_until_us, reason=DEADLINE),
            history=history_with(record.history, Entry(row.event, kept.deliver_until_us, record.token)),
        )
    return None


def written_down(record: Record, now_us: int) -> Record | None:
    """What a sweep at `now_us` writes: the settled record. A lease that begins in the future begins now.

    Also of one that is over: recovery counts from its end.
    """
    settled = settle(record, now_us)
    if settled is None or settled.lease_until_us <= now_us + settled.lease_us:
        return settled
    return replace(
        settled,
        first_claimed_us=min(settled.first_claimed_us, now_us),
        claimed_us=min(settled.claimed_us, now_us),
        lease_until_us=now_us + settled.lease_us,
        carried_us=None if settled.carried_us is None else min(settled.carried_us, now_us),
    )


def is_due(record: Record, now_us: int) -> bool:
    """Whether the next attempt of an accepted record may start, its turn in the lane aside."""
    kept = delivery_of(record)
    return kept.next_attempt_us <= now_us or max(kept.since_us, record.claimed_us) > now_us + STEP_US


def tombstone_response(response: StoredResponse | None) -> StoredResponse | None:
    """What a tombstone keeps of a response: its status and the version that it was in."""
    return None if response is None else response.status_alone


def step(
    record: Record | None,
    command: Command,
    now_us: int,
    draw_token: _Draw,
    content_holder: UUID | None = None,
) -> tuple[Result, Record | None]:
    """Execute one command on one record at `now_us`: the result, and the record to keep.

    `draw_token` is called at most once, only when a claim is granted or a request accepted; it must return a number
    higher than any before. `content_holder` is another operation that holds the command's content.
    """
    kind = type(command)
    event = EVENT_OF[kind]
    # A claim in force is settled.
    if record is not None and (record.state is not _CLAIMED or record.lease_until_us <= now_us):
        record = settle(record, now_us)
    if record is None:
        row = ROWS.get((_ABSENT, event))
    else:
        if record.last_event is event and _is_repeat(record, command):
            is_over = isinstance(command, ClaimingCommand) and record.state is not _CLAIMED
            return (Lapsed if is_over else Applied)(Snapshot(record, now_us)), record
        row = ROWS.get((record.state, event))
        if row is not None and not _PASSES[row.fence](record, command):
            row = None
        if row is not None and row.has_conditions and not _fits(row, record, command, now_us):
            row = None
    if row is None:
        is_over = isinstance(command, Renew) and record is not None and _lapsed_under(record, command)
        return (Lapsed if is_over else Fenced)(Snapshot(record, now_us)), record
    if content_holder is not None and kind in _NEW:
        return Fenced(Snapshot(record, now_us), content_holder), record
    after = _AFTER[kind](row, record, command, now_us, draw_token)
    if kind in _TOLD and record is not None and after is not None and audit_of(command) is None:
        after = replace(after, history=history_with(record.history, _entry_of(record, command, after, now_us)))
    return Applied(Snapshot(after, now_us)), after


def _entry_of(before: Record, command: Command, after: Record, now_us: int) -> Entry:
    """What a change is told by in the history."""
    event = EVENT_OF[type(command)]
    match command:
        case Release(why=why) | Forget(why=why) | Abandon(doubt=why) | Postpone(failure=why):
            return _end_of(before, event, now_us, why)
        case Bury(reason=reason, failure=failure):
            return _end_of(before, event, now_us, failure if failure == reason else f"{reason}; {failure}")
        case _:
            return Entry(event, now_us, after.token)


def _end_of(record: Record, event: Event, at_us: int, detail: str) -> Entry:
    """That the last attempt of the record ended so."""
    method = "" if record.request is None else record.request.method
    return Entry(event, at_us, record.token, detail, record.claimed_us, record.holder, method)


def no_token() -> int:
    """As `draw_token`, for commands that neither claim nor accept."""
    raise AssertionError("only a claim or an acceptance draws a token")


def _is_repeat(record: Record, command: Command) -> bool:
    """Whether this very command made the record, whose last event is its."""
    if isinstance(command, ResolvingCommand):
        return (record.token, record.resolution_id) == (command.read_token, command.resolution_id)
    if isinstance(command, OutcomeCommand):
        return _is_holder(record, command)
    if isinstance(command, Purge):
        return record.state is State.TOMBSTONE
    return not isinstance(command, Renew | Erase) and record.attempt_id == command.attempt_id


def _lapsed_under(record: Record, command: Renew) -> bool:
    return _is_holder(record, command) and record.state is State.IN_DOUBT and record.last_event is not Event.ABANDON


def _fits(row: Row, record: Record, command: Command, now_us: int) -> bool:
    if (row.refused_under_doubt and record.carries_doubt) or row.last_event not in (None, record.last_event):
        return False
    if row.kept is not None and row.kept is not (record.delivery is not None):
        return False
    if row.when_due and (delivery_of(record).is_behind or not is_due(record, now_us)):
        return False
    if not row.same_fingerprint:
        return True
    recorded = record.fingerprint
    return isinstance(command, _NEW) and (recorded is None or recorded.equals(command.fingerprint) is True)


def _is_holder(record: Record, command: HolderCommand) -> bool:
    # A tombstone need not keep the attempt id. No other attempt had its token.
    is_attempt = record.attempt_id == command.attempt_id or record.state is State.TOMBSTONE
    return record.token == command.token and is_attempt


_PASSES: Final[dict[Fence, Callable[[Record, Any], bool]]] = {
    Fence.NONE: lambda record, command: True,
    Fence.HOLDER: _is_holder,
    Fence.READ_TOKEN: lambda record, command: record.token == command.read_token,
    Fence.OPERATOR: lambda record, command: True,
}


# What a record becomes, by command. `draw` is `draw_token`.


def _renewed(row: Row, record: Record, command: Renew, now_us: int, draw: _Draw) -> Record:
    lease_us = command.lease_us
    return replace(record, state=row.next, last_event=row.event, lease_until_us=now_us + lease_us, lease_us=lease_us)


def _abandoned(row: Row, record: Record, command: Abandon, now_us: int, draw: _Draw) -> Record:
    # The attempt has ended, which ends its lease: the doubt begins there, and recovery counts from there.
    return replace(
        record,
        state=row.next,
        last_event=row.event,
        doubt=command.doubt,
        resource=command.resource or record.resource,
        lease_until_us=min(record.lease_until_us, now_us),
    )


def _purged(row: Row, record: Record, command: Purge, now_us: int, draw: _Draw) -> Record:
    response = tombstone_response(record.response)
    return replace(record, state=row.next, last_event=row.event, replay_until_us=0, response=response)


def _without_effect(row: Row, record: Record) -> Record:
    """No attempt had an effect, so nothing that was found of one stays."""
    return replace(
        record,
        state=row.next,
        last_event=row.event,
        carried_us=None,
        lease_until_us=0,
        lease_us=0,
        resource=None,
        doubt=None,
    )


def _released(
    row: Row, record: Record, command: Release | Disprove | Withdraw | Forget, now_us: int, draw: _Draw
) -> Record:
    is_forgotten, remember_us = True, FORGOTTEN_REMEMBER_US
    if not isinstance(command, Forget):
        is_forgotten, remember_us = False, command.remember_us
    return replace(
        _without_effect(row, record),
        fingerprint=None if is_forgotten else record.fingerprint,
        remember_until_us=now_us + remember_us,
        resolution_id=command.resolution_id if isinstance(command, Disprove | Withdraw) else None,
        delivery=None,
    )


def _accepted(row: Row, record: Record | None, command: Accept, now_us: int, draw: _Draw) -> Record:
    token = draw()
    delivery = Delivery(
        command.service,
        command.attempt_id,
        accepted_us=now_us,
        since_us=now_us,
        next_attempt_us=now_us,
        deliver_until_us=now_us + command.deliver_within_us,
        request_bytes=len(command.kept.sealed),
        lane=command.lane,
        lane_number=0 if command.lane is None else token,
        stops_lane=command.stops_lane,
        is_behind=command.lane is not None,
    )
    return Record(
        command.identity if record is None else record.identity,
        row.next,
        token,
        command.attempt_id,
        row.event,
        holder="",
        carried_us=None,
        fingerprint=command.fingerprint if record is None or record.fingerprint is None else record.fingerprint,
        attempts=0 if record is None else record.attempts,
        first_claimed_us=now_us if record is None else record.first_claimed_us,
        claimed_us=now_us,
        probe=command.probe,
        request=command.request,
        delivery=delivery,
    )


def _undelivered(
    row: Row, record: Record, command: Postpone | Bury | Reinstate | Requeue, now_us: int, draw: _Draw
) -> Record:
    kept = delivery_of(record)
    match command:
        case Postpone():
            delivery = replace(
                kept,
                next_attempt_us=now_us + command.pause_us,
                answers=kept.answers + command.is_answered,
                failure=command.failure,
            )
        case Bury():
            delivery = replace(
                kept,
                since_us=now_us,
                answers=kept.answers + command.is_answered,
                failure=command.failure,
                reason=command.reason,
            )
        case Reinstate():
            delivery = replace(kept, next_attempt_us=now_us)
        case Requeue():
            delivery = replace(
                kept,
                since_us=now_us,
                next_attempt_us=now_us,
                deliver_until_us=now_us + command.deliver_within_us,
                answers=0,
                reason=None,
            )
        case _:
            assert_never(command)
    return replace(
        _without_effect(row, record),
        resolution_id=command.resolution_id if isinstance(command, Reinstate | Requeue) else record.resolution_id,
        delivery=replace(delivery, is_behind=delivery.lane is not None),
    )


# The next two run for every new key: by position, because `replace` is slow.


def _claimed(row: Row, record: Record | None, claim: Claim, now_us: int, draw: _Draw) -> Record:
    if record is not None:
        return _claimed_again(row, record, claim, now_us, draw)
    return Record(
        claim.identity,
        row.next,
        draw(),
        claim.attempt_id,
        row.event,
        claim.holder,
        None,  # carried_us
        claim.fingerprint,
        1,  # attempts
        now_us,  # first_claimed_us
        now_us,  # claimed_us
        now_us + claim.lease_us,
        probe=claim.probe,
        request=claim.request,
        lease_us=claim.lease_us,
    )


def _completed(row: Row, record: Record, command: Complete | Prove, now_us: int, draw: _Draw) -> Record:
    return Record(
        record.identity,
        row.next,
        record.token,
        record.attempt_id,
        row.event,
        record.holder,
        None,  # carried_us
        record.fingerprint,
        record.attempts,
        record.first_claimed_us,
        record.claimed_us,
        0,  # lease_until_us
        now_us + command.replay_us,
        now_us + command.remember_us,
        now_us,  # completed_us
        None,  # doubt
        command.resolution_id if isinstance(command, Prove) else None,
        command.response,
        command.resource or record.resource,
        record.probe,
        record.request,
        history=record.history,
    )


def _claimed_again(row: Row, record: Record, command: ClaimingCommand, now_us: int, draw: _Draw) -> Record:
    fingerprint = record.fingerprint
    if isinstance(command, Claim) and fingerprint is None:
        fingerprint = command.fingerprint
    delivery = record.delivery
    if delivery is not None and isinstance(command, Takeover):
        delivery = replace(delivery, answers=delivery.answers + 1)
    if delivery is not None and (ahead_us := delivery.since_us - now_us) > 0:
        # The clock was set back since the acceptance, which leaves no more time than there was.
        delivery = replace(delivery, since_us=now_us, deliver_until_us=delivery.deliver_until_us - ahead_us)
    return replace(
        record,
        state=row.next,
        last_event=row.event,
        token=draw(),
        attempt_id=command.attempt_id,
        holder=command.holder,
        carried_us=min(in_doubt_since_us(record), now_us) if isinstance(command, Takeover) else None,
        fingerprint=fingerprint,
        attempts=record.attempts + 1,
        probe=command.probe if isinstance(command, Claim) else record.probe,
        request=record.request if isinstance(command, Dispatch) else command.request,
        claimed_us=now_us,
        lease_until_us=now_us + command.lease_us,
        lease_us=command.lease_us,
        remember_until_us=0,
        doubt=None,
        resolution_id=None,
        delivery=delivery,
    )


_AFTER: Final[dict[type[Command], Callable[[Row, Any, Any, int, _Draw], Record | None]]] = {
    Claim: _claimed,
    Accept: _accepted,
    Dispatch: _claimed_again,
    Takeover: _claimed_again,
    Renew: _renewed,
    Complete: _completed,
    Prove: _completed,
    Release: _released,
    Forget: _released,
    Disprove: _released,
    Withdraw: _released,
    Abandon: _abandoned,
    Postpone: _undelivered,
    Bury: _undelivered,
    Reinstate: _undelivered,
    Requeue: _undelivered,
    Purge: _purged,
    Erase: lambda row, record, command, now_us, draw: None,
}
