"""The glossary: each of its words is met in the program or its pages."""

from __future__ import annotations

import re

import pytest

from gateway.core.lifecycle import TABLE
from gateway.core.operation import State
from gateway.core.verdict import Verdict
from tests.support.reference import DOCS, PAGES

GLOSSARY = DOCS / "reference" / "glossary.md"
ROWS = [
    tuple(cell.strip() for cell in line.strip("|").split("|"))
    for line in GLOSSARY.read_text("utf-8").splitlines()
    if line.startswith("| ") and not line.startswith(("| word |", "| --- |"))
]
ELSEWHERE = "\n".join(page.read_text("utf-8") for page in PAGES if page != GLOSSARY)
REFERENCE = "\n".join(page.read_text("utf-8") for page in sorted((DOCS / "reference").glob("*.md")) if page != GLOSSARY)
NAMES = {
    *re.findall(r"^\| `(?:idempotency_)?([a-z_]+)` \|", REFERENCE, re.MULTILINE),
    *(page.stem for page in (DOCS / "api" / "problems").glob("*.md")),
    *(verdict.value for verdict in Verdict),
    *(state.value for state in State),
    *(row.event.value for row in TABLE),
}
"""Settings, metrics and fields of the log, problems, verdicts, states and events."""


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_word_is_explained_and_met(row: tuple[str, ...]) -> None:
    """By a phrase, by a word of others, and by names that the program has."""
    words, here, others, met_as = row
    assert here
    assert others
    assert not here.endswith(".")
    names = " ".join(NAMES).replace("_", " ").replace("-", " ")
    for word in words.split(", "):
        assert re.search(rf"\b{word}", f"{ELSEWHERE} {names}", re.IGNORECASE), word
    for name in re.findall(r"`([^`]+)`", met_as):
        assert f"`{name.rpartition('.')[2]}`" in ELSEWHERE, name
