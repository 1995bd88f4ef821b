"""The program: `idempotency-gateway run | deliver | check | demo | migrate | rekey`, and operators' commands
(`admin.console`).

Owns the command line: its options, its output, its exit codes. Exit codes: 0, success; 1, it cannot be done (the text
says why and what to do); 2, the command line or the configuration is wrong; 3, work was left behind: outcomes that a
stop could not record, copies that a purge could not drop, values under an old key.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gateway import EXIT_FAILED, EXIT_OK, EXIT_WORK_LEFT, EXIT_WRONG, PROGRAM, __version__
from gateway.admin.commands import CommandWrong, job_of
from gateway.admin.console import NAMES as OPERATORS
from gateway.admin.console import add_commands
from gateway.app.life import StartError
from gateway.app.operating import OperatingError, check_store, operate
from gateway.app.rekeying import rekey_stores
from gateway.app.serve import deliver, migrate, run, serve
from gateway.app.share import worker_count
from gateway.app.tls_files import tls_remarks
from gateway.config import Config, ConfigError, Placeholders, load, notices

CONFIG_PATH: Final = Path("/etc/idempotency-gateway/gateway.yaml")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    chosen = parser().parse_args(arguments)
    try:
        match chosen.command:
            case "run":
                return _run(chosen.config, serve)
            case "deliver":
                return _run(chosen.config, deliver)
            case "check":
                return _check(chosen.config, _Checks.of(chosen))
            case "migrate":
                return _migrate(chosen.config, chosen.grant)
            case "rekey":
                return _rekey(chosen.config)
            case name if name in OPERATORS:
                return _operate(chosen)
            case _:
                return _demo(chosen)
    except CommandWrong as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return EXIT_WRONG
    except ConfigError as error:
        print(error, file=sys.stderr)
        return EXIT_WRONG
    except (StartError, OperatingError) as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_OK


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    program = argparse.ArgumentParser(
        prog=PROGRAM,
        description="A reverse proxy that makes retries of writes safe, in front of any HTTP service.",
        epilog="The configuration is explained in config/gateway.example.yaml.",
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
    check.add_argument("--without-files", action="store_true", help="do not open the TLS files and key sets")
    check.add_argument(
        "--store", action="store_true", help="also check the configured store as a start would; changes nothing"
    )
    migrate_ = commands.add_parser("migrate", help="bring the durable store's schema up to date, and exit")
    migrate_.add_argument(
        "--grant",
        metavar="ROLE",
        help="grant this Postgres role, which need own nothing, the rights of a gateway",
    )
    rekey_ = commands.add_parser(
        "rekey",
        help="encrypt what is stored with the current key",
        description="Encrypt all that is kept in the durable store and in this host's journals with the first key of "
        "secrets.encryption, what is not encrypted yet included, and drop the copies in Redis. Gateways may run. It "
        "can be stopped at any time: run it again to go on. Exit code 3: something is left under another key.",
    )
    for command in (serve_, deliver_, check, migrate_, rekey_, *add_commands(commands.add_parser)):
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


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError("expected a port from 0 to 65535")
    return int(text)


def _run(path: Path, work: Callable[[Config], Coroutine[Any, Any, int]]) -> int:
    config = _load(path)
    try:
        return run(work(config))
    except StartError:
        return EXIT_FAILED  # already logged, in the configured format


@dataclass(frozen=True, slots=True)
class _Checks:
    """The options of `check`."""

    is_strict: bool
    without_secrets: bool
    without_files: bool
    checks_store: bool

    @classmethod
    def of(cls, chosen: argparse.Namespace) -> _Checks:
        return cls(chosen.strict, chosen.without_secrets, chosen.without_files, chosen.store)


def _check(path: Path, checks: _Checks) -> int:
    placeholders = Placeholders()
    config = _load(path, placeholders if checks.without_secrets else None)
    count = len(config.routes)
    print(f"{path} is valid. Service {config.service!r}, {count} protected {'route' if count == 1 else 'routes'}:")
    for row in _route_rows(config):
        print(f"  {row}")
    print("  everything else passes through untouched; these paths in other upper and lower case are refused")
    if config.workers != 1:
        print(f"workers here: {worker_count(config)}")
    if placeholders.names:
        print(f"not checked, because they have no value: {', '.join(placeholders.names)}")
    remarks = [] if checks.without_files else tls_remarks(config)
    notes = [*notices(config), *(remark for remark in remarks if not remark.is_fault)]
    if checks.checks_store:
        notes += run(check_store(config))
    for note in notes:
        print(f"note: {note}")
    if checks.checks_store:
        print("the store: a start would not be refused")
    faults = [remark for remark in remarks if remark.is_fault]
    for fault in faults:
        print(f"{path}: {fault}", file=sys.stderr)
    if notes and checks.is_strict:
        print(f"{PROGRAM}: with --strict, the notes above fail the check", file=sys.stderr)
    return EXIT_WRONG if faults or (notes and checks.is_strict) else EXIT_OK


def _route_rows(config: Config) -> list[str]:
    """The route table that `check` prints, aligned."""
    rows = [
        (
            route.name,
            ",".join(route.match.methods),
            f"{route.match.host or ''}{route.match.path.text}",
            f"{route.outcome.preset}, {route.recovery if isinstance(route.recovery, str) else 'probe'}",
        )
        for route in config.routes
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return ["  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]) for row in rows]


def _migrate(path: Path, grant_to: str | None) -> int:
    applied = run(migrate(_load(path), grant_to))
    if not applied:
        print("The schema is up to date; nothing was changed.")
    for name in applied:
        number, _, what = name.partition("_")
        print(f"Brought the schema up to version {int(number)} ({what.replace('_', ' ')}).")
    if grant_to is not None:
        print(f"The role {grant_to} has the rights that a gateway needs.")
    return EXIT_OK


def _rekey(path: Path) -> int:
    def progress(text: str) -> None:
        if sys.stderr.isatty():
            print(text, end="\r", file=sys.stderr)

    try:
        left = run(rekey_stores(_load(path), lambda text: print(text, flush=True), progress))
    except KeyboardInterrupt:
        print(f"{PROGRAM}: interrupted; run the same command again to go on", file=sys.stderr)
        return EXIT_WORK_LEFT
    print("Nothing is left under another key." if not left else "Something is left under another key: see above.")
    return EXIT_WORK_LEFT if left else EXIT_OK


def _operate(chosen: argparse.Namespace) -> int:
    job = job_of(chosen)
    config = _load(chosen.config)
    try:
        return run(operate(config, job))
    except KeyboardInterrupt:
        if job.changes:
            print(f"{PROGRAM}: interrupted; run the same command again to see what was done", file=sys.stderr)
        return EXIT_FAILED
    except BrokenPipeError:
        # The reader of the output closed it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK


def _demo(chosen: argparse.Namespace) -> int:
    # Imported here: the demo is not part of what serves.
    from gateway.demo import demo

    return demo(
        host=chosen.host,
        port=chosen.port,
        upstream=chosen.upstream,
        story=chosen.story,
        corners=chosen.triangle,
        upstream_only=chosen.upstream_only,
    )


def _load(path: Path, stand_in: Placeholders | None = None) -> Config:
    if path == CONFIG_PATH and not path.exists():
        raise CommandWrong(f"there is no {path}; name the gateway's configuration with --config FILE")
    return load(path, os.environ, stand_in=stand_in)
