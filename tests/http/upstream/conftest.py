"""Everything here runs on uvloop, which the product uses, and with `--full` also on asyncio's own loop: they see the
end of a connection differently."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import uvloop

from tests.support.tls import Authority


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loops that each coroutine test is run on."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Who signs the certificates here."""
    directory: Path = tmp_path_factory.mktemp("upstream-tls")
    return Authority(directory)


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
