"""The texts of the Postgres store's statements.

A file under `sql` holds the statements of one subject, each after a line `-- name:`. If a statement uses the time, its
first argument replaces the server's clock (null, except in tests). `rows` supplies the columns of a record, and
`core.lifecycle` the effect of the clock. Nothing here does I/O.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Final

from gateway.core.lifecycle import CLOCK_ROWS, DEADLINE, DUE_TIMES, LEASE_US_MAX, STEP_US
from gateway.core.operation import State
from gateway.store.level import EVENT_TYPES, PROGRAM_LEVEL, RECORD_VERSION, RECORD_VERSIONS
from gateway.store.operations import (
    AHEAD_MAX,
    AUDIT_KEEP_US,
    EVENT_LEASE_US_MAX,
    FORMER_ROUTES_MAX,
    PAUSE_END_US,
    PAUSE_STEP_US,
    PROBE_FLOOR_US,
    RECOVERY_LEASE_US_MAX,
    UNSWEPT_CLAIMS_MAX,
    WITNESS_KEEP_US,
)
from gateway.store.postgres.rows import (
    CHANGE_ARRAYS,
    CHANGE_NAMES,
    CHANGE_SETS,
    DELIVERY,
    DELIVERY_ARRAYS,
    DELIVERY_NAMES,
    DELIVERY_SETS,
    DELIVERY_VALUES,
    DUE_SLACK_US,
    FOUND_DELIVERY,
    NO_RECORD,
    RECORD,
    ROW,
)
from gateway.store.recipes import FORGOTTEN_US, RUNNING_US

# Advisory locks are shared by a whole database; the first number is ours ("igw1"), the second the purpose.
_LOCK_SPACE: Final = 0x69677731
MIGRATE_LOCK: Final = f"{_LOCK_SPACE}, 1"
PARTITION_LOCK: Final = f"{_LOCK_SPACE}, 2"
RECIPE_LOCK: Final = f"{_LOCK_SPACE}, 3"
EPOCH_LOCK: Final = f"{_LOCK_SPACE}, 5"
# Those of lanes have a space of their own ("igw2"): the second number is a part of the lane's digest.
_LANE_SPACE: Final = 0x69677732
_LINE_SPACE: Final = 1768388403

NOW: Final = "coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)"

# More tokens than all gateways together draw while a statement runs.
_TOKENS_DRAWN_MAX: Final = 200_000
# One statement reads response bodies up to this size, plus the one that exceeds it.
_READ_BYTES_MAX: Final = 4 * 1024 * 1024
# How often upkeep checks whether a recovery lease, or the content of an operation, is still needed.
_RECOVERY_CHECK_US: Final = 3_600_000_000

# More kinds of tombstones than this are not told apart: further ones stay wide.
_KINDS_MAX: Final = 100_000

# A standby has what was committed before that is acknowledged. `remote_write` is only in that host's memory.
_IS_SYNCHRONOUS: Final = (
    "(current_setting('synchronous_standby_names') <> ''"
    " AND current_setting('synchronous_commit') IN ('on', 'remote_apply'))"
)

_MARKS: Final = {
    "{is_synchronous}": _IS_SYNCHRONOUS,
    "{now}": NOW,
    "{record}": RECORD,
    "{row}": ROW,
    "{no_record}": NO_RECORD,
    "{change_arrays}": CHANGE_ARRAYS,
    "{change_names}": CHANGE_NAMES,
    "{change_sets}": CHANGE_SETS,
    "{delivery}": DELIVERY,
    "{found_delivery}": FOUND_DELIVERY,
    "{delivery_arrays}": DELIVERY_ARRAYS,
    "{delivery_names}": DELIVERY_NAMES,
    "{delivery_values}": DELIVERY_VALUES,
    "{delivery_sets}": DELIVERY_SETS,
    "{record_version}": str(RECORD_VERSION),
    "{record_versions}": f"{RECORD_VERSIONS[0]} AND {RECORD_VERSIONS[-1]}",
    "{event_types}": EVENT_TYPES,
    "{event_lease_us_max}": str(EVENT_LEASE_US_MAX),
    "{recovery_lease_us_max}": str(RECOVERY_LEASE_US_MAX),
    "{ahead_max}": str(AHEAD_MAX),
    "{former_routes_max}": str(FORMER_ROUTES_MAX),
    "{step_us}": str(STEP_US),
    "{level}": str(PROGRAM_LEVEL),
    "{lane_space}": str(_LANE_SPACE),
    "{line_space}": str(_LINE_SPACE),
    "{witness_keep_us}": str(WITNESS_KEEP_US),
    "{audit_keep_us}": str(AUDIT_KEEP_US),
    "{read_bytes_max}": str(_READ_BYTES_MAX),
    "{due_slack_us}": str(DUE_SLACK_US),
    "{lease_us_max}": str(LEASE_US_MAX),
    "{recovery_check_us}": str(_RECOVERY_CHECK_US),
    "{probe_floor_us}": str(PROBE_FLOOR_US),
    "{tokens_drawn_max}": str(_TOKENS_DRAWN_MAX),
    "{unswept_claims_max}": str(UNSWEPT_CLAIMS_MAX),
    "{pause_step_us}": str(PAUSE_STEP_US),
    "{pause_end_us}": str(PAUSE_END_US),
    "{kinds_max}": str(_KINDS_MAX),
    "{running_us}": str(RUNNING_US),
    "{forgotten_us}": str(FORGOTTEN_US),
}

# `complete` writes the events of what it changes, where there are any; the link is its last argument.
_EVENTS: Final = """, event AS (
    INSERT INTO idempotency_gateway.event (service, sink, event_id, type, at_us, since_us, due_us, content, response)
    SELECT
        $15::text, i.to_sink, i.of_event, i.of_type, c.now_us, c.now_us, c.now_us, i.new_content, i.new_response
    FROM unnest($16::bigint[], $17::text[], $18::text[], $19::text[], $20::bytea[], $21::bytea[])
        AS i (ordinal, to_sink, of_event, of_type, new_content, new_response)
        JOIN changed ch ON ch.ordinal = i.ordinal CROSS JOIN clock c
    ON CONFLICT (service, sink, event_id) DO NOTHING
)"""
_VARIANTS: Final = {
    "complete": {"complete": ("", "$15"), "complete_with_events": (_EVENTS, "$22")},
}

_NAME: Final = "-- name: "


def load(name: str) -> str:
    """The statement of this name, ready to be prepared."""
    return statement_texts()[name]


@cache
def statement_texts() -> Mapping[str, str]:
    """All statements by name."""
    found: dict[str, str] = {}
    for file in files("gateway.store.postgres").joinpath("sql").iterdir():
        if file.name.endswith(".sql"):
            for part in file.read_text().split(_NAME)[1:]:
                name, _, text = part.partition("\n")
                for variant, (events, link) in _VARIANTS.get(name, {name: ("", "")}).items():
                    found[variant] = _filled(text.strip().replace("{events}", events).replace("{link}", link))
    return found


def _filled(text: str) -> str:
    for mark, value in _MARKS.items():
        text = text.replace(mark, value)
    return _CLOCK_MARK.sub(_by_clock, text)


# The clock's rows of the table: `{due_us(o)}` is when the clock next changes a record in `o`; `{is_in_doubt(o, c)}`,
# `{is_absent(o, c)}` and so on are whether it is in that state at `c.now_us`, as written or by the clock alone, and
# `{has_no_tombstone(i, c)}` whether none is remembered then in a narrow row;
# `{reason_now(d, c)}` is why a delivery in `d` that waits is a dead letter then, null if it is none.
_CLOCK_MARK: Final = re.compile(r"\{(due_us|reason_now|has_no_tombstone|is_\w+)\((\w+)(?:, (\w+))?\)\}")

# No EXISTS: for that, a planner who believes that the table is small may read all of it.
_HAS_NO_TOMBSTONE: Final = """(
    SELECT true
    FROM idempotency_gateway.tombstone t
    WHERE t.operation_id = {i}.for_id AND t.completed_us + t.kept_s * 1000000::bigint > {c}.now_us
    LIMIT 1
) IS NULL"""


def _by_clock(mark: re.Match[str]) -> str:
    word, alias, clock = mark.groups()
    if word == "due_us":
        cases = " ".join(f"WHEN '{state}' THEN {alias}.{_time(state)}" for state in DUE_TIMES)
        return f"CASE {alias}.state {cases} END"
    if word == "has_no_tombstone":
        return _HAS_NO_TOMBSTONE.replace("{i}", alias).replace("{c}", clock)
    if word == "reason_now":
        is_over = f"{alias}.waits = '{State.ACCEPTED}' AND {alias}.deliver_until_us <= {clock}.now_us"
        return f"CASE WHEN {is_over} THEN '{DEADLINE}' ELSE {alias}.reason END"
    wanted = State(word.removeprefix("is_"))
    ways = [way for state in State if (way := _way(state, wanted, alias, clock)) is not None]
    return f"({' OR '.join(ways)})"


def _way(written: State, wanted: State, alias: str, clock: str) -> str | None:
    """The condition under which a record written in one state is now in the other; None if never."""
    if written is State.ABSENT:
        return None
    conditions = [f"{alias}.state = '{written}'"]
    state: State = written
    while state is not wanted:
        if state not in CLOCK_ROWS:
            return None
        conditions.append(f"{alias}.{_time(state)} <= {clock}.now_us")
        state = CLOCK_ROWS[state].next
    if state in DUE_TIMES:
        conditions.append(f"{alias}.{_time(state)} > {clock}.now_us")
    return " AND ".join(conditions)


def _time(state: State) -> str:
    """The column of an operation that has the time of the clock's row."""
    return "due_us" if state is State.ACCEPTED else DUE_TIMES[state]


def migrations() -> list[tuple[int, str, str]]:
    """Number, name and text of every migration of this program, in order."""
    directory = files("gateway.store.postgres").joinpath("sql/migrations")
    names = sorted(file.name for file in directory.iterdir() if file.name.endswith(".sql"))
    return [(int(name[:4]), name.removesuffix(".sql"), directory.joinpath(name).read_text()) for name in names]
