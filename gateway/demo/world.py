"""The configurations of the demonstration, ordinary files with their variables filled in; and those around its gateway:
a caller, the service that charges cards, a consumer of events.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import quote

import aiohttp
from aiohttp import web

from gateway.config import Config, ConfigError, Mistake, parse
from gateway.core.message import bracketed
from gateway.core.webhook import PRESETS, STANDARD_WEBHOOKS, Secret, Verified, sign, signing_key, verify

# -- the gateway -------------------------------------------------------------------------------------------------------

_COMMON: Final = """\
service: demo
listen: "${HOST}:${PORT}"
status: {listen: "127.0.0.1:${STATUS_PORT}"}
admin: {listen: "127.0.0.1:${ADMIN_PORT}", token: "${ADMIN_TOKEN}"}
state_dir: "${STATE_DIR}"
upstream: {url: "${UPSTREAM}"}
store: {durable: "sqlite://${STORE_PATH}"}
secrets:
  fingerprint_key: {id: demo, key: "${FINGERPRINT_KEY}"}
  encryption: [{id: demo, key: "${STORAGE_KEY}"}]
shutdown: {delay: 0s, drain_timeout: 10s}
log: {level: "${LOG_LEVEL}", format: text}
"""

OF_ANYTHING: Final = (
    _COMMON
    + """\
routes:
  - name: everything
    match: {methods: [POST, PATCH], path: "/{path:.*}"}
    key: {header: Idempotency-Key, required: false}
    scope: shared
    outcome: {preset: payments}
"""
)
"""In front of an unknown service: a POST or PATCH with a key is protected."""

CORNERS: Final = {
    "events": """\
events:
  sinks: [{name: consumer, kind: webhook, url: "${CONSUMER}", secrets: [{id: demo, key: "${CONSUMER_SECRET}"}]}]
egress: {allow: [127.0.0.1], ports: ["${CONSUMER_PORT}"], https_only: false}
""",
    "accept": """\
  - name: create_charge
    match: {methods: [POST], path: /v1/charges}
    key: {header: Idempotency-Key, required: true}
    scope: {api_key: Authorization}
    outcome: {preset: payments}
    accept: {identity: unverified}
""",
    "inbox": """\
  - name: payment_events
    match: {methods: [POST], path: /webhooks/stripe}
    inbox: {preset: stripe, secrets: [{id: demo, key: "${SENDER_SECRET}"}]}
    scope: shared
    outcome: {preset: success_only}
""",
}
"""The corners of the triangle, each of which can be left out: see `triangle`."""

OF_CARDS: Final = (
    _COMMON
    + CORNERS["events"]
    + """\
delivery: {schedule: [1s, 2s, 5s], breaker: {max_open: 10s}}
routes:
  - name: create_charge
    match: {methods: [POST], path: /v1/charges}
    key: {header: Idempotency-Key, required: true}
    scope: {api_key: Authorization}
    outcome: {preset: payments}
    errors: stripe
  - name: create_payment_intent
    match: {methods: [POST], path: /v1/payment_intents}
    key: {header: Idempotency-Key, required: true}
    scope: {api_key: Authorization}
    outcome: {preset: payments}
    errors: stripe
    recovery: {probe: {path: "/operations/{operation_id}", done: [{status: [200]}], never_happened: [{status: [404]}]}}
  - name: create_payout
    match: {methods: [POST], path: /v1/payouts}
    key: {header: Idempotency-Key, required: true}
    scope: {api_key: Authorization}
    outcome: {preset: payments}
    errors: stripe
    accept: {identity: unverified}
