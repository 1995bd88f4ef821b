"""What recovery, operators and starting gateways read: records by state, audits, living keys.

It never changes a record; `lifecycle` decides what state a record is in. Lists are read part by part, and records in
pieces, so that other calls get their turn in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

from gateway.core.identity.operation_id import is_of
from gateway.core.lifecycle import settle
from gateway.core.operation import (
    EVENT_OF,
    MICROSECONDS,
    Audit,
    Command,
    Record,
    Snapshot,
    State,
    in_doubt_since_us,
    operation_id_of,
)
from gateway.core.sealing import SEALED_TEXT, key_id_of
from gateway.store.base import StoreError, Unreadable
from gateway.store.operations import (
    AUDIT_KEEP_US,
    AUDITS_MAX,
    PROBE_FLOOR_US,
    AuditEntry,
    Living,
    NumberedAudit,
    Query,
    RecoveryLease,
    RecoveryState,
    Tally,
    audit_entry,
    sealed_counts,
)
from gateway.store.recipes import Name
from gateway.store.redis import layout
from gateway.store.redis.change import Change, count_sealed
from gateway.store.redis.client import Client
from gateway.store.redis.connection import RedisCommand
from gateway.store.redis.entry import packed, unpacked, unpacked_record
from gateway.store.relational.inquiry import joined

# What lists have at one moment: an operation that goes from one to another is in one of them. A server whose memory is
# full refuses a transaction, and executes a script that writes nothing.
_LISTS: Final = """
local lists = {}
for place, key in ipairs(KEYS) do
    lists[place] = redis.call('ZRANGE', key, 0, -1)
