"""A rolling upgrade under load: gateways of two successive programs on one Postgres and one Redis.

`python -m tests.upgrade.rolling --seconds 300`. Gateways are replaced one by one by the next program, back by this one,
and forwards again, over and over, and at last `migrate --finish` raises the level. Meanwhile clients retry as in a
storm, and the same judge judges everything that any of the gateways did. With `kills`, every other gateway is killed
instead of stopped, and the stores fail as they do in a storm; without, nothing may be refused, but by a gateway that is
being replaced.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gateway import EXIT_OK
from tests.integration.storm import (
    PATIENCE_SECONDS,
    TO_STORES,
    World,
    settle,
    stop_in_order,
    storm_config,
    trouble,
    wait_stores,
)
from tests.integration.storm_clients import RECORDED, Call, Clients
from tests.integration.storm_judge import judge
from tests.integration.storm_upstream import StormUpstream
from tests.store.postgres_sessions import session
from tests.support import long_run
from tests.support.fleet import gateways
from tests.support.gateway import GatewayProcess
from tests.support.postgres import PostgresInstallation, PostgresServer
from tests.support.redis import RedisServer
from tests.upgrade.programs import NEXT_RECORD_VERSION, THIS, build_next, finish, use

CLIENTS: Final = 8
# Of a service that is slow or fails, and of callers that come twice: no gateway refused these.
_SERVED: Final = RECORDED | {None, "in-flight", "in-doubt", "released", "upstream-unreachable", "key-reused"}
_FINISH_SECONDS: Final = 120.0
_AFTER_SECONDS: Final = 3.0
_PAUSE_SECONDS: Final = 3.0
_SHORT_PAUSE_SECONDS: Final = 0.5


@dataclass
class Verdict(long_run.Verdict):
    """What it came to. It passed when there are no `faults`."""

    words: Counter[str]
    replaced: int
    effects: int
    records: dict[int, int]
    disturbances: int

    def summary(self) -> str:
        counts = f"calls: {self.words.total()}, effects: {self.effects}, records by version: {self.records}"
        replaced = f"gateways replaced: {self.replaced}, faults of the stores: {self.disturbances}"
        return f"{counts}\n{replaced}\nanswers: {dict(self.words.most_common())}"


class Fleet:
    """The gateways, and the programs that they run."""

    def __init__(self, world: World, next_program: Path, source: random.Random, *, kills: bool) -> None:
        self._world = world
        self._next_program = next_program
        self._source = source
        self._kills = kills
        self.replaced = 0
        self.faults: list[str] = []

    async def upgrade(self, until: float, *, is_short: bool) -> None:
        """Forwards and backwards until then, once at least, and forwards at the end; then raise the level."""
        pause_seconds = _SHORT_PAUSE_SECONDS if is_short else _PAUSE_SECONDS
        gateways = self._world.gateways
        for turn in itertools.count():
            for gateway in gateways:
                if gateway.root != self._next_program:
                    await self._replace(gateway, self._next_program, pause_seconds)
            if turn and time.monotonic() > until:
                break
            for gateway in gateways[-1:] if is_short else reversed(gateways):
                await self._replace(gateway, THIS, pause_seconds)
                if not is_short:
                    await self._expect_refusal()
        await self._finish()

    async def _replace(self, gateway: GatewayProcess, root: Path, pause_seconds: float) -> None:
        async with self._world.absence(gateway):
            if self._kills and self._source.random() < 0.5:
                gateway.kill()
            else:
                gateway.ask_to_stop()
                await gateway.wait_exit()
            use(gateway, root)
            await gateway.start()
        self.replaced += 1
        await asyncio.sleep(self._source.uniform(0.5, 1.5) * pause_seconds)

    async def _expect_refusal(self) -> None:
        newer = [gateway for gateway in self._world.gateways if gateway.root == self._next_program]
        if not newer:
            return
        code, said = await finish(newer[0])
        if code == EXIT_OK:
            self.faults.append(f"the level was raised beside older gateways: {said}")
        elif not self._kills and "gateways of an older program still run" not in said:
            self.faults.append(f"raising the level was refused for another reason: {said}")

    async def _finish(self) -> None:
        until = time.monotonic() + _FINISH_SECONDS
        while True:
            code, said = await finish(self._world.gateways[0])
            if code == EXIT_OK:
                return
            if not self._kills or time.monotonic() > until:
                self.faults.append(f"the level was not raised: {said}")
                return
            await asyncio.sleep(1.0)


async def rolling(
    directory: Path,
    installation: PostgresInstallation,
    next_program: Path,
    *,
    seconds: float,
    seed: int,
    kills: bool,
    count: int = 3,
    is_short: bool = False,
) -> Verdict:
    """Run one with so many gateways in this directory."""
    async with AsyncExitStack() as stack:
        postgres = stack.enter_context(PostgresServer(installation, directory / "pg").running())
        redis = stack.enter_context(RedisServer(directory / "redis").running())
        upstream = await stack.enter_async_context(StormUpstream(random.Random(f"{seed} upstream")))
        upstream.is_calm = is_short
        places = [directory / f"gateway-{number}" for number in range(count)]
        configs = [(storm_config(postgres, redis, upstream, place), place) for place in places]
        world = World(postgres, redis, upstream, await stack.enter_async_context(gateways(*configs)))
        clients = Clients(world.gateways, seed)
        fleet = Fleet(world, next_program, random.Random(f"{seed} fleet"), kills=kills)
        async with asyncio.TaskGroup() as group:
            group.create_task(clients.run(1 if is_short else CLIENTS))
            until = time.monotonic() + seconds
            if kills:
                group.create_task(trouble(world, TO_STORES, random.Random(f"{seed} stores"), until))
            await fleet.upgrade(until, is_short=is_short)
            await asyncio.sleep(_AFTER_SECONDS)
            clients.is_over = True
        await wait_stores(world)
        upstream.is_calm = True
        _, faults = await settle(world.gateways, clients, PATIENCE_SECONDS)
        records = await _records(postgres)
        for gateway in world.gateways:
            faults += await stop_in_order(gateway)
        faults += fleet.faults + judge(clients.calls, upstream.deeds, upstream.answers, world.was_superseded)
        if not kills:
            faults += [
                f"call {call.number} was refused: {call.verdict}" for call in clients.calls if _refused(call, world)
            ]
        if not records.get(NEXT_RECORD_VERSION):
            faults.append(f"the next program wrote none of its records after the level was raised: {records}")
        found = clients.words(), fleet.replaced, len(upstream.effects), records, world.done.total()
        return Verdict(*found, faults=faults)


def _refused(call: Call, world: World) -> bool:
    """By a gateway that was not being replaced then."""
    away = any(port == call.gateway and call.begin <= end and call.end >= begin for port, begin, end in world.absences)
    return call.verdict not in _SERVED and not away


async def _records(postgres: PostgresServer) -> dict[int, int]:
    async with session(postgres.url) as connection:
        rows = await connection.fetch("SELECT version, count(*) FROM idempotency_gateway.operation GROUP BY version")
        return {row["version"]: row["count"] for row in rows}


async def _run(
    directory: Path, installation: PostgresInstallation, *, seconds: float, calm: bool, seed: int
) -> Verdict:
    next_program = build_next(directory / "next")
    return await rolling(directory, installation, next_program, seconds=seconds, seed=seed, kills=not calm)


if __name__ == "__main__":
    sys.exit(long_run.main("rolling", __doc__, _run, has_store=False, seconds=30.0, calm=False))
