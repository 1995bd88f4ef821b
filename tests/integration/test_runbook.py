"""Alerts on real gateways: the condition comes, the entry in the runbook is followed, and the alert ends.

Here are those whose number no other test reads of a gateway, or that end by more than the end of their cause. The rules
and the entries of all are in `observe/test_alerts`, what facts do to numbers in `observe/test_metrics`, and what the
commands do in `tests/admin`.
"""

from __future__ import annotations

import asyncio
import re
from itertools import count
from pathlib import Path

import pytest

from gateway.core.operation import MICROSECONDS
from tests.admin.shell import CREATED, CUT
from tests.integration.hand import telling
from tests.support.accepting import ASYNC, accepting
from tests.support.alerting import Scene, as_process, at_home
from tests.support.eventually import eventually
from tests.support.house import status_of
from tests.support.postgres import PostgresServer
from tests.support.receiver import Receiver, status
from tests.support.upstream import Answer
from tests.support.wall_clock import WallClock

DAY_SECONDS = 86_400
SECONDS_OF_AGE = {"> 300": "> 0"}
DONE = Answer(201, body=b"done")


async def in_doubt(scene: Scene, key: str) -> str:
    """The id of an operation whose response was cut."""
    scene.upstream.on("/charges", CUT)
    response = await scene.send(key)
    assert response.header("Idempotency-Status") == "in-doubt"
    scene.upstream.on("/charges", DONE)
    return str(response.json()["operation_id"])


