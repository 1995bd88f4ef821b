"""The commands of operators: what `inspect`, `resolve`, `requeue`, `pause`, `purge`, `memory` and `journal` do.

Owns which options go together, what the commands print and their exit codes; `options` has their words.

A command line becomes a `Job` before any store is opened, so that mistakes in it are reported at once. Does not know
which store there is, and how it is opened.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import pwd
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from gateway import EXIT_FAILED, EXIT_WORK_LEFT, PROGRAM, CommandError, CommandWrong
from gateway.admin import reports, view
from gateway.admin import resolution as rulings
from gateway.admin.actions import CHANGES, Change, ListQuery, Result, states_named
from gateway.admin.journal import HEAD_BYTES_MAX, REFUSED, acknowledge, export, kept, notes, read_response
from gateway.admin.listing import PAGE_SIZE_MAX, REQUEUE, WITHDRAW, Verb, dead_letters, listed, pages
from gateway.admin.operations import Operations, audit_by
from gateway.admin.reports import Report, moment
from gateway.admin.resolution import Changed, Malformed, Refused
from gateway.core.delivery import REQUEUE_LIMIT_MAX, REQUEUE_RATE_MAX
from gateway.core.message import Headers
from gateway.core.operation import Audit, Snapshot, State
from gateway.store.base import Indefinite, NotApplied, StoreError
from gateway.store.operations import Query

# The most that a route may store, and the head before it.
_FILE_BYTES_MAX: Final = 64 * 1024 * 1024 + HEAD_BYTES_MAX


class Needs(Enum):
    """What has to be opened for a job."""

    JOURNAL = auto()  # nothing: the journals of this host are files
    RECORD = auto()  # the durable store alone: it is authoritative, and reading must not fill caches
    TIERS = auto()  # the fast tier, too: copies have to be dropped, and waiting requests woken


@dataclass(frozen=True, slots=True)
class Job:
    """A command to run. `run` returns the exit code, None for success; `changes`: it may change something. A job that
    needs only the journal gets operations whose store is not open."""

    run: Callable[[Operations], Awaitable[int | None]]
    needs: Needs = Needs.RECORD
    changes: bool = False


def job_of(chosen: argparse.Namespace) -> Job:
    """The job of a command line. Reads the files that it names; raises `CommandWrong`."""
    return _JOBS.get(chosen.command, _change)(chosen)


def _change_of(chosen: argparse.Namespace) -> Change[Any] | None:
    of_command = [each for each in CHANGES if each.command.partition(" ")[0] == chosen.command]
    asked = [each for each in of_command if each.option and getattr(chosen, each.option) not in (None, False)]
    return next(iter(asked or (each for each in of_command if not each.option)), None)


def _change(chosen: argparse.Namespace, without_why: str = "") -> Job:
    """The job of the change that this command line asks for. `without_why` as in `_audit`. What the change is given has
    the names of the options."""
    change, audit = _change_of(chosen), _audit(chosen, without_why)
    if change is None:
        raise RuntimeError(f"no change has the command {chosen.command}")
    given = {name: getattr(chosen, name) for name in change.asked.model_fields if hasattr(chosen, name)}
    asked = change.asked.model_construct(**given)
    operation_id = getattr(chosen, "operation", getattr(chosen, "event", ""))
    place = {"id": str(operation_id), "name": str(getattr(chosen, change.option, ""))}
    needs = Needs.TIERS if change.has_copies else Needs.RECORD
    return _telling(lambda operations: change.carry_out(operations, place, asked, audit), needs)


def _telling(
    work: Callable[[Operations], Awaitable[Result]], needs: Needs = Needs.TIERS, *, changes: bool = True
) -> Job:
    async def run(operations: Operations) -> int | None:
        result = await work(operations)
        if isinstance(result, Refused):
            if result.reason is rulings.Refusal.UNSURE:
                # The command line lacks --yes.
                raise CommandWrong(result.text)
            hint = " If you know more than the gateway, add --force." if result.can_be_forced else ""
            raise CommandError(result.text + hint)
        print(result if isinstance(result, str) else result.text)
        if not isinstance(result, Changed):
            return None
        for note in result.notes:
            _note(note)
        return EXIT_WORK_LEFT if result.purges_pending else None

    return Job(run, needs, changes)


# -- one operation, and lists of them ----------------------------------------------------------------------------------


def _inspect(chosen: argparse.Namespace) -> Job:
    if chosen.list:
        _refuse(chosen, "finds one operation by its request; leave out --list", "--header", "--body")
        if chosen.reason is not None and set(chosen.state) - {State.DEAD_LETTER.value}:
            raise CommandWrong("--reason is for dead letters; leave out other states")
        return Job(lambda operations: _list(operations, chosen))
    _refuse(chosen, "is for --list", "--state", "--older-than", "--reason", "--limit")
    if chosen.operation is not None:
        _refuse(chosen, "is not needed beside the id of an operation", "--header", "--body", "--route")
        text = chosen.operation
        if text == "-":
            text = _read(text, HEAD_BYTES_MAX).decode(errors="replace")
        try:
            operation_id = view.operation_in(text)
        except Malformed as error:
            raise CommandWrong(str(error)) from None
        return Job(lambda operations: _show(operations, operation_id, chosen.format))
    if len(chosen.route) != 1 or not chosen.header:
        raise CommandWrong(
            "say which operation: its id; or --route and the headers of its request, as in --route NAME --header "
            "'Idempotency-Key: abc' --header 'X-Tenant-Id: acme'; or --list"
        )
    about = chosen.route[0], _headers(chosen.header), None if chosen.body is None else _read(chosen.body)
    return Job(lambda operations: _show(operations, operations.identify(*about), chosen.format))


async def _show(operations: Operations, operation_id: UUID, form: str) -> None:
    inspected = await operations.inspect(operation_id)
    print(view.json_line(view.full_json(inspected)) if form == "jsonl" else "\n".join(view.full_text(inspected)))


async def _list(operations: Operations, chosen: argparse.Namespace) -> None:
    for name in chosen.route:
        if operations.policies.named(name) is None:
            _note(f"there is no route {name} in the configuration")
    asked = ListQuery.model_construct(
        state=states_named(chosen.state),
        route=frozenset(chosen.route) or None,
        older_than=chosen.older_than or 0,
        reason=chosen.reason,
        limit=PAGE_SIZE_MAX,
    )
    is_table, is_empty = chosen.format == "table", True
    async for records, now_us in pages(operations, asked.query, chosen.limit or sys.maxsize):
        if is_table and is_empty:
            print(view.table_head())
        is_empty = False
        for each in records:
            about = Snapshot(each, now_us)
            print(view.table_row(each, now_us) if is_table else view.json_line(view.described(about, has_body=False)))
        sys.stdout.flush()
    if is_table and is_empty:
        print("No operation matches." if chosen.state or chosen.reason else "No matching operation is in doubt.")


def _of_dead_letters(chosen: argparse.Namespace, verb: Verb) -> Job:
    """A decision about one operation, or about many dead letters."""
    audit = _audit(chosen)
    if chosen.operation is not None:
        many_only = ("--route", "--reason", "--older-than", "--limit", "--rate")
        _refuse(chosen, "chooses many; leave out OPERATION_ID", *many_only)
        return _change(chosen)
    _refuse(chosen, "is for one operation", "--token")
    if not (chosen.route or chosen.reason or chosen.older_than is not None):
        raise CommandWrong(
            "say which dead letters: an OPERATION_ID; or, for many, --route, --reason or --older-than, with --limit "
            "and --rate"
        )
    if not 1 <= (chosen.limit or 0) <= REQUEUE_LIMIT_MAX or not 1 <= (chosen.rate or 0) <= REQUEUE_RATE_MAX:
        raise CommandWrong(
            f"to {verb.name} many, give --limit (at most {REQUEUE_LIMIT_MAX}) and --rate (at most {REQUEUE_RATE_MAX} a "
            "second): it is done beside new requests"
        )
    wanted = dead_letters(frozenset(chosen.route) or None, chosen.reason, chosen.older_than or 0, chosen.limit)
    return Job(lambda operations: _many(operations, wanted, chosen.rate, verb, audit), Needs.TIERS, changes=True)


async def _many(operations: Operations, wanted: Query, rate: int, verb: Verb, audit: Audit) -> None:
    without_route = [name for name in sorted(wanted.routes or ()) if operations.policies.named(name) is None]
    # Dead letters outlive the name of their route.
    waiting = (await operations.backlog()).waiting if without_route else {}
    for name in without_route:
        if name not in waiting:
            raise rulings.no_such_route(name, operations.policies)
        _note(f"there is no route {name} in the configuration")
    bulk = await listed(operations, wanted, rate, verb)
    try:
        async for operation_id, outcome in bulk.run(operations, audit):
            is_done = isinstance(outcome, Changed) and not outcome.is_repeat
            print(f"{operation_id}  {verb.done if is_done else f'skipped: {outcome.text}'}", flush=True)
    except asyncio.CancelledError:
        print(bulk, flush=True)
        raise
    except (NotApplied, Indefinite) as error:
        raise CommandError(f"{bulk}. Stopped; give the same command again to go on: {error}") from error
    print(bulk)


# -- reports -----------------------------------------------------------------------------------------------------------


def _printed(form: str, rows: Iterable[Report], text: Callable[[Report], str], empty: str) -> None:
    """Rows as lines or as JSON lines; as lines, what is said where there are none."""
    lines = [text(row) if form == "table" else view.json_line(row) for row in rows]
    if lines or form == "table":
        print("\n".join(lines) or empty)


def _pause(chosen: argparse.Namespace) -> Job:
    if chosen.route is not None:
        return _change(chosen, "a pause needs --why; it is recorded")
    _refuse(chosen, "is for a ROUTE", "--why", "--by")

    async def show(operations: Operations) -> None:
        _printed("table", await operations.paused(), reports.paused_line, "Nothing is paused.")
        if audits := await operations.pause_audits():
            print("What was done:")
            _printed("table", audits, reports.pause_audit_line, "")

    return Job(show)


def _observe(chosen: argparse.Namespace) -> Job:
    async def show(operations: Operations) -> None:
        routes = await operations.observed(chosen.route)
        none = "No route is observed, and none was in the last 24 hours."
        _printed(chosen.format, routes, lambda route: "\n".join(reports.observed_lines(route)), none)
        if chosen.format == "table" and routes:
            print(f"note: {reports.NO_MEMORY}")

    return Job(show)


def _sinks(chosen: argparse.Namespace) -> Job:
    if _change_of(chosen) is not None:
        return _change(chosen, "--suspend and --resume need --why; it is recorded")
    _refuse(chosen, "is for --suspend and --resume", "--why", "--by")

    async def show(operations: Operations) -> None:
        _printed(chosen.format, await operations.sinks(), reports.sink_line, "There are no sinks.")

    return Job(show)


def _events(chosen: argparse.Namespace) -> Job:
    async def show(operations: Operations) -> None:
        left, after, none = chosen.limit, None, f"No event of {chosen.sink} is {chosen.state}."
        while left > 0:
            size = min(left, PAGE_SIZE_MAX)
            page = await operations.events(chosen.sink, is_dead=chosen.state == "dead", after=after, limit=size)
            if page or after is None:
                _printed(chosen.format, page, reports.event_line, none)
            if len(page) < size:
                break
            after, left = page[-1]["id"], left - size

    return Job(show)


def _purge(chosen: argparse.Namespace) -> Job:
    if chosen.yes and not chosen.erase:
        _audit(chosen)
        raise CommandWrong("--yes confirms --erase, and is not needed to purge")
    return _change(chosen)


def _memory(chosen: argparse.Namespace) -> Job:
    if chosen.accept_loss:
        return _change(chosen, "--accept-loss needs --why: say why keys that were used may run again")
    _refuse(chosen, "is for --accept-loss", "--why", "--by")
    return _telling(Operations.memory, Needs.RECORD, changes=False)


def _journal(chosen: argparse.Namespace) -> Job:
    operation_id: UUID | None = chosen.operation
    if not chosen.acknowledge:
        _refuse(chosen, "is for --acknowledge", "--why", "--by")
    if not chosen.acknowledge and chosen.export is None:
        _refuse(chosen, "is for --export and --acknowledge", "--token")
        return Job(lambda operations: _list_journal(operations, chosen), Needs.JOURNAL)
    if operation_id is None:
        raise CommandWrong("say which operation: its id, as journal lists it")
    _refuse(chosen, "is for the list", "--state", "--format")
    audit = None
    if chosen.acknowledge:
        audit = _audit(chosen, "--acknowledge needs --why: say what was found, and what was done about it")

    async def run(operations: Operations) -> None:
        if audit is None:
            print(await export(operations.journals, operation_id, chosen.token, chosen.export))
        else:
            print(await acknowledge(operations.journals, operation_id, chosen.token, audit, operations.read))

    return Job(run, Needs.JOURNAL) if audit is None else Job(run, changes=True)


async def _list_journal(operations: Operations, chosen: argparse.Namespace) -> int | None:
    is_refused = None if chosen.state is None else chosen.state == REFUSED
    found = await operations.journal(operation_id=chosen.operation, is_refused=is_refused, limit=chosen.limit)
    is_table = chosen.format == "table"
    objects = (view.json_line(kept(entry, found.now_us)) for entry in found.entries)
    for line in view.journal_table(found) if is_table else objects:
        print(line)
    if is_table and not found.entries and not found.faults:
        print("No outcome in the journal matches." if chosen.operation or chosen.state else "The journal is empty.")
    sys.stdout.flush()
    for note in notes(found):
        _note(note)
    for fault in found.faults:
        _fail(fault)
    return EXIT_FAILED if found.faults else None


# -- words and lines ---------------------------------------------------------------------------------------------------


def _note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr)


def _fail(text: str) -> None:
    print(f"{PROGRAM}: {text}", file=sys.stderr)


def _audit(chosen: argparse.Namespace, without_why: str = "") -> Audit:
    """Who acts, and why. `without_why` is what to say where the reason is missing."""
    if chosen.why is None:
        raise CommandWrong(without_why)
    try:
        return audit_by(_user() if chosen.by is None else chosen.by, chosen.why)
    except Malformed as error:
        raise CommandWrong(str(error)) from None


def _user() -> str:
    """The user name according to the system; the environment could say anything."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"


