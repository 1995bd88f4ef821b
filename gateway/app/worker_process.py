"""One worker as its supervisor sees it: its process, and the channel to it.

Owns how the process is started, its last report, and how its end is described. The supervisor decides which workers
exist, and what follows from a message or an end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from asyncio.subprocess import Process
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from gateway import EXIT_FAILED, EXIT_OK
from gateway.app.channel import (
    AskReload,
    AskReport,
    Channel,
    ConfigDone,
    Failed,
    PrepareConfig,
    Report,
    Serving,
    SwitchConfig,
)
from gateway.observe.metrics import Counted
from gateway.observe.status import Health

_SILENT_SECONDS: Final = 10.0
# For a process that has closed its channel.
_EXIT_SECONDS: Final = 10.0


class WorkerProcess:
    """`start` one, then `attend` it until it is gone.

    `numbers` and `health` are from its last report. `reported` is set when it has reported since it was asked, or will
    not report any more.
    """

    def __init__(self, number: int, process: Process, channel: Channel) -> None:
        self.number = number
        self.channel = channel
        self.has_served = False
        self.why_failed: str | None = None
        self.numbers: Counted = {}
        self.health = Health()
        self.reported = asyncio.Event()
        self._asked: deque[asyncio.Future[str | None]] = deque()
        self._process = process
        self._is_leaving = False
        self._asked_seconds: float | None = None

    @classmethod
    async def start(cls, number: int, inherited: Iterable[int]) -> Self:
        """A process that has inherited these descriptors, and waits for its `StartWorker`. Raises `OSError`."""
        ours, theirs = socket.socketpair()
        try:
            process = await asyncio.create_subprocess_exec(
                *_command(number, theirs.fileno()),
                pass_fds=(theirs.fileno(), *inherited),
                stdin=subprocess.DEVNULL,
                # A Ctrl-C on the terminal reaches the supervisor alone, which stops its workers.
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return cls(number, process, await Channel.open(ours))

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def ask_report(self) -> None:
        """Ask for a report, unless one is still pending: otherwise requests would pile up."""
        if self._asked_seconds is None:
            self._asked_seconds = asyncio.get_running_loop().time()
            self.reported.clear()
            self.channel.send(AskReport())

    @property
    def is_serving(self) -> bool:
        """Whether it has begun to serve, and has not closed its channel."""
        return self.has_served and not self._is_leaving

    @property
    def has_reported(self) -> bool:
        """Whether it has reported since it was asked."""
        return self._asked_seconds is None

    @property
    def is_silent(self) -> bool:
        """Whether a report has been pending for too long."""
        now = asyncio.get_running_loop().time()
        return self._asked_seconds is not None and now - self._asked_seconds >= _SILENT_SECONDS

    def ask(self, message: PrepareConfig | SwitchConfig) -> asyncio.Future[str | None]:
        """The future of its reply: why it refuses. None, too, when it is gone: the one that replaces it starts with
        what is in force then."""
        reply: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        if self._is_leaving:
            reply.set_result(None)
        else:
            self._asked.append(reply)
            self.channel.send(message)
        return reply

    async def attend(self, on_change: Callable[[], None], on_reload: Callable[[], None]) -> int:
        """Receive its messages until it ends; returns its exit status.

        Calls `on_change` when it begins to serve, and when it closes its channel; `on_reload` when it wants a reload.
        """
        while (message := await self.channel.receive()) is not None:
            match message:
                case Serving():
                    self.has_served = True
                    on_change()
                case Report(numbers, health):
                    self.numbers, self.health = numbers, health
                    self._asked_seconds = None
                    self.reported.set()
                case Failed(text):
                    self.why_failed = text
                case ConfigDone(refusal):
                    self._asked.popleft().set_result(refusal)
                case AskReload():
                    on_reload()
                case _:
                    raise TypeError(f"a worker does not send {type(message).__name__}")
        # It sends nothing more, but may take a while to exit.
        self._is_leaving = True
        while self._asked:
            self._asked.popleft().set_result(None)
        self.reported.set()
        on_change()
        await self.channel.close()
        try:
            async with asyncio.timeout(_EXIT_SECONDS):
                return await self._process.wait()
        except TimeoutError:
            self.kill()
            return await self._process.wait()

    def terminate(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()


@dataclass(frozen=True, slots=True)
class WorkerEnd:
    """How a worker ended: its exit code, a description of it, and the reason that it gave itself, if any."""

    code: int
    what: str
    why: str | None
    has_served: bool
    lived_seconds: float


def end_of(code: int, why: str | None, *, has_served: bool, lived_seconds: float) -> WorkerEnd:
    """How it ended, from its exit status and the reason that it gave."""
    if why is not None:
        what = f"failed: {why}"
    elif code < 0:
        what = f"was ended by signal {-code}"
    else:
        what = f"ended with {code}"
    if not has_served and why is None:
        what += " before it served"
    if code == -signal.SIGTERM and not has_served:
        # It was terminated before it had its signal handlers, and has done nothing.
        code = EXIT_OK
    elif code < 0:
        code = EXIT_FAILED
    return WorkerEnd(code, what, why, has_served, lived_seconds)


def _command(number: int, descriptor: int) -> list[str]:
    """How a worker is started: with this interpreter, its flags, and the program from the same place."""
    # Without -P, Python looks for the program in the working directory first, which anybody may own.
    safe = [] if str(Path.cwd()) in sys.path else ["-P"]
    flags = [*subprocess._args_from_interpreter_flags(), *safe]  # type: ignore[attr-defined]  # noqa: SLF001
    return [sys.executable, *flags, "-m", "gateway.app.worker", str(number), str(descriptor), str(os.getpid())]
