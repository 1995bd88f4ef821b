"""Several workers as processes: they are one gateway to whoever calls, watches, stops or kills it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway import EXIT_WORK_LEFT
from gateway.app.stores import journal_directory, name_of
from gateway.config import parse
from gateway.core.operation import Complete
from gateway.store.journal.journal import SqliteJournal
from tests.conformance.hand import Hand
from tests.integration.hand import OPERATOR, WHY, operated
from tests.observe.scrape import Scrape
from tests.support import http, processes
from tests.support.eventually import eventually
from tests.support.fleet import NOW, config_of, no_one_listens, process, send, try_send, wait_answered
from tests.support.gateway import GatewayProcess
from tests.support.house import config_text, sqlite_store, status_of, stores
from tests.support.ports import free_port
from tests.support.postgres import PostgresServer
from tests.support.upstream import Answer, RecordingUpstream

Store = dict[str, Any]

# That so many connections all meet the same one of two workers does not happen: one in eight million.
MANY = 24
# As long as a scraper waits.
SCRAPE_SECONDS = 10.0
LEFT = "stopped with outcomes left in the journal that no worker could record"
TOLD = {"workers": 2, "log": {"level": "debug"}}
KEY = "Idempotency-Key"
SERVING = {"1": "serving", "2": "serving"}


store = stores("sqlite", full=["postgres"])


@asynccontextmanager
async def pair(tmp_path: Path, upstream: RecordingUpstream) -> AsyncIterator[GatewayProcess]:
    """A gateway of two workers on a file."""
    async with process(sqlite_store(tmp_path), tmp_path, upstream, **TOLD) as gateway:
        yield gateway


async def send_many(gateway: GatewayProcess, verdict: str = "stored", name: str = "key") -> list[http.Response]:
    """So many keys, which all get this verdict."""
    answers = [await send(gateway.port, f"{name}-{each}") for each in range(MANY)]
    assert {status_of(answer) for answer in answers} == {(201, verdict)}
    return answers


def lines(gateway: GatewayProcess, **fields: Any) -> list[dict[str, Any]]:
    """The lines of the log that have these fields. One that is just being written has no end yet."""
    written = gateway.output().splitlines(keepends=True)
    found = [json.loads(line) for line in written if line.startswith("{") and line.endswith("\n")]
    return [line for line in found if all(line.get(name) == value for name, value in fields.items())]


async def assert_both_wrote(gateway: GatewayProcess, count: int, **fields: Any) -> None:
    """So many lines with these fields appear, and the last of them are of both workers."""
    await eventually(lambda: len(lines(gateway, **fields)) == count, what="the lines are in the log")
    assert {line["worker"] for line in lines(gateway, **fields)[-MANY:]} == {1, 2}


def workers(gateway: GatewayProcess) -> dict[int, int]:
    """The process ids of the living workers, by number."""
    found = {}
    for pid in processes.descendants(gateway.pid):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except FileNotFoundError:
            continue
        if b"gateway.app.worker" in words:
            found[int(words[words.index(b"gateway.app.worker") + 1])] = pid
    return found


def living(pids: Iterable[int]) -> list[int]:
    """Those of these processes that are still there."""
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


async def metrics(gateway: GatewayProcess, *, silent: int = 0) -> Scrape:
    """A scrape to which all workers reported but so many.

    A worker that is only slow to report counts with what it reported before.
    """

    async def scraped() -> Scrape | None:
        found = Scrape(await gateway.metrics())
        return found if found.value("idempotency_workers", state="silent") == silent else None

    return await eventually(scraped, 30.0, f"all workers report but {silent}")


async def holder_of(gateway: GatewayProcess, upstream: RecordingUpstream, key: str) -> tuple[int, asyncio.Task[Any]]:
    """The number of the worker that has claimed this key and waits for the upstream, and the client's request."""
    request = asyncio.create_task(try_send(gateway.port, key))
    (sent,) = await eventually(lambda: [each for each in upstream.requests if each.values(KEY) == [key.encode()]])
    operation_id = sent.values("Idempotency-Operation")[0].decode()
    # Lines of earlier requests may come as late as this one.
    (claimed,) = await eventually(
        lambda: lines(gateway, message="claimed", operation_id=operation_id), what="the claim is in the log"
    )
    return claimed["worker"], request


