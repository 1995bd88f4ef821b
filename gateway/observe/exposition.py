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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, product

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from gateway.observe.facts import Labels, Row, Rule
from gateway.observe.facts import Metric as Declared

Rows = dict[Labels, Row]
"""The numbers of a family. A row of a counter or a gauge has one."""
Counted = dict[str, Rows]
"""The numbers of one process, by family, without those that count nothing yet, which most do."""


class Family:
    """The series of one metric. `labels` has for each label the values that exist from the start, at 0.

    A counter only grows. A gauge goes up and down, and ends with its process. The row of a histogram has the count of
    each bucket, not cumulated, and ends with the sum.
    """

    def __init__(self, metric: Declared, labels: Mapping[str, Iterable[str]]) -> None:
        self.name, self.text, _, self._rule, self._bounds = metric
        self.label_names = tuple(labels)
        self._labels = {name: tuple(values) for name, values in labels.items()}
        self.rows: Rows = {}
        self.add_rows()

    @property
    def is_summed(self) -> bool:
        """Whether the numbers of several gateways are one sum."""
        return self._rule in (None, Rule.SUM)

    def add_rows(self, **more: Iterable[str]) -> None:
        """Have the series of these further values of a label from now on, at 0."""
        labels = {**self._labels, **{name: tuple(values) for name, values in more.items()}}
        for values in product(*labels.values()):
            self.row(values)

    def row(self, labels: Labels) -> Row:
        """The numbers of a series, which stay where they are as long as the family has it."""
        row = self.rows.get(labels)
        if row is None:
            row = self.rows[labels] = self._zeros()
        return row

    def take(self, numbers: Mapping[Labels, float]) -> None:
        """Count these numbers, or put them; other series of a gauge are then 0."""
        if self._rule is not None:
            numbers = {**dict.fromkeys(self.rows, 0.0), **numbers}
        for labels, number in numbers.items():
            row = self.row(labels)
            row[0] = float(number) + (row[0] if self._rule is None else 0.0)

    def packed(self) -> Rows:
        """The rows that are not 0: to count nothing and not to be there come to the same. Of a gauge all: a supervisor
        knows the labels of some from workers alone, and one that is 0 must not vanish."""
        return {labels: list(row) for labels, row in self.rows.items() if self._rule is not None or any(row)}

    def absorb(self, rows: Rows) -> None:
        """Add the numbers of a process that ended. A gauge ends with it."""
        for labels, row in rows.items() if self._rule is None else ():
            own = self.row(labels)
            own[:] = [a + b for a, b in zip(own, row, strict=True)]

    def merged(self, rows: Rows, others: Sequence[Rows]) -> Rows:
        """A supervisor's numbers, which are 0 where only workers count, merged with those of its workers."""
        if self._rule is Rule.OWN:
            return rows
        zeros, rows = self._zeros(), dict(rows)
        for labels in dict.fromkeys(labels for other in others for labels in other):
            of_workers = [other.get(labels, zeros) for other in others]
            if self._rule is Rule.MIN:
                rows[labels] = list(map(min, zip(*of_workers, strict=True)))
            else:
                combine = max if self._rule is Rule.MAX else sum
                rows[labels] = list(map(combine, zip(rows.get(labels, zeros), *of_workers, strict=True)))
        return rows

    def written(self, rows: Rows) -> Metric:
        """The rows as a metric of `prometheus_client`."""
        if self._bounds:
            histogram = HistogramMetricFamily(self.name, self.text, labels=self.label_names)
            le = (*map(str, self._bounds), "+Inf")
            for labels, (*counts, total) in rows.items():
                histogram.add_metric(labels, list(zip(le, accumulate(counts), strict=True)), total)
            return histogram
        kind = CounterMetricFamily if self._rule is None else GaugeMetricFamily
        metric = kind(self.name, self.text, labels=self.label_names)
        for labels, (value,) in rows.items():
            metric.add_metric(labels, value)
        return metric

    def _zeros(self) -> Row:
        return [0.0] * (len(self._bounds) + 2 if self._bounds else 1)


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
