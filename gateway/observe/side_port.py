"""A port beside the traffic, for operators and their programs: bounded, and silent about the software behind it.

Owns the listener and its limits: few connections, short lines, few headers, no decompression of bodies. The application
is the caller's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from aiohttp import web

_LOG = logging.getLogger("gateway")

# More than any operator needs. Each takes a descriptor from the traffic.
_CONNECTIONS_MAX: Final = 256
_HEADERS_MAX: Final = 64
_IDLE_SECONDS: Final = 75.0

Refuse = Callable[[int, Mapping[str, str]], web.Response]
"""Makes the response to a request that aiohttp refuses, from the status and the headers that belong to it."""


class _TerseResponse(web.Response):
    """A response without the `Server` header, which aiohttp adds last."""

    async def _prepare_headers(self) -> None:
        await super()._prepare_headers()
        self.headers.popall("Server", None)


def terse(status: int, body: bytes, content_type: str, headers: Mapping[str, str] | None = None) -> web.Response:
    """A response that is not cached, and whose content type is not guessed."""
    fixed = {"Content-Type": content_type, "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    return _TerseResponse(status=status, body=body, headers={**fixed, **(headers or {})})


class SidePort:
    """Serves `app` from `start` to `stop`. `name` is for the log; each response gets the `headers` that it lacks."""

    def __init__(
        self,
        name: str,
        app: web.Application,
        refuse: Refuse,
        *,
        line_bytes_max: int,
        stop_seconds: float,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._name = name
        self._headers = headers
        self._refuse = refuse
        self._line_bytes_max = line_bytes_max
        self._runner = web.AppRunner(app, shutdown_timeout=stop_seconds)
        self.listener: _Listener | None = None
        self._before: SidePort | None = None

    async def start(self, host: str, port: int, before: SidePort | None = None) -> int:
        """Listen, and return the port, which the system chooses for 0. Where the one `before` listens there, this is to
        `take_over`. Raises OSError."""
        await self._runner.setup()
        if before is not None and before.listener is not None and before.listener.address == (host, port):
            self._before = before
            return before.listener.port
        self.listener = _Listener(self, (host, port))
        try:
            return await self.listener.start()
        except BaseException:
            await self.stop()
            raise

    def take_over(self) -> None:
        """Take the connections to come in the place of the one before."""
        if self._before is not None and (listener := self._before.listener) is not None:
            self.listener, self._before.listener = listener, None
            listener.owner = self
        self._before = None

    async def stop(self) -> None:
        """Close the listener; requests under way get a bounded time. Harmless when it does not listen."""
        listener, self.listener = self.listener, None
        if listener is not None:
            listener.close()
        await self._runner.cleanup()

    def connected(self) -> web.RequestHandler:
        """The protocol of a new connection. Closes the oldest one where there are too many."""
        server = self._runner.server
        if server is None:
            raise RuntimeError("the port does not listen")
        # Not the new one: it may be a probe, and the others may be an attempt to lock it out.
        connections = [each for each in server.connections if each.transport is not None]
        if len(connections) >= _CONNECTIONS_MAX:
            connections[0].force_close()
        return _Connection(
            server,
            self._name,
            self._refuse,
            self._headers,
            loop=asyncio.get_running_loop(),
            access_log=None,
            keepalive_timeout=_IDLE_SECONDS,
            max_line_size=self._line_bytes_max,
            max_field_size=self._line_bytes_max,
            max_headers=_HEADERS_MAX,
            lingering_time=0.0,
            # A small body could decompress into a large one.
            auto_decompress=False,
        )


class _Listener:
    """Listens, and gives each connection to its owner at that moment."""

    def __init__(self, owner: SidePort, address: tuple[str, int]) -> None:
        self.owner = owner
        self.address = address
        self.port = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> int:
        """Raises OSError."""
        self._server = await asyncio.get_running_loop().create_server(self._connected, *self.address)
        self.port = self._server.sockets[0].getsockname()[1]
        return self.port

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    def _connected(self) -> web.RequestHandler:
        return self.owner.connected()


class _Connection(web.RequestHandler):
    """Gives aiohttp's refusals the form of the port's other responses, and logs them at debug level only."""

    __slots__ = ("_fixed_headers", "_name", "_refuse")

    def __init__(
        self, server: web.Server, name: str, refuse: Refuse, headers: Mapping[str, str], **options: Any
    ) -> None:
        super().__init__(server, **options)
        self._fixed_headers = headers
        self._name = name
        self._refuse = refuse

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        level = logging.ERROR if status >= 500 else logging.DEBUG
        _LOG.log(level, "the %s port responded %d", self._name, status, exc_info=exc if status >= 500 else None)
        response = self._refuse(status, {})
        response.force_close()
        return response

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        if isinstance(resp, web.HTTPException):
            resp = self._refuse(resp.status, {"Allow": resp.headers["Allow"]} if "Allow" in resp.headers else {})
        for name, value in self._fixed_headers.items():
            resp.headers.setdefault(name, value)
        return await super().finish_response(request, resp, start_time)
