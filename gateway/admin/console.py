"""What operators see in a terminal: one operation in full, many as a table or JSON lines, and the journal likewise.

Values in, lines out. Characters of foreign texts (a route's name, a header's value) that are not printable are
replaced.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from gateway.admin.inspection import Inspected, next_step
from gateway.admin.journal import sentence, since_us, state_of, why_of
from gateway.admin.view import ago, described, moment, printable, span, times_of
from gateway.admin.view import since_us as record_since_us
from gateway.core.operation import Record, Snapshot, State
from gateway.store.journal import JournalView

Columns = tuple[tuple[str, int], ...]
# The table is written while it is read: widths cannot depend on later rows.
_COLUMNS: Final[Columns] = (
    ("OPERATION", 36),
    ("STATE", 11),
    ("SINCE", 20),
    ("AGE", 8),
    ("TOKEN", 7),
    ("TRIES", 5),
    ("STATUS", 6),
    ("WHY", 18),
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
    "accepted_at": "accepted",
    "claimed_at": "last claimed",
    "requeued_at": "requeued",
    "dead_since": "dead letter",
    "in_doubt_since": "in doubt since",
    "next_attempt_at": "next attempt",
    "deliver_until": "deliver until",
    "completed_at": "completed",
    "lease_until": "lease until",
    "replay_until": "replay until",
    "remember_until": "remember until",
}
_LABEL_WIDTH: Final = 16


def table_head() -> str:
    """The header line of a table."""
    return _head(_COLUMNS, "ROUTE")


def table_row(snapshot: Snapshot) -> str:
    """A line of a table."""
    record = snapshot.record
    if record is None:
        raise ValueError("there is no record to show")
    cells = (
        str(record.identity.operation_id),
        record.state.value,
        moment(record_since_us(record)),
        span(snapshot.now_us - record.first_claimed_us),
        str(record.token),
        str(record.attempts),
        "" if record.response is None else str(record.response.status),
        _why(record),
    )
    return _row(_COLUMNS, cells, record.identity.route)


def _why(record: Record) -> str:
    """Why it is in doubt or a dead letter, or why the last attempt to deliver it failed."""
    delivery = record.delivery
    if delivery is None:
        return record.doubt or ""
    waits = "waits for lane" if delivery.is_behind and record.state is State.ACCEPTED else ""
    return record.doubt or delivery.reason or delivery.failure or waits


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
    """A line of a table. The last column has no fixed width."""
    padded = [cell.ljust(width) for cell, (_, width) in zip(cells, columns, strict=True)]
    return "  ".join([*padded, printable(last)])


def json_line(about: dict[str, Any]) -> str:
    """A value as one line of ASCII, which cannot control a terminal. orjson would write UTF-8."""
    return json.dumps(about, ensure_ascii=True, separators=(",", ":"))


def full_text(inspected: Inspected) -> Iterator[str]:
    """All that is known of one operation, as text."""
    record, now_us = inspected.snapshot.record, inspected.snapshot.now_us
    rows: list[tuple[str, object]] = [("operation", inspected.operation_id), ("state", inspected.snapshot.state)]
    if record is not None:
        rows += _rows_of(record, inspected)
    rows.append(("store's now", moment(now_us)))
    rows += [
        ("audit", f"{moment(entry.at_us)} {entry.event} by {entry.who}: {entry.why}") for entry in inspected.audits
    ]
    rows += [("journal here", sentence(entry, inspected.journal.now_us)) for entry in inspected.journal.entries]
    for label, value in (*rows, ("what to do", next_step(inspected))):
        if value is not None:
            yield f"{label.ljust(_LABEL_WIDTH)}  {printable(str(value))}"


def _rows_of(record: Record, inspected: Inspected) -> Iterator[tuple[str, object]]:
    """What is known of a record, as labels and values; None is not shown."""
    identity, request, delivery = record.identity, record.request, record.delivery
    yield "route", identity.route
    yield "operation name", identity.operation if identity.operation != identity.route else None
    yield "key", identity.key
    yield "token", record.token
    yield "attempts", record.attempts
    yield "holder", record.holder or None
    if request is not None:
        yield "request", f"{request.method} {request.host}{request.path}"
        yield "request id", request.request_id
        yield "trace id", request.trace_id
    yield "last event", record.last_event
    yield "in doubt because", record.doubt
    if inspected.doubt is not None:
        yield from inspected.doubt.rows
    yield "carries doubt", "yes: an earlier attempt may have had its effect" if record.carries_doubt else None
    for name, at_us in times_of(record):
        yield _LABELS[name], f"{moment(at_us)} ({ago(at_us, inspected.snapshot.now_us)})"
    if delivery is not None:
        yield "kept request", f"{delivery.request_bytes} bytes, encrypted"
        yield "answers", delivery.answers
        yield "last failure", delivery.failure
        yield "dead letter, as", delivery.reason
    if delivery is not None and delivery.lane is not None:
        turn = "others of it go first" if delivery.is_behind else "it goes first"
        yield "lane", f"{delivery.lane.hex()}, number {delivery.lane_number}; {turn}"
    yield "resource", record.resource
    if record.response is not None:
        about = described(inspected.snapshot, has_body=True)["response"]
        size = f", {about['body_bytes']} bytes" if "body_bytes" in about else ""
        yield "response", f"{about['status']}, body {about['body']}{size}"
