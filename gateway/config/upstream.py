"""The service behind the gateway in the file: the global settings, a route's overrides, and probes.

Recovery is here, because the service alone knows the outcome of operations in doubt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, SecretStr

from gateway.config.address import AbsolutePath, HostName, ServiceUrl, UpstreamUrl
from gateway.config.leaf import JSON_POINTER, PROBE_FOLLOW, Count, Duration, HeaderName, ProbePath, StatusSet, wrong
from gateway.config.section import DIVIDED, Disagreement, Forms, Section, follow, written
from gateway.core import outcome as outcomes
from gateway.core import recovery
from gateway.core.identity.body import parse_pointer
from gateway.core.message import Headers
from gateway.core.operation import microseconds
from gateway.core.routing import PathPattern

# How long sent bytes may stay unacknowledged. After that, no byte of a request is still on its way.
TCP_USER_TIMEOUT_SECONDS = 30.0


class UpstreamTls(Section):
    """TLS to the service. Used where the URL is https; all of it may be left out."""

    ca: Annotated[Path, AbsolutePath()] | None = None
    """The trusted certificates; the system's if left out."""
    cert: Annotated[Path, AbsolutePath()] | None = None
    """The gateway's own certificate, if the service asks for one."""
    key: Annotated[Path, AbsolutePath()] | None = None
    """The private key of that certificate."""
    server_name: Annotated[str, HostName()] | None = None
    """The name that the service's certificate must hold, if it is not the host of the URL."""

    def disagreements(self) -> Iterator[Disagreement]:
        if (self.cert is None) != (self.key is None):
            yield (), "cert and key must be given together"


class _UpstreamSettings(Section):
    ORDERED = (("answer_within", "response_timeout"),)

    host: Annotated[str, HostName(may_have_port=True)] = "preserve"
    """The Host that the service receives: `preserve` the caller's, `upstream` for the host of the URL, or a name."""
    connect_timeout: Annotated[float, Duration("1ms", "5m")] = written("2s")
    """How long connecting may take."""
    answer_within: Annotated[float, Duration("1ms", "1h")] = written("30s")
    """How long a caller waits for the service. At most response_timeout."""
    response_timeout: Annotated[float, Duration("1ms", "24h")] = written("10m")
    """How long an attempt may take before it is aborted and in doubt."""
    keepalive: Annotated[float, Duration("0s", "10m")] = written("2s")
    """How long a connection may be idle and still be used. A shorter time that the service announces counts."""
    max_connections: Annotated[int, Count(1, 1_000_000), DIVIDED] = 1024
    """How many connections unprotected requests may have at once, streams and WebSockets included; operations in flight
    have their own in addition. Divided evenly among the workers."""
    key: Literal["original", "operation_id", "none"] = "original"
    """The key that the service receives: the caller's, one derived from the operation, or none."""
    tls: UpstreamTls | None = None
    """TLS to the service."""


class Upstream(_UpstreamSettings):
    """The service behind the gateway."""

    url: Annotated[UpstreamUrl, ServiceUrl()]
    """Where the service is, such as http://127.0.0.1:9000. Targets are forwarded as they came, so it has no path."""

    @property
    def own_host(self) -> bytes | None:
        """The Host that the service receives in place of the caller's; None preserves that."""
        if self.host == "preserve":
            return None
        return (self.url.authority if self.host == "upstream" else self.host).encode()

    @property
    def default_host(self) -> bytes:
        """The Host that the service receives if the caller sends none."""
        return self.own_host or self.url.authority.encode()

    @property
    def settle(self) -> float:
        """How long after the end of a lease a request of its attempt may still arrive, in seconds."""
        return self.response_timeout + TCP_USER_TIMEOUT_SECONDS


class RouteUpstream(_UpstreamSettings):
    """A route's overrides of the upstream. Only written keys count; `Config.upstream_for` merges both."""

    url: Annotated[UpstreamUrl, ServiceUrl()] | None = None
    """Where the service of this route is."""

    def over(self, upstream: Upstream, settle: float | None = None) -> Upstream:
        """The upstream, overridden by the keys that are written here; `tls` counts as one key. `settle` is that of the
        route's probe, in seconds. No attempt may outlast it, so it bounds the default of `response_timeout`."""
        merged = upstream.model_copy(update={name: getattr(self, name) for name in self.model_fields_set})
        follow(merged, {} if settle is None else {"response_timeout": settle - TCP_USER_TIMEOUT_SECONDS})
        return merged


