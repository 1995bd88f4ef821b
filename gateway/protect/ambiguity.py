"""Rule 2: which route a request meets, and which requests are ambiguous HTTP, and so refused.

Pure. A request is ambiguous if this gateway and the service behind it could read it differently: another target,
another length, another caller, another key. This module owns those readings, and does not know what a route does with a
request. A fault is a sentence for the client. It names a rule and repeats nothing that was sent, except header names
that the configuration or this module knows.

Nearly all requests have a plain target and no header of a name that could matter here. A few look-ups show that, and
`examine` ends; all others take the whole way, `examine_closely`, which finds the same for every request.

The parser refuses bare line feeds, folded headers and control characters before; its tests cover them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from operator import itemgetter
from typing import Final
from urllib.parse import unquote_to_bytes

from gateway.core import immutable
from gateway.core.message import (
    EXPECT,
    METHOD_OVERRIDES,
    ODD,
    OVERRIDE,
    TARGET_OVERRIDES,
    IndexedHeaders,
    NameTable,
    RequestHead,
    connection_options,
    folded_name,
)
from gateway.core.routing import (
    Entry,
    RouteTable,
    Unreadable,
    has_dot_segments,
    is_front,
    is_plain,
    normalise_path,
    readings,
)
from gateway.protect.route import Route

# On any route, these may not be repeated, spelt in another way, or named by `Connection`.
_SINGLE: Final = frozenset(
    (b"authorization", b"content-encoding", b"content-length", b"content-type", b"host", b"idempotency-key")
)
_FRAMING: Final = frozenset((b"content-length", b"transfer-encoding"))
_NOT_TO_BE_NAMED: Final = _SINGLE | {b"cookie", b"transfer-encoding"}

PATH_BYTES_MAX: Final = 8 * 1024
"""A path is compared with the routes in several spellings, and each comparison takes time by its length."""
# User information or a fragment beside the host are read in more than one way (RFC 9110 section 4.2.4).
_ABSOLUTE_FORM: Final = re.compile(rb"[A-Za-z][A-Za-z0-9+.\-]*+://[A-Za-z0-9\-._~!$&'()*+,;=:%\[\]]++(?:[/?]|\Z)")

_SPELLING: Final = "The path can be read as %s, which is protected. Write it in that spelling; nothing was sent."
_NAMED_ELSEWHERE: Final = (
    "A header or the query names a method or a path by which this can be read as a request for %s, which is protected. "
    "Leave that out; nothing was sent."
)
_TOO_MANY_READINGS: Final = "The target can be read in too many ways. Write it with fewer escapes; nothing was sent."

_VERSIONS: Final = ((1, 1), (1, 0))
_VALUE: Final = itemgetter(1)
_NO_LENGTH: Final = [b"0"]
# Far more than any length has, and few enough to be parsed fast.
_LENGTH_DIGITS_MAX: Final = 18

# RFC 3986 section 3.2.2 with a port. A list, user information or a path in it can be read in more than one way. So can
# an escape: services that make a URL of the host decode it, and no client needs one.
_HOST: Final = re.compile(rb"(?:[A-Za-z0-9\-._~!$&'()*+;=]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]*)?")
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_NOT_VISIBLE: Final = re.compile(rb"[\x00-\x20\x7f]")
_METHOD_IN_QUERY: Final = re.compile(rb"(?:\A|[&;?])_method=([A-Za-z]+)")
_QUERY_MEMBERS_MAX: Final = 256
_OTHER_METHODS: Final = NameTable(lambda name: folded_name(name) in METHOD_OVERRIDES)
_OTHER_TARGETS: Final = NameTable(lambda name: folded_name(name) in TARGET_OVERRIDES)


@immutable
class Fault:
    """Why bytes are no request, or a request is refused before its route handles it. Nothing of them is repeated.

    `is_verdict`: on a route, the refusal is rule 2. Otherwise it has no verdict, only the route's shape.
    """

    status: int
    detail: str
    is_verdict: bool = True


_PATH_TOO_LONG: Final = Fault(414, "The path of the request is too long.", is_verdict=False)


def examine(
    routes: RouteTable[Route], head: RequestHead, version: tuple[int, int]
) -> tuple[Route | None, Fault | None]:
    """The route that protects the request, and why the request is refused, if it is.

    A request that may be read as one for another route than the one that it matches as it is written is refused, be it
    by the spelling of its path or by the method or target that it names elsewhere: it is not known whether the service
    reads it so. On an observed route it is judged as if none matched.
    """
    headers = head.headers
    if not headers.marks & ~EXPECT and version == (1, 1):
        hosts, lengths = headers.by_name.get(b"host"), headers.by_name.get(b"content-length", _NO_LENGTH)
        has_length = lengths[0].isdigit() and len(lengths[0]) <= _LENGTH_DIGITS_MAX
        if hosts is not None and has_length and _HOST.fullmatch(hosts[0]) and len(head.target) <= PATH_BYTES_MAX:
            entry = routes.certain.get((head.method, head.target))
            is_certain, entry = (True, entry) if entry else routes.find_certain(head.method, head.target, hosts[0])
            if is_certain and entry is None and head.method != b"CONNECT":
                return None, None
            is_enforced = is_certain and entry is not None and not entry.value.is_observed
            if is_enforced and entry is not None and not _CONTROL.search(b"".join(map(_VALUE, headers))):
                return entry.value, None
    return examine_closely(routes, head, version)


def examine_closely(
    routes: RouteTable[Route], head: RequestHead, version: tuple[int, int]
) -> tuple[Route | None, Fault | None]:
    """The same as `examine`, for every request."""
    target = head.target
    if len(target) > PATH_BYTES_MAX and len(target.partition(b"?")[0]) > PATH_BYTES_MAX:
        return None, _PATH_TOO_LONG
    headers = head.headers
    hosts = headers.by_name.get(b"host")
    host = hosts[0] if hosts else None
    entry = routes.find(head.method, target, host)
    route = None if entry is None else entry.value
    if route is not None and route.is_observed:
        route = route.for_key(head.headers)
    fault = framing_fault(headers, version)
    if fault is not None:
        return route, Fault(400, fault)
    if entry is not None and route is not None and not route.is_observed:
        fault = ambiguity(head, route.once, route.compared)
        if fault is not None:
            return route, Fault(400, fault)
        if routes.is_clear(entry, target) and not names_another(head):
            return route, None
        other, refusal = _other_reading(routes, head, host, entry.value)
        return other or route, refusal
    if head.method == b"CONNECT":
        return None, Fault(501, "This is not a forward proxy.")
    if target[:1] != b"/" and target != b"*" and not _ABSOLUTE_FORM.match(target):
        return None, Fault(400, "The request target is neither a path nor a URL.")
    if host is not None and (fault := host_fault(host)) is not None:
        return None, Fault(400, fault)
    other, refusal = _other_reading(routes, head, host, None)
    return (route, None) if refusal is None else (other, refusal)


def _other_reading(
    routes: RouteTable[Route], head: RequestHead, host: bytes | None, matched: Route | None
) -> tuple[Route | None, Fault | None]:
    """The route that a request may be read as one for, beside the one that it matches, and why it is refused."""
    method, target = head.method, head.target
    # What the file calls unprotected is no other spelling.
    written = () if matched is None and routes.is_unprotected(method, target, host) else (method,)
    try:
        if (route := _first_enforced(routes.readings(written, target, host), head, matched)) is not None:
            return route.value, Fault(400, _SPELLING % route.rule.path.text)
        is_named, targets = names_another(head), targets_in_query(target) if written else []
        if not is_named and not targets:
            return None, None
        methods, targets = {method, *other_methods(head)}, targets + other_targets(head)
        # Comparing them takes time, and a head may be much longer than a path.
        if sum(map(len, targets)) > PATH_BYTES_MAX:
            return None, Fault(400, "What names another target is too long.")
        for other in ((methods - {method}, target), *((methods, each) for each in targets)):
            if (route := _first_enforced(routes.readings(*other, host), head, matched)) is not None:
                return route.value, Fault(400, _NAMED_ELSEWHERE % route.rule.path.text)
    except Unreadable:
        return None, Fault(400, _TOO_MANY_READINGS)
    return None, None


def _first_enforced(entries: Iterable[Entry[Route]], head: RequestHead, matched: Route | None) -> Entry[Route] | None:
    found = (each for each in entries if each.value is not matched)
    return next((each for each in found if not each.value.for_key(head.headers).is_observed), None)


def framing_fault(headers: IndexedHeaders, version: tuple[int, int]) -> str | None:
    """A fault of the request's framing: refused on every route, and where none matches (RFC 9112 section 6)."""
    if version not in _VERSIONS:
        return "The HTTP version is neither 1.0 nor 1.1."
    lengths = headers.by_name.get(b"content-length", ())
    codings = headers.by_name.get(b"transfer-encoding", ())
    if headers.marks & ODD and (fault := _spelling_fault(headers.by_name, _FRAMING)):
        return fault
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