async def wait_shown(gateway: GatewayProcess, states: dict[str, str]) -> None:
    """It is ready, with its workers in these states. One that is slow to report is silent for the moment."""

    async def are_shown() -> bool:
        ready = await gateway.status("/readyz")
        return (ready.status, ready.json()["parts"]["workers"]) == (200, states)

    await eventually(are_shown, 30.0)


async def wait_live(gateway: GatewayProcess, *, is_live: bool) -> None:
    async def is_so() -> bool:
        return (await gateway.status("/livez")).status == (200 if is_live else 503)

    await eventually(is_so, 30.0)


async def test_one_that_is_killed_is_replaced(store: Store, tmp_path: Path, upstream: RecordingUpstream) -> None:
    """Connections are spread over both, all is counted together, and lines say whose they are. What the killed one
    worked on is in doubt, the rest goes on, and no counter goes back; operators are served again, too."""
    admin_port = free_port()
    short: Any = {"store": {"lease": "3s"}, **operated(admin_port), **TOLD}

    async def serves_operators() -> bool:
        try:
            return (await http.request(admin_port, "GET", "/operations?state=all", OPERATOR[:1])).status == 200
        except OSError:
            return False

    async with process(store, tmp_path, upstream, **short) as gateway:
        answers = await send_many(gateway)
        before = await metrics(gateway)
        assert before.value("idempotency_requests_total", route="charge", verdict="stored") == MANY
        assert before.value("idempotency_claims_total", route="charge") == MANY
        took = before.value("idempotency_request_duration_seconds_count", route="charge", kind="executed")
        assert took == MANY
        assert before.value("idempotency_store_up", tier="durable") == 1
        await assert_both_wrote(gateway, MANY, verdict="stored")
        again = await send_many(gateway, "replayed")
        assert [each.header("X-Nonce") for each in again] == [each.header("X-Nonce") for each in answers]
        await assert_both_wrote(gateway, MANY, verdict="replayed")
        await wait_shown(gateway, SERVING)
        assert (await gateway.status("/readyz?require=store")).status == 200
        upstream.on("/charges", Answer(201, hold=asyncio.Event()))
        holder, request = await holder_of(gateway, upstream, "k1")
        os.kill(workers(gateway)[holder], signal.SIGKILL)
        assert await request is None
        upstream.on("/charges", Answer(201))
        # Its seat is not left alone, so nobody waits for it to be back; a connection that it had is lost.
        for each in range(8):
            answer = await wait_answered(gateway.port, f"new-{each}", verdicts=frozenset({"stored"}))
            assert answer.status == 201
        await wait_shown(gateway, SERVING)
        after = await metrics(gateway)
        # The dead worker may have had the turns of upkeep, which another one takes when their lease is over.
        gauges = ("process_", "idempotency_in_flight", "idempotency_workers", "idempotency_oldest")
        gauges += ("idempotency_store_upkeep_owner", "idempotency_upstream_connections{")
        for each in before.series:
            if not f"{each.name}{{".startswith(gauges) or each.name == "process_cpu_seconds_total":
                assert after.value(each.name, **each.labels) >= each.value, each
        assert after.value("idempotency_worker_restarts_total") == 1
        await wait_answered(gateway.port, "k1", verdicts=frozenset({"in-doubt"}))
        assert len([each for each in upstream.requests if each.values(KEY) == [b"k1"]]) == 1
        assert (await gateway.status("/readyz")).status == 200
        (line,) = lines(gateway, level="error")
        assert line["message"] == f"worker {holder} was ended by signal 9; starting another one in 0 s"
        assert await serves_operators()
        os.kill(workers(gateway)[1], signal.SIGKILL)
        await eventually(lambda: len(lines(gateway, level="error")) == 2)
        await eventually(serves_operators, 30.0)


