"""What the layers in front of a durable store share: each changes little of `ManagedStore`, and forwards the rest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from typing import ParamSpec, TypeVar
from uuid import UUID

from gateway.core.delivery import Delivering
from gateway.core.operation import Audit, SealedRequest, Snapshot
from gateway.store.base import Watch
from gateway.store.operations import (
    Agreement,
    AuditEntry,
    Backlog,
    Due,
    Epoch,
    EventReport,
    KeptEvent,
    LeasedEvent,
    ManagedStore,
    NumberedAudit,
    PauseAudit,
    Query,
    RecoveryLease,
    RecoveryState,
    Serving,
    SinkBacklog,
    Swept,
    Tally,
)
from gateway.store.rekeying import Kept

P = ParamSpec("P")
T = TypeVar("T")


class Forwarding(ABC):
    """Forwards the verbs of `ManagedStore` to the store behind."""

    def __init__(self, behind: ManagedStore) -> None:
        self._behind = behind

    @abstractmethod
    async def _forward(self, verb: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a verb of the store behind. Subclasses observe the outcome here."""

    async def start(self) -> None:
        await self._behind.start()

    async def close(self) -> None:
        await self._behind.close()

    def watch(self, operation_id: UUID) -> AbstractAsyncContextManager[Watch]:
        return self._behind.watch(operation_id)

    def announce_work(self) -> None:
        self._behind.announce_work()

    async def sweep(self, limit: int) -> Swept:
        return await self._forward(self._behind.sweep, limit)

    async def take_turns(self, holder: UUID, names: Collection[str], lease_us: int) -> frozenset[str]:
        return await self._forward(self._behind.take_turns, holder, names, lease_us)

    async def leave_turns(self, holder: UUID) -> None:
        await self._forward(self._behind.leave_turns, holder)

    async def tally(self) -> Tally:
        return await self._forward(self._behind.tally)

    async def sealed_examples(self, key_id: str) -> list[Kept]:
        return await self._forward(self._behind.sealed_examples, key_id)

    async def compare_configuration(self, serving: Serving, *, is_trial: bool = False) -> Agreement:
        return await self._forward(self._behind.compare_configuration, serving, is_trial=is_trial)

    async def note_running(self, gateway_id: UUID, *, is_running: bool) -> None:
        await self._forward(self._behind.note_running, gateway_id, is_running=is_running)

    async def count_without_route(self, service: str, operations: Collection[str]) -> dict[str, int]:
        return await self._forward(self._behind.count_without_route, service, operations)

    async def find(self, query: Query) -> list[Snapshot]:
        return await self._forward(self._behind.find, query)

    async def recover(self, operation_id: UUID, token: int, lease_us: int, *, is_urgent: bool) -> RecoveryLease | None:
        return await self._forward(self._behind.recover, operation_id, token, lease_us, is_urgent=is_urgent)

    async def put_off(self, lease: RecoveryLease, pause_us: int, finding: str) -> None:
        await self._forward(self._behind.put_off, lease, pause_us, finding)

    async def recovery(self, operation_id: UUID) -> RecoveryState | None:
        return await self._forward(self._behind.recovery, operation_id)

    async def find_due(self, service: str, delivering: Delivering, limit: int) -> Due:
        return await self._forward(self._behind.find_due, service, delivering, limit)

    async def read_kept(self, operation_id: UUID) -> SealedRequest | None:
        return await self._forward(self._behind.read_kept, operation_id)

    async def count_pending(self, service: str, route: str, scope_digest: bytes, limit: int) -> int:
        return await self._forward(self._behind.count_pending, service, route, scope_digest, limit)

    async def backlog(self, service: str) -> Backlog:
        return await self._forward(self._behind.backlog, service)

    async def pause(self, service: str, operation: str, audit: Audit) -> bool:
        return await self._forward(self._behind.pause, service, operation, audit)

    async def resume(self, service: str, operation: str, audit: Audit) -> bool:
        return await self._forward(self._behind.resume, service, operation, audit)

    async def pause_audits(self, service: str) -> list[PauseAudit]:
        return await self._forward(self._behind.pause_audits, service)

    async def lease_events(self, service: str, wanted: Mapping[str, int], lease_us: int) -> list[LeasedEvent]:
        return await self._forward(self._behind.lease_events, service, wanted, lease_us)

    async def report_events(self, service: str, reports: Collection[EventReport]) -> None:
        await self._forward(self._behind.report_events, service, reports)

    async def find_events(
        self, service: str, sink: str, *, is_dead: bool, after: str | None, limit: int
    ) -> list[KeptEvent]:
        return await self._forward(self._behind.find_events, service, sink, is_dead=is_dead, after=after, limit=limit)

    async def redeliver_event(self, service: str, event_id: str, sink: str | None) -> int:
        return await self._forward(self._behind.redeliver_event, service, event_id, sink)

    async def suspend_sink(self, service: str, sink: str, why: str) -> bool:
        return await self._forward(self._behind.suspend_sink, service, sink, why)

    async def resume_sink(self, service: str, sink: str) -> bool:
        return await self._forward(self._behind.resume_sink, service, sink)

    async def sinks(self, service: str) -> dict[str, SinkBacklog]:
        return await self._forward(self._behind.sinks, service)

    async def audits(self, operation_id: UUID) -> list[AuditEntry]:
        return await self._forward(self._behind.audits, operation_id)

    async def latest_audits(self, before: int | None, limit: int) -> list[NumberedAudit]:
        return await self._forward(self._behind.latest_audits, before, limit)

    async def check_memory(self, links: Collection[UUID] = ()) -> Epoch:
        return await self._forward(self._behind.check_memory, links)

    async def begin_epoch(self, memo: bytes, beyond_token: int) -> None:
        await self._forward(self._behind.begin_epoch, memo, beyond_token)
