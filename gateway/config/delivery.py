"""Accepting requests and delivering them later, in the file: which are accepted, and how they are delivered.

Kept requests are encrypted, so a route that accepts needs `secrets.encryption`. `checks` compares these sections with
the rest of their route.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field, SecretBytes

from gateway.config.leaf import JSON_POINTER, NAME, Count, Duration, HeaderName, SecretText, Size
from gateway.config.section import DIVIDED, Forms, Section, written
from gateway.config.upstream import HeaderValue
from gateway.core.delivery import BreakerPolicy, DeliveryPolicy
from gateway.core.identity import key as keys
from gateway.core.identity.body import parse_pointer
from gateway.core.operation import microseconds
from gateway.core.sealing import KEY_BYTES

_HEX_KEY = re.compile(rf"[0-9A-Fa-f]{{{2 * KEY_BYTES}}}\Z")
_REPLACED_REFUSED = (
    ("host", "upstream.host says which Host the service receives"),
    ("content-", "the body is delivered as it came"),
)

# -- routes ------------------------------------------------------------------------------------------------------------


class Accept(Section):
    """Requests that are stored first and delivered later: their callers get 202 and need not wait."""

    mode: Literal["prefer", "always"] = "prefer"
    """Which requests are accepted: those that say `Prefer: respond-async`, or all that have a key."""
    identity: Literal["verified", "unverified"] = "verified"
    """Whether strangers may store requests here. `verified`: the scope must name a verified caller. `unverified`
    accepts whatever the scope takes for a caller: the service refuses a wrong credential only when it is delivered."""
    max_bytes: Annotated[int, Size("0", "64MiB")] = written("1MiB")
    """The longest body of a request that is accepted. At most body.max_bytes."""
    max_pending: Annotated[int, Count(1, 10_000_000)] = 100_000
    """How many requests of this operation may wait for delivery; more get 503. Counted about once a second."""
    max_pending_per_scope: Annotated[int, Count(1, 1_000_000)] = 1000
    """How many of them may be of one caller."""
    max_pending_bytes: Annotated[int, Size("1KiB", "1024GiB")] = written("1GiB")
    """How many bytes the requests of a route that wait for delivery may have together; more get 503."""
    withdraw: Literal["allow", "refuse"] = "allow"
    """Whether callers may call off what is not delivered yet, by DELETE of the status resource."""
    headers: Annotated[
        dict[Annotated[str, HeaderName(refused=_REPLACED_REFUSED)], HeaderValue], Field(max_length=32)
    ] = {}  # noqa: RUF012  copied by the model
    """Headers to deliver with, in place of the caller's, such as credentials that do not expire."""


_ORDER_REFUSED = (
    ("authorization", "a credential does not say what belongs together"),
    ("cookie", "a credential does not say what belongs together"),
)


class OrderHeader(Section):
    """The ordering value is the value of a header."""

    header: Annotated[str, HeaderName(refused=_ORDER_REFUSED)]
    """The header that holds the ordering value."""


class Order(Section):
    """Requests of one caller with the same value are delivered one after the other, as they were accepted: a lane."""

    by: Annotated[
        Annotated[str, JSON_POINTER] | OrderHeader, Forms("a JSON pointer such as /account_id, or {header: NAME}")
    ]
    """Where the ordering value is: a JSON pointer into the body such as /account_id, or {header: NAME}."""
    on_stop: Literal["stop", "skip"] = "stop"
    """What a dead letter does to its lane: stops it until somebody decides, or is passed. Doubt always stops it."""
    missing: Literal["refuse", "unordered"] = "refuse"
    """What becomes of a request without the value: it is refused with 400, or delivered in no order."""

    @cached_property
    def value(self) -> keys.ComposedKey:
        """Where the ordering value is: it is read as a key is."""
        by = self.by
        part = keys.BodyPart(parse_pointer(by)) if isinstance(by, str) else keys.HeaderPart(by.header.encode())
        return keys.ComposedKey((part,))


class DeadLetter(Section):
    """What a repeat of a request gets that was accepted, and then given up."""

    on_repeat: Literal["refuse", "requeue"] = "refuse"
    """Whether a repeat is refused with 409, or delivers the request again."""
    requeue_after: Annotated[float, Duration("1s", "30d")] = written("1m")
    """How long a dead letter waits until a repeat delivers it again."""


