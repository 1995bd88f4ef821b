"""What the gateway would do with a request, and why: the command of that name, and the page of the console.

It says what the dry run found, its steps with the lines of the configuration, and what becomes of the request in the
end; it decides nothing. Names and digests are shown, values of the request only where that is
wanted, secrets never. The console of a gateway that serves explains by the configuration in force. The lines are then
those of the text that it shows of it, because the file may have been changed since.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import socket
import sys
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from ssl import PEM_cert_to_DER_cert
from typing import Any, Final, NoReturn, assert_never
from uuid import UUID

import orjson

from gateway import CommandWrong
from gateway.admin.commands import Job
from gateway.admin.operations import Operations
from gateway.admin.resolution import Malformed
from gateway.app.life import StartError
from gateway.app.parts import callers_of, reserved_headers
from gateway.config import Config, Document, Placeholders
from gateway.config.document import path_text, read_document
from gateway.config.effective import effective
from gateway.config.leaf import duration_text
from gateway.config.route import ForwardAuth, TokenIssuer
from gateway.core.identity import key as scopes
from gateway.core.identity.body import format_pointer
from gateway.core.identity.caller import Hop, TokenFault, bearer_credential, hop_from, read_certificate, read_token
from gateway.core.identity.fingerprint import BodyForm
from gateway.core.identity.key import ForwardAuthScope, HeaderKey, JwtScope, Key, KeyFault, VerifiedSpec, home_of
from gateway.core.message import IndexedHeaders, RequestHead, ResponseHead, header_values
from gateway.core.operation import Event, Snapshot
from gateway.core.outcome import conclude_answered, stored_response
from gateway.core.recovery import Probe
from gateway.core.routing import Entry, Miss, RouteTable, Rule
from gateway.core.verdict import Claimable, Doubt, Refuse, Verdict
from gateway.http.connection import EdgeSettings
from gateway.http.handler import ClientExchange, Served
from gateway.http.server import Edge
from gateway.observe.facts import Events, Fact, RequestAnswered
from gateway.protect.accepting import refuse_too_long
from gateway.protect.ambiguity import ambiguity
from gateway.protect.compose import reply_by_judgement
from gateway.protect.identification import Callers, Identifying, Verification, Verifier
from gateway.protect.inbox import Verifying, reply_to_repeat
from gateway.protect.journaling import UNENDED, anticipated
from gateway.protect.reply import Reply, refuse
from gateway.protect.request import Request, Spool, Untouched, UploadSlots, scope_name
from gateway.protect.resource import is_below
from gateway.protect.route import Route, edge_route, route_of
from gateway.store.base import NotApplied, boot_seconds
from gateway.upstream import Upstream, UpstreamSettings

# -- the dry run -------------------------------------------------------------------------------------------------------
#
# Sends a request along the path of requests, as far as that can go without a store.
#
# Everything is the product's own and put together as in a gateway: the parser, the checks of the edge, the route table,
# and rules 4 to 7. What would be asked of others is not: an authorising service, an issuer of tokens. The request and
# its response go through a pair of sockets in this process. No file is opened but those that the configuration names.

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


_V = Verdict
_OF_KEY: Final = frozenset(
    (_V.KEY_MISSING, _V.KEY_INVALID, _V.SIGNATURE_MISSING, _V.SIGNATURE_INVALID, _V.SIGNATURE_STALE)
) | {_V.EVENT_UNSUPPORTED}
_OF_SCOPE: Final = frozenset((_V.SCOPE_MISSING, _V.SCOPE_UNSUITABLE, _V.IDENTITY_UNAVAILABLE))
_SHOWN_BYTES_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting that decided, and the line where it is written; None for a default."""

    path: str
    line: int | None


@dataclass(frozen=True, slots=True)
class Step:
    """One step: what was decided, what was looked at, and by which settings."""

    name: str
    decision: str
    facts: tuple[str, ...] = ()
    settings: tuple[Setting, ...] = ()


