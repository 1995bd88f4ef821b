"""The clients of a run: they call, give up, come again with the same key, in herds, and sometimes with another body."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

from gateway.core.message import IndexedHeaders, RequestHead
from tests.simulation.faults import Weather
from tests.simulation.gateway import SimulatedGateway
from tests.simulation.history import Call
from tests.simulation.wire import Body, Connection

ACCEPTING = frozenset(("mail", "ship", "buy"))
ORDERED = frozenset(("move", "post"))
"""Routes that deliver what they accept in the order of an account. They accept whatever the caller prefers."""
_ROUTES = (
    *("charge", "charge", "order", "order", "note", "pay", "pay", "book", "book", "ping"),
    *("mail", "mail", "ship", "ship", "buy", "buy"),
    *("move", "move", "move", "post", "post"),
)
_ROUTES_OF_LOAD = ("charge", "charge", "order", "order", "order", "note", "note", "pay", "book", "ping", "haul")


@dataclass(frozen=True, slots=True)
class Intent:
    """What somebody wants done: which operation, and the request that is meant."""

    route: str
    scope: str
    key: str
    body: bytes


class Clients:
    """All clients of a run."""

    def __init__(
        self, gateways: list[SimulatedGateway], weather: Weather, dice: random.Random, *, is_loaded: bool
    ) -> None:
        """`is_loaded`: they come all the time, want slow work too, and few hang up."""
        self._gateways, self._dice, self._is_loaded = gateways, dice, is_loaded
        self._loop, self._history, self._weather = weather.loop, weather.history, weather
        self.intents: list[Intent] = []

    def make_intents(self, count: int) -> None:
        """Some keys are used in two scopes, or on two routes: different operations. Some runs are about one route."""
        dice, routes = self._dice, _ROUTES_OF_LOAD if self._is_loaded else _ROUTES
        if not self._is_loaded and dice.random() < 0.4:
            routes = (dice.choice(routes),)
        for number in range(count):
            route = dice.choice(routes)
            scope = dice.choice(("t1", "t2", "t3"))
            key, body = f"k{number}", b'{"amount":%d,"currency":"eur"}' % (number * 100)
            if self.intents and dice.random() < 0.15:
                other = dice.choice(self.intents)
                key = other.key
                if (route, scope) == (other.route, other.scope):
                    scope = "t4"
                if dice.random() < 0.5:
                    body = other.body
            if route == "buy":
                # Many keys for few things that are wanted.
                body = b'{"amount":%d,"currency":"eur"}' % dice.choice((1, 1, 2))
            if route in ORDERED and b"account" not in body:
                body = body[:-1] + b',"account":"%b"}' % dice.choice((b"a1", b"a1", b"a2"))
                # Somebody wants several things at once, so that they wait for one another.
                more = range(dice.choice((0, 2, 4)))
                self.intents += [Intent(route, scope, f"k{number}.{each}", body) for each in more]
            if any((known.route, known.scope, known.key) == (route, scope, key) for known in self.intents):
                continue
            self.intents.append(Intent(route, scope, key, body))

    async def live(self, intent: Intent, until: float) -> None:
        """One intent's clients, until nobody wants anything any more."""
        dice, loop = self._dice, self._loop
        if intent.route in ORDERED:
            await asyncio.sleep(until * dice.choice((0.1, 0.3, 0.5, 0.7)) + dice.choice((0.0, 0.05, 0.5)))
        else:
            await asyncio.sleep(dice.uniform(0.0, until * 0.8))
        # The first try with its retries, then some who come later and ask again.
        for _ in range(dice.choice((1, 2, 2, 3))):
            for attempt in range(dice.choice((1, 3, 6))):
                if loop.time() >= until:
                    return
                herd = dice.choice((1, 1, 1, 1, 2, 3, 7))
                calls = await asyncio.gather(*[self._call_once(intent) for _ in range(herd)])
                if any(is_settled(call) for call in calls):
                    break
                await asyncio.sleep(dice.choice((0.0, 0.01, 0.3, 1.0, 2.0)) * (attempt + 1))
            await asyncio.sleep(dice.uniform(0.0, 12.0))

    async def _call_once(self, intent: Intent) -> Call:
        dice = self._dice
        other = dice.random()
        body = intent.body.replace(b"eur", b"usd") if other < 0.06 else intent.body
        query = "?again=1" if other >= 0.98 else ""
        patience = dice.choice((0.05, 1.0, 5.0, 5.0, 20.0)) if self._weather.climate.client_gone else 20.0
        if self._is_loaded:
            # Nobody hangs up sooner who waits for the slowest route.
            patience = 60.0 if dice.random() < 0.98 else dice.uniform(0.01, 5.0)
        if dice.random() < 0.3:
            await asyncio.sleep(dice.choice((0.001, 0.01, 0.1)))
        has_key = intent.route != "ping" or dice.random() < 0.8
        return await self.call(intent, body, patience, has_key=has_key, query=query)

    async def check(self, intent: Intent) -> None:
        """After all faults: whoever asks gets to know."""
        await self.call(intent, intent.body, 30.0, is_final_check=True)

    async def call(
        self,
        intent: Intent,
        body: bytes,
        patience_seconds: float,
        *,
        has_key: bool = True,
        query: str = "",
        is_final_check: bool = False,
    ) -> Call:
        """One request at some gateway."""
        gateway, key = self._dice.choice(self._gateways), intent.key if has_key else ""
        number, target = len(self._history.calls), f"/{intent.route}{query}"
        call = Call(number, gateway.name, intent.route, intent.scope, key, body, target, self._loop.time())
        call.is_final_check = is_final_check
        self._history.calls.append(call)
        prefers = self._preference(call)
        call.is_async = prefers is not None
        connection = Connection(self._weather, call, _head(call, self._dice, prefers))
        is_cut = self._weather.happens("client_body_cut")
        cut_at = self._dice.randrange(len(body) + 1)
        process = gateway.connect(connection, Body(self._weather, body, cut_at=cut_at, is_cut=is_cut))
        if process is None:
            await asyncio.sleep(self._weather.hop_seconds())
            connection.break_off()
        else:
            await asyncio.wait((connection.ended,), timeout=patience_seconds)
            if not connection.ended.done():
                connection.hang_up(process)
                call.gave_up = True
                if call.answer is not None:
                    call.answer.at = self._loop.time()
        call.ended = self._loop.time()
        return call

    def _preference(self, call: Call) -> bytes | None:
        """Most callers of a route that accepts requests do not wait; who checks in the end does."""
        if call.route not in ACCEPTING or call.is_final_check or self._dice.random() < 0.25:
            return None
        return self._dice.choice((b"respond-async", b"respond-async", b"respond-async, wait=2"))


def _head(call: Call, dice: random.Random, prefers: bytes | None) -> RequestHead:
    """The fields as this client happens to order and spell them; repeats of one stay in their order."""
    fields = [
        (b"Host", b"shop.example"),
        (b"Content-Type", b"application/json"),
        (b"Content-Length", b"%d" % len(call.body)),
        (b"X-Tenant", call.scope.encode()),
    ]
    if call.key:
        fields.append((b"Idempotency-Key", call.key.encode()))
    if prefers is not None:
        fields.append((b"Prefer", prefers))
    dice.shuffle(fields)
    spell = dice.choice((bytes, bytes.lower, bytes.upper))
    fields = [(spell(name), value) for name, value in fields]
    fields[dice.randrange(len(fields)) : 0] = [(b"X-Call", b"%d" % call.number)]
    fields.append((b"X-Call", b"again"))
    return RequestHead(b"POST", call.target.encode(), IndexedHeaders(tuple(fields)))


def is_settled(call: Call) -> bool:
    """Whether a client has its answer and stops repeating."""
    answer = call.answer
    return answer is not None and answer.is_whole and answer.status not in (409, 429, 500, 502, 503, 504)
