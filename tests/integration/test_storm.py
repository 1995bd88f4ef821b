"""A short storm in the suite, and the proof that its judge can say no."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.integration.storm import storm
from tests.integration.storm_clients import Call
from tests.integration.storm_judge import judge
from tests.integration.storm_upstream import Arrival, Deed
from tests.support.postgres import PostgresInstallation, workspace
from tests.support.upstream import Answered

_SECONDS = 12.0


@pytest.mark.parametrize(
    "dialect", ["postgres", *(pytest.param(each, marks=pytest.mark.full) for each in ("portable", "redis"))]
)
async def test_short_storm(dialect: str, postgres_installation: PostgresInstallation) -> None:
    """Under kills, freezes and restarts of everything: one effect and one answer for each key, or doubt that is listed.

    For longer ones: `python -m tests.integration.storm --seconds 600`.
    """
    with workspace("storm") as directory:
        verdict = await storm(directory, postgres_installation, seconds=_SECONDS, seed=11, dialect=dialect)
    print(verdict)
    assert not verdict.faults, verdict
    # It blew, and it did not blow everything away.
    assert verdict.done.total() >= 3
    assert verdict.effects >= 20
    assert {"stored", "replayed"} <= verdict.words.keys()
    # The store went while the service was at work on several.
    assert verdict.words["journaled"] >= 3


_BODY = b"{}"
_FIRST = Call(1, "/charges", "k", _BODY, 1.0, 2.0, 201, "stored", "n-1", _BODY)
_AGAIN = replace(_FIRST, number=2, begin=3.0, end=4.0, verdict="replayed")
_DONE = Arrival("/charges", 1, "op", "1", Deed.DONE)
_ANSWER = Answered(1, "n-1", 201, _BODY)


def _sent_again(deed: Deed, token: str = "2") -> dict[int, Arrival]:
    return {1: _DONE, 2: replace(_DONE, call=2, token=token, deed=deed)}


_BAD = {
    "two effects": ([_FIRST, _AGAIN], _sent_again(Deed.DONE), "2 effects"),
    "sent again after an effect": ([_FIRST, _AGAIN], _sent_again(Deed.REFUSED), "sent again"),
    "sent twice under one token": ([_FIRST, _AGAIN], _sent_again(Deed.REFUSED, "1"), "one token"),
    "another answer": ([_FIRST, replace(_AGAIN, status=200)], {1: _DONE}, "different answers"),
    "an answer of nobody": ([replace(_FIRST, nonce="n-9")], {1: _DONE}, "nobody gave"),
    "another body's answer": ([replace(_FIRST, body=b"[]")], {1: _DONE}, "another body"),
    "another key's answer": ([_FIRST, replace(_AGAIN, key="other")], {1: _DONE}, "another operation"),
    "forgotten": ([_FIRST, replace(_AGAIN, verdict="in-doubt")], {1: _DONE}, "after it was answered"),
    "refused although it is the same": (
        [_FIRST, replace(_AGAIN, status=422, verdict="key-reused")],
        {1: _DONE},
        "was refused as another request",
    ),
    "refused although there is no other": (
        [replace(_AGAIN, status=422, verdict="key-reused")],
        {},
        "was refused as another request",
    ),
    "said not to be sent": ([replace(_FIRST, verdict="store-unavailable")], {1: _DONE}, "it was sent"),
    "said to have had no effect": ([replace(_FIRST, verdict="released")], {1: _DONE}, "it had an effect"),
}


@pytest.mark.parametrize("case", _BAD)
def test_the_judge_finds(case: str) -> None:
    """Each kind of broken promise is found."""
    calls, deeds, expected = _BAD[case]
    assert any(expected in fault for fault in judge(calls, deeds, [_ANSWER]))
