"""A short run of kills under a store that refuses long rows, and goes away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.journal_kills import run
from tests.support.house import store_section

_KILLS = 3


@pytest.fixture(params=["postgres", pytest.param("sqlite", marks=pytest.mark.full)])
def section(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    return store_section(request, tmp_path)


async def test_what_was_told_is_told_again(section: dict[str, Any], tmp_path: Path) -> None:
    """Whatever is killed, stopped, refused or away: the recorded response, or 503 with `Retry-After`.

    For 200 kills: `python -m tests.integration.journal_kills`.
    """
    report = await run(tmp_path, section, kills=_KILLS, seed=7)
    print(report)
    assert not report.faults, report
    # It went through what it is there for.
    assert {"journaled", "stored"} <= report.firsts.keys()
    assert report.words["201 replayed"] > 0
