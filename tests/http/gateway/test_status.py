"""The status resource: what became of an operation, for its caller and for nobody else."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.store.base import Amnesic
from tests.http.gateway.asking import metric
from tests.support.accepting import ASYNC, RESPONSE, STEPS, accepting, desk
from tests.support.eventually import eventually
from tests.support.faulty_store import Fault, dropped, lost, refused, withheld
from tests.support.house import house, sqlite_store, status_of
from tests.support.http import Response
from tests.support.upstream import Answer, Ending

UNKNOWN = "/_operations/11111111-2222-8333-8444-555555555555"
ACCEPTED = (202, "accepted")
SENTINELS = (b"s3cr3t", b"t1", b"127.0.0.1", b"shop.example")


def told(response: Response) -> tuple[int, str | None]:
    """Status, and the code of the problem or the verdict."""
    is_problem = response.header("Content-Type") == "application/problem+json"
    return response.status, response.json().get("code") if is_problem else status_of(response)[1]


Told = tuple[int, str | None]
STATES: dict[str, tuple[dict[str, Any], Told, Told, Told, Told]] = {
    # state: parts of the document; what /result gives, DELETE, a repeat that waits, and one that does not
    "accepted": (
        {"state": "accepted", "attempts": 0, "last_attempt": None},
        (202, "accepted"), (200, None), (409, "in-flight"), ACCEPTED,
    ),
    "postponed": (
        {"state": "accepted", "attempts": 1, "last_attempt": ("released", 503, "answered_503")},
        (202, "accepted"), (200, None), (409, "in-flight"), ACCEPTED,
    ),
    "claimed": (
        {"state": "claimed", "attempts": 1, "last_attempt": None},
        (202, "accepted"), (409, "in-flight"), (409, "in-flight"), ACCEPTED,
    ),
    "in doubt": (
        {"state": "in_doubt", "stalled": True, "last_attempt": ("in_doubt", None, "reset"), "problem": "in-doubt"},
        (409, "in-doubt"), (409, "in-doubt"), (409, "in-doubt"), ACCEPTED,
    ),
    "dead letter": (
        {"state": "dead_letter", "stalled": True, "last_attempt": ("released", 401, "unauthorized"),
         "problem": "dead-letter"}, (409, "dead-letter"), (200, None), (409, "dead-letter"), (409, "dead-letter"),
    ),
    "completed": (
        {"state": "completed", "done": True, "last_attempt": ("completed", 201, None), "result": (201, "/charges/7")},
        (201, "replayed"), (409, "already-completed"), (201, "replayed"), (201, "replayed"),
    ),
    "not stored": (
        {"state": "completed", "done": True, "result": (201, "/charges/7")},
        (409, "response-not-stored"), (409, "already-completed"), *[(409, "response-not-stored")] * 2,
    ),
    "expired": (
        {"state": "tombstone", "done": True, "result": (201, "/charges/7")},
        (410, "key-expired"), (409, "already-completed"), *[(410, "key-expired")] * 2,
    ),
    "withdrawn": (
        {"state": "released", "done": True, "problem": "withdrawn"},
        (409, "withdrawn"), (200, None), (200, "stored"), ACCEPTED,
    ),
}  # fmt: skip


@pytest.mark.parametrize("state", STATES)
async def test_a_state(tmp_path: Path, state: str) -> None:
    """The document is true in every state, and shows nothing of key, body, scope or upstream. What comes of a repeat is
    in the record, too; another request is refused whatever that says."""
    document, result, deleted, waits, does_not = STATES[state]
    key, body = "s3cr3t-key", b'{"card":"s3cr3t"}'
    async with desk(tmp_path) as it:
        accepted = await it.accept(key, ("Authorization", "Bearer s3cr3t"), body=body)
        url = accepted.header("Location") or ""
        await it.drive(*STEPS[state])
        response = await it.see(url)
        shown = response.json()
        assert (response.status, shown["id"]) == (200, url.rpartition("/")[2])
        assert not any(sentinel in response.body for sentinel in SENTINELS)
        assert response.header("Cache-Control") == "no-store"
        assert response.header("ETag")
        seen = {name: shown[name] for name in ("done", "stalled", *document)}
        if last := seen.get("last_attempt"):
            seen["last_attempt"] = last["result"], last["status"], last["reason"]
        seen["problem"] = shown["problem"] and shown["problem"]["code"]
        seen["result"] = None
        if found := shown["result"]:
            assert found["url"] == (f"{url}/result" if state == "completed" else None)
            assert (found["expires_at"] is None) == (state == "expired")
            seen["result"] = found["status"], found["resource"]
        assert seen == {"done": False, "stalled": False, "problem": None, "result": None} | document
        retry = response.header("Retry-After")
        assert (retry is None) == shown["done"]
        if shown["stalled"]:
            assert 240 <= int(retry or 0) <= 360
        got = await it.see(f"{url}/result")
        assert told(got) == result
        if result[0] == 202:
            assert (got.header("Location"), got.json()) == (url, shown)
        if state == "completed":
            assert (got.body, got.header("Idempotent-Replayed")) == (RESPONSE.body, "true")

        for headers in ((), (ASYNC,)):
            assert told(await it.send(key, *headers, body=b"other")) == (422, "key-reused")
        if state != "withdrawn":
            sync = await it.send(key, body=body)
            assert status_of(sync) == waits
            if does_not[1] in ("accepted", "dead-letter"):
                assert (sync.header("Location"), sync.json()["operation_id"]) == (url, shown["id"])
        again = await it.accept(key, body=body)
        assert status_of(again) == does_not
        if does_not == ACCEPTED:
            is_new = state == "withdrawn"
            assert again.header("Location") == url
            assert again.json()["state"] == ("accepted" if is_new else shown["state"])
            assert again.header("Idempotent-Replayed") == (None if is_new else "true")

        off = await it.see(url, method="DELETE")
        assert told(off) == deleted
        if off.status == 200:
            assert (off.json()["state"], off.json()["problem"]["code"]) == ("released", "withdrawn")
            assert (await it.see(url, method="DELETE")).status == 200
        assert it.home.upstream.requests == []


async def test_other_methods(tmp_path: Path) -> None:
    """They do not reach the service, and change nothing; HEAD tells what GET does, without a body."""
    async with desk(tmp_path) as it:
        url = (await it.accept()).header("Location") or ""
        seen, head = await it.see(url), await it.see(url, method="HEAD")
        assert (head.status, head.body) == (200, b"")
        assert head.header("Content-Length") == str(len(seen.body))
        for method in ("POST", "PUT", "PATCH", "OPTIONS"):
            for target in (url, f"{url}/result", UNKNOWN, "/_operations", "/_operations/x/y"):
                response = await it.see(target, method=method)
                assert (response.status, response.header("Allow")) == (405, "GET, HEAD, DELETE")
        assert (await it.see(f"{url}/result", method="DELETE")).header("Allow") == "GET, HEAD"
        assert it.home.upstream.requests == []


async def test_a_synchronous_operation_has_a_status_too(tmp_path: Path) -> None:
    """Its id is in what the service gets. Requests for a status are counted, by what they are for and the class of the
    reply, also those that are shown nothing."""
    async with desk(tmp_path) as it:
        await it.send()
        (identity,) = it.home.upstream.requests[0].values("Idempotency-Operation")
        target = f"/_operations/{identity.decode()}"
        shown = await it.see(target)
        assert (shown.status, shown.json()["state"], shown.json()["attempts"]) == (200, "completed", 1)
        assert (await it.see(f"{target}/result")).body == b"done"
        for method, path in (("GET", target[:-1]), ("DELETE", target)):
            assert 400 <= (await it.see(path, method=method)).status < 500
        for part, status in (("status", "2xx"), ("result", "2xx"), ("status", "4xx"), ("withdrawal", "4xx")):
            assert await metric(it.home, "status_requests_total", part=part, status=status) == 1
        assert await metric(it.home, "status_requests_total") == 4


# -- who sees it -------------------------------------------------------------------------------------------------------


async def test_nobody_else_sees_it(tmp_path: Path) -> None:
    """Unknown, foreign, malformed and erased: one and the same reply, from which nothing can be learnt."""
    async with desk(tmp_path) as it:
        url = (await it.accept()).header("Location") or ""
        identity = url.rpartition("/")[2]
        foreign = [(url, "t2"), (url, "t1 x"), (url, None), (f"{url}/result", "t2")]
        malformed = [
            UNKNOWN, f"{url}/other", f"/_operations/{'9' * 5000}", f"/_operations/{{{identity}}}",
            f"/_operations/{identity}/../{identity}", f"/_operations/%00{identity}", "/_operations/", "/_operations",
        ]  # fmt: skip
        seen = []
        for target, tenant in [(target, "t1") for target in malformed] + foreign:
            response = await it.see(target, tenant=tenant)
            seen.append((response.status, response.body, [name for name, _ in response.headers]))
        assert seen == [seen[0]] * len(seen)
        assert seen[0][0] == 404
        refused_ = await it.see(url, tenant="t2", method="DELETE")
        assert (refused_.status, refused_.body) == seen[0][:2]
        for spelling in (url.upper().replace("_OPERATIONS", "_operations"), url.replace("_", "%5F"), f"{url}?x=1"):
            assert (await it.see(spelling)).status == 200
        assert it.home.upstream.requests == []


async def test_the_path_is_the_gateways_where_it_needs_one(tmp_path: Path) -> None:
    """Without a route that accepts it is the service's; where a service has such a path, the resource has another."""
    async with house(sqlite_store(tmp_path), tmp_path) as home:
        assert (await home.send(None, b"", target=UNKNOWN, method="GET")).status == 200
        assert home.upstream.requests[0].target == UNKNOWN.encode()
    async with desk(tmp_path / "other", operations={"path": "/v1/jobs"}) as it:
        url = (await it.accept()).header("Location") or ""
        assert url.startswith("/v1/jobs/")
        assert (await it.see(url)).status == 200
        assert (await it.see("/v1/jobs2")).body == b"done"


