"""Which hosts could tell that the store had lost its memory, and which had to believe what they met."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

from tests.simulation.audit.case import BEGINNINGS, Case
from tests.simulation.history import Change

T = TypeVar("T")
# What is granted because the store says that nothing of the operation ran.
_BELIEVING = BEGINNINGS | {"dispatch"}


def known(case: Case, by_operation: Mapping[str, T]) -> Iterator[tuple[str, T]]:
    """The items but those of operations that were granted after a loss by somebody who could not tell of it."""
    believed = {change.operation_id for change in case.history.changes if is_believer(case, change)}
    return ((operation_id, item) for operation_id, item in by_operation.items() if operation_id not in believed)


def is_believer(case: Case, claim: Change) -> bool:
    """Whether this is a grant after a loss, by a host that met the store, and heard of it, no earlier than that."""
    loss = case.first_losses.get(claim.region)
    if claim.event not in _BELIEVING or loss is None or claim.number < loss.number:
        return False
    asked = next((call.begun for call in case.history.store_calls if call.change == claim.number), claim.at)
    known = _known_since(case, claim.gateway, asked)
    return known is None or known >= loss.at


def _known_since(case: Case, gateway: str, at: float) -> float | None:
    """Since when a host knows of the memory that it goes by: it met it, or was told when it met the store first.

    A host that has neither a note of its own nor what others noted in the fast tier believes what it meets.
    """
    history = case.history
    wipes = [fault.at for fault in history.faults if fault.kind == "note_lost" and fault.gateway == gateway]
    wiped = max((wipe for wipe in wipes if wipe <= at), default=0.0)
    looks = [
        call.acknowledged
        for call in history.store_calls
        if call.verb == "check_memory"
        and call.gateway == gateway
        and call.acknowledged is not None
        and wiped <= call.begun
        and call.acknowledged <= at
    ]
    if not looks:
        return None
    met = min(looks)
    told = [read.noted for read in history.note_reads if read.gateway == gateway and wiped <= read.at <= met]
    return met if not told or told[-1] is None else min(met, told[-1])
