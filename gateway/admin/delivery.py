"""What operators decide about kept requests: requeue, withdraw, pause and resume, as commands and as texts. Pure.

A decision is fenced on the token that was read, and its id is a digest of it. The same person with the same reason
means the same decision, also after the operation has changed again: a repeated one reports what became of the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, assert_never

from gateway.admin.fault import NoSuch
from gateway.admin.resolution import Policies, Refusal, Refused, Treatment, resolution_id_of, when
from gateway.admin.view import ago, moment, printable
from gateway.core.operation import EVENT_OF, Audit, Event, Record, Requeue, Snapshot, State, Withdraw, delivery_of
from gateway.store.operations import AuditEntry, Pause

Decision = Requeue | Withdraw

_DONE: Final = {Event.REQUEUE: "requeued", Event.WITHDRAW: "withdrew", Event.REINSTATE: "resolved"}


def requeueing(record: Record, audit: Audit, treatment: Treatment) -> Requeue:
    """The command that delivers a dead letter after all."""
    resolution_id = resolution_id_of(record, Event.REQUEUE, _content(audit))
    operation_id = record.identity.operation_id
    return Requeue(operation_id, record.token, resolution_id, treatment.deliver_within_us, audit)


def withdrawal(record: Record, audit: Audit, treatment: Treatment) -> Withdraw:
    """The command that calls off what is not delivered yet."""
    resolution_id = resolution_id_of(record, Event.WITHDRAW, _content(audit))
    return Withdraw(record.identity.operation_id, record.token, resolution_id, treatment.remember_us, audit)


def _content(audit: Audit) -> list[bytes]:
    return [audit.who.encode(), audit.why.encode()]


def decided(command: Decision, snapshot: Snapshot) -> str:
    """The text for a decision that is in the record."""
    record = snapshot.record
    if isinstance(command, Withdraw) or record is None or record.delivery is None:
        return "Withdrawn: its request is dropped, and nothing happened. If its caller sends it again, it runs."
    until_us = record.delivery.deliver_until_us
    return (
        f"Requeued: it is delivered as soon as possible, until {moment(until_us)} ({ago(until_us, snapshot.now_us)})."
    )


def earlier(audits: Sequence[AuditEntry], command: Decision) -> AuditEntry | None:
    """The last time when the same person decided the same for the same reason."""
    event, audit = EVENT_OF[type(command)], command.audit
    same = (entry for entry in reversed(audits) if entry.event is event and Audit(entry.who, entry.why) == audit)
    return next(same, None)


def decided_before(entry: AuditEntry, snapshot: Snapshot) -> str:
    """The text for a decision that was given before, and what became of it."""
    record = snapshot.record
    text = f"The same command was given already, at {moment(entry.at_us)} ({ago(entry.at_us, snapshot.now_us)})"
    match entry.event, snapshot.state:
        case Event.REQUEUE, State.DEAD_LETTER:
            again = "is a dead letter again"
        case Event.WITHDRAW, State.ACCEPTED | State.DEAD_LETTER:
            again = "was accepted again"
        case _:
            return f"{text}; the operation is {snapshot.state} now."
    token = "" if record is None else f", or its token, {record.token}"
    return f"{text}, but the operation {again}. To do it once more, give another reason{token}."


def nothing_to_decide(command: Decision, snapshot: Snapshot, audits: Sequence[AuditEntry]) -> Refused:
    """The refusal when the record is in no state for this decision. Names who changed it, if somebody did."""
    record = snapshot.record
    if record is None:
        raise ValueError("there is no record: use `unknown`")
    match record.state:
        case State.ACCEPTED:
            at_us = delivery_of(record).next_attempt_us
            text = f"It is no dead letter{_by(audits, snapshot)}. Its next attempt is due at {moment(at_us)}."
        case State.DEAD_LETTER:
            text = f"It changed meanwhile{_by(audits, snapshot)}. Inspect it again."
        case State.CLAIMED:
            doing = "executing" if record.delivery is None else "delivering"
            text = (
                f"{record.holder} is {doing} it now, under token {record.token}{_by(audits, snapshot)}. Wait "
                "for the outcome."
            )
        case State.IN_DOUBT:
            text = "It is in doubt: it was sent, and may have had its effect. Find that out, and resolve it."
        case State.COMPLETED | State.TOMBSTONE:
            text = f"It completed {when(snapshot)}; there is nothing to {EVENT_OF[type(command)]}."
        case State.RELEASED:
            text = (
                f"It waits for nothing{_by(audits, snapshot)}: nothing happened, and the next request with its "
                "key runs."
            )
        case State.ABSENT:
            raise ValueError("a record is never in the state absent")
        case _:
            assert_never(record.state)
    return Refused(Refusal.STATE, text, snapshot)


def _by(audits: Sequence[AuditEntry], snapshot: Snapshot) -> str:
    """Who last decided about its request, and when."""
    last = next((entry for entry in reversed(audits) if entry.event in _DONE), None)
    if last is None:
        return ""
    return f": {last.who} {_DONE[last.event]} it {ago(last.at_us, snapshot.now_us)} ({last.why})"


# -- pauses -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Paused:
    """An operation name that is paused, with the routes that have it."""

    operation: str
    routes: tuple[str, ...]
    pause: Pause

    @property
    def document(self) -> dict[str, Any]:
        """It as JSON values."""
        pause = self.pause
        return {
            "operation": self.operation,
            "routes": self.routes,
            "since": moment(pause.since_us),
            "by": pause.who,
            "why": pause.why,
        }

    def __str__(self) -> str:
        pause = self.pause
        about = named(self.operation, self.routes)
        return f"{about}, since {moment(pause.since_us)}, by {printable(pause.who)}: {printable(pause.why)}"


def operation_named(name: str, policies: Policies, paused: Sequence[Paused] = ()) -> str:
    """The operation name of a route of this name, else the operation name itself. Raises `NoSuch`."""
    route = policies.named(name)
    if route is not None:
        return route.operation
    if policies.routes_with(name) or any(each.operation == name for each in paused):
        return name
    raise no_such_route(name, policies)


def no_such_route(name: str, policies: Policies) -> NoSuch:
    """The error for a name that is no route."""
    names = ", ".join(sorted(route.name for route in policies.routes))
    return NoSuch("no-such-route", f"there is no route {name!r}; the configuration has {names}")


def named(operation: str, routes: Sequence[str]) -> str:
    """An operation name, with its routes unless it is the name of the only one."""
    if tuple(routes) == (operation,):
        return operation
    return f"{operation} ({', '.join(routes) if routes else 'no route of this configuration'})"
