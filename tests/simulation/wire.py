"""The connection between a client and a gateway: a request on its way in, an answer on its way out, and who is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from gateway.core.identity.caller import hop_from
from gateway.core.message import RequestHead, ResponseHead
from gateway.http.passthrough import ClientTunnel
from gateway.protect.reply import BodyCut, Cut, Reply, RequestCut
from tests.simulation.faults import Weather
from tests.simulation.history import CLIENT_ADDRESS, Answer, Call
from tests.simulation.loop import Process, running_process


class Connection:
    """One request and its answer. The client's half lives in the world, the other in the gateway's process."""

    hop = hop_from(CLIENT_ADDRESS, is_secure=False)

    def __init__(self, weather: Weather, call: Call, head: RequestHead) -> None:
        self._loop, self._weather = weather.loop, weather
        self.call, self.head = call, head
        self.ended: asyncio.Future[None] = weather.loop.create_future()
        self.is_gone = False
        self._on_gone: Callable[[], object] | None = None
        self._pieces: list[bytes] = []
        self._arrives = 0.0

    # -- the client's half --------------------------------------------------------------------------------------------

    def hang_up(self, process: Process) -> None:
        """The client has gone; the gateway hears of it a moment later."""
        if not self.ended.done():
            self.ended.set_result(None)
        process.deliver(self._weather.hop_seconds(), self._hear_gone)

    def break_off(self) -> None:
        """The client finds the connection broken: no answer, or less than the whole of it."""
        if self.ended.done():
            return
        if self.call.answer is not None:
            self.call.answer.body = b"".join(self._pieces)
            self.call.answer.at = self._loop.time()
        self.ended.set_result(None)

    def _take_head(self, answer: Answer, _length: int | None) -> None:
        if not self.ended.done():
            self.call.answer = answer

    def _take_piece(self, data: bytes) -> None:
        if not self.ended.done():
            self._pieces.append(data)

    def _take_end(self) -> None:
        if not self.ended.done() and self.call.answer is not None:
            self.call.answer.is_whole = True
            self.break_off()

    # -- the gateway's half -------------------------------------------------------------------------------------------

    def _hear_gone(self) -> None:
        self.is_gone = True
        if self._on_gone is not None:
            self._on_gone()

    async def write(self, reply: Reply) -> None:
        """As the edge does: the head, the body as it comes, and a visible break where it does not come whole."""
        fields = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in reply.headers]
        verdict = None if reply.verdict is None else reply.verdict.value
        if verdict is not None:
            fields.append(("Idempotency-Status", verdict))
        answer = Answer(reply.status, verdict, tuple(fields), b"", is_whole=False, at=self._loop.time())
        self._deliver(self._take_head, answer, len(reply.body) if isinstance(reply.body, bytes) else reply.length)
        if isinstance(reply.body, bytes):
            self._deliver(self._take_piece, reply.body)
            self._deliver(self._take_end)
            return
        stream = reply.body
        self.on_gone(stream.abort)
        left = reply.length
        try:
            while data := await stream.read():
                self._deliver(self._take_piece, data)
                if left is not None:
                    left -= len(data)
            self._deliver(self.break_off if left else self._take_end)
        except BodyCut:
            self._deliver(self.break_off)
        finally:
            self.on_gone(None)
            stream.abort()

    def _deliver(self, callback: Callable[..., None], *arguments: object) -> None:
        # What is sent first comes first.
        self._arrives = max(self._arrives + 1 / 1024, self._loop.time() + self._weather.hop_seconds())
        self._loop.world.deliver(self._arrives - self._loop.time(), callback, *arguments)

    # -- `Client`, for a request that is passed through ---------------------------------------------------------------

    @property
    def takes_interim(self) -> bool:
        return False

    @property
    def task(self) -> asyncio.Task[None] | None:
        return asyncio.current_task()

    def send_interim(self, head: ResponseHead) -> None:
        """The service says none."""

    def on_gone(self, callback: Callable[[], object] | None) -> None:
        self._on_gone = callback
        if callback is not None and self.is_gone:
            callback()

    def switch(self, head: ResponseHead) -> ClientTunnel:
        raise NotImplementedError("the service never leaves HTTP")


class Body:
    """A request body that comes in two pieces, or not to its end. Satisfies `RequestBody`."""

    def __init__(self, weather: Weather, content: bytes, *, cut_at: int, is_cut: bool) -> None:
        """The first piece has `cut_at` bytes."""
        self._weather, self._content = weather, content
        self._cut_at, self._is_cut = cut_at, is_cut
        self.length: int | None = len(content)

    def whole(self) -> bytes | None:
        return None

    async def stream(self) -> AsyncIterator[bytes]:
        if self._cut_at:
            yield self._content[: self._cut_at]
        await running_process().take_turn(self._weather.hop_seconds())
        if self._is_cut:
            raise RequestCut(Cut.GONE)
        if self._cut_at < len(self._content):
            yield self._content[self._cut_at :]

    def crowd_out(self) -> bool:
        """Nobody is as slow as that here."""
        return False

    def close(self) -> None:
        """Nothing is held."""
