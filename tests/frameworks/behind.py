"""What real frameworks read as a protected path, told by themselves, and what of it passes the gateway: nothing."""

from __future__ import annotations

import asyncio
import random
import re
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from gateway.app.gateway import Gateway, environment_of
from gateway.config import parse
from tests.http.gateway.test_spellings import SPELLINGS, a_route
from tests.support import http
from tests.support.eventually import eventually
from tests.support.house import BODY, JSON, config_text, sqlite_store
from tests.support.ports import free_port
from tests.support.processes import END_SECONDS

NODE: Final = Path(__file__).with_name("node")
MODULES: Final = Path(sys.prefix) / "frameworks" / "node"
_PLACE: Final = re.compile("(?:https?://[^/]*)?/v1/payments/?")
_PIECES: Final = (
    "/", "//", ".json", ".", ";x", "%2f", "%20", "%3f", "%23", "%00", "\\", "%5c", "..", "/..", "/x/..", "./",
)  # fmt: skip
CHANCES: Final = 1500

# Each framework, and the row of the documentation that is about it.
FRAMEWORKS: Final = {
    "django": "Django REST framework",
    "flask": "Flask, Werkzeug",
    "fastapi": "FastAPI, Starlette",
    "aiohttp": "aiohttp",
    "express": "Express, NestJS, Koa",
    "fastify": "Fastify, find-my-way",
}


@asynccontextmanager
async def served(name: str) -> AsyncIterator[int]:
    """The service in this framework, in a process of its own."""
    port = free_port()
    command = [sys.executable, "-m", "tests.frameworks.services", name, str(port)]
    if name in ("express", "fastify"):
        command = ["node", str(NODE / "service.js"), str(MODULES), name, str(port)]
    process = await asyncio.create_subprocess_exec(*command)

    async def answers() -> bool:
        assert process.returncode is None
        try:
            return is_handled(await ask(port, "/v1/payments"))
        except OSError:
            return False

    try:
        await eventually(answers, 30.0, name)
        yield port
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), END_SECONDS)


async def ask(port: int, target: str, *more: tuple[str, str]) -> http.Response:
    return await http.request(port, "POST", target, [JSON, ("Connection", "close"), *more], BODY)


def is_handled(response: http.Response) -> bool:
    """Whether the framework took the path for the one of the route, or sends its client there."""
    location = response.header("Location") or ""
    return (
        response.header("X-Handled") is not None or re.search("^(https?://[^/]*)?/v1/payments/?$", location) is not None
    )


def by_chance(seed: int) -> Iterator[str]:
    """Paths that are made of others by what has made some of them."""
    source = random.Random(seed)
    known = [path for paths in SPELLINGS.values() for path in paths]
    for _ in range(CHANCES):
        path = source.choice(known if source.random() < 0.4 else ["/v1/payments"])
        for _ in range(source.randint(1, 3)):
            place = source.randint(1, len(path))
            match source.randrange(4):
                case 0:
                    path = path[:place] + source.choice(_PIECES) + path[place:]
                case 1 if place < len(path) and path[place].isalnum():
                    path = f"{path[:place]}%{ord(path[place]):02x}{path[place + 1 :]}"
                case 2:
                    path = path[:place] + path[place:].swapcase()
                case _:
                    path += source.choice(_PIECES)
        yield path


@pytest.mark.parametrize("name", FRAMEWORKS)
async def test_nothing_that_it_reads_as_the_route_passes(tmp_path: Path, name: str) -> None:
    """It reads what its row says, and whatever it reads is matched or refused."""
    route: dict[str, Any] = a_route("payment", "/v1/payments")
    async with served(name) as port:
        row = {path: is_handled(await ask(port, path)) for path in SPELLINGS[FRAMEWORKS[name]]}
        assert row == dict.fromkeys(row, True)
        config = parse(config_text(f"http://127.0.0.1:{port}", sqlite_store(tmp_path), tmp_path, routes=[route]))
        gateway = Gateway(config, environment=environment_of(config))
        await gateway.start()
        try:
            caller = (("Idempotency-Key", "k"), ("X-Tenant", "t"))
            assert is_handled(await ask(gateway.address[1], "/v1/payments", *caller))
            found = 0
            for path in [*(each for paths in SPELLINGS.values() for each in paths), *by_chance(7)]:
                response = await ask(gateway.address[1], path, *caller)
                verdict = response.header("Idempotency-Status")
                assert not is_handled(response) or verdict == "replayed", path
                found += verdict is not None
            assert found > CHANCES / 2
        finally:
            await gateway.stop()
