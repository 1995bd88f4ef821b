"""One operation in words, as JSON values and as lines, for the console, the admin API and the commands; and which one a
text is about. Pure.

Never the scope, never a body, and the key only if the store has it in clear. Times are the store's, in UTC; ages are
relative to its clock. Does not know whether a gateway is running that would recover the operation. Characters of
foreign texts (a route's name, a header's value) that are not printable are replaced.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from typing import Final, NamedTuple, assert_never
from uuid import UUID

from gateway.admin import reports
from gateway.admin.journal import advice_of, kept, sentence, standing
from gateway.admin.reports import Report, ago, at_ago, moment, present, printable, span
from gateway.admin.resolution import Malformed, Policies, Treatment
from gateway.core.delivery import ATTEMPTS_EXHAUSTED, UNAUTHORIZED, UNREADABLE
from gateway.core.lifecycle import DEADLINE, LAPSED_DOUBT
from gateway.core.operation import (
    HISTORY_FIRST,
    MICROSECONDS,
    NO_ATTEMPT,
    PROBE,
    Delivery,
    Entry,
    Event,
    Record,
    Snapshot,
    State,
    delivery_of,
    in_doubt_since_us,
    unpacked_history,
)
from gateway.core.recovery import Hold, Probe, Recovery, Resend, doubted_status, probe_target
from gateway.store.journal import JournalView
from gateway.store.operations import AuditEntry, RecoveryState

# -- which one ---------------------------------------------------------------------------------------------------------

# A UUID of version 8, as `derive_operation_id` makes them: keys, request ids and trace ids are hardly ever one.
_ID: Final = r"([0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12})(?![0-9a-f-])"
# A problem and a line of a log name it beside others, such as `first_operation`, and go before all else that has one.
_NAMED: Final = re.compile(r"(?:operation[._-]?id|idempotency-operation)[\s\"'\\]{0,9}[:=][\s\"'\\]{0,9}" + _ID)
_ANY: Final = re.compile(r"(?<![0-9a-f-])" + _ID)
_OF_OTHERS: Final = re.compile(r"\b(?:request|correlation|trace)[_-]?id\b|\btraceparent\b")
_KEY: Final = re.compile(r"\bidempotency[_-]key\b")
_CHARACTERS_MAX: Final = 65_536
_EXPECTED: Final = "expected the id of an operation, as its problem document or inspect --list shows it"
_NOT_SEARCHED: Final = (
    "request ids, trace ids and keys are not searched. Look for this in the gateway's log: operation_id is beside it"
)


def operation_in(text: str) -> UUID:
    """The operation that a text is about: an id, a problem document, headers, an address, a command, a line of a log.
    Raises `Malformed`, which says what to give instead."""
    if len(text) > _CHARACTERS_MAX:
        raise Malformed(f"{_EXPECTED}; this is longer than {_CHARACTERS_MAX} characters. Give the part that has the id")
    text = text.strip().lower()
    try:
        alone = UUID(text)
    except ValueError:
        found = {UUID(each) for each in _NAMED.findall(text) or _ANY.findall(text)}
    else:
        if alone.version != 8:
            raise Malformed(f"{_EXPECTED}; {_NOT_SEARCHED}")
        return alone
    if len(found) == 1:
        return found.pop()
    if found:
        instead = f"this has {len(found)} of them. Give the part that has one"
    elif _KEY.search(text):
        instead = "a key alone is not enough. Find it by its request: its route, its key and what names its caller"
    elif _OF_OTHERS.search(text):
        instead = _NOT_SEARCHED
    else:
        instead = "or a text with it, such as the Location of a status or the header Idempotency-Operation"
    raise Malformed(f"{_EXPECTED}; {instead}")


# -- as JSON values ----------------------------------------------------------------------------------------------------


def described(snapshot: Snapshot, *, has_body: bool) -> Report:
    """`has_body`: the snapshot was read with its body, if there is one."""
    record, now_us = snapshot.record, snapshot.now_us
    if record is None:
        return {"state": State.ABSENT.value, "now": moment(now_us)}
    identity, request, is_reduced = record.identity, record.request, record.attempt_id == NO_ATTEMPT
    about: Report = {
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
        "response": _response(record, has_body=has_body),
        "now": moment(now_us),
    }
    return present(about)


def _delivery(delivery: Delivery) -> Report:
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


def _response(record: Record, *, has_body: bool) -> Report | None:
    response = record.response
    if response is None:
        return None
    body: Report = {}
    if record.state is State.TOMBSTONE:
        body = {"body": "gone"}
    elif has_body:
        body = {"body": "not kept"} if response.body is None else {"body": "kept", "body_bytes": len(response.body)}
    return {"status": response.status, **body}


def times_of(record: Record) -> list[tuple[str, int]]:
    """The times that are meaningful in the record's state."""
    delivery, state = record.delivery, record.state
    times: list[tuple[str, int | None]] = []
    if delivery is not None:
        is_dead, since_us = state is State.DEAD_LETTER, delivery.since_us
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


