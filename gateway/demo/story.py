"""The story of the demonstration: what happens to a charge whose response is lost, with a comment on each step.

Each scene sends real requests through the real gateway, compares the responses with what the story expects, and reads
the service's ledger, which alone knows what was executed. An unexpected result ends the story as a failure.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Final

from gateway.demo.client import Caller, Response

_TARGET: Final = "/v1/charges"
_COPIES: Final = 100
_LEDGER_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.02

PrintLine = Callable[[str], None]


class UnexpectedResult(Exception):
    """The result of a scene is not the expected one."""


class Scenario:
    """The scenes, in order. `print_line` gets each line."""

    def __init__(self, caller: Caller, print_line: PrintLine) -> None:
        self._caller = caller
        self._print = print_line
        self._requests = 0

    async def play(self) -> None:
        """Play every scene. Raises `UnexpectedResult`, or `OSError` when a connection fails unexpectedly."""
        scenes: tuple[tuple[str, Callable[[], Coroutine[Any, Any, None]]], ...] = (
            ("A charge", self._charge),
            ("The response is lost, and the client tries again", self._lose_the_response),
            (f"{_COPIES} copies of one request at the same time", self._copies),
            ("The same key with another amount", self._other_amount),
            ("The same key from another caller", self._other_caller),
            ("The service charges, and its connection breaks before it responds", self._cut_off),
        )
        for number, (title, scene) in enumerate(scenes, 1):
            self._print(f"\n{number}. {title}\n")
            await scene()
        self._print(f"\n{self._requests} requests to charge were sent, and 5 charges were meant. The ledger shows 5.")

    async def _charge(self) -> None:
        response = await self._post("order-1001")
        self._expect(response, 201, "stored")
        await self._ledger_shows(1)

    async def _lose_the_response(self) -> None:
        self._print("   The client sends its request, and its connection breaks before it has read the response.")
        self._show("order-1002", 1200, "alice")
        self._requests += 1
        await self._caller.send_and_lose(
            "POST", _TARGET, _headers("order-1002", "alice"), _body(1200, "tok_visa"), lambda: self._reaches(2)
        )
        self._print("   -> (no response)")
        self._print("   It cannot know that the card was charged, so it repeats the request with the same key:")
        response = await self._post("order-1002")
        self._expect(response, 201, "replayed")
        self._print("   It has the response of the first request, and nothing was charged again.")
        await self._ledger_shows(2)

    async def _copies(self) -> None:
        self._show("order-1003", 1200, "alice")
        self._requests += _COPIES
        responses = await asyncio.gather(
            *[
                self._caller.send("POST", _TARGET, _headers("order-1003", "alice"), _body(1200, "tok_visa"))
                for _ in range(_COPIES)
            ]
        )
        verdicts = Counter(response.verdict for response in responses)
        bodies = {(response.status, response.body) for response in responses}
        counted = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
        self._print(f"   -> {counted}; {'all equal' if len(bodies) == 1 else f'{len(bodies)} different responses'}")
        if verdicts != {"stored": 1, "replayed": _COPIES - 1} or len(bodies) != 1:
            raise UnexpectedResult(f"expected 1 stored, {_COPIES - 1} replayed, and all responses equal")
        await self._ledger_shows(3)

    async def _other_amount(self) -> None:
        response = await self._post("order-1001", amount=9900)
        self._expect(response, 400, "key-reused")
        self._quote(response)
        await self._ledger_shows(3)

    async def _other_caller(self) -> None:
        response = await self._post("order-1001", caller="bob")
        self._expect(response, 201, "stored")
        self._print("   Keys belong to their caller: this is another operation, with its own response.")
        await self._ledger_shows(4)

    async def _cut_off(self) -> None:
        response = await self._post("order-1004", card="tok_lost_response")
        self._expect(response, 502, "in-doubt")
        self._print("   The gateway sent the request and got no response. It does not know what happened, and says so.")
        response = await self._post("order-1004", card="tok_lost_response")
        self._expect(response, 409, "in-doubt")
        self._quote(response)
        self._print(
            "   The key is remembered, and no retry is executed: the card was charged once, as the ledger shows."
        )
        await self._ledger_shows(5)

    async def _post(self, key: str, *, amount: int = 1200, caller: str = "alice", card: str = "tok_visa") -> Response:
        self._show(key, amount, caller, card)
        self._requests += 1
        response = await self._caller.send("POST", _TARGET, _headers(key, caller), _body(amount, card))
        self._print(f"   -> {response.status}, {response.verdict or 'no verdict'}{_charge_id(response)}")
        return response

    def _show(self, key: str, amount: int, caller: str, card: str = "tok_visa") -> None:
        self._print(f"   {caller}: POST {_TARGET}  Idempotency-Key: {key}  {_body(amount, card).decode()}")

    def _expect(self, response: Response, status: int, verdict: str) -> None:
        if (response.status, response.verdict) != (status, verdict):
            raise UnexpectedResult(f"expected {status}, {verdict}")

    def _quote(self, response: Response) -> None:
        self._print(f'   "{response.json()["error"]["message"]}"')

    async def _ledger_shows(self, charges: int) -> None:
        count = await self._count()
        self._print(f"   Charges in the ledger: {count}")
        if count != charges:
            raise UnexpectedResult(f"expected {charges} charges in the ledger")

    async def _reaches(self, charges: int) -> None:
        try:
            async with asyncio.timeout(_LEDGER_SECONDS):
                while await self._count() < charges:  # noqa: ASYNC110 - the ledger has no notifications
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise UnexpectedResult(f"the ledger did not reach {charges} charges") from None

    async def _count(self) -> int:
        """The charges in the ledger, read through the gateway, which passes unprotected requests through."""
        return len((await self._caller.send("GET", _TARGET, {})).json()["data"])


def _headers(key: str, caller: str) -> dict[str, str]:
    form = "application/x-www-form-urlencoded"
    return {"Authorization": f"Bearer {caller}", "Idempotency-Key": key, "Content-Type": form}


def _body(amount: int, card: str) -> bytes:
    return f"amount={amount}&currency=eur&source={card}".encode()


def _charge_id(response: Response) -> str:
    return f", charge {response.json()['id']}" if response.status == 201 else ""
