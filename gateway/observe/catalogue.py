"""Which metrics there are: their names and labels, what they mean, and how those of several workers become one.

Labels are route names and words of the program, never keys, scopes or paths, so the number of series is known at the
start; those that an alert needs exist from the start, at 0, because a rate cannot be taken of what is not there yet.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from typing import Final

from gateway.core.operation import Event
from gateway.core.verdict import Word
from gateway.observe.exposition import Family, HistogramFamily
from gateway.observe.facts import ProbeFinding
from gateway.observe.merging import Rule
from gateway.observe.series import Histogram, Numbers

# `no_route_keyed`: nothing protects the request although its caller sent a key.
_REASONS: Final = ("no_route", "no_route_keyed", "unkeyed", "store_unavailable")
_ENDINGS: Final = (Event.COMPLETE, Event.RELEASE, Event.FORGET, Event.ABANDON)
_SWEPT: Final = (Event.LAPSE, Event.RETIRE, Event.COLLECT)
_LOOKUPS: Final = (("cache", "hit"), ("fast", "hit"), ("fast", "miss"), ("fast", "failure"))


class Catalogue:
    """The tables of one process, each under the name of what it counts. `families` are all, as they are written."""

    def __init__(self, routes: Sequence[str], *, has_fast_tier: bool, version: str) -> None:
        self.families: list[Family | HistogramFamily] = []

        self.requests = self._counter(
            "idempotency_requests_total", "Requests on protected routes, by what they got", route=routes, verdict=Word
        )
        self.unprotected_requests = self._counter(
            "idempotency_unprotected_requests_total",
            "Requests that were passed through without protection, by why",
            reason=_REASONS,
        )
        self.request_durations = self._histogram(
            "idempotency_request_duration_seconds",
            "From the arrival of a request on a protected route to the head of its answer, waiting included",
            route=routes,
        )
        self.overheads = self._histogram(
            "idempotency_overhead_seconds",
            "The same without the upstream's part, of the requests that were executed",
            route=routes,
        )
        self.upstream_durations = self._histogram(
            "idempotency_upstream_duration_seconds", "How long the upstream took to answer an attempt", route=routes
        )
        self.connections = self._gauge("idempotency_upstream_connections", "Open connections to upstreams", Rule.SUM)
        self.connections_opened = self._counter(
            "idempotency_upstream_connections_opened_total", "Connections to upstreams that were opened"
        )
        self.connections_reused = self._counter(
            "idempotency_upstream_connections_reused_total", "Idle connections that were taken for another request"
        )
        self.died_on_reuse = self._counter(
            "idempotency_upstream_connections_died_on_reuse_total",
            "Of those, the ones that ended before a byte of an answer came",
        )
        self.exchanges = self._counter(
            "idempotency_upstream_exchanges_total",
            "Requests to upstreams, passed through and probes included, by whether an answer began to arrive",
            result=("answered", "lost", "not_sent"),
        )
        self.claims = self._counter("idempotency_claims_total", "Claims that were granted", route=routes)
        self.takeovers = self._counter(
            "idempotency_takeovers_total", "Operations in doubt that were sent again", route=routes
        )
        self.probes = self._counter(
            "idempotency_probes_total",
            "Questions to the upstream about operations in doubt, by what was found",
            route=routes,
            finding=ProbeFinding,
        )
        self.settlements = self._counter(
            "idempotency_settlements_total", "Attempts that ended in the record, by how", route=routes, event=_ENDINGS
        )
        self.late_writes = self._counter(
            "idempotency_late_writes_total",
            "Attempts whose outcome had to be written more than once before the store took it",
            route=routes,
        )
        self.refused_writes = self._counter(
            "idempotency_refused_writes_total",
            "Attempts whose outcome the store refused, because the record had gone on without them",
            route=routes,
        )
        self.journaled = self._counter(
            "idempotency_journaled_total",
            "Attempts whose outcome went to the journal, because the durable store did not take it",
            route=routes,
        )
        self.journal_failures = self._counter(
            "idempotency_journal_failures_total", "Outcomes that neither the durable store nor the journal accepted"
        )
        self.journal_waiting = self._gauge(
            "idempotency_journal_waiting", "Outcomes in the journal that wait for the durable store", Rule.SUM
        )
        self.journal_refused = self._gauge(
            "idempotency_journal_refused", "Outcomes in the journal that the durable store refused", Rule.SUM
        )
        self.journal_bytes = self._gauge("idempotency_journal_bytes", "What the journal holds on the disk", Rule.SUM)
        self.journal_oldest = self._gauge(
            "idempotency_journal_oldest_seconds",
            "How long the oldest of those that wait has waited, 0 without one",
            Rule.MAX,
        )
        self.lost_leases = self._counter("idempotency_lost_leases_total", "Running attempts that lost their lease")
        # Every worker counts the whole store.
        self.in_doubt = self._gauge(
            "idempotency_in_doubt", "Operations in doubt in the whole store", Rule.MAX, route=routes
        )
        self.oldest_in_doubt = self._gauge(
            "idempotency_oldest_in_doubt_seconds", "Age of the oldest operation in doubt, 0 without one", Rule.MAX
        )
        self.in_flight = self._gauge("idempotency_in_flight", "Operations that this gateway works on", Rule.SUM)
        self.oldest_in_flight = self._gauge(
            "idempotency_oldest_in_flight_seconds",
            "How long the oldest of them has been worked on, 0 without one",
            Rule.MAX,
        )
        self.store_up = self._gauge(
            "idempotency_store_up",
            "Whether a store answers",
            Rule.MIN,
            tier=("durable", "fast") if has_fast_tier else ("durable",),
        )
        self.store_amnesia = self._gauge(
            "idempotency_store_amnesia",
            "Whether the durable store lost its memory, so that absent keys are refused",
            Rule.MAX,
        )
        self.store_durations = self._histogram(
            "idempotency_store_duration_seconds", "How long a store took to answer, or to fail", tier=(), verb=()
        )
        self.store_errors = self._counter(
            "idempotency_store_errors_total",
            "Calls of a store that failed, by what is known after it",
            tier=(),
            verb=(),
            error=(),
        )
        self.copy_lookups = self._counter(
            "idempotency_copy_lookups_total",
            "Lookups of a recorded answer outside the durable store",
            source=(),
            result=(),
        )
        for labels in _LOOKUPS:
            self.copy_lookups.put(labels, 0.0)
        self.copies_shed = self._counter(
            "idempotency_copies_shed_total", "Copies and news for the fast tier that were given up for lack of room"
        )
        self.drops_owed = self._gauge(
            "idempotency_drops_owed", "Purged operations of which the fast tier may still hold a copy", Rule.SUM
        )
        self.swept = self._counter(
            "idempotency_swept_total", "Records that a sweep of this gateway moved on", event=_SWEPT
        )
        self.sweep_durations = self._histogram("idempotency_sweep_duration_seconds", "How long a sweep took")
        self.loop_stalls = self._histogram(
            "idempotency_loop_stall_seconds", "How long the event loop was held up, when it was"
        )
        self.log_lines_dropped = self._counter(
            "idempotency_log_lines_dropped_total", "Lines that the log did not take in time"
        )
        self.workers = self._gauge(
            "idempotency_workers",
            "Processes of this gateway; of a silent one, which does not answer, the numbers are the last known",
            Rule.OWN,
            state=("serving", "silent", "absent"),
        )
        self.workers.put(("serving",), 1.0)
        self.worker_restarts = self._counter(
            "idempotency_worker_restarts_total", "Workers that were started because one had died"
        )
        build = self._gauge(
            "idempotency_build_info", "The program that runs; always 1", Rule.OWN, version=(), python=()
        )
        build.put((version, platform.python_version()), 1.0)

    def _counter(self, name: str, text: str, **labels: Iterable[str]) -> Numbers:
        table = Numbers(labels)
        self.families.append(Family(name, text, table, Rule.SUM, is_counter=True))
        return table

    def _gauge(self, name: str, text: str, rule: Rule, **labels: Iterable[str]) -> Numbers:
        table = Numbers(labels)
        self.families.append(Family(name, text, table, rule, is_counter=False))
        return table

    def _histogram(self, name: str, text: str, **labels: Iterable[str]) -> Histogram:
        table = Histogram(labels)
        self.families.append(HistogramFamily(name, text, table))
        return table
