"""Real gateways whose disk is full or does not keep what it is given."""

from __future__ import annotations

import asyncio
import errno
import resource
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.hand import assert_replayed
from tests.support.fleet import key_of, nonce_of, process, send, wait_answered
from tests.support.gateway import GatewayProcess
from tests.support.house import sqlite_store, status_of
from tests.support.http import Response
from tests.support.trap import Trap
from tests.support.upstream import Answer, RecordingUpstream

_TRIES_MAX = 100
_STORED = frozenset(("stored", "replayed"))


async def stored_until_full(disk: Disk, gateway: GatewayProcess) -> dict[str, Response]:
    """Fill the disk until the store has nothing left to tidy up; returns what was still stored meanwhile."""
    stored: dict[str, Response] = {}
    refusals = 0
    for number in range(_TRIES_MAX):
        disk.fill(gateway.pid)
        response = await send(gateway.port, f"full-{number}")
        if response.status == 201:
            stored[f"full-{number}"] = response
            refusals = 0
            continue
        assert status_of(response) == (503, "store-unavailable")
        refusals += 1
        if refusals == 3:
            return stored
    raise AssertionError("the disk is never full")


async def test_full_disk(tmp_path: Path, upstream: RecordingUpstream) -> None:
    """On a full disk nothing is executed or lost, what was stored is replayed, and with room again all works again."""
    with small_disk(tmp_path / "disk") as disk:
        store = sqlite_store(disk.directory)
        async with process(store, tmp_path, upstream) as gateway:
            hold = asyncio.Event()
            upstream.on("/charges", Answer(201), Answer(201, body=b"during", hold=hold), Answer(201))
            answers = {"before": await send(gateway.port, "before")}
            request = asyncio.create_task(send(gateway.port, "during"))
            await upstream.wait_for_requests(2)
            answers |= await stored_until_full(disk, gateway)
            await assert_replayed("before", answers["before"], gateway)
            hold.set()
            # The journal is on another disk. Or a checkpoint made room in the store's log.
            answers["during"] = await request
            assert status_of(answers["during"]) in ((201, "journaled"), (201, "stored"))
            assert Counter(map(key_of, upstream.requests)) == dict.fromkeys(answers, 1)
            disk.empty(gateway.pid)
            answers["new"] = await wait_answered(gateway.port, "new", verdicts=_STORED)
            gateway.kill()
            await gateway.start()
            for key, first in answers.items():
                await assert_replayed(key, first, gateway)
            assert Counter(map(key_of, upstream.requests)) == dict.fromkeys(answers, 1)


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


@dataclass
class Disk:
    """`directory` is on it. What is there stays there; when it is full nothing is added.

    It is mounted where that is allowed, and otherwise no file of the process may grow.
    """

    directory: Path
    is_mounted: bool

    @property
    def _filler(self) -> Path:
        return self.directory / "filler"

    def fill(self, pid: int) -> None:
        """Leave no room. What the process then frees of its own it may use again, until it is filled once more."""
        if not self.is_mounted:
            sizes = [path.stat().st_size for path in self.directory.rglob("*") if path.is_file()]
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (max(sizes), resource.RLIM_INFINITY))
            return
        with self._filler.open("ab", buffering=0) as filler:
            for size in (65_536, 4_096, 1):
                with suppress(OSError):
                    while True:
                        filler.write(bytes(size))

    def empty(self, pid: int) -> None:
        """There is room again."""
        self._filler.unlink(missing_ok=True)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@contextmanager
def small_disk(directory: Path) -> Iterator[Disk]:
    """One at `directory`, which is made."""
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "gateway-tests", str(directory)]
    try:
        is_mounted = subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        is_mounted = False
    try:
        yield Disk(directory, is_mounted)
    finally:
        if is_mounted:
            subprocess.run(["umount", "--lazy", str(directory)], check=True)
