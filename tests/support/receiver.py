"""A consumer of webhooks: a real HTTP server that keeps what it got, and answers as a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import orjson
from aiohttp import web

Answer = Callable[[web.Request], web.StreamResponse | None]


@dataclass(frozen=True, slots=True)
class Received:
    """One request, as it came."""

    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = orjson.loads(self.body)
        return document


class Receiver:
    """`async with Receiver() as receiver`. `answers` are given one after the other, then 204; None never answers."""

    def __init__(self, *answers: Answer) -> None:
        self.received: list[Received] = []
        self.answers = list(answers)
        self._news = asyncio.Condition()
        self._hanging = asyncio.Event()
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._take)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        self.port = 0

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._hanging.set()
        await self._runner.cleanup()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hooks"

    async def wait_received(self, number: int, seconds: float = 30.0) -> list[Received]:
        """Return once so many requests have come."""
        async with asyncio.timeout(seconds), self._news:
            await self._news.wait_for(lambda: len(self.received) >= number)
        return self.received

    async def _take(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        async with self._news:
            self.received.append(Received({name.lower(): value for name, value in request.headers.items()}, body))
            self._news.notify_all()
        answer = self.answers.pop(0) if self.answers else lambda _: web.Response(status=204)
        response = answer(request)
        if response is None:
            await self._hanging.wait()
            return web.Response(status=503)
        return response


def status(code: int, text: str = "", **headers: str) -> Answer:
    """Answer with this status."""
    return lambda _: web.Response(status=code, text=text, headers={k.replace("_", "-"): v for k, v in headers.items()})


def hang(_: web.Request) -> None:
    """Never answer."""