class _Way:
    """The way of a request, as `steps`: up to the one that decided. With `show`, they have values of the request."""

    def __init__(self, found: Found, config: Config, document: Document, *, show: bool) -> None:
        self._found = found
        self._config = config
        self._document = document
        self._show = show
        self._indexes = {route.name: index for index, route in enumerate(config.routes)}
        self.steps: list[Step] = []

    def of(self, *keys: str | int) -> Setting:
        return Setting(path_text(keys), self._document.line(keys))

    def own(self, *keys: str | int, route: Route | None = None) -> Setting:
        """A setting of the route, or of another one."""
        if (route := route or self._found.route) is None:
            raise AssertionError("no route matches")
        return self.of("routes", self._indexes[route.name], *keys)

    def written(self, *keys: tuple[str, ...]) -> list[Setting]:
        """Those of these settings of the route that are written, or the first one."""
        settings = [self.own(*each) for each in keys]
        return [each for each in settings if each.line is not None] or settings[:1]

    def add(self, name: str, decision: str, facts: Iterable[str] = (), settings: Iterable[Setting] = ()) -> None:
        self.steps.append(Step(name, decision, tuple(facts), tuple(settings)))

    def go(self) -> None:
        found, route = self._found, self._found.route
        is_invalid = found.verdict is _V.REQUEST_INVALID
        is_refused = found.head is None or (route is None and found.status is not None) or is_invalid
        self.add("http", f"refused: {found.detail}" if is_refused else "there is one way to read it")
        if found.head is None:
            return
        self._route(found.head)
        if route is None or is_invalid:
            return
        if route.authorize is not None:
            self.add("authorize", f"would ask {found.unasked or route.authorize.url}", (), [self.own("authorize")])
            if found.unasked is not None:
                return
        self._key(route)
        if found.verdict in _OF_KEY or found.verdict is _V.UNKEYED:
            return
        self._scope(route)
        if found.verdict in _OF_SCOPE or found.unasked is not None:
            return
        if found.keyed is None:
            decision = f"refused: {found.detail}" if found.verdict is _V.BODY_TOO_LARGE else "received"
            self.add("body", decision, (), [self.own("body", "max_bytes")])
        else:
            self._body(found.keyed, route)
            self._fingerprint(found.keyed)
            self._identity(found.keyed.identity.operation_id, route)
        if found.verdict is _V.ORDER_MISSING:
            self.add("order", f"refused: {found.detail}", (), [self.own("order")])

    def _route(self, head: RequestHead) -> None:
        found = self._found
        if found.is_own:
            return self.add("route", "for the gateway's own resource", (), [self.of("operations", "path")])
        missed = [self._missed(head, route, miss) for route, miss in found.misses if miss is not None]
        if found.route is None:
            return self.add("route", "none matches", missed)
        settings = self.written(("match", "path"), ("match", "methods"), ("match", "host"))
        return self.add("route", found.route.name, missed, settings)

    def _missed(self, head: RequestHead, route: Route, miss: Miss) -> str:
        match = route.settings.match
        line = self.own("match", route=route).line
        match miss:
            case Miss.METHOD:
                why = f"the method {head.method.decode('latin-1')} is not {' or '.join(match.methods)}"
            case Miss.HOST:
                why = f"the host is not {match.host}"
            case Miss.PATH:
                why = f"the path is not {match.path.text}"
            case _:
                assert_never(miss)
        return f"not {route.name} (line {line}): {why}"

    def _key(self, route: Route) -> None:
        found, keyed = self._found, self._found.keyed
        digest = [] if keyed is None else [f"digest: {keyed.identity.key_digest.hex()[:12]}"]
        is_refused, refused = found.verdict in _OF_KEY, f"refused: {found.detail}"
        if route.inbox is not None:
            signed = "signed by its sender, who names the event" if digest else "not a message that has to be signed"
            facts = [] if is_refused else digest
            return self.add("key", refused if is_refused else signed, facts, [self.own("inbox", "preset")])
        settings, facts = self.written(("key",)), []
        if isinstance(route.key, HeaderKey):
            settings.append(self.own("key", "format"))
            facts.append(f"format: {route.key.format}")
        if found.verdict in (_V.KEY_MISSING, _V.UNKEYED):
            settings.append(self.own("key", "required"))
        key: Key | KeyFault | None = None
        if found.request is not None and (keyed is not None or not route.key.needs_body):
            content = keyed.taken.content if keyed is not None else None
            by_name = found.request.head.headers.by_name
            key = route.key.find_key(by_name, content if isinstance(content, bytes) else None)
        if is_refused:
            decision = refused
        elif found.verdict is _V.UNKEYED:
            decision = f"{route.key.places} is missing: the request is not protected"
        elif isinstance(key, KeyFault):
            decision = f"malformed: {key.detail}"
        elif key is None:
            decision = f"would be taken from {route.key.places}"
        else:
            decision = f"taken from {route.key.places}"
            facts += digest + ([f"key: {key.text}"] if self._show else [])
        return self.add("key", decision, facts, settings)

    def _scope(self, route: Route) -> None:
        found, request, scope = self._found, self._found.request, route.scope
        peer = "" if request is None or request.hop.address is None else request.hop.address.decode()
        facts = [_part(part, peer) for part in (scope.parts if isinstance(scope, scopes.ComposedScope) else (scope,))]
        is_shared = isinstance(scope, scopes.SharedScope)
        decision = "all callers share their keys" if is_shared else "the caller is identified"
        if found.verdict in _OF_SCOPE:
            decision = f"refused: {found.detail}"
        elif found.unasked is not None:
            decision = f"would ask {found.unasked}"
        else:
            if found.keyed is not None:
                facts.append(f"digest: {scope_name(found.keyed.identity.scope_digest)}")
            if self._show and request is not None:
                values = ((name, header_values(request.head.headers, name)) for name in sorted(scope.headers))
                facts += [f"{name.decode()}: {value.decode('latin-1')}" for name, each in values for value in each]
        self.add("scope", decision, facts, [self.own("scope")])

    def _body(self, keyed: Request, route: Route) -> None:
        spec, content = route.fingerprinter.spec, keyed.taken.content
        sent = header_values(keyed.head.headers, b"content-type")
        types = [value.decode("latin-1").partition(";")[0] for value in sent]
        form: str = BodyForm.RAW
        if keyed.digests is not None:
            form = keyed.digests.values[-1].partition(b" ")[0].decode()
        how = "not compared" if form == BodyForm.NONE else f"compared as {form}"
        if form == BodyForm.RAW:
            how += ", byte for byte"
        facts = [f"media type: {', '.join(types) or 'none'}", f"limit: {route.settings.body.max_bytes} bytes"]
        if form == BodyForm.JSON:
            facts += [f"ignored: {format_pointer(each)}" for each in spec.ignore]
            facts += [f"compared alone: {format_pointer(each)}" for each in spec.only]
            facts += [f"default: {format_pointer(each)}" for each, _ in spec.defaults]
        if self._show and isinstance(content, bytes) and content:
            facts.append(f"content: {content[:_SHOWN_BYTES_MAX].decode('utf-8', 'backslashreplace')}")
        compared = self.written(*[("fingerprint", name) for name in ("body", "ignore", "only", "defaults")])
        self.add("body", f"{keyed.taken.length} bytes, {how}", facts, [self.own("body", "max_bytes"), *compared])

    def _fingerprint(self, keyed: Request) -> None:
        current, *others = keyed.fingerprints
        facts = [f"recipe: {current.recipe.hex()[:12]}", f"key: {current.key_id or 'none'}"]
        # Without a key, it could be used to guess the body.
        if current.key_id or self._show:
            facts.append(f"digest: {current.digest.hex()[:12]}")
        if others:
            facts.append(f"compared under {len(others)} other keys, too")
        names = () if keyed.digests is None else keyed.digests.names
        settings = self.written(("fingerprint",))
        settings += [self.of("secrets", "fingerprint_key")] if current.key_id else []
        self.add("fingerprint", f"of {', '.join(names)}", facts, settings)

    def _identity(self, operation_id: UUID, route: Route) -> None:
        config = self._config
        settings = [self.of("service"), self.own("operation")]
        settings += [self.of("secrets", "identity_key")] if config.secrets.identity_key else []
        fact = f"service {config.service}, operation {route.operation}, caller and key"
        self.add("identity", f"operation {operation_id}", [fact], settings)
        if (regions := config.regions) is not None:
            home = home_of(operation_id, [each.name for each in regions.homes])
            decision = f"here, in region {home}" if home == regions.here else f"sent to region {home}"
            self.add("home", decision, (), [self.of("regions", "homes")])


