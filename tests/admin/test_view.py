"""What is shown of an operation, and of its history: no secret, nothing that a terminal would obey."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from typing import Any
from uuid import UUID, uuid4
from xml.etree import ElementTree as ET

import pytest

from gateway.admin.pictures import strip
from gateway.admin.reports import ago, lasted, moment, span
from gateway.admin.resolution import Policies
from gateway.admin.view import (
    Timeline,
    advice,
    described,
    full_json,
    full_text,
    json_line,
    table_head,
    table_row,
    timeline,
)
from gateway.core.message import StoredResponse
from gateway.core.operation import (
    HISTORY_FIRST,
    HISTORY_LAST,
    MICROSECONDS,
    PROBE,
    Disprove,
    Entry,
    Event,
    Postpone,
    Prove,
    Purge,
    Record,
    RequestInfo,
    Snapshot,
    State,
    Takeover,
    history_with,
    microseconds,
)
from gateway.core.recovery import Hold, Probe, Recovery, Resend, answered_doubt
from gateway.store.operations import AUDITS_MAX, AuditEntry
from tests.admin.hand import AUDIT, CHARGE, LEASE_SECONDS, RESPONSE, SETTLE_SECONDS, TREATMENT, Desk, ids
from tests.admin.test_pages import HOSTILE, Port, port
from tests.support.memory_store import Kept

SPANS = {
    0.9: "0s", 59: "59s", 60: "1m", 61: "1m 1s", 3661: "1h 1m", 3601: "1h", 90061: "1d 1h", 864000: "10d", -5: "0s",
}  # fmt: skip
TOOK = {-5: "0 ms", 1_999: "1 ms", 1_000_000: "1.0 s", 59_999_999: "60.0 s", 61_000_000: "1m 1s"}


def test_times() -> None:
    """Spans have two units at most, the largest first, or are to the millisecond or tenth of a second. Times are UTC,
    and told with how far they are from the store's now."""
    assert {seconds: span(round(seconds * MICROSECONDS)) for seconds in SPANS} == SPANS
    assert {duration_us: lasted(duration_us) for duration_us in TOOK} == TOOK
    at_us = 1_800_000_000 * MICROSECONDS
    assert moment(at_us) == "2027-01-15T08:00:00Z"
    assert ago(at_us, at_us + 61 * MICROSECONDS) == "1m 1s ago"
    assert ago(at_us, at_us - 61 * MICROSECONDS) == "in 1m 1s"


SHOWN = {
    State.CLAIMED: {"first_claimed_at", "lease_until"},
    State.IN_DOUBT: {"first_claimed_at", "in_doubt_since", "doubt"},
    State.COMPLETED: {"first_claimed_at", "completed_at", "replay_until", "remember_until", "response"},
    State.RELEASED: {"first_claimed_at", "remember_until"},
    State.TOMBSTONE: {"first_claimed_at", "completed_at", "remember_until", "response"},
}


KEPT = {
    State.ACCEPTED: {"accepted_at", "next_attempt_at", "deliver_until", "delivery"},
    State.CLAIMED: {"accepted_at", "claimed_at", "deliver_until", "lease_until", "delivery"},
    State.IN_DOUBT: {"accepted_at", "claimed_at", "deliver_until", "in_doubt_since", "doubt", "delivery"},
    State.DEAD_LETTER: {"accepted_at", "claimed_at", "dead_since", "deliver_until", "delivery"},
}


@pytest.mark.parametrize(
    ("state", "is_kept"),
    [*((state, False) for state in SHOWN), *((state, True) for state in KEPT)],
    ids=lambda value: value.value if isinstance(value, State) else "kept" if value else "",
)
async def test_every_state(desk: Desk, state: State, is_kept: bool) -> None:
    """Each state shows what means something in it, and what to do, in both forms and in a table."""
    reached = desk.kept(state, key="the-key") if is_kept else desk.in_state(state, key="the-key")
    operation_id = (await reached).identity.operation_id
    desk.memory.clock.advance(1)
    inspected = await desk.operations.inspect(operation_id)
    about = full_json(inspected)
    every = set().union(*SHOWN.values(), *KEPT.values())
    assert every & set(about) == (KEPT if is_kept else SHOWN)[state]
    assert (about["operation_id"], about["state"], about["age_seconds"]) == (str(operation_id), state.value, 1)
    text = "\n".join(full_text(inspected))
    line = json_line(about)
    assert inspected.snapshot.record is not None
    for shown in (text, line):
        for secret in ("the-key", "once", "t1", inspected.snapshot.record.identity.scope_digest.hex()):
            assert secret not in shown
        assert about["next"] in shown
    row = table_row(inspected.snapshot.record, inspected.snapshot.now_us)
    assert row.index(state.value) == table_head().index("STATE")
    assert row.endswith("  charge")


