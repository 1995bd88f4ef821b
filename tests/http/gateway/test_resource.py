"""What a record knows of what was made, over HTTP: the resource, replay by reading, versions, outcomes by body."""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.http.gateway.asking import metric
from tests.support.eventually import eventually
from tests.support.house import BODY, house, neighbour, status_of
from tests.support.sentinel import Sentinel
from tests.support.upstream import Answer, Ending, RecordingUpstream

Store = dict[str, Any]
JSON = ("Content-Type", "application/json")
MADE = b'{"id":"pay_7","status":"succeeded"}'
BY_ID = {"reference": "/id"}
FETCHED = {"replay": "fetch"}
FETCHED_BY_ID = {**BY_ID, **FETCHED, "fetch": "/v1/payments/{reference}"}


def made(status: int = 201, body: bytes = MADE, *headers: tuple[str, str], **how: Any) -> Answer:
    return Answer(status, headers=(JSON, *headers), body=body, **how)


@pytest.mark.parametrize(
    ("reference", "answer", "resource", "location"),
    [
        ("/id", made(), "pay_7", None),
        ("/links/self", made(201, b'{"links":{"self":"/v1/payments/7"}}'), "/v1/payments/7", "/v1/payments/7"),
        ("location", made(201, MADE, ("Location", "/v1/payments/7")), "/v1/payments/7", "/v1/payments/7"),
        ("/id", made(201, gzip.compress(MADE), ("Content-Encoding", "gzip")), "pay_7", None),
        ("/id", made(201, b'{"id":"' + b"x" * 100_000 + b'"}'), None, None),
        ("/id", made(201, b'{"id":"a\\r\\nSet-Cookie: a=b"}'), None, None),
        ("/id", made(201, b"<html>"), None, None),
        ("location", made(201, MADE, ("Location", "/a"), ("Location", "/b")), None, None),
    ],
    ids=["member", "path-in-body", "location", "gzip", "too-long", "line-break", "no-json", "two-locations"],
)
async def test_resource_of_a_response_that_is_not_kept(
    sqlite: Store, tmp_path: Path, reference: str, answer: Answer, resource: str | None, location: str | None
) -> None:
    """A repeat is told what was made, and as `Location` where that is an address; nothing hostile is passed on."""
    route = {"response": {"max_stored_bytes": 0, "reference": reference}}
    async with house(sqlite, tmp_path, route=route) as home:
        home.upstream.on("/charges", answer)
        first = await home.send()
        assert (status_of(first), first.body) == ((201, "response-not-stored"), answer.body)
        again = await home.send()
        assert status_of(again) == (409, "response-not-stored")
        assert again.json().get("resource") == resource
        assert again.header("Location") == location
        assert len(home.upstream.requests) == 1


async def test_resource_is_kept_by_every_store(store: Store, tmp_path: Path) -> None:
    """Of a completed operation and of one in doubt, whatever keeps it, also where no more than the head of the response
    arrived; another request under the key is not told."""
    route = {"response": BY_ID, "outcome": {"preset": "standard", "in_doubt": [202]}}
    cut = made(201, b" " * 1000, ("Location", "/v1/payments/7"), bytes_max=600, ending=Ending.CLOSE)
    async with house(store, tmp_path, route=route) as home:
        home.upstream.on("/charges", made(202, b'{"id":"pay_8"}'), made())
        assert status_of(await home.send("doubted")) == (202, "in-doubt")
        doubted = await home.send("doubted")
        assert (status_of(doubted), doubted.json()["resource"]) == ((409, "in-doubt"), "pay_8")
        assert status_of(await home.send("made")) == (201, "stored")
        replayed = await home.send("made")
        assert (status_of(replayed), replayed.body) == ((201, "replayed"), MADE)
        other = await home.send("doubted", b'{"amount":1}')
        assert (status_of(other), "resource" in other.json()) == ((422, "key-reused"), False)
    async with house(store, tmp_path, route={"identity_change": "accept"}) as home:
        home.upstream.on("/charges", cut)
        lost, again = await home.send("cut"), await home.send("cut")
        assert (status_of(lost), lost.json()["resource"]) == ((502, "in-doubt"), "/v1/payments/7")
        assert (status_of(again), again.header("Location")) == ((409, "in-doubt"), "/v1/payments/7")


