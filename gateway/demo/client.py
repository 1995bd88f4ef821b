"""A client for the demonstration: one connection per request, no retries, and able to lose a response.

It reads HTTP/1.1 responses with `Connection: close`, and nothing more.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from gateway.core.message import bracketed

T = TypeVar("T")

RESPONSE_SECONDS: Final = 30.0
_RESPONSE_BYTES_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Response:
    """A response; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def verdict(self) -> str:
        """The gateway's verdict; empty without one."""
        return self.headers.get("idempotency-status", "")

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Caller:
    """Calls the gateway on this host and port. Raises `OSError` when no complete response comes."""

    host: str
    port: int

    async def send(self, method: str, target: str, headers: Mapping[str, str], body: bytes = b"") -> Response:
        """Send a request and read its response."""
        return await self._exchange(self._request(method, target, headers, body), _read_response)

    async def send_and_lose(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes,
        until: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        """Send a request, wait `until` it had an effect, and break the connection without reading."""

        async def lose(_: asyncio.StreamReader) -> None:
            await until()

        await self._exchange(self._request(method, target, headers, body), lose)

    def _request(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> bytes:
        fields = {"Host": f"{bracketed(self.host)}:{self.port}", **headers, "Connection": "close"}
        if body:
            fields |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
        lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
        return "\r\n".join(lines).encode() + body

    async def _exchange(self, request: bytes, then: Callable[[asyncio.StreamReader], Coroutine[Any, Any, T]]) -> T:
        async with asyncio.timeout(RESPONSE_SECONDS):
            reader, writer = await asyncio.open_connection(self.host, self.port, limit=_RESPONSE_BYTES_MAX)
            try:
                writer.write(request)
                await writer.drain()
                return await then(reader)
            finally:
                writer.transport.abort()


async def _read_response(reader: asyncio.StreamReader) -> Response:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        status_line, *lines = head.rstrip("\r\n").split("\r\n")
        pairs = (line.split(":", 1) for line in lines)
        headers = {name.lower(): value.strip() for name, value in pairs}
        if "content-length" in headers:
            body = await reader.readexactly(int(headers["content-length"]))
        elif headers.get("transfer-encoding") == "chunked":
            body = await _read_chunks(reader)
        else:
            body = await reader.read(_RESPONSE_BYTES_MAX)
        return Response(int(status_line.split(" ")[1]), headers, body)
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, IndexError) as error:
        raise ConnectionError("the response was not complete") from error


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        body += (await reader.readexactly(size + 2))[:-2]
        if len(body) > _RESPONSE_BYTES_MAX:
            raise ConnectionError("the response is too long")
    await reader.readuntil(b"\r\n")
    return body
