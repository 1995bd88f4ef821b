"""Transports for httpx. Responses are read whole, so that none ends in the middle."""

import asyncio
import time

import httpx

from idempotency_client.keys import Keys
from idempotency_client.tries import SAFE, Patience, Tries

_PATIENT = Patience()


def _was_sent(error: BaseException | None) -> bool | None:
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout):
        return False
    lost = httpx.TimeoutException | httpx.NetworkError | httpx.RemoteProtocolError | httpx.ProxyError
    return True if isinstance(error, lost) else None


def _whole(response: httpx.Response, body: bytes) -> httpx.Response:
    stream, extensions = httpx.ByteStream(body), response.extensions
    return httpx.Response(response.status_code, headers=response.headers, stream=stream, extensions=extensions)


class IdempotentTransport(httpx.BaseTransport):
    """For `httpx.Client(transport=...)`. `transport` is what sends."""

    def __init__(
        self, keys: Keys, transport: httpx.BaseTransport | None = None, *, patience: Patience = _PATIENT
    ) -> None:
        self._keys, self._patience, self._transport = keys, patience, transport or httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Raises GaveUp, and RuntimeError where the intent is missing or has a request on its way."""
        if request.method in SAFE:
            return self._transport.handle_request(request)
        tries = Tries(self._keys, self._patience, request.headers, _was_sent)
        request.read()
        with tries.alone():
            while True:
                with tries:
                    response = self._transport.handle_request(request)
                    body = b"".join(response.iter_raw())
                    if tries.is_answer(response.status_code, response.headers, body):
                        return _whole(response, body)
                time.sleep(tries.pause_seconds)

    def close(self) -> None:
        self._transport.close()


class AsyncIdempotentTransport(httpx.AsyncBaseTransport):
    """For `httpx.AsyncClient(transport=...)`."""

    def __init__(
        self, keys: Keys, transport: httpx.AsyncBaseTransport | None = None, *, patience: Patience = _PATIENT
    ) -> None:
        self._keys, self._patience, self._transport = keys, patience, transport or httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Raises GaveUp, and RuntimeError where the intent is missing or has a request on its way."""
        if request.method in SAFE:
            return await self._transport.handle_async_request(request)
        tries = Tries(self._keys, self._patience, request.headers, _was_sent)
        await request.aread()
        with tries.alone():
            while True:
                with tries:
                    response = await self._transport.handle_async_request(request)
                    body = b"".join([part async for part in response.aiter_raw()])
                    if tries.is_answer(response.status_code, response.headers, body):
                        return _whole(response, body)
                await asyncio.sleep(tries.pause_seconds)

    async def aclose(self) -> None:
        await self._transport.aclose()
