"""Which operation a text is about, all that is known of one, what happens to it next, and many as a table.

Pure: values in, values, sentences and lines out. Does not know whether a gateway is running that would recover the
operation. Characters of foreign texts (a route's name, a header's value) that are not printable are replaced.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, assert_never
from uuid import UUID

from gateway.admin.journal import advice_of, kept, sentence, since_us, state_of, why_of
from gateway.admin.reports import MemoryState, Report, events_text, paused_line
from gateway.admin.resolution import Malformed, Treatment
from gateway.admin.view import (
    Told,
    advice,
    ago,
    described,
    foreign,
    moment,
    printable,
    span,
    stranded_advice,
    times_of,
    told,
)
from gateway.admin.view import since_us as record_since_us
from gateway.core.operation import Record, Snapshot, State
from gateway.core.recovery import Hold, Probe, Recovery, Resend, probe_target
from gateway.store.journal import JournalView
from gateway.store.operations import AuditEntry, RecoveryState

# A UUID of version 8, as `derive_operation_id` makes them: keys, request ids and trace ids are hardly ever one.
_ID: Final = r"([0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12})(?![0-9a-f-])"
# A problem and a line of a log name it beside others, such as `first_operation`, and go before all else that has one.
_NAMED: Final = re.compile(r"(?:operation[._-]?id|idempotency-operation)[\s\"'\\]{0,9}[:=][\s\"'\\]{0,9}" + _ID)
_ANY: Final = re.compile(r"(?<![0-9a-f-])" + _ID)
_OF_OTHERS: Final = re.compile(r"\b(?:request|correlation|trace)[_-]?id\b|\btraceparent\b")
_KEY: Final = re.compile(r"\bidempotency[_-]key\b")
_CHARACTERS_MAX: Final = 65_536
_EXPECTED: Final = "expected the id of an operation, as its problem document or inspect --list shows it"
_NOT_SEARCHED: Final = (
    "request ids, trace ids and keys are not searched. Look for this in the gateway's log: operation_id is beside it"
)


def operation_in(text: str) -> UUID:
    """The operation that a text is about: an id, a problem document, headers, an address, a command, a line of a log.
    Raises `Malformed`, which says what to give instead."""
    if len(text) > _CHARACTERS_MAX:
        raise Malformed(f"{_EXPECTED}; this is longer than {_CHARACTERS_MAX} characters. Give the part that has the id")
    text = text.strip().lower()
    try:
        alone = UUID(text)
    except ValueError:
        found = {UUID(each) for each in _NAMED.findall(text) or _ANY.findall(text)}
    else:
        if alone.version != 8:
            raise Malformed(f"{_EXPECTED}; {_NOT_SEARCHED}")
        return alone
    if len(found) == 1:
        return found.pop()
    if found:
        instead = f"this has {len(found)} of them. Give the part that has one"
    elif _KEY.search(text):
        instead = "a key alone is not enough. Find it by its request: its route, its key and what names its caller"
    elif _OF_OTHERS.search(text):
        instead = _NOT_SEARCHED
    else:
        instead = "or a text with it, such as the Location of a status or the header Idempotency-Operation"
    raise Malformed(f"{_EXPECTED}; {instead}")


@dataclass(frozen=True, slots=True)
class Doubt:
    """A record in doubt at `now_us` of the store's clock, and how its route recovers."""

    recovery: Recovery
    record: Record
    probes: RecoveryState | None
    now_us: int

    @property
    def asked(self) -> RecoveryState | None:
        """The probes of this doubt. Before a takeover there may have been another doubt, with its own probes."""
        return self.probes if self.probes is not None and self.probes.token == self.record.token else None

    @property
    def document(self) -> dict[str, Any]:
        """The recovery as JSON values. Without `next_probe_at` there is no next probe, or it is due."""
        about: dict[str, Any] = {"policy": type(self.recovery).__name__.lower()}
        asked = self.asked
        if asked is not None:
            about["probes"] = asked.tries
            if asked.asked_us:
                about |= {"last_probe_at": moment(asked.asked_us), "last_finding": asked.finding}
            if self._is_asked and asked.is_put_off(self.now_us):
                about["next_probe_at"] = moment(asked.put_off_until_us)
        return about

    @property
    def rows(self) -> list[tuple[str, str]]:
        rows = [("recovery", type(self.recovery).__name__.lower())]
        asked = self.asked
        if asked is not None and asked.asked_us:
            rows.append(("last probe", f"{self._when(asked.asked_us)}: {asked.finding}"))
        if self._is_asked:
            rows.append(("next probe", self._next_probe))
        return rows

    @property
    def step(self) -> str:
        """A sentence about what happens without an operator."""
        match self.recovery:
            case Hold():
                return "Nothing happens to it until an operator resolves it."
            case Resend() if self.record.delivery is not None:
                return (
                    "A running gateway sends its kept request to the service again, after the pauses of its schedule."
                )
            case Resend():
                return "The next repeat of its request is sent to the service again; nothing happens before that."
            case Probe() if not self._is_asked:
                return (
                    "It cannot be probed: it was claimed before its route had this probe, and is stored without what "
                    "the probe needs (the key, the host or the path). Nothing happens to it until an operator resolves "
                    "it."
                )
            case Probe():
                now = {"due": "is about to ask the service about it.", "under way": "is asking the service about it."}
                next_ = self._next_probe
                then = now.get(next_, f"asks the service about it: {next_}, and sooner for a repeat.")
                return f"A running gateway {then}"
            case _:
                assert_never(self.recovery)

    @property
    def _is_asked(self) -> bool:
        return isinstance(self.recovery, Probe) and probe_target(self.recovery, self.record) is not None

    @property
    def _next_probe(self) -> str:
        asked = self.asked
        if asked is not None and asked.is_held(self.now_us):
            return "under way"
        return self._when(asked.put_off_until_us) if asked is not None and asked.is_put_off(self.now_us) else "due"

    def _when(self, at_us: int) -> str:
        return f"{moment(at_us)} ({ago(at_us, self.now_us)})"


