"""The traces of a configuration, and the change to those of the next one."""

from __future__ import annotations

import asyncio
import os
from typing import Final

from gateway import __version__
from gateway.app.life import StartError
from gateway.config import Config, PostgresUrl, RedisUrl, SqliteUrl
from gateway.observe.facts import Fact
from gateway.observe.tracing import Sampling, Tracing

# As the semantic conventions for databases name them.
_SYSTEMS: Final = {SqliteUrl: "sqlite", PostgresUrl: "postgresql", RedisUrl: "redis"}


# For a configuration without a secret. A reload keeps it, for what began before is followed afterwards.
_OWN_SECRET: Final = os.urandom(32)


def tracing_of(config: Config) -> Tracing | None:
    """None where `traces` is left out. Raises `StartError` without the packages for it."""
    traces = config.traces
    if traces is None:
        return None
    upstreams = {route.name: config.upstream_for(route).url for route in config.routes}
    try:
        return Tracing(
            Sampling(
                traces.sample,
                config.trusted_proxies if traces.accept == "trusted" else (),
                accepts_all=traces.accept == "all",
            ),
            f"{traces.endpoint.service}{traces.endpoint.target}",
            {name: value.get_secret_value() for name, value in traces.headers.items()},
            service=config.service,
            version=__version__,
            templates={route.name: route.match.path.text for route in config.routes},
            upstreams={name: (url.host, url.port) for name, url in upstreams.items()},
            store_system=_SYSTEMS[type(config.store.durable)] if traces.detail == "store" else None,
            secret=_secret(config),
        )
    except ModuleNotFoundError as error:
        raise StartError(str(error)) from error


def _secret(config: Config) -> bytes:
    """The same at each gateway where there is a secret; where requests are kept to be delivered, there is one."""
    secrets = config.secrets
    keys = [each.key for each in secrets.encryption] or [each.key for each in secrets.fingerprint_keys]
    return keys[0].get_secret_value() if keys else _OWN_SECRET


class Traces:
    """The tracing in force, and earlier ones until they have sent their last spans. An observer of events."""

    def __init__(self) -> None:
        self._current: Tracing | None = None
        self._open: list[Tracing] = []
        self._ended = (0, 0, 0)
        self._closing: set[asyncio.Task[None]] = set()

    def adopt(self, tracing: Tracing | None) -> None:
        """Report to this one from now on, or to none. Call this in the process that serves."""
        before, self._current = self._current, tracing
        if before is not None:
            task = asyncio.get_running_loop().create_task(self._end(before))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        if tracing is not None:
            self._open.append(tracing)
            tracing.start()

    def wants(self, kind: type[Fact]) -> bool:
        return self._current is not None and self._current.wants(kind)

    def __call__(self, fact: Fact) -> None:
        if self._current is not None:
            self._current(fact)

    @property
    def counts(self) -> tuple[int, int, int]:
        """How many spans were exported, dropped, and failed to be sent, by all of them."""
        exported, dropped, failed = zip(self._ended, *map(_counts, self._open), strict=True)
        return sum(exported), sum(dropped), sum(failed)

    async def close(self) -> None:
        """Send what is left, for at most as long as `Tracing.close`."""
        self.adopt(None)
        await asyncio.gather(*self._closing)

    async def _end(self, tracing: Tracing) -> None:
        await tracing.close()
        self._open.remove(tracing)
        exported, dropped, failed = zip(self._ended, _counts(tracing), strict=True)
        self._ended = sum(exported), sum(dropped), sum(failed)


def _counts(tracing: Tracing) -> tuple[int, int, int]:
    return tracing.exported, tracing.dropped, tracing.failed
