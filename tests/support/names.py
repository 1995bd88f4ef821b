"""A name server that does not respond, as the C library shows it: the lookup holds its thread."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import pytest


class SilentNameServer:
    """Lookups of names under `.hangs` wait for `over`. The loop's own pool has one thread meanwhile."""

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)
        self.over = threading.Event()
        self.running = 0
        self._lookup = socket.getaddrinfo

    def getaddrinfo(self, host: Any, *args: Any, **kwargs: Any) -> Any:
        if not str(host).endswith(".hangs"):
            return self._lookup(host, *args, **kwargs)
        self.running += 1
        self.asked.release()
        self.over.wait()
        self.running -= 1
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")


@asynccontextmanager
async def silent_name_server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SilentNameServer]:
    """Ends all lookups at the end."""
    server = SilentNameServer()
    monkeypatch.setattr(socket, "getaddrinfo", server.getaddrinfo)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    try:
        yield server
    finally:
        server.over.set()
