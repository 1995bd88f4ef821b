"""The demonstration as a child process, as somebody starts it in a terminal."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from tests.support import http
from tests.support.ports import free_port
from tests.support.processes import run, spawn
from tests.support.server_process import ServerProcess

_ROOT = Path(__file__).parents[2]


class DemoProcess(ServerProcess):
    """`with DemoProcess(directory, *arguments) as demo`: `demo ARGUMENTS` on a port of its own, ready to be called.

    What it keeps for as long as it runs is below its directory.
    """

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.port = free_port()
        self._arguments = arguments
        self.directory, self.log = directory / "demo", directory / "demo.log"
        self.directory.mkdir()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _spawned(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "TMPDIR": str(self.directory)}
        command = program("demo", "--port", str(self.port), *self._arguments)
        return spawn(command, output=self.log, directory=_ROOT, environment=environment)

    def _serves(self) -> bool:
        return "Ctrl-C stops it" in self.output

    @property
    def output(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    @property
    def status_port(self) -> int:
        found = re.search(r"metrics are on http://127\.0\.0\.1:(\d+)", self.output)
        assert found, self.output
        return int(found[1])

    @property
    def console(self) -> tuple[int, str]:
        """The port of its console, on loopback, and the token for that."""
        found = re.search(
            r"console is on http://127\.0\.0\.1:(\d+)/ui/ - sign in with the token (\w{32})\n", self.output
        )
        assert found, self.output
        return int(found[1]), found[2]


def program(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "gateway", *arguments]


def run_program(*arguments: str) -> str:
    """Run the program to its end and return what it said; raises RuntimeError with that text when it fails."""
    return run(program(*arguments), directory=_ROOT)


# A line that begins with curl, and those that it continues on.
_COMMAND = re.compile(r"^ *(curl (?:[^\n]*\\\n)*[^\n]*)$", re.MULTILINE)


def curl_lines(text: str) -> list[str]:
    return _COMMAND.findall(text)


async def curl(line: str, port: int) -> http.Response:
    """Send what the command sends, to this port of loopback instead of its own."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("-i", action="store_true")
    parser.add_argument("-H", action="append", default=[], dest="headers")
    parser.add_argument("-X", dest="method")
    parser.add_argument("-d", action="append", default=[], dest="data")
    parser.add_argument("url")
    asked = parser.parse_args(shlex.split(line.replace("\\\n", " "))[1:])
    url = urlsplit(asked.url)
    assert url.hostname in ("127.0.0.1", "localhost"), line
    headers = [(name, value.strip()) for name, _, value in (header.partition(":") for header in asked.headers)]
    if asked.data and not any(name.lower() == "content-type" for name, _ in headers):
        headers.append(("Content-Type", "application/x-www-form-urlencoded"))
    method = asked.method or ("POST" if asked.data else "GET")
    target = f"{url.path}?{url.query}" if url.query else url.path
    return await http.request(port, method, target, headers, "&".join(asked.data).encode())
