"""Several workers as processes: they are one gateway to whoever calls, watches, stops or kills it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway import EXIT_WORK_LEFT
from gateway.app.stores import journal_directory, name_of
from gateway.config import parse
from gateway.core.operation import Complete
from gateway.store.journal.journal import SqliteJournal
from tests.conformance.hand import Hand
from tests.support import http, processes
from tests.support.eventually import eventually
from tests.support.fleet import config_of, no_one_listens, process, send, try_send, wait_answered
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


store = stores("sqlite", full=["postgres"])


KEY = "Idempotency-Key"


@pytest.fixture
def sqlite(tmp_path: Path) -> Store:
    return sqlite_store(tmp_path)


def lines(gateway: GatewayProcess, **fields: Any) -> list[dict[str, Any]]:
    """The lines of the log that have these fields. One that is just being written has no end yet."""
    written = gateway.output().splitlines(keepends=True)
    found = [json.loads(line) for line in written if line.startswith("{") and line.endswith("\n")]
    return [line for line in found if all(line.get(name) == value for name, value in fields.items())]


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


Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def metrics(gateway: GatewayProcess, *, silent: int = 0) -> Samples:
    """Every sample of a scrape to which all workers reported but so many.

    A worker that is only slow to report counts with what it reported before.
    """

    async def scraped() -> Samples | None:
        response = await gateway.status("/metrics")
        assert response.status == 200
        samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(response.body.decode())
            for sample in family.samples
        }
        return samples if samples["idempotency_workers", frozenset({("state", "silent")})] == silent else None

    return await eventually(scraped, 30.0, f"all workers report but {silent}")


async def number(gateway: GatewayProcess, name: str, *, silent: int = 0, **labels: str) -> float:
    return (await metrics(gateway, silent=silent))[name, frozenset(labels.items())]


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


async def all_serve(gateway: GatewayProcess) -> None:
    async def serve() -> bool:
        return await number(gateway, "idempotency_workers", state="serving") == 2

    await eventually(serve, 30.0, "both workers serve")


async def are_shown(gateway: GatewayProcess, states: dict[str, str]) -> bool:
    """Whether it is ready, with its workers in these states. One that is slow to report is silent for the moment."""
    ready = await gateway.status("/readyz")
    return (ready.status, ready.json()["parts"]["workers"]) == (200, states)


async def is_live(gateway: GatewayProcess, wanted: bool) -> bool:
    return (await gateway.status("/livez")).status == (200 if wanted else 503)


@contextmanager
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


async def test_both_serve(store: Store, tmp_path: Path) -> None:
    """Connections are spread over the workers, all is counted together, and lines say whose they are."""
    async with RecordingUpstream() as upstream, process(store, tmp_path, upstream.url, **TOLD) as gateway:
        upstream.on("/charges", Answer(201))
        answers = [await send(gateway.port, f"key-{each}") for each in range(MANY)]
        assert {status_of(answer) for answer in answers} == {(201, "stored")}
        assert await number(gateway, "idempotency_requests_total", route="charge", verdict="stored") == MANY
        assert await number(gateway, "idempotency_claims_total", route="charge") == MANY
        took = await number(gateway, "idempotency_request_duration_seconds_count", route="charge", kind="executed")
        assert took == MANY
        assert await number(gateway, "idempotency_store_up", tier="durable") == 1
        assert await number(gateway, "idempotency_workers", state="serving") == 2
        await eventually(lambda: len(lines(gateway, verdict="stored")) == MANY)
        assert {line["worker"] for line in lines(gateway, verdict="stored")} == {1, 2}
        again = [await send(gateway.port, f"key-{each}") for each in range(MANY)]
        assert {status_of(answer) for answer in again} == {(201, "replayed")}
        assert [each.header("X-Nonce") for each in again] == [each.header("X-Nonce") for each in answers]
        await eventually(lambda: are_shown(gateway, {"1": "serving", "2": "serving"}), 30.0)
        assert (await gateway.status("/readyz?require=store")).status == 200


async def test_duplicates_in_the_other_worker(store: Store, tmp_path: Path) -> None:
    """They wait for the first one's answer, whichever worker it runs in, and it runs once."""
    async with RecordingUpstream() as upstream, process(store, tmp_path, upstream.url, **TOLD) as gateway:
        hold = asyncio.Event()
        upstream.on("/charges", Answer(201, body=b"charged", hold=hold))
        _, first = await holder_of(gateway, upstream, "k1")
        duplicates = [asyncio.create_task(send(gateway.port, "k1")) for _ in range(MANY)]

        async def one_waits_elsewhere() -> bool:
            reads = ("idempotency_store_duration_seconds_count", frozenset({("tier", "durable"), ("verb", "read")}))
            return reads in await metrics(gateway)

        await eventually(one_waits_elsewhere)
        hold.set()
        answers = await asyncio.gather(*duplicates)
        assert {(status_of(answer), answer.body) for answer in answers} == {((201, "replayed"), b"charged")}
        assert status_of(await first) == (201, "stored")
        assert len(upstream.requests) == 1
        await eventually(lambda: len(lines(gateway, verdict="replayed")) == MANY)
        assert {line["worker"] for line in lines(gateway, verdict="replayed")} == {1, 2}


