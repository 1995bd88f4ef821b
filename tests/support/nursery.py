"""Starts gateways as children that have the program imported already: that is two thirds of what a start costs.

`python -m gateway`.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from tests.support.leash import PR_SET_PDEATHSIG, PR_SET_PTRACER, PR_SET_PTRACER_ANY

PR_SET_CHILD_SUBREAPER = 36
ROOT: Final = Path(__file__).parents[2]
# What a gateway imports on its way to being ready.
_MODULES: Final = (
    "gateway.__main__", "gateway.cli", "gateway.app.gateway", "gateway.app.supervisor", "gateway.app.worker",
    "gateway.store.postgres.store", "gateway.store.redis.durable", "gateway.store.redis.store",
    "gateway.store.sqlite.store", "uvloop",
)  # fmt: skip
# Read by the loader or by Python before any code of ours runs.
_EARLY: Final = ("LD_", "PYTHON", "FAKETIME", "TZ", "LC_", "LANG")
_PATIENCE_SECONDS: Final = 60.0


class Forked:
    """A child that was forked elsewhere and came to be ours, with what is used of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.poll() is None:
            pidfd = os.pidfd_open(self.pid)
            try:
                select.select([pidfd], [], [], timeout)
            finally:
                os.close(pidfd)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


class _Nursery:
    """The process that forks."""

    def __init__(self) -> None:
        self._environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.nursery", str(os.getpid())],
            cwd=ROOT,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def may_start(self, environment: Mapping[str, str]) -> bool:
        """Whether what is different there can be set in a process that runs already."""
        names = {*environment, *self._environment}
        changed = {name for name in names if environment.get(name) != self._environment.get(name)}
        return not any(name.startswith(_EARLY) for name in changed)

    def start(self, arguments: Sequence[str], output: Path, environment: Mapping[str, str]) -> Forked:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = {"arguments": list(arguments), "output": str(output), "environment": dict(environment)}
        libc = ctypes.CDLL(None)
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
            return Forked(int(self._process.stdout.readline()))
        finally:
            # What others leave behind is nobody's here.
            libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)

    def close(self) -> None:
        self._process.communicate()


@cache
def _nursery() -> _Nursery:
    """One for the process."""
    atexit.register(close)
    return _Nursery()


def fork(arguments: Sequence[str], output: Path, environment: Mapping[str, str]) -> Forked | None:
    """Start `python -m gateway` with these arguments, from the root of this program; None if that is not possible."""
    return _nursery().start(arguments, output, environment) if _nursery().may_start(environment) else None


def close() -> None:
    if _nursery.cache_info().currsize:
        _nursery().close()
        _nursery.cache_clear()


def main() -> None:
    parent = int(sys.argv[1])
    for name in _MODULES:
        importlib.import_module(name)
    gc.freeze()
    while line := sys.stdin.readline():
        asked = json.loads(line)
        told, tell = os.pipe()
        between = os.fork()
        if between == 0:
            if pid := os.fork():
                os.write(tell, str(pid).encode())
                os._exit(0)
            os.close(told)
            os.close(tell)
            _become(parent, **asked)
        os.close(tell)
        pid = int(os.read(told, 20))
        os.close(told)
        # When it is gone its child has the other parent.
        os.waitpid(between, 0)
        print(pid, flush=True)


def _become(parent: int, arguments: list[str], output: str, environment: dict[str, str]) -> None:
    give_up_at = time.monotonic() + _PATIENCE_SECONDS
    while os.getppid() != parent:
        if time.monotonic() > give_up_at:
            os._exit(1)
        time.sleep(0.0005)
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    libc.prctl(PR_SET_PTRACER, ctypes.c_ulong(PR_SET_PTRACER_ANY), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    sink = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for descriptor, number in ((nothing, 0), (sink, 1), (sink, 2)):
        os.dup2(descriptor, number)
    os.close(nothing)
    os.close(sink)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [str(ROOT / "gateway" / "__main__.py"), *arguments]
    from gateway.__main__ import main as run

    sys.exit(run())


if __name__ == "__main__":
    main()
