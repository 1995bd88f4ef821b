"""`journal`: what lies on a host is seen, a response is exported for `resolve`, a refused outcome is acknowledged."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import stat
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from gateway.admin.journal import read_response
from gateway.admin.reports import moment
from gateway.app.stores import name_of
from gateway.config import parse
from gateway.core.message import IndexedHeaders, ResponseHead, StoredResponse
from gateway.core.operation import Abandon, Complete, OutcomeCommand, Release
from gateway.store.journal import EntryId
from gateway.store.journal.journal import HostJournals, SqliteJournal
from tests.admin.shell import Said, Shell, doubt, lone_shell, shell_for
from tests.admin.test_api import served
from tests.support.eventually import eventually
from tests.support.house import sqlite_store, status_of
from tests.support.memory_store import ManualClock

WHY = ("--why", "compared with the ledger")
STORE = {"durable": "postgresql://gateway@127.0.0.1:1/shop"}


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """On a host with an embedded store."""
    return lone_shell(tmp_path)


def complete(body: bytes = b"charged") -> Complete:
    return Complete(uuid4(), 7, uuid4(), StoredResponse(201, b"Created", (), body), 10, 20)


@asynccontextmanager
async def journal_of(
    shell: Shell, clock: ManualClock | None = None, owner: str | None = None
) -> AsyncIterator[SqliteJournal]:
    """A journal where the gateway of this shell has it, in use."""
    config = parse(shell.config.read_text())
    at = {} if clock is None else {"clock_us": clock}
    journal = SqliteJournal(config.state_dir / "journal", owner or name_of(config), **at)
    await journal.start()
    try:
        yield journal
    finally:
        await journal.close()


async def keep(journal: SqliteJournal, *outcomes: OutcomeCommand) -> list[EntryId]:
    return [await journal.append("charge", outcome) for outcome in outcomes]


async def left(
    shell: Shell, *outcomes: OutcomeCommand, waiting: tuple[OutcomeCommand, ...] = (), owner: str | None = None
) -> None:
    """What a gateway left that has gone: these were refused, those wait."""
    async with journal_of(shell, owner=owner) as journal:
        ids = await keep(journal, *outcomes)
        await journal.refuse([(each, "the record is completed without it") for each in ids])
        await keep(journal, *waiting)


def archive(shell: Shell) -> Path:
    return parse(shell.config.read_text()).state_dir / "journal" / "acknowledged"


async def states(shell: Shell) -> list[str]:
    return [row["state"] for row in (await shell("journal", "--format", "jsonl")).rows()]


async def acknowledge(shell: Shell, operation_id: object, *more: object) -> Said:
    return await shell("journal", operation_id, "--acknowledge", *WHY, *more)


async def export(shell: Shell, operation_id: object, name: str = "response.http", *more: object) -> Said:
    return await shell("journal", operation_id, "--export", shell.directory / name, *more)


async def test_what_is_taken_out_is_kept(shell: Shell, caplog: pytest.LogCaptureFixture) -> None:
    """The response can be exported, for its owner alone; response, who and why stay on the disk, and the gateway that
    has the journal counts again."""
    await shell("migrate")
    outcome = complete()
    await left(shell, outcome)
    file = shell.directory / "response.http"
    assert (await export(shell, outcome.operation_id)).code == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert read_response(file.read_bytes()) == (ResponseHead(201, b"Created", IndexedHeaders()), b"charged")
    async with journal_of(shell) as heir:
        assert heir.tally.refused == 1
        done = await shell.spawned("journal", outcome.operation_id, "--acknowledge", *WHY, "--by", "alice")
        assert (done.code, done.err) == (0, "")
        await heir.adopt()
        assert heir.tally.refused == 0
    assert "1 refused outcomes of " in caplog.text
    assert (await shell("journal")).out == "The journal is empty.\n"
    (note_file,) = archive(shell).glob("*.json")
    note = json.loads(note_file.read_bytes())
    assert (note["by"], note["why"], note["record"]) == ("alice", "compared with the ledger", "absent")
    assert note["outcome"]["operation_id"] == str(outcome.operation_id)
    assert (archive(shell) / note["response"]).read_bytes() == file.read_bytes()
    assert {stat.S_IMODE(each.stat().st_mode) for each in archive(shell).iterdir()} == {0o600}
    again = await acknowledge(shell, outcome.operation_id)
    assert (again.code, "no such outcome" in again.err) == (1, True)
    assert not list(archive(shell).parent.glob("*.db")), "the emptied file went"


async def test_doubt_is_ended_by_what_was_kept(tmp_path: Path) -> None:
    """What tells how an operation in doubt ended is acknowledged only after the record knows it. Of one that waits,
    nobody needs to do anything."""
    store, file = sqlite_store(tmp_path), tmp_path / "response.http"
    answer = StoredResponse(201, b"Created", ((b"Location", b"/charges/7"),), b'{"id":7}')
    async with served(store, tmp_path) as (running, _):
        operation_id, other_id = await doubt(running), await doubt(running, "k2")
        shell = shell_for(running, store, tmp_path)
        await left(shell, Complete(UUID(operation_id), 1, uuid4(), answer, 10, 20))
        early = await acknowledge(shell, operation_id)
        assert (early.code, "the record is in_doubt" in early.err) == (1, True)
        assert await states(shell) == ["refused"]
        assert (await export(shell, operation_id)).code == 0
        assert (await shell("resolve", operation_id, "--completed", file, *WHY)).code == 0
        replayed = await running.send("k1")
        assert (status_of(replayed), replayed.body) == ((201, "recovered"), b'{"id":7}')
        assert replayed.header("Location") == "/charges/7"
        assert (await acknowledge(shell, operation_id)).code == 0
        assert await states(shell) == []
    await left(shell, waiting=(Complete(UUID(other_id), 2, uuid4(), answer, 10, 20),))
    shown = (await shell("inspect", other_id)).out
    assert "journal here      complete 201 under token 2, body of 8 bytes, waiting since " in shown
    assert "what to do        Wait: its outcome is in the journal of this host; " in shown


@pytest.mark.parametrize("is_waiting", [False, True], ids=["refused", "waiting"])
async def test_what_happened_is_not_denied(tmp_path: Path, is_waiting: bool) -> None:
    """No force says that it never happened while the journal has its response: by command, and over the admin API."""
    store = sqlite_store(tmp_path)
    async with served(store, tmp_path) as (running, api):
        operation_id = await doubt(running)
        shell = shell_for(running, store, tmp_path)
        # Of an attempt that the record is not of, so that nobody records it meanwhile.
        outcome = Complete(UUID(operation_id), 9, uuid4(), StoredResponse(201, b"Created", (), b"x"), 10, 20)
        await (left(shell, waiting=(outcome,)) if is_waiting else left(shell, outcome))
        for force in ((), ("--force",)):
            said = await shell("resolve", operation_id, "--never-happened", *WHY, *force)
            assert (said.code, "It happened" in said.err, "--export" in said.err) == (1, True, True)
            assert "If you know more" not in said.err
        for force in (False, True):
            asked = {"never_happened": True, "why": "a test", "force": force}
            answer = await api("POST", f"/operations/{operation_id}/resolve", asked)
            assert (answer.status, answer.json()["code"]) == (409, "journaled")
        assert status_of(await running.send("k1")) == (409, "in-doubt")


async def test_nothing_is_overwritten(shell: Shell) -> None:
    """A file that is there stays as it is, also when it is a link to nowhere."""
    outcome = complete()
    await left(shell, outcome)
    taken = shell.file("taken.http", b"mine")
    (shell.directory / "link.http").symlink_to(shell.directory / "nowhere")
    for name in ("taken.http", "link.http"):
        said = await export(shell, outcome.operation_id, name)
        assert (said.code, said.out, "is not overwritten" in said.err) == (1, "", True)
    assert taken.read_bytes() == b"mine"
    assert not (shell.directory / "nowhere").exists()
    said = await export(shell, outcome.operation_id, "none/response.http")
    assert (said.code, "cannot be written: No such file or directory" in said.err) == (1, True)


REFUSALS = {
    "waiting": "Those that wait: a gateway",
    "no-room": "cannot be kept in",
    "no-store": "nothing was changed",
    "another-gateways": "no such outcome",
}


@pytest.mark.parametrize("case", REFUSALS)
async def test_what_is_not_acknowledged(tmp_path: Path, case: str) -> None:
    """What is the durable store's still, cannot be kept or compared with its record, or is another's stays there."""
    shell, outcome = lone_shell(tmp_path, STORE if case == "no-store" else None), complete()
    if case != "no-store":
        await shell("migrate")
    refused, waiting = ((), (outcome,)) if case == "waiting" else ((outcome,), ())
    await left(shell, *refused, waiting=waiting, owner="service other" if case == "another-gateways" else None)
    if case == "no-room":
        archive(shell).write_bytes(b"")
    said = await acknowledge(shell, outcome.operation_id)
    assert (said.code, REFUSALS[case] in said.err) == (1, True)
    assert await states(shell) == ["waiting" if case == "waiting" else "refused"]
    assert not archive(shell).is_dir()
    if case == "another-gateways":
        notes = (await shell("journal")).err
        assert "belongs to service other: a gateway with those settings records" in notes
    else:
        said = await export(shell, outcome.operation_id)
        assert (said.code, "It is waiting: " in said.out) == (0, case == "waiting")


async def test_one_attempt_of_several(shell: Shell) -> None:
    """Where attempts could be mixed up the token has to be given, and nothing else is touched."""
    await shell("migrate")
    operation_id = uuid4()
    answer = StoredResponse(201, b"Created", (), b"x")
    first, second = (Complete(operation_id, token, uuid4(), answer, 10, 20) for token in (3, 5))
    await left(shell, first, second, Release(operation_id, 4, uuid4(), 30))
    said = await acknowledge(shell, operation_id)
    assert (said.code, "choose one with --token: 3, 4, 5" in said.err) == (1, True)
    said = await export(shell, operation_id)
    assert (said.code, "choose one with --token: 3, 5" in said.err) == (1, True)
    assert (await export(shell, operation_id, "response.http", "--token", 4)).code == 1
    assert (await acknowledge(shell, operation_id, "--token", 4)).code == 0
    rows = (await shell("journal", "--format", "jsonl")).rows()
    assert [row["token"] for row in rows] == [3, 5]


async def test_what_is_no_answer(shell: Shell) -> None:
    """What has no response, or not all of one, is not written as one, and can be acknowledged all the same. What root
    keeps then is the gateway's."""
    await shell("migrate")
    release = Release(uuid4(), 2, uuid4(), 30)
    headless = Complete(uuid4(), 3, uuid4(), StoredResponse(200, b"OK", ((b"X-Big", b"1"),), None), 10, 20)
    await left(shell, release, headless)
    owner = 12_345 if os.geteuid() == 0 else os.geteuid()
    os.chown(archive(shell).parent, owner, -1)
    for outcome, why in ((release, "has no response"), (headless, "was not kept")):
        said = await export(shell, outcome.operation_id)
        assert (said.code, why in said.err) == (1, True)
        assert (await acknowledge(shell, outcome.operation_id)).code == 0
    assert not (shell.directory / "response.http").exists()
    kept = sorted(archive(shell).iterdir())
    notes = [json.loads(each.read_bytes()) for each in kept]
    assert [note["headers"] for note in notes if "headers" in note] == [[["X-Big", "1"]]]
    assert {each.stat().st_uid for each in (archive(shell), *kept)} == {owner}


