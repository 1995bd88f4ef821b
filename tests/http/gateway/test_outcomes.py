"""Every row of the outcome table, over HTTP, on every store: what a client gets, and what a retry does."""

from __future__ import annotations

import asyncio
import gzip
from pathlib import Path
from typing import Any

import pytest

from tests.http.gateway.asking import until
from tests.support import http
from tests.support.eventually import eventually
from tests.support.house import house, neighbour, status_of
from tests.support.ports import free_port
from tests.support.upstream import Answer, Ending, Framing, RecordingUpstream

Store = dict[str, Any]


async def test_nothing_sent(sqlite: Store, tmp_path: Path) -> None:
    """An upstream that refuses: 502, nothing was sent, and the retry runs when it is back."""
    port = free_port()
    async with house(sqlite, tmp_path, upstream={"url": f"http://127.0.0.1:{port}"}) as home:
        response = await home.send("k1")
        assert status_of(response) == (502, "upstream-unreachable")
        assert response.json()["retryable"] is True
        assert "nothing was sent" in response.json()["detail"]
        async with RecordingUpstream(port=port) as upstream:
            assert status_of(await home.send("k1")) == (200, "stored")
            assert status_of(await home.send("k1")) == (200, "replayed")
            assert len(upstream.requests) == 1


@pytest.mark.parametrize(
    ("preset", "status", "verdict"),
    [
        ("standard", 302, "stored"),
        ("standard", 404, "stored"),
        ("standard", 502, "in-doubt"),
        ("payments", 500, "in-doubt"),
        ("success_only", 404, "released"),
    ],
    ids=str,
)
async def test_complete_response(sqlite: Store, tmp_path: Path, preset: str, status: int, verdict: str) -> None:
    """The client gets the response as it is; whether a retry runs is what the preset says of its status."""
    secrets = {"fingerprint_key": {"id": "k", "key": "0123456789abcdef0123456789abcdef"}}
    then = {
        "stored": ((status, "replayed"), b"first"),
        "released": ((status, "released"), b"second"),
        "in-doubt": ((409, "in-doubt"), None),
    }[verdict]
    async with house(sqlite, tmp_path, route={"outcome": {"preset": preset}}, secrets=secrets) as home:
        home.upstream.on("/charges", Answer(status, body=b"first"), Answer(status, body=b"second"))
        first, again = await home.send("k1"), await home.send("k1")
        assert (status_of(first), first.body) == ((status, verdict), b"first")
        assert (status_of(again), then[1] and again.body) == then
        assert len(home.upstream.requests) == (2 if verdict == "released" else 1)


STRANGER, OWNER, DOOR = b"stranger", b"owner", (401, "released")
STORED, REPLAYED, REUSED = (200, "stored"), (200, "replayed"), (422, "key-reused")


@pytest.mark.parametrize(
    ("statuses", "steps"),
    [
        pytest.param([401, 200], [(STRANGER, DOOR), (OWNER, STORED), (OWNER, REPLAYED), (STRANGER, REUSED)], id="401"),
        pytest.param([403, 200], [(STRANGER, (403, "released")), (OWNER, STORED), (STRANGER, REUSED)], id="403"),
        pytest.param(
            [503, 401, 200], [(OWNER, (503, "released")), (OWNER, DOOR), (STRANGER, REUSED), (OWNER, STORED)],
            id="the-owner-was-there-first",
        ),
    ],
)  # fmt: skip
async def test_a_stranger_poisons_nothing(
    store: Store, tmp_path: Path, statuses: list[int], steps: list[tuple[bytes, tuple[int, str]]]
) -> None:
    """A first attempt that was refused at the door leaves the key free for its owner, whatever the stranger sent; a
    later one does not free it for others."""
    async with house(store, tmp_path) as home:
        home.upstream.on("/charges", *map(Answer, statuses))
        for body, expected in steps:
            assert status_of(await home.send("k1", body)) == expected


