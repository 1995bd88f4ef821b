"""A gateway whose event loop is watched: `python -m tests.benchmarks.watched FILE run --config CONFIG`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path

from gateway.app.life import run
from gateway.app.worker import serve
from gateway.config import load

_BEAT_SECONDS = 0.001


class Pulse:
    """Belongs to the running loop."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._loop = asyncio.get_running_loop()
        self._longest = (0.0, 0.0)
        self._last = (time.perf_counter(), time.thread_time())
        self._beat()

    def _beat(self) -> None:
        now = (time.perf_counter(), time.thread_time())
        self._longest = (
            max(self._longest[0], now[0] - self._last[0] - _BEAT_SECONDS),
            max(self._longest[1], now[1] - self._last[1]),
        )
        self._last = now
        self._loop.call_later(_BEAT_SECONDS, self._beat)

    def tell(self) -> None:
        """Write down the longest, and begin anew."""
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps(self._longest))
        new.rename(self._file)
        self._longest = (0.0, 0.0)


async def main() -> int:
    pulse = Pulse(Path(sys.argv[1]))
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, pulse.tell)
    return await serve(load(Path(sys.argv[4]), os.environ))


if __name__ == "__main__":
    sys.exit(run(main()))
