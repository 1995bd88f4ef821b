"""Two gateways whose Redis fails over under load: replays go on, nothing wrong is replayed, and purges hold.

`python -m tests.integration.fast_failover --faults 20`, on sentinels and on a cluster. Callers send new keys and repeat
old ones at both gateways, which keep nothing in memory; an operator purges some. Meanwhile a master is killed and comes
back as a replica, is abandoned in a failover that is asked for, or is flushed. The ledger of the service, and every
reply, is judged: a key is executed once and replayed as it was answered, until it was purged; from then on it is
expired. For as long as the gateways may not have heard of a purge, a copy is counted and is no fault; see
docs/configure/stores.md for how long that is.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.integration.hand import OPERATOR, WHY, operated
from tests.observe.scrape import Scrape
from tests.support import http, long_run
from tests.support.eventually import eventually
from tests.support.fleet import config_of, gateways, key_of, nonce_of, send
from tests.support.gateway import GatewayProcess
from tests.support.house import status_of
from tests.support.ports import free_port
from tests.support.redis import RedisServer
from tests.support.redis_groups import FORM_SECONDS, Cluster, Watched, command, follows
from tests.support.upstream import Answer, RecordingUpstream

KINDS: Final = ("sentinel", "cluster")
FAULTS: Final = ("kill", "switch", "flush")
_CALLERS: Final = 4
_OLD_KEYS_MAX: Final = 400
# Between faults, and how often a key is purged.
_CALM_SECONDS: Final = 1.5
_PURGE_SECONDS: Final = 1.0
# The durable store tells of a purge within 15 seconds, and an abandoned master is left after five.
_PURGE_KNOWN_SECONDS: Final = 25.0


@dataclass
class Verdict(long_run.Verdict):
    """What was seen. `late`: copies of purged keys while not everybody had heard of that."""

    faults_made: Counter[str] = field(default_factory=Counter)
    stored: int = 0
    replayed: int = 0
    purged: int = 0
    late: int = 0
    late_seconds: float = 0.0
    from_redis: int = 0

    def summary(self) -> str:
        made = ", ".join(f"{number} {fault}" for fault, number in sorted(self.faults_made.items()))
        return (
            f"{made}; {self.stored} stored, {self.replayed} replayed ({self.from_redis} found in Redis); "
            f"{self.purged} purged, {self.late} of their copies replayed within "
            f"{self.late_seconds:.1f} s of it"
        )


@dataclass
class _Key:
    name: str
    nonce: str | None
    purged_seconds: float | None = None
    """When the operator was told that it is."""
    is_being_purged: bool = False


@dataclass
class _Run:
    kind: str
    places: list[GatewayProcess]
    upstream: RecordingUpstream
    admin_port: int
    dice: random.Random
    verdict: Verdict = field(default_factory=Verdict)
    keys: list[_Key] = field(default_factory=list)
    names: Iterator[int] = field(default_factory=itertools.count)
    is_over: bool = False

    async def call(self) -> None:
        """Send a new key, and repeat some."""
        while not self.is_over:
            name = f"{self.kind}-{next(self.names)}"
            first = await send(self.dice.choice(self.places).port, name, name.encode())
            if status_of(first) != (201, "stored"):
                self.verdict.faults.append(f"{name} was answered {status_of(first)}")
                continue
            self.verdict.stored += 1
            self.keys.append(_Key(name, nonce_of(first)))
            del self.keys[:-_OLD_KEYS_MAX]
            for _ in range(6):
                await self._repeat(self.dice.choice(self.keys))

    async def _repeat(self, key: _Key) -> None:
        began = time.monotonic()
        purged_seconds, was_being_purged = key.purged_seconds, key.is_being_purged
        reply = await send(self.dice.choice(self.places).port, key.name, key.name.encode())
        match status_of(reply):
            case (201, "replayed") if nonce_of(reply) != key.nonce:
                self.verdict.faults.append(f"{key.name} was replayed with the response of another request")
            case (201, "replayed") if purged_seconds is None:
                self.verdict.replayed += 1
            case (201, "replayed"):
                late_seconds = began - purged_seconds
                self.verdict.late += 1
                self.verdict.late_seconds = max(self.verdict.late_seconds, late_seconds)
                if late_seconds > _PURGE_KNOWN_SECONDS:
                    self.verdict.faults.append(f"{key.name} was replayed {late_seconds:.1f} s after its purge")
            case (410, "key-expired") if was_being_purged or key.is_being_purged:
                pass
            case other:
                self.verdict.faults.append(f"the repeat of {key.name} was answered {other}")

    async def purge(self) -> None:
        """Purge a key now and then, as an operator does."""
        while not self.is_over:
            await asyncio.sleep(_PURGE_SECONDS)
            if not (living := [key for key in self.keys if not key.is_being_purged]):
                continue
            key = self.dice.choice(living)
            key.is_being_purged = True
            (operation,) = {
                value.decode()
                for received in self.upstream.requests
                if key_of(received) == key.name
                for value in received.values("Idempotency-Operation")
            }
            target = f"/operations/{operation}/purge"
            reply = await http.request(self.admin_port, "POST", target, OPERATOR, WHY)
            if reply.status != 200:
                self.verdict.faults.append(f"the purge of {key.name} was answered {reply.status}")
            key.purged_seconds = time.monotonic()
            self.verdict.purged += 1

    async def judge(self) -> Verdict:
        executed = Counter(key_of(received) for received in self.upstream.requests)
        self.verdict.faults += [f"{key} was executed {number} times" for key, number in executed.items() if number > 1]
        for place in self.places:
            told = Scrape(await place.metrics())
            self.verdict.from_redis += int(told.total("idempotency_copy_lookups_total", source="fast", result="hit"))
        return self.verdict


async def fail_over(directory: Path, store: dict[str, Any], kind: str, *, faults: Sequence[str], seed: int) -> Verdict:
    """See the module. `store` is the `store` section of an empty durable store that gateways can share."""
    group = Cluster(directory, 3, has_replicas=True) if kind == "cluster" else Watched(directory)
    dice = random.Random(seed)
    async with AsyncExitStack() as stack:
        await asyncio.to_thread(group.start)
        stack.callback(group.stop)
        upstream = await stack.enter_async_context(RecordingUpstream())
        upstream.on("/charges", Answer(201))
        admin_port = free_port()
        changes = {"store": {"fast": group.url, "cache_max_age": "0s"}}
        configs = [
            (config_of(store, directory / "one", upstream.url, **changes, **operated(admin_port)), directory / "one"),
            (config_of(store, directory / "two", upstream.url, **changes), directory / "two"),
        ]
        places = await stack.enter_async_context(gateways(*configs))
        run = _Run(kind, places, upstream, admin_port, random.Random(seed))
        async with asyncio.TaskGroup() as load:
            for _ in range(_CALLERS):
                load.create_task(run.call())
            load.create_task(run.purge())
            try:
                for fault in faults:
                    await eventually(lambda: _is_whole(group), FORM_SECONDS, "every master has its replica")
                    await asyncio.sleep(_CALM_SECONDS)
                    run.verdict.faults_made[fault] += 1
                    await _make(fault, group, dice)
                await asyncio.sleep(_CALM_SECONDS)
            finally:
                run.is_over = True
        return await run.judge()


async def _make(fault: str, group: Cluster | Watched, dice: random.Random) -> None:
    """Do it, and return when another master is there, and all servers run."""
    master = group.master if isinstance(group, Watched) else group.owner_of(dice.randrange(16384))
    if fault == "flush":
        await asyncio.to_thread(command, master, "FLUSHALL")
        return
    if fault == "kill":
        master.kill()
    elif isinstance(group, Watched):
        await asyncio.to_thread(command, group.sentinels[0], "SENTINEL", "FAILOVER", group.NAME)
    else:
        replica = await asyncio.to_thread(group.replica_of, master)
        await asyncio.to_thread(command, replica, "CLUSTER", "FAILOVER")
    await eventually(lambda: _is_led_by_another(group, master), FORM_SECONDS, "another master is there")
    if fault == "kill":
        await asyncio.to_thread(master.start)


def _is_led_by_another(group: Cluster | Watched, master: RedisServer) -> bool:
    if isinstance(group, Watched):
        return group.master is not master
    return master not in group.current_masters()


def _is_whole(group: Cluster | Watched) -> bool:
    if isinstance(group, Watched):
        return all(follows(server) for server in group.servers if server is not group.master)
    return group.is_whole()


async def _run(directory: Path, store: dict[str, Any], *, faults: int, seed: int) -> Verdict:
    verdicts, chosen = [], random.Random(seed).choices(FAULTS, (2, 1, 1), k=faults)
    for kind in KINDS:
        (directory / kind).mkdir()
        verdicts.append(await fail_over(directory / kind, store, kind, faults=chosen, seed=seed))
        print(f"{kind}: {verdicts[-1]}", flush=True)
    return next((verdict for verdict in verdicts if verdict.faults), verdicts[-1])


if __name__ == "__main__":
    sys.exit(long_run.main("fast_failover", __doc__, _run, faults=20))
