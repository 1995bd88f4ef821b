"""What the stores share whose transactions execute the table: all verbs but the start and the end. A verb is a function
over a transaction (`executor.Cursor`) and its line in `RelationalStore`; most are one piece of work.

Theory of operation
-------------------
Where statements wait for nothing, as in a thread that owns a file, such work is run to its end at once
(`executor.drive`). Commands that arrive while a connection is busy form one batch and one transaction.

No function here changes a record otherwise than by moving the time until which it has to be delivered. Queries over all
records run in pieces, so that other calls get their turn in between, and never in a writing transaction, because every
command would wait for it.
"""

from __future__ import annotations

import asyncio
import json
import time
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import astuple, replace
from functools import partial, wraps
from itertools import islice
from operator import itemgetter
from typing import Any, ClassVar, Concatenate, Final, Literal, ParamSpec, Self, TypeVar, assert_never
from uuid import UUID

from gateway.core.delivery import Delivering
from gateway.core.identity.key import derive_operation_id
from gateway.core.lifecycle import leading_to, settle
from gateway.core.observation import HISTORY_MAX, Finding, Observation, pack, unpack
from gateway.core.operation import (
    MICROSECONDS,
    NO_ATTEMPT,
    Applied,
    Audit,
    Command,
    Record,
    Result,
    SealedRequest,
    Snapshot,
    State,
    operation_id_of,
)
from gateway.core.outbox import EventType, Outbox, PublishedEvent
from gateway.core.verdict import Verdict
from gateway.store import operations
from gateway.store.agreement import (
    FORGOTTEN_US,
    PROGRAM_LEVEL,
    RUNNING_US,
    Name,
    Remembered,
    check_finished,
    compare,
    names_without_route,
)
from gateway.store.base import WORK, StoreError, Watch, Watchers
from gateway.store.relational.executor import (
    RECOVERY_CHECK_US,
    Contended,
    Cursor,
    EventsUnsynced,
    decoded,
    is_due,
    lock_all,
    prolong,
    read_all,
    sweep_some,
)
from gateway.store.relational.rows import REKEYED, encode, resealed_of
from gateway.store.sealed import EXAMPLES_MAX, SEALED, Kept, Place, Row, Values

# Records per piece: other reads wait that long.
PIECE_RECORDS_MAX: Final = 1_000
# Records per transaction of a sweep: what a command may have to wait for.
SWEEP_TRANSACTION_MAX: Final = 20
# The same for the end of a pause, which changes two integers of each.
RESUME_TRANSACTION_MAX: Final = 100
# The same for rows that are encrypted again.
RESEAL_TRANSACTION_MAX: Final = 20

# States that have an index, and the state that the clock leads there from.
_STOPPED: Final = {State.IN_DOUBT: State.CLAIMED, State.DEAD_LETTER: State.ACCEPTED}
# Beyond every audit.
_LAST_NUMBER: Final = 2**63 - 1
# Beyond every id.
_NO_HORIZON: Final = b"\xff" * 17


async def find_some(cursor: Cursor, query: operations.Query) -> tuple[list[Snapshot], UUID | None]:
    """The records found in the next piece after `query.after`, and the piece's last id; None when it is the last."""
    now_us, states = cursor.now_us, query.wanted
    if not states:
        return [], None
    # The one state, if it has an index of its own.
    stopped = next((state for state in _STOPPED if states == {state}), None)
    if stopped is None:
        suffix, of_state = "", tuple[str, ...]()
        wanted: tuple[Any, ...] = (json.dumps([*states]), json.dumps([*leading_to(states)]))
    else:
        suffix, of_state = "_stopped", (stopped.value,)
        wanted = (stopped.value, _STOPPED[stopped].value, query.recoverable)
    after = b"" if query.after is None else query.after.bytes
    horizon = await cursor.row(f"select_horizon{suffix}", (*of_state, after, PIECE_RECORDS_MAX - 1))
    bounds = (after, _NO_HORIZON if horizon is None else horizon[0], now_us - query.age_us)
    routes = None if query.routes is None else json.dumps(sorted(query.routes))
    rows = await cursor.rows(f"find{suffix}", (*bounds, routes, *wanted, now_us, query.limit))
    found = []
    for kept in await decoded(cursor, rows):
        # One that this program cannot read is left out.
        record = settle(kept, now_us) if isinstance(kept, Record) else None
        reason = None if record is None or record.delivery is None else record.delivery.reason
        if record is not None and record.state in states and query.reason in (None, reason):
            found.append(operations.listed(record, now_us))
    if len(rows) == query.limit:
        return found, UUID(bytes=rows[-1][1])
    return found, None if horizon is None else UUID(bytes=horizon[0])


