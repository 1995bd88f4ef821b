"""Encrypts what a durable store keeps with the current key, beside gateways that use the store.

It changes nothing about an operation but the bytes of its confidential parts: what another writer changes in between
wins. So it may be stopped at any point and run again, and nothing is ever unreadable in between.

`rekey` reads a table in pages, opens everything, seals what is not sealed with the current key, and has the store write
each row only if it is still as it was read. A row that has changed meanwhile is found by the next pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol
from uuid import UUID

from gateway.core.confidential import Sealing
from gateway.core.immutable import immutable
from gateway.core.operation import Audit, Event, Record, SealedRequest
from gateway.core.outbox import resealed_event
from gateway.core.resealing import Resealing
from gateway.core.sealing import Unopenable

PAGE_ROWS_MAX: Final = 50
"""Rows of one page: writers wait for so many at most, and responses of so many are in memory."""
_PASSES_MAX: Final = 3
EXAMPLES_MAX: Final = 3
"""So many of each kind show whether a key is the one that it was: one may be damaged."""


class Place(StrEnum):
    """What a store keeps confidential values in."""

    RECORDS = "records"
    REQUESTS = "requests"
    AUDITS = "audits"
    PAUSES = "pauses"
    PAUSE_AUDITS = "pause_audits"
    SUSPENSIONS = "suspensions"
    EVENTS = "events"


@immutable
class KeptRequest:
    operation_id: UUID
    request: SealedRequest


@immutable
class KeptAudit:
    operation_id: UUID
    event: Event
    token: int
    audit: Audit


@immutable
class KeptPause:
    """A pause, or the audit of one or of its end."""

    service: str
    operation: str
    audit: Audit
    is_resumed: bool = False


@immutable
class KeptSuspension:
    service: str
    sink: str
    why: str


@immutable
class KeptEventRow:
    event_id: str
    sink: str
    content: bytes
    response: bytes | None
    why: str


Kept = Record | KeptRequest | KeptAudit | KeptPause | KeptSuspension | KeptEventRow
"""A row as it is stored. Records have their whole response."""


@immutable
class Row:
    """A row in the store's own order: `after` continues behind it. `kept` is None where it `is_gone` since, or this
    program cannot read it."""

    after: Any
    kept: Kept | None
    is_gone: bool = False


class SealedRows(Protocol):
    """What `rekey` needs of a durable store. Everything raises `StoreError`."""

    async def sealed_rows(self, place: Place, after: Any, limit: int) -> list[Row]:
        """The next rows behind this one (None: from the first)."""

    async def reseal(self, place: Place, changes: Sequence[tuple[Row, Kept]]) -> int:
        """Replace the confidential values of rows that are as they were read; returns how many were. All of a page are
        one transaction at most."""


@dataclass(slots=True)
class Rekeyed:
    """What became of the rows of one place. `left`: what the last pass could not do, because it cannot be read, or
    because it changed each time."""

    changed: int = 0
    left: int = 0
    why: str = ""


async def rekey(
    store: SealedRows, place: Place, sealing: Sealing, on_page: Callable[[int], None] = lambda _: None
) -> Rekeyed:
    """Encrypt what is kept in one place with the current key. `on_page` gets how many rows were changed so far."""
    done = Rekeyed()
    for _ in range(_PASSES_MAX):
        done.left, lost = 0, 0
        after: Any = None
        while rows := await store.sealed_rows(place, after, PAGE_ROWS_MAX):
            after = rows[-1].after
            changes = []
            for row in rows:
                if row.is_gone:
                    continue
                again, why = (None, "a newer program wrote it") if row.kept is None else _resealed(row.kept, sealing)
                if why:
                    done.left, done.why = done.left + 1, why
                if again is not None:
                    changes.append((row, again))
            if changes:
                number = await store.reseal(place, changes)
                done.changed += number
                lost += len(changes) - number
                on_page(done.changed)
        done.left += lost
        if not lost:
            break
    return done


def why_unopenable(examples: Sequence[Kept], sealing: Sealing) -> str | None:
    """Why none of these can be opened; None if one can, or if there are none."""
    reasons = [_resealed(kept, sealing)[1] for kept in examples]
    return reasons[0] if reasons and all(reasons) else None


def _resealed(kept: Kept, sealing: Sealing) -> tuple[Kept | None, str]:
    """The row under the current key, None if nothing changes; and why a part of it is left, empty if none is."""
    found: Kept
    reasons: list[str] = []
    resealing = Resealing(sealing, lambda _, why: reasons.append(why))
    match kept:
        case Record():
            found = resealing.resealed(kept)
        case KeptRequest(operation_id, request):
            found = KeptRequest(operation_id, resealing.resealed_request(request, operation_id))
        case KeptAudit(operation_id, event, token, audit):
            found = KeptAudit(operation_id, event, token, resealing.resealed_audit(audit, operation_id, event, token))
        case KeptPause(service, operation, audit, is_resumed):
            again = resealing.resealed_pause(audit, service, operation, is_resumed=is_resumed)
            found = KeptPause(service, operation, again, is_resumed)
        case KeptSuspension(service, sink, why):
            found = KeptSuspension(service, sink, resealing.resealed_suspension(why, service, sink))
        case KeptEventRow(event_id, sink, content, response, why):
            try:
                content, response = resealed_event(content, response, event_id, sink, resealing)
            except Unopenable as error:
                reasons.append(str(error))
            found = KeptEventRow(event_id, sink, content, response, resealing.resealed_failure(why, event_id, sink))
    return (None if found == kept else found), (reasons[0] if reasons else "")
