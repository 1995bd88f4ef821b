"""Accepted requests whose route is gone from the configuration wait beside those of routes that are there."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.accepting import ASYNC, SECRETS
from tests.support.house import ROUTE, House, neighbour, status_of, store_section
from tests.support.upstream import RecordingUpstream

ACCEPTING: Final = {"identity": "unverified", "max_pending_per_scope": 2}
CHARGE: Final[dict[str, Any]] = {**ROUTE, "operation": "pay", "accept": ACCEPTING}


@pytest.fixture(params=["sqlite", "postgres", "portable"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """The `store` section of a configuration, on an empty store."""
    if request.param == "portable":
        return {"durable": request.getfixturevalue("postgres_url"), "dialect": "portable"}
    return store_section(request, tmp_path)


async def test_they_take_no_room_from_another_route(store: dict[str, Any], tmp_path: Path) -> None:
    """How much a caller may have waiting on a route is not less for what it has on one that is gone."""

    def gateway(name: str) -> AbstractAsyncContextManager[House]:
        routes = [CHARGE, {**CHARGE, "name": name, "match": {"path": "/refunds"}}]
        return neighbour(store, tmp_path, upstream, routes=routes, secrets=SECRETS, delivery={"workers": 0})

    async def accept(home: House, key: str, target: str = "/charges", tenant: str = "t1") -> tuple[int, str | None]:
        return status_of(await home.send(key, headers=[ASYNC], target=target, tenant=tenant))

    async with RecordingUpstream() as upstream:
        async with gateway("refund") as home:
            for key in ("orphan-1", "orphan-2"):
                assert await accept(home, key, "/refunds") == (202, "accepted")
        async with gateway("returns") as home:
            for tenant in ("t2", "t1"):
                for key in ("k1", "k2"):
                    assert await accept(home, key, tenant=tenant) == (202, "accepted")
                assert await accept(home, "more", tenant=tenant) == (503, "backlog-full")
