"""The parser of requests: what it reads does not depend on how it is cut, and never differs from what aiohttp reads."""

from __future__ import annotations

import asyncio
import time
import weakref
from dataclasses import dataclass, field
from typing import Self

import pytest
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import HttpRequestParser
from aiohttp.web_protocol import RequestPayloadError
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.http.request_parser import PATH_BYTES_MAX, ReceivedRequest, RequestInvalid, RequestParser
from gateway.upstream.chunks import CHUNK_LINE_BYTES_MAX, ChunkReader, ChunksInvalid
from tests.http.edge.test_server_hostile import AMBIGUOUS, UNREADABLE

LIMIT = 8192


@dataclass
class Heard:
    """What a parser told: the requests, the body of each, and how many of them ended."""

    requests: list[ReceivedRequest] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    ends: int = 0
    status: int | None = None
    """Why it gave up."""

    def head_arrived(self, request: ReceivedRequest) -> Self:
        self.requests.append(request)
        self.bodies.append(b"")
        return self

    def arrived(self, data: bytes) -> None:
        assert data
        self.bodies[-1] += data

    def ended(self) -> None:
        self.ends += 1


def read(pieces: list[bytes]) -> Heard:
    """Feed the pieces as a connection does."""
    heard = Heard()
    begun = 0
    parser = RequestParser(heard, header_bytes_max=LIMIT, header_fields_max=64)
    try:
        for piece in pieces:
            data = piece
            while data:
                data = parser.feed(data)
                if begun < heard.ends == len(heard.requests):
                    begun = heard.ends
                    parser.begin()
    except RequestInvalid as problem:
        heard.status = problem.status
    return heard


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """The data in pieces, cut at these places."""
    ends = [*sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False) if data[start:end]]


class _Flow:
    """What aiohttp's parser wants of a protocol."""

    _reading_paused = False

    def pause_reading(self) -> None: ...
    def resume_reading(self, resume_parser: bool = True) -> None: ...


def read_by_aiohttp(data: bytes) -> list[tuple[bytes, bytes, tuple[tuple[bytes, bytes], ...], bytes, bool]] | None:
    """Method, target, fields, body and whether it is whole, of each request; None where it refuses them."""
    loop = asyncio.new_event_loop()
    try:
        parser = HttpRequestParser(
            _Flow(), loop, 1 << 16, max_line_size=LIMIT, max_field_size=LIMIT, max_headers=64,
            payload_exception=RequestPayloadError, auto_decompress=False,
        )  # fmt: skip
        try:
            messages, _, _ = parser.feed_data(data)
        except HttpProcessingError:
            return None
        found = []
        for message, payload in messages:
            body = b"".join(getattr(payload, "_buffer", ()))
            if payload.exception() is not None:
                return None
            target = message.path.encode("utf-8", "surrogateescape")
            found.append((message.method.encode(), target, message.raw_headers, body, payload.is_eof()))
        return found
    finally:
        loop.close()


TOKEN = st.sampled_from([b"X-A", b"Host", b"content-length", b"Transfer-Encoding", b"Connection", b"X_B", b"", b"a b"])
VALUE = st.sampled_from(
    [b"1", b"3", b"chunked", b"gzip, chunked", b"close", b"a", b"", b" a ", b"a\tb", b"\xff", b"\x00", b"\x7f", b"a\rb"]
)
COLON = st.sampled_from([b": ", b":", b":\t", b" :", b""])
END = st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r", b"\r\n "])
LINE = st.tuples(
    st.sampled_from([b"POST", b"GET", b"M-SEARCH", b"post", b"CONNECT", b"OPTIONS"]),
    st.sampled_from([b" ", b" ", b" ", b"  ", b"\t"]),
    st.sampled_from([b"/", b"/a?b=c", b"*", b"http://h/x", b"x", b"//", b"/\xc3\xa9", b"h:1", b"/#f", b"http:///"]),
    st.sampled_from([b" HTTP/1.1", b" HTTP/1.1", b" HTTP/1.0", b" HTTP/2.0", b" HTTP/1.1 ", b"", b" http/1.1"]),
).map(b"".join)
FIELDS = st.lists(st.tuples(TOKEN, COLON, VALUE, END).map(b"".join), max_size=4).map(b"".join)
BODY = st.sampled_from(
    [b"", b"abc", b"3\r\nabc\r\n0\r\n\r\n", b"3;x\r\nabc\r\n0\r\nT: 1\r\n\r\n", b"0\r\n\r\n", b"zz\r\n"]
)
REQUEST = st.tuples(
    LINE, END, st.sampled_from([b"Host: h\r\n", b"Host: h\r\n", b""]), FIELDS, END, BODY
).map(b"".join)  # fmt: skip


