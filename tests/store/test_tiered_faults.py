"""What becomes a copy in the process when the durable store is slow, or its answers are lost."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.operation import Fenced, State
from gateway.store.base import Indefinite
from gateway.store.tiered import Tiered
from tests.conformance.hand import Hand, do
from tests.support.faulty_store import Fault, FaultyStore, dropped, lost
from tests.support.memory_store import MemoryStore

MAX_AGE_SECONDS = 30.0


class Clock:
    """Boot-time seconds that pass only when told."""

    now_seconds = 1000.0

    def __call__(self) -> float:
        return self.now_seconds


async def started(durable: FaultyStore, clock: Clock) -> Tiered:
    """A tiered store that has nothing but the process in front."""
    store = Tiered(durable, None, cache_bytes=1_000_000, cache_max_age_seconds=MAX_AGE_SECONDS, clock=clock)
    await store.start()
    return store


async def test_a_slow_answer_makes_no_young_copy() -> None:
    """How old a copy is counts from before the call that gave it, however late the answer came."""
    durable, clock, hand = FaultyStore(MemoryStore()), Clock(), Hand()
    store = await started(durable, clock)
    await do(store, hand, Hand.claim)
    gate = durable.stop_after("complete")
    completing = asyncio.create_task(do(store, hand, Hand.complete))
    await gate.reached.wait()
    clock.now_seconds += MAX_AGE_SECONDS
    gate.opened.set()
    await completing
    durable.said.clear()
    await store.apply(hand.claim())
    assert durable.said == ["claim"]


@pytest.mark.parametrize(
    ("fault", "state"), [(lost(), State.COMPLETED), (dropped(), State.CLAIMED)], ids=["effect", "no-effect"]
)
async def test_a_lost_completion_is_no_copy(fault: Fault, state: State) -> None:
    """Whether it was recorded is for the durable store to say: whoever comes next is answered by that."""
    durable, hand = FaultyStore(MemoryStore()), Hand()
    store = await started(durable, Clock())
    await do(store, hand, Hand.claim)
    durable.on("complete", fault)
    with pytest.raises(Indefinite):
        await store.apply(hand.complete())
    durable.said.clear()
    result = await store.apply(hand.claim())
    assert isinstance(result, Fenced)
    assert (result.snapshot.state, durable.said) == (state, ["claim"])
