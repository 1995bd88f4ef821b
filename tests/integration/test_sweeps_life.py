"""Gateways that are frozen beyond their lease, restarted in turn under load, and upstreams that close early."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from tests.support.eventually import eventually
from tests.support.fleet import (
    NOW,
    config_of,
    gateways,
    gateways_on,
    key_of,
    nonce_of,
    process,
    send,
    try_send,
    wait_answered,
)
from tests.support.gateway import GatewayProcess
from tests.support.house import ROUTE, sqlite_store, status_of
from tests.support.http import Response
from tests.support.relay import Relay
from tests.support.upstream import Answer, Ending, Received, RecordingUpstream

_STORED = frozenset(("stored", "replayed"))


@asynccontextmanager
async def pair(
    tmp_path: Path, url: str, upstream: RecordingUpstream
) -> AsyncIterator[tuple[GatewayProcess, GatewayProcess, Relay]]:
    """Two gateways on one Postgres, the first by way of a relay. `/charges` holds, `/orders` sends again."""
    routes = [ROUTE, {**ROUTE, "name": "order", "match": {"path": "/orders"}, "recovery": "resend"}]
    settings = {"lease": "3s", "journal_grace": "0s"}
    port = urlsplit(url).port or 5432
    async with Relay(port) as relay:
        urls = url.replace(f":{port}/", f":{relay.port}/"), url
        configs = [
            (config_of({"durable": url}, tmp_path / name, upstream.url, store=settings, routes=routes), tmp_path / name)
            for name, url in zip(("a", "b"), urls, strict=True)
        ]
        async with gateways(*configs) as (one, two):
            yield one, two, relay


async def test_frozen_while_the_upstream_works(tmp_path: Path, postgres_url: str) -> None:
    """The late answer of a gateway that was frozen beyond its lease ends the doubt, unless another has taken over."""
    async with RecordingUpstream() as upstream, pair(tmp_path, postgres_url, upstream) as (one, two, _):
        holds = defaultdict[str, list[asyncio.Event]](list)

        def held(received: Received) -> Answer:
            hold = asyncio.Event()
            holds[received.values("X-Case")[0].decode()].append(hold)
            return Answer(201, hold=hold)

        upstream.on(None, held)
        held_case, early, late, never = cases = [_Case(path, name) for path, name in _CASES]
        first = {case: asyncio.create_task(case.send(one)) for case in cases}
        await upstream.wait_for_requests(4)
        one.pause()
        await wait_answered(two.port, held_case.name, verdicts=frozenset(("in-doubt",)), **held_case.how)
        second = {case: asyncio.create_task(case.settle(two)) for case in (early, late, never)}
        await upstream.wait_for_requests(7)
        # Three of the first answers come while their gateway is frozen; of the second ones, two.
        for case in (held_case, early, late):
            holds[case.name][0].set()
        for case in (early, never):
            holds[case.name][1].set()
            await second[case]
        one.resume()
        # Its own attempt goes on here, and will end in nothing.
        again = await never.send(one)
        assert (status_of(again), nonce_of(again)) == ((201, "replayed"), nonce_of(await second[never]))
        holds[never.name][0].set()
        answers = {case: await task for case, task in first.items()}
        assert status_of(answers[held_case]) == (201, "stored")
        assert status_of(answers[early]) == status_of(answers[never]) == (201, "replayed")
        assert status_of(answers[late]) == (409, "in-flight")
        holds[late.name][1].set()
        for case in (early, late, never):
            answers[case] = await second[case]
            assert status_of(answers[case]) == (201, "stored")
        for case, answer in answers.items():
            for gateway in (one, two):
                again = await case.send(gateway)
                assert (status_of(again), nonce_of(again)) == ((201, "replayed"), nonce_of(answer))
        for case in cases:
            tokens = [
                int(received.values("Idempotency-Fencing-Token")[0])
                for received in upstream.requests
                if received.values("X-Case") == [case.name.encode()]
            ]
            assert tokens == sorted(set(tokens))
            assert len(tokens) == (1 if case is held_case else 2)


_CASES = (("/charges", "held"), ("/orders", "before"), ("/orders", "after"), ("/orders", "never"))


@dataclass(frozen=True)
class _Case:
    """A key of its own on a route."""

    path: str
    name: str

    @property
    def how(self) -> dict[str, Any]:
        return {"target": self.path, "headers": (("X-Case", self.name), *NOW)}

    async def send(self, gateway: GatewayProcess) -> Response:
        return await send(gateway.port, self.name, **self.how)

    async def settle(self, gateway: GatewayProcess) -> Response:
        return await wait_answered(gateway.port, self.name, verdicts=_STORED, **self.how)


async def test_frozen_before_the_first_byte(tmp_path: Path, postgres_url: str) -> None:
    """A gateway that was frozen between its grant and the first byte until its lease was over sends nothing."""
    async with RecordingUpstream() as upstream, pair(tmp_path, postgres_url, upstream) as (one, two, relay):
        assert status_of(await send(one.port, "warm")) == (200, "stored")
        for case, is_sent_again in ((_Case("/charges", "held"), False), (_Case("/orders", "sent-again"), True)):
            relay.to_client.hold()
            first = asyncio.create_task(case.send(one))
            await eventually(partial(_is_claimed, postgres_url), what="it has claimed, and has not heard so")
            one.pause()
            relay.to_client.release()
            answer = None
            if is_sent_again:
                answer = await case.settle(two)
            else:
                await wait_answered(two.port, case.name, verdicts=frozenset(("in-doubt",)), **case.how)
            one.resume()
            late = await first
            assert late.status in ((200, 503) if is_sent_again else (503,))
            last = await case.settle(two)
            assert last.status == 200
            assert answer is None or nonce_of(last) == nonce_of(answer)
            assert late.status == 503 or nonce_of(late) == nonce_of(last)
        assert len(upstream.requests) == 3


async def _is_claimed(url: str) -> bool:
    """Whether there is a live claim."""
    connection = await asyncpg.connect(url)
    try:
        statement = "SELECT count(*) > 0 FROM idempotency_gateway.operation WHERE state = 'claimed'"
        return bool(await connection.fetchval(statement))
    finally:
        await connection.close()


@pytest.mark.parametrize("how", ["idle for 300 ms", "after every answer"])
async def test_upstream_that_closes_early(tmp_path: Path, how: str) -> None:
    """Steady traffic to an upstream that closes its connections early brings nothing into doubt, and nothing twice."""
    store = sqlite_store(tmp_path)
    source = random.Random(1)
    pauses = [[source.uniform(0.0, 0.6) for _ in range(15)] for _ in range(8)]
    async with RecordingUpstream() as upstream, process(store, tmp_path, upstream.url) as gateway:
        if how == "after every answer":
            upstream.on("/charges", Answer(201, ending=Ending.CLOSE))
        else:
            upstream.idle_seconds = 0.3
            upstream.on("/charges", Answer(201))

        async def client(number: int) -> list[Response]:
            answers = []
            for index, pause in enumerate(pauses[number]):
                answers.append(await send(gateway.port, f"{number}-{index}"))
                await asyncio.sleep(pause)
            return answers

        answers = [answer for some in await asyncio.gather(*map(client, range(8))) for answer in some]
        assert Counter(map(status_of, answers)) == {(201, "stored"): 120}
        assert len(upstream.effects) == 120


async def test_rolling_restarts_under_load(tmp_path: Path, postgres_url: str, redis_url: str) -> None:
    """While two gateways are restarted in turn, everything that clients retry is answered once and for all."""
    store = {"durable": postgres_url, "fast": redis_url}
    shutdown = {"delay": "100ms", "drain_timeout": "10s"}
    async with (
        RecordingUpstream() as upstream,
        gateways_on(store, tmp_path, upstream.url, "ab", shutdown=shutdown) as (one, two),
    ):
        upstream.on("/charges", lambda received: Answer(201, body=(b"a", _later(), b"b")))
        done = asyncio.Event()
        words: Counter[tuple[int, str | None] | None] = Counter()
        answers: dict[str, Response] = {}

        async def client(number: int) -> None:
            source = random.Random(number)
            for index in range(100_000):
                if done.is_set():
                    return
                key = f"{number}-{index}"
                while key not in answers:
                    response = await try_send(source.choice((one, two)).port, key)
                    words[None if response is None else status_of(response)] += 1
                    if response is not None and response.status == 201:
                        answers[key] = response
                    await asyncio.sleep(0.05)

        async with asyncio.TaskGroup() as clients:
            for number in range(8):
                clients.create_task(client(number))
            for gateway in (one, two, one):
                answered = len(answers)
                gateway.ask_to_stop()
                assert await gateway.wait_exit() == 0
                await gateway.start()
                assert len(answers) > answered, "the other one serves meanwhile"
            done.set()
        assert set(words) <= {None, (201, "stored"), (201, "replayed"), (409, "in-flight"), (503, "overloaded")}, words
        retries = await asyncio.gather(*[send(one.port, key) for key in answers])
        for first, again in zip(answers.values(), retries, strict=True):
            assert (status_of(again), nonce_of(again)) == ((201, "replayed"), nonce_of(first))
        assert Counter(map(key_of, upstream.effects)) == Counter(answers.keys())


def _later() -> asyncio.Event:
    """An event that is set in a moment: something is always under way."""
    event = asyncio.Event()
    asyncio.get_running_loop().call_later(0.03, event.set)
    return event
