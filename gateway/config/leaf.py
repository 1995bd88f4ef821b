"""How single values of the file are written: durations, sizes and names, parts of HTTP messages, hosts, files and URLs.

A Leaf in the annotation of a field (`Annotated[float, duration("1s", "1h")]`) reads the text of a scalar and describes
it in the JSON Schema. `wrong` makes its errors, and never repeats the value: only the report knows whether a value may
be shown. A URL that may hold a password is kept in a SecretStr.
"""

from __future__ import annotations

import difflib
import ipaddress
import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, SecretBytes, SecretStr
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from gateway.config.document import alternatives
from gateway.core.identity.body import MISSING, parse_json
from gateway.core.identity.fingerprint import may_be_fingerprinted
from gateway.core.message import HOP_BY_HOP, bracketed, folded_name
from gateway.core.outcome import REFERENCE, is_target
from gateway.core.routing import PathPattern, PatternError
from gateway.core.webhook import is_loopback, parse_template

# In a JSON Schema pattern: a value that is substituted when the file is read.
_SUBSTITUTED = r"|.*\$\{.*"
_PLACEHOLDER_CHARS = 64


def wrong(message: str, hint: str = "", *, is_secret: bool = False) -> PydanticCustomError:
    """The error for an invalid value; `is_secret` keeps the value itself out of the report."""
    return PydanticCustomError("config", "{message}", {"message": message, "hint": hint, "is_secret": is_secret})


class Unexpected(ValueError):
    """The text is not what its leaf expects. `hint` is what to write; `is_secret` as for `wrong`."""

    def __init__(self, hint: str = "", *, is_secret: bool = False) -> None:
        super().__init__(hint)
        self.hint = hint
        self.is_secret = is_secret


def placeholder(name: str) -> str:
    """Text for what is not known: long enough for every secret, short enough for every name."""
    return f"placeholder-{re.sub('[^A-Za-z0-9]', '-', name)}"[:_PLACEHOLDER_CHARS].ljust(_PLACEHOLDER_CHARS, "-")


_STRING: Mapping[str, Any] = {"type": "string"}
_FROM_ROOT = {"type": "string", "pattern": "^/"}


@dataclass(eq=False)
class Leaf:
    """Reads one kind of scalar. A default is written in the same form and read in the same way."""

    expected: str = "text"
    """What is expected, as the text after "expected"."""
    parse: Callable[[str], Any] = str
    """Makes the value. Raises `Unexpected`, or an error from `wrong` where the message is another one."""
    schema: Mapping[str, Any] = field(default_factory=lambda: _STRING)
    """The JSON Schema of such a value, for editors."""
    write: Callable[[Any], str] = str
    """Makes the text that is read as a value, without its secrets."""
    stand_in: Callable[[str], str] = placeholder
    """Makes a text that can be read, where the reference of this name stands for a value that is not known."""
    is_secret: bool = False
    """Whether the text may hold a password, so that no mistake shows it."""
    bounds: tuple[object, object] | None = None
    """The least and the greatest value, as they are written."""

    def read(self, text: str) -> Any:
        """The value. Raises an error from `wrong`."""
        try:
            return self.parse(text)
        except Unexpected as error:
            is_secret = self.is_secret or error.is_secret
            raise wrong(f"expected {self.expected}", error.hint, is_secret=is_secret) from None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._validate)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return dict(self.schema)

    def _validate(self, value: object) -> Any:
        if isinstance(value, bool | int):
            value = str(value).lower()
        if not isinstance(value, str):
            raise wrong(f"expected {self.expected}")
        return self.read(value)


def scalar(expected: str, schema: Mapping[str, Any] = _STRING, **how: Any) -> Callable[[Callable[[str], Any]], Leaf]:
    """Makes a leaf of the function that reads its text; `how` are further fields of it."""
    return lambda parse: Leaf(expected, parse, schema, **how)


def _always(text: str) -> Callable[[str], str]:
    return lambda name: text


def shaped(pattern: str, *, is_substituted: bool = True) -> dict[str, Any]:
    """The JSON Schema of a text that this pattern matches, or that is made of what is not written in the file."""
    return {"type": "string", "pattern": f"^({pattern}{_SUBSTITUTED})$" if is_substituted else f"^{pattern}$"}


def _one_of(*forms: Mapping[str, Any]) -> dict[str, Any]:
    return {"anyOf": list(forms)}


def text_leaf(
    expected: str,
    test: str | Callable[[str], bool],
    schema: Mapping[str, Any] | None = None,
    hint: str = "",
    **how: Any,
) -> Leaf:
    """Text that is taken as it is written, if a whole match of a pattern or another test says so."""

    def parse(text: str) -> str:
        is_good = re.fullmatch(test, text) if isinstance(test, str) else test(text)
        if not is_good:
            raise Unexpected(hint)
        return text

    return Leaf(expected, parse, {"type": "string", **(schema or {"minLength": 1})}, **how)


