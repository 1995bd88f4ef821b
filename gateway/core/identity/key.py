"""The idempotency key of a request: where it is found, what it may look like, when two spellings are one key.

A key is opaque: nothing folds its case or trims its content. A quoted key (a String of RFC 9651) and a bare one are the
same key if their characters are. It comes from headers or the body, never from the URL. A key that cannot be read with
certainty is a fault, not another key.

A composed key takes each part from a place of its own, and needs all of them. Parts from the body may hold any
characters (a business key is not made for headers); those from headers obey the grammar of a key.

Three keys are for webhooks alone: source and id of a CloudEvent, the content itself where nothing else is signed, and
another key beside headers by which a sender says what an event is, and whose.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import ClassVar, Final

import http_sf

from gateway.core.framing import digest, framed
from gateway.core.identity.body import (
    MISSING,
    Body,
    Pointer,
    format_pointer,
    number_lexeme,
    parse_json,
    parse_media_type,
    resolve,
    sha256_of,
)
from gateway.core.immutable import immutable
from gateway.core.message import Values

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
_PERCENT = re.compile(rb"%([0-9A-Fa-f]{2})")
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
        return _PERCENT.sub(lambda escaped: bytes((int(escaped[1], 16),)), text).decode()
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
