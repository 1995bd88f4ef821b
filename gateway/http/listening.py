"""Why an address cannot be listened on, in words for an operator. The same for every port of the program."""

from __future__ import annotations

import errno
import socket

from gateway.core.message import bracketed


class ListenError(Exception):
    """The address cannot be listened on. The text says why, for an operator."""


def listen_fault(host: str | None, port: int, error: OSError) -> str:
    """What an operator has to change."""
    address = f"{bracketed(host or '*')}:{port}"
    match error.errno:
        case errno.EADDRINUSE:
            why = "another program listens there already"
        case errno.EACCES:
            why = "this user may not; ports below 1024 need CAP_NET_BIND_SERVICE, or use a higher one"
        case errno.EADDRNOTAVAIL:
            why = "this machine has no such address"
        case _ if isinstance(error, socket.gaierror):
            why = "the host name cannot be resolved"
        case _:
            why = error.strerror or str(error)
    return f"cannot listen on {address}: {why}"
