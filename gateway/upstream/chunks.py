"""A chunked body taken apart, strictly and at any segmentation (RFC 9112 section 7.1).

Pure. It owns where such a body ends, in requests and in answers alike, and knows nothing of either. Extensions and
trailers are read over: they belong to the framing.

Invariant: what is told does not depend on how the bytes were cut.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from enum import IntEnum
from typing import Final

CHUNK_LINE_BYTES_MAX: Final = 4096

_CHUNK_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*+(?:;[^\x00\r\n]*+)?\r\n")
_TRAILER_FIELD: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]++:[^\x00\r\n]*+\r\n")


class ChunksInvalid(ValueError):
    """The bytes are no chunks. The text says why and repeats none of them."""


class _State(IntEnum):
    LINE = 0
    DATA = 1
    END = 2
    TRAILER = 3
    DONE = 4


class ChunkReader:
    """Reads one body, and hands what is in the chunks to `take`.

    What is beyond `lines_max` lines of one `feed` is left `unread`, for the caller to feed in a turn of its own: chunks
    of a byte each would hold everybody else up.
    """

    __slots__ = (
        "_held_line",
        "_left",
        "_lines_max",
        "_state",
        "_take",
        "_trailer_bytes",
        "_trailer_bytes_max",
        "unread",
    )

    def __init__(self, take: Callable[[bytes], None], trailer_bytes_max: int, *, lines_max: int = sys.maxsize) -> None:
        self._take = take
        self._lines_max = lines_max
        self.unread = b""
        self._trailer_bytes_max = trailer_bytes_max
        self._trailer_bytes = 0
        self._state = _State.LINE
        self._held_line = b""
        self._left = 0

    def feed(self, data: bytes) -> bytes | None:
        """Take the next bytes; returns those that follow the body once its end has come, None before.

        What was left `unread` has to come first. Raises `ChunksInvalid`; the reader is of no use afterwards.
        """
        self.unread = b""
        if self._held_line:
            data = self._held_line + data
            self._held_line = b""
        # Handed on together: thousands of chunks of a byte each must not become as many things to keep.
        pieces: list[bytes] = []
        try:
            return self._read(data, pieces)
        finally:
            if pieces:
                self._take(pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def _read(self, data: bytes, pieces: list[bytes]) -> bytes | None:
        position, size, lines = 0, len(data), 0
        while position < size:
            match self._state:
                case _State.DATA:
                    piece = data[position : position + self._left]
                    position += len(piece)
                    self._left -= len(piece)
                    pieces.append(piece)
                    if self._left == 0:
                        self._state = _State.END
                    continue
                case _State.END:
                    if not data.startswith(b"\r\n"[: size - position], position):
                        raise ChunksInvalid("a chunk longer than its size")
                case _:
                    pass
            end = data.find(b"\n", position) + 1
            if end == 0:
                self._hold(data[position:])
                return None
            if lines == self._lines_max:
                self.unread = data[position:]
                return None
            lines += 1
            self._read_line(data, position, end)
            position = end
            if self._state is _State.DONE:
                return data[position:]
        return None

    def _hold(self, line: bytes) -> None:
        """Keep an unfinished line, never chunk data."""
        if len(line) > CHUNK_LINE_BYTES_MAX and self._state is _State.LINE:
            raise ChunksInvalid("a chunk size line without an end")
        if len(line) + self._trailer_bytes > self._trailer_bytes_max:
            raise ChunksInvalid("trailers too long")
        self._held_line = line

    def _read_line(self, data: bytes, start: int, end: int) -> None:
        match self._state:
            case _State.END:
                self._state = _State.LINE
            case _State.LINE:
                line = _CHUNK_LINE.fullmatch(data, start, end)
                if line is None or end - start > CHUNK_LINE_BYTES_MAX:
                    raise ChunksInvalid("not a chunk size line")
                self._left = int(line[1], 16)
                self._state = _State.DATA if self._left else _State.TRAILER
            case _:
                self._trailer_bytes += end - start
                if self._trailer_bytes > self._trailer_bytes_max:
                    raise ChunksInvalid("trailers too long")
                if data.startswith(b"\r\n", start):
                    self._state = _State.DONE
                elif not _TRAILER_FIELD.fullmatch(data, start, end):
                    raise ChunksInvalid("not a trailer field")
