"""What the servers that the tests bring along have in common: one process each, ended and frozen with all below it."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from tests.support.eventually import eventually, eventually_blocking
from tests.support.nursery import Forked
from tests.support.processes import END_SECONDS, end, pause, resume


class Launched(ABC):
    """At most one process at a time. It keeps what it was given, such as its port, over a stop and the next start."""

    end_seconds = END_SECONDS
    _process: subprocess.Popen[bytes] | Forked | None = None

    def launch(self) -> None:
        """Start it without waiting for anything."""
        assert self._process is None, "it is running already"
        self._process = self._spawned()

    @abstractmethod
    def _spawned(self) -> subprocess.Popen[bytes] | Forked: ...

    @property
    def pid(self) -> int:
        assert self._process is not None, "it is not running"
        return self._process.pid

    def kill(self) -> None:
        """End at once, without a word to anybody. Nothing happens to one that is not running."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Freeze it with all below it: connections stay open and nothing is answered."""
        if self._process is not None:
            pause(self._process.pid)

    def resume(self) -> None:
        if self._process is not None:
            resume(self._process.pid)

    def _end(self, how: signal.Signals) -> int:
        """Its exit status; 0 of one that is not running."""
        process, self._process = self._process, None
        return 0 if process is None else end(process, how, self.end_seconds)


class Served(Launched):
    """One that can be asked whether it serves."""

    directory: Path
    log: Path

    @abstractmethod
    def _serves(self) -> bool: ...

    def is_ready(self) -> bool:
        """Whether it serves now; an AssertionError when it has ended."""
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"{type(self).__name__} did not start:\n{self.log.read_text(errors='replace')}")
        return self._serves()


class Broker(Served):
    """One that is waited for in an event loop. `async with` is not needed: `start` it, `kill` it."""

    async def start(self) -> None:
        self.launch()
        await eventually(self.is_ready, 30.0, f"{type(self).__name__} is ready")


class ServerProcess(Served):
    """One that is waited for outside of an event loop."""

    start_seconds = 30.0
    # What ends it in order, and what ends it at once, with all below it.
    _stop_signal = signal.SIGTERM
    _end_signal = signal.SIGKILL

    @contextmanager
    def running(self) -> Iterator[Self]:
        """Started; at the end it is gone, and its directory with it."""
        try:
            self.start()
            yield self
        finally:
            self._end(self._end_signal)
            shutil.rmtree(self.directory)

    def start(self) -> None:
        # Not by what a subclass may make of these names.
        Launched.launch(self)
        try:
            eventually_blocking(lambda: Served.is_ready(self), self.start_seconds, f"{type(self).__name__} is ready")
        except BaseException:
            self._end(self._end_signal)
            raise

    def stop(self, how: signal.Signals | None = None) -> int:
        """End in order, or in this way; returns the exit status. Nothing happens to one that is not running."""
        return self._end(how or self._stop_signal)

    def restart(self) -> None:
        self.stop()
        self.start()


def is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return False
    return True
