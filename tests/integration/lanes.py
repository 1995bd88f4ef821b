"""Two gateways that deliver in order, on one store, while the service fails and both are killed in turn.

`python -m tests.integration.lanes --kills 50`. Each caller sends the requests of its account one after the other and
waits for each 202, so the order of acceptance is known. The service's own ledger is judged: whatever had an effect did
so in that order, nothing did twice, and nothing arrived behind one that is in doubt. A consumer of events in order
hears of each completion, and of those of one account in that order, too.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import defaultdict
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from tests.integration.accepting import LEASE_SECONDS
from tests.integration.hand import status_at, telling
from tests.support import long_run
from tests.support.accepting import SECRETS
from tests.support.eventually import eventually
from tests.support.fleet import calling, gateways_on, kill_in_turn, try_send
from tests.support.gateway import GatewayProcess
from tests.support.house import ROUTE
from tests.support.receiver import Receiver
from tests.support.upstream import Answer, Received, RecordingUpstream

ORDERED: Final[dict[str, Any]] = {
    **ROUTE,
    "key": {"header": "Idempotency-Key", "required": True},
    "accept": {"identity": "unverified", "mode": "always"},
    "in_flight": {"wait": "0s"},
    "retention": {"replay": "24h", "remember": "7d"},
    "delivery": {"schedule": ["100ms", "200ms"], "max_answers": 1000},
    "order": {"by": "/account"},
}
_LIFE_SECONDS: Final = (0.1, 0.6)
_ACCEPTED_SECONDS: Final = 30.0
# No more than are delivered, with all the failures, in some seconds.
_ACCEPTED_PER_KILL: Final = 4
_SETTLE_SECONDS: Final = 60.0
# The lease of an event whose relay was killed, and some polls.
_PUBLISHED_SECONDS: Final = 90.0


@dataclass
class Verdict(long_run.Verdict):
    """What became of the lanes: how many requests had an effect, in how many lanes that are stopped by doubt."""

    accepted: int
    effects: int = 0
    stopped: int = 0
    published: int = 0

    def summary(self) -> str:
        text = f"{self.accepted} accepted, {self.effects} with effect, {self.stopped} lanes in doubt"
        return text + (f", {self.published} events" if self.published else "")


async def keep_order_under_kills(
    directory: Path, store: dict[str, Any], *, kills: int, seed: int, lanes: int = 6, has_consumer: bool = True
) -> Verdict:
    """See the module. `store` is the `store` section of an empty store."""
    whose: dict[str, tuple[str, int]] = {}
    dice = random.Random(seed)
    effects: dict[str, list[int]] = defaultdict(list)
    arrived: dict[str, list[int]] = defaultdict(list)

    def serve(received: Received) -> Answer:
        document = orjson.loads(received.body)
        arrived[document["account"]].append(document["number"])
        for operation_id in received.values("Idempotency-Operation"):
            whose[operation_id.decode()] = document["account"], document["number"]
        if dice.random() < 0.4:
            return Answer(503)
        effects[document["account"]].append(document["number"])
        return Answer(201)

    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(RecordingUpstream())
        upstream.on("/charges", serve)
        consumer = await stack.enter_async_context(Receiver())
        changes = {"store": {"lease": f"{LEASE_SECONDS:g}s"}, "route": ORDERED, "secrets": SECRETS}
        if has_consumer:
            changes |= telling("operation.completed", ledger=consumer)
            changes["events"]["sinks"][0]["ordered"] = True
        pair = await stack.enter_async_context(gateways_on(store, directory, upstream.url, ("one", "other"), **changes))
        accepted = await _accept(pair, kills, lanes, dice)
        verdict = Verdict(sum(map(len, accepted.values())))
        completed: dict[str, list[int]] = {}
        for account, urls in accepted.items():
            states = await _settled(pair, urls)
            verdict.faults += judge(account, states, effects[account], arrived[account])
            verdict.effects += len(effects[account])
            verdict.stopped += "in_doubt" in states.values()
            completed[account] = sorted(number for number, state in states.items() if state == "completed")
        if has_consumer:
            heard: dict[str, list[int]] = {}

            async def has_heard_of_all() -> bool:
                heard.clear()
                for event_id in dict.fromkeys(got.document["subject"] for got in consumer.received):
                    account, number = whose[event_id]
                    heard.setdefault(account, []).append(number)
                return all(set(numbers) <= set(heard.get(account, ())) for account, numbers in completed.items())

            await eventually(has_heard_of_all, _PUBLISHED_SECONDS, "the consumer has heard of each completion")
            verdict.published = len(consumer.received)
            verdict.faults += [
                f"{account}: heard of in another order: {numbers}"
                for account, numbers in heard.items()
                if numbers != sorted(numbers)
            ]
        return verdict


def judge(account: str, states: dict[int, str], effects: list[int], arrived: list[int]) -> list[str]:
    """What is wrong with one lane, whose requests are numbered in the order of their acceptance."""
    faults = []
    if effects != sorted(set(effects)):
        faults.append(f"{account}: effects out of order or twice: {effects}")
    if arrived != sorted(arrived):
        faults.append(f"{account}: arrived out of order: {arrived}")
    doubts = [number for number, state in states.items() if state == "in_doubt"]
    if len(doubts) > 1 or (doubts and arrived and max(arrived) > doubts[0]):
        faults.append(f"{account}: doubt was passed: {doubts}, {arrived}")
    lost = [number for number, state in states.items() if state == "completed" and number not in effects]
    behind = [number for number, state in states.items() if state not in ("completed", "in_doubt")]
    if behind and not (doubts and min(behind) > doubts[0]):
        faults.append(f"{account}: {behind} wait for nothing")
    return faults + ([f"{account}: completed without an effect: {lost}"] if lost else [])


async def _accept(pair: list[GatewayProcess], kills: int, lanes: int, dice: random.Random) -> dict[str, dict[int, str]]:
    """The status URLs of what was accepted, by account and number, while the gateways are killed in turn."""
    accepted: dict[str, dict[int, str]] = {f"account-{lane}": {} for lane in range(lanes)}

    async def call(account: str, is_over: asyncio.Event) -> None:
        number, turn = 0, 0
        while not is_over.is_set() and number < _ACCEPTED_PER_KILL * kills:
            body = orjson.dumps({"account": account, "number": number})
            turn += 1
            response = await try_send(pair[turn % 2].port, f"{account}-{number}", body)
            if response is not None and response.status in (200, 201, 202):
                # A repeat that finds the request completed gets its response, and no status URL.
                accepted[account][number] = response.header("Location") or accepted[account].get(number, "")
                number += 1
            elif response is None or response.status != 503:
                await asyncio.sleep(0.01)

    async with calling(call, accepted):
        await kill_in_turn(pair, kills, _LIFE_SECONDS, dice)
        # On a busy machine that may take longer than a life.
        await eventually(lambda: any(accepted.values()), _ACCEPTED_SECONDS, "something is accepted")
    return accepted


async def _settled(pair: list[GatewayProcess], urls: dict[int, str]) -> dict[int, str]:
    """The states of a lane once it has come to its end, or is stopped."""
    states: dict[int, str] = {}

    async def is_settled() -> bool:
        for number, url in sorted(urls.items()):
            if not url:
                states[number] = "completed"
            elif states.get(number) != "completed":
                states[number] = (await status_at(pair[0], url))["state"]
                if states[number] == "in_doubt":
                    states.update(dict.fromkeys(urls.keys() - states.keys(), "accepted"))
                    return True
                if states[number] != "completed":
                    return False
        return True

    await eventually(is_settled, _SETTLE_SECONDS, "the lane is done or stopped")
    return states


if __name__ == "__main__":
    sys.exit(long_run.main("lanes", __doc__, keep_order_under_kills, kills=50))
