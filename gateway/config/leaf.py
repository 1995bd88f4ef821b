"""How single values of the file are written: durations, sizes, counts and names, and the parts of HTTP messages.

A Leaf in the annotation of a field (`Annotated[float, Duration("1s", "1h")]`) reads the text of a scalar and describes
it in the JSON Schema. `wrong` makes its errors, and never repeats the value: only the report knows whether a value may
be shown.
"""

from __future__ import annotations

import difflib
import json
import re
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, SecretBytes, SecretStr
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from gateway.config.document import alternatives
from gateway.core.identity.body import MISSING, parse_json
from gateway.core.identity.fingerprint import may_be_fingerprinted
from gateway.core.message import HOP_BY_HOP, folded_name
from gateway.core.outcome import REFERENCE, is_target
from gateway.core.routing import PathPattern, PatternError
from gateway.core.webhook import parse_template

# In a JSON Schema pattern: a value that is substituted when the file is read.
SUBSTITUTED = r"|.*\$\{.*"
_PLACEHOLDER_CHARS = 64


def wrong(message: str, hint: str = "", *, is_secret: bool = False) -> PydanticCustomError:
    """The error for an invalid value; `is_secret` keeps the value itself out of the report."""
    return PydanticCustomError("config", "{message}", {"message": message, "hint": hint, "is_secret": is_secret})


def shaped(kind: str | list[str] = "string", **keywords: Any) -> Mapping[str, Any]:
    """The JSON Schema of a scalar of this type, or of one of `anyOf`."""
    return keywords if "anyOf" in keywords else {"type": kind, **keywords}


def placeholder(name: str) -> str:
    """Text for what is not known: long enough for every secret, short enough for every name."""
    return f"placeholder-{re.sub('[^A-Za-z0-9]', '-', name)}"[:_PLACEHOLDER_CHARS].ljust(_PLACEHOLDER_CHARS, "-")


@dataclass(frozen=True)
class Leaf(ABC):
    """Reads one kind of scalar. A default is written in the same form and read in the same way."""

    # Its placeholder, if not just any name.
    stand_in = ""

    @property
    @abstractmethod
    def expected(self) -> str:
        """What is expected, as the text after "expected"."""

    @abstractmethod
    def read(self, text: str) -> Any:
        """The value. Raises an error from `wrong`."""

    def write(self, value: Any) -> str:
        """The text that is read as this value, without its secrets."""
        return str(value)

    @property
    @abstractmethod
    def schema(self) -> Mapping[str, Any]:
        """The JSON Schema of such a value, for editors."""

    def placeholder(self, name: str) -> str:
        """A text that can be read, where the reference of this name stands for a value that is not known."""
        return self.stand_in or placeholder(name)

    def unexpected(self, hint: str = "", *, is_secret: bool = False) -> PydanticCustomError:
        """The error for a value that is not `expected`; see `wrong`."""
        return wrong(f"expected {self.expected}", hint, is_secret=is_secret)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._validate)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return dict(self.schema)

    def _validate(self, value: object) -> Any:
        if isinstance(value, bool):
            value = "true" if value else "false"
        elif isinstance(value, int):
            value = str(value)
        if not isinstance(value, str):
            raise self.unexpected()
        return self.read(value)


@dataclass(frozen=True)
class Text(Leaf):
    """Text that is taken as it is written, if a whole match of a pattern or another test says so."""

    what: str
    test: str | Callable[[str], bool]
    shape: Mapping[str, Any] = field(hash=False)
    hint: str = ""
    stand_in: str = ""

    @property
    def expected(self) -> str:
        return self.what

    def read(self, text: str) -> str:
        is_good = re.fullmatch(self.test, text) if isinstance(self.test, str) else self.test(text)
        if not is_good:
            raise self.unexpected(self.hint)
        return text

    @property
    def schema(self) -> Mapping[str, Any]:
        return shaped(**self.shape)