def _part(part: scopes.ScopeSpec, peer: str) -> str:
    match part:
        case scopes.HeaderScope(name, trusted):
            hop = "any hop may set it" if trusted is None else f"set by one of {', '.join(map(str, trusted))}"
            return f"header {name.decode()}: {hop}; this request comes from {peer}"
        case scopes.ApiKeyScope(name):
            return f"credential: {name.decode()}"
        case scopes.JwtScope(issuers):
            each = (f"{', '.join(issuer.claims)} of {issuer.issuer}" for issuer in issuers)
            return f"token in Authorization: {' or '.join(each)}"
        case scopes.ForwardAuthScope(service, principal):
            return f"principal: {principal.decode()} of {service.url}"
        case scopes.ClientCertificateScope(kind):
            return f"client certificate: {kind}"
        case scopes.SharedScope():
            return "no part of the request"
        case scopes.ComposedScope():
            return "several parts"
        case _:
            assert_never(part)


@dataclass(frozen=True, slots=True)
class Known:
    """The record of an operation as the journals of this host make it. `is_lost`: the store may have forgotten it.
    `is_journaled`: the store does not have its outcome yet."""

    snapshot: Snapshot
    is_lost: bool
    is_journaled: bool


Look = Callable[[UUID], Awaitable[Known]]
"""Finds what this host knows of an operation."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a request gets, and why. `verdict` and `status` are None where somebody else decides: the service, or one
    that is asked about the caller."""

    route: str | None
    verdict: str | None
    status: int | None
    operation_id: str | None
    steps: tuple[Step, ...]

    def document(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self, file: str) -> list[str]:
        lines = []
        for step in self.steps:
            lines.append(f"{step.name:<12} {step.decision}")
            lines += [f"{'':<14} {fact}" for fact in step.facts]
            for path, line in ((each.path, each.line) for each in step.settings):
                lines.append(f"{'':<14} by {f'{path} (default)' if line is None else f'{file}:{line} {path}'}")
        return lines


