"""Passes an upstream's response on to a client, its body as it comes."""

from __future__ import annotations

from gateway.core.message import Headers
from gateway.core.verdict import Verdict
from gateway.protect.forwarding import response_headers
from gateway.protect.reply import BodyCut, Reply, Source
from gateway.upstream import BodyLost, Framing, UpstreamResponse


def passed_on(response: UpstreamResponse, verdict: Verdict | None = None, headers: Headers | None = None) -> Reply:
    """The response as a reply. `headers` None takes those that a service may send to a client."""
    head = response.head
    headers = response_headers(head.headers) if headers is None else headers
    if response.body.is_done and (response.framing is Framing.LENGTH or response.framing is Framing.NONE):
        # A body that is here completely can go out in one write.
        return Reply(head.status, head.reason, headers, response.body.take(), verdict, source=Source.SERVICE)
    stream = UpstreamStream(response)
    return Reply(head.status, head.reason, headers, stream, verdict, response.length, source=Source.SERVICE)


class UpstreamStream:
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
