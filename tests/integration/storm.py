"""A storm over real processes: gateways and their stores killed, frozen and restarted under clients that retry.

`python -m tests.integration.storm --seconds 600 --seed 7`. Afterwards everything is healed, every key is retried until
its answer no longer changes, and the whole history is judged (`storm_judge`). The seed fixes who does what; when
exactly it hits whom is the machine's. `--dialect` is what remembers: postgres, portable or redis.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.integration.storm_clients import PATHS, RECORDED, Call, Clients, Intent
from tests.integration.storm_judge import judge
from tests.integration.storm_upstream import StormUpstream
from tests.support import long_run
from tests.support.eventually import eventually
from tests.support.fleet import config_of, gateways
from tests.support.gateway import GatewayProcess
from tests.support.house import ROUTE
from tests.support.postgres import PostgresInstallation, PostgresServer
from tests.support.redis import GATEWAY_USER, RedisServer

REDIS: Final = "redis"
LEASE_SECONDS: Final = 3.0
GRACE_SECONDS: Final = 12.0
# What a gateway that is back needs to find the store and to flush its journal.
_FLUSH_SECONDS: Final = 6.0
CLIENTS: Final = 10
# Of requests that are being worked on when the store goes.
_AMID: Final = 5
_AMID_SECONDS: Final = 15.0
HEAL_SECONDS: Final = 60.0
_SETTLE_SECONDS: Final = 60.0
# What is held is in doubt for good once its lease is over; what is asked for, once it was asked for and nobody knew;
# what is sent again is not in doubt for ever.
PATIENCE_SECONDS: Final = dict(
    zip(PATHS, (2 * LEASE_SECONDS, 2 * LEASE_SECONDS + GRACE_SECONDS + 3, 60.0), strict=True)
)
_SETTLERS: Final = 32
_PROBE: Final = {
    "path": "/transfers?operation={operation_id}",
    "done": [{"status": [200]}],
    "never_happened": [{"status": [404]}],
}
ROUTES: Final[list[dict[str, Any]]] = [
    {**ROUTE, "name": path[1:], "match": {"path": path}, "in_flight": {"wait": "1s"}, "recovery": recovery}
    for path, recovery in zip(PATHS, ("hold", "resend", {"probe": _PROBE}), strict=True)
]


@dataclass
class Verdict(long_run.Verdict):
    """What a storm came to. It passed when there are no `faults`."""

    words: Counter[str]
    done: Counter[str]
    effects: int
    keys: int
    in_doubt: int

    def summary(self) -> str:
        counts = f"calls: {self.words.total()}, keys: {self.keys}, effects: {self.effects}, in doubt: {self.in_doubt}"
        answers = "answers: " + ", ".join(f"{verdict} {count}" for verdict, count in self.words.most_common())
        return f"{counts}\n{answers}\nfaults: " + ", ".join(f"{what} {n}" for what, n in sorted(self.done.items()))


class DurableRedis(RedisServer):
    """A Redis that keeps operations alone, treated as the other durable store is."""

    crash = RedisServer.kill
    launch = RedisServer.start

    async def is_ready(self) -> bool:
        return self.answers()


@dataclass
class World:
    """All processes of a storm."""

    durable: PostgresServer | DurableRedis
    redis: RedisServer | None
    upstream: StormUpstream
    gateways: Sequence[GatewayProcess]
    done: Counter[str] = field(default_factory=Counter)
    absences: list[tuple[int, float, float]] = field(default_factory=list)

    @asynccontextmanager
    async def absence(self, gateway: GatewayProcess) -> AsyncIterator[None]:
        """While a gateway is away, from its last step to its next."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self.absences.append((gateway.port, begin, time.monotonic()))

    def was_superseded(self, call: Call) -> bool:
        """Whether a `journaled` answer need not have become the record: its gateway was away for so long that others
        had not to leave the operation alone any more. That is what `store.journal_grace` is said to mean.
        """
        return any(
            port == call.gateway and end > call.end and end - begin > GRACE_SECONDS - _FLUSH_SECONDS
            for port, begin, end in self.absences
        )


Deed = Callable[[World, random.Random], Awaitable[None]]


async def _kill(world: World, source: random.Random) -> None:
    gateway = source.choice(world.gateways)
    async with world.absence(gateway):
        gateway.kill()
        await asyncio.sleep(source.uniform(0.0, 2.0))
        await gateway.start()


async def _restart(world: World, source: random.Random) -> None:
    gateway = source.choice(world.gateways)
    async with world.absence(gateway):
        gateway.ask_to_stop()
        await gateway.wait_exit()
        await gateway.start()


async def _freeze(world: World, source: random.Random) -> None:
    gateway = source.choice(world.gateways)
    async with world.absence(gateway):
        gateway.pause()
        await asyncio.sleep(LEASE_SECONDS + source.uniform(0.5, 3.0))
        gateway.resume()


