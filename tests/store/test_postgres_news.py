"""News between gateways through Postgres, while the server does not let this gateway in."""

from __future__ import annotations

import asyncio

from gateway.store.postgres.connection import Connection, Link
from gateway.store.postgres.news import News
from gateway.store.watching import Watchers
from tests.support.virtual_time import in_virtual_time

REFUSED_SECONDS = 600.0


@in_virtual_time
async def test_a_server_that_refuses_is_asked_less_and_less() -> None:
    """With a wrong password the log-ins of the link for news come down to one in some seconds."""
    tries = 0

    async def dial() -> Connection:
        nonlocal tries
        tries += 1
        raise OSError("refused")

    news = News(Watchers())
    news.start(Link(dial, "PostgreSQL", connect_seconds=5.0, command_seconds=5.0))
    await asyncio.sleep(REFUSED_SECONDS)
    await news.close()
    assert REFUSED_SECONDS / 10 < tries < REFUSED_SECONDS / 4
