"""Turns what an operator decides into a command, or a refusal that says why. Pure.

About a doubt that is a ruling, about a kept request to requeue or to withdraw it. A decision is fenced on the token
that was read, and its id is derived from it, the audit and the token: given again, it is the same command.

"Nothing happened" cannot be known before a certain time, and a response has to be one that ends a doubt; the operator
can overrule both.

`Policies` has what must be known of the routes; the composition root makes it from the configuration. Records outlive
route names: a route may have been renamed or removed since. Then the most cautious treatment counts: the longest waits
and the longest retention of the routes that it may have been.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, assert_never
from uuid import UUID

from gateway.admin.reports import ago, at_ago, moment, span
from gateway.core import outcome as outcomes
from gateway.core.delivery import Delivering, DeliveryPolicy
from gateway.core.identity import key as scopes
from gateway.core.identity.body import MISSING, digest, framed
from gateway.core.identity.caller import Token, TokenFault, bearer_credential, claims_value, read_token
from gateway.core.identity.key import KeySpec, is_of
from gateway.core.message import Headers, ResponseHead, header_values
from gateway.core.operation import (
    EVENT_OF,
    Audit,
    Disprove,
    Event,
    Prove,
    Record,
    Reinstate,
    Requeue,
    Snapshot,
    State,
    Withdraw,
)
from gateway.core.recovery import Hold, Recovery
from gateway.protect.reply import document_in
from gateway.store.base import Amnesic, NotApplied, StartRefused, StoreError, Unreadable, Unstorable
from gateway.store.operations import AuditEntry

# -- why something is not done -----------------------------------------------------------------------------------------


class Declined(Exception):
    """Nothing was done. The text says why, and what to do."""


class Malformed(Declined, ValueError):
    """The request is not valid. The text never quotes what was sent."""


class OutcomeRefused(Declined):
    """An outcome in a journal is not exported, or not acknowledged."""


class NotDead(Declined): ...


class NoSuch(Declined):
    """Nothing has this name: `code` says what. The text says which there are."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Fault(Exception):
    """The request ends here. `detail` says why, what was changed, and what to do; `members` belong to the problem."""

    def __init__(
        self, status: int, code: str, detail: str, headers: Mapping[str, str] | None = None, **members: Any
    ) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail = status, code, detail
        self.headers, self.members = headers or {}, members


def unavailable(detail: str, **members: Any) -> Fault:
    """The store did not do it, or nobody knows."""
    return Fault(503, "store-unavailable", detail, **members)


def fault_of(error: Declined | StoreError, *, is_read: bool) -> Fault:
    match error:
        case NoSuch():
            return Fault(404, error.code, f"Nothing was changed: {error}.")
        case NotDead():
            return Fault(409, "not-dead", str(error))
        case OutcomeRefused() if is_read:
            return Fault(404, "no-response", f"{error}.")
        case OutcomeRefused():
            return Fault(409, "not-acknowledged", f"Nothing was changed: {error}.")
        case Declined():
            return Fault(400, "malformed", str(error))
        case Unstorable():
            return Fault(422, "rejected", f"The store cannot keep this; nothing was changed: {error}")
        case NotApplied():
            what = "nothing could be read" if is_read else "nothing was changed"
            return unavailable(f"The store cannot be reached; {what}: {error}")
        case Amnesic():
            return Fault(503, "store-amnesia", f"Nothing was changed: {error}. See /memory.")
        case Unreadable():
            return unavailable(f"The record cannot be shown; nothing was changed: {error}")
        case StartRefused():
            return unavailable(f"Nothing was changed: {error}.")
        case _:
            return unavailable(f"It is not known whether this was done: {error}")


# -- what is known of the routes ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Treatment:
    """How an operation is treated. `settle_us` after the end of its last lease, no request of it arrives any more.
    `status` is None if its route is not known; then only an operator can resolve it."""

    keep: outcomes.KeepPolicy
    replay_us: int
    remember_us: int
    settle_us: int
    status: outcomes.StatusPolicy | None
    recovery: Recovery = Hold()  # noqa: RUF009  a value without state
    deliver_within_us: int = DeliveryPolicy().deliver_within_us


