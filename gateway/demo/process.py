"""A gateway in a process of its own, which can be killed and started again."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from gateway.app.life import StartError
from gateway.demo.client import Caller

_READY_SECONDS: Final = 20.0
_POLL_SECONDS: Final = 0.05
_LOG_LINES_SHOWN: Final = 10


class GatewayProcess:
    """`async with GatewayProcess(directory, text, variables, status_port)`: a gateway that is ready.

    `text` is its configuration, `variables` are in its environment. It is killed at the end, and keeps nothing outside
    of `directory`. Raises `StartError` with the end of its log when it does not get ready.
    """

    def __init__(self, directory: Path, text: str, variables: Mapping[str, str], status_port: int) -> None:
        self._directory = directory
        self._text = text
        self._variables = variables
        self._status = Caller("127.0.0.1", status_port)
        self._log = directory / "gateway.log"
        self._process: subprocess.Popen[bytes] | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    async def start(self) -> None:
        """Start it, and return once it is ready."""
        self._launch()
        try:
            async with asyncio.timeout(_READY_SECONDS):
                while not await self._is_ready():  # noqa: ASYNC110 - another process
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise self._failure(f"did not get ready within {_READY_SECONDS:g} s") from None
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """SIGKILL, to it and to whatever it started."""
        process, self._process = self._process, None
        if process is not None:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _launch(self) -> None:
        self._directory.mkdir(exist_ok=True)
        config = self._directory / "gateway.yaml"
        config.write_text(self._text)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - this program
                [sys.executable, "-m", "gateway", "run", "--config", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Nothing of the working directory can take the place of the installed program.
                cwd=self._directory,
                env={**os.environ, **self._variables},
                # Ctrl-C is for the demonstration, which then kills it.
                start_new_session=True,
            )

    async def _is_ready(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise self._failure("ended by itself")
        try:
            return (await self._status.send("GET", "/readyz", {})).status == 200
        except OSError:
            return False

    def _failure(self, what: str) -> StartError:
        self.kill()
        lines = self._log.read_text(errors="replace").splitlines()[-_LOG_LINES_SHOWN:]
        return StartError("\n  ".join((f"the gateway {what}. The end of its log:", *(lines or ["(nothing)"]))))
