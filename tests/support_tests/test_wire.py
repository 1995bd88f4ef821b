"""The faulty wire does exactly the fault that it is told, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support import http
from tests.support.eventually import eventually
from tests.support.relay import Fault, Relay, Rule
from tests.support.tls import Authority
from tests.support.upstream import Answer, Ending, Framing, RecordingUpstream

REQUEST = http.request_bytes("POST", "/pay?a=%7E", [("X-Case", "As Sent")], b"12345678")


@pytest.fixture
async def upstream() -> AsyncIterator[RecordingUpstream]:
    """An upstream in this process."""
    async with RecordingUpstream() as upstream:
        yield upstream


@pytest.fixture
async def relay(upstream: RecordingUpstream) -> AsyncIterator[Relay]:
    """A relay before the upstream."""
    async with Relay(upstream.port) as relay:
        yield relay


async def test_a_relay_without_faults_is_not_noticed(relay: Relay, upstream: RecordingUpstream) -> None:
    """Both directions arrive byte for byte and are counted."""
    response = await http.exchange(relay.port, REQUEST)
    assert (response.status, response.body, response.complete) == (200, b"done", True)
    assert relay.connections == 1
    assert relay.to_target.forwarded_bytes == len(REQUEST)
    received = upstream.requests[0]
    assert (received.target, received.body, received.values("x-case")) == (b"/pay?a=%7E", b"12345678", [b"As Sent"])


@pytest.mark.parametrize("count", [0, 1, 20, len(REQUEST) - 1])
async def test_a_request_cut_at_a_byte_never_arrives(relay: Relay, upstream: RecordingUpstream, count: int) -> None:
    """Exactly so many bytes reach the target, and no request is recorded."""
    relay.to_target.rule = Rule(count, Fault.RESET)
    with pytest.raises(http.NoAnswerError):
        await http.exchange(relay.port, REQUEST)
    assert relay.to_target.forwarded_bytes == count
    assert upstream.requests == []


async def test_a_pattern_is_found_across_chunks(relay: Relay, upstream: RecordingUpstream) -> None:
    """The rule fires right behind the pattern, however the bytes were split."""
    relay.to_target.rule = Rule(b"\r\n\r\n12", Fault.SWALLOW)
    async with http.Connection(relay.port) as connection:
        split = REQUEST.index(b"\r\n\r\n") + 3
        await connection.send(REQUEST[:split])
        await eventually(lambda: relay.to_target.forwarded_bytes == split)
        await connection.send(REQUEST[split:])
        await relay.to_target.fired.wait()
        await eventually(lambda: relay.to_target.forwarded_bytes == len(REQUEST) - 6)
        with pytest.raises(TimeoutError):
            await connection.read_response(deadline_seconds=0.05)
    assert upstream.requests == []


async def test_a_swallowed_answer_leaves_the_effect(relay: Relay, upstream: RecordingUpstream) -> None:
    """The upstream acted and answered, and the client hears nothing."""
    relay.to_client.rule = Rule(0, Fault.SWALLOW)
    async with http.Connection(relay.port) as connection:
        await connection.send(REQUEST)
        await relay.to_client.fired.wait()
        with pytest.raises(TimeoutError):
            await connection.read_response(deadline_seconds=0.05)
    assert (len(upstream.effects), relay.to_client.forwarded_bytes) == (1, 0)


async def test_a_closed_connection_ends_by_fin(relay: Relay) -> None:
    """`CLOSE` delivers what came before it, then an end without error."""
    relay.to_client.rule = Rule(b"HTTP/1.1 200", Fault.CLOSE)
    async with http.Connection(relay.port) as connection:
        await connection.send(REQUEST)
        assert await connection.read_rest() == b"HTTP/1.1 200"


async def test_a_reset_connection_fails(relay: Relay, upstream: RecordingUpstream) -> None:
    """`cut` resets the connections that are open."""
    upstream.on(None, Answer(ending=Ending.SILENCE, bytes_max=0))
    async with http.Connection(relay.port) as connection:
        await connection.send(REQUEST)
        await upstream.wait_for_requests(1)
        relay.cut()
        with pytest.raises(ConnectionResetError):
            await connection.read_rest()


async def test_a_half_closed_client_still_gets_its_answer(relay: Relay) -> None:
    """FIN in one direction leaves the other one alone."""
    relay.to_target.rule = Rule(len(REQUEST), Fault.HALF_CLOSE)
    assert (await http.exchange(relay.port, REQUEST)).complete


async def test_a_held_direction_goes_on_when_released(relay: Relay, upstream: RecordingUpstream) -> None:
    """Nothing passes while the course is held, everything afterwards."""
    relay.to_target.hold()
    async with http.Connection(relay.port) as connection:
        await connection.send(REQUEST)
        with pytest.raises(TimeoutError):
            await connection.read_response(deadline_seconds=0.05)
        assert upstream.requests == []
        relay.to_target.release()
        assert (await connection.read_response()).status == 200


async def test_a_black_hole_accepts_and_a_refusal_does_not(relay: Relay, upstream: RecordingUpstream) -> None:
    """A black hole never reaches the target; after `refuse` nobody connects, until it listens again."""
    relay.black_hole = True
    with pytest.raises(TimeoutError):
        await http.exchange(relay.port, REQUEST, deadline_seconds=0.05)
    assert (relay.connections, upstream.connections) == (1, 0)
    relay.refuse()
    with pytest.raises(ConnectionRefusedError):
        await http.exchange(relay.port, REQUEST)
    relay.black_hole = False
    await relay.listen()
    assert (await http.exchange(relay.port, REQUEST)).status == 200


async def test_every_answer_has_a_nonce_of_its_own(upstream: RecordingUpstream) -> None:
    """The ledger and the client agree on which answer was whose, and a connection serves several requests."""
    async with http.Connection(upstream.port) as connection:
        for _ in range(2):
            await connection.send(REQUEST)
            response = await connection.read_response()
            assert response.header("X-Nonce") == upstream.answers[-1].nonce
    assert [answer.nonce for answer in upstream.answers] == [f"{upstream.port}-1", f"{upstream.port}-2"]
    assert upstream.connections == 1


async def test_scripts_are_played_in_order(upstream: RecordingUpstream) -> None:
    """Each path plays its own scripts, and the last one stays."""
    upstream.on("/pay", Answer(status=500), lambda request: Answer(body=request.body))
    upstream.on(None, Answer(status=404, effect=False))
    seen = [(await http.exchange(upstream.port, REQUEST)).status for _ in range(3)]
    assert seen == [500, 200, 200]
    assert (await http.request(upstream.port, "GET", "/other")).status == 404
    assert [request.number for request in upstream.effects] == [1, 2, 3]


@pytest.mark.parametrize("framing", [Framing.LENGTH, Framing.CHUNKED, Framing.CLOSE], ids=lambda value: value.name)
@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut"])
async def test_a_body_is_complete_or_known_not_to_be(upstream: RecordingUpstream, framing: Framing, cut: bool) -> None:
    """A body cut short is told from a whole one, whatever tells its end."""
    whole = Answer(body=(b"one,", b"two"), framing=framing)
    upstream.on(None, whole)
    response = await http.exchange(upstream.port, REQUEST)
    assert (response.body, response.complete) == (b"one,two", True)
    if cut:
        async with http.Connection(upstream.port) as connection:
            await connection.send(REQUEST.replace(b"HTTP/1.1\r\n", b"HTTP/1.1\r\nConnection: close\r\n"))
            count = len(await connection.read_rest())
        upstream.on(None, Answer(body=(b"one,", b"two"), framing=framing, bytes_max=count - 2, ending=Ending.RESET))
        assert not (await http.exchange(upstream.port, REQUEST)).complete


@pytest.mark.parametrize("ending", [Ending.CLOSE, Ending.RESET], ids=["close", "reset"])
async def test_no_answer_is_told_from_an_answer(upstream: RecordingUpstream, ending: Ending) -> None:
    """A connection that ends before the first byte is no answer; the request is in the ledger, no answer is."""
    upstream.on(None, Answer(bytes_max=0, ending=ending))
    with pytest.raises(http.NoAnswerError):
        await http.exchange(upstream.port, REQUEST)
    assert (len(upstream.requests), upstream.answers) == (1, [])


async def test_an_answer_waits_for_its_release(upstream: RecordingUpstream) -> None:
    """The effect is there before the answer is released, and pieces of a body wait for their events."""
    released, second = asyncio.Event(), asyncio.Event()
    upstream.on(None, Answer(hold=released, body=(b"one", second, b"two"), framing=Framing.CHUNKED))
    async with http.Connection(upstream.port) as connection:
        await connection.send(REQUEST)
        await eventually(lambda: upstream.effects)
        assert upstream.answers == []
        released.set()
        assert b"one" in await connection.reader.readuntil(b"one\r\n")
        second.set()
        assert b"two" in await connection.reader.readuntil(b"two\r\n")


async def test_interim_answers_and_upgrades(upstream: RecordingUpstream) -> None:
    """Interim answers come first, 100 only when it is expected; an upgraded connection echoes."""
    upstream.on("/pay", Answer(interim=((103, (("Link", "</a>"),)),)))
    upstream.on("/echo", Answer(echo=True))
    response = await http.request(upstream.port, "POST", "/pay", [("Expect", "100-continue")], b"x")
    assert [status for status, _ in response.interim] == [100, 103]
    async with http.Connection(upstream.port) as connection:
        await connection.send(http.request_bytes("GET", "/echo", [("Connection", "Upgrade"), ("Upgrade", "echo")]))
        assert (await connection.read_response()).status == 101
        await connection.send(b"\x00ping")
        assert await connection.reader.readexactly(5) == b"\x00ping"


async def test_chunked_requests_are_read_with_their_trailers(upstream: RecordingUpstream) -> None:
    """A chunked request is recorded whole, its trailers apart."""
    head = http.request_bytes("POST", "/", [("Transfer-Encoding", "chunked")])
    await http.exchange(upstream.port, head + b"3\r\nabc\r\n2\r\nde\r\n0\r\nX-Sum: 5\r\n\r\n")
    assert (upstream.requests[0].body, upstream.requests[0].trailers) == (b"abcde", [(b"X-Sum", b"5")])


async def test_certificates_are_trusted_through_their_authority(tmp_path: Path) -> None:
    """A client that trusts the authority reaches a server that it certified."""
    authority = Authority(tmp_path)
    async with RecordingUpstream(tls=authority.issue().server_context()) as upstream:
        assert upstream.url == f"https://127.0.0.1:{upstream.port}"
        response = await http.exchange(upstream.port, REQUEST, tls=authority.client_context())
    assert response.complete
