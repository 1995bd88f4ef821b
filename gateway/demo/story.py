"""What the demonstration sends by itself: the story of a lost response with a comment on each step, and traffic.

Each scene of the story sends real requests through the real gateway, compares the responses with what the story
expects, and reads the service's ledger, which alone knows what was executed. An unexpected result ends the story as a
failure.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

from gateway.demo.setting import Keys
from gateway.demo.world import EXPIRED, Caller, CardService, Consumer, Response

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
        charge = f", charge {response.json()['id']}" if response.status == 201 else ""
        self._print(f"   -> {response.status}, {response.verdict or 'no verdict'}{charge}")
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


# -- traffic -----------------------------------------------------------------------------------------------------------
# Traffic for the demonstration: what callers, a sender of webhooks and a service that breaks do to a gateway.
#
# One step begins every `_PAUSE_SECONDS`, whatever became of those before. What needs a person is left open in the first
# rounds only, so that its lists stay short.

_PAUSE_SECONDS: Final = 0.4
_OUTAGE_SECONDS: Final = 5.0
_OPEN_ROUNDS: Final = 8
_CREDENTIALS: Final = ("sk_test_alice", "sk_test_bob", "sk_test_carol")
_FORM: Final = "application/x-www-form-urlencoded"


class Traffic:
    """`run` sends until it is cancelled."""

    def __init__(self, caller: Caller, service: CardService, consumer: Consumer, keys: Keys) -> None:
        self._caller, self._service, self._consumer, self._keys = caller, service, consumer, keys
        self._numbers = itertools.count(1)

    async def run(self) -> None:
        """Play one round after the other."""
        request = self._request
        charge, pay = request("charges", "source=tok_visa"), request("payment_intents", "payment_method=pm_card_visa")
        repeat, accept = request("charges", "source=tok_visa", times=3), request("payouts", later=True)
        decline = request("charges", "source=tok_declined")
        fail = request("payment_intents", "payment_method=tok_error")
        # The response is lost, and the repeat gets what the service says when it is asked.
        ask_service = request("payment_intents", "payment_method=tok_lost_response", times=2)
        # Nobody can be asked: the operation stays in doubt until a person ends it.
        lose_response = request("charges", "source=tok_lost_response", times=2)
        # The service refuses the credential when it is too late to ask the caller for another.
        dead_letter = request("payouts", later=True, credential=EXPIRED)
        everyday = (charge, repeat, charge, self._copies, pay, charge, accept)
        rare = (self._hang_up, self._webhook, self._reuse, decline, ask_service, fail)
        usual = [step for each in rare for step in (*everyday, each)]
        async with asyncio.TaskGroup() as steps:
            for number in itertools.count():
                opens, outage = number < _OPEN_ROUNDS, self._fall_silent if number % 2 else self._break
                for step in (*(lose_response, dead_letter) * opens, *usual, outage):
                    steps.create_task(_without_loss(step))
                    await asyncio.sleep(_PAUSE_SECONDS)

    def _request(self, what: str, card: str = "", *, times: int = 1, **options: Any) -> Callable[[], Awaitable[None]]:
        """Sends it so many times under one key."""

        async def send() -> None:
            key = self._key()
            for _ in range(times):
                await self._send(what, key, card, **options)

        return send

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