async def recover(
    cursor: Cursor, operation_id: UUID, token: int, lease_us: int, *, is_urgent: bool
) -> operations.RecoveryLease | None:
    now_us = cursor.now_us
    locked = (await lock_all(cursor, (operation_id,))).get(operation_id)
    if isinstance(locked, StoreError):
        raise locked
    record = settle(locked, now_us)
    if record is None or record.state is not State.IN_DOUBT or record.token != token:
        return None
    before = await recovery(cursor, operation_id)
    if before is None or before.token != token:
        before = operations.RecoveryState(token)
    state = before.leased(now_us, lease_us, is_urgent=is_urgent)
    if state is None:
        return None
    await cursor.change("upsert_recovery", (operation_id.bytes, *astuple(state), now_us + RECOVERY_CHECK_US))
    return operations.RecoveryLease(operation_id, token, before.tries, before.background_tries)


async def put_off(cursor: Cursor, lease: operations.RecoveryLease, pause_us: int, finding: str) -> None:
    operation_id = lease.operation_id
    # As whoever takes the lease: first the record.
    record = (await lock_all(cursor, (operation_id,))).get(operation_id)
    now_us = cursor.now_us
    of_lease = (operation_id.bytes, lease.token, lease.tries + 1)
    if not await cursor.change("put_off_recovery", (now_us + pause_us, now_us, finding, *of_lease)):
        return
    if isinstance(record, Record) and (history := operations.with_finding(record, lease, finding, now_us)) is not None:
        await cursor.change("update_history", (history, operation_id.bytes))


async def recovery(cursor: Cursor, operation_id: UUID) -> operations.RecoveryState | None:
    kept = await cursor.row("select_recovery", (operation_id.bytes,))
    return None if kept is None else operations.RecoveryState(*kept)


async def audits(cursor: Cursor, operation_id: UUID) -> list[operations.AuditEntry]:
    rows = await cursor.rows("select_audits", (operation_id.bytes, operations.AUDITS_MAX))
    return [operations.audit_entry(operation_id, *row) for row in reversed(rows)]


async def latest_audits(cursor: Cursor, before: int | None, limit: int) -> list[operations.NumberedAudit]:
    below = _LAST_NUMBER if before is None else before
    rows = await cursor.rows("select_latest_audits", (below, limit))
    return [
        operations.NumberedAudit(number, (of := UUID(bytes=id_)), operations.audit_entry(of, *row))
        for number, id_, *row in rows
    ]


async def tally(cursor: Cursor) -> operations.Tally:
    now_us = cursor.now_us
    in_doubt, oldest_us, sealed = Counter[str](), now_us, list[tuple[str, int]]()
    stopped, ((key_ids,),) = await cursor.together([("tally", (now_us,)), ("select_next_sealed", ("",))])
    for route, number, since_us in stopped:
        in_doubt[route] += number
        oldest_us = min(oldest_us, since_us)
    # Which keys are used together, and by how many rows.
    while key_ids is not None:
        sealed.append((key_ids, (await cursor.row("count_sealed", (key_ids, operations.SEALED_COUNT_MAX)))[0]))
        key_ids = (await cursor.row("select_next_sealed", (key_ids,)))[0]
    return operations.Tally(in_doubt, (now_us - oldest_us) / MICROSECONDS, operations.sealed_counts(sealed))


async def begin_epoch(cursor: Cursor, memo: bytes, beyond_token: int) -> None:
    await cursor.change("update_memo", (memo,))
    await cursor.change("advance_sequence", (beyond_token,))


# -- identity recipes --------------------------------------------------------------------------------------------------


