"""What is measured: a proxy in processes of its own, pinned to one core, and what the system and it say of that."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.support.ports import free_port
from tests.support.processes import descendants, end, pause, resume, spawn

_ROOT = Path(__file__).parents[2]
_START_SECONDS = 30.0
SERVING_CORE = 0
OTHER_CORE = max(os.sched_getaffinity(0))
ROUTE = "charges"
PROTECTED, UNPROTECTED = b"/charges", b"/other"


@contextmanager
def pinned(*cores: int) -> Iterator[None]:
    """Processes started in here run on these cores alone."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Program:
    """A program that listens on `port`, from `start` to `stop`."""

    def __init__(self, name: str, command: list[str], port: int, directory: Path, cores: set[int]) -> None:
        self.name = name
        self.port = port
        self._command = command
        self.log = directory / f"{name}.log"
        self._cores = cores
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and return when it listens."""
        with pinned(*self._cores):
            self._process = spawn(self._command, output=self.log, directory=_ROOT)
        deadline = time.monotonic() + _START_SECONDS
        while not _listens(self.port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"{self.name} does not listen:\n{self.log.read_text(errors='replace')}")
            time.sleep(0.02)

    def stop(self) -> None:
        """End it at once."""
        process, self._process = self._process, None
        if process is not None:
            end(process, signal.SIGKILL)

    def terminate(self) -> float:
        """Have it stop in order; how many seconds that took."""
        process, self._process = self._process, None
        assert process is not None
        began = time.monotonic()
        end(process, signal.SIGTERM, _START_SECONDS)
        return time.monotonic() - began

    def freeze(self) -> None:
        """Let it do nothing until `thaw`."""
        assert self._process is not None
        pause(self._process.pid)

    def thaw(self) -> None:
        """Undo `freeze`."""
        assert self._process is not None
        resume(self._process.pid)

    def tell(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    @property
    def _pids(self) -> list[int]:
        assert self._process is not None
        return [self._process.pid, *descendants(self._process.pid)]

    def cpu_seconds(self) -> float:
        """User and system time of all its processes and threads so far."""
        return cpu_seconds(self._pids)

    def cpu_seconds_of_each(self) -> dict[int, float]:
        """The same by process."""
        return {pid: cpu_seconds([pid]) for pid in self._pids}

    def peak_bytes(self) -> int:
        """The most that it held in memory since `forget_peak`."""
        return sum(_status_bytes(pid, "VmHWM") for pid in self._pids)

    def forget_peak(self) -> None:
        """Let the peak be what it holds now."""
        for pid in self._pids:
            Path(f"/proc/{pid}/clear_refs").write_text("5")

    def rss_bytes(self) -> int:
        """What it holds in memory now."""
        return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self._pids) * 4096


class GatewayProgram(Program):
    """A gateway, and what it tells of itself."""

    def __init__(
        self, name: str, command: list[str], port: int, directory: Path, cores: set[int], status_port: int
    ) -> None:
        super().__init__(name, command, port, directory, cores)
        self._status_port = status_port

    def told(self) -> dict[str, float]:
        """Its metrics by name, each the sum over all labels but `verb`, which follows the name."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._status_port}/metrics", timeout=10.0) as answer:
            text = answer.read().decode()
        totals: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if not sample.name.endswith("_bucket"):
                    name = f"{sample.name} {sample.labels['verb']}" if "verb" in sample.labels else sample.name
                    totals[name] = totals.get(name, 0.0) + sample.value
        return totals


def python(name: str, module: str, arguments: list[str], port: int, directory: Path, core: int) -> Program:
    """A module of ours as a program."""
    return Program(name, [sys.executable, "-m", module, str(port), *arguments], port, directory, {core})


def nginx(program: str, upstream_port: int, directory: Path) -> Program:
    """It as a plain proxy, with connections to the service that are kept."""
    home, port = directory / "nginx", free_port()
    home.mkdir()
    paths = " ".join(
        f"{kind}_temp_path {home}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    file = home / "nginx.conf"
    file.write_text(
        f"""
        daemon off; master_process off; worker_rlimit_nofile 16384; pid {home}/pid; error_log {home}/error.log;
        events {{ worker_connections 8192; }}
        http {{
            access_log off; keepalive_requests 1000000000; {paths}
            upstream service {{ server 127.0.0.1:{upstream_port}; keepalive 512; keepalive_requests 1000000000; }}
            server {{
                listen 127.0.0.1:{port} backlog=4096;
                location / {{ proxy_pass http://service; proxy_http_version 1.1; proxy_set_header Connection ""; }}
            }}
        }}
        """
    )
    command = [program, "-p", str(home), "-c", str(file), "-e", f"{home}/error.log"]
    return Program("nginx", command, port, directory, {SERVING_CORE})


def gateway(
    name: str,
    store: Mapping[str, Any],
    upstream_port: int,
    directory: Path,
    *,
    service: str = "bench",
    route: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    cores: set[int] | None = None,
    program: tuple[str, ...] = ("gateway",),
) -> GatewayProgram:
    """A gateway with that store. Its log of requests is off, as is the baseline's.

    `route` and `settings` are added to the configuration of its route and to that of the whole. `program` is the module
    to run, and what comes before the command.
    """
    home = directory / name
    home.mkdir()
    port, status_port = free_port(), free_port()
    config = {
        "service": service,
        "listen": f"127.0.0.1:{port}",
        "status": {"listen": f"127.0.0.1:{status_port}"},
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
                **(route or {}),
            }
        ],
        **(settings or {}),
    }
    file = home / "gateway.yaml"
    file.write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", *program, "run", "--config", str(file)]
    return GatewayProgram(name, command, port, directory, cores or {SERVING_CORE}, status_port)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return False
    return True


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system time of these processes so far, with all their threads, those that ended included."""
    # clock_getcpuclockid(3), in nanoseconds; /proc/PID/stat counts hundredths of a second.
    return sum(time.clock_gettime(~pid << 3 | 2) for pid in pids)


def _status_bytes(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
