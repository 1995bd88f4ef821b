"""The table of the proof: what it names exists, and no invariant is left out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests import run as runner
from tests.defects.catalogue import DEFECTS
from tests.run import BESIDE, CONTRACT, PARTS, QUICK, ROOT, SHARED

PROOF = (ROOT / "tests" / "README.md").read_text("utf-8")
COMPARISON = (ROOT / "docs" / "comparison.md").read_text("utf-8")
INVARIANTS = 43
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
_PLACE = re.compile(r"`(tests/[\w/]+(?:\.py)?)`")
_MODULE = re.compile(r"python -m (tests\.[\w.]+)")


def _invariants() -> Iterator[tuple[int, str]]:
    """Each invariant's number and what stands under it."""
    starts = [(int(found[1]), found.start()) for found in re.finditer(r"^(\d+)\. \*\*", PROOF, re.MULTILINE)]
    for (number, start), (_, end) in pairwise([*starts, (0, len(PROOF))]):
        yield number, PROOF[start:end]


def _names_in(file: Path) -> set[str]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.parse(file.read_text("utf-8")).body if isinstance(node, functions)}


def test_everything_that_is_named_exists() -> None:
    """Whoever looks for the proof of an invariant, or of a comparison, finds it: tests, directories, programs."""
    whole = PROOF + COMPARISON
    named = [(found[1], found[2]) for found in _TEST.finditer(whole)]
    assert len(named) > INVARIANTS
    assert [(file, name) for file, name in named if name not in _names_in(ROOT / file)] == []
    modules = [found[1].replace(".", "/") for found in _MODULE.finditer(PROOF)]
    assert modules
    for module in modules:
        assert any((ROOT / path).exists() for path in (f"{module}.py", f"{module}/__main__.py"))
    assert [found[1] for found in _PLACE.finditer(whole) if not (ROOT / found[1]).exists()] == []
    assert [name for name in re.findall(r"--run ([\w-]+)", PROOF) if name not in DEFECTS] == []


def test_every_invariant_has_a_test() -> None:
    """All of them are there, in their order, each with at least one test beside the simulation."""
    found = dict(_invariants())
    assert list(found) == list(range(1, INVARIANTS + 1))
    assert [number for number, text in found.items() if not _TEST.search(text)] == []


def test_every_test_belongs_to_one_part() -> None:
    named = [*[name for part in PARTS for name in part if name != SHARED], SHARED, *BESIDE]
    assert len(named) == len(set(named))
    places = [place for given in runner._places(PARTS) for place in given]
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
