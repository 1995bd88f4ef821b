"""What a durable store keeps is encrypted: what gets to it is sealed, and what comes from it is opened (`SealedCold`,
and `gate` for what requests call); and it is sealed again with the current key, beside gateways that use the store
(`rekey`).

`core.confidential` decides what is sealed. The store's events are sealed by its `Outbox`, because the store makes them.
Kept requests come sealed. The invariant: no change of a record reads, or loses, what is sealed in it.

*Again* changes nothing about an operation but the bytes of its confidential parts. It reads a table in pages, seals
what is not sealed with the current key, and has the store write each row only if it is still as it was read: what
another writer changes in between wins, and is found by the next pass. So it may be stopped at any point and run again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any, Final, Protocol
from uuid import UUID

from gateway.core.confidential import (
    FAILURE,
    TEXT,
    TEXTS,
    Resealing,
    Sealing,
    Unopenable,
    of_audit,
    of_pause,
    of_suspension,
)
from gateway.core.delivery import Delivering
from gateway.core.immutable import immutable
from gateway.core.operation import Audit, Event, Record, SealedRequest, Snapshot
from gateway.core.outbox import opened_event, resealed_event
from gateway.store.base import StartRefused
from gateway.store.operations import (
    SEALED_COUNT_MAX,
    AuditEntry,
    Backlog,
    Cold,
    Due,
    EventFate,
    EventReport,
    KeptEvent,
    LeasedEvent,
    NumberedAudit,
    PauseAudit,
    Query,
    SinkBacklog,
)

# -- again -------------------------------------------------------------------------------------------------------------

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
    """The columns of a place that are encrypted, and those `about` that they are bound to. `again` gets a `Resealing`
    and the values of both, and returns the former under the current key."""

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


# -- a store behind encryption -----------------------------------------------------------------------------------------


def why_unreadable(sealed: Mapping[str, int], key_ids: Collection[str] | None) -> str | None:
    """Why a gateway with these keys must not start on a store of which so many records use which keys; None if it
    may."""
    missing = {} if key_ids is None else {key_id: sealed[key_id] for key_id in sorted(sealed) if key_id not in key_ids}
    if not missing:
        return None
    listed = ", ".join(
        f"{number}{' or more' if number >= SEALED_COUNT_MAX else ''} records with key '{key_id}'"
        for key_id, number in missing.items()
    )
    return (
        f"it has {listed}, and secrets.encryption has no such key: responses, kept requests, events and reasons could "
        "not be read. List the key there, behind the one that encrypts; if it is lost for good, accept that with "
        "secrets: {unreadable: accept}"
    )


async def refuse_unreadable(
    sealed: Mapping[str, int],
    key_ids: Collection[str],
    examples: Callable[[str], Awaitable[Sequence[Kept]]],
    sealing: Sealing,
) -> None:
    """Raises `StartRefused` where a gateway with these keys must not start on a store, of which so many records use
    which keys: one is missing, or is another key than it was. `examples` are the store's `sealed_examples`."""
    if why := why_unreadable(sealed, key_ids):
        raise StartRefused(why)
    for key_id in sorted(sealed):
        if why := why_unopenable(await examples(key_id), sealing):
            raise StartRefused(
                f"what it has encrypted with key '{key_id}' cannot be opened with the key that secrets.encryption has "
                f"under this id: {why}. List the right key under that id, and a new one under a new id; if it is lost "
                "for good, accept that with secrets: {unreadable: accept}"
            )


