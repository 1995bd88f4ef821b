"""Regions in the file: where operations are at home, if each region has a store of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field, SecretBytes

from gateway.config.address import ServiceUrl, UpstreamUrl
from gateway.config.delivery import KEY
from gateway.config.leaf import NAME
from gateway.config.section import Disagreement, Section, repeated
from gateway.config.upstream import UpstreamTls
from gateway.core.egress import is_loopback


class Region(Section):
    """One region, and where its gateways are."""

    name: Annotated[str, NAME]
    """The name of the region."""
    url: Annotated[UpstreamUrl, ServiceUrl()]
    """Where gateways of other regions reach those of this one. https, unless it is loopback: credentials cross it."""
    tls: UpstreamTls | None = None
    """TLS to its gateways."""

    def disagreements(self) -> Iterator[Disagreement]:
        if self.url.scheme != "https" and not is_loopback(self.url.host):
            yield "url", "expected https: callers' credentials cross this connection"


class Regions(Section):
    """Regions with a store each. An operation is at home in one of them, and its requests are sent there from the
    others."""

    here: Annotated[str, NAME]
    """The name of the region that this gateway is in."""
    homes: Annotated[tuple[Region, ...], Field(min_length=2, max_length=16)]
    """All regions, the same and in the same order in each of them. An operation's home follows from its id, so a change
    of this list is refused while keys are remembered."""
    key: Annotated[SecretBytes, KEY]
    """A secret that all regions share: 32 random bytes as hexadecimal or base64. It signs what one sends to another."""

    def disagreements(self) -> Iterator[Disagreement]:
        names = [home.name for home in self.homes]
        for index in repeated(names):
            yield ("homes", index, "name"), "another region has this name already"
        for index in repeated((str(home.url), home.tls and home.tls.server_name) for home in self.homes):
            yield ("homes", index, "url"), "another region has this url already"
        if self.here not in names:
            yield "here", f"expected one of the names under homes: {', '.join(names)}"
