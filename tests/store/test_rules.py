"""Rules of the core that the stores' SQL has in words of its own: of any record at any time it says what the core says.

The records are generated from the table: every state that is written, every event that it can have come by, and every
order of its times and now. They are written as rows of the file or the database, past the store.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, Final, Protocol
from uuid import UUID, uuid4

import apsw
import pytest

from gateway.core.identity.scope import derive_operation_id
from gateway.core.lifecycle import DUE_TIMES, TABLE, settle, tombstone_response, written_down
from gateway.core.message import StoredResponse
from gateway.core.operation import (
    MICROSECONDS,
    Delivery,
    Event,
    Identity,
    Record,
    State,
)
from gateway.store.base import Store
from gateway.store.operations import Query
from gateway.store.postgres.statements import load
from gateway.store.postgres.store import PostgresStore
from gateway.store.relational.executor import Stored, read_all
from gateway.store.relational.rows import decode, encode, encode_delivery, kind_of
from gateway.store.sqlite.connection import TEXTS, Transaction
from gateway.store.sqlite.store import SqliteStore
from tests.conformance.hand import SAME, SERVICE
from tests.store.postgres_sessions import session
from tests.support.memory_store import EPOCH_US, ManualClock
from tests.support.serving import serving

NOW_US: Final = EPOCH_US
# Before, at and after now; and later than the end of a lease that begins now.
TIMES: Final = (NOW_US - MICROSECONDS, NOW_US, NOW_US + MICROSECONDS)
AHEAD_US: Final = NOW_US + MICROSECONDS + 1
ANSWER: Final = StoredResponse(201, b"Created", ((b"Location", b"/charges/1"),), None)
SEALED: Final = b"a sealed request"
RESOLVING: Final = (Event.PROVE, Event.DISPROVE, Event.REINSTATE, Event.REQUEUE, Event.WITHDRAW)
# Higher than those of the records.
_TOKENS: Final = 1_000_000


def new_identity(service: str = SERVICE, index: int = 0) -> Identity:
    """Of an operation that no other test has; its digests have any length."""
    scope, key = (hashlib.shake_256(uuid4().bytes).digest(length) for length in (index % 300, 32 + index))
    return Identity(derive_operation_id(service, "charges", scope, key), "route", "charges", scope, key)


def records() -> Iterator[Record]:
    """Of every state, by every event that leads there, with its times in every order with now."""
    events: dict[State, set[Event]] = {}
    for row in TABLE:
        events.setdefault(row.next, set()).add(row.event)
    # The clock does not change the last event.
    events[State.IN_DOUBT] = {Event.ABANDON, *events[State.CLAIMED]}
    events[State.DEAD_LETTER] = {Event.BURY, *events[State.ACCEPTED]}
    events[State.TOMBSTONE] = {Event.PURGE, Event.COMPLETE}
    times: dict[State, list[dict[str, int]]] = {
        State.CLAIMED: [{"lease_until_us": time, "lease_us": MICROSECONDS} for time in (*TIMES, AHEAD_US)],
        State.IN_DOUBT: [{"lease_until_us": time, "lease_us": MICROSECONDS} for time in TIMES],
        State.COMPLETED: [
            {"replay_until_us": replay, "remember_until_us": remember, "completed_us": 1}
            for replay, remember in product(TIMES, TIMES)
            if replay <= remember
        ],
        State.RELEASED: [{"remember_until_us": time} for time in TIMES],
        State.TOMBSTONE: [{"remember_until_us": time, "completed_us": 1} for time in TIMES],
    }
    deliveries: dict[State, list[Delivery | None]] = {
        State.ACCEPTED: [delivery(next_us, until_us) for next_us, until_us in product(TIMES, TIMES)],
        State.DEAD_LETTER: [delivery(NOW_US, NOW_US, reason) for reason in ("deadline", "unauthorized")],
        State.CLAIMED: [None, delivery(NOW_US, NOW_US)],
        State.IN_DOUBT: [None, delivery(NOW_US, NOW_US)],
    }
    assert set(DUE_TIMES) | {State.IN_DOUBT, State.DEAD_LETTER} == times.keys() | deliveries.keys()
    for state in events.keys() - {State.ABSENT}:
        for event, each, known in product(sorted(events[state]), times.get(state, [{}]), deliveries.get(state, [None])):
            if (event is Event.CLAIM and known is not None) or (event is Event.DISPATCH and known is None):
                continue
            yield Record(
                new_identity(),
                state,
                token=1,
                attempt_id=uuid4(),
                last_event=event,
                holder="holder",
                carried_us=1 if event is Event.TAKEOVER else None,
                fingerprint=None if event is Event.FORGET else SAME,
                attempts=1,
                first_claimed_us=1,
                claimed_us=1,
                doubt="reset" if state is State.IN_DOUBT else None,
                resolution_id=uuid4() if event in RESOLVING else None,
                response=ANSWER if state in (State.COMPLETED, State.TOMBSTONE) else None,
                delivery=known,
                **each,
            )


def delivery(next_attempt_us: int, deliver_until_us: int, reason: str | None = None) -> Delivery:
    return Delivery(SERVICE, uuid4(), 1, 1, next_attempt_us, deliver_until_us, len(SEALED), 2, "answered-503", reason)


def numbered(some: Iterable[Record]) -> list[Record]:
    """Each with an identity and a token of its own."""
    return [
        replace(record, token=number, identity=new_identity(index=number))
        for number, record in enumerate(some, start=1)
    ]


class Rows(Protocol):
    """The rows of a store, written and read past it."""

    store: Store

    async def write(self, some: Sequence[Record]) -> None:
        """Write them as they are, each as if it were due."""

    async def read(self) -> dict[UUID, Record]:
        """All records as they are written."""


class PostgresRows:
    def __init__(self, connection: Any, store: Store) -> None:
        self.store = store
        self._connection = connection

    async def write(self, some: Sequence[Record]) -> None:
        kept = [(record, record.delivery) for record in some if record.delivery is not None]
        for name, values in (
            ("insert_operation", [encode(record) for record in some]),
            ("insert_delivery", [encode_delivery(*each) for each in kept]),
            ("insert_request", [("key", SEALED, record.identity.operation_id.bytes) for record, _ in kept]),
        ):
            await self._connection.executemany(load(name), values)
        await self._connection.execute(
            "UPDATE idempotency_gateway.operation SET due_us = 1 WHERE state IN ('in_doubt', 'dead_letter')"
        )

    async def read(self) -> dict[UUID, Record]:
        ids = [
            UUID(bytes=each) for (each,) in await self._connection.fetch("SELECT id FROM idempotency_gateway.operation")
        ]
        records = [snapshot for operation_id in ids for snapshot in [await self._read(operation_id)]]
        return {record.identity.operation_id: record for record in records}

    async def _read(self, operation_id: UUID) -> Record:
        (row,) = await self._connection.fetch(load("select_operation"), [operation_id.bytes])
        more = await self._connection.fetch(load("select_delivery"), [operation_id.bytes])
        kinds = await self._connection.fetch(load("select_kind"), [] if kind_of(row) is None else [kind_of(row)])
        return decode(tuple(row), tuple(more[0])[1:] if more else None, tuple(kinds[0]) if kinds else None)


class SqliteRows:
    def __init__(self, connection: apsw.Connection, store: Store) -> None:
        self.store = store
        self._connection = connection

    async def write(self, some: Sequence[Record]) -> None:
        for record in some:
            self._connection.execute(TEXTS["insert_operation"], encode(record))
            if record.delivery is not None:
                operation_id = record.identity.operation_id.bytes
                self._connection.execute(TEXTS["insert_delivery"], encode_delivery(record, record.delivery))
                self._connection.execute(TEXTS["insert_request"], ("key", SEALED, operation_id))
        self._connection.execute("UPDATE operation SET due_us = 1 WHERE state IN ('in_doubt', 'dead_letter')")

    async def read(self) -> dict[UUID, Record]:
        ids = [UUID(bytes=each) for (each,) in self._connection.execute("SELECT id FROM operation")]
        found = (await read_all(Transaction(self._connection.cursor(), ManualClock()), ids)).values()
        records = [each.record for each in found if isinstance(each, Stored)]
        return {record.identity.operation_id: record for record in records if record is not None}


@asynccontextmanager
async def _postgres(url: str) -> AsyncIterator[Rows]:
    store = PostgresStore(url, clock_us=ManualClock(NOW_US))
    await store.start()
    try:
        async with session(url) as connection:
            yield PostgresRows(connection, store)
    finally:
        await store.close()


@asynccontextmanager
async def _sqlite(directory: Path) -> AsyncIterator[Rows]:
    path = directory / "operations.db"
    store = SqliteStore(path, clock_us=ManualClock(NOW_US))
    await store.start()
    connection = apsw.Connection(str(path))
    try:
        yield SqliteRows(connection, store)
    finally:
        connection.close()
        await store.close()


@pytest.fixture(params=["postgres", "sqlite"])
def opening(request: pytest.FixtureRequest, tmp_path: Path) -> AbstractAsyncContextManager[Rows]:
    """A store that begins empty, and its rows."""
    return _sqlite(tmp_path) if request.param == "sqlite" else _postgres(request.getfixturevalue("migrated_url"))


@pytest.fixture
async def rows(opening: AbstractAsyncContextManager[Rows]) -> AsyncIterator[Rows]:
    async with opening as rows:
        await rows.store.begin_epoch(b"", _TOKENS)
        yield rows


def plain(record: Record | None) -> Record | None:
    """Without what differs from store to store: the answer but for its status and place, and what is drawn."""
    if record is None:
        return None
    return replace(record, response=tombstone_response(record.response), token=min(record.token, _TOKENS))


async def test_a_sweep_writes_down_what_the_clock_did(rows: Rows) -> None:
    """To no record anything else, whatever is written as the time at which it is due: no doubt is ended by it."""
    written = numbered(records())
    await rows.write(written)
    told = Counter[str]()
    more = True
    while more:
        swept = await rows.store.sweep(1_000)
        told += Counter(lapsed=swept.lapsed, retired=swept.retired, collected=swept.collected, expired=swept.expired)
        more = swept.more
    left = await rows.read()
    wanted = {record.identity.operation_id: written_down(record, NOW_US) for record in written}
    for record in written:
        found = left.get(record.identity.operation_id)
        assert plain(found) == plain(wanted[record.identity.operation_id]), record
    changed = Counter(
        State.ABSENT if after is None else after.state
        for record in written
        if (after := wanted[record.identity.operation_id]) is None or after.state is not record.state
    )
    assert told == Counter(
        lapsed=changed[State.IN_DOUBT],
        retired=changed[State.TOMBSTONE],
        collected=changed[State.ABSENT],
        expired=changed[State.DEAD_LETTER],
    )


async def test_records_are_found_and_counted_as_they_are_now(rows: Rows) -> None:
    """By state, in doubt, to be recovered, and alive: written down or not."""
    written = numbered(records())
    await rows.write(written)
    settled = {record.identity.operation_id: settle(record, NOW_US) for record in written}
    by_state: dict[State, set[UUID]] = {state: set() for state in State}
    for operation_id, record in settled.items():
        by_state[State.ABSENT if record is None else record.state].add(operation_id)
    for state in set(State) - {State.ABSENT}:
        found = await rows.store.find(Query(frozenset((state,)), limit=1_000))
        assert {each.record.identity.operation_id for each in found if each.record is not None} == by_state[state]
    for reason in ("deadline", "unauthorized"):
        found = await rows.store.find(Query(frozenset(State), reason=reason, limit=1_000))
        assert {each.record.identity.operation_id for each in found if each.record is not None} == {
            operation_id
            for operation_id, record in settled.items()
            if record is not None and record.delivery is not None and record.delivery.reason == reason
        }
    assert (await rows.store.tally()).in_doubt == {"route": len(by_state[State.IN_DOUBT])}
    for record in written:
        operation_id = record.identity.operation_id
        lease = await rows.store.recover(operation_id, record.token, 1, is_urgent=False)
        assert (lease is not None) is (operation_id in by_state[State.IN_DOUBT]), record
    assert not (
        await rows.store.compare_configuration(serving(service=SERVICE, recipes={"charges": b"recipe"}))
    ).conflicts
    assert await rows.store.count_without_route(SERVICE, ()) == {"charges": len(settled) - len(by_state[State.ABSENT])}
