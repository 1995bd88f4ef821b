"""Several services in one database: each minds its own operations, whatever the others call theirs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.http.gateway.test_recovery import FAST, LOST, charges, probed, probes, told
from tests.support.eventually import eventually
from tests.support.house import House, house, status_of
from tests.support.upstream import Answer

PATIENCE_SECONDS = 30.0


def is_asked_about(home: House, key: str) -> bool:
    return any(f"key={key}".encode() in each.target for each in probes(home))


async def is_asked_about_by_a_pass(home: House, key: str) -> bool:
    """Whether a pass of the background comes to it, without the wait for the next pass."""
    await home.gateway.parts._recovery.run_once()
    return is_asked_about(home, key)


async def test_services_that_share_a_database_start_again(postgres_url: str, tmp_path: Path) -> None:
    """Services with a route of the same name each find their own keys again, and neither stops the other's start."""
    store = {"durable": postgres_url}
    async with (
        house(store, tmp_path / "shop", service="shop") as shop,
        house(store, tmp_path / "books", service="books") as books,
    ):
        assert [status_of(await home.send()) for home in (shop, books)] == [(200, "stored")] * 2
    for service in ("shop", "books"):
        async with house(store, tmp_path / service, service=service) as home:
            assert status_of(await home.send()) == (200, "replayed")


@pytest.mark.parametrize(
    ("service", "operation"), [("books", "charge"), ("shop", "refund")], ids=["another-service", "another-operation"]
)
async def test_a_service_asks_about_its_own_operations_alone(
    postgres_url: str, tmp_path: Path, service: str, operation: str
) -> None:
    """An upstream is not asked about an operation that only has the route's name, and its answer is not recorded."""
    store = {"durable": postgres_url}
    ours: dict[str, Any] = {"route": probed(), "upstream": FAST}
    theirs: dict[str, Any] = {"service": service, "route": probed() | {"operation": operation}, "upstream": FAST}
    # Known to the store before there is a key.
    async with house(store, tmp_path / "ours", **ours):
        pass
    async with house(store, tmp_path / "theirs", **theirs) as other:
        other.upstream.on("/charges", LOST)
        other.upstream.on(None, Answer(500, effect=False))
        assert status_of(await other.send("k1")) == (502, "in-doubt")
    ours["route"] |= {"identity_change": "accept"}
    theirs["route"] |= {"identity_change": "accept"}
    async with house(store, tmp_path / "ours", **ours) as home:
        home.upstream.on(None, told("succeeded"))
        # The pass that comes to the second of these has come to everything that was in doubt before it.
        for key in ("k2", "k3"):
            home.upstream.on("/charges", LOST)
            assert status_of(await home.send(key)) == (502, "in-doubt")
            await eventually(partial(is_asked_about_by_a_pass, home, key), PATIENCE_SECONDS)
        assert not is_asked_about(home, "k1")
    async with house(store, tmp_path / "theirs", **theirs) as other:
        other.upstream.on(None, Answer(500, effect=False))
        again = await other.send("k1", headers=[("Prefer", "wait=0")])
        assert status_of(again) == (409, "in-doubt")
        assert not charges(other)
