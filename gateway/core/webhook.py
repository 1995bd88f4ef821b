"""Webhooks: who sent one and which event it is, how those that the gateway sends or sends on are signed, and to which
addresses it sends any.

First the signature schemes, as data, and the presets of senders made of them; then what verifies and makes signatures
of any scheme; then what decides what a request to an inbox is; then the addresses.

Sources: Standard Webhooks 1.0; the documentation of Stripe, Slack, GitHub and Shopify on verifying their webhooks;
CloudEvents 1.0, HTTP protocol binding and web hooks.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from ipaddress import ip_address, ip_network
from itertools import pairwise
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from gateway.core import immutable
from gateway.core.identity.body import Body, Pointer, parse_json
from gateway.core.identity.key import (
    BodyPart,
    CloudEventKey,
    ComposedKey,
    ContentKey,
    EventKey,
    HeaderKey,
    Key,
    KeyFault,
    KeySpec,
    Network,
    is_event_batch,
    is_structured_event,
    is_within,
)
from gateway.core.message import Headers, IndexedHeaders, header_values

# -- schemes -----------------------------------------------------------------------------------------------------------

SECRET_BYTES_MIN: Final = 24
# What Standard Webhooks asks of those who sign. Other senders may have longer ones.
SIGNING_SECRET_BYTES_MAX: Final = 64
ED25519_KEY_BYTES: Final = 32

_HOUR_SECONDS: Final = 3600
_DAY_SECONDS: Final = 24 * _HOUR_SECONDS


Algorithm = StrEnum("Algorithm", "HMAC ED25519 ED25519_PRIVATE BEARER")
"""What a secret is for; the secret decides, never the message. `ed25519`: it is a public key, which verifies.
`ed25519_private`: it is a private key, which signs. `bearer`: the message carries the secret itself."""
Encoding = StrEnum("Encoding", "HEX BASE64")
"""How an HMAC is written: in lower-case hexadecimal digits, or in base64 with padding."""
Digest = StrEnum("Digest", "SHA256 SHA512")


class Part(StrEnum):
    """What of a message is signed, besides constant bytes: the header of its id or of its time as sent, its body."""

    ID = "id"
    TIME = "timestamp"
    BODY = "body"


@immutable
class Place:
    """Where a value is: in a header (its name in lower case), after `prefix`. With a `separator`, the header is a list,
    and each of its members that begins with `prefix` has such a value."""

    header: bytes
    prefix: bytes = b""
    separator: bytes = b""


@immutable
class Scheme:
    """One way to sign messages. `signature` is where HMACs are, or the bearer token of a scheme that signs nothing
    (`signed` is empty). Members of that header that begin with `ed25519_prefix` are Ed25519 signatures of the same
    bytes, in base64. `key` is how the id of the event is read; `id_header` is the header that holds it, where that is
    signed. `about` are the headers (lower case) that say what an event is, and whose, and are the same whenever it is
    sent again."""

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
        return not self.signed

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
        if isinstance(self.key, ComposedKey):
            return not self.is_bearer and all(isinstance(part, BodyPart) for part in self.key.parts)
        return isinstance(self.key, HeaderKey) and self.id_header is not None

    @property
    def headers(self) -> frozenset[bytes]:
        """The headers that are verified, in lower case. A message needs all of them, and each of them once."""
        names = {self.signature.header, self.id_header, None if self.time is None else self.time.header}
        return frozenset(name for name in names if name is not None)


@immutable
class Preset:
    """What is known of a kind of sender. `schemes`: a message is verified by the first one whose signature header it
    has. `acknowledgement` is the status for what is stored. `horizon_seconds` is how long the sender may send an event
    again, also by hand. `ignored` are values of the body that differ between deliveries of one event.
    `is_secret_base64`: secrets are written in base64, perhaps with a prefix that names their kind. `has_challenge`: the
    sender verifies the URL by a message that is no event."""

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
    place, key = Place(header.lower(), prefix), HeaderKey((id_header,))
    return Scheme(place, (Part.BODY,), key, encoding=encoding, about=about)


def _of_time(place: Place, *signed: bytes | Part, id_name: str, time: Place) -> Scheme:
    """A signature of time and body, in which the id is."""
    return Scheme(place, signed, ComposedKey((BodyPart((id_name,)),)), time=time)


STANDARD_WEBHOOKS: Final = _standard(b"webhook")
_STRIPE: Final = b"stripe-signature"
_STRIPE_SCHEME: Final = _of_time(
    Place(_STRIPE, b"v1=", b","), Part.TIME, b".", Part.BODY, id_name="id", time=Place(_STRIPE, b"t=", b",")
)
_SLACK_TIME: Final = Place(b"x-slack-request-timestamp")
_SLACK_SCHEME: Final = _of_time(
    Place(b"x-slack-signature", b"v0="), b"v0:", Part.TIME, b":", Part.BODY, id_name="event_id", time=_SLACK_TIME
)
# What happens once is sent to all hooks under one id.
_GITHUB_ABOUT: Final = (b"x-github-event", b"x-github-hook-id")
_GITHUB_SCHEME: Final = _of_body(b"X-Hub-Signature-256", b"sha256=", Encoding.HEX, b"X-GitHub-Delivery", *_GITHUB_ABOUT)
# The body is the state of what the event is about: the same for an order that is created and one that is paid.
_SHOPIFY_ABOUT: Final = (b"x-shopify-topic", b"x-shopify-shop-domain")
_SHOPIFY_SCHEME: Final = _of_body(
    b"X-Shopify-Hmac-SHA256", b"", Encoding.BASE64, b"X-Shopify-Webhook-Id", *_SHOPIFY_ABOUT
)
PRESETS: Final[Mapping[str, Preset]] = {
    "standard_webhooks": Preset(
        (STANDARD_WEBHOOKS, _standard(b"svix")), 202, 76 * _HOUR_SECONDS, is_secret_base64=True
    ),
    # Three days by itself, and thirty on which it can be sent again by hand. What is ignored counts down while the
    # event is delivered to several endpoints.
    "stripe": Preset((_STRIPE_SCHEME,), 200, 33 * _DAY_SECONDS, ignored=(("pending_webhooks",),)),
    "slack": Preset((_SLACK_SCHEME,), 200, 2 * _HOUR_SECONDS, has_challenge=True),
    "github": Preset((_GITHUB_SCHEME,), 200, 3 * _DAY_SECONDS),
    "shopify": Preset((_SHOPIFY_SCHEME,), 200, 2 * _DAY_SECONDS),
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
    """The scheme of the preset `hmac`. Raises ValueError, with what to write, for one that proves nothing. `event_id`
    is the name of a header, in the spelling of the file, or a pointer into the body."""
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


_PLACEHOLDER: Final = re.compile(rf"\{{({'|'.join(Part)})\}}")


def parse_template(text: str) -> tuple[bytes | Part, ...]:
    """What is signed, as written: text with `{id}`, `{timestamp}` and `{body}`. Raises ValueError for another name."""
    texts = _PLACEHOLDER.split(text)
    # Every second one is a name.
    if any("{" in constant for constant in texts[::2]):
        raise ValueError("a brace opens {id}, {timestamp} or {body}")
    return tuple(Part(each) if at % 2 else each.encode() for at, each in enumerate(texts) if each)


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret of a route or a sink. It is used until `until` (Unix time in seconds), for ever without."""

    id: str
    key: bytes = field(repr=False)
    algorithm: Algorithm = Algorithm.HMAC
    until: float | None = None


