"""Mistakes between sections of the file.

Each check of `disagreements` uses the values that are valid by themselves, so that a mistake elsewhere hides none of
its findings. Invariant: a Config is made only of a file in which no check here found a mistake.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import find_spec
from itertools import combinations
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, SecretStr

from gateway.config.delivery import (
    REMEMBER_SECONDS,
    TCP_USER_TIMEOUT_SECONDS,
    Accept,
    Delivery,
    Inbox,
    Order,
    ProbeRecovery,
    RouteDelivery,
    RouteUpstream,
    Upstream,
)
from gateway.config.document import Document, Mistake, Path, path_of
from gateway.config.leaf import (
    Address,
    Network,
    PostgresUrl,
    RedisUrl,
    SqliteUrl,
    UpstreamUrl,
    duration_text,
    size_text,
)
from gateway.config.models import (
    Admin,
    Config,
    Egress,
    EventSettings,
    KafkaSink,
    Listen,
    NatsSink,
    Operations,
    RedisStreamSink,
    Regions,
    Status,
    StdoutSink,
    Store,
    WebhookSink,
)
from gateway.config.route import (
    Body,
    BodyKey,
    BodyPart,
    ComposedKey,
    Fingerprint,
    Match,
    Outcome,
    Repeats,
    ResponsePolicy,
    Retention,
    Route,
    VersionHeader,
)
from gateway.config.scope import (
    ApiKeyScope,
    ClientCertificateScope,
    ComposedScope,
    ForwardAuth,
    ForwardAuthScope,
    HeaderScope,
    parts_of,
    scope_header_names,
    token_issuers,
)
from gateway.config.section import RightValues, Section, repeated, too_long
from gateway.core.egress import Forbidden, check_address
from gateway.core.identity.body import CANONICAL_BYTES_MAX
from gateway.core.message import is_forwarding_header
from gateway.core.outcome import RESEND_IN_PROGRESS
from gateway.core.recovery import probe_placeholders
from gateway.core.routing import PathPattern, Rule, unreachable
from gateway.core.webhook import Algorithm

T = TypeVar("T", bound=Section)

_WILDCARDS = frozenset(("0.0.0.0", "::"))  # noqa: S104 - compared, not listened on
# A caller that does not wait may come for the response on the next day.
_ACCEPTED_REPLAY_SECONDS = 24 * 3600.0
# How far the usual schedule of deliveries goes in which doubt is resolved by sending again.
_RESENT_SECONDS = 3600.0
_WEBHOOK_KEYS = frozenset(("webhook-id", "svix-id"))


@dataclass(frozen=True, slots=True)
class _Draft:
    """The valid values of the file, or of one route, by attribute; invalid ones are absent."""

    document: Document
    path: Path
    values: Mapping[str, Any]

    def part(self, kind: type[T]) -> T | None:
        """The section of this kind, of which there is one at most; None where it is invalid or left out."""
        return next((value for value in self.values.values() if isinstance(value, kind)), None)

    @property
    def label(self) -> str:
        return str(self.values.get("name", "another route"))

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules of a route, without further methods."""
        match = self.part(Match)
        return () if match is None else match.rules()

    @property
    def key_headers(self) -> frozenset[str]:
        """The headers of a route, in lower case, that its key is taken from."""
        key = self.values.get("key")
        return frozenset() if key is None else frozenset(name.lower() for name in key.header_names)

    @property
    def caller_headers(self) -> frozenset[str]:
        """Those that its scope is taken from."""
        return frozenset(name.lower() for name in scope_header_names(self.values.get("scope")))

    @property
    def needs_certificates(self) -> bool:
        return any(isinstance(part, ClientCertificateScope) for part in parts_of(self.values.get("scope")))

    def is_observed(self, config: _Draft) -> bool:
        return (self.values.get("mode") or config.values.get("mode")) == "observe"

    def mistake(self, keys: str | Path, message: str, hint: str = "") -> Mistake:
        return self.document.mistake((*self.path, *path_of(keys)), message, hint)

    def writes(self, keys: str) -> bool:
        return self.document.holds((*self.path, *path_of(keys)))


def disagreements(document: Document, right: RightValues) -> Iterator[Mistake]:
    """Every mistake between two sections."""
    config = _Draft(document, (), right[Config][0])
    routes = [_Draft(document, ("routes", index), values) for index, values in enumerate(right[Route])]
    yield from _shared_service(config)
    yield from _listeners(config)
    yield from _names(routes)
    yield from _tls_without_https(config, routes)
    yield from _loops(config, routes)
    yield from _authorities(config, routes)
    yield from _certificates(config, routes)
    yield from _regions(config, routes)
    yield from _operations(config, routes)
    yield from _spellings(config, routes)
    yield from _events(config, routes)
    yield from _alone(config, routes)
    for route in routes:
        yield from _mode(route, config)
        yield from _route(route, config)


def _shared_service(config: _Draft) -> Iterator[Mistake]:
    store = config.part(Store)
    if store is None or config.writes("service"):
        return
    if isinstance(store.durable, PostgresUrl | RedisUrl) or store.fast is not None:
        yield config.mistake("service", "required, but missing", "it distinguishes services that share a store")


