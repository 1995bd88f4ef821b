"""A run is green only when every test ran, judged, and cleaned up after itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAD = "import asyncio, subprocess, sys, pytest\n"


@pytest.mark.parametrize(
    ("source", "status", "said"),
    [
        ("def test_one():\n    pass\n", 0, "1 passed"),
        ("def test_one():\n    pytest.skip('later')\n", 1, "1 failed"),
        ("@pytest.mark.skipif(True, reason='later')\ndef test_one():\n    pass\n", 1, "1 error"),
        ("@pytest.mark.xfail\ndef test_one():\n    assert False\n", 1, "1 failed"),
        ("@pytest.mark.xfail\ndef test_one():\n    pass\n", 1, "1 failed"),
        ("pytest.skip('later', allow_module_level=True)\n", 2, "1 error"),
        ("held = []\nasync def test_one():\n    held.append(asyncio.ensure_future(asyncio.Event().wait()))\n", 1,
         "tasks left behind"),
        ("def test_one():\n    subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n", 1,
         "processes left behind"),
        ("", 5, "no tests ran"),
    ],
    ids=["green", "skip", "skipif", "xfail", "xpass", "skipped module", "task left", "process left", "empty"],
)  # fmt: skip
def test_what_does_not_judge_is_not_green(tmp_path: Path, source: str, status: int, said: str) -> None:
    """Skipping, expecting failure, leaving something behind and collecting nothing all end the run in failure."""
    file = tmp_path / "test_sample.py"
    file.write_text(HEAD + source)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider"),
            *("-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), str(file)),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == status, done.stdout
    assert said in done.stdout
