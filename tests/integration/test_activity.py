"""What the pictures of the overview show is what callers did: over workers and gateways, restarts and reloads."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from tests.integration.hand import OPERATOR, operated
from tests.support import http
from tests.support.fleet import config_of, gateways, send
from tests.support.gateway import GatewayProcess
from tests.support.house import status_of, stores
from tests.support.ports import free_port
from tests.support.upstream import RecordingUpstream

MANY = 12


store = stores("sqlite", full=["postgres"])


async def activity(port: int) -> dict[str, Any]:
    response = await http.request(port, "GET", "/activity", OPERATOR[:1])
    assert response.status == 200, response.body
    found: dict[str, Any] = response.json()
    return found


def summed(document: dict[str, Any], kind: str) -> Counter[str]:
    found = Counter[str]()
    for bucket in document["buckets"]:
        found.update(bucket.get(kind, {}))
    return found


async def test_the_numbers_are_those_of_the_callers(
    store: dict[str, Any], tmp_path: Path, upstream: RecordingUpstream
) -> None:
    """Two gateways of two workers each; one is restarted, the other is reloaded. Nothing is lost and nothing twice."""
    port, seen = free_port(), Counter[str]()

    async def call(gateway: GatewayProcess, keys: range) -> None:
        for key in keys:
            seen[str(status_of(await send(gateway.port, f"key-{key}"))[1])] += 1

    configs = {name: config_of(store, tmp_path / name, upstream.url, workers=2) for name in ("one", "other")}
    configs["one"] |= operated(port)
    async with gateways(*((config, tmp_path / name) for name, config in configs.items())) as (one, other):
        await call(one, range(MANY))
        await call(one, range(MANY))
        await call(other, range(MANY // 2, 2 * MANY))
        assert one.terminate() == 0
        await one.start()
        await call(one, range(MANY))
        text = other.config_file.read_text()
        assert "drain_timeout: 5s" in text
        other.config_file.write_text(text.replace("drain_timeout: 5s", "drain_timeout: 6s"))
        code, said = await other.command("reload")
        assert code == 0, said
        await call(other, range(2 * MANY, 3 * MANY))
        # What its second worker counted since the last minute is on its way with it.
        assert other.terminate() == 0
        assert one.terminate() == 0
        await one.start()
        document = await activity(port)
    assert summed(document, "verdict") == seen
    assert summed(document, "route") == {"charge": sum(seen.values())}
    assert seen["stored"] == summed(document, "service").total() == 3 * MANY
    marks = [set(bucket.get("mark", ())) for bucket in document["buckets"] if not bucket["is_gap"]]
    assert set().union(*marks) == {"start", "reload"}
    assert document["is_whole"]
    assert document["buckets"][0] == {"at_seconds": document["buckets"][0]["at_seconds"], "is_gap": True}
