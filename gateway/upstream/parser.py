"""A strict parser of HTTP/1.1 responses (RFC 9112), independent of how the bytes are split.

llhttp reads heads and chunks. This module decides where a body ends (section 6.3), because llhttp has no way to know
that the request was HEAD, and accepts too much: other protocols and versions, other codings, any reason. Knows no
socket, clock or pool.

Invariant: what the sink receives does not depend on how the bytes were split.
"""

from __future__ import annotations

import re
from typing import Final, Protocol

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from gateway.core.message import IndexedHeaders, ResponseHead, list_members
from gateway.upstream.result import Framing, Unknown

INTERIM_RESPONSES_MAX: Final = 32
# Hot: access to a member through its enumeration is slow in CPython 3.11.
_NONE, _LENGTH, _CHUNKED, _CLOSE, _UPGRADE = Framing

# The bytes around the data of one chunk: size, extensions and line ends.
CHUNK_LINE_BYTES_MAX: Final = 4096

_HEAD_END: Final = b"\r\n\r\n"
_HTTP_1_0: Final = b"HTTP/1.0 "
_HTTP_1_1: Final = b"HTTP/1.1 "
_START_BYTES: Final = len(_HTTP_1_1)
# The permitted beginnings of a head, at any length.
_PREFIXES: Final = frozenset(start[:size] for start in (_HTTP_1_0, _HTTP_1_1) for size in range(1, _START_BYTES + 1))
_CONTROL: Final = re.compile(rb"[^\t -~\x80-\xff]")
_TIMEOUT: Final = re.compile(rb"(?:^|,)[ \t]*timeout[ \t]*=[ \t]*\"?([0-9]{1,9})", re.IGNORECASE)


