"""The metrics of this process: what events change, what is read at each scrape, and what is put directly.

Nothing is global: each `Metrics` has its own families, and one process may have several. Each worker counts for itself
and sends its numbers to its supervisor (`take`), which writes them as one gateway's; the counts of a worker that ended
stay (`absorb`).
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final

from gateway.observe.exposition import Counted, Exposition, Family, encode
from gateway.observe.facts import (
    METRICS,
    Change,
    Configured,
    Counting,
    Fact,
    GrantsChanged,
    Labels,
    Read,
    Row,
    Series,
    TierChanged,
    condition,
    declare,
)
from gateway.observe.readings import Readings

MODES: Final = ("enforce", "observe")
# Of each kind of event. A bound on what statuses of upstreams could make of it.
_SERIES_MAX: Final = 10_000


class ReloadResult(StrEnum):
    """What came of an attempt to change the configuration."""

    APPLIED = "applied"
    UNCHANGED = "unchanged"
    REFUSED = "refused"


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
    gauge min idempotency_store_up{tier}: Whether a store can be reached and, if it is the durable one, grants new keys
    gauge own idempotency_workers{state}: Processes of this gateway; a silent one does not respond, and its numbers are
        the last known
    counter idempotency_worker_restarts_total: Workers that were started because one had died
    gauge own idempotency_build_info{version,python}: The program that runs; always 1
    """,
    {
        "result": tuple(ReloadResult),
        "mode": MODES,
        "tier": Configured.TIERS,
        "state": ("serving", "silent", "absent"),
    },
    {},
)


class Metrics:
    """What counts events, and what a scrape gets. Belongs to one event loop. An observer of events about the stores."""

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
        self._read: Callable[[], Readings] = Readings
        self._before = Readings()
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
        self._counting: dict[type[Fact], Counting] = {}
        self._durable_up, self._grants = False, True
        self._put("config_last_reload_successful", 1)
        for mode in MODES:
            self._put("routes", sum(each == mode for each in modes.values()), mode)
        self.count_workers(serving=1, silent=0, absent=0)
        self._put("build_info", 1, version, platform.python_version())

    # -- events -------------------------------------------------------------------------------------------------------

    def counting(self, kind: type[Fact]) -> Counting:
        """How events of this kind are counted."""
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
            self._families[change.metric.name].take(_numbers(change, fact))

    def wants(self, kind: type[Fact]) -> bool:
        return kind in (TierChanged, GrantsChanged)

    def __call__(self, fact: TierChanged | GrantsChanged) -> None:
        """A durable store that grants nothing is as good as down for who sends new keys."""
        if isinstance(fact, GrantsChanged):
            self._grants = not fact.why
        elif fact.tier == "durable":
            self._durable_up = fact.up
        else:
            self._put("store_up", fact.up, fact.tier)
        self._put("store_up", self._durable_up and self._grants, "durable")

    def add_routes(self, routes: Iterable[str]) -> None:
        """Have the series of these routes, too."""
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
        """The configuration in force, read just now."""
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
        """All metrics as of now, in the format that the `Accept` header asks for.

        `workers` returns a supervisor's workers: the numbers that were not absorbed yet, and the process ids. A thread
        writes one scrape after the other: a thousand routes must not block the event loop.
        """
        async with self._rendering:
            self._put_readings()
            # Called here, because a worker may end and be absorbed while another scrape is being written.
            numbers, pids = workers()
            numbers = [*numbers, *self._of_earlier()]
            families = [
                (family, dict(family.rows), [each.get(name, {}) for each in numbers])
                for name, family in self._families.items()
            ]
            return await asyncio.to_thread(encode, families, accept, pids)

    # -- several workers, and gateways one after the other -----------------------------------------------------------

    def take(self) -> Counted:
        """All numbers as of now, for the supervisor to merge."""
        self._put_readings()
        found = {name: packed for name, family in self._families.items() if (packed := family.packed())}
        for numbers in self._of_earlier():
            for name, rows in numbers.items():
                found[name] = self._families[name].merged(found.get(name, {}), [rows])
        return found

    def follow(self, before: Metrics) -> None:
        """Go on from what the gateway before has counted, and works on until it has `ended`."""
        self._earlier, before._earlier = [before, *before._earlier], []

    def ended(self, before: Metrics) -> None:
        """A gateway that served before counts no more."""
        self._earlier.remove(before)
        self.absorb(before.take())

    def _of_earlier(self) -> list[Counted]:
        """What counts together with this. Of the rest only the gateway that serves knows the present state."""
        found = [each.take() for each in self._earlier]
        return [{name: rows for name, rows in each.items() if self._families[name].is_summed} for each in found]

    def absorb(self, numbers: Counted) -> None:
        """Add what a worker that ended had counted. Its gauges end with it."""
        for name, rows in numbers.items():
            self._families[name].absorb(rows)

    def count_workers(self, *, serving: int, silent: int, absent: int) -> None:
        """Set how many workers are in each state."""
        self._put("workers", serving, "serving")
        self._put("workers", silent, "silent")
        self._put("workers", absent, "absent")

    def count_restart(self) -> None:
        """Count a worker that replaces one that died."""
        self._row("worker_restarts_total")[0] += 1

    # -- families -----------------------------------------------------------------------------------------------------

    def _put_readings(self) -> None:
        """Of what is counted since the start only the difference, in addition to what was absorbed."""
        before, self._before = self._before, self._read()
        for change in Readings.changes:
            now, then = _numbers(change, self._before), _numbers(change, before)
            if change.metric.rule is None:
                now = {labels: now.get(labels, 0) - then.get(labels, 0) for labels in now.keys() | then.keys()}
            self._families[change.metric.name].take(now)

    def _put(self, name: str, value: float, *labels: str) -> None:
        self._row(name, *labels)[0] = float(value)

    def _row(self, name: str, *labels: str) -> Row:
        return self._families[f"idempotency_{name}"].row(labels)


def _labels(attributes: Sequence[str], fact: Any) -> Labels:
    """The values of labels; of a status its class."""
    values = (getattr(fact, name) for name in attributes)
    return tuple(f"{value // 100}xx" if isinstance(value, int) else value for value in values)


def _numbers(change: Change, fact: Any) -> dict[Labels, float]:
    """The numbers of several series."""
    found = getattr(fact, change.items) if change.items else [fact]
    if isinstance(found, Mapping):
        return {key if isinstance(key, tuple) else (key,): number for key, number in found.items()}
    if change.how == "all":
        return {tuple(labels): number for *labels, number in found}
    return {_labels(change.attributes, each): getattr(each, change.value) for each in found}
