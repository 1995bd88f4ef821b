"""The parts of a gateway between its listeners and its stores, and how they are connected.

The configuration sets their behaviour, an `Environment` what they run on. They are put together only here: tests and
the simulation pass other clocks, stores and upstreams, and change settings only in the configuration.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Collection, Coroutine, Hashable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, fields
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeVar
from uuid import uuid4

from gateway import __version__
from gateway.app.host import stamp_of
from gateway.app.life import StartError
from gateway.app.stores import amnesia_window_us, keys_of, relay_of, reporting_sealing, serving_of, tiered_store
from gateway.callers import (
    CONNECTIONS_MAX,
    ClientCertificates,
    ForwardAuth,
    Key,
    KeySet,
    KeySetInvalid,
    KeySource,
    TokenVerifier,
    discovered_source,
    fetch_file,
    read_key_file,
    url_source,
)
from gateway.config import Config
from gateway.config.delivery import TCP_USER_TIMEOUT_SECONDS, UpstreamTls
from gateway.config.delivery import Upstream as UpstreamConfig
from gateway.config.leaf import PostgresUrl, RedisUrl, SqliteUrl
from gateway.config.route import ClientCertificateScope, ForwardAuthScope, JwtScope, TokenIssuer, TokenSecret, parts_of
from gateway.config.route import ForwardAuth as Service
from gateway.core.confidential import KeyRing
from gateway.core.identity.key import ForwardAuthScope as ForwardAuthSpec
from gateway.core.identity.key import VerifiedSpec
from gateway.core.operation import Snapshot, microseconds
from gateway.deliver import DeliveryWorker, Places
from gateway.http.handler import ReservedHeaders
from gateway.http.passthrough import Passthrough
from gateway.observe.facts import Events, UpstreamChanged
from gateway.observe.tracing import Tracing
from gateway.protect.accepting import Accepting
from gateway.protect.claiming import Claiming, Leases
from gateway.protect.coordinator import Coordinator
from gateway.protect.duplicates import Repeats, Waiting
from gateway.protect.identification import Callers, Closable, Identifying, Verifier
from gateway.protect.inbox import Verifying
from gateway.protect.journaling import Journaling
from gateway.protect.observing import Observing
from gateway.protect.operation import Drained
from gateway.protect.probing import PROBES_MAX, Prober
from gateway.protect.regions import Regions
from gateway.protect.request import Request, Spool, UploadSlots
from gateway.protect.resource import StatusResource
from gateway.protect.route import ClientFor, edge_route, route_of, shape_of, target_of
from gateway.store.base import (
    WORK,
    FastTier,
    Indefinite,
    NotApplied,
    OnPurge,
    Store,
    StoreError,
    boot_seconds,
    end_tasks,
)
from gateway.store.files import AttemptFiles
from gateway.store.journal.journal import SqliteJournal
from gateway.store.memory.epoch import SeenFile, SharedNote, WitnessFiles
from gateway.store.memory.guard import EpochGuard
from gateway.store.memory.promotion import Conditions, Fleet
from gateway.store.operations import ObservationStore
from gateway.upkeep.duty import Duty, RecoveryWorker, Sweeper, TallyTaker, Turns, recovered_by_name, repeat
from gateway.upkeep.leftover import Flusher, UnsentWorker
from gateway.upstream import NotSent, Upstream, UpstreamSettings, UpstreamStats, tls_context
from gateway.upstream.connect import PemError, client_context

# -- callers -----------------------------------------------------------------------------------------------------------

T = TypeVar("T")


def callers_of(
    config: Config,
    events: Events,
    clock: Callable[[], float],
    wall_seconds: Callable[[], float],
    before: Callers | None = None,
    *,
    is_observed: bool = False,
) -> Callers:
    """The callers of all routes, and who signs in to the console; or the callers of those that are observed. `clock`
    counts seconds, `wall_seconds` is Unix time. Key sets begin with what those of `before` know, the same ones from
    unchanged files. Raises `StartError` where a file of theirs cannot be used. Nothing is asked of an issuer yet."""
    made: dict[Hashable, Any] = {}
    proxies, waiting_max = tuple(config.trusted_proxies), config.limits.max_in_flight

    def shared(key: Hashable, make: Callable[[], T]) -> T:
        if key not in made:
            made[key] = make()
        found: T = made[key]
        return found

    def keys_of(issuer: TokenIssuer) -> KeySet:
        name, keys = issuer.issuer, issuer.keys
        if isinstance(keys, TokenSecret):
            secret = Key(None, frozenset(issuer.algorithms), keys.secret.get_secret_value().encode())
            key: Hashable = (name, keys, issuer.algorithms)
            return shared(key, lambda: KeySet(name, (secret,), clock=clock))
        file = issuer.ca if issuer.is_fetched else Path(keys)
        key = (name, keys, issuer.ca, issuer.stale_for, stamp_of(file))
        known = None if before is None else before.made.get(key)
        return shared(key, lambda: _fetched(issuer, keys, clock, events, known))

    def tokens(part: JwtScope) -> TokenVerifier:
        sets = {each.issuer: keys_of(each) for each in part.issuers}
        return shared(part, lambda: TokenVerifier(part, sets, wall_seconds, waiting_max=waiting_max))

    def forward_auth(service: Service, scope: ForwardAuthSpec | None = None) -> ForwardAuth:
        return shared(
            (service, scope),
            lambda: ForwardAuth(
                service,
                scope,
                _auth_client(service),
                events,
                trusted_proxies=proxies,
                asked_max=waiting_max,
                clock=clock,
            ),
        )

    routes = [route for route in config.routes if not is_observed or config.mode_of(route) == "observe"]
    # Of what is only observed, nobody is asked for a permission.
    asked = [route.authorize.forward_auth for route in routes if route.authorize is not None and not is_observed]
    sign_in = None if config.admin.sign_in is None or is_observed else config.admin.sign_in.jwt
    sign_in_part = () if sign_in is None else (sign_in.scope,)
    verifiers: dict[VerifiedSpec | Service, Verifier] = {service: forward_auth(service) for service in asked}
    for part in (*(part for route in routes for part in parts_of(route.scope)), *sign_in_part):
        match part:
            case JwtScope():
                verifiers[part.compiled] = tokens(part)
            case ForwardAuthScope():
                verifiers[part.compiled] = forward_auth(part.forward_auth, part.compiled)
            case ClientCertificateScope():
                verifiers[part.compiled] = ClientCertificates(part.compiled, proxies, wall_seconds)
    return Callers(verifiers, made)


def _fetched(
    issuer: TokenIssuer, place: str, clock: Callable[[], float], events: Events, before: Closable | None
) -> KeySet:
    """A key set that is fetched from its place, and knows what the one before knows."""
    source = _source(issuer.issuer, place, issuer.ca)
    found = KeySet(issuer.issuer, (), source, stale_seconds=issuer.stale_for, clock=clock, publish=events.publish)
    if isinstance(before, KeySet):
        found.follow(before)
    return found


def reserved_headers(config: Config) -> ReservedHeaders | None:
    """The headers that authorising services alone may set; None where there are none."""
    reserved = {
        name.encode()
        for route in config.routes
        if config.share_of(route) > 0
        for service in route.authorities
        for name in service.names
    }
    return ReservedHeaders(reserved) if reserved else None


def _auth_client(service: Service) -> Upstream:
    url = service.url.service
    try:
        tls = tls_context(service.ca) if url.scheme == "https" else None
    except OSError as error:
        raise StartError(f"the TLS files for {service.url} cannot be used: {error}") from error
    return Upstream(
        UpstreamSettings(
            host=url.host,
            port=url.port,
            tls=tls,
            connect_timeout_seconds=service.timeout,
            response_timeout_seconds=service.timeout,
            connections_max=0,
            connections_reserved=CONNECTIONS_MAX,
        )
    )


def _source(issuer: str, place: str, ca: Path | None) -> KeySource:
    """Where the keys of an issuer come from, by its setting `keys`."""
    try:
        if place == "discover":
            return discovered_source(issuer, client_context(ca))
        if not place.startswith("/"):
            return url_source(place, client_context(ca))
        read_key_file(Path(place))
        return partial(fetch_file, Path(place))
    except KeySetInvalid as error:
        raise StartError(f"the keys in {place} cannot be used: {error}") from error
    except OSError as error:
        # A `PemError` names its file.
        reason = str(error) if isinstance(error, PemError) else f"{error.filename}: {error.strerror}"
        raise StartError(f"the files for the issuer {issuer} cannot be used: {reason}") from error


# -- tracing -----------------------------------------------------------------------------------------------------------
# As the semantic conventions for databases name them.
_SYSTEMS: Final = {SqliteUrl: "sqlite", PostgresUrl: "postgresql", RedisUrl: "redis"}


# For a configuration without a secret. A reload keeps it, for what began before is followed afterwards.
_OWN_SECRET: Final = os.urandom(32)


def tracing_of(config: Config) -> Tracing | None:
    """None where `traces` is left out. Raises `StartError` without the packages for it."""
    traces = config.traces
    if traces is None:
        return None
    upstreams = {route.name: config.upstream_for(route).url for route in config.routes}
    try:
        return Tracing(
            traces.sample,
            f"{traces.endpoint.service}{traces.endpoint.target}",
            {name: value.get_secret_value() for name, value in traces.headers.items()},
            trusted=config.trusted_proxies if traces.accept == "trusted" else (),
            accepts_all=traces.accept == "all",
            service=config.service,
            version=__version__,
            templates={route.name: route.match.path.text for route in config.routes},
            upstreams={name: (url.host, url.port) for name, url in upstreams.items()},
            store_system=_SYSTEMS[type(config.store.durable)] if traces.detail == "store" else None,
            secret=_secret(config),
        )
    except ModuleNotFoundError as error:
        raise StartError(str(error)) from error


def _secret(config: Config) -> bytes:
    """The same at each gateway where there is a secret; where requests are kept to be delivered, there is one."""
    secrets = config.secrets
    keys = [each.key for each in secrets.encryption] or [each.key for each in secrets.fingerprint_keys]
    return keys[0].get_secret_value() if keys else _OWN_SECRET


# -- upstreams ---------------------------------------------------------------------------------------------------------
# The upstream clients. Routes with the same upstream settings share one.


def upstream_settings(config: Config, upstream: UpstreamConfig) -> UpstreamSettings:
    """The settings of an upstream's client. Raises `OSError` when one of its TLS files cannot be used."""
    tls = upstream.tls or UpstreamTls()
    # Whichever upstream they go to.
    deliveries_max = sum(config.delivery_for(route).max_in_flight for route in config.routes if route.is_accepting)
    return UpstreamSettings(
        host=upstream.url.host,
        port=upstream.url.port,
        tls=None if upstream.url.scheme == "http" else tls_context(tls.ca, tls.cert, tls.key),
        server_name=tls.server_name,
        connect_timeout_seconds=upstream.connect_timeout,
        response_timeout_seconds=upstream.response_timeout,
        keepalive_seconds=upstream.keepalive,
        tcp_user_timeout_seconds=TCP_USER_TIMEOUT_SECONDS,
        header_bytes_max=config.limits.max_header_bytes,
        connections_max=upstream.max_connections,
        connections_reserved=config.limits.max_in_flight + PROBES_MAX + deliveries_max,
    )


