"""All that is known of one operation, and what to do about it: the same for the console and the admin API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from gateway.admin.journal import advice_of, kept
from gateway.admin.memory import MemoryState
from gateway.admin.policy import Treatment
from gateway.admin.recovery import Doubt, recovery_json, recovery_step
from gateway.admin.view import advice, audited, described, foreign
from gateway.core.operation import Snapshot, State
from gateway.store.journal import JournalView
from gateway.store.operations import AuditEntry, RecoveryState


@dataclass(frozen=True, slots=True)
class Inspected:
    """All that is known of an operation."""

    operation_id: UUID
    snapshot: Snapshot
    audits: tuple[AuditEntry, ...]
    treatment: Treatment | None
    """None where nothing is remembered, or of an operation of another service."""
    journal: JournalView
    """What the journals of this host hold of it."""
    memory: MemoryState | None = None
    """What the store says of its memory, where the next request with this key is refused for what was lost of it."""
    probes: RecoveryState | None = None
    """What is kept of its probes, where it is in doubt and there were any."""

    @property
    def doubt(self) -> Doubt | None:
        """What gateways do about the doubt; None where there is none, or it is another service's."""
        record = self.snapshot.record
        if record is None or record.state is not State.IN_DOUBT or self.treatment is None:
            return None
        return Doubt(self.treatment.recovery, record, self.probes, self.snapshot.now_us)


def full_json(inspected: Inspected) -> dict[str, Any]:
    """It as JSON values."""
    about = {"operation_id": str(inspected.operation_id), **described(inspected.snapshot, has_body=True)}
    doubt, journal = inspected.doubt, inspected.journal
    if doubt is not None:
        about["recovery"] = recovery_json(doubt)
    if journal.entries:
        about["journal"] = [kept(entry, journal.now_us) for entry in journal.entries]
    return {**about, "audits": audited(inspected.audits), "next": next_step(inspected)}


def next_step(inspected: Inspected) -> str:
    """What an operator does next, in a sentence."""
    known = advice_of(inspected.snapshot.record, inspected.journal)
    if known is not None:
        return known
    if inspected.memory is not None:
        return inspected.memory.text
    if inspected.snapshot.record is not None and inspected.treatment is None:
        return foreign()
    settle_us = None if inspected.treatment is None else inspected.treatment.settle_us
    text = advice(inspected.operation_id, inspected.snapshot, settle_us)
    return text if inspected.doubt is None else f"{recovery_step(inspected.doubt)} {text}"
