"""Verifies the signatures of webhooks, and makes them: the same code for all schemes.

Everything is done on the bytes as received, of headers and body. Which algorithm a secret is for is part of the secret;
a message chooses nothing but which of the route's schemes it claims to follow. Every living secret is tried against
every signature that is looked at, and HMACs are compared in constant time, so that time shows neither which secret
fits nor how much of a guess is right. What is malformed is a value, never an exception.

A timestamp is accepted within the tolerance on both sides. A message from the future could so be sent again for twice
the tolerance; its id is remembered for much longer.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from gateway.core.identity.canonical import Body
from gateway.core.immutable import immutable
from gateway.core.message import Headers, header_values
from gateway.core.webhook.scheme import Algorithm, Encoding, Part, Scheme, Secret, living

SIGNATURES_MAX: Final = 10
"""How many signatures of a message are looked at. Senders sign with two secrets while they change them."""

_MEMBERS_MAX: Final = 64
_TIME = re.compile(rb"[0-9]{1,12}")
# Room for a time and a delimiter.
_START_BYTES: Final = 256
_CHUNK_BYTES: Final = 1 << 20


class Fault(StrEnum):
    """Why a message is refused."""

    MISSING = "missing"  # it is not signed, or lacks what was signed with it
    INVALID = "invalid"  # no living secret made this signature
    STALE = "stale"  # it was signed too long ago, or too far in the future
    UNSUPPORTED = "unsupported"  # it holds several events


@immutable
class Refused:
    reason: Fault


@immutable
class Verified:
    """The message comes from the sender. `signed_at` is the signed Unix time in seconds, if the scheme has one."""

    scheme: Scheme
    secret_ids: tuple[str, ...]
    signed_at: int | None


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
    claim = _claim(scheme, headers)
    if isinstance(claim, Refused):
        return claim
    signed_at = claim.signed_at
    if scheme.time is not None:
        if signed_at is None:
            return Refused(Fault.INVALID)
        if abs(now - signed_at) > tolerance_seconds:
            return Refused(Fault.STALE)
    if _is_ambiguous(scheme, claim, body):
        return Refused(Fault.INVALID)
    signers = _signers(scheme, living(secrets, now), claim, body)
    if not signers:
        return Refused(Fault.INVALID)
    return Verified(scheme, tuple(secret.id for secret in signers), signed_at)


def sign(scheme: Scheme, secrets: Sequence[Secret], body: Body, *, now: int, event_id: bytes = b"") -> Headers:
    """The headers of a message that is made at `now` (Unix time in seconds) and signed by all of the secrets.

    `event_id` is for schemes that sign it. Raises ValueError for one that could be read as another one.
    """
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
    """The headers with a signature as of `now`, by the secrets that made the one that is there; the id is the same.

    A secret that has ended still signs: the service that knows it is the one that the sender signed for. None where
    nothing can be signed again: the scheme signs no time, no secret of the route made the signature, or it is made with
    a private key that only the sender has.
    """
    found: Headers | None = None
    for scheme in schemes:
        claim = _claim(scheme, headers)
        if scheme.time is None or isinstance(claim, Refused) or claim.signed_at is None:
            continue
        signers = [
            secret for secret in _signers(scheme, secrets, claim, body) if secret.algorithm is not Algorithm.ED25519
        ]
        if not scheme.signature.separator:
            del signers[1:]
        if signers:
            found = _replaced(found or headers, scheme, signers, claim, body, b"%d" % now)
    return found


def signed_at(schemes: Sequence[Scheme], headers: Headers) -> int | None:
    """The Unix time in seconds that a message claims, if it claims one that can be read."""
    scheme = _scheme_of(schemes, headers)
    claim = None if scheme is None else _claim(scheme, headers)
    return claim.signed_at if isinstance(claim, _Claim) else None


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
    signatures = _members(signature, scheme.signature.separator, scheme.prefixes)[:SIGNATURES_MAX]
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


def _signers(scheme: Scheme, secrets: Sequence[Secret], claim: _Claim, body: Body) -> list[Secret]:
    return [secret for secret in secrets if _is_signer(scheme, secret, claim, body)]


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


def _replaced(
    headers: Headers, scheme: Scheme, signers: Sequence[Secret], claim: _Claim, body: Body, time: bytes
) -> Headers:
    """The headers with a new time and new signatures, each where the old one was."""
    content = tuple(time if part is Part.TIME else old for part, old in zip(scheme.signed, claim.content, strict=True))
    changed = _signed_headers(scheme, signers, content, body, time)
    return tuple((name, changed.get(name.lower(), value)) for name, value in headers)


def _signed_headers(
    scheme: Scheme, secrets: Sequence[Secret], content: Content, body: Body, time: bytes
) -> dict[bytes, bytes]:
    """The headers of the time and the signatures, which may be one."""
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
