"""What operations cost Postgres: plans, rows read, and round trips."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from hashlib import md5
from itertools import cycle
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest

from gateway.core.delivery import Delivering
from gateway.core.operation import Applied, Audit, Identity, State
from gateway.store.memory.epoch import WitnessFiles
from gateway.store.operations import WITNESS_KEEP_US, EventFate, EventReport, Query, Swept
from gateway.store.postgres import store as backlog
from gateway.store.postgres.connection import Connection
from gateway.store.postgres.dialer import Dialer
from gateway.store.postgres.executor import AT_ONCE
from gateway.store.postgres.statements import qualified, statement_texts
from gateway.store.relational.statements import of_many, writes
from tests.conformance.hand import REMEMBER_US, SAME, SERVICE, Hand, Script, all_of, do, new_identity, state
from tests.store.postgres_sessions import opened, session
from tests.support.eventually import eventually
from tests.support.memory_store import ManualClock

# As a sweep has gone by what is there.
_PASSED: Final = """
UPDATE idempotency_gateway.epoch SET passed_token = (SELECT last_value FROM idempotency_gateway.token)
"""
_TOKEN: Final = "nextval('idempotency_gateway.token')"
_ROW: Final = "decode(md5({prefix} || n::text), 'hex')"


async def copied(admin: Any, table: str, number: int, own: Mapping[str, str], where: str = "") -> None:
    """Copy a row of the table so often, with what each has of its own."""
    rows = await admin.fetch(
        "SELECT attname FROM pg_attribute WHERE attrelid = $1::regclass AND attnum > 0 AND attgenerated = ''",
        f"idempotency_gateway.{table}",
    )
    names = [name for (name,) in rows]
    values = ", ".join(own.get(name, f"t.{name}") for name in names)
    await admin.execute(
        f"INSERT INTO idempotency_gateway.{table} ({', '.join(names)}) SELECT {values}"
        f" FROM (SELECT * FROM idempotency_gateway.{table} {where} LIMIT 1) t, generate_series(1, {number}) n"
    )


async def complete_many(url: str, admin: Any, number: int = 10_000) -> None:
    """Completed records that nothing is done with any more."""
    async with opened(url) as store:
        await do(store, Hand(), Hand.claim, Hand.complete)
    prefix = f"'{uuid4().hex}'"
    own = {"id": _ROW.format(prefix=prefix), "token": _TOKEN, "due_us": "9e15", "replay_until_us": "9e15"}
    await copied(admin, "operation", number, own)
    await admin.execute(_PASSED)


async def accept_many(url: str, admin: Any, number: int) -> None:
    """Accepted requests of a route that are all due. Half of them wait in one lane."""
    async with opened(url) as store:
        await do(store, Hand(Script(new_identity(route="r", operation="many"))), Hand.accept)
    prefix = f"'{uuid4().hex}'"
    row, is_in_lane = _ROW.format(prefix=prefix), "n % 2 = 0"
    is_waiting = "WHERE state = 'accepted'"
    await copied(admin, "operation", number, {"id": row, "token": _TOKEN, "due_us": "9e15"}, is_waiting)
    own = {
        "row": row,
        "next_attempt_us": "1",
        "deliver_until_us": "9e15",
        "lane": f"CASE WHEN {is_in_lane} THEN decode(md5('lane'), 'hex') END",
        "lane_number": _TOKEN,
        "lane_rank": "NULL",
        "is_behind": is_in_lane,
    }
    await copied(admin, "delivery", number, own)
    await admin.execute("UPDATE idempotency_gateway.delivery SET lane_rank = lane_number WHERE lane IS NOT NULL")
    await copied(admin, "request", number, {"row": row})
    await admin.execute("ANALYZE")


def scans_of_tables(plan: dict[str, Any]) -> list[str]:
    """How the plan gets at stored rows, as "kind of scan: table"."""
    is_own = "Relation Name" in plan and "Scan" in plan["Node Type"]
    own = [f"{plan['Node Type']}: {plan['Relation Name']}"] if is_own else []
    return own + [scan for part in plan.get("Plans", []) for scan in scans_of_tables(part)]


async def plan_of(connection: Connection, text: str) -> list[str]:
    """The plan for whatever arguments."""
    nulls = ", ".join(["NULL"] * max(map(int, re.findall(r"\$(\d+)", text)), default=0))
    await connection.execute("SET plan_cache_mode = force_generic_plan")
    await connection.execute(f"PREPARE planned AS {text}")
    try:
        ((found,),) = await connection.fetch(f"EXPLAIN (FORMAT JSON) EXECUTE planned{f'({nulls})' if nulls else ''}")
    finally:
        await connection.execute("DEALLOCATE planned")
    return scans_of_tables(json.loads(found)[0]["Plan"])


async def test_statements_go_by_index(migrated_url: str) -> None:
    """None looks through a table of thousands of records or kept requests, whatever its arguments are."""
    async with session(migrated_url) as admin:
        await complete_many(migrated_url, admin)
        await accept_many(migrated_url, admin, 5_000)
    texts = {name: text for name, text in statement_texts().items() if "schema" not in name}
    # The walk for lapsed claims finds these here.
    del texts["select_ahead"]
    for name, write in writes(is_numbered=False).items():
        if name in AT_ONCE:
            texts[f"{name} of many"] = qualified(of_many(name, [[""] * len(write.given)])[0])
    link = Dialer(migrated_url).link()
    large = "Seq Scan: (operation|delivery|request|response.*)"
    slow = {}
    try:
        for name, text in texts.items():
            scans = await link.run(lambda c, text=text: plan_of(c, text))
            slow[name] = [scan for scan in scans if re.fullmatch(large, scan)]
    finally:
        await link.close()
    assert {name: scans for name, scans in slow.items() if scans} == {}


# What the server read by statements of stores that have ended.
_READ = """
SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::bigint
FROM pg_stat_user_tables WHERE schemaname = 'idempotency_gateway'
"""
_SESSIONS = """
SELECT count(*) FROM pg_stat_activity
WHERE application_name = 'idempotency-gateway' AND datname = current_database()
"""


async def read_so_far(admin: Any) -> int:
    """The rows that were read by now, once the sessions of stores have ended.

    Postgres 14 collects what sessions report, in order and some time later: what is read now is seen last.
    """

    async def has_ended() -> bool:
        return await admin.fetchval(_SESSIONS) == 0

    await eventually(has_ended)
    mark = f"mark_{uuid4().hex}"
    await admin.execute(f"CREATE TABLE {mark} ()")

    async def is_collected() -> bool:
        await admin.execute(f"SELECT FROM {mark}")
        return bool(await admin.fetchval("SELECT seq_scan FROM pg_stat_user_tables WHERE relname = $1", mark))

    await eventually(is_collected)
    return int(await admin.fetchval(_READ))


async def rows_read_by_delivery(url: str, admin: Any) -> int:
    """The rows that a store reads to find what is due, and to serve some operations of each kind."""
    before = await read_so_far(admin)
    async with opened(url) as store:
        assert len((await store.find_due(SERVICE, all_of("many", "few"), 10)).found) == 10
        assert await store.count_pending(SERVICE, "r", b"scope", 10) == 0
        await do(store, Hand(), Hand.claim, Hand.complete)
        for _ in range(5):
            await do(store, Hand(), Hand.accept, Hand.dispatch, Hand.postpone)
            await do(store, Hand(), Hand.accept, Hand.dispatch, Hand.complete)
            await do(store, Hand(), lambda hand: replace(hand.accept(), lane=md5(b"lane").digest()), Hand.withdraw)
            in_order = replace(Hand().accept(), lane=uuid4().bytes)
            await do(
                store, Hand(Script(in_order.identity)), lambda _, each=in_order: each, Hand.dispatch, Hand.complete
            )
    return await read_so_far(admin) - before


async def test_what_waits_makes_nothing_dearer(migrated_url: str) -> None:
    """With twenty thousand pending requests, ten thousand of them in one lane, claims, dispatches and the
    search for what is due read no more rows; nor do acceptances in that lane or another one."""
    async with session(migrated_url) as admin:
        await accept_many(migrated_url, admin, 20)
        with_few = await rows_read_by_delivery(migrated_url, admin)
        await accept_many(migrated_url, admin, 20_000)
        with_many = await rows_read_by_delivery(migrated_url, admin)
    assert 0 < with_many <= with_few + 100, with_few


async def test_what_nobody_delivers_is_not_read(migrated_url: str) -> None:
    """However much waits of routes that are gone, a search for what is due passes over all of it at once."""
    delivering = Delivering(frozenset((("new", "many"),)), frozenset(("new", "r")), frozenset(("few",)))
    async with session(migrated_url) as admin:
        await accept_many(migrated_url, admin, 20_000)
        before = await read_so_far(admin)
        async with opened(migrated_url) as store:
            opened_by = await admin.fetchval(_READ)
            assert (await store.find_due(SERVICE, delivering, 10)).found == []
        assert await read_so_far(admin) - max(before, opened_by) <= 100


async def test_what_is_in_doubt_is_found_among_what_is_in_doubt(migrated_url: str) -> None:
    """However many records there are, a look at what is in doubt reads those alone."""
    async with session(migrated_url) as admin:
        await complete_many(migrated_url, admin)
        async with opened(migrated_url) as store:
            hands = [Hand() for _ in range(5)]
            await asyncio.gather(*(do(store, hand, Hand.claim, Hand.abandon) for hand in hands))
        before = await read_so_far(admin)
        async with opened(migrated_url) as store:
            for recoverable in (False, True):
                found = await store.find(Query(frozenset((State.IN_DOUBT,)), recoverable=recoverable))
                assert len(found) == len(hands)
        assert await read_so_far(admin) - before <= 200


async def test_dead_letters_are_found_without_the_ids_of_all_records(postgres_url: str) -> None:
    """However many records there are, their index is not walked."""
    walked = "SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes WHERE schemaname = 'idempotency_gateway'"
    async with session(postgres_url) as admin:
        await complete_many(postgres_url, admin, 20_000)
        await admin.execute("VACUUM (ANALYZE) idempotency_gateway.operation")
        await read_so_far(admin)
        before = await admin.fetchval(walked)
        async with opened(postgres_url) as store:
            assert await store.find(Query(frozenset((State.DEAD_LETTER,)))) == []
        await read_so_far(admin)
        assert await admin.fetchval(walked) - before <= 200


async def test_a_sweep_reads_few_of_very_many_doubts(postgres_url: str) -> None:
    """Whether their leases begin in the future is looked at in a part of them each time."""
    async with session(postgres_url) as admin:
        async with opened(postgres_url) as store:
            await do(store, Hand(), Hand.claim, Hand.abandon)
        own = {"id": _ROW.format(prefix="'doubt'"), "token": _TOKEN}
        await copied(admin, "operation", 30_000, own, "WHERE state = 'in_doubt'")
        await admin.execute(_PASSED)
        await admin.execute("ANALYZE idempotency_gateway.operation")
        before = await read_so_far(admin)
        async with opened(postgres_url) as store:
            assert await store.sweep(100) == Swept()
        assert await read_so_far(admin) - before <= 10_000 + 200


FILL_EVENTS: Final = """
INSERT INTO idempotency_gateway.event (row, at_us, since_us, due_us, service, sink, event_id, type, content)
SELECT convert_to('evt_' || n || ' ledger', 'UTF8'), n, n, n, 'shop', 'ledger', 'evt_' || n, 'operation.completed', '{}'
FROM generate_series(1, $1::integer) AS n
"""


async def test_a_large_backlog_is_estimated(migrated_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond what may be counted, a sample of the table gives the numbers, for a few seconds; pauses are never old."""
    monkeypatch.setattr(backlog, "BACKLOG_COUNT_MAX", 1_000)
    monkeypatch.setattr(backlog, "_SAMPLED_BYTES", 1 << 20)
    async with session(migrated_url) as admin, opened(migrated_url) as store:
        await accept_many(migrated_url, admin, 20_000)
        (waiting,) = (await store.backlog(SERVICE)).waiting.values()
        assert 10_000 < waiting.accepted < 40_000
        assert waiting.accepted != 20_001
        assert waiting.request_bytes == pytest.approx(waiting.accepted * await size_of_one(admin), rel=0.01)
        assert waiting.oldest_seconds >= 0
        await do(store, Hand(), Hand.accept)
        await store.pause(SERVICE, "many", Audit("ann", "it is away"))
        kept = await store.backlog(SERVICE)
        assert kept.waiting == {"r": waiting}
        assert kept.paused.keys() == {"many"}
        assert kept.age_seconds > 0


