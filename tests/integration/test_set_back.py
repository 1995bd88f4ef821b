"""A store's clock that is set by a day, under gateways that work and that die: nothing waits for that day."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from tests.integration.hand import ASYNC, status_at, telling
from tests.support.accepting import SECRETS
from tests.support.eventually import eventually
from tests.support.fleet import NOW, gateways_on, key_of, send, try_send
from tests.support.gateway import GatewayProcess
from tests.support.house import ROUTE, sqlite_store, status_of
from tests.support.http import Response
from tests.support.postgres import PostgresInstallation, PostgresServer
from tests.support.receiver import Receiver, status
from tests.support.upstream import Answer, RecordingUpstream
from tests.support.wall_clock import WallClock

DAY_SECONDS: Final = 86_400
LEASE_SECONDS: Final = 3.0
# So long may it take to be noticed that a lease is over: some passes of upkeep, on a busy machine.
_NOTICED_SECONDS: Final = 20.0
_KEEP: Final = {"replay": "7d", "remember": "8d"}
_PROBE: Final = {"path": "/probe/{key}", "done": [{"status": [200]}]}
_ROUTES: Final = [
    {**ROUTE, "retention": _KEEP},
    {**ROUTE, "name": "transfer", "match": {"path": "/transfers"}, "retention": _KEEP, "recovery": {"probe": _PROBE}},
    {
        **ROUTE,
        "name": "order",
        "match": {"path": "/orders"},
        "retention": _KEEP,
        "accept": {"identity": "unverified"},
        "delivery": {"schedule": ["4s"], "deliver_within": "7d"},
    },
]


@pytest.fixture(params=[pytest.param("sqlite", marks=pytest.mark.full), "postgres"])
def store(
    request: pytest.FixtureRequest, clock: WallClock, server_workspace: Path, tmp_path: Path
) -> Iterator[dict[str, Any]]:
    """The `store` section on an empty store under the clock: that of the gateways' host, or of a server of its own."""
    if request.param == "sqlite":
        yield sqlite_store(tmp_path)
        return
    installation: PostgresInstallation = request.getfixturevalue("postgres_installation")
    with PostgresServer(installation, server_workspace / "pg-set-back", through=clock.through).running() as server:
        yield {"durable": server.url}


@dataclass
class Town:
    """Two gateways on the store, of which each has a disk of its own, and a consumer of their events."""

    one: GatewayProcess
    two: GatewayProcess
    upstream: RecordingUpstream
    consumer: Receiver

    def arrivals(self) -> Counter[str]:
        """How often the upstream was sent each key; probes left out."""
        return Counter(key_of(received) for received in self.upstream.requests if received.method == "POST")

    async def begin(self, gateway: GatewayProcess, key: str, target: str = "/charges") -> asyncio.Task[Response | None]:
        """A request that has arrived at the upstream."""
        task = asyncio.create_task(try_send(gateway.port, key, target=target, deadline_seconds=120.0))
        await eventually(lambda: self.arrivals()[key], 20.0, f"{key} has arrived")
        return task

    async def word(self, gateway: GatewayProcess, key: str, target: str = "/charges") -> str | None:
        return status_of(await send(gateway.port, key, target=target, headers=NOW))[1]

    async def wait_word(self, gateway: GatewayProcess, key: str, word: str, seconds: float, **how: Any) -> None:
        """A repeat of this key gets this word within so many seconds."""

        async def has_word() -> bool:
            return await self.word(gateway, key, **how) == word

        await eventually(has_word, seconds, f"{key} is {word}")

    async def state(self, gateway: GatewayProcess, accepted: Response) -> str:
        """The state at the status URL of an accepted request."""
        return str((await status_at(gateway, accepted.header("Location") or ""))["state"])


@pytest.fixture
async def it(
    tmp_path: Path, store: dict[str, Any], clock: WallClock, upstream: RecordingUpstream
) -> AsyncIterator[Town]:
    settings = {"lease": f"{LEASE_SECONDS:g}s", "journal_grace": "0s", "cache_max_age": "0s"}
    async with Receiver() as consumer:
        changes: Any = {"store": settings, "routes": _ROUTES, "secrets": SECRETS, **telling(ledger=consumer)}
        # That of Postgres is its own.
        environments = [clock.environment] * 2 if "sqlite" in store["durable"] else []
        where = store, tmp_path, upstream.url, ("one", "two")
        async with gateways_on(*where, environments=environments, **changes) as pair:
            yield Town(*pair, upstream, consumer)


async def are_in_doubt(gateway: GatewayProcess, count: int) -> bool:
    """Whether so many are, by what alerts look at."""
    lines = (await gateway.status("/metrics")).body.decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("idempotency_in_doubt{")) == count