async def test_a_worker_is_killed(store: Store, tmp_path: Path) -> None:
    """What it worked on is in doubt, another one is started, the rest goes on, and no counter goes back; operators are
    served again, too."""
    admin_port = free_port()
    short = {"store": {"lease": "3s"}, "admin": {"listen": f"127.0.0.1:{admin_port}", "token": "t" * 32}, **TOLD}
    async with RecordingUpstream() as upstream, process(store, tmp_path, upstream.url, **short) as gateway:
        upstream.on("/charges", Answer(201))
        for each in range(MANY):
            await send(gateway.port, f"key-{each}")
        before = await metrics(gateway)
        upstream.on("/charges", Answer(201, hold=asyncio.Event()))
        holder, request = await holder_of(gateway, upstream, "k1")
        os.kill(workers(gateway)[holder], signal.SIGKILL)
        assert await request is None
        upstream.on("/charges", Answer(201))
        # Its seat is not left alone, so nobody waits for it to be back; a connection that it had is lost.
        answers = [
            await wait_answered(gateway.port, f"new-{each}", verdicts=frozenset({"stored"})) for each in range(8)
        ]
        assert {answer.status for answer in answers} == {201}
        await all_serve(gateway)
        after = await metrics(gateway)
        # The dead worker may have had the turns of upkeep, which another one takes when their lease is over.
        gauges = (
            "process_",
            "idempotency_in_flight",
            "idempotency_workers",
            "idempotency_oldest",
            "idempotency_store_upkeep_owner",
        )
        counted = {sample: value for sample, value in before.items() if not sample[0].startswith(gauges)}
        counted.pop(("idempotency_upstream_connections", frozenset({("upstream", upstream.url)})), None)
        assert {sample: after[sample] for sample, value in counted.items() if after[sample] < value} == {}
        assert after["process_cpu_seconds_total", frozenset()] >= before["process_cpu_seconds_total", frozenset()]
        assert after["idempotency_worker_restarts_total", frozenset()] == 1
        await wait_answered(gateway.port, "k1", verdicts=frozenset({"in-doubt"}))
        assert len([each for each in upstream.requests if each.values(KEY) == [b"k1"]]) == 1
        assert (await gateway.status("/readyz")).status == 200
        (line,) = lines(gateway, level="error")
        assert line["message"] == f"worker {holder} was ended by signal 9; starting another one in 0 s"
        assert await serves_operators(admin_port)
        os.kill(workers(gateway)[1], signal.SIGKILL)
        await eventually(lambda: len(lines(gateway, level="error")) == 2)
        await eventually(lambda: serves_operators(admin_port), 30.0)


async def serves_operators(port: int) -> bool:
    fields = [("Authorization", f"Bearer {'t' * 32}")]
    try:
        return (await http.request(port, "GET", "/operations?state=all", fields)).status == 200
    except OSError:
        return False


async def test_what_a_worker_left_is_told_by_the_exit_code(sqlite: Store, tmp_path: Path) -> None:
    """Whoever gives the directory away must hear that an outcome is in it which no worker that lives can record."""
    async with RecordingUpstream() as upstream, process(sqlite, tmp_path, upstream, **TOLD) as gateway:
        config = parse(config_text(upstream.url, sqlite, tmp_path))
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


@pytest.mark.full
async def test_a_second_signal_skips_the_delay_of_all(sqlite: Store, tmp_path: Path) -> None:
    """The supervisor tells its workers, and nobody waits for the load balancers."""
    changes: Any = {**TOLD, "shutdown": {"delay": "10m", "drain_timeout": "20s"}}
    async with RecordingUpstream() as upstream, process(sqlite, tmp_path, upstream.url, **changes) as gateway:
        children = processes.descendants(gateway.pid)
        gateway.ask_to_stop()
        await eventually(lambda: len(lines(gateway, level="info", worker=1)) > 0 and "stopping: " in gateway.output())
        gateway.ask_to_stop()
        assert await gateway.wait_exit() == 0
        assert not living(children)


