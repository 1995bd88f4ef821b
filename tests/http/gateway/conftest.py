"""The stores that whole gateways are shown on: `store` where it has a say, `sqlite` where it is the same on each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.house import sqlite_store, stores

store = stores("sqlite", "postgres", "postgres-redis")


@pytest.fixture
def sqlite(tmp_path: Path) -> dict[str, Any]:
    """The `store` section of a configuration, on an empty store."""
    return sqlite_store(tmp_path)
