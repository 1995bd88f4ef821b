"""All that is known of one operation, and what to do about it: the same for the console and the admin API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from gateway.admin.journal import advice_of, kept
from gateway.admin.memory import MemoryState
from gateway.admin.policy import Treatment
from gateway.admin.view import advice, audited, described, foreign
from gateway.core.operation import Snapshot
from gateway.store.base import AuditEntry
from gateway.store.journal_base import JournalView


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


def full_json(inspected: Inspected) -> dict[str, Any]:
    """It as JSON values."""
    about = {"operation_id": str(inspected.operation_id), **described(inspected.snapshot, has_body=True)}
    journal = inspected.journal
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
    return advice(inspected.operation_id, inspected.snapshot, settle_us)
