"""Who says who a caller is, and what it may: an authorising service, or the authority that signed a certificate."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from gateway.config.address import AbsolutePath, AuthorizationUrl, ForwardAuthUrl
from gateway.config.leaf import Duration, HeaderName
from gateway.config.section import Disagreement, Section, listed_twice, written
from gateway.core.identity import scope as scopes

_OF_THE_GATEWAY = "the gateway writes this header itself"
_ASKED_REFUSED = (
    ("host", _OF_THE_GATEWAY),
    ("x-forwarded-", _OF_THE_GATEWAY),
    ("via", _OF_THE_GATEWAY),
    ("content-", "the service is asked without the body"),
)
_NAMED_REFUSED = (
    ("host", _OF_THE_GATEWAY),
    ("x-forwarded-", _OF_THE_GATEWAY),
    ("forwarded", _OF_THE_GATEWAY),
    ("via", _OF_THE_GATEWAY),
    ("content-", "this header describes the response of the authorising service"),
    ("date", "this header describes the response of the authorising service"),
    ("set-cookie", "this header is for browsers; hand on another one"),
)
_AskedHeader = Annotated[str, HeaderName(refused=_ASKED_REFUSED)]
_NamedHeader = Annotated[str, HeaderName(refused=_NAMED_REFUSED, is_trusted=True)]


class ForwardAuth(Section):
    """An authorising service. It is asked by a GET without body, and sees method, URI and origin in X-Forwarded-*."""

    url: Annotated[AuthorizationUrl, ForwardAuthUrl()]
    """Where it is asked, such as http://127.0.0.1:4180/oauth2/auth."""
    headers: Annotated[tuple[_AskedHeader, ...], Field(max_length=16)] = ("Authorization", "Cookie")
    """The caller's headers that it sees."""
    copy_: Annotated[tuple[_NamedHeader, ...], Field(alias="copy", max_length=16)] = ()
    """Headers of its response that the service behind the gateway gets. A caller's own are dropped."""
    timeout: Annotated[float, Duration("10ms", "1m")] = written("2s")
    """How long a decision may take, connecting included; then the request is refused with 503."""
    cache: Annotated[float, Duration("0s", "1h")] = written("0s")
    """How long a permission counts for the very same method, URI and headers. While it does, it cannot be withdrawn."""
    ca: Annotated[Path, AbsolutePath()] | None = None
    """The authorities that sign its certificate, as a PEM file; the system's if left out."""

    @property
    def names(self) -> tuple[str, ...]:
        """The headers that it alone may set."""
        return self.copy_

    def disagreements(self) -> Iterator[Disagreement]:
        if self.ca is not None and self.url.scheme != "https":
            yield "ca", "ca needs an https URL"
        yield from listed_twice(("headers",), self.headers)
        yield from listed_twice(("copy",), self.copy_)
        asked = {name.lower() for name in self.headers}
        for index, name in enumerate(self.copy_):
            if name.lower() in asked:
                message = "this is listed under headers too: the caller's own cannot be both asked about and dropped"
                yield ("copy", index), message


class PrincipalAuth(ForwardAuth):
    """An authorising service that names the caller."""

    principal: _NamedHeader
    """The header of its response that names the caller, such as X-User-Id. Write it under copy, too, to hand it on."""

    @property
    def names(self) -> tuple[str, ...]:
        return (*dict.fromkeys((self.principal, *self.copy_)),)

    def disagreements(self) -> Iterator[Disagreement]:
        yield from super().disagreements()
        if self.principal.lower() in {name.lower() for name in self.headers}:
            yield "principal", "this is listed under headers too: a caller would name itself"


class ForwardAuthScope(Section):
    """The caller is the principal that an authorising service names; it is asked about repeats, too."""

    forward_auth: PrincipalAuth
    """The service: {url, principal}."""

    @cached_property
    def compiled(self) -> scopes.ForwardAuthScope:
        return scopes.ForwardAuthScope(self.forward_auth, self.forward_auth.principal.encode())


class ClientCertificateScope(Section):
    """The caller is named by its certificate; `listen.tls.client_ca` says whose certificates are accepted."""

    client_certificate: Literal["subject", "san", "sha256"]
    """What names it: the subject, the alternative name (URI, else DNS, else e-mail), or the digest of all of it."""

    @cached_property
    def compiled(self) -> scopes.ClientCertificateScope:
        return scopes.ClientCertificateScope(self.client_certificate)


class Authorize(Section):
    """Who decides whether a request of the route may be made."""

    forward_auth: ForwardAuth
    """The service that is asked about every request of the route, with or without a key: {url}."""
