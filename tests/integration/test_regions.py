"""Two regions as real processes, each with a Postgres database of its own: killed under load, judged by the service."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tests.support.fleet import key_of, process, send, try_send
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
        relays = {name: await stack.enter_async_context(Relay(free_port())) for name in NAMES}
        homes = [{"name": name, "url": f"http://127.0.0.1:{relay.port}"} for name, relay in relays.items()]
        gateways = []
        for name, relay in relays.items():
            url = await postgres.new_database()
            stack.push_async_callback(postgres.drop_database, url)
            section = {"here": name, "homes": homes, "key": KEY}
            store = {"durable": url, "lease": "3s", "journal_grace": "1s"}
            gateway = await stack.enter_async_context(process(store, directory / name, upstream, regions=section))
            relay.target_port = gateway.port
            gateways.append(gateway)
        yield gateways, list(relays.values())


async def test_no_key_runs_twice_while_a_region_dies_and_the_wire_between_is_cut(
    postgres_server: Postgres, tmp_path: Path, upstream: RecordingUpstream
) -> None:
    """Callers repeat each key through both regions until it is answered; one region is killed, then the wire is cut."""
    async with regions(postgres_server, tmp_path, upstream) as (gateways, relays):
        answered: dict[str, bytes] = {}
        left = iter([f"k{number}" for number in range(KEYS)])
        halfway, done = asyncio.Event(), asyncio.Event()

        async def call(first: int) -> None:
            for key in left:
                for turn in itertools.count(first):
                    response = await try_send(gateways[turn % len(gateways)].port, key)
                    found = None if response is None else status_of(response)
                    if response is not None and found in ((201, "stored"), (201, "replayed")):
                        assert answered.setdefault(key, response.body) == response.body
                        break
                    if found == (409, "in-doubt"):
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
        executed = Counter(map(key_of, upstream.requests))
        assert max(executed.values()) == 1
        assert answered.keys() <= executed.keys()
        assert len(answered) >= KEYS - CALLERS
        for key, body in answered.items():
            for gateway in gateways:
                reply = await send(gateway.port, key)
                assert (status_of(reply), reply.body) == ((201, "replayed"), body)
