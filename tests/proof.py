"""`make proof`: everything there is, one after the other, with a line for each and what it took.

    python -m tests.proof [--only NAME ...] [--list]

What a part prints goes to a file, whose end is shown where it failed. A failure does not keep the others from running.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
_SHOWN_LINES: Final = 40


@dataclass(frozen=True, slots=True)
class Part:
    """A command of Python's that exits with 0 where what it judges holds."""

    name: str
    arguments: tuple[str, ...]


PARTS: Final = (
    Part("suite", ("-m", "tests.run", "--full")),
    Part("servers", ("-m", "tests.servers")),
    Part("packaging", ("-m", "tests.packaging")),
    Part("deployed", ("-m", "tests.deployed")),
    Part("frameworks", ("-m", "tests.frameworks")),
    Part("alerts", ("-m", "tests.observe.promtool")),
    Part("simulation", ("-m", "tests.simulation.run", "--seeds", "0:1000")),
    Part("simulation-calm", ("-m", "tests.simulation.run", "--calm", "--seconds", "3600")),
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
    Part("publishing", ("-m", "tests.integration.publishing", "--seconds", "600")),
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
    Part("defects", ("-m", "tests.defects", "--run", "all")),
    Part("costs", ("-m", "tests.benchmarks", "--short", "--check")),
)


def main(arguments: list[str]) -> int:
    """Run the parts that are asked for; returns the exit code."""
    parser = argparse.ArgumentParser(prog="tests.proof", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=[part.name for part in PARTS], default=[])
    parser.add_argument("--list", action="store_true", help="what would be run")
    asked = parser.parse_args(arguments)
    parts = [part for part in PARTS if not asked.only or part.name in asked.only]
    if asked.list:
        for part in parts:
            print(f"{part.name:18} python {' '.join(part.arguments)}")
        return 0
    with tempfile.TemporaryDirectory() as directory:
        failed = [part.name for part in parts if not _holds(part, Path(directory) / f"{part.name}.log")]
    print(f"{len(parts) - len(failed)} of {len(parts)} hold" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


def _holds(part: Part, log: Path) -> bool:
    print(f"{part.name:18} ", end="", flush=True)
    started = time.monotonic()
    with log.open("wb") as output:
        code = subprocess.run(
            [sys.executable, *part.arguments], cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, check=False
        ).returncode
    lines = log.read_text("utf-8", "replace").splitlines()
    seconds = time.monotonic() - started
    print(f"{'holds' if code == 0 else 'FAILED'} after {seconds:.0f} s   {lines[-1] if lines else ''}")
    if code:
        print("\n".join(lines[-_SHOWN_LINES:]))
    return code == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
