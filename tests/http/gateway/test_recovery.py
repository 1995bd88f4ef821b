"""How operations come out of doubt, over HTTP, on every store: sent again, asked about, or held."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from gateway.core.operation import Abandon
from tests.http.gateway.asking import metric
from tests.support import http
from tests.support.eventually import eventually
from tests.support.house import House, house, neighbour, sqlite_store, status_of
from tests.support.upstream import Answer, Ending, Received, RecordingUpstream

Store = dict[str, Any]

LOST = Answer(201, bytes_max=0, ending=Ending.CLOSE)
STATUS = "/charges/status"
PROBE: dict[str, Any] = {
    "path": STATUS + "?operation={operation_id}&key={key}",
    "headers": {"Authorization": "Bearer probe"},
    "done": [{"status": [200], "where": {"/state": ["succeeded"]}}],
    "never_happened": [{"status": [404]}],
}
# The shortest that `settle` may be: a second for the answer and the rest for TCP.
FAST = {"answer_within": "1s", "response_timeout": "1s"}
GRACE = {"journal_grace": "0s"}


def probed(**changes: Any) -> dict[str, Any]:
    return {"recovery": {"probe": PROBE | changes}}


def probes(home: House) -> list[Received]:
    return [each for each in home.upstream.requests if each.method == "GET"]


def charges(home: House) -> list[Received]:
    return [each for each in home.upstream.requests if each.method == "POST"]


def told(state: str, status: int = 200) -> Answer:
    body = json.dumps({"state": state, "id": 7}).encode()
    return Answer(status, headers=(("Content-Type", "application/json"),), body=body, effect=False)


async def test_resend_takes_over(store: Store, tmp_path: Path) -> None:
    """Where the upstream deduplicates, one of many retries is sent again under a higher token, with the key it knows;
    what is not sent under carried doubt is not "nothing happened"."""
    async with house(store, tmp_path, route={"recovery": "resend", "in_flight": {"wait": "20s"}}) as home:
        hold = asyncio.Event()
        home.upstream.on("/charges", LOST, Answer(201, body=b"charged", hold=hold), LOST)
        assert status_of(await home.send("k1")) == (502, "in-doubt")
        retries = [asyncio.create_task(home.send("k1")) for _ in range(20)]
        await home.upstream.wait_for_requests(2)
        hold.set()
        told = [(status_of(each), each.body) for each in await asyncio.gather(*retries)]
        assert sorted(told) == [*[((201, "replayed"), b"charged")] * 19, ((201, "stored"), b"charged")]
        first, second = charges(home)
        keys = [each.values("Idempotency-Key") for each in (first, second)]
        assert keys == [first.values("Idempotency-Operation")] * 2
        tokens = [int(each.values("Idempotency-Fencing-Token")[0]) for each in (first, second)]
        assert tokens[0] < tokens[1]
        assert status_of(await home.send("k2")) == (502, "in-doubt")
        await home.upstream.__aexit__(None, None, None)
        response = await home.send("k2")
        assert status_of(response) == (502, "in-doubt")
        assert "may have taken effect" in response.json()["detail"]


@pytest.mark.parametrize("answer", [Answer(503), Answer(401), Answer(409), LOST], ids=["503", "401", "409", "lost"])
async def test_doubt_is_joined_over_attempts(sqlite: Store, tmp_path: Path, answer: Answer) -> None:
    """A takeover that had no effect says nothing of the attempt before: the operation stays in doubt."""
    async with house(sqlite, tmp_path, route={"recovery": "resend"}) as home:
        home.upstream.on("/charges", LOST, answer, Answer(200, body=b"done"))
        assert status_of(await home.send("k1")) == (502, "in-doubt")
        second = await home.send("k1")
        assert status_of(second)[1] == "in-doubt"
        assert status_of(await home.send("k1", b"other")) == (422, "key-reused")
        assert status_of(await home.send("k1")) == (200, "stored")


async def test_probe_finds_what_happened(store: Store, tmp_path: Path) -> None:
    """Retries that find their operation in doubt, at two gateways, have the upstream asked once, and get its answer."""
    route = probed() | {"in_flight": {"wait": "20s"}}
    async with (
        house(store, tmp_path, route=route) as home,
        neighbour(store, tmp_path / "n", home.upstream, route=route) as other,
    ):
        hold = asyncio.Event()
        home.upstream.on("/charges", LOST)
        home.upstream.on(None, replace(told("succeeded"), hold=hold))
        operation = (await home.send("k1")).json()["operation_id"]
        retries = [asyncio.create_task(each.send("k1")) for each in (home, other) for _ in range(5)]
        await eventually(lambda: probes(home))
        hold.set()
        for again in await asyncio.gather(*retries):
            assert (status_of(again), again.json()["state"]) == ((200, "recovered"), "succeeded")
            assert again.header("Idempotent-Replayed") == "true"
        assert status_of(await home.send("k1")) == (200, "recovered")
        (probe,) = probes(home)
        assert probe.target == f"{STATUS}?operation={operation}&key=k1".encode()
        assert probe.values("Authorization") == [b"Bearer probe"]
        assert probe.values("X-Tenant") == []
        assert len(charges(home)) == 1


async def test_streams_of_others_keep_no_operation_and_no_probe_out(sqlite: Store, tmp_path: Path) -> None:
    """They may have all connections that are not for operations, for as long as they like."""
    async with house(sqlite, tmp_path, route=probed(), upstream={"max_connections": 1}) as home:
        streaming = asyncio.Event()
        home.upstream.on("/stream", Answer(body=(b"first", streaming), effect=False))
        home.upstream.on("/charges", Answer(), LOST)
        home.upstream.on(STATUS, told("succeeded"))
        stream = asyncio.create_task(http.request(home.port, "GET", "/stream"))
        await home.upstream.wait_for_requests(1)
        for key, expected in (("k1", (200, "stored")), ("k2", (502, "in-doubt")), ("k2", (200, "recovered"))):
            assert status_of(await home.send(key)) == expected
        streaming.set()
        assert (await stream).body == b"first"


async def test_background_probe(sqlite: Store, tmp_path: Path) -> None:
    async with house(sqlite, tmp_path, route=probed()) as home:
        home.upstream.on("/charges", LOST)
        home.upstream.on(None, told("succeeded"))
        assert status_of(await home.send("k1")) == (502, "in-doubt")
        await eventually(lambda: probes(home), deadline_seconds=20)

        await eventually(lambda: metric(home, "probes_total", finding="done", route="charge"))
        assert status_of(await home.send("k1")) == (200, "recovered")
        assert len(probes(home)) == 1


async def test_probe_follows(sqlite: Store, tmp_path: Path) -> None:
    """Where the answer names another one, that is what is recorded; a name on another host is not followed."""
    async with house(sqlite, tmp_path, route=probed(follow="/url") | {"in_flight": {"wait": "3s"}}) as home:

        def answer(received: Received) -> Answer:
            if received.target == b"/charges/7":
                return Answer(200, body=b"the charge", effect=False)
            url = "//evil.test/charges/7" if len(probes(home)) == 1 else "/charges/7"
            return Answer(200, body=json.dumps({"state": "succeeded", "url": url}).encode(), effect=False)

        home.upstream.on("/charges", LOST)
        home.upstream.on(None, answer)
        assert status_of(await home.send("k1")) == (502, "in-doubt")
        again = await home.send("k1")
        assert (status_of(again), again.body) == ((200, "recovered"), b"the charge")


async def test_a_late_answer_wins_over_a_probe(store: Store, tmp_path: Path) -> None:
    """A probe that found nothing yet has taken nothing over: the holder's answer is recorded and told."""
    route = probed() | {"in_flight": {"wait": "1s"}}
    async with (
        house(store, tmp_path, route=route) as home,
        neighbour(store, tmp_path / "n", home.upstream, route=route) as other,
    ):
        home.upstream.on(None, told("processing"))
        first, hold = await home.begin(answer=Answer(201, body=b"late"))
        operation = UUID(charges(home)[0].values("Idempotency-Operation")[0].decode())
        record = (await home.gateway._store.read(operation)).record
        assert record is not None
        # As after a lapse, but without the wait for one: the holder is alive, and the operation is in doubt.
        await home.gateway._store.apply(Abandon(operation, record.token, record.attempt_id, "reset"))
        assert status_of(await other.send("k1")) == (409, "in-doubt")
        assert probes(home)
        hold.set()
        assert (status_of(await first), (await first).body) == ((201, "stored"), b"late")
        assert (status_of(await other.send("k1")), len(charges(home))) == ((201, "replayed"), 1)


