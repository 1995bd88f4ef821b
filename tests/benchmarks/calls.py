"""How many calls of the gateway's own functions a request is, in how many modules, and how often one leads to another.

A gateway on SQLite in this process, with one request at a time. Calls are counted in all of its threads, a coroutine
that goes on after a wait as another one; modules in that of the event loop. The figures of two runs are the same but
for the timers that a request may meet.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise, repeat
from pathlib import Path
from types import FrameType
from typing import Any, Final

import uvloop

import gateway
from gateway.app.gateway import Gateway
from gateway.config import parse
from tests.benchmarks.load import Shape, new_keys
from tests.benchmarks.place import Place
from tests.benchmarks.subject import PROTECTED, UNPROTECTED
from tests.benchmarks.table import markdown
from tests.support.house import config_text

_HOME: Final = str(Path(gateway.__file__).parent)
# Until connections are open, and after a response for what is done behind it.
_WARM_REQUESTS: Final = 20
_QUIET_SECONDS: Final = 0.02


class _Calls:
    """The module of each call since `begin`, in order: of all threads, and of the event loop's."""

    def __init__(self) -> None:
        self._loops = threading.get_ident()
        self.begin()

    def begin(self) -> None:
        self.modules: list[str] = []
        self.modules_of_loop: list[str] = []

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        module = frame.f_code.co_filename
        if event == "call" and module.startswith(_HOME):
            self.modules.append(module)
            if threading.get_ident() == self._loops:
                self.modules_of_loop.append(module)

    def figures(self) -> tuple[int, int, int]:
        """Calls, modules, and changes of module."""
        of_loop = self.modules_of_loop
        changes = sum(one != other for one, other in pairwise(of_loop))
        return len(self.modules), len(set(of_loop)), changes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this measurement."""
    parser.add_argument("--requests", type=int, default=60, help="of each kind")


def run(place: Place, asked: argparse.Namespace) -> bool:
    """Count, and print."""
    rows = uvloop.run(_counted(place, asked.requests))
    names = "one request on SQLite", "calls", "modules", "changes of module"
    print(f"\n{markdown(names, rows)}", flush=True)
    files = list(Path(_HOME).rglob("*.py"))
    lines = [line.strip() for file in files for line in file.read_text().splitlines()]
    print(f"\n{len(files)} modules of {len(lines):,} lines", flush=True)
    return True


async def _counted(place: Place, requests: int) -> list[tuple[str, ...]]:
    calls = _Calls()
    threading.setprofile(calls)
    url = f"http://127.0.0.1:{place.service.port}"
    running = Gateway(parse(config_text(url, place.sqlite(), place.directory / "calls", log={"requests": "none"})))
    await running.start()
    reader, writer = await asyncio.open_connection(*running.address)

    async def figures(path: bytes, keys: Iterator[bytes]) -> tuple[int, int, int]:
        before, after = Shape(path, 200, None).parts()
        found = []
        for number in range(_WARM_REQUESTS + requests):
            calls.begin()
            writer.write(before + next(keys) + after)
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]))
            await asyncio.sleep(_QUIET_SECONDS)
            if number >= _WARM_REQUESTS:
                found.append(calls.figures())
        counts, modules, changes = (round(statistics.median(each)) for each in zip(*found, strict=True))
        return counts, modules, changes

    keys = new_keys()
    sys.setprofile(calls)
    try:
        measured = {
            "new key": await figures(PROTECTED, keys),
            "replay, in the worker that answered": await figures(PROTECTED, repeat(next(keys))),
            "passed through, unprotected": await figures(UNPROTECTED, keys),
        }
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
        writer.close()
        await running.stop()
    return [(name, *map(str, each)) for name, each in measured.items()]
