"""One gateway process: start and shutdown.

Owns which objects there are and the order in which they come and go. Nothing is decided here about a request.

The order of starting: first what can be wrong with this machine (directories, certificates, the journal), then the
stores, which get what the journal has kept for them, then the listeners. A durable store that cannot be reached does
not keep the gateway from serving: what needs the store is refused, everything else passes, and the store is tried until
it answers. One that must not be used ends the process.

The order of stopping: readiness falls, `shutdown.delay` passes so that load balancers notice, the listener closes, what
is in flight is finished and recorded within `shutdown.drain_timeout`, the rest is ended truthfully, and the stores go
last.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from typing import Any, Final
from uuid import uuid4

from gateway import EXIT_OK, EXIT_WORK_LEFT, __version__
from gateway.admin.api import AdminApi
from gateway.app.descriptors import client_connections_max
from gateway.app.host import make_state_dir, server_tls
from gateway.app.life import StartError
from gateway.app.operating import admin_api
from gateway.app.routes import recipes, route_of, target_of
from gateway.app.seats import Handed, Seating
from gateway.app.stores import durable_store, journal_directory, make_fast_tier, name_of, tiered_store
from gateway.app.upstreams import Upstreams
from gateway.config import Address, Config
from gateway.core.key import key_fields
from gateway.core.routing import RouteTable
from gateway.observe.facts import Herald, Observer
from gateway.observe.metrics import Metrics, Readings
from gateway.observe.status import Health, StatusServer
from gateway.proxy.claiming import Claiming
from gateway.proxy.coordinator import Coordinator
from gateway.proxy.edge_settings import EdgeSettings
from gateway.proxy.identifying import Identifying
from gateway.proxy.journaling import Journaling
from gateway.proxy.leases import Leases
from gateway.proxy.listening import ListenError, listen_fault
from gateway.proxy.passthrough import Passthrough
from gateway.proxy.probing import Prober
from gateway.proxy.route import Route
from gateway.proxy.server import Edge
from gateway.proxy.spool import Spool
from gateway.proxy.waiting import Waiting
from gateway.store.base import Indefinite, NotApplied, StartRefused, StoreError
from gateway.store.journal import SqliteJournal
from gateway.upkeep.flusher import Flusher
from gateway.upkeep.recovery import RecoveryWorker
from gateway.upkeep.sweeper import Sweeper
from gateway.upkeep.tally import TallyTaker

_LOG = logging.getLogger("gateway")

_STORE_PAUSE_SECONDS_MIN: Final = 0.2
_STORE_PAUSE_SECONDS_MAX: Final = 5.0
# How long a start and a stop wait for what is in the journal. It is flushed in the background, too.
_FIRST_FLUSH_SECONDS: Final = 10.0
_LAST_FLUSH_SECONDS: Final = 3.0
_EDGE_GRACE_SECONDS: Final = 1.0
# For what is under way to a store: nobody is left to hear what it comes to.
_STORE_CLOSE_SECONDS: Final = 1.0


class Gateway:
    """A gateway in this process: `start` it, `stop` it. Lives on one event loop."""

    def __init__(
        self,
        config: Config,
        observers: tuple[Observer, ...] = (),
        lines_dropped: Callable[[], int] = lambda: 0,
        handed: Handed | None = None,
    ) -> None:
        """Must be called with the event loop running; opens nothing yet. Raises `StartError`.

        `observers` are told every fact; `lines_dropped` counts the log lines that were lost, for the metrics. A worker
        listens on what it is `handed`, and has no status port: that is its supervisor's.
        """
        self._config = config
        self._lines_dropped = lines_dropped
        make_state_dir(config)
        self._tls = server_tls(config.listen.tls)

        has_fast_tier = config.store.fast is not None
        self.health = Health(fast_up=False if has_fast_tier else None)
        self.metrics = Metrics(
            [route.name for route in config.routes], has_fast_tier=has_fast_tier, version=__version__
        )
        self.herald = Herald(self.metrics, self.health, *observers)
        fast_tier = make_fast_tier(config)
        durable = durable_store(config, self.herald, recipes(config), fast_tier)
        self._store = tiered_store(config, durable, fast_tier, self.herald)
        holder = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"
        claiming = Claiming(
            self._store,
            holder=holder,
            lease_seconds=config.store.lease,
            grace_seconds=config.store.journal_grace,
            # What this gateway has not flushed yet may be what became of a record in doubt.
            reachable_seconds=lambda: self._store.durable_reachable_seconds if self._flusher.is_done else 0.0,
        )
        self._journal = SqliteJournal(journal_directory(config), name_of(config))
        journaling = Journaling(self._journal, self.herald)
        self._flusher = Flusher(self._store, self._journal, self.herald, on_flushed=journaling.flushed)
        prober = Prober(
            self._store,
            self.herald,
            service=config.service,
            may_recover=claiming.may_recover,
            who=f"probe by {holder}",
            steady_seconds=lambda: self._store.durable_steady_seconds,
        )
        self._leases = Leases(self._store, self.herald, lease_seconds=config.store.lease)
        self.coordinator = Coordinator(
            identifying=Identifying(
                config.service, Spool(config.state_dir / "spool"), keeps_clear_keys=config.store.clear_keys
            ),
            store=self._store,
            journaling=journaling,
            claiming=claiming,
            leases=self._leases,
            waiting=Waiting(self._store),
            prober=prober,
            herald=self.herald,
            in_flight_max=config.limits.max_in_flight,
            recall=self._store.recall,
            look=self._store.look,
        )
        self._upstreams = Upstreams(config, self.herald)
        routes = [
            route_of(config, route, self._upstreams.client_for(config.upstream_for(route))) for route in config.routes
        ]
        self._edge = self._edge_before(routes)
        self.metrics.read_with(self._readings)
        self.seating = Seating(self._edge, handed, self._tls) if handed is not None else None
        self._status = StatusServer(self.health, self.metrics.render)
        self._admin = admin_api(config, self._store)
        self._sweeper = Sweeper(self._store, self.herald)
        self._tally_taker = TallyTaker(self._store, self.herald)
        self._recovery = RecoveryWorker(self._store, prober, {route.name: route for route in routes})
        self._tasks: list[asyncio.Task[None]] = []
        self._hurried = asyncio.Event()
        self.failed: asyncio.Future[StartError] = asyncio.get_running_loop().create_future()
        """Resolved when the gateway found out, after its start, that it must not go on."""
        self.address = ("", 0)
        self.status_address = ("", 0)
        self.admin_address = ("", 0)

    async def start(self) -> None:
        """Serve. Raises `StartError`, and then nothing is left open."""
        try:
            await self._start_journal()
            is_store_there = await self._start_store()
            if is_store_there:
                await self._flush(_FIRST_FLUSH_SECONDS)
            # Before the first request, which is refused while the loop is not known to run.
            self._spawn(self._leases.run())
            self.address = await self._listen(self._config.listen.address)
            if self.seating is None:
                self.status_address = await self._listen_beside("status", self._status, self._config.status.listen)
            if self._admin is not None:
                self.admin_address = await self._listen_beside("admin", self._admin, self._config.admin.listen)
        except BaseException:
            await self._close()
            raise
        self._spawn(self._flusher.run())
        self._spawn(self._sweeper.run())
        self._spawn(self._tally_taker.run())
        self._spawn(self._recovery.run())
        if not is_store_there:
            self._spawn(self._keep_trying())
        self.health.serving = True
        if self.seating is None:
            _LOG.info("serving on %s:%d, status on %s:%d", *self.address, *self.status_address)

    @property
    def in_flight(self) -> str:
        """What a stop waits for, in words."""
        count = self.coordinator.in_flight
        return f"{count} {'operation' if count == 1 else 'operations'} in flight"

    def hurry(self) -> None:
        """Let a stop, also one that is under way, leave out `shutdown.delay`. What is in flight has its time."""
        self._hurried.set()

    async def stop(self) -> int:
        """Stop in order; returns the exit code.

        `EXIT_WORK_LEFT` when an outcome is not in the durable store: it is in the journal, or nowhere. So it is when
        Redis was not told of a purge.
        """
        config = self._config.shutdown
        loop = asyncio.get_running_loop()
        self.health.draining = True
        grace_seconds = 0.0
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(config.delay):
                    await self._hurried.wait()
            self._sweeper.stop()
            self._tally_taker.stop()
            self._recovery.stop()
            self._edge.stop_listening()
            if self.seating is not None:
                self.seating.close()
            until = loop.time() + config.drain_timeout
            drained = await self.coordinator.drain(config.drain_timeout)
            await self._flush(_LAST_FLUSH_SECONDS)
            waiting = self._journal.tally.waiting
            # What nothing protects is in flight too.
            grace_seconds = max(_EDGE_GRACE_SECONDS, until - loop.time())
        finally:
            await self._close(grace_seconds)
        early = drained.said + drained.journaled
        if early or drained.unsaid or waiting:
            _LOG.warning(
                "stopped with %d attempts ended early, %d outcomes left in the journal, %d unrecorded",
                early,
                waiting,
                drained.unsaid,
            )
        owed = self._store.drops_owed
        if owed:
            _LOG.warning("stopped with purged answers that Redis may still have (%d): purge them again", owed)
        return EXIT_WORK_LEFT if drained.unsaid or waiting or owed else EXIT_OK

    async def _close(self, grace_seconds: float = 0.0) -> None:
        """Give everything back, in the reverse order, whatever fails in between."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._close_store)
            stack.push_async_callback(self._journal.close)
            stack.push_async_callback(self._upstreams.close)
            stack.push_async_callback(self._status.stop)
            if self._admin is not None:
                stack.push_async_callback(self._admin.stop)
            stack.push_async_callback(self._end_tasks)
            await self._edge.close(grace_seconds)

    async def _close_store(self) -> None:
        """One that says nothing is not waited for: what could be kept of the outcomes is in it, or in the journal."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_STORE_CLOSE_SECONDS):
                await self._store.close()

    async def _end_tasks(self) -> None:
        self.health.serving = False
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _readings(self) -> Readings:
        stats, kept = self._store.stats, self._journal.tally
        upstreams = self._upstreams.stats
        return Readings(
            in_flight=self.coordinator.in_flight,
            oldest_in_flight_seconds=self.coordinator.oldest_in_flight_seconds,
            cache_hits=stats.cache_hits,
            fast_hits=stats.fast_hits,
            fast_misses=stats.fast_misses,
            fast_failures=stats.fast_failures,
            copies_shed=stats.shed,
            drops_owed=self._store.drops_owed,
            log_lines_dropped=self._lines_dropped(),
            journal_waiting=kept.waiting,
            journal_refused=kept.refused,
            journal_bytes=kept.bytes,
            journal_oldest_seconds=self._journal.oldest_seconds,
            connections=sum(each.opened - each.closed for each in upstreams),
            connections_opened=sum(each.opened for each in upstreams),
            connections_reused=sum(each.reused for each in upstreams),
            died_on_reuse=sum(each.died_on_reuse for each in upstreams),
            exchanges_answered=sum(each.answered for each in upstreams),
            exchanges_lost=sum(each.lost for each in upstreams),
            exchanges_not_sent=sum(each.not_sent for each in upstreams),
        )

    # -- parts --------------------------------------------------------------------------------------------------------

    def _edge_before(self, routes: list[Route]) -> Edge[Route]:
        """What callers meet, before these routes and before what none of them protects."""
        config = self._config
        rules = [route.rule for route in config.routes]
        key_names = frozenset(name for route in routes for name in key_fields(route.key)) | {b"idempotency-key"}
        target = target_of(config, config.upstream, self._upstreams.client_for(config.upstream))
        return Edge(
            routes=RouteTable(zip(rules, routes, strict=True), config.upstream.default_host),
            protect=self.coordinator.answer,
            forward=Passthrough(target, self.herald, key_names),
            herald=self.herald,
            settings=EdgeSettings(
                header_bytes_max=config.limits.max_header_bytes, connections_max=client_connections_max()
            ),
        )

    async def _start_journal(self) -> None:
        try:
            await self._journal.start()
        except (StartRefused, NotApplied) as error:
            raise StartError(f"the journal in state_dir cannot be used: {error}") from error

    async def _flush(self, seconds: float) -> None:
        """Flush the journal as far as that goes in so many seconds; the flusher's own task does the rest."""
        try:
            async with asyncio.timeout(seconds):
                await self._flusher.run_once()
        except (TimeoutError, StoreError) as error:
            _LOG.warning("outcomes stay in the journal for now: %s", str(error) or "the durable store is slow")

    async def _start_store(self) -> bool:
        try:
            await self._store.start()
        except StartRefused as error:
            raise StartError(f"the durable store must not be used: {error}") from error
        except (NotApplied, Indefinite):
            return False
        return True

    async def _keep_trying(self) -> None:
        """Until the durable store is there. What it then refuses is no passing fault."""
        pause = _STORE_PAUSE_SECONDS_MIN
        while True:
            await asyncio.sleep(pause)
            try:
                await self._store.start()
            except (NotApplied, Indefinite):
                pause = min(pause * 2, _STORE_PAUSE_SECONDS_MAX)
            except StartRefused as error:
                self.failed.set_result(StartError(f"the durable store must not be used: {error}"))
                return
            else:
                return

    async def _listen(self, address: Address) -> tuple[str, int]:
        try:
            if self.seating is not None:
                await self.seating.look_after_own()
                return address.host, address.port
            return await self._edge.start(host=address.host, port=address.port, tls=self._tls)
        except ListenError as error:
            raise StartError(f"{error} (listen)") from error

    async def _listen_beside(self, name: str, server: StatusServer | AdminApi, address: Address) -> tuple[str, int]:
        try:
            return address.host, await server.start(address.host, address.port)
        except OSError as error:
            raise StartError(f"{listen_fault(address.host, address.port, error)} ({name}.listen)") from error

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(_report)
        self._tasks.append(task)


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _LOG.error("a task of the gateway failed because of a bug", exc_info=error)
