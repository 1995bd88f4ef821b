"""All that the admin port offers, in one list: every path with the role that it needs, and the fields of every form."""

from __future__ import annotations

import json
from uuid import uuid4

import pytest

from gateway.core.operation import State
from tests.admin.test_pages import PEOPLE, TOKENS, Browser, Port, port
from tests.support import http

__all__ = ["port"]

_ID = "00000000-0000-8000-8000-000000000000"
# As `METHOD path: least role`.
PATHS = f"""
GET /operations: viewer
GET /operations/{_ID}: viewer
POST /operations/{_ID}/resolve: operator
POST /operations/{_ID}/requeue: operator
POST /operations/{_ID}/withdraw: operator
POST /find: viewer
POST /requeue: operator
POST /withdraw: operator
GET /dead-letters: viewer
GET /paused: viewer
POST /pause: operator
POST /resume: operator
GET /sinks: viewer
POST /sinks/s/suspend: operator
POST /sinks/s/resume: operator
GET /events: viewer
POST /events/e/redeliver: operator
POST /operations/{_ID}/purge: admin
POST /operations/{_ID}/erase: admin
GET /memory: viewer
POST /memory/accept-loss: admin
GET /journal: viewer
GET /observed: viewer
GET /activity: viewer
POST /config/reload: admin
GET /ui: viewer
GET /ui/: viewer
POST /ui/sign-out: viewer
GET /ui/operations: viewer
GET /ui/operations/{_ID}: viewer
GET /ui/operations/{_ID}/response: operator
GET /ui/operations/{_ID}/resolve: operator
POST /ui/operations/{_ID}/resolve: operator
GET /ui/operations/{_ID}/requeue: operator
POST /ui/operations/{_ID}/requeue: operator
GET /ui/operations/{_ID}/withdraw: operator
POST /ui/operations/{_ID}/withdraw: operator
GET /ui/operations/{_ID}/purge: admin
POST /ui/operations/{_ID}/purge: admin
GET /ui/operations/{_ID}/erase: admin
POST /ui/operations/{_ID}/erase: admin
GET /ui/find: viewer
POST /ui/find: viewer
GET /ui/dead-letters: viewer
GET /ui/dead-letters/requeue: operator
POST /ui/dead-letters/requeue: operator
GET /ui/dead-letters/withdraw: operator
POST /ui/dead-letters/withdraw: operator
GET /ui/sinks: viewer
GET /ui/sinks/s: viewer
GET /ui/sinks/s/suspend: operator
POST /ui/sinks/s/suspend: operator
GET /ui/sinks/s/resume: operator
POST /ui/sinks/s/resume: operator
GET /ui/events/e/redeliver: operator
POST /ui/events/e/redeliver: operator
GET /ui/pauses: viewer
GET /ui/pauses/charge/pause: operator
POST /ui/pauses/charge/pause: operator
GET /ui/pauses/charge/resume: operator
POST /ui/pauses/charge/resume: operator
GET /ui/journal: viewer
GET /ui/journal/{_ID}/1/response: operator
GET /ui/journal/{_ID}/1/acknowledge: operator
POST /ui/journal/{_ID}/1/acknowledge: operator
GET /ui/memory: viewer
GET /ui/memory/accept-loss: admin
POST /ui/memory/accept-loss: admin
GET /ui/audit: viewer
GET /ui/routes: viewer
GET /ui/observe: viewer
GET /ui/explain: viewer
POST /ui/explain: viewer
GET /ui/configuration: viewer
GET /ui/configuration/reload: admin
POST /ui/configuration/reload: admin
""".split("\n")[1:-1]


@pytest.mark.parametrize("line", PATHS)
async def test_a_path_and_its_role(port: Port, line: str) -> None:
    """It is there for its role and for those above, and forbidden to those below."""
    request, _, least = line.rpartition(": ")
    method, _, path = request.partition(" ")
    ranks = [role for _, _, role in PEOPLE]
    for name, token, role in PEOPLE:
        response = await http.request(port.port, method, path, [("Authorization", f"Bearer {token}")])
        is_refused = ranks.index(role) < ranks.index(least)
        assert (response.status == 403) is is_refused, (name, response.status)
        assert response.status != 405, name
        if response.status == 404 and "json" in (response.header("Content-Type") or ""):
            assert response.json()["code"] != "no-such-path"
        assert b"There is nothing here." not in response.body, name


