"""Two regions as real processes, each with a Postgres database of its own: killed under load, judged by the service."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tests.support.fleet import process, try_send
from tests.support.gateway import GatewayProcess
from tests.support.house import status_of
from tests.support.ports import free_port
from tests.support.postgres import Postgres
from tests.support.relay import Relay
from tests.support.upstream import RecordingUpstream

NAMES = ("eu", "us")
KEY = "A" * 43 + "="
CALLERS = 8
KEYS = 60
# As a client library pauses between its tries.
RETRY_SECONDS = 0.05


@asynccontextmanager
async def regions(
    postgres: Postgres, directory: Path, upstream: RecordingUpstream
) -> AsyncIterator[tuple[list[GatewayProcess], list[Relay]]]:
    """A gateway in each region, and the wire that leads to each from the other."""
    async with AsyncExitStack() as stack:
        relays = [await stack.enter_async_context(Relay(free_port())) for _ in NAMES]
        homes = [
            {"name": name, "url": f"http://127.0.0.1:{relay.port}"} for name, relay in zip(NAMES, relays, strict=True)
        ]
        gateways = []
        for name, relay in zip(NAMES, relays, strict=True):
            url = await postgres.new_database()
            stack.push_async_callback(postgres.drop_database, url)
            section = {"here": name, "homes": homes, "key": KEY}
            store = {"durable": url, "lease": "3s", "journal_grace": "1s"}
            gateway = await stack.enter_async_context(process(store, directory / name, upstream, regions=section))
            relay.target_port = gateway.port
            gateways.append(gateway)
        yield gateways, relays


async def test_no_key_runs_twice_while_a_region_dies_and_the_wire_between_is_cut(
    postgres_server: Postgres, tmp_path: Path
) -> None:
    """Callers repeat each key through both regions until it is answered; one region is killed, then the wire is cut."""
    async with RecordingUpstream() as upstream, regions(postgres_server, tmp_path, upstream) as (gateways, relays):
        answered: dict[str, bytes] = {}
        left = iter([f"k{number}" for number in range(KEYS)])
        halfway, done = asyncio.Event(), asyncio.Event()

        async def call(first: int) -> None:
            for key in left:
                tries = 0
                while True:
                    gateway = gateways[(first + tries) % len(gateways)]
                    response = await try_send(gateway.port, key)
                    tries += 1
                    if response is not None and status_of(response) in ((200, "stored"), (200, "replayed")):
                        assert answered.setdefault(key, response.body) == response.body
                        break
                    if response is not None and status_of(response) == (409, "in-doubt"):
                        break
                    await asyncio.sleep(RETRY_SECONDS)
                if len(answered) >= KEYS // 3:
                    halfway.set()

        async def trouble() -> None:
            await halfway.wait()
            gateways[1].kill()
            await gateways[1].start()
            for relay in relays:
                relay.cut()
            done.set()

        await asyncio.gather(trouble(), *[call(number) for number in range(CALLERS)])
        assert done.is_set()
        executed = Counter(value for request in upstream.requests for value in request.values("Idempotency-Key"))
        assert max(executed.values()) == 1
        assert {key.encode() for key in answered} <= executed.keys()
        assert len(answered) >= KEYS - CALLERS
        for key, body in answered.items():
            replies = [await try_send(gateway.port, key) for gateway in gateways]
            assert [(status_of(reply), reply.body) for reply in replies if reply is not None] == [
                ((200, "replayed"), body)
            ] * len(NAMES)
