"""All interleavings of truthful actors on one kept request: it is never sent beside a possible effect.

The actors know what they say. A holder that reports "no effect" had none, a probe that finds nothing is right, and a
service may execute what was sent to it at any later moment. The model adds to the record what no gateway can see:
what became of each attempt.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum, auto

import pytest

from gateway.core import lifecycle
from gateway.core.lifecycle import Row, due_us, settle, step
from gateway.core.operation import Applied, Event, Record, Snapshot, State
from tests.conformance.hand import Hand, Script, Speech
from tests.core.rows import rows
from tests.support.memory_store import EPOCH_US

SCRIPT = Script()
ATTEMPTS_MAX = 3
# The states that promise that nothing happened, and that nothing can happen any more.
NO_EFFECT = (State.ACCEPTED, State.DEAD_LETTER, State.RELEASED)
# What may drop a kept request: its result is known, or somebody decided.
DROPPING = (Event.COMPLETE, Event.PROVE, Event.DISPROVE, Event.WITHDRAW)
ENDS = (State.COMPLETED, State.TOMBSTONE, State.RELEASED)


class Truth(Enum):
    """What became of an attempt."""

    UNSENT = auto()  # its holder has sent nothing, and may
    SENT = auto()  # the service may execute it
    EXECUTED = auto()
    HARMLESS = auto()  # it had no effect and cannot have one any more


Kind = tuple[object, ...]

OPEN = (Truth.SENT, Truth.EXECUTED)


@dataclass(frozen=True)
class World:
    """The record, and the truth about its attempts, oldest first."""

    record: Record | None
    truths: tuple[Truth, ...]

    @property
    def kind(self) -> Kind:
        """What makes two worlds alike to everybody in them."""
        record = self.record
        if record is None:
            return (None, self.truths)
        delivery = record.delivery
        return (
            record.state, record.last_event, record.carries_doubt, delivery is not None,
            len(self.truths) - record.attempts, self.truths,
        )  # fmt: skip

    @property
    def may_have_effect(self) -> bool:
        return any(truth in OPEN for truth in self.truths)


def worlds(*, resends: bool) -> dict[Kind, World]:
    """Every kind of world that truthful actors can come to, from an accepted request on. Checks each step."""
    start = World(_said(None, Hand.accept, EPOCH_US), ())
    found, edge, before = {start.kind: start}, [start], dict[Kind, set[Kind]]()
    while edge:
        world = edge.pop()
        for after in _steps(world, resends=resends):
            check(world, after)
            before.setdefault(after.kind, set()).add(world.kind)
            if after.kind not in found:
                found[after.kind] = after
                edge.append(after)
    assert found.keys() == _leading_to_an_end(found, before), "an end cannot be reached from everywhere"
    return found


def check(world: World, after: World) -> None:
    """What must hold of each step."""
    was, record = world.record, after.record
    if record is None:
        assert was is None or was.state in ENDS
        return
    if record.state in NO_EFFECT:
        assert not after.may_have_effect, f"{record.state} after {record.last_event} beside a possible effect"
    if len(after.truths) > len(world.truths):
        assert record.carries_doubt or not world.may_have_effect, "sent beside a possible effect"
    if was is not None and was.delivery is not None and record.delivery is None:
        assert record.last_event in DROPPING, "the kept request is lost"


def _leading_to_an_end(found: dict[Kind, World], before: dict[Kind, set[Kind]]) -> set[Kind]:
    """The kinds of worlds from which one in which everything is known can be reached."""
    edge = [kind for kind, world in found.items() if world.record is None or world.record.state in ENDS]
    leading = set(edge)
    while edge:
        new = before.get(edge.pop(), set()) - leading
        leading |= new
        edge += new
    return leading


def _steps(world: World, *, resends: bool) -> Iterator[World]:
    record, truths = world.record, world.truths
    for index, truth in enumerate(truths):
        # The service, and whoever held the claim of an attempt that was not sent.
        if truth is Truth.SENT:
            yield replace(world, truths=_with(truths, index, Truth.EXECUTED))
            yield replace(world, truths=_with(truths, index, Truth.HARMLESS))
    if record is None:
        return
    if (due := due_us(record)) is not None:
        # A holder whose lease is over sends nothing any more.
        is_over = record.state is State.CLAIMED and truths[-1] is Truth.UNSENT
        yield World(settle(record, due), _with(truths, len(truths) - 1, Truth.HARMLESS) if is_over else truths)
    yield from _by_holder(record, truths)
    yield from _after(record, truths, Hand.withdraw, Hand.requeue)
    if record.state is State.IN_DOUBT:
        # A probe is right, and says "nothing" only once nothing can arrive any more.
        if Truth.EXECUTED in truths:
            yield from _after(record, truths, Hand.prove)
        elif Truth.SENT not in truths:
            yield from _after(record, truths, Hand.reinstate, Hand.disprove)
    if len(truths) < ATTEMPTS_MAX:
        if resends and record.state is State.IN_DOUBT:
            yield from _after(record, (*truths, Truth.UNSENT), Hand.takeover)
        next_us = EPOCH_US if record.delivery is None else record.delivery.next_attempt_us
        yield from _after(record, (*truths, Truth.UNSENT), Hand.dispatch, now_us=next_us)


def _by_holder(record: Record, truths: tuple[Truth, ...]) -> Iterator[World]:
    """What the last attempt's holder can do: send while it holds the claim, and report what it knows at any time."""
    if not truths:
        return
    last = len(truths) - 1
    if truths[last] is Truth.UNSENT and record.state is State.CLAIMED:
        yield World(record, _with(truths, last, Truth.SENT))
    known: list[Speech] = []
    if truths[last] in (Truth.UNSENT, Truth.HARMLESS):
        known = [Hand.postpone, Hand.bury, Hand.release, Hand.forget]
    if truths[last] is Truth.EXECUTED:
        known = [Hand.complete]
    # Whoever reports that it sent nothing sends nothing any more.
    done = Truth.HARMLESS if truths[last] is Truth.UNSENT else truths[last]
    yield from _after(record, _with(truths, last, done), *known, Hand.abandon)