def _refuse(chosen: argparse.Namespace, why: str, *options: str) -> None:
    """Raises `CommandWrong` where one of these options is given, to another value than it has by itself."""
    for option in options:
        value = getattr(chosen, option[2:].replace("-", "_"))
        if not (value is None or value is False or value in ([], "table")):
            raise CommandWrong(f"{option} {why}")


def _headers(lines: Sequence[str]) -> Headers:
    headers: list[tuple[bytes, bytes]] = []
    for line in lines:
        given = [os.fsencode(line)]
        if line.startswith("@"):
            given = [each for each in _read(line[1:], HEAD_BYTES_MAX).splitlines() if each]
        for each in given:
            name, colon, value = each.partition(b":")
            if not colon or not name.strip():
                # The text does not quote it: it may be a credential without its name.
                raise CommandWrong("expected a header such as 'Idempotency-Key: abc'")
            headers.append((name.strip(), value.strip(b" \t")))
    return tuple(headers)


def _read(name: str, bytes_max: int = _FILE_BYTES_MAX) -> bytes:
    """The content of a file, or of standard input for `-`."""
    try:
        if name == "-":
            data = sys.stdin.buffer.read(bytes_max + 1)
        else:
            with Path(name).open("rb") as stream:
                data = stream.read(bytes_max + 1)
    except OSError as error:
        raise CommandWrong(f"{name} cannot be read: {error.strerror}") from None
    if len(data) > bytes_max:
        raise CommandWrong(f"{name} is longer than {bytes_max} bytes")
    return data


