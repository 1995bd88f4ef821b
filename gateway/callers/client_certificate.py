"""The caller by its certificate, which TLS has verified when the connection was made.

A proxy in front of the gateway has a certificate of its own, which says nothing about the caller. A connection may
outlast the certificate that it was made with; then its holder is nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.core.identity.peer import certificate_name
from gateway.core.identity.scope import ClientCertificateScope, Network, ScopeMissing
from gateway.protect.identification import Verification, Verified, Verifier
from gateway.protect.request import Request


class ClientCertificates(Verifier):
    """Verifies one kind of name. `wall_seconds` is Unix time."""

    def __init__(
        self, scope: ClientCertificateScope, trusted_proxies: Sequence[Network], wall_seconds: Callable[[], float]
    ) -> None:
        self._scope = scope
        self._trusted_proxies = tuple(trusted_proxies)
        self._wall_seconds = wall_seconds

    def known(self, request: Request) -> Verification:
        """The caller, or why the certificate names none. Nothing has to be waited for."""
        peer, certificate = request.hop.peer, request.hop.certificate
        if peer is not None and any(peer in network for network in self._trusted_proxies):
            return _missing("The request came through a proxy, which cannot show the client's certificate.")
        if certificate is None:
            return _missing("A client certificate is missing.")
        if certificate.until <= self._wall_seconds():
            return _missing("The client certificate has expired since the connection was made.")
        name = certificate_name(certificate, self._scope.part)
        return Verified(self._scope.value_of(name)) if isinstance(name, bytes) else name

    async def ask(self, request: Request) -> Verification:
        """As `known`."""
        return self.known(request)


def _missing(detail: str) -> ScopeMissing:
    return ScopeMissing(detail, is_credential=True)
