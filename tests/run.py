"""`make test`: the whole suite in two processes, because half of it waits for servers while the other half computes.

Each process has a Postgres and a Redis of its own. Where one of them is given by the environment there is one for all,
and then the halves run one after the other. What the second half prints is shown when the first is done.

    python -m tests.run [what pytest takes]        with arguments: one process, as pytest runs them
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]

# Every directory with tests is in one of them; `tests/docs/test_run.py` sees to that.
HALVES: Final = (
    ("admin", "app", "conformance", "core", "integration"),
    ("config", "defects", "docs", "http", "observe", "proxy", "simulation", "store", "support_tests", "upkeep"),
)


def main(arguments: list[str]) -> int:
    """Run the tests; returns the exit code, that of the first half that failed."""
    pytest = [sys.executable, "-m", "pytest"]
    if arguments:
        return subprocess.run([*pytest, *arguments], cwd=ROOT, check=False).returncode
    commands = [[*pytest, *[f"tests/{name}" for name in half]] for half in HALVES]
    if os.environ.get("GATEWAY_TEST_POSTGRES") or os.environ.get("GATEWAY_TEST_REDIS"):
        codes = [subprocess.run(command, cwd=ROOT, check=False).returncode for command in commands]
        return next((code for code in codes if code), 0)
    return _together(commands[0], commands[1])


def _together(first: list[str], second: list[str]) -> int:
    with tempfile.TemporaryFile() as shown_later:
        beside = subprocess.Popen(second, cwd=ROOT, stdout=shown_later, stderr=subprocess.STDOUT)
        try:
            code = subprocess.run(first, cwd=ROOT, check=False).returncode
            code_beside = beside.wait()
        finally:
            # An interrupt reaches both by the terminal; what ends this alone must not leave the other behind.
            if beside.poll() is None:
                beside.terminate()
                beside.wait()
        shown_later.seek(0)
        sys.stdout.flush()
        sys.stdout.buffer.write(shown_later.read())
        sys.stdout.flush()
    return code or code_beside


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
