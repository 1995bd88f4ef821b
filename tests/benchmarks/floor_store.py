"""The stores of the floor. Each has one verb, `write`: a claim while the operation has no token, then its record."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Final, Self, cast

import apsw
import asyncpg
import hiredis

LEASE_SECONDS: Final = 30
_REPLAY_SECONDS: Final = 24 * 3600
_SECOND_US: Final = 1_000_000


@dataclass(slots=True)
class Operation:
    """One key from its claim to its record. Of its response the head is kept as the bytes that are written."""

    id: bytes
    scope: bytes
    key: bytes
    fingerprint: bytes
    attempt: bytes
    token: int = 0
    status: int = 0
    head: bytes = b""
    body: bytes = b""


Waiting = list[tuple[Operation, "asyncio.Future[bool]"]]

_SQLITE: Final = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
PRAGMA wal_autocheckpoint = 4000;
CREATE TABLE operation (
    row INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE, scope BLOB NOT NULL, key BLOB NOT NULL, fingerprint BLOB NOT NULL,
    attempt BLOB NOT NULL, token INTEGER NOT NULL, holder TEXT NOT NULL, route TEXT NOT NULL, state TEXT NOT NULL,
    claimed_us INTEGER NOT NULL, due_us INTEGER NOT NULL, completed_us INTEGER, status INTEGER, head BLOB
);
CREATE INDEX operation_due ON operation (state, due_us);
CREATE TABLE response (row INTEGER PRIMARY KEY, body BLOB NOT NULL);
"""
_SQLITE_CLAIM: Final = """
INSERT INTO operation (id, scope, key, fingerprint, attempt, token, holder, route, state, claimed_us, due_us)
VALUES (?, ?, ?, ?, ?, ?, 'floor-1', 'charges', 'claimed', ?, ?) ON CONFLICT (id) DO NOTHING
"""
_SQLITE_RECORD: Final = """
UPDATE operation SET state = 'completed', completed_us = ?, due_us = ?, status = ?, head = ?
WHERE id = ? AND token = ? AND attempt = ? AND state = 'claimed'
"""
_SQLITE_BODY: Final = "INSERT INTO response SELECT row, ? FROM operation WHERE id = ?"


class SqliteStore:
    """A new file, written by one thread."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._loop = asyncio.get_running_loop()
        self._waiting: Waiting = []
        self._is_busy = False
        self._batches: SimpleQueue[Waiting] = SimpleQueue()

    async def work(self) -> None:
        await asyncio.to_thread(self._work)

    def write(self, operation: Operation) -> asyncio.Future[bool]:
        """Whether it was granted."""
        future = self._loop.create_future()
        self._waiting.append((operation, future))
        if not self._is_busy:
            self._is_busy = True
            self._loop.call_soon(self._hand_over)
        return future

    def _hand_over(self) -> None:
        batch, self._waiting = self._waiting, []
        self._batches.put(batch)

    def _return(self, batch: Waiting, granted: list[bool]) -> None:
        for (_, future), is_granted in zip(batch, granted, strict=True):
            future.set_result(is_granted)
        self._is_busy = bool(self._waiting)
        if self._is_busy:
            self._hand_over()

    def _work(self) -> None:
        connection = apsw.Connection(self._path)
        execute, changes = connection.cursor().execute, connection.changes
        execute(_SQLITE).fetchall()
        token = 0
        while True:
            batch, granted = self._batches.get(), []
            now_us = time.time_ns() // 1000
            execute("BEGIN IMMEDIATE")
            for its, _ in batch:
                if its.token == 0:
                    its.token = token = token + 1
                    due_us = now_us + LEASE_SECONDS * _SECOND_US
                    execute(
                        _SQLITE_CLAIM, (its.id, its.scope, its.key, its.fingerprint, its.attempt, token, now_us, due_us)
                    )
                    granted.append(changes() == 1)
                    continue
                due_us = now_us + _REPLAY_SECONDS * _SECOND_US
                execute(_SQLITE_RECORD, (now_us, due_us, its.status, its.head, its.id, its.token, its.attempt))
                granted.append(changes() == 1)
                if granted[-1]:
                    execute(_SQLITE_BODY, (its.body, its.id))
            execute("COMMIT")
            self._loop.call_soon_threadsafe(self._return, batch, granted)


_POSTGRES: Final = """
CREATE SEQUENCE token;
CREATE TABLE operation (
    id bytea PRIMARY KEY, scope bytea NOT NULL, key bytea NOT NULL, fingerprint bytea NOT NULL, attempt bytea NOT NULL,
    token bigint NOT NULL, holder text NOT NULL, route text NOT NULL, state text NOT NULL,
    claimed timestamptz NOT NULL, due timestamptz NOT NULL, completed timestamptz, status int, head bytea
) WITH (fillfactor = 50);
CREATE TABLE response (id bytea PRIMARY KEY, body bytea NOT NULL);
"""
_CLAIMED: Final = "id", "scope", "key", "fingerprint", "attempt"
_POSTGRES_CLAIM: Final = f"""
INSERT INTO operation
    SELECT new.*, nextval('token'), 'floor-1', 'charges', 'claimed', now, now + interval '{LEASE_SECONDS} s'
    FROM unnest($1::bytea[], $2::bytea[], $3::bytea[], $4::bytea[], $5::bytea[]) AS new, clock_timestamp() AS now
