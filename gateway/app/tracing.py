"""The traces of a configuration."""

from __future__ import annotations

import os
from typing import Final

from gateway import __version__
from gateway.app.life import StartError
from gateway.config import Config
from gateway.config.address import PostgresUrl, RedisUrl, SqliteUrl
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