async def size_of_one(admin: Any) -> float:
    return float(await admin.fetchval("SELECT avg(request_bytes) FROM idempotency_gateway.delivery"))


async def rows_read_by_relay(url: str, admin: Any, waiting: int) -> int:
    """The rows of events that a relay reads to lease ten of so many, and to report their results."""
    async with opened(url) as store:
        # Plans are made for good while nothing waits.
        await store.lease_events(SERVICE, {"ledger": 10}, 1)
        await store.report_events(SERVICE, [EventReport("ledger", "none", 1, 0, EventFate.PUBLISHED)])
        before = await admin.fetchval(_READ)
        await admin.fetch(FILL_EVENTS, waiting)
        leased = await store.lease_events(SERVICE, {"ledger": 10}, 60_000_000)
        ends = zip(leased, cycle(EventFate), strict=False)
        reports = [EventReport(each.sink, each.event.id, each.tries, 0, fate, "why", 1) for each, fate in ends]
        await store.report_events(SERVICE, reports)
        found = (await store.sinks(SERVICE))["ledger"]
        assert (found.pending, found.dead) == (waiting - 7, 3)
    read = await read_so_far(admin) - before
    await admin.execute("TRUNCATE idempotency_gateway.event")
    return read


async def test_events_that_wait_make_no_publication_dearer(migrated_url: str) -> None:
    """With two thousand of them a relay reads hardly more rows, though it began while there were none."""
    async with opened(migrated_url):
        pass
    async with session(migrated_url) as admin:
        with_few, with_many = [await rows_read_by_relay(migrated_url, admin, number) for number in (20, 2_000)]
    # The sinks are counted once.
    assert with_few < with_many <= with_few + 2_000 + 100, with_few