async def test_retries_keep_no_answer_back(sqlite: Store, tmp_path: Path) -> None:
    """An answer to a probe that no rule explains, or none at all, leaves the operation in doubt. After a while of such
    retries the service is back, and without a further one the answer is there soon."""
    route = probed() | {"in_flight": {"wait": "0s"}}
    async with house(sqlite, tmp_path, route=route) as home:
        home.upstream.on("/charges", LOST)
        home.upstream.on(None, told("processing"), Answer(bytes_max=0, ending=Ending.CLOSE), told("processing"))
        assert status_of(await home.send("k1")) == (502, "in-doubt")

        async def asked_often() -> bool:
            assert status_of(await home.send("k1")) == (409, "in-doubt")
            return len(probes(home)) >= 5

        await eventually(asked_often, deadline_seconds=30)
        home.upstream.on(None, told("succeeded"))

        # What a pass of the background finds due, without the wait for the next pass.
        await eventually(home.gateway.parts._recovery.run_once, deadline_seconds=4)
        assert status_of(await home.send("k1")) == (200, "recovered")
        assert len(charges(home)) == 1


async def test_a_probe_that_is_configured_later_resolves_older_doubts(store: Store, tmp_path: Path) -> None:
    """What came into doubt while its route held is asked about once it has one, by repeats and in the background."""
    probe = {"recovery": {"probe": PROBE | {"path": STATUS + "?operation={operation_id}"}}}
    async with RecordingUpstream() as upstream:
        upstream.on("/charges", LOST)
        async with neighbour(store, tmp_path, upstream) as home:
            doubts = [(await home.send(key)).json()["operation_id"] for key in ("k1", "k2")]
            assert status_of(await home.send("k1")) == (409, "in-doubt")
        upstream.on(None, told("succeeded"))
        async with neighbour(store, tmp_path, upstream, route=probe) as home:
            assert status_of(await home.send("k1")) == (200, "recovered")

            async def resolved() -> bool:
                await home.gateway.parts._recovery.run_once()
                return len(probes(home)) == 2

            await eventually(resolved)
            assert status_of(await home.send("k2")) == (200, "recovered")
            targets = {each.target for each in probes(home)}
            assert targets == {f"{STATUS}?operation={each}".encode() for each in doubts}
            assert len(charges(home)) == 2


