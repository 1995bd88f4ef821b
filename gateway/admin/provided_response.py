"""Reads a response of the service that an operator provides: from a file that `curl -i` wrote, or as JSON.

It will be replayed as if the gateway had received it. So a response that may be incomplete, may be two responses, or is
not in the content coding that it names is refused, with a text that says what to do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from gateway.admin.fault import Malformed
from gateway.core.message import (
    Headers,
    IndexedHeaders,
    ResponseHead,
    StoredResponse,
    asks_upgrade,
    header_values,
    list_members,
)
from gateway.protect.decoding import decode_unaccepted

HEAD_BYTES_MAX: Final = 256 * 1024
_HEADERS_MAX: Final = 1000
_INTERIM_RESPONSES_MAX: Final = 32

_STATUS_LINE: Final = re.compile(rb"HTTP/[1-3](?:\.[01])? ([1-9][0-9]{2})(?: ([^\x00\r\n]*))?")
_FIELD: Final = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([^\x00\r\n]*?)[ \t]*")
_SEVERAL: Final = re.compile(rb"HTTP/[1-3](?:\.[01])? [1-9][0-9]{2}[ \r\n]")
_CHUNK: Final = re.compile(rb"[0-9A-Fa-f]{1,16}[ \t]*(?:;[^\r\n]*)?\r\n")
_KNOWN_CODINGS: Final = frozenset((b"gzip", b"x-gzip", b"deflate", b"br", b"zstd"))


class ResponseRefused(Malformed):
    """This is not a response that may be recorded. The text says why and what to do, and quotes no body."""


def read_response(data: bytes) -> tuple[ResponseHead, bytes]:
    """Status line, headers, an empty line, body: the output of `curl -i`. Skips interim responses before it.

    Lines end in CRLF, or all of them in LF. Raises `ResponseRefused`.
    """
    for _ in range(_INTERIM_RESPONSES_MAX):
        head, data = _read_head(data)
        if head.status >= 200 or head.status == 101:
            _check_response(head, data)
            return head, data
    raise ResponseRefused(f"more than {_INTERIM_RESPONSES_MAX} interim responses come before the response")


def written(response: StoredResponse) -> bytes:
    """A response that was stored with its body, in the form that `read_response` reads."""
    if response.body is None:
        raise ValueError("a response without its body cannot be written")
    lines = [b"HTTP/1.1 %d %b" % (response.status, response.reason)]
    lines += [b"%b: %b" % header for header in response.headers]
    return b"\r\n".join([*lines, b"", response.body])


def response_of(status: int, headers: Iterable[tuple[str, str]], body: bytes) -> tuple[ResponseHead, bytes]:
    found: list[tuple[bytes, bytes]] = []
    for name, value in headers:
        try:
            line = f"{name}: {value}".encode("latin-1")
        except UnicodeEncodeError:
            raise ResponseRefused("a header has characters outside of Latin-1") from None
        found.append(_header(line, len(found) + 1))
    head = ResponseHead(status, b"", IndexedHeaders(found))
    _check_response(head, body)
    return head, body


def _check_response(head: ResponseHead, body: bytes) -> None:
    """Raises `ResponseRefused` if it is not final, not complete, or not in the content coding that it names."""
    if not 200 <= head.status <= 599:
        raise ResponseRefused(f"{head.status} is not the status of a final response")
    if asks_upgrade(head.headers):
        raise ResponseRefused("the response upgrades the connection to another protocol")
    if len(head.headers) > _HEADERS_MAX:
        raise ResponseRefused(f"it has more than {_HEADERS_MAX} headers")
    if _SEVERAL.match(body):
        raise ResponseRefused("there are several responses; save only the last one (curl without -L and --proxy)")
    if body and head.status in (204, 304):
        raise ResponseRefused(f"a response with status {head.status} has no body, but this one has {len(body)} bytes")
    is_chunked = b"chunked" in list_members(header_values(head.headers, b"transfer-encoding"))
    if is_chunked and _CHUNK.match(body) and body.endswith(b"0\r\n\r\n"):
        raise ResponseRefused("the body is still in chunks; save it without curl's --raw")
    _check_length(head, body)
    _check_coding(head.headers, body)


def _check_length(head: ResponseHead, body: bytes) -> None:
    lengths = set(list_members(header_values(head.headers, b"content-length")))
    if not lengths or head.status == 304 or header_values(head.headers, b"transfer-encoding"):
        return
    if lengths != {b"%d" % len(body)}:
        declared = b", ".join(sorted(lengths))[:40].decode("latin-1")
        raise ResponseRefused(
            f"Content-Length says {declared}, but the body has {len(body)} bytes: it was cut, an editor added a line "
            "ending, or curl decoded it (--compressed); save it again unchanged"
        )


def _check_coding(headers: Headers, body: bytes) -> None:
    codings = set(list_members(header_values(headers, b"content-encoding"))) - {b"identity"}
    if not body or not codings or not codings <= _KNOWN_CODINGS:
        return
    # A body that cannot be decoded comes back unchanged.
    plain = tuple(header for header in headers if header[0].lower() not in (b"cache-control", b"content-range"))
    if decode_unaccepted(plain, body, [b"identity"])[0] == plain:
        named = ", ".join(sorted(coding.decode("latin-1") for coding in codings))
        raise ResponseRefused(
            f"Content-Encoding says {named}, but the body is not complete in that coding, or decodes to more than "
            "16 MiB; save it without curl's --compressed, or leave out the header if the body is not encoded"
        )


def _read_head(data: bytes) -> tuple[ResponseHead, bytes]:
    line_end = b"\r\n" if data[: data.find(b"\n") + 1].endswith(b"\r\n") else b"\n"
    end = data.find(line_end * 2, 0, HEAD_BYTES_MAX)
    if end < 0:
        raise ResponseRefused(
            f"no empty line ends the headers within {HEAD_BYTES_MAX // 1024} KiB; expected a status line, "
            "headers, an empty line and the body, as curl -i prints them"
        )
    first, *lines = data[:end].split(line_end)
    status = _STATUS_LINE.fullmatch(first)
    if status is None:
        raise ResponseRefused(
            "line 1 is not a status line such as HTTP/1.1 201 Created; save the response with curl -i"
        )
    headers = IndexedHeaders(_header(line, number) for number, line in enumerate(lines, 2))
    return ResponseHead(int(status[1]), (status[2] or b"").rstrip(b" "), headers), data[end + 2 * len(line_end) :]


def _header(line: bytes, number: int) -> tuple[bytes, bytes]:
    found = _FIELD.fullmatch(line)
    if found is None:
        raise ResponseRefused(f"line {number} is not a header such as Content-Type: application/json")
    return found[1], found[2]
