"""A response that an operator brings is one whole response, or is refused with what to do."""

from __future__ import annotations

import gzip

import pytest

from gateway.admin.journal import ResponseRefused, read_response, response_of, written
from gateway.core.message import StoredResponse

CREATED = b"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nLocation: /charges/1\r\n\r\n"


def test_as_curl_prints_it() -> None:
    """Status, reason, fields with their repeats, and every byte of the body."""
    head, body = read_response(b"HTTP/1.1 201 Created\r\nA: 1\r\nA:2 \r\nB:\r\n\r\n\x00\xff\n")
    assert (head.status, head.reason) == (201, b"Created")
    assert head.headers == ((b"A", b"1"), (b"A", b"2"), (b"B", b""))
    assert body == b"\x00\xff\n"


@pytest.mark.parametrize(
    "line",
    [b"HTTP/2 201 ", b"HTTP/2 201", b"HTTP/3 201", b"HTTP/1.0 201 OK then", b"HTTP/1.1 201"],
    ids=lambda line: line.decode().replace(" ", "_"),
)
def test_status_lines(line: bytes) -> None:
    """The status line of every version that curl speaks."""
    head, body = read_response(line + b"\r\nA: b\r\n\r\nx")
    assert (head.status, body) == (201, b"x")


def test_written_by_hand() -> None:
    """Lines that all end in LF are fine, and so is a response without a field."""
    assert read_response(b"HTTP/1.1 200 OK\nA: b\n\nx\n")[1] == b"x\n"
    head, body = read_response(b"HTTP/1.1 204 No Content\r\n\r\n")
    assert (head.status, head.headers, body) == (204, (), b"")


def test_interim_answers() -> None:
    """What curl prints before the response is passed over, within bounds."""
    interim = b"HTTP/1.1 100 Continue\r\n\r\n"
    assert read_response(interim + b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n" + CREATED)[0].status == 201
    with pytest.raises(ResponseRefused, match="more than 32 interim responses"):
        read_response(interim * 33 + CREATED)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "no empty line ends the headers within 256 KiB"),
        (b"HTTP/1.1 200 OK\r\nA: b\r\n", "no empty line"),
        (b"HTTP/1.1 200 OK\r\nA: b\n\r\n\r\nx", "line 2 is not a header"),
        (b'{"id": 1}\r\n\r\n', "line 1 is not a status line such as HTTP/1.1 201 Created; save the response"),
        (b"HTTP/1.1 200 OK\r\n folded\r\n\r\n", "line 2 is not a header"),
        (b"HTTP/1.1 200 OK\r\nA b: c\r\n\r\n", "line 2 is not a header"),
        (b"HTTP/1.1 200 OK\r\nA: b\r\nC: \x00\r\n\r\n", "line 3 is not a header"),
        (b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", "101 is not the status of a final"),
        (b"HTTP/1.1 999 No\r\n\r\n", "999 is not the status of a final"),
        (b"HTTP/1.1 302 Found\r\nLocation: /\r\n\r\n" + CREATED, "there are several responses"),
        (b"HTTP/1.1 200 Connection established\r\n\r\nHTTP/2 201 \r\n\r\n", "there are several responses"),
        (b"HTTP/1.1 204 No Content\r\n\r\nx", "a response with status 204 has no body, but this one has 1 bytes"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfour", "Content-Length says 5, but the body has 4 bytes"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nfour", "Content-Length says 4, 5, but"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\nplain", "Content-Encoding says gzip, but the body is not"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n" + gzip.compress(b"whole")[:-1],
            "Content-Encoding says gzip, but the body is not",
        ),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nfour\r\n0\r\n\r\n",
            "the body is still in chunks; save it without curl's --raw",
        ),
        (b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 1001 + b"\r\n", "more than 1000 headers"),
        (b"HTTP/1.1 200 OK\r\nA: " + b"b" * 300_000 + b"\r\n\r\n", "no empty line"),
    ],
    ids=[
        "empty", "no end", "mixed", "body alone", "folded", "space in name", "NUL", "101", "999", "redirect", "protect",
        "204 with body", "cut", "two lengths", "decoded", "cut gzip", "chunks", "fields", "long",
    ],
)  # fmt: skip
def test_refused(data: bytes, why: str) -> None:
    """What is no whole final response is refused, and the reason says what it was."""
    with pytest.raises(ResponseRefused) as caught:
        read_response(data)
    assert why in str(caught.value)


def test_coded_bodies() -> None:
    """A body in the coding that it names is kept as it is; a coding that is not known here is not judged."""
    body = gzip.compress(b"whole")
    assert read_response(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n" + body)[1] == body
    assert read_response(b"HTTP/1.1 200 OK\r\nContent-Encoding: aes128gcm\r\n\r\nx")[1] == b"x"
    # As curl leaves it: the fields of the wire, the body without its chunks.
    assert read_response(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfour")[1] == b"four"


def test_from_values() -> None:
    """The same rules hold for a response that comes as values."""
    head, body = response_of(201, [("Content-Type", "text/plain"), ("X", "é")], b"x")
    assert (head.status, head.headers[1], body) == (201, (b"X", "é".encode("latin-1")), b"x")
    for headers in ([("A b", "c")], [("A", "b\r\nC: d")], [("A", "€")]):
        with pytest.raises(ResponseRefused):
            response_of(200, headers, b"")


@pytest.mark.parametrize(
    "response",
    [
        StoredResponse(201, b"Created", ((b"Location", b"/charges/1"), (b"X", b"a"), (b"x", b"")), b'{"id":1}'),
        StoredResponse(200, b"", (), b""),
        StoredResponse(200, b"OK", ((b"Content-Encoding", b"gzip"), (b"X-Latin", b"\xe9")), gzip.compress(b"whole")),
        StoredResponse(422, b"No", (), b"\r\n\r\nA: b\r\n\x00\n\n"),
        StoredResponse(204, b"No Content", ((b"ETag", b'"1"'),), b""),
    ],
    ids=["fields", "nothing", "coded", "line ends", "no content"],
)
def test_written_as_it_is_read(response: StoredResponse) -> None:
    """A kept response comes back from a file as it was, to the byte."""
    head, body = read_response(written(response))
    assert StoredResponse(head.status, head.reason, head.headers, body) == response
