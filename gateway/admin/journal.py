"""What operators see of the journals of this host: outcomes that wait for the durable store, and those that it refused.

Values and words only, for terminals and the admin API alike; the files are read elsewhere. Never a body. Times are
those of this host's clock, which nothing is decided by.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Protocol
from uuid import UUID

from gateway.admin.view import ago, moment, printable
from gateway.core.operation import MICROSECONDS, Record, State
from gateway.store.journal import JournalView, KeptEntry

WAITING: Final = "waiting"
REFUSED: Final = "refused"

_WHY_WAITING: Final = "the durable store has not taken it yet"
TO_WAIT: Final = (
    "a gateway that runs with this state_dir records it as soon as the durable store takes it; start one if none is "
    "running"
)
_TO_RESOLVE: Final = (
    "it is kept, and not tried again. See what the record says: inspect OPERATION_ID. If it is in doubt, a refused "
    "answer is how it ended: write it to a file with --export, and give that to resolve. A release or forget says that "
    "its own attempt had no effect, and nothing of one under a higher token. Then --acknowledge it"
)


class Look(Protocol):
    """Reads the journals of this host. Blocks, raises nothing."""

    def __call__(self, *, operation_id: UUID | None = None, is_refused: bool | None = None, limit: int) -> JournalView:
        """See `store.journal.view.look`."""


def no_journal(*, operation_id: UUID | None = None, is_refused: bool | None = None, limit: int) -> JournalView:
    """Where there is none to look into."""
    return JournalView(0)


def state_of(entry: KeptEntry) -> str:
    """`waiting` or `refused`."""
    return WAITING if entry.refused_us is None else REFUSED


def kept(entry: KeptEntry, now_us: int) -> dict[str, Any]:
    """An outcome as JSON values."""
    about: dict[str, Any] = {
        "operation_id": str(entry.operation_id),
        "state": state_of(entry),
        "since": moment(since_us(entry)),
        "age_seconds": max(0, now_us - since_us(entry)) // MICROSECONDS,
        "event": entry.event,
        "token": entry.token,
        "route": entry.route,
        "journaled_at": moment(entry.journaled_us),
        "status": entry.status,
        "body_bytes": entry.body_bytes,
        "why": why_of(entry),
    }
    return {name: value for name, value in about.items() if value is not None}


def listed(view: JournalView) -> dict[str, Any]:
    """All of a view as JSON values."""
    return {
        "journal": [kept(entry, view.now_us) for entry in view.entries],
        "strangers": [{"file": name, "belongs_to": owner} for name, owner in view.strangers],
        "faults": list(view.faults),
        "has_more": view.has_more,
        "now": moment(view.now_us),
    }


def sentence(entry: KeptEntry, now_us: int) -> str:
    """An outcome in a line of prose."""
    answer = "" if entry.status is None else f" {entry.status}"
    body = "" if entry.body_bytes is None else f", body of {entry.body_bytes} bytes"
    at_us = since_us(entry)
    when = f"{state_of(entry)} since {moment(at_us)} ({ago(at_us, now_us)})"
    return f"{entry.event}{answer} under token {entry.token}{body}, {when}: {why_of(entry)}"


def advice_of(record: Record | None, view: JournalView) -> str | None:
    """What to do about an operation whose ending lies in the journal; None where that says nothing of it."""
    if record is None or record.state not in (State.CLAIMED, State.IN_DOUBT):
        return None
    for entry in view.entries:
        if entry.refused_us is None and entry.token == record.token:
            return f"Wait: the journal of this host has how it ended; {TO_WAIT}."
    return None


def notes(view: JournalView) -> Iterator[str]:
    """What there is to know about a view, beside its outcomes."""
    states = {state_of(entry) for entry in view.entries}
    if WAITING in states:
        yield f"{WAITING}: {TO_WAIT}"
    if REFUSED in states:
        yield f"{REFUSED}: {_TO_RESOLVE}"
    for name, owner in view.strangers:
        yield f"{name} belongs to {printable(owner)}: a gateway with those settings records what it holds"
    if view.has_more:
        yield "there is more: give a larger --limit"


def since_us(entry: KeptEntry) -> int:
    """Since when it has been in its state."""
    return entry.journaled_us if entry.refused_us is None else entry.refused_us


def why_of(entry: KeptEntry) -> str:
    """Why it is still in the journal."""
    return _WHY_WAITING if entry.refused_us is None else entry.refused_why or ""
