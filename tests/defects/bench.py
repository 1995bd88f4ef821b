"""Runs chosen tests on copies of the product, a few at a time, and says what they noticed."""

from __future__ import annotations

import compileall
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.defects.defect import PRODUCT, Defect, NotThere, put_in
from tests.defects.telling import BROKEN, NOTICED
from tests.support.processes import end, spawn

# Each may have a server of its own, and the machine two cores.
AT_ONCE = 2
RUN_SECONDS = 120.0
_ROOT = Path(__file__).parents[2]
_COPIED = (PRODUCT, "tests", "pyproject.toml", "README.md", "config", "deploy", "docs")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one run: which tests noticed something, and what kept others from judging."""

    noticed: dict[str, str]
    broken: dict[str, str]
    output: str


class Bench:
    """`with Bench(directory) as bench`: an empty directory of its own, which is removed at the end."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._original = directory / "original"
        self._verdicts: dict[str, Future[Verdict]] = {}
        # A Redis that is everybody's is emptied by every test that uses it.
        self._threads = ThreadPoolExecutor(1 if "GATEWAY_TEST_REDIS" in os.environ else AT_ONCE)
        self._running: set[subprocess.Popen[bytes]] = set()

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
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in list(self._running):
            process.kill()
        self._threads.shutdown()
        shutil.rmtree(self._directory)

    def plan(self, name: str, defect: Defect, tests: Iterable[str]) -> None:
        """Have the tests run with the defect, when there is room."""
        # One that notices is enough.
        self._verdicts[name] = self._threads.submit(self._run, self._directory / name, defect, ["--exitfirst", *tests])

    def verdict(self, name: str) -> Verdict:
        """What became of a run that was planned; waits for it, while the others go on."""
        return self._verdicts.pop(name).result()

    def _run(self, root: Path, defect: Defect, arguments: list[str]) -> Verdict:
        shutil.copytree(self._original, root, copy_function=os.link)
        try:
            put_in(defect, root)
            # For longer tracebacks pytest parses what failed. CPython 3.11 cannot while a finaliser, of a task that the
            # defect left behind, has a traceback of its own formatted: that parses, too.
            options = ["--quiet", "--full", "--tb=line", "--no-header", "-p", "no:cacheprovider"]
            options += ["-p", "tests.defects.telling", f"--tell-to={root / 'told'}", f"--basetemp={root / 'tmp'}"]
            # The same examples each time: what is caught by luck is not caught.
            return _verdict(root, is_late=self._is_late(root, [*options, "--hypothesis-seed=0", *arguments]))
        except NotThere as error:
            return Verdict({}, {"the defect": str(error)}, "")
        finally:
            shutil.rmtree(root)

    def _is_late(self, root: Path, arguments: list[str]) -> bool:
        """Run pytest. One that takes too long is killed, and what it started dies with it."""
        command = [sys.executable, "-m", "pytest", *arguments]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        process = spawn(command, output=root / "output", directory=root, environment=environment)
        self._running.add(process)
        try:
            process.wait(RUN_SECONDS)
        except subprocess.TimeoutExpired:
            return True
        finally:
            end(process, signal.SIGKILL)
            self._running.discard(process)
        return False


def _verdict(root: Path, *, is_late: bool) -> Verdict:
    told_file = root / "told"
    told = [json.loads(line) for line in told_file.read_text("utf-8").splitlines()] if told_file.exists() else []
    noticed = {each["test"]: each["why"] for each in told if each["how"] == NOTICED}
    broken = {each["test"]: each["why"] for each in told if each["how"] == BROKEN and each["test"] not in noticed}
    output = (root / "output").read_text("utf-8", "replace")
    if is_late:
        broken["the run"] = f"did not end within {RUN_SECONDS:g} s"
    elif not told:
        broken["the run"] = f"judged nothing:\n{output}"
    return Verdict(noticed, broken, output)
