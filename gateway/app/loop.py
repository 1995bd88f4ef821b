"""The event loop: its clock, which stands still while the loop is held, and how names are looked up.

A turn of the loop that takes long (a burst of requests, a process that was frozen) holds up what has arrived in the
meantime, and the timers of those who wait for it are over at the same moment. Whoever set such a timer would blame the
neighbour: the service, the store, a sink. So the time that the loop was held counts for nobody: `time` leaves it out,
and a timer that is over by another clock alone goes on. What has to be true by everybody's clock, as the trust in a
lease, is not measured by the loop's.

A tick is due a few times a second, and the loop was held for as long as the tick is late. What is less than a tick may
remain unnoticed. So a timer that is over looks once more, for a few turns of the loop: what has arrived by then is
read, and those who wait for it run. At least the time up to the next tick counts in each turn, so that every wait ends.

Names that drivers connect to are looked up in threads of each name's own. By itself the loop does that in four threads
that all of them share: a name server that does not respond for a broker would keep the stores from being found.
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Callable
from contextvars import Context
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final, TypeVarTuple, cast

import uvloop

if TYPE_CHECKING:
    from gateway.upstream.connect import Names

_Ts = TypeVarTuple("_Ts")

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


class GatewayLoop(uvloop.Loop):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        # Bound once: every request asks for the time again and again.
        self._now = super().time
        self._held_seconds = 0.0
        # When the next tick is not only due, but late.
        self._late_at = math.inf
        self._names: dict[str, Names] = {}
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
        loop: GatewayLoop,
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