# -- resolving ---------------------------------------------------------------------------------------------------------
#
# The file of `resolve --from` has one operation per line: `OPERATION_ID never-happened`, with ` drop` behind it if a
# kept request must not be delivered again, or `OPERATION_ID completed FILE`. `OPERATION_ID@TOKEN` restricts it to one
# attempt. Empty lines and lines that begin with `#` are skipped. A file with a mistake is refused as a whole, before
# anything is done; it may be given again.

_LIST_BYTES_MAX: Final = 4 * 1024 * 1024
_LINES_MAX: Final = 10_000
_MISTAKES_MAX: Final = 20
# Of all responses together: they are in memory until the last line is done.
_RESPONSES_BYTES_MAX: Final = 256 * 1024 * 1024
_FORM: Final = "expected OPERATION_ID never-happened [drop], or OPERATION_ID completed FILE"


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the list. `token` as in `Operations.resolve`."""

    number: int
    operation_id: UUID
    ruling: rulings.Ruling
    token: int | None = None


class End(StrEnum):
    RESOLVED = "resolved"
    POSSIBLE = "would be resolved"
    ALREADY = "resolved already"
    REFUSED = "refused"
    UNKNOWN = "not known"


def _resolve(chosen: argparse.Namespace) -> Job:
    audit = _audit(chosen)
    if not chosen.never_happened:
        in_file = "" if chosen.list is None else "; in the file, write it behind the line"
        _refuse(chosen, f"is for --never-happened{in_file}", "--drop")
    if chosen.list is not None:
        return _resolve_list(chosen, audit)
    if chosen.operation is None:
        raise CommandWrong("say which operation: its id, as inspect --list shows it; or --from FILE for many")
    ruling: rulings.Ruling = rulings.NothingHappened(drops=chosen.drop)
    if chosen.completed is not None:
        try:
            ruling = _happened(chosen.completed, _read(chosen.completed))
        except ValueError as error:
            raise CommandWrong(str(error)) from None

    return _telling(
        lambda operations: operations.resolve(
            chosen.operation, ruling, audit, is_forced=chosen.force, token=chosen.token, is_dry_run=chosen.dry_run
        ),
        changes=not chosen.dry_run,
    )


def _happened(file: str, data: bytes) -> rulings.Happened:
    """The response of this file. Raises `ValueError`."""
    try:
        return rulings.Happened(*read_response(data))
    except Malformed as error:
        raise ValueError(f"{file}: {error}") from None


def _resolve_list(chosen: argparse.Namespace, audit: Audit) -> Job:
    if chosen.operation is not None:
        raise CommandWrong("an OPERATION_ID belongs in the file of --from")
    _refuse(chosen, "belongs in the file of --from", "--token")
    try:
        lines = read_list(_read(chosen.list, _LIST_BYTES_MAX), _read)
    except CommandWrong as error:
        raise CommandWrong(f"{chosen.list}: nothing was done\n{error}") from None

    async def resolve(operations: Operations) -> int | None:
        ends: Counter[End] = Counter()
        found = resolve_all(operations, lines, audit, is_forced=chosen.force, is_dry_run=chosen.dry_run)
        async for line, end, text in found:
            ends[end] += 1
            if end in (End.REFUSED, End.UNKNOWN):
                _fail(f"{chosen.list}: line {line.number}: {line.operation_id}: {text}")
            else:
                print(f"{line.operation_id}  {end}", flush=True)
        if ends[End.UNKNOWN]:
            _fail(f"stopped there; {len(lines) - ends.total()} lines were not tried. Give the same command again")
        print(", ".join(f"{count} {end}" for end, count in ends.items()))
        return EXIT_FAILED if ends[End.REFUSED] or ends[End.UNKNOWN] else None

    return Job(resolve, Needs.TIERS, changes=not chosen.dry_run)


def read_list(text: bytes, read_file: Callable[[str], bytes]) -> list[Line]:
    """The lines of a list, with the responses that they name. Raises `CommandWrong`, which names each line with a
    mistake, up to a bound; a `ValueError` of `read_file` is a mistake of its line."""
    lines: list[Line] = []
    mistakes: list[str] = []
    responses_bytes = 0
    for number, raw in enumerate(text.splitlines(), 1):
        text_line = raw.decode("utf-8", "surrogateescape").strip()
        if not text_line or text_line.startswith("#"):
            continue
        if len(lines) >= _LINES_MAX:
            raise CommandWrong(f"there are more than {_LINES_MAX} operations; split the file")
        try:
            line, size = _read_line(number, text_line, read_file)
        except ValueError as error:
            mistakes.append(f"line {number}: {error}")
            if len(mistakes) >= _MISTAKES_MAX:
                break
            continue
        lines.append(line)
        responses_bytes += size
        if responses_bytes > _RESPONSES_BYTES_MAX:
            raise CommandWrong(
                f"the responses have more than {_RESPONSES_BYTES_MAX >> 20} MiB together; split the file"
            )
    counts = Counter(line.operation_id for line in lines)
    mistakes += [
        f"line {line.number}: {line.operation_id} is listed {counts[line.operation_id]} times"
        for line in lines
        if counts[line.operation_id] > 1
    ]
    if mistakes:
        raise CommandWrong("\n".join(mistakes[:_MISTAKES_MAX]))
    if not lines:
        raise CommandWrong(f"it names no operation; {_FORM}")
    return lines


def _read_line(number: int, text: str, read_file: Callable[[str], bytes]) -> tuple[Line, int]:
    """The line, and the bytes of its response. Raises `ValueError`."""
    which, _, rest = text.partition(" ")
    verb, _, file = rest.strip().partition(" ")
    name, at, given = which.partition("@")
    try:
        operation_id = UUID(name)
    except ValueError:
        raise ValueError(_FORM) from None
    if at and not (given.isascii() and given.isdecimal() and 1 <= len(given) <= 18 and int(given) > 0):
        raise ValueError("expected a token behind @: a whole number above 0")
    token = int(given) if at else None
    match verb, file.strip():
        case "never-happened", "" | "drop" as drop:
            return Line(number, operation_id, rulings.NothingHappened(drops=bool(drop)), token), 0
        case "completed", file if file:
            data = read_file(file)
            return Line(number, operation_id, _happened(file, data), token), len(data)
        case _:
            raise ValueError(_FORM)


async def resolve_all(
    operations: Operations, lines: Sequence[Line], audit: Audit, *, is_forced: bool, is_dry_run: bool
) -> AsyncIterator[tuple[Line, End, str]]:
    """Apply each line, in order, and yield its result, with a text. Ends after a line whose effect is not known."""
    for line in lines:
        try:
            outcome = await _done_before(operations, line, audit) or await operations.resolve(
                line.operation_id, line.ruling, audit, is_forced=is_forced, token=line.token, is_dry_run=is_dry_run
            )
        except (NotApplied, Indefinite) as error:
            yield line, End.UNKNOWN, str(error)
            return
        except StoreError as error:
            yield line, End.REFUSED, str(error)
            continue
        end = End.POSSIBLE if is_dry_run else End.RESOLVED
        if isinstance(outcome, Refused):
            end = End.REFUSED
        elif outcome.is_repeat:
            end = End.ALREADY
        yield line, end, outcome.text


async def _done_before(operations: Operations, line: Line, audit: Audit) -> Changed | Refused | None:
    """What became of a line that was applied before; None if it was not. A list may be given again long afterwards.
    "Nothing happened" frees the key, so the operation may have run since then: the line counts as done. If it is in
    doubt again, the list was not about this attempt, and resolves it only by naming its token."""
    if not isinstance(line.ruling, rulings.NothingHappened):
        return None
    audits = await operations.audits(line.operation_id)
    earlier = next((entry for entry in reversed(audits) if rulings.is_said_by(entry, audit)), None)
    if earlier is None:
        return None
    snapshot = await operations.read(line.operation_id)
    if snapshot.state is not State.IN_DOUBT or line.token == earlier.token:
        return Changed(f"Resolved already, {moment(earlier.at_us)}.", snapshot, is_repeat=True)
    return rulings.moved(earlier.token, snapshot) if line.token is None else None


_JOBS: Final[Mapping[str, Callable[[argparse.Namespace], Job]]] = {
    "inspect": _inspect,
    "resolve": _resolve,
    "requeue": lambda chosen: _of_dead_letters(chosen, REQUEUE),
    "withdraw": lambda chosen: _of_dead_letters(chosen, WITHDRAW),
    "pause": _pause,
    "sinks": _sinks,
    "events": _events,
    "purge": _purge,
    "memory": _memory,
    "journal": _journal,
    "observe": _observe,
}
"""Those that are more than one change."""
