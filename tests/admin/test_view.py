"""What is shown of an operation: enough to act on, nothing that is a secret, nothing that a terminal would obey."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from gateway.admin.inspection import Inspected, full_json, full_text, json_line, table_head, table_row
from gateway.admin.resolution import Policies
from gateway.admin.view import advice, ago, described, moment, span
from gateway.core.message import StoredResponse
from gateway.core.operation import MICROSECONDS, Postpone, RequestInfo, Snapshot, State, microseconds
from gateway.core.recovery import Hold, Probe, Recovery, Resend, answered_doubt
from tests.admin.hand import AUDIT, CHARGE, LEASE_SECONDS, SETTLE_SECONDS, TREATMENT, Desk


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"), (0.9, "0s"), (59, "59s"), (60, "1m"), (61, "1m 1s"), (3600, "1h"), (3661, "1h 1m"), (3601, "1h"),
        (86400, "1d"), (90061, "1d 1h"), (864000, "10d"), (36000, "10h"), (-5, "0s"),
    ],
    ids=str,
)  # fmt: skip
def test_span(seconds: float, text: str) -> None:
    """Two units at most, the largest first."""
    assert span(round(seconds * MICROSECONDS)) == text


def test_moments() -> None:
    """Times are UTC, and told with how far they are from the store's now."""
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
async def test_every_state(state: State, is_kept: bool) -> None:
    """Each state shows what means something in it, and what to do, in both forms and in a table."""
    desk = Desk()
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
    for shown in (text, line):
        assert "the-key" not in shown
        assert "once" not in shown
        assert "t1" not in shown
        assert inspected.snapshot.record is not None
        assert inspected.snapshot.record.identity.scope_digest.hex() not in shown
        assert about["next"] in shown
    row = table_row(inspected.snapshot)
    assert row.index(state.value) == table_head().index("STATE")
    assert row.endswith("  charge")


async def test_a_dead_letter() -> None:
    """It shows why it is one and what the service said, and the size of what is kept, which nobody can read here."""
    desk = Desk()
    record = await desk.kept(State.DEAD_LETTER)
    inspected = await desk.operations.inspect(record.identity.operation_id)
    assert full_json(inspected)["delivery"] == {
        "answers": 1,
        "failure": "answered_401",
        "reason": "unauthorized",
        "request_bytes": 40,
    }
    lines = list(full_text(inspected))
    for line in ("kept request      40 bytes, encrypted", "last failure      answered_401"):
        assert line in lines
    assert table_row(inspected.snapshot).split()[-2:] == ["unauthorized", "charge"]


@pytest.mark.parametrize(
    ("reason", "first"),
    [
        ("unauthorized", "The service refused its credentials. Mend them"),
        ("attempts-exhausted", "The service answered every attempt with a status that is worth another one"),
        ("unreadable", "Its kept request cannot be decrypted. Put the key that it was encrypted under back"),
        ("deadline", "It was not delivered within `delivery.deliver_within`."),
        ("something", "It was given up (something). Find out at the service what is wrong with it."),
    ],
)
async def test_advice_on_a_dead_letter(reason: str, first: str) -> None:
    """Each reason has its own first step; then it says how to deliver it, how to drop it, and how to deliver many."""
    desk = Desk()
    record = await desk.kept(State.DEAD_LETTER, reason=reason)
    operation_id = record.identity.operation_id
    text = advice(operation_id, desk.store.read_now(operation_id), None)
    assert text.startswith("Nothing happened, and its request is kept: it is not lost")
    for part in (
        first,
        "The last attempt: answered_401.",
        f"requeue {operation_id} --why TEXT",
        f"withdraw {operation_id} --why TEXT",
        f"requeue --route charge --reason {reason} --limit 1000 --rate 50 --why TEXT",
    ):
        assert part in text


