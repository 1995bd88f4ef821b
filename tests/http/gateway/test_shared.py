"""Several services in one database: each minds its own operations, whatever the others call theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.app.life import StartError
from tests.support.house import house, status_of


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


async def test_a_service_that_is_new_beside_living_keys_is_asked_about(postgres_url: str, tmp_path: Path) -> None:
    """A service that the store does not know may be another one under a new name: it starts once somebody says no."""
    store = {"durable": postgres_url}
    async with house(store, tmp_path / "shop", service="shop") as shop:
        assert status_of(await shop.send()) == (200, "stored")
    with pytest.raises(StartError, match=r"does not know the service books, .* \(shop\): charge with 1 living keys"):
        async with house(store, tmp_path / "books", service="books"):
            pass
    for route in ({"identity_change": "accept"}, {}):
        async with house(store, tmp_path / "books", service="books", route=route) as books:
            await books.send("k2")
