"""The recipe of docs/configure/one-transaction.md: its code runs, dies at every step, and leaves no doubt."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import apsw
import asyncpg
import pytest
import yaml

from tests.docs.dying import load
from tests.support.clocks import Clocks
from tests.support.eventually import eventually
from tests.support.house import House, house, sqlite_store, status_of
from tests.support.ports import free_port
from tests.support.reference import DOCS

PAGE: Final = (DOCS / "configure" / "one-transaction.md").read_text("utf-8")
FILES: Final = {
    name: text
    for text, name in re.findall(r"^```(?:python|sql)\n((?:#|--) (\S+)\n.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
}
SETTINGS: Final = yaml.safe_load(
    re.findall(r"^```yaml\n(.*?)^```$", PAGE.replace("${PROBE_TOKEN}", "probe"), re.DOTALL | re.MULTILINE)[0]
)
# What is believed of a 404 is, as long after the attempt as the page says; and a lease, since no clock was set.
SETTLED_SECONDS: Final = 10.0 + 30.0 + 30.0 + 1.0
STEPS_MAX: Final = 60


async def run(database: str, statements: str) -> list[tuple[Any, ...]]:
    """In the database where the service keeps its charges."""
    if database.startswith("sqlite:"):
        with closing(apsw.Connection(database.removeprefix("sqlite:"))) as db:
            return list(db.execute(statements))
    connection = await asyncpg.connect(database)
    try:
        if statements.startswith("SELECT"):
            return [tuple(row) for row in await connection.fetch(statements)]
        await connection.execute(statements)
        return []
    finally:
        await connection.close()


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """As the service is told where it is."""
    postgres = request.param == "postgres"
    return request.getfixturevalue("postgres_url") if postgres else f"sqlite:{tmp_path}/service.db"


@dataclass
class Services:
    """The services of `dying`, one after the other, on one port."""

    process: asyncio.subprocess.Process

    async def begin(self, step: int) -> None:
        """One that dies at this step; 0: one that lives."""
        self.process.stdin.write(f"{step}\n".encode())
        await self.say("listens")

    async def say(self, word: str) -> None:
        async with asyncio.timeout(30):
            assert (await self.process.stdout.readline()).decode().strip() == word


@asynccontextmanager
async def services(directory: Path, database: str, port: int) -> AsyncIterator[Services]:
    for name, text in FILES.items():
        (directory / name).write_text(text)
    words = [sys.executable, str(Path(__file__).with_name("dying.py")), str(directory), database, str(port)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe)
    try:
        yield Services(process)
    finally:
        process.stdin.close()
        await process.wait()


@asynccontextmanager
async def gateway(directory: Path, port: int, clocks: Clocks, **route: Any) -> AsyncIterator[House]:
    """As the page configures it, in front of this port."""
    upstream = SETTINGS["upstream"] | {"url": f"http://127.0.0.1:{port}"}
    changes = {"match": {"path": "/v1/charges"}, **route}
    async with house(
        sqlite_store(directory), directory, surround=clocks.surround, upstream=upstream, route=changes
    ) as home:
        home.gateway.parts.stop_upkeep()
        yield home


async def charge(home: House, key: str) -> tuple[int, str | None, str]:
    response = await home.send(key, target="/v1/charges")
    return *status_of(response), response.body.decode()


async def at_every_step(dying: Services, home: House, keys: list[str]) -> int:
    """Have a service die at each step of a charge; how many charges the last one survived."""
    for step in range(1, STEPS_MAX):
        await dying.begin(step)
        survived = await until_it_dies(home, keys)
        await dying.say("dead")
        if survived:
            assert step > 10
            return survived
    raise AssertionError("a charge has no end")


async def until_it_dies(home: House, keys: list[str]) -> int:
    """Charge under new keys, which are added, until the service dies; how many it survived."""
    for survived in range(STEPS_MAX):
        keys.append(f"order-{len(keys)}")
        status, verdict, _ = await charge(home, keys[-1])
        if verdict != "stored":
            assert (status, verdict) == (502, "in-doubt")
            return survived
    raise AssertionError("it does not die")


@pytest.mark.parametrize("recovery", ["probe", pytest.param("resend", marks=pytest.mark.full)])
async def test_a_service_that_dies_at_every_step(database: str, recovery: str, tmp_path: Path) -> None:
    """No doubt is left, each charge is there once, and each caller has the answer that is written beside it."""
    await run(database, FILES["tables.sql"])
    clocks, port = Clocks(tmp_path), free_port()
    chosen = SETTINGS["recovery"] if recovery == "probe" else recovery
    async with gateway(tmp_path, port, clocks, recovery=chosen) as home, services(tmp_path, database, port) as dying:
        keys: list[str] = []
        survived = await at_every_step(dying, home, keys)
        ((charged,),) = await run(database, "SELECT count(*) FROM charge")
        assert survived + 1 < charged < len(keys) - 5, "some died before their effect was there, and some after it"
        await dying.begin(0)
        clocks.pass_time(SETTLED_SECONDS, home)
        answers = await asyncio.gather(*(charge(home, key) for key in keys))
        assert {status for status, _, _ in answers} == {201}
        assert {verdict for _, verdict, _ in answers} <= {"stored", "replayed", "recovered"}
        rows = await run(database, "SELECT answer FROM operation JOIN charge ON charge.operation = operation.id")
        assert sorted(answer for (answer,) in rows) == sorted(body for _, _, body in answers)
        assert await run(database, "SELECT count(*) FROM operation") == [(len(keys),)]
        assert await run(database, "SELECT count(*) FROM charge") == [(len(keys),)]
        metrics = (await home.status("/metrics")).body
        assert b'idempotency_in_doubt{route="charge"} 0.0' in metrics


@pytest.mark.parametrize("ending", ["COMMIT", "ROLLBACK"])
async def test_a_probe_waits_for_a_transaction_that_is_open(postgres_url: str, ending: str, tmp_path: Path) -> None:
    """It says neither yes nor no beside one, and leaves nothing behind."""
    await run(postgres_url, FILES["tables.sql"])
    (tmp_path / "on_postgres.py").write_text(FILES["on_postgres.py"])
    recipe = load(str(tmp_path), "on_postgres")
    slow = await asyncpg.connect(postgres_url)
    async with asyncpg.create_pool(postgres_url, min_size=1, max_size=1) as pool:
        await slow.execute("BEGIN")
        assert await slow.fetchval(recipe.TAKE, "op-1", 201, "{}") == "op-1"
        asked = asyncio.create_task(recipe.find(pool, "op-1"))

        async def waits() -> bool:
            return bool(await slow.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"))

        await eventually(waits)
        assert not asked.done()
        await slow.execute(ending)
        found = await asked
        assert found == ((201, "{}") if ending == "COMMIT" else None)
        assert await recipe.find(pool, "op-2") is None
    await slow.close()
    assert await run(postgres_url, "SELECT count(*) FROM operation") == [(int(ending == "COMMIT"),)]
