"""The upstream of a run: a service that keeps a journal of its own, behind a network that refuses, resets and cuts."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from hashlib import sha256

from gateway.config import delivery as asked
from gateway.core.message import Headers, IndexedHeaders, RequestHead, ResponseHead
from gateway.upstream import (
    Framing,
    Lost,
    NotSent,
    OutboundBody,
    SentNothing,
    Unknown,
    UpstreamResponse,
)
from gateway.upstream.connection import ResponseReceiver, Sweep
from tests.simulation.faults import REQUEST_LATE_SECONDS_MAX, Weather
from tests.simulation.history import Fields, Sent
from tests.simulation.loop import Process, SimulatedLoop

# The client's call on whose behalf something is done. Tasks inherit it.
current_call: ContextVar[int | None] = ContextVar("call", default=None)

RESPONSE_BYTES_MAX = 1024
"""What the routes of a run keep; the service sometimes says more."""


@dataclass(frozen=True, slots=True)
class Manner:
    """How the service treats one request: whether it takes effect, what it says, and how that travels."""

    has_effect: bool
    status: int
    seconds: float
    headers: Headers = ()
    is_long: bool = False
    is_stream: bool = False
    cut: int | None = None
    is_reset: bool = False
    nonce: str | None = None
    """That of an answer given before, to be given again."""


class Service:
    """The service itself, and its ledger."""

    def __init__(self, weather: Weather, response_timeout: float, *, is_varied: bool) -> None:
        """`is_varied`: without faults it says more than that all went well, and on one route works long."""
        self._history, self._weather = weather.history, weather
        self._is_varied = is_varied
        self._heard: dict[tuple[str, str], list[Sent]] = defaultdict(list)
        self.response_timeout_seconds = response_timeout

    def manner(self, sent: Sent) -> Manner:
        """Decided when the request is whole."""
        if sent.method == "GET":
            return self._report(sent)
        known = self._known(sent) if sent.route == "pay" else None
        self._heard[sent.route, sent.key].append(sent)
        return self._draw(sent) if known is None else known

    def _report(self, asked: Sent) -> Manner:
        """What became of an operation: done, never heard of, or not known yet."""
        operation_id = asked.target.partition("operation=")[2]
        heard = [one for one in self._history.sent if one.operation_id == operation_id and one.received is not None]
        done = [one for one in heard if one.effect is not None]
        if done:
            return Manner(False, 200, 0.001, nonce=done[-1].nonce)
        return Manner(False, 404 if all(one.is_closed for one in heard) else 202, 0.001)

    def _known(self, sent: Sent) -> Manner | None:
        """A service that deduplicates on the key that it gets: the first answer again, or that it is still at work."""
        others = self._heard[sent.route, sent.key]
        first = next((one for one in others if one.effect is not None), None)
        if first is not None and first.answered is not None:
            return Manner(False, first.status, 0.001, nonce=first.nonce)
        return Manner(False, 409, 0.001) if any(not one.is_closed for one in others) else None

    def _draw(self, sent: Sent) -> Manner:
        weather, dice = self._weather, self._weather.dice
        seconds = dice.choice((0.0, 0.002, 0.01, 0.05, 0.2))
        if weather.is_calm and not self._is_varied:
            return Manner(True, 201, seconds)
        if self._is_varied and sent.route == "haul":
            seconds = dice.uniform(*_HAUL_SECONDS)
        if self._is_varied and dice.random() < 0.06:
            return Manner(False, dice.choice(_nothing_done(sent.route)), seconds)
        kind = dice.random()
        if weather.climate.upstream_late and kind < 0.3 and weather.happens("upstream_late", sent.gateway):
            seconds = dice.uniform(0.2, 1.6) * self.response_timeout_seconds
        if weather.happens("upstream_status", sent.gateway):
            return _refusal(sent.route, seconds, dice.randrange(1000))
        if weather.happens("upstream_reset_after", sent.gateway):
            return Manner(dice.random() < 0.7, 201, seconds, is_reset=True)
        if weather.happens("upstream_cut", sent.gateway):
            return Manner(True, 201, seconds, is_long=dice.random() < 0.3, cut=dice.randrange(0, 60))
        is_long = dice.random() < 0.05
        is_stream = not is_long and dice.random() < 0.03
        return Manner(True, 201, seconds, is_long=is_long, is_stream=is_stream)


# Longer than a lease lasts that is not renewed, up to several times that.
_HAUL_SECONDS = (7.0, 30.0)

# What a service may say without having done anything, by what the route takes it for.
_NOTHING_DONE = (400, 401, 403, 404, 409, 422, 429, 408, 425, 503, 500)
_NOTHING_DONE_PAYMENTS = (400, 401, 403, 422, 423, 429, 429)
_PERHAPS_DONE = (502, 504, 520)
_PAYMENTS = frozenset(("charge", "pay", "book", "haul", "ship", "move"))


def _nothing_done(route: str) -> tuple[int, ...]:
    return _NOTHING_DONE_PAYMENTS if route in _PAYMENTS else _NOTHING_DONE


def _refusal(route: str, seconds: float, draw: int) -> Manner:
    """A status other than success, with an effect only where the route holds that possible."""
    if draw < 300:
        perhaps = (*_PERHAPS_DONE, 500, 503) if route in _PAYMENTS else _PERHAPS_DONE
        return Manner(draw % 2 == 0, perhaps[draw % len(perhaps)], seconds)
    if draw < 360:
        outcome = (b"retryable", b"in-doubt", b"final")[draw % 3]
        has_effect = outcome != b"retryable" and draw % 2 == 0
        return Manner(has_effect, 500, seconds, headers=((b"Idempotency-Outcome", outcome),))
    statuses = _nothing_done(route)
    return Manner(False, statuses[draw % len(statuses)], seconds)


class WireClient:
    """An upstream client of one gateway process, as its callers see it. Where a request goes, its subclass knows."""

    def __init__(self, process: Process, weather: Weather, settings: asked.Upstream) -> None:
        self.settings = settings
        self._process, self._gateway = process, process.name
        self._loop, self._history, self._weather = weather.loop, weather.history, weather

    async def exchange(
        self,
        request: RequestHead,
        body: OutboundBody = b"",
        *,
        protected: bool,
        may_send: Callable[[], bool],
        on_interim: Callable[[ResponseHead], None] | None = None,
        response_timeout_seconds: float | None = None,
    ) -> UpstreamResponse | NotSent | Lost:
        """See `gateway.upstream.Upstream.exchange`."""
        if (refusal := await self._connect(request)) is not None:
            return refusal
        content = await _content(body)
        if not may_send():
            return NotSent(SentNothing.LEASE_LOST, "the lease no longer allowed sending")
        timeout = response_timeout_seconds or self.settings.response_timeout
        exchange = Exchange(self._process, self._loop, self._loop.time() + timeout, timeout)
        self._send(request, content, exchange, protected=protected)
        receiver = exchange.receiver
        try:
            head = await receiver.wait_head(on_interim)
        except BaseException:
            receiver.close()
            raise
        if isinstance(head, Lost):
            return head
        framing, length = receiver.framing, receiver.length
        return UpstreamResponse(head=head, framing=framing, length=length, body=receiver, upgraded=None)

    def start(self, request: RequestHead, body: OutboundBody, **options: object) -> None:
        """No connection is ever idle here: see `exchange`."""

    async def close(self) -> None:
        """Nothing is held."""

    async def _connect(self, request: RequestHead) -> NotSent | None:
        """A connection for this request; or why there is none."""
        weather = self._weather
        seconds = weather.dice.uniform(1.0, 15.0)
        if weather.happens("frozen_at_send", self._gateway, seconds):
            # Between the claim and the first byte.
            self._process.freeze(seconds)
        await self._process.take_turn(weather.hop_seconds())
        return None

    def _send(self, request: RequestHead, content: bytes, exchange: Exchange, *, protected: bool) -> None:
        """Send it on its way: what comes of it comes to the exchange, or nothing does."""
        raise NotImplementedError


class Client(WireClient):
    """The client of the service, as `Attempt` and `Passthrough` see it."""

    def __init__(self, service: Service, process: Process, weather: Weather, settings: asked.Upstream) -> None:
        super().__init__(process, weather, settings)
        self._service = service

    async def _connect(self, request: RequestHead) -> NotSent | None:
        refusal = await super()._connect(request)
        if refusal is None and self._weather.happens("upstream_refused", self._gateway):
            return NotSent(SentNothing.REFUSED, "connection refused")
        return refusal

    def _write_down(self, request: RequestHead, content: bytes, protected: bool) -> Sent:
        fields: Fields = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers)
        found = {name.lower(): value for name, value in fields}
        sent = Sent(
            number=len(self._history.sent),
            call=call_of(fields),
            gateway=self._gateway,
            operation_id=found.get("idempotency-operation", ""),
            token=int(found.get("idempotency-fencing-token", "0")),
            route=request.target.decode().split("?")[0].strip("/"),
            scope=found.get("x-tenant", ""),
            key=found.get("idempotency-key", ""),
            method=request.method.decode(),
            target=request.target.decode(),
            body=content,
            headers=fields,
            sent=self._loop.time(),
            # A probe gets its connection in the same way, and belongs to no call.
            is_protected=protected and request.method != b"GET",
        )
        self._history.sent.append(sent)
        return sent

    def _send(self, request: RequestHead, content: bytes, exchange: Exchange, *, protected: bool) -> None:
        sent = self._write_down(request, content, protected)
        weather = self._weather
        delay = weather.hop_seconds()
        if weather.happens("upstream_reset_before", self._gateway):
            sent.is_closed = True
            exchange.deliver(2 * delay, exchange.fail, Unknown.RESET, "reset before all of it arrived")
            return
        if weather.happens("upstream_silent", self._gateway):
            sent.is_closed = True
            return
        if weather.climate.request_late and weather.dice.random() < weather.climate.request_late:
            seconds = weather.dice.uniform(0.1, REQUEST_LATE_SECONDS_MAX / 2)
            weather.note("request_late", seconds, self._gateway)
            delay += seconds
        if weather.happens("request_orphaned", self._gateway):
            # Its connection is gone, but somewhere on the way it is still there.
            exchange.deliver(delay, exchange.fail, Unknown.RESET, "reset")
            delay += weather.dice.uniform(0.0, REQUEST_LATE_SECONDS_MAX - delay)
        self._loop.world.deliver(delay, self._arrive, sent, exchange)

    def _arrive(self, sent: Sent, exchange: Exchange) -> None:
        """At the service: the request is whole."""
        sent.received = self._loop.time()
        manner = self._service.manner(sent)
        sent.nonce = manner.nonce or sha256(f"{self._history.seed}/{sent.number}".encode()).hexdigest()[:12]
        # The effect comes somewhere between the request and the answer.
        before = manner.seconds * self._weather.dice.choice((0.0, 0.5, 1.0))
        self._loop.world.deliver(before, self._take_effect, sent, manner)
        self._loop.world.deliver(manner.seconds, self._answer, sent, exchange, manner)

    def _take_effect(self, sent: Sent, manner: Manner) -> None:
        if manner.has_effect:
            sent.effect = self._loop.time()

    def _answer(self, sent: Sent, exchange: Exchange, manner: Manner) -> None:
        if manner.has_effect and sent.effect is None:
            # The effect and the answer fell on the same moment, and came in the other order.
            sent.effect = self._loop.time()
        sent.is_closed, sent.answered, sent.status = True, self._loop.time(), manner.status
        sent.answer_body, sent.answer_headers = _words(sent, manner)
        sent.is_kept_whole = not (manner.is_long or manner.is_stream or manner.cut is not None or manner.is_reset)
        delay = self._weather.hop_seconds()
        if manner.is_reset:
            sent.cut = 0
            exchange.deliver(delay, exchange.fail, Unknown.RESET, "reset before the answer")
            return
        headers = IndexedHeaders(tuple((name.encode(), value.encode()) for name, value in sent.answer_headers))
        head = ResponseHead(manner.status, b"", headers)
        length = None if manner.is_stream else len(sent.answer_body)
        exchange.deliver(delay, exchange.head, head, length)
        body = sent.answer_body
        if manner.cut is not None:
            sent.cut = min(manner.cut, len(body) - 1)
            body = body[: sent.cut]
        for at in range(0, len(body), 600):
            delay += self._weather.hop_seconds()
            exchange.deliver(delay, exchange.data, body[at : at + 600])
        delay += 1 / 1024
        if manner.cut is not None:
            exchange.deliver(delay, exchange.fail, Unknown.TRUNCATED, "cut")
        else:
            exchange.deliver(delay, exchange.end)


class Exchange:
    """One connection as the receiving half sees it: what comes, and the deadline. Satisfies `ResponseSource`."""

    def __init__(self, process: Process, loop: SimulatedLoop, deadline: float, silence: float) -> None:
        self._process, self._loop = process, loop
        self.sweep = Sweep(loop, self._look)
        self.is_over = False
        self.on_abort: Callable[[], object] | None = None
        self._arriving: deque[Callable[[], None]] = deque()
        self.receiver = ResponseReceiver(self, b"", deadline, silence, wants_upgrade=False, header_bytes_max=0)

    def deliver(self, delay_seconds: float, callback: Callable[..., None], *arguments: object) -> None:
        """Bring something over this connection; what is sent first arrives first, also where all of it is there."""
        self._arriving.append(partial(callback, *arguments))
        self._process.deliver(delay_seconds, self._take_next)

    def _take_next(self) -> None:
        self._arriving.popleft()()

    def head(self, head: ResponseHead, length: int | None) -> None:
        if not self.is_over:
            self.receiver.framing = Framing.CHUNKED if length is None else Framing.LENGTH
            self.receiver.head, self.receiver.length = head, length
            self.receiver.wake()

    def data(self, data: bytes) -> None:
        if not self.is_over:
            self.receiver.feed(data)
            self.receiver.wake()

    def end(self) -> None:
        if not self.is_over:
            self._finish()
            self.receiver.is_done = True
            self.receiver.wake()

    def fail(self, reason: Unknown, detail: str) -> None:
        if not self.is_over:
            self._finish()
            self.receiver.fail(reason, detail)

    def pause_reading(self) -> None:
        """Nothing that is said here is that long."""

    def resume_reading(self) -> None:
        """See `pause_reading`."""

    def allow_to_outlast(self) -> None:
        """Nobody counts connections here."""

    def _look(self) -> float:
        if self.receiver.due <= self._loop.time():
            self.fail(Unknown.TIMEOUT, "no answer in time")
        return self.receiver.due

    def abort(self, reason: Unknown, detail: str) -> None:
        self.fail(reason, detail)
        if self.on_abort is not None:
            self.on_abort()

    def _finish(self) -> None:
        self.is_over = True
        self.sweep.stop()


def call_of(fields: Fields) -> int | None:
    """The client's call whose request this is, also where it is delivered later; None for what no client sent."""
    marks = [value for name, value in fields if name.lower() == "x-call"]
    return int(marks[0]) if marks else current_call.get()


async def _content(body: OutboundBody) -> bytes:
    """Of a run: they are short, and none is in a file."""
    return body if isinstance(body, bytes) else b"".join([chunk async for chunk in body.chunks])


def _words(sent: Sent, manner: Manner) -> tuple[bytes, Fields]:
    """What the answer says: all of it depends on the nonce, so that no two answers are alike."""
    body = f'{{"nonce":"{sent.nonce}","status":{manner.status}}}'.encode()
    if manner.is_long:
        body += b" " * (RESPONSE_BYTES_MAX + 400)
    fields = [
        ("Content-Type", "text/event-stream" if manner.is_stream else "application/json"),
        ("X-Nonce", sent.nonce),
        ("Location", f"/things/{sent.nonce}"),
        ("X-Repeated", sent.nonce[:4]),
        ("x-repeated", sent.nonce[4:]),
        ("Set-Cookie", f"session={sent.nonce}"),
        ("Date", "Thu, 01 Jan 2026 00:00:00 GMT"),
    ]
    fields += [(name.decode(), value.decode()) for name, value in manner.headers]
    if not manner.is_stream:
        fields.append(("Content-Length", str(len(body))))
    return body, tuple(fields)
