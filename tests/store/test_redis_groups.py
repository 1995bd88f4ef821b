"""The fast tier on several real Redis servers: a cluster, and a master that sentinels watch."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from gateway.core.operation import Snapshot
from gateway.store.base import NotApplied, StoreError, boot_seconds
from gateway.store.memory.epoch import Seen, WitnessNote
from gateway.store.redis import connection as masters_of_redis
from gateway.store.redis.connection import slot_of
from gateway.store.redis.store import PARTS, STOOD_FOR_US, RedisFastTier, RedisSeen
from tests.store.copies import client, completed, fast_tier, id_of, prefix_of, until_up, why_down
from tests.support.eventually import eventually
from tests.support.redis import RedisServer
from tests.support.redis_groups import Cluster, Sentinel, Watched, command, running

LONG_SECONDS = 30.0
ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.usefixtures("no_haste")


@pytest.fixture(scope="module")
def masters(server_workspace: Path) -> Iterator[Cluster]:
    cluster = Cluster(server_workspace, 3, has_replicas=False)
    with running(cluster):
        yield cluster


@pytest.fixture
def cluster(masters: Cluster) -> Cluster:
    for server in masters.servers:
        command(server, "FLUSHALL")
        command(server, "SCRIPT", "FLUSH")
        command(server, "CONFIG", "RESETSTAT")
    return masters


@pytest.fixture
def replicated(server_workspace: Path) -> Iterator[Cluster]:
    """Three masters of this test alone, each with a replica."""
    cluster = Cluster(server_workspace, 3, has_replicas=True)
    with running(cluster):
        yield cluster


@pytest.fixture
def watched(server_workspace: Path) -> Iterator[Watched]:
    """A master with a replica and three sentinels, of this test alone."""
    group = Watched(server_workspace)
    with running(group):
        yield group


@pytest.fixture
async def tier(cluster: Cluster) -> AsyncIterator[RedisFastTier]:
    async with fast_tier(cluster.url) as tier:
        assert tier.up
        yield tier


def bucket_of(operation_id: UUID) -> str:
    return f"{prefix_of()}{{{operation_id.hex[:2]}}}:"


def slot_for(snapshot: Snapshot) -> int:
    return slot_of(bucket_of(id_of(snapshot)))


def elsewhere(cluster: Cluster, slot: int) -> RedisServer:
    """A master that the slot may go to."""
    return next(server for server in cluster.masters if server is not cluster.owner_of(slot))


async def put(tier: RedisFastTier, *snapshots: Snapshot) -> None:
    await asyncio.gather(*(tier.put(each, boot_seconds()) for each in snapshots))


async def found(tier: RedisFastTier, *snapshots: Snapshot) -> list[bool]:
    """Of each, whether it is served. What is served is right."""

    async def look(snapshot: Snapshot) -> bool:
        copy = None
        with suppress(StoreError):
            copy = await tier.get(id_of(snapshot))
        assert copy is None or copy.record == snapshot.record
        return copy is not None

    return list(await asyncio.gather(*map(look, snapshots)))


async def until_found(tier: RedisFastTier, *snapshots: Snapshot, is_put: bool = False) -> None:
    """With `is_put`, put them until then."""

    async def are_found() -> bool:
        with suppress(StoreError):
            await put(tier, *snapshots if is_put else ())
        return all(await found(tier, *snapshots))

    await eventually(are_found, LONG_SECONDS, "the copies are found")


until_kept = partial(until_found, is_put=True)


def at(cluster: Cluster, server: RedisServer, snapshots: list[Snapshot]) -> list[Snapshot]:
    slots = cluster.slots_of(server)
    return [each for each in snapshots if any(slot_for(each) in part for part in slots)]


async def test_a_purge_ends_the_copies_at_every_master(tier: RedisFastTier, cluster: Cluster) -> None:
    """For whoever reads there, and for what was read before; what is read then is kept."""
    snapshots = [completed() for _ in range(60)]
    async with fast_tier(cluster.url) as other:
        purged: list[UUID] = []
        other.on_purge(purged.append)
        await put(tier, *snapshots)
        assert all(await found(other, *snapshots))
        read_seconds = boot_seconds()
        await tier.forget(id_of(snapshots[0]))
        assert tier.has_forgotten
        for each in (tier, other):
            assert not any(await found(each, *snapshots))
            await asyncio.gather(*(each.put(snapshot, read_seconds) for snapshot in snapshots))
            assert not any(await found(each, *snapshots))
        await eventually(lambda: id_of(snapshots[0]) in purged, what="the purge is told")
        await until_kept(other, *snapshots)
        assert all(await found(tier, *snapshots))


async def test_a_slot_that_moves(tier: RedisFastTier, cluster: Cluster) -> None:
    """While it does, its operations have no copies or right ones, its neighbours theirs, and a content is found where
    it is; afterwards what is put at the new master is served, and what was moved there is not believed."""
    snapshot, content = completed(), uuid4().bytes
    bucket = id_of(snapshot).hex[:2]
    content = bytes.fromhex(bucket) + content
    neighbours = [each for each in (completed() for _ in range(30)) if slot_for(each) != slot_for(snapshot)]
    await put(tier, snapshot, *neighbours)
    slot, target = slot_for(snapshot), elsewhere(cluster, slot_for(snapshot))
    source = cluster.begin_move(slot, target)
    async with fast_tier(cluster.url) as other:
        # Nobody has named it, so it is where the slot goes: ASK.
        assert await tier.first_of(content, id_of(snapshot), 60_000) == id_of(snapshot)
        assert await other.first_of(content, uuid4(), 60_000) == id_of(snapshot)
        with client(target.url) as redis:
            assert redis.execute_command("CLUSTER", "COUNTKEYSINSLOT", slot) == 1
        assert all(await found(tier, snapshot, *neighbours))
        # The era last, then first: neither half is taken for the whole.
        assert cluster.move_keys(slot, source, target, lambda key: key.endswith(b"era")) == 1
        for each in (tier, other):
            assert (await found(each, snapshot, *neighbours))[1:] == [True] * len(neighbours)
            assert not any(await found(each, snapshot))
        with suppress(StoreError):
            await put(tier, snapshot)
        cluster.end_move(slot, source, target)
        assert not any(await found(tier, snapshot))
        await until_kept(tier, snapshot)
        await until_found(other, snapshot, *neighbours)
        assert await other.first_of(content, uuid4(), 60_000) == id_of(snapshot)


async def test_a_purge_while_a_slot_moves(tier: RedisFastTier, cluster: Cluster) -> None:
    """It is not reported as done until the slot has arrived and was told, and no copy of before is served then."""
    snapshot = completed()
    await put(tier, snapshot)
    slot, target = slot_for(snapshot), elsewhere(cluster, slot_for(snapshot))
    source = cluster.begin_move(slot, target)
    cluster.move_keys(slot, source, target, lambda key: key.endswith(b"era"))
    async with fast_tier(cluster.url) as other:
        with pytest.raises(NotApplied):
            await tier.forget(id_of(snapshot))
        assert not tier.has_forgotten
        cluster.end_move(slot, source, target)
        assert not any(await found(other, snapshot))

        async def has_forgotten() -> bool:
            # Whoever uses the slot finds that it has moved.
            await found(tier, snapshot)
            return tier.has_forgotten

        await eventually(has_forgotten, LONG_SECONDS, "the purge is told where the slot is")
        for each in (tier, other):
            assert not any(await found(each, snapshot))


async def test_what_a_server_does_not_have_is_looked_for(tier: RedisFastTier) -> None:
    """A server that is asked for a bucket that is elsewhere says so, and the masters are looked for."""
    node, moved = next(iter(tier._nodes.values())), list[bool]()
    node._on_moved = lambda: moved.append(True)
    await node.check()
    assert not moved
    node.own(set(range(PARTS)) - node._buckets)
    await node.check()
    assert node.is_reached
    assert moved


async def test_a_slot_that_comes_back(tier: RedisFastTier) -> None:
    """Whatever was known of it before, its master has yet to be told of what was purged while it was elsewhere."""
    node = next(iter(tier._nodes.values()))
    owned = node._buckets
    assert node.knows_all_eras
    node.own(sorted(owned)[1:])
    node.own(owned)
    assert not node.knows_all_eras
    await node.check()
    assert node.knows_all_eras


async def test_a_master_that_is_lost_takes_down_its_slots_alone(replicated: Cluster) -> None:
    """Then its replica has them, and nothing that was purged meanwhile comes back."""
    snapshots = [completed() for _ in range(60)]
    async with fast_tier(replicated.url) as tier, fast_tier(replicated.url) as other:
        await put(tier, *snapshots)
        await eventually(lambda: copies_at(replicated.servers) >= 2 * len(snapshots), what="all is replicated")
        lost = at(replicated, replicated.masters[0], snapshots)
        replicated.masters[0].kill()
        assert await found(other, *snapshots) == [each not in lost for each in snapshots]
        assert other.up
        # Each read of what was lost fails at once, until another has it.
        with pytest.raises(StoreError):
            await other.forget(id_of(lost[0]))
        assert not any(await found(tier, *snapshots))
        await eventually(lambda: other.has_forgotten, LONG_SECONDS, "the purge is told to who was promoted")
        for each in (tier, other):
            assert not any(await found(each, *snapshots))
        await until_kept(tier, *snapshots)
        # The former master comes back as a replica, with nothing that is believed.
        replicated.masters[0].start()
        assert all(await found(other, *snapshots))


def copies_at(servers: list[RedisServer]) -> int:
    number = 0
    for server in servers:
        with client(server.url) as redis:
            number += sum(1 for key in redis.scan_iter(f"{prefix_of()}*", 1_000) if not key.endswith(b"era"))
    return number


async def test_a_plain_url_of_a_node_says_what_to_write(cluster: Cluster) -> None:
    """A node of a cluster would refuse most reads, so it is not used as if it were alone."""
    place = f"127.0.0.1:{cluster.masters[0].port}"
    assert await why_down(f"redis://{place}") == (
        f"Redis at {place}/0 is a node of a cluster; write redis+cluster://{place}"
    )


@pytest.mark.parametrize("how", ["asked-for", "killed"])
async def test_a_failover(how: str, watched: Watched) -> None:
    """All go over to the new master; a purge before, meanwhile or afterwards leaves no copy; its news is heard."""
    snapshot, early = completed(), completed()
    async with fast_tier(watched.url) as tier, fast_tier(watched.url) as other:
        await put(tier, snapshot, early)
        await tier.forget(id_of(early))
        former = watched.master
        new = next(server for server in watched.servers if server is not former)
        if how == "killed":
            former.kill()
        else:
            command(watched.sentinels[0], "SENTINEL", "FAILOVER", watched.NAME)

        async def leads_to_the_new_one() -> bool:
            assert not any(await found(tier, early))
            return {next(iter(each._nodes)).port for each in (tier, other) if each.up} == {new.port}

        await eventually(leads_to_the_new_one, LONG_SECONDS, "both are at the new master")
        for each in (tier, other):
            await until_up(each)
        # What was replicated is there, and not believed.
        assert not any(await found(other, snapshot, early))
        later = completed()
        await until_kept(tier, later)
        await until_kept(other, later)
        async with other.watch(id_of(later)) as watch:
            await tier.forget(id_of(later))
            assert await watch.wait_changed(LONG_SECONDS)
        for each in (tier, other):
            assert not any(await found(each, later, snapshot, early))


async def test_a_report_of_the_sentinels_is_acted_on_at_once(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """The abandoned master goes on to serve, for seconds; whoever listens has left it before the next look."""
    monkeypatch.setattr(masters_of_redis, "_LOOK_SECONDS", 600.0)
    async with fast_tier(watched.url) as tier:
        former = watched.master
        sentinel = watched.sentinels[0]
        await eventually(lambda: b" sub=1 " in command(sentinel, "CLIENT", "LIST"), what="the tier listens")
        command(sentinel, "SENTINEL", "FAILOVER", watched.NAME)
        await eventually(lambda: next(iter(tier._nodes)).port != former.port, LONG_SECONDS, "the tier has left it")
        assert command(former, "ROLE")[0] == b"master"


def users() -> tuple[str, str]:
    """The rules of the documented users: of the masters, and of the sentinels."""
    page = (ROOT / "docs/configure/stores.md").read_text("utf-8")
    masters, sentinels, _ = re.findall("^ACL SETUSER gateway on >PASSWORD (.+)$", page, re.MULTILINE)
    return masters, sentinels


async def use(url: str, dropped: int) -> None:
    """Everything that a gateway and its commands do with a fast tier."""
    note, snapshot, content = RedisSeen(url, "shop"), completed(), b"c"
    first = WitnessNote(UUID(int=1), 1, 1, 0, b"0123456789abcdef")
    for link in (first, replace(first, link=UUID(int=2), at_us=STOOD_FOR_US + 2)):
        seen = Seen("identity", 7, (), is_compared=True, acknowledged=(link,))
        await note.write(seen, "" if link is first else seen.identity)
        assert await note.read() == seen
    async with fast_tier(url) as tier:
        assert tier.up
        await until_kept(tier, snapshot)
        assert await tier.first_of(content, id_of(snapshot), 60_000) == id_of(snapshot)
        async with tier.watch(id_of(snapshot)) as watch:
            await tier.announce(id_of(snapshot))
            assert await watch.wait_changed(LONG_SECONDS)
        await tier.forget(id_of(snapshot))
        await until_kept(tier, snapshot)
        assert await tier.drop_copies() == dropped


@pytest.mark.parametrize("kind", ["single", "cluster", "sentinel"])
async def test_a_user_needs_no_more_than_documented(kind: str, server_workspace: Path) -> None:
    """Each form, with a login for the masters and another for the sentinels; nobody else gets in."""
    of_masters, of_sentinels = users()
    options = ("--user", "gateway", "on", ">right", *of_masters.split())
    with contextlib.ExitStack() as stack:
        if kind == "cluster":
            cluster = Cluster(server_workspace, 1, has_replicas=False, options=options)
            stack.enter_context(running(cluster))
            url = f"redis+cluster://gateway:right@127.0.0.1:{cluster.servers[0].port}"
        else:
            server = RedisServer(server_workspace / f"used-{kind}", options=options)
            stack.callback(server.kill)
            server.start()
            url = f"redis://gateway:right@127.0.0.1:{server.port}/1"
        if kind == "sentinel":
            sentinel = Sentinel(server_workspace / "used-sentinel-of-it")
            sentinel.watch("m", server.port, quorum=1, lines=[f"user gateway on >left {of_sentinels}"])
            stack.callback(sentinel.kill)
            sentinel.start()
            place = f"127.0.0.1:{sentinel.port}"
            url = f"redis+sentinel://gateway:right@{place}/m/1?sentinel_username=gateway&sentinel_password=left"
        await use(url, 1)
        for wrong in {url.replace("right", "wrong"), url.replace("left", "wrong")} - {url}:
            assert "invalid username-password pair" in await why_down(wrong)
