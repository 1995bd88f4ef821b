"""The configurations of the demonstration: ordinary configuration files, with their variables filled in.

`gateway.config` reads them like any other, so the demonstration shows the real program.
"""

from __future__ import annotations

import secrets
from typing import Final
from urllib.parse import quote

from gateway.config import Config, ConfigError, Mistake, parse
from gateway.core.message import bracketed

_COMMON: Final = """\
service: demo
listen: "${HOST}:${PORT}"
status: {listen: "127.0.0.1:${STATUS_PORT}"}
state_dir: "${STATE_DIR}"
upstream: {url: "${UPSTREAM}"}
store: {durable: "sqlite://${STORE_PATH}"}
secrets:
  fingerprint_key: {id: demo, key: "${FINGERPRINT_KEY}"}
  encryption: [{id: demo, key: "${STORAGE_KEY}"}]
shutdown: {delay: 0s, drain_timeout: 10s}
log: {level: "${LOG_LEVEL}", format: text}
"""

CARDS: Final = (
    _COMMON
    + """\
routes:
  - name: create_charge
    match: {methods: [POST], path: /v1/charges}
    key: {header: Idempotency-Key, required: true}
    scope: {api_key: Authorization}
    outcome: {preset: payments}
    errors: stripe
"""
)
"""In front of the service that charges cards: every charge needs a key, and each caller has keys of its own. Errors are
those that Stripe's libraries know, as the service's own are."""

ANYTHING: Final = (
    _COMMON
    + """\
routes:
  - name: everything
    match: {methods: [POST, PATCH], path: "/{path:.*}"}
    key: {header: Idempotency-Key, required: false}
    scope: shared
    outcome: {preset: payments}
"""
)
"""In front of an unknown service: a POST or PATCH with a key is protected."""

CORNERS: Final = {
    "events": """\
events:
  sinks: [{name: consumer, kind: webhook, url: "${CONSUMER}", secrets: [{id: demo, key: "${CONSUMER_SECRET}"}]}]
egress: {allow: [127.0.0.1], ports: ["${CONSUMER_PORT}"], https_only: false}
""",
    "accept": """\
  - name: create_charge
    match: {methods: [POST], path: /v1/charges}
    key: {header: Idempotency-Key, required: true}
    scope: {api_key: Authorization}
    outcome: {preset: payments}
    accept: {identity: unverified}
""",
    "inbox": """\
  - name: payment_events
    match: {methods: [POST], path: /webhooks/stripe}
    inbox: {preset: stripe, secrets: [{id: demo, key: "${SENDER_SECRET}"}]}
    scope: shared
    outcome: {preset: success_only}
""",
}
"""The corners of the triangle, each of which can be left out: see `triangle`."""


def triangle(*, without: str = "") -> str:
    """The configuration of a gateway process with all corners but one."""
    corners = {name: text for name, text in CORNERS.items() if name != without}
    return _COMMON + corners.pop("events", "") + "routes:\n" + "".join(corners.values())


_OPTIONS: Final = {
    "upstream.url": ("--upstream", "scheme, host and port alone, since paths are never rewritten"),
    "listen": ("--host", "a host name or address alone"),
}


def config(text: str, *, host: str, port: int, upstream: str, directory: str, log_level: str = "info") -> Config:
    """The configuration from one of the texts. Raises `ConfigError`, which names command line options."""
    filled = variables(host=host, port=port, upstream=upstream, directory=directory, log_level=log_level)
    try:
        return parse(text, file="demo", environ=filled)
    except ConfigError as error:
        raise ConfigError(map(_by_option, error.mistakes)) from None


def variables(
    *, host: str, port: int, upstream: str, directory: str, status_port: int = 0, log_level: str = "info"
) -> dict[str, str]:
    """What the texts leave open. The keys are random: nothing outlives the demonstration."""
    return {
        "HOST": bracketed(host),
        "PORT": str(port),
        "STATUS_PORT": str(status_port),
        "STATE_DIR": directory,
        "UPSTREAM": upstream,
        "STORE_PATH": quote(f"{directory}/operations.db"),
        "FINGERPRINT_KEY": secrets.token_hex(32),
        "STORAGE_KEY": secrets.token_hex(32),
        "LOG_LEVEL": log_level,
    }


def _by_option(mistake: Mistake) -> Mistake:
    if mistake.path not in _OPTIONS:
        return mistake
    option, expected = _OPTIONS[mistake.path]
    hint = expected if mistake.message.startswith("expected") else mistake.hint
    return Mistake(option, None, None, "", mistake.message, hint)
