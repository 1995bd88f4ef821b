"""An HTTP/1.1 client that sends the bytes it is given and tells exactly what came back. It forgives nothing."""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from tests.support.relay import reset

ANSWER_SECONDS = 30.0
_HEAD_BYTES_MAX = 1 << 20

Headers = list[tuple[bytes, bytes]]


class NoAnswerError(ConnectionError):
    """The connection ended before a whole response head; `received` is what had come by then."""

    def __init__(self, received: bytes) -> None:
        super().__init__(f"no answer, only {received!r}")
        self.received = received


class Message:
    """What requests and responses have in common."""

    __slots__ = ()
    headers: Headers

    def values(self, name: str) -> list[bytes]:
        wanted = name.lower().encode()
        return [value for field, value in self.headers if field.lower() == wanted]


@dataclass(frozen=True, slots=True)
class Response(Message):
    """A response as it stood on the wire. `complete` is False when its framing was broken off."""

    version: bytes
    status: int
    reason: bytes
    headers: Headers
    body: bytes
    complete: bool
    interim: list[tuple[int, Headers]]
    trailers: Headers

    def header(self, name: str) -> str | None:
        """The only value of the field, or None; an AssertionError when there are several."""
        values = self.values(name)
        assert len(values) <= 1, f"{name} is repeated: {values}"
        return values[0].decode("latin-1") if values else None

    def json(self) -> Any:
        return json.loads(self.body)


class Connection:
    """`async with Connection(port) as connection`: one TCP or TLS connection to loopback."""

    def __init__(
        self, port: int, *, tls: ssl.SSLContext | None = None, server_name: str = "localhost", host: str = "127.0.0.1"
    ) -> None:
        self._host = host
        self._port = port
        self._tls = tls
        self._server_name = server_name if tls else None

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_connection(
            self._host, self._port, ssl=self._tls, server_hostname=self._server_name, limit=_HEAD_BYTES_MAX
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def finish_sending(self) -> None:
        """Half-close: we say no more and still listen."""
        self.writer.write_eof()

    async def read_response(self, method: str = "GET", deadline_seconds: float = ANSWER_SECONDS) -> Response:
        """Read one response, passing over interim ones; raises NoAnswerError, or TimeoutError at the deadline.

        `method` is that of the request, because a response to HEAD has no body.
        """
        async with asyncio.timeout(deadline_seconds):
            return await _read_response(self.reader, method)

    async def read_rest(self, deadline_seconds: float = ANSWER_SECONDS) -> bytes:
        """Everything until the peer closes; raises ConnectionError after RST, TimeoutError at the deadline."""
        async with asyncio.timeout(deadline_seconds):
            return await self.reader.read(-1)

    def reset(self) -> None:
        reset(self.writer)

    async def close(self) -> None:
        """Close; what the peer did meanwhile does not matter."""
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()


async def exchange(
    port: int, data: bytes, *, method: str = "GET", tls: ssl.SSLContext | None = None,
    deadline_seconds: float = ANSWER_SECONDS,
) -> Response:  # fmt: skip
    async with Connection(port, tls=tls) as connection:
        await connection.send(data)
        return await connection.read_response(method, deadline_seconds)


async def request(
    port: int, method: str, target: str, headers: Iterable[tuple[str, str]] = (), body: bytes = b"", *,
    tls: ssl.SSLContext | None = None, deadline_seconds: float = ANSWER_SECONDS,
) -> Response:  # fmt: skip
    data = request_bytes(method, target, headers, body)
    return await exchange(port, data, method=method, tls=tls, deadline_seconds=deadline_seconds)


def request_bytes(method: str, target: str, headers: Iterable[tuple[str, str]] = (), body: bytes = b"") -> bytes:
    """An ordinary request: `Host` unless it is given, and `Content-Length` where a body is or is expected."""
    fields = list(headers)
    names = {name.lower() for name, _ in fields}
    if "host" not in names:
        fields.insert(0, ("Host", "gateway.test"))
    if not names & {"content-length", "transfer-encoding"} and (body or method in ("POST", "PUT", "PATCH")):
        fields.append(("Content-Length", str(len(body))))
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields), "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


async def _read_response(reader: asyncio.StreamReader, method: str) -> Response:
    interim: list[tuple[int, Headers]] = []
    while True:
        version, status, reason, headers = await read_head(reader)
        if status >= 200 or status == 101:
            break
        interim.append((status, headers))
    framing = {name.lower(): value for name, value in headers if name.lower() in _FRAMING}
    trailers: Headers = []
    if method == "HEAD" or status in (101, 204, 304):
        body, complete = b"", True
    elif b"transfer-encoding" in framing:
        body, complete, trailers = await read_chunked(reader)
    elif b"content-length" in framing:
        body, _ = await _read_up_to(reader, wanted := int(framing[b"content-length"]))
        complete = len(body) == wanted
    else:
        body, complete = await _read_up_to(reader)
    return Response(version, status, reason, headers, body, complete, interim, trailers)


_FRAMING = (b"content-length", b"transfer-encoding")


async def read_head(reader: asyncio.StreamReader) -> tuple[bytes, int, bytes, Headers]:
    """Version, status, reason and fields of one head; raises NoAnswerError."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        raise NoAnswerError(error.partial) from None
    except ConnectionError:
        raise NoAnswerError(b"") from None
    line, *fields = head[:-4].split(b"\r\n")
    version, status, reason = (line + b" ").split(b" ", 2)
    return version, int(status), reason.rstrip(b" "), [field_of(field) for field in fields]


def field_of(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    assert colon, f"not a field line: {line!r}"
    return name, value.strip(b" \t")


async def read_chunked(reader: asyncio.StreamReader) -> tuple[bytes, bool, Headers]:
    """Body and trailers, and whether all was there."""
    body = b""
    trailers: Headers = []
    try:
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            chunk, _ = await _read_up_to(reader, size)
            body += chunk
            if len(chunk) < size:
                return body, False, []
            assert await reader.readexactly(2) == b"\r\n"
        while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
            trailers.append(field_of(line[:-2]))
    except (asyncio.IncompleteReadError, ConnectionError):
        return body, False, []
    return body, True, trailers


async def _read_up_to(reader: asyncio.StreamReader, count: int = sys.maxsize) -> tuple[bytes, bool]:
    """So many bytes, or fewer when the connection ends before; and whether it did not end with an error."""
    body = b""
    try:
        while len(body) < count and (part := await reader.read(min(_HEAD_BYTES_MAX, count - len(body)))):
            body += part
    except (ConnectionError, ssl.SSLError):
        return body, False
    return body, True
