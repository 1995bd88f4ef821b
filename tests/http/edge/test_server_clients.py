"""Clients that are gone, or wait, when their answer comes."""

from __future__ import annotations

import asyncio
import gzip
import threading
from dataclasses import replace

import pytest

from gateway.core.verdict import Verdict
from gateway.http.connection import EdgeSettings
from gateway.protect.reply import Reply
from gateway.protect.request import Request, TakenBody, Untouched
from tests.http.edge.harness import Stream, post, reply, serving
from tests.support.eventually import eventually
from tests.support.http import Connection, exchange
from tests.support.upstream import RecordingUpstream


@pytest.mark.parametrize("is_passed_on", [False, True], ids=["stream", "passed-on"])
async def test_nobody_is_there_any_more(is_passed_on: bool) -> None:
    """A stream is given up. A claim that came to nothing is not sent without one, and its body is let go."""
    asked, is_decided = asyncio.Event(), asyncio.Event()
    stream, closed = Stream(b"do", b"ne"), asyncio.Event()

    class Body(TakenBody):
        """Of which a file may be held."""

        def close(self) -> None:
            closed.set()

    async def protect(incoming: Request) -> Reply | Untouched:
        asked.set()
        await is_decided.wait()
        sent = Request(incoming.head, Body(b"charge", 6), incoming.hop)
        return Untouched(sent, Verdict.UNPROTECTED) if is_passed_on else reply(stream, length=4)

    async with RecordingUpstream() as upstream, serving(protect, to=upstream.port) as edge:
        # Leaves an idle connection behind, on which a request goes out at once.
        assert (await exchange(edge.port, post(target=b"/free"))).status == 200
        async with Connection(edge.port) as client:
            await client.send(post())
            await asked.wait()
            client.reset()
        await eventually(lambda: edge.edge.connections == 0)
        assert edge.edge.in_flight == 1
        is_decided.set()
        await eventually(lambda: edge.edge.in_flight == 0)
        assert (stream.aborted > 0, closed.is_set()) == (not is_passed_on, is_passed_on)
        assert (await exchange(edge.port, post(target=b"/free"))).status == 200
        assert [request.target for request in upstream.requests] == [b"/free", b"/free"]


async def test_a_reply_whose_turn_to_be_decoded_comes_too_late_goes_out_as_it_is() -> None:
    """Decoding keeps the loop free. Until its turn a reply is held like what clients have yet to read."""
    coded = gzip.compress(b"done")
    given = replace(reply(coded, headers=((b"Content-Encoding", b"gzip"),)), decode_for=(b"identity",))
    released = threading.Event()
    settings = EdgeSettings(decoding_wait_seconds=0.0)
    async with serving(given, settings=settings) as edge, Connection(edge.port) as connection:
        edge.edge.handler._decoding.submit(released.wait)
        try:
            await connection.send(post())
            await eventually(lambda: edge.edge.handler.unread.held_bytes == len(coded))
        finally:
            released.set()
        response = await connection.read_response()
        assert (response.body, response.header("content-encoding")) == (coded, "gzip")
        assert edge.edge.handler.unread.held_bytes == 0