def living(secrets: Sequence[Secret], now: float) -> list[Secret]:
    return [secret for secret in secrets if secret.until is None or now < secret.until]


# How Standard Webhooks marks the kinds of secrets.
_SHARED: Final = "whsec_"
_PUBLIC: Final = "whpk_"
_PRIVATE: Final = "whsk_"


def secret_key(text: str, *, is_base64: bool) -> tuple[bytes, Algorithm]:
    """The key in a secret as the sender shows it. Raises ValueError, which does not repeat the secret."""
    expected = "expected whsec_ or whpk_ and base64, as the sender shows it"
    key, algorithm = text.encode(), Algorithm.HMAC
    if is_base64 and text.startswith(_PRIVATE):
        raise ValueError("this is the sender's private key; a receiver needs the public one, whpk_...")
    if is_base64 and text.startswith(_PUBLIC):
        key, algorithm = _decoded(text.removeprefix(_PUBLIC), expected), Algorithm.ED25519
        if len(key) != ED25519_KEY_BYTES:
            raise ValueError(f"a public key whpk_... is {ED25519_KEY_BYTES} bytes in base64")
    elif is_base64:
        key = _decoded(text.removeprefix(_SHARED), expected)
    if len(key) < SECRET_BYTES_MIN:
        raise ValueError(f"a secret has at least {SECRET_BYTES_MIN} bytes")
    return key, algorithm


