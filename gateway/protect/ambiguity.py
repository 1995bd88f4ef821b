"""Rule 2: which requests are ambiguous HTTP, and so refused on a protected route.

Pure. A request is ambiguous if this gateway and the service behind it could read it differently: another target,
another length, another caller, another key. This module owns those readings, and does not know what a route does with a
request. A fault is a sentence for the client. It names a rule and repeats nothing that was sent, except header names
that the configuration or this module knows.

The parser refuses bare line feeds, folded headers and control characters before; its tests cover them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from gateway.core.identity.fingerprint import METHOD_OVERRIDES, TARGET_OVERRIDES
from gateway.core.message import Headers, NameTable, RequestHead, connection_options, values_by_name
from gateway.core.routing import has_dot_segments, normalise_path

# On any route, these may not be repeated, spelt with `_`, or named by `Connection`.
_SINGLE: Final = frozenset(
    (b"authorization", b"content-encoding", b"content-length", b"content-type", b"host", b"idempotency-key")
)
_NOT_TO_BE_NAMED: Final = _SINGLE | {b"cookie", b"transfer-encoding"}

_VERSIONS: Final = ((1, 1), (1, 0))
# Far more than any length has, and few enough to be parsed fast.
_LENGTH_DIGITS_MAX: Final = 18

# RFC 3986 section 3.2.2 with a port. A list, user information or a path in it can be read in more than one way. So can
# an escape: services that make a URL of the host decode it, and no client needs one.
_HOST: Final = re.compile(rb"(?:[A-Za-z0-9\-._~!$&'()*+;=]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]*)?")
# A target without an escape, a parameter, or a segment that begins with a dot. Nearly all are like this, and need no
# further check.
_PLAIN_TARGET: Final = re.compile(rb"(?:/(?!\.)[A-Za-z0-9\-._~!$&'()*+,=:@]++)++(?:\?[!\"$-~]*+)?")
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_NOT_VISIBLE: Final = re.compile(rb"[\x00-\x20\x7f]")
_SLASH_IN_DISGUISE: Final = re.compile(rb"\\|%2f|%5c", re.IGNORECASE)
_PARAMETERS: Final = re.compile(rb";[^/]*")
_BLANK: Final = re.compile(rb"%(?:[01][0-9a-f]|20)", re.IGNORECASE)
_BLANK_AT_AN_END: Final = re.compile(rb"/%(?:[01][0-9a-f]|20)|%(?:[01][0-9a-f]|20)(?:/|\Z)", re.IGNORECASE)
_NUL: Final = b"%00"
_ESCAPED_PERCENT: Final = b"%25"
_ABSOLUTE_FORM: Final = re.compile(rb"[A-Za-z][A-Za-z0-9+.\-]*://(?:[^/?#@]*@)?([^/?#]*)")
_OTHER_METHODS: Final = NameTable(lambda name: name.lower().replace(b"_", b"-") in METHOD_OVERRIDES)
_OTHER_TARGETS: Final = NameTable(lambda name: name.lower().replace(b"_", b"-") in TARGET_OVERRIDES)
_OVERRIDES: Final = NameTable(lambda name: _OTHER_METHODS[name] or _OTHER_TARGETS[name])


def framing_fault(by_name: Mapping[bytes, Sequence[bytes]], version: tuple[int, int]) -> str | None:
    """A fault of the request's framing: refused on every route, and where none matches (RFC 9112 section 6).

    `by_name` has the values of its headers by their names in lower case.
    """
    if version not in _VERSIONS:
        return "The HTTP version is neither 1.0 nor 1.1."
    lengths = by_name.get(b"content-length", ())
    codings = by_name.get(b"transfer-encoding", ())
    if b"transfer_encoding" in by_name or b"content_length" in by_name:
        return "A header that frames the body is spelt with an underscore."
    if codings:
        if version == (1, 0):
            return "HTTP/1.0 has no transfer codings."
        if len(codings) > 1 or codings[0].lower() != b"chunked":
            return "The only transfer coding that is understood is chunked, once."
        if lengths:
            return "Content-Length and Transfer-Encoding exclude each other."
    elif lengths and (len(lengths) > 1 or not lengths[0].isdigit() or len(lengths[0]) > _LENGTH_DIGITS_MAX):
        return "Content-Length is not a single number."
    return None


def host_fault(host: bytes) -> str | None:
    """A fault of the `Host` header: refused on every route, and where none matches (RFC 9112 section 3.2).

    A service may read another host from it, or another path if it joins the two to a URL.
    """
    return None if _HOST.fullmatch(host) else "The Host header is not a valid host."


def ambiguity(head: RequestHead, once: frozenset[bytes], compared: frozenset[bytes] = frozenset()) -> str | None:
    """What is ambiguous in a request whose framing is sound; None when nothing is.

    `once` are the headers (lower case) that carry caller, key and credential on this route; `compared` those that its
    fingerprint covers. The service must read both as this gateway does.
    """
    return _target_fault(head.target) or _headers_fault(head.headers, once, compared)


def overrides(headers: Headers) -> Headers:
    """The headers from which a service may take another method or target. Mostly none."""
    return tuple([header for header in headers if _OVERRIDES[header[0]]])


def other_methods(headers: Headers) -> frozenset[bytes]:
    """The methods that a service may read which lets a header override the method.

    Many services join repeated headers to a list, of which some take the first member (Express's method-override).
    """
    values = [value.partition(b",")[0] for name, value in headers if _OTHER_METHODS[name]]
    return frozenset([value.strip(b" \t").upper() for value in values])


def other_targets(headers: Headers) -> list[bytes]:
    """The paths, or URLs without a query, that a service may read which takes them from a header."""
    values = [value.strip(b" \t") for name, value in headers if _OTHER_TARGETS[name]]
    paths = [re.split(rb"[?#]", value, maxsplit=1)[0] for value in values]
    return [path if path.startswith(b"/") or b"://" in path else b"/" + path for path in paths if path]


def other_readings(target: bytes, host: bytes | None) -> Iterable[tuple[bytes, bytes | None]]:
    """Other targets, with their hosts, that a lenient service may read from this one. Mostly none.

    A service may take `\\`, `%2F` and `%5C` for a slash, cut off the parameters of a segment or the blanks around it
    (Spring before 4.3), decode twice, take the host of an absolute form, or take what follows two slashes for a host
    (RFC 3986 section 4.2). A request that matches a route only in one of these readings must not bypass it.
    """
    return () if _PLAIN_TARGET.fullmatch(target) else _other_readings(target, host)


def _other_readings(target: bytes, host: bytes | None) -> Iterator[tuple[bytes, bytes | None]]:
    absolute = _ABSOLUTE_FORM.match(target)
    if absolute is not None:
        host = absolute[1]
        target = target[absolute.end() :]
        if not target.startswith(b"/"):
            target = b"/" + target
        yield target, host
    path = re.split(rb"[?#]", target, maxsplit=1)[0]
    folded = path.replace(_ESCAPED_PERCENT, b"%")
    folded = _PARAMETERS.sub(b"", re.sub(rb"%3b", b";", folded, flags=re.IGNORECASE))
    folded = _SLASH_IN_DISGUISE.sub(b"/", folded)
    folded = folded.partition(_NUL)[0]
    if _BLANK_AT_AN_END.search(folded):
        folded = b"/".join([segment.strip(b" ") for segment in _BLANK.sub(b" ", folded).split(b"/")])
    if folded != path:
        yield folded, host
    if folded.startswith(b"//"):
        authority, slash, rest = folded.lstrip(b"/").partition(b"/")
        yield slash + rest or b"/", authority.rpartition(b"@")[2]


def _target_fault(target: bytes) -> str | None:
    if _PLAIN_TARGET.fullmatch(target):
        return None
    if not target.startswith(b"/"):
        return "The request target is not a path."
    if _NOT_VISIBLE.search(target):
        return "The request target holds a control character."
    if b"#" in target:
        return "The request target holds a fragment."
    path, _, _ = target.partition(b"?")
    if b"\\" in path:
        return "The path holds a backslash."
    normal = normalise_path(path)
    if has_dot_segments(normal):
        return "The path holds a . or .. segment."
    if b"%" not in normal and b";" not in normal:
        return None
    if _NUL in normal:
        return "The path holds an escaped NUL."
    folded = _SLASH_IN_DISGUISE.sub(b"/", _PARAMETERS.sub(b"", normal.replace(_ESCAPED_PERCENT, b"%")))
    if has_dot_segments(normalise_path(folded)):
        return "The path holds a . or .. segment in disguise."
    return None


def _headers_fault(headers: Headers, once: frozenset[bytes], compared: frozenset[bytes]) -> str | None:
    by_name = values_by_name(headers)
    if len(by_name) < len(headers):
        for name, values in by_name.items():
            if len(values) > 1 and (name in _SINGLE or name in once):
                return f"The header {_shown(name)} is repeated."
    if b"host" in by_name and (fault := host_fault(by_name[b"host"][0])):
        return fault
    if b"_" in b"".join(by_name) and (fault := _underscore_fault(by_name, once | compared)):
        return fault
    if _CONTROL.search(b"".join([value for _, value in headers])):
        return "A header holds a control character."
    if b"connection" in by_name and (named := connection_options(headers) & (_NOT_TO_BE_NAMED | once | compared)):
        return f"Connection names the header {_shown(min(named))}."
    return None


def _underscore_fault(names: Iterable[bytes], of_route: frozenset[bytes]) -> str | None:
    for name in names:
        if b"_" in name and name not in of_route:
            folded = name.replace(b"_", b"-")
            if folded in _NOT_TO_BE_NAMED or folded in of_route or _folds_onto(folded, of_route):
                return f"The header {_shown(folded)} is spelt with an underscore."
    return None


def _folds_onto(folded: bytes, of_route: frozenset[bytes]) -> bool:
    """Whether a header of the route that is itself spelt with `_` reads like this one."""
    return any(b"_" in name and name.replace(b"_", b"-") == folded for name in of_route)


def _shown(name: bytes) -> str:
    return name.decode("ascii", "replace").title()
