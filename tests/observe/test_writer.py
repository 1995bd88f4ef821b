"""Lines of the log are lines, whatever they say, and a log that cannot be written holds up nobody."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import select
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.observe.logs import Form, Line, LogWriter, as_json, as_text
from tests.support.eventually import eventually_blocking

CAPACITY = 4096
BIG = "x" * (4 * CAPACITY)
NAMES = st.sampled_from(["route", "detail", "request_id"])
# Surrogates are what is left of bytes that were not UTF-8.
HOSTILE = ["\n", "\r\n2025-01-01T00:00:00.000Z error forged", "\x1b[2J", "\u202e", "\u2028", "\x85", "\x7f", "\udcff"]
ANYTHING = st.text(st.characters(codec=None), max_size=40) | st.sampled_from([*HOSTILE, '" a="b'])
LINES = st.builds(
    Line, detail=st.just({}), message=ANYTHING, fields=st.dictionaries(NAMES, ANYTHING | st.integers(0, 9) | st.none())
)


def made(form: Form, message: str | Line, *, seconds: float = 0.0, traceback: str | None = None) -> str:
    line = message if isinstance(message, Line) else Line(message)
    return form(seconds, logging.WARNING, line, traceback, None).decode()


@given(LINES)
def test_whatever_is_logged_is_one_printable_line(line: Line) -> None:
    """Nothing ends it, moves the cursor or turns the direction of reading; of JSON a collector reads one object with
    its level and its fields."""
    shown, text = (made(form, line) for form in (as_json, as_text))
    assert shown.isprintable()
    assert text.isprintable()
    said = json.loads(shown.encode())
    assert said["level"] == "warning"
    assert said.keys() - {"time", "level", "message"} == {k for k, v in line.fields.items() if v is not None}
    text.encode()
    assert text.startswith("1970-01-01T00:00:00.000Z warning ")


@given(ANYTHING)
def test_a_value_cannot_pass_for_another_field(value: str) -> None:
    """A value is bare only where it is one plain verdict; otherwise it is quoted."""
    shown = made(as_text, Line("m", {"detail": value})).partition(" m detail=")[2]
    assert re.fullmatch(r"[A-Za-z0-9_.:/@%+-]+", shown) or isinstance(json.loads(shown), str)


def test_a_traceback_is_indented_and_cannot_forge_a_line() -> None:
    """Each row of a traceback is marked as one, so that no text in it begins a line of the log."""
    traceback = "Traceback:\n2025-01-01T00:00:00.000Z error forged\x1b[2J"
    rows = made(as_text, "broken", traceback=traceback).splitlines()
    assert rows[1:] == ["    | Traceback:", "    | 2025-01-01T00:00:00.000Z error forged\\x1b[2J"]
    said = json.loads(made(as_json, "broken", traceback=traceback))
    assert said["traceback"].splitlines() == [row.removeprefix("    | ") for row in rows[1:]]


@pytest.mark.parametrize("form", [as_json, as_text], ids=["json", "text"])
def test_a_line_is_bounded(form: Form) -> None:
    """However long the parts are, a line stays within a few pages. Its time is UTC to the millisecond."""
    long = "x" * 1_000_000
    text = made(form, Line(long, {"detail": long}), seconds=1_750_000_000.1239, traceback=long)
    assert len(text) < 32 * 1024
    assert "2025-06-15T15:06:40.123Z" in text[:40]


# -- carried to a descriptor ------------------------------------------------------------------------------------------


def plain(_seconds: float, _level: int, line: Line, _traceback: str | None, _worker: int | None) -> bytes:
    """The message alone, or how many were dropped."""
    return (f"dropped {line.fields['dropped']}" if line.fields else line.message).encode()


@pytest.fixture
def ends() -> Iterator[tuple[int, int]]:
    """A pipe of the system that holds little: the end to read, and the end to write."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, CAPACITY)
    yield reading, writing
    os.close(writing)
    try:
        os.close(reading)
    except OSError:
        return  # the test closed it


def log(to: LogWriter, *messages: object) -> None:
    for message in messages:
        to.put(0.0, logging.WARNING, Line(str(message)))


