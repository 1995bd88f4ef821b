"""The idempotency key of a request: where it is found, what it may look like, when two spellings are one key.

A key is opaque: nothing folds its case or trims its content. A quoted key (a String of RFC 9651) and a bare one are the
same key if their characters are. It comes from headers or the body, never from the URL. A key that cannot be read with
certainty is a fault, not another key. The caller passes the parser of quoted strings.

A composed key takes each part from a place of its own, and needs all of them. Parts from the body may hold any
characters (a business key is not made for headers); those from headers obey the grammar of a key.

Three keys are for webhooks alone: source and id of a CloudEvent, the content itself where nothing else is signed, and
another key beside headers by which a sender says what an event is, and whose.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import Final, assert_never

from gateway.core.framing import digest, framed
from gateway.core.identity.canonical import Body, number_lexeme, parse_json
from gateway.core.identity.media import parse_media_type
from gateway.core.identity.pointer import MISSING, Pointer, format_pointer, resolve
from gateway.core.immutable import immutable
from gateway.core.message import Headers, header_values

KEY_CHARACTERS_MAX: Final = 255
KEY_PARTS_MAX: Final = 16
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
_PERCENT = re.compile(rb"%([0-9A-Fa-f]{2})")
_QUOTED_PAIR = re.compile(rb"\\(.)", re.DOTALL)
_HASHED_BYTES: Final = 1 << 20


class KeyFormat(StrEnum):
    """What a route accepts: any key, the quoted form of the draft only, or the layout of a UUID (quoted or bare)."""

    ANY = "any"
    STRUCTURED = "structured"
    UUID = "uuid"


@dataclass(frozen=True, slots=True)
class HeaderKey:
    """The key is the value of the first of these headers that is present. Names keep the configuration's spelling."""

    names: tuple[bytes, ...] = (b"Idempotency-Key",)
    format: KeyFormat = KeyFormat.ANY

    def __post_init__(self) -> None:
        if not self.names:
            raise ValueError("a key needs at least one header name")


@immutable
class HeaderPart:
    name: bytes


@immutable
class BodyPart:
    """A string of a JSON body, or a whole number written plainly, which is the same key as the string of its digits.

    Other values are faults: one program writes `1001.0` or `1e3` where another one writes `1001` or `1000`, and a retry
    must not become another key.
    """

    pointer: Pointer


@dataclass(frozen=True, slots=True)
class ComposedKey:
    """The key consists of these parts, in this order."""

    parts: tuple[HeaderPart | BodyPart, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.parts) <= KEY_PARTS_MAX:
            raise ValueError(f"a key is composed of 1 to {KEY_PARTS_MAX} parts")


@immutable
class CloudEventKey:
    """The key is source and id of a CloudEvent, which are the same in binary and in structured mode.

    CloudEvents 1.0: the two together are unique for an event; HTTP protocol binding section 3.
    """


@immutable
class ContentKey:
    """The key is the body: equal bytes are one operation, and other bytes another, whatever the headers are."""


@immutable
class EventKey:
    """The key is another one together with the values of these headers (lower case): the sender says with them what an
    event is, or whose, and may send one id or one body with several of them. None of them need be there."""

    of: HeaderKey | ComposedKey | ContentKey
    about: tuple[bytes, ...]


KeySpec = HeaderKey | ComposedKey | CloudEventKey | ContentKey | EventKey


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


Unquote = Callable[[bytes], "str | KeyFault"]
"""Parses a header value that has to be a quoted Structured Field string."""


def parse_key(
    values: Sequence[bytes], key_format: KeyFormat, unquote: Unquote, *, name: bytes = b"Idempotency-Key"
) -> Key | KeyFault:
    """The key in the values of one header, of which there must be exactly one. Positions in faults count from 1."""
    text = _text_of(values, key_format, unquote, name)
    if isinstance(text, KeyFault):
        return text
    return Key(digest(b"key", _tagged(b"text", text)), text)


