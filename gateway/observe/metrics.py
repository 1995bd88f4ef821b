"""What is counted: facts as Prometheus metrics.

Owns the names of the metrics; how they are written is `exposition`'s to know. Nothing is global: each `Metrics` has its
own tables, and several may live in one process.

Labels are route names and words of the program, never keys, scopes or paths, so the number of series is known at the
start; those that an alert needs exist from the start, at 0, because a rate cannot be taken of what is not there yet.

With several workers each counts for itself (`take`), and their supervisor writes one exposition of all. Each gauge says
by which rule; whatever only grows is added up, and what a dead worker had counted stays (`absorb`).
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final, assert_never

from gateway.core.operation import Event
from gateway.core.verdict import Word
from gateway.observe.exposition import Exposition, Family, SpreadFamily, encode
from gateway.observe.facts import (
    Fact,
    FlushRefused,
    JournalFailed,
    LeaseLost,
    LoopStalled,
    MemoryChanged,
    OperationClaimed,
    OperationSettled,
    OutcomeJournaled,
    ProbeFinding,
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
from gateway.observe.merging import Rule, Tables
from gateway.observe.series import Labels, Numbers, Spread

# `no_route_keyed`: nothing protects the request although its caller sent a key.
_REASONS: Final = ("no_route", "no_route_keyed", "unkeyed", "store_unavailable")
_ENDINGS: Final = (Event.COMPLETE, Event.RELEASE, Event.FORGET, Event.ABANDON)
_SWEPT: Final = (Event.LAPSE, Event.RETIRE, Event.COLLECT)
_LOOKUPS: Final = (("cache", "hit"), ("fast", "hit"), ("fast", "miss"), ("fast", "failure"))
_WORKER_STATES: Final = ("serving", "silent", "absent")


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
        self._families: list[Family | SpreadFamily] = []
        self._read: Callable[[], Readings] = Readings
        self._rendering = asyncio.Lock()
        self._lines_dropped = 0
        each_route = [(route,) for route in routes]
        names = [route for (route,) in each_route]

        self._requests = self._counter(
            "idempotency_requests_total",
            "Requests on protected routes, by what they got",
            ("route", "verdict"),
            product(names, Word),
        )
        self._unprotected = self._counter(
            "idempotency_unprotected_requests_total",
            "Requests that were passed through without protection, by why",
            ("reason",),
            product(_REASONS),
        )
        self._durations = self._spread(
            "idempotency_request_duration_seconds",
            "From the arrival of a request on a protected route to the head of its answer, waiting included",
            ("route",),
            each_route,
        )
        self._overheads = self._spread(
            "idempotency_overhead_seconds",
            "The same without the upstream's part, of the requests that were executed",
            ("route",),
            each_route,
        )
        self._upstream = self._spread(
            "idempotency_upstream_duration_seconds",
            "How long the upstream took to answer an attempt",
            ("route",),
            each_route,
        )
        self._connections = self._gauge("idempotency_upstream_connections", "Open connections to upstreams", Rule.SUM)
        self._opened = self._counter(
            "idempotency_upstream_connections_opened_total", "Connections to upstreams that were opened"
        )
        self._reused = self._counter(
            "idempotency_upstream_connections_reused_total", "Idle connections that were taken for another request"
        )
        self._died_on_reuse = self._counter(
            "idempotency_upstream_connections_died_on_reuse_total",
            "Of those, the ones that ended before a byte of an answer came",
        )
        self._exchanges = self._counter(
            "idempotency_upstream_exchanges_total",
            "Requests to upstreams, passed through and probes included, by whether an answer began to arrive",
            ("result",),
            [("answered",), ("lost",), ("not_sent",)],
        )
        self._claims = self._counter("idempotency_claims_total", "Claims that were granted", ("route",), each_route)
        self._takeovers = self._counter(
            "idempotency_takeovers_total", "Operations in doubt that were sent again", ("route",), each_route
        )
        self._probes = self._counter(
            "idempotency_probes_total",
            "Questions to the upstream about operations in doubt, by what was found",
            ("route", "finding"),
            product(names, ProbeFinding),
        )
        self._settlements = self._counter(
            "idempotency_settlements_total",
            "Attempts that ended in the record, by how",
            ("route", "event"),
            product(names, _ENDINGS),
        )
        self._late = self._counter(
            "idempotency_late_writes_total",
            "Attempts whose outcome had to be written more than once before the store took it",
            ("route",),
            each_route,
        )
        self._refused = self._counter(
            "idempotency_refused_writes_total",
            "Attempts whose outcome the store refused, because the record had gone on without them",
            ("route",),
            each_route,
        )
        self._journaled = self._counter(
            "idempotency_journaled_total",
            "Attempts whose outcome went to the journal, because the durable store did not take it",
            ("route",),
            each_route,
        )
        self._journal_failures = self._counter(
            "idempotency_journal_failures_total", "Outcomes that neither the durable store nor the journal accepted"
        )
        self._journal_waiting = self._gauge(
            "idempotency_journal_waiting", "Outcomes in the journal that wait for the durable store", Rule.SUM
        )
        self._journal_refused = self._gauge(
            "idempotency_journal_refused", "Outcomes in the journal that the durable store refused", Rule.SUM
        )
        self._journal_bytes = self._gauge("idempotency_journal_bytes", "What the journal holds on the disk", Rule.SUM)
        self._journal_oldest = self._gauge(
            "idempotency_journal_oldest_seconds",
            "How long the oldest of those that wait has waited, 0 without one",
            Rule.MAX,
        )
        self._lost = self._counter("idempotency_lost_leases_total", "Running attempts that lost their lease")
        # Every worker counts the whole store.
        self._in_doubt = self._gauge(
            "idempotency_in_doubt", "Operations in doubt in the whole store", Rule.MAX, ("route",), each_route
        )
        self._oldest_in_doubt = self._gauge(
            "idempotency_oldest_in_doubt_seconds", "Age of the oldest operation in doubt, 0 without one", Rule.MAX
        )
        self._in_flight = self._gauge("idempotency_in_flight", "Operations that this gateway works on", Rule.SUM)
        self._oldest_in_flight = self._gauge(
            "idempotency_oldest_in_flight_seconds",
            "How long the oldest of them has been worked on, 0 without one",
            Rule.MAX,
        )
        self._store_up = self._gauge(
            "idempotency_store_up",
            "Whether a store answers",
            Rule.MIN,
            ("tier",),
            [("durable",), ("fast",)] if has_fast_tier else [("durable",)],
        )
        self._amnesia = self._gauge(
            "idempotency_store_amnesia",
            "Whether the durable store lost its memory, so that absent keys are refused",
            Rule.MAX,
        )
        self._store_durations = self._spread(
            "idempotency_store_duration_seconds", "How long a store took to answer, or to fail", ("tier", "verb")
        )
        self._store_errors = self._counter(
            "idempotency_store_errors_total",
            "Calls of a store that failed, by what is known after it",
            ("tier", "verb", "error"),
        )
        self._lookups = self._counter(
            "idempotency_copy_lookups_total",
            "Lookups of a recorded answer outside the durable store",
            ("source", "result"),
            _LOOKUPS,
        )
        self._shed = self._counter(
            "idempotency_copies_shed_total", "Copies and news for the fast tier that were given up for lack of room"
        )
        self._owed = self._gauge(
            "idempotency_drops_owed", "Purged operations of which the fast tier may still hold a copy", Rule.SUM
        )
        self._swept = self._counter(
            "idempotency_swept_total", "Records that a sweep of this gateway moved on", ("event",), product(_SWEPT)
        )
        self._sweeps = self._spread("idempotency_sweep_duration_seconds", "How long a sweep took")
        self._stalls = self._spread(
            "idempotency_loop_stall_seconds", "How long the event loop was held up, when it was"
        )
        self._log_dropped = self._counter(
            "idempotency_log_lines_dropped_total", "Lines that the log did not take in time"
        )
        self._workers = self._gauge(
            "idempotency_workers",
            "Processes of this gateway; of a silent one, which does not answer, the numbers are the last known",
            Rule.OWN,
            ("state",),
            product(_WORKER_STATES),
        )
        self._workers.put(("serving",), 1.0)
        self._restarts = self._counter(
            "idempotency_worker_restarts_total", "Workers that were started because one had died"
        )
        build = self._gauge(
            "idempotency_build_info", "The program that runs; always 1", Rule.OWN, ("version", "python"), []
        )
        build.put((version, platform.python_version()), 1.0)

    def __call__(self, fact: Fact) -> None:
        match fact:
            case RequestAnswered():
                self._requests.add((fact.route, fact.word))
                self._durations.observe((fact.route,), fact.duration_seconds)
                if fact.upstream_seconds is not None:
                    self._overheads.observe((fact.route,), max(0.0, fact.duration_seconds - fact.upstream_seconds))
            case RequestPassed():
                self._unprotected.add((fact.reason if fact.key_field is None else "no_route_keyed",))
                if fact.route is not None and fact.word is not None:
                    self._requests.add((fact.route, fact.word))
            case OperationClaimed():
                self._claims.add((fact.route,))
                if fact.is_takeover:
                    self._takeovers.add((fact.route,))
            case OperationSettled():
                self._settlements.add((fact.route, fact.event))
                if fact.upstream_seconds is not None:
                    self._upstream.observe((fact.route,), fact.upstream_seconds)
                if fact.is_late:
                    self._late.add((fact.route,))
            case StoreCalled():
                self._store_durations.observe((fact.tier, fact.verb), fact.duration_seconds)
                if fact.error is not None:
                    self._store_errors.add((fact.tier, fact.verb, fact.error))
            case _:
                self._take_seldom(fact)

    def _take_seldom(
        self,
        fact: ProbeMade
        | WriteRefused
        | OutcomeJournaled
        | JournalFailed
        | FlushRefused
        | LeaseLost
        | TierChanged
        | UpstreamChanged
        | MemoryChanged
        | SweepDone
        | TallyTaken
        | LoopStalled,
    ) -> None:
        match fact:
            case OutcomeJournaled() | JournalFailed() | FlushRefused():
                self._take_journal(fact)
            case ProbeMade():
                self._probes.add((fact.route, fact.finding))
            case WriteRefused():
                self._refused.add((fact.route,))
            case LeaseLost():
                self._lost.add()
            case MemoryChanged() | TierChanged() | UpstreamChanged():
                self._take_change(fact)
            case SweepDone():
                self._swept.add((Event.LAPSE,), fact.lapsed)
                self._swept.add((Event.RETIRE,), fact.retired)
                self._swept.add((Event.COLLECT,), fact.collected)
                self._sweeps.observe((), fact.duration_seconds)
            case TallyTaken():
                # Also routes that the configuration no longer has: what is in doubt under them still is.
                for labels in self._in_doubt.values:
                    self._in_doubt.put(labels, 0.0)
                for route, count in fact.in_doubt:
                    self._in_doubt.put((route,), float(count))
                self._oldest_in_doubt.put((), fact.oldest_in_doubt_seconds)
            case LoopStalled():
                self._stalls.observe((), fact.lag_seconds)
            case _:
                assert_never(fact)

    def _take_change(self, fact: MemoryChanged | TierChanged | UpstreamChanged) -> None:
        match fact:
            case MemoryChanged():
                self._amnesia.put((), float(fact.is_lost))
            case TierChanged():
                self._store_up.put((fact.tier,), float(fact.up))
            case UpstreamChanged():
                # The client counts each exchange that came to nothing.
                pass

    def _take_journal(self, fact: OutcomeJournaled | JournalFailed | FlushRefused) -> None:
        match fact:
            case OutcomeJournaled():
                self._journaled.add((fact.route,))
                if fact.upstream_seconds is not None:
                    self._upstream.observe((fact.route,), fact.upstream_seconds)
            case JournalFailed():
                self._journal_failures.add()
            case FlushRefused():
                self._refused.add((fact.route,))
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
            taken = [family.taken() for family in self._families]
            return await asyncio.to_thread(encode, taken, accept)

    # -- several workers ----------------------------------------------------------------------------------------------

    def take(self) -> Tables:
        """Everything as it is now, to be merged by another process."""
        self._take_readings()
        return {family.name: packed for family in self._families if (packed := family.packed())}

    def absorb(self, tables: Tables) -> None:
        """Count on from what a process that ended had counted."""
        for family in self._families:
            if family.name in tables:
                family.absorb(tables[family.name])

    def count_workers(self, *, serving: int, silent: int, absent: int) -> None:
        """In which states the workers are."""
        for state, number in zip(_WORKER_STATES, (serving, silent, absent), strict=True):
            self._workers.put((state,), number)

    def count_restart(self) -> None:
        """A worker is started in place of one that died."""
        self._restarts.add()

    def count_lines_dropped(self, total: int) -> None:
        """So many lines of this process were lost so far."""
        self._log_dropped.add((), total - self._lines_dropped)
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
            merged = [family.merged(tables) for family in self._families]
            return await asyncio.to_thread(encode, merged, accept, pids)

    def _take_readings(self) -> None:
        readings = self._read()
        self._in_flight.put((), readings.in_flight)
        self._oldest_in_flight.put((), readings.oldest_in_flight_seconds)
        counts = (readings.cache_hits, readings.fast_hits, readings.fast_misses, readings.fast_failures)
        for labels, count in zip(_LOOKUPS, counts, strict=True):
            self._lookups.put(labels, count)
        self._shed.put((), readings.copies_shed)
        self._owed.put((), readings.drops_owed)
        self._log_dropped.put((), readings.log_lines_dropped)
        self._journal_waiting.put((), readings.journal_waiting)
        self._journal_refused.put((), readings.journal_refused)
        self._journal_bytes.put((), readings.journal_bytes)
        self._journal_oldest.put((), readings.journal_oldest_seconds)
        self._connections.put((), readings.connections)
        self._opened.put((), readings.connections_opened)
        self._reused.put((), readings.connections_reused)
        self._died_on_reuse.put((), readings.died_on_reuse)
        self._exchanges.put(("answered",), readings.exchanges_answered)
        self._exchanges.put(("lost",), readings.exchanges_lost)
        self._exchanges.put(("not_sent",), readings.exchanges_not_sent)

    def _counter(self, name: str, text: str, labels: Labels = (), start: Iterable[Labels] = ()) -> Numbers:
        table = Numbers(labels, start)
        self._families.append(Family(name, text, table, Rule.SUM, is_counter=True))
        return table

    def _gauge(self, name: str, text: str, rule: Rule, labels: Labels = (), start: Iterable[Labels] = ()) -> Numbers:
        table = Numbers(labels, start)
        self._families.append(Family(name, text, table, rule, is_counter=False))
        return table

    def _spread(self, name: str, text: str, labels: Labels = (), start: Iterable[Labels] = ()) -> Spread:
        table = Spread(labels, start)
        self._families.append(SpreadFamily(name, text, table))
        return table
