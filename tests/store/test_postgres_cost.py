"""What operations cost Postgres: plans, heap-only updates, round trips, and answers that leave with their partition."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from hashlib import md5
from itertools import cycle
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid4

import pytest

from gateway.core.operation import Applied, Audit, Complete, Identity, State, microseconds
from gateway.store.base import NotApplied
from gateway.store.memory.witness_files import WitnessFiles
from gateway.store.operations import WITNESS_KEEP_US, EventFate, EventReport, Swept
from gateway.store.postgres import delivery
from gateway.store.postgres.arguments import acceptance_arguments, claim_arguments, completion_arguments
from gateway.store.postgres.connection import Connection
from gateway.store.postgres.dialer import Dialer
from gateway.store.postgres.rows import CHANGE_NAMES
from gateway.store.postgres.statements import load, statement_texts
from gateway.store.postgres.store import PostgresStore
from tests.conformance.hand import ANSWER, REMEMBER_US, RESOURCE, SAME, SERVICE, Hand, Script, all_of, do, state
from tests.store.postgres_sessions import let_statements_end, opened, session
from tests.support.eventually import eventually
from tests.support.memory_store import EPOCH_US, ManualClock

DAY_SECONDS = 86_400.0
BATCH = 64
# Where the short-lived responses of a test's first day are.
OF_TODAY = f"response_{EPOCH_US // microseconds(DAY_SECONDS) + 1}"

FILL = """
INSERT INTO idempotency_gateway.operation (
    operation_id, attempt_id, token, first_claimed_us, claimed_us, lease_until_us, replay_until_us, remember_until_us,
    completed_us, due_us, attempts, drop_day, version, status, state, last_event, holder, route,
    operation, scope_digest, key_digest, recipe, digest, raw, key_id
)
SELECT
    gen_random_uuid(), gen_random_uuid(), nextval('idempotency_gateway.token'), 1, 1, 0, 9e15, 9e15,
    1, 9e15, 1, 20000, 1, 200, 'completed', 'complete', 'h', 'r', 'o', 's', 'k', 'r', 'd', 'w', ''
FROM generate_series(1, 10000)
"""
FILL_TOMBSTONES = """
INSERT INTO idempotency_gateway.kind (
    attempts, version, status, service, route, operation, last_event, key_id, recipe, api_version, digest
)
SELECT n, 1, 200, 'shop', 'r', 'o', 'complete', '', 'r', '', n::text::bytea FROM generate_series(1, 10) AS n;
INSERT INTO idempotency_gateway.tombstone (token, completed_us, kept_s, kind, operation_id, scope, fingerprint)
SELECT 1, 1e15, 1e9, 1 + n % 10, gen_random_uuid(), gen_random_uuid(), gen_random_uuid()
FROM generate_series(1, 100000) AS n
"""
FILL_ANSWERS = """
CREATE TABLE idempotency_gateway.response_20000 PARTITION OF idempotency_gateway.response FOR VALUES IN (20000);
INSERT INTO idempotency_gateway.response SELECT token, 20000, 'OK', '\\x01', 'x' FROM idempotency_gateway.operation;
INSERT INTO idempotency_gateway.recovery SELECT operation_id, 1, 9e15, 0, 9e15, 1 FROM idempotency_gateway.operation;
INSERT INTO idempotency_gateway.audit (operation_id, at_us, keep_until_us, token, event, who, why)
SELECT operation_id, 1, 9e15, 1, 'prove', 'w', 'y' FROM idempotency_gateway.operation;
INSERT INTO idempotency_gateway.content (digest, operation_id, until_us, check_us, fingerprint)
SELECT decode(md5(operation_id::text), 'hex'), operation_id, 9e15, 9e15, 'd' FROM idempotency_gateway.operation;
UPDATE idempotency_gateway.upkeep SET passed_token = (SELECT max(token) FROM idempotency_gateway.operation);
ANALYZE
"""
# Accepted requests that are all due, of one service and two operation names, one of them with few. Half of the others
# wait in one lane.
FILL_PENDING: Final = """
WITH accepted AS (
    INSERT INTO idempotency_gateway.operation (
        operation_id, attempt_id, token, first_claimed_us, claimed_us, lease_until_us, due_us, attempts, version,
        is_kept, state, last_event, holder, route, operation, scope_digest, key_digest
    )
    SELECT
        gen_random_uuid(), gen_random_uuid(), nextval('idempotency_gateway.token'), 1, 1, 0, 9e15, 0, 1,
        true, 'accepted', 'accept', '', 'r', CASE WHEN n % 1000 = 0 THEN 'few' ELSE 'many' END,
        decode(md5((n % 1000)::text), 'hex'), 'k'
    FROM generate_series(1, $1) AS n
    RETURNING operation_id, attempt_id, operation, route, scope_digest, token,
        CASE WHEN operation = 'many' AND token % 2 = 0 THEN decode(md5('lane'), 'hex') END AS lane
), kept AS (
    INSERT INTO idempotency_gateway.request SELECT operation_id, attempt_id, 'key', 'sealed' FROM accepted
)
INSERT INTO idempotency_gateway.delivery (
    operation_id, acceptance_id, accepted_us, since_us, next_attempt_us, deliver_until_us, request_bytes, answers,
    waits, service, operation, route, scope_digest, lane, lane_number, lane_rank, is_behind
)
SELECT
    operation_id, attempt_id, 1, 1, 1, 9e15, 6, 0, 'accepted', 'shop', operation, route, scope_digest, lane, token,
    CASE WHEN lane IS NOT NULL THEN token END, lane IS NOT NULL
