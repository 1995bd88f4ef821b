"""What operators see in a terminal: one operation in full, many as a table or as JSON lines, and the journal likewise.

Rendering only: values in, lines out. What comes from outside (a route's name, a field's value) is made of printable
characters before it is shown.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from gateway.admin.inspection import Inspected, next_step, recovery_rows
from gateway.admin.journal import sentence, since_us, state_of, why_of
from gateway.admin.view import ago, described, location_of, moment, printable, span, times_of
from gateway.core.operation import Record, RequestInfo, Snapshot
from gateway.store.journal.base import JournalView

Columns = tuple[tuple[str, int], ...]
# Columns of a table that is written while it is read: widths cannot depend on what comes later.
_COLUMNS: Final[Columns] = (
    ("OPERATION", 36),
    ("STATE", 9),
    ("AGE", 8),
    ("TOKEN", 7),
    ("TRIES", 5),
    ("STATUS", 6),
    ("DOUBT", 16),
)
_JOURNAL_COLUMNS: Final[Columns] = (
    ("OPERATION", 36),
    ("STATE", 7),
    ("SINCE", 20),
    ("AGE", 8),
    ("EVENT", 8),
    ("TOKEN", 7),
    ("STATUS", 6),
    ("ROUTE", 20),
)
_LABELS: Final = {
    "first_claimed_at": "first claimed",
    "claimed_at": "last claimed",
    "completed_at": "completed",
    "lease_until": "lease until",
    "replay_until": "replay until",
    "remember_until": "remember until",
}
_LABEL_WIDTH: Final = 16


def table_head() -> str:
    """The first line of a table."""
    return _head(_COLUMNS, "ROUTE")


def table_row(snapshot: Snapshot) -> str:
    """A line of a table."""
    record = snapshot.record
    if record is None:
        raise ValueError("what is absent has no line")
    cells = (
        str(record.identity.operation_id),
        record.state.value,
        span(snapshot.now_us - record.first_claimed_us),
        str(record.token),
        str(record.attempts),
        "" if record.response is None else str(record.response.status),
        record.doubt or "",
    )
    return _row(_COLUMNS, cells, record.identity.route)


def journal_table(view: JournalView) -> Iterator[str]:
    """The outcomes in the journals of this host; nothing where there are none."""
    if view.entries:
        yield _head(_JOURNAL_COLUMNS, "WHY")
    for entry in view.entries:
        cells = (
            str(entry.operation_id),
            state_of(entry),
            moment(since_us(entry)),
            span(view.now_us - since_us(entry)),
            printable(entry.event),
            str(entry.token),
            "" if entry.status is None else str(entry.status),
            printable(entry.route),
        )
        yield _row(_JOURNAL_COLUMNS, cells, why_of(entry))


def _head(columns: Columns, last: str) -> str:
    return _row(columns, tuple(name for name, _ in columns), last)


def _row(columns: Columns, cells: tuple[str, ...], last: str) -> str:
    """A line of a table. The last column is as wide as what stands in it."""
    padded = [cell.ljust(width) for cell, (_, width) in zip(cells, columns, strict=True)]
    return "  ".join([*padded, printable(last)])


def json_line(about: dict[str, Any]) -> str:
    """One value as one line, in ASCII."""
    return json.dumps(about, ensure_ascii=True, separators=(",", ":"))


def full_text(inspected: Inspected) -> Iterator[str]:
    """All that is known of one operation, for people."""
    record, now_us = inspected.snapshot.record, inspected.snapshot.now_us
    yield _line("operation", str(inspected.operation_id))
    yield _line("state", inspected.snapshot.state.value)
    if record is not None:
        yield from _record_text(inspected, record)
    yield _line("store's now", moment(now_us))
    for entry in inspected.audits:
        yield _line("audit", f"{moment(entry.at_us)} {entry.event} by {entry.who}: {entry.why}")
    for kept_entry in inspected.journal.entries:
        yield _line("journal here", sentence(kept_entry, inspected.journal.now_us))
    yield _line("what to do", next_step(inspected))


def _record_text(inspected: Inspected, record: Record) -> Iterator[str]:
    now_us = inspected.snapshot.now_us
    yield _line("route", record.identity.route)
    if record.identity.operation != record.identity.route:
        yield _line("operation name", record.identity.operation)
    if record.identity.key is not None:
        yield _line("key", record.identity.key)
    yield _line("token", str(record.token))
    yield _line("attempts", str(record.attempts))
    yield _line("holder", record.holder)
    if record.request is not None:
        yield from _request_text(record.request)
    yield _line("last event", record.last_event.value)
    if record.doubt is not None:
        yield _line("in doubt because", record.doubt)
    if inspected.doubt is not None:
        for label, text in recovery_rows(inspected.doubt):
            yield _line(label, text)
    if record.carries_doubt:
        yield _line("carries doubt", "yes: an earlier attempt may have had its effect")
    for name, at_us in times_of(record):
        yield _line(_LABELS[name], f"{moment(at_us)} ({ago(at_us, now_us)})")
    if record.response is not None:
        about = described(inspected.snapshot, has_body=True)["response"]
        size = f", {about['body_bytes']} bytes" if "body_bytes" in about else ""
        yield _line("answer", f"{about['status']}, body {about['body']}{size}")
        if (location := location_of(record.response)) is not None:
            yield _line("location", location)


def _request_text(request: RequestInfo) -> Iterator[str]:
    yield _line("request", f"{request.method} {request.host}{request.path}")
    if request.request_id is not None:
        yield _line("request id", request.request_id)
    if request.trace_id is not None:
        yield _line("trace id", request.trace_id)


def _line(label: str, text: str) -> str:
    return f"{label.ljust(_LABEL_WIDTH)}  {printable(text)}"