# -- changes -----------------------------------------------------------------------------------------------------------


async def test_what_did_not_change_is_not_sent_again(tmp_path: Path) -> None:
    """304 for the tag of the state as it is, in any of its forms; another state has another tag, by the clock too."""
    async with desk(tmp_path) as it:
        url = (await it.accept()).header("Location") or ""
        tags = []
        for step in ("dispatch", "postpone", None, "dispatch", "abandon", "reinstate"):
            if step is None:
                it.clocks.pass_time(30, it.home)
                continue
            await it.drive(step)
            tag = (await it.see(url)).header("ETag") or ""
            tags.append(tag)
            for sent in (tag, tag.removeprefix("W/"), f'"other", {tag}', "*"):
                response = await it.see(url, ("If-None-Match", sent))
                assert (response.status, response.body, response.header("ETag")) == (304, b"", tag)
            assert (await it.see(url, ("If-None-Match", '"other"'))).status == 200
        await it.drive("dispatch")
        tags.append((await it.see(url)).header("ETag") or "")
        it.clocks.pass_time(31)
        assert (await it.see(url)).json()["state"] == "in_doubt"
        tags.append((await it.see(url)).header("ETag") or "")
        assert len(set(tags)) == len(tags)


async def test_waiting_for_a_change(tmp_path: Path) -> None:
    """A long poll ends with the change, and without one after the time that was asked for."""
    async with desk(tmp_path, route={"in_flight": {"wait": "0s", "max_wait": "20s"}}) as it:
        url = (await it.accept()).header("Location") or ""
        tag = (await it.see(url)).header("ETag") or ""
        waits = [
            asyncio.create_task(it.see(url, ("Prefer", "wait=20"))),
            asyncio.create_task(it.see(url, ("Prefer", "wait=3600"), ("If-None-Match", tag))),
        ]
        done, _ = await asyncio.wait(waits, timeout=0.3)
        assert not done
        await it.drive("dispatch")
        responses = await asyncio.gather(*waits)
        assert [(each.status, each.json()["state"]) for each in responses] == [(200, "claimed")] * 2
        assert [each.header("Preference-Applied") for each in responses] == ["wait=20", "wait=20"]
        known = await it.see(url, ("Prefer", "wait=20"), ("If-None-Match", tag))
        assert (known.status, known.header("Preference-Applied")) == (200, None)
        unchanged = await it.see(url, ("Prefer", "wait=1"), ("If-None-Match", known.header("ETag") or ""))
        assert (unchanged.status, unchanged.header("Preference-Applied")) == (304, "wait=1")