RECORD = ("form_token", "token", "why")
BODIES = {
    "resolve": {"completed", "never_happened", "drop", "force", "token", "why", "by"},
    "requeue": {"token", "why", "by"},
    "withdraw": {"token", "why", "by"},
    "purge": {"why", "by"},
    "erase": {"yes", "why", "by"},
}


@pytest.mark.parametrize("verb", BODIES)
async def test_the_members_of_a_body(port: Port, verb: str) -> None:
    """A body with another name is refused, and told which names there are."""
    headers = [("Authorization", f"Bearer {TOKENS['ada']}"), ("Content-Type", "application/json")]
    body = json.dumps({"why": "x", "other": 1}).encode()
    refused = await http.request(port.port, "POST", f"/operations/{uuid4()}/{verb}", headers, body)
    assert refused.status == 400
    _, _, names = refused.json()["detail"].partition("known here: ")
    assert set(names.partition(";")[0].split(", ")) == BODIES[verb]


@pytest.mark.parametrize(
    ("state", "verb", "fields"),
    [
        (State.DEAD_LETTER, "requeue", RECORD),
        (State.DEAD_LETTER, "withdraw", RECORD),
        (State.COMPLETED, "purge", RECORD),
        (State.TOMBSTONE, "erase", (*RECORD, "typed")),
        (State.IN_DOUBT, "resolve", ("file", "form_token", "form_token", "pasted", "token", "token", "way", "way")),
    ],
)
async def test_the_form_of_an_operation(port: Port, state: State, verb: str, fields: tuple[str, ...]) -> None:
    """Its page leads to it, and it asks for no more than this."""
    kept = state is State.DEAD_LETTER
    record = await (port.desk.kept(state) if kept else port.desk.in_state(state))
    path, browser = f"/ui/operations/{record.identity.operation_id}", await port.signed_in("ada")
    assert f"{path}/{verb}" in (await browser.page(path)).links
    expected = fields if verb != "resolve" else (*fields, "why", "why")
    assert await fields_of(browser, f"{path}/{verb}") == sorted(expected)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/ui/sinks/s/suspend", RECORD),
        ("/ui/sinks/s/resume", RECORD),
        ("/ui/events/e/redeliver", RECORD),
        ("/ui/pauses/charge/pause", RECORD),
        ("/ui/pauses/charge/resume", RECORD),
        (f"/ui/journal/{_ID}/1/acknowledge", RECORD),
        ("/ui/memory/accept-loss", (*RECORD, "typed")),
        ("/ui/configuration/reload", RECORD),
        ("/ui/find", ("body", "caller", *("form_token",) * 3, "headers", "id", "key", "route")),
        ("/ui/explain", ("body", "file", "form_token", "headers", "method", "peer", "response", "url", "with_record")),
        ("/ui/operations", ("caller", "older_than", "path", "request_id", "route", "state", "status", "why")),
        # Its filter, and the one of many at once.
        ("/ui/dead-letters", ("caller", "path", "request_id", "status", "why", *("older_than", "reason", "route") * 2)),
        ("/ui/dead-letters/requeue", ("older_than", "reason", "route")),
    ],
)
async def test_the_form_of_a_page(port: Port, path: str, fields: tuple[str, ...]) -> None:
    """It asks for no more than this."""
    assert await fields_of(await port.signed_in("ada"), path) == sorted(fields)


async def fields_of(browser: Browser, path: str) -> list[str]:
    """The names of all fields of a page, but for the forms of its head: one finds, one signs out."""
    page = await browser.page(path)
    names = [about["name"] or "" for tag, about in page.elements if "name" in about and tag != "meta"]
    for name in ("form_token", "id", "form_token"):
        names.remove(name)
    return sorted(names)