FROM accepted
"""


_ANY: Final = UUID(int=0)
_IDS: Final = [UUID(int=number) for number in range(BATCH)]
# What every command comes to, with arguments, and what a sweep, recovery and operators ask.
OF_COMMANDS: Final[dict[str, tuple[Any, ...]]] = {
    "claim": (None, *claim_arguments([Hand().claim() for _ in range(BATCH)], lambda _: 1), _ANY),
    "complete": (None, *completion_arguments([Complete(each, 1, each, ANSWER, 1, 1) for each in _IDS]), _ANY),
    "lock": (None, _IDS, _IDS, _ANY),
    "update": ([],) * len(CHANGE_NAMES.split(",")),
    "accept": (None, *acceptance_arguments([Hand().accept() for _ in range(BATCH)]), _ANY),
    "content_holders": (None, _IDS, [bytes(16)] * BATCH),
    "deliveries": (_IDS,),
    "write_deliveries": ([],) * 18,
    "give_turns": ([b"lane"], 2),
    "drop_kept": (_IDS,),
    "delete": (_IDS,),
    "read_narrow": (_IDS,),
    "lock_tombstones": (_IDS,),
    "move": (_IDS, [], [], [], []),
    "insert_responses": ([], [], [], []),
    "delete_responses": ([], []),
}
OTHERS: Final[dict[str, tuple[Any, ...]]] = {
    "is_due": (None,),
    "select_lapsed": (None, 100, 5000),
    "select_due": (None, 100),
    "collect_tombstones": (None, 100),
    "pass": (None, 5000, 1),
    "tidy": (None, 100),
    "tally": (None,),
    "recover": (None, _ANY, 1, 1, False),
    "put_off": (None, _ANY, 1, 1, 1, "asked"),
    "recovery": (_ANY,),
    "audits": (_ANY, 100),
    "find_due": (None, SERVICE, 10, ["r"], ["many"], ["few"], ["r", "s"]),
    "read_kept": (_ANY,),
    "count_pending": (None, SERVICE, "r", b"s", 10),
    "count_backlog": (None, SERVICE, 1000),
    "paused": (SERVICE,),
    "resume_pause": (None, SERVICE, "many"),
    "resume": (None, SERVICE, "many", "ann", "it is back"),
    "credit_pause": (None, SERVICE, "many", _ANY, 500),
    "extend_paused": (None, 100),
    "find_undelivered": (None, _ANY, 1000, 0, None, ["dead_letter"], "deadline", 100),
    "find": (None, _ANY, 1000, 0, None, ["released"], ["claimed"], 100, True),
    "find_in_doubt": (None, _ANY, 1000, 0, ["r"], True, 100),
}


def scans_of_tables(plan: dict[str, Any]) -> list[str]:
    """How the plan gets at stored rows, as "kind of scan: table"."""
    is_own = "Relation Name" in plan and "Scan" in plan["Node Type"]
    own = [f"{plan['Node Type']}: {plan['Relation Name']}"] if is_own else []
    return own + [scan for part in plan.get("Plans", []) for scan in scans_of_tables(part)]


def rows_read(plan: dict[str, Any], table: str) -> int:
    """How many rows of the table an executed plan looked at."""
    passed = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0) if plan.get("Relation Name") == table else 0
    return int(passed * plan["Actual Loops"]) + sum(rows_read(part, table) for part in plan.get("Plans", []))


async def plan_of(connection: Connection, statement: str, *arguments: Any) -> list[str]:
    ((text,),) = await connection.fetch(f"EXPLAIN (FORMAT JSON) {statement}", *arguments)
    return scans_of_tables(json.loads(text)[0]["Plan"])


@pytest.mark.parametrize("mode", ["plain", "pgbouncer"])
async def test_hot_statements_go_by_index(mode: str, postgres_url: str) -> None:
    """No statement of a command, and no read, looks through a table of ten thousand records, whoever plans it."""
    async with opened(postgres_url), session(postgres_url) as admin:
        await admin.execute(FILL)
        await admin.execute(FILL_TOMBSTONES)
        await admin.fetch(FILL_PENDING, 10_000)
        await admin.execute(FILL_ANSWERS)
    url = f"{postgres_url}?pgbouncer=true" if mode == "pgbouncer" else postgres_url
    link = Dialer(url).link()
    try:
        for name, arguments in OF_COMMANDS.items():
            scans = await link.run(lambda c, n=name, a=arguments: plan_of(c, load(n), *a))
            assert any(re.search("operation|tombstone|response|delivery|request", scan) for scan in scans), name
            # Witnesses are few and requests short: a planner who finds that may read them all.
            few = ["Seq Scan: witness", "Seq Scan: request", "Seq Scan: kind"] if mode == "pgbouncer" else []
            # Of the narrow tables, it may collect the places of what it drops or marks first.
            is_marking = name in ("drop_kept", "give_turns")
            few += ["Bitmap Heap Scan: delivery", "Bitmap Heap Scan: request"] if is_marking else []
            few += ["Bitmap Heap Scan: tombstone"] if name == "delete" else []
            assert [scan for scan in scans if not scan.startswith("Index") and scan not in few] == [], name
        scans = await link.run(lambda c: plan_of(c, load("read"), None, [uuid4() for _ in range(32)]))
        few = ["Seq Scan: kind"] if mode == "pgbouncer" else []
        assert {scan.partition(":")[0] for scan in scans if scan not in few} == {"Index Scan"}
        for name, arguments in OTHERS.items():
            scans = await link.run(lambda c, n=name, a=arguments: plan_of(c, load(n), *a))
            assert scans, name
            # What has one row may be read as it is; and what a sweep tidies or a count is to read most of, by a planner
            # who finds that.
            tidied = ("audit", "recovery", "witness")
            reads = {"is_due": tidied, "tidy": tidied, "count_backlog": ("delivery",)}
            short = reads.get(name, ()) if mode == "pgbouncer" else ()
            small = (": upkeep", ": token", ": pause", ": kind", *short)
            assert [scan for scan in scans if scan.startswith("Seq Scan") and not scan.endswith(small)] == [], name
            assert [scan for scan in scans if scan.startswith("Bitmap Heap Scan: operation")] == [], name
    finally:
        await link.close()


async def test_a_completion_touches_no_index(postgres_url: str, tmp_path: Path) -> None:
    """From claim to complete and to a renewal's end, whatever ends well is updated on its page: heap-only.

    So are the witnesses, once in each statement.
    """
    files = WitnessFiles(tmp_path)
    files.open()
    async with opened(postgres_url, witness_files=files) as store:
        # The first completion of an operation name teaches the window.
        await do(store, Hand(), Hand.claim, Hand.complete)
        for _ in range(10):
            await asyncio.gather(*(do(store, Hand(), Hand.claim, Hand.complete) for _ in range(BATCH)))
    files.close()
    async with session(postgres_url) as admin:

        async def counted() -> Any:
            rows = await admin.fetch(
                "SELECT relname, n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables"
                " WHERE relname IN ('operation', 'witness') ORDER BY relname"
            )
            return rows if rows[0]["n_tup_upd"] >= 10 * BATCH and rows[1]["n_tup_upd"] >= 20 else None

        # A session's counters are published when it ends, a moment after its client has gone.
        for stored in await eventually(counted, 20):
            assert stored["n_tup_hot_upd"] >= 0.98 * stored["n_tup_upd"], stored["relname"]


@pytest.mark.parametrize("recoverable", [False, True], ids=["all", "recoverable"])
async def test_what_is_in_doubt_is_found_among_what_is_in_doubt(recoverable: bool, postgres_url: str) -> None:
    """However many records there are, a look at what is in doubt reads those alone."""
    async with opened(postgres_url) as store, session(postgres_url) as admin:
        hands = [Hand() for _ in range(5)]
        await asyncio.gather(*(do(store, hand, Hand.claim, Hand.abandon) for hand in hands))
        await admin.execute(FILL)
        await admin.execute(FILL_ANSWERS)
        arguments = (None, _ANY, 1000, 0, None, recoverable, 100)
        ((text,),) = await admin.fetch(f"EXPLAIN (ANALYZE, FORMAT JSON) {load('find_in_doubt')}", *arguments)
        assert rows_read(json.loads(text)[0]["Plan"], "operation") == len(hands)


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


FILL_EVENTS: Final = """
INSERT INTO idempotency_gateway.event (at_us, since_us, due_us, service, sink, event_id, type, content)
SELECT n, n, n, 'shop', 'ledger', 'evt_' || n, 'operation.completed', '{}' FROM generate_series(1, $1::integer) AS n
"""


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


async def test_what_waits_makes_nothing_dearer(postgres_url: str) -> None:
    """With twenty thousand pending requests, ten thousand of them in one lane, claims, dispatches and the
    search for what is due read no more rows; nor do acceptances in that lane or another one."""
    async with opened(postgres_url), session(postgres_url) as admin:
        await admin.fetch(FILL_PENDING, 20)
    async with session(postgres_url) as admin:
        with_few = await rows_read_by_delivery(postgres_url, admin)
        await admin.fetch(FILL_PENDING, 20_000)
        await admin.execute("ANALYZE")
        with_many = await rows_read_by_delivery(postgres_url, admin)
    assert 0 < with_many <= with_few + 50, with_few


async def test_what_nobody_delivers_is_not_read(postgres_url: str) -> None:
    """However much waits of routes that are gone, a search for what is due passes over all of it at once."""
    async with opened(postgres_url), session(postgres_url) as admin:
        await admin.fetch(FILL_PENDING, 20_000)
        await admin.execute("ANALYZE")
        arguments = (None, SERVICE, 10, ["new"], ["many"], ["few"], ["r", "new"])
        ((text,),) = await admin.fetch(f"EXPLAIN (ANALYZE, FORMAT JSON) {load('find_due')}", *arguments)
        assert rows_read(json.loads(text)[0]["Plan"], "delivery") <= 2


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


async def test_events_that_wait_make_no_publication_dearer(postgres_url: str) -> None:
    """With twenty thousand of them a relay reads hardly more rows, though it began while there were none."""
    async with opened(postgres_url):
        pass
    async with session(postgres_url) as admin:
        with_few, with_many = [await rows_read_by_relay(postgres_url, admin, number) for number in (20, 2_000)]
    # The sinks are counted once.
    assert with_few < with_many <= with_few + 2_000 + 50, with_few


async def test_a_large_backlog_is_estimated(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond what may be counted, a sample of the table gives the numbers, for a few seconds."""
    monkeypatch.setattr(delivery, "BACKLOG_COUNT_MAX", 1_000)
    monkeypatch.setattr(delivery, "_SAMPLED_PAGES", 100)
    async with opened(postgres_url) as store, session(postgres_url) as admin:
        await admin.fetch(FILL_PENDING, 20_000)
        (waiting,) = (await store.backlog(SERVICE)).waiting.values()
        assert 10_000 < waiting.accepted < 40_000
        assert waiting.request_bytes == pytest.approx(6 * waiting.accepted, rel=0.01)
        assert waiting.oldest_seconds > 1e9
        await do(store, Hand(), Hand.accept)
        kept = await store.backlog(SERVICE)
        assert kept.waiting == {"r": waiting}
        assert kept.age_seconds > 0
        arguments = (None, SERVICE, delivery.BACKLOG_COUNT_MAX)
        ((text,),) = await admin.fetch(f"EXPLAIN (ANALYZE, FORMAT JSON) {load('count_backlog')}", *arguments)
        assert rows_read(json.loads(text)[0]["Plan"], "delivery") <= 1_000