LOST = {
    "close": Answer(bytes_max=0, ending=Ending.CLOSE),
    "body-reset": Answer(body=b"x" * 50, bytes_max=130, ending=Ending.RESET),
    "two-lengths": Answer(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"),
    "bad-status": Answer(raw=b"HTTP/1.1 20x OK\r\n\r\n"),
    "control": Answer(raw=b"HTTP/1.1 200 OK\r\nX-Title: a\x1b[2J\r\nContent-Length: 0\r\n\r\n"),
    "head-too-long": Answer(headers=(("X-Long", "x" * 70_000),)),
}


@pytest.mark.parametrize("answer", LOST.values(), ids=LOST)
async def test_no_complete_response(sqlite: Store, tmp_path: Path, answer: Answer) -> None:
    """When a byte may have left and no complete response came, the key is in doubt and no retry runs it again."""
    async with house(sqlite, tmp_path) as home:
        home.upstream.on("/charges", answer, Answer())
        first = await home.send("k1")
        assert status_of(first) == (502, "in-doubt")
        assert "Do not send it again under a new key" in first.json()["detail"]
        for _ in range(2):
            assert status_of(await home.send("k1")) == (409, "in-doubt")
        assert len(home.upstream.effects) == 1


async def test_silence_is_never_nothing(sqlite: Store, tmp_path: Path) -> None:
    """An attempt that was given up for lack of an answer is in doubt, and no retry runs it again."""
    async with house(sqlite, tmp_path, upstream={"answer_within": "300ms", "response_timeout": "300ms"}) as home:
        home.upstream.on("/charges", Answer(bytes_max=0, ending=Ending.SILENCE), Answer(effect=False))
        await home.send("k1")
        await eventually(lambda: home.gateway.coordinator.in_flight == 0)
        assert status_of(await home.send("k1")) == (409, "in-doubt")
        assert len(home.upstream.requests) == 1


async def test_client_time_is_over_and_the_attempt_goes_on(sqlite: Store, tmp_path: Path) -> None:
    """After `answer_within` the client hears `in-flight`; the attempt is recorded, and the retry gets its answer."""
    async with house(sqlite, tmp_path, upstream={"answer_within": "100ms"}) as home:
        hold = asyncio.Event()
        home.upstream.on("/charges", Answer(201, hold=hold))
        response = await home.send("k1")
        assert status_of(response) == (504, "in-flight")
        assert response.json()["retryable"] is True
        retry = asyncio.create_task(home.send("k1"))
        await eventually(lambda: home.gateway.coordinator.waiters == 1)
        hold.set()
        assert status_of(await retry) == (201, "replayed")
        assert len(home.upstream.requests) == 1


async def test_client_disconnect_cancels_nothing(sqlite: Store, tmp_path: Path) -> None:
    """A client that goes away before its answer finds it when it comes back."""
    async with house(sqlite, tmp_path) as home:
        hold = asyncio.Event()
        home.upstream.on("/charges", Answer(201, hold=hold, body=b"answer"))
        async with http.Connection(home.port) as connection:
            fields = [("Idempotency-Key", "k1"), ("X-Tenant", "t1"), ("Content-Type", "application/json")]
            await connection.send(http.request_bytes("POST", "/charges", fields, b'{"amount":1000,"currency":"eur"}'))
            await home.upstream.wait_for_requests(1)
            connection.reset()
        # Whoever is answered on a later connection comes after the news that the first one is gone.
        assert (await home.send(None)).status == 400
        hold.set()
        again = await home.send("k1")
        assert (status_of(again), again.body) == ((201, "replayed"), b"answer")
        assert len(home.upstream.requests) == 1


EVENTS = (("Content-Type", "text/event-stream"),)


@pytest.mark.parametrize(
    ("headers", "framing", "limit"),
    [((), framing, 1000) for framing in (Framing.LENGTH, Framing.CHUNKED, Framing.CLOSE)]
    + [(EVENTS, Framing.CHUNKED, 100_000)],
    ids=["LENGTH", "CHUNKED", "CLOSE", "event-stream"],
)
async def test_too_long_is_recorded_before_its_first_byte(
    sqlite: Store, tmp_path: Path, headers: Any, framing: Framing, limit: int
) -> None:
    """A body over the limit, and a stream of events of any length, is passed on as it comes, once, after its outcome
    was recorded."""
    body = b"x" * 5000
    async with house(sqlite, tmp_path, route={"response": {"max_stored_bytes": limit}}) as home:
        rest = asyncio.Event()
        home.upstream.on("/charges", Answer(headers=headers, body=(body, rest, body), framing=framing))
        task = asyncio.create_task(home.send("k1"))
        await home.upstream.wait_for_requests(1)
        await until((409, "response-not-stored"), home.send, "k1")
        assert not task.done()
        rest.set()
        first = await task
        assert (status_of(first), first.body, first.complete) == ((200, "response-not-stored"), body * 2, True)


@pytest.mark.parametrize(
    ("status", "cut", "verdict", "retry"),
    [
        (503, {}, "released", (200, "stored")),
        (502, {}, "in-doubt", (409, "in-doubt")),
        (200, {"bytes_max": 1000, "ending": Ending.RESET}, "response-not-stored", (409, "response-not-stored")),
    ],
    ids=["retryable", "in-doubt", "truncated"],
)
async def test_a_streamed_response_is_what_its_head_says(
    sqlite: Store, tmp_path: Path, status: int, cut: dict[str, Any], verdict: str, retry: tuple[int, str]
) -> None:
    """Also when it is cut short: then it does not end cleanly, and what was recorded stays."""
    async with house(sqlite, tmp_path, route={"response": {"max_stored_bytes": 10}}) as home:
        streamed = Answer(status, body=b"x" * 3000, framing=Framing.CHUNKED, **cut)
        home.upstream.on("/charges", streamed, Answer(body=b"ok"))
        first = await home.send("k1")
        assert (status_of(first), first.complete) == ((status, verdict), not cut)
        assert cut or first.body == b"x" * 3000
        assert status_of(await home.send("k1")) == retry
        assert len(home.upstream.requests) == (2 if verdict == "released" else 1)


async def test_streams_that_last_keep_no_operation_from_the_upstream(sqlite: Store, tmp_path: Path) -> None:
    """An operation whose answer is only passed on any more has given its place to the next."""
    limits = {"limits": {"max_in_flight": 1}, "upstream": {"max_connections": 1}}
    async with house(sqlite, tmp_path, route={"response": {"max_stored_bytes": 10}}, **limits) as home:
        rest = asyncio.Event()
        home.upstream.on("/charges", Answer(body=(b"x" * 100, rest, b"y")))
        streams = []
        for number in range(4):
            streams.append(asyncio.create_task(home.send(f"k{number}")))
            await home.upstream.wait_for_requests(number + 1)
            await eventually(lambda: home.gateway.coordinator.in_flight == 0)
        rest.set()
        for stream in streams:
            assert status_of(await stream) == (200, "response-not-stored")


async def test_upstream_declares_outcome_and_retention(sqlite: Store, tmp_path: Path) -> None:
    """The upstream's own verdict decides over the preset, and its fields never reach the client."""
    async with house(sqlite, tmp_path) as home:
        home.upstream.on(
            "/charges",
            Answer(500, headers=(("Idempotency-Outcome", "final"), ("Idempotency-Retention", "1"))),
            Answer(200),
        )
        first = await home.send("k1")
        assert status_of(first) == (500, "stored")
        assert first.values("Idempotency-Outcome") == first.values("Idempotency-Retention") == []
        await until((410, "key-expired"), home.send, "k1")
        assert len(home.upstream.requests) == 1


async def test_waiters_of_a_failing_request_do_not_run_it(store: Store, tmp_path: Path) -> None:
    """Duplicates that wait for a request which is then released share its answer, and none of them executes."""
    route = {"in_flight": {"wait": "20s"}}
    async with (
        house(store, tmp_path, route=route) as home,
        neighbour(store, tmp_path / "n", home.upstream, route=route) as other,
    ):
        first, hold = await home.begin(answer=Answer(503, body=b"later"))
        here, there = [[asyncio.create_task(each.send("k1")) for _ in range(5)] for each in (home, other)]
        await eventually(lambda: home.gateway.coordinator.waiters == other.gateway.coordinator.waiters == 5)
        hold.set()
        assert status_of(await first) == (503, "released")
        for response in await asyncio.gather(*here):
            assert (status_of(response), response.body) == ((503, "released"), b"later")
        for response in await asyncio.gather(*there):
            assert (status_of(response), response.header("Retry-After")) == ((503, "released"), "1")
        assert len(home.upstream.requests) == 1


COOKIES = Answer(headers=(("Set-Cookie", "session=1"), ("Set-Cookie", "b=2"), ("X-Kept", "1")))


@pytest.mark.parametrize(
    ("answer", "cookies", "verdict", "shared"),
    [
        (Answer(401, body=b"who are you"), [], "released", (503, "released")),
        (COOKIES, [b"session=1", b"b=2"], "stored", (200, "replayed")),
    ],
    ids=["refused", "cookies"],
)
async def test_what_is_for_the_first_caller_alone(
    store: Store, tmp_path: Path, answer: Answer, cookies: list[bytes], verdict: str, shared: tuple[int, str]
) -> None:
    """What a stranger was told at the door, and cookies, are not told to those who waited, nor in a replay."""
    async with house(store, tmp_path, route={"in_flight": {"wait": "20s"}}) as home:
        task, hold = await home.begin(answer=answer)
        waiting = asyncio.create_task(home.send("k1"))
        await eventually(lambda: home.gateway.coordinator.waiters == 1)
        hold.set()
        first, others = await task, [await waiting]
        assert (status_of(first), first.body) == ((answer.status, verdict), answer.body)
        assert first.values("Set-Cookie") == cookies
        if verdict == "stored":
            others.append(await home.send("k1"))
        for response in others:
            assert (status_of(response), response.values("Set-Cookie")) == (shared, [])
            assert b"who are you" not in response.body
            assert response.values("X-Kept") == first.values("X-Kept")


async def test_replay_in_an_accepted_coding(sqlite: Store, tmp_path: Path) -> None:
    """A stored coding is replayed byte for byte to who accepts it, and decoded for who does not."""
    body = b'{"id":1}' * 50
    coded = gzip.compress(body)
    headers = (("Content-Encoding", "gzip"), ("ETag", '"a"'), ("Content-Type", "application/json"))
    async with house(sqlite, tmp_path) as home:
        home.upstream.on("/charges", Answer(headers=headers, body=coded))
        assert (await home.send("k1", headers=[("Accept-Encoding", "gzip")])).body == coded
        same = await home.send("k1", headers=[("Accept-Encoding", "br, gzip")])
        assert (same.body, same.header("Content-Encoding"), same.header("ETag")) == (coded, "gzip", '"a"')
        plain = await home.send("k1", headers=[("Accept-Encoding", "identity")])
        assert (plain.body, plain.header("Content-Encoding"), plain.header("ETag")) == (body, None, 'W/"a"')


async def test_what_is_forwarded(sqlite: Store, tmp_path: Path) -> None:
    """The upstream sees the request as sent, the operation and its token, and nobody else may say those."""
    async with house(sqlite, tmp_path) as home:
        forged = [("Idempotency-Operation", "forged"), ("Idempotency_Fencing_Token", "9"), ("X-Mine", "1")]
        home.upstream.on("/charges", Answer(503), Answer(200))
        await home.send("k1", headers=forged)
        await home.send("k1", headers=forged)
        one, two = home.upstream.requests
        assert one.body == two.body == b'{"amount":1000,"currency":"eur"}'
        assert one.values("Idempotency-Key") == [b"k1"]
        assert one.values("Idempotency_Fencing_Token") == []
        assert one.values("Idempotency-Operation") == two.values("Idempotency-Operation") != [b"forged"]
        tokens = [int(each.values("Idempotency-Fencing-Token")[0]) for each in (one, two)]
        assert tokens[0] < tokens[1]
        assert one.values("X-Mine") == [b"1"]


async def test_what_outlives_the_drain_is_said_to_be_in_doubt(sqlite: Store, tmp_path: Path) -> None:
    """It is in doubt at once, not when its lease would have lapsed, and nobody runs it again."""
    changes: dict[str, Any] = {"route": {"in_flight": {"wait": "0s"}}}
    async with RecordingUpstream() as upstream:
        upstream.on("/charges", Answer(hold=asyncio.Event()), Answer())
        short = {"delay": "0s", "drain_timeout": "100ms"}
        async with neighbour(sqlite, tmp_path, upstream, shutdown=short, **changes) as home:
            sending = asyncio.create_task(home.send("k1"))
            await upstream.wait_for_requests(1)
        await asyncio.gather(sending, return_exceptions=True)
        async with neighbour(sqlite, tmp_path / "n", upstream, **changes) as other:
            assert status_of(await other.send("k1")) == (409, "in-doubt")
        assert len(upstream.requests) == 1
