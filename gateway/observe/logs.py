"""What is logged: facts as lines, and the lines of the libraries beside them.

Owns which facts become lines, at which level and in which words. One request on a protected route is one line. A line
never holds a body, a key, a credential, a scope or a query: facts carry none, and nothing else is asked.

The lines of everybody else come through the root logger, in the same shape. Below `warning` only our own are let
through: what a library says of its inner life may hold what callers sent.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final, Literal, assert_never

from gateway import PROGRAM
from gateway.core.message import trace_id_of
from gateway.core.operation import Event
from gateway.observe.facts import (
    EndedUnanswered,
    Fact,
    FlushRefused,
    JournalFailed,
    LeaseLost,
    LoopStalled,
    MemoryChanged,
    OperationClaimed,
    OperationSettled,
    OperationTakenOver,
    OutcomeJournaled,
    ProbeMade,
    RequestAnswered,
    RequestPassed,
    StoreCalled,
    SweepDone,
    TallyTaken,
    TierChanged,
    UpstreamChanged,
    WriteRefused,
)
from gateway.observe.lines import Entry, Shape, json_line, text_line
from gateway.observe.outages import Outages
from gateway.observe.pipe import LinePipe

Level = Literal["debug", "info", "warning", "error"]

_RANKS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_OURS: Final = "gateway"
# Paths that were warned about; more are counted by the metrics alone.
_PATHS_MAX: Final = 1000
_PATH_CHARS_MAX: Final = 200
_REQUEST_ID_CHARS_MAX: Final = 128


class Logs:
    """The log of this process, and an observer of facts.

    From its making to `close` it is where all loggers write to. `worker` is the number that each line of this process
    carries; `is_shared`: other processes write to the descriptor, too.
    """

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
        pipe: Callable[[int, Callable[[int], bytes]], LinePipe] | None = None,
    ) -> None:
        self._rank = _RANKS[level]
        self._requests = requests
        self._clock = clock
        shape: Shape = json_line if format == "json" else text_line
        self._shape = shape if worker is None else _numbered(shape, worker)
        self._pipe = (pipe or partial(LinePipe, is_shared=is_shared))(fd, self._tell_dropped)
        self._warned_paths: set[str] = set()
        self._outages = Outages(clock)
        self._handler = _Handler(self._write)
        root, ours = logging.getLogger(), logging.getLogger(_OURS)
        self._before = (root.handlers, root.level, ours.level)
        root.handlers = [self._handler]
        root.setLevel(max(self._rank, logging.WARNING))
        ours.setLevel(self._rank)
        logging.captureWarnings(True)

    @property
    def dropped(self) -> int:
        """Lines that were lost."""
        return self._pipe.dropped

    def close(self) -> None:
        """Write what is left, if that is possible in time, and give the loggers back."""
        root = logging.getLogger()
        logging.captureWarnings(False)
        root.handlers, level, ours = self._before
        root.setLevel(level)
        logging.getLogger(_OURS).setLevel(ours)
        self._pipe.close()

    def wants(self, kind: type[Fact]) -> bool:
        if kind is RequestAnswered or kind is EndedUnanswered:
            return self._requests != "none" and self._rank <= _RANKS["info"]
        return kind not in (OperationClaimed, StoreCalled) or self._rank <= _RANKS["debug"]

    def __call__(self, fact: Fact) -> None:  # noqa: C901 -- a case for each kind of fact
        if not self.wants(type(fact)):
            return
        match fact:
            case RequestAnswered():
                self._write(self._clock(), _answered(fact))
            case RequestPassed():
                if self._requests == "all":
                    self._say("info", f"{fact.method} {fact.status} unprotected", **_passed(fact))
                if fact.key_field is not None and fact.path is not None:
                    self._warn_unprotected(fact.path[:_PATH_CHARS_MAX], fact)
            case OperationClaimed():
                self._say("debug", "claimed", **_claim(fact), attempt=fact.attempt)
            case OperationTakenOver():
                ids = {"request_id": fact.request.request_id, "trace_id": fact.request.trace_id}
                text = "in doubt, and sent again"
                self._say("info", text, **_claim(fact), attempt=fact.attempt, **ids)
            case EndedUnanswered():
                self._write(self._clock(), _ended(fact))
            case OperationSettled():
                self._settled(fact)
            case ProbeMade(route, operation_id, finding, why):
                which = {"route": route, "operation_id": str(operation_id)}
                self._say("info", "probed", **which, finding=finding, why=why or None)
            case StoreCalled():
                if fact.error is not None:
                    self._say("debug", "a call of the store failed", tier=fact.tier, verb=fact.verb, error=fact.error)
            case WriteRefused():
                text = f"the outcome of an attempt was refused: the record is {fact.state} without it"
                self._say("error", text, **_claim(fact), event=fact.event)
            case OutcomeJournaled():
                text = "journaled: the durable store has yet to take the outcome"
                self._say("warning", text, **_claim(fact), event=fact.event, detail=fact.detail)
            case JournalFailed(detail, is_first):
                text = "neither the durable store nor the journal takes an outcome"
                self._say("error" if is_first else "debug", text, detail=detail)
            case FlushRefused():
                text = "the durable store refused a journaled outcome, which is kept in the journal"
                self._say("error", text, **_claim(fact), event=fact.event, detail=fact.detail)
            case LeaseLost(operation_id, token, detail):
                text = "the lease of a running attempt is lost"
                self._say("warning", text, operation_id=str(operation_id), token=token, detail=detail)
            case MemoryChanged(is_lost, left_seconds, why, by):
                if is_lost:
                    text = "the durable store lost its memory: keys that it does not have are refused"
                    self._say("error", f"{text}; see: {PROGRAM} memory", why=why, for_seconds=round(left_seconds))
                else:
                    self._say("warning", "the durable store is believed again", why=why, by=by or None)
            case TierChanged() | UpstreamChanged():
                self._tell(self._outages.line(fact))
            case SweepDone():
                self._swept(fact)
            case TallyTaken(in_doubt, oldest_seconds):
                # It comes every few seconds while the durable store answers.
                for entry in self._outages.lasting():
                    self._tell(entry)
                if in_doubt:
                    count = sum(count for _, count in in_doubt)
                    self._say("debug", "operations are in doubt", in_doubt=count, oldest_seconds=oldest_seconds)
            case LoopStalled():
                self._say("warning", f"the event loop was held up for {fact.lag_seconds:.1f} s")
            case _:
                assert_never(fact)

    def _swept(self, fact: SweepDone) -> None:
        for route, operation_id in fact.named:
            self._say(
                "warning",
                "in doubt",
                route=route,
                operation_id=str(operation_id),
                event=Event.LAPSE,
                detail="its lease lapsed: its gateway died, or was cut off from the store",
            )
        # Leases lapse when a gateway dies: whoever looks into that wants to find it.
        self._say(
            "info" if fact.lapsed else "debug",
            "swept",
            lapsed=fact.lapsed,
            retired=fact.retired,
            collected=fact.collected,
            duration_ms=_milliseconds(fact.duration_seconds),
        )

    def _settled(self, fact: OperationSettled) -> None:
        is_in_doubt = fact.event is Event.ABANDON
        if not is_in_doubt and not fact.is_late and self._rank > _RANKS["debug"]:
            return
        message = "in doubt" if is_in_doubt else "settled"
        self._say(
            "warning" if is_in_doubt or fact.is_late else "debug",
            f"{message}, recorded late" if fact.is_late else message,
            **_claim(fact),
            event=fact.event,
            detail=fact.detail,
        )

    def _warn_unprotected(self, path: str, fact: RequestPassed) -> None:
        """Once per path, and of so many paths."""
        if path in self._warned_paths or len(self._warned_paths) > _PATHS_MAX:
            return
        self._warned_paths.add(path)
        if len(self._warned_paths) > _PATHS_MAX:
            self._say("warning", "more requests with a key match no route; their paths are no longer listed")
            return
        self._say(
            "warning",
            "a request with a key matches no route: it is not protected",
            method=fact.method,
            path=path,
            key_field=fact.key_field,
        )

    def _say(self, level: Level, message: str, **fields: str | float | None) -> None:
        self._tell(Entry(level, message, fields))

    def _tell(self, entry: Entry | None) -> None:
        if entry is not None and self._rank <= _RANKS[entry.level]:
            self._write(self._clock(), entry)

    def _write(self, seconds: float, entry: Entry) -> None:
        self._pipe.write(self._shape(seconds, entry), urgent=entry.level not in ("debug", "info"))

    def _tell_dropped(self, count: int) -> bytes:
        return self._shape(self._clock(), Entry("warning", "lines of the log were dropped", {"dropped": count}))


def _numbered(shape: Shape, worker: int) -> Shape:
    """The shape with the number of the worker in each line."""

    def numbered(seconds: float, entry: Entry) -> bytes:
        return shape(seconds, replace(entry, fields={**entry.fields, "worker": worker}))

    return numbered


def _answered(fact: RequestAnswered) -> Entry:
    return Entry(
        "info",
        f"{fact.method} {fact.route} {fact.status} {fact.word}",
        {
            "upstream_status": fact.upstream_status,
            "duration_ms": _milliseconds(fact.duration_seconds),
            "attempt": fact.attempt or None,
            "operation_id": None if fact.operation_id is None else str(fact.operation_id),
            "why": fact.why,
            "request_id": None if fact.request_id is None else fact.request_id[:_REQUEST_ID_CHARS_MAX],
            "trace_id": trace_id_of(fact.trace_id),
        },
        {"method": fact.method, "route": fact.route, "status": fact.status, "verdict": fact.word},
    )


def _ended(fact: EndedUnanswered) -> Entry:
    request = fact.request
    return Entry(
        "info",
        f"{request.method} {fact.route} {fact.status} {fact.word}, when its caller waited no longer",
        {
            "upstream_status": fact.upstream_status,
            "duration_ms": _milliseconds(fact.duration_seconds),
            "attempt": fact.attempt,
            "operation_id": str(fact.operation_id),
            "request_id": request.request_id,
            "trace_id": request.trace_id,
        },
        {"method": request.method, "route": fact.route, "status": fact.status, "verdict": fact.word},
    )


def _claim(
    fact: OperationClaimed | OperationTakenOver | OperationSettled | WriteRefused | OutcomeJournaled | FlushRefused,
) -> dict[str, str | float | None]:
    """Which claim a fact is about."""
    return {"route": fact.route, "operation_id": str(fact.operation_id), "token": fact.token}


def _passed(fact: RequestPassed) -> dict[str, str | float | None]:
    return {
        "reason": fact.reason,
        "route": fact.route,
        "duration_ms": _milliseconds(fact.duration_seconds),
        "why": fact.why,
    }


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)


class _Handler(logging.Handler):
    """From the loggers of Python to entries."""

    _formatter = logging.Formatter()

    def __init__(self, write: Callable[[float, Entry], None]) -> None:
        super().__init__()
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = record.getMessage()
            traceback = self._formatter.formatException(record.exc_info) if record.exc_info else None
        except Exception as error:  # noqa: BLE001 -- a message that cannot be made is no reason to fail whoever logs it
            message, traceback = f"a message could not be made: {type(error).__name__}", None
        logger = None if record.name == _OURS else record.name
        level = record.levelname.lower()
        self._write(record.created, Entry(level, message, {"logger": logger}, traceback=traceback))