async def test_a_long_pause_ends_in_pieces(postgres_url: str) -> None:
    """Each request gets what it waited, once, however many there are, also if the end has to be repeated."""
    ends = "SELECT DISTINCT deliver_until_us FROM idempotency_gateway.delivery WHERE operation = 'many'"
    kept = "SELECT DISTINCT due_us FROM idempotency_gateway.operation WHERE operation = 'many'"
    end_us = 9 * 10**15
    clock = ManualClock()
    async with opened(postgres_url, clock_us=clock) as store, session(postgres_url) as admin:
        await admin.fetch(FILL_PENDING, 2_500)
        await store.pause(SERVICE, "many", Audit("who", "why"))
        clock.advance(100)
        locked = await admin.fetchval(
            "SELECT max(operation_id::text) FROM idempotency_gateway.delivery WHERE operation = 'many'"
        )
        async with admin.transaction():
            await admin.fetch(
                "SELECT FROM idempotency_gateway.operation WHERE operation_id = $1 FOR UPDATE", UUID(locked)
            )
            with pytest.raises(NotApplied):
                await store.resume(SERVICE, "many", Audit("ann", "it is back"))
        assert (await store.backlog(SERVICE)).paused.keys() == {"many"}
        clock.advance(20)
        assert await store.resume(SERVICE, "many", Audit("ann", "it is back")) is True
        assert [row[0] for row in await admin.fetch(ends)] == [end_us + 120_000_000]
        assert [row[0] for row in await admin.fetch(kept)] == [end_us + 120_000_000]
        assert (
            await admin.fetchval(
                "SELECT max(deliver_until_us) FROM idempotency_gateway.delivery WHERE operation = 'few'"
            )
            == end_us
        )


