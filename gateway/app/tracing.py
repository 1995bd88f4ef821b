"""The traces of a configuration."""

from __future__ import annotations

from gateway import __version__
from gateway.app.life import StartError
from gateway.config import Config
from gateway.observe.tracing import Sampling, Tracing


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
        )
    except ModuleNotFoundError as error:
        raise StartError(str(error)) from error
