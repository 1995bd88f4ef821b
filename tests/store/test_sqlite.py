"""What is true of SQLite alone: its file, its locks, its plans, and what it says when the disk fails it."""

from __future__ import annotations

import asyncio
import re
import stat
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import pytest

from gateway.core.operation import Applied, Audit, Snapshot, State, microseconds
from gateway.core.outbox import NO_EVENTS, EventType, Outbox, Subscription
from gateway.store.base import Indefinite, NotApplied, StartRefused, Unstorable
from gateway.store.relational.store import RESUME_TRANSACTION_MAX
from gateway.store.sqlite import store as sqlite
from gateway.store.sqlite.connection import TEXTS
from gateway.store.sqlite.store import SqliteStore
from tests.conformance.hand import LEASE_SECONDS, REMEMBER_SECONDS, SERVICE, Hand, Speech, all_of, do, started, state
from tests.support.eventually import eventually
from tests.support.failing_disk import FailingDisk, failing_disk
from tests.support.memory_store import ManualClock

BUSY_SECONDS = 0.05


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "operations.db"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(path: Path, clock: ManualClock) -> AsyncIterator[SqliteStore]:
    async with started(SqliteStore(path, clock_us=clock, busy_seconds=BUSY_SECONDS)) as store:
        yield store


def tamper(path: Path, *sql: str) -> None:
    with closing(apsw.Connection(str(path))) as connection, connection:
        for statement in sql:
            connection.execute(statement)


async def refused(path: Path) -> str:
    """Why the store refuses to start; it leaves no thread."""
    store = SqliteStore(path, busy_seconds=BUSY_SECONDS)
    with pytest.raises(StartRefused) as caught:
        await store.start()
    assert not threads()
    return str(caught.value)


def make_wide(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.touch(0o644)


def content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def move(path: Path, to: Path) -> None:
    path.rename(to)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("sqlite-")]


async def test_a_sweep_is_synced_where_it_writes_events(path: Path, clock: ManualClock) -> None:
    """After a power loss the next one would write them with another time under the same ids."""
    outbox = Outbox(SERVICE, "urn:shop", (Subscription("sink", frozenset((EventType.IN_DOUBT,))),))
    with failing_disk() as disk:
        for events, written in ((0, NO_EVENTS), (1, outbox)):
            async with started(
                SqliteStore(path.parent / str(events) / path.name, clock_us=clock, outbox=written)
            ) as store:
                await do(store, Hand(), Hand.claim)
                clock.advance(LEASE_SECONDS + 1)
                before = disk.log_syncs
                assert (await store.sweep(100)).lapsed == 1
                assert disk.log_syncs - before == events
                assert len(await store.lease_events(SERVICE, {"sink": 10}, 1)) == events


async def test_a_closed_store_leaves_one_file_and_no_thread(path: Path) -> None:
    """The log is copied into the file and removed, and the threads are gone. Nothing is readable by anybody else."""
    async with started(SqliteStore(path)) as store:
        await do(store, Hand(), Hand.claim)
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
        assert modes == dict.fromkeys(("operations.db", "operations.db-wal", "operations.db-shm"), 0o600)
        assert sorted(threads()) == ["sqlite-reader", "sqlite-writer"]
    assert threads() == []
    assert [file.name for file in path.parent.iterdir()] == ["operations.db"]


async def test_what_a_close_finds_is_answered(store: SqliteStore) -> None:
    """A command or read that is under way when the store is closed gets its answer, and one behind it gets one too."""
    hands = [Hand(), Hand()]
    answers: list[asyncio.Future[object]] = []
    for hand in hands:
        answers += [asyncio.ensure_future(store.apply(hand.claim()))]
        answers += [asyncio.ensure_future(store.read(hand.operation_id))]
        # A turn for the submission, one for the batch.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    await store.close()
    told = await asyncio.wait_for(asyncio.gather(*answers, return_exceptions=True), 10)
    assert [type(each) for each in told[:2]] == [Applied, Snapshot]
    assert {type(each) for each in told[2:]} <= {Applied, Snapshot, NotApplied}
    await store.start()
    is_claimed = [await state(store, hand) is State.CLAIMED for hand in hands]
    assert is_claimed == [isinstance(each, Applied) for each in told[::2]]