"""
    + CORNERS["inbox"]
)
"""In front of the service that charges cards: every charge needs a key, and each caller has keys of its own. Errors are
those that Stripe's libraries know, as the service's own are. A doubt about a charge is held for a person; about a
payment intent the service is asked; a payout may be accepted now and delivered later."""


def triangle(*, without: str = "") -> str:
    """The configuration of a gateway process with all corners but one."""
    corners = {name: text for name, text in CORNERS.items() if name != without}
    return _COMMON + corners.pop("events", "") + "routes:\n" + "".join(corners.values())


@dataclass(frozen=True, slots=True)
class Keys:
    """What the gateway shares with the sender of webhooks and the consumer of events. Random: nothing outlives the
    demonstration."""

    sender: Secret
    consumer: Secret
    consumer_text: str

    @classmethod
    def new(cls) -> Keys:
        text = "whsec_" + secrets.token_hex(32)
        return cls(Secret("demo", secrets.token_hex(32).encode()), Secret("demo", *signing_key(text)), text)

    def signed(self, body: bytes) -> dict[str, str]:
        """The headers of a webhook, as its sender signs it."""
        (scheme,) = PRESETS["stripe"].schemes
        signed = sign(scheme, [self.sender], body, now=int(time.time()))
        return {name.decode(): value.decode() for name, value in signed} | {"Content-Type": "application/json"}


_OPTIONS: Final = {
    "upstream.url": ("--upstream", "scheme, host and port alone, since paths are never rewritten"),
    "listen": ("--host", "a host name or address alone"),
}


def config(text: str, filled: Mapping[str, str]) -> Config:
    """The configuration from one of the texts. Raises `ConfigError`, which names command line options."""
    try:
        return parse(text, file="demo", environ=filled)
    except ConfigError as error:
        raise ConfigError(map(_by_option, error.mistakes)) from None


def variables(
    keys: Keys, *, host: str, port: int, upstream: str, directory: str, consumer_port: int, **others: object
) -> dict[str, str]:
    """What the texts leave open, with `others` by their name. The keys are random: nothing outlives the
    demonstration."""
    filled = {
        "HOST": bracketed(host),
        "PORT": port,
        "STATUS_PORT": 0,
        "ADMIN_PORT": 0,
        "ADMIN_TOKEN": secrets.token_hex(16),
        "STATE_DIR": directory,
        "UPSTREAM": upstream,
        "STORE_PATH": quote(f"{directory}/operations.db"),
        "FINGERPRINT_KEY": secrets.token_hex(32),
        "STORAGE_KEY": secrets.token_hex(32),
        "LOG_LEVEL": "info",
        "SENDER_SECRET": keys.sender.key.decode(),
        "CONSUMER": f"http://127.0.0.1:{consumer_port}/events",
        "CONSUMER_PORT": consumer_port,
        "CONSUMER_SECRET": keys.consumer_text,
    } | {name.upper(): value for name, value in others.items()}
    return {name: str(value) for name, value in filled.items()}


def _by_option(mistake: Mistake) -> Mistake:
    if mistake.path not in _OPTIONS:
        return mistake
    option, expected = _OPTIONS[mistake.path]
    hint = expected if mistake.message.startswith("expected") else mistake.hint
    return Mistake(option, None, None, "", mistake.message, hint)


# -- caller ------------------------------------------------------------------------------------------------------------
# A client for the demonstration: one connection per request, and no retries.

_FORM: Final = {"Content-Type": "application/x-www-form-urlencoded"}
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

    async def order(
        self,
        key: str,
        card: str = "source=tok_visa",
        *,
        what: str = "charges",
        amount: int = 1200,
        credential: str = "alice",
        is_later: bool = False,
    ) -> Response:
        """Have the service make a charge, or something else, under this key."""
        headers = {"Authorization": f"Bearer {credential}", "Idempotency-Key": key, **_FORM}
        headers |= {"Prefer": "respond-async"} if is_later else {}
        return await self.send("POST", f"/v1/{what}", headers, ordered(amount, card).encode())


def ordered(amount: int, card: str) -> str:
    return f"amount={amount}&currency=eur&{card}"


# -- service -----------------------------------------------------------------------------------------------------------
# The service of the demonstration: it charges cards, takes webhooks, and knows nothing of idempotency.
#
# Charges, payment intents and payouts have the form of Stripe's API, so that Stripe's own libraries can make them:
# parameters as a form (or as JSON), and errors that the libraries raise as they raise Stripe's.
#
# Every request that reaches it has an effect of its own, so its ledger shows what was really executed. The ledger is in
# memory, and knows by which operation of the gateway each entry was made.

_LEDGER_CHARGES_MAX: Final = 10_000
_SLOW_SECONDS: Final = 3.0

CARDS: Final = {
    "tok_visa": "is charged",
    "tok_declined": "is declined, and not charged",
    "tok_slow": f"is charged, {_SLOW_SECONDS:g} seconds later",
    "tok_lost_response": "is charged, and the connection breaks before the response",
    "tok_error": "is charged, and the service fails with 500 before the response",
}
"""The cards that it knows, and what happens to them. To a payment intent `pm_card_visa` is `tok_visa`."""

EXPIRED: Final = "sk_test_expired"
"""The API key that it refuses."""

# What it makes: how the ids begin, and which parameter has the card.
_OBJECTS: Final = {"charge": ("ch", "source"), "payment_intent": ("pi", "payment_method"), "payout": ("po", None)}


class Service:
    """`async with service`: serves these routes on host and `port`; port 0 is any free one. What is in progress at the
    end has `stop_seconds`. Raises `OSError` when it cannot listen."""

    def __init__(self, host: str, port: int, routes: Sequence[web.RouteDef], stop_seconds: float) -> None:
        self.port = port
        """The port that it listens on."""
        self._host, self._routes, self._stop_seconds = host, routes, stop_seconds
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen; after a stop on the same port."""
        app = web.Application()
        app.add_routes(self._routes)
        seconds = self._stop_seconds
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=seconds)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, self.port).start()
        except BaseException:
            await self.stop()
            raise
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Close the port and all connections, if that was not done before."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()