@dataclass(frozen=True, slots=True)
class RoutePolicy:
    """One protected route. `mode` is `enforce` or `observe`; `enforce_share` of its keys is 1 where it is enforced."""

    name: str
    operation: str
    key: KeySpec
    scope: scopes.ScopeSpec
    treatment: Treatment
    mode: str = "enforce"
    enforce_share: float = 1.0


@dataclass(frozen=True, slots=True)
class Policies:
    """All routes of a service, of which there is at least one, and the kinds of its sinks by name. `identity_secret` as
    in `operation_id`. `decision_secrets`: the ids of decisions are keyed with the first one, and found again under all
    of them; empty if they are not keyed. `delivering`: which kept requests they deliver; None: that is not known."""

    service: str
    routes: Sequence[RoutePolicy]
    sinks: Mapping[str, str] = field(default_factory=dict)
    identity_secret: bytes | None = None
    decision_secrets: Sequence[bytes] = ()
    delivering: Delivering | None = None

    def stored_ids(self, decision_id: UUID) -> list[UUID]:
        """What stores may have as the id of this decision, the one to write first. The id is a digest of an operator's
        words and of a response: unkeyed, it would show whether a guess of them is right."""
        content = framed(b"decision", decision_id.bytes)
        keyed = [hmac.digest(secret, content, "sha256")[:16] for secret in self.decision_secrets]
        return [UUID(bytes=each, version=5) for each in keyed] or [decision_id]

    def named(self, name: str) -> RoutePolicy | None:
        return next((route for route in self.routes if route.name == name), None)

    def routes_with(self, operation: str) -> tuple[str, ...]:
        return tuple(route.name for route in self.routes if route.operation == operation)

    def is_own(self, record: Record) -> bool:
        """Whether it is an operation of this service: other services may use the same names."""
        return is_of(record.identity, self.service, record.identity.operation)

    def is_delivered(self, record: Record) -> bool:
        """Whether one of the routes delivers its kept request, as far as is known."""
        if self.delivering is None:
            return bool(self.routes_with(record.identity.operation))
        return self.delivering.includes(record.identity)

    def route_of(self, record: Record) -> RoutePolicy | None:
        """Its route, unless that was removed, or its name now belongs to another operation."""
        route = self.named(record.identity.route)
        return route if route is not None and route.operation == record.identity.operation else None

    def treatment_of(self, record: Record) -> Treatment:
        """The treatment of its route; without one, of the routes with its operation name, else of all routes."""
        route = self.route_of(record)
        if route is not None:
            return route.treatment
        alike = [route.treatment for route in self.routes if route.operation == record.identity.operation]
        return _cautious(alike or [route.treatment for route in self.routes])


def without_peer(scope: scopes.ScopeSpec) -> scopes.ScopeSpec:
    """The same scope, but trusting its headers wherever the connection comes from."""
    match scope:
        case scopes.HeaderScope():
            return replace(scope, trusted=None)
        case scopes.ComposedScope(parts):
            return scopes.ComposedScope(
                tuple(replace(p, trusted=None) if isinstance(p, scopes.HeaderScope) else p for p in parts)
            )
        case _:
            return scope


def asserted_value(part: scopes.VerifiedSpec, headers: Headers) -> bytes | None:
    """The value of a part of a scope that an operator asserts by these headers: nothing of it is verified. That is the
    token of the request, even if it has expired, or a header that names the principal. A certificate cannot be
    asserted: None."""
    match part:
        case scopes.JwtScope(issuers):
            token = read_token(bearer_credential(headers) or b"")
            issuer = next((each for each in issuers if isinstance(token, Token) and token.issuer == each.issuer), None)
            value = claims_value(issuer, token.payload) if issuer and isinstance(token, Token) else None
            return None if isinstance(value, TokenFault) else value
        case scopes.ForwardAuthScope():
            values = header_values(headers, part.principal.lower())
            return part.value_of(values[0].strip(b" \t")) if len(values) == 1 else None
        case scopes.ClientCertificateScope():
            return None
        case _:
            assert_never(part)


