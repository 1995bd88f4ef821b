"""Natural batching: who goes with whom, what a cancellation takes away, and that everybody gets an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from gateway.store.base import Indefinite, NotApplied
from gateway.store.batching import Batcher


class Executor:
    """Executes batches one at a time, each when the test says so, and keeps what it was given."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.gate = asyncio.Semaphore(0)
        self.entered = asyncio.Semaphore(0)
        self.error: Exception | None = None

    async def __call__(self, items: list[str]) -> Sequence[str | Exception]:
        self.batches.append(items)
        self.entered.release()
        await self.gate.acquire()
        if self.error:
            raise self.error
        return [ValueError(item) if item.startswith("bad") else item.upper() for item in items]

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


async def test_what_arrives_meanwhile_goes_together(executor: Executor) -> None:
    """The first starts at once; all that come while it is under way form the next batch."""
    batcher = Batcher[str, str](executor)
    first = submit_all(batcher, "a")
    await executor.entered.acquire()
    others = submit_all(batcher, "b", "c", "d")
    executor.let_through(2)
    assert await asyncio.gather(*first, *others) == ["A", "B", "C", "D"]
    assert executor.batches == [["a"], ["b", "c", "d"]]


async def test_a_batch_has_one_item_per_key_in_order_of_keys(executor: Executor) -> None:
    """A second item of a key waits for the next batch; inside a batch keys ascend; per key the order is kept."""
    batcher = Batcher[str, str](executor, key=lambda item: item[0])
    executor.let_through(3)
    await asyncio.gather(*submit_all(batcher, "c1", "a1", "c2", "b1", "a2", "c3"))
    assert executor.batches == [["a1", "b1", "c1"], ["a2", "c2"], ["c3"]]


async def test_a_batch_is_bounded(executor: Executor) -> None:
    """No batch is larger than the maximum, keyed or not."""
    executor.let_through(5)
    await asyncio.gather(*submit_all(Batcher(executor, size_max=2), *"edcba"))
    assert executor.batches == [["e", "d"], ["c", "b"], ["a"]]
    executor.batches.clear()
    await asyncio.gather(*submit_all(Batcher(executor, size_max=3, key=lambda item: item), *"edcb"))
    assert executor.batches == [["c", "d", "e"], ["b"]]


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


@pytest.mark.parametrize("key", [None, str.upper], ids=["without-keys", "with-keys"])
async def test_a_cancelled_submitter_takes_its_waiting_item_away(
    executor: Executor, key: Callable[[str], str] | None
) -> None:
    """What was not yet under way is never executed; its neighbours are."""
    batcher = Batcher[str, str](executor, key=key)
    first = submit_all(batcher, "a")
    await executor.entered.acquire()
    second, third = submit_all(batcher, "b", "c")
    await asyncio.sleep(0)
    second.cancel()
    executor.let_through(2)
    assert await asyncio.gather(*first, third) == ["A", "C"]
    assert executor.batches == [["a"], ["c"]]


async def test_an_exception_of_the_batch_reaches_every_member(executor: Executor) -> None:
    """All members learn what is known, each through an exception of its own, and the next batch goes on."""
    batcher = Batcher[str, str](executor)
    executor.error = Indefinite("cut off")
    executor.let_through(1)
    errors = await asyncio.gather(*submit_all(batcher, "a", "b"), return_exceptions=True)
    assert [type(error) for error in errors] == [Indefinite, Indefinite]
    assert errors[0] is not errors[1]
    assert [error.__cause__ for error in errors if isinstance(error, Indefinite)] == [executor.error] * 2
    executor.error = None
    executor.let_through(1)
    assert await batcher.submit("c") == "C"


async def test_closing_lets_the_batch_under_way_end(executor: Executor) -> None:
    """The batch under way gets its answers; who waits, and who comes later, is told that nothing was changed."""
    batcher = Batcher[str, str](executor)
    first = submit_all(batcher, "a")
    await executor.entered.acquire()
    waiting = submit_all(batcher, "b", "c")
    await asyncio.sleep(0)
    closing = asyncio.create_task(batcher.close())
    for error in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(error, NotApplied)
    assert not closing.done()
    executor.let_through(1)
    await closing
    assert first[0].done()
    assert await first[0] == "A"
    with pytest.raises(NotApplied):
        await batcher.submit("d")
    assert executor.batches == [["a"]]


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
