"""One gateway process: start and shutdown.

Owns the listeners, and the order of start and shutdown. Decides nothing about a request.

The order of starting: first what can be wrong with this machine (directories, certificates, the journal), then the
stores, to which the journal is flushed, then the listeners. If the durable store cannot be reached, the gateway serves
all the same: it refuses requests that need the store, passes everything else, and tries the store until it responds. A
store that must not be used ends the process.

The order of stopping: readiness falls, `shutdown.delay` passes so that load balancers notice, the listener closes,
operations in flight are finished and recorded within `shutdown.drain_timeout`, the others end with what is known of
them, and the stores close last.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from gateway import EXIT_OK, EXIT_WORK_LEFT, __version__
from gateway.admin.api import AdminApi
from gateway.app.descriptors import client_connections_max
from gateway.app.encryption import key_ring
from gateway.app.events import RelayWaker
from gateway.app.host import make_state_dir, server_tls
from gateway.app.life import StartError
from gateway.app.operating import admin_api, adopt
from gateway.app.parts import Environment, Parts, Policy
from gateway.app.reload import Reloading, ReloadRefused, Report
from gateway.app.seats import Handed, Seating
from gateway.app.stores import (
    attempt_files,
    bare_store,
    fleet_of,
    journal_directory,
    make_fast_tier,
    name_of,
    on_purge_of,
    partitions_late_of,
    refuse_unreadable_journals,
    seen_file,
    shared_note,
    witness_files,
)
from gateway.app.tracing import Traces
from gateway.app.upstreams import Clients, Upstreams
from gateway.config import Address, Config
from gateway.core.confidential import Sealing
from gateway.core.routing import RouteTable
from gateway.http.connection import EdgeSettings
from gateway.http.handler import Served
from gateway.http.server import Edge, ListenError, listen_fault
from gateway.observe.facts import Events, Observer
from gateway.observe.metrics import Metrics
from gateway.observe.readings import Readings
from gateway.observe.status import Health, StatusServer
from gateway.protect.route import shape_of
from gateway.store.base import NotApplied, StartRefused, StoreError
from gateway.store.journal.journal import SqliteJournal
from gateway.upkeep.turns import Duty

_LOG = logging.getLogger("gateway")

_EDGE_GRACE_SECONDS: Final = 1.0
# For calls of a store that are under way: nothing waits for their results any more.
_STORE_CLOSE_SECONDS: Final = 1.0


class Gateway:
    """A gateway in this process: `start` it, `stop` it. Lives on one event loop."""

    def __init__(
        self,
        config: Config,
        observers: tuple[Observer, ...] = (),
        lines_dropped: Callable[[], int] = lambda: 0,
        handed: Handed | None = None,
        environment: Environment | None = None,
        *,
        is_public: bool = True,
        read: Callable[[], Config] | None = None,
        file: Path | None = None,
        reload: Callable[[], Awaitable[Report]] | None = None,
        on_switch: Callable[[Config], None] = lambda _: None,
    ) -> None:
        """Must be called with the event loop running; opens nothing yet. Raises `StartError`.

        `observers` get every event; `lines_dropped` counts the log lines that were lost, for the metrics. A worker
        listens on the seats that it is `handed`, and has no status port: its supervisor has it. `environment` is this
        machine by default. One that is not `is_public` has no listener for clients, and only delivers.
        `read` reads `file` again, for reloads; a worker has its supervisor `reload`, for the admin port. `on_switch`
        gets each configuration that is put in force after the start.
        """
        self.config = config
        self._is_public = is_public
        self._on_switch = on_switch
        self._check_purpose(config)
        self._lines_dropped = lines_dropped
        make_state_dir(config)

        has_fast_tier = config.store.fast is not None
        self.health = Health(fast_up=False if has_fast_tier else None)
        self.metrics = Metrics(
            [route.name for route in config.routes],
            has_fast_tier=has_fast_tier,
            version=__version__,
            sinks=[sink.name for sink in config.events.sinks],
            modes={route.name: config.mode_of(route) for route in config.routes},
        )
        self._traces = Traces()
        relay_waker = RelayWaker()
        self.events = Events(
            self.metrics, self.health, *observers, relay_waker, self._traces, count=self.metrics.counting
        )
        self._upstreams = Upstreams(self.events)
        environment = environment or environment_of(config)
        self._partitions_late = environment.partitions_late
        self._journal = environment.journal
        self._attempt_files = environment.attempt_files
        clients = Clients(self._upstreams, config)
        self._parts = Parts(config, environment, self.events, clients.client_for)
        relay_waker.relay = self._parts.relay
        self._upstreams.adopt(clients)
        self._store = self._parts.store
        self.coordinator = self._parts.coordinator
        self._served = self._served_of(self._parts.policy)
        self._edge = self._edge_of(self._served, server_tls(config.listen.tls))
        self.metrics.read_with(self._readings)
        self.seating = Seating(self._edge, handed) if handed is not None else None
        self._status = StatusServer(self.health, self.metrics.render, self._parts.ask_store)
        self._reloading: Reloading | None = None
        if read is not None:
            self._reloading = Reloading(config, read, self._apply, self.metrics, self.health, file)
            reload = self._reloading.reload
        self._admin = admin_api(
            config,
            self._store,
            self.events,
            self.health,
            self.metrics,
            in_force=lambda: self.config,
            observations=environment.observations,
            reload=reload,
        )
        # Of earlier configurations, as long as a request has one.
        self._earlier: list[Served] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._skips_delay = asyncio.Event()
        self.failed: asyncio.Future[StartError] = asyncio.get_running_loop().create_future()
        """Resolved when the gateway finds out, after its start, that it must not go on."""
        self.address = ("", 0)
        self.status_address = ("", 0)
        self.admin_address = ("", 0)

    async def start(self) -> None:
        """Serve. Raises `StartError`, and then nothing is left open."""
        try:
            self._attempt_files.open()
            await self._start_journal()
            is_store_up = await self._start_store()
            # Before the first request, which is refused as long as the lease loop is not known to run.
            self._spawn(self._parts.leases.run())
            if self._is_public:
                self._parts.policy.start_callers()
                self.address = await self._listen(self.config.listen.address)
            if self.seating is None:
                self.status_address = await self._listen_aside("status", self._status, self.config.status.listen)
            if self._admin is not None:
                self.admin_address = await self._listen_aside("admin", self._admin, self.config.admin.listen)
            if self._reloading is not None:
                await self._reloading.start()
        except BaseException:
            if self._reloading is not None:
                await self._reloading.stop()
            await self._close()
            raise
        self._traces.adopt(self._parts.policy.tracing)
        self.events.ask_again()
        for work in self._parts.upkeep():
            self._spawn(work)
        if not is_store_up:
            self._spawn(self._keep_starting_store())
        self.health.serving = True
        if not self._is_public:
            _LOG.info("delivering accepted requests, status on %s:%d", *self.status_address)
        elif self.seating is None:
            _LOG.info("serving on %s:%d, status on %s:%d", *self.address, *self.status_address)

    @property
    def in_flight(self) -> str:
        """What a stop waits for, as text."""
        count = self.coordinator.in_flight
        return f"{count} {'operation' if count == 1 else 'operations'} in flight"

    def skip_delay(self) -> None:
        """Let a stop, also one under way, skip `shutdown.delay`. Operations in flight keep their time."""
        self._skips_delay.set()

    async def stop(self) -> int:
        """Stop in order; returns the exit code.

        `EXIT_WORK_LEFT` when an outcome is not in the durable store, but in the journal or nowhere, and when Redis was
        not notified of a purge.
        """
        config = self.config.shutdown
        loop = asyncio.get_running_loop()
        self.health.draining = True
        # At once, not after the delay: nobody waits for these here, and another gateway delivers them.
        self._parts.delivery.stop()
        grace_seconds = 0.0
        if self._reloading is not None:
            await self._reloading.stop()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(config.delay):
                    await self._skips_delay.wait()
            self._parts.stop_upkeep()
            self._edge.stop_listening()
            if self.seating is not None:
                self.seating.close()
            until = loop.time() + config.drain_timeout
            drained, waiting = await self._parts.drain()
            # Unprotected requests may be in flight, too.
            grace_seconds = max(_EDGE_GRACE_SECONDS, until - loop.time())
        finally:
            await self._close(grace_seconds)
        early = drained.recorded + drained.journaled
        if early or drained.unrecorded or waiting:
            _LOG.warning(
                "stopped with %d attempts ended early, %d outcomes left in the journal, %d unrecorded",
                early,
                waiting,
                drained.unrecorded,
            )
        if pending := self._store.purges_pending:
            _LOG.warning(
                "stopped with %d purges that did not reach Redis: the next gateway to start repeats them", pending
            )
        return EXIT_WORK_LEFT if drained.unrecorded or waiting or pending else EXIT_OK

    async def _close(self, grace_seconds: float = 0.0) -> None:
        """Close everything in reverse order, even if some of it fails."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._close_store)
            stack.callback(self._attempt_files.close)
            stack.push_async_callback(self._journal.close)
            stack.push_async_callback(self._upstreams.close)
            stack.push_async_callback(self._parts.policy.close_callers)
            stack.push_async_callback(self._status.stop)
            if self._admin is not None:
                stack.push_async_callback(self._admin.stop)
            stack.push_async_callback(self._traces.close)
            stack.push_async_callback(self._cancel_tasks)
            await self._edge.close(grace_seconds)

    async def _close_store(self) -> None:
        """Give up on a store that does not respond: outcomes that could be kept are in it, or in the journal."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_STORE_CLOSE_SECONDS):
                await self._parts.end_asking()
                await self._store.close()

    async def _cancel_tasks(self) -> None:
        self.health.serving = False
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _readings(self) -> Readings:
        stats, journaled = self._store.stats, self._journal.tally
        upstreams = self._upstreams.stats.items()
        return Readings(
            in_flight=dict.fromkeys(self._parts.policy.by_name, 0) | self.coordinator.operations.by_route,
            oldest_in_flight_seconds=self.coordinator.oldest_in_flight_seconds,
            lookups={
                ("cache", "hit"): stats.cache_hits,
                ("fast", "hit"): stats.fast_hits,
                ("fast", "miss"): stats.fast_misses,
                ("fast", "failure"): stats.fast_failures,
            },
            fast_writes_dropped=stats.shed,
            upkeep_owner={duty.value: self._parts.turns.has(duty) for duty in Duty},
            partitions_late=self._partitions_late(),
            purges_pending=self._store.purges_pending,
            unshared_seconds=self._parts.unshared_seconds,
            log_lines_dropped=self._lines_dropped(),
            journal_waiting=journaled.waiting,
            journal_refused=journaled.refused,
            journal_bytes=journaled.bytes,
            journal_oldest_seconds=self._journal.oldest_seconds,
            connections={url: each.opened - each.closed for url, each in upstreams},
            connections_opened={url: each.opened for url, each in upstreams},
            connections_reused={url: each.reused for url, each in upstreams},
            died_on_reuse={url: each.died_on_reuse for url, each in upstreams},
            exchanges={
                (url, result): getattr(each, result)
                for url, each in upstreams
                for result in ("answered", "lost", "not_sent")
            },
            spans=dict(zip(("exported", "dropped", "failed"), self._traces.counts, strict=True)),
        )

    # -- reload -------------------------------------------------------------------------------------------------------

    async def prepare(self, config: Config) -> Prepared:
        """Build all that this configuration needs; nothing is in force yet. Raises `ReloadRefused`.

        `switch` to what is returned, or `give_up` on it.
        """
        self._refuse_lower_modes(config)
        clients = Clients(self._upstreams, config)
        try:
            self._check_purpose(config)
            if config.secrets.encryption != self.config.secrets.encryption:
                await self._check_journals(config)
            tls = server_tls(config.listen.tls)
            prepared = Prepared(config, self._parts.policy_of(config, clients.client_for), clients, tls)
            try:
                await self._parts.compare(prepared.policy)
            except BaseException:
                # The store may remember it all the same.
                await self.give_up(prepared)
                raise
        except StartError as error:
            raise ReloadRefused(str(error)) from error
        except StartRefused as error:
            text = f"{error}. While a gateway serves it as it was, its keys go on coming: restart it instead"
            raise ReloadRefused(text) from error
        except StoreError as error:
            raise ReloadRefused(f"the store has to be asked about this change, and cannot be: {error}") from error
        return prepared

    def _refuse_lower_modes(self, config: Config) -> None:
        """While a route is enforced its keys go on coming, also between a look at the store and the switch."""
        before = {route.operation: self.config.share_of(route) for route in self.config.routes}
        lowered = [
            route.name
            for route in config.routes
            if config.share_of(route) < before.get(route.operation, 0.0) and route.mode_change != "accept"
        ]
        if lowered:
            raise ReloadRefused(
                f"fewer keys would be enforced on {', '.join(lowered)}, and repeats of the others would run again; if "
                "that is meant, write mode_change: accept"
            )

    async def give_up(self, prepared: Prepared) -> None:
        """What was prepared will not be in force."""
        await self._parts.retract()
        await prepared.policy.close_callers(self._parts.policy)

    def switch(self, prepared: Prepared) -> None:
        """Put it in force, in one step of the event loop. Requests that began before keep what they began with."""
        before = self._parts.policy
        self._earlier = [each for each in (*self._earlier, self._served) if not each.unused.done()]
        self.config = config = prepared.config
        self._parts.adopt(prepared.policy)
        self._served = self._served_of(prepared.policy)
        self._edge.serve_by(self._served, _edge_settings(config), prepared.tls)
        self._upstreams.adopt(prepared.clients)
        if self._admin is not None:
            adopt(self._admin, config)
        self.metrics.add_routes(route.name for route in config.routes)
        self._on_switch(config)
        if prepared.policy.tracing is not before.tracing:
            self._traces.adopt(prepared.policy.tracing)
        self.events.ask_again()
        if self._is_public:
            prepared.policy.start_callers()
        self._spawn(_close_when_unused(before, prepared.policy, self._earlier))

    async def _apply(self, config: Config) -> None:
        self.switch(await self.prepare(config))

    async def ask_store(self) -> None:
        """Bring up to date whether the durable store is up, in a bounded time."""
        await self._parts.ask_store()

    def reload_soon(self) -> None:
        """Read the file again."""
        if self._reloading is not None:
            self._reloading.reload_soon()

    # -- parts --------------------------------------------------------------------------------------------------------

    def _served_of(self, policy: Policy) -> Served:
        """What the listener for clients protects or forwards their requests by."""
        config = policy.config
        return Served(
            routes=RouteTable(
                [(rule, route) for route in policy.edge_routes for rule in route.settings.rules],
                config.upstream.default_host,
                [each.rule for each in config.unprotected],
            ),
            protect=self.coordinator.respond,
            forward=policy.forward,
            resource=policy.resource,
            reserved=policy.reserved,
            cors=config.cors,
            key_headers=frozenset().union(*(route.key.headers for route in policy.edge_routes)),
            shape=shape_of(config),
        )

    def _edge_of(self, served: Served, tls: ssl.SSLContext | None) -> Edge:
        return Edge(served, self.events, _edge_settings(self.config), tls)

    def _check_purpose(self, config: Config) -> None:
        """Raises `StartError` where it would have nothing to do."""
        has_sinks = bool(config.events.sinks)
        if not self._is_public and not has_sinks and not any(route.is_accepting for route in config.routes):
            raise StartError(
                "no route of this configuration has `accept` or an inbox, and there are no sinks: nothing to deliver"
            )

    async def _start_journal(self) -> None:
        try:
            await self._journal.start()
        except (StartRefused, NotApplied) as error:
            raise _unusable_journal(error) from error
        await self._check_journals(self.config)

    async def _check_journals(self, config: Config) -> None:
        try:
            await refuse_unreadable_journals(config)
        except (StartRefused, NotApplied) as error:
            raise _unusable_journal(error) from error

    async def _start_store(self) -> bool:
        try:
            return await self._parts.start_store()
        except StartRefused as error:
            raise _must_not_be_used(error) from error

    async def _keep_starting_store(self) -> None:
        try:
            await self._parts.keep_starting()
        except StartRefused as error:
            self.failed.set_result(_must_not_be_used(error))

    async def _listen(self, address: Address) -> tuple[str, int]:
        try:
            if self.seating is not None:
                await self.seating.take_own()
                return address.host, address.port
            return await self._edge.start(host=address.host, port=address.port)
        except ListenError as error:
            raise StartError(f"{error} (listen)") from error

    async def _listen_aside(self, name: str, server: StatusServer | AdminApi, address: Address) -> tuple[str, int]:
        try:
            return address.host, await server.start(address.host, address.port)
        except OSError as error:
            raise StartError(f"{listen_fault(address.host, address.port, error)} ({name}.listen)") from error

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(_log_failure)
        task.add_done_callback(self._tasks.remove)
        self._tasks.append(task)


@dataclass(frozen=True, slots=True)
class Prepared:
    """All that a configuration needs, to be put in force."""

    config: Config
    policy: Policy
    clients: Clients
    tls: ssl.SSLContext | None


def environment_of(config: Config) -> Environment:
    """This machine, and the configured stores."""
    witness = witness_files(config)
    ring = key_ring(config)
    durable = bare_store(config, Sealing(ring), witness)
    return Environment(
        holder=f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}",
        durable=durable,
        observations=durable,
        fleet=fleet_of(durable),
        partitions_late=partitions_late_of(durable),
        on_purge=on_purge_of(durable),
        fast=make_fast_tier(config, Sealing(ring)),
        ring=ring,
        seen_file=seen_file(config),
        shared_note=shared_note(config),
        witness_files=witness,
        attempt_files=attempt_files(config),
        journal=SqliteJournal(journal_directory(config), name_of(config)),
    )


def _edge_settings(config: Config) -> EdgeSettings:
    upstreams = {config.upstream_for(route) for route in config.routes} | {config.upstream}
    return EdgeSettings(
        header_bytes_max=config.limits.max_header_bytes,
        connections_max=client_connections_max(
            config.limits.max_in_flight, sum(upstream.max_connections for upstream in upstreams)
        ),
    )


async def _close_when_unused(before: Policy, after: Policy, earlier: list[Served]) -> None:
    """A verifier may be of several configurations: it is closed when the last request of all these has ended."""
    try:
        await asyncio.wait([each.unused for each in earlier])
    finally:
        await before.close_callers(after)


def _unusable_journal(error: StoreError) -> StartError:
    return StartError(f"the journal in state_dir cannot be used: {error}")


def _must_not_be_used(error: StartRefused) -> StartError:
    return StartError(f"the durable store must not be used: {error}")


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _LOG.error("a task of the gateway failed because of a bug", exc_info=error)
