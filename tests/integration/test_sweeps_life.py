"""Gateways that are frozen beyond their lease, restarted in turn under load, and upstreams that close early."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.integration.hand import assert_replayed, by_way_of, soon
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
from tests.support.postgres import session
from tests.support.relay import Relay
from tests.support.upstream import Answer, Ending, Received, RecordingUpstream


@asynccontextmanager
async def pair(
    tmp_path: Path, url: str, upstream: RecordingUpstream
) -> AsyncIterator[tuple[GatewayProcess, GatewayProcess, Relay]]:
    """Two gateways on one Postgres, the first by way of a relay. `/charges` holds, `/orders` sends again."""
    routes = [ROUTE, {**ROUTE, "name": "order", "match": {"path": "/orders"}, "recovery": "resend"}]
    changes: Any = {"store": {"lease": "3s", "journal_grace": "0s"}, "routes": routes}
    async with Relay(urlsplit(url).port or 5432) as relay:
        urls = {tmp_path / "a": by_way_of(relay, url), tmp_path / "b": url}
        configs = [
            (config_of({"durable": each}, place, upstream.url, **changes), place) for place, each in urls.items()
        ]
        async with gateways(*configs) as (one, two):
            yield one, two, relay


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

    async def wait(self, gateway: GatewayProcess, *verdicts: str) -> Response:
        return await wait_answered(gateway.port, self.name, verdicts=frozenset(verdicts), **self.how)


async def test_frozen_while_the_upstream_works(tmp_path: Path, postgres_url: str, upstream: RecordingUpstream) -> None:
    """The late answer of a gateway that was frozen beyond its lease ends the doubt, unless another has taken over."""
    holds = defaultdict[str, list[asyncio.Event]](list)

    def held(received: Received) -> Answer:
        holds[received.values("X-Case")[0].decode()].append(hold := asyncio.Event())
        return Answer(201, hold=hold)

    for path in ("/charges", "/orders"):
        upstream.on(path, held)
    held_case, resent = _Case("/charges", "held"), [_Case("/orders", name) for name in ("before", "after", "never")]
    early, late, never = resent
    async with pair(tmp_path, postgres_url, upstream) as (one, two, _):
        first = {case: asyncio.create_task(case.send(one)) for case in (held_case, *resent)}
        await upstream.wait_for_requests(4)
        one.pause()
        await held_case.wait(two, "in-doubt")
        second = {case: asyncio.create_task(case.wait(two, "stored", "replayed")) for case in resent}
        await upstream.wait_for_requests(7)
        # Three of the first answers come while their gateway is frozen; of the second ones, two.
        for case in (held_case, early, late):
            holds[case.name][0].set()
        for case in (early, never):
            holds[case.name][1].set()
            await second[case]
        one.resume()
        # Its own attempt goes on here, and will end in nothing.
        await assert_replayed(never.name, await second[never], one, **never.how)
        holds[never.name][0].set()
        answers = {case: await task for case, task in first.items()}
        assert status_of(answers[held_case]) == (201, "stored")
        assert status_of(answers[early]) == status_of(answers[never]) == (201, "replayed")
        assert status_of(answers[late]) == (409, "in-flight")
        holds[late.name][1].set()
        for case in resent:
            answers[case] = await second[case]
            assert status_of(answers[case]) == (201, "stored")
        for case, answer in answers.items():
            await assert_replayed(case.name, answer, one, two, **case.how)
            tokens = [
                int(received.values("Idempotency-Fencing-Token")[0])
                for received in upstream.requests
                if received.values("X-Case") == [case.name.encode()]
            ]
            assert tokens == sorted(set(tokens))
            assert len(tokens) == (1 if case is held_case else 2)


async def test_frozen_before_the_first_byte(tmp_path: Path, postgres_url: str, upstream: RecordingUpstream) -> None:
    """A gateway that was frozen between its grant and the first byte until its lease was over sends nothing."""
    upstream.on(None, Answer(201))

    async def is_claimed() -> bool:
        async with session(postgres_url) as connection:
            statement = "SELECT count(*) > 0 FROM idempotency_gateway.operation WHERE state = 'claimed'"
            return bool(await connection.fetchval(statement))

    async with pair(tmp_path, postgres_url, upstream) as (one, two, relay):
        assert status_of(await send(one.port, "warm")) == (201, "stored")
        for case, is_sent_again in ((_Case("/charges", "held"), False), (_Case("/orders", "sent-again"), True)):
            relay.to_client.hold()
            first = asyncio.create_task(case.send(one))
            await eventually(is_claimed, what="it has claimed, and has not heard so")
            one.pause()
            relay.to_client.release()
            answer = await case.wait(two, *(("stored", "replayed") if is_sent_again else ("in-doubt",)))
            one.resume()
            late = await first
            assert late.status in ((201, 503) if is_sent_again else (503,))
            last = await case.wait(two, "stored", "replayed")
            assert last.status == 201
            assert not is_sent_again or nonce_of(last) == nonce_of(answer)
            assert late.status == 503 or nonce_of(late) == nonce_of(last)
        assert len(upstream.requests) == 3


@pytest.mark.parametrize("how", ["idle for 300 ms", "after every answer"])
async def test_upstream_that_closes_early(tmp_path: Path, upstream: RecordingUpstream, how: str) -> None:
    """Steady traffic to an upstream that closes its connections early brings nothing into doubt, and nothing twice."""
    source = random.Random(1)
    pauses = [[source.uniform(0.0, 0.6) for _ in range(15)] for _ in range(8)]
    if how == "after every answer":
        upstream.on("/charges", Answer(201, ending=Ending.CLOSE))
    else:
        upstream.idle_seconds = 0.3
    async with process(sqlite_store(tmp_path), tmp_path, upstream) as gateway:

        async def client(number: int) -> list[Response]:
            answers = []
            for index, pause in enumerate(pauses[number]):
                answers.append(await send(gateway.port, f"{number}-{index}"))
                await asyncio.sleep(pause)
            return answers

        answers = [answer for some in await asyncio.gather(*map(client, range(8))) for answer in some]
        assert Counter(map(status_of, answers)) == {(201, "stored"): 120}
        assert len(upstream.effects) == 120


async def test_rolling_restarts_under_load(
    tmp_path: Path, postgres_url: str, redis_url: str, upstream: RecordingUpstream
) -> None:
    """While two gateways are restarted in turn, everything that clients retry is answered once and for all."""
    store = {"durable": postgres_url, "fast": redis_url}
    shutdown = {"delay": "100ms", "drain_timeout": "10s"}
    async with gateways_on(store, tmp_path, upstream.url, "ab", shutdown=shutdown) as (one, two):
        upstream.on("/charges", lambda received: Answer(201, body=(b"a", soon(), b"b")))
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
        for key, first in answers.items():
            await assert_replayed(key, first, one)
        assert Counter(map(key_of, upstream.effects)) == Counter(answers.keys())
