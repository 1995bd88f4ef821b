"""What the servers that the tests bring along have in common: one process each, ended and frozen with all below it."""

from __future__ import annotations

import shutil
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from tests.support.processes import end, pause, resume


class ServerProcess(ABC):
    """At most one process at a time. It keeps what it was given, such as its port, over a stop and the next start."""

    directory: Path
    # What ends it at once, with all below it.
    _end_signal = signal.SIGKILL
    _process: subprocess.Popen[bytes] | None = None

    @contextmanager
    def running(self) -> Iterator[Self]:
        """Started; at the end it is gone, and its directory with it."""
        try:
            self.start()
            yield self
        finally:
            self._end(self._end_signal)
            shutil.rmtree(self.directory)

    @abstractmethod
    def start(self) -> None:
        """Start, and return when it serves."""

    @abstractmethod
    def stop(self) -> None:
        """End in order. Nothing happens to one that is not running."""

    def restart(self) -> None:
        """`stop`, then `start`."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze the server with all below it: connections stay open and nothing is answered."""
        if self._process is not None:
            pause(self._process.pid)

    def resume(self) -> None:
        """Undo `pause`."""
        if self._process is not None:
            resume(self._process.pid)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            end(process, how)
