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
status: {listen: "127.0.0.1:0"}
state_dir: "${STATE_DIR}"
upstream: {url: "${UPSTREAM}"}
store: {durable: "sqlite://${STORE_PATH}"}
secrets: {fingerprint_key: {id: demo, key: "${FINGERPRINT_KEY}"}}
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
"""
)
"""In front of the service that charges cards: every charge needs a key, and each caller has keys of its own."""

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

_OPTIONS: Final = {
    "upstream.url": ("--upstream", "scheme, host and port alone, since paths are never rewritten"),
    "listen": ("--host", "a host name or address alone"),
}


def config(text: str, *, host: str, port: int, upstream: str, directory: str, log_level: str = "info") -> Config:
    """The configuration from one of the texts. Raises `ConfigError`, which names command line options.

    The fingerprint key is random: nothing outlives the demonstration.
    """
    variables = {
        "HOST": bracketed(host),
        "PORT": str(port),
        "STATE_DIR": directory,
        "UPSTREAM": upstream,
        "STORE_PATH": quote(f"{directory}/operations.db"),
        "FINGERPRINT_KEY": secrets.token_hex(32),
        "LOG_LEVEL": log_level,
    }
    try:
        return parse(text, file="demo", environ=variables)
    except ConfigError as error:
        raise ConfigError(map(_by_option, error.mistakes)) from None


def _by_option(mistake: Mistake) -> Mistake:
    if mistake.path not in _OPTIONS:
        return mistake
    option, expected = _OPTIONS[mistake.path]
    hint = expected if mistake.message.startswith("expected") else mistake.hint
    return Mistake(option, None, None, "", mistake.message, hint)
