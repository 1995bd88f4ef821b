"""What is counted: facts as Prometheus metrics.

Owns which fact changes which metric; the metrics themselves are `catalogue`'s, and how they are written `exposition`'s.
Nothing is global: each `Metrics` has tables of its own, and several may live in one process.

With several workers each counts for itself (`take`), and their supervisor writes one exposition of all. Each gauge says
by which rule; whatever only grows is added up, and what a dead worker had counted stays (`absorb`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import assert_never

from gateway.core.operation import Event
from gateway.observe.catalogue import Catalogue
from gateway.observe.exposition import Exposition, encode
from gateway.observe.facts import (
    EndedUnanswered,
    Fact,
    FlushRefused,
    JournalFailed,
    LeaseLost,
    LoopStalled,
    MemoryChanged,
    OperationClaimed,
    OperationSettled,
    OperationTakenOver,
    OutcomeJournaled,
    ProbeMade,
    RequestAnswered,
    RequestPassed,
    StoreCalled,
    SweepDone,
    TallyTaken,
    TierChanged,
    UpstreamChanged,
    WriteRefused,
)
from gateway.observe.merging import Tables


@dataclass(frozen=True, slots=True)
class Readings:
    """What is not told as facts but read at each scrape.

    Counts since the start are those of the tiered store and, from `connections` on, of the clients of all upstreams.
    """

    in_flight: int = 0
    oldest_in_flight_seconds: float = 0.0
    cache_hits: int = 0
    fast_hits: int = 0
    fast_misses: int = 0
    fast_failures: int = 0
    copies_shed: int = 0
    drops_owed: int = 0
    log_lines_dropped: int = 0
    journal_waiting: int = 0
    journal_refused: int = 0
    journal_bytes: int = 0
    journal_oldest_seconds: float = 0.0
    connections: int = 0
    connections_opened: int = 0
    connections_reused: int = 0
    died_on_reuse: int = 0
    exchanges_answered: int = 0
    exchanges_lost: int = 0
    exchanges_not_sent: int = 0


class Metrics:
    """An observer of facts, and what a scrape gets of them. Belongs to one event loop."""

    def __init__(self, routes: Iterable[str], *, has_fast_tier: bool, version: str) -> None:
        self._catalogue = Catalogue(tuple(routes), has_fast_tier=has_fast_tier, version=version)
        self._read: Callable[[], Readings] = Readings
        self._rendering = asyncio.Lock()
        self._lines_dropped = 0

    def __call__(self, fact: Fact) -> None:  # noqa: C901 -- a case for each kind of fact, the most frequent first
        metric = self._catalogue
        match fact:
            case RequestAnswered():
                metric.requests.add((fact.route, fact.word))
                metric.request_durations.observe((fact.route,), fact.duration_seconds)
                if fact.upstream_seconds is not None:
                    metric.overheads.observe((fact.route,), max(0.0, fact.duration_seconds - fact.upstream_seconds))
            case RequestPassed():
                metric.unprotected_requests.add((fact.reason if fact.key_field is None else "no_route_keyed",))
                if fact.route is not None and fact.word is not None:
                    metric.requests.add((fact.route, fact.word))
            case OperationClaimed():
                metric.claims.add((fact.route,))
                if fact.is_takeover:
                    metric.takeovers.add((fact.route,))
            case OperationSettled():
                metric.settlements.add((fact.route, fact.event))
                if fact.upstream_seconds is not None:
                    metric.upstream_durations.observe((fact.route,), fact.upstream_seconds)
                if fact.is_late:
                    metric.late_writes.add((fact.route,))
            case StoreCalled():
                metric.store_durations.observe((fact.tier, fact.verb), fact.duration_seconds)
                if fact.error is not None:
                    metric.store_errors.add((fact.tier, fact.verb, fact.error))
            case ProbeMade():
                metric.probes.add((fact.route, fact.finding))
            case WriteRefused() | FlushRefused():
                metric.refused_writes.add((fact.route,))
            case OutcomeJournaled():
                metric.journaled.add((fact.route,))
                if fact.upstream_seconds is not None:
                    metric.upstream_durations.observe((fact.route,), fact.upstream_seconds)
            case JournalFailed():
                metric.journal_failures.add()
            case LeaseLost():
                metric.lost_leases.add()
            case MemoryChanged():
                metric.store_amnesia.put((), float(fact.is_lost))
            case TierChanged():
                metric.store_up.put((fact.tier,), float(fact.up))
            case UpstreamChanged() | OperationTakenOver() | EndedUnanswered():
                # Counted by the client of the upstream, as a claim, and as what its caller was answered.
                pass
            case SweepDone():
                metric.swept.add((Event.LAPSE,), fact.lapsed)
                metric.swept.add((Event.RETIRE,), fact.retired)
                metric.swept.add((Event.COLLECT,), fact.collected)
                metric.sweep_durations.observe((), fact.duration_seconds)
            case TallyTaken():
                # Also routes that the configuration no longer has: what is in doubt under them still is.
                for labels in metric.in_doubt.values:
                    metric.in_doubt.put(labels, 0.0)
                for route, count in fact.in_doubt:
                    metric.in_doubt.put((route,), float(count))
                metric.oldest_in_doubt.put((), fact.oldest_in_doubt_seconds)
            case LoopStalled():
                metric.loop_stalls.observe((), fact.lag_seconds)
            case _:
                assert_never(fact)

    def read_with(self, read: Callable[[], Readings]) -> None:
        """From now on ask `read`, on the event loop, at each scrape."""
        self._read = read

    async def render(self, accept: str) -> Exposition:
        """Everything as it is now, in the format that the `Accept` field asks for.

        The numbers are copied at once and written out in a thread, one scrape after the other: a thousand routes must
        not hold up the event loop.
        """
        async with self._rendering:
            self._take_readings()
            taken = [family.taken() for family in self._catalogue.families]
            return await asyncio.to_thread(encode, taken, accept)

    # -- several workers ----------------------------------------------------------------------------------------------

    def take(self) -> Tables:
        """Everything as it is now, to be merged by another process."""
        self._take_readings()
        return {family.name: packed for family in self._catalogue.families if (packed := family.packed())}

    def absorb(self, tables: Tables) -> None:
        """Count on from what a process that ended had counted."""
        for family in self._catalogue.families:
            if family.name in tables:
                family.absorb(tables[family.name])

    def count_workers(self, *, serving: int, silent: int, absent: int) -> None:
        """In which states the workers are."""
        workers = self._catalogue.workers
        workers.put(("serving",), serving)
        workers.put(("silent",), silent)
        workers.put(("absent",), absent)

    def count_restart(self) -> None:
        """A worker is started in place of one that died."""
        self._catalogue.worker_restarts.add()

    def count_lines_dropped(self, total: int) -> None:
        """So many lines of this process were lost so far."""
        self._catalogue.log_lines_dropped.add((), total - self._lines_dropped)
        self._lines_dropped = total

    async def render_merged(
        self, accept: str, workers: Callable[[], tuple[Sequence[Tables], Sequence[int]]]
    ) -> Exposition:
        """What workers counted, together with what this process did, in the format that `Accept` asks for.

        `workers` gives what each counted that was not absorbed, and the process ids of those that live.
        """
        async with self._rendering:
            # Asked here, because one may end and be absorbed while another scrape is being rendered.
            tables, pids = workers()
            merged = [family.merged(tables) for family in self._catalogue.families]
            return await asyncio.to_thread(encode, merged, accept, pids)

    def _take_readings(self) -> None:
        metric, readings = self._catalogue, self._read()
        metric.in_flight.put((), readings.in_flight)
        metric.oldest_in_flight.put((), readings.oldest_in_flight_seconds)
        metric.copy_lookups.put(("cache", "hit"), readings.cache_hits)
        metric.copy_lookups.put(("fast", "hit"), readings.fast_hits)
        metric.copy_lookups.put(("fast", "miss"), readings.fast_misses)
        metric.copy_lookups.put(("fast", "failure"), readings.fast_failures)
        metric.copies_shed.put((), readings.copies_shed)
        metric.drops_owed.put((), readings.drops_owed)
        metric.log_lines_dropped.put((), readings.log_lines_dropped)
        metric.journal_waiting.put((), readings.journal_waiting)
        metric.journal_refused.put((), readings.journal_refused)
        metric.journal_bytes.put((), readings.journal_bytes)
        metric.journal_oldest.put((), readings.journal_oldest_seconds)
        metric.connections.put((), readings.connections)
        metric.connections_opened.put((), readings.connections_opened)
        metric.connections_reused.put((), readings.connections_reused)
        metric.died_on_reuse.put((), readings.died_on_reuse)
        metric.exchanges.put(("answered",), readings.exchanges_answered)
        metric.exchanges.put(("lost",), readings.exchanges_lost)
        metric.exchanges.put(("not_sent",), readings.exchanges_not_sent)
