"""Alerts about stores, journals and processes, as in `test_runbook`."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import pytest

from tests.integration.runbook import DAY_SECONDS, SECONDS_OF_AGE, response_file
from tests.integration.test_workers import workers
from tests.support import http
from tests.support.alerting import Scene, as_process, at_home
from tests.support.eventually import eventually
from tests.support.fleet import config_of, gateways, try_send
from tests.support.gateway import GatewayProcess
from tests.support.house import BODY, JSON, sqlite_store, status_of
from tests.support.postgres import PostgresServer
from tests.support.redis import GATEWAY_USER, RedisServer
from tests.support.relay import Relay
from tests.support.tls import Authority, Certificate
from tests.support.upstream import Answer

LEASE_SECONDS = 3.0


@contextmanager
def no_growing(gateway: GatewayProcess, bytes_max: int) -> Iterator[None]:
    """No file of the process may grow beyond this."""
    before = resource.prlimit(gateway.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(gateway.pid, resource.RLIMIT_FSIZE, (bytes_max, before[1]))
    try:
        yield
    finally:
        resource.prlimit(gateway.pid, resource.RLIMIT_FSIZE, before)


# -- stores -----------------------------------------------------------------------------------------------------------


@pytest.mark.full
async def test_the_durable_store_is_down(tmp_path: Path, own_postgres: PostgresServer) -> None:
    """It is told from its absence; once it is back, requests run."""
    async with as_process("IdempotencyDurableStoreDown", tmp_path, {"durable": own_postgres.url}) as scene:
        own_postgres.crash()

        async def refused() -> None:
            assert (await scene.send()).header("Idempotency-Status") == "store-unavailable"

        await scene.until_it_fires(refused)
        assert str(own_postgres.port) in await scene.run("idempotency-gateway check --store", code=1)
        parts = (await scene.process.status("/readyz")).json()["parts"]
        assert "refused" in str(parts)
        await asyncio.to_thread(own_postgres.start)
        await scene.until_it_ends()
        await scene.run("idempotency-gateway check --store")
        assert (await scene.send()).status == 200


@pytest.mark.full
async def test_a_durable_store_without_room(tmp_path: Path, server_workspace: Path) -> None:
    """What is known is replayed, so that it is up and down by turns; with room, new keys run."""
    server = RedisServer(server_workspace / "full", append_only=True, options=GATEWAY_USER)
    server.start()
    try:
        async with as_process("IdempotencyStoreUnavailable", tmp_path, {"durable": server.durable_url}) as scene:
            assert (await scene.send()).status == 200
            with server.client() as client:
                client.config_set("maxmemory", 1)

            async def refused() -> None:
                assert (await scene.send("k2")).header("Idempotency-Status") == "store-unavailable"
                assert (await scene.send()).header("Idempotency-Status") == "replayed"

            await scene.until_it_fires(refused)
            await scene.run("idempotency-gateway check --store")
            await scene.wait_logged("its memory is full")
            with server.client() as client:
                client.config_set("maxmemory", 0)
            await scene.until_it_ends()
            assert (await scene.send("k2")).status == 200
    finally:
        server.kill()


@pytest.mark.full
async def test_a_lost_memory(tmp_path: Path) -> None:
    """An older copy of the store is back; it is the right one, so the loss is accepted."""
    store = sqlite_store(tmp_path)
    files, copy = tmp_path / "store", tmp_path / "copy"
    async with as_process("IdempotencyMemoryLost", tmp_path, store) as scene:
        await scene.send("k1")
        scene.process.terminate()
        shutil.copytree(files, copy)
        await scene.process.start()
        await scene.send("k2")
        scene.process.terminate()
        files.rename(tmp_path / "lost")
        copy.rename(files)
        await scene.process.start()
        await scene.until_it_fires(scene.gets((503, "store-amnesia"), "k2"))
        assert "lost" in await scene.run("idempotency-gateway memory")
        await scene.run('idempotency-gateway memory --accept-loss --why "restored from 12:00"')
        await scene.until_it_ends()
        assert status_of(await scene.send("k2")) == (200, "stored")


@pytest.mark.full
async def test_the_fast_tier_is_down(tmp_path: Path, own_redis: RedisServer, postgres_url: str) -> None:
    """Requests run all the same; Redis comes back."""
    store = {"durable": postgres_url, "fast": own_redis.url}
    async with as_process("IdempotencyFastTierDown", tmp_path, store) as scene:
        own_redis.kill()
        await scene.until_it_fires(scene.gets(200))
        assert "the fast tier cannot be used: " in await scene.run("idempotency-gateway check --store")
        await scene.wait_logged("the fast store is down")
        await asyncio.to_thread(own_redis.start)
        await scene.until_it_ends()
        assert "the fast tier" not in await scene.run("idempotency-gateway check --store")


@pytest.mark.full
async def test_unprotected_requests(tmp_path: Path, own_postgres: PostgresServer) -> None:
    """They are forwarded while the store is away, and protected once it is back."""
    route = {"store_unavailable": "forward"}
    async with as_process("IdempotencyUnprotected", tmp_path, {"durable": own_postgres.url}, route=route) as scene:
        own_postgres.crash()
        await scene.until_it_fires(scene.gets(200))
        await scene.run("idempotency-gateway check --store", code=1)
        await asyncio.to_thread(own_postgres.start)

        async def protected() -> None:
            await eventually(lambda: has_verdict(scene, "stored", "replayed"), 20.0)

        await scene.until_it_ends(protected)


async def test_late_partitions(tmp_path: Path, postgres_url: str) -> None:
    """The service declares longer and longer windows; its responses expire on days that have no partition yet."""
    async with at_home("IdempotencyPartitionsLate", tmp_path, {"durable": postgres_url}) as scene:
        days = count(2)

        async def answered_for_longer() -> None:
            day = next(days)
            declared = ("Idempotency-Retention", str(day * DAY_SECONDS))
            scene.upstream.on("/charges", Answer(201, headers=(declared,)))
            assert (await scene.send(f"k{day}")).header("Idempotency-Status") == "stored"

        await scene.until_it_fires(answered_for_longer)
        await scene.until_it_ends()


async def has_verdict(scene: Scene, *verdicts: str) -> bool:
    return (await scene.send("k2")).header("Idempotency-Status") in verdicts


@pytest.mark.full
async def test_refused_writes(tmp_path: Path) -> None:
    """A gateway was frozen while an operator resolved its operation: what it then brings differs from the record."""
    store = sqlite_store(tmp_path)
    changes = {"store": {"lease": "3s", "journal_grace": "0s"}}
    async with as_process("IdempotencyWritesRefused", tmp_path, store, **changes) as scene:
        hold = asyncio.Event()
        scene.upstream.on("/charges", Answer(201, body=b"late", hold=hold))
        other = config_of(store, tmp_path / "other", scene.upstream.url, **changes)
        async with gateways((other, tmp_path / "other")) as (healthy,):
            await scene.until_it_ends()
            first = await scene.begin()
            scene.process.pause()
            response = await eventually(lambda: refused_as(healthy.port, "in-doubt"), 30.0)
            operation_id = response.json()["operation_id"]
            await scene.do(
                "resolve", operation_id, "--completed", response_file(tmp_path), "--why", "seen in the ledger"
            )
            scene.process.resume()
            hold.set()
            await first
            await scene.until_it_fires()
            await scene.wait_logged(operation_id)
            shown = await scene.run("idempotency-gateway inspect OPERATION_ID", OPERATION_ID=operation_id)
            assert "seen in the ledger" in shown
            await scene.until_it_ends()


async def refused_as(port: int, verdict: str) -> http.Response | None:
    response = await try_send(port, "k1", headers=(("Prefer", "wait=0"),))
    return response if response is not None and response.header("Idempotency-Status") == verdict else None


@pytest.mark.full
async def test_lost_leases(tmp_path: Path, own_postgres: PostgresServer) -> None:
    """The store hangs longer than a lease under an attempt, and is mended; what is in doubt is seen."""
    async with Relay(own_postgres.port) as relay:
        url = own_postgres.url.replace(f":{own_postgres.port}/", f":{relay.port}/")
        async with as_process(
            "IdempotencyLeasesLost", tmp_path, {"durable": url, "lease": "3s", "journal_grace": "0s"}
        ) as scene:
            hold = asyncio.Event()
            scene.upstream.on("/charges", Answer(201, hold=hold))
            await scene.until_it_ends()
            first = await scene.begin()
            relay.refuse()
            relay.cut()
            await scene.run("idempotency-gateway check --store", code=1)
            await asyncio.sleep(2 * LEASE_SECONDS)
            await relay.listen()
            await scene.until_it_fires()
            hold.set()
            await first
            await scene.run("idempotency-gateway inspect --list")
            await scene.until_it_ends()


# -- the journal ------------------------------------------------------------------------------------------------------


async def journaled(scene: Scene, server: PostgresServer) -> str:
    """The id of an operation whose outcome is in the journal, the store having gone."""
    hold = asyncio.Event()
    scene.upstream.on("/charges", Answer(201, body=b"charged", hold=hold))
    request = await scene.begin()
    (operation_id,) = scene.upstream.requests[-1].values("Idempotency-Operation")
    server.crash()
    hold.set()
    assert status_of(await request) == (201, "journaled")
    return operation_id.decode()


async def test_a_journal_that_waits(tmp_path: Path, own_postgres: PostgresServer) -> None:
    """The store is mended, and the outcome is written by itself."""
    store = {"durable": own_postgres.url}
    async with as_process("IdempotencyJournalWaits", tmp_path, store, ages=SECONDS_OF_AGE) as scene:
        operation_id = await journaled(scene, own_postgres)
        await scene.until_it_fires()
        assert operation_id in await scene.run("idempotency-gateway journal --state waiting")
        await asyncio.to_thread(own_postgres.start)
        await scene.until_it_ends()
        assert status_of(await scene.send()) == (201, "replayed")


@pytest.mark.full
async def test_a_refused_outcome(tmp_path: Path, own_postgres: PostgresServer) -> None:
    """The record was resolved by hand meanwhile: the outcome is exported, compared and acknowledged."""
    store = {"durable": own_postgres.url, "lease": "3s", "journal_grace": "0s"}
    async with as_process("IdempotencyJournalRefused", tmp_path, store) as scene:
        operation_id = await journaled(scene, own_postgres)
        scene.process.kill()
        await asyncio.to_thread(own_postgres.start)
        other = config_of(store, tmp_path / "other", scene.upstream.url)
        async with gateways((other, tmp_path / "other")) as (healthy,):
            await eventually(lambda: refused_as(healthy.port, "in-doubt"), 30.0)
        file = response_file(tmp_path)
        await scene.do("resolve", operation_id, "--completed", file, "--why", "seen in the ledger")
        await scene.process.start()
        await scene.until_it_fires()
        assert operation_id in await scene.run("idempotency-gateway journal --state refused")
        await scene.run("idempotency-gateway inspect OPERATION_ID", OPERATION_ID=operation_id)
        exported = tmp_path / "exported.txt"
        await scene.run(
            "idempotency-gateway journal OPERATION_ID --export response.txt",
            OPERATION_ID=operation_id,
            response_txt=exported,
        )
        assert b"charged" in exported.read_bytes()
        await scene.run(
            'idempotency-gateway journal OPERATION_ID --acknowledge --why "compared with the ledger"',
            OPERATION_ID=operation_id,
        )
        await scene.until_it_ends()


@pytest.mark.full
async def test_a_journal_that_fails(tmp_path: Path, own_postgres: PostgresServer) -> None:
    """Neither store nor disk take an outcome; there is room again, and the store is back."""
    async with as_process("IdempotencyJournalFails", tmp_path, {"durable": own_postgres.url}) as scene:
        await scene.until_it_ends()
        with no_growing(scene.process, 200_000):
            hold = asyncio.Event()
            scene.upstream.on("/charges", Answer(201, body=b"x" * 500_000, hold=hold))
            request = await scene.begin()
            own_postgres.crash()
            hold.set()
            assert status_of(await request) == (503, "in-doubt")
            await scene.until_it_fires()
            await scene.run("idempotency-gateway journal")
        await asyncio.to_thread(own_postgres.start)
        await scene.until_it_ends()
        await eventually(lambda: is_replayed(scene), 30.0)


async def is_replayed(scene: Scene) -> bool:
    return (await scene.send()).header("Idempotency-Status") == "replayed"


# -- the process ------------------------------------------------------------------------------------------------------


async def test_a_stuck_operation(tmp_path: Path) -> None:
    """The service works on one for long; it ends with its response. By its age it is not listed here, being young."""
    async with as_process("IdempotencyOperationStuck", tmp_path, ages={"> 900": "> 0"}) as scene:
        hold = asyncio.Event()
        scene.upstream.on("/charges", Answer(201, hold=hold))
        first = await scene.begin()
        await scene.until_it_fires()
        await scene.run("idempotency-gateway inspect --list --state claimed --older-than 15m")
        assert "charge" in await scene.do("inspect", "--list", "--state", "claimed")
        hold.set()
        await first
        await scene.until_it_ends()


@pytest.mark.full
async def test_workers_that_die(tmp_path: Path) -> None:
    """The log says by which signal; what they left in doubt is listed and resolved."""
    async with as_process(
        "IdempotencyWorkersDie", tmp_path, workers=2, store={"lease": "3s", "journal_grace": "0s"}
    ) as scene:
        await scene.until_it_ends()
        scene.upstream.on("/charges", Answer(201, hold=asyncio.Event()))
        first = await scene.begin()
        first.add_done_callback(lambda task: task.exception())
        (operation_id,) = scene.upstream.requests[0].values("Idempotency-Operation")
        for number in (2, 1):
            before = list(workers(scene.process).values())[:number]
            for pid in before:
                os.kill(pid, signal.SIGKILL)
            await eventually(lambda before=before: are_replaced(scene, before), 60.0)  # type: ignore[misc]
        await scene.until_it_fires()
        await scene.wait_logged("signal 9")
        await eventually(lambda: is_listed(scene, operation_id.decode()), 30.0)
        assert operation_id.decode() in await scene.run("idempotency-gateway inspect --list")
        await scene.do(
            "resolve", operation_id.decode(), "--completed", response_file(tmp_path), "--why", "in the ledger"
        )
        await scene.until_it_ends()


async def is_listed(scene: Scene, operation_id: str) -> bool:
    return operation_id in await scene.do("inspect", "--list")


def are_replaced(scene: Scene, before: list[int]) -> bool:
    now = set(workers(scene.process).values())
    return len(now) == 2 and not now & set(before)


@pytest.mark.full
async def test_a_silent_worker(tmp_path: Path) -> None:
    """It hangs; the gateway is stopped by SIGTERM and started anew."""
    async with as_process("IdempotencyWorkerSilent", tmp_path, workers=2) as scene:
        os.kill(min(workers(scene.process).values()), signal.SIGSTOP)
        await scene.until_it_fires()
        await scene.run("idempotency-gateway inspect --list --state claimed")
        scene.process.ask_to_stop()
        await scene.process.wait_exit()
        await scene.process.start()
        await scene.until_it_ends()


@pytest.mark.full
async def test_a_loop_that_stalls(tmp_path: Path) -> None:
    """The process does not get to run, and then it does."""
    async with as_process("IdempotencyLoopStalls", tmp_path, store={"lease": "3s"}) as scene:
        await scene.until_it_ends()

        async def stall() -> None:
            scene.process.pause()
            await asyncio.sleep(LEASE_SECONDS / 2)
            scene.process.resume()
            await scene.send()

        await scene.until_it_fires(stall)
        await scene.until_it_ends(scene.gets(200))


@pytest.mark.full
async def test_lost_lines(tmp_path: Path) -> None:
    """Nobody reads the output; then somebody does."""
    os.mkfifo(tmp_path / "gateway.log")
    reader = os.open(tmp_path / "gateway.log", os.O_RDWR | os.O_NONBLOCK)
    try:
        async with as_process("IdempotencyLogLinesDropped", tmp_path) as scene:

            async def ask() -> None:
                async with http.Connection(scene.gateway.port) as connection:
                    for _ in range(100):
                        headers = [JSON, ("Idempotency-Key", "k1"), ("X-Tenant", "t1")]
                        await connection.send(http.request_bytes("POST", "/charges", headers, BODY))
                        assert (await connection.read_response("POST")).status == 200

            await scene.until_it_fires(ask)

            def read() -> None:
                with suppress(BlockingIOError):
                    while os.read(reader, 1 << 16):
                        pass

            asyncio.get_running_loop().add_reader(reader, read)
            await scene.until_it_ends(ask)
    finally:
        asyncio.get_running_loop().remove_reader(reader)
        os.close(reader)


@pytest.mark.full
async def test_a_gateway_that_is_down(tmp_path: Path) -> None:
    """Its log and `check` say nothing against a start; it is started, and what it left is looked for."""
    async with as_process("IdempotencyGatewayDown", tmp_path) as scene:
        await scene.until_it_ends()
        scene.process.kill()
        await scene.until_it_fires()
        assert "charge" in await scene.run("idempotency-gateway check")
        await scene.process.start()
        await scene.until_it_ends()
        await scene.do("inspect", "--list")


async def test_a_refused_reload(tmp_path: Path) -> None:
    """`check` names the mistake, and the mended file is reloaded."""
    async with as_process("IdempotencyReloadRefused", tmp_path) as scene:
        scene.rewrite(lambda document: document.update(nonsense=1))
        await scene.do("reload", code=2)
        await scene.until_it_fires()
        assert "nonsense" in await scene.run("idempotency-gateway check", code=2)
        await scene.wait_logged("nonsense")
        await scene.reload(lambda document: document.pop("nonsense"))
        await scene.until_it_ends()


async def test_a_certificate_that_expires(tmp_path: Path) -> None:
    """Its files are renewed in their place; a reload does not wait for the look of each minute."""
    authority = Authority(tmp_path)
    soon, renewed = (authority.issue_to(common_name="localhost", days=days, usage="server") for days in (3.0, 300.0))
    cert, key = tmp_path / "tls.pem", tmp_path / "tls.key"

    def put(certificate: Certificate) -> None:
        for source, place in ((certificate.key, key), (certificate.cert, cert)):
            shutil.copy(source, tmp_path / "new")
            (tmp_path / "new").replace(place)

    put(soon)
    async with as_process("IdempotencyCertificateExpires", tmp_path) as scene:
        address = f"127.0.0.1:{scene.gateway.port}"
        await scene.reload(
            lambda document: document.update(listen={"address": address, "tls": {"cert": str(cert), "key": str(key)}})
        )
        await scene.until_it_fires()
        assert "charge" in await scene.run("idempotency-gateway check")
        put(renewed)
        await scene.do("reload")
        await scene.until_it_ends()


@pytest.mark.full
async def test_dropped_observations(tmp_path: Path, own_postgres: PostgresServer) -> None:
    """The store is away, which no request notices; then it is back."""
    store = {"durable": own_postgres.url}
    async with as_process("IdempotencyObservationsDropped", tmp_path, store, route={"mode": "observe"}) as scene:
        own_postgres.crash()

        async def passed() -> None:
            assert status_of(await scene.send()) == (200, None)

        await scene.until_it_fires(passed)
        await asyncio.to_thread(own_postgres.start)
        await scene.until_it_ends(passed)
