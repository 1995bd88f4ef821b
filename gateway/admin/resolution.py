"""What an operator's ruling about an operation becomes: a command, or a refusal that says why. Pure.

The id of a resolution is derived from all that was said and from the token it was said of: given again, it is the same
command. "Nothing happened" has a time before which it cannot be known, and an answer has to be one that ends a doubt;
both can be overruled by whoever asks, never here.

What has to be known of the routes is `Policies`, which the composition root makes of the configuration. Records outlive
names: a route may have been renamed or removed since. Then what is asked of it is answered with care: the longest waits
and the longest memory of the routes that it may have been.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, assert_never
from uuid import UUID

from gateway.admin.view import ago, moment, span
from gateway.core.framing import digest
from gateway.core.identity.key import KeySpec
from gateway.core.identity.operation_id import is_of
from gateway.core.identity.scope import ComposedScope, HeaderScope, ScopeSpec
from gateway.core.message import ResponseHead
from gateway.core.operation import Audit, Disprove, Event, Prove, Record, Snapshot, State
from gateway.core.outcome import Meaning, StatusPolicy, meaning_of, windows_us
from gateway.core.recovery import Hold, Recovery
from gateway.core.replay import KeepPolicy, stored_response
from gateway.store.operations import AuditEntry


@dataclass(frozen=True, slots=True)
class Treatment:
    """How an operation is treated. `settle_us` counts from the end of its last lease: no request arrives later.

    `status` is None where it is not known which route it was; then nothing recovers it but somebody.
    """

    keep: KeepPolicy
    replay_us: int
    remember_us: int
    settle_us: int
    status: StatusPolicy | None
    recovery: Recovery = Hold()  # noqa: RUF009  a value without state


@dataclass(frozen=True, slots=True)
class RoutePolicy:
    """One protected route."""

    name: str
    operation: str
    key: KeySpec
    scope: ScopeSpec
    treatment: Treatment


class Policies:
    """All routes of a service, of which there is at least one."""

    def __init__(self, service: str, routes: Sequence[RoutePolicy]) -> None:
        self.service = service
        self.routes = tuple(routes)

    def named(self, name: str) -> RoutePolicy | None:
        """The route of that name."""
        return next((route for route in self.routes if route.name == name), None)

    def is_own(self, record: Record) -> bool:
        """Whether it is an operation of this service: those of others may have the same names."""
        return is_of(record.identity, self.service, record.identity.operation)

    def route_of(self, record: Record) -> RoutePolicy | None:
        """Its route, unless that is gone, or its name is another operation's now."""
        route = self.named(record.identity.route)
        return route if route is not None and route.operation == record.identity.operation else None

    def treatment_of(self, record: Record) -> Treatment:
        """Those of its route; of the routes with its operation name when that is gone; else of all of them."""
        route = self.route_of(record)
        if route is not None:
            return route.treatment
        alike = [route.treatment for route in self.routes if route.operation == record.identity.operation]
        return _careful(alike or [route.treatment for route in self.routes])


def without_peer(scope: ScopeSpec) -> ScopeSpec:
    """The same scope for somebody who is trusted to name the caller, wherever the connection comes from."""
    match scope:
        case HeaderScope():
            return replace(scope, trusted=None)
        case ComposedScope(parts):
            return ComposedScope(tuple(replace(p, trusted=None) if isinstance(p, HeaderScope) else p for p in parts))
        case _:
            return scope


def _careful(several: Sequence[Treatment]) -> Treatment:
    if len(several) == 1:
        return several[0]
    return Treatment(
        keep=KeepPolicy(
            body_bytes_max=max(each.keep.body_bytes_max for each in several),
            strip=frozenset().union(*(each.keep.strip for each in several)),
            keep=frozenset.intersection(*(each.keep.keep for each in several)),
        ),
        replay_us=max(each.replay_us for each in several),
        remember_us=max(each.remember_us for each in several),
        settle_us=max(each.settle_us for each in several),
        status=None,
    )


_FORCED: Final = " [forced: "


class Refusal(StrEnum):
    """Why nothing is done about an operation."""

    UNKNOWN = "unknown"  # nothing is remembered under this id
    STATE = "state"  # the record is not in a state for it
    MOVED = "moved"  # the record is not the one that was looked at
    EARLY = "early"  # it cannot be known yet
    ANSWER = "answer"  # by the route's rules this answer ends nothing
    UNSURE = "unsure"  # what it means has to be confirmed
    SERVICE = "service"  # it is another service's


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing was changed. `text` says why and what to do."""

    reason: Refusal
    text: str
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class Changed:
    """It is in the record, by this command or by the same one given before. `notes` are what else there is to know.

    `purges_pending` are purged operations of which the fast tier could not be told. `is_repeat`: by the same one given
    before.
    """

    text: str
    snapshot: Snapshot
    notes: tuple[str, ...] = ()
    purges_pending: int = 0
    is_repeat: bool = False


@dataclass(frozen=True, slots=True)
class Happened:
    """The operator knows that it happened, and brings the service's answer."""

    head: ResponseHead
    body: bytes


@dataclass(frozen=True, slots=True)
class NothingHappened:
    """The operator knows that nothing happened."""


Ruling = Happened | NothingHappened


