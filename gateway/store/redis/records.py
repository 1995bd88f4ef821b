"""What the durable store keeps in Redis, and what recovery, operators and sweeps ask of that: records by state, audits,
activity, what is sealed.

There are a memory, lists of operations, and what each operation has. The operations are listed in parts, each of which
has those between two ids and is read as a whole. A value is a revision, the version of the packing, and columns; those
of a record are the ones that the relational stores have. The revision is random: two values with one revision are the
same write. A `Change` says what must be as it was read, and what is then written; it is a call of `lua/change.lua`,
which decides nothing, and is repeated while it loses against others. `Kept` is an operation as it was read, and writes
the record that `lifecycle` returned for it.

The invariant: nothing is read from or written to a memory other than the one that the store was started on. Lists are
read part by part, and records in pieces, so that other calls get their turn in between. Whoever has not seen a change
sweeps it again, so that a sweep waits for neither disks nor replicas.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import astuple, dataclass, field, replace
from itertools import repeat
from typing import Any, Final, TypeVar
from uuid import UUID

from gateway.core.confidential import SEALED_TEXT, key_id_of
from gateway.core.identity.key import is_of
from gateway.core.lifecycle import due_us, settle, written_down
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
from gateway.store.base import NotApplied, StoreError, Unreadable
from gateway.store.operations import (
    ACTIVITY_AHEAD_US,
    ACTIVITY_ROWS_MAX,
    AUDIT_KEEP_US,
    AUDITS_MAX,
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
    listed,
    sealed_counts,
    with_finding,
)
from gateway.store.redis.connection import KEY_PREFIX, News, RedisCommand, script, time_us
from gateway.store.redis.primary import Primary
from gateway.store.relational.rows import COLUMNS, decode_whole, encode_whole, pack, unpack
from gateway.store.sealed import EXAMPLES_MAX, PAGE_ROWS_MAX, Place, Row, Values
from gateway.store.sealed import Kept as KeptRow

T = TypeVar("T")

# -- keys and lists ----------------------------------------------------------------------------------------------------

_TEXT: Final = f"{KEY_PREFIX}durable:"

MEMORY: Final = f"{_TEXT}memory"
"""A hash: the identity, the run and place that it was accepted at, the floor of tokens, memo and generation."""
WITNESSES: Final = f"{_TEXT}witnesses"
TOKENS: Final = f"{_TEXT}tokens"
"""The last token, as a score that only grows."""
SEALED: Final = f"{_TEXT}sealed"
"""How many records are sealed with which keys."""
AUDITS: Final = f"{_TEXT}audits"
OLD_AUDITS: Final = f"{_TEXT}audits:old"
"""Audits by the time until which they are kept."""
ACTIVITY: Final = f"{_TEXT}activity"
"""The rows of activity by the time until which they are kept: the name of each in its hash, and that of the hash."""
CONFIGURATION: Final = f"{_TEXT}configuration"
GATEWAYS: Final = f"{_TEXT}gateways"
TURNS: Final = f"{_TEXT}turns"
_TRIAL: Final = f"{_TEXT}trial"

LIST_PARTS: Final = 64
_FIRST_BYTES: Final = 256
# Of what stands in a member of a list.
ID_BYTES: Final = 16
_SINCE_BYTES: Final = 8

LEASES: Final = [f"{_TEXT}leases:{part}" for part in range(LIST_PARTS)]
"""The claimed operations of each part, by the end of their lease."""
DOUBT: Final = [f"{_TEXT}doubt:{part}" for part in range(LIST_PARTS)]
"""Those in doubt, by the end of their lease; since when they are, and the route, stand behind the id."""
DUE: Final = [f"{_TEXT}due:{part}" for part in range(LIST_PARTS)]
"""All others, by the time of their next row of the clock."""
_NEVER: Final = "+inf"


def part_of(operation_id: UUID) -> int:
    return operation_id.bytes[0] * LIST_PARTS // _FIRST_BYTES


def _key_of(kind: str) -> Callable[[UUID], bytes]:
    prefix = f"{_TEXT}{kind}:".encode()
    return lambda operation_id: prefix + operation_id.bytes


record_key: Final = _key_of("o")
body_key: Final = _key_of("b")
request_key: Final = _key_of("k")
recovery_key: Final = _key_of("r")
audits_key: Final = _key_of("a")
"""A hash by number."""


def activity_key(service: str, span_us: int) -> bytes:
    """A hash by time and writer."""
    return f"{_TEXT}n:{span_us}:{service}".encode()


def place_of(record: Record | None) -> tuple[str, bytes, int | str] | None:
    """The list that the record is in, under which name and with which score."""
    if record is None:
        return None
    operation_id = record.identity.operation_id
    part = part_of(operation_id)
    if record.state is State.CLAIMED:
        return LEASES[part], operation_id.bytes, record.lease_until_us
    if record.state is State.IN_DOUBT:
        since = in_doubt_since_us(record).to_bytes(_SINCE_BYTES)
        return DOUBT[part], operation_id.bytes + since + record.identity.route.encode(), record.lease_until_us
    due = due_us(record)
    return DUE[part], operation_id.bytes, _NEVER if due is None else due


def in_list_of_doubt(member: bytes) -> tuple[int, str]:
    """Since when the operation of a member of `DOUBT` is in doubt, and its route."""
    since, route = member[ID_BYTES:][:_SINCE_BYTES], member[ID_BYTES + _SINCE_BYTES :]
    return int.from_bytes(since), route.decode()


# -- values and changes ------------------------------------------------------------------------------------------------

SCRIPT: Final = script("change.lua")

REVISION_BYTES: Final = 16
"""As in `lua/change.lua`."""
PACKING: Final = 1
_VALUE_HEAD: Final = REVISION_BYTES + 1
_SEALED_BY: Final = COLUMNS.index("sealed_by")


def packed(values: tuple[Any, ...]) -> bytes:
    """A new value, with a revision of its own."""
    return os.urandom(REVISION_BYTES) + bytes((PACKING,)) + pack(values)


def unpacked(value: bytes) -> tuple[Any, ...]:
    """Undo `packed`. Raises `Unreadable` for what this program has not packed."""
    if len(value) < _VALUE_HEAD or value[REVISION_BYTES] != PACKING:
        raise Unreadable("a value in Redis was written by another version of this program, or is damaged")
    return unpack(value, _VALUE_HEAD)


@dataclass(slots=True)
class Change:
    """Conditions and commands."""

    frees: bool = False
    """Whether it is executed where the memory is full. A server refuses a script whose first write may need room, and
    that of such a change is a deletion."""
    floor: int | None = None
    """What the floor of tokens must be; None: anything."""
    is_due: bool = False
    """Whether it does anything: it writes, or sees whether the memory is still the same one."""
    _keys: dict[str | bytes, int] = field(default_factory=lambda: {MEMORY: 1, WITNESSES: 2})
    _conditions: list[str | bytes | int] = field(default_factory=list)
    _commands: list[str | bytes | int] = field(default_factory=list)

    def require(self, key: str | bytes, value: bytes | None) -> None:
        """The key has this value, or is absent."""
        self._conditions += (self._index(key), b"" if value is None else value[:REVISION_BYTES])

    def then(self, command: str, key: str | bytes, *arguments: str | bytes | int) -> None:
        self.is_due = True
        self._commands += (command, self._index(key), len(arguments), *arguments)

    def call(self, identity: str, link: bytes = b"", acknowledged: int = 0, number: int = 0) -> RedisCommand:
        """The call, on this memory. It raises the witness of the link from what was acknowledged last."""
        floor = "" if self.floor is None else self.floor
        head = (identity, floor, link, acknowledged, number, len(self._conditions) // 2)
        first = ("DEL", self._index(_TRIAL), 0) if self.frees else ()
        return ("EVALSHA", SCRIPT, len(self._keys), *self._keys, *head, *self._conditions, *first, *self._commands)

    def count_sealed(self, before: str | None, after: str | None) -> None:
        """Count that something is sealed with other keys than before; None: with none."""
        if before != after:
            for key_ids, by in ((before, -1), (after, 1)):
                if key_ids is not None:
                    self.then("HINCRBY", SEALED, key_ids, by)

    def _index(self, key: str | bytes) -> int:
        return self._keys.setdefault(key, len(self._keys) + 1)


def lesson() -> RedisCommand:
    """A call that leaves nothing behind, with every command that a change may have. A server whose memory is full
    executes it, too."""
    change = Change(frees=True)
    for kind, commands in _LESSON.items():
        for command, *arguments in commands:
            change.then(str(command), f"{_TRIAL}:{kind}", *arguments)
        change.then("DEL", f"{_TRIAL}:{kind}")
    return change.call("")


_LESSON: Final[dict[str, tuple[tuple[str | int, ...], ...]]] = {
    "string": (("SET", ""),),
    "hash": (("HSET", "a", ""), ("HSETNX", "b", ""), ("HDEL", "a"), ("HINCRBY", "c", 1)),
    "sorted": (("ZADD", "GT", 1, "a"), ("ZREM", "a"), ("ZREMRANGEBYSCORE", 0, 1)),
}

# What the clock alone may have brought into doubt is still written as claimed.
_DOUBTED: Final = (State.CLAIMED, State.IN_DOUBT)


@dataclass(slots=True)
class Kept:
    """An operation as it was read: the bytes of its record and of its body, the record, and with which keys that is
    sealed; None where there is none."""

    operation_id: UUID
    value: bytes | None
    body: bytes | None
    floor: int
    """That of tokens."""
    now_us: int
    record: Record | None = None
    sealed_by: str | None = None
    error: Unreadable | None = None
    """Why this program cannot read the record."""

    def __post_init__(self) -> None:
        if self.value is not None:
            try:
                row = unpacked(self.value)
                self.record, self.sealed_by = decode_whole(row, self.body), row[_SEALED_BY]
            except Unreadable as error:
                self.error = error

    @property
    def settled(self) -> Record | None:
        """The record as time has left it."""
        return settle(self.record, self.now_us)

    def require(self, change: Change) -> Change:
        """Make the change require the record to be as it was read."""
        change.require(record_key(self.operation_id), self.value)
        return change

    def replace(self, change: Change, after: Record | None, request: SealedRequest | None = None) -> None:
        """Write the record that the table returned, with the request that is kept from now on. The floor of tokens is
        raised over the token of a record that goes."""
        before = self.record
        is_new = before is None or after is None or after.identity is not before.identity
        if before is not None and is_new and before.token > self.floor:
            change.floor = self.floor
            change.then("HSET", MEMORY, "floor", max(before.token, self.now_us))
        self.write(change, after, request)

    def write(self, change: Change, after: Record | None, request: SealedRequest | None = None) -> None:
        """As `replace`, where no token goes."""
        operation_id, before = self.operation_id, self.record
        sealed_by = None
        if after is None:
            change.then("DEL", record_key(operation_id))
        else:
            row = encode_whole(after)
            sealed_by = row[_SEALED_BY]
            change.then("SET", record_key(operation_id), packed(row))
        change.count_sealed(self.sealed_by, sealed_by)
        was, is_ = place_of(before), place_of(after)
        if was is not None and (is_ is None or was[:2] != is_[:2]):
            change.then("ZREM", was[0], was[1])
        if is_ is not None and is_ != was:
            change.then("ZADD", is_[0], is_[2], is_[1])
        body = None if after is None or after.response is None else after.response.body
        if body is not None:
            change.then("SET", body_key(operation_id), body)
        elif self.body is not None:
            change.then("DEL", body_key(operation_id))
        if after is None or after.delivery is None:
            if before is not None and before.delivery is not None:
                change.then("DEL", request_key(operation_id))
        elif request is not None:
            value = packed((request.acceptance_id.bytes, request.key_id, request.sealed))
            change.then("SET", request_key(operation_id), value)
        if before is not None and before.state in _DOUBTED and not _is_same_doubt(before, after):
            change.then("DEL", recovery_key(operation_id))


def _is_same_doubt(before: Record, after: Record | None) -> bool:
    return after is not None and after.token == before.token and after.state is State.IN_DOUBT


# -- what is asked -----------------------------------------------------------------------------------------------------

# How often a change is tried that loses against others.
TRIES_MAX: Final = 32
# Records that are changed in one exchange, and that are read in one.
_PIECE_MAX: Final = 50
PIECE_RECORDS_MAX: Final = 500
# Records that cannot be read, and so are passed over.
_WITHHELD_MAX: Final = 10_000
# No list leads to what is sealed with one key.
_SEARCHED_MAX: Final = 1_000

# What lists have at one moment: an operation that goes from one to another is in one of them. A server whose memory is
# full refuses a transaction, and executes a script that writes nothing.
_LISTS: Final = """
local lists = {}
for place, key in ipairs(KEYS) do
    lists[place] = redis.call('ZRANGE', key, 0, -1)
