"""Writes lines of the log on a descriptor, without ever blocking the code that logs.

They are queued as what they are made of; one thread makes and writes them. A paused terminal, a full disk or a
collector that does not read its pipe blocks that thread alone: once the queue is full, further lines are dropped and
counted, and the count is logged as soon as lines can be written again. Lines are written after a short delay, so that a
busy gateway makes one system call for many.

Also makes lines safe: whatever is logged, a line has printable characters only and a bounded length, and the value of a
field cannot pass for another field.

Several processes may write to one descriptor. Then whole lines are written in pieces that a pipe takes atomically
(`PIPE_BUF`, pipe(7)), so that lines of other processes cannot split them; a line longer than that may be split.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import lru_cache
from queue import SimpleQueue
from typing import Final
from uuid import UUID

import orjson

from gateway.observe.facts import Line, Value

_LINES_MAX: Final = 10_000
# A traceback is as large as many lines.
_TRACEBACKS_MAX: Final = _LINES_MAX // 10
_BATCH_MAX: Final = 1_000
_LINGER_SECONDS: Final = 0.02
_WRITE_BYTES_MAX: Final = 64 * 1024

_MESSAGE_CHARS_MAX: Final = 4096
_VALUE_CHARS_MAX: Final = 512
_TRACEBACK_CHARS_MAX: Final = 16 * 1024
_LIBRARY: Final = logging.Formatter()
_BARE: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:/@%+-")

Message = Line | Callable[[], Line]
"""What is logged: a line, or a call that makes one in the writer's thread."""
Entry = tuple[float, int, Message, str | None]
"""The Unix time, the level and the message of a line, and the traceback that it comes with."""
Form = Callable[[float, int, Line, str | None, int | None], bytes]
"""Makes a line from its time, level, content and traceback, and the number of the worker that writes it."""


def as_json(seconds: float, level: int, line: Line, traceback: str | None, worker: int | None) -> bytes:
    """One JSON object a line."""
    fields: dict[str, Value] = {
        "time": _time(seconds),
        "level": logging.getLevelName(level).lower(),
        "message": _safe(line.message, _MESSAGE_CHARS_MAX),
    }
    for part in (line.detail, line.fields):
        for name, value in part.items():
            if isinstance(value, str) and not (value.isprintable() and len(value) <= _VALUE_CHARS_MAX):
                fields[name] = _safe(value, _VALUE_CHARS_MAX)
            elif value is not None:
                fields[name] = value
    if worker is not None:
        fields["worker"] = worker
    if traceback:
        fields["traceback"] = "\n".join(_rows(traceback))
    return orjson.dumps(fields)


def as_text(seconds: float, level: int, line: Line, traceback: str | None, worker: int | None) -> bytes:
    """Time, level, message, and fields as `name=value`; a traceback follows, indented."""
    parts = [
        _time(seconds),
        f"{logging.getLevelName(level).lower():<7}",
        _safe(line.message, _MESSAGE_CHARS_MAX),
        *(f"{n}={_shown(v)}" for n, v in (*line.fields.items(), ("worker", worker)) if v is not None),
    ]
    return "\n    | ".join([" ".join(parts), *(_rows(traceback) if traceback else ())]).encode()


def _time(seconds: float) -> str:
    """UTC, to the millisecond (RFC 3339)."""
    floor = int(seconds)
    return f"{_second(floor)}.{int((seconds - floor) * 1000):03d}Z"


@lru_cache(maxsize=4)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _shown(value: str | float | UUID) -> str:
    if isinstance(value, float):
        return f"{value:.1f}"
    text = _safe(str(value), _VALUE_CHARS_MAX)
    return text if text and _BARE.issuperset(text) else orjson.dumps(text).decode()


def _rows(traceback: str) -> list[str]:
    return [_safe(row, _TRACEBACK_CHARS_MAX) for row in traceback[:_TRACEBACK_CHARS_MAX].split("\n")]


def _safe(text: str, chars_max: int) -> str:
    """The text, cut to length, with escapes for line ends, control characters and changes of text direction."""
    if len(text) > chars_max:
        text = text[:chars_max] + "…"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


