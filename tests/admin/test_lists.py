"""Work lists of the console, sorted and filtered by the address; and finding: by a key, or by whatever has the id."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from gateway.admin import listing, reports
from gateway.core.identity.key import HeaderScope, Scope, identity_of
from gateway.core.message import IndexedHeaders
from gateway.core.operation import Record, RequestInfo, State
from gateway.store.operations import SinkBacklog, Tally
from tests.admin.shell import doubt, shelled
from tests.admin.test_pages import HOSTILE, Browser, Page, Port, port, vera

__all__ = ["port", "vera"]

COLUMNS = ["Operation", "Route", "Caller", "State", "In doubt since", "The service last", "Next"]


def claimed(
    port: Port, key: str, *, tenant: str = "t1", path: str = "/charges", request_id: str | None = None
) -> Record:
    """A record of this caller, with what is stored of its request."""
    claim = port.desk.claim(key)
    scope = HeaderScope(b"X-Tenant", None).find_scope(IndexedHeaders(((b"X-Tenant", tenant.encode()),)).by_name, None)
    parsed = port.desk.operations.policies.routes[0].key.find_key({b"idempotency-key": [key.encode()]}, None)
    assert isinstance(scope, Scope)
    identity = identity_of(service="shop", route="charge", operation="charge", scope=scope, key=parsed)
    request = RequestInfo("POST", "api.test", path, request_id)
    return port.desk.say(replace(claim, identity=identity, request=request))


def doubted(port: Port, key: str, path: str = "/charges", tenant: str = "t1") -> str:
    """The id of a record that is in doubt."""
    record = port.desk.abandon(claimed(port, key, path=path, tenant=tenant))
    port.desk.memory.clock.advance(1)
    return str(record.identity.operation_id)


def ids_of(page: Page) -> list[str]:
    return [link.rpartition("/")[2] for link in page.links if re.fullmatch(r"/ui/operations/[0-9a-f-]{36}", link)]


@pytest.fixture
async def three(port: Port) -> list[str]:
    """Three doubts, the oldest first: those that came into doubt late were sent early."""
    abouts = [
        ("k1", "reset_after_502", "t1", "/charges/b", "req-1"),
        ("k2", "timeout", "t2", "/charges/a", None),
        ("k3", "answered_503", "t2", "/refunds", None),
    ]
    records = {}
    for key, _, tenant, path, request_id in reversed(abouts):
        records[key] = claimed(port, key, tenant=tenant, path=path, request_id=request_id)
        port.desk.memory.clock.advance(1)
    for key, why, *_ in abouts:
        port.desk.abandon(records[key], why)
        port.desk.memory.clock.advance(1)
    return [str(records[key].identity.operation_id) for key, *_ in abouts]


async def test_columns_are_a_persons(vera: Browser, three: list[str]) -> None:
    """Method and path, caller, how long, what the service did, what happens next; no holder, token or attempt."""
    assert ids_of(await vera.page("/ui/")) == three
    page = await vera.page("/ui/operations")
    assert ids_of(page) == three
    assert [about["data-label"] for tag, about in page.elements if "data-label" in about][:7] == COLUMNS
    text = page.words
    for words in ("POST /charges/b", "the connection to the service broke, after status 502", "waits for a decision"):
        assert words in text
    assert "3s ago" in text
    assert "host:1:a" not in text
    assert page.text.strip().startswith("3 in doubt")


FILTERS = {
    "path=post+/refunds": [2],
    "path=api.test/charges/a": [1],
    "why=in+time": [1],
    "status=502": [0],
    "status=5xx": [0, 2],
    "request_id=req-1": [0],
    "route=other": [],
    "older_than=6s&status=5xx": [2],
    "caller=ffffffffffffffff": [],
}


@pytest.mark.parametrize("query", FILTERS)
async def test_filters(vera: Browser, three: list[str], query: str) -> None:
    """What matches is found, the oldest first; the form has what the address says."""
    page = await vera.page(f"/ui/operations?{query}")
    assert ids_of(page) == [three[number] for number in FILTERS[query]]
    if not FILTERS[query]:
        assert "No operation matches." in page.text
    given = dict(each.split("=") for each in query.split("&"))
    fields = {about.get("name"): about.get("value") for tag, about in page.elements if tag == "input"}
    assert all(fields.get(name, value) == value.replace("+", " ") for name, value in given.items())


async def test_a_caller(vera: Browser, three: list[str]) -> None:
    """The digest in a row leads to all of that caller in that state."""
    page = await vera.page("/ui/operations")
    (mine, theirs) = dict.fromkeys(link for link in page.links if "caller=" in link)
    assert ids_of(await vera.page(mine)) == three[:1]
    assert ids_of(await vera.page(theirs)) == three[1:]


@pytest.mark.parametrize("column", ["subject", "caller", "since", "did"])
async def test_sorting(vera: Browser, three: list[str], column: str) -> None:
    """By each column, in both directions, by a link in its head, which says so; equals stay the oldest first."""
    page = await vera.page(f"/ui/operations?sort={column}&route=charge")
    order = {"subject": [1, 0, 2], "did": [0, 2, 1], "since": [0, 1, 2]}.get(column)
    if order is not None:
        assert ids_of(page) == [three[number] for number in order]
    heads = [about.get("aria-sort") for tag, about in page.elements if tag == "th" and about.get("scope") == "col"]
    assert [each for each in heads if each] == ["ascending"]
    (back,) = [link for link in page.links if f"sort=-{column}" in link]
    assert "route=charge" in back
    page = await vera.page(back)
    assert sorted(ids_of(page)) == sorted(three)
    if column in ("subject", "since"):
        assert ids_of(page) == [three[number] for number in reversed(order)]
    assert "descending" in [about.get("aria-sort") for _, about in page.elements]


async def test_the_pages_of_a_sorted_list(vera: Browser, three: list[str]) -> None:
    """They go on with filters and order."""
    path, found = "/ui/operations?sort=subject&limit=2&path=s", []
    while path:
        page = await vera.page(path)
        found += ids_of(page)
        (path,) = [link for link in page.links if "page=" in link] or [""]
    assert found == [three[1], three[0], three[2]]


@pytest.mark.parametrize("name", [*listing.Wanted.__slots__, "route", "sort", "older_than", "page", "state", "reason"])
async def test_hostile_text_in_a_filter(vera: Browser, three: list[str], name: str) -> None:
    """It is text in the form, or is refused; it is nowhere markup."""
    for path in ("/ui/operations", "/ui/dead-letters"):
        for text in (HOSTILE, "\x00\x1b[31m", "é" * 100, "x" * 5000, "' OR 1=1 --", "%"):
            response = await vera.get(f"{path}?{name}={quote(text)}")
            assert response.status in (200, 400), (name, text, response.status)
            assert b"<script>alert" not in response.body


@pytest.mark.parametrize(
    "query", ["sort=token", "sort=--since", "status=x", "caller=xyz", f"path={'x' * 201}", "page=-1"]
)
async def test_a_wrong_filter(vera: Browser, query: str) -> None:
    """It is refused with what to give instead, and never taken for none."""
    response = await vera.get(f"/ui/operations?{query}")
    assert response.status == 400
    assert query.partition("=")[0] in response.body.decode() or "expected a number" in response.body.decode()


async def test_a_repeat_to_copy(port: Port, vera: Browser) -> None:
    """What a caller wrote into its path cannot end the word of the command that it is in."""
    path = "/a'; rm -rf / #\"$(id)"
    operation_id = doubted(port, "k1", path=path)
    page = await vera.page(f"/ui/operations/{operation_id}")
    (command,) = [text for _, about in page.elements if (text := about.get("data-copy") or "").startswith("curl")]
    words = shlex.split(command)
    assert words[:5] == ["curl", "-i", "-X", "POST", f"https://api.test{path}"]
    assert words[5:] == ["-H", "idempotency-key: THE SAME KEY"]


async def test_an_operation_to_explain(port: Port, vera: Browser) -> None:
    """Its page leads to the form with what is stored of its request; an id with nothing stored is refused."""
    operation_id = doubted(port, "k1", path=HOSTILE)
    listed = await vera.page("/ui/operations")
    assert HOSTILE in listed.text
    assert b"<script>alert" not in listed.body
    page = await vera.page(f"/ui/operations/{operation_id}")
    (link,) = [link for link in page.links if link.startswith("/ui/explain?")]
    page = await vera.page(link)
    shown = {about.get("name"): about.get("value") for _, about in page.elements}
    assert (shown["method"], shown["url"]) == ("POST", f"https://api.test{HOSTILE}")
    assert "idempotency-key: THE SAME KEY" in page.text
    assert "Add what is not" in page.text
    for unknown in ("0" * 32, "no-id"):
        assert (await vera.get(f"/ui/explain?operation={unknown}")).status == 400


async def test_more_than_are_sorted(port: Port, vera: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then they come by id, all of them and each once, and the page says so; a filter that leaves few sorts these."""
    monkeypatch.setattr(listing, "SORTED_MAX", 4)
    monkeypatch.setattr(listing, "PAGE_SIZE_MAX", 4)
    ids = [doubted(port, f"k{number}", path=f"/{number % 3}") for number in range(10)]
    path, found = "/ui/operations?limit=3", []
    while path:
        page = await vera.page(path)
        assert "too many to be put in order" in page.text
        assert not [link for link in page.links if "sort=" in link]
        found += ids_of(page)
        (path,) = [link for link in page.links if "after=" in link] or [""]
    assert found == sorted(ids)
    page = await vera.page("/ui/operations?path=/0")
    assert sorted(ids_of(page)) == sorted(ids[::3])