@settings(max_examples=2000, deadline=None)
@given(REQUEST)
def test_what_is_accepted_means_the_same_to_another_strict_parser(data: bytes) -> None:
    """Whatever is read here as a request with a certain end, aiohttp reads as the same request."""
    heard = read([data])
    theirs = read_by_aiohttp(data)
    sound = [request for request in heard.requests if request.fault is None]
    if not sound or heard.status is not None or len(sound) != len(heard.requests) or heard.ends != len(sound):
        return
    if any(request.head.method == b"CONNECT" for request in sound):
        # Refused by the edge; to aiohttp everything behind it is a tunnel.
        return
    assert theirs is not None
    assert [(head.method, head.target, tuple(head.headers)) for head in (r.head for r in sound)] == [
        (method, target, fields) for method, target, fields, _, _ in theirs[: len(sound)]
    ]
    assert heard.bodies == [body for *_, body, _ in theirs[: len(sound)]]
    assert all(is_whole for *_, is_whole in theirs[: len(sound)])


@settings(max_examples=1000, deadline=None)
@given(st.lists(REQUEST, min_size=1, max_size=3).map(b"".join), st.lists(st.integers(0, 1000), max_size=8))
def test_it_does_not_matter_how_a_request_is_cut(data: bytes, places: list[int]) -> None:
    """The same requests with the same bodies, and the same refusal, at any segmentation."""
    whole, pieces = read([data]), read(cut(data, places))
    assert (pieces.requests, pieces.bodies, pieces.ends) == (whole.requests, whole.bodies, whole.ends)
    assert pieces.status == whole.status or whole.status is None


@pytest.mark.parametrize("data", [*UNREADABLE.values(), *AMBIGUOUS.values()], ids=[*UNREADABLE, *AMBIGUOUS])
def test_hostile_requests_mean_the_same_at_any_segmentation(data: bytes) -> None:
    """Byte by byte as in one piece."""
    whole, pieces = read([data]), read([data[at : at + 1] for at in range(len(data))])
    assert pieces.requests == whole.requests
    assert pieces.ends == whole.ends


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"a" * LIMIT, 431),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"a" * LIMIT + b"\r\n\r\n", 431),
        (b"GET /" + b"a" * LIMIT, 431),
        (b"GET / HTTP/1.1\r\nHost: h\r\n" + b"X: a\r\n" * 64 + b"\r\n", 431),
        (b"\x16\x03\x01", 400),
        (b"GET / HTTP/1.1\nHost", 400),
        (b"garbage", 400),
    ],
    ids=["endless-field", "long-field", "endless-target", "many-fields", "tls", "bare-line-feed", "no-method"],
)
def test_what_can_only_be_waited_for_in_vain_is_refused(data: bytes, status: int) -> None:
    """With the status that says why, and before its end has come."""
    assert read([data]).status == status


@pytest.mark.parametrize(
    ("version", "fields", "keep_alive"),
    [
        (b"1.1", b"", True),
        (b"1.1", b"Connection: x, Close\r\n", False),
        (b"1.0", b"", False),
        (b"1.0", b"Connection: Keep-Alive\r\n", True),
        (b"1.0", b"Connection: keep-alive, close\r\n", False),
    ],
)
def test_who_may_keep_the_connection(version: bytes, fields: bytes, keep_alive: bool) -> None:
    """By version and `Connection` (RFC 9112 section 9.3)."""
    (request,) = read([b"GET / HTTP/" + version + b"\r\nHost: h\r\n" + fields + b"\r\n"]).requests
    assert request.keep_alive is keep_alive


def test_an_empty_line_before_a_request_is_passed_over() -> None:
    """RFC 9112 section 2.2, for clients that put one behind a body."""
    data = b"\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n"
    assert len(read([data]).requests) == len(read([data[:1], data[1:]]).requests) == 1


@pytest.mark.parametrize("places", [[], [2], [2, 4], [1, 2, 3, 4]], ids=["whole", "first", "both", "bytes"])
def test_two_empty_lines_before_a_request_are_too_many(places: list[int]) -> None:
    """However they are cut, so that nobody keeps a parser busy with them."""
    heard = read(cut(b"\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n", places))
    assert (heard.status, heard.requests) == (400, [])


