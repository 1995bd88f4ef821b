"""The fast tier on a real Redis: what it answers, what it refuses, and what becomes of it when Redis is gone."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from gateway.core.operation import Snapshot, State, microseconds
from gateway.store.base import NotApplied, StoreError, boot_seconds
from gateway.store.redis import store as redis_store
from gateway.store.redis.store import GET_SECONDS, RedisFastTier
from tests.store.copies import (
    STORE,
    client,
    completed,
    fast_tier,
    id_of,
    key_of,
    through,
    time_left_us,
    until_up,
    why_down,
    with_time_left,
)
from tests.support.eventually import eventually
from tests.support.redis import RedisServer
from tests.support.relay import Relay
from tests.support.tls import Authority

LONG_SECONDS = 30.0
_numbers = itertools.count(1)

pytestmark = pytest.mark.usefixtures("no_haste")


@pytest.fixture
async def tier(redis_url: str, no_haste: None) -> AsyncIterator[RedisFastTier]:
    async with fast_tier(redis_url) as tier:
        yield tier


async def get_anew(tier: RedisFastTier, snapshot: Snapshot) -> Snapshot:
    """Put until it is found: after a change of era the first puts are refused."""
    while True:
        await tier.put(snapshot, boot_seconds())
        if (found := await tier.get(id_of(snapshot))) is not None:
            return found


async def test_the_window_is_counted_from_the_start_of_the_call(tier: RedisFastTier) -> None:
    """A reading that is some seconds old has so much less time left."""
    snapshot = completed()
    started_seconds = boot_seconds()
    await eventually(lambda: boot_seconds() > started_seconds + 0.05)
    await tier.put(snapshot, started_seconds)
    assert time_left_us(await tier.get(id_of(snapshot))) <= time_left_us(snapshot) - microseconds(0.05)


async def test_an_entry_ends_with_its_window(tier: RedisFastTier, redis_url: str) -> None:
    """It is found while the window is open, never later, and Redis lets go of it."""
    snapshot = with_time_left(completed(), 0.5)
    put_seconds = boot_seconds()
    await tier.put(snapshot, put_seconds)
    found_seconds = [put_seconds]
    while True:
        asked_seconds = boot_seconds()
        if (found := await tier.get(id_of(snapshot))) is None:
            break
        assert found.state is State.COMPLETED
        assert time_left_us(found) > 0
        found_seconds.append(asked_seconds)
    assert len(found_seconds) > 1
    assert found_seconds[-1] < put_seconds + 0.5
    with client(redis_url) as redis:
        await eventually(lambda: not redis.exists(key_of(id_of(snapshot))), what="the key is gone")


async def test_a_purge_ends_what_was_put_and_what_was_read(tier: RedisFastTier, redis_url: str) -> None:
    """Nobody finds what was there; what was read before is refused, here and elsewhere; what is read then is kept."""
    snapshot, late = completed(), completed()
    async with fast_tier(redis_url) as other:
        await tier.put(snapshot, boot_seconds())
        assert await other.get(id_of(snapshot)) is not None
        read_seconds = boot_seconds()
        await tier.forget(id_of(snapshot))
        assert tier.has_forgotten
        for each in (tier, other):
            assert await each.get(id_of(snapshot)) is None
            for one in (snapshot, late):
                await each.put(one, read_seconds)
                assert await each.get(id_of(one)) is None
        for each in (tier, other):
            assert await get_anew(each, completed())


async def test_a_purge_is_told_to_each_server_anew(server_workspace: Path) -> None:
    """What was told to a master that is left, of which the new one knows nothing, is told to that one too."""
    async with (
        two_servers(server_workspace) as (relay, _, second),
        fast_tier(through(relay)) as tier,
        fast_tier(second.url) as other,
    ):
        snapshot = completed()
        await other.put(snapshot, boot_seconds())
        tier.bind(STORE, "purged")
        await eventually(lambda: tier.has_forgotten)
        relay.target_port = second.port
        relay.cut()
        with pytest.raises(StoreError):
            await tier.get(id_of(snapshot))
        await until_up(tier)
        assert await tier.get(id_of(snapshot)) is None
        assert await other.get(id_of(snapshot)) is None


async def test_a_purge_that_cannot_be_told_silences_the_tier(own_redis: RedisServer, no_haste: None) -> None:
    """It is told as soon as the server is back, and until then nothing is answered here."""
    async with fast_tier(own_redis.url) as tier:
        snapshot = completed()
        await tier.put(snapshot, boot_seconds())
        own_redis.pause()
        with pytest.raises(StoreError):
            await tier.forget(id_of(snapshot))
        assert not tier.has_forgotten
        own_redis.resume()
        await eventually(lambda: tier.has_forgotten, what="the purge is told")
        await until_up(tier)
        assert await tier.get(id_of(snapshot)) is None


async def test_a_flush_forgets_and_refuses_what_was_read_before_it(own_redis: RedisServer) -> None:
    """A put that was read before the flush is refused: a purge may have been forgotten with it. Later ones are kept."""
    async with fast_tier(own_redis.url) as tier:
        snapshot, late = completed(), completed()
        await tier.put(snapshot, boot_seconds())
        started_seconds = boot_seconds()
        await tier.forget(id_of(late))
        own_redis.flush()
        for _ in range(3):
            await tier.put(late, started_seconds)
        assert await tier.get(id_of(late)) is None
        assert await tier.get(id_of(snapshot)) is None
        assert (await get_anew(tier, snapshot)).record == snapshot.record


async def test_what_a_restarted_server_brings_back_is_not_believed(server_workspace: Path) -> None:
    """What is in an old file may have been purged since it was written: they are not there, and are replaced."""
    server = RedisServer(server_workspace / f"redis-eras-{next(_numbers)}", append_only=True)
    server.start()
    try:
        async with fast_tier(server.url) as tier:
            snapshot = completed()
            await tier.put(snapshot, boot_seconds())
            server.kill()
            server.start()
            with client(server.url) as redis:
                assert redis.exists(key_of(id_of(snapshot)))
            with pytest.raises(StoreError):
                await tier.get(id_of(snapshot))
            await until_up(tier)
            assert await tier.get(id_of(snapshot)) is None
            assert (await get_anew(tier, snapshot)).record == snapshot.record
    finally:
        server.kill()


async def test_a_frozen_server_is_waited_for_once(own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first callers wait for the deadline, the next fail at once, and afterwards the tier comes back by itself."""
    changes: list[bool] = []
    async with fast_tier(own_redis.url) as tier:
        tier.on_change(lambda up, _why: changes.append(up))
        snapshot = completed()
        await tier.put(snapshot, boot_seconds())
        own_redis.pause()
        with monkeypatch.context() as hasty:
            hasty.setattr(redis_store, "GET_SECONDS", GET_SECONDS)
            answers = await asyncio.gather(*(tier.get(id_of(snapshot)) for _ in range(200)), return_exceptions=True)
        assert {isinstance(answer, StoreError) for answer in answers} == {True}
        assert not tier.up
        for ask in (tier.get, tier.announce, lambda _: tier.put(snapshot, boot_seconds())):
            with pytest.raises(NotApplied):
                await ask(id_of(snapshot))
        own_redis.resume()
        await until_up(tier)
        assert (await tier.get(id_of(snapshot))).record == snapshot.record
        assert [up for up, _ in itertools.groupby(changes)] == [False, True]