async def test_more_than_can_be_looked_at(port: Port, vera: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for all records of states without an index to be read: a page of the console or of the API may have
    none, does not say that none is left, and leads on to where something is."""
    monkeypatch.setattr(listing, "PAGE_SIZE_MAX", 4)
    monkeypatch.setattr(listing, "_LOOK_SECONDS", 0.0)
    ids = sorted(doubted(port, f"k{number}") for number in range(12))
    wanted = str(claimed(port, "rare", path="/rare").identity.operation_id)
    path, found, pages = "/ui/operations?state=all&path=rare", [], 0
    while path and not found:
        page = await vera.page(path)
        assert "No operation matches" not in page.text
        found, pages = ids_of(page), pages + 1
        (path,) = [link for link in page.links if "after=" in link] or [""]
    assert found == [wanted]
    assert pages == sorted([*ids, wanted]).index(wanted) // 4 + 1
    after, listed = "", []
    while after is not None:
        answer = (await port.program("vera")("GET", f"/operations?state=claimed&limit=2{after}")).json()
        listed += [each["operation_id"] for each in answer["operations"]] or [None]
        after = answer["next"] and f"&after={answer['next']}"
    assert sorted(listed, key=str) == [*[None] * 3, wanted]
    answer = (await port.program("vera")("GET", "/operations?limit=5")).json()
    assert [each["operation_id"] for each in answer["operations"]] == ids[:5]
    assert answer["next"] == ids[4]


async def test_a_page_waits_for_no_count(port: Port, vera: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows what was counted for the page before, and when; once it is counted, that."""
    tally, may_count = port.desk.store.tally, asyncio.Event()
    doubted(port, "k1")
    assert "1 operation is in doubt" in (await vera.page("/ui/")).text

    async def count() -> Tally:
        await may_count.wait()
        return await tally()

    monkeypatch.setattr(port.desk.store, "tally", count)
    doubted(port, "k2")
    text = (await vera.page("/ui/")).text
    assert "1 operation is in doubt" in text
    assert "Counted at" in text
    may_count.set()
    text = (await vera.page("/ui/")).text
    assert "2 operations are in doubt" in text
    assert "Counted at" not in text


async def test_other_states(port: Port, vera: Browser) -> None:
    """Each has its own words for what was last and what is next."""
    for state in (State.COMPLETED, State.RELEASED, State.CLAIMED):
        await port.desk.in_state(state)
    for state in (State.ACCEPTED, State.DEAD_LETTER):
        await port.desk.kept(state)
    text = (await vera.page("/ui/operations?state=all")).words
    for words in (
        "responded with 201repeats get its response for 1h",
        "did nothing of ita repeat runs",
        "has not respondedits attempt ends, or is in doubt in 30s",
        "was not askedis due",
        "the service answered 401; the service refused its credentialswaits for a decision",
    ):
        assert words in text
    assert len(ids_of(await vera.page("/ui/dead-letters?reason=unauthorized&status=401"))) == 1
    assert ids_of(await vera.page("/ui/dead-letters?reason=deadline")) == []


async def test_sinks(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each state has its shape and its word, and the title counts what is not active; what a sink said is text."""
    backlogs = {
        "active": SinkBacklog(),
        "failing": SinkBacklog(pending=12_000, oldest_seconds=7200.0, last_error=HOSTILE),
        "behind": SinkBacklog(pending=1, oldest_seconds=100.0),
        "suspended": SinkBacklog(suspended_why="olga: their outage"),
        "removed": SinkBacklog(dead=3),
    }
    kinds = {name: "webhook" for name in backlogs if name != "removed"}

    async def found() -> list[reports.Report]:
        return reports.sinks(kinds, backlogs)

    monkeypatch.setattr(port.desk.operations, "sinks", found)
    page = await (await port.signed_in("olga")).page("/ui/sinks")
    assert page.text.strip().startswith("4 of 5 not active")
    for name, shape in zip(backlogs, "●▲◆‖–", strict=True):
        assert f"{shape} {name}" in page.text
        assert f"/ui/sinks/{name}/{'resume' if name == 'suspended' else 'suspend'}" in page.links
    assert HOSTILE in page.text
    assert "12,000" in page.text
    assert "2h" in page.text


# -- a key alone ------------------------------------------------------------------------------------------------------


async def found(port: Port, form: dict[str, str], name: str = "vera") -> Page:
    response = await (await port.signed_in(name)).submit("/ui/find", form)
    assert response.status == 200, response.body
    return response


async def test_a_key_alone(port: Port, vera: Browser, caplog: pytest.LogCaptureFixture) -> None:
    """It lists the callers that have it, by their digests, and nothing of what they asked for; it is audited. Its
    digest finds as much; with the caller's, it is that one alone."""
    caplog.set_level(logging.INFO)
    mine, theirs = doubted(port, "order-1", path="/secret"), claimed(port, "order-1", tenant="t2", path="/secret")
    port.desk.complete(theirs)
    doubted(port, "order-2", tenant="t3")
    about, their_id = theirs.identity, str(theirs.identity.operation_id)
    page = await found(port, {"key": "order-1"})
    assert sorted(ids_of(page)) == sorted([mine, their_id])
    assert about.scope_digest.hex() in page.text
    assert "/secret" not in page.text
    assert "3 callers were asked after." in page.words
    audit = (await vera.page("/ui/audit")).words
    assert "vera looked for the key with digest " in audit
    assert about.key_digest.hex()[:16] in audit
    assert "2 found" in audit
    assert "order-1" not in audit + caplog.text

    assert len(ids_of(await found(port, {"key": about.key_digest.hex()}))) == 2
    caller = about.scope_digest.hex()[:8]
    assert ids_of(await found(port, {"key": about.key_digest.hex(), "caller": caller})) == [their_id]
    assert "None of the 3 callers" in (await found(port, {"key": "f" * 64})).words


async def test_a_key_among_too_many(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers that were not asked after are named as such, and their digest finds what they have."""
    monkeypatch.setattr(listing, "_CALLERS_MAX", 2)
    records = [claimed(port, "order-1", tenant=f"t{number}") for number in range(4)]
    page = await found(port, {"key": "order-1"})
    assert len(ids_of(page)) == 2
    assert "there are more: give the digest of the caller" in page.text
    for record in records:
        page = await found(port, {"key": "order-1", "caller": record.identity.scope_digest.hex()})
        assert ids_of(page) == [str(record.identity.operation_id)]


@pytest.mark.parametrize("form", [{"key": "x" * 201}, {"key": "k", "caller": HOSTILE}, {"key": "é"}], ids=str)
async def test_a_wrong_key(port: Port, vera: Browser, form: dict[str, str]) -> None:
    """It is refused, and no markup on the page; nobody without a session finds anything."""
    response = await vera.submit("/ui/find", form)
    assert response.status == 400
    assert b"<script>alert" not in response.body
    stranger = port.browser()
    assert (await stranger.post("/ui/find", form)).status != 200


OTHER = "6f1c1b0e-5f2a-8a3c-9d1e-2b7f0c4d5e6a"
KEY = "0b9f1de2-7f0c-4c3f-8f0e-0d6a2b1c9e55"
EXPECTED = "expected the id of an operation, as its problem document or inspect --list shows it"

# `ID` is that of the operation.
TEXTS = {
    "id": "  ID\n",
    "upper case": "{ID}",
    "location": "Location: /.idempotency/operations/ID",
    "problem": json.dumps(
        {"code": "in-doubt", "operation_id": "ID", "first_operation": OTHER, "error": {"message": "See ID."}}, indent=2
    ),
    "problem in a log": json.dumps({"body": json.dumps({"first_operation": OTHER, "operation_id": "ID"})}),
    "headers of the service": f"POST /v1 HTTP/1.1\r\nX-Request-Id: {OTHER}\r\nidempotency-operation: ID\r\n\r\n",
    "command": f"curl -X POST 'https://a.example/' -H 'Idempotency-Key: {KEY}' -H 'Idempotency-Operation: ID' -d x",
    "log line": f"INFO POST charge 409 route=charge operation_id=ID request_id={OTHER} first_operation={OTHER}",
    "span": json.dumps({"idempotency.operation.id": "ID", "links": OTHER}),
    "mail": "> Hello,\n> we got this for order ID.\n> <b>ID</b> again",
}
GARBAGE = {
    "cut": (OTHER[:-1], "or a text with it"),
    "in a longer one": (f"0{OTHER}", "or a text with it"),
    "other UUID": (KEY, "request ids, trace ids and keys are not searched"),
    "trace id": ("traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "are not searched"),
    "key": (
        f"curl -H 'Idempotency-Key: {KEY}' https://a.example/v1",
        "a key alone is not enough. Find it by its request",
    ),
    "two": (f"operation_id={OTHER} operation_id={OTHER[:-1]}b", "this has 2 of them. Give the part that has one"),
    "markup": ("<script>alert('x')</script>", "or a text with it"),
    "a mebibyte": ("secret" * 174_762 + "<i>", "this is longer than 65536 characters. Give the part that has the id"),
    "nearly names": ("operation_id" + " " * 9 + '"' * 60_000, "or a text with it"),
}


@pytest.mark.parametrize("form", TEXTS)
async def test_what_has_the_id(port: Port, vera: Browser, form: str) -> None:
    """One step leads from it to the history of the operation."""
    record = await port.desk.in_state(State.COMPLETED)
    operation_id = str(record.identity.operation_id)
    text = TEXTS[form].replace("ID", operation_id.upper() if form == "upper case" else operation_id)
    found = await vera.submit("/ui/find", {"id": text})
    assert (found.status, found.header("Location")) == (303, f"/ui/operations/{operation_id}")
    over_api = await port.program("vera")("POST", "/find", {"text": text})
    shown = await port.program("vera")("GET", f"/operations/{operation_id}")
    assert (over_api.status, over_api.json()["operation_id"]) == (200, operation_id)
    assert over_api.json().keys() == shown.json().keys()


@pytest.mark.parametrize("form", GARBAGE)
async def test_what_has_none(port: Port, vera: Browser, form: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is refused with what to give instead; a long text, which may have a credential in it, is shown nowhere."""
    caplog.set_level(logging.DEBUG)
    text, instead = GARBAGE[form]
    refused = await port.program("vera")("POST", "/find", {"text": text})
    assert (refused.status, refused.json()["code"]) == (400, "malformed")
    detail = refused.json()["detail"]
    assert detail.startswith(EXPECTED)
    assert instead in detail
    page = await vera.submit("/ui/find", {"id": text})
    assert page.status == 400
    assert instead in page.words
    assert len(page.body) < 16_384
    assert b"<script>alert" not in page.body
    assert b"secretsecret" not in page.body
    assert text not in caplog.text


async def test_a_short_one_is_shown_again(vera: Browser) -> None:
    """It was mistyped, perhaps; what is markup in it is none on the page. A credential is longer."""
    page = await vera.submit("/ui/find", {"id": "</textarea><script>x</script>"})
    assert b"&lt;/textarea&gt;&lt;script&gt;x&lt;/script&gt;</textarea>" in page.body
    page = await vera.submit("/ui/find", {"id": "Authorization: Bearer " + "s" * 20})
    assert b"sss" not in page.body


async def test_on_the_command_line(sqlite: dict[str, Any], tmp_path: Path) -> None:
    """`inspect` takes it as an argument or, which keeps it out of the shell's history, from standard input."""
    async with shelled(sqlite, tmp_path) as (running, shell):
        operation_id = await doubt(running)
        problem = (await running.send()).body
        for shown in (
            await shell("inspect", problem.decode()),
            await shell("inspect", "-", stdin=b"\xff\xfe" + problem),
        ):
            assert (shown.code, shown.err) == (0, "")
            assert f"operation         {operation_id}\n" in shown.out
        for text in (b"", b"4711", b"x" * 300_000):
            refused = await shell("inspect", "-", stdin=text)
            assert (refused.code, refused.out) == (2, "")
            assert "4711" not in refused.err