def _after(record: Record, truths: tuple[Truth, ...], *speeches: Speech, now_us: int = EPOCH_US) -> Iterator[World]:
    """The worlds with these truths after each of the commands that has a row."""
    for say in speeches:
        if (after := _said(record, say, now_us)) is not None:
            yield World(after, truths)


def _with(truths: tuple[Truth, ...], index: int, truth: Truth) -> tuple[Truth, ...]:
    return (*truths[:index], truth, *truths[index + 1 :])


def _said(record: Record | None, say: Speech, now_us: int = EPOCH_US) -> Record | None:
    """The record after the command, said by who is entitled to it; None where the table has no row for it."""
    hand = Hand(SCRIPT, attempts=0 if record is None else record.attempts + 1)
    if record is not None:
        hand.look(Snapshot(record, now_us))
    result, after = step(record, say(hand), now_us, lambda: 1 if record is None else record.token + 1)
    return after if isinstance(result, Applied) and after is not record else None


@pytest.mark.parametrize("resends", [False, True], ids=["hold", "resend"])
def test_no_interleaving_sends_a_kept_request_beside_a_possible_effect(resends: bool) -> None:
    """What is accepted, released or a dead letter had no effect, what is kept is not lost, and everything can end."""
    states = {world.record.state for world in worlds(resends=resends).values() if world.record is not None}
    assert states == set(State) - {State.ABSENT}


def planted(event: Event, **changes: object) -> dict[tuple[State, Event], Row]:
    """The table with every row of this event changed."""
    return {
        (state, its): replace(row, **changes) if its is event else row  # type: ignore[arg-type]
        for (state, its), row in lifecycle.ROWS.items()
    }


@rows(
    "event, changes",
    postpone_under_doubt=(Event.POSTPONE, {"refused_under_doubt": False}),
    bury_under_doubt=(Event.BURY, {"refused_under_doubt": False}),
    release_of_a_kept_request=(Event.RELEASE, {"kept": None}),
)
def test_a_weaker_table_is_caught(event: Event, changes: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """The interleavings are enough to show what each of these conditions is for."""
    monkeypatch.setattr(lifecycle, "ROWS", planted(event, **changes))
    with pytest.raises(AssertionError):
        worlds(resends=True)
