"""Stripe's own libraries against the demonstration, with nothing changed but the address of the API."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import stripe

from gateway.demo import World, in_front_of_cards
from tests.clients.programs import NODE_MODULES
from tests.support import http
from tests.support.relay import Fault, Relay

Bought = Mapping[str, Any]
_PROGRAM: Final = Path(__file__).with_name("node") / "pay.mjs"


def _in_python(port: int, kind: str, api_key: str, key: str, parameters: Mapping[str, Any], _: Path) -> Bought:
    client = stripe.StripeClient(
        api_key,
        base_addresses={"api": f"http://127.0.0.1:{port}"},
        max_network_retries=4,
        http_client=stripe.RequestsClient(timeout=30),
    )
    service = {"charges": client.v1.charges, "paymentIntents": client.v1.payment_intents}[kind]
    try:
        made: Any = service.create(dict(parameters), {"idempotency_key": key})  # type: ignore[attr-defined]
    except stripe.StripeError as error:
        return {"raised": type(error).__name__, "message": str(error)}
    return {"id": made.id, "object": made.object, "status": made.status}


def _in_node(port: int, kind: str, api_key: str, key: str, parameters: Mapping[str, Any], here: Path) -> Bought:
    program = here / _PROGRAM.name
    program.write_text(_PROGRAM.read_text("utf-8"))
    if not (here / "node_modules").exists():
        (here / "node_modules").symlink_to(NODE_MODULES)
    command = ["node", str(program), str(port), kind, api_key, key, json.dumps(parameters)]
    bought: Bought = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout)
    return bought


_LIBRARIES: Final = [pytest.param(_in_python, id="python")]
if shutil.which("node") is not None and (NODE_MODULES / "stripe").exists():
    _LIBRARIES.append(pytest.param(_in_node, id="node"))


class Buyer:
    """Buys with one of the libraries, on this port."""

    def __init__(self, library: Callable[..., Bought], port: int, here: Path) -> None:
        self._library, self._port, self._here = library, port, here

    async def charge(
        self, key: str, card: str = "tok_visa", *, amount: int = 1200, api_key: str = "sk_test_1"
    ) -> Bought:
        parameters = {"amount": amount, "currency": "eur", "source": card}
        return await asyncio.to_thread(self._library, self._port, "charges", api_key, key, parameters, self._here)

    async def pay(self, key: str, card: str = "pm_card_visa") -> Bought:
        parameters = {"amount": 1200, "currency": "eur", "payment_method": card, "confirm": True}
        return await asyncio.to_thread(
            self._library, self._port, "paymentIntents", "sk_test_1", key, parameters, self._here
        )


@pytest.fixture(params=_LIBRARIES)
def library(request: pytest.FixtureRequest) -> Callable[..., Bought]:
    chosen: Callable[..., Bought] = request.param
    return chosen


async def made(world: World, kind: str) -> list[str]:
    """What the service made, by its own ledger."""
    listed = await http.request(world.service.port, "GET", f"/v1/{kind}")
    return [each["id"] for each in listed.json()["data"]]


async def test_a_lost_response_is_one_charge(library: Callable[..., Bought], tmp_path: Path) -> None:
    """The library repeats by itself a charge whose response was lost, and gets the recorded one."""
    async with in_front_of_cards("127.0.0.1", 0) as world, Relay(world.gateway.address[1]) as relay:
        relay.to_client.ambush(1, Fault.RESET)
        bought = await Buyer(library, relay.port, tmp_path).charge("order-1001")
        assert relay.to_client.fired.is_set()
        assert bought == {"id": "ch_1", "object": "charge", "status": "succeeded"}
        assert await made(world, "charges") == ["ch_1"]


async def test_a_used_key_is_the_librarys_own_error(library: Callable[..., Bought], tmp_path: Path) -> None:
    """Another amount under a used key is the error that the library has for that, and charges nothing."""
    async with in_front_of_cards("127.0.0.1", 0) as world:
        buyer = Buyer(library, world.gateway.address[1], tmp_path)
        assert await buyer.charge("order-1001") == await buyer.charge("order-1001")
        refused = await buyer.charge("order-1001", amount=9900)
        assert refused["raised"] == "IdempotencyError"
        assert "different request" in refused["message"]
        assert await made(world, "charges") == ["ch_1"]
        assert (await http.request(world.service.port, "GET", "/v1/charges/ch_1")).json()["amount"] == 1200


@pytest.mark.parametrize("card", ["tok_error", "tok_lost_response"])
async def test_a_failure_is_asked_about(library: Callable[..., Bought], tmp_path: Path, card: str) -> None:
    """The service fails after it paid; the library's own retry gets what the service says when it is asked."""
    async with in_front_of_cards("127.0.0.1", 0) as world:
        bought = await Buyer(library, world.gateway.address[1], tmp_path).pay("order-1001", card)
        assert bought == {"id": "pi_1", "object": "payment_intent", "status": "succeeded"}
        assert await made(world, "payment_intents") == ["pi_1"]


async def test_a_failure_that_nobody_can_be_asked_about(library: Callable[..., Bought], tmp_path: Path) -> None:
    """The library stops at a doubt, and its user is told not to take a new key."""
    async with in_front_of_cards("127.0.0.1", 0) as world:
        refused = await Buyer(library, world.gateway.address[1], tmp_path).charge("order-1001", "tok_error")
        assert refused["raised"] == "APIError"
        assert "Do not send it again under a new key" in refused["message"]
        assert await made(world, "charges") == ["ch_1"]
