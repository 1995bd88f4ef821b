"""The socket in `state_dir` by which commands reach a gateway of this host, and both its ends.

A command is a word on a line, its response a JSON document on a line; what they mean is the gateway's. Whoever may
enter the directory may ask.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

_LOG = logging.getLogger("gateway")

_DIRECTORY: Final = "control"
_COMMAND_BYTES_MAX: Final = 1024
# For a client to send its command, and to take the response.
_COMMAND_SECONDS: Final = 5.0
_RESPONSE_BYTES_MAX: Final = 16 * 1024 * 1024
# Longer than a reload takes that waits for its workers and the store, and for one before it.
_PATIENCE_SECONDS: Final = 90.0


class NotReached(Exception):
    """No gateway with this `state_dir` answers on its socket."""


class ControlSocket:
    """The gateway's end: `open` and `close` it. `respond` gets each command."""

    def __init__(self, state_dir: Path, respond: Callable[[str], Awaitable[dict[str, Any]]]) -> None:
        self._place = state_dir / _DIRECTORY / f"{uuid4().hex[:12]}.sock"
        self._respond = respond
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Listen; without the socket, the gateway serves all the same."""
        try:
            self._place.parent.mkdir(mode=0o700, exist_ok=True)
            await asyncio.to_thread(_drop_dead, self._place.parent)
            with _short(self._place) as place:
                self._server = await asyncio.start_unix_server(self._converse, place, limit=_COMMAND_BYTES_MAX)
            self._place.chmod(0o600)
        except OSError as error:
            _LOG.warning("commands cannot reach this gateway, SIGHUP can: %s: %s", self._place, error.strerror)

    def close(self) -> None:
        """Listen no more. Safe to repeat."""
        if self._server is not None:
            self._server.close()
            with suppress(OSError):
                self._place.unlink()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_COMMAND_SECONDS):
                command = (await reader.readuntil(b"\n")).strip().decode()
            writer.write(json.dumps(await self._respond(command)).encode() + b"\n")
            async with asyncio.timeout(_COMMAND_SECONDS):
                await writer.drain()
        except (OSError, ValueError, EOFError, asyncio.LimitOverrunError):
            # It left, or sent no command in time.
            pass
        finally:
            writer.close()


async def ask_all(state_dir: Path, command: str) -> list[dict[str, Any]]:
    """What each gateway of this `state_dir` responds to a command. Raises `NotReached`."""
    try:
        places = sorted((state_dir / _DIRECTORY).glob("*.sock"))
    except OSError as error:
        raise NotReached(f"{state_dir}: {error.strerror}") from error
    found: list[dict[str, Any]] = []
    why = "no gateway runs with it, or this is another user than its"
    for place in places:
        try:
            found.append(await _ask(place, command))
        except (ConnectionRefusedError, FileNotFoundError):
            # Of a gateway that was killed.
            continue
        except (OSError, ValueError, EOFError, TimeoutError) as error:
            why = f"{place}: {getattr(error, 'strerror', None) or 'no report came'}; see its log"
            raise NotReached(f"the gateway could not be reached through {why}") from error
    if not found:
        raise NotReached(f"no gateway could be reached through state_dir {state_dir}: {why}")
    return found


async def _ask(place: Path, command: str) -> dict[str, Any]:
    async with asyncio.timeout(_PATIENCE_SECONDS):
        with _short(place) as short:
            reader, writer = await asyncio.open_unix_connection(short, limit=_RESPONSE_BYTES_MAX)
        try:
            writer.write(command.encode() + b"\n")
            document: dict[str, Any] = json.loads(await reader.readuntil(b"\n"))
            return document
        finally:
            writer.close()


@contextmanager
def _short(place: Path) -> Iterator[str]:
    """A path for the kernel, which takes 107 bytes for a socket (unix(7)), however long the directory's is."""
    directory = os.open(place.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{place.name}"
    finally:
        os.close(directory)


def _drop_dead(directory: Path) -> None:
    """Remove the sockets of gateways that were killed."""
    for place in directory.glob("*.sock"):
        with socket.socket(socket.AF_UNIX) as probe, suppress(OSError), _short(place) as short:
            probe.settimeout(1.0)
            try:
                probe.connect(short)
            except ConnectionRefusedError:
                place.unlink(missing_ok=True)
