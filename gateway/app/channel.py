"""What a supervisor and a worker say to each other, and how it gets there.

One stream between two processes of the same program, started by the same user: messages are pickled, each behind its
length, and whatever comes is trusted. The end of the stream is the end of the other one.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Self

from gateway.config import Config
from gateway.observe.exposition import Counted
from gateway.observe.status import Health

_LENGTH: Final = struct.Struct("!I")


@dataclass(frozen=True, slots=True)
class StartWorker:
    """The first message to a worker: what it is to be. Seats are descriptors that it has inherited."""

    number: int
    config: Config
    seats: Mapping[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class LookAfter:
    """To a worker: take the connections of these seats, and of no others."""

    seats: frozenset[int]


@dataclass(frozen=True, slots=True)
class Report:
    """To a worker: say what you have counted, and how you are."""


@dataclass(frozen=True, slots=True)
class Serving:
    """From a worker: it has started."""


@dataclass(frozen=True, slots=True)
class Reported:
    """From a worker: the answer to `Report`, and its last word when it ends in order."""

    numbers: Counted
    health: Health


@dataclass(frozen=True, slots=True)
class Failed:
    """From a worker: it cannot start, or must not go on, and why."""

    text: str


@dataclass(frozen=True, slots=True)
class SkipDelay:
    """To a worker: stop without `shutdown.delay`."""


ToWorker = LookAfter | Report | SkipDelay
FromWorker = Serving | Reported | Failed
Message = StartWorker | ToWorker | FromWorker


class Channel:
    """One end. Lives on one event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, sock: socket.socket) -> Self:
        """Over one of a pair of stream sockets, which becomes the channel's."""
        return cls(*await asyncio.open_unix_connection(sock=sock))

    def send(self, message: Message) -> None:
        """Say it. Nothing is heard of an end that is gone, or does not listen: it must be asked one thing at a time."""
        if self._writer.is_closing():
            # uvloop raises where asyncio says nothing.
            return
        data = pickle.dumps(message)
        self._writer.write(_LENGTH.pack(len(data)) + data)

    async def receive(self) -> Message | None:
        """What comes next; None when the other one is gone."""
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            message: Message = pickle.loads(await self._reader.readexactly(length))  # noqa: S301 - see above
        except (asyncio.IncompleteReadError, OSError):
            return None
        return message

    async def close(self) -> None:
        """What was said still goes out, if the other one takes it."""
        with suppress(OSError):
            self._writer.close()
            await self._writer.wait_closed()
