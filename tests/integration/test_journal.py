"""Real gateways whose durable store dies at the worst moment: the answer is given, kept on the disk, and recorded."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import apsw
import asyncpg
import pytest

from tests.support import http
from tests.support.eventually import eventually
from tests.support.fleet import process
from tests.support.gateway import GatewayProcess
from tests.support.house import BODY, JSON, status_of
from tests.support.http import Response
from tests.support.postgres import PostgresServer
from tests.support.upstream import Answer, RecordingUpstream

EXIT_WORK_LEFT = 3
LOCK_MILLISECONDS = 10_000


async def send(gateway: GatewayProcess, key: str = "k1", body: bytes = BODY, prefer: str = "wait=0") -> Response:
    """A request as a well-behaved client sends it."""
    fields = [JSON, ("Idempotency-Key", key), ("X-Tenant", "t1"), ("Prefer", prefer)]
    return await http.request(gateway.port, "POST", "/charges", fields, body)


async def waiting(*gateways: GatewayProcess) -> float:
    """How many outcomes wait in their journals."""
    return sum([await each.metric("idempotency_journal_waiting") for each in gateways])


async def wait_flushed(*gateways: GatewayProcess) -> None:
    """Return when nothing waits in their journals."""

    async def is_flushed() -> bool:
        return await waiting(*gateways) == 0

    await eventually(is_flushed, 20.0, "the journals are flushed")


class Outage:
    """A durable store that can be taken away and given back."""

    def __init__(self, section: dict[str, Any]) -> None:
        self.section = section

    def begin(self) -> None:
        raise NotImplementedError

    def end(self) -> None:
        raise NotImplementedError


class PostgresOutage(Outage):
    def __init__(self, server: PostgresServer) -> None:
        super().__init__({"durable": server.url})
        self._server = server

    def begin(self) -> None:
        self._server.crash()

    def end(self) -> None:
        self._server.start()


class FrozenPostgres(PostgresOutage):
    """One that takes connections and says nothing."""

    def begin(self) -> None:
        self._server.pause()

    def end(self) -> None:
        self._server.resume()


class LockedSqlite(Outage):
    """A file that another process has locked."""

    def __init__(self, path: Path) -> None:
        super().__init__({"durable": f"sqlite://{path}"})
        self._path = path
        self._other: apsw.Connection | None = None

    def begin(self) -> None:
        self._other = apsw.Connection(str(self._path))
        # The gateway may be writing at this moment.
        self._other.set_busy_timeout(LOCK_MILLISECONDS)
        self._other.execute("BEGIN IMMEDIATE")

    def end(self) -> None:
        assert self._other is not None
        self._other.execute("ROLLBACK")
        self._other.close()
        self._other = None


@pytest.fixture(params=["postgres", pytest.param("frozen-postgres", marks=pytest.mark.full), "sqlite"])
def outage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Outage]:
    if request.param == "sqlite":
        locked = LockedSqlite(tmp_path / "store" / "operations.db")
        yield locked
        if locked._other is not None:
            locked.end()
        return
    kind = PostgresOutage if request.param == "postgres" else FrozenPostgres
    yield kind(request.getfixturevalue("own_postgres"))


@pytest.fixture
def gone(own_postgres: PostgresServer) -> Outage:
    return PostgresOutage(own_postgres)


async def journaled(
    gateway: GatewayProcess, upstream: RecordingUpstream, outage: Outage, answer: Answer | None = None, key: str = "k1"
) -> Response:
    """The answer to a request whose durable store goes away while the upstream works on it."""
    hold = asyncio.Event()
    answer = answer or Answer(201, body=b"charged")
    upstream.on("/charges", Answer(answer.status, headers=answer.headers, body=answer.body, hold=hold))
    request = asyncio.create_task(send(gateway, key))
    await upstream.wait_for_requests(len(upstream.requests) + 1)
    outage.begin()
    hold.set()
    return await request


async def test_a_kill_in_between(tmp_path: Path, outage: Outage) -> None:
    """Journaled, the gateway killed, both started again: the same answer for ever, and one effect."""
    async with RecordingUpstream() as upstream, process(outage.section, tmp_path, upstream) as gateway:
        assert status_of(await send(gateway, "before")) == (200, "stored")
        first = await journaled(gateway, upstream, outage)
        assert (status_of(first), first.body) == ((201, "journaled"), b"charged")
        assert await waiting(gateway) == 1
        gateway.kill()
        outage.end()
        await gateway.start()
        again = await send(gateway)
        assert (status_of(again), again.body) == ((201, "replayed"), b"charged")
        assert again.header("X-Nonce") == first.header("X-Nonce")
        assert await waiting(gateway) == 0
        assert len(upstream.requests) == 2
        assert gateway.terminate() == 0
        assert list((tmp_path / "state" / "journal").iterdir()) == []


async def test_an_outage_that_outlives_the_gateway(tmp_path: Path, gone: Outage) -> None:
    """While the store is away repeats get the answer; the gateway's end says that work is left, and another goes on."""
    async with RecordingUpstream() as upstream, process(gone.section, tmp_path, upstream) as gateway:
        assert status_of(await journaled(gateway, upstream, gone)) == (201, "journaled")
        for _ in range(3):
            assert status_of(await send(gateway)) == (201, "replayed")
        assert status_of(await send(gateway, body=b"{}")) == (422, "key-reused")
        assert gateway.terminate() == EXIT_WORK_LEFT
        await gateway.start()
        assert status_of(await send(gateway)) == (201, "replayed")
        assert await waiting(gateway) == 1
        gone.end()

        async def flushed() -> bool:
            assert status_of(await send(gateway)) == (201, "replayed")
            return await waiting(gateway) == 0

        await eventually(flushed, deadline_seconds=20)
        assert gateway.terminate() == 0
        assert len(upstream.requests) == 1


