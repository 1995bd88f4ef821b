"""A gateway that comes and goes: what its start leaves when it fails, the order of its stop, and whose turn it is."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gateway import EXIT_OK
from gateway.app import gateway as composition
from gateway.app.gateway import Gateway
from gateway.app.host import make_state_dir
from gateway.app.life import StartError
from gateway.app.stores import name_of
from gateway.app.worker import serve
from gateway.config import Config, parse
from gateway.store.postgres.store import PostgresStore
from gateway.upkeep.duty import LOOK_SECONDS, Duty
from tests.observe.scrape import Scrape
from tests.support import http
from tests.support.eventually import eventually
from tests.support.house import House, config_text, house, sqlite_store
from tests.support.upstream import Answer


def open_files(directory: Path) -> list[str]:
    """What of the directory this process has open."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(str(entry.readlink()))
    return [target for target in found if target.startswith(str(directory))]


def configured(directory: Path, store: dict[str, Any] | None = None, **changes: Any) -> Config:
    return parse(config_text("http://127.0.0.1:9", store or sqlite_store(directory), directory, **changes))


def test_the_name_of_its_directory_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is told as kept lies in a directory that a loss of power does not take."""
    synced: set[int] = set()
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.add(os.fstat(descriptor).st_ino))
    make_state_dir(configured(tmp_path / "made" / "here"))
    assert {each.stat().st_ino for each in (tmp_path, tmp_path / "made", tmp_path / "made" / "here")} <= synced


@pytest.mark.parametrize(
    ("service", "url", "is_same"),
    [
        pytest.param("shop", "postgresql://after.failover/orders", True, id="host"),
        pytest.param("shop", "postgresql://db/charges", False, id="database"),
        pytest.param("bank", "postgresql://db/orders", False, id="service"),
    ],
)
def test_whose_journals_these_are(tmp_path: Path, service: str, url: str, is_same: bool) -> None:
    """No outcome gets into the store of another database or service, and a failover strands none."""
    name = name_of(configured(tmp_path, {"durable": "postgresql://db/orders"}, service="shop"))
    assert (name_of(configured(tmp_path, {"durable": url}, service=service)) == name) is is_same


async def test_asked_to_stop_while_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that waits for its store does not keep the process; it ends at once, in order, and leaves nothing."""
    # By itself it would go on waiting for an hour.
    defaults = PostgresStore.__init__.__kwdefaults__ or {}
    monkeypatch.setattr(PostgresStore.__init__, "__kwdefaults__", defaults | {"connect_seconds": 3600.0})
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.setblocking(False)
        store = {"durable": f"postgresql://gateway@127.0.0.1:{silent.getsockname()[1]}/gateway"}
        starting = asyncio.create_task(serve(configured(tmp_path, store)))
        connection, _ = await asyncio.get_running_loop().sock_accept(silent)
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(30):
            assert await starting == EXIT_OK
        connection.close()
    await eventually(lambda: open_files(tmp_path) == [])


@pytest.mark.parametrize("taken", ["listen", "status"])
async def test_an_address_that_is_taken(tmp_path: Path, taken: str) -> None:
    """The start says which it is, and leaves no task, no file and no listener behind."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        address = f"127.0.0.1:{port}"
        changes: dict[str, Any] = {taken: address if taken == "listen" else {"listen": address}}
        gateway = Gateway(configured(tmp_path, None, **changes))
        with pytest.raises(StartError, match=rf":{port}: another program listens there already \({taken}"):
            await gateway.start()
        await eventually(lambda: open_files(tmp_path) == [])
        if gateway.address[1]:
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(*gateway.address)


async def test_what_is_unprotected_is_finished_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that nothing protects has as long to end as one that is recorded."""
    monkeypatch.setattr(composition, "_EDGE_GRACE_SECONDS", 0.0)
    hold = asyncio.Event()
    async with house(sqlite_store(tmp_path), tmp_path) as home:
        home.upstream.on("/reports", Answer(hold=hold, body=b"whole"))
        task = asyncio.create_task(http.request(home.port, "GET", "/reports", [], b""))
        await home.upstream.wait_for_requests(1)
        stopping = asyncio.create_task(home.gateway.stop())
        await eventually(lambda: home.gateway.edge.handler.is_stopping)
        for _ in range(50):
            await asyncio.sleep(0)
        hold.set()
        assert (await task).body == b"whole"
        assert await stopping == EXIT_OK


async def owned(running: House) -> dict[str, float]:
    told = Scrape((await running.status("/metrics")).body.decode())
    return {duty: told.value("idempotency_store_upkeep_owner", duty=duty.value) for duty in Duty}


async def test_a_gateway_alone_has_all_turns(tmp_path: Path) -> None:
    """And does nothing for all once it has none."""
    async with house(sqlite_store(tmp_path), tmp_path) as running:

        async def sweeps() -> float:
            told = Scrape((await running.status("/metrics")).body.decode())
            return told.value("idempotency_sweep_duration_seconds_count")

        parts = running.gateway.parts
        await eventually(lambda: parts.turns.has(Duty.SWEEP), what="it has its turns")
        assert await owned(running) == dict.fromkeys(Duty, 1.0)
        passes = parts._recovery._pass, parts._tally_taker._pass
        assert [await run_pass() > LOOK_SECONDS for run_pass in passes] == [True] * 2
        parts.turns.stop()
        assert await owned(running) == dict.fromkeys(Duty, 0.0)
        assert [await run_pass() for run_pass in passes] == [LOOK_SECONDS] * 2
        swept = await sweeps()
        await parts._sweeper.run_once()
        assert await sweeps() == swept


async def test_gateways_with_other_routes_have_other_turns(tmp_path: Path) -> None:
    """Each recovers and counts what the other does not; they sweep the same records."""
    probe = {"path": "/refunds/{operation_id}", "done": [{"status": [200]}], "never_happened": [{"status": [404]}]}
    refunds = {"name": "refunds", "recovery": {"probe": probe}, "match": {"path": "/refunds"}}
    async with house(sqlite_store(tmp_path), tmp_path / "one") as one:
        await eventually(lambda: one.gateway.parts.turns.has(Duty.SWEEP), what="it has its turns")
        async with house(sqlite_store(tmp_path), tmp_path / "two", route=refunds) as two:
            await eventually(lambda: two.gateway.parts.turns.has(Duty.RECOVERY), what="it has a turn of its own")
            assert not two.gateway.parts.turns.has(Duty.SWEEP)
            assert one.gateway.parts.turns.has(Duty.RECOVERY)