async def look(desk: Desk, record: Record) -> tuple[dict[str, Any], dict[str, str]]:
    """What is shown of it, as JSON, and as lines by their labels."""
    inspected = await desk.operations.inspect(record.identity.operation_id)
    return full_json(inspected), {line[:16].strip(): line[18:] for line in full_text(inspected)}


@pytest.mark.parametrize(
    ("reason", "first"),
    [
        ("unauthorized", "The service refused its credentials. Mend them"),
        ("attempts-exhausted", "The service answered every attempt with a status that is worth another one"),
        ("unreadable", "Its kept request cannot be decrypted. Put the key that it was encrypted under back"),
        ("something", "It was given up (something). Find out at the service what is wrong with it."),
    ],
)
async def test_a_dead_letter(desk: Desk, reason: str, first: str) -> None:
    """It shows why it is one, what the service said, and the size of what is kept, which nobody can read here. Each
    reason has its own first step; then it says how to deliver it, how to drop it, and how to deliver many."""
    record = await desk.kept(State.DEAD_LETTER, reason=reason)
    operation_id = record.identity.operation_id
    about, text = await look(desk, record)
    assert about["delivery"] == {"answers": 1, "failure": "answered_401", "reason": reason, "request_bytes": 40}
    assert (text["kept request"], text["last failure"]) == ("40 bytes, encrypted", "answered_401")
    assert table_row(desk.known(operation_id), 0).split()[-2:] == [reason, "charge"]
    assert about["next"].startswith("Nothing happened, and its request is kept: it is not lost")
    for part in (
        first,
        "The last attempt: answered_401.",
        f"requeue {operation_id} --why TEXT",
        f"withdraw {operation_id} --why TEXT",
        f"requeue --route charge --reason {reason} --limit 1000 --rate 50 --why TEXT",
    ):
        assert part in about["next"]


async def test_absent(desk: Desk) -> None:
    """What is not remembered is said to be, with what that means; what was done to it stays known."""
    operation_id = (await desk.in_state(State.TOMBSTONE)).identity.operation_id
    await desk.operations.erase(operation_id, AUDIT, is_sure=True)
    inspected = await desk.operations.inspect(operation_id)
    about = full_json(inspected)
    assert (about["operation_id"], about["state"]) == (str(operation_id), "absent")
    assert [audit["who"] for audit in about["audits"]] == ["alice"]
    assert "audit             2027-01-15T08:00:00Z erase by alice: ticket 7" in list(full_text(inspected))
    assert about["next"].startswith("Nothing is remembered: a request with this key runs.")


async def test_advice_on_doubt(desk: Desk) -> None:
    """It says what to find out, from when on nothing can arrive, and where a lapsed holder's response may still be."""
    operation_id = (await desk.in_state(State.IN_DOUBT)).identity.operation_id

    def advised(of: UUID = operation_id) -> str:
        return advice(desk.store.read_now(of), TREATMENT.settle_us)

    for words in (
        f"Find out at the service what happened; it was sent Idempotency-Operation: {operation_id}. If it happened, ",
        f"save the service's response with curl -i and give it to: resolve {operation_id} --completed FILE --why TEXT.",
        "If nothing happened, from 2027-01-15T08:10:00Z on (in 10m): resolve ",
    ):
        assert words in advised()
    lapsed = (await desk.in_state(State.CLAIMED)).identity.operation_id
    desk.memory.clock.advance(LEASE_SECONDS + SETTLE_SECONDS)
    assert f"If nothing happened: resolve {operation_id}" in advised()
    assert advised(of=lapsed).startswith("First make sure that host:1:a is running, or gone for good: it may")


