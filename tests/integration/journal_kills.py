"""Kills of a gateway whose store refuses long rows, or goes away, at the worst moments, and what repeats get.

Whoever got a response gets it again for ever, or is asked to come back: `in-doubt` and `in-flight` are never said of
what this host has in a journal. For a long run: `python -m tests.integration.journal_kills --kills 200`.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final
from urllib.parse import urlsplit

from tests.integration.hand import by_way_of
from tests.support.eventually import eventually
from tests.support.fleet import config_of, key_of, nonce_of, try_send
from tests.support.gateway import GatewayProcess
from tests.support.house import status_of
from tests.support.http import Response
from tests.support.long_run import Verdict, main
from tests.support.quota import LONG_BYTES, Quota, quota_of
from tests.support.relay import Relay
from tests.support.upstream import Answer, RecordingUpstream

LEASE_SECONDS: Final = 3
_KEYS_PER_ROUND: Final = 3
_REPEATS_PER_ROUND: Final = 6
_REPEATS_AFTERWARDS: Final = 5
_BODIES: Final = (b"short", b"long" * LONG_BYTES)
_PAUSE_SECONDS: Final = 0.1
_SETTLE_SECONDS: Final = 60.0
_SCRIPTED: Final = 1_000
_ANSWER: Final = Answer(201, body=_BODIES[1])


@dataclass
class Report(Verdict):
    """What happened. `words` counts the answers to repeats."""

    kills: int = 0
    stops: int = 0
    outages: int = 0
    words: Counter[str] = field(default_factory=Counter)
    firsts: Counter[str] = field(default_factory=Counter)

    def summary(self) -> str:
        ended = f"{self.kills} kills, {self.stops} stops, {self.outages} outages of the store"
        return f"{ended}\nfirst requests: {dict(self.firsts)}\nrepeats: {dict(self.words)}"


@dataclass
class _Run:
    """Gateways with one `state_dir`, as workers of a host are; the first is killed again and again."""

    gateways: list[GatewayProcess]
    quota: Quota
    upstream: RecordingUpstream
    relay: Relay | None
    dice: Random
    report: Report = field(default_factory=Report)
    numbers: Iterator[int] = field(default_factory=itertools.count)
    known: dict[str, tuple[int, str | None, bytes]] = field(default_factory=dict)

    async def round(self) -> None:
        """New requests; an end and a start, perhaps without the store; and repeats all the while."""
        is_quota = self.dice.random() < 0.8
        if is_quota:
            await self.quota.begin()
        await asyncio.gather(*[self._first() for _ in range(_KEYS_PER_ROUND)])
        await self._repeat_some()
        is_away = self.relay is not None and self.dice.random() < 0.4
        if is_quota and not is_away and self.dice.random() < 0.3:
            await self.quota.end()
            is_quota = False
        if is_away and self.relay is not None:
            self.relay.refuse()
            self.relay.cut()
            self.report.outages += 1
        await self._end_one()
        await self._repeat_some()
        await self.gateways[0].start()
        await self._repeat_some()
        if self.dice.random() < 0.1:
            await self._until_leases_are_over()
        if is_away and self.relay is not None:
            await self.relay.listen()
        # While the store comes back, too.
        for _ in range(_REPEATS_AFTERWARDS):
            await self._repeat_some()
        if is_quota:
            await self.quota.end()

    async def _end_one(self) -> None:
        if self.dice.random() < 0.2:
            self.gateways[0].ask_to_stop()
            await self.gateways[0].wait_exit()
            self.report.stops += 1
        else:
            # Some of them in the middle of requests.
            under_way = [asyncio.create_task(self._first()) for _ in range(self.dice.randrange(3))]
            await asyncio.sleep(0)
            self.gateways[0].kill()
            self.report.kills += 1
            await asyncio.gather(*under_way)

    async def _until_leases_are_over(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + LEASE_SECONDS
        while loop.time() < until:
            await self._repeat_some()
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _first(self) -> None:
        key = f"k{next(self.numbers)}"
        response = await try_send(self.gateways[0].port, key)
        self.report.firsts["none" if response is None else str(response.header("Idempotency-Status"))] += 1
        if response is not None and response.status == 201:
            self.known[key] = _told_by(response)

    async def _repeat_some(self) -> None:
        """At each gateway, of what was told to a first caller; the latest among them."""
        known = list(self.known)
        chosen = {*known[-_KEYS_PER_ROUND:], *self.dice.sample(known, min(len(known), _REPEATS_PER_ROUND))}
        await asyncio.gather(*[self._repeat(gateway.port, key) for key in sorted(chosen) for gateway in self.gateways])

    async def _repeat(self, port: int, key: str) -> bool:
        response = await try_send(port, key)
        if response is None:
            return False
        self.report.words[" ".join(map(str, status_of(response)))] += 1
        if _told_by(response) == self.known[key]:
            return True
        if response.status != 503 or response.header("Retry-After") is None:
            self.report.faults.append(f"{key}: {status_of(response)} after {self.report.kills} kills")
        return False

    async def settle(self) -> None:
        """With the store back and no quota, everything is replayed, and the upstream has executed each key once."""

        async def all_told() -> bool:
            return all([await self._repeat(gateway.port, key) for key in self.known for gateway in self.gateways])

        await eventually(all_told, deadline_seconds=_SETTLE_SECONDS)
        executed = Counter(map(key_of, self.upstream.requests))
        self.report.faults += [f"{key} was executed {number} times" for key, number in executed.items() if number != 1]
        self.report.faults += [f"{key} was not executed" for key in self.known if key not in executed]


def _told_by(response: Response) -> tuple[int, str | None, bytes]:
    """What a caller got, and gets again for ever."""
    return response.status, nonce_of(response), response.body


async def run(directory: Path, section: dict[str, Any], *, kills: int, seed: int) -> Report:
    """On an empty store. A PostgreSQL goes away now and then, too, and has a second gateway of the host."""
    own = {**section, "lease": f"{LEASE_SECONDS}s"}
    random = Random(seed)
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(RecordingUpstream())
        upstream.on("/charges", *[Answer(201, body=random.choice(_BODIES)) for _ in range(_SCRIPTED)], _ANSWER)
        relay = None
        if (port := urlsplit(section["durable"]).port) is not None:
            relay = await stack.enter_async_context(Relay(port))
            own["durable"] = by_way_of(relay, section["durable"])
        config = config_of(own, directory, upstream.url, state_dir=str(directory / "state"))
        names = ("killed",) if relay is None else ("killed", "beside")
        gateways = [await stack.enter_async_context(GatewayProcess(config, directory / name)) for name in names]
        it = _Run(gateways, quota_of(section), upstream, relay, random)
        while it.report.kills < kills:
            await it.round()
        await it.settle()
    return it.report


if __name__ == "__main__":
    sys.exit(main("journal_kills", __doc__, run, kills=200))
