"""One connection from a client: what aiohttp's protocol is told to do otherwise.

Owns the client's address, the news that it went, input that is to be thrown away, and the two ways to stop being HTTP:
a tunnel, and a request that the parser refuses. The parsing, the queue of pipelined requests and keep-alive are
aiohttp's. It knows nothing of routes or replies.

Invariant: after the parser refused something, nothing that follows on the connection is looked at.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any, Protocol, cast

from aiohttp import StreamReader, web
from aiohttp.http import RawRequestMessage
from aiohttp.http_exceptions import LineTooLong
from aiohttp.web_protocol import RequestPayloadError

from gateway.proxy.reply import Peer

_RST_ON_CLOSE = struct.pack("ii", 1, 0)


class Input(Protocol):
    """Who takes a connection's bytes once it is no longer HTTP."""

    def feed_data(self, data: bytes) -> tuple[bool, bytes]: ...
    def feed_eof(self) -> None: ...
    def half_closed(self) -> None: ...


class Written:
    """What a handler returns to aiohttp: the response is written already, or these are its bytes."""

    __slots__ = ("_data", "keep_alive")

    def __init__(self, *, keep_alive: bool, data: bytes = b"") -> None:
        self.keep_alive = keep_alive
        self._data = data

    async def prepare(self, request: web.BaseRequest) -> None:
        transport = request.transport
        if self._data and transport is not None and not transport.is_closing():
            transport.write(self._data)

    async def write_eof(self) -> None:
        """All was written before."""

    def as_response(self) -> web.StreamResponse:
        """aiohttp asks for no more than the methods above (`RequestHandler.finish_response`)."""
        return cast(web.StreamResponse, self)


class ClientConnection(web.RequestHandler):
    """See the module. `on_gone` is called when the client went; `gone` is set from then on."""

    __slots__ = ("_input", "_is_refused", "_tasks", "_wire", "gone", "is_busy", "on_gone", "peer", "scheme")

    def __init__(self, server: EdgeServer, **settings: Any) -> None:
        super().__init__(server, **settings)
        self._tasks = server.tasks
        self._is_refused = False
        self._input: Input | None = None
        self._wire: asyncio.Transport | None = None
        self.gone = asyncio.Event()
        self.on_gone: Callable[[], object] | None = None
        self.is_busy = False
        self.peer: Peer = None
        self.scheme = "http"

    # -- for the exchange ---------------------------------------------------------------------------------------------

    @property
    def is_upgraded(self) -> bool:
        """Whether what follows on the connection is not read as HTTP, until the upgrade is declined."""
        return self._upgraded

    def discard_input(self) -> None:
        """Throw away whatever still comes: the answer was given without it."""
        self._is_refused = True
        self._resume_transport_reading()

    def open_tunnel(self, taker: Input) -> None:
        """Hand on every byte from now on, and those that came too early."""
        self._input = taker
        self.set_parser(taker)  # type: ignore[arg-type]  # these two methods of it are called

    def abort(self) -> None:
        """End the connection so that the client cannot take what it got for whole: by RST, never by FIN."""
        transport = self._wire
        if transport is None:
            return
        sock = transport.get_extra_info("socket")
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST_ON_CLOSE)
        transport.abort()

    # -- events -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        await super().start()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # aiohttp lets go of its own reference as soon as it closes, before all is sent.
        self._wire = cast(asyncio.Transport, transport)
        address = transport.get_extra_info("peername")
        if isinstance(address, tuple):
            # An IPv6 address may carry its zone.
            self.peer = ip_address(str(address[0]).partition("%")[0])
        if transport.get_extra_info("sslcontext") is not None:
            self.scheme = "https"
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        super().data_received(data)
        messages = self._messages
        if messages and not isinstance(messages[-1][0], RawRequestMessage):
            # The parser says so only by a message of its own, and leaves whoever reads the body waiting.
            self._is_refused = True
            payload: StreamReader | None = None
            if len(messages) > 1:
                payload = messages[-2][1]
            elif self._current_request is not None:
                payload = self._current_request.content
            if payload is not None and not payload.is_eof():
                payload.set_exception(RequestPayloadError("the body is malformed"))

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio keeps the connection open on True
        """A client that ends its direction is taken for gone, because most that do so are; not so in a tunnel."""
        if self._input is None:
            return False
        self._input.half_closed()
        # TLS knows no half-closed connection.
        return self.scheme == "http"

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._wire = None
        self.gone.set()
        if self.on_gone is not None:
            self.on_gone()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what the parser refused: tidily, once, and without a word of what was sent."""
        server = cast("EdgeServer | None", self._manager)
        if server is None:
            return Written(keep_alive=False).as_response()
        data = server.refusal(431 if isinstance(exc, LineTooLong) else 400)
        return Written(keep_alive=False, data=data).as_response()


class EdgeServer(web.Server):
    """Makes connections. `refusal` gives the whole response to a request that could not be parsed, by its status.

    `tasks` are those that serve connections.
    """

    def __init__(
        self, handler: Callable[[web.BaseRequest], Any], *, refusal: Callable[[int], bytes], **settings: Any
    ) -> None:
        super().__init__(handler, handler_cancellation=False)
        self._settings = settings
        self.refusal = refusal
        self.tasks: set[asyncio.Task[Any]] = set()

    def __call__(self) -> ClientConnection:
        return ClientConnection(self, loop=self._loop, **self._settings)

    @property
    def clients(self) -> list[ClientConnection]:
        """Every connection that is open."""
        return cast(list[ClientConnection], self.connections)
