"""The configurations of the demonstration: files like those of anybody else, with their variables filled in.

Owns their text. They are read by `gateway.config` as every configuration is, so the demonstration shows the program
and not a likeness of it.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote

from gateway import config

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
"""In front of a service of which nothing is known: a POST or PATCH that carries a key is protected."""

_OPTIONS: Final = {
    "upstream.url": ("--upstream", "scheme, host and port alone, since paths are never rewritten"),
    "listen": ("--host", "a host name or address alone"),
}


def variables(*, host: str, port: int, upstream: str, directory: Path, log_level: str) -> Mapping[str, str]:
    """What the texts leave open. The key of the fingerprints is made anew: nothing outlives the demonstration."""
    return {
        "HOST": f"[{host}]" if ":" in host else host,
        "PORT": str(port),
        "STATE_DIR": str(directory),
        "UPSTREAM": upstream,
        "STORE_PATH": quote(str(directory / "operations.db")),
        "FINGERPRINT_KEY": secrets.token_hex(32),
        "LOG_LEVEL": log_level,
    }


def read(text: str, environ: Mapping[str, str]) -> config.Config:
    """The configuration. Raises ConfigError in the words of the command line where what was filled in does not fit."""
    try:
        return config.parse(text, file="demo", environ=environ)
    except config.ConfigError as error:
        raise config.ConfigError(map(_by_option, error.mistakes)) from None


def _by_option(mistake: config.Mistake) -> config.Mistake:
    if mistake.path not in _OPTIONS:
        return mistake
    option, expected = _OPTIONS[mistake.path]
    hint = expected if mistake.message.startswith("expected") else mistake.hint
    return config.Mistake(option, None, None, "", mistake.message, hint)
