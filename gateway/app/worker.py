"""Serves with a configuration, in one process or several; delivers without serving.

In one process there are gateways, one after the other: a reload is a new one, which takes over from the one that
serves. Everything of a gateway is made anew for its configuration, so that nothing has to know of reloads. An earlier
gateway ends after its last request. What it counts counts for the process.

As a program this is one of several workers, started and watched by a supervisor:
`python -m gateway.app.worker NUMBER DESCRIPTOR SUPERVISOR`. The number is for people who list processes; the descriptor
is its end of the channel, over which it gets everything else; the last is the supervisor's process id. When the
supervisor dies, for whatever reason, the kernel kills the worker.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from gateway import EXIT_FAILED, EXIT_OK
from gateway.app.gateway import Gateway
from gateway.app.life import StartError, run, run_until_signal
from gateway.app.reload import Report, Server
from gateway.app.share import Handed, worker_count
from gateway.app.supervisor import Channel, Supervisor
from gateway.config import Config
from gateway.http.server import ListenError
from gateway.observe.logs import Logs
from gateway.store.base import end_tasks
from gateway.upkeep.activity import Rows

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
        self._put_in_force(self._made(config))

    async def _begin(self) -> None:
        await self.current.start()
        self._watch(self.current)

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
        before = self.current
        self._put_in_force(gateway)
        self._log_as(gateway.config)
        gateway.take_over()
        self._watch(gateway)
        self._earlier[before] = asyncio.get_running_loop().create_task(self._retire(before))
        for each in list(self._earlier)[:-_EARLIER_MAX]:
            each.hurry()

    async def apply(self, config: Config) -> None:
        self.switch(await self.prepare(config))

    def _put_in_force(self, gateway: Gateway) -> None:
        self.current, self.config = gateway, gateway.config
        self.metrics, self.health = gateway.metrics, gateway.health

    async def _retire(self, gateway: Gateway) -> int:
        try:
            return await gateway.retire()
        except Exception:
            _LOG.exception("what served before a reload did not end in order, because of a bug")
            raise
        finally:
            del self._earlier[gateway]
            self.metrics.ended(gateway.metrics)
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


async def serve(config: Config, read: Callable[[], Config] | None = None, file: Path | None = None) -> int:
    """Serve until SIGTERM or SIGINT, in one process or several; returns the exit code. Raises `StartError`. `read`
    reads `file` again, for reloads; without it there are none."""
    count = worker_count(config)

    def build(logs: Logs) -> Server:
        if count == 1:
            return Generations(config, logs, read=read, file=file)
        return Supervisor(config, count, logs, read=read, file=file)

    return await run_until_signal(config, build)


async def deliver(config: Config, read: Callable[[], Config] | None = None, file: Path | None = None) -> int:
    """Deliver accepted requests until SIGTERM or SIGINT, without a listener for clients; returns the exit code. Raises
    `StartError`."""
    # One process: what it does is wait for the store and the upstreams.
    own, again = _delivering(config), None if read is None else lambda: _delivering(read())
    return await run_until_signal(own, lambda logs: Generations(own, logs, is_public=False, read=again, file=file))


def _delivering(config: Config) -> Config:
    delivery = config.delivery.model_copy(update={"workers": 1})
    return config.model_copy(update={"delivery": delivery, "workers": 1})


# -- one of several workers --------------------------------------------------------------------------------------------

_PR_SET_PDEATHSIG: Final = 1


class Worker(Generations):
    """Serves on seats, and does what its supervisor calls."""

    def __init__(
        self, number: int, config: Config, seats: Mapping[int, Sequence[int]], channel: Channel, logs: Logs
    ) -> None:
        """`seats` are descriptors that it has inherited. See `Generations`."""
        sockets = {
            seat: tuple(socket.socket(fileno=each) for each in descriptors) for seat, descriptors in seats.items()
        }
        handed = Handed(number, sockets, partial(channel.ask, "save_activity"))
        super().__init__(config, logs, handed, reload=partial(channel.ask, "reload"))
        self._channel = channel
        self._preparing: asyncio.Task[Gateway] | None = None
        self._listening: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Serve, and say that to the supervisor."""
        await super().start()
        self._channel.call("begin")
        self._listening = asyncio.get_running_loop().create_task(self._listen())

    async def stop(self) -> int:
        """Stop in order and send a last report; returns the exit code."""
        try:
            return await super().stop()
        finally:
            await end_tasks((self._listening,))
            self._send_report()

    async def _listen(self) -> None:
        await self._channel.serve(self)
        # The supervisor is gone.
        os.kill(os.getpid(), signal.SIGTERM)

    # -- called by the supervisor -------------------------------------------------------------------------------------

    async def report(self) -> None:
        await self.current.parts.ask_store()
        self._send_report()

    async def take_seats(self, seats: frozenset[int]) -> None:
        """Accept connections on these seats, and on no others."""
        if (seating := self.current.seating) is not None:
            # The supervisor assigns seats again with every change; the seat's own worker comes back meanwhile.
            with suppress(ListenError):
                await seating.take(seats)

    def write_activity(self, service: str, rows: Rows, until_seconds: float) -> asyncio.Future[bool]:
        """Write what several workers counted, by then; the result is whether that was done."""
        return asyncio.get_running_loop().create_task(self.current.activity.write(service, rows, until_seconds))

    def prepare_config(self, config: Config) -> asyncio.Future[str | None]:
        """Start what serves by this configuration; the result is why that is refused."""
        self._preparing = asyncio.get_running_loop().create_task(self.prepare(config))
        return asyncio.get_running_loop().create_task(_refusal_of(self._preparing))

    def switch_config(self) -> None:
        if (preparing := self._preparing) is not None:
            self._preparing = None
            self.switch(preparing.result())

    async def drop_config(self) -> None:
        """Give up what was prepared and is not in force, or is about to be."""
        if (preparing := self._preparing) is not None:
            self._preparing = None
            preparing.cancel()
            await asyncio.wait((preparing,))
            if not preparing.cancelled() and preparing.exception() is None:
                await preparing.result().give_up()

    def _send_report(self) -> None:
        self._channel.call("take_report", self.metrics.take(), self.health)


async def _refusal_of(preparing: asyncio.Task[Gateway]) -> str | None:
    await asyncio.wait((preparing,))
    if preparing.cancelled():
        return "it was given up"
    error = preparing.exception()
    return None if error is None else str(error) or repr(error)


async def work(descriptor: int) -> int:
    """Serve as the supervisor calls; returns the exit code. Says to it why a start failed."""
    channel = await Channel.open(socket.socket(fileno=descriptor))
    try:
        # Before there is a worker to be called.
        start = await channel.receive()
        if start is None:
            return EXIT_FAILED
        number, config, seats = start[2]
        try:
            return await run_until_signal(
                config, lambda logs: Worker(number, config, seats, channel, logs), worker=number
            )
        except StartError as error:
            channel.call("fail", str(error))
            return EXIT_FAILED
    finally:
        await channel.close()


def _die_with(supervisor: int) -> bool:
    """Have the kernel kill this process when its parent dies; False when the parent is dead already. Where the kernel
    cannot do this, the end of the channel stops the process."""
    # Where memory must not be executable, ctypes may not work.
    with suppress(ImportError, MemoryError, OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    return os.getppid() == supervisor


def main(arguments: list[str]) -> int:
    _, descriptor, supervisor = map(int, arguments)
    return run(work(descriptor)) if _die_with(supervisor) else EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
