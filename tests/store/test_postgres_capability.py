"""What a server allows is found out by asking it, and said with what follows."""

from __future__ import annotations

import asyncio

import pytest

from gateway.store.base import NotApplied
from gateway.store.postgres.schema import Capability, capabilities
from tests.store.postgres_sessions import roles, session, url_as
from tests.support.postgres import PostgresServer
from tests.support.relay import Fault, Relay, Rule


def by_name(found: list[Capability]) -> dict[str, str]:
    return {each.name: each.state for each in found}


async def test_a_server_of_ones_own_allows_all(postgres_url: str) -> None:
    """What it lacks is a standby; nothing was changed there."""
    states = by_name(await capabilities(postgres_url))
    assert {name for name, state in states.items() if state != "ok"} == {"synchronous standby"}
    assert {"pg_control_system()", "pg_walfile_name()", "fsync", "LISTEN", "writes"} < states.keys()
    async with session(postgres_url) as connection:
        assert not await connection.fetch("SELECT FROM pg_namespace WHERE nspname = 'idempotency_gateway'")


async def test_what_is_refused_is_named_with_what_follows(postgres_url: str) -> None:
    """As on a service that keeps functions of the server from its users; the others are still asked for."""
    async with roles(postgres_url) as (admin, _, runner):
        await admin.execute("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
        found = await capabilities(url_as(runner, postgres_url))
    refused = next(each for each in found if each.name == "pg_control_system()")
    assert [each for each in found if each.state == "refused"] == [refused]
    assert "a copy on another server" in str(refused)
    assert "permission denied" in str(refused)


async def test_settings_that_the_storage_replaces(own_postgres: PostgresServer) -> None:
    """They are shown, and what follows depends on who keeps what is acknowledged."""
    async with session(own_postgres.url) as connection:
        await connection.execute("ALTER SYSTEM SET fsync = off")
    own_postgres.restart()
    (refused,) = [each for each in await capabilities(own_postgres.url) if each.name == "fsync"]
    assert "write store.durability: external" in str(refused)
    (accepted,) = [each for each in await capabilities(own_postgres.url, "external") if each.name == "fsync"]
    assert str(accepted) == "fsync: off, not looked at, because of store.durability: external"


async def test_a_pooler_gives_no_session_to_listen_in(postgres_url: str) -> None:
    """It is not asked for one."""
    assert by_name(await capabilities(f"{postgres_url}?pgbouncer=true"))["LISTEN"] == "none"


async def test_a_server_that_falls_silent_is_not_waited_for(own_postgres: PostgresServer) -> None:
    """Whoever runs a check is told so, and not left without an answer."""
    async with Relay(own_postgres.port) as relay:
        relay.to_target.rule = Rule(b"pg_stat_replication", Fault.SWALLOW)
        with pytest.raises(NotApplied):
            async with asyncio.timeout(20):
                await capabilities(f"postgresql://gateway@127.0.0.1:{relay.port}/postgres", command_seconds=0.5)
