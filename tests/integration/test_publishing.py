"""A short run of gateways that publish and are killed; `python -m tests.integration.publishing` has the long ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.publishing import publish_under_kills
from tests.support.house import sqlite_store


@pytest.mark.full
async def test_every_sink_hears_of_what_was_completed_and_of_nothing_else(tmp_path: Path) -> None:
    """Two webhooks, NATS and Redis: one event for each completed operation, whatever is killed."""
    verdict = await publish_under_kills(tmp_path, sqlite_store(tmp_path), seconds=2.0, seed=1)
    assert not verdict.faults, verdict
    assert verdict.completed > 0, verdict
