"""What a purge costs the copies that other gateways have in a Redis of several masters."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.hand import OPERATOR, WHY, operated
from tests.observe.scrape import Scrape
from tests.support import http
from tests.support.eventually import eventually
from tests.support.fleet import key_of, process, send
from tests.support.gateway import GatewayProcess
from tests.support.house import status_of
from tests.support.ports import free_port
from tests.support.redis_groups import Cluster, command, running
from tests.support.upstream import RecordingUpstream

# They are spread over all masters, and over many parts of each.
_KEYS = [f"key-{number}" for number in range(60)]


async def exchanges(gateway: GatewayProcess) -> float:
    """How often it has compared what gateways note of the store."""
    told = Scrape(await gateway.metrics())
    return told.value("idempotency_store_duration_seconds_count", tier="durable", verb="check_memory")


async def hits_of_repeats(gateway: GatewayProcess) -> float:
    """How many of its lookups in Redis find a copy, when all keys are repeated."""
    found = []
    for keys in ((), _KEYS):
        for key in keys:
            assert status_of(await send(gateway.port, key)) == (201, "replayed")
        told = Scrape(await gateway.metrics())
        found.append(told.value("idempotency_copy_lookups_total", source="fast", result="hit"))
    return found[1] - found[0]


@pytest.mark.full
async def test_a_purge_costs_another_gateway_no_more_than_a_look_at_each_master(
    tmp_path: Path, server_workspace: Path, postgres_url: str, upstream: RecordingUpstream
) -> None:
    """Copies that are made after it are found, at once and after the gateways have exchanged their notes."""
    cluster, admin_port = Cluster(server_workspace, 3, has_replicas=False), free_port()

    def copies() -> int:
        return sum(command(master, "DBSIZE") for master in cluster.masters)

    with running(cluster):
        changes = {"store": {"fast": cluster.url, "cache_max_age": "0s"}}
        store = {"durable": postgres_url}
        async with (
            process(store, tmp_path / "one", upstream, **changes, **operated(admin_port)) as one,
            process(store, tmp_path / "two", upstream, **changes) as two,
        ):
            assert status_of(await send(one.port, "purged")) == (201, "stored")
            assert status_of(await send(two.port, "purged")) == (201, "replayed")
            (operation,) = upstream.requests[0].values("Idempotency-Operation")
            noted = [await exchanges(each) for each in (one, two)]
            target = f"/operations/{operation.decode()}/purge"
            assert (await http.request(admin_port, "POST", target, OPERATOR, WHY)).status == 200
            before = copies()
            for key in _KEYS:
                assert status_of(await send(one.port, key)) == (201, "stored")
            await eventually(lambda: copies() >= before + len(_KEYS), 10.0, "all are copied")
            assert await hits_of_repeats(two) >= len(_KEYS) - len(cluster.masters)
            assert await hits_of_repeats(two) == len(_KEYS)

            async def have_exchanged() -> bool:
                return all([await exchanges(each) > was + 1 for each, was in zip((one, two), noted, strict=True)])

            await eventually(have_exchanged, 60.0, "both have exchanged their notes")
            assert await hits_of_repeats(two) == len(_KEYS)
            assert sorted(map(key_of, upstream.requests)) == sorted(["purged", *_KEYS])