def signing_key(text: str) -> tuple[bytes, Algorithm]:
    """The key in a secret that the gateway signs its own webhooks with, by Standard Webhooks. Without a prefix it is a
    shared secret, as older programs show it. Raises ValueError, which does not repeat it."""
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


# -- signatures --------------------------------------------------------------------------------------------------------
#
# Works on the bytes as received, of headers and body. A message chooses nothing but which of the route's schemes it
# claims to follow. Every living secret is tried against every signature that is looked at, and HMACs are compared in
# constant time, so that time shows neither which secret fits nor how much of a guess is right. What is malformed is a
# value, never an exception.
#
# A timestamp is accepted within the tolerance on both sides. A message from the future could so be sent again for twice
# the tolerance; its id is remembered for much longer.

SIGNATURES_MAX: Final = 10
"""How many signatures of a message are looked at. Senders sign with two secrets while they change them."""

_MEMBERS_MAX: Final = 64
_TIME = re.compile(rb"[0-9]{1,12}")
# Room for a time and a delimiter.
_START_BYTES: Final = 256
_CHUNK_BYTES: Final = 1 << 20


Fault = StrEnum("Fault", "MISSING INVALID STALE UNSUPPORTED")
"""`missing`: it is not signed, or lacks what was signed with it. `invalid`: no living secret made this signature.
`stale`: it was signed too long ago, or too far in the future. `unsupported`: it holds several events."""


@immutable
class Refused:
    reason: Fault


@immutable
class Verified:
    """The message comes from the sender."""

    scheme: Scheme
    secret_ids: tuple[str, ...]


Content = tuple[bytes | None, ...]
"""The bytes that are signed; None stands for the body."""


@immutable
class _Claim:
    """What a message claims: these signatures, with their prefixes, of this content, made at this time."""

    signatures: tuple[bytes, ...]
    time: bytes | None
    content: Content

    @property
    def signed_at(self) -> int | None:
        return int(self.time) if self.time is not None and _TIME.fullmatch(self.time) else None


def verify(
    schemes: Sequence[Scheme],
    secrets: Sequence[Secret],
    headers: Headers,
    body: Body,
    *,
    now: float,
    tolerance_seconds: float,
) -> Verified | Refused:
    """Whether one of the secrets that are alive at `now` (Unix time in seconds) signed this message."""
    scheme = _scheme_of(schemes, headers)
    if scheme is None:
        return Refused(Fault.MISSING)
    if isinstance(claim := _claim(scheme, headers), Refused):
        return claim
    if scheme.time is not None:
        if (signed_at := claim.signed_at) is None:
            return Refused(Fault.INVALID)
        if abs(now - signed_at) > tolerance_seconds:
            return Refused(Fault.STALE)
    if _is_ambiguous(scheme, claim, body):
        return Refused(Fault.INVALID)
    signers = [secret.id for secret in living(secrets, now) if _is_signer(scheme, secret, claim, body)]
    if not signers:
        return Refused(Fault.INVALID)
    return Verified(scheme, tuple(signers))


def sign(scheme: Scheme, secrets: Sequence[Secret], body: Body, *, now: int, event_id: bytes = b"") -> Headers:
    """The headers of a message that is made at `now` (Unix time in seconds) and signed by all of the secrets.
    `event_id` is for schemes that sign it. Raises ValueError for one that could be read as another one."""
    if scheme.id_header is not None and not event_id:
        raise ValueError("this scheme signs an id")
    if any(delimiter in event_id for delimiter in scheme.delimiters):
        raise ValueError("the id contains what separates it from what else is signed")
    time = b"%d" % now
    known = {Part.ID: event_id, Part.TIME: time}
    content = tuple(part if isinstance(part, bytes) else known.get(part) for part in scheme.signed)
    headers = _signed_headers(scheme, secrets, content, body, time)
    return (*headers.items(),) if scheme.id_header is None else ((scheme.id_header, event_id), *headers.items())


