"""The last hop of a request: the peer that it came from, and its scheme.

All requests of a connection share one, and so do connections from one address, so that its header values are made once.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address

from gateway.core.identity.certificate import ClientCertificate
from gateway.core.immutable import immutable

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
