"""Loopback ports for servers that are told their port before they start."""

from __future__ import annotations

import os
import random
import socket
from typing import Final

# Below the range that Linux gives to outgoing connections: between the choice and the server's bind, nobody is given
# one of these by accident.
_LOWEST, _HIGHEST = 15_000, 31_999

SHARE: Final = "GATEWAY_TEST_PORT_SHARE"
"""Set for processes that run at the same time, to `NUMBER/COUNT`, from 0: each chooses among ports of its own, or a
server that is slow to start would find another's on its port."""
_SHARED: Final = 1_000

_number, _count = map(int, os.environ.get(SHARE, "0/1").split("/"))
_given: set[int] = set()
_source = random.SystemRandom()


def free_port(beside: int = 0) -> int:
    """A port that is free on 127.0.0.1 now, and that this process was not given before. So is the one that is so far
    above it, whole thousands, where a server takes that, too."""
    for _ in range(10_000):
        port = _source.randint(_LOWEST, _HIGHEST - beside)
        taken = {port, port + beside}
        if port % _SHARED * _count // _SHARED != _number:
            continue
        if _given.isdisjoint(taken) and all(map(_is_free, taken)):
            _given.update(taken)
            return port
    raise RuntimeError("no free port on 127.0.0.1")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