async def test_many_at_once_take_few_statements(migrated_url: str) -> None:
    """What arrives together goes together: a round trip serves many operations."""
    async with opened(migrated_url) as store, session(migrated_url) as admin:
        await do(store, Hand(), Hand.claim, Hand.complete)
        committed = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
        before = await admin.fetchval(committed)
        await asyncio.gather(*(do(store, Hand(), Hand.claim, Hand.complete) for _ in range(400)))
    async with session(migrated_url) as admin:
        assert await admin.fetchval(committed) - before <= 2 * 400 / 8


async def test_a_sweep_goes_on_beside_locked_records(migrated_url: str) -> None:
    """A record that a command holds is left for the next pass: the sweep waits for nobody."""
    clock = ManualClock()
    async with opened(migrated_url, clock_us=clock) as store, session(migrated_url) as holder:
        hands = [Hand() for _ in range(10)]
        await asyncio.gather(*(do(store, hand, Hand.claim, Hand.complete) for hand in hands))
        lapsing = [Hand() for _ in range(5)]
        await asyncio.gather(*(do(store, hand, Hand.claim) for hand in lapsing))
        clock.advance(2 * REMEMBER_US / 1_000_000)
        async with holder.transaction():
            await holder.fetch(
                "SELECT FROM idempotency_gateway.operation WHERE id = ANY($1) FOR UPDATE",
                [hands[0].operation_id.bytes, lapsing[0].operation_id.bytes],
            )
            assert await store.sweep(100) == Swept(lapsed=4, collected=9)
        assert await store.sweep(100) == Swept(lapsed=1, collected=1)


