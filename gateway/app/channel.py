"""The messages between a supervisor and a worker, and the channel that carries them.

One stream between two processes of the same program and user: messages are pickled, each behind its length, and
trusted. The end of the stream means that the peer is gone.
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

from gateway.app.reload import Report as ReloadResult
from gateway.config import Config
from gateway.observe.metrics import Counted
from gateway.observe.status import Health

_LENGTH: Final = struct.Struct("!I")


@dataclass(frozen=True, slots=True)
class StartWorker:
    """To a worker, its first message. `seats` are descriptors that it has inherited."""

    number: int
    config: Config
    seats: Mapping[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class AssignSeats:
    """To a worker: accept connections on these seats, and on no others."""

    seats: frozenset[int]


@dataclass(frozen=True, slots=True)
class AskReport:
    """To a worker: report your counts and your health."""


@dataclass(frozen=True, slots=True)
class Serving:
    """From a worker: it serves."""


@dataclass(frozen=True, slots=True)
class Report:
    """From a worker: the reply to `AskReport`, and its last message when it stops in order."""

    numbers: Counted
    health: Health


@dataclass(frozen=True, slots=True)
class Failed:
    """From a worker: why it cannot start, or must not go on."""

    text: str


@dataclass(frozen=True, slots=True)
class SkipDelay:
    """To a worker: stop without `shutdown.delay`."""


@dataclass(frozen=True, slots=True)
class PrepareConfig:
    """To a worker: start what serves by this configuration, and reply with `ConfigDone`."""

    config: Config


@dataclass(frozen=True, slots=True)
class SwitchConfig:
    """To a worker: put in force what was prepared, and reply with `ConfigDone`."""


@dataclass(frozen=True, slots=True)
class DropConfig:
    """To a worker: give up what was prepared, or is about to be."""


@dataclass(frozen=True, slots=True)
class ConfigDone:
    """From a worker: the reply, in the order of what it was told; with why it refuses."""

    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class AskReload:
    """From a worker: an operator wants a reload. The reply is `ReloadReport`."""


@dataclass(frozen=True, slots=True)
class ReloadReport:
    """To a worker: what came of the reload that it asked for."""

    report: ReloadResult


ToWorker = AssignSeats | AskReport | SkipDelay | PrepareConfig | SwitchConfig | DropConfig | ReloadReport
FromWorker = Serving | Report | Failed | ConfigDone | AskReload
Message = StartWorker | ToWorker | FromWorker


class Channel:
    """One end. Lives on one event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, sock: socket.socket) -> Self:
        """A channel over one of a pair of stream sockets, which it owns from then on."""
        return cls(*await asyncio.open_unix_connection(sock=sock))

    def send(self, message: Message) -> None:
        """Queue a message. Never waits and never fails: at most one `AskReport` may be pending at a time."""
        if self._writer.is_closing():
            # uvloop would raise here; asyncio would not.
            return
        data = pickle.dumps(message)
        self._writer.write(_LENGTH.pack(len(data)) + data)

    async def receive(self) -> Message | None:
        """The next message; None when the peer is gone."""
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            message: Message = pickle.loads(await self._reader.readexactly(length))  # noqa: S301 - see above
        except (asyncio.IncompleteReadError, OSError):
            return None
        return message

    async def close(self) -> None:
        """Send what is queued, if the peer still reads, and close."""
        with suppress(OSError):
            self._writer.close()
            await self._writer.wait_closed()
