"""One of several workers: a gateway in a process of its own, started and watched by a supervisor.

`python -m gateway.app.worker NUMBER DESCRIPTOR SUPERVISOR`: the number is for people who list processes; the descriptor
is its end of the channel, over which it gets everything else; the last is the supervisor's process id. When the
supervisor dies, for whatever reason, the kernel kills the worker.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from gateway import EXIT_FAILED
from gateway.app.gateway import Gateway
from gateway.app.life import StartError, run, run_until_signal
from gateway.app.reload import Report
from gateway.app.serve import Generations
from gateway.app.share import Handed
from gateway.app.supervisor import Channel
from gateway.config import Config
from gateway.http.server import ListenError
from gateway.observe.logs import Logs
from gateway.store.base import end_tasks
from gateway.upkeep.activity import Rows

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
        super().__init__(config, logs, Handed(number, sockets, self._ask_to_save), reload=self._ask_reload)
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
        await self.current.ask_store()
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

    # -- calls of the supervisor --------------------------------------------------------------------------------------

    async def _ask_reload(self) -> Report:
        """For the admin port: the supervisor's reload."""
        report: Report = await self._channel.ask("reload")
        return report

    def _ask_to_save(self, service: str, rows: Rows) -> asyncio.Future[bool | None]:
        return self._channel.ask("save_activity", service, rows)

    def _send_report(self) -> None:
        self._channel.call("take_report", self.current.metrics.take(), self.current.health)


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
