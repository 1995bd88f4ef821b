"""A durable store behind encryption: what gets to it is sealed, and what comes from it is opened. Itself a `Store`.

`core.confidential` decides what is sealed. The store's events are sealed by its `Outbox`, because the store makes them.
Kept requests come sealed. The invariant: no change of a record reads, or loses, what is sealed in it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast
from uuid import UUID

from gateway.core.confidential import FAILURE, TEXT, TEXTS, Sealing, of_audit, of_pause, of_suspension
from gateway.core.delivery import Delivering
from gateway.core.operation import Audit, Snapshot
from gateway.core.outbox import opened_event
from gateway.core.sealing import Unopenable
from gateway.observe.facts import Events
from gateway.store.base import StartRefused, Store
from gateway.store.gate import Gate
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
from gateway.store.rekeying import Kept, why_unopenable


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


class SealedStore(Gate):
    """Satisfies the `Store` protocol; owns the store behind it. Without keys it only recognises what is sealed.

    Every gateway has it, with or without keys: another one beside it may have keys already.
    """

    def __init__(self, store: Store, sealing: Sealing, events: Events | None = None) -> None:
        super().__init__(store, sealing, events)
        self.sealing = sealing
        self.cold = cast(Cold, _SealedCold(store.cold, sealing))
        self.watch = store.watch

    async def start(self) -> None:
        await self.behind.start()

    async def close(self) -> None:
        await self.behind.close()

    async def read(self, operation_id: UUID) -> Snapshot:
        return self.sealing.opened_snapshot(await self.behind.read(operation_id))


class _SealedCold:
    """`Cold`: these verbs, and the others as they are."""

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
