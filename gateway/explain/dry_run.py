"""Sends a request along the path of requests, as far as that can go without a store.

Everything is the product's own and put together as in a gateway: the parser, the checks of the edge, the route table,
and rules 4 to 7. What would be asked of others is not: an authorising service, an issuer of tokens. The request and its
response go through a pair of sockets in this process. No file is opened but those that the configuration names.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import orjson

from gateway.app.callers import callers_of, reserved_headers
from gateway.config import Config
from gateway.config.scope import ForwardAuth, TokenIssuer
from gateway.core.identity.peer import Hop
from gateway.core.identity.scope import ForwardAuthScope, JwtScope, VerifiedSpec
from gateway.core.identity.token import TokenFault, bearer_credential, read_token
from gateway.core.message import IndexedHeaders, RequestHead
from gateway.core.routing import Entry, Miss, RouteTable, Rule
from gateway.core.verdict import Verdict
from gateway.http.connection import EdgeSettings
from gateway.http.handler import ClientExchange, Served
from gateway.http.server import Edge
from gateway.observe.facts import Events, Fact, RequestAnswered
from gateway.protect.ambiguity import ambiguity
from gateway.protect.body import Spool, UploadSlots
from gateway.protect.identification import Callers, Identifying, Verification, Verifier
from gateway.protect.inbox import Verifying
from gateway.protect.reply import Reply, refuse
from gateway.protect.request import Request, Untouched
from gateway.protect.resource import is_below
from gateway.protect.route import Route, edge_route, route_of
from gateway.store.base import boot_seconds
from gateway.upstream import Upstream, UpstreamSettings

_SECONDS_MAX: Final = 30.0
_EMPTY: Final = Reply(204, b"", (), b"")


class Incomplete(Exception):
    """The bytes end before the request does."""


@dataclass(slots=True)
class Found:
    """What became of a request. `status` and `detail` are of the gateway's own response, if it gives one.

    `route`: the one that it is for, also where it is refused. `keyed`: it passed rules 1 to 7. `unasked`: what depends
    on the word of this other service. `is_observed`: the route only looks at it, and all else is what enforcing the
    route would do. `misses`: the routes up to the chosen one, each with what kept the request from it.
    """

    head: RequestHead | None = None
    request: Request | None = None
    route: Route | None = None
    verdict: Verdict | None = None
    status: int | None = None
    detail: str = ""
    keyed: Request | None = None
    unasked: str | None = None
    is_forwarded: bool = False
    is_own: bool = False
    is_observed: bool = False
    misses: tuple[tuple[Route, Miss | None], ...] = ()


class _NotAsked(Exception):
    """Another service decides a part of it."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class _Offline(Verifier):
    """Verifies as far as that needs nobody else."""

    def __init__(self, part: VerifiedSpec | ForwardAuth, verifier: Verifier) -> None:
        self._part = part
        self._verifier = verifier

    async def close(self) -> None:
        await self._verifier.close()

    def known(self, request: Request) -> Verification | None:
        return self._verifier.known(request)

    async def ask(self, request: Request) -> Verification:
        match self._part:
            case ForwardAuth(url=url):
                raise _NotAsked(f"{url}, whether the request may be made")
            case ForwardAuthScope(service=service):
                raise _NotAsked(f"{service.url}, who the caller is")
            case JwtScope(issuers):
                token = read_token(bearer_credential(request.head.headers) or b"")
                name = None if isinstance(token, TokenFault) else token.issuer
                issuer = next((each for each in issuers if each.issuer == name), None)
                if isinstance(issuer, TokenIssuer) and issuer.is_fetched:
                    raise _NotAsked(f"{_place(issuer)}, for the keys of the token's issuer")
        return await self._verifier.ask(request)


def _place(issuer: TokenIssuer) -> str:
    keys = issuer.keys
    return f"{issuer.issuer} (discovery)" if keys == "discover" else str(keys).partition("?")[0]


class _Own:
    """The status resource, as far as a request for it has to be recognised. See `handler.Resource`."""

    def __init__(self, path: str, found: Found) -> None:
        self._path = path.encode()
        self._found = found

    def owns(self, target: bytes) -> bool:
        return is_below(self._path, target)

    async def respond(self, request: Request) -> Reply:
        self._found.is_own, self._found.head = True, request.head
        return _EMPTY


class _Table(RouteTable[Route]):
    """Notes what it was asked for."""

    def __init__(
        self, rules: Iterable[tuple[Rule, Route]], default_host: bytes | None, unprotected: Iterable[Rule], found: Found
    ) -> None:
        super().__init__(rules, default_host, unprotected)
        self._found = found
        # `find` is asked about every request.
        self.certain.clear()

    def find_certain(self, method: bytes, target: bytes, host: bytes | None) -> tuple[bool, Entry[Route] | None]:
        return False, None

    def find(self, method: bytes, target: bytes, host: bytes | None) -> Entry[Route] | None:
        chosen = super().find(method, target, host)
        misses: list[tuple[Route, Miss | None]] = []
        for entry, miss in self.misses(method, target, host):
            if entry is chosen:
                misses.append((entry.value, None))
                break
            if entry.rule.path is entry.value.settings.match.path:
                misses.append((entry.value, miss))
        self._found.misses = tuple(misses)
        self._found.head = RequestHead(method, target, IndexedHeaders())
        return chosen