async def test_stopped_in_order(sqlite: Store, tmp_path: Path) -> None:
    """SIGTERM lets every worker finish what it works on; no process is left, and nothing else either."""
    async with RecordingUpstream() as upstream, process(sqlite, tmp_path, upstream, **TOLD) as gateway:
        hold = asyncio.Event()
        upstream.on("/charges", Answer(201, hold=hold))
        requests = [asyncio.create_task(send(gateway.port, f"key-{each}")) for each in range(MANY)]
        await upstream.wait_for_requests(MANY)
        await eventually(lambda: len(lines(gateway, message="claimed")) == MANY)
        assert {line["worker"] for line in lines(gateway, message="claimed")} == {1, 2}
        children = processes.descendants(gateway.pid)
        assert len(children) == 2
        gateway.ask_to_stop()
        await eventually(lambda: no_one_listens(gateway.port), what="nobody listens any more")
        hold.set()
        assert {status_of(answer) for answer in await asyncio.gather(*requests)} == {(201, "stored")}
        assert await gateway.wait_exit() == 0
        assert not living(children)
        assert lines(gateway, level="error") == []


async def test_all_workers_are_told_to_stop(sqlite: Store, tmp_path: Path) -> None:
    """Others follow, and who asks meanwhile how they are gets an answer, also about one that is just leaving."""
    async with RecordingUpstream() as upstream, process(sqlite, tmp_path, upstream, **TOLD) as gateway:
        before = workers(gateway)
        for pid in before.values():
            os.kill(pid, signal.SIGTERM)

        async def have_followed() -> bool:
            for target in ("/readyz", "/metrics"):
                assert (await gateway.status(target)).status in (200, 503)
            now = workers(gateway)
            return len(now) == len(before) and not set(now.values()) & set(before.values())

        await eventually(have_followed, 30.0)
        await all_serve(gateway)
        assert status_of(await send(gateway.port, "k1")) == (200, "stored")
        assert gateway.terminate() == 0


async def test_a_worker_is_frozen(sqlite: Store, tmp_path: Path) -> None:
    """A scrape does not wait for it: its last numbers stand, it is named, and the rest is ready. If the supervisor is
    killed meanwhile, it ends as all workers do, and the next gateway can begin at once."""
    async with RecordingUpstream() as upstream, process(sqlite, tmp_path, upstream, **TOLD) as gateway:
        for each in range(MANY):
            await send(gateway.port, f"key-{each}")
        assert await number(gateway, "idempotency_claims_total", route="charge") == MANY
        pid = workers(gateway)[1]
        processes.pause(pid)
        async with asyncio.timeout(SCRAPE_SECONDS):
            await gateway.status("/metrics")
        assert await number(gateway, "idempotency_claims_total", silent=1, route="charge") == MANY
        await eventually(lambda: are_shown(gateway, {"1": "silent", "2": "serving"}), 30.0)
        processes.resume(pid)
        await all_serve(gateway)
        children = workers(gateway)
        processes.pause(children[2])
        os.kill(gateway.pid, signal.SIGKILL)
        assert await gateway.wait_exit() == -signal.SIGKILL
        await eventually(lambda: not living(children.values()))
        await gateway.start()
        assert status_of(await send(gateway.port, "k1")) == (200, "stored")


@pytest.mark.full
async def test_a_frozen_worker_is_not_waited_for(sqlite: Store, tmp_path: Path) -> None:
    """Whoever is silent for long loses its seat to another one, liveness says so, and answering again undoes it."""
    async with RecordingUpstream() as upstream, process(sqlite, tmp_path, upstream, **TOLD) as gateway:
        pid = workers(gateway)[1]
        processes.pause(pid)

        await eventually(lambda: is_live(gateway, False), 30.0)
        answers = await asyncio.gather(*[send(gateway.port, f"key-{each}") for each in range(MANY)])
        assert {status_of(answer) for answer in answers} == {(200, "stored")}
        processes.resume(pid)
        await eventually(lambda: is_live(gateway, True), 30.0)
        for each in range(MANY):
            await send(gateway.port, f"later-{each}")
        await eventually(lambda: len(lines(gateway, verdict="stored")) == 2 * MANY)
        assert {line["worker"] for line in lines(gateway, verdict="stored")[MANY:]} == {1, 2}


async def test_the_journal_of_a_dead_worker(own_postgres: PostgresServer, tmp_path: Path) -> None:
    """What it could only journal is recorded by whoever follows, and replayed."""
    store = {"durable": own_postgres.url}
    async with RecordingUpstream() as upstream, process(store, tmp_path, upstream.url, **TOLD) as gateway:
        hold = asyncio.Event()
        upstream.on("/charges", Answer(201, body=b"charged", hold=hold))
        holder, request = await holder_of(gateway, upstream, "k1")
        own_postgres.crash()
        hold.set()
        first = await request
        assert (status_of(first), first.body) == ((201, "journaled"), b"charged")
        assert await number(gateway, "idempotency_journal_waiting") == 1
        os.kill(workers(gateway)[holder], signal.SIGKILL)
        await eventually(lambda: len(lines(gateway, level="error")) == 1)
        await all_serve(gateway)
        own_postgres.start()
        again = await wait_answered(
            gateway.port, "k1", verdicts=frozenset({"replayed"}), headers=(("Prefer", "wait=0"),), deadline_seconds=60
        )
        assert (again.status, again.body, again.header("X-Nonce")) == (201, b"charged", first.header("X-Nonce"))
        assert len(upstream.requests) == 1


