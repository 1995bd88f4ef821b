"""The test command runs everything: each directory with tests belongs to one part, and to one only."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import run
from tests.run import BESIDE, CONTRACT, PARTS, QUICK, ROOT, SHARED


def test_every_test_belongs_to_one_part() -> None:
    """No file of tests is left out, and none runs twice."""
    named = [*[name for part in PARTS for name in part if name != SHARED], SHARED, *BESIDE]
    assert len(named) == len(set(named))
    places = [place for given in run._places(PARTS) for place in given]
    assert len(places) == len(set(places))
    assert set((ROOT / "tests" / SHARED).glob("test_*.py")) <= {ROOT / place for place in places}
    found = {path.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").rglob("test_*.py")}
    assert found == set(named) | ({"benchmarks", "browser"} & found)


@pytest.mark.parametrize("parts", [QUICK, CONTRACT], ids=["quick", "contract"])
def test_what_is_named_is_where_it_is_looked_for(parts: tuple[tuple[str, ...], ...]) -> None:
    """Each of the places that a shorter run names is there, and none is within another."""
    named = [ROOT / "tests" / name for part in parts for name in part]
    assert [place for place in named if not place.exists()] == []
    assert [place for place in named for other in named if other in place.parents] == []


def test_the_contract_is_the_one_of_the_text() -> None:
    """What `--contract` runs is what the description of the suites says, which has the frameworks besides."""
    text = (
        (ROOT / "tests" / "README.md").read_text("utf-8").partition("## What is the contract")[2].partition("\n## ")[0]
    )
    named = re.findall(r"^\| `([\w/]+)` \|", text, re.MULTILINE)
    assert sorted(named) == sorted({*(name for part in CONTRACT for name in part), "frameworks"})


def test_a_place_without_room_is_not_taken(tmp_path: Path) -> None:
    """Temporary files stay on the disk where memory has no place for them, or is not to be had."""
    assert not run._is_fit(Path("/proc"))
    assert not run._is_fit(tmp_path / "missing")