async def test_what_a_worker_left_is_told_by_the_exit_code(tmp_path: Path, upstream: RecordingUpstream) -> None:
    """Whoever gives the directory away must hear that an outcome is in it which no worker that lives can record."""
    async with pair(tmp_path, upstream) as gateway:
        config = parse(config_text(upstream.url, sqlite_store(tmp_path), tmp_path))
        # As good as dead: its file is its own, and it says nothing of it.
        beside = SqliteJournal(journal_directory(config), name_of(config))
        await beside.start()
        command = Hand().complete()
        assert isinstance(command, Complete)
        await beside.append("charge", command)
        gateway.ask_to_stop()
        assert await gateway.wait_exit() == EXIT_WORK_LEFT
        assert [line["level"] for line in lines(gateway, message=LEFT)] == ["warning"]
        await beside.close()


async def test_stopped_in_order(tmp_path: Path, upstream: RecordingUpstream) -> None:
    """Where all workers are told to stop, others follow, and who asks meanwhile how they are gets an answer, also about
    one that is just leaving. SIGTERM lets every worker finish what it works on; no process is left, and nothing else
    either."""
    async with pair(tmp_path, upstream) as gateway:
        before = workers(gateway)
        for pid in before.values():
            os.kill(pid, signal.SIGTERM)

        async def have_followed() -> bool:
            for target in ("/readyz", "/metrics"):
                assert (await gateway.status(target)).status in (200, 503)
            now = workers(gateway)
            return len(now) == len(before) and not set(now.values()) & set(before.values())

        await eventually(have_followed, 30.0)
        await wait_shown(gateway, SERVING)
        errors = lines(gateway, level="error")
        hold = asyncio.Event()
        upstream.on("/charges", Answer(201, hold=hold))
        requests = [asyncio.create_task(send(gateway.port, f"key-{each}")) for each in range(MANY)]
        await upstream.wait_for_requests(MANY)
        await assert_both_wrote(gateway, MANY, message="claimed")
        children = processes.descendants(gateway.pid)
        assert len(children) == 2
        gateway.ask_to_stop()
        await eventually(lambda: no_one_listens(gateway.port), what="nobody listens any more")
        hold.set()
        assert {status_of(answer) for answer in await asyncio.gather(*requests)} == {(201, "stored")}
        assert await gateway.wait_exit() == 0
        assert not living(children)
        assert lines(gateway, level="error") == errors


async def test_a_worker_is_frozen(tmp_path: Path, upstream: RecordingUpstream) -> None:
    """A scrape does not wait for it: its last numbers stand, it is named, and the rest is ready. If the supervisor is
    killed meanwhile, it ends as all workers do, and the next gateway can begin at once."""
    async with pair(tmp_path, upstream) as gateway:
        await send_many(gateway)
        assert (await metrics(gateway)).value("idempotency_claims_total", route="charge") == MANY
        pid = workers(gateway)[1]
        processes.pause(pid)
        async with asyncio.timeout(SCRAPE_SECONDS):
            await gateway.status("/metrics")
        assert (await metrics(gateway, silent=1)).value("idempotency_claims_total", route="charge") == MANY
        await wait_shown(gateway, {"1": "silent", "2": "serving"})
        processes.resume(pid)
        await wait_shown(gateway, SERVING)
        children = workers(gateway)
        processes.pause(children[2])
        os.kill(gateway.pid, signal.SIGKILL)
        assert await gateway.wait_exit() == -signal.SIGKILL
        await eventually(lambda: not living(children.values()))
        await gateway.start()
        assert status_of(await send(gateway.port, "k1")) == (201, "stored")


@pytest.mark.full
async def test_a_frozen_worker_is_not_waited_for(tmp_path: Path, upstream: RecordingUpstream) -> None:
    """Whoever is silent for long loses its seat to another one, liveness says so, and answering again undoes it."""
    async with pair(tmp_path, upstream) as gateway:
        pid = workers(gateway)[1]
        processes.pause(pid)
        await wait_live(gateway, is_live=False)
        await send_many(gateway)
        processes.resume(pid)
        await wait_live(gateway, is_live=True)
        await send_many(gateway, name="later")
        await assert_both_wrote(gateway, 2 * MANY, verdict="stored")


