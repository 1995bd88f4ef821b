"""The admin API over a socket, on a running gateway: nothing without the token, the same results as the commands."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from gateway import EXIT_WORK_LEFT
from gateway.core.operation import State
from tests.admin.hand import Admin
from tests.admin.test_pages import TOKENS, Port, port
from tests.support.house import House, house
from tests.support.redis import RedisServer

__all__ = ["Admin", "port"]

Store = dict[str, Any]
TOKEN = TOKENS["ada"]
NO_SUCH = "00000000-0000-8000-8000-000000000000"
COMPLETED = {
    "status": 201,
    "headers": [["Content-Type", "application/json"], ["Location", "/charges/1"]],
    "body_base64": "eyJpZCI6MX0=",
}


@asynccontextmanager
async def served(store: Store, directory: Path, /, **changes: Any) -> AsyncIterator[tuple[House, Admin]]:
    """A gateway with its admin port."""
    admin = {"listen": "127.0.0.1:0", "token": TOKEN}
    async with house(store, directory, admin=admin, **changes) as running:
        yield running, Admin(running.gateway.admin_address[1], TOKEN)


@pytest.fixture
def admin(port: Port) -> Admin:
    """An admin port on the model store, and an admin's program."""
    return Admin(port.port, TOKEN)


async def test_a_purge_that_is_owed_at_the_end(
    postgres_url: str, own_redis: RedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A gateway that stops before Redis could be told of a purge says so, with its exit code too."""
    async with served({"durable": postgres_url, "fast": own_redis.url}, tmp_path) as (running, admin):
        await running.send()
        (about,) = (await admin("GET", "/operations?state=completed")).json()["operations"]
        own_redis.kill()
        done = await admin("POST", f"/operations/{about['operation_id']}/purge", {"why": "asked to"})
        assert (done.status, done.json()["purges_pending"]) == (200, 1)
        assert await running.gateway.stop() == EXIT_WORK_LEFT
    assert "stopped with 1 purges that did not reach Redis: the next gateway to start repeats them" in caplog.text


async def test_off_without_a_token(sqlite: Store, tmp_path: Path) -> None:
    """Without a token nothing listens."""
    async with house(sqlite, tmp_path) as running:
        assert running.gateway.admin_address == ("", 0)


@pytest.mark.parametrize(
    "authorization",
    [None, "Bearer", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", "Bearer é"],
    ids=["none", "empty", "longer", "shorter", "Basic", "é"],
)
async def test_wrong_token(admin: Admin, authorization: str | None) -> None:
    """Without the token nobody learns whether a path exists, and the challenge says how to ask."""
    stranger = Admin(admin.port, None)
    headers = () if authorization is None else (("Authorization", authorization),)
    for target in ("/operations", "/nowhere"):
        response = await stranger("GET", target, headers=headers)
        assert (response.status, response.json()["code"]) == (401, "unauthorized")
        challenge = 'Bearer realm="admin"' + ("" if authorization is None else ', error="invalid_token"')
        assert response.header("WWW-Authenticate") == challenge
        assert response.header("Server") is None


async def test_wrong_too_often(admin: Admin, port: Port, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever is wrong ten times in a minute is not listened to for the rest of it; the log names no token."""
    stranger = Admin(admin.port, "guess-guess-guess-guess")
    for _ in range(10):
        assert (await stranger("GET", "/operations")).status == 401
    for _ in range(3):
        throttled = await admin("GET", "/operations")
        assert (throttled.status, throttled.header("Retry-After")) == (429, "60")
    port.now += 60
    assert (await admin("GET", "/operations")).status == 200
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 10
    assert lines[0] == "the admin port refused 127.0.0.1, whose token is wrong"
    assert lines[-1].endswith("too often: it is throttled now")
    assert "guess" not in "".join(lines)


async def test_no_token_is_not_a_wrong_one(admin: Admin, caplog: pytest.LogCaptureFixture) -> None:
    """Requests without a credential, which any web page can have a browser send, lock nobody out and fill no log. Two
    credentials are none."""
    page = Admin(admin.port, None)
    for _ in range(20):
        assert (await page("GET", "/operations", headers=(("Origin", "https://evil.test"),))).status == 401
    assert (await admin("GET", "/operations")).status == 200
    assert caplog.records == []
    twice = await admin("GET", "/operations", headers=(("Authorization", f"Bearer {TOKEN}"),))
    assert twice.status in (400, 401)


GET_FAULTS = [
    ("/", 404, "no-such-path"),
    ("/operations/abc", 400, "malformed"),
    (f"/operations/{NO_SUCH}", 404, "unknown"),
    (f"/operations/{NO_SUCH}/resolve", 405, "method"),
    (f"/operations/{NO_SUCH}/look", 404, "no-such-path"),
    ("/operations?state=lost", 400, "malformed"),
    ("/operations?limit=501", 400, "malformed"),
    ("/operations?limit=1&limit=2", 400, "malformed"),
    ("/operations?older_than=5", 400, "malformed"),
    ("/operations?key=x", 400, "malformed"),
]


@pytest.mark.parametrize(("target", "status", "code"), GET_FAULTS, ids=[case[0] for case in GET_FAULTS])
async def test_wrong_question(admin: Admin, target: str, status: int, code: str) -> None:
    """What is asked wrongly gets a problem that says so, and a GET changes nothing."""
    response = await admin("GET", target)
    assert (response.status, response.json()["code"], response.json()["status"]) == (status, code, status)
    assert response.header("Content-Type") == "application/problem+json"
    assert response.json()["type"] == f"urn:idempotency-gateway:admin:{code}"
    assert response.json()["retryable"] is False
    assert response.header("Retry-After") is None


NEVER: dict[str, object] = {"never_happened": True, "why": "x"}
RESOLVE_FAULTS = [
    (b"", "the body is not JSON"),
    (b"[]", "the body is not a JSON object"),
    (b'{"why": "a", "why": "b"}', "names a member twice"),
    ({"why": "x"}, "say either completed, with the response, or never_happened: true"),
    ({**NEVER, "completed": COMPLETED}, "say either completed"),
    ({"never_happened": True}, "say why; it is recorded"),
    ({**NEVER, "by": " "}, "say who acts, or leave it out"),
    ({**NEVER, "by": "a" * 129}, "who must be one line of at most 128 printable characters"),
    ({**NEVER, "why": "x" * 1001}, "why must be one line of at most 1000 printable characters"),
    ({**NEVER, "why": "\x1b[31m"}, "why must be one line of at most 1000 printable characters"),
    ({**NEVER, "forced": True}, "an unknown name; known here: why, by, completed, never"),
    ({"completed": COMPLETED, "drop": True, "why": "x"}, "drop is for never_happened: true"),
    ({"completed": {"status": 201, "body_base64": "?"}, "why": "x"}, "completed.body_base64: it is not base64"),
    ({"completed": {"status": 200, "headers": [["A\r\nB", "c"]]}, "why": "x"}, "line 1 is not a header"),
]


@pytest.mark.parametrize(("asked", "text"), RESOLVE_FAULTS, ids=[str(number) for number in range(len(RESOLVE_FAULTS))])
async def test_wrong_wish(admin: Admin, asked: object, text: str) -> None:
    """What is wished wrongly is refused with what is wrong, before the store is asked."""
    response = await admin("POST", f"/operations/{NO_SUCH}/resolve", asked)
    assert (response.status, response.json()["code"]) == (400, "malformed")
    assert text in response.json()["detail"]


async def test_wrong_bodies(admin: Admin) -> None:
    """A form, a coded body and an endless one are refused; a body within the bound is not."""
    path = f"/operations/{NO_SUCH}/purge"
    form = (("Content-Type", "application/x-www-form-urlencoded"),)
    assert (await admin("POST", path, b"why=x", headers=form)).status == 415
    coded = (("Content-Type", "application/json"), ("Content-Encoding", "gzip"))
    assert (await admin("POST", path, b"x", headers=coded)).status == 415
    long = await admin("POST", path, b" " * (2 * 1024 * 1024))
    assert (long.status, long.json()["code"]) == (413, "too-large")
    assert (await admin("POST", path, b'{"why": "x"}' + b" " * 1024 * 1024)).status == 404


async def test_methods(admin: Admin) -> None:
    """Other methods are refused with the one that is answered; no other origin is let in."""
    for method in ("POST", "DELETE", "OPTIONS"):
        response = await admin(method, "/operations")
        assert (response.status, response.header("Allow")) == (405, "GET")
        assert response.header("Access-Control-Allow-Origin") is None


async def test_store_that_is_away(admin: Admin, port: Port) -> None:
    """A store that cannot be reached is told as such, and as passing."""
    await port.desk.store.close()
    for response, what in (
        (await admin("GET", "/operations"), "nothing could be read"),
        (await admin("POST", f"/operations/{NO_SUCH}/purge", {"why": "x"}), "nothing was changed"),
    ):
        assert (response.status, response.json()["code"]) == (503, "store-unavailable")
        assert (response.json()["retryable"], response.header("Retry-After")) == (True, "5")
        assert what in response.json()["detail"]


async def test_record_that_cannot_be_shown(sqlite: Store, tmp_path: Path) -> None:
    """A record that only a newer program can read is told as such, and left as it is."""
    async with served(sqlite, tmp_path) as (home, admin):
        await home.send()
        with closing(apsw.Connection(sqlite["durable"].removeprefix("sqlite://"))) as database:
            database.execute("UPDATE operation SET version = 2")
        path = f"/operations/{home.upstream.requests[0].values('Idempotency-Operation')[0].decode()}"
        for response in (await admin("GET", path), await admin("POST", f"{path}/purge", {"why": "x"})):
            assert (response.status, response.json()["code"]) == (503, "store-unavailable")
            assert "another version of this program" in response.json()["detail"]


async def test_memory_that_a_newer_program_wrote_down(admin: Admin, port: Port) -> None:
    """It cannot be told what was lost, nor accepted, and the response says whose verdict is needed."""
    await port.desk.store.cold.begin_epoch(b'{"version": 2}', 0)
    accepted = await admin("POST", "/memory/accept-loss", {"by": "ops", "why": "a restore"})
    for answer in (await admin("GET", "/memory"), accepted):
        assert (answer.status, answer.json()["code"]) == (503, "store-unavailable")
        assert "written by a newer program" in answer.json()["detail"]


# -- kept requests ----------------------------------------------------------------------------------------------------


async def test_requeue_and_withdraw(admin: Admin, port: Port, caplog: pytest.LogCaptureFixture) -> None:
    """A dead letter is requeued once, whoever asks and how often; what waits is called off; both are in the log."""
    caplog.set_level(logging.INFO, "gateway")
    operation_id = (await port.desk.kept(State.DEAD_LETTER)).identity.operation_id
    path, asked = f"/operations/{operation_id}", {"why": "token rotated", "by": "alice"}
    listed = (await admin("GET", "/operations?reason=unauthorized")).json()["operations"]
    assert [(each["operation_id"], each["state"]) for each in listed] == [(str(operation_id), "dead_letter")]
    done = await admin("POST", f"{path}/requeue", asked)
    assert (done.status, done.json()["operation"]["state"]) == (200, "accepted")
    again = await admin("POST", f"{path}/requeue", asked)
    assert (again.status, again.json()["detail"].partition(",")[0]) == (200, "The same command was given already")
    late = await admin("POST", f"{path}/requeue", {"why": "me too", "by": "bob"})
    assert (late.status, late.json()["code"]) == (409, "state")
    assert "ada for alice requeued it" in late.json()["detail"]
    gone = await admin("POST", f"{path}/withdraw", asked)
    assert (gone.status, gone.json()["operation"]["state"]) == (200, "released")
    assert [audit["event"] for audit in (await admin("GET", path)).json()["audits"]] == ["requeue", "withdraw"]
    for verb in ("requeue", "withdraw"):
        line = f"the admin API did a {verb} of operation {operation_id}, by ada for alice: token rotated"
        assert line in caplog.messages
    unknown = await admin("POST", f"/operations/{NO_SUCH}/requeue", asked)
    assert (unknown.status, unknown.json()["code"]) == (404, "unknown")


async def test_withdraw_many(admin: Admin, port: Port, caplog: pytest.LogCaptureFixture) -> None:
    """Counted first, and then only if so many still match. All of them at once, or as fast as possible, is nothing that
    can be asked for."""
    caplog.set_level(logging.INFO, "gateway")
    dead = [await port.desk.kept(State.DEAD_LETTER) for _ in range(3)]
    found = (await admin("GET", "/dead-letters?reason=unauthorized&limit=2")).json()
    assert (found["matching"], len(found["operations"])) == (3, 2)
    asked = {"reason": "unauthorized", "limit": 2, "rate": 1000, "why": "cancelled"}
    late = await admin("POST", "/withdraw", {**asked, "matching": 4})
    assert (late.status, late.json()["code"], late.json()["matching"]) == (409, "matches-changed", 3)
    assert late.json()["detail"] == "Nothing was changed: not 4, but 3 dead letters match by now."
    done = (await admin("POST", "/withdraw", {**asked, "matching": 3})).json()
    assert done == {"detail": "2 withdrawn, 0 skipped, 1 left.", "withdrawn": 2, "skipped": 0, "left": 1}
    assert "the admin API withdrew dead letters: 2 withdrawn, 0 skipped, 1 left, by ada: cancelled" in caplog.messages
    again = (await admin("POST", "/requeue", {**asked, "older_than": "0s", "reason": "unauthorized"})).json()
    assert again == {"detail": "1 requeued, 0 skipped, 0 left.", "requeued": 1, "skipped": 0, "left": 0}
    states = sorted(port.desk.record(each.identity.operation_id).state for each in dead)
    assert states == sorted([State.RELEASED, State.RELEASED, State.ACCEPTED])
    assert (await admin("GET", "/dead-letters")).status == 400
    wrongs = ({"reason": None}, "say which: by route"), ({"rate": None}, "rate: "), ({"limit": 10_001}, "limit: ")
    for wrong, text in wrongs:
        refused = await admin("POST", "/requeue", {name: each for name, each in (asked | wrong).items() if each})
        assert (refused.status, text in refused.json()["detail"]) == (400, True), wrong


async def test_pause_and_resume(admin: Admin, caplog: pytest.LogCaptureFixture) -> None:
    """A route is paused by name, listed, and resumed; one that does not exist is said to be unknown."""
    caplog.set_level(logging.INFO, "gateway")
    asked = {"route": "charge", "why": "their outage", "by": "alice"}
    assert (await admin("POST", "/pause", asked)).json()["detail"].startswith("Paused: charge.")
    entry = {"operation": "charge", "by": "ada for alice", "why": "their outage"}
    began = {"at": "2027-01-15T08:00:00Z", "event": "pause", **entry}
    assert (await admin("GET", "/paused")).json() == {
        "paused": [{"routes": ["charge"], "since": "2027-01-15T08:00:00Z", **entry}],
        "audits": [began],
    }
    resumed = "Resumed: charge is delivered again within seconds."
    assert (await admin("POST", "/resume", asked)).json()["detail"] == resumed
    assert (await admin("GET", "/paused")).json() == {"paused": [], "audits": [began, {**began, "event": "resume"}]}
    wrong = await admin("POST", "/pause", {**asked, "route": "nothing"})
    assert (wrong.status, wrong.json()["code"]) == (404, "no-such-route")
    assert f"the admin API did a resume, by ada for alice: their outage: {resumed}" in caplog.messages


async def test_a_kept_request_is_dropped(admin: Admin, port: Port) -> None:
    """Of a doubt that came to nothing, where that is asked for; what is said too early is overruled with `force`."""
    path = f"/operations/{(await port.desk.kept(State.IN_DOUBT)).identity.operation_id}/resolve"
    asked = {"never_happened": True, "drop": True, "why": "asked them"}
    early = await admin("POST", path, asked)
    assert (early.status, early.json()["code"], early.json()["operation"]["state"]) == (409, "early", "in_doubt")
    assert early.json()["detail"].endswith('To overrule this, add "force": true.')
    moved = await admin("POST", path, {**asked, "force": True, "token": 7})
    assert (moved.status, moved.json()["code"]) == (409, "moved")
    done = await admin("POST", path, {**asked, "force": True})
    assert (done.status, done.json()["operation"]["state"]) == (200, "released")
