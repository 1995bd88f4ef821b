"""A gateway, which serves one configuration: start, succession and shutdown. Decides nothing about a request.

Starting: first what can be wrong with this machine (directories, certificates, the journal), then the stores, to which
the journal is flushed, then the listeners. If the durable store cannot be reached, the gateway serves all the same: it
refuses requests that need the store, passes everything else, and tries the store until it responds. A store that must
not be used ends the process.

Stopping: readiness falls, `shutdown.delay` passes so that load balancers notice, the listener closes, operations in
flight are finished and recorded within `shutdown.drain_timeout`, the others end with what is known of them, and the
stores close last.

Succession: the next gateway starts beside this one, with parts and stores of its own, as it would in another process.
Then it takes over the listeners and the open connections, in one step of the event loop. A request stays with the
gateway that it began with, which ends after its last one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import Final
from uuid import uuid4

from gateway import EXIT_OK, EXIT_WORK_LEFT, __version__
from gateway.admin.api import AdminApi
from gateway.app.host import client_connections_max, make_state_dir, server_tls
from gateway.app.life import StartError
from gateway.app.operating import admin_api
from gateway.app.parts import Environment, Parts, Upstreams, tracing_of
from gateway.app.reload import Report
from gateway.app.share import Handed, Seating
from gateway.app.stores import (
    bare_store,
    is_same,
    journal_directory,
    key_ring,
    make_fast_tier,
    name_of,
    refuse_unreadable_journals,
    seen_file,
    shared_note,
)
from gateway.config import Config
from gateway.config.leaf import Address
from gateway.core.confidential import Sealing
from gateway.core.routing import RouteTable
from gateway.http.connection import EdgeSettings
from gateway.http.handler import Served
from gateway.http.server import Edge, ListenError, listen_fault
from gateway.observe.facts import Events, Observer
from gateway.observe.logs import Tasks
from gateway.observe.metrics import Metrics, Readings
from gateway.observe.status import Health, SidePort, StatusServer
from gateway.protect.route import shape_of
from gateway.store.base import NotApplied, StartRefused, end_tasks
from gateway.store.files import AttemptFiles
from gateway.store.journal.journal import SqliteJournal
from gateway.store.memory.epoch import WitnessFiles
from gateway.store.postgres.store import PostgresStore
from gateway.store.sqlite.store import SqliteStore
from gateway.upkeep.activity import METRICS_READ, ActivitySampler
from gateway.upkeep.duty import Duty

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
        reload: Callable[[], Awaitable[Report]] | None = None,
        before: Gateway | None = None,
    ) -> None:
        """Must be called with the event loop running; opens nothing yet. Raises `StartError`. `observers` get every
        event; `lines_dropped` counts the log lines that were lost, for the metrics. A worker listens on the seats that
        it is `handed`, and has no status port: its supervisor has it. `environment` is this machine by default. One
        that is not `is_public` has no listener for clients, and only delivers. The admin port offers to `reload`. One
        that follows another, `before`, stands by after its start until it is to `take_over`."""
        self.config, self._is_public = config, is_public
        self._before: Gateway | None = before
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
        self._tracing = tracing_of(config)
        observers += () if self._tracing is None else (self._tracing,)
        self.events = Events(self.health, *observers, count=self.metrics.counting)
        self._upstreams = Upstreams(config, self.events)
        environment = self._environment = environment or environment_of(config)
        self._journal = environment.journal
        self.parts: Parts = Parts(
            config,
            environment,
            self.events,
            self._upstreams.client_for,
            self._tracing,
            None if before is None else before.parts,
        )
        if self.parts.relay is not None:
            self.events.add(self.parts.relay)
        self._store = self.parts.store
        self.coordinator = self.parts.coordinator
        self._served = self._served_now()
        self._tls = server_tls(config.listen.tls)
        self.metrics.read_with(self._readings)
        if before is None:
            self.edge = Edge(self._served, self.events, _edge_settings(config), self._tls)
            self.seating = Seating(self.edge, handed) if handed is not None else None
        else:
            self.edge, self.seating = before.edge, before.seating
        self.activity = ActivitySampler(
            lambda: self.metrics.take(METRICS_READ),
            self._store.cold,
            config.service,
            ask_to_save=None if handed is None else handed.save,
            wall_seconds=environment.wall_seconds,
        )
        self.status = StatusServer(self.health, self.metrics.render, self.parts.ask_store)
        self.admin: AdminApi | None = admin_api(
            config,
            self._store,
            self.events,
            self.health,
            self.metrics,
            callers=self.parts.callers,
            observations=environment.observations,
            counted=self.activity.remembered,
            reload=reload,
            before=None if before is None else before.admin,
        )
        self._is_store_up = False
        self._tasks = Tasks("a task of the gateway failed because of a bug")
        self._skips_delay, self._hurries = asyncio.Event(), asyncio.Event()
        self.failed: asyncio.Future[StartError] = asyncio.get_running_loop().create_future()
        """Resolved when the gateway finds out, after its start, that it must not go on."""
        self.address = ("", 0)
        self.status_address = ("", 0)
        self.admin_address = ("", 0)

    async def start(self) -> None:
        """Serve, or stand by for `take_over`. Raises `StartError`, and then nothing is left open."""
        try:
            self._environment.attempt_files.open()
            await self._start_journal()
            if self._before is not None:
                # Whatever can fail is behind it when the store remembers what this gateway serves.
                await self._listen_aside()
            self._is_store_up = await self._start_store()
            # Before the first request, which is refused as long as the lease loop is not known to run.
            self._tasks.spawn(self.parts.leases.run())
            if self._is_public:
                self.parts.callers.start()
                self.parts.observed_callers.start()
            if self._before is None:
                if self._is_public:
                    self.address = await self._listen(self.config.listen.address)
                await self._listen_aside()
        except BaseException:
            await self._close()
            raise
        if self._tracing is not None:
            self._tracing.start()
        if self._before is None:
            self._serve()
            if not self._is_public:
                _LOG.info("delivering accepted requests, status on %s:%d", *self.status_address)
            elif self.seating is None:
                _LOG.info("serving on %s:%d, status on %s:%d", *self.address, *self.status_address)

    def take_over(self) -> None:
        """Serve in the place of the gateway before, from this step of the event loop on. That one has to `retire`."""
        before, self._before = self._before, None
        if before is None:
            raise RuntimeError("it serves already")
        self.edge.serve_by(self._served, self.events, _edge_settings(self.config), self._tls)
        self.status.port.take_over()
        if self.admin is not None:
            self.admin.port.take_over()
        self.address = before.address
        self.metrics.follow(before.metrics)
        self.activity.follow(before.activity)
        self._serve()

    def _serve(self) -> None:
        self.events.ask_again()
        for work in (*self.parts.upkeep(), self.activity.run()):
            self._tasks.spawn(work)
        if not self._is_store_up:
            self._tasks.spawn(self._keep_starting_store())
        self.health.serving = True

    @property
    def in_flight(self) -> str:
        count = self.coordinator.in_flight
        return f"{count} {'operation' if count == 1 else 'operations'} in flight"

    def skip_delay(self) -> None:
        """Let a stop, also one under way, skip `shutdown.delay`. Operations in flight keep their time."""
        self._skips_delay.set()

    async def stop(self) -> int:
        """Stop in order; returns the exit code. `EXIT_WORK_LEFT` when an outcome is not in the durable store, but in
        the journal or nowhere, and when Redis was not notified of a purge."""
        self.health.draining = True
        # At once, not after the delay: nobody waits for these here, and another gateway delivers them.
        self.parts.delivery.stop()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.config.shutdown.delay):
                    await self._skips_delay.wait()
            self.parts.stop_upkeep()
            self.edge.stop_listening()
            if self.seating is not None:
                self.seating.close()
        except BaseException:
            await self._close()
            raise
        return await self._end()

    async def retire(self) -> int:
        """End after its last request, when another gateway has taken over; returns the exit code, as `stop`. That takes
        as long as the requests do. After `hurry`, what is left gets the time that it has at a stop."""
        await self._stop_aside()
        await self.parts.leave_work()
        finishing = asyncio.get_running_loop().create_task(self._finish())
        hurrying = asyncio.get_running_loop().create_task(self._hurries.wait())
        try:
            await asyncio.wait((finishing, hurrying), return_when=asyncio.FIRST_COMPLETED)
        finally:
            finishing.cancel()
            hurrying.cancel()
        return await self._end()

    def hurry(self) -> None:
        """Have a gateway that retires end within `shutdown.drain_timeout`."""
        self._hurries.set()

    async def give_up(self) -> None:
        """End a gateway that stands by. The one before goes on, and the store remembers what that one serves."""
        await self._close()
        if self._before is not None:
            await self._before.parts.guard.remember_again()

    @property
    def _owns_edge(self) -> bool:
        return self.edge.handler.served is self._served

    async def _finish(self) -> None:
        """Wait for the last request, and for operations whose callers have left."""
        await asyncio.wait((self._served.unused,))
        await self.coordinator.operations.wait_ended()

    async def _end(self) -> int:
        loop = asyncio.get_running_loop()
        grace_seconds, until = 0.0, loop.time() + self.config.shutdown.drain_timeout
        try:
            drained, waiting = await self.parts.drain()
            # Unprotected requests may be in flight, too.
            grace_seconds = max(_EDGE_GRACE_SECONDS, until - loop.time())
            if not self._owns_edge:
                await asyncio.wait((self._served.unused,), timeout=grace_seconds)
            await self.activity.close()
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
            stack.callback(self._environment.attempt_files.close)
            stack.push_async_callback(self._journal.close)
            stack.push_async_callback(self._upstreams.close)
            stack.push_async_callback(self.parts.observed_callers.close)
            stack.push_async_callback(self.parts.callers.close)
            stack.push_async_callback(self._stop_aside)
            if self._tracing is not None:
                stack.push_async_callback(self._tracing.close)
            stack.push_async_callback(self._cancel_tasks)
            if self._owns_edge:
                await self.edge.close(grace_seconds)

    async def _close_store(self) -> None:
        """Give up on a store that does not respond: outcomes that could be kept are in it, or in the journal."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_STORE_CLOSE_SECONDS):
                await self.parts.end_asking()
                await self._store.close()

    async def _cancel_tasks(self) -> None:
        self.health.serving = False
        await end_tasks(self._tasks)

    def _readings(self) -> Readings:
        stats, journaled = self._store.stats, self._journal.tally
        upstreams = self._upstreams.stats.items()
        return {
            "store_up": self.health.stores_up,
            "in_flight": dict.fromkeys(self.parts.by_name, 0) | self.coordinator.operations.by_route,
            "oldest_in_flight_seconds": self.coordinator.operations.oldest_seconds,
            "copy_lookups_total": {
                ("cache", "hit"): stats.cache_hits,
                ("fast", "hit"): stats.fast_hits,
                ("fast", "miss"): stats.fast_misses,
                ("fast", "failure"): stats.fast_failures,
            },
            "fast_writes_dropped_total": stats.shed,
            "store_upkeep_owner": {duty.value: self.parts.turns.has(duty) for duty in Duty},
            "partition_late_total": self._environment.partitions_late(),
            "purges_pending": self._store.purges_pending,
            "shared_note_lag_seconds": self.parts.guard.unshared_seconds,
            "log_lines_dropped_total": self._lines_dropped(),
            "journal_waiting": journaled.waiting,
            "journal_refused": journaled.refused,
            "journal_bytes": journaled.bytes,
            "journal_oldest_seconds": self._journal.oldest_seconds,
            "upstream_connections": {url: each.opened - each.closed for url, each in upstreams},
            "upstream_connections_opened_total": {url: each.opened for url, each in upstreams},
            "upstream_connections_reused_total": {url: each.reused for url, each in upstreams},
            "upstream_connections_died_on_reuse_total": {url: each.died_on_reuse for url, each in upstreams},
            "upstream_exchanges_total": {
                (url, result): getattr(each, result)
                for url, each in upstreams
                for result in ("answered", "lost", "not_sent")
            },
            "spans_total": {
                result: 0 if self._tracing is None else getattr(self._tracing, result)
                for result in ("exported", "dropped", "failed")
            },
        }

    # -- parts --------------------------------------------------------------------------------------------------------

    def _served_now(self) -> Served:
        """What the listener for clients protects or forwards their requests by."""
        config, parts = self.config, self.parts
        return Served(
            routes=RouteTable(
                [(rule, route) for route in parts.edge_routes for rule in route.settings.rules],
                config.upstream.default_host,
                [each.rule for each in config.unprotected],
            ),
            protect=self.coordinator.respond,
            forward=parts.forward,
            resource=parts.resource,
            reserved=parts.reserved,
            cors=config.cors,
            key_headers=frozenset().union(*(route.key.headers for route in parts.edge_routes)),
            shape=shape_of(config),
        )

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
            await refuse_unreadable_journals(self.config)
        except (StartRefused, NotApplied) as error:
            raise StartError(f"the journal in state_dir cannot be used: {error}") from error

    async def _start_store(self) -> bool:
        before = self._before
        try:
            is_up = await self.parts.start_store()
        except StartRefused as error:
            raise _must_not_be_used(error) from error
        if is_up or before is None:
            return is_up
        if self.config.store == before.config.store and is_same(self.parts.serving, before.parts.serving):
            return False
        raise StartError("the store has to be asked about this change, and cannot be reached")

    async def _keep_starting_store(self) -> None:
        try:
            await self.parts.keep_starting()
        except StartRefused as error:
            self.failed.set_result(_must_not_be_used(error))

    async def _listen(self, address: Address) -> tuple[str, int]:
        try:
            if self.seating is not None:
                await self.seating.take()
                return address.host, address.port
            return await self.edge.start(host=address.host, port=address.port)
        except ListenError as error:
            raise StartError(f"{error} (listen)") from error

    async def _listen_aside(self) -> None:
        """Listen for operators, on new ports; those that the gateway before has are taken over with the rest."""
        config, before = self.config, self._before
        if self.seating is None:
            known = None if before is None else before.status.port
            self.status_address = await start_aside("status", self.status.port, config.status.listen, known)
        if self.admin is not None:
            known = None if before is None or before.admin is None else before.admin.port
            self.admin_address = await start_aside("admin", self.admin.port, config.admin.listen, known)

    async def _stop_aside(self) -> None:
        ports = [self.status.port] if self.admin is None else [self.status.port, self.admin.port]
        await asyncio.gather(*(port.stop() for port in ports))


