"""Multipart bodies (RFC 2046, RFC 7578) as their parts, without the boundary, which clients draw anew for a retry.

The body may be a mapped file of any size; it is read in windows, and only digests of its parts are kept. Anything that
two parsers could read differently is refused, and the caller compares the bytes as they came.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final

from gateway.core.framing import framed
from gateway.core.identity.canonical import Body, in_any_order

PARTS_MAX: Final = 1000
PART_HEAD_BYTES_MAX: Final = 16 << 10
PART_HEADERS_MAX: Final = 32
# Small enough for a thread that digests a large body to let others run between two windows.
_WINDOW_BYTES: Final = 256 << 10

_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]++):([^\x00\r\n]*+)")
# A name that every parser reads alike: given once, without escapes, beside nothing but a file's name.
_TEXT = rb"(?:\"[^\"\\%]*+\"|[^\"\\%;\s]++)"
_NAME = re.compile(
    rb"form-data\s*;\s*name=(%b)(?:\s*;\s*filename\*?=(?:%b|[^\";\s]++))*+" % (_TEXT, _TEXT), re.IGNORECASE
)


class _Refused(Exception):
    pass


def canonical_multipart(body: Body, boundary: bytes) -> bytes | None:
    """For each part its headers and the digest of its content; None where the body is refused.

    Order counts as it does in a form, and everywhere where a part has no name that every parser reads alike.

    Refused are a preamble or epilogue, bare CR or LF in a part's head, a boundary that is not a line of its own, more
    than `PARTS_MAX` parts, and a part with more than `PART_HEADERS_MAX` headers or `PART_HEAD_BYTES_MAX` of head.
    """
    try:
        parts = _parts(body, b"--" + boundary)
    except _Refused:
        return None
    named = [(name, part) for name, part in parts if name is not None]
    return framed(*[part for _, part in (in_any_order(named) if len(named) == len(parts) else parts)])


def _parts(body: Body, dash_boundary: bytes) -> list[tuple[bytes | None, bytes]]:
    """The parts as they are compared, with their names where those are certain."""
    if body[: len(dash_boundary)] != dash_boundary:
        raise _Refused
    position, is_last = _after_boundary(body, len(dash_boundary))
    parts: list[tuple[bytes | None, bytes]] = []
    while not is_last:
        if len(parts) == PARTS_MAX:
            raise _Refused
        name, head, content_start = _part_head(body, position, dash_boundary)
        boundary_start = _find(body, dash_boundary, content_start)
        content_end = boundary_start - 2
        # After a bare line feed, or right after the head, a boundary ends the part for some parsers only.
        if content_end < content_start or body[content_end:boundary_start] != b"\r\n":
            raise _Refused
        parts.append((name, framed(head, _digest(body, content_start, content_end))))
        position, is_last = _after_boundary(body, boundary_start + len(dash_boundary))
    if body[position : position + 3] not in (b"", b"\r\n"):
        raise _Refused
    return parts


def _after_boundary(body: Body, position: int) -> tuple[int, bool]:
    """Where the boundary's line ends, and whether it is the closing one."""
    match body[position : position + 2]:
        case b"--":
            return position + 2, True
        case b"\r\n":
            return position + 2, False
        case _:
            raise _Refused


def _part_head(body: Body, position: int, dash_boundary: bytes) -> tuple[bytes | None, bytes, int]:
    """The name of a part, its headers, sorted by name (stably), and where its content begins."""
    window = body[position : position + PART_HEAD_BYTES_MAX]
    if window.startswith(b"\r\n"):
        return None, b"", position + 2
    end = window.find(b"\r\n\r\n")
    if end < 0 or dash_boundary in window[:end]:
        raise _Refused
    lines = window[:end].split(b"\r\n")
    if len(lines) > PART_HEADERS_MAX:
        raise _Refused
    headers: list[tuple[bytes, bytes]] = []
    for line in lines:
        if (match := _HEADER.fullmatch(line)) is None:
            raise _Refused
        headers.append((match[1].lower(), match[2].strip(b" \t")))
    headers.sort(key=lambda header: header[0])
    said = [value for name, value in headers if name == b"content-disposition"]
    found = _NAME.fullmatch(said[0]) if len(said) == 1 else None
    return found and found[1].strip(b'"'), framed(*[part for header in headers for part in header]), position + end + 4


def _find(body: Body, needle: bytes, start: int) -> int:
    """As `bytes.find`, in windows that overlap enough for a needle across two of them."""
    for window_start in range(start, len(body), _WINDOW_BYTES):
        found = body[window_start : window_start + _WINDOW_BYTES + len(needle) - 1].find(needle)
        if found >= 0:
            return window_start + found
    return -1


def _digest(body: Body, start: int, end: int) -> bytes:
    digest = sha256()
    for window_start in range(start, end, _WINDOW_BYTES):
        digest.update(body[window_start : min(window_start + _WINDOW_BYTES, end)])
    return digest.digest()
