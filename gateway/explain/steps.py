"""What was decided about a request step by step, in words, each with its lines of the configuration.

Decides nothing: it says what `dry_run` found. Names and digests are shown, values of the request only where that is
wanted, secrets never.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, assert_never

from gateway.config import Config, Document
from gateway.config.document import Path, path_text
from gateway.core.identity.body import format_pointer
from gateway.core.identity.fingerprint import BodyForm
from gateway.core.identity.key import HeaderKey, Key, KeyFault
from gateway.core.identity.operation_id import home_of
from gateway.core.identity.scope import (
    ApiKeyScope,
    ClientCertificateScope,
    ComposedScope,
    ForwardAuthScope,
    HeaderScope,
    JwtScope,
    ScopeSpec,
    SharedScope,
)
from gateway.core.message import header_values, values_by_name
from gateway.core.routing import Miss
from gateway.core.verdict import Verdict
from gateway.explain.dry_run import Found
from gateway.protect.request import Request, scope_name
from gateway.protect.route import Route

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


class Places:
    """Where the settings of a file are written."""

    def __init__(self, config: Config, document: Document) -> None:
        self._document = document
        self._indexes = {route.name: index for index, route in enumerate(config.routes)}
        self.config = config

    def of(self, *keys: str | int) -> Setting:
        """A setting of the whole file."""
        path: Path = keys
        return Setting(path_text(path), self._document.line(path))

    def of_route(self, name: str, *keys: str | int) -> Setting:
        """A setting of a route."""
        return self.of("routes", self._indexes[name], *keys)

    def written(self, name: str, *keys: tuple[str | int, ...]) -> tuple[Setting, ...]:
        """Those of these settings of a route that are written, or the first one."""
        settings = tuple(self.of_route(name, *each) for each in keys)
        return tuple(each for each in settings if each.line is not None) or settings[:1]


def steps_of(found: Found, places: Places, *, show: bool) -> Iterator[Step]:
    """The steps up to the one that decided. With `show`, they have values of the request."""
    is_refused = found.status is not None
    if found.head is None or (found.route is None and is_refused) or found.verdict is _V.REQUEST_INVALID:
        yield Step("http", f"refused: {found.detail}")
    else:
        yield Step("http", "there is one way to read it")
    if found.head is None:
        return
    yield _route(found, places)
    route = found.route
    if route is None or found.verdict is _V.REQUEST_INVALID:
        return
    if route.authorize is not None:
        asked = found.unasked or route.authorize.url
        yield Step("authorize", f"would ask {asked}", settings=(places.of_route(route.name, "authorize"),))
        if found.unasked is not None:
            return
    yield _key(found, route, places, show=show)
    if found.verdict in _OF_KEY or found.verdict is _V.UNKEYED:
        return
    yield _scope(found, route, places, show=show)
    if found.verdict in _OF_SCOPE or found.unasked is not None:
        return
    yield _body(found, route, places, show=show)
    if found.keyed is not None:
        yield _fingerprint(found.keyed, places, show=show)
        yield Step(
            "identity",
            f"operation {found.keyed.identity.operation_id}",
            (f"service {places.config.service}, operation {route.operation}, caller and key",),
            (
                places.of("service"),
                places.of_route(route.name, "operation"),
                *([places.of("secrets", "identity_key")] if places.config.secrets.identity_key else []),
            ),
        )
        if (regions := places.config.regions) is not None:
            home = home_of(found.keyed.identity.operation_id, [each.name for each in regions.homes])
            decision = f"here, in region {home}" if home == regions.here else f"sent to region {home}"
            yield Step("home", decision, settings=(places.of("regions", "homes"),))
    if found.verdict is _V.ORDER_MISSING:
        yield Step("order", f"refused: {found.detail}", settings=(places.of_route(route.name, "order"),))


def _route(found: Found, places: Places) -> Step:
    if found.is_own:
        return Step("route", "for the gateway's own resource", settings=(places.of("operations", "path"),))
    missed = [(route, miss) for route, miss in found.misses if miss is not None]
    facts = tuple(_missed(found, route, miss, places) for route, miss in missed)
    if found.route is None:
        return Step("route", "none matches", facts)
    name = found.route.name
    settings = places.written(name, ("match", "path"), ("match", "methods"), ("match", "host"))
    return Step("route", name, facts, settings)


def _missed(found: Found, route: Route, miss: Miss, places: Places) -> str:
    """Why an earlier route does not match."""
    match = next(each for each in places.config.routes if each.name == route.name).match
    line = places.of_route(route.name, "match").line
    head = found.head
    match miss:
        case Miss.METHOD:
            sent = "" if head is None else f"{head.method.decode('latin-1')} is not "
            why = f"the method {sent}{' or '.join(match.methods)}"
        case Miss.HOST:
            why = f"the host is not {match.host}"
        case Miss.PATH:
            why = f"the path is not {match.path.text}"
        case _:
            assert_never(miss)
    return f"not {route.name} (line {line}): {why}"


def _key(found: Found, route: Route, places: Places, *, show: bool) -> Step:
    if route.inbox is not None:
        return _inbox(found, route, places)
    settings = [*places.written(route.name, ("key",))]
    found_key: Key | KeyFault | None = None
    if found.request is not None and (found.keyed is not None or not route.key.needs_body):
        body = found.keyed.taken.content if found.keyed is not None else None
        content = body if isinstance(body, bytes) else None
        found_key = route.key.find_key(values_by_name(found.request.head.headers), content)
    facts = []
    if isinstance(route.key, HeaderKey):
        settings.append(places.of_route(route.name, "key", "format"))
        facts.append(f"format: {route.key.format}")
    if found.verdict in (_V.KEY_MISSING, _V.UNKEYED):
        settings.append(places.of_route(route.name, "key", "required"))
    match found_key:
        case _ if found.verdict in _OF_KEY:
            decision = f"refused: {found.detail}"
        case _ if found.verdict is _V.UNKEYED:
            decision = f"{route.key.places} is missing: the request is not protected"
        case Key(text=text):
            decision = f"taken from {route.key.places}"
            if found.keyed is not None:
                facts.append(f"digest: {found.keyed.identity.key_digest.hex()[:12]}")
            facts += [f"key: {text}"] if show else []
        case KeyFault(detail):
            decision = f"malformed: {detail}"
        case None:
            decision = f"would be taken from {route.key.places}"
        case _:
            assert_never(found_key)
    return Step("key", decision, tuple(facts), tuple(settings))


def _inbox(found: Found, route: Route, places: Places) -> Step:
    settings = (places.of_route(route.name, "inbox", "preset"),)
    if found.verdict in _OF_KEY:
        return Step("key", f"refused: {found.detail}", settings=settings)
    if found.keyed is None:
        return Step("key", "not a message that has to be signed", settings=settings)
    facts = (f"digest: {found.keyed.identity.key_digest.hex()[:12]}",)
    return Step("key", "signed by its sender, who names the event", facts, settings)


def _scope(found: Found, route: Route, places: Places, *, show: bool) -> Step:
    settings = (places.of_route(route.name, "scope"),)
    request = found.request
    peer = "" if request is None or request.hop.address is None else request.hop.address.decode()
    parts = route.scope.parts if isinstance(route.scope, ComposedScope) else (route.scope,)
    facts = [_part(part, peer) for part in parts]
    if found.verdict in _OF_SCOPE:
        return Step("scope", f"refused: {found.detail}", tuple(facts), settings)
    if found.unasked is not None:
        return Step("scope", f"would ask {found.unasked}", tuple(facts), settings)
    if found.keyed is not None:
        facts.append(f"digest: {scope_name(found.keyed.identity.scope_digest)}")
    if show and request is not None:
        values = ((name, header_values(request.head.headers, name)) for name in sorted(route.scope.headers))
        facts += [f"{name.decode()}: {value.decode('latin-1')}" for name, each in values for value in each]
    decision = "all callers share their keys" if isinstance(route.scope, SharedScope) else "the caller is identified"
    return Step("scope", decision, tuple(facts), settings)


def _part(part: ScopeSpec, peer: str) -> str:
    match part:
        case HeaderScope(name, trusted):
            hop = "any hop may set it" if trusted is None else f"set by one of {', '.join(map(str, trusted))}"
            return f"header {name.decode()}: {hop}; this request comes from {peer}"
        case ApiKeyScope(name):
            return f"credential: {name.decode()}"
        case JwtScope(issuers):
            each = (f"{', '.join(issuer.claims)} of {issuer.issuer}" for issuer in issuers)
            return f"token in Authorization: {' or '.join(each)}"
        case ForwardAuthScope(service, principal):
            return f"principal: {principal.decode()} of {service.url}"
        case ClientCertificateScope(kind):
            return f"client certificate: {kind}"
        case SharedScope():
            return "no part of the request"
        case ComposedScope():
            return "several parts"
        case _:
            assert_never(part)


def _body(found: Found, route: Route, places: Places, *, show: bool) -> Step:
    limit = places.of_route(route.name, "body", "max_bytes")
    if found.keyed is None:
        is_refused = found.verdict is _V.BODY_TOO_LARGE
        decision = f"refused: {found.detail}" if is_refused else "received"
        return Step("body", decision, settings=(limit,))
    keyed, spec = found.keyed, route.fingerprinter.spec
    types = [value.decode("latin-1").partition(";")[0] for value in header_values(keyed.head.headers, b"content-type")]
    form = _form(keyed)
    how = "not compared" if form == BodyForm.NONE else f"compared as {form}"
    if form == BodyForm.RAW:
        how += ", byte for byte"
    facts = [f"media type: {', '.join(types) or 'none'}", f"limit: {route.settings.body.max_bytes} bytes"]
    if form == BodyForm.JSON:
        facts += [f"ignored: {format_pointer(each)}" for each in spec.ignore]
        facts += [f"compared alone: {format_pointer(each)}" for each in spec.only]
        facts += [f"default: {format_pointer(each)}" for each, _ in spec.defaults]
    content = keyed.taken.content
    if show and isinstance(content, bytes) and content:
        facts.append(f"content: {content[:_SHOWN_BYTES_MAX].decode('utf-8', 'backslashreplace')}")
    keys = [("fingerprint", name) for name in ("body", "ignore", "only", "defaults")]
    settings = (limit, *places.written(route.name, *keys))
    return Step("body", f"{keyed.taken.length} bytes, {how}", tuple(facts), settings)


def _form(keyed: Request) -> str:
    """The form in which the body is compared."""
    if keyed.digests is None:
        return BodyForm.RAW
    return keyed.digests.values[-1].partition(b" ")[0].decode()


def _fingerprint(keyed: Request, places: Places, *, show: bool) -> Step:
    current, *others = keyed.fingerprints
    key = current.key_id or "none"
    facts = [f"recipe: {current.recipe.hex()[:12]}", f"key: {key}"]
    # Without a key, it could be used to guess the body.
    if current.key_id or show:
        facts.append(f"digest: {current.digest.hex()[:12]}")
    if others:
        facts.append(f"compared under {len(others)} other keys, too")
    names = () if keyed.digests is None else keyed.digests.names
    settings = [*places.written(keyed.route.name, ("fingerprint",))]
    if current.key_id:
        settings.append(places.of("secrets", "fingerprint_key"))
    return Step("fingerprint", f"of {', '.join(names)}", tuple(facts), tuple(settings))
