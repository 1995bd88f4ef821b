"""A Postgres that is replaced by a standby which lacks its last commits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import redis

from tests.integration.hand import assert_replayed, by_way_of, decided
from tests.support.eventually import eventually
from tests.support.fleet import gateways_on, send, wait_answered
from tests.support.house import status_of
from tests.support.postgres import PostgresInstallation, PostgresServer, PostgresStandby
from tests.support.relay import Relay
from tests.support.upstream import RecordingUpstream


async def test_the_first_gateway_after_a_failover_is_a_fresh_one(
    tmp_path: Path,
    own_postgres: PostgresServer,
    postgres_installation: PostgresInstallation,
    server_workspace: Path,
    redis_url: str,
    upstream: RecordingUpstream,
) -> None:
    """With an empty directory of its own it knows by the note in Redis that keys which the standby lacks were used."""
    changes: Any = {"store": {"cache_max_age": "0s", "promotion_wait": "1s"}}
    async with Relay(own_postgres.port) as replication, Relay(own_postgres.port) as front:
        place = server_workspace / f"{own_postgres.directory.name}-standby"
        standby = PostgresStandby(postgres_installation, place, own_postgres, replication.port)
        store = {"durable": by_way_of(front, own_postgres.url), "fast": redis_url}
        where = store, tmp_path, upstream.url
        try:
            async with gateways_on(*where, ("one", "two"), **changes) as known:
                standby.launch()
                await eventually(standby.is_ready, 30.0, "the standby follows")
                kept = await send(known[0].port, "kept")
                await eventually(standby.has_caught_up, 30.0, "the standby has what was acknowledged")
                replication.refuse()
                replication.cut()
                lost = [await send(gateway.port, f"lost-{number}") for number, gateway in enumerate(known)]
                assert {status_of(answer) for answer in (kept, *lost)} == {(201, "stored")}
            # Both are dead, and have noted nothing since.
            own_postgres.crash()
            await standby.promote()
            front.target_port = standby.port
            with redis.Redis.from_url(redis_url) as client:
                # Nothing is known of a key but what the durable store has.
                for copy in client.scan_iter("idempotency-gateway:*:{*"):
                    client.delete(copy)
            async with gateways_on(*where, ("fresh",), **changes) as (fresh,):
                # Both may come back and speak: it waits for them for a second.
                await wait_answered(fresh.port, "kept", verdicts=frozenset(("replayed",)))
                async with gateways_on(*where, ("one", "two"), **changes) as known:
                    asked = [
                        (fresh, "lost-0"),
                        (fresh, "lost-1"),
                        (fresh, "new"),
                        *((each, "lost-0") for each in known),
                    ]
                    for gateway, key in asked:
                        assert await decided(gateway.port, key) == (503, "store-amnesia"), key
                        await assert_replayed("kept", kept, gateway)
            assert len(upstream.requests) == 3
        finally:
            standby.crash()
