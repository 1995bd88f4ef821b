"""A short run of gateways that accept and are killed; `python -m tests.integration.accepting` has the long ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.accepting import accept_under_kills
from tests.support.house import store_section

_KILLS = 2


@pytest.fixture(params=[pytest.param("sqlite", marks=pytest.mark.full), "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """The `store` section of a configuration, on an empty store."""
    return store_section(request, tmp_path)


async def test_what_was_accepted_outlives_the_gateway(store: dict[str, Any], tmp_path: Path) -> None:
    """Each 202 is delivered once by another gateway, or is in doubt and found by its status URL."""
    verdict = await accept_under_kills(tmp_path, store, kills=_KILLS, seed=1)
    assert not verdict.faults, verdict
    assert verdict.states["completed"] > 0, verdict
