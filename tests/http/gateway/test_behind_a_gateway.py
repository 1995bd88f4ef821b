"""A gateway in front of a gateway: what the inner one says of a request is what the outer one knows of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.http.gateway.asking import until
from tests.support.accepting import accepting
from tests.support.eventually import eventually
from tests.support.house import BODY, House, house, neighbour, sqlite_store, status_of
from tests.support.http import Response
from tests.support.upstream import Answer, Ending, RecordingUpstream

LOST: Final = Answer(bytes_max=0, ending=Ending.CLOSE)
# Takes no status of a failing service for a promise that nothing happened.
PAYMENTS: Final[dict[str, Any]] = {
    "route": {"outcome": {"preset": "payments"}},
    "secrets": {"fingerprint_key": {"id": "k", "key": "0123456789abcdef0123456789abcdef"}},
}


@dataclass
class Chain:
    """Clients ask `outer`, which asks `inner`, which asks `service`."""

    outer: House
    inner: House

    @property
    def service(self) -> RecordingUpstream:
        return self.inner.upstream


@asynccontextmanager
async def chain(directory: Path, *, inner: dict[str, Any] | None = None, **outer: Any) -> AsyncIterator[Chain]:
    """Two gateways, one behind the other; `outer` are changes of the outer one's configuration."""
    async with house(sqlite_store(directory / "in"), directory / "in", **(inner or {})) as behind:
        # Also where the outer one sends again, so that the tests can ask the inner one about the same key.
        upstream = {"url": f"http://127.0.0.1:{behind.port}", "key": "original"} | outer.pop("upstream", {})
        config = {"service": "outer", "upstream": upstream} | outer
        store = sqlite_store(directory / "out")
        async with neighbour(store, directory / "out", behind.upstream, **config) as before:
            yield Chain(before, behind)


async def both(it: Chain, *first: tuple[int, str | None], **request: Any) -> list[Response]:
    """Send one request so often, and compare what its client gets each time."""
    responses = [await it.outer.send("k1", **request) for _ in first]
    assert [status_of(response) for response in responses] == list(first)
    return responses


async def test_final_for_the_inner_one(tmp_path: Path) -> None:
    """What the inner one keeps, whatever the outer one would think of its status."""
    async with chain(tmp_path, inner={"route": {"outcome": {"preset": "standard", "final": [500]}}}) as it:
        it.service.on("/charges", Answer(500))
        await both(it, (500, "stored"), (500, "replayed"))
        assert len(it.service.requests) == 1


@pytest.mark.parametrize("answer", [Answer(500), LOST], ids=["answered", "lost"])
async def test_doubt_of_the_inner_one(tmp_path: Path, answer: Answer) -> None:
    """It is the outer one's doubt, although a 500 means to it that nothing happened."""
    async with chain(tmp_path, inner=PAYMENTS) as it:
        it.service.on("/charges", answer, Answer(200))
        await both(it, (500 if answer is not LOST else 502, "in-doubt"), (409, "in-doubt"))
        assert len(it.service.requests) == 1


async def test_doubt_that_is_resolved_behind(tmp_path: Path) -> None:
    """The inner one's 409 is never kept: once it knows, the outer one's client gets that."""
    probe = {"path": "/done?key={key}", "done": [{"status": [201]}]}
    inner = {"route": {"recovery": {"probe": probe}, "in_flight": {"wait": "0s"}}}
    async with chain(tmp_path, inner=inner, route={"recovery": "resend"}) as it:
        it.service.on("/charges", LOST)
        it.service.on(None, Answer(500, effect=False))
        await both(it, (502, "in-doubt"), (409, "in-doubt"))
        it.service.on(None, *[Answer(201, body=b"made", effect=False)] * 50)

        async def is_known() -> bool:
            response = await it.outer.send("k1")
            return (response.status, response.body) == (201, b"made")

        await eventually(is_known, what="the outer one has what the inner one found")
        await both(it, (201, "replayed"))
        assert len(it.service.effects) == 1


@pytest.mark.parametrize("recovery", ["hold", "resend"])
async def test_in_flight_at_the_inner_one(tmp_path: Path, recovery: str) -> None:
    """Somebody else's request with this key runs there: that is doubt, and no promise that nothing happens."""
    inner = {"route": {"in_flight": {"wait": "0s"}}}
    async with chain(tmp_path, inner=inner, route={"recovery": recovery}) as it:
        running, hold = await it.inner.begin()
        (refused,) = await both(it, (409, "in-doubt"))
        assert refused.json()["code"] == "in-flight"
        hold.set()
        assert status_of(await running) == (200, "stored")
        await both(it, (200, "stored") if recovery == "resend" else (409, "in-doubt"))
        assert len(it.service.effects) == 1


async def test_a_mismatch_under_doubt(tmp_path: Path) -> None:
    """It says nothing of the first attempt, which may have had its effect."""
    inner = {"route": {"fingerprint": {"headers": ["X-Version"]}}}
    async with chain(tmp_path, inner=inner, route={"recovery": "resend"}) as it:
        it.service.on("/charges", LOST)
        await both(it, (502, "in-doubt"), headers=[("X-Version", "1")])
        await both(it, (422, "in-doubt"), (422, "in-doubt"), headers=[("X-Version", "2")])