class _Secret(Leaf):
    def _validate(self, value: object) -> Any:
        return self.read(value if isinstance(value, str) else "")


def secret(
    make: Callable[[str], str | bytes], hint: str = "make one with: openssl rand -hex 32", *, is_key: bool = False
) -> Leaf:
    """A secret, which is made of its text by a function. That raises a ValueError for a text that cannot be one.
    `is_key`: its placeholder is a key of 32 bytes, another one for each name."""

    def parse(text: str) -> SecretStr | SecretBytes:
        try:
            value = make(text)
        except ValueError as error:
            raise wrong(str(error), hint, is_secret=True) from None
        return SecretStr(value) if isinstance(value, str) else SecretBytes(value)

    return _Secret("a secret", parse, stand_in=_key_of if is_key else placeholder)


def _key_of(name: str) -> str:
    return b64encode(sha256(name.encode()).digest()).decode()


def secret_text(least: int) -> Callable[[str], str]:
    """Makes secrets of so many bytes."""

    def make(text: str) -> str:
        if len(text.encode()) < least:
            raise ValueError(f"expected a secret of at least {least} bytes")
        return text

    return make


# -- durations, sizes, counts, names -----------------------------------------------------------------------------------

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {"": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
_NUMBER = r"(0|[1-9][0-9]{0,12})"


def duration_seconds(text: str) -> float | None:
    """`300ms`, `5s`, `2m`, `24h`, `7d` in seconds, or None."""
    found = re.fullmatch(r"(0|[1-9][0-9]{0,9})(ms|s|m|h|d)", text)
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
    found = re.fullmatch(rf"{_NUMBER}(KiB|MiB|GiB)?", text)
    return None if found is None else int(found[1]) * _BYTES[found[2] or ""]


def size_text(size: int) -> str:
    """The shortest way to write a size; `size_bytes` reads it."""
    for unit in ("GiB", "MiB", "KiB"):
        if size and size % _BYTES[unit] == 0:
            return f"{size // _BYTES[unit]}{unit}"
    return str(size)


def _within(
    what: str, least: str, most: str, amount: Callable[[str], float | None], meant: Callable[[str], str], **how: Any
) -> Leaf:
    """An amount within bounds, which are amounts too. `meant` is what another text was probably meant for."""

    def parse(text: str) -> float:
        value = amount(text)
        if value is None:
            raise Unexpected(f"write {meant(text)}" if meant(text) else "")
        if not (amount(least) or 0) <= value <= (amount(most) or 0):
            raise wrong(f"expected a {what} from {least} to {most}")
        return value

    return Leaf(parse=parse, bounds=(least, most), **how)


def duration(least: str, most: str) -> Leaf:
    """A duration; the value is in seconds."""

    def meant(text: str) -> str:
        if re.fullmatch(_NUMBER, text):
            return f"{text}s"
        found = re.fullmatch(r"([0-9]{1,9})\s*(ms|milli|s|m|h|d)[a-z]*", text.strip().lower())
        return f"{int(found[1])}{'ms' if found[2] == 'milli' else found[2]}" if found else ""

    expected, schema = "a duration such as 300ms, 5s, 2m, 24h or 7d", shaped(r"(0|[1-9][0-9]*)(ms|s|m|h|d)")
    return _within(
        "duration", least, most, duration_seconds, meant, expected=expected, schema=schema, write=duration_text
    )


def size(least: str, most: str) -> Leaf:
    """A size; the value is in bytes."""

    def meant(text: str) -> str:
        found = re.fullmatch(r"([0-9]{1,12})\s*([kmg])i?b?", text.strip().lower())
        return f"{int(found[1])}{found[2].upper()}iB" if found else ""

    schema = _one_of({"type": "integer", "minimum": 0}, shaped(r"(0|[1-9][0-9]*)(KiB|MiB|GiB)?"))
    expected = "a size such as 64KiB, 1MiB or a number of bytes"
    return _within("size", least, most, size_bytes, meant, expected=expected, schema=schema, write=size_text)


def count(least: int, most: int, *, may_be_auto: bool = False) -> Leaf:
    """A whole number within bounds, or the word "auto" if it `may_be_auto`."""

    def parse(text: str) -> int | str:
        if may_be_auto and text == "auto":
            return text
        if not re.fullmatch(_NUMBER, text) or not least <= int(text) <= most:
            raise Unexpected
        return int(text)

    number = {"type": "integer", "minimum": least, "maximum": most}
    expected = f"a whole number from {least} to {most}" + (", or auto" if may_be_auto else "")
    schema = _one_of(number, {"enum": ["auto"]}) if may_be_auto else number
    return Leaf(expected, parse, schema, bounds=(least, most))


def choice(*values: int, schema: Mapping[str, Any] | None = None) -> Leaf:
    """One of a few values, in the spelling of JSON and no other."""
    known = {json.dumps(value): value for value in values}

    def parse(text: str) -> int:
        if text not in known:
            raise Unexpected
        return known[text]

    return Leaf(alternatives(known), parse, schema or {"enum": list(values)}, write=json.dumps)


Bool = Annotated[bool, choice(True, False, schema={"type": "boolean"})]


@scalar(
    "a percentage such as 5% or 0.5%",
    shaped(r"(0|[1-9][0-9]{0,2})(\.[0-9]{1,4})?%"),
    write=lambda value: f"{value * 100:.4f}".rstrip("0").rstrip(".") + "%",
)
def percentage(text: str) -> float:
    """A share of a whole; the value is from 0 to 1."""
    found = re.fullmatch(r"((?:0|[1-9][0-9]{0,2})(?:\.[0-9]{1,4})?)%", text)
    if found is None:
        raise Unexpected(f"write {text}%" if re.fullmatch(_NUMBER, text) else "")
    if float(found[1]) > 100:
        raise wrong("expected a percentage from 0% to 100%")
    return float(found[1]) / 100


_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"
# It can stand in a metric label, a log line and a digest's input.
Name = Annotated[str, text_leaf("a name of 1 to 64 letters, digits, '_', '-' and '.'", _NAME, shaped(_NAME))]


@scalar(
    "a time such as 2026-12-01T00:00:00Z",
    {"type": "string", "format": "date-time"},
    write=lambda value: datetime.fromtimestamp(value, UTC).isoformat(),
)
def moment(text: str) -> float:
    """A point in time (RFC 3339); the value is Unix time in seconds."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise Unexpected from None
    if found.tzinfo is None:
        raise Unexpected("with its offset from UTC, which is Z for none")
    return found.timestamp()


def plain_text(most: int, **how: Any) -> Leaf:
    """Some text on one line, taken to the letter."""
    return text_leaf(
        f"text of 1 to {most} characters, without white space at its ends",
        lambda text: 1 <= len(text) <= most and text.isprintable() and text == text.strip(),
        **how,
    )


# -- parts of HTTP messages --------------------------------------------------------------------------------------------

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,128}\Z")  # RFC 9110 section 5.6.2
_POINTER = r"(/([^~/]|~[01])*)+"  # RFC 6901 section 3, without the whole document
_POINTER_CHARS_MAX = 256
# The methods that the HTTP parser of the edge (llhttp) knows. It refuses others, so a route with one could not match.
METHODS = (
    "ACL", "BIND", "CHECKOUT", "CONNECT", "COPY", "DELETE", "GET", "HEAD", "LINK", "LOCK", "M-SEARCH", "MERGE",
    "MKACTIVITY", "MKCALENDAR", "MKCOL", "MOVE", "NOTIFY", "OPTIONS", "PATCH", "POST", "PROPFIND", "PROPPATCH",
    "PURGE", "PUT", "QUERY", "REBIND", "REPORT", "SEARCH", "SOURCE", "SUBSCRIBE", "TRACE", "UNBIND", "UNLINK",
    "UNLOCK", "UNSUBSCRIBE",
)  # fmt: skip
_NEVER_PROTECTED = ("GET", "HEAD", "OPTIONS", "TRACE", "CONNECT")

# Headers that the gateway itself writes or strips: from a caller they have no meaning.
_RESERVED = frozenset((
    b"idempotency-status", b"idempotency-expires", b"idempotency-operation", b"idempotency-fencing-token",
    b"idempotency-outcome", b"idempotency-retention", b"idempotent-replayed",
))  # fmt: skip


def encoded(names: Iterable[str]) -> tuple[bytes, ...]:
    """The names of headers as they stand in a message."""
    return tuple(name.encode() for name in names)


def lowered(names: Iterable[str]) -> frozenset[bytes]:
    return frozenset(name.lower().encode() for name in names)


@scalar(
    "a status code from 200 to 599, or a class: 2xx, 3xx, 4xx or 5xx",
    _one_of({"type": "integer", "minimum": 200, "maximum": 599}, {"enum": ["2xx", "3xx", "4xx", "5xx"]}),
)
def status_set(text: str) -> int | str:
    """A status code (the value is an int) or a class of them such as `4xx` (the value is that text)."""
    if not re.fullmatch(r"[2-5]([0-9][0-9]|xx)", text):
        raise Unexpected
    return text if text.endswith("x") else int(text)


@scalar("a method such as POST or PATCH", {"type": "string", "not": {"enum": list(_NEVER_PROTECTED)}})
def method(text: str) -> str:
    """A request method that can be protected. Methods are case-sensitive (RFC 9110 section 9.1)."""
    if not _TOKEN.match(text) or text != text.upper():
        raise Unexpected(f"write {text.upper()}" if _TOKEN.match(text) else "")
    if text in _NEVER_PROTECTED:
        raise Unexpected("a safe method has no effect to protect")
    if text not in METHODS:
        close = difflib.get_close_matches(text, METHODS, n=1)
        possible = ", ".join(method for method in METHODS if method not in _NEVER_PROTECTED)
        raise Unexpected(
            f"did you mean {close[0]}?" if close else f"the HTTP parser refuses it; possible are {possible}"
        )
    return text


def header_name(
    refused: Mapping[str, str] = MappingProxyType({}), *, is_trusted: bool = False, is_compared: bool = False
) -> Leaf:
    """The name of a header, in the spelling of the file. `refused` has names in lower case, or how they begin, by the
    reason; `is_trusted`: it identifies the caller or the key; `is_compared`: it is part of the fingerprint."""

    def parse(text: str) -> str:
        name = text.lower()
        if not _TOKEN.match(text):
            raise Unexpected
        folded = folded_name(name.encode())
        if folded in HOP_BY_HOP or folded in _RESERVED:
            raise wrong("this header belongs to the connection or to the gateway, not to the request")
        if is_trusted and (odd := re.search("[^0-9a-z-]", name)):
            hint = f"write {re.sub('[^0-9A-Za-z]', '-', text)}"
            raise wrong(f"services may confuse '{odd[0]}' with '-' in the name of a header", hint)
        if is_compared and not may_be_fingerprinted(text.encode()):
            raise wrong("this header may change from one retry to the next")
        for reason, names in refused.items():
            if any(name == each or (each[-1] == "-" and name.startswith(each)) for each in names.split()):
                raise wrong(reason)
        return text

    return Leaf("the name of a header", parse, shaped("[!#$%&'*+.^_`|~0-9A-Za-z-]+", is_substituted=False))


_ANY_HEADER = header_name()
AnyHeader = Annotated[str, _ANY_HEADER]


def _is_pointer(text: str) -> bool:
    return len(text) <= _POINTER_CHARS_MAX and re.fullmatch(_POINTER, text) is not None


_JSON_POINTER = text_leaf(
    "a JSON pointer such as /amount or /customer/id, with ~1 for / and ~0 for ~",
    _is_pointer,
    shaped(_POINTER, is_substituted=False),
)
# To a part of the body (RFC 6901); the whole body is not one.
JsonPointer = Annotated[str, _JSON_POINTER]
# Where a response names another one: in its `Location`, or in its body.
PROBE_FOLLOW = text_leaf(
    "location, or a JSON pointer such as /data/url",
    lambda text: text == "location" or _is_pointer(text),
    shaped(f"(location|{_POINTER})", is_substituted=False),
)
VERSION_NAME = text_leaf(
    "a version such as v3 or 2026-11-23, or {header: NAME}",
    lambda text: text.isprintable() and 0 < len(text) <= 64 and text == text.strip(),
    {"minLength": 1, "maxLength": 64},
)


def redacted_header(text: str) -> str:
    """The name of the header in what is `redacted` and no pointer."""
    return text.removeprefix("header:").strip(" ")


@scalar(
    "a JSON pointer such as /card/number, or header: and a name, such as header:X-Token",
    shaped(f"(header: *[!#$%&'*+.^_`|~0-9A-Za-z-]+|{_POINTER})", is_substituted=False),
)
def redacted(text: str) -> str:
    """What is replaced in a response before it is kept: a JSON pointer, or `header:` and a name."""
    if text.startswith("header:"):
        return f"header:{_ANY_HEADER.read(redacted_header(text))}"
    if not _is_pointer(text):
        raise Unexpected
    return text


@scalar("a path such as /v1/payments, /v1/orders/{id} or /v1/{rest:.*}", _FROM_ROOT, write=lambda value: value.text)
def route_path(text: str) -> PathPattern:
    """A path pattern; the value is compiled."""
    try:
        return PathPattern.parse(text)
    except PatternError as error:
        raise Unexpected(str(error)) from None


def _refuse_open_brace(outside: str, hint: str) -> None:
    """`outside` is what stands outside of the placeholders that are known."""
    if "{" in outside or "}" in outside:
        raise wrong("a brace is not closed or not opened", hint)


@scalar("a path such as /v1/payments?operation={operation_id}", _FROM_ROOT)
def probe_path(text: str) -> str:
    """A probe's target: a path, perhaps with a query, with placeholders."""
    if not re.fullmatch(r"/[!-\"$-~]{0,2047}", text) or text.startswith("//"):  # visible ASCII without #
        raise Unexpected
    _refuse_open_brace(re.sub(r"\{[A-Za-z_][A-Za-z0-9_]*\}", "", text), "write {operation_id}, {key} or {name}")
    return text


@scalar("location, or a path such as /v1/payments/{reference}", {"type": "string", "pattern": "^(location|/)"})
def fetch_path(text: str) -> str:
    """Where a reference is read: at the address that it is, or at a path that has it in a segment or a query value."""
    if text == "location":
        return text
    if REFERENCE not in text or not is_target(text.replace(REFERENCE, "x").encode()):
        raise Unexpected
    _refuse_open_brace(text.replace(REFERENCE, ""), f"write {REFERENCE}")
    return text


@scalar(
    "a string, a number, true, false or null, as in JSON; a string needs quotes only if it looks like another",
    {"type": ["string", "number", "boolean", "null"]},
)
def json_scalar(text: str) -> str:
    """A value of a JSON document that is no object or array, as the text of a document."""
    value = parse_json(text.encode("utf-8", "surrogatepass"))
    if isinstance(value, dict | list) or len(text) > 256 or (value is MISSING and text[:1] in ('"', "{", "[")):
        raise Unexpected
    return json.dumps(text) if value is MISSING else text.strip()


_TRUSTED_HEADER = header_name(is_trusted=True)


@scalar("the name of a header, or a JSON pointer such as /id")
def event_id(text: str) -> str:
    """Where the id of an event is: in a header, or in the body."""
    found: str = (_JSON_POINTER if text.startswith("/") else _TRUSTED_HEADER).read(text)
    return found


@scalar("what is signed, such as {body} or {timestamp}.{body}")
def signature_template(text: str) -> str:
    try:
        parse_template(text)
    except ValueError as error:
        raise Unexpected(str(error)) from None
    return text


# -- hosts, addresses, networks, files ---------------------------------------------------------------------------------

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_LABEL = r"[A-Za-z0-9_][A-Za-z0-9_-]{0,62}"
_HOST_NAME = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(\.{_LABEL})*\.?\Z")
_PORT = re.compile(r"[0-9]{1,5}\Z")
_PLACEHOLDER_URL = _always("https://placeholder")
PLACEHOLDER_DIRECTORY = Path("/placeholder")
"""The directory of files whose path is not known."""


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _is_host(host: str) -> bool:
    """Whether this may be the host of a URL, without the brackets of IPv6."""
    return _HOST_NAME.match(host) is not None or _is_ipv6(host)


def _is_place(text: str, *, may_have_port: bool = True) -> bool:
    has_port = re.search(r":[0-9]{1,5}\Z", text)
    name, colon, port = text.rpartition(":") if has_port else (text, "", "")
    is_name = _is_ipv6(name[1:-1]) if (name[:1], name[-1:]) == ("[", "]") else _HOST_NAME.match(name) is not None
    return is_name and (not colon or (may_have_port and 1 <= int(port) <= 65535))


def host_name(*, may_have_port: bool = False) -> Leaf:
    return text_leaf(
        "a host name such as api.example.com" + ("" if may_have_port else ", without a port"),
        lambda text: _is_place(text, may_have_port=may_have_port),
    )


Host = Annotated[str, host_name()]


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen. `host` is without the brackets of IPv6; port 0 lets the system choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{bracketed(self.host)}:{self.port}"


@scalar(
    "an address such as 127.0.0.1:8080, 0.0.0.0:8080 or [::]:8080",
    shaped(".+:[0-9]{1,5}"),
    stand_in=_always("127.0.0.1:0"),
)
def listen_address(text: str) -> Address:
    host, colon, port = text.rpartition(":")
    if not colon or not _PORT.match(port) or int(port) > 65535:
        raise Unexpected(f"write 127.0.0.1:{text}" if _PORT.match(text) else "")
    if not host or host == "*":
        raise Unexpected(f"write 0.0.0.0:{port} for every interface")
    if not _is_place(host, may_have_port=False):
        raise Unexpected
    return Address(host.strip("[]"), int(port))


@scalar("a network such as 10.0.0.0/8 or fd00::/8")
def network(text: str) -> Network:
    """An address or a network in CIDR notation."""
    for is_strict in (True, False):
        try:
            found = ipaddress.ip_network(text, strict=is_strict)
        except ValueError:
            continue
        if is_strict:
            return found
        raise Unexpected(f"write {found}")
    raise Unexpected


AnyNetwork = Annotated[Network, network]


def absolute_path(example: str = "/etc/idempotency-gateway/tls.pem") -> Leaf:
    def parse(text: str) -> Path:
        if not text.startswith("/") or "\0" in text:
            raise Unexpected
        return Path(text)

    return Leaf(
        f"an absolute path such as {example}",
        parse,
        {"type": "string", "pattern": r"^(/|\$\{)"},
        stand_in=lambda name: str(PLACEHOLDER_DIRECTORY / f"placeholder-{re.sub('[^A-Za-z0-9]', '-', name)}"),
    )


File = Annotated[Path, absolute_path()]

# -- URLs of services --------------------------------------------------------------------------------------------------

_PATH = r"(/[A-Za-z0-9_~-]+)+"
_RESERVED_CHARS_MAX = 128
_NO_CREDENTIALS = "credentials do not belong in this URL"


@dataclass(frozen=True, slots=True)
class UpstreamUrl:
    """Where the service is. `host` is without the brackets of IPv6."""

    scheme: str
    host: str
    port: int

    @property
    def authority(self) -> str:
        """The value of `Host` that names the service, without the scheme's default port."""
        host = bracketed(self.host)
        return host if self.port == {"http": 80, "https": 443}[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"


@dataclass(frozen=True, slots=True)
class AuthorizationUrl:
    """Where an authorising service is asked: a service, and the path and query there."""

    service: UpstreamUrl
    target: str

    @property
    def scheme(self) -> str:
        return self.service.scheme

    def __str__(self) -> str:
        """Without the query, which may hold anything."""
        return f"{self.service}{self.target.partition('?')[0]}"


def _split(text: str) -> tuple[SplitResult, str, int | None]:
    """A URL with its host and its port. Raises `Unexpected` without the text: the error of urlsplit repeats a part."""
    try:
        url = urlsplit(text)
        return url, url.hostname or "", url.port
    except ValueError:
        raise Unexpected(is_secret=True) from None


def _http(text: str) -> tuple[SplitResult, str, int]:
    """The same for a URL of http or https without credentials."""
    url, host, port = _split(text)
    if "@" in text:
        raise Unexpected(_NO_CREDENTIALS, is_secret=True)
    if url.scheme not in ("http", "https") or not host or port == 0:
        raise Unexpected
    return url, host, port or (443 if url.scheme == "https" else 80)


@scalar(
    "a URL such as http://127.0.0.1:9000 or https://service.internal",
    shaped("https?://[^/?#@]+/?"),
    stand_in=_PLACEHOLDER_URL,
)
def service_url(text: str) -> UpstreamUrl:
    """`http` or `https`, a host and an optional port, and nothing else: targets are forwarded as they came."""
    url, host, port = _http(text)
    if url.path not in ("", "/") or "?" in text or "#" in text:
        raise Unexpected("without a path or query: paths are never rewritten")
    if not _is_host(host):
        raise Unexpected
    return UpstreamUrl(url.scheme, host, port)


@scalar(
    "a URL such as http://127.0.0.1:4180/oauth2/auth",
    shaped(r"https?://[^?#@]+(\?[^#]*)?"),
    write=lambda value: f"{value}?placeholder" if "?" in value.target else str(value),
    stand_in=_PLACEHOLDER_URL,
)
def forward_auth_url(text: str) -> AuthorizationUrl:
    """`http` or `https`, a host, and perhaps a path and a query."""
    try:
        url = urlsplit(text)
    except ValueError:
        raise Unexpected(is_secret=True) from None
    target = (url.path or "/") + (f"?{url.query}" if url.query else "")
    # urlsplit drops line breaks and tabs.
    if not re.fullmatch(r"/[!\"$-~]{0,2047}", target) or not re.fullmatch('[!"$-~]+', text):
        raise Unexpected("its path and query are visible ASCII, without #")
    if "@" in url.netloc:
        raise Unexpected(_NO_CREDENTIALS, is_secret=True)
    try:
        return AuthorizationUrl(service_url.parse(f"{url.scheme}://{url.netloc}"), target)
    except Unexpected:
        raise Unexpected from None


@scalar("a URL such as https://api.example.com", shaped("https?://[^?#@]+"), stand_in=_PLACEHOLDER_URL)
def public_url(text: str) -> str:
    """`http` or `https`, a host, and perhaps a path: what callers see before a path of the gateway."""
    url, host, _ = _http(text)
    if not _is_host(host):
        raise Unexpected
    if not re.fullmatch(rf"({_PATH})?/?", url.path) or "?" in text or "#" in text:
        raise Unexpected("without a query; its path is plain")
    return text.rstrip("/")


@scalar("a URL such as https://docs.example.com/problems/", shaped("https?://[^?#@]+[/#]"))
def type_base(text: str) -> str:
    """What stands before the name of a problem in its type: a URL that ends where a name may follow."""
    if not text.endswith(("/", "#")):
        raise Unexpected("it ends with / or #, and the name of the problem follows")
    public_url.read(text.removesuffix("#"))
    return text


@scalar("an origin such as https://app.example.com", shaped("https?://[^/?#@]+"))
def web_origin(text: str) -> str:
    """The origin of a web page as browsers write it: scheme, host and port, in lower case, without the usual port."""
    url = service_url.read(text)
    if str(url) != text:
        raise Unexpected(f"browsers write {url}")
    return text


# A path of the gateway's own on the public listener. It has one spelling, and no variables.
RESERVED_PATH = text_leaf(
    "a path such as /_operations",
    lambda text: re.fullmatch(_PATH, text) is not None and len(text) <= _RESERVED_CHARS_MAX,
    shaped(_PATH, is_substituted=False),
    "of letters, digits, '-', '_' and '~', without a slash at its end",
)


@scalar(
    "a URL such as https://ledger.example.com/hooks",
    shaped("https?://[^/?#@]+.*"),
    stand_in=_PLACEHOLDER_URL,
    is_secret=True,
)
def webhook_url(text: str) -> SecretStr:
    """Where a webhook is. A path and a query are allowed; the query may hold a secret, so the URL is never shown."""
    url, host, port = _split(text)
    if "@" in url.netloc:
        raise Unexpected(f"{_NO_CREDENTIALS}: events are signed")
    if url.scheme not in ("http", "https") or port == 0 or "#" in text:
        raise Unexpected
    if not _is_host(host) or not re.fullmatch(r"[!-~]+", text):
        raise Unexpected
    return SecretStr(text)


KEY_PLACES = "discover, the https URL of a key set, an absolute path to one or to PEM, or {secret: ...}"


@scalar(
    KEY_PLACES,
    shaped("discover|/.*|https?://.*"),
    write=lambda value: re.sub(r"\?.*", "?placeholder", value),
    stand_in=_PLACEHOLDER_URL,
    is_secret=True,
)
def key_place(text: str) -> str:
    """Where keys are: `discover`, a URL or a path. The value is the text."""
    if text == "discover" or (text.startswith("/") and "\0" not in text) or has_tls(text):
        return text
    is_plain = text.startswith("http://")
    raise Unexpected("write https://; plain http is for this machine alone" if is_plain else "")


ISSUER = plain_text(512, stand_in=_PLACEHOLDER_URL)


def has_tls(url: str) -> bool:
    """Whether this is a URL that may be fetched: by https, or from this machine."""
    try:
        parts, host, port = _split(url)
    except Unexpected:
        return False
    is_plain = url.isascii() and url.isprintable() and " " not in url and "@" not in parts.netloc and "#" not in url
    is_safe = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))
    return is_plain and _is_host(host) and port != 0 and is_safe


