"""A Postgres that is replaced by a standby which lacks its last commits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.integration.hand import assert_replayed, begin, by_way_of
from tests.support.eventually import eventually
from tests.support.fleet import gateways_on, send, wait_answered
from tests.support.gateway import GatewayProcess
from tests.support.house import status_of
from tests.support.http import Response
from tests.support.postgres import PostgresInstallation, PostgresServer, PostgresStandby
from tests.support.relay import Relay
from tests.support.upstream import RecordingUpstream

LOST = (503, "store-amnesia")


@dataclass
class Failover:
    """A primary behind a relay of its own, and the standby that takes its place there. `kept` is what it has."""

    primary: PostgresServer
    standby: PostgresStandby
    replication: Relay
    front: Relay
    upstream: RecordingUpstream
    kept: Response | None = None

    async def lose(self, *gateways: GatewayProcess) -> None:
        """A key that the standby gets, and one for each of these gateways that it does not."""
        self.standby.launch()
        await eventually(self.standby.is_ready, 30.0, "the standby follows")
        self.kept = await send(gateways[0].port, "kept")
        await eventually(self.standby.has_caught_up, 30.0, "the standby has what was acknowledged")
        self.replication.refuse()
        self.replication.cut()
        lost = [await send(gateway.port, f"lost-{number}") for number, gateway in enumerate(gateways)]
        assert {status_of(answer) for answer in (self.kept, *lost)} == {(201, "stored")}

    async def end(self) -> None:
        self.primary.crash()
        await self.standby.promote()
        self.front.target_port = self.standby.port

    async def assert_lost(self, gateway: GatewayProcess, *keys: str) -> None:
        """It refuses these, and replays what the standby has."""
        for key in keys:

            async def decided(key: str = key) -> tuple[int, str | None] | None:
                found = status_of(await send(gateway.port, key))
                return None if found == (503, "store-unavailable") else found

            assert await eventually(decided, 30.0, f"{key} is decided") == LOST
        assert self.kept is not None
        await assert_replayed("kept", self.kept, gateway)


@pytest.fixture
async def failover(
    own_postgres: PostgresServer,
    postgres_installation: PostgresInstallation,
    server_workspace: Path,
    upstream: RecordingUpstream,
) -> AsyncIterator[Failover]:
    async with Relay(own_postgres.port) as replication, Relay(own_postgres.port) as front:
        place = server_workspace / f"{own_postgres.directory.name}-standby"
        standby = PostgresStandby(postgres_installation, place, own_postgres, replication.port)
        try:
            yield Failover(own_postgres, standby, replication, front, upstream)
        finally:
            standby.crash()


async def test_failover_to_a_standby_that_lacks_the_last_commits(tmp_path: Path, failover: Failover) -> None:
    """What the standby has is replayed; what it may have forgotten is refused and never executed a second time."""
    store = {"durable": by_way_of(failover.front, failover.primary.url)}
    # Nothing is answered out of memory: what is asked is what the store still knows.
    changes: Any = {"store": {"cache_max_age": "0s", "lease": "3s"}}
    upstream = failover.upstream
    async with gateways_on(store, tmp_path, upstream.url, ("alive", "restarted"), **changes) as (alive, restarted):
        await failover.lose(alive, restarted)
        under_way, hold = await begin(alive, upstream, "under-way")
        # What was seen last is noted in its own time; a stop is one.
        assert restarted.terminate() == 0
        await failover.end()
        hold.set()
        late = await under_way
        await restarted.start()
        for gateway in (alive, restarted):
            await failover.assert_lost(gateway, "lost-0", "lost-1", "new")
            # Its claim is among what was lost, and so it cannot be recorded, but for its journal.
            assert (await send(gateway.port, "under-way")).status in (409, 503)
        assert late.header("Idempotency-Status") in ("in-doubt", "journaled")
        assert len(upstream.requests) == 4


async def test_the_first_gateway_after_a_failover_is_a_fresh_one(
    tmp_path: Path, failover: Failover, redis_url: str
) -> None:
    """With an empty directory of its own it knows by the note in Redis that keys which the standby lacks were used."""
    store = {"durable": by_way_of(failover.front, failover.primary.url), "fast": redis_url}
    changes: Any = {"store": {"cache_max_age": "0s", "promotion_wait": "1s"}}
    where = store, tmp_path, failover.upstream.url
    async with gateways_on(*where, ("one", "two"), **changes) as known:
        await failover.lose(*known)
    # Both are dead, and have noted nothing since.
    await failover.end()
    with redis.Redis.from_url(redis_url) as client:
        # Nothing is known of a key but what the durable store has.
        for copy in client.scan_iter("idempotency-gateway:*:{*"):
            client.delete(copy)
    async with gateways_on(*where, ("fresh",), **changes) as (fresh,):
        # Both may come back and speak: it waits for them for a second.
        await wait_answered(fresh.port, "kept", verdicts=frozenset(("replayed",)))
        await failover.assert_lost(fresh, "lost-0", "lost-1", "new")
        async with gateways_on(*where, ("one", "two"), **changes) as known:
            for gateway in known:
                await failover.assert_lost(gateway, "lost-0")
    assert len(failover.upstream.requests) == 3
