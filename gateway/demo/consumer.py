"""The consumer of the demonstration: it follows events that are posted to it, each id once."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Final

from aiohttp import web

from gateway.core.webhook import STANDARD_WEBHOOKS, Secret, Verified, verify
from gateway.demo.upstream import Service

_TOLERANCE_SECONDS: Final = 300.0


class Consumer(Service):
    """`async with Consumer(host, port, secret) as consumer`: takes events on `/events`.

    What is not signed by `secret` gets 401. Raises `OSError` when it cannot listen.
    """

    def __init__(self, host: str, port: int, secret: Secret) -> None:
        super().__init__(host, port, (web.post("/events", self._take),), stop_seconds=1.0)
        self.deliveries: list[str] = []
        """The id of each event that came, in order of arrival."""
        self.effects: set[str] = set()
        """What it acted on: it ignores ids that it knows."""
        self.acknowledges = asyncio.Event()
        """While this is not set, it leaves events without a response."""
        self.acknowledges.set()
        self._secret = secret
        self._news = asyncio.Condition()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.acknowledges.set()
        await super().__aexit__(kind, error, trace)

    async def wait_deliveries(self, number: int, seconds: float) -> None:
        """Return once so many have come, or after this time."""
        try:
            async with asyncio.timeout(seconds), self._news:
                await self._news.wait_for(lambda: len(self.deliveries) >= number)
        except TimeoutError:
            return

    async def _take(self, request: web.Request) -> web.Response:
        body = await request.read()
        headers = tuple(request.raw_headers)
        now = time.time()
        found = verify(
            (STANDARD_WEBHOOKS,), (self._secret,), headers, body, now=now, tolerance_seconds=_TOLERANCE_SECONDS
        )
        if not isinstance(found, Verified):
            return web.Response(status=401)
        event_id = request.headers["webhook-id"]
        async with self._news:
            self.deliveries.append(event_id)
            self.effects.add(event_id)
            self._news.notify_all()
        await self.acknowledges.wait()
        return web.Response(status=204)
