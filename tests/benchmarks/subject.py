"""What is measured: a proxy in processes of its own, pinned to one core, and what the system and it say of that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

from tests.support.house import config_text
from tests.support.ports import free_port
from tests.support.processes import descendants, spawn
from tests.support.server_process import ServerProcess, is_listening

_ROOT: Final = Path(__file__).parents[2]
SERVING_CORE: Final = 0
OTHER_CORE: Final = max(os.sched_getaffinity(0))
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


class Program(ServerProcess):
    """A program that listens on `port`."""

    _stop_signal = signal.SIGKILL

    def __init__(
        self, name: str, command: list[str], port: int, directory: Path, cores: tuple[int, ...] = (SERVING_CORE,)
    ) -> None:
        self.name, self.port, self.log = name, port, directory / f"{name}.log"
        self._command, self._cores = command, cores

    def _spawned(self) -> subprocess.Popen[bytes]:
        with pinned(*self._cores):
            return spawn(self._command, output=self.log, directory=_ROOT)

    def _serves(self) -> bool:
        return is_listening(self.port)

    def tell(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    @property
    def _pids(self) -> list[int]:
        assert self._process is not None
        return [self._process.pid, *descendants(self._process.pid)]

    def cpu_seconds(self) -> float:
        """User and system time of all its processes and threads so far, those that ended included."""
        return sum(self.cpu_seconds_of_each().values())

    def cpu_seconds_of_each(self) -> dict[int, float]:
        """The same by process."""
        # clock_getcpuclockid(3), in nanoseconds; /proc/PID/stat counts hundredths of a second.
        return {pid: time.clock_gettime(~pid << 3 | 2) for pid in self._pids}

    def peak_bytes(self) -> int:
        """The most that it held in memory since `forget_peak`."""
        lines = [line for pid in self._pids for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))

    def forget_peak(self) -> None:
        """Let the peak be what it holds now."""
        for pid in self._pids:
            Path(f"/proc/{pid}/clear_refs").write_text("5")

    def rss_bytes(self) -> int:
        return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self._pids) * 4096


class GatewayProgram(Program):
    """A gateway, and what it tells of itself. Its log of requests is off, as is the baseline's.

    `route` and `settings` are added to the configuration of its route and to that of the whole. `program` is the module
    to run, and what comes before the command.
    """

    def __init__(
        self,
        name: str,
        store: Mapping[str, Any],
        upstream_port: int,
        directory: Path,
        *,
        route: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        cores: tuple[int, ...] = (SERVING_CORE,),
        program: tuple[str, ...] = ("gateway",),
    ) -> None:
        home, file = directory / name, directory / name / "gateway.yaml"
        home.mkdir()
        port, self._status_port = free_port(), free_port()
        text = config_text(
            f"http://127.0.0.1:{upstream_port}",
            dict(store),
            home,
            route={"response": {"max_stored_bytes": "2MiB"}, **(route or {})},
            **{
                "service": "bench",
                "listen": f"127.0.0.1:{port}",
                "status": {"listen": f"127.0.0.1:{self._status_port}"},
                "limits": {"max_in_flight": 10_000},
                "log": {"requests": "none"},
                **(settings or {}),
            },
        )
        file.write_text(text)
        super().__init__(name, [sys.executable, "-m", *program, "run", "--config", str(file)], port, directory, cores)

    def told(self) -> dict[str, float]:
        """Its metrics by name, each the sum over all labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._status_port}/metrics", timeout=10.0) as answer:
            text = answer.read().decode()
        totals: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if not sample.name.endswith("_bucket"):
                    totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
        return totals


def nginx(program: str, upstream_port: int, directory: Path) -> Program:
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
    return Program("nginx", [program, "-p", str(home), "-c", str(file), "-e", f"{home}/error.log"], port, directory)
