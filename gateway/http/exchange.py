"""One request at the edge: reads it as a value, and writes its reply to the client's connection.

Owns what has been written so far, whether the connection may serve another request, and the wait for a slow reader. It
decides nothing about a request.

Invariant: once a byte of a final head is out, the connection either carries the whole reply or is reset. A reply that
broke off never looks complete.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gateway.core.message import IndexedHeaders, RequestHead, ResponseHead, header_values
from gateway.http.budget import MemoryBudget
from gateway.http.connection import ClientConnection, ClientGone, ParsedRequest
from gateway.http.reply import LAST_CHUNK, Framed, bare_head, chunk
from gateway.http.request import ClientBody
from gateway.http.tunnel import ClientTunnel
from gateway.protect.cors import CorsPolicy
from gateway.protect.reply import BodyCut, ResponseStream
from gateway.protect.request import Request

# Up to this size, head and body go out in one write.
_ONE_WRITE_BYTES_MAX: Final = 64 * 1024
# How much of a longer body is written before waiting for the client. With TLS, writing the first two parts never
# waits, read or not; they are short, so that little memory is held beside the budget.
_PART_BYTES: Final = 64 * 1024


class ClientExchange:
    """See the module, and `passthrough.Client`. Lives as long as its request.

    `has_begun_reply`: a byte of a final head is out. `keep_alive`: the connection may serve another request afterwards.
    """

    __slots__ = (
        "_message",
        "_payload",
        "body",
        "connection",
        "cors",
        "has_begun_reply",
        "head",
        "keep_alive",
        "version",
    )

    def __init__(self, connection: ClientConnection, parsed: ParsedRequest, cors: CorsPolicy) -> None:
        message, payload = parsed
        headers = IndexedHeaders(message.raw_headers)
        self.connection = connection
        self.cors = cors
        self._message = message
        self._payload = payload
        self.version: tuple[int, int] = message.version
        target = message.path.encode("utf-8", "surrogateescape")
        self.head = RequestHead(message.method.encode(), target, headers)
        lengths = headers.by_name.get(b"content-length")
        length = None if message.chunked else int(lengths[0]) if lengths else 0
        self.body = ClientBody(connection, payload, length)
        self.has_begun_reply = False
        self.keep_alive = False
        if b"expect" in headers.by_name and self.takes_interim and not payload.is_eof():
            expectations = headers.by_name[b"expect"]
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
        if message.should_close or message.chunked or connection.is_last or not self._payload.is_eof():
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

    async def write(self, out: Framed, body: bytes | ResponseStream, unread: MemoryBudget) -> None:
        """Write the whole reply; a long one counts against `unread` meanwhile. Raises `ClientGone`."""
        self.has_begun_reply = True
        self.body.expects_continue = False
        if not isinstance(body, bytes):
            await self._write_stream(out, body)
        elif not out.sends_body or not body:
            self.connection.write(out.head)
        elif len(body) <= _ONE_WRITE_BYTES_MAX:
            self.connection.write(out.head + body)
        else:
            await self._write_long(out, body, unread)
        if self.connection.writing_paused:
            await self.connection.drain()
        self.keep_alive = out.keep_alive

    def abort(self) -> None:
        """Reset the connection, so that the client notices."""
        self.keep_alive = False
        self.connection.abort()

    async def _write_long(self, out: Framed, body: bytes, unread: MemoryBudget) -> None:
        """Write in parts: with TLS, it is unknown how much of what was written the transport still holds."""
        connection = self.connection
        with unread.held(connection, len(body)):
            connection.write(out.head)
            try:
                for start in range(0, len(body), _PART_BYTES):
                    connection.write(body[start : start + _PART_BYTES])
                    await connection.drain()
            except BaseException:
                self.abort()
                raise

    async def _write_stream(self, out: Framed, stream: ResponseStream) -> None:
        connection = self.connection
        connection.write(out.head)
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

    @property
    def takes_interim(self) -> bool:
        return self.version == (1, 1)

    def send_interim(self, head: ResponseHead) -> None:
        if self.connection.is_open and not self.has_begun_reply:
            self.connection.write(bare_head(head))

    def on_gone(self, callback: Callable[[], object] | None) -> None:
        self.connection.on_gone = callback
        if callback is not None and self.connection.gone.is_set():
            callback()

    def switch(self, head: ResponseHead) -> ClientTunnel:
        self.connection.write(bare_head(head))
        self.has_begun_reply = True
        return ClientTunnel(self.connection)
