"""What is measured: a proxy in processes of its own, pinned to one core, and what the system says of them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.support.ports import free_port
from tests.support.processes import descendants, end, spawn

_ROOT = Path(__file__).parents[2]
_TICKS = os.sysconf("SC_CLK_TCK")
_START_SECONDS = 30.0
SERVING_CORE = 0
OTHER_CORE = max(os.sched_getaffinity(0))
ROUTE = "charges"
PROTECTED, UNPROTECTED = b"/charges", b"/other"


@contextmanager
def pinned(core: int) -> Iterator[None]:
    """Processes started in here run on that core alone."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Program:
    """A program that listens on `port`, from `start` to `stop`."""

    def __init__(self, name: str, command: list[str], port: int, directory: Path, core: int) -> None:
        self.name = name
        self.port = port
        self._command = command
        self._log = directory / f"{name}.log"
        self._core = core
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and return when it listens."""
        with pinned(self._core):
            self._process = spawn(self._command, output=self._log, directory=_ROOT)
        deadline = time.monotonic() + _START_SECONDS
        while not _listens(self.port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"{self.name} does not listen:\n{self._log.read_text(errors='replace')}")
            time.sleep(0.02)

    def stop(self) -> None:
        """End it at once."""
        process, self._process = self._process, None
        if process is not None:
            end(process, signal.SIGKILL)

    @property
    def _pids(self) -> list[int]:
        assert self._process is not None
        return [self._process.pid, *descendants(self._process.pid)]

    def cpu_seconds(self) -> float:
        """User and system time of all its processes and threads so far."""
        return sum(_cpu_ticks(pid) for pid in self._pids) / _TICKS

    def rss_bytes(self) -> int:
        """What it holds in memory now."""
        return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self._pids) * 4096

    def written_bytes(self) -> int:
        """What it caused to be written to disks so far; 0 where the system does not tell."""
        total = 0
        for pid in self._pids:
            try:
                lines = Path(f"/proc/{pid}/io").read_text().splitlines()
            except PermissionError:
                return 0
            total += sum(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))
        return total


def python(name: str, module: str, arguments: list[str], port: int, directory: Path, core: int) -> Program:
    """A module of ours as a program."""
    return Program(name, [sys.executable, "-m", module, str(port), *arguments], port, directory, core)


def gateway(name: str, store: Mapping[str, Any], upstream_port: int, directory: Path, service: str) -> Program:
    """A gateway with that store. Its log of requests is off, as is the baseline's."""
    home = directory / name
    home.mkdir()
    port = free_port()
    config = {
        "service": service,
        "listen": f"127.0.0.1:{port}",
        "status": {"listen": f"127.0.0.1:{free_port()}"},
        "state_dir": str(home / "state"),
        "upstream": {"url": f"http://127.0.0.1:{upstream_port}"},
        "store": dict(store),
        "limits": {"max_in_flight": 10_000},
        "log": {"requests": "none"},
        "routes": [
            {
                "name": ROUTE,
                "match": {"path": PROTECTED.decode()},
                "key": {"header": "Idempotency-Key", "required": True},
                "scope": {"header": "X-Tenant", "from": "any"},
                "outcome": {"preset": "standard"},
                "response": {"max_stored_bytes": "2MiB"},
            }
        ],
    }
    file = home / "gateway.yaml"
    file.write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "gateway", "run", "--config", str(file)]
    return Program(name, command, port, directory, SERVING_CORE)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return False
    return True


def _cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