@dataclass(frozen=True)
class SecretText(Leaf):
    """A secret, which is made of its text by a function. That raises a ValueError for a text that cannot be one."""

    make: Callable[[str], str | bytes]
    hint: str = "make one with: openssl rand -hex 32"
    is_key: bool = False
    """Whether its placeholder is a key of 32 bytes, another one for each name."""

    expected = "a secret"
    schema = shaped()

    def read(self, text: str) -> SecretStr | SecretBytes:
        try:
            value = self.make(text)
        except ValueError as error:
            raise wrong(str(error), self.hint, is_secret=True) from None
        return SecretStr(value) if isinstance(value, str) else SecretBytes(value)

    def placeholder(self, name: str) -> str:
        return b64encode(sha256(name.encode()).digest()).decode() if self.is_key else placeholder(name)

    def _validate(self, value: object) -> Any:
        return self.read(value if isinstance(value, str) else "")


def secret_text(least: int) -> Callable[[str], str]:
    """Makes secrets of so many bytes."""

    def make(text: str) -> str:
        if len(text.encode()) < least:
            raise ValueError(f"expected a secret of at least {least} bytes")
        return text

    return make


# -- durations, sizes, counts, names -----------------------------------------------------------------------------------

_DURATION = re.compile(r"(0|[1-9][0-9]{0,9})(ms|s|m|h|d)\Z")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = re.compile(r"(0|[1-9][0-9]{0,12})(KiB|MiB|GiB)?\Z")
_BYTES = {"": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
_NUMBER = re.compile(r"(0|[1-9][0-9]{0,12})\Z")
_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"


def duration_seconds(text: str) -> float | None:
    """`300ms`, `5s`, `2m`, `24h`, `7d` in seconds, or None."""
    found = _DURATION.match(text)
    return None if found is None else int(found[1]) * _SECONDS[found[2]]


def duration_text(seconds: float) -> str:
    """How a duration is usually written (a day is 24h); `duration_seconds` reads it."""
    milliseconds = round(seconds * 1000)
    for unit, factor in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if milliseconds and milliseconds % factor == 0 and (unit, milliseconds) != ("d", factor):
            return f"{milliseconds // factor}{unit}"
    return f"{milliseconds}ms" if milliseconds else "0s"


def size_bytes(text: str) -> int | None:
    """`4096`, `64KiB`, `1MiB`, `2GiB` in bytes, or None."""
    found = _SIZE.match(text)
    return None if found is None else int(found[1]) * _BYTES[found[2] or ""]


def size_text(size: int) -> str:
    """The shortest way to write a size; `size_bytes` reads it."""
    for unit in ("GiB", "MiB", "KiB"):
        if size and size % _BYTES[unit] == 0:
            return f"{size // _BYTES[unit]}{unit}"
    return str(size)


@dataclass(frozen=True)
class Duration(Leaf):
    """A duration within bounds, which are durations too; the value is in seconds."""

    least: str
    most: str

    expected = "a duration such as 300ms, 5s, 2m, 24h or 7d"
    schema = shaped(pattern=rf"^((0|[1-9][0-9]*)(ms|s|m|h|d){SUBSTITUTED})$")

    def read(self, text: str) -> float:
        seconds = duration_seconds(text)
        if seconds is None:
            raise self.unexpected(_duration_hint(text))
        if seconds < (duration_seconds(self.least) or 0) or seconds > (duration_seconds(self.most) or 0):
            raise wrong(f"expected a duration from {self.least} to {self.most}")
        return seconds

    def write(self, value: float) -> str:
        return duration_text(value)


def _duration_hint(text: str) -> str:
    if _NUMBER.match(text):
        return f"write {text}s"
    found = re.match(r"([0-9]{1,9})\s*(ms|milli|s|m|h|d)[a-z]*\Z", text.strip().lower())
    return f"write {int(found[1])}{'ms' if found[2] == 'milli' else found[2]}" if found else ""


@dataclass(frozen=True)
class Percentage(Leaf):
    """A share of a whole; the value is from 0 to 1."""

    expected = "a percentage such as 5% or 0.5%"
    schema = shaped(pattern=rf"^((0|[1-9][0-9]{{0,2}})(\.[0-9]{{1,4}})?%{SUBSTITUTED})$")

    def read(self, text: str) -> float:
        found = re.fullmatch(r"((?:0|[1-9][0-9]{0,2})(?:\.[0-9]{1,4})?)%", text)
        if found is None:
            raise self.unexpected(f"write {text}%" if _NUMBER.match(text) else "")
        if float(found[1]) > 100:
            raise wrong("expected a percentage from 0% to 100%")
        return float(found[1]) / 100

    def write(self, value: float) -> str:
        return f"{value * 100:.4f}".rstrip("0").rstrip(".") + "%"


@dataclass(frozen=True)
class Size(Leaf):
    """A size within bounds, which are sizes too; the value is in bytes."""

    least: str
    most: str

    expected = "a size such as 64KiB, 1MiB or a number of bytes"
    schema = shaped(
        anyOf=[
            {"type": "integer", "minimum": 0},
            {"type": "string", "pattern": rf"^((0|[1-9][0-9]*)(KiB|MiB|GiB)?{SUBSTITUTED})$"},
        ]
    )

    def read(self, text: str) -> int:
        size = size_bytes(text)
        if size is None:
            found = re.match(r"([0-9]{1,12})\s*([kmg])i?b?\Z", text.strip().lower())
            raise self.unexpected(f"write {int(found[1])}{found[2].upper()}iB" if found else "")
        if size < (size_bytes(self.least) or 0) or size > (size_bytes(self.most) or 0):
            raise wrong(f"expected a size from {self.least} to {self.most}")
        return size

    def write(self, value: int) -> str:
        return size_text(value)


@dataclass(frozen=True)
class Count(Leaf):
    """A whole number within bounds, or the word "auto" if it `may_be_auto`."""

    least: int
    most: int
    may_be_auto: bool = False

    @property
    def expected(self) -> str:
        return f"a whole number from {self.least} to {self.most}" + (", or auto" if self.may_be_auto else "")

    def read(self, text: str) -> int | str:
        if self.may_be_auto and text == "auto":
            return text
        if not _NUMBER.match(text) or not self.least <= int(text) <= self.most:
            raise self.unexpected()
        return int(text)

    @property
    def schema(self) -> Mapping[str, Any]:
        number = {"type": "integer", "minimum": self.least, "maximum": self.most}
        return {"anyOf": [number, {"enum": ["auto"]}]} if self.may_be_auto else number


class Flag(Leaf):
    """`true` or `false`, and no other spelling."""

    expected = "true or false"
    schema = shaped("boolean")

    def read(self, text: str) -> bool:
        if text not in ("true", "false"):
            raise self.unexpected()
        return text == "true"

    def write(self, value: bool) -> str:
        return "true" if value else "false"


# It can stand in a metric label, a log line and a digest's input.
NAME = Text("a name of 1 to 64 letters, digits, '_', '-' and '.'", _NAME, {"pattern": f"^({_NAME}{SUBSTITUTED})$"})


class Moment(Leaf):
    """A point in time (RFC 3339); the value is Unix time in seconds."""

    expected = "a time such as 2026-12-01T00:00:00Z"
    schema = shaped(format="date-time")

    def read(self, text: str) -> float:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise self.unexpected() from None
        if moment.tzinfo is None:
            raise self.unexpected("with its offset from UTC, which is Z for none")
        return moment.timestamp()

    def write(self, value: float) -> str:
        return datetime.fromtimestamp(value, UTC).isoformat()


def plain_text(most: int, stand_in: str = "") -> Text:
    """Some text on one line, taken to the letter."""
    return Text(
        f"text of 1 to {most} characters, without white space at its ends",
        lambda text: 1 <= len(text) <= most and text.isprintable() and text == text.strip(),
        {"minLength": 1},
        stand_in=stand_in,
    )


# -- parts of HTTP messages --------------------------------------------------------------------------------------------

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,128}\Z")  # RFC 9110 section 5.6.2
_POINTER = r"(/([^~/]|~[01])*)+"  # RFC 6901 section 3, without the whole document
_POINTER_CHARS_MAX = 256
_PROBE_PATH = re.compile(r"/[!-\"$-~]{0,2047}\Z")  # visible ASCII without #
# The methods that the HTTP parser of the edge (llhttp) knows. It refuses others, so a route with one could not match.
METHODS = (
    "ACL", "BIND", "CHECKOUT", "CONNECT", "COPY", "DELETE", "GET", "HEAD", "LINK", "LOCK", "M-SEARCH", "MERGE",
    "MKACTIVITY", "MKCALENDAR", "MKCOL", "MOVE", "NOTIFY", "OPTIONS", "PATCH", "POST", "PROPFIND", "PROPPATCH",
    "PURGE", "PUT", "QUERY", "REBIND", "REPORT", "SEARCH", "SOURCE", "SUBSCRIBE", "TRACE", "UNBIND", "UNLINK",
    "UNLOCK", "UNSUBSCRIBE",
)  # fmt: skip
_NEVER_PROTECTED = ("GET", "HEAD", "OPTIONS", "TRACE", "CONNECT")
_PLACEHOLDER = re.compile(r"\{[A-Za-z_][A-Za-z0-9_]*\}")