async def dry_run(config: Config, wire: bytes, hop: Hop) -> Found:
    """What becomes of the request, as if it came over this hop. Its body stays open.

    Raises `Incomplete`, and `StartError` where a file that the configuration names cannot be used.
    """
    found = Found()
    events = Events(lambda fact: _note_refusal(found, config_routes, fact))
    made = callers_of(config, events, boot_seconds, time.time)
    callers = Callers({part: _Offline(part, verifier) for part, verifier in made.verifiers.items()}, made.made)
    identifying = Identifying(
        config.service,
        Spool(config.state_dir / "spool"),
        UploadSlots(1),
        Verifying(events, boot_seconds),
        callers,
        identity_secret=config.secrets.identity_secret,
    )
    # Never used: nothing is forwarded.
    upstream = Upstream(UpstreamSettings(host="127.0.0.1", port=9))
    compiled = [route_of(config, route, upstream) for route in config.routes]
    # No body is written to a file.
    config_routes = [replace(route, spool_over_bytes=route.settings.body.max_bytes) for route in compiled]
    enforced = {route.name: route for route in config_routes}
    edge_routes = [edge_route(config, route, lambda _: upstream) for route in config_routes]

    async def protect(request: Request, route: Route) -> Reply | Untouched:
        request = replace(request, hop=hop)
        found.route, found.request, found.head = route, request, request.head
        try:
            outcome = await identifying.identify(request, route)
        except _NotAsked as not_asked:
            found.unasked = not_asked.what
            return _EMPTY
        if outcome is None:
            found.keyed = request
            return _EMPTY
        if isinstance(outcome, Reply):
            found.verdict = outcome.verdict
        return outcome

    async def forward(
        request: Request, _: ClientExchange, route: Route | None, verdict: Verdict | None
    ) -> Reply | None:
        if route is not None and route.is_observed:
            return await look_at(request, enforced[route.name])
        found.is_forwarded, found.verdict, found.head = True, verdict, request.head
        return _EMPTY

    async def look_at(request: Request, route: Route) -> Reply:
        found.is_observed = True
        fault = ambiguity(request.head, route.once, route.compared)
        if fault is not None:
            found.route, found.head, found.verdict = route, request.head, Verdict.REQUEST_INVALID
            return refuse(Verdict.REQUEST_INVALID, shape=route.shape, status=400, detail=fault)
        outcome = await protect(request, route)
        if isinstance(outcome, Reply):
            return outcome
        found.is_forwarded, found.verdict = True, outcome.verdict
        return _EMPTY

    accepts = any(route.accept is not None and route.inbox is None for route in config_routes)
    served = Served(
        routes=_Table(
            [(rule, route) for route in edge_routes for rule in route.settings.rules],
            config.upstream.default_host,
            [each.rule for each in config.unprotected],
            found,
        ),
        protect=protect,
        forward=forward,
        resource=_Own(config.operations.path, found) if accepts else None,
        reserved=reserved_headers(config),
    )
    edge = Edge(served, events, EdgeSettings(header_bytes_max=config.limits.max_header_bytes))
    try:
        response = await _exchange(edge, wire)
    finally:
        await edge.close()
        await callers.close()
        await upstream.close()
    if not response:
        raise Incomplete(
            "the request is not complete: its body is shorter than its headers say, or its head has no end"
        )
    is_ours = not (found.keyed or found.unasked or found.is_forwarded or found.is_own)
    if is_ours:
        found.status, found.detail = _read(response)
    return found


def _note_refusal(found: Found, routes: list[Route], fact: Fact) -> None:
    """What the edge refuses never comes to `protect`."""
    if isinstance(fact, RequestAnswered):
        found.verdict = fact.verdict
        found.route = next(route for route in routes if route.name == fact.route)


async def _exchange(edge: Edge, wire: bytes) -> bytes:
    """The response to these bytes; empty where there is none."""
    ours, theirs = socket.socketpair()
    for each in (ours, theirs):
        each.setblocking(False)
    await edge.adopt(theirs)
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    try:
        async with asyncio.timeout(_SECONDS_MAX):
            writer.write(wire)
            writer.write_eof()
            return await reader.read()
    except (OSError, TimeoutError):
        return b""
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


def _read(response: bytes) -> tuple[int, str]:
    head, _, body = response.partition(b"\r\n\r\n")
    status = int(head.split(b" ")[1])
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return status, ""
    return status, str(document.get("detail") or document["error"]["message"])