async def test_taken_out_under_its_owner(shell: Shell) -> None:
    """An owner that writes all the time, and operators who take out all the time, lose nothing else."""
    stays = [complete(b"x" * 5_000) for _ in range(100)]
    gone = [complete() for _ in range(20)]
    async with journal_of(shell) as journal:
        desk = HostJournals(parse(shell.config.read_text()).state_dir / "journal", journal._belongs_to)
        await journal.refuse([(each, "no") for each in await keep(journal, *gone)])

        def take_out() -> int:
            taken = 0
            for outcome in gone:
                (found,) = desk.outcomes(outcome.operation_id)
                taken += desk.drop(found.entry_id)
                taken += desk.drop(found.entry_id)
            return taken

        taking = asyncio.create_task(asyncio.to_thread(take_out))
        for outcome in stays:
            await keep(journal, outcome)
        assert await taking == 20
        (waits,) = await asyncio.to_thread(desk.outcomes, stays[0].operation_id)
        assert not await asyncio.to_thread(desk.drop, waits.entry_id)
        await journal.adopt()
        assert (journal.tally.waiting, journal.tally.refused) == (100, 0)
    rows = (await shell("journal", "--format", "jsonl")).rows()
    assert sorted(row["operation_id"] for row in rows) == sorted(str(each.operation_id) for each in stays)


