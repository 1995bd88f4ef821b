"""Sinks and their events as an operator meets them: a consumer that closes, and an event that was given up."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gateway.store.operations import EventFate, EventReport
from tests.admin.shell import shell_for
from tests.admin.test_api import Store, served
from tests.observe.scrape import Scrape
from tests.support.eventually import eventually
from tests.support.receiver import Receiver, status
from tests.support.signing import WHSEC


def telling(ledger: Receiver) -> dict[str, Any]:
    """The settings of a gateway that tells this consumer."""
    sink = {"name": "ledger", "kind": "webhook", "url": ledger.url, "secrets": [{"id": "a", "key": WHSEC}]}
    egress = {"allow": ["127.0.0.1"], "ports": [urlsplit(ledger.url).port], "https_only": False}
    return {"events": {"sinks": [sink]}, "egress": egress}


async def test_a_consumer_that_closes(store: Store, tmp_path: Path) -> None:
    """It is suspended, with what it said shown to operators alone, also at each operation that it has yet to be told
    of; resumed, it gets what waited. By command or HTTP."""
    async with Receiver(status(410, "moved away")) as ledger:
        changes = telling(ledger)
        async with served(store, tmp_path, **changes) as (running, admin):
            shell = shell_for(running, store, tmp_path, **changes)
            assert (await running.send("k1")).status == 200
            operation_id = running.upstream.requests[0].values("Idempotency-Operation")[0].decode()

            async def shown() -> dict[str, Any]:
                (found,) = (await admin("GET", "/sinks")).json()["sinks"]
                return dict(found)

            async def untold() -> list[dict[str, Any]]:
                (found,) = (await admin("GET", f"/operations/{operation_id}")).json()["sinks"]
                assert (found["sink"], found["is_whole"]) == ("ledger", True)
                return list(found["events"])

            async def is_suspended() -> bool:
                return (await shown())["state"] == "suspended" and bool((await untold())[0].get("last_error"))

            await eventually(is_suspended, 20.0, "the sink is suspended")
            about = {"name": "ledger", "kind": "webhook", "pending": 1, "dead": 0, "last_error": "HTTP 410 moved away"}
            assert about.items() <= (await shown()).items()
            line = r"\nsink ledger +operation\.completed of .*: waiting, 1 tries: HTTP 410 moved away\n"
            assert re.search(line, (await shell("inspect", operation_id)).out)
            await running.gateway.parts._tally_taker.run_once()
            scraped = (await running.status("/metrics")).body.decode()
            assert Scrape(scraped).value("idempotency_sink_suspended", sink="ledger") == 1
            assert "moved away" not in scraped
            assert (await shell("sinks")).out.startswith("ledger  webhook  suspended, 1 wait, oldest ")
            listed = (await shell("events", "--sink", "ledger", "--state", "waiting", "--format", "json")).rows()
            assert [(each["type"], each["tries"]) for each in listed] == [("operation.completed", 1)]

            assert (await admin("POST", "/sinks/ledger/resume", {"why": "it is back"})).status == 200
            running.gateway.parts.relay.wake()
            first, second = await ledger.wait_received(2)
            assert (first.id, first.body) == (second.id, second.body)

            async def is_told() -> bool:
                return await untold() == []

            await eventually(is_told, 20.0, "the sink has it")
            assert "it has received what it was to get" in (await shell("inspect", operation_id)).out
            paused = await shell("sinks", "--suspend", "ledger", "--why", "maintenance", "--by", "bob")
            assert paused.out.startswith("Suspended: ledger. Publications under way go on; all other")
            assert (await shown())["last_error"] == "bob: maintenance"
            nobody = await admin("POST", "/sinks/nobody/suspend", {"why": "typo"})
            assert (nobody.status, nobody.json()["code"]) == (404, "no-such-sink")
            wrong = await shell("sinks", "--resume", "nobody", "--why", "typo")
            assert (wrong.code, "there are ledger" in wrong.err) == (1, True)


async def test_an_event_that_was_given_up(sqlite: Store, tmp_path: Path) -> None:
    """It is listed with the reason, and published again under the same id when an operator says so."""
    async with Receiver() as ledger:
        changes = telling(ledger)
        async with served(sqlite, tmp_path, **changes) as (running, admin):
            shell = shell_for(running, sqlite, tmp_path, **changes)
            await admin("POST", "/sinks/ledger/suspend", {"why": "while it is given up"})
            await running.send("k1")
            (waiting,) = (await admin("GET", "/events?sink=ledger&state=waiting")).json()["events"]
            # Before anything leases it, as the report of a relay that leased it before the sink was suspended.
            cold = running.gateway.parts.store.cold
            await cold.report_events("shop", [EventReport("ledger", waiting["id"], 0, 0, EventFate.DEAD, "big")])
            await cold.resume_sink("shop", "ledger")

            (dead,) = (await admin("GET", "/events?sink=ledger")).json()["events"]
            assert (dead["id"], dead["state"], dead["last_error"]) == (waiting["id"], "dead", "big")
            assert (await shell("events", "--sink", "ledger")).out.split()[:2] == [waiting["id"], "operation.completed"]
            assert ledger.received == []
            told = await shell("redeliver", waiting["id"], "--why", "the limit is raised")
            assert (told.code, told.out.endswith("to 1 sink.\n")) == (0, True)
            running.gateway.parts.relay.wake()
            (got,) = await ledger.wait_received(1)
            assert got.id == waiting["id"]
            late = await admin("POST", f"/events/{waiting['id']}/redeliver", {"why": "again"})
            assert (late.status, late.json()["code"]) == (409, "not-dead")
            assert (await shell("redeliver", waiting["id"], "--why", "again")).code == 1


async def test_a_consumer_that_fails_while_events_come(store: Store, tmp_path: Path) -> None:
    """It is shown as failing at every look, however many events wait that nobody has tried yet."""
    async with Receiver(status(500)) as ledger:
        changes = telling(ledger) | {"delivery": {"breaker": {"failures": 1, "open": "5m"}}}
        async with served(store, tmp_path, **changes) as (running, admin):

            async def shown() -> tuple[str, int, str | None]:
                (found,) = (await admin("GET", "/sinks")).json()["sinks"]
                return found["state"], found["pending"], found["last_error"]

            async def is_failing() -> bool:
                return await shown() == ("failing", 1, "HTTP 500")

            await running.send("k1")
            await eventually(is_failing, 20.0, "the first try failed")
            for number in range(2, 5):
                await running.send(f"k{number}")
                assert await shown() == ("failing", number, "HTTP 500")
