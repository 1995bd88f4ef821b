"""How senders sign their webhooks, as data: one scheme for each way, one preset for each kind of sender.

A scheme says which headers hold the signature and the time, which bytes are signed, and which key the event has. A
preset adds what the sender expects as an acknowledgement, and for how long it sends an event again. Nothing here
verifies; `signature` does, with the same code for all of them.

Sources: Standard Webhooks 1.0; the documentation of Stripe, Slack, GitHub and Shopify on verifying their webhooks;
CloudEvents 1.0, HTTP protocol binding and web hooks.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Final, assert_never

from gateway.core.identity.key import (
    BodyPart,
    CloudEventKey,
    ComposedKey,
    ContentKey,
    EventKey,
    HeaderKey,
    KeySpec,
)
from gateway.core.identity.pointer import Pointer
from gateway.core.immutable import immutable

SECRET_BYTES_MIN: Final = 24
# What Standard Webhooks asks of those who sign. Other senders may have longer ones.
SIGNING_SECRET_BYTES_MAX: Final = 64
ED25519_KEY_BYTES: Final = 32

_HOUR_SECONDS: Final = 3600
_DAY_SECONDS: Final = 24 * _HOUR_SECONDS


class Algorithm(StrEnum):
    """What a secret is for. The secret decides, never the message."""

    HMAC = "hmac"
    ED25519 = "ed25519"  # the secret is a public key, which verifies
    ED25519_PRIVATE = "ed25519_private"  # the secret is a private key, which signs
    BEARER = "bearer"  # the message carries the secret itself


class Encoding(StrEnum):
    """How an HMAC is written: in lower-case hexadecimal digits, or in base64 with padding."""

    HEX = "hex"
    BASE64 = "base64"


class Digest(StrEnum):
    SHA256 = "sha256"
    SHA512 = "sha512"


class Part(StrEnum):
    """What of a message is signed, besides constant bytes: the header of its id or of its time as sent, its body."""

    ID = "id"
    TIME = "timestamp"
    BODY = "body"


@immutable
class Place:
    """Where a value is: in a header (its name in lower case), after `prefix`.

    With a `separator`, the header is a list, and each of its members that begins with `prefix` has such a value.
    """

    header: bytes
    prefix: bytes = b""
    separator: bytes = b""


@immutable
class Scheme:
    """One way to sign messages.

    `signature` is where HMACs are, or the bearer token of a scheme that signs nothing (`signed` is empty). Members of
    that header that begin with `ed25519_prefix` are Ed25519 signatures of the same bytes, in base64. `key` is how the
    id of the event is read; `id_header` is the header that holds it, where that is signed. `about` are the headers
    (lower case) that say what an event is, and whose, and are the same whenever it is sent again.
    """

    signature: Place
    signed: tuple[bytes | Part, ...]
    key: KeySpec
    digest: Digest = Digest.SHA256
    encoding: Encoding = Encoding.HEX
    time: Place | None = None
    id_header: bytes | None = None
    ed25519_prefix: bytes | None = None
    about: tuple[bytes, ...] = ()

    @property
    def is_bearer(self) -> bool:
        """Whether messages carry a token instead of a signature."""
        return not self.signed

    @property
    def prefixes(self) -> tuple[bytes, ...]:
        """How the signatures in the header begin."""
        return (self.signature.prefix,) if self.ed25519_prefix is None else (self.signature.prefix, self.ed25519_prefix)

    @property
    def delimiters(self) -> tuple[bytes, ...]:
        """The constant bytes beside a signed id. An id that contains them could be read as another one, whose rest is
        signed as the time or the body."""
        if Part.ID not in self.signed:
            return ()
        at = self.signed.index(Part.ID)
        return tuple(part for part in self.signed[max(0, at - 1) : at + 2] if not isinstance(part, Part))

    @property
    def is_id_signed(self) -> bool:
        """Whether nobody but the sender can give a message another id."""
        match self.key:
            case HeaderKey():
                return self.id_header is not None
            case ComposedKey(parts):
                return not self.is_bearer and all(isinstance(part, BodyPart) for part in parts)
            case CloudEventKey() | ContentKey() | EventKey():
                return False
            case _:
                assert_never(self.key)

    @property
    def headers(self) -> frozenset[bytes]:
        """The headers that are verified, in lower case. A message needs all of them, and each of them once."""
        names = {self.signature.header, self.id_header, None if self.time is None else self.time.header}
        return frozenset(name for name in names if name is not None)


@immutable
class Preset:
    """What is known of a kind of sender.

    `schemes`: a message is verified by the first one whose signature header it has. `acknowledgement` is the status for
    what is stored. `horizon_seconds` is how long the sender may send an event again, also by hand. `ignored` are values
    of the body that differ between deliveries of one event. `is_secret_base64`: secrets are written in base64, perhaps
    with a prefix that names their kind. `has_challenge`: the sender verifies the URL by a message that is no event.
    """

    schemes: tuple[Scheme, ...]
    acknowledgement: int
    horizon_seconds: int
    ignored: tuple[Pointer, ...] = ()
    is_secret_base64: bool = False
    has_challenge: bool = False


def _standard(prefix: bytes) -> Scheme:
    """Standard Webhooks, and the header names of Svix, which it comes from."""
    header = prefix + b"-id"
    return Scheme(
        signature=Place(prefix + b"-signature", b"v1,", b" "),
        signed=(Part.ID, b".", Part.TIME, b".", Part.BODY),
        key=HeaderKey((header,)),
        encoding=Encoding.BASE64,
        time=Place(prefix + b"-timestamp"),
        id_header=header,
        ed25519_prefix=b"v1a,",
    )


def _of_body(header: bytes, prefix: bytes, encoding: Encoding, id_header: bytes, *about: bytes) -> Scheme:
    """A signature of the body alone: nothing proves when it was made, or that the id and the rest belong to it."""
    return Scheme(
        signature=Place(header.lower(), prefix),
        signed=(Part.BODY,),
        key=HeaderKey((id_header,)),
        encoding=encoding,
        about=about,
    )


STANDARD_WEBHOOKS: Final = _standard(b"webhook")

PRESETS: Final[Mapping[str, Preset]] = {
    "standard_webhooks": Preset(
        (STANDARD_WEBHOOKS, _standard(b"svix")), 202, 76 * _HOUR_SECONDS, is_secret_base64=True
    ),
    "stripe": Preset(
        (
            Scheme(
                signature=Place(b"stripe-signature", b"v1=", b","),
                signed=(Part.TIME, b".", Part.BODY),
                key=ComposedKey((BodyPart(("id",)),)),
                time=Place(b"stripe-signature", b"t=", b","),
            ),
        ),
        200,
        # Three days by itself, and thirty on which it can be sent again by hand.
        33 * _DAY_SECONDS,
        # Counts down while the event is delivered to several endpoints.
        ignored=(("pending_webhooks",),),
    ),
    "slack": Preset(
        (
            Scheme(
                signature=Place(b"x-slack-signature", b"v0="),
                signed=(b"v0:", Part.TIME, b":", Part.BODY),
                key=ComposedKey((BodyPart(("event_id",)),)),
                time=Place(b"x-slack-request-timestamp"),
            ),
        ),
        200,
        2 * _HOUR_SECONDS,
        has_challenge=True,
    ),
    # What happens once is sent to all hooks under one id.
    "github": Preset(
        (
            _of_body(
                b"X-Hub-Signature-256",
                b"sha256=",
                Encoding.HEX,
                b"X-GitHub-Delivery",
                b"x-github-event",
                b"x-github-hook-id",
            ),
        ),
        200,
        3 * _DAY_SECONDS,
    ),
    # The body is the state of what the event is about: the same for an order that is created and one that is paid.
    "shopify": Preset(
        (
            _of_body(
                b"X-Shopify-Hmac-SHA256",
                b"",
                Encoding.BASE64,
                b"X-Shopify-Webhook-Id",
                b"x-shopify-topic",
                b"x-shopify-shop-domain",
            ),
        ),
        200,
        2 * _DAY_SECONDS,
    ),
    # The signature is that of another preset, unless it is a bearer token.
    "cloudevents": Preset((Scheme(Place(b"authorization", b"Bearer "), (), CloudEventKey()),), 202, _DAY_SECONDS),
    # The scheme is made of the route's settings.
    "hmac": Preset((), 202, 0),
}


CLOUD_EVENT_ABOUT: Final = (b"ce-source", b"ce-subject", b"ce-type")
"""What a CloudEvent in binary mode is, and whose, where its id proves nothing."""


def custom_scheme(
    *,
    signature: Place,
    signed: tuple[bytes | Part, ...],
    digest: Digest,
    encoding: Encoding,
    event_id: bytes | Pointer,
    time_header: bytes | None,
    about: Sequence[bytes] = (),
) -> Scheme:
    """The scheme of the preset `hmac`. Raises ValueError, with what to write, for one that proves nothing.

    `event_id` is the name of a header, in the spelling of the file, or a pointer into the body.
    """
    if signed.count(Part.BODY) != 1:
        raise ValueError("what is signed needs {body}, once")
    if Part.TIME in signed and time_header is None:
        raise ValueError("{timestamp} is signed, so the header that holds it has to be named")
    if time_header is not None and Part.TIME not in signed:
        raise ValueError("a timestamp that is not signed proves nothing: add {timestamp} to what is signed")
    if any(isinstance(one, Part) and isinstance(two, Part) and Part.ID in (one, two) for one, two in pairwise(signed)):
        raise ValueError("{id} needs a constant text between it and its neighbour, such as a dot")
    if Part.ID in signed and not isinstance(event_id, bytes):
        raise ValueError("{id} stands for a header; an id in the body is signed with {body}")
    return Scheme(
        signature=signature,
        signed=signed,
        key=HeaderKey((event_id,)) if isinstance(event_id, bytes) else ComposedKey((BodyPart(event_id),)),
        digest=digest,
        encoding=encoding,
        time=None if time_header is None else Place(time_header.lower()),
        id_header=event_id.lower() if isinstance(event_id, bytes) and Part.ID in signed else None,
        about=tuple(name.lower() for name in about),
    )


_PLACEHOLDERS: Final = {b"{%b}" % part.value.encode(): part for part in Part}


def parse_template(text: str) -> tuple[bytes | Part, ...]:
    """What is signed, as written: text with `{id}`, `{timestamp}` and `{body}`. Raises ValueError for another name."""
    parts: list[bytes | Part] = []
    rest = text.encode()
    while rest:
        before, brace, after = rest.partition(b"{")
        if before:
            parts.append(before)
        if not brace:
            break
        name, closing, rest = after.partition(b"}")
        part = _PLACEHOLDERS.get(b"{" + name + closing)
        if part is None:
            raise ValueError("a brace opens {id}, {timestamp} or {body}")
        parts.append(part)
    return tuple(parts)


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret of a route or a sink. It is used until `until` (Unix time in seconds), for ever without."""

    id: str
    key: bytes = field(repr=False)
    algorithm: Algorithm = Algorithm.HMAC
    until: float | None = None


