"""The program: `idempotency-gateway run | deliver | check | explain | reload | demo | migrate | rekey`, and operators'
commands (`admin.console`).

Owns the command line: its options, its output, its exit codes. Exit codes: 0, success; 1, it cannot be done (the text
says why and what to do); 2, the command line or the configuration is wrong; 3, work was left behind: outcomes that a
stop could not record, copies that a purge could not drop, values under an old key or that cannot be read.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

from gateway import EXIT_FAILED, EXIT_OK, EXIT_WORK_LEFT, EXIT_WRONG, PROGRAM, __version__
from gateway.admin.commands import CommandWrong, job_of
from gateway.admin.console import NAMES as OPERATORS
from gateway.admin.console import add_commands
from gateway.app.control import NotReached
from gateway.app.life import StartError
from gateway.app.operating import OperatingError, check_store, look_at_server, operate
from gateway.app.rekeying import rekey_stores
from gateway.app.reload import configurations_in_force, files_read, reload_gateways
from gateway.app.serve import deliver, finish_upgrade, migrate, run, serve
from gateway.app.share import worker_count
from gateway.app.tls_files import state_dir_remarks, tls_remarks
from gateway.config import Config, ConfigError, Placeholders, load, load_with_places, notices, state_dir_of
from gateway.config.effective import differences, effective
from gateway.store.level import PROGRAM_LEVEL

CONFIG_PATH: Final = Path("/etc/idempotency-gateway/gateway.yaml")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    program = parser()
    chosen, unknown = program.parse_known_args(arguments)
    if unknown:
        hint = f"; write the request behind --: {PROGRAM} explain -- curl ..." if chosen.command == "explain" else ""
        program.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    if chosen.command not in ("run", "deliver"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
    try:
        return _do(chosen)
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


def _do(chosen: argparse.Namespace) -> int:
    match chosen.command:
        case "run":
            return _run(chosen.config, serve)
        case "deliver":
            return _run(chosen.config, deliver)
        case "check":
            return _check(chosen.config, _Checks.of(chosen))
        case "explain":
            return _explain(chosen)
        case "reload":
            return _reload(chosen.config, chosen.state_dir)
        case "migrate":
            return _migrate(chosen.config, chosen.grant, finishes=chosen.finish)
        case "rekey":
            return _rekey(chosen.config)
        case name if name in OPERATORS:
            return _operate(chosen)
        case _:
            return _demo(chosen)


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
    for command in (serve_, deliver_, check, explain_, reload_, migrate_, rekey_, *add_commands(commands.add_parser)):
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


def _add_explain(add: Callable[..., argparse.ArgumentParser]) -> argparse.ArgumentParser:
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


def _run(path: Path, work: Callable[[Config, Callable[[], Config], Path], Coroutine[Any, Any, int]]) -> int:
    config = _load(path)
    try:
        return run(work(config, lambda: _load(path), path))
    except StartError:
        return EXIT_FAILED  # already logged, in the configured format


@dataclass(frozen=True, slots=True)
class _Checks:
    """The options of `check`."""

    is_strict: bool
    without_secrets: bool
    without_files: bool
    checks_store: bool
    shows_effective: bool
    compares: bool

    @classmethod
    def of(cls, chosen: argparse.Namespace) -> _Checks:
        return cls(
            chosen.strict, chosen.without_secrets, chosen.without_files, chosen.store, chosen.effective, chosen.diff
        )


def _check(path: Path, checks: _Checks) -> int:
    placeholders = Placeholders()
    config = _load(path, placeholders if checks.without_secrets else None)
    # What is asked for alone goes to standard output.
    out = sys.stderr if checks.shows_effective or checks.compares else sys.stdout
    if checks.shows_effective:
        print(effective(config), end="")
    elif checks.compares:
        _print_differences(config)
    else:
        _print_routes(path, config)
    if placeholders.names:
        print(f"not checked, because they have no value: {', '.join(placeholders.names)}", file=out)
    remarks = [] if checks.without_files else [*tls_remarks(config), *state_dir_remarks(config)]
    notes = [*notices(config), *(remark for remark in remarks if not remark.is_fault)]
    if checks.checks_store:
        for capability in run(look_at_server(config)):
            print(f"the store's server: {capability}", file=out)
        notes += run(check_store(config))
    for note in notes:
        print(f"note: {note}", file=out)
    if checks.checks_store:
        print("the store: a start would not be refused", file=out)
    faults = [remark for remark in remarks if remark.is_fault]
    for fault in faults:
        print(f"{path}: {fault}", file=sys.stderr)
    if notes and checks.is_strict:
        print(f"{PROGRAM}: with --strict, the notes above fail the check", file=sys.stderr)
    return EXIT_WRONG if faults or (notes and checks.is_strict) else EXIT_OK


def _print_differences(config: Config) -> None:
    try:
        in_force = run(configurations_in_force(config.state_dir))
    except NotReached as error:
        raise OperatingError(str(error)) from None
    for digest, text in in_force:
        found = differences(text, effective(config))
        for difference in found:
            print(difference)
        # On standard error, so that no line is no difference.
        count = "1 difference" if len(found) == 1 else f"{len(found) or 'no'} differences"
        print(f"{count} from {digest}, which is in force; secrets are not compared", file=sys.stderr)


def _print_routes(path: Path, config: Config) -> None:
    count = len(config.routes)
    print(f"{path} is valid. Service {config.service!r}, {count} protected {'route' if count == 1 else 'routes'}:")
    for row in _route_rows(config):
        print(f"  {row}")
    print("  everything else passes through untouched; these paths in other upper and lower case are refused")
    if config.workers != 1:
        print(f"workers here: {worker_count(config)}")


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


def _explain(chosen: argparse.Namespace) -> int:
    # Imported here: it is not part of what serves.
    from gateway.explain.dry_run import Incomplete
    from gateway.explain.explaining import explain, look_at
    from gateway.explain.request import RequestWrong, from_file, from_words, hop_of

    if bool(chosen.words) is (chosen.file is not None):
        raise CommandWrong("give the request: behind --, as for curl; or --file FILE")
    config, document = load_with_places(_config_path(chosen.config), os.environ)
    try:
        request = from_words(chosen.words) if chosen.file is None else from_file(chosen.file)
        hop = hop_of(request, chosen.peer, chosen.certificate)
        explanation = run(
            explain(
                config,
                document,
                request.wire,
                hop,
                response=chosen.response,
                look=look_at(config) if chosen.store else None,
                show=chosen.show,
            )
        )
    except (RequestWrong, Incomplete) as error:
        raise CommandWrong(str(error)) from None
    if chosen.format == "json":
        print(json.dumps(explanation.document()))
    else:
        print("\n".join(explanation.lines(str(chosen.config))))
    return EXIT_OK


def _reload(path: Path, state_dir: Path | None) -> int:
    """The gateway reads the file itself, with its own environment; here it only says where the gateway is."""
    wrong: ConfigError | None = None
    is_named = state_dir is None
    if state_dir is None:
        try:
            state_dir = _load(path, Placeholders()).state_dir
        except ConfigError as error:
            wrong, state_dir = error, state_dir_of(path)
    try:
        if is_named:
            _refuse_other_file(path, run(files_read(state_dir)))
        reports = run(reload_gateways(state_dir))
    except NotReached as error:
        if wrong is not None:
            raise wrong from None
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return EXIT_FAILED
    for report in reports:
        if report.result == "refused":
            print(report.detail, file=sys.stderr)
            print(f"{PROGRAM}: refused; {report.hash_before} stays in force", file=sys.stderr)
        else:
            print(f"{report.result}: {report.hash_before} -> {report.hash_after}")
            for changed in report.changed:
                print(f"  {changed}")
    if any(report.is_file_wrong for report in reports):
        return EXIT_WRONG
    return EXIT_FAILED if any(report.result == "refused" for report in reports) else EXIT_OK


def _refuse_other_file(path: Path, files: Sequence[Path]) -> None:
    """Raises `OperatingError` where each gateway reads another file than `path`, which would not be applied."""
    if files and path.resolve() not in [file.resolve() for file in files]:
        raise OperatingError(
            f"nothing was reloaded: the gateway with this state_dir reads {', '.join(map(str, files))}, "
            f"and not {path}; give the file that it reads, or --state-dir DIR to reload whichever that is"
        )


def _migrate(path: Path, grant_to: str | None, *, finishes: bool) -> int:
    config = _load(path)
    applied = run(migrate(config, grant_to))
    if not applied:
        print("The schema is up to date; nothing was changed.")
    for name in applied:
        number, _, what = name.partition("_")
        print(f"Brought the schema up to version {int(number)} ({what.replace('_', ' ')}).")
    if grant_to is not None:
        print(f"The role {grant_to} has the rights that a gateway needs.")
    if finishes:
        was_lower = run(finish_upgrade(config))
        print(
            f"The store has level {PROGRAM_LEVEL} now: programs of lower levels are refused from here on."
            if was_lower
            else f"The store has level {PROGRAM_LEVEL}, which is this program's; nothing was changed."
        )
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
    print(
        "Something is left under another key, or cannot be read: see above."
        if left
        else "Nothing is left under another key, and everything can be read."
    )
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
    return load(_config_path(path), os.environ, stand_in=stand_in)


def _config_path(path: Path) -> Path:
    if path == CONFIG_PATH and not path.exists():
        raise CommandWrong(f"there is no {path}; name the gateway's configuration with --config FILE")
    return path
