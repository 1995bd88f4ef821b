"""The service of the demonstration: it charges cards, takes webhooks, and knows nothing of idempotency.

Charges have the form of Stripe's API, so that Stripe's own libraries can make them: parameters as a form (or as JSON),
and errors that the libraries raise as they raise Stripe's.

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

    `POST /v1/charges` with `amount=1200&currency=eur&source=tok_visa` charges, `GET /v1/charges` shows the ledger, and
    `GET /v1/charges/ch_1` one charge. `POST /webhooks/stripe` acts on each webhook. `delay` is what a charge of
    `tok_slow` waits for, and `charged` is called after each charge. Raises `OSError` when it cannot listen.
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
            web.get("/v1/charges/{id}", self._show),
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
        parameters = await _parameters(request)
        amount, currency, source = (parameters.get(name) for name in ("amount", "currency", "source"))
        if type(amount) is not int or amount <= 0 or not isinstance(currency, str):
            return _error(400, "send amount=1200 (a whole number of cents), currency=eur and source=tok_visa")
        if not isinstance(source, str) or source not in CARDS:
            return _error(400, f"the source is one of {', '.join(CARDS)}")
        if source == "tok_declined":
            return _error(402, "the card was declined", "card_error", "card_declined")
        if source == "tok_slow":
            await self._delay()
        charge = {
            "id": f"ch_{next(self._numbers)}",
            "object": "charge",
            "amount": amount,
            "currency": currency,
            "source": source,
        }
        self._ledger.append(charge)
        if self._charged is not None:
            await self._charged()
        if source == "tok_lost_response" and request.transport is not None:
            request.transport.abort()
        return web.json_response(charge, status=201, headers={"Location": f"/v1/charges/{charge['id']}"})

    async def _take_webhook(self, request: web.Request) -> web.Response:
        await request.read()
        self.webhooks += 1
        return web.Response(status=204)

    async def _list(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "has_more": False, "data": list(self._ledger)})

    async def _show(self, request: web.Request) -> web.Response:
        found = next((charge for charge in self._ledger if charge["id"] == request.match_info["id"]), None)
        return web.json_response(found) if found is not None else _error(404, "there is no such charge")


async def _parameters(request: web.Request) -> dict[str, Any]:
    """What the request asks for, with `amount` as a number; empty where it cannot be read."""
    try:
        if request.content_type == "application/json":
            read = await request.json()
            return read if isinstance(read, dict) else {}
        form: dict[str, Any] = dict(await request.post())
        return {**form, "amount": int(form["amount"])}
    except (KeyError, TypeError, ValueError):
        return {}


def _error(status: int, message: str, kind: str = "invalid_request_error", code: str | None = None) -> web.Response:
    error = {"type": kind, "message": message} | ({} if code is None else {"code": code})
    return web.json_response({"error": error}, status=status)
