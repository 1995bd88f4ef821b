"""The peer of a request: its last hop, and the certificate by which it names a caller."""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Literal, assert_never

from cryptography import x509
from cryptography.x509 import DNSName, RFC822Name, SubjectAlternativeName, UniformResourceIdentifier

from gateway.core.framing import framed
from gateway.core.identity.key import ScopeMissing, ScopeUnsuitable
from gateway.core.immutable import immutable

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

Peer = IPv4Address | IPv6Address | None


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
