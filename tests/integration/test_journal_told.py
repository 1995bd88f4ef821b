"""Real gateways with an outcome in the journal of their host: no repeat and no operator is told less than that journal
knows, whatever dies, stops and comes back."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.integration.test_journal import (
    EXIT_WORK_LEFT,
    Outage,
    PostgresOutage,
    journaled,
    send,
    wait_flushed,
    waiting,
)
from tests.support import http
from tests.support.eventually import eventually
from tests.support.fleet import calling, process, try_send
from tests.support.gateway import GatewayProcess
from tests.support.house import BODY, status_of, store_section
from tests.support.http import Response
from tests.support.ports import free_port
from tests.support.postgres import PostgresServer
from tests.support.quota import LONG_BYTES, Quota, quota_of
from tests.support.upstream import Answer, RecordingUpstream

LONG = Answer(201, body=b"charged" * LONG_BYTES)
LEASE_SECONDS = 3


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.full)])
def quota(request: pytest.FixtureRequest, tmp_path: Path) -> Quota:
    return quota_of({**store_section(request, tmp_path), "lease": f"{LEASE_SECONDS}s"})


@pytest.fixture
def gone(own_postgres: PostgresServer) -> Outage:
    outage = PostgresOutage(own_postgres)
    outage.section["lease"] = f"{LEASE_SECONDS}s"
    return outage


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


async def long_response(gateway: GatewayProcess, upstream: RecordingUpstream, quota: Quota) -> Response:
    """The response to a request whose outcome the store refuses."""
    upstream.on("/charges", LONG)
    await quota.begin()
    response = await send(gateway)
    assert status_of(response) == (201, "journaled")
    return response


async def wait_lease_over() -> None:
    """Return when every lease that was granted before this call, and is not renewed, is over."""
    until = time.monotonic() + LEASE_SECONDS
    await eventually(lambda: time.monotonic() > until, deadline_seconds=2 * LEASE_SECONDS)


@pytest.mark.parametrize("end", ["kill", "stop"])
async def test_a_store_that_refuses_this_one_write(tmp_path: Path, quota: Quota, end: str) -> None:
    """The recorded response, before and after the end of the process, within the lease and after it."""
    async with RecordingUpstream() as upstream, process(quota.section, tmp_path, upstream) as gateway:
        first = await long_response(gateway, upstream, quota)
        assert is_told(await send(gateway))
        if end == "kill":
            gateway.kill()
        else:
            assert gateway.terminate() == EXIT_WORK_LEFT
        await gateway.start()
        again = await send(gateway)
        assert (status_of(again), again.body) == ((201, "replayed"), first.body)
        assert again.header("X-Nonce") == first.header("X-Nonce")
        assert status_of(await send(gateway, body=b"{}")) == (422, "key-reused")
        async with repeating(gateway) as told:
            await wait_lease_over()
            assert await waiting(gateway) == 1
            await quota.end()
            await wait_flushed(gateway)
        assert all(told)
        last = await send(gateway)
        assert (status_of(last), last.body) == ((201, "replayed"), first.body)
        assert last.header("Idempotency-Expires") is not None
        assert len(upstream.requests) == 1


async def test_a_start_without_the_store(tmp_path: Path, gone: Outage) -> None:
    """What the note of this host says is of this store is told without it, and while it comes back."""
    async with RecordingUpstream() as upstream, process(gone.section, tmp_path, upstream) as gateway:
        first = await journaled(gateway, upstream, gone)
        assert status_of(first) == (201, "journaled")
        gateway.kill()
        await gateway.start()
        again = await send(gateway)
        assert (status_of(again), again.body) == ((201, "replayed"), first.body)
        assert status_of(await send(gateway, body=b"{}")) == (422, "key-reused")
        assert status_of(await send(gateway, "new")) == (503, "store-unavailable")
        await wait_lease_over()
        async with repeating(gateway) as told:
            gone.end()
            await wait_flushed(gateway)
        assert all(told)
        assert len(upstream.requests) == 1


@pytest.mark.parametrize("note", ["another store's", "none"])
async def test_a_journal_of_which_the_note_says_nothing(tmp_path: Path, gone: Outage, note: str) -> None:
    """It may be of another store: its outcomes are told once the store is there, and never denied before."""
    async with RecordingUpstream() as upstream, process(gone.section, tmp_path, upstream) as gateway:
        assert status_of(await journaled(gateway, upstream, gone)) == (201, "journaled")
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


async def test_another_process_of_the_host(tmp_path: Path, postgres_url: str) -> None:
    """One that shares the directory tells what the journal of a running or a stopped one has."""
    quota = quota_of({"durable": postgres_url, "lease": f"{LEASE_SECONDS}s"})
    state = str(tmp_path / "state")
    async with (
        RecordingUpstream() as upstream,
        process(quota.section, tmp_path / "a", upstream, state_dir=state) as one,
        process(quota.section, tmp_path / "b", upstream, state_dir=state) as two,
    ):
        first = await long_response(one, upstream, quota)
        again = await send(two)
        assert (status_of(again), again.body) == ((201, "replayed"), first.body)
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


OPERATOR = {"Authorization": "Bearer operator-token-0123456789abcdef", "Content-Type": "application/json"}


async def test_nobody_says_that_it_never_happened(tmp_path: Path, quota: Quota) -> None:
    """While a journal of the host has the response, by no way and by no force; the operator is told what to do."""
    admin = free_port()
    access = {"listen": f"127.0.0.1:{admin}", "token": OPERATOR["Authorization"].removeprefix("Bearer ")}
    async with RecordingUpstream() as upstream, process(quota.section, tmp_path, upstream, admin=access) as gateway:
        await long_response(gateway, upstream, quota)
        await wait_lease_over()
        listed = await gateway.command("journal", "--format", "jsonl")
        operation = json.loads(listed[1].splitlines()[0])["operation_id"]

        async def refused(*, is_running: bool) -> None:
            for force in ((), ("--force",)):
                said = await gateway.command("resolve", operation, "--never-happened", "--why", "a test", *force)
                code, text = said
                assert (code, "It happened" in text, "--export" in text) == (1, True, True), text
                assert "Wait" in text
            for force in (False, True) if is_running else ():
                body = json.dumps({"never_happened": True, "why": "a test", "force": force}).encode()
                response = await http.request(
                    admin, "POST", f"/operations/{operation}/resolve", list(OPERATOR.items()), body
                )
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


async def test_what_a_request_would_get(tmp_path: Path, quota: Quota) -> None:
    """`explain` says of a request what its repeat gets, by the journal of a gateway that runs or of one that died."""
    async with RecordingUpstream() as upstream, process(quota.section, tmp_path, upstream) as gateway:
        await long_response(gateway, upstream, quota)

        async def explained(body: bytes) -> tuple[int, str]:
            words = ["-H", "Content-Type: application/json", "-H", "Idempotency-Key: k1", "-H", "X-Tenant: t1"]
            url = "http://gateway.test/charges"
            given = ["explain", "--store", "--format", "json", "--", "-X", "POST", url, *words, "-d", body.decode()]
            code, text = await gateway.command(*given)
            assert code == 0, text
            said = json.loads(text)
            return said["status"], said["verdict"]

        async def is_as_told() -> None:
            for body in (BODY, b"{}"):
                repeat = await send(gateway, body=body)
                assert await explained(body) == status_of(repeat)

        await is_as_told()
        gateway.kill()
        assert await explained(BODY) == (201, "replayed")
        await wait_lease_over()
        assert await explained(BODY) == (201, "replayed")


async def test_a_route_that_forwards_without_the_store(tmp_path: Path, gone: Outage) -> None:
    """It does not send again what a journal of the host knows to have happened, or does not know."""
    route = {"store_unavailable": "forward"}
    async with RecordingUpstream() as upstream, process(gone.section, tmp_path, upstream, route=route) as gateway:
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


async def test_an_accepted_operation(tmp_path: Path, quota: Quota) -> None:
    """Its status, its result and its repeats have what a journal of the host knows."""
    secrets = {"encryption": [{"id": "a", "key": "A" * 43 + "="}], "identity_key": {"id": "i", "key": "1" * 64}}
    changes = {"secrets": secrets, "route": {"accept": {"identity": "unverified"}}}
    async with RecordingUpstream() as upstream, process(quota.section, tmp_path, upstream, **changes) as gateway:
        upstream.on("/charges", LONG)
        await quota.begin()
        accepted = await send(gateway, prefer="respond-async")
        assert status_of(accepted) == (202, "accepted")
        location = accepted.header("Location")
        assert location is not None

        async def see(target: str) -> Response:
            return await http.request(gateway.port, "GET", target, [("X-Tenant", "t1")])

        async def completed() -> bool:
            return bool(json.loads((await see(location)).body)["state"] == "completed")

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


async def test_what_a_killed_process_had_not_sent(tmp_path: Path, postgres_url: str) -> None:
    """Its claim is no request that runs, and no doubt: a repeat is asked to come back, and then it is sent."""
    state = str(tmp_path / "state")
    section = {"durable": postgres_url, "lease": f"{LEASE_SECONDS}s"}
    # Connections to it are neither taken nor refused.
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, socket.create_connection(full.getsockname()):
        url = f"http://127.0.0.1:{full.getsockname()[1]}"
        upstream = {"upstream": {"url": url, "connect_timeout": "30s"}}
        async with (
            RecordingUpstream() as service,
            process(section, tmp_path / "a", service, state_dir=state, **upstream) as one,
            process(section, tmp_path / "b", service, state_dir=state) as two,
        ):
            first = asyncio.create_task(try_send(one.port, "k1"))

            async def claimed() -> bool:
                return await one.metric('idempotency_claims_total{route="charge"}', 0.0) == 1

            await eventually(claimed)
            one.kill()
            assert await first is None

            async def stored() -> bool:
                verdict = status_of(await send(two))
                assert verdict in ((503, "released"), (200, "stored")), verdict
                return verdict == (200, "stored")

            await eventually(stored, deadline_seconds=20)
            assert len(service.requests) == 1
