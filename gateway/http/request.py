"""A client's request: its body as it comes, and the checks that may refuse it first.

aiohttp's parser decides which bytes are a request. This module owns the rest: which requests are ambiguous or too big
(`examine`), what a client may not say of itself (`ReservedHeaders`), reading the body at its consumer's pace, and `100
Continue`. That is sent when the body is first read, so
that a request which is refused by its head never uploads. Invariant: a body that did not arrive completely raises
`RequestCut`; it never just ends.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable
from typing import Final

from gateway.core.message import (
    IndexedHeaders,
    NameTable,
    RequestHead,
    connection_options,
    folded_name,
    indexed,
)
from gateway.core.routing import Entry, RouteTable
from gateway.core.spelling import Unreadable
from gateway.http.connection import ClientConnection, Payload
from gateway.http.limits import HEAD_TOO_BIG, Fault
from gateway.protect.ambiguity import (
    TOO_MANY_READINGS,
    ambiguity,
    framing_fault,
    host_fault,
    names_another,
    other_methods,
    other_targets,
    targets_in_query,
)
from gateway.protect.reply import Cut
from gateway.protect.route import Route

# A path is compared with the routes in several spellings, and each comparison takes time in proportion to its length.
PATH_BYTES_MAX: Final = 8 * 1024
# How much of a body is read at once, when its consumer reads it; as much again is buffered for a slow consumer.
_PIECE_BYTES: Final = 64 * 1024
# The bytes around a header's name and value, and around the parts of a request line.
_FIELD_BYTES: Final = len(b": \r\n")
_LINE_BYTES: Final = len(b"  HTTP/1.1\r\n\r\n")

# User information or a fragment beside the host are read in more than one way (RFC 9110 section 4.2.4).
_ABSOLUTE_FORM: Final = re.compile(rb"[A-Za-z][A-Za-z0-9+.\-]*+://[A-Za-z0-9\-._~!$&'()*+,;=:%\[\]]++(?:[/?]|\Z)")

# A body loses its upload slot to another request if it was waited for that long and came more slowly than this.
# A mebibyte may take a minute.
_CROWDED_SECONDS: Final = 5.0
_CROWDED_BYTES_PER_SECOND: Final = 16 * 1024

_PATH_TOO_LONG: Final = Fault(414, "The path of the request is too long.", is_verdict=False)
_SPELLING: Final = "The path can be read as %s, which is protected. Write it in that spelling; nothing was sent."
_NAMED_ELSEWHERE: Final = (
    "A header or the query names a method or a path by which this can be read as a request for %s, which is protected. "
    "Leave that out; nothing was sent."
)
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class ClientBody:
    """See `reply.RequestBody`."""

    __slots__ = (
        "_connection",
        "_payload",
        "_taken_bytes",
        "_wait_began",
        "_waited_seconds",
        "expects_continue",
        "keeps_pace",
        "length",
    )

    def __init__(self, connection: ClientConnection, payload: Payload, length: int | None) -> None:
        self._connection = connection
        self._payload = payload
        self._taken_bytes = 0
        self._waited_seconds = 0.0
        self._wait_began: float | None = None
        self.length = length
        self.expects_continue = False
        """Whether the client waits for `100 Continue` before it sends the body."""
        self.keeps_pace = False
        """Whether it must come at a minimum pace, because it holds an upload slot meanwhile."""

    def whole(self) -> bytes | None:
        """All of its bytes, if they are here."""
        payload = self._payload
        if self.length == 0:
            return b""
        return payload.read_nowait() if payload.is_eof() and payload.exception() is None else None

    async def stream(self) -> AsyncIterator[bytes]:
        """Its bytes as they come. Raises `RequestCut`."""
        payload = self._payload
        payload.set_read_chunk_size(_PIECE_BYTES)
        if self.expects_continue and not payload.is_eof():
            self.expects_continue = False
            if self._connection.is_open:
                self._connection.write(_CONTINUE)
        while not payload.at_eof():
            data = await self._read()
            if data:
                self._taken_bytes += len(data)
                yield data

    def crowd_out(self) -> bool:
        """Cut it short if it comes too slowly to keep its slot; returns whether it was cut."""
        waited_seconds = self._waited_seconds
        if self._wait_began is not None:
            waited_seconds += asyncio.get_running_loop().time() - self._wait_began
        if waited_seconds < _CROWDED_SECONDS or self._taken_bytes >= _CROWDED_BYTES_PER_SECOND * waited_seconds:
            return False
        return self._connection.cut_body(Cut.CROWDED_OUT)

    def close(self) -> None:
        """Holds nothing: the connection deals with what was not read."""

    async def _read(self) -> bytes:
        loop = asyncio.get_running_loop()
        settings = self._connection.settings
        seconds = settings.silence_seconds
        if self.keeps_pace:
            # The first silence is free. After that, the bytes that came must make up for the time waited.
            earned = self._taken_bytes / settings.bytes_per_second_min
            seconds = max(0.0, min(seconds, seconds + earned - self._waited_seconds))
        began = self._wait_began = loop.time()
        try:
            return await self._connection.read_body(self._payload, seconds)
        finally:
            self._wait_began = None
            self._waited_seconds += loop.time() - began


def too_big(head: RequestHead, header_bytes_max: int) -> Fault | None:
    """Why a head is over its limit as a whole."""
    size = sum([len(name) + len(value) + _FIELD_BYTES for name, value in head.headers], len(head.target) + _LINE_BYTES)
    return HEAD_TOO_BIG if size + len(head.method) > header_bytes_max else None


def examine(
    routes: RouteTable[Route], head: RequestHead, version: tuple[int, int]
) -> tuple[Route | None, Fault | None]:
    """The route that protects the request, and why the request is refused, if it is.

    Pure. A request that may be read as one for another route than the one that it matches as it is written is refused,
    be it by the spelling of its path or by the method or target that it names elsewhere: it is not known whether the
    service reads it so. On an observed route it is judged as if none matched.
    """
    target = head.target
    if len(target) > PATH_BYTES_MAX and len(target.partition(b"?")[0]) > PATH_BYTES_MAX:
        return None, _PATH_TOO_LONG
    headers = indexed(head.headers)
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
        return None, Fault(400, TOO_MANY_READINGS)
    return None, None


def _first_enforced(entries: Iterable[Entry[Route]], head: RequestHead, matched: Route | None) -> Entry[Route] | None:
    found = (each for each in entries if each.value is not matched)
    return next((each for each in found if not each.value.for_key(head.headers).is_observed), None)


class ReservedHeaders:
    """Headers that a client may not send, because a service takes them from the gateway.

    They are dropped from every request, whatever its path, and in every spelling that a service may take for the same
    name.
    """

    def __init__(self, names: Iterable[bytes]) -> None:
        reserved = frozenset(map(folded_name, names))
        self._is_reserved = NameTable(lambda name: folded_name(name) in reserved)

    def without(self, head: RequestHead) -> RequestHead:
        """The head as the service may get it."""
        options = connection_options(head.headers)
        # Mostly.
        if not any(map(self._is_reserved.__getitem__, [*options, *[name for name, _ in head.headers]])):
            return head
        kept: list[tuple[bytes, bytes]] = []
        for name, value in head.headers:
            if name.lower() == b"connection":
                # It would have the gateway drop what it adds itself.
                listed = [option for option in value.split(b",") if not self._is_reserved[option.strip()]]
                kept.append((name, b",".join(listed)))
            elif not self._is_reserved[name]:
                kept.append((name, value))
        return RequestHead(head.method, head.target, IndexedHeaders(kept))
