"""Many requests at once under one key: one execution, and nobody else notices."""

from __future__ import annotations

import asyncio
import resource
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support import http
from tests.support.eventually import eventually
from tests.support.fleet import key_of, process, send
from tests.support.full_service import FullService, answer
from tests.support.house import BODY, JSON, sqlite_store, status_of, stores
from tests.support.upstream import Answer, RecordingUpstream

COUNT = 1_500
OTHERS = 40
QUEUED = 1_000
PAUSE_SECONDS = 0.1


store = stores("sqlite", full=["postgres"])


async def one_by_one(port: int, *, keeps: bool) -> Counter[tuple[int, str | None]]:
    """What other keys get, ten a second, on connections of their own or on a kept one."""
    answers: Counter[tuple[int, str | None]] = Counter()
    async with http.Connection(port) as kept:
        for number in range(OTHERS):
            if keeps:
                fields = [JSON, ("Idempotency-Key", f"kept-{number}"), ("X-Tenant", "t1")]
                await kept.send(http.request_bytes("POST", "/charges", fields, BODY))
                answers[status_of(await kept.read_response("POST"))] += 1
            else:
                answers[status_of(await send(port, f"own-{number}"))] += 1
            await asyncio.sleep(PAUSE_SECONDS)
    return answers


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.full)])
async def test_a_burst_under_one_key(store: dict[str, Any], tmp_path: Path, workers: int) -> None:
    """It is executed once; of the others each gets that response, or is told to wait."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    async with RecordingUpstream() as upstream, process(store, tmp_path, upstream.url, workers=workers) as gateway:
        upstream.on("/charges", Answer(201))
        others = [asyncio.create_task(one_by_one(gateway.port, keeps=keeps)) for keeps in (False, True)]
        await upstream.wait_for_requests(2)
        # What the system queues before it is accepted comes at the same moment.
        gateway.pause()
        burst = [asyncio.create_task(send(gateway.port, "burst", deadline_seconds=90.0)) for _ in range(COUNT)]
        await eventually(lambda: _queued(gateway.port) >= QUEUED, what="most of the burst waits")
        gateway.resume()
        got = Counter(status_of(each) for each in await asyncio.gather(*burst))
        assert got[201, "stored"] == 1
        assert got[201, "stored"] + got[201, "replayed"] + got[409, "in-flight"] == COUNT
        assert await asyncio.gather(*others) == [{(201, "stored"): OTHERS}] * 2
        assert Counter(map(key_of, upstream.requests))["burst"] == 1
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
