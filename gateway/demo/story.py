"""What the demonstration sends by itself: the story of a lost response, three corners through a `kill -9`, and traffic.

Each scene sends real requests through a real gateway, compares the responses with what is promised, and reads what the
service did, which alone knows what was executed. An unexpected result ends a story as a failure.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from gateway.app.life import StartError
from gateway.demo import world as demo
from gateway.demo.world import EXPIRED, Caller, CardService, Consumer, Response, ordered
from gateway.store.base import end_tasks

_COPIES: Final = 100
_LEDGER_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.02

PrintLine = Callable[[str], None]


class UnexpectedResult(Exception):
    """The result of a scene is not the expected one."""


def _expect(value: object, expected: object, what: str) -> None:
    if value != expected:
        raise UnexpectedResult(f"{what}: expected {expected}, not {value}")


async def _wait(condition: Callable[[], Awaitable[bool]], seconds: float) -> None:
    """Return once the condition holds. Raises `TimeoutError`. What is waited for lies elsewhere, and tells nobody."""
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(_POLL_SECONDS)


# -- a lost response ---------------------------------------------------------------------------------------------------


class Scenario:
    """The scenes, in order. `print_line` gets each line."""

    def __init__(self, caller: Caller, print_line: PrintLine) -> None:
        self._caller = caller
        self._print = print_line
        self._requests = 0

    async def play(self) -> None:
        """Play every scene. Raises `UnexpectedResult`, or `OSError` when a connection fails unexpectedly."""
        scenes = {
            "A charge": self._charge,
            "The response is lost, and the client tries again": self._lose_the_response,
            f"{_COPIES} copies of one request at the same time": self._copies,
            "The same key with another amount": self._other_amount,
            "The same key from another caller": self._other_caller,
            "The service charges, and its connection breaks before it responds": self._cut_off,
        }
        for number, (title, scene) in enumerate(scenes.items(), 1):
            self._print(f"\n{number}. {title}\n")
            await scene()
        self._print(f"\n{self._requests} requests to charge were sent, and 5 charges were meant. The ledger shows 5.")

    async def _charge(self) -> None:
        await self._post("order-1001", (201, "stored"))
        await self._ledger_shows(1)

    async def _lose_the_response(self) -> None:
        self._print("   The client sends its request, and its connection breaks before it has read the response.")
        self._show("order-1002")
        sending = asyncio.create_task(self._caller.order("order-1002"))
        try:
            await _wait(lambda: self._has_charged(2), _LEDGER_SECONDS)
        finally:
            await end_tasks((sending,))
        self._print("   -> (no response)")
        self._print("   It cannot know that the card was charged, so it repeats the request with the same key:")
        await self._post("order-1002", (201, "replayed"))
        self._print("   It has the response of the first request, and nothing was charged again.")
        await self._ledger_shows(2)

    async def _copies(self) -> None:
        self._show("order-1003", copies=_COPIES)
        responses = await asyncio.gather(*[self._caller.order("order-1003") for _ in range(_COPIES)])
        verdicts = Counter(response.verdict for response in responses)
        bodies = {(response.status, response.body) for response in responses}
        counted = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
        self._print(f"   -> {counted}; {'all equal' if len(bodies) == 1 else f'{len(bodies)} different responses'}")
        _expect((verdicts, len(bodies)), ({"stored": 1, "replayed": _COPIES - 1}, 1), "verdicts and responses")
        await self._ledger_shows(3)

    async def _other_amount(self) -> None:
        self._quote(await self._post("order-1001", (400, "key-reused"), amount=9900))
        await self._ledger_shows(3)

    async def _other_caller(self) -> None:
        await self._post("order-1001", (201, "stored"), caller="bob")
        self._print("   Keys belong to their caller: this is another operation, with its own response.")
        await self._ledger_shows(4)

    async def _cut_off(self) -> None:
        await self._post("order-1004", (502, "in-doubt"), card="tok_lost_response")
        self._print("   The gateway sent the request and got no response. It does not know what happened, and says so.")
        self._quote(await self._post("order-1004", (409, "in-doubt"), card="tok_lost_response"))
        self._print(
            "   The key is remembered, and no retry is executed: the card was charged once, as the ledger shows."
        )
        await self._ledger_shows(5)

    async def _post(
        self, key: str, expected: tuple[int, str], *, amount: int = 1200, caller: str = "alice", card: str = "tok_visa"
    ) -> Response:
        self._show(key, amount, caller, card)
        response = await self._caller.order(key, f"source={card}", amount=amount, credential=caller)
        charge = f", charge {response.json()['id']}" if response.status == 201 else ""
        self._print(f"   -> {response.status}, {response.verdict or 'no verdict'}{charge}")
        _expect((response.status, response.verdict), expected, "the response")
        return response

    def _show(
        self, key: str, amount: int = 1200, caller: str = "alice", card: str = "tok_visa", copies: int = 1
    ) -> None:
        self._requests += copies
        self._print(f"   {caller}: POST /v1/charges  Idempotency-Key: {key}  {ordered(amount, f'source={card}')}")

    def _quote(self, response: Response) -> None:
        self._print(f'   "{response.json()["error"]["message"]}"')

    async def _ledger_shows(self, charges: int) -> None:
        count = await self._count()
        self._print(f"   Charges in the ledger: {count}")
        _expect(count, charges, "charges in the ledger")

    async def _has_charged(self, charges: int) -> bool:
        return await self._count() >= charges

    async def _count(self) -> int:
        """The charges in the ledger, read through the gateway, which passes unprotected requests through."""
        return len((await self._caller.send("GET", "/v1/charges", {})).json()["data"])


# -- three corners -----------------------------------------------------------------------------------------------------
# A request that is kept, a webhook that comes twice, and events, through a `kill -9`. The gateways are processes of
# their own; the service and the consumer live here, so they see what a gateway that dies leaves behind. Then one corner
# after the other is left out of the configuration, and the figures show what leaks.

_HOST: Final = "127.0.0.1"
_READY_SECONDS: Final = 20.0
_LOG_LINES_SHOWN: Final = 10
_REPEATS: Final = 3
# The lease of an event, the longest pause between polls, and a slow machine.
_AGAIN_SECONDS: Final = 55.0
_EVENT_SECONDS: Final = 20.0
# An event that is not expected would have come by then.
_QUIET_SECONDS: Final = 0.5
_WEBHOOK: Final = json.dumps({"id": "evt_1001", "type": "payment.settled", "charge": "ch_7"}).encode()


class GatewayProcess:
    """`async with GatewayProcess(directory, text, variables)`: a gateway that is ready. `text` is its configuration,
    `variables` are in its environment. It is killed at the end, and keeps nothing outside of `directory`. Raises
    `StartError` with the end of its log when it does not get ready."""

    def __init__(self, directory: Path, text: str, variables: Mapping[str, str]) -> None:
        self._directory, self._text, self._variables = directory, text, variables
        self._status = Caller(_HOST, int(variables["STATUS_PORT"]))
        self._log = directory / "gateway.log"
        self._process: subprocess.Popen[bytes] | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.kill()

    async def start(self) -> None:
        """Start it, and return once it is ready."""
        self._launch()
        try:
            await _wait(self._is_ready, _READY_SECONDS)
        except TimeoutError:
            raise self._failure(f"did not get ready within {_READY_SECONDS:g} s") from None
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """SIGKILL, to it and to whatever it started."""
        process, self._process = self._process, None
        if process is not None:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _launch(self) -> None:
        self._directory.mkdir(exist_ok=True)
        config = self._directory / "gateway.yaml"
        config.write_text(self._text)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - this program
                [sys.executable, "-m", "gateway", "run", "--config", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Nothing of the working directory can take the place of the installed program.
                cwd=self._directory,
                env={**os.environ, **self._variables},
                # Ctrl-C is for the demonstration, which then kills it.
                start_new_session=True,
            )

    async def _is_ready(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise self._failure("ended by itself")
        try:
            return (await self._status.send("GET", "/readyz", {})).status == 200
        except OSError:
            return False

    def _failure(self, what: str) -> StartError:
        self.kill()
        lines = self._log.read_text(errors="replace").splitlines()[-_LOG_LINES_SHOWN:]
        return StartError("\n  ".join((f"the gateway {what}. The end of its log:", *(lines or ["(nothing)"]))))


@dataclass(frozen=True, slots=True)
class _Corners:
    """A gateway and those around it."""

    gateway: GatewayProcess
    caller: Caller
    service: CardService
    keys: demo.Keys
    is_fast: asyncio.Event

    async def charge(self) -> Response:
        """Send the charge; always the same request."""
        return await self.caller.order("order-1001", "source=tok_slow", is_later=True)

    async def is_charged(self) -> bool:
        return (await self.charge()).status == 201

    async def deliver_webhook(self) -> Response:
        """Send the webhook as its sender does; always the same event."""
        return await self.caller.send("POST", "/webhooks/stripe", self.keys.signed(_WEBHOOK), _WEBHOOK)


class Triangle:
    """The scenes, in order. `print_line` gets each line."""

    def __init__(self, directory: Path, print_line: PrintLine) -> None:
        self._directory = directory
        self._print = print_line

    async def play(self) -> None:
        """Play every scene. Raises `UnexpectedResult`, `OSError`, or `StartError` from a gateway."""
        keys, port = demo.Keys.new(), _free_port()
        async with Consumer(_HOST, port, keys.consumer) as consumer, self._corners("", keys, port) as corners:
            await self._kill(corners, consumer)
            await self._without_key(keys, port)
            await self._without_inbox(keys, port)
            await self._without_events()
            await self._lose_nothing(corners, consumer)

    async def _kill(self, corners: _Corners, consumer: Consumer) -> None:
        self._print("\n1. All three corners, and kill -9\n")
        consumer.acknowledges.clear()
        responses = [await corners.charge() for _ in range(_REPEATS)]
        self._print(f"   A caller sends a charge three times, and does not wait: {_verdicts(responses)}")
        _expect(_verdicts(responses), ", ".join(["202 accepted"] * _REPEATS), "the verdicts")
        _expect(len({response.headers["location"] for response in responses}), 1, "operations")
        corners.is_fast.set()
        responses = [await corners.deliver_webhook() for _ in range(2)]
        self._print(f"   A sender delivers a signed webhook twice: {_verdicts(responses)}")
        _expect(_verdicts(responses), "200 accepted, 200 event-duplicate", "the verdicts")
        await consumer.wait_deliveries(2, _EVENT_SECONDS)
        self._service_shows(corners, charges=1, webhooks=1)
        self._print(f"   The consumer got {len(consumer.deliveries)} events. Before it acknowledges one: kill -9.")
        _expect(len(consumer.deliveries), 2, "events")
        corners.gateway.kill()
        consumer.acknowledges.set()
        await corners.gateway.start()
        self._print(
            "   The gateway is started again. Once their lease is over, in 30 seconds, it publishes them again."
        )

    async def _without_key(self, keys: demo.Keys, port: int) -> None:
        self._print("\n2. Meanwhile: the same without a route for charges\n")
        async with self._corners("accept", keys, port) as corners:
            corners.is_fast.set()
            responses = [await corners.charge() for _ in range(_REPEATS)]
            self._print(f"   The charge is sent three times, with one key: {_verdicts(responses)}")
            _expect([response.status for response in responses], [201] * _REPEATS, "the statuses")
            self._service_shows(corners, charges=_REPEATS, webhooks=0)

    async def _without_inbox(self, keys: demo.Keys, port: int) -> None:
        self._print("\n3. The same without the inbox\n")
        async with self._corners("inbox", keys, port) as corners:
            responses = [await corners.deliver_webhook() for _ in range(2)]
            self._print(f"   The webhook is delivered twice: {_verdicts(responses)}")
            _expect([response.status for response in responses], [204] * 2, "the statuses")
            self._service_shows(corners, charges=0, webhooks=2)

    async def _without_events(self) -> None:
        """The gateway cannot publish after the change instead of in it, so here a service does, as many do."""
        self._print("\n4. The same without events: the service calls the consumer after each charge\n")
        keys, port = demo.Keys.new(), _free_port()
        calls: list[str] = []

        async def call_consumer() -> None:
            try:
                await Caller(_HOST, port).send("POST", "/events", {}, b"{}")
            except OSError:
                calls.append("lost")
            else:
                calls.append("arrived")

        async with self._corners("events", keys, port, charged=call_consumer) as corners:
            corners.is_fast.set()
            await _wait(corners.is_charged, _EVENT_SECONDS)
            self._print(f"   The charge is executed while the consumer is away. The call: {', '.join(calls)}")
            _expect(calls, ["lost"], "calls")
            async with Consumer(_HOST, port, keys.consumer) as consumer:
                response = await corners.charge()
                self._print(f"   The consumer is back, and the caller repeats the charge: {_verdicts([response])}")
                _expect(_verdicts([response]), "201 replayed", "the verdict")
                await consumer.wait_deliveries(1, _QUIET_SECONDS)
                self._service_shows(corners, charges=1, webhooks=0)
                self._print(f"   Events at the consumer: {len(consumer.deliveries)}. Nobody will tell it.")
                _expect(len(consumer.deliveries), 0, "events")

    async def _lose_nothing(self, corners: _Corners, consumer: Consumer) -> None:
        self._print("\n5. The gateway that was killed\n")
        await consumer.wait_deliveries(4, _AGAIN_SECONDS)
        responses = [await corners.charge(), await corners.deliver_webhook()]
        self._print(f"   The caller and the sender repeat theirs: {_verdicts(responses)}")
        _expect(_verdicts(responses), "201 replayed, 200 event-duplicate", "the verdicts")
        self._service_shows(corners, charges=1, webhooks=1)
        came, ids = len(consumer.deliveries), len(consumer.effects)
        self._print(f"   The consumer got {came} events under {ids} ids, and acted on each id once.")
        _expect(ids, 2, "ids")
        least_often = min(Counter(consumer.deliveries).values(), default=0)
        _expect(least_often >= 2, True, "events that nobody had acknowledged came again")
        self._print("\nOne charge, one effect of the webhook, each event under one id: nothing was done twice or lost.")

    @asynccontextmanager
    async def _corners(
        self, without: str, keys: demo.Keys, consumer_port: int, charged: Callable[[], Awaitable[None]] | None = None
    ) -> AsyncIterator[_Corners]:
        """A service of its own behind a gateway of its own, on an empty store."""
        directory = self._directory / (without or "all")
        port, is_fast = _free_port(), asyncio.Event()
        async with CardService(_HOST, 0, delay=is_fast.wait, charged=charged) as service:
            variables = demo.variables(
                keys,
                host=_HOST,
                port=port,
                upstream=f"http://{_HOST}:{service.port}",
                directory=str(directory),
                consumer_port=consumer_port,
                status_port=_free_port(),
                log_level="error",
            )
            async with GatewayProcess(directory, demo.triangle(without=without), variables) as gateway:
                try:
                    yield _Corners(gateway, Caller(_HOST, port), service, keys, is_fast)
                finally:
                    is_fast.set()

    def _service_shows(self, corners: _Corners, *, charges: int, webhooks: int) -> None:
        """Compare and print what the service did, which it alone knows."""
        done = corners.service.charges, corners.service.webhooks
        self._print(f"   At the service: charges {done[0]}, effects of the webhook {done[1]}")
        _expect(done, (charges, webhooks), "charges and webhooks")


def _verdicts(responses: Sequence[Response]) -> str:
    return ", ".join(f"{response.status} {response.verdict}".rstrip() for response in responses)


def _free_port() -> int:
    """A port for a process that is told it before it starts."""
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port


# -- traffic -----------------------------------------------------------------------------------------------------------
# Traffic for the demonstration: what callers, a sender of webhooks and a service that breaks do to a gateway.
#
# One step begins every `_PAUSE_SECONDS`, whatever became of those before. What needs a person is left open in the first
# rounds only, so that its lists stay short.

_PAUSE_SECONDS: Final = 0.4
_OUTAGE_SECONDS: Final = 5.0
_OPEN_ROUNDS: Final = 8
_CREDENTIALS: Final = ("sk_test_alice", "sk_test_bob", "sk_test_carol")


class Traffic:
    """`run` sends until it is cancelled."""

    def __init__(self, caller: Caller, service: CardService, consumer: Consumer, keys: demo.Keys) -> None:
        self._caller, self._service, self._consumer, self._keys = caller, service, consumer, keys
        self._numbers = itertools.count(1)

    async def run(self) -> None:
        """Play one round after the other."""
        request = self._request
        charge, pay = request(), request("payment_method=pm_card_visa", what="payment_intents")
        repeat, accept = request(times=3), request("", what="payouts", is_later=True)
        decline = request("source=tok_declined")
        fail = request("payment_method=tok_error", what="payment_intents")
        # The response is lost, and the repeat gets what the service says when it is asked.
        ask_service = request("payment_method=tok_lost_response", times=2, what="payment_intents")
        # Nobody can be asked: the operation stays in doubt until a person ends it.
        lose_response = request("source=tok_lost_response", times=2)
        # The service refuses the credential when it is too late to ask the caller for another.
        dead_letter = request("", what="payouts", is_later=True, credential=EXPIRED)
        everyday = (charge, repeat, charge, self._copies, pay, charge, accept)
        rare = (self._hang_up, self._webhook, self._reuse, decline, ask_service, fail)
        usual = [step for each in rare for step in (*everyday, each)]
        async with asyncio.TaskGroup() as steps:
            for number in itertools.count():
                opens, outage = number < _OPEN_ROUNDS, self._fall_silent if number % 2 else self._break
                for step in (*(lose_response, dead_letter) * opens, *usual, outage):
                    steps.create_task(_without_loss(step))
                    await asyncio.sleep(_PAUSE_SECONDS)

    def _request(
        self, card: str = "source=tok_visa", *, times: int = 1, **options: Any
    ) -> Callable[[], Awaitable[None]]:
        """Sends it so many times under one key."""

        async def send() -> None:
            key = self._key()
            for _ in range(times):
                await self._send(key, card, **options)

        return send

    async def _copies(self) -> None:
        key = self._key()
        await asyncio.gather(*(self._send(key, "source=tok_slow") for _ in range(3)))

    async def _hang_up(self) -> None:
        """The caller's connection breaks, and the caller tries again."""
        key = self._key()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._send(key, "source=tok_slow"), 1.0)
        await self._send(key, "source=tok_slow")

    async def _reuse(self) -> None:
        key = self._key()
        await self._send(key)
        await self._send(key, amount=9900)

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

    async def _send(self, key: str, card: str = "source=tok_visa", **options: Any) -> None:
        """Each key has a caller of its own."""
        caller = {"credential": _CREDENTIALS[sum(key.encode()) % len(_CREDENTIALS)]}
        await self._caller.order(key, card, **{**caller, **options})

    def _key(self) -> str:
        return f"order-{next(self._numbers)}"


async def _without_loss(step: Callable[[], Awaitable[None]]) -> None:
    with suppress(OSError):
        await step()
