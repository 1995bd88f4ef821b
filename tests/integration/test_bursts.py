"""Many requests at once under one key: one execution, and nobody else notices."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.burst import Callers, at_once, one_by_one, request_bytes
from tests.support.eventually import eventually
from tests.support.fleet import process, send
from tests.support.full_service import FullService, answer
from tests.support.house import BODY, sqlite_store, status_of, stores
from tests.support.upstream import RecordingUpstream

COUNT = 1_500
OTHERS = 40
QUEUED = 1_000


store = stores("sqlite", full=["postgres"])


async def done(*callers: Callers) -> list[Counter[str]]:
    """What these callers got."""
    return [got.answers for got in await asyncio.gather(*(asyncio.to_thread(each.wait) for each in callers))]


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.full)])
async def test_a_burst_under_one_key(
    store: dict[str, Any], tmp_path: Path, upstream: RecordingUpstream, workers: int
) -> None:
    """It is executed once; of the others each gets that response, or is told to wait. All other keys are executed,
    as well those that come on connections of their own as those on kept ones."""
    async with process(store, tmp_path, upstream, workers=workers) as gateway:
        burst = at_once(gateway.port, [request_bytes("burst")], COUNT)
        others = [
            one_by_one(gateway.port, [request_bytes(f"{keeps}-{number}") for number in range(OTHERS)], keeps=keeps)
            for keeps in (False, True)
        ]
        for callers in others:
            callers.go()
        # What the system queues before it is accepted comes at the same moment.
        gateway.pause()
        burst.go()
        await eventually(lambda: _queued(gateway.port) >= QUEUED, what="most of the burst waits")
        gateway.resume()
        got, *their = await done(burst, *others)
        assert got["201 stored"] == 1
        assert got["201 stored"] + got["201 replayed"] + got["409 in-flight"] == COUNT
        assert their == [Counter({"201 stored": OTHERS})] * 2
        assert Counter(received.values("Idempotency-Key")[0] for received in upstream.requests)[b"burst"] == 1
        assert len(upstream.requests) == 1 + 2 * OTHERS


def _queued(port: int) -> int:
    """How many connections to it wait to be accepted, by the table of the system."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(int(line[4].split(":")[1], 16) for line in lines if line[1].endswith(f":{port:04X}") and line[3] == "0A")


async def test_duplicates_do_not_share_one_failure_to_connect(tmp_path: Path) -> None:
    """Where nothing was sent, the service is tried again for those who wait, under the same key."""
    with FullService() as service:
        upstream = {"connect_timeout": "2s"}
        async with process(sqlite_store(tmp_path), tmp_path, service.url, upstream=upstream) as gateway:
            sent = [asyncio.create_task(send(gateway.port, "k1", deadline_seconds=60.0)) for _ in range(20)]
            await eventually(service.connecting, what="it connects")
            (first,) = service.connecting()
            await eventually(lambda: service.connecting() - {first}, what="it connects again")
            service.make_room()
            with await asyncio.to_thread(service.accept) as connection:
                await asyncio.to_thread(answer, connection, BODY)
                statuses = Counter([status_of(each) for each in await asyncio.gather(*sent)])
                assert statuses == {(201, "stored"): 1, (201, "replayed"): 19}
