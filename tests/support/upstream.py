"""An upstream whose every byte is scripted, and whose ledger is what tests judge by.

The ledger has three lists: requests that arrived whole, effects that they had, answers that were begun. An effect is
written down before the first byte of its answer, as a service commits before it replies. Every answer carries a nonce
of its own in `X-Nonce`, unless it is given as raw bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from enum import Enum

from tests.support.eventually import eventually
from tests.support.http import Headers, Message, field_of, read_chunked
from tests.support.relay import Listening, reset

_HEAD_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Received(Message):
    """A request that arrived whole. `number` counts them from 1; `connection` counts connections from 1."""

    number: int
    connection: int
    method: str
    target: bytes
    version: bytes
    headers: Headers
    body: bytes
    trailers: Headers


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer of which at least the first byte was about to be sent."""

    number: int
    nonce: str
    status: int
    body: bytes


class Framing(Enum):
    """How the end of a body is told."""

    LENGTH = "Content-Length"
    CHUNKED = "Transfer-Encoding: chunked, one chunk for each piece"
    CLOSE = "the end of the connection"
    NONE = "no framing field and no body"


class Ending(Enum):
    """What happens to the connection instead of, or after, the answer."""

    KEEP = "it stays open"
    CLOSE = "FIN"
    RESET = "RST"
    SILENCE = "it stays open, and not one more byte is sent"


@dataclass(frozen=True, slots=True)
class Answer:
    """What one request gets.

    `body` is bytes, or pieces with events between them that are waited for; `hold` is waited for before the effect is
    answered. `bytes_max` cuts the answer, head included, behind that many bytes and then does what `ending` says; 0
    means not a byte. `raw` replaces the whole answer. `echo` sends 101 and then whatever arrives.
    """

    status: int = 200
    reason: str = "OK"
    headers: tuple[tuple[str, str], ...] = (("Content-Type", "text/plain"),)
    body: bytes | tuple[bytes | asyncio.Event, ...] = b"done"
    framing: Framing = Framing.LENGTH
    interim: tuple[tuple[int, tuple[tuple[str, str], ...]], ...] = ()
    trailers: tuple[tuple[str, str], ...] = ()
    ending: Ending = Ending.KEEP
    hold: asyncio.Event | None = None
    bytes_max: int | None = None
    raw: bytes | None = None
    echo: bool = False
    effect: bool = True


Script = Answer | Callable[[Received], Answer]


