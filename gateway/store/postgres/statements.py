"""The statements of the Postgres store, and how a list of commands becomes the arguments of one.

A statement is a file under `sql/postgres`, named after its verb. Where it asks for the time, its first argument is what
to use instead of the server's clock (null, but for tests). What the clock does to a record it takes from
`core.lifecycle`. The others of a command's statement are arrays with one element per operation; in those of `claim` and
`complete` some are shorter, see `_once` and `_if_any`. The last one is the link whose witness the statement raises
where it changes something, and the last column is then the witness's number. Nothing here does I/O.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any, Final

from gateway.core.lifecycle import CLOCK_ROWS, DUE_TIMES, FORGOTTEN_REMEMBER_US, LEASE_US_MAX
from gateway.core.message import StoredResponse
from gateway.core.operation import (
    Abandon,
    Claim,
    Command,
    Complete,
    Disprove,
    Erase,
    Forget,
    HolderCommand,
    Prove,
    Purge,
    Release,
    Renew,
    State,
    Takeover,
)
from gateway.store.operations import AUDIT_KEEP_US, PROBE_FLOOR_US, UNSWEPT_CLAIMS_MAX, WITNESS_KEEP_US
from gateway.store.postgres.rows import NO_RECORD, RECORD, RECORD_VERSION, pack_headers, pack_location
from gateway.store.recipes import FORGOTTEN_US, RUNNING_US
from gateway.store.request_line import line_of

Columns = tuple[Any, ...]

# Advisory locks are shared by a whole database; the first number is ours ("igw1"), the second says what for.
_LOCK_SPACE: Final = 0x69677731
MIGRATE_LOCK: Final = f"{_LOCK_SPACE}, 1"
PARTITION_LOCK: Final = f"{_LOCK_SPACE}, 2"
RECIPE_LOCK: Final = f"{_LOCK_SPACE}, 3"
SWEEP_LOCK: Final = f"{_LOCK_SPACE}, 4"
EPOCH_LOCK: Final = f"{_LOCK_SPACE}, 5"

NOW: Final = "coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)"

# By how much `due_us` of a claim is later than the expected end of its answer's window.
DUE_SLACK_US: Final = 5_000_000
# More than all gateways together draw while a statement runs.
_TOKENS_DRAWN_MAX: Final = 200_000
# Answers are read in one statement until so many bytes are together, and then the one that comes over it.
_READ_BYTES_MAX: Final = 4 * 1024 * 1024
# How often upkeep looks whether a recovery lease is still needed.
_RECOVERY_CHECK_US: Final = 3_600_000_000

_MARKS: Final = {
    "{now}": NOW,
    "{record}": RECORD,
    "{no_record}": NO_RECORD,
    "{witness}": "(SELECT number FROM raised) AS witness",
    "{witness_keep_us}": str(WITNESS_KEEP_US),
    "{record_version}": str(RECORD_VERSION),
    "{sweep_lock}": SWEEP_LOCK,
    "{audit_keep_us}": str(AUDIT_KEEP_US),
    "{read_bytes_max}": str(_READ_BYTES_MAX),
    "{due_slack_us}": str(DUE_SLACK_US),
    "{lease_us_max}": str(LEASE_US_MAX),
    "{recovery_check_us}": str(_RECOVERY_CHECK_US),
    "{probe_floor_us}": str(PROBE_FLOOR_US),
    "{tokens_drawn_max}": str(_TOKENS_DRAWN_MAX),
    "{unswept_claims_max}": str(UNSWEPT_CLAIMS_MAX),
    "{running_us}": str(RUNNING_US),
    "{forgotten_us}": str(FORGOTTEN_US),
}


# What the table says of the clock: `{due_us(o)}` is when the next row of a record in `o` is due; `{is_in_doubt(o)}`,
# `{is_absent(o)}` and so on are whether it is in that state at `now_us`, written down or by the clock alone.
_CLOCK_MARK: Final = re.compile(r"\{(due_us|is_\w+)\((\w)\)\}")


def _by_clock(mark: re.Match[str]) -> str:
    word, alias = mark.groups()
    if word == "due_us":
        cases = " ".join(f"WHEN '{state}' THEN {alias}.{time}" for state, time in DUE_TIMES.items())
        return f"CASE {alias}.state {cases} END"
    wanted = State(word.removeprefix("is_"))
    ways = [way for state in State if (way := _way(state, wanted, alias)) is not None]
    return f"({' OR '.join(ways)})"


def _way(written: State, wanted: State, alias: str) -> str | None:
    """When a record that was written in the one state is in the other; None for never."""
    if written is State.ABSENT:
        return None
    conditions = [f"{alias}.state = '{written}'"]
    state: State = written
    while state is not wanted:
        if state not in CLOCK_ROWS:
            return None
        conditions.append(f"{alias}.{DUE_TIMES[state]} <= now_us")
        state = CLOCK_ROWS[state].next
    if state in DUE_TIMES:
        conditions.append(f"{alias}.{DUE_TIMES[state]} > now_us")
    return " AND ".join(conditions)


def load(name: str) -> str:
    """The text of a statement, ready to be prepared."""
    text = files("gateway.store.postgres").joinpath(f"sql/{name}.sql").read_text()
    for mark, value in _MARKS.items():
        text = text.replace(mark, value)
    return _CLOCK_MARK.sub(_by_clock, text)


def migrations() -> list[tuple[int, str, str]]:
    """Number, name and text of every migration of this program, in order."""
    directory = files("gateway.store.postgres").joinpath("sql/migrations")
    names = sorted(file.name for file in directory.iterdir() if file.name.endswith(".sql"))
    return [(int(name[:4]), name.removesuffix(".sql"), directory.joinpath(name).read_text()) for name in names]


def _once(column: list[Any]) -> list[Any]:
    """The first element alone where all are alike: the driver takes its time for each. For a column without nulls."""
    return column[:1] if column.count(column[0]) == len(column) else column


def _if_any(column: list[Any]) -> list[Any]:
    """No element where all are null."""
    return [] if column.count(None) == len(column) else column


def claim_columns(commands: Sequence[Claim], due_in_us: Callable[[str], int]) -> Columns:
    """The arguments of `claim` but for the link.

    `due_in_us` foretells by operation name after how long upkeep has to look.
    """
    identities = [command.identity for command in commands]
    fingerprints = [command.fingerprint for command in commands]
    probes = [command.probe for command in commands]
    lines, request_ids, trace_ids = _requests(commands)
    return (
        [identity.operation_id for identity in identities],
        [command.attempt_id for command in commands],
        _once([command.holder for command in commands]),
        _once([identity.route for identity in identities]),
        _once([identity.operation for identity in identities]),
        _once([identity.scope_digest for identity in identities]),
        [identity.key_digest for identity in identities],
        _if_any([identity.key for identity in identities]),
        _once([fingerprint.recipe for fingerprint in fingerprints]),
        [fingerprint.digest for fingerprint in fingerprints],
        [fingerprint.raw for fingerprint in fingerprints],
        _once([fingerprint.key_id for fingerprint in fingerprints]),
        _once([command.lease_us for command in commands]),
        _if_any([command.read_token for command in commands]),
        _once([due_in_us(identity.operation) for identity in identities]),
        _if_any([None if probe is None else probe.target for probe in probes]),
        _if_any([None if probe is None else probe.host for probe in probes]),
        _once(lines),
        _if_any(request_ids),
        _if_any(trace_ids),
    )


def _requests(commands: Sequence[Claim | Takeover]) -> tuple[list[str], list[str | None], list[str | None]]:
    requests = [command.request for command in commands]
    return (
        [line_of(request) for request in requests],
        [None if request is None else request.request_id for request in requests],
        [None if request is None else request.trace_id for request in requests],
    )


def _held(commands: Sequence[HolderCommand]) -> Columns:
    return (
        [command.operation_id for command in commands],
        [command.token for command in commands],
        [command.attempt_id for command in commands],
    )


def _resolved(commands: Sequence[Prove | Disprove]) -> Columns:
    return (
        [command.operation_id for command in commands],
        [command.read_token for command in commands],
        [command.resolution_id for command in commands],
    )


def _answers(commands: Sequence[Complete | Prove]) -> Columns:
    responses = [command.response for command in commands]
    return (
        [command.replay_us for command in commands],
        [command.remember_us for command in commands],
        [response.status for response in responses],
        [pack_location(response.headers) for response in responses],
        [response.reason for response in responses],
        [pack_headers(response.headers) for response in responses],
        [response.body for response in responses],
    )


def _completed(commands: Sequence[Complete]) -> Columns:
    replay_us, remember_us, status, location, reason, headers, body = _answers(commands)
    return (
        _once(replay_us), _once(remember_us), _once(status), _if_any(location), _once(reason), headers, _if_any(body),
        # The records need not come back: everybody has the one of his claim.
        all(command.granted is not None for command in commands),
    )  # fmt: skip


def _remember(commands: Sequence[Release | Disprove]) -> Columns:
    return ([command.remember_us for command in commands],)


def _takeovers(commands: Sequence[Takeover]) -> Columns:
    return (
        [command.operation_id for command in commands],
        [command.read_token for command in commands],
        [command.attempt_id for command in commands],
        [command.holder for command in commands],
        [command.lease_us for command in commands],
        *_requests(commands),
    )


def _named(commands: Sequence[Purge | Erase]) -> Columns:
    return ([command.operation_id for command in commands],)


def _audits(commands: Sequence[Prove | Disprove | Purge | Erase]) -> Columns:
    audits = [command.audit for command in commands]
    return (
        [None if audit is None else audit.who for audit in audits],
        [None if audit is None else audit.why for audit in audits],
    )


# The arguments of every verb but `claim`, but for the link.
COLUMNS: Final[dict[type[Command], Callable[[Sequence[Any]], Columns]]] = {
    Renew: lambda commands: (*_held(commands), [command.lease_us for command in commands]),
    Complete: lambda commands: (*_held(commands), *_completed(commands)),
    Release: lambda commands: (*_held(commands), *_remember(commands)),
    Forget: lambda commands: (*_held(commands), [FORGOTTEN_REMEMBER_US] * len(commands)),
    Abandon: lambda commands: (*_held(commands), [command.doubt for command in commands]),
    Takeover: _takeovers,
    Prove: lambda commands: (*_resolved(commands), *_answers(commands), *_audits(commands)),
    Disprove: lambda commands: (*_resolved(commands), *_remember(commands), *_audits(commands)),
    Purge: lambda commands: (*_named(commands), *_audits(commands)),
    Erase: lambda commands: (*_named(commands), *_audits(commands)),
}


def answer_bytes(response: StoredResponse) -> int:
    """About how many bytes the answer adds to a statement."""
    size = len(response.body or b"") + 8 * len(response.headers)
    for name, value in response.headers:
        size += len(name) + len(value)
    return size