async def test_a_start_that_is_given_up_leaves_no_thread(path: Path) -> None:
    """Cancelled at any await of its start, the store ends what it had begun, and can be started afterwards."""
    for turns in range(6):
        store = SqliteStore(path)
        starting = asyncio.create_task(store.start())
        for _ in range(turns):
            await asyncio.sleep(0.001)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await eventually(lambda starting=starting: not (starting.cancelled() and threads()))
        await store.start()
        await store.close()
        assert threads() == []


UNFIT: dict[str, tuple[Callable[[Path], object], str]] = {
    "not-a-database": (lambda path: path.write_bytes(b"not a database at all" * 100), "cannot be used as a database"),
    "a-directory": (lambda path: path.mkdir(), "Is a directory"),
    "of-another-program": (lambda path: tamper(path, "CREATE TABLE t (a)"), "database of another program"),
    "directory-open-to-all": (lambda path: path.parent.chmod(0o777), "chmod o-w"),
}


@pytest.mark.parametrize("name", UNFIT)
async def test_an_unfit_place_is_refused(name: str, path: Path) -> None:
    """What cannot be the gateway's database is named, with what to do, and left as it is."""
    path.parent.mkdir()
    make, words = UNFIT[name]
    make(path)
    before = content(path)
    assert words in await refused(path)
    assert content(path) == before


async def test_a_library_that_can_corrupt_its_file_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the file is there: of two gateways on one host each would be the other's undoing."""
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.51.2")
    assert "SQLite 3.51.2 can corrupt its file" in await refused(path)
    assert content(path) is None


@pytest.mark.parametrize(
    "change",
    ["ALTER TABLE operation DROP COLUMN doubt", "ALTER TABLE operation ADD COLUMN holder_too TEXT", "DROP TABLE audit"],
    ids=["column-less", "column-more", "table-less"],
)
async def test_another_schema_of_the_same_number_is_refused(store: SqliteStore, path: Path, change: str) -> None:
    """A file that another build has made is refused at the start with what to do, not at the first claim."""
    await store.close()
    tamper(path, change)
    assert "has other tables than this program's schema 1. Run the program that made it" in await refused(path)
    with pytest.raises(StartRefused, match="other tables"):
        sqlite.is_migrated(path)


async def test_an_event_that_a_newer_program_writes_is_left_to_it(path: Path) -> None:
    """It is neither leased nor in the way of others, however many there are."""
    async with started(SqliteStore(path, outbox=Outbox(SERVICE, "urn:shop", (Subscription("ledger"),)))) as store:
        newer, known = Hand(), Hand()
        await do(store, newer, Hand.claim, Hand.complete)
        tamper(path, "UPDATE event SET type = 'operation.sung'")
        await do(store, known, Hand.claim, Hand.complete)
        (event,) = await store.lease_events(SERVICE, {"ledger": 1}, 60_000_000)
        assert event.event.operation_id == str(known.operation_id)
        assert not await store.lease_events(SERVICE, {"ledger": 1}, 60_000_000)
        tamper(path, "UPDATE event SET type = 'operation.completed' WHERE tries = 0")
        (event,) = await store.lease_events(SERVICE, {"ledger": 1}, 60_000_000)
        assert event.event.operation_id == str(newer.operation_id)


async def test_a_file_that_was_replaced_is_not_written_to(store: SqliteStore, path: Path) -> None:
    """A database that was removed or exchanged under the gateway is no store, until it is put back."""
    await do(store, hand := Hand(), Hand.claim)
    away = path.with_suffix(".away")
    move(path, away)
    for verb in (store.apply(hand.complete()), store.read(hand.operation_id)):
        with pytest.raises(NotApplied, match="removed or replaced while in use; put it back"):
            await verb
    make_wide(path)
    with pytest.raises(NotApplied, match="removed or replaced"):
        await store.apply(hand.complete())
    move(away, path)
    await do(store, hand, Hand.complete)