# -- in a person's words -----------------------------------------------------------------------------------------------

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


def subject(record: Record) -> str:
    """What was asked for: method and path, or the operation name where the request is not stored."""
    request = record.request
    return record.identity.operation if request is None else f"{request.method} {request.path}"


def caller(record: Record) -> str:
    """Who asked, as a digest: the same one on every operation of one caller."""
    return record.identity.scope_digest.hex()


def did(record: Record) -> str:
    """What the service did of it last."""
    delivery, state = record.delivery, record.state
    if record.response is not None:
        return f"responded with {record.response.status}"
    if record.doubt is not None:
        return doubt_text(record.doubt)
    reasons = (delivery.failure, delivery.reason) if delivery is not None else ()
    if said := "; ".join(dict.fromkeys(doubt_text(reason) for reason in reasons if reason)):
        return said
    if state is State.RELEASED:
        return "did nothing of it"
    return "was not asked" if state in (State.ACCEPTED, State.DEAD_LETTER) else "has not responded"


def then(record: Record, now_us: int, policies: Policies) -> str:
    """What happens to it next, if nobody does anything."""
    delivery = record.delivery
    match record.state:
        case State.IN_DOUBT:
            return _then_in_doubt(record, policies)
        case State.CLAIMED:
            return f"its attempt ends, or is in doubt in {span(record.lease_until_us - now_us)}"
        case State.DEAD_LETTER:
            return "waits for a decision"
        case State.ACCEPTED if delivery is not None:
            if delivery.is_behind:
                return "waits for others of its lane"
            is_due = delivery.next_attempt_us <= now_us
            return "is due" if is_due else f"is tried in {span(delivery.next_attempt_us - now_us)}"
        case State.COMPLETED:
            return f"repeats get its response for {span(record.replay_until_us - now_us)}"
        case State.RELEASED:
            return "a repeat runs"
        case _:
            return f"a repeat is refused for {span(record.remember_until_us - now_us)}"


def _then_in_doubt(record: Record, policies: Policies) -> str:
    if not policies.is_own(record):
        return "waits for its own service"
    match policies.treatment_of(record).recovery:
        case Probe() as probe if probe_target(probe, record) is not None:
            return "the service is asked about it"
        case Resend():
            return "is sent again" if record.delivery is not None else "a repeat is sent again"
        case Hold() | Probe():
            return "waits for a decision"


class AsRequest(NamedTuple):
    """A request, as far as it is stored: query, body and what names the caller never are."""

    method: str
    url: str
    header: str


def as_request(record: Record, policies: Policies) -> AsRequest | None:
    """None where nothing of it is stored, or its route is no more."""
    request, route = record.request, policies.route_of(record)
    if request is None or not request.host or route is None:
        return None
    name = next(iter(sorted(route.key.headers)), b"idempotency-key").decode()
    key = record.identity.key or "THE SAME KEY"
    return AsRequest(request.method, f"https://{request.host}{request.path}", f"{name}: {key}")


def repeat(record: Record, policies: Policies) -> str:
    """A command that repeats the request; empty where it is not stored. Whoever repeats it adds what is missing."""
    found = as_request(record, policies)
    return "" if found is None else shlex.join(["curl", "-i", "-X", found.method, found.url, "-H", found.header])


# -- what to do --------------------------------------------------------------------------------------------------------
#
# `is_page`: the reader has a page with buttons before them, and not a terminal.

