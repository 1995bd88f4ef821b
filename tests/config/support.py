"""Short ways to write a configuration file in a test."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gateway.config import Config, ConfigError, parse

GLOBAL = """\
upstream: {url: http://127.0.0.1:9000}
store: {durable: sqlite:///var/lib/gateway/operations.db}
"""
ROUTE = """\
routes:
  - name: pay
    match: {path: /pay}
    key: {header: Idempotency-Key}
    scope: {api_key: X-Api-Key}
    outcome: {preset: standard}
"""
MINIMAL = GLOBAL + ROUTE
ROUTE_LINE = GLOBAL.count("\n") + ROUTE.count("\n") + 1
"""The line of the first key that is added to the route of MINIMAL."""


def with_route(*lines: str, without: str = "") -> str:
    """MINIMAL with more keys in its route, and perhaps without one."""
    kept = [line for line in MINIMAL.splitlines() if not without or not line.startswith(f"    {without}:")]
    return "\n".join([*kept, *(f"    {line}" for line in lines)]) + "\n"


def with_global(*lines: str) -> str:
    """MINIMAL with more keys before those that it has."""
    return "\n".join(lines) + "\n" + MINIMAL


def report(text: str | bytes, environ: Mapping[str, str] | None = None) -> list[str]:
    """The mistakes of a file that has some, as they are printed, without the name of the file."""
    with pytest.raises(ConfigError) as caught:
        parse(text, file="f", environ=environ)
    return [line.removeprefix("f:") for line in str(caught.value).splitlines()]


def read(text: str, environ: Mapping[str, str] | None = None) -> Config:
    """The configuration of a file without mistakes."""
    return parse(text, file="f", environ=environ)
