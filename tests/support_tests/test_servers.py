"""Processes, ports and waits of the tests: each ends, is given once, or names itself."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import leash
from tests.support.eventually import eventually, eventually_blocking
from tests.support.ports import free_port
from tests.support.processes import descendants


def test_nothing_outlives_a_killed_test_run(tmp_path: Path) -> None:
    """A child dies with its parent, even when the parent is killed and the child lives in a session of its own."""
    pid_file = tmp_path / "pid"
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import pathlib, sys, time\n"
            "from tests.support.processes import spawn\n"
            "child = spawn([sys.executable, '-c', 'import time; time.sleep(600)'], output=pathlib.Path(sys.argv[1]))\n"
            "pathlib.Path(sys.argv[2]).write_text(str(child.pid))\n"
            "time.sleep(600)\n",
            str(tmp_path / "output"),
            str(pid_file),
        ],
        cwd=Path(__file__).parents[2],
    )
    eventually_blocking(lambda: pid_file.exists() and pid_file.read_text(), what="the child runs")
    child = Path("/proc") / pid_file.read_text()
    assert descendants(parent.pid) == [int(child.name)]
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    eventually_blocking(lambda: not child.exists() or ") Z " in (child / "stat").read_text(), what="the child is gone")


def test_an_orphan_does_not_start(tmp_path: Path) -> None:
    """A program whose parent is another than the one that asked for it does not start."""
    started = tmp_path / "started"
    done = subprocess.run(
        [sys.executable, "-I", leash.__file__, "1", "9", "-", "/bin/sh", "-c", f"touch {started}"],
        stderr=subprocess.PIPE,
    )
    assert done.returncode == 1
    assert b"the parent is gone" in done.stderr
    assert not started.exists()


def test_ports_are_given_once() -> None:
    """No port is given twice, and none from the range of outgoing connections."""
    ports = [free_port() for _ in range(50)]
    assert len(set(ports)) == 50
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert max(ports) < max(lowest, 32_000)


async def test_a_condition_that_never_holds_names_itself() -> None:
    """The deadline of `eventually` ends in an error that says what was waited for and what the last answer was."""
    with pytest.raises(AssertionError, match=r"not within 0.02 s: pigs fly \(last answer: 0\)"):
        await eventually(lambda: 0, 0.02, "pigs fly")
