"""Executes batches of commands on Postgres, and derives each result from the table.

It turns a list of commands into a list of results over one link: it packs the arguments, repeats what lost to
contention, and splits a batch with a value that cannot be stored or an operation that is locked. It reads no clock and
knows no driver.

Theory of operation
-------------------
`claim` and `complete` are hot: each is one statement. Its WHERE decides, and it returns the records as they were under
its locks, with its time. From those `lifecycle.step` derives the results. The statement must have changed exactly the
records that the table changes. If not, it is unknown what was done, and every command of the batch gets `Indefinite`.
All other commands lock their records in one transaction, execute `lifecycle.step`, and write what it returns.

If a statement cannot show enough, its result is `Unclear`, and the caller reads the record. That happens when a claim
lost a race to a record that is not in its snapshot, and when the result needs a response, which only a read returns.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from uuid import UUID

from gateway.core.lifecycle import no_token, settle, step
from gateway.core.message import StoredResponse
from gateway.core.operation import (
    Applied,
    Claim,
    Command,
    Complete,
    Erase,
    Prove,
    Purge,
    Record,
    Renew,
    Result,
    Snapshot,
    State,
    Takeover,
    audit_of,
    operation_id_of,
)
from gateway.store.base import Indefinite, NotApplied, StoreError, Unreadable, Unstorable
from gateway.store.postgres.change import Change, write
from gateway.store.postgres.connection import CHECK_VIOLATION, Connection, ServerRefused
from gateway.store.postgres.dialer import WitnessedLink
from gateway.store.postgres.rows import DUE_SLACK_US, WIDTH, pack_headers, pack_location, record_of, row_of
from gateway.store.postgres.statements import load
from gateway.store.request_line import line_of

C = TypeVar("C", bound=Command)

# Rows of one statement of the driver.
Rows = Sequence[Any]

_CONTENTION_TRIES: Final = 5
# The most locked operations in one batch. At one more the rest is given up, because other batches wait behind it.
_LOCKED_MAX: Final = 2
_STATEMENT_BYTES_MAX: Final = 4 * 1024 * 1024
_EXPECTED_REPLAY_US: Final = 24 * 3600 * 1_000_000
_OPERATIONS_MAX: Final = 10_000

_CLAIM: Final = load("claim")
_COMPLETE: Final = load("complete")
_LOCK: Final = load("lock")
_BEGIN_GENERATION: Final = load("begin_generation")


@dataclass(frozen=True, slots=True)
class Unclear:
    """Nothing was changed, and the statement does not show the result: read the record, which exists."""


BatchResult = Result | Unclear
Results = list[BatchResult | Exception]


class Windows:
    """The replay windows in use: the configured ones, and the last one of each operation name.

    The latter predicts when upkeep has to check a new claim.
    """

    def __init__(self, configured_us: Collection[int] = ()) -> None:
        self._configured_us = frozenset(configured_us)
        self._replay_us: dict[str, int] = {}

    @property
    def in_use(self) -> frozenset[int]:
        """Each of them, in microseconds."""
        return self._configured_us.union(self._replay_us.values())

    def due_in_us(self, operation: str) -> int:
        return self._replay_us.get(operation, _EXPECTED_REPLAY_US) + DUE_SLACK_US

    def learn(self, operation: str, replay_us: int) -> None:
        if operation in self._replay_us or len(self._replay_us) < _OPERATIONS_MAX:
            self._replay_us[operation] = replay_us


class Executor:
    """Executes the batches of one link. The operations of a batch are all different; the results are in their order.

    Never raises: an error is the result of the commands that it concerns.
    """

    def __init__(
        self,
        link: WitnessedLink,
        add_partitions: Callable[[Sequence[int]], Awaitable[None]],
        clock_us: Callable[[], int | None],
        windows: Windows,
    ) -> None:
        self._link = link
        self._add_partitions = add_partitions
        self._clock_us = clock_us
        self._windows = windows

    async def claim(self, commands: Sequence[Claim]) -> Results:
        return await self._execute(commands, self._claim)

    async def complete(self, commands: Sequence[Complete]) -> Results:
        return [result for part in _parts(commands) for result in await self._execute(part, self._complete)]

    async def change(self, commands: Sequence[Command]) -> Results:
        """Execute all other commands. Renewals go first, so that no lease lapses because another record is locked."""
        by_id: dict[UUID, BatchResult | Exception] = {}
        for is_renewal in (True, False):
            for part in _parts([each for each in commands if isinstance(each, Renew) is is_renewal]):
                by_id.update(zip(map(operation_id_of, part), await self._execute(part, self._change), strict=True))
        return [by_id[operation_id_of(command)] for command in commands]

    async def _execute(self, commands: Sequence[C], once: Callable[[Sequence[C]], Awaitable[Results]]) -> Results:
        results: Results = []
        # The next part is the last one here.
        parts, locked, makes_room = [commands], 0, True
        while parts:
            part = parts.pop()
            try:
                results += await self._persist(part, once, makes_room=makes_room)
            except ServerRefused as refused:
                locked += refused.is_locked and len(part) == 1
                # Make room only once: the commands that have room need not wait for that again.
                makes_room = makes_room and not _lacks_partition(refused)
                if len(part) > 1 and refused.is_of_some:
                    half = len(part) // 2
                    parts += [part[half:], part[:half]]
                elif len(part) > 1 and refused.is_locked:
                    # One by one, because each statement with the locked record waits for the full lock timeout.
                    parts += [[command] for command in reversed(part)]
                else:
                    results += [_refusal(command, refused) for command in part]
                    if locked > _LOCKED_MAX:
                        results += [_refusal(command, refused) for rest in reversed(parts) for command in rest]
                        break
            except (NotApplied, Indefinite) as fault:
                results += [type(fault)(*fault.args) for _ in part]
        return results

    async def _persist(
        self, commands: Sequence[C], once: Callable[[Sequence[C]], Awaitable[Results]], *, makes_room: bool
    ) -> Results:
        """Execute, and repeat after contention or for want of a partition."""
        for tries_left in reversed(range(_CONTENTION_TRIES)):
            try:
                return await once(commands)
            except ServerRefused as refused:
                if _lacks_partition(refused) and makes_room and tries_left:
                    await self._make_room(commands, refused)
                elif not refused.is_contention or not tries_left:
                    raise
        raise NotApplied("the statement lost to other statements every time")

    async def _make_room(self, commands: Sequence[Command], refused: ServerRefused) -> None:
        """Add the partitions for these responses. Raises `ServerRefused` like the statement, which did nothing."""
        try:
            await self._add_partitions([each.replay_us for each in commands if isinstance(each, Complete | Prove)])
        except StoreError as fault:
            text = f"there is no room for responses of that day yet: {fault}"
            raise ServerRefused(text, refused.sqlstate, refused.table) from fault

    async def _claim(self, commands: Sequence[Claim]) -> Results:
        rows = await self._link.fetch(_CLAIM, self._clock_us(), *claim_arguments(commands, self._windows.due_in_us))
        return await self._witnessed(rows, _granted(commands, rows))

    async def _complete(self, commands: Sequence[Complete]) -> Results:
        rows = await self._link.fetch(_COMPLETE, self._clock_us(), *completion_arguments(commands))
        results = _completed(commands, rows)
        for command, result in zip(commands, results, strict=True):
            if isinstance(result, Applied) and result.snapshot.record is not None:
                self._windows.learn(result.snapshot.record.identity.operation, command.replay_us)
        return await self._witnessed(rows, results)

    async def _witnessed(self, rows: Rows, results: Results) -> Results:
        if (not rows or rows[0][-1] is None) and any(isinstance(result, Applied) for result in results):
            # An earlier statement did it, and its witness number was lost with its result.
            await self._link.touch()
        return results

    async def _change(self, commands: Sequence[Command]) -> Results:
        operation_ids = list(map(operation_id_of, commands))
        taken = [command.operation_id for command in commands if isinstance(command, Takeover)]
        results: Results = []

        async def change(connection: Connection, link_id: UUID | None) -> Rows:
            rows = await connection.fetch(_LOCK, self._clock_us(), operation_ids, taken, link_id)
            locked = {row[1]: row for row in rows}
            decided = [_decide(command, locked.get(operation_id_of(command)), rows[0][0]) for command in commands]
            results.extend(result for result, _ in decided)
            await write(connection, [change for _, change in decided if change is not None], rows[0][0])
            pairs = zip(commands, decided, strict=True)
            if any(isinstance(command, Purge | Erase) and change is not None for command, (_, change) in pairs):
                await connection.execute(_BEGIN_GENERATION)
            return rows

        await self._link.transact(change)
        return results


def _decide(
    command: Command, values: Sequence[Any] | None, now_us: int
) -> tuple[BatchResult | Exception, Change | None]:
    """Execute the table on a row of `lock`: the result of the command, and what to write."""
    try:
        row = None if values is None else row_of(values[1:-2])
    except Unreadable as error:
        return error, None
    settled = None if row is None else settle(row.record, now_us)
    result, record = step(settled, command, now_us, lambda: values[-2] if values is not None else 0)
    if record is settled or row is None:
        return Unclear() if _lacks_response(settled) else result, None
    return result, Change(row, record, audit_of(command))


def _lacks_partition(refused: ServerRefused) -> bool:
    """Whether a response has no partition for its day: the table checks nothing else."""
    return refused.sqlstate == CHECK_VIOLATION and refused.table == "response"


def _refusal(command: Command, refused: ServerRefused) -> StoreError:
    """The error of a command that was refused for good, or given up because other commands were locked."""
    if refused.is_data:
        return Unstorable(*refused.args)
    if refused.is_locked and isinstance(command, Claim):
        # The claim that holds the lock may be granted yet, so the key may be taken.
        return Unreadable(f"another claim on this operation may be under way: {refused}")
    return NotApplied(*refused.args)


def _parts(commands: Sequence[C]) -> Iterator[Sequence[C]]:
    """Split the commands so that the responses of each part fit a statement."""
    part: list[C] = []
    part_bytes = 0
    for command in commands:
        size = _size_of(command.response) if isinstance(command, Complete | Prove) else 0
        if part and part_bytes + size > _STATEMENT_BYTES_MAX:
            yield part
            part, part_bytes = [], 0
        part.append(command)
        part_bytes += size
    if part:
        yield part


def _size_of(response: StoredResponse) -> int:
    """An estimate of the bytes that the response adds to a statement."""
    size = len(response.body or b"") + 8 * len(response.headers)
    for name, value in response.headers:
        size += len(name) + len(value)
    return size


# The arguments of the two statements, between the time and the link: arrays with one element per operation; some are
# shorter.


def _once(column: list[Any]) -> list[Any]:
    """Only the first element if all are equal, because the driver encodes each. For a column without nulls."""
    return column[:1] if column.count(column[0]) == len(column) else column


def _if_any(column: list[Any]) -> list[Any]:
    """No element if all are null."""
    return [] if column.count(None) == len(column) else column


def claim_arguments(commands: Sequence[Claim], due_in_us: Callable[[str], int]) -> tuple[list[Any], ...]:
    """`due_in_us` predicts by operation name after how long upkeep has to check the claim."""
    identities = [command.identity for command in commands]
    fingerprints = [command.fingerprint for command in commands]
    probes = [command.probe for command in commands]
    requests = [command.request for command in commands]
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
        _once([line_of(request) for request in requests]),
        _if_any([None if request is None else request.request_id for request in requests]),
        _if_any([None if request is None else request.trace_id for request in requests]),
    )


def completion_arguments(commands: Sequence[Complete]) -> tuple[Any, ...]:
    responses = [command.response for command in commands]
    return (
        [command.operation_id for command in commands],
        [command.token for command in commands],
        [command.attempt_id for command in commands],
        _once([command.replay_us for command in commands]),
        _once([command.remember_us for command in commands]),
        _once([response.status for response in responses]),
        _if_any([pack_location(response.headers) for response in responses]),
        _once([response.reason for response in responses]),
        [pack_headers(response.headers) for response in responses],
        _if_any([response.body for response in responses]),
        # No records need to be returned if every caller has that of its claim.
        all(command.granted is not None for command in commands),
    )


def _granted(commands: Sequence[Claim], rows: Rows) -> Results:
    """The results of a `claim` statement: grants, and existing records."""
    grants: dict[int, Any] = {}
    seen: dict[int, Any] = {}
    for row in rows:
        if row[1] is not None:
            grants[row[1].int] = row
        else:
            seen[row[4].int] = row
    results: Results = []
    for command in commands:
        number = command.identity.operation_id.int
        grant, there = grants.get(number), seen.get(number)
        try:
            before = None if there is None else record_of(there[4 : 4 + WIDTH])
        except Unreadable as error:
            results.append(error)
            continue
        if grant is not None:
            results.append(_grant(command, before, grant[2], grant[3], grant[0]))
        elif there is None:
            results.append(Unclear())
        else:
            now_us = there[0]
            results.append(result_of_read(Snapshot(settle(before, now_us), now_us), command, has_response=False))
    return results


def _grant(command: Claim, before: Record | None, token: int, attempts: int, now_us: int) -> Result | Indefinite:
    """The result of a granted claim: the first attempt found no record, a later one a released record."""
    if attempts == 1:
        before = None
    elif before is None or before.attempts + 1 != attempts:
        return Indefinite("PostgreSQL granted a claim on a record that its statement did not return")
    return step(before, command, now_us, lambda: token)[0]


def _completed(commands: Sequence[Complete], rows: Rows) -> Results:
    """The results of a `complete` statement, which names the changed records and may leave out their contents."""
    now_us, changed = rows[0][0], frozenset(rows[0][1])
    before = {row[2].int: row for row in rows if row[2] is not None}
    results: Results = []
    for ordinal, command in enumerate(commands, start=1):
        row, is_changed = before.get(command.operation_id.int), ordinal in changed
        try:
            record = record_of(row[2 : 2 + WIDTH]) if row is not None else command.granted if is_changed else None
        except Unreadable as error:
            results.append(error)
            continue
        settled = settle(record, now_us)
        result, after = step(settled, command, now_us, no_token)
        if (after is not settled) is not is_changed:
            raise Indefinite("PostgreSQL changed other records than the table says: was the schema altered by hand?")
        results.append(Unclear() if not is_changed and _lacks_response(settled) else result)
    return results


def result_of_read(snapshot: Snapshot, command: Command, *, has_response: bool) -> BatchResult:
    """The result of a command on a record that was only read; unclear when the command would change it."""
    result, after = step(snapshot.record, command, snapshot.now_us, lambda: 0)
    if after is not snapshot.record or (not has_response and _lacks_response(snapshot.record)):
        return Unclear()
    return result


def _lacks_response(record: Record | None) -> bool:
    """Whether a statement's record has a response, which only a read returns."""
    return record is not None and record.state is State.COMPLETED