@dataclass(frozen=True, slots=True)
class Inspected:
    """All that is known of an operation."""

    operation_id: UUID
    snapshot: Snapshot
    audits: tuple[AuditEntry, ...]
    treatment: Treatment | None
    """None where nothing is remembered, or for an operation of another service."""
    journal: JournalView
    """Its outcomes in the journals of this host."""
    memory: MemoryState | None = None
    """The state of the store's memory, if its loss makes the next request with this key be refused."""
    probes: RecoveryState | None = None
    """Its probes, if it is in doubt and there were any."""
    pause: Report | None = None
    """The pause of its operation name, if it is accepted."""
    is_stranded: bool = False
    """It is accepted, and no route of this configuration delivers it."""
    sinks: tuple[Report, ...] = ()
    """What each sink has yet to receive of it."""

    @property
    def doubt(self) -> Doubt | None:
        """Its doubt and how gateways recover it; None where there is none, or it is another service's."""
        record = self.snapshot.record
        if record is None or record.state is not State.IN_DOUBT or self.treatment is None:
            return None
        return Doubt(self.treatment.recovery, record, self.probes, self.snapshot.now_us)

    @property
    def told(self) -> Told:
        return told(self.snapshot.record, self.audits)


def full_json(inspected: Inspected) -> dict[str, Any]:
    about = {"operation_id": str(inspected.operation_id), **described(inspected.snapshot, has_body=True)}
    doubt, journal = inspected.doubt, inspected.journal
    if doubt is not None:
        about["recovery"] = doubt.document
    if inspected.pause is not None:
        about["paused"] = inspected.pause
    if journal.entries:
        about["journal"] = [kept(entry, journal.now_us) for entry in journal.entries]
    audits = [
        {"at": moment(each.at_us), "event": each.event, "token": each.token, "who": each.who, "why": each.why}
        for each in inspected.audits
    ]
    happened = inspected.told
    about["history"] = [each.document for each in happened.happenings]
    if happened.dropped:
        about["history_dropped"] = happened.dropped
    if inspected.sinks:
        about["sinks"] = inspected.sinks
    return {**about, "audits": audits, "next": next_step(inspected)}


