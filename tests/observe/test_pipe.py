"""A log that cannot be written holds up nobody."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator

import pytest

from gateway.observe.pipe import LinePipe
from tests.support.eventually import eventually_blocking

CAPACITY = 4096
BIG = b"x" * (4 * CAPACITY) + b"\n"


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


def told(count: int) -> bytes:
    return b"dropped %d\n" % count


def read_lines(fd: int, count: int) -> bytes:
    data = b""
    while data.count(b"\n") < count:
        part = os.read(fd, 65536)
        assert part
        data += part
    return data


def test_lines_come_out_in_order_and_all_of_them_before_the_end(ends: tuple[int, int]) -> None:
    """What was taken is written, in the order in which it came."""
    reading, writing = ends
    pipe = LinePipe(writing, told)
    lines = [b"%d\n" % number for number in range(200)]
    for line in lines:
        pipe.write(line)
    assert pipe.close()
    assert os.read(reading, CAPACITY) == b"".join(lines)
    assert pipe.dropped == 0


@pytest.mark.parametrize(
    "bounds", [{"lines_max": 10}, {"bytes_max": len(BIG) + 9 * 2}], ids=["too-many-lines", "too-many-bytes"]
)
def test_a_reader_that_stopped_costs_lines_and_no_time(ends: tuple[int, int], bounds: dict[str, int]) -> None:
    """With nobody reading, lines are taken up to the bound, dropped beyond it, and the loss is told afterwards."""
    reading, writing = ends
    pipe = LinePipe(writing, told, **bounds)
    pipe.write(BIG)
    for number in range(14):
        pipe.write(b"%d\n" % (number % 9))
    assert pipe.dropped == 5
    data = read_lines(reading, 11)
    assert pipe.close()
    assert sorted(data.split(b"\n")) == sorted([b"", BIG[:-1], b"dropped 5", *[b"%d" % number for number in range(9)]])


def test_a_stuck_pipe_does_not_hold_up_the_end(ends: tuple[int, int]) -> None:
    """Closing gives up after its time, and says so."""
    reading, writing = ends
    pipe = LinePipe(writing, told)
    pipe.write(BIG)
    assert not pipe.close(timeout_seconds=0.01)
    pipe.write(b"too late\n")
    assert pipe.dropped == 1
    read_lines(reading, 1)
    assert pipe.close()


def test_a_reader_that_went_away_costs_the_lines_alone(ends: tuple[int, int]) -> None:
    """A descriptor that refuses loses what was written to it, counted, and ends nothing."""
    reading, writing = ends
    os.close(reading)
    pipe = LinePipe(writing, told)
    pipe.write(b"one\n", urgent=True)
    eventually_blocking(lambda: pipe.dropped)
    pipe.write(b"two\n")
    assert pipe.close()
    assert pipe.dropped >= 2


def test_a_descriptor_that_somebody_made_non_blocking_is_waited_for(ends: tuple[int, int]) -> None:
    """`EAGAIN` is no loss."""
    reading, writing = ends
    os.set_blocking(writing, False)
    pipe = LinePipe(writing, told)
    pipe.write(BIG, urgent=True)
    assert read_lines(reading, 1) == BIG
    assert pipe.close()
    assert pipe.dropped == 0


def test_a_line_may_be_written_from_within_a_write(ends: tuple[int, int]) -> None:
    """What the garbage collector has to say in the middle of a write does not lock the thread up."""
    _, writing = ends
    pipe = LinePipe(writing, told)
    with pipe._changed:
        pipe.write(b"from within\n")
    assert pipe.close()


def test_lines_of_several_processes_are_not_torn(ends: tuple[int, int]) -> None:
    """Whole lines go out in pieces that the system takes in one go, and nothing is lost or reordered."""
    reading, writing = ends
    one = LinePipe(writing, told, is_shared=True)
    other = LinePipe(writing, told, is_shared=True)
    lines = [b"%d-%s\n" % (number, b"x" * (number % 700)) for number in range(300)]
    for line in lines:
        one.write(b"a" + line)
        other.write(b"b" + line)
    data = read_lines(reading, 600)
    assert one.close()
    assert other.close()
    whole = data.splitlines(keepends=True)
    for mark in (b"a", b"b"):
        assert [line[1:] for line in whole if line.startswith(mark)] == lines
