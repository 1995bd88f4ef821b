"""A faulty wire: a TCP relay on loopback that forwards faithfully until it is told not to.

A `Course` is one direction, and applies to every connection. Its rule fires once per connection, after an exact number
of bytes or right behind a byte pattern: what came before is forwarded, nothing after it is. Its ambush fires once in
all, at the N-th chunk of whichever connection, of which nothing is forwarded.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from dataclasses import dataclass
from enum import Enum
from typing import Any, Self

_CHUNK_BYTES = 65_536


class Fault(Enum):
    """What a rule does to the connection."""

    SWALLOW = "go on reading and forward nothing: a silent loss"
    RESET = "RST to both ends"
    CLOSE = "FIN to both ends"


@dataclass(frozen=True, slots=True)
class Rule:
    """`after` this many bytes of a connection's direction, or right behind this pattern."""

    after: int | bytes
    fault: Fault


class Course:
    """One direction of a relay. What is set here holds for all connections from their next chunk on."""

    def __init__(self) -> None:
        self.rule: Rule | None = None
        self.delay_seconds = 0.0
        self.forwarded_bytes = 0
        self.fired = asyncio.Event()
        self._open = asyncio.Event()
        self._open.set()
        self._ambush: Fault | None = None
        self._chunks_left = 0

    def hold(self) -> None:
        """Keep every chunk until `release`."""
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    def ambush(self, number: int, fault: Fault) -> None:
        """Do this instead of forwarding the `number`-th chunk from now on; clears `fired`."""
        self.fired.clear()
        self._ambush, self._chunks_left = fault, number

    def stand_down(self) -> bool:
        """Whether the ambush fired. If it did not, it never will."""
        self._ambush = None
        return self.fired.is_set()

    def spring(self) -> Fault | None:
        """What is done to the chunk that is here, if it is the one."""
        if self._ambush is None:
            return None
        self._chunks_left -= 1
        if self._chunks_left:
            return None
        fault, self._ambush = self._ambush, None
        self.fired.set()
        return fault

    async def passes(self) -> None:
        await asyncio.sleep(self.delay_seconds)
        await self._open.wait()


@dataclass(eq=False, slots=True)
class _Connection:
    """The two ends of one relayed connection."""

    client: asyncio.StreamWriter
    target: asyncio.StreamWriter | None = None

    def ends(self) -> list[asyncio.StreamWriter]:
        return [end for end in (self.client, self.target) if end is not None]


class Listening:
    """A context: a server whose connections are tasks, which end with it."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0, **how: Any) -> None:
        self.host, self.port, self.connections = host, port, 0
        self._how = how
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.refuse()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def listen(self) -> None:
        """Accept connections, after `refuse` on the same port again."""
        self._server = await asyncio.start_server(self._accept, self.host, self.port, **self._how)
        self.port = self._server.sockets[0].getsockname()[1]

    def refuse(self) -> None:
        """Stop listening: new connections are refused, those that are open go on."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.create_task(self._serve(reader, writer, self.connections))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int) -> None:
        raise NotImplementedError


class Relay(Listening):
    """`async with Relay(target_port) as relay`: connect to `relay.port` instead of the target's."""

    def __init__(self, target_port: int) -> None:
        super().__init__()
        self.to_target = Course()
        self.to_client = Course()
        # New connections are accepted, and that is all that ever happens to them.
        self.black_hole = False
        # Of connections from now on.
        self.target_port = target_port
        self._live: set[_Connection] = set()

    async def __aexit__(self, *_: object) -> None:
        self.refuse()
        self.cut()
        await super().__aexit__()

    def cut(self) -> None:
        """Reset every open connection now."""
        for connection in list(self._live):
            _end(connection, Fault.RESET)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _: int) -> None:
        connection = _Connection(writer)
        self._live.add(connection)
        try:
            if self.black_hole:
                await asyncio.Event().wait()
            with contextlib.suppress(ConnectionError):
                target, connection.target = await asyncio.open_connection("127.0.0.1", self.target_port)
                async with asyncio.TaskGroup() as group:
                    group.create_task(_carry(reader, connection.target, self.to_target, connection))
                    group.create_task(_carry(target, writer, self.to_client, connection))
        finally:
            self._live.discard(connection)
            for end in connection.ends():
                end.close()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, course: Course, ends: _Connection) -> None:
    """Forward one direction to its end, or to the point where its rule fires."""
    seen = b""
    count = 0
    try:
        while chunk := await reader.read(_CHUNK_BYTES):
            await course.passes()
            if (fault := course.spring()) is not None:
                await _fire(fault, reader, ends)
                return
            rule = course.rule
            allowed = _allowed(rule, count, seen, chunk) if rule is not None else None
            part = chunk[:allowed]
            writer.write(part)
            await writer.drain()
            course.forwarded_bytes += len(part)
            count += len(chunk)
            if rule is not None and allowed is not None:
                course.fired.set()
                await _fire(rule.fault, reader, ends)
                return
            # The tail in which a pattern may have begun.
            seen = (seen + chunk)[-_CHUNK_BYTES:]
        writer.write_eof()
    except (OSError, RuntimeError):
        # One end is gone, which uvloop tells in its own way; the other one learns it as well.
        _end(ends, Fault.RESET)


def _allowed(rule: Rule, count: int, seen: bytes, chunk: bytes) -> int | None:
    """How many bytes of the chunk go on before the rule fires; None when it does not fire in this chunk."""
    if isinstance(rule.after, int):
        return max(0, rule.after - count) if count + len(chunk) >= rule.after else None
    start = max(0, len(seen) - len(rule.after) + 1)
    found = (seen[start:] + chunk).find(rule.after)
    return None if found < 0 else max(0, start + found + len(rule.after) - len(seen))


async def _fire(fault: Fault, reader: asyncio.StreamReader, ends: _Connection) -> None:
    if fault is Fault.SWALLOW:
        while await reader.read(_CHUNK_BYTES):
            pass
    else:
        _end(ends, fault)


def _end(connection: _Connection, fault: Fault) -> None:
    for end in connection.ends():
        if fault is Fault.RESET:
            reset(end)
        else:
            end.close()


def reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST: what was sent and not read is lost, and the peer's next read fails."""
    raw: socket.socket | None = writer.get_extra_info("socket")
    if raw is not None and not writer.transport.is_closing():
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
