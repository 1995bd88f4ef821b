"""How people sign in to the console without a token, in the file: who vouches for them, and which roles they have.

There is no default: whoever is trusted to name a person is written, and so is each role.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Annotated, Final

from pydantic import Field, SecretStr

from gateway.config.address import Network, NetworkRange
from gateway.config.leaf import HeaderName, SecretText, plain_text
from gateway.config.scope import JwtScope, TokenIssuer
from gateway.config.section import Disagreement, Section

_TOKEN_CHARACTERS_MIN: Final = 16
_TOKEN: Final = re.compile(r"[!-~]{1,1024}\Z")


def _admin_token(text: str) -> str:
    if len(text) < _TOKEN_CHARACTERS_MIN or not _TOKEN.match(text):
        raise ValueError(f"expected a secret of at least {_TOKEN_CHARACTERS_MIN} visible ASCII characters")
    return text


AdminSecret = Annotated[SecretStr, SecretText(_admin_token)]

_OF_A_BROWSER: Final = "this header is the browser's own"
_REFUSED: Final = (
    ("host", _OF_A_BROWSER),
    ("origin", _OF_A_BROWSER),
    ("cookie", _OF_A_BROWSER),
    ("content-", _OF_A_BROWSER),
    ("sec-", _OF_A_BROWSER),
)
_TokenHeader = Annotated[str, HeaderName(refused=_REFUSED, is_trusted=True)]
_NamingHeader = Annotated[
    str, HeaderName(refused=(("authorization", "this header holds a credential"), *_REFUSED), is_trusted=True)
]
_Listed = Annotated[tuple[Annotated[str, plain_text(256)], ...], Field(max_length=1000)]


class Roles(Section):
    """Who has which role. Who is listed nowhere is refused; of several the highest counts."""

    viewer: _Listed = ()
    """Who may read."""
    operator: _Listed = ()
    """Who may also resolve, requeue, withdraw and pause."""
    admin: _Listed = ()
    """Who may also force, purge and erase."""

    @cached_property
    def by_text(self) -> Mapping[str, str]:
        """The role of each who is listed."""
        return {text: role for role in ("viewer", "operator", "admin") for text in getattr(self, role)}

    def disagreements(self) -> Iterator[Disagreement]:
        if not (self.viewer or self.operator or self.admin):
            yield (), "nobody has a role: list names or groups under viewer, operator or admin"


class ProxySignIn(Section):
    """A proxy that authenticates people, and names them in a header of its own."""

    from_: Annotated[tuple[Annotated[Network, NetworkRange()], ...], Field(alias="from", min_length=1, max_length=64)]
    """The networks of the proxy. From any other address its headers are ignored, and noted as a sign-in that was
    refused."""
    name: _NamingHeader
    """The header that names the person, such as X-Forwarded-User. The proxy has to replace a browser's own."""
    groups: _NamingHeader | None = None
    """The header that lists the person's groups, separated by commas, such as X-Forwarded-Groups. The proxy has to
    replace a browser's own."""
    roles: Roles
    """The role of each group; without `groups`, of each name."""

    def disagreements(self) -> Iterator[Disagreement]:
        for index, network in enumerate(self.from_):
            if network.prefixlen == 0:
                yield ("from", index), "this trusts everybody: write the networks of the proxy"
        if self.groups is not None and self.groups.lower() == self.name.lower():
            yield "groups", "this header names the person already"


class JwtSignIn(TokenIssuer):
    """A signed token of an issuer, which the proxy hands on. `claims` name the person in audits, such as [email]."""

    header: _TokenHeader
    """The header that has the token, such as X-Forwarded-Access-Token; Authorization as a bearer token."""
    groups: Annotated[str, plain_text(128)]
    """The claim that lists the person's groups: texts, or one."""
    roles: Roles
    """The role of each group."""

    @cached_property
    def scope(self) -> JwtScope:
        """Whose tokens are accepted, as for callers."""
        return JwtScope.model_construct(jwt=self)


class SignIn(Section):
    """How people sign in to the console without a token. Programs that use the admin API need a token."""

    secret: AdminSecret
    """Signs their sessions; the same in each gateway that one address leads to. Another one ends them."""
    proxy: ProxySignIn | None = None
    """A proxy that names people in a header."""
    jwt: JwtSignIn | None = None
    """An issuer whose tokens name people."""

    def disagreements(self) -> Iterator[Disagreement]:
        if self.proxy is None and self.jwt is None:
            yield (), "say who names people: proxy or jwt"
