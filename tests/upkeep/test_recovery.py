"""Recovery in the background: whose turn it is, and whose requests are sent again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from gateway.core.delivery import DeliveryPolicy
from gateway.core.operation import Snapshot
from gateway.core.recovery import Probe, Resend
from gateway.protect.probing import Prober
from gateway.protect.route import Route
from gateway.store.base import Indefinite
from gateway.upkeep.duty import RecoveryWorker, recovered_by_name
from tests.conformance.hand import SERVICE, Hand, do
from tests.support.memory_store import MemoryStore

ROUTE = "create_payment"


class Deaf:
    """A prober of upstreams that know nothing; `asked` is what it was asked about, and `on_ask` may fail."""

    def __init__(self, on_ask: Callable[[], None] = lambda: None) -> None:
        self.asked: list[UUID] = []
        self.on_ask = on_ask
        self.has_turn = True

    async def probe_once(self, route: Route, snapshot: Snapshot, *, is_urgent: bool) -> None:
        assert snapshot.record is not None
        self.asked.append(snapshot.record.identity.operation_id)
        self.on_ask()


@asynccontextmanager
async def recovering(
    prober: Deaf, count: int, operations: Mapping[str, str] = MappingProxyType({ROUTE: ROUTE})
) -> AsyncIterator[tuple[RecoveryWorker, list[Hand]]]:
    """A worker on a store in which so many are in doubt; `operations` are those of the routes by their names."""
    store = MemoryStore()
    await store.start()
    hands = [Hand() for _ in range(count)]
    for hand in hands:
        await do(store, hand, Hand.claim, Hand.abandon)
    recovery = Probe("/payments")
    routes: Any = {name: SimpleNamespace(operation=each, recovery=recovery) for name, each in operations.items()}
    recovered = recovered_by_name(routes, resends=False)
    worker = RecoveryWorker(store, cast(Prober, prober), recovered, service=SERVICE, has_turn=lambda: prober.has_turn)
    yield worker, hands
    await store.close()


async def test_many_that_stay_in_doubt_hide_nobody() -> None:
    """However many are in doubt, each has its turn after a few passes, and then again."""
    prober = Deaf()
    async with recovering(prober, 1_200) as (worker, hands):
        for _ in range(3):
            await worker.run_once()
        assert sorted(prober.asked) == sorted(hand.operation_id for hand in hands)
        await worker.run_once()
        assert len(prober.asked) == 1_700


@pytest.mark.parametrize(
    ("operations", "is_asked"),
    [({"pay": ROUTE}, True), ({"pay": ROUTE, "refund": ROUTE}, False), ({"pay": "pay"}, False)],
    ids=["renamed", "shared", "another"],
)
async def test_a_route_that_was_renamed(operations: dict[str, str], is_asked: bool) -> None:
    """What came in under its old name, which is its operation now, is asked about, unless another may have that too."""
    prober = Deaf()
    async with recovering(prober, 1, operations) as (worker, hands):
        await worker.run_once()
        assert prober.asked == ([hands[0].operation_id] if is_asked else [])


async def test_a_probe_that_fails_keeps_nobody_else_from_theirs() -> None:
    """It is tried again in the next pass, like all of them. Once its turn has ended it begins none."""

    def fail() -> None:
        raise Indefinite("the answer was lost")

    def end_turn() -> None:
        prober.has_turn = False

    prober = Deaf(fail)
    async with recovering(prober, 20) as (worker, hands):
        for passes in (1, 2):
            assert await worker.run_once() == 0
            assert sorted(prober.asked) == sorted(passes * [hand.operation_id for hand in hands])
        prober.on_ask = end_turn
        for _ in range(2):
            await worker.run_once()
            assert len(prober.asked) == 41


@pytest.mark.parametrize("service", [SERVICE, "another"])
async def test_only_the_requests_of_its_service_are_sent_again(service: str) -> None:
    """Services may share a store, and name their routes alike."""
    store, hand = MemoryStore(), Hand()
    await store.start()
    await do(store, hand, Hand.accept, Hand.dispatch, Hand.abandon)
    accept = SimpleNamespace(delivery=DeliveryPolicy(schedule_us=(0,)))
    route: Any = SimpleNamespace(operation=hand.script.identity.operation, recovery=Resend(), accept=accept)
    sent: list[UUID] = []
    worker = RecoveryWorker(
        store,
        cast(Prober, Deaf()),
        {ROUTE: route},
        service=service,
        resend=lambda _, record, now_us: sent.append(record.identity.operation_id),
    )
    await worker.run_once()
    assert sent == ([hand.operation_id] if service == SERVICE else [])
    await store.close()