class Upstreams:
    """The clients of one configuration, until `close`. Publishes when no connection to an upstream can be made."""

    def __init__(self, config: Config, events: Events) -> None:
        self._config = config
        self._events = events
        self._clients: dict[UpstreamConfig, tuple[str, Upstream]] = {}

    def client_for(self, upstream: UpstreamConfig) -> Upstream:
        """The client of this upstream. Raises `StartError` when its TLS files cannot be used."""
        # The settings that concern the client; the others are each route's own.
        shared = upstream.model_copy(update={"host": "preserve", "key": "original", "answer_within": 0.0})
        if shared not in self._clients:
            url = str(upstream.url)
            try:
                settings = upstream_settings(self._config, upstream)
            except OSError as error:
                raise StartError(f"the TLS files for {upstream.url} cannot be used: {error}") from error
            self._clients[shared] = url, Upstream(settings, partial(self._publish, url))
        return self._clients[shared][1]

    @property
    def stats(self) -> dict[str, UpstreamStats]:
        """The counts of each upstream, by its URL. An upstream may have several clients."""
        found: dict[str, UpstreamStats] = {}
        for url, client in self._clients.values():
            total = found.setdefault(url, UpstreamStats())
            for each in fields(UpstreamStats):
                setattr(total, each.name, getattr(total, each.name) + getattr(client.stats, each.name))
        return found

    async def close(self) -> None:
        """Close every client, even if closing another one fails."""
        async with AsyncExitStack() as stack:
            for _, client in self._clients.values():
                stack.push_async_callback(client.close)

    def _publish(self, url: str, failure: NotSent | None) -> None:
        reason, detail = ("", "") if failure is None else (failure.reason.value, failure.detail)
        self._events.publish(UpstreamChanged(url, reason, detail))


