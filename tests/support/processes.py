"""Child processes that die with the test run, whatever ends it, and that can be frozen with all their descendants."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.support import leash
from tests.support.nursery import Forked

END_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Account:
    """The user that a child runs as."""

    uid: int
    gid: int


def spawn(
    command: Sequence[str],
    *,
    output: Path,
    account: Account | None = None,
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
    death_signal: signal.Signals = signal.SIGKILL,
    terminal: int | None = None,
) -> subprocess.Popen[bytes]:
    """Start `command` in a session of its own; both its outputs are appended to the file `output`.

    It reads from `terminal`, which becomes the one of its session, or from nothing.

    Call it from the main thread: the kernel counts the end of the thread that forked as the parent's death.
    """
    with output.open("ab") as sink:
        return subprocess.Popen(
            _leashed(command, account, death_signal),
            stdin=subprocess.DEVNULL if terminal is None else terminal,
            stdout=sink,
            stderr=subprocess.STDOUT,
            cwd=directory,
            env=environment,
            # A Ctrl-C on the terminal ends the tests, and they end their children in order.
            start_new_session=True,
        )


def run(
    command: Sequence[str],
    *,
    account: Account | None = None,
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run `command` to its end and return what it said; raises RuntimeError with that text when it fails."""
    done = subprocess.run(
        _leashed(command, account, signal.SIGKILL),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=directory,
        env=environment,
        text=True,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed with {done.returncode}:\n{done.stdout}")
    return done.stdout


def end(process: subprocess.Popen[bytes] | Forked, how: signal.Signals, deadline_seconds: float = END_SECONDS) -> int:
    """Send `how` to the process, wake it and its descendants if they are frozen, and return its exit status.

    A sudden end, SIGKILL or SIGQUIT, goes to the descendants as well and first: nobody who was frozen does one step
    more. One that does not obey within the deadline is killed with its descendants, and that is an AssertionError.
    """
    if (code := process.poll()) is not None:
        return code
    if how in (signal.SIGKILL, signal.SIGQUIT):
        for child in descendants(process.pid):
            _signal(child, how)
    process.send_signal(how)
    resume(process.pid)
    try:
        return process.wait(deadline_seconds)
    except subprocess.TimeoutExpired:
        for pid in [process.pid, *descendants(process.pid)]:
            _signal(pid, signal.SIGKILL)
        process.wait()
        raise AssertionError(f"process {process.pid} did not end within {deadline_seconds:g} s of {how.name}") from None


def pause(pid: int) -> None:
    """Freeze the process, then its descendants: the parent first, so that no new one escapes."""
    _signal(pid, signal.SIGSTOP)
    for child in descendants(pid):
        _signal(child, signal.SIGSTOP)


def resume(pid: int) -> None:
    for child in [*descendants(pid), pid]:
        _signal(child, signal.SIGCONT)


def descendants(pid: int) -> list[int]:
    """The living children of a process, theirs, and so on. Process groups would not do: Postgres gives each its own."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (parent := _parent(entry)) is not None:
            children.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _parent(entry: Path) -> int | None:
    try:
        # The second field is the program's name in brackets, and may contain anything.
        state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state in "ZX" else int(parent)


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _leashed(command: Sequence[str], account: Account | None, death_signal: signal.Signals) -> list[str]:
    user = f"{account.uid}:{account.gid}" if account else "-"
    start = [sys.executable, "-I", "-S", leash.__file__, str(os.getpid()), str(int(death_signal)), user]
    return [*start, *command]
