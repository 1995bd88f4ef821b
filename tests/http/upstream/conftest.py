"""The loops and the authority of this suite, and a port where nobody answers."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.http.loops import authority, pytest_asyncio_loop_factories

__all__ = ["authority", "pytest_asyncio_loop_factories"]


@pytest.fixture
def deaf_port() -> Iterator[int]:
    """A port whose listener accepts nobody any more: the handshake of a new connection never ends."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        yield port
        for filler in fillers:
            filler.close()
