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
from contextlib import suppress
from typing import Final

from gateway import EXIT_FAILED
from gateway.app.channel import (
    AskReload,
    AskReport,
    AssignSeats,
    Channel,
    ConfigDone,
    DropConfig,
    Failed,
    PrepareConfig,
    ReloadReport,
    Report,
    Serving,
    SkipDelay,
    StartWorker,
    SwitchConfig,
)
from gateway.app.gateway import Gateway
from gateway.app.generations import Generations
from gateway.app.life import StartError, logs_like, run, run_until_signal
from gateway.app.reload import Report as ReloadResult
from gateway.app.seats import Handed
from gateway.http.server import ListenError
from gateway.observe.logs import Logs

_PR_SET_PDEATHSIG: Final = 1


class Worker(Generations):
    """Serves on seats, and obeys its supervisor."""

    def __init__(self, start: StartWorker, channel: Channel, logs: Logs) -> None:
        """See `Generations`."""
        seats = {
            number: tuple(socket.socket(fileno=descriptor) for descriptor in descriptors)
            for number, descriptors in start.seats.items()
        }
        super().__init__(
            start.config,
            (logs,),
            lambda: logs.dropped,
            Handed(start.number, seats),
            reload=self._ask_reload,
            on_switch=logs_like(logs),
        )
        self._channel = channel
        self._preparing: asyncio.Task[Gateway] | None = None
        self._reloads: list[asyncio.Future[ReloadResult]] = []
        self._listening: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Serve, and report that to the supervisor. Raises `StartError`."""
        await super().start()
        self._channel.send(Serving())
        self._listening = asyncio.get_running_loop().create_task(self._listen())

    async def stop(self) -> int:
        """Stop in order and send a last report; returns the exit code."""
        try:
            return await super().stop()
        finally:
            if self._listening is not None:
                self._listening.cancel()
                await asyncio.gather(self._listening, return_exceptions=True)
            self._report()

    async def _listen(self) -> None:
        while (message := await self._channel.receive()) is not None:
            match message:
                case AskReport():
                    await self.current.ask_store()
                    self._report()
                case AssignSeats(seats):
                    await self._take(seats)
                case SkipDelay():
                    self.skip_delay()
                case PrepareConfig(config):
                    self._preparing = asyncio.get_running_loop().create_task(self.prepare(config))
                    self._preparing.add_done_callback(self._prepared)
                case SwitchConfig() if self._preparing is not None:
                    self.switch(self._preparing.result())
                    self._channel.send(ConfigDone())
                case DropConfig() if self._preparing is not None:
                    await self._drop(self._preparing)
                case ReloadReport(report):
                    reloads, self._reloads = self._reloads, []
                    for reload in reloads:
                        if not reload.done():
                            reload.set_result(report)
                case _:
                    raise TypeError(f"a supervisor does not send {type(message).__name__}")
        # The supervisor is gone.
        os.kill(os.getpid(), signal.SIGTERM)

    def _prepared(self, task: asyncio.Task[Gateway]) -> None:
        error = None if task.cancelled() else task.exception()
        refusal = "it was given up" if task.cancelled() else None if error is None else str(error) or repr(error)
        self._channel.send(ConfigDone(refusal))

    async def _drop(self, task: asyncio.Task[Gateway]) -> None:
        task.cancel()
        await asyncio.wait((task,))
        if not task.cancelled() and task.exception() is None:
            await task.result().give_up()

    async def _ask_reload(self) -> ReloadResult:
        """For the admin port: the supervisor's reload."""
        reload: asyncio.Future[ReloadResult] = asyncio.get_running_loop().create_future()
        self._reloads.append(reload)
        self._channel.send(AskReload())
        return await reload

    async def _take(self, seats: frozenset[int]) -> None:
        seating = self.current.seating
        if seating is not None:
            # The supervisor assigns seats again with every change; the seat's own worker comes back meanwhile.
            with suppress(ListenError):
                await seating.take(seats)

    def _report(self) -> None:
        self._channel.send(Report(self.current.metrics.take(), self.current.health))


async def work(descriptor: int) -> int:
    """Serve as the channel's messages say; returns the exit code. Reports a failed start to the supervisor."""
    channel = await Channel.open(socket.socket(fileno=descriptor))
    try:
        start = await channel.receive()
        if not isinstance(start, StartWorker):
            return EXIT_FAILED
        try:
            return await run_until_signal(start.config, lambda logs: Worker(start, channel, logs), worker=start.number)
        except StartError as error:
            channel.send(Failed(str(error)))
            return EXIT_FAILED
    finally:
        await channel.close()


def _die_with(supervisor: int) -> bool:
    """Have the kernel kill this process when its parent dies; False when the parent is dead already.

    Where the kernel cannot do this, the end of the channel stops the process.
    """
    # Where memory must not be executable, ctypes may not work.
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
