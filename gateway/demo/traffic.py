"""Traffic for the demonstration: what callers, a sender of webhooks and a service that breaks do to a gateway.

One step begins every `_PAUSE_SECONDS`, whatever became of those before. What needs a person is left open in the first
rounds only, so that its lists stay short.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from gateway.demo.client import Caller
from gateway.demo.consumer import Consumer
from gateway.demo.setting import Keys
from gateway.demo.upstream import EXPIRED, CardService

_PAUSE_SECONDS: Final = 0.4
_OUTAGE_SECONDS: Final = 5.0
_OPEN_ROUNDS: Final = 8
_CREDENTIALS: Final = ("sk_test_alice", "sk_test_bob", "sk_test_carol")
_FORM: Final = "application/x-www-form-urlencoded"


class Traffic:
    """`run` sends until it is cancelled."""

    def __init__(self, caller: Caller, service: CardService, consumer: Consumer, keys: Keys) -> None:
        self._caller = caller
        self._service = service
        self._consumer = consumer
        self._keys = keys
        self._numbers = itertools.count(1)

    async def run(self) -> None:
        """Play one round after the other."""
        everyday = (self._charge, self._repeat, self._charge, self._copies, self._pay, self._charge, self._accept)
        rare = (self._hang_up, self._webhook, self._reuse, self._decline, self._ask_service, self._fail)
        usual = [step for each in rare for step in (*everyday, each)]
        needs_person = (self._lose_response, self._dead_letter)
        async with asyncio.TaskGroup() as steps:
            for number in itertools.count():
                opens, outage = number < _OPEN_ROUNDS, self._fall_silent if number % 2 else self._break
                for step in (*needs_person * opens, *usual, outage):
                    steps.create_task(_without_loss(step))
                    await asyncio.sleep(_PAUSE_SECONDS)

    async def _charge(self) -> None:
        await self._send("charges", self._key(), "source=tok_visa")

    async def _pay(self) -> None:
        await self._send("payment_intents", self._key(), "payment_method=pm_card_visa")

    async def _accept(self) -> None:
        await self._send("payouts", self._key(), later=True)

    async def _repeat(self) -> None:
        key = self._key()
        for _ in range(3):
            await self._send("charges", key, "source=tok_visa")

    async def _copies(self) -> None:
        key = self._key()
        await asyncio.gather(*(self._send("charges", key, "source=tok_slow") for _ in range(3)))

    async def _hang_up(self) -> None:
        """The caller's connection breaks, and the caller tries again."""
        key = self._key()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._send("charges", key, "source=tok_slow"), 1.0)
        await self._send("charges", key, "source=tok_slow")

    async def _reuse(self) -> None:
        key = self._key()
        await self._send("charges", key, "source=tok_visa")
        await self._send("charges", key, "source=tok_visa", amount=9900)

    async def _decline(self) -> None:
        await self._send("charges", self._key(), "source=tok_declined")

    async def _ask_service(self) -> None:
        """The response is lost, and the repeat gets what the service says when it is asked."""
        key = self._key()
        for _ in range(2):
            await self._send("payment_intents", key, "payment_method=tok_lost_response")

    async def _fail(self) -> None:
        await self._send("payment_intents", self._key(), "payment_method=tok_error")

    async def _lose_response(self) -> None:
        """Nobody can be asked: the operation stays in doubt until a person ends it."""
        key = self._key()
        for _ in range(2):
            await self._send("charges", key, "source=tok_lost_response")

    async def _dead_letter(self) -> None:
        """The service refuses the credential when it is too late to ask the caller for another."""
        await self._send("payouts", self._key(), later=True, credential=EXPIRED)

    async def _webhook(self) -> None:
        body = json.dumps({"id": f"evt_{next(self._numbers)}", "type": "payout.paid"}).encode()
        for _ in range(2):
            await self._caller.send("POST", "/webhooks/stripe", self._keys.signed(body), body)

    async def _break(self) -> None:
        """The service is gone for a while."""
        await self._service.stop()
        await asyncio.sleep(_OUTAGE_SECONDS)
        await self._service.start()

    async def _fall_silent(self) -> None:
        """The consumer acknowledges no event for a while."""
        self._consumer.acknowledges.clear()
        try:
            await asyncio.sleep(_OUTAGE_SECONDS)
        finally:
            self._consumer.acknowledges.set()

    async def _send(
        self, what: str, key: str, card: str = "", *, amount: int = 1200, later: bool = False, credential: str = ""
    ) -> None:
        credential = credential or _CREDENTIALS[sum(key.encode()) % len(_CREDENTIALS)]
        headers = {"Authorization": f"Bearer {credential}", "Idempotency-Key": key, "Content-Type": _FORM}
        headers |= {"Prefer": "respond-async"} if later else {}
        body = f"amount={amount}&currency=eur&{card}".encode()
        await self._caller.send("POST", f"/v1/{what}", headers, body)

    def _key(self) -> str:
        return f"order-{next(self._numbers)}"


async def _without_loss(step: Callable[[], Awaitable[None]]) -> None:
    with suppress(OSError):
        await step()
