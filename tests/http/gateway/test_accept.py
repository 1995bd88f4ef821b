"""Accepting a request now and delivering it later, as its caller sees it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.core.operation import Audit, State
from gateway.protect import accepting as product
from gateway.store.base import Amnesic, Unstorable
from gateway.store.postgres import store as postgres
from tests.support.accepting import ASYNC, SECRETS, accepting, desk
from tests.support.eventually import eventually
from tests.support.faulty_store import Fault, dropped, lost, refused, withheld
from tests.support.house import house, neighbour, sqlite_store, status_of
from tests.support.sentinel import Sentinel
from tests.support.upstream import Answer

AUDIT = Audit("op", "looking")
ACCEPTED = (202, "accepted")


@pytest.mark.parametrize("public", ["", "https://api.example.com/pay"], ids=["here", "behind-a-proxy"])
async def test_what_a_caller_gets_whose_request_is_kept(tmp_path: Path, public: str) -> None:
    """202 with a place to look, as callers see it, once the request is in the store and before anything was sent."""
    async with desk(tmp_path, **({"public_url": f"{public}/"} if public else {})) as it:
        response = await it.accept()
        assert status_of(response) == ACCEPTED
        document = response.json()
        url = f"{public}/_operations/{document['id']}"
        for name, value in {
            "Location": url, "Retry-After": "1", "Preference-Applied": "respond-async", "Cache-Control": "no-store",
            "Content-Type": "application/json", "Idempotent-Replayed": None,
        }.items():  # fmt: skip
            assert response.header(name) == value, name
        assert {name: document[name] for name in ("state", "done", "stalled", "attempts", "result", "problem")} == {
            "state": "accepted", "done": False, "stalled": False, "attempts": 0, "result": None, "problem": None,
        }  # fmt: skip
        assert document["accepted_at"] == document["next_attempt_at"] < document["deliver_until"]
        assert document["links"] == {"self": url, "result": f"{url}/result"}
        assert (await it.record()).state is State.ACCEPTED
        assert it.home.upstream.requests == []


# -- which requests are accepted ---------------------------------------------------------------------------------------


AT_ONCE = (200, "stored")
CALLERS: list[tuple[list[tuple[str, str]], tuple[int, str]]] = [
    ([], AT_ONCE),
    ([("Prefer", "RESPOND-ASYNC")], ACCEPTED),
    ([("prefer", 'respond-async=""; x=1')], ACCEPTED),
    ([("Prefer", "return=minimal"), ("Prefer", 'note="a, b", respond-async')], ACCEPTED),
    ([("Prefer", 'note="respond-async"')], AT_ONCE),
    ([("Prefer", "respond-async=no")], AT_ONCE),
    ([("Prefer", "wait=0")], AT_ONCE),
    ([ASYNC, ("If-Match", '"a"')], AT_ONCE),
    ([ASYNC, ("if-none-match", "*")], AT_ONCE),
    ([ASYNC, ("If-Unmodified-Since", "Mon, 23 Nov 2026 15:04:28 GMT")], AT_ONCE),
    ([ASYNC, ("If", "(<urn:uuid:1>)")], AT_ONCE),
    ([ASYNC, ("X-Goog-If-Generation-Match", "1")], AT_ONCE),
    ([ASYNC, ("DPoP", "e30.e30.e30")], AT_ONCE),
    ([ASYNC, ("Signature-Input", "a=()")], AT_ONCE),
    ([ASYNC, ("Signature", "a=:YQ==:")], AT_ONCE),
    ([ASYNC, ("Authorization", "AWS4-HMAC-SHA256 Credential=a")], AT_ONCE),
    ([ASYNC, ("Authorization", "DPoP abc")], AT_ONCE),
    ([ASYNC, ("Authorization", "Bearer abc")], ACCEPTED),
]


async def test_who_is_accepted(tmp_path: Path) -> None:
    """Whoever prefers it, in any spelling, unless the request has a meaning only now: then it runs at once; where a
    route always accepts, whoever has not that meaning. What a route does not protect it does not keep, either."""
    optional = {"key": {"header": "Idempotency-Key", "required": False}}
    async with desk(tmp_path / "always", route=optional, accept={"mode": "always"}) as it:
        for key, headers, status, applied in (
            ("k1", [], ACCEPTED, None),
            ("k2", [("Prefer", "wait=1")], ACCEPTED, "wait=1"),
            ("k3", [("If-Match", '"a"')], AT_ONCE, None),
        ):
            response = await it.send(key, *headers)
            assert (status_of(response), response.header("Preference-Applied")) == (status, applied)
        assert status_of(await it.home.send(None, headers=[ASYNC])) == (200, "unkeyed")
    async with desk(tmp_path, route=optional) as it:
        statuses = [status_of(await it.send(f"k{number}", *headers)) for number, (headers, _) in enumerate(CALLERS)]
        assert [(headers, status) for (headers, _), status in zip(CALLERS, statuses, strict=True)] == CALLERS
        assert len(it.home.upstream.requests) == statuses.count(AT_ONCE)
        presigned = await it.accept("k", target="/charges?X-Amz-Signature=abc")
        assert status_of(presigned) == AT_ONCE
        assert status_of(await it.home.send(None, headers=[ASYNC])) == (200, "unkeyed")


async def test_the_service_does_not_hear_of_the_preference(tmp_path: Path) -> None:
    """It is the gateway that heeds it, also where it cannot; a service behind another route answers for itself."""
    async with desk(tmp_path, delivers=True) as it:
        await it.send("k1", ("Prefer", "respond-async, wait=5, return=minimal"))
        await it.send("k2", ASYNC, ("If-Match", "*"))
        assert [request.values("Prefer") for request in it.home.upstream.requests] == [[b"return=minimal"], []]
    async with house(sqlite_store(tmp_path / "other"), tmp_path / "other") as home:
        assert status_of(await home.send(headers=[ASYNC])) == (200, "stored")
        assert home.upstream.requests[0].values("Prefer") == [b"respond-async"]


async def test_only_short_bodies_are_kept(tmp_path: Path) -> None:
    """A longer one is refused before anything is written, although it could run at once; one that was spooled is
    delivered byte for byte."""
    async with desk(tmp_path, delivers=True, accept={"max_bytes": "51200"}, route={"body": {"spool_over": "10"}}) as it:
        for length in (9, 51_199, 51_200, 51_201):
            body, before = (bytes(range(256)) * 201)[:length], len(it.home.upstream.requests)
            response = await it.accept(f"k{length}", ("Prefer", "wait=9"), body=body)
            assert status_of(response) == ((200, "stored") if length <= 51_200 else (413, "body-too-large"))
            assert status_of(await it.send(f"again-{length}", body=body)) == (200, "stored")
            bodies = [request.body for request in it.home.upstream.requests[before:]]
            assert bodies == [body] * (2 if length <= 51_200 else 1)
        assert it.store.said.count("accept") == 3


async def test_nothing_of_a_kept_request_is_readable_in_the_store(tmp_path: Path) -> None:
    sentinel = Sentinel("Zqxjkvbpyw")
    async with desk(tmp_path) as it:
        credentials = ("Authorization", f"Bearer {sentinel.text}")
        body = b'{"card": "%s"}' % sentinel.text.encode()
        response = await it.accept(sentinel.text, credentials, target=f"/charges?q={sentinel.text}", body=body)
        assert status_of(response) == ACCEPTED
        assert await sentinel.found(tmp_path / "store") == []


# -- repeats, of which test_status shows the rest ----------------------------------------------------------------------


async def test_many_first_requests_keep_one(tmp_path: Path) -> None:
    """Whoever comes at once gets 202 for one and the same operation, and all but one hear that it was known."""
    async with desk(tmp_path) as it:
        responses = await asyncio.gather(*(it.accept() for _ in range(8)))
        assert {status_of(response) for response in responses} == {ACCEPTED}
        assert len({response.header("Location") for response in responses}) == 1
        assert [response.header("Idempotent-Replayed") for response in responses].count(None) == 1
        assert (await it.record()).state is State.ACCEPTED


async def test_a_caller_that_waits_while_it_is_called_off(tmp_path: Path) -> None:
    """It hears that, and runs nothing."""
    async with desk(tmp_path) as it:
        location = (await it.accept()).header("Location") or ""
        waiting = asyncio.create_task(it.send("k1", ("Prefer", "wait=20")))
        await eventually(lambda: it.home.gateway.coordinator.waiters == 1, what="it waits")
        assert (await it.see(location, method="DELETE")).status == 200
        response = await waiting
        assert status_of(response) == (409, "withdrawn")
        assert response.header("x-should-retry") == "false"
        assert it.home.upstream.requests == []


async def test_a_dead_letter_is_requeued_by_a_repeat_where_the_route_says_so(tmp_path: Path) -> None:
    """Not before its time, not for a caller of another request, and not while an operator has paused the operation."""
    settings = {"dead_letter": {"on_repeat": "requeue", "requeue_after": "1m"}}
    async with desk(tmp_path, route=settings) as it:
        await it.accept()
        await it.drive("dispatch", "bury")
        early = await it.accept()
        assert (status_of(early), early.json()["state"]) == (ACCEPTED, "dead_letter")
        assert status_of(await it.send()) == (409, "dead-letter")
        it.clocks.pass_time(61, it.home)
        assert status_of(await it.accept(body=b"other")) == (422, "key-reused")
        requeued = await it.accept()
        assert (status_of(requeued), requeued.json()["state"]) == (ACCEPTED, "accepted")
        await it.drive("dispatch", "bury")
        it.clocks.pass_time(61, it.home)
        await it.behind.cold.pause("shop", "charge", AUDIT)
        paused = await it.accept()
        assert (status_of(paused), paused.json()["state"]) == (ACCEPTED, "dead_letter")


# -- waiting -----------------------------------------------------------------------------------------------------------


async def test_who_waits_gets_the_response_and_who_does_not_a_202(tmp_path: Path) -> None:
    """It is the synchronous response, and nothing says that it was accepted first; a repeat meanwhile may wait, and
    what is not there in time is there for whoever comes later."""
    waits = {"in_flight": {"wait": "0s"}}
    async with desk(tmp_path, delivers=True, route=waits) as it:
        it.home.upstream.on("/charges", Answer(201, body=b"charged"))
        response = await it.send("k1", ("Prefer", "respond-async, wait=20"))
        assert (status_of(response), response.body) == ((201, "stored"), b"charged")
        assert (response.header("Preference-Applied"), response.header("Idempotent-Replayed")) == ("wait=20", None)
        # The record is told as soon as it is read, the delivery may have to notice yet that it wrote it.
        await eventually(lambda: it.home.gateway.coordinator.in_flight == 0, what="it is delivered")
        again = await it.accept()
        assert (status_of(again), again.body) == ((201, "replayed"), b"charged")
        hold = asyncio.Event()
        it.home.upstream.on("/charges", Answer(201, hold=hold))
        await it.accept("k2")
        await it.home.upstream.wait_for_requests(2)
        waiting = asyncio.create_task(it.send("k2", ("Prefer", "wait=20")))
        await eventually(lambda: it.home.gateway.coordinator.waiters == 1, what="it waits")
        hold.set()
        assert status_of(await waiting) == (201, "replayed")
        assert len(it.home.upstream.requests) == 2
    waits["in_flight"]["max_wait"] = "100ms"
    async with desk(tmp_path / "short", delivers=True, route=waits) as it:
        hold = asyncio.Event()
        it.home.upstream.on("/charges", Answer(201, hold=hold))
        response = await it.send("k1", ("Prefer", "respond-async, wait=3600"))
        assert (status_of(response), response.json()["state"]) == (ACCEPTED, "claimed")
        assert response.header("Preference-Applied") == "respond-async"
        hold.set()
        await eventually(lambda: it.home.gateway.coordinator.in_flight == 0, what="it is delivered")
        assert status_of(await it.accept()) == (201, "replayed")


# -- limits ------------------------------------------------------------------------------------------------------------


async def test_a_full_backlog_takes_nothing_new(tmp_path: Path) -> None:
    """What was accepted is answered as ever; once something was delivered there is room again. Each caller has a limit
    of its own, too, by what is kept and not by how often it is asked for."""
    async with desk(tmp_path, accept={"max_pending": 2}) as it:
        responses = await asyncio.gather(*(it.accept(f"k{number}") for number in range(5)))
        assert sorted(map(status_of, responses)) == [ACCEPTED, ACCEPTED, *[(503, "backlog-full")] * 3]
        full, kept = (next(n for n, each in enumerate(responses) if each.status == status) for status in (503, 202))
        assert responses[full].header("Retry-After") == "5"
        assert it.store.said.count("accept") == 2
        assert status_of(await it.accept(f"k{kept}")) == ACCEPTED
        assert status_of(await it.send(f"k{full}")) == (200, "stored")
        assert (await it.see(responses[kept].header("Location") or "", method="DELETE")).status == 200
        assert status_of(await it.accept("k9")) == (503, "backlog-full")
        it.clocks.pass_time(2, it.home)
        assert status_of(await it.accept("k9")) == ACCEPTED
    async with desk(tmp_path / "each", accept={"max_pending_per_scope": 2}) as it:
        statuses = [status_of(await it.accept(f"k{number}")) for number in (0, 0, 0, 1, 2, 3)]
        assert statuses == [*[ACCEPTED] * 4, (503, "backlog-full"), (503, "backlog-full")]
        assert status_of(await it.accept("k1", tenant="t2")) == ACCEPTED


async def test_many_bytes_take_nothing_new(tmp_path: Path) -> None:
    """A route's requests have a limit together: those under way, those accepted since the store counted, the rest."""
    async with desk(tmp_path, accept={"max_pending_bytes": "10KiB"}) as it:
        gate = it.store.stop_before("accept")
        first = asyncio.create_task(it.accept(body=b"x" * 6_000))
        await gate.reached.wait()
        assert status_of(await it.accept("k2", body=b"x" * 6_000)) == (503, "backlog-full")
        gate.opened.set()
        assert status_of(await first) == ACCEPTED
        for _ in range(2):
            assert status_of(await it.accept("k2", body=b"x" * 6_000)) == (503, "backlog-full")
            it.clocks.pass_time(2, it.home)
        assert status_of(await it.accept("k3", body=b"x" * 600)) == ACCEPTED