async def test_a_probe_by_a_key_that_is_not_kept_asks_nobody(tmp_path: Path) -> None:
    """An older doubt whose key is a digest is held: its repeat is sent to the operator at once."""
    store = sqlite_store(tmp_path)
    async with RecordingUpstream() as upstream:
        upstream.on("/charges", LOST)
        async with neighbour(store, tmp_path, upstream) as home:
            assert status_of(await home.send("k1")) == (502, "in-doubt")
        upstream.on(None, told("succeeded"))
        async with neighbour(store, tmp_path, upstream, route=probed()) as home:
            again = await home.send("k1")
            assert status_of(again) == (409, "in-doubt")
            assert again.json()["retryable"] is False
            assert await home.gateway.parts._recovery.run_once() == 0
            assert probes(home) == []


async def test_a_service_sends_nothing_of_another_again(store: Store, tmp_path: Path) -> None:
    """Two services share a store and an encryption key, and have a route of one name. What one of them holds in doubt
    the other one, which sends again, leaves alone, and sends its own."""
    route = {"accept": {"identity": "unverified"}}
    resent = route | {"recovery": "resend"}
    secrets = {"encryption": [{"id": "a", "key": bytes(32).hex()}]}
    section = store | GRACE
    async with (
        house(section, tmp_path / "a", service="orders", route=route, secrets=secrets) as orders,
        RecordingUpstream() as other,
        neighbour(section, tmp_path / "b", other, service="billing", route=resent, secrets=secrets) as billing,
    ):
        for home in (orders, billing):
            home.upstream.on("/charges", LOST)
            assert status_of(await home.send("k1", headers=[("Prefer", "respond-async")])) == (202, "accepted")
            await home.upstream.wait_for_requests(1)
        parts = billing.gateway.parts

        async def sent_again() -> bool:
            await parts.turns.run_once()
            await parts._recovery.run_once()
            return len(other.requests) >= 2

        # Its own came into doubt later.
        await eventually(sent_again)
        tokens = {each.values("Idempotency-Fencing-Token")[0] for each in other.requests}
        operations = {each.values("Idempotency-Operation")[0] for each in other.requests}
        assert (len(tokens), len(operations)) == (2, 1)
        assert status_of(await orders.send("k1")) == (409, "in-doubt")


def is_asked_about(home: House, key: str) -> bool:
    return any(f"key={key}".encode() in each.target for each in probes(home))


async def is_asked_about_by_a_pass(home: House, key: str) -> bool:
    """Whether a pass of the background comes to it, without the wait for the next pass."""
    await home.gateway.parts._recovery.run_once()
    return is_asked_about(home, key)


@pytest.mark.parametrize(
    ("service", "operation"), [("books", "charge"), ("shop", "refund")], ids=["another-service", "another-operation"]
)
async def test_a_service_asks_about_its_own_operations_alone(
    postgres_url: str, tmp_path: Path, service: str, operation: str
) -> None:
    """An upstream is not asked about an operation that only has the route's name, and its answer is not recorded."""
    store = {"durable": postgres_url}
    ours: dict[str, Any] = {"route": probed(), "upstream": FAST}
    theirs: dict[str, Any] = {"service": service, "route": probed() | {"operation": operation}, "upstream": FAST}
    # Known to the store before there is a key.
    async with house(store, tmp_path / "ours", **ours):
        pass
    async with house(store, tmp_path / "theirs", **theirs) as other:
        other.upstream.on("/charges", LOST)
        other.upstream.on(None, Answer(500, effect=False))
        assert status_of(await other.send("k1")) == (502, "in-doubt")
    ours["route"] |= {"identity_change": "accept"}
    theirs["route"] |= {"identity_change": "accept"}
    async with house(store, tmp_path / "ours", **ours) as home:
        home.upstream.on(None, told("succeeded"))
        # The pass that comes to the second of these has come to everything that was in doubt before it.
        for key in ("k2", "k3"):
            home.upstream.on("/charges", LOST)
            assert status_of(await home.send(key)) == (502, "in-doubt")
            await eventually(partial(is_asked_about_by_a_pass, home, key), 30.0)
        assert not is_asked_about(home, "k1")
    async with house(store, tmp_path / "theirs", **theirs) as other:
        other.upstream.on(None, Answer(500, effect=False))
        again = await other.send("k1", headers=[("Prefer", "wait=0")])
        assert status_of(again) == (409, "in-doubt")
        assert not charges(other)
