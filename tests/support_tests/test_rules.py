"""A run is green only when every test ran, judged, and cleaned up after itself."""

from __future__ import annotations

import os
import re
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
    done = run(tmp_path, source)
    assert done.returncode == status, done.stdout
    assert said in done.stdout


HANGING = """
import time
import uvloop

def test_asleep():
    time.sleep(1000)

def test_busy():
    while True:
        pass

async def test_waiting():
    await asyncio.Event().wait()

async def test_waiting_for_others():
    await asyncio.gather(asyncio.Event().wait(), asyncio.Event().wait())

async def test_turning():
    while True:
        await asyncio.sleep(0)

async def test_waiting_on_uvloop():
    assert isinstance(asyncio.get_running_loop(), uvloop.Loop)
    await asyncio.Event().wait()

@pytest.fixture
async def never():
    yield
    await asyncio.Event().wait()

async def test_torn_down(never):
    pass

def test_after():
    pass
"""
LOOPS = """
import asyncio, uvloop

def pytest_asyncio_loop_factories(item):
    return {"loop": uvloop.new_event_loop if "uvloop" in item.name else asyncio.new_event_loop}
"""


def test_one_that_hangs_is_named_and_the_others_run(tmp_path: Path) -> None:
    """It fails by its name, and those behind it are judged."""
    (tmp_path / "conftest.py").write_text(LOOPS)
    done = run(tmp_path, HANGING, GATEWAY_TEST_PATIENCE="1")
    assert done.returncode == 1, done.stdout
    for name in ("asleep", "busy", "waiting", "waiting_for_others", "turning", "waiting_on_uvloop"):
        assert re.search(rf"::test_{name}(\[loop\])?: the test did not end within 1 s", done.stdout), done.stdout
    assert re.search(r"::test_torn_down\S*: the teardown did not end within 1 s", done.stdout), done.stdout
    assert "6 failed, 2 passed" in done.stdout


def run(directory: Path, source: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Have pytest run this, under the rules of this suite."""
    file = directory / "test_sample.py"
    file.write_text(HEAD + source)
    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider"),
            *("-c", str(ROOT / "pyproject.toml"), "--rootdir", str(directory), str(file)),
        ],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
