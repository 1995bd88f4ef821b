"""Each alert on a real gateway: its condition comes, its entry in the runbook is followed, and the alert ends."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
import pytest

from gateway.core.operation import MICROSECONDS
from tests.admin.shell import CREATED, CUT
from tests.integration.test_journal import no_growing
from tests.integration.test_workers import workers
from tests.support import http
from tests.support.accepting import accepting
from tests.support.alerting import ALERTS, Scene, as_process, at_home
from tests.support.eventually import eventually
from tests.support.fleet import config_of, gateways, try_send
from tests.support.house import BODY, JSON, ROUTE, sqlite_store, status_of
from tests.support.issuer import Issuer, bearer
from tests.support.ports import free_port
from tests.support.postgres import PostgresServer
from tests.support.receiver import Receiver, status
from tests.support.redis import GATEWAY_USER, RedisServer
from tests.support.relay import Relay
from tests.support.senders import PAID, TEXT, signed
from tests.support.signing import WHSEC
from tests.support.tls import Authority, Certificate
from tests.support.upstream import Answer, RecordingUpstream
from tests.support.wall_clock import WallClock, wall_clock

DAY_SECONDS = 86_400
LEASE_SECONDS = 3.0
SECONDS_OF_AGE = {"> 300": "> 0"}
UNCACHED = {"cache_max_age": "0s"}
REFUSING = Answer(503, body=b"later")
DONE = Answer(201, body=b"done")


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WallClock]:
    """The wall clock of every process that the test starts, commands included."""
    with wall_clock(tmp_path / "clock") as found:
        for name, value in found.environment.items():
            monkeypatch.setenv(name, value)
        yield found


async def in_doubt(scene: Scene, key: str = "k1") -> str:
    """The id of an operation whose response was cut."""
    scene.upstream.on("/charges", CUT)
    response = await scene.send(key)
    assert response.header("Idempotency-Status") == "in-doubt"
    scene.upstream.on("/charges", DONE)
    return str(response.json()["operation_id"])


def response_file(directory: Path) -> Path:
    """What `curl -i` printed of the service's response."""
    file = directory / "response.txt"
    file.write_bytes(CREATED)
    return file


# -- doubt ------------------------------------------------------------------------------------------------------------


