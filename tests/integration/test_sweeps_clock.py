"""The wall clock of Postgres jumps by an hour and back, under real gateways that work."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from tests.integration.hand import assert_replayed, soon
from tests.support.eventually import eventually
from tests.support.fleet import NOW, calling, gateways_on, key_of, nonce_of, send, wait_answered
from tests.support.gateway import GatewayProcess
from tests.support.house import ROUTE, status_of
from tests.support.http import Response
from tests.support.postgres import PostgresInstallation, PostgresServer
from tests.support.redis import RedisServer
from tests.support.upstream import Answer, Ending, Received, RecordingUpstream
from tests.support.wall_clock import WallClock

HOUR_SECONDS: Final = 3600
# A statement that a jump lets time out is repeated, and an answer may wait for it in the journal.
_ANSWERED: Final = frozenset(("stored", "replayed", "journaled"))
_CLIENTS: Final = 4
_BRIEF: Final = {"replay": "10m", "remember": "30m"}

# What was sent to `/orders` may be sent again; what was asked of the other two is to be forgotten within the hour.
_ROUTES: Final = [
    ROUTE,
    {**ROUTE, "name": "order", "match": {"path": "/orders"}, "recovery": "resend"},
    {**ROUTE, "name": "note", "match": {"path": "/notes"}, "retention": _BRIEF},
    {**ROUTE, "name": "transfer", "match": {"path": "/transfers"}, "retention": _BRIEF},
]


@dataclass
class Town:
    """Two gateways on the same servers. `traffic` is what callers were answered that kept coming."""

    one: GatewayProcess
    two: GatewayProcess
    postgres: PostgresServer
    redis: RedisServer
    upstream: RecordingUpstream
    clock: WallClock
    traffic: dict[str, Response] = field(default_factory=dict)

    async def jump(self, seconds: int) -> None:
        """Move the clock in the middle of traffic, and see that Postgres, and nobody else, believes it."""
        async with calling(self._client, range(_CLIENTS)):
            await self._wait_for_more(2 * _CLIENTS)
            self.clock.move(seconds)
            shown = float(await self.postgres.fetch("SELECT extract(epoch FROM clock_timestamp())"))
            assert round((shown - time.time()) / 60) * 60 == seconds
            await self._wait_for_more(4 * _CLIENTS)

    async def replays(self, first: Response, key: str, **how: Any) -> None:
        """Both gateways answer this key as it was answered."""
        await assert_replayed(key, first, self.one, self.two, **how)

    async def words(self, key: str, **how: Any) -> set[str | None]:
        """What both gateways say of this key."""
        answers = [await send(gateway.port, key, headers=NOW, **how) for gateway in (self.one, self.two)]
        return {status_of(answer)[1] for answer in answers}

    async def leases(self) -> list[int]:
        """When those end that are left once the traffic is over."""
        statement = (
            "SELECT array_agg(lease_until_us ORDER BY id) FROM idempotency_gateway.operation WHERE state = 'claimed'"
        )
        return list(await self.postgres.fetch(statement) or ())

    async def has_renewed(self, leases: list[int]) -> bool:
        """Whether all of these were set anew."""
        return all(now != before for now, before in zip(await self.leases(), leases, strict=True))

    async def _client(self, number: int, done: asyncio.Event) -> None:
        source = random.Random(number)
        while not done.is_set():
            key = f"traffic-{number}-{len(self.traffic)}"
            gateway = source.choice((self.one, self.two))
            self.traffic[key] = await wait_answered(gateway.port, key, verdicts=_ANSWERED, headers=NOW)

    async def _wait_for_more(self, count: int) -> None:
        wanted = len(self.traffic) + count
        await eventually(lambda: len(self.traffic) >= wanted, 30.0, "callers are answered")


@pytest.fixture
async def it(
    tmp_path: Path,
    clock: WallClock,
    postgres_installation: PostgresInstallation,
    server_workspace: Path,
    own_redis: RedisServer,
    upstream: RecordingUpstream,
) -> AsyncIterator[Town]:
    """On a Postgres of this test's own, under the clock."""
    # What a process remembers by itself would hide what the stores say.
    settings = {"lease": "6s", "journal_grace": "0s", "cache_max_age": "0s"}
    changes: Any = {"store": settings, "routes": _ROUTES}
    server = PostgresServer(postgres_installation, server_workspace / "pg-clock", through=clock.through)
    with server.running() as postgres:
        where = {"durable": postgres.url, "fast": own_redis.url}, tmp_path, upstream.url, "ab"
        async with gateways_on(*where, **changes) as pair:
            yield Town(*pair, postgres, own_redis, upstream, clock)


