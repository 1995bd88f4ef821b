"""All that is known of one operation, and what happens to it next, for the console and the admin API.

Pure: values in, values and sentences out. Does not know whether a gateway is running that would recover the operation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, assert_never
from uuid import UUID

from gateway.admin.delivery import Paused
from gateway.admin.journal import advice_of, kept
from gateway.admin.memory import MemoryState
from gateway.admin.resolution import Treatment
from gateway.admin.view import advice, ago, described, foreign, moment, stranded_advice
from gateway.core.operation import Record, Snapshot, State
from gateway.core.recovery import Hold, Probe, Recovery, Resend, probe_target
from gateway.store.journal import JournalView
from gateway.store.operations import AuditEntry, RecoveryState


@dataclass(frozen=True, slots=True)
class Doubt:
    """A record in doubt at `now_us` of the store's clock, and how its route recovers."""

    recovery: Recovery
    record: Record
    probes: RecoveryState | None
    now_us: int

    @property
    def asked(self) -> RecoveryState | None:
        """The probes of this doubt. Before a takeover there may have been another doubt, with its own probes."""
        return self.probes if self.probes is not None and self.probes.token == self.record.token else None


def recovery_json(doubt: Doubt) -> dict[str, Any]:
    """The recovery as JSON values. Without `next_probe_at` there is no next probe, or it is due."""
    about: dict[str, Any] = {"policy": type(doubt.recovery).__name__.lower()}
    asked = doubt.asked
    if asked is not None:
        about["probes"] = asked.tries
        if asked.asked_us:
            about |= {"last_probe_at": moment(asked.asked_us), "last_finding": asked.finding}
        if _is_asked(doubt) and asked.is_put_off(doubt.now_us):
            about["next_probe_at"] = moment(asked.put_off_until_us)
    return about


def recovery_rows(doubt: Doubt) -> list[tuple[str, str]]:
    """The same as labels and texts."""
    rows = [("recovery", type(doubt.recovery).__name__.lower())]
    asked = doubt.asked
    if asked is not None and asked.asked_us:
        rows.append(("last probe", f"{_when(asked.asked_us, doubt)}: {asked.finding}"))
    if _is_asked(doubt):
        rows.append(("next probe", _next_probe(doubt)))
    return rows


def recovery_step(doubt: Doubt) -> str:
    """A sentence about what happens without an operator."""
    match doubt.recovery:
        case Hold():
            return "Nothing happens to it until an operator resolves it."
        case Resend() if doubt.record.delivery is not None:
            return "A running gateway sends its kept request to the service again, after the pauses of its schedule."
        case Resend():
            return "The next repeat of its request is sent to the service again; nothing happens before that."
        case Probe() if not _is_asked(doubt):
            return (
                "It cannot be probed: it was claimed before its route had this probe, and is stored without what the "
                "probe needs (the key, the host or the path). Nothing happens to it until an operator resolves it."
            )
        case Probe():
            match _next_probe(doubt):
                case "due":
                    return "A running gateway is about to ask the service about it."
                case "under way":
                    return "A running gateway is asking the service about it."
                case then:
                    return f"A running gateway asks the service about it: {then}, and sooner for a repeat."
        case _:
            assert_never(doubt.recovery)


def _is_asked(doubt: Doubt) -> bool:
    return isinstance(doubt.recovery, Probe) and probe_target(doubt.recovery, doubt.record) is not None


def _next_probe(doubt: Doubt) -> str:
    asked = doubt.asked
    if asked is not None and asked.is_held(doubt.now_us):
        return "under way"
    if asked is not None and asked.is_put_off(doubt.now_us):
        return _when(asked.put_off_until_us, doubt)
    return "due"


def _when(at_us: int, doubt: Doubt) -> str:
    return f"{moment(at_us)} ({ago(at_us, doubt.now_us)})"


@dataclass(frozen=True, slots=True)
class Inspected:
    """All that is known of an operation."""

    operation_id: UUID
    snapshot: Snapshot
    audits: tuple[AuditEntry, ...]
    treatment: Treatment | None
    """None where nothing is remembered, or for an operation of another service."""
    journal: JournalView
    """Its outcomes in the journals of this host."""
    memory: MemoryState | None = None
    """The state of the store's memory, if its loss makes the next request with this key be refused."""
    probes: RecoveryState | None = None
    """Its probes, if it is in doubt and there were any."""
    pause: Paused | None = None
    """The pause of its operation name, if it is accepted."""
    is_stranded: bool = False
    """It is accepted, and no route of this configuration delivers it."""

    @property
    def doubt(self) -> Doubt | None:
        """Its doubt and how gateways recover it; None where there is none, or it is another service's."""
        record = self.snapshot.record
        if record is None or record.state is not State.IN_DOUBT or self.treatment is None:
            return None
        return Doubt(self.treatment.recovery, record, self.probes, self.snapshot.now_us)


def full_json(inspected: Inspected) -> dict[str, Any]:
    """All of it as JSON values."""
    about = {"operation_id": str(inspected.operation_id), **described(inspected.snapshot, has_body=True)}
    doubt, journal = inspected.doubt, inspected.journal
    if doubt is not None:
        about["recovery"] = recovery_json(doubt)
    if inspected.pause is not None:
        about["paused"] = inspected.pause.document
    if journal.entries:
        about["journal"] = [kept(entry, journal.now_us) for entry in journal.entries]
    audits = [
        {"at": moment(each.at_us), "event": each.event, "token": each.token, "who": each.who, "why": each.why}
        for each in inspected.audits
    ]
    return {**about, "audits": audits, "next": next_step(inspected)}


def next_step(inspected: Inspected, *, is_page: bool = False) -> str:
    """A sentence about what an operator should do next. `is_page`: as in `view.advice`."""
    known = advice_of(inspected.snapshot.record, inspected.journal)
    if known is not None:
        return known
    if inspected.memory is not None:
        return inspected.memory.told(is_page=is_page)
    if inspected.snapshot.record is not None and inspected.treatment is None:
        return foreign(is_page=is_page)
    settle_us = None if inspected.treatment is None else inspected.treatment.settle_us
    text = advice(inspected.operation_id, inspected.snapshot, settle_us, is_page=is_page)
    record = inspected.snapshot.record
    if inspected.is_stranded and record is not None:
        return stranded_advice(record, inspected.snapshot.now_us, is_page=is_page)
    if inspected.pause is not None:
        goes_on = "It goes on when that is resumed, on the page Pauses." if is_page else "It goes on with: resume."
        return f"Its delivery is paused: {inspected.pause}. {goes_on} {text}"
    return text if inspected.doubt is None else f"{recovery_step(inspected.doubt)} {text}"