async def agree(
    cursor: Cursor, serving: operations.Serving, counted: Mapping[Name, operations.Living], *, writes: bool
) -> operations.Agreement | frozenset[Name]:
    """Compare the configuration, or return the operations whose living keys have to be counted first. `counted` has the
    living keys of the operations that an earlier call returned."""
    now_us = cursor.now_us
    window = (serving.gateway_id.bytes, now_us - RUNNING_US, now_us)
    running = set(await cursor.rows("select_running", window))
    comparison = compare(await _known(cursor), running, serving)
    if comparison.names != counted.keys():
        return comparison.names
    agreement = comparison.agreement(counted)
    if writes and not agreement.conflicts:
        for row in comparison.written:
            await cursor.change("upsert_recipe", (row.service, row.operation, row.recipe, row.routes, row.is_current))
        served = json.dumps(sorted(serving.recipes))
        gateway_id, host = serving.gateway_id.bytes, serving.host
        await cursor.change("upsert_gateway", (gateway_id, serving.service, served, host, now_us, PROGRAM_LEVEL))
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
    rows = await cursor.rows("select_older_gateways", (PROGRAM_LEVEL, now_us - RUNNING_US))
    check_finished([(UUID(bytes=gateway_id), host, level) for gateway_id, host, level in rows])
    return bool(await cursor.change("raise_level", (PROGRAM_LEVEL,)))


async def take_turns(cursor: Cursor, holder: UUID, names: Collection[str], lease_us: int) -> frozenset[str]:
    now_us = cursor.now_us
    wanted = (json.dumps(sorted(names)), holder.bytes, now_us + lease_us, now_us)
    return frozenset(name for (name,) in await cursor.rows("take_turns", wanted))


async def leave_turns(cursor: Cursor, holder: UUID) -> None:
    await cursor.change("delete_turns", (holder.bytes, cursor.now_us - FORGOTTEN_US))


async def count_some(
    cursor: Cursor, names: Collection[Name], after: Any
) -> tuple[Mapping[Name, operations.Living], Any]:
    """The living keys of each operation in the next piece after this row (None: the first one), and the piece's last
    row; None at the end."""
    now_us, after = cursor.now_us, cursor.first_row if after is None else after
    horizon = await cursor.row("select_horizon_by_row", (after, PIECE_RECORDS_MAX - 1))
    last = cursor.last_row if horizon is None else horizon[0]
    counted = {}
    for service, operation in names:
        living = operations.Living()
        rows = await cursor.rows("select_alive", (operation, now_us, after, last))
        for operation_id, scope_digest, key_digest, until_us, key_id, its_service in rows:
            is_narrow = key_digest is None
            if (
                its_service == service
                if is_narrow
                else derive_operation_id(service, operation, scope_digest, key_digest).bytes == operation_id
            ):
                living += operations.Living(1, until_us, {key_id or "": 1})
        counted[service, operation] = living
    return counted, None if horizon is None else last


async def _known(cursor: Cursor) -> list[Remembered]:
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
    rows = await cursor.among("select_observed_content", list(contents), service, since_us, operations.CONTENTS_MAX)
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
    await cursor.change("delete_observations", (forget_before_us, operations.FORGOTTEN_MAX))


async def count_observed(cursor: Cursor, service: str, route: str | None) -> list[operations.ObservedCount]:
    found = []
    counted = await cursor.rows("count_observations", (service, route))
    for name, verdict, is_refused, number, repeats, rekeyed in counted:
        # There are examples only of what would be refused. One operation may come several times.
        which = (service, name, verdict, is_refused, 20 * operations.EXAMPLES_MAX if is_refused else 0)
        ids = dict.fromkeys(UUID(bytes=row[0]) for row in await cursor.rows("select_observed_operations", which))
        numbers = (number, repeats, rekeyed)
        examples = tuple(islice(ids, operations.EXAMPLES_MAX))
        found.append(operations.ObservedCount(name, Verdict(verdict), bool(is_refused), *numbers, examples))
    return found


# -- activity ----------------------------------------------------------------------------------------------------------


async def save_activity(cursor: Cursor, service: str, *rows: operations.ActivityRow) -> None:
    values = [(row.writer.hex, row.span_us, row.at_us, row.until_us, row.body.hex()) for row in rows]
    await cursor.change("upsert_activity", (service, json.dumps(values)))