end
return lists
"""

_ENDLESS: Final = (State.CLAIMED, State.IN_DOUBT, State.DEAD_LETTER, State.ACCEPTED)


class Records:
    """See `ManagedStore` and `SealedRows`; and `Primary.require_open` for what everything raises."""

    _news: News

    def __init__(self, primary: Primary, clock_us: Callable[[], int] | None) -> None:
        """`clock_us` takes the place of the server's clock."""
        self.primary = primary
        self._clock_us = clock_us
        # Of the memory that the store was started on, as Redis keeps it.
        self._identity = ""
        self._last_number = 0
        # The records that were found since the start and cannot be read.
        self._withheld: set[bytes] = set()

    def _draw(self, least: int) -> int:
        """A number that is no lower than this, and higher than all that this process has drawn before."""
        self._last_number = max(least, self._last_number + 1)
        return self._last_number

    async def _read(self, commands: Sequence[RedisCommand], link: str = "reads") -> tuple[list[Any], int]:
        """The replies, and the store's time after them. Raises `NotApplied`."""
        *replies, time = await self.primary.read([*commands, ("TIME",)], link)
        return replies, time_us(time) if self._clock_us is None else self._clock_us()

    async def _lock(self, change: Change, *keys: str | bytes, link: str = "changes") -> tuple[list[Any], int]:
        """The values of these keys, as the change requires them from now on, and the time."""
        values, now_us = await self._read([("GET", key) for key in keys], link)
        for key, value in zip(keys, values, strict=True):
            change.require(key, value)
        return values, now_us

    async def _change(
        self, work: Callable[[Change], Awaitable[T]], link: str = "changes", *, keeps: bool = True, frees: bool = False
    ) -> T:
        """Read, and add to a change what follows, until nobody was faster; returns what the last `work` says. What is
        not kept makes room where the memory is full. Raises `NotApplied`, `EpochChanged` and `Indefinite`."""
        for _ in range(TRIES_MAX):
            change = Change(frees or not keeps)
            result = await work(change)
            if not change.is_due or (await self._write([change], link, keeps=keeps))[0]:
                return result
        raise contended()

    async def _write(self, changes: Iterable[Change], link: str = "changes", *, keeps: bool = True) -> list[bool]:
        """Which of the changes were made. Raises as `_change`, whatever became of the others."""
        done = []
        for outcome in await self.primary.write([each.call(self._identity) for each in changes], link, keeps=keeps):
            if isinstance(outcome, StoreError):
                raise outcome
            done.append(outcome)
        return done

    async def _kept(self, operation_ids: Sequence[UUID], link: str = "changes", *, has_body: bool = True) -> list[Kept]:
        """The operations with their records; without `has_body`, the bodies of their responses are empty, and no
        missing one is taken for one that was removed."""
        kinds = (record_key, body_key) if has_body else (record_key,)
        keys = [key_of(each) for each in operation_ids for key_of in kinds]
        # Record and body at one moment.
        (floor, values), now_us = await self._read([("HGET", MEMORY, "floor"), ("MGET", *keys)], link)
        found = zip(values[:: len(kinds)], values[1::2] if has_body else repeat(b""), strict=False)
        return [Kept(each, *pair, int(floor or 0), now_us) for each, pair in zip(operation_ids, found, strict=True)]

    async def _walk(
        self, after: UUID | None = None, *, is_doubt: bool = False, size: int = 0
    ) -> AsyncIterator[list[Kept]]:
        """All operations after this one, in the order of their ids, piece by piece; with `is_doubt`, those that are or
        may be in doubt; with `size`, so many in a piece, and with the bodies of their responses."""
        floor = b"" if after is None else after.bytes
        for part in range(0 if after is None else part_of(after), LIST_PARTS):
            lists = [LEASES[part], DOUBT[part]] + ([] if is_doubt else [DUE[part]])
            (found,), _ = await self._read([("EVAL", _LISTS, len(lists), *lists)])
            ids = sorted({member[:ID_BYTES] for members in found for member in members if member[:ID_BYTES] > floor})
            for piece in _in_pieces(ids, size or PIECE_RECORDS_MAX):
                yield await self._kept([UUID(bytes=each) for each in piece], "reads", has_body=size > 0)

    # -- finding -------------------------------------------------------------------------------------------------------

    async def find(self, query: Query) -> list[Snapshot]:
        states, found = query.wanted, list[Snapshot]()
        if not states:
            return found
        async for kept in self._walk(query.after, is_doubt=states == {State.IN_DOUBT}):
            now_us = kept[0].now_us
            records = [record for each in kept if (record := each.settled) is not None]
            fitting = [record for record in records if _fits(record, query, states, now_us)]
            if query.recoverable and fitting:
                keys = [recovery_key(record.identity.operation_id) for record in fitting]
                (values,), _ = await self._read([("MGET", *keys)])
                fitting = [
                    record
                    for record, state in zip(fitting, map(_recovery_of, values), strict=True)
                    if state is None
                    or state.token != record.token
                    or not (state.is_held(now_us) or state.is_put_off(now_us))
                ]
            found += [listed(record, now_us) for record in fitting]
            if len(found) >= query.limit:
                break
        return found[: query.limit]

    async def tally(self) -> Tally:
        doubt: list[RedisCommand] = [("ZRANGE", key, 0, -1) for key in DOUBT]
        (sealed, *lists), now_us = await self._read([("HGETALL", SEALED), *doubt])
        in_doubt = [in_list_of_doubt(member) for members in lists for member in members]
        replies, _ = await self._read([("ZRANGEBYSCORE", key, "-inf", now_us) for key in LEASES])
        lapsed = [UUID(bytes=member) for members in replies for member in members]
        for piece in _in_pieces(lapsed, PIECE_RECORDS_MAX):
            settled = [each.settled for each in await self._kept(piece, "reads", has_body=False)]
            records = [record for record in settled if record is not None and record.state is State.IN_DOUBT]
            in_doubt += [(in_doubt_since_us(record), record.identity.route) for record in records]
        oldest_us = min((since_us for since_us, _ in in_doubt), default=now_us)
        counted = ((key_ids.decode(), int(number)) for key_ids, number in _pairs(sealed))
        return Tally(
            Counter(route for _, route in in_doubt),
            max(0, now_us - oldest_us) / MICROSECONDS,
            sealed_counts(each for each in counted if each[1] > 0),
        )

    async def _count_living(self, names: Collection[Name]) -> dict[Name, Living]:
        """How many keys of each operation name are remembered. Reads all records, unless there are no names."""
        counted = dict.fromkeys(names, Living())
        if counted:
            async for kept in self._walk():
                for record in [record for each in kept if (record := each.settled) is not None]:
                    key_id = "" if record.fingerprint is None else record.fingerprint.key_id
                    living = Living(1, _kept_until_us(record), {key_id: 1})
                    for name in [each for each in names if is_of(record.identity, *each)]:
                        counted[name] += living
        return counted

    async def read_kept(self, operation_id: UUID) -> SealedRequest | None:
        (value,), _ = await self._read([("GET", request_key(operation_id))])
        if value is None:
            return None
        acceptance_id, key_id, sealed = unpacked(value)
        return SealedRequest(UUID(bytes=acceptance_id), key_id, sealed)

    # -- recovery leases ----------------------------------------------------------------------------------------------

    async def recovery(self, operation_id: UUID) -> RecoveryState | None:
        (value,), _ = await self._read([("GET", recovery_key(operation_id))])
        return _recovery_of(value)

    async def recover(self, operation_id: UUID, token: int, lease_us: int, *, is_urgent: bool) -> RecoveryLease | None:
        async def lease(change: Change) -> RecoveryLease | None:
            kept, before = await self._doubted(change, operation_id)
            if kept.error is not None:
                raise kept.error
            record = kept.settled
            if record is None or record.state is not State.IN_DOUBT or record.token != token:
                return None
            if before is None or before.token != token:
                before = RecoveryState(token)
            state = before.leased(kept.now_us, lease_us, is_urgent=is_urgent)
            if state is None:
                return None
            change.then("SET", recovery_key(operation_id), packed(astuple(state)))
            return RecoveryLease(operation_id, token, before.tries, before.background_tries)

        return await self._change(lease)

    async def put_off(self, lease: RecoveryLease, pause_us: int, finding: str) -> None:
        async def put_off(change: Change) -> None:
            kept, before = await self._doubted(change, lease.operation_id)
            if before is None or (before.token, before.tries) != (lease.token, lease.tries + 1):
                return
            now_us, until_us = kept.now_us, kept.now_us + pause_us
            state = replace(before, held_until_us=0, put_off_until_us=until_us, asked_us=now_us, finding=finding)
            change.then("SET", recovery_key(lease.operation_id), packed(astuple(state)))
            if kept.record is not None:
                history = with_finding(kept.record, lease, finding, now_us)
                if history is not None:
                    kept.write(change, replace(kept.record, history=history))

        await self._change(put_off)

    async def _doubted(self, change: Change, operation_id: UUID) -> tuple[Kept, RecoveryState | None]:
        """The operation and its probes, as the change requires them."""
        (kept,) = await self._kept((operation_id,))
        (value,), _ = await self._lock(kept.require(change), recovery_key(operation_id))
        return kept, _recovery_of(value)

    # -- audits -------------------------------------------------------------------------------------------------------

    async def _last_audit(self) -> int:
        """The highest number of an audit; 0 where there is none."""
        (names,), _ = await self._read([("ZREVRANGE", AUDITS, 0, 0)], "changes")
        return int.from_bytes(names[0][:8]) if names else 0

    async def audits(self, operation_id: UUID) -> list[AuditEntry]:
        (fields,), _ = await self._read([("HGETALL", audits_key(operation_id))])
        return [audit_entry(operation_id, *unpacked(value)) for _, value in sorted(_pairs(fields))[-AUDITS_MAX:]]

    async def latest_audits(self, before: int | None, limit: int) -> list[NumberedAudit]:
        highest = "+inf" if before is None else f"({before}"
        return [
            NumberedAudit(int.from_bytes(name[:8]), (of := UUID(bytes=name[8:])), audit_entry(of, *unpacked(value)))
            for name, value in await self._named_audits("ZREVRANGEBYSCORE", highest, "-inf", limit)
            if value is not None
        ]

    async def _named_audits(self, command: str, *bounds: str | int) -> list[tuple[bytes, bytes | None]]:
        """The names of audits with such numbers, and their values; None for one that is gone."""
        *limits, number = bounds
        (names,), _ = await self._read([(command, AUDITS, *limits, "LIMIT", 0, number)])
        return list(zip(names, await self._audit_values(names), strict=True))

    async def _audit_values(self, names: Iterable[bytes]) -> list[Any]:
        values, _ = await self._read([("HGET", audits_key(UUID(bytes=name[8:])), name[:8]) for name in names])
        return values

    # -- activity -----------------------------------------------------------------------------------------------------

    async def save_activity(self, service: str, *rows: ActivityRow) -> None:
        change = Change(frees=True)
        for row in rows:
            key, name = activity_key(service, row.span_us), row.at_us.to_bytes(8) + row.writer.bytes
            change.then("HSET", key, name, packed((row.until_us, row.body)))
            change.then("ZADD", ACTIVITY, row.until_us, name + key)
        await self._write([change], keeps=False)

    async def activity(self, service: str, span_us: int, since_us: int, until_us: int) -> list[ActivityRow]:
        (fields,), _ = await self._read([("HGETALL", activity_key(service, span_us))])
        found = [(int.from_bytes(name[:8]), name[8:], value) for name, value in _pairs(fields)]
        wanted = sorted((each for each in found if since_us <= each[0] < until_us), reverse=True)[:ACTIVITY_ROWS_MAX]
        return [ActivityRow(UUID(bytes=writer), span_us, at_us, *unpacked(value)) for at_us, writer, value in wanted]

    # -- what is encrypted again --------------------------------------------------------------------------------------

    async def sealed_rows(self, place: Place, after: Any, limit: int) -> list[Row]:
        if place is Place.RECORDS:
            found: list[Kept] = []
            async for kept in self._walk(after, size=limit):
                found += kept
                if len(found) >= limit:
                    break
            return [Row(each.operation_id, each.record, is_gone=each.value is None) for each in found[:limit]]
        if place is Place.AUDITS:
            above = "-inf" if after is None else f"({int.from_bytes(after[:8])}"
            return [_audit_row(*each) for each in await self._named_audits("ZRANGEBYSCORE", above, "+inf", limit)]
        # The rest is not kept here.
        return []

    async def sealed_examples(self, key_id: str) -> list[KeptRow]:
        """No list leads to them, so it looks at `_SEARCHED_MAX` records at most."""
        found, searched = list[KeptRow](), 0
        async for kept in self._walk(size=PAGE_ROWS_MAX):
            found += [each.record for each in kept if each.record is not None and each.sealed_by == key_id]
            searched += len(kept)
            if searched >= _SEARCHED_MAX or len(found) >= EXAMPLES_MAX:
                break
        return found[:EXAMPLES_MAX]

    async def reseal(self, changes: Sequence[tuple[Row, KeptRow]]) -> int:
        made = [change for row, again in changes if (change := await self._resealing(row, again)) is not None]
        return sum(await self._write(made))

    async def _resealing(self, row: Row, again: KeptRow) -> Change | None:
        """The change of a row that is as it was read."""
        change = Change()
        match row.kept, again:
            case Record() as old, Record():
                (kept,) = await self._kept((old.identity.operation_id,))
                if kept.record == old:
                    kept.write(kept.require(change), again)
                    return change
            case Values() as old, Values():
                (value,) = await self._audit_values((row.after,))
                *about, who, why = (None, None) if value is None else unpacked(value)
                if value is not None and (who, why) == old.values:
                    key = audits_key(old.columns[0])
                    change.then("HSET", key, row.after[:8], packed((*about, *again.values)))
                    change.count_sealed(_audit_sealed_by(who, why), _audit_sealed_by(*again.values))
                    return change
        return None

    # -- sweeps --------------------------------------------------------------------------------------------------------

    async def sweep(self, limit: int) -> Swept:
        written, lapsed = Counter[State](), list[tuple[str, UUID]]()
        _, now_us = await self._read([])
        at_most = ("-inf", now_us, "LIMIT", 0, limit + len(self._withheld))
        found, _ = await self._read([("ZRANGEBYSCORE", key, *at_most) for key in (*LEASES, *DUE)])
        ids = dict.fromkeys(member for members in found for member in members if member not in self._withheld)
        due = [UUID(bytes=member) for member in ids][:limit]
        ahead = await self._ahead(now_us, min(limit - len(due), _PIECE_MAX))
        for piece in _in_pieces(due + ahead, _PIECE_MAX):
            for before, after in await self._sweep_some(piece):
                state, operation_id = State.ABSENT if after is None else after.state, before.identity.operation_id
                self._news.wake(operation_id)
                # One that only moved is still what it was.
                written[State.CLAIMED if state is before.state else state] += 1
                if state is not before.state and state is State.IN_DOUBT:
                    lapsed.append((before.identity.route, operation_id))
            # Let others have their turn.
            await asyncio.sleep(0)
        is_full = len(due) + await self._tidy(limit - len(due)) >= limit
        return Swept.of(written, lapsed, more=is_full or 0 < len(ahead) <= written[State.CLAIMED])

    async def _ahead(self, now_us: int, limit: int) -> list[UUID]:
        """Where to look for leases that begin in the future, because the clock was set back: those that end last."""
        if limit <= 0:
            return []
        last = ("+inf", f"({now_us}", "WITHSCORES", "LIMIT", 0, limit)
        lists, _ = await self._read([("ZREVRANGEBYSCORE", key, *last) for key in (*LEASES, *DOUBT)])
        found = sorted(
            ((int(score), member[:ID_BYTES]) for each in lists for member, score in _pairs(each)), reverse=True
        )
        return [UUID(bytes=each) for _, each in found if each not in self._withheld][:limit]

    async def _sweep_some(self, operation_ids: Sequence[UUID]) -> list[tuple[Record, Record | None]]:
        """Write down what time has made of these; returns what was changed. What another changed meanwhile is left."""
        changes, swept, floor = list[Change](), list[tuple[Record, Record | None]](), 0
        for kept in await self._kept(operation_ids):
            if kept.error is not None and len(self._withheld) < _WITHHELD_MAX:
                self._withheld.add(kept.operation_id.bytes)
            record = kept.record
            after = None if record is None else written_down(record, kept.now_us)
            if record is None or after is record:
                continue
            # As those before it leave it.
            kept.floor = floor = max(floor, kept.floor)
            change = kept.require(Change(frees=True))
            kept.replace(change, after)
            if change.floor is not None:
                floor = max(record.token, kept.now_us)
            changes.append(change)
            swept.append((record, after))
        done = await self._write(changes, keeps=False)
        return [each for each, is_done in zip(swept, done, strict=True) if is_done]

    async def _tidy(self, limit: int) -> int:
        """Extend or delete at most `limit` old audits, and delete witnesses and activity; returns how many. A witness
        that was raised since the last look but one is kept."""
        if limit <= 0:
            return 0
        _, now_us = await self._read([])
        unraised_us = now_us - 2 * WITNESS_KEEP_US
        spans = (
            (OLD_AUDITS, "-inf", now_us),
            (WITNESSES, "-inf", unraised_us),
            (ACTIVITY, "-inf", now_us),
            (ACTIVITY, f"({now_us + ACTIVITY_AHEAD_US}", "+inf"),
        )
        (names, links, *counted), _ = await self._read([("ZRANGEBYSCORE", *span, "LIMIT", 0, limit) for span in spans])
        needed, _ = await self._read([("EXISTS", record_key(UUID(bytes=name[8:]))) for name in names])
        change, rows = Change(frees=True), [row for each in counted for row in each]
        for name, value, is_needed in zip(names, await self._audit_values(names), needed, strict=True):
            if is_needed or value is None:
                change.then("ZADD", OLD_AUDITS, now_us + AUDIT_KEEP_US, name)
            else:
                change.count_sealed(_audit_sealed_by(*unpacked(value)[-2:]), None)
                change.then("HDEL", audits_key(UUID(bytes=name[8:])), name[:8])
                change.then("ZREM", AUDITS, name)
                change.then("ZREM", OLD_AUDITS, name)
        if links:
            change.then("ZREMRANGEBYSCORE", WITNESSES, "-inf", unraised_us)
        del rows[max(0, limit - len(names)) :]
        for row in rows:
            change.then("HDEL", row[24:], row[:24])
            change.then("ZREM", ACTIVITY, row)
        if change.is_due:
            await self._write([change], keeps=False)
        return len(names) + bool(links) + len(rows)