async def test_location_that_a_terminal_would_obey(desk: Desk) -> None:
    """A field's value that is not printable is not shown; a name that is not is made so."""
    record = await desk.in_state(State.COMPLETED)
    response = StoredResponse(201, b"", ((b"Location", b"/\x1b[2J"),), b"")
    identity = replace(record.identity, route="a\x1b[2Jb")
    snapshot = Snapshot(replace(record, response=response, identity=identity), desk.memory.clock())
    assert described(snapshot, has_body=True)["response"] == {"status": 201, "body": "kept", "body_bytes": 0}
    assert snapshot.record is not None
    assert "\x1b" not in table_row(snapshot.record, snapshot.now_us)
    assert "\x1b" not in json_line(described(snapshot, has_body=False))


async def test_where_a_request_is_found_in_the_logs_of_others(desk: Desk) -> None:
    """Method, host, path and ids of the last attempt's request are shown, and what the service said."""
    record = await desk.in_state(State.IN_DOUBT)
    request = RequestInfo("POST", "shop.example", "/charges", "req-7", "4bf92f3577b34da6a3ce929d0e0e4736")
    desk.memory.records[record.identity.operation_id] = replace(record, request=request, doubt=answered_doubt(503))
    about, text = await look(desk, record)
    assert about["request"] == asdict(request)
    assert about["upstream_status"] == 503
    assert (text["request"], text["request id"]) == ("POST shop.example/charges", "req-7")
    assert text["trace id"] == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert text["in doubt because"] == "answered_503"


async def doubtful(recovery: Recovery) -> tuple[Desk, Record]:
    """An operation in doubt whose request is known, on a route that recovers so."""
    desk = Desk(Policies("shop", [replace(CHARGE, treatment=replace(TREATMENT, recovery=recovery))]))
    record = replace(await desk.in_state(State.IN_DOUBT), request=RequestInfo("POST", "shop.example", "/charges"))
    desk.memory.records[record.identity.operation_id] = record
    return desk, record


ASKABLE = Probe("/s?o={operation_id}", host=b"h")


@pytest.mark.parametrize(
    ("recovery", "policy", "step"),
    [
        (Hold(), "hold", "Nothing happens to it until an operator resolves it. Find out at the service"),
        (Resend(), "resend", "The next repeat of its request is sent to the service again; nothing happens before"),
        (Probe("/s?k={key}", host=b"h"), "probe", "It cannot be probed: it was claimed before its route had this"),
        (ASKABLE, "probe", "A running gateway is about to ask the service about it. Find"),
    ],
    ids=["hold", "resend", "unaskable", "probe"],
)
async def test_what_happens_without_an_operator(recovery: Recovery, policy: str, step: str) -> None:
    """What to do begins with what gateways do by themselves."""
    about, text = await look(*await doubtful(recovery))
    assert about["recovery"] == {"policy": policy}
    assert text["recovery"] == policy
    assert about["next"].startswith(step)
    assert text["what to do"] == about["next"]
    assert text.get("next probe", "due") == "due"


async def test_the_last_probe_and_the_next() -> None:
    """When it was asked about last, what that came to, and when it is asked again."""
    desk, record = await doubtful(ASKABLE)
    cold = desk.store.cold
    lease = await cold.recover(record.identity.operation_id, record.token, microseconds(90), is_urgent=False)
    assert lease is not None
    _, text = await look(desk, record)
    assert text["next probe"] == "under way"
    assert text["what to do"].startswith("A running gateway is asking the service about it. ")
    await cold.put_off(lease, microseconds(120), FINDING)
    desk.memory.clock.advance(60)
    about, text = await look(desk, record)
    times = {"last_probe_at": "2027-01-15T08:00:00Z", "next_probe_at": "2027-01-15T08:02:00Z"}
    assert about["recovery"] == {"policy": "probe", "probes": 1, "last_finding": FINDING, **times}
    assert text["last probe"] == f"2027-01-15T08:00:00Z (1m ago): {FINDING}"
    assert text["next probe"] == "2027-01-15T08:02:00Z (in 1m)"
    assert "2027-01-15T08:02:00Z (in 1m), and sooner for a repeat" in text["what to do"]
    desk.memory.clock.advance(60)
    about, text = await look(desk, record)
    assert (text["next probe"], "next_probe_at" in about["recovery"]) == ("due", False)