async def test_a_witness_outlives_two_sweeps_at_once(migrated_url: str, tmp_path: Path) -> None:
    """One that was raised since the last check is kept by both: the one that is second sees what the first has done."""
    clock, files = ManualClock(), WitnessFiles(tmp_path / "witness")
    files.open()
    try:
        async with (
            opened(migrated_url, clock_us=clock, witness_files=files) as store,
            opened(migrated_url, clock_us=clock) as other,
        ):
            await do(store, Hand(), Hand.claim)
            (note,) = files.read().notes
            clock.advance(WITNESS_KEEP_US / 1_000_000 + 1)
            await asyncio.gather(*(each.sweep(100) for each in (store, other)))
            assert note.link in (await store.check_memory([note.link])).witnesses
    finally:
        files.close()


async def test_a_long_key_costs_no_correctness(migrated_url: str) -> None:
    """A record that does not fit half a page is kept like any other."""
    hand = Hand()
    hand.script.identity = Identity(uuid4(), "r", "o", b"s" * 9_000, b"k" * 9_000, "k" * 9_000)
    async with opened(migrated_url) as store:
        result = await store.apply(replace(hand.claim(), fingerprint=replace(SAME, raw=b"w" * 9_000)))
        assert isinstance(result, Applied)
        hand.see(hand.claim(), result)
        await do(store, hand, Hand.complete)
        assert await state(store, hand) is State.COMPLETED
