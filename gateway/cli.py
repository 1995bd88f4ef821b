"""The program: `idempotency-gateway run | deliver | check | init | explain | reload | demo | migrate | rekey`, and
operators' commands (`admin.commands`).

Owns their output and exit codes. Exit codes: 0, success; 1, it cannot be done (the text says why and what to do); 2,
the command line or the configuration is wrong; 3, work was left behind: outcomes that a stop could not record, copies
that a purge could not drop, values under an old key or that cannot be read.

Each command loads what it needs when it is chosen, which for most is a small part of the program.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway import EXIT_FAILED, EXIT_OK, EXIT_WORK_LEFT, EXIT_WRONG, PROGRAM, CommandError, CommandWrong, options

if TYPE_CHECKING:
    import argparse

    from gateway.config import Config, Placeholders


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    program = options.parser()
    chosen, unknown = program.parse_known_args(arguments)
    if unknown:
        hint = f"; write the request behind --: {PROGRAM} explain -- curl ..." if chosen.command == "explain" else ""
        program.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    if chosen.command not in ("run", "deliver"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
    try:
        return _operate(chosen) if chosen.command in options.OPERATORS else _COMMANDS[chosen.command](chosen)
    except KeyboardInterrupt:
        return EXIT_OK
    except CommandError as error:
        print(error.report(), file=sys.stderr)
        return error.exit_code


def _run(chosen: argparse.Namespace) -> int:
    from gateway.app.life import StartError, run
    from gateway.app.worker import deliver, serve

    path = chosen.config
    config = _load(path)
    work = deliver if chosen.command == "deliver" else serve
    try:
        return run(work(config, lambda: _load(path), path))
    except StartError:
        return EXIT_FAILED  # already logged, in the configured format


def _check(chosen: argparse.Namespace) -> int:
    from gateway.app.host import state_dir_remarks, tls_remarks
    from gateway.config import Placeholders, notices

    path, placeholders = chosen.config, Placeholders()
    config = _load(path, placeholders if chosen.without_secrets else None)
    # What is asked for alone goes to standard output.
    out = sys.stderr if chosen.effective or chosen.diff else sys.stdout
    if chosen.effective:
        from gateway.config.effective import effective

        print(effective(config), end="")
    elif chosen.diff:
        _print_differences(config)
    else:
        _print_routes(path, config)
    if placeholders.names:
        print(f"not checked, because they have no value: {', '.join(placeholders.names)}", file=out)
    remarks = [] if chosen.without_files else [*tls_remarks(config), *state_dir_remarks(config)]
    notes: list[object] = [*notices(config), *(remark for remark in remarks if not remark.is_fault)]
    if chosen.store:
        from gateway.app.life import run
        from gateway.app.operating import check_store, look_at_server

        for capability in run(look_at_server(config)):
            print(f"the store's server: {capability}", file=out)
        notes += run(check_store(config))
    for note in notes:
        print(f"note: {note}", file=out)
    if chosen.store:
        print("the store: a start would not be refused", file=out)
    faults = [remark for remark in remarks if remark.is_fault]
    for fault in faults:
        print(f"{path}: {fault}", file=sys.stderr)
    if notes and chosen.strict:
        print(f"{PROGRAM}: with --strict, the notes above fail the check", file=sys.stderr)
    return EXIT_WRONG if faults or (notes and chosen.strict) else EXIT_OK


def _print_differences(config: Config) -> None:
    from gateway.app.life import run
    from gateway.app.reload import SHOW, ask_all
    from gateway.config.effective import differences, effective

    for in_force in run(ask_all(config.state_dir, SHOW)):
        found = differences(in_force["configuration"], effective(config))
        for difference in found:
            print(difference)
        # On standard error, so that no line is no difference.
        count = "1 difference" if len(found) == 1 else f"{len(found) or 'no'} differences"
        print(f"{count} from {in_force['hash']}, which is in force; secrets are not compared", file=sys.stderr)


def _print_routes(path: Path, config: Config) -> None:
    count = len(config.routes)
    print(f"{path} is valid. Service {config.service!r}, {count} protected {'route' if count == 1 else 'routes'}:")
    rows = [
        (
            route.name,
            ",".join(route.match.methods),
            " ".join(f"{route.match.host or ''}{path.text}" for path in route.match.paths),
            f"{route.outcome.preset}, {route.recovery if isinstance(route.recovery, str) else 'probe'}",
        )
        for route in config.routes
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print(f"  {'  '.join(map(str.ljust, row, widths))}".rstrip())
    print("  everything else passes through untouched; these paths in other spellings are refused")
    if config.workers != 1:
        from gateway.app.share import worker_count

        print(f"workers here: {worker_count(config)}")


def _init(chosen: argparse.Namespace) -> int:
    from gateway.config.openapi import DESCRIPTION_BYTES_MAX, draft

    description, to = chosen.openapi, chosen.to
    try:
        with description.open("rb") as stream:
            made = draft(stream.read(DESCRIPTION_BYTES_MAX + 1), str(description), chosen.upstream)
    except OSError as error:
        raise CommandWrong(f"{description}: cannot be read: {error.strerror}") from None
    if to is None:
        print(made.text, end="")
    else:
        try:
            with to.open("x", encoding="utf-8") as stream:
                stream.write(made.text)
        except OSError as error:
            raise CommandWrong(f"{to}: nothing was written: {error.strerror}") from None
    print(
        f"{made.routes} {'route' if made.routes == 1 else 'routes'}; left to decide: {made.decisions}. "
        f"{PROGRAM} check --config {to or 'FILE'} names them",
        file=sys.stderr,
    )
    return EXIT_OK


def _explain(chosen: argparse.Namespace) -> int:
    from functools import partial

    from gateway.app.life import run
    from gateway.app.operating import operate
    from gateway.config import load_with_places
    from gateway.explain import explain, from_file, from_words, hop_of, look_by

    if bool(chosen.words) is (chosen.file is not None):
        raise CommandWrong("give the request: behind --, as for curl; or --file FILE")
    config, document = load_with_places(_config_path(chosen.config), os.environ)
    request = from_words(chosen.words) if chosen.file is None else from_file(chosen.file)
    hop = hop_of(request, chosen.peer, chosen.certificate)
    look = look_by(partial(operate, config)) if chosen.store else None
    explanation = run(
        explain(config, document, request.wire, hop, response=chosen.response, look=look, show=chosen.show)
    )
    if chosen.format == "json":
        print(json.dumps(explanation.document()))
    else:
        print("\n".join(explanation.lines(str(chosen.config))))
    return EXIT_OK


def _reload(chosen: argparse.Namespace) -> int:
    """The gateway reads the file itself, with its own environment; here it only says where the gateway is."""
    from gateway.app.life import run
    from gateway.app.reload import SHOW, NotReached, ask_all, reload_gateways
    from gateway.config import ConfigError, Placeholders, state_dir_of

    path, state_dir, wrong = chosen.config, chosen.state_dir, None
    is_named = state_dir is None
    if state_dir is None:
        try:
            state_dir = _load(path, Placeholders()).state_dir
        except ConfigError as error:
            wrong, state_dir = error, state_dir_of(path)
    try:
        if is_named:
            _refuse_other_file(path, run(ask_all(state_dir, SHOW)))
        reports = run(reload_gateways(state_dir))
    except NotReached:
        if wrong is not None:
            raise wrong from None
        raise
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


def _refuse_other_file(path: Path, gateways: Sequence[Mapping[str, Any]]) -> None:
    """Raises `CommandError` where each gateway reads another file than `path`, which would not be applied."""
    files = [Path(each["file"]) for each in gateways if each.get("file") is not None]
    if files and path.resolve() not in [file.resolve() for file in files]:
        raise CommandError(
            f"nothing was reloaded: the gateway with this state_dir reads {', '.join(map(str, files))}, "
            f"and not {path}; give the file that it reads, or --state-dir DIR to reload whichever that is"
        )


def _migrate(chosen: argparse.Namespace) -> int:
    from gateway.app.life import run
    from gateway.app.operating import finish_upgrade, migrate
    from gateway.store.agreement import PROGRAM_LEVEL

    config, grant_to = _load(chosen.config), chosen.grant
    applied = run(migrate(config, grant_to))
    if not applied:
        print("The schema is up to date; nothing was changed.")
    for name in applied:
        number, _, what = name.partition("_")
        print(f"Brought the schema up to version {int(number)} ({what.replace('_', ' ')}).")
    if grant_to is not None:
        print(f"The role {grant_to} has the rights that a gateway needs.")
    if chosen.finish:
        was_lower = run(finish_upgrade(config))
        print(
            f"The store has level {PROGRAM_LEVEL} now: programs of lower levels are refused from here on."
            if was_lower
            else f"The store has level {PROGRAM_LEVEL}, which is this program's; nothing was changed."
        )
    return EXIT_OK


def _rekey(chosen: argparse.Namespace) -> int:
    from gateway.app.life import run
    from gateway.app.operating import rekey_stores

    def progress(text: str) -> None:
        if sys.stderr.isatty():
            print(text, end="\r", file=sys.stderr)

    try:
        left = run(rekey_stores(_load(chosen.config), lambda text: print(text, flush=True), progress))
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
    from gateway.admin.commands import job_of
    from gateway.app.life import run
    from gateway.app.operating import operate

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
    from gateway.demo import demo

    return demo(chosen)


_COMMANDS = {
    "run": _run,
    "deliver": _run,
    "check": _check,
    "init": _init,
    "explain": _explain,
    "reload": _reload,
    "migrate": _migrate,
    "rekey": _rekey,
    "demo": _demo,
}


def _load(path: Path, stand_in: Placeholders | None = None) -> Config:
    from gateway.config import load

    return load(_config_path(path), os.environ, stand_in=stand_in)


def _config_path(path: Path) -> Path:
    if path == options.CONFIG_PATH and not path.exists():
        raise CommandWrong(f"there is no {path}; name the gateway's configuration with --config FILE")
    return path
