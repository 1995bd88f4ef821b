"""The test command runs everything: each directory with tests belongs to one half, and to one only."""

from __future__ import annotations

from tests.run import HALVES, ROOT


def test_every_test_belongs_to_one_half() -> None:
    """No file of tests is left out, and none runs twice."""
    named = [name for half in HALVES for name in half]
    assert len(named) == len(set(named))
    found = {path.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").rglob("test_*.py")}
    assert found == set(named) | ({"benchmarks"} & found)
