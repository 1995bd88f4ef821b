"""The real program as a child process: configured by a file, ready when its status port says so, killed at will."""

from __future__ import annotations

import asyncio
import itertools
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import yaml

from tests.support import http, nursery
from tests.support.eventually import eventually
from tests.support.ports import free_port
from tests.support.processes import spawn
from tests.support.server_process import Launched

START_SECONDS = 60.0
STOP_SECONDS = 60.0
_ROOT = Path(__file__).parents[2]
_commands = itertools.count(1)


class GatewayProcess(Launched):
    """`async with GatewayProcess(config, directory) as gateway`: `python -m gateway run` on loopback, or another
    command that runs until it is stopped. `root` is the directory of the program's package.

    `listen` and `status.listen` are chosen here. The process may be ended and started again; it keeps its ports, its
    configuration and its state directory, `directory / "state"` unless the configuration names another.
    """

    end_seconds = STOP_SECONDS

    def __init__(
        self,
        config: Mapping[str, Any],
        directory: Path,
        *,
        environment: Mapping[str, str] | None = None,
        command: str = "run",
        root: Path = _ROOT,
    ) -> None:
        self.port = free_port()
        self.root = root
        self._command = command
        self.status_port = free_port()
        directory.mkdir(parents=True, exist_ok=True)
        self.config_file = directory / "gateway.yaml"
        self.log = directory / "gateway.log"
        self._environment = {**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})}
        whole = {
            "state_dir": str(directory / "state"),
            **config,
            "listen": f"127.0.0.1:{self.port}",
            "status": {"listen": f"127.0.0.1:{self.status_port}"},
        }
        self.config_file.write_text(yaml.safe_dump(whole, sort_keys=False))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.kill()

    async def start(self) -> None:
        """Start the program and return when `/readyz` answers 200."""
        self.launch()
        try:
            await self.wait_ready()
        except BaseException:
            self.kill()
            raise

    def _spawned(self) -> subprocess.Popen[bytes] | nursery.Forked:
        return self._started([self._command], self.log, self._environment)

    def launch_on_terminal(self) -> int:
        """Start it on a terminal of its own; it hangs up when the descriptor that is returned is closed."""
        terminal, line = pty.openpty()
        try:
            self._process = self._started([self._command], self.log, self._environment, line)
        except BaseException:
            os.close(terminal)
            raise
        finally:
            os.close(line)
        return terminal

    def _started(
        self, words: Sequence[str], output: Path, environment: Mapping[str, str], terminal: int | None = None
    ) -> subprocess.Popen[bytes] | nursery.Forked:
        arguments = [words[0], "--config", str(self.config_file), *words[1:]]
        forked = nursery.fork(arguments, output, environment) if terminal is None and self.root == _ROOT else None
        command = [sys.executable, "-m", "gateway", *arguments]
        return forked or spawn(command, output=output, directory=self.root, environment=environment, terminal=terminal)

    async def wait_ready(self, deadline_seconds: float = START_SECONDS) -> None:
        """Return when `/readyz` answers 200; an AssertionError with the program's output when it does not."""
        try:
            await eventually(self._is_ready, deadline_seconds, "/readyz answers 200")
        except AssertionError as error:
            raise AssertionError(f"the gateway is not ready: {error}\n{self.output()}") from None

    async def command(self, *words: str) -> tuple[int, str]:
        """What a command with this configuration returns, and everything that it prints."""
        output = self.config_file.with_name(f"command-{next(_commands)}.log")
        process = self._started(words, output, os.environ)
        code = await asyncio.to_thread(process.wait, STOP_SECONDS)
        return code, output.read_text(errors="replace")

    async def status(self, target: str) -> http.Response:
        return await http.request(self.status_port, "GET", target)

    async def metrics(self) -> str:
        return (await self.status("/metrics")).body.decode()

    async def metric(self, name: str, missing: float | None = None) -> float:
        """The value of a metric, with its labels as they are written; an AssertionError if it may not be missing."""
        lines = (await self.metrics()).splitlines()
        found = [float(line.split()[-1]) for line in lines if line.startswith(f"{name} ")]
        assert found or missing is not None, name
        return found[0] if found else missing or 0.0

    def terminate(self) -> int:
        """SIGTERM, and its exit status once it has drained; see `ask_to_stop` for what happens meanwhile."""
        return self._end(signal.SIGTERM)

    def ask_to_stop(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    async def wait_exit(self, deadline_seconds: float = STOP_SECONDS) -> int:
        """Its exit status, once it has ended by itself or after `ask_to_stop`."""
        process = self._process
        assert process is not None, "the gateway is not running"
        await eventually(lambda: process.poll() is not None, deadline_seconds, "the gateway ends")
        self._process = None
        return process.wait()

    def output(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    async def _is_ready(self) -> bool:
        assert self._process is not None, "it was not started"
        assert self._process.poll() is None, f"it ended with {self._process.returncode}"
        try:
            return (await self.status("/readyz")).status == 200
        except OSError:
            return False
