"""What a Postgres must be before operations are entrusted to it, and what happens when it is not, or not there."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from gateway.core.confidential import EncryptionKey, KeyRing, Sealing
from gateway.core.operation import Applied, Audit, Content, Fenced, State, microseconds
from gateway.core.outbox import Outbox, Part, Subscription
from gateway.store.base import EpochChanged, NotApplied, StartRefused
from gateway.store.operations import EventFate, EventReport, Query
from gateway.store.postgres.schema import capabilities
from gateway.store.postgres.statements import MIGRATE_LOCK, statement_texts
from gateway.store.postgres.store import PostgresStore, is_migrated, migrate
from gateway.store.sealed import Place, rekey
from tests.conformance.hand import LEASE_SECONDS, REPLAY_US, SERVICE, Hand, all_of, do, started, state
from tests.store.postgres_pooler import Pooler
from tests.store.postgres_sessions import opened, roles, session, url_as
from tests.support.eventually import eventually
from tests.support.house import house, status_of
from tests.support.memory_store import ManualClock
from tests.support.postgres import PostgresServer
from tests.support.relay import Fault, Relay, Rule
from tests.support.serving import GATEWAY, serving

OUTBOX = Outbox(SERVICE, "urn:shop", (Subscription("sink", include=frozenset(Part)),))


async def use(store: PostgresStore, other: PostgresStore) -> None:
    """Say all that there is to say, in turn through two gateways."""
    await do(store, Hand(), Hand.claim, Hand.renew, Hand.complete, Hand.purge, Hand.erase)
    await do(other, Hand(), Hand.claim, Hand.release, Hand.retry, Hand.complete)
    await do(store, Hand(), Hand.claim, Hand.abandon, Hand.takeover, Hand.complete)
    await do(other, Hand(), Hand.claim, Hand.abandon, Hand.disprove, Hand.retry, Hand.forget)
    await do(store, Hand(), Hand.accept, Hand.dispatch, Hand.complete)
    await do(store, Hand(), Hand.claim, Hand.release, Hand.accept_again, Hand.dispatch, Hand.renew, Hand.complete_grant)
    await do(store, Hand(), Hand.accept, Hand.dispatch, Hand.abandon, Hand.reinstate, Hand.withdraw, Hand.accept_again)
    await do(store, dead := Hand(), Hand.accept, Hand.dispatch, Hand.bury)
    assert len(await other.find(Query(frozenset((State.DEAD_LETTER,)), reason="unauthorized"))) == 1
    assert (await other.backlog(SERVICE)).waiting["create_payment"].dead_letters == {"unauthorized": 1}
    await do(other, dead, Hand.requeue)
    assert await store.read_kept(dead.operation_id) is not None
    assert await store.count_pending(SERVICE, "create_payment", dead.script.identity.scope_digest, 10) == 1
    assert len((await store.find_due(SERVICE, all_of("charges"), 10)).found) == 2
    assert await store.pause(SERVICE, "charges", Audit("somebody", "for a reason")) is True
    assert (await other.find_due(SERVICE, all_of("charges"), 10)).found == []
    assert await other.resume(SERVICE, "charges", Audit("ann", "it is back")) is True
    assert [each.is_resumed for each in await store.pause_audits(SERVICE)] == [False, True]
    await do(store, dead, Hand.dispatch, lambda hand: replace(hand.postpone(), pause_us=0), Hand.withdraw)
    content = Content(b"c" * 32, microseconds(600))
    await do(store, first := Hand(), lambda hand: replace(hand.claim(), content=content))
    assert (await other.apply(replace(Hand().claim(), content=content))).snapshot.record is None
    await do(store, first, Hand.complete)
    hands = [Hand(), Hand()]
    for hand in hands:
        await do(store, hand, lambda hand: replace(hand.accept(), lane=b"l" * 32))
    for hand in hands:
        await do(other, hand, Hand.dispatch, Hand.complete)
    await do(store, doubted := Hand(), Hand.claim, Hand.abandon)
    lease = await store.recover(doubted.operation_id, doubted.token, 60_000_000, is_urgent=False)
    assert await other.recover(doubted.operation_id, doubted.token, 60_000_000, is_urgent=True) is None
    assert await other.recovery(doubted.operation_id) is not None
    for states in (frozenset((State.IN_DOUBT,)), frozenset((State.IN_DOUBT, State.CLAIMED))):
        assert await other.find(Query(states, frozenset(("create_payment",)), recoverable=True)) == []
        assert len(await other.find(Query(states, frozenset(("create_payment",))))) == 1
    await store.put_off(lease, 0, "asked")
    await do(store, doubted, Hand.prove)
    assert len(await other.audits(doubted.operation_id)) == 1
    assert await store.suspend_sink(SERVICE, "sink", "it is down") is True
    assert (await other.sinks(SERVICE))["sink"].suspended_why == "it is down"
    assert await store.resume_sink(SERVICE, "sink") is True
    (leased,) = await store.lease_events(SERVICE, {"sink": 1}, 1_000_000)
    await store.report_events(SERVICE, [EventReport("sink", leased.event.id, leased.tries, 0, EventFate.DEAD, "no")])
    assert await other.redeliver_event(SERVICE, leased.event.id, None) == 1
    await store.note_running(GATEWAY, is_running=True)
    assert await store.take_turns(GATEWAY, ["sweep"], 15_000_000)
    await store.leave_turns(GATEWAY)


async def reseal(store: PostgresStore) -> None:
    sealing = Sealing(KeyRing([EncryptionKey("k", bytes(32))], os.urandom))
    for place in Place:
        await rekey(store, place, sealing)
    assert (await store.tally()).sealed["k"] > 0


async def test_a_wrong_user_database_or_option_is_refused_in_words(postgres_url: str) -> None:
    """What waiting cannot heal is a refusal that names the culprit and no password."""
    parts = urlsplit(postgres_url)
    for changed, culprit in (
        ({"netloc": f"nobody:s3cret@{parts.hostname}:{parts.port}"}, "nobody"),
        ({"path": "/nowhere"}, "nowhere"),
        ({"query": "pool=3"}, "unrecognized configuration parameter .pool"),
    ):
        with pytest.raises(StartRefused, match=culprit) as told:
            await PostgresStore(parts._replace(**changed).geturl()).start()
        assert "s3cret" not in str(told.value)


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes", "synchronous_commit"])
async def test_a_server_that_forgets_is_refused(setting: str, own_postgres: PostgresServer) -> None:
    """The text says what to set, and where the storage may keep what is acknowledged, what to write then."""
    url, is_of_storage = own_postgres.url, setting != "synchronous_commit"
    async with session(url) as connection:
        await connection.execute(f"ALTER SYSTEM SET {setting} = off")
    own_postgres.restart()
    instead = r" .* only where .* store\.durability: external" if is_of_storage else ""
    with pytest.raises(StartRefused, match=f"{setting} = off:{instead}"):
        await PostgresStore(url).start()
    if not is_of_storage:
        # A commit that is acknowledged before it is written is lost, whatever is below the server.
        with pytest.raises(StartRefused, match="synchronous_commit = off"):
            await PostgresStore(url, durability="external").start()
        return
    (shown,) = [each for each in await capabilities(url) if each.name == setting]
    assert "write store.durability: external" in str(shown)
    (shown,) = [each for each in await capabilities(url, "external") if each.name == setting]
    assert str(shown) == f"{setting}: off, not looked at, because of store.durability: external"
    assert await migrate(url, "external")
    assert await is_migrated(url, "external")
    async with started(PostgresStore(url, durability="external")) as store:
        await do(store, Hand(), Hand.claim, Hand.complete)


@asynccontextmanager
async def migrated_for_another(url: str) -> AsyncIterator[tuple[Any, str, str]]:
    """A session of the superuser, the owner of a migrated schema, and a role that was granted what that grants."""
    async with roles(url) as (admin, owner, runner):
        await admin.execute(f"CREATE SCHEMA idempotency_gateway AUTHORIZATION {owner}")
        assert await migrate(url_as(owner, url), grant_to=runner)
        yield admin, owner, runner


async def test_a_role_that_owns_nothing_can_run(postgres_url: str) -> None:
    """With the rights that a migration grants it does all that a store does, and makes and drops days by no other."""
    clock = ManualClock()
    async with migrated_for_another(postgres_url) as (_, _, runner):
        url = url_as(runner, postgres_url)
        async with opened(url, clock_us=clock, outbox=OUTBOX) as store, session(url) as beside:
            await store.compare_configuration(replace(serving(), replay_us=REPLAY_US))
            days = set(await beside.fetchval(PARTITIONS))
            assert len(days) == 3
            await use(store, store)
            await reseal(store)
            await store.begin_epoch(b"", (await store.check_memory()).token + 1_000_000)
            clock.advance(2 * 86_400)
            assert (await store.sweep(100)).collected > 0
            days_later = set(await beside.fetchval(PARTITIONS))
            assert (len(days - days_later), len(days_later - days)) == (1, 2)
            await store.note_running(GATEWAY, is_running=False)
            for forbidden in (
                "CREATE TABLE idempotency_gateway.mine ()",
                "DROP TABLE idempotency_gateway.response",
                "ALTER TABLE idempotency_gateway.operation ADD COLUMN mine integer",
                "DELETE FROM idempotency_gateway.migration",
            ):
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await beside.execute(forbidden)


PARTITIONS = """
SELECT array_agg(inhrelid::regclass::text) FROM pg_inherits WHERE inhparent = 'idempotency_gateway.response'::regclass
"""


async def test_a_role_without_rights_is_told_how_to_get_them(postgres_url: str) -> None:
    """Without a schema, or without a right in it, the text says what to run; afterwards the role starts."""
    async with roles(postgres_url) as (admin, owner, runner):
        url = url_as(runner, postgres_url)
        for ask in (PostgresStore(url).start, partial(is_migrated, url)):
            with pytest.raises(StartRefused, match="run `idempotency-gateway migrate --grant ROLE` as the role that"):
                await ask()
        await admin.execute(f"CREATE SCHEMA idempotency_gateway AUTHORIZATION {owner}")
        await migrate(url_as(owner, postgres_url))
        for ask in (PostgresStore(url).start, partial(is_migrated, url)):
            with pytest.raises(StartRefused, match=r"permission denied .*: run `idempotency-gateway migrate --grant"):
                await ask()
        assert await migrate(url_as(owner, postgres_url), grant_to=runner) == []
        async with opened(url) as store:
            await do(store, Hand(), Hand.claim, Hand.complete)


@pytest.mark.parametrize(
    ("lost", "named"),
    [
        pytest.param("DELETE ON idempotency_gateway.recovery", "DELETE on recovery", id="table"),
        pytest.param("INSERT ON idempotency_gateway.request", "INSERT on request", id="requests"),
        pytest.param("UPDATE ON SEQUENCE idempotency_gateway.token", "UPDATE on token", id="tokens"),
        pytest.param("EXECUTE ON FUNCTION idempotency_gateway.add_partition", "EXECUTE on add_partition", id="days"),
    ],
)
async def test_a_right_that_was_taken_is_missed_at_the_start(lost: str, named: str, postgres_url: str) -> None:
    """A role that could claim and record no response does not start, and the text names what it lacks."""
    async with migrated_for_another(postgres_url) as (admin, owner, runner):
        await admin.execute(f"REVOKE {lost} FROM {runner}")
        advised = f"migrate --grant {runner}` as the role {owner}"
        with pytest.raises(StartRefused, match=rf"{runner} lacks rights .* \({named}\): run .*{advised}"):
            await PostgresStore(url_as(runner, postgres_url)).start()


async def test_a_migration_lets_others_pass(postgres_url: str) -> None:
    """What it needs and somebody holds it tries to get again and again, and between two tries nobody waits for it."""
    waiting = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        " AND application_name = 'idempotency-gateway'"
    )
    async with session(postgres_url) as holder, session(postgres_url) as observer:
        async with holder.transaction():
            await holder.execute(f"SELECT pg_advisory_xact_lock({MIGRATE_LOCK})")
            migrating = asyncio.create_task(migrate(postgres_url))
            await eventually(lambda: observer.fetchval(f"SELECT ({waiting}) = 1"))
            await eventually(lambda: observer.fetchval(f"SELECT ({waiting}) = 0"))
            await eventually(lambda: observer.fetchval(f"SELECT ({waiting}) = 1"))
            assert not migrating.done()
        assert await migrating == ["0001_operations"]


async def test_columns_of_a_newer_schema_disturb_nobody(postgres_url: str) -> None:
    """Whatever a column of the next version is called, the statements of this program mean what they meant."""
    async with opened(postgres_url, clock_us=(clock := ManualClock())) as store, session(postgres_url) as admin:
        await do(store, Hand(), Hand.claim, Hand.complete)
        words = {word for text in statement_texts().values() for word in re.findall(r"[a-z][a-z_]+", text)}
        tables = await admin.fetch(
            "SELECT relname, array(SELECT attname::text FROM pg_attribute WHERE attrelid = c.oid) AS columns"
            " FROM pg_class c WHERE relnamespace = 'idempotency_gateway'::regnamespace AND relkind IN ('r', 'p')"
            # A partition, and a table that inherits from another one, has what that one has.
            " AND NOT EXISTS (SELECT FROM pg_inherits WHERE inhrelid = c.oid)"
        )
        for table in tables:
            added = ", ".join(f'ADD COLUMN "{word}" integer' for word in sorted(words - set(table["columns"])))
            await admin.execute(f"ALTER TABLE idempotency_gateway.{table['relname']} {added}")
    async with opened(postgres_url, clock_us=clock, outbox=OUTBOX) as store:
        await store.compare_configuration(serving(recipes={"charges": b"one"}))
        await use(store, store)
        assert (await store.count_without_route(SERVICE, ()))["charges"] > 10
        await do(store, Hand(), Hand.claim)
        await store.begin_epoch(b"", 1)
        clock.advance(LEASE_SECONDS + 1)
        assert (await store.tally()).in_doubt == {"create_payment": 1}
        assert (await store.sweep(100)).lapsed == 1
        clock.advance(200 * 86_400)
        assert (await store.sweep(100)).collected > 0


async def test_another_schema_of_the_same_number_is_refused(postgres_url: str) -> None:
    """A schema that another build has made is refused at the start with what to do, not at the first claim."""
    url = postgres_url
    await migrate(url)
    async with session(url) as connection:
        for change in ("UPDATE {} SET checksum = 'another'", "ALTER TABLE {} DROP COLUMN checksum"):
            await connection.execute(change.format("idempotency_gateway.migration"))
            for ask in (PostgresStore(url).start, partial(migrate, url), partial(is_migrated, url)):
                with pytest.raises(StartRefused, match="is not this program's: its migration 1 differs"):
                    await ask()


async def test_a_pooler_that_goes_over_to_another_memory(own_postgres: PostgresServer) -> None:
    """No connection is lost by that, no claim is granted, and what was claimed before is not said to be absent."""
    hand = Hand()
    async with (
        Pooler(own_postgres.port, "gateway", "postgres") as pooler,
        session(own_postgres.url) as beside,
        opened(f"postgresql://gateway@127.0.0.1:{pooler.port}/postgres?pgbouncer=true") as store,
    ):
        await do(store, hand, Hand.claim)
        assert await state(store, hand) is State.CLAIMED
        await beside.execute("UPDATE idempotency_gateway.epoch SET identity = gen_random_uuid()")
        with pytest.raises(EpochChanged):
            await store.apply(Hand().claim())
        assert await beside.fetchval("SELECT count(*) FROM idempotency_gateway.operation") == 1
        await beside.execute("DELETE FROM idempotency_gateway.operation")
        with pytest.raises(EpochChanged):
            await store.read(hand.operation_id)


@pytest.mark.parametrize("query", ["?pgbouncer=true", ""], ids=["told", "noticed"])
async def test_a_pooler_in_transaction_mode_is_no_obstacle(query: str, own_postgres: PostgresServer) -> None:
    """Every verb works where each transaction has another session, whether the URL says so or not."""
    async with Pooler(own_postgres.port, "gateway", "postgres") as pooler:
        url = f"postgresql://gateway@127.0.0.1:{pooler.port}/postgres{query}"
        async with opened(url, outbox=OUTBOX) as store, opened(url, outbox=OUTBOX) as other:
            hands = [Hand() for _ in range(20)]
            await asyncio.gather(*(do(store, hand, Hand.claim, Hand.renew, Hand.complete) for hand in hands))
            assert [await state(other, hand) for hand in hands] == [State.COMPLETED] * 20
            await use(store, other)
            await store.sweep(100)
            await store.compare_configuration(serving([("POST /charges", "charges")]))
            renamed = serving([("POST /charges", "create_charge")])
            assert len((await store.compare_configuration(renamed)).conflicts) == 1
            await store.note_running(renamed.gateway_id, is_running=True)
            await store.note_running(renamed.gateway_id, is_running=False)
            async with store.watch(hands[0].operation_id) as watch:
                assert await watch.wait_changed(0.01) is False
        assert pooler.transactions > 20
        # Nothing was left behind in a session that is the next client's.
        async with session(f"postgresql://gateway@127.0.0.1:{pooler.port}/postgres") as neighbour:
            for setting, plain in (
                ("jit", "on"), ("enable_seqscan", "on"), ("statement_timeout", "0"), ("synchronous_commit", "on"),
            ):  # fmt: skip
                assert {await neighbour.fetchval(f"SHOW {setting}") for _ in range(6)} == {plain}


async def test_a_content_is_claimed_once_by_gateways_at_once(postgres_url: str) -> None:
    """Each key is new, and neither gateway has seen what the other one writes."""
    async with opened(postgres_url) as store, opened(postgres_url) as other:
        for number in range(20):
            content = Content(b"content %d" % number, 600_000_000)
            claims = [replace(Hand().claim(), content=content) for _ in range(4)]
            told = await asyncio.gather(*((store, other)[n % 2].apply(each) for n, each in enumerate(claims)))
            pairs = zip(claims, told, strict=True)
            granted = [claim.identity.operation_id for claim, result in pairs if isinstance(result, Applied)]
            refused = [result for result in told if isinstance(result, Fenced)]
            assert [each.content_holder for each in refused] == granted * 3


async def _are_open(url: str, connections: int) -> bool:
    async with session(url) as connection:
        ours = "application_name = 'idempotency-gateway' AND datname = current_database()"
        found = int(await connection.fetchval(f"SELECT count(*) FROM pg_stat_activity WHERE {ours}"))
    assert found <= connections + 1
    return found == connections


@pytest.mark.parametrize("connections", [2, 3, 4])
async def test_a_store_has_few_connections(connections: int, postgres_url: str) -> None:
    """As many as it is given, however much it has to do, and one more while it does what is slow."""
    async with opened(postgres_url, connections=connections) as store:
        hands = [Hand() for _ in range(50)]
        await asyncio.gather(*(do(store, hand, Hand.claim, Hand.renew, Hand.complete) for hand in hands))
        store._started().slow.link._idle_seconds = 0.05
        await store.compare_configuration(serving(recipes={"route": b"recipe"}))
        await store.note_running(GATEWAY, is_running=True)
        await store.wait_listening()
        await eventually(lambda: _are_open(postgres_url, connections), what="the one of the comparison is closed")
        await asyncio.gather(store.sweep(100), store.tally(), store.find(Query(frozenset((State.COMPLETED,)))))
        await eventually(lambda: _are_open(postgres_url, connections), what="the one of what is slow is closed")
        await store.sweep(100)


@pytest.mark.parametrize("connections", [2, 3])
async def test_how_many_connections_a_gateway_has(connections: int, postgres_url: str, tmp_path: Path) -> None:
    """As many as are configured, and the one of what was slow at its start."""
    async with house({"durable": postgres_url, "connections": connections}, tmp_path) as running:
        assert status_of(await running.send()) == (200, "stored")
        await eventually(lambda: _are_open(postgres_url, connections + 1), what="all are open")


async def test_what_is_refused_is_named_with_what_follows(postgres_url: str) -> None:
    """As on a service that keeps functions of the server from its users; the others are still asked for."""
    async with roles(postgres_url) as (admin, _, runner):
        await admin.execute("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
        found = await capabilities(url_as(runner, postgres_url))
    refused = next(each for each in found if each.name == "pg_control_system()")
    assert [each for each in found if each.state == "refused"] == [refused]
    assert "a copy on another server" in str(refused)
    assert "permission denied" in str(refused)


async def test_a_server_that_falls_silent_is_not_waited_for(own_postgres: PostgresServer) -> None:
    """Whoever runs a check is told so, and not left without an answer."""
    async with Relay(own_postgres.port) as relay:
        relay.to_target.rule = Rule(b"pg_stat_replication", Fault.SWALLOW)
        with pytest.raises(NotApplied):
            async with asyncio.timeout(20):
                await capabilities(f"postgresql://gateway@127.0.0.1:{relay.port}/postgres", command_seconds=0.5)
