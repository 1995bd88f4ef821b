"""Two real programs of successive levels on one store: side by side, back again, and after the level was raised."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import pytest

from gateway import EXIT_FAILED, EXIT_OK, EXIT_WRONG, __version__
from gateway.store.agreement import PROGRAM_LEVEL
from tests.integration.hand import begin
from tests.store.postgres_sessions import session
from tests.support.eventually import eventually
from tests.support.fleet import config_of, nonce_of, send, wait_answered
from tests.support.gateway import GatewayProcess
from tests.support.house import sqlite_store, status_of
from tests.support.postgres import PostgresInstallation, PostgresServer, workspace
from tests.support.upstream import RecordingUpstream
from tests.upgrade.programs import NEXT_JOURNAL_VERSION, NEXT_LEVEL, NEXT_RECORD_VERSION, THIS, command, finish, use
from tests.upgrade.rolling import rolling

REPLAYED = (200, "replayed")
STORED = (200, "stored")
_RUNNING_SECONDS = 60
_HEARD_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Place:
    """The `store` section of an empty store, and how a query is run in it behind the programs' backs."""

    section: dict[str, Any]
    ask: Callable[[str], Awaitable[list[Any]]]

    async def versions(self) -> set[int]:
        return {version for (version,) in await self.ask("SELECT DISTINCT version FROM operation")}


