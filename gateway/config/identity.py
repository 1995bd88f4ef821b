"""Where the key of a request is, and whose key it is, as the file says it.

Neither has a default: under another key, or for another caller, a request is another operation, and is executed.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, Tag

from gateway.config.address import Network, NetworkRange
from gateway.config.message import HeaderName, JsonPointer
from gateway.config.section import Section, one_of, only, word_or_list
from gateway.config.unit import Flag

_CREDENTIAL = "a credential is not a key: it stays the same over many requests"
_FRAMING = "this field describes the connection or the body, not the intent"
_KEY_REFUSED = (
    ("authorization", _CREDENTIAL),
    ("cookie", _CREDENTIAL),
    ("host", _FRAMING),
    ("content-", _FRAMING),
    ("date", "this field changes with every retry"),
    ("user-agent", _FRAMING),
)
_API_KEY_REFUSED = (
    ("cookie", "cookies change while the caller stays the same"),
    ("host", _FRAMING),
    ("content-", _FRAMING),
)
_SCOPE_REFUSED = (
    ("authorization", "this field holds a credential: write {api_key: Authorization}"),
    *_API_KEY_REFUSED,
)
_KeyHeader = Annotated[str, HeaderName(refused=_KEY_REFUSED, is_trusted=True)]
_ScopeHeader = Annotated[str, HeaderName(refused=_SCOPE_REFUSED, is_trusted=True)]
_ApiKeyHeader = Annotated[str, HeaderName(refused=_API_KEY_REFUSED, is_trusted=True)]
_Pointer = Annotated[str, JsonPointer()]


class _KeySettings(Section):
    required: Annotated[bool, Flag()] = False
    """Whether a request without a key is refused; otherwise it is forwarded unprotected."""


class _HeaderKeySettings(_KeySettings):
    format: Literal["any", "structured", "uuid"] = "any"
    """How a key must be written: bare or quoted, quoted only (a Structured Field string), or laid out as a UUID."""


class HeaderKey(_HeaderKeySettings):
    """The key is the value of one header field."""

    header: _KeyHeader
    """The header field that holds the key."""

    @property
    def header_names(self) -> tuple[str, ...]:
        """The header fields that the key is read from, in order, in the spelling of the file."""
        return (self.header,)


class HeadersKey(_HeaderKeySettings):
    """The key is the value of the first of these header fields that is present."""

    headers: Annotated[tuple[_KeyHeader, ...], Field(min_length=1, max_length=16)]
    """The header fields that may hold the key; the first that is present does."""

    @property
    def header_names(self) -> tuple[str, ...]:
        """The header fields that the key is read from, in order, in the spelling of the file."""
        return self.headers


class BodyKey(_KeySettings):
    """The key is a value of the JSON body."""

    body: _Pointer
    """A JSON pointer to the value that is the key."""

    @property
    def header_names(self) -> tuple[str, ...]:
        """No header field is read."""
        return ()


class HeaderPart(Section):
    """A part of a composed key that is the value of a header field."""

    header: _KeyHeader
    """The header field that holds this part."""


class BodyPart(Section):
    """A part of a composed key that is a value of the JSON body."""

    body: _Pointer
    """A JSON pointer to the value that is this part."""


_PART_FORMS = "{header: NAME} or {body: /pointer}"
KeyPart = Annotated[
    Annotated[HeaderPart, Tag("<header>")] | Annotated[BodyPart, Tag("<body>")],
    one_of("header", "body", expected=_PART_FORMS),
]


class ComposedKey(_KeySettings):
    """The key is made of several parts, all of which must be present."""

    compose: Annotated[tuple[KeyPart, ...], Field(min_length=2, max_length=16)]
    """The parts of the key, in order."""

    @property
    def header_names(self) -> tuple[str, ...]:
        """The header fields that parts of the key are read from, in order, in the spelling of the file."""
        return tuple(part.header for part in self.compose if isinstance(part, HeaderPart))


KEY_FORMS = "{header: NAME}, {headers: [A, B]}, {body: /pointer} or {compose: [...]}"
Key = Annotated[
    Annotated[HeaderKey, Tag("<header>")]
    | Annotated[HeadersKey, Tag("<headers>")]
    | Annotated[BodyKey, Tag("<body>")]
    | Annotated[ComposedKey, Tag("<compose>")],
    one_of("header", "headers", "body", "compose", expected=KEY_FORMS),
]


_SOURCES = "a list of networks such as [10.0.0.0/8], or any"
Sources = Annotated[
    Annotated[Literal["any"], only("any", expected=_SOURCES), Tag("<word>")]
    | Annotated[tuple[Annotated[Network, NetworkRange()], ...], Field(min_length=1, max_length=256), Tag("<list>")],
    word_or_list(_SOURCES),
]


class HeaderScope(Section):
    """The caller is named by a header field that a trusted hop sets."""

    header: _ScopeHeader
    """The header field that names the caller."""
    from_: Annotated[Sources, Field(alias="from")]
    """The networks of the hops that may set it, or `any` if nobody else can reach the gateway."""


class ApiKeyScope(Section):
    """The caller is whoever holds a fixed credential; only its digest is kept."""

    api_key: _ApiKeyHeader
    """The header field that holds the credential."""


ScopePart = Annotated[
    Annotated[HeaderScope, Tag("<header>")] | Annotated[ApiKeyScope, Tag("<api_key>")],
    one_of("header", "api_key", expected="{header: NAME, from: [...]} or {api_key: HEADER}"),
]


class ComposedScope(Section):
    """The caller is named by several parts together, all of which must be present."""

    compose: Annotated[tuple[ScopePart, ...], Field(min_length=2, max_length=8)]
    """The parts of the scope, in order."""


SCOPE_FORMS = "{header: NAME, from: [...]}, {api_key: HEADER}, {compose: [...]} or shared"
Scope = Annotated[
    Annotated[Literal["shared"], only("shared", expected=SCOPE_FORMS), Tag("<word>")]
    | Annotated[HeaderScope, Tag("<header>")]
    | Annotated[ApiKeyScope, Tag("<api_key>")]
    | Annotated[ComposedScope, Tag("<compose>")],
    one_of("header", "api_key", "compose", expected=SCOPE_FORMS, word=True),
]
