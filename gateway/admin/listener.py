"""A small HTTP listener for the admin API: terse, bounded, and silent about what it is made of."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web

_LOG = logging.getLogger("gateway")

TYPE_PREFIX: Final = "urn:idempotency-gateway:admin:"

_LINE_BYTES_MAX: Final = 8 * 1024
_FIELDS_MAX: Final = 64
_IDLE_SECONDS: Final = 75.0
_STOP_SECONDS: Final = 5.0

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class AdminListener:
    """Listens from `start` to `stop`; `handle` answers."""

    def __init__(self, handle: Handler) -> None:
        self._handle = handle
        self._runner: web.ServerRunner | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port, which the system chooses for 0. Raises OSError."""
        # An aiohttp server belongs to the loop that runs when it is made.
        server = _Server(
            self._handle,
            access_log=None,
            keepalive_timeout=_IDLE_SECONDS,
            max_line_size=_LINE_BYTES_MAX,
            max_field_size=_LINE_BYTES_MAX,
            max_headers=_FIELDS_MAX,
            lingering_time=0.0,
            # A small body could grow into a large one.
            auto_decompress=False,
        )
        self._runner = web.ServerRunner(server, shutdown_timeout=_STOP_SECONDS)
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


def said(status: int, document: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> web.Response:
    """An answer of JSON."""
    return _Response(
        status=status,
        body=json.dumps(document, ensure_ascii=True).encode() + b"\n",
        headers={
            "Content-Type": "application/json" if status < 400 else "application/problem+json",
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            **(headers or {}),
        },
    )


def problem(
    status: int, code: str, detail: str, headers: Mapping[str, str] | None = None, **members: Any
) -> web.Response:
    """A problem document (RFC 9457)."""
    title = HTTPStatus(status).phrase
    about = {"type": TYPE_PREFIX + code, "title": title, "status": status, "detail": detail, "code": code}
    return said(status, {**about, **members}, headers)


class _Response(web.Response):
    """One that does not name the program and its version, which aiohttp adds last."""

    async def _prepare_headers(self) -> None:
        await super()._prepare_headers()
        self.headers.popall("Server", None)


class _Protocol(web.RequestHandler):
    """Answers what is not HTTP as tersely as the rest, and without filling the log."""

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        level = logging.ERROR if status >= 500 else logging.DEBUG
        _LOG.log(level, "the admin port answered %d", status, exc_info=exc if status >= 500 else None)
        response = problem(status, "failed" if status >= 500 else "malformed", "This request cannot be answered.")
        response.force_close()
        return response


class _Server(web.Server):
    def __init__(self, handler: Handler, **options: Any) -> None:
        super().__init__(handler)
        self._options = options

    def __call__(self) -> web.RequestHandler:
        return _Protocol(self, loop=asyncio.get_running_loop(), **self._options)
