"""`python -m tests.benchmarks [MEASUREMENT]`: each prints what it found as a table, compared within the same run.

Without a name it is `cost`, what a request costs beside a plain proxy. `--check` makes the exit code say whether
everything is within what it is held to.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, Final

from tests.benchmarks.place import Place, where

# Each has `OPTIONS` with their defaults, and `run(place, asked)`, which prints and returns whether all is as it should
# be.
MEASUREMENTS: Final[dict[str, ModuleType]] = {
    name: import_module(f"tests.benchmarks.{name}")
    for name in (
        "cost", "growth", "sweeping", "latency", "burst", "economy", "bodies", "memory", "room", "workers", "fleet",
        "accepting", "events", "idle", "calls",
    )
}  # fmt: skip


def parser() -> argparse.ArgumentParser:
    whole = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=(__doc__ or "").split("\n")[0])
    kinds = whole.add_subparsers(dest="measurement", required=True, metavar="MEASUREMENT")
    for name, module in MEASUREMENTS.items():
        kind = kinds.add_parser(name, help=(module.__doc__ or "").split("\n")[0], description=module.__doc__)
        for option, default in module.OPTIONS.items():
            kind.add_argument(f"--{option}", default=default, help=f"({default})", **_kind_of(default))
        kind.add_argument("--check", action="store_true", help="fail where something is worse than it may be")
    return whole


def _kind_of(default: object) -> dict[str, Any]:
    """A flag, values of one type, or one value."""
    if isinstance(default, bool):
        return {"action": "store_true"}
    if isinstance(default, tuple):
        return {"nargs": "+", "type": type(default[0]) if default else str}
    return {"type": type(default)}


def main(arguments: Sequence[str]) -> int:
    """Measure, and print. Returns 1 when asked to check and something is worse than it may be."""
    is_named = any(argument in (*MEASUREMENTS, "-h", "--help") for argument in arguments)
    asked = parser().parse_args(arguments if is_named else ["cost", *arguments])
    with Place() as place:
        print(where(), flush=True)
        is_within = MEASUREMENTS[asked.measurement].run(place, asked)
    return 0 if is_within or not asked.check else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