class ResponseInvalid(Exception):
    """The bytes are not a valid response."""

    def __init__(self, reason: Unknown, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def _malformed(detail: str) -> ResponseInvalid:
    return ResponseInvalid(Unknown.MALFORMED, detail)


class ResponseSink(Protocol):
    """Receives what the parser finds, in this order; `interim_arrived` any number of times."""

    def interim_arrived(self, head: ResponseHead) -> None: ...
    def head_arrived(self, head: ResponseHead, framing: Framing, length: int | None) -> None: ...
    def body_arrived(self, data: bytes) -> None: ...
    def body_ended(self) -> None: ...


class _Parts:
    """Collects what llhttp finds. It refers to no other object, so that no cycle is left for the garbage collector."""

    reason = b""
    has_head = False
    chunks = 0
    has_ended = False
    has_excess = False

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.data: list[bytes] = []

    def on_status(self, part: bytes) -> None:
        self.reason += part

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailers come here, too. llhttp keeps the white space after a value.
        if not self.has_head:
            self.headers.append((name, value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        self.has_head = True

    def on_chunk_header(self) -> None:
        self.chunks += 1

    def on_body(self, data: bytes) -> None:
        self.data.append(data)

    def on_message_complete(self) -> None:
        self.has_ended = True

    def on_message_begin(self) -> None:
        self.has_excess = self.has_ended


class ResponseParser:
    """Reads one response, and reports it to the sink.

    `is_done`: the response is complete; `has_excess`: bytes followed it; `is_upgraded`: the rest of the connection is
    the sink's. `is_persistent` and `keepalive_seconds` are what the upstream announced for the connection.
    `may_be_followed`: the response has no body by its status, but a faulty upstream may still send one.
    """

    # Defaults; an instance sets only what differs.
    has_begun = False
    has_excess = False
    is_done = False
    is_persistent = True
    is_upgraded = False
    may_be_followed = False
    keepalive_seconds: float | None = None

    _framing: Framing | None = None
    _left = 0
    _framing_bytes = 0
    _line_ends = 0
    _interims = 0

    def __init__(self, sink: ResponseSink, method: bytes, *, wants_upgrade: bool, header_bytes_max: int) -> None:
        self._sink = sink
        self._is_head_request = method == b"HEAD"
        self._wants_upgrade = wants_upgrade
        self._header_bytes_max = header_bytes_max
        self._expect_head()

    def feed(self, data: bytes) -> None:
        """Parse the next bytes.

        Raises:
            ResponseInvalid: once; the parser is unusable afterwards.
        """
        self.has_begun = True
        while data and self._framing is None:
            data = self._feed_head(data)
        if not data:
            return
        if self.is_done:
            self.has_excess = True
        elif self._framing is _LENGTH:
            self._feed_length(data)
        elif self._framing is _CHUNKED:
            self._feed_chunks(data)
        else:
            self._sink.body_arrived(data)

    def end_of_input(self) -> bool:
        """The input ended cleanly; returns whether that completes the response."""
        if self._framing is not _CLOSE:
            return False
        self._finish()
        return True

    def _finish(self) -> None:
        self.is_done = True
        self._sink.body_ended()

    # -- head ---------------------------------------------------------------------------------------------------------

    def _expect_head(self) -> None:
        self._parts = _Parts()
        self._llhttp = HttpResponseParser(self._parts)
        self._head_bytes = 0
        self._start = b""
        self._tail = b""

    def _feed_head(self, data: bytes) -> bytes:
        """Read one head as far as it has arrived, and return the bytes after it.

        llhttp gets nothing but the head, so that it never decides what follows.
        """
        seen = self._tail + data
        end = seen.find(_HEAD_END)
        size = len(data) if end < 0 else end + len(_HEAD_END) - len(self._tail)
        self._head_bytes += size
        if self._head_bytes > self._header_bytes_max:
            raise ResponseInvalid(Unknown.HEADERS_TOO_LONG, f"the head does not end in {self._header_bytes_max} bytes")
        if len(self._start) < _START_BYTES:
            self._start += data[: _START_BYTES - len(self._start)]
            if self._start not in _PREFIXES:
                raise _malformed("not an HTTP/1 status line")
        try:
            self._llhttp.feed_data(data[:size])
        except (HttpParserError, HttpParserUpgrade) as problem:
            # llhttp stops after the head of a 101.
            if not self._parts.has_head:
                raise _malformed(str(problem)) from None
        if end < 0:
            self._tail = seen[-len(_HEAD_END) + 1 :]
            return b""
        self._read_head()
        return data[size:]

    def _read_head(self) -> None:
        parts = self._parts
        status = self._llhttp.get_status_code()
        if not parts.has_head or status < 100 or _CONTROL.search(parts.reason):
            raise _malformed("not an HTTP/1 status line")
        headers = IndexedHeaders(parts.headers)
        head = ResponseHead(status, parts.reason, headers)
        if status >= 200 or status == 101:
            self._begin_body(head, headers.by_name)
            return
        self._interims += 1
        if self._interims > INTERIM_RESPONSES_MAX:
            raise ResponseInvalid(Unknown.INTERIM_FLOOD, f"more than {INTERIM_RESPONSES_MAX} interim responses")
        if status != 100:  # `Expect` is never forwarded
            self._sink.interim_arrived(head)
        self._expect_head()

    def _begin_body(self, head: ResponseHead, values: dict[bytes, list[bytes]]) -> None:
        """Decide where the body ends (RFC 9112 section 6.3).

        llhttp has refused a malformed or repeated length, and one beside a transfer coding.
        """
        is_http_1_0 = self._start == _HTTP_1_0
        length = int(values[b"content-length"][0]) if b"content-length" in values else None
        codings = values.get(b"transfer-encoding")
        if codings and (is_http_1_0 or len(codings) > 1 or codings[0].lower() != b"chunked"):
            raise _malformed("a transfer coding other than a single chunked")
        self.is_persistent = not is_http_1_0
        if b"connection" in values or b"keep-alive" in values:
            self._read_persistence(values)
        if head.status == 101:
            if not self._wants_upgrade:
                raise _malformed("101 without a request for it")
            self.is_upgraded = True
            self._begin(head, _UPGRADE, None)
        elif self._is_head_request or head.status in (204, 304):
            self.may_be_followed = True
            if self._is_head_request or (head.status == 204 and (codings or length)):
                # Many upstreams send a body to HEAD as to GET. A late one would be read as the next response.
                self.is_persistent = False
            self._begin(head, _NONE, 0)
        elif codings:
            # Some upstreams pad chunk sizes with spaces, which is unambiguous.
            self._llhttp.set_dangerous_leniencies(lenient_spaces_after_chunk_size=True)
            self._begin(head, _CHUNKED, None)
        elif length is None:
            self._begin(head, _CLOSE, None)
        else:
            self._left = length
            self._begin(head, _LENGTH, length)

    def _begin(self, head: ResponseHead, framing: Framing, length: int | None) -> None:
        self._framing = framing
        if framing is _CLOSE or framing is _UPGRADE:
            self.is_persistent = False
        self._sink.head_arrived(head, framing, length)
        if length == 0:
            self._finish()

    def _read_persistence(self, values: dict[bytes, list[bytes]]) -> None:
        options = list_members(values.get(b"connection", ()))
        if b"close" in options:
            self.is_persistent = False
        elif b"keep-alive" in options:
            self.is_persistent = True
        for value in values.get(b"keep-alive", ()):
            if found := _TIMEOUT.search(value):
                self.keepalive_seconds = float(found[1])

    # -- body ---------------------------------------------------------------------------------------------------------

    def _feed_length(self, data: bytes) -> None:
        self.has_excess = len(data) > self._left
        if self.has_excess:
            data = data[: self._left]
        self._left -= len(data)
        self._sink.body_arrived(data)
        if not self._left:
            self._finish()

    def _feed_chunks(self, data: bytes) -> None:
        parts = self._parts
        chunks = parts.chunks
        problem: HttpParserError | None = None
        try:
            self._llhttp.feed_data(data)
        except HttpParserError as error:
            problem = error
        body = b"".join(parts.data)
        parts.data.clear()
        if body:
            self._sink.body_arrived(body)
        # llhttp bounds neither extensions nor trailers. The unused allowance of one chunk is not credited to others.
        allowed = CHUNK_LINE_BYTES_MAX * (parts.chunks - chunks)
        self._framing_bytes = max(0, self._framing_bytes + len(data) - len(body) - allowed)
        if self._framing_bytes > self._header_bytes_max:
            raise _malformed("chunk extensions or trailers too long")
        line_ends = len(data) - len(data.rstrip(b"\r\n"))
        self._line_ends = line_ends if line_ends < len(data) else line_ends + self._line_ends
        if parts.has_ended:
            # An error now is about bytes after the response; llhttp does not report empty lines after it.
            self.has_excess = parts.has_excess or problem is not None or self._line_ends > len(_HEAD_END)
            self._finish()
        elif problem is not None:
            raise _malformed(str(problem))
