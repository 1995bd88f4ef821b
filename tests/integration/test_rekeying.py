"""`rekey` beside a gateway that serves, stopped and killed again and again."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gateway.app.operating import rekey_stores
from gateway.config import parse
from gateway.store import sealed
from tests.support.accepting import ASYNC
from tests.support.eventually import eventually
from tests.support.house import House, config_text, house, neighbour, status_of, stores
from tests.support.http import Response
from tests.support.processes import spawn
from tests.support.upstream import Answer

_OPERATIONS = 24
OLD, NEW = {"id": "old", "key": "a1" * 32}, {"id": "new", "key": "b2" * 32}
ANSWER = Answer(201, headers=(("Content-Type", "application/json"), ("Location", "/made/1")), body=b'{"made": 1}')


store = stores("sqlite", full=["postgres"])


def changes(*keys: dict[str, str]) -> dict[str, Any]:
    return {
        "route": {"accept": {"identity": "unverified"}},
        "store": {"clear_keys": True, "cache_max_age": "0s"},
        "secrets": {"encryption": list(keys)},
        "delivery": {"workers": 0},
    }


async def test_nothing_is_left_and_nothing_is_unreadable(
    store: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped behind each page and killed, under requests all the time: each response stays what it was throughout, and
    in the end no gateway needs the old key."""
    monkeypatch.setattr(sealed, "PAGE_ROWS_MAX", 7)
    async with house(store, tmp_path, **changes(OLD)) as home:
        upstream = home.upstream
        upstream.on("/charges", ANSWER)
        first = {key: await home.send(key) for key in (f"k{number}" for number in range(_OPERATIONS))}
        kept = [await home.send(f"a{number}", headers=[ASYNC]) for number in range(_OPERATIONS // 4)]
        assert {status_of(each)[0] for each in kept} == {202}
        await home.gateway.stop()
        async with neighbour(store, tmp_path, upstream, **changes(NEW, OLD)) as busy:
            text = config_text(upstream.url, store, tmp_path, **changes(NEW, OLD))
            (tmp_path / "rekey.yaml").write_text(text)
            load = asyncio.create_task(_load(busy, first))
            await _killed(tmp_path / "rekey.yaml", tmp_path)
            left = None
            while left is None:
                with suppress(_Stopped):
                    left = await rekey_stores(parse(text), lambda _: None, _stop)
            load.cancel()
            (outcome,) = await asyncio.gather(load, return_exceptions=True)
            assert isinstance(outcome, asyncio.CancelledError), outcome
            assert left == 0
            assert set((await busy.gateway._store.cold.tally()).sealed) == {"new"}
            await busy.gateway.stop()
        async with neighbour(store, tmp_path, upstream, **{**changes(NEW), "delivery": {"workers": 1}}) as last:
            await _as_before(last, first)
            for number in range(_OPERATIONS // 4):
                response = await last.send(f"a{number}", headers=[("Prefer", "wait=20")])
                assert (response.status, response.body) == (201, ANSWER.body)


async def _load(home: House, first: dict[str, Response]) -> None:
    """New operations, and repeats of old ones, one after the other."""
    number = 0
    while True:
        number += 1
        assert status_of(await home.send(f"n{number}")) == (201, "stored")
        key = f"k{number % _OPERATIONS}"
        await _as_before(home, {key: first[key]})


async def _as_before(home: House, first: dict[str, Response]) -> None:
    for key, response in first.items():
        again = await home.send(key)
        assert status_of(again) == (201, "replayed"), key
        assert (again.body, again.header("Location")) == (response.body, response.header("Location"))


async def _killed(config: Path, directory: Path) -> None:
    """One that is killed as soon as it has done something."""
    log = directory / "rekey.log"
    process = spawn(
        [sys.executable, "-m", "gateway", "rekey", "--config", str(config)], output=log, directory=Path.cwd()
    )
    try:
        await eventually(lambda: b"kept requests" in log.read_bytes(), 30, "it has done something")
    finally:
        process.kill()
        await asyncio.to_thread(process.wait)


class _Stopped(Exception):
    pass


def _stop(_: str) -> None:
    raise _Stopped
