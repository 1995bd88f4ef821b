"""The operators' terminal: the options of their commands, and the output.

*Command lines.* Owns the options and the form of their values: ids, durations, numbers. `commands` decides which
options go together, and what they do.

*Output.* One operation in full, many as a table or as JSON lines, and the journal likewise: values in, lines out.
Characters of foreign texts (a route's name, a header's value) that are not printable are replaced.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from gateway.admin.inspection import Inspected, next_step, recovery_rows
from gateway.admin.journal import REFUSED, WAITING, sentence, since_us, state_of, why_of
from gateway.admin.requeueing import LIMIT_MAX, RATE_MAX
from gateway.admin.view import REASONS, ago, described, moment, printable, span, times_of
from gateway.config.leaf import duration_seconds
from gateway.core.operation import Delivery, Identity, Record, RequestInfo, Snapshot, State, microseconds
from gateway.store.journal import JournalView

AddParser = Callable[..., argparse.ArgumentParser]

NAMES: Final = frozenset(
    (
        *("inspect", "resolve", "requeue", "withdraw", "pause", "resume", "sinks", "events", "redeliver"),
        *("purge", "memory", "journal", "observe"),
    )
)

STATES: Final = tuple(state.value for state in State if state is not State.ABSENT)
EVERY_STATE: Final = "all"

_JOURNAL_ROWS: Final = 1_000


def add_commands(add: AddParser) -> list[argparse.ArgumentParser]:
    """Add the parsers of all operators' commands with the program's `add_parser`, and return them."""
    return [
        _add_inspect(add),
        _add_resolve(add),
        _add_requeue(add),
        _add_withdraw(add),
        _add_pause(add),
        _add_resume(add),
        _add_sinks(add),
        _add_events(add),
        _add_redeliver(add),
        _add_purge(add),
        _add_memory(add),
        _add_journal(add),
        _add_observe(add),
    ]


def _add_inspect(add: AddParser) -> argparse.ArgumentParser:
    inspect = add(
        "inspect",
        help="show what is known about an operation, or list operations",
        description="Show all that is known about one operation and what to do about it, or list operations. "
        "Changes nothing. Times are the store's.",
    )
    which = inspect.add_mutually_exclusive_group()
    which.add_argument("operation", nargs="?", type=_operation_id, metavar="OPERATION_ID", help="the operation")
    which.add_argument("--list", action="store_true", help="list operations; by default those in doubt")
    inspect.add_argument(
        "--route", action="append", default=[], metavar="NAME", help="the route; may be repeated with --list"
    )
    inspect.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="'NAME: VALUE'",
        help="a header of the request to look up (its key, its caller); may be repeated; @FILE reads the headers "
        "from a file, which keeps credentials out of the shell's history",
    )
    inspect.add_argument("--body", metavar="FILE", help="the body of that request, if the key is in it")
    inspect.add_argument(
        "--state", action="append", default=[], choices=[*STATES, EVERY_STATE], help="list this state; may be repeated"
    )
    inspect.add_argument(
        "--older-than",
        type=_duration_us,
        metavar="DURATION",
        help="list operations first claimed or accepted at least this long ago: 5m, 12h",
    )
    inspect.add_argument(
        "--reason", choices=REASONS, metavar="REASON", help=f"list dead letters for this reason: {', '.join(REASONS)}"
    )
    inspect.add_argument("--limit", type=_count, metavar="N", help="list at most this many")
    inspect.add_argument(
        "--format", choices=("table", "jsonl"), default="table", help="for people, or one JSON object per line"
    )
    return inspect


def _add_resolve(add: AddParser) -> argparse.ArgumentParser:
    resolve = add(
        "resolve",
        help="end the doubt about an operation",
        description="Say what happened to an operation in doubt. Giving the same command twice changes nothing more: "
        "repeat it if you did not see its result. With --from, one command resolves many: each line of the file "
        "is OPERATION_ID never-happened [drop], or OPERATION_ID completed FILE; with OPERATION_ID@TOKEN it is refused "
        "if the token is another one. Refused lines are listed, and the others are done.",
    )
    resolve.add_argument("operation", nargs="?", type=_operation_id, metavar="OPERATION_ID")
    ruling = resolve.add_mutually_exclusive_group(required=True)
    ruling.add_argument(
        "--completed",
        metavar="FILE",
        help="it happened, and this is the service's response as curl -i prints it; - reads standard input",
    )
    ruling.add_argument(
        "--never-happened",
        action="store_true",
        help="it had no effect, and no longer can; if its request is kept, it is delivered again",
    )
    ruling.add_argument(
        "--from", dest="list", metavar="FILE", help="resolve what this file lists; - reads standard input"
    )
    resolve.add_argument(
        "--drop",
        action="store_true",
        help="with --never-happened: if its request is kept, drop it, and do not deliver it",
    )
    _add_audit(resolve)
    resolve.add_argument(
        "--force",
        action="store_true",
        help="even though a request may still arrive, or the response's status settles nothing",
    )
    resolve.add_argument("--token", type=_count, metavar="N", help="only if this is still the operation's token")
    resolve.add_argument("--dry-run", action="store_true", help="say what would be done, and change nothing")
    return resolve


def _add_requeue(add: AddParser) -> argparse.ArgumentParser:
    requeue = add(
        "requeue",
        help="deliver a dead letter after all, or many",
        description="Deliver a dead letter after all: as soon as possible, with a new deadline and a new limit of "
        "answers. Giving the same command twice requeues nothing twice: repeat it if you did not see its result. "
        "Without an OPERATION_ID, those are requeued that match --route, --reason and --older-than; this may be "
        "interrupted and given again. inspect --list --state dead_letter lists them.",
    )
    requeue.add_argument("operation", nargs="?", type=_operation_id, metavar="OPERATION_ID")
    requeue.add_argument("--token", type=_count, metavar="N", help="only if this is still the operation's token")
    requeue.add_argument("--route", action="append", default=[], metavar="NAME", help="of this route; may be repeated")
    requeue.add_argument(
        "--reason", choices=REASONS, metavar="REASON", help=f"dead for this reason: {', '.join(REASONS)}"
    )
    requeue.add_argument(
        "--older-than", type=_duration_us, metavar="DURATION", help="dead for at least this long: 5m, 12h"
    )
    requeue.add_argument("--limit", type=_count, metavar="N", help=f"at most this many, and {LIMIT_MAX}")
    requeue.add_argument("--rate", type=_count, metavar="N", help=f"at most this many a second, and {RATE_MAX}")
    _add_audit(requeue)
    return requeue


def _add_withdraw(add: AddParser) -> argparse.ArgumentParser:
    withdraw = add(
        "withdraw",
        help="call off an accepted operation or a dead letter, and drop its request",
        description="Call off an operation that waits to be delivered, or is a dead letter. Its request is dropped; if "
        "its caller sends it again, it runs.",
    )
    withdraw.add_argument("operation", type=_operation_id, metavar="OPERATION_ID")
    withdraw.add_argument("--token", type=_count, metavar="N", help="only if this is still the operation's token")
    _add_audit(withdraw)
    return withdraw


def _add_pause(add: AddParser) -> argparse.ArgumentParser:
    pause = add(
        "pause",
        help="deliver nothing of a route until it is resumed, or list what is paused",
        description="Deliver nothing of a route for a while, as for a planned outage of its service. Requests are "
        "accepted and kept, and the time does not count against their deadline. Without ROUTE, list what is paused, by "
        "whom and why, and what was paused and resumed before.",
    )
    pause.add_argument("route", nargs="?", metavar="ROUTE", help="a route; those with its operation name are, too")
    _add_audit(pause, is_required=False)
    return pause


def _add_resume(add: AddParser) -> argparse.ArgumentParser:
    resume = add("resume", help="deliver a paused route again", description="End a pause.")
    resume.add_argument("route", metavar="ROUTE", help="a route or, if none has it any more, an operation name")
    _add_audit(resume)
    return resume


def _add_sinks(add: AddParser) -> argparse.ArgumentParser:
    sinks = add(
        "sinks",
        help="list the sinks of events and what waits for them; suspend or resume one",
        description="List the sinks and what waits for each of them. With --suspend or --resume, publish nothing to a "
        "sink for a while, or publish to it again; its events are kept.",
    )
    which = sinks.add_mutually_exclusive_group()
    which.add_argument("--suspend", metavar="NAME", help="publish nothing to this sink any more")
    which.add_argument("--resume", metavar="NAME", help="publish to this sink again, also what waited")
    _add_audit(sinks, is_required=False)
    sinks.add_argument("--format", choices=("table", "json"), default="table", help="json: one object per line")
    return sinks


def _add_events(add: AddParser) -> argparse.ArgumentParser:
    events = add(
        "events",
        help="list the events that a sink has not received",
        description="List the events that a sink has not received, in the order of their ids. Changes nothing.",
    )
    events.add_argument("--sink", required=True, metavar="NAME", help="the sink")
    events.add_argument(
        "--state", choices=("dead", "waiting"), default="dead", help="dead: given up (default); or those that wait"
    )
    events.add_argument("--limit", type=_count, default=1000, metavar="N", help="at most this many (default 1000)")
    events.add_argument("--format", choices=("table", "json"), default="table", help="json: one object per line")
    return events


def _add_redeliver(add: AddParser) -> argparse.ArgumentParser:
    redeliver = add(
        "redeliver",
        help="publish an event that was given up after all",
        description="Publish a dead event after all, under the same id. events --sink NAME lists them.",
    )
    redeliver.add_argument("event", metavar="EVENT_ID")
    redeliver.add_argument("--sink", metavar="NAME", help="to this sink; otherwise to all where it is dead")
    _add_audit(redeliver)
    return redeliver


def _add_purge(add: AddParser) -> argparse.ArgumentParser:
    purge = add(
        "purge",
        help="drop the recorded response of an operation, but remember its key",
        description="Drop the recorded response of a completed operation everywhere. The key is remembered and does "
        "not run again, unless it is erased.",
    )
    purge.add_argument("operation", type=_operation_id, metavar="OPERATION_ID")
    purge.add_argument(
        "--erase",
        action="store_true",
        help="forget the key of an operation without a response, so that it can run again",
    )
    purge.add_argument("--yes", action="store_true", help="confirm --erase: no client will repeat this key")
    _add_audit(purge)
    return purge


def _add_memory(add: AddParser) -> argparse.ArgumentParser:
    memory = add(
        "memory",
        help="show whether the durable store lost its memory, or accept the loss",
        description="Show whether the durable store is known to have lost its memory in a failover or a restore. For "
        "some time after that, first requests with a key that it does not have are refused.",
    )
    memory.add_argument(
        "--accept-loss",
        action="store_true",
        help="trust the store again: keys that it lost run again if they are repeated",
    )
    _add_audit(memory, is_required=False)
    return memory


def _add_observe(add: AddParser) -> argparse.ArgumentParser:
    observe = add(
        "observe",
        help="report what enforcement would have done with observed requests",
        description="Report what enforcing the observed routes would have done with the requests of the last 24 hours: "
        "how many it would have refused, by verdict and with examples, and how many would not have run again. Changes "
        "nothing.",
    )
    observe.add_argument("what", choices=("report",))
    observe.add_argument("--route", metavar="NAME", help="only this route")
    observe.add_argument(
        "--format", choices=("table", "jsonl"), default="table", help="for people, or one JSON object per line"
    )
    return observe


def _add_journal(add: AddParser) -> argparse.ArgumentParser:
    journal = add(
        "journal",
        help="list the outcomes that the durable store has not taken yet, or has refused",
        description="List the journal of this host, which holds outcomes while the durable store is away: those that "
        "wait for it, and those that it refused. Listing needs no store and changes nothing; gateways may be running "
        "or not. Times are this host's. --export writes the response of an outcome to a file; --acknowledge moves a "
        "refused outcome that was dealt with out of the journal, into a directory beside it.",
    )
    journal.add_argument("operation", nargs="?", type=UUID, metavar="OPERATION_ID", help="only this operation")
    journal.add_argument("--state", choices=(WAITING, REFUSED), help="list only these")
    journal.add_argument(
        "--limit", type=_limit, default=_JOURNAL_ROWS, metavar="N", help="list at most this many; default: %(default)s"
    )
    journal.add_argument(
        "--format", choices=("table", "jsonl"), default="table", help="for people, or one JSON object per line"
    )
    action = journal.add_mutually_exclusive_group()
    action.add_argument(
        "--export", type=Path, metavar="FILE", help="write its response to this new file, for resolve --completed"
    )
    action.add_argument(
        "--acknowledge",
        action="store_true",
        help="move a refused outcome that was dealt with out of the journal, to a directory beside it. Needs the store",
    )
    journal.add_argument("--why", metavar="TEXT", help="why it is acknowledged; recorded with the outcome")
    journal.add_argument("--by", metavar="NAME", help="who acknowledges; default: your user name")
    journal.add_argument("--token", type=_count, metavar="N", help="only the attempt with this token")
    return journal


def _add_audit(command: argparse.ArgumentParser, *, is_required: bool = True) -> None:
    command.add_argument("--why", required=is_required, metavar="TEXT", help="the reason; recorded in the store")
    command.add_argument("--by", metavar="NAME", help="who decides; default: your user name")


def _operation_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            "expected the id of an operation, as its problem document or inspect --list shows it"
        ) from None


def _duration_us(text: str) -> int:
    seconds = duration_seconds(text)
    if seconds is None:
        raise argparse.ArgumentTypeError("expected a duration such as 30s, 5m, 12h or 7d")
    return microseconds(seconds)


def _limit(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 1 <= len(text) <= 6 or int(text) < 1:
        raise argparse.ArgumentTypeError("expected a whole number from 1 to 999999")
    return int(text)


def _count(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 1 <= len(text) <= 18 or int(text) < 1:
        raise argparse.ArgumentTypeError("expected a whole number above 0")
    return int(text)


# -- output -----------------------------------------------------------------------------------------------------------

Columns = tuple[tuple[str, int], ...]
# The table is written while it is read: widths cannot depend on later rows.
_COLUMNS: Final[Columns] = (
    ("OPERATION", 36),
    ("STATE", 11),
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
    yield from _identity_text(record.identity)
    yield _line("token", str(record.token))
    yield _line("attempts", str(record.attempts))
    if record.holder:
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
    if record.delivery is not None:
        yield from _delivery_text(record.delivery)
    if record.resource is not None:
        yield _line("resource", printable(record.resource))
    if record.response is not None:
        about = described(inspected.snapshot, has_body=True)["response"]
        size = f", {about['body_bytes']} bytes" if "body_bytes" in about else ""
        yield _line("response", f"{about['status']}, body {about['body']}{size}")


def _identity_text(identity: Identity) -> Iterator[str]:
    yield _line("route", identity.route)
    if identity.operation != identity.route:
        yield _line("operation name", identity.operation)
    if identity.key is not None:
        yield _line("key", identity.key)


def _delivery_text(delivery: Delivery) -> Iterator[str]:
    yield _line("kept request", f"{delivery.request_bytes} bytes, encrypted")
    yield _line("answers", str(delivery.answers))
    if delivery.failure is not None:
        yield _line("last failure", delivery.failure)
    if delivery.reason is not None:
        yield _line("dead letter, as", delivery.reason)
    if delivery.lane is not None:
        turn = "others of it go first" if delivery.is_behind else "it goes first"
        yield _line("lane", f"{delivery.lane.hex()}, number {delivery.lane_number}; {turn}")


def _request_text(request: RequestInfo) -> Iterator[str]:
    yield _line("request", f"{request.method} {request.host}{request.path}")
    if request.request_id is not None:
        yield _line("request id", request.request_id)
    if request.trace_id is not None:
        yield _line("trace id", request.trace_id)


def _line(label: str, text: str) -> str:
    return f"{label.ljust(_LABEL_WIDTH)}  {printable(text)}"
