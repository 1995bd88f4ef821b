"""Runs seeds and audits them: `python -m tests.simulation.run --seed 7`, `... --seeds 0:100000`.

A seed that breaks an invariant is told with the line that repeats it. `--trace` shows what happened to the operations
that were found at fault. `--calm --seconds 3600` is an hour of load without faults.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from dataclasses import dataclass
from functools import partial
from typing import Final

from tests.simulation.auditor import audit
from tests.simulation.history import History
from tests.simulation.trace import trace
from tests.simulation.world import run


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run under each seed. `load_seconds`: so long under load, without faults."""

    is_calm: bool = False
    load_seconds: float | None = None

    def run(self, seed: int) -> History:
        return run(seed, is_calm=self.is_calm, load_seconds=self.load_seconds)


STORMY: Final = Plan()
CALM: Final = Plan(is_calm=True)


def repeat_line(seed: int, plan: Plan) -> str:
    """What to type to see this seed again."""
    load = "" if plan.load_seconds is None else f" --seconds {plan.load_seconds:g}"
    return f"python -m tests.simulation.run --seed {seed}{' --calm' if plan.is_calm else ''}{load}"


def _judge(seed: int, plan: Plan) -> tuple[int, list[str]]:
    return seed, audit(plan.run(seed))


def _one(seed: int, plan: Plan, *, shows_trace: bool) -> int:
    history = plan.run(seed)
    faults = audit(history)
    print(f"seed {seed}: {len(history.calls)} calls, {len(history.sent)} sent, {len(history.changes)} changes,")
    print(f"  {len(history.faults)} faults, {history.ended:.0f} s, digest {history.digest()[:16]}")
    print("\n".join(faults) or "nothing is wrong")
    if shows_trace:
        print("\n".join(trace(history, faults)))
    return 1 if faults else 0


def _many(seeds: range, plan: Plan, jobs: int) -> int:
    started, wrong = time.monotonic(), 0
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        chunk = 1 if plan.load_seconds else 20
        for seed, faults in pool.imap(partial(_judge, plan=plan), seeds, chunksize=chunk):
            if faults:
                wrong += 1
                print(repeat_line(seed, plan), *faults, sep="\n  ", flush=True)
    seconds = time.monotonic() - started
    print(f"{len(seeds)} seeds in {seconds:.1f} s ({len(seeds) / seconds:.0f} a second), {wrong} with faults")
    return 1 if wrong else 0


def main() -> int:
    """The command line; 1 when an invariant was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--seed", type=int, default=0, help="run one seed and tell more of it")
    what.add_argument("--seeds", help="run many: FROM:TO, the last one not included")
    parser.add_argument("--calm", action="store_true", help="without faults")
    parser.add_argument("--seconds", type=float, help="with --calm: under load for so long")
    parser.add_argument("--trace", action="store_true", help="what happened to the operations at fault")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes to use for many seeds")
    asked = parser.parse_args()
    if asked.seconds is not None and not asked.calm:
        parser.error("--seconds is for --calm: load is borne without faults")
    plan = Plan(is_calm=asked.calm, load_seconds=asked.seconds)
    if asked.seeds is None:
        return _one(asked.seed, plan, shows_trace=asked.trace)
    first, _, last = asked.seeds.partition(":")
    return _many(range(int(first), int(last)), plan, asked.jobs)


if __name__ == "__main__":
    sys.exit(main())
