"""Serves with a configuration, in one process or several; delivers without serving; migrates the durable store.

In one process there are gateways, one after the other: a reload is a new one, which takes over from the one that
serves. Everything of a gateway is made anew for its configuration, so that nothing has to know of reloads. An earlier
gateway ends after its last request. What it counts counts for the process.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from gateway import EXIT_OK
from gateway.app import stores
from gateway.app.gateway import Gateway
from gateway.app.life import StartError, run_until_signal
from gateway.app.reload import Report, Server
from gateway.app.share import Handed, worker_count
from gateway.app.supervisor import Supervisor
from gateway.config import Config
from gateway.observe.logs import Logs
from gateway.observe.metrics import Metrics
from gateway.observe.status import Health
from gateway.store.base import StoreError

_LOG = logging.getLogger("gateway")

# Each has its stores, and what its requests hold. One more has the oldest end as at a stop.
_EARLIER_MAX: Final = 3


class Generations(Server):
    """Serves in this process, by one gateway after the other."""

    def __init__(
        self,
        config: Config,
        logs: Logs | None = None,
        handed: Handed | None = None,
        *,
        is_public: bool = True,
        read: Callable[[], Config] | None = None,
        file: Path | None = None,
        reload: Callable[[], Awaitable[Report]] | None = None,
    ) -> None:
        """Must be called with the event loop running; opens nothing yet. Raises `StartError`. A worker has its
        supervisor `reload`, for the admin port. The other options are as in `Gateway` and `Server`."""
        super().__init__(config, logs, read, file)
        self._handed = handed
        self._is_public = is_public
        self._reload = reload if self._reloading is None else self._reloading.reload
        self._earlier: dict[Gateway, asyncio.Task[int]] = {}
        self.current = self._made(config)

    @property
    def config(self) -> Config:
        return self.current.config

    @property
    def reported(self) -> tuple[Metrics, Health]:
        return self.current.metrics, self.current.health

    async def start(self) -> None:
        await self.current.start()
        self._watch(self.current)
        if self._reloading is not None:
            try:
                await self._reloading.start()
            except BaseException:
                await self.stop()
                raise

    @property
    def in_flight(self) -> str:
        return self.current.in_flight

    def skip_delay(self) -> None:
        self.current.skip_delay()

    async def stop(self) -> int:
        """Stop in order; returns the exit code, the highest of all that are there."""
        if self._reloading is not None:
            await self._reloading.stop()
        for gateway in self._earlier:
            gateway.hurry()
        earlier = list(self._earlier.values())
        try:
            code = await self.current.stop()
        finally:
            codes = await asyncio.gather(*earlier, return_exceptions=True)
        return max(code, *(each for each in codes if isinstance(each, int)), EXIT_OK)

    # -- reload -------------------------------------------------------------------------------------------------------

    async def prepare(self, config: Config) -> Gateway:
        """Start a gateway beside the one that serves; nothing is in force yet. Raises `StartError`. `switch` to it, or
        have it `give_up`."""
        gateway = self._made(config, self.current)
        await gateway.start()
        return gateway

    def switch(self, gateway: Gateway) -> None:
        """Put it in force, in one step of the event loop."""
        before, self.current = self.current, gateway
        self._log_as(gateway.config)
        gateway.take_over()
        self._watch(gateway)
        self._earlier[before] = asyncio.get_running_loop().create_task(self._retire(before))
        for each in list(self._earlier)[:-_EARLIER_MAX]:
            each.hurry()

    async def apply(self, config: Config) -> None:
        self.switch(await self.prepare(config))

    async def _retire(self, gateway: Gateway) -> int:
        try:
            return await gateway.retire()
        except Exception:
            _LOG.exception("what served before a reload did not end in order, because of a bug")
            raise
        finally:
            del self._earlier[gateway]
            self.current.metrics.ended(gateway.metrics)
            # Its caches would wait for a full collection, which is rare.
            gc.collect()

    def _made(self, config: Config, before: Gateway | None = None) -> Gateway:
        # Of the lines that were lost each counts those of its own time.
        lost = self._lines_dropped()
        return Gateway(
            config,
            () if self._logs is None else (self._logs,),
            lambda: self._lines_dropped() - lost,
            self._handed,
            is_public=self._is_public,
            reload=self._reload,
            before=before,
        )

    def _watch(self, gateway: Gateway) -> None:
        """Fail with it, as long as it is the one that serves."""

        def failed(future: asyncio.Future[StartError]) -> None:
            if not future.cancelled() and gateway is self.current and not self.failed.done():
                self.failed.set_result(future.result())

        gateway.failed.add_done_callback(failed)


Read = Callable[[], Config]


async def serve(config: Config, read: Read | None = None, file: Path | None = None) -> int:
    """Serve until SIGTERM or SIGINT, in one process or several; returns the exit code. Raises `StartError`. `read`
    reads `file` again, for reloads; without it there are none."""
    count = worker_count(config)

    def build(logs: Logs) -> Server:
        if count == 1:
            return Generations(config, logs, read=read, file=file)
        return Supervisor(config, count, logs, read=read, file=file)

    return await run_until_signal(config, build)


async def deliver(config: Config, read: Read | None = None, file: Path | None = None) -> int:
    """Deliver accepted requests until SIGTERM or SIGINT, without a listener for clients; returns the exit code. Raises
    `StartError`."""
    # One process: what it does is wait for the store and the upstreams.
    own, again = _delivering(config), None if read is None else lambda: _delivering(read())
    return await run_until_signal(own, lambda logs: Generations(own, logs, is_public=False, read=again, file=file))


def _delivering(config: Config) -> Config:
    delivery = config.delivery.model_copy(update={"workers": 1})
    return config.model_copy(update={"delivery": delivery, "workers": 1})


async def migrate(config: Config, grant_to: str | None = None) -> list[str]:
    """Bring the durable store's schema up to date; returns what was done. Raises `StartError`."""
    try:
        return await stores.migrate_store(config, grant_to)
    except StoreError as error:
        raise StartError(f"the durable store could not be migrated: {error}") from error


async def finish_upgrade(config: Config) -> bool:
    """Raise the level of the durable store to this program's; returns whether it was lower. Raises `StartError`."""
    try:
        return await stores.finish_upgrade(config)
    except StoreError as error:
        raise StartError(f"the upgrade cannot be finished: {error}") from error