def _alone(config: _Draft, routes: Sequence[_Draft]) -> Iterator[Mistake]:
    """What a durable Redis does not keep, because it is over several records or must not be lost with its memory."""
    store = config.part(Store)
    if store is None or not isinstance(store.durable, RedisUrl):
        return
    hint = "use a postgresql:// or sqlite:/// store"
    if (events := config.part(EventSettings)) and events.sinks:
        message = "a durable Redis changes one record at a time, so an event could get lost between two"
        yield config.mistake("events.sinks", message, hint)
    for route in routes:
        for name in ("accept", "inbox"):
            if route.values.get(name) is not None:
                message = f"{name} needs lists of what is to be delivered, and a durable Redis keeps single records"
                yield route.mistake(name, message, hint)
        repeats, outcome = route.part(Repeats), route.part(Outcome)
        if repeats and repeats.action == "refuse":
            message = "a repeat is found by the records of other keys, and a durable Redis changes one at a time"
            yield route.mistake("repeats.action", message, f"{hint}, or write action: count")
        if outcome and outcome.preset == "payments":
            message = "payments needs a store whose disk is the memory; a durable Redis keeps what fits into its own"
            yield route.mistake("outcome.preset", message, hint)
        if route.is_observed(config):
            message = "what is observed is compared with other records, and a durable Redis keeps single ones"
            yield route.mistake("mode" if route.writes("mode") else "name", message, hint)


def _listening(config: _Draft) -> Iterator[tuple[str, Address]]:
    """What the gateway listens on, and where that is written."""
    if listen := config.part(Listen):
        yield "listen", listen.address
    if status := config.part(Status):
        yield "status.listen", status.listen
    if (admin := config.part(Admin)) and admin.is_on:
        yield "admin.listen", admin.listen


def _listeners(config: _Draft) -> Iterator[Mistake]:
    for (one, address), (other, address_too) in combinations(_listening(config), 2):
        if _collide(address, address_too):
            keys = other if config.writes(other) else one
            yield config.mistake(keys, f"{one} and {other} both use port {address.port}")


def _mode(route: _Draft, config: _Draft) -> Iterator[Mistake]:
    """Routes that cannot be observed, and shares that cannot be decided by the head of a request."""
    if not route.is_observed(config):
        if route.values.get("enforce_share"):
            yield route.mistake("enforce_share", "only an observed route has a share that is enforced", "mode: observe")
        return
    keys = "mode" if route.writes("mode") else "name"
    for name in ("accept", "inbox"):
        if route.values.get(name) is not None:
            message = f"a route with {name} answers by itself, so there is nothing that could only be observed"
            yield route.mistake(keys, message, f"write mode: enforce, or leave {name} out while it is observed")
    key = route.values.get("key")
    parts = key.compose if isinstance(key, ComposedKey) else (key,)
    if route.values.get("enforce_share") and any(isinstance(part, BodyKey | BodyPart) for part in parts):
        message = "the key is in the body, and only one in the headers decides at once whether a request is enforced"
        yield route.mistake("enforce_share", message)


def _numeric(host: str) -> str:
    return "127.0.0.1" if host == "localhost" else host


def _collide(one: Address, other: Address) -> bool:
    hosts = {_numeric(one.host), _numeric(other.host)}
    return one.port == other.port != 0 and (len(hosts) == 1 or bool(hosts & _WILDCARDS))


def _loops(config: _Draft, routes: list[_Draft]) -> Iterator[Mistake]:
    """An upstream that is the gateway itself: each request would return to it until all connections are in use."""
    listen = config.part(Listen)
    if listen is None:
        return
    for place in (config, *routes):
        upstream = place.part(Upstream) or place.part(RouteUpstream)
        if upstream is None or upstream.url is None:
            continue
        if place.writes("upstream.url") and _is_own(upstream.url, listen.address):
            message = f"the gateway itself listens on {listen.address} and would forward to itself"
            yield place.mistake(
                ("upstream", "url"), message, "write where the service listens, or let the gateway listen elsewhere"
            )


def _authorities(config: _Draft, routes: list[_Draft]) -> Iterator[Mistake]:
    """Authorising services that are the gateway itself, and headers of theirs that cannot be theirs alone."""
    own = [address for _, address in _listening(config)]
    for route in routes:
        handed_on: dict[str, str] = {}
        for keys, service in _asked(route):
            for address in own:
                if _is_own(service.url.service, address):
                    message = f"the gateway itself listens on {address} and would ask itself"
                    yield route.mistake((*keys, "url"), message, "write where the authorising service listens")
            copied = {name.lower(): name for name in service.copy_}
            for name in copied.keys() & handed_on:
                message = f"{copied[name]} is copied from another service too: which of the two holds is not said"
                yield route.mistake((*keys, "copy"), message, "let one of them hand it on")
            handed_on |= copied
            read = {name: other for other in routes for name in other.key_headers | other.caller_headers}
            for name in service.names:
                if (reader := read.get(name.lower())) is not None:
                    message = f"{name} holds the key or names the caller on {reader.label}, and is dropped everywhere"
                    yield route.mistake(keys, message, "let the authorising service use another header")


def _asked(route: _Draft) -> Iterator[tuple[Path, ForwardAuth]]:
    """The authorising services of a route, and where they are written."""
    scope = route.values.get("scope")
    parts: list[tuple[Path, object]] = [(("scope",), scope)]
    if isinstance(scope, ComposedScope):
        parts = [(("scope", "compose", index), part) for index, part in enumerate(scope.compose)]
    for keys, part in parts:
        if isinstance(part, ForwardAuthScope):
            yield (*keys, "forward_auth"), part.forward_auth
    if authorize := route.values.get("authorize"):
        yield ("authorize", "forward_auth"), authorize.forward_auth


