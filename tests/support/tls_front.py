"""TLS in front of a server that has none: whoever begins with a handshake speaks TLS, everybody else is passed through.

So servers that name each other by the front's port go on to talk in clear. It runs in a thread, because whoever waits
for servers to find each other blocks.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator

from tests.support.ports import free_port
from tests.support.tls import Certificate

_HANDSHAKE = b"\x16"
_CHUNK_BYTES = 65_536


class TlsFront:
    """`handshakes` counts who spoke TLS."""

    def __init__(self, certificate: Certificate) -> None:
        self.port = free_port()
        self.handshakes = 0
        self._context = certificate.server_context()
        self._target_port = 0
        self._stop = asyncio.Event()

    @contextlib.contextmanager
    def to(self, target_port: int) -> Iterator[None]:
        """Serve while the context is open. Nobody has to be there yet."""
        self._target_port = target_port
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_until_complete, args=(self._serve(),))
        thread.start()
        try:
            yield
        finally:
            loop.call_soon_threadsafe(self._stop.set)
            thread.join()
            loop.close()

    async def _serve(self) -> None:
        with socket.create_server(("127.0.0.1", self.port)) as listener:
            listener.setblocking(False)
            async with asyncio.TaskGroup() as group:
                accepting = group.create_task(self._accept(listener))
                await self._stop.wait()
                accepting.cancel()

    async def _accept(self, listener: socket.socket) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                client, _ = await asyncio.get_running_loop().sock_accept(listener)
                group.create_task(self._pass_on(client))

    async def _pass_on(self, client: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(client, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(client)
        with contextlib.suppress(OSError):
            is_tls = client.recv(1, socket.MSG_PEEK) == _HANDSHAKE
            self.handshakes += is_tls
            reader = asyncio.StreamReader()
            protocol = asyncio.StreamReaderProtocol(reader)
            context = self._context if is_tls else None
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, client, ssl=context)
            writer = asyncio.StreamWriter(transport, protocol, reader, loop)
            try:
                from_target, to_target = await asyncio.open_connection("127.0.0.1", self._target_port)
                try:
                    await asyncio.gather(_copy(reader, to_target), _copy(from_target, writer))
                finally:
                    to_target.transport.abort()
            finally:
                transport.abort()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(_CHUNK_BYTES):
            target.write(data)
            await target.drain()
    target.transport.abort()