@pytest.mark.full
async def test_in_doubt(tmp_path: Path, everybodys_clock: WallClock) -> None:
    """One had its effect, and one had none, which may be said once no request can arrive any more."""
    async with as_process("IdempotencyInDoubt", tmp_path) as scene:
        happened, never = await in_doubt(scene, "k1"), await in_doubt(scene, "k2")
        await scene.until_it_fires()
        listed = await scene.run("idempotency-gateway inspect --list")
        assert {happened, never} <= set(listed.split())
        assert "POST" in await scene.run("idempotency-gateway inspect OPERATION_ID", OPERATION_ID=happened)
        await scene.run(
            'idempotency-gateway resolve OPERATION_ID --completed response.txt --why "seen in the ledger"',
            OPERATION_ID=happened,
            response_txt=scene.shell.file("response.txt", CREATED),
        )
        none = 'idempotency-gateway resolve OPERATION_ID --never-happened --why "not in the ledger"'
        refused = await scene.run(none, code=1, OPERATION_ID=never)
        shown = await scene.run("idempotency-gateway inspect OPERATION_ID", OPERATION_ID=never)
        (until, *_) = re.findall(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z", refused)
        assert until in shown
        everybodys_clock.move(1200)
        scene.spawns = True
        await scene.run(none, OPERATION_ID=never)
        await scene.until_it_ends()
        assert status_of(await scene.send("k1")) == (201, "recovered")
        assert status_of(await scene.send("k2")) == (201, "stored")


async def test_dead_letters(tmp_path: Path) -> None:
    """The credential was refused: it is renewed, one is delivered after all, and one is dropped."""
    async with at_home("IdempotencyDeadLetters", tmp_path, **accepting(delivers=True)) as scene:
        scene.upstream.on("/charges", Answer(401))
        accepted = [await scene.send(key, headers=(ASYNC,)) for key in ("k1", "k2")]
        wanted, dropped = (str(each.json()["id"]) for each in accepted)

        async def are_dead() -> bool:
            listed = await scene.do("inspect", "--list", "--state", "dead_letter")
            return {wanted, dropped} <= set(listed.split())

        await eventually(are_dead, 20.0)
        await scene.until_it_fires()
        listed = await scene.run("idempotency-gateway inspect --list --state dead_letter")
        assert {wanted, dropped} <= set(listed.split())
        assert "401" in await scene.run("idempotency-gateway inspect OPERATION_ID", OPERATION_ID=wanted)
        scene.upstream.on("/charges", DONE)
        await scene.run('idempotency-gateway requeue OPERATION_ID --why "credential renewed"', OPERATION_ID=wanted)
        await scene.run('idempotency-gateway withdraw OPERATION_ID --why "order was cancelled"', OPERATION_ID=dropped)
        await scene.until_it_ends()


async def test_waiting_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sink fails, and is mended; what waited arrives by itself."""
    # However long the commands take, it is mended behind them.
    monkeypatch.setattr("gateway.events.webhook.WebhookSink.schedule_us", (MICROSECONDS,))
    async with (
        Receiver(*[status(503)] * 1000) as ledger,
        at_home("IdempotencyEventsWait", tmp_path, ages=SECONDS_OF_AGE, **telling(ledger=ledger)) as scene,
    ):
        await scene.send()
        await scene.until_it_fires()
        assert "ledger" in await scene.run("idempotency-gateway sinks")
        listed = await scene.run("idempotency-gateway events --sink NAME --state waiting", NAME="ledger")
        assert "operation.completed" in listed
        ledger.answers.clear()
        await scene.until_it_ends()


@pytest.mark.full
async def test_dead_events(tmp_path: Path, everybodys_clock: WallClock) -> None:
    """The sink failed for longer than events are kept; it is mended, and one is published after all."""
    async with Receiver(status(503)) as ledger:
        settings = telling(ledger=ledger)
        settings["events"]["keep"] = "1h"
        async with as_process("IdempotencyEventsDead", tmp_path, spawns=True, **settings) as scene:
            await scene.send()
            await ledger.wait_received(1)
            everybodys_clock.move(2 * 3600)
            ledger.answers.append(status(503))
            await scene.until_it_fires()
            listed = await scene.run("idempotency-gateway events --sink NAME", NAME="ledger")
            (event_id,) = re.findall(r"evt_\w+", listed)
            before = len(ledger.received)
            await scene.run('idempotency-gateway redeliver EVENT_ID --why "sink mended"', EVENT_ID=event_id)
            await scene.until_it_ends()
            assert (await ledger.wait_received(before + 1))[-1].id == event_id


@pytest.mark.full
async def test_the_durable_store_is_down(tmp_path: Path, own_postgres: PostgresServer) -> None:
    """It is told from its absence; once it is back, requests run."""
    async with as_process("IdempotencyDurableStoreDown", tmp_path, {"durable": own_postgres.url}) as scene:
        own_postgres.crash()

        async def refused() -> None:
            assert (await scene.send()).header("Idempotency-Status") == "store-unavailable"

        await scene.until_it_fires(refused)
        assert str(own_postgres.port) in await scene.run("idempotency-gateway check --store", code=1)
        parts = (await scene.process.status("/readyz")).json()["parts"]
        assert "refused" in str(parts)
        await asyncio.to_thread(own_postgres.start)
        await scene.until_it_ends()
        await scene.run("idempotency-gateway check --store")
        assert (await scene.send()).status == 200


async def test_late_partitions(tmp_path: Path, postgres_url: str) -> None:
    """The service declares longer and longer windows; its responses expire on days that have no partition yet."""
    async with at_home("IdempotencyPartitionsLate", tmp_path, {"durable": postgres_url}) as scene:
        days = count(2)

        async def answered_for_longer() -> None:
            day = next(days)
            declared = ("Idempotency-Retention", str(day * DAY_SECONDS))
            scene.upstream.on("/charges", Answer(201, headers=(declared,)))
            assert (await scene.send(f"k{day}")).header("Idempotency-Status") == "stored"

        await scene.until_it_fires(answered_for_longer)
        await scene.until_it_ends()


async def test_a_journal_that_waits(tmp_path: Path, own_postgres: PostgresServer) -> None:
    """The store is mended, and the outcome is written by itself."""
    store = {"durable": own_postgres.url}
    async with as_process("IdempotencyJournalWaits", tmp_path, store, ages=SECONDS_OF_AGE) as scene:
        hold = asyncio.Event()
        scene.upstream.on("/charges", Answer(201, hold=hold))
        request = await scene.begin()
        (operation_id,) = scene.upstream.requests[-1].values("Idempotency-Operation")
        own_postgres.crash()
        hold.set()
        assert status_of(await request) == (201, "journaled")
        await scene.until_it_fires()
        assert operation_id.decode() in await scene.run("idempotency-gateway journal --state waiting")
        await asyncio.to_thread(own_postgres.start)
        await scene.until_it_ends()
        assert status_of(await scene.send()) == (201, "replayed")


async def test_a_stuck_operation(tmp_path: Path) -> None:
    """The service works on one for long; it ends with its response. By its age it is not listed here, being young."""
    async with as_process("IdempotencyOperationStuck", tmp_path, ages={"> 900": "> 0"}) as scene:
        hold = asyncio.Event()
        scene.upstream.on("/charges", Answer(201, hold=hold))
        first = await scene.begin()
        await scene.until_it_fires()
        await scene.run("idempotency-gateway inspect --list --state claimed --older-than 15m")
        assert "charge" in await scene.do("inspect", "--list", "--state", "claimed")
        hold.set()
        await first
        await scene.until_it_ends()