async def activity(
    cursor: Cursor, service: str, span_us: int, since_us: int, until_us: int
) -> list[operations.ActivityRow]:
    rows = await cursor.rows("select_activity", (service, span_us, since_us, until_us, operations.ACTIVITY_ROWS_MAX))
    return [operations.ActivityRow(UUID(bytes=bytes(writer)), *rest) for writer, *rest in rows]


# -- kept requests -----------------------------------------------------------------------------------------------------


async def find_due(cursor: Cursor, service: str, delivering: Delivering, limit: int) -> operations.Due:
    now_us, accepting, alone = cursor.now_us, list(delivering.accepting), list(delivering.alone)

    def due_of(places: Iterable[tuple[str, str]]) -> list[tuple[str, tuple[Any, ...]]]:
        return [("find_due", (service, operation, route, now_us, limit)) for route, operation in places]

    pauses, *found = await cursor.together(
        [
            ("select_pauses", (service,)),
            *due_of(accepting),
            *(("select_next_route", (service, operation, "")) for operation in alone),
        ]
    )
    # What waits of the former names of its routes.
    former = [
        (route, operation)
        for operation, waiting in zip(alone, found[len(accepting) :], strict=True)
        for route in await _waiting(cursor, service, operation, waiting)
        if route not in delivering.names
    ]
    found = [*found[: len(accepting)], *(await cursor.together(due_of(former)))]
    paused = frozenset(name for name, *_ in pauses)
    places = zip((*accepting, *former), found, strict=True)
    due = [row for (_, operation), rows in places if operation not in paused for row in rows]
    first = [row for _, row in sorted(due)[:limit]]
    columns = await cursor.among("select_operation_by_row", first) if first else []
    records = dict(zip((row[0] for row in columns), await decoded(cursor, columns), strict=True))
    # One that this program cannot read must not stop the others.
    readable = [kept for row in first if isinstance(kept := records.get(row), Record)]
    return operations.Due([Snapshot(settle(record, now_us), now_us) for record in readable], paused)


async def _waiting(cursor: Cursor, service: str, operation: str, first: Sequence[tuple[Any, ...]]) -> list[str]:
    """The first routes of which something waits under an operation name, of which this is the first."""
    found: list[str] = []
    while first and len(found) < operations.FORMER_ROUTES_MAX:
        ((route,),) = first
        found.append(route)
        first = await cursor.rows("select_next_route", (service, operation, route))
    return found


async def read_kept(cursor: Cursor, operation_id: UUID) -> SealedRequest | None:
    found = await cursor.row("select_request", (operation_id.bytes,))
    return None if found is None else SealedRequest(UUID(bytes=found[0]), *found[1:])


async def count_pending(cursor: Cursor, service: str, route: str, scope_digest: bytes, limit: int) -> int:
    bounds = (service, route, scope_digest, cursor.now_us, limit)
    return int((await cursor.row("count_pending", bounds))[0])


async def backlog(cursor: Cursor, service: str) -> operations.Backlog:
    """What a service has not delivered. What expired since the last sweep still counts as accepted."""
    now_us = cursor.now_us
    routes: dict[str, operations.RouteBacklog] = {}
    stopped = ("select_lanes_stopped", (service, operations.BACKLOG_COUNT_MAX))
    kept, lanes, pauses = await cursor.together(
        [("select_backlog", (service,)), stopped, ("select_pauses", (service,))]
    )
    for route, reason, number, request_bytes, accepted_us in kept:
        counted = routes.get(route, operations.RouteBacklog())
        if reason:
            routes[route] = replace(counted, dead_letters={**counted.dead_letters, reason: number})
        else:
            age_seconds = max(now_us - accepted_us, 0) / MICROSECONDS
            routes[route] = replace(counted, accepted=number, request_bytes=request_bytes, oldest_seconds=age_seconds)
    for route, number, since_us in lanes:
        stopped_seconds = max(now_us - since_us, 0) / MICROSECONDS
        counted = routes.get(route, operations.RouteBacklog())
        routes[route] = replace(counted, lanes_stopped=number, oldest_stopped_seconds=stopped_seconds)
    return operations.Backlog(routes, {name: operations.Pause(*rest) for name, *rest in pauses})


