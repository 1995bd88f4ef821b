"""The stores that operators' commands and the admin API are shown on: all of them only where the store matters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.admin.hand import Desk
from tests.support.house import store_section


@pytest.fixture(params=["sqlite", "postgres", "postgres-redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """The `store` section of a configuration, on an empty store."""
    return store_section(request, tmp_path)


@pytest.fixture
def sqlite(tmp_path: Path) -> dict[str, Any]:
    """The same on SQLite."""
    return {"durable": f"sqlite://{tmp_path}/store/operations.db"}


@pytest.fixture
def desk() -> Desk:
    """Operations on the model store."""
    return Desk()
