"""A durable store on a Redis Cluster: all shards, each at the master that has its slot."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from gateway.core.observation import Finding, Observation
from gateway.core.outbox import NO_EVENTS, Outbox
from gateway.store.memory.witness_files import WitnessFiles
from gateway.store.observations import ObservedCount
from gateway.store.redis.durable import Common, RedisStore, redis_store
from gateway.store.redis.shard import shards
from gateway.store.rekeying import Kept, Place, Row
from gateway.store.sharded import ShardedStore


class RedisCluster(ShardedStore[RedisStore]):
    """The `ManagedStore`, `SealedRows` and `ObservationStore` of all shards."""

    async def sealed_rows(self, place: Place, after: Any, limit: int) -> list[Row]:
        """See `SealedRows`, also for the next one. A row continues in its shard."""
        number, within = (0, None) if after is None else after
        while number < len(self.shards):
            if rows := await self.shards[number].sealed_rows(place, within, limit):
                return [replace(row, after=(number, row.after)) for row in rows]
            number, within = number + 1, None
        return []

    async def reseal(self, changes: Sequence[tuple[Row, Kept]]) -> int:
        changed = 0
        for number, shard in enumerate(self.shards):
            own = [(replace(row, after=row.after[1]), kept) for row, kept in changes if row.after[0] == number]
            changed += await shard.reseal(own) if own else 0
        return changed

    def on_purge(self, listener: Callable[[UUID], None]) -> None:
        """See `RedisStore.on_purge`: the shards share their news."""
        self.shards[0].on_purge(listener)

    async def has_begun(self) -> bool:
        """Whether a shard has; see `RedisStore.has_begun`."""
        return any([await shard.has_begun() for shard in self.shards])

    async def raise_level(self) -> bool:
        """Of all shards; see `RedisStore.raise_level`."""
        return any([await shard.raise_level() for shard in self.shards])

    async def observed_before(self, service: str, operation_ids: Collection[UUID]) -> list[Observation]:
        """See `ObservationStore`, also for the next three: no shard has any."""
        return await self.shards[0].observed_before(service, operation_ids)

    async def observed_contents(
        self, service: str, contents: Collection[bytes], since_us: int
    ) -> list[tuple[bytes, UUID, int]]:
        return await self.shards[0].observed_contents(service, contents, since_us)

    async def save_observations(
        self, service: str, found: Sequence[tuple[Observation, Finding]], forget_before_us: int
    ) -> None:
        await self.shards[0].save_observations(service, found, forget_before_us)

    async def count_observed(self, service: str, route: str | None) -> list[ObservedCount]:
        return await self.shards[0].count_observed(service, route)


def redis_cluster(
    url: str,
    *,
    replicas: int | None = None,
    clock_us: Callable[[], int] | None = None,
    witness_files: WitnessFiles | None = None,
    outbox: Outbox = NO_EVENTS,
) -> RedisCluster:
    """As `redis_store`. Each shard has witness files of its own, beside the others."""
    common = Common(url)
    return RedisCluster(
        [
            redis_store(
                url,
                shard,
                replicas=replicas,
                clock_us=clock_us,
                witness_files=None if witness_files is None else witness_files.of_shard(shard.number),
                outbox=outbox,
                common=common,
            )
            for shard in shards(is_cluster=True)
        ]
    )
