"""Options that many measurements have."""

from __future__ import annotations

import argparse


def add_rounds(parser: argparse.ArgumentParser, rounds: int, seconds: float | None = None) -> None:
    """How often, and for how long each time."""
    parser.add_argument("--rounds", type=int, default=rounds)
    if seconds is not None:
        parser.add_argument("--seconds", type=float, default=seconds, help="of each measurement")


def add_stores(parser: argparse.ArgumentParser) -> None:
    """On which stores."""
    parser.add_argument("--stores", nargs="+", choices=("sqlite", "postgres"), default=["sqlite", "postgres"])