__all__ = ["port"]

FINDING = "the status is 404, which no rule matches"
PAGE_SECONDS_MAX = 0.3


async def shown(desk: Desk, record: Record) -> tuple[list[str], list[dict[str, Any]]]:
    """Its history in words, and as JSON."""
    inspected = await desk.operations.inspect(record.identity.operation_id)
    about = full_json(inspected)
    lines = [line[18:] for line in full_text(inspected) if line.startswith("history ")]
    return [line.partition("Z ")[2] for line in lines], about["history"]


async def test_one_attempt(desk: Desk) -> None:
    """Under way, and completed; of an operation like any other the record tells all."""
    record = await desk.in_state(State.CLAIMED)
    words, (about,) = await shown(desk, record)
    assert words == ["sent: token 1, host:1:a; under way"]
    assert about == {"at": "2027-01-15T08:00:00Z", "event": "attempt", "token": 1, "how": "claim", "holder": "host:1:a"}
    desk.memory.clock.advance(2.345)
    assert desk.complete(record).history is None
    words, (about,) = await shown(desk, record)
    assert words == ["sent: token 1, host:1:a; answered after 2.3 s: status 201"]
    assert (about["ended"], about["seconds"], about["status"]) == ("complete", 2.345, 201)


async def test_the_whole_of_a_doubt(desk: Desk) -> None:
    """Claimed, lapsed, probed, taken over, in doubt again, resolved. It is in doubt since its first attempt ended: not
    since the claim, nor since it was sent again."""
    record = await desk.in_state(State.CLAIMED)
    desk.memory.clock.advance(LEASE_SECONDS + 2)
    lease = await desk.store.cold.recover(*ids(record)[:2], microseconds(LEASE_SECONDS), is_urgent=True)
    assert lease is not None
    desk.memory.clock.advance(2)
    await desk.store.cold.put_off(lease, 0, FINDING)
    record = desk.say(Takeover(*ids(record)[:2], uuid4(), "other:2:b", microseconds(LEASE_SECONDS)))
    desk.memory.clock.advance(1)
    record = desk.abandon(record, "truncated_after_201")
    about, text = await look(desk, record)
    assert about["in_doubt_since"] == "2027-01-15T08:00:30Z"
    assert text["in doubt since"] == "2027-01-15T08:00:30Z (5s ago)"
    assert "in_doubt     2027-01-15T08:00:30Z  " in table_row(desk.known(record.identity.operation_id), 0)
    desk.memory.clock.advance(60)
    desk.say(Prove(*ids(record)[:2], uuid4(), RESPONSE, TREATMENT.replay_us, TREATMENT.remember_us, AUDIT))
    words, history = await shown(desk, record)
    assert words[2].endswith("in doubt after 1.0 s: the response was cut short, after status 201")
    assert [each.get("how", each["event"]) for each in history] == ["claim", "probe", "takeover", "prove"]
    assert history[-1]["who"] == "alice"
    inspected = await desk.operations.inspect(record.identity.operation_id)
    lapsed_us = record.first_claimed_us + microseconds(LEASE_SECONDS)
    assert inspected.timeline.doubts == [(lapsed_us, inspected.snapshot.now_us)]


async def test_a_late_answer_ends_the_doubt(desk: Desk) -> None:
    """The attempt ended in doubt, and its answer came all the same."""
    record = await desk.in_state(State.IN_DOUBT)
    desk.memory.clock.advance(60)
    desk.complete(record)
    words, _ = await shown(desk, record)
    assert words[1:] == ["answered late, status 201"]
    inspected = await desk.operations.inspect(record.identity.operation_id)
    assert [until_us for _, until_us in inspected.timeline.doubts] == [inspected.snapshot.now_us]
    desk.say(Purge(record.identity.operation_id, AUDIT))
    words, _ = await shown(desk, record)
    assert words[1:] == ["answered late, status 201", "response dropped: alice: ticket 7"]


