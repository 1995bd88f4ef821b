"""The table of the proof: what it names exists, and no invariant is left out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from tests.defects.catalogue import DEFECTS

ROOT = Path(__file__).parents[2]
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


def test_every_test_that_is_named_exists() -> None:
    """Whoever looks for the proof of an invariant, or of a comparison, finds it."""
    named = [(found[1], found[2]) for found in _TEST.finditer(PROOF + COMPARISON)]
    assert len(named) > INVARIANTS
    assert [(file, name) for file, name in named if name not in _names_in(ROOT / file)] == []


def test_every_source_of_the_comparison_is_listed_and_used() -> None:
    """Whatever is said of others leads to a source, by its letter or number."""
    text, _, listed = COMPARISON.partition("\n## Sources\n")
    marks = ",".join(re.findall(r"\[((?:[a-z]|\d+|[MN]\d?)(?:, (?:[a-z]|\d+))*)\](?!\()", text))
    used = {mark.strip() for mark in marks.split(",")} - {"M", "M1", "M2", "N"}
    found = re.findall(r"^(?:\| ([a-z]) \||(\d+)\. )", listed, re.MULTILINE)
    assert used == {letter or number for letter, number in found}


def test_every_place_and_program_that_is_named_exists() -> None:
    """Directories, files and programs are where the text says."""
    modules = [found[1].replace(".", "/") for found in _MODULE.finditer(PROOF)]
    assert modules
    for module in modules:
        assert any((ROOT / path).exists() for path in (f"{module}.py", f"{module}/__main__.py"))
    assert [found[1] for found in _PLACE.finditer(PROOF + COMPARISON) if not (ROOT / found[1]).exists()] == []
    assert [name for name in re.findall(r"--run ([\w-]+)", PROOF) if name not in DEFECTS] == []


def test_every_invariant_has_a_test() -> None:
    """All of them are there, in their order, each with at least one test beside the simulation."""
    found = dict(_invariants())
    assert list(found) == list(range(1, INVARIANTS + 1))
    assert [number for number, text in found.items() if not _TEST.search(text)] == []