def _cautious(several: Sequence[Treatment]) -> Treatment:
    if len(several) == 1:
        return several[0]
    references = {each.keep.reference for each in several}
    return Treatment(
        keep=outcomes.KeepPolicy(
            body_bytes_max=max(each.keep.body_bytes_max for each in several),
            strip=frozenset().union(*(each.keep.strip for each in several)),
            keep=frozenset.intersection(*(each.keep.keep for each in several)),
            redaction=outcomes.Redaction.of_all(each.keep.redaction for each in several),
            reference=references.pop() if len(references) == 1 else None,
            # Of a route that is not known, the version is not either.
            version=None,
            reads_bodies=any(each.keep.reads_bodies for each in several),
            is_fetched=any(each.keep.is_fetched for each in several),
        ),
        replay_us=max(each.replay_us for each in several),
        remember_us=max(each.remember_us for each in several),
        settle_us=max(each.settle_us for each in several),
        status=None,
        deliver_within_us=max(each.deliver_within_us for each in several),
    )


_FORCED: Final = " [forced: "


class Refusal(StrEnum):
    UNKNOWN = "unknown"  # nothing is remembered under this id
    STATE = "state"  # the record is not in a state for it
    MOVED = "moved"  # the record has changed since it was read
    EARLY = "early"  # it cannot be known yet
    RESPONSE = "response"  # by the route's rules this response ends nothing
    JOURNALED = "journaled"  # a journal of this host has the response, or may have it
    UNSURE = "unsure"  # the consequences have to be confirmed
    SERVICE = "service"  # it is another service's


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing was changed. `text` says why and what to do."""

    reason: Refusal
    text: str
    snapshot: Snapshot

    @property
    def status(self) -> int:
        """The status of a response that says so."""
        return 404 if self.reason is Refusal.UNKNOWN else 409

    @property
    def can_be_forced(self) -> bool:
        return self.reason in (Refusal.EARLY, Refusal.RESPONSE)


@dataclass(frozen=True, slots=True)
class Changed:
    """This command, or the same one given before, is in the record. `notes` say what else to know. `purges_pending`
    counts purged operations whose copies in the fast tier could not be dropped. `is_repeat`: the same command was given
    before."""

    text: str
    snapshot: Snapshot
    notes: tuple[str, ...] = ()
    purges_pending: int = 0
    is_repeat: bool = False


@dataclass(frozen=True, slots=True)
class Happened:
    """The operator knows that it happened, and provides the service's response."""

    head: ResponseHead
    body: bytes


@dataclass(frozen=True, slots=True)
class NothingHappened:
    """The operator knows that nothing happened. `drops`: its request, if it is kept, is not delivered again."""

    drops: bool = False


Ruling = Happened | NothingHappened
Resolution = Prove | Disprove | Reinstate


def resolution(record: Record, ruling: Ruling, audit: Audit, treatment: Treatment) -> Resolution:
    """The command for this ruling on this record. Its id is a digest of both: a repeat is the same command. Where
    nothing happened, a kept request is delivered again, unless the ruling drops it."""
    operation_id, content = record.identity.operation_id, _content(audit)
    match ruling:
        case Happened(head, body):
            by_name = head.headers.by_name
            is_kept = treatment.keep.keeps_body(by_name, len(body))
            # A protected route has no method whose responses have no body.
            version = outcomes.version_of(treatment.keep.version, ())
            response = outcomes.stored_response(b"POST", head, body if is_kept else None, treatment.keep, version)
            resource = outcomes.resource_in(treatment.keep.reference, by_name, _document(ruling, treatment))
            # Of what is kept alone: the id is stored, and must not show whether a guess of a redacted value is right.
            content += [b"%d" % response.status, response.reason, response.body or b"", (resource or "").encode()]
            content += [part for header in response.headers for part in header]
            windows = outcomes.windows_us(by_name, treatment.replay_us, treatment.remember_us)
            resolution_id = resolution_id_of(record, Event.PROVE, content)
            return Prove(operation_id, record.token, resolution_id, response, *windows, audit, resource)
        case NothingHappened(drops) if record.delivery is not None and not drops:
            return Reinstate(operation_id, record.token, resolution_id_of(record, Event.REINSTATE, content), audit)
        case NothingHappened():
            resolution_id = resolution_id_of(record, Event.DISPROVE, content)
            return Disprove(operation_id, record.token, resolution_id, treatment.remember_us, audit)
        case _:
            assert_never(ruling)


