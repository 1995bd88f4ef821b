"""What recovery, operators and starting gateways read and write, inside transactions of the caller: verbs of
`operations.Cold`, and parts of them.

It finds records, keeps recovery leases and observations, reads audits, and compares identity recipes. It never changes
a record; `lifecycle` decides what state a record is in. Queries over all records run in pieces, and never in a writing
transaction, because every command would wait for it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import astuple, replace
from typing import Any, Final
from uuid import UUID

from gateway.core.identity.scope import derive_operation_id
from gateway.core.lifecycle import leading_to, settle
from gateway.core.observation import HISTORY_MAX, Finding, Observation, pack, unpack
from gateway.core.operation import MICROSECONDS, Record, Snapshot, State
from gateway.core.verdict import Verdict
from gateway.store.level import PROGRAM_LEVEL, OlderGateway, check_finished
from gateway.store.observations import CONTENTS_MAX, FORGOTTEN_MAX, ObservedCount, examples, examples_read
from gateway.store.operations import (
    ACTIVITY_ROWS_MAX,
    AUDITS_MAX,
    SEALED_COUNT_MAX,
    ActivityRow,
    Agreement,
    AuditEntry,
    Living,
    NumberedAudit,
    Query,
    RecoveryLease,
    RecoveryState,
    Serving,
    Tally,
    audit_entry,
    sealed_counts,
    with_finding,
)
from gateway.store.recipes import FORGOTTEN_US, RUNNING_US, Name, Remembered, compare, names_without_route
from gateway.store.relational.executor import ABSENT, Cursor, Stored, decoded, lock_all
from gateway.store.relational.sweep import RECOVERY_CHECK_US

# Records per piece: other reads wait that long.
PIECE_RECORDS_MAX: Final = 1_000

# States that have an index, and the state that the clock leads there from.
_STOPPED: Final = {State.IN_DOUBT: State.CLAIMED, State.DEAD_LETTER: State.ACCEPTED}
# What whoever changes what gateways agree on holds.
_AGREEMENT: Final = b"agreement"
# Beyond every audit.
_LAST_NUMBER: Final = 2**63 - 1
# Beyond every id.
_NO_HORIZON: Final = b"\xff" * 17


async def find_some(cursor: Cursor, query: Query) -> tuple[list[Snapshot], UUID | None]:
    """The records found in the next piece after `query.after`, and the piece's last id; None when it is the last."""
    now_us, states = cursor.now_us, _wanted(query)
    if not states or query.limit <= 0:
        return [], None
    # The one state, if it has an index of its own.
    stopped = next((state for state in _STOPPED if states == {state}), None)
    after = b"" if query.after is None else query.after.bytes
    if stopped is None:
        horizon = await cursor.row("select_horizon", (after, PIECE_RECORDS_MAX - 1))
    else:
        of_state = (stopped.value, after, PIECE_RECORDS_MAX - 1)
        horizon = await cursor.row("select_horizon_stopped", of_state)
    bounds = (after, _NO_HORIZON if horizon is None else horizon[0], now_us - query.age_us)
    routes = None if query.routes is None else json.dumps(sorted(query.routes))
    if stopped is None:
        wanted: tuple[Any, ...] = (json.dumps([*states]), json.dumps([*leading_to(states)]))
    else:
        wanted = (stopped.value, _STOPPED[stopped].value, query.recoverable)
    statement = "find" if stopped is None else "find_stopped"
    rows = await cursor.rows(statement, (*bounds, routes, *wanted, now_us, query.limit))
    found = []
    for kept in await decoded(cursor, rows):
        # One that this program cannot read is left out.
        record = settle(kept.record, now_us) if isinstance(kept, Stored) else None
        if record is not None and record.state in states and query.reason in (None, _reason(record)):
            response = record.response
            found.append(Snapshot(replace(record, response=response and replace(response, body=None)), now_us))
    if len(rows) == query.limit:
        return found, UUID(bytes=rows[-1][1])
    return found, None if horizon is None else UUID(bytes=horizon[0])


