"""The limits of the edge, for all of its parts: server, connections, exchanges."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EdgeSettings:
    """Limits of the edge. Silence is the time without a byte, in a request body and towards a slow reader alike.

    `bytes_per_second_min` is the pace below which a client is given up after a first silence: with a body that has to
    be here whole before anything is done, and with reading what was written for it. `connections_max` counts a
    connection over TLS from the end of its handshake; until then it is one of `handshakes_max`, or of a quarter of
    `connections_max` where that is less. `unread_bytes_max` is for all long answers together, `begun_bytes_max` for all
    requests that are here in part or have yet to have their turn, see `Unread`. `decoding_wait_seconds` is how long an
    answer waits for its turn to be decoded; then it goes out as it is stored.
    """

    header_bytes_max: int = 64 * 1024
    header_fields_max: int = 128
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
    backlog: int = 1024
