"""What is read of a response: rules by its JSON body, the resource that it names, and the version that it is in.

Owns the limits of what may come out of a foreign body: a resource is short printable text, whatever a service sends,
and a target made of one stays within its path segment and on its host. It knows neither stores nor sockets, and never
fails: a response that cannot be read says nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final, Literal

from gateway.core.framing import digest
from gateway.core.identity.canonical import CANONICAL_BYTES_MAX, number_lexeme
from gateway.core.identity.pointer import MISSING, Pointer, resolve
from gateway.core.message import Headers, Values, header_values

BODY_BYTES_MAX: Final = CANONICAL_BYTES_MAX
"""The longest body that is read. Of a longer one, nothing is known but its head."""
RESOURCE_BYTES_MAX: Final = 1024
"""The longest resource, in UTF-8. A longer one is not kept, because a part of it would name something else."""
TARGET_BYTES_MAX: Final = 8 * 1024
REFERENCE: Final = "{reference}"
"""The placeholder of a fetched path."""

_VERSION_BYTES: Final = 16
_UNRESERVED: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
# RFC 3986 section 2.1: every octet escaped unless it is unreserved.
_ESCAPED: Final = [bytes((octet,)) if octet in _UNRESERVED else b"%%%02X" % octet for octet in range(256)]
_FORBIDDEN: Final = re.compile(rb"[\x00-\x20\x7f#]")
_ESCAPED_DOT: Final = re.compile(rb"%2[eE]")
# What a service may take for the end of a segment, and of its name: as in rule 2 for targets of clients.
_SLASH: Final = re.compile(rb"[/\\]|%2[fF]|%5[cC]")
_PARAMETERS: Final = re.compile(rb"(?:;|%3[bB]).*", re.DOTALL)
# What may be sent as a `Location`: a path, or a URL with an authority. RFC 3986 leaves these characters out.
_ADDRESS: Final = re.compile(r"(?:https?://(?=[^/?#])|/)[!#-;=?-\[\]_a-z~]*\Z", re.IGNORECASE)
_URL: Final = re.compile(r"(?:(https?):)?//([^/?#]*)([^#]*)", re.IGNORECASE)
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}


@dataclass(frozen=True, slots=True)
class ResponseRule:
    """Matches responses by status and by values in the JSON body, as they are written there."""

    statuses: frozenset[int]
    where: tuple[tuple[Pointer, frozenset[str]], ...] = ()

    def fits(self, status: int, document: Any) -> bool:
        """Whether the response matches. `document` is its body by `parse_json`, `MISSING` where that cannot be read."""
        if status not in self.statuses:
            return False
        return all(_text(resolve(document, at)) in wanted for at, wanted in self.where)

    def covers(self, other: ResponseRule) -> bool:
        """Whether every response that matches `other` matches this rule."""
        wanted = dict(other.where)
        return self.statuses >= other.statuses and all(
            at in wanted and values >= wanted[at] for at, values in self.where
        )


Reference = Literal["location"] | Pointer
"""Where a response names what it made: in its `Location`, or in its JSON body."""


@dataclass(frozen=True, slots=True)
class VersionHeader:
    """The header of a request that says in which version of the API its response is to be. `name` is in lower case."""

    name: bytes


def resource_in(reference: Reference | None, by_name: Values, document: Any = MISSING) -> str | None:
    """The resource that a response names; None where it names none, several, or one that cannot be kept."""
    if reference is None:
        return None
    if reference == "location":
        values = by_name.get(b"location", ())
        if len(values) != 1:
            return None
        try:
            found: object = values[0].decode("utf-8")
        except UnicodeDecodeError:
            return None
    else:
        found = resolve(document, reference)
    if not isinstance(found, str):
        return None
    text = number_lexeme(found) or found
    if not text or not text.isprintable() or len(text) > RESOURCE_BYTES_MAX:
        return None
    return text if len(text.encode()) <= RESOURCE_BYTES_MAX else None


def is_address(resource: str) -> bool:
    """Whether a resource is a URL or a path, which can be sent as a `Location`."""
    return _ADDRESS.match(resource) is not None


def fetch_target(template: str | None, resource: str, hosts: tuple[bytes, ...]) -> bytes | None:
    """The target of a request for the resource, at the service; None where it is elsewhere or cannot be written.

    `template` is a path with `{reference}`; None where the resource is its own address. `hosts` are the authorities by
    which callers and the gateway know the service: a URL of another one is foreign.
    """
    if template is not None:
        target = template.encode().replace(REFERENCE.encode(), escaped(resource.encode()))
    elif (address := _at(resource, hosts)) is not None:
        target = address
    else:
        return None
    return target if is_target(target) else None


def _at(resource: str, hosts: tuple[bytes, ...]) -> bytes | None:
    """Path and query of an address at one of these hosts, without the fragment."""
    if not is_address(resource):
        return None
    url = _URL.match(resource)
    if url is None:
        return resource.partition("#")[0].encode()
    scheme, authority, target = url[1], url[2], url[3]
    known = {_normal(host.decode("latin-1"), scheme) for host in hosts}
    if not authority or _normal(authority, scheme) not in known:
        return None
    return (target if target.startswith("/") else f"/{target}").encode()


def _normal(authority: str, scheme: str | None) -> str:
    """An authority in lower case, without the default port of the scheme."""
    port = _DEFAULT_PORTS.get((scheme or "").lower(), "")
    return authority.lower().removesuffix(port) if port else authority.lower()


def escaped(value: bytes) -> bytes:
    """The value as it stands within a path segment or a query value: it cannot end either."""
    return b"".join([_ESCAPED[octet] for octet in value])


def is_target(target: bytes) -> bool:
    """Whether it can be sent as the target of a request, and read in one way: a path on the host that is asked.

    A service that decodes a path before it resolves it, or decodes it twice, gets to no other path either.
    """
    if not target.startswith(b"/") or target.startswith(b"//") or len(target) > TARGET_BYTES_MAX:
        return False
    path = _ESCAPED_DOT.sub(b".", target.split(b"?", 1)[0].replace(b"%25", b"%"))
    has_dots = any(_PARAMETERS.sub(b"", segment) in (b".", b"..") for segment in _SLASH.split(path))
    return not (has_dots or _FORBIDDEN.search(target))


def version_of(version: bytes | VersionHeader | None, headers: Headers) -> bytes:
    """A digest of the version in which a request has its response; empty where none is known.

    `version` is the route's: the version itself, or the header of the request that names it.
    """
    if version is None:
        return b""
    values = header_values(headers, version.name) if isinstance(version, VersionHeader) else [version]
    return digest(b"version", *values)[:_VERSION_BYTES] if values else b""


def _text(value: object) -> str | None:
    """A scalar as it is written in JSON, strings without their quotes."""
    match value:
        case bool():
            return "true" if value else "false"
        case None:
            return "null"
        case str():
            lexeme = number_lexeme(value)
            return value if lexeme is None else lexeme
        case _:
            return None
