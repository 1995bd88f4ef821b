"""Recovery in the background: whose turn it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from gateway.core.operation import Snapshot
from gateway.core.recovery import Probe
from gateway.proxy.probing import Prober
from gateway.proxy.route import Route
from gateway.upkeep.recovery import RecoveryWorker
from tests.conformance.hand import Hand, do
from tests.support.memory_store import MemoryStore

ROUTE = "create_payment"


class Deaf:
    """A prober of upstreams that know nothing; `asked` is what it was asked about."""

    def __init__(self) -> None:
        self.asked: list[UUID] = []

    async def probe_once(self, route: Route, snapshot: Snapshot, *, is_urgent: bool) -> None:
        assert snapshot.record is not None
        self.asked.append(snapshot.record.identity.operation_id)


async def test_many_that_stay_in_doubt_hide_nobody() -> None:
    """However many are in doubt, each has its turn after a few passes, and then again."""
    store, prober = MemoryStore(), Deaf()
    await store.start()
    hands = [Hand() for _ in range(1_200)]
    for hand in hands:
        await do(store, hand, Hand.claim, Hand.abandon)
    routes: Any = {ROUTE: SimpleNamespace(recovery=Probe("/payments"))}
    worker = RecoveryWorker(store, cast(Prober, prober), routes)
    for _ in range(3):
        await worker.run_once()
    assert sorted(prober.asked) == sorted(hand.operation_id for hand in hands)
    await worker.run_once()
    assert len(prober.asked) == 1_700
    await store.close()
