"""Natural batching: who goes with whom, what a cancellation takes away, and that everybody gets an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from gateway.store.base import Indefinite, NotApplied
from gateway.store.batching import Batcher


class Executor:
    """Executes batches one at a time, each when the test says so, and keeps what it was given."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.gate = asyncio.Semaphore(0)
        self.entered = asyncio.Semaphore(0)

    async def __call__(self, items: list[str]) -> Sequence[str]:
        self.batches.append(items)
        self.entered.release()
        await self.gate.acquire()
        return [item.upper() for item in items]

    def let_through(self, batches: int) -> None:
        for _ in range(batches):
            self.gate.release()


@pytest.fixture
def executor() -> Executor:
    return Executor()


def submit_all(batcher: Batcher[str, str], *items: str) -> list[asyncio.Task[str]]:
    async def submit(item: str) -> str:
        return await batcher.submit(item)

    return [asyncio.create_task(submit(item)) for item in items]


async def test_a_batch_is_bounded_and_has_one_item_per_key_in_order_of_keys(executor: Executor) -> None:
    """A second item of a key waits for the next batch; inside a batch keys ascend; per key the order is kept."""
    executor.let_through(7)
    await asyncio.gather(*submit_all(Batcher(executor, size_max=2), *"edcba"))
    assert executor.batches == [["e", "d"], ["c", "b"], ["a"]]
    executor.batches.clear()
    batcher = Batcher[str, str](executor, size_max=3, key=lambda item: item[0])
    await asyncio.gather(*submit_all(batcher, "c1", "a1", "c2", "b1", "d1", "a2", "c3"))
    assert executor.batches == [["a1", "b1", "c1"], ["a2", "c2", "d1"], ["c3"]]


async def test_a_full_queue_refuses(executor: Executor) -> None:
    """Beyond its bound the queue says that nothing was changed, and what waits in it is not touched."""
    batcher = Batcher[str, str](executor, queue_max=2)
    tasks = submit_all(batcher, "a")
    await executor.entered.acquire()
    tasks += submit_all(batcher, "b", "c")
    await asyncio.sleep(0)
    with pytest.raises(NotApplied):
        await batcher.submit("d")
    executor.let_through(2)
    assert await asyncio.gather(*tasks) == ["A", "B", "C"]


async def test_a_stopped_program_leaves_nobody_waiting(executor: Executor) -> None:
    """When the draining task is cancelled, those under way hear that it is unknown, the others that it was not."""
    batcher = Batcher[str, str](executor)
    mine = asyncio.all_tasks()
    under_way = submit_all(batcher, "a")
    await executor.entered.acquire()
    waiting = submit_all(batcher, "b")
    await asyncio.sleep(0)
    (drain,) = asyncio.all_tasks() - mine - {*under_way, *waiting}
    drain.cancel()
    first, second = await asyncio.gather(*under_way, *waiting, return_exceptions=True)
    assert isinstance(first, Indefinite)
    assert isinstance(second, NotApplied)