def environment_of(config: Config) -> Environment:
    witness = WitnessFiles(config.state_dir / "witness")
    ring = key_ring(config)
    durable = bare_store(config, Sealing(ring), witness)
    return Environment(
        holder=f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}",
        durable=durable,
        observations=durable,
        fleet=None if isinstance(durable, SqliteStore) or not durable.may_fail_over else durable,
        partitions_late=lambda: durable.partitions_late if isinstance(durable, PostgresStore) else 0,
        on_purge=None if isinstance(durable, SqliteStore | PostgresStore) else durable.on_purge,
        fast=make_fast_tier(config, Sealing(ring)),
        ring=ring,
        seen_file=seen_file(config),
        shared_note=shared_note(config),
        witness_files=witness,
        attempt_files=AttemptFiles(config.state_dir / "attempts"),
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


async def start_aside(name: str, server: SidePort, address: Address, before: SidePort | None = None) -> tuple[str, int]:
    """Listen for operators there, or where the port before does. Raises `StartError`."""
    try:
        return address.host, await server.start(address.host, address.port, before)
    except OSError as error:
        raise StartError(f"{listen_fault(address.host, address.port, error)} ({name}.listen)") from error


def _must_not_be_used(error: StartRefused) -> StartError:
    return StartError(f"the durable store must not be used: {error}")