async def test_advice_on_what_waits() -> None:
    """It says when it is sent next, after what, until when, and how to call it off."""
    desk = Desk()
    record = await desk.kept(State.CLAIMED)
    ids = record.identity.operation_id, record.token, record.attempt_id
    desk.say(Postpone(*ids, microseconds(30), "connect_refused", is_answered=False))
    assert advice(ids[0], desk.store.read_now(ids[0]), None) == (
        "Nothing, unless it is to be called off. Its request is kept, and no attempt of it had an effect. The next "
        "attempt is due at 2027-01-15T08:00:30Z (in 30s) after the last one failed (connect_refused); none starts "
        "after 2027-01-16T08:00:00Z (in 1d), when it becomes a dead letter. To call it off: "
        f"withdraw {ids[0]} --why TEXT."
    )


async def test_absent() -> None:
    """What is not remembered is said to be, with what that means; what was done to it stays known."""
    desk = Desk()
    operation_id = (await desk.in_state(State.TOMBSTONE)).identity.operation_id
    await desk.operations.erase(operation_id, AUDIT, is_sure=True)
    inspected = await desk.operations.inspect(operation_id)
    about = full_json(inspected)
    assert (about["operation_id"], about["state"]) == (str(operation_id), "absent")
    assert [audit["who"] for audit in about["audits"]] == ["alice"]
    assert "audit             2027-01-15T08:00:00Z erase by alice: ticket 7" in list(full_text(inspected))
    assert about["next"].startswith("Nothing is remembered: a request with this key runs.")


async def test_advice_on_doubt() -> None:
    """It says what to find out, from when on nothing can arrive, and where a lapsed holder's response may still be."""
    desk = Desk()
    said = await desk.in_state(State.IN_DOUBT)
    operation_id = said.identity.operation_id

    def advised(settle_us: int | None = TREATMENT.settle_us, of: UUID = operation_id) -> str:
        return advice(of, desk.store.read_now(of), settle_us)

    assert advised() == (
        "Find out at the service what happened; it was sent Idempotency-Operation: "
        f"{operation_id}. If it happened, save the service's response with curl -i and give it to: "
        f"resolve {operation_id} --completed FILE --why TEXT. "
        "If nothing happened, from 2027-01-15T08:10:00Z on (in 10m): "
        f"resolve {operation_id} --never-happened --why TEXT."
    )
    lapsed = (await desk.in_state(State.CLAIMED)).identity.operation_id
    desk.memory.clock.advance(LEASE_SECONDS + SETTLE_SECONDS)
    assert f"If nothing happened: resolve {operation_id}" in advised()
    assert advised(of=lapsed).startswith("First make sure that host:1:a is running, or gone for good: it may")


async def test_location_that_a_terminal_would_obey() -> None:
    """A field's value that is not printable is not shown; a name that is not is made so."""
    desk = Desk()
    record = await desk.in_state(State.COMPLETED)
    response = StoredResponse(201, b"", ((b"Location", b"/\x1b[2J"),), b"")
    identity = replace(record.identity, route="a\x1b[2Jb")
    snapshot = Snapshot(replace(record, response=response, identity=identity), desk.memory.clock())
    assert described(snapshot, has_body=True)["response"] == {"status": 201, "body": "kept", "body_bytes": 0}
    assert "\x1b" not in table_row(snapshot)
    assert "\x1b" not in json_line(described(snapshot, has_body=False))


def text_of(inspected: Inspected) -> dict[str, str]:
    """The lines by their labels."""
    return {line[:16].strip(): line[18:] for line in full_text(inspected)}


