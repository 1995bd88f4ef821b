"""`journal` and its hints: what lies on a host is seen while gateways write it, and after they have died."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import uuid4

import pytest

from gateway.admin.view import moment
from gateway.app.stores import name_of
from gateway.config import parse
from gateway.core.message import StoredResponse
from gateway.core.operation import Abandon, Complete, OutcomeCommand, Release
from gateway.store.journal import EntryId
from gateway.store.journal.journal import SqliteJournal
from tests.admin.shell import Shell
from tests.admin.test_api import served
from tests.support.eventually import eventually
from tests.support.fleet import NOW, process, send
from tests.support.house import config_text, sqlite_store, status_of
from tests.support.memory_store import ManualClock
from tests.support.postgres import PostgresServer
from tests.support.upstream import Answer, RecordingUpstream

STORE = {"durable": "postgresql://gateway@127.0.0.1:1/shop"}
NO_SUCH = "00000000-0000-8000-8000-000000000000"


def complete(body: bytes = b"charged") -> Complete:
    return Complete(uuid4(), 7, uuid4(), StoredResponse(201, b"Created", (), body), 10, 20)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """On a host whose durable store is nowhere."""
    return Shell(tmp_path, config_text("http://127.0.0.1:1", STORE, tmp_path))


def journal_of(shell: Shell, clock: ManualClock | None = None, owner: str | None = None) -> SqliteJournal:
    """A journal where the gateway of this shell has it."""
    config = parse(shell.config.read_text())
    at = {} if clock is None else {"clock_us": clock}
    return SqliteJournal(config.state_dir / "journal", owner or name_of(config), **at)


async def keep(journal: SqliteJournal, *outcomes: OutcomeCommand) -> list[EntryId]:
    return [await journal.append("charge", outcome) for outcome in outcomes]


async def test_what_waits_and_what_was_refused(shell: Shell) -> None:
    """Both are listed with since when and why, from a journal that is in use and from one whose owner has gone."""
    clock = ManualClock()
    first, second, third = complete(), Release(uuid4(), 2, uuid4(), 30), Abandon(uuid4(), 3, uuid4(), "timeout")
    journal = journal_of(shell, clock)
    await journal.start()
    ids = await keep(journal, first)
    clock.advance(60)
    ids += await keep(journal, second, third)
    clock.advance(60)
    await journal.refuse([(ids[1], "the record is tombstone without it")])
    for owner in ("in use", "gone"):
        if owner == "gone":
            await journal.close()
        said = await shell("journal")
        assert said.code == 0
        head, *rows = said.out.splitlines()
        assert head.split() == ["OPERATION", "STATE", "SINCE", "AGE", "EVENT", "TOKEN", "STATUS", "ROUTE", "WHY"]
        assert [row.split()[:2] for row in rows] == [
            [str(first.operation_id), "waiting"],
            [str(second.operation_id), "refused"],
            [str(third.operation_id), "waiting"],
        ]
        assert rows[0].split()[-11:-8] == ["7", "201", "charge"]
        assert rows[1].endswith("the record is tombstone without it")
        assert "note: waiting: " in said.err
        assert "note: refused: " in said.err
        # Of an attempt before the one that is in doubt, it would be taken for leave to run the operation again.
        assert "its own attempt had no effect, and says nothing about one under a higher token" in said.err
        (refused,) = (await shell("journal", "--state", "refused", "--format", "jsonl")).rows()
        assert refused.pop("age_seconds") >= 0
        assert refused == {
            "operation_id": str(second.operation_id),
            "state": "refused",
            "since": moment(clock()),
            "event": "release",
            "token": 2,
            "route": "charge",
            "journaled_at": moment(clock() - 60_000_000),
            "why": "the record is tombstone without it",
        }
        waiting = (await shell("journal", "--state", "waiting", "--format", "jsonl")).rows()
        assert [(row["event"], row.get("status"), row.get("body_bytes")) for row in waiting] == [
            ("complete", 201, 7),
            ("abandon", None, None),
        ]
        (alone,) = (await shell("journal", first.operation_id, "--format", "jsonl")).rows()
        assert alone["operation_id"] == str(first.operation_id)
        cut = await shell("journal", "--limit", 2)
        assert len(cut.out.splitlines()) == 3
        assert "note: there is more" in cut.err


async def test_looking_disturbs_nobody(shell: Shell) -> None:
    """A journal that is looked into all the time takes outcomes, gives them up, and goes away when it is empty."""
    journal = journal_of(shell)
    await journal.start()
    done = asyncio.Event()

    async def look() -> int:
        looks = 0
        while not done.is_set():
            assert (await shell("journal")).err.count("cannot be read") == 0
            looks += 1
        return looks

    looking = asyncio.create_task(look())
    for _ in range(30):
        ids = await keep(journal, *[complete(b"x" * 20_000) for _ in range(5)])
        assert journal.tally.waiting == 5
        await journal.refuse([(ids[0], "rejected")])
        await journal.forget(ids)
    await journal.close()
    done.set()
    assert await looking > 0
    assert (await shell("journal")).out == "The journal is empty.\n"
    other = journal_of(shell)
    await other.start()
    await other.close()


@pytest.mark.parametrize("given", [(), (NO_SUCH,), ("--state", "refused")], ids=["all", "operation", "state"])
async def test_nothing_there(shell: Shell, given: tuple[str, ...]) -> None:
    """It is said that there is nothing, also where there never was a journal."""
    said = await shell("journal", *given)
    assert (said.code, said.err) == (0, "")
    assert said.out == ("No outcome in the journal matches.\n" if given else "The journal is empty.\n")


async def test_another_gateways_outcomes(shell: Shell) -> None:
    """What is of another service or store is listed too, and it is said whose it is."""
    journal = journal_of(shell, owner="service other, postgresql other")
    await journal.start()
    await keep(journal, complete())
    await journal.close()
    said = await shell("journal")
    assert (said.code, len(said.out.splitlines())) == (0, 2)
    assert "belongs to service other, postgresql other: a gateway with those settings records" in said.err


async def test_what_cannot_be_read_hides_nothing(shell: Shell) -> None:
    """A damaged file is named and makes the command fail; what the others hold is listed all the same."""
    journal = journal_of(shell)
    await journal.start()
    kept = complete()
    await keep(journal, kept)
    await journal.close()
    directory = parse(shell.config.read_text()).state_dir / "journal"
    (directory / "0000.db").write_bytes(b"not a database" * 100)
    said = await shell("journal", "--format", "jsonl")
    assert said.code == 1
    assert [row["operation_id"] for row in said.rows()] == [str(kept.operation_id)]
    assert "0000.db" in said.err


async def test_a_journal_that_cannot_be_read(shell: Shell) -> None:
    """Whoever may not look hears so, instead of that there is nothing."""
    state = parse(shell.config.read_text()).state_dir
    state.mkdir()
    (state / "journal").write_bytes(b"")
    said = await shell("journal")
    assert (said.code, said.out) == (1, "")
    assert "journal cannot be read: Not a directory; run this as the user of the gateway" in said.err


async def test_through_an_outage(tmp_path: Path, own_postgres: PostgresServer) -> None:
    """What was journaled is seen while the store is away and after the gateway died, and gone once it is recorded."""
    store = {"durable": own_postgres.url}
    settings = {"lease": "3s", "journal_grace": "60s"}
    async with RecordingUpstream() as upstream, process(store, tmp_path, upstream.url, store=settings) as gateway:
        shell = Shell(tmp_path, gateway.config_file.read_text())
        hold = asyncio.Event()
        upstream.on("/charges", Answer(201, hold=hold, body=b"charged"))
        first = asyncio.create_task(send(gateway.port, "k1"))
        await upstream.wait_for_requests(1)
        own_postgres.crash()
        hold.set()
        assert status_of(await first) == (201, "journaled")
        for fate in ("alive", "dead"):
            if fate == "dead":
                gateway.kill()
            (row,) = (await shell.spawned("journal", "--format", "jsonl")).rows()
            assert (row["state"], row["event"], row["status"], row["body_bytes"]) == ("waiting", "complete", 201, 7)
        own_postgres.start()
        shown = await shell("inspect", row["operation_id"])
        assert "journal here      complete 201 under token 1, body of 7 bytes, waiting since " in shown.out
        assert "what to do        Wait: its outcome is in the journal of this host; " in shown.out
        (about,) = (await shell("inspect", row["operation_id"], "--format", "jsonl")).rows()
        assert [each["state"] for each in about["journal"]] == ["waiting"]
        await gateway.start()

        async def is_empty() -> bool:
            return (await shell("journal")).out == "The journal is empty.\n"

        await eventually(is_empty, what="the outcome is recorded")
        assert status_of(await send(gateway.port, "k1", headers=NOW)) == (201, "replayed")
        shown = await shell("inspect", row["operation_id"])
        assert "journal here" not in shown.out
        assert len(upstream.requests) == 1


async def test_over_http(tmp_path: Path) -> None:
    """The admin API lists the same, for those with the token, and tells it of one operation too."""
    store = sqlite_store(tmp_path)
    shell = Shell(tmp_path, config_text("http://127.0.0.1:1", store, tmp_path))
    journal = journal_of(shell)
    await journal.start()
    outcome = complete()
    await keep(journal, outcome)
    await journal.close()
    # The gateway adopts what lies there, and its store refuses what it never claimed.
    async with served(store, tmp_path) as (_, admin):
        why = "the record is absent without it"

        async def refused() -> list[str]:
            response = await admin("GET", "/journal?state=refused")
            assert response.status == 200
            return [row["why"] for row in response.json()["journal"]]

        assert await eventually(refused, what="the outcome is refused") == [why]
        (row,) = (await admin("GET", "/journal")).json()["journal"]
        assert (row["operation_id"], row["status"], row["token"]) == (str(outcome.operation_id), 201, 7)
        assert (await admin("GET", "/journal?state=waiting&limit=1")).json()["journal"] == []
        (row,) = (await admin("GET", f"/operations/{outcome.operation_id}")).json()["operation"]["journal"]
        assert row["why"] == why
        for query, status in (("?state=lost", 400), ("?limit=0", 400), ("?after=x", 400)):
            assert (await admin("GET", f"/journal{query}")).status == status
        assert (await admin("POST", "/journal")).status == 405
        admin.token = None
        assert (await admin("GET", "/journal")).status == 401