def sign_again(
    schemes: Sequence[Scheme], secrets: Sequence[Secret], headers: Headers, body: Body, *, now: int
) -> Headers | None:
    """The headers with a signature as of `now`, by the secrets that made the one that is there; the id is the same. A
    secret that has ended still signs: the service that knows it is the one that the sender signed for. None where
    nothing can be signed again: the scheme signs no time, no secret of the route made the signature, or it is made with
    a private key that only the sender has."""
    found: Headers | None = None
    for scheme in schemes:
        claim = _claim(scheme, headers)
        if scheme.time is None or isinstance(claim, Refused) or claim.signed_at is None:
            continue
        signers = [
            secret
            for secret in secrets
            if secret.algorithm is not Algorithm.ED25519 and _is_signer(scheme, secret, claim, body)
        ]
        if not scheme.signature.separator:
            del signers[1:]
        if signers:
            # A new time and new signatures, each where the old one was.
            time = b"%d" % now
            content = tuple(
                time if part is Part.TIME else old for part, old in zip(scheme.signed, claim.content, strict=True)
            )
            changed = _signed_headers(scheme, signers, content, body, time)
            found = tuple((name, changed.get(name.lower(), value)) for name, value in found or headers)
    return found


def _scheme_of(schemes: Sequence[Scheme], headers: Headers) -> Scheme | None:
    return next((scheme for scheme in schemes if header_values(headers, scheme.signature.header)), None)


def _claim(scheme: Scheme, headers: Headers) -> _Claim | Refused:
    """What the message claims. A header that is given twice proves nothing: the service may read the other one."""
    values: dict[bytes, bytes] = {}
    for name in scheme.headers:
        found = header_values(headers, name)
        if len(found) != 1:
            return Refused(Fault.INVALID if found else Fault.MISSING)
        values[name] = found[0]
    time = None
    if (place := scheme.time) is not None:
        times = _members(values[place.header], place.separator, (place.prefix,))
        if len(times) != 1:
            return Refused(Fault.INVALID if times else Fault.MISSING)
        time = times[0].removeprefix(place.prefix)
    signature = values[scheme.signature.header]
    if scheme.is_bearer:
        signature = _with_exact_case(signature, scheme.signature.prefix)
    prefixes = tuple(each for each in (scheme.signature.prefix, scheme.ed25519_prefix) if each is not None)
    signatures = _members(signature, scheme.signature.separator, prefixes)[:SIGNATURES_MAX]
    if not signatures:
        return Refused(Fault.MISSING)
    known = {Part.ID: values.get(scheme.id_header or b""), Part.TIME: time}
    content = tuple(part if isinstance(part, bytes) else known.get(part) for part in scheme.signed)
    return _Claim(tuple(signatures), time, content)


def _is_ambiguous(scheme: Scheme, claim: _Claim, body: Body) -> bool:
    """Whether what is signed could be divided differently: another id, whose rest passes for the time, and the time for
    the start of the body. No event begins with a time, and Standard Webhooks forbids ids with a dot."""
    if not scheme.delimiters:
        return False
    event_id = claim.content[scheme.signed.index(Part.ID)] or b""
    start = body[:_START_BYTES]
    digits = _TIME.match(start)
    rest = b"" if digits is None else start[digits.end() :]
    return any(delimiter in event_id or rest.startswith(delimiter) for delimiter in scheme.delimiters)


def _members(value: bytes, separator: bytes, prefixes: tuple[bytes, ...]) -> list[bytes]:
    members = value.split(separator, _MEMBERS_MAX) if separator else [value]
    return [member for member in members if member.startswith(prefixes)]


def _with_exact_case(value: bytes, prefix: bytes) -> bytes:
    """The name of an authentication scheme is written in any case (RFC 9110 section 11.1)."""
    length = len(prefix)
    return prefix + value[length:].lstrip(b" ") if value[:length].lower() == prefix.lower() else value


