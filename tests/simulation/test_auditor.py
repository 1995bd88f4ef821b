"""The auditor can fail: for each invariant a history that breaks it, and the line that says so."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.simulation import audit as audit_package
from tests.simulation import auditor, history
from tests.simulation.auditor import CHECKS, audit
from tests.simulation.history import Change, Fault, Forward, History, Jump, Life, Sent, StoreCall
from tests.simulation.scribe import BODY, OPERATION, Scribe, well

OTHER = "22222222-2222-8222-8222-222222222222"
HOUR_US = 3_600_000_000
MET_BEFORE = StoreCall("g0", "check_memory", None, 0.1, 0.2, 0.3)
"""The host knew the memory from before it lost anything."""


def put(what: Any, **changes: object) -> None:
    for name, value in changes.items():
        setattr(what, name, value)


def other(made: History) -> Scribe:
    return Scribe(made, OTHER, "k2")


def claimed(made: History) -> Scribe:
    """Another operation."""
    found = other(made)
    found.claim(3.0, 2)
    return found


def sent(made: History) -> Scribe:
    """Another operation, sent with an effect."""
    found = claimed(made)
    found.send(3.1, 2, "n2")
    return found


def in_doubt(made: History) -> Scribe:
    """Another operation, sent with an effect, whose answer was lost."""
    found = sent(made)
    found.say(3.3, "abandon", "in_doubt")
    return found


def set_while_open(made: History) -> Scribe:
    """Another operation, sent with an effect, under whose lease the store's clock was set an hour ahead."""
    found = sent(made)
    made.jumps.append(Jump(3.2, HOUR_US))
    made.faults.append(Fault("clock_jump", 3.2, 3.2))
    return found


def released(scribe: Scribe, at: float, token: int) -> Scribe:
    """Released at the moment, and claimed again."""
    scribe.say(at, "release", "released")
    scribe.claim(at + 0.1, token)
    return scribe


def accepted(made: History, *, dispatched: bool = False) -> Scribe:
    """Another operation, whose request is kept."""
    found = other(made)
    found.accept(3.0, 2)
    if dispatched:
        found.claim(4.0, 3, event="dispatch")
    return found


def unprotected(scribe: Scribe) -> Sent:
    found = scribe.send(3.0, 0, "n3", 1)
    put(found, is_protected=False)
    return found


def written(made: History, **otherwise: Any) -> Change:
    """The last change, which wrote something else."""
    last = made.changes[-1]
    return replace(last, after=replace(last.after, **otherwise))


def claimed_as_absent_after_a_loss(made: History, scribe: Scribe) -> None:
    made.store_calls.append(MET_BEFORE)
    scribe.change(3.0, "lost", None)
    scribe.claim(4.0, 2)


def lane(made: History, *numbers: int) -> list[Scribe]:
    """Operations of one account, accepted one after the other."""
    made.terms = replace(made.terms, ordered=frozenset(("move",)))
    found = []
    for number in numbers:
        one = Scribe(made, OTHER[:-1] + str(number), f"k{number}")
        one.accept(3.0 + number / 10, number)
        made.changes[-1] = written(made, lane="a1")
        one.view = made.changes[-1].after
        found.append(one)
    return found


def at_home(made: History) -> None:
    """There are two regions, the operation is at home in the second one, and all that happened did so there."""
    made.terms = replace(made.terms, homes=("eu", "us"))
    made.region_of = {"g0": "us", "g1": "eu"}
    made.changes = [replace(change, region="us") for change in made.changes]


def forwarded(made: History, scribe: Scribe, verdict: str) -> None:
    """A request for the other region, of which nothing left, nor came back."""
    made.forwards.append(Forward(scribe.call(3.0, verdict, status=503).number, "g1", "us"))


