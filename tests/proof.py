"""`make proof`: everything there is, with a line for each part and what it took.

    python -m tests.proof [--only NAME ...] [--beside N] [--list]

Most parts wait for servers, for kills and for leases, so a few run at the same time: each has servers and ports of its
own. The suite and the costs, which take all of a machine, run alone. What a part prints goes to a file, whose end is
shown where it failed. A failure does not keep the others from running.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from tests.run import temporary_files
from tests.support.ports import SHARE

ROOT: Final = Path(__file__).parents[1]
_SHOWN_LINES: Final = 40


@dataclass(frozen=True, slots=True)
class Part:
    """A command of Python's that exits with 0 where what it judges holds. `alone`: with nothing beside it."""

    name: str
    arguments: tuple[str, ...]
    alone: bool = False


PARTS: Final = (
    Part("suite", ("-m", "tests.run", "--full"), alone=True),
    # The longest ones first: nothing is left running alone at the end.
    Part("servers", ("-m", "tests.servers")),
    Part("defects", ("-m", "tests.defects", "--run", "all")),
    Part("publishing", ("-m", "tests.integration.publishing", "--seconds", "600")),
    Part("packaging", ("-m", "tests.packaging")),
    Part("deployed", ("-m", "tests.deployed")),
    Part("frameworks", ("-m", "tests.frameworks")),
    Part("alerts", ("-m", "tests.observe.promtool")),
    Part("simulation", ("-m", "tests.simulation.run", "--seeds", "0:1000")),
    *[
        Part(f"postgres-fuzz-{seed}", ("-m", "tests.store.postgres_fuzz", "--seconds", "12", "--seed", str(seed)))
        for seed in (1, 2, 3)
    ],
    Part("storm", ("-m", "tests.integration.storm", "--seconds", "240")),
    *[
        Part(f"accepting-{store}", ("-m", "tests.integration.accepting", "--kills", "200", "--store", store))
        for store in ("sqlite", "postgres")
    ],
    *(
        Part(f"journal-{store}", ("-m", "tests.integration.journal_kills", "--kills", "200", "--store", store))
        for store in ("postgres", "sqlite")
    ),
    Part("lanes", ("-m", "tests.integration.lanes", "--kills", "50")),
    Part("fast-failover", ("-m", "tests.integration.fast_failover", "--faults", "20")),
    *[
        Part(f"sentinel-{store}", ("-m", "tests.integration.sentinel", "--operations", "1000", "--store", store))
        for store in ("sqlite", "postgres", "postgres-redis", "redis")
    ],
    Part("reloading", ("-m", "tests.integration.reloading", "--reloads", "20", "--rate", "300")),
    Part("promotions", ("-m", "tests.integration.promotions", "--failovers", "50")),
    Part("upgrade", ("-m", "tests.upgrade.rolling", "--seconds", "240")),
    Part("upgrade-calm", ("-m", "tests.upgrade.rolling", "--seconds", "120", "--calm")),
    Part("envoy", ("-m", "tests.integration.envoy")),
    Part("soak", ("-m", "tests.integration.soak", "--seconds", "240")),
    Part("costs", ("-m", "tests.benchmarks", "--short", "--check"), alone=True),
)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests.proof", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=[part.name for part in PARTS], default=[])
    parser.add_argument("--beside", type=int, default=3, metavar="N", help="how many run at the same time (3)")
    parser.add_argument("--list", action="store_true", help="what would be run")
    asked = parser.parse_args(arguments)
    parts = [part for part in PARTS if not asked.only or part.name in asked.only]
    if asked.list:
        for part in parts:
            print(f"{part.name:18} python {' '.join(part.arguments)}")
        return 0
    began = time.monotonic()
    with temporary_files(), tempfile.TemporaryDirectory() as directory:
        alone = [part for part in parts if part.alone]
        failed = _that_fail([part for part in parts if not part.alone], Path(directory), asked.beside)
        failed += _that_fail(alone, Path(directory), 1)
    held = f"{len(parts) - len(failed)} of {len(parts)} hold after {(time.monotonic() - began) / 60:.0f} min"
    print(held + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


def _that_fail(parts: Sequence[Part], logs: Path, beside: int) -> list[str]:
    """Run them, so many at the same time; the names of those that do not hold."""
    shares: SimpleQueue[str] = SimpleQueue()
    for number in range(beside):
        shares.put(f"{number}/{beside}")

    def holds(part: Part) -> bool:
        share = shares.get()
        try:
            return _holds(part, logs / f"{part.name}.log", os.environ | {SHARE: share})
        finally:
            shares.put(share)

    with ThreadPoolExecutor(beside) as threads:
        return [part.name for part, held in zip(parts, threads.map(holds, parts), strict=True) if not held]


def _holds(part: Part, log: Path, environment: dict[str, str]) -> bool:
    started = time.monotonic()
    with log.open("wb") as output:
        code = subprocess.run(
            [sys.executable, *part.arguments],
            cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, check=False,
        ).returncode  # fmt: skip
    lines = log.read_text("utf-8", "replace").splitlines()
    seconds = time.monotonic() - started
    said = [f"{part.name:18} {'holds' if code == 0 else 'FAILED'} after {seconds:.0f} s   {lines[-1] if lines else ''}"]
    if code:
        # Those that failed first are not among the last lines.
        said += [line for line in lines if line.startswith(("FAILED ", "ERROR "))] + lines[-_SHOWN_LINES:]
    print("\n".join(said), flush=True)
    return code == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
