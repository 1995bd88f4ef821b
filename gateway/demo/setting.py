"""The configurations of the demonstration: ordinary configuration files, with their variables filled in.

`gateway.config` reads them like any other, so the demonstration shows the real program.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from gateway.config import Config, ConfigError, Mistake, parse
from gateway.core.message import bracketed
from gateway.core.webhook import PRESETS, Secret, sign, signing_key

_COMMON: Final = """\
service: demo
listen: "${HOST}:${PORT}"
status: {listen: "127.0.0.1:${STATUS_PORT}"}
admin: {listen: "127.0.0.1:${ADMIN_PORT}", token: "${ADMIN_TOKEN}"}
state_dir: "${STATE_DIR}"
upstream: {url: "${UPSTREAM}"}
store: {durable: "sqlite://${STORE_PATH}"}
secrets:
  fingerprint_key: {id: demo, key: "${FINGERPRINT_KEY}"}
  encryption: [{id: demo, key: "${STORAGE_KEY}"}]
shutdown: {delay: 0s, drain_timeout: 10s}
log: {level: "${LOG_LEVEL}", format: text}
"""

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


CARDS: Final = (
    _COMMON
    + CORNERS["events"]
    + """\
delivery: {schedule: [1s, 2s, 5s], breaker: {max_open: 10s}}
routes:
  - name: create_charge
    match: {methods: [POST], path: /v1/charges}
    key: {header: Idempotency-Key, required: true}
    scope: {api_key: Authorization}
    outcome: {preset: payments}
    errors: stripe
  - name: create_payment_intent
    match: {methods: [POST], path: /v1/payment_intents}
    key: {header: Idempotency-Key, required: true}
    scope: {api_key: Authorization}
    outcome: {preset: payments}
    errors: stripe
    recovery: {probe: {path: "/operations/{operation_id}", done: [{status: [200]}], never_happened: [{status: [404]}]}}
  - name: create_payout
    match: {methods: [POST], path: /v1/payouts}
    key: {header: Idempotency-Key, required: true}
    scope: {api_key: Authorization}
    outcome: {preset: payments}
    errors: stripe
    accept: {identity: unverified}
"""
    + CORNERS["inbox"]
)
"""In front of the service that charges cards: every charge needs a key, and each caller has keys of its own. Errors are
those that Stripe's libraries know, as the service's own are. A doubt about a charge is held for a person; about a
payment intent the service is asked; a payout may be accepted now and delivered later."""


def triangle(*, without: str = "") -> str:
    """The configuration of a gateway process with all corners but one."""
    corners = {name: text for name, text in CORNERS.items() if name != without}
    return _COMMON + corners.pop("events", "") + "routes:\n" + "".join(corners.values())


@dataclass(frozen=True, slots=True)
class Keys:
    """What the gateway shares with the sender of webhooks and the consumer of events. Random: nothing outlives the
    demonstration."""

    sender: Secret
    consumer: Secret
    consumer_text: str

    @classmethod
    def new(cls) -> Keys:
        text = "whsec_" + secrets.token_hex(32)
        return cls(Secret("demo", secrets.token_hex(32).encode()), Secret("demo", *signing_key(text)), text)

    def variables(self, consumer_port: int) -> dict[str, str]:
        """What `CORNERS` leave open."""
        return {
            "SENDER_SECRET": self.sender.key.decode(),
            "CONSUMER": f"http://127.0.0.1:{consumer_port}/events",
            "CONSUMER_PORT": str(consumer_port),
            "CONSUMER_SECRET": self.consumer_text,
        }

    def signed(self, body: bytes) -> dict[str, str]:
        """The headers of a webhook, as its sender signs it."""
        (scheme,) = PRESETS["stripe"].schemes
        signed = sign(scheme, [self.sender], body, now=int(time.time()))
        return {name.decode(): value.decode() for name, value in signed} | {"Content-Type": "application/json"}


_OPTIONS: Final = {
    "upstream.url": ("--upstream", "scheme, host and port alone, since paths are never rewritten"),
    "listen": ("--host", "a host name or address alone"),
}


def config(text: str, filled: Mapping[str, str]) -> Config:
    """The configuration from one of the texts. Raises `ConfigError`, which names command line options."""
    try:
        return parse(text, file="demo", environ=filled)
    except ConfigError as error:
        raise ConfigError(map(_by_option, error.mistakes)) from None


def variables(
    *,
    host: str,
    port: int,
    upstream: str,
    directory: str,
    status_port: int = 0,
    admin_port: int = 0,
    log_level: str = "info",
) -> dict[str, str]:
    """What the texts leave open. The keys are random: nothing outlives the demonstration."""
    return {
        "HOST": bracketed(host),
        "PORT": str(port),
        "STATUS_PORT": str(status_port),
        "ADMIN_PORT": str(admin_port),
        "ADMIN_TOKEN": secrets.token_hex(16),
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
