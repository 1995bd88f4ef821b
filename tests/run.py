"""`make test`: the suite in five processes, because much of it waits for servers and for leases.

`make test-quick` is what needs no server, no store and no process of its own, for the moment between two edits.
`make test ARGS=--contract` is what holds the gateway from outside, for a change of its internals.

Each process has a Postgres and a Redis of its own. Where one of them is given by the environment there is one for all,
and then the parts run one after the other. What the others print is shown when the first is done.

Temporary files, the servers' data among them, are in memory where there is room, and go away at the end. Processes are
killed here and the power is never cut, so a disk would keep no more than memory does and be waited for at every commit.
`TMPDIR` names another place.

    python -m tests.run                            the suite
    python -m tests.run --quick                    what is quick of it
    python -m tests.run --contract                 what holds it from outside
    python -m tests.run --full                     with what is left to `make proof`
    python -m tests.run [what pytest takes]        with arguments: one process, as pytest runs them
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Final

from tests.support.ports import SHARE

ROOT: Final = Path(__file__).parents[1]

# It mostly waits, so its files are shared by all parts that name it.
SHARED: Final = "integration"

# Each takes about as long beside the others. Every directory with tests is in one of them, or in `BESIDE`;
# `tests/docs/test_proof.py` sees to that.
PARTS: Final = (
    (SHARED, "deliver", "events", "simulation", "upkeep"),
    (SHARED, "explain", "upgrade"),
    ("conformance", "observe", "protect", "store"),
    ("app", "http"),
    ("admin", "callers", "clients", "config", "core", "defects", "docs", "support_tests"),
)

# For the moment between two edits: what decides about a request, and what is read of a file, as functions of values.
QUICK: Final = (
    ("core", "callers"),
    ("config", "http/edge/test_strictness.py", "http/edge/test_problem.py", "http/upstream/test_parser.py"),
    ("protect", "http/test_forwarding.py", "http/edge/test_decoding.py", "docs/test_maps.py", "docs/test_glossary.py"),
)

# What holds the gateway from outside, or every store to one contract: it stays as it is when internals change, and a
# change that it has to follow is a change of a promise. `tests/frameworks` is of it too, and a program of its own. All
# other suites may move with the internals that they look into.
CONTRACT: Final = ((SHARED,), (SHARED, "upgrade"), ("conformance",), ("clients", "http/gateway", "simulation"))

# What needs servers that nothing brings along: `python -m tests.servers` runs it.
BESIDE: Final = ("servers",)

MEMORY: Final = Path("/dev/shm")
# Several times what all of them have in files at once.
ROOM_BYTES: Final = 8 << 30


def main(arguments: list[str]) -> int:
    """Run the tests; returns the exit code, that of the first part that failed."""
    # With it, each of some hundred gateways would compile the whole program again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with temporary_files():
        return _run(arguments)


def _run(arguments: list[str]) -> int:
    pytest = [sys.executable, "-m", "pytest"]
    if arguments == ["--quick"]:
        return _together([[*pytest, "-q", *[f"tests/{name}" for name in part]] for part in QUICK])
    if arguments and arguments not in (["--full"], ["--contract"]):
        return subprocess.run([*pytest, *arguments], cwd=ROOT, check=False).returncode
    parts, options = (CONTRACT, []) if arguments == ["--contract"] else (PARTS, arguments)
    commands = [[*pytest, *options, *places] for places in _places(parts)]
    if os.environ.get("GATEWAY_TEST_POSTGRES") or os.environ.get("GATEWAY_TEST_REDIS"):
        codes = [subprocess.run(command, cwd=ROOT, check=False).returncode for command in commands]
        return next((code for code in codes if code), 0)
    return _together(commands)


def _places(parts: Sequence[Sequence[str]]) -> Iterator[list[str]]:
    """What the process of each part is given."""
    files = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests" / SHARED).glob("test_*.py"))
    sharing = [part for part in parts if SHARED in part]
    for part in parts:
        own = files[sharing.index(part) :: len(sharing)] if part in sharing else []
        yield [*own, *(f"tests/{name}" for name in part if name != SHARED)]


def _together(commands: Sequence[list[str]]) -> int:
    """Run them at the same time. What the first one prints is shown at once, the others' when all are done."""
    first, *others = commands
    own, *environments = (os.environ | {SHARE: f"{number}/{len(commands)}"} for number in range(len(commands)))
    with ExitStack() as stack:
        beside: list[tuple[subprocess.Popen[bytes], IO[bytes]]] = []
        for command, environment in zip(others, environments, strict=True):
            shown_later = stack.enter_context(tempfile.TemporaryFile())
            process = subprocess.Popen(command, cwd=ROOT, stdout=shown_later, stderr=subprocess.STDOUT, env=environment)
            # An interrupt reaches all by the terminal; what ends this alone must leave none of them behind.
            stack.callback(_end, process)
            beside.append((process, shown_later))
        codes = [subprocess.run(first, cwd=ROOT, check=False, env=own).returncode]
        codes += [process.wait() for process, _ in beside]
        # Those that failed come last: where a log is cut, its end is kept.
        for _, shown_later in sorted(beside, key=lambda part: part[0].returncode != 0):
            shown_later.seek(0)
            sys.stdout.flush()
            sys.stdout.buffer.write(shown_later.read())
            sys.stdout.flush()
    return next((code for code in codes if code), 0)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        process.wait()


@contextmanager
def temporary_files() -> Iterator[None]:
    """Let the processes that are started meanwhile have theirs in memory, if they can be there."""
    if "TMPDIR" in os.environ or not _is_fit(MEMORY):
        yield
        return
    with tempfile.TemporaryDirectory(prefix="tests-", dir=MEMORY) as directory:
        # The servers run as other users.
        Path(directory).chmod(0o755)
        os.environ["TMPDIR"] = directory
        try:
            yield
        finally:
            del os.environ["TMPDIR"]


def _is_fit(directory: Path) -> bool:
    try:
        found = os.statvfs(directory)
    except OSError:
        return False
    return not found.f_flag & os.ST_NOEXEC and found.f_bavail * found.f_frsize >= ROOM_BYTES


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
