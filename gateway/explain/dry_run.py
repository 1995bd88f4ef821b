"""Sends a request along the path of requests, as far as that can go without a store.

Everything is the product's own and put together as in a gateway: the parser, the checks of the edge, the route table,
and rules 4 to 7. What would be asked of others is not: an authorising service, an issuer of tokens. The request and its
response go through a pair of sockets in this process. No file is opened but those that the configuration names.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import socket
import sys
import time
from base64 import b64encode
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from ssl import PEM_cert_to_DER_cert
from typing import Final, NoReturn

import orjson

from gateway import CommandWrong
from gateway.app.traffic import callers_of, reserved_headers
from gateway.config import Config
from gateway.config.route import ForwardAuth, TokenIssuer
from gateway.core.identity.caller import Hop, TokenFault, bearer_credential, hop_from, read_certificate, read_token
from gateway.core.identity.key import ForwardAuthScope, JwtScope, VerifiedSpec
from gateway.core.message import IndexedHeaders, RequestHead
from gateway.core.routing import Entry, Miss, RouteTable, Rule
from gateway.core.verdict import Verdict
from gateway.http.connection import EdgeSettings
from gateway.http.handler import ClientExchange, Served
from gateway.http.server import Edge
from gateway.observe.facts import Events, Fact, RequestAnswered
from gateway.protect.ambiguity import ambiguity
from gateway.protect.identification import Callers, Identifying, Verification, Verifier
from gateway.protect.inbox import Verifying
from gateway.protect.reply import Reply, refuse
from gateway.protect.request import Request, Spool, Untouched, UploadSlots
from gateway.protect.resource import is_below
from gateway.protect.route import Route, edge_route, route_of
from gateway.store.base import boot_seconds
from gateway.upstream import Upstream, UpstreamSettings

_SECONDS_MAX: Final = 30.0
_EMPTY: Final = Reply(204, b"", (), b"")


@dataclass(slots=True)
class Found:
    """What became of a request. `status` and `detail` are of the gateway's own response, if it gives one. `route`: the
    one that it is for, also where it is refused. `keyed`: it passed rules 1 to 7. `unasked`: what depends on the word
    of this other service. `is_observed`: the route only looks at it, and all else is what enforcing the route would do.
    `misses`: the routes up to the chosen one, each with what kept the request from it."""

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
    """What becomes of the request, as if it came over this hop. Its body stays open. Raises `CommandWrong`, and
    `StartError` where a file that the configuration names cannot be used."""
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
        raise CommandWrong(
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


# -- the request -------------------------------------------------------------------------------------------------------
#
# Curl's words, or a file, as the bytes that a client sends.

_BYTES_MAX: Final = 256 * 1024 * 1024
_URL: Final = re.compile(r"(?:(https?)://)?([^/?#]*)([^#]*)", re.IGNORECASE)
_HEAD: Final = re.compile(rb"(.*?)(?:\r?\n\r?\n|\Z)", re.DOTALL)
_FRAMING: Final = re.compile(rb"^(content-length|transfer-encoding)[ \t]*:", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Given:
    """A request as it is on the wire, which may be as wrong as that. `is_secure`: it comes over TLS."""

    wire: bytes = field(repr=False)
    is_secure: bool = False


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise CommandWrong(f"behind --: {message}; these words of curl are known: {self._known()}")

    def _known(self) -> str:
        return ", ".join(action.option_strings[-1] for action in self._actions if action.option_strings)


def _parser() -> _Parser:
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("url")
    parser.add_argument("-X", "--request")
    parser.add_argument("-H", "--header", action="append", default=[])
    parser.add_argument("-u", "--user")
    # Joined by & in the order in which they come.
    for name in ("--data", "--data-binary", "--data-raw", "--json"):
        spelt = ("-d", name) if name == "--data" else (name,)
        parser.add_argument(*spelt, dest="data", action=_Data, default=[])
    for flags in ("-i --include", "-s --silent", "-S --show-error", "-v --verbose", "-k --insecure"):
        parser.add_argument(*flags.split(), action="store_true")
    return parser


class _Data(argparse.Action):
    def __call__(
        self, parser: object, namespace: argparse.Namespace, values: object, option: str | None = None
    ) -> None:
        namespace.data = [*namespace.data, (option, values)]


def from_words(words: Sequence[str]) -> Given:
    """What curl sends, but that a path stays as it is written. The command may stand before its words. Raises
    `CommandWrong`."""
    given = _parser().parse_args(list(words[1:] if words[:1] == ["curl"] else words))
    scheme, authority, target = _URL.match(given.url).groups()  # type: ignore[union-attr]
    if not authority or "@" in authority:
        raise CommandWrong("expected a URL such as http://host/path; credentials are given by -H or -u")
    bodies = [_content(option, text) for option, text in given.data]
    is_json = any(option == "--json" for option, _ in given.data)
    headers = {"Host": authority, "Accept": "application/json" if is_json else "*/*"}
    if given.user is not None:
        headers["Authorization"] = f"Basic {b64encode(given.user.encode()).decode()}"
    body = (b"" if is_json else b"&").join(bodies)
    if bodies:
        headers["Content-Type"] = "application/json" if is_json else "application/x-www-form-urlencoded"
        headers["Content-Length"] = str(len(body))
    lines = []
    for text in given.header:
        name, separator, value = text.partition(":")
        if not separator and text.endswith(";"):
            name, separator = text[:-1], ":"
        if not name.strip() or not separator or "\n" in text or "\r" in text:
            raise CommandWrong("behind --: a header is written 'Name: value'")
        for own in [own for own in headers if own.lower() == name.strip().lower()]:
            del headers[own]
        if value or text.endswith(";"):
            lines.append(f"{name}: {value.strip()}")
    method = given.request or ("POST" if bodies else "GET")
    target = target if target.startswith("/") else f"/{target}"
    head = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), *lines, "", ""]
    try:
        wire = "\r\n".join(head).encode("latin-1") + body
    except UnicodeEncodeError:
        raise CommandWrong("behind --: a URL and headers are ASCII; escape other characters of the URL") from None
    return Given(wire, is_secure=(scheme or "").lower() == "https")


def from_file(path: Path) -> Given:
    """A request line, headers, an empty line, and the body to its last byte. Raises `CommandWrong`. The lines of the
    head may end as in any text file. What is not written is added: the version, and `Host` of a URL in the request
    line; the length of a body."""
    return from_text(_content_of(path), str(path))


def from_text(content: bytes, name: str) -> Given:
    """As `from_file`, for text; `name` is its name in mistakes."""
    found = _HEAD.match(content)
    head = b"" if found is None else found[1]
    body = b"" if found is None else content[found.end() :]
    lines = [line.removesuffix(b"\r") for line in head.split(b"\n")]
    first = lines[0].split(b" ")
    if len(first) < 2 or not all(first[:2]):
        raise CommandWrong(f"{name}: expected a request line such as POST /v1/payments HTTP/1.1")
    is_secure = False
    if len(first) == 2:
        scheme, authority, target = _URL.match(first[1].decode("latin-1")).groups()  # type: ignore[union-attr]
        is_secure = (scheme or "").lower() == "https"
        if scheme is not None:
            first[1] = (target if target.startswith("/") else f"/{target}").encode("latin-1")
            if not any(line.lower().startswith(b"host:") for line in lines):
                lines.insert(1, b"Host: " + authority.encode("latin-1"))
        lines[0] = b" ".join([*first, b"HTTP/1.1"])
    if body and not _FRAMING.search(b"\n".join(lines[1:])):
        lines.append(b"Content-Length: %d" % len(body))
    return Given(b"\r\n".join([*lines, b"", b""]) + body, is_secure)


def hop_of(request: Given, peer: str, certificate: Path | None) -> Hop:
    """Where the request comes from. Raises `CommandWrong`."""
    hop = hop_from(peer, is_secure=request.is_secure or certificate is not None)
    if certificate is None:
        return hop
    try:
        read = read_certificate(PEM_cert_to_DER_cert(_content_of(certificate).decode("latin-1")))
    except ValueError:
        read = None
    if read is None:
        raise CommandWrong(f"{certificate}: expected one certificate as PEM")
    return replace(hop, certificate=read)


def _content(option: str, text: str) -> bytes:
    """The content of a word that gives data; only `--data-raw` takes `@` to the letter."""
    if option == "--data-raw" or not text.startswith("@"):
        return text.encode()
    content = _content_of(Path(text[1:]))
    # As curl reads it.
    return content.translate(None, b"\r\n\0") if option in ("-d", "--data") else content


def _content_of(path: Path) -> bytes:
    try:
        if str(path) == "-":
            content = sys.stdin.buffer.read(_BYTES_MAX + 1)
        else:
            with path.open("rb") as stream:
                content = stream.read(_BYTES_MAX + 1)
    except OSError as error:
        raise CommandWrong(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > _BYTES_MAX:
        raise CommandWrong(f"{path} is longer than {_BYTES_MAX // 1024 // 1024} MiB")
    return content
