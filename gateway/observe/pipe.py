"""Carries lines to a descriptor without ever making the writer of a line wait.

Owns a bounded memory of lines and one thread that writes them out; knows nothing of what they say. A terminal that is
held, a full disk or a collector that stopped reading its pipe holds up the thread alone: once the memory is full,
further lines are dropped and counted, and the count is told as soon as lines go through again.

Lines are collected for a moment before they are written, so that a busy gateway makes one system call for many; an
urgent line is written at once, together with all before it. Lines may be written from any thread, and also while the
same thread is writing one, as happens when the garbage collector finds something to complain about.

Several processes may write to one descriptor. Then whole lines go out in pieces that a pipe takes in one go
(`PIPE_BUF`, pipe(7)), so that no line is torn by another process's; a longer one may be.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Iterator
from typing import Final

_LINES_MAX: Final = 10_000
_BYTES_MAX: Final = 4 * 1024 * 1024
_LINGER_SECONDS: Final = 0.02
_WRITE_BYTES_MAX: Final = 64 * 1024
_SHARED_WRITE_BYTES_MAX: Final = select.PIPE_BUF


class LinePipe:
    """Lines on their way to `fd`, which stays the caller's to close.

    `tell_dropped` makes the line that tells of so many dropped ones; `is_shared`: other processes write there, too.
    """

    def __init__(
        self,
        fd: int,
        tell_dropped: Callable[[int], bytes],
        *,
        lines_max: int = _LINES_MAX,
        bytes_max: int = _BYTES_MAX,
        is_shared: bool = False,
    ) -> None:
        self._fd = fd
        self._is_shared = is_shared
        self._tell_dropped = tell_dropped
        self._lines_max = lines_max
        self._bytes_max = bytes_max
        # Reentrant: see the garbage collector above.
        self._changed = threading.Condition(threading.RLock())
        self._waiting: list[bytes] = []
        self._held_lines = 0
        self._held_bytes = 0
        self._dropped = 0
        self._told = 0
        self._is_urgent = False
        self._is_closing = False
        # A daemon, because a thread that is stuck in a write must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Lines that were lost since the start: for lack of room, or because the descriptor refused them."""
        return self._dropped

    def write(self, line: bytes, *, urgent: bool = False) -> None:
        """Take a line, its newline included, to be written soon, or drop it."""
        with self._changed:
            has_room = self._held_lines < self._lines_max and self._held_bytes + len(line) <= self._bytes_max
            if self._is_closing or not has_room:
                self._dropped += 1
                return
            self._waiting.append(line)
            self._held_lines += 1
            self._held_bytes += len(line)
            if urgent:
                self._is_urgent = True
            if urgent or len(self._waiting) == 1:
                self._changed.notify()

    def close(self, timeout_seconds: float = 2.0) -> bool:
        """Take no more, and wait so long for the rest to be written; False when it was not."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closing)
                self._changed.wait_for(lambda: self._is_urgent or self._is_closing, _LINGER_SECONDS)
                lines, self._waiting = self._waiting, []
                self._is_urgent = False
            if not lines:
                return
            for data in _pieces(lines, _SHARED_WRITE_BYTES_MAX) if self._is_shared else [b"".join(lines)]:
                self._put(data)
            with self._changed:
                self._held_lines -= len(lines)
                self._held_bytes -= sum(map(len, lines))
                lost = self._dropped - self._told
            if lost and self._put(self._tell_dropped(lost)):
                self._told += lost

    def _put(self, data: bytes) -> bool:
        """Write all of it, however long that takes; False when the descriptor refuses."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._fd, rest[:_WRITE_BYTES_MAX]) :]
            except BlockingIOError:
                # Whoever shares the descriptor made it non-blocking.
                poll = select.poll()
                poll.register(self._fd, select.POLLOUT)
                poll.poll()
            except OSError:
                with self._changed:
                    self._dropped += bytes(rest).count(b"\n")
                return False
        return True


def _pieces(lines: list[bytes], bytes_max: int) -> Iterator[bytes]:
    """Whole lines, joined as far as they fit; one that is longer goes by itself."""
    piece: list[bytes] = []
    size = 0
    for line in lines:
        if piece and size + len(line) > bytes_max:
            yield b"".join(piece)
            piece, size = [], 0
        piece.append(line)
        size += len(line)
    if piece:
        yield b"".join(piece)
