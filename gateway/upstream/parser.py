"""Bytes of an HTTP/1.1 answer to what they mean, strictly and at any segmentation (RFC 9112).

Owns where an answer begins and ends, and what is too ambiguous to be one. Knows no socket, clock or pool.

Written out rather than taken from a library because the general parsers cannot be told that the request was HEAD, do
not tell a folded field from a plain one, and do not say where a message ended in the bytes they were given; a proxy
that records answers needs all three. One regular expression call reads all fields, so it costs no more.

Invariant: what the sink is told does not depend on how the bytes were cut.
"""

from __future__ import annotations

import re
from typing import Protocol

from gateway.core.message import IndexedHeaders, NameTable, ResponseHead, list_members
from gateway.upstream.chunks import ChunkReader, ChunksInvalid
from gateway.upstream.result import Framing, Unknown

INTERIM_ANSWERS_MAX = 32
_LENGTH_DIGITS_MAX = 18

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]++"
_VERSION = b"HTTP/1."
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: ([^\x00\r\n]*+))?\r\n")
# Every match is one whole line from its beginning: as many matches as line ends means that no line is anything else.
_FIELD = re.compile(rb"^(" + _TOKEN + rb"):[ \t]*+([^\x00\r\n]*+)\r\n", re.MULTILINE)
_BARE_LINE_FEED = re.compile(rb"(?<!\r)\n")
_TIMEOUT = re.compile(rb"(?:^|,)[ \t]*timeout[ \t]*=[ \t]*\"?([0-9]{1,9})", re.IGNORECASE)


