"""A service whose backlog is full: a connection to it is neither refused nor made, until `make_room`."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Final

_SYN_SENT: Final = "02"
SECONDS_MAX: Final = 20.0


class FullService(ExitStack):
    """A context. Listens on `port` of loopback from the start."""

    def __init__(self) -> None:
        super().__init__()
        self._listener = self.enter_context(socket.socket())
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(0)
        self._listener.settimeout(SECONDS_MAX)
        self.port: int = self._listener.getsockname()[1]
        # Fills what is not accepted.
        self.enter_context(socket.create_connection(("127.0.0.1", self.port)))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connecting(self) -> set[str]:
        """The ends of the connections to it that are being made, by the table of the system."""
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return {line[1] for line in lines if line[2].endswith(f":{self.port:04X}") and line[3] == _SYN_SENT}

    def make_room(self) -> None:
        """Let the connections be made that are tried. The kernel of a client tries again after a second."""
        self._listener.accept()[0].close()

    def accept(self) -> socket.socket:
        """The next connection. Blocks."""
        connection, _ = self._listener.accept()
        connection.settimeout(SECONDS_MAX)
        return connection


def answer(connection: socket.socket, body: bytes) -> None:
    """Read a request with this body, and answer it. Blocks."""
    arrived = b""
    while not arrived.endswith(body) and (data := connection.recv(64 * 1024)):
        arrived += data
    connection.sendall(b"HTTP/1.1 201 Created\r\nContent-Length: 4\r\n\r\ndone")
