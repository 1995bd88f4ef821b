"""Reads and changes of the durable store, with its clock, and repeated while they lose against others. And what
recovery, operators, sweeps and starting gateways ask for: records by state, audits, living keys, what is sealed.

Its invariant: nothing is read from or written to a memory other than the one that the store was started on.
`lifecycle` decides what state a record is in. Lists are read part by part, and records in pieces, so that other calls
get their turn in between. Whoever has not seen a change sweeps it again, so that a sweep waits for neither disks nor
replicas.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import astuple, replace
from typing import Any, Final, TypeVar
from uuid import UUID

from gateway.core.confidential import SEALED_TEXT, key_id_of
from gateway.core.identity.key import is_of
from gateway.core.lifecycle import settle, written_down
from gateway.core.operation import (
    EVENT_OF,
    MICROSECONDS,
    Audit,
    Command,
    Record,
    SealedRequest,
    Snapshot,
    State,
    in_doubt_since_us,
    operation_id_of,
)
from gateway.store.agreement import Name
from gateway.store.base import EpochChanged, NotApplied, StoreError, Unreadable
from gateway.store.operations import (
    ACTIVITY_AHEAD_US,
    ACTIVITY_ROWS_MAX,
    AUDIT_KEEP_US,
    AUDITS_MAX,
    LAPSES_NAMED_MAX,
    WITNESS_KEEP_US,
    ActivityRow,
    AuditEntry,
    Living,
    NumberedAudit,
    Query,
    RecoveryLease,
    RecoveryState,
    Swept,
    Tally,
    audit_entry,
    sealed_counts,
    with_finding,
)
from gateway.store.redis import layout
from gateway.store.redis.connection import RedisCommand, time_us
from gateway.store.redis.layout import Change, Kept, kept, packed, sealed_by_of, unpacked
from gateway.store.redis.news import News
from gateway.store.redis.primary import Primary
from gateway.store.relational.inquiry import joined
from gateway.store.relational.rows import decode_whole
from gateway.store.sealed import EXAMPLES_MAX, PAGE_ROWS_MAX, Place, Row, Values
from gateway.store.sealed import Kept as KeptRow

T = TypeVar("T")

# How often a change is tried that loses against others.
TRIES_MAX: Final = 32
# Records that are changed in one exchange.
_PIECE_MAX: Final = 50
# Records that cannot be read, and so are passed over.
_WITHHELD_MAX: Final = 10_000

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
# No list leads to what is sealed with one key.
_SEARCHED_MAX: Final = 1_000

_ENDLESS: Final = (State.CLAIMED, State.IN_DOUBT, State.DEAD_LETTER, State.ACCEPTED)


class Inquiry:
    """See `ManagedStore` and `SealedRows`; and `Primary.require_open` for what everything raises."""

    _news: News
    _withheld: set[bytes]
    """The records that were found since the start and cannot be read."""

    def __init__(self, primary: Primary, clock_us: Callable[[], int] | None) -> None:
        """`clock_us` takes the place of the server's clock."""
        self.primary = primary
        self._clock_us = clock_us
        # Of the memory that the store was started on, as Redis keeps it.
        self._identity = ""
        self._last_number = 0

    def _draw(self, least: int) -> int:
        """A number that is no lower than this, and higher than all that this process has drawn before."""
        self._last_number = max(least, self._last_number + 1)
        return self._last_number

    async def _read(self, commands: Sequence[RedisCommand], link: str = "reads") -> tuple[list[Any], int]:
        """The replies, and the store's time after them. Raises `NotApplied`."""
        *replies, time = await self.primary.read([*commands, ("TIME",)], link)
        return replies, time_us(time) if self._clock_us is None else self._clock_us()

    async def _change(
        self, attempt: Callable[[], Awaitable[tuple[T, Change | None]]], link: str = "changes", *, keeps: bool = True
    ) -> T:
        """Read and change, until nobody was faster; returns what the last `attempt` says, which has no change where
        nothing is to be changed. Raises `NotApplied`, `EpochChanged` and `Indefinite`."""
        for _ in range(TRIES_MAX):
            result, change = await attempt()
            if change is None:
                return result
            (done,) = await self.primary.write([change.call(self._identity)], link, keeps=keeps)
            if isinstance(done, StoreError):
                raise done
            if done:
                return result
        raise contended()

    async def _kept(self, operation_ids: Iterable[UUID], link: str) -> tuple[list[Kept | Unreadable], int, int]:
        """The operations with their whole records, or why one cannot be read; the floor of tokens; the time."""
        wanted = list(operation_ids)
        keys = [key for each in wanted for key in (layout.record_key(each), layout.body_key(each))]
        commands: list[RedisCommand] = [("HGET", layout.MEMORY, "floor")]
        commands += [("MGET", *keys)] if keys else []
        (floor, *values), now_us = await self._read(commands, link)
        pairs = iter(values[0] if values else ())
        found = [kept(each, value, body) for each, value, body in zip(wanted, pairs, pairs, strict=True)]
        return found, int(floor or 0), now_us

    # -- finding -------------------------------------------------------------------------------------------------------

    async def find(self, query: Query) -> list[Snapshot]:
        states = query.states & {State.IN_DOUBT} if query.recoverable else query.states
        if query.reason is not None:
            states &= {State.DEAD_LETTER}
        found: list[Snapshot] = []
        if not states or query.limit <= 0:
            return found
        async for ids in self._pieces(query.after, is_doubt=states == {State.IN_DOUBT}):
            records, now_us = await self._records(ids)
            settled = (settle(record, now_us) for record in records)
            fitting = [record for record in settled if record is not None and _fits(record, query, states, now_us)]
            if query.recoverable:
                fitting = await self._recoverable(fitting, now_us)
            found += [Snapshot(_bodiless(record), now_us) for record in fitting]
            if len(found) >= query.limit:
                return found[: query.limit]
        return found

    async def _recoverable(self, records: Sequence[Record], now_us: int) -> list[Record]:
        """Those whose recovery lease is free and whose pause is over."""
        if not records:
            return []
        keys = [layout.recovery_key(record.identity.operation_id) for record in records]
        (values,), _ = await self._read([("MGET", *keys)])
        found = []
        for record, value in zip(records, values, strict=True):
            kept = _recovery_of(value)
            if kept is None or kept.token != record.token or not (kept.is_held(now_us) or kept.is_put_off(now_us)):
                found.append(record)
        return found

    async def _pieces(self, after: UUID | None, *, is_doubt: bool = False) -> AsyncIterator[list[UUID]]:
        """The ids of all operations after this one, in their order; with `is_doubt`, of those that are or may be in
        doubt."""
        floor = b"" if after is None else after.bytes
        for part in range(0 if after is None else layout.part_of(after), layout.LIST_PARTS):
            lists = [layout.LEASES[part], layout.DOUBT[part]] + ([] if is_doubt else [layout.DUE[part]])
            (found,), _ = await self._read([("EVAL", _LISTS, len(lists), *lists)])
            ids = sorted({member[:16] for members in found for member in members if member[:16] > floor})
            for begin in range(0, len(ids), PIECE_RECORDS_MAX):
                yield [UUID(bytes=each) for each in ids[begin : begin + PIECE_RECORDS_MAX]]

    async def _records(self, operation_ids: Sequence[UUID]) -> tuple[list[Record], int]:
        """The records that can be read, without the bodies of their responses. A missing body is not taken for one
        that was removed."""
        (values,), now_us = await self._read([("MGET", *map(layout.record_key, operation_ids))])
        found = []
        for value in values:
            try:
                if value is not None:
                    found.append(_bodiless(decode_whole(unpacked(value), b"")))
            except Unreadable:
                continue
        return found, now_us

    async def tally(self) -> Tally:
        doubt: list[RedisCommand] = [("ZRANGE", key, 0, -1) for key in layout.DOUBT]
        (sealed, *lists), now_us = await self._read([("HGETALL", layout.SEALED), *doubt])
        in_doubt, oldest_us = Counter[str](), now_us
        for members in lists:
            for member in members:
                since_us, route = layout.in_list_of_doubt(member)
                in_doubt[route] += 1
                oldest_us = min(oldest_us, since_us)
        replies, _ = await self._read([("ZRANGEBYSCORE", key, "-inf", now_us) for key in layout.LEASES])
        lapsed = [UUID(bytes=member) for members in replies for member in members]
        for begin in range(0, len(lapsed), PIECE_RECORDS_MAX):
            records, _ = await self._records(lapsed[begin : begin + PIECE_RECORDS_MAX])
            for record in records:
                settled = settle(record, now_us)
                if settled is not None and record.state is State.CLAIMED and settled.state is State.IN_DOUBT:
                    in_doubt[record.identity.route] += 1
                    oldest_us = min(oldest_us, in_doubt_since_us(settled))
        pairs = iter(sealed)
        counted = ((key_ids.decode(), int(number)) for key_ids, number in zip(pairs, pairs, strict=True))
        seconds = (now_us - oldest_us) / MICROSECONDS
        return Tally(in_doubt, seconds, sealed_counts(each for each in counted if each[1] > 0))

    async def _count_living(self, names: Collection[Name]) -> dict[Name, Living]:
        """How many keys of each operation name are remembered. Reads all records, unless there are no names."""
        counted = dict.fromkeys(names, Living())
        if not counted:
            return counted
        async for ids in self._pieces(None):
            records, now_us = await self._records(ids)
            for settled in (settle(record, now_us) for record in records):
                for name in counted if settled is not None else ():
                    if settled is not None and is_of(settled.identity, *name):
                        key_id = "" if settled.fingerprint is None else settled.fingerprint.key_id
                        counted[name] = joined(counted[name], Living(1, _kept_until_us(settled), {key_id: 1}))
        return counted

    async def read_kept(self, operation_id: UUID) -> SealedRequest | None:
        (value,), _ = await self._read([("GET", layout.request_key(operation_id))])
        if value is None:
            return None
        acceptance_id, key_id, sealed = unpacked(value)
        return SealedRequest(UUID(bytes=acceptance_id), key_id, sealed)

    # -- recovery leases ----------------------------------------------------------------------------------------------

    async def recovery(self, operation_id: UUID) -> RecoveryState | None:
        (value,), _ = await self._read([("GET", layout.recovery_key(operation_id))])
        return _recovery_of(value)

    async def recover(self, operation_id: UUID, token: int, lease_us: int, *, is_urgent: bool) -> RecoveryLease | None:
        async def attempt() -> tuple[RecoveryLease | None, Change | None]:
            key = layout.recovery_key(operation_id)
            (kept,), _, _ = await self._kept((operation_id,), "changes")
            if isinstance(kept, StoreError):
                raise kept
            (value,), now_us = await self._read([("GET", key)], "changes")
            record = settle(kept.record, now_us)
            if record is None or record.state is not State.IN_DOUBT or record.token != token:
                return None, None
            before = _recovery_of(value)
            if before is None or before.token != token:
                before = RecoveryState(token)
            state = before.leased(now_us, lease_us, is_urgent=is_urgent)
            if state is None:
                return None, None
            change = kept.change()
            change.require(key, value)
            change.then("SET", key, packed(astuple(state)))
            return RecoveryLease(operation_id, token, before.tries, before.background_tries), change

        return await self._change(attempt)

    async def put_off(self, lease: RecoveryLease, pause_us: int, finding: str) -> None:
        key = layout.recovery_key(lease.operation_id)

        async def attempt() -> tuple[None, Change | None]:
            (kept,), _, _ = await self._kept((lease.operation_id,), "changes")
            (value,), now_us = await self._read([("GET", key)], "changes")
            before = _recovery_of(value)
            if before is None or (before.token, before.tries) != (lease.token, lease.tries + 1):
                return None, None
            until_us = now_us + pause_us
            state = replace(before, held_until_us=0, put_off_until_us=until_us, asked_us=now_us, finding=finding)
            change = Change() if isinstance(kept, StoreError) else kept.change()
            change.require(key, value)
            change.then("SET", key, packed(astuple(state)))
            if not isinstance(kept, StoreError) and kept.record is not None:
                history = with_finding(kept.record, lease, finding, now_us)
                if history is not None:
                    kept.write(change, replace(kept.record, history=history))
            return None, change

        await self._change(attempt)

    # -- audits -------------------------------------------------------------------------------------------------------

    async def _last_audit(self) -> int:
        """The highest number of an audit; 0 where there is none."""
        (names,), _ = await self._read([("ZREVRANGE", layout.AUDITS, 0, 0)], "changes")
        return int.from_bytes(names[0][:8]) if names else 0

    async def audits(self, operation_id: UUID) -> list[AuditEntry]:
        (fields,), _ = await self._read([("HGETALL", layout.audits_key(operation_id))])
        pairs = iter(fields)
        ordered = sorted(zip(pairs, pairs, strict=True))[-AUDITS_MAX:]
        return [audit_entry(operation_id, *unpacked(value)) for _, value in ordered]

    async def latest_audits(self, before: int | None, limit: int) -> list[NumberedAudit]:
        highest = "+inf" if before is None else f"({before}"
        (names,), _ = await self._read([("ZREVRANGEBYSCORE", layout.AUDITS, highest, "-inf", "LIMIT", 0, limit)])
        found = []
        for name, value in zip(names, await self._audit_values(names), strict=True):
            if value is not None:
                operation_id = UUID(bytes=name[8:])
                entry = audit_entry(operation_id, *unpacked(value))
                found.append(NumberedAudit(int.from_bytes(name[:8]), operation_id, entry))
        return found

    async def _audit_values(self, names: Iterable[bytes]) -> list[Any]:
        """The audits of these names; None for one that is gone."""
        values, _ = await self._read([("HGET", layout.audits_key(UUID(bytes=name[8:])), name[:8]) for name in names])
        return values

    # -- activity -----------------------------------------------------------------------------------------------------

    async def save_activity(self, service: str, *rows: ActivityRow) -> None:
        change = Change()
        # Upkeep makes room where the memory is full.
        change.free()
        for row in rows:
            key, name = layout.activity_key(service, row.span_us), row.at_us.to_bytes(8) + row.writer.bytes
            change.then("HSET", key, name, packed((row.until_us, row.body)))
            change.then("ZADD", layout.ACTIVITY, row.until_us, name + key)
        for done in await self.primary.write([change.call(self._identity)], keeps=False):
            if isinstance(done, StoreError):
                raise done

    async def activity(self, service: str, span_us: int, since_us: int, until_us: int) -> list[ActivityRow]:
        (fields,), _ = await self._read([("HGETALL", layout.activity_key(service, span_us))])
        pairs = iter(fields)
        found = [(int.from_bytes(name[:8]), name[8:], value) for name, value in zip(pairs, pairs, strict=True)]
        wanted = sorted((each for each in found if since_us <= each[0] < until_us), reverse=True)[:ACTIVITY_ROWS_MAX]
        return [ActivityRow(UUID(bytes=writer), span_us, at_us, *unpacked(value)) for at_us, writer, value in wanted]

    # -- what is encrypted again --------------------------------------------------------------------------------------

    async def sealed_rows(self, place: Place, after: Any, limit: int) -> list[Row]:
        match place:
            case Place.RECORDS:
                ids: list[UUID] = []
                async for piece in self._pieces(after):
                    ids += piece
                    if len(ids) >= limit:
                        break
                kept, _, _ = await self._kept(ids[:limit], "reads")
                return [_record_row(each, found) for each, found in zip(ids, kept, strict=False)]
            case Place.AUDITS:
                above = "-inf" if after is None else f"({int.from_bytes(after[:8])}"
                (names,), _ = await self._read([("ZRANGEBYSCORE", layout.AUDITS, above, "+inf", "LIMIT", 0, limit)])
                return [
                    _audit_row(name, value) for name, value in zip(names, await self._audit_values(names), strict=True)
                ]
        # The rest is not kept here.
        return []

    async def sealed_examples(self, key_id: str) -> list[KeptRow]:
        """No list leads to them, so it looks at `_SEARCHED_MAX` records at most."""
        found, searched = list[KeptRow](), 0
        async for ids in self._pieces(None):
            for begin in range(0, len(ids), PAGE_ROWS_MAX):
                kept, _, _ = await self._kept(ids[begin : begin + PAGE_ROWS_MAX], "reads")
                for each in kept:
                    if isinstance(each, Kept) and each.record is not None and sealed_by_of(each.row) == key_id:
                        found.append(each.record)
                searched += len(kept)
                if searched >= _SEARCHED_MAX or len(found) >= EXAMPLES_MAX:
                    return found[:EXAMPLES_MAX]
        return found

    async def reseal(self, changes: Sequence[tuple[Row, KeptRow]]) -> int:
        made = [await self._resealing(row, again) for row, again in changes]
        calls = [change.call(self._identity) for change in made if change is not None]
        done = await self.primary.write(calls) if calls else []
        for outcome in done:
            if isinstance(outcome, StoreError):
                raise outcome
        return sum(outcome is True for outcome in done)

    async def _resealing(self, row: Row, again: KeptRow) -> Change | None:
        """The change of a row that is as it was read."""
        match row.kept, again:
            case Record() as old, Record():
                (kept,), _, _ = await self._kept((old.identity.operation_id,), "changes")
                if isinstance(kept, StoreError) or kept.record != old:
                    return None
                change = kept.change()
                kept.write(change, again)
                return change
            case Values() as old, Values():
                (value,) = await self._audit_values((row.after,))
                if value is None:
                    return None
                *about, who, why = unpacked(value)
                if (who, why) != old.values:
                    return None
                change = Change()
                change.then("HSET", layout.audits_key(old.columns[0]), row.after[:8], packed((*about, *again.values)))
                change.count_sealed(*(_audit_sealed_by(Audit(*each.values)) for each in (old, again)))
                return change
        return None

    # -- sweeps --------------------------------------------------------------------------------------------------------

    async def sweep(self, limit: int) -> Swept:
        written, lapsed = Counter[State](), list[tuple[str, UUID]]()
        _, now_us = await self._read([])
        at_most = ("-inf", now_us, "LIMIT", 0, limit + len(self._withheld))
        found, _ = await self._read([("ZRANGEBYSCORE", key, *at_most) for key in (*layout.LEASES, *layout.DUE)])
        ids = dict.fromkeys(member for members in found for member in members if member not in self._withheld)
        due = [UUID(bytes=member) for member in ids][:limit]
        ahead = await self._ahead(now_us, min(limit - len(due), _PIECE_MAX))
        wanted = due + ahead
        for begin in range(0, len(wanted), _PIECE_MAX):
            for before, after in await self._sweep_some(wanted[begin : begin + _PIECE_MAX]):
                state, operation_id = State.ABSENT if after is None else after.state, before.identity.operation_id
                self._news.wake(operation_id)
                # One that only moved is still what it was.
                written[State.CLAIMED if state is before.state else state] += 1
                if state is not before.state and state is State.IN_DOUBT:
                    lapsed.append((before.identity.route, operation_id))
            # Let others have their turn.
            await asyncio.sleep(0)
        tidied = await self._tidy(limit - len(due))
        return Swept(
            written[State.IN_DOUBT],
            written[State.TOMBSTONE],
            written[State.ABSENT],
            len(due) + tidied >= limit or 0 < len(ahead) <= written[State.CLAIMED],
            written[State.DEAD_LETTER],
            tuple(lapsed[:LAPSES_NAMED_MAX]),
            # Leases that were moved, and audits.
            written[State.CLAIMED] + tidied,
        )

    async def _ahead(self, now_us: int, limit: int) -> list[UUID]:
        """Where to look for leases that begin in the future, because the clock was set back: those that end last."""
        if limit <= 0:
            return []
        last = ("+inf", f"({now_us}", "WITHSCORES", "LIMIT", 0, limit)
        lists, _ = await self._read([("ZREVRANGEBYSCORE", key, *last) for key in (*layout.LEASES, *layout.DOUBT)])
        found = [pair for each in lists for pair in zip(map(int, each[1::2]), each[::2], strict=True)]
        ids = [member[:16] for _, member in sorted(found, reverse=True)]
        return [UUID(bytes=each) for each in ids if each not in self._withheld][:limit]

    async def _sweep_some(self, operation_ids: list[UUID]) -> list[tuple[Record, Record | None]]:
        """Write down what time has made of these; returns what was changed. What another changed meanwhile is left."""
        kept, floor, now_us = await self._kept(operation_ids, "changes")
        calls, changes = list[RedisCommand](), list[tuple[Record, Record | None]]()
        for operation_id, each in zip(operation_ids, kept, strict=True):
            if isinstance(each, StoreError):
                if len(self._withheld) < _WITHHELD_MAX:
                    self._withheld.add(operation_id.bytes)
                continue
            record = each.record
            after = None if record is None else written_down(record, now_us)
            if record is None or after is record:
                continue
            change = each.change()
            change.free()
            each.replace(change, after, floor, now_us)
            if change.floor is not None:
                floor = max(record.token, now_us)
            calls.append(change.call(self._identity))
            changes.append((record, after))
        done = await self.primary.write(calls, keeps=False) if calls else []
        for outcome in done:
            if isinstance(outcome, EpochChanged):
                raise outcome
        return [change for change, outcome in zip(changes, done, strict=True) if outcome is True]

    async def _tidy(self, limit: int) -> int:
        """Extend or delete at most `limit` old audits, and delete witnesses; returns how many. A witness that was
        raised since the last look but one is kept."""
        if limit <= 0:
            return 0
        _, now_us = await self._read([])
        unraised_us, ahead_us = now_us - 2 * WITNESS_KEEP_US, now_us + ACTIVITY_AHEAD_US
        (names, links, *counted), _ = await self._read(
            [
                ("ZRANGEBYSCORE", layout.OLD_AUDITS, "-inf", now_us, "LIMIT", 0, limit),
                ("ZRANGEBYSCORE", layout.WITNESSES, "-inf", unraised_us, "LIMIT", 0, limit),
                ("ZRANGEBYSCORE", layout.ACTIVITY, "-inf", now_us, "LIMIT", 0, limit),
                ("ZRANGEBYSCORE", layout.ACTIVITY, f"({ahead_us}", "+inf", "LIMIT", 0, limit),
            ]
        )
        needed, _ = await self._read([("EXISTS", layout.record_key(UUID(bytes=name[8:]))) for name in names])
        changes: list[Change] = []
        for name, value, is_needed in zip(names, await self._audit_values(names), needed, strict=True):
            if is_needed or value is None:
                change = Change()
                change.then("ZADD", layout.OLD_AUDITS, now_us + AUDIT_KEEP_US, name)
            else:
                change = drop_audit(name, value)
            changes.append(change)
        if links:
            change = Change()
            change.then("ZREMRANGEBYSCORE", layout.WITNESSES, "-inf", unraised_us)
            changes.append(change)
        for row in [row for rows in counted for row in rows][: max(0, limit - len(changes))]:
            change = Change()
            change.then("HDEL", row[24:], row[:24])
            change.then("ZREM", layout.ACTIVITY, row)
            changes.append(change)
        if changes:
            await self.primary.write([change.call(self._identity) for change in changes], keeps=False)
        return len(changes)