def resolution(record: Record, ruling: Ruling, audit: Audit, treatment: Treatment) -> Prove | Disprove:
    """The command that says this of this record. Its id is that of everything said: a repeat is the same command."""
    operation_id, said = record.identity.operation_id, [audit.who.encode(), audit.why.encode()]
    match ruling:
        case Happened(head, body):
            is_kept = treatment.keep.keeps_body(head.headers, len(body))
            # A protected route has no method whose answers have no body.
            response = stored_response(b"POST", head, body if is_kept else None, treatment.keep)
            said += [b"%d" % head.status, head.reason, *(part for field in head.headers for part in field), body]
            windows = windows_us(head.headers, treatment.replay_us, treatment.remember_us)
            resolution_id = _resolution_id(operation_id, record.token, Event.PROVE, said)
            return Prove(operation_id, record.token, resolution_id, response, *windows, audit)
        case NothingHappened():
            resolution_id = _resolution_id(operation_id, record.token, Event.DISPROVE, said)
            return Disprove(operation_id, record.token, resolution_id, treatment.remember_us, audit)
        case _:
            assert_never(ruling)


def _resolution_id(operation_id: UUID, token: int, event: Event, said: list[bytes]) -> UUID:
    parts = (b"resolution", operation_id.bytes, b"%d" % token, event.encode(), *said)
    return UUID(bytes=digest(*parts)[:16], version=5)


def objection(ruling: Ruling, snapshot: Snapshot, treatment: Treatment) -> Refused | None:
    """What speaks against this ruling about a record in doubt, and can be overruled."""
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
                "then, or force it if you know more than the gateway."
            )
            return Refused(Refusal.EARLY, text, snapshot)
        case Happened(head):
            if treatment.status is None:
                return None
            meaning = meaning_of(head.status, head.headers, treatment.status, carries_doubt=record.carries_doubt)
            if meaning is Meaning.FINAL:
                return None
            said = "that nothing happened" if meaning is Meaning.RETRYABLE else "nothing certain about what happened"
            text = (
                f"On route {record.identity.route} an answer with status {head.status} says {said}; if "
                "recorded, it would be replayed for good. Give the answer that says what happened, resolve it as never "
                "happened, or force it."
            )
            return Refused(Refusal.ANSWER, text, snapshot)
        case _:
            assert_never(ruling)


def forced(audit: Audit, reason: Refusal) -> Audit:
    """The same, for what was done in spite of this."""
    return Audit(audit.who, f"{audit.why}{_FORCED}{reason}]")


def is_said_by(entry: AuditEntry, audit: Audit) -> bool:
    """Whether this is what is left of "nothing happened", said by the same for the same reason."""
    is_same = entry.why == audit.why or entry.why.startswith(f"{audit.why}{_FORCED}")
    return entry.event is Event.DISPROVE and entry.who == audit.who and is_same


def would_resolve(command: Prove | Disprove) -> str:
    """What to say of a doubt that this command would end."""
    if isinstance(command, Disprove):
        return "It would be resolved: nothing happened."
    return f"It would be resolved: it completed with status {command.response.status}."


def resolved(command: Prove | Disprove, snapshot: Snapshot) -> str:
    """What to say of a doubt that this command has ended."""
    record = snapshot.record
    if isinstance(command, Disprove):
        return "Resolved: nothing happened. The next request with this key runs."
    until = "" if record is None else f" until {moment(record.replay_until_us)}"
    return f"Resolved: it completed with status {command.response.status}. Repeats get this answer{until}."


def unknown(operation_id: UUID, snapshot: Snapshot) -> Refused:
    """There is no record."""
    text = (
        f"Nothing is remembered of operation {operation_id}: it never began, was forgotten, or belongs to another "
        "service or store. Check the id."
    )
    return Refused(Refusal.UNKNOWN, text, snapshot)


def moved(token: int, snapshot: Snapshot) -> Refused:
    """The record is not the one with this token any more."""
    now = "" if snapshot.record is None else f", and is now {snapshot.record.token} ({snapshot.record.state})"
    text = f"The operation has moved on: its token was {token}{now}. Nothing was changed. Look again."
    return Refused(Refusal.MOVED, text, snapshot)


_BY_EVENT: Final[Mapping[Event, str]] = {
    Event.PROVE: "It was resolved already",
    Event.COMPLETE: "It completed already",
    Event.DISPROVE: "It was resolved already, as never happened",
    Event.RELEASE: "It is known already that nothing happened",
    Event.FORGET: "It is known already that nothing happened",
}


def nothing_to_resolve(snapshot: Snapshot) -> Refused:
    """The record is not in doubt."""
    record = snapshot.record
    if record is None:
        raise ValueError("a record that is absent has a text of its own")
    done = _BY_EVENT.get(record.last_event, "It completed already")
    match record.state:
        case State.CLAIMED:
            lease_us = record.lease_until_us - snapshot.now_us
            text = (
                f"{record.holder} is executing it now, under token {record.token}. Wait for its answer; when its lease "
                f"ends without one, in {span(lease_us)} unless renewed, it is in doubt and can be resolved."
            )
        case State.COMPLETED | State.TOMBSTONE:
            text = f"{done}, {when(snapshot)}; there is nothing to resolve."
        case _:
            text = f"{done}; the next request with this key runs. There is nothing to resolve."
    return Refused(Refusal.STATE, text, snapshot)


def when(snapshot: Snapshot) -> str:
    """When it completed, and with what."""
    record = snapshot.record
    if record is None or record.completed_us is None:
        return "before"
    status = "" if record.response is None else f", with status {record.response.status}"
    return f"at {moment(record.completed_us)} ({ago(record.completed_us, snapshot.now_us)}){status}"