def _wanted(query: Query) -> frozenset[State]:
    """The states that a record of the query can be in."""
    states = query.states
    if query.recoverable:
        states &= frozenset((State.IN_DOUBT,))
    return states if query.reason is None else states & frozenset((State.DEAD_LETTER,))


def _reason(record: Record) -> str | None:
    return None if record.delivery is None else record.delivery.reason


async def recover(
    cursor: Cursor, operation_id: UUID, token: int, lease_us: int, *, is_urgent: bool
) -> RecoveryLease | None:
    now_us = cursor.now_us
    locked = (await lock_all(cursor, (operation_id,))).get(operation_id, ABSENT)
    if isinstance(locked, Exception):
        raise locked
    record = settle(locked.record, now_us)
    if record is None or record.state is not State.IN_DOUBT or record.token != token:
        return None
    before = await recovery(cursor, operation_id)
    if before is None or before.token != token:
        before = RecoveryState(token)
    state = before.leased(now_us, lease_us, is_urgent=is_urgent)
    if state is None:
        return None
    await cursor.change("upsert_recovery", (operation_id.bytes, *astuple(state), now_us + RECOVERY_CHECK_US))
    return RecoveryLease(operation_id, token, before.tries, before.background_tries)


async def put_off(cursor: Cursor, lease: RecoveryLease, pause_us: int, finding: str) -> None:
    operation_id = lease.operation_id
    # As whoever takes the lease: first the record.
    locked = (await lock_all(cursor, (operation_id,))).get(operation_id, ABSENT)
    now_us = cursor.now_us
    of_lease = (operation_id.bytes, lease.token, lease.tries + 1)
    if not await cursor.change("put_off_recovery", (now_us + pause_us, now_us, finding, *of_lease)):
        return
    record = locked.record if isinstance(locked, Stored) else None
    if record is not None and (history := with_finding(record, lease, finding, now_us)) is not None:
        await cursor.change("update_history", (history, operation_id.bytes))


async def recovery(cursor: Cursor, operation_id: UUID) -> RecoveryState | None:
    kept = await cursor.row("select_recovery", (operation_id.bytes,))
    return None if kept is None else RecoveryState(*kept)


async def audits(cursor: Cursor, operation_id: UUID) -> list[AuditEntry]:
    """The latest audits of the operation. Raises `Unreadable` for an event of a newer program."""
    rows = await cursor.rows("select_audits", (operation_id.bytes, AUDITS_MAX))
    return [audit_entry(operation_id, *row) for row in reversed(rows)]


async def latest_audits(cursor: Cursor, before: int | None, limit: int) -> list[NumberedAudit]:
    below = _LAST_NUMBER if before is None else before
    rows = await cursor.rows("select_latest_audits", (below, limit))
    return [NumberedAudit(number, (of := UUID(bytes=id_)), audit_entry(of, *row)) for number, id_, *row in rows]


async def tally(cursor: Cursor) -> Tally:
    """Count the operations in doubt as of now, including lapsed claims not yet swept."""
    now_us = cursor.now_us
    in_doubt, oldest_us = Counter[str](), now_us
    stopped, ((first_key_ids,),) = await cursor.together([("tally", (now_us,)), ("select_next_sealed", ("",))])
    for route, number, since_us in stopped:
        in_doubt[route] += number
        oldest_us = min(oldest_us, since_us)
    return Tally(
        in_doubt,
        (now_us - oldest_us) / MICROSECONDS,
        sealed_counts([each async for each in _sealed(cursor, first_key_ids)]),
    )


async def _sealed(cursor: Cursor, key_ids: str | None) -> AsyncIterator[tuple[str, int]]:
    """Which keys are used together, and by how many rows; the first of them are these."""
    while key_ids is not None:
        yield key_ids, (await cursor.row("count_sealed", (key_ids, SEALED_COUNT_MAX)))[0]
        key_ids = (await cursor.row("select_next_sealed", (key_ids,)))[0]


