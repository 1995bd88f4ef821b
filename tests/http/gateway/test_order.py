"""Delivery in order, as callers and the service see it: one request of an account at a time, as they were accepted."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.core.delivery import lane_of
from gateway.core.identity.key import BodyPart, ComposedKey, Key
from gateway.core.operation import State
from gateway.store.operations import Query
from tests.support.accepting import SECRETS, Desk, desk
from tests.support.eventually import eventually
from tests.support.house import status_of
from tests.support.http import Response
from tests.support.upstream import Answer

ACCEPTED = (202, "accepted")
MISSING = (400, "order-missing")


def ordered(**order: Any) -> dict[str, Any]:
    return {
        "accept": {"mode": "always"},
        "route": {"order": {"by": "/account"} | order},
        "delivery": {"workers": 1, "schedule": ["100ms"]},
    }


async def send(it: Desk, key: str, account: object, *headers: tuple[str, str]) -> Response:
    return await it.send(key, *headers, body=json.dumps({"account": account, "of": key}).encode())


def received(it: Desk) -> list[str]:
    return [json.loads(request.body)["of"] for request in it.home.upstream.requests]


async def until_received(it: Desk, number: int) -> list[str]:
    async def has_come() -> bool:
        it.clocks.pass_time(0.01, it.home)
        return len(received(it)) >= number

    await eventually(has_come)
    return received(it)


async def test_one_account_in_order_and_another_beside_it(tmp_path: Path) -> None:
    """While the first one runs, or is tried again, the others of its account wait and say so; those of another account
    do not."""
    async with desk(tmp_path, **ordered()) as it:
        hold = asyncio.Event()
        tries = iter([Answer(503, hold=hold), *[Answer(503)] * 3])
        it.home.upstream.on("/charges", lambda each: next(tries, Answer(201)) if b"a1" in each.body else Answer(201))
        assert status_of(await send(it, "a1", "a")) == ACCEPTED
        waiting = [(await send(it, key, "a")).json() for key in ("a2", "a3")]
        assert [(each["waits_for_lane"], each["next_attempt_at"]) for each in waiting] == [(True, None)] * 2
        assert (await send(it, "b1", "b")).json()["waits_for_lane"] is False
        assert sorted(await until_received(it, 2)) == ["a1", "b1"]
        hold.set()
        assert [key for key in await until_received(it, 8) if key != "b1"] == [*["a1"] * 5, "a2", "a3"]


@pytest.mark.parametrize("on_stop", ["stop", "skip"])
async def test_a_dead_letter(tmp_path: Path, on_stop: str) -> None:
    """It stops its account until somebody decides, or is passed, as the route says."""
    async with desk(tmp_path, **ordered(on_stop=on_stop)) as it:
        it.home.upstream.on("/charges", Answer(401), Answer(201))
        first = await send(it, "a1", "a")
        second = await send(it, "a2", "a")
        if on_stop == "stop":

            async def is_dead() -> bool:
                return (await it.see(first.json()["links"]["self"])).json()["state"] == "dead_letter"

            await eventually(is_dead)
            assert (await it.see(second.json()["links"]["self"])).json()["waits_for_lane"] is True
            await it.see(first.json()["links"]["self"], method="DELETE")
        assert await until_received(it, 2) == ["a1", "a2"]


async def test_by_a_header(tmp_path: Path) -> None:
    """Its values are lanes; more than one of them is ambiguous."""
    async with desk(tmp_path, **ordered(by={"header": "X-Account"})) as it:
        hold = asyncio.Event()
        it.home.upstream.on("/charges", Answer(hold=hold))
        assert (await send(it, "a1", 1, ("X-Account", "a"))).json()["waits_for_lane"] is False
        assert (await send(it, "a2", 2, ("X-Account", "a"))).json()["waits_for_lane"] is True
        assert (await send(it, "b1", 3, ("X-Account", "b"))).json()["waits_for_lane"] is False
        assert status_of(await send(it, "c1", 4)) == MISSING
        twice = await send(it, "d1", 5, ("X-Account", "a"), ("X-Account", "b"))
        assert status_of(twice) == (400, "request-invalid")
        hold.set()


@pytest.mark.parametrize("missing", ["refuse", "unordered"])
async def test_a_request_without_the_value(tmp_path: Path, missing: str) -> None:
    """Nothing is stored of it, unless the route wants it without an order."""
    bodies = (b"{}", b'{"account": null}', b'{"account": [1]}', b'{"account": ""}', b"no json")
    async with desk(tmp_path, **ordered(missing=missing) | {"delivery": {"workers": 0}}) as it:
        for number, body in enumerate(bodies):
            response = await it.send(f"k{number}", body=body)
            if missing == "refuse":
                assert status_of(response) == MISSING
                assert "/account of the body" in response.json()["detail"]
            else:
                assert response.json()["waits_for_lane"] is False
        assert it.store.said.count("accept") == (0 if missing == "refuse" else len(bodies))


async def test_callers_have_lanes_of_their_own(tmp_path: Path) -> None:
    """One caller's account is not another's; one account is the same as a number and as a text, and none in a spelling
    that another program would not choose."""
    async with desk(tmp_path, **ordered() | {"delivery": {"workers": 0}}) as it:
        assert (await it.home.send("e", tenant="t2", body=b'{"account": "1"}')).json()["waits_for_lane"] is False
        for key, account, waits in (
            ("a", "1", False),
            ("b", 2, False),
            ("f", "1", True),
            ("g", 1, True),
            ("h", "2", True),
        ):
            assert (await send(it, key, account)).json()["waits_for_lane"] is waits
        for account in (1.0, True):
            assert status_of(await send(it, "k", account)) == MISSING


async def test_doubt_is_not_passed(tmp_path: Path) -> None:
    """Also where dead letters are: what comes after it waits, and a repeat of what waits gets its status. A request
    with a meaning only now would pass those that wait, and is refused."""
    async with desk(tmp_path, **ordered(on_stop="skip") | {"delivery": {"workers": 0}}) as it:
        await send(it, "a1", "a")
        await it.drive("dispatch", "abandon")
        for _ in range(2):
            response = await send(it, "a2", "a")
            assert status_of(response) == ACCEPTED
            assert response.json()["waits_for_lane"] is True
        assert (await it.record(State.IN_DOUBT)).record is not None
        assert status_of(await send(it, "a3", "a", ("If-Match", '"1"'))) == MISSING
        assert it.home.upstream.requests == []


async def test_a_lane_shows_no_guess_of_its_account(tmp_path: Path) -> None:
    """With an identity key, whoever has the table cannot compute the lane of an account."""
    found = []
    encryption = {"encryption": SECRETS["encryption"]}
    for name, secrets in (("clear", encryption), ("keyed", SECRETS)):
        (tmp_path / name).mkdir()
        async with desk(tmp_path / name, **{**ordered(), "secrets": secrets, "delivery": {"workers": 0}}) as it:
            assert status_of(await send(it, "a1", "a")) == ACCEPTED
            (snapshot,) = await it.home.gateway._store.cold.find(Query(frozenset((State.ACCEPTED,))))
            record = snapshot.record
            assert record is not None
            assert record.delivery is not None
            account = ComposedKey((BodyPart(("account",)),)).find_key({}, b'{"account": "a"}')
            assert isinstance(account, Key)
            identity = record.identity
            guess = lane_of("shop", identity.operation, identity.scope_digest, account.digest)
            found.append(record.delivery.lane == guess)
    assert found == [True, False]
