"""What identifies an operation: the idempotency key of a request, the scope of its caller, and the id made of both.

The key: where it is found, what it may look like, when two spellings are one key.

A key is opaque: nothing folds its case or trims its content. A quoted key (a String of RFC 9651) and a bare one are the
same key if their characters are. It comes from headers or the body, never from the URL. A key that cannot be read with
certainty is a fault, not another key.

A composed key takes each part from a place of its own, and needs all of them. Parts from the body may hold any
characters (a business key is not made for headers); those from headers obey the grammar of a key.

Three keys are for webhooks alone: source and id of a CloudEvent, the content itself where nothing else is signed, and
another key beside headers by which a sender says what an event is, and whose.
"""

from __future__ import annotations

import hmac
import json
import re
from base64 import urlsafe_b64decode
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from hashlib import sha256
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from types import MappingProxyType
from typing import ClassVar, Final, Literal, Protocol
from uuid import UUID, SafeUUID

import http_sf

from gateway.core import immutable
from gateway.core.identity.body import (
    MISSING,
    Body,
    Pointer,
    digest,
    format_pointer,
    framed,
    number_lexeme,
    parse_json,
    parse_media_type,
    percent_decoded,
    resolve,
    sha256_of,
)
from gateway.core.message import NameTable, Values
from gateway.core.operation import SHORT_SCOPE_BYTES, Identity

KEY_CHARACTERS_MAX: Final = 255
# Room for every character escaped, two quotes and some white space: a longer value cannot be a key.
_HEADER_BYTES_MAX: Final = 1024

_VISIBLE = re.compile(r"[\x21-\x7e]*")
# A valid bare key, as nearly all are: visible, not quoted, no comma.
_PLAIN = re.compile(rb"[!#-+\--~][!-+\--~]{0,%d}" % (KEY_CHARACTERS_MAX - 1))
# JSON has no leading zeros; minus zero is zero to some.
_WHOLE = re.compile(r"0|-?[1-9][0-9]*")
# The layout of RFC 9562 section 4. Version and variant are not checked: keys of real clients do not set them.
_UUID = re.compile(r"[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}")

# CloudEvents 1.0. An attribute is a text of any characters; in a header it is percent-encoded UTF-8.
_CE_ID: Final = b"ce-id"
_CE_SOURCE: Final = b"ce-source"
_STRUCTURED: Final = b"application/cloudevents"
_BATCH: Final = b"application/cloudevents-batch"
_STRUCTURED_JSON: Final = (b"application/cloudevents", b"application/cloudevents+json")
_ATTRIBUTE_CHARACTERS_MAX: Final = 1024
_ATTRIBUTE_BYTES_MAX: Final = 16 * _ATTRIBUTE_CHARACTERS_MAX
_QUOTED_PAIR = re.compile(rb"\\(.)", re.DOTALL)
# What is digested before a key from a header, by its length: framing it again for each request costs six calls.
_BEFORE_TEXT: Final = tuple(
    framed(b"key", framed(b"text", bytes(length))).removesuffix(bytes(length))
    for length in range(KEY_CHARACTERS_MAX + 1)
)


class KeyFormat(StrEnum):
    """What a route accepts: any key, the quoted form of the draft only, or the layout of a UUID (quoted or bare)."""

    ANY = "any"
    STRUCTURED = "structured"
    UUID = "uuid"


@immutable
class Key:
    """`text` is the key in clear: stored only where the configuration asks for it, and never part of a `repr`.

    For a composed key it is the JSON array of the parts.
    """

    digest: bytes
    text: str = field(repr=False)

    @property
    def header_value(self) -> bytes:
        """The header value that is read as this key again, where the key came from a single header."""
        text = self.text
        if text.startswith('"') or "," in text:
            text = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
        return text.encode("ascii")


@immutable
class KeyFault:
    """Why the key cannot be read. `detail` is for the client, and quotes nothing of the key."""

    detail: str


