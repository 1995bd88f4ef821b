"""The files in which workers mark what their attempts have sent: only what surely sent nothing is read from them."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from gateway.store.files import NO_PLACE, SUFFIX, AttemptFiles, MarkedAttempt
from tests.support.wall_clock import wall_clock


def _opened(tmp_path: Path) -> Iterator[AttemptFiles]:
    files = AttemptFiles(tmp_path)
    files.open()
    yield files
    files.close()


# Of one worker, and of another one in the same directory.
files, heir = (pytest.fixture(_opened, name=name) for name in ("files", "heir"))


def marked(files: AttemptFiles) -> tuple[MarkedAttempt, int]:
    attempt = MarkedAttempt(uuid4(), uuid4())
    return attempt, files.mark_unsent(attempt.operation_id, attempt.attempt_id)


def left_by_ended(heir: AttemptFiles) -> list[MarkedAttempt]:
    found: list[MarkedAttempt] = []
    for ended in heir.take_ended():
        found += ended.attempts
        ended.remove()
    return found


def boot_time_in(seconds: int) -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) + seconds * 10**9


def with_last_mark(content: bytes, time_ns: int) -> bytes:
    """The content of a file whose last mark was made at this time."""
    return content[:56] + time_ns.to_bytes(8) + content[64:]


def test_two_workers_never_have_the_same_file(files: AttemptFiles, heir: AttemptFiles, tmp_path: Path) -> None:
    """What one has taken, others may take once it was left."""
    attempt, _ = marked(files)
    files.close()
    (taken,) = heir.take_ended()
    third = AttemptFiles(tmp_path)
    assert third.take_ended() == []
    taken.leave()
    assert left_by_ended(third) == [attempt]


def test_marks_of_another_boot_prove_nothing(tmp_path: Path, heir: AttemptFiles) -> None:
    """The machine went down, or the directory was copied from another one: the last marks may be missing."""
    before = AttemptFiles(tmp_path, b"another boot")
    before.open()
    marked(before)
    before.close()
    assert left_by_ended(heir) == []
    assert len([path for path in tmp_path.iterdir() if path.suffix == SUFFIX]) == 1


@pytest.mark.parametrize("is_overwritten", [False, True], ids=["another-file", "the-same-file"])
def test_an_older_copy_that_is_put_back_proves_nothing(
    files: AttemptFiles, heir: AttemptFiles, tmp_path: Path, *, is_overwritten: bool
) -> None:
    """It says unsent of what was sent after it was taken."""
    _, place = marked(files)
    path = files._path
    copy = path.read_bytes()
    files.mark_sent(place)
    files.close()
    status = path.stat()
    if not is_overwritten:
        path.unlink()
    path.write_bytes(with_last_mark(copy, time.time_ns() - 1_000_000_000))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert left_by_ended(heir) == []


def test_marks_are_believed_for_ten_minutes(files: AttemptFiles, tmp_path: Path) -> None:
    """A file system that was rolled back has files that nobody seems to have changed."""
    attempt, _ = marked(files)
    files.close()
    soon, late = (AttemptFiles(tmp_path, boot_clock=partial(boot_time_in, seconds)) for seconds in (590, 601))
    (ended,) = soon.take_ended()
    assert ended.attempts == (attempt,)
    ended.leave()
    assert left_by_ended(late) == []


_MARKS = """
import os, sys
from pathlib import Path
from uuid import uuid4
from gateway.store.files import AttemptFiles

files = AttemptFiles(Path(sys.argv[1]))
files.open()
files.mark_unsent(uuid4(), uuid4())
os._exit(0)
"""
_TAKES = """
import sys
from pathlib import Path
from gateway.store.files import AttemptFiles

print(sum(len(ended.attempts) for ended in AttemptFiles(Path(sys.argv[1])).take_ended()))
"""


def test_a_host_whose_clock_was_set_back_hides_no_mark(tmp_path: Path) -> None:
    """Neither for the process that marked nor for the next one, which starts a day before it."""
    marks = tmp_path / "marks"
    with wall_clock(tmp_path / "clock") as clock:
        environment = {**os.environ, **clock.environment}
        subprocess.run([sys.executable, "-c", _MARKS, str(marks)], env=environment, check=True, timeout=30)
        clock.move(-86_400)
        takes = [sys.executable, "-c", _TAKES, str(marks)]
        found = subprocess.run(takes, env=environment, check=True, timeout=30, capture_output=True, text=True)
    assert found.stdout == "1\n"


def test_a_directory_that_cannot_be_used_costs_the_marks_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_bytes(b"")
    files = AttemptFiles(tmp_path / "file" / "attempts")
    with caplog.at_level(logging.WARNING):
        files.open()
    assert "cannot be marked" in caplog.text
    assert files.mark_unsent(UUID(int=1), UUID(int=2)) == NO_PLACE
    assert files.take_ended() == []
    files.close()