# -- URLs of stores ----------------------------------------------------------------------------------------------------

_PASSWORD_HINT = "percent-encode /, ?, # and @ in a password"
_SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
# More would not all be dialled in the time of a connection.
_HOSTS_MAX = 8
_REDIS_OPTIONS = frozenset(("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"))
_SENTINEL_OPTIONS = frozenset(("sentinel_username", "sentinel_password"))
_REDIS_PATHS = {
    "": (r"(/[0-9]{0,4})?", "the path is the number of the database"),
    "sentinel": (
        r"/[A-Za-z0-9._-]+(/[0-9]{0,4})?",
        "the path is the name that the sentinels have for the master, and the number of the database",
    ),
    "cluster": ("/?", "a cluster has one database: write no number"),
}
"""What the path of a URL is where masters are found so, and the hint for another one."""


@dataclass(frozen=True, slots=True)
class SqliteUrl:
    """An embedded store in one file, for one host."""

    path: Path


@dataclass(frozen=True, slots=True)
class PostgresUrl:
    """A Postgres that many gateways may share. The DSN may hold a password, and prints as stars."""

    dsn: SecretStr

    @property
    def is_pooled(self) -> bool:
        """Whether it says that it leads to a pgbouncer."""
        options = dict(parse_qsl(urlsplit(self.dsn.get_secret_value()).query))
        return options.get("pgbouncer", "false").lower() in ("1", "true", "yes", "on")


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """A Redis. The URL may hold a password, and prints as stars."""

    url: SecretStr

    @property
    def kind(self) -> str:
        """How its masters are found: `sentinel`, `cluster`, or empty where the URL names the one there is."""
        return self.url.get_secret_value().partition("://")[0].partition("+")[2]