async def test_many_at_once_take_few_statements(postgres_url: str) -> None:
    """What arrives together goes together: a round trip serves many operations."""
    async with opened(postgres_url) as store, session(postgres_url) as admin:
        await do(store, Hand(), Hand.claim, Hand.complete)
        committed = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
        before = await admin.fetchval(committed)
        await asyncio.gather(*(do(store, Hand(), Hand.claim, Hand.complete) for _ in range(400)))
    async with session(postgres_url) as admin:
        assert await admin.fetchval(committed) - before <= 2 * 400 / 8


async def partitions(url: str) -> list[str]:
    async with session(url) as connection:
        rows = await connection.fetch(
            "SELECT relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE nspname = 'idempotency_gateway' AND relkind = 'r' AND relname ~ '^response_' ORDER BY 1"
        )
    return [row["relname"] for row in rows]


async def complete_for(store: PostgresStore, days: float) -> Hand:
    hand, window_us = Hand(), microseconds(days * DAY_SECONDS)
    await do(store, hand, Hand.claim, lambda hand: replace(hand.complete(), replay_us=window_us, remember_us=window_us))
    return hand


async def test_answers_leave_with_their_partition(postgres_url: str) -> None:
    """When all answers of a day are over, their table goes, and no other."""
    clock = ManualClock()
    async with opened(postgres_url, clock_us=clock) as store:
        hand, keeper = Hand(), Hand()
        await do(store, hand, Hand.claim, Hand.complete)
        await do(store, keeper, Hand.claim, lambda hand: replace(hand.complete(), replay_us=10**12, remember_us=10**12))
        of_keeper = f"response_{(EPOCH_US + 10**12) // 86_400_000_000 // 7 * 7 + 7}"
        assert {OF_TODAY, of_keeper} <= set(await partitions(postgres_url))
        clock.advance(2 * DAY_SECONDS)
        store._started().upkeep._next_drop_at = 0.0
        await store.sweep(100)
        left = await partitions(postgres_url)
        assert OF_TODAY not in left
        assert of_keeper in left
        assert await state(store, keeper) is State.COMPLETED
        assert keeper.record is not None
        assert keeper.record.response == ANSWER


