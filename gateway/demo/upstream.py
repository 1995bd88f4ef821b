"""The service of the demonstration: it charges cards, takes webhooks, and knows nothing of idempotency.

Every request that reaches it has an effect of its own, so its ledger shows what was really executed. The ledger is in
memory.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Final, Self

from aiohttp import web

_LEDGER_CHARGES_MAX: Final = 10_000
_SLOW_SECONDS: Final = 3.0

CARDS: Final = {
    "tok_visa": "is charged",
    "tok_declined": "is declined, and not charged",
    "tok_slow": f"is charged, {_SLOW_SECONDS:g} seconds later",
    "tok_lost_response": "is charged, and the connection breaks before the response",
}
"""The cards that it knows, and what happens to them."""


class Service:
    """`async with service`: serves these routes on host and `port`; port 0 is any free one.

    What is in progress at the end has `stop_seconds`. Raises `OSError` when it cannot listen.
    """

    def __init__(self, host: str, port: int, routes: Sequence[web.RouteDef], stop_seconds: float) -> None:
        app = web.Application()
        app.add_routes(routes)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=stop_seconds)
        self._address = host, port

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, *self._address).start()
        except BaseException:
            await self._runner.cleanup()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        port: int = self._runner.addresses[0][1]
        return port


class CardService(Service):
    """`async with CardService(host, port) as service`: charges cards on `service.port`; port 0 is any free one.

    `POST /v1/charges` with `{"amount": 1200, "currency": "eur", "card": "tok_visa"}` charges, `GET /v1/charges` shows
    the ledger. `POST /webhooks/stripe` acts on each webhook. `delay` is what a charge of `tok_slow` waits for, and
    `charged` is called after each charge. Raises `OSError` when it cannot listen.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        delay: Callable[[], Awaitable[object]] = lambda: asyncio.sleep(_SLOW_SECONDS),
        charged: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        routes = (
            web.post("/v1/charges", self._charge),
            web.get("/v1/charges", self._list),
            web.post("/webhooks/stripe", self._take_webhook),
        )
        super().__init__(host, port, routes, _SLOW_SECONDS + 1)
        self._ledger: deque[dict[str, Any]] = deque(maxlen=_LEDGER_CHARGES_MAX)
        self._numbers = itertools.count(1)
        self._delay = delay
        self._charged = charged
        self.webhooks = 0
        """How many webhooks it acted on."""

    @property
    def charges(self) -> int:
        """How many charges it made."""
        return len(self._ledger)

    async def _charge(self, request: web.Request) -> web.Response:
        try:
            charge = await request.json()
            amount, currency, card = charge["amount"], charge["currency"], charge["card"]
        except (ValueError, KeyError, TypeError):
            return _error(400, 'send {"amount": 1200, "currency": "eur", "card": "tok_visa"}')
        if (
            not isinstance(card, str)
            or card not in CARDS
            or type(amount) is not int
            or amount <= 0
            or not isinstance(currency, str)
        ):
            return _error(400, f"the amount is a whole number of cents, the card one of {', '.join(CARDS)}")
        if card == "tok_declined":
            return _error(402, "the card was declined")
        if card == "tok_slow":
            await self._delay()
        charge = {"id": f"ch_{next(self._numbers)}", "amount": amount, "currency": currency, "card": card}
        self._ledger.append(charge)
        if self._charged is not None:
            await self._charged()
        if card == "tok_lost_response" and request.transport is not None:
            request.transport.abort()
        return web.json_response(charge, status=201, headers={"Location": f"/v1/charges/{charge['id']}"})

    async def _take_webhook(self, request: web.Request) -> web.Response:
        await request.read()
        self.webhooks += 1
        return web.Response(status=204)

    async def _list(self, _: web.Request) -> web.Response:
        return web.json_response({"count": len(self._ledger), "charges": list(self._ledger)})


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": message}, status=status)
