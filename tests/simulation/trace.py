"""What happened to some operations, line by line in the order of time: for whoever has to understand a failing seed."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.simulation.audit.case import Case, Subject, state_of
from tests.simulation.history import History

_OPERATION = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")
_CALL = re.compile(r"calls? \[?(\d+)")


def trace(history: History, faults: list[str]) -> list[str]:
    """The lines of the operations and calls that the faults name."""
    case = Case(history)
    named = {found for fault in faults for found in _OPERATION.findall(fault)}
    numbers = {int(found) for fault in faults for found in _CALL.findall(fault)}
    subjects = {history.calls[number].subject for number in numbers}
    subjects |= {subject for subject, operation_ids in case.operations.items() if named & operation_ids}
    named = named.union(*(case.operations.get(subject, set()) for subject in subjects))
    named |= {sent.operation_id for number in numbers for sent in case.by_call.get(number, ())}
    told = [*_asked(history, subjects), *_done(history, named, subjects)]
    told += [(fault.at, 5, repr(fault)) for fault in history.faults]
    told += [(life.ended or history.ended, 5, repr(life)) for life in history.lives]
    return [f"{at:10.4f} {line}" for at, _, line in sorted(told)]


_Line = tuple[float, int, str]
"""With its moment, and what decides where several fall on one."""


def _asked(history: History, subjects: set[Subject]) -> Iterator[_Line]:
    for call in history.calls:
        if call.subject in subjects:
            yield call.begun, 0, f"call {call.number} {call.subject} at {call.gateway} {call.body!r}"
            if call.ended is not None:
                yield call.ended, 4, f"call {call.number} got {call.answer} (left gateway {call.left_gateway})"
    for forward in history.forwards:
        if forward.sent is not None and forward.call is not None and history.calls[forward.call].subject in subjects:
            yield forward.sent, 3, repr(forward)


def _done(history: History, named: set[str], subjects: set[Subject]) -> Iterator[_Line]:
    for asked in history.store_calls:
        if asked.operation_id in named:
            yield asked.begun, 1, repr(asked)
    for change in history.changes:
        if change.operation_id in named:
            what = f"{change.operation_id[:8]} {change.event} by {change.gateway}"
            yield change.at, 2, f"{what}: {state_of(change.before)} -> {change.after or 'absent'}"
    for sent in history.sent:
        if sent.operation_id in named or sent.subject in subjects or sent.target.partition("=")[2] in named:
            yield sent.sent, 3, repr(sent)
