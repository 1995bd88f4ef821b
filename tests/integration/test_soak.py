"""A short soak in the suite, and the proof that its accounts can say no."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.integration.soak import Books, soak

_SECONDS = 2.0


@pytest.mark.full
async def test_short_soak(postgres_url: str, tmp_path: Path) -> None:
    """After outages of the store, lost answers, duplicates that wait and clients that vanish, the books balance."""
    report = await soak(tmp_path, postgres_url, seconds=_SECONDS, seed=3)
    print(report)
    assert not report.faults, report
    # It soaked.
    assert report.done.total() >= 1
    assert {"stored", "replayed", "store-unavailable"} <= report.words.keys()
    assert report.numbers["journaled"] >= 1
    assert report.numbers["calls without a response"] >= 1


_GOOD = Books(
    counted=Counter(stored=3, replayed=2),
    seen=Counter(stored=2, replayed=2),
    unanswered=1,
    exchanges=6,
    not_sent=1,
    requests=4,
    probes=1,
    claims=5,
    settlements=3,
    refused_writes=1,
    journaled=1,
    in_journal=0,
)
_BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a response that was not counted": ({"counted": Counter(stored=1, replayed=3)}, "fewer responses counted"),
    "a response that nobody got": ({"unanswered": 0}, "that nobody saw"),
    "a request that was not counted": ({"exchanges": 5}, "requests sent"),
    "a request without a claim": ({"claims": 3, "settlements": 2}, "claims counted"),
    "a claim without an end": ({"journaled": 0}, "no end was counted"),
    "a claim with two ends": ({"settlements": 5}, "no end was counted"),
    "an outcome left behind": ({"in_journal": 1}, "left in the journal"),
}


def test_good_books_balance() -> None:
    """Books that balance have no fault."""
    assert _GOOD.faults() == []


@pytest.mark.parametrize("case", _BAD)
def test_bad_books_do_not_balance(case: str) -> None:
    """Each kind of error is found, and it alone."""
    changes, expected = _BAD[case]
    (fault,) = replace(_GOOD, **changes).faults()
    assert expected in fault
