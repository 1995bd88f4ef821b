"""The metrics of this process: what events change, what is read at each scrape, and what is put directly.

Nothing is global: each `Metrics` has its own families, and one process may have several. Each worker counts for itself
and sends its numbers to its supervisor (`take`), which writes them as one gateway's; the counts of a worker that ended
stay (`absorb`).
"""

from __future__ import annotations

import asyncio
import platform
import resource
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from itertools import accumulate, product
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from gateway.observe.facts import (
    METRICS,
    Change,
    Configured,
    Counting,
    Fact,
    Labels,
    Read,
    Row,
    Rule,
    Series,
    condition,
    declare,
)
from gateway.observe.facts import Metric as Declared

# -- exposition --------------------------------------------------------------------------------------------------------
# Metric families: kept in tables, merged over workers, and written for Prometheus.
#
# `prometheus_client` writes the formats; its own counters are not used. Its multiprocess counters lie in memory-mapped
# files: when the disk is full, the process dies by SIGBUS, and a request costs 20 µs more. Its counters of one process
# cannot be sent to a supervisor without blocking the event loop: 35 ms for a hundred routes, where these take 0.3 ms.
#
# Only the event loop changes a family, so it needs no lock. A thread writes the scrape, from rows that may change
# meanwhile: what is counted then may or may not be in it.

Rows = dict[Labels, Row]
"""The numbers of a family. A row of a counter or a gauge has one."""
Counted = dict[str, Rows]
"""The numbers of one process, by family, without those that count nothing yet, which most do."""


class Family:
    """The series of one metric. `labels` has for each label the values that exist from the start, at 0. A counter only
    grows. A gauge goes up and down, and ends with its process. The row of a histogram has the count of each bucket, not
    cumulated, and ends with the sum."""

    def __init__(self, metric: Declared, labels: Mapping[str, Iterable[str]]) -> None:
        self.name, self.text, _, self._rule, self._bounds = metric
        self.label_names = tuple(labels)
        self._labels = {name: tuple(values) for name, values in labels.items()}
        self.rows: Rows = {}
        self.add_rows()

    @property
    def is_counter(self) -> bool:
        return self._rule is None

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

    def take(self, numbers: Mapping[Labels, float], *, is_put: bool) -> None:
        """Count these numbers; or put them, and other series are then 0."""
        if is_put:
            numbers = {**dict.fromkeys(self.rows, 0.0), **numbers}
        for labels, number in numbers.items():
            row = self.row(labels)
            row[0] = float(number) + (0.0 if is_put else row[0])

    def packed(self) -> Rows:
        """The rows that are not 0: to count nothing and not to be there come to the same. Of a gauge all: a supervisor
        knows the labels of some from workers alone, and one that is 0 must not vanish."""
        return {labels: list(row) for labels, row in self.rows.items() if self._rule is not None or any(row)}

    def merged(self, rows: Rows, others: Sequence[Rows]) -> Rows:
        """A supervisor's numbers, which are 0 where only workers count, merged with those of others. Changes none."""
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


Exposition = tuple[bytes, str]
"""The response to a scrape: its body, and the content type of that."""


def encode(families: Sequence[Taken], accept: str, pids: Sequence[int]) -> Exposition:
    """All families in the format that an `Accept` header asks for. Slow with a thousand routes. `pids` are the worker
    processes of this one."""
    write, content_type = choose_encoder(accept)
    return write(_Scrape(families, pids)), content_type


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


# -- readings ----------------------------------------------------------------------------------------------------------
# What is read at each scrape instead of being an event.

Readings = Mapping[str, float | Mapping[Any, float]]
"""What is read, by the names of metrics without their prefix, of several series by the one label that they have, or by
all. Counts are since the start of the process; what is not there is 0."""

