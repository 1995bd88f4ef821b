"""HTTP/1.1 messages on a connection, told apart by `Content-Length` alone: as little work as can be done."""

from __future__ import annotations

import asyncio
from typing import cast

_END = b"\r\n\r\n"
_LENGTH = b"\ncontent-length:"


class Messages(asyncio.Protocol):
    """Calls `message_arrived` with the head of each message once all of its body is there."""

    transport: asyncio.Transport
    _held = b""
    _head = b""
    _left = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        while data:
            if self._left:
                self._left -= len(data)
                if self._left > 0:
                    return
                data = data[len(data) + self._left :] if self._left else b""
                self._left = 0
                self.message_arrived(self._head)
                continue
            if self._held:
                data = self._held + data
                self._held = b""
            end = data.find(_END)
            if end < 0:
                self._held = data
                return
            self._head = data[:end]
            found = self._head.lower().find(_LENGTH)
            self._left = int(self._head[found + len(_LENGTH) :].split(b"\r\n", 1)[0]) if found > 0 else 0
            data = data[end + len(_END) :]
            if not self._left:
                self.message_arrived(self._head)

    def message_arrived(self, head: bytes) -> None:
        raise NotImplementedError
