"""The limits of the edge, and why bytes are no request, in words for their sender."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from aiohttp import http_exceptions, http_parser

from gateway.protect.ambiguity import Fault


@dataclass(frozen=True, slots=True)
class EdgeSettings:
    """Limits of the edge. Silence is the time without a byte, in a request body and towards a slow reader alike.

    `bytes_per_second_min` is the pace below which a client is given up after a first silence: with a body that has to
    be here whole before anything is done, and with reading what was written for it. `connections_max` counts a
    connection over TLS from the end of its handshake; until then it is one of `handshakes_max`, or of a quarter of
    `connections_max` where that is less. `unread_bytes_max` is for all long responses together, `begun_bytes_max` for
    all requests that are here in part or have yet to have their turn, see `MemoryBudget`. `decoding_wait_seconds` is
    how long a response waits for its turn to be decoded; then it goes out as it is stored.
    """

    header_bytes_max: int = 64 * 1024
    headers_max: int = 128
    keepalive_seconds: float = 75.0
    silence_seconds: float = 60.0
    bytes_per_second_min: float = 500.0
    linger_seconds: float = 5.0
    handshake_seconds: float = 10.0
    handshakes_max: int = 1024
    connections_max: int = 100_000
    unread_bytes_max: int = 256 * 1024 * 1024
    begun_bytes_max: int = 64 * 1024 * 1024
    decoding_wait_seconds: float = 5.0
    backlog: int = 4096


HEAD_TOO_BIG: Final = Fault(431, "The head of the request is too big.", is_verdict=False)
_MALFORMED: Final = Fault(400, "The request is not well-formed HTTP/1.1.")
_UNKNOWN_METHOD: Final = Fault(400, "The request does not begin with a method that this gateway knows.")
_REPEATED_HEADER: Final = Fault(400, "A header that a request may have once is repeated.")


def fault_of(error: BaseException | None) -> Fault:
    """What aiohttp found, in words that repeat nothing of it."""
    match error:
        case http_exceptions.LineTooLong():
            return HEAD_TOO_BIG
        case http_exceptions.BadHttpMethod():
            return _UNKNOWN_METHOD
        case http_exceptions.BadHttpMessage(message=text) if text.startswith("Too many headers"):
            return HEAD_TOO_BIG
        case http_exceptions.BadHttpMessage(message=text) if text.startswith("Duplicate '"):
            return _REPEATED_HEADER
        case _:
            return _MALFORMED


def has_c_parser() -> bool:
    """Whether requests are parsed by llhttp. aiohttp's parser in Python is another one, which nothing here was held
    against."""
    return http_parser.HttpRequestParser.__module__ == "aiohttp._http_parser"
