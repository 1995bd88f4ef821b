"""Metric families: kept in tables, merged over workers, and written for Prometheus.

Knows nothing of what is measured. `prometheus_client` writes the formats; its own counters are not used. Its
multiprocess counters lie in memory-mapped files: when the disk is full, the process dies by SIGBUS, and a request costs
20 µs more. Its counters of one process cannot be sent to a supervisor without blocking the event loop: 35 ms for a
hundred routes, where these tables take 0.3 ms.

Only the event loop changes a family, so it needs no lock. A thread writes the scrape, from rows that may change
meanwhile: what is counted then may or may not be in it.
"""

from __future__ import annotations

import resource
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from itertools import product

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

Labels = tuple[str, ...]
"""The values of the labels, in the order of their names."""
Rows = dict[Labels, list[float]]
"""The numbers of a family. A row of a counter or a gauge has one."""
Counted = dict[str, Rows]
"""The numbers of one process, by family, without those that count nothing yet, which most do."""


class Rule(Enum):
    """How the values of several workers are merged."""

    SUM = auto()
    """Each worker has its own part."""
    MAX = auto()
    """All workers measure the same thing, or the worst value counts."""
    MIN = auto()
    """It holds only if it holds for every worker."""
    OWN = auto()
    """Only the supervisor knows it."""


class Family:
    """The series of one metric. `labels` has for each label the values that exist from the start, at 0."""

    rule = Rule.SUM

    def __init__(self, name: str, text: str, labels: Mapping[str, Iterable[str]]) -> None:
        self.name = name
        self.text = text
        self.label_names = tuple(labels)
        self._labels = {name: tuple(values) for name, values in labels.items()}
        self.rows: Rows = {}
        self.add_rows()

    def add_rows(self, **more: Iterable[str]) -> None:
        """Have the series of these further values of a label from now on, at 0."""
        labels = {**self._labels, **{name: tuple(values) for name, values in more.items()}}
        for values in product(*labels.values()):
            self.rows.setdefault(values, self._zeros())

    def packed(self) -> Rows:
        """The rows that are not 0: to count nothing and not to be there come to the same."""
        return {labels: list(row) for labels, row in self.rows.items() if any(row)}

    def absorb(self, rows: Rows) -> None:
        """Add the numbers of a process that ended."""
        for labels, row in rows.items():
            own = self.rows.get(labels)
            self.rows[labels] = list(row) if own is None else [a + b for a, b in zip(own, row, strict=True)]

    def merged(self, rows: Rows, others: Sequence[Rows]) -> Rows:
        """A supervisor's numbers, which are 0 where only workers count, merged with those of its workers."""
        if self.rule is Rule.OWN:
            return rows
        zeros, rows = self._zeros(), dict(rows)
        for labels in dict.fromkeys(labels for other in others for labels in other):
            of_workers = [other.get(labels, zeros) for other in others]
            if self.rule is Rule.MIN:
                rows[labels] = list(map(min, zip(*of_workers, strict=True)))
            else:
                combine = sum if self.rule is Rule.SUM else max
                rows[labels] = list(map(combine, zip(rows.get(labels, zeros), *of_workers, strict=True)))
        return rows

    def written(self, rows: Rows) -> Metric:
        """The rows as a metric of `prometheus_client`."""
        raise NotImplementedError

    def _zeros(self) -> list[float]:
        return [0.0]


class Counter(Family):
    """Only grows."""

    def add(self, *labels: str, amount: float = 1.0) -> None:
        row = self.rows.get(labels)
        if row is None:
            row = self.rows[labels] = [0.0]
        row[0] += amount

    def written(self, rows: Rows) -> Metric:
        metric = CounterMetricFamily(self.name, self.text, labels=self.label_names)
        for labels, (value,) in rows.items():
            metric.add_metric(labels, value)
        return metric