def find_key(spec: KeySpec, headers: Headers, body: Body | None, unquote: Unquote) -> Key | KeyFault | None:
    """The key of a request; None where it carries none, or where a part of a composed one is missing.

    `body` is needed if `needs_body`; it is never decoded, so under a `Content-Encoding` its parts cannot be read.
    """
    match spec:
        case HeaderKey(names, key_format):
            for name in names:
                if values := header_values(headers, name.lower()):
                    return parse_key(values, key_format, unquote, name=name)
            return None
        case ComposedKey(parts):
            return _compose(parts, headers, body, unquote)
        case CloudEventKey():
            return _cloud_event(headers, body)
        case ContentKey():
            hashed = _sha256(b"" if body is None else body)
            return Key(digest(b"key", framed(b"content", hashed)), hashed.hex())
        case EventKey(of, about):
            key = find_key(of, headers, body, unquote)
            said = [framed(name, *values) for name in about if (values := header_values(headers, name))]
            return Key(digest(b"event", key.digest, *said), key.text) if isinstance(key, Key) and said else key
        case _:
            assert_never(spec)


def needs_body(spec: KeySpec) -> bool:
    """Whether the key depends on the body."""
    match spec:
        case HeaderKey():
            return False
        case ComposedKey(parts):
            return any(isinstance(part, BodyPart) for part in parts)
        case CloudEventKey() | ContentKey():
            return True
        case EventKey(of):
            return needs_body(of)
        case _:
            assert_never(spec)


def key_headers_of(spec: KeySpec) -> frozenset[bytes]:
    """The names, in lower case, of the headers that the key may come from."""
    match spec:
        case HeaderKey(names):
            return frozenset(name.lower() for name in names)
        case ComposedKey(parts):
            return frozenset(part.name.lower() for part in parts if isinstance(part, HeaderPart))
        case CloudEventKey():
            return frozenset((_CE_ID, _CE_SOURCE))
        case ContentKey():
            return frozenset()
        case EventKey(of):
            return key_headers_of(of)
        case _:
            assert_never(spec)


def key_places(spec: KeySpec) -> str:
    """Where a key is looked for, as text for a client whose request has none."""
    match spec:
        case HeaderKey(names):
            places = [_shown(name) for name in names]
        case ComposedKey(parts):
            places = [
                _shown(part.name) if isinstance(part, HeaderPart) else f"{format_pointer(part.pointer)} of the body"
                for part in parts
            ]
        case CloudEventKey():
            places = ["source and id of the event"]
        case ContentKey():
            places = ["the body"]
        case EventKey(of):
            return key_places(of)
        case _:
            assert_never(spec)
    return " or ".join([", ".join(places[:-1]), places[-1]] if len(places) > 1 else places)


def key_recipe(spec: KeySpec) -> bytes:
    """The settings that decide which key a request has. The format does not: it only refuses."""
    match spec:
        case HeaderKey(names):
            return framed(b"header", *[name.lower() for name in names])
        case ComposedKey(parts):
            return framed(b"composed", *[_part_recipe(part) for part in parts])
        case CloudEventKey():
            return framed(b"cloudevent")
        case ContentKey():
            return framed(b"content")
        case EventKey(of, about):
            return framed(b"event", key_recipe(of), *sorted(about))
        case _:
            assert_never(spec)


def _part_recipe(part: HeaderPart | BodyPart) -> bytes:
    match part:
        case HeaderPart(name):
            return framed(b"header", name.lower())
        case BodyPart(pointer):
            return framed(b"body", format_pointer(pointer).encode("utf-8", "surrogatepass"))
        case _:
            assert_never(part)


def _compose(
    parts: tuple[HeaderPart | BodyPart, ...], headers: Headers, body: Body | None, unquote: Unquote
) -> Key | KeyFault | None:
    found: list[tuple[bytes, str]] = []
    document = MISSING
    for part in parts:
        match part:
            case HeaderPart(name):
                if not (values := header_values(headers, name.lower())):
                    return None
                text = _text_of(values, KeyFormat.ANY, unquote, name)
                if isinstance(text, KeyFault):
                    return text
                found.append((b"text", text))
            case BodyPart(pointer):
                if not body:
                    return None
                if document is MISSING:
                    document = MISSING if header_values(headers, b"content-encoding") else parse_json(body)
                if document is MISSING:
                    return KeyFault("The key is taken from the body, which is not a JSON document that can be read.")
                value = resolve(document, pointer)
                if value is MISSING:
                    return None
                scalar = _scalar_of(value, format_pointer(pointer))
                if isinstance(scalar, KeyFault):
                    return scalar
                found.append(scalar)
            case _:
                assert_never(part)
    framed_parts = [_tagged(kind, text) for kind, text in found]
    return Key(digest(b"key", *framed_parts), json.dumps([text for _, text in found], separators=(",", ":")))