def _split_list(text: str) -> SplitResult:
    """A URL that may list several hosts, each with its port, which urlsplit does not take apart."""
    try:
        return urlsplit(text)
    except ValueError:
        raise Unexpected(_PASSWORD_HINT) from None


def _redis_url(text: str, kinds: tuple[str, ...]) -> RedisUrl:
    scheme, _, rest = text.partition("://")
    base, _, kind = scheme.partition("+")
    url = _split_list(f"{base}://{rest}")
    if base not in ("redis", "rediss") or kind not in kinds:
        raise Unexpected("rediss:// is redis:// with TLS" if kind in ("tls", "ssl") else "")
    hosts = url.netloc.rpartition("@")[2].split(",")
    if not all(map(_is_place, hosts)) or "#" in text:
        # After an unescaped /, ? or # in a password, what is before it is taken for the host.
        raise Unexpected(_PASSWORD_HINT)
    if len(hosts) > 1 and not kind:
        raise Unexpected("redis:// names one host")
    pattern, hint = _REDIS_PATHS[kind]
    if not re.fullmatch(pattern, url.path):
        raise Unexpected(hint)
    options = _REDIS_OPTIONS | (_SENTINEL_OPTIONS if kind == "sentinel" else frozenset())
    if {name for name, _ in parse_qsl(url.query, keep_blank_values=True)} - options:
        raise Unexpected(f"the only options are {', '.join(sorted(options))}")
    return RedisUrl(SecretStr(text))