async def pause(cursor: Cursor, service: str, operation: str, audit: Audit) -> bool:
    now_us = cursor.now_us
    if not await cursor.change("insert_pause", (service, operation, now_us, audit.who, audit.why, cursor.last_row)):
        return False
    await cursor.change("insert_pause_audit", (service, operation, now_us, False, audit.who, audit.why))
    await cursor.change("delete_pause_audits", (service, now_us - operations.AUDIT_KEEP_US))
    return True


async def pause_audits(cursor: Cursor, service: str) -> list[operations.PauseAudit]:
    rows = await cursor.rows("select_pause_audits", (service, operations.AUDITS_MAX))
    return [
        operations.PauseAudit(at_us, name, bool(is_resumed), who, why)
        for at_us, name, is_resumed, who, why in reversed(rows)
    ]


async def resume_some(cursor: Cursor, service: str, operation: str, limit: int, *, is_first: bool) -> bool:
    """Add the pause to the time of at most `limit` operations; False when there are no more. A later call goes on where
    this one stopped, also of another process; the first one of an end that has rested for long begins anew. What is
    moved back is read once more."""
    now_us, name = cursor.now_us, (service, operation)
    rested_since_us = now_us - operations.PAUSE_END_US if is_first else 0
    await cursor.change("move_pauses", (now_us,))
    await cursor.change("resume_pause", (*name, now_us, rested_since_us, cursor.last_row))
    rows = await cursor.rows("select_paused", (*name, now_us, limit))
    await prolong(cursor, [(row, by_us, credited_us) for row, _, credited_us, by_us in rows if by_us])
    if len(rows) < limit:
        return False
    last, deliver_until_us, *_ = rows[-1]
    await cursor.change("update_pause", (*name, deliver_until_us, last))
    return True


async def end_pause(cursor: Cursor, service: str, operation: str, audit: Audit) -> bool:
    now_us = cursor.now_us
    if not await cursor.change("delete_pause", (service, operation)):
        return False
    await cursor.change("insert_pause_audit", (service, operation, now_us, True, audit.who, audit.why))
    return True


# -- events for sinks --------------------------------------------------------------------------------------------------

_TYPES: Final = {each.value: each for each in EventType}
# A page of as many waiting events is found along the index of ids, which has no order of sinks; a page of fewer, by
# sorting all of them. Of a million events, either reads ten thousand for a page of a hundred at most.
_SORTED_MAX: Final = 10_000
# Of a row of `lease_events`.
_SINCE: Final = itemgetter(7)


async def are_due(cursor: Cursor, service: str, wanted: Mapping[str, int]) -> bool:
    now_us = cursor.now_us
    sinks = [sink for sink, number in wanted.items() if number]
    return any(await cursor.together([("select_due_events", (service, sink, now_us, 1)) for sink in sinks]))


async def lease(cursor: Cursor, service: str, wanted: Mapping[str, int], lease_us: int) -> list[operations.LeasedEvent]:
    now_us, leased = cursor.now_us, []
    for sink, number in wanted.items():
        rows = await cursor.rows("lease_events", (service, sink, now_us, number, now_us + lease_us))
        # RETURNING has no order.
        for event_id, type_, at_us, content, response, tries, redeliveries, since_us, line in sorted(rows, key=_SINCE):
            event = PublishedEvent(event_id, _TYPES[type_], at_us, content, response)
            leased.append(operations.LeasedEvent(sink, event, tries, redeliveries, now_us - since_us, line))
    return leased


async def report_events(cursor: Cursor, service: str, reports: Collection[operations.EventReport]) -> None:
    # One that is lost costs a duplicate.
    now_us = cursor.now_us
    changes: defaultdict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for each in reports:
        key = (service, each.sink, each.event_id)
        lease = (*key, each.tries, each.redeliveries)
        match each.fate:
            case operations.EventFate.PUBLISHED:
                changes["delete_event"].append(key)
            case operations.EventFate.PUT_OFF:
                changes["put_off_event"].append((*lease, now_us + each.pause_us, each.why, now_us))
            case operations.EventFate.DEAD:
                changes["bury_event"].append((*lease, each.why))
            case _:
                assert_never(each.fate)
    for statement, rows in changes.items():
        await cursor.change_all(statement, rows)
    lines = {(service, each.sink, each.line) for each in reports if each.line is not None}
    await cursor.change_all("give_event_turn", sorted(lines))


