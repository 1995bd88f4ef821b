"""Streams the body of an upstream's response to a client."""

from __future__ import annotations

from gateway.protect.reply import BodyCut
from gateway.upstream import BodyLost, UpstreamResponse


class AnswerStream:
    """A `reply.ResponseStream` over an upstream's response. `prefix` is the part of its body that was read already."""

    __slots__ = ("_prefix", "_response")

    def __init__(self, response: UpstreamResponse, prefix: bytes = b"") -> None:
        self._response = response
        self._prefix = prefix

    async def read(self) -> bytes:
        """The next bytes; empty at the proven end. Raises `BodyCut`."""
        if self._prefix:
            prefix, self._prefix = self._prefix, b""
            return prefix
        data = await self._response.body.read()
        if isinstance(data, BodyLost):
            raise BodyCut(data.detail)
        return data

    def abort(self) -> None:
        """Give up the rest."""
        self._response.close()
