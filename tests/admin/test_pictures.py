"""The pictures of the overview: what they say to whoever cannot see them, whatever the numbers and the names are."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4
from xml.etree import ElementTree as ET

import pytest

from gateway.admin.pages.pictures import Picture, counted_part, counted_since_us, pictures
from gateway.observe.activity import HOUR, WEEK, Activity, Numbers, Window, encoded
from gateway.store.base import NotApplied
from gateway.store.operations import ActivityRow
from tests.admin.test_console import consoled
from tests.admin.test_pages import HOSTILE
from tests.observe.test_activity import of
from tests.support.upstream import Answer

SVG = "{http://www.w3.org/2000/svg}"
SINCE_US = 1_800_000_000 // 3_600 * 3_600 * 1_000_000


def activity(buckets: dict[int, Numbers], window: Window = HOUR) -> Activity:
    count = window.length_us // window.span_us
    return Activity(window, SINCE_US, [buckets.get(at) for at in range(count)])


def drawn(buckets: dict[int, Numbers], window: Window = HOUR) -> dict[str, Picture]:
    return {each.id: each for each in pictures(activity(buckets, window))}


def parsed(svg: str) -> ET.Element:
    return ET.fromstring(str(svg).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1))


@pytest.mark.parametrize("window", [HOUR, WEEK])
@pytest.mark.parametrize(
    "buckets",
    [
        {},
        {5: {}},
        {0: of({("verdict", "stored"): 1.0})},
        {at: of({("verdict", "stored"): 1e9, ("gateway", "+Inf"): 3.0, ("open",): 2.0}) for at in range(120)},
        {7: of({("verdict", HOSTILE): 1.0, ("route", HOSTILE): 1.0, ("lag", HOSTILE): 2.0, ("mark", HOSTILE): 1.0})},
    ],
    ids=["nothing", "zero", "one", "full", "hostile"],
)
def test_each_is_whole(buckets: dict[int, Numbers], window: Window) -> None:
    """Each plot has a title and a description that it is labelled by, no style and no script, and finite numbers."""
    for picture in drawn(buckets, window).values():
        for svg in (picture.svg, *(part for *_, part in picture.parts)):
            if not svg:
                continue
            root = parsed(svg)
            assert root.get("role") == "img"
            assert root.find(f"{SVG}title") is not None
            tags = {each.tag.removeprefix(SVG) for each in root.iter()}
            assert tags <= {"svg", "title", "desc", "g", "path", "rect", "text", "defs", "pattern", "circle"}
            names = {name for each in root.iter() for name in each.attrib}
            assert not [name for name in names if name.startswith(("on", "style", "href"))]
            assert not re.search(r"nan|inf\b", "".join(each.get("d", "") for each in root.iter()))
        if picture.svg:
            named = {each.get("id") for each in parsed(picture.svg).iter()}
            assert set((parsed(picture.svg).get("aria-labelledby") or "").split()) <= named
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
    root = parsed(found.svg)
    assert len([each for each in root.iter(f"{SVG}rect") if each.get("class") == "gap"]) == 1
    (area,) = (each for each in root.iter(f"{SVG}path") if each.get("class") == "fill-ran")
    assert (area.get("d") or "").count("M") == 2
    assert "Nobody counted in 1 stretch." in (root.findtext(f"{SVG}desc") or "")


def test_marks_are_shapes_with_words() -> None:
    """Each says what happened, and when."""
    found = drawn({0: of({("mark", "start"): 1.0}), 30: of({("mark", "reload"): 1.0})})["doubts"]
    marks = [each for each in parsed(found.svg).iter(f"{SVG}g") if each.get("class") == "mark"]
    said = [(each.findtext(f"{SVG}text"), each.findtext(f"{SVG}title")) for each in marks]
    assert said == [("▲", "start at 2027-01-15T08:00:00Z"), ("◆", "reload at 2027-01-15T08:15:00Z")]


async def test_the_overview_shows_them(tmp_path: Path) -> None:
    """Without a script, with its numbers; the window is in the address, and another one is refused."""
    async with consoled(tmp_path) as it:
        browser = await it.signed_in("vera")
        it.house.upstream.on("/charges", Answer(201))
        await it.house.send()
        await it.house.send()
        page = await browser.get("/ui/")
        assert "2 requests on protected routes" in page.text
        assert "50 % of the requests were replayed." in page.text
        elements = page.elements
        assert sum(tag == "details" and str(about.get("id")).startswith("numbers-") for tag, about in elements) == 7
        assert not [about for _, about in elements if "style" in about]
        week = await browser.get("/ui/?window=week")
        assert "The last week" in week.text
        assert "/ui/#pictures" in week.links
        for query in ("?window=year", "?window=hour&window=week", "?other=1"):
            assert (await browser.get(f"/ui/{query}")).status == 400


async def test_names_of_any_kind(tmp_path: Path) -> None:
    """What a row of the store has as a name is text, wherever it stands."""
    async with consoled(tmp_path) as it:
        now_us = time.time_ns() // 1_000
        at_us = now_us - now_us % HOUR.row_us - HOUR.row_us
        names = {kind: {HOSTILE: 3.0} for kind in ("verdict", "route", "lag", "mark", "gateway", HOSTILE)}
        row = ActivityRow(uuid4(), HOUR.row_us, at_us, now_us + HOUR.length_us, encoded([(0, names)]))
        await it.house.gateway._store.cold.save_activity("shop", row, replace(row, span_us=WEEK.row_us))
        browser = await it.signed_in("vera")
        page = await browser.get("/ui/")
        assert HOSTILE in page.text
        assert b"<script>alert" not in page.body


async def test_a_store_that_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the process counted itself is shown, and that it is this alone."""
    async with consoled(tmp_path) as it:
        browser = await it.signed_in("vera")
        it.house.upstream.on("/charges", Answer(201))
        await it.house.send()

        async def away(*_: Any) -> Any:
            raise NotApplied("gone fishing")

        monkeypatch.setattr(it.house.gateway._store.cold, "activity", away, raising=False)
        text = (await browser.get("/ui/")).text
        assert "The numbers of this process alone: the durable store could not be asked (gone fishing)" in text
        assert "1 request on protected routes" in text


@pytest.mark.parametrize(("first", "rows", "minutes"), [(0, 12, 60), (50, 7, 35), (100, 10, 10), (119, 2, 2)])
def test_the_axis_begins_where_anybody_counted(first: int, rows: int, minutes: int) -> None:
    """By a whole row of the table, which is shorter on a short axis, with the last number in the last row."""
    whole = activity({at: of({("verdict", "stored"): 1.0}) for at in range(first, 120)})
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
