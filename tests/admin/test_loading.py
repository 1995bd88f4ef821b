"""What a command loads: no more of the program, and of others' packages, than it needs."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.support.house import config_text

_RUN = """
import sys
from gateway.cli import main
try:
    code = main(sys.argv[1:])
except SystemExit as end:
    code = end.code
print(*{name.partition(".")[0] for name in sys.modules})
sys.exit(code)
"""


def packages_of(*arguments: str) -> set[str]:
    """Others' packages that a successful command loads."""
    done = subprocess.run([sys.executable, "-c", _RUN, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split()) & set(packages_distributions()) - {"gateway"}


@pytest.mark.parametrize("arguments", [("--version",), ("--help",), ("inspect", "--help")], ids=" ".join)
def test_the_command_line_is_told_by_itself(arguments: tuple[str, ...]) -> None:
    """Whoever asks for the version or for help waits for nothing but the command line."""
    assert packages_of(*arguments) <= {"_distutils_hack"}


def test_a_check_loads_what_reads_the_file(tmp_path: Path) -> None:
    """A check of a file without certificates loads neither a server nor a client of anything."""
    file = tmp_path / "gateway.yaml"
    store = {"durable": "postgres://gateway@127.0.0.1/gateway", "fast": "redis://127.0.0.1"}
    file.write_text(config_text("http://127.0.0.1:9", store, tmp_path))
    loaded = packages_of("check", "--config", str(file))
    assert "pydantic" in loaded
    unneeded = {"aiohttp", "aiokafka", "apsw", "asyncpg", "hiredis", "httptools", "jinja2", "jwt", "redis", "uvloop"}
    assert not loaded & unneeded
