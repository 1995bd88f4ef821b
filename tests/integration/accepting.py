"""Gateways that accept requests and are killed: what got a 202 is delivered once, or is in doubt and says so.

`python -m tests.integration.accepting --kills 200`. One gateway accepts, and is killed again and again while it accepts
and delivers; another one on the same store delivers what the first one left. The service's own ledger is what is
judged: no request arrives twice, none that was accepted is lost, and what is in doubt has begun to arrive and is found
by its status URL. A process that is killed in the microseconds between marking a request as sent and its first byte
leaves a doubt of which nothing arrived: one such kill in fifty is let pass, and one more; one in two hundred was seen.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.integration.hand import ASYNC, status_at
from tests.support import long_run
from tests.support.accepting import SECRETS
from tests.support.eventually import eventually
from tests.support.fleet import calling, gateways_on, key_of, kill_in_turn, try_send
from tests.support.gateway import GatewayProcess
from tests.support.house import ROUTE
from tests.support.upstream import Answer, RecordingUpstream

LEASE_SECONDS: Final = 3.0
ACCEPTING: Final[dict[str, Any]] = {
    **ROUTE,
    "accept": {"identity": "unverified"},
    "retention": {"replay": "24h", "remember": "7d"},
    "delivery": {"schedule": ["100ms", "500ms"]},
}
_CALLERS: Final = 4
# From the start of a life to its end: before the first acceptance, and while several deliveries are under way.
_LIFE_SECONDS: Final = (0.02, 0.4)
_ACCEPTED_SECONDS: Final = 30.0
# A lease, the time for a lapse to be noticed, and some polls.
_SETTLE_SECONDS: Final = 60.0
_KILLS_OF_ONE_UNARRIVED: Final = 50
# Some passes of the worker that ends what was not sent.
_UNSENT_SECONDS: Final = 15.0


@dataclass
class Verdict(long_run.Verdict):
    """What became of what was accepted."""

    kills: int
    accepted: int
    states: Counter[str] = field(default_factory=Counter)
    unarrived: list[str] = field(default_factory=list)

    def summary(self) -> str:
        states = f"{self.kills} kills, {self.accepted} accepted: {dict(self.states)}"
        return f"{states}, {len(self.unarrived)} in doubt of which nothing arrived"


async def accept_under_kills(directory: Path, store: dict[str, Any], *, kills: int, seed: int) -> Verdict:
    """See the module. `store` is the `store` section of an empty store."""
    dice = random.Random(seed)
    async with RecordingUpstream() as upstream:
        upstream.on("/charges", lambda received: Answer(201, body=b"charged " + received.body))
        changes = {"store": {"lease": f"{LEASE_SECONDS:g}s"}, "route": ACCEPTING, "secrets": SECRETS}
        async with gateways_on(store, directory, upstream.url, ("victim", "other"), **changes) as (victim, other):
            accepted = await _accept(victim, kills, dice)
            return await _judge(other, upstream, accepted, kills)


async def _accept(victim: GatewayProcess, kills: int, dice: random.Random) -> dict[str, str]:
    """Call the victim without a pause, and kill it; the status URL by key of each request that got its 202."""
    accepted: dict[str, str] = {}

    async def call(caller: int, is_over: asyncio.Event) -> None:
        for number in itertools.count(1):
            if is_over.is_set():
                return
            key = f"key-{caller}-{number}"
            response = await try_send(victim.port, key, key.encode(), headers=ASYNC)
            if response is None:
                # Nobody listens until the next life begins.
                await asyncio.sleep(0.01)
            elif response.status == 202:
                accepted[key] = response.header("Location") or ""

    async with calling(call, range(_CALLERS)):
        await kill_in_turn([victim], kills, _LIFE_SECONDS, dice)
        # A life on a busy machine may end before its first acceptance; the last one does not.
        before = len(accepted)
        await eventually(lambda: len(accepted) > before, _ACCEPTED_SECONDS, "something is accepted")
    return accepted


async def _judge(other: GatewayProcess, upstream: RecordingUpstream, accepted: dict[str, str], kills: int) -> Verdict:
    verdict = Verdict(kills, len(accepted))
    asking = asyncio.Semaphore(_CALLERS)
    statuses = await asyncio.gather(*[_settled(other, url, asking) for url in accepted.values()])
    for place, (key, url) in enumerate(accepted.items()):
        if statuses[place]["state"] == "in_doubt" and key not in map(key_of, upstream.requests):
            # Until the next life of its gateway reads that nothing was sent. Then it is delivered.
            with suppress(AssertionError):
                statuses[place] = await eventually(partial(_ended, other, url), _UNSENT_SECONDS)
    arrivals = Counter(map(key_of, upstream.requests))
    for key, status in zip(accepted, statuses, strict=True):
        state, arrived = str(status["state"]), arrivals[key]
        verdict.states[state] += 1
        if state not in ("completed", "in_doubt"):
            verdict.faults.append(f"{key} is {state} in the end")
        elif state == "in_doubt" and not arrived:
            verdict.unarrived.append(f"{key} is in doubt, although nothing of it arrived: {status['last_attempt']}")
        elif arrived != 1:
            verdict.faults.append(f"{key} is {state} and arrived {arrived} times")
    if len(verdict.unarrived) > 1 + kills // _KILLS_OF_ONE_UNARRIVED:
        verdict.faults += verdict.unarrived
    twice = [key for key, count in arrivals.items() if count > 1]
    verdict.faults += [f"{key} arrived more than once" for key in twice]
    return verdict


async def _settled(gateway: GatewayProcess, url: str, asking: asyncio.Semaphore) -> dict[str, Any]:
    """The status of an operation once it is done, or stalled."""

    async def asked() -> dict[str, Any] | None:
        async with asking:
            status = await status_at(gateway, url, ("Prefer", "wait=2"))
        return status if status["done"] or status["stalled"] else None

    return await eventually(asked, _SETTLE_SECONDS, f"{url} is done or stalled")


async def _ended(gateway: GatewayProcess, url: str) -> dict[str, Any] | None:
    """The status of an operation that is done."""
    status = await _settled(gateway, url, asyncio.Semaphore())
    return status if status["done"] else None


if __name__ == "__main__":
    sys.exit(long_run.main("accepting", __doc__, accept_under_kills, kills=200))
