"""The upstream clients. Routes with the same upstream settings share one."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import fields
from functools import partial

from gateway.app.life import StartError
from gateway.config import Config
from gateway.config.upstream import TCP_USER_TIMEOUT_SECONDS, UpstreamTls
from gateway.config.upstream import Upstream as UpstreamConfig
from gateway.observe.facts import Events, UpstreamChanged
from gateway.protect.probing import PROBES_MAX
from gateway.upstream import NotSent, Upstream, UpstreamSettings, UpstreamStats, tls_context


def upstream_settings(config: Config, upstream: UpstreamConfig) -> UpstreamSettings:
    """The settings of an upstream's client. Raises `OSError` when one of its TLS files cannot be used."""
    tls = upstream.tls or UpstreamTls()
    return UpstreamSettings(
        host=upstream.url.host,
        port=upstream.url.port,
        tls=None if upstream.url.scheme == "http" else tls_context(tls.ca, tls.cert, tls.key),
        server_name=tls.server_name,
        connect_timeout_seconds=upstream.connect_timeout,
        response_timeout_seconds=upstream.response_timeout,
        keepalive_seconds=upstream.keepalive,
        tcp_user_timeout_seconds=TCP_USER_TIMEOUT_SECONDS,
        header_bytes_max=config.limits.max_header_bytes,
        connections_max=upstream.max_connections,
        connections_reserved=config.limits.max_in_flight + PROBES_MAX + _deliveries_max(config),
    )


def _deliveries_max(config: Config) -> int:
    """How many deliveries may run at once, whichever upstream they go to."""
    return sum(config.delivery_for(route).max_in_flight for route in config.routes if route.is_accepting)


class Upstreams:
    """The clients of one configuration, until `close`. Publishes when no connection to an upstream can be made."""

    def __init__(self, config: Config, events: Events) -> None:
        self._config = config
        self._events = events
        self._clients: dict[UpstreamConfig, tuple[str, Upstream]] = {}

    def client_for(self, upstream: UpstreamConfig) -> Upstream:
        """The client of this upstream. Raises `StartError` when its TLS files cannot be used."""
        # The settings that concern the client; the others are each route's own.
        shared = upstream.model_copy(update={"host": "preserve", "key": "original", "answer_within": 0.0})
        if shared not in self._clients:
            url = str(upstream.url)
            try:
                settings = upstream_settings(self._config, upstream)
            except OSError as error:
                raise StartError(f"the TLS files for {upstream.url} cannot be used: {error}") from error
            self._clients[shared] = url, Upstream(settings, partial(self._publish, url))
        return self._clients[shared][1]

    @property
    def stats(self) -> dict[str, UpstreamStats]:
        """The counts of each upstream, by its URL. An upstream may have several clients."""
        found: dict[str, UpstreamStats] = {}
        for url, client in self._clients.values():
            total = found.setdefault(url, UpstreamStats())
            for each in fields(UpstreamStats):
                setattr(total, each.name, getattr(total, each.name) + getattr(client.stats, each.name))
        return found

    async def close(self) -> None:
        """Close every client, even if closing another one fails."""
        async with AsyncExitStack() as stack:
            for _, client in self._clients.values():
                stack.push_async_callback(client.close)

    def _publish(self, url: str, failure: NotSent | None) -> None:
        reason, detail = ("", "") if failure is None else (failure.reason.value, failure.detail)
        self._events.publish(UpstreamChanged(url, reason, detail))