def _document(ruling: Happened, treatment: Treatment) -> Any:
    """The JSON document of the provided response, where the route reads those; of a conflict its text, too."""
    is_conflict = ruling.head.status == outcomes.CONFLICT
    if not (treatment.keep.reads_bodies or is_conflict):
        return MISSING
    return document_in(ruling.head.headers, ruling.body, takes_text=is_conflict)


def resolution_id_of(record: Record, event: Event, content: Sequence[bytes]) -> UUID:
    """The id of an operator's decision about a record as it was read: the same for the same decision."""
    parts = (b"resolution", record.identity.operation_id.bytes, b"%d" % record.token, event.encode(), *content)
    return UUID(bytes=digest(*parts)[:16], version=5)


def objection(ruling: Ruling, snapshot: Snapshot, treatment: Treatment) -> Refused | None:
    """The refusal of this ruling on a record in doubt, which the operator can overrule; None without one."""
    record = snapshot.record
    if record is None:
        return None
    match ruling:
        case NothingHappened():
            settled_us = record.lease_until_us + treatment.settle_us
            if settled_us <= snapshot.now_us:
                return None
            text = (
                f"A request of the last attempt may still arrive until {moment(settled_us)} (for "
                f"{span(settled_us - snapshot.now_us)} more): that nothing happened cannot be known before. Wait until "
                "then: said too early, it may run twice."
            )
            return Refused(Refusal.EARLY, text, snapshot)
        case Happened(head):
            if treatment.status is None:
                return None
            meaning = outcomes.meaning_of(
                head.status,
                head.headers.by_name,
                treatment.status,
                carries_doubt=record.carries_doubt,
                document=_document(ruling, treatment),
            )
            if meaning is outcomes.Meaning.FINAL:
                return None
            is_retryable = meaning is outcomes.Meaning.RETRYABLE
            known = "that nothing happened" if is_retryable else "nothing certain about what happened"
            text = (
                f"On route {record.identity.route} a response with status {head.status} says {known}; if "
                "recorded, it would be replayed for good. Give the response that says what happened, or resolve it "
                "as never happened."
            )
            return Refused(Refusal.RESPONSE, text, snapshot)
        case _:
            assert_never(ruling)


def forced(audit: Audit, reason: Refusal) -> Audit:
    return Audit(audit.who, f"{audit.why}{_FORCED}{reason}]")


def is_said_by(entry: AuditEntry, audit: Audit) -> bool:
    """Whether this entry records "nothing happened" by the same person for the same reason."""
    is_same = entry.why == audit.why or entry.why.startswith(f"{audit.why}{_FORCED}")
    return entry.event in (Event.DISPROVE, Event.REINSTATE) and entry.who == audit.who and is_same


def would_resolve(command: Resolution, record: Record) -> str:
    """The text for a doubt that this command would end, in the record as it is before."""
    match command:
        case Prove(response=response):
            what = f"it completed with status {response.status}."
        case Reinstate():
            what = "nothing happened. Its kept request would be delivered again; to drop it instead, say so (drop)."
        case Disprove():
            dropped = " Its kept request would be dropped, and not delivered."
            what = f"nothing happened.{'' if record.delivery is None else dropped}"
        case _:
            assert_never(command)
    return f"It would be resolved: {what}"


def resolved(command: Resolution, before: Record, snapshot: Snapshot) -> str:
    """The text for a doubt that this command has ended; `before` is the record that it was in."""
    record = snapshot.record
    match command:
        case Reinstate():
            what = f"nothing happened. Its kept request is delivered again{_delivered_until(snapshot)}."
        case Disprove():
            dropped = "" if before.delivery is None else " Its kept request is dropped, and not delivered."
            what = f"nothing happened.{dropped} The next request with this key runs."
        case Prove(response=response):
            until = "" if record is None else f" until {moment(record.replay_until_us)}"
            what = f"it completed with status {response.status}. Repeats get this response{until}."
        case _:
            assert_never(command)
    return f"Resolved: {what}"


def _delivered_until(snapshot: Snapshot) -> str:
    record = snapshot.record
    if record is None or record.delivery is None:
        return ""
    until_us = record.delivery.deliver_until_us
    if until_us > snapshot.now_us:
        return f", until {at_ago(until_us, snapshot.now_us)}"
    return f" only after a requeue: its time for that ended at {moment(until_us)}, so it is a dead letter"