NOT_TAKEN: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "key-missing": ({}, {"upstream": {"key": "none"}}, 400),
    "body-too-large": ({"body": {"max_bytes": len(BODY) - 1}}, {}, 413),
    "scope-missing": ({"scope": {"api_key": "Authorization"}}, {}, 401),
}


@pytest.mark.parametrize("code", NOT_TAKEN)
async def test_what_the_inner_one_does_not_take(tmp_path: Path, code: str) -> None:
    """Nothing was executed, and once its configuration takes the request, the same key gets on."""
    inner, outer, status = NOT_TAKEN[code]
    async with chain(tmp_path, inner={"route": inner}, **outer) as it:
        for response in await both(it, (status, "released"), (status, "released")):
            assert response.json()["code"] == code
        assert it.service.requests == []


async def test_what_the_inner_one_fetches(tmp_path: Path) -> None:
    """It is over, but a response that cannot be fetched now is not the one to keep."""
    async with chain(tmp_path, inner={"route": {"response": {"replay": "fetch"}}}) as it:
        it.service.on("/charges", Answer(201, headers=(("Location", "/charges/1"),)))
        assert status_of(await it.inner.send("k1")) == (201, "response-not-stored")
        it.service.on("/charges/1", Answer(404, effect=False), Answer(200, body=b"made", effect=False))
        await both(it, (404, "released"), (200, "stored"), (200, "replayed"))
        assert len(it.service.effects) == 1


async def test_what_the_inner_one_accepted(tmp_path: Path) -> None:
    """Its 202 is the response; that it has not delivered what it accepted, or could not, is doubt."""
    wants_no_answer = [("Prefer", "respond-async")]
    async with chain(tmp_path, inner=accepting(delivers=True)) as it:
        hold = asyncio.Event()
        it.service.on("/charges", Answer(401, effect=False, hold=hold))
        assert status_of(await it.inner.send("k1", headers=wants_no_answer)) == (202, "accepted")
        (refused,) = await both(it, (409, "in-doubt"))
        assert refused.json()["code"] == "in-flight"
        hold.set()
        await until((409, "dead-letter"), it.inner.send, "k1")
        assert (await it.inner.send("k1")).header("Idempotency-Outcome") == "in-doubt"
        for verdict in ("stored", "replayed"):
            response = await it.outer.send("k2", headers=wants_no_answer)
            assert status_of(response) == (202, verdict)


async def test_what_is_said_to_whom(tmp_path: Path) -> None:
    """A gateway's own responses declare their outcome; no client can, neither to a gateway nor to a service that
    returns what it gets, and what a service declares ends at the gateway in front of it."""
    async with chain(tmp_path) as it:
        it.service.on("/charges", LOST)
        assert (await it.inner.send("k1")).header("Idempotency-Outcome") == "in-doubt"
        assert (await it.inner.send("k1")).header("Idempotency-Outcome") == "in-doubt"
        assert (await it.inner.send("k1", b"{}")).header("Idempotency-Outcome") == "retryable"
        assert (await it.inner.send(None)).header("Idempotency-Outcome") == "retryable"

        def echo(received: Any) -> Answer:
            names = ("idempotency-status", "idempotency-outcome", "idempotency_outcome", "idempotency-retention")
            return Answer(headers=[(name, value.decode()) for name in names for value in received.values(name)])

        it.service.on("/charges", echo)
        forged = [("Idempotency-Status", "released"), ("Idempotency-Outcome", "retryable")]
        forged += [("idempotency_outcome", "retryable"), ("Idempotency-Retention", "0")]
        await both(it, (409, "in-doubt"), headers=forged)
        response = await it.outer.send("k2", headers=forged)
        assert status_of(response) == (200, "stored")
        assert response.values("Idempotency-Outcome") == []
        assert status_of(await it.outer.send("k2", headers=forged)) == (200, "replayed")


OUTSTANDING: Final = b'{"title":"A request is outstanding for this Idempotency-Key"}'


@pytest.mark.parametrize(
    ("headers", "body", "verdict", "stored"),
    [
        ([], OUTSTANDING, "in-doubt", 1000),
        ([], OUTSTANDING, "in-doubt", 0),
        ([("Retry-After", "1")], OUTSTANDING, "in-doubt", 1000),
        ([], b'{"error":{"code":"idempotency_key_in_use"}}', "in-doubt", 1000),
        ([("Content-Type", "text/plain")], b"A request with this idempotency key is in progress.", "in-doubt", 1000),
        ([], b'{"error":"the order is being processed"}', "stored", 1000),
        ([], b"", "stored", 1000),
        ([("Retry-After", "1")], b'{"error":"the order is being processed"}', "released", 1000),
    ],
    ids=["draft", "draft-not-stored", "draft-later", "stripe", "text", "business", "empty", "business-later"],
)
async def test_a_service_that_says_outstanding(
    tmp_path: Path, headers: list[tuple[str, str]], body: bytes, verdict: str, stored: int
) -> None:
    """Its 409 is about the key and not about the request, so it is not the response to it."""
    then = {"in-doubt": (409, "in-doubt"), "released": (201, "stored"), "stored": (409, "replayed")}
    async with house(sqlite_store(tmp_path), tmp_path, route={"response": {"max_stored_bytes": stored}}) as home:
        home.upstream.on("/charges", Answer(409, headers=headers, body=body, effect=False), Answer(201))
        first, again = await home.send("k1"), await home.send("k1")
        assert (status_of(first), first.body) == ((409, verdict), body)
        assert status_of(again) == then[verdict]