@dataclass(frozen=True, slots=True)
class _End:
    verdict: Verdict | None
    status: int | None
    decision: str
    facts: tuple[str, ...] = ()
    settings: tuple[Setting, ...] = ()


async def explain(
    config: Config,
    document: Document,
    wire: bytes,
    hop: Hop,
    *,
    response: int | None = None,
    look: Look | None = None,
    show: bool = False,
) -> Explanation:
    """Explain the request of these bytes. `response`: what the service would respond, as a status. `look` reads the
    record, to compare it. Raises `CommandWrong`, `StartError`, and as `look`."""
    found = await dry_run(config, wire, hop)
    try:
        way = _Way(found, config, document, show=show)
        way.go()
        end = _end_without_record(found, way, response)
        keyed = found.keyed
        if keyed is not None and look is not None:
            end = _compared(keyed, way, await look(keyed.identity.operation_id)) or end
        if found.is_observed:
            decision = "only observed: forwarded as if no route matched"
            own, enforcing = way.own("mode"), f"enforcing: {end.decision}"
            settings = (own if own.line is not None else way.of("mode"), *end.settings)
            end = _End(None, response, decision, (enforcing, *end.facts), settings)
    finally:
        if found.keyed is not None:
            found.keyed.taken.close()
    facts = end.facts
    if end.verdict is not None and found.route is not None and found.route.settings.status_header:
        facts += (f"Idempotency-Status: {end.verdict}",)
    way.add("verdict", end.decision, facts, end.settings)
    return Explanation(
        None if found.route is None else found.route.name,
        None if end.verdict is None else end.verdict.value,
        end.status,
        None if keyed is None else str(keyed.identity.operation_id),
        tuple(way.steps),
    )


