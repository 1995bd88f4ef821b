"""Bytes of an HTTP/1.1 request to what they mean, strictly and at any segmentation (RFC 9112).

Pure. Owns where a request begins and ends, and what is no request at all: bare line feeds, folded fields, control
characters, no `Host` or two, a target of none of the four forms. What *is* one and can be read in two ways is
`strictness`'s to say; where that concerns its end (`framing_fault`), nothing behind the head is read. It knows no
socket, route or clock.

Written out rather than taken from a library because a request is the one thing that every replay has to pay for: one
regular expression reads all fields, and the index of their names is made once for everybody who looks something up.
Whatever is accepted here is held against the C parser of aiohttp by a test: it accepts it too, and reads the same.

Invariant: what the sink is told does not depend on how the bytes were cut, and nothing that follows something refused
is looked at.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Protocol

from gateway.core.message import IndexedHeaders, RequestHead, connection_options
from gateway.protect.ambiguity import framing_fault
from gateway.upstream.chunks import ChunkReader, ChunksInvalid

_LINE: Final = re.compile(rb"([A-Z\-]{1,32}) ([!-~]+) HTTP/([0-9]\.[0-9])\r\n")
# User information, a backslash or a fragment beside the host are read in more than one way (RFC 9110 section 4.2.4).
_ABSOLUTE_FORM: Final = re.compile(rb"[A-Za-z][A-Za-z0-9+.\-]*+://[A-Za-z0-9\-._~!$&'()*+,;=:%\[\]]++(?:[/?]|\Z)")
# Every match is one whole line from its beginning: as many matches as line ends means that no line is anything else.
_FIELD: Final = re.compile(rb"^([!#$%&'*+\-.^_`|~0-9A-Za-z]++):[ \t]*+([^\x00-\x08\x0a-\x1f\x7f]*+)\r\n", re.MULTILINE)
_BARE_LINE_FEED: Final = re.compile(rb"(?<!\r)\n")
# What a request line can begin with; anything else (TLS, garbage) is refused before its end is waited for.
_BEGINNING: Final = re.compile(rb"\r\Z|[A-Z\-]{1,32}(?:\Z| )")


_HTTP_1_1: Final = (1, 1)
_NO_OPTIONS: Final[frozenset[bytes]] = frozenset()


class RequestInvalid(Exception):
    """The bytes are no request. `status`: they are malformed (400), or their path (414) or head (431) is too big."""

    def __init__(self, status: int = 400) -> None:
        super().__init__(status)
        self.status = status


@dataclass(slots=True)
class ReceivedRequest:
    """A request whose head is here.

    `length` is that of its body, None when it comes in chunks. `fault` says why its end is not certain; then no body is
    read, and nothing after it. `asks_upgrade`: it asks to leave HTTP.
    """

    head: RequestHead
    version: tuple[int, int]
    host: bytes | None
    length: int | None
    keep_alive: bool
    asks_upgrade: bool
    fault: str | None


class BodySink(Protocol):
    """Whom the parser tells of a body, in this order: of its bytes as they come, of its end."""

    def arrived(self, data: bytes) -> None: ...
    def ended(self) -> None: ...


class RequestSink(Protocol):
    """Whom the parser tells of a request."""

    def head_arrived(self, request: ReceivedRequest) -> BodySink:
        """Returns who is told of the body."""


# A path is compared with those of routes in several spellings, each of which takes time in proportion to it.
PATH_BYTES_MAX: Final = 8 * 1024
# Lines of chunks that one call reads, which takes less than a millisecond.
_LINES_MAX: Final = 256

# Where the parser is. Plain numbers, because the members of an enumeration are slow to name (CPython 3.11).
_HEAD, _LENGTH, _CHUNKED, _WHOLE, _DEAF = range(5)


class RequestParser:
    """Reads one request, and after each `begin` another one."""

    __slots__ = (
        "_body",
        "_chunks",
        "_fields_max",
        "_header_bytes_max",
        "_held",
        "_is_begun",
        "_left",
        "_sink",
        "_state",
    )

    def __init__(self, sink: RequestSink, *, header_bytes_max: int, header_fields_max: int) -> None:
        self._sink = sink
        self._header_bytes_max = header_bytes_max
        self._fields_max = header_fields_max
        self._held = b""
        self._is_begun = False
        self._left = 0
        self._state = _HEAD

    @property
    def is_at_beginning(self) -> bool:
        """Whether nothing of the request has come."""
        return self._state == _HEAD and not self._held and not self._is_begun

    @property
    def held_bytes(self) -> int:
        """How much there is of a head that is not here whole."""
        return len(self._held)

    def forget(self) -> None:
        """Let go of it: the rest will not come."""
        self._held = b""

    def begin(self) -> None:
        """Expect another request. To be called after a whole one only."""
        self._is_begun = False
        self._state = _HEAD

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes; returns those that follow the request, or that are to be fed again in another turn.

        Raises `RequestInvalid`, in the head or in the body; the parser is of no use afterwards.
        """
        if self._state == _HEAD:
            found = self._read_head(data)
            if found is None:
                return b""
            data = found
        state = self._state
        if state == _LENGTH:
            return self._read_length(data)
        if state == _CHUNKED:
            return self._read_chunks(data)
        return data if state == _WHOLE else b""

    # -- head ---------------------------------------------------------------------------------------------------------

    def _read_head(self, data: bytes) -> bytes | None:
        """Read the head if it is there whole, and return the bytes after it."""
        seen = len(self._held)
        if seen:
            data = self._held + data
        if not self._is_begun and data[:2] == b"\r\n":
            # RFC 9112 section 2.2: an empty line before a request is passed over. One, however it is cut.
            self._is_begun = True
            data, seen = data[2:], 0
        # What was looked at before is not looked at again: a head may come byte by byte.
        end = data.find(b"\r\n\r\n", max(seen - 3, 0))
        if end < 0:
            self._check_partial(data, seen)
            self._held = data
            return None
        self._held = b""
        if end + 4 > self._header_bytes_max:
            raise RequestInvalid(431)
        line = _LINE.match(data, 0, end + 2)
        if line is None:
            raise RequestInvalid
        fields_from = line.end()
        fields = _FIELD.findall(data, fields_from, end + 2)
        if len(fields) != data.count(b"\n", fields_from, end + 2):
            # A line that is none: folded, without a name, with a control character or a bare line feed.
            raise RequestInvalid
        if len(fields) > self._fields_max:
            raise RequestInvalid(431)
        if data.find(b" \r\n", fields_from, end + 2) >= 0 or data.find(b"\t\r\n", fields_from, end + 2) >= 0:
            fields = [(name, value.rstrip(b" \t")) for name, value in fields]
        method, target, version = line.groups()
        if target[:1] != b"/" and not _is_other_form(method, target):
            raise RequestInvalid
        if len(target) > PATH_BYTES_MAX and len(target.partition(b"?")[0]) > PATH_BYTES_MAX:
            raise RequestInvalid(414)
        headers = IndexedHeaders(fields)
        head = RequestHead(method, target, headers)
        self._frame(head, headers.by_name, _HTTP_1_1 if version == b"1.1" else (int(version[:1]), int(version[2:])))
        return data[end + 4 :]

    def _check_partial(self, data: bytes, seen: int) -> None:
        """Refuse early what could only be waited for in vain. Of `data`, `seen` bytes were checked before."""
        if len(data) > self._header_bytes_max:
            raise RequestInvalid(431)
        if (data and not _BEGINNING.match(data)) or _BARE_LINE_FEED.search(data, seen):
            raise RequestInvalid

    def _frame(self, head: RequestHead, by_name: dict[bytes, list[bytes]], version: tuple[int, int]) -> None:
        """Find where the body ends (RFC 9112 section 6.3)."""
        # RFC 9112 section 3.2.
        hosts = by_name.get(b"host", ())
        if len(hosts) != 1 and (hosts or version == _HTTP_1_1):
            raise RequestInvalid
        fault = framing_fault(by_name, version)
        options = connection_options(head.headers) if b"connection" in by_name else _NO_OPTIONS
        length: int | None = 0
        state = _WHOLE
        if fault is not None:
            state = _DEAF
        elif b"transfer-encoding" in by_name:
            length, state = None, _CHUNKED
        elif b"content-length" in by_name and (length := int(by_name[b"content-length"][0])):
            self._left, state = length, _LENGTH
        request = ReceivedRequest(
            head,
            version,
            hosts[0] if hosts else None,
            length,
            keep_alive=b"close" not in options and (version[1] > 0 or b"keep-alive" in options),
            asks_upgrade=b"upgrade" in options and b"upgrade" in by_name,
            fault=fault,
        )
        self._state = state
        body = self._sink.head_arrived(request)
        if state == _WHOLE:
            body.ended()
            return
        self._body = body
        if state == _CHUNKED:
            self._chunks = ChunkReader(body.arrived, self._header_bytes_max, lines_max=_LINES_MAX)

    # -- body ---------------------------------------------------------------------------------------------------------

    def _read_length(self, data: bytes) -> bytes:
        if not data:
            return b""
        left = self._left - len(data)
        if left > 0:
            self._left = left
            self._body.arrived(data)
            return b""
        rest = b""
        if left < 0:
            data, rest = data[:left], data[left:]
        self._body.arrived(data)
        self._end()
        return rest

    def _read_chunks(self, data: bytes) -> bytes:
        try:
            rest = self._chunks.feed(data)
        except ChunksInvalid:
            raise RequestInvalid from None
        if rest is None:
            return self._chunks.unread
        del self._chunks
        self._end()
        return rest

    def _end(self) -> None:
        """Let go of the body: nobody may take it, and the connection may be idle for long."""
        body = self._body
        del self._body
        self._state = _WHOLE
        body.ended()


def _is_other_form(method: bytes, target: bytes) -> bool:
    """Whether a target that is no path is of one of the three other forms (RFC 9112 section 3.2)."""
    return (target == b"*" and method == b"OPTIONS") or method == b"CONNECT" or _ABSOLUTE_FORM.match(target) is not None