# -- replay by reading -------------------------------------------------------------------------------------------------


async def test_a_repeat_is_fetched_by_its_own_caller(sqlite: Store, tmp_path: Path) -> None:
    """With the caller's own headers, but those that were about the first request; nothing runs again, and nothing of
    either response is in any file."""
    sentinel = Sentinel("Zqxjkvbpyw")
    secret, body = (
        ("X-Secret", sentinel.text),
        b'{"id":"pay_7","status":"refunded","card":"%s"}' % sentinel.text.encode(),
    )
    async with house(sqlite, tmp_path, route={"response": FETCHED_BY_ID}) as home:
        home.upstream.on("/charges", made(201, body, secret))
        home.upstream.on("/v1/payments/pay_7", made(200, body, secret, ("X-Fresh", "yes")))
        conditions = [("If-None-Match", '"1"'), ("Range", "bytes=0-1")]
        assert status_of(await home.send(headers=conditions)) == (201, "response-not-stored")
        own = [("Authorization", "Bearer renewed"), ("Accept-Language", "de")]
        about = [("Content-Language", "en"), ("Prefer", "return=minimal")]
        again = await home.send(headers=[*conditions, *own, *about])
        assert (status_of(again), again.json()["status"]) == ((200, "fetched"), "refunded")
        assert (again.header("X-Fresh"), again.header("Idempotent-Replayed")) == ("yes", None)
        fetch = home.upstream.requests[-1]
        assert (fetch.method, fetch.target, fetch.body) == ("GET", b"/v1/payments/pay_7", b"")
        for name, value in (*own, ("X-Tenant", "t1")):
            assert fetch.values(name) == [value.encode()], name
        gone = (
            "Content-Type",
            "Content-Length",
            *(f"Idempotency-{name}" for name in ("Key", "Operation", "Fencing-Token")),
        )
        for name in (*gone, *dict(conditions + about)):
            assert fetch.values(name) == [], name
        assert status_of(await home.send(body=b"{}")) == (422, "key-reused")
        assert [each.method for each in home.upstream.requests] == ["POST", "GET"]
        assert await metric(home, "fetch_duration_seconds_count", route="charge") == 1
        assert await sentinel.found(tmp_path) == []


async def test_a_reference_stays_in_its_segment(sqlite: Store, tmp_path: Path) -> None:
    """Whatever a service calls what it made, it cannot lead to another path."""
    async with house(sqlite, tmp_path, route={"response": FETCHED_BY_ID}) as home:
        home.upstream.on(None, made(200))
        for number, (resource, target) in enumerate(
            (
                ("a/b?c#d%e", b"/v1/payments/a%2Fb%3Fc%23d%25e"),
                ("\u00e9 x", b"/v1/payments/%C3%A9%20x"),
                ("..", None),
                ("../admin", None),
            )
        ):
            home.upstream.on("/charges", made(201, json.dumps({"id": resource}).encode()))
            home.upstream.requests.clear()
            await home.send(f"k{number}")
            again = await home.send(f"k{number}")
            assert status_of(again) == ((409, "response-not-stored") if target is None else (200, "fetched"))
            assert [each.target for each in home.upstream.requests[1:]] == ([] if target is None else [target])