async def test_many_who_wait(tmp_path: Path) -> None:
    """Those beyond the route's limit do not wait, and those beyond the gateway's are refused."""
    settings = {"in_flight": {"wait": "0s", "max_waiters": 1}}
    async with desk(tmp_path, route=settings, limits={"max_in_flight": 2}) as it:
        url = (await it.accept()).header("Location") or ""
        resource = it.home.gateway.parts.resource
        assert resource is not None
        first = asyncio.create_task(it.see(url, ("Prefer", "wait=20")))
        await eventually(lambda: resource._waiters["charge"] == 1, what="it waits")
        at_once = await it.see(url, ("Prefer", "wait=20"))
        assert (at_once.status, at_once.header("Preference-Applied")) == (200, None)
        gate = it.store.stop_before("read")
        second = asyncio.create_task(it.see(url))
        await gate.reached.wait()
        assert told(await it.see(url)) == (503, "overloaded")
        gate.opened.set()
        assert (await second).status == 200
        await it.drive("withdraw")
        assert (await first).json()["state"] == "released"


# -- calling off -------------------------------------------------------------------------------------------------------


async def test_a_route_may_refuse_withdrawals(tmp_path: Path) -> None:
    """Then a caller cannot call off what it was promised; another caller does not learn even that."""
    async with desk(tmp_path, accept={"withdraw": "refuse"}) as it:
        url = (await it.accept()).header("Location") or ""
        response = await it.see(url, method="DELETE")
        assert (response.status, response.header("Allow")) == (405, "GET, HEAD")
        assert (await it.see(url, method="DELETE", tenant="t2")).status == 404
        assert (await it.see(url)).json()["state"] == "accepted"