@pytest.mark.parametrize(
    ("answer", "verdict", "meanwhile", "later"),
    [
        (Answer(503, body=b"busy"), "released", (503, "store-unavailable"), (200, "stored")),
        (Answer(401, body=b"who"), "released", (503, "store-unavailable"), (200, "stored")),
        (Answer(502, body=b"broken"), "in-doubt", (503, "store-unavailable"), (409, "in-doubt")),
        (
            Answer(201, headers=(("Location", "/charges/1"),), body=b"x" * 50_000),
            "response-not-stored",
            (409, "response-not-stored"),
            (409, "response-not-stored"),
        ),
    ],
    ids=["release", "forget", "abandon", "stream"],
)
async def test_every_ending_keeps_its_word(
    tmp_path: Path, gone: Outage, answer: Answer, verdict: str, meanwhile: tuple[int, str], later: tuple[int, str]
) -> None:
    """What is not a stored answer is journaled just so, and means in the store what it means without an outage."""
    route = {"response": {"max_stored_bytes": "1KiB"}}
    async with RecordingUpstream() as upstream, process(gone.section, tmp_path, upstream, route=route) as gateway:
        first = await journaled(gateway, upstream, gone, answer)
        assert (status_of(first), first.body) == ((answer.status, verdict), answer.body)
        assert await waiting(gateway) == 1
        assert status_of(await send(gateway)) == meanwhile
        gone.end()
        upstream.on("/charges", Answer(200))
        await wait_flushed(gateway)
        assert status_of(await send(gateway)) == later


async def test_what_the_drain_has_to_say_is_kept(tmp_path: Path, gone: Outage) -> None:
    """Stopped with an attempt under way and without its store, the gateway leaves the attempt's final command
    behind."""
    shutdown = {"delay": "0s", "drain_timeout": "200ms"}
    store = {**gone.section, "lease": "10m"}
    async with RecordingUpstream() as upstream, process(store, tmp_path, upstream, shutdown=shutdown) as gateway:
        upstream.on("/charges", Answer(hold=asyncio.Event()))
        request = asyncio.create_task(send(gateway))
        await upstream.wait_for_requests(1)
        gone.begin()
        gateway.ask_to_stop()
        assert status_of(await request)[1] == "in-doubt"
        assert await gateway.wait_exit() == EXIT_WORK_LEFT
        gone.end()
        await gateway.start()
        # Long before its lease is over.
        assert status_of(await send(gateway)) == (409, "in-doubt")
        assert len(upstream.requests) == 1


