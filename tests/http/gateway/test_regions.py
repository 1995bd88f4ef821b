"""Two regions with a store each: a key has one home, whichever gateway its requests meet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from gateway.app.life import StartError
from gateway.app.parts import Environment
from tests.http.gateway.asking import metric
from tests.support import http
from tests.support.accepting import ASYNC, SECRETS
from tests.support.house import BODY, JSON, House, neighbour, sqlite_store, status_of
from tests.support.ports import free_port
from tests.support.relay import Fault, Relay, Rule
from tests.support.tls import Authority
from tests.support.upstream import RecordingUpstream

KEY = "A" * 43 + "="
OTHER_KEY = "B" * 43 + "="
NAMES = ("eu", "us")


@dataclass
class Map:
    """Where the regions are. `urls` are what gateways use to reach one another."""

    directory: Path
    ports: dict[str, int]
    urls: dict[str, str]

    def section(self, here: str, homes: tuple[str, ...] = NAMES, key: str = KEY) -> dict[str, Any]:
        return {"here": here, "key": key, "homes": [{"name": name, "url": self.urls[name]} for name in homes]}

    @asynccontextmanager
    async def gateway(self, here: str, upstream: RecordingUpstream, **changes: Any) -> AsyncIterator[House]:
        """A gateway of this region, with the store of the region."""
        directory = self.directory / here
        changes = {"listen": f"127.0.0.1:{self.ports[here]}", "regions": self.section(here)} | changes
        async with neighbour(sqlite_store(directory), directory, upstream, **changes) as home:
            yield home


@pytest.fixture
def places(tmp_path: Path) -> Map:
    ports = {name: free_port() for name in NAMES}
    return Map(tmp_path, ports, {name: f"http://127.0.0.1:{port}" for name, port in ports.items()})


@asynccontextmanager
async def both(places: Map, **changes: Any) -> AsyncIterator[tuple[House, House]]:
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(RecordingUpstream())
        eu, us = [await stack.enter_async_context(places.gateway(name, upstream, **changes)) for name in NAMES]
        yield eu, us


async def at_home(eu: House) -> tuple[str, str]:
    """A completed key of each region, in the order of the regions: the one that is counted as sent to it."""
    found: dict[str, str] = {}
    for number in range(64):
        before = await _sent(eu)
        assert status_of(await eu.send(f"find-{number}")) == (200, "stored")
        found.setdefault("us" if await _sent(eu) > before else "eu", f"find-{number}")
        if len(found) == len(NAMES):
            return found["eu"], found["us"]
    raise AssertionError("all keys have one home")


async def _sent(home: House) -> float:
    return await metric(home, "region_requests_total", result="answered")


async def test_a_key_runs_once_whichever_region_it_meets(places: Map) -> None:
    """Repeats through the other region get the recorded response, also of thirty at once, and keys are at home in both
    regions."""
    async with both(places) as (eu, us):
        for number in range(24):
            first, second = (eu, us) if number % 2 else (us, eu)
            stored, replayed = await first.send(f"k{number}"), await second.send(f"k{number}")
            assert (status_of(stored), status_of(replayed)) == ((200, "stored"), (200, "replayed"))
            assert replayed.body == stored.body
            assert replayed.header("Idempotent-Replayed") == "true"
            assert replayed.header("Idempotency-Expires") == stored.header("Idempotency-Expires")
        assert len(eu.upstream.requests) == 24
        assert min(await _sent(eu), await _sent(us)) > 0
        replies = await asyncio.gather(*[(eu, us)[number % 2].send("at-once") for number in range(30)])
        assert {status_of(reply)[1] for reply in replies} == {"stored", "replayed"}
        assert len({reply.body for reply in replies}) == 1
        assert len(eu.upstream.requests) == 25


async def test_the_service_sees_nothing_of_the_regions(places: Map) -> None:
    """What was sent on arrives with the client's headers, and without what gateways tell each other; a client cannot
    speak for a gateway: what none signed is refused, and nothing is executed."""
    async with both(places) as (eu, _us):
        forged = ("Idempotency-Region", f"us 1 127.0.0.9 https {'0' * 64}")
        assert status_of(await eu.send("k1", headers=[forged])) == (503, "store-unavailable")
        assert eu.upstream.requests == []
        assert status_of(await eu.send(None, target="/other", headers=[forged])) == (200, None)
        await at_home(eu)
        assert all(request.values("X-Forwarded-For") == [b"127.0.0.1"] for request in eu.upstream.requests)
        assert not any(request.values("Idempotency-Region") for request in eu.upstream.requests)


async def test_a_home_that_is_away_costs_a_503_and_no_execution(places: Map) -> None:
    """Its keys are neither claimed nor replayed elsewhere; the other keys go on, and its own do once it is back."""
    async with RecordingUpstream() as upstream, places.gateway("eu", upstream) as eu:
        async with places.gateway("us", upstream):
            here, there = await at_home(eu)
        executed = len(upstream.requests)
        for key in (there, there):
            response = await eu.send(key)
            assert status_of(response) == (503, "store-unavailable")
            assert "Region us, where this operation is at home, cannot be reached." in response.json()["detail"]
            assert response.header("Retry-After") == "1"
        assert status_of(await eu.send(here)) == (200, "replayed")
        assert len(upstream.requests) == executed
        async with places.gateway("us", upstream):
            assert status_of(await eu.send(there)) == (200, "replayed")
        assert len(upstream.requests) == executed


async def test_a_response_that_is_lost_between_regions_leaves_no_second_execution(places: Map) -> None:
    """The caller is told to repeat with the same key, and then gets what was recorded at home."""
    async with Relay(places.ports["us"]) as relay:
        places.urls["us"] = f"http://127.0.0.1:{relay.port}"
        async with both(places) as (eu, _):
            relay.to_client.rule = Rule(b"HTTP/1.1 ", Fault.RESET)
            replies = {key: await eu.send(key) for key in (f"k{number}" for number in range(16))}
            lost = [key for key, reply in replies.items() if reply.status != 200]
            assert {status_of(replies[key]) for key in lost} == {(503, "in-doubt")}
            assert all(replies[key].json()["retryable"] for key in lost)
            relay.to_client.rule = None
            for key in lost:
                assert status_of(await eu.send(key)) == (200, "replayed")
            assert len(eu.upstream.requests) == len(replies)
            assert lost


@pytest.mark.parametrize("changes", [{"key": OTHER_KEY}, {"homes": ("us", "eu")}], ids=["another key", "another order"])
async def test_regions_that_disagree_execute_nothing(places: Map, changes: dict[str, Any]) -> None:
    """One of them has another secret, or another order of homes: what would be sent back and forth is refused."""
    async with (
        RecordingUpstream() as upstream,
        places.gateway("eu", upstream) as eu,
        places.gateway("us", upstream, regions=places.section("us", **changes)),
    ):
        replies = [await eu.send(f"k{number}") for number in range(16)]
        seen = {status_of(reply) for reply in replies}
        assert seen == {(200, "stored"), (503, "store-unavailable")}
        assert len(upstream.requests) == sum(reply.status == 200 for reply in replies)


async def test_tls_between_regions(places: Map, tmp_path: Path) -> None:
    """Each side verifies the other by the authority that is named, also where the name is another than the URL's."""
    authority = Authority(tmp_path)
    server, client = authority.issue("gateway.us"), authority.issue_to(common_name="gateway of eu")
    ca = str(authority.ca_file)
    tls = {"ca": ca, "cert": str(client.cert), "key": str(client.key), "server_name": "gateway.us"}
    places.urls["us"] = places.urls["us"].replace("http:", "https:")
    section = places.section("eu")
    own = {"cert": str(server.cert), "key": str(server.key), "client_ca": ca, "client_certificate": "required"}
    listen = {"address": f"127.0.0.1:{places.ports['us']}", "tls": own}
    async with RecordingUpstream() as upstream, places.gateway("us", upstream, listen=listen):
        for case, missing in enumerate(((), ("ca",), ("cert", "key"), ("server_name",))):
            section["homes"][1]["tls"] = {name: value for name, value in tls.items() if name not in missing}
            async with places.gateway("eu", upstream, regions=section, state_dir=str(tmp_path / f"state-{case}")) as eu:
                replies = [await eu.send(f"{case}-{number}") for number in range(16)]
                verdicts = {status_of(reply)[1] for reply in replies}
                assert "stored" in verdicts
                assert bool(verdicts & {"store-unavailable", "in-doubt"}) is bool(missing)
                assert missing or await _sent(eu) > 0