@pytest.mark.parametrize(
    "limit", [{"max_pending": 40}, {"max_pending_per_scope": 40}, {"max_pending_bytes": "40KiB"}], ids=min
)
@pytest.mark.parametrize("kept_seconds", [0.1, 3_600.0])
async def test_an_old_count_takes_no_more_than_a_new_one(
    kept_seconds: float, limit: dict[str, Any], tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where much waits in Postgres, a count is used for some time: what was accepted since then counts as well."""
    monkeypatch.setattr(postgres, "_COUNTED_ANEW_MAX", -1)
    monkeypatch.setattr(postgres, "_KEPT_SECONDS_MIN", kept_seconds)
    monkeypatch.setattr(postgres, "_KEPT_SECONDS_MAX", kept_seconds)
    monkeypatch.setattr(product, "_FRESH_SECONDS", 0.0)
    route = {"accept": {"identity": "unverified", "mode": "always", **limit}}
    async with house(
        {"durable": postgres_url}, tmp_path, route=route, delivery={"workers": 0}, secrets=SECRETS
    ) as home:
        statuses = [status_of(await home.send(f"k{number}", b"x" * 1_024)) for number in range(80)]
        # Encrypted, a request has some more bytes than its body.
        at_least = 33 if "max_pending_bytes" in limit else 40
        assert at_least <= statuses.count(ACCEPTED) <= 40
        assert statuses.count(ACCEPTED) + statuses.count((503, "backlog-full")) == 80


@pytest.mark.parametrize("limits", [{"max_in_flight": 1}, {}], ids=["requests", "bytes"])
async def test_what_is_accepted_at_once_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: dict[str, int]
) -> None:
    """Requests that are being accepted count as in flight, and their bodies are in memory meanwhile."""
    monkeypatch.setattr(product, "_BYTES_MAX", 100)
    async with desk(tmp_path, limits=limits) as it:
        gate = it.store.stop_before("accept")
        first = asyncio.create_task(it.accept(body=b"x" * 60))
        await gate.reached.wait()
        assert status_of(await it.accept("k2", body=b"x" * (1 if limits else 60))) == (503, "overloaded")
        gate.opened.set()
        assert status_of(await first) == ACCEPTED
        assert status_of(await it.accept("k2", body=b"x" * 60)) == ACCEPTED


# -- faults ------------------------------------------------------------------------------------------------------------


async def test_a_lost_acknowledgement_is_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same command finds out, and the request is kept once. Patience ends in 503, which promises neither; the
    request was kept all the same, and its repeat gets the 202."""
    for name, fault in (("took effect", lost()), ("did not", dropped())):
        async with desk(tmp_path / name) as it:
            it.store.on("accept", fault, fault)
            response = await it.accept()
            assert (status_of(response), response.header("Idempotent-Replayed")) == (ACCEPTED, None), name
            record = (await it.record()).record
            assert record is not None
            assert (it.store.said.count("accept"), record.token) == (3, 1), name
    monkeypatch.setattr(product, "_STORE_SECONDS_MAX", 0.3)
    async with desk(tmp_path / "in vain") as it:
        it.store.break_("accept", fault=lost())
        response = await it.accept()
        assert (status_of(response), response.header("Retry-After")) == ((503, "in-doubt"), "1")
        assert b"Nothing was executed" not in response.body
        it.store.mend()
        again = await it.accept()
        assert (status_of(again), again.header("Idempotent-Replayed")) == (ACCEPTED, "true")


@pytest.mark.parametrize("route", [{}, {"store_unavailable": "forward"}], ids=["refuse", "forward"])
async def test_without_a_store_nothing_is_accepted(tmp_path: Path, route: dict[str, Any]) -> None:
    """Not even where the route forwards unprotected, which is for callers that wait; nor where nobody says how much
    waits."""
    async with desk(tmp_path, route=route) as it:
        it.store.break_("backlog", fault=refused())
        assert status_of(await it.accept()) == (503, "store-unavailable")
        it.store.mend()
        for fault, verdict in (
            (refused(), "store-unavailable"),
            (withheld(), "store-unavailable"),
            (Fault(Unstorable("never"), has_effect=False), "store-unavailable"),
            (Fault(Amnesic("lost"), has_effect=False), "store-amnesia"),
        ):
            it.store.on("accept", fault)
            assert status_of(await it.accept()) == (503, verdict)
        assert it.home.upstream.requests == []
        assert status_of(await it.accept()) == ACCEPTED


async def test_a_gateway_that_dies_between_commit_and_reply(tmp_path: Path) -> None:
    """The caller heard nothing; another gateway shows the operation, and a repeat gets its 202."""
    async with desk(tmp_path) as it:
        gate = it.store.stop_after("accept")
        dying = asyncio.create_task(it.accept())
        await gate.reached.wait()
        async with neighbour(
            sqlite_store(tmp_path), tmp_path / "n", it.home.upstream, surround=it.clocks.surround, **accepting()
        ) as other:
            record = (await it.record()).record
            assert record is not None
            target = f"/_operations/{record.identity.operation_id}"
            shown = await other.send(None, b"", target=target, method="GET")
            assert (shown.status, shown.json()["state"]) == (200, "accepted")
            again = await other.send(headers=[ASYNC])
            assert (status_of(again), again.header("Location")) == (ACCEPTED, target)
        dying.cancel()
        gate.opened.set()
        await asyncio.gather(dying, return_exceptions=True)