_CAUSES: Final[Mapping[str | None, str]] = {
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


def advice(snapshot: Snapshot, settle_us: int | None, *, is_page: bool = False) -> str:
    """`settle_us` is the route's, None where the operation is not remembered."""
    record, now_us = snapshot.record, snapshot.now_us
    if record is None:
        return (
            "Nothing is remembered: a request with this key runs. If that is not what you expect, check the id, the "
            "route, the headers and the store."
        )
    match record.state:
        case State.CLAIMED:
            doing = "executing" if record.delivery is None else "delivering"
            left = span(record.lease_until_us - now_us)
            lapses = f"If its lease ends unrenewed, in {left}, the operation is in doubt."
            return f"Wait: {record.holder} is {doing} it. {lapses}"
        case State.IN_DOUBT:
            return _advice_on_doubt(record, now_us, settle_us or 0, is_page=is_page)
        case State.ACCEPTED:
            return f"{_advice_on_accepted(delivery_of(record), now_us)} {_to_call_it_off(record, is_page=is_page)}"
        case State.DEAD_LETTER:
            return _advice_on_dead_letter(record, now_us, is_page=is_page)
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


def _to_call_it_off(record: Record, *, is_page: bool) -> str:
    if is_page:
        return "To call it off, withdraw it."
    return f"To call it off: withdraw {record.identity.operation_id} --why TEXT."


def _advice_on_doubt(record: Record, now_us: int, settle_us: int, *, is_page: bool) -> str:
    operation_id, settled_us = record.identity.operation_id, record.lease_until_us + settle_us
    when = f", from {moment(settled_us)} on ({ago(settled_us, now_us)})" if settled_us > now_us else ""
    first = ""
    if record.doubt == LAPSED_DOUBT:
        first = f"First make sure that {record.holder} is running, or gone for good: it may still have the response. "
    asked = f"{first}Find out at the service what happened; it was sent Idempotency-Operation: {operation_id}."
    is_kept = record.delivery is not None
    if is_page:
        kept_ = " That delivers its kept request again, unless you drop it." if is_kept else ""
        response = "with the service's response if it happened, or by saying that nothing happened"
        return f"{asked} Then resolve it: {response}{when}.{kept_}"
    kept_ = " That delivers its kept request again; with --drop, it is dropped instead." if is_kept else ""
    return (
        f"{asked} If it happened, save the service's response with curl -i and give it to: resolve {operation_id} "
        f"--completed FILE --why TEXT. If nothing happened{when}: resolve {operation_id} --never-happened --why TEXT."
        f"{kept_}"
    )


def _advice_on_stranded(record: Record, now_us: int, *, is_page: bool) -> str:
    """Of an accepted request that no route delivers."""
    return (
        "No route of this configuration delivers it. Its request is kept, and nothing of it was done; at "
        f"{at_ago(delivery_of(record).deliver_until_us, now_us)} it becomes a dead letter. To deliver it, give route "
        f"{record.identity.route} back, with its `accept`. {_to_call_it_off(record, is_page=is_page)}"
    )


def _advice_on_accepted(delivery: Delivery, now_us: int) -> str:
    ends = f"after {at_ago(delivery.deliver_until_us, now_us)}, when it becomes a dead letter."
    if delivery.is_behind:
        return (
            "Nothing, unless another operation of its lane is in doubt or a dead letter: it stops the lane, so decide "
            f"about that one. This one is delivered after those before it; none of its attempts starts {ends}"
        )
    next_us = delivery.next_attempt_us
    next_ = "is due" if next_us <= now_us else f"is due at {at_ago(next_us, now_us)}"
    failed = "" if delivery.failure is None else f" after the last one failed ({delivery.failure})"
    return (
        "Nothing, unless it is to be called off. Its request is kept, and no attempt of it had an effect. The next "
        f"attempt {next_}{failed}; none starts {ends}"
    )


def _advice_on_dead_letter(record: Record, now_us: int, *, is_page: bool) -> str:
    operation_id, delivery = record.identity.operation_id, delivery_of(record)
    reason = delivery.reason or "unknown"
    cause = _CAUSES.get(reason, f"It was given up ({reason}). Find out at the service what is wrong with it")
    failed = "" if delivery.failure is None else f" The last attempt: {delivery.failure}."
    what = (
        "Nothing happened, and its request is kept: it is not lost, and waits for a decision since "
        f"{at_ago(delivery.since_us, now_us)}. {cause}.{failed}"
    )
    if is_page:
        return f"{what} Then requeue it, and it is delivered. If it is not wanted any more, withdraw it."
    return (
        f"{what} Then deliver it: requeue {operation_id} --why TEXT. If it is not wanted any more: withdraw "
        f"{operation_id} --why TEXT. For all with this reason: requeue --route {record.identity.route} --reason "
        f"{reason} --limit 1000 --rate 50 --why TEXT."
    )


# -- what it has been through ------------------------------------------------------------------------------------------
#
# In the order in which it happened. What the record tells of its last attempt, what its history has of the attempts
# before, and who decided what, are one list here.

ATTEMPT: Final = "attempt"
_IN_DOUBT: Final = frozenset((Event.ABANDON, Event.LAPSE))
_COMPLETIONS: Final = (Event.COMPLETE, Event.PROVE)
# A purge, an erasure and a probe end no doubt.
_AFTER_DOUBT: Final = frozenset((Event.PURGE, Event.ERASE, PROBE))
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
_AT: Final = attrgetter("at_us")


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
    def over_us(self) -> int:
        return self.at_us if self.until_us is None else self.until_us

    @property
    def document(self) -> Report:
        about: Report = {
            "at": moment(self.at_us),
            "event": self.event,
            "token": self.token,
            "how": self.how or None,
            "method": self.method or None,
            "holder" if self.event == ATTEMPT else "who": self.who or None,
            "ended": self.ended or None,
            "seconds": None if self.until_us is None else (self.until_us - self.at_us) / MICROSECONDS,
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
        why = f"status {self.status}" if self.ended == Event.COMPLETE and self.status else self._why
        end = _ENDS.get(self.ended, self.ended)
        return f"{sent}; {end} after {reports.lasted(self.until_us - self.at_us)}{': ' if why else ''}{why}"

    @property
    def _done(self) -> str:
        said = f"{self.who}: {self.why}" if self.who else self._why
        status = f", status {self.status}" if self.status and self.event in _COMPLETIONS else ""
        return f"{_NAMES.get(self.event, self.event)}{status}{': ' if said else ''}{said}"

    @property
    def _why(self) -> str:
        return "; ".join(map(doubt_text, self.why.split("; "))) if self.why else ""


@dataclass(frozen=True, slots=True)
class Timeline:
    """All that is known of what happened, in order. `dropped` more, between them, are not kept any more."""

    happenings: tuple[Happening, ...] = ()
    dropped: int = 0

    @property
    def dropped_text(self) -> str:
        return f"{self.dropped} more were dropped, after the first {HISTORY_FIRST}" if self.dropped else ""

    @property
    def doubts(self) -> list[tuple[int, int | None]]:
        """When it was in doubt, each time from when until when; None where it still is."""
        found: list[tuple[int, int | None]] = []
        for each in sorted(self.happenings, key=attrgetter("over_us")):
            end = each.ended if each.event == ATTEMPT else each.event
            is_open = bool(found) and found[-1][1] is None
            if end in _IN_DOUBT and not is_open:
                found.append((each.over_us, None))
            elif is_open and end and end not in _IN_DOUBT | _AFTER_DOUBT:
                found[-1] = (found[-1][0], each.over_us)
        return found


def timeline(record: Record | None, audits: Iterable[AuditEntry]) -> Timeline:
    """What happened to the operation that has this record."""
    decided = [Happening(each.event.value, each.at_us, each.token, who=each.who, why=each.why) for each in audits]
    if record is None:
        return Timeline(tuple(sorted(decided, key=_AT)))
    history = unpacked_history(record.history)
    found = _of_entries(sorted(history.entries, key=_AT))
    if record.holder and not any(each.event == ATTEMPT and each.token == record.token for each in found):
        found.append(_last_attempt(record))
    if record.completed_us is not None and not any(each.ended == Event.COMPLETE for each in found):
        # By somebody else than the attempt, or late.
        if not any(each.event == Event.PROVE and each.at_us == record.completed_us for each in decided):
            event = Event.PROVE if record.last_event is Event.PROVE else Event.COMPLETE
            found.append(Happening(event.value, record.completed_us, record.token))
        decided, found = ([_with_status(each, record) for each in several] for several in (decided, found))
    first_us = min((each.at_us for each in found if each.event == ATTEMPT), default=None)
    if record.attempt_id != NO_ATTEMPT and (first_us is None or record.first_claimed_us < first_us):
        found.append(Happening(Event.ACCEPT.value, record.first_claimed_us, record.token))
    return Timeline(_with_beginnings(sorted((*found, *decided), key=_AT)), history.dropped)


def _of_entries(entries: Iterable[Entry]) -> list[Happening]:
    """Of each attempt that ended; a second end of it is something that happened later."""
    found: list[Happening] = []
    seen: set[int] = set()
    for each in entries:
        end = Happening(each.event, each.at_us, each.token, why=each.detail, status=doubted_status(each.detail))
        if each.began_us and each.token not in seen:
            seen.add(each.token)
            end = replace(end, event=ATTEMPT, at_us=each.began_us, until_us=each.at_us, ended=each.event)
            end = replace(end, who=each.holder, method=each.method)
        found.append(end)
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
    doubts = Timeline(tuple(found)).doubts
    usual = Event.DISPATCH if any(each.event == Event.ACCEPT for each in found) else Event.CLAIM

    def how(at_us: int) -> str:
        # One that ended at once was not in its own doubt.
        is_doubted = any(since_us < at_us and (until_us is None or at_us < until_us) for since_us, until_us in doubts)
        return (Event.TAKEOVER if is_doubted else usual).value

    return tuple(replace(each, how=how(each.at_us)) if each.event == ATTEMPT else each for each in found)


# -- all that is known -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Doubt:
    """A record in doubt at `now_us` of the store's clock, and how its route recovers. `probes` are those of this doubt:
    before a takeover there may have been another one, with its own."""

    recovery: Recovery
    record: Record
    probes: RecoveryState | None
    now_us: int

    @property
    def policy(self) -> str:
        return type(self.recovery).__name__.lower()

    @property
    def _is_asked(self) -> bool:
        return isinstance(self.recovery, Probe) and probe_target(self.recovery, self.record) is not None

    @property
    def _next_probe(self) -> str:
        probes = self.probes
        if probes is not None and probes.is_held(self.now_us):
            return "under way"
        return at_ago(probes.put_off_until_us, self.now_us) if probes and probes.is_put_off(self.now_us) else "due"

    @property
    def document(self) -> Report:
        """The recovery. Without `next_probe_at` there is no next probe, or it is due."""
        about: Report = {"policy": self.policy}
        if (probes := self.probes) is not None:
            about["probes"] = probes.tries
            if probes.asked_us:
                about |= {"last_probe_at": moment(probes.asked_us), "last_finding": probes.finding}
            if self._is_asked and probes.is_put_off(self.now_us):
                about["next_probe_at"] = moment(probes.put_off_until_us)
        return about

    @property
    def rows(self) -> list[tuple[str, str]]:
        rows = [("recovery", self.policy)]
        if self.probes is not None and self.probes.asked_us:
            rows.append(("last probe", f"{at_ago(self.probes.asked_us, self.now_us)}: {self.probes.finding}"))
        return [*rows, ("next probe", self._next_probe)] if self._is_asked else rows

    @property
    def step(self) -> str:
        """A sentence about what happens without an operator."""
        match self.recovery:
            case Hold():
                return "Nothing happens to it until an operator resolves it."
            case Resend() if self.record.delivery is not None:
                return (
                    "A running gateway sends its kept request to the service again, after the pauses of its schedule."
                )
            case Resend():
                return "The next repeat of its request is sent to the service again; nothing happens before that."
            case Probe() if not self._is_asked:
                return (
                    "It cannot be probed: it was claimed before its route had this probe, and is stored without what "
                    "the probe needs (the key, the host or the path). Nothing happens to it until an operator resolves "
                    "it."
                )
            case Probe():
                now = {"due": "is about to ask the service about it.", "under way": "is asking the service about it."}
                next_ = self._next_probe
                then = now.get(next_, f"asks the service about it: {next_}, and sooner for a repeat.")
                return f"A running gateway {then}"
            case _:
                assert_never(self.recovery)


@dataclass(frozen=True, slots=True)
class Inspected:
    """All that is known of an operation. `treatment` is None where nothing is remembered, and of another service's;
    `journal` has its outcomes in the journals of this host. `memory` is that of the store, if its loss makes the next
    request with this key be refused. `pause` is that of its operation name, if it is accepted; then `is_stranded` says
    that no route of this configuration delivers it. `sinks`: what each has yet to receive of it."""

    operation_id: UUID
    snapshot: Snapshot
    audits: tuple[AuditEntry, ...]
    treatment: Treatment | None
    journal: JournalView
    memory: reports.MemoryState | None = None
    probes: RecoveryState | None = None
    pause: Report | None = None
    is_stranded: bool = False
    sinks: tuple[Report, ...] = ()

    @property
    def doubt(self) -> Doubt | None:
        """Its doubt and how gateways recover it; None where there is none, or it is another service's."""
        record = self.snapshot.record
        if record is None or record.state is not State.IN_DOUBT or self.treatment is None:
            return None
        probes = self.probes if self.probes is not None and self.probes.token == record.token else None
        return Doubt(self.treatment.recovery, record, probes, self.snapshot.now_us)

    @property
    def timeline(self) -> Timeline:
        return timeline(self.snapshot.record, self.audits)


def full_json(inspected: Inspected) -> Report:
    doubt, journal, happened = inspected.doubt, inspected.journal, inspected.timeline
    about: Report = {
        "operation_id": str(inspected.operation_id),
        **described(inspected.snapshot, has_body=True),
        "recovery": None if doubt is None else doubt.document,
        "paused": inspected.pause,
        "journal": [kept(entry, journal.now_us) for entry in journal.entries] or None,
        "history": [each.document for each in happened.happenings],
        "history_dropped": happened.dropped or None,
        "sinks": inspected.sinks or None,
        "audits": [
            {"at": moment(each.at_us), "event": each.event, "token": each.token, "who": each.who, "why": each.why}
            for each in inspected.audits
        ],
        "next": next_step(inspected),
    }
    return present(about)


def next_step(inspected: Inspected, *, is_page: bool = False) -> str:
    """A sentence about what an operator should do next."""
    record, now_us, treatment = inspected.snapshot.record, inspected.snapshot.now_us, inspected.treatment
    known = advice_of(record, inspected.journal)
    if known is not None:
        return known
    if inspected.memory is not None:
        return inspected.memory.in_words(is_page=is_page)
    if record is not None and treatment is None:
        return foreign(is_page=is_page)
    if record is not None and inspected.is_stranded:
        return _advice_on_stranded(record, now_us, is_page=is_page)
    settle_us = None if treatment is None else treatment.settle_us
    text = advice(inspected.snapshot, settle_us, is_page=is_page)
    if inspected.pause is not None:
        goes_on = "It goes on when that is resumed, on the page Pauses." if is_page else "It goes on with: resume."
        return f"Its delivery is paused: {reports.paused_line(inspected.pause)}. {goes_on} {text}"
    return text if inspected.doubt is None else f"{inspected.doubt.step} {text}"


def foreign(*, is_page: bool = False) -> str:
    """What to do about an operation of another service."""
    where = "See that service's console" if is_page else "Give the command with that service's configuration"
    return f"It is an operation of another service that shares the store. {where}."


# -- as lines ----------------------------------------------------------------------------------------------------------

# The table is written while it is read: widths cannot depend on later rows. The last column has none.
_FIRST_COLUMNS: Final = {"OPERATION": 36, "STATE": 11, "SINCE": 20, "AGE": 8}
_TABLE: Final = {**_FIRST_COLUMNS, "TOKEN": 7, "TRIES": 5, "STATUS": 6, "WHY": 18, "ROUTE": 0}
_JOURNAL: Final = {**_FIRST_COLUMNS, "STATE": 7, "EVENT": 8, "TOKEN": 7, "STATUS": 6, "ROUTE": 20, "WHY": 0}
_LABELS: Final = {"claimed_at": "last claimed", "dead_since": "dead letter"}


def _row(widths: Mapping[str, int], cells: Iterable[object]) -> str:
    texts = ("" if cell is None else printable(str(cell)) for cell in cells)
    return "  ".join(text.ljust(width) for text, width in zip(texts, widths.values(), strict=True))


def table_head() -> str:
    return _row(_TABLE, _TABLE)


def table_row(record: Record, now_us: int) -> str:
    why, delivery = record.doubt, record.delivery
    if delivery is not None:
        waits = "waits for lane" if delivery.is_behind and record.state is State.ACCEPTED else None
        why = why or delivery.reason or delivery.failure or waits
    status = None if record.response is None else record.response.status
    since, age = moment(since_us(record)), span(now_us - record.first_claimed_us)
    about = record.identity.operation_id, record.state.value, since, age, record.token, record.attempts
    return _row(_TABLE, (*about, status, why, record.identity.route))


def journal_table(view: JournalView) -> Iterator[str]:
    """The outcomes in the journals of this host; nothing where there are none."""
    if view.entries:
        yield _row(_JOURNAL, _JOURNAL)
    for entry in view.entries:
        state, at_us, why = standing(entry)
        about = entry.operation_id, state, moment(at_us), span(view.now_us - at_us)
        yield _row(_JOURNAL, (*about, entry.event, entry.token, entry.status, entry.route, why))


def json_line(about: Report) -> str:
    """A value as one line of ASCII, which cannot control a terminal. orjson would write UTF-8."""
    return json.dumps(about, ensure_ascii=True, separators=(",", ":"))


def full_text(inspected: Inspected) -> Iterator[str]:
    record, now_us, happened = inspected.snapshot.record, inspected.snapshot.now_us, inspected.timeline
    rows: list[tuple[str, object]] = [
        ("operation", inspected.operation_id),
        ("state", inspected.snapshot.state),
        *(_rows_of(record, inspected) if record is not None else ()),
        ("store's now", moment(now_us)),
        *(("history", f"{moment(each.at_us)} {each.text}") for each in happened.happenings),
        ("history", happened.dropped_text or None),
        *((f"sink {each['sink']}", reports.events_text(each)) for each in inspected.sinks),
        *(("audit", f"{moment(each.at_us)} {each.event} by {each.who}: {each.why}") for each in inspected.audits),
        *(("journal here", sentence(entry, inspected.journal.now_us)) for entry in inspected.journal.entries),
        ("what to do", next_step(inspected)),
    ]
    for label, value in rows:
        if value is not None:
            yield f"{label.ljust(16)}  {printable(str(value))}"


def _rows_of(record: Record, inspected: Inspected) -> Iterator[tuple[str, object]]:
    """What is known of a record, as labels and values; None is not shown."""
    identity, request, delivery = record.identity, record.request, record.delivery
    yield "route", identity.route
    yield "operation name", identity.operation if identity.operation != identity.route else None
    yield "key", identity.key
    yield "token", record.token
    yield "attempts", record.attempts
    yield "holder", record.holder or None
    if request is not None:
        yield "request", f"{request.method} {request.host}{request.path}"
        yield "request id", request.request_id
        yield "trace id", request.trace_id
    yield "last event", record.last_event
    yield "in doubt because", record.doubt
    if inspected.doubt is not None:
        yield from inspected.doubt.rows
    yield "carries doubt", "yes: an earlier attempt may have had its effect" if record.carries_doubt else None
    for name, at_us in times_of(record):
        yield _LABELS.get(name, name.removesuffix("_at").replace("_", " ")), at_ago(at_us, inspected.snapshot.now_us)
    if delivery is not None:
        yield "kept request", f"{delivery.request_bytes} bytes, encrypted"
        yield "answers", delivery.answers
        yield "last failure", delivery.failure
        yield "dead letter, as", delivery.reason
    if delivery is not None and delivery.lane is not None:
        turn = "others of it go first" if delivery.is_behind else "it goes first"
        yield "lane", f"{delivery.lane.hex()}, number {delivery.lane_number}; {turn}"
    yield "resource", record.resource
    if (about := _response(record, has_body=True)) is not None:
        size = f", {about['body_bytes']} bytes" if "body_bytes" in about else ""
        yield "response", f"{about['status']}, body {about['body']}{size}"
