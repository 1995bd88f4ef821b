"""Sinks and their events as an operator meets them: a consumer that closes, and an event that was given up."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gateway.admin.reports import sinks
from gateway.store.operations import EventFate, EventReport, SinkBacklog
from tests.admin.shell import shell_for
from tests.admin.test_api import Store, served
from tests.observe.scrape import Scrape
from tests.support.eventually import eventually
from tests.support.receiver import Receiver, status
from tests.support.signing import WHSEC
from tests.support.upstream import Answer


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
            running.upstream.on("/charges", Answer(201))
            assert (await running.send("k1")).status == 201
            (sent,) = running.upstream.requests
            operation_id = sent.values("Idempotency-Operation")[0].decode()

            async def untold() -> dict[str, Any]:
                (found,) = (await admin("GET", f"/operations/{operation_id}")).json()["sinks"]
                return dict(found)

            async def is_suspended() -> bool:
                (found,) = (await admin("GET", "/sinks")).json()["sinks"]
                return found["state"] == "suspended" and (await untold())["events"][0]["last_error"] is not None

            await eventually(is_suspended, 20.0, "the sink is suspended")
            (shown,) = (await admin("GET", "/sinks")).json()["sinks"]
            assert (shown["name"], shown["kind"], shown["pending"], shown["dead"]) == ("ledger", "webhook", 1, 0)
            assert shown["last_error"] == "HTTP 410 moved away"
            found = await untold()
            (waiting,) = found["events"]
            assert (found["sink"], found["is_whole"]) == ("ledger", True)
            assert (waiting["state"], waiting["tries"]) == ("waiting", 1)
            lines = (await shell("inspect", operation_id)).out.splitlines()
            (line,) = (each for each in lines if each.startswith("sink ledger"))
            assert "operation.completed of " in line
            assert line.endswith(": waiting, 1 tries: HTTP 410 moved away")
            await running.gateway.parts._tally_taker.run_once()
            scrape = Scrape((await running.status("/metrics")).body.decode())
            assert scrape.value("idempotency_sink_suspended", sink="ledger") == 1
            assert scrape.value("idempotency_events_pending", sink="ledger") == 1
            assert scrape.value("idempotency_events_published_total", sink="ledger", result="suspended") == 1
            assert "moved away" not in (await running.status("/metrics")).body.decode()

            listed = await shell("sinks")
            assert listed.out.startswith("ledger  webhook  suspended, 1 wait, oldest ")
            (waiting,) = (await shell("events", "--sink", "ledger", "--state", "waiting", "--format", "json")).rows()
            assert (waiting["type"], waiting["state"], waiting["tries"]) == ("operation.completed", "waiting", 1)
            assert (await shell("events", "--sink", "ledger")).out == "No event of ledger is dead.\n"

            resumed = await shell("sinks", "--resume", "ledger", "--why", "it is back", "--by", "alice")
            assert (resumed.code, resumed.out) == (0, "Resumed: ledger gets what waited within seconds.\n")
            running.gateway.parts.relay.wake()
            first, second = await ledger.wait_received(2)
            assert (first.id, first.body) == (second.id, second.body)

            async def is_told() -> bool:
                return bool((await untold())["events"] == [])

            await eventually(is_told, 20.0, "the sink has it")
            assert "it has received what it was to get" in (await shell("inspect", operation_id)).out

            paused = await admin("POST", "/sinks/ledger/suspend", {"why": "maintenance", "by": "bob"})
            assert paused.json()["detail"].startswith("Suspended: ledger. Publications under way go on; all other")
            (shown,) = (await admin("GET", "/sinks")).json()["sinks"]
            assert shown["last_error"] == "token for bob: maintenance"
            assert (await admin("POST", "/sinks/ledger/resume", {"why": "done"})).status == 200
            nobody = await admin("POST", "/sinks/nobody/suspend", {"why": "typo"})
            assert (nobody.status, nobody.json()["code"]) == (404, "no-such-sink")
            wrong = await shell("sinks", "--suspend", "nobody", "--why", "typo")
            assert (wrong.code, "there are ledger" in wrong.err) == (1, True)


async def test_an_event_that_was_given_up(store: Store, tmp_path: Path) -> None:
    """It is listed with the reason, and published again under the same id when an operator says so."""
    async with Receiver() as ledger:
        changes = telling(ledger)
        async with served(store, tmp_path, **changes) as (running, admin):
            shell = shell_for(running, store, tmp_path, **changes)
            running.upstream.on("/charges", Answer(201))
            await admin("POST", "/sinks/ledger/suspend", {"why": "while it is given up"})
            await running.send("k1")
            (waiting,) = (await admin("GET", "/events?sink=ledger&state=waiting")).json()["events"]
            kept = running.gateway.parts.store
            # Before anything leases it, as the report of a relay that leased it before the sink was suspended.
            await kept.cold.report_events(
                "shop", [EventReport("ledger", waiting["id"], 0, 0, EventFate.DEAD, "too large")]
            )
            await kept.cold.resume_sink("shop", "ledger")

            (dead,) = (await admin("GET", "/events?sink=ledger")).json()["events"]
            assert (dead["id"], dead["state"], dead["last_error"]) == (waiting["id"], "dead", "too large")
            line = (await shell("events", "--sink", "ledger")).out
            assert line.split()[:2] == [waiting["id"], "operation.completed"]
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
    """It is shown as failing at every look, however many events wait that nobody has tried yet, until it takes them."""
    async with Receiver(status(500)) as ledger:
        changes = telling(ledger) | {"delivery": {"breaker": {"failures": 1, "open": "5m"}}}
        async with served(store, tmp_path, **changes) as (running, admin):
            running.upstream.on("/charges", Answer(201))

            async def shown() -> dict[str, Any]:
                (found,) = (await admin("GET", "/sinks")).json()["sinks"]
                return dict(found)

            async def is_failing() -> bool:
                return bool((await shown())["state"] == "failing")

            await running.send("k0")
            await eventually(is_failing, 20.0, "the first try failed")
            for number in range(1, 6):
                await running.send(f"k{number}")
                assert await is_failing()
            found = await shown()
            assert (found["pending"], found["last_error"]) == (6, "HTTP 500")


def test_a_sink_that_nobody_publishes_to() -> None:
    """It is not called active while events wait for it."""
    assert [sinks({"s": "nats"}, {"s": SinkBacklog(3, seconds)})[0]["state"] for seconds in (1.0, 90.0)] == [
        "active",
        "behind",
    ]