async def _crash_store(world: World, source: random.Random) -> None:
    world.durable.crash()
    await _back_after(world, source.uniform(0.0, 3.0))


async def _back_after(world: World, seconds: float) -> None:
    await asyncio.sleep(seconds)
    world.durable.launch()
    await eventually(world.durable.is_ready, HEAL_SECONDS, "the store is ready")


async def _crash_store_amid(world: World, source: random.Random) -> None:
    """Between claims and what is to be recorded of them, and for so long that it is journaled."""
    with world.upstream.holding_back():
        with suppress(AssertionError):
            await eventually(lambda: world.upstream.held >= _AMID, _AMID_SECONDS, "requests are being worked on")
        world.durable.crash()
    await _back_after(world, source.uniform(4.0, 5.0))


async def _freeze_store(world: World, source: random.Random, *, is_fast: bool = False) -> None:
    server = world.redis if is_fast else world.durable
    assert server is not None
    server.pause()
    await asyncio.sleep(source.uniform(0.5, 4.0))
    server.resume()


async def _freeze_redis(world: World, source: random.Random) -> None:
    await _freeze_store(world, source, is_fast=True)


async def _kill_redis(world: World, source: random.Random) -> None:
    assert world.redis is not None
    world.redis.kill()
    await asyncio.sleep(source.uniform(0.0, 3.0))
    world.redis.start()


# Two of a kind at once would undo each other: these are two sequences of faults, side by side.
_TO_GATEWAYS: Final[tuple[Deed, ...]] = (_kill, _kill, _freeze, _restart)
TO_DURABLE: Final[tuple[Deed, ...]] = (_crash_store_amid, _crash_store, _freeze_store)
_TO_FAST: Final[tuple[Deed, ...]] = (_kill_redis, _freeze_redis)
TO_STORES: Final[tuple[Deed, ...]] = (*TO_DURABLE, *_TO_FAST)


async def trouble(world: World, deeds: Sequence[Deed], source: random.Random, until: float) -> None:
    """One fault after the other; each is over when the next begins, and all are when this returns.

    The first of them is done first, however short the storm is.
    """
    deed = deeds[0]
    while time.monotonic() < until:
        await asyncio.sleep(source.uniform(0.2, 2.0))
        await deed(world, source)
        world.done[deed.__name__.strip("_").replace("_", " ")] += 1
        deed = source.choice(deeds)


async def storm(
    directory: Path, installation: PostgresInstallation, *, seconds: float, seed: int, dialect: str = "postgres"
) -> Verdict:
    """Run one in this directory."""
    async with AsyncExitStack() as stack:
        durable: PostgresServer | DurableRedis
        redis = None
        if dialect == REDIS:
            durable = DurableRedis(directory / "redis", append_only=True, options=GATEWAY_USER)
        else:
            durable = PostgresServer(installation, directory / "pg")
            redis = stack.enter_context(RedisServer(directory / "redis").running())
        stack.enter_context(durable.running())
        upstream = await stack.enter_async_context(StormUpstream(random.Random(f"{seed} upstream")))
        places = [directory / name for name in ("a", "b")]
        configs = [(storm_config(durable, redis, upstream, place, dialect), place) for place in places]
        world = World(durable, redis, upstream, await stack.enter_async_context(gateways(*configs)))
        clients = Clients(world.gateways, seed)
        await _rage(world, clients, seconds, seed)
        upstream.is_calm = True
        unsettled, faults = await settle(world.gateways, clients, PATIENCE_SECONDS)
        faults += await compare_with_list(world.gateways[0], clients, unsettled)
        for gateway in world.gateways:
            faults += await stop_in_order(gateway)
        faults += judge(clients.calls, upstream.deeds, upstream.answers, world.was_superseded)
        keys = {(intent.path, intent.key) for intent in clients.intents}
        found = clients.words(), world.done, len(upstream.effects), len(keys), len(unsettled)
        return Verdict(*found, faults=faults)


async def stop_in_order(gateway: GatewayProcess) -> list[str]:
    """End one that has nothing left to do, and say what was wrong with it."""
    gateway.ask_to_stop()
    faults = []
    if (code := await gateway.wait_exit()) != 0:
        faults.append(f"a gateway that had nothing left to do ended with {code}:\n{gateway.output()[-2000:]}")
    if "Traceback" in gateway.output():
        faults.append(f"an error of the program, see {gateway.log}")
    return faults


def storm_config(
    durable: PostgresServer | DurableRedis,
    redis: RedisServer | None,
    upstream: StormUpstream,
    place: Path,
    dialect: str = "postgres",
) -> dict[str, Any]:
    """The configuration of a gateway of a storm."""
    if isinstance(durable, DurableRedis):
        stores = {"durable": durable.durable_url}
    else:
        stores = {"durable": durable.url, "dialect": dialect}
    if redis is not None:
        stores["fast"] = redis.url
    return config_of(
        stores, place, upstream.url, routes=ROUTES,
        store={"lease": f"{LEASE_SECONDS:g}s", "journal_grace": f"{GRACE_SECONDS:g}s"},
        upstream={"response_timeout": "20s", "answer_within": "15s"},
        shutdown={"delay": "100ms", "drain_timeout": "2s"},
    )  # fmt: skip


