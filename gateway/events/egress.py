"""Guards where the gateway connects to, so that a URL or a DNS response cannot lead it into its own network (SSRF).

`core.egress` says which addresses are forbidden. A name is resolved once for each connection and refused if *any* of
its addresses is forbidden; what is checked is what is connected to, because the same function sees each address right
before the connection, in whatever form it was written. Name and certificate are checked by TLS as always, because the
connection keeps the name for SNI and `Host`.
"""

from __future__ import annotations

import socket
from typing import Any

from aiohttp import TCPConnector
from aiohttp.abc import AbstractResolver, ResolveResult

from gateway.core.egress import EgressPolicy, check_address
from gateway.upstream.connect import Names


class GuardedResolver(AbstractResolver):
    """Resolves a name, and refuses all of its addresses if one is forbidden."""

    def __init__(self, policy: EgressPolicy, resolver: AbstractResolver) -> None:
        self._policy = policy
        self._resolver = resolver

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
        for each in found:
            check_address(self._policy, each["host"])
        return found

    async def close(self) -> None:
        await self._resolver.close()


def guarded_connector(policy: EgressPolicy, resolver: AbstractResolver | None = None) -> TCPConnector:
    """A connector that connects to allowed addresses alone. With a proxy, to the proxy, which is not checked.

    Without a resolver, names are looked up in threads of its own: a name server that hangs delays no other sink.
    The resolver sees names only: literals never reach it. The factory of sockets sees every address.
    """
    resolver = Names() if resolver is None else resolver
    if policy.proxy is not None:
        return TCPConnector(limit=0, use_dns_cache=False, resolver=resolver)

    def checked_socket(address: tuple[Any, ...]) -> socket.socket:
        family, kind, protocol, _, target = address
        check_address(policy, str(target[0]))
        return socket.socket(family, kind, protocol)

    return TCPConnector(
        limit=0, use_dns_cache=False, resolver=GuardedResolver(policy, resolver), socket_factory=checked_socket
    )
