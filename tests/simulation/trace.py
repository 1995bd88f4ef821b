"""What happened to some operations, line by line in the order of time: for whoever has to understand a failing seed."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.simulation.audit.case import Case
from tests.simulation.history import History

_OPERATION = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")
_CALL = re.compile(r"calls? \[?(\d+)")


def trace(history: History, faults: list[str]) -> list[str]:
    """The lines of the operations and calls that the faults name."""
    case = Case(history)
    named = {found for fault in faults for found in _OPERATION.findall(fault)}
    numbers = {int(found) for fault in faults for found in _CALL.findall(fault)}
    subjects = {history.calls[number].subject for number in numbers}
    for subject, operation_ids in case.operations.items():
        if named & operation_ids:
            subjects.add(subject)
    for subject in subjects:
        named |= case.operations.get(subject, set())
    for number in numbers:
        named |= {sent.operation_id for sent in case.by_call.get(number, ())}
    told = (
        _changes(history, named),
        _sent(history, named, subjects),
        _forwards(history, subjects),
        _calls(history, subjects),
        _faults(history),
    )
    lines = sorted(line for part in told for line in part)
    return [f"{at:10.4f} {line}" for at, _, line in lines]


_Line = tuple[float, int, str]


def _changes(history: History, named: set[str]) -> Iterator[_Line]:
    for change in history.changes:
        if change.operation_id in named:
            before, after = change.before, change.after
            yield (
                change.at,
                2,
                f"{change.operation_id[:8]} {change.event} by {change.gateway}: "
                f"{before.state if before else 'absent'} -> {after.state if after else 'absent'}"
                f"{f' token {after.token} of {after.holder} nonce {after.nonce}' if after else ''}",
            )
    for call in history.store_calls:
        if call.operation_id in named:
            yield (
                call.begun,
                1,
                f"{call.operation_id[:8]} {call.gateway} asks {call.verb} (executed {call.executed}, acknowledged "
                f"{call.acknowledged}, {call.result}{call.failure})",
            )


def _sent(history: History, named: set[str], subjects: set[tuple[str, str, str]]) -> Iterator[_Line]:
    for sent in history.sent:
        if sent.operation_id in named or sent.subject in subjects or sent.target.partition("=")[2] in named:
            yield (
                sent.sent,
                3,
                f"{sent.operation_id[:8]} {sent.gateway} sends {sent.method} for call {sent.call} under token "
                f"{sent.token} (received {sent.received}, effect {sent.effect}, answered {sent.answered} {sent.status} "
                f"{sent.nonce} cut {sent.cut} body {sent.body!r})",
            )


def _forwards(history: History, subjects: set[tuple[str, str, str]]) -> Iterator[_Line]:
    for forward in history.forwards:
        if forward.sent is not None and forward.call is not None and history.calls[forward.call].subject in subjects:
            yield (
                forward.sent,
                3,
                f"call {forward.call}: {forward.gateway} sends it to {forward.home} (answered {forward.answered})",
            )


def _calls(history: History, subjects: set[tuple[str, str, str]]) -> Iterator[_Line]:
    for call in history.calls:
        if call.subject in subjects:
            yield call.begun, 0, f"call {call.number} {call.subject} at {call.gateway} {call.body!r}"
            answer = call.answer
            if call.ended is not None:
                said = (
                    "nothing"
                    if answer is None
                    else f"{answer.status} {answer.verdict} {answer.nonce} {'whole' if answer.is_whole else 'broken'}"
                )
                yield call.ended, 4, f"call {call.number} got {said} (left gateway {call.left_gateway})"


def _faults(history: History) -> Iterator[_Line]:
    for fault in history.faults:
        yield fault.at, 5, f"FAULT {fault.kind} {fault.gateway or ''} until {fault.until:.3f} {fault.detail}"
    for life in history.lives:
        if life.ended is not None:
            yield life.ended, 5, f"LIFE of {life.holder} {life.ending}, unsaid {life.unsaid}"