# Headers that the gateway itself writes or strips: from a caller they have no meaning.
_RESERVED = frozenset(
    (
        "idempotency-status",
        "idempotency-expires",
        "idempotency-operation",
        "idempotency-fencing-token",
        "idempotency-outcome",
        "idempotency-retention",
        "idempotent-replayed",
    )
)


@dataclass(frozen=True)
class StatusChoice(Leaf):
    """One of a few status codes."""

    codes: tuple[int, ...]

    @property
    def expected(self) -> str:
        return alternatives(self.codes)

    def read(self, text: str) -> int:
        if text not in map(str, self.codes):
            raise self.unexpected()
        return int(text)

    @property
    def schema(self) -> Mapping[str, Any]:
        return {"enum": list(self.codes)}


class StatusSet(Leaf):
    """A status code (the value is an int) or a class of them such as `4xx` (the value is that text)."""

    expected = "a status code from 200 to 599, or a class: 2xx, 3xx, 4xx or 5xx"
    schema = shaped(anyOf=[{"type": "integer", "minimum": 200, "maximum": 599}, {"enum": ["2xx", "3xx", "4xx", "5xx"]}])

    def read(self, text: str) -> int | str:
        if re.match(r"[2-5]xx\Z", text):
            return text
        if not re.match(r"[2-5][0-9][0-9]\Z", text):
            raise self.unexpected()
        return int(text)


