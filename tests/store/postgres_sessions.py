"""Store objects and plain sessions on one Postgres, opened and closed around a test's steps."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from gateway.store.postgres.store import PostgresStore
from tests.conformance.hand import started
from tests.support.postgres import session


def url_as(role: str, url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=f"{role}@{parts.hostname}:{parts.port}").geturl()


@asynccontextmanager
async def roles(url: str) -> AsyncIterator[tuple[Any, str, str]]:
    """A session of the superuser, and two roles without any rights, which go away."""
    names = [urlsplit(url).path.removeprefix("/") + suffix for suffix in ("_owner", "_other")]
    async with session(url) as admin:
        try:
            for name in names:
                await admin.execute(f"CREATE ROLE {name} LOGIN")
            yield admin, names[0], names[1]
        finally:
            # What a member made goes with it, or with the schema of the owner.
            for name in reversed(names):
                await admin.execute(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}")


def opened(url: str, **options: Any) -> AbstractAsyncContextManager[PostgresStore]:
    return started(PostgresStore(url, **options))
