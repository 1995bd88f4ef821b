"""Encrypts what a durable store keeps with the current key, beside gateways that use the store.

It changes nothing about an operation but the bytes of its confidential parts: what another writer changes in between
wins. So it may be stopped at any point and run again, and nothing is ever unreadable in between.

`rekey` reads a table in pages, opens everything, seals what is not sealed with the current key, and has the store write
each row only if it is still as it was read. A row that has changed meanwhile is found by the next pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol
from uuid import UUID

from gateway.core.confidential import FAILURE, TEXT, TEXTS, Resealing, Sealing, of_audit, of_pause, of_suspension
from gateway.core.immutable import immutable
from gateway.core.operation import Audit, Event, Record, SealedRequest
from gateway.core.outbox import resealed_event
from gateway.core.sealing import Unopenable

PAGE_ROWS_MAX: Final = 50
"""Rows of one page: writers wait for so many at most, and responses of so many are in memory."""
_PASSES_MAX: Final = 3
_NEWER: Final = "a newer program wrote it"
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
class Values:
    """What a row of another place than `RECORDS` has: the columns `values` of `SEALED`, and before them the columns
    `about` that these are bound to."""

    place: Place
    columns: tuple[Any, ...]

    @property
    def values(self) -> tuple[Any, ...]:
        return self.columns[-len(SEALED[self.place].values) :]


Kept = Record | Values
"""A row as it is stored. Records have their whole response."""


@immutable
class _Sealed:
    """The columns of a place that are encrypted, and those that they are bound to. `again` is called with a `Resealing`
    and the values of both, and returns the former under the current key. Ids of operations and acceptances are
    `UUID`s."""

    about: tuple[str, ...]
    values: tuple[str, ...]
    again: Callable[..., tuple[Any, ...]]


def _request(again: Resealing, operation_id: UUID, acceptance_id: UUID, key_id: str, sealed: bytes) -> tuple[Any, ...]:
    kept = again.resealed_request(SealedRequest(acceptance_id, key_id, sealed), operation_id)
    return kept.key_id, kept.sealed


def _audit(again: Resealing, operation_id: UUID, name: str, token: int, *texts: str) -> tuple[str, str]:
    return _texts(again, of_audit(operation_id, Event(name), token), *texts)


def _pause(again: Resealing, service: str, operation: str, *texts: str) -> tuple[str, str]:
    return _texts(again, of_pause(service, operation, is_resumed=False), *texts)


def _pause_audit(again: Resealing, service: str, operation: str, is_resumed: int, *texts: str) -> tuple[str, str]:
    return _texts(again, of_pause(service, operation, is_resumed=bool(is_resumed)), *texts)


def _texts(again: Resealing, associated: bytes, who: str, why: str) -> tuple[str, str]:
    audit = again.again(TEXTS, Audit(who, why), associated)
    return audit.who, audit.why


def _suspension(again: Resealing, service: str, sink: str, why: str) -> tuple[str]:
    return (again.again(TEXT, why, of_suspension(service, sink)),)


def _event(
    again: Resealing, event_id: str, sink: str, content: bytes, response: bytes | None, why: str
) -> tuple[Any, ...]:
    try:
        content, response = resealed_event(content, response, event_id, sink, again)
    except Unopenable as error:
        again.reasons.append(str(error))
    return content, response, again.again(FAILURE, why, sink, event_id)


SEALED: Final[Mapping[Place, _Sealed]] = {
    Place.REQUESTS: _Sealed(("operation_id", "acceptance_id"), ("key_id", "sealed"), _request),
    Place.AUDITS: _Sealed(("operation_id", "event", "token"), ("who", "why"), _audit),
    Place.PAUSES: _Sealed(("service", "operation"), ("who", "why"), _pause),
    Place.PAUSE_AUDITS: _Sealed(("service", "operation", "is_resumed"), ("who", "why"), _pause_audit),
    Place.SUSPENSIONS: _Sealed(("service", "sink"), ("why",), _suspension),
    Place.EVENTS: _Sealed(("event_id", "sink"), ("content", "response", "why"), _event),
}
"""Of each place but `RECORDS`."""


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

    async def reseal(self, changes: Sequence[tuple[Row, Kept]]) -> int:
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
                again, why = (None, _NEWER) if row.kept is None else _resealed(row.kept, sealing)
                if why:
                    done.left, done.why = done.left + 1, why
                if again is not None:
                    changes.append((row, again))
            if changes:
                number = await store.reseal(changes)
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
    resealing = Resealing(sealing)
    if isinstance(kept, Record):
        found: Kept = resealing.resealed(kept)
    else:
        sealed = SEALED[kept.place]
        try:
            values = sealed.again(resealing, *kept.columns)
        except ValueError:
            return None, _NEWER
        found = Values(kept.place, kept.columns[: -len(values)] + values)
    return (None if found == kept else found), "".join(resealing.reasons[:1])