class Method(Leaf):
    """A request method that can be protected. Methods are case-sensitive (RFC 9110 section 9.1)."""

    expected = "a method such as POST or PATCH"

    def read(self, text: str) -> str:
        if not _TOKEN.match(text) or text != text.upper():
            raise self.unexpected(f"write {text.upper()}" if _TOKEN.match(text) else "")
        if text in _NEVER_PROTECTED:
            raise self.unexpected("a safe method has no effect to protect")
        if text not in METHODS:
            close = difflib.get_close_matches(text, METHODS, n=1)
            possible = ", ".join(method for method in METHODS if method not in _NEVER_PROTECTED)
            hint = f"did you mean {close[0]}?" if close else f"the HTTP parser refuses it; possible are {possible}"
            raise self.unexpected(hint)
        return text

    @property
    def schema(self) -> Mapping[str, Any]:
        return {"type": "string", "not": {"enum": list(_NEVER_PROTECTED)}}


@dataclass(frozen=True)
class HeaderName(Leaf):
    """The name of a header, in the spelling of the file. `refused` maps names in lower case to the reason;
    `is_trusted`: it identifies the caller or the key; `is_compared`: it is part of the fingerprint."""

    refused: tuple[tuple[str, str], ...] = ()
    is_trusted: bool = False
    is_compared: bool = False

    expected = "the name of a header"
    schema = shaped(pattern="^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")

    def read(self, text: str) -> str:
        name = text.lower()
        if not _TOKEN.match(text):
            raise self.unexpected()
        folded = folded_name(name.encode())
        if folded in HOP_BY_HOP or folded.decode() in _RESERVED:
            raise wrong("this header belongs to the connection or to the gateway, not to the request")
        if self.is_trusted and (odd := re.search("[^0-9a-z-]", name)):
            hint = f"write {re.sub('[^0-9A-Za-z]', '-', text)}"
            raise wrong(f"services may confuse '{odd[0]}' with '-' in the name of a header", hint)
        if self.is_compared and not may_be_fingerprinted(text.encode()):
            raise wrong("this header may change from one retry to the next")
        for prefix, reason in self.refused:
            if name == prefix or (prefix.endswith("-") and name.startswith(prefix)):
                raise wrong(reason)
        return text


def _is_pointer(text: str) -> bool:
    return len(text) <= _POINTER_CHARS_MAX and re.fullmatch(_POINTER, text) is not None