def unknown(operation_id: UUID, snapshot: Snapshot) -> Refused:
    text = (
        f"Nothing is remembered of operation {operation_id}: it never began, was forgotten, or belongs to another "
        "service or store. Check the id."
    )
    return Refused(Refusal.UNKNOWN, text, snapshot)


def moved(token: int, snapshot: Snapshot) -> Refused:
    """The refusal when the record no longer has this token."""
    now = "" if snapshot.record is None else f", and is now {snapshot.record.token} ({snapshot.record.state})"
    text = f"The operation has moved on: its token was {token}{now}. Nothing was changed. Inspect it again."
    return Refused(Refusal.MOVED, text, snapshot)


def when(snapshot: Snapshot) -> str:
    record = snapshot.record
    if record is None or record.completed_us is None:
        return "before"
    status = "" if record.response is None else f", with status {record.response.status}"
    return f"at {at_ago(record.completed_us, snapshot.now_us)}{status}"


_S = State
_ITS_REQUEST_WAITS: Final = "It is not in doubt: nothing happened, and its request is kept. It "
_COMPLETED: Final = "{done}, {when}; there is nothing to resolve."
_NOT_DELIVERED: Final = "It was not delivered, and has no response to purge. To drop its request, withdraw it."
_KEPT: Final = "Its request is kept, to be delivered: withdraw it first."
_DECIDED_ELSEWHERE: Final = "It completed {when}; there is nothing to {verb}."

_NOTHING_TO_DECIDE: Final = {
    _S.ACCEPTED: "It is no dead letter{by}. Its next attempt is due at {next_attempt}.",
    _S.DEAD_LETTER: "It changed meanwhile{by}. Inspect it again.",
    _S.CLAIMED: "{holder} is {doing} it now, under token {token}{by}. Wait for the outcome.",
    _S.IN_DOUBT: "It is in doubt: it was sent, and may have had its effect. Find that out, and resolve it.",
    _S.COMPLETED: _DECIDED_ELSEWHERE,
    _S.TOMBSTONE: _DECIDED_ELSEWHERE,
    _S.RELEASED: "It waits for nothing{by}: nothing happened, and the next request with its key runs.",
}
_NOTHING_TO: Final[Mapping[str, Mapping[State, str]]] = {
    "resolve": {
        _S.CLAIMED: (
            "{holder} is executing it now, under token {token}. Wait for its response; when its lease ends without "
            "one, in {lease} unless renewed, it is in doubt and can be resolved."
        ),
        _S.COMPLETED: _COMPLETED,
        _S.TOMBSTONE: _COMPLETED,
        _S.ACCEPTED: f"{_ITS_REQUEST_WAITS}is delivered by itself, or withdraw it.",
        _S.DEAD_LETTER: f"{_ITS_REQUEST_WAITS}is a dead letter: requeue or withdraw it.",
        _S.RELEASED: "{done}; the next request with this key runs. There is nothing to resolve.",
    },
    "requeue": _NOTHING_TO_DECIDE,
    "withdraw": _NOTHING_TO_DECIDE,
    "purge": {
        _S.TOMBSTONE: (
            "Its response is not replayed any more, and will be deleted by itself; there is nothing to purge."
        ),
        _S.RELEASED: "It has no response: nothing happened. To forget the key as well, erase it.",
        _S.CLAIMED: "It is being executed by {holder}; there is no response to purge yet.",
        _S.ACCEPTED: _NOT_DELIVERED,
        _S.DEAD_LETTER: _NOT_DELIVERED,
        _S.IN_DOUBT: "It is in doubt and has no response to purge. Doubt cannot be purged: resolve it.",
    },
    "erase": {
        _S.COMPLETED: "It still has a response: purge it first.",
        _S.CLAIMED: "It is being executed, and cannot be erased.",
        _S.IN_DOUBT: "It is in doubt, and doubt cannot be erased: resolve it first.",
        _S.ACCEPTED: _KEPT,
        _S.DEAD_LETTER: _KEPT,
    },
}
"""Why there is nothing to do so about an operation in this state."""

