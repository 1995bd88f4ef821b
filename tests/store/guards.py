"""A gateway's guard that is one of several workers, with the state of its host."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from gateway.observe.facts import Events, Fact
from gateway.store.files import make_directory
from gateway.store.memory.epoch import SeenFile, WitnessFiles
from gateway.store.memory.guard import EpochGuard
from gateway.store.memory.promotion import Conditions
from tests.support.serving import serving

WINDOW_US: Final = 3_600_000_000
QUICK: Final = Conditions(wait_seconds=3.0, probation_seconds=2.0)


def witness_files_in(directory: Path) -> WitnessFiles:
    make_directory(directory)
    return WitnessFiles(directory / "witness")


def a_member(
    store: Any,
    files: WitnessFiles,
    directory: Path,
    *,
    conditions: Conditions = QUICK,
    facts: list[Fact] | None = None,
    is_listed: bool = True,
) -> EpochGuard:
    """Not yet started; the list of workers is that of its store."""
    return EpochGuard(
        store,
        Events(*([] if facts is None else [facts.append])),
        replace(serving(recipes={"route": b"recipe"}), gateway_id=uuid4()),
        seen_file=SeenFile(directory / "seen.json"),
        amnesia_window_us=WINDOW_US,
        witness_files=files,
        fleet=store if is_listed else None,
        conditions=conditions,
    )
