"""The command line: every command, its options, and the form of their values (ids, durations, numbers).

Loads nothing of what the commands do: `--version`, `--help` and a mistake in the command line are told at once. `cli`
and `admin.commands` decide which options go together.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from gateway import PROGRAM, __version__
from gateway.core.delivery import REASONS, REQUEUE_LIMIT_MAX, REQUEUE_RATE_MAX
from gateway.core.operation import State, microseconds

CONFIG_PATH: Final = Path("/etc/idempotency-gateway/gateway.yaml")
STATES: Final = tuple(state.value for state in State if state is not State.ABSENT)
EVERY_STATE: Final = "all"

_JOURNAL_ROWS: Final = 1_000

_Add = Callable[[Any], object]
"""Adds to a parser, or to a group of one."""
_Command = tuple[str, dict[str, Any], tuple[_Add, ...]]


def parser() -> argparse.ArgumentParser:
    program = argparse.ArgumentParser(
        prog=PROGRAM,
        description="A reverse proxy that makes retries of writes safe, in front of any HTTP service.",
        epilog="The configuration is explained in docs/reference/configuration.md and config/gateway.example.yaml.",
    )
    program.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    commands = program.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, about, arguments in (*_OF_THE_PROGRAM, *_OF_OPERATORS, _DEMO):
        command = commands.add_parser(name, **about)
        for add in arguments:
            add(command)
        if name not in ("demo", "init"):
            command.add_argument(
                "--config", type=Path, default=CONFIG_PATH, metavar="FILE", help="default: %(default)s"
            )
    return program


def _command(name: str, text: str, *arguments: _Add, **about: str) -> _Command:
    return name, {"help": text, **about}, arguments


def _option(name: str, text: str | None = None, **about: Any) -> _Add:
    return lambda command: command.add_argument(name, help=text, **about)


def _flag(name: str, text: str) -> _Add:
    return _option(name, text, action="store_true")


def _one_of(*options: _Add, required: bool = False) -> _Add:
    def add(command: argparse.ArgumentParser) -> None:
        group = command.add_mutually_exclusive_group(required=required)
        for each in options:
            each(group)

    return add


# -- values -----------------------------------------------------------------------------------------------------------


def _value(read: Callable[[str], Any], expected: str) -> Callable[[str], Any]:
    """A type of an option; `read` raises a ValueError for other text."""

    def value(text: str) -> Any:
        try:
            return read(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"expected {expected}") from None

    return value


def _microseconds(text: str) -> int:
    from gateway.config.leaf import duration_seconds

    seconds = duration_seconds(text)
    if seconds is None:
        raise ValueError(text)
    return microseconds(seconds)


def _number(least: int, most: int, expected: str) -> Callable[[str], Any]:
    def number(text: str) -> int:
        is_number = text.isascii() and text.isdecimal() and len(text) < 19
        if not is_number or not least <= int(text) <= most:
            raise ValueError(text)
        return int(text)

    return _value(number, expected)


_address = _value(lambda text: str(ip_address(text)), "an address such as 10.0.0.7")
_operation_id = _value(UUID, "the id of an operation, as its problem document or inspect --list shows it")
_duration_us = _value(_microseconds, "a duration such as 30s, 5m, 12h or 7d")
_status = _number(200, 599, "a status from 200 to 599")
_port = _number(0, 65535, "a port from 0 to 65535")
_limit = _number(1, 999_999, "a whole number from 1 to 999999")
_count = _number(1, 10**18 - 1, "a whole number above 0")

# -- commands ---------------------------------------------------------------------------------------------------------

_OF_THE_PROGRAM: Final = (
    _command("run", "serve until SIGTERM or SIGINT"),
    _command("deliver", "deliver accepted requests until SIGTERM or SIGINT, without a port for clients"),
    _command(
        "check",
        "check the configuration: print what it protects, or every mistake in it",
        _flag("--strict", "a note fails the check, too"),
        _flag(
            "--without-secrets", "use placeholders for variables that are not set and secret files that cannot be read"
        ),
        _flag("--without-files", "do not open the TLS files and key sets, or look at state_dir"),
        _one_of(
            _flag("--effective", "print the whole configuration, defaults as comments, without secrets"),
            _flag("--diff", "print what differs from the configuration in force on this host, except secrets"),
        ),
        _flag("--store", "also check the configured store as a start would; changes nothing"),
    ),
    _command(
        "init",
        "write a configuration for the OpenAPI description of a service",
        _option(
            "--openapi", "the description: OpenAPI 3.0 or 3.1, JSON or YAML", type=Path, required=True, metavar="FILE"
        ),
        _option("--upstream", "where the service is, such as http://127.0.0.1:9000; left open without", metavar="URL"),
        _option("--to", "write this file, which must not exist; default: standard output", type=Path, metavar="FILE"),
        description="Write a configuration with a route for each POST, PATCH, PUT and DELETE of an OpenAPI "
        "description. PUT and DELETE without a documented key are comments, and so is what cannot be a route, with the "
        "reason. What the description leaves open is a value that begins with DECIDE: check names each with its "
        "choices. Exit code 2: the description cannot be read or has nothing to protect, or the file exists.",
        epilog=f"example: {PROGRAM} init --openapi openapi.yaml --to gateway.yaml",
    ),
    _command(
        "explain",
        "say what would become of a request, and why",
        _option("words", "curl's words: a URL, -X, -H, -u, --data, --json", nargs="*", metavar="CURL"),
        _option("--file", "the request as text; - reads standard input", type=Path, metavar="FILE"),
        _option("--peer", "where it comes from; default: %(default)s", type=_address, default="127.0.0.1"),
        _option("--certificate", "the client's certificate, as TLS verified it", type=Path, metavar="PEM"),
        _option("--response", "what the service would respond", type=_status, metavar="STATUS"),
        _flag("--store", "compare it with the record; changes nothing"),
        _flag("--show", "show the key, the caller and the body, too"),
        _option("--format", "for people, or one JSON object", choices=("text", "json"), default="text"),
        description="Send a request along the way that a gateway with this configuration takes, without asking or "
        "changing anything: which route, which key, whose, and what it gets, each with the line of the file that "
        "decides. The request is written as for curl, behind --, or is in a file. Exit codes: 0, explained; 1, the "
        "store was to be asked and cannot be read; 2, no request, or a wrong configuration.",
        epilog=f"example: {PROGRAM} explain -- -X POST http://host/v1/payments -H 'Idempotency-Key: abc' --data @f",
    ),
    _command(
        "reload",
        "have the running gateway read its configuration again, and wait for what comes of it",
        _option("--state-dir", "the gateway's state_dir, if the file cannot say it", type=Path, metavar="DIR"),
        description="Have the gateways that run with this state_dir read their configuration and TLS files again, and "
        "wait. Exit code 0: applied, or nothing has changed; 1: refused, or no gateway was reached; 2: the file is "
        "wrong. What was in force stays unless all of it is applied. A gateway reads the file that it was started "
        "with: another one is refused.",
    ),
    _command(
        "migrate",
        "bring the durable store's schema up to date, and exit",
        _option("--grant", "grant this Postgres role, which need own nothing, the rights of a gateway", metavar="ROLE"),
        _flag(
            "--finish",
            "end an upgrade: from now on, write what gateways of the version before cannot read, and refuse those; "
            "refused while one of them runs",
        ),
    ),
    _command(
        "rekey",
        "encrypt what is stored with the current key",
        description="Encrypt all that is kept in the durable store and in this host's journals with the first key of "
        "secrets.encryption, what is not encrypted yet included, and drop the copies in Redis. Gateways may run. It "
        "can be stopped at any time: run it again to go on. Exit code 3: something is left under another key, or "
        "cannot be read.",
    ),
)

_ONE: Final = _option("operation", type=_operation_id, metavar="OPERATION_ID")
_ONE_OR_NONE: Final = _option("operation", nargs="?", type=_operation_id, metavar="OPERATION_ID")
_TOKEN: Final = _option("--token", "only if this is still the operation's token", type=_count, metavar="N")
_FORMAT: Final = _option(
    "--format", "for people, or one JSON object per line", choices=("table", "jsonl"), default="table"
)
_JSON: Final = _option("--format", "json: one object per line", choices=("table", "json"), default="table")


def _audit(command: argparse.ArgumentParser, *, is_required: bool = True) -> None:
    command.add_argument("--why", required=is_required, metavar="TEXT", help="the reason; recorded in the store")
    command.add_argument("--by", metavar="NAME", help="who decides; default: your user name")


def _reason(text: str) -> _Add:
    return _option("--reason", f"{text}: {', '.join(REASONS)}", choices=REASONS, metavar="REASON")


def _older_than(text: str) -> _Add:
    return _option("--older-than", text, type=_duration_us, metavar="DURATION")


def _routes(text: str) -> _Add:
    return _option("--route", text, action="append", default=[], metavar="NAME")


_ONE_OR_MANY: Final = (
    _ONE_OR_NONE,
    _TOKEN,
    _routes("of this route; may be repeated"),
    _reason("dead for this reason"),
    _older_than("dead for at least this long: 5m, 12h"),
    _option("--limit", f"at most this many, and {REQUEUE_LIMIT_MAX}", type=_count, metavar="N"),
    _option("--rate", f"at most this many a second, and {REQUEUE_RATE_MAX}", type=_count, metavar="N"),
    _audit,
)

_OF_OPERATORS: Final = (
    _command(
        "inspect",
        "show what is known about an operation, or list operations",
        _one_of(
            _option(
                "operation",
                "the operation: its id, or a text that has it, such as a problem document, response headers or a line "
                "of a log; - reads standard input",
                nargs="?",
                metavar="OPERATION_ID",
            ),
            _flag("--list", "list operations; by default those in doubt"),
        ),
        _routes("the route; may be repeated with --list"),
        _option(
            "--header",
            "a header of the request to look up (its key, its caller); may be repeated; @FILE reads the headers from a "
            "file, which keeps credentials out of the shell's history",
            action="append",
            default=[],
            metavar="'NAME: VALUE'",
        ),
        _option("--body", "the body of that request, if the key is in it", metavar="FILE"),
        _option(
            "--state", "list this state; may be repeated", action="append", default=[], choices=[*STATES, EVERY_STATE]
        ),
        _older_than("list operations first claimed or accepted at least this long ago: 5m, 12h"),
        _reason("list dead letters for this reason"),
        _option("--limit", "list at most this many", type=_count, metavar="N"),
        _FORMAT,
        description="Show all that is known about one operation and what to do about it, or list operations. "
        "Changes nothing. Times are the store's.",
    ),
    _command(
        "resolve",
        "end the doubt about an operation",
        _ONE_OR_NONE,
        _one_of(
            _option(
                "--completed",
                "it happened, and this is the service's response as curl -i prints it; - reads standard input",
                metavar="FILE",
            ),
            _flag(
                "--never-happened", "it had no effect, and no longer can; if its request is kept, it is delivered again"
            ),
            _option("--from", "resolve what this file lists; - reads standard input", dest="list", metavar="FILE"),
            required=True,
        ),
        _flag("--drop", "with --never-happened: if its request is kept, drop it, and do not deliver it"),
        _audit,
        _flag("--force", "even though a request may still arrive, or the response's status settles nothing"),
        _TOKEN,
        _flag("--dry-run", "say what would be done, and change nothing"),
        description="Say what happened to an operation in doubt. Giving the same command twice changes nothing more: "
        "repeat it if you did not see its result. With --from, one command resolves many: each line of the file "
        "is OPERATION_ID never-happened [drop], or OPERATION_ID completed FILE; with OPERATION_ID@TOKEN it is refused "
        "if the token is another one. Refused lines are listed, and the others are done.",
    ),
    _command(
        "requeue",
        "deliver a dead letter after all, or many",
        *_ONE_OR_MANY,
        description="Deliver a dead letter after all: as soon as possible, with a new deadline and a new limit of "
        "answers. Giving the same command twice requeues nothing twice: repeat it if you did not see its result. "
        "Without an OPERATION_ID, those are requeued that match --route, --reason and --older-than; this may be "
        "interrupted and given again. inspect --list --state dead_letter lists them.",
    ),
    _command(
        "withdraw",
        "call off an accepted operation or a dead letter, or many, and drop the request",
        *_ONE_OR_MANY,
        description="Call off an operation that waits to be delivered, or is a dead letter. Its request is dropped; if "
        "its caller sends it again, it runs. Without an OPERATION_ID, those dead letters are withdrawn that match "
        "--route, --reason and --older-than.",
    ),
    _command(
        "pause",
        "deliver nothing of a route until it is resumed, or list what is paused",
        _option("route", "a route; those with its operation name are, too", nargs="?", metavar="ROUTE"),
        partial(_audit, is_required=False),
        description="Deliver nothing of a route for a while, as for a planned outage of its service. Requests are "
        "accepted and kept, and the time does not count against their deadline. Without ROUTE, list what is paused, by "
        "whom and why, and what was paused and resumed before.",
    ),
    _command(
        "resume",
        "deliver a paused route again",
        _option("route", "a route or, if none has it any more, an operation name", metavar="ROUTE"),
        _audit,
        description="End a pause.",
    ),
    _command(
        "sinks",
        "list the sinks of events and what waits for them; suspend or resume one",
        _one_of(
            _option("--suspend", "publish nothing to this sink any more", metavar="NAME"),
            _option("--resume", "publish to this sink again, also what waited", metavar="NAME"),
        ),
        partial(_audit, is_required=False),
        _JSON,
        description="List the sinks and what waits for each of them. With --suspend or --resume, publish nothing to a "
        "sink for a while, or publish to it again; its events are kept.",
    ),
    _command(
        "events",
        "list the events that a sink has not received",
        _option("--sink", "the sink", required=True, metavar="NAME"),
        _option("--state", "dead: given up (default); or those that wait", choices=("dead", "waiting"), default="dead"),
        _option("--limit", "at most this many (default 1000)", type=_count, default=1000, metavar="N"),
        _JSON,
        description="List the events that a sink has not received, in the order of their ids. Changes nothing.",
    ),
    _command(
        "redeliver",
        "publish an event that was given up after all",
        _option("event", metavar="EVENT_ID"),
        _option("--sink", "to this sink; otherwise to all where it is dead", metavar="NAME"),
        _audit,
        description="Publish a dead event after all, under the same id. events --sink NAME lists them.",
    ),
    _command(
        "purge",
        "drop the recorded response of an operation, but remember its key",
        _ONE,
        _flag("--erase", "forget the key of an operation without a response, so that it can run again"),
        _flag("--yes", "confirm --erase: no client will repeat this key"),
        _audit,
        description="Drop the recorded response of a completed operation everywhere. The key is remembered and does "
        "not run again, unless it is erased.",
    ),
    _command(
        "memory",
        "show whether the durable store lost its memory, or accept the loss",
        _flag("--accept-loss", "trust the store again: keys that it lost run again if they are repeated"),
        partial(_audit, is_required=False),
        description="Show whether the durable store is known to have lost its memory in a failover or a restore. For "
        "some time after that, first requests with a key that it does not have are refused.",
    ),
    _command(
        "journal",
        "list the outcomes that the durable store has not taken yet, or has refused",
        _option("operation", "only this operation", nargs="?", type=UUID, metavar="OPERATION_ID"),
        _option("--state", "list only these", choices=("waiting", "refused")),
        _option(
            "--limit", "list at most this many; default: %(default)s", type=_limit, default=_JOURNAL_ROWS, metavar="N"
        ),
        _FORMAT,
        _one_of(
            _option(
                "--export", "write its response to this new file, for resolve --completed", type=Path, metavar="FILE"
            ),
            _flag(
                "--acknowledge",
                "move a refused outcome that was dealt with out of the journal, to a directory beside it. Needs the "
                "store",
            ),
        ),
        _option("--why", "why it is acknowledged; recorded with the outcome", metavar="TEXT"),
        _option("--by", "who acknowledges; default: your user name", metavar="NAME"),
        _option("--token", "only the attempt with this token", type=_count, metavar="N"),
        description="List the journal of this host, which holds outcomes while the durable store is away: those that "
        "wait for it, and those that it refused. Listing needs no store and changes nothing; gateways may be running "
        "or not. Times are this host's. --export writes the response of an outcome to a file; --acknowledge moves a "
        "refused outcome that was dealt with out of the journal, into a directory beside it.",
    ),
    _command(
        "observe",
        "report what enforcement would have done with observed requests",
        _option("what", choices=("report",)),
        _option("--route", "only this route", metavar="NAME"),
        _FORMAT,
        description="Report what enforcing the observed routes would have done with the requests of the last 24 hours: "
        "how many it would have refused, by verdict and with examples, and how many would not have run again. Changes "
        "nothing.",
    ),
)

_DEMO: Final = _command(
    "demo",
    "serve in front of a small upstream that charges cards",
    _one_of(
        _flag("--traffic", "send charges, repeats, webhooks and more by itself, for the console to show"),
        _flag("--story", "play the story by itself, and exit"),
        _flag("--triangle", "play charges, webhooks and events through a kill"),
        _option("--upstream", "serve in front of this service instead", metavar="URL"),
        _flag("--upstream-only", "serve the small upstream alone"),
    ),
    _option("--host", "where to listen; default: %(default)s", default="127.0.0.1"),
    _option("--port", "default: 8080; 9000 with --upstream-only; any free one with --story", type=_port),
)

OPERATORS: Final = frozenset(name for name, _, _ in _OF_OPERATORS)
