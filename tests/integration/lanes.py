"""Two gateways that accept and deliver, in order or not, while the service fails and both are killed in turn.

`python -m tests.integration.lanes --kills 50`. Each caller sends the requests of its account one after the other and
waits for each 202, so the order of acceptance is known. The service's own ledger is judged: nothing had an effect
twice, and none that was accepted is lost. In order, whatever had an effect did so in that order, and nothing arrived
behind one that is in doubt; a consumer of events in order hears of each completion, and of those of one account in that
order, too. `accepting` is the same without an order.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import defaultdict
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from tests.integration.hand import status_at, telling
from tests.support import long_run
from tests.support.accepting import SECRETS
from tests.support.eventually import eventually
from tests.support.fleet import calling, gateways_on, kill_in_turn, try_send
from tests.support.gateway import GatewayProcess
from tests.support.house import ROUTE
from tests.support.receiver import Receiver
from tests.support.upstream import Answer, Received, RecordingUpstream

ROUTE_OF_ALL: Final[dict[str, Any]] = {
    **ROUTE,
    "key": {"header": "Idempotency-Key", "required": True},
    "accept": {"identity": "unverified", "mode": "always"},
    "in_flight": {"wait": "0s"},
    "retention": {"replay": "24h", "remember": "7d"},
    "delivery": {"schedule": ["100ms", "200ms"], "max_answers": 1000},
}
LEASE_SECONDS: Final = 3.0
# From the start of a life to its end: without an order also before the first acceptance.
_LIFE_SECONDS: Final = {True: (0.1, 0.6), False: (0.02, 0.4)}
_ACCEPTED_SECONDS: Final = 30.0
# No more than are delivered, with all the failures, in some seconds.
_ACCEPTED_PER_KILL: Final = 4
_SETTLE_SECONDS: Final = 60.0
# Some passes of the worker that ends what was not sent.
_UNSENT_SECONDS: Final = 15.0
_KILLS_OF_ONE_UNARRIVED: Final = 50
# The lease of an event whose relay was killed, and some polls.
_PUBLISHED_SECONDS: Final = 90.0


@dataclass
class Verdict(long_run.Verdict):
    """What became of what was accepted: how many requests had an effect, and how many are in doubt."""

    accepted: int
    effects: int = 0
    doubts: int = 0
    published: int = 0
    unarrived: list[str] = field(default_factory=list)

    def summary(self) -> str:
        text = f"{self.accepted} accepted, {self.effects} with effect, {self.doubts} in doubt"
        return f"{text}, of {len(self.unarrived)} nothing arrived; {self.published} events"


async def deliver_under_kills(
    directory: Path, store: dict[str, Any], *, kills: int, seed: int, lanes: int = 6, has_consumer: bool = True,
    is_ordered: bool = True,
) -> Verdict:  # fmt: skip
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
        route = ROUTE_OF_ALL | ({"order": {"by": "/account"}} if is_ordered else {})
        changes = {"store": {"lease": f"{LEASE_SECONDS:g}s"}, "route": route, "secrets": SECRETS}
        if has_consumer:
            changes |= telling("operation.completed", ledger=consumer)
            changes["events"]["sinks"][0]["ordered"] = True
        pair = await stack.enter_async_context(gateways_on(store, directory, upstream.url, ("one", "other"), **changes))
        accepted = await _accept(pair, kills, lanes, dice, _LIFE_SECONDS[is_ordered])
        verdict = Verdict(sum(map(len, accepted.values())))
        completed: dict[str, list[int]] = {}
        for account, urls in accepted.items():
            states = await _settled(pair, urls, is_ordered=is_ordered)
            if not is_ordered:
                verdict.unarrived += await _unarrived(pair, account, urls, states, arrived[account])
            verdict.faults += judge(account, states, effects[account], arrived[account], is_ordered=is_ordered)
            verdict.effects += len(effects[account])
            verdict.doubts += list(states.values()).count("in_doubt")
            completed[account] = sorted(number for number, state in states.items() if state == "completed")
        if len(verdict.unarrived) > 1 + kills // _KILLS_OF_ONE_UNARRIVED:
            verdict.faults += verdict.unarrived
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


def judge(
    account: str, states: dict[int, str], effects: list[int], arrived: list[int], *, is_ordered: bool
) -> list[str]:
    """What is wrong with one lane, whose requests are numbered in the order of their acceptance."""
    faults = []
    if len(effects) > len(set(effects)) or (is_ordered and effects != sorted(effects)):
        faults.append(f"{account}: effects out of order or twice: {effects}")
    if is_ordered and arrived != sorted(arrived):
        faults.append(f"{account}: arrived out of order: {arrived}")
    doubts = [number for number, state in states.items() if state == "in_doubt"]
    if is_ordered and (len(doubts) > 1 or (doubts and arrived and max(arrived) > doubts[0])):
        faults.append(f"{account}: doubt was passed: {doubts}, {arrived}")
    lost = [number for number, state in states.items() if state == "completed" and number not in effects]
    behind = [number for number, state in states.items() if state not in ("completed", "in_doubt")]
    if behind and not (is_ordered and doubts and min(behind) > doubts[0]):
        faults.append(f"{account}: {behind} wait for nothing")
    return faults + ([f"{account}: completed without an effect: {lost}"] if lost else [])


async def _accept(
    pair: list[GatewayProcess], kills: int, lanes: int, dice: random.Random, life_seconds: tuple[float, float]
) -> dict[str, dict[int, str]]:
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
        await kill_in_turn(pair, kills, life_seconds, dice)
        # On a busy machine that may take longer than a life.
        await eventually(lambda: any(accepted.values()), _ACCEPTED_SECONDS, "something is accepted")
    return accepted


async def _settled(pair: list[GatewayProcess], urls: dict[int, str], *, is_ordered: bool) -> dict[int, str]:
    """The states of a lane once it has come to its end, or is stopped."""
    states: dict[int, str] = {}

    async def is_settled() -> bool:
        for number, url in sorted(urls.items()):
            if not url:
                states[number] = "completed"
            elif states.get(number) != "completed":
                states[number] = (await status_at(pair[0], url))["state"]
                if is_ordered and states[number] == "in_doubt":
                    states.update(dict.fromkeys(urls.keys() - states.keys(), "accepted"))
                    return True
                if states[number] not in ("completed", "in_doubt"):
                    return False
        return True

    await eventually(is_settled, _SETTLE_SECONDS, "the lane is done or stopped")
    return states


async def _unarrived(
    pair: list[GatewayProcess], account: str, urls: dict[int, str], states: dict[int, str], arrived: list[int]
) -> list[str]:
    """Those in doubt of which nothing arrived.

    A process that is killed in the microseconds between marking a request as sent and its first byte leaves one. Others
    are delivered once a life of their gateway has read that nothing was sent.
    """
    for number in [number for number, state in states.items() if state == "in_doubt" and number not in arrived]:

        async def is_done(number: int = number) -> bool:
            states[number] = (await status_at(pair[0], urls[number]))["state"]
            return states[number] == "completed"

        with suppress(AssertionError):
            await eventually(is_done, _UNSENT_SECONDS)
    left = [number for number, state in states.items() if state == "in_doubt" and number not in arrived]
    return [f"{account}: {number} is in doubt, although nothing of it arrived" for number in left]


if __name__ == "__main__":
    sys.exit(long_run.main("lanes", __doc__, deliver_under_kills, kills=50))
