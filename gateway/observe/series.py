"""Numbers with labels: counters, gauges and histograms as plain tables.

Owns how a measurement is kept, and refuses to know what is measured or how it is written out. Invariant: a table is
changed and copied by the event loop alone, so neither needs a lock; a copy belongs to whoever took it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import product
from typing import Final

Labels = tuple[str, ...]
"""The values of the labels, in the order of their names."""

# From a replay out of memory to an upstream that is given up on: a factor of about 2.5 from one to the next.
_MILLISECONDS: Final = (0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000, 300_000)
SECONDS_BOUNDS: Final = tuple(bound / 1000 for bound in _MILLISECONDS)


class Numbers:
    """A number for each combination of label values.

    `labels` has for each label the values that are there from the beginning, at 0; others come when they are counted.
    """

    __slots__ = ("label_names", "values")

    def __init__(self, labels: Mapping[str, Iterable[str]]) -> None:
        self.label_names = tuple(labels)
        self.values: dict[Labels, float] = dict.fromkeys(product(*labels.values()), 0.0)

    def add(self, labels: Labels = (), amount: float = 1.0) -> None:
        self.values[labels] = self.values.get(labels, 0.0) + amount

    def put(self, labels: Labels, value: float) -> None:
        self.values[labels] = value

    def copy(self) -> dict[Labels, float]:
        """The numbers as they are now."""
        return dict(self.values)


class Histogram:
    """A histogram of seconds for each combination of label values; `labels` as in `Numbers`.

    A row counts the observations up to each bound and above the one before it, then those beyond the last, and ends
    with their sum.
    """

    __slots__ = ("label_names", "rows")

    def __init__(self, labels: Mapping[str, Iterable[str]]) -> None:
        self.label_names = tuple(labels)
        self.rows: dict[Labels, list[float]] = {values: _empty_row() for values in product(*labels.values())}

    def observe(self, labels: Labels, seconds: float) -> None:
        row = self.rows.get(labels)
        if row is None:
            row = self.rows[labels] = _empty_row()
        row[bisect_left(SECONDS_BOUNDS, seconds)] += 1.0
        row[-1] += seconds

    def copy(self) -> dict[Labels, list[float]]:
        """The rows as they are now."""
        return {labels: list(row) for labels, row in self.rows.items()}


def _empty_row() -> list[float]:
    return [0.0] * (len(SECONDS_BOUNDS) + 2)
