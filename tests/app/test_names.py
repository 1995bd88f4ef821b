"""A name server that does not respond for one neighbour keeps no other one from being found."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

import pytest

from gateway.app.life import run
from gateway.events.brokers import KafkaSink, NatsSink
from gateway.events.redis_stream import RedisStreamSink
from gateway.events.relay import Publication, Sink
from gateway.observe.facts import PublicationResult as Result
from gateway.store.base import NotApplied
from gateway.store.postgres.store import PostgresStore
from gateway.store.redis.store import RedisFastTier
from tests.events.support import kafka_at, nats_at, new_event, opened, publish, stream_at
from tests.support.eventually import eventually
from tests.support.names import silent_name_server
from tests.support.postgres import Postgres
from tests.support.redis import Redis

Reach = Callable[[], Awaitable[object]]


async def publishing(sink: Sink) -> object:
    async with opened(sink):
        return await publish(sink, new_event())


async def starting(store: PostgresStore | RedisFastTier) -> object:
    if isinstance(store, RedisFastTier):
        store.bind("one/two/three/00000001")
    with suppress(NotApplied):
        await store.start()
        await store.close()
        return "found"
    return None


def neighbours(host: str, postgres: int, redis: int) -> dict[str, Reach]:
    warnings: list[str] = []
    return {
        "postgres": lambda: starting(PostgresStore(f"postgresql://gateway@{host}:{postgres}/postgres")),
        "redis": lambda: starting(RedisFastTier(f"redis://{host}:{redis}/0")),
        "sentinel": lambda: starting(RedisFastTier(f"redis+sentinel://{host}/mymaster/0")),
        "redis-stream": lambda: publishing(RedisStreamSink(stream_at(f"redis://{host}:{redis}/0"), warnings.append)),
        "nats": lambda: publishing(NatsSink(nats_at(f"nats://{host}:4222", "events", "events"), warnings.append)),
        "kafka": lambda: publishing(KafkaSink(kafka_at(f"{host}:9092", "events"))),
    }


@pytest.mark.parametrize("kind", ["postgres", "redis", "sentinel", "redis-stream", "nats", "kafka"])
def test_others_are_found_meanwhile(
    kind: str, monkeypatch: pytest.MonkeyPatch, postgres_server: Postgres, redis_server: Redis
) -> None:
    """Neither lookups nor threads are missing for them, on the loop that the program runs on."""
    ports = [urlsplit(server.url).port or 0 for server in (postgres_server, redis_server)]

    @asynccontextmanager
    async def stuck(number: int) -> AsyncIterator[None]:
        reach = neighbours("neighbour.hangs", *ports)[kind]
        tasks = [asyncio.ensure_future(reach()) for _ in range(number)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def scenario() -> None:
        async with silent_name_server(monkeypatch) as names, stuck(8):
            await eventually(lambda: names.running > 0)
            async with asyncio.timeout(30):
                await asyncio.to_thread(lambda: None)
                others = neighbours("localhost", *ports)
                assert await others["postgres"]() == "found"
                assert await others["redis-stream"]() == Publication(Result.DELIVERED)
            assert names.running <= 2
            names.over.set()

    run(scenario())