def _postgres_url(text: str) -> PostgresUrl:
    url = _split_list(text)
    options = dict(parse_qsl(url.query, keep_blank_values=True))
    place = url.netloc.rpartition("@")[2]
    hosts = re.sub(r"\[[^]]*\]", "", place).split(",")
    ports = [host.rpartition(":")[2] for host in hosts if ":" in host]
    # An unescaped / or ? in a password ends the host early, and the rest would be shown as the database; after an
    # unescaped @ the driver takes the rest for a part of the host.
    is_cut = re.search("[/@]", url.path[1:]) or any("@" in name for name in options) or url.netloc.count("@") > 1
    if not (place or options.get("host")) or "#" in text or is_cut or not all(_PORT.match(port) for port in ports):
        raise Unexpected(_PASSWORD_HINT)
    if options.get("sslmode", "prefer") not in _SSL_MODES:
        raise Unexpected(f"sslmode is {alternatives(_SSL_MODES)}")
    if max(len(hosts), options.get("host", "").count(",") + 1) > _HOSTS_MAX:
        raise Unexpected(f"at most {_HOSTS_MAX} hosts")
    # Which server of a list is used is decided here.
    session = options.get("target_session_attrs", "primary")
    if session not in ("any", "primary", "read-write") or "load_balance_hosts" in options:
        raise Unexpected("leave out target_session_attrs and load_balance_hosts: of several hosts, the primary is used")
    return PostgresUrl(SecretStr(text))


