"""What is logged: events, and the lines of libraries.

Owns which events become lines, at which level and with which text. A request on a protected route is one line. A line
never holds a body, a key, a credential, a scope or a query, because events have none.

Libraries log through the root logger, in the same format. Below `warning` only the gateway's own lines are logged: a
library's debug lines may hold what clients sent.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from logging import DEBUG, ERROR, INFO, WARNING
from typing import Final, Literal, assert_never

from gateway import PROGRAM
from gateway.core.message import trace_id_of
from gateway.core.operation import Event
from gateway.observe import facts
from gateway.observe.writer import Form, Line, LogWriter, Message, Value, as_json, as_text

Level = Literal["debug", "info", "warning", "error"]

_OURS: Final = "gateway"
_FORMS: Final[Mapping[str, Form]] = {"json": as_json, "text": as_text}
# Paths that are warned about; further ones are only counted, by the metrics.
_PATHS_MAX: Final = 1000
_PATH_CHARS_MAX: Final = 200
_REQUEST_ID_CHARS_MAX: Final = 128
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
        self._level = logging.getLevelNamesMapping()[level.upper()]
        self._requests = requests
        self._clock = clock
        self._writer = LogWriter(fd, _FORMS[format], worker, is_shared=is_shared)
        self._warned_paths: set[str] = set()
        self._outages = Outages(clock)
        root, ours = logging.getLogger(), logging.getLogger(_OURS)
        self._before = (root.handlers, root.level, ours.level)
        root.handlers = [self._writer]
        root.setLevel(max(self._level, WARNING))
        ours.setLevel(self._level)
        logging.captureWarnings(True)

    def adopt(
        self,
        level: Level,
        format: Literal["json", "text"],  # noqa: A002
        requests: Literal["protected", "all", "none"],
    ) -> None:
        """Log like this from now on. Have `Events.ask_again` afterwards."""
        self._level, self._requests = logging.getLevelNamesMapping()[level.upper()], requests
        self._writer.write_as(_FORMS[format])
        logging.getLogger().setLevel(max(self._level, WARNING))
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

    def wants(self, kind: type[facts.Fact]) -> bool:
        if kind in (facts.RequestAnswered, facts.EndedUnanswered, facts.StatusAnswered):
            return self._requests != "none" and self._level <= INFO
        if kind in (facts.WebhookVerified, facts.WebhookRefused, facts.AuthorizationDecided, facts.KeysFetched):
            return False
        return kind not in (facts.OperationClaimed, facts.OperationAccepted, facts.StoreCalled) or self._level <= DEBUG

    def __call__(self, fact: facts.Fact) -> None:  # noqa: C901 -- a case for each kind of fact
        if not self.wants(type(fact)):
            return
        match fact:
            case facts.RequestAnswered():
                self._log(INFO, partial(_answered, fact))
            case facts.StatusAnswered():
                self._log(INFO, partial(_status_answered, fact))
            case facts.RequestPassed():
                if self._requests == "all":
                    self._line(INFO, f"{fact.method} {fact.status} unprotected", **_passed(fact))
                if fact.key_header is not None and fact.path is not None:
                    self._warn_unprotected(fact.path[:_PATH_CHARS_MAX], fact)
            case facts.OperationClaimed():
                self._line(DEBUG, "claimed", **_claim(fact), attempt=fact.attempt)
            case facts.OperationAccepted():
                self._line(DEBUG, "accepted", **_claim(fact), request_bytes=fact.request_bytes)
            case facts.WebhookRepeated(route, operation_id, is_changed, differs):
                if is_changed:
                    self._line(
                        WARNING,
                        "an event came again with another content, and is not delivered",
                        route=route,
                        operation_id=str(operation_id),
                        differs=" ".join(differs) or None,
                    )
            case facts.RepeatNoticed():
                # The line of a refused request says so.
                if fact.result is facts.RepeatResult.COUNTED:
                    self._line(
                        WARNING,
                        "a caller sent a request again under another key",
                        route=fact.route,
                        scope=fact.scope,
                        operation_id=str(fact.operation_id),
                        first_operation=str(fact.first_operation),
                    )
            case facts.WebhookVerified() | facts.WebhookRefused() | facts.AuthorizationDecided() | facts.KeysFetched():
                # The line of the request says so, or a line when the keys of an issuer are out of reach.
                pass
            case facts.DeliveryAttempted():
                is_dead = fact.result is facts.DeliveryResult.DEAD_LETTER
                if is_dead or self._requests != "none":
                    self._log(WARNING if is_dead else INFO, partial(_delivered, fact))
            case facts.BreakerChanged(upstream, is_open, detail):
                text = "the breaker is open: nothing is delivered" if is_open else "the breaker is closed"
                self._line(WARNING if is_open else INFO, text, upstream=upstream, detail=detail or None)
            case facts.EventsPublished():
                is_dead = fact.result is facts.PublicationResult.REFUSED
                if fact.result is not facts.PublicationResult.DELIVERED:
                    for event in fact.events:
                        self._log(WARNING if is_dead else DEBUG, partial(_unpublished, fact, *event))
            case facts.SinkChanged():
                self._sink_changed(fact)
            case facts.OperationTakenOver():
                ids = {"request_id": fact.request.request_id, "trace_id": fact.request.trace_id}
                text = "in doubt, sent again"
                self._line(INFO, text, **_claim(fact), attempt=fact.attempt, **ids)
            case facts.EndedUnanswered():
                self._log(INFO, partial(_ended, fact))
            case facts.OperationSettled():
                self._settled(fact)
            case facts.ProbeMade(route, operation_id, finding, why):
                which = {"route": route, "operation_id": str(operation_id)}
                self._line(INFO, "probed", **which, finding=finding, why=why or None)
            case facts.StoreCalled():
                if fact.error is not None:
                    self._line(DEBUG, "a call of the store failed", tier=fact.tier, verb=fact.verb, error=fact.error)
            case facts.WriteRefused():
                text = f"the store refused the outcome of an attempt: the record is {fact.state} already"
                self._line(ERROR, text, **_claim(fact), event=fact.event)
            case facts.OutcomeJournaled():
                text = "journaled: the durable store has not taken the outcome yet"
                self._line(WARNING, text, **_claim(fact), event=fact.event, detail=fact.detail)
            case facts.JournalFailed(detail, is_first):
                text = "neither the durable store nor the journal takes an outcome"
                self._line(ERROR if is_first else DEBUG, text, detail=detail)
            case facts.RecordUnreadable(operation_id, why, is_logged):
                text = "a record cannot be decrypted; its response is not replayed any more"
                self._line(ERROR if is_logged else DEBUG, text, operation=str(operation_id), detail=why)
            case facts.FlushRefused():
                text = "the durable store refused a journaled outcome, which is kept in the journal"
                self._line(ERROR, text, **_claim(fact), event=fact.event, detail=fact.detail)
            case facts.LeaseLost(operation_id, token, detail):
                text = "the lease of a running attempt is lost"
                self._line(WARNING, text, operation_id=str(operation_id), token=token, detail=detail)
            case facts.MemoryChanged(is_lost, left_seconds, why, by):
                if is_lost:
                    text = "the durable store lost its memory: requests with keys that it does not have are refused"
                    self._line(ERROR, f"{text}; see: {PROGRAM} memory", why=why, for_seconds=round(left_seconds))
                else:
                    self._line(WARNING, "the durable store is trusted again", why=why, by=by or None)
            case facts.PromotionJudged(timeline, result, why, unvouched):
                text = f"a standby of the durable store was promoted: {result}"
                self._line(WARNING, text, timeline=timeline, why=why, unvouched=unvouched or None)
            case facts.GrantsChanged(why, is_brief):
                text = "no key is granted for now" if why else "keys are granted"
                self._line(WARNING if why and not is_brief else INFO, text, why=why or None)
            case facts.StoreMet() | facts.SynchronyChanged():
                # Metrics show it.
                pass
            case facts.NotesExchanged():
                for level, line in self._outages.ended():
                    self._log(level, line)
            case facts.TierChanged() | facts.UpstreamChanged():
                for level, line in self._outages.changed(fact):
                    self._log(level, line)
            case facts.SweepDone():
                self._swept(fact)
            case facts.TallyTaken(in_doubt, oldest_seconds):
                if in_doubt:
                    count = sum(count for _, count in in_doubt)
                    self._line(DEBUG, "operations are in doubt", in_doubt=count, oldest_seconds=oldest_seconds)
            case facts.RequestObserved() | facts.ObservationDropped():
                # Metrics count it, and `observe report` shows it.
                pass
            case facts.BacklogTaken() | facts.EventsCounted() | facts.AdminActed() | facts.SignedIn():
                # Metrics count it; each delivery, dead letter and action has its own line.
                pass
            case facts.RegionAsked(region, result, detail):
                # That a region cannot be reached is a line of its upstream's.
                self._line(DEBUG, f"sent to region {region}", result=result, detail=detail)
            case facts.LoopStalled():
                self._line(WARNING, f"the event loop was blocked for {fact.lag_seconds:.1f} s")
            case _:
                assert_never(fact)

    def _sink_changed(self, fact: facts.SinkChanged) -> None:
        # What the sink answered is for operators alone.
        see, about = f"see: {PROGRAM} sinks", {"sink": fact.sink, "detail": fact.cause}
        if fact.is_suspended:
            self._line(ERROR, f"a sink is suspended: its events wait until it is resumed; {see}", **about)
        elif fact.is_failing:
            self._line(WARNING, f"a sink fails: its events wait; {see}", **about)
        else:
            self._line(INFO, "a sink takes events again", sink=fact.sink)

    def _swept(self, fact: facts.SweepDone) -> None:
        for route, operation_id in fact.named:
            self._line(
                WARNING,
                "in doubt",
                route=route,
                operation_id=str(operation_id),
                event=Event.LAPSE,
                detail="its lease lapsed: its gateway died, or lost its connection to the store",
            )
        # Leases lapse when a gateway dies, and this line helps to find out why.
        self._line(
            WARNING if fact.expired else INFO if fact.lapsed else DEBUG,
            "swept; some operations were not delivered in time, and are dead letters" if fact.expired else "swept",
            lapsed=fact.lapsed,
            expired=fact.expired or None,
            retired=fact.retired,
            collected=fact.collected,
            duration_ms=_milliseconds(fact.duration_seconds),
        )

    def _settled(self, fact: facts.OperationSettled) -> None:
        is_in_doubt = fact.event is Event.ABANDON
        if not is_in_doubt and not fact.is_late and self._level > DEBUG:
            return
        message = "in doubt" if is_in_doubt else "settled"
        self._line(
            WARNING if is_in_doubt or fact.is_late else DEBUG,
            f"{message}, recorded late" if fact.is_late else message,
            **_claim(fact),
            event=fact.event,
            detail=fact.detail,
        )

    def _warn_unprotected(self, path: str, fact: facts.RequestPassed) -> None:
        """Warn once per path, for a bounded number of paths."""
        if path in self._warned_paths or len(self._warned_paths) > _PATHS_MAX:
            return
        self._warned_paths.add(path)
        if len(self._warned_paths) > _PATHS_MAX:
            self._line(WARNING, "more requests with a key match no route; their paths are no longer listed")
            return
        self._line(
            WARNING,
            "a request with a key matches no route: it is not protected",
            method=fact.method,
            path=path,
            key_header=fact.key_header,
        )

    def _line(self, level: int, message: str, **fields: Value) -> None:
        self._log(level, Line(message, fields))

    def _log(self, level: int, message: Message) -> None:
        if level >= self._level:
            self._writer.put(self._clock(), level, message)


def _answered(fact: facts.RequestAnswered) -> Line:
    return Line(
        f"{fact.method} {fact.route} {fact.status} {fact.verdict}",
        {
            "upstream_status": fact.upstream_status,
            "duration_ms": _milliseconds(fact.duration_seconds),
            "attempt": fact.attempt or None,
            "operation_id": None if fact.operation_id is None else str(fact.operation_id),
            "why": fact.why,
            "differs": " ".join(fact.differs) or None,
            "first_operation": None if fact.first_operation is None else str(fact.first_operation),
            "scope": fact.scope,
            "request_id": None if fact.request_id is None else fact.request_id[:_REQUEST_ID_CHARS_MAX],
            "trace_id": trace_id_of(fact.trace_id),
        },
        {"method": fact.method, "route": fact.route, "status": fact.status, "verdict": fact.verdict},
    )


def _status_answered(fact: facts.StatusAnswered) -> Line:
    return Line(
        f"{fact.method} {fact.part} of an operation {fact.status}",
        {
            "duration_ms": _milliseconds(fact.duration_seconds),
            "verdict": fact.verdict,
            "route": fact.route,
            "operation_id": None if fact.operation_id is None else str(fact.operation_id),
        },
        {"method": fact.method, "status": fact.status},
    )


def _ended(fact: facts.EndedUnanswered) -> Line:
    request = fact.request
    return Line(
        f"{request.method} {fact.route} {fact.status} {fact.verdict}, after its caller stopped waiting",
        {
            "upstream_status": fact.upstream_status,
            "duration_ms": _milliseconds(fact.duration_seconds),
            "attempt": fact.attempt,
            "operation_id": str(fact.operation_id),
            "request_id": request.request_id,
            "trace_id": request.trace_id,
        },
        {"method": request.method, "route": fact.route, "status": fact.status, "verdict": fact.verdict},
    )


def _delivered(fact: facts.DeliveryAttempted) -> Line:
    request, pause_seconds = fact.request, fact.pause_seconds
    return Line(
        f"delivery of {fact.route}: {fact.result}",
        {
            "detail": fact.detail or None,
            "upstream_status": fact.upstream_status,
            "duration_ms": _milliseconds(fact.duration_seconds),
            "next_attempt_seconds": None if pause_seconds is None else round(pause_seconds, 3),
            "attempt": fact.attempt,
            "operation_id": str(fact.operation_id),
            "token": fact.token,
            "request_id": None if request is None else request.request_id,
            "trace_id": None if request is None else request.trace_id,
        },
        {"route": fact.route, "result": fact.result},
    )


def _unpublished(fact: facts.EventsPublished, event_id: str, type_: str) -> Line:
    return Line(
        f"event for {fact.sink}: {fact.result}",
        {"event_id": event_id, "type": type_},
        {"sink": fact.sink, "result": fact.result},
    )


def _claim(fact: facts.OfClaim) -> dict[str, Value]:
    """The claim that an event is about."""
    return {"route": fact.route, "operation_id": str(fact.operation_id), "token": fact.token}


def _passed(fact: facts.RequestPassed) -> dict[str, Value]:
    return {
        "reason": fact.reason,
        "route": fact.route,
        "duration_ms": _milliseconds(fact.duration_seconds),
        "why": fact.why,
    }


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)


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

    def changed(self, fact: facts.TierChanged | facts.UpstreamChanged) -> Iterator[tuple[int, Line]]:
        """The lines to log, with their levels."""
        match fact:
            case facts.TierChanged(tier, up, detail):
                name, cause, fields = f"the {tier} store", detail, {"detail": detail or None}
            case facts.UpstreamChanged(name, cause, detail):
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
        elif isinstance(fact, facts.TierChanged):
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
