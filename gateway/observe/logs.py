"""What is logged: the lines that events declare, those that depend on earlier ones, and the lines of libraries.

A request on a protected route is one line. A line never holds a body, a key, a credential, a scope or a query, because
events have none.

Libraries log through the root logger, in the same format. Below `warning` only the gateway's own lines are logged: a
library's debug lines may hold what clients sent.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from logging import DEBUG, INFO, WARNING
from typing import Any, Final, Literal, assert_never

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
from gateway.observe.writer import Form, LogWriter, Message, as_json, as_text

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
    """The log of this process, and an observer of events.

    All loggers write to it until `close`. `worker` is the number that each line of this process has; `is_shared`: other
    processes write to the descriptor, too.
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
        self._writer.write_as(_FORMS[format])
        logging.getLogger().setLevel(above)
        logging.getLogger(_OURS).setLevel(self._level)

    @property
    def dropped(self) -> int:
        """Lines that were lost."""
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
    """Decides which changes of the reachability of stores and upstreams are logged. `clock` gives seconds.

    An outage is logged once for each of its causes, up to a bound, and its end once. A store or upstream that comes and
    goes (a store on a full disk, which can be read but takes no writes; an upstream with a dead address among others)
    is logged as that once, and then not until it has stayed up for a while.
    """

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
