"""What these tests begin with: a service that charges, a clock that jumps."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.upstream import Answer, RecordingUpstream
from tests.support.wall_clock import WallClock, wall_clock


@pytest.fixture
async def upstream() -> AsyncIterator[RecordingUpstream]:
    async with RecordingUpstream() as upstream:
        upstream.on("/charges", Answer(201))
        yield upstream


@pytest.fixture
def clock(server_workspace: Path) -> Iterator[WallClock]:
    """The wall clock of whoever is started under it."""
    with wall_clock(server_workspace / "clock") as moved:
        yield moved


@pytest.fixture
def everybodys_clock(clock: WallClock, monkeypatch: pytest.MonkeyPatch) -> WallClock:
    """The wall clock of every process that the test starts, commands included."""
    for name, value in clock.environment.items():
        monkeypatch.setenv(name, value)
    return clock