# Each place of a key has `find_key`, the key of a request, or None where it carries none. `body` is needed if
# `needs_body`, and is never decoded: under a `Content-Encoding`, its parts cannot be read. `headers` are the names, in
# lower case, of those that the key may come from; `places` tells a client whose request has none where it is looked
# for. `recipe` are the settings that decide which key a request has: the format is not among them, as it only refuses.


@dataclass(frozen=True, slots=True)
class HeaderKey:
    """The key is the value of the first of these headers that is present. Names keep the configuration's spelling."""

    names: tuple[bytes, ...] = (b"Idempotency-Key",)
    format: KeyFormat = KeyFormat.ANY

    def find_key(self, by_name: Values, body: Body | None = None) -> Key | KeyFault | None:
        for name in self.names:
            if values := by_name.get(name.lower()):
                is_any = len(values) == 1 and self.format is KeyFormat.ANY
                plain = _PLAIN.fullmatch(values[0].strip(b" \t")) if is_any else None
                text = _text_of(values, self.format, name) if plain is None else plain[0].decode("ascii")
                if isinstance(text, KeyFault):
                    return text
                return Key(sha256(_BEFORE_TEXT[len(text)] + text.encode()).digest(), text)
        return None

    needs_body: ClassVar[bool] = False

    @property
    def headers(self) -> frozenset[bytes]:
        return frozenset(name.lower() for name in self.names)

    @property
    def places(self) -> str:
        return _any_of([_shown(name) for name in self.names])

    @property
    def recipe(self) -> bytes:
        return framed(b"header", *[name.lower() for name in self.names])


@immutable
class HeaderPart:
    name: bytes

    @property
    def recipe(self) -> bytes:
        return framed(b"header", self.name.lower())

    @property
    def place(self) -> str:
        return _shown(self.name)


@immutable
class BodyPart:
    """A string of a JSON body, or a whole number written plainly, which is the same key as the string of its digits.

    Other values are faults: one program writes `1001.0` or `1e3` where another one writes `1001` or `1000`, and a retry
    must not become another key.
    """

    pointer: Pointer

    @property
    def recipe(self) -> bytes:
        return framed(b"body", format_pointer(self.pointer).encode("utf-8", "surrogatepass"))

    @property
    def place(self) -> str:
        return f"{format_pointer(self.pointer)} of the body"


@dataclass(frozen=True, slots=True)
class ComposedKey:
    """The key consists of these parts, in this order. There is none where one of them is missing."""

    parts: tuple[HeaderPart | BodyPart, ...]

    def find_key(self, by_name: Values, body: Body | None) -> Key | KeyFault | None:
        found: list[bytes] = []
        texts: list[str] = []
        document = MISSING
        for part in self.parts:
            text: str | KeyFault
            if isinstance(part, HeaderPart):
                if not (values := by_name.get(part.name.lower())):
                    return None
                kind, text = b"text", _text_of(values, KeyFormat.ANY, part.name)
            else:
                if not body:
                    return None
                if document is MISSING:
                    document = MISSING if by_name.get(b"content-encoding") else parse_json(body)
                if document is MISSING:
                    return KeyFault("The key is taken from the body, which is not a JSON document that can be read.")
                value = resolve(document, part.pointer)
                if value is MISSING:
                    return None
                kind, text = b"string", _scalar_of(value, part.place)
            if isinstance(text, KeyFault):
                return text
            found.append(_tagged(kind, text))
            texts.append(text)
        return Key(digest(b"key", *found), json.dumps(texts, separators=(",", ":")))

    @property
    def needs_body(self) -> bool:
        return any(isinstance(part, BodyPart) for part in self.parts)

    @property
    def headers(self) -> frozenset[bytes]:
        return frozenset(part.name.lower() for part in self.parts if isinstance(part, HeaderPart))

    @property
    def places(self) -> str:
        return _any_of([part.place for part in self.parts])

    @property
    def recipe(self) -> bytes:
        return framed(b"composed", *[part.recipe for part in self.parts])


