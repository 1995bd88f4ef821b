"""The commands on the configuration of a house: in a thread of the test's process, or as a process of their own.

A process takes more than a second to begin, and what it adds is the exit code and the end of the streams; a few tests
ask for one, the others call the same `main` with the same words.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.cli import main
from tests.support.house import House, config_text, house, sqlite_store
from tests.support.upstream import Answer, Ending

ROOT = Path(__file__).parents[2]
COMMAND_SECONDS = 60.0

CUT = Answer(bytes_max=0, ending=Ending.RESET)
"""The effect happens, and not a byte of the response comes."""
CREATED = b"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nLocation: /charges/1\r\n\r\n" + b'{"id":1}'


@dataclass(frozen=True, slots=True)
class Said:
    """What a command said, and how it ended."""

    code: int
    out: str
    err: str

    def rows(self) -> list[dict[str, Any]]:
        """JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]


class Shell:
    """`await shell("inspect", "--list")` runs the program with this configuration."""

    def __init__(self, directory: Path, text: str) -> None:
        self.directory = directory
        self.config = directory / "operator.yaml"
        self.config.write_text(text)

    async def __call__(self, command: str, *arguments: object, stdin: bytes = b"") -> Said:
        words = [command, "--config", str(self.config), *map(str, arguments)]
        async with asyncio.timeout(COMMAND_SECONDS):
            return await asyncio.to_thread(_said_here, words, stdin)

    async def spawned(self, command: str, *arguments: object, stdin: bytes = b"") -> Said:
        """The same as a process."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway", command, "--config", str(self.config), *map(str, arguments),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd=ROOT,
        )  # fmt: skip
        try:
            async with asyncio.timeout(COMMAND_SECONDS):
                out, err = await process.communicate(stdin)
        except BaseException:
            process.kill()
            await process.wait()
            raise
        assert process.returncode is not None
        assert b"Traceback" not in err, err.decode()
        return Said(process.returncode, out.decode(), err.decode())

    def file(self, name: str, data: bytes) -> Path:
        """A file of this shell's own."""
        path = self.directory / name
        path.write_bytes(data)
        return path


def _said_here(words: list[str], stdin: bytes) -> Said:
    out, err = io.StringIO(), io.StringIO()
    was = sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin))
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = main(words)
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 1
    finally:
        sys.stdin = was
    return Said(code, out.getvalue(), err.getvalue())


def shell_for(running: House, store: dict[str, Any], directory: Path, /, **changes: Any) -> Shell:
    """A shell beside a house, on the same configuration but for the ports."""
    return Shell(directory, config_text(running.upstream.url, store, directory, **changes))


@asynccontextmanager
async def shelled(store: dict[str, Any], directory: Path, /, **changes: Any) -> AsyncIterator[tuple[House, Shell]]:
    """A house, and a shell beside it."""
    async with house(store, directory, **changes) as running:
        yield running, shell_for(running, store, directory, **changes)


def lone_shell(directory: Path, store: dict[str, Any] | None = None) -> Shell:
    """A shell on a host where no gateway runs; without a store section, on SQLite."""
    return Shell(directory, config_text("http://127.0.0.1:1", store or sqlite_store(directory), directory))


async def doubt(running: House, key: str = "k1") -> str:
    """Bring an operation in doubt by a cut of the upstream's response; returns its id."""
    running.upstream.on("/charges", CUT)
    response = await running.send(key)
    assert (response.status, response.header("Idempotency-Status")) == (502, "in-doubt")
    running.upstream.on("/charges", Answer(201, body=b"run"))
    operation_id = response.json()["operation_id"]
    assert isinstance(operation_id, str)
    return operation_id
