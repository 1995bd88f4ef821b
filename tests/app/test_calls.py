"""A request takes no more calls of the gateway's own functions than are listed, and the lists only fall."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.benchmarks.calls import SLACK, far_less_than, more_than

ROOT = Path(__file__).parents[2]
LISTED = {"new key": {"store/cache": {"get": 4, "put": 6}, "http/reply": {"framed": 10}}}


def test_no_request_takes_more_calls_than_are_listed() -> None:
    """New keys, replays and what passes through; in a process of its own, where no other test has filled a cache."""
    counting = [sys.executable, "-m", "tests.benchmarks", "calls", "--check"]
    done = subprocess.run(counting, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_what_is_called_more_often_is_named() -> None:
    """By module, as soon as there is one call more, and nothing else is."""
    found = {"new key": {"store/cache": {"get": 6, "put": 5}, "http/reply": {"framed": 9}, "http/date": {"now": 1}}}
    assert more_than(found, LISTED) == [
        "new key: 21 calls, 20 are listed. More often than listed:",
        "  store/cache: 11 calls, listed 10",
        "    get: 6, listed 4",
        "  http/date: 1 calls, listed 0",
        "    now: 1, listed 0",
    ]


def test_calls_may_move() -> None:
    """As long as there are not more of them, it is nobody's business which they are."""
    found = {"new key": {"store/copies": {"get": 4, "put": 6}, "http/reply": {"framed": 10}}}
    assert more_than(found, LISTED) == far_less_than(found, LISTED) == []


def test_a_list_that_is_far_too_long_has_to_be_lowered() -> None:
    """Or else what was gained would be spent again unseen."""
    listed = {"new key": {"http/reply": {"framed": 100}}}
    assert far_less_than({"new key": {"http/reply": {"framed": 100 - SLACK}}}, listed) == []
    (fault,) = far_less_than({"new key": {"http/reply": {"framed": 100 - SLACK - 1}}}, listed)
    assert fault.startswith("new key: 94 calls, 100 are listed. Lower the list:")
