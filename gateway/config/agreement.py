"""What keys of the file must agree with each other on.

Each check looks at those values that are right by themselves, so that a mistake elsewhere hides none of its findings.
Invariant: a Config is made only of a file on which every check here was silent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from gateway.config.address import Address, PostgresUrl, UpstreamUrl
from gateway.config.document import Document
from gateway.config.identity import ApiKeyScope, ComposedScope, HeaderScope, HeadersKey
from gateway.config.model import Admin, Config, Listen, Secrets, Status, Store
from gateway.config.recovery import ProbeRecovery
from gateway.config.report import Mistake, Path
from gateway.config.route import (
    Body,
    Fingerprint,
    InFlight,
    Match,
    Outcome,
    ResponsePolicy,
    Retention,
    Route,
)
from gateway.config.section import Section, adapter
from gateway.config.unit import duration_text, size_text
from gateway.config.upstream import TCP_USER_TIMEOUT_SECONDS, RouteUpstream, Upstream
from gateway.core.recovery import probe_placeholders

T = TypeVar("T", bound=Section)

_WILDCARDS = frozenset(("0.0.0.0", "::"))  # noqa: S104 - compared, not listened on
_WEBHOOK_KEYS = frozenset(("webhook-id", "svix-id"))
_KEPT_ON_REQUEST = frozenset(("set-cookie", "www-authenticate"))


@dataclass(frozen=True, slots=True)
class _Draft:
    """What of a section is right by itself, by attribute; what is wrong is absent."""

    document: Document
    path: Path
    values: Mapping[str, Any]

    def part(self, kind: type[T]) -> T | None:
        """The section of this kind, of which there is one at most; None where it is wrong or left out."""
        return next((value for value in self.values.values() if isinstance(value, kind)), None)

    def mistake(self, keys: Path, message: str, hint: str = "") -> Mistake:
        return self.document.mistake((*self.path, *keys), message, hint)

    def writes(self, *keys: str | int) -> bool:
        return self.document.holds((*self.path, *keys))


def disagreements(document: Document) -> Iterator[Mistake]:
    """Every mistake that lies in two keys together."""
    config = _draft(Config, document, ())
    written = document.tree.get("routes") if isinstance(document.tree, dict) else None
    items = written if isinstance(written, list) else []
    routes = [_draft(Route, document, ("routes", index)) for index in range(len(items))]
    yield from _shared_service(config)
    yield from _server_settings(config)
    yield from _listeners(config)
    yield from _secrets(config)
    yield from _names(routes)
    if upstream := config.part(Upstream):
        yield from _upstream(upstream, config, config)
        yield from _tls_without_https(upstream, config, routes)
    yield from _loops(config, routes)
    for route in routes:
        yield from _route(route, config)


def _draft(model: type[BaseModel], document: Document, path: Path) -> _Draft:
    tree: Any = document.tree
    for part in path:
        tree = tree[part]
    given = tree if isinstance(tree, dict) else {}
    values: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        key = field.alias or name
        if key in given:
            try:
                values[name] = adapter(model, name).validate_python(given[key])
            except ValidationError:
                continue
        elif field.default_factory is not None:
            if not field.default_factory_takes_validated_data:
                values[name] = field.get_default(call_default_factory=True)
        elif not field.is_required():
            values[name] = adapter(model, name).validate_python(field.default)
    return _Draft(document, path, values)


def _shared_service(config: _Draft) -> Iterator[Mistake]:
    store = config.part(Store)
    if store is None or config.writes("service"):
        return
    if isinstance(store.durable, PostgresUrl) or store.fast is not None:
        yield config.mistake(("service",), "required, but missing", "it tells services that share a store apart")


def _server_settings(config: _Draft) -> Iterator[Mistake]:
    store = config.part(Store)
    if store is None or not store.accept_server_settings:
        return
    place = ("store", "accept_server_settings")
    if not isinstance(store.durable, PostgresUrl):
        yield config.mistake(place, "only a postgresql:// store has a server with settings")
    yield from _twice(config, place, store.accept_server_settings)


def _listeners(config: _Draft) -> Iterator[Mistake]:
    asked: list[tuple[str, Path, Address]] = []
    if listen := config.part(Listen):
        asked.append(("listen", ("listen",), listen.address))
    if status := config.part(Status):
        asked.append(("status.listen", ("status", "listen"), status.listen))
    if (admin := config.part(Admin)) and admin.token is not None:
        asked.append(("admin.listen", ("admin", "listen"), admin.listen))
    for (one, first, address), (other, second, address_too) in combinations(asked, 2):
        if _collide(address, address_too):
            keys = second if config.writes(*second) else first
            yield config.mistake(keys, f"{one} and {other} both use port {address.port}")


def _numeric(host: str) -> str:
    return "127.0.0.1" if host == "localhost" else host


def _collide(one: Address, other: Address) -> bool:
    hosts = {_numeric(one.host), _numeric(other.host)}
    return one.port == other.port != 0 and (len(hosts) == 1 or bool(hosts & _WILDCARDS))


def _loops(config: _Draft, routes: list[_Draft]) -> Iterator[Mistake]:
    """An upstream that is the gateway itself: each request would come back until all connections are taken."""
    listen = config.part(Listen)
    if listen is None:
        return
    for place in (config, *routes):
        upstream = place.part(Upstream) or place.part(RouteUpstream)
        if upstream is None or upstream.url is None:
            continue
        if place.writes("upstream", "url") and _is_own(upstream.url, listen.address):
            message = f"the gateway itself listens on {listen.address} and would forward to itself"
            yield place.mistake(
                ("upstream", "url"), message, "write where the service listens, or let the gateway listen elsewhere"
            )


def _is_own(url: UpstreamUrl, listen: Address) -> bool:
    host, own = _numeric(url.host), _numeric(listen.host)
    is_here = host in ("127.0.0.1", "::1") and own in _WILDCARDS
    return url.port == listen.port and (host == own or is_here)


def _secrets(config: _Draft) -> Iterator[Mistake]:
    if secrets := config.part(Secrets):
        for index in _repeated(key.id for key in secrets.fingerprint_keys):
            yield config.mistake(("secrets", "fingerprint_key", index, "id"), "another key has this id already")


def _names(routes: list[_Draft]) -> Iterator[Mistake]:
    named = [route for route in routes if "name" in route.values]
    for index in _repeated(route.values["name"] for route in named):
        yield named[index].mistake(("name",), "another route has this name already")


def _repeated(items: Iterable[object]) -> list[int]:
    """The positions of items that were there before."""
    seen: set[object] = set()
    found = []
    for index, item in enumerate(items):
        if item in seen:
            found.append(index)
        seen.add(item)
    return found


def _upstream(upstream: Upstream, place: _Draft, config: _Draft) -> Iterator[Mistake]:
    yield from _longer(place, "upstream", upstream)
    if place.writes("upstream", "tls") and upstream.tls and (upstream.tls.cert is None) != (upstream.tls.key is None):
        yield place.mistake(("upstream", "tls"), "cert and key must be given together")
    if place is not config and place.writes("upstream", "tls") and upstream.url.scheme != "https":
        yield place.mistake(("upstream", "tls"), "tls needs an https URL")


def _tls_without_https(upstream: Upstream, config: _Draft, routes: list[_Draft]) -> Iterator[Mistake]:
    changes = [route.part(RouteUpstream) for route in routes]
    urls = [upstream.url, *(change.url for change in changes if change and change.url)]
    if upstream.tls is not None and all(url.scheme != "https" for url in urls):
        yield config.mistake(("upstream", "tls"), "tls needs an https URL")


def _route(route: _Draft, config: _Draft) -> Iterator[Mistake]:
    if in_flight := route.part(InFlight):
        yield from _longer(route, "in_flight", in_flight)
    body = route.part(Body)
    if body and body.spool_over > body.max_bytes and {"spool_over", "max_bytes"} <= body.model_fields_set:
        limits = f"{size_text(body.spool_over)} is more than {size_text(body.max_bytes)}"
        yield route.mistake(("body", "spool_over"), f"spool_over must be at most max_bytes; {limits}")
    upstream, change = config.part(Upstream), route.part(RouteUpstream)
    if upstream and change:
        yield from _upstream(change.over(upstream, _settle(route)), route, config)
    yield from _retention(route)
    yield from _recovery(route, config)
    yield from _outcome(route, config)
    yield from _fingerprint(route)
    yield from _response(route)
    yield from _headers(route)
    if match := route.part(Match):
        yield from _twice(route, ("match", "methods"), match.methods)


def _retention(route: _Draft) -> Iterator[Mistake]:
    retention = route.part(Retention)
    if retention is None:
        return
    yield from _longer(route, "retention", retention)
    if _WEBHOOK_KEYS & _key_headers(route) and not route.writes("retention", "expired_status"):
        message = "required for keys of webhooks: 410 makes senders give up for good; write 410, 409 or 204"
        yield route.mistake(("retention", "expired_status"), message)


def _recovery(route: _Draft, config: _Draft) -> Iterator[Mistake]:
    recovery, upstream, change = route.values.get("recovery"), config.part(Upstream), route.part(RouteUpstream)
    if upstream is None or change is None:
        return
    whole = change.over(upstream, _settle(route))
    if recovery == "resend" and whole.key == "none":
        message = "resend needs an upstream that deduplicates on what is forwarded, and upstream.key is none"
        yield route.mistake(("recovery",), message)
    if not isinstance(recovery, ProbeRecovery):
        return
    probe = recovery.probe
    least = whole.response_timeout + TCP_USER_TIMEOUT_SECONDS
    if probe.settle is not None and probe.settle < least:
        message = f"settle must be at least response_timeout and {duration_text(TCP_USER_TIMEOUT_SECONDS)} for TCP"
        limits = f"{duration_text(probe.settle)} is shorter than {duration_text(least)}"
        yield route.mistake(("recovery", "probe", "settle"), f"{message}; {limits}")
    if match := route.part(Match):
        known = {"operation_id", "key", *match.path.names}
        for name in probe_placeholders(probe.path):
            if name not in known:
                message = f"there is no {{{name}}}; known here: {', '.join(sorted(known))}"
                yield route.mistake(("recovery", "probe", "path"), message)


def _outcome(route: _Draft, config: _Draft) -> Iterator[Mistake]:
    outcome = route.part(Outcome)
    if outcome is None:
        return
    first: dict[int | str, str] = {}
    for name in ("final", "retryable", "in_doubt"):
        for index, status in enumerate(getattr(outcome, name)):
            if status in first:
                yield route.mistake(("outcome", name, index), f"{status} is listed already, under {first[status]}")
            first.setdefault(status, name)
    if outcome.preset == "payments" and not config.writes("secrets", "fingerprint_key"):
        message = "payments requires secrets.fingerprint_key, so that a stolen table cannot be used to guess bodies"
        yield route.mistake(("outcome", "preset"), message)


def _fingerprint(route: _Draft) -> Iterator[Mistake]:
    fingerprint = route.part(Fingerprint)
    if fingerprint is None:
        return
    if fingerprint.ignore and fingerprint.only:
        yield route.mistake(("fingerprint", "ignore"), "ignore and only cannot be used together")
    for key in ("ignore", "only"):
        if getattr(fingerprint, key) and fingerprint.body not in (None, "json"):
            yield route.mistake(("fingerprint", key), f"{key} is for JSON bodies, but body is {fingerprint.body}")
    for index, header in enumerate(fingerprint.headers):
        if header.lower() in _key_headers(route):
            yield route.mistake(("fingerprint", "headers", index), "the key is always compared, and is not listed here")
    yield from _twice(route, ("fingerprint", "headers"), fingerprint.headers)


def _response(route: _Draft) -> Iterator[Mistake]:
    response = route.part(ResponsePolicy)
    if response is None:
        return
    for index, header in enumerate(response.keep):
        if header.lower() not in _KEPT_ON_REQUEST:
            yield route.mistake(("response", "keep", index), "expected Set-Cookie or WWW-Authenticate; others are kept")
    stripped = {header.lower() for header in response.strip}
    for index, header in enumerate(response.keep):
        if header.lower() in stripped:
            yield route.mistake(("response", "keep", index), "this field is listed under strip too")
    yield from _twice(route, ("response", "strip"), response.strip)


def _headers(route: _Draft) -> Iterator[Mistake]:
    key, scope = route.values.get("key"), route.values.get("scope")
    if isinstance(key, HeadersKey):
        yield from _twice(route, ("key", "headers"), key.headers)
    if _key_headers(route) & _scope_headers(scope):
        yield route.mistake(("scope",), "the field that holds the key cannot name the caller")
    if isinstance(scope, ComposedScope):
        names = [part.header if isinstance(part, HeaderScope) else part.api_key for part in scope.compose]
        yield from _twice(route, ("scope", "compose"), names)


def _settle(route: _Draft) -> float | None:
    """As `Route.settle`, of a route that may be wrong elsewhere."""
    recovery = route.values.get("recovery")
    return recovery.probe.settle if isinstance(recovery, ProbeRecovery) else None


def _longer(place: _Draft, section: str, values: Section) -> Iterator[Mistake]:
    """Where one duration of a section is longer than another that bounds it, and both are written, here or above."""
    for short, long in values.ORDERED:
        value, bound = getattr(values, short), getattr(values, long)
        written = [key for key in (short, long) if place.writes(section, key)]
        if value > bound and written:
            limits = f"{duration_text(value)} is longer than {duration_text(bound)}"
            yield place.mistake((section, written[0]), f"{short} must be at most {long}; {limits}")


def _twice(place: _Draft, keys: Path, names: Iterable[str]) -> Iterator[Mistake]:
    for index in _repeated(name.lower() for name in names):
        yield place.mistake((*keys, index), "this is listed already")


def _key_headers(route: _Draft) -> frozenset[str]:
    key = route.values.get("key")
    return frozenset() if key is None else frozenset(name.lower() for name in key.header_names)


def _scope_headers(scope: object) -> frozenset[str]:
    match scope:
        case HeaderScope(header=name) | ApiKeyScope(api_key=name):
            return frozenset((name.lower(),))
        case ComposedScope(compose=parts):
            return frozenset().union(*(_scope_headers(part) for part in parts))
        case _:
            return frozenset()
