"""The service of docs/configure/one-transaction.md, in processes that die where they are told to.

    python tests/docs/dying.py DIRECTORY DATABASE PORT

DIRECTORY has the files of the page. Each line of the input is the number of a step, at which a service that is begun
now kills itself. A line of a function `charge` is a step, and so is each of its returns: an await that has sent
something to the database returns, too. 0 is a service that lives until the input ends. One line of output says that it
listens, the next one that it is dead.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import asyncpg
from aiohttp import web


class Death:
    """Kills the process at its `left`-th step from now."""

    def __init__(self, directory: str, left: int) -> None:
        self.directory = directory
        self.left = left

    def __call__(self, frame: FrameType, event: str, _: object) -> Death | None:
        if frame.f_code.co_name != "charge" or not frame.f_code.co_filename.startswith(self.directory):
            return None
        if event in ("line", "return"):
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return self


async def serve(directory: str, url: str, port: int, step: int) -> None:
    service, database = load(directory, "service"), load(directory, f"on_{url.partition(':')[0].removesuffix('ql')}")
    db: Any
    if url.startswith("sqlite:"):
        import sqlite3  # noqa: TID251  no other library for SQLite is in this process

        db = sqlite3.connect(url.removeprefix("sqlite:"), isolation_level=None)
    else:
        db = await asyncpg.create_pool(url, min_size=1, max_size=2)
    runner = web.AppRunner(service.service(database, db))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    print("listens", flush=True)
    if step:
        sys.settrace(Death(directory, step))
    await asyncio.Event().wait()


def load(directory: str, name: str) -> ModuleType:
    """A file of the page, whose lines are known by its path."""
    path = Path(directory, f"{name}.py")
    module = ModuleType(name)
    exec(compile(path.read_text("utf-8"), str(path), "exec"), vars(module))
    return module


def main(directory: str, url: str, port: str) -> None:
    """Fork a service for each line: that takes a hundredth of what a new interpreter does."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            asyncio.run(serve(directory, url, int(port), int(line)))
        if int(line) == 0:
            sys.stdin.read()
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        print("dead", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
