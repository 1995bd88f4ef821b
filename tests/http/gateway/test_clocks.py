"""Clocks that jump by an hour while operations run: a gateway's changes nothing, the store's runs nothing again."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.eventually import eventually
from tests.support.house import house, neighbour, sqlite_store, status_of
from tests.support.upstream import Answer

HOUR_SECONDS = 3600
QUICK: dict[str, Any] = {"in_flight": {"wait": "0s"}}


def jump(monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    """Move this process's wall clock, for whoever asks for it from now on."""
    now, now_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: now() + seconds)
    monkeypatch.setattr(time, "time_ns", lambda: now_ns() + seconds * 1_000_000_000)


@pytest.mark.parametrize("seconds", [HOUR_SECONDS, -HOUR_SECONDS], ids=["forward", "back"])
async def test_a_gateways_wall_clock_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, postgres_url: str, seconds: int
) -> None:
    """With another clock than the store's, what was stored is replayed until the same moment as before, what runs keeps
    its claim, and new keys run."""
    store = {"durable": postgres_url}
    async with house(store, tmp_path, route=QUICK) as home:
        before = await home.send("before")
        assert status_of(before) == (200, "stored")
        hold = asyncio.Event()
        home.upstream.on("/charges", Answer(201, hold=hold), Answer())
        running = asyncio.create_task(home.send("running"))
        await home.upstream.wait_for_requests(2)
        jump(monkeypatch, seconds)
        assert status_of(await home.send("at-once")) == (200, "stored")
        async with neighbour(store, tmp_path / "n", home.upstream, route=QUICK) as other:
            assert status_of(await other.send("running")) == (409, "in-flight")
            for each in (home, other):
                again = await each.send("before")
                assert status_of(again) == (200, "replayed")
                assert again.header("Idempotency-Expires") == before.header("Idempotency-Expires") is not None
            assert status_of(await home.send("after")) == (200, "stored")
            assert status_of(await other.send("after")) == (200, "replayed")
            hold.set()
            assert status_of(await running) == (201, "stored")
            assert status_of(await other.send("running")) == (201, "replayed")
        assert len(home.upstream.requests) == 4


@pytest.mark.parametrize("seconds", [HOUR_SECONDS, -HOUR_SECONDS], ids=["forward", "back"])
async def test_a_stores_clock_runs_nothing_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seconds: int) -> None:
    """When the store's clock jumps a lease may lapse; what was sent is not sent again, and its late answer counts."""
    store = sqlite_store(tmp_path)
    async with house(store, tmp_path, route=QUICK) as home:
        assert status_of(await home.send("before")) == (200, "stored")
        hold = asyncio.Event()
        home.upstream.on("/charges", Answer(201, hold=hold), Answer())
        running = asyncio.create_task(home.send("running"))
        await home.upstream.wait_for_requests(2)
        jump(monkeypatch, seconds)
        assert status_of(await home.send("at-once")) == (200, "stored")
        async with neighbour(store, tmp_path / "n", home.upstream, route=QUICK) as other:
            assert status_of(await other.send("running"))[1] in ("in-flight", "in-doubt")
            assert status_of(await other.send("before")) == (200, "replayed")
            hold.set()
            assert status_of(await running) == (201, "stored")

            async def replayed() -> bool:
                return status_of(await other.send("running")) == (201, "replayed")

            await eventually(replayed)
        assert len(home.upstream.requests) == 3