async def test_a_lock_held_by_another_is_waited_for_so_long(store: SqliteStore, path: Path) -> None:
    """A process that holds the file makes commands fail definitely, while reads go on; afterwards all is well."""
    await do(store, hand := Hand(), Hand.claim)
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    with pytest.raises(NotApplied, match="locked by another process"):
        await store.apply(hand.complete())
    assert time.monotonic() - began >= BUSY_SECONDS
    assert await state(store, hand) is State.CLAIMED
    other.execute("ROLLBACK")
    other.close()
    await do(store, hand, Hand.complete)


async def test_a_command_that_cannot_be_kept_harms_no_neighbour(store: SqliteStore) -> None:
    """A value that SQLite cannot hold is rejected for good, and the rest of its batch applied."""
    good, bad, better = Hand(), Hand(), Hand()
    answers = await asyncio.gather(
        store.apply(good.claim()),
        store.apply(replace(bad.claim(), holder="\ud800")),
        store.apply(replace(bad.claim(), lease_us=2**70)),
        store.apply(better.claim()),
        return_exceptions=True,
    )
    assert [type(answer) for answer in answers] == [Applied, Unstorable, Unstorable, Applied]
    assert await state(store, bad) is State.ABSENT


@pytest.mark.parametrize("failure", ["sync", "write"])
async def test_a_commit_that_fails_is_unknown_until_the_disk_works(
    failure: str, disk: FailingDisk, path: Path, clock: ManualClock
) -> None:
    """A failed fsync at commit is indefinite; nothing is done until the disk works again; then repeating it tells."""
    store = SqliteStore(path, clock_us=clock)
    await store.start()
    await do(store, hand := Hand(), Hand.claim)
    disk.fails.add(failure)
    with pytest.raises(Indefinite, match="the commit failed"):
        await store.apply(hand.complete())
    with pytest.raises((NotApplied, Indefinite)):
        await store.apply(Hand().claim())
    disk.fails.clear()
    await do(store, hand, Hand.complete)
    assert await state(store, hand) is State.COMPLETED
    await do(store, Hand(), Hand.claim)
    await store.close()
    await store.start()
    assert await state(store, hand) is State.COMPLETED
    await store.close()


async def test_a_sweep_waits_for_no_disk_and_every_command_does(
    disk: FailingDisk, path: Path, clock: ManualClock
) -> None:
    """What time has done is written down without an fsync; what is acknowledged after it is synced as ever."""
    async with started(SqliteStore(path, clock_us=clock)) as store:
        await do(store, hand := Hand(), Hand.claim, Hand.complete)
        clock.advance(2 * REMEMBER_SECONDS)
        disk.fails.add("sync")
        assert (await store.sweep(100)).collected == 1
        with pytest.raises(Indefinite, match="the commit failed"):
            await store.apply(Hand().claim())
        disk.fails.clear()
        assert await state(store, hand) is State.ABSENT
        await do(store, Hand(), Hand.claim)


