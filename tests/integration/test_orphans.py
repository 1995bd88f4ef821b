"""Accepted requests whose route is gone from the configuration wait beside those of routes that are there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid4

import pytest

from gateway.app.parts import Environment
from gateway.core.operation import Accept, Applied, Identity, SealedRequest, State, microseconds
from gateway.store.operations import ManagedStore, Query
from tests.conformance.hand import SAME, SERVICE, new_identity
from tests.support.accepting import ASYNC, SECRETS
from tests.support.eventually import eventually
from tests.support.house import ROUTE, House, neighbour, status_of, store_section
from tests.support.upstream import Answer, RecordingUpstream

_COUNT: Final = 2_500
_COUNT_FULL: Final = 10_000
# A batch of a store, and some more, so that it never waits for the test.
_AT_ONCE: Final = 100
# The pause before the second attempt, and far more than polls of a busy machine take.
_RETRIED_SECONDS: Final = 15.0
_SHORT_SECONDS: Final = 2.0

CHARGE: Final[dict[str, Any]] = {
    **ROUTE,
    "operation": "pay",
    "accept": {"identity": "unverified"},
    "delivery": {"schedule": ["500ms"]},
}
REFUND: Final[dict[str, Any]] = {**CHARGE, "name": "refund", "match": {"path": "/refunds"}}
# What becomes of the route of the orphans. Another one shares its operation name before it, and in two cases after it.
WAYS: Final[dict[str, dict[str, Any]]] = {
    "renamed": {**REFUND, "name": "returns"},
    "accepts-no-more": {key: value for key, value in REFUND.items() if key not in ("accept", "delivery")},
    "another-operation": {**REFUND, "operation": "refund", "identity_change": "accept"},
}


@pytest.fixture(params=["sqlite", "postgres", "portable"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """The `store` section of a configuration, on an empty store."""
    if request.param == "portable":
        return {"durable": request.getfixturevalue("postgres_url"), "dialect": "portable"}
    return store_section(request, tmp_path)


@asynccontextmanager
async def gateway(
    store: dict[str, Any],
    directory: Path,
    upstream: RecordingUpstream,
    refund: dict[str, Any],
    *,
    charge: dict[str, Any] = CHARGE,
    delivers: bool = True,
) -> AsyncIterator[tuple[House, ManagedStore]]:
    """A gateway with these two routes, and its store."""
    made: list[ManagedStore] = []

    def surround(environment: Environment) -> Environment:
        made.append(environment.durable)
        return environment

    changes = {"secrets": SECRETS, "delivery": {"workers": int(delivers)}, "routes": [charge, refund]}
    async with neighbour(store, directory, upstream, surround=surround, **changes) as home:
        yield home, made[0]


async def accept(home: House, *keys: str, target: str, tenant: str = "t1") -> None:
    for key in keys:
        response = await home.send(key, headers=[ASYNC], target=target, tenant=tenant)
        assert response.status == 202, response.body


async def keep(store: ManagedStore, count: int, within_seconds: float) -> set[Identity]:
    """Have the store accept so many operations of the route that goes, with requests that nobody can open."""

    async def keep_one() -> Identity:
        identity, kept = new_identity("refund", "pay"), SealedRequest(uuid4(), "a", b"sealed")
        command = Accept(identity, uuid4(), SERVICE, SAME, kept, microseconds(within_seconds))
        assert isinstance(await store.apply(command), Applied)
        return identity

    kept = set[Identity]()
    while len(kept) < count:
        kept |= {*await asyncio.gather(*(keep_one() for _ in range(min(_AT_ONCE, count - len(kept)))))}
    return kept


async def found(store: ManagedStore, state: State, after: UUID | None = None) -> list[Identity]:
    """All operations of the route that is gone in this state."""
    query = Query(frozenset((state,)), routes=frozenset(("refund",)), after=after, limit=1000)
    page = [each.record.identity for each in await store.cold.find(query) if each.record is not None]
    return page if len(page) < query.limit else page + await found(store, state, page[-1].operation_id)


def keys_at(upstream: RecordingUpstream, target: bytes) -> list[bytes]:
    return [key for each in upstream.requests if each.target == target for key in each.values("Idempotency-Key")]


@pytest.mark.parametrize(
    ("way", "count"),
    [
        ("renamed", _COUNT),
        pytest.param("accepts-no-more", _COUNT, marks=pytest.mark.full),
        pytest.param("another-operation", _COUNT_FULL, marks=pytest.mark.full),
    ],
)
async def test_they_hide_nothing_and_are_not_lost(store: dict[str, Any], tmp_path: Path, way: str, count: int) -> None:
    """However many are due, what another route with their operation name has to try again is tried in time. They wait,
    are listed, become dead letters at their deadline, and are delivered once their route is back."""
    async with RecordingUpstream() as upstream:
        async with gateway(store, tmp_path, upstream, REFUND, delivers=False) as (home, behind):
            await accept(home, "kept-1", "kept-2", target="/refunds")
            await keep(behind, count, 3600)
        upstream.on("/charges", Answer(503), Answer(201))
        async with gateway(store, tmp_path, upstream, WAYS[way]) as (home, behind):
            short = await keep(behind, 3, _SHORT_SECONDS)
            await accept(home, "living", target="/charges")
            await upstream.wait_for_requests(2, _RETRIED_SECONDS)
            assert keys_at(upstream, b"/charges") == [b"living"] * 2
            assert len(await found(behind, State.ACCEPTED)) >= 2 + count

            async def are_dead() -> bool:
                return len(await found(behind, State.DEAD_LETTER)) == len(short)

            await eventually(are_dead, what="those whose deadline is over are dead letters")
            assert set(await found(behind, State.DEAD_LETTER)) == short
            assert len(await found(behind, State.ACCEPTED)) == 2 + count
            assert keys_at(upstream, b"/refunds") == []
        async with gateway(store, tmp_path, upstream, REFUND):
            await eventually(lambda: len(keys_at(upstream, b"/refunds")) == 2, what="the others are delivered")
            assert sorted(keys_at(upstream, b"/refunds")) == [b"kept-1", b"kept-2"]


async def test_they_take_no_room_from_another_route(
    store: dict[str, Any], tmp_path: Path, upstream: RecordingUpstream
) -> None:
    """How much a caller may have waiting on a route is not less for what it has on one that is gone."""
    charge = CHARGE | {"accept": {"identity": "unverified", "max_pending_per_scope": 2}}
    async with gateway(store, tmp_path, upstream, REFUND, delivers=False) as (home, _):
        await accept(home, "orphan-1", "orphan-2", target="/refunds")
    async with gateway(store, tmp_path, upstream, WAYS["renamed"], charge=charge, delivers=False) as (home, _):
        await accept(home, "other-1", "other-2", target="/charges", tenant="t2")
        await accept(home, "own-1", "own-2", target="/charges")
        for tenant in ("t1", "t2"):
            response = await home.send("more", headers=[ASYNC], target="/charges", tenant=tenant)
            assert status_of(response) == (503, "backlog-full")
