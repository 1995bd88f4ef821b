"""Answers as bytes: what is understood, what is refused, and that it does not depend on how the bytes were cut."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace
from typing import cast

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.message import IndexedHeaders
from gateway.upstream.connection import (
    CHUNK_LINE_BYTES_MAX,
    INTERIM_RESPONSES_MAX,
    Framing,
    ResponseInvalid,
    ResponseReceiver,
    Sweep,
    Unknown,
)

HEADER_BYTES_MAX = 65_536


class Source:
    """A connection that never has too much to read."""

    sweep = Sweep(cast(asyncio.AbstractEventLoop, None), lambda: 0.0)

    def pause_reading(self) -> None: ...

    resume_reading = pause_reading


def parse(
    *pieces: bytes, method: bytes = b"POST", wants_upgrade: bool = False
) -> tuple[SimpleNamespace, ResponseReceiver]:
    """What a receiver has for its caller after these pieces, and it."""
    parser = ResponseReceiver(
        Source(), method, 0.0, 0.0, wants_upgrade=wants_upgrade, header_bytes_max=HEADER_BYTES_MAX
    )
    for piece in pieces:
        parser.feed(piece)
    told = SimpleNamespace(
        interim=parser._interims, head=parser.head, framing=parser.framing, length=parser.length,
        body=b"".join(parser._buffer), ended=parser.is_done,
    )  # fmt: skip
    return told, parser


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
PLAIN = b"HTTP/1.1 200 OK\r\n"

WHOLE = {
    "length": (PLAIN + b"Content-Length: 5\r\n\r\nhello", b"hello", Framing.LENGTH),
    "chunked": (CHUNKED + b"5\r\nhello\r\n6;a=b\r\n world\r\n0\r\n\r\n", b"hello world", Framing.CHUNKED),
    "chunked-upper-case-size": (CHUNKED + b"00A \r\n0123456789\r\n000\r\n\r\n", b"0123456789", Framing.CHUNKED),
    "chunked-with-trailers": (CHUNKED + b"1\r\nx\r\n0\r\nDigest: abc\r\nB:\r\n\r\n", b"x", Framing.CHUNKED),
    "no-content": (b"HTTP/1.1 204 No Content\r\n\r\n", b"", Framing.NONE),
    "not-modified": (b"HTTP/1.1 304 \r\nContent-Length: 5\r\n\r\n", b"", Framing.NONE),
    "no-reason": (b"HTTP/1.1 200\r\nContent-Length: 1\r\n\r\nx", b"x", Framing.LENGTH),
    "interim-first": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: </a>\r\n\r\n"
        + PLAIN
        + b"Content-Length: 1\r\n\r\nx",
        b"x",
        Framing.LENGTH,
    ),
}


@pytest.mark.parametrize(("wire", "body", "framing"), WHOLE.values(), ids=WHOLE)
def test_a_whole_answer_ends_where_its_framing_says(wire: bytes, body: bytes, framing: Framing) -> None:
    """Body and end are found. Bytes behind the end are not part of it, whether they come with it or after it."""
    told, parser = parse(wire)
    assert (told.body, told.framing, told.ended) == (body, framing, True)
    assert (parser.is_done, parser.has_excess, parser.is_persistent) == (True, False, True)
    for pieces in ((wire + b"H",), (wire, b"H"), (wire + b"\r\n",), (wire + b"\n",), (wire[:-1], wire[-1:] + b"\r")):
        told, parser = parse(*pieces)
        assert (told.body, parser.is_done, parser.has_excess) == (body, True, True)


PIECES = [b"\r\n", b"\n", b"\r", b" ", b":", b";", b"0", b"5", b"\x00", b"\x1b", b"\xff", b"HTTP/1.1 ", b"A" * 300]


@given(
    name=st.sampled_from(sorted(WHOLE)),
    inserts=st.lists(st.tuples(st.integers(0, 200), st.sampled_from(PIECES)), max_size=4),
    cuts=st.lists(st.integers(0, 200), max_size=6),
    method=st.sampled_from([b"POST", b"HEAD"]),
)
def test_segmentation_changes_nothing(
    name: str, inserts: list[tuple[int, bytes]], cuts: list[int], method: bytes
) -> None:
    """A response, also one that something got into, is understood, or refused, in one piece as in any, or by bytes."""
    wire = WHOLE[name][0]
    for position, piece in inserts:
        wire = wire[:position] + piece + wire[position:]

    def outcome(*edges: int) -> object:
        try:
            told, parser = parse(*(wire[start:end] for start, end in itertools.pairwise(edges)), method=method)
        except ResponseInvalid as refusal:
            return refusal.reason
        return told, parser.is_done, parser.has_excess, parser.is_persistent

    whole = outcome(0, len(wire))
    edges = sorted({0, len(wire), *(cut for cut in cuts if cut < len(wire))})
    assert whole == outcome(*edges) == outcome(*range(len(wire) + 1))
    assert inserts or method == b"HEAD" or isinstance(whole, tuple)


def test_a_head_answer_has_no_body_whatever_its_fields_say() -> None:
    """The answer to HEAD ends with its head and keeps its Content-Length."""
    for framing_field in (b"Content-Length: 5", b"Transfer-Encoding: chunked"):
        told, parser = parse(PLAIN + framing_field + b"\r\n\r\n", method=b"HEAD")
        assert (parser.is_done, told.framing) == (True, Framing.NONE)
        assert told.head is not None
        assert len(told.head.headers) == 1


MALFORMED = {
    "another-protocol": b"SSH-2.0-OpenSSH_9.2\r\n",
    "http2-status-line": b"HTTP/2 200\r\n\r\n",
    "http1.2": b"HTTP/1.2 200 OK\r\n\r\n",
    "one-bare-line-feed": PLAIN + b"A: b\nContent-Length: 0\r\n\r\n",
    "carriage-return-in-value": PLAIN + b"A: b\rc\r\n\r\n",
    "nul-in-value": PLAIN + b"A: b\x00\r\n\r\n",
    "folded-field": PLAIN + b"A: b\r\n c\r\nContent-Length: 0\r\n\r\n",
    "space-before-colon": PLAIN + b"Content-Length : 0\r\n\r\n",
    "another-protocol-that-llhttp-reads": b"RTSP/1.0 200 OK\r\n\r\n",
    "http0.9": b"HTTP/0.9 200 OK\r\n\r\n",
    "status-below-100": b"HTTP/1.1 099 OK\r\n\r\n",
    "control-character-in-reason": b"HTTP/1.1 200 O\x1bK\r\n\r\n",
    "control-character-in-value": PLAIN + b"A: b\x1b[2Jc\r\n\r\n",
    "length-twice-the-same": PLAIN + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    "length-in-a-list": PLAIN + b"Content-Length: 5, 5\r\n\r\nhello",
    "lengths-that-differ": PLAIN + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    "length-empty": PLAIN + b"Content-Length:\r\n\r\n",
    "length-signed": PLAIN + b"Content-Length: +5\r\n\r\nhello",
    "length-enormous": PLAIN + b"Content-Length: 99999999999999999999\r\n\r\n",
    "length-and-chunked": PLAIN + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "unknown-coding": PLAIN + b"Transfer-Encoding: gzip\r\n\r\n",
    "chunked-twice": PLAIN + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
    "coding-empty": PLAIN + b"Transfer-Encoding:\r\n\r\n",
    "chunked-on-1.0": b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    "upgrade-not-asked-for": b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    "chunk-size-missing": CHUNKED + b"\r\n",
    "chunk-size-signed": CHUNKED + b"-1\r\n",
    "chunk-size-enormous": CHUNKED + b"1" * 17 + b"\r\n",
    "chunk-size-bare-line-feed": CHUNKED + b"1\nx\r\n",
    "chunk-too-long": CHUNKED + b"1\r\nxy\r\n",
    "chunk-end-bare-line-feed": CHUNKED + b"1\r\nx\n0\r\n\r\n",
    "chunk-extension-endless": CHUNKED + b"1;" + b"a" * (HEADER_BYTES_MAX + CHUNK_LINE_BYTES_MAX),
    "trailer-without-colon": CHUNKED + b"0\r\nabc\r\n\r\n",
    "trailers-too-long": CHUNKED + b"0\r\n" + b"A: b\r\n" * 12_000 + b"\r\n",
}


@pytest.mark.parametrize("wire", MALFORMED.values(), ids=MALFORMED.keys())
def test_what_has_two_readings_is_no_answer(wire: bytes) -> None:
    """Malformed and ambiguous answers are refused, in one piece and byte by byte."""
    for pieces in ([wire], [wire[i : i + 1] for i in range(len(wire))]):
        with pytest.raises(ResponseInvalid) as refusal:
            parse(*pieces)
        assert refusal.value.reason is Unknown.MALFORMED


def test_a_head_over_the_limit_has_its_own_reason() -> None:
    """One byte more than allowed is too long, also without an end; at the limit it is not."""
    start, end = PLAIN + b"Content-Length: 0\r\nA: ", b"\r\n\r\n"
    filler = b"x" * (HEADER_BYTES_MAX - len(start) - len(end))
    assert parse(start + filler + end)[0].ended
    for wire in (start + filler + b"x" + end, start + filler + b"xxxxx"):
        with pytest.raises(ResponseInvalid) as refusal:
            parse(wire)
        assert refusal.value.reason is Unknown.HEADERS_TOO_LONG, wire[-5:]


def test_interim_answers_are_bounded() -> None:
    """As many interim answers as allowed are passed on but for 100; one more is a flood."""
    told, parser = parse(b"HTTP/1.1 100 Continue\r\n\r\n" + b"HTTP/1.1 102 P\r\n\r\n" * (INTERIM_RESPONSES_MAX - 1))
    assert [head.status for head in told.interim] == [102] * (INTERIM_RESPONSES_MAX - 1)
    with pytest.raises(ResponseInvalid) as refusal:
        parser.feed(b"HTTP/1.1 103 Early Hints\r\n\r\n")
    assert refusal.value.reason is Unknown.INTERIM_FLOOD


class Found:
    def __init__(self) -> None:
        self.reason = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.is_whole = False

    def on_status(self, part: bytes) -> None:
        self.reason += part

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        self.is_whole = True


FIELD_PIECES = [
    b"A", b"a-B", b"Content-Length", b"Set-Cookie", b":", b": ", b":\t", b" ", b"\t", b"\r\n", b"\r", b"\n", b"0", b"7",
    b"\x00", b"\x7f", b"\x80\xff", b"v", b"x, y", b'"', b"(", b"_",
]  # fmt: skip


@given(
    start=st.sampled_from([b"HTTP/1.1 200 OK", b"HTTP/1.1 404", b"HTTP/1.0 299 ", b"HTTP/1.1 503  x ", b"HTTP/1.1 20"]),
    pieces=st.lists(st.sampled_from(FIELD_PIECES), max_size=16),
)
def test_a_head_is_split_as_llhttp_splits_it(start: bytes, pieces: list[bytes]) -> None:
    """What llhttp accepts has the same reason and the same fields here; and only what it found whole is a head."""
    wire = start + b"\r\n" + b"".join(pieces) + b"\r\n\r\n"
    wire = wire[: wire.index(b"\r\n\r\n") + 4]
    found = Found()
    try:
        httptools.HttpResponseParser(found).feed_data(wire)
    except httptools.HttpParserError:
        found.is_whole = False
    try:
        head = parse(wire)[0].head
    except ResponseInvalid:
        return
    assert found.is_whole
    assert head is not None
    assert (head.reason, list(head.headers)) == (found.reason, found.headers)
    assert isinstance(head.headers, IndexedHeaders)
    assert head.headers.by_name == IndexedHeaders(found.headers).by_name
