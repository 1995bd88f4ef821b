"""The upstream clients. Routes with the same upstream settings share one."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial

from gateway.app.life import StartError
from gateway.app.routes import upstream_settings
from gateway.config import Config
from gateway.config import Upstream as UpstreamConfig
from gateway.observe.facts import Events, UpstreamChanged
from gateway.upstream import NotSent, Upstream, UpstreamStats


class Upstreams:
    """The clients, made on demand and open until `close`. Publishes when no connection to an upstream can be made."""

    def __init__(self, config: Config, events: Events) -> None:
        self._config = config
        self._events = events
        self._clients: dict[UpstreamConfig, Upstream] = {}

    def client_for(self, upstream: UpstreamConfig) -> Upstream:
        """The client of this upstream. Raises `StartError` when its TLS files cannot be used."""
        # The settings that concern the client; the others are each route's own.
        shared = upstream.model_copy(update={"host": "preserve", "key": "original", "answer_within": 0.0})
        if shared not in self._clients:
            try:
                settings = upstream_settings(self._config, upstream)
            except OSError as error:
                raise StartError(f"the TLS files for {upstream.url} cannot be used: {error}") from error
            self._clients[shared] = Upstream(settings, partial(self._publish, str(upstream.url)))
        return self._clients[shared]

    @property
    def stats(self) -> list[UpstreamStats]:
        """The counts of each client."""
        return [client.stats for client in self._clients.values()]

    async def close(self) -> None:
        """Close every client, even if closing another one fails."""
        async with AsyncExitStack() as stack:
            for client in self._clients.values():
                stack.push_async_callback(client.close)

    def _publish(self, url: str, failure: NotSent | None) -> None:
        reason, detail = ("", "") if failure is None else (failure.reason.value, failure.detail)
        self._events.publish(UpstreamChanged(url, reason, detail))