def _certificates(config: _Draft, routes: list[_Draft]) -> Iterator[Mistake]:
    """Scopes that need certificates for which nobody is asked."""
    listen = config.part(Listen)
    if listen is None or (listen.tls is not None and listen.tls.client_ca is not None):
        return
    for route in routes:
        if route.needs_certificates:
            message = "callers are asked for certificates only where listen.tls.client_ca says whose are accepted"
            hint = "write listen: {address: ..., tls: {cert: ..., key: ..., client_ca: ...}}"
            yield route.mistake("scope", message, hint)


def _regions(config: _Draft, routes: list[_Draft]) -> Iterator[Mistake]:
    """Scopes that a gateway of another region cannot find, and promises over keys that have different homes."""
    if config.part(Regions) is None:
        return
    hint = "write no regions"
    for route in routes:
        if route.needs_certificates:
            message = "a certificate is verified where its caller connects, and does not reach another region"
            yield route.mistake("scope", message, f"take the scope from a header or a token, or {hint}")
        if route.part(Order):
            message = "one store keeps an order, and the keys of a lane are at home in several regions"
            yield route.mistake("order", message, f"leave this out, or {hint}")
        if (repeats := route.part(Repeats)) and repeats.action == "refuse":
            message = "one store finds a repeat, and another key may be at home in another region"
            yield route.mistake("repeats.action", message, f"write action: count, or {hint}")


def _is_own(url: UpstreamUrl, listen: Address) -> bool:
    host, own = _numeric(url.host), _numeric(listen.host)
    is_here = host in ("127.0.0.1", "::1") and own in _WILDCARDS
    return url.port == listen.port and (host == own or is_here)


def _operations(config: _Draft, routes: list[_Draft]) -> Iterator[Mistake]:
    """A path of the gateway's own that a route matches: its requests would never reach the service."""
    operations = config.part(Operations)
    if operations is None or not any(route.part(Accept) and not route.part(Inbox) for route in routes):
        return
    reserved = PathPattern.parse(f"{operations.path}/{{rest:.*}}")
    for route in routes:
        if (match := route.part(Match)) and any(reserved.common(path) for path in match.paths):
            message = f"this matches {operations.path}, where callers ask what became of an accepted request"
            yield route.mistake("match.path", message, "write another operations: {path: ...}, or narrow the route")


def _spellings(config: _Draft, routes: list[_Draft]) -> Iterator[Mistake]:
    """Paths that one service may take for one, and that are written as several."""
    known: dict[PathPattern, tuple[_Draft, Rule]] = {}
    for route in routes:
        for rule in route.rules:
            other, similar = known.setdefault(rule.spelling().path, (route, rule))
            is_same = route is other or route.values.get("operation") == other.values.get("operation")
            if not is_same and similar.spelling().common(rule.spelling()) and not similar.path.common(rule.path):
                message = f"a service may read this as {similar.path.text} of {other.label}: one key would run twice"
                hint = "list it under match.also there, or write the same operation for both"
                yield route.mistake("match.path", message, hint)
    for index, each in enumerate(config.values.get("unprotected", ())):
        for route in routes:
            if any(each.rule.common(rule) is not None for rule in route.rules):
                message = f"{route.label} matches this, and what a route matches is protected"
                yield config.mistake(("unprotected", index), message, "name another path, or narrow the route")


def _events(config: _Draft, routes: list[_Draft]) -> Iterator[Mistake]:
    events, egress, store = config.part(EventSettings), config.part(Egress), config.part(Store)
    if events is None:
        return
    names = {route.values.get("name") for route in routes}
    for index, sink in enumerate(events.sinks):
        place: Path = ("events", "sinks", index)
        for number, name in enumerate(sink.routes or ()):
            # One that is invalid elsewhere may be meant.
            if name not in names and None not in names:
                yield config.mistake((*place, "routes", number), "there is no route of this name")
        if isinstance(sink, WebhookSink) and egress is not None:
            message = _why_not_reached(sink.url.get_secret_value(), egress)
            if message is not None:
                yield config.mistake((*place, "url"), message)
        fast = None if store is None else store.fast
        if (
            isinstance(sink, RedisStreamSink)
            and fast is not None
            and not sink.shares_fast
            and _redis_databases(sink.url) & _redis_databases(fast)
        ):
            message = "this is the database of store.fast, which may lose anything at any moment"
            hint = "write another database, such as /1, or another Redis; or shares_fast: true"
            yield config.mistake((*place, "url"), message, hint)


