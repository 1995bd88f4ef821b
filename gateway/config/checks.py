"""Mistakes between sections of the file, and remarks on what is allowed but questionable.

Each check of `disagreements` uses the values that are valid by themselves, so that a mistake elsewhere hides none of
its findings. Invariant: a Config is made only of a file in which no check here found a mistake.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import find_spec
from itertools import combinations
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, SecretStr, ValidationError

from gateway.config import delivery, leaf, models
from gateway.config import route as forms
from gateway.config.delivery import TCP_USER_TIMEOUT_SECONDS, ProbeRecovery
from gateway.config.document import Document, Mistake, Path, path_of, path_text
from gateway.config.models import Config
from gateway.config.route import Route
from gateway.config.section import Disagreement, Section, adapter, repeated, too_long
from gateway.core.identity.body import CANONICAL_BYTES_MAX
from gateway.core.message import is_forwarding_header
from gateway.core.outcome import RESEND_IN_PROGRESS
from gateway.core.recovery import probe_placeholders
from gateway.core.routing import PathPattern, Rule, unreachable
from gateway.core.webhook import Algorithm, Forbidden, check_address

_WILDCARDS = frozenset(("0.0.0.0", "::"))  # noqa: S104 - compared, not listened on
# A caller that does not wait may come for the response on the next day.
_ACCEPTED_REPLAY_SECONDS = 24 * 3600.0
# How far the usual schedule of deliveries goes in which doubt is resolved by sending again.
_RESENT_SECONDS = 3600.0
_WEBHOOK_KEYS = frozenset(("webhook-id", "svix-id"))


_Partial = Any
"""A Config or a Route that has None in place of what is invalid, of which their types know nothing."""
_Routes = Sequence[tuple[Path, _Partial]]
"""All routes, and where they are written."""


def disagreements(document: Document, config: Config | None) -> Iterator[Mistake]:
    """Every mistake between two sections; `config` is None where a section is invalid by itself."""
    tree: Any = document.tree
    listed = tree.get("routes") if config is None else config.routes
    routes: _Routes = [
        (("routes", index), each if isinstance(each, Route) else _valid_part(Route, each))
        for index, each in enumerate(listed if isinstance(listed, list | tuple) else ())
    ]
    config = config or _valid_part(Config, tree)
    for check in (_of_listeners, _of_upstreams, _of_store, _of_paths, _of_authorities, _of_sinks):
        for keys, message, *hint in check(document, config, routes):
            yield document.mistake(path_of(keys), message, *hint)
    for at, route in routes:
        for check_route in (_of_reach, _of_mode, _of_attempt, _of_response, _of_content, _of_accepting, _of_inbox):
            for keys, message, *hint in check_route(document, config, at, route):
                yield document.mistake((*at, *path_of(keys)), message, *hint)


def _valid_part(kind: type[Section], given: object) -> _Partial:
    """A section of the values that are valid by themselves; its defaults are among them."""
    written = given if isinstance(given, Mapping) else {}
    values: dict[str, Any] = dict.fromkeys(kind.model_fields)
    for name, field in kind.model_fields.items():
        default = field.get_default(call_default_factory=True, validated_data=values)
        with suppress(ValidationError):
            values[name] = adapter(kind, name).validate_python(written.get(name, default))
    return kind.model_construct(**values)


# -- of the file -------------------------------------------------------------------------------------------------------


def _of_listeners(document: Document, config: _Partial, routes: _Routes) -> Iterator[Disagreement]:
    for (one, address), (other, address_too) in combinations(_listening(config), 2):
        hosts = {_numeric(address.host), _numeric(address_too.host)}
        if address.port == address_too.port != 0 and (len(hosts) == 1 or hosts & _WILDCARDS):
            keys = other if document.holds(path_of(other)) else one
            yield keys, f"{one} and {other} both use port {address.port}"


def _listening(config: _Partial) -> Iterator[tuple[str, leaf.Address]]:
    """What the gateway listens on, and where that is written."""
    if config.listen:
        yield "listen", config.listen.address
    if config.status:
        yield "status.listen", config.status.listen
    if config.admin and config.admin.is_on:
        yield "admin.listen", config.admin.listen


def _numeric(host: str) -> str:
    return "127.0.0.1" if host == "localhost" else host


def _is_own(url: leaf.UpstreamUrl, listen: leaf.Address) -> bool:
    host, own = _numeric(url.host), _numeric(listen.host)
    is_here = host in ("127.0.0.1", "::1") and own in _WILDCARDS
    return url.port == listen.port and (host == own or is_here)


def _of_upstreams(document: Document, config: _Partial, routes: _Routes) -> Iterator[Disagreement]:
    """An upstream that is the gateway itself: each request would return to it until all connections are in use."""
    written = [(at, each.upstream) for at, each in (((), config), *routes) if each.upstream]
    for at, upstream in written:
        keys = (*at, "upstream", "url")
        if config.listen and document.holds(keys) and _is_own(upstream.url, config.listen.address):
            message = f"the gateway itself listens on {config.listen.address} and would forward to itself"
            yield keys, message, "write where the service listens, or let the gateway listen elsewhere"
    urls = [upstream.url for _, upstream in written if upstream.url]
    if config.upstream and config.upstream.tls and all(url.scheme != "https" for url in urls):
        yield "upstream.tls", "tls needs an https URL"


def _of_store(document: Document, config: _Partial, routes: _Routes) -> Iterator[Disagreement]:
    """What a store that is shared needs, and what a durable Redis does not keep, because it is over several records or
    must not be lost with its memory."""
    store, events = config.store, config.events
    if store is None:
        return
    is_shared = isinstance(store.durable, leaf.PostgresUrl | leaf.RedisUrl) or store.fast is not None
    if is_shared and not document.holds(("service",)):
        yield "service", "required, but missing", "it distinguishes services that share a store"
    if not isinstance(store.durable, leaf.RedisUrl):
        return
    hint = "use a postgresql:// or sqlite:/// store"
    if events and events.sinks:
        message = "a durable Redis changes one record at a time, so an event could get lost between two"
        yield "events.sinks", message, hint
    for at, route in routes:
        for name in ("accept", "inbox"):
            if getattr(route, name):
                message = f"{name} needs lists of what is to be delivered, and a durable Redis keeps single records"
                yield (*at, name), message, hint
        if route.repeats and route.repeats.action == "refuse":
            message = "a repeat is found by the records of other keys, and a durable Redis changes one at a time"
            yield (*at, "repeats", "action"), message, f"{hint}, or write action: count"
        if route.outcome and route.outcome.preset == "payments":
            message = "payments needs a store whose disk is the memory; a durable Redis keeps what fits into its own"
            yield (*at, "outcome", "preset"), message, hint
        if config.mode_of(route) == "observe":
            message = "what is observed is compared with other records, and a durable Redis keeps single ones"
            yield (*at, _mode_key(document, at)), message, hint


def _mode_key(document: Document, at: Path) -> str:
    """Where it is written that a route is observed."""
    return "mode" if document.holds((*at, "mode")) else "name"


def _of_paths(document: Document, config: _Partial, routes: _Routes) -> Iterator[Disagreement]:
    """Names and paths that two routes have, or a route and the gateway itself."""
    named = [(at, route.name) for at, route in routes if route.name is not None]
    for index in repeated(name for _, name in named):
        yield (*named[index][0], "name"), "another route has this name already"
    operations = config.operations
    if operations and any(route.accept and not route.inbox for _, route in routes):
        reserved = PathPattern.parse(f"{operations.path}/{{rest:.*}}")
        for at, route in routes:
            if route.match and any(reserved.common(path) for path in route.match.paths):
                message = f"this matches {operations.path}, where callers ask what became of an accepted request"
                yield (*at, "match", "path"), message, "write another operations: {path: ...}, or narrow the route"
    # Paths that one service may take for one, and that are written as several.
    known: dict[PathPattern, tuple[_Partial, Rule]] = {}
    for at, route in routes:
        for rule in _rules(route):
            other, similar = known.setdefault(rule.spelling().path, (route, rule))
            is_same = route is other or route.operation == other.operation
            if not is_same and similar.spelling().common(rule.spelling()) and not similar.path.common(rule.path):
                what = f"{similar.path.text} of {other.name or 'another route'}"
                message = f"a service may read this as {what}: one key would run twice"
                hint = "list it under match.also there, or write the same operation for both"
                yield (*at, "match", "path"), message, hint
    for index, each in enumerate(config.unprotected or ()):
        for _, route in routes:
            if any(each.rule.common(rule) is not None for rule in _rules(route)):
                message = f"{route.name or 'another route'} matches this, and what a route matches is protected"
                yield ("unprotected", index), message, "name another path, or narrow the route"


def _rules(route: _Partial) -> tuple[Rule, ...]:
    """The rules of a route, without further methods."""
    return route.match.rules() if route.match else ()


def _of_authorities(document: Document, config: _Partial, routes: _Routes) -> Iterator[Disagreement]:
    """Authorising services that are the gateway itself, and headers of theirs that cannot be theirs alone."""
    read = {name: route for _, route in routes for name in _key_headers(route) | _caller_headers(route)}
    for at, route in routes:
        handed_on: dict[str, str] = {}
        for keys, service in _asked(route):
            for _, address in _listening(config):
                if _is_own(service.url.service, address):
                    message = f"the gateway itself listens on {address} and would ask itself"
                    yield (*at, *keys, "url"), message, "write where the authorising service listens"
            copied = {name.lower(): name for name in service.copy_}
            for name in copied.keys() & handed_on:
                message = f"{copied[name]} is copied from another service too: which of the two holds is not said"
                yield (*at, *keys, "copy"), message, "let one of them hand it on"
            handed_on |= copied
            for name in service.names:
                if (reader := read.get(name.lower())) is not None:
                    reads = f"holds the key or names the caller on {reader.name or 'another route'}"
                    message = f"{name} {reads}, and is dropped everywhere"
                    yield (*at, *keys), message, "let the authorising service use another header"


def _asked(route: _Partial) -> Iterator[tuple[Path, forms.ForwardAuth]]:
    """The authorising services of a route, and where they are written."""
    is_composed = isinstance(route.scope, forms.ComposedScope)
    for index, part in enumerate(forms.parts_of(route.scope)):
        if isinstance(part, forms.ForwardAuthScope):
            yield ("scope", *(("compose", index) if is_composed else ()), "forward_auth"), part.forward_auth
    if route.authorize:
        yield ("authorize", "forward_auth"), route.authorize.forward_auth


def _key_headers(route: _Partial) -> set[str]:
    """The headers of a route, in lower case, that its key is taken from."""
    return {name.lower() for name in forms.key_header_names(route.key)}


def _caller_headers(route: _Partial) -> set[str]:
    """Those that its scope is taken from."""
    return {name.lower() for name in forms.scope_header_names(route.scope)}


def _of_sinks(document: Document, config: _Partial, routes: _Routes) -> Iterator[Disagreement]:
    names = {route.name for _, route in routes}
    lossy = _redis_databases(config.store.fast) if config.store and config.store.fast else set()
    for index, sink in enumerate(config.events.sinks if config.events else ()):
        at: Path = ("events", "sinks", index)
        for number, name in enumerate(sink.routes or ()):
            # One that is invalid elsewhere may be meant.
            if name not in names and None not in names:
                yield (*at, "routes", number), "there is no route of this name"
        if isinstance(sink, models.WebhookSink) and config.egress:
            message = _why_not_reached(sink.url.get_secret_value(), config.egress)
            if message is not None:
                yield (*at, "url"), message
        if isinstance(sink, models.RedisStreamSink) and not sink.shares_fast and _redis_databases(sink.url) & lossy:
            message = "this is the database of store.fast, which may lose anything at any moment"
            yield (*at, "url"), message, "write another database, such as /1, or another Redis; or shares_fast: true"


def _why_not_reached(url: str, egress: models.Egress) -> str | None:
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


def _redis_databases(url: leaf.RedisUrl) -> set[tuple[str, str]]:
    """Each place that the URL names, with the number of the database. Where sentinels lead is not known here."""
    parts = urlsplit(url.url.get_secret_value())
    hosts = parts.netloc.rpartition("@")[2].lower().split(",")
    return {(host.removesuffix(":6379"), parts.path.strip("/") or "0") for host in hosts}


# -- of a route --------------------------------------------------------------------------------------------------------


def _of_reach(document: Document, config: _Partial, at: Path, route: _Partial) -> Iterator[Disagreement]:
    """Callers that cannot be told here or in another region, and promises over keys that have different homes."""
    needs_certificates = any(isinstance(part, forms.ClientCertificateScope) for part in forms.parts_of(route.scope))
    tls = config.listen and config.listen.tls
    if needs_certificates and config.listen and (tls is None or tls.client_ca is None):
        message = "callers are asked for certificates only where listen.tls.client_ca says whose are accepted"
        yield "scope", message, "write listen: {address: ..., tls: {cert: ..., key: ..., client_ca: ...}}"
    if not config.regions:
        return
    hint = "write no regions"
    if needs_certificates:
        message = "a certificate is verified where its caller connects, and does not reach another region"
        yield "scope", message, f"take the scope from a header or a token, or {hint}"
    if route.order:
        message = "one store keeps an order, and the keys of a lane are at home in several regions"
        yield "order", message, f"leave this out, or {hint}"
    if route.repeats and route.repeats.action == "refuse":
        message = "one store finds a repeat, and another key may be at home in another region"
        yield "repeats.action", message, f"write action: count, or {hint}"


def _of_mode(document: Document, config: _Partial, at: Path, route: _Partial) -> Iterator[Disagreement]:
    """Routes that cannot be observed, and shares that cannot be decided by the head of a request."""
    if config.mode_of(route) != "observe":
        if route.enforce_share:
            yield "enforce_share", "only an observed route has a share that is enforced", "mode: observe"
        return
    for name in ("accept", "inbox"):
        if getattr(route, name):
            message = f"a route with {name} answers by itself, so there is nothing that could only be observed"
            yield _mode_key(document, at), message, f"write mode: enforce, or leave {name} out while it is observed"
    parts = route.key.compose if isinstance(route.key, forms.ComposedKey) else (route.key,)
    if route.enforce_share and any(isinstance(part, forms.BodyKey | forms.BodyPart) for part in parts):
        message = "the key is in the body, and only one in the headers decides at once whether a request is enforced"
        yield "enforce_share", message


def _of_attempt(document: Document, config: _Partial, at: Path, route: _Partial) -> Iterator[Disagreement]:
    """The upstream of a route, and how its operations in doubt are recovered."""
    recovery, change = route.recovery, route.upstream
    if not (config.upstream and change):
        return
    merged = config.upstream_for(route)
    for keys, message in too_long(merged, change.model_fields_set):
        yield f"upstream.{keys}", message
    if change.tls is not None and merged.url.scheme != "https":
        yield "upstream.tls", "tls needs an https URL"
    if recovery == "resend" and merged.key == "none":
        yield "recovery", "resend needs an upstream that deduplicates on what is forwarded, and upstream.key is none"
    if not isinstance(recovery, ProbeRecovery):
        return
    probe = recovery.probe
    if probe.settle is not None and probe.settle < merged.settle:
        message = f"settle must be at least response_timeout and {leaf.duration_text(TCP_USER_TIMEOUT_SECONDS)} for TCP"
        limits = f"{leaf.duration_text(probe.settle)} is shorter than {leaf.duration_text(merged.settle)}"
        yield "recovery.probe.settle", f"{message}; {limits}"
    known = {"operation_id", "key", *route.match.path.names} if route.match else set()
    for name in probe_placeholders(probe.path):
        if known and name not in known:
            yield "recovery.probe.path", f"there is no {{{name}}}; known here: {', '.join(sorted(known))}"


def _of_content(document: Document, config: _Partial, at: Path, route: _Partial) -> Iterator[Disagreement]:
    """What requests are compared by, what responses mean and what is kept of them."""
    retention, outcome, fingerprint, repeats = route.retention, route.outcome, route.fingerprint, route.repeats
    key_headers, is_keyed = _key_headers(route), document.holds(("secrets", "fingerprint_key"))
    if retention and "expired_status" not in retention.model_fields_set and _WEBHOOK_KEYS & key_headers:
        message = "required for keys of webhooks: 410 makes senders give up for good; write 410, 409 or 204"
        yield "retention.expired_status", message
    if outcome and outcome.preset == "payments" and not is_keyed:
        message = "payments requires secrets.fingerprint_key, so that a stolen table cannot be used to guess bodies"
        yield "outcome.preset", message
    for index, rule in enumerate(outcome.when if outcome else ()):
        if route.recovery == "resend" and rule.compiled.statuses <= RESEND_IN_PROGRESS:
            message = "with recovery: resend, these are always in doubt: an earlier attempt may still be running"
            yield ("outcome", "when", index, "status"), message
    if fingerprint and fingerprint.explain and not is_keyed:
        message = "explain requires secrets.fingerprint_key, so that a stolen table cannot be used to guess members"
        yield "fingerprint.explain", message
    if repeats and route.inbox:
        message = "an event has an id of its own, and a sender that gets 409 gives up the endpoint; leave this out"
        yield "repeats", message
    if repeats and repeats.action == "refuse" and retention and repeats.within > retention.remember:
        remember = leaf.duration_text(retention.remember)
        message = f"within must be at most retention.remember ({remember}): what is forgotten cannot be named"
        yield "repeats.within", message
    if key_headers & _caller_headers(route):
        yield "scope", "the header that holds the key cannot name the caller"
    for index, header in enumerate(fingerprint.headers if fingerprint else ()):
        if header.lower() in key_headers:
            yield ("fingerprint", "headers", index), "the key is always compared, and is not listed here"


def _of_response(document: Document, config: _Partial, at: Path, route: _Partial) -> Iterator[Disagreement]:
    """Settings of the response that others make useless."""
    response, fingerprint = route.response, route.fingerprint
    for name in ("replay", "version"):
        if response and name in response.model_fields_set and route.inbox:
            message = "the sender of an event gets an acknowledgement, and never the response of the service"
            yield f"response.{name}", message
    if response is None or not isinstance(response.version, forms.VersionHeader):
        return
    header = response.version.header.lower()
    if header in _key_headers(route) | _caller_headers(route):
        yield "response.version.header", "this header names the key or the caller, not a version"
    for index, compared in enumerate(fingerprint.headers if fingerprint else ()):
        if compared.lower() == header:
            message = "response.version names this header: if it is compared, another version is another request (422)"
            yield ("fingerprint", "headers", index), message


def _of_accepting(document: Document, config: _Partial, at: Path, route: _Partial) -> Iterator[Disagreement]:
    """What is accepted: by whom, how much, in which order, and whether it is kept for long enough."""
    accept, retention, order = route.accept, route.retention, route.order
    name = "inbox" if route.inbox else "accept"
    if (accept or route.inbox) and not document.holds(("secrets", "encryption")):
        message = f"{name} requires secrets.encryption, because the requests that it keeps hold credentials"
        hint = 'write secrets: {encryption: [{id: NAME, key: "${NAME}"}]}, with a key from: openssl rand -hex 32'
        yield name, message, hint
    are_written = accept and route.body and {"max_bytes"} <= accept.model_fields_set & route.body.model_fields_set
    if are_written and accept.max_bytes > route.body.max_bytes:
        limits = f"{leaf.size_text(accept.max_bytes)} is more than {leaf.size_text(route.body.max_bytes)}"
        yield "accept.max_bytes", f"max_bytes must be at most body.max_bytes; {limits}"
    if accept and not route.inbox:
        yield from _of_callers(route, accept)
        if retention and retention.replay < _ACCEPTED_REPLAY_SECONDS:
            key = "replay" if "replay" in retention.model_fields_set else "remember"
            message = f"accept requires retention.{key} of at least 24h: its callers come back for the response"
            yield f"retention.{key}", f"{message}; {leaf.duration_text(getattr(retention, key))} is shorter"
        elif retention:
            yield from _delivered_in_time(route, config, retention.remember)
    if order is None:
        return
    # Whatever is not accepted would pass what is.
    if not route.inbox and (accept is None or accept.mode == "prefer"):
        message = "order is for requests that are all accepted: one that is not would pass those that wait"
        yield "order", message, "write accept: {mode: always}"
    if route.key and not route.key.required:
        message = "order needs a key in every request: one without passes through, and those that wait"
        yield "order", message, "write key: {..., required: true}"
    if route.store_unavailable == "forward":
        yield "store_unavailable", "without the store nobody knows the order, so requests cannot be forwarded then"


def _of_callers(route: _Partial, accept: delivery.Accept) -> Iterator[Disagreement]:
    unverified = None if route.authorize else _why_unverified(route.scope)
    if accept.identity == "verified" and unverified is not None:
        keys = "accept.identity" if "identity" in accept.model_fields_set else "accept"
        hint = (
            "verify tokens by {jwt: {...}}, or let a trusted hop name the caller: {header: NAME, from: [10.0.0.0/8]}; "
            "or write identity: unverified, where only callers that you trust reach this route"
        )
        yield keys, f"strangers could fill the store: {unverified}", hint
    for name in accept.headers:
        if name.lower() in _key_headers(route):
            yield ("accept", "headers", name), "the service would get another key than the caller's"


def _why_unverified(given: object) -> str | None:
    """Why this scope names no verified caller; None where it does, or is invalid."""
    match given:
        case "shared":
            return "a shared scope names no caller"
        case forms.ApiKeyScope():
            return "the service verifies an API key when the request is delivered, not before it is stored"
        case forms.HeaderScope(from_="any"):
            return "with `from: any`, every client can name itself"
        case forms.ComposedScope(compose=parts):
            reasons = [_why_unverified(part) for part in parts]
            return None if None in reasons else reasons[0]
        case _:
            return None


def _delivered_in_time(route: _Partial, config: _Partial, remember: float) -> Iterator[Disagreement]:
    if not (config.delivery and route.delivery):
        return
    within = config.delivery_for(route).deliver_within
    if within > remember:
        is_own, name = "deliver_within" in route.delivery.model_fields_set, "inbox" if route.inbox else "accept"
        limits = f"{leaf.duration_text(within)} is longer than {leaf.duration_text(remember)}"
        message = f"delivery.deliver_within must be at most retention.remember; {limits}"
        hint = f"write retention: {{remember: {leaf.duration_text(within)}}}, or deliver earlier"
        yield "delivery.deliver_within" if is_own else name, message, hint


def _of_inbox(document: Document, config: _Partial, at: Path, route: _Partial) -> Iterator[Disagreement]:
    """What an inbox does not let its route say, and how long ids are kept, against how long one can come again."""
    inbox, retention = route.inbox, route.retention
    if inbox is None:
        return
    for name in ("identity", "mode", "withdraw"):
        if route.accept and name in route.accept.model_fields_set:
            yield f"accept.{name}", "an inbox accepts every event that its sender signed; leave this out"
    if route.store_unavailable == "forward":
        message = "an inbox acknowledges nothing that is not stored, so it cannot forward without the store"
        yield "store_unavailable", message
    if retention:
        is_written = "remember" in retention.model_fields_set
        remember = retention.remember if is_written else max(delivery.REMEMBER_SECONDS, retention.remember)
        horizon, message = float(inbox.known.horizon_seconds), ""
        if remember < horizon:
            message = f"at least {leaf.duration_text(horizon)}: the sender may send events again for so long"
        elif inbox.has_time and remember < 2 * inbox.tolerance:
            message = "at least twice inbox.tolerance: for so long a captured message passes for a new one"
        if message:
            limits = f"{leaf.duration_text(remember)} is shorter"
            yield "retention.remember", f"remember must be {message}; {limits}"
        yield from _delivered_in_time(route, config, remember)
    grows_old = inbox.has_time and inbox.as_ == "sender" and inbox.sign_again == "never"
    if grows_old and route.recovery == "resend" and inbox.tolerance < _RESENT_SECONDS:
        message = "with resend, a service that checks the time would refuse what it may have done before"
        hint = "let the gateway sign again, or accept older signatures here and there: tolerance: 1h"
        yield "inbox.sign_again", message, hint


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
_WITHOUT_BRACES = "this is taken to the letter: only ${NAME} is replaced, with its braces"
_NAME_WITHOUT_BRACES = re.compile(r"(?:.* )?\$[A-Z_][A-Z0-9_]*\Z")
# What a sink needs that may not be installed: a module, and the extra that brings it.
_MODULES = {models.NatsSink: ("nats", "nats"), models.KafkaSink: ("aiokafka", "kafka")}
_EXPORTER = ("opentelemetry.exporter.otlp.proto.http", "otel")


@dataclass(frozen=True, slots=True)
class Notice:
    """A remark about the value at `path`. `is_fault`: a start or every handshake would fail."""

    path: str
    message: str
    is_fault: bool = False

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


_Remark = tuple[str | Path, str]
"""What a remark is about, and what it says."""


def notices(config: Config) -> tuple[Notice, ...]:
    found = [Notice(path_text(path_of(keys)), message) for keys, message in (*_on_file(config), *_on_events(config))]
    for index, route in enumerate(config.routes):
        for remarks in (_on_route, _on_caller, _on_store, _on_delivery, _on_repeats, _on_mode):
            for keys, message in remarks(route, config):
                found.append(Notice(path_text(("routes", index, *path_of(keys))), message))
    found += [Notice(path, _WITHOUT_BRACES) for path in _names_without_braces(config, "")]
    rules = [(index, route, rule) for index, route in enumerate(config.routes) for rule in route.rules]
    for place, behind in unreachable([rule for _, _, rule in rules]).items():
        index, route, rule = rules[place]
        names = ", ".join(dict.fromkeys(rules[order][1].name for order in behind))
        what = route.name if rule.path is route.match.path else rule.path.text
        found.append(
            Notice(f"routes[{index}].match", f"{what} never matches: all its requests go to {names} before it")
        )
    return tuple(found)


def _names_without_braces(value: object, path: str) -> Iterator[str]:
    """Where a secret looks like the name of a variable."""
    below: list[tuple[object, str]] = []
    match value:
        case SecretStr() if _NAME_WITHOUT_BRACES.match(value.get_secret_value()):
            yield path
        case BaseModel():
            fields = type(value).model_fields.items()
            below = [(getattr(value, name), f"{path}.{field.alias or name}".lstrip(".")) for name, field in fields]
        case dict():
            below = [(each, f"{path}.{name}") for name, each in value.items()]
        case tuple() | list():
            below = [(each, f"{path}[{index}]") for index, each in enumerate(value)]
    for each, place in below:
        yield from _names_without_braces(each, place)


def _on_file(config: Config) -> Iterator[_Remark]:
    admin, store = config.admin, config.store
    if not admin.is_on and "listen" in admin.model_fields_set:
        yield "admin.listen", "nothing listens here without admin.token or admin.tokens"
    if admin.is_on and admin.listen.host not in _LOOPBACK:
        yield "admin.listen", "the admin API speaks plain HTTP: its traffic shows the token"
    if store.durability == "external":
        message = (
            "external: unless the storage below Postgres keeps every acknowledged commit, a crash of it loses "
            "acknowledged responses, and their keys execute again"
        )
        yield "store.durability", message
    if store.dialect == "portable":
        yield "store.dialect", "portable was run on PostgreSQL alone: try your engine before you rely on it"
    if isinstance(store.durable, leaf.RedisUrl):
        message = (
            "its memory bounds the retention: about 0.9 KB for each remembered key, and 0.3 KB and the body of the "
            "response while that is replayed; when it is full, new keys are refused"
        )
        yield "store.durable", message
    # Redis cannot show whether another host uses it, unless their SQLite files have the same name.
    if isinstance(store.durable, leaf.SqliteUrl) and store.fast is not None:
        yield "store.fast", "SQLite serves one host: no other host may use this Redis for the same service"
    if config.secrets.unreadable == "accept":
        message = "a key that is missing by mistake does not stop a start: responses under it are lost to repeats"
        yield "secrets.unreadable", message
    if config.delivery.workers == 0 and any(route.is_accepting for route in config.routes):
        yield "delivery.workers", "what is accepted waits until `idempotency-gateway deliver` runs elsewhere"


def _on_events(config: Config) -> Iterator[_Remark]:
    if config.egress.proxy is not None:
        yield "egress.proxy", "the proxy has to check the addresses of webhooks: the gateway does not see them"
    for index, sink in enumerate(config.events.sinks):
        at: Path = ("events", "sinks", index)
        if (extra := _MODULES.get(type(sink))) is not None:
            yield from _on_extra(at, *extra)
        if isinstance(sink, models.StdoutSink):
            yield at, "for trying: what is written to standard output is not acknowledged, and may be lost"
        if isinstance(sink, models.WebhookSink) and all(secret.until is not None for secret in sink.secrets):
            yield (*at, "secrets"), "all of them end: events then wait for a new one"
    if config.traces is not None:
        yield from _on_extra("traces", *_EXPORTER)


def _on_extra(keys: str | Path, module: str, extra: str) -> Iterator[_Remark]:
    """That it is not installed here; a gateway elsewhere may have it."""
    try:
        is_missing = find_spec(module) is None
    except ModuleNotFoundError:
        is_missing = True
    if is_missing:
        yield keys, f"its library is missing; install it: pip install 'idempotency-gateway[{extra}]'"


def _on_route(route: Route, config: Config) -> Iterator[_Remark]:
    if "/:" in route.match.path.text:
        yield "match.path", "':' is taken as it is; a segment that varies is written {name}"
    for method in route.match.methods:
        if method in OWN_SEMANTICS:
            yield "match.methods", OWN_SEMANTICS[method]
    headers = [part for part in forms.parts_of(route.scope) if isinstance(part, forms.HeaderScope)]
    if any(part.from_ == "any" for part in headers):
        yield "scope", "any client that reaches the gateway can claim to be any caller"
    for part in headers:
        if is_forwarding_header(part.header.encode()) and not _all_within(part.from_, config.trusted_proxies):
            yield "scope", f"the service does not get {part.header}, which only hops in trusted_proxies may send it"
    redacts = any(part.startswith("/") for part in route.response.redact)
    if redacts and route.response.max_stored_bytes > CANONICAL_BYTES_MAX:
        message = f"bodies over {leaf.size_text(CANONICAL_BYTES_MAX)} are not stored: their values cannot be redacted"
        yield "response.max_stored_bytes", message
    for name in forms.key_header_names(route.key):
        if name.lower() not in _KEY_HEADERS and get_close_matches(name.lower(), ("idempotency-key",), cutoff=0.85):
            yield "key", f"{name} is nearly Idempotency-Key; is it misspelt?"


def _on_caller(route: Route, config: Config) -> Iterator[_Remark]:
    for claim in (claim for issuer in forms.token_issuers(route.scope) for claim in issuer.claims):
        if claim in _UNSTABLE_CLAIMS:
            yield "scope", f"{claim} may change while the caller stays the same: its retries would be another caller's"
    for service in route.authorities:
        if service.url.scheme == "http" and service.url.service.host not in _LOOPBACK:
            yield (), f"{service.url} is asked without TLS: anyone on the way sees credentials and can make decisions"
        if service.cache:
            yield (), f"for {leaf.duration_text(service.cache)} a permission of {service.url} cannot be withdrawn"
    for part in forms.parts_of(route.scope):
        if isinstance(part, forms.ClientCertificateScope) and part.client_certificate == "sha256":
            yield "scope", "a renewed certificate is another caller: its retries find no record of before"


def _on_store(route: Route, config: Config) -> Iterator[_Remark]:
    if route.store_unavailable == "forward":
        yield "store_unavailable", "while the durable store is down, requests run unprotected"
    # A probe's target is rendered when its operation is claimed, and stored with it.
    is_by_key = isinstance(route.recovery, ProbeRecovery) and "key" in probe_placeholders(route.recovery.probe.path)
    if is_by_key and not config.store.clear_keys:
        yield "recovery.probe.path", "the store has keys of this route in clear, in the targets of its probes"


def _all_within(sources: Sequence[leaf.Network] | Literal["any"], trusted: Sequence[leaf.Network]) -> bool:
    if sources == "any":
        return False
    return all(
        any(source.network_address in network and source.broadcast_address in network for network in trusted)
        for source in sources
    )


def _on_delivery(route: Route, config: Config) -> Iterator[_Remark]:
    inbox, accept = route.inbox, route.accept
    if not route.is_accepting:
        for name in {"dead_letter", "delivery"} & route.model_fields_set:
            yield name, "has no effect: this route accepts nothing"
        return
    if inbox is not None:
        is_asymmetric = any(secret.algorithm is Algorithm.ED25519 for secret in inbox.compiled.secrets)
        if inbox.as_ == "sender" and inbox.sign_again != "never" and is_asymmetric:
            message = (
                "a signature of a private key cannot be made again: a service that checks the time refuses late "
                "deliveries. Sign with a key of the gateway's own: as: standard_webhooks, signing_secrets: [...]"
            )
            yield "inbox.sign_again", message
        if inbox.signing_secrets and all(secret.until is not None for secret in inbox.signing_secrets):
            yield "inbox.signing_secrets", "all of them end: the last one then signs on"
    elif accept is not None and accept.identity == "unverified":
        yield "accept.identity", "any client that reaches the gateway can store requests, to the limits"
    if route.outcome.preset == "payments" and route.recovery == "hold":
        message = "every 5xx of a delivery is in doubt, and waits for an operator: let a probe find out what happened"
        yield "recovery", message


def _on_repeats(route: Route, config: Config) -> Iterator[_Remark]:
    repeats, fingerprint = route.repeats, route.fingerprint
    if repeats is None:
        return
    if repeats.action == "refuse" and route.scope == "shared":
        message = "all callers share one scope: the request of one may be refused as a repeat of another's"
        yield "repeats.action", message
    if repeats.action == "refuse" and route.store_unavailable == "forward":
        message = "while the durable store is down, requests are forwarded without this, too (store_unavailable)"
        yield "repeats.action", message
    if repeats.by != "fingerprint":
        return
    key_parts = route.key.compose if isinstance(route.key, forms.ComposedKey) else (route.key,)
    pointers = {part.body for part in key_parts if isinstance(part, forms.BodyKey | forms.BodyPart)}
    if fingerprint.body == "none":
        yield "repeats.by", "fingerprint.body is none: all requests of a caller to one URL are repeats of one another"
    elif pointers & set(fingerprint.only) if fingerprint.only else pointers - set(fingerprint.ignore):
        yield "repeats.by", "the key is a part of the body that is compared, so two keys never have the same content"


def _on_mode(route: Route, config: Config) -> Iterator[_Remark]:
    """What an operator has to know of a route that is only observed."""
    if config.mode_of(route) == "observe":
        share = config.share_of(route)
        what = f"{share:.4g} of its keys are protected, and the others are" if share else "nothing of it is protected:"
        yield "mode", f"{what} only observed. Enforcing starts with no memory: an observed key is a new key"
    if route.mode_change == "accept":
        yield "mode_change", "a change to observe, or to a smaller share, lets repeats of recorded requests run again"
