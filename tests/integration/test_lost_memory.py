"""A copy of the store is put back, or the store is only restarted: the first is noticed before anything runs again."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.eventually import eventually
from tests.support.fleet import config_of, process, send, wait_answered
from tests.support.gateway import GatewayProcess
from tests.support.house import House, neighbour, status_of
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

    def copy(self) -> None:
        """Copy all that is kept now. A server is stopped for that; what commits to a file meanwhile does not."""
        if self.server is not None:
            self.server.stop()
        shutil.copytree(self.data, self._copied, symlinks=True)
        _chown_like(self.data, self._copied)
        if self.server is not None:
            self.server.start()

    def snapshot(self) -> None:
        """The same under a server that is frozen meanwhile and goes on: it recovers from the copy as from a crash, with
        a sequence that is ahead of what it gave out."""
        if self.server is not None:
            self.server.pause()
        shutil.copytree(self.data, self._copied, symlinks=True, ignore=shutil.ignore_patterns("postmaster.*", ".s.*"))
        if self.server is not None:
            self.server.resume()
        _chown_like(self.data, self._copied)

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


def _chown_like(original: Path, copy: Path) -> None:
    owner = original.stat()
    for path in (copy, *copy.rglob("*")):
        shutil.chown(path, owner.st_uid, owner.st_gid)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.full)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "sqlite":
        return Place(tmp_path / "store")
    server: PostgresServer = request.getfixturevalue("own_postgres")
    return Place(server.directory, server)


FROM_THE_STORE = {"cache_max_age": "0s"}
"""Nothing is answered out of memory."""


class Home:
    """A gateway that comes and goes: as a process that is killed, or in this one and stopped in order."""

    def __init__(
        self, section: dict[str, Any], directory: Path, upstream: RecordingUpstream, *, is_killed: bool
    ) -> None:
        self._section, self._directory, self._upstream = section, directory, upstream
        self._is_killed = is_killed
        self._stack = AsyncExitStack()
        self._running: House | GatewayProcess

    async def begin(self) -> None:
        self._running = await self._stack.enter_async_context(self._opening())

    def _opening(self) -> AbstractAsyncContextManager[House | GatewayProcess]:
        if self._is_killed:
            config = config_of(self._section, self._directory, self._upstream.url, store=FROM_THE_STORE)
            return GatewayProcess(config, self._directory)
        return neighbour(self._section, self._directory, self._upstream, store=FROM_THE_STORE)

    async def end(self) -> None:
        await self._stack.aclose()

    async def send(self, key: str) -> tuple[int, str | None]:
        """Status and verdict of a first request or a repeat, once there is a store to decide it."""
        answer: tuple[int, str | None] = (0, None)

        async def is_decided() -> bool:
            nonlocal answer
            answer = status_of(await send(self._running.port, key))
            return answer[1] != "store-unavailable"

        await eventually(is_decided, WAIT_SECONDS, f"{key} is decided")
        return answer

    async def is_whole(self) -> bool:
        parts = (await self._running.status("/readyz")).json()["parts"]
        amnesia = await self.reading("idempotency_store_amnesia")
        assert amnesia == (parts["memory"] != "whole")
        return bool(parts["memory"] == "whole")

    async def reading(self, metric: str) -> float:
        text = (await self._running.status("/metrics")).body.decode()
        (value,) = [line.split()[-1] for line in text.splitlines() if line.startswith(f"{metric} ")]
        return float(value)

    async def is_noted(self) -> None:
        """Return when the note in Redis has all that the store acknowledged."""

        async def has_all() -> bool:
            return await self.reading("idempotency_shared_note_lag_seconds") == 0

        await eventually(has_all, WAIT_SECONDS, "all is noted in Redis")

    def forget(self) -> None:
        """Lose the state directory, as a pod without a volume does."""
        shutil.rmtree(self._directory / "state")

    async def memory(self) -> str:
        """What the command says to an operator."""
        if not isinstance(self._running, GatewayProcess):
            return ""
        return (await self._running.command("memory"))[1]


def evict_copies(redis: RedisServer) -> None:
    """Leave nothing but the note: a copy would answer a repeat of a lost operation, rightly."""
    with redis.client() as client:
        for key in client.keys("*"):
            if not key.startswith(NOTE):
                client.delete(key)


@pytest.mark.parametrize("how", ["running", "stopped", "killed"])
async def test_a_copy_that_was_put_back(place: Place, tmp_path: Path, how: str) -> None:
    """However little it lacks, and whatever became of the gateways, nothing runs twice and new keys are refused."""
    async with RecordingUpstream() as upstream, AsyncExitStack() as stack:
        homes: list[Home] = []
        for age in AGES:
            section = await place.store(f"shop_{age}")
            homes.append(Home(section, tmp_path / f"gateway-{age}", upstream, is_killed=how == "killed"))
            stack.push_async_callback(homes[-1].end)
        await asyncio.gather(*(home.begin() for home in homes))
        upstream.on("/charges", Answer(201))
        for home in homes:
            assert await home.send("before") == (201, "stored")
        # Claimed before the copy is made, and answered after it.
        answering = asyncio.Event()
        upstream.on("/charges", Answer(201, hold=answering))
        held = [asyncio.create_task(home.send("held")) for home in homes]
        await upstream.wait_for_requests(2 * len(AGES))
        await asyncio.to_thread(place.copy)
        answering.set()
        assert {status for status, _ in await asyncio.gather(*held)} == {201}
        upstream.on("/charges", Answer(201))
        for home, age in zip(homes, AGES, strict=True):
            for number in range(age):
                assert await home.send(f"lost-{number}") == (201, "stored")
        executed = len(upstream.requests)
        if how != "running":
            await asyncio.gather(*(home.end() for home in homes))
        await asyncio.to_thread(place.put_back)
        if how != "running":
            await asyncio.gather(*(home.begin() for home in homes))
        for home, age in zip(homes, AGES, strict=True):
            for number in {0, age // 2, age - 1} & set(range(age)):
                assert await home.send(f"lost-{number}") == (503, "store-amnesia"), age
            assert await home.send("new") == (503, "store-amnesia"), age
            assert await home.send("before") == (201, "replayed")
            assert not await home.is_whole()
        assert len(upstream.requests) == executed


@pytest.mark.parametrize(
    ("how", "wait_seconds"),
    [
        ("stopped", None),
        ("killed", None),
        *(
            pytest.param(how, seconds, marks=pytest.mark.full)
            for how in ("stopped", "killed")
            for seconds in (1.0, 17.0, 45.0)
        ),
    ],
)
async def test_a_copy_where_nothing_but_the_note_in_redis_is_left(
    place: Place, own_redis: RedisServer, tmp_path: Path, how: str, wait_seconds: float | None
) -> None:
    """However little the copy lacks, a host without notes of its own hears of it: where the gateway was stopped, of all
    that it lacks, and where it was killed, of all that was noted by then, which is what is older than a second."""
    async with RecordingUpstream() as upstream, AsyncExitStack() as stack:
        upstream.on("/charges", Answer(201))
        homes: list[Home] = []
        for age in NOTED_AGES:
            section = {**await place.store(f"shop_{age}"), "fast": own_redis.url}
            homes.append(Home(section, tmp_path / f"gateway-{age}", upstream, is_killed=how == "killed"))
            stack.push_async_callback(homes[-1].end)
        await asyncio.gather(*(home.begin() for home in homes))
        for home in homes:
            assert await home.send("before") == (201, "stored")
        await asyncio.to_thread(place.snapshot)
        for home, age in zip(homes, NOTED_AGES, strict=True):
            for number in range(age):
                assert await home.send(f"lost-{number}") == (201, "stored")
        executed = len(upstream.requests)
        if wait_seconds is not None:
            await asyncio.sleep(wait_seconds)
        elif how == "killed":
            await asyncio.gather(*(home.is_noted() for home in homes))
        await asyncio.gather(*(home.end() for home in homes))
        for home in homes:
            home.forget()
        evict_copies(own_redis)
        await asyncio.to_thread(place.put_back)
        await asyncio.gather(*(home.begin() for home in homes))
        for home, age in zip(homes, NOTED_AGES, strict=True):
            for number in range(age):
                assert await home.send(f"lost-{number}") == (503, "store-amnesia"), age
            assert await home.send("new") == (503, "store-amnesia"), age
            assert await home.send("before") == (201, "replayed")
            assert not await home.is_whole()
        assert len(upstream.requests) == executed
        said = await homes[0].memory()
        assert how == "stopped" or "the store is in an older state" in said, said


@pytest.mark.parametrize("how", ["stopped", "killed"])
async def test_nothing_was_lost_but_the_own_notes(
    place: Place, own_redis: RedisServer, tmp_path: Path, how: str
) -> None:
    """The same restarts on a store that kept its data, even after a crash, raise no alarm: nothing runs twice, and new
    keys are served."""
    async with RecordingUpstream() as upstream, AsyncExitStack() as stack:
        upstream.on("/charges", Answer(201))
        section = {**await place.store("shop"), "fast": own_redis.url}
        home = Home(section, tmp_path / "gateway", upstream, is_killed=how == "killed")
        stack.push_async_callback(home.end)
        keys: list[str] = []
        await home.begin()
        for age in NOTED_AGES:
            new = [f"{age}-{number}" for number in range(age)]
            for key in new:
                assert await home.send(key) == (201, "stored")
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
                assert await home.send(key) == (201, "replayed")
        assert len(upstream.requests) == len(keys)


class Shop:
    """Gateways of one SQLite whose state directories are lost, and what becomes of their Redis."""

    def __init__(self, directory: Path, redis: RedisServer, upstream: RecordingUpstream) -> None:
        self.place = Place(directory / "store")
        self.redis, self._directory, self._upstream = redis, directory, upstream

    def put_back(self) -> None:
        self.place.put_back()
        evict_copies(self.redis)

    def gateway(self, name: str, **changes: Any) -> AbstractAsyncContextManager[House]:
        section = {"durable": f"sqlite://{self.place.data}/operations.db", "fast": self.redis.url}
        return neighbour(section, self._directory / name, self._upstream, **{"store": FROM_THE_STORE, **changes})


@pytest.fixture
async def shop(tmp_path: Path, own_redis: RedisServer) -> AsyncIterator[Shop]:
    async with RecordingUpstream() as upstream:
        upstream.on("/charges", Answer(201))
        yield Shop(tmp_path, own_redis, upstream)


async def answered(home: House, key: str) -> tuple[int, str | None]:
    return status_of(await home.send(key))


async def test_what_several_gateways_noted(shop: Shop) -> None:
    """Each adds to the note, and none takes back what another has noted: the last change of the one that stopped first
    counts, whatever the others note later."""
    async with shop.gateway("second") as second:
        assert await answered(second, "before") == (201, "stored")
        async with shop.gateway("first") as first:
            assert await answered(first, "kept") == (201, "stored")
            shop.place.copy()
            assert await answered(first, "lost") == (201, "stored")
        assert await answered(second, "before") == (201, "replayed")
    shop.put_back()
    async with shop.gateway("third") as third:
        assert await answered(third, "lost") == (503, "store-amnesia")
        assert await answered(third, "kept") == (201, "replayed")


@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "whole"])
async def test_a_redis_that_was_emptied_under_a_gateway(shop: Shop, *, is_lost: bool) -> None:
    """It has the note again with the next change, or with the stop."""
    async with shop.gateway("first") as first:
        assert await answered(first, "before") == (201, "stored")
        shop.place.copy()
        shop.redis.flush()
        assert await answered(first, "lost") == (201, "stored")
    if is_lost:
        shop.put_back()
    async with shop.gateway("second") as second:
        assert await answered(second, "lost") == ((503, "store-amnesia") if is_lost else (201, "replayed"))
        assert await answered(second, "before") == (201, "replayed")


@pytest.mark.parametrize("redis", ["empty", "older"])
@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "whole"])
async def test_a_redis_that_knows_less_than_the_host(shop: Shop, redis: str, *, is_lost: bool) -> None:
    """Without the note, or with an older one, as a replica that was behind has it, the host's own notes decide: a loss
    is noticed, and nothing else raises an alarm."""
    async with shop.gateway("first") as first:
        assert await answered(first, "before") == (201, "stored")
    with shop.redis.client() as client:
        kept = {key: client.dump(key) for key in client.keys("*")}
    shop.place.copy()
    async with shop.gateway("first") as first:
        assert await answered(first, "lost") == (201, "stored")
    shop.redis.flush()
    with shop.redis.client() as client:
        for key, value in kept.items() if redis == "older" else ():
            client.restore(key, 0, value)
    if is_lost:
        shop.put_back()
    async with shop.gateway("first") as first:
        assert await answered(first, "lost") == ((503, "store-amnesia") if is_lost else (201, "replayed"))
        assert await answered(first, "before") == (201, "replayed")
        assert await answered(first, "new") == ((503, "store-amnesia") if is_lost else (201, "stored"))


async def test_a_loss_is_found_once(shop: Shop) -> None:
    """What was noted of the lost changes says nothing once the loss is over: the next host raises no alarm."""
    brief = {"store": {**FROM_THE_STORE, "amnesia_window": "1s"}}
    async with shop.gateway("first") as first:
        assert await answered(first, "before") == (201, "stored")
        shop.place.copy()
        assert await answered(first, "lost") == (201, "stored")
    shop.put_back()
    async with shop.gateway("second", **brief) as second:
        assert await answered(second, "lost") == (503, "store-amnesia")

        async def is_over() -> bool:
            return await answered(second, "new") == (201, "stored")

        await eventually(is_over, WAIT_SECONDS, "the loss is over")
    async with shop.gateway("third") as third:
        assert await answered(third, "newer") == (201, "stored")
        assert await answered(third, "before") == (201, "replayed")


async def test_nothing_was_lost(place: Place, tmp_path: Path) -> None:
    """Restarts, crashes and kills in any order, requests under way among them, and a copy that is whole: no alarm."""
    async with RecordingUpstream() as upstream:
        upstream.on("/charges", Answer(201))
        section = await place.store("shop")
        async with process(section, tmp_path / "gateway", upstream.url, store=FROM_THE_STORE) as gateway:
            keys: list[str] = []

            async def goes_on(name: str) -> None:
                new = [f"{name}-{number}" for number in range(10)]
                tasks = [
                    wait_answered(gateway.port, key, verdicts=ANSWERED, deadline_seconds=WAIT_SECONDS) for key in new
                ]
                assert {answer.status for answer in await asyncio.gather(*tasks)} == {201}, name
                keys.extend(new)
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
                    await upstream.wait_for_requests(len(keys) + 1)
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
                assert status_of(await send(gateway.port, key)) == (201, "replayed")
            assert len(upstream.requests) == len(keys)


async def test_a_store_of_another_kind(tmp_path: Path, postgres_url: str) -> None:
    """A gateway that had its keys in a file starts with a Postgres: it has none of them, so new ones are refused until
    that is accepted."""
    async with RecordingUpstream() as upstream:
        async with neighbour({"durable": f"sqlite://{tmp_path}/operations.db"}, tmp_path, upstream) as home:
            assert status_of(await home.send("k1")) == (200, "stored")
        async with neighbour({"durable": postgres_url}, tmp_path, upstream) as home:
            assert status_of(await home.send("k1")) == (503, "store-amnesia")
        assert len(upstream.requests) == 1