async def test_the_journal_of_a_dead_worker(
    own_postgres: PostgresServer, tmp_path: Path, upstream: RecordingUpstream
) -> None:
    """What it could only journal is recorded by whoever follows, and replayed."""
    async with process({"durable": own_postgres.url}, tmp_path, upstream, **TOLD) as gateway:
        hold = asyncio.Event()
        upstream.on("/charges", Answer(201, body=b"charged", hold=hold))
        holder, request = await holder_of(gateway, upstream, "k1")
        own_postgres.crash()
        hold.set()
        first = await request
        assert (status_of(first), first.body) == ((201, "journaled"), b"charged")
        assert (await metrics(gateway)).value("idempotency_journal_waiting") == 1
        os.kill(workers(gateway)[holder], signal.SIGKILL)
        await eventually(lambda: len(lines(gateway, level="error")) == 1)
        await wait_shown(gateway, SERVING)
        own_postgres.start()
        told = frozenset({"replayed"})
        again = await wait_answered(gateway.port, "k1", verdicts=told, headers=NOW, deadline_seconds=60)
        assert (again.status, again.body, again.header("X-Nonce")) == (201, b"charged", first.header("X-Nonce"))
        assert len(upstream.requests) == 1


async def test_what_no_worker_can_start_with(tmp_path: Path, upstream: RecordingUpstream) -> None:
    """What is wrong for all is told once, by the one that goes ahead; here that another gateway of several listens."""
    async with pair(tmp_path / "other", upstream) as other:
        config = config_of(sqlite_store(tmp_path), tmp_path, upstream.url, workers=2)
        gateway = GatewayProcess(config, tmp_path)
        text = gateway.config_file.read_text()
        gateway.config_file.write_text(text.replace(f":{gateway.port}\n", f":{other.port}\n"))
        gateway.launch()
        assert await gateway.wait_exit() == 1
    assert gateway.output().count("another program listens there already") == 1


async def test_none_is_left_and_none_can_start(tmp_path: Path, upstream: RecordingUpstream) -> None:
    """The gateway ends, and says why."""
    async with pair(tmp_path, upstream) as gateway:
        (tmp_path / "store" / "operations.db").unlink()
        (tmp_path / "store" / "operations.db").write_bytes(b"not a database" * 1000)
        for pid in workers(gateway).values():
            os.kill(pid, signal.SIGKILL)
        assert await gateway.wait_exit() == 1
        assert "the durable store must not be used" in gateway.output().splitlines()[-1]


async def test_a_purge_reaches_every_worker(
    postgres_url: str, redis_url: str, tmp_path: Path, upstream: RecordingUpstream
) -> None:
    """With Redis the answer is gone from the memory of all of them at once, whichever was told."""
    port = free_port()
    store = {"durable": postgres_url, "fast": redis_url, "cache_max_age": "1h"}
    async with process(store, tmp_path, upstream, **operated(port), **TOLD) as gateway:
        await send(gateway.port, "k1")
        assert {status_of(await send(gateway.port, "k1")) for _ in range(MANY)} == {(201, "replayed")}
        hits = (await metrics(gateway)).value("idempotency_copy_lookups_total", source="cache", result="hit")
        assert hits >= MANY - 2
        listed = await http.request(port, "GET", "/operations?state=completed", OPERATOR[:1])
        (about,) = listed.json()["operations"]
        purge = f"/operations/{about['operation_id']}/purge"
        assert (await http.request(port, "POST", purge, OPERATOR, WHY)).status == 200

        async def is_gone() -> bool:
            answers = [await send(gateway.port, "k1") for _ in range(MANY)]
            return {status_of(answer) for answer in answers} == {(410, "key-expired")}

        await eventually(is_gone)
        assert len(upstream.requests) == 1
