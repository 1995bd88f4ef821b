"""All that is known of one operation, and what happens to it next, for the console and the admin API.

Pure: values in, values and sentences out. Does not know whether a gateway is running that would recover the operation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, assert_never
from uuid import UUID

from gateway.admin.journal import advice_of, kept
from gateway.admin.memory import MemoryState
from gateway.admin.resolution import Paused, Treatment
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

    @property
    def document(self) -> dict[str, Any]:
        """The recovery as JSON values. Without `next_probe_at` there is no next probe, or it is due."""
        about: dict[str, Any] = {"policy": type(self.recovery).__name__.lower()}
        asked = self.asked
        if asked is not None:
            about["probes"] = asked.tries
            if asked.asked_us:
                about |= {"last_probe_at": moment(asked.asked_us), "last_finding": asked.finding}
            if self._is_asked and asked.is_put_off(self.now_us):
                about["next_probe_at"] = moment(asked.put_off_until_us)
        return about

    @property
    def rows(self) -> list[tuple[str, str]]:
        """The same as labels and texts."""
        rows = [("recovery", type(self.recovery).__name__.lower())]
        asked = self.asked
        if asked is not None and asked.asked_us:
            rows.append(("last probe", f"{self._when(asked.asked_us)}: {asked.finding}"))
        if self._is_asked:
            rows.append(("next probe", self._next_probe))
        return rows

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

    @property
    def _is_asked(self) -> bool:
        return isinstance(self.recovery, Probe) and probe_target(self.recovery, self.record) is not None

    @property
    def _next_probe(self) -> str:
        asked = self.asked
        if asked is not None and asked.is_held(self.now_us):
            return "under way"
        return self._when(asked.put_off_until_us) if asked is not None and asked.is_put_off(self.now_us) else "due"

    def _when(self, at_us: int) -> str:
        return f"{moment(at_us)} ({ago(at_us, self.now_us)})"


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
        about["recovery"] = doubt.document
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
    return text if inspected.doubt is None else f"{inspected.doubt.step} {text}"
