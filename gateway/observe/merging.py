"""What several workers counted, as one gateway's numbers.

Owns the rules by which equal tables of several processes become one; knows nothing of what is measured. Tables that
travel leave out what is 0, because most of what may be counted never happens.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto

from gateway.observe.series import Labels

Values = dict[Labels, float]
Rows = dict[Labels, list[float]]
Tables = dict[str, Rows]
"""The numbers of one process: by metric, then by label values. A row of a counter or a gauge is one number."""


class Rule(Enum):
    """How the numbers of several workers become one."""

    SUM = auto()
    """Each worker has its own part of it."""
    MAX = auto()
    """Each worker says it of something that they share, or it is the worst that counts."""
    MIN = auto()
    """It holds only where it holds for every worker."""
    OWN = auto()
    """Workers do not know it: the supervisor's own number stands."""


def merge_values(rule: Rule, own: Values, others: Iterable[Rows]) -> Values:
    """The numbers of a gauge or counter. `own` are the supervisor's, which names those that are always there."""
    tables = list(others)
    if rule is Rule.OWN or not tables:
        return own
    merged = dict(own)
    for labels in own.keys() | {labels for table in tables for labels in table}:
        numbers = [table[labels][0] if labels in table else 0.0 for table in tables]
        match rule:
            case Rule.SUM:
                merged[labels] = own.get(labels, 0.0) + sum(numbers)
            case Rule.MAX:
                merged[labels] = max(own.get(labels, 0.0), *numbers)
            case Rule.MIN:
                merged[labels] = min(numbers)
    return merged


def merge_rows(own: Rows, others: Iterable[Rows]) -> Rows:
    """The rows of a histogram, which are sums throughout."""
    merged = {labels: list(row) for labels, row in own.items()}
    for table in others:
        for labels, row in table.items():
            before = merged.get(labels)
            merged[labels] = list(row) if before is None else [a + b for a, b in zip(before, row, strict=True)]
    return merged