async def test_a_holder_that_was_killed(it: Town, clock: WallClock) -> None:
    """Its keys are in doubt when the lease may be over, at its own host at once, and are probed and counted. What it
    accepted, and made no attempt of yet, is delivered by whoever comes next."""
    never = asyncio.Event()
    for path in ("/charges", "/transfers"):
        it.upstream.on(path, Answer(201, hold=never))
    it.upstream.on("/orders", Answer(503))
    it.upstream.on("/probe/transfer", Answer(200))
    accepted = [await send(it.one.port, f"a{number}", target="/orders", headers=ASYNC) for number in range(5)]
    assert {each.status for each in accepted} == {202}
    tasks = [
        await it.begin(it.one, "own"),
        await it.begin(it.two, "other"),
        await it.begin(it.two, "transfer", "/transfers"),
    ]
    # Long enough that all were renewed.
    await asyncio.gather(*(it.word(it.one, "own") for _ in range(3)))
    it.one.kill()
    it.two.kill()
    await asyncio.gather(*tasks)
    clock.move(-DAY_SECONDS)
    it.upstream.on("/orders", Answer(201))
    await it.one.start()
    await it.wait_word(it.one, "own", "in-doubt", _NOTICED_SECONDS)
    await it.wait_word(it.one, "other", "in-doubt", LEASE_SECONDS + _NOTICED_SECONDS)
    await it.wait_word(it.one, "transfer", "recovered", LEASE_SECONDS + _NOTICED_SECONDS, target="/transfers")

    async def are_done() -> bool:
        states = await asyncio.gather(*map(partial(it.state, it.one), accepted))
        return set(states) <= {"completed", "in_doubt"}

    await eventually(are_done, 40.0, "all are delivered, or were under way when their gateway died")
    left = [await it.state(it.one, each) for each in accepted].count("in_doubt")
    await eventually(lambda: are_in_doubt(it.one, 2 + left), 40.0, "all are counted that are in doubt")
    assert [it.arrivals()[key] for key in ("own", "other", "transfer")] == [1, 1, 1]


async def test_who_lives_keeps_what_it_has(it: Town, clock: WallClock) -> None:
    """A clock that is set back by a day, and by two seconds, brings no doubt upon what runs."""
    hold = asyncio.Event()
    it.upstream.on("/charges", Answer(201, hold=hold))
    tasks = [await it.begin(it.one, "one"), await it.begin(it.two, "two")]
    for seconds in (-2, -DAY_SECONDS):
        clock.move(seconds)
        it.two.pause()
        # The one sees the step by this, and sweeps.
        await it.wait_word(it.one, "one", "in-flight", 5.0)
        it.two.resume()
        for gateway in (it.one, it.two):
            for key in ("one", "two"):
                assert await it.word(gateway, key) == "in-flight"
    assert await are_in_doubt(it.one, 0)
    hold.set()
    for task in tasks:
        response = await task
        assert response is not None
        assert status_of(response) == (201, "stored")
    assert it.arrivals() == Counter(("one", "two"))


@pytest.mark.parametrize("seconds", [-DAY_SECONDS, DAY_SECONDS], ids=["back", "ahead"])
async def test_what_waits_for_a_time(it: Town, clock: WallClock, seconds: int) -> None:
    """What was accepted, postponed or paused, and events that were put off, go on as if the clock had not been set."""
    it.consumer.answers.append(status(503))
    it.upstream.on("/orders", Answer(503))
    assert status_of(await send(it.one.port, "told")) == (201, "stored")
    await it.consumer.wait_received(1)
    postponed = await send(it.one.port, "postponed", target="/orders", headers=ASYNC)
    assert postponed.status == 202
    await eventually(lambda: it.arrivals()["postponed"], 20.0, "it was sent once")
    clock.move(seconds)
    it.upstream.on("/orders", Answer(201))
    fresh = await send(it.two.port, "fresh", target="/orders", headers=ASYNC)
    assert fresh.status == 202
    for accepted in (postponed, fresh):

        async def is_done(accepted: Response = accepted) -> bool:
            return await it.state(it.one, accepted) == "completed"

        await eventually(is_done, 40.0, "it is delivered")
    # Of `told`, which was refused once, and of the two others.
    received = await it.consumer.wait_received(4, 40.0)
    assert len({each.id for each in received}) == 3
    assert await it.word(it.two, "told") == "replayed"
    counts = it.arrivals()
    assert counts.pop("postponed") <= 3
    assert counts == Counter(("told", "fresh"))
