"""Gateways that publish events and are killed: every sink hears of what was completed, and of nothing else.

`python -m tests.integration.publishing --seconds 600`. Callers send requests through two gateways on one store; one of
them is killed again and again, also in the middle of publishing. The service refuses some requests and breaks off
others. In the end each completed operation has its event at every sink, under one id and with equal bytes, and none of
the others has one. What is judged is what the sinks got: two webhooks, a stream of NATS and one of Redis.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
from collections import defaultdict
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import redis

from tests.integration.hand import telling
from tests.support import long_run
from tests.support.eventually import eventually
from tests.support.fleet import NOW, calling, gateways_on, key_of, kill_in_turn, try_send
from tests.support.gateway import GatewayProcess
from tests.support.house import status_of
from tests.support.nats import NatsServer
from tests.support.receiver import Receiver, status
from tests.support.redis import RedisServer
from tests.support.upstream import Answer, Ending, Received, RecordingUpstream

_CALLERS: Final = 4
# From the start of a life to its end.
_LIFE_SECONDS: Final = (0.05, 1.0)
# The lease of an event whose relay was killed, and some polls.
_SETTLE_SECONDS: Final = 90.0
_ANSWERS_MAX: Final = 100_000
_STREAM: Final = "OPERATIONS"
_COMPLETED: Final = "operation.completed"


# An event as a sink got it: of which operation, its id, and its bytes.
_Event = tuple[str, str, bytes]


@dataclass
class Verdict(long_run.Verdict):
    """What became of what was sent. `got` counts deliveries by sink, repeated ones included."""

    kills: int
    completed: int = 0
    in_doubt: int = 0
    got: dict[str, int] = field(default_factory=dict)

    def summary(self) -> str:
        return f"{self.kills} kills, {self.completed} completed, {self.in_doubt} in doubt; published {self.got}"


async def publish_under_kills(directory: Path, store: dict[str, Any], *, seconds: float, seed: int) -> Verdict:
    """See the module. `store` is the `store` section of an empty store."""
    dice = random.Random(seed)
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(RecordingUpstream())
        upstream.on(
            "/charges",
            lambda _: dice.choices((Answer(201), Answer(503), Answer(bytes_max=0, ending=Ending.RESET)), (8, 1, 1))[0],
        )
        ledger = await stack.enter_async_context(Receiver())
        refusing = dice.choices((status(500), status(204)), (1, 19), k=_ANSWERS_MAX)
        moody = await stack.enter_async_context(Receiver(*refusing))
        nats = NatsServer(directory / "nats")
        stack.callback(nats.kill)
        await nats.start()
        await nats.add_stream(_STREAM, "operations.>")
        stream = stack.enter_context(RedisServer(directory / "redis").running())
        sinks = [
            {"name": "nats", "kind": "nats", "servers": [nats.url], "stream": _STREAM},
            {"name": "feed", "kind": "redis_stream", "url": stream.url, "stream": "operations"},
        ]
        changes = {"store": {"lease": "3s"}, **telling(_COMPLETED, sinks=sinks, ledger=ledger, moody=moody)}
        victim, other = await stack.enter_async_context(
            gateways_on(store, directory, upstream.url, ("victim", "other"), **changes)
        )
        kills, keys = await _call(victim, other, seconds, dice)
        states = await _settled(other, keys)

        async def judged() -> Verdict:
            # A gauge may be older than the last change, so what arrived is looked at.
            entries: Any = redis.Redis.from_url(stream.url).xrange("operations")
            messages = await nats.messages(_STREAM)
            got: dict[str, list[_Event]] = {
                "nats": [(headers["ce-subject"], headers["ce-id"], body) for _, headers, body in messages],
                "feed": [(each[b"subject"].decode(), each[b"id"].decode(), each[b"data"]) for _, each in entries],
            }
            for name, receiver in (("ledger", ledger), ("moody", moody)):
                got[name] = [(each.document["subject"], each.id, each.body) for each in receiver.received]
            return _judge(kills, states, upstream.requests, got)

        async def is_faultless() -> bool:
            return not (await judged()).faults

        # An event whose relay was killed is published again after its lease.
        with suppress(AssertionError):
            await eventually(is_faultless, _SETTLE_SECONDS)
        return await judged()


async def _call(
    victim: GatewayProcess, other: GatewayProcess, seconds: float, dice: random.Random
) -> tuple[int, list[str]]:
    """Call both without a pause, and kill one of them again and again; how often, and the keys that were sent."""
    keys: list[str] = []

    async def call(caller: int, is_over: asyncio.Event) -> None:
        gateway = (victim, other)[caller % 2]
        for number in itertools.count():
            if is_over.is_set():
                return
            keys.append(key := f"key-{caller}-{number}")
            if await try_send(gateway.port, key, key.encode()) is None:
                # Nobody listens until the next life begins.
                await asyncio.sleep(0.05)

    until = asyncio.get_running_loop().time() + seconds
    kills = 0
    async with calling(call, range(_CALLERS)):
        while asyncio.get_running_loop().time() < until:
            await kill_in_turn([victim], 1, _LIFE_SECONDS, dice)
            kills += 1
    return kills, keys


async def _settled(gateway: GatewayProcess, keys: list[str]) -> dict[str, str]:
    """Whether each key is completed or in doubt in the end. What was released is sent again."""
    asking = asyncio.Semaphore(_CALLERS)

    async def verdict_of(key: str) -> str:
        async def final() -> str | None:
            response = await try_send(gateway.port, key, key.encode(), headers=NOW)
            verdict = "" if response is None else str(status_of(response)[1])
            return verdict if verdict in ("stored", "replayed", "in-doubt") else None

        # The deadline is that of one key, and not that of all the keys before it.
        async with asking:
            return await eventually(final, _SETTLE_SECONDS, f"{key} is completed or in doubt")

    return dict(zip(keys, await asyncio.gather(*[verdict_of(key) for key in keys]), strict=True))


def _judge(kills: int, states: dict[str, str], requests: list[Received], got: dict[str, list[_Event]]) -> Verdict:
    operations: defaultdict[str, set[str]] = defaultdict(set)
    for request in requests:
        operations[key_of(request)].update(value.decode() for value in request.values("Idempotency-Operation"))
    completed = {key for key, state in states.items() if state != "in-doubt"}
    verdict = Verdict(kills, len(completed), len(states) - len(completed))
    for sink, events in got.items():
        verdict.got[sink] = len(events)
        of_operation: defaultdict[str, set[_Event]] = defaultdict(set)
        for event in events:
            of_operation[event[0]].add(event)
        for key, state in states.items():
            found = {event for each in operations[key] for event in of_operation.pop(each, ())}
            if key in completed and len(found) != 1:
                verdict.faults.append(f"{key} is completed, and {sink} has {len(found)} different events of it")
            elif key not in completed and found:
                verdict.faults.append(f"{key} is {state}, and {sink} has an event of it")
        verdict.faults += [f"{sink} has an event of {each}, which nobody sent" for each in of_operation]
    return verdict


if __name__ == "__main__":
    sys.exit(long_run.main("publishing", __doc__, publish_under_kills, seconds=600.0))