@pytest.mark.full
async def test_in_doubt(tmp_path: Path, clock: WallClock) -> None:
    """One had its effect, and one had none, which may be said once no request can arrive any more."""
    async with as_process("IdempotencyInDoubt", tmp_path) as scene:
        happened, never = await in_doubt(scene, "k1"), await in_doubt(scene, "k2")
        await scene.until_it_fires()
        listed = await scene.run("idempotency-gateway inspect --list")
        assert {happened, never} <= set(listed.split())
        assert "POST" in await scene.run("idempotency-gateway inspect OPERATION_ID", OPERATION_ID=happened)
        await scene.run(
            'idempotency-gateway resolve OPERATION_ID --completed response.txt --why "seen in the ledger"',
            OPERATION_ID=happened,
            response_txt=response_file(tmp_path),
        )
        none = 'idempotency-gateway resolve OPERATION_ID --never-happened --why "not in the ledger"'
        refused = await scene.run(none, code=1, OPERATION_ID=never)
        shown = await scene.run("idempotency-gateway inspect OPERATION_ID", OPERATION_ID=never)
        (until, *_) = re.findall(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z", refused)
        assert until in shown
        clock.move(1200)
        scene.spawns = True
        await scene.run(none, OPERATION_ID=never)
        await scene.until_it_ends()
        assert status_of(await scene.send("k1")) == (201, "recovered")
        assert status_of(await scene.send("k2")) == (201, "stored")


@pytest.mark.full
async def test_in_doubt_for_long(tmp_path: Path, clock: WallClock) -> None:
    """More than a day has passed; it is found by its age, and resolved."""
    async with as_process("IdempotencyInDoubtForLong", tmp_path, spawns=True) as scene:
        operation_id = await in_doubt(scene)
        clock.move(2 * DAY_SECONDS)
        await scene.until_it_fires()
        assert operation_id in await scene.run("idempotency-gateway inspect --list --older-than 1d")
        await scene.do("resolve", operation_id, "--never-happened", "--why", "not in the ledger")
        await scene.until_it_ends()


# -- accepted requests ------------------------------------------------------------------------------------------------


ACCEPTING: dict[str, Any] = accepting(
    delivers=True,
    accept={"mode": "always"},
    delivery={"workers": 1, "schedule": ["100ms"], "breaker": {"failures": 1, "open": "100ms", "max_open": "100ms"}},
)


async def accept(scene: Scene, key: str = "k1", body: bytes = BODY) -> str:
    """The id of a request that was accepted."""
    response = await scene.send(key, body)
    assert status_of(response) == (202, "accepted")
    return str(response.json()["id"])


async def are_dead(scene: Scene, number: int) -> bool:
    said = await scene.shell("inspect", "--list", "--state", "dead_letter", "--format", "jsonl")
    return len(said.rows()) == number


async def waits(scene: Scene, operation_id: str) -> bool:
    """Whether it is shown among what waits. While it is tried once more, it is not."""
    return operation_id in await scene.run("idempotency-gateway inspect --list --state accepted")


async def is_refused(scene: Scene, operation_id: str) -> bool:
    return "answered_503" in await scene.do("inspect", operation_id)


async def test_an_old_backlog(tmp_path: Path) -> None:
    """The service refuses, and nobody paused the route; the service is mended."""
    async with at_home("IdempotencyBacklogOld", tmp_path, ages=SECONDS_OF_AGE, **ACCEPTING) as scene:
        scene.upstream.on("/charges", REFUSING)
        operation_id = await accept(scene)
        await scene.until_it_fires()
        await eventually(lambda: waits(scene, operation_id), 30.0)
        assert "Nothing is paused" in await scene.run("idempotency-gateway pause")
        await eventually(lambda: is_refused(scene, operation_id), 30.0)
        scene.upstream.on("/charges", DONE)
        await scene.until_it_ends()


async def test_dead_letters(tmp_path: Path) -> None:
    """The credential was refused: it is renewed, one is delivered after all, and one is dropped."""
    async with at_home("IdempotencyDeadLetters", tmp_path, **ACCEPTING) as scene:
        scene.upstream.on("/charges", Answer(401))
        wanted, dropped = await accept(scene, "k1"), await accept(scene, "k2")
        await eventually(lambda: are_dead(scene, 2), 20.0)
        await scene.until_it_fires()
        listed = await scene.run("idempotency-gateway inspect --list --state dead_letter")
        assert {wanted, dropped} <= set(listed.split())
        assert "401" in await scene.run("idempotency-gateway inspect OPERATION_ID", OPERATION_ID=wanted)
        scene.upstream.on("/charges", DONE)
        await scene.run('idempotency-gateway requeue OPERATION_ID --why "credential renewed"', OPERATION_ID=wanted)
        await scene.run('idempotency-gateway withdraw OPERATION_ID --why "order was cancelled"', OPERATION_ID=dropped)
        await scene.until_it_ends()


async def test_stopped_lanes(tmp_path: Path) -> None:
    """One lane stands behind a doubt, and one behind a dead letter; both go on."""
    changes = {**ACCEPTING, "route": {**ACCEPTING["route"], "order": {"by": "/account"}}}
    async with at_home("IdempotencyLanesStopped", tmp_path, **changes) as scene:

        async def accept_in(lane: str, number: int) -> str:
            return await accept(scene, f"{lane}{number}", orjson.dumps({"account": lane, "number": number}))

        scene.upstream.on("/charges", CUT)
        doubtful = await accept_in("a", 1)
        await scene.upstream.wait_for_requests(1)
        scene.upstream.on("/charges", Answer(401))
        dead = await accept_in("b", 1)
        await eventually(lambda: are_dead(scene, 1), 20.0)
        for lane in "ab":
            await accept_in(lane, 2)
        await scene.until_it_fires()
        assert doubtful in await scene.run("idempotency-gateway inspect --list --state in_doubt")
        assert dead in await scene.run("idempotency-gateway inspect --list --state dead_letter")
        scene.upstream.on("/charges", DONE)
        await scene.do("resolve", doubtful, "--completed", response_file(tmp_path), "--why", "seen in the ledger")
        await scene.do("requeue", dead, "--why", "credential renewed")
        await scene.until_it_ends()
        await scene.upstream.wait_for_requests(5)


async def test_an_open_breaker(tmp_path: Path) -> None:
    """The service is not there; once it is, what waits is delivered by itself."""
    upstream = RecordingUpstream(port=free_port())
    async with at_home("IdempotencyBreakerOpen", tmp_path, upstream=upstream, **ACCEPTING) as scene:
        operation_id = await accept(scene)
        await scene.until_it_fires()
        await eventually(lambda: waits(scene, operation_id), 30.0)
        async with upstream:
            await scene.until_it_ends()
            await upstream.wait_for_requests(1)


async def test_a_forgotten_pause(tmp_path: Path) -> None:
    """It is found and ended, and what waited is delivered."""
    async with at_home("IdempotencyPaused", tmp_path, **ACCEPTING) as scene:
        await scene.do("pause", "charge", "--why", "maintenance", "--by", "alice")
        await accept(scene)
        await scene.until_it_fires()
        shown = await scene.run("idempotency-gateway pause")
        assert "alice" in shown
        await scene.run('idempotency-gateway resume ROUTE --why "maintenance is over"', ROUTE="charge")
        await scene.until_it_ends()
        await scene.upstream.wait_for_requests(1)


@pytest.mark.full
async def test_orphans(tmp_path: Path) -> None:
    """A route that accepts no more gets its requests delivered once it is back; one of them is not wanted."""
    changes = {name: value for name, value in ACCEPTING.items() if name != "route"} | {"delivery": {"workers": 0}}
    other = {**ROUTE, "name": "refund", "match": {"path": "/refunds"}, **ACCEPTING["route"]}
    routes = [{**ROUTE, **ACCEPTING["route"]}, other]
    async with as_process("IdempotencyOrphans", tmp_path, routes=routes, **changes) as scene:
        kept, dropped = await accept(scene, "k1"), await accept(scene, "k2")
        await scene.restart(lambda document: document["routes"][0].pop("accept"))
        await scene.until_it_fires()
        listed = await scene.run("idempotency-gateway inspect --list --state accepted")
        assert {kept, dropped} <= set(listed.split())
        await scene.run('idempotency-gateway withdraw OPERATION_ID --why "route was retired"', OPERATION_ID=dropped)

        def give_back(document: dict[str, Any]) -> None:
            document["routes"][0]["accept"] = routes[0]["accept"]
            document["delivery"]["workers"] = 1

        await scene.restart(give_back)
        await scene.until_it_ends()
        await scene.upstream.wait_for_requests(1)


# -- callers ----------------------------------------------------------------------------------------------------------


@pytest.mark.full
async def test_rejected_webhooks(tmp_path: Path) -> None:
    """The secrets differ; with the sender's, what it sends again is taken."""
    path, wrong = "/hooks", "another secret of more than twenty-four bytes"
    route = {
        "name": "hooks",
        "match": {"path": path},
        "scope": "shared",
        "outcome": {"preset": "success_only"},
        "inbox": {"preset": "github", "secrets": [{"id": "a", "key": wrong}]},
    }
    changes = {name: value for name, value in ACCEPTING.items() if name != "route"}
    async with as_process("IdempotencyInboxRejected", tmp_path, routes=[route], **changes) as scene:

        async def deliver() -> int:
            headers = [JSON, *signed("github", PAID, int(time.time()), secret=TEXT).items()]
            return (await http.request(scene.gateway.port, "POST", path, headers, PAID)).status

        async def refused() -> None:
            # After twenty of them in a minute its address is not listened to.
            assert {await deliver() for _ in range(4)} <= {401, 429}

        async def is_taken() -> bool:
            return await deliver() < 300

        async def taken() -> None:
            assert await is_taken()

        await scene.until_it_fires(refused)
        assert "hooks" in await scene.run("idempotency-gateway check")
        await scene.reload(lambda document: document["routes"][0]["inbox"]["secrets"][0].update(key=TEXT))
        await eventually(is_taken, 70.0)
        await scene.until_it_ends(taken)
        await scene.upstream.wait_for_requests(1)


@pytest.mark.full
async def test_nobody_says_who_the_callers_are(tmp_path: Path) -> None:
    """The authorising service is down; once it is back, requests run."""
    authority = RecordingUpstream(port=free_port())
    authority.on(None, Answer(200, headers=(("X-User-Id", "alice"),)))
    scope = {"forward_auth": {"principal": "X-User-Id", "url": f"{authority.url}/auth"}}
    async with as_process("IdempotencyIdentityUnavailable", tmp_path, route={"scope": scope}) as scene:
        alice = (("Authorization", "Bearer alice"),)

        async def refused() -> None:
            response = await scene.send(headers=alice)
            assert status_of(response) == (503, "identity-unavailable")

        await scene.until_it_fires(refused)
        assert authority.url in scene.process.output()
        async with authority:
            await scene.until_it_ends(scene.gets(200, headers=alice))


async def test_key_sets_that_cannot_be_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The issuer is away, and its tokens refused; it is back, and they are taken."""
    monkeypatch.setattr("gateway.callers.FETCH_PAUSE_SECONDS", 0.0)
    async with Issuer() as issuer:
        await issuer.leave()
        route = {"scope": {"jwt": issuer.section()}}
        async with at_home("IdempotencyKeySetsFail", tmp_path, route=route) as scene:
            token = bearer(issuer.token(time.time()))
            await scene.until_it_fires(scene.gets(503, headers=(token,)))
            await issuer.open()
            await eventually(lambda: is_answered(scene, token))
            await scene.until_it_ends(scene.gets(200, headers=(token,)))


async def is_answered(scene: Scene, token: tuple[str, str]) -> bool:
    return (await scene.send(headers=(token,))).status == 200


@pytest.mark.full
async def test_overload(tmp_path: Path) -> None:
    """A slow service fills the gateway; once it is quick again, requests run."""
    async with as_process("IdempotencyOverloaded", tmp_path, limits={"max_in_flight": 1}) as scene:
        hold = asyncio.Event()
        scene.upstream.on("/charges", Answer(201, hold=hold))
        first = await scene.begin("slow")
        await scene.until_it_fires(scene.gets((503, "overloaded"), "k2"))
        assert "charge" in await scene.run("idempotency-gateway inspect --list --state claimed")
        hold.set()
        assert (await first).status == 201
        await scene.until_it_ends(scene.gets(201, "k2"))


@pytest.mark.full
async def test_keyed_requests_without_a_route(tmp_path: Path) -> None:
    """The log names the path; a route for it is reloaded."""
    async with as_process("IdempotencyKeyedRequestsWithoutRoute", tmp_path) as scene:
        await scene.until_it_fires(scene.gets((200, None), target="/refunds"))
        lines = [line for line in scene.process.output().splitlines() if "matches no route" in line]
        assert len(lines) == 1
        assert "/refunds" in lines[0]
        assert "charge" in await scene.run("idempotency-gateway check")
        route = {**ROUTE, "name": "refund", "match": {"path": "/refunds"}}
        await scene.reload(lambda document: document["routes"].append(route))

        async def protected() -> None:
            assert (await scene.send(target="/refunds")).header("Idempotency-Status") in ("stored", "replayed")

        await scene.until_it_ends(protected)


@pytest.mark.full
async def test_rising_mismatches(tmp_path: Path) -> None:
    """A member varies by itself: the log names it, and it is ignored from then on."""
    async with as_process("IdempotencyMismatchesRising", tmp_path) as scene:
        numbers = iter(range(1_000_000))

        def body() -> bytes:
            return orjson.dumps({"amount": 1000, "sent_at": next(numbers)})

        await scene.send("k1", body())
        await scene.until_it_fires(scene.gets((422, "key-reused"), "k1", body()))
        await scene.run("idempotency-gateway inspect --list --state completed --route ROUTE", ROUTE="charge")
        assert '"differs"' in scene.process.output()
        ignore = {"ignore": ["/sent_at"]}
        await scene.reload(lambda document: document["routes"][0].update(fingerprint=ignore))
        await scene.send("k2", body())

        async def replayed() -> None:
            assert (await scene.send("k2", body())).header("Idempotency-Status") == "replayed"

        await scene.until_it_ends(replayed)


@pytest.mark.full
async def test_retries_after_expiry(tmp_path: Path, clock: WallClock) -> None:
    """They came later than responses are kept, which is longer from then on."""
    async with as_process("IdempotencyRetriesAfterExpiry", tmp_path, spawns=True, store=UNCACHED) as scene:
        await scene.send("k1")
        clock.move(2 * DAY_SECONDS)
        scene.upstream.on("/charges", DONE)
        await scene.until_it_fires(scene.gets((410, "key-expired"), "k1"))
        operation_id = (await scene.send("k1")).json()["operation_id"]
        assert "charge" in await scene.run("idempotency-gateway inspect OPERATION_ID", OPERATION_ID=operation_id)
        retention = {"replay": "3d", "remember": "7d"}
        await scene.reload(lambda document: document["routes"][0].update(retention=retention))
        await scene.send("k2")
        clock.move(4 * DAY_SECONDS)

        async def replayed() -> None:
            assert (await scene.send("k2")).header("Idempotency-Status") == "replayed"

        await scene.until_it_ends(replayed)


# -- the service ------------------------------------------------------------------------------------------------------


@pytest.mark.full
async def test_an_unreachable_service(tmp_path: Path) -> None:
    """The log says why; once it is there, the next request runs."""
    port = free_port()
    async with as_process(
        "IdempotencyUpstreamUnreachable", tmp_path, upstream={"url": f"http://127.0.0.1:{port}"}
    ) as scene:

        async def refused() -> None:
            assert (await scene.send()).header("Idempotency-Status") == "upstream-unreachable"

        await scene.until_it_fires(refused)
        lines = [line for line in scene.process.output().splitlines() if f"127.0.0.1:{port} is down" in line]
        assert len(lines) == 1
        assert '"reason"' in lines[0]
        async with RecordingUpstream(port=port):
            await scene.until_it_ends(scene.gets(200))


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
            assert "its memory is full" in scene.process.output()
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
        assert "the fast store is down" in scene.process.output()
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
            assert operation_id in scene.process.output()
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


# -- events -----------------------------------------------------------------------------------------------------------


def publishing(receiver: Receiver, **events: Any) -> dict[str, Any]:
    """Settings of a gateway with one sink."""
    sink = {"name": "ledger", "kind": "webhook", "url": receiver.url, "secrets": [{"id": "a", "key": WHSEC}]}
    egress = {"allow": ["127.0.0.1"], "ports": [urlsplit(receiver.url).port], "https_only": False}
    return {"events": {"sinks": [sink], **events}, "egress": egress}


async def test_a_suspended_sink(tmp_path: Path) -> None:
    """It says that it moved; it is mended and resumed, and gets what waited."""
    async with (
        Receiver(status(410, "moved away")) as ledger,
        at_home("IdempotencySinkSuspended", tmp_path, **publishing(ledger)) as scene,
    ):
        await scene.send()
        await scene.until_it_fires()
        assert "moved away" in await scene.run("idempotency-gateway sinks")
        await scene.run('idempotency-gateway sinks --resume NAME --why "permission given"', NAME="ledger")
        await scene.until_it_ends()
        await ledger.wait_received(2)


async def test_waiting_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sink fails, and is mended; what waited arrives by itself."""
    # However long the commands take, it is mended behind them.
    monkeypatch.setattr("gateway.events.webhook.WebhookSink.schedule_us", (MICROSECONDS,))
    async with (
        Receiver(*[status(503)] * 1000) as ledger,
        at_home("IdempotencyEventsWait", tmp_path, ages=SECONDS_OF_AGE, **publishing(ledger)) as scene,
    ):
        await scene.send()
        await scene.until_it_fires()
        assert "ledger" in await scene.run("idempotency-gateway sinks")
        listed = await scene.run("idempotency-gateway events --sink NAME --state waiting", NAME="ledger")
        assert "operation.completed" in listed
        ledger.answers.clear()
        await scene.until_it_ends()


@pytest.mark.full
async def test_dead_events(tmp_path: Path, clock: WallClock) -> None:
    """The sink failed for longer than events are kept; it is mended, and one is published after all."""
    async with Receiver(status(503)) as ledger:
        settings = publishing(ledger, keep="1h")
        async with as_process("IdempotencyEventsDead", tmp_path, spawns=True, **settings) as scene:
            await scene.send()
            await ledger.wait_received(1)
            clock.move(2 * 3600)
            ledger.answers.append(status(503))
            await scene.until_it_fires()
            listed = await scene.run("idempotency-gateway events --sink NAME", NAME="ledger")
            (event_id,) = re.findall(r"evt_\w+", listed)
            before = len(ledger.received)
            await scene.run('idempotency-gateway redeliver EVENT_ID --why "sink mended"', EVENT_ID=event_id)
            await scene.until_it_ends()
            assert (await ledger.wait_received(before + 1))[-1].id == event_id


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
        assert "signal 9" in scene.process.output()
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
        assert "nonsense" in scene.process.output()
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


def test_every_alert_is_ended() -> None:
    """Each has its test here."""
    named = re.findall(r'(?:at_home|as_process)\(\s*"(Idempotency\w+)"', Path(__file__).read_text())
    assert sorted(named) == sorted(ALERTS)
