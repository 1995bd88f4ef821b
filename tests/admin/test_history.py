"""What happened to an operation, as people and programs see it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any
from uuid import uuid4
from xml.etree import ElementTree as ET

import pytest

from gateway.admin.inspection import full_json, full_text
from gateway.admin.pages.pictures import strip
from gateway.admin.view import Told, lasted, told
from gateway.core.history import FIRST, LAST, PROBE, Entry, appended
from gateway.core.operation import (
    Abandon,
    Complete,
    Disprove,
    Event,
    Postpone,
    Prove,
    Purge,
    Record,
    Release,
    RequestInfo,
    State,
    Takeover,
    microseconds,
)
from gateway.store.operations import AUDITS_MAX, AuditEntry
from tests.admin.hand import AUDIT, LEASE_SECONDS, RESPONSE, TREATMENT, Desk
from tests.admin.test_pages import HOSTILE, Port, port
from tests.support.memory_store import Kept

__all__ = ["port"]

LEASE_US = microseconds(LEASE_SECONDS)
WINDOWS_US = TREATMENT.replay_us, TREATMENT.remember_us
FINDING = "the status is 404, which no rule matches"
PAGE_SECONDS_MAX = 0.3


def ids(record: Record) -> tuple[Any, int, Any]:
    return record.identity.operation_id, record.token, record.attempt_id


def taken_over(desk: Desk, record: Record, holder: str = "other:2:b") -> Record:
    request = RequestInfo("POST", "api.test", "/charges")
    return desk.say(Takeover(record.identity.operation_id, record.token, uuid4(), holder, LEASE_US, request))


async def probed(desk: Desk, record: Record, finding: str = FINDING) -> None:
    desk.memory.clock.advance(2)
    cold = desk.store.cold
    lease = await cold.recover(record.identity.operation_id, record.token, LEASE_US, is_urgent=True)
    assert lease is not None
    desk.memory.clock.advance(2)
    await cold.put_off(lease, 0, finding)


async def shown(desk: Desk, record: Record) -> tuple[list[str], list[dict[str, Any]]]:
    """Its history in words, and as JSON."""
    inspected = await desk.operations.inspect(record.identity.operation_id)
    about = full_json(inspected)
    lines = [line[18:] for line in full_text(inspected) if line.startswith("history ")]
    return [line.partition("Z ")[2] for line in lines], about["history"]


async def test_one_attempt() -> None:
    """Under way, and completed; of an operation like any other the record tells all."""
    desk = Desk()
    record = await desk.in_state(State.CLAIMED)
    words, (about,) = await shown(desk, record)
    assert words == ["sent: token 1, host:1:a; under way"]
    assert about == {"at": "2027-01-15T08:00:00Z", "event": "attempt", "token": 1, "how": "claim", "holder": "host:1:a"}
    desk.memory.clock.advance(2.345)
    done = desk.say(Complete(*ids(record), RESPONSE, *WINDOWS_US))
    assert done.history is None
    words, (about,) = await shown(desk, record)
    assert words == ["sent: token 1, host:1:a; answered after 2.3 s: status 201"]
    assert (about["ended"], about["seconds"], about["status"]) == ("complete", 2.345, 201)


async def test_the_whole_of_a_doubt() -> None:
    """Claimed, lapsed, probed, taken over, in doubt again, resolved: each in its order, with what came of it."""
    desk = Desk()
    record = await desk.in_state(State.CLAIMED)
    desk.memory.clock.advance(LEASE_SECONDS)
    await probed(desk, record)
    record = taken_over(desk, record)
    desk.memory.clock.advance(1)
    record = desk.say(Abandon(*ids(record), "truncated_after_201"))
    desk.memory.clock.advance(60)
    desk.say(Prove(*ids(record)[:2], uuid4(), RESPONSE, *WINDOWS_US, AUDIT))
    words, about = await shown(desk, record)
    assert words == [
        "sent: token 1, host:1:a; its lease ended, in doubt after 30.0 s",
        f"asked the service: {FINDING}",
        "sent again in doubt: POST, token 2, other:2:b; in doubt after 1.0 s: the response was cut short, after status "
        "201",
        "found out: it happened, status 201: alice: ticket 7",
    ]
    assert [each.get("how", each["event"]) for each in about] == ["claim", "probe", "takeover", "prove"]
    assert about[-1]["who"] == "alice"
    inspected = await desk.operations.inspect(record.identity.operation_id)
    now_us = inspected.snapshot.now_us
    assert inspected.told.doubts == [(record.first_claimed_us + LEASE_US, now_us)]


async def test_a_late_answer_ends_the_doubt() -> None:
    """The attempt ended in doubt, and its answer came all the same."""
    desk = Desk()
    record = await desk.in_state(State.IN_DOUBT)
    desk.memory.clock.advance(60)
    desk.say(Complete(*ids(record), RESPONSE, *WINDOWS_US))
    words, _ = await shown(desk, record)
    assert words[1:] == ["answered late, status 201"]
    inspected = await desk.operations.inspect(record.identity.operation_id)
    assert [until_us for _, until_us in inspected.told.doubts] == [inspected.snapshot.now_us]
    desk.say(Purge(record.identity.operation_id, AUDIT))
    words, _ = await shown(desk, record)
    assert words[1:] == ["answered late, status 201", "response dropped: alice: ticket 7"]


async def test_a_retry_is_no_takeover() -> None:
    """Of what had no effect, and of what was found not to have happened, the next attempt is a first one."""
    desk = Desk()
    record = await desk.in_state(State.CLAIMED, key="k")
    desk.say(Release(*ids(record), 10**9, "answered_503"))
    desk.memory.clock.advance(1)
    record = desk.say(desk.claim("k", read_token=record.token))
    record = desk.say(Abandon(*ids(record), "closed"))
    desk.memory.clock.advance(1)
    desk.say(Disprove(*ids(record)[:2], uuid4(), 10**9, AUDIT))
    desk.memory.clock.advance(1)
    record = desk.say(replace(desk.claim("k", read_token=record.token), holder="other:2:b"))
    words, about = await shown(desk, record)
    assert words[0] == "sent: token 1, host:1:a; no effect after 0 ms: the service answered 503"
    assert words[2] == "found out: nothing happened: alice: ticket 7"
    assert [each.get("how") for each in about] == ["claim", "claim", None, "claim"]
    assert about[0]["status"] == 503


async def test_a_delivery() -> None:
    """Accepted first, and sent by whoever delivers it."""
    desk = Desk()
    record = await desk.kept(State.ACCEPTED)
    assert (await shown(desk, record))[0] == ["accepted, to be delivered"]
    desk.memory.clock.advance(1)
    record = desk.attempted(record, State.CLAIMED)
    desk.say(Postpone(*ids(record), 0, "answered_503", is_answered=True))
    desk.memory.clock.advance(1)
    record = desk.attempted(record, State.DEAD_LETTER)
    assert (await shown(desk, record))[0] == [
        "accepted, to be delivered",
        "delivered: token 2, host:1:a; no effect, to be sent again after 0 ms: the service answered 503",
        "delivered: token 3, host:1:a; no effect, given up after 0 ms: the service refused its credentials; the "
        "service answered 401",
    ]


async def test_after_the_record() -> None:
    """Of an operation that is forgotten, the audits are left."""
    audit = AuditEntry(7, Event.PURGE, 3, "alice", "gdpr")
    assert [each.text for each in told(None, [audit]).happenings] == ["response dropped: alice: gdpr"]
    assert strip(Told(), 0) == ""


@pytest.mark.parametrize(
    ("duration_us", "text"),
    [(-5, "0 ms"), (1_999, "1 ms"), (1_000_000, "1.0 s"), (59_999_999, "60.0 s"), (61_000_000, "1m 1s")],
)
def test_how_long_it_took(duration_us: int, text: str) -> None:
    """To the millisecond, to a tenth of a second, or in two units."""
    assert lasted(duration_us) == text


async def full(desk: Desk, text: str = "x" * 200) -> Record:
    """An operation in doubt with as much history and as many audits as there can be."""
    record = await desk.in_state(State.IN_DOUBT)
    history = record.history
    for at in range(3 * LAST):
        desk.memory.clock.advance(100)
        now_us = desk.memory.clock()
        ended = Entry("abandon", now_us, at + 100, text, now_us - 1, text, text)
        history = appended(history, Entry(PROBE, now_us, 1, text) if at % 3 else ended)
    changed = replace(record, history=history, holder=text)
    desk.memory.records[record.identity.operation_id] = changed
    entry = AuditEntry(desk.memory.clock(), Event.REINSTATE, 1, text, text)
    desk.memory.audits[record.identity.operation_id] = [Kept(entry, 0)] * AUDITS_MAX
    return changed


async def test_the_page_of_a_huge_history(port: Port) -> None:
    """It is bounded, says what was dropped, is drawn and listed without a script, and comes at once."""
    record = await full(port.desk)
    browser = await port.signed_in("vera")
    path = f"/ui/operations/{record.identity.operation_id}"
    await browser.get(path)
    began = time.perf_counter()
    response = await browser.get(path)
    assert time.perf_counter() - began < PAGE_SECONDS_MAX
    text = response.body.decode()
    dropped = 3 * LAST + 1 - FIRST - LAST
    assert f"{dropped} more were dropped, after the first {FIRST}" in response.text
    assert text.count("<li>") >= FIRST + LAST + AUDITS_MAX
    svg = ET.fromstring(text[text.index("<svg") : text.index("</svg>") + len("</svg>")])
    assert len(svg.findall(".//circle")) + len(svg.findall(".//g")) >= FIRST + LAST
    about = full_json(await port.desk.operations.inspect(record.identity.operation_id))
    assert about["history_dropped"] == dropped


async def test_hostile_text_in_each_field(port: Port) -> None:
    """What a holder, a method, a finding, a reason or an auditor is called is text, in the list and in the picture."""
    record = await full(port.desk, HOSTILE + "\x1b[31m")
    browser = await port.signed_in("vera")
    response = await browser.get(f"/ui/operations/{record.identity.operation_id}")
    text = response.body.decode()
    assert "<script>alert" not in text
    svg = ET.fromstring(text[text.index("<svg") : text.index("</svg>") + len("</svg>")])
    titles = ["".join(each.itertext()) for each in svg.iter() if each.tag.endswith("title")]
    assert sum(HOSTILE in title for title in titles) >= FIRST + LAST


async def test_the_strip_of_a_clock_that_was_set_back() -> None:
    """No bar ends before it begins, and nothing is drawn outside."""
    desk = Desk()
    record = await desk.in_state(State.CLAIMED)
    drawn = strip(told(record, []), record.claimed_us - 10**12)
    svg = ET.fromstring(str(drawn)[: str(drawn).index("</svg>") + len("</svg>")])
    bars = svg.findall("./g/rect")
    assert [float(each.attrib["width"]) > 0 for each in bars] == [True]
    assert all(0 <= float(each.attrib["x"]) <= 960 for each in bars)