@pytest.mark.parametrize("filling", [b"a", b"a\r\nX:"], ids=["one-long-field", "many-short-fields"])
def test_a_head_that_comes_byte_by_byte_costs_little(filling: bytes) -> None:
    """What was looked at is not looked at again: a second or less for 64 KiB, where it could take minutes."""
    heard = Heard()
    parser = RequestParser(heard, header_bytes_max=1 << 16, header_fields_max=64)
    data = b"GET / HTTP/1.1\r\nHost: h\r\nX:" + filling * (60_000 // len(filling))
    started = time.process_time()
    for at in range(len(data)):
        parser.feed(data[at : at + 1])
    assert time.process_time() - started < 15.0
    assert heard.requests == []


@pytest.mark.parametrize(
    ("target", "status"),
    [
        (b"/" + b"%25" * 2730 + b"a", None),
        (b"/" + b"a" * PATH_BYTES_MAX, 414),
        (b"http://h/" + b"a" * PATH_BYTES_MAX, 414),
        (b"/a?" + b"q" * PATH_BYTES_MAX, None),
    ],
    ids=["longest", "too long", "too long in absolute form", "long query"],
)
def test_a_path_has_its_own_limit(target: bytes, status: int | None) -> None:
    """It is compared in many ways, which a query is not."""
    heard = Heard()
    parser = RequestParser(heard, header_bytes_max=65536, header_fields_max=64)
    found: int | None = None
    try:
        parser.feed(b"POST " + target + b" HTTP/1.1\r\nHost: h\r\n\r\n")
    except RequestInvalid as problem:
        found = problem.status
    assert found == status


@pytest.mark.parametrize("method", [b"LIST", b"VERSION-CONTROL", b"FOO"])
def test_a_method_that_nobody_registered_is_a_method(method: bytes) -> None:
    """What it means is between the client and the service."""
    heard = read([method + b" /v1/secrets HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}"])
    assert ([request.head.method for request in heard.requests], heard.bodies, heard.ends) == ([method], [b"{}"], 1)


def test_many_small_chunks_arrive_as_one_piece() -> None:
    """What has to be kept is counted in bytes, so it must not come in thousands of pieces."""
    pieces: list[bytes] = []
    reader = ChunkReader(pieces.append, LIMIT)
    assert reader.feed(b"1\r\na\r\n" * 10_000 + b"0\r\n\r\nrest") == b"rest"
    assert pieces == [b"a" * 10_000]


def test_what_is_whole_of_malformed_chunks_is_told_before_they_are_refused() -> None:
    """As it is when it comes alone."""
    pieces: list[bytes] = []
    with pytest.raises(ChunksInvalid):
        ChunkReader(pieces.append, LIMIT).feed(b"2\r\nab\r\n1\r\nc\r\nZZ\r\n")
    assert b"".join(pieces) == b"abc"


@pytest.mark.parametrize("size", [CHUNK_LINE_BYTES_MAX, CHUNK_LINE_BYTES_MAX + 1], ids=["longest", "too-long"])
def test_a_chunk_size_line_is_as_long_as_it_may_be_however_it_is_cut(size: int) -> None:
    """In one piece as in many."""
    line = b"1;" + b"e" * (size - 4) + b"\r\n"
    for places in ([], [10], [size - 1], [10, size // 2]):
        data = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
        heard = read([data, *cut(line + b"a\r\n0\r\n\r\n", places)])
        assert (heard.status, heard.ends) == ((None, 1) if size == CHUNK_LINE_BYTES_MAX else (400, 0))


class _Body:
    def arrived(self, data: bytes) -> None: ...
    def ended(self) -> None: ...


@dataclass
class _Forgetful:
    """A sink that keeps no body."""

    body: weakref.ref[_Body] | None = None

    def head_arrived(self, request: ReceivedRequest) -> _Body:
        body = _Body()
        self.body = weakref.ref(body)
        return body


@pytest.mark.parametrize(
    "framing", [b"Content-Length: 1\r\n\r\nx", b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n", b"\r\n"]
)
def test_a_body_that_ended_is_let_go(framing: bytes) -> None:
    """An idle connection does not hold what nobody took of its last request."""
    sink = _Forgetful()
    parser = RequestParser(sink, header_bytes_max=LIMIT, header_fields_max=64)
    assert parser.feed(b"POST / HTTP/1.1\r\nHost: a\r\n" + framing) == b""
    assert sink.body is not None
    assert sink.body() is None
