"""The command line: every command, its options, and the form of their values (ids, durations, numbers).

Loads nothing of what the commands do: `--version`, `--help` and a mistake in the command line are told at once. `cli`
and `admin.commands` decide which options go together.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from uuid import UUID

from gateway import PROGRAM, __version__
from gateway.core.delivery import REASONS, REQUEUE_LIMIT_MAX, REQUEUE_RATE_MAX
from gateway.core.operation import State, microseconds

CONFIG_PATH: Final = Path("/etc/idempotency-gateway/gateway.yaml")

AddParser = Callable[..., argparse.ArgumentParser]

OPERATORS: Final = frozenset(
    (
        *("inspect", "resolve", "requeue", "withdraw", "pause", "resume", "sinks", "events", "redeliver"),
        *("purge", "memory", "journal", "observe"),
    )
)

STATES: Final = tuple(state.value for state in State if state is not State.ABSENT)
EVERY_STATE: Final = "all"

_JOURNAL_ROWS: Final = 1_000


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    program = argparse.ArgumentParser(
        prog=PROGRAM,
        description="A reverse proxy that makes retries of writes safe, in front of any HTTP service.",
        epilog="The configuration is explained in docs/reference/configuration.md and config/gateway.example.yaml.",
    )
    program.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    commands = program.add_subparsers(dest="command", required=True, metavar="COMMAND")

    serve_ = commands.add_parser("run", help="serve until SIGTERM or SIGINT")
    deliver_ = commands.add_parser(
        "deliver", help="deliver accepted requests until SIGTERM or SIGINT, without a port for clients"
    )
    check = commands.add_parser("check", help="check the configuration: print what it protects, or every mistake in it")
    check.add_argument("--strict", action="store_true", help="a note fails the check, too")
    check.add_argument(
        "--without-secrets",
        action="store_true",
        help="use placeholders for variables that are not set and secret files that cannot be read",
    )
    check.add_argument(
        "--without-files", action="store_true", help="do not open the TLS files and key sets, or look at state_dir"
    )
    shown = check.add_mutually_exclusive_group()
    shown.add_argument(
        "--effective", action="store_true", help="print the whole configuration, defaults as comments, without secrets"
    )
    shown.add_argument(
        "--diff",
        action="store_true",
        help="print what differs from the configuration in force on this host, except secrets",
    )
    check.add_argument(
        "--store", action="store_true", help="also check the configured store as a start would; changes nothing"
    )
    explain_ = _add_explain(commands.add_parser)
    reload_ = commands.add_parser(
        "reload",
        help="have the running gateway read its configuration again, and wait for what comes of it",
        description="Have the gateways that run with this state_dir read their configuration and TLS files again, and "
        "wait. Exit code 0: applied, or nothing has changed; 1: refused, or no gateway was reached; 2: the file is "
        "wrong. What was in force stays unless all of it is applied. A gateway reads the file that it was started "
        "with: another one is refused.",
    )
    reload_.add_argument(
        "--state-dir", type=Path, metavar="DIR", help="the gateway's state_dir, if the file cannot say it"
    )
    migrate_ = commands.add_parser("migrate", help="bring the durable store's schema up to date, and exit")
    migrate_.add_argument(
        "--grant",
        metavar="ROLE",
        help="grant this Postgres role, which need own nothing, the rights of a gateway",
    )
    migrate_.add_argument(
        "--finish",
        action="store_true",
        help="end an upgrade: from now on, write what gateways of the version before cannot read, and refuse those; "
        "refused while one of them runs",
    )
    rekey_ = commands.add_parser(
        "rekey",
        help="encrypt what is stored with the current key",
        description="Encrypt all that is kept in the durable store and in this host's journals with the first key of "
        "secrets.encryption, what is not encrypted yet included, and drop the copies in Redis. Gateways may run. It "
        "can be stopped at any time: run it again to go on. Exit code 3: something is left under another key, or "
        "cannot be read.",
    )
    for command in (serve_, deliver_, check, explain_, reload_, migrate_, rekey_, *_add_operators(commands.add_parser)):
        command.add_argument("--config", type=Path, default=CONFIG_PATH, metavar="FILE", help="default: %(default)s")

    demo = commands.add_parser("demo", help="serve in front of a small upstream that charges cards")
    kind = demo.add_mutually_exclusive_group()
    kind.add_argument("--story", action="store_true", help="play the story by itself, and exit")
    kind.add_argument("--triangle", action="store_true", help="play charges, webhooks and events through a kill")
    kind.add_argument("--upstream", metavar="URL", help="serve in front of this service instead")
    kind.add_argument("--upstream-only", action="store_true", help="serve the small upstream alone")
    demo.add_argument("--host", default="127.0.0.1", help="where to listen; default: %(default)s")
    demo.add_argument("--port", type=_port, help="default: 8080; 9000 with --upstream-only; any free one with --story")
    return program


def _add_explain(add: AddParser) -> argparse.ArgumentParser:
    explain = add(
        "explain",
        help="say what would become of a request, and why",
        description="Send a request along the way that a gateway with this configuration takes, without asking or "
        "changing anything: which route, which key, whose, and what it gets, each with the line of the file that "
        "decides. The request is written as for curl, behind --, or is in a file. Exit codes: 0, explained; 1, the "
        "store was to be asked and cannot be read; 2, no request, or a wrong configuration.",
        epilog=f"example: {PROGRAM} explain -- -X POST http://host/v1/payments -H 'Idempotency-Key: abc' --data @f",
    )
    explain.add_argument("words", nargs="*", metavar="CURL", help="curl's words: a URL, -X, -H, -u, --data, --json")
    explain.add_argument("--file", type=Path, metavar="FILE", help="the request as text; - reads standard input")
    explain.add_argument("--peer", type=_address, default="127.0.0.1", help="where it comes from; default: %(default)s")
    explain.add_argument("--certificate", type=Path, metavar="PEM", help="the client's certificate, as TLS verified it")
    explain.add_argument("--response", type=_status, metavar="STATUS", help="what the service would respond")
    explain.add_argument("--store", action="store_true", help="compare it with the record; changes nothing")
    explain.add_argument("--show", action="store_true", help="show the key, the caller and the body, too")
    explain.add_argument("--format", choices=("text", "json"), default="text", help="for people, or one JSON object")
    return explain


def _address(text: str) -> str:
    try:
        return str(ip_address(text))
    except ValueError:
        raise argparse.ArgumentTypeError("expected an address such as 10.0.0.7") from None


def _status(text: str) -> int:
    if not text.isdecimal() or not 200 <= int(text) <= 599:
        raise argparse.ArgumentTypeError("expected a status from 200 to 599")
    return int(text)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError("expected a port from 0 to 65535")
    return int(text)


def _add_operators(add: AddParser) -> list[argparse.ArgumentParser]:
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
    requeue.add_argument("--limit", type=_count, metavar="N", help=f"at most this many, and {REQUEUE_LIMIT_MAX}")
    requeue.add_argument("--rate", type=_count, metavar="N", help=f"at most this many a second, and {REQUEUE_RATE_MAX}")
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
    journal.add_argument("--state", choices=("waiting", "refused"), help="list only these")
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
    from gateway.config.leaf import duration_seconds

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
