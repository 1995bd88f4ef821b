"""A Postgres that is replaced by a standby which lacks its last commits."""

from __future__ import annotations

import asyncio
from pathlib import Path

import redis

from tests.support.eventually import eventually
from tests.support.fleet import config_of, gateways, nonce_of, send, wait_answered
from tests.support.gateway import GatewayProcess
from tests.support.house import status_of
from tests.support.http import Response
from tests.support.postgres import PostgresInstallation, PostgresServer, PostgresStandby
from tests.support.relay import Relay
from tests.support.upstream import Answer, RecordingUpstream


async def test_failover_to_a_standby_that_lacks_the_last_commits(
    tmp_path: Path, own_postgres: PostgresServer, postgres_installation: PostgresInstallation, server_workspace: Path
) -> None:
    """What the standby has is replayed; what it may have forgotten is refused and never executed a second time."""
    async with (
        RecordingUpstream() as upstream,
        Relay(own_postgres.port) as replication,
        Relay(own_postgres.port) as front,
    ):
        upstream.on("/charges", Answer(201))
        standby = PostgresStandby(postgres_installation, server_workspace / "standby", own_postgres, replication.port)
        store = {"durable": own_postgres.url.replace(f":{own_postgres.port}/", f":{front.port}/")}
        # Nothing is answered out of memory: what is asked is what the store still knows.
        settings = {"cache_max_age": "0s", "lease": "3s"}
        places = [tmp_path / name for name in ("alive", "restarted")]
        configs = [(config_of(store, place, upstream.url, store=settings), place) for place in places]
        try:
            async with gateways(*configs) as (alive, restarted):
                standby.launch()
                await eventually(standby.is_ready, 30.0, "the standby follows")
                kept = await send(alive.port, "kept")
                await eventually(standby.has_caught_up, 30.0, "the standby has what was acknowledged")
                replication.refuse()
                replication.cut()
                lost = [await send(gateway.port, f"lost-{gateway.port}") for gateway in (alive, restarted)]
                assert {status_of(answer) for answer in (kept, *lost)} == {(201, "stored")}
                hold = asyncio.Event()
                upstream.on("/charges", Answer(201, hold=hold))
                under_way = asyncio.create_task(send(alive.port, "under-way"))
                await upstream.wait_for_requests(4)
                # What was seen last is noted in its own time; a stop is one.
                assert restarted.terminate() == 0
                own_postgres.crash()
                await standby.promote()
                front.target_port = standby.port
                hold.set()
                late = await under_way
                await restarted.start()
                for gateway in (alive, restarted):
                    again = await decided(gateway, "kept")
                    assert (status_of(again), nonce_of(again)) == ((201, "replayed"), nonce_of(kept))
                    for key in (f"lost-{alive.port}", f"lost-{restarted.port}", "new"):
                        assert status_of(await decided(gateway, key)) == (503, "store-amnesia")
                    # Its claim is among what was lost, and so it cannot be recorded, but for its journal.
                    again = await send(gateway.port, "under-way")
                    assert again.status in (409, 503)
                assert late.header("Idempotency-Status") in ("in-doubt", "journaled")
                assert len(upstream.requests) == 4
        finally:
            standby.crash()


async def test_the_first_gateway_after_a_failover_is_a_fresh_one(
    tmp_path: Path,
    own_postgres: PostgresServer,
    postgres_installation: PostgresInstallation,
    server_workspace: Path,
    redis_url: str,
) -> None:
    """With an empty directory of its own it knows by the note in Redis that keys which the standby lacks were used."""
    async with (
        RecordingUpstream() as upstream,
        Relay(own_postgres.port) as replication,
        Relay(own_postgres.port) as front,
    ):
        upstream.on("/charges", Answer(201))
        standby = PostgresStandby(postgres_installation, server_workspace / "follower", own_postgres, replication.port)
        durable = own_postgres.url.replace(f":{own_postgres.port}/", f":{front.port}/")
        store = {"durable": durable, "fast": redis_url}
        places = {name: tmp_path / name for name in ("one", "two", "fresh")}
        configs = {
            name: (config_of(store, place, upstream.url, store={"cache_max_age": "0s", "promotion_wait": "1s"}), place)
            for name, place in places.items()
        }
        try:
            async with gateways(configs["one"], configs["two"]) as known:
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
            forget_copies(redis_url)
            async with gateways(configs["fresh"]) as (fresh,):
                # Both may come back and speak: it waits for them for a second.
                again = await wait_answered(fresh.port, "kept", verdicts=frozenset(("replayed",)))
                assert (status_of(again), nonce_of(again)) == ((201, "replayed"), nonce_of(kept))
                for key in ("lost-0", "lost-1", "new"):
                    assert status_of(await decided(fresh, key)) == (503, "store-amnesia")
                async with gateways(configs["one"], configs["two"]) as known:
                    for gateway in known:
                        assert status_of(await decided(gateway, "lost-0")) == (503, "store-amnesia")
            assert len(upstream.requests) == 3
        finally:
            standby.crash()


async def decided(gateway: GatewayProcess, key: str) -> Response:
    """The response to this key, once the gateway has found the other server and knows what to think of it."""

    async def response() -> Response | None:
        found = await send(gateway.port, key)
        return None if status_of(found) == (503, "store-unavailable") else found

    return await eventually(response, 30.0, f"{key} is decided")


def forget_copies(url: str) -> None:
    """Take every answer out of Redis, so that nothing is known of a key but what the durable store has."""
    with redis.Redis.from_url(url) as client:
        for copy in client.scan_iter("idempotency-gateway:*:{*"):
            client.delete(copy)