def names_another(head: RequestHead) -> bool:
    """Whether a header or the query may name another method or target. Mostly not."""
    target = head.target
    if b"?" in target and (b"_method" in target or b"%" in target):
        return True
    return bool(head.headers.marks & OVERRIDE)


def other_methods(head: RequestHead) -> set[bytes]:
    """The methods that a service may read which lets a header or the query override the method.

    Many services join repeated headers to a list, of which some take the first member (Express's method-override).
    """
    values = [value.partition(b",")[0] for name, value in head.headers if _OTHER_METHODS[name]]
    query = unquote_to_bytes(head.target.partition(b"?")[2])
    return {value.strip(b" \t").upper() for value in [*values, *_METHOD_IN_QUERY.findall(query)]}


def other_targets(head: RequestHead) -> list[bytes]:
    """The paths, or URLs without a query, that a service may read which takes them from a header."""
    values = [value.strip(b" \t") for name, value in head.headers if _OTHER_TARGETS[name]]
    return [_rooted(path) for value in values if (path := re.split(rb"[?#]", value, maxsplit=1)[0])]


def targets_in_query(target: bytes) -> list[bytes]:
    """The paths that a front controller may read from its query: `/index.php?r=v1/payments`, `/?rest_route=/v1`.

    Raises `Unreadable`.
    """
    path, _, query = target.partition(b"?")
    if not query or not is_front(path):
        return []
    members = re.split(rb"[&;]", query, maxsplit=_QUERY_MEMBERS_MAX)
    if len(members) > _QUERY_MEMBERS_MAX:
        raise Unreadable
    found = []
    for name, equals, value in [member.partition(b"=") for member in members]:
        if named := value if equals else name:
            found.append(_rooted(named))
        if name == b"rest_route":
            found.append(b"/wp-json" + _rooted(value))
    return found