class Gauge(Family):
    """Goes up and down, and ends with its process."""

    def __init__(self, name: str, text: str, labels: Mapping[str, Iterable[str]], rule: Rule) -> None:
        super().__init__(name, text, labels)
        self.rule = rule

    def put(self, value: float, *labels: str) -> None:
        self.rows[labels] = [float(value)]

    def put_all(self, values: Mapping[Labels, float]) -> None:
        """Put these values, and 0 for all others."""
        for labels in self.rows:
            self.rows[labels] = [float(values.get(labels, 0))]
        for labels, value in values.items():
            self.rows[labels] = [float(value)]

    def packed(self) -> Rows:
        """All rows: a supervisor knows the labels of some from workers alone, and one that is 0 must not vanish."""
        return {labels: list(row) for labels, row in self.rows.items()}

    def absorb(self, rows: Rows) -> None:
        """A gauge ends with its process."""

    def written(self, rows: Rows) -> Metric:
        metric = GaugeMetricFamily(self.name, self.text, labels=self.label_names)
        for labels, (value,) in rows.items():
            metric.add_metric(labels, value)
        return metric


class Histogram(Family):
    """Durations in seconds. A row has the count of each bucket, not cumulated, and ends with the sum."""

    def __init__(self, name: str, text: str, labels: Mapping[str, Iterable[str]], bounds: Sequence[float]) -> None:
        self._bounds = bounds
        super().__init__(name, text, labels)

    def observe(self, seconds: float, *labels: str) -> None:
        row = self.rows.get(labels)
        if row is None:
            row = self.rows[labels] = self._zeros()
        row[bisect_left(self._bounds, seconds)] += 1.0
        row[-1] += seconds

    def written(self, rows: Rows) -> Metric:
        metric = HistogramMetricFamily(self.name, self.text, labels=self.label_names)
        le = (*map(str, self._bounds), "+Inf")
        for labels, (*counts, total) in rows.items():
            below = 0.0
            buckets = [(bound, below := below + count) for bound, count in zip(le, counts, strict=True)]
            metric.add_metric(labels, buckets, total)
        return metric

    def _zeros(self) -> list[float]:
        return [0.0] * (len(self._bounds) + 2)


Taken = tuple[Family, Rows, Sequence[Rows]]
"""A family as of one moment: its own rows, and those of each worker."""


@dataclass(frozen=True, slots=True)
class Exposition:
    """The response to a scrape."""

    content_type: str
    body: bytes


def encode(families: Sequence[Taken], accept: str, pids: Sequence[int]) -> Exposition:
    """All families in the format that an `Accept` header asks for. Slow with a thousand routes.

    `pids` are the worker processes of this one.
    """
    write, content_type = choose_encoder(accept)
    return Exposition(content_type, write(_Scrape(families, pids)))


class _Scrape(Collector):
    """The families of one scrape, and what the system reports about the process and its workers."""

    def __init__(self, families: Sequence[Taken], pids: Sequence[int]) -> None:
        self._families = families
        self._pids = pids

    def collect(self) -> Iterator[Metric]:
        for family, rows, others in self._families:
            yield family.written(family.merged(rows, others))
        yield from _process_families(self._pids)


def _process_families(pids: Sequence[int]) -> Iterator[Metric]:
    """What the system reports about this process and its workers, and the CPU time of workers that ended."""
    families = {family.name: family for family in ProcessCollector(registry=None).collect()}
    for pid in pids:
        for family in ProcessCollector(pid=partial(int, pid), registry=None).collect():
            if family.name != "process_start_time_seconds" and family.name in families:
                _add_to(families[family.name], family.samples[0].value)
    if "process_cpu_seconds" in families:
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        _add_to(families["process_cpu_seconds"], ended.ru_utime + ended.ru_stime)
    yield from families.values()


def _add_to(family: Metric, value: float) -> None:
    sample = family.samples[0]
    family.samples[0] = sample._replace(value=sample.value + value)
