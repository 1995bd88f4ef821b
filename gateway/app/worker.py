"""One of several workers: a gateway in a process of its own, started and watched by a supervisor.

`python -m gateway.app.worker NUMBER DESCRIPTOR SUPERVISOR`: its number is for people who look at processes; the
descriptor is its end of the channel to the supervisor, over which it learns everything else. It is nothing without its
supervisor: the kernel ends it when that one dies, however it died.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from contextlib import suppress
from typing import Final

from gateway import EXIT_FAILED
from gateway.app.channel import Channel, Failed, LookAfter, Report, Reported, Serving, SkipDelay, StartWorker
from gateway.app.gateway import Gateway
from gateway.app.life import StartError, live
from gateway.app.seats import Handed
from gateway.app.serve import run
from gateway.http.server import ListenError
from gateway.observe.logs import Logs

_PR_SET_PDEATHSIG: Final = 1


class Worker:
    """A gateway that serves on seats, and speaks with its supervisor."""

    def __init__(self, order: StartWorker, channel: Channel, logs: Logs) -> None:
        """See `Gateway`."""
        seats = {
            number: tuple(socket.socket(fileno=descriptor) for descriptor in descriptors)
            for number, descriptors in order.seats.items()
        }
        self._channel = channel
        self._gateway = Gateway(order.config, (logs,), lambda: logs.dropped, Handed(order.number, seats))
        self._listening: asyncio.Task[None] | None = None

    @property
    def failed(self) -> asyncio.Future[StartError]:
        """See `Gateway`."""
        return self._gateway.failed

    async def start(self) -> None:
        """Serve, and say so. Raises `StartError`."""
        await self._gateway.start()
        self._channel.send(Serving())
        self._listening = asyncio.get_running_loop().create_task(self._listen())

    @property
    def in_flight(self) -> str:
        """See `Gateway`."""
        return self._gateway.in_flight

    def skip_delay(self) -> None:
        """See `Gateway`."""
        self._gateway.skip_delay()

    async def stop(self) -> int:
        """Stop in order, and say what was counted; returns the exit code."""
        try:
            return await self._gateway.stop()
        finally:
            if self._listening is not None:
                self._listening.cancel()
                await asyncio.gather(self._listening, return_exceptions=True)
            self._report()

    async def _listen(self) -> None:
        while (message := await self._channel.receive()) is not None:
            match message:
                case Report():
                    self._report()
                case LookAfter(seats):
                    await self._look_after(seats)
                case SkipDelay():
                    self.skip_delay()
                case _:
                    raise TypeError(f"a supervisor does not say {type(message).__name__}")
        # Nobody is left to speak for this worker.
        os.kill(os.getpid(), signal.SIGTERM)

    async def _look_after(self, seats: frozenset[int]) -> None:
        seating = self._gateway.seating
        if seating is not None:
            # It is told anew with every change; meanwhile whose seat it is comes back.
            with suppress(ListenError):
                await seating.look_after(seats)

    def _report(self) -> None:
        self._channel.send(Reported(self._gateway.metrics.take(), self._gateway.health))


async def work(descriptor: int) -> int:
    """Do what comes over the channel; returns the exit code. What keeps it from starting goes to the supervisor."""
    channel = await Channel.open(socket.socket(fileno=descriptor))
    try:
        order = await channel.receive()
        if not isinstance(order, StartWorker):
            return EXIT_FAILED
        try:
            return await live(order.config, lambda logs: Worker(order, channel, logs), worker=order.number)
        except StartError as error:
            channel.send(Failed(str(error)))
            return EXIT_FAILED
    finally:
        await channel.close()


def _die_with(supervisor: int) -> bool:
    """Have the kernel kill this process when its parent dies; False when that has happened already.

    Where the kernel cannot, the end of the channel ends it.
    """
    # A process that may not make memory executable may be without ctypes.
    with suppress(ImportError, MemoryError, OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    return os.getppid() == supervisor


def main(arguments: list[str]) -> int:
    """Returns the exit code."""
    _, descriptor, supervisor = map(int, arguments)
    return run(work(descriptor)) if _die_with(supervisor) else EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
