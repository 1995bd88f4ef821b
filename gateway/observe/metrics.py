"""Which metrics there are, and which event changes which of them.

Label values are route names and constants of the program, never keys, scopes or paths, so the number of series is known
at the start. Series that an alert needs exist from the start, at 0, because a series that does not exist has no rate.

Nothing is global: each `Metrics` has its own families, and one process may have several. Each worker counts for itself
and sends its numbers to its supervisor (`take`), which writes them as one gateway's; the counts of a worker that ended
stay (`absorb`).
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Final, TypeVar, assert_never

from gateway.core.delivery import ATTEMPTS_EXHAUSTED, UNAUTHORIZED, UNREADABLE
from gateway.core.lifecycle import DEADLINE
from gateway.core.operation import Event
from gateway.core.verdict import Verdict
from gateway.core.webhook.signature import Fault
from gateway.observe import facts
from gateway.observe.exposition import Counted, Counter, Exposition, Family, Gauge, Histogram, Rule, encode
from gateway.observe.readings import ReadFamilies, Readings

# `no_route_keyed`: no route matches the request although its client sent a key.
_CLASSES: Final = ("2xx", "3xx", "4xx", "5xx")
_REASONS: Final = ("no_route", "no_route_keyed", "unkeyed", "store_unavailable")
MODES: Final = ("enforce", "observe")
_ENDINGS: Final = (Event.COMPLETE, Event.RELEASE, Event.FORGET, Event.ABANDON, Event.POSTPONE, Event.BURY)

# The reasons of `WebhookRefused`.
_UNSTORED: Final = (*Fault, "unidentified", "throttled")

_SWEPT: Final = (Event.LAPSE, Event.RETIRE, Event.COLLECT, Event.EXPIRE)


_JUDGED: Final = ("accepted", "refused")


class ReloadResult(StrEnum):
    """What came of an attempt to change the configuration."""

    APPLIED = "applied"
    UNCHANGED = "unchanged"
    REFUSED = "refused"


_DEAD: Final = (UNAUTHORIZED, ATTEMPTS_EXHAUSTED, UNREADABLE, DEADLINE)

_SMALL: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
# For the gateway and its stores; a call of a store is given up after some ten seconds.
_OWN_BUCKETS: Final = (*_SMALL, 2.5, 5.0, 15.0)
# For calls of a store, of which there are many kinds.
_STORE_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 15.0)
# For whole requests, from a replay out of memory to an upstream that times out.
_REQUEST_BUCKETS: Final = (*_SMALL[1:], 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
# For what is only noticed when it takes seconds.
_STALL_BUCKETS: Final = (1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_SWEEP_BUCKETS: Final = (0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0)

F = TypeVar("F", bound=Family)


class Metrics:
    """An observer of events, and what a scrape gets. Belongs to one event loop."""

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
        routes, sinks = tuple(routes), tuple(sinks)
        self._families: dict[str, Family] = {}
        self._read: Callable[[], Readings] = Readings
        self._read_families = ReadFamilies()
        self._reloads = self._counter(
            "idempotency_config_reloads_total",
            "Attempts to change the configuration or its certificates, by result",
            result=ReloadResult,
        )
        self._reload_successful = self._gauge(
            "idempotency_config_last_reload_successful",
            "Whether the last attempt succeeded; 0: what is in force is older than the files",
            Rule.OWN,
        )
        self._reload_successful.put(1)
        self._reload_success = self._gauge(
            "idempotency_config_last_reload_success_timestamp_seconds",
            "When the configuration was last read with success, the start included",
            Rule.OWN,
        )
        self._config_info = self._gauge(
            "idempotency_config_info", "The digest of the configuration in force, without secrets", Rule.OWN, hash=()
        )
        self._certificate_expiries = self._gauge(
            "idempotency_tls_certificate_expiry_timestamp_seconds",
            "When the first certificate of the files in force expires, by what it is for",
            Rule.OWN,
            use=(),
        )
        self._rendering = asyncio.Lock()

        self._requests = self._counter(
            "idempotency_requests_total", "Requests on protected routes, by verdict", route=routes, verdict=Verdict
        )
        self._unprotected_requests = self._counter(
            "idempotency_unprotected_requests_total",
            "Requests that were passed through without protection",
            reason=_REASONS,
        )
        self._region_requests = self._counter(
            "idempotency_region_requests_total",
            "Requests that were sent to the region that their operation is at home in, by what became of them here",
            region=(),
            result=facts.RegionResult,
        )
        observed = tuple(name for name, mode in modes.items() if mode == "observe")
        self._observed = self._counter(
            "idempotency_observed_requests_total",
            "Requests on observed routes, by the verdict that enforcement would have given",
            route=observed,
            verdict=Verdict,
        )
        self._observed_repeats = self._counter(
            "idempotency_observed_repeats_total",
            "Those of them that were equal to an earlier one under their key, and would not have run again",
            route=observed,
        )
        self._observed_rekeyed = self._counter(
            "idempotency_observed_rekeyed_total",
            "Those of them whose caller and content came under another key within 10 minutes before",
            route=observed,
        )
        self._observations_dropped = self._counter(
            "idempotency_observations_dropped_total",
            "Observed requests of which nothing is known, by reason",
            reason=facts.DropReason,
        )
        routes_by_mode = self._gauge("idempotency_routes", "Routes of the configuration", Rule.MAX, mode=MODES)
        for mode in MODES:
            routes_by_mode.put(sum(each == mode for each in modes.values()), mode)
        self._request_durations = self._histogram(
            "idempotency_request_duration_seconds",
            "From the arrival of a request on a protected route to the head of its response, waiting included",
            _REQUEST_BUCKETS,
            route=routes,
            kind=facts.Kind,
        )
        self._responses = self._counter(
            "idempotency_responses_total",
            "Responses to requests on protected routes, by the class of the status",
            route=routes,
            status=_CLASSES,
        )
        self._unprotected_durations = self._histogram(
            "idempotency_unprotected_duration_seconds",
            "From the arrival of a request that is passed through to the head of its response",
            _REQUEST_BUCKETS,
        )
        self._overheads = self._histogram(
            "idempotency_overhead_seconds",
            "The same without the upstream's part, of the requests that were executed",
            _OWN_BUCKETS,
            route=routes,
        )
        self._upstream_durations = self._histogram(
            "idempotency_upstream_duration_seconds",
            "How long the upstream took for an attempt",
            _REQUEST_BUCKETS,
            route=routes,
        )
        self._fetch_durations = self._histogram(
            "idempotency_fetch_duration_seconds",
            "How long the upstream took for the response to a repeat, where it is read from there",
            _REQUEST_BUCKETS,
            route=routes,
        )
        self._claims = self._counter("idempotency_claims_total", "Claims that were granted", route=routes)
        self._accepted = self._counter(
            "idempotency_accepted_total", "Requests that were accepted, to be delivered later", route=routes
        )
        self._status_requests = self._counter(
            "idempotency_status_requests_total",
            "Requests to the status resource, by what they are for and the class of the reply",
            part=facts.StatusPart,
            status=_CLASSES,
        )
        self._refused_webhooks = self._counter(
            "idempotency_inbox_rejected_total",
            "Messages to inboxes of which nothing was stored, by reason",
            route=routes,
            reason=_UNSTORED,
        )
        self._repeated_webhooks = self._counter(
            "idempotency_inbox_duplicates_total", "Events that an inbox had already", route=routes
        )
        self._changed_webhooks = self._counter(
            "idempotency_inbox_changed_total",
            "Those of them that had another content, and were not delivered",
            route=routes,
        )
        self._repeats = self._counter(
            "idempotency_repeats_total",
            "Requests that came again under another key, counted or refused, and those that lack what is compared",
            route=routes,
            result=tuple(facts.RepeatResult),
        )
        # By route or sink, and by the name that the configuration gives the secret.
        self._used_secrets = self._counter(
            "idempotency_secret_used_total", "Messages that a secret of a route or a sink signed", place=(), id=()
        )
        self._key_fetches = self._counter(
            "idempotency_key_set_fetches_total",
            "Attempts to fetch the keys of issuers of tokens",
            result=facts.FetchResult,
        )
        self._decisions = self._counter(
            "idempotency_forward_auth_total",
            "Requests that an authorising service decided about",
            decision=facts.Decision,
        )
        self._deliveries = self._counter(
            "idempotency_deliveries_total",
            "Attempts to deliver accepted requests, by result",
            route=routes,
            result=facts.DeliveryResult,
        )
        self._breaker_open = self._gauge(
            "idempotency_breaker_open",
            "Whether nothing is delivered to an upstream because it cannot be reached",
            Rule.MAX,
            upstream=(),
        )
        self._takeovers = self._counter(
            "idempotency_takeovers_total", "Operations in doubt that were sent again", route=routes
        )
        self._probes = self._counter(
            "idempotency_probes_total",
            "Probes of upstreams about operations in doubt, by finding",
            route=routes,
            finding=facts.ProbeFinding,
        )
        self._settlements = self._counter(
            "idempotency_settlements_total", "Attempts whose end was recorded, by event", route=routes, event=_ENDINGS
        )
        self._late_writes = self._counter(
            "idempotency_late_writes_total", "Attempts whose outcome had to be written more than once", route=routes
        )
        self._refused_writes = self._counter(
            "idempotency_refused_writes_total",
            "Attempts whose outcome the store refused, because the record had gone on without them",
            route=routes,
        )
        self._journaled = self._counter(
            "idempotency_journaled_total",
            "Attempts whose outcome was journaled, because the durable store did not take it",
            route=routes,
        )
        self._journal_failures = self._counter(
            "idempotency_journal_failures_total", "Outcomes that neither the durable store nor the journal took"
        )
        self._unreadable = self._counter(
            "idempotency_unreadable_records_total",
            "Reads of records that could not be decrypted: their key is missing, or they were changed",
        )
        self._lost_leases = self._counter("idempotency_lost_leases_total", "Running attempts that lost their lease")
        # Every worker counts the whole store.
        self._in_doubt = self._gauge(
            "idempotency_in_doubt",
            "Operations in doubt in the whole store, the same in each gateway: use the maximum, not the sum",
            Rule.MAX,
            route=routes,
        )
        self._oldest_in_doubt = self._gauge(
            "idempotency_oldest_in_doubt_seconds",
            "For how long the oldest of them has been in doubt, 0 without one",
            Rule.MAX,
        )
        self._sealed = self._gauge(
            "idempotency_encrypted_operations",
            "Operations, kept requests, events and audits in the whole store with something encrypted with this key, "
            "of each table up to 10000",
            Rule.MAX,
            key_id=(),
        )
        # Every worker counts the whole service.
        self._backlog = self._gauge(
            "idempotency_backlog", "Accepted operations of the service that are not delivered", Rule.MAX, route=routes
        )
        self._oldest_backlog = self._gauge(
            "idempotency_oldest_backlog_seconds",
            "Age of the oldest of them since its acceptance, 0 without one",
            Rule.MAX,
            route=routes,
        )
        self._backlog_bytes = self._gauge(
            "idempotency_backlog_bytes", "What their requests take up in the store", Rule.MAX, route=routes
        )
        self._dead_letters = self._gauge(
            "idempotency_dead_letters",
            "Accepted operations whose delivery was given up, until somebody decides about them, by reason",
            Rule.MAX,
            route=routes,
            reason=_DEAD,
        )
        self._lanes_stopped = self._gauge(
            "idempotency_lanes_stopped",
            "Lanes whose first operation is in doubt or a dead letter, so that the others wait",
            Rule.MAX,
            route=routes,
        )
        self._oldest_stopped = self._gauge(
            "idempotency_oldest_stopped_lane_seconds",
            "For how long the first of them has been stopped, 0 without one",
            Rule.MAX,
            route=routes,
        )
        self._paused = self._gauge(
            "idempotency_paused", "Whether an operator has paused the delivery", Rule.MAX, route=routes
        )
        self._orphans = self._gauge(
            "idempotency_orphans",
            "Accepted operations that no route of this gateway's configuration delivers",
            Rule.MAX,
        )
        self._published = self._counter(
            "idempotency_events_published_total",
            "Publications of events to sinks, by what came of them",
            sink=sinks,
            result=facts.PublicationResult,
        )
        # Every worker counts the whole service.
        self._events_pending = self._gauge(
            "idempotency_events_pending", "Events that a sink has yet to receive", Rule.MAX, sink=sinks
        )
        self._oldest_event = self._gauge(
            "idempotency_oldest_event_seconds", "Age of the oldest of them, 0 without one", Rule.MAX, sink=sinks
        )
        self._events_dead = self._gauge(
            "idempotency_events_dead", "Events that were given up, until somebody redelivers them", Rule.MAX, sink=sinks
        )
        self._sink_suspended = self._gauge(
            "idempotency_sink_suspended",
            "Whether a sink gets nothing until an operator resumes it",
            Rule.MAX,
            sink=sinks,
        )
        self._durable_up, self._grants = False, True
        self._store_up = self._gauge(
            "idempotency_store_up",
            "Whether a store can be reached and, if it is the durable one, grants new keys",
            Rule.MIN,
            tier=("durable", "fast") if has_fast_tier else ("durable",),
        )
        self._store_amnesia = self._gauge(
            "idempotency_store_amnesia",
            "Whether the durable store lost its memory, so that absent keys are refused",
            Rule.MAX,
        )
        self._timeline = self._gauge(
            "idempotency_store_timeline", "The timeline of the Postgres in use: a promotion raises it", Rule.MAX
        )
        self._promotions = self._counter(
            "idempotency_store_promotions_total",
            "Promotions of a standby that this gateway judged, by whether it found that nothing was lost",
            result=_JUDGED,
        )
        self._unvouched = self._gauge(
            "idempotency_store_unvouched_gateways",
            "Gateways that have yet to say whether a promoted standby lost anything",
            Rule.MAX,
        )
        self._synchronous = self._gauge(
            "idempotency_store_synchronous",
            "Whether a standby has what the durable store acknowledges",
            Rule.MIN,
        )
        self._store_durations = self._histogram(
            "idempotency_store_duration_seconds",
            "How long a call of a store took, failed ones included",
            _STORE_BUCKETS,
            tier=(),
            verb=(),
        )
        self._store_errors = self._counter(
            "idempotency_store_errors_total",
            "Calls of a store that failed, by what is known after it",
            tier=(),
            verb=(),
            error=(),
        )
        self._swept = self._counter(
            "idempotency_swept_total", "Records that a sweep of this gateway moved on", event=_SWEPT
        )
        self._sweep_durations = self._histogram(
            "idempotency_sweep_duration_seconds", "How long a sweep took", _SWEEP_BUCKETS
        )
        self._admin_actions = self._counter(
            "idempotency_admin_actions_total",
            "Changes that operators asked for through the admin port, by result",
            action=(),
            result=facts.AdminResult,
        )
        self._sign_ins = self._counter(
            "idempotency_admin_sign_ins_total",
            "Attempts to sign in to the console",
            result=(facts.AdminResult.DONE, facts.AdminResult.REFUSED),
        )
        self._loop_stalls = self._histogram(
            "idempotency_loop_stall_seconds", "How long the event loop was held up, when it was", _STALL_BUCKETS
        )
        self._workers = self._gauge(
            "idempotency_workers",
            "Processes of this gateway; a silent one does not respond, and its numbers are the last known",
            Rule.OWN,
            state=("serving", "silent", "absent"),
        )
        self._worker_restarts = self._counter(
            "idempotency_worker_restarts_total", "Workers that were started because one had died"
        )
        build = self._gauge(
            "idempotency_build_info", "The program that runs; always 1", Rule.OWN, version=(), python=()
        )
        self.count_workers(serving=1, silent=0, absent=0)
        build.put(1, version, platform.python_version())
        self._families.update(self._read_families.by_name)

    def __call__(self, fact: facts.Fact) -> None:  # noqa: C901 -- a case for each kind of fact, the most frequent first
        match fact:
            case facts.StoreCalled():
                self._store_durations.observe(fact.duration_seconds, fact.tier, fact.verb)
                if fact.error is not None:
                    self._store_errors.add(fact.tier, fact.verb, fact.error)
            case facts.RequestAnswered():
                self._requests.add(fact.route, fact.verdict)
                self._responses.add(fact.route, f"{fact.status // 100}xx")
                self._request_durations.observe(fact.duration_seconds, fact.route, fact.kind)
                if fact.verdict is Verdict.FETCHED and fact.upstream_seconds is not None:
                    self._fetch_durations.observe(fact.upstream_seconds, fact.route)
                elif fact.upstream_seconds is not None:
                    self._overheads.observe(max(0.0, fact.duration_seconds - fact.upstream_seconds), fact.route)
            case facts.OperationClaimed():
                self._claims.add(fact.route)
                if fact.is_takeover:
                    self._takeovers.add(fact.route)
            case facts.OperationSettled():
                self._settlements.add(fact.route, fact.event)
                if fact.upstream_seconds is not None:
                    self._upstream_durations.observe(fact.upstream_seconds, fact.route)
                if fact.is_late:
                    self._late_writes.add(fact.route)
            case facts.StatusAnswered():
                self._status_requests.add(fact.part, f"{fact.status // 100}xx")
            case facts.RequestPassed(is_observed=True):
                # Counted once it is judged.
                pass
            case facts.RequestObserved(route, verdict, is_repeat, is_rekeyed):
                self._observed.add(route, verdict)
                if is_repeat:
                    self._observed_repeats.add(route)
                if is_rekeyed:
                    self._observed_rekeyed.add(route)
            case facts.ObservationDropped(reason, number):
                self._observations_dropped.add(reason, amount=number)
            case facts.RequestPassed():
                self._unprotected_requests.add(fact.reason if fact.key_header is None else "no_route_keyed")
                self._unprotected_durations.observe(fact.duration_seconds)
                if fact.route is not None and fact.verdict is not None:
                    self._requests.add(fact.route, fact.verdict)
            case facts.OperationAccepted():
                self._accepted.add(fact.route)
            case facts.WebhookVerified(route, secret_ids):
                for secret_id in secret_ids:
                    self._used_secrets.add(route, secret_id)
            case facts.WebhookRefused(route, reason):
                self._refused_webhooks.add(route, reason)
            case facts.WebhookRepeated():
                self._repeated_webhooks.add(fact.route)
                if fact.is_changed:
                    self._changed_webhooks.add(fact.route)
            case facts.RepeatNoticed(route, result):
                self._repeats.add(route, result)
            case facts.KeysFetched():
                self._key_fetches.add(fact.result)
            case facts.AuthorizationDecided():
                self._decisions.add(fact.decision)
            case facts.DeliveryAttempted():
                self._deliveries.add(fact.route, fact.result)
            case facts.BreakerChanged():
                self._breaker_open.put(fact.is_open, fact.upstream)
            case facts.ProbeMade():
                self._probes.add(fact.route, fact.finding)
            case facts.WriteRefused() | facts.FlushRefused():
                self._refused_writes.add(fact.route)
            case facts.OutcomeJournaled():
                self._journaled.add(fact.route)
                if fact.upstream_seconds is not None:
                    self._upstream_durations.observe(fact.upstream_seconds, fact.route)
            case facts.JournalFailed():
                self._journal_failures.add()
            case facts.RecordUnreadable():
                self._unreadable.add()
            case facts.LeaseLost():
                self._lost_leases.add()
            case facts.MemoryChanged():
                self._store_amnesia.put(fact.is_lost)
            case facts.PromotionJudged():
                self._unvouched.put(fact.unvouched)
                if fact.result in _JUDGED:
                    self._promotions.add(fact.result)
            case facts.StoreMet():
                self._timeline.put(fact.timeline)
            case facts.SynchronyChanged():
                self._synchronous.put(fact.is_synchronous)
            case facts.TierChanged() | facts.GrantsChanged():
                self._put_store_up(fact)
            case facts.EventsPublished():
                number = len(fact.events)
                self._published.add(fact.sink, fact.result, amount=number)
                for secret_id in fact.secret_ids:
                    self._used_secrets.add(fact.sink, secret_id, amount=number)
            case facts.EventsCounted():
                self._count_events(fact)
            case facts.UpstreamChanged() | facts.OperationTakenOver() | facts.EndedUnanswered() | facts.SinkChanged():
                # Counted elsewhere: by the upstream client, as a claim, with the verdict that the caller got, and with
                # the events that wait.
                pass
            case facts.NotesExchanged():
                pass
            case facts.SweepDone():
                for event, count in zip(_SWEPT, (fact.lapsed, fact.retired, fact.collected, fact.expired), strict=True):
                    self._swept.add(event, amount=count)
                self._sweep_durations.observe(fact.duration_seconds)
            case facts.TallyTaken():
                # Including routes that the configuration no longer has: their operations in doubt still are.
                self._in_doubt.put_all({(route,): count for route, count in fact.in_doubt})
                self._oldest_in_doubt.put(fact.oldest_in_doubt_seconds)
                self._sealed.put_all({(key_id,): count for key_id, count in fact.sealed})
            case facts.BacklogTaken():
                self._count_backlog(fact)
            case facts.AdminActed(action, result):
                self._admin_actions.add(action, result)
            case facts.SignedIn(result):
                self._sign_ins.add(result)
            case facts.RegionAsked(region, result):
                self._region_requests.add(region, result)
            case facts.LoopStalled():
                self._loop_stalls.observe(fact.lag_seconds)
            case _:
                assert_never(fact)

    def _put_store_up(self, fact: facts.TierChanged | facts.GrantsChanged) -> None:
        """A durable store that grants nothing is as good as down for who sends new keys."""
        if isinstance(fact, facts.GrantsChanged):
            self._grants = not fact.why
        elif fact.tier == "durable":
            self._durable_up = fact.up
        else:
            self._store_up.put(fact.up, fact.tier)
        self._store_up.put(self._durable_up and self._grants, "durable")

    def _count_events(self, fact: facts.EventsCounted) -> None:
        self._events_pending.put_all({(each.sink,): each.pending for each in fact.sinks})
        self._oldest_event.put_all({(each.sink,): each.oldest_seconds for each in fact.sinks})
        self._events_dead.put_all({(each.sink,): each.dead for each in fact.sinks})
        self._sink_suspended.put_all({(each.sink,): each.is_suspended for each in fact.sinks})

    def _count_backlog(self, fact: facts.BacklogTaken) -> None:
        waiting = fact.waiting
        self._backlog.put_all({(each.route,): each.accepted for each in waiting})
        self._oldest_backlog.put_all({(each.route,): each.oldest_seconds for each in waiting})
        self._backlog_bytes.put_all({(each.route,): each.request_bytes for each in waiting})
        self._dead_letters.put_all(
            {(each.route, reason): count for each in waiting for reason, count in each.dead_letters}
        )
        self._lanes_stopped.put_all({(each.route,): each.lanes_stopped for each in waiting})
        self._oldest_stopped.put_all({(each.route,): each.oldest_stopped_seconds for each in waiting})
        self._paused.put_all({(route,): 1 for route in fact.paused})
        self._orphans.put(fact.orphans)

    def add_routes(self, routes: Iterable[str]) -> None:
        """Have the series of these routes, too."""
        names = tuple(routes)
        for family in self._families.values():
            if "route" in family.label_names:
                family.add_rows(route=names)

    def count_reload(self, result: ReloadResult, digest: str, at_seconds: float) -> None:
        """Count an attempt to change the configuration, by its result; `digest` is of the one in force. Unix time."""
        self._reloads.add(result)
        if result is ReloadResult.REFUSED:
            self._reload_successful.put(0)
        else:
            self.put_configuration(digest, at_seconds)

    @property
    def requests(self) -> dict[str, dict[str, int]]:
        """How many requests there were, by route and verdict, without those of which there was none."""
        found: dict[str, dict[str, int]] = {}
        for (route, verdict), (count,) in self._requests.rows.items():
            if count:
                found.setdefault(route, {})[verdict] = int(count)
        return found

    def put_configuration(self, digest: str, at_seconds: float) -> None:
        """The configuration in force, read just now."""
        self._reload_successful.put(1)
        self._reload_success.put(at_seconds)
        self._config_info.rows.clear()
        self._config_info.put(1, digest)

    def put_certificate_expiries(self, expiries: Mapping[str, float]) -> None:
        """When the first certificate of each use expires, as Unix time."""
        self._certificate_expiries.rows.clear()
        for use, at_seconds in expiries.items():
            self._certificate_expiries.put(at_seconds, use)

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
            self._read_families.put(self._read())
            # Called here, because a worker may end and be absorbed while another scrape is being written.
            numbers, pids = workers()
            families = [
                (family, dict(family.rows), [each.get(name, {}) for each in numbers])
                for name, family in self._families.items()
            ]
            return await asyncio.to_thread(encode, families, accept, pids)

    # -- several workers ----------------------------------------------------------------------------------------------

    def take(self) -> Counted:
        """All numbers as of now, for the supervisor to merge."""
        self._read_families.put(self._read())
        return {name: packed for name, family in self._families.items() if (packed := family.packed())}

    def absorb(self, numbers: Counted) -> None:
        """Add what a worker that ended had counted. Its gauges end with it."""
        for name, rows in numbers.items():
            self._families[name].absorb(rows)

    def count_workers(self, *, serving: int, silent: int, absent: int) -> None:
        """Set how many workers are in each state."""
        self._workers.put(serving, "serving")
        self._workers.put(silent, "silent")
        self._workers.put(absent, "absent")

    def count_restart(self) -> None:
        """Count a worker that replaces one that died."""
        self._worker_restarts.add()

    # -- families -----------------------------------------------------------------------------------------------------

    def _counter(self, name: str, text: str, **labels: Iterable[str]) -> Counter:
        return self._new(Counter(name, text, labels))

    def _gauge(self, name: str, text: str, rule: Rule, **labels: Iterable[str]) -> Gauge:
        return self._new(Gauge(name, text, labels, rule))

    def _histogram(self, name: str, text: str, bounds: Sequence[float], **labels: Iterable[str]) -> Histogram:
        return self._new(Histogram(name, text, labels, bounds))

    def _new(self, family: F) -> F:
        self._families[family.name] = family
        return family