async def test_a_fetch_that_fails(sqlite: Store, tmp_path: Path) -> None:
    """What the service says of it to this caller is the reply, and 502 with what was made where it is gone or breaks
    off. The next repeat is fetched as well; the record stays, and nothing runs."""
    refusals = (401, 403, 404, 410, 500, 503)
    route = {"response": FETCHED_BY_ID}
    async with RecordingUpstream() as upstream, neighbour(sqlite, tmp_path, upstream, route=route) as home:
        upstream.on("/charges", made())
        answers = [made(status, b"no") for status in refusals]
        upstream.on("/v1/payments/pay_7", *answers, made(bytes_max=0, ending=Ending.RESET))
        await home.send()
        for status in refusals:
            refused = await home.send()
            assert (status_of(refused), refused.body) == ((status, "fetched"), b"no")
        lost = await home.send()
        assert (status_of(lost), lost.json()["resource"]) == ((502, "upstream-unreachable"), "pay_7")
        assert lost.json()["retryable"] is True
        await upstream.__aexit__(None, None, None)
        assert status_of(await home.send()) == (502, "upstream-unreachable")
        async with RecordingUpstream(port=upstream.port) as back:
            back.on("/v1/payments/pay_7", made(200))
            assert status_of(await home.send()) == (200, "fetched")
            assert [each.method for each in upstream.requests + back.requests] == ["POST", *["GET"] * 8]


async def test_who_waited_for_the_first_request_fetches_for_himself(sqlite: Store, tmp_path: Path) -> None:
    """No two callers share what the service authorises: each gets its own, once the first response is recorded."""
    async with house(sqlite, tmp_path, route={"response": FETCHED_BY_ID}) as home:
        home.upstream.on("/v1/payments/pay_7", made(200))
        first, hold = await home.begin(answer=made())
        waiting = [
            asyncio.create_task(home.send(headers=[("Authorization", f"Bearer {number}")])) for number in range(3)
        ]
        await eventually(lambda: home.gateway.coordinator.waiters == 3, what="all wait")
        hold.set()
        assert status_of(await first) == (201, "response-not-stored")
        assert {status_of(each) for each in await asyncio.gather(*waiting)} == {(200, "fetched")}
        fetches = [each.values("Authorization") for each in home.upstream.requests if each.method == "GET"]
        assert sorted(fetches) == [[b"Bearer 0"], [b"Bearer 1"], [b"Bearer 2"]]
        assert len(home.upstream.effects) - len(fetches) == 1


# -- versions ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["replay", "gone"])
async def test_another_version_by_a_header(sqlite: Store, tmp_path: Path, change: str) -> None:
    """A repeat that expects another version, or says none, gets the first response or 410; nothing runs again. To a
    gateway whose route is of another version all that came before is of another one."""
    response = {**BY_ID, "version": {"header": "API-Version"}, "on_version_change": change}
    async with house(sqlite, tmp_path, route={"response": response}) as home:
        home.upstream.on("/charges", made())
        second = [("API-Version", "2")]
        for verdict in ("stored", "replayed"):
            assert status_of(await home.send(headers=second)) == (201, verdict)
        for other in ([("API-Version", "3")], []):
            again = await home.send(headers=other)
            if change == "replay":
                assert (status_of(again), again.body) == ((201, "replayed"), MADE)
            else:
                assert (status_of(again), again.json()["resource"]) == ((410, "key-expired"), "pay_7")
                assert "another version" in again.json()["detail"]
        assert status_of(await home.send(headers=second)) == (201, "replayed")
        for version, verdict in (("v2", (201, "stored")), ("v3", (410, "key-expired"))):
            route = {"response": {**BY_ID, "version": version, "on_version_change": "gone"}}
            async with neighbour(sqlite, tmp_path / version, home.upstream, route=route) as later:
                gone = await later.send()
                assert (status_of(gone), gone.json()["resource"]) == ((410, "key-expired"), "pay_7")
                assert status_of(await later.send("v2")) == verdict
        assert len(home.upstream.requests) == 2


