"""Asking a gateway: until it says what is to come, and what it has counted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from tests.observe.scrape import Scrape
from tests.support.eventually import eventually
from tests.support.house import House, status_of
from tests.support.http import Response


async def until(
    expected: tuple[int, str | None], send: Callable[..., Awaitable[Response]], *arguments: Any, **options: Any
) -> Response:
    """The first response to this request with this status and verdict."""

    async def found() -> Response | None:
        response = await send(*arguments, **options)
        return response if status_of(response) == expected else None

    response = await eventually(found, 30, f"{expected} is said")
    assert response is not None
    return response


async def metric(home: House, name: str, **labels: str) -> float:
    """The sum of the series of this metric with, among others, these labels."""
    name, text = f"idempotency_{name}", (await home.status("/metrics")).body.decode()
    scrape = Scrape("".join(line for line in text.splitlines(keepends=True) if line.startswith(name)))
    return sum(each.value for each in scrape.named(name) if labels.items() <= each.labels.items())