class RecordingUpstream(Listening):
    """`async with RecordingUpstream() as upstream`: listens on `upstream.port`; see `on` for its answers."""

    def __init__(self, *, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1", port: int = 0) -> None:
        """`host` is an address of IPv4 or IPv6."""
        super().__init__(host, port, ssl=tls, limit=_HEAD_BYTES_MAX)
        self.requests: list[Received] = []
        self.effects: list[Received] = []
        self.answers: list[Answered] = []
        # After how long without a request a connection is closed; None: never.
        self.idle_seconds: float | None = None
        self._tls = tls
        self._scripts: defaultdict[bytes | None, deque[Script]] = defaultdict(deque)

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self._tls else 'http'}://{host}:{self.port}"

    def on(self, path: str | None, *scripts: Script) -> None:
        """Answer the next requests for this path so, one script each; the last one serves all that follow.

        `path` is the target up to its `?`; None is every path without scripts of its own.
        """
        self._scripts[path.encode() if path is not None else None] = deque(scripts)

    async def wait_for_requests(self, count: int, deadline_seconds: float = 10.0) -> None:
        await eventually(lambda: len(self.requests) >= count, deadline_seconds, f"{count} requests at the upstream")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int) -> None:
        try:
            # The peer may go at any byte; what did not arrive whole did not arrive.
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError, TimeoutError):
                goes_on = True
                while goes_on:
                    request = await self._read_request(reader, writer, connection)
                    goes_on = await self._answer(request, reader, writer)
        finally:
            writer.close()

    async def _read_request(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int
    ) -> Received:
        try:
            async with asyncio.timeout(self.idle_seconds):
                first = await reader.readexactly(1)
        except TimeoutError:
            # What came in time is served, also where this process was too busy to see it in time.
            async with asyncio.timeout(0):
                first = await reader.readexactly(1)
        head = (first + await reader.readuntil(b"\r\n\r\n"))[:-4]
        line, *fields = head.split(b"\r\n")
        method, target, version = line.split(b" ")
        headers = [field_of(field) for field in fields]
        lower = {name.lower(): value.lower() for name, value in headers}
        if lower.get(b"expect") == b"100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = b""
        trailers: Headers = []
        if b"transfer-encoding" in lower:
            body, complete, trailers = await read_chunked(reader)
            if not complete:
                raise ConnectionError("the request broke off")
        elif b"content-length" in lower:
            body = await reader.readexactly(int(lower[b"content-length"]))
        number = len(self.requests) + 1
        request = Received(number, connection, method.decode(), target, version, headers, body, trailers)
        self.requests.append(request)
        return request

    async def _answer(self, request: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        answer = self._next_answer(request)
        if answer.effect:
            self.effects.append(request)
        if answer.hold is not None:
            await answer.hold.wait()
        nonce = f"{self.port}-{request.number}"
        if answer.bytes_max != 0:
            self.answers.append(Answered(request.number, nonce, answer.status, _whole_body(answer)))
        left = answer.bytes_max
        async for part in _wire(answer, request, nonce):
            writer.write(part if left is None else part[:left])
            await writer.drain()
            left = left if left is None else max(0, left - len(part))
        if answer.echo:
            while part := await reader.read(_HEAD_BYTES_MAX):
                writer.write(part)
                await writer.drain()
            return False
        return await _finish(answer, request, reader, writer)

    def _next_answer(self, request: Received) -> Answer:
        path = request.target.split(b"?")[0]
        scripts = self._scripts.get(path) or self._scripts.get(None) or deque([Answer()])
        script = scripts.popleft() if len(scripts) > 1 else scripts[0]
        return script if isinstance(script, Answer) else script(request)


async def _finish(
    answer: Answer, request: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> bool:
    """Do with the connection what comes after the answer, and return whether it goes on."""
    ending = answer.ending
    if ending is Ending.KEEP and answer.framing is Framing.CLOSE and answer.raw is None:
        ending = Ending.CLOSE
    match ending:
        case Ending.KEEP:
            asked_to_close = [value.lower() for value in request.values("Connection")] == [b"close"]
            return not asked_to_close
        case Ending.SILENCE:
            await reader.read(-1)
            return False
        case Ending.CLOSE:
            writer.close()
            return False
        case Ending.RESET:
            reset(writer)
            return False


async def _wire(answer: Answer, request: Received, nonce: str) -> AsyncIterator[bytes]:
    if answer.raw is not None:
        yield answer.raw
        return
    for status, fields in answer.interim:
        yield _head(status, "Interim", fields)
    if answer.echo:
        yield _head(101, "Switching Protocols", (("Connection", "Upgrade"), ("Upgrade", "echo"), ("X-Nonce", nonce)))
        return
    fields = (*answer.headers, ("X-Nonce", nonce))
    body = _whole_body(answer)
    if answer.framing is Framing.LENGTH:
        fields = (*fields, ("Content-Length", str(len(body))))
    elif answer.framing is Framing.CHUNKED:
        fields = (*fields, ("Transfer-Encoding", "chunked"))
    yield _head(answer.status, answer.reason, fields)
    if request.method == "HEAD" or answer.framing is Framing.NONE:
        return
    chunked = answer.framing is Framing.CHUNKED
    for piece in (answer.body,) if isinstance(answer.body, bytes) else answer.body:
        if isinstance(piece, asyncio.Event):
            await piece.wait()
        elif piece:
            yield b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece
    if chunked:
        yield b"0\r\n" + _lines(answer.trailers) + b"\r\n"


def _head(status: int, reason: str, fields: tuple[tuple[str, str], ...]) -> bytes:
    return f"HTTP/1.1 {status} {reason}\r\n".encode() + _lines(fields) + b"\r\n"


def _lines(fields: tuple[tuple[str, str], ...]) -> bytes:
    return "".join(f"{name}: {value}\r\n" for name, value in fields).encode("latin-1")


def _whole_body(answer: Answer) -> bytes:
    if isinstance(answer.body, bytes):
        return answer.body
    return b"".join(piece for piece in answer.body if isinstance(piece, bytes))


@contextlib.asynccontextmanager
async def silent_tls() -> AsyncIterator[str]:
    """A service that accepts connections and never greets: a request to it is not sent yet, and may be for long."""
    done = asyncio.Event()

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await done.wait()
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        done.set()
        server.close()
        await server.wait_closed()
