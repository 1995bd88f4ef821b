"""Gateways under everything that can go wrong, many seeds of it, each judged by the auditor."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.simulation.auditor import audit
from tests.simulation.run import CALM, STORMY, Plan, repeat_line
from tests.simulation.world import has_regions, run

_ROOT = Path(__file__).parents[2]
SEEDS = 200
_BATCH = 50
_CALM_SEEDS = 60
_CALM_BATCH = 20
_WALL_SEEDS = 15

REGIONAL = tuple(seed for seed in range(SEEDS) if has_regions(seed))[:16]


# What has to be seen under the seeds that are run.
_WORDS = (
    "stored journaled replayed recovered released in-doubt in-flight key-reused key-expired response-not-stored "
    "store-unavailable store-amnesia overloaded upstream-unreachable unprotected unkeyed"
)
_WORDS_OF_A_GOOD_DAY = "stored replayed released in-flight key-reused key-expired response-not-stored unkeyed"
_EVENTS = "claim renew complete release forget abandon takeover prove disprove sweep settle lost purge erase"
_FAULTS = (
    "crash freeze stall drain store_outage store_failover fast_outage fast_flush fast_restore disk_full disk_failed "
    "note_lost clock_jump"
)
# Whether nothing of it left, and nothing came back.
_END_OF_FORWARD = {(False, False): "answered", (True, True): "unreached", (False, True): "lost"}
_LINK_FAULTS = "link_cut link_late link_lost link_request_cut link_response_cut wrong_wall"


@dataclass(frozen=True, slots=True)
class Seen:
    """What happened under one seed, and what the auditor says of it."""

    faults: list[str]
    digest: str
    words: set[str | None]
    endings: set[str]
    forwards: Counter[str]


@cache
def _seen(seed: int, plan: Plan) -> Seen:
    """Run once, for every test that asks about this seed."""
    history = plan.run(seed)
    forwards = ((each.sent is None, each.answered is None) for each in history.forwards)
    words = {call.answer.verdict for call in history.calls if call.answer is not None}
    words |= {change.event for change in history.changes} | {fault.kind for fault in history.faults}
    endings = {life.ending for life in history.lives}
    return Seen(audit(history), history.digest(), words, endings, Counter(map(_END_OF_FORWARD.get, forwards)))


def _failures(seeds: range | tuple[int, ...], plan: Plan = STORMY) -> str:
    found = ((seed, _seen(seed, plan).faults) for seed in seeds)
    return "\n".join("\n  ".join([repeat_line(seed, plan), *faults]) for seed, faults in found if faults)


def _batches(seeds: int, batch: int) -> pytest.MarkDecorator:
    """All of them, of which the first batch is run without `--full`."""
    later = [pytest.param(range(first, first + batch), marks=pytest.mark.full) for first in range(batch, seeds, batch)]
    return pytest.mark.parametrize("seeds", [range(batch), *later], ids=lambda seeds: f"from-{seeds.start}")


@_batches(SEEDS, _BATCH)
def test_no_invariant_breaks(seeds: range) -> None:
    failures = _failures(seeds)
    assert not failures, failures


def test_no_invariant_breaks_between_regions() -> None:
    """With a store in each of two regions neither, however the link between them is cut."""
    failures = _failures(REGIONAL)
    assert not failures, failures


@_batches(_CALM_SEEDS, _CALM_BATCH)
def test_without_faults_nothing_is_wrong(seeds: range) -> None:
    """While nothing goes wrong nothing is in doubt, nothing taken over, and no error is the gateway's own."""
    failures = _failures(seeds, CALM)
    assert not failures, failures


@pytest.mark.full
def test_an_hour_of_load_without_faults() -> None:
    """An hour of load, slow operations too, leaves no doubt, no lapse and no error of the gateway's own."""
    plan = Plan(is_calm=True, load_seconds=3600.0)
    history = plan.run(0)
    faults = audit(history)
    assert not faults, "\n  ".join([repeat_line(0, plan), *faults])
    # It was a load: thousands of operations at several gateways, and leases that had to be renewed again and again.
    renewed = Counter(change.operation_id for change in history.changes if change.event == "renew")
    words = {call.answer.verdict for call in history.calls if call.answer is not None}
    assert history.ended > 3600.0
    assert len({sent.subject for sent in history.sent}) > 2500
    assert len({life.gateway for life in history.lives}) > 1
    assert max(renewed.values()) > 5
    assert len(renewed) > 100
    assert set(_WORDS_OF_A_GOOD_DAY.split()) <= words


def test_a_seed_repeats_itself() -> None:
    """One seed is one history, also in another process with other hashes; another one is another."""
    first = run(7)
    assert run(7).digest() == first.digest() != run(8).digest()
    code = "from tests.simulation.world import run; print(run(7).digest())"
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": "."}
    command = [sys.executable, "-c", code]
    again = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=_ROOT)
    assert again.stdout.strip() == first.digest()


def test_wall_clocks_change_nothing() -> None:
    """However the clocks on the gateways' walls jump, the same happens, to the last byte."""
    for seed in range(_WALL_SEEDS):
        assert _seen(seed, STORMY).digest == run(seed, walls_jump=False).digest(), repeat_line(seed, STORMY)


@pytest.mark.full
def test_the_runs_are_about_something() -> None:
    """Under the seeds that are run everything happens that is to be judged: faults of each kind, words, transitions."""
    seen = [_seen(seed, STORMY) for seed in range(150)]
    assert set(f"{_WORDS} {_EVENTS} {_FAULTS}".split()) <= set().union(*(each.words for each in seen))
    assert set().union(*(each.endings for each in seen)) == {"crashed", "drained"}
    # What is at home elsewhere gets there or not, or nobody knows.
    between = [_seen(seed, STORMY) for seed in REGIONAL]
    assert set(_LINK_FAULTS.split()) <= set().union(*(each.words for each in between))
    forwards = sum((each.forwards for each in between), Counter())
    assert all(forwards[how] > 20 for how in _END_OF_FORWARD.values())
    # A store that forgets something is no rarity.
    assert sum("lost" in each.words for each in seen) >= len(seen) // 15