@immutable
class CloudEventKey:
    """The key is source and id of a CloudEvent, which are the same in binary and in structured mode.

    CloudEvents 1.0: the two together are unique for an event; HTTP protocol binding section 3.
    """

    def find_key(self, by_name: Values, body: Body | None) -> Key | KeyFault | None:
        essence = _essence(by_name)
        if essence.startswith(_STRUCTURED):
            if essence not in _STRUCTURED_JSON:
                return KeyFault("Only single CloudEvents in JSON, or in binary mode, can be read.")
            document = MISSING if body is None or by_name.get(b"content-encoding") else parse_json(body)
            if not isinstance(document, dict):
                return KeyFault("The CloudEvent is not a JSON object that can be read.")
            found = [document.get("source"), document.get("id")]
            if any(text is None for text in found):
                return None
            texts = [text if isinstance(text, str) and number_lexeme(text) is None else "" for text in found]
        else:
            values = [by_name.get(name, ()) for name in (_CE_SOURCE, _CE_ID)]
            if not all(values):
                return None
            texts = ["" if len(each) > 1 else _decoded_attribute(each[0]) for each in values]
        if not all(0 < len(text) <= _ATTRIBUTE_CHARACTERS_MAX for text in texts):
            longest = f"1 to {_ATTRIBUTE_CHARACTERS_MAX} characters"
            return KeyFault(f"Source and id of a CloudEvent are given once, as strings of {longest}.")
        tagged = [_tagged(b"text", text) for text in texts]
        return Key(digest(b"key", framed(b"cloudevent", *tagged)), json.dumps(texts, separators=(",", ":")))

    needs_body: ClassVar[bool] = True
    headers: ClassVar[frozenset[bytes]] = frozenset((_CE_ID, _CE_SOURCE))
    places: ClassVar[str] = "source and id of the event"
    recipe: ClassVar[bytes] = framed(b"cloudevent")


@immutable
class ContentKey:
    """The key is the body: equal bytes are one operation, and other bytes another, whatever the headers are."""

    def find_key(self, by_name: Values, body: Body | None) -> Key:
        hashed = sha256_of(body or b"")
        return Key(digest(b"key", framed(b"content", hashed)), hashed.hex())

    needs_body: ClassVar[bool] = True
    headers: ClassVar[frozenset[bytes]] = frozenset()
    places: ClassVar[str] = "the body"
    recipe: ClassVar[bytes] = framed(b"content")


@immutable
class EventKey:
    """The key is another one together with the values of these headers (lower case): the sender says with them what an
    event is, or whose, and may send one id or one body with several of them. None of them need be there."""

    of: HeaderKey | ComposedKey | ContentKey
    about: tuple[bytes, ...]

    def find_key(self, by_name: Values, body: Body | None) -> Key | KeyFault | None:
        key = self.of.find_key(by_name, body)
        said = [framed(name, *values) for name in self.about if (values := by_name.get(name))]
        return Key(digest(b"event", key.digest, *said), key.text) if isinstance(key, Key) and said else key

    @property
    def needs_body(self) -> bool:
        return self.of.needs_body

    @property
    def headers(self) -> frozenset[bytes]:
        return self.of.headers

    @property
    def places(self) -> str:
        return self.of.places

    @property
    def recipe(self) -> bytes:
        return framed(b"event", self.of.recipe, *sorted(self.about))


KeySpec = HeaderKey | ComposedKey | CloudEventKey | ContentKey | EventKey


def _any_of(places: list[str]) -> str:
    return " or ".join([", ".join(places[:-1]), places[-1]] if len(places) > 1 else places)


def is_structured_event(by_name: Values) -> bool:
    """Whether the message holds the attributes of its CloudEvents in its body, in whatever format."""
    return _essence(by_name).startswith(_STRUCTURED)


def is_event_batch(by_name: Values) -> bool:
    """Whether the message is a batch of CloudEvents, in whatever format."""
    return _essence(by_name).startswith(_BATCH)