async def test_an_operation_is_shown_from_every_region(places: Map) -> None:
    """The status resource finds an operation at home, wherever its caller asks."""
    route = {"accept": {"identity": "unverified"}}
    async with both(places, route=route, secrets=SECRETS) as (eu, us):
        for number in range(8):
            accepted = await eu.send(f"k{number}", headers=[ASYNC])
            assert accepted.status == 202
            target = accepted.header("Location")
            assert target is not None
            for home in (eu, us):
                shown = await home.send(None, b"", target=target, method="GET")
                assert (shown.status, shown.json()["id"]) == (200, target.rpartition("/")[2])
                assert (await home.send(None, b"", target=target, method="GET", tenant="t2")).status == 404


async def test_living_keys_keep_their_homes(places: Map) -> None:
    """A start with other homes is refused while keys are remembered: they would run again elsewhere."""
    async with RecordingUpstream() as upstream:
        async with places.gateway("eu", upstream) as eu, places.gateway("us", upstream):
            await at_home(eu)
        with pytest.raises(StartError, match="living key"):
            async with places.gateway("eu", upstream, regions=places.section("eu", ("us", "eu"))):
                pass


async def test_what_was_signed_is_for_one_request_and_one_region(places: Map, tmp_path: Path) -> None:
    """The home believes whose connection it was, for half a minute by the clocks of both. Nothing of what was signed
    can be changed, and it counts for no other method, target or region."""
    now, authority = 1_900_000_000.0, Authority(tmp_path)
    own = authority.issue("127.0.0.1")
    listen = {"address": "127.0.0.1:0", "tls": {"cert": str(own.cert), "key": str(own.key)}}

    def surround(environment: Environment) -> Environment:
        return replace(environment, wall_seconds=lambda: now)

    async with (
        RecordingUpstream() as upstream,
        RecordingUpstream(port=places.ports["us"]) as record,
        places.gateway("eu", upstream, surround=surround, listen=listen) as eu,
    ):
        context, caller = authority.client_context(), ("127.0.0.2", 0)
        while not record.requests:
            fields = [JSON, ("Idempotency-Key", str(uuid4())), ("X-Tenant", "t1"), ("Connection", "close")]
            reader, writer = await asyncio.open_connection("127.0.0.1", eu.port, local_addr=caller, ssl=context)
            writer.write(http.request_bytes("POST", "/charges?a=1", fields, BODY))
            await reader.read()
            writer.close()
    (sent,) = record.requests
    (signed,) = sent.values("Idempotency-Region")
    others = [(name.decode(), value.decode()) for name, value in sent.headers if name != b"Idempotency-Region"]
    async with (
        RecordingUpstream() as upstream,
        places.gateway("eu", upstream, surround=surround) as eu,
        places.gateway("us", upstream, surround=surround) as us,
    ):

        async def is_believed(
            *values: bytes, method: str = "POST", target: str = "/charges?a=1", by: House = us
        ) -> bool:
            fields = [*others, *(("Idempotency-Region", value.decode("latin-1")) for value in values)]
            verdict = status_of(await http.request(by.port, method, target, fields, sent.body))
            assert verdict in ((200, "stored"), (200, "replayed"), (503, "store-unavailable"))
            return verdict[0] == 200

        changed = [bytes((*signed[:at], signed[at] ^ 1, *signed[at + 1 :])) for at in range(len(signed))]
        for value in (*changed, b"", signed + b" x", signed.replace(b"127.0.0.2", b"-")):
            assert not await is_believed(value), value
        assert not await is_believed(signed, signed)
        assert not await is_believed(signed, method="PATCH")
        assert not await is_believed(signed, target="/charges?a=2")
        assert not await is_believed(signed, by=eu)
        assert upstream.requests == []
        for seconds, expected in ((0, True), (-30, True), (60, True), (1, False), (-62, False)):
            now += seconds
            assert await is_believed(signed) is expected, seconds
        (executed,) = upstream.requests
        assert executed.values("X-Forwarded-For") == [b"127.0.0.2"]
        assert executed.values("X-Forwarded-Proto") == [b"https"]