async def test_the_result_of_another_version(sqlite: Store, tmp_path: Path) -> None:
    """Of an accepted operation, too: 410 for another version, and the response for who names none or the same one."""
    response = {"version": {"header": "API-Version"}, "on_version_change": "gone"}
    route = {"response": response, "accept": {"identity": "unverified"}}
    secrets = {"encryption": [{"id": "a", "key": "a1" * 32}]}
    async with house(sqlite, tmp_path, route=route, secrets=secrets) as home:
        home.upstream.on("/charges", made())
        accepted = await home.send("k2", headers=[("API-Version", "2"), ("Prefer", "respond-async")])
        target = f"{accepted.header('Location')}/result"
        wait = ("Prefer", "wait=20")
        for headers, expected in (
            ([wait], (201, "replayed")),
            ([wait, ("API-Version", "2")], (201, "replayed")),
            ([wait, ("API-Version", "3")], (410, "key-expired")),
        ):
            seen = await home.send(None, b"", target=target, method="GET", headers=headers)
            assert status_of(seen) == expected
        route = {**route, "response": {"version": "v9", "on_version_change": "gone"}}
        async with neighbour(sqlite, tmp_path / "next", home.upstream, route=route, secrets=secrets) as later:
            seen = await later.send(None, b"", target=target, method="GET")
            assert status_of(seen) == (410, "key-expired")
            assert "another version" in seen.json()["detail"]


# -- outcomes by body --------------------------------------------------------------------------------------------------

WHEN = [
    {"status": [200], "where": {"/status": ["pending"]}, "is": "in_doubt"},
    {"status": ["4xx"], "where": {"/error/code": ["try_again"]}, "is": "retryable"},
    {"status": [503], "where": {"/error/code": ["declined"]}, "is": "final"},
]


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (made(200, b'{"status":"pending"}'), "in-doubt"),
        (made(200, b'{"status":"succeeded"}'), "stored"),
        (made(400, b'{"error":{"code":"try_again"}}'), "released"),
        (made(503, b'{"error":{"code":"declined"}}'), "stored"),
        (made(401, b'{"error":{"code":"try_again"}}'), "released"),
        (made(200, gzip.compress(b'{"status":"pending"}'), ("Content-Encoding", "gzip")), "in-doubt"),
        (made(200, b'{"status":"pending"'), "stored"),
        (made(200, b'{"status":"pending","x":"' + b"x" * (1 << 20) + b'"}'), "response-not-stored"),
        (made(200, b'{"status":"pending"}', ("Idempotency-Outcome", "final")), "stored"),
    ],
    ids=["doubt", "no-match", "retryable", "final", "at-the-door", "gzip", "cut-json", "too-long", "said-by-header"],
)
async def test_outcome_by_body(sqlite: Store, tmp_path: Path, answer: Answer, verdict: str) -> None:
    """What the body says decides before the status does, after what the service says of the response by header."""
    async with house(sqlite, tmp_path, route={"outcome": {"preset": "standard", "when": WHEN}}) as home:
        home.upstream.on("/charges", answer)
        response = await home.send()
        assert (status_of(response), response.body) == ((answer.status, verdict), answer.body)
        again = await home.send()
        expected = {"in-doubt": "in-doubt", "released": "released", "stored": "replayed"}
        assert status_of(again)[1] == expected.get(verdict, verdict)
        assert len(home.upstream.requests) == 1 + (verdict == "released")


# -- defaults in the fingerprint ---------------------------------------------------------------------------------------


async def test_an_absent_member_counts_as_its_default(sqlite: Store, tmp_path: Path) -> None:
    """In both directions, also within what is absent; another value is another request."""
    defaults = {"/channel": "web", "/meta/attempt": 1}
    async with house(sqlite, tmp_path, route={"fingerprint": {"defaults": defaults}}) as home:
        bodies = [b'{"amount":1}', b'{"amount":1,"channel":"web"}', b'{"amount":1,"meta":{"attempt":1}}']
        for number, first in enumerate(bodies):
            assert status_of(await home.send(f"k{number}", first))[1] == "stored"
            for body in bodies:
                assert status_of(await home.send(f"k{number}", body))[1] == "replayed"
            for body in (b'{"amount":1,"channel":"app"}', b'{"amount":1,"channel":null}', b'{"amount":1,"meta":1}'):
                assert status_of(await home.send(f"k{number}", body)) == (422, "key-reused")
        assert len(home.upstream.requests) == len(bodies)
        assert home.upstream.requests[0].body == bodies[0] != BODY
