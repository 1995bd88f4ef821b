"""Wires that fail at every single place: the store's replies and statements, the upstream's answer, the request."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.integration.hand import by_way_of
from tests.support.fleet import key_of, nonce_of, process, send, wait_answered
from tests.support.house import sqlite_store, status_of
from tests.support.relay import Course, Fault, Relay, Rule
from tests.support.upstream import Answer, Ending, Received, RecordingUpstream

_CHUNKS_MAX = 200


@pytest.mark.parametrize(
    ("direction", "is_cold"),
    [
        pytest.param("replies", False, id="replies"),
        pytest.param("statements", False, id="statements"),
        pytest.param("replies", True, id="replies-while-it-connects"),
        pytest.param("statements", True, id="statements-while-it-connects", marks=pytest.mark.full),
    ],
)
async def test_every_chunk_of_the_store_lost(
    tmp_path: Path, postgres_url: str, upstream: RecordingUpstream, direction: str, is_cold: bool
) -> None:
    """Whichever message to or from Postgres is lost, nothing runs twice, and the retry gets the answer in the lease."""
    async with Relay(urlsplit(postgres_url).port or 5432) as relay:
        store = {"durable": by_way_of(relay, postgres_url)}
        async with process(store, tmp_path, upstream, store={"lease": "3s"}) as gateway:
            course: Course = relay.to_client if direction == "replies" else relay.to_target
            assert status_of(await send(gateway.port, "warm")) == (201, "stored")
            for number in itertools.count(1):
                assert number < _CHUNKS_MAX, "the operation never ends"
                key = f"key-{number}"
                if is_cold:
                    relay.cut()
                course.ambush(number, Fault.RESET)
                first = await send(gateway.port, key)
                has_fired = course.stand_down()
                assert status_of(first) in ((201, "stored"), (201, "journaled"), (503, "store-unavailable"))
                # Executed now where the first was refused; never in doubt, because the gateway lived all the time.
                second = await wait_answered(gateway.port, key, verdicts=frozenset(("stored", "replayed")))
                if first.status == 201:
                    assert (status_of(second), nonce_of(second)) == ((201, "replayed"), nonce_of(first))
                assert [key_of(received) for received in upstream.requests].count(key) == 1
                if not has_fired:
                    break
            assert number > 2, "an operation takes a claim and an answer"


_HEAD = b"HTTP/1.1 201 Created\r\nX-A: b\r\n"
_ANSWERS = {
    "length": _HEAD + b"Content-Length: 10\r\n\r\n0123456789",
    "chunked": _HEAD + b"Transfer-Encoding: chunked\r\n\r\n4\r\n0123\r\n6\r\n456789\r\n0\r\n\r\n",
    "close": _HEAD + b"\r\n0123456789",
}


async def test_every_byte_of_the_answer_cut(tmp_path: Path, upstream: RecordingUpstream) -> None:
    """An answer that is cut at any byte is in doubt, and no retry ever gets a part of it or has a second effect."""

    def cut(received: Received) -> Answer:
        framing, ending, count = key_of(received).split("-")
        return Answer(raw=_ANSWERS[framing], bytes_max=int(count), ending=Ending[ending])

    upstream.on("/charges", cut)
    async with process(sqlite_store(tmp_path), tmp_path, upstream) as gateway:

        async def judge(framing: str, ending: Ending, count: int) -> None:
            """One cut, and a retry."""
            key, raw = f"{framing}-{ending.name}-{count}", _ANSWERS[framing]
            first = await send(gateway.port, key)
            again = await send(gateway.port, key)
            if _is_whole(framing, ending, count):
                assert (status_of(first), status_of(again)) == ((201, "stored"), (201, "replayed")), key
                body = raw[:count].partition(b"\r\n\r\n")[2] if framing == "close" else b"0123456789"
                assert (first.body, again.body) == (body, body), key
            else:
                assert (status_of(first), status_of(again)) == ((502, "in-doubt"), (409, "in-doubt")), key

        for framing, raw in _ANSWERS.items():
            for ending in (Ending.CLOSE, Ending.RESET):
                await asyncio.gather(*[judge(framing, ending, count) for count in range(len(raw) + 1)])
        assert len(upstream.requests) == 2 * sum(len(raw) + 1 for raw in _ANSWERS.values())


def _is_whole(framing: str, ending: Ending, count: int) -> bool:
    """Whether nobody can tell that something is missing: without a length, FIN is the end wherever it comes."""
    raw = _ANSWERS[framing]
    if framing == "close":
        return ending is Ending.CLOSE and count >= raw.index(b"\r\n\r\n") + 4
    return count == len(raw)


async def test_every_byte_of_the_request_cut(tmp_path: Path, upstream: RecordingUpstream) -> None:
    """A request that is cut at any byte on its way to the upstream is in doubt, and is never sent again."""
    async with (
        Relay(upstream.port) as relay,
        process(sqlite_store(tmp_path), tmp_path, f"http://127.0.0.1:{relay.port}") as gateway,
    ):
        assert status_of(await send(gateway.port, "whole")) == (201, "stored")
        request_bytes = relay.to_target.forwarded_bytes
        key = ""
        for count in range(1, request_bytes + 1):
            relay.cut()
            relay.to_target.rule = Rule(count, (Fault.CLOSE, Fault.RESET)[count % 2])
            # As long as the key of the request that was measured.
            key = f"{count:05}"
            assert status_of(await send(gateway.port, key)) == (502, "in-doubt"), count
            relay.to_target.rule = None
            assert status_of(await send(gateway.port, key)) == (409, "in-doubt"), count
        # Nobody had an effect, but for the last, which the upstream may have had whole when the connection ended.
        assert [key_of(received) for received in upstream.requests] in (["whole"], ["whole", key])
