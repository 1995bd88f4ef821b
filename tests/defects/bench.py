"""Runs chosen tests on copies of the product, a few at a time, and says what they noticed."""

from __future__ import annotations

import compileall
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.defects import warm
from tests.defects.defect import PRODUCT, Defect, NotThere, put_in
from tests.defects.telling import BROKEN, NOTICED

# Each may have a server of its own, and the machine two cores.
AT_ONCE = 2
RUN_SECONDS = 120.0
_ROOT = Path(__file__).parents[2]
_COPIED = (PRODUCT, "tests", "pyproject.toml", "README.md", "config", "deploy", "docs")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one run: which tests noticed something, and what kept others from judging."""

    passed: int
    noticed: dict[str, str]
    broken: dict[str, str]
    output: str


@dataclass(frozen=True, slots=True)
class _Run:
    pidfd: int | None
    root: Path
    until: float


class Bench:
    """`with Bench(directory) as bench`: an empty directory of its own, which is removed at the end."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._original = directory / "original"
        self._waiting: dict[str, Sequence[str]] = {}
        self._running: dict[str, _Run] = {}
        self._verdicts: dict[str, Verdict] = {}
        # A Redis that is everybody's is emptied by every test that uses it.
        self._at_once = 1 if "GATEWAY_TEST_REDIS" in os.environ else AT_ONCE
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._warm = subprocess.Popen(
            [sys.executable, warm.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def __enter__(self) -> Self:
        self._original.mkdir(parents=True)
        for name in _COPIED:
            source = _ROOT / name
            if source.is_dir():
                shutil.copytree(source, self._original / name)
            else:
                shutil.copy2(source, self._original / name)
        # Once here, and not again in every copy.
        compileall.compile_dir(self._original, quiet=2)
        return self

    def __exit__(self, *_: object) -> None:
        for run in self._running.values():
            _end(run.pidfd)
        self._warm.communicate()
        shutil.rmtree(self._directory)

    def plan(self, name: str, defect: Defect, tests: Iterable[str]) -> None:
        """Have the tests run with the defect, when there is room."""
        root = self._directory / name
        shutil.copytree(self._original, root, copy_function=os.link)
        try:
            put_in(defect, root)
        except NotThere as error:
            self._verdicts[name] = Verdict(0, {}, {"the defect": str(error)}, "")
            return
        # One that notices is enough.
        self._waiting[name] = ["--exitfirst", *tests]

    def verdict(self, name: str) -> Verdict:
        """What became of a run that was planned; waits for it, while the others go on."""
        while name not in self._verdicts:
            self._start_some()
            self._wait_for_one()
        return self._verdicts.pop(name)

    def _start_some(self) -> None:
        while self._waiting and len(self._running) < self._at_once:
            name = next(iter(self._waiting))
            root = self._directory / name
            # For longer tracebacks pytest parses what failed. CPython 3.11 cannot while a finaliser, of a task that the
            # defect left behind, has a traceback of its own formatted: that parses, too.
            arguments = ["--quiet", "--full", "--tb=line", "--no-header", "-p", "no:cacheprovider"]
            arguments += ["-p", "tests.defects.telling", f"--tell-to={root / 'told'}", f"--basetemp={root / 'tmp'}"]
            # The same examples each time: what is caught by luck is not caught.
            arguments += ["--hypothesis-seed=0", *self._waiting.pop(name)]
            self._running[name] = _Run(self._fork(root, arguments), root, time.monotonic() + RUN_SECONDS)

    def _fork(self, root: Path, arguments: list[str]) -> int | None:
        """A descriptor of the run's process; None when that is over already."""
        assert self._warm.stdin is not None
        assert self._warm.stdout is not None
        self._warm.stdin.write(json.dumps({"root": str(root), "arguments": arguments}) + "\n")
        self._warm.stdin.flush()
        pid = int(self._warm.stdout.readline())
        try:
            return os.pidfd_open(pid)
        except ProcessLookupError:
            return None

    def _wait_for_one(self) -> None:
        pidfds = [run.pidfd for run in self._running.values() if run.pidfd is not None]
        first = min(run.until for run in self._running.values())
        seconds = max(0.0, first - time.monotonic()) if len(pidfds) == len(self._running) else 0.0
        ended, _, _ = select.select(pidfds, [], [], seconds)
        for name, run in list(self._running.items()):
            is_late = time.monotonic() >= run.until
            if run.pidfd is None or run.pidfd in ended or is_late:
                del self._running[name]
                _end(run.pidfd)
                self._verdicts[name] = _verdict(run, is_late=is_late)
                shutil.rmtree(run.root)


def _end(pidfd: int | None) -> None:
    """Kill the process if it is still there, and what it started with it; the latter die with their parent."""
    if pidfd is None:
        return
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    select.select([pidfd], [], [])
    os.close(pidfd)


def _verdict(run: _Run, *, is_late: bool) -> Verdict:
    told_file = run.root / "told"
    told = [json.loads(line) for line in told_file.read_text("utf-8").splitlines()] if told_file.exists() else []
    noticed = {each["test"]: each["why"] for each in told if each["how"] == NOTICED}
    broken = {each["test"]: each["why"] for each in told if each["how"] == BROKEN and each["test"] not in noticed}
    output = (run.root / "output").read_text("utf-8", "replace")
    if is_late:
        broken["the run"] = f"did not end within {RUN_SECONDS:g} s"
    elif not told:
        broken["the run"] = f"judged nothing:\n{output}"
    return Verdict(len(told) - len(noticed) - len(broken), noticed, broken, output)
