"""Guards of durable stores, as gateways make them, with the state of a host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from gateway.observe.facts import Events, Fact
from gateway.store.base import Store
from gateway.store.files import make_directory
from gateway.store.memory.epoch import SeenFile, SharedNote, WitnessFiles
from gateway.store.memory.guard import EpochGuard
from gateway.store.memory.promotion import Conditions
from gateway.store.operations import Serving
from tests.support.serving import serving

WINDOW_US: Final = 3_600_000_000
QUICK: Final = Conditions(wait_seconds=3.0, probation_seconds=2.0)


def witness_files_in(directory: Path) -> WitnessFiles:
    make_directory(directory)
    return WitnessFiles(directory / "witness")


def a_guard(
    store: Store,
    directory: Path,
    facts: list[Fact] | None = None,
    shared: SharedNote | None = None,
    witness_files: WitnessFiles | None = None,
    serves: Serving | None = None,
    met: Callable[[str, str | None], None] | None = None,
    **membership: Any,
) -> EpochGuard:
    """Not yet started. Of the memories that it meets it reports to `met`."""
    return EpochGuard(
        store,
        Events(*([] if facts is None else [facts.append])),
        serves or serving(recipes={"route": b"recipe"}),
        seen_file=SeenFile(directory / "seen.json"),
        amnesia_window_us=WINDOW_US,
        shared_note=shared,
        witness_files=witness_files,
        on_met=(lambda *_: None) if met is None else met,
        **membership,
    )


def a_member(
    store: Any,
    files: WitnessFiles,
    directory: Path,
    *,
    conditions: Conditions = QUICK,
    facts: list[Fact] | None = None,
    is_listed: bool = True,
) -> EpochGuard:
    """One of several workers, not yet started; the list of workers is that of its store."""
    serves = replace(serving(recipes={"route": b"recipe"}), gateway_id=uuid4())
    fleet = store if is_listed else None
    return a_guard(store, directory, facts, None, files, serves, fleet=fleet, conditions=conditions)
