"""Every row of the verdict table, over HTTP, on every store."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support import http
from tests.support.eventually import eventually
from tests.support.house import BODY, house, neighbour, sqlite_store, status_of
from tests.support.upstream import Answer, Ending

Store = dict[str, Any]


@pytest.mark.parametrize("host", ["preserve", "upstream", "shop.test:8080"])
async def test_a_route_of_the_host_that_is_forwarded_is_not_passed_by(tmp_path: Path, host: str) -> None:
    """HTTP/1.0 needs no `Host`: one that names none is protected as the host that the service gets to see."""
    store = sqlite_store(tmp_path)
    name = "shop.test" if host == "shop.test:8080" else "127.0.0.1"
    route = {"match": {"path": "/charges", "host": name}}
    data = b"POST /charges HTTP/1.0\r\nX-Tenant: t1\r\nIdempotency-Key: k1\r\nContent-Length: 2\r\n\r\n{}"
    async with house(store, tmp_path, route=route, upstream={"host": host}) as home:
        answers = [await http.exchange(home.port, data, method="POST") for _ in range(2)]
        assert [status_of(answer) for answer in answers] == [(200, "stored"), (200, "replayed")]
        assert len(home.upstream.requests) == 1


async def test_rule_1_and_4_what_no_route_protects_passes(sqlite: Store, tmp_path: Path) -> None:
    """What no route matches, and what needs no key and has none, is forwarded each time."""
    key = {"header": "Idempotency-Key", "required": False}
    async with house(sqlite, tmp_path, route={"key": key}) as home:
        for key, target, verdict in (("k1", "/other", None), (None, "/charges", "unkeyed")):
            for _ in range(2):
                assert status_of(await home.send(key, target=target)) == (200, verdict)
        assert len(home.upstream.requests) == 4


TOKEN = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl"
BY_CREDENTIAL: dict[str, Any] = {"scope": {"api_key": "Authorization"}}
BEARER = ("Authorization", f"Bearer {TOKEN}")


@pytest.mark.parametrize(
    ("route", "sent", "refused", "detail"),
    [
        pytest.param({}, {"headers": [("X-Tenant", "t2")]}, (400, "request-invalid"), "X-Tenant", id="two-tenants"),
        pytest.param(
            {"key": {"header": "X-Order-Key", "required": True}}, {"key": None}, (400, "key-missing"),
            "X-Order-Key is missing. This operation needs", id="no-key",
        ),
        pytest.param({}, {"tenant": None}, (400, "scope-missing"), "", id="no-tenant"),
        pytest.param(BY_CREDENTIAL, {}, (401, "scope-missing"), "", id="no-credential"),
        pytest.param(BY_CREDENTIAL, {"headers": [BEARER]}, (400, "scope-unsuitable"), "", id="expiring-credential"),
        pytest.param({"body": {"max_bytes": 16, "spool_over": 8}}, {}, (413, "body-too-large"), "", id="long-body"),
        pytest.param({}, {"key": "a key"}, (400, "key-invalid"), "a space at position 2", id="space-in-key"),
        pytest.param({}, {"key": "a,b"}, (400, "key-invalid"), "comma", id="comma-in-key"),
        pytest.param({}, {"key": "x" * 256}, (400, "key-invalid"), "255", id="long-key"),
        pytest.param({}, {"key": '"open'}, (400, "key-invalid"), "quoted", id="unterminated-key"),
        pytest.param({}, {"key": ""}, (400, "key-invalid"), "empty", id="empty-key"),
    ],
)  # fmt: skip
async def test_rules_2_to_7_refuse_before_anything_is_sent(
    sqlite: Store, tmp_path: Path, route: dict[str, Any], sent: dict[str, Any], refused: tuple[int, str], detail: str
) -> None:
    """Each names its fault, and none repeats a credential."""
    async with house(sqlite, tmp_path, route=route) as home:
        response = await home.send(**sent)
        assert status_of(response) == refused
        assert (response.header("WWW-Authenticate") is not None) == (response.status == 401)
        assert (response.json()["code"], response.json()["retryable"]) == (refused[1], False)
        assert detail in response.json()["detail"]
        assert TOKEN.encode() not in response.body
        assert home.upstream.requests == []


async def test_rule_2_a_field_that_the_service_would_not_see(tmp_path: Path) -> None:
    """A compared field, or one that some services take for method or target, is the same to them as here, and makes
    another request."""
    store, version = sqlite_store(tmp_path), ("Api-Version", "2")
    delete, refund = ("X-HTTP-Method-Override", "DELETE"), ("X-Original-URL", "/refunds")
    hiding = [("Connection", delete[0]), ("X_HTTP_Method_Override", "PUT"), ("X_HTTP-Method", "PUT")]
    hiding += [("Connection", refund[0]), ("X_Rewrite_URL", "/refunds")]
    async with house(store, tmp_path, route={"fingerprint": {"headers": ["Api-Version"]}}) as home:
        for one, others in ((version, [("Connection", "Api-Version"), ("Api_Version", "3")]), (delete, hiding)):
            for other in others:
                assert status_of(await home.send(headers=(one, other))) == (400, "request-invalid")
        assert status_of(await home.send(headers=(version, delete))) == (200, "stored")
        assert status_of(await home.send(headers=(version, delete))) == (200, "replayed")
        put, twice = ("X-HTTP-Method-Override", "PUT"), ("X-HTTP-Method", "DELETE")
        for headers in ((version,), (delete,), (version, put), (version, delete, twice), (version, delete, refund)):
            assert status_of(await home.send(headers=headers)) == (422, "key-reused")
        assert [request.values("Api-Version") for request in home.upstream.requests] == [[b"2"]]


async def test_rule_6_body_too_large(sqlite: Store, tmp_path: Path) -> None:
    """A body over the limit is refused also where nobody announced its length."""
    async with house(sqlite, tmp_path, route={"body": {"max_bytes": 16, "spool_over": 8}}) as home:
        head = b"POST /charges HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k1\r\nX-Tenant: t1\r\n"
        chunks = b"Transfer-Encoding: chunked\r\n\r\n20\r\n" + b"x" * 32 + b"\r\n0\r\n\r\n"
        assert status_of(await http.exchange(home.port, head + chunks)) == (413, "body-too-large")
        assert home.upstream.requests == []


async def test_rule_9_key_reused(store: Store, tmp_path: Path) -> None:
    """A different request under a used key is refused in every state that a record can be in."""
    async with house(store, tmp_path, route={"in_flight": {"wait": "0s"}}) as home:
        first, hold = await home.begin()
        assert status_of(await home.send("k1", b"other")) == (422, "key-reused")
        hold.set()
        await first
        response = await home.send("k1", b"other")
        assert status_of(response) == (422, "key-reused")
        assert response.json()["title"] == "Idempotency-Key is already used"
        assert response.header("x-should-retry") == "false"
        home.upstream.on("/charges", Answer(status=503))
        assert status_of(await home.send("k2")) == (503, "released")
        assert status_of(await home.send("k2", b"other")) == (422, "key-reused")
        home.upstream.on("/charges", Answer(bytes_max=0, ending=Ending.CLOSE))
        assert status_of(await home.send("k3")) == (502, "in-doubt")
        assert status_of(await home.send("k3", b"other")) == (422, "key-reused")
        assert len(home.upstream.requests) == 3


async def test_rule_10_replayed(store: Store, tmp_path: Path) -> None:
    """A hundred retries in a row: it ran once, and ninety-nine replays are equal to the first answer."""
    async with house(store, tmp_path) as home:
        home.upstream.on(
            "/charges",
            Answer(201, "Made", headers=(("X-A", "1"), ("x-a", "2"), ("Location", "/c/1")), body=b"\0\xff{}"),
        )
        first = await home.send("k1")
        assert status_of(first) == (201, "stored")
        for _ in range(99):
            again = await home.send("k1")
            assert status_of(again) == (201, "replayed")
            assert again.header("Idempotent-Replayed") == "true"
            assert (again.reason, again.body) == (b"Made", first.body)
            assert again.header("Idempotency-Expires") == first.header("Idempotency-Expires") is not None
            assert lasting(again.headers) == lasting(first.headers)
        assert len(home.upstream.requests) == 1


def lasting(headers: http.Headers) -> http.Headers:
    """Without what is said of each answer: its moment, and how it came about."""
    own = {b"date", b"idempotency-status", b"idempotent-replayed"}
    return [field for field in headers if field[0].lower() not in own]


async def test_rule_11_response_not_stored(store: Store, tmp_path: Path) -> None:
    """What was too large to keep is delivered once, and remembered with its status and place."""
    async with house(store, tmp_path, route={"response": {"max_stored_bytes": 8}}) as home:
        home.upstream.on("/charges", Answer(201, headers=(("Location", "/c/1"),), body=b"x" * 9))
        first = await home.send("k1")
        assert (status_of(first), first.body) == ((201, "response-not-stored"), b"x" * 9)
        again = await home.send("k1")
        assert status_of(again) == (409, "response-not-stored")
        assert "201" in again.json()["detail"]
        assert "/c/1" in again.json()["detail"]
        assert again.header("x-should-retry") == "false"
        assert len(home.upstream.requests) == 1


async def test_rule_12_key_expired(store: Store, tmp_path: Path) -> None:
    """After its replay window an answer is gone and its key is not: nothing runs again."""
    async with house(store, tmp_path, route={"retention": {"replay": "1s", "remember": "1h"}}) as home:
        assert status_of(await home.send("k1")) == (200, "stored")

        async def expired() -> bool:
            return status_of(await home.send("k1"))[1] == "key-expired"

        await eventually(expired)
        gone = await home.send("k1")
        assert (status_of(gone), gone.json()["retryable"]) == ((410, "key-expired"), False)
        assert len(home.upstream.requests) == 1


async def test_rule_13_in_flight(store: Store, tmp_path: Path) -> None:
    """A duplicate of a running request waits as long as it is told, here and in another gateway."""
    route = {"in_flight": {"wait": "0s"}}
    async with house(store, tmp_path, route=route) as home:
        first, hold = await home.begin()
        async with neighbour(store, tmp_path / "n", home.upstream, route=route) as other:
            for house_ in (home, other):
                response = await house_.send("k1")
                assert status_of(response) == (409, "in-flight")
                assert int(response.header("Retry-After") or 0) >= 1
                assert response.json()["retryable"] is True
            waiting = [asyncio.create_task(each.send("k1", headers=[("Prefer", "wait=20")])) for each in (home, other)]
            await eventually(lambda: home.gateway.coordinator.waiters == other.gateway.coordinator.waiters == 1)
            hold.set()
            assert status_of(await first) == (200, "stored")
            for response in await asyncio.gather(*waiting):
                assert status_of(response) == (200, "replayed")
                assert response.header("Preference-Applied") == "wait=20"
        assert len(home.upstream.requests) == 1


async def test_rule_14_in_doubt(store: Store, tmp_path: Path) -> None:
    """What is in doubt stays so: no retry runs it again, and nobody is told to repeat it."""
    async with house(store, tmp_path) as home:
        home.upstream.on("/charges", Answer(bytes_max=10, ending=Ending.RESET), Answer())
        assert status_of(await home.send("k1")) == (502, "in-doubt")
        for _ in range(3):
            response = await home.send("k1")
            assert status_of(response) == (409, "in-doubt")
            assert response.header("x-should-retry") == "false"
            assert response.json()["operation_id"] in response.json()["detail"]
        assert len(home.upstream.effects) == 1


async def test_rule_15_herd(store: Store, tmp_path: Path) -> None:
    """A hundred simultaneous duplicates through two gateways: one request upstream, a hundred equal answers."""
    route = {"in_flight": {"wait": "20s"}}
    async with house(store, tmp_path, route=route) as home:
        hold = asyncio.Event()
        home.upstream.on("/charges", Answer(201, hold=hold, body=b"once"))
        async with neighbour(store, tmp_path / "n", home.upstream, route=route) as other:
            tasks = [asyncio.create_task((home, other)[number % 2].send("k1")) for number in range(100)]
            await home.upstream.wait_for_requests(1)
            hold.set()
            responses = await asyncio.gather(*tasks)
        assert {(response.status, response.body) for response in responses} == {(201, b"once")}
        words = [status_of(response)[1] for response in responses]
        assert sorted(words) == ["replayed"] * 99 + ["stored"]
        assert len(home.upstream.requests) == 1


async def test_scopes_never_meet(store: Store, tmp_path: Path) -> None:
    async with house(store, tmp_path) as home:
        first, second = await home.send("k1", tenant="t1"), await home.send("k1", tenant="t2")
        assert status_of(first) == status_of(second) == (200, "stored")
        assert first.header("X-Nonce") != second.header("X-Nonce")
        again = await home.send("k1", tenant="t2")
        assert (status_of(again)[1], again.header("X-Nonce")) == ("replayed", second.header("X-Nonce"))


async def test_body_key_before_scope(sqlite: Store, tmp_path: Path) -> None:
    """A key in the body is one like any other, and its absence is a missing key."""
    route = {"key": {"body": "/id", "required": True}}
    async with house(sqlite, tmp_path, route=route) as home:
        assert status_of(await home.send(None, b'{"id":"a"}')) == (200, "stored")
        assert status_of(await home.send(None, b'{"id":"a"}')) == (200, "replayed")
        assert status_of(await home.send(None, b'{"id":"a","b":1}')) == (422, "key-reused")
        assert status_of(await home.send(None, b"{}")) == (400, "key-missing")
        assert status_of(await home.send(None, b'{"id":[]}')) == (400, "key-invalid")


async def test_waiters_are_bounded(sqlite: Store, tmp_path: Path) -> None:
    """More duplicates than may wait are answered at once, and none of them is forwarded."""
    async with house(sqlite, tmp_path, route={"in_flight": {"wait": "20s", "max_waiters": 2}}) as home:
        first, hold = await home.begin()
        tasks = [asyncio.create_task(home.send("k1")) for _ in range(5)]
        await eventually(lambda: sum(task.done() for task in tasks) == 3)
        hold.set()
        assert status_of(await first) == (200, "stored")
        words = sorted(str(status_of(response)[1]) for response in await asyncio.gather(*tasks))
        assert words == ["in-flight"] * 3 + ["replayed"] * 2
        assert len(home.upstream.requests) == 1


@pytest.mark.parametrize("choice", ["refuse", "forward"])
async def test_rule_8_store_unavailable(tmp_path: Path, choice: str) -> None:
    """Without the durable store nothing new is executed, or visibly without protection; other traffic goes on."""
    nowhere = {"durable": "postgresql://gateway@127.0.0.1:1/gateway"}
    async with house(nowhere, tmp_path, route={"store_unavailable": choice}) as home:
        assert status_of(await home.send(target="/other")) == (200, None)
        response = await home.send("k1")
        if choice == "refuse":
            assert status_of(response) == (503, "store-unavailable")
            assert response.header("Retry-After") == "1"
            assert "Nothing was executed" in response.json()["detail"]
        else:
            assert status_of(response) == (200, "unprotected")
            assert home.upstream.requests[-1].body == BODY
        assert len(home.upstream.requests) == (1 if choice == "refuse" else 2)


async def test_status_header_can_be_switched_off(sqlite: Store, tmp_path: Path) -> None:
    """A route may keep its words to itself; the fact of a replay stays visible."""
    async with house(sqlite, tmp_path, route={"status_header": False}) as home:
        assert status_of(await home.send("k1")) == (200, None)
        again = await home.send("k1")
        assert (status_of(again), again.header("Idempotent-Replayed")) == ((200, None), "true")