async def test_windows_of_every_length_need_few_partitions(postgres_url: str) -> None:
    """A thousand windows, from seconds to a century, share a few dozen tables, and every answer outlives its window."""
    async with opened(postgres_url, clock_us=ManualClock()) as store:
        days = [0.0001 * 1.0167**n for n in range(1000)]
        hands = await asyncio.gather(*(complete_for(store, each) for each in days))
        assert days[-1] > 1500
        assert len(await partitions(postgres_url)) < 60
        assert all(hand.record is not None and hand.record.response == ANSWER for hand in hands)
        async with session(postgres_url) as connection:
            assert await connection.fetchval(
                "SELECT bool_and(drop_day * 86400000000 > replay_until_us) FROM idempotency_gateway.operation"
            )


async def test_an_answer_that_is_gone_is_a_tombstone(postgres_url: str) -> None:
    """A completed record whose answer has left is never replayed as an empty one."""
    hand = Hand()
    async with opened(postgres_url) as store, session(postgres_url) as connection:
        await do(store, hand, Hand.claim, Hand.complete)
        await connection.execute("DELETE FROM idempotency_gateway.response")
        assert await state(store, hand) is State.TOMBSTONE
        assert hand.record is not None
        assert hand.record.response is not None
        assert hand.record.response.status == 201
        assert hand.record.resource == RESOURCE