def _is_signer(scheme: Scheme, secret: Secret, claim: _Claim, body: Body) -> bool:
    """Whether one of the signatures is this secret's. All of them are compared, whichever fits."""
    is_found = False
    if secret.algorithm is Algorithm.ED25519:
        prefix = scheme.ed25519_prefix
        if prefix is not None:
            message = b"".join(_chunks(claim.content, body))
            for signature in claim.signatures:
                is_found |= signature.startswith(prefix) and _is_ed25519(secret.key, signature[len(prefix) :], message)
        return is_found
    expected = _signature(scheme, secret, claim.content, body)
    for signature in claim.signatures:
        is_found |= hmac.compare_digest(expected, signature)
    return is_found


def _signature(scheme: Scheme, secret: Secret, content: Content, body: Body) -> bytes:
    """A signature as the header has it, or the bearer token."""
    if scheme.is_bearer:
        return scheme.signature.prefix + secret.key
    if secret.algorithm is Algorithm.ED25519_PRIVATE:
        signature = Ed25519PrivateKey.from_private_bytes(secret.key).sign(b"".join(_chunks(content, body)))
        return (scheme.ed25519_prefix or b"") + base64.b64encode(signature)
    digest = hmac.new(secret.key, digestmod=scheme.digest.value)
    for chunk in _chunks(content, body):
        digest.update(chunk)
    if scheme.encoding is Encoding.HEX:
        return scheme.signature.prefix + digest.hexdigest().encode()
    return scheme.signature.prefix + base64.b64encode(digest.digest())


def _chunks(content: Content, body: Body) -> Iterator[bytes]:
    for part in content:
        if part is not None:
            yield part
            continue
        for start in range(0, len(body), _CHUNK_BYTES):
            yield body[start : start + _CHUNK_BYTES]


