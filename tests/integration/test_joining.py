"""A gateway that starts, while a standby may not know of it yet: only what needs a new grant waits, and it says so."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import http
from tests.support.eventually import eventually
from tests.support.fleet import NOW, config_of, process, send
from tests.support.gateway import GatewayProcess
from tests.support.house import status_of
from tests.support.postgres import PostgresInstallation, PostgresServer, PostgresStandby
from tests.support.redis_groups import Watched
from tests.support.upstream import Answer, RecordingUpstream

# Nothing of a test waits for its end.
LONG = "5m"
SHORT = "3s"


@contextmanager
def silent_host() -> Iterator[int]:
    """The port of a host that accepts, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.fixture(params=["asynchronous-standby", "silent-host"])
async def url(
    request: pytest.FixtureRequest,
    own_postgres: PostgresServer,
    postgres_installation: PostgresInstallation,
    server_workspace: Path,
) -> AsyncIterator[str]:
    """Of a Postgres that may be replaced by a standby which lacks its last commits."""
    if request.param == "silent-host":
        with silent_host() as port:
            yield f"postgresql://gateway@127.0.0.1:{port},127.0.0.1:{own_postgres.port}/postgres"
        return
    place = server_workspace / f"{own_postgres.directory.name}-standby"
    standby = PostgresStandby(postgres_installation, place, own_postgres, own_postgres.port)
    standby.launch()
    try:
        await eventually(standby.is_ready, 30.0, "the standby follows")
        yield own_postgres.url
    finally:
        standby.crash()


def why_down(ready: http.Response) -> str:
    """Why the durable store grants nothing."""
    return str(ready.json()["parts"].get("why", {}).get("durable", ""))


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.full)])
async def test_only_what_needs_a_grant_waits(
    tmp_path: Path, url: str, own_postgres: PostgresServer, upstream: RecordingUpstream, workers: int
) -> None:
    """Keys that have a record are answered from it; new ones get 503 and run nothing; other traffic passes. Until it
    grants, the gateway is not ready, and says why."""
    async with process({"durable": own_postgres.url}, tmp_path / "before", upstream) as before:
        assert status_of(await send(before.port, "known")) == (201, "stored")
        upstream.on("/charges", Answer(502))
        assert status_of(await send(before.port, "doubtful")) == (502, "in-doubt")
        upstream.on("/charges", Answer(201))
    executed = len(upstream.requests)
    store = {"probation": LONG}
    config = config_of({"durable": url}, tmp_path / "after", upstream.url, store=store, workers=workers)
    gateway = GatewayProcess(config, tmp_path / "after")

    async def listens() -> bool:
        try:
            return bool((await gateway.status("/readyz")).json()["parts"]["listener"] == "up")
        except OSError:
            return False

    try:
        gateway.launch()
        await eventually(listens, 60.0, "it has met its store and listens")
        ready = await gateway.status("/readyz")
        assert (ready.status, ready.json()["parts"]["durable"]) == (503, "down")
        assert "standbys have surely received" in why_down(ready)
        assert (await gateway.status("/livez")).status == 200
        for _ in range(2):
            assert status_of(await send(gateway.port, "known")) == (201, "replayed")
            assert status_of(await send(gateway.port, "doubtful", headers=NOW)) == (409, "in-doubt")
            assert status_of(await send(gateway.port, "known", b'{"another":1}')) == (422, "key-reused")
            refused = await send(gateway.port, "new")
            assert status_of(refused) == (503, "store-unavailable")
            assert refused.header("Retry-After")
        assert (await http.request(gateway.port, "GET", "/charges")).status == 201
        assert [each.method for each in upstream.requests[executed:]] == ["GET"]
        # The store itself was up all the while.
        assert "comes and goes" not in gateway.output()
    finally:
        gateway.kill()


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.full)])
async def test_once_it_is_ready_it_grants(tmp_path: Path, url: str, upstream: RecordingUpstream, workers: int) -> None:
    """Whoever sends requests only to gateways that are ready sees no refusal."""
    async with process({"durable": url}, tmp_path, upstream, store={"probation": SHORT}, workers=workers) as gateway:
        for number in range(8):
            assert status_of(await send(gateway.port, f"new-{number}")) == (201, "stored")
        assert (await gateway.status("/readyz?require=store")).status == 200


async def test_a_store_that_grants_to_nobody_stops_no_other_traffic(
    tmp_path: Path, own_postgres: PostgresServer, upstream: RecordingUpstream
) -> None:
    """Without the standby that is required there is no end to wait for: the gateway is ready, but not with its
    store."""
    settings = {"synchronous": "require"}
    async with process({"durable": own_postgres.url}, tmp_path, upstream, store=settings) as gateway:
        assert status_of(await send(gateway.port, "new")) == (503, "store-unavailable")
        needing = await gateway.status("/readyz?require=store")
        assert needing.status == 503
        assert "no synchronous standby" in why_down(needing)
        assert (await http.request(gateway.port, "GET", "/charges")).status == 201


async def test_a_store_that_comes_later_takes_readiness_from_nobody(
    tmp_path: Path, own_postgres: PostgresServer, upstream: RecordingUpstream
) -> None:
    """A gateway that was ready without its store is so while it waits for a grant, too: other traffic goes on."""
    own_postgres.stop()
    with silent_host() as port:
        url = f"postgresql://gateway@127.0.0.1:{port},127.0.0.1:{own_postgres.port}/postgres"
        async with process({"durable": url}, tmp_path, upstream.url, store={"probation": LONG}) as gateway:
            own_postgres.start()

            async def waits() -> bool:
                return "standbys have surely received" in why_down(await gateway.status("/readyz"))

            await eventually(waits, 30.0, "it has met its store")
            assert (await gateway.status("/readyz")).status == 200
            assert (await gateway.status("/readyz?require=store")).status == 503


@pytest.mark.parametrize("others", ["three-that-reply", "none"])
async def test_silent_sentinels_hold_up_no_start(
    tmp_path: Path, server_workspace: Path, postgres_url: str, upstream: RecordingUpstream, others: str
) -> None:
    """Redis has copies alone: without those who name its master the gateway is ready, and known and new keys are
    served, as they are with a sentinel that has fallen silent beside others."""
    watched = Watched(server_workspace)
    with contextlib.ExitStack() as stack:
        places = [f"127.0.0.1:{stack.enter_context(silent_host())}"]
        if others == "three-that-reply":
            stack.callback(watched.stop)
            watched.start()
            places += [f"127.0.0.1:{sentinel.port}" for sentinel in watched.sentinels]
        fast = f"redis+sentinel://{','.join(places)}/{Watched.NAME}/0"
        async with process({"durable": postgres_url}, tmp_path / "before", upstream.url) as before:
            assert status_of(await send(before.port, "known")) == (201, "stored")
        async with process({"durable": postgres_url, "fast": fast}, tmp_path / "after", upstream.url) as gateway:
            assert status_of(await send(gateway.port, "known")) == (201, "replayed")
            assert status_of(await send(gateway.port, "new")) == (201, "stored")

            async def is_found() -> bool:
                expected = "up" if others == "three-that-reply" else "down"
                return bool((await gateway.status("/readyz")).json()["parts"]["fast"] == expected)

            await eventually(is_found, 20.0, "Redis is found by those who reply")
