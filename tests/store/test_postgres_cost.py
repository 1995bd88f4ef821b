"""What operations cost Postgres: plans, rows read, and round trips."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest

from gateway.core.operation import Audit
from gateway.store.memory.epoch import WitnessFiles
from gateway.store.operations import WITNESS_KEEP_US, Swept
from gateway.store.postgres import store as backlog
from gateway.store.postgres.connection import Connection
from gateway.store.postgres.dialer import Dialer, Link
from gateway.store.postgres.executor import AT_ONCE
from gateway.store.postgres.statements import qualified, statement_texts
from gateway.store.relational.rows import of_many, writes
from tests.conformance.hand import REMEMBER_US, SERVICE, Hand, Script, do, new_identity
from tests.store.postgres_sessions import opened, session
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
    link = Link(Dialer(migrated_url))
    large = "Seq Scan: (operation|delivery|request|response.*)"
    slow = {}
    try:
        for name, text in texts.items():
            scans = await link.run(lambda c, text=text: plan_of(c, text))
            slow[name] = [scan for scan in scans if re.fullmatch(large, scan)]
    finally:
        await link.close()
    assert {name: scans for name, scans in slow.items() if scans} == {}


async def test_a_large_backlog_is_estimated(migrated_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond what may be counted, a sample of the table gives the numbers, for a few seconds; pauses are never old."""
    monkeypatch.setattr(backlog.operations, "BACKLOG_COUNT_MAX", 1_000)
    monkeypatch.setattr(backlog, "_SAMPLED_BYTES", 1 << 20)
    async with session(migrated_url) as admin, opened(migrated_url) as store:
        await accept_many(migrated_url, admin, 20_000)
        (waiting,) = (await store.backlog(SERVICE)).waiting.values()
        assert 10_000 < waiting.accepted < 40_000
        assert waiting.accepted != 20_001
        size = float(await admin.fetchval("SELECT avg(request_bytes) FROM idempotency_gateway.delivery"))
        assert waiting.request_bytes == pytest.approx(waiting.accepted * size, rel=0.01)
        assert waiting.oldest_seconds >= 0
        await do(store, Hand(), Hand.accept)
        await store.pause(SERVICE, "many", Audit("ann", "it is away"))
        kept = await store.backlog(SERVICE)
        assert kept.waiting == {"r": waiting}
        assert kept.paused.keys() == {"many"}
        assert kept.age_seconds > 0


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
