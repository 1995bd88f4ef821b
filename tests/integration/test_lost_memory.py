"""A copy of the store is put back, or the store is only restarted: the first is noticed before anything runs again."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.integration.hand import decided
from tests.observe.scrape import Scrape
from tests.support.eventually import eventually
from tests.support.fleet import process, send, wait_answered
from tests.support.gateway import GatewayProcess
from tests.support.house import House, neighbour, sqlite_store, status_of
from tests.support.postgres import PostgresServer
from tests.support.redis import RedisServer
from tests.support.upstream import Answer, RecordingUpstream

AGES = (0, 1, 8, 40)
"""How many claims a copy lacks; it lacks the last answer also where that is none."""
NOTED_AGES = (1, 5, 8, 32, 60)
"""The same, where all that is left is the note in Redis."""
WAIT_SECONDS = 30.0
NOTE = b"idempotency-gateway:seen:"
"""How the note in Redis is called, beside the copies of responses."""
ANSWERED = frozenset(("stored", "journaled", "replayed"))
FROM_THE_STORE = {"cache_max_age": "0s"}
"""Nothing is answered out of memory."""
LOST, STORED, REPLAYED = (503, "store-amnesia"), (201, "stored"), (201, "replayed")


@dataclass
class Place:
    """Where stores keep their data, to be copied and put back as a whole. Without a server they are files."""

    data: Path
    server: PostgresServer | None = None

    async def store(self, name: str) -> dict[str, Any]:
        """The `store` section for an empty store of this name."""
        if self.server is None:
            return {"durable": f"sqlite://{self.data}/{name}/operations.db"}
        await self.server.execute(f"CREATE DATABASE {name}")
        return {"durable": urlsplit(self.server.url)._replace(path=f"/{name}").geturl()}

    def copy(self, *, is_frozen: bool = False) -> None:
        """Copy all that is kept now. A server is stopped for that; what commits to a file meanwhile does not.

        One that is frozen recovers from the copy as from a crash, with a sequence that is ahead of what it gave out.
        """
        if self.server is not None:
            self.server.pause() if is_frozen else self.server.stop()
        left_out = shutil.ignore_patterns("postmaster.*", ".s.*")
        shutil.copytree(self.data, self._copied, symlinks=True, ignore=left_out if is_frozen else None)
        owner = self.data.stat()
        for path in (self._copied, *self._copied.rglob("*")):
            shutil.chown(path, owner.st_uid, owner.st_gid)
        if self.server is not None:
            self.server.resume() if is_frozen else self.server.start()

    def put_back(self) -> None:
        """Kill the server, and let the copy take the place of what was kept."""
        if self.server is not None:
            self.server.crash()
        self.data.rename(self.data.with_name(f"{self.data.name}-lost"))
        self._copied.rename(self.data)
        if self.server is not None:
            self.server.start()

    @property
    def _copied(self) -> Path:
        return self.data.with_name(f"{self.data.name}-copy")


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.full)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "sqlite":
        return Place(tmp_path / "store")
    server: PostgresServer = request.getfixturevalue("own_postgres")
    return Place(server.directory, server)


class Home:
    """A gateway that comes and goes: as a process that is killed, or in this one and stopped in order."""

    def __init__(
        self, section: dict[str, Any], directory: Path, upstream: RecordingUpstream, *, is_killed: bool
    ) -> None:
        self._open = process if is_killed else neighbour
        self._where = section, directory, upstream
        self._stack = AsyncExitStack()
        self.running: House | GatewayProcess

    async def begin(self) -> None:
        self.running = await self._stack.enter_async_context(self._open(*self._where, store=FROM_THE_STORE))

    async def end(self) -> None:
        await self._stack.aclose()

    async def send(self, key: str) -> tuple[int, str | None]:
        return await decided(self.running.port, key)

    async def store_new(self, *keys: str) -> None:
        for key in keys:
            assert await self.send(key) == STORED, key

    async def assert_lost(self, *keys: str) -> None:
        """These are refused as a new key is; what the copy has is replayed, and a probe says why."""
        for key in (*keys, "new"):
            assert await self.send(key) == LOST, (key, self._where)
        assert await self.send("before") == REPLAYED
        assert not await self.is_whole()

    async def is_whole(self) -> bool:
        parts = (await self.running.status("/readyz")).json()["parts"]
        assert await self._reading("idempotency_store_amnesia") == (parts["memory"] != "whole")
        return bool(parts["memory"] == "whole")

    async def is_noted(self) -> bool:
        """Whether the note in Redis has all that the store acknowledged."""
        return await self._reading("idempotency_shared_note_lag_seconds") == 0

    async def _reading(self, metric: str) -> float:
        return Scrape((await self.running.status("/metrics")).body.decode()).value(metric)

    def forget(self) -> None:
        """Lose the state directory, as a pod without a volume does."""
        shutil.rmtree(self._where[1] / "state")


@asynccontextmanager
async def homes_of(
    place: Place, directory: Path, upstream: RecordingUpstream, ages: Sequence[int], *, is_killed: bool, **more: str
) -> AsyncIterator[dict[int, Home]]:
    """One on a store of its own for each of these ages, with a key from before the copy."""
    async with AsyncExitStack() as stack:
        homes = {}
        for age in ages:
            section = {**await place.store(f"shop_{age}"), **more}
            homes[age] = Home(section, directory / f"gateway-{age}", upstream, is_killed=is_killed)
            stack.push_async_callback(homes[age].end)
        await asyncio.gather(*(home.begin() for home in homes.values()))
        for home in homes.values():
            await home.store_new("before")
        yield homes


def lost_of(age: int) -> list[str]:
    return [f"lost-{number}" for number in range(age)]


def evict_copies(redis: RedisServer) -> None:
    """Leave nothing but the note: a copy would answer a repeat of a lost operation, rightly."""
    with redis.client() as client:
        for key in client.keys("*"):
            if not key.startswith(NOTE):
                client.delete(key)


@pytest.mark.parametrize("how", ["running", "stopped", "killed"])
async def test_a_copy_that_was_put_back(place: Place, tmp_path: Path, upstream: RecordingUpstream, how: str) -> None:
    """However little it lacks, and whatever became of the gateways, nothing runs twice and new keys are refused."""
    async with homes_of(place, tmp_path, upstream, AGES, is_killed=how == "killed") as homes:
        # Claimed before the copy is made, and answered after it.
        answering = asyncio.Event()
        upstream.on("/charges", Answer(201, hold=answering))
        held = [asyncio.create_task(home.send("held")) for home in homes.values()]
        await upstream.wait_for_requests(2 * len(AGES))
        await asyncio.to_thread(place.copy)
        answering.set()
        assert {status for status, _ in await asyncio.gather(*held)} == {201}
        upstream.on("/charges", Answer(201))
        for age, home in homes.items():
            await home.store_new(*lost_of(age))
        executed = len(upstream.requests)
        if how != "running":
            await asyncio.gather(*(home.end() for home in homes.values()))
        await asyncio.to_thread(place.put_back)
        if how != "running":
            await asyncio.gather(*(home.begin() for home in homes.values()))
        for age, home in homes.items():
            lost = lost_of(age)
            await home.assert_lost(*{*lost[:1], *lost[age // 2 :][:1], *lost[-1:]})
        assert len(upstream.requests) == executed


@pytest.mark.parametrize("how", ["stopped", "killed"])
async def test_a_copy_where_nothing_but_the_note_in_redis_is_left(
    place: Place, own_redis: RedisServer, tmp_path: Path, upstream: RecordingUpstream, how: str
) -> None:
    """However little the copy lacks, a host without notes of its own hears of it: where the gateway was stopped, of all
    that it lacks, and where it was killed, of all that was noted by then."""
    is_killed = how == "killed"
    async with homes_of(place, tmp_path, upstream, NOTED_AGES, is_killed=is_killed, fast=own_redis.url) as homes:
        await asyncio.to_thread(place.copy, is_frozen=True)
        for age, home in homes.items():
            await home.store_new(*lost_of(age))
        executed = len(upstream.requests)
        if is_killed:
            for home in homes.values():
                await eventually(home.is_noted, WAIT_SECONDS, "all is noted in Redis")
        await asyncio.gather(*(home.end() for home in homes.values()))
        for home in homes.values():
            home.forget()
        evict_copies(own_redis)
        await asyncio.to_thread(place.put_back)
        await asyncio.gather(*(home.begin() for home in homes.values()))
        for age, home in homes.items():
            await home.assert_lost(*lost_of(age))
        assert len(upstream.requests) == executed
        if isinstance(gateway := homes[1].running, GatewayProcess):
            said = await gateway.command("memory")
            assert "the store is in an older state" in said[1], said


@pytest.mark.parametrize("how", ["stopped", "killed"])
async def test_nothing_was_lost_but_the_own_notes(
    place: Place, own_redis: RedisServer, tmp_path: Path, upstream: RecordingUpstream, how: str
) -> None:
    """The same restarts on a store that kept its data, even after a crash, raise no alarm: nothing runs twice, and new
    keys are served."""
    is_killed = how == "killed"
    async with homes_of(place, tmp_path, upstream, (0,), is_killed=is_killed, fast=own_redis.url) as homes:
        home, keys = homes[0], ["before"]
        for age in NOTED_AGES:
            new = [f"{age}-{number}" for number in range(age)]
            await home.store_new(*new)
            keys += new
            if place.server is not None:
                await asyncio.to_thread(place.server.crash)
            await home.end()
            home.forget()
            if place.server is not None:
                await asyncio.to_thread(place.server.start)
            await home.begin()
            assert await home.is_whole()
            for key in keys:
                assert await home.send(key) == REPLAYED
        assert len(upstream.requests) == len(keys)


@pytest.mark.parametrize("redis", ["emptied-under-it", "empty", "older"])
@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "whole"])
async def test_a_redis_that_knows_less(
    tmp_path: Path, own_redis: RedisServer, upstream: RecordingUpstream, redis: str, *, is_lost: bool
) -> None:
    """One that is emptied under a gateway has the note again with its next change, or with its stop. Without the note,
    or with an older one, as a replica that was behind has it, the host's own notes decide: a loss is noticed, and
    nothing else raises an alarm."""
    place = Place(tmp_path / "store")

    def gateway(name: str) -> AbstractAsyncContextManager[House]:
        section = sqlite_store(tmp_path) | {"fast": own_redis.url}
        return neighbour(section, tmp_path / name, upstream, store=FROM_THE_STORE)

    async with gateway("first") as first:
        assert status_of(await first.send("before")) == STORED
    with own_redis.client() as client:
        kept = {key: client.dump(key) for key in client.keys("*")}
    place.copy()
    async with gateway("first") as first:
        if redis == "emptied-under-it":
            own_redis.flush()
        assert status_of(await first.send("lost")) == STORED
    if redis != "emptied-under-it":
        own_redis.flush()
    with own_redis.client() as client:
        for key, value in kept.items() if redis == "older" else ():
            client.restore(key, 0, value)
    if is_lost:
        place.put_back()
        evict_copies(own_redis)
    async with gateway("another" if redis == "emptied-under-it" else "first") as last:
        assert status_of(await last.send("lost")) == (LOST if is_lost else REPLAYED)
        assert status_of(await last.send("before")) == REPLAYED
        assert status_of(await last.send("new")) == (LOST if is_lost else STORED)


async def test_nothing_was_lost(place: Place, tmp_path: Path, upstream: RecordingUpstream) -> None:
    """Restarts, crashes and kills in any order, requests under way among them, and a copy that is whole: no alarm."""
    section = await place.store("shop")
    async with process(section, tmp_path / "gateway", upstream, store=FROM_THE_STORE) as gateway:
        keys: list[str] = []

        async def goes_on(name: str) -> None:
            new = [f"{name}-{number}" for number in range(10)]
            keys.extend(new)
            tasks = [wait_answered(gateway.port, key, verdicts=ANSWERED, deadline_seconds=WAIT_SECONDS) for key in new]
            assert {answer.status for answer in await asyncio.gather(*tasks)} == {201}, name
            parts = (await gateway.status("/readyz")).json()["parts"]
            assert parts["memory"] == "whole", name

        await goes_on("first")
        for name in ("killed", "stopped"):
            gateway.kill() if name == "killed" else gateway.terminate()
            await gateway.start()
            await goes_on(name)
        if place.server is not None:
            for name, end in (("restart", place.server.stop), ("crash", place.server.crash)):
                under_way = asyncio.create_task(goes_on(f"under-{name}"))
                await upstream.wait_for_requests(len(upstream.requests) + 1)
                await asyncio.to_thread(end)
                await asyncio.to_thread(place.server.start)
                await under_way
                await goes_on(name)
            place.server.crash()
            gateway.kill()
            place.server.start()
            await gateway.start()
            await goes_on("both")
        gateway.terminate()
        place.copy()
        place.put_back()
        await gateway.start()
        await goes_on("whole-copy")
        for key in keys:
            assert status_of(await send(gateway.port, key)) == REPLAYED
        assert len(upstream.requests) == len(keys)


async def test_a_store_of_another_kind(tmp_path: Path, postgres_url: str, upstream: RecordingUpstream) -> None:
    """A gateway that had its keys in a file starts with a Postgres: it has none of them, so new ones are refused until
    that is accepted."""
    for store, answer in ((sqlite_store(tmp_path), STORED), ({"durable": postgres_url}, LOST)):
        async with neighbour(store, tmp_path, upstream) as home:
            assert status_of(await home.send("k1")) == answer
    assert len(upstream.requests) == 1