async def test_a_withdrawal_is_asked_for_again_until_it_is_known(tmp_path: Path) -> None:
    """The same command finds out whether a lost one took effect. Where somebody began to deliver between the look and
    the word, that is said, and nothing is called off."""
    for name, fault in (("took effect", lost()), ("did not", dropped())):
        async with desk(tmp_path / name) as it:
            url = (await it.accept()).header("Location") or ""
            it.store.on("withdraw", fault)
            response = await it.see(url, method="DELETE")
            assert (response.status, response.json()["state"]) == (200, "released"), name
            assert it.store.said.count("withdraw") == 2, name
    async with desk(tmp_path / "late") as it:
        url = (await it.accept()).header("Location") or ""
        gate = it.store.stop_before("withdraw")
        late = asyncio.create_task(it.see(url, method="DELETE"))
        await gate.reached.wait()
        await it.drive("dispatch")
        gate.opened.set()
        assert told(await late) == (409, "in-flight")
        assert (await it.see(url)).json()["state"] == "claimed"


# -- faults ------------------------------------------------------------------------------------------------------------


async def test_what_cannot_be_read_is_not_absent(tmp_path: Path) -> None:
    """503, because 404 would mean that it was never accepted."""
    amnesic = Fault(Amnesic("lost"), has_effect=False)
    async with desk(tmp_path) as it:
        url = (await it.accept()).header("Location") or ""
        for fault in (refused(), dropped(), withheld(), amnesic):
            it.store.break_("read", fault=fault)
            for target, method in ((url, "GET"), (f"{url}/result", "GET"), (UNKNOWN, "GET"), (url, "DELETE")):
                response = await it.see(target, method=method)
                assert told(response) == (503, "store-amnesia" if fault is amnesic else "store-unavailable")
                assert response.header("Retry-After")


async def test_what_is_sent_again_by_itself(tmp_path: Path) -> None:
    """While an operation in doubt is going to be sent again, its status says when, and that nobody has to decide; and
    it is sent then, however short the pause is."""
    changes = accepting(delivers=True, route={"recovery": "resend"})
    changes["delivery"]["schedule"] = ["1s"]
    async with house(sqlite_store(tmp_path), tmp_path, **changes) as home:
        home.upstream.on("/charges", *[Answer(bytes_max=0, ending=Ending.RESET)] * 3, Answer(201))
        url = (await home.send(headers=[ASYNC])).header("Location") or ""

        async def see(target: str, *headers: tuple[str, str]) -> Response:
            return await home.send(None, b"", headers=headers, target=target, method="GET")

        async def in_doubt() -> Response | None:
            seen = await see(url)
            return seen if seen.json()["state"] == "in_doubt" else None

        seen = await eventually(in_doubt)
        assert seen is not None
        shown = seen.json()
        assert (shown["done"], shown["stalled"], shown["next_attempt_at"] is None) == (False, False, False)
        assert shown["problem"]["retryable"] is True
        assert int(seen.header("Retry-After") or 0) <= 2

        async def is_done() -> bool:
            return (await see(f"{url}/result", ("Prefer", "wait=9"))).status == 201

        # What another gateway left in doubt is looked for every five seconds: three times in fifteen.
        await eventually(is_done, 12.0, "three pauses of a second are over")
        assert len(home.upstream.requests) == 4


async def test_what_is_not_sent_again_any_more(tmp_path: Path) -> None:
    """Then somebody has to decide."""
    async with desk(tmp_path, route={"recovery": "resend"}, delivery={"workers": 0, "max_answers": 1}) as it:
        url = (await it.accept()).header("Location") or ""
        await it.drive(*STEPS["in doubt"])
        shown = (await it.see(url)).json()
        assert (shown["stalled"], shown["next_attempt_at"]) == (True, None)
