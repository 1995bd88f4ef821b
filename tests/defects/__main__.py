"""`python -m tests.defects --list` names the defects, `--run NAME` (any number of them) shows one being caught."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.defects.bench import Bench, Verdict
from tests.defects.catalogue import DEFECTS
from tests.defects.defect import Defect


def main() -> int:
    """Returns 1 when a defect that was run was not caught."""
    parser = argparse.ArgumentParser(prog="python -m tests.defects", description="Deliberate defects of the gateway.")
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("--list", action="store_true", help="name the defects and the tests that have to notice them")
    asked.add_argument("--run", nargs="+", metavar="NAME", help="run these tests with the defect; all: every defect")
    arguments = parser.parse_args()
    if arguments.list:
        for defect in DEFECTS.values():
            print(f"{defect.name}: {defect.breaks}", *[f"    {test}" for test in defect.caught_by], sep="\n")
        return 0
    names = list(DEFECTS) if arguments.run == ["all"] else arguments.run
    if unknown := [name for name in names if name not in DEFECTS]:
        parser.error(f"there is no defect {', '.join(unknown)}; --list names them all")
    return _run([DEFECTS[name] for name in names])


def _run(defects: list[Defect]) -> int:
    missed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="defects-") as directory, Bench(Path(directory) / "bench") as bench:
        for defect in defects:
            bench.plan(defect.name, defect, defect.caught_by)
        for defect in defects:
            verdict = bench.verdict(defect.name)
            if not verdict.noticed:
                missed.append(defect.name)
            _tell(defect, verdict)
    print(
        f"{len(defects) - len(missed)} of {len(defects)} caught" + (f"; missed: {', '.join(missed)}" if missed else "")
    )
    return 1 if missed else 0


def _tell(defect: Defect, verdict: Verdict) -> None:
    print(f"{'caught' if verdict.noticed else 'MISSED'} {defect.name}: {defect.breaks}")
    for how, tests, shown in (
        ("noticed by", verdict.noticed, slice(300)),
        ("broke", verdict.broken, slice(-1_000, None)),
    ):
        for test, why in tests.items():
            print(f"    {how} {test}\n        {why[shown]}")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
