"""The stores that operators' commands and the admin API are shown on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(params=["sqlite", "postgres", "postgres-redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """The `store` section of a configuration, on an empty store."""
    if request.param == "sqlite":
        return {"durable": f"sqlite://{tmp_path}/store/operations.db"}
    section: dict[str, Any] = {"durable": request.getfixturevalue("postgres_url")}
    if request.param == "postgres-redis":
        section["fast"] = request.getfixturevalue("redis_url")
    return section
