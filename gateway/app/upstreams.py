"""The clients of the upstreams: one for each upstream; routes that ask for the same share it."""

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
    """The clients that were asked for, until `close`. They state it when no connection can be made."""

    def __init__(self, config: Config, events: Events) -> None:
        self._config = config
        self._events = events
        self._clients: dict[UpstreamConfig, Upstream] = {}

    def client_for(self, asked: UpstreamConfig) -> Upstream:
        """The client that speaks to this upstream. Raises `StartError` when its TLS files cannot be used."""
        # What a client is made of; the rest is each route's own.
        same = asked.model_copy(update={"host": "preserve", "key": "original", "answer_within": 0.0})
        if same not in self._clients:
            try:
                settings = upstream_settings(self._config, asked)
            except OSError as error:
                raise StartError(f"the TLS files for {asked.url} cannot be used: {error}") from error
            self._clients[same] = Upstream(settings, partial(self._tell, str(asked.url)))
        return self._clients[same]

    @property
    def stats(self) -> list[UpstreamStats]:
        """The counts of each client."""
        return [client.stats for client in self._clients.values()]

    async def close(self) -> None:
        """Close every client, whatever becomes of another one."""
        async with AsyncExitStack() as stack:
            for client in self._clients.values():
                stack.push_async_callback(client.close)

    def _tell(self, url: str, failure: NotSent | None) -> None:
        reason, detail = ("", "") if failure is None else (failure.reason.value, failure.detail)
        self._events.publish(UpstreamChanged(url, reason, detail))
