"""Redis alone on a cluster: each shard is a store of its own, and what happens to one concerns its keys alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from gateway.admin.memory import accept_loss, memory_state
from gateway.app.stores import bare_store, durable_store, seen_file
from gateway.config import parse
from gateway.core.confidential import NO_SEALING
from gateway.core.operation import Applied, Audit, State
from gateway.observe.facts import Events, Fact, MemoryChanged
from gateway.store.base import Amnesic, Indefinite, NotApplied
from gateway.store.memory.witness_files import WitnessFiles
from gateway.store.operations import Query
from gateway.store.redis.shard import Shard, shards
from gateway.store.sharded import GuardedShards
from tests.conformance.hand import Hand, Script, do, new_identity, state
from tests.support.eventually import eventually
from tests.support.house import config_text
from tests.support.redis import RedisServer
from tests.support.redis_groups import Cluster, command, running
from tests.support.serving import serving

PATIENCE_SECONDS: Final = 40.0
SHARDS: Final = shards(is_cluster=True)


@pytest.fixture
def cluster(server_workspace: Path) -> Iterator[Cluster]:
    """Three masters, each with a replica, which keep what they acknowledge."""
    options = ("--cluster-require-full-coverage", "no")
    cluster = Cluster(server_workspace, 3, has_replicas=True, keeps=True, options=options)
    with running(cluster):
        yield cluster


@asynccontextmanager
async def guarded(cluster: Cluster, directory: Path, facts: list[Fact] | None = None) -> AsyncIterator[GuardedShards]:
    """As a gateway puts it together."""
    stores = {"durable": cluster.durable_url, "replicas": 1, "probation": "3s", "promotion_wait": "5s"}
    config = parse(config_text("http://127.0.0.1:9", stores, directory))
    config.state_dir.mkdir(parents=True, exist_ok=True)
    files = WitnessFiles(config.state_dir / "witness")
    store = durable_store(
        config,
        bare_store(config, NO_SEALING, files),
        NO_SEALING,
        Events(*([] if facts is None else [facts.append])),
        serving(recipes={"route": b"recipe"}),
        seen_file(config),
        None,
        files,
        None,
    )
    assert isinstance(store, GuardedShards)
    await store.start()
    try:
        yield store
    finally:
        await store.close()


def of_shard(shard: Shard) -> Hand:
    """A new operation that this shard has."""
    while True:
        hand = Hand(Script(new_identity()))
        if hand.operation_id.bytes[0] * shard.of // 256 == shard.number:
            return hand


def shards_of(cluster: Cluster, server: RedisServer) -> list[Shard]:
    return [shard for shard in SHARDS if any(shard.slot in part for part in cluster.slots_of(server))]


async def grants(store: GuardedShards, shard: Shard) -> bool:
    try:
        return isinstance(await store.apply(of_shard(shard).claim()), Applied)
    except (NotApplied, Indefinite, Amnesic):
        return False


async def is_refused(store: GuardedShards, shard: Shard, why: str) -> bool:
    try:
        await store.apply(of_shard(shard).claim())
    except NotApplied as error:
        return why in str(error)
    except Indefinite:
        return False
    return False


def test_the_shards_lie_evenly_over_the_slots() -> None:
    """So that masters with equal shares of the slots have equal shares of the operations, or nearly."""
    assert sorted(shard.slot * 16 // 16384 for shard in SHARDS) == list(range(16))
    assert len({shard.memory for shard in SHARDS}) == 16


async def test_a_killed_master_concerns_its_keys_alone(cluster: Cluster, tmp_path: Path) -> None:
    """The others are granted all the while; its own are, too, once its replica was promoted, and nothing is lost."""
    facts: list[Fact] = []
    async with guarded(cluster, tmp_path, facts) as store:
        hands = {shard.number: of_shard(shard) for shard in SHARDS}
        for hand in hands.values():
            await do(store, hand, Hand.claim, Hand.complete)
        victim = cluster.owner_of(SHARDS[0].slot)
        lost = shards_of(cluster, victim)
        others = [shard for shard in SHARDS if shard not in lost]
        is_over = False

        async def load() -> list[bool]:
            granted = []
            while not is_over:
                granted += await asyncio.gather(*(grants(store, shard) for shard in others))
            return granted

        loading = asyncio.create_task(load())
        victim.kill()
        for shard in lost:
            assert not await grants(store, shard)
        await eventually(lambda: cluster.owner_of(SHARDS[0].slot) is not victim, PATIENCE_SECONDS)
        # Nothing is acknowledged without the replica that may be promoted next.
        await eventually(lambda: is_refused(store, lost[0], "have caught up: 0"), PATIENCE_SECONDS)
        victim.start()
        for shard in lost:
            await eventually(lambda shard=shard: grants(store, shard), PATIENCE_SECONDS)
        is_over = True
        granted = await loading
        assert len(granted) > 10 * len(others)
        assert all(granted)
        for hand in hands.values():
            assert await state(store, hand) is State.COMPLETED
        everything = await store.cold.find(Query(frozenset((State.COMPLETED,))))
        found = [each.record.identity.operation_id for each in everything if each.record]
        assert found == sorted(hand.operation_id for hand in hands.values())
    assert not any(isinstance(fact, MemoryChanged) for fact in facts)


async def test_a_start_while_a_master_is_away(cluster: Cluster, tmp_path: Path) -> None:
    """The other shards serve, are swept and recovered; lists of all say that some are missing; it joins when it is
    back."""
    away = cluster.owner_of(SHARDS[0].slot)
    gone = [away, cluster.replica_of(away)]
    missing = shards_of(cluster, away)
    others = [shard for shard in SHARDS if shard not in missing]
    for server in gone:
        server.kill()
    async with guarded(cluster, tmp_path) as store:
        doubted = of_shard(others[0])
        for shard in others:
            assert await grants(store, shard)
        await do(store, doubted, Hand.claim, Hand.abandon)
        with pytest.raises(NotApplied) as refused:
            await store.apply(of_shard(missing[0]).claim())
        assert refused.value.is_partial
        assert (await store.cold.sweep(10)).lapsed == 0
        found = await store.cold.find(Query(frozenset((State.IN_DOUBT,)), recoverable=True))
        assert [each.record.identity.operation_id for each in found if each.record] == [doubted.operation_id]
        for listing in (store.cold.find(Query(frozenset((State.IN_DOUBT,)))), store.cold.tally()):
            with pytest.raises(NotApplied):
                await listing
        for server in gone:
            server.start()
        for shard in missing:
            await eventually(lambda shard=shard: grants(store, shard), PATIENCE_SECONDS)


async def test_a_flushed_master_loses_the_memory_of_its_keys(cluster: Cluster, tmp_path: Path) -> None:
    """They are refused, and the others are granted, until somebody accepts the loss."""
    facts: list[Fact] = []
    async with guarded(cluster, tmp_path, facts) as store:
        hands = [of_shard(shard) for shard in SHARDS]
        for hand in hands:
            await do(store, hand, Hand.claim, Hand.complete)
        victim = cluster.owner_of(SHARDS[0].slot)
        command(victim, "FLUSHALL")
        lost = shards_of(cluster, victim)
        # Nobody claims anything meanwhile, so it is for the beats to notice.
        await eventually(lambda: any(isinstance(fact, MemoryChanged) and fact.is_lost for fact in facts))
        for shard in SHARDS:
            hand = hands[shard.number]
            if shard not in lost:
                assert await state(store, hand) is State.COMPLETED
                assert await grants(store, shard)
                continue
            await eventually(lambda hand=hand: is_amnesic(store, hand), PATIENCE_SECONDS)
        assert (await memory_state(store)).is_lost
        assert [fact.is_lost for fact in facts if isinstance(fact, MemoryChanged)][-1]
        await accept_loss(store, Audit("operator", "it was the wrong server"))
        assert not (await memory_state(store)).is_lost
        for shard in SHARDS:
            assert await grants(store, shard)


async def is_amnesic(store: GuardedShards, hand: Hand) -> bool:
    """Whether the key is refused; it must never be granted."""
    try:
        result = await store.apply(hand.claim())
    except Amnesic:
        return True
    except NotApplied:
        return False
    assert not isinstance(result, Applied)
    return False