@contextmanager
def no_growing(gateway: GatewayProcess, bytes_max: int) -> Iterator[None]:
    """No file of the process may grow beyond this."""
    before = resource.prlimit(gateway.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(gateway.pid, resource.RLIMIT_FSIZE, (bytes_max, before[1]))
    try:
        yield
    finally:
        resource.prlimit(gateway.pid, resource.RLIMIT_FSIZE, before)


async def test_neither_store_nor_journal(tmp_path: Path, gone: Outage) -> None:
    """With the disk full too the client hears that nothing durable took the answer, until something does."""
    async with RecordingUpstream() as upstream, process(gone.section, tmp_path, upstream) as gateway:
        with no_growing(gateway, 200_000):
            answer = await journaled(gateway, upstream, gone, Answer(201, body=b"x" * 500_000))
            assert status_of(answer) == (503, "in-doubt")
            assert b"could not be recorded" in answer.body
            assert await gateway.metric("idempotency_journal_failures_total") >= 1
            assert await waiting(gateway) == 0

        async def journaled_late() -> bool:
            return await waiting(gateway) == 1

        await eventually(journaled_late, deadline_seconds=20)
        again = await send(gateway)
        assert (status_of(again), len(again.body)) == ((201, "replayed"), 500_000)
        gone.end()
        gateway.kill()
        await gateway.start()
        again = await send(gateway)
        assert (status_of(again), len(again.body)) == ((201, "replayed"), 500_000)
        assert len(upstream.requests) == 1


async def test_a_refused_flush_is_kept_and_listed(tmp_path: Path, own_postgres: PostgresServer) -> None:
    """An outcome whose record went on without it stays in the journal, is counted, and named in the log."""
    gone = PostgresOutage(own_postgres)
    async with RecordingUpstream() as upstream, process(gone.section, tmp_path, upstream) as gateway:
        assert status_of(await journaled(gateway, upstream, gone)) == (201, "journaled")
        gateway.kill()
        gone.end()
        connection = await asyncpg.connect(own_postgres.url)
        (row,) = await connection.fetch("DELETE FROM idempotency_gateway.operation RETURNING id")
        await connection.close()
        for _ in range(2):
            await gateway.start()
            assert await gateway.metric("idempotency_journal_refused") == 1
            assert await waiting(gateway) == 0
            assert gateway.terminate() == 0
        lines = [line for line in gateway.output().splitlines() if "refused a journaled outcome" in line]
        assert len(lines) == 1
        assert str(UUID(bytes=row["id"])) in lines[0]


async def test_two_gateways_share_a_directory(tmp_path: Path, gone: Outage) -> None:
    """Each has its own journal; that of one that died is taken over by the next to start, that of a living one not."""
    state = str(tmp_path / "state")
    async with (
        RecordingUpstream() as upstream,
        process(gone.section, tmp_path / "a", upstream, state_dir=state) as one,
        process(gone.section, tmp_path / "b", upstream, state_dir=state) as two,
    ):
        hold = asyncio.Event()
        upstream.on("/charges", Answer(201, hold=hold))
        requests = [asyncio.create_task(send(one, "a")), asyncio.create_task(send(two, "b"))]
        await upstream.wait_for_requests(2)
        gone.begin()
        hold.set()
        assert [status_of(await request) for request in requests] == [(201, "journaled")] * 2
        # Without the store, too.
        assert status_of(await send(two, "a")) == (201, "replayed")
        assert [await waiting(each) for each in (one, two)] == [1, 1]
        one.kill()
        async with process(gone.section, tmp_path / "c", upstream, state_dir=state) as three:
            assert await waiting(three) == 1
            gone.end()
            await wait_flushed(two, three)
            for key in ("a", "b"):
                assert status_of(await send(three, key)) == (201, "replayed")
        assert len(upstream.requests) == 2


async def test_a_damaged_journal_stops_the_start(tmp_path: Path, gone: Outage) -> None:
    """The gateway says what to do and touches nothing."""
    async with RecordingUpstream() as upstream, process(gone.section, tmp_path, upstream) as gateway:
        assert status_of(await journaled(gateway, upstream, gone)) == (201, "journaled")
        gateway.kill()
        (path,) = (tmp_path / "state" / "journal").glob("*.db")
        for name in (f"{path.name}-wal", f"{path.name}-shm"):
            path.with_name(name).unlink(missing_ok=True)
        path.write_bytes(b"scrambled" * 1000)
        gateway.launch()
        assert await gateway.wait_exit() == 1
        assert "Move it away" in gateway.output()
        assert path.read_bytes() == b"scrambled" * 1000