async def _rage(world: World, clients: Clients, seconds: float, seed: int) -> None:
    """Clients and faults, side by side; at the end everything works again."""
    until = time.monotonic() + seconds
    async with asyncio.TaskGroup() as group:
        group.create_task(clients.run(CLIENTS))
        async with asyncio.TaskGroup() as troubles:
            to_stores = TO_DURABLE if world.redis is None else TO_STORES
            for name, deeds in (("gateways", _TO_GATEWAYS), ("stores", to_stores)):
                troubles.create_task(trouble(world, deeds, random.Random(f"{seed} {name}"), until))
        # Once more when nothing else is wrong: then no gateway dies over what it has yet to journal.
        await wait_stores(world)
        await _crash_store_amid(world, random.Random(f"{seed} last"))
        world.done["crash store amid"] += 1
        clients.is_over = True
    await wait_stores(world)


async def wait_stores(world: World) -> None:
    """Return when each gateway reaches its durable store."""
    for gateway in world.gateways:
        await eventually(lambda gateway=gateway: has_store(gateway), HEAL_SECONDS, "the gateway has its store")  # type: ignore[misc]


async def has_store(gateway: GatewayProcess) -> bool:
    """Whether it reaches its durable store."""
    return (await gateway.status("/readyz?require=store")).status == 200


async def settle(
    gateways: Sequence[GatewayProcess], clients: Clients, patience_seconds: Mapping[str, float]
) -> tuple[dict[str, Call], list[str]]:
    """Retry every key until its answer is final. Returns the operations that stay in doubt, and what went wrong.

    `patience_seconds` says for each path after how long what is in doubt stays so.
    """
    by_key: dict[tuple[str, str], list[Intent]] = {}
    for intent in clients.intents:
        by_key.setdefault((intent.path, intent.key), []).append(intent)
    queue = list(by_key.values())
    in_doubt: dict[str, Call] = {}
    faults: list[str] = []
    begin = time.monotonic()

    async def settler() -> None:
        while queue:
            last = await _settle_key(gateways, clients, queue.pop(), begin, patience_seconds)
            if last.verdict == "in-doubt" and last.operation is not None:
                in_doubt[last.operation] = last
            elif last.verdict not in RECORDED:
                faults.append(f"{last.path} {last.key} does not settle: {last.status} {last.verdict}")

    await asyncio.gather(*[settler() for _ in range(_SETTLERS)])
    return in_doubt, faults


async def _settle_key(
    gateways: Sequence[GatewayProcess],
    clients: Clients,
    intents: Sequence[Intent],
    begin: float,
    patience_seconds: Mapping[str, float],
) -> Call:
    """The last answer to one key: final, or still in doubt although nobody has been at work on it since `begin`."""
    which = 0
    for turn in range(10_000):
        call = await clients.call(intents[which], gateways[turn % len(gateways)])
        waited_seconds = time.monotonic() - begin
        if call.verdict == "key-reused" and which + 1 < len(intents):
            which += 1
            continue
        if call.verdict in RECORDED or waited_seconds > _SETTLE_SECONDS:
            return call
        if call.verdict == "in-doubt" and waited_seconds > patience_seconds[call.path]:
            return call
        await asyncio.sleep(0.5)
    raise AssertionError("unreachable")


async def compare_with_list(gateway: GatewayProcess, clients: Clients, in_doubt: dict[str, Call]) -> list[str]:
    """Whether operators are shown exactly what clients hear is in doubt, and nothing is claimed by nobody."""
    listed = {state: await listed_in(gateway, state) for state in ("in_doubt", "claimed")}
    faults = [f"{each} is listed as in doubt and was answered" for each in listed["in_doubt"] - in_doubt.keys()]
    faults += [f"{each} is claimed by nobody" for each in listed["claimed"]]
    for operation in in_doubt.keys() - listed["in_doubt"]:
        last = in_doubt[operation]
        # Somebody may have found out just now.
        if (await clients.call(Intent(last.path, last.key, last.body), gateway)).verdict == "in-doubt":
            faults.append(f"{operation} is in doubt and not listed")
    return faults


async def listed_in(gateway: GatewayProcess, state: str) -> set[str]:
    """The operations that an operator is shown."""
    asked = ("--list", "--state", state, "--limit", "100000", "--format", "jsonl")
    code, output = await gateway.command("inspect", *asked)
    assert code == 0, output
    return {json.loads(line)["operation_id"] for line in output.splitlines() if line.startswith("{")}


if __name__ == "__main__":
    sys.exit(long_run.main("storm", __doc__, storm, has_store=False, seconds=20.0, dialect="postgres"))
