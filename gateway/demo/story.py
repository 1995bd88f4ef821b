"""The story of the demonstration: what happens to a charge whose answer is lost, told while it happens.

Each scene sends real requests through the real gateway, compares what came with what was told, and looks into the
service's ledger, which alone knows what was executed. A scene that comes out otherwise ends the story as a failure.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Final

from gateway.demo.client import Answer, Caller

_TARGET: Final = "/v1/charges"
_COPIES: Final = 100
_LEDGER_SECONDS: Final = 10.0
_LOOK_AGAIN_SECONDS: Final = 0.02

Say = Callable[[str], None]


class NotAsTold(Exception):
    """Something came out otherwise than the story says."""


class Story:
    """The scenes, in order. `say` gets each line."""

    def __init__(self, caller: Caller, say: Say) -> None:
        self._caller = caller
        self._say = say
        self._requests = 0

    async def play(self) -> None:
        """Play every scene. Raises NotAsTold, or OSError where a connection fails that was not meant to."""
        scenes: tuple[tuple[str, Callable[[], Coroutine[Any, Any, None]]], ...] = (
            ("A charge", self._charge),
            ("The answer is lost, and the client tries again", self._lose_the_answer),
            (f"{_COPIES} copies of one request at the same time", self._copies),
            ("The same key with another amount", self._other_amount),
            ("The same key from another caller", self._other_caller),
            ("The service charges, and is cut off before it answers", self._cut_off),
        )
        for number, (title, scene) in enumerate(scenes, 1):
            self._say(f"\n{number}. {title}\n")
            await scene()
        self._say(f"\n{self._requests} requests to charge were sent, and 5 charges were meant. The ledger shows 5.")

    async def _charge(self) -> None:
        answer = await self._post("order-1001")
        self._expect(answer, 201, "stored")
        await self._ledger_shows(1)

    async def _lose_the_answer(self) -> None:
        self._say("   The client sends its request, and its connection breaks before it has read the answer.")
        self._show("order-1002", 1200, "alice")
        self._requests += 1
        await self._caller.send_and_lose(
            "POST", _TARGET, _headers("order-1002", "alice"), _body(1200, "tok_visa"), lambda: self._reaches(2)
        )
        self._say("   -> (no answer)")
        self._say("   It cannot know that the card was charged. So it repeats the request with the same key:")
        answer = await self._post("order-1002")
        self._expect(answer, 201, "replayed")
        self._say("   It has the answer of the first request, and nothing was charged again.")
        await self._ledger_shows(2)

    async def _copies(self) -> None:
        self._show("order-1003", 1200, "alice")
        self._requests += _COPIES
        answers = await asyncio.gather(
            *[
                self._caller.send("POST", _TARGET, _headers("order-1003", "alice"), _body(1200, "tok_visa"))
                for _ in range(_COPIES)
            ]
        )
        words = Counter(answer.word for answer in answers)
        bodies = {(answer.status, answer.body) for answer in answers}
        counted = ", ".join(f"{count} {word}" for word, count in sorted(words.items()))
        self._say(f"   -> {counted}; {'all equal' if len(bodies) == 1 else f'{len(bodies)} different answers'}")
        if words != {"stored": 1, "replayed": _COPIES - 1} or len(bodies) != 1:
            raise NotAsTold(f"expected 1 stored, {_COPIES - 1} replayed, and all answers equal")
        await self._ledger_shows(3)

    async def _other_amount(self) -> None:
        answer = await self._post("order-1001", amount=9900)
        self._expect(answer, 422, "key-reused")
        self._quote(answer)
        await self._ledger_shows(3)

    async def _other_caller(self) -> None:
        answer = await self._post("order-1001", caller="bob")
        self._expect(answer, 201, "stored")
        self._say("   Keys belong to their caller: this is another operation, and nobody sees another's answer.")
        await self._ledger_shows(4)

    async def _cut_off(self) -> None:
        answer = await self._post("order-1004", card="tok_lost_answer")
        self._expect(answer, 502, "in-doubt")
        self._say("   The gateway sent the request and got no answer. It cannot know what happened, and says so.")
        answer = await self._post("order-1004", card="tok_lost_answer")
        self._expect(answer, 409, "in-doubt")
        self._quote(answer)
        self._say("   The key is kept, and no retry is executed: the card was charged once, as the ledger shows.")
        await self._ledger_shows(5)

    async def _post(self, key: str, *, amount: int = 1200, caller: str = "alice", card: str = "tok_visa") -> Answer:
        self._show(key, amount, caller, card)
        self._requests += 1
        answer = await self._caller.send("POST", _TARGET, _headers(key, caller), _body(amount, card))
        self._say(f"   -> {answer.status}, {answer.word or 'no word'}{_charge_id(answer)}")
        return answer

    def _show(self, key: str, amount: int, caller: str, card: str = "tok_visa") -> None:
        self._say(f"   {caller}: POST {_TARGET}  Idempotency-Key: {key}  {_body(amount, card).decode()}")

    def _expect(self, answer: Answer, status: int, word: str) -> None:
        if (answer.status, answer.word) != (status, word):
            raise NotAsTold(f"expected {status}, {word}")

    def _quote(self, answer: Answer) -> None:
        self._say(f'   "{answer.json()["detail"]}"')

    async def _ledger_shows(self, charges: int) -> None:
        count = await self._count()
        self._say(f"   Charges in the ledger: {count}")
        if count != charges:
            raise NotAsTold(f"expected {charges} charges in the ledger")

    async def _reaches(self, charges: int) -> None:
        try:
            async with asyncio.timeout(_LEDGER_SECONDS):
                while await self._count() < charges:  # noqa: ASYNC110 - the ledger tells nobody, it has to be asked
                    await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        except TimeoutError:
            raise NotAsTold(f"the ledger did not come to {charges} charges") from None

    async def _count(self) -> int:
        """What the ledger says, asked through the gateway: what no route protects passes through."""
        count: int = (await self._caller.send("GET", _TARGET, {})).json()["count"]
        return count


def _headers(key: str, caller: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {caller}", "Idempotency-Key": key}


def _body(amount: int, card: str) -> bytes:
    return json.dumps({"amount": amount, "currency": "eur", "card": card}).encode()


def _charge_id(answer: Answer) -> str:
    return f", charge {answer.json()['id']}" if answer.status == 201 else ""
