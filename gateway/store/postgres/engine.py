"""Which engine a server is, of those that speak PostgreSQL's protocol, and whether it keeps what it acknowledges."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, Literal

from gateway.store.postgres.connection import Connection

SERVER_MAJOR_MIN: Final = 14

Durability = Literal["server", "external"]
"""`store.durability`: whether the server itself keeps what it acknowledged, or the storage below it does."""
# The settings that an acknowledged commit depends on, and what to do about each if it is off.
DURABILITY: Final[Mapping[str, str]] = {
    "fsync": (
        "after a crash of its host it may be corrupt, or have forgotten acknowledged responses. Set it to on; only "
        "where the storage itself keeps every acknowledged commit (as Neon's does), write store.durability: external"
    ),
    "full_page_writes": (
        "a page that a crash leaves half written is corrupt for good. Set it to on; only where the storage never "
        "leaves a page half written (as ZFS and Neon's do not), write store.durability: external"
    ),
    "synchronous_commit": (
        "a crash forgets the responses that were acknowledged last. Set it to on, for all or for this role "
        "(ALTER ROLE gateway SET synchronous_commit = on)"
    ),
}

# Those whose work some storage does by itself. There they may be off, but only the operator can know that.
_OF_STORAGE: Final = ("fsync", "full_page_writes")


class Engine(StrEnum):
    POSTGRESQL = "PostgreSQL"
    COCKROACHDB = "CockroachDB"
    YUGABYTEDB = "YugabyteDB"
    CITUS = "Citus"


async def engine_of(connection: Connection) -> Engine:
    """Which engine the server says that it is."""
    ((version,),) = await connection.fetch("SELECT version()")
    if "CockroachDB" in version:
        return Engine.COCKROACHDB
    if "-YB-" in version:
        return Engine.YUGABYTEDB
    if await connection.fetch("SELECT 1 FROM pg_extension WHERE extname = 'citus'"):
        return Engine.CITUS
    return Engine.POSTGRESQL


def losses(settings: Mapping[str, str], durability: Durability) -> dict[str, str]:
    """The settings of a server that make it lose commits, and what to do about each; empty if its commits are
    durable."""
    ignored = _OF_STORAGE if durability == "external" else ()
    return {name: what for name, what in DURABILITY.items() if settings[name] == "off" and name not in ignored}
