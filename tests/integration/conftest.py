"""What several tests of whole gateways ask for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.wall_clock import WallClock, wall_clock


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WallClock]:
    """The wall clock of every process that the test starts, commands included."""
    with wall_clock(tmp_path / "clock") as found:
        for name, value in found.environment.items():
            monkeypatch.setenv(name, value)
        yield found
