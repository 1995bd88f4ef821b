"""A client for the demonstration: one connection per request, no retries, and able to lose a response."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from gateway.core.message import bracketed

_TIMEOUT: Final = aiohttp.ClientTimeout(total=30.0)


@dataclass(frozen=True, slots=True)
class Response:
    """A response; the names of its headers are found in any case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def verdict(self) -> str:
        """The gateway's verdict; empty without one."""
        return self.headers.get("Idempotency-Status", "")

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
        url = f"http://{bracketed(self.host)}:{self.port}{target}"
        try:
            # A session of its own: nothing is sent again on a connection that was idle.
            async with (
                aiohttp.ClientSession(timeout=_TIMEOUT) as session,
                session.request(method, url, headers=headers, data=body or None) as response,
            ):
                return Response(response.status, response.headers, await response.read())
        except aiohttp.ClientError as error:
            raise ConnectionError(f"no complete response came: {error}") from error

    async def send_and_lose(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes,
        until: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        """Send a request, wait `until` it had an effect, and break the connection, whatever has come by then."""
        sending = asyncio.create_task(self.send(method, target, headers, body))
        try:
            await until()
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
