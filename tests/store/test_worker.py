"""Batches for a thread: who goes with whom, what a cancellation takes away, and that everybody gets an answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence

import pytest

from gateway.store.base import Indefinite, NotApplied
from gateway.store.batching import Worker, WorkerBatches


class Executor:
    """Executes batches in the thread, each when the test says so, and keeps what it was given."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.gate = threading.Semaphore(0)
        self.entered = asyncio.Semaphore(0)
        self.loop = asyncio.get_running_loop()
        self.error: BaseException | None = None
        self.heard: list[tuple[Sequence[str], Sequence[str | Exception]]] = []

    def __call__(self, items: list[str]) -> Sequence[str | Exception]:
        self.batches.append(items)
        self.loop.call_soon_threadsafe(self.entered.release)
        self.gate.acquire()
        if self.error:
            raise self.error
        found = [ValueError(item) if item.startswith("bad") else item.upper() for item in items]
        return found[:-1] if "short" in items else found

    def hear(self, items: Sequence[str], results: Sequence[str | Exception]) -> None:
        self.heard.append((items, results))


@pytest.fixture
async def executor() -> Executor:
    return Executor()


@pytest.fixture
async def batches(executor: Executor) -> AsyncIterator[WorkerBatches[str, str]]:
    worker = Worker("test")
    batches = WorkerBatches[str, str](executor.hear)
    batches.open(worker, executor)
    yield batches
    executor.gate.release(1_000)
    await batches.close()
    await worker.stop(lambda: None)


async def test_a_cancelled_submitter_takes_its_waiting_item_away(
    executor: Executor, batches: WorkerBatches[str, str]
) -> None:
    """What was not yet under way is never executed; what was is, and all hear of it but the one that left."""
    under_way = [batches.submit("a"), batches.submit("b")]
    await executor.entered.acquire()
    waiting, third = batches.submit("c"), batches.submit("d")
    under_way[0].cancel()
    waiting.cancel()
    executor.gate.release(2)
    assert await asyncio.gather(under_way[1], third) == ["B", "D"]
    assert executor.batches == [["a", "b"], ["d"]]
    assert executor.heard[0] == (["a", "b"], ["A", "B"])


async def test_nothing_is_executed_when_all_that_wait_are_cancelled(
    executor: Executor, batches: WorkerBatches[str, str]
) -> None:
    """A batch of nobody costs nothing, and the next item starts again by itself."""
    batches.submit("a").cancel()
    await asyncio.sleep(0)
    executor.gate.release(1)
    assert await batches.submit("b") == "B"
    assert executor.batches == [["b"]]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        pytest.param(Indefinite("cut off"), Indefinite, id="indefinite"),
        pytest.param(ValueError("a bug"), ValueError, id="bug"),
        pytest.param(SystemExit(), Indefinite, id="stopped"),
    ],
)
async def test_an_exception_of_the_batch_reaches_every_member(
    executor: Executor, batches: WorkerBatches[str, str], error: BaseException, told: type[Exception]
) -> None:
    """All members learn what is known, and the next batch goes on."""
    executor.error = error
    executor.gate.release(1)
    errors = await asyncio.gather(batches.submit("a"), batches.submit("b"), return_exceptions=True)
    assert [type(each) for each in errors] == [told, told]
    executor.error = None
    executor.gate.release(1)
    assert await batches.submit("c") == "C"


async def test_closing_lets_the_batch_under_way_end(executor: Executor, batches: WorkerBatches[str, str]) -> None:
    """The batch under way gets its answers; who waits, and who comes later, hears that nothing was changed."""
    first = batches.submit("a")
    await executor.entered.acquire()
    waiting = batches.submit("b")
    closing = asyncio.create_task(batches.close())
    with pytest.raises(NotApplied):
        await waiting
    assert not closing.done()
    executor.gate.release(1)
    await closing
    assert await first == "A"
    with pytest.raises(NotApplied):
        batches.submit("c")
    assert executor.batches == [["a"]]
