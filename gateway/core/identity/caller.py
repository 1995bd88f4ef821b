"""Who sent a request, as far as that can be read: its bearer token, its client certificate, and its last hop.

Pure: reading, and comparing what was read. A token's signature is verified elsewhere, and a certificate by TLS.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from ipaddress import IPv6Address, ip_address
from typing import Any, Final, Literal, assert_never

from cryptography import x509
from cryptography.x509 import DNSName, RFC822Name, SubjectAlternativeName, UniformResourceIdentifier

from gateway.core import immutable
from gateway.core.identity.body import framed, refuse_constant, unrepeated
from gateway.core.identity.key import Address, Issuer, ScopeMissing, ScopeUnsuitable
from gateway.core.message import Headers, header_values

# -- token -------------------------------------------------------------------------------------------------------------
#
# Signed JSON Web Tokens (RFC 7519, in the compact form of RFC 7515) and what is verified of them: reading a token, and
# comparing its claims with what an issuer's tokens must say. The signature is verified between the two. A token that
# can be read in more than one way is refused, so that nobody who reads it otherwise sees another caller. A fault is a
# sentence for the client, and repeats nothing of the token.

TOKEN_BYTES_MAX: Final = 16 * 1024
SECRET_ALGORITHMS: Final = {"HS256": 32, "HS384": 48, "HS512": 64}
"""Algorithms with a shared secret, and the bytes that it must have at least (RFC 7518 section 3.2)."""

_MALFORMED: Final = "The token is malformed."
# More than any id has, and few enough to compute with.
_INTEGER_DIGITS_MAX: Final = 64
# Up to here floats have every integer.
_FRACTION_MAX: Final = 2.0**53 - 1


@immutable
class Token:
    """A token that is well-formed; nothing of it is verified. `signed` are the bytes that `signature` is about."""

    algorithm: str
    key_id: str | None
    issuer: str
    payload: Mapping[str, Any]
    signed: bytes
    signature: bytes


@immutable
class TokenFault:
    detail: str


@immutable
class Claims:
    """What a verified token says of its caller: the value that goes into the scope, and when the token ends."""

    value: bytes
    until_seconds: float


def bearer_credential(headers: Headers) -> bytes | None:
    """What follows `Bearer` in the only Authorization header (RFC 6750 section 2.1), None where there is no such."""
    values = header_values(headers, b"authorization")
    if len(values) != 1:
        return None
    scheme, _, credential = values[0].strip(b" \t").partition(b" ")
    return credential.strip(b" ") or None if scheme.lower() == b"bearer" else None


def read_token(credential: bytes) -> Token | TokenFault:
    """Read a token in the compact form of a signed one. An encrypted or nested one is malformed here."""
    if len(credential) > TOKEN_BYTES_MAX:
        return TokenFault(f"The token is longer than {TOKEN_BYTES_MAX} bytes.")
    try:
        first, second, third = credential.split(b".")
        header, payload, signature = _object(_decoded(first)), _object(_decoded(second)), _decoded(third)
    except (ValueError, RecursionError):
        return TokenFault(_MALFORMED)
    algorithm, key_id, issuer = header.get("alg"), header.get("kid"), payload.get("iss")
    if not isinstance(algorithm, str) or not isinstance(key_id, str | None):
        return TokenFault(_MALFORMED)
    if "crit" in header or "b64" in header:
        # RFC 7515 section 4.1.11: none of the extensions is understood here.
        return TokenFault("The token needs an extension that is not supported.")
    if not isinstance(issuer, str):
        return TokenFault("The token names no issuer.")
    return Token(algorithm, key_id, issuer, payload, b"%b.%b" % (first, second), signature)


def verify_claims(issuer: Issuer, token: Token, now_seconds: float) -> Claims | TokenFault:
    """What the claims of a token say whose signature is verified, at this Unix time."""
    payload = token.payload
    expires, begins = _number(payload.get("exp")), _number(payload.get("nbf"))
    if token.issuer != issuer.issuer:
        return TokenFault("The token is from another issuer.")
    if not _is_for(issuer.audience, payload.get("aud")):
        return TokenFault("The token is for another audience.")
    if expires is None:
        return TokenFault("The token says not when it expires.")
    until = expires + issuer.leeway
    if now_seconds >= until:
        return TokenFault("The token has expired.")
    if begins is None and "nbf" in payload:
        return TokenFault(_MALFORMED)
    if begins is not None and now_seconds + issuer.leeway < begins:
        return TokenFault("The token is not valid yet.")
    value = claims_value(issuer, payload)
    return value if isinstance(value, TokenFault) else Claims(value, until)


def claims_value(issuer: Issuer, payload: Mapping[str, Any]) -> bytes | TokenFault:
    """The caller: the issuer, and each claim by name, type and value. `42` and `"42"` are two callers."""
    parts = []
    for name in sorted(issuer.claims):
        value = payload.get(name)
        number = _number(value)
        kind, text = (b"string", value) if number is None else (b"number", _number_text(number))
        if not isinstance(text, str) or not text:
            return TokenFault("The token does not name its caller.")
        try:
            parts.append(framed(name.encode(), kind, text.encode()))
        except UnicodeEncodeError:  # half of a surrogate pair
            return TokenFault(_MALFORMED)
    return framed(b"jwt", issuer.issuer.encode(), *parts)


def _decoded(segment: bytes) -> bytes:
    """Base64url without padding (RFC 7515 section 2), in its only spelling. Raises ValueError."""
    decoded = urlsafe_b64decode(segment + b"=" * (-len(segment) % 4))
    if urlsafe_b64encode(decoded).rstrip(b"=") != segment:
        raise ValueError("not canonical")
    return decoded


def _object(text: bytes) -> dict[str, Any]:
    """A JSON object whose names differ, and whose numbers are not too large. Raises ValueError and RecursionError."""
    # Decoded here: given bytes, the parser would take other encodings, too.
    value = json.loads(
        text.decode("utf-8"),
        object_pairs_hook=unrepeated,
        parse_constant=refuse_constant,
        parse_float=_fraction,
        parse_int=_integer,
    )
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


def _integer(text: str) -> int:
    if len(text) > _INTEGER_DIGITS_MAX:
        raise ValueError("out of range")
    return int(text)


def _fraction(text: str) -> float:
    # A larger one is rounded, so that two callers could become one.
    value = float(text)
    if abs(value) > _FRACTION_MAX:
        raise ValueError("out of range")
    return value


def _is_for(ours: str, audience: object) -> bool:
    """RFC 7519 section 4.1.3: one audience, or a list of them."""
    if isinstance(audience, list):
        return ours in audience
    return audience == ours


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _number_text(value: float) -> str:
    """One spelling for equal numbers: 42, 42.0 and 4.2e1 are one."""
    return str(int(value)) if value == int(value) else repr(value)


# -- certificate -------------------------------------------------------------------------------------------------------
#
# A client's certificate, as far as it names a caller.
#
# Owns what two certificates must share to be of one caller. Whether a certificate is genuine is decided by TLS, before
# anything of it is read here. Names are compared by their values: neither the encoding of a certificate nor the words
# that a library has for its attributes may move a caller to another scope.


@immutable
class ClientCertificate:
    """The verified certificate of a client: its subject, framed and empty where it has none; its alternative names, by
    kind; and the digest of all of it. It is valid until `until`, in Unix seconds."""

    subject: bytes
    uris: tuple[str, ...]
    dns_names: tuple[str, ...]
    emails: tuple[str, ...]
    sha256: bytes
    until: float


def read_certificate(der: bytes) -> ClientCertificate | None:
    """What a certificate says; None where it cannot be read without doubt, although TLS verified it."""
    try:
        certificate = x509.load_der_x509_certificate(der)
        subject = certificate.subject
        names = _alternative_names(certificate)
        return ClientCertificate(
            subject=framed(*[_framed_attributes(each) for each in subject.rdns]),
            uris=tuple(names.get_values_for_type(UniformResourceIdentifier)),
            dns_names=tuple(name.lower() for name in names.get_values_for_type(DNSName)),
            emails=tuple(names.get_values_for_type(RFC822Name)),
            sha256=sha256(der).digest(),
            until=certificate.not_valid_after_utc.timestamp(),
        )
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        return None


def first_expiry(pem: bytes) -> float | None:
    """When the first of these certificates ends to be valid, as Unix time; None where they cannot be read."""
    try:
        return min(each.not_valid_after_utc.timestamp() for each in x509.load_pem_x509_certificates(pem))
    except ValueError:
        return None


def certificate_name(
    certificate: ClientCertificate, part: Literal["subject", "san", "sha256"]
) -> bytes | ScopeMissing | ScopeUnsuitable:
    """What names the caller. Alternative names are taken of the first kind that there is: URI, DNS, e-mail."""
    match part:
        case "subject":
            if not certificate.subject:
                return ScopeMissing("The subject of the client certificate is empty.", is_credential=True)
            return certificate.subject
        case "sha256":
            return certificate.sha256
        case "san":
            kinds = (("URI", certificate.uris), ("DNS", certificate.dns_names), ("e-mail", certificate.emails))
            kind, names = next(((kind, names) for kind, names in kinds if names), ("", ()))
            if not names:
                detail = "The client certificate has no URI, DNS or e-mail name."
                return ScopeMissing(detail, is_credential=True)
            if len(names) > 1:
                return ScopeUnsuitable(f"The client certificate has more than one {kind} name.")
            return framed(kind.encode(), names[0].encode())
        case _:
            assert_never(part)


def _alternative_names(certificate: x509.Certificate) -> SubjectAlternativeName:
    try:
        return certificate.extensions.get_extension_for_class(SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return SubjectAlternativeName([])


def _framed_attributes(attributes: x509.RelativeDistinguishedName) -> bytes:
    """The attributes of one part of a subject: a set, in which order means nothing."""
    values = ((each.oid.dotted_string.encode(), each.value) for each in attributes)
    return framed(*sorted(framed(oid, v if isinstance(v, bytes) else v.encode()) for oid, v in values))


# -- hop ---------------------------------------------------------------------------------------------------------------
#
# The last hop of a request: the peer that it came from, and its scheme.
#
# All requests of a connection share one, and so do connections from one address, so that its header values are made
# once.

Peer = Address | None


@immutable
class Hop:
    """`peer` is the other end of the connection, None on a Unix socket; `address` is the same as text.

    An IPv4 address on an IPv6 socket is an IPv4 address here. `scheme` is http or https. `certificate` is the one that
    TLS verified: that of the last proxy, where there is one between. `region` is that of the gateway that sent the
    request here, if one did: all else is about the client's own connection, there.
    """

    peer: Peer
    address: bytes | None
    scheme: bytes
    certificate: ClientCertificate | None = None
    region: str | None = None


@lru_cache(4096)
def hop_from(address: str | None, *, is_secure: bool) -> Hop:
    """The hop from this address, which may carry a zone (RFC 4007 section 11), with TLS or without."""
    scheme = b"https" if is_secure else b"http"
    if address is None:
        return Hop(None, None, scheme)
    peer = ip_address(address.partition("%")[0])
    if isinstance(peer, IPv6Address) and peer.ipv4_mapped is not None:
        peer = peer.ipv4_mapped
    return Hop(peer, str(peer).encode(), scheme)