def next_step(inspected: Inspected, *, is_page: bool = False) -> str:
    """A sentence about what an operator should do next. `is_page`: as in `view.advice`."""
    known = advice_of(inspected.snapshot.record, inspected.journal)
    if known is not None:
        return known
    if inspected.memory is not None:
        return inspected.memory.told(is_page=is_page)
    if inspected.snapshot.record is not None and inspected.treatment is None:
        return foreign(is_page=is_page)
    settle_us = None if inspected.treatment is None else inspected.treatment.settle_us
    text = advice(inspected.operation_id, inspected.snapshot, settle_us, is_page=is_page)
    record = inspected.snapshot.record
    if inspected.is_stranded and record is not None:
        return stranded_advice(record, inspected.snapshot.now_us, is_page=is_page)
    if inspected.pause is not None:
        goes_on = "It goes on when that is resumed, on the page Pauses." if is_page else "It goes on with: resume."
        return f"Its delivery is paused: {paused_line(inspected.pause)}. {goes_on} {text}"
    return text if inspected.doubt is None else f"{inspected.doubt.step} {text}"


# The table is written while it is read: widths cannot depend on later rows. The last column has none.
_FIRST: Final = {"OPERATION": 36, "STATE": 11, "SINCE": 20, "AGE": 8}
_TABLE: Final = {**_FIRST, "TOKEN": 7, "TRIES": 5, "STATUS": 6, "WHY": 18, "ROUTE": 0}
_JOURNAL: Final = {**_FIRST, "STATE": 7, "EVENT": 8, "TOKEN": 7, "STATUS": 6, "ROUTE": 20, "WHY": 0}
_LABELS: Final = {"claimed_at": "last claimed", "dead_since": "dead letter"}
_LABEL_WIDTH: Final = 16


def table_head() -> str:
    return _row(_TABLE, _TABLE)


def table_row(snapshot: Snapshot) -> str:
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
        printable(record.identity.route),
    )
    return _row(_TABLE, cells)


def _why(record: Record) -> str:
    delivery = record.delivery
    if delivery is None:
        return record.doubt or ""
    waits = "waits for lane" if delivery.is_behind and record.state is State.ACCEPTED else ""
    return record.doubt or delivery.reason or delivery.failure or waits


def journal_table(view: JournalView) -> Iterator[str]:
    """The outcomes in the journals of this host; nothing where there are none."""
    if view.entries:
        yield _row(_JOURNAL, _JOURNAL)
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
            printable(why_of(entry)),
        )
        yield _row(_JOURNAL, cells)


def _row(widths: Mapping[str, int], cells: Iterable[str]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths.values(), strict=True))


def json_line(about: dict[str, Any]) -> str:
    """A value as one line of ASCII, which cannot control a terminal. orjson would write UTF-8."""
    return json.dumps(about, ensure_ascii=True, separators=(",", ":"))


def full_text(inspected: Inspected) -> Iterator[str]:
    record, now_us = inspected.snapshot.record, inspected.snapshot.now_us
    rows: list[tuple[str, object]] = [("operation", inspected.operation_id), ("state", inspected.snapshot.state)]
    if record is not None:
        rows += _rows_of(record, inspected)
    rows.append(("store's now", moment(now_us)))
    happened = inspected.told
    rows += [("history", f"{moment(each.at_us)} {each.text}") for each in happened.happenings]
    rows.append(("history", happened.dropped_text or None))
    rows += [(f"sink {each['sink']}", events_text(each)) for each in inspected.sinks]
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
        label = _LABELS.get(name, name.removesuffix("_at").replace("_", " "))
        yield label, f"{moment(at_us)} ({ago(at_us, inspected.snapshot.now_us)})"
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