def living(secrets: Sequence[Secret], now: float) -> list[Secret]:
    """The secrets that are used at `now`, in Unix time."""
    return [secret for secret in secrets if secret.until is None or now < secret.until]


def secret_key(text: str, *, is_base64: bool) -> tuple[bytes, Algorithm]:
    """The key in a secret as the sender shows it. Raises ValueError, which does not repeat the secret."""
    expected = "expected whsec_ or whpk_ and base64, as the sender shows it"
    if not is_base64:
        key, algorithm = text.encode(), Algorithm.HMAC
    elif text.startswith(_PRIVATE):
        raise ValueError("this is the sender's private key; a receiver needs the public one, whpk_...")
    elif text.startswith(_PUBLIC):
        key, algorithm = _decoded(text.removeprefix(_PUBLIC), expected), Algorithm.ED25519
        if len(key) != ED25519_KEY_BYTES:
            raise ValueError(f"a public key whpk_... is {ED25519_KEY_BYTES} bytes in base64")
    else:
        key, algorithm = _decoded(text.removeprefix(_SHARED), expected), Algorithm.HMAC
    if len(key) < SECRET_BYTES_MIN:
        raise ValueError(f"a secret has at least {SECRET_BYTES_MIN} bytes")
    return key, algorithm


def signing_key(text: str) -> tuple[bytes, Algorithm]:
    """The key in a secret that the gateway signs its own webhooks with, by Standard Webhooks.

    Without a prefix it is a shared secret, as older programs show it. Raises ValueError, which does not repeat it.
    """
    expected = "expected whsec_ or whsk_, and base64"
    if text.startswith(_PUBLIC):
        raise ValueError("this is the consumer's public key; the gateway signs with the private one, whsk_...")
    if text.startswith(_PRIVATE):
        key = _decoded(text.removeprefix(_PRIVATE), expected)
        # Some tools write the public key behind the private one.
        if len(key) not in (ED25519_KEY_BYTES, 2 * ED25519_KEY_BYTES):
            raise ValueError(f"expected an Ed25519 key of {ED25519_KEY_BYTES} bytes behind whsk_")
        return key[:ED25519_KEY_BYTES], Algorithm.ED25519_PRIVATE
    key = _decoded(text.removeprefix(_SHARED), expected)
    if not SECRET_BYTES_MIN <= len(key) <= SIGNING_SECRET_BYTES_MAX:
        raise ValueError(f"expected a secret of {SECRET_BYTES_MIN} to {SIGNING_SECRET_BYTES_MAX} bytes")
    return key, Algorithm.HMAC


# How Standard Webhooks marks the kinds of secrets.
_SHARED: Final = "whsec_"
_PUBLIC: Final = "whpk_"
_PRIVATE: Final = "whsk_"


def _decoded(text: str, expected: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(expected) from None


def event_key(scheme: Scheme, *, guards_content: bool) -> KeySpec:
    """How an event is identified that this scheme verified: by its id or its content, and what else its sender says of
    it. Source and id of a CloudEvent are all that there is to it."""
    key = ContentKey() if guards_content else scheme.key
    if not scheme.about or isinstance(key, CloudEventKey | EventKey):
        return key
    return EventKey(key, scheme.about)


def combined_key(schemes: tuple[Scheme, ...], *, guards_content: bool) -> KeySpec:
    """How events of a route are identified, as its recipe. One message is identified by its own scheme."""
    keys = [event_key(scheme, guards_content=guards_content) for scheme in schemes]
    if len(keys) > 1 and all(isinstance(key, HeaderKey) for key in keys):
        return HeaderKey(tuple(name for key in keys if isinstance(key, HeaderKey) for name in key.names))
    return keys[0]
