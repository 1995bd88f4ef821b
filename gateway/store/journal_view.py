"""Looks into the journals of a host, for operators: while gateways write them, and after those have died.

It owns no file and no lock, writes nothing and waits for nobody. What it sees may be over a moment later: an outcome is
gone from the journal as soon as the durable store has it.
"""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from gateway.store.base import StoreError
from gateway.store.journal import wall_clock_us
from gateway.store.journal_base import JournalView, KeptEntry
from gateway.store.journal_file import kept_in
from gateway.store.journal_place import SUFFIX


def look(
    directory: Path,
    belongs_to: str,
    *,
    operation_id: UUID | None = None,
    is_refused: bool | None = None,
    limit: int,
) -> JournalView:
    """At most `limit` outcomes: those that wait, those that were refused, or both; of one operation, or of all.

    `belongs_to` is whose outcomes are no strangers'. Blocks, and raises nothing: what could not be read is a fault.
    """
    found: list[KeptEntry] = []
    strangers: list[tuple[str, str]] = []
    faults: list[str] = []
    for path in _files(directory, faults):
        try:
            owner, entries = kept_in(path, operation_id=operation_id, is_refused=is_refused, limit=limit + 1)
        except StoreError as error:
            # Its owner removes a file that is empty.
            if path.exists():
                faults.append(str(error))
            continue
        found += entries
        if entries and owner != belongs_to:
            strangers.append((path.name, owner))
    found.sort(key=lambda entry: entry.journaled_us)
    return JournalView(
        wall_clock_us(), tuple(found[:limit]), tuple(strangers), tuple(faults), has_more=len(found) > limit
    )


def _files(directory: Path, faults: list[str]) -> list[Path]:
    try:
        return sorted(path for path in directory.iterdir() if path.suffix == SUFFIX)
    except FileNotFoundError:
        return []
    except OSError as error:
        faults.append(f"{directory} cannot be read: {error.strerror}; look as the user of the gateway")
        return []
