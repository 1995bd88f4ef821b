"""How much of what was written to a client it has taken.

Without TLS the transport says what has yet to leave. With it the loop does not: it encrypts an answer at once, and what
it holds then is counted nowhere. There the kernel is asked what has arrived.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Final

from gateway.core.immutable import immutable

# `struct tcp_info` of Linux (4.6 and later), of which these are tcpi_unacked, tcpi_bytes_acked and tcpi_notsent_bytes.
_TCP_INFO: Final = struct.Struct("=24xI92xQ16xI")


@immutable
class Delivery:
    """`taken_bytes` are counted from anywhere, and grow with what the client takes.

    `is_all`: nothing is left, unless the loop is about to write what it holds. Seen twice, with nothing taken in
    between, it is certain.
    """

    taken_bytes: int
    is_all: bool


_UNKNOWN: Final = Delivery(0, is_all=False)


def delivery_of(transport: asyncio.Transport) -> Delivery:
    """How far it is now. Where nobody knows, nothing is ever taken."""
    if transport.get_extra_info("sslcontext") is None:
        unsent_bytes = transport.get_write_buffer_size()
        return Delivery(-unsent_bytes, unsent_bytes == 0)
    sock = transport.get_extra_info("socket")
    option = getattr(socket, "TCP_INFO", None)
    if sock is None or option is None:
        return _UNKNOWN
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, option, _TCP_INFO.size)
    except OSError:
        return _UNKNOWN
    if len(info) < _TCP_INFO.size:
        return _UNKNOWN
    on_its_way, arrived_bytes, unsent_bytes = _TCP_INFO.unpack(info)
    return Delivery(arrived_bytes, on_its_way == 0 and unsent_bytes == 0)
