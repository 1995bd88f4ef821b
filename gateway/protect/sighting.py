"""One observed request: what is copied of it while it passes, and when its exchange is over.

Everything here is called on the request's way. Nothing waits, raises, or holds its connection; what does not fit is
given up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec
from uuid import uuid4

from gateway.core.message import Headers, ResponseHead
from gateway.core.observation import (
    Exchange,
    ExchangeResult,
    Observation,
)
from gateway.core.operation import microseconds
from gateway.protect.identification import Identifying
from gateway.protect.reply import Reply, RequestBody, ResponseStream
from gateway.protect.request import Request
from gateway.protect.route import Route
from gateway.upstream import Lost, NotSent, UpstreamResponse

if TYPE_CHECKING:
    from gateway.protect.observing import Observing

_LOG = logging.getLogger("gateway")
P = ParamSpec("P")

# All heads and copies of bodies together.
_COPIED_BYTES_MAX: Final = 64 * 1024 * 1024
# What a header takes beside its bytes.
_HEADER_BYTES: Final = 128


class TooLong:
    """The body of a request that is over the route's limit, for rule 6."""

    def __init__(self, length: int) -> None:
        self.length: int | None = length

    def whole(self) -> bytes | None:
        return None

    async def stream(self) -> AsyncIterator[bytes]:
        """Is not called: rule 6 goes by the length."""
        yield b""

    def crowd_out(self) -> bool:
        return False

    def close(self) -> None:
        """Holds nothing."""


class _Copy:
    """The bytes of a body that streams by, up to a limit. `is_over`: it was longer, and nothing is kept."""

    def __init__(self, memory: Memory, bytes_max: int) -> None:
        self._memory = memory
        self._bytes_max = bytes_max
        self._data = bytearray()
        self.length = 0
        self.is_over = False
        self.is_crowded = False

    def add(self, data: bytes) -> None:
        self.length += len(data)
        if self.is_over or self.is_crowded:
            return
        if self.length > self._bytes_max:
            self.is_over = True
        elif not self._memory.take(len(data)):
            self.is_crowded = True
        else:
            self._data += data
            return
        self._give_back()

    def content(self) -> bytes:
        return bytes(self._data)

    def drop(self) -> None:
        """Hold nothing, and take no more."""
        self.is_crowded = True
        self._give_back()

    def _give_back(self) -> None:
        self._memory.give_back(len(self._data))
        self._data = bytearray()


class Memory:
    """How much may be held of all requests together."""

    def __init__(self) -> None:
        self._left = _COPIED_BYTES_MAX

    def take(self, size: int) -> bool:
        if size > self._left:
            return False
        self._left -= size
        return True

    def give_back(self, size: int) -> None:
        self._left += size


class _CopiedRequest:
    """The body of a request on its way to the service: the same bytes at the same pace."""

    def __init__(self, body: RequestBody, sighting: Sighting) -> None:
        self._body = body
        self._sighting = sighting
        self.length: int | None = body.length

    def whole(self) -> bytes | None:
        data = self._body.whole()
        if data is not None:
            self._sighting.arrives(data)
            self._sighting.arrives(b"")
        return data

    async def stream(self) -> AsyncIterator[bytes]:
        async for data in self._body.stream():
            self._sighting.arrives(data)
            yield data
        self._sighting.arrives(b"")

    def crowd_out(self) -> bool:
        return self._body.crowd_out()

    def close(self) -> None:
        self._body.close()


class _CopiedResponse:
    """The body of a response on its way to the client."""

    def __init__(self, stream: ResponseStream, sighting: Sighting) -> None:
        self._stream = stream
        self._sighting = sighting

    async def read(self) -> bytes:
        try:
            data = await self._stream.read()
        except BaseException:
            self._sighting.end(ExchangeResult.UNKNOWN)
            raise
        self._sighting.returns(data)
        return data

    def abort(self) -> None:
        # The client may leave before the end, and what the service did is not known then: it never is of a part.
        self._stream.abort()
        self._sighting.end(ExchangeResult.UNKNOWN)