def _sqlite_url(text: str) -> SqliteUrl:
    rest = text.removeprefix("sqlite://")
    path = unquote(rest)
    if not path.startswith("/") or "?" in rest or "#" in rest or "\0" in path:
        raise Unexpected("the path is absolute and the store is a file")
    path = "/" + path.lstrip("/")
    if path.split("/")[1] in (".", "..", "~"):
        raise Unexpected("the path is absolute: write all of it")
    if path.endswith("/") or path == "/:memory:":
        raise Unexpected("the store is a file")
    return SqliteUrl(Path(path))


@scalar(
    "sqlite:///PATH, postgresql://USER@HOST/DATABASE or redis://USER@HOST:PORT/DATABASE",
    shaped(r"sqlite:///.+|postgres(ql)?://.+|rediss?(\+sentinel)?://.+"),
    write=lambda value: value.path.as_uri().replace("file://", "sqlite://", 1),
    stand_in=_always("postgresql://placeholder@placeholder/placeholder"),
    is_secret=True,
)
def durable_url(text: str) -> SqliteUrl | PostgresUrl | RedisUrl:
    match text.partition("://")[0]:
        case "redis+cluster" | "rediss+cluster":
            raise Unexpected(
                "a Redis Cluster keeps no operations alone: name one server, or sentinels (redis+sentinel://), or use "
                "PostgreSQL, which a cluster may stand before as store.fast"
            )
        case scheme if scheme.partition("+")[0] in ("redis", "rediss"):
            return _ALONE_URL.read(text)  # type: ignore[no-any-return]
        case "sqlite":
            return _sqlite_url(text)
        case "postgresql" | "postgres":
            return _postgres_url(text)
    raise Unexpected


def _redis_leaf(expected: str, schemes: str, *kinds: str) -> Leaf:
    """A Redis whose masters are found in these ways. Its URL must not set options that change timeouts or retries."""
    schema, stand_in = shaped(f"rediss?{schemes}://.+"), _always("redis://placeholder:6379/0")
    return Leaf(expected, lambda text: _redis_url(text, kinds), schema, stand_in=stand_in, is_secret=True)


STREAM_URL = _redis_leaf("redis://HOST:PORT/DATABASE or rediss://HOST:PORT/DATABASE", "", "")
FAST_URL = _redis_leaf(
    "redis://HOST:PORT/DATABASE, redis+sentinel://HOST,HOST/NAME/DATABASE or redis+cluster://HOST,HOST",
    r"(\+sentinel|\+cluster)?",
    "",
    "sentinel",
    "cluster",
)
# One Redis, or the master that sentinels name, that keeps operations alone.
_ALONE_URL = _redis_leaf("redis://HOST:PORT/DATABASE or redis+sentinel://HOST,HOST/NAME/DATABASE", "", "", "sentinel")
