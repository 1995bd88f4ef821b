"""The body of an upstream's answer on its way to a client, as it comes."""

from __future__ import annotations

from gateway.protect.reply import BodyCut
from gateway.upstream import BodyLost, UpstreamResponse


class AnswerStream:
    """A `reply.ResponseStream` over an answer. `prefix` is what was taken of its body already."""

    __slots__ = ("_answer", "_prefix")

    def __init__(self, answer: UpstreamResponse, prefix: bytes = b"") -> None:
        self._answer = answer
        self._prefix = prefix

    async def read(self) -> bytes:
        """The next bytes; empty at the proven end. Raises `BodyCut`."""
        if self._prefix:
            prefix, self._prefix = self._prefix, b""
            return prefix
        data = await self._answer.body.read()
        if isinstance(data, BodyLost):
            raise BodyCut(data.detail)
        return data

    def abort(self) -> None:
        """Give the rest up."""
        self._answer.close()