async def find_events(
    cursor: Cursor, service: str, sink: str, *, is_dead: bool, after: str | None, limit: int
) -> list[operations.KeptEvent]:
    page = "select_dead_events"
    if not is_dead:
        # What reads least: ids are in no index of a sink's events, because each event would pay for it.
        waiting, _ = await cursor.row("count_events", (service, sink, _SORTED_MAX))
        page = "select_waiting_events" if waiting < _SORTED_MAX else "select_many_waiting_events"
    found = []
    for event_id, type_, at_us, content, tries, dead, why in await cursor.rows(
        page, (service, sink, after or "", limit)
    ):
        if type_ in _TYPES:
            event = PublishedEvent(event_id, _TYPES[type_], at_us, content)
            found.append(
                operations.KeptEvent(
                    sink, event_id, event.type, UUID(event.operation_id), at_us, tries, bool(dead), why
                )
            )
    return found


async def redeliver_event(cursor: Cursor, service: str, event_id: str, sink: str | None) -> int:
    redelivered = await cursor.rows("redeliver_event", (service, event_id, sink, cursor.now_us))
    for of_sink, line in redelivered:
        await cursor.change("give_event_turn", (service, of_sink, line))
    return len(redelivered)


async def suspend_sink(cursor: Cursor, service: str, sink: str, why: str) -> bool:
    return bool(await cursor.change("insert_suspension", (service, sink, why)))


async def resume_sink(cursor: Cursor, service: str, sink: str) -> bool:
    was_suspended = bool(await cursor.change("delete_suspension", (service, sink)))
    if was_suspended:
        await cursor.change("resume_events", (service, sink, cursor.now_us))
    return was_suspended


async def sinks(cursor: Cursor, service: str) -> dict[str, operations.SinkBacklog]:
    now_us, name = cursor.now_us, ""
    found: dict[str, operations.SinkBacklog] = {}
    while True:
        (next_name,) = await cursor.row("select_next_sink", (service, name))
        if next_name is None:
            return found
        name = next_name
        bounds = (service, name, operations.BACKLOG_COUNT_MAX)
        pending, since_us = await cursor.row("count_events", bounds)
        dead, last_error, suspended_why = await cursor.row("select_sink", bounds)
        oldest_seconds = 0.0 if since_us is None else max(0, now_us - since_us) / MICROSECONDS
        found[name] = operations.SinkBacklog(pending, oldest_seconds, dead, last_error or "", suspended_why)


# -- what is encrypted again -------------------------------------------------------------------------------------------


async def sealed_rows(cursor: Cursor, place: Place, after: Any, limit: int) -> list[Row]:
    if place is Place.RECORDS:
        ids = [UUID(bytes=each) for (each,) in await cursor.rows("select_to_rekey", (after or b"", limit))]
        records = await _records(cursor, ids)
        return [Row(each.bytes, records.get(each)) for each in ids]
    _, keys, first, _ = REKEYED[place]
    bindings = (*(after or first or (cursor.first_row,)), limit)
    rows = await cursor.rows(f"select_{place}_to_rekey", bindings)
    return [Row(tuple(row[: len(keys)]), _values(place, row[len(keys) :])) for row in rows]


def _values(place: Place, columns: Sequence[Any]) -> Values:
    width = len(SEALED[place].about)
    # Of these, only ids are bytes here.
    about = (UUID(bytes=each) if isinstance(each, bytes) else each for each in columns[:width])
    return Values(place, (*about, *columns[width:]))


async def sealed_examples(cursor: Cursor, key_id: str) -> list[Kept]:
    ids = [UUID(bytes=each) for (each,) in await cursor.rows("select_sealed_operations", (key_id, EXAMPLES_MAX))]
    rows = await cursor.rows("select_sealed_requests", (key_id, EXAMPLES_MAX))
    return [*(await _records(cursor, ids)).values(), *(_values(Place.REQUESTS, row) for row in rows)]


async def reseal(cursor: Cursor, changes: Sequence[tuple[Row, Kept]]) -> int:
    return sum([await _replace(cursor, row, kept) for row, kept in changes])