@asynccontextmanager
async def refused(config: dict[str, Any], directory: Path) -> AsyncIterator[GatewayProcess]:
    """A gateway that cannot start, at its end."""
    gateway = GatewayProcess(config, directory)
    gateway.launch()
    try:
        assert await gateway.wait_exit() == 1
        yield gateway
    finally:
        gateway.kill()


@pytest.mark.full
async def test_an_address_that_is_taken(sqlite: Store, tmp_path: Path) -> None:
    """It is told once, and a second gateway of several workers is noticed like any other."""
    with taken_port() as port:
        config = config_of(sqlite, tmp_path, "http://127.0.0.1:9", workers=2, admin={"token": "t" * 32})
        config["admin"]["listen"] = f"127.0.0.1:{port}"
        async with refused(config, tmp_path) as gateway:
            assert gateway.output().count("(admin.listen)") == 1
    config = config_of(sqlite, tmp_path, "http://127.0.0.1:9", workers=2)
    async with GatewayProcess(config, tmp_path / "one") as first:
        second = GatewayProcess(config, tmp_path / "two")
        second.config_file.write_text(second.config_file.read_text().replace(f":{second.port}", f":{first.port}"))
        second.launch()
        assert await second.wait_exit() == 1
        assert second.output().count("another program listens there already") == 1


async def test_what_no_worker_can_start_with(sqlite: Store, tmp_path: Path) -> None:
    """What is wrong for all is told once, by the one that goes ahead."""
    listen = {"tls": {"cert": "/nowhere/cert.pem", "key": "/nowhere/key.pem"}}
    gateway = GatewayProcess(config_of(sqlite, tmp_path, "http://127.0.0.1:9", workers=2), tmp_path)
    text = gateway.config_file.read_text()
    address = f"127.0.0.1:{gateway.port}"
    gateway.config_file.write_text(
        text.replace(f"listen: {address}", "listen: " + json.dumps({"address": address, **listen}))
    )
    gateway.launch()
    assert await gateway.wait_exit() == 1
    assert gateway.output().count("/nowhere/cert.pem") == 1


async def test_none_is_left_and_none_can_start(sqlite: Store, tmp_path: Path) -> None:
    """The gateway ends, and says why."""
    async with RecordingUpstream() as upstream, process(sqlite, tmp_path, upstream.url, workers=2) as gateway:
        (tmp_path / "store" / "operations.db").unlink()
        (tmp_path / "store" / "operations.db").write_bytes(b"not a database" * 1000)
        for pid in workers(gateway).values():
            os.kill(pid, signal.SIGKILL)
        assert await gateway.wait_exit() == 1
        assert "the durable store must not be used" in gateway.output().splitlines()[-1]


async def test_a_purge_reaches_every_worker(postgres_url: str, redis_url: str, tmp_path: Path) -> None:
    """With Redis the answer is gone from the memory of all of them at once, whichever was told."""
    port = free_port()
    store = {"durable": postgres_url, "fast": redis_url, "cache_max_age": "1h"}
    admin = {"listen": f"127.0.0.1:{port}", "token": "t" * 32}
    fields = [("Authorization", f"Bearer {'t' * 32}"), ("Content-Type", "application/json")]
    async with RecordingUpstream() as upstream, process(store, tmp_path, upstream.url, admin=admin, **TOLD) as gateway:
        first = await send(gateway.port, "k1")
        again = [await send(gateway.port, "k1") for _ in range(MANY)]
        assert {status_of(answer) for answer in again} == {(200, "replayed")}
        assert await number(gateway, "idempotency_copy_lookups_total", source="cache", result="hit") >= MANY - 2
        (about,) = (await http.request(port, "GET", "/operations?state=completed", fields[:1])).json()["operations"]
        operation = about["operation_id"]
        purged = await http.request(port, "POST", f"/operations/{operation}/purge", fields, b'{"why": "a test"}')
        assert (first.status, purged.status) == (200, 200)

        async def is_gone() -> bool:
            answers = [await send(gateway.port, "k1") for _ in range(MANY)]
            return {status_of(answer) for answer in answers} == {(410, "key-expired")}

        await eventually(is_gone)
        assert len(upstream.requests) == 1
