"""What lies between two regions: gateways of one reach those of another over a link that may be cut, late, or lossy."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gateway.config import delivery as asked
from gateway.core.identity.caller import hop_from
from gateway.core.message import IndexedHeaders, RequestHead, ResponseHead
from gateway.upstream import NotSent, SentNothing, Unknown
from tests.simulation.faults import Weather
from tests.simulation.history import Answer, Call, Forward
from tests.simulation.loop import Process, SimulatedLoop
from tests.simulation.upstream import Exchange, WireClient, call_of
from tests.simulation.wire import Body, Connection

LINK = "link"
"""Whose its faults are: they excuse no gateway."""
_LATE_SECONDS_MAX = 4.0


@dataclass(slots=True)
class Way:
    """One direction. `cuts` counts, so that what is under way notices one."""

    loop: SimulatedLoop
    cut_until: float = 0.0
    cuts: int = 0

    @property
    def is_cut(self) -> bool:
        return self.loop.time() < self.cut_until

    def cut(self, seconds: float) -> None:
        self.cuts += 1
        self.cut_until = max(self.cut_until, self.loop.time() + seconds)


@dataclass(slots=True)
class Link:
    """How gateways elsewhere reach those of the region `home`, its listeners."""

    home: str
    there: Way
    back: Way
    listeners: Sequence[Any] = ()

    @property
    def listening(self) -> list[Any]:
        return [listener for listener in self.listeners if listener.is_listening]


class LinkClient(WireClient):
    """The client of another region's gateways, of one gateway process."""

    def __init__(self, link: Link, process: Process, weather: Weather, settings: asked.Upstream) -> None:
        super().__init__(process, weather, settings)
        self._link = link

    async def _connect(self, request: RequestHead) -> NotSent | None:
        refusal = await super()._connect(request) or await self._shake_hands()
        if refusal is not None:
            self._note(request)
        return refusal

    async def _shake_hands(self) -> NotSent | None:
        """Where a connection is idle nobody notices a link that is cut."""
        dice = self._weather.dice
        if (self._link.there.is_cut or self._link.back.is_cut) and dice.random() < 0.6:
            if dice.random() < 0.5:
                return NotSent(SentNothing.UNREACHABLE, "no route to host")
            await asyncio.sleep(self.settings.connect_timeout)
            return NotSent(SentNothing.CONNECT_TIMEOUT, "no connection in time")
        return None if self._link.listening else NotSent(SentNothing.REFUSED, "connection refused")

    def _note(self, request: RequestHead, sent: float | None = None) -> Forward:
        fields = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers)
        forward = Forward(call_of(fields), self._gateway, self._link.home, sent)
        self._history.forwards.append(forward)
        return forward

    def _send(self, request: RequestHead, content: bytes, exchange: Exchange, *, protected: bool) -> None:
        link, weather = self._link, self._weather
        forward = self._note(request, self._loop.time())
        assert forward.call is not None
        call = self._history.calls[forward.call]
        connection = _Inbound(weather, call, request, link=link, exchange=exchange, forward=forward)
        if link.there.is_cut or weather.happens("link_lost", LINK):
            connection.lose()
            return
        cut_at = weather.dice.randrange(len(content) + 1)
        body = Body(weather, content, cut_at=cut_at, is_cut=weather.happens("link_request_cut", LINK))
        self._loop.world.deliver(_delay_seconds(weather), self._arrive, connection, body, exchange, link.there.cuts)

    def _arrive(self, connection: _Inbound, body: Body, exchange: Exchange, cuts: int) -> None:
        """At the other end: whichever gateway of the home gets it."""
        listening = self._link.listening
        if self._link.there.cuts != cuts:
            connection.lose()
        elif not listening:
            connection.break_off()
        elif (process := self._weather.dice.choice(listening).connect(connection, body)) is not None:
            exchange.on_abort = partial(connection.hang_up, process)


class _Inbound(Connection):
    """A request of another region at a gateway of its home, and the reply on its way back over the link."""

    hop = hop_from("198.51.100.1", is_secure=True)

    def __init__(
        self, weather: Weather, call: Call, head: RequestHead, *, link: Link, exchange: Exchange, forward: Forward
    ) -> None:
        # When it reached and left a gateway is about the one that its client called.
        super().__init__(weather, replace(call), head)
        self._link, self._exchange, self._forward = link, exchange, forward
        self._is_lost = False
        # How many pieces of the reply get through.
        is_cut = weather.happens("link_response_cut", LINK)
        self._left = weather.dice.randrange(3) if is_cut else math.inf
        self._over_at = 0.0

    def lose(self) -> None:
        """Nothing more comes of it. Some notice."""
        self._is_lost = True
        if self._weather.dice.random() < 0.5:
            self._send_over(self._exchange.fail, Unknown.RESET, "the link was cut")

    def break_off(self) -> None:
        self._carry(self._exchange.fail, Unknown.CLOSED, "closed")

    def _take_head(self, answer: Answer, length: int | None) -> None:
        headers = tuple((name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers)
        self._carry(self._arrive_head, ResponseHead(answer.status, b"", IndexedHeaders(headers)), length)

    def _arrive_head(self, head: ResponseHead, length: int | None) -> None:
        if not self._exchange.is_over:
            self._forward.answered = self._loop.time()
            self._exchange.head(head, length)

    def _take_piece(self, data: bytes) -> None:
        self._carry(self._exchange.data, data)

    def _take_end(self) -> None:
        self._carry(self._exchange.end)

    def _carry(self, callback: Callable[..., None], *arguments: object) -> None:
        if self._is_lost or self._exchange.is_over:
            return
        if self._link.back.is_cut or self._left <= 0:
            self.lose()
            return
        self._left -= 1
        self._send_over(callback, *arguments)

    def _send_over(self, callback: Callable[..., None], *arguments: object) -> None:
        # What is late holds up what comes after it.
        now = self._loop.time()
        self._over_at = max(self._over_at, now + _delay_seconds(self._weather))
        self._exchange.deliver(self._over_at - now, callback, *arguments)


def _delay_seconds(weather: Weather) -> float:
    """One way, of which most are quick."""
    late = weather.dice.uniform(0.1, _LATE_SECONDS_MAX) if weather.happens("link_late", LINK) else 0.0
    return weather.hop_seconds() + late
