"""The portable store on PostgreSQL: what is known when a transaction fails, tokens that are times, and which dialect a
server gets. Whatever it shares with the others is in the conformance suite, where a tenth of its statements fails to
serialize."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from gateway.app.stores import bare_store, is_migrated, migrate_store
from gateway.config import Config, parse
from gateway.core.confidential import NO_SEALING
from gateway.core.operation import Applied, State
from gateway.store.base import EpochChanged, Indefinite, NotApplied, StartRefused
from gateway.store.memory.epoch import WitnessFiles
from gateway.store.postgres.executor import REPEATS_MAX
from gateway.store.postgres.store import PostgresStore
from tests.conformance.hand import REMEMBER_SECONDS, Hand, Speech, do, state
from tests.store.postgres_sessions import roles, session, url_as
from tests.support.house import config_text
from tests.support.memory_store import ManualClock

HOUR_SECONDS = 3_600


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[PostgresStore]:
    """A started store."""
    store = PostgresStore(url, dialect="portable", **options)
    await store.start()
    try:
        yield store
    finally:
        await store.close()


class Ambush:
    """Does something else once, when a statement that is waited for is about to be sent."""

    def __init__(self, query: str) -> None:
        self.query = query
        self.is_set = False
        self.met = 0

    async def connect(self, *arguments: Any, **options: Any) -> Any:
        return _Ambushed(await asyncpg.connect(*arguments, **options), self)

    async def meet(self, connection: Any, call: Callable[..., Awaitable[Any]], query: str, *arguments: Any) -> Any:
        raise NotImplementedError


class _Ambushed:
    def __init__(self, behind: Any, ambush: Ambush) -> None:
        self._behind = behind
        self._ambush = ambush

    def __getattr__(self, name: str) -> Any:
        return getattr(self._behind, name)

    async def execute(self, query: str, *arguments: Any) -> Any:
        return await self._unless_met(self._behind.execute, query, *arguments)

    async def executemany(self, query: str, arguments: Any) -> Any:
        return await self._unless_met(self._behind.executemany, query, arguments)

    async def fetch(self, query: str, *arguments: Any) -> Any:
        return await self._unless_met(self._behind.fetch, query, *arguments)

    async def _unless_met(self, call: Callable[..., Awaitable[Any]], query: str, *arguments: Any) -> Any:
        if self._ambush.is_set and self._ambush.query in query:
            self._ambush.met += 1
            return await self._ambush.meet(self._behind, call, query, *arguments)
        return await call(query, *arguments)


class LostAnswer(Ambush):
    """The statement takes effect, and the connection is gone before its answer."""

    async def meet(self, connection: Any, call: Callable[..., Awaitable[Any]], query: str, *arguments: Any) -> Any:
        self.is_set = False
        await call(query, *arguments)
        connection.terminate()
        raise ConnectionResetError


class Unserializable(Ambush):
    """Loses each time."""

    async def meet(self, connection: Any, call: Callable[..., Awaitable[Any]], query: str, *arguments: Any) -> Any:
        raise asyncpg.SerializationError("injected")


@pytest.mark.parametrize(
    ("statement", "speech"),
    [
        ("COMMIT", Hand.release),
        ("INTO idempotency_gateway.operation", Hand.claim),
        ("UPDATE idempotency_gateway.operation AS", Hand.complete_grant),
    ],
    ids=["commit", "claim", "completion"],
)
async def test_a_lost_answer_to_a_change_is_indefinite(statement: str, speech: Speech, postgres_url: str) -> None:
    """And the same command finds out."""
    ambush = LostAnswer(statement)
    async with opened(postgres_url, connect=ambush.connect) as store:
        # From the second one on, a claim is a transaction of its own.
        await do(store, Hand(), Hand.claim)
        hand = Hand()
        if speech is not Hand.claim:
            await do(store, hand, Hand.claim)
        command = speech(hand)
        ambush.is_set = True
        with pytest.raises((Indefinite, NotApplied)) as lost:
            await store.apply(command)
        assert lost.type is Indefinite
        assert ambush.met == 1
        result = await store.apply(command)
        assert isinstance(result, Applied)
        assert result.snapshot.record is not None
        assert result.snapshot.record.attempts == 1


async def test_a_connection_that_is_lost_before_the_commit_changed_nothing(postgres_url: str) -> None:
    """Which is definite."""
    ambush = LostAnswer("UPDATE idempotency_gateway.operation AS o SET")
    async with opened(postgres_url, connect=ambush.connect) as store:
        hand = Hand()
        await do(store, hand, Hand.claim)
        ambush.is_set = True
        with pytest.raises(NotApplied):
            await store.apply(hand.release())
        assert ambush.met == 1
        assert await state(store, hand) is State.CLAIMED


async def test_repeats_have_a_bound(postgres_url: str) -> None:
    """A transaction that loses each time is given up, and nothing was done."""
    ambush = Unserializable("COMMIT")
    async with opened(postgres_url, connect=ambush.connect) as store:
        hand = Hand()
        await do(store, hand, Hand.claim)
        ambush.is_set = True
        with pytest.raises(NotApplied, match="lost against others"):
            await store.apply(hand.release())
        assert ambush.met == REPEATS_MAX
        ambush.is_set = False
        await do(store, hand, Hand.release)


@pytest.mark.parametrize("end", ["erased", "collected"])
async def test_a_token_is_not_drawn_again_after_the_clock_was_set_back(end: str, postgres_url: str) -> None:
    """Also where the record that had it is gone."""
    clock = ManualClock()
    async with opened(postgres_url, clock_us=clock) as store:
        hand = Hand()
        await do(store, hand, Hand.claim, Hand.release)
        token = hand.token
        if end == "erased":
            await do(store, hand, Hand.erase)
        else:
            clock.advance(REMEMBER_SECONDS + 1)
            assert (await store.sweep(10)).collected == 1
            clock.advance(-REMEMBER_SECONDS - 1)
    clock.advance(-HOUR_SECONDS)
    # A gateway that has not drawn it itself.
    async with opened(postgres_url, clock_us=clock) as store:
        again = Hand(hand.script)
        await do(store, again, Hand.claim)
        assert again.token > token


async def test_a_requests_order_does_not_depend_on_the_clock(postgres_url: str) -> None:
    """What is accepted into a lane is the last of it, by whichever gateway, and when its clock was set back as well."""
    clock = ManualClock()
    async with opened(postgres_url, clock_us=clock) as one, opened(postgres_url, clock_us=clock) as two:
        numbers = []
        for store in (one, two, one):
            hand = Hand()
            await do(store, hand, lambda hand: replace(hand.accept(), lane=b"lane"))
            assert hand.snapshot.record is not None
            assert hand.snapshot.record.delivery is not None
            numbers.append(hand.snapshot.record.delivery.lane_number)
            clock.advance(-HOUR_SECONDS)
        assert numbers == sorted(set(numbers))


async def test_another_memory_behind_the_same_address(postgres_url: str) -> None:
    """A connection that leads to other data than before grants nothing."""
    async with opened(postgres_url) as store, session(postgres_url) as admin:
        await do(store, Hand(), Hand.claim)
        await admin.execute("UPDATE idempotency_gateway.epoch SET identity = 'another'")
        await admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE pid <> pg_backend_pid() AND datname = current_database()"
        )

        async def grants() -> None:
            while True:
                try:
                    await store.apply(Hand().claim())
                except EpochChanged:
                    raise
                except (NotApplied, Indefinite):
                    await asyncio.sleep(0.01)

        with pytest.raises(EpochChanged):
            await asyncio.wait_for(grants(), 30)


async def test_a_claim_of_data_that_lacks_what_was_acknowledged(postgres_url: str, tmp_path: Path) -> None:
    """Is not granted, although its connection is the same as before."""
    files = WitnessFiles(tmp_path / "witness")
    files.open()
    try:
        async with opened(postgres_url, witness_files=files) as store, session(postgres_url) as admin:
            for _ in range(3):
                await do(store, Hand(), Hand.claim)
            await admin.execute("UPDATE idempotency_gateway.witness SET number = number - 1 WHERE number > 0")
            with pytest.raises((EpochChanged, Indefinite)) as refused:
                await store.apply(Hand().claim())
            assert refused.type is EpochChanged
            left = await admin.fetch("SELECT 1 FROM idempotency_gateway.operation")
            assert len(left) == 3
    finally:
        files.close()


async def test_each_dialect_refuses_the_tables_of_the_other(postgres_url: str) -> None:
    """It would find none of the keys."""
    async with opened(postgres_url):
        pass
    with pytest.raises(StartRefused, match="not this program's"):
        await PostgresStore(postgres_url).start()
    async with session(postgres_url) as admin:
        await admin.execute("DROP SCHEMA idempotency_gateway CASCADE")
    usual = PostgresStore(postgres_url)
    await usual.start()
    await usual.close()
    with pytest.raises(StartRefused, match="made by another program"):
        await PostgresStore(postgres_url, dialect="portable").start()


async def test_a_role_that_owns_nothing(postgres_url: str, tmp_path: Path) -> None:
    """`migrate --grant` gives it what the store needs."""
    async with roles(postgres_url) as (_, owner, other):
        config = config_on(postgres_url, tmp_path, dialect="portable")
        assert await migrate_store(config, other) == ["0001_portable"]
        async with opened(url_as(other, postgres_url)) as store:
            hand = Hand()
            await do(store, hand, Hand.claim, Hand.complete)
            await store.sweep(10)
        with pytest.raises(StartRefused, match="migrate --grant"):
            await PostgresStore(url_as(owner, postgres_url), dialect="portable").start()


def config_on(url: str, directory: Path, **store: Any) -> Config:
    return parse(config_text("http://127.0.0.1:9", {"durable": url, **store}, directory))


async def test_the_configured_dialect(postgres_url: str, tmp_path: Path) -> None:
    """Is used, whatever the server is."""
    config = config_on(postgres_url, tmp_path, dialect="portable")
    assert not await is_migrated(config)
    store = bare_store(config, NO_SEALING)
    assert isinstance(store, PostgresStore)
    assert store.is_portable
    await store.start()
    await store.close()
    assert await is_migrated(config)


@pytest.mark.parametrize(
    ("says", "engine"),
    [
        ("CockroachDB CCL v26.3.0 (x86_64-pc-linux-gnu)", "CockroachDB"),
        ("PostgreSQL 15.12-YB-2.25.2.0-b0 on x86_64-pc-linux-gnu", "YugabyteDB"),
    ],
    ids=["cockroachdb", "yugabytedb"],
)
async def test_a_start_on_another_engine_says_which_dialect_it_needs(says: str, engine: str, postgres_url: str) -> None:
    """By what the server says that it is."""
    async with session(postgres_url) as admin:
        await admin.execute(f"CREATE SCHEMA says; CREATE FUNCTION says.version() RETURNS text RETURN '{says}'")
        database = urlsplit(postgres_url).path.removeprefix("/")
        await admin.execute(f"ALTER DATABASE {database} SET search_path = says, pg_catalog, public")
    with pytest.raises(StartRefused, match=f"the server is {engine}: write store.dialect: portable"):
        await PostgresStore(postgres_url).start()
