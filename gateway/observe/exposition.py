"""How numbers are written for a scrape: families of Prometheus, and what the system says of the processes.

The only importer of `prometheus_client`, which is used to write the exposition formats and nothing else. What is
counted is `metrics`' to know.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from gateway.observe.merging import Rows, Rule, Tables, Values, merge_rows, merge_values
from gateway.observe.series import SECONDS_BOUNDS, Histogram, Numbers

_LE: Final = (*map(str, SECONDS_BOUNDS), "+Inf")


@dataclass(frozen=True, slots=True)
class Exposition:
    """An answer to a scrape."""

    content_type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Family:
    """A counter or a gauge."""

    name: str
    help: str
    table: Numbers
    rule: Rule
    is_counter: bool

    def taken(self) -> Callable[[], Metric]:
        """What writes the family as it is now."""
        return partial(self._written, self.table.copy())

    def merged(self, others: Sequence[Tables]) -> Callable[[], Metric]:
        """What writes the family of several workers, with what they say of it."""
        tables = [other.get(self.name, {}) for other in others]
        return partial(self._written, merge_values(self.rule, self.table.copy(), tables))

    def packed(self) -> Rows:
        """What is not 0."""
        return {labels: [value] for labels, value in self.table.values.items() if value}

    def absorb(self, rows: Rows) -> None:
        """Go on counting from where another process ended. A gauge ends with its process."""
        if self.is_counter:
            for labels, (value,) in rows.items():
                self.table.add(labels, value)

    def _written(self, values: Values) -> Metric:
        kind = CounterMetricFamily if self.is_counter else GaugeMetricFamily
        metric = kind(self.name, self.help, labels=self.table.label_names)
        for labels, value in values.items():
            metric.add_metric(labels, value)
        return metric


@dataclass(frozen=True, slots=True)
class HistogramFamily:
    """A histogram."""

    name: str
    help: str
    table: Histogram

    def taken(self) -> Callable[[], Metric]:
        """What writes the family as it is now."""
        return partial(self._written, self.table.copy())

    def merged(self, others: Sequence[Tables]) -> Callable[[], Metric]:
        """What writes the family of several workers, with what they say of it."""
        tables = [other.get(self.name, {}) for other in others]
        return partial(self._written, merge_rows(self.table.copy(), tables))

    def packed(self) -> Rows:
        """What is not 0."""
        return {labels: list(row) for labels, row in self.table.rows.items() if any(row)}

    def absorb(self, rows: Rows) -> None:
        """Go on counting from where another process ended."""
        self.table.rows = merge_rows(self.table.rows, [rows])

    def _written(self, rows: Rows) -> Metric:
        metric = HistogramMetricFamily(self.name, self.help, labels=self.table.label_names)
        for labels, (*counts, total) in rows.items():
            below = 0.0
            buckets = [(le, below := below + count) for le, count in zip(_LE, counts, strict=True)]
            metric.add_metric(labels, buckets, total)
        return metric


class _Taken(Collector):
    """The families of one scrape, and what the system says of the process and of its workers."""

    def __init__(self, taken: list[Callable[[], Metric]], pids: Sequence[int]) -> None:
        self._taken = taken
        self._pids = pids

    def collect(self) -> Iterator[Metric]:
        for written in self._taken:
            yield written()
        yield from _process_families(self._pids)


def _process_families(pids: Sequence[int]) -> Iterator[Metric]:
    """What the system says of this process, the living workers added, and the processor time of those that ended."""
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


def encode(taken: list[Callable[[], Metric]], accept: str, pids: Sequence[int] = ()) -> Exposition:
    """Everything in the format that an `Accept` field asks for. Takes its time with a thousand routes.

    `pids` are the workers of this process.
    """
    write, content_type = choose_encoder(accept)
    return Exposition(content_type, write(_Taken(taken, pids)))