SAID: dict[str, Callable[[RedisFastTier, Snapshot], Awaitable[None]]] = {
    "put": lambda tier, snapshot: tier.put(snapshot, boot_seconds()),
    "refused-put": lambda tier, snapshot: tier.put(snapshot, 0.0),
    "announce": lambda tier, snapshot: tier.announce(id_of(snapshot)),
    "purge": lambda tier, snapshot: tier.forget(id_of(snapshot)),
}


async def wait_listening(url: str, number: int = 1, channel: str = "idempotency-gateway:purges") -> None:
    """Return when so many listen there."""
    with client(url) as redis:
        await eventually(lambda: int(redis.pubsub_numsub(channel)[0][1]) == number, what="they listen")


@pytest.mark.parametrize("say", SAID.values(), ids=SAID)
async def test_whoever_waits_on_another_gateway_is_woken(
    tier: RedisFastTier, redis_url: str, say: Callable[[RedisFastTier, Snapshot], Awaitable[None]]
) -> None:
    """Everything that is said of an operation wakes its waiters, and nobody else's."""
    snapshot = completed()
    await wait_listening(redis_url)
    async with (
        fast_tier(redis_url) as other,
        tier.watch(id_of(snapshot)) as watch,
        tier.watch(uuid4()) as stranger,
    ):
        await say(other, snapshot)
        assert await watch.wait_changed(LONG_SECONDS)
        assert not await stranger.wait_changed(0)


async def test_nothing_stays_subscribed(tier: RedisFastTier, redis_url: str) -> None:
    """A subscription ends with its last waiter, also when that one is cancelled."""
    operation_id = uuid4()
    channel = key_of(operation_id)

    async def wait() -> None:
        async with tier.watch(operation_id), tier.watch(operation_id) as watch:
            await watch.wait_changed(LONG_SECONDS)

    await wait_listening(redis_url)
    waiter = asyncio.create_task(wait())
    await wait_listening(redis_url, 1, channel)
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)
    await wait_listening(redis_url, 0, channel)


