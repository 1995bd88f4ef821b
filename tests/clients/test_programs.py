"""The programs that callers are given, run as they stand in the documentation."""

from __future__ import annotations

import asyncio
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from tests.clients.border import PATH, Border, api, charges
from tests.clients.programs import LEFT_OUT, PROGRAMS, TEXTS, Program, untested, write_all
from tests.support.house import House
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
    """The programs of the pages."""
    made = Workshop(tmp_path_factory.mktemp("programs"), free_port())
    write_all(made.directory, made.port)
    return made


async def start(program: Program, workshop: Workshop, home: Path, *intents: str) -> asyncio.subprocess.Process:
    """Run it, with its keys in `home`."""
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
    """Where nobody knows, it repeats nothing, goes on with no other intent, and says so."""
    async with api(tmp_path, "hold", port=workshop.port) as (home, _):
        process = await start(program, workshop, tmp_path, *INTENTS)
        output, errors = await process.communicate()
        assert process.returncode not in (0, None)
        assert output == b""
        assert b"doubt" in errors.lower()
        assert len(charges(home)) == 1
        scraped = (await home.status("/metrics")).body
        assert b'idempotency_requests_total{route="charge",verdict="in-doubt"} 1.0' in scraped


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


# -- over many intents -------------------------------------------------------------------------------------------------
#
# Responses are lost on both sides of the gateway, and the caller is killed again and again.

_TOGETHER = 3
"""So many intents has each run of a program."""
_KILLS_MAX = 2
"""So often is each run killed, when it has lost a response, and started again."""
_SECONDS = {"probe": 40.0, "hold": 20.0}
_PAUSES = re.compile(r"\b1(,?) 2(,?) 4(,?) 8(,?) 16(,?) 32\b")
_SHORT = r"0.05\1 0.1\2 0.2\3 0.4\4 0.8\5 1.6"


@dataclass
class Seen:
    """What became of the intents of one program. Responses are lost on the way to the gateway, or to the caller.
    Attempts are the requests that reached the gateway."""

    intents: int = 0
    answered: int = 0
    doubts: int = 0
    effects: int = 0
    attempts: int = 0
    lost_by_service: int = 0
    lost_to_caller: int = 0
    kills: int = 0


async def lose(program: Program, directory: Path, recovery: Literal["probe", "hold"], seconds: float) -> Seen:
    """Have it charge for so long, a few intents at a time, each of them until it is answered or in doubt."""
    workshop = Workshop(directory, free_port())
    await asyncio.to_thread(write, directory, workshop.port)
    seen, until = Seen(), time.monotonic() + seconds
    async with api(directory, recovery, port=workshop.port) as (home, border):
        border.every = 3
        while time.monotonic() < until:
            wanted = 1 if recovery == "hold" else _TOGETHER
            intents = [f"order-{seen.intents + number}" for number in range(wanted)]
            seen.intents += wanted
            before = len(charges(home))
            code, errors = await ended(program, workshop, border, seen, intents)
            if code == 0:
                seen.answered += wanted
            else:
                assert recovery == "hold", errors
                assert "doubt" in errors.lower(), errors
                seen.doubts += 1
                # Asked again, it says the same, and nothing happens.
                code, errors = await ended(program, workshop, border, seen, intents)
                assert (code != 0, "doubt" in errors.lower()) == (True, True), errors
            assert len(charges(home)) == before + wanted
        seen.lost_to_caller = border.losses
        await count(home, seen)
    return seen


def write(directory: Path, port: int) -> None:
    """The programs with pauses that leave a minute for many intents."""
    write_all(directory, port)
    for name in TEXTS:
        file = directory / name
        file.write_text(_PAUSES.sub(_SHORT, file.read_text()))


async def ended(
    program: Program, workshop: Workshop, border: Border, seen: Seen, intents: list[str]
) -> tuple[int | None, str]:
    """Its exit code and its errors. Where it lost a response it is killed before it tries again, and started, as it is
    where it gave up and says to go on later."""
    kills = 0
    while True:
        border.lost_one.clear()
        process = await start(program, workshop, workshop.directory, *intents)
        said = asyncio.create_task(process.communicate())
        lost = asyncio.create_task(border.lost_one.wait())
        await asyncio.wait((said, lost), return_when=asyncio.FIRST_COMPLETED)
        is_killed = kills < _KILLS_MAX and not said.done()
        if is_killed:
            process.kill()
            kills += 1
            seen.kills += 1
        lost.cancel()
        _, errors = await said
        if not is_killed and b"is open" not in errors:
            return process.returncode, errors.decode()


async def count(home: House, seen: Seen) -> None:
    """What the service and the gateway have of it."""
    sent = charges(home)
    assert len(sent) == len(set(sent))
    seen.effects = len(sent)
    # As the service is told to.
    seen.lost_by_service = -(-seen.effects // 3)
    for line in (await home.status("/metrics")).body.decode().splitlines():
        if line.startswith("idempotency_requests_total"):
            seen.attempts += int(float(line.rpartition(" ")[2]))


@pytest.mark.full
@pytest.mark.parametrize("recovery", ["probe", "hold"])
async def test_a_minute_of_losses(recovery: Literal["probe", "hold"], tmp_path: Path) -> None:
    """Each of the programs, side by side. Where nobody is asked, what the service lost is in doubt, and stays so."""
    directories = [tmp_path / each.file for each in PROGRAMS]
    for each in directories:
        each.mkdir()
    runs = [lose(each, place, recovery, _SECONDS[recovery]) for each, place in zip(PROGRAMS, directories, strict=True)]
    for program, seen in zip(PROGRAMS, await asyncio.gather(*runs), strict=True):
        print(recovery, program.file, seen)
        assert seen.effects == seen.intents == seen.answered + seen.doubts
        assert seen.doubts == (seen.lost_by_service if recovery == "hold" else 0)
        assert min(seen.kills, seen.lost_to_caller, seen.lost_by_service) > 0
