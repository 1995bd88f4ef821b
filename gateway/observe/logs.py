"""What is logged: the lines that events declare, those that depend on earlier ones, and the lines of libraries.

A request on a protected route is one line. A line never holds a body, a key, a credential, a scope or a query, because
events have none.

Libraries log through the root logger, in the same format. Below `warning` only the gateway's own lines are logged: a
library's debug lines may hold what clients sent.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache, partial
from logging import DEBUG, INFO, WARNING
from queue import SimpleQueue
from typing import Any, Final, Literal, TypeVar, assert_never
from uuid import UUID

import orjson

from gateway.core.operation import Event
from gateway.observe.facts import (
    EventsPublished,
    Fact,
    Line,
    NotesExchanged,
    PublicationResult,
    RequestPassed,
    SweepDone,
    TierChanged,
    UpstreamChanged,
    Value,
)

T = TypeVar("T")

# -- tasks -------------------------------------------------------------------------------------------------------------


class Tasks(set[asyncio.Task[Any]]):
    """Tasks that nobody awaits: held until they end, because the loop keeps none alive. What one of them raises is a
    bug, and logged with this text."""

    def __init__(self, failed: str) -> None:
        super().__init__()
        self._failed = failed

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logging.getLogger("gateway").error("%s", self._failed, exc_info=error)


# -- writer ------------------------------------------------------------------------------------------------------------
# Writes lines of the log on a descriptor, without ever blocking the code that logs.
#
# They are queued as what they are made of; one thread makes and writes them, after a short delay, so that a busy
# gateway makes one system call for many. A paused terminal, a full disk or a collector that does not read its pipe
# blocks that thread alone: once the queue is full, further lines are dropped and counted, and the count is logged as
# soon as lines can be written again.
#
# Whatever is logged, a line has printable characters only and a bounded length, and the value of a field cannot pass
# for another field. Where several processes write to one descriptor, whole lines are written in pieces that a pipe
# takes atomically (`PIPE_BUF`, pipe(7)), so that lines of others cannot split them; a longer line may be split.

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
    """Queues lines, and what loggers log, and writes them to `fd` in this `form`, which may change, until it is closed.
    The caller closes `fd`. `is_shared`: other processes write to `fd`, too."""

    def __init__(
        self, fd: int, form: Form, worker: int | None = None, *, is_shared: bool = False, lines_max: int = _LINES_MAX
    ) -> None:
        super().__init__()
        self._fd, self.form, self._worker, self._is_shared = fd, form, worker, is_shared
        self._lines_max = lines_max
        # Without a lock, like the queue that wakes: the garbage collector may log in the middle of another call.
        self._entries: deque[Entry] = deque()
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._is_idle = False
        self.dropped = 0
        """Lines lost since the start: because the queue was full, or because writing them failed."""
        self._counting = threading.RLock()
        self._reported = 0
        self._is_closing = False
        # A daemon, because a thread that is stuck in a write must not keep the process from exiting.
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

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
            lost = self.dropped - self._reported
            if lost and self._write(
                [self._made(time.time(), logging.WARNING, Line("log lines were dropped", {"dropped": lost}), None)]
            ):
                self._reported += lost

    def _made(self, seconds: float, level: int, message: Message, traceback: str | None) -> bytes:
        try:
            line = message if isinstance(message, Line) else message()
            return self.form(seconds, level, line, traceback, self._worker) + b"\n"
        except Exception as error:  # noqa: BLE001 -- the following lines must be written
            line = Line(f"a line could not be made: {type(error).__name__}")
            return self.form(seconds, level, line, None, self._worker) + b"\n"

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
            self.dropped += count


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


# -- logs --------------------------------------------------------------------------------------------------------------

Level = Literal["debug", "info", "warning", "error"]

_OURS: Final = "gateway"
_FORMS: Final[Mapping[str, Form]] = {"json": as_json, "text": as_text}
# Paths that are warned about; further ones are only counted, by the metrics.
_PATHS_MAX: Final = 1000
_PATH_CHARS_MAX: Final = 200
# Causes of one outage that are logged.
_CAUSES_MAX: Final = 10
# An outage is over when its target has been up for this long.
_STEADY_SECONDS: Final = 60.0


class Logs:
    """The log of this process, and an observer of events. All loggers write to it until `close`. `worker` is the number
    that each line of this process has; `is_shared`: other processes write to the descriptor, too."""

    def __init__(
        self,
        *,
        level: Level = "info",
        format: Literal["json", "text"] = "json",  # noqa: A002 -- the name of the key in the configuration
        requests: Literal["protected", "all", "none"] = "protected",
        worker: int | None = None,
        is_shared: bool = False,
        fd: int = 2,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._writer = LogWriter(fd, _FORMS[format], worker, is_shared=is_shared)
        self._warned_paths: set[str] = set()
        outages = Outages(clock)
        self._special: Mapping[type[Fact], Callable[[Any], None]] = {
            RequestPassed: self._passed,
            SweepDone: self._swept,
            EventsPublished: self._published,
            TierChanged: lambda fact: self._log_all(outages.changed(fact)),
            UpstreamChanged: lambda fact: self._log_all(outages.changed(fact)),
            NotesExchanged: lambda _: self._log_all(outages.ended()),
        }
        root, ours = logging.getLogger(), logging.getLogger(_OURS)
        self._before = (root.handlers, root.level, ours.level)
        root.handlers = [self._writer]
        logging.captureWarnings(True)
        self.adopt(level, format, requests)

    def adopt(
        self,
        level: Level,
        format: Literal["json", "text"],  # noqa: A002
        requests: Literal["protected", "all", "none"],
    ) -> None:
        """Log like this from now on. Have `Events.ask_again` afterwards."""
        self._level, self._requests = logging.getLevelNamesMapping()[level.upper()], requests
        above = max(self._level, WARNING)
        # The lowest level that is logged, of events that are of requests and of others.
        self._least = {True: above if requests == "none" else self._level, False: self._level}
        self._writer.form = _FORMS[format]
        logging.getLogger().setLevel(above)
        logging.getLogger(_OURS).setLevel(self._level)

    @property
    def dropped(self) -> int:
        return self._writer.dropped

    def close(self) -> None:
        """Write what is left, if that is possible in time, and restore the loggers."""
        root = logging.getLogger()
        logging.captureWarnings(False)
        root.handlers, level, ours = self._before
        root.setLevel(level)
        logging.getLogger(_OURS).setLevel(ours)
        self._writer.stop()
        self._writer.close()

    def wants(self, kind: type[Fact]) -> bool:
        return kind in self._special or any(level >= self._least[kind.is_of_request] for level, _, _ in kind.lines)

    def __call__(self, fact: Fact) -> None:
        self._special.get(type(fact), self._say)(fact)

    def _say(self, fact: Fact) -> None:
        """The line that it declares, if one applies. The thread that writes makes it."""
        for level, applies, make in fact.lines:
            if applies is None or applies(fact):
                if level >= self._least[fact.is_of_request]:
                    self._writer.put(self._clock(), level, partial(make, fact))
                return

    def _passed(self, fact: RequestPassed) -> None:
        if self._requests == "all":
            self._say(fact)
        if fact.key_header is not None and fact.path is not None:
            self._warn_unprotected(fact.path[:_PATH_CHARS_MAX], fact)

    def _swept(self, fact: SweepDone) -> None:
        detail = "its lease lapsed: its gateway died, or lost its connection to the store"
        for route, operation_id in fact.named:
            about: dict[str, Value] = {"route": route, "operation_id": operation_id, "event": Event.LAPSE}
            self._log(WARNING, Line("in doubt", {**about, "detail": detail}))
        self._say(fact)

    def _published(self, fact: EventsPublished) -> None:
        if fact.result is not PublicationResult.DELIVERED:
            level = WARNING if fact.result is PublicationResult.REFUSED else DEBUG
            text, detail = f"event for {fact.sink}: {fact.result}", {"sink": fact.sink, "result": fact.result}
            for event_id, type_ in fact.events:
                self._log(level, Line(text, {"event_id": event_id, "type": type_}, detail))

    def _warn_unprotected(self, path: str, fact: RequestPassed) -> None:
        """Warn once per path, for a bounded number of paths."""
        if path in self._warned_paths or len(self._warned_paths) > _PATHS_MAX:
            return
        self._warned_paths.add(path)
        if len(self._warned_paths) > _PATHS_MAX:
            self._log(WARNING, Line("more requests with a key match no route; their paths are no longer listed"))
            return
        about = {"method": fact.method, "path": path, "key_header": fact.key_header}
        self._log(WARNING, Line("a request with a key matches no route: it is not protected", about))

    def _log_all(self, lines: Iterator[tuple[int, Line]]) -> None:
        for level, line in lines:
            self._log(level, line)

    def _log(self, level: int, message: Message) -> None:
        if level >= self._level:
            self._writer.put(self._clock(), level, message)


@dataclass(slots=True)
class _Outage:
    """What was logged about an outage, and since when it has been over, None while it is not."""

    causes: set[str] = field(default_factory=set)
    over_seconds: float | None = None
    comes_and_goes: bool = False


class Outages:
    """Decides which changes of the reachability of stores and upstreams are logged. `clock` gives seconds. An outage is
    logged once for each of its causes, up to a bound, and its end once. A store or upstream that comes and goes (a
    store on a full disk, which can be read but takes no writes; an upstream with a dead address among others) is logged
    as that once, and then not until it has stayed up for a while."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # Of stores and upstreams that are down, or came up a short time ago.
        self._outages: dict[str, _Outage] = {}

    def changed(self, fact: TierChanged | UpstreamChanged) -> Iterator[tuple[int, Line]]:
        """The lines to log, with their levels."""
        match fact:
            case TierChanged(tier, up, detail):
                name, cause, fields = f"the {tier} store", detail, {"detail": detail or None}
            case UpstreamChanged(name, cause, detail):
                up, fields = not cause, {"reason": cause or None, "detail": detail or None}
            case _:
                assert_never(fact)
        if not up:
            yield from self._down(name, cause, fields)
        elif (outage := self._outages.get(name)) is not None:
            if outage.over_seconds is None:
                outage.over_seconds = self._clock()
                if not outage.comes_and_goes:
                    yield INFO, Line(f"{name} is up")
        elif isinstance(fact, TierChanged):
            yield INFO, Line(f"{name} is up")

    def ended(self) -> Iterator[tuple[int, Line]]:
        """The lines about stores and upstreams that were up and down by turns, and now stay up. To be called
        regularly."""
        for name in [name for name, outage in self._outages.items() if self._is_over(outage)]:
            if self._outages.pop(name).comes_and_goes:
                yield INFO, Line(f"{name} stays up")

    def _down(self, name: str, cause: str, fields: Mapping[str, Value]) -> Iterator[tuple[int, Line]]:
        outage = self._outages.get(name)
        is_new = outage is None or self._is_over(outage)
        if outage is None or is_new:
            outage = self._outages[name] = _Outage()
        was_up, outage.over_seconds = outage.over_seconds is not None, None
        if was_up and not outage.comes_and_goes:
            outage.comes_and_goes = True
            outage.causes.add(cause)
            yield WARNING, Line(f"{name} comes and goes; the next line follows when it stays up", fields)
        # Causes may alternate for as long as the outage lasts.
        elif cause not in outage.causes and len(outage.causes) < _CAUSES_MAX:
            outage.causes.add(cause)
            yield WARNING, Line(f"{name} is {'down' if is_new else 'still down'}", fields)

    def _is_over(self, outage: _Outage) -> bool:
        """Whether it has been up for long enough. True also if the clock was set back, since then nobody knows."""
        return outage.over_seconds is not None and not 0 <= self._clock() - outage.over_seconds < _STEADY_SECONDS
