"""Remarks on settings that are allowed but questionable, which `check` prints."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Literal

from pydantic import BaseModel, SecretStr

from gateway.config.address import Network, RedisUrl, SqliteUrl
from gateway.config.events import KafkaSink, NatsSink, StdoutSink, WebhookSink
from gateway.config.inbox import Inbox
from gateway.config.leaf import duration_text, size_text
from gateway.config.models import Admin, Config, Store
from gateway.config.route import BodyKey, BodyPart, ComposedKey, Route
from gateway.config.scope import ClientCertificateScope, HeaderScope, parts_of, token_issuers
from gateway.config.upstream import ProbeRecovery
from gateway.core.identity.body import CANONICAL_BYTES_MAX
from gateway.core.message import is_forwarding_header
from gateway.core.recovery import probe_placeholders
from gateway.core.routing import unreachable
from gateway.core.webhook import Algorithm

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
    """Every remark, those about routes in their order."""
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