_DONE: Final[Mapping[Event, str]] = {
    Event.PROVE: "It was resolved already",
    Event.DISPROVE: "It was resolved already, as never happened",
    Event.RELEASE: "It is known already that nothing happened",
    Event.FORGET: "It is known already that nothing happened",
    Event.WITHDRAW: "It was withdrawn",
}
_DECIDED: Final = {Event.REQUEUE: "requeued", Event.WITHDRAW: "withdrew", Event.REINSTATE: "resolved"}


def nothing_to(verb: str, snapshot: Snapshot, audits: Sequence[AuditEntry] = ()) -> Refused:
    """The refusal where the record is in no state for this. Names who last decided about its request, if somebody
    did."""
    record, now_us = snapshot.record, snapshot.now_us
    if record is None:
        raise ValueError("there is no record: use `unknown`")
    last = next((entry for entry in reversed(audits) if entry.event in _DECIDED), None)
    by = "" if last is None else f": {last.who} {_DECIDED[last.event]} it {ago(last.at_us, now_us)} ({last.why})"
    text = (
        _NOTHING_TO[verb]
        .get(record.state, "It changed meanwhile; look again.")
        .format(
            verb=verb,
            by=by,
            holder=record.holder,
            token=record.token,
            doing="executing" if record.delivery is None else "delivering",
            done=_DONE.get(record.last_event, "It completed already"),
            when=when(snapshot),
            lease=span(record.lease_until_us - now_us),
            next_attempt="" if record.delivery is None else moment(record.delivery.next_attempt_us),
        )
    )
    return Refused(Refusal.STATE, text, snapshot)


# -- kept requests ----------------------------------------------------------------------------------------------------

Decision = Requeue | Withdraw
"""The same person with the same reason means the same decision, also after the operation has changed again: a repeated
one reports what became of the first."""


def decision(event: Event, record: Record, audit: Audit, treatment: Treatment) -> Decision:
    """The command that delivers a dead letter after all, or calls off what is not delivered yet."""
    about = record.identity.operation_id, record.token, resolution_id_of(record, event, _content(audit))
    if event is Event.REQUEUE:
        return Requeue(*about, treatment.deliver_within_us, audit)
    return Withdraw(*about, treatment.remember_us, audit)


def _content(audit: Audit) -> list[bytes]:
    return [audit.who.encode(), audit.why.encode()]


def decided(command: Decision, snapshot: Snapshot) -> str:
    """The text for a decision that is in the record."""
    record = snapshot.record
    if isinstance(command, Withdraw) or record is None or record.delivery is None:
        return "Withdrawn: its request is dropped, and nothing happened. If its caller sends it again, it runs."
    until = at_ago(record.delivery.deliver_until_us, snapshot.now_us)
    return f"Requeued: it is delivered as soon as possible, until {until}."


def earlier(audits: Sequence[AuditEntry], command: Decision) -> AuditEntry | None:
    """The last time when the same person decided the same for the same reason."""
    event, audit = EVENT_OF[type(command)], command.audit
    same = (entry for entry in reversed(audits) if entry.event is event and Audit(entry.who, entry.why) == audit)
    return next(same, None)


def decided_before(entry: AuditEntry, snapshot: Snapshot) -> str:
    """The text for a decision that was given before, and what became of it."""
    record = snapshot.record
    text = f"The same command was given already, at {at_ago(entry.at_us, snapshot.now_us)}"
    match entry.event, snapshot.state:
        case Event.REQUEUE, State.DEAD_LETTER:
            again = "is a dead letter again"
        case Event.WITHDRAW, State.ACCEPTED | State.DEAD_LETTER:
            again = "was accepted again"
        case _:
            return f"{text}; the operation is {snapshot.state} now."
    token = "" if record is None else f", or its token, {record.token}"
    return f"{text}, but the operation {again}. To do it once more, give another reason{token}."


def operation_named(name: str, policies: Policies, paused: Iterable[str] = ()) -> str:
    """The operation name of a route of this name, else the operation name itself. Raises `NoSuch`."""
    route = policies.named(name)
    if route is not None:
        return route.operation
    if policies.routes_with(name) or name in paused:
        return name
    raise no_such_route(name, policies)


def no_such_route(name: str, policies: Policies) -> NoSuch:
    names = ", ".join(sorted(route.name for route in policies.routes))
    return NoSuch("no-such-route", f"there is no route {name!r}; the configuration has {names}")