def rows_of(path: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(apsw.Connection(str(path))) as connection:
        return connection.execute(query).fetchall()


def tables_with(path: Path, value: bytes) -> list[str]:
    """In which tables the bytes are, once for each time."""
    tables = [name for (name,) in rows_of(path, "SELECT name FROM sqlite_schema WHERE type = 'table'")]
    return [table for table in tables for row in rows_of(path, f"SELECT * FROM {table}") if value in row]


@pytest.mark.parametrize(
    "end",
    [
        (Hand.dispatch, Hand.complete_grant),
        (Hand.dispatch, Hand.complete),
        (Hand.dispatch, Hand.abandon, Hand.disprove),
        (Hand.dispatch, Hand.bury, Hand.withdraw),
    ],
    ids=["complete-grant", "complete", "disprove", "withdraw"],
)
async def test_no_byte_of_a_request_stays_behind(end: tuple[Speech, ...], store: SqliteStore, path: Path) -> None:
    """In no table once the outcome is known; until then its bytes are in one place."""
    hand = Hand()
    sealed = hand.accept().kept.sealed
    await do(store, hand, Hand.accept)
    assert tables_with(path, sealed) == ["request"]
    await do(store, hand, *end)
    assert tables_with(path, sealed) == []
    assert rows_of(path, "SELECT row FROM delivery UNION ALL SELECT row FROM request") == []


@pytest.mark.parametrize("rest_seconds", [1, 3_600])
async def test_a_pause_ends_in_short_transactions(
    store: SqliteStore, path: Path, clock: ManualClock, rest_seconds: int
) -> None:
    """Cancelled, it stays paused; its end goes on where it stopped, or later gives each the time since."""
    number, until_us = 2 * RESUME_TRANSACTION_MAX + 1, clock() + microseconds(86_400)
    waiting = [replace(Hand().accept(), deliver_within_us=microseconds(86_400)) for _ in range(number)]
    await asyncio.gather(*map(store.apply, waiting))
    await store.pause(SERVICE, "charges", Audit("operator", "repair"))
    clock.advance(100)
    resuming = asyncio.create_task(store.resume(SERVICE, "charges", Audit("operator", "repaired")))
    # The writer gets to this after the first transaction, and before the second.
    await do(store, Hand(), Hand.claim)
    resuming.cancel()
    assert isinstance((await asyncio.gather(resuming, return_exceptions=True))[0], asyncio.CancelledError)
    await do(store, Hand(), Hand.claim)
    prolonged = ends_of_delivery(path).count(until_us + microseconds(100))
    assert 0 < prolonged < number
    assert (await store.find_due(SERVICE, all_of("charges"), 1)).found == []
    clock.advance(rest_seconds)
    assert await store.resume(SERVICE, "charges", Audit("operator", "repaired")) is True
    whole = [until_us + microseconds(100 + rest_seconds)]
    parts = [until_us + microseconds(100)] * prolonged + whole * (number - prolonged)
    assert sorted(ends_of_delivery(path)) == (parts if rest_seconds == 1 else whole * number)


def ends_of_delivery(path: Path) -> list[int]:
    """Until when each has to be delivered: for workers and, the same, for sweeps."""
    ends = rows_of(
        path, "SELECT d.deliver_until_us, o.due_us FROM delivery AS d JOIN operation AS o USING (row) ORDER BY 1"
    )
    assert all(end == due for end, due in ends)
    return [end for end, _ in ends]


# Their tables have few rows, or nothing that traffic waits for runs them.
COLD = (
    "count_sealed", "delete_gateways", "delete_turns", "find_pause_ahead", "insert_kind", "move_pauses", "schema_0001",
    "select_content_holders", "select_next_sealed", "select_older_gateways", "select_outboxes", "select_recipes",
    "select_paused_expiring", "select_running", "select_services",
)  # fmt: skip


def scans_of(connection: apsw.Connection, text: str) -> list[str]:
    parameters = len(set(re.findall(r"\?\d+", text))) or text.count("?")
    plan = [row[3] for row in connection.execute("EXPLAIN QUERY PLAN " + text, (None,) * parameters)]
    # What a subquery found, of which it reads a bounded number itself; a virtual table is a list among the parameters.
    found = {"SCAN CONSTANT ROW", *("SCAN " + step.split()[1] for step in plan if step.startswith("CO-ROUTINE"))}
    scans = [step for step in plan if step.startswith("SCAN") and step not in found]
    return [step for step in scans if "USING" not in step and "VIRTUAL TABLE" not in step]


async def test_a_statement_reads_no_whole_table(store: SqliteStore, path: Path) -> None:
    """The plan of every statement that traffic waits for goes through an index or a row number."""
    with closing(apsw.Connection(str(path))) as connection:
        scans = {name: scans_of(connection, text) for name, text in TEXTS.items() if name not in COLD}
    assert {name: steps for name, steps in scans.items() if steps} == {}