def _essence(by_name: Values) -> bytes:
    values = by_name.get(b"content-type", ())
    media_type = parse_media_type(values[0]) if len(values) == 1 else None
    return b"" if media_type is None else media_type.essence


def _decoded_attribute(value: bytes) -> str:
    """An attribute in a header: unquoted, then percent-decoded once (HTTP protocol binding section 3.1.3.2).

    Empty where that gives no text.
    """
    if len(value) > _ATTRIBUTE_BYTES_MAX:
        return ""
    text = value.strip(b" \t")
    if len(text) > 1 and text.startswith(b'"') and text.endswith(b'"'):
        text = _QUOTED_PAIR.sub(rb"\1", text[1:-1])
    try:
        return percent_decoded(text).decode()
    except UnicodeDecodeError:
        return ""


def _tagged(kind: bytes, text: str) -> bytes:
    return framed(kind, text.encode("utf-8", "surrogatepass"))


def _scalar_of(value: object, place: str) -> str | KeyFault:
    """The text of a value of the body."""
    lexeme = number_lexeme(value) if isinstance(value, str) else None
    if not isinstance(value, str) or (lexeme is not None and _WHOLE.fullmatch(lexeme) is None):
        return KeyFault(f"The key's part {place} is neither a string nor a whole number in plain digits.")
    text = value if lexeme is None else lexeme
    if not text:
        return KeyFault(f"The key's part {place} is empty.")
    if len(text) > KEY_CHARACTERS_MAX:
        return KeyFault(f"The key's part {place} is longer than {KEY_CHARACTERS_MAX} characters.")
    return text


def _text_of(values: Sequence[bytes], key_format: KeyFormat, name: bytes) -> str | KeyFault:
    """The key in the values of one header, of which there must be exactly one."""
    if len(values) != 1:
        return KeyFault(f"{_shown(name)} is given more than once.")
    value = values[0].strip(b" \t")
    if len(value) > _HEADER_BYTES_MAX:
        return KeyFault(f"{_shown(name)} is longer than {KEY_CHARACTERS_MAX} characters.")
    is_quoted = value.startswith(b'"')
    if not is_quoted and key_format is KeyFormat.STRUCTURED:
        return KeyFault(f"{_shown(name)} is not a quoted string.")
    text = unquote(value) if is_quoted else value.decode("latin-1")
    if isinstance(text, KeyFault):
        return KeyFault(f"{_shown(name)} {text.detail}.")
    fault = _fault_in(text, is_quoted)
    if fault is None and key_format is KeyFormat.UUID and _UUID.fullmatch(text) is None:
        fault = "does not have the layout of a UUID"
    return text if fault is None else KeyFault(f"{_shown(name)} {fault}.")


def unquote(value: bytes) -> str | KeyFault:
    """The characters of a quoted string. The fault continues a sentence that begins with the header's name.

    draft-ietf-httpapi-idempotency-key-header-07 section 2.1 makes the key a String of RFC 9651. Parameters on it have
    no meaning there, and no known client sends any. They are refused, not ignored: if a client distinguished two
    intents by a parameter, ignoring it would make them one key. Positions count from 1.
    """
    try:
        item = http_sf.parse(value, tltype="item")
    except http_sf.StructuredFieldError as error:
        place = "" if error.position is None else f" at position {min(error.position, len(value)) + 1}"
        return KeyFault(f"is not a well-formed quoted string{place}")
    except (ValueError, ArithmeticError):
        # Dates and numbers out of range, in a parameter.
        return KeyFault("is not a well-formed quoted string")
    text, parameters = item if isinstance(item, tuple) else (item, {})
    if not isinstance(text, str):
        return KeyFault("is not a quoted string")
    if parameters:
        return KeyFault("has parameters, which mean nothing on a key")
    return text


def _shown(name: bytes) -> str:
    return name.decode("latin-1")


