"""What the log says, and what it never says."""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from gateway.core.operation import Event, RequestInfo
from gateway.core.verdict import Verdict
from gateway.observe import facts
from gateway.observe.logs import Logs

OPERATION = UUID("8f14e45f-ceea-4a7a-9c1e-1f0b6a3d2c4b")
NOON = 1_750_000_000.5
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def delivery(result: facts.DeliveryResult) -> facts.DeliveryAttempted:
    return facts.DeliveryAttempted("r", OPERATION, 6, 2, result, "answered_503", 503, 0.25, 1.5)


ANSWERED = facts.RequestAnswered(
    route="create_payment",
    verdict=Verdict.STORED,
    status=201,
    duration_seconds=0.0123456,
    method="POST",
    operation_id=OPERATION,
    upstream_status=201,
    attempt=1,
    request_id="req-7",
    trace_id=f"00-{TRACE}-00f067aa0ba902b7-01",
)
REQUEST = RequestInfo("POST", "shop.example", "/v1/payments", "req-7", TRACE)
PASSED = facts.RequestPassed(None, "GET", 200, 0.001)


class Paper:
    """A file that logs write to. To read it is to close them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._open: list[Logs] = []

    def logs(self, **options: Any) -> Logs:
        self._open.append(Logs(clock=lambda: NOON, fd=self.fd, **options))
        return self._open[-1]

    def close(self) -> None:
        while self._open:
            self._open.pop().close()

    @property
    def lines(self) -> list[bytes]:
        self.close()
        return self._path.read_bytes().splitlines(keepends=True)

    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


@pytest.fixture
def paper(tmp_path: Path) -> Iterator[Paper]:
    paper = Paper(tmp_path / "log")
    yield paper
    paper.close()
    os.close(paper.fd)


def test_a_request_is_one_json_line(paper: Paper) -> None:
    """Everything that is known of a request stands under its own name; that of a worker has its number, and so have
    lines of libraries."""
    paper.logs()(ANSWERED)
    paper.close()
    paper.logs(worker=2)(ANSWERED)
    logging.getLogger("asyncio").warning("something")
    whole, of_worker, of_library = paper.objects()
    assert whole == {
        "time": "2025-06-15T15:06:40.500Z",
        "level": "info",
        "message": "POST create_payment 201 stored",
        "method": "POST",
        "route": "create_payment",
        "status": 201,
        "verdict": "stored",
        "upstream_status": 201,
        "duration_ms": 12.346,
        "attempt": 1,
        "operation_id": str(OPERATION),
        "request_id": "req-7",
        "trace_id": TRACE,
    }
    assert of_worker == {**whole, "worker": 2}
    assert of_library["worker"] == 2


def test_who_uses_keys_wrongly_can_be_told_by_the_line(paper: Paper) -> None:
    """A mismatch says in what, a repeat of what, and both by whom; a repeat that was refused has no second line."""
    log = paper.logs()
    first = UUID(int=6)
    log(replace(ANSWERED, verdict=Verdict.KEY_REUSED, differs=("host", "body:/amount"), scope="5c0be"))
    log(replace(ANSWERED, verdict=Verdict.LIKELY_DUPLICATE, first_operation=first, scope="5c0be"))
    log(facts.RepeatNoticed("create_payment", facts.RepeatResult.REFUSED, OPERATION, first, "5c0be"))
    mismatch, repeat = paper.objects()
    assert (mismatch["differs"], mismatch["scope"]) == ("host body:/amount", "5c0be")
    assert (repeat["first_operation"], repeat["scope"]) == (str(first), "5c0be")


def test_a_request_is_one_line_that_can_be_read(paper: Paper) -> None:
    """Text begins with when, how grave and what, and nothing is said twice."""
    paper.logs(format="text")(ANSWERED)
    assert paper.lines == [
        b"2025-06-15T15:06:40.500Z info    POST create_payment 201 stored upstream_status=201 duration_ms=12.3 "
        b"attempt=1 operation_id=" + str(OPERATION).encode() + b" request_id=req-7 trace_id=" + TRACE.encode() + b"\n"
    ]


CLAIMED, DOWN = facts.OperationClaimed("r", OPERATION, 5, 1), facts.TierChanged("durable", False)
TOLD, TOLD_PASSED = "POST create_payment 201 stored", "GET 200 unprotected"


@pytest.mark.parametrize(
    ("options", "messages"),
    [
        ({"requests": "protected"}, [TOLD, "the durable store is down"]),
        ({"requests": "none"}, ["the durable store is down"]),
        ({"requests": "all"}, [TOLD, TOLD_PASSED, "the durable store is down"]),
        ({"requests": "none", "level": "debug"}, ["claimed", "the durable store is down"]),
    ],
)
def test_the_configuration_says_which_requests_get_a_line(
    paper: Paper, options: dict[str, str], messages: list[str]
) -> None:
    """`log.requests` is about lines of requests and nothing else. What happens many times a second and went well is
    counted, not told."""
    events = facts.Events(paper.logs(**options))
    for fact in (
        ANSWERED,
        PASSED,
        CLAIMED,
        facts.StoreCalled("durable", "claim", 0.1),
        facts.TallyTaken((), 0.0),
        DOWN,
    ):
        events.publish(fact)
    assert [line["message"] for line in paper.objects()] == messages


def test_the_level_holds_for_facts(paper: Paper) -> None:
    observer = paper.logs(level="warning", requests="all")
    for fact in (ANSWERED, PASSED, facts.TierChanged("durable", True), CLAIMED):
        observer(fact)
    assert paper.lines == []


OF: Any = ("r", OPERATION, 5)
DONE: Any = (*OF, Event.COMPLETE, "answered 200", 0.1)
LINES: dict[str, tuple[facts.Fact, str, str]] = {
    "again": (facts.OperationTakenOver(*OF, 2, REQUEST), "info", "in doubt, sent again"),
    "settled-late": (facts.OperationSettled(*DONE, True), "warning", "settled, recorded late"),
    "in-doubt": (facts.OperationSettled(*OF, Event.ABANDON, "timeout: no answer", 0.1, False), "warning", "no answer"),
    "refused": (facts.WriteRefused(*OF, Event.COMPLETE, "in_doubt"), "error", "refused"),
    "journal-failed": (facts.JournalFailed("no space", is_first=True), "error", "no space"),
    "journal-fails-on": (facts.JournalFailed("no space", is_first=False), "debug", "no space"),
    "store-down": (facts.TierChanged("durable", False), "warning", "durable store is down"),
    "store-up": (facts.TierChanged("durable", True), "info", "durable store is up"),
    "swept-lapsed": (facts.SweepDone(1, 0, 0, 0.5), "info", "lapsed"),
    "swept-expired": (facts.SweepDone(0, 0, 0, 0.5, expired=2), "warning", "dead letters"),
    "open": (facts.BreakerChanged("http://x", True, "connect_refused"), "warning", "connect_refused"),
    "closed": (facts.BreakerChanged("http://x", False), "info", "the breaker is closed"),
    "sink-fails": (facts.SinkChanged("ledger", is_failing=True, cause="HTTP 503"), "warning", "HTTP 503"),
    "sink-suspended": (facts.SinkChanged("ledger", True, cause="HTTP 410"), "error", "see: idempotency-gateway sinks"),
}


@pytest.mark.parametrize(("fact", "level", "words"), LINES.values(), ids=LINES)
def test_a_fact_has_its_level(paper: Paper, fact: facts.Fact, level: str, words: str) -> None:
    """What needs somebody is a warning or worse; the rest is there for who looks."""
    paper.logs(level="debug")(fact)
    (said,) = paper.objects()
    assert said["level"] == level
    assert words in paper.lines[0].decode()


def test_what_lapsed_is_named(paper: Paper) -> None:
    """Whoever is called because of an operation that a dead gateway left in doubt finds it in the log."""
    paper.logs()(facts.SweepDone(1, 0, 0, 0.5, (("create_payment", OPERATION),)))
    named, swept = paper.objects()
    said = {"level": "warning", "message": "in doubt", "route": "create_payment", "operation_id": str(OPERATION)}
    assert named.items() >= said.items()
    assert "lapsed" in named["detail"]
    assert (swept["message"], swept["lapsed"]) == ("swept", 1)


def test_the_causes_of_an_outage_are_bounded(paper: Paper) -> None:
    """Each cause of an outage is told once, of so many causes; the next outage begins anew."""
    observer = paper.logs()
    for cause in ("refused", "wrong password", "refused", "wrong password"):
        observer(facts.TierChanged("fast", False, cause))
    for number in range(100):
        observer(facts.TierChanged("fast", False, f"cause {number}"))
    observer(facts.TierChanged("fast", True))
    observer(facts.TierChanged("fast", False, "refused"))
    said = paper.objects()
    assert [(line["message"], line["detail"]) for line in said[:2]] == [
        ("the fast store is down", "refused"),
        ("the fast store is still down", "wrong password"),
    ]
    assert [line["message"] for line in said[2:]] == [
        *["the fast store is still down"] * 8,
        "the fast store is up",
        "the fast store comes and goes; the next line follows when it stays up",
    ]


def test_a_delivery_is_a_line(paper: Paper) -> None:
    """It says which operation, how it ended and why, and when it is tried again; without requests only the dead."""
    paper.logs()(delivery(facts.DeliveryResult.POSTPONED))
    (said,) = paper.objects()
    known = {"detail": "answered_503", "upstream_status": 503, "next_attempt_seconds": 1.5, "attempt": 2, "token": 6}
    assert said.items() >= {"message": "delivery of r: postponed", **known}.items()
    quiet = paper.logs(requests="none")
    for result in facts.DeliveryResult:
        quiet(delivery(result))
    assert [(each["level"], each["result"]) for each in paper.objects()[1:]] == [("warning", "dead_letter")]


def test_a_path_is_warned_about_once(paper: Paper) -> None:
    """A client that calls an unprotected path all day does not fill the log with it. Paths that hold an id cannot fill
    the memory: after a thousand it is said that there are more, once."""
    observer = paper.logs()
    for number in range(1500):
        for _ in range(2):
            observer(facts.RequestPassed(None, "POST", 200, 0.1, "Idempotency-Key", f"/v1/{number}/{'x' * 500}"))
    said = paper.objects()
    assert len(said) == 1001
    assert "no longer listed" in said[-1]["message"]
    assert [len(line["path"]) for line in said[:-1]] == [200] * 1000


def test_libraries_speak_through_the_same_log(paper: Paper) -> None:
    """A warning of a library, or of Python, has the shape of ours and names its logger; chatter is not let through. A
    mistake in a call of a logger neither fails its caller nor disappears."""
    paper.logs(level="debug")
    library = logging.getLogger("asyncio")
    library.warning("Executing %r took %.1f s", "x\ny", 2)
    library.warning("%d", "five")
    library.warning(ValueError("no text, but an object"))
    logging.getLogger("aiohttp.access").info("GET /?token=secret")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old", UserWarning, stacklevel=1)
    *said, of_python = paper.objects()
    assert {(line["level"], line["logger"]) for line in said} == {("warning", "asyncio")}
    assert [line["message"] for line in said] == [
        "Executing 'x\\ny' took 2.0 s",
        "a message could not be made: TypeError",
        "no text, but an object",
    ]
    assert of_python["logger"] == "py.warnings"


def test_an_error_of_the_program_comes_with_its_traceback(paper: Paper) -> None:
    """What an observer raises is told through the log as any other error, on one line of JSON."""

    def broken(fact: facts.Fact) -> None:
        raise RuntimeError("first\nsecond")

    paper.logs()
    facts.Events(broken).publish(PASSED)
    (said,) = paper.objects()
    assert said["level"] == "error"
    assert said["traceback"].endswith("RuntimeError: first\nsecond")
    assert "logger" not in said
