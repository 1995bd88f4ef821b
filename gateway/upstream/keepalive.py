"""Finding out that the other end of a silent connection is gone: by the kernel, for clients and upstreams alike."""

from __future__ import annotations

import socket
from typing import Final

# Whoever has vanished without a word is found out within a minute.
_IDLE_SECONDS: Final = 30
_INTERVAL_SECONDS: Final = 10
_PROBES: Final = 3


def keep_alive(sock: socket.socket) -> None:
    """Have the kernel ask a silent end whether it is there. Raises OSError where that is not a TCP connection."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # Not every platform has these; where they are missing its own, slower, clocks apply.
    for option, value in (
        ("TCP_KEEPIDLE", _IDLE_SECONDS),
        ("TCP_KEEPINTVL", _INTERVAL_SECONDS),
        ("TCP_KEEPCNT", _PROBES),
    ):
        if (number := getattr(socket, option, None)) is not None:
            sock.setsockopt(socket.IPPROTO_TCP, number, value)
