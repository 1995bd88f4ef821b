"""An answer that a future holds: written when it comes, whoever is still there to read it."""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from gateway.core.identity.caller import hop_from
from gateway.core.message import IndexedHeaders, RequestHead
from gateway.core.verdict import Verdict
from gateway.http.connection import EdgeSettings
from gateway.protect.reply import Reply
from gateway.protect.request import Request, TakenBody, Untouched
from tests.http.edge.harness import RunningEdge, Stream, post, reply, serving
from tests.support.eventually import eventually
from tests.support.http import Connection, exchange
from tests.support.upstream import RecordingUpstream


class Futures:
    """What the requests of an edge wait for."""

    def __init__(self) -> None:
        self.given: list[asyncio.Future[Any]] = []

    def give(self, *_: object) -> asyncio.Future[Any]:
        self.given.append(asyncio.get_running_loop().create_future())
        return self.given[-1]


@asynccontextmanager
async def waiting() -> AsyncIterator[tuple[RunningEdge, Connection, asyncio.Future[Any]]]:
    """An edge, a client that has sent a request, and the future that it waits for."""
    futures = Futures()
    async with serving(protect_now=futures.give) as edge, Connection(edge.port) as connection:
        await connection.send(post())
        await eventually(lambda: len(futures.given) == 1, what="the request is there")
        yield edge, connection, futures.given[0]


class Body:
    """A body of a request that is to be passed on, of which a file may be held."""

    length = 4
    is_closed = False

    def whole(self) -> bytes | None:
        return None

    async def stream(self) -> AsyncIterator[bytes]:
        yield b"body"

    def crowd_out(self) -> bool:
        return False

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("answer", ["reply", "stream", "rest of the way", "closing", "passed on"])
async def test_nobody_is_there_any_more(answer: str) -> None:
    """The request is over: a stream is given up, no way is walked, and a body that would be passed on is let go."""

    async def walk() -> Reply:
        return reply()

    async with waiting() as (edge, connection, future):
        stream, body, way = Stream(b"do", b"ne"), Body(), walk()
        if answer == "closing":
            future.set_result(way)
            await edge.edge.close()
            assert edge.edge.in_flight == 0
            return
        connection.reset()
        await eventually(lambda: edge.edge.connections == 0, what="the client is gone")
        assert (edge.edge.in_flight, future.cancelled()) == (1, False)
        asked = Request(RequestHead(b"POST", b"/", IndexedHeaders()), body, hop_from(None, is_secure=False))
        given = {"reply": reply(), "stream": reply(stream, length=4), "rest of the way": way}
        future.set_result(given.get(answer) or Untouched(asked, Verdict.UNPROTECTED))
        await eventually(lambda: edge.edge.in_flight == 0, what="the request is over")
        assert (stream.aborted, body.is_closed) == (answer == "stream", answer == "passed on")
        way.close()


async def test_a_request_whose_client_is_gone_is_not_passed_on() -> None:
    """Its answer would be nobody's: a claim that came to nothing while the client went is not sent without one."""
    asked, is_decided = asyncio.Event(), asyncio.Event()

    async def protect(incoming: Request) -> Untouched:
        asked.set()
        await is_decided.wait()
        body = TakenBody(b"charge", 6)
        return Untouched(Request(incoming.head, body, incoming.hop), Verdict.UNPROTECTED)

    async with RecordingUpstream() as upstream, serving(protect, upstream=upstream) as edge:
        # Leaves an idle connection behind, on which a request goes out at once.
        assert (await exchange(edge.port, post(target=b"/free"))).status == 200
        async with Connection(edge.port) as client:
            await client.send(post())
            await asked.wait()
            client.reset()
        await eventually(lambda: edge.edge.connections == 0)
        is_decided.set()
        await eventually(lambda: edge.edge.in_flight == 0)
        assert (await exchange(edge.port, post(target=b"/free"))).status == 200
        assert [request.target for request in upstream.requests] == [b"/free", b"/free"]


async def test_nothing_is_decoded_for_a_client_that_is_gone() -> None:
    """Those who ask for much decoding and go keep nobody waiting who is still there."""
    decoded_for: list[bytes] = []

    class Accepted(tuple[bytes, ...]):
        """Notes that a body is decoded for it."""

        __slots__ = ()

        def __iter__(self) -> Iterator[bytes]:
            decoded_for.extend(self[:])
            return super().__iter__()

    coded = reply(gzip.compress(b"done"), headers=((b"Content-Encoding", b"gzip"),))
    released = threading.Event()
    async with serving(protect_now=lambda *_: replace(coded, decode_for=Accepted((b"identity",)))) as edge:
        edge.edge.handler._decoding.submit(released.wait)
        try:
            async with Connection(edge.port) as connection:
                await connection.send(post())
                await eventually(lambda: edge.edge.in_flight == 1, what="the request waits to be decoded")
                connection.reset()
            await eventually(lambda: edge.edge.connections == 0, what="its client is gone")
        finally:
            released.set()
        async with Connection(edge.port) as connection:
            await connection.send(post())
            assert (await connection.read_response()).body == b"done"
    assert decoded_for == [b"identity"]


async def test_a_reply_whose_turn_to_be_decoded_comes_too_late_goes_out_as_it_is() -> None:
    """Until then it is held like what clients have yet to read."""
    coded = gzip.compress(b"done")
    given = replace(reply(coded, headers=((b"Content-Encoding", b"gzip"),)), decode_for=(b"identity",))
    released = threading.Event()
    settings = EdgeSettings(decoding_wait_seconds=0.0)
    async with serving(protect_now=lambda *_: given, settings=settings) as edge, Connection(edge.port) as connection:
        edge.edge.handler._decoding.submit(released.wait)
        try:
            await connection.send(post())
            await eventually(lambda: edge.edge.handler.unread.held_bytes == len(coded))
        finally:
            released.set()
        response = await connection.read_response()
        assert (response.body, response.header("content-encoding")) == (coded, "gzip")
        assert edge.edge.handler.unread.held_bytes == 0
