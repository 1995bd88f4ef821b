"""Two regions with a store each: a key has one home, whichever gateway its requests meet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from gateway.app.life import StartError
from gateway.core.identity.caller import Hop, hop_from
from gateway.core.message import IndexedHeaders, RequestHead, header_values
from gateway.observe.facts import Events
from gateway.protect.forwarding import REGION_HEADER
from gateway.protect.regions import Regions
from gateway.protect.reply import PROBLEM
from gateway.protect.request import Request, TakenBody
from gateway.upstream import Upstream, UpstreamSettings
from tests.http.gateway.asking import metric
from tests.support.accepting import ASYNC, SECRETS
from tests.support.house import House, neighbour, sqlite_store, status_of
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


# -- what one region believes of another ---------------------------------------------------------------------------

CLIENT = hop_from("192.0.2.7", is_secure=True)
HEAD = RequestHead(b"POST", b"/charges?a=1", IndexedHeaders([(b"Host", b"shop.test"), (b"X-Tenant", b"t1")]))


class _Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def sent(clock: _Clock) -> AsyncIterator[tuple[Regions, RequestHead]]:
    """What eu sends to us, as it arrives there; and us."""
    async with RecordingUpstream() as gateway:
        client = Upstream(UpstreamSettings("127.0.0.1", gateway.port))
        homes = dict.fromkeys(NAMES, client)
        eu, us = (Regions(name, homes, b"s" * 32, Events(), wall_seconds=clock) for name in NAMES)
        reply = await eu.send(NAMES[1], HEAD, b"{}", CLIENT, shape=PROBLEM, operation_id=UUID(int=1), wait_seconds=5.0)
        assert reply.status == 200
        request = gateway.requests[0]
        await client.close()
        yield us, RequestHead(request.method.encode(), request.target, IndexedHeaders(request.headers))


async def _hop_of(regions: Regions, head: RequestHead) -> Hop | None:
    gateway = hop_from("10.0.0.1", is_secure=False)
    request = Request(head, TakenBody(b"{}", 2), gateway)
    return request.hop if regions.receive(request, PROBLEM) is None else None


async def test_the_home_believes_whose_connection_it_was() -> None:
    """Address and scheme of the client, and which region sent it; for half a minute, by the clocks of both."""
    clock = _Clock()
    async with sent(clock) as (us, head):
        for clock.now in (1_000.0, 970.0, 1_030.0):
            assert await _hop_of(us, head) == replace(CLIENT, region="eu")
        for clock.now in (969.0, 1_031.0):
            assert await _hop_of(us, head) is None


async def test_what_was_signed_is_for_one_request_and_one_region() -> None:
    """Nothing of it can be changed, and it counts for no other method, target or region."""
    async with sent(_Clock()) as (us, head):
        (signed,) = header_values(head.headers, REGION_HEADER)
        others = [bytes((*signed[:at], signed[at] ^ 1, *signed[at + 1 :])) for at in range(len(signed))]
        for value in (*others, b"", signed + b" x", signed.replace(b"192.0.2.7", b"-")):
            assert await _hop_of(us, _with(head, value)) is None
        assert await _hop_of(us, _with(head, signed, signed)) is None
        assert await _hop_of(us, replace(head, method=b"PUT")) is None
        assert await _hop_of(us, replace(head, target=b"/charges?a=2")) is None
        assert await _hop_of(us, _with(head, signed)) is not None


def _with(head: RequestHead, *values: bytes) -> RequestHead:
    others = [header for header in head.headers if header[0].lower() != REGION_HEADER]
    return replace(head, headers=IndexedHeaders([*others, *((b"Idempotency-Region", value) for value in values)]))