class AnswerInvalid(Exception):
    """The bytes are not an answer that may be believed."""

    def __init__(self, reason: Unknown, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class AnswerSink(Protocol):
    """Whom the parser tells; in this order, `interim_arrived` any number of times."""

    def interim_arrived(self, head: ResponseHead) -> None: ...
    def head_arrived(self, head: ResponseHead, framing: Framing, length: int | None) -> None: ...
    def body_arrived(self, data: bytes) -> None: ...
    def body_ended(self) -> None: ...


# Where the parser is. Plain numbers, because the members of an enumeration are slow to name (CPython 3.11).
_HEAD, _LENGTH, _CHUNKED, _UNTIL_CLOSE, _DONE = range(5)


def _malformed(detail: str) -> AnswerInvalid:
    return AnswerInvalid(Unknown.MALFORMED, detail)


class AnswerParser:
    """Reads one answer after each `begin`.

    `is_done` says that the answer came to its end, `has_excess` that bytes followed it, `is_upgraded` that the rest of
    the connection is the sink's; `is_persistent` and `keepalive_seconds` are what the upstream said of the connection.
    `may_be_followed`: the answer has no body by its status, and a careless upstream may yet send one.
    """

    __slots__ = (
        "_chunks",
        "_header_bytes_max",
        "_held_head",
        "_interims",
        "_is_head",
        "_left",
        "_sink",
        "_state",
        "_wants_upgrade",
        "has_begun",
        "has_excess",
        "is_done",
        "is_persistent",
        "is_upgraded",
        "keepalive_seconds",
        "may_be_followed",
    )

    def __init__(self, header_bytes_max: int) -> None:
        self._header_bytes_max = header_bytes_max

    def begin(self, sink: AnswerSink, method: bytes, wants_upgrade: bool) -> None:
        """Expect the answer to a request of that method."""
        self._sink = sink
        self._is_head = method == b"HEAD"
        self._wants_upgrade = wants_upgrade
        self._state = _HEAD
        self._held_head = b""
        self._left = 0
        self._interims = 0
        self.has_begun = False
        self.has_excess = False
        self.is_done = False
        self.is_persistent = True
        self.is_upgraded = False
        self.keepalive_seconds: float | None = None
        self.may_be_followed = False

    def feed(self, data: bytes) -> None:
        """Take the next bytes.

        Raises:
            AnswerInvalid: once; the parser is of no use afterwards.
        """
        self.has_begun = True
        while data and self._state == _HEAD:
            data = self._feed_head(data)
        if not data:
            return
        state = self._state
        if state == _LENGTH:
            self._feed_length(data)
        elif state == _CHUNKED:
            self._feed_chunked(data)
        elif state == _UNTIL_CLOSE:
            self._sink.body_arrived(data)
        else:
            self.has_excess = True

    def end_of_input(self) -> bool:
        """The input ended cleanly; returns whether that completes the answer."""
        if self._state != _UNTIL_CLOSE or self.is_upgraded:
            return False
        self._finish()
        return True

    def _finish(self) -> None:
        self._state = _DONE
        self.is_done = True
        self._sink.body_ended()

    # -- head ---------------------------------------------------------------------------------------------------------

    def _feed_head(self, data: bytes) -> bytes:
        """Reads one head if it is there whole, and returns the bytes after it."""
        searched = len(self._held_head)
        if searched:
            data = self._held_head + data
        # What was looked at before is not looked at again: a head may come byte by byte.
        end = data.find(b"\r\n\r\n", max(0, searched - 3))
        if end < 0:
            self._check_partial_head(data, searched)
            self._held_head = data
            return b""
        self._held_head = b""
        if end + 4 > self._header_bytes_max:
            raise AnswerInvalid(Unknown.HEADERS_TOO_LONG, f"the head has {end + 4} bytes")
        self._read_head(data[: end + 2])
        return data[end + 4 :]

    def _check_partial_head(self, held: bytes, searched: int) -> None:
        """Refuses early what could only be waited for in vain: another protocol, bare line feeds, an endless head."""
        if len(held) > self._header_bytes_max:
            raise AnswerInvalid(Unknown.HEADERS_TOO_LONG, f"no end within {self._header_bytes_max} bytes")
        if searched < len(_VERSION) and not _VERSION.startswith(held[: len(_VERSION)]):
            raise _malformed("not an HTTP/1 status line")
        if _BARE_LINE_FEED.search(held, max(0, searched - 1)):
            raise _malformed("a bare line feed in the head")

    def _read_head(self, block: bytes) -> None:
        fields_from = block.find(b"\n") + 1
        line = _STATUS_LINES[block[:fields_from]]
        if line is None:
            raise _malformed("not an HTTP/1 status line")
        fields = _FIELD.findall(block, fields_from)
        if len(fields) != block.count(b"\n", fields_from):
            raise _malformed("a line that is not a field line (folded, without a name, or with NUL, CR or a bare LF)")
        if b" \r\n" in block or b"\t\r\n" in block:
            fields = [(name, value.rstrip(b" \t")) for name, value in fields]
        is_http_1_0, status, reason = line
        headers = IndexedHeaders(fields)
        head = ResponseHead(status, reason, headers)
        if head.status < 200 and head.status != 101:
            self._interims += 1
            if self._interims > INTERIM_ANSWERS_MAX:
                raise AnswerInvalid(Unknown.INTERIM_FLOOD, f"more than {INTERIM_ANSWERS_MAX} interim answers")
            if head.status != 100:  # nothing that is forwarded expects it
                self._sink.interim_arrived(head)
            return
        self._read_framing(head, headers.by_name, is_http_1_0=is_http_1_0)

    def _read_framing(self, head: ResponseHead, values: dict[bytes, list[bytes]], *, is_http_1_0: bool) -> None:
        """Finds where the body ends (RFC 9112 section 6.3), and refuses what has two answers to that."""
        length: int | None = None
        is_chunked = False
        self.is_persistent = not is_http_1_0
        if lengths := values.get(b"content-length"):
            length = _content_length(lengths)
        if codings := values.get(b"transfer-encoding"):
            is_chunked = True
            if lengths:
                raise _malformed("both Content-Length and Transfer-Encoding")
            if is_http_1_0 or len(codings) > 1 or codings[0].lower() != b"chunked":
                raise _malformed("a transfer coding other than a single chunked")
        if b"connection" in values or b"keep-alive" in values:
            self._read_persistence(values)
        sink = self._sink
        if head.status == 101:
            if not self._wants_upgrade:
                raise _malformed("101 without a request for it")
            self.is_upgraded = True
            self.is_persistent = False
            self._state = _UNTIL_CLOSE
            sink.head_arrived(head, Framing.UPGRADE, None)
        elif self._is_head or head.status in (204, 304):
            self._finish_without_body(head, announces_body=is_chunked or bool(length))
        elif is_chunked:
            self._state = _CHUNKED
            self._chunks = ChunkReader(sink.body_arrived, self._header_bytes_max)
            sink.head_arrived(head, Framing.CHUNKED, None)
        elif length is None:
            self.is_persistent = False
            self._state = _UNTIL_CLOSE
            sink.head_arrived(head, Framing.CLOSE, None)
        else:
            sink.head_arrived(head, Framing.LENGTH, length)
            self._left = length
            if length:
                self._state = _LENGTH
            else:
                self._finish()

    def _finish_without_body(self, head: ResponseHead, *, announces_body: bool) -> None:
        self.may_be_followed = True
        if self._is_head or (head.status == 204 and announces_body):
            # Many answer HEAD as they do GET. A body that comes late would be read as the answer to the next request.
            self.is_persistent = False
        self._sink.head_arrived(head, Framing.NONE, 0)
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
        left = self._left - len(data)
        if left > 0:
            self._left = left
            self._sink.body_arrived(data)
            return
        if left < 0:
            self.has_excess = True
            data = data[:left]
        self._sink.body_arrived(data)
        self._finish()

    def _feed_chunked(self, data: bytes) -> None:
        try:
            excess = self._chunks.feed(data)
        except ChunksInvalid as problem:
            raise _malformed(str(problem)) from None
        if excess is not None:
            self.has_excess = bool(excess)
            self._finish()


def _status_line(line: bytes) -> tuple[bool, int, bytes] | None:
    """Whether a status line is of HTTP/1.0, its status and its reason; None if it is not a status line."""
    found = _STATUS_LINE.fullmatch(line)
    return None if found is None else (found[1] == b"0", int(found[2]), found[3] or b"")


_STATUS_LINES = NameTable(_status_line)


def _content_length(values: list[bytes]) -> int:
    """The one length that all values agree on (RFC 9112 section 6.3: a list of equal ones may be taken as one)."""
    if len(values) == 1 and values[0].isdigit() and len(values[0]) <= _LENGTH_DIGITS_MAX:
        return int(values[0])
    members = set(list_members(values))
    if len(members) != 1 or any(not value for value in values):
        raise _malformed("Content-Length fields that disagree")
    length = members.pop()
    if not length.isdigit() or len(length) > _LENGTH_DIGITS_MAX:
        raise _malformed("Content-Length is not a length")
    return int(length)
