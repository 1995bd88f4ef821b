"""What lies between a caller and a gateway, and in front of a service that loses responses."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Self

from tests.support.house import House, house, sqlite_store
from tests.support.relay import reset
from tests.support.upstream import Answer, Ending, Received

PATH: Final = "/v1/charges"
_AFTER: Final = b"Retry-After: 1\r\n"
_JSON: Final = (("Content-Type", "application/json"),)
_PROBE: Final = {"path": "/operations/{operation_id}", "done": [{"status": [200]}]}


class Border:
    """`async with Border(port) as border`: callers connect to `border.port`. It says how long they wait, and may lose.

    `after` is what stands in for the second that a gateway asks a caller to wait. `told` is set with the first response
    that has it. The next `lost` responses end in a reset before their first byte.
    """

    def __init__(self, target_port: int, port: int = 0) -> None:
        self.port = port
        self.after = 0
        self.told = asyncio.Event()
        self.lost = 0
        self._target_port = target_port
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._carry(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target, onwards = await asyncio.open_connection("127.0.0.1", self._target_port)

        async def back() -> None:
            while chunk := await target.read(1 << 16):
                if self.lost:
                    self.lost -= 1
                    reset(writer)
                    return
                writer.write(chunk.replace(_AFTER, b"Retry-After: %d\r\n" % self.after))
                await writer.drain()
                if _AFTER in chunk:
                    self.told.set()
            writer.close()

        answers = asyncio.create_task(back())
        try:
            with contextlib.suppress(ConnectionError):
                while chunk := await reader.read(1 << 16):
                    onwards.write(chunk)
                    await onwards.drain()
        finally:
            answers.cancel()
            await asyncio.gather(answers, return_exceptions=True)
            for end in (writer, onwards):
                end.close()


@dataclass
class Forgetful:
    """A service that executes every request, and of which every third response is lost, the first one too."""

    done: dict[bytes, Received] = field(default_factory=dict)
    number: int = 0

    def charge(self, received: Received) -> Answer:
        """Charge, whoever asks; only the first time with an operation may be right."""
        if received.method == "GET":
            return Answer(404, effect=False)
        (operation,) = received.values("Idempotency-Operation")
        assert operation not in self.done, "a second effect"
        self.done[operation] = received
        self.number += 1
        if self.number % 3 == 1:
            return Answer(201, bytes_max=0, ending=Ending.CLOSE)
        return Answer(201, headers=_JSON, body=b'{"id":"ch_%d"}' % self.number)

    def find(self, received: Received) -> Answer:
        """What a probe is told."""
        found = received.target.rpartition(b"/")[2] in self.done
        return Answer(200 if found else 404, headers=_JSON, body=b'{"found":true}', effect=False)


def charges(home: House) -> list[bytes]:
    """The operations that the service was sent, one for each request."""
    posts = [each for each in home.upstream.requests if each.method == "POST"]
    return [value for each in posts for value in each.values("Idempotency-Operation")]


@asynccontextmanager
async def api(
    directory: Path, recovery: Literal["hold", "probe"], *, port: int = 0, **changes: Any
) -> AsyncIterator[tuple[House, Border]]:
    """A gateway in front of such a service, and the border before it, on this port. Doubt is held, or asked about."""
    service = Forgetful()
    route = {
        "name": "charge",
        "match": {"path": PATH},
        "key": {"header": "Idempotency-Key", "required": True},
        "scope": "shared",
        "outcome": {"preset": "standard"},
        "recovery": recovery if recovery == "hold" else {"probe": _PROBE},
        **changes,
    }
    async with house(sqlite_store(directory), directory, routes=[route]) as home, Border(home.port, port) as border:
        home.upstream.on(None, service.find)
        home.upstream.on(PATH, service.charge)
        yield home, border
