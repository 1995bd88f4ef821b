"""A pooler in transaction mode, as pgbouncer is one: another server session for each transaction."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from typing import NamedTuple, Self

_PROTOCOL_3 = 196_608
_ENCRYPTION_REQUESTS = (80_877_103, 80_877_104)
_KEPT = {"user", "database", "client_encoding", "application_name", "datestyle", "timezone"}
_READY = b"Z\x00\x00\x00\x05I"


class _Session(NamedTuple):
    """One session with the server, lent to one transaction at a time."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    greeting: bytes


class Pooler:
    """`async with Pooler(target_port, user, database) as pooler`: connect to `pooler.port`."""

    def __init__(self, target_port: int, user: str, database: str, sessions: int = 3) -> None:
        self.port = 0
        self.transactions = 0
        self._target_port = target_port
        self._startup = f"user\0{user}\0database\0{database}\0\0".encode()
        self._count = sessions
        self._idle: asyncio.Queue[_Session] = asyncio.Queue()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Self:
        for _ in range(self._count):
            self._idle.put_nowait(await self._open())
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.close()

    async def _open(self) -> _Session:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        self._writers.append(writer)
        writer.write(struct.pack(">II", 8 + len(self._startup), _PROTOCOL_3) + self._startup)
        greeting = b""
        while not greeting.endswith(_READY):
            greeting += await _message(reader)
        return _Session(reader, writer, greeting)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            if await _is_welcome(reader, writer):
                session = await self._idle.get()
                self._idle.put_nowait(session)
                writer.write(session.greeting)
                while (first := await _message(reader))[:1] != b"X":
                    await self._transaction(first, reader, writer)
        writer.close()

    async def _transaction(self, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """From the first message to the answer after which no transaction is open."""
        session = await self._idle.get()
        self.transactions += 1
        answered = asyncio.create_task(_carry_answers(session.reader, writer))
        try:
            message = first
            while True:
                session.writer.write(message)
                if message[:1] in (b"S", b"Q") and await answered:
                    return
                if answered.done():
                    answered = asyncio.create_task(_carry_answers(session.reader, writer))
                message = await _message(reader)
        finally:
            answered.cancel()
            self._idle.put_nowait(session)


async def _carry_answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Forward until the server is ready again, and return whether no transaction is open."""
    while True:
        answer = await _message(reader)
        writer.write(answer)
        if answer[:1] == b"Z":
            return answer == _READY


async def _message(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(5)
    return head + await reader.readexactly(struct.unpack(">I", head[1:])[0] - 4)


async def _is_welcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    while True:
        size, code = struct.unpack(">II", await reader.readexactly(8))
        if code not in _ENCRYPTION_REQUESTS:
            break
        writer.write(b"N")
    parameters = await reader.readexactly(size - 8)
    for name in parameters.rstrip(b"\0").decode().lower().split("\0")[::2]:
        if name not in _KEPT:
            text = f"SFATAL\0VFATAL\0C08P01\0Munsupported startup parameter: {name}\0\0".encode()
            writer.write(b"E" + struct.pack(">I", 4 + len(text)) + text)
            await writer.drain()
            return False
    return True
