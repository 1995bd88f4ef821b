"""A short run of two gateways that keep order; `python -m tests.integration.lanes` has the long ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.lanes import judge, keep_order_under_kills
from tests.support.house import store_section

_KILLS = 2


@pytest.fixture(params=["postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """The `store` section of a configuration, on an empty store."""
    return store_section(request, tmp_path)


async def test_order_over_two_gateways(store: dict[str, Any], tmp_path: Path) -> None:
    """Under 503s and kills, the service's ledger has each lane in the order of acceptance, and doubt is not passed."""
    verdict = await keep_order_under_kills(tmp_path, store, kills=_KILLS, seed=1, lanes=4)
    assert not verdict.faults, verdict
    assert verdict.effects > 0, verdict


@pytest.mark.parametrize(
    ("states", "effects", "arrived", "is_kept"),
    [
        (["completed"] * 2, [0, 1], [0, 0, 1], True),
        (["completed"] * 2, [1, 0], [1, 0], False),
        (["completed"] * 2, [0, 1], [0, 1, 0, 1], False),
        (["completed"] * 2, [0], [0], False),
        (["completed", "in_doubt", "accepted"], [0], [0, 1], True),
        (["completed", "in_doubt", "completed"], [0, 2], [0, 1, 2], False),
        (["completed", "accepted"], [0], [0], False),
    ],
)
def test_the_judge(states: list[str], effects: list[int], arrived: list[int], is_kept: bool) -> None:
    """It knows a lane that was kept from every other."""
    assert (not judge("a", dict(enumerate(states)), effects, arrived)) is is_kept