def _is_ed25519(public_key: bytes, signature: bytes, message: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(base64.b64decode(signature, validate=True), message)
    except (InvalidSignature, binascii.Error, ValueError):
        return False
    return True


def _signed_headers(
    scheme: Scheme, secrets: Sequence[Secret], content: Content, body: Body, time: bytes
) -> dict[bytes, bytes]:
    place = scheme.signature
    members = [_signature(scheme, secret, content, body) for secret in secrets]
    headers: dict[bytes, bytes] = {}
    if scheme.time is not None:
        stamp = scheme.time.prefix + time
        if scheme.time.header == place.header:
            members.insert(0, stamp)
        else:
            headers[scheme.time.header] = stamp
    headers[place.header] = (place.separator or b" ").join(members)
    return headers


# -- examination -------------------------------------------------------------------------------------------------------
#
# First the signature with its time, then the id: a message that its sender did not sign is refused before anything of
# it is read, and all such refusals can look the same.
#
# Which event it is. Where the id is signed, or is part of the signed body, it is the key: nobody can give the event
# another one. Where it is not, anybody who has seen one delivery could send it again under another id, as often as he
# likes, and could spend the id of an event that is still to come on an old one. So there the body is the key by default
# (`guards_content`): of any number of deliveries at once, under equal or different ids, exactly one is accepted. An
# unsigned id that comes with two bodies names two events, each of which the sender signed. A route whose events may be
# equal to the byte turns this off, and relies on the id.
#
# What the sender's scheme says of an event outside its body (`Scheme.about`: the topic, the shop, the hook) belongs to
# its identity in both cases, because senders send one body, or one id, for several events. Where the signature does not
# cover these headers, who has seen a delivery can have its body delivered again under other values. That is the price:
# without them a genuine event would be acknowledged and never delivered.

_CHALLENGE_CHARACTERS_MAX: Final = 1024
_ORIGIN_BYTES_MAX: Final = 256


SignAgain = StrEnum("SignAgain", "LATE ALWAYS NEVER")
"""When an attempt gets a new time and signature: once half of the tolerance has passed, always, or never."""


@dataclass(frozen=True, slots=True)
class Inbox:
    """The inbox of a route. `acknowledgement` is the status for an event that is stored. `refuses_changed`: the same id
    with another content is a conflict, and not acknowledged. `answers_challenge`: the sender verifies the URL by a
    signed question. `origins` are the senders of CloudEvents that may deliver here (`*`: all). With `own_secrets` the
    gateway signs each delivery itself, by Standard Webhooks, because nobody else can make the sender's signatures."""

    schemes: tuple[Scheme, ...]
    secrets: tuple[Secret, ...]
    tolerance_seconds: float
    acknowledgement: int
    guards_content: bool = False
    sign_again: SignAgain = SignAgain.LATE
    refuses_changed: bool = False
    answers_challenge: bool = False
    origins: tuple[bytes, ...] = ()
    own_secrets: tuple[Secret, ...] = ()

    @property
    def key(self) -> KeySpec:
        """How events are identified, over all schemes, as the recipe. One message is identified by its own scheme."""
        keys = [event_key(scheme, guards_content=self.guards_content) for scheme in self.schemes]
        if len(keys) > 1 and all(isinstance(key, HeaderKey) for key in keys):
            return HeaderKey(tuple(name for key in keys if isinstance(key, HeaderKey) for name in key.names))
        return keys[0]

    @property
    def headers(self) -> frozenset[bytes]:
        """The headers, in lower case, that a request may have once at most."""
        names: frozenset[bytes] = frozenset()
        for scheme in self.schemes:
            names |= scheme.headers | scheme.key.headers | frozenset(scheme.about)
        return names


@immutable
class VerifiedEvent:
    """An event of the sender. `key` identifies it; `secret_ids` are the secrets that signed it."""

    key: Key
    secret_ids: tuple[str, ...]


@immutable
class Challenge:
    """Not an event: the sender wants to see that this URL expects it. The reply is `text`."""

    text: str
    secret_ids: tuple[str, ...]


@immutable
class Unidentified:
    """A message of the sender without an id that can be read; `detail` says why, None where there is none."""

    key: KeySpec
    detail: str | None
    secret_ids: tuple[str, ...]


def examine_message(
    inbox: Inbox, headers: Headers, body: Body, *, now: float
) -> VerifiedEvent | Challenge | Unidentified | Refused:
    """What this message is, at `now` in Unix time."""
    verified = verify(inbox.schemes, inbox.secrets, headers, body, now=now, tolerance_seconds=inbox.tolerance_seconds)
    if isinstance(verified, Refused):
        return verified
    signers = verified.secret_ids
    if inbox.answers_challenge and (challenge := _challenge(body)) is not None:
        return Challenge(challenge, signers)
    scheme, by_name = verified.scheme, IndexedHeaders(headers).by_name
    if isinstance(scheme.key, CloudEventKey):
        if is_event_batch(by_name):
            return Refused(Fault.UNSUPPORTED)
        if is_structured_event(by_name):
            # All that is said of it is in its body.
            scheme = replace(scheme, about=())
    spec = event_key(scheme, guards_content=inbox.guards_content)
    key = spec.find_key(by_name, body)
    if isinstance(key, Key):
        return VerifiedEvent(key, signers)
    return Unidentified(spec, key.detail if isinstance(key, KeyFault) else None, signers)


def renewed(inbox: Inbox, headers: Headers, body: Body, *, now: float, event_id: bytes = b"") -> Headers | None:
    """The headers of an attempt that starts at `now`, signed again; None where they go as they came. `event_id` names
    the event where the gateway signs by itself and the sender's scheme signs no id."""
    if inbox.own_secrets:
        return _signed_by_gateway(inbox, headers, body, now, event_id)
    if inbox.sign_again is SignAgain.NEVER:
        return None
    scheme = _scheme_of(inbox.schemes, headers)
    claim = None if scheme is None else _claim(scheme, headers)
    # What the message claims, if it claims a time that can be read.
    made_at = claim.signed_at if isinstance(claim, _Claim) else None
    is_late = made_at is not None and abs(now - made_at) > inbox.tolerance_seconds / 2
    if inbox.sign_again is SignAgain.LATE and not is_late:
        return None
    return sign_again(inbox.schemes, inbox.secrets, headers, body, now=int(now))


def _signed_by_gateway(inbox: Inbox, headers: Headers, body: Body, now: float, event_id: bytes) -> Headers:
    """The headers as they came, but those of Standard Webhooks are the gateway's. The id is the one that is signed."""
    signed_ids = [
        ids[0]
        for scheme in inbox.schemes
        if scheme.id_header is not None and (ids := header_values(headers, scheme.id_header)) and b"." not in ids[0]
    ]
    # Where all have ended, the service knows the last one best.
    secrets = living(inbox.own_secrets, now) or [max(inbox.own_secrets, key=lambda secret: secret.until or 0)]
    own = sign(STANDARD_WEBHOOKS, secrets, body, now=int(now), event_id=next(iter(signed_ids), event_id))
    names = {name for name, _ in own}
    return (*((name, value) for name, value in headers if name.lower() not in names), *own)


def granted_origin(inbox: Inbox, headers: Headers) -> bytes | None:
    """The origin that may deliver here, of a request that asks for it (CloudEvents web hooks, section 4). The reply
    names the origin that was asked for, because senders compare it, even where all may deliver."""
    asked = header_values(headers, b"webhook-request-origin")
    if len(asked) != 1 or not 0 < len(asked[0]) <= _ORIGIN_BYTES_MAX:
        return None
    is_granted = b"*" in inbox.origins or asked[0].lower() in inbox.origins
    return asked[0] if is_granted else None


def _challenge(body: Body) -> str | None:
    """The question that Slack asks once for each URL; events have another type."""
    document = parse_json(body)
    if not isinstance(document, dict) or document.get("type") != "url_verification":
        return None
    text = document.get("challenge")
    if not isinstance(text, str) or len(text) > _CHALLENGE_CHARACTERS_MAX:
        return None
    return text if text.isascii() and text.isprintable() else None


# -- egress ------------------------------------------------------------------------------------------------------------
#
# Which addresses webhooks may have, so that no URL and no DNS response leads the gateway into its own network (SSRF).
#
# `is_global` of Python is not enough: it takes NAT64, 6to4, site-local and IPv4-compatible addresses for global, which
# lead to an IPv4 address that it never looks at. All of these are forbidden, whatever they embed.

_FORBIDDEN: Final[tuple[Network, ...]] = tuple(
    ip_network(network)
    for network in (
        "192.0.0.0/24",  # protocol assignments (RFC 6890)
        "192.88.99.0/24",  # 6to4 relays (RFC 7526)
        "::/96",  # IPv4-compatible, loopback and unspecified (RFC 4291 section 2.5.5.1)
        "::ffff:0:0/96",  # IPv4-mapped (RFC 4291 section 2.5.5.2)
        "64:ff9b::/96",  # NAT64 (RFC 6052)
        "64:ff9b:1::/48",  # local NAT64 (RFC 8215)
        "2001::/32",  # Teredo (RFC 4380)
        "2002::/16",  # 6to4 (RFC 3056)
        "fec0::/10",  # site-local (RFC 3879)
    )
)


class Forbidden(OSError):
    """The address must not be connected to. The text names it."""


@immutable
class EgressPolicy:
    """Which addresses and ports may be connected to. `allow` and `deny` are exceptions from the rule that only global
    addresses may; `deny` counts more. With a `proxy` the gateway sees no address, so checking them is the proxy's
    task."""

    allow: tuple[Network, ...] = ()
    deny: tuple[Network, ...] = ()
    ports: frozenset[int] = frozenset((443, 80))
    https_only: bool = True
    proxy: str | None = None


def check_address(policy: EgressPolicy, host: str) -> None:
    """Raise `Forbidden` unless this numeric address may be connected to."""
    try:
        address = ip_address(host)
    except ValueError:
        raise Forbidden(f"{host} is not an address") from None
    if is_within(address, policy.deny):
        raise Forbidden(f"{address} is forbidden by egress.deny")
    if is_within(address, policy.allow):
        return
    if not address.is_global or address.is_multicast or is_within(address, _FORBIDDEN):
        raise Forbidden(f"{address} is not a public address, and egress.allow does not name it")


def is_loopback(host: str) -> bool:
    """Whether a host of a URL, without brackets, is this machine."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
