"""The body of a request on its way in.

Owns the reading of it: at the pace of whoever takes it, within a bound of silence, and with `100 Continue` sent when it
is first asked for rather than before, so that a request which is refused by its head alone never uploads. Invariant: a
body that did not arrive whole raises `RequestCut`; it never just ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from enum import StrEnum

from aiohttp import StreamReader
from aiohttp.web_protocol import RequestPayloadError


class Cut(StrEnum):
    """Why a body is not whole."""

    GONE = "gone"  # the client went, or the exchange is over
    MALFORMED = "malformed"  # its chunks are none
    SLOW = "slow"  # nothing came for too long


class RequestCut(Exception):
    """The body of a request did not arrive whole: nothing may be done for it."""

    def __init__(self, cut: Cut) -> None:
        super().__init__(f"the request body is not whole: {cut}")
        self.cut = cut


class ClientBody:
    """See `reply.RequestBody`. `ask` is called once before the first wait, to send `100 Continue` where it is due."""

    __slots__ = ("_ask", "_payload", "_silence_seconds", "length")

    def __init__(
        self, payload: StreamReader, length: int | None, *, silence_seconds: float, ask: Callable[[], None] | None
    ) -> None:
        self._payload = payload
        self._silence_seconds = silence_seconds
        self._ask = ask
        self.length = length

    @property
    def is_received(self) -> bool:
        """Whether all of it has arrived, read or not."""
        return self._payload.is_eof()

    def close(self) -> None:
        """Nothing is held: what was not read is the connection's business."""

    async def stream(self) -> AsyncIterator[bytes]:
        payload = self._payload
        if self._ask is not None and not payload.is_eof():
            self._ask()
        while True:
            try:
                if payload.is_eof():
                    data = payload.read_nowait()
                else:
                    async with asyncio.timeout(self._silence_seconds):
                        data = await payload.readany()
            except TimeoutError:
                raise RequestCut(Cut.SLOW) from None
            except RequestPayloadError:
                raise RequestCut(Cut.MALFORMED) from None
            except Exception:  # noqa: BLE001 - aiohttp tells a client that went in several ways
                raise RequestCut(Cut.GONE) from None
            if not data:
                return
            yield data