async def test_a_retry_is_no_takeover(desk: Desk) -> None:
    """Of what had no effect, and of what was found not to have happened, the next attempt is a first one."""
    record = await desk.in_state(State.CLAIMED, key="k")
    desk.release(record, "answered_503")
    desk.memory.clock.advance(1)
    record = desk.abandon(desk.say(desk.claim("k", read_token=record.token)), "closed")
    desk.memory.clock.advance(1)
    desk.say(Disprove(*ids(record)[:2], uuid4(), 10**9, AUDIT))
    desk.memory.clock.advance(1)
    record = desk.say(replace(desk.claim("k", read_token=record.token), holder="other:2:b"))
    words, about = await shown(desk, record)
    assert words[0] == "sent: token 1, host:1:a; no effect after 0 ms: the service answered 503"
    assert words[2] == "found out: nothing happened: alice: ticket 7"
    assert [each.get("how") for each in about] == ["claim", "claim", None, "claim"]
    assert about[0]["status"] == 503


async def test_a_delivery(desk: Desk) -> None:
    """Accepted first, and sent by whoever delivers it."""
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
    """Of an operation that is forgotten, the audits are left, and nothing is drawn."""
    audit = AuditEntry(7, Event.PURGE, 3, "alice", "gdpr")
    assert [each.text for each in timeline(None, [audit]).happenings] == ["response dropped: alice: gdpr"]
    assert strip(Timeline(), 0) is None


async def test_the_page_of_a_huge_history(port: Port) -> None:
    """It is bounded, says what was dropped, is drawn and listed without a script, and comes at once. What a holder, a
    method, a finding, a reason or an auditor is called is text, in the list and in the picture."""
    desk, text = port.desk, HOSTILE + "\x1b[31m" + "x" * 160
    record = await desk.in_state(State.IN_DOUBT)
    history = record.history
    for at in range(3 * HISTORY_LAST):
        desk.memory.clock.advance(100)
        now_us = desk.memory.clock()
        ended = Entry("abandon", now_us, at + 100, text, now_us - 1, text, text)
        history = history_with(history, Entry(PROBE, now_us, 1, text) if at % 3 else ended)
    operation_id = record.identity.operation_id
    desk.memory.records[operation_id] = replace(record, history=history, holder=text)
    entry = AuditEntry(desk.memory.clock(), Event.REINSTATE, 1, text, text)
    desk.memory.audits[operation_id] = [Kept(entry, 0)] * AUDITS_MAX

    browser, path = await port.signed_in("vera"), f"/ui/operations/{operation_id}"
    await browser.get(path)
    began = time.perf_counter()
    response = await browser.get(path)
    assert time.perf_counter() - began < PAGE_SECONDS_MAX
    page = response.body.decode()
    dropped = 3 * HISTORY_LAST + 1 - HISTORY_FIRST - HISTORY_LAST
    assert f"{dropped} more were dropped, after the first {HISTORY_FIRST}" in response.text
    assert full_json(await desk.operations.inspect(operation_id))["history_dropped"] == dropped
    assert page.count("<li>") >= HISTORY_FIRST + HISTORY_LAST + AUDITS_MAX
    assert "<script>alert" not in page
    svg = ET.fromstring(page[page.index("<svg") : page.index("</svg>") + len("</svg>")])
    assert len(svg.findall(".//circle")) + len(svg.findall(".//g")) >= HISTORY_FIRST + HISTORY_LAST
    titles = ["".join(each.itertext()) for each in svg.iter() if each.tag.endswith("title")]
    assert sum(HOSTILE in title for title in titles) >= HISTORY_FIRST + HISTORY_LAST


async def test_the_strip_of_a_clock_that_was_set_back() -> None:
    """No bar ends before it begins, and nothing is drawn outside."""
    record = await Desk().in_state(State.CLAIMED)
    drawn = strip(timeline(record, []), record.claimed_us - 10**12)
    assert drawn is not None
    ((kind, _, x, width),) = drawn.happenings
    assert (kind, 0 <= x <= 960, width > 0) == ("attempt", True, True)