# -- identity recipes --------------------------------------------------------------------------------------------------


async def agree(
    cursor: Cursor, serving: Serving, counted: Mapping[Name, Living], *, writes: bool
) -> Agreement | frozenset[Name]:
    """Compare the configuration, or return the operations whose living keys have to be counted first.

    `counted` has the living keys of the operations that an earlier call returned.
    """
    now_us = cursor.now_us
    if writes:
        await cursor.hold((_AGREEMENT,))
    window = (serving.gateway_id.bytes, now_us - RUNNING_US, now_us)
    running = set(await cursor.rows("select_running", window))
    comparison = compare(await _known(cursor), running, serving)
    if comparison.names != counted.keys():
        return comparison.names
    agreement = comparison.agreement(counted)
    if writes and not agreement.conflicts:
        for row in comparison.written:
            await cursor.change("upsert_recipe", (row.service, row.operation, row.recipe, row.routes, row.is_current))
        operations = json.dumps(sorted(serving.recipes))
        gateway_id, host = serving.gateway_id.bytes, serving.host
        await cursor.change("upsert_gateway", (gateway_id, serving.service, operations, host, now_us, PROGRAM_LEVEL))
        await cursor.change("delete_gateways", (b"", now_us - FORGOTTEN_US))
    return agreement


async def note_running(cursor: Cursor, gateway_id: UUID, *, is_running: bool) -> None:
    if is_running:
        await cursor.change("update_gateway", (gateway_id.bytes, cursor.now_us))
    else:
        await cursor.change("delete_gateways", (gateway_id.bytes, cursor.now_us - FORGOTTEN_US))


async def raise_level(cursor: Cursor) -> bool:
    """Raise the level to this program's; returns whether it was lower. Raises `StartRefused` while gateways of an older
    program run."""
    now_us = cursor.now_us
    await cursor.hold((_AGREEMENT,))
    rows = await cursor.rows("select_older_gateways", (PROGRAM_LEVEL, now_us - RUNNING_US))
    check_finished([OlderGateway(UUID(bytes=gateway_id), host, level) for gateway_id, host, level in rows])
    return bool(await cursor.change("raise_level", (PROGRAM_LEVEL,)))


async def take_turns(cursor: Cursor, holder: UUID, names: Collection[str], lease_us: int) -> frozenset[str]:
    now_us = cursor.now_us
    wanted = (json.dumps(sorted(names)), holder.bytes, now_us + lease_us, now_us)
    return frozenset(name for (name,) in await cursor.rows("take_turns", wanted))


async def leave_turns(cursor: Cursor, holder: UUID) -> None:
    await cursor.change("delete_turns", (holder.bytes, cursor.now_us - FORGOTTEN_US))


async def operations_without_route(cursor: Cursor, service: str, operations: Collection[str]) -> frozenset[Name]:
    """The remembered operations of this service, except those in `operations`."""
    return names_without_route(await _known(cursor), service, operations)


async def count_some(cursor: Cursor, names: Collection[Name], after: Any) -> tuple[Mapping[Name, Living], Any]:
    """The living keys of each operation in the next piece after this row (None: the first one), and the piece's last
    row; None at the end."""
    now_us, after = cursor.now_us, cursor.first_row if after is None else after
    horizon = await cursor.row("select_horizon_by_row", (after, PIECE_RECORDS_MAX - 1))
    last = cursor.last_row if horizon is None else horizon[0]
    counted = {}
    for service, operation in names:
        living = Living()
        rows = await cursor.rows("select_alive", (operation, now_us, after, last))
        for operation_id, scope_digest, key_digest, until_us, key_id, its_service in rows:
            is_narrow = key_digest is None
            if (
                its_service == service
                if is_narrow
                else derive_operation_id(service, operation, scope_digest, key_digest).bytes == operation_id
            ):
                living = joined(living, Living(1, until_us, {key_id or "": 1}))
        counted[service, operation] = living
    return counted, None if horizon is None else last