async def test_traffic_does_not_wait_for_a_partition_that_leaves(postgres_url: str) -> None:
    """While somebody's long query keeps a past day from being dropped, completions and reads go on."""
    clock = ManualClock()
    async with (
        opened(postgres_url, clock_us=clock, command_seconds=1.0) as store,
        session(postgres_url) as reader,
    ):
        old, hand = Hand(), Hand()
        await do(store, old, Hand.claim, Hand.complete)
        clock.advance(3 * DAY_SECONDS)
        await do(store, Hand(), Hand.claim, Hand.complete)
        async with reader.transaction():
            await reader.fetch("SELECT count(*) FROM idempotency_gateway.response")
            sweeping = asyncio.create_task(store.sweep(100))
            while not sweeping.done():
                await do(store, hand := Hand(), Hand.claim, Hand.complete)
                assert await state(store, hand) is State.COMPLETED
            await sweeping
        assert OF_TODAY in await partitions(postgres_url)
        store._started().upkeep._next_drop_at = 0.0
        await store.sweep(100)
        assert OF_TODAY not in await partitions(postgres_url)


async def test_a_sweep_goes_on_beside_locked_records(postgres_url: str) -> None:
    """A record that a command holds is left for the next pass: the sweep waits for nobody."""
    clock = ManualClock()
    async with opened(postgres_url, clock_us=clock) as store, session(postgres_url) as holder:
        hands = [Hand() for _ in range(10)]
        await asyncio.gather(*(do(store, hand, Hand.claim, Hand.complete) for hand in hands))
        lapsing = [Hand() for _ in range(5)]
        await asyncio.gather(*(do(store, hand, Hand.claim) for hand in lapsing))
        clock.advance(2 * REMEMBER_US / 1_000_000)
        async with holder.transaction():
            await holder.fetch(
                "SELECT FROM idempotency_gateway.operation WHERE operation_id = ANY($1) FOR UPDATE",
                [hands[0].operation_id, lapsing[0].operation_id],
            )
            assert await store.sweep(100) == Swept(lapsed=4, collected=9)
        assert await store.sweep(100) == Swept(lapsed=1, collected=1)