def _why_not_reached(url: str, egress: Egress) -> str | None:
    """Why egress forbids this URL, as far as the URL itself shows it; a name is checked when it is resolved."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    if egress.https_only and parts.scheme != "https":
        return "events leave the gateway over TLS alone; write https://, or egress: {https_only: false}"
    if port not in egress.ports:
        return f"egress.ports does not name port {port}"
    host = parts.hostname or ""
    if egress.proxy is None and re.fullmatch(r"[0-9.]+|[0-9a-f:.]*:[0-9a-f:.]*", host):
        try:
            check_address(egress.policy, host)
        except Forbidden as error:
            return str(error)
    return None


def _redis_databases(url: RedisUrl) -> set[tuple[str, str]]:
    """Each place that the URL names, with the number of the database. Where sentinels lead is not known here."""
    parts = urlsplit(url.url.get_secret_value())
    hosts = parts.netloc.rpartition("@")[2].lower().split(",")
    return {(host.removesuffix(":6379"), parts.path.strip("/") or "0") for host in hosts}


def _names(routes: list[_Draft]) -> Iterator[Mistake]:
    named = [route for route in routes if "name" in route.values]
    for index in repeated(route.values["name"] for route in named):
        yield named[index].mistake("name", "another route has this name already")


def _tls_without_https(config: _Draft, routes: list[_Draft]) -> Iterator[Mistake]:
    upstream = config.part(Upstream)
    changes = [route.part(RouteUpstream) for route in routes]
    if upstream is None or upstream.tls is None:
        return
    if all(
        url.scheme != "https" for url in (upstream.url, *(change.url for change in changes if change and change.url))
    ):
        yield config.mistake("upstream.tls", "tls needs an https URL")


def _route(route: _Draft, config: _Draft) -> Iterator[Mistake]:
    upstream, change = config.part(Upstream), route.part(RouteUpstream)
    if upstream and change:
        merged = change.over(upstream, _settle(route))
        yield from _upstream(route, change, merged)
        yield from _recovery(route, merged)
    yield from _retention(route)
    yield from _outcome(route, config)
    yield from _response(route)
    yield from _explained(route, config)
    yield from _repeats(route)
    if inbox := route.part(Inbox):
        yield from _inbox(route, inbox, config)
    elif accept := route.part(Accept):
        yield from _accept(route, accept, config)
        yield from _kept_long_enough(route, config)
    yield from _order(route)
    yield from _headers(route)


def _upstream(route: _Draft, change: RouteUpstream, merged: Upstream) -> Iterator[Mistake]:
    for keys, message in too_long(merged, change.model_fields_set):
        yield route.mistake(f"upstream.{keys}", message)
    if change.tls is not None and merged.url.scheme != "https":
        yield route.mistake("upstream.tls", "tls needs an https URL")


def _retention(route: _Draft) -> Iterator[Mistake]:
    retention = route.part(Retention)
    if retention and "expired_status" not in retention.model_fields_set and _WEBHOOK_KEYS & route.key_headers:
        message = "required for keys of webhooks: 410 makes senders give up for good; write 410, 409 or 204"
        yield route.mistake("retention.expired_status", message)


def _explained(route: _Draft, config: _Draft) -> Iterator[Mistake]:
    fingerprint = route.part(Fingerprint)
    if fingerprint and fingerprint.explain and not config.writes("secrets.fingerprint_key"):
        message = "explain requires secrets.fingerprint_key, so that a stolen table cannot be used to guess members"
        yield route.mistake("fingerprint.explain", message)


def _repeats(route: _Draft) -> Iterator[Mistake]:
    repeats, retention = route.part(Repeats), route.part(Retention)
    if repeats is None:
        return
    if route.part(Inbox):
        message = "an event has an id of its own, and a sender that gets 409 gives up the endpoint; leave this out"
        yield route.mistake("repeats", message)
    if repeats.action == "refuse" and retention and repeats.within > retention.remember:
        remember = duration_text(retention.remember)
        message = f"within must be at most retention.remember ({remember}): what is forgotten cannot be named"
        yield route.mistake("repeats.within", message)


def _recovery(route: _Draft, merged: Upstream) -> Iterator[Mistake]:
    recovery = route.values.get("recovery")
    if recovery == "resend" and merged.key == "none":
        message = "resend needs an upstream that deduplicates on what is forwarded, and upstream.key is none"
        yield route.mistake("recovery", message)
    if not isinstance(recovery, ProbeRecovery):
        return
    probe = recovery.probe
    least = merged.response_timeout + TCP_USER_TIMEOUT_SECONDS
    if probe.settle is not None and probe.settle < least:
        message = f"settle must be at least response_timeout and {duration_text(TCP_USER_TIMEOUT_SECONDS)} for TCP"
        limits = f"{duration_text(probe.settle)} is shorter than {duration_text(least)}"
        yield route.mistake("recovery.probe.settle", f"{message}; {limits}")
    if match := route.part(Match):
        known = {"operation_id", "key", *match.path.names}
        for name in probe_placeholders(probe.path):
            if name not in known:
                message = f"there is no {{{name}}}; known here: {', '.join(sorted(known))}"
                yield route.mistake("recovery.probe.path", message)


def _outcome(route: _Draft, config: _Draft) -> Iterator[Mistake]:
    outcome = route.part(Outcome)
    if outcome and outcome.preset == "payments" and not config.writes("secrets.fingerprint_key"):
        message = "payments requires secrets.fingerprint_key, so that a stolen table cannot be used to guess bodies"
        yield route.mistake("outcome.preset", message)
    for index, rule in enumerate(outcome.when if outcome else ()):
        if route.values.get("recovery") == "resend" and rule.compiled.statuses <= RESEND_IN_PROGRESS:
            message = "with recovery: resend, these are always in doubt: an earlier attempt may still be running"
            yield route.mistake(("outcome", "when", index, "status"), message)


def _response(route: _Draft) -> Iterator[Mistake]:
    """Settings of the response that others make useless."""
    response, fingerprint = route.part(ResponsePolicy), route.part(Fingerprint)
    if response is None:
        return
    for name in ("replay", "version"):
        if name in response.model_fields_set and route.part(Inbox):
            message = "the sender of an event gets an acknowledgement, and never the response of the service"
            yield route.mistake(f"response.{name}", message)
    if not isinstance(response.version, VersionHeader):
        return
    header = response.version.header.lower()
    if header in route.key_headers | route.caller_headers:
        yield route.mistake("response.version.header", "this header names the key or the caller, not a version")
    for index, compared in enumerate(fingerprint.headers if fingerprint else ()):
        if compared.lower() == header:
            message = "response.version names this header: if it is compared, another version is another request (422)"
            yield route.mistake(("fingerprint", "headers", index), message)


def _encrypted(route: _Draft, key: str, config: _Draft) -> Iterator[Mistake]:
    if not config.writes("secrets.encryption"):
        message = f"{key} requires secrets.encryption, because the requests that it keeps hold credentials"
        hint = 'write secrets: {encryption: [{id: NAME, key: "${NAME}"}]}, with a key from: openssl rand -hex 32'
        yield route.mistake(key, message, hint)


def _accept(route: _Draft, accept: Accept, config: _Draft) -> Iterator[Mistake]:
    yield from _encrypted(route, "accept", config)
    unverified = None if route.values.get("authorize") else _why_unverified(route.values.get("scope"))
    if accept.identity == "verified" and unverified is not None:
        keys = "accept.identity" if "identity" in accept.model_fields_set else "accept"
        message = f"strangers could fill the store: {unverified}"
        hint = (
            "verify tokens by {jwt: {...}}, or let a trusted hop name the caller: {header: NAME, from: [10.0.0.0/8]}; "
        )
        hint += "or write identity: "
        yield route.mistake(keys, message, hint + "unverified, where only callers that you trust reach this route")
    yield from _accepted_bytes(route, accept)
    for name in accept.headers:
        if name.lower() in route.key_headers:
            yield route.mistake(("accept", "headers", name), "the service would get another key than the caller's")


def _accepted_bytes(route: _Draft, accept: Accept) -> Iterator[Mistake]:
    body = route.part(Body)
    if body and accept.max_bytes > body.max_bytes and {"max_bytes"} <= accept.model_fields_set & body.model_fields_set:
        limits = f"{size_text(accept.max_bytes)} is more than {size_text(body.max_bytes)}"
        yield route.mistake("accept.max_bytes", f"max_bytes must be at most body.max_bytes; {limits}")


def _order(route: _Draft) -> Iterator[Mistake]:
    """Whatever is not accepted would pass what is."""
    order, accept = route.part(Order), route.part(Accept)
    if order is None:
        return
    if route.values.get("inbox") is None and (accept is None or accept.mode == "prefer"):
        message = "order is for requests that are all accepted: one that is not would pass those that wait"
        yield route.mistake("order", message, "write accept: {mode: always}")
    key = route.values.get("key")
    if key is not None and not key.required:
        message = "order needs a key in every request: one without passes through, and those that wait"
        yield route.mistake("order", message, "write key: {..., required: true}")
    if route.values.get("store_unavailable") == "forward":
        message = "without the store nobody knows the order, so requests cannot be forwarded then"
        yield route.mistake("store_unavailable", message)


def _why_unverified(scope: object) -> str | None:
    """Why this scope names no verified caller; None where it does, or is invalid."""
    match scope:
        case "shared":
            return "a shared scope names no caller"
        case ApiKeyScope():
            return "the service verifies an API key when the request is delivered, not before it is stored"
        case HeaderScope(from_="any"):
            return "with `from: any`, every client can name itself"
        case ComposedScope(compose=parts):
            reasons = [_why_unverified(part) for part in parts]
            return None if None in reasons else reasons[0]
        case _:
            return None


def _kept_long_enough(route: _Draft, config: _Draft) -> Iterator[Mistake]:
    retention, delivery, own = route.part(Retention), config.part(Delivery), route.part(RouteDelivery)
    if retention is None:
        return
    if retention.replay < _ACCEPTED_REPLAY_SECONDS:
        name = "replay" if "replay" in retention.model_fields_set else "remember"
        message = f"accept requires retention.{name} of at least 24h: its callers come back for the response"
        yield route.mistake(f"retention.{name}", f"{message}; {duration_text(getattr(retention, name))} is shorter")
    elif delivery and own:
        yield from _delivered_in_time(route, delivery.under(own), "accept", retention.remember)


def _delivered_in_time(route: _Draft, delivery: Delivery, key: str, remember: float) -> Iterator[Mistake]:
    own = route.part(RouteDelivery)
    within = delivery.deliver_within
    if within > remember:
        keys = "delivery.deliver_within" if own and "deliver_within" in own.model_fields_set else key
        limits = f"{duration_text(within)} is longer than {duration_text(remember)}"
        message = f"delivery.deliver_within must be at most retention.remember; {limits}"
        yield route.mistake(
            keys, message, f"write retention: {{remember: {duration_text(within)}}}, or deliver earlier"
        )


def _inbox(route: _Draft, inbox: Inbox, config: _Draft) -> Iterator[Mistake]:
    yield from _encrypted(route, "inbox", config)
    accept, retention = route.part(Accept), route.part(Retention)
    if accept is not None:
        for name in sorted({"mode", "identity", "withdraw"} & accept.model_fields_set):
            yield route.mistake(f"accept.{name}", "an inbox accepts every event that its sender signed; leave this out")
        yield from _accepted_bytes(route, accept)
    if route.values.get("store_unavailable") == "forward":
        message = "an inbox acknowledges nothing that is not stored, so it cannot forward without the store"
        yield route.mistake("store_unavailable", message)
    if retention is not None:
        yield from _remembered(route, inbox, retention, config)
    grows_old = inbox.has_time and inbox.as_ == "sender" and inbox.sign_again == "never"
    if grows_old and route.values.get("recovery") == "resend" and inbox.tolerance < _RESENT_SECONDS:
        message = "with resend, a service that checks the time would refuse what it may have done before"
        hint = "let the gateway sign again, or accept older signatures here and there: tolerance: 1h"
        yield route.mistake("inbox.sign_again", message, hint)


def _remembered(route: _Draft, inbox: Inbox, retention: Retention, config: _Draft) -> Iterator[Mistake]:
    """How long ids are kept, against how long one can come again."""
    is_written = "remember" in retention.model_fields_set
    remember = retention.remember if is_written else max(REMEMBER_SECONDS, retention.remember)
    horizon = float(inbox.known.horizon_seconds)
    if remember < horizon:
        message = f"remember must be at least {duration_text(horizon)}: the sender may send events again for so long"
        yield route.mistake("retention.remember", f"{message}; {duration_text(remember)} is shorter")
    elif inbox.has_time and remember < 2 * inbox.tolerance:
        message = "remember must be at least twice inbox.tolerance: for so long a captured message passes for a new one"
        yield route.mistake("retention.remember", f"{message}; {duration_text(remember)} is shorter")
    delivery, own = config.part(Delivery), route.part(RouteDelivery)
    if delivery and own:
        yield from _delivered_in_time(route, delivery.under(own), "inbox", remember)


def _headers(route: _Draft) -> Iterator[Mistake]:
    if route.key_headers & route.caller_headers:
        yield route.mistake("scope", "the header that holds the key cannot name the caller")
    fingerprint = route.part(Fingerprint)
    for index, header in enumerate(fingerprint.headers if fingerprint else ()):
        if header.lower() in route.key_headers:
            yield route.mistake(("fingerprint", "headers", index), "the key is always compared, and is not listed here")


def _settle(route: _Draft) -> float | None:
    """As `Route.settle`, for a route that may be invalid elsewhere."""
    recovery = route.values.get("recovery")
    return recovery.probe.settle if isinstance(recovery, ProbeRecovery) else None


# -- remarks -----------------------------------------------------------------------------------------------------------
#
# About what is allowed but questionable. No start is refused for them, unless they say so.

_LOOPBACK = frozenset(("127.0.0.1", "::1", "localhost"))
# Of a session, or what users can change.
_UNSTABLE_CLAIMS = frozenset(("sid", "email", "name", "preferred_username"))
# Those that services do read.
_KEY_HEADERS = frozenset(("idempotency-key", "x-idempotency-key", "idempotency-token", "x-idempotency-token"))
OWN_SEMANTICS = {
    "PUT": "PUT is idempotent by definition; protect it only if a repeat would act again or get another response",
    "DELETE": "DELETE is idempotent by definition; protect it only if a repeat after a success would get 404",
}


@dataclass(frozen=True, slots=True)
class Notice:
    """A remark about the value at `path`. `is_fault`: a start or every handshake would fail."""

    path: str
    message: str
    is_fault: bool = False

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


_WITHOUT_BRACES = "this is taken to the letter: only ${NAME} is replaced, with its braces"
_NAME_WITHOUT_BRACES = re.compile(r"(?:.* )?\$[A-Z_][A-Z0-9_]*\Z")

# What a sink needs that may not be installed: a module, and the extra that brings it.
_MODULES = {NatsSink: ("nats", "nats"), KafkaSink: ("aiokafka", "kafka")}
_EXPORTER = ("opentelemetry.exporter.otlp.proto.http", "otel")


def _names_without_braces(value: object, path: str) -> Iterator[str]:
    """Where a secret looks like the name of a variable."""
    match value:
        case SecretStr() if _NAME_WITHOUT_BRACES.match(value.get_secret_value()):
            yield path
        case BaseModel():
            for name, field in type(value).model_fields.items():
                below = f"{path}.{field.alias or name}" if path else field.alias or name
                yield from _names_without_braces(getattr(value, name), below)
        case dict():
            for name, each in value.items():
                yield from _names_without_braces(each, f"{path}.{name}")
        case tuple() | list():
            for index, each in enumerate(value):
                yield from _names_without_braces(each, f"{path}[{index}]")


def notices(config: Config) -> tuple[Notice, ...]:
    found = [*_of_admin(config.admin), *_of_store(config.store)]
    if config.secrets.unreadable == "accept":
        message = "a key that is missing by mistake does not stop a start: responses under it are lost to repeats"
        found.append(Notice("secrets.unreadable", message))
    if config.delivery.workers == 0 and any(route.is_accepting for route in config.routes):
        message = "what is accepted waits until `idempotency-gateway deliver` runs elsewhere"
        found.append(Notice("delivery.workers", message))
    found += _of_events(config)
    if config.traces is not None:
        found += _of_extra("traces", *_EXPORTER)
    for index, route in enumerate(config.routes):
        found += _of_route(f"routes[{index}]", route, config.trusted_proxies)
        found += _of_probe(f"routes[{index}].recovery.probe", route, config.store)
        found += _of_delivery(f"routes[{index}]", route)
        found += _of_repeats(f"routes[{index}].repeats", route)
        found += _of_mode(f"routes[{index}]", route, config)
    found += [Notice(path, _WITHOUT_BRACES) for path in _names_without_braces(config, "")]
    rules = [(index, route, rule) for index, route in enumerate(config.routes) for rule in route.rules]
    for shadowed in unreachable([rule for _, _, rule in rules]):
        index, route, rule = rules[shadowed.order]
        names = ", ".join(dict.fromkeys(rules[order][1].name for order in shadowed.behind))
        what = route.name if rule.path is route.match.path else rule.path.text
        message = f"{what} never matches: all its requests go to {names} before it"
        found.append(Notice(f"routes[{index}].match", message))
    return tuple(found)


def _of_mode(path: str, route: Route, config: Config) -> Iterator[Notice]:
    """What an operator has to know of a route that is only observed."""
    if config.mode_of(route) == "observe":
        share = config.share_of(route)
        what = f"{share:.4g} of its keys are protected, and the others are" if share else "nothing of it is protected:"
        message = f"{what} only observed. Enforcing starts with no memory: an observed key is a new key"
        yield Notice(f"{path}.mode", message)
    if route.mode_change == "accept":
        message = "a change to observe, or to a smaller share, lets repeats of recorded requests run again"
        yield Notice(f"{path}.mode_change", message)


def _of_repeats(path: str, route: Route) -> Iterator[Notice]:
    repeats = route.repeats
    if repeats is None:
        return
    if repeats.action == "refuse" and route.scope == "shared":
        message = "all callers share one scope: the request of one may be refused as a repeat of another's"
        yield Notice(f"{path}.action", message)
    if repeats.action == "refuse" and route.store_unavailable == "forward":
        message = "while the durable store is down, requests are forwarded without this, too (store_unavailable)"
        yield Notice(f"{path}.action", message)
    if repeats.by == "fingerprint" and route.fingerprint.body == "none":
        message = "fingerprint.body is none: all requests of a caller to one URL are repeats of one another"
        yield Notice(f"{path}.by", message)
    if repeats.by == "fingerprint" and isinstance(route.key, BodyKey | ComposedKey) and _is_key_compared(route):
        message = "the key is a part of the body that is compared, so two keys never have the same content"
        yield Notice(f"{path}.by", message)


def _is_key_compared(route: Route) -> bool:
    """Whether a part of the key is in the part of the body that the fingerprint compares."""
    fingerprint = route.fingerprint
    parts = (route.key,) if isinstance(route.key, BodyKey) else getattr(route.key, "compose", ())
    pointers = {part.body for part in parts if isinstance(part, BodyKey | BodyPart)}
    if fingerprint.body == "none":
        return False
    return bool(pointers & set(fingerprint.only)) if fingerprint.only else bool(pointers - set(fingerprint.ignore))


def _of_admin(admin: Admin) -> Iterator[Notice]:
    if not admin.is_on and "listen" in admin.model_fields_set:
        yield Notice("admin.listen", "nothing listens here without admin.token or admin.tokens")
    if admin.is_on and admin.listen.host not in _LOOPBACK:
        yield Notice("admin.listen", "the admin API speaks plain HTTP: its traffic shows the token")


def _of_events(config: Config) -> Iterator[Notice]:
    if config.egress.proxy is not None:
        yield Notice("egress.proxy", "the proxy has to check the addresses of webhooks: the gateway does not see them")
    for index, sink in enumerate(config.events.sinks):
        path = f"events.sinks[{index}]"
        if (extra := _MODULES.get(type(sink))) is not None:
            yield from _of_extra(path, *extra)
        if isinstance(sink, StdoutSink):
            yield Notice(path, "for trying: what is written to standard output is not acknowledged, and may be lost")
        if isinstance(sink, WebhookSink) and all(secret.until is not None for secret in sink.secrets):
            yield Notice(f"{path}.secrets", "all of them end: events then wait for a new one")


def _of_extra(path: str, module: str, extra: str) -> Iterator[Notice]:
    """That it is not installed here; a gateway elsewhere may have it."""
    try:
        is_missing = find_spec(module) is None
    except ModuleNotFoundError:
        is_missing = True
    if is_missing:
        yield Notice(path, f"its library is missing; install it: pip install 'idempotency-gateway[{extra}]'")


def _of_store(store: Store) -> Iterator[Notice]:
    if store.durability == "external":
        yield Notice(
            "store.durability",
            "external: unless the storage below Postgres keeps every acknowledged commit, a crash of it loses "
            "acknowledged responses, and their keys execute again",
        )
    if store.dialect == "portable":
        yield Notice("store.dialect", "portable was run on PostgreSQL alone: try your engine before you rely on it")
    if isinstance(store.durable, RedisUrl):
        message = (
            "its memory bounds the retention: about 0.9 KB for each remembered key, and 0.3 KB and the body of the "
            "response while that is replayed; when it is full, new keys are refused"
        )
        yield Notice("store.durable", message)
    # Redis cannot show whether another host uses it, unless their SQLite files have the same name.
    if isinstance(store.durable, SqliteUrl) and store.fast is not None:
        yield Notice("store.fast", "SQLite serves one host: no other host may use this Redis for the same service")


def _of_route(path: str, route: Route, trusted: Sequence[Network]) -> Iterator[Notice]:
    if "/:" in route.match.path.text:
        yield Notice(f"{path}.match.path", "':' is taken as it is; a segment that varies is written {name}")
    for method in route.match.methods:
        if method in OWN_SEMANTICS:
            yield Notice(f"{path}.match.methods", OWN_SEMANTICS[method])
    parts = parts_of(route.scope)
    headers = [part for part in parts if isinstance(part, HeaderScope)]
    if any(part.from_ == "any" for part in headers):
        yield Notice(f"{path}.scope", "any client that reaches the gateway can claim to be any caller")
    for part in headers:
        if is_forwarding_header(part.header.encode()) and not _all_within(part.from_, trusted):
            yield Notice(
                f"{path}.scope",
                f"the service does not get {part.header}, which only hops in trusted_proxies may send it",
            )
    if any(part.startswith("/") for part in route.response.redact):
        bytes_max = route.response.max_stored_bytes
        if bytes_max > CANONICAL_BYTES_MAX:
            message = f"bodies over {size_text(CANONICAL_BYTES_MAX)} are not stored: their values cannot be redacted"
            yield Notice(f"{path}.response.max_stored_bytes", message)
    yield from _of_names(path, route)
    yield from _of_authorities(path, route)
    if route.store_unavailable == "forward":
        yield Notice(f"{path}.store_unavailable", "while the durable store is down, requests run unprotected")


def _of_names(path: str, route: Route) -> Iterator[Notice]:
    """Names of headers and claims that may be others than were meant."""
    for name in route.key.header_names if route.key is not None else ():
        if name.lower() not in _KEY_HEADERS and get_close_matches(name.lower(), ("idempotency-key",), cutoff=0.85):
            yield Notice(f"{path}.key", f"{name} is nearly Idempotency-Key; is it misspelt?")
    for issuer in token_issuers(route.scope):
        for claim in issuer.claims:
            if claim in _UNSTABLE_CLAIMS:
                message = f"{claim} may change while the caller stays the same: its retries would be another caller's"
                yield Notice(f"{path}.scope", message)


def _of_authorities(path: str, route: Route) -> Iterator[Notice]:
    for service in route.authorities:
        if service.url.scheme == "http" and service.url.service.host not in _LOOPBACK:
            message = f"{service.url} is asked without TLS: anyone on the way sees credentials and can make decisions"
            yield Notice(path, message)
        if service.cache:
            yield Notice(path, f"for {duration_text(service.cache)} a permission of {service.url} cannot be withdrawn")
    parts = parts_of(route.scope)
    if any(isinstance(part, ClientCertificateScope) and part.client_certificate == "sha256" for part in parts):
        yield Notice(f"{path}.scope", "a renewed certificate is another caller: its retries find no record of before")


def _of_probe(path: str, route: Route, store: Store) -> Iterator[Notice]:
    # A probe's target is rendered when its operation is claimed, and stored with it.
    is_by_key = isinstance(route.recovery, ProbeRecovery) and "key" in probe_placeholders(route.recovery.probe.path)
    if is_by_key and not store.clear_keys:
        yield Notice(f"{path}.path", "the store has keys of this route in clear, in the targets of its probes")


def _of_delivery(path: str, route: Route) -> Iterator[Notice]:
    if route.inbox is not None:
        yield from _of_inbox(path, route.inbox)
    elif route.accept is None:
        for name in {"dead_letter", "delivery"} & route.model_fields_set:
            yield Notice(f"{path}.{name}", "has no effect: this route accepts nothing")
        return
    elif route.accept.identity == "unverified":
        yield Notice(f"{path}.accept.identity", "any client that reaches the gateway can store requests, to the limits")
    if route.outcome.preset == "payments" and route.recovery == "hold":
        message = "every 5xx of a delivery is in doubt, and waits for an operator: let a probe find out what happened"
        yield Notice(f"{path}.recovery", message)


def _of_inbox(path: str, inbox: Inbox) -> Iterator[Notice]:
    is_asymmetric = any(secret.algorithm is Algorithm.ED25519 for secret in inbox.compiled.secrets)
    if inbox.as_ == "sender" and inbox.sign_again != "never" and is_asymmetric:
        message = (
            "a signature of a private key cannot be made again: a service that checks the time refuses late "
            "deliveries. Sign with a key of the gateway's own: as: standard_webhooks, signing_secrets: [...]"
        )
        yield Notice(f"{path}.inbox.sign_again", message)
    if inbox.signing_secrets and all(secret.until is not None for secret in inbox.signing_secrets):
        yield Notice(f"{path}.inbox.signing_secrets", "all of them end: the last one then signs on")


def _all_within(sources: Sequence[Network] | Literal["any"], trusted: Sequence[Network]) -> bool:
    if sources == "any":
        return False
    return all(
        any(source.network_address in network and source.broadcast_address in network for network in trusted)
        for source in sources
    )
