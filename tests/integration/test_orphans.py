"""Accepted requests whose route is gone from the configuration wait beside those of routes that are there."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.accepting import ASYNC, SECRETS
from tests.support.eventually import eventually
from tests.support.fleet import key_of
from tests.support.house import ROUTE, House, neighbour, status_of, store_section
from tests.support.upstream import RecordingUpstream

CHARGE: Final[dict[str, Any]] = {
    **ROUTE,
    "operation": "pay",
    "accept": {"identity": "unverified", "max_pending_per_scope": 2},
}
REFUND: Final[dict[str, Any]] = {**CHARGE, "name": "refund", "match": {"path": "/refunds"}}


@pytest.fixture(params=["sqlite", "postgres", "portable"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """The `store` section of a configuration, on an empty store."""
    if request.param == "portable":
        return {"durable": request.getfixturevalue("postgres_url"), "dialect": "portable"}
    return store_section(request, tmp_path)


async def accept(home: House, *keys: str, target: str, tenant: str = "t1") -> None:
    for key in keys:
        response = await home.send(key, headers=[ASYNC], target=target, tenant=tenant)
        assert response.status == 202, response.body


async def test_they_take_no_room_from_another_route(
    store: dict[str, Any], tmp_path: Path, upstream: RecordingUpstream
) -> None:
    """How much a caller may have waiting on a route is not less for what it has on one that is gone, and which is
    delivered once that route is back."""
    kept: Any = {"secrets": SECRETS, "delivery": {"workers": 0}}
    async with neighbour(store, tmp_path, upstream, routes=[CHARGE, REFUND], **kept) as home:
        await accept(home, "orphan-1", "orphan-2", target="/refunds")
    renamed = REFUND | {"name": "returns"}
    async with neighbour(store, tmp_path, upstream, routes=[CHARGE, renamed], **kept) as home:
        await accept(home, "other-1", "other-2", target="/charges", tenant="t2")
        await accept(home, "own-1", "own-2", target="/charges")
        for tenant in ("t1", "t2"):
            response = await home.send("more", headers=[ASYNC], target="/charges", tenant=tenant)
            assert status_of(response) == (503, "backlog-full")
    kept["delivery"] = {"workers": 1}
    async with neighbour(store, tmp_path, upstream, routes=[CHARGE, REFUND], **kept):
        await eventually(lambda: len(upstream.requests) == 6, what="all are delivered")
    delivered = sorted(key_of(each) for each in upstream.requests if each.target == b"/refunds")
    assert delivered == ["orphan-1", "orphan-2"]