async def test_a_witness_outlives_two_sweeps_at_once(postgres_url: str, tmp_path: Path) -> None:
    """One that was raised since the last check is kept by both: the one that is second sees what the first has done."""
    clock, files = ManualClock(), WitnessFiles(tmp_path / "witness")
    files.open()
    try:
        async with (
            opened(postgres_url, clock_us=clock, witness_files=files) as store,
            opened(postgres_url, clock_us=clock) as other,
            session(postgres_url) as holder,
        ):
            await do(store, Hand(), Hand.claim)
            (note,) = files.read().notes
            clock.advance(WITNESS_KEEP_US / 1_000_000 + 1)
            async with holder.transaction():
                await holder.execute("SELECT FROM idempotency_gateway.witness FOR UPDATE")
                sweeps = [asyncio.create_task(each.sweep(100)) for each in (store, other)]
                await eventually(lambda: are_waiting(postgres_url, len(sweeps)), what="both sweeps wait")
            await asyncio.gather(*sweeps)
            assert note.link in (await store.check_memory([note.link])).witnesses
    finally:
        files.close()


async def are_waiting(url: str, count: int) -> bool:
    async with session(url) as connection:
        waiting = "wait_event_type = 'Lock' AND datname = current_database()"
        return bool(await connection.fetchval(f"SELECT count(*) FROM pg_stat_activity WHERE {waiting}") == count)


async def test_the_walk_for_lapsed_claims_moves_on(postgres_url: str) -> None:
    """What ended well is walked past once; a slow claim that is renewed is found when it lapses all the same."""
    clock = ManualClock()
    passed = "SELECT passed_token FROM idempotency_gateway.upkeep"
    async with opened(postgres_url, clock_us=clock) as store, session(postgres_url) as admin:
        slow = Hand()
        await do(store, slow, Hand.claim, Hand.renew)
        done = [Hand() for _ in range(20)]
        await asyncio.gather(*(do(store, hand, Hand.claim, Hand.complete) for hand in done))
        open_ = Hand()
        await do(store, open_, Hand.claim)
        assert await store.sweep(100) == Swept()
        assert await admin.fetchval(passed) == 0
        let_statements_end(store)
        clock.advance(30)
        assert await store.sweep(100) == Swept()
        assert await admin.fetchval(passed) == max(hand.token for hand in done)
        clock.advance(31)
        assert await store.sweep(100) == Swept(lapsed=1)
        assert await admin.fetchval(passed) == open_.token
        clock.advance(60)
        assert (await store.tally()).in_doubt == {"create_payment": 2}
        assert await store.sweep(100) == Swept(lapsed=1)
        assert await state(store, slow) is State.IN_DOUBT


async def test_a_long_key_costs_no_correctness(postgres_url: str) -> None:
    """A record that does not fit half a page is kept like any other."""
    hand = Hand()
    hand.script.identity = Identity(uuid4(), "r", "o", b"s" * 9_000, b"k" * 9_000, "k" * 9_000)
    async with opened(postgres_url) as store:
        result = await store.apply(replace(hand.claim(), fingerprint=replace(SAME, raw=b"w" * 9_000)))
        assert isinstance(result, Applied)
        hand.see(hand.claim(), result)
        await do(store, hand, Hand.complete)
        assert await state(store, hand) is State.COMPLETED


def test_the_statements_name_their_rows() -> None:
    """Every statement begins with what it is in the table, or says what else it is."""
    for name, statement in statement_texts().items():
        assert statement.startswith("-- "), name
    for name in ("claim", "complete", "select_lapsed", "select_due"):
        assert re.search(r"--[a-z]+--> ", statement_texts()[name].splitlines()[0]), name
