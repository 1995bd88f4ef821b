"""The commands of operators: what `inspect`, `resolve`, `requeue`, `pause`, `purge`, `memory` and `journal` do.

Owns which options go together, what the commands print and their exit codes; `console` defines the options.

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
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Final
from uuid import UUID

from gateway import EXIT_FAILED, EXIT_OK, EXIT_WORK_LEFT, PROGRAM, CommandWrong
from gateway.admin.console import full_text, journal_table, json_line, table_head, table_row
from gateway.admin.delivery import NoSuchRoute, no_such_route, pause_line
from gateway.admin.inspection import full_json
from gateway.admin.journal import REFUSED, OutcomeRefused, acknowledge, export, kept, notes
from gateway.admin.listing import LIST_BYTES_MAX, End, ListWrong, read_list, resolve_all
from gateway.admin.observed import NO_MEMORY, NoSuchObservedRoute
from gateway.admin.operations import PAGE_SIZE_MAX, CannotIdentify, Operations, audit_by
from gateway.admin.provided_response import HEAD_BYTES_MAX, ResponseRefused, read_response
from gateway.admin.requeueing import Wanted, listed
from gateway.admin.resolution import Changed, Happened, NothingHappened, Refusal, Refused, Ruling
from gateway.admin.sinks import NoSuchSink, event_document, event_line
from gateway.admin.view import described
from gateway.core.delivery import REQUEUE_LIMIT_MAX, REQUEUE_RATE_MAX
from gateway.core.message import Headers
from gateway.core.operation import Audit, Record, State
from gateway.options import EVERY_STATE, STATES
from gateway.store.base import Indefinite, NotApplied
from gateway.store.journal import HostJournals
from gateway.store.operations import Query

# The most that a route may store, and the head before it.
_FILE_BYTES_MAX: Final = 64 * 1024 * 1024 + HEAD_BYTES_MAX
_HEADER_FILE_BYTES_MAX: Final = HEAD_BYTES_MAX


class Needs(Enum):
    """What has to be opened for a job."""

    JOURNAL = auto()  # nothing: the journals of this host are files
    RECORD = auto()  # the durable store alone: it is authoritative, and reading must not fill caches
    TIERS = auto()  # the fast tier, too: copies have to be dropped, and waiting requests woken


@dataclass(frozen=True, slots=True)
class Job:
    """A command to run. `run` returns the exit code; `changes`: it may change something.

    A job that needs only the journal gets operations whose store is not open.
    """

    run: Callable[[Operations, HostJournals], Awaitable[int]]
    needs: Needs = Needs.RECORD
    changes: bool = False


def job_of(chosen: argparse.Namespace) -> Job:
    """The job of a command line. Reads the files that it names; raises `CommandWrong`."""
    match chosen.command:
        case "inspect":
            return _inspect(chosen)
        case "resolve":
            return _resolve(chosen)
        case "requeue":
            return _requeue(chosen)
        case "withdraw":
            return _withdraw(chosen)
        case "pause" if chosen.route is None:
            return _paused(chosen)
        case "pause" | "resume":
            return _pause(chosen)
        case "sinks":
            return _sinks(chosen)
        case "events" | "observe":
            show = _events if chosen.command == "events" else _observe
            return Job(lambda operations, _: show(operations, chosen))
        case "redeliver":
            return _redeliver(chosen)
        case "memory":
            return _memory(chosen)
        case "journal":
            return _journal(chosen)
        case _:
            return _purge(chosen)


def _inspect(chosen: argparse.Namespace) -> Job:
    lists_only = {
        "--state": chosen.state,
        "--older-than": chosen.older_than is not None,
        "--reason": chosen.reason,
        "--limit": chosen.limit,
    }
    request_only = {"--header": chosen.header, "--body": chosen.body}
    if chosen.list:
        _refuse(request_only, "finds one operation by its request; leave out --list")
        if chosen.reason is not None and set(chosen.state) - {State.DEAD_LETTER.value}:
            raise CommandWrong("--reason is for dead letters; leave out other states")
        return Job(lambda operations, _: _list(operations, chosen))
    _refuse(lists_only, "is for --list")
    if chosen.operation is not None:
        _refuse({**request_only, "--route": chosen.route}, "is not needed beside the id of an operation")
        operation_id: UUID = chosen.operation
        return Job(lambda operations, _: _show(operations, operation_id, chosen.format))
    if len(chosen.route) != 1 or not chosen.header:
        raise CommandWrong(
            "say which operation: its id; or --route and the headers of its request, as in --route NAME --header "
            "'Idempotency-Key: abc' --header 'X-Tenant-Id: acme'; or --list"
        )
    headers = _headers(chosen.header)
    body = None if chosen.body is None else _read(chosen.body, _FILE_BYTES_MAX)

    async def find(operations: Operations, _: HostJournals) -> int:
        try:
            found = operations.identify(chosen.route[0], headers, body)
        except CannotIdentify as error:
            return _fail(str(error))
        return await _show(operations, found, chosen.format)

    return Job(find)


async def _show(operations: Operations, operation_id: UUID, form: str) -> int:
    inspected = await operations.inspect(operation_id)
    for line in full_text(inspected) if form == "table" else (json_line(full_json(inspected)),):
        print(line)
    return EXIT_OK


async def _list(operations: Operations, chosen: argparse.Namespace) -> int:
    for name in chosen.route:
        if operations.policies.named(name) is None:
            print(f"note: there is no route {name} in the configuration", file=sys.stderr)
    names = chosen.state or [(State.IN_DOUBT if chosen.reason is None else State.DEAD_LETTER).value]
    states = frozenset(State(name) for name in (STATES if EVERY_STATE in names else names))
    query = Query(
        states=states,
        routes=frozenset(chosen.route) or None,
        age_us=chosen.older_than or 0,
        reason=chosen.reason,
        limit=PAGE_SIZE_MAX,
    )
    is_table = chosen.format == "table"
    count = 0
    async for page in operations.pages(query, chosen.limit):
        if is_table and not count:
            print(table_head())
        for snapshot in page:
            print(table_row(snapshot) if is_table else json_line(described(snapshot, has_body=False)))
        count += len(page)
        sys.stdout.flush()
    if is_table and not count:
        print("No operation matches." if chosen.state or chosen.reason else "No matching operation is in doubt.")
    return EXIT_OK


def _resolve(chosen: argparse.Namespace) -> Job:
    audit = _audit(chosen)
    if not chosen.never_happened:
        in_file = "" if chosen.list is None else "; in the file, write it behind the line"
        _refuse({"--drop": chosen.drop}, f"is for --never-happened{in_file}")
    if chosen.list is not None:
        return _resolve_list(chosen, audit)
    if chosen.operation is None:
        raise CommandWrong("say which operation: its id, as inspect --list shows it; or --from FILE for many")
    ruling: Ruling = NothingHappened(drops=chosen.drop)
    if chosen.completed is not None:
        try:
            ruling = Happened(*read_response(_read(chosen.completed, _FILE_BYTES_MAX)))
        except ResponseRefused as error:
            raise CommandWrong(f"{chosen.completed}: {error}") from None

    async def resolve(operations: Operations, _: HostJournals) -> int:
        outcome = await operations.resolve(
            chosen.operation,
            ruling,
            audit,
            is_forced=chosen.force,
            token=chosen.token,
            is_dry_run=chosen.dry_run,
        )
        return _print_outcome(outcome)

    return Job(resolve, Needs.TIERS, changes=not chosen.dry_run)


def _resolve_list(chosen: argparse.Namespace, audit: Audit) -> Job:
    _refuse({"an OPERATION_ID": chosen.operation, "--token": chosen.token}, "belongs in the file of --from")
    try:
        lines = read_list(_read(chosen.list, LIST_BYTES_MAX), lambda name: _read(name, _FILE_BYTES_MAX))
    except ListWrong as error:
        raise CommandWrong(f"{chosen.list}: nothing was done\n{error}") from None

    async def resolve(operations: Operations, _: HostJournals) -> int:
        ends: Counter[End] = Counter()
        async for ended in resolve_all(operations, lines, audit, is_forced=chosen.force, is_dry_run=chosen.dry_run):
            ends[ended.end] += 1
            line = ended.line
            if ended.end in (End.REFUSED, End.UNKNOWN):
                _fail(f"{chosen.list}: line {line.number}: {line.operation_id}: {ended.text}")
            else:
                print(f"{line.operation_id}  {ended.end}", flush=True)
        left = len(lines) - ends.total()
        if ends[End.UNKNOWN]:
            _fail(f"stopped there; {left} lines were not tried. Give the same command again")
        print(", ".join(f"{count} {end}" for end, count in ends.items()))
        return EXIT_FAILED if ends[End.REFUSED] or ends[End.UNKNOWN] else EXIT_OK

    return Job(resolve, Needs.TIERS, changes=not chosen.dry_run)


def _requeue(chosen: argparse.Namespace) -> Job:
    audit = _audit(chosen)
    many_only = {
        "--route": chosen.route,
        "--reason": chosen.reason,
        "--older-than": chosen.older_than is not None,
        "--limit": chosen.limit,
        "--rate": chosen.rate,
    }
    if chosen.operation is not None:
        _refuse(many_only, "chooses many; leave out OPERATION_ID")

        async def requeue(operations: Operations, _: HostJournals) -> int:
            return _print_outcome(await operations.requeue(chosen.operation, audit, token=chosen.token))

        return Job(requeue, Needs.TIERS, changes=True)
    _refuse({"--token": chosen.token}, "is for one operation")
    if not (chosen.route or chosen.reason or chosen.older_than is not None):
        raise CommandWrong(
            "say which dead letters: an OPERATION_ID; or, for many, --route, --reason or --older-than, with --limit "
            "and --rate"
        )
    if not 1 <= (chosen.limit or 0) <= REQUEUE_LIMIT_MAX or not 1 <= (chosen.rate or 0) <= REQUEUE_RATE_MAX:
        raise CommandWrong(
            f"to requeue many, give --limit (at most {REQUEUE_LIMIT_MAX}) and --rate (at most {REQUEUE_RATE_MAX} a "
            "second): they are delivered beside new requests"
        )
    wanted = Wanted(frozenset(chosen.route) or None, chosen.reason, chosen.older_than or 0, chosen.limit, chosen.rate)
    return Job(lambda operations, _: _requeue_many(operations, wanted, audit), Needs.TIERS, changes=True)


async def _requeue_many(operations: Operations, wanted: Wanted, audit: Audit) -> int:
    without_route = [name for name in sorted(wanted.routes or ()) if operations.policies.named(name) is None]
    if without_route:
        # Dead letters outlive the name of their route.
        waiting = (await operations.backlog()).waiting
        for name in without_route:
            if name not in waiting:
                return _fail(no_such_route(name, operations.policies))
            print(f"note: there is no route {name} in the configuration", file=sys.stderr)
    bulk = await listed(operations, wanted)
    try:
        async for operation_id, outcome in bulk.run(operations, audit):
            is_done = isinstance(outcome, Changed) and not outcome.is_repeat
            print(f"{operation_id}  requeued" if is_done else f"{operation_id}  skipped: {outcome.text}", flush=True)
    except asyncio.CancelledError:
        print(bulk, flush=True)
        raise
    except (NotApplied, Indefinite) as error:
        return _fail(f"{bulk}. Stopped; give the same command again to go on: {error}")
    print(bulk)
    return EXIT_OK


def _withdraw(chosen: argparse.Namespace) -> Job:
    audit = _audit(chosen)

    async def withdraw(operations: Operations, _: HostJournals) -> int:
        return _print_outcome(await operations.withdraw(chosen.operation, audit, token=chosen.token))

    return Job(withdraw, Needs.TIERS, changes=True)


def _paused(chosen: argparse.Namespace) -> Job:
    _refuse({"--why": chosen.why, "--by": chosen.by}, "is for a ROUTE")

    async def show(operations: Operations, _: HostJournals) -> int:
        paused = await operations.paused()
        for each in paused:
            print(each)
        if not paused:
            print("Nothing is paused.")
        audits = await operations.pause_audits()
        if audits:
            print("What was done:")
        for entry in audits:
            print(f"  {pause_line(entry)}")
        return EXIT_OK

    return Job(show)


def _pause(chosen: argparse.Namespace) -> Job:
    if chosen.why is None:
        raise CommandWrong("a pause needs --why; it is recorded")
    audit = _audit(chosen)

    async def change(operations: Operations, _: HostJournals) -> int:
        try:
            is_pause = chosen.command == "pause"
            print(await (operations.pause if is_pause else operations.resume)(chosen.route, audit))
        except NoSuchRoute as error:
            return _fail(str(error))
        return EXIT_OK

    return Job(change, changes=True)


async def _observe(operations: Operations, chosen: argparse.Namespace) -> int:
    try:
        routes = await operations.observed(chosen.route)
    except NoSuchObservedRoute as error:
        return _fail(str(error))
    for each in routes:
        for line in each.lines() if chosen.format == "table" else (json_line(each.document),):
            print(line)
    if chosen.format == "table":
        print(f"note: {NO_MEMORY}" if routes else "No route is observed, and none was in the last 24 hours.")
    return EXIT_OK


def _sinks(chosen: argparse.Namespace) -> Job:
    name = chosen.suspend or chosen.resume
    if name is None:
        _refuse({"--why": chosen.why, "--by": chosen.by}, "is for --suspend and --resume")

        async def show(operations: Operations, _: HostJournals) -> int:
            views = await operations.sinks()
            for view in views:
                print(view if chosen.format == "table" else json_line(view.document))
            if chosen.format == "table" and not views:
                print("There are no sinks.")
            return EXIT_OK

        return Job(show)
    if chosen.why is None:
        raise CommandWrong("--suspend and --resume need --why; it is recorded")
    audit = _audit(chosen)

    async def change(operations: Operations, _: HostJournals) -> int:
        try:
            is_suspend = chosen.suspend is not None
            print(await (operations.suspend_sink(name, audit) if is_suspend else operations.resume_sink(name)))
        except NoSuchSink as error:
            return _fail(str(error))
        return EXIT_OK

    return Job(change, changes=True)


async def _events(operations: Operations, chosen: argparse.Namespace) -> int:
    left, after, count = chosen.limit, None, 0
    try:
        while left > 0:
            size = min(left, PAGE_SIZE_MAX)
            page = await operations.events(chosen.sink, is_dead=chosen.state == "dead", after=after, limit=size)
            for event in page:
                print(event_line(event) if chosen.format == "table" else json_line(event_document(event)))
            count, left = count + len(page), left - size
            if len(page) < size:
                break
            after = page[-1].event_id
    except NoSuchSink as error:
        return _fail(str(error))
    if chosen.format == "table" and not count:
        print(f"No event of {chosen.sink} is {chosen.state}.")
    return EXIT_OK


def _redeliver(chosen: argparse.Namespace) -> Job:
    _audit(chosen)

    async def redeliver(operations: Operations, _: HostJournals) -> int:
        try:
            text, number = await operations.redeliver(chosen.event, chosen.sink)
        except NoSuchSink as error:
            return _fail(str(error))
        if not number:
            return _fail(text)
        print(text)
        return EXIT_OK

    return Job(redeliver, changes=True)


def _purge(chosen: argparse.Namespace) -> Job:
    audit = _audit(chosen)
    if chosen.yes and not chosen.erase:
        raise CommandWrong("--yes confirms --erase, and is not needed to purge")

    async def purge(operations: Operations, _: HostJournals) -> int:
        if chosen.erase:
            return _print_outcome(await operations.erase(chosen.operation, audit, is_sure=chosen.yes))
        return _print_outcome(await operations.purge(chosen.operation, audit))

    return Job(purge, Needs.TIERS, changes=True)


def _memory(chosen: argparse.Namespace) -> Job:
    if not chosen.accept_loss:
        _refuse({"--why": chosen.why, "--by": chosen.by}, "is for --accept-loss")

        async def show(operations: Operations, _: HostJournals) -> int:
            print((await operations.memory()).text)
            return EXIT_OK

        return Job(show)
    if chosen.why is None:
        raise CommandWrong("--accept-loss needs --why: say why keys that were used may run again")
    audit = _audit(chosen)

    async def accept(operations: Operations, _: HostJournals) -> int:
        print((await operations.accept_loss(audit)).text)
        return EXIT_OK

    return Job(accept, Needs.TIERS, changes=True)


def _journal(chosen: argparse.Namespace) -> Job:
    operation_id: UUID | None = chosen.operation
    if not chosen.acknowledge:
        _refuse({"--why": chosen.why, "--by": chosen.by}, "is for --acknowledge")
    if not chosen.acknowledge and chosen.export is None:
        _refuse({"--token": chosen.token}, "is for --export and --acknowledge")
        return Job(lambda operations, _: _list_journal(operations, chosen), Needs.JOURNAL)
    if operation_id is None:
        raise CommandWrong("say which operation: its id, as journal lists it")
    _refuse({"--state": chosen.state, "--format": chosen.format != "table"}, "is for the list")
    if chosen.export is not None:
        return Job(
            lambda _, journals: _done(export(journals, operation_id, chosen.token, chosen.export)), Needs.JOURNAL
        )
    if chosen.why is None:
        raise CommandWrong("--acknowledge needs --why: say what was found, and what was done about it")
    audit = _audit(chosen)

    async def run_acknowledge(operations: Operations, journals: HostJournals) -> int:
        async def read(operation_id: UUID) -> Record | None:
            return (await operations.inspect(operation_id)).snapshot.record

        return await _done(acknowledge(journals, operation_id, chosen.token, audit, read))

    return Job(run_acknowledge, changes=True)


async def _list_journal(operations: Operations, chosen: argparse.Namespace) -> int:
    is_refused = None if chosen.state is None else chosen.state == REFUSED
    view = await operations.journal(operation_id=chosen.operation, is_refused=is_refused, limit=chosen.limit)
    is_table = chosen.format == "table"
    for line in journal_table(view) if is_table else (json_line(kept(entry, view.now_us)) for entry in view.entries):
        print(line)
    if is_table and not view.entries and not view.faults:
        print("No outcome in the journal matches." if chosen.operation or chosen.state else "The journal is empty.")
    sys.stdout.flush()
    for note in notes(view):
        print(f"note: {note}", file=sys.stderr)
    for fault in view.faults:
        _fail(fault)
    return EXIT_FAILED if view.faults else EXIT_OK


async def _done(work: Awaitable[str]) -> int:
    try:
        print(await work)
    except OutcomeRefused as error:
        return _fail(str(error))
    return EXIT_OK


def _print_outcome(outcome: Changed | Refused) -> int:
    if isinstance(outcome, Refused):
        if outcome.reason is Refusal.UNSURE:
            # The command line lacks --yes.
            raise CommandWrong(outcome.text)
        hint = (
            " If you know more than the gateway, add --force."
            if outcome.reason in (Refusal.EARLY, Refusal.RESPONSE)
            else ""
        )
        return _fail(outcome.text + hint)
    print(outcome.text)
    for note in outcome.notes:
        print(f"note: {note}", file=sys.stderr)
    return EXIT_WORK_LEFT if outcome.purges_pending else EXIT_OK


def _fail(text: str) -> int:
    print(f"{PROGRAM}: {text}", file=sys.stderr)
    return EXIT_FAILED


def _audit(chosen: argparse.Namespace) -> Audit:
    try:
        return audit_by(_user() if chosen.by is None else chosen.by, chosen.why)
    except ValueError as error:
        raise CommandWrong(str(error)) from None


def _user() -> str:
    """The user name according to the system; the environment could say anything."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"


def _refuse(given: dict[str, object], why: str) -> None:
    for name, value in given.items():
        if value:
            raise CommandWrong(f"{name} {why}")


def _headers(lines: Sequence[str]) -> Headers:
    headers: list[tuple[bytes, bytes]] = []
    for line in lines:
        given = [os.fsencode(line)]
        if line.startswith("@"):
            given = [each for each in _read(line[1:], _HEADER_FILE_BYTES_MAX).splitlines() if each]
        for each in given:
            name, colon, value = each.partition(b":")
            if not colon or not name.strip():
                # The text does not quote it: it may be a credential without its name.
                raise CommandWrong("expected a header such as 'Idempotency-Key: abc'")
            headers.append((name.strip(), value.strip(b" \t")))
    return tuple(headers)


def _read(name: str, bytes_max: int) -> bytes:
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