def _fault_in(text: str, is_quoted: bool) -> str | None:
    if not text:
        return "is empty"
    if (match := _VISIBLE.match(text)) is None or match.end() < len(text):
        position = match.end() if match is not None else 0
        return f"contains {_describe(text[position])} at position {position + 1}"
    # Intermediaries join repeated headers with a comma.
    if not is_quoted and "," in text:
        return f"contains a comma at position {text.index(',') + 1}"
    if len(text) > KEY_CHARACTERS_MAX:
        return f"is longer than {KEY_CHARACTERS_MAX} characters"
    return None


def _describe(character: str) -> str:
    if character == " ":
        return "a space"
    if character == "\t":
        return "a tab"
    return "a control character" if character < "\x80" else "a character outside of ASCII"


# -- scopes ------------------------------------------------------------------------------------------------------------
#
# The scope of a request, the key space of its caller as the route defines it; and the identity that it makes.
#
# A scope is a digest; neither a credential nor a header value leaves this module in any other form. There is no
# default and no fallback: a caller that cannot be identified with certainty has no scope. This is not authorization.
#
# Some scopes are taken from what has to be verified: a token, a principal, a certificate. Verifying takes clocks,
# keys or another service, so it is done elsewhere. `find_scope` says what has to be verified, and is asked again with
# the result.

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# Scheme names are shorter.
_BARE_KEY_BYTES_MIN: Final = 20

# Schemes whose credentials are made for one request or one connection: a retry would never find its own record.
SINGLE_USE_SCHEMES = frozenset(
    (b"aws4-hmac-sha256", b"digest", b"gnap", b"hawk", b"mutual", b"negotiate", b"ntlm", b"oauth", b"signature")
)
# What is digested before a scope, and before the value of a header with this name, as `framed` writes it.
_BEFORE: Final = framed(b"scope")
_BEFORE_VALUE: Final = NameTable(lambda name: framed(b"header", name))


@immutable
class Scope:
    digest: bytes


@immutable
class ScopeMissing:
    """The caller cannot be identified. `is_credential`: a credential is missing, so the reply is 401. `is_token`: it is
    a bearer token, which is missing or not accepted (RFC 6750 section 3)."""

    detail: str
    is_credential: bool
    is_token: bool = False


@immutable
class ScopeUnsuitable:
    """The caller identifies itself, but by something that is ambiguous or will differ on a retry."""

    detail: str


@immutable
class IdentityUnavailable:
    """Nobody can say now who the caller is: neither that it is somebody, nor that it is nobody."""

    detail: str
    retry_after_seconds: int = 1


@immutable
class Unverified:
    """This part has to be verified before there is a scope."""

    part: VerifiedSpec


Refusal = ScopeMissing | ScopeUnsuitable
# Keyed by what was verified; the values are framed, so that no two callers have the same.
Verified = Mapping["VerifiedSpec", bytes]
_NOTHING: Final[Verified] = MappingProxyType({})


