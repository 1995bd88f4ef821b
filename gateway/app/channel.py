"""Calls between a supervisor and a worker.

Each calls methods of the other by name, in order, over one stream between two processes of the same program and user:
messages are pickled, each behind its length, and trusted. The end of the stream means that the peer is gone.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
from contextlib import suppress
from functools import partial
from inspect import isawaitable
from itertools import count
from typing import Any, Final, Self

_LENGTH: Final = struct.Struct("!I")

Message = tuple[int, str, tuple[Any, ...]]
"""The number of a call, the method and its arguments. A result has no method; a call without a number wants none."""


class Channel:
    """One end. Lives on one event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = count(1)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        # The loop keeps no task alive that nobody holds.
        self._answering: set[asyncio.Future[Any]] = set()
        self.is_gone = False

    @classmethod
    async def open(cls, sock: socket.socket) -> Self:
        """A channel over one of a pair of stream sockets, which it owns from then on."""
        return cls(*await asyncio.open_unix_connection(sock=sock))

    def call(self, method: str, *arguments: object) -> None:
        """Call the peer. Never waits and never fails, and nothing is known of what comes of it."""
        self._send((0, method, arguments))

    def ask(self, method: str, *arguments: object) -> asyncio.Future[Any]:
        """The future result of a call; None when the peer is gone."""
        result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.is_gone:
            result.set_result(None)
        else:
            number = next(self._numbers)
            self._asked[number] = result
            self._send((number, method, arguments))
        return result

    async def receive(self) -> Message | None:
        """The next message; None when the peer is gone."""
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            message: Message = pickle.loads(await self._reader.readexactly(length))  # noqa: S301 - see above
        except (asyncio.IncompleteReadError, OSError):
            return None
        return message

    async def serve(self, receiver: object) -> None:
        """Call this receiver as the peer says, until that is gone.

        A call that is a coroutine ends before the next one begins; one that returns a future goes on by itself.
        """
        while (message := await self.receive()) is not None:
            number, method, arguments = message
            if not method:
                result = self._asked.pop(number)
                if not result.done():
                    result.set_result(*arguments)
                continue
            found = getattr(receiver, method)(*arguments)
            if isinstance(found, asyncio.Future):
                self._answering.add(found)
                found.add_done_callback(partial(self._answered, number))
            else:
                self._answer(number, await found if isawaitable(found) else found)
        self.is_gone = True
        for result in self._asked.values():
            if not result.done():
                result.set_result(None)

    async def close(self) -> None:
        """Send what is queued, if the peer still reads, and close."""
        with suppress(OSError):
            self._writer.close()
            await self._writer.wait_closed()

    def _answered(self, number: int, found: asyncio.Future[Any]) -> None:
        self._answering.discard(found)
        if not found.cancelled():
            self._answer(number, found.result())

    def _answer(self, number: int, result: object) -> None:
        if number:
            self._send((number, "", (result,)))

    def _send(self, message: Message) -> None:
        if self._writer.is_closing():
            # uvloop would raise here; asyncio would not.
            return
        data = pickle.dumps(message)
        self._writer.write(_LENGTH.pack(len(data)) + data)