def contended() -> NotApplied:
    return NotApplied(f"the change lost against others {TRIES_MAX} times")


def write_audit(change: Change, command: Command, audit: Audit, token: int, number: int, now_us: int) -> None:
    """Write who did this, under a number that is higher than all before."""
    operation_id, event = operation_id_of(command), EVENT_OF[type(command)].value
    name = number.to_bytes(8) + operation_id.bytes
    change.then("HSET", audits_key(operation_id), name[:8], packed((now_us, event, token, audit.who, audit.why)))
    change.then("ZADD", AUDITS, number, name)
    change.then("ZADD", OLD_AUDITS, now_us + AUDIT_KEEP_US, name)
    change.count_sealed(None, _audit_sealed_by(audit.who, audit.why))


def _audit_sealed_by(who: str, why: str) -> str | None:
    """The id of the key that an audit is sealed with; None if it is in clear."""
    return next((key_id_of(text) for text in (why, who) if text[:1] == SEALED_TEXT), None)


def _audit_row(name: bytes, value: bytes | None) -> Row:
    if value is None:
        return Row(name, None, is_gone=True)
    _, event, token, who, why = unpacked(value)
    return Row(name, Values(Place.AUDITS, (UUID(bytes=name[8:]), event, token, who, why)))


def _fits(record: Record, query: Query, states: Collection[State], now_us: int) -> bool:
    if query.reason is not None and (record.delivery is None or record.delivery.reason != query.reason):
        return False
    is_on_route = query.routes is None or record.identity.route in query.routes
    is_old = not now_us - query.age_us < record.first_claimed_us <= now_us
    return is_on_route and record.state in states and is_old


def _kept_until_us(record: Record) -> int | None:
    """Until when a key is remembered that nothing more happens to; None: until something does."""
    if record.state in _ENDLESS:
        return None
    return max(record.remember_until_us, record.replay_until_us if record.state is State.COMPLETED else 0)


def _recovery_of(value: bytes | None) -> RecoveryState | None:
    return None if value is None else RecoveryState(*unpacked(value))


def _pairs(fields: Iterable[bytes]) -> list[tuple[bytes, bytes]]:
    """What stands one after the other in a reply."""
    each = iter(fields)
    return list(zip(each, each, strict=True))


def _in_pieces(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[begin : begin + size] for begin in range(0, len(items), size)]
