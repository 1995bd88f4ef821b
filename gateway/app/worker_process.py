"""One worker as its supervisor has it: a process that was started as one, and the channel to it.

It owns how such a process is started, what it said last, and how its end is told. Which workers there are, and what
follows from what one says or from its end, is the supervisor's.
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
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from gateway import EXIT_FAILED, EXIT_OK
from gateway.app.channel import Channel, Failed, Report, Reported, Serving
from gateway.observe.exposition import Counted
from gateway.observe.status import Health

_SILENT_SECONDS: Final = 10.0
# For a process that has said its last word.
_EXIT_SECONDS: Final = 10.0


class WorkerProcess:
    """`start` one, then `attend` it until it is gone.

    `numbers` and `health` are what it reported last. `answered` is set when it has reported since it was asked, or will
    say nothing more.
    """

    def __init__(self, number: int, process: Process, channel: Channel) -> None:
        self.number = number
        self.channel = channel
        self.has_served = False
        self.why_failed: str | None = None
        self.numbers: Counted = {}
        self.health = Health()
        self.answered = asyncio.Event()
        self._process = process
        self._is_leaving = False
        self._asked_seconds: float | None = None

    @classmethod
    async def start(cls, number: int, inherited: Iterable[int]) -> Self:
        """A process that has inherited these descriptors, and waits for its order. Raises `OSError`."""
        ours, theirs = socket.socketpair()
        try:
            process = await asyncio.create_subprocess_exec(
                *_command(number, theirs.fileno()),
                pass_fds=(theirs.fileno(), *inherited),
                stdin=subprocess.DEVNULL,
                # A Ctrl-C on the terminal is for the supervisor alone, which tells its workers.
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
        """The id of the process."""
        return self._process.pid

    def ask(self) -> None:
        """Have it report. One that has yet to answer is not asked again, or the questions would pile up."""
        if self._asked_seconds is None:
            self._asked_seconds = asyncio.get_running_loop().time()
            self.answered.clear()
            self.channel.send(Report())

    @property
    def is_serving(self) -> bool:
        """Whether it has begun to serve, and has not said its last word."""
        return self.has_served and not self._is_leaving

    @property
    def has_answered(self) -> bool:
        """Whether it has reported since it was asked."""
        return self._asked_seconds is None

    @property
    def is_silent(self) -> bool:
        """Whether it has been asked for long and does not answer."""
        now = asyncio.get_running_loop().time()
        return self._asked_seconds is not None and now - self._asked_seconds >= _SILENT_SECONDS

    async def attend(self, note_change: Callable[[], None]) -> int:
        """Hear what it says, until it is gone; returns its exit status.

        `note_change` is called when it begins to serve, and when it has said its last word.
        """
        while (message := await self.channel.receive()) is not None:
            match message:
                case Serving():
                    self.has_served = True
                    note_change()
                case Reported(numbers, health):
                    self.numbers, self.health = numbers, health
                    self._asked_seconds = None
                    self.answered.set()
                case Failed(text):
                    self.why_failed = text
                case _:
                    raise TypeError(f"a worker does not say {type(message).__name__}")
        # It has said its last word, and may take its time to go.
        self._is_leaving = True
        self.answered.set()
        note_change()
        await self.channel.close()
        try:
            async with asyncio.timeout(_EXIT_SECONDS):
                return await self._process.wait()
        except TimeoutError:
            self.kill()
            return await self._process.wait()

    def tell_to_stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()


@dataclass(frozen=True, slots=True)
class WorkerEnd:
    """How a worker ended: its exit code, that in words, and its own ones where it had any."""

    code: int
    what: str
    why: str | None
    has_served: bool
    lived_seconds: float


def end_of(code: int, why: str | None, *, has_served: bool, lived_seconds: float) -> WorkerEnd:
    """How it ended, from its exit status and from what it said."""
    if why is not None:
        what = f"failed: {why}"
    elif code < 0:
        what = f"was ended by signal {-code}"
    else:
        what = f"ended with {code}"
    if not has_served and why is None:
        what += " before it served"
    if code == -signal.SIGTERM and not has_served:
        # Told to stop before it could listen to that, it has done nothing.
        code = EXIT_OK
    elif code < 0:
        code = EXIT_FAILED
    return WorkerEnd(code, what, why, has_served, lived_seconds)


def _command(number: int, descriptor: int) -> list[str]:
    """How a worker is started: with this interpreter, its flags, and the program from the same place."""
    # Without -P Python looks for the program in the working directory first, which may be anybody's.
    safe = [] if str(Path.cwd()) in sys.path else ["-P"]
    flags = [*subprocess._args_from_interpreter_flags(), *safe]  # type: ignore[attr-defined]  # noqa: SLF001
    return [sys.executable, *flags, "-m", "gateway.app.worker", str(number), str(descriptor), str(os.getpid())]
