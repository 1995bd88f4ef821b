"""Real gateways as processes, killed and ended: what was acknowledged is kept, what was sent is never sent again."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from gateway import EXIT_WORK_LEFT
from tests.support import http
from tests.support.eventually import eventually
from tests.support.fleet import NOW, no_one_listens, process, send
from tests.support.gateway import GatewayProcess
from tests.support.house import sqlite_store, status_of, stores
from tests.support.postgres import PostgresServer
from tests.support.redis import RedisServer
from tests.support.relay import Relay
from tests.support.upstream import Answer, RecordingUpstream

Store = dict[str, Any]


store = stores("postgres-redis", full=["sqlite"])


async def test_kill_keeps_what_was_answered(store: Store, tmp_path: Path) -> None:
    """After `kill -9` of a gateway with 50 answered operations, all replay byte for byte."""
    async with RecordingUpstream() as upstream, process(store, tmp_path, upstream) as gateway:
        upstream.on("/charges", lambda received: Answer(201, body=b"\0\xff" + received.body))
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


async def test_killed_while_it_waits_for_the_upstream(store: Store, tmp_path: Path) -> None:
    """The key of a gateway that died with a request under way is in doubt after its lease, with one effect for ever."""
    async with RecordingUpstream() as upstream, process(store, tmp_path, upstream, store={"lease": "3s"}) as gateway:
        upstream.on("/charges", Answer(hold=asyncio.Event()), Answer(201))
        request = asyncio.create_task(send(gateway.port, "k1"))
        await upstream.wait_for_requests(1)
        gateway.kill()
        with pytest.raises(http.NoAnswerError):
            await request
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


async def test_killed_before_it_sent_anything(store: Store, tmp_path: Path) -> None:
    """The retry is executed as soon as a gateway of the host is back, and nothing was ever in doubt."""
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for filling in (first, second):
            # Those who connect to it after them wait for ever.
            filling.setblocking(False)
            filling.connect_ex(full.getsockname())
        unreachable = f"http://127.0.0.1:{full.getsockname()[1]}"
        async with process(store, tmp_path, unreachable, upstream={"connect_timeout": "1m"}) as gateway:
            request = asyncio.create_task(send(gateway.port, "k1"))

            async def arrived() -> bool:
                return await gateway.metric('idempotency_in_flight{route="charge"}', 0.0) == 1

            await eventually(arrived)
            # A duplicate is told so once the claim was granted.
            assert status_of(await send(gateway.port, "k1", headers=NOW)) == (409, "in-flight")
            gateway.kill()
            with pytest.raises(http.NoAnswerError):
                await request
    words = set()
    async with RecordingUpstream() as upstream, process(store, tmp_path, upstream) as gateway:

        async def executed() -> bool:
            response = await send(gateway.port, "k1", headers=NOW)
            words.add(status_of(response))
            return status_of(response) == (200, "stored")

        await eventually(executed)
        # Once its host knows that nothing was sent, it says so until the store has it.
        assert words <= {(409, "in-flight"), (503, "released"), (200, "stored")}
        assert len(upstream.effects) == 1


async def test_herd_through_two_processes(tmp_path: Path, postgres_url: str, redis_url: str) -> None:
    """100 simultaneous duplicates through two gateways on Postgres and Redis: one request, 100 equal answers."""
    store = {"durable": postgres_url, "fast": redis_url}
    route = {"in_flight": {"wait": "20s"}}
    async with (
        RecordingUpstream() as upstream,
        process(store, tmp_path / "a", upstream, route=route) as one,
        process(store, tmp_path / "b", upstream, route=route) as two,
    ):
        hold = asyncio.Event()
        upstream.on("/charges", Answer(201, hold=hold, body=b"once"))
        tasks = [asyncio.create_task(send((one, two)[number % 2].port, "k1")) for number in range(100)]
        await upstream.wait_for_requests(1)
        hold.set()
        answers = await asyncio.gather(*tasks)
        assert {(answer.status, answer.body) for answer in answers} == {(201, b"once")}
        assert sorted(str(status_of(answer)[1]) for answer in answers) == ["replayed"] * 99 + ["stored"]
        assert len(upstream.requests) == 1


async def test_one_content_under_twenty_keys_has_one_effect(tmp_path: Path, postgres_url: str) -> None:
    """Twenty simultaneous requests of one content under twenty new keys, through two gateways that refuse repeats: one
    effect. The first gateway is killed over it; what it left in doubt is refused to all others as well."""
    store, route = {"durable": postgres_url}, {"repeats": {"action": "refuse"}}
    async with (
        RecordingUpstream() as upstream,
        process(store, tmp_path / "a", upstream, route=route) as one,
        process(store, tmp_path / "b", upstream, route=route) as two,
    ):
        tasks = [asyncio.create_task(send((one, two)[number % 2].port, f"k{number}")) for number in range(20)]
        answers = [status_of(answer) for answer in await asyncio.gather(*tasks)]
        assert sorted(map(str, answers)) == [str((200, "stored"))] + [str((409, "likely-duplicate"))] * 19
        assert len(upstream.effects) == 1
        other = b'{"amount":7}'
        upstream.on("/charges", Answer(hold=asyncio.Event()))
        lost = asyncio.create_task(send(one.port, "k20", other))
        await upstream.wait_for_requests(2)
        one.kill()
        await asyncio.gather(lost, return_exceptions=True)
        upstream.on("/charges", Answer())
        assert status_of(await send(two.port, "k21", other)) == (409, "likely-duplicate")
        assert len(upstream.requests) == 2


async def test_drain_finishes_what_is_in_flight(store: Store, tmp_path: Path) -> None:
    """After SIGTERM readiness falls, what is in flight is answered and recorded, and the exit code is 0."""
    shutdown = {"delay": "300ms", "drain_timeout": "10s"}
    async with RecordingUpstream() as upstream, process(store, tmp_path, upstream, shutdown=shutdown) as gateway:
        hold = asyncio.Event()
        upstream.on("/charges", Answer(201, hold=hold))
        request = asyncio.create_task(send(gateway.port, "k1"))
        await upstream.wait_for_requests(1)
        gateway.ask_to_stop()

        async def unready() -> bool:
            try:
                return (await gateway.status("/readyz")).status == 503
            except (OSError, http.NoAnswerError):
                return False

        await eventually(unready)
        hold.set()
        assert status_of(await request) == (201, "stored")
        assert await gateway.wait_exit() == 0
        await gateway.start()
        assert status_of(await send(gateway.port, "k1")) == (201, "replayed")
        assert len(upstream.requests) == 1


async def test_redis_lost_and_frozen(tmp_path: Path, postgres_url: str, own_redis: RedisServer) -> None:
    """Without Redis, or with one that does not answer, everything is slower and still right."""
    store = {"durable": postgres_url, "fast": own_redis.url}
    async with RecordingUpstream() as upstream, process(store, tmp_path, upstream) as gateway:
        assert status_of(await send(gateway.port, "before")) == (200, "stored")
        own_redis.pause()
        try:
            for key in ("before", "frozen", "frozen"):
                response = await send(gateway.port, key)
                assert response.status == 200
        finally:
            own_redis.resume()
        own_redis.kill()
        for key in ("before", "frozen", "lost", "lost"):
            assert (await send(gateway.port, key)).status == 200
        gateway.kill()
        await gateway.start()
        for key in ("before", "frozen", "lost"):
            assert status_of(await send(gateway.port, key)) == (200, "replayed")
        assert len(upstream.requests) == 3


async def test_postgres_away_at_the_start(tmp_path: Path, own_postgres: PostgresServer) -> None:
    """A gateway starts without its Postgres, refuses what needs it, passes the rest, and serves once it is back."""
    own_postgres.stop()
    async with RecordingUpstream() as upstream, process({"durable": own_postgres.url}, tmp_path, upstream) as gateway:
        assert (await gateway.status("/readyz?require=store")).status == 503
        assert status_of(await send(gateway.port, "k1")) == (503, "store-unavailable")
        assert (await http.request(gateway.port, "GET", "/other")).status == 200
        own_postgres.start()

        async def stored() -> bool:
            return status_of(await send(gateway.port, "k1")) == (200, "stored")

        await eventually(stored, deadline_seconds=20)
        assert (await gateway.status("/readyz?require=store")).status == 200
        assert len([each for each in upstream.requests if each.method == "POST"]) == 1


async def test_postgres_crash_keeps_what_was_answered(tmp_path: Path, own_postgres: PostgresServer) -> None:
    """A crash and restart of Postgres forgets nothing that was acknowledged."""
    async with RecordingUpstream() as upstream, process({"durable": own_postgres.url}, tmp_path, upstream) as gateway:
        answers = [await send(gateway.port, f"k{number}") for number in range(10)]
        own_postgres.crash()
        assert status_of(await send(gateway.port, "new")) == (503, "store-unavailable")
        own_postgres.start()
        gateway.kill()
        await gateway.start()
        for number, first in enumerate(answers):
            again = await send(gateway.port, f"k{number}")
            assert status_of(again) == (200, "replayed")
            assert again.header("X-Nonce") == first.header("X-Nonce")
        assert len(upstream.requests) == 10


async def test_a_silent_store_does_not_hold_up_a_stop(own_postgres: PostgresServer, tmp_path: Path) -> None:
    """Workers end in order and in time, and the outcome that the store did not take is in the journal."""
    async with RecordingUpstream() as upstream, Relay(own_postgres.port) as relay:
        answering = asyncio.Event()
        upstream.on("/charges", Answer(201, hold=answering))
        store = {"durable": own_postgres.url.replace(f":{own_postgres.port}/", f":{relay.port}/")}
        stopping = {"delay": "0s", "drain_timeout": "1s"}
        async with process(store, tmp_path, upstream, workers=2, shutdown=stopping) as gateway:
            sent = asyncio.create_task(send(gateway.port, "key"))
            await upstream.wait_for_requests(1)
            relay.black_hole = True
            relay.cut()
            answering.set()
            gateway.ask_to_stop()
            assert await gateway.wait_exit() == EXIT_WORK_LEFT
            assert (await sent).status == 503
            assert "are killed" not in gateway.output()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
async def test_idle_stop_is_clean(tmp_path: Path, number: signal.Signals) -> None:
    """Without work, either signal ends the program with exit code 0 and without a traceback; the log's end says so."""
    store = sqlite_store(tmp_path)
    async with RecordingUpstream() as upstream, process(store, tmp_path, upstream) as gateway:
        os.kill(gateway.pid, number)
        assert await gateway.wait_exit() == 0
        assert "Traceback" not in gateway.output()
        assert "stopped with exit code 0" in gateway.output().splitlines()[-1]


async def test_a_second_signal_skips_the_delay_alone(tmp_path: Path) -> None:
    """Whoever asks twice need not wait for a load balancer that is not there; what is in flight is finished as ever."""
    store = sqlite_store(tmp_path)
    shutdown = {"delay": "10m", "drain_timeout": "20s"}
    async with RecordingUpstream() as upstream, process(store, tmp_path, upstream, shutdown=shutdown) as gateway:
        hold = asyncio.Event()
        upstream.on("/charges", Answer(201, hold=hold))
        request = asyncio.create_task(send(gateway.port, "k1"))
        await upstream.wait_for_requests(1)
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