def stuck(reading: int, to: LogWriter) -> None:
    """Have it wait in its first line."""
    log(to, BIG)
    assert select.select([reading], [], [], 5.0)[0], "the writer is stuck in its first line"


def read_lines(fd: int, count: int) -> bytes:
    data = b""
    while data.count(b"\n") < count:
        part = os.read(fd, 65536)
        assert part
        data += part
    return data


def test_lines_come_out_in_order_and_all_of_them_before_the_end(ends: tuple[int, int]) -> None:
    """What was taken is written, in the order in which it came; also what the garbage collector has to say while a
    record is queued, which does not lock the thread up."""
    reading, writing = ends
    to = LogWriter(writing, plain)
    log(to, *range(200))
    to.acquire()
    log(to, "from within")
    to.release()
    assert to.stop()
    assert os.read(reading, CAPACITY) == b"".join(b"%d\n" % number for number in range(200)) + b"from within\n"
    assert to.dropped == 0


def test_a_reader_that_stopped_costs_lines_and_no_time(ends: tuple[int, int]) -> None:
    """With nobody reading, lines are taken up to the bound, dropped beyond it, and the loss is logged afterwards."""
    reading, writing = ends
    to = LogWriter(writing, plain, lines_max=10)
    stuck(reading, to)
    log(to, *range(15))
    assert to.dropped == 5
    data = read_lines(reading, 12)
    assert to.stop()
    assert data.decode().splitlines() == [BIG, "dropped 5", *map(str, range(10))]


def test_tracebacks_have_less_room(ends: tuple[int, int]) -> None:
    """They are as large as many lines, and do not fill the memory either."""
    reading, writing = ends
    to = LogWriter(writing, plain)
    stuck(reading, to)
    try:
        raise RuntimeError("again")
    except RuntimeError:
        broken = sys.exc_info()
    for _ in range(1_200):
        to.handle(logging.LogRecord("gateway", logging.ERROR, "", 0, "x", None, broken))
    assert to.dropped == 200
    log(to, "a line")
    assert to.dropped == 200
    read_lines(reading, 1_003)
    assert to.stop()


def test_a_stuck_pipe_does_not_hold_up_the_end(ends: tuple[int, int]) -> None:
    """Closing gives up after its time, and says so."""
    reading, writing = ends
    to = LogWriter(writing, plain)
    log(to, BIG)
    assert not to.stop(timeout_seconds=0.1)
    log(to, "too late")
    assert to.dropped == 1
    read_lines(reading, 1)
    assert to.stop()


def test_a_reader_that_went_away_costs_the_lines_alone(ends: tuple[int, int]) -> None:
    """A descriptor that refuses loses what was written to it, counted, and ends nothing."""
    reading, writing = ends
    os.close(reading)
    to = LogWriter(writing, plain)
    log(to, "one")
    eventually_blocking(lambda: to.dropped)
    log(to, "two")
    assert to.stop()
    assert to.dropped >= 2


def test_a_descriptor_that_somebody_made_non_blocking_is_waited_for(ends: tuple[int, int]) -> None:
    """`EAGAIN` is no loss."""
    reading, writing = ends
    os.set_blocking(writing, False)
    to = LogWriter(writing, plain)
    log(to, BIG, BIG)
    assert read_lines(reading, 2) == 2 * (BIG.encode() + b"\n")
    assert to.stop()
    assert to.dropped == 0


def test_lines_of_several_processes_are_not_torn(ends: tuple[int, int]) -> None:
    """Whole lines go out in pieces that the system takes in one go, and nothing is lost or reordered."""
    reading, writing = ends
    one, other = (LogWriter(writing, plain, is_shared=True) for _ in range(2))
    lines = [f"{number}-{'x' * (number % 700)}" for number in range(300)]
    for line in lines:
        log(one, f"a{line}")
        log(other, f"b{line}")
    data = read_lines(reading, 600)
    assert one.stop()
    assert other.stop()
    whole = data.decode().splitlines()
    for mark in ("a", "b"):
        assert [line[1:] for line in whole if line.startswith(mark)] == lines