READ: Final = declare(
    """
    gauge min idempotency_store_up{tier}: Whether a store can be reached and, if it is the durable one, grants new keys
    gauge sum idempotency_in_flight{route}: Operations that this gateway works on
    gauge max idempotency_oldest_in_flight_seconds: How long the oldest of them has been worked on, 0 without one
    counter idempotency_copy_lookups_total{source,result}: Lookups of a recorded response outside the durable store
    counter idempotency_fast_writes_dropped_total: Writes to the fast tier that were given up for lack of room
    gauge max idempotency_store_upkeep_owner{duty}: Whether it is this gateway's turn to do it for all gateways of the
        durable store
    counter idempotency_partition_late_total: Times that responses had to wait until the partition for their day was
        made
    gauge sum idempotency_purges_pending: Purged operations of which the fast tier may still hold a copy
    gauge max idempotency_shared_note_lag_seconds: For how long the note in Redis has lacked something that the durable
        store acknowledged, 0 without
    counter idempotency_log_lines_dropped_total: Lines that the log could not write in time
    gauge sum idempotency_journal_waiting: Outcomes in the journal that wait for the durable store
    gauge sum idempotency_journal_refused: Outcomes in the journal that the durable store refused
    gauge sum idempotency_journal_bytes: What the journal holds on the disk
    gauge max idempotency_journal_oldest_seconds: How long the oldest of those that wait has waited, 0 without
    gauge sum idempotency_upstream_connections{upstream}: Open connections to upstreams
    counter idempotency_upstream_connections_opened_total{upstream}: Connections to upstreams that were opened
    counter idempotency_upstream_connections_reused_total{upstream}: Idle connections that were taken for another
        request
    counter idempotency_upstream_connections_died_on_reuse_total{upstream}: Of those, the ones that ended before a byte
        of a response came
    counter idempotency_upstream_exchanges_total{upstream,result}: Requests to upstreams, passed through and probes
        included, by whether a response began to arrive
    counter idempotency_spans_total{result}: Spans of requests, by what became of them on the way to the collector
    """,
    {"route": (), "result": ("exported", "dropped", "failed"), "tier": Configured.TIERS},
    {},
)
_LOOKUPS: Final = (("cache", "hit"), ("fast", "hit"), ("fast", "miss"), ("fast", "failure"))


# -- metrics -----------------------------------------------------------------------------------------------------------

MODES: Final = ("enforce", "observe")
# Of each kind of event. A bound on what statuses of upstreams could make of it.
_SERIES_MAX: Final = 10_000


ReloadResult = StrEnum("ReloadResult", "APPLIED UNCHANGED REFUSED")
"""What came of an attempt to change the configuration."""

declare(
    """
    counter idempotency_config_reloads_total{result}: Attempts to change the configuration or its certificates, by
        result
    gauge own idempotency_config_last_reload_successful: Whether the last attempt succeeded; 0: what is in force is
        older than the files
    gauge own idempotency_config_last_reload_success_timestamp_seconds: When the configuration was last read with
        success, the start included
    gauge own idempotency_config_info{hash}: The digest of the configuration in force, without secrets
    gauge own idempotency_tls_certificate_expiry_timestamp_seconds{use}: When the first certificate of the files in
        force expires, by what it is for
    gauge max idempotency_routes{mode}: Routes of the configuration
    gauge own idempotency_workers{state}: Processes of this gateway; a silent one does not respond, and its numbers are
        the last known
    counter idempotency_worker_restarts_total: Workers that were started because one had died
    gauge own idempotency_build_info{version,python}: The program that runs; always 1
    """,
    {"result": tuple(ReloadResult), "mode": MODES, "state": ("serving", "silent", "absent")},
    {},
)


