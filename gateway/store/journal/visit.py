"""A visit to a journal's file, whoever owns it and whether that one lives: to look, and to take out what was refused.

It owns nothing but a handle, for as long as the visit lasts. How much of the log is on the disk for certain is known to
the owner alone (`journal_file`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

from gateway.store.base import NotApplied
from gateway.store.journal.schema import BUSY_MS, DAMAGED, check_ours, fetch, statements

Ask = Callable[..., list[Any]]
"""Runs one statement, by its name, with what is given; returns its rows."""


@contextmanager
def visited(path: Path, *, changes: bool = False) -> Iterator[Ask]:
    """A file whoever owns it, for single statements by the name and what is given to them; each is its own transaction.

    No lock is taken but SQLite's for one statement, and the log is not copied while the owner lives, who knows what of
    it is on the disk. Raises `NotApplied`, `StartRefused`, also for the statements.
    """
    flags = apsw.SQLITE_OPEN_READWRITE if changes else apsw.SQLITE_OPEN_READONLY
    try:
        handle = apsw.Connection(str(path), flags=flags)
        try:
            handle.set_busy_timeout(BUSY_MS)
            handle.wal_autocheckpoint(0)
            check_ours(handle, path)
            yield lambda name, *bindings: fetch(handle, statements()[name], bindings)
        finally:
            handle.close(True)
    except (*DAMAGED, ValueError, TypeError) as error:
        raise NotApplied(f"{path} is damaged: {error}") from error
    except apsw.Error as error:
        raise NotApplied(
            f"{path} cannot be {'changed' if changes else 'read'}: {error}; do it as the user of the gateway"
        ) from error