def _end_without_record(found: Found, way: _Way, response: int | None) -> _End:
    """The end of a request under a key that was never used."""
    if found.status is not None:
        name = "" if found.verdict is None else f" {found.verdict}"
        return _End(found.verdict, found.status, f"refused with {found.status}{name}; nothing is forwarded")
    if found.unasked is not None:
        return _End(None, None, f"depends on a response that was not asked for: {found.unasked}")
    if found.is_own:
        return _End(None, None, "the gateway responds itself, with what became of an accepted request")
    if found.keyed is None:
        name = "no route matches" if found.verdict is None else str(found.verdict)
        return _End(found.verdict, response, f"{name}: forwarded untouched, not protected")
    keyed, policy = found.keyed, found.keyed.route.accept
    if policy is not None and keyed.is_async:
        settings = (way.own("inbox" if keyed.route.inbox else "accept"),)
        refusal = refuse_too_long(keyed, policy)
        if refusal is not None:
            limit = f"the limit for what is delivered later is {policy.request_bytes_max} bytes"
            decision = f"refused with {refusal.status} {refusal.verdict}: {limit}"
            return _End(refusal.verdict, refusal.status, decision, settings=settings)
        status = 202 if keyed.route.inbox is None else keyed.route.inbox.acknowledgement
        decision = f"{status} {Verdict.ACCEPTED}: stored, and delivered later"
        return _End(Verdict.ACCEPTED, status, decision, settings=settings)
    if response is None:
        facts = ("--response STATUS says what a status of the service would mean",)
        return _End(None, None, "claimed and forwarded once; the response of the service decides", facts)
    return _end_by_response(keyed, way, response)