_LOG = logging.getLogger("gateway")

_STORE_PAUSE_SECONDS_MIN: Final = 0.2
_STORE_PAUSE_SECONDS_MAX: Final = 5.0
# How long a start and a stop wait for what is in the journal. It is flushed in the background, too.
_FIRST_FLUSH_SECONDS: Final = 10.0
_LAST_FLUSH_SECONDS: Final = 3.0
_WATCH_SECONDS: Final = 60.0
_NOTES_SECONDS: Final = 15.0
_NOTES_SECONDS_AMNESIC: Final = 1.0
# How long somebody who wants to know waits for a store that may be back.
_ASK_SECONDS: Final = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What the parts of one process run on. None of it is open yet; the caller opens and closes the journal and the
    attempt files. `holder` names the process in records. `durable` is the bare durable store, without its guard, and
    `fleet` the same if it can be promoted; `ring` has the keys of whatever is encrypted, None if nothing is. `clock`
    counts seconds, also while the machine sleeps; `wall_seconds` is Unix time, which tokens are compared with.
    `partitions_late` counts the responses that had to wait for room in the store; `on_purge` is the durable store's, if
    it tells of purges."""

    holder: str
    durable: Store
    fast: FastTier | None
    ring: KeyRing | None
    observations: ObservationStore | None = None
    seen_file: SeenFile
    shared_note: SharedNote | None
    witness_files: WitnessFiles | None = None
    fleet: Fleet | None = None
    attempt_files: AttemptFiles
    journal: SqliteJournal
    clock: Callable[[], float] = boot_seconds
    wall_seconds: Callable[[], float] = time.time
    partitions_late: Callable[[], int] = lambda: 0
    on_purge: OnPurge | None = None


class Parts:
    """The parts of one process. Lives on one event loop, which must be running."""

    def __init__(
        self,
        config: Config,
        environment: Environment,
        events: Events,
        client_for: ClientFor,
        tracing: Tracing | None = None,
        before: Parts | None = None,
    ) -> None:
        """`client_for` gives the client of an upstream. `before` are those of the gateway that is to be followed: they
        learn to open what these seal. Raises `StartError`, and what `client_for` raises. They are made in the order of
        starting, each with what was made before it."""
        if before is not None:
            before.learn(config)
        self.config, self._environment, self._events = config, environment, events
        self._clock, self._ring, self._journal = environment.clock, environment.ring, environment.journal
        self.serving = serving_of(config)
        self._make_stores()
        self._make_policy(client_for, before)
        self._make_traffic(tracing)
        self._make_delivery()
        self._make_upkeep()
        self._asker = uuid4()
        self._asking: asyncio.Task[None] | None = None

    def _make_stores(self) -> None:
        """The durable store behind its guard and its copies, what ends the claims of killed processes, and what keeps
        an outcome that the store does not take."""
        config, environment, events, clock = self.config, self._environment, self._events, self._clock
        settings, fast = config.store, environment.fast
        sealing = reporting_sealing(environment.ring, events, clock)
        self.guard = EpochGuard(
            environment.durable,
            events,
            self.serving,
            sealing=sealing,
            seen_file=environment.seen_file,
            amnesia_window_us=amnesia_window_us(config),
            shared_note=environment.shared_note,
            witness_files=environment.witness_files,
            fleet=environment.fleet,
            conditions=Conditions(
                settings.promotion, settings.promotion_wait, settings.probation, settings.synchronous
            ),
            # The fast tier has copies of this very store.
            on_met=(lambda _identity, _generation: None) if fast is None else fast.bind,
        )
        self.store = tiered_store(config, self.guard, fast, events, clock, environment.on_purge)
        remembered = {route.operation: route.retention.remember_us for route in config.routes}
        self._unsent = UnsentWorker(
            self.store,
            environment.attempt_files,
            events,
            remember_us=lambda identity: remembered.get(identity.operation),
            arrival_seconds=settings.lease,
            clock=clock,
        )
        memory_of, unsent_of = self.guard.noted_memory, self._unsent.unsent_of
        self._journaling = Journaling(
            self._journal, self.store, events, sealing, memory_of=memory_of, unsent_of=unsent_of
        )
        self._waiting = Waiting(self.store)

    def _make_policy(self, client_for: ClientFor, before: Parts | None) -> None:
        """What the configuration decides about requests."""
        config, environment, events, clock = self.config, self._environment, self._events, self._clock
        service, identity_secret = config.service, config.secrets.identity_secret
        wall_seconds, spool = environment.wall_seconds, config.state_dir / "spool"
        # What is only observed changes none of the numbers of what is protected.
        silent = Events()
        known, known_observed = (None, None) if before is None else (before.callers, before.observed_callers)
        self.callers: Callers = callers_of(config, events, clock, wall_seconds, known)
        self.observed_callers: Callers = callers_of(
            config, silent, clock, wall_seconds, known_observed, is_observed=True
        )
        self.observing = Observing(
            service,
            Identifying(
                service,
                Spool(spool),
                UploadSlots(1),
                Verifying(silent, clock),
                self.observed_callers,
                identity_secret=identity_secret,
            ),
            environment.observations,
            events,
            wall_us=lambda: microseconds(wall_seconds()),
            clock=clock,
            shows_header=config.observe.header,
        )
        self._identifying = Identifying(
            service,
            Spool(spool, encrypts=bool(config.secrets.encryption)),
            UploadSlots(config.limits.max_in_flight),
            Verifying(events, clock),
            self.callers,
            identity_secret=identity_secret,
            keeps_clear_keys=config.store.clear_keys,
        )
        self.routes = routes = [
            route_of(config, route, client_for(config.upstream_for(route))) for route in config.routes
        ]
        self.by_name = {route.name: route for route in routes}
        self._accepting = {route.name: route.operation for route in routes if route.accept is not None}
        # What the listener for clients looks for: `routes`, or what observes their requests.
        self.edge_routes = [edge_route(config, route, client_for) for route in routes]
        key_names = frozenset(name for route in routes for name in route.key.headers) | {b"idempotency-key"}
        target = target_of(config, config.upstream, client_for(config.upstream))
        self.forward = Passthrough(target, events, key_names, self.observing, shape_of(config))
        self.reserved = reserved_headers(config)
        self.regions = _regions_of(config, client_for, events, wall_seconds)
        # The sender of an inbox is no caller: nobody has the credentials to be shown its events.
        shown = [route for route in routes if route.inbox is None]
        self.resource: StatusResource | None = None
        if any(route.accept is not None for route in shown):
            self.resource = StatusResource(
                self.store,
                self._journaling,
                self._waiting,
                self.callers,
                shown,
                service=service,
                identity_secret=identity_secret,
                path=config.operations.path,
                prefix=config.status_prefix,
                in_flight_max=config.limits.max_in_flight,
                events=events,
                clock=clock,
                shape=shape_of(config),
                cors=config.cors,
                regions=self.regions,
            )

    def _make_traffic(self, tracing: Tracing | None) -> None:
        """What decides about a request."""
        config, environment, events, clock = self.config, self._environment, self._events, self._clock
        store, journaling, fast, lease_seconds = self.store, self._journaling, environment.fast, config.store.lease
        self.claiming = claiming = Claiming(
            store,
            environment.attempt_files,
            holder=environment.holder,
            lease_seconds=lease_seconds,
            grace_seconds=config.store.journal_grace,
            reachable_seconds=lambda: store.durable_reachable_seconds,
            is_known=journaling.knows,
            clock=clock,
        )
        self.leases = Leases(store, events, lease_seconds=lease_seconds, clock=clock)
        self.prober = Prober(
            store,
            events,
            service=config.service,
            may_recover=claiming.may_recover,
            is_known=journaling.knows,
            who=f"probe by {environment.holder}",
            steady_seconds=lambda: store.steadiness.steady_seconds(clock()),
        )
        self.coordinator = Coordinator(
            identifying=self._identifying,
            store=store,
            journaling=journaling,
            claiming=claiming,
            leases=self.leases,
            waiting=self._waiting,
            prober=self.prober,
            accepting=Accepting(
                store, events, service=config.service, ring=self._ring, hand_over=self._hand_over, clock=clock
            ),
            repeats=Repeats(events, None if fast is None else fast.first_of, clock),
            events=events,
            in_flight_max=config.limits.max_in_flight,
            recall=store.recall,
            cached=store.cached,
            look_up=None if fast is None else store.look_up,
            regions=self.regions,
            tracing=tracing,
        )

    def _make_delivery(self) -> None:
        """What sends accepted requests, and what publishes events; None without sinks."""
        config, events, clock = self.config, self._events, self._clock
        self.delivery = DeliveryWorker(
            self.store,
            self.coordinator.operations,
            Places(config.delivery.breaker.compiled, events, clock),
            self.routes,
            self._ring if config.delivery.workers else None,
            service=config.service,
            is_stalled=self.leases.is_stalled,
            clock=clock,
        )
        self.relay = relay_of(config, self.store.cold, events, clock)

    def _make_upkeep(self) -> None:
        """What is done in the background, and whose turn it is."""
        config, events, clock, store = self.config, self._events, self._clock, self.store
        service, sinks = config.service, [sink.name for sink in config.events.sinks]
        resend = self.delivery.resend if config.delivery.workers else None
        # Gateways with other routes or sinks have turns of their own: each of these is some gateway's work.
        recovered = recovered_by_name(self.by_name, resends=resend is not None)
        counted = [f"{name} {operation}" for name, operation in self._accepting.items()]
        counted += [f"sink {name}" for name in sinks]
        turn_names = {
            Duty.SWEEP: "sweep",
            Duty.RECOVERY: f"recovery {service} {_digest_of(recovered)}",
            Duty.TALLY: f"tally {service} {_digest_of(counted)}",
        }
        self.turns = turns = Turns(store.cold, turn_names, clock=clock)
        self._flusher = Flusher(store, self._journal, events, clock=clock)
        self._sweeper = Sweeper(
            store.cold,
            events,
            has_turn=partial(turns.has, Duty.SWEEP),
            clock_steps=lambda: store.steadiness.steps,
            clock=clock,
        )
        self._tally_taker = TallyTaker(
            store.cold,
            events,
            service=service,
            accepting=self._accepting,
            sinks=sinks,
            has_turn=partial(turns.has, Duty.TALLY),
        )
        self._recovery = RecoveryWorker(
            store.cold,
            self.prober,
            recovered,
            service=service,
            may_recover=self.claiming.may_recover,
            resend=resend,
            has_turn=partial(turns.has, Duty.RECOVERY),
        )

    def learn(self, config: Config) -> None:
        """Open what a gateway with this configuration seals, too. Raises `StartError`."""
        if self._ring is not None:
            try:
                self._ring.learn(keys_of(config))
            except ValueError as error:
                raise StartError(f"secrets.encryption: {error}") from error

    async def leave_work(self) -> None:
        """Leave what is done in the background to the gateway that has taken over."""
        self.stop_upkeep()
        self.delivery.stop()
        if self.relay is not None:
            self.relay.stop()
        await self.turns.leave()

    def _hand_over(self, request: Request, snapshot: Snapshot) -> None:
        """The worker is made after what accepts, because it delivers operations of the coordinator."""
        self.delivery.deliver_accepted(request, snapshot)

    async def start_store(self) -> bool:
        """Start the stores and flush the journal; False when the durable one is down: then call `keep_starting`. Raises
        `StartRefused`."""
        try:
            await self.store.start()
        except (NotApplied, Indefinite):
            return False
        await self._flush(_FIRST_FLUSH_SECONDS)
        return True

    async def keep_starting(self) -> None:
        """Try until the durable store is up. Raises `StartRefused`, which is not transient."""
        pause = _STORE_PAUSE_SECONDS_MIN
        while True:
            await asyncio.sleep(pause)
            try:
                await self.store.start()
            except (NotApplied, Indefinite):
                pause = min(pause * 2, _STORE_PAUSE_SECONDS_MAX)
            else:
                return

    def upkeep(self) -> list[Coroutine[Any, Any, None]]:
        """What to run in the background until cancelled. `leases` is not here: it must run before any request."""
        return [
            self._flusher.run(),
            self._unsent.run(),
            repeat(self._exchange_notes, pause_seconds=_NOTES_SECONDS, sleep=self._sleep_between_notes),
            self.turns.run(),
            self._sweeper.run(),
            self._tally_taker.run(),
            self._recovery.run(),
            self.delivery.run(),
            self._follow_news(),
            *([] if self.relay is None else [self.relay.run()]),
            self.observing.run(),
        ]

    async def _exchange_notes(self) -> float:
        await self.guard.exchange_notes()
        return _NOTES_SECONDS

    async def ask_store(self) -> None:
        """Find out by a write of no consequence whether the durable store is up, where the last call says that it is
        not. Waits for a bounded time; several callers share one question."""
        if self.store.durable_up:
            return
        if self._asking is None or self._asking.done():
            self._asking = asyncio.get_running_loop().create_task(self._ask_store())
        await asyncio.wait((self._asking,), timeout=_ASK_SECONDS)

    async def end_asking(self) -> None:
        """To be called when nobody asks any more."""
        await end_tasks((self._asking,))

    async def _ask_store(self) -> None:
        with suppress(StoreError):
            await self.store.cold.take_turns(self._asker, (f"asked by {self._asker}",), microseconds(_ASK_SECONDS))

    async def _sleep_between_notes(self, seconds: float) -> None:
        """Readiness and metrics are to follow soon when the store is back, or the loss of its memory is accepted."""
        until = self._clock() + seconds
        while (left := until - self._clock()) > 0:
            await asyncio.sleep(min(left, _NOTES_SECONDS_AMNESIC))
            await self.ask_store()
            if self.guard.is_amnesic:
                return

    async def _follow_news(self) -> None:
        """Wake the workers at news of work, from other gateways and from operators. Polls find what had no news."""
        while True:
            # Opened anew now and then: the fast tier may be of another store by then, with other channels.
            async with self.store.watch(WORK) as watch:
                while await watch.wait_changed(_WATCH_SECONDS):
                    self.delivery.wake()
                    if self.relay is not None:
                        self.relay.wake()

    def stop_upkeep(self) -> None:
        """Start no more background work, except flushing."""
        self.turns.stop()
        self._unsent.stop()
        self._sweeper.stop()

    async def drain(self) -> tuple[Drained, int]:
        """End operations in flight; returns how they ended, and how many outcomes stay in the journal."""
        self.delivery.stop()
        await self.turns.leave()
        drained = await self.coordinator.drain(self.config.shutdown.drain_timeout)
        await self.delivery.close()
        await self.observing.close()
        await self._flush(_LAST_FLUSH_SECONDS)
        if self.relay is not None:
            await self.relay.close()
        return drained, self._journal.tally.waiting

    async def _flush(self, seconds: float) -> None:
        """Flush the journal for at most this long; the flusher's own task does the rest."""
        try:
            async with asyncio.timeout(seconds):
                await self._flusher.run_once()
        except (TimeoutError, StoreError) as error:
            _LOG.warning("outcomes stay in the journal for now: %s", str(error) or "the durable store is slow")


def _regions_of(
    config: Config, client_for: ClientFor, events: Events, wall_seconds: Callable[[], float]
) -> Regions | None:
    """The regions; None where all gateways share one store."""
    regions = config.regions
    if regions is None:
        return None
    homes = {
        home.name: client_for(config.upstream.model_copy(update={"url": home.url, "tls": home.tls}))
        for home in regions.homes
    }
    return Regions(regions.here, homes, regions.key.get_secret_value(), events, wall_seconds=wall_seconds)


def _digest_of(names: Collection[str]) -> str:
    return sha256("\n".join(sorted(names)).encode()).hexdigest()[:16]
