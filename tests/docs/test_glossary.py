"""The glossary: each of its words is met in the program or its pages, and each own word of a name is in it."""

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
PLAIN = frozenset(
    re.findall(
        r"\w+",
        """
        about absent action actions address admin again age algorithms allow allowed already also answer answers api
        as audience auth authorize base body build ca cache cert certificate changed clear client cloudevents complete
        completed compose config connect connections cors credentials defaults delay deliver deliveries deny detail
        dialect died differs digest done drain dropped duplicates durability durable egress encoding encrypted
        encryption endpoint errors exchanges expire expiry explain failed failures fetched fetches final first follow
        for format forward from fsync full gateway groups headers here hmac host hosts https id idempotence identity
        ignore include info ins invalid is issuer jwt keep keepalive keys kind large last late leeway length limits
        lines listen log loop match mechanism method methods ms name no not observations oldest only opened operator
        ordered origins over overhead overloaded partition password path paused per ports prefix principal promotions
        proxies proxy public published records recovered redact rejected reload reloads renew repeat replicas report
        required responses restarts reuse reused role roles route routes sample schedule secret secrets server servers
        service set shares shutdown sign signature signed signing source spans spool stale stall stored stream strip
        subject success successful such synchronous timeline timeout timestamp tls tokens tolerance too topic trace
        traces trusted type types unauthorized unavailable unkeyed unprotected unreachable unreadable unsupported
        until url used user version viewer waiters when where why within worker workers
        """,
    )
)
"""Words of names that mean what they mean everywhere. A new one stands here or, if it is our own, in the glossary."""


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


def test_every_own_word_of_a_name_is_in_the_glossary() -> None:
    """Each word of a name is a plain one, or stands among the words or the names of a row."""
    known = set(re.findall(r"[a-z]+", " ".join(f"{words} {met_as}" for words, _, _, met_as in ROWS)))
    assert len(NAMES) > 250
    assert sorted({word for name in NAMES for word in re.split(r"[_-]", name)} - known - PLAIN) == []


def test_no_word_is_both() -> None:
    """A word of the glossary is not taken for a plain one, and stands in one row."""
    words = [word for words, *_ in ROWS for word in words.split(", ")]
    assert len(set(words)) == len(words)
    assert PLAIN.isdisjoint(words)
