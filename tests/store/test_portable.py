"""The portable store on PostgreSQL: what is known when a transaction fails, and tokens that are times."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from gateway.app.stores import bare_store
from gateway.config import parse
from gateway.core.confidential import NO_SEALING
from gateway.core.operation import Applied, Command
from gateway.store.base import EpochChanged, Indefinite, NotApplied, StartRefused
from gateway.store.memory.epoch import WitnessFiles
from gateway.store.postgres.store import PostgresStore
from tests.conformance.hand import REMEMBER_SECONDS, Hand, Speech, do
from tests.store.postgres_sessions import opened as opened_store
from tests.store.postgres_sessions import session
from tests.support.eventually import eventually
from tests.support.house import config_text
from tests.support.memory_store import ManualClock
from tests.support.relay import Fault, Relay, Rule

HOUR_SECONDS = 3_600


opened = partial(opened_store, dialect="portable")

_ANSWER = b"C\x00\x00\x00"
LOST: dict[str, tuple[Speech, bytes]] = {
    "commit": (Hand.release, _ANSWER + b"\x0bCOMMIT"),
    "claim": (Hand.claim, _ANSWER),
    "completion": (Hand.complete_grant, _ANSWER),
}


@pytest.mark.parametrize("name", LOST)
async def test_a_lost_answer_to_a_change_is_indefinite(name: str, postgres_url: str) -> None:
    """And the same command finds out."""
    speech, lost = LOST[name]
    server = urlsplit(postgres_url)
    async with Relay(server.port) as relay:
        url = server._replace(netloc=f"{server.username}@127.0.0.1:{relay.port}").geturl()
        async with opened(url) as store:
            # From the second one on, each is a transaction of its own.
            await do(store, Hand(), Hand.claim, Hand.complete_grant)
            await do(store, hand := Hand(), *([] if speech is Hand.claim else [Hand.claim]))
            command = speech(hand)
            relay.to_client.rule = Rule(lost, Fault.RESET)
            with pytest.raises((Indefinite, NotApplied)) as told:
                await store.apply(command)
            assert told.type is Indefinite
            relay.to_client.rule = None
            result = await eventually(lambda: _applied(store, command), 10.0)
            assert result.snapshot.record.attempts == 1


async def _applied(store: PostgresStore, command: Command) -> Applied | None:
    (result,) = await asyncio.gather(store.apply(command), return_exceptions=True)
    return result if isinstance(result, Applied) else None


@pytest.mark.parametrize("end", ["erased", "collected"])
async def test_a_token_is_not_drawn_again_after_the_clock_was_set_back(end: str, postgres_url: str) -> None:
    """Also where the record that had it is gone."""
    clock = ManualClock()
    async with opened(postgres_url, clock_us=clock) as store:
        await do(store, hand := Hand(), Hand.claim, Hand.release)
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


async def test_the_configured_dialect(postgres_url: str, tmp_path: Path) -> None:
    """Is used, whatever the server is."""
    config = parse(config_text("http://127.0.0.1:9", {"durable": postgres_url, "dialect": "portable"}, tmp_path))
    store = bare_store(config, NO_SEALING)
    assert isinstance(store, PostgresStore)
    assert store.is_portable
