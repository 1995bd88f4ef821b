"""Several workers save what they counted as one gateway: one statement a minute, whichever of them writes."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any, NoReturn
from uuid import UUID

import apsw
import pytest

from gateway.app.share import bind_seats, close_seats, share_of
from gateway.app.supervisor import Channel, Supervisor, WorkerProcess
from gateway.app.worker import Worker
from gateway.config import parse
from gateway.observe.logs import Logs
from gateway.upkeep.activity import BUCKET_US, HOUR, MINUTE_US, ActivitySampler
from tests.support.house import config_text, sqlite_store

# A round hour that is over, whenever this runs.
BEGIN_US = (int(time.time()) // 3_600 - 1) * 60 * MINUTE_US


@pytest.fixture(autouse=True)
def _at_moments_of_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(_: ActivitySampler) -> NoReturn:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(ActivitySampler, "run", run)


@pytest.fixture
def statements() -> Any:
    """What was written of activity, by any connection to SQLite."""
    found = list[str]()

    def trace(connection: apsw.Connection) -> None:
        connection.trace_v2(apsw.SQLITE_TRACE_STMT, lambda event: found.append(event["sql"]))

    apsw.connection_hooks.append(trace)
    yield lambda: sum(text.startswith("INSERT INTO activity") for text in found)
    apsw.connection_hooks.remove(trace)


@asynccontextmanager
async def two_workers(directory: Path) -> AsyncIterator[tuple[Supervisor, list[Worker]]]:
    config = parse(config_text("http://127.0.0.1:9", sqlite_store(directory), directory, workers=2))
    supervisor = Supervisor(config, 2)
    async with AsyncExitStack() as stack:
        seats = bind_seats(config.listen.address, 2)
        stack.callback(close_seats, seats)
        logs = stack.enter_context(closing(Logs(fd=os.open(directory / "log", os.O_WRONLY | os.O_CREAT))))
        workers = []
        for number in seats:
            ours, theirs = socket.socketpair()
            channel = await Channel.open(ours)
            stack.push_async_callback(channel.close)
            no_process: Any = None
            begun = asyncio.Event()
            process = WorkerProcess(
                number, no_process, channel, begun.set, supervisor._reload, supervisor._save_activity
            )
            supervisor._workers[number] = process
            attending = asyncio.create_task(channel.serve(process))
            stack.callback(attending.cancel)
            own = {seat: [sock.dup().detach() for sock in socks] for seat, socks in seats.items()}
            worker = Worker(number, share_of(config, number, 2), own, await Channel.open(theirs), logs)
            await worker.start()
            stack.push_async_callback(worker.stop)
            workers.append(worker)
            await begun.wait()
        yield supervisor, workers


async def count(minute: int, *workers: Worker) -> None:
    for worker in workers:
        for at_us in range(0, MINUTE_US, BUCKET_US):
            worker.current.activity.sample(BEGIN_US + minute * MINUTE_US + at_us)
    await asyncio.gather(*(worker.current.activity.save() for worker in workers))


def writer_of(worker: Worker) -> UUID:
    return worker.current.activity._writer


async def kept(worker: Worker) -> list[tuple[UUID, int]]:
    """Whose rows there are, and from when on, in minutes."""
    rows = await worker.current._store.cold.activity("shop", HOUR.row_us, BEGIN_US, BEGIN_US + 5 * MINUTE_US)
    return sorted((row.writer, (row.at_us - BEGIN_US) // MINUTE_US) for row in rows)


async def test_what_a_worker_does_not_write_is_written_later_or_by_another(
    tmp_path: Path, statements: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No worker responds, and then one does: each asks for its earliest minute until it knows that it is kept. Where
    the one that writes is killed, another one writes."""
    async with two_workers(tmp_path) as (supervisor, (one, other)):
        with monkeypatch.context() as silent:
            silent.setattr(WorkerProcess, "is_silent", True)
            await count(0, one, other)
        assert statements() == 0
        await count(1, one, other)
        await count(1, one, other)
        assert statements() == 2
        whole = [(writer, minute) for writer in sorted(map(writer_of, (one, other))) for minute in (0, 1)]
        assert await kept(one) == whole

        async def die() -> bool:
            assert one._listening is not None
            one._listening.cancel()
            await one._channel.close()
            return True

        one.write_activity = lambda *_: asyncio.create_task(die())  # type: ignore[method-assign]
        await count(2, other)
        assert [each.number for each in supervisor._serving()] == [2]
        assert await kept(other) == sorted([*whole, (writer_of(other), 2)])
        assert statements() == 3