async def test_what_waits_and_what_was_refused(tmp_path: Path) -> None:
    """Both are listed with since when and why while the store is away, from a journal that is in use and from one whose
    owner has gone."""
    lone, clock, why = lone_shell(tmp_path, STORE), ManualClock(), "the record is tombstone without it"
    first, second, third = complete(), Release(uuid4(), 2, uuid4(), 30), Abandon(uuid4(), 3, uuid4(), "timeout")
    owner = AsyncExitStack()
    journal = await owner.enter_async_context(journal_of(lone, clock))
    await keep(journal, first)
    clock.advance(60)
    entry_id, _ = await keep(journal, second, third)
    clock.advance(60)
    await journal.refuse([(entry_id, why)])
    for is_gone in (False, True):
        if is_gone:
            await owner.aclose()
        said = await lone("journal")
        head, *rows = said.out.splitlines()
        assert head.split() == ["OPERATION", "STATE", "SINCE", "AGE", "EVENT", "TOKEN", "STATUS", "ROUTE", "WHY"]
        states = {first: "waiting", second: "refused", third: "waiting"}
        assert [row.split()[:2] for row in rows] == [[str(each.operation_id), states[each]] for each in states]
        assert rows[1].endswith(why)
        assert "note: waiting: " in said.err
        # Of an attempt before the one that is in doubt, it would be taken for leave to run the operation again.
        assert "its own attempt had no effect, and says nothing about one under a higher token" in said.err
        (refused,) = (await lone("journal", "--state", "refused", "--format", "jsonl")).rows()
        assert refused.pop("age_seconds") >= 0
        times = {"since": moment(clock()), "journaled_at": moment(clock() - 60_000_000)}
        about = {"operation_id": str(second.operation_id), "state": "refused", "event": "release", "token": 2}
        assert refused == {**about, **times, "route": "charge", "why": why}
        (alone,) = (await lone("journal", first.operation_id, "--format", "jsonl")).rows()
        assert (alone["event"], alone["status"], alone["body_bytes"]) == ("complete", 201, 7)
        cut = await lone("journal", "--limit", 2)
        assert (len(cut.out.splitlines()), "note: there is more" in cut.err) == (3, True)