def _harmless(step: Callable[Concatenate[Sighting, P], None]) -> Callable[Concatenate[Sighting, P], None]:
    """A step that a request passes on its way: a bug in it is logged, and ends the observing instead of the request."""

    @wraps(step)
    def guarded(sighting: Sighting, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            step(sighting, *args, **kwargs)
        except Exception:  # noqa: BLE001 - whatever it is, the request goes on
            sighting.fail()

    return guarded


class Sighting:
    """One request that is observed. Everything here is called on its way; nothing here waits, raises, or holds its
    connection."""

    def __init__(
        self,
        observing: Observing,
        identifying: Identifying,
        request: Request,
        route: Route,
        number: int,
        now_us: int,
        now_seconds: float,
    ) -> None:
        self._observing = observing
        self.identifying = identifying
        self._heads_bytes = 0
        self.number = number
        self.route = route
        self.entry = uuid4()
        self.began_us = now_us
        self.began_seconds = now_seconds
        self.is_whole = False
        self.is_over = False
        self.is_crowded = False
        self.sent = _Copy(observing.memory, route.settings.body.max_bytes)
        self.received = _Copy(observing.memory, route.keep.taken_bytes_max)
        self.head: ResponseHead | None = None
        self.ended: Exchange | None = None
        self.found: asyncio.Task[Observation | None] | None = None
        self.original = replace(request, body=TooLong(0))
        self._hold(request.head.headers)

    def copied(self, request: Request) -> Request:
        """The request to forward: the same, its body copied as it streams by."""
        return replace(request, body=_CopiedRequest(request.body, self))

    def answered(self, result: UpstreamResponse | NotSent | Lost, reply: Reply) -> Reply:
        """The reply to write: the same, its body copied as it goes out."""
        try:
            return self._answered(result, reply)
        except Exception:  # noqa: BLE001 - as in `_harmless`
            self.fail()
            return reply

    @_harmless
    def arrives(self, data: bytes) -> None:
        """The next bytes of its body; empty at the end."""
        if data:
            self.sent.add(data)
        elif not self.is_over:
            self.is_whole = True
            self._observing.arrived(self)

    @_harmless
    def returns(self, data: bytes) -> None:
        """The next bytes of the response's body; empty at the proven end."""
        if data:
            self.received.add(data)
        else:
            self.end()

    @_harmless
    def end(self, result: ExchangeResult | None = None) -> None:
        """Its exchange is over; without a `result`, by the response. Only the first call counts."""
        if not self.is_over:
            self.is_over = True
            elapsed_us = microseconds(self._observing.clock() - self.began_seconds)
            self.ended = Exchange(self.began_us + elapsed_us, ExchangeResult.UNKNOWN if result is None else result)
            if result is not None:
                self.head = None
            self._observing.ended(self)

    def give_up(self) -> None:
        """Its connection is a tunnel from now on."""
        self.is_whole = False
        self.end(ExchangeResult.UNKNOWN)

    def fail(self) -> None:
        """Give it up because of the bug that was just caught."""
        _LOG.exception("a request was not observed because of a bug")
        self.is_over = True
        self._observing.failed(self)

    def release(self) -> None:
        """Hold no memory. Safe to repeat."""
        self.sent.drop()
        self.received.drop()
        self._observing.memory.give_back(self._heads_bytes)
        self._heads_bytes = 0

    def _answered(self, result: UpstreamResponse | NotSent | Lost, reply: Reply) -> Reply:
        if isinstance(result, NotSent | Lost):
            self.end(ExchangeResult.NOT_SENT if isinstance(result, NotSent) else ExchangeResult.UNKNOWN)
            return reply
        if self.is_over:
            return reply
        self.head = result.head
        self._hold(result.head.headers)
        reply = self._observing.shown(self, reply)
        if isinstance(reply.body, bytes):
            self.received.add(reply.body)
            self.end()
            return reply
        return replace(reply, body=_CopiedResponse(reply.body, self))

    def _hold(self, headers: Headers) -> None:
        size = sum(len(name) + len(value) + _HEADER_BYTES for name, value in headers)
        if self._observing.memory.take(size):
            self._heads_bytes += size
        else:
            self.is_crowded = True
