"""The console of a whole gateway, over HTTP as a browser sends it: what it says of its process, and its pictures."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4
from xml.etree import ElementTree as ET

import jinja2
import pytest

from gateway.admin.pictures import Picture, counted_part, counted_since_us, pictures
from gateway.app.stores import journal_directory, name_of
from gateway.app.worker import Generations
from gateway.config import load
from gateway.core.message import StoredResponse
from gateway.core.operation import Complete, Release
from gateway.store.journal.journal import SqliteJournal
from gateway.store.operations import ActivityRow
from gateway.upkeep.activity import HOUR, WEEK, Activity, Numbers, Window, encoded
from tests.admin.shell import doubt
from tests.admin.test_pages import HOSTILE, TOKENS, Browser, multipart
from tests.support.eventually import eventually
from tests.support.house import BODY, House, config_text, sqlite_store, status_of
from tests.support.upstream import Answer, RecordingUpstream
from tests.upkeep.test_pictures import of

ROLES = {"vera": "viewer", "olga": "operator", "ada": "admin"}
ADMIN = {
    "listen": "127.0.0.1:0",
    "tokens": [{"name": name, "token": TOKENS[name], "role": role} for name, role in ROLES.items()],
}


@dataclass
class Consoled:
    """A gateway that was started from a file, and its console."""

    house: House
    file: Path

    async def signed_in(self, name: str) -> Browser:
        browser = Browser(self.house.gateway.admin_address[1])
        assert (await browser.sign_in(name)).status == 303
        return browser

    def rewrite(self, old: str, new: str) -> None:
        text = self.file.read_text()
        assert old in text
        self.file.write_text(text.replace(old, new))


@asynccontextmanager
async def consoled(directory: Path, **changes: Any) -> AsyncIterator[Consoled]:
    """With a person of each role."""
    file = directory / "gateway.yaml"
    async with RecordingUpstream() as upstream:
        file.write_text(config_text(upstream.url, sqlite_store(directory), directory, **{"admin": ADMIN, **changes}))
        gateways = Generations(load(file, {}), read=lambda: load(file, {}))
        await gateways.start()
        gateway = gateways.current
        try:
            yield Consoled(House(gateway, upstream, gateway.address[1], gateway.status_address[1]), file)
        finally:
            await gateways.stop()


# -- explaining -------------------------------------------------------------------------------------------------------

REQUEST = {
    "method": "POST",
    "url": "http://gateway.test/charges",
    "headers": "Content-Type: application/json\nX-Tenant: t1\nIdempotency-Key: k1",
    "body": '{"amount":1000,"currency":"eur"}',
    "peer": "127.0.0.1",
    "with_record": "yes",
}


async def test_a_request_is_explained(tmp_path: Path) -> None:
    """A viewer learns what a request would get, by which setting, and what the record says; nothing is sent."""
    async with consoled(tmp_path) as it:
        browser = await it.signed_in("vera")
        page = await browser.submit("/ui/explain", {**REQUEST, "response": "503"})
        text = page.text
        assert page.status == 200
        assert "503 released: retryable" in text
        assert "there is none: the key is new" in text
        assert it.house.upstream.requests == []
        (line,) = re.findall(r'/ui/configuration#L(\d+)"><code>routes\[0\]\.scope<', page.body.decode())
        configuration = (await browser.get("/ui/configuration")).body.decode()
        assert re.search(rf'id="L{line}">\s+scope:', configuration)
        it.house.upstream.on("/charges", Answer(201))
        await it.house.send()
        known = (await browser.submit("/ui/explain", REQUEST)).text
        assert "201 replayed; nothing is executed" in known
        other = (await browser.submit("/ui/explain", {**REQUEST, "body": "{}"})).text
        assert "differs in: body" in other
        assert len(it.house.upstream.requests) == 1


WRONG = {
    "write the whole URL": {"url": "/charges"},
    "end": {"headers": f"{REQUEST['headers']}\nContent-Length: 5"},
    "line 1 is not a header": {"headers": "nonsense"},
    "one such as 192.0.2.1": {"peer": "next door"},
    "from 200 to 599": {"response": "99"},
    "expected a number": {"response": "x"},
}


async def test_what_is_not_explained(tmp_path: Path) -> None:
    """What is wrong is said. No key and no caller is shown; they stay in the form of whoever wrote them."""
    async with consoled(tmp_path) as it:
        browser = await it.signed_in("vera")
        for detail, change in WRONG.items():
            page = await browser.submit("/ui/explain", {**REQUEST, "body": "", **change})
            assert (page.status, detail in page.text) == (400, True), detail
        headers = "X-Tenant: tenant-secret\nIdempotency-Key: key-secret"
        page = await browser.submit("/ui/explain", {**REQUEST, "headers": headers, "body": HOSTILE})
        said, _, form = page.body.decode().partition('<form method="post" action="/ui/explain"')
        assert "secret" not in said
        assert "key-secret" in form
        assert "<script>alert" not in form


# -- the configuration ------------------------------------------------------------------------------------------------


async def test_reloading(tmp_path: Path) -> None:
    """An admin reloads and sees what changed, or why not; both are on the audit page. An operator may not. No token is
    on a page."""
    path = "/ui/configuration/reload"
    async with consoled(tmp_path) as it:
        ada, olga = await it.signed_in("ada"), await it.signed_in("olga")
        assert (await olga.get(path)).status == 403
        assert "not with your role" in (await olga.page("/ui/configuration")).text
        form = {**(await ada.page(path)).forms[path], "why": "a new limit"}
        assert "what is in force already" in (await ada.post(path, form)).text
        it.rewrite("name: charge", "name: charge\n  in_flight: {wait: 1s}")
        assert "routes[charge].in_flight.wait" in (await ada.post(path, form)).text
        before = (await ada.page("/ui/configuration")).text
        assert "durable:" in before
        assert not any(token in before for token in TOKENS.values())
        digest = re.search(r"its hash is ([0-9a-f]+)", before)
        it.rewrite("wait: 1s", "wait: yesterday")
        refused = await ada.post(path, form)
        assert refused.status == 422
        assert re.search(r"Refused, and nothing was changed:\n.*wait", refused.text, re.DOTALL)
        after = (await ada.page("/ui/configuration")).text
        assert digest is not None
        assert digest[0] in after
        assert "The last reload was refused since" in after
        assert "the last reload was refused since" in (await ada.page("/ui/")).text
        assert (await ada.page("/ui/audit")).text.count("Reload the configuration") == 3


# -- what it has seen -------------------------------------------------------------------------------------------------


async def test_the_overview_shows_what_it_has_seen(tmp_path: Path) -> None:
    """It counts requests since the start of the process, and has their pictures, without a script and with their
    numbers. The window is in the address, and another one is refused. What a row of the store has as a name is text."""
    async with consoled(tmp_path) as it:
        browser = await it.signed_in("vera")
        it.house.upstream.on("/charges", Answer(201))
        for _ in range(4):
            await it.house.send()
        page = await browser.get("/ui/")
        table = page.body.decode().partition("By route and verdict</caption>")[2]
        assert re.findall(r'scope="col"[^>]*>([^<]+)<', table) == ["Route", "replayed", "stored"]
        assert re.findall(r'<td class="number">([^<]+)<', table) == ["3", "1"]
        assert "4 requests on protected routes" in page.text
        assert "75 % of the requests were replayed." in page.text
        elements = page.elements
        assert sum(tag == "details" and str(about.get("id")).startswith("numbers-") for tag, about in elements) == 7
        assert not [about for _, about in elements if "style" in about]
        for query in ("?window=year", "?window=hour&window=week", "?other=1"):
            assert (await browser.get(f"/ui/{query}")).status == 400

        now_us = time.time_ns() // 1_000
        at_us = now_us - now_us % WEEK.row_us - WEEK.row_us
        names = {kind: {HOSTILE: 3.0} for kind in ("verdict", "route", "lag", "mark", "gateway", HOSTILE)}
        row = ActivityRow(uuid4(), WEEK.row_us, at_us, now_us + HOUR.length_us, encoded([(0, names)]))
        await it.house.gateway._store.cold.save_activity("shop", row)
        week = await browser.get("/ui/?window=week")
        assert "The last week" in week.text
        assert "/ui/#pictures" in week.links
        assert HOSTILE in week.text
        assert b"<script>alert" not in week.body


async def test_observed_routes(tmp_path: Path) -> None:
    """The report of each, with its sentence and the line to change; without one, that there is none."""
    async with consoled(tmp_path) as it:
        browser = await it.signed_in("vera")
        assert "No route is in mode observe." in (await browser.page("/ui/observe")).text
        assert "has had no request on a protected route" in (await browser.page("/ui/")).text
    async with consoled(tmp_path, route={"mode": "observe"}) as it:
        browser = await it.signed_in("vera")
        assert "Nothing was observed in the last 24 hours." in (await browser.page("/ui/observe")).text
        for body in (BODY, BODY, b"{}"):
            await it.house.send("k1", body)

        async def told() -> str:
            text = (await browser.page("/ui/observe")).text
            return text if "1 of 3 would have been refused; 1 would not have run again." in text else ""

        said = await eventually(told)
        for words in ("key-reused", "mode: enforce", "Enforcing starts with no memory"):
            assert words in said


# -- the journal ------------------------------------------------------------------------------------------------------


async def test_a_refused_outcome_is_exported_and_acknowledged(tmp_path: Path) -> None:
    """By an operator, with a reason; it is kept in a file beside the journal. A viewer may do neither."""
    async with consoled(tmp_path) as it:
        config = it.house.gateway.config
        journal = SqliteJournal(journal_directory(config), name_of(config))
        await journal.start()
        outcome = Complete(uuid4(), 7, uuid4(), StoredResponse(201, b"Created", (), b"charged"), 10, 20)
        released = Release(uuid4(), 2, uuid4(), 30)
        for each in (outcome, released):
            await journal.refuse([(await journal.append("charge", each), "the record is tombstone")])
        base, without_response = f"/ui/journal/{outcome.operation_id}/7", f"/ui/journal/{released.operation_id}/2"
        vera, olga = await it.signed_in("vera"), await it.signed_in("olga")
        links = set((await olga.page("/ui/journal")).links)
        paths = [f"{each}/{verb}" for each in (base, without_response) for verb in ("response", "acknowledge")]
        assert links & set(paths) == {*paths[:2], paths[3]}
        for path in paths[:2]:
            assert (await vera.get(path)).status == 403
        response = await olga.get(f"{base}/response")
        assert response.body == b"HTTP/1.1 201 Created\r\n\r\ncharged"
        assert (response.header("Content-Disposition") or "").startswith("attachment")
        path = f"{base}/acknowledge"
        done = await olga.submit(path, {"why": "refunded by hand"})
        assert (done.status, "is out of the journal" in done.text) == (200, True)
        (kept,) = (journal_directory(config) / "acknowledged").glob("*.json")
        assert "refunded by hand" in kept.read_text()
        again = await olga.submit(path, {"why": "again"})
        assert (again.status, "Nothing was changed" in again.text) == (409, True)
        assert (await olga.get(f"{base}/response")).status == 404
        assert "read the journaled response under token 7" in (await olga.page("/ui/audit")).text
        await journal.close()


# -- uploads ----------------------------------------------------------------------------------------------------------


async def test_an_upload_is_in_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an operator uploads is read in memory, however long it is: no temporary file ever has it."""
    made: list[str] = []

    def no_file(*_: object, **__: object) -> Any:
        made.append("a file")
        raise OSError("there is no room for temporary files")

    async with consoled(tmp_path, route={"response": {"max_stored_bytes": "1MiB"}}) as it:
        operation_id = await doubt(it.house)
        olga = await it.signed_in("olga")
        path = f"/ui/operations/{operation_id}/resolve"
        page = await olga.page(path)
        content = b"HTTP/1.1 201 Created\r\n\r\n" + os.urandom(1024 * 1024 - 100)
        fields = {**page.forms[path], "way": "happened", "why": "seen in the ledger", "confirmed": "yes"}
        body = multipart(fields, content)
        with monkeypatch.context() as patch:
            for name in ("SpooledTemporaryFile", "TemporaryFile", "NamedTemporaryFile", "mkstemp"):
                patch.setattr(tempfile, name, no_file)
            patch.setattr("aiohttp.web_request.SpooledTemporaryFile", no_file)
            done = await olga.upload(path, body)
        assert (done.status, made) == (200, []), done.body
        repeat = await it.house.send()
        assert (status_of(repeat), repeat.body) == ((201, "recovered"), content.partition(b"\r\n\r\n")[2])


