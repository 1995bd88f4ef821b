"""What a purge costs the copies that other gateways have in a Redis of several masters."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.observe.scrape import Scrape
from tests.support import http
from tests.support.eventually import eventually
from tests.support.fleet import config_of, gateways, key_of, send
from tests.support.gateway import GatewayProcess
from tests.support.house import status_of
from tests.support.ports import free_port
from tests.support.redis_groups import Cluster, command, running
from tests.support.upstream import Answer, RecordingUpstream

_TOKEN = "t" * 32
_OPERATOR = [("Authorization", f"Bearer {_TOKEN}"), ("Content-Type", "application/json")]
# They are spread over all masters, and over many parts of each.
_KEYS = 60


async def hits(gateway: GatewayProcess) -> float:
    """How many of its lookups in Redis found a copy."""
    return Scrape(await gateway.metrics()).value("idempotency_copy_lookups_total", source="fast", result="hit")


async def exchanges(gateway: GatewayProcess) -> float:
    """How often it has compared what gateways note of the store."""
    told = Scrape(await gateway.metrics())
    return told.value("idempotency_store_duration_seconds_count", tier="durable", verb="check_memory")


@pytest.mark.full
async def test_a_purge_costs_another_gateway_no_more_than_a_look_at_each_master(
    tmp_path: Path, server_workspace: Path, postgres_url: str
) -> None:
    """Copies that are made after it are found, at once and after the gateways have exchanged their notes."""
    cluster, admin_port = Cluster(server_workspace, 3, has_replicas=False), free_port()

    def copies() -> int:
        return sum(command(master, "DBSIZE") for master in cluster.masters)

    with running(cluster):
        async with RecordingUpstream() as upstream:
            upstream.on("/charges", Answer(201))
            changes = {"store": {"fast": cluster.url, "cache_max_age": "0s"}}
            operator = {"admin": {"listen": f"127.0.0.1:{admin_port}", "token": _TOKEN}}
            store = {"durable": postgres_url}
            async with gateways(
                (config_of(store, tmp_path / "one", upstream.url, **changes, **operator), tmp_path / "one"),
                (config_of(store, tmp_path / "two", upstream.url, **changes), tmp_path / "two"),
            ) as (one, two):
                assert status_of(await send(one.port, "purged")) == (201, "stored")
                assert status_of(await send(two.port, "purged")) == (201, "replayed")
                (operation,) = upstream.requests[0].values("Idempotency-Operation")
                target = f"/operations/{operation.decode()}/purge"
                noted = [await exchanges(each) for each in (one, two)]
                reply = await http.request(admin_port, "POST", target, _OPERATOR, b'{"why": "a test"}')
                assert reply.status == 200
                before = copies()
                for number in range(_KEYS):
                    assert status_of(await send(one.port, f"key-{number}")) == (201, "stored")
                await eventually(lambda: copies() >= before + _KEYS, 10.0, "all are copied")
                for missed_max in (len(cluster.masters), 0):
                    found = await hits(two)
                    for number in range(_KEYS):
                        assert status_of(await send(two.port, f"key-{number}")) == (201, "replayed")
                    assert await hits(two) - found >= _KEYS - missed_max

                async def have_exchanged() -> bool:
                    return all([await exchanges(each) > was + 1 for each, was in zip((one, two), noted, strict=True)])

                await eventually(have_exchanged, 60.0, "both have exchanged their notes")
                found = await hits(two)
                for number in range(_KEYS):
                    assert status_of(await send(two.port, f"key-{number}")) == (201, "replayed")
                assert await hits(two) - found == _KEYS
                assert sorted(map(key_of, upstream.requests)) == sorted(["purged", *(f"key-{n}" for n in range(_KEYS))])
