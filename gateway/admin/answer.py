"""An answer of the service as an operator brings it: `curl -i` wrote it to a file, or it comes as JSON.

Owns what such an answer has to look like. It will be replayed as if the gateway had received it, so what could be half
of an answer, two answers, or the answer in another coding than it says is refused with what to do about it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from gateway.core.message import Headers, ResponseHead, StoredResponse, asks_upgrade, header_values, list_members
from gateway.protect.decoding import decode_unaccepted

HEAD_BYTES_MAX: Final = 256 * 1024
_FIELDS_MAX: Final = 1000
_INTERIM_ANSWERS_MAX: Final = 32

_STATUS_LINE: Final = re.compile(rb"HTTP/[1-3](?:\.[01])? ([1-9][0-9]{2})(?: ([^\x00\r\n]*))?")
_FIELD: Final = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([^\x00\r\n]*?)[ \t]*")
_SEVERAL: Final = re.compile(rb"HTTP/[1-3](?:\.[01])? [1-9][0-9]{2}[ \r\n]")
_CHUNK: Final = re.compile(rb"[0-9A-Fa-f]{1,16}[ \t]*(?:;[^\r\n]*)?\r\n")
_KNOWN_CODINGS: Final = frozenset((b"gzip", b"x-gzip", b"deflate", b"br", b"zstd"))


class AnswerRefused(ValueError):
    """This is not an answer that may be recorded. The text says why and what to do, and quotes no body."""


def read_answer(data: bytes) -> tuple[ResponseHead, bytes]:
    """Status line, fields, an empty line, body: what `curl -i` prints. Interim answers before it are passed over.

    Lines end in CRLF, or all of them in LF. Raises `AnswerRefused`.
    """
    for _ in range(_INTERIM_ANSWERS_MAX):
        head, data = _read_head(data)
        if head.status >= 200 or head.status == 101:
            _check_answer(head, data)
            return head, data
    raise AnswerRefused(f"more than {_INTERIM_ANSWERS_MAX} interim answers come before the answer")


def written(response: StoredResponse) -> bytes:
    """An answer that was kept with its body, as `read_answer` reads it."""
    if response.body is None:
        raise ValueError("an answer without its body is none")
    lines = [b"HTTP/1.1 %d %b" % (response.status, response.reason)]
    lines += [b"%b: %b" % field for field in response.headers]
    return b"\r\n".join([*lines, b"", response.body])


def answer_of(status: int, headers: Iterable[tuple[str, str]], body: bytes) -> tuple[ResponseHead, bytes]:
    """The same from values. Raises `AnswerRefused`."""
    fields: list[tuple[bytes, bytes]] = []
    for name, value in headers:
        try:
            line = f"{name}: {value}".encode("latin-1")
        except UnicodeEncodeError:
            raise AnswerRefused("a header field has characters outside of Latin-1") from None
        fields.append(_field(line, len(fields) + 1))
    head = ResponseHead(status, b"", tuple(fields))
    _check_answer(head, body)
    return head, body


def _check_answer(head: ResponseHead, body: bytes) -> None:
    """Raises `AnswerRefused` for what is no final answer, is not whole, or is not in the coding that it names."""
    if not 200 <= head.status <= 599:
        raise AnswerRefused(f"{head.status} is not the status of a final answer")
    if asks_upgrade(head.headers):
        raise AnswerRefused("the answer leaves HTTP")
    if len(head.headers) > _FIELDS_MAX:
        raise AnswerRefused(f"it has more than {_FIELDS_MAX} header fields")
    if _SEVERAL.match(body):
        raise AnswerRefused("several answers follow each other; save the last one alone (curl without -L and --proxy)")
    if body and head.status in (204, 304):
        raise AnswerRefused(f"an answer with status {head.status} has no body, but this one has {len(body)} bytes")
    if _is_still_chunked(head.headers, body):
        raise AnswerRefused("the body is still in chunks; save it without curl's --raw")
    _check_length(head, body)
    _check_coding(head.headers, body)


def _is_still_chunked(headers: Headers, body: bytes) -> bool:
    codings = list_members(header_values(headers, b"transfer-encoding"))
    return b"chunked" in codings and _CHUNK.match(body) is not None and body.endswith(b"0\r\n\r\n")


def _check_length(head: ResponseHead, body: bytes) -> None:
    lengths = set(list_members(header_values(head.headers, b"content-length")))
    if not lengths or head.status == 304 or header_values(head.headers, b"transfer-encoding"):
        return
    if lengths != {b"%d" % len(body)}:
        said = b", ".join(sorted(lengths))[:40].decode("latin-1")
        raise AnswerRefused(
            f"Content-Length says {said}, and the body has {len(body)} bytes: it was cut, an editor added a line "
            "ending, or curl decoded it (--compressed); save it again as it came"
        )


def _check_coding(headers: Headers, body: bytes) -> None:
    codings = set(list_members(header_values(headers, b"content-encoding"))) - {b"identity"}
    if not body or not codings or not codings <= _KNOWN_CODINGS:
        return
    # Asked for without any coding: what cannot be decoded comes back as it is.
    plain = tuple(field for field in headers if field[0].lower() not in (b"cache-control", b"content-range"))
    if decode_unaccepted(plain, body, [b"identity"])[0] == plain:
        named = ", ".join(sorted(coding.decode("latin-1") for coding in codings))
        raise AnswerRefused(
            f"Content-Encoding says {named}, and the body is not that whole, or decodes to more than 16 MiB; save it "
            "without curl's --compressed, or leave the field out if the body is plain"
        )


def _read_head(data: bytes) -> tuple[ResponseHead, bytes]:
    """The first head, and what is behind it."""
    line_end = b"\r\n" if data[: data.find(b"\n") + 1].endswith(b"\r\n") else b"\n"
    end = data.find(line_end * 2, 0, HEAD_BYTES_MAX)
    if end < 0:
        raise AnswerRefused(
            f"no empty line ends the header fields within {HEAD_BYTES_MAX // 1024} KiB; expected a status line, "
            "fields, an empty line and the body, as curl -i prints them"
        )
    first, *lines = data[:end].split(line_end)
    status = _STATUS_LINE.fullmatch(first)
    if status is None:
        raise AnswerRefused("line 1 is no status line such as HTTP/1.1 201 Created; save the answer with curl -i")
    fields = tuple(_field(line, number) for number, line in enumerate(lines, 2))
    return ResponseHead(int(status[1]), (status[2] or b"").rstrip(b" "), fields), data[end + 2 * len(line_end) :]


def _field(line: bytes, number: int) -> tuple[bytes, bytes]:
    found = _FIELD.fullmatch(line)
    if found is None:
        raise AnswerRefused(f"line {number} is no header field such as Content-Type: application/json")
    return found[1], found[2]