ON CONFLICT (id) DO NOTHING RETURNING id, token
"""
_RECORDED: Final = "id", "token", "attempt", "status", "head", "body"
_POSTGRES_RECORD: Final = f"""
WITH new AS (
    SELECT * FROM unnest($1::bytea[], $2::bigint[], $3::bytea[], $4::int[], $5::bytea[], $6::bytea[])
        AS new (id, token, attempt, status, head, body)
), done AS (
    UPDATE operation SET state = 'completed', completed = now, due = now + interval '{_REPLAY_SECONDS} s',
        status = new.status, head = new.head
    FROM new, clock_timestamp() AS now
    WHERE operation.id = new.id AND operation.token = new.token AND operation.attempt = new.attempt
        AND state = 'claimed'
    RETURNING operation.id, operation.token
), kept AS (INSERT INTO response SELECT id, body FROM new WHERE id IN (SELECT id FROM done))
SELECT id, token FROM done
"""


class PostgresStore:
    """A new database. Claims and records have a connection each; while a statement runs the next ones gather."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._claims: Waiting = []
        self._records: Waiting = []
        self._has_claims, self._has_records = asyncio.Event(), asyncio.Event()

    def write(self, operation: Operation) -> asyncio.Future[bool]:
        """Whether it was granted."""
        future = asyncio.get_running_loop().create_future()
        if operation.token == 0:
            self._claims.append((operation, future))
            self._has_claims.set()
        else:
            self._records.append((operation, future))
            self._has_records.set()
        return future

    async def work(self) -> None:
        claiming, recording = await asyncpg.connect(self._url), await asyncpg.connect(self._url)
        await claiming.execute(_POSTGRES)
        claim, record = await claiming.prepare(_POSTGRES_CLAIM), await recording.prepare(_POSTGRES_RECORD)
        await asyncio.gather(
            self._apply(claim, _CLAIMED, self._claims, self._has_claims),
            self._apply(record, _RECORDED, self._records, self._has_records),
        )

    async def _apply(self, statement: Any, columns: tuple[str, ...], waiting: Waiting, has_work: asyncio.Event) -> None:
        while await has_work.wait():
            batch = waiting.copy()
            waiting.clear()
            has_work.clear()
            tokens = dict(await statement.fetch(*[[getattr(each, name) for each, _ in batch] for name in columns]))
            for operation, future in batch:
                operation.token = tokens.get(operation.id, 0)
                future.set_result(operation.token != 0)


class Copies(asyncio.Protocol):
    """Copies of responses in a Redis. What is asked and what is kept in one turn of the loop is one write."""

    def __init__(self) -> None:
        self._reader = hiredis.Reader()
        self._asked: deque[asyncio.Future[bytes | None] | None] = deque()
        self._unsent: list[bytes] = []

    @classmethod
    async def connected(cls, host: str, port: int) -> Self:
        return (await asyncio.get_running_loop().create_connection(cls, host, port))[1]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def find(self, operation_id: bytes) -> asyncio.Future[bytes | None]:
        future: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._ask(future, "GET", operation_id)
        return future

    def keep(self, operation_id: bytes, copy: bytes) -> None:
        """Write a copy; nobody waits for it."""
        self._ask(None, "SET", operation_id, copy, "EX", _REPLAY_SECONDS)

    def _ask(self, future: asyncio.Future[bytes | None] | None, *command: Any) -> None:
        self._asked.append(future)
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._send)
        self._unsent.append(hiredis.pack_command(command))

    def _send(self) -> None:
        self._transport.write(b"".join(self._unsent))
        self._unsent.clear()

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            if (future := self._asked.popleft()) is not None:
                future.set_result(reply)
