"""Standbys of Postgres that are promoted under gateways: what lost nothing is used at once, every loss is noticed.

`python -m tests.integration.promotions --failovers 50 --seed 1`. Two gateways know a primary and a standby as one list
of hosts, and go on through all of it.

First the planned and the sudden end of a primary whose standby is synchronous, and its restart in place, each under
callers that repeat: new keys are served again, no key runs twice, nobody speaks of a loss. Then failovers of an
asynchronous pair, half of them with commits that the standby never got: a random number of keys of one gateway, the
other one lost nothing. Each of those is noticed, and what was lost does not run again; each of the others serves new
keys.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gateway.admin.reports import accept_loss
from gateway.core.operation import Audit
from tests.integration.hand import decided
from tests.store.postgres_sessions import opened
from tests.support import long_run
from tests.support.eventually import eventually
from tests.support.fleet import gateways_on, key_of, wait_answered
from tests.support.gateway import GatewayProcess
from tests.support.ports import free_port
from tests.support.postgres import PostgresInstallation, PostgresServer, PostgresStandby
from tests.support.relay import Relay
from tests.support.upstream import Answer, RecordingUpstream

ENDS: Final = ("switchover", "death", "restart in place")
_ANSWERED: Final = frozenset(("stored", "journaled", "replayed"))
_CALLERS: Final = 4
_WAIT_SECONDS: Final = 60.0
_SETTINGS: Final = {"cache_max_age": "0s", "lease": "3s", "probation": "3s"}
# Longer than a busy machine takes to start a gateway or to connect to another server, and shorter than what is waited
# for here: who never vouches is seen to cost the memory.
_VOUCHED_SECONDS: Final = 45


class Pair:
    """A primary and its standby on two ports, which take turns. The standby follows by way of a relay."""

    def __init__(self, installation: PostgresInstallation, directory: Path, relay: Relay) -> None:
        self._installation = installation
        self._places = (directory / f"server-{number}" for number in itertools.count())
        self._relay = relay
        self._is_cut = False
        self._free_port = free_port()
        self.primary: PostgresServer = PostgresServer(installation, next(self._places))
        self.standby: PostgresStandby | None = None
        self.url = f"postgresql://gateway@127.0.0.1:{self.primary.port},127.0.0.1:{self._free_port}/postgres"

    async def follow(self, *, is_synchronous: bool) -> None:
        """Give the primary a standby that has caught up."""
        self._relay.target_port = self.primary.port
        if self._is_cut:
            await self._relay.listen()
            self._is_cut = False
        where = self._installation, next(self._places), self.primary, self._relay.port
        self.standby = await asyncio.to_thread(PostgresStandby, *where, port=self._free_port)
        self.standby.launch()
        await eventually(self.standby.is_ready, _WAIT_SECONDS, "the standby follows")
        await self.catch_up()
        if is_synchronous:
            await self._set_synchronous("*")

    async def _set_synchronous(self, names: str) -> None:
        await self.primary.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
        await self.primary.fetch("SELECT pg_reload_conf()")

    async def catch_up(self) -> None:
        assert self.standby is not None
        await eventually(self.standby.has_caught_up, _WAIT_SECONDS, "the standby has what was acknowledged")

    def cut(self) -> None:
        """Let the standby get nothing more."""
        self._relay.refuse()
        self._relay.cut()
        self._is_cut = True

    async def end(self, how: str) -> None:
        """End the primary like this, and let the standby, or itself, take its place."""
        assert self.standby is not None
        if how == "restart in place":
            self.primary.crash()
            self.primary.await_promotion()
            self.primary.launch()
            await eventually(self.primary.is_ready, _WAIT_SECONDS, "the primary is back, as a standby")
            await self.primary.promote()
            return
        before, self.primary = self.primary, self.standby
        await asyncio.to_thread(before.stop if how == "switchover" else before.crash)
        await self.primary.promote()
        self.standby, self._free_port = None, before.port
        shutil.rmtree(before.directory)

    async def part(self) -> None:
        """Take the standby away, if there is one: the next one takes its port."""
        if self.standby is not None:
            await self._set_synchronous("")
            self.standby.crash()
            shutil.rmtree(self.standby.directory)
            self.standby = None

    def close(self) -> None:
        for server in (self.primary, self.standby):
            if server is not None:
                server.crash()


@dataclass
class Verdict(long_run.Verdict):
    """What became of it. `outages` are the longest times without a new key, by how a primary ended."""

    failovers: int = 0
    lost_keys: int = 0
    outages: dict[str, float] = field(default_factory=dict)

    def summary(self) -> str:
        times = ", ".join(f"{how}: {seconds:.1f} s" for how, seconds in self.outages.items())
        lossy = f"{self.failovers} asynchronous failovers, with {self.lost_keys} lost keys"
        return f"{lossy}; longest time without a new key: {times or 'not measured'}"


@dataclass
class Scene:
    """Two gateways on one pair, in front of one service."""

    pair: Pair
    fleet: list[GatewayProcess]
    upstream: RecordingUpstream
    verdict: Verdict

    async def send_all(self, port: int, *keys: str) -> None:
        """Each of these is answered with a record."""
        how = {"verdicts": _ANSWERED, "deadline_seconds": _WAIT_SECONDS}
        answers = await asyncio.gather(*(wait_answered(port, key, **how) for key in keys))
        assert {answer.status for answer in answers} <= {201}, keys

    async def is_decided(self, port: int, key: str) -> str | None:
        """The verdict on a request, once a store decides it."""
        return (await decided(port, key, _WAIT_SECONDS))[1]

    def check_once(self) -> None:
        """No key ran twice."""
        twice = [key for key, count in Counter(map(key_of, self.upstream.requests)).items() if count > 1]
        if twice:
            self.verdict.faults.append(f"executed twice: {twice}")


@asynccontextmanager
async def staged(
    installation: PostgresInstallation, directory: Path, servers: Path, vouched_seconds: int = _VOUCHED_SECONDS
) -> AsyncIterator[Scene]:
    """`vouched_seconds` is how long the gateways wait for each other to vouch for a server that was promoted."""
    settings = _SETTINGS | {"promotion_wait": f"{vouched_seconds}s"}
    async with RecordingUpstream() as upstream, Relay(0) as relay:
        upstream.on("/charges", Answer(201))
        pair = Pair(installation, servers, relay)
        try:
            await asyncio.to_thread(pair.primary.start)
            store = {"durable": pair.url}
            async with gateways_on(store, directory, upstream.url, ("one", "two"), store=settings) as fleet:
                yield Scene(pair, fleet, upstream, Verdict())
        finally:
            pair.close()


async def end_under_load(scene: Scene, how: str, *, seconds: float) -> None:
    """A synchronous pair whose primary ends like this after so long, under callers that repeat."""
    await scene.pair.follow(is_synchronous=True)
    ended, stored, name = asyncio.Event(), list[float](), how.replace(" ", "-")

    async def call(number: int) -> None:
        for each in itertools.count():
            key = f"{name}-{number}-{each}"
            await scene.send_all(scene.fleet[number % 2].port, key)
            stored.append(time.monotonic())
            # And again, by the other gateway.
            await scene.send_all(scene.fleet[(number + 1) % 2].port, key)
            if ended.is_set():
                return

    callers = asyncio.gather(*(call(number) for number in range(_CALLERS)))
    await asyncio.sleep(seconds)
    began = time.monotonic()
    await scene.pair.end(how)
    await eventually(lambda: bool(stored) and stored[-1] > time.monotonic() - 0.5, _WAIT_SECONDS, "keys are served")
    await asyncio.sleep(seconds)
    ended.set()
    await callers
    gaps = [later - earlier for earlier, later in itertools.pairwise(stored) if later > began]
    scene.verdict.outages[how] = max(gaps)
    await scene.pair.part()
    scene.check_once()


async def fail_over(scene: Scene, name: str, *, lost: int, rng: random.Random) -> None:
    """An asynchronous pair whose primary dies. The standby lacks the last keys of one of the gateways, if any."""
    pair, verdict = scene.pair, scene.verdict
    await pair.follow(is_synchronous=False)
    ports = [gateway.port for gateway in scene.fleet]
    kept = [f"{name}-kept-{number}" for number in range(4)]
    for number, key in enumerate(kept):
        await scene.send_all(ports[number % 2], key)
    await pair.catch_up()
    pair.cut()
    gone = [f"{name}-lost-{number}" for number in range(lost)]
    await scene.send_all(rng.choice(ports), *gone)
    await pair.end("death")
    verdict.failovers += 1
    verdict.lost_keys += lost
    executed = len(scene.upstream.requests)
    for number, port in enumerate(ports):
        new = {f"{name}-new-{number}": "store-amnesia" if lost else "stored"}
        for key, expected in (dict.fromkeys(kept, "replayed") | dict.fromkeys(gone, "store-amnesia") | new).items():
            if (found := await scene.is_decided(port, key)) != expected:
                verdict.faults.append(f"{name}: {key} got {found} instead of {expected}")
    if len(scene.upstream.requests) != executed + (0 if lost else len(ports)):
        verdict.faults.append(f"{name}: {len(scene.upstream.requests) - executed} requests were sent afterwards")
    scene.check_once()
    if lost:
        # What an operator does about a loss.
        async with opened(pair.primary.url) as store:
            assert not (await accept_loss(store, Audit("test", "known"))).is_lost
        for gateway in scene.fleet:
            gateway.terminate()
            await gateway.start()


async def run(directory: Path, installation: PostgresInstallation, *, failovers: int, seed: int) -> Verdict:
    """All of it."""
    rng = random.Random(seed)
    async with staged(installation, directory / "gateways", directory) as scene:
        for how in ENDS:
            await end_under_load(scene, how, seconds=3.0)
        for number in range(failovers):
            await fail_over(scene, f"round-{number}", lost=rng.randint(1, 20) if number % 2 else 0, rng=rng)
            print(f"{number + 1}: {scene.verdict.faults or 'as promised'}", flush=True)
        return scene.verdict


if __name__ == "__main__":
    sys.exit(long_run.main("promotions", __doc__, run, has_store=False, failovers=50))
