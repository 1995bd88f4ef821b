"""Real gateways whose durable store dies or refuses a write at the worst moment: the answer is given, kept on the disk,
told to whoever repeats at this host, and recorded. No operator is told less than the journal knows."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.integration.hand import OPERATOR, begin, operated
from tests.support import fleet, http
from tests.support.accepting import SECRETS
from tests.support.eventually import eventually
from tests.support.fleet import calling, key_of, process
from tests.support.gateway import GatewayProcess
from tests.support.house import BODY, sqlite_store, status_of, store_section
from tests.support.http import Response
from tests.support.ports import free_port
from tests.support.postgres import PostgresServer
from tests.support.quota import LONG_BYTES, Quota, quota_of
from tests.support.upstream import Answer, RecordingUpstream

LOCK_MILLISECONDS = 10_000
LEASE_SECONDS = 3
LEASE = {"lease": f"{LEASE_SECONDS}s"}
LONG = Answer(201, body=b"charged" * LONG_BYTES)


@dataclass(frozen=True)
class Outage:
    """A durable store that can be taken away and given back; `section` is the `store` section for it."""

    section: dict[str, Any]
    begin: Callable[[], None]
    end: Callable[[], None]


def of_postgres(server: PostgresServer) -> Outage:
    return Outage({"durable": server.url}, server.crash, server.start)


def of_sqlite(directory: Path) -> Outage:
    """Another process has locked the file."""
    others: list[apsw.Connection] = []

    def lock() -> None:
        others.append(apsw.Connection(str(directory / "store" / "operations.db")))
        # The gateway may be writing at this moment.
        others[0].set_busy_timeout(LOCK_MILLISECONDS)
        others[0].execute("BEGIN IMMEDIATE")

    return Outage(sqlite_store(directory), lock, lambda: others.pop().close())


@pytest.fixture(params=["postgres", pytest.param("frozen-postgres", marks=pytest.mark.full), "sqlite"])
def outage(request: pytest.FixtureRequest, tmp_path: Path) -> Outage:
    if request.param == "sqlite":
        return of_sqlite(tmp_path)
    server: PostgresServer = request.getfixturevalue("own_postgres")
    if request.param == "postgres":
        return of_postgres(server)
    # It takes connections and says nothing.
    return Outage({"durable": server.url}, server.pause, server.resume)


@pytest.fixture
def gone(own_postgres: PostgresServer) -> Outage:
    return of_postgres(own_postgres)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.full)])
def quota(request: pytest.FixtureRequest, tmp_path: Path) -> Quota:
    return quota_of({**store_section(request, tmp_path), **LEASE})


async def send(gateway: GatewayProcess, key: str = "k1", body: bytes = BODY, prefer: str = "wait=0") -> Response:
    """A request as a well-behaved client sends it."""
    return await fleet.send(gateway.port, key, body, headers=(("Prefer", prefer),))


async def waiting(*gateways: GatewayProcess) -> float:
    """How many outcomes wait in their journals."""
    return sum([await each.metric("idempotency_journal_waiting") for each in gateways])


async def wait_flushed(*gateways: GatewayProcess) -> None:
    """Return when nothing waits in their journals."""

    async def is_flushed() -> bool:
        return await waiting(*gateways) == 0

    await eventually(is_flushed, 20.0, "the journals are flushed")


async def wait_lease_over() -> None:
    """Return when every lease that was granted before this call, and is not renewed, is over."""
    until = time.monotonic() + LEASE_SECONDS
    await eventually(lambda: time.monotonic() > until, deadline_seconds=2 * LEASE_SECONDS)


async def journaled(gateway: GatewayProcess, upstream: RecordingUpstream, outage: Outage) -> Response:
    """The answer to a request whose durable store goes away while the upstream works on it."""
    request, hold = await begin(gateway, upstream, body=b"charged")
    outage.begin()
    hold.set()
    response = await request
    assert (status_of(response), response.body) == ((201, "journaled"), b"charged")
    assert await waiting(gateway) == 1
    return response


async def long_response(gateway: GatewayProcess, upstream: RecordingUpstream, quota: Quota) -> Response:
    """The response to a request whose outcome the store refuses."""
    upstream.on("/charges", LONG)
    await quota.begin()
    response = await send(gateway)
    assert status_of(response) == (201, "journaled")
    return response


async def assert_replayed(gateway: GatewayProcess, first: Response) -> Response:
    """A repeat gets this response."""
    again = await send(gateway)
    assert (status_of(again), again.body) == ((201, "replayed"), first.body)
    assert again.header("X-Nonce") == first.header("X-Nonce")
    return again


def is_told(response: Response) -> bool:
    """Whether it is the recorded response; an AssertionError where it is not that, nor a plain "repeat later"."""
    if status_of(response) == (201, "replayed"):
        return True
    assert response.status == 503, status_of(response)
    assert response.header("Retry-After") is not None
    assert response.header("x-should-retry") != "false"
    return False


@asynccontextmanager
async def repeating(*gateways: GatewayProcess) -> AsyncIterator[list[bool]]:
    """Repeats without a pause at each of them meanwhile; whether each was told. None is told anything else."""
    told: list[bool] = []

    async def repeat(gateway: GatewayProcess, is_over: asyncio.Event) -> None:
        while not is_over.is_set():
            try:
                response = await send(gateway)
            except OSError:
                # It is being started.
                await asyncio.sleep(0)
            else:
                told.append(is_told(response))

    async with calling(repeat, gateways):
        yield told


async def test_a_kill_in_between(tmp_path: Path, outage: Outage, upstream: RecordingUpstream) -> None:
    """Journaled, the gateway killed, both started again: the same answer for ever, and one effect."""
    async with process(outage.section, tmp_path, upstream) as gateway:
        assert status_of(await send(gateway, "before")) == (201, "stored")
        first = await journaled(gateway, upstream, outage)
        gateway.kill()
        outage.end()
        await gateway.start()
        await assert_replayed(gateway, first)
        assert await waiting(gateway) == 0
        assert len(upstream.requests) == 2
        assert gateway.terminate() == 0
        assert list((tmp_path / "state" / "journal").iterdir()) == []


async def test_an_outage_that_outlives_the_gateway(tmp_path: Path, gone: Outage, upstream: RecordingUpstream) -> None:
    """What the note of this host says is of this store is told without it, and while it comes back."""
    async with process({**gone.section, **LEASE}, tmp_path, upstream) as gateway:
        first = await journaled(gateway, upstream, gone)
        for _ in range(3):
            await assert_replayed(gateway, first)
        gateway.kill()
        await gateway.start()
        await assert_replayed(gateway, first)
        assert await waiting(gateway) == 1
        assert status_of(await send(gateway, body=b"{}")) == (422, "key-reused")
        assert status_of(await send(gateway, "new")) == (503, "store-unavailable")
        await wait_lease_over()
        async with repeating(gateway) as told:
            gone.end()
            await wait_flushed(gateway)
        assert all(told)
        assert gateway.terminate() == 0
        assert len(upstream.requests) == 1


# What the upstream answers, and what is said of it: at once, to a repeat while the store is away, and to one later.
ENDINGS = {
    "release": (Answer(503, body=b"busy"), "released", (503, "store-unavailable"), (200, "stored")),
    "forget": (Answer(401, body=b"who"), "released", (503, "store-unavailable"), (200, "stored")),
    "abandon": (Answer(502, body=b"broken"), "in-doubt", (503, "store-unavailable"), (409, "in-doubt")),
    "stream": (
        Answer(201, headers=(("Location", "/charges/1"),), body=b"x" * 50_000),
        *("response-not-stored", (409, "response-not-stored"), (409, "response-not-stored")),
    ),
}


async def test_every_ending_keeps_its_word(tmp_path: Path, gone: Outage, upstream: RecordingUpstream) -> None:
    """What is not a stored answer is journaled just so, and means in the store what it means without an outage."""
    hold = asyncio.Event()
    upstream.on("/charges", lambda received: replace(ENDINGS[key_of(received)][0], hold=hold))
    route = {"response": {"max_stored_bytes": "1KiB"}}
    async with process(gone.section, tmp_path, upstream, route=route) as gateway:
        requests = [asyncio.create_task(send(gateway, key)) for key in ENDINGS]
        await upstream.wait_for_requests(len(ENDINGS))
        gone.begin()
        hold.set()
        for request, (answer, verdict, _, _) in zip(requests, ENDINGS.values(), strict=True):
            first = await request
            assert (status_of(first), first.body) == ((answer.status, verdict), answer.body)
        assert await waiting(gateway) == len(ENDINGS)
        for key, (_, _, meanwhile, _) in ENDINGS.items():
            assert status_of(await send(gateway, key)) == meanwhile, key
        gone.end()
        upstream.on("/charges", Answer(200))
        await wait_flushed(gateway)
        for key, (*_, later) in ENDINGS.items():
            assert status_of(await send(gateway, key)) == later, key


async def test_a_store_that_refuses_this_one_write(tmp_path: Path, quota: Quota, upstream: RecordingUpstream) -> None:
    """The recorded response, before and after the end of the process, within the lease and after it."""
    async with process(quota.section, tmp_path, upstream) as gateway:
        first = await long_response(gateway, upstream, quota)
        assert is_told(await send(gateway))
        gateway.kill()
        await gateway.start()
        await assert_replayed(gateway, first)
        assert status_of(await send(gateway, body=b"{}")) == (422, "key-reused")
        async with repeating(gateway) as told:
            await wait_lease_over()
            assert await waiting(gateway) == 1
            await quota.end()
            await wait_flushed(gateway)
        assert all(told)
        assert (await assert_replayed(gateway, first)).header("Idempotency-Expires") is not None
        assert len(upstream.requests) == 1


@pytest.mark.parametrize("note", ["another store's", "none"])
async def test_a_journal_of_which_the_note_says_nothing(
    tmp_path: Path, gone: Outage, upstream: RecordingUpstream, note: str
) -> None:
    """It may be of another store: its outcomes are told once the store is there, and never denied before."""
    async with process({**gone.section, **LEASE}, tmp_path, upstream) as gateway:
        await journaled(gateway, upstream, gone)
        gateway.kill()
        path = tmp_path / "state" / "store-seen.json"
        seen = json.loads(path.read_text())
        path.unlink()
        if note != "none":
            path.write_text(json.dumps({**seen, "identity": "another/1"}))
        await gateway.start()
        response = await send(gateway)
        assert status_of(response) == (503, "store-unavailable")
        assert response.header("Retry-After") is not None
        if note != "none":
            path.write_text(json.dumps(seen))
        gateway.kill()
        async with repeating(gateway) as told:
            await gateway.start()
            gone.end()
            await eventually(lambda: bool(told and told[-1]), deadline_seconds=20)
        assert len(upstream.requests) == 1


async def test_another_process_of_the_host(tmp_path: Path, postgres_url: str, upstream: RecordingUpstream) -> None:
    """One that shares the directory tells what the journal of a running or a stopped one has."""
    quota, state = quota_of({"durable": postgres_url, **LEASE}), str(tmp_path / "state")
    async with (
        process(quota.section, tmp_path / "a", upstream, state_dir=state) as one,
        process(quota.section, tmp_path / "b", upstream, state_dir=state) as two,
    ):
        await assert_replayed(two, await long_response(one, upstream, quota))
        async with repeating(two) as told:
            await wait_lease_over()
            one.pause()
            assert is_told(await send(two))
            one.resume()
            one.kill()
            await one.start()
            await quota.end()
            await wait_flushed(one, two)
        assert all(told)
        assert len(upstream.requests) == 1


async def test_nobody_says_that_it_never_happened(tmp_path: Path, quota: Quota, upstream: RecordingUpstream) -> None:
    """While a journal of the host has the response, by no way and by no force; the operator is told what to do. What a
    repeat would get is explained by it, too, whether its gateway runs or has died."""
    admin = free_port()
    async with process(quota.section, tmp_path, upstream, **operated(admin)) as gateway:
        await long_response(gateway, upstream, quota)

        async def explained(body: bytes = BODY) -> tuple[int, str]:
            words = ["-H", "Content-Type: application/json", "-H", "Idempotency-Key: k1", "-H", "X-Tenant: t1"]
            words += ["-X", "POST", "http://gateway.test/charges", "-d", body.decode()]
            code, text = await gateway.command("explain", "--store", "--format", "json", "--", *words)
            assert code == 0, text
            said = json.loads(text)
            return said["status"], said["verdict"]

        for body in (BODY, b"{}"):
            assert await explained(body) == status_of(await send(gateway, body=body))
        await wait_lease_over()
        listed = await gateway.command("journal", "--format", "jsonl")
        operation = json.loads(listed[1].splitlines()[0])["operation_id"]

        async def refused(*, is_running: bool) -> None:
            assert await explained() == (201, "replayed")
            for force in ((), ("--force",)):
                words = ("resolve", operation, "--never-happened", "--why", "a test", *force)
                code, text = await gateway.command(*words)
                assert code == 1
                assert all(told in text for told in ("It happened", "--export", "Wait")), text
            for force in (False, True) if is_running else ():
                body = json.dumps({"never_happened": True, "why": "a test", "force": force}).encode()
                response = await http.request(admin, "POST", f"/operations/{operation}/resolve", OPERATOR, body)
                assert (response.status, b"It happened" in response.body) == (409, True), response.body

        await refused(is_running=True)
        gateway.kill()
        await refused(is_running=False)
        await gateway.start()
        await refused(is_running=True)
        assert is_told(await send(gateway))
        file = tmp_path / "response.http"
        code, _ = await gateway.command("journal", operation, "--export", str(file))
        assert (code, file.read_bytes().endswith(LONG.body)) == (0, True)
        await quota.end()
        await wait_flushed(gateway)
        assert is_told(await send(gateway))
        assert len(upstream.requests) == 1


async def test_a_route_that_forwards_without_the_store(
    tmp_path: Path, gone: Outage, upstream: RecordingUpstream
) -> None:
    """It does not send again what a journal of the host knows to have happened, or does not know."""
    route = {"store_unavailable": "forward"}
    async with process({**gone.section, **LEASE}, tmp_path, upstream, route=route) as gateway:
        hold = asyncio.Event()
        upstream.on("/charges", Answer(201, body=b"charged", hold=hold), Answer(502, hold=hold), Answer(200))
        requests = []
        for number, key in enumerate(("k1", "doubtful"), start=1):
            requests.append(asyncio.create_task(send(gateway, key)))
            await upstream.wait_for_requests(number)
        gone.begin()
        hold.set()
        assert [status_of(await each) for each in requests] == [(201, "journaled"), (502, "in-doubt")]
        for _ in range(2):
            assert is_told(await send(gateway))
            assert status_of(await send(gateway, "doubtful")) == (503, "store-unavailable")
            gateway.kill()
            await gateway.start()
        assert status_of(await send(gateway, "new")) == (200, "unprotected")
        assert len(upstream.requests) == 3


async def test_an_accepted_operation(tmp_path: Path, quota: Quota, upstream: RecordingUpstream) -> None:
    """Its status, its result and its repeats have what a journal of the host knows."""
    changes = {"secrets": SECRETS, "route": {"accept": {"identity": "unverified"}}}
    async with process(quota.section, tmp_path, upstream, **changes) as gateway:
        upstream.on("/charges", LONG)
        await quota.begin()
        accepted = await send(gateway, prefer="respond-async")
        assert status_of(accepted) == (202, "accepted")
        location = accepted.header("Location")
        assert location is not None

        async def see(target: str) -> Response:
            return await http.request(gateway.port, "GET", target, [("X-Tenant", "t1")])

        async def completed() -> bool:
            return bool((await see(location)).json()["state"] == "completed")

        await eventually(completed, deadline_seconds=20)
        for _ in range(2):
            result = await see(f"{location}/result")
            assert (result.status, result.body) == (201, LONG.body)
            again = await send(gateway)
            assert (status_of(again), again.body) == ((201, "replayed"), LONG.body)
            await wait_lease_over()
            gateway.kill()
            await gateway.start()
            assert await completed()
        await quota.end()
        assert len(upstream.requests) == 1
