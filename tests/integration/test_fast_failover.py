"""Short runs of gateways whose Redis fails over; `python -m tests.integration.fast_failover` has the long ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.fast_failover import fail_over


@pytest.mark.parametrize("kind", ["sentinel", pytest.param("cluster", marks=pytest.mark.full)])
async def test_replays_go_on(kind: str, postgres_url: str, server_workspace: Path, tmp_path: Path) -> None:
    """Whoever is master: each key is executed once, replayed as it was answered, and not after its purge is known."""
    verdict = await fail_over(tmp_path, {"durable": postgres_url}, kind, faults=("flush", "kill"), seed=2)
    assert not verdict.faults, verdict
    assert verdict.stored
    assert verdict.from_redis, verdict
    assert verdict.purged, verdict
