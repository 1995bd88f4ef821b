"""Alerts about requests, each on a real gateway: its condition comes, its entry in the runbook is followed, and the
alert ends. `test_runbook_of_stores` has the others."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
import pytest

from gateway.core.operation import MICROSECONDS
from tests.admin.shell import CUT
from tests.integration.runbook import DAY_SECONDS, DONE, SECONDS_OF_AGE, response_file
from tests.support import http
from tests.support.accepting import accepting
from tests.support.alerting import ALERTS, Scene, as_process, at_home
from tests.support.eventually import eventually
from tests.support.house import BODY, JSON, ROUTE, status_of
from tests.support.issuer import Issuer, bearer
from tests.support.ports import free_port
from tests.support.receiver import Receiver, status
from tests.support.senders import PAID, TEXT, signed
from tests.support.signing import WHSEC
from tests.support.upstream import Answer, RecordingUpstream
from tests.support.wall_clock import WallClock

UNCACHED = {"cache_max_age": "0s"}
REFUSING = Answer(503, body=b"later")


async def in_doubt(scene: Scene, key: str = "k1") -> str:
    """The id of an operation whose response was cut."""
    scene.upstream.on("/charges", CUT)
    response = await scene.send(key)
    assert response.header("Idempotency-Status") == "in-doubt"
    scene.upstream.on("/charges", DONE)
    return str(response.json()["operation_id"])


# -- doubt ------------------------------------------------------------------------------------------------------------


@pytest.mark.full
async def test_in_doubt(tmp_path: Path, everybodys_clock: WallClock) -> None:
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
        everybodys_clock.move(1200)
        scene.spawns = True
        await scene.run(none, OPERATION_ID=never)
        await scene.until_it_ends()
        assert status_of(await scene.send("k1")) == (201, "recovered")
        assert status_of(await scene.send("k2")) == (201, "stored")


@pytest.mark.full
async def test_in_doubt_for_long(tmp_path: Path, everybodys_clock: WallClock) -> None:
    """More than a day has passed; it is found by its age, and resolved."""
    async with as_process("IdempotencyInDoubtForLong", tmp_path, spawns=True) as scene:
        operation_id = await in_doubt(scene)
        everybodys_clock.move(2 * DAY_SECONDS)
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
        await scene.wait_logged(authority.url)
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
        await scene.wait_logged("matches no route")
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
        await scene.wait_logged('"differs"')
        ignore = {"ignore": ["/sent_at"]}
        await scene.reload(lambda document: document["routes"][0].update(fingerprint=ignore))
        await scene.send("k2", body())

        async def replayed() -> None:
            assert (await scene.send("k2", body())).header("Idempotency-Status") == "replayed"

        await scene.until_it_ends(replayed)


@pytest.mark.full
async def test_retries_after_expiry(tmp_path: Path, everybodys_clock: WallClock) -> None:
    """They came later than responses are kept, which is longer from then on."""
    async with as_process("IdempotencyRetriesAfterExpiry", tmp_path, spawns=True, store=UNCACHED) as scene:
        await scene.send("k1")
        everybodys_clock.move(2 * DAY_SECONDS)
        scene.upstream.on("/charges", DONE)
        await scene.until_it_fires(scene.gets((410, "key-expired"), "k1"))
        operation_id = (await scene.send("k1")).json()["operation_id"]
        assert "charge" in await scene.run("idempotency-gateway inspect OPERATION_ID", OPERATION_ID=operation_id)
        retention = {"replay": "3d", "remember": "7d"}
        await scene.reload(lambda document: document["routes"][0].update(retention=retention))
        await scene.send("k2")
        everybodys_clock.move(4 * DAY_SECONDS)

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
        await scene.wait_logged(f"127.0.0.1:{port} is down")
        lines = [line for line in scene.process.output().splitlines() if f"127.0.0.1:{port} is down" in line]
        assert len(lines) == 1
        assert '"reason"' in lines[0]
        async with RecordingUpstream(port=port):
            await scene.until_it_ends(scene.gets(200))


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
async def test_dead_events(tmp_path: Path, everybodys_clock: WallClock) -> None:
    """The sink failed for longer than events are kept; it is mended, and one is published after all."""
    async with Receiver(status(503)) as ledger:
        settings = publishing(ledger, keep="1h")
        async with as_process("IdempotencyEventsDead", tmp_path, spawns=True, **settings) as scene:
            await scene.send()
            await ledger.wait_received(1)
            everybodys_clock.move(2 * 3600)
            ledger.answers.append(status(503))
            await scene.until_it_fires()
            listed = await scene.run("idempotency-gateway events --sink NAME", NAME="ledger")
            (event_id,) = re.findall(r"evt_\w+", listed)
            before = len(ledger.received)
            await scene.run('idempotency-gateway redeliver EVENT_ID --why "sink mended"', EVENT_ID=event_id)
            await scene.until_it_ends()
            assert (await ledger.wait_received(before + 1))[-1].id == event_id


def test_every_alert_is_ended() -> None:
    """Each has its test in one of the two files."""
    texts = [path.read_text() for path in Path(__file__).parent.glob("test_runbook*.py")]
    named = re.findall(r'(?:at_home|as_process)\(\s*"(Idempotency\w+)"', "".join(texts))
    assert sorted(named) == sorted(ALERTS)
