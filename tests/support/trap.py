"""A live process that is killed exactly at its N-th write, or whose calls fail: `tracer` as tests use it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

from tests.support import tracer
from tests.support.eventually import eventually
from tests.support.processes import end, spawn

READY_SECONDS = 10.0


class Trap:
    """`async with Trap.killing(pid, 3, log) as trap`: see `tracer`. What it did stands in the file `log`."""

    def __init__(self, pid: int, log: Path, *words: str) -> None:
        self._command = [sys.executable, "-I", "-S", tracer.__file__, str(pid), *words]
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def killing(cls, pid: int, number: int, log: Path) -> Trap:
        """Kill the process as it enters its `number`-th write from now on."""
        return cls(pid, log, str(number), "kill")

    @classmethod
    def failing(cls, pid: int, error: int, calls: tuple[str, ...], log: Path) -> Trap:
        """Let these system calls fail with `error` until the end of the block."""
        return cls(pid, log, str(error), "fail", *calls)

    @property
    def sprung(self) -> list[str]:
        """The calls that it stopped, with the files that they were for."""
        return [line for line in self._lines() if line != "ready"]

    async def __aenter__(self) -> Self:
        self._log.unlink(missing_ok=True)
        process = self._process = spawn(self._command, output=self._log)
        try:
            await eventually(lambda: "ready" in self._lines() or process.poll() is not None, READY_SECONDS)
            assert process.poll() is None, f"processes cannot be traced here: {self._log.read_text()}"
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process is not None:
            end(self._process, signal.SIGKILL)

    def _lines(self) -> list[str]:
        return self._log.read_text().splitlines() if self._log.exists() else []