class CardService(Service):
    """`async with CardService(host, port) as service`: charges cards on `service.port`; port 0 is any free one.

    `POST /v1/charges` with `amount=1200&currency=eur&source=tok_visa` charges, `GET /v1/charges` shows the ledger, and
    `GET /v1/charges/ch_1` one charge; so do `/v1/payment_intents` with a `payment_method`, and `/v1/payouts` without a
    card. `GET /operations/ID` is what an operation made. `POST /webhooks/stripe` acts on each webhook. `delay` is what
    a charge of `tok_slow` waits for, and `charged` is called after each charge. Raises `OSError` when it cannot listen.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        delay: Callable[[], Awaitable[object]] = lambda: asyncio.sleep(_SLOW_SECONDS),
        charged: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        kinds = f"{{kind:{'|'.join(_OBJECTS)}}}s"
        routes = (
            web.post(f"/v1/{kinds}", self._make),
            web.get(f"/v1/{kinds}", self._list),
            web.get(f"/v1/{kinds}/{{id}}", self._show),
            web.get("/operations/{operation}", self._find),
            web.post("/webhooks/stripe", self._take_webhook),
        )
        super().__init__(host, port, routes, _SLOW_SECONDS + 1)
        # What it made, and by which operation of the gateway.
        self._ledger: deque[tuple[dict[str, Any], str]] = deque(maxlen=_LEDGER_CHARGES_MAX)
        self._numbers = {kind: itertools.count(1) for kind in _OBJECTS}
        self._delay = delay
        self._charged = charged
        self.webhooks = 0
        """How many webhooks it acted on."""

    @property
    def charges(self) -> int:
        """How many charges it made."""
        return len(self._made("charge"))

    async def _make(self, request: web.Request) -> web.Response:
        kind = request.match_info["kind"]
        prefix, parameter = _OBJECTS[kind]
        if request.headers.get("Authorization") == f"Bearer {EXPIRED}":
            return _error(401, "the API key has expired", code="api_key_expired")
        parameters = await _parameters(request)
        amount, currency = parameters.get("amount"), parameters.get("currency")
        if type(amount) is not int or amount <= 0 or not isinstance(currency, str):
            as_well = "" if parameter is None else f" and {parameter}=tok_visa"
            return _error(400, f"send amount=1200 (a whole number of cents), currency=eur{as_well}")
        card = "tok_visa" if parameter is None else parameters.get(parameter)
        fate = card.replace("pm_card_", "tok_") if isinstance(card, str) else ""
        if fate not in CARDS:
            return _error(400, f"the {parameter} is one of {', '.join(CARDS)}", param=str(parameter))
        if fate == "tok_declined":
            return _error(402, "the card was declined", "card_error", code="card_declined")
        if fate == "tok_slow":
            await self._delay()
        made = {"id": f"{prefix}_{next(self._numbers[kind])}", "object": kind, "amount": amount, "currency": currency}
        made |= ({} if parameter is None else {parameter: card}) | {"status": "succeeded"}
        self._ledger.append((made, request.headers.get("Idempotency-Operation", "")))
        if self._charged is not None:
            await self._charged()
        if fate == "tok_error":
            return _error(500, "something went wrong, after the charge", "api_error")
        if fate == "tok_lost_response" and request.transport is not None:
            request.transport.abort()
        return web.json_response(made, status=201, headers={"Location": f"/v1/{kind}s/{made['id']}"})

    async def _take_webhook(self, request: web.Request) -> web.Response:
        await request.read()
        self.webhooks += 1
        return web.Response(status=204)

    async def _list(self, request: web.Request) -> web.Response:
        made = self._made(request.match_info["kind"])
        return web.json_response({"object": "list", "has_more": False, "data": made})

    async def _show(self, request: web.Request) -> web.Response:
        made = self._made(request.match_info["kind"])
        return _found(next((each for each in made if each["id"] == request.match_info["id"]), None))

    async def _find(self, request: web.Request) -> web.Response:
        asked = request.match_info["operation"]
        return _found(next((made for made, operation in self._ledger if operation == asked), None))

    def _made(self, kind: str) -> list[dict[str, Any]]:
        return [made for made, _ in self._ledger if made["object"] == kind]


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


def _found(made: dict[str, Any] | None) -> web.Response:
    missing = _error(404, "there is no such object", code="resource_missing")
    return missing if made is None else web.json_response(made)


def _error(status: int, message: str, kind: str = "invalid_request_error", **further: str) -> web.Response:
    return web.json_response({"error": {"type": kind, "message": message, **further}}, status=status)


# -- consumer ----------------------------------------------------------------------------------------------------------
# The consumer of the demonstration: it follows events that are posted to it, each id once.

_TOLERANCE_SECONDS: Final = 300.0


class Consumer(Service):
    """`async with Consumer(host, port, secret) as consumer`: takes events on `/events`. What is not signed by `secret`
    gets 401. Raises `OSError` when it cannot listen."""

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

    async def __aexit__(self, *raised: object) -> None:
        self.acknowledges.set()
        await super().__aexit__(*raised)

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