class SealedCold:
    """The `Cold` of a store behind encryption: these verbs, and the others as they are."""

    def __init__(self, behind: Cold, sealing: Sealing) -> None:
        self._behind = behind
        self._sealing = sealing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._behind, name)

    async def find(self, query: Query) -> list[Snapshot]:
        return [self._sealing.opened_snapshot(each) for each in await self._behind.find(query)]

    async def find_due(self, service: str, delivering: Delivering, limit: int) -> Due:
        due = await self._behind.find_due(service, delivering, limit)
        return replace(due, found=[self._sealing.opened_snapshot(each) for each in due.found])

    async def audits(self, operation_id: UUID) -> list[AuditEntry]:
        return [self._opened(operation_id, entry) for entry in await self._behind.audits(operation_id)]

    async def latest_audits(self, before: int | None, limit: int) -> list[NumberedAudit]:
        found = await self._behind.latest_audits(before, limit)
        return [replace(each, entry=self._opened(each.operation_id, each.entry)) for each in found]

    def _opened(self, operation_id: UUID, entry: AuditEntry) -> AuditEntry:
        return self._sealing.opened_texts(entry, of_audit(operation_id, entry.event, entry.token), operation_id)

    async def pause(self, service: str, operation: str, audit: Audit) -> bool:
        sealed = self._sealing.seal(TEXTS, audit, of_pause(service, operation, is_resumed=False))
        return await self._behind.pause(service, operation, sealed)

    async def resume(self, service: str, operation: str, audit: Audit) -> bool:
        sealed = self._sealing.seal(TEXTS, audit, of_pause(service, operation, is_resumed=True))
        return await self._behind.resume(service, operation, sealed)

    async def pause_audits(self, service: str) -> list[PauseAudit]:
        found = await self._behind.pause_audits(service)
        opened = self._sealing.opened_texts
        return [opened(each, of_pause(service, each.operation, each.is_resumed)) for each in found]

    async def backlog(self, service: str) -> Backlog:
        backlog = await self._behind.backlog(service)
        opened, paused = self._sealing.opened_texts, backlog.paused.items()
        return replace(
            backlog, paused={name: opened(each, of_pause(service, name, is_resumed=False)) for name, each in paused}
        )

    async def suspend_sink(self, service: str, sink: str, why: str) -> bool:
        sealed = self._sealing.seal(TEXT, why, of_suspension(service, sink))
        return await self._behind.suspend_sink(service, sink, sealed)

    async def sinks(self, service: str) -> dict[str, SinkBacklog]:
        found = await self._behind.sinks(service)
        return {sink: self._opened_backlog(each, service, sink) for sink, each in found.items()}

    def _opened_backlog(self, backlog: SinkBacklog, service: str, sink: str) -> SinkBacklog:
        why, last_error = backlog.suspended_why, self._sealing.shown(FAILURE, backlog.last_error, sink, None)
        opened = None if why is None else self._sealing.shown(TEXT, why, of_suspension(service, sink))
        return replace(backlog, last_error=last_error, suspended_why=opened)

    async def lease_events(self, service: str, wanted: Mapping[str, int], lease_us: int) -> list[LeasedEvent]:
        """An event that cannot be opened becomes a dead one: an operator redelivers it once its key is back."""
        opened: list[LeasedEvent] = []
        dead: list[EventReport] = []
        for leased in await self._behind.lease_events(service, wanted, lease_us):
            try:
                event = opened_event(leased.event, leased.sink, self._sealing)
                opened.append(leased if event is leased.event else replace(leased, event=event))
            except Unopenable as error:
                lease = leased.sink, leased.event.id, leased.tries, leased.redeliveries
                dead.append(EventReport(*lease, EventFate.DEAD, f"unreadable: {error}", line=leased.line))
        if dead:
            await self.report_events(service, dead)
        return opened

    async def report_events(self, service: str, reports: Collection[EventReport]) -> None:
        seal = partial(self._sealing.seal, FAILURE)
        sealed = [replace(each, why=seal(each.why, each.sink, each.event_id)) if each.why else each for each in reports]
        await self._behind.report_events(service, sealed)

    async def find_events(
        self, service: str, sink: str, *, is_dead: bool, after: str | None, limit: int
    ) -> list[KeptEvent]:
        found = await self._behind.find_events(service, sink, is_dead=is_dead, after=after, limit=limit)
        return [replace(each, why=self._sealing.shown(FAILURE, each.why, sink, each.event_id)) for each in found]
