"""The test command runs everything: each directory with tests belongs to one part, and to one only."""

from __future__ import annotations

from pathlib import Path

from tests import run
from tests.run import BESIDE, PARTS, QUICK, ROOT


def test_every_test_belongs_to_one_part() -> None:
    """No file of tests is left out, and none runs twice."""
    named = [*[name for part in PARTS for name in part], *BESIDE]
    assert len(named) == len(set(named))
    found = {path.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").rglob("test_*.py")}
    assert found == set(named) | ({"benchmarks", "browser"} & found)


def test_the_quick_ones_are_where_they_are_looked_for() -> None:
    """Each of the places that the quick run names is there, and none is within another."""
    named = [ROOT / "tests" / name for part in QUICK for name in part]
    assert [place for place in named if not place.exists()] == []
    assert [place for place in named for other in named if other in place.parents] == []


def test_a_place_without_room_is_not_taken(tmp_path: Path) -> None:
    """Temporary files stay on the disk where memory has no place for them, or is not to be had."""
    assert not run._is_fit(Path("/proc"))
    assert not run._is_fit(tmp_path / "missing")