class Metrics:
    """What counts events, and what a scrape gets. Belongs to one event loop."""

    def __init__(
        self,
        routes: Iterable[str],
        *,
        has_fast_tier: bool,
        version: str,
        sinks: Iterable[str] = (),
        modes: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`routes` and `sinks` have their series from the start; others get theirs with their first event. `modes` are
        those of the routes, by name."""
        self._families: dict[str, Family] = {}
        self._read: Callable[[], Readings] = dict
        # What workers and gateways that ended had counted. Apart from what this counts, for a scrape that is being
        # written would have it twice.
        self._ended: Counted = {}
        self._rendering = asyncio.Lock()
        # Of gateways that served before in this process, until their last request has ended.
        self._earlier: list[Metrics] = []
        configured: Mapping[Configured, Iterable[str]] = {
            Configured.ROUTES: tuple(routes),
            Configured.OBSERVED_ROUTES: tuple(name for name, mode in modes.items() if mode == "observe"),
            Configured.SINKS: tuple(sinks),
            Configured.TIERS: ("durable", "fast") if has_fast_tier else ("durable",),
        }
        for metric in METRICS.values():
            labels = {
                label: configured[values] if isinstance(values, Configured) else values
                for label, values in metric.labels.items()
            }
            self._families[metric.name] = Family(metric, labels)
        for lookup in _LOOKUPS:
            self._row("copy_lookups_total", *lookup)
        self._counting: dict[type[Fact], Counting] = {}
        self._put("config_last_reload_successful", 1)
        for mode in MODES:
            self._put("routes", sum(each == mode for each in modes.values()), mode)
        self.count_workers(serving=1, silent=0, absent=0)
        self._put("build_info", 1, version, platform.python_version())

    # -- events -------------------------------------------------------------------------------------------------------

    def counting(self, kind: type[Fact]) -> Counting:
        found = self._counting.get(kind)
        if found is None:
            one = [each for each in kind.changes if not each.how]
            many = [each for each in kind.changes if each.how]
            chosen = {*(name for each in one for name in (*each.attributes, each.when.partition("=")[0])), "__class__"}
            labels_of, count_more = attrgetter(*(chosen - {""})), partial(self._count_many, many) if many else None
            found = self._counting[kind] = Counting(labels_of, partial(self._series_of, one), count_more, {})
        return found

    def _series_of(self, changes: Sequence[Change], fact: Any) -> Series:
        counts: list[Row] = []
        times: list[tuple[Row, Sequence[float], Read]] = []
        puts: list[tuple[Row, Read]] = []
        counting = self._counting[type(fact)]
        if len(counting.series) >= _SERIES_MAX:
            counting.series.clear()
        for metric, attributes, value, _, _, when in changes:
            applies = condition(when)
            if applies is None or applies(fact):
                row = self._families[metric.name].row(_labels(attributes, fact))
                if metric.bounds:
                    times.append((row, metric.bounds, attrgetter(value)))
                elif metric.rule is not None:
                    puts.append((row, attrgetter(value)))
                else:
                    counts.append(row)
        return counts, times, puts

    def _count_many(self, changes: Sequence[Change], fact: Any) -> None:
        for change in changes:
            is_put = change.metric.rule is not None
            self._families[change.metric.name].take(_numbers(change, fact), is_put=is_put)

    def add_routes(self, routes: Iterable[str]) -> None:
        names = tuple(routes)
        for family in self._families.values():
            if "route" in family.label_names:
                family.add_rows(route=names)

    def count_reload(self, result: ReloadResult, digest: str, at_seconds: float) -> None:
        """Count an attempt to change the configuration, by its result; `digest` is of the one in force. Unix time."""
        self._row("config_reloads_total", result)[0] += 1
        if result is ReloadResult.REFUSED:
            self._put("config_last_reload_successful", 0)
        else:
            self.put_configuration(digest, at_seconds)

    @property
    def requests(self) -> dict[str, dict[str, int]]:
        """How many requests there were, by route and verdict, without those of which there was none."""
        found: dict[str, dict[str, int]] = {}
        for (route, verdict), (count,) in self.take().get("idempotency_requests_total", {}).items():
            found.setdefault(route, {})[verdict] = int(count)
        return found

    def put_configuration(self, digest: str, at_seconds: float) -> None:
        self._put("config_last_reload_successful", 1)
        self._put("config_last_reload_success_timestamp_seconds", at_seconds)
        self._families["idempotency_config_info"].rows.clear()
        self._put("config_info", 1, digest)

    def put_certificate_expiries(self, expiries: Mapping[str, float]) -> None:
        """When the first certificate of each use expires, as Unix time."""
        self._families["idempotency_tls_certificate_expiry_timestamp_seconds"].rows.clear()
        for use, at_seconds in expiries.items():
            self._put("tls_certificate_expiry_timestamp_seconds", at_seconds, use)

    def read_with(self, read: Callable[[], Readings]) -> None:
        """Call `read` at each scrape, on the event loop."""
        self._read = read

    async def render(
        self, accept: str, workers: Callable[[], tuple[Sequence[Counted], Sequence[int]]] = lambda: ((), ())
    ) -> Exposition:
        """All metrics as of now, in the format that the `Accept` header asks for. `workers` returns a supervisor's
        workers: the numbers that were not absorbed yet, and the process ids. A thread writes one scrape after the
        other: a thousand routes must not block the event loop."""
        async with self._rendering:
            self._put_readings()
            # Called here, because a worker may end and be absorbed while another scrape is being written.
            numbers, pids = workers()
            numbers = [*numbers, *self._others()]
            families = [
                (family, dict(family.rows), [each[name] for each in numbers if name in each])
                for name, family in self._families.items()
            ]
            return await asyncio.to_thread(encode, families, accept, pids)

    # -- several workers, and gateways one after the other -----------------------------------------------------------

    def take(self, names: Sequence[str] | None = None) -> Counted:
        """All numbers as of now, for the supervisor to merge; or those of some metrics, none of which is read."""
        if names is None:
            self._put_readings()
        wanted = self._families if names is None else {name: self._families[name] for name in names}
        found = {name: packed for name, family in wanted.items() if (packed := family.packed())}
        for numbers in self._others(names):
            found |= self._sum(found, numbers)
        return found

    def follow(self, before: Metrics) -> None:
        """Go on from what the gateway before has counted, and works on until it has `ended`."""
        self._earlier, before._earlier = [before, *before._earlier], []

    def ended(self, before: Metrics) -> None:
        """A gateway that served before counts no more."""
        self._earlier.remove(before)
        self.absorb(before.take())

    def absorb(self, numbers: Counted) -> None:
        """Add what somebody that ended had counted. Its gauges end with it."""
        counted = {name: rows for name, rows in numbers.items() if self._families[name].is_counter}
        self._ended = {**self._ended, **self._sum(self._ended, counted)}

    def _others(self, names: Sequence[str] | None = None) -> list[Counted]:
        """What counts together with this. Of the rest only the gateway that serves knows the present state."""
        found = [
            {name: rows for name, rows in each.take(names).items() if self._families[name].is_summed}
            for each in self._earlier
        ]
        return [{name: rows for name, rows in self._ended.items() if names is None or name in names}, *found]

    def _sum(self, numbers: Counted, more: Counted) -> Counted:
        """Both, of the metrics that `more` has."""
        return {name: self._families[name].merged(numbers.get(name, {}), [rows]) for name, rows in more.items()}

    def count_workers(self, **states: int) -> None:
        for state, number in states.items():
            self._put("workers", number, state)

    def count_restart(self) -> None:
        self._row("worker_restarts_total")[0] += 1

    # -- families -----------------------------------------------------------------------------------------------------

    def _put_readings(self) -> None:
        readings = self._read()
        for metric, *_ in READ:
            self._families[metric.name].take(_read_numbers(metric.name, readings), is_put=True)

    def _put(self, name: str, value: float, *labels: str) -> None:
        self._row(name, *labels)[0] = float(value)

    def _row(self, name: str, *labels: str) -> Row:
        return self._families[f"idempotency_{name}"].row(labels)


def _labels(attributes: Sequence[str], fact: Any) -> Labels:
    """The values of labels; of a status its class."""
    values = (getattr(fact, name) for name in attributes)
    return tuple(f"{value // 100}xx" if isinstance(value, int) else value for value in values)


def _numbers(change: Change, fact: Any) -> dict[Labels, float]:
    if change.how == "all":
        return {tuple(labels): number for *labels, number in getattr(fact, change.items)}
    if change.items:
        return {(label,): getattr(each, change.value) for label, each in getattr(fact, change.items).items()}
    return {_labels(change.attributes, fact): getattr(fact, change.value)}


def _read_numbers(name: str, readings: Readings) -> dict[Labels, float]:
    found = readings.get(name.removeprefix("idempotency_"), {})
    if not isinstance(found, Mapping):
        return {(): found}
    return {key if isinstance(key, tuple) else (key,): number for key, number in found.items()}
