"""One request at the edge: reads it as a value, and writes its reply to the client's connection.

Owns what has been written so far, whether the connection may serve another request, and the wait for a slow reader. It
decides nothing about a request.

Invariant: once a byte of a final head is out, the connection either carries the whole reply or is reset. A reply that
broke off never looks complete.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from gateway.core.message import EXPECT, IndexedHeaders, RequestHead, ResponseHead, header_values
from gateway.http.budget import MemoryBudget
from gateway.http.connection import ClientConnection, ClientGone, Message, Payload
from gateway.http.reply import LAST_CHUNK, Framed, bare_head, chunk
from gateway.http.request import ClientBody
from gateway.http.tunnel import ClientTunnel
from gateway.protect.forwarding import response_headers
from gateway.protect.reply import BodyCut, ResponseStream
from gateway.protect.request import Request
from gateway.protect.route import Route

if TYPE_CHECKING:
    from gateway.http.handler import Served

ONE_WRITE_BYTES_MAX: Final = 64 * 1024
"""Up to this size, head and body go out in one write."""
# How much of a longer body is written before waiting for the client. With TLS, writing the first two parts never
# waits, read or not; they are short, so that little memory is held beside the budget.
_PART_BYTES: Final = 64 * 1024


class ClientExchange:
    """See the module, and `passthrough.Client`. Lives as long as its request.

    `served` is what it is served by. `route` protects the request, `observed` only looks at it. `is_examined`: it was
    not refused by its head. `is_forwarded`: it may have been sent unprotected. `takes_interim`: the client understands
    interim responses, which HTTP/1.0 does not have (RFC 9110 section 15.2). `has_begun_reply`: a byte of a final head
    is out. `keep_alive`: the connection may serve another request afterwards.
    """

    __slots__ = (
        "_message",
        "_payload",
        "body",
        "connection",
        "has_begun_reply",
        "has_origin",
        "head",
        "is_examined",
        "is_forwarded",
        "keep_alive",
        "observed",
        "route",
        "served",
        "takes_interim",
        "version",
    )

    def __init__(self, connection: ClientConnection, message: Message, payload: Payload, served: Served) -> None:
        headers = IndexedHeaders(message.raw_headers)
        self.connection = connection
        self.served = served
        self._message = message
        self._payload = payload
        self.version: tuple[int, int] = message.version
        self.takes_interim = self.version == (1, 1)
        target = message.path.encode("utf-8", "surrogateescape")
        self.head = RequestHead(message.method.encode(), target, headers)
        self.has_origin = b"origin" in headers.by_name
        lengths = headers.by_name.get(b"content-length")
        length = None if message.chunked else int(lengths[0]) if lengths else 0
        self.body = ClientBody(connection, payload, length)
        self.route: Route | None = None
        self.observed: Route | None = None
        self.is_examined = self.is_forwarded = False
        self.has_begun_reply = self.keep_alive = False
        if headers.marks & EXPECT and self.takes_interim and not payload.is_eof():
            expectations = header_values(headers, b"expect")
            self.body.expects_continue = any(value.lower() == b"100-continue" for value in expectations)

    # -- the request --------------------------------------------------------------------------------------------------

    def incoming(self, *, may_upgrade: bool) -> Request:
        """The request as a value. Without `may_upgrade`, its request for an upgrade is dropped."""
        head, upgrades = self.head, False
        if self._message.upgrade:
            upgrades = may_upgrade and self._is_switchable()
            if not upgrades:
                kept = [header for header in head.headers if header[0].lower() != b"upgrade"]
                head = RequestHead(head.method, head.target, IndexedHeaders(kept))
        return Request(head, self.body, self.connection.hop, upgrades)

    def may_keep_alive(self) -> bool:
        """Whether what follows the request is surely another request.

        A body that did not arrive completely is followed by its rest. After chunks, aiohttp's parser takes the last
        trailer for the first header of the next request. After a request for an unknown upgrade, the bytes may belong
        to that protocol. HTTP/2 starts only after a 101 (RFC 7540 section 3.2), and Java's client always offers it.
        """
        message, connection = self._message, self.connection
        if message.should_close or message.chunked or not self._payload.is_eof():
            return False
        if connection.ignores_input or (connection.has_ended and connection.is_last):
            return False
        if not message.upgrade or self._is_switchable():
            return True
        return self._protocols() == [b"h2c"] and connection.dropped_nothing

    def _is_switchable(self) -> bool:
        """Whether the client asks for a protocol that may be tunnelled; HTTP/2 would bypass every route.

        A handshake has no body, of which one part would go to the request and the rest to the tunnel.
        """
        return self._protocols() == [b"websocket"] and self.takes_interim and self.body.length == 0

    def _protocols(self) -> list[bytes]:
        """The protocols that the request offers."""
        return [value.lower() for value in header_values(self.head.headers, b"upgrade")]

    # -- the reply ----------------------------------------------------------------------------------------------------

    def write(self, out: Framed, body: bytes) -> None:
        """Write the whole reply at once. Raises `ClientGone`."""
        self.has_begun_reply = True
        self.body.expects_continue = False
        transport = self.connection.transport
        if transport is None or transport.is_closing():
            raise ClientGone
        transport.write(out.head + body if out.sends_body else out.head)
        self.keep_alive = out.keep_alive

    async def write_on(self, out: Framed, body: bytes | ResponseStream, unread: MemoryBudget) -> None:
        """Write a long reply as the client reads it; one that is here counts against `unread` meanwhile. Raises
        `ClientGone`."""
        self.write(out, b"")
        self.keep_alive = False
        if not isinstance(body, bytes):
            await self._write_stream(out, body)
        elif out.sends_body:
            await self._write_long(body, unread)
        self.keep_alive = out.keep_alive

    def abort(self) -> None:
        """Reset the connection, so that the client notices."""
        self.keep_alive = False
        self.connection.abort()

    async def _write_long(self, body: bytes, unread: MemoryBudget) -> None:
        """Write in parts: with TLS, it is unknown how much of what was written the transport still holds."""
        connection = self.connection
        with unread.held(connection, len(body)):
            try:
                for start in range(0, len(body), _PART_BYTES):
                    connection.write(body[start : start + _PART_BYTES])
                    await connection.drain()
            except BaseException:
                self.abort()
                raise

    async def _write_stream(self, out: Framed, stream: ResponseStream) -> None:
        connection = self.connection
        if not out.sends_body:
            return
        self.on_gone(stream.abort)
        try:
            left = out.length
            while data := await stream.read():
                if left is not None:
                    left -= len(data)
                    if left < 0:
                        raise BodyCut("longer than announced")
                connection.write(chunk(data) if out.is_chunked else data)
                await connection.drain()
            if left:
                raise BodyCut("shorter than announced")
            if out.is_chunked:
                connection.write(LAST_CHUNK)
        except BodyCut:
            self.abort()
            raise ClientGone from None
        except BaseException:
            self.abort()
            raise
        finally:
            self.on_gone(None)

    # -- beside the reply: `passthrough.Client` -----------------------------------------------------------------------

    def send_interim(self, head: ResponseHead) -> None:
        if self.takes_interim and self.connection.is_open and not self.has_begun_reply:
            self.connection.write(bare_head(ResponseHead(head.status, head.reason, response_headers(head.headers))))

    def on_gone(self, callback: Callable[[], object] | None) -> None:
        self.connection.on_gone = callback
        if callback is not None and self.connection.gone.is_set():
            callback()

    def switch(self, head: ResponseHead) -> ClientTunnel:
        self.connection.write(bare_head(head))
        self.has_begun_reply = True
        return ClientTunnel(self.connection)
