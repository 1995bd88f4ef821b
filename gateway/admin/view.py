"""What is shown of an operation, as plain values, for the console and the admin API.

Never the scope, never a body, and the key only if the store has it in clear. Times are the store's, in UTC; ages are
relative to the store's clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, assert_never
from uuid import UUID

from gateway.core.delivery import ATTEMPTS_EXHAUSTED, UNAUTHORIZED, UNREADABLE
from gateway.core.history import FIRST, PROBE, Entry, unpacked
from gateway.core.lifecycle import DEADLINE, LAPSED_DOUBT
from gateway.core.message import StoredResponse
from gateway.core.operation import (
    MICROSECONDS,
    NO_ATTEMPT,
    Delivery,
    Event,
    Record,
    Snapshot,
    State,
    delivery_of,
    in_doubt_since_us,
)
from gateway.core.recovery import doubted_status
from gateway.store.operations import AuditEntry

_UNITS: Final = (("d", 86_400), ("h", 3_600), ("m", 60))


def moment(at_us: int) -> str:
    """A store's time in RFC 3339, to the second."""
    return datetime.fromtimestamp(at_us // MICROSECONDS, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def span(duration_us: int) -> str:
    """A duration in its two largest units: `3d 4h`, `12m 5s`, `0s`."""
    seconds = max(0, duration_us) // MICROSECONDS
    parts: list[str] = []
    for unit, factor in _UNITS:
        if seconds >= factor or parts:
            parts.append(f"{seconds // factor}{unit}")
            seconds %= factor
    parts.append(f"{seconds}s")
    return " ".join(part for part in parts[:2] if part[0] != "0" or len(parts) == 1)


def ago(at_us: int, now_us: int) -> str:
    return f"{span(now_us - at_us)} ago" if at_us <= now_us else f"in {span(at_us - now_us)}"


_REASONS: Final[Mapping[str, str]] = {
    LAPSED_DOUBT: "its gateway is gone, or lost its lease",
    "interrupted": "its gateway was stopped",
    "timeout": "the service did not respond in time",
    "reset": "the connection to the service broke",
    "closed": "the service closed the connection before it responded",
    "truncated": "the response was cut short",
    "malformed": "the response was not HTTP",
    "headers_too_long": "the head of the response was too long",
    "interim_flood": "the service sent too many interim responses",
    "request_aborted": "the request could not be sent whole",
    "aborted": "the attempt was given up",
    UNAUTHORIZED: "the service refused its credentials",
    ATTEMPTS_EXHAUSTED: "the service refused it too often",
    UNREADABLE: "its kept request cannot be decrypted",
    DEADLINE: "it was not delivered in time",
}
_AFTER: Final = re.compile(r"(?P<how>\w+)_after_(?P<status>[0-9]{3})|answered_(?P<answered>[0-9]{3})")


def doubt_text(reason: str) -> str:
    """Why an operation is in doubt, a dead letter, or was put off, in words; as it is where there are none."""
    if (found := _AFTER.fullmatch(reason)) is None:
        return _REASONS.get(reason, reason)
    if found["answered"] is not None:
        return f"the service answered {found['answered']}"
    return f"{_REASONS.get(found['how'], found['how'])}, after status {found['status']}"


def printable(text: str) -> str:
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def present(about: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in about.items() if value is not None}


def described(snapshot: Snapshot, *, has_body: bool) -> dict[str, Any]:
    """An operation as JSON values. `has_body`: the snapshot was read with its body, if there is one."""
    record, now_us = snapshot.record, snapshot.now_us
    if record is None:
        return {"state": State.ABSENT.value, "now": moment(now_us)}
    identity, request, is_reduced = record.identity, record.request, record.attempt_id == NO_ATTEMPT
    about: dict[str, Any] = {
        "operation_id": str(identity.operation_id),
        "route": identity.route,
        "operation": identity.operation,
        "key": identity.key,
        "state": record.state.value,
        "token": record.token,
        "attempts": record.attempts,
        "attempt_id": None if is_reduced else str(record.attempt_id),
        "holder": None if is_reduced else record.holder,
        "last_event": record.last_event.value,
        "doubt": record.doubt,
        "upstream_status": doubted_status(record.doubt),
        "request": None if request is None else present({**asdict(request), "host": request.host or None}),
        "carries_doubt": record.carries_doubt,
        "resource": record.resource,
        "age_seconds": (now_us - record.first_claimed_us) // MICROSECONDS,
        **{name: moment(at_us) for name, at_us in times_of(record)},
        "delivery": None if record.delivery is None else _delivery(record.delivery),
        "response": None if record.response is None else _response(record.response, record.state, has_body=has_body),
        "now": moment(now_us),
    }
    return present(about)


def _delivery(delivery: Delivery) -> dict[str, Any]:
    """What is known of a kept request. Its content is encrypted, and not even its headers are known here."""
    about = {
        "answers": delivery.answers,
        "failure": delivery.failure,
        "reason": delivery.reason,
        "request_bytes": delivery.request_bytes,
        "lane": None if delivery.lane is None else delivery.lane.hex(),
        "lane_number": delivery.lane_number or None,
        "waits_for_lane": delivery.is_behind or None,
    }
    return present(about)


def times_of(record: Record) -> list[tuple[str, int]]:
    """The times that are meaningful in the record's state."""
    delivery, state = record.delivery, record.state
    is_dead, since_us = state is State.DEAD_LETTER, 0 if delivery is None else delivery.since_us
    times: list[tuple[str, int | None]] = []
    if delivery is not None:
        times = [
            ("accepted_at", delivery.accepted_us),
            ("claimed_at", record.claimed_us if record.attempts else None),
            ("dead_since", since_us if is_dead else None),
            ("requeued_at", None if is_dead or since_us == delivery.accepted_us else since_us),
            ("next_attempt_at", delivery.next_attempt_us if state is State.ACCEPTED else None),
            ("deliver_until", delivery.deliver_until_us),
        ]
    elif record.attempt_id != NO_ATTEMPT:
        is_first = record.claimed_us == record.first_claimed_us
        times = [("first_claimed_at", record.first_claimed_us), ("claimed_at", None if is_first else record.claimed_us)]
    is_ended = state in (State.COMPLETED, State.RELEASED, State.TOMBSTONE)
    times += [
        ("completed_at", record.completed_us),
        ("lease_until", record.lease_until_us if state is State.CLAIMED else None),
        ("in_doubt_since", in_doubt_since_us(record) if state is State.IN_DOUBT else None),
        ("replay_until", record.replay_until_us if state is State.COMPLETED else None),
        ("remember_until", record.remember_until_us if is_ended else None),
    ]
    return [(name, at_us) for name, at_us in times if at_us is not None]


def since_us(record: Record) -> int:
    """When its doubt began, or a dead letter was given up; otherwise when its last attempt began, or its acceptance."""
    if record.state is State.IN_DOUBT:
        return in_doubt_since_us(record)
    if record.delivery is None or (record.attempts and record.state is not State.DEAD_LETTER):
        return record.claimed_us
    return record.delivery.since_us


def advice(operation_id: UUID, snapshot: Snapshot, settle_us: int | None, *, is_page: bool = False) -> str:
    """What to do next. `settle_us` is the route's, None where the operation is not remembered. `is_page`: the reader
    has a page with buttons before them, and not a terminal; here and below."""
    record, now_us = snapshot.record, snapshot.now_us
    if record is None:
        return (
            "Nothing is remembered: a request with this key runs. If that is not what you expect, check the id, the "
            "route, the headers and the store."
        )
    match record.state:
        case State.CLAIMED:
            left = span(record.lease_until_us - now_us)
            doing = "executing" if record.delivery is None else "delivering"
            return (
                f"Wait: {record.holder} is {doing} it. If its lease ends unrenewed, in {left}, the operation is in "
                "doubt."
            )
        case State.IN_DOUBT:
            return _advice_on_doubt(operation_id, record, now_us, settle_us or 0, is_page=is_page)
        case State.ACCEPTED:
            return _advice_on_accepted(operation_id, record, now_us, is_page=is_page)
        case State.DEAD_LETTER:
            return _advice_on_dead_letter(operation_id, record, now_us, is_page=is_page)
        case State.COMPLETED:
            return f"Nothing. Repeats get the recorded response for {span(record.replay_until_us - now_us)} more."
        case State.RELEASED:
            return "Nothing. It is known that nothing happened: the next request with this key runs."
        case State.TOMBSTONE:
            left = span(record.remember_until_us - now_us)
            return f"Nothing. The response is no longer kept, and the key does not run again for {left}."
        case State.ABSENT:
            raise ValueError("a record is never in the state absent")
        case _:
            assert_never(record.state)


def foreign(*, is_page: bool = False) -> str:
    """What to do about an operation of another service."""
    where = "See that service's console" if is_page else "Give the command with that service's configuration"
    return f"It is an operation of another service that shares the store. {where}."


def _to_call_it_off(operation_id: UUID, *, is_page: bool) -> str:
    return "To call it off, withdraw it." if is_page else f"To call it off: withdraw {operation_id} --why TEXT."


def _advice_on_doubt(operation_id: UUID, record: Record, now_us: int, settle_us: int, *, is_page: bool) -> str:
    settled_us = record.lease_until_us + settle_us
    when = f", from {moment(settled_us)} on ({ago(settled_us, now_us)})" if settled_us > now_us else ""
    first = ""
    if record.doubt == LAPSED_DOUBT:
        first = f"First make sure that {record.holder} is running, or gone for good: it may still have the response. "
    asked = f"{first}Find out at the service what happened; it was sent Idempotency-Operation: {operation_id}."
    if is_page:
        kept = "" if record.delivery is None else " That delivers its kept request again, unless you drop it."
        return (
            f"{asked} Then resolve it: with the service's response if it happened, or by saying that nothing "
            f"happened{when}.{kept}"
        )
    never = f"resolve {operation_id} --never-happened --why TEXT."
    if record.delivery is not None:
        never = f"{never} That delivers its kept request again; with --drop, it is dropped instead."
    return (
        f"{asked} If it happened, save the service's response with curl -i and give it to: resolve {operation_id} "
        f"--completed FILE --why TEXT. If nothing happened{when}: {never}"
    )


def stranded_advice(record: Record, now_us: int, *, is_page: bool = False) -> str:
    """What to do about an accepted request that no route delivers."""
    until_us = delivery_of(record).deliver_until_us
    return (
        f"No route of this configuration delivers it. Its request is kept, and nothing of it was done; at "
        f"{moment(until_us)} ({ago(until_us, now_us)}) it becomes a dead letter. To deliver it, give route "
        f"{record.identity.route} back, with its `accept`. "
        f"{_to_call_it_off(record.identity.operation_id, is_page=is_page)}"
    )


def _advice_on_accepted(operation_id: UUID, record: Record, now_us: int, *, is_page: bool) -> str:
    delivery = delivery_of(record)
    call_off = _to_call_it_off(operation_id, is_page=is_page)
    ends = f"{moment(delivery.deliver_until_us)} ({ago(delivery.deliver_until_us, now_us)})"
    if delivery.is_behind:
        return (
            f"Nothing, unless another operation of its lane is in doubt or a dead letter: it stops the lane, so decide "
            f"about that one. This one is delivered after those before it; none of its attempts starts after {ends}, "
            f"when it becomes a dead letter. {call_off}"
        )
    at_us = delivery.next_attempt_us
    next_ = "is due" if at_us <= now_us else f"is due at {moment(at_us)} ({ago(at_us, now_us)})"
    failed = "" if delivery.failure is None else f" after the last one failed ({delivery.failure})"
    return (
        f"Nothing, unless it is to be called off. Its request is kept, and no attempt of it had an effect. The next "
        f"attempt {next_}{failed}; none starts after {ends}, "
        f"when it becomes a dead letter. {call_off}"
    )


_CAUSES: Final[Mapping[str, str]] = {
    UNAUTHORIZED: (
        "The service refused its credentials. Mend them: the caller's own expire, and `accept.headers` of its route "
        "can send others in their place"
    ),
    ATTEMPTS_EXHAUSTED: (
        "The service answered every attempt with a status that is worth another one, and `delivery.max_answers` is "
        "reached. Find out there why it refuses this request"
    ),
    UNREADABLE: (
        "Its kept request cannot be decrypted. Put the key that it was encrypted under back into `secrets.encryption`; "
        "if that key is lost, withdraw it, and let its caller send it again"
    ),
    DEADLINE: (
        "It was not delivered within `delivery.deliver_within`. Make sure that the service can be reached and a worker "
        "delivers to it"
    ),
}
"""What to do about a dead letter, by its reason."""


def _advice_on_dead_letter(operation_id: UUID, record: Record, now_us: int, *, is_page: bool) -> str:
    delivery = delivery_of(record)
    reason = delivery.reason or "unknown"
    cause = _CAUSES.get(reason, f"It was given up ({reason}). Find out at the service what is wrong with it")
    failed = "" if delivery.failure is None else f" The last attempt: {delivery.failure}."
    what = (
        f"Nothing happened, and its request is kept: it is not lost, and waits for a decision since "
        f"{moment(delivery.since_us)} ({ago(delivery.since_us, now_us)}). {cause}.{failed}"
    )
    if is_page:
        return f"{what} Then requeue it, and it is delivered. If it is not wanted any more, withdraw it."
    return (
        f"{what} Then deliver it: requeue {operation_id} --why TEXT. If it is not wanted any more: withdraw "
        f"{operation_id} --why TEXT. For all with this reason: requeue --route {record.identity.route} --reason "
        f"{reason} --limit 1000 --rate 50 --why TEXT."
    )


def _response(response: StoredResponse, state: State, *, has_body: bool) -> dict[str, Any]:
    about: dict[str, Any] = {"status": response.status}
    if state is State.TOMBSTONE:
        about["body"] = "gone"
    elif has_body:
        about["body"] = "not kept" if response.body is None else "kept"
        if response.body is not None:
            about["body_bytes"] = len(response.body)
    return about


# -- what it has been through ------------------------------------------------------------------------------------------
#
# In the order in which it happened. What the record tells of its last attempt, what its history has of the attempts
# before, and who decided what, are one list here.

ATTEMPT: Final = "attempt"
_IN_DOUBT: Final = frozenset((Event.ABANDON, Event.LAPSE))
_COMPLETIONS: Final = (Event.COMPLETE, Event.PROVE)
# A purge, an erasure and a probe end no doubt.
_AFTER_DOUBT: Final = frozenset((Event.PURGE, Event.ERASE, PROBE))


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that happened, at `at_us`: an attempt, a probe, or else an event of the table, under this token. An
    attempt began with the event `how`, and ended at `until_us` with the event `ended`; None and empty while it is under
    way. `who` is its holder, or who decided. `why` and `status` are what came of it."""

    event: str
    at_us: int
    token: int
    how: str = ""
    until_us: int | None = None
    ended: str = ""
    who: str = ""
    why: str = ""
    status: int | None = None
    method: str = ""

    @property
    def end(self) -> str:
        """The event that it ended with: of all but an attempt, its own."""
        return self.ended if self.event == ATTEMPT else self.event

    @property
    def document(self) -> dict[str, Any]:
        lasted_us = None if self.until_us is None else self.until_us - self.at_us
        about: dict[str, Any] = {
            "at": moment(self.at_us),
            "event": self.event,
            "token": self.token,
            "how": self.how or None,
            "method": self.method or None,
            "holder" if self.event == ATTEMPT else "who": self.who or None,
            "ended": self.ended or None,
            "seconds": None if lasted_us is None else lasted_us / MICROSECONDS,
            "status": self.status,
            "why": self.why or None,
        }
        return present(about)

    @property
    def text(self) -> str:
        """In words, without the time."""
        return printable(self._attempted if self.event == ATTEMPT else self._done)

    @property
    def _attempted(self) -> str:
        about = ", ".join(filter(None, (self.method, f"token {self.token}", self.who)))
        sent = f"{_BEGINNINGS.get(self.how, 'sent')}: {about}"
        if self.until_us is None:
            return f"{sent}; under way"
        why = f"status {self.status}" if self.ended == Event.COMPLETE and self.status else _words(self.why)
        end = _ENDS.get(self.ended, self.ended)
        return f"{sent}; {end} after {lasted(self.until_us - self.at_us)}{': ' if why else ''}{why}"

    @property
    def _done(self) -> str:
        said = f"{self.who}: {self.why}" if self.who else _words(self.why)
        status = f", status {self.status}" if self.status and self.event in _COMPLETIONS else ""
        return f"{_NAMES.get(self.event, self.event)}{status}{': ' if said else ''}{said}"


@dataclass(frozen=True, slots=True)
class Told:
    """All that is known of what happened, in order. `dropped` more, between them, are not kept any more."""

    happenings: tuple[Happening, ...] = ()
    dropped: int = 0

    @property
    def dropped_text(self) -> str:
        return f"{self.dropped} more were dropped, after the first {FIRST}" if self.dropped else ""

    @property
    def doubts(self) -> list[tuple[int, int | None]]:
        """When it was in doubt, each time from when until when; None where it still is."""
        found: list[tuple[int, int | None]] = []
        for each in sorted(self.happenings, key=_ended_us):
            is_open = bool(found) and found[-1][1] is None
            if each.end in _IN_DOUBT and not is_open:
                found.append((_ended_us(each), None))
            elif is_open and each.end and each.end not in _IN_DOUBT | _AFTER_DOUBT:
                found[-1] = (found[-1][0], _ended_us(each))
        return found


def told(record: Record | None, audits: Iterable[AuditEntry]) -> Told:
    """What happened to the operation that has this record."""
    decided = [Happening(each.event.value, each.at_us, each.token, who=each.who, why=each.why) for each in audits]
    if record is None:
        return Told(tuple(sorted(decided, key=_began_us)))
    history = unpacked(record.history)
    found = _of_entries(sorted(history.entries, key=lambda each: each.at_us))
    attempts = {each.token for each in found if each.event == ATTEMPT}
    if record.holder and record.token not in attempts:
        found.append(_last_attempt(record))
        attempts.add(record.token)
    if record.completed_us is not None and not any(each.ended == Event.COMPLETE for each in found):
        # By somebody else than the attempt, or late.
        is_proven = any(each.event == Event.PROVE and each.at_us == record.completed_us for each in decided)
        if not is_proven:
            event = Event.PROVE if record.last_event is Event.PROVE else Event.COMPLETE
            found.append(Happening(event.value, record.completed_us, record.token))
        decided = [_with_status(each, record) for each in decided]
        found = [_with_status(each, record) for each in found]
    first_us = min((each.at_us for each in found if each.event == ATTEMPT), default=None)
    if record.attempt_id != NO_ATTEMPT and (first_us is None or record.first_claimed_us < first_us):
        found.append(Happening(Event.ACCEPT.value, record.first_claimed_us, record.token))
    return Told(_with_beginnings(sorted((*found, *decided), key=_began_us)), history.dropped)


def lasted(duration_us: int) -> str:
    """A duration, to the millisecond if it is short."""
    if duration_us < MICROSECONDS:
        return f"{max(0, duration_us) // 1000} ms"
    return f"{duration_us / MICROSECONDS:.1f} s" if duration_us < 60 * MICROSECONDS else span(duration_us)


def _of_entries(entries: Iterable[Entry]) -> list[Happening]:
    """Of each attempt that ended; a second end of it is something that happened later."""
    found: list[Happening] = []
    seen: set[int] = set()
    for each in entries:
        status = doubted_status(each.detail)
        if each.began_us and each.token not in seen:
            seen.add(each.token)
            attempt = Happening(
                ATTEMPT, each.began_us, each.token, "", each.at_us, each.event, each.holder, each.detail
            )
            found.append(replace(attempt, status=status, method=each.method))
        else:
            found.append(Happening(each.event, each.at_us, each.token, why=each.detail, status=status))
    return found


def _last_attempt(record: Record) -> Happening:
    """What the record tells of it: it is under way, or completed the operation."""
    method = "" if record.request is None else record.request.method
    found = Happening(ATTEMPT, record.claimed_us, record.token, who=record.holder, method=method)
    if record.completed_us is None or record.state is State.CLAIMED:
        return found
    status = None if record.response is None else record.response.status
    return replace(found, until_us=record.completed_us, ended=Event.COMPLETE.value, status=status)


def _with_status(happening: Happening, record: Record) -> Happening:
    is_completion = happening.event in _COMPLETIONS and happening.at_us == record.completed_us
    return replace(happening, status=record.response.status) if is_completion and record.response else happening


def _with_beginnings(found: Sequence[Happening]) -> tuple[Happening, ...]:
    """With how each attempt began: what is in doubt is taken over, what was accepted is dispatched."""
    told: list[Happening] = []
    doubts = Told(tuple(found)).doubts
    is_accepted = any(each.event == Event.ACCEPT for each in found)
    for each in found:
        at_us, how = each.at_us, Event.DISPATCH if is_accepted else Event.CLAIM
        # One that ended at once was not in its own doubt.
        if any(since_us < at_us and (until_us is None or at_us < until_us) for since_us, until_us in doubts):
            how = Event.TAKEOVER
        told.append(replace(each, how=how.value) if each.event == ATTEMPT else each)
    return tuple(told)


def _began_us(happening: Happening) -> int:
    return happening.at_us


def _ended_us(happening: Happening) -> int:
    return happening.at_us if happening.until_us is None else happening.until_us


def _words(detail: str) -> str:
    return "; ".join(map(doubt_text, detail.split("; "))) if detail else ""


_BEGINNINGS: Final[Mapping[str, str]] = {Event.TAKEOVER: "sent again in doubt", Event.DISPATCH: "delivered"}
_ENDS: Final[Mapping[str, str]] = {
    Event.COMPLETE: "answered",
    Event.RELEASE: "no effect",
    Event.FORGET: "turned away",
    Event.ABANDON: "in doubt",
    Event.LAPSE: "its lease ended, in doubt",
    Event.POSTPONE: "no effect, to be sent again",
    Event.BURY: "no effect, given up",
}
_NAMES: Final[Mapping[str, str]] = {
    PROBE: "asked the service",
    Event.ACCEPT: "accepted, to be delivered",
    Event.COMPLETE: "answered late",
    Event.RELEASE: "no effect, said late",
    Event.FORGET: "turned away, said late",
    Event.ABANDON: "in doubt, said late",
    Event.POSTPONE: "no effect, said late",
    Event.BURY: "no effect, given up, said late",
    Event.EXPIRE: "not delivered in time",
    Event.PROVE: "found out: it happened",
    Event.DISPROVE: "found out: nothing happened",
    Event.REINSTATE: "found out: nothing happened, to be delivered",
    Event.REQUEUE: "to be delivered after all",
    Event.WITHDRAW: "called off",
    Event.PURGE: "response dropped",
    Event.ERASE: "key forgotten",
}