def is_structured_event(headers: Headers) -> bool:
    """Whether the message holds the attributes of its CloudEvents in its body, in whatever format."""
    return _essence(headers).startswith(_STRUCTURED)


def is_event_batch(headers: Headers) -> bool:
    """Whether the message is a batch of CloudEvents, in whatever format."""
    return _essence(headers).startswith(_BATCH)


def _essence(headers: Headers) -> bytes:
    values = header_values(headers, b"content-type")
    media_type = parse_media_type(values[0]) if len(values) == 1 else None
    return b"" if media_type is None else media_type.essence


def _cloud_event(headers: Headers, body: Body | None) -> Key | KeyFault | None:
    essence = _essence(headers)
    if essence.startswith(_STRUCTURED):
        if essence not in _STRUCTURED_JSON:
            return KeyFault("Only single CloudEvents in JSON, or in binary mode, can be read.")
        document = MISSING if body is None or header_values(headers, b"content-encoding") else parse_json(body)
        if not isinstance(document, dict):
            return KeyFault("The CloudEvent is not a JSON object that can be read.")
        found = [document.get("source"), document.get("id")]
        if any(text is None for text in found):
            return None
        texts = [text if isinstance(text, str) and number_lexeme(text) is None else "" for text in found]
    else:
        values = [header_values(headers, name) for name in (_CE_SOURCE, _CE_ID)]
        if not all(values):
            return None
        texts = ["" if len(each) > 1 else _decoded_attribute(each[0]) for each in values]
    if not all(0 < len(text) <= _ATTRIBUTE_CHARACTERS_MAX for text in texts):
        longest = f"1 to {_ATTRIBUTE_CHARACTERS_MAX} characters"
        return KeyFault(f"Source and id of a CloudEvent are given once, as strings of {longest}.")
    tagged = [_tagged(b"text", text) for text in texts]
    return Key(digest(b"key", framed(b"cloudevent", *tagged)), json.dumps(texts, separators=(",", ":")))


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
        return _PERCENT.sub(lambda escaped: bytes((int(escaped[1], 16),)), text).decode()
    except UnicodeDecodeError:
        return ""


def _sha256(body: Body) -> bytes:
    hashed = sha256()
    for start in range(0, len(body), _HASHED_BYTES):
        hashed.update(body[start : start + _HASHED_BYTES])
    return hashed.digest()


def _tagged(kind: bytes, text: str) -> bytes:
    return framed(kind, text.encode("utf-8", "surrogatepass"))


def _scalar_of(value: object, place: str) -> tuple[bytes, str] | KeyFault:
    """Kind and text of a value of the body."""
    lexeme = number_lexeme(value) if isinstance(value, str) else None
    if not isinstance(value, str) or (lexeme is not None and _WHOLE.fullmatch(lexeme) is None):
        return KeyFault(f"The key's part {place} of the body is neither a string nor a whole number in plain digits.")
    text = value if lexeme is None else lexeme
    if not text:
        return KeyFault(f"The key's part {place} of the body is empty.")
    if len(text) > KEY_CHARACTERS_MAX:
        return KeyFault(f"The key's part {place} of the body is longer than {KEY_CHARACTERS_MAX} characters.")
    return b"string", text


def _text_of(values: Sequence[bytes], key_format: KeyFormat, unquote: Unquote, name: bytes) -> str | KeyFault:
    if len(values) != 1:
        return KeyFault(f"{_shown(name)} is given more than once.")
    value = values[0].strip(b" \t")
    if key_format is KeyFormat.ANY and _PLAIN.fullmatch(value):
        return value.decode("ascii")
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
