"""Some reloads under load in the suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.reloading import reload_under_load
from tests.support.house import sqlite_store


@pytest.mark.parametrize(
    "workers", [pytest.param(1, id="one-process"), pytest.param(2, id="two-workers", marks=pytest.mark.full)]
)
async def test_reloads_under_load(tmp_path: Path, workers: int) -> None:
    """Nothing is lost, on kept connections and on new ones; no key runs twice, and what is in flight keeps the policy
    that it began with.

    For more, at a rate that is held: `python -m tests.integration.reloading --reloads 20 --rate 300`.
    """
    verdict = await reload_under_load(tmp_path, sqlite_store(tmp_path), workers=workers, reloads=4, rate=200.0)
    print(verdict)
    assert not verdict.faults, verdict
    # There was a load, on every client.
    assert verdict.answered > 10