# -- recovery ----------------------------------------------------------------------------------------------------------

_PROBE_REFUSED = (("host", "a probe has the Host of the request"), ("content-", "a probe has no body"))
_Value = Annotated[str, Field(min_length=1, max_length=256)]


def _header_value(value: object) -> object:
    # A line break ends the header, so it could never be sent; an empty variable leaves white space at an end.
    if isinstance(value, str) and (not value.isprintable() or value != value.strip()):
        raise wrong("expected one line, without white space at its ends", is_secret=True)
    return value


HeaderValue = Annotated[SecretStr, BeforeValidator(_header_value)]


def written_headers(headers: Mapping[str, SecretStr]) -> Headers:
    return tuple((name.encode(), value.get_secret_value().encode()) for name, value in headers.items())


def reference_of(text: str) -> outcomes.Reference:
    """Where a response names another one, by a `PROBE_FOLLOW`."""
    return "location" if text == "location" else parse_pointer(text)


class ResponseRule(Section):
    """A response: its status and, where that is not enough, values of its JSON body."""

    status: Annotated[tuple[Annotated[int | str, StatusSet()], ...], Field(min_length=1, max_length=64)]
    """Codes and classes, one of which the status must match."""
    where: Annotated[
        dict[Annotated[str, JSON_POINTER], Annotated[tuple[_Value, ...], Field(min_length=1, max_length=64)]],
        Field(max_length=16),
    ] = {}  # noqa: RUF012  copied by the model
    """JSON pointers into the response's body, each with its accepted values."""

    @property
    def compiled(self) -> outcomes.ResponseRule:
        selected = self.status
        statuses = frozenset(code for code in range(200, 600) if code in selected or f"{code // 100}xx" in selected)
        where = tuple((parse_pointer(pointer), frozenset(values)) for pointer, values in self.where.items())
        return outcomes.ResponseRule(statuses, where)


class Probe(Section):
    """A safe request that finds out an operation's outcome."""

    path: Annotated[str, ProbePath()]
    """The target: a path with {operation_id}, {key} and the variables of the route's path."""
    method: Literal["GET", "HEAD"] = "GET"
    """The method."""
    headers: Annotated[dict[Annotated[str, HeaderName(refused=_PROBE_REFUSED)], HeaderValue], Field(max_length=32)] = {}  # noqa: RUF012  copied by the model
    """Headers to send, such as credentials. The caller's are never sent."""
    done: Annotated[tuple[ResponseRule, ...], Field(min_length=1, max_length=16)]
    """Responses that mean that it happened; the response is recorded."""
    never_happened: Annotated[tuple[ResponseRule, ...], Field(max_length=16)] = ()
    """Responses that mean that nothing happened, once `settle` is over. Any other response is probed again."""
    settle: Annotated[float, Duration("31s", "7d")] | None = None
    """How long after the last attempt a request may still arrive: response_timeout + 30s if left out, and no less.
    Where no response_timeout is written, its default becomes 30s less than this."""
    follow: Annotated[str, PROBE_FOLLOW] | None = None
    """Where a `done` response names the one to record: `location`, or a JSON pointer into its body."""

    def compiled(self, upstream: Upstream, patterns: tuple[PathPattern, ...]) -> recovery.Probe:
        """As it is sent on a route with these paths, to this upstream."""
        return recovery.Probe(
            path=self.path,
            method=self.method,
            headers=written_headers(self.headers),
            done=tuple(rule.compiled for rule in self.done),
            never_happened=tuple(rule.compiled for rule in self.never_happened),
            settle_us=microseconds(upstream.settle if self.settle is None else self.settle),
            follow=None if self.follow is None else reference_of(self.follow),
            patterns=patterns,
            host=upstream.own_host,
        )


class ProbeRecovery(Section):
    """Ask the upstream for the outcome."""

    probe: Probe
    """The request, and what its responses mean."""


RECOVERY_FORMS = "hold, resend or {probe: {path, done, ...}}"
Recovery = Annotated[Literal["hold", "resend"] | ProbeRecovery, Forms(RECOVERY_FORMS)]
