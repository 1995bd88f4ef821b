"""How the parts of HTTP messages are written: statuses, methods, fields, paths, and places in their bodies."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Any

from gateway.config.leaf import Leaf, wrong
from gateway.config.report import alternatives
from gateway.core.identity.fingerprint import may_be_fingerprinted
from gateway.core.message import HOP_BY_HOP
from gateway.core.routing import PathPattern, PatternError

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,128}\Z")  # RFC 9110 section 5.6.2
_POINTER = r"(/([^~/]|~[01])*)+"  # RFC 6901 section 3, without the whole document
_POINTER_CHARS_MAX = 256
_PROBE_PATH = re.compile(r"/[!-\"$-~]{0,2047}\Z")  # visible ASCII without #
# The registered methods (RFC 9110 section 16.1.1, and what WebDAV and its kind use): one that is not is a slip.
_METHODS = (
    "ACL", "BIND", "CHECKOUT", "CONNECT", "COPY", "DELETE", "GET", "HEAD", "LINK", "LOCK", "M-SEARCH", "MERGE",
    "MKACTIVITY", "MKCALENDAR", "MKCOL", "MOVE", "NOTIFY", "OPTIONS", "PATCH", "POST", "PROPFIND", "PROPPATCH",
    "PURGE", "PUT", "QUERY", "REBIND", "REPORT", "SEARCH", "SOURCE", "SUBSCRIBE", "TRACE", "UNBIND", "UNLINK",
    "UNLOCK", "UNSUBSCRIBE",
)  # fmt: skip
_NEVER_PROTECTED = ("GET", "HEAD", "OPTIONS", "TRACE", "CONNECT")
_PLACEHOLDER = re.compile(r"\{[A-Za-z_][A-Za-z0-9_]*\}")

# Fields that the gateway itself writes or strips; no caller's field can carry meaning under these names.
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

    def json_schema(self) -> dict[str, Any]:
        return {"enum": list(self.codes)}


class StatusSet(Leaf):
    """A status code (the value is an int) or a class of them such as `4xx` (the value is that text)."""

    expected = "a status code from 200 to 599, or a class: 2xx, 3xx, 4xx or 5xx"

    def read(self, text: str) -> int | str:
        if re.match(r"[2-5]xx\Z", text):
            return text
        if not re.match(r"[2-5][0-9][0-9]\Z", text):
            raise self.unexpected()
        return int(text)

    def json_schema(self) -> dict[str, Any]:
        return {"anyOf": [{"type": "integer", "minimum": 200, "maximum": 599}, {"enum": ["2xx", "3xx", "4xx", "5xx"]}]}


class Method(Leaf):
    """A request method that can be protected. Methods are case-sensitive (RFC 9110 section 9.1)."""

    expected = "a method such as POST or PATCH"

    def read(self, text: str) -> str:
        if not _TOKEN.match(text) or text != text.upper():
            raise self.unexpected(f"write {text.upper()}" if _TOKEN.match(text) else "")
        if text in _NEVER_PROTECTED:
            raise self.unexpected("a safe method has no effect to protect")
        if text not in _METHODS:
            close = difflib.get_close_matches(text, _METHODS, n=1)
            hint = f"did you mean {close[0]}?" if close else "this one is not registered"
            raise self.unexpected(hint)
        return text

    def json_schema(self) -> dict[str, Any]:
        return {"type": "string", "not": {"enum": list(_NEVER_PROTECTED)}}


@dataclass(frozen=True)
class HeaderName(Leaf):
    """The name of a header field, in the spelling of the file.

    `refused` maps names in lower case to the reason; `is_trusted`: who calls or with which key is read from it;
    `is_compared`: it is part of the fingerprint.
    """

    refused: tuple[tuple[str, str], ...] = ()
    is_trusted: bool = False
    is_compared: bool = False

    expected = "the name of a header field"

    def read(self, text: str) -> str:
        name = text.lower()
        if not _TOKEN.match(text):
            raise self.unexpected()
        if name.encode() in HOP_BY_HOP or name.replace("_", "-") in _RESERVED:
            raise wrong("this field belongs to the connection or to the gateway, not to the request")
        if self.is_trusted and "_" in name:
            raise wrong("services may confuse '_' with '-' in the name of a field", f"write {text.replace('_', '-')}")
        if self.is_compared and not may_be_fingerprinted(text.encode()):
            raise wrong("this field may change from one retry to the next")
        for prefix, reason in self.refused:
            if name == prefix or (prefix.endswith("-") and name.startswith(prefix)):
                raise wrong(reason)
        return text

    def json_schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"}


class JsonPointer(Leaf):
    """A JSON pointer to a part of the body (RFC 6901); the whole body is not one."""

    expected = "a JSON pointer such as /amount or /customer/id, with ~1 for / and ~0 for ~"

    def read(self, text: str) -> str:
        if not _is_pointer(text):
            raise self.unexpected()
        return text

    def json_schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": f"^{_POINTER}$"}


def _is_pointer(text: str) -> bool:
    return len(text) <= _POINTER_CHARS_MAX and re.fullmatch(_POINTER, text) is not None


class RoutePath(Leaf):
    """A path pattern; the value is compiled."""

    expected = "a path such as /v1/payments, /v1/orders/{id} or /v1/{rest:.*}"

    def read(self, text: str) -> PathPattern:
        try:
            return PathPattern.parse(text)
        except PatternError as error:
            raise self.unexpected(str(error)) from None

    def json_schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": "^/"}


class ProbePath(Leaf):
    """What a probe asks: a path, perhaps with a query, and placeholders in it."""

    expected = "a path such as /v1/payments?operation={operation_id}"

    def read(self, text: str) -> str:
        if not _PROBE_PATH.match(text) or text.startswith("//"):
            raise self.unexpected()
        outside = _PLACEHOLDER.sub("", text)
        if "{" in outside or "}" in outside:
            raise wrong("a brace is not closed or not opened", "write {operation_id}, {key} or {name}")
        return text

    def json_schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": "^/"}


class ProbeFollow(Leaf):
    """Where an answer names another one: its `Location`, or a place in its body."""

    expected = "location, or a JSON pointer such as /data/url"

    def read(self, text: str) -> str:
        if text != "location" and not _is_pointer(text):
            raise self.unexpected()
        return text

    def json_schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": f"^(location|{_POINTER})$"}