# To a part of the body (RFC 6901); the whole body is not one.
JSON_POINTER = Text(
    "a JSON pointer such as /amount or /customer/id, with ~1 for / and ~0 for ~",
    _is_pointer,
    {"pattern": f"^{_POINTER}$"},
)
# Where a response names another one: in its `Location`, or in its body.
PROBE_FOLLOW = Text(
    "location, or a JSON pointer such as /data/url",
    lambda text: text == "location" or _is_pointer(text),
    {"pattern": f"^(location|{_POINTER})$"},
)
VERSION_NAME = Text(
    "a version such as v3 or 2026-11-23, or {header: NAME}",
    lambda text: text.isprintable() and 0 < len(text) <= 64 and text == text.strip(),
    {"minLength": 1, "maxLength": 64},
)


class Redacted(Leaf):
    """What is replaced in a response before it is kept: a JSON pointer, or `header:` and a name."""

    expected = "a JSON pointer such as /card/number, or header: and a name, such as header:X-Token"
    schema = shaped(pattern=f"^(header: *[!#$%&'*+.^_`|~0-9A-Za-z-]+|{_POINTER})$")

    def read(self, text: str) -> str:
        if text.startswith("header:"):
            return f"header:{HeaderName().read(redacted_header(text))}"
        if not _is_pointer(text):
            raise self.unexpected()
        return text


def redacted_header(text: str) -> str:
    """The name of the header in a `Redacted` that is no pointer."""
    return text.removeprefix("header:").strip(" ")


class RoutePath(Leaf):
    """A path pattern; the value is compiled."""

    expected = "a path such as /v1/payments, /v1/orders/{id} or /v1/{rest:.*}"
    schema = shaped(pattern="^/")

    def read(self, text: str) -> PathPattern:
        try:
            return PathPattern.parse(text)
        except PatternError as error:
            raise self.unexpected(str(error)) from None

    def write(self, value: PathPattern) -> str:
        return value.text


class ProbePath(Leaf):
    """A probe's target: a path, perhaps with a query, with placeholders."""

    expected = "a path such as /v1/payments?operation={operation_id}"
    schema = shaped(pattern="^/")

    def read(self, text: str) -> str:
        if not _PROBE_PATH.match(text) or text.startswith("//"):
            raise self.unexpected()
        outside = _PLACEHOLDER.sub("", text)
        if "{" in outside or "}" in outside:
            raise wrong("a brace is not closed or not opened", "write {operation_id}, {key} or {name}")
        return text


def encoded(names: Iterable[str]) -> tuple[bytes, ...]:
    """The names of headers as they stand in a message."""
    return tuple(name.encode() for name in names)


def lowered(names: Iterable[str]) -> frozenset[bytes]:
    return frozenset(name.lower().encode() for name in names)


class FetchPath(Leaf):
    """Where a reference is read: at the address that it is, or at a path that has it in a segment or a query value."""

    expected = "location, or a path such as /v1/payments/{reference}"
    schema = shaped(pattern="^(location|/)")

    def read(self, text: str) -> str:
        if text == "location":
            return text
        if REFERENCE not in text or not is_target(text.replace(REFERENCE, "x").encode()):
            raise self.unexpected()
        outside = text.replace(REFERENCE, "")
        if "{" in outside or "}" in outside:
            raise wrong("a brace is not closed or not opened", f"write {REFERENCE}")
        return text


class JsonScalar(Leaf):
    """A value of a JSON document that is no object or array, as the text of a document."""

    expected = (
        "a string, a number, true, false or null, as in JSON; a string needs quotes only if it looks like another"
    )
    schema = shaped(["string", "number", "boolean", "null"])

    def read(self, text: str) -> str:
        value = parse_json(text.encode("utf-8", "surrogatepass"))
        if isinstance(value, dict | list) or len(text) > 256 or (value is MISSING and text[:1] in ('"', "{", "[")):
            raise self.unexpected()
        return json.dumps(text) if value is MISSING else text.strip()


class EventIdPlace(Leaf):
    """Where the id of an event is: in a header, or in the body."""

    expected = "the name of a header, or a JSON pointer such as /id"
    schema = shaped()

    def read(self, text: str) -> str:
        if text.startswith("/"):
            return JSON_POINTER.read(text)
        return HeaderName(is_trusted=True).read(text)


class SignatureTemplate(Leaf):
    """What a sender signs."""

    expected = "what is signed, such as {body} or {timestamp}.{body}"
    schema = shaped()

    def read(self, text: str) -> str:
        try:
            parse_template(text)
        except ValueError as error:
            raise self.unexpected(str(error)) from None
        return text