async def _replace(cursor: Cursor, row: Row, kept: Kept) -> int:
    old = row.kept
    if isinstance(old, Values) and isinstance(kept, Values):
        return await cursor.change(f"reseal_{old.place}", (*kept.values, *row.after, *old.values))
    if not isinstance(old, Record) or not isinstance(kept, Record):
        return 0
    ids = (old.identity.operation_id.bytes, old.token)
    # Which keys it was encrypted with follows from the others.
    changed = await cursor.change("reseal_operation", (*_resealed(kept), *ids, *_resealed(old)[:-1]))
    body = None if kept.response is None else kept.response.body
    if changed and body is not None:
        await cursor.change("reseal_response", (body, ids[0]))
    return changed


async def _records(cursor: Cursor, ids: Sequence[UUID]) -> dict[UUID, Record]:
    found = (await read_all(cursor, ids)).items()
    return {each: record for each, record in found if isinstance(record, Record)}


def _resealed(record: Record) -> tuple[Any, ...]:
    # A narrow row has nothing of its response.
    return resealed_of(encode(replace(record, response=None) if record.attempt_id == NO_ATTEMPT else record))


# -- the verbs ---------------------------------------------------------------------------------------------------------

P = ParamSpec("P")
T = TypeVar("T")

Work = Callable[Concatenate[Cursor, P], Awaitable[T]]
Verb = Callable[Concatenate["RelationalStore", P], Coroutine[Any, Any, T]]
Mode = Literal["read", "change", "unsynced"]
"""On one consistent state, of which nothing is changed; in one durable transaction; in one that a crash may undo."""