async def test_a_lost_link_wakes_the_waiters_and_is_restored(own_redis: RedisServer) -> None:
    """Who waits is told to look when news may have been missed, and hears again once the server is back."""
    operation_id = uuid4()
    async with fast_tier(own_redis.url) as tier:
        await wait_listening(own_redis.url)
        async with tier.watch(operation_id) as watch:
            own_redis.kill()
            assert await watch.wait_changed(LONG_SECONDS)
            own_redis.start()
            # Once more when it is heard again: what happened in between was missed.
            assert await watch.wait_changed(LONG_SECONDS)
            with client(own_redis.url) as redis:
                redis.publish(key_of(operation_id), b"")
            assert await watch.wait_changed(LONG_SECONDS)


@asynccontextmanager
async def two_servers(directory: Path) -> AsyncIterator[tuple[Relay, RedisServer, RedisServer]]:
    """Behind one address the first of two; set `relay.target_port` to the second's for a failover."""
    first, second = servers = [RedisServer(directory / f"redis-failover-{next(_numbers)}") for _ in range(2)]
    try:
        for server in servers:
            server.start()
        async with Relay(first.port) as relay:
            yield relay, first, second
    finally:
        for server in servers:
            server.kill()


WHY_DOWN: dict[str, tuple[str, str, str, str]] = {
    "wrong-password": ("CONFIG SET requirepass right", ":s3cret@", "0", "invalid username-password pair"),
    "wrong-database": ("CONFIG SET requirepass right", ":right@", "99", "DB index is out of range"),
    "replica": ("REPLICAOF 127.0.0.1 1", "", "0", "takes no writes: it is a replica (READONLY); name the primary"),
    "full": ("CONFIG SET maxmemory 1", "", "0", "takes no writes: its memory is full (OOM)"),
    "no-set": ("ACL SETUSER default -set", "", "0", "takes no writes: its user may not run what the scripts need"),
}


@pytest.mark.parametrize("name", WHY_DOWN)
async def test_why_a_server_cannot_be_used_is_told(name: str, own_redis: RedisServer) -> None:
    """In the server's words, with what to do about it, and without the password."""
    settings, user, database, cause = WHY_DOWN[name]
    with client(own_redis.url) as redis:
        redis.execute_command(*settings.split())
    why = await why_down(f"redis://{user}127.0.0.1:{own_redis.port}/{database}")
    assert f"Redis at 127.0.0.1:{own_redis.port}/{database}" in why
    assert cause in why
    assert "s3cret" not in why


async def test_a_server_over_tls(redis_url: str, tmp_path: Path) -> None:
    """It is used if the authority that is configured vouches for it."""
    for name in ("known", "stranger"):
        (tmp_path / name).mkdir()
    known, stranger = Authority(tmp_path / "known"), Authority(tmp_path / "stranger")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", urlsplit(redis_url).port)
        await asyncio.gather(copy(reader, to_server), copy(from_server, writer))

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(65_536):
            target.write(data)
        target.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=known.issue().server_context()) as front:
        url = f"rediss://127.0.0.1:{front.sockets[0].getsockname()[1]}/0?ssl_ca_certs="
        async with fast_tier(f"{url}{known.ca_file}") as tier:
            snapshot = completed()
            await tier.put(snapshot, boot_seconds())
            assert (await tier.get(id_of(snapshot))).record == snapshot.record
        assert "CERTIFICATE_VERIFY_FAILED" in await why_down(f"{url}{stranger.ca_file}")


async def test_a_full_server_refuses_puts_and_still_answers(
    own_redis: RedisServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A put that Redis refuses is said to be refused; reads, purges and the tier itself go on. The log says why,
    and when it is over."""
    monkeypatch.setattr(redis_store, "ROOM_SECONDS", 0.0)
    caplog.set_level(logging.INFO, "gateway")
    async with fast_tier(own_redis.url) as tier:
        snapshot = completed()
        await tier.put(snapshot, boot_seconds())
        with client(own_redis.url) as redis:
            redis.config_set("maxmemory", 1)
            redis.config_set("maxmemory-policy", "noeviction")
        with pytest.raises(NotApplied, match="OOM"):
            await tier.put(completed(), boot_seconds())
        assert await tier.get(id_of(snapshot)) is not None
        await tier.forget(id_of(snapshot))
        assert await tier.get(id_of(snapshot)) is None
        assert tier.up
        await eventually(lambda: "takes no copies: its memory is full (OOM)" in caplog.text)
        with client(own_redis.url) as redis:
            redis.config_set("maxmemory", 0)
        await eventually(lambda: "Redis takes copies again" in caplog.text)


async def test_a_lost_script_cache_is_no_loss(tier: RedisFastTier, redis_url: str) -> None:
    """Redis may forget the scripts at any moment."""
    assert tier.up
    snapshot = completed()
    with client(redis_url) as redis:
        redis.script_flush()
    assert await asyncio.gather(tier.put(snapshot, boot_seconds()), return_exceptions=True) == [None]
    assert await tier.get(id_of(snapshot)) is not None
