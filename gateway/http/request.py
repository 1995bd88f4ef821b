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
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final

from gateway.core.message import (
    IndexedHeaders,
    NameTable,
    RequestHead,
    connection_options,
    header_values,
    values_by_name,
)
from gateway.core.routing import PathPattern, RouteTable, Rule
from gateway.http.connection import ClientConnection, Payload
from gateway.http.limits import HEAD_TOO_BIG, Fault
from gateway.protect.ambiguity import (
    ambiguity,
    framing_fault,
    host_fault,
    other_methods,
    other_readings,
    other_targets,
    overrides,
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

# Paths are compared for requests of every method.
_ANY_METHOD: Final = frozenset((b"*",))
_NOT_ALPHANUMERIC: Final = re.compile(rb"[^0-9a-z]")
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
    """Why a head is not examined: its path, or all of it, is so long that examining it would take too much time."""
    target = head.target
    size = sum([len(name) + len(value) + _FIELD_BYTES for name, value in head.headers], len(target) + _LINE_BYTES)
    if size + len(head.method) > header_bytes_max:
        return HEAD_TOO_BIG
    if len(target) > PATH_BYTES_MAX and len(target.partition(b"?")[0]) > PATH_BYTES_MAX:
        return Fault(414, "The path of the request is too long.", is_verdict=False)
    return None


def examine(
    routes: RouteTable[Route], head: RequestHead, version: tuple[int, int]
) -> tuple[Route | None, Fault | None]:
    """The route that protects the request, and why the request is refused, if it is.

    Pure. Refuses a request that matches a route only if its path is read in another way, or regardless of case, or with
    the method or target that one of its headers names: it is not known whether the service reads it so. On an observed
    route it is judged as if none matched.
    """
    by_name = values_by_name(head.headers)
    hosts = by_name.get(b"host")
    host = hosts[0] if hosts else None
    route = routes.match(head.method, head.target, host)
    if route is not None and route.is_observed:
        route = route.for_key(head.headers)
    fault = framing_fault(by_name, version)
    if fault is not None:
        return route, Fault(400, fault)
    if route is not None and not route.is_observed:
        ambiguous = ambiguity(head, route.once, route.compared)
        return route, Fault(400, ambiguous) if ambiguous is not None else None
    if head.method == b"CONNECT":
        return None, Fault(501, "This is not a forward proxy.")
    if head.target[:1] != b"/" and head.target != b"*" and not _ABSOLUTE_FORM.match(head.target):
        return None, Fault(400, "The request target is neither a path nor a URL.")
    if host is not None and (fault := host_fault(host)) is not None:
        return None, Fault(400, fault)
    methods, targets = [head.method], [head.target]
    overriding = overrides(head.headers)
    if overriding:
        methods += other_methods(overriding)
        targets += other_targets(overriding)
        # Comparing them takes time, and headers may be much longer than a path.
        if sum(map(len, targets[1:])) > PATH_BYTES_MAX:
            return None, Fault(400, "A header that names another target is too long.")
    for target, names in _readings(targets, host):
        other = routes.match_in_any_case(methods, target, names)
        if other is not None and not other.for_key(head.headers).is_observed:
            return other, Fault(400, _other_reading(routes.path_in_other_case(head.method, head.target, host)))
    return route, None


class ReservedHeaders:
    """Headers that a client may not send on the paths of some routes, because a service takes them from the gateway.

    They are dropped from every request that a service may read as one for such a path, protected or not, of any method
    and host, and in every spelling that it may take for the same name.
    """

    def __init__(self, reserved: Sequence[tuple[PathPattern, frozenset[bytes]]]) -> None:
        """`reserved` has the paths and the names of the headers."""
        self._paths = [
            RouteTable([(Rule(_ANY_METHOD, path), frozenset(map(_folded, names)))]) for path, names in reserved
        ]
        everywhere = frozenset(_folded(name) for _, names in reserved for name in names)
        self._names = everywhere
        self._is_reserved = NameTable(lambda name: _folded(name) in everywhere)

    def without(self, head: RequestHead) -> RequestHead:
        """The head as the service may get it."""
        options = connection_options(head.headers)
        # Mostly, so that no path is compared.
        if not any(map(self._is_reserved.__getitem__, [*options, *[name for name, _ in head.headers]])):
            return head
        names = self._names_for(head)
        kept: list[tuple[bytes, bytes]] = []
        for name, value in head.headers:
            if name.lower() == b"connection":
                # It would have the gateway drop what it adds itself.
                listed = [option for option in value.split(b",") if _folded(option.strip()) not in names]
                kept.append((name, b",".join(listed)))
            elif _folded(name) not in names:
                kept.append((name, value))
        return RequestHead(head.method, head.target, IndexedHeaders(kept))

    def _names_for(self, head: RequestHead) -> frozenset[bytes]:
        targets = [head.target, *other_targets(overrides(head.headers))]
        # Comparing them takes time.
        if sum(map(len, targets)) > PATH_BYTES_MAX:
            return self._names
        hosts = header_values(head.headers, b"host")
        read = [target for target, _ in _readings(targets, hosts[0] if hosts else None)]
        found = [path.match_in_any_case(_ANY_METHOD, target, (None,)) for path in self._paths for target in read]
        return frozenset(name for names in found if names is not None for name in names)


def _folded(name: bytes) -> bytes:
    """The name as a service reads it that knows letters and digits alone, as in the variables of CGI."""
    return _NOT_ALPHANUMERIC.sub(b"-", name.lower())


def _other_reading(path: str | None) -> str:
    """The detail of the refusal. `path` is that of a route that differs only in upper and lower case."""
    if path is None:
        return "The request can be read as one for another operation."
    return f"Upper and lower case differ in paths. The protected path is written {path}; nothing was sent."


def _readings(targets: Sequence[bytes], host: bytes | None) -> Iterator[tuple[bytes, tuple[bytes | None, ...]]]:
    """The targets and hosts that a service may read from the request, those that were sent first."""
    for target in targets:
        yield target, (host,)
        for other, other_host in other_readings(target, host):
            # Many services take the path from such a target, but the host from its header.
            yield other, (other_host, host)
