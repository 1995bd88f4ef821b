"""The callers of the storm: they retry what was not answered, in herds, now and then with another body."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from tests.support import http
from tests.support.fleet import PASSING, nonce_of, try_send
from tests.support.gateway import GatewayProcess

PATHS: Final = ("/charges", "/orders", "/transfers")
RECORDED: Final = frozenset(("stored", "journaled", "replayed", "recovered"))
"""Words of answers that come from the upstream and are kept."""
_ANSWER_SECONDS: Final = 8.0
_HANG_UP_SECONDS: Final = 0.5
_TRIES_MAX: Final = 12
_RECENT_MAX: Final = 30


@dataclass(frozen=True, slots=True)
class Call:
    """One request of a client and what it got. Times are of one clock, in seconds; without `verdict`: no answer.

    `gateway` is the port of the one that was asked.
    """

    number: int
    path: str
    key: str
    body: bytes
    begin: float
    end: float
    status: int = 0
    verdict: str | None = None
    nonce: str | None = None
    answer: bytes = b""
    operation: str | None = None
    gateway: int = 0


@dataclass(frozen=True, slots=True)
class Intent:
    """What a caller wants done once."""

    path: str
    key: str
    body: bytes


class Clients:
    """Callers of some gateways. `calls` is what they saw. The share `impatient` of them hangs up without an answer."""

    def __init__(self, gateways: Sequence[GatewayProcess], seed: int, *, impatient: float = 0.0) -> None:
        self._gateways = gateways
        self._seed = seed
        self._impatient = impatient
        self._numbers = itertools.count(1)
        self._recent: list[Intent] = []
        self.calls: list[Call] = []
        self.is_over = False

    @property
    def intents(self) -> list[Intent]:
        """Everything that anybody ever asked for, in both bodies where there were two."""
        return list(dict.fromkeys(Intent(call.path, call.key, call.body) for call in self.calls))

    def words(self) -> Counter[str]:
        """How many calls got which verdict."""
        return Counter(call.verdict or "no answer" for call in self.calls)

    async def run(self, count: int) -> None:
        """So many callers at once, until `is_over`."""
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                group.create_task(self._client(number))

    async def _client(self, number: int) -> None:
        source = random.Random(f"{self._seed} {number}")
        for index in itertools.count():
            if self.is_over:
                return
            luck = source.random()
            if luck < 0.3 and self._recent:
                intent = source.choice(self._recent)
                if luck < 0.05:
                    intent = Intent(intent.path, intent.key, b'{"amount":2}')
                await self._pursue(intent, source)
            else:
                intent = Intent(source.choice(PATHS), f"{number}-{index}", b'{"amount":1}')
                self._recent = [*self._recent[-_RECENT_MAX:], intent]
                herd = 6 if luck > 0.95 else 1
                await asyncio.gather(*[self._pursue(intent, source) for _ in range(herd)])

    async def _pursue(self, intent: Intent, source: random.Random) -> None:
        """Retry as long as a patient client does."""
        for attempt in range(_TRIES_MAX):
            hangs_up = self._impatient > 0.0 and source.random() < self._impatient
            deadline_seconds = source.uniform(0.001, _HANG_UP_SECONDS) if hangs_up else _ANSWER_SECONDS
            call = await self.call(intent, source.choice(self._gateways), deadline_seconds)
            if self.is_over or (call.verdict is not None and call.verdict not in PASSING):
                return
            await asyncio.sleep(source.uniform(0.0, min(0.05 * 2**attempt, 1.0)))

    async def call(self, intent: Intent, gateway: GatewayProcess, deadline_seconds: float = _ANSWER_SECONDS) -> Call:
        """One call, written down."""
        number, begin = next(self._numbers), time.monotonic()
        response = await try_send(
            gateway.port, intent.key, intent.body, target=intent.path,
            headers=(("X-Call", str(number)),), deadline_seconds=deadline_seconds,
        )  # fmt: skip
        call = Call(number, intent.path, intent.key, intent.body, begin, time.monotonic(), gateway=gateway.port)
        if response is not None:
            verdict, nonce = response.header("Idempotency-Status"), nonce_of(response)
            got = {"status": response.status, "verdict": verdict, "nonce": nonce, "answer": response.body}
            call = replace(call, operation=_operation_of(response), **got)
        self.calls.append(call)
        return call


def _operation_of(response: http.Response) -> str | None:
    """The operation that a problem is about."""
    if response.header("Content-Type") != "application/problem+json":
        return None
    operation: str | None = response.json().get("operation_id")
    return operation
