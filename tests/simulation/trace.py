"""What happened to some operations, line by line in the order of time: for whoever has to understand a failing seed."""

from __future__ import annotations

import re

from tests.simulation.audit.case import Case
from tests.simulation.history import History

_OPERATION = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")
_CALL = re.compile(r"calls? \[?(\d+)")
# What is told of whom the faults name, and of whatever else goes on, by its moment. At one moment it is in this order.
_OF_SOMEBODY = {"calls": "begun", "store_calls": "begun", "changes": "at", "sent": "sent"}
_OF_ALL = {"faults": "at", "lives": "began"}


def trace(history: History, faults: list[str]) -> list[str]:
    """The lines of the operations and calls that the faults name."""
    case = Case(history)
    named = {found for fault in faults for found in _OPERATION.findall(fault)}
    numbers = {int(found) for fault in faults for found in _CALL.findall(fault)}
    subjects = {history.calls[number].subject for number in numbers}
    subjects |= {subject for subject, operation_ids in case.operations.items() if named & operation_ids}
    named = named.union(*(case.operations.get(subject, set()) for subject in subjects))
    named |= {sent.operation_id for number in numbers for sent in case.by_call.get(number, ())}

    def is_named(each: object) -> bool:
        return getattr(each, "operation_id", None) in named or getattr(each, "subject", None) in subjects

    told = [
        (getattr(each, moment), repr(each))
        for kind, moment in (_OF_SOMEBODY | _OF_ALL).items()
        for each in getattr(history, kind)
        if kind in _OF_ALL or is_named(each)
    ]
    told += [
        (forward.sent, repr(forward))
        for forward in history.forwards
        if forward.sent is not None and forward.call is not None and is_named(history.calls[forward.call])
    ]
    return [f"{at:10.4f} {line}" for at, line in sorted(told, key=lambda each: each[0])]