def _rooted(path: bytes) -> bytes:
    return path if path.startswith(b"/") or b"://" in path else b"/" + path


def _target_fault(target: bytes) -> str | None:
    if is_plain(target):
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
    try:
        paths, _ = readings(target)
    except Unreadable:
        return _TOO_MANY_READINGS
    if any(b"\0" in path for path in paths):
        return "The path holds an escaped NUL."
    if has_dot_segments(normalise_path(path)) or any(map(has_dot_segments, paths)):
        return "The path holds a . or .. segment."
    return None


def _headers_fault(headers: IndexedHeaders, once: frozenset[bytes], compared: frozenset[bytes]) -> str | None:
    by_name = headers.by_name
    if len(by_name) < len(headers):
        for name, values in by_name.items():
            if len(values) > 1 and (name in _SINGLE or name in once):
                return f"The header {_shown(name)} is repeated."
    if b"host" in by_name and (fault := host_fault(by_name[b"host"][0])):
        return fault
    if headers.marks & ODD and (fault := _spelling_fault(by_name, once | compared | _NOT_TO_BE_NAMED)):
        return fault
    if _CONTROL.search(b"".join(map(_VALUE, headers))):
        return "A header holds a control character."
    if b"connection" in by_name and (named := connection_options(headers) & (_NOT_TO_BE_NAMED | once | compared)):
        return f"Connection names the header {_shown(min(named))}."
    return None


def _spelling_fault(names: Iterable[bytes], known: frozenset[bytes]) -> str | None:
    """A header that is not one of the known, and the same to a service that folds its name."""
    spelt = {folded_name(name): name for name in known}
    for name in names:
        meant = spelt.get(folded_name(name)) if name not in known else None
        if meant is not None:
            return f"A header is spelt in another way than {_shown(meant)}. Write it like that."
    return None


def _shown(name: bytes) -> str:
    return name.decode("ascii", "replace").title()