class LogWriter(logging.Handler):
    """Queues lines, and what loggers log, and writes them to `fd` until it is closed. The caller closes `fd`.

    `is_shared`: other processes write to `fd`, too.
    """

    def __init__(
        self,
        fd: int,
        form: Form,
        worker: int | None = None,
        *,
        is_shared: bool = False,
        lines_max: int = _LINES_MAX,
    ) -> None:
        super().__init__()
        self._fd = fd
        self._form = form
        self._worker = worker
        self._is_shared = is_shared
        self._lines_max = lines_max
        # Without a lock, like the queue that wakes: the garbage collector may log in the middle of another call.
        self._entries: deque[Entry] = deque()
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._is_idle = False
        self._dropped = 0
        self._counting = threading.RLock()
        self._reported = 0
        self._is_closing = False
        # A daemon, because a thread that is stuck in a write must not keep the process from exiting.
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Lines lost since the start: because the queue was full, or because writing them failed."""
        return self._dropped

    def write_as(self, form: Form) -> None:
        """Write the lines to come in this format."""
        self._form = form

    def put(self, seconds: float, level: int, message: Message, traceback: str | None = None) -> None:
        """Queue a line, or drop it when the writer is behind."""
        if self._is_closing or len(self._entries) >= (_TRACEBACKS_MAX if traceback else self._lines_max):
            self._count_dropped(1)
            return
        self._entries.append((seconds, level, message, traceback))
        if self._is_idle:
            self._is_idle = False
            self._wake.put(None)

    def emit(self, record: logging.LogRecord) -> None:
        """Queue what a logger logs. Its text is made now: its arguments may change, and would be kept alive."""
        try:
            text = record.getMessage()[: _MESSAGE_CHARS_MAX + 1]
        except Exception as error:  # noqa: BLE001 -- a wrong message must not fail the code that logs
            text = f"a message could not be made: {type(error).__name__}"
        traceback = None
        if record.exc_info:
            traceback = _LIBRARY.formatException(record.exc_info)[: _TRACEBACK_CHARS_MAX + 1]
        line = Line(text, {"logger": None if record.name == "gateway" else record.name})
        self.put(record.created, record.levelno, line, traceback)

    def stop(self, timeout_seconds: float = 2.0) -> bool:
        """Take no more lines, and wait for the rest to be written; False when they were not in time."""
        self._is_closing = True
        self._wake.put(None)
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        entries = self._entries
        while entries or not self._is_closing:
            # Before the look at the queue: who adds to it after the look wakes this thread.
            self._is_idle = True
            if not entries:
                self._wake.get()
            self._is_idle = False
            time.sleep(0.0 if self._is_closing else _LINGER_SECONDS)
            self._write([self._made(*entries.popleft()) for _ in range(min(len(entries), _BATCH_MAX))])
            lost = self._dropped - self._reported
            if lost and self._write([self._made(time.time(), logging.WARNING, _of_dropped(lost), None)]):
                self._reported += lost

    def _made(self, seconds: float, level: int, message: Message, traceback: str | None) -> bytes:
        try:
            line = message if isinstance(message, Line) else message()
            return self._form(seconds, level, line, traceback, self._worker) + b"\n"
        except Exception as error:  # noqa: BLE001 -- the following lines must be written
            line = Line(f"a line could not be made: {type(error).__name__}")
            return self._form(seconds, level, line, None, self._worker) + b"\n"

    def _write(self, lines: list[bytes]) -> bool:
        """Write all lines, however long that takes; False when writing failed."""
        is_complete = True
        for piece in _pieces(lines, select.PIPE_BUF if self._is_shared else _WRITE_BYTES_MAX):
            rest = memoryview(piece)
            while rest:
                try:
                    rest = rest[os.write(self._fd, rest) :]
                except BlockingIOError:
                    # Another process that shares the descriptor made it non-blocking.
                    poll = select.poll()
                    poll.register(self._fd, select.POLLOUT)
                    poll.poll()
                except OSError:
                    self._count_dropped(bytes(rest).count(b"\n"))
                    is_complete = False
                    break
        return is_complete

    def _count_dropped(self, count: int) -> None:
        with self._counting:
            self._dropped += count


def _pieces(lines: list[bytes], bytes_max: int) -> Iterator[bytes]:
    """Whole lines, joined up to `bytes_max`; a longer one is a piece of its own."""
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


def _of_dropped(count: int) -> Line:
    return Line("log lines were dropped", {"dropped": count})
