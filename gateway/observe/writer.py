"""Writes log records as lines on a descriptor, without ever blocking the code that logs.

Records are queued; one thread formats and writes them. A paused terminal, a full disk or a collector that does not read
its pipe blocks that thread alone: once the queue is full, further records are dropped and counted, and the count is
logged as soon as lines can be written again. Lines are written after a short delay, so that a busy gateway makes one
system call for many.

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
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache, partial
from logging.handlers import QueueHandler
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple

import orjson

_RECORDS_MAX: Final = 10_000
# A traceback is as large as many lines.
_TRACEBACKS_MAX: Final = _RECORDS_MAX // 10
_BATCH_MAX: Final = 1_000
_LINGER_SECONDS: Final = 0.02
_WRITE_BYTES_MAX: Final = 64 * 1024

_MESSAGE_CHARS_MAX: Final = 4096
_VALUE_CHARS_MAX: Final = 512
_TRACEBACK_CHARS_MAX: Final = 16 * 1024
_BARE: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:/@%+-")

Value = str | int | float | None


class Line(NamedTuple):
    """The content of a record. Fields that are None are left out.

    `detail` has the fields that only the JSON format writes, because the message has them already.
    """

    message: str
    fields: Mapping[str, Value] = {}
    detail: Mapping[str, Value] = {}


Message = Line | partial[Line]
"""What the gateway logs: a line, or a call that makes one in the writer's thread."""


class _Formatter(logging.Formatter):
    """Adds the fields `fixed` to every line."""

    def __init__(self, fixed: Mapping[str, Value]) -> None:
        super().__init__()
        self._fixed = fixed


class JsonFormatter(_Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line = _line_of(record)
        fields: dict[str, Value] = {
            "time": _time(record.created),
            "level": record.levelname.lower(),
            "message": _safe(line.message, _MESSAGE_CHARS_MAX),
        }
        for name, value in (*line.detail.items(), *line.fields.items(), *self._fixed.items()):
            if value is not None:
                fields[name] = _safe(value, _VALUE_CHARS_MAX) if isinstance(value, str) else value
        if record.exc_text:
            fields["traceback"] = "\n".join(_rows(record.exc_text))
        return orjson.dumps(fields).decode()


class TextFormatter(_Formatter):
    """Time, level, message, and fields as `name=value`; a traceback follows, indented."""

    def format(self, record: logging.LogRecord) -> str:
        line = _line_of(record)
        parts = [
            _time(record.created),
            f"{record.levelname.lower():<7}",
            _safe(line.message, _MESSAGE_CHARS_MAX),
            *(f"{n}={_shown(v)}" for n, v in (*line.fields.items(), *self._fixed.items()) if v is not None),
        ]
        rows = _rows(record.exc_text) if record.exc_text else ()
        return "\n    | ".join([" ".join(parts), *rows])


def _line_of(record: logging.LogRecord) -> Line:
    message: object = record.msg
    if isinstance(message, partial):
        message = message()
    if isinstance(message, Line):
        return message
    # From a library, or from the gateway's own plain `logging` calls.
    return Line(str(message), {"logger": None if record.name == "gateway" else record.name})


def _time(seconds: float) -> str:
    """UTC, to the millisecond (RFC 3339)."""
    floor = int(seconds)
    return f"{_second(floor)}.{int((seconds - floor) * 1000):03d}Z"


@lru_cache(maxsize=4)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _shown(value: str | float) -> str:
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


class LogWriter(QueueHandler):
    """Queues records and writes them to `fd` until it is closed. The caller closes `fd`.

    `is_shared`: other processes write to `fd`, too.
    """

    def __init__(
        self, fd: int, formatter: logging.Formatter, *, is_shared: bool = False, records_max: int = _RECORDS_MAX
    ) -> None:
        # The only reentrant queue: the garbage collector may log in the middle of another put.
        self._queue: SimpleQueue[logging.LogRecord | None] = SimpleQueue()
        super().__init__(self._queue)
        self._fd = fd
        # Not the handler's own formatter, which runs in the thread that logs.
        self._lines = formatter
        self._is_shared = is_shared
        self._records_max = records_max
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

    def write_as(self, formatter: logging.Formatter) -> None:
        """Write the lines to come in this format."""
        self._lines = formatter

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Format a library's message now: its arguments may change, and the queue would keep them alive."""
        if not isinstance(record.msg, (Line, partial)):
            try:
                record.msg = record.getMessage()[: _MESSAGE_CHARS_MAX + 1]
            except Exception as error:  # noqa: BLE001 -- a wrong message must not fail the code that logs
                record.msg = f"a message could not be made: {type(error).__name__}"
            record.args = None
        if record.exc_info:
            record.exc_text = self._lines.formatException(record.exc_info)[: _TRACEBACK_CHARS_MAX + 1]
            record.exc_info = None
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        """Queue a record, or drop it when the writer is behind."""
        waiting = self._queue.qsize()
        if self._is_closing or waiting >= (_TRACEBACKS_MAX if record.exc_text else self._records_max):
            self._count_dropped(1)
        else:
            self._queue.put(record)

    def stop(self, timeout_seconds: float = 2.0) -> bool:
        """Take no more records, and wait for the rest to be written; False when they were not in time."""
        self._is_closing = True
        self._queue.put(None)
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        is_open = True
        while is_open:
            records = [self._queue.get()]
            time.sleep(0.0 if self._is_closing else _LINGER_SECONDS)
            while len(records) < _BATCH_MAX and records[-1] is not None:
                try:
                    records.append(self._queue.get_nowait())
                except Empty:
                    break
            is_open = records[-1] is not None
            self._write([self._encoded(record) for record in records if record is not None])
            lost = self._dropped - self._reported
            if lost and self._write([self._encoded(_of_dropped(lost))]):
                self._reported += lost

    def _encoded(self, record: logging.LogRecord) -> bytes:
        try:
            line = self._lines.format(record)
        except Exception as error:  # noqa: BLE001 -- the following lines must be written
            record.msg = f"a line could not be made: {type(error).__name__}"
            record.exc_text = None
            line = self._lines.format(record)
        return line.encode() + b"\n"

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


def _of_dropped(count: int) -> logging.LogRecord:
    line = Line("log lines were dropped", {"dropped": count})
    return logging.LogRecord("gateway", logging.WARNING, "", 0, line, None, None)