async def test_where_a_request_is_found_in_the_logs_of_others() -> None:
    """Method, host, path and ids of the last attempt's request are shown, and what the service said."""
    desk = Desk()
    record = await desk.in_state(State.IN_DOUBT)
    request = RequestInfo("POST", "shop.example", "/charges", "req-7", "4bf92f3577b34da6a3ce929d0e0e4736")
    changed = replace(record, request=request, doubt=answered_doubt(503))
    desk.memory.records[record.identity.operation_id] = changed
    inspected = await desk.operations.inspect(record.identity.operation_id)
    about, text = full_json(inspected), text_of(inspected)
    assert about["request"] == {
        "method": "POST", "host": "shop.example", "path": "/charges",
        "request_id": "req-7", "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
    }  # fmt: skip
    assert about["upstream_status"] == 503
    assert (text["request"], text["request id"]) == ("POST shop.example/charges", "req-7")
    assert text["trace id"] == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert text["in doubt because"] == "answered_503"


def desk_with(recovery: Recovery) -> Desk:
    treatment = replace(TREATMENT, recovery=recovery)
    return Desk(Policies("shop", [replace(CHARGE, treatment=treatment)]))


@pytest.mark.parametrize(
    ("recovery", "policy", "step"),
    [
        (Hold(), "hold", "Nothing happens to it until an operator resolves it. Find out at the service"),
        (Resend(), "resend", "The next repeat of its request is sent to the service again; nothing happens before"),
        (
            Probe("/s?k={key}", host=b"h"),
            "probe",
            "It cannot be probed: it was claimed before its route had this probe",
        ),
        (
            Probe("/s?o={operation_id}", host=b"h"),
            "probe",
            "A running gateway is about to ask the service about it. Find",
        ),
    ],
    ids=["hold", "resend", "unaskable", "probe"],
)
async def test_what_happens_without_an_operator(recovery: Recovery, policy: str, step: str) -> None:
    """What to do begins with what gateways do by themselves."""
    desk = desk_with(recovery)
    record = await desk.in_state(State.IN_DOUBT)
    changed = replace(record, request=RequestInfo("POST", "shop.example", "/charges"))
    desk.memory.records[record.identity.operation_id] = changed
    inspected = await desk.operations.inspect(record.identity.operation_id)
    about, text = full_json(inspected), text_of(inspected)
    assert about["recovery"] == {"policy": policy}
    assert text["recovery"] == policy
    assert about["next"].startswith(step)
    assert text["what to do"] == about["next"]
    assert "next probe" not in text or text["next probe"] == "due"


async def test_the_last_probe_and_the_next() -> None:
    """When it was asked about last, what that came to, and when it is asked again."""
    desk = desk_with(Probe("/s?o={operation_id}", host=b"h"))
    record = await desk.in_state(State.IN_DOUBT)
    operation_id = record.identity.operation_id
    desk.memory.records[operation_id] = replace(record, request=RequestInfo("POST", "shop.example", "/charges"))
    lease = await desk.store.cold.recover(operation_id, record.token, microseconds(90), is_urgent=False)
    assert lease is not None
    text = text_of(await desk.operations.inspect(operation_id))
    assert text["next probe"] == "under way"
    assert text["what to do"].startswith("A running gateway is asking the service about it. ")
    await desk.store.cold.put_off(lease, microseconds(120), "the status is 500, which no rule matches")
    desk.memory.clock.advance(60)
    inspected = await desk.operations.inspect(operation_id)
    assert full_json(inspected)["recovery"] == {
        "policy": "probe",
        "probes": 1,
        "last_probe_at": "2027-01-15T08:00:00Z",
        "last_finding": "the status is 500, which no rule matches",
        "next_probe_at": "2027-01-15T08:02:00Z",
    }
    text = text_of(inspected)
    assert text["last probe"] == "2027-01-15T08:00:00Z (1m ago): the status is 500, which no rule matches"
    assert text["next probe"] == "2027-01-15T08:02:00Z (in 1m)"
    assert "2027-01-15T08:02:00Z (in 1m), and sooner for a repeat" in text["what to do"]
    desk.memory.clock.advance(60)
    due = await desk.operations.inspect(operation_id)
    assert "next_probe_at" not in full_json(due)["recovery"]
    assert text_of(due)["next probe"] == "due"
