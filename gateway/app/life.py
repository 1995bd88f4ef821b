"""A process from start to exit code: its event loop, signals, the log, and a failed start.

Knows nothing of what serves. SIGTERM and SIGINT stop it in order, also while it starts; a second one skips
`shutdown.delay`. SIGHUP reloads the configuration, unless the terminal that it was started on hung up: then it stops.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import signal
import socket
import termios
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from gateway import EXIT_OK, CommandError
from gateway.app.loop import GatewayLoop
from gateway.config import Config, notices
from gateway.observe.logs import Logs

if TYPE_CHECKING:
    from gateway.app.reload import Server

_LOG = logging.getLogger("gateway")


T = TypeVar("T")


class StartError(CommandError):
    """The gateway cannot start. The text says why and what to do."""


class _Signals:
    """What the signals of this process do."""

    def __init__(self, *, is_worker: bool) -> None:
        self.stopping = asyncio.Event()
        self.server: Server | None = None
        self.has_started = False
        self._wants_reload = False
        self._is_worker = is_worker

    def listen(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        # One that came while the program loaded has waited until here.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})

    def end(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            asyncio.get_running_loop().remove_signal_handler(number)

    def _stop(self) -> None:
        if not self.stopping.is_set():
            self.stopping.set()
        elif not self._is_worker and self.server is not None:
            self.server.skip_delay()

    def _hang_up(self) -> None:
        if self._is_worker:
            return
        if _is_terminal_gone():
            # Nobody asked for a reload.
            self._stop()
        elif self.server is not None and self.has_started:
            self.server.reload_soon()
        else:
            # The file may have been read already.
            self._wants_reload = True

    def start_ended(self) -> None:
        """Reload from now on, and where that was wanted during the start."""
        self.has_started = True
        if self._wants_reload:
            self._hang_up()


def _is_terminal_gone() -> bool:
    """Whether standard input was a terminal and is none any more."""
    try:
        termios.tcgetattr(0)
    except termios.error as error:
        return bool(error.args[0] == errno.EIO)
    return False


async def run_until_signal(config: Config, build: Callable[[Logs], Server], *, worker: int | None = None) -> int:
    """Serve with what `build` makes until SIGTERM or SIGINT; returns the exit code. Logs and raises `StartError`.
    `worker` is the number of this process among several. Its supervisor decides when it skips the delay, and logs what
    failed."""
    logs = Logs(
        level=config.log.level,
        format=config.log.format,
        requests=config.log.requests,
        worker=worker,
        is_shared=config.workers != 1,
    )
    signals = _Signals(is_worker=worker is not None)
    signals.listen()
    try:
        for notice in notices(config) if worker is None else ():
            _LOG.warning("%s", notice)
        _tune_collector()
        server = signals.server = build(logs)
        stop = asyncio.get_running_loop().create_task(signals.stopping.wait())
        if not await _started(server, stop):
            return EXIT_OK
        signals.start_ended()
        await asyncio.wait((stop, server.failed), return_when=asyncio.FIRST_COMPLETED)
        if stop.done():
            _LOG.info("stopping: %s", _what_follows(server.config, server))
        stop.cancel()
        code = await server.stop()
        if server.failed.done():
            raise server.failed.result()
        # Without this line, the log of an orderly stop would look like that of a crash.
        _LOG.info("stopped with exit code %d", code)
        return code
    except StartError as error:
        if worker is None:
            _LOG.error("the gateway cannot serve: %s", error)
        raise
    finally:
        signals.end()
        logs.close()


def _what_follows(config: Config, server: Server) -> str:
    shutdown = config.shutdown
    serving = f"serving for another {shutdown.delay:g} s, then " if shutdown.delay else ""
    return f"{serving}up to {shutdown.drain_timeout:g} s for {server.in_flight}"


async def _started(server: Server, stop: asyncio.Task[Any]) -> bool:
    """Start it; False when `stop` is done before. Raises `StartError`."""
    starting = asyncio.get_running_loop().create_task(server.start())
    try:
        await asyncio.wait((starting, stop), return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not starting.done():
            starting.cancel()
        await asyncio.wait((starting,))
        if starting.cancelled() or starting.exception() is not None:
            stop.cancel()
    if starting.cancelled():
        return False
    starting.result()
    return True


def _tune_collector() -> None:
    """Run the cycle collector less often: a request makes many objects and no cycles, and collecting costs a fifth.
    What the program itself consists of is frozen: it lives as long as the process. A collection of ten thousand young
    objects pauses for a few milliseconds; one of the next generation covers four of these and takes four times as long;
    the last threshold keeps full collections rare."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 3, 140)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run on uvloop, which takes half the time of the standard loop."""
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        return runner.run(work)


def _new_loop() -> asyncio.AbstractEventLoop:
    loop = GatewayLoop()
    loop.set_exception_handler(_log_unretrieved)
    return loop


def _log_unretrieved(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log exceptions that nobody awaited, except failed name lookups of connections that were given up. uvloop neither
    cancels such a lookup nor retrieves its result. The code that gave up reports the failure."""
    is_resolved_late = isinstance(context.get("exception"), socket.gaierror)
    if not is_resolved_late or type(context.get("future")) is not asyncio.Future:
        loop.default_exception_handler(context)