async def test_an_upload_has_its_limit(tmp_path: Path) -> None:
    """It is refused while it comes, and so is a form that is none."""
    async with consoled(tmp_path, route={"response": {"max_stored_bytes": "1KiB"}}) as it:
        olga = await it.signed_in("olga")
        body = multipart({}, b"x" * 2_000_000)
        assert (await olga.upload("/ui/find", body)).status == 413
        assert (await olga.upload("/ui/find", body[:200], "multipart/form-data; boundary=C")).status == 400
        assert (await olga.upload("/ui/find", b"x", "multipart/form-data")).status == 400


SVG = "{http://www.w3.org/2000/svg}"
SINCE_US = 1_800_000_000 // 3_600 * 3_600 * 1_000_000


def activity(buckets: dict[int, Numbers], window: Window = HOUR) -> Activity:
    count = window.length_us // window.span_us
    return Activity(window, SINCE_US, [buckets.get(at) for at in range(count)])


def drawn(buckets: dict[int, Numbers], window: Window = HOUR) -> dict[str, Picture]:
    return {each.id: each for each in pictures(activity(buckets, window))}


DRAW: Any = (
    jinja2.Environment(
        loader=jinja2.PackageLoader("gateway.admin"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    .get_template("pictures.html")
    .module
)


def parsed(svg: str) -> ET.Element:
    return ET.fromstring(str(svg).strip().replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1))


def plotted(picture: Picture) -> ET.Element:
    return parsed(DRAW.plot(picture))


@pytest.mark.parametrize("window", [HOUR, WEEK])
@pytest.mark.parametrize(
    "buckets",
    [
        {},
        {0: of({("verdict", "stored"): 1.0})},
        {at: of({("verdict", "stored"): 1e9, ("gateway", "+Inf"): 3.0, ("open",): 2.0}) for at in range(120)},
        {7: of({("verdict", HOSTILE): 1.0, ("route", HOSTILE): 1.0, ("lag", HOSTILE): 2.0, ("mark", HOSTILE): 1.0})},
    ],
    ids=["nothing", "one", "full", "hostile"],
)
def test_each_is_whole(buckets: dict[int, Numbers], window: Window) -> None:
    """Each plot has a title and a description that it is labelled by, no style and no script, and finite numbers."""
    for picture in drawn(buckets, window).values():
        plots = [plotted(picture)] if picture.plot else []
        for root in (*plots, *(parsed(DRAW.spark(title, path)) for *_, title, path in picture.parts)):
            assert root.get("role") == "img"
            assert root.find(f"{SVG}title") is not None
            tags = {each.tag.removeprefix(SVG) for each in root.iter()}
            assert tags <= {"svg", "title", "desc", "g", "path", "rect", "text", "defs", "pattern", "circle"}
            names = {name for each in root.iter() for name in each.attrib}
            assert not [name for name in names if name.startswith(("on", "style", "href"))]
            assert not re.search(r"nan|inf\b", "".join(each.get("d", "") for each in root.iter()))
        for root in plots:
            assert set((root.get("aria-labelledby") or "").split()) <= {each.get("id") for each in root.iter()}
        assert len({len(picture.lines), *(len(texts) for _, texts in picture.table)}) == 1


def test_the_table_has_the_numbers_of_the_picture() -> None:
    """Sums of what was counted, the greatest of what was measured, and a dash where nobody counted."""
    numbers = of({("verdict", "stored"): 2.0, ("verdict", "key-reused"): 1.0})
    found = drawn(dict.fromkeys(range(15, 40), numbers))["requests"]
    assert [line.name for line in found.lines] == ["ran", "replayed", "accepted", "in doubt", "unavailable", "refused"]
    columns = list(zip(*(texts for _, texts in found.table), strict=True))
    assert columns[0][:5] == ("–", "10", "20", "20", "–")
    assert columns[-1][:5] == ("–", "5", "10", "10", "–")
    assert found.table[1][0] == "2027-01-15T08:05Z"
    assert found.notes == ["stored: 50", "key-reused: 25"]


def test_a_gap_is_no_zero() -> None:
    """No line and no area crosses it, and it is shown as one; what is about to come is none."""
    found = drawn({at: of({("verdict", "stored"): 1.0}) for at in range(118) if not 20 <= at < 60})["requests"]
    root = plotted(found)
    assert len([each for each in root.iter(f"{SVG}rect") if each.get("class") == "gap"]) == 1
    (area,) = (each for each in root.iter(f"{SVG}path") if each.get("class") == "fill-ran")
    assert (area.get("d") or "").count("M") == 2
    assert "Nobody counted in 1 stretch." in (root.findtext(f"{SVG}desc") or "")


def test_marks_are_shapes_with_words() -> None:
    """Each says what happened, and when."""
    found = drawn({0: of({("mark", "start"): 1.0}), 30: of({("mark", "reload"): 1.0})})["doubts"]
    marks = [each for each in plotted(found).iter(f"{SVG}g") if each.get("class") == "mark"]
    said = [(each.findtext(f"{SVG}text"), each.findtext(f"{SVG}title")) for each in marks]
    assert said == [("▲", "start at 2027-01-15T08:00:00Z"), ("◆", "reload at 2027-01-15T08:15:00Z")]


@pytest.mark.parametrize(("first", "rows", "minutes"), [(0, 12, 60), (50, 7, 35), (119, 2, 2)])
def test_the_axis_begins_where_anybody_counted(first: int, rows: int, minutes: int) -> None:
    """By a whole row of the table, which is shorter on a short axis, with the last number in the last row."""
    whole = activity(dict.fromkeys(range(first, 120), of({("verdict", "stored"): 1.0})))
    part = counted_part(whole)
    assert part.since_us == SINCE_US + (60 - minutes) * 60_000_000
    table = next(each for each in pictures(part) if each.id == "requests").table
    assert len(table) == rows
    assert sum(int(texts[0]) for _, texts in table if texts[0] != "–") == 120 - first
    assert counted_since_us(whole) == (SINCE_US + first * 30_000_000 if first else 0)


def test_what_is_open_is_not_known_at_once() -> None:
    """A process that has not asked the store yet says so, and not that nothing is open."""
    assert "not counted yet" in drawn({0: of({("opened",): 3.0})})["doubts"].about
    assert "0 open when last counted" in drawn({0: of({("opened",): 3.0, ("open",): 0.0})})["doubts"].about