class _DeliverySettings(Section):
    schedule: Annotated[tuple[Annotated[float, Duration("100ms", "24h")], ...], Field(min_length=1, max_length=32)] = (
        Field(("1s", "5s", "30s", "2m", "10m", "30m", "1h"), validate_default=True)
    )
    """The pauses after the first, second, ... attempt without effect; the last one repeats. Half of each is random."""
    deliver_within: Annotated[float, Duration("1s", "365d")] = written("24h")
    """How long delivery is tried before the request becomes a dead letter. At most retention.remember."""
    max_answers: Annotated[int, Count(1, 1000)] = 20
    """After how many responses without effect the request becomes a dead letter. An outage does not count."""
    max_in_flight: Annotated[int, Count(1, 100_000), DIVIDED] = 64
    """How many deliveries of a route may run at once, divided evenly among the workers."""
    unauthorized: Literal["bury", "retry"] = "bury"
    """What a 401 or 403 means: the request is a dead letter at once, or is tried again with headers of `accept`."""


class RouteDelivery(_DeliverySettings):
    """A route's overrides of `delivery`. Only written keys count; `Config.delivery_for` merges both."""


# -- global sections ---------------------------------------------------------------------------------------------------


class Breaker(Section):
    """When deliveries to a service that cannot be reached pause."""

    ORDERED = (("open", "max_open"),)

    failures: Annotated[int, Count(1, 1000)] = 5
    """After how many deliveries in a row that could not be sent."""
    open: Annotated[float, Duration("100ms", "1h")] = written("10s")
    """How long the first pause is; each further one is longer."""
    max_open: Annotated[float, Duration("100ms", "24h")] = written("5m")
    """How long the longest pause is."""

    @property
    def compiled(self) -> BreakerPolicy:
        return BreakerPolicy(self.failures, self.open, self.max_open)


class Delivery(_DeliverySettings):
    """How accepted requests are delivered, unless their route writes something else."""

    workers: Annotated[int, Count(0, 1)] = 1
    """Whether this gateway delivers: 0 only accepts, where `idempotency-gateway deliver` runs elsewhere."""
    breaker: Breaker = Field(default_factory=Breaker)
    """When deliveries to a service that cannot be reached pause."""

    def under(self, route: RouteDelivery) -> Delivery:
        """These settings, overridden by the keys that are written in the route."""
        return self.model_copy(update={name: getattr(route, name) for name in route.model_fields_set})

    @property
    def compiled(self) -> DeliveryPolicy:
        return DeliveryPolicy(
            schedule_us=tuple(map(microseconds, self.schedule)),
            deliver_within_us=microseconds(self.deliver_within),
            answers_max=self.max_answers,
            in_flight_max=self.max_in_flight,
            buries_unauthorized=self.unauthorized == "bury",
        )


def encryption_key_bytes(text: str) -> bytes | None:
    """The key that is written as hexadecimal digits or base64; None where that is not `KEY_BYTES`."""
    try:
        key = bytes.fromhex(text) if _HEX_KEY.match(text) else b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return key if len(key) == KEY_BYTES else None


def _key(text: str) -> bytes:
    key = encryption_key_bytes(text)
    if key is None:
        raise ValueError(f"expected {KEY_BYTES} bytes as {2 * KEY_BYTES} hexadecimal digits, or as base64")
    return key


KEY = SecretText(_key, is_key=True)


class EncryptionKey(Section):
    """A secret that what is kept is encrypted with."""

    id: Annotated[str, NAME]
    """The name of this key, stored with what it encrypted. A new key needs a new name."""
    key: Annotated[SecretBytes, KEY]
    """32 random bytes as hexadecimal or base64; `${NAME}` or `${file:/run/secrets/name}` keeps it out of this file."""


class IdentityKey(EncryptionKey):
    """A secret that the digests of scopes and keys are keyed with, so that a stolen table cannot be used to guess them.

    Another secret makes every remembered key unknown, like another scope.
    """

    id: Annotated[str, NAME]
    """The name of this key, for people. It is stored nowhere."""