Spoil = Callable[[History, Scribe], object]
# What breaks an invariant: `m` is a history in which an operation is stored and replayed, `s` that one's scribe.
SPOILS: dict[str, Spoil] = {
    "01 sent again without leave": lambda m, s: (s.claim(3.0, 2), s.send(3.1, 2, "n2", effect=False)),
    "02 sent before the claim was acknowledged": lambda m, s: put(m.store_calls[0], acknowledged=1.5),
    "03 an answer that nobody gave": lambda m, s: s.call(3.0, "replayed", "n9"),
    "04 two answers": lambda m, s: put(m.calls[1].answer, status=200),
    "05 released after an effect": lambda m, s: sent(m).say(3.2, "release", "released"),
    "06 disproved although there was an effect": lambda m, s: (o := in_doubt(m)).change(
        3.5, "disprove", replace(o.view, state="released"), read_token=2
    ),
    "07 in doubt after it was stored": lambda m, s: s.call(3.0, "in-doubt", status=409),
    "08 stored twice": lambda m, s: s.call(3.0, "stored", "n1"),
    "09 a different request": lambda m, s: put(released(s, 3.0, 2).send(3.2, 2, "n2"), body=b"other"),
    "10 refused although it is the same": lambda m, s: s.call(3.0, "key-reused", status=422),
    "11 a step that the table does not have": lambda m, s: s.say(3.0, "abandon", "in_doubt"),
    "12 sent after the lease": lambda m, s: put(m.sent[0], sent=7.5),
    "13 a token again": lambda m, s: ((o := other(m)).claim(3.0, 5), released(o, 3.1, 5)),
    "14 the record says otherwise": lambda m, s: m.changes.append(
        replace(m.changes.pop(), after=replace(s.view, nonce="n9"))
    ),
    "15 a lease that ends by itself": lambda m, s: (o := claimed(m)).change(
        20.0, "sweep", replace(o.view, state="in_doubt")
    ),
    "16 a completed record is claimed": lambda m, s: s.claim(3.0, 2),
    "17 sent while in doubt": lambda m, s: (in_doubt(m), put(m.sent[1], sent=3.4)),
    "18 a doubt is swept": lambda m, s: in_doubt(m).change(3.5, "sweep", None),
    "19 swept between claim and bytes": lambda m, s: (
        (o := claimed(m)).change(3.05, "sweep", None),
        o.send(3.1, 2, "n2"),
    ),
    "20 replayed after its window": lambda m, s: s.call(150.0, "replayed", "n1"),
    "21 another scope gets the answer": lambda m, s: put(m.calls[1], scope="t2"),
    "22 two subjects": lambda m, s: (put(s, key="k2"), s.send(1.03, 1, "n2", effect=False)),
    "23 somebody else got what was said to this call": lambda m, s: put(m.sent[0], call=1),
    "24 the upstream sees another body": lambda m, s: put(m.sent[0], body=BODY + b" "),
    "25 a truncated answer in the record": lambda m, s: put(m.sent[0], cut=1, is_kept_whole=False),
    "26 a long answer in the record": lambda m, s: put(m.sent[0], answer_body=b"x" * 5000),
    "27 passed through twice": lambda m, s: (unprotected(s), unprotected(s)),
    "28 forgotten after it was acknowledged": lambda m, s: m.final.clear(),
    "29 claimed as absent after a loss": claimed_as_absent_after_a_loss,
    "30 claimed for ever": lambda m, s: put(m, final={OPERATION: replace(s.view, state="claimed")}),
    "31 nobody answers": lambda m, s: put(s.call(50.0, "in-flight", status=409), is_final_check=True),
    "32 a waiter sends": lambda m, s: put(m.sent[0], call=s.call(1.0, "in-flight", status=409).number),
    "33 doubt without a fault": lambda m, s: in_doubt(m),
    "34 still claimed": lambda m, s: (m.lives.append(Life("g0", "g0.1", 0.0, 3.5, "drained")), claimed(m)),
    "35 free after the clock was set": lambda m, s: set_while_open(m).change(3.3, "sweep", None),
    "36 a task is left": lambda m, s: m.lives.append(Life("g0", "g0.2", 0.0, 59.0, "drained", leftovers=("1 runs",))),
    "37 told of what was not": lambda m, s: m.facts.append(("g0", "claimed", "9")),
    "38 released although it was kept": lambda m, s: accepted(m, dispatched=True).say(
        4.5, "release", "released", is_kept=False
    ),
    "39 postponed after an effect": lambda m, s: (
        (o := accepted(m, dispatched=True)).send(4.1, 3, "n2"),
        o.say(4.5, "postpone", "accepted"),
    ),
    "40 dispatched before its turn": lambda m, s: lane(m, 2, 3)[1].claim(4.0, 4, event="dispatch"),
    "41 an event is missing": lambda m, s: m.events.pop(),
    "42 claimed in another region": lambda m, s: (
        at_home(m),
        m.changes.insert(0, replace(m.changes.pop(0), region="eu")),
    ),
    "43 a home that was not reached is said to know": lambda m, s: forwarded(m, s, "in-doubt"),
}


def reports(made: History, invariant: str) -> bool:
    return any(line.startswith(f"{invariant}_") for line in audit(made))


@pytest.mark.parametrize("name", SPOILS)
def test_a_broken_invariant_is_reported(name: str) -> None:
    made, scribe = well()
    SPOILS[name](made, scribe)
    assert reports(made, name[:2]), audit(made)


def test_every_check_can_fail() -> None:
    assert {check.__name__.split("_")[1] for check in CHECKS} == {name[:2] for name in SPOILS}


def test_a_history_in_which_all_is_well_is_not_reported() -> None:
    assert audit(well()[0]) == []


def test_the_auditor_shares_nothing_with_the_program() -> None:
    """Neither the auditor nor what it reads imports anything of the gateway."""
    files = [Path(auditor.__file__), Path(history.__file__), *Path(audit_package.__file__).parent.glob("*.py")]
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            allowed = ("tests.simulation.audit", "tests.simulation.history")
            ours = [name for name in names if name.split(".")[0] in ("gateway", "tests")]
            assert all(name.startswith(allowed) for name in ours), f"{path.name} imports {names}"
