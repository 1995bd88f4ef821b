"""A request takes no more calls of the gateway's own functions than its ceiling, and ceilings only fall."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.benchmarks.calls import CEILINGS, SLACK, faults_of

ROOT = Path(__file__).parents[2]


def test_no_request_takes_more_calls_than_its_ceiling() -> None:
    """New keys, replays and what passes through; in a process of its own, where no other test has filled a cache."""
    counting = [sys.executable, "-m", "tests.benchmarks", "calls", "--check"]
    done = subprocess.run(counting, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_one_call_more_is_a_fault() -> None:
    ceiling = CEILINGS["new key"]
    assert faults_of({"new key": ceiling}) == []
    assert "above the ceiling" in faults_of({"new key": ceiling + 1})[0]


def test_a_ceiling_that_is_far_too_high_has_to_be_lowered() -> None:
    """Or else what was gained would be spent again unseen."""
    ceiling = CEILINGS["new key"]
    assert faults_of({"new key": ceiling - SLACK}) == []
    assert "Lower it" in faults_of({"new key": ceiling - SLACK - 1})[0]