@pytest.fixture(
    params=["postgres-redis", *(pytest.param(each, marks=pytest.mark.full) for each in ("sqlite", "portable"))]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "sqlite":
        section = sqlite_store(tmp_path)

        async def ask(query: str) -> list[Any]:
            with apsw.Connection(section["durable"].removeprefix("sqlite://")) as connection:
                found: list[Any] = connection.execute(query).fetchall()
            connection.close()
            return found
    else:
        url = request.getfixturevalue("postgres_url")
        section = {"durable": url}
        if request.param == "portable":
            section["dialect"] = "portable"
        else:
            section["fast"] = request.getfixturevalue("redis_url")

        async def ask(query: str) -> list[Any]:
            async with session(url) as connection:
                await connection.execute("SET search_path = idempotency_gateway")
                return [tuple(row) for row in await connection.fetch(query)]

    return Place(section, ask)


@asynccontextmanager
async def stood(
    place: dict[str, Any], directory: Path, upstream: RecordingUpstream, *roots: Path
) -> AsyncIterator[list[GatewayProcess]]:
    found = []
    for number, root in enumerate(roots):
        home = directory / f"gateway-{number}"
        found.append(GatewayProcess(config_of(place, home, upstream.url), home))
        use(found[-1], root)
    try:
        yield found
    finally:
        for gateway in found:
            gateway.kill()


async def restart(gateway: GatewayProcess, root: Path) -> None:
    gateway.terminate()
    use(gateway, root)
    await gateway.start()


async def test_side_by_side_and_back(place: Place, tmp_path: Path, next_program: Path) -> None:
    """Each replays what the other recorded, and going back is a restart."""
    async with (
        RecordingUpstream() as upstream,
        stood(place.section, tmp_path, upstream, THIS, next_program) as (one, other),
    ):
        await one.start()
        assert status_of(await send(one.port, "first")) == STORED
        await other.start()
        _, said = await command(next_program, "check", "--store", "--config", other.config_file)
        for told in (said, other.output()):
            assert f"the store has level {PROGRAM_LEVEL}, and this program has {NEXT_LEVEL}" in told
        assert status_of(await send(other.port, "first")) == REPLAYED
        assert status_of(await send(other.port, "second")) == STORED
        assert status_of(await send(one.port, "second")) == REPLAYED
        await restart(other, THIS)
        assert status_of(await send(other.port, "second")) == REPLAYED
        assert status_of(await send(other.port, "third")) == STORED
        await restart(other, next_program)
        assert status_of(await send(other.port, "third")) == REPLAYED
        assert await place.versions() == {NEXT_RECORD_VERSION - 1}
        assert len(upstream.requests) == 3


async def test_the_level_is_raised(place: Place, tmp_path: Path, next_program: Path) -> None:
    """By command alone, and not while an older program runs, which is refused from then on; what it recorded is still
    replayed."""
    async with (
        RecordingUpstream() as upstream,
        stood(place.section, tmp_path, upstream, THIS, next_program) as (one, other),
    ):
        await one.start()
        assert status_of(await send(one.port, "first")) == STORED
        code, said = await finish(other)
        assert code == EXIT_FAILED
        assert "gateways of an older program still run: " in said
        assert said.count(f"(level {PROGRAM_LEVEL})") == 1, said
        assert await place.ask("SELECT level FROM epoch") == [(PROGRAM_LEVEL,)]
        assert status_of(await send(one.port, "first")) == REPLAYED
        one.terminate()
        for outcome in (f"level {NEXT_LEVEL} now", f"level {NEXT_LEVEL}, which is this program's; nothing was changed"):
            code, said = await finish(other)
            assert (code, outcome in said) == (EXIT_OK, True), said
        await other.start()
        assert status_of(await send(other.port, "first")) == REPLAYED
        for expected in (STORED, REPLAYED):
            assert status_of(await send(other.port, "second")) == expected
        assert await place.versions() == {NEXT_RECORD_VERSION - 1, NEXT_RECORD_VERSION}
        one.launch()
        assert await one.wait_exit() == EXIT_FAILED
        refused = f"the store has level {NEXT_LEVEL}, and this program, {__version__}, serves up to {PROGRAM_LEVEL}"
        assert refused in one.output()
        code, said = await command(THIS, "inspect", "--list", "--state", "in_doubt", "--config", one.config_file)
        assert code != EXIT_OK
        assert refused in said
        assert len(upstream.requests) == 2


async def test_one_that_slept_while_the_level_was_raised(postgres_url: str, tmp_path: Path, next_program: Path) -> None:
    """It had not been seen for a minute, and wakes up: it grants nothing more, and says why."""
    async with (
        RecordingUpstream() as upstream,
        stood({"durable": postgres_url}, tmp_path, upstream, THIS, next_program) as (older, newer),
        session(postgres_url) as admin,
    ):
        await older.start()
        await newer.start()
        assert status_of(await send(older.port, "before")) == STORED
        older.pause()
        code, said = await finish(newer)
        assert (code, "still run" in said) == (EXIT_FAILED, True), said
        await admin.execute(
            f"UPDATE idempotency_gateway.gateway SET seen_us = seen_us - {_RUNNING_SECONDS + 1} * 1000000"
            f" WHERE level = {PROGRAM_LEVEL}"
        )
        code, said = await finish(newer)
        assert code == EXIT_OK, said
        older.resume()
        await eventually(
            lambda: "serves up to" in older.output(), _HEARD_SECONDS, "the older gateway says why it stopped"
        )
        assert status_of(await send(older.port, "after")) == (503, "store-unavailable")
        assert (await older.status("/readyz?require=store")).status == 503
        assert status_of(await send(newer.port, "before")) == REPLAYED
        assert len(upstream.requests) == 1


@pytest.mark.parametrize("goes_back", [False, True], ids=["forward", "back"])
async def test_an_outcome_in_the_journal_of_the_other_program(
    goes_back: bool, own_postgres: PostgresServer, tmp_path: Path, next_program: Path
) -> None:
    """What a gateway journaled and could not bring to the store, because both were killed, is recorded by the program
    that comes after it on this host, an older one included."""
    first, second = (next_program, THIS) if goes_back else (THIS, next_program)
    async with (
        RecordingUpstream() as upstream,
        stood({"durable": own_postgres.url}, tmp_path, upstream, first) as (gateway,),
    ):
        for root in (THIS, next_program):
            use(gateway, root)
            assert (await command(root, "migrate", "--config", gateway.config_file))[0] == EXIT_OK
        use(gateway, first)
        await gateway.start()
        request, hold = await begin(gateway, upstream)
        own_postgres.crash()
        hold.set()
        answer = await request
        assert status_of(answer) == (201, "journaled")
        gateway.kill()
        assert _journal_versions(gateway) == [NEXT_JOURNAL_VERSION - 1]
        own_postgres.start()
        use(gateway, second)
        await gateway.start()
        again = await wait_answered(gateway.port, "k1", verdicts=frozenset(("replayed",)), deadline_seconds=60.0)
        assert nonce_of(again) == nonce_of(answer)
        assert len(upstream.requests) == 1


def _journal_versions(gateway: GatewayProcess) -> list[int]:
    versions: list[int] = []
    for path in (gateway.config_file.parent / "state" / "journal").glob("*.db"):
        connection = apsw.Connection(str(path))
        versions += [version for (version,) in connection.execute("SELECT version FROM entry")]
        connection.close()
    return versions


async def test_a_configuration_of_the_next_program(tmp_path: Path, next_program: Path) -> None:
    """A setting that this program does not have is refused with the version that does not have it; without it, the
    next program does what this one does."""
    gateway = GatewayProcess(config_of(sqlite_store(tmp_path), tmp_path, "http://127.0.0.1:9"), tmp_path)
    use(gateway, next_program)
    check = ("check", "--config", gateway.config_file)
    assert (await command(next_program, *check))[0] == EXIT_OK
    code, said = await command(THIS, *check)
    assert code == EXIT_WRONG
    assert f"unknown key in version {__version__}; known here: " in said
    use(gateway, THIS)
    for root in (THIS, next_program):
        assert (await command(root, *check))[0] == EXIT_OK


async def test_a_migration_rewrites_nothing(postgres_url: str, tmp_path: Path, next_program: Path) -> None:
    """The tables of operations and responses stay in the files that they are in."""
    gateway = GatewayProcess(config_of({"durable": postgres_url}, tmp_path, "http://127.0.0.1:9"), tmp_path)
    files = (
        "SELECT relname, pg_relation_filenode(oid) FROM pg_class"
        " WHERE relnamespace = 'idempotency_gateway'::regnamespace AND relkind IN ('r', 'i') AND relname <> 'novelty'"
        " AND relname <> 'novelty_pkey' ORDER BY relname"
    )
    assert (await command(THIS, "migrate", "--config", gateway.config_file))[0] == EXIT_OK
    async with session(postgres_url) as admin:
        before = await admin.fetch(files)
        code, said = await command(next_program, "migrate", "--config", gateway.config_file)
        assert (code, "(novelty)" in said) == (EXIT_OK, True), said
        assert await admin.fetch(files) == before


@pytest.mark.full
async def test_short_rolling_upgrade(postgres_installation: PostgresInstallation, next_program: Path) -> None:
    """Gateways replaced one by one under load, forwards, one back and forwards again, then the level raised: no key
    twice, every response the one that was recorded, and nothing refused.

    For longer ones: `python -m tests.upgrade.rolling --seconds 300`.
    """
    with workspace("rolling") as directory:
        verdict = await rolling(
            directory, postgres_installation, next_program, seconds=1.0, seed=5, kills=False, count=2, is_short=True
        )
    print(verdict)
    assert not verdict.faults, verdict
    assert verdict.replaced == 4
    assert verdict.effects >= 20
    assert {"stored", "replayed"} <= verdict.words.keys()
