"""Real gateways as processes, killed and ended: what was acknowledged is kept, what was sent is never sent again."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from gateway import EXIT_WORK_LEFT
from tests.integration.hand import assert_replayed, begin, by_way_of
from tests.support import http
from tests.support.eventually import eventually
from tests.support.fleet import NOW, config_of, gateways_on, no_one_listens, process, send, try_send
from tests.support.full_service import FullService
from tests.support.gateway import GatewayProcess
from tests.support.house import sqlite_store, status_of, stores
from tests.support.postgres import PostgresServer
from tests.support.redis import RedisServer
from tests.support.relay import Relay
from tests.support.upstream import Answer, RecordingUpstream

Store = dict[str, Any]


store = stores("postgres-redis", full=["sqlite"])


async def test_kill_keeps_what_was_answered(store: Store, tmp_path: Path, upstream: RecordingUpstream) -> None:
    """After `kill -9` of a gateway with 50 answered operations, all replay byte for byte."""
    upstream.on("/charges", lambda received: Answer(201, body=b"\0\xff" + received.body))
    async with process(store, tmp_path, upstream) as gateway:
        keys = [f"key-{number}" for number in range(50)]
        answers = await asyncio.gather(*[send(gateway.port, key, key.encode()) for key in keys])
        assert {status_of(answer) for answer in answers} == {(201, "stored")}
        gateway.kill()
        await gateway.start()
        for key, first in zip(keys, answers, strict=True):
            again = await send(gateway.port, key, key.encode())
            assert status_of(again) == (201, "replayed")
            assert (again.body, again.header("X-Nonce")) == (first.body, first.header("X-Nonce"))
        assert len(upstream.requests) == 50


async def test_killed_while_it_waits_for_the_upstream(
    store: Store, tmp_path: Path, upstream: RecordingUpstream
) -> None:
    """The key of a gateway that died with a request under way is in doubt after its lease, with one effect for ever."""
    async with process(store, tmp_path, upstream, store={"lease": "3s"}) as gateway:
        request, _ = await begin(gateway, upstream)
        upstream.on("/charges", Answer(201))
        gateway.kill()
        assert await request is None
        (marks,) = (tmp_path / "state").rglob("*.attempts")
        await gateway.start()
        # What it has marked is looked at once, and then it says nothing else for ever.
        await eventually(lambda: not marks.exists(), deadline_seconds=15)

        async def after_the_lease() -> tuple[int, str | None] | None:
            word = status_of(await send(gateway.port, "k1", headers=NOW))
            # Overloaded is what a busy machine has held up for a third of this short lease.
            return None if word in ((409, "in-flight"), (503, "overloaded")) else word

        assert await eventually(after_the_lease, deadline_seconds=15) == (409, "in-doubt")
        assert len(upstream.effects) == 1


async def test_killed_before_it_sent_anything(store: Store, tmp_path: Path, upstream: RecordingUpstream) -> None:
    """Its claim is no doubt: the retry is executed by a gateway of the host that runs beside it."""
    # Both have one state directory.
    beside = GatewayProcess(config_of(store, tmp_path, upstream.url), tmp_path / "beside")
    with FullService() as full:
        async with process(store, tmp_path, full.url, upstream={"connect_timeout": "1m"}) as gateway, beside:
            request = asyncio.create_task(try_send(gateway.port, "k1"))
            await eventually(full.connecting, what="it connects")
            # A duplicate is told so once the claim was granted.
            assert status_of(await send(gateway.port, "k1", headers=NOW)) == (409, "in-flight")
            gateway.kill()
            assert await request is None
            words = set()

            async def is_executed() -> bool:
                words.add(word := status_of(await send(beside.port, "k1", headers=NOW)))
                return word == (201, "stored")

            await eventually(is_executed, deadline_seconds=20)
            # Its host knows that nothing was sent, and says so until the store has it.
            assert words <= {(503, "released"), (201, "stored")}
            assert len(upstream.effects) == 1


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.full)])
async def test_herd_through_two_processes(
    tmp_path: Path, postgres_url: str, redis_url: str, upstream: RecordingUpstream, workers: int
) -> None:
    """100 simultaneous duplicates through two gateways on Postgres and Redis: one request, 100 equal answers."""
    changes: Any = {"route": {"in_flight": {"wait": "20s"}}, "workers": workers}
    store = {"durable": postgres_url, "fast": redis_url}
    async with gateways_on(store, tmp_path, upstream.url, "ab", **changes) as pair:
        hold = asyncio.Event()
        upstream.on("/charges", Answer(201, hold=hold, body=b"once"))
        tasks = [asyncio.create_task(send(pair[number % 2].port, "k1")) for number in range(100)]
        await upstream.wait_for_requests(1)
        hold.set()
        answers = await asyncio.gather(*tasks)
        assert {(answer.status, answer.body) for answer in answers} == {(201, b"once")}
        assert sorted(str(status_of(answer)[1]) for answer in answers) == ["replayed"] * 99 + ["stored"]
        assert len(upstream.requests) == 1


async def test_one_content_under_twenty_keys_has_one_effect(
    tmp_path: Path, postgres_url: str, upstream: RecordingUpstream
) -> None:
    """Twenty simultaneous requests of one content under twenty new keys, through two gateways that refuse repeats: one
    effect. The first gateway is killed over it; what it left in doubt is refused to all others as well."""
    refusing: Any = {"route": {"repeats": {"action": "refuse"}}}
    async with gateways_on({"durable": postgres_url}, tmp_path, upstream.url, "ab", **refusing) as (one, two):
        tasks = [asyncio.create_task(send((one, two)[number % 2].port, f"k{number}")) for number in range(20)]
        answers = [status_of(answer) for answer in await asyncio.gather(*tasks)]
        assert sorted(map(str, answers)) == [str((201, "stored"))] + [str((409, "likely-duplicate"))] * 19
        assert len(upstream.effects) == 1
        other = b'{"amount":7}'
        lost, _ = await begin(one, upstream, "k20", other)
        one.kill()
        assert await lost is None
        upstream.on("/charges", Answer())
        assert status_of(await send(two.port, "k21", other)) == (409, "likely-duplicate")
        assert len(upstream.requests) == 2


async def test_drain_finishes_what_is_in_flight(store: Store, tmp_path: Path, upstream: RecordingUpstream) -> None:
    """After SIGTERM readiness falls, what is in flight is answered and recorded, and the exit code is 0."""
    shutdown = {"delay": "300ms", "drain_timeout": "10s"}
    async with process(store, tmp_path, upstream, shutdown=shutdown) as gateway:
        request, hold = await begin(gateway, upstream)
        gateway.ask_to_stop()

        async def unready() -> bool:
            try:
                return (await gateway.status("/readyz")).status == 503
            except (OSError, http.NoAnswerError):
                return False

        await eventually(unready)
        hold.set()
        first = await request
        assert status_of(first) == (201, "stored")
        assert await gateway.wait_exit() == 0
        await gateway.start()
        await assert_replayed("k1", first, gateway)
        assert len(upstream.requests) == 1


async def test_redis_lost_and_frozen(
    tmp_path: Path, postgres_url: str, own_redis: RedisServer, upstream: RecordingUpstream
) -> None:
    """Without Redis, or with one that does not answer, everything is slower and still right."""
    async with process({"durable": postgres_url, "fast": own_redis.url}, tmp_path, upstream) as gateway:
        assert status_of(await send(gateway.port, "before")) == (201, "stored")
        own_redis.pause()
        try:
            for key in ("before", "frozen", "frozen"):
                assert (await send(gateway.port, key)).status == 201
        finally:
            own_redis.resume()
        own_redis.kill()
        for key in ("before", "frozen", "lost", "lost"):
            assert (await send(gateway.port, key)).status == 201
        gateway.kill()
        await gateway.start()
        for key in ("before", "frozen", "lost"):
            assert status_of(await send(gateway.port, key)) == (201, "replayed")
        assert len(upstream.requests) == 3


async def test_postgres_crash_keeps_what_was_answered(
    tmp_path: Path, own_postgres: PostgresServer, upstream: RecordingUpstream
) -> None:
    """A gateway starts without its Postgres, refuses what needs it, passes the rest, and serves once it is back. A
    crash and restart of Postgres then forgets nothing that was acknowledged."""
    own_postgres.stop()
    async with process({"durable": own_postgres.url}, tmp_path, upstream) as gateway:

        async def has_store() -> bool:
            return (await gateway.status("/readyz?require=store")).status == 200

        assert not await has_store()
        assert status_of(await send(gateway.port, "k0")) == (503, "store-unavailable")
        assert (await http.request(gateway.port, "GET", "/other")).status == 200
        own_postgres.start()
        await eventually(has_store, deadline_seconds=20)
        answers = {key: await send(gateway.port, key) for key in (f"k{number}" for number in range(10))}
        assert {status_of(answer) for answer in answers.values()} == {(201, "stored")}
        own_postgres.crash()
        assert status_of(await send(gateway.port, "new")) == (503, "store-unavailable")
        own_postgres.start()
        gateway.kill()
        await gateway.start()
        for key, first in answers.items():
            await assert_replayed(key, first, gateway)
        assert [each.method for each in upstream.requests] == ["GET", *["POST"] * 10]


async def test_a_silent_store_does_not_hold_up_a_stop(
    own_postgres: PostgresServer, tmp_path: Path, upstream: RecordingUpstream
) -> None:
    """Workers end in order and in time, and the outcome that the store did not take is in the journal."""
    stopping: Any = {"workers": 2, "shutdown": {"delay": "0s", "drain_timeout": "1s"}}
    async with (
        Relay(own_postgres.port) as relay,
        process({"durable": by_way_of(relay, own_postgres.url)}, tmp_path, upstream, **stopping) as gateway,
    ):
        sent, answering = await begin(gateway, upstream)
        relay.black_hole = True
        relay.cut()
        answering.set()
        gateway.ask_to_stop()
        assert await gateway.wait_exit() == EXIT_WORK_LEFT
        assert (await sent).status == 503
        assert "are killed" not in gateway.output()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
async def test_idle_stop_is_clean(tmp_path: Path, upstream: RecordingUpstream, number: signal.Signals) -> None:
    """Without work, either signal ends the program with exit code 0 and without a traceback; the log's end says so."""
    async with process(sqlite_store(tmp_path), tmp_path, upstream) as gateway:
        os.kill(gateway.pid, number)
        assert await gateway.wait_exit() == 0
        assert "Traceback" not in gateway.output()
        assert "stopped with exit code 0" in gateway.output().splitlines()[-1]


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.full)])
async def test_a_second_signal_skips_the_delay_alone(tmp_path: Path, upstream: RecordingUpstream, workers: int) -> None:
    """Whoever asks twice need not wait for a load balancer that is not there; what is in flight is finished as ever."""
    stopping: Any = {"workers": workers, "shutdown": {"delay": "10m", "drain_timeout": "20s"}}
    async with process(sqlite_store(tmp_path), tmp_path, upstream, **stopping) as gateway:
        request, hold = await begin(gateway, upstream)
        gateway.ask_to_stop()
        said = "stopping: serving for another 600 s, then up to 20 s for 1 operation in flight"
        await eventually(lambda: said in gateway.output())
        gateway.ask_to_stop()
        await eventually(lambda: no_one_listens(gateway.port), what="the listener is closed")
        gateway.ask_to_stop()
        hold.set()
        assert status_of(await request) == (201, "stored")
        assert await gateway.wait_exit() == 0


async def test_ctrl_c_while_it_is_loaded(tmp_path: Path) -> None:
    """Before there is anything to end in order the program ends without a word."""
    gateway = GatewayProcess({}, tmp_path, environment={"PYTHONPROFILEIMPORTTIME": "1"})
    gateway.launch()
    await eventually(lambda: "gateway.core.operation" in gateway.output(), what="half of it is loaded")
    os.kill(gateway.pid, signal.SIGINT)
    await gateway.wait_exit()
    assert "Traceback" not in gateway.output()
