"""Dead letters, doubt and pauses as an operator meets them: a gateway that accepts and delivers, and the commands."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tests.admin.shell import CUT, ROOT, Shell, shell_for
from tests.admin.test_api import Admin, Store, served
from tests.observe.scrape import Scrape
from tests.support.eventually import eventually
from tests.support.house import House, neighbour, status_of
from tests.support.upstream import Answer

ACCEPTING: dict[str, Any] = {
    "route": {"accept": {"identity": "unverified"}, "outcome": {"preset": "standard"}},
    "secrets": {"encryption": [{"id": "a", "key": "00" * 32}]},
}
ASYNC = [("Prefer", "respond-async")]
# At one a second, so many that an interrupt comes before the last one.
_MANY = 8
REFUSED = Answer(401, body=b"who are you?")
DONE = Answer(201, body=b"done")


@asynccontextmanager
async def accepting(store: Store, directory: Path) -> AsyncIterator[tuple[House, Admin, Shell]]:
    async with served(store, directory, **ACCEPTING) as (running, admin):
        yield running, admin, shell_for(running, store, directory, **ACCEPTING)


async def accept(running: House, key: str = "k1") -> str:
    """Have a request accepted; returns the id of its operation."""
    response = await running.send(key, headers=ASYNC)
    assert status_of(response) == (202, "accepted")
    operation_id = response.json()["id"]
    assert isinstance(operation_id, str)
    return operation_id


async def reach(running: House, admin: Admin, operation_id: str, state: str) -> dict[str, Any]:
    """Wait until the operation is in this state, with polls of the worker in between."""

    async def reached() -> dict[str, Any] | None:
        await running.gateway._parts.delivery.run_once()
        about: dict[str, Any] = (await admin("GET", f"/operations/{operation_id}")).json()
        return about if about["state"] == state else None

    found = await eventually(reached, 20.0, f"the operation is {state}")
    assert found is not None
    return found


async def test_a_dead_letter(store: Store, tmp_path: Path) -> None:
    """It is counted and listed, and says what to do; requeued after mending it completes, for its caller too."""
    async with accepting(store, tmp_path) as (running, admin, shell):
        running.upstream.on("/charges", REFUSED)
        operation_id = await accept(running)
        await reach(running, admin, operation_id, "dead_letter")
        await running.gateway._parts._tally_taker.run_once()
        scrape = Scrape((await running.status("/metrics")).body.decode())
        assert scrape.value("idempotency_accepted_total", route="charge") == 1
        assert scrape.value("idempotency_deliveries_total", route="charge", result="dead_letter") == 1
        assert scrape.value("idempotency_dead_letters", route="charge", reason="unauthorized") == 1
        assert scrape.value("idempotency_backlog", route="charge") == 0

        listed = await shell("inspect", "--list", "--state", "dead_letter", "--reason", "unauthorized")
        _, row = listed.out.splitlines()
        assert row.split()[:2] == [operation_id, "dead_letter"]
        assert row.split()[-2:] == ["unauthorized", "charge"]
        shown = await shell("inspect", operation_id)
        assert "Mend them: the caller's own expire" in shown.out
        assert "amount" not in shown.out
        assert "k1" not in shown.out

        running.upstream.on("/charges", DONE)
        done = await shell("requeue", operation_id, "--why", "token rotated", "--by", "alice")
        assert (done.code, done.out.partition(":")[0], done.err) == (0, "Requeued", "")
        late = await admin("POST", f"/operations/{operation_id}/requeue", {"why": "me too", "by": "bob"})
        assert (late.status, late.json()["code"]) == (409, "state")
        about = await reach(running, admin, operation_id, "completed")
        assert [(audit["event"], audit["who"]) for audit in about["audits"]] == [("requeue", "alice")]
        again = await shell("requeue", operation_id, "--why", "token rotated", "--by", "alice")
        assert (again.code, again.out.endswith("; the operation is completed now.\n")) == (0, True)
        repeat = await running.send()
        assert (repeat.status, repeat.body) == (201, b"done")
        assert len(running.upstream.requests) == 2
        await running.gateway._parts._tally_taker.run_once()
        scrape = Scrape((await running.status("/metrics")).body.decode())
        assert scrape.value("idempotency_deliveries_total", route="charge", result="completed") == 1
        assert scrape.value("idempotency_dead_letters", route="charge", reason="unauthorized") == 0


async def test_doubt_that_came_to_nothing(sqlite: Store, tmp_path: Path) -> None:
    """Resolved as never happened, an accepted request is delivered again; with --drop its key is free instead."""
    async with accepting(sqlite, tmp_path) as (running, admin, shell):
        ids = []
        for key in ("k1", "k2"):
            running.upstream.on("/charges", CUT)
            ids.append(await accept(running, key))
            await reach(running, admin, ids[-1], "in_doubt")
        running.upstream.on("/charges", DONE)
        told = "That delivers its kept request again; with --drop, it is dropped instead."
        assert told in (await shell("inspect", ids[0])).out
        arguments = ("--never-happened", "--why", "not in the ledger", "--force")
        tried = await shell("resolve", ids[0], *arguments, "--dry-run")
        assert "Its kept request would be delivered again" in tried.out
        done = await shell("resolve", ids[0], *arguments)
        assert done.code == 0
        assert done.out.startswith("Resolved: nothing happened. Its kept request is delivered again, until ")
        dropped = await shell("resolve", ids[1], *arguments, "--drop")
        assert dropped.out.startswith("Resolved: nothing happened. Its kept request is dropped, and not delivered.")
        await reach(running, admin, ids[0], "completed")
        await reach(running, admin, ids[1], "released")
        assert len(running.upstream.requests) == 3


async def test_a_planned_outage(sqlite: Store, tmp_path: Path) -> None:
    """While a route is paused its requests are accepted and wait; one is called off, the other delivered afterwards."""
    async with accepting(sqlite, tmp_path) as (first, _, shell):
        unknown = await shell("pause", "refund", "--why", "x")
        assert (unknown.code, unknown.err) == (
            1, "idempotency-gateway: there is no route 'refund'; the configuration has charge\n",
        )  # fmt: skip
        assert (await shell("pause")).out == "Nothing is paused.\n"
        assert (await shell("pause", "charge", "--why", "maintenance")).out.startswith("Paused: charge.")
        assert (await shell("pause")).out.startswith("charge, since ")
        changes: dict[str, Any] = {**ACCEPTING, "admin": {"listen": "127.0.0.1:0", "token": "0123456789abcdef-admin"}}
        async with neighbour(sqlite, tmp_path / "second", first.upstream, **changes) as running:
            admin = Admin(running.gateway.admin_address[1])
            await running.gateway._parts.delivery.run_once()
            first.upstream.on("/charges", DONE)
            ids = [await accept(running, key) for key in ("k1", "k2")]
            await running.gateway._parts.delivery.run_once()
            about = (await admin("GET", f"/operations/{ids[0]}")).json()
            assert (about["state"], about["attempts"]) == ("accepted", 0)
            assert about["next"].startswith("Its delivery is paused: charge, since ")
            await running.gateway._parts._tally_taker.run_once()
            scrape = Scrape((await running.status("/metrics")).body.decode())
            assert scrape.value("idempotency_paused", route="charge") == 1
            assert scrape.value("idempotency_backlog", route="charge") == 2
            gone = await shell("withdraw", ids[0], "--why", "paid in cash")
            assert (gone.code, gone.out.partition(":")[0]) == (0, "Withdrawn")
            assert first.upstream.requests == []
            resumed = await shell("resume", "charge", "--why", "it is over")
            assert resumed.out == "Resumed: charge is delivered again within seconds.\n"
            await reach(running, admin, ids[1], "completed")
            assert len(first.upstream.requests) == 1
            assert status_of(await running.send("k1")) == (201, "stored")


async def test_many_interrupted(sqlite: Store, tmp_path: Path) -> None:
    """A bulk requeue that is interrupted says how far it came, and given again it goes on with the rest."""
    async with accepting(sqlite, tmp_path) as (running, admin, shell):
        running.upstream.on("/charges", REFUSED)
        ids = [await accept(running, f"k{number}") for number in range(_MANY)]
        for operation_id in ids:
            await reach(running, admin, operation_id, "dead_letter")
        nowhere = await shell("requeue", "--route", "nope", "--limit", "10", "--rate", "1", "--why", "rotated")
        assert (nowhere.code, "there is no route 'nope'; the configuration has charge" in nowhere.err) == (1, True)

        running.upstream.on("/charges", DONE)
        words = ("requeue", "--route", "charge", "--reason", "unauthorized", "--limit", "10", "--why", "rotated")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway", *words, "--rate", "1", "--config", str(shell.config),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd=ROOT,
            # Where the tests run in the background they ignore it, and so would their children.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        assert process.stdout is not None
        line = await process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, err = await process.communicate()
        assert line.split()[1:] == [b"requeued"]
        # A process that is slow to be interrupted may have come further than to the first one.
        done = int(out.decode().splitlines()[-1].split()[0])
        assert 1 <= done < _MANY
        assert out.decode().splitlines()[-1] == f"{done} requeued, 0 skipped, {_MANY - done} left"
        assert err == b"idempotency-gateway: interrupted; run the same command again to see what was done\n"
        rest = await shell(*words, "--rate", "1000")
        assert (rest.code, rest.out.splitlines()[-1]) == (0, f"{_MANY - done} requeued, 0 skipped, 0 left")


async def test_many_withdrawn(sqlite: Store, tmp_path: Path) -> None:
    """By a filter, each with its line; what is withdrawn runs if its caller sends it again."""
    async with accepting(sqlite, tmp_path) as (running, admin, shell):
        running.upstream.on("/charges", REFUSED)
        ids = [await accept(running, f"k{number}") for number in range(2)]
        for operation_id in ids:
            await reach(running, admin, operation_id, "dead_letter")
        words = ("withdraw", "--reason", "unauthorized", "--limit", "10", "--rate", "100", "--why", "cancelled")
        done = await shell(*words)
        assert sorted(done.out.splitlines()) == [
            "2 withdrawn, 0 skipped, 0 left",
            *sorted(f"{operation_id}  withdrawn" for operation_id in ids),
        ]
        running.upstream.on("/charges", DONE)
        assert status_of(await running.send("k0")) == (201, "stored")