def _end_by_response(keyed: Request, way: _Way, status: int) -> _End:
    """The end of a first request whose service responds with this status, and no more than that is known."""
    route, head = keyed.route, ResponseHead(status, b"", IndexedHeaders())
    body = b"" if route.keep.keeps_body({}, 0) else None
    stored = stored_response(keyed.head.method, head, body, route.keep, keyed.version)
    outcome = conclude_answered(
        status, {}, route.policy, carries_doubt=False, is_first_attempt=True, is_stored=stored.body is not None
    )
    written = route.settings
    # What of `outcome` says what this status means.
    listed = written.status_policy.codes.get(status) or written.status_policy.classes.get(status // 100)
    facts: list[str] = []
    keys: list[tuple[str, ...]] = [("outcome", "preset" if listed is None else listed.value)]
    match outcome.event:
        case Event.COMPLETE:
            decision = "final: the operation is completed"
            replay, remember = (duration_text(getattr(written.retention, name)) for name in ("replay", "remember"))
            what = "its response is replayed" if outcome.verdict is Verdict.STORED else "its response is not stored"
            facts.append(f"{what}; {replay} for the response, {remember} for the key")
            keys += [("retention", "replay"), ("retention", "remember")]
        case Event.RELEASE:
            decision = "retryable: it had no effect, and a repeat executes it"
        case Event.FORGET:
            decision = "retryable: the caller was refused at the door, and the key is forgotten"
        case _:
            decision = "it may have had its effect, and no repeat executes it"
            kind = "probe" if isinstance(route.recovery, Probe) else str(written.recovery)
            facts.append(f"recovery: {kind}")
            keys.append(("recovery",))
    if written.outcome.when:
        facts.append("a rule of outcome.when may say otherwise, by the body of the response")
    settings = tuple(way.own(*key) for key in keys)
    return _End(outcome.verdict, status, f"{status} {outcome.verdict}: {decision}", tuple(facts), settings)


async def read_record(operations: Operations, operation_id: UUID) -> Known:
    """See `Look`. Raises `StoreError`, also where a journal has an outcome that cannot be read here."""
    snapshot = await operations.read(operation_id)
    is_lost = (await operations.memory()).refuses(snapshot.record)
    if snapshot.state not in UNENDED:
        return Known(snapshot, is_lost, is_journaled=False)
    kept = await asyncio.to_thread(operations.journals.outcomes, operation_id)
    # Read again: an outcome may have left the journal for the store meanwhile.
    snapshot = await operations.read(operation_id)
    commands = [each.command for each in kept if each.command is not None]
    if len(commands) < len(kept):
        raise NotApplied("a journal of this host has an outcome that cannot be read here: inspect OPERATION_ID")
    after = None if snapshot.record is None else anticipated(snapshot.record, commands, snapshot.now_us)
    return Known(after or snapshot, is_lost, is_journaled=after is not None)


def look_by(operate: Callable[[Job], Awaitable[int]]) -> Look:
    """A `Look` at the store that operators' commands have, and the journals of this host. It raises `CommandError`."""

    async def look(operation_id: UUID) -> Known:
        found: list[Known] = []

        async def run(operations: Operations) -> None:
            found.append(await read_record(operations, operation_id))

        await operate(Job(run))
        return found[0]

    return look


def _compared(keyed: Request, way: _Way, known: Known) -> _End | None:
    """Add the step of the record; the end by it, None where it decides nothing."""
    snapshot = known.snapshot
    record = snapshot.record
    if known.is_lost:
        way.add("record", "the store may have forgotten this key")
        return _End(Verdict.STORE_AMNESIA, 503, f"refused with 503 {Verdict.STORE_AMNESIA}; nothing is forwarded")
    if record is None:
        way.add("record", "there is none: the key is new")
        return None
    judgement = keyed.judge(snapshot)
    facts = [f"state: {record.state}", f"attempts: {record.attempts}"]
    if known.is_journaled:
        facts.append("its outcome is in a journal of this host, and the store does not have it yet")
    if why := keyed.why_incomparable(record):
        comparison = f"nobody can tell whether of the same request: {why}"
    elif isinstance(judgement, Refuse) and judgement.verdict is Verdict.KEY_REUSED:
        differs = keyed.differences(record)
        facts.append(f"differs in: {', '.join(differs) or 'not known'}")
        comparison = "of another request"
    else:
        comparison = "of the same request"
    way.add("record", comparison, facts)
    unless = ""
    if keyed.route.inbox is not None:
        reply = reply_to_repeat(judgement, keyed, keyed.route.inbox)
    elif isinstance(judgement, Claimable):
        return None
    else:
        reply = reply_by_judgement(judgement, snapshot, keyed)
        if reply.to_fetch is not None:
            return _End(Verdict.FETCHED, None, f"{Verdict.FETCHED}: the service is asked for it again")
        if isinstance(judgement, Doubt) and isinstance(keyed.route.recovery, Probe):
            unless = ", unless a probe ends the doubt"
    return _End(reply.verdict, reply.status, f"{reply.status} {reply.verdict}; nothing is executed{unless}")


class Explainer:
    """Satisfies `admin.console.Explain`, for the configuration in force."""

    def __init__(self, config: Config, operations: Operations) -> None:
        self._config = config
        self._operations = operations
        self._document: Document | None = None

    async def __call__(self, request: bytes, peer: str, response: int | None, with_record: bool) -> Mapping[str, Any]:
        """The explanation as JSON values. Raises `Malformed`, and `StoreError` where the record is not read."""
        if response is not None and not 200 <= response <= 599:
            raise Malformed("a status of a response is from 200 to 599")
        try:
            peer = str(ip_address(peer))
        except ValueError:
            raise Malformed("the address that it comes from is one such as 192.0.2.1") from None
        config = self._config
        if self._document is None:
            # In a thread: of many routes it takes long.
            text = effective(config)
            self._document = await asyncio.to_thread(read_document, text, "configuration", {}, Placeholders())
        document = self._document
        look = partial(read_record, self._operations) if with_record else None
        try:
            given = from_text(request, "the request")
            hop = hop_of(given, peer, None)
            return (await explain(config, document, given.wire, hop, response=response, look=look)).document()
        except (CommandWrong, StartError) as error:
            raise Malformed(str(error)) from None