def joined(living: Living, others: Living) -> Living:
    """The sum of both."""
    is_open = living.until_us is None or others.until_us is None
    until_us = None if is_open else max(living.until_us or 0, others.until_us or 0)
    by_key = Counter(living.by_fingerprint_key) + Counter(others.by_fingerprint_key)
    return Living(living.keys + others.keys, until_us, by_key)


async def _known(cursor: Cursor) -> list[Remembered]:
    """The operations, as `recipes` reads them."""
    rows = await cursor.rows("select_recipes")
    return [Remembered(name, operation, recipe, routes, bool(last)) for name, operation, recipe, routes, last in rows]


# -- observations ------------------------------------------------------------------------------------------------------


async def observed_before(cursor: Cursor, service: str, operation_ids: Collection[UUID]) -> list[Observation]:
    ids = [operation_id.bytes for operation_id in operation_ids]
    rows = await cursor.among("select_observations", ids, service, HISTORY_MAX)
    return [
        unpack(UUID(bytes=entry), route, began_us, UUID(bytes=operation_id), content, seen)
        for operation_id, began_us, entry, route, content, seen in sorted(rows)
    ]


async def observed_contents(
    cursor: Cursor, service: str, contents: Collection[bytes], since_us: int
) -> list[tuple[bytes, UUID, int]]:
    rows = await cursor.among("select_observed_content", list(contents), service, since_us, CONTENTS_MAX)
    return [(content, UUID(bytes=operation_id), last_us) for content, operation_id, last_us in rows]


async def save_observations(
    cursor: Cursor, service: str, found: Sequence[tuple[Observation, Finding]], forget_before_us: int
) -> None:
    rows = []
    for seen, finding in found:
        operation_id = None if seen.operation_id is None else seen.operation_id.bytes
        columns = (seen.entry.bytes, service, seen.route, operation_id, seen.began_us, seen.content or None, pack(seen))
        thought = (finding.verdict.value, finding.is_refused, finding.is_repeat, finding.is_rekeyed)
        rows.append((*columns, *thought))
    await cursor.change_all("upsert_observation", rows)
    await cursor.change("delete_observations", (forget_before_us, FORGOTTEN_MAX))


async def count_observed(cursor: Cursor, service: str, route: str | None) -> list[ObservedCount]:
    found = []
    counted = await cursor.rows("count_observations", (service, route))
    for name, verdict, is_refused, number, repeats, rekeyed in counted:
        which = (service, name, verdict, is_refused, examples_read(is_refused=is_refused))
        rows = await cursor.rows("select_observed_operations", which)
        operations = examples(UUID(bytes=row[0]) for row in rows)
        found.append(ObservedCount(name, Verdict(verdict), bool(is_refused), number, repeats, rekeyed, operations))
    return found


# -- activity ----------------------------------------------------------------------------------------------------------


def activity_columns(service: str, minute: ActivityRow, longer: ActivityRow) -> tuple[Any, ...]:
    """What `upsert_activity` is given."""
    times = [(each.span_us, each.at_us, each.until_us, each.body) for each in (minute, longer)]
    return (service, minute.writer.bytes, *times[0], *times[1])


async def save_activity(cursor: Cursor, service: str, minute: ActivityRow, longer: ActivityRow) -> None:
    await cursor.change("upsert_activity", activity_columns(service, minute, longer))


async def activity(cursor: Cursor, service: str, span_us: int, since_us: int, until_us: int) -> list[ActivityRow]:
    rows = await cursor.rows("select_activity", (service, span_us, since_us, until_us, ACTIVITY_ROWS_MAX))
    return [ActivityRow(UUID(bytes=bytes(writer)), *rest) for writer, *rest in rows]