async def test_what_cannot_be_read_hides_nothing(shell: Shell) -> None:
    """Where there never was a journal it is empty. A damaged file is named and makes the command fail; what the others
    hold is listed all the same. Whoever may not look into the directory hears so, instead of that there is nothing."""
    said = await shell("journal")
    assert (said.code, said.out, said.err) == (0, "The journal is empty.\n", "")
    kept = complete()
    await left(shell, waiting=(kept,))
    directory = archive(shell).parent
    (directory / "0000.db").write_bytes(b"not a database" * 100)
    said = await shell("journal", "--format", "jsonl")
    assert (said.code, "0000.db" in said.err) == (1, True)
    assert [row["operation_id"] for row in said.rows()] == [str(kept.operation_id)]
    shutil.rmtree(directory)
    directory.write_bytes(b"")
    said = await shell("journal")
    assert (said.code, said.out) == (1, "")
    assert "journal cannot be read: Not a directory; run this as the user of the gateway" in said.err


async def test_over_http(shell: Shell, tmp_path: Path) -> None:
    """The admin API lists the same, for those with the token, and tells it of one operation too."""
    outcome = complete()
    await left(shell, waiting=(outcome,))
    # The gateway adopts what lies there, and its store refuses what it never claimed.
    async with served(sqlite_store(tmp_path), tmp_path) as (_, admin):
        why = "the record is absent without it"

        async def refused() -> list[str]:
            return [row["why"] for row in (await admin("GET", "/journal?state=refused")).json()["journal"]]

        assert await eventually(refused, what="the outcome is refused") == [why]
        (row,) = (await admin("GET", "/journal")).json()["journal"]
        assert (row["operation_id"], row["status"], row["token"]) == (str(outcome.operation_id), 201, 7)
        assert (await admin("GET", "/journal?state=waiting&limit=1")).json()["journal"] == []
        (row,) = (await admin("GET", f"/operations/{outcome.operation_id}")).json()["operation"]["journal"]
        assert row["why"] == why
        assert (await admin("GET", "/journal?state=lost")).status == 400
