"""A caller of the demonstration: one connection a request, no retry of its own, and able to lose an answer.

It reads what HTTP/1.1 needs it to read of an answer that ends with its connection, and nothing more.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from gateway.core.message import bracketed

T = TypeVar("T")

ANSWER_SECONDS: Final = 30.0
_ANSWER_BYTES_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def word(self) -> str:
        """The verdict, as the gateway names it; empty where it says none."""
        return self.headers.get("idempotency-status", "")

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody who calls the gateway on this host and port. Raises OSError when no whole answer comes."""

    host: str
    port: int

    async def send(self, method: str, target: str, headers: Mapping[str, str], body: bytes = b"") -> Answer:
        """Send a request and read its answer to the end."""
        return await self._converse(self._request(method, target, headers, body), _read_answer)

    async def send_and_lose(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes,
        until: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        """Send a request, wait `until` something has come of it, and break the connection without reading."""

        async def lose(_: asyncio.StreamReader) -> None:
            await until()

        await self._converse(self._request(method, target, headers, body), lose)

    def _request(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> bytes:
        fields = {"Host": f"{bracketed(self.host)}:{self.port}", **headers, "Connection": "close"}
        if body:
            fields |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
        lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
        return "\r\n".join(lines).encode() + body

    async def _converse(self, request: bytes, then: Callable[[asyncio.StreamReader], Coroutine[Any, Any, T]]) -> T:
        async with asyncio.timeout(ANSWER_SECONDS):
            reader, writer = await asyncio.open_connection(self.host, self.port, limit=_ANSWER_BYTES_MAX)
            try:
                writer.write(request)
                await writer.drain()
                return await then(reader)
            finally:
                writer.transport.abort()


async def _read_answer(reader: asyncio.StreamReader) -> Answer:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        status_line, *lines = head.rstrip("\r\n").split("\r\n")
        fields = dict(line.split(":", 1) for line in lines)
        headers = {name.lower(): value.strip() for name, value in fields.items()}
        if "content-length" in headers:
            body = await reader.readexactly(int(headers["content-length"]))
        elif headers.get("transfer-encoding") == "chunked":
            body = await _read_chunks(reader)
        else:
            body = await reader.read(_ANSWER_BYTES_MAX)
        return Answer(int(status_line.split(" ")[1]), headers, body)
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, IndexError) as error:
        raise ConnectionError("the answer was not whole") from error


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        body += (await reader.readexactly(size + 2))[:-2]
        if len(body) > _ANSWER_BYTES_MAX:
            raise ConnectionError("the answer is too long")
    await reader.readuntil(b"\r\n")
    return body
