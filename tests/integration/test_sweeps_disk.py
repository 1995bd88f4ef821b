"""Real gateways whose disk is full or does not keep what it is given."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from tests.support.fleet import nonce_of, process, send, wait_answered
from tests.support.house import sqlite_store, status_of
from tests.support.trap import Trap
from tests.support.upstream import Answer, RecordingUpstream

_STORED = frozenset(("stored", "replayed"))


_FAILURES = {"no room": (errno.ENOSPC, ("pwrite64", "ftruncate")), "failing fsync": (errno.EIO, ("fsync", "fdatasync"))}


@pytest.mark.parametrize("failure", _FAILURES)
async def test_neither_store_nor_journal_keeps_anything(
    tmp_path: Path, upstream: RecordingUpstream, failure: str
) -> None:
    """While nothing becomes durable, nothing is executed and no outcome is told as known; then nothing is lost."""
    error, calls = _FAILURES[failure]
    store = sqlite_store(tmp_path)
    async with process(store, tmp_path, upstream) as gateway:
        hold = asyncio.Event()
        upstream.on("/charges", Answer(201), Answer(201, hold=hold), Answer(201))
        assert status_of(await send(gateway.port, "before")) == (201, "stored")
        request = asyncio.create_task(send(gateway.port, "during"))
        await upstream.wait_for_requests(2)
        async with Trap.failing(gateway.pid, error, calls, tmp_path / "trap.log") as trap:
            assert status_of(await send(gateway.port, "new")) == (503, "store-unavailable")
            hold.set()
            answer = await request
            assert status_of(answer) == (503, "in-doubt")
            assert b"could not be recorded" in answer.body
            assert await gateway.metric("idempotency_journal_failures_total") >= 1
            assert any("/store/operations.db" in line for line in trap.sprung)
            assert any("/state/journal" in line for line in trap.sprung)
            assert len(upstream.requests) == 2
        during = await wait_answered(gateway.port, "during", verdicts=_STORED)
        assert (during.status, nonce_of(during)) == (201, upstream.answers[1].nonce)
        gateway.kill()
        await gateway.start()
        for key, number in (("before", 0), ("during", 1)):
            last = await send(gateway.port, key)
            assert (status_of(last), nonce_of(last)) == ((201, "replayed"), upstream.answers[number].nonce)
        assert (await wait_answered(gateway.port, "new", verdicts=_STORED)).status == 201
        assert len(upstream.requests) == 3
