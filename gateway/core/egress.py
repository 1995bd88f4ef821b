"""Which addresses webhooks may have, so that no URL and no DNS response leads the gateway into its own network (SSRF).

`is_global` of Python is not enough: it takes NAT64, 6to4, site-local and IPv4-compatible addresses for global, which
lead to an IPv4 address that it never looks at. All of these are forbidden, whatever they embed.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from gateway.core.immutable import immutable

Network = IPv4Network | IPv6Network

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
    if _is_within(address, policy.deny):
        raise Forbidden(f"{address} is forbidden by egress.deny")
    if _is_within(address, policy.allow):
        return
    if not address.is_global or address.is_multicast or _is_within(address, _FORBIDDEN):
        raise Forbidden(f"{address} is not a public address, and egress.allow does not name it")


def _is_within(address: IPv4Address | IPv6Address, networks: Sequence[Network]) -> bool:
    return any(address.version == network.version and address in network for network in networks)


def is_loopback(host: str) -> bool:
    """Whether a host of a URL, without brackets, is this machine."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
