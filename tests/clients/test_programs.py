"""The programs that callers are given, run as they stand in the documentation."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.clients.border import PATH, api, charges
from tests.clients.programs import LEFT_OUT, PROGRAMS, TEXTS, Program, untested, write_all
from tests.support.ports import free_port

INTENTS = tuple(f"order-{number}" for number in range(1, 7))
program_of = pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.file)


@dataclass(frozen=True, slots=True)
class Workshop:
    """Where the programs are, all of them built, and the port that they call."""

    directory: Path
    port: int


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    made = Workshop(tmp_path_factory.mktemp("programs"), free_port())
    write_all(made.directory, made.port)
    return made


async def start(program: Program, workshop: Workshop, home: Path, *intents: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *program.command(workshop.directory),
        *intents,
        cwd=home,
        env={**os.environ, "NO_PROXY": "127.0.0.1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


@program_of
async def test_one_effect_for_each_intent(program: Program, workshop: Workshop, tmp_path: Path) -> None:
    """Of the responses a third is lost, one more on its way to the caller, who is killed between two tries."""
    async with api(tmp_path, "probe", port=workshop.port) as (home, border):
        border.after = 9
        killed = await start(program, workshop, tmp_path, *INTENTS)
        async with asyncio.timeout(30):
            await border.told.wait()
        killed.kill()
        await killed.communicate()
        border.after, border.lost = 0, 1
        again = await start(program, workshop, tmp_path, *INTENTS)
        output, errors = await again.communicate()
        assert again.returncode == 0, errors.decode()
        answers = [line.split() for line in output.decode().splitlines()]
        assert [intent for intent, _ in answers] == list(INTENTS)
        assert {status for _, status in answers} == {"200", "201"}
        assert len(charges(home)) == len(set(charges(home))) == len(INTENTS)


@program_of
async def test_doubt_stops_it(program: Program, workshop: Workshop, tmp_path: Path) -> None:
    """Where nobody knows, it repeats nothing, goes on with no other intent, and says so; asked again, too."""
    async with api(tmp_path, "hold", port=workshop.port) as (home, _):
        for _ in range(2):
            process = await start(program, workshop, tmp_path, *INTENTS)
            output, errors = await process.communicate()
            assert process.returncode not in (0, None)
            assert output == b""
            assert b"doubt" in errors.lower()
        assert len(charges(home)) == 1
        scraped = (await home.status("/metrics")).body
        assert b'idempotency_requests_total{route="charge",verdict="in-doubt"} 2.0' in scraped


def test_every_program_is_run() -> None:
    """Each of the pages, unless the machine has no such language, which is said where the tests begin."""
    assert untested() == set()
    assert {each.file for each in PROGRAMS} >= {
        "charge_httpx.py",
        "charge_requests.py",
        "charge_aiohttp.py",
        "charge.sh",
    }
    assert all(each.missing() for each in LEFT_OUT)
    assert all(PATH in text for name, text in TEXTS.items() if not name.startswith("once."))
