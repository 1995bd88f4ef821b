"""Runs seeds and audits them: `python -m tests.simulation.run --seed 7`, `... --seeds 0:100000`.

A seed that breaks an invariant is told with the line that repeats it. `--trace` shows what happened to the operations
that were found at fault.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator

from tests.simulation.auditor import audit
from tests.simulation.trace import trace
from tests.simulation.world import run


def repeat_line(seed: int, *, is_calm: bool) -> str:
    """What to type to see this seed again."""
    return f"python -m tests.simulation.run --seed {seed}{' --calm' if is_calm else ''}"


def judge(seed: int, *, is_calm: bool = False) -> list[str]:
    """What is wrong under this seed."""
    return audit(run(seed, is_calm=is_calm))


def _judge_pair(pair: tuple[int, bool]) -> tuple[int, list[str]]:
    return pair[0], judge(pair[0], is_calm=pair[1])


def _judged(seeds: range, *, is_calm: bool, jobs: int) -> Iterator[tuple[int, list[str]]]:
    pairs = [(seed, is_calm) for seed in seeds]
    if jobs == 1:
        yield from map(_judge_pair, pairs)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(_judge_pair, pairs, chunksize=20)


def _one(seed: int, *, is_calm: bool, shows_trace: bool) -> int:
    history = run(seed, is_calm=is_calm)
    faults = audit(history)
    print(f"seed {seed}: {len(history.calls)} calls, {len(history.sent)} sent, {len(history.changes)} changes,")
    print(f"  {len(history.faults)} faults, {history.ended:.0f} s, digest {history.digest()[:16]}")
    print("\n".join(faults) or "nothing is wrong")
    if shows_trace:
        print("\n".join(trace(history, faults)))
    return 1 if faults else 0


def _many(seeds: range, *, is_calm: bool, jobs: int) -> int:
    started, wrong = time.monotonic(), 0
    for seed, faults in _judged(seeds, is_calm=is_calm, jobs=jobs):
        if faults:
            wrong += 1
            print(repeat_line(seed, is_calm=is_calm), *faults, sep="\n  ", flush=True)
    seconds = time.monotonic() - started
    print(f"{len(seeds)} seeds in {seconds:.1f} s ({len(seeds) / seconds:.0f} a second), {wrong} with faults")
    return 1 if wrong else 0


def main() -> int:
    """The command line; 1 when an invariant was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seed", type=int, help="run one seed and tell more of it")
    what.add_argument("--seeds", help="run many: FROM:TO, the last one not included")
    parser.add_argument("--calm", action="store_true", help="without faults")
    parser.add_argument("--trace", action="store_true", help="what happened to the operations at fault")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes to use for many seeds")
    asked = parser.parse_args()
    if asked.seed is not None:
        return _one(asked.seed, is_calm=asked.calm, shows_trace=asked.trace)
    first, _, last = asked.seeds.partition(":")
    return _many(range(int(first), int(last)), is_calm=asked.calm, jobs=asked.jobs)


if __name__ == "__main__":
    sys.exit(main())