@pytest.mark.parametrize("seconds", [HOUR_SECONDS, -HOUR_SECONDS], ids=["forward", "back"])
async def test_a_clock_that_jumps_and_returns(it: Town, seconds: int) -> None:
    """Nothing runs twice but by leave, what was answered is replayed, and what runs ends as its late answer says."""
    hold = asyncio.Event()

    def answered(received: Received) -> Answer:
        name = _name_of(received)
        if name == "lost":
            return Answer(ending=Ending.RESET, bytes_max=0)
        is_held = name in ("runs", "order") and executions(it)[name] == 1
        return Answer(201, hold=hold if is_held else soon())

    for path in ("/charges", None):
        it.upstream.on(path, answered)
    kept, note = await send(it.one.port, "kept"), await send(it.one.port, "note", target="/notes")
    assert status_of(kept) == status_of(note) == (201, "stored")
    assert status_of(await send(it.two.port, "lost", target="/transfers"))[1] == "in-doubt"
    runs = asyncio.create_task(send(it.one.port, "runs", deadline_seconds=120.0))
    order = asyncio.create_task(send(it.one.port, "order", target="/orders", deadline_seconds=120.0))
    await it.upstream.wait_for_requests(5)
    again: Response | None = None

    for shown_seconds in (seconds, 0):
        await it.jump(shown_seconds)
        leases = await it.leases()
        # By a clock that has gone an hour on since it was set, a lease is over.
        is_lapsed = shown_seconds == max(0, seconds)
        assert await it.words("runs") <= {"in-flight", "in-doubt"}
        assert await it.words("lost", target="/transfers") == {"in-doubt"}
        await it.replays(kept, "kept")
        it.redis.flush()
        await it.replays(kept, "kept")
        if shown_seconds > 0:
            note = await send(it.two.port, "note", target="/notes")
            assert status_of(note) == (201, "stored"), "by the clock of who remembers it was to be forgotten"
        await it.replays(note, "note", target="/notes")
        if is_lapsed:
            again = await wait_answered(it.two.port, "order", verdicts=_ANSWERED, target="/orders", headers=NOW)
        elif again is None:
            assert await it.words("order", target="/orders") == {"in-flight"}
        it.two.kill()
        await it.two.start()
        await it.replays(kept, "kept")
        if shown_seconds < 0:
            await eventually(partial(it.has_renewed, leases), what="what runs keeps its leases")
            assert await it.words("runs") == {"in-flight"}

    hold.set()
    first = await runs
    assert status_of(first) == (201, "stored")
    await it.replays(first, "runs")
    late = await order
    if again is None:
        assert status_of(late) == (201, "stored")
    else:
        assert (status_of(late), nonce_of(late)) == ((201, "replayed"), nonce_of(again))
    await it.replays(late, "order", target="/orders")
    for key, response in it.traffic.items():
        await it.replays(response, key)
    assert await it.words("lost", target="/transfers") == {"in-doubt"}
    counts = executions(it)
    assert counts.pop("order") == (1 if again is None else 2)
    assert counts.pop("note") == (2 if seconds > 0 else 1)
    assert counts == Counter(["kept", "lost", "runs", *it.traffic])


def executions(it: Town) -> Counter[str]:
    """How often the upstream was sent each key."""
    return Counter(map(_name_of, it.upstream.requests))


def _name_of(received: Received) -> str:
    """The key as the caller gave it; what may be sent again carries another."""
    return "order" if received.target == b"/orders" else key_of(received)
