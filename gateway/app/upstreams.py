"""The upstream clients. Routes with the same upstream settings share one, also across reloads."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import fields, replace
from functools import partial
from weakref import WeakKeyDictionary, WeakSet, finalize

from gateway.app.life import StartError
from gateway.app.tls_files import Stamp, stamp_of
from gateway.config import TCP_USER_TIMEOUT_SECONDS, Config, UpstreamTls
from gateway.config import Upstream as UpstreamConfig
from gateway.observe.facts import Events, UpstreamChanged
from gateway.protect.probing import PROBES_MAX
from gateway.upstream import NotSent, Upstream, UpstreamSettings, UpstreamStats, tls_context

# What a client is made of: settings, limits of the gateway, and its TLS files as they were.
_Key = tuple[UpstreamConfig, int, int, tuple[Stamp, ...]]


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


class Clients:
    """The clients of one configuration."""

    def __init__(self, upstreams: Upstreams, config: Config) -> None:
        self._upstreams = upstreams
        self._config = config
        self.by_key: dict[_Key, Upstream] = {}

    def client_for(self, upstream: UpstreamConfig) -> Upstream:
        """The client of this upstream. Raises `StartError` when its TLS files cannot be used."""
        # The settings that concern the client; the others are each route's own.
        shared = upstream.model_copy(update={"host": "preserve", "key": "original", "answer_within": 0.0})
        limits = self._config.limits
        tls = upstream.tls
        files = () if tls is None else tuple(map(stamp_of, (tls.ca, tls.cert, tls.key)))
        key = (shared, limits.max_header_bytes, limits.max_in_flight, files)
        if key not in self.by_key:
            self.by_key[key] = self._upstreams.known(key) or self._upstreams.make(self._config, upstream)
        return self.by_key[key]


class Upstreams:
    """The clients in use, until `close`. Publishes when no connection to an upstream can be made."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._clients: dict[_Key, Upstream] = {}
        # Of earlier configurations, as long as a request has one.
        self._retired: WeakSet[Upstream] = WeakSet()
        self._ended: dict[str, UpstreamStats] = {}
        self._urls: WeakKeyDictionary[Upstream, str] = WeakKeyDictionary()

    def known(self, key: _Key) -> Upstream | None:
        return self._clients.get(key)

    def make(self, config: Config, upstream: UpstreamConfig) -> Upstream:
        """A new client. Raises `StartError`."""
        try:
            settings = upstream_settings(config, upstream)
        except OSError as error:
            raise StartError(f"the TLS files for {upstream.url} cannot be used: {error}") from error
        url = str(upstream.url)
        client = Upstream(settings, partial(self._publish, url))
        self._urls[client] = url
        return client

    def adopt(self, clients: Clients) -> None:
        """Use these from now on. Connections of the others close when their last exchange ends."""
        before, self._clients = self._clients, clients.by_key
        for key, client in before.items():
            if key not in self._clients:
                client.retire()
                self._retired.add(client)
                finalize(client, self._absorb, self._urls[client], client.stats)

    @property
    def stats(self) -> dict[str, UpstreamStats]:
        """The counts of each upstream, by its URL. An upstream may have several clients."""
        found = {url: replace(stats) for url, stats in self._ended.items()}
        for client, url in self._urls.items():
            _add(found.setdefault(url, UpstreamStats()), client.stats)
        return found

    async def close(self) -> None:
        """Close every client, even if closing another one fails."""
        async with AsyncExitStack() as stack:
            for client in (*self._clients.values(), *self._retired):
                stack.push_async_callback(client.close)

    def _absorb(self, url: str, stats: UpstreamStats) -> None:
        _add(self._ended.setdefault(url, UpstreamStats()), stats)

    def _publish(self, url: str, failure: NotSent | None) -> None:
        reason, detail = ("", "") if failure is None else (failure.reason.value, failure.detail)
        self._events.publish(UpstreamChanged(url, reason, detail))


def _add(total: UpstreamStats, stats: UpstreamStats) -> None:
    for each in fields(UpstreamStats):
        setattr(total, each.name, getattr(total, each.name) + getattr(stats, each.name))
