"""Resolves names for aiohttp's client, and for the event loop, in threads that nothing else needs.

A name server that does not respond holds a thread for many seconds, and no lookup can be cancelled. In threads that
others use, too, it would stall what has nothing to do with it: bodies, kept requests, or connections to the store. So
whoever owns a `Names` waits for its own lookups alone. The invariant: no more threads than places, cancelled or not.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress
from typing import Any, Final

from aiohttp.abc import AbstractResolver, ResolveResult

_LOOKUPS_MAX: Final = 2
_NUMERIC: Final = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV

_Found = list[tuple[socket.AddressFamily, int, tuple[Any, ...]]]


class Names(AbstractResolver):
    """The lookups of one client, `_LOOKUPS_MAX` at a time. Used on one event loop."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(_LOOKUPS_MAX)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Raises `OSError`."""
        await self._places.acquire()
        loop = asyncio.get_running_loop()
        result: asyncio.Future[_Found] = loop.create_future()
        # A daemon, so that a program that ends does not wait for it.
        thread = threading.Thread(target=self._run, args=(loop, result, host, port, family), name="names", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            self._places.release()
            raise OSError(str(error)) from None
        return [
            ResolveResult(hostname=host, host=address[0], port=address[1], family=found, proto=protocol, flags=_NUMERIC)
            for found, protocol, address in await result
        ]

    async def close(self) -> None:
        """Lookups that still run end by themselves, and nobody waits for them."""

    def _run(
        self,
        loop: asyncio.AbstractEventLoop,
        result: asyncio.Future[_Found],
        host: str,
        port: int,
        family: socket.AddressFamily,
    ) -> None:
        found, error = None, None
        try:
            found = _look_up(host, port, family)
        except Exception as raised:  # noqa: BLE001 -- raised to the caller
            error = raised
        # Raised by a closed loop, where no caller waits any more.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(self._end, result, found, error)

    def _end(self, result: asyncio.Future[_Found], found: _Found | None, error: Exception | None) -> None:
        self._places.release()
        if result.done():
            return
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(found or [])


def _look_up(host: str, port: int, family: socket.AddressFamily) -> _Found:
    infos = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, 0, socket.AI_ADDRCONFIG)
    return [(found, protocol, _numeric(address)) for found, _, protocol, _, address in infos]


def _numeric(address: tuple[Any, ...]) -> tuple[Any, ...]:
    """The address and port. A link-local address of IPv6 has its interface in it."""
    if len(address) == 4 and address[3]:
        host, port = socket.getnameinfo(address, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)
        return host, int(port)
    return address[:2]