def _verb(work: Work[P, T], mode: Mode = "read") -> Verb[P, T]:
    async def verb(self: RelationalStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._work(lambda cursor: work(cursor, *args, **kwargs), mode)

    return wraps(work)(verb)


class RelationalStore(ABC):
    """The verbs of `ManagedStore`, `SealedRows` and `ObservationStore` but for `start`, `close`, `apply` and `read`."""

    sweep_records_max: ClassVar[int] = SWEEP_TRANSACTION_MAX
    has_one_writer: ClassVar[bool] = True
    """Whether commands wait for a sweep."""
    syncs_always: bool
    """Whether what may be undone is as durable as all else."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._watchers = Watchers()

    @abstractmethod
    async def _work(self, work: Callable[[Cursor], Awaitable[T]], mode: Mode = "read") -> T: ...

    async def _piece(self, work: Callable[[Cursor], Awaitable[T]], mode: Mode) -> T:
        """Do a piece of work, and then let pass for as long whoever waits for the only writer."""

        async def timed(cursor: Cursor) -> tuple[T, float]:
            began = time.perf_counter()
            return await work(cursor), time.perf_counter() - began

        result, spent_seconds = await self._work(timed, mode)
        if self.has_one_writer:
            await asyncio.sleep(spent_seconds)
        return result

    @property
    def cold(self) -> Self:
        return self

    async def sweep(self, limit: int) -> operations.Swept:
        swept, left, size_max = operations.Swept(), limit, self.sweep_records_max
        if not await self._work(is_due):
            return swept
        while left > 0:
            size = min(left, size_max)
            try:
                part, operation_ids = await self._sweep_some(size)
            except Contended:
                if size == 1:
                    raise
                size_max = size // 2
                continue
            left -= size
            for operation_id in operation_ids:
                self._watchers.announce(operation_id)
            swept += part
            if not swept.more:
                break
        return swept

    async def _sweep_some(self, size: int) -> tuple[operations.Swept, list[UUID]]:
        sweep = partial(sweep_some, limit=size, outbox=self._outbox)
        try:
            # What is lost of it is done again by the next sweep.
            return await self._piece(partial(sweep, is_synced=self.syncs_always), "unsynced")
        except EventsUnsynced:
            return await self._piece(partial(sweep, is_synced=True), "change")

    take_turns = _verb(take_turns, "unsynced")
    leave_turns = _verb(leave_turns, "unsynced")
    tally = _verb(tally)
    sealed_examples = _verb(sealed_examples)

    async def compare_configuration(
        self, serving: operations.Serving, *, is_trial: bool = False
    ) -> operations.Agreement:
        counted: dict[Name, operations.Living] = {}

        async def work(cursor: Cursor) -> operations.Agreement | frozenset[Name]:
            agreed = await agree(cursor, serving, counted, writes=not is_trial)
            if not is_trial and isinstance(agreed, operations.Agreement) and not agreed.conflicts:
                # Sweeps of other services have to know which events this one writes.
                await cursor.change("upsert_outbox", (serving.service, self._outbox.pack()))
            return agreed

        while True:
            agreed = await self._work(work, "read" if is_trial else "change")
            if isinstance(agreed, operations.Agreement):
                return agreed
            counted = await self._count_living(agreed)

    note_running = _verb(note_running, "unsynced")
    raise_level = _verb(raise_level, "change")

    async def count_without_route(self, service: str, operations: Collection[str]) -> dict[str, int]:
        names = names_without_route(await self._work(_known), service, operations)
        counted = await self._count_living(names)
        return {operation: living.keys for (_, operation), living in counted.items() if living.keys}

    async def _count_living(self, names: Collection[Name]) -> dict[Name, operations.Living]:
        counted, after, has_more = dict.fromkeys(names, operations.Living()), None, bool(names)
        while has_more:
            part, after = await self._count_some(names, after)
            counted = {name: living + part[name] for name, living in counted.items()}
            has_more = after is not None
        return counted

    _count_some = _verb(count_some)

    async def find(self, query: operations.Query) -> list[Snapshot]:
        found: list[Snapshot] = []
        while True:
            piece, last = await self._find_some(replace(query, limit=query.limit - len(found)))
            found += piece
            if last is None or len(found) >= query.limit:
                return found
            query = replace(query, after=last)

    _find_some = _verb(find_some)
    recover = _verb(recover, "change")
    put_off = _verb(put_off, "change")
    recovery = _verb(recovery)

    find_due = _verb(find_due)
    read_kept = _verb(read_kept)
    count_pending = _verb(count_pending)
    backlog = _verb(backlog)
    pause = _verb(pause, "change")
    pause_audits = _verb(pause_audits)

    async def resume(self, service: str, operation: str, audit: Audit) -> bool:
        move = partial(resume_some, service=service, operation=operation, limit=RESUME_TRANSACTION_MAX)
        is_first = True
        while await self._piece(partial(move, is_first=is_first), "unsynced"):
            is_first = False
        return await self._work(lambda cursor: end_pause(cursor, service, operation, audit), "change")

    async def lease_events(
        self, service: str, wanted: Mapping[str, int], lease_us: int
    ) -> list[operations.LeasedEvent]:
        if not await self._work(lambda cursor: are_due(cursor, service, wanted)):
            return []
        # A lease that is lost costs a duplicate.
        return await self._work(lambda cursor: lease(cursor, service, wanted, lease_us), "unsynced")

    report_events = _verb(report_events, "unsynced")
    find_events = _verb(find_events)
    redeliver_event = _verb(redeliver_event, "change")
    suspend_sink = _verb(suspend_sink, "change")
    resume_sink = _verb(resume_sink, "change")
    sinks = _verb(sinks)

    latest_audits = _verb(latest_audits)
    audits = _verb(audits)

    sealed_rows = _verb(sealed_rows)

    async def reseal(self, changes: Sequence[tuple[Row, Kept]]) -> int:
        changed = 0
        for begin in range(0, len(changes), RESEAL_TRANSACTION_MAX):
            some = changes[begin : begin + RESEAL_TRANSACTION_MAX]
            changed += await self._piece(partial(reseal, changes=some), "change")
        return changed

    observed_before = _verb(observed_before)
    observed_contents = _verb(observed_contents)
    save_observations = _verb(save_observations, "unsynced")
    count_observed = _verb(count_observed)

    save_activity = _verb(save_activity, "unsynced")
    activity = _verb(activity)

    begin_epoch = _verb(begin_epoch, "change")

    def watch(self, operation_id: UUID) -> AbstractAsyncContextManager[Watch]:
        return self._watchers.watch(operation_id)

    def announce_work(self) -> None:
        self._watchers.announce(WORK)

    def _announce(self, commands: Sequence[Command], results: Sequence[Result | Exception]) -> None:
        for command, result in zip(commands, results, strict=True):
            if isinstance(result, Applied):
                self._watchers.announce(operation_id_of(command))