class _Scope:
    """A scope of a route, or a part of one."""

    __slots__ = ()

    def find_scope(
        self, by_name: Values, peer: Address | None, verified: Verified = _NOTHING
    ) -> Scope | Refusal | Unverified:
        """The caller's scope. `peer` is the remote address of this connection, never an address from a header.

        It is None on a Unix socket; an IPv4-mapped IPv6 address is given as the IPv4 address. Whatever can be refused
        without verifying is refused first.
        """
        found = self.value(by_name, peer, verified)
        if not isinstance(found, bytes):
            return found
        return Scope(sha256(_BEFORE + len(found).to_bytes(8, "big") + found).digest())

    def value(self, by_name: Values, peer: Address | None, verified: Verified) -> bytes | Refusal | Unverified:
        """What stands for the caller in the scope, framed."""
        raise NotImplementedError

    @property
    def headers(self) -> frozenset[bytes]:
        """The names, in lower case, of the headers that it is taken from."""
        return frozenset()

    @property
    def recipe(self) -> bytes:
        """The settings that decide which scope a caller has. Trusted networks, audiences, keys and where a service is
        do not: they only refuse."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class HeaderScope(_Scope):
    """A header that a trusted hop sets. `trusted` are the networks of such hops; None trusts every peer."""

    name: bytes
    trusted: tuple[Network, ...] | None

    def value(self, by_name: Values, peer: Address | None, verified: Verified) -> bytes | Refusal:
        if self.trusted is not None and not is_within(peer, self.trusted):
            return ScopeMissing(f"{_shown(self.name)} is not accepted from this address.", is_credential=False)
        name = self.name.lower()
        values = by_name.get(name, ())
        if len(values) > 1:
            return ScopeUnsuitable(f"{_shown(self.name)} is given more than once.")
        value = values[0].strip(b" \t") if values else b""
        if not value:
            return ScopeMissing(f"{_shown(self.name)} is missing.", is_credential=False)
        return _BEFORE_VALUE[name] + len(value).to_bytes(8, "big") + value

    @property
    def headers(self) -> frozenset[bytes]:
        return frozenset((self.name.lower(),))

    @property
    def recipe(self) -> bytes:
        return framed(b"header", self.name.lower())


@immutable
class ApiKeyScope(_Scope):
    """A credential that stays the same for as long as its keys are remembered."""

    name: bytes = b"Authorization"

    def value(self, by_name: Values, peer: Address | None, verified: Verified) -> bytes | Refusal:
        name, scheme = self.name.lower(), b""
        values = by_name.get(name, ())
        if len(values) > 1:
            return ScopeUnsuitable(f"{_shown(self.name)} is given more than once.")
        value = values[0].strip(b" \t") if values else b""
        if name == b"authorization":
            scheme, value = _scheme_and_credential(value)
        if not value:
            fault = "has a scheme without a credential, or too short a key" if scheme else "is missing"
            return ScopeMissing(f"{_shown(self.name)} {fault}.", is_credential=True)
        if scheme in SINGLE_USE_SCHEMES:
            return ScopeUnsuitable(
                f"{_shown(self.name)} uses a scheme whose credentials differ from request to request."
            )
        if _is_json_web_token(value):
            return ScopeUnsuitable(
                f"{_shown(self.name)} carries a token that expires: "
                "a retry with a new one would count as another caller."
            )
        return framed(b"api_key", name, scheme, value)

    @property
    def headers(self) -> frozenset[bytes]:
        return frozenset((self.name.lower(),))

    @property
    def recipe(self) -> bytes:
        return framed(b"api_key", self.name.lower())


@immutable
class SharedScope(_Scope):
    """All callers share one key space: any caller that knows a key can get its response."""

    def value(self, by_name: Values, peer: Address | None, verified: Verified) -> bytes:
        return framed(b"shared")

    @property
    def recipe(self) -> bytes:
        return framed(b"shared")


class Issuer(Protocol):
    """Whose tokens are accepted, for which audience, and which of their claims name the caller: a setting.

    `leeway` is how far its clock and this one may differ, in seconds.
    """

    @property
    def issuer(self) -> str: ...
    @property
    def audience(self) -> str: ...
    @property
    def claims(self) -> tuple[str, ...]: ...
    @property
    def leeway(self) -> float: ...


@dataclass(frozen=True, slots=True)
class JwtScope(_Scope):
    """Claims of a verified token: the same caller after every refresh of the token. One issuer of these signed it."""

    issuers: tuple[Issuer, ...]
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Looked up several times in each request.
        object.__setattr__(self, "_hash", hash(self.issuers))

    def __hash__(self) -> int:
        return self._hash

    def value(self, by_name: Values, peer: Address | None, verified: Verified) -> bytes | Unverified:
        return verified.get(self) or Unverified(self)

    @property
    def headers(self) -> frozenset[bytes]:
        return frozenset((b"authorization",))

    @property
    def recipe(self) -> bytes:
        issuers = (framed(one.issuer.encode(), *[name.encode() for name in sorted(one.claims)]) for one in self.issuers)
        return framed(b"jwt", *sorted(issuers))


class AuthService(Protocol):
    """A service that decides about requests, of which it gets to see `headers`: a setting."""

    @property
    def url(self) -> object: ...
    @property
    def headers(self) -> tuple[str, ...]: ...


@immutable
class ForwardAuthScope(_Scope):
    """The principal that an authorising service names, in this header of its response."""

    service: AuthService
    principal: bytes

    def value(self, by_name: Values, peer: Address | None, verified: Verified) -> bytes | Unverified:
        return verified.get(self) or Unverified(self)

    def value_of(self, principal: bytes) -> bytes:
        """What stands for this principal."""
        return framed(b"forward_auth", self.principal.lower(), principal)

    @property
    def headers(self) -> frozenset[bytes]:
        return frozenset(name.lower().encode() for name in self.service.headers)

    @property
    def recipe(self) -> bytes:
        return framed(b"forward_auth", self.principal.lower())


@immutable
class ClientCertificateScope(_Scope):
    """A part of the certificate that the client has proved to hold the key of."""

    part: Literal["subject", "san", "sha256"]

    def value(self, by_name: Values, peer: Address | None, verified: Verified) -> bytes | Unverified:
        return verified.get(self) or Unverified(self)

    def value_of(self, part: bytes) -> bytes:
        """What stands for a certificate with this part."""
        return framed(b"client_certificate", self.part.encode(), part)

    @property
    def recipe(self) -> bytes:
        return framed(b"client_certificate", self.part.encode())


VerifiedSpec = JwtScope | ForwardAuthScope | ClientCertificateScope
ScopePart = HeaderScope | ApiKeyScope | VerifiedSpec


@dataclass(frozen=True, slots=True)
class ComposedScope(_Scope):
    parts: tuple[ScopePart, ...]

    def value(self, by_name: Values, peer: Address | None, verified: Verified) -> bytes | Refusal | Unverified:
        found = [b"composed"]
        unverified: Unverified | None = None
        for part in self.parts:
            value = part.value(by_name, peer, verified)
            if isinstance(value, bytes):
                found.append(value)
            elif isinstance(value, Unverified):
                unverified = unverified or value
            else:
                return value
        return unverified or framed(*found)

    @property
    def headers(self) -> frozenset[bytes]:
        return frozenset().union(*(part.headers for part in self.parts))

    @property
    def recipe(self) -> bytes:
        return framed(b"composed", *[part.recipe for part in self.parts])


ScopeSpec = ScopePart | SharedScope | ComposedScope


def _scheme_and_credential(value: bytes) -> tuple[bytes, bytes]:
    """RFC 9110 section 11.4: the scheme is case-insensitive, what follows is not.

    Some services take a key without a scheme. A short word alone is a scheme without its credential: taken for a key,
    it would give all callers with this mistake one scope.
    """
    scheme, _, credential = value.partition(b" ")
    if not credential and len(scheme) >= _BARE_KEY_BYTES_MIN:
        return b"", scheme
    return scheme.lower(), credential.lstrip(b" ")


def is_within(address: Address | None, networks: Collection[Network]) -> bool:
    """Whether a peer is in one of these networks; one without an address, on a Unix socket, is in none."""
    return address is not None and any(address in network for network in networks)


def _is_json_web_token(credential: bytes) -> bool:
    """Whether this is the compact form of RFC 7515 (three parts) or RFC 7516 (five); the first is a JSON object."""
    if credential.count(b".") not in (2, 4):
        return False
    head = credential[: credential.index(b".")]
    try:
        return isinstance(json.loads(urlsafe_b64decode(head + b"=" * (-len(head) % 4))), dict)
    except (ValueError, RecursionError):
        return False


# -- identity ----------------------------------------------------------------------------------------------------------
#
# The identity of an operation: which requests are about the same intended effect.
#
# It is made of service, operation name, scope and key, each digested in a frame of its own. The derivations must never
# change: records are found by them, operators search for them, and upstreams may deduplicate on them. Any change makes
# every remembered key unknown.
#
# With a secret, the digests of scope and key are keyed (HMAC), and the operation id through them: with the table
# alone nobody can compute or test one. Outside this module a digest of a scope or a key is always `stored_digest`'s.


def derive_operation_id(service: str, operation: str, scope_digest: bytes, key_digest: bytes) -> UUID:
    """A UUID of version 8 (RFC 9562 section 5.8): 122 bits of a SHA-256."""
    length = len(key_digest).to_bytes(8, "big")
    derived = sha256(_before_key(service, operation, scope_digest) + length + key_digest).digest()
    bits = int.from_bytes(derived[:16], "big")
    bits = bits & ~(0xF << 76) | 8 << 76
    bits = bits & ~(0b11 << 62) | 0b10 << 62
    # What the constructor does, in a fourth of its time: it takes other values, too.
    operation_id = object.__new__(UUID)
    object.__setattr__(operation_id, "int", bits)
    object.__setattr__(operation_id, "is_safe", SafeUUID.unknown)
    return operation_id


@lru_cache(1024)
def _before_key(service: str, operation: str, scope_digest: bytes) -> bytes:
    """The frames before that of the key: the same for all operations of a caller."""
    return derivation_of(service, operation) + framed(scope_digest)


def home_of(operation_id: UUID, regions: Sequence[str]) -> str:
    """The region that an operation is at home in. Another order of the regions gives it another home."""
    return regions[operation_id.int % len(regions)]


def derivation_of(service: str, operation: str) -> bytes:
    """The frames of an operation id before those of scope and key."""
    return framed(b"operation", service.encode(), operation.encode())


def stored_digest(of: Scope | Key, secret: bytes | None) -> bytes:
    """The digest of a scope or a key as records have it: keyed if there is a secret."""
    return of.digest if secret is None else hmac.digest(secret, of.digest, "sha256")


def identity_of(
    *,
    service: str,
    route: str,
    operation: str,
    scope: Scope,
    key: Key,
    secret: bytes | None = None,
    keeps_clear_key: bool = False,
) -> Identity:
    """The identity to claim. `route` is stored for people only; it identifies nothing."""
    scope_digest, key_digest = scope.digest, key.digest
    if secret is not None:
        scope_digest, key_digest = stored_digest(scope, secret), stored_digest(key, secret)
    operation_id = derive_operation_id(service, operation, scope_digest, key_digest)
    return Identity(operation_id, route, operation, scope_digest, key_digest, key.text if keeps_clear_key else None)


def is_of(identity: Identity, service: str, operation: str) -> bool:
    """Whether this identity belongs to this operation name of this service.

    Services that share a store may use the same names, and a change of the configuration may reuse one. Only the id
    depends on the service, so it is derived again, where that is possible.
    """
    if identity.service is not None:
        return (identity.service, identity.operation) == (service, operation)
    derived = derive_operation_id(service, operation, identity.scope_digest, identity.key_digest)
    return identity.operation == operation and identity.operation_id == derived


def is_in_scope(identity: Identity, scope_digest: bytes) -> bool:
    """Whether the identity is in the scope with this stored digest. Takes the same time for any other."""
    kept = identity.scope_digest
    is_short = identity.service is not None and len(kept) == SHORT_SCOPE_BYTES
    return hmac.compare_digest(scope_digest[:SHORT_SCOPE_BYTES] if is_short else scope_digest, kept)


def identity_recipe(service: str, operation: str, scope: ScopeSpec, key: KeySpec, secret: bytes | None = None) -> bytes:
    """The settings that make an operation's identities. While this is equal, a request keeps its identity.

    Settings that only refuse requests (trusted networks, the key's format) are not part of it.
    """
    recipe = digest(b"identity", service.encode(), operation.encode(), scope.recipe, key.recipe)
    return recipe if secret is None else hmac.digest(secret, recipe, "sha256")


def single_headers(scope: ScopeSpec, key: KeySpec) -> frozenset[bytes]:
    """The headers, in lower case, that a request of this route may carry once at most."""
    return scope.headers | key.headers | {b"authorization"}
