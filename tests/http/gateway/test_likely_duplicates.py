"""A caller that sends one request under several keys, and one that sends several requests under one key."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

from tests.http.gateway.asking import metric
from tests.support.accepting import ASYNC, SECRETS
from tests.support.eventually import eventually
from tests.support.house import BODY, House, house, neighbour, status_of

Store = dict[str, Any]

REFUSED = (409, "likely-duplicate")
REFUSE: dict[str, Any] = {"repeats": {"action": "refuse"}, "in_flight": {"wait": "0s"}}
DISTINCT = ("Idempotency-Distinct", "true")
KEYED = {"fingerprint_key": {"id": "k1", "key": "0123456789abcdef0123456789abcdef"}}


async def test_who_means_it_says_so(sqlite: Store, tmp_path: Path) -> None:
    """Another content, another caller, and a request that says it is meant are executed; a retry is replayed. Who is
    refused learns which request has the content."""
    async with house(sqlite, tmp_path, route=REFUSE) as home:
        for key, changes, expected in (
            ("k1", {}, (200, "stored")),
            ("k2", {"body": b'{"amount":1}'}, (200, "stored")),
            ("k1", {"tenant": "t2"}, (200, "stored")),
            ("k3", {}, REFUSED),
            ("k3", {"headers": [DISTINCT]}, (200, "stored")),
            ("k3", {}, (200, "replayed")),
            ("k1", {}, (200, "replayed")),
            ("k4", {"headers": [DISTINCT, DISTINCT]}, REFUSED),
            ("k4", {"headers": [("Idempotency-Distinct", "yes")]}, REFUSED),
            ("k4", {"headers": [("Idempotency-Distinct", "")]}, REFUSED),
        ):
            response = await home.send(key, **changes)
            assert status_of(response) == expected, (key, changes)
        assert len(home.upstream.requests) == 4
        (first,) = home.upstream.requests[0].values("Idempotency-Operation")
        problem = response.json()
        assert problem["first_operation"] == first.decode() != problem["operation_id"]
        assert problem["first_operation"] in problem["detail"]
        assert problem["retryable"] is False
        assert await metric(home, "repeats_total", result="refused") == 4


async def test_a_business_key(sqlite: Store, tmp_path: Path) -> None:
    """By values of the body: whatever else differs, the second is a repeat; without one of the values, none is."""
    route = {"repeats": {"by": ["/account", "/reference"], "action": "refuse"}}
    async with house(sqlite, tmp_path, route=route) as home:

        async def send(key: str, **members: Any) -> tuple[int, str | None]:
            return status_of(await home.send(key, json.dumps(members).encode()))

        assert await send("k1", account="a", reference=7, sent="12:00") == (200, "stored")
        assert await send("k2", account="a", reference=7, sent="12:01") == REFUSED
        assert await send("k3", account="a", reference="7") == (200, "stored")
        assert await send("k4", account="b", reference=7) == (200, "stored")
        for number, lacking in enumerate(({"account": "a"}, {"account": "a", "reference": None})):
            assert await send(f"k5{number}", **lacking) == (200, "stored")
            assert await send(f"k6{number}", **lacking) == (200, "stored")
        assert await metric(home, "repeats_total", result="incomparable") == 4


async def test_accepted_requests_hold_their_content(store: Store, tmp_path: Path) -> None:
    """What was accepted and waits is held like what is executed at once, and what is called off is free: its own retry
    then takes it again."""
    route = {**REFUSE, "accept": {"identity": "unverified"}}
    async with house(store, tmp_path, route=route, secrets=SECRETS, delivery={"workers": 0}) as home:
        accepted = await asyncio.gather(*(home.send(f"k{n}", headers=[ASYNC]) for n in range(12)))
        assert Counter(map(status_of, accepted)) == {(202, "accepted"): 1, REFUSED: 11}
        ((key, first),) = [(f"k{n}", each.json()) for n, each in enumerate(accepted) if each.status == 202]
        for caller in ([ASYNC], []):
            refused = await home.send("late", headers=caller)
            assert (status_of(refused), refused.json()["first_operation"]) == (REFUSED, first["id"])
        off = await home.send(None, b"", target=first["links"]["self"], method="DELETE")
        assert off.status == 200
        assert status_of(await home.send("late", headers=[ASYNC])) == (202, "accepted")
        assert status_of(await home.send(key, headers=[ASYNC])) == REFUSED
        assert home.upstream.requests == []


async def test_repeats_are_counted_and_executed(store: Store, tmp_path: Path) -> None:
    """Where repeats are counted, all are executed; each but the first is counted, over two gateways where they share a
    Redis."""
    route = {"repeats": {}}
    async with (
        house(store, tmp_path, route=route) as home,
        neighbour(store, tmp_path / "other", home.upstream, route=route) as other,
    ):
        for number in range(3):
            assert status_of(await home.send(f"k{number}")) == (200, "stored")
        assert status_of(await home.send("k0")) == (200, "replayed")
        assert status_of(await home.send("k3", headers=[DISTINCT])) == (200, "stored")
        assert await metric(home, "repeats_total", result="counted") == 2
        assert status_of(await other.send("k4")) == (200, "stored")
        if "fast" in store:
            await eventually(lambda: metric(other, "repeats_total", result="counted"))
        assert await metric(other, "repeats_total", result="counted") == ("fast" in store)


async def test_a_mismatch_is_explained(sqlite: Store, tmp_path: Path) -> None:
    """422 says in what the request differs from the recorded one, in flight and completed; after a restart, too."""
    route = {"fingerprint": {"explain": True, "headers": ["Api-Version"]}, "in_flight": {"wait": "0s"}}
    async with house(sqlite, tmp_path, route=route, secrets=KEYED) as home:

        async def differs(at: House, body: bytes = BODY, **options: Any) -> Any:
            response = await at.send("k1", body, **options)
            assert status_of(response) == (422, "key-reused")
            return response.json().get("differs")

        first, hold = await home.begin()
        assert await differs(home, BODY.replace(b"1000", b"1001")) == ["body", "body:/amount"]
        hold.set()
        await first
        assert await differs(home, headers=[("Api-Version", "2")]) == ["header:api-version"]
        assert await differs(home, target="/charges?x=1") == ["target"]
        async with neighbour(sqlite, tmp_path / "other", home.upstream, route=route, secrets=KEYED) as other:
            assert await differs(other, b"[]") == ["body"]
            assert await differs(other, b'{"\\ud800":1}') == ["body"]
            assert status_of(await other.send("k1")) == (200, "replayed")
        assert len(home.upstream.requests) == 1
