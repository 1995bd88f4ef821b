"""A gateway that has accepted requests to deliver, as `coordination` puts it together."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from gateway.core.confidential import EncryptionKey, KeyRing
from gateway.core.operation import Accept, Applied, Delivery, Record, Snapshot, State, microseconds
from gateway.deliver import DeliveryWorker
from gateway.protect.accepting import KeptRequest, seal
from gateway.protect.request import Request
from gateway.protect.route import Route
from tests.support.coordination import Office, coordination
from tests.support.eventually import eventually
from tests.support.house import ROUTE
from tests.support.memory_store import MemoryStore

KEY = bytes(32)
RING = KeyRing([EncryptionKey("a", KEY)], bytes)
HOUR = 3600.0


def accepting(**changes: Any) -> dict[str, Any]:
    return copy.deepcopy(ROUTE) | {"accept": {"identity": "unverified"}} | changes


@dataclass
class Depot:
    """An office whose worker is `delivery`."""

    office: Office
    delivery: DeliveryWorker

    async def keyed(self, key: str = "k1", *, tenant: str = "t1", route: Route | None = None) -> Request:
        """A request as it is identified when it comes in."""
        request = self.office.incoming(key, tenant=tenant)
        refused = await self.office.coordinator.identifying.identify(request, route or self.office.route)
        assert refused is None
        return request

    async def accept(
        self, key: str = "k1", *, ring: KeyRing = RING, deliver_within: float = 24 * HOUR, **options: Any
    ) -> tuple[Request, Snapshot]:
        """The request, accepted; `ring` is what it is encrypted with."""
        request = await self.keyed(key, **options)
        body = request.taken.content
        assert isinstance(body, bytes)
        acceptance_id = uuid4()
        kept = KeptRequest(request.head, request.hop, body, request.canonical_key)
        command = Accept(
            request.identity,
            acceptance_id,
            "shop",
            request.fingerprints[0],
            seal(kept, ring, request.identity.operation_id, acceptance_id),
            microseconds(deliver_within),
            probe=request.probe,
        )
        result = MemoryStore(self.office.memory).apply_now(command)
        assert isinstance(result, Applied)
        return request, result.snapshot

    async def accept_many(self, count: int, **options: Any) -> list[UUID]:
        """So many of them, with keys of their own; returns their operation ids."""
        return [(await self.accept(f"k{n}", **options))[0].identity.operation_id for n in range(count)]

    async def poll(self) -> float:
        """One poll, and the end of what it began; the pause that it wants."""
        pause = await self.delivery.run_once()
        await self.settled()
        return pause

    async def settled(self) -> None:
        await eventually(lambda: self.delivery.running == 0, what="no delivery runs")

    def wait(self, seconds: float) -> None:
        """So much time, in which the event loop was not stuck."""
        self.office.pass_time(seconds)
        self.office.leases.run_once()

    async def pass_time(self, seconds: float, step: float) -> None:
        """So much time, with a poll after each step."""
        passed = 0.0
        while passed < seconds:
            self.wait(step)
            await self.poll()
            passed += step

    def record(self, operation_id: UUID) -> Record:
        record = MemoryStore(self.office.memory).read_now(operation_id).record
        assert record is not None
        return record

    @property
    def kept(self) -> Delivery:
        delivery = self.office.record.delivery
        assert delivery is not None
        return delivery

    def states(self) -> list[State]:
        return [self.record(operation_id).state for operation_id in self.office.memory.records]

    @property
    def charges(self) -> list[bytes]:
        return [value for each in self.office.upstream.requests for value in each.values("Idempotency-Key")]


@asynccontextmanager
async def depot(directory: Path, **options: Any) -> AsyncIterator[Depot]:
    """A depot with one route that accepts; see `coordination` for `options`."""
    if "routes" not in options:
        options.setdefault("route", accepting())
    secrets = {"encryption": [{"id": "a", "key": KEY.hex()}]}
    async with coordination(directory, secrets=secrets, **options) as office:
        yield Depot(office, office.parts.delivery)
