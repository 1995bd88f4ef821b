"""The service behind the gateway, as the file says it: once for all, and what a route changes of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from gateway.config.address import AbsolutePath, HostName, ServiceUrl, UpstreamUrl
from gateway.config.leaf import Count, Duration
from gateway.config.section import Disagreement, Section, follow, written

# How long bytes that were sent may stay unacknowledged: after it, nothing of a request is still on its way.
TCP_USER_TIMEOUT_SECONDS = 30.0


class UpstreamTls(Section):
    """TLS to the service. Used where the URL is https; all of it may be left out."""

    ca: Annotated[Path, AbsolutePath()] | None = None
    """The certificates that are trusted; the system's if left out."""
    cert: Annotated[Path, AbsolutePath()] | None = None
    """The gateway's own certificate, if the service asks for one."""
    key: Annotated[Path, AbsolutePath()] | None = None
    """The private key of that certificate."""
    server_name: Annotated[str, HostName()] | None = None
    """The name that the service's certificate must hold, if it is not the host of the URL."""

    def disagreements(self) -> Iterator[Disagreement]:
        if (self.cert is None) != (self.key is None):
            yield Disagreement((), "cert and key must be given together")


class _UpstreamSettings(Section):
    ORDERED = (("answer_within", "response_timeout"),)

    host: Annotated[str, HostName(may_have_port=True)] = "preserve"
    """What the service gets as Host: `preserve` what the caller sent, `upstream` for the host of the URL, or a name."""
    connect_timeout: Annotated[float, Duration("1ms", "5m")] = written("2s")
    """How long a connection may take to be made."""
    answer_within: Annotated[float, Duration("1ms", "1h")] = written("30s")
    """How long a caller is kept waiting for the service. At most response_timeout."""
    response_timeout: Annotated[float, Duration("1ms", "24h")] = written("10m")
    """How long an attempt may take before it is given up and in doubt."""
    keepalive: Annotated[float, Duration("0s", "10m")] = written("2s")
    """How long a connection may have been idle and still be used. A shorter time that the service announces counts."""
    max_connections: Annotated[int, Count(1, 1_000_000)] = 1024
    """How many connections there may be at once for requests that are not protected, streams and sockets included;
    operations in flight have their own besides. Workers share them out evenly."""
    key: Literal["original", "operation_id", "none"] = "original"
    """What the service gets as key: the caller's, one derived from the operation, or none."""
    tls: UpstreamTls | None = None
    """TLS to the service."""


class Upstream(_UpstreamSettings):
    """The service behind the gateway."""

    url: Annotated[UpstreamUrl, ServiceUrl()]
    """Where the service is, such as http://127.0.0.1:9000. Targets are forwarded as they came, so it has no path."""

    @property
    def default_host(self) -> bytes:
        """What the service gets as Host from a caller that names none."""
        return (self.url.authority if self.host in ("preserve", "upstream") else self.host).encode()


class RouteUpstream(_UpstreamSettings):
    """What a route changes of the upstream. Only what is written counts; `Config.upstream_for` puts both together."""

    url: Annotated[UpstreamUrl, ServiceUrl()] | None = None
    """Where the service of this route is."""

    def over(self, upstream: Upstream, settle: float | None = None) -> Upstream:
        """The upstream with what is written here in place of its own, key by key; `tls` counts as one.

        `settle` is that of the route's probe, which no attempt may outlast: the default of `response_timeout` follows
        it too. All in seconds.
        """
        whole = upstream.model_copy(update={name: getattr(self, name) for name in self.model_fields_set})
        follow(whole, {} if settle is None else {"response_timeout": settle - TCP_USER_TIMEOUT_SECONDS})
        return whole
