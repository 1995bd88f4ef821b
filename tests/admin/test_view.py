"""What is shown of an operation: enough to act on, nothing that is a secret, nothing that a terminal would obey."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from gateway.admin.console import full_text, json_line, table_head, table_row
from gateway.admin.inspection import full_json
from gateway.admin.view import advice, ago, described, moment, span
from gateway.core.message import StoredResponse
from gateway.core.operation import MICROSECONDS, Snapshot, State
from tests.admin.hand import AUDIT, LEASE_SECONDS, SETTLE_SECONDS, TREATMENT, Desk


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
    State.IN_DOUBT: {"first_claimed_at", "lease_until", "doubt"},
    State.COMPLETED: {"first_claimed_at", "completed_at", "replay_until", "remember_until", "response"},
    State.RELEASED: {"first_claimed_at", "remember_until"},
    State.TOMBSTONE: {"first_claimed_at", "completed_at", "remember_until", "response"},
}


@pytest.mark.parametrize("state", SHOWN, ids=lambda state: state.value)
async def test_every_state(state: State) -> None:
    """Each state shows what means something in it, and what to do, in both forms and in a table."""
    desk = Desk()
    operation_id = (await desk.in_state(state, key="the-key")).identity.operation_id
    desk.memory.clock.advance(1)
    inspected = await desk.operations.inspect(operation_id)
    about = full_json(inspected)
    every = set().union(*SHOWN.values())
    assert every & set(about) == SHOWN[state]
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
    """It says what to find out, from when on nothing can arrive, and where a lapsed holder's answer may still be."""
    desk = Desk()
    said = await desk.in_state(State.IN_DOUBT)
    operation_id = said.identity.operation_id

    def advised(settle_us: int | None = TREATMENT.settle_us, of: UUID = operation_id) -> str:
        return advice(of, desk.store.read_now(of), settle_us)

    assert advised() == (
        "Find out at the service what became of it; it was told Idempotency-Operation: "
        f"{operation_id}. If it happened, save the service's answer with curl -i and give it to: "
        f"resolve {operation_id} --completed FILE --why TEXT. "
        "If nothing happened, from 2027-01-15T08:10:30Z on (in 10m 30s): "
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
