"""A process from start to exit code: its event loop and clock, signals, the log, and a failed start.

Knows nothing of what serves. SIGTERM and SIGINT stop it in order, also while it starts; a second one skips
`shutdown.delay`. SIGHUP reloads the configuration, unless the terminal that it was started on hung up: then it stops.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import math
import signal
import socket
import termios
from collections.abc import Callable, Coroutine
from contextvars import Context
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final, TypeVar, TypeVarTuple, cast

import uvloop

from gateway import EXIT_OK, CommandError
from gateway.config import Config, notices
from gateway.observe.logs import Logs

if TYPE_CHECKING:
    from gateway.app.reload import Server
    from gateway.upstream.connect import Names

_LOG = logging.getLogger("gateway")

T = TypeVar("T")
_Ts = TypeVarTuple("_Ts")


class StartError(CommandError):
    """The gateway cannot start. The text says why and what to do."""


class _Signals:
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
            shutdown = server.config.shutdown
            serving = f"serving for another {shutdown.delay:g} s, then " if shutdown.delay else ""
            _LOG.info("stopping: %sup to %g s for %s", serving, shutdown.drain_timeout, server.in_flight)
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
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(work)


def _log_unretrieved(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log exceptions that nobody awaited, except failed name lookups of connections that were given up. uvloop neither
    cancels such a lookup nor retrieves its result. The code that gave up reports the failure."""
    is_resolved_late = isinstance(context.get("exception"), socket.gaierror)
    if not is_resolved_late or type(context.get("future")) is not asyncio.Future:
        loop.default_exception_handler(context)


# -- the event loop ----------------------------------------------------------------------------------------------------
# A turn of the loop that takes long (a burst of requests, a process that was frozen) holds up what has arrived in the
# meantime, and the timers of those who wait for it are over at the same moment. Whoever set such a timer would blame
# the neighbour: the service, the store, a sink. So the time that the loop was held counts for nobody: `time` leaves it
# out, and a timer that is over by another clock alone goes on. What has to be true by everybody's clock, as the trust
# in a lease, is not measured by the loop's.
#
# A tick is due a few times a second, and the loop was held for as long as the tick is late. What is less than a tick
# may remain unnoticed. So a timer that is over looks once more, for a few turns of the loop: what has arrived by then
# is read, and those who wait for it run. At least the time up to the next tick counts in each turn, so that every wait
# ends.
#
# Names that drivers connect to are looked up in threads of each name's own. By itself the loop does that in four
# threads that all of them share: a name server that does not respond for a broker would keep the stores from being
# found.

_TICK_SECONDS: Final = 0.1
# A timer that is late by less is not late: the system may run others first.
_LATE_SECONDS: Final = 0.02
# What has arrived is read in one turn, and who waits for it, several steps away, runs in the next ones.
_LOOK_TURNS: Final = 8
# The clock counts whole milliseconds.
_EXACT_SECONDS: Final = 0.002
# More than configurations name. Brokers and clusters name others.
_NAMES_MAX: Final = 256
# Who sleeps blames nobody, and some of the sleepers keep leases.
_wake_sleeper = getattr(asyncio.futures, "_set_result_unless_cancelled", None)


class _Loop(uvloop.Loop):
    """The loop of this process, with the clock and the lookups described above."""

    def __init__(self) -> None:
        super().__init__()
        # Bound once: every request asks for the time again and again.
        self._now = super().time
        self._held_seconds = 0.0
        # When the next tick is not only due, but late.
        self._late_at = math.inf
        self._names: dict[str, Names] = {}
        self.set_exception_handler(_log_unretrieved)
        self._tick()

    def time(self) -> float:
        """Seconds in which the loop was not held."""
        now = self._now()
        if now > self._late_at:
            self._held_seconds += now - self._late_at + _LATE_SECONDS
            self._late_at = now + _LATE_SECONDS
        return now - self._held_seconds

    def call_later(
        self, delay: float, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call it once so much time has passed in which the loop was not held."""
        if callback is _wake_sleeper or delay <= 0:
            return self.call_unaware(delay, callback, *args, context=context)
        return cast(asyncio.TimerHandle, _Timer(self, delay, callback, args, context))

    def call_unaware(
        self, delay: float, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call it after that time, whether the loop was held or not."""
        return super().call_later(delay, callback, *args, context=context)

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        if host is None or _is_literal(host):
            return await super().create_connection(protocol_factory, host, port, **options)
        names = self._names_for(str(host))
        found = await names.resolve(str(host), port or 0, options.get("family") or socket.AF_UNSPEC)
        if options.get("ssl"):
            options["server_hostname"] = options.get("server_hostname") or host
        failure: OSError = socket.gaierror(socket.EAI_NONAME, f"{host} has no address")
        for each in found:
            try:
                return await super().create_connection(protocol_factory, each["host"], port, **options)
            except OSError as error:
                failure = error
        raise failure

    def _names_for(self, host: str) -> Names:
        if (names := self._names.get(host)) is None:
            # Not earlier: most commands connect to nothing.
            from gateway.upstream.connect import Names

            if len(self._names) >= _NAMES_MAX:
                # The oldest one. Its lookups go on for those who wait for them.
                del self._names[next(iter(self._names))]
            names = self._names[host] = Names()
        return names

    def _tick(self) -> None:
        self.time()
        self._late_at = self._now() + _TICK_SECONDS + _LATE_SECONDS
        self.call_unaware(_TICK_SECONDS, self._tick)


class _Timer:
    """A timer by the loop's clock. Has what callers use of `asyncio.TimerHandle`."""

    __slots__ = ("_args", "_callback", "_context", "_handle", "_loop", "_turns_left", "_when")

    def __init__(
        self,
        loop: _Loop,
        delay: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context | None,
    ) -> None:
        self._loop = loop
        self._when = loop.time() + delay
        self._callback, self._args, self._context = callback, args, context
        self._turns_left = _LOOK_TURNS
        self._handle: asyncio.Handle = loop.call_unaware(delay, self._fire, context=context)

    def when(self) -> float:
        return self._when

    def cancel(self) -> None:
        self._handle.cancel()

    def cancelled(self) -> bool:
        return self._handle.cancelled()

    def _fire(self) -> None:
        left_seconds = self._when - self._loop.time()
        if left_seconds > _EXACT_SECONDS:
            self._handle = self._loop.call_unaware(left_seconds, self._fire, context=self._context)
        else:
            self._look()

    def _look(self) -> None:
        if self._turns_left:
            self._turns_left -= 1
            self._handle = self._loop.call_soon(self._look, context=self._context)
        else:
            self._callback(*self._args)


def _is_literal(host: Any) -> bool:
    try:
        ip_address(str(host).partition("%")[0])
    except ValueError:
        return False
    return True
