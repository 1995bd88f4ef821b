"""A port beside the traffic, for people and programs that look after the gateway: terse, bounded, and silent about what
it is made of.

Owns the listening and how little is taken in: few connections, short lines, few fields, no body that was decompressed.
It knows nothing of what is asked there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

_LOG = logging.getLogger("gateway")

# More than look after one gateway. Each takes a descriptor from those of the traffic.
_CONNECTIONS_MAX: Final = 256
_FIELDS_MAX: Final = 64
_IDLE_SECONDS: Final = 75.0

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class _TerseResponse(web.Response):
    """One that does not name the program and its version, which aiohttp adds last."""

    async def _prepare_headers(self) -> None:
        await super()._prepare_headers()
        self.headers.popall("Server", None)


def terse(status: int, body: bytes, content_type: str, headers: Mapping[str, str] | None = None) -> web.Response:
    """An answer that nobody keeps, or takes for anything but what it says that it is."""
    fixed = {"Content-Type": content_type, "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    return _TerseResponse(status=status, body=body, headers={**fixed, **(headers or {})})


@dataclass(frozen=True, slots=True)
class Manner:
    """How a port speaks: `name` is for the log, `refuse` makes the answer to what is no request, or fails."""

    name: str
    refuse: Callable[[int], web.Response]
    line_bytes_max: int
    stop_seconds: float


class SidePort:
    """Listens from `start` to `stop`; `handle` answers."""

    def __init__(self, handle: Handler, manner: Manner) -> None:
        self._handle = handle
        self._manner = manner
        self._runner: web.ServerRunner | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port, which the system chooses for 0. Raises OSError."""
        # An aiohttp server belongs to the loop that runs when it is made.
        self._runner = web.ServerRunner(_Server(self._handle, self._manner), shutdown_timeout=self._manner.stop_seconds)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host, port).start()
        except BaseException:
            await self.stop()
            raise
        bound: int = self._runner.addresses[0][1]
        return bound

    async def stop(self) -> None:
        """Close the listener; what is under way gets a bounded time. Harmless when it does not listen."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()


class _Protocol(web.RequestHandler):
    """Answers what is not HTTP as tersely as the rest, and without filling the log."""

    __slots__ = ("_manner",)

    def __init__(self, server: web.Server, manner: Manner, **options: Any) -> None:
        super().__init__(server, **options)
        self._manner = manner

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        level = logging.ERROR if status >= 500 else logging.DEBUG
        _LOG.log(level, "the %s port answered %d", self._manner.name, status, exc_info=exc if status >= 500 else None)
        response = self._manner.refuse(status)
        response.force_close()
        return response


class _Server(web.Server):
    def __init__(self, handle: Handler, manner: Manner) -> None:
        super().__init__(handle)
        self._manner = manner
        # Longest open first.
        self._open: dict[web.RequestHandler, asyncio.Transport] = {}

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self._open[handler] = transport
        if len(self._open) > _CONNECTIONS_MAX:
            # Not the newcomer: it may be a probe, and the others may be there to keep it out.
            self._open.pop(next(iter(self._open))).abort()

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self._open.pop(handler, None)

    def __call__(self) -> web.RequestHandler:
        return _Protocol(
            self,
            self._manner,
            loop=asyncio.get_running_loop(),
            access_log=None,
            keepalive_timeout=_IDLE_SECONDS,
            max_line_size=self._manner.line_bytes_max,
            max_field_size=self._manner.line_bytes_max,
            max_headers=_FIELDS_MAX,
            lingering_time=0.0,
            # A small body could grow into a large one.
            auto_decompress=False,
        )
