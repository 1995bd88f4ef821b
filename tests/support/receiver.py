"""A consumer of webhooks: a real HTTP server that keeps what it got, and answers as a test says."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import orjson
from aiohttp import web

from tests.support.eventually import eventually

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


class Answering:
    """A real HTTP server on a port that it keeps. Where `None` is answered, no response comes before it leaves."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.port = 0
        self._tls = tls
        self._leaving = asyncio.Event()
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leave()

    async def open(self) -> None:
        """Listen, on the same port as before."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._respond)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=self._tls).start()
        self.port = self._runner.addresses[0][1]

    async def leave(self) -> None:
        runner, self._runner = self._runner, None
        self._leaving.set()
        if runner is not None:
            await runner.cleanup()

    async def answer_to(self, request: web.Request) -> web.StreamResponse | None:
        raise NotImplementedError

    async def _respond(self, request: web.Request) -> web.StreamResponse:
        response = await self.answer_to(request)
        if response is None:
            await self._leaving.wait()
            return web.Response(status=503)
        return response


class Receiver(Answering):
    """`async with Receiver() as receiver`. `answers` are given one after the other, then 204."""

    def __init__(self, *answers: Answer) -> None:
        super().__init__()
        self.received: list[Received] = []
        self.answers = list(answers)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hooks"

    async def wait_received(self, number: int, seconds: float = 30.0) -> list[Received]:
        await eventually(lambda: len(self.received) >= number, seconds, f"{number} are received")
        return self.received

    async def answer_to(self, request: web.Request) -> web.StreamResponse | None:
        body, headers = await request.read(), {name.lower(): value for name, value in request.headers.items()}
        self.received.append(Received(headers, body))
        return self.answers.pop(0)(request) if self.answers else web.Response(status=204)


def status(code: int, text: str = "", **headers: str) -> Answer:
    return lambda _: web.Response(status=code, text=text, headers={k.replace("_", "-"): v for k, v in headers.items()})


def hang(_: web.Request) -> None:
    """Never answer."""
