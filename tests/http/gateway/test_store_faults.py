"""One request over HTTP while the durable store is slow, loses answers, or refuses: what is told, and what is kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from gateway import EXIT_OK
from gateway.app.parts import Environment
from gateway.core.message import StoredResponse
from gateway.core.operation import Abandon, Applied, Prove, Purge, State
from gateway.store.journal.journal import SqliteJournal
from tests.conformance.hand import REMEMBER_US, REPLAY_US
from tests.http.gateway.asking import until
from tests.support.eventually import eventually
from tests.support.faulty_store import FaultyStore, refused
from tests.support.house import House, house, neighbour, sqlite_store, status_of
from tests.support.postgres import PostgresServer
from tests.support.relay import Fault, Relay, Rule
from tests.support.upstream import Answer, RecordingUpstream


@asynccontextmanager
async def shaken(
    directory: Path, *, journal_rows_max: int | None = None, **changes: Any
) -> AsyncIterator[tuple[House, FaultyStore]]:
    """A gateway whose durable store, a real one, can be made to fail, and whose journal may have room for so many."""
    made: list[FaultyStore] = []

    def surround(environment: Environment) -> Environment:
        made.append(FaultyStore(environment.durable))
        if journal_rows_max is None:
            return replace(environment, durable=made[0])
        journal = SqliteJournal(directory / "journal", "tests", rows_max=journal_rows_max)
        return replace(environment, durable=made[0], journal=journal)

    async with house(sqlite_store(directory), directory, surround=surround, **changes) as home:
        yield home, made[0]


def operation_of(home: House) -> UUID:
    """The operation that the upstream heard of last."""
    return UUID(home.upstream.requests[-1].values("Idempotency-Operation")[0].decode())


@pytest.mark.parametrize(
    ("body", "verdict"), [(b"short", "stored"), (b"x" * 100, "response-not-stored")], ids=["whole", "streamed"]
)
async def test_nobody_is_answered_before_the_store_has_it(tmp_path: Path, body: bytes, verdict: str) -> None:
    """No byte of an answer, whole or streamed, goes out before the durable store acknowledged its record."""
    async with shaken(tmp_path, route={"response": {"max_stored_bytes": 10}}) as (home, store):
        gate = store.stop_before("complete")
        home.upstream.on("/charges", Answer(201, body=body))
        first = asyncio.create_task(home.send("k1"))
        await gate.reached.wait()
        # A whole request beside it has been answered by now, and so would be this one.
        assert status_of(await home.send("k2")) == (201, verdict)
        assert not first.done()
        gate.opened.set()
        response = await first
        assert (status_of(response), response.body) == ((201, verdict), body)


async def test_what_nothing_durable_took_is_told_to_nobody(tmp_path: Path) -> None:
    """With store and journal refusing the client hears of doubt; once the store is back the answer counts."""
    async with shaken(tmp_path, journal_rows_max=0) as (home, store):
        store.break_("complete", fault=refused())
        first = await home.send("k1")
        assert status_of(first) == (503, "in-doubt")
        assert first.json()["retryable"] is True
        store.mend()
        await until((200, "replayed"), home.send, "k1")
        assert len(home.upstream.requests) == 1


async def test_a_superseded_holder_tells_what_the_record_says(tmp_path: Path) -> None:
    """When somebody else recorded what happened, the late holder's client gets that record and not the holder's own."""
    async with shaken(tmp_path) as (home, store):
        gate = store.stop_before("complete")
        home.upstream.on("/charges", Answer(201, body=b"late"))
        first = asyncio.create_task(home.send("k1"))
        await gate.reached.wait()
        record = (await store.read(operation_of(home))).record
        assert record is not None
        found = StoredResponse(200, b"OK", (), b"found")
        for command in (
            Abandon(record.identity.operation_id, record.token, record.attempt_id, "reset"),
            Prove(record.identity.operation_id, record.token, uuid4(), found, REPLAY_US, REMEMBER_US),
        ):
            assert isinstance(await store.apply(command), Applied)
        gate.opened.set()
        response = await first
        assert (status_of(response), response.body) == ((200, "recovered"), b"found")
        assert len(home.upstream.requests) == 1


async def test_a_known_key_is_not_run_for_want_of_its_answer(own_postgres: PostgresServer, tmp_path: Path) -> None:
    """A retry in another gateway, which finds its key and gets no connection to read the answer over, is refused also
    where the route does without a store that is away."""
    async with Relay(own_postgres.port) as relay, RecordingUpstream() as upstream:
        route = {"store_unavailable": "forward"}
        relayed = {"durable": f"postgresql://gateway@127.0.0.1:{relay.port}/postgres"}
        async with (
            neighbour({"durable": own_postgres.url}, tmp_path / "one", upstream, route=route) as one,
            neighbour(relayed, tmp_path / "two", upstream, route=route) as two,
        ):
            assert status_of(await one.send("k1")) == (200, "stored")
            assert status_of(await two.send("k2")) == (200, "stored")
            # What a claim needs stays connected. The connection for reads breaks with the first answer that is read.
            relay.to_target.rule = Rule(b"AS is_left", Fault.RESET)
            relay.refuse()
            assert status_of(await two.send("k1")) == (503, "store-unavailable")
            assert len(upstream.requests) == 2


async def test_a_stop_takes_the_journal_to_the_store(tmp_path: Path) -> None:
    """What was kept while the store took nothing is recorded before the end, if it takes it by then."""
    async with shaken(tmp_path) as (home, store):
        store.break_("complete", fault=refused())
        assert status_of(await home.send("k1")) == (200, "journaled")
        store.mend()
        assert await home.gateway.stop() == EXIT_OK
        async with neighbour(sqlite_store(tmp_path), tmp_path / "n", home.upstream) as other:
            assert status_of(await other.send("k1")) == (200, "replayed")


async def test_what_is_in_the_store_is_no_longer_told_from_the_journal(tmp_path: Path) -> None:
    """Once an outcome is recorded its record is what counts: purged by an operator, it is gone."""
    async with shaken(tmp_path, route={"in_flight": {"wait": "0s"}}) as (home, store):
        store.break_("complete", fault=refused())
        assert status_of(await home.send("k1")) == (200, "journaled")
        operation_id = operation_of(home)
        store.mend()

        async def is_recorded() -> bool:
            return (await home.gateway._store.read(operation_id)).state is State.COMPLETED

        await eventually(is_recorded)
        await eventually(lambda: home.gateway._journal.tally.waiting == 0)
        await home.gateway._store.apply(Purge(operation_id))
        assert status_of(await home.send("k1")) == (410, "key-expired")


async def test_readiness_follows_the_store(tmp_path: Path) -> None:
    """Once requests are stored again it says up, and while the store can only be read it says down."""
    verbs = ("claim", "take_turns", "note_running")
    async with shaken(tmp_path) as (home, store):
        assert status_of(await home.send("k1")) == (200, "stored")
        store.break_(*verbs, fault=refused())
        assert status_of(await home.send("k2")) == (503, "store-unavailable")
        for _ in range(3):
            # Replays are read.
            assert (await home.send("k1")).status == 200
            assert (await home.status("/readyz")).json()["parts"]["durable"] == "down"
            assert (await home.status("/readyz?require=store")).status == 503
        store.mend()
        # Nobody has asked the store for anything since.
        assert (await home.status("/readyz")).json()["parts"]["durable"] == "up"
        assert (await home.status("/readyz?require=store")).status == 200
        assert status_of(await home.send("k2")) == (200, "stored")