end
return lists
"""

# Records that are read in one exchange.
PIECE_RECORDS_MAX: Final = 500

_ENDLESS: Final = (State.CLAIMED, State.IN_DOUBT, State.DEAD_LETTER, State.ACCEPTED)


async def find(client: Client, query: Query) -> list[Snapshot]:
    """See `ManagedStore.find`."""
    states = query.states & {State.IN_DOUBT} if query.recoverable else query.states
    if query.reason is not None:
        states &= {State.DEAD_LETTER}
    found: list[Snapshot] = []
    if not states or query.limit <= 0:
        return found
    async for ids in pieces(client, query.after, is_doubt=states == {State.IN_DOUBT}):
        records, now_us = await _records(client, ids)
        settled = (settle(record, now_us) for record in records)
        fitting = [record for record in settled if record is not None and _fits(record, query, states, now_us)]
        if query.recoverable:
            fitting = await _recoverable(client, fitting, now_us)
        found += [Snapshot(_bodiless(record), now_us) for record in fitting]
        if len(found) >= query.limit:
            return found[: query.limit]
    return found


def _fits(record: Record, query: Query, states: Collection[State], now_us: int) -> bool:
    if query.reason is not None and (record.delivery is None or record.delivery.reason != query.reason):
        return False
    is_on_route = query.routes is None or record.identity.route in query.routes
    is_old = not now_us - query.age_us < record.first_claimed_us <= now_us
    return is_on_route and record.state in states and is_old


def _bodiless(record: Record) -> Record:
    return record if record.response is None else replace(record, response=replace(record.response, body=None))


async def _recoverable(client: Client, records: Sequence[Record], now_us: int) -> list[Record]:
    """Those whose recovery lease is free and whose pause is over."""
    if not records:
        return []
    keys = [layout.recovery_key(record.identity.operation_id) for record in records]
    (values,), _ = await client.read([("MGET", *keys)])
    found = []
    for record, value in zip(records, values, strict=True):
        kept = _recovery_of(value)
        if kept is None or kept.token != record.token or not (kept.is_held(now_us) or kept.is_put_off(now_us)):
            found.append(record)
    return found


async def every(client: Client, after: UUID | None = None) -> AsyncIterator[tuple[list[Record], int]]:
    """All records in pieces, as they are written but for their bodies, and the time."""
    async for ids in pieces(client, after):
        yield await _records(client, ids)


async def pieces(client: Client, after: UUID | None, *, is_doubt: bool = False) -> AsyncIterator[list[UUID]]:
    """The ids of all operations after this one, in their order; with `is_doubt`, of those that are or may be in
    doubt."""
    floor = b"" if after is None else after.bytes
    for part in range(0 if after is None else layout.part_of(after), layout.PARTS):
        lists = [layout.LEASES[part], layout.DOUBT[part]] + ([] if is_doubt else [layout.DUE[part]])
        (found,), _ = await client.read([("EVAL", _LISTS, len(lists), *lists)])
        ids = sorted({member[:16] for members in found for member in members if member[:16] > floor})
        for begin in range(0, len(ids), PIECE_RECORDS_MAX):
            yield [UUID(bytes=each) for each in ids[begin : begin + PIECE_RECORDS_MAX]]


async def _records(client: Client, operation_ids: Sequence[UUID]) -> tuple[list[Record], int]:
    """The records that can be read, without the bodies of their responses. A missing body is not taken for one that
    was removed."""
    (values,), now_us = await client.read([("MGET", *map(layout.record_key, operation_ids))])
    found = []
    for value in values:
        try:
            if value is not None:
                found.append(_bodiless(unpacked_record(value, b"")))
        except Unreadable:
            continue
    return found, now_us


async def tally(client: Client) -> Tally:
    """See `ManagedStore.tally`."""
    doubt: list[RedisCommand] = [("ZRANGE", key, 0, -1) for key in layout.DOUBT]
    (sealed, *lists), now_us = await client.read([("HGETALL", layout.SEALED), *doubt])
    in_doubt, oldest_us = Counter[str](), now_us
    for members in lists:
        for member in members:
            since_us, route = layout.in_list_of_doubt(member)
            in_doubt[route] += 1
            oldest_us = min(oldest_us, since_us)
    lapsed: list[RedisCommand] = [("ZRANGEBYSCORE", key, "-inf", now_us) for key in layout.LEASES]
    replies, _ = await client.read(lapsed)
    ids = [UUID(bytes=member) for members in replies for member in members]
    for begin in range(0, len(ids), PIECE_RECORDS_MAX):
        records, _ = await _records(client, ids[begin : begin + PIECE_RECORDS_MAX])
        for record in records:
            settled = settle(record, now_us)
            if settled is not None and record.state is State.CLAIMED and settled.state is State.IN_DOUBT:
                in_doubt[record.identity.route] += 1
                oldest_us = min(oldest_us, in_doubt_since_us(settled))
    pairs = iter(sealed)
    counted = ((key_ids.decode(), int(number)) for key_ids, number in zip(pairs, pairs, strict=True))
    return Tally(in_doubt, (now_us - oldest_us) / MICROSECONDS, sealed_counts(each for each in counted if each[1] > 0))


async def count_living(client: Client, names: Collection[Name]) -> dict[Name, Living]:
    """How many keys of each operation name are remembered. Reads all records, unless there are no names."""
    counted = dict.fromkeys(names, Living())
    if not counted:
        return counted
    async for records, now_us in every(client):
        for record in records:
            settled = settle(record, now_us)
            for name in counted if settled is not None else ():
                if settled is not None and is_of(settled.identity, *name):
                    key_id = "" if settled.fingerprint is None else settled.fingerprint.key_id
                    counted[name] = joined(counted[name], Living(1, _kept_until_us(settled), {key_id: 1}))
    return counted


def _kept_until_us(record: Record) -> int | None:
    """Until when a key is remembered that nothing more happens to; None: until something does."""
    if record.state in _ENDLESS:
        return None
    return max(record.remember_until_us, record.replay_until_us if record.state is State.COMPLETED else 0)


# -- recovery leases ---------------------------------------------------------------------------------------------------


def _recovery_of(value: bytes | None) -> RecoveryState | None:
    return None if value is None else RecoveryState(*unpacked(value)[:6])


async def recovery(client: Client, operation_id: UUID) -> RecoveryState | None:
    """See `ManagedStore.recovery`."""
    (value,), _ = await client.read([("GET", layout.recovery_key(operation_id))])
    return _recovery_of(value)


async def recover(
    client: Client, operation_id: UUID, token: int, lease_us: int, *, is_urgent: bool
) -> RecoveryLease | None:
    """See `ManagedStore.recover`."""
    granted: list[RecoveryLease] = []

    async def attempt() -> Change | None:
        granted.clear()
        key = layout.recovery_key(operation_id)
        (kept,), _, _ = await client.kept((operation_id,), "changes")
        if isinstance(kept, StoreError):
            raise kept
        (value,), now_us = await client.read([("GET", key)], "changes")
        record = settle(kept.record, now_us)
        if record is None or record.state is not State.IN_DOUBT or record.token != token:
            return None
        columns = (token, 0, 0, 0, 0, "", 0) if value is None else unpacked(value)
        if columns[0] != token:
            columns = (token, 0, 0, 0, 0, "", 0)
        _, tries, _, put_off_until_us, asked_us, finding, background_tries = columns
        before = RecoveryState(*columns[:6])
        if before.is_held(now_us) or (before.is_put_off(now_us) and not is_urgent):
            return None
        # A time in the future comes from before the clock was set back; ignore it.
        if asked_us <= now_us < asked_us + PROBE_FLOOR_US:
            return None
        change = kept.change()
        change.require(key, value)
        # Urgent probes do not lengthen the pause.
        background = background_tries + (not is_urgent)
        state = (token, tries + 1, now_us + lease_us, put_off_until_us, asked_us, finding, background)
        change.then("SET", key, packed(state))
        granted.append(RecoveryLease(operation_id, token, tries, background_tries))
        return change

    await client.change(attempt)
    return granted[0] if granted else None


async def put_off(client: Client, lease: RecoveryLease, pause_us: int, finding: str) -> None:
    """See `ManagedStore.put_off`."""
    key = layout.recovery_key(lease.operation_id)

    async def attempt() -> Change | None:
        (value,), now_us = await client.read([("GET", key)], "changes")
        if value is None:
            return None
        token, tries, _, _, _, _, background_tries = unpacked(value)
        if (token, tries) != (lease.token, lease.tries + 1):
            return None
        change = Change()
        change.require(key, value)
        change.then("SET", key, packed((token, tries, 0, now_us + pause_us, now_us, finding, background_tries)))
        return change

    await client.change(attempt)


# -- audits ------------------------------------------------------------------------------------------------------------


def write_audit(change: Change, command: Command, audit: Audit, token: int, number: int, now_us: int) -> None:
    """Write who did this, under a number that is higher than all before."""
    operation_id = operation_id_of(command)
    name, event = _audit_name(number, operation_id), EVENT_OF[type(command)].value
    values = (now_us, event, token, audit.who, audit.why)
    change.then("HSET", layout.audits_key(operation_id), name[:8], packed(values))
    change.then("ZADD", layout.AUDITS, number, name)
    change.then("ZADD", layout.OLD_AUDITS, now_us + AUDIT_KEEP_US, name)
    count_sealed(change, None, audit_sealed_by(audit))


def audit_sealed_by(audit: Audit) -> str | None:
    """The id of the key that the audit is sealed with; None if it is in clear."""
    return next((key_id_of(text) for text in (audit.why, audit.who) if text[:1] == SEALED_TEXT), None)


def _audit_name(number: int, operation_id: UUID) -> bytes:
    return number.to_bytes(8) + operation_id.bytes


def drop_audit(name: bytes, value: bytes) -> Change:
    """Delete the audit of this name, which has this value."""
    change = Change()
    _, _, _, who, why = unpacked(value)
    count_sealed(change, audit_sealed_by(Audit(who, why)), None)
    change.then("HDEL", layout.audits_key(UUID(bytes=name[8:])), name[:8])
    change.then("ZREM", layout.AUDITS, name)
    change.then("ZREM", layout.OLD_AUDITS, name)
    return change


async def last_audit(client: Client) -> int:
    """The highest number of an audit; 0 where there is none."""
    (names,), _ = await client.read([("ZREVRANGE", layout.AUDITS, 0, 0)], "changes")
    return int.from_bytes(names[0][:8]) if names else 0


async def audits(client: Client, operation_id: UUID) -> list[AuditEntry]:
    """See `ManagedStore.audits`."""
    (fields,), _ = await client.read([("HGETALL", layout.audits_key(operation_id))])
    pairs = iter(fields)
    ordered = sorted(zip(pairs, pairs, strict=True))[-AUDITS_MAX:]
    return [audit_entry(operation_id, *unpacked(value)) for _, value in ordered]


async def latest_audits(client: Client, before: int | None, limit: int) -> list[NumberedAudit]:
    """See `ManagedStore.latest_audits`."""
    highest = "+inf" if before is None else f"({before}"
    (names,), _ = await client.read([("ZREVRANGEBYSCORE", layout.AUDITS, highest, "-inf", "LIMIT", 0, limit)])
    found = []
    for name, value in zip(names, await audit_values(client, names), strict=True):
        if value is not None:
            operation_id = UUID(bytes=name[8:])
            entry = audit_entry(operation_id, *unpacked(value))
            found.append(NumberedAudit(int.from_bytes(name[:8]), operation_id, entry))
    return found


async def audit_values(client: Client, names: Iterable[bytes]) -> list[Any]:
    """The audits of these names; None for one that is gone."""
    commands: list[RedisCommand] = [("HGET", layout.audits_key(UUID(bytes=name[8:])), name[:8]) for name in names]
    values, _ = await client.read(commands)
    return values