def contended() -> NotApplied:
    return NotApplied(f"the change lost against others {TRIES_MAX} times")


def _fits(record: Record, query: Query, states: Collection[State], now_us: int) -> bool:
    if query.reason is not None and (record.delivery is None or record.delivery.reason != query.reason):
        return False
    is_on_route = query.routes is None or record.identity.route in query.routes
    is_old = not now_us - query.age_us < record.first_claimed_us <= now_us
    return is_on_route and record.state in states and is_old


def _bodiless(record: Record) -> Record:
    return record if record.response is None else replace(record, response=replace(record.response, body=None))


def _kept_until_us(record: Record) -> int | None:
    """Until when a key is remembered that nothing more happens to; None: until something does."""
    if record.state in _ENDLESS:
        return None
    return max(record.remember_until_us, record.replay_until_us if record.state is State.COMPLETED else 0)


def _recovery_of(value: bytes | None) -> RecoveryState | None:
    return None if value is None else RecoveryState(*unpacked(value))


def write_audit(change: Change, command: Command, audit: Audit, token: int, number: int, now_us: int) -> None:
    """Write who did this, under a number that is higher than all before."""
    operation_id, event = operation_id_of(command), EVENT_OF[type(command)].value
    name = number.to_bytes(8) + operation_id.bytes
    change.then("HSET", layout.audits_key(operation_id), name[:8], packed((now_us, event, token, audit.who, audit.why)))
    change.then("ZADD", layout.AUDITS, number, name)
    change.then("ZADD", layout.OLD_AUDITS, now_us + AUDIT_KEEP_US, name)
    change.count_sealed(None, _audit_sealed_by(audit))


def drop_audit(name: bytes, value: bytes) -> Change:
    """Delete the audit of this name, which has this value."""
    change = Change()
    _, _, _, who, why = unpacked(value)
    change.count_sealed(_audit_sealed_by(Audit(who, why)), None)
    change.then("HDEL", layout.audits_key(UUID(bytes=name[8:])), name[:8])
    change.then("ZREM", layout.AUDITS, name)
    change.then("ZREM", layout.OLD_AUDITS, name)
    return change


def _audit_sealed_by(audit: Audit) -> str | None:
    """The id of the key that the audit is sealed with; None if it is in clear."""
    return next((key_id_of(text) for text in (audit.why, audit.who) if text[:1] == SEALED_TEXT), None)


def _record_row(operation_id: UUID, found: Kept | Unreadable) -> Row:
    if isinstance(found, Unreadable):
        return Row(operation_id, None)
    return Row(operation_id, found.record, is_gone=found.record is None)


def _audit_row(name: bytes, value: bytes | None) -> Row:
    if value is None:
        return Row(name, None, is_gone=True)
    _, event, token, who, why = unpacked(value)
    return Row(name, Values(Place.AUDITS, (UUID(bytes=name[8:]), event, token, who, why)))
