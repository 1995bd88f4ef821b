"""The journal: what it acknowledged is on the disk, whoever dies, and it says so when it cannot."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, closing
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import apsw
import pytest

from gateway.core.message import StoredResponse
from gateway.core.operation import Abandon, Bury, Complete, Forget, OutcomeCommand, Postpone, Release
from gateway.store.base import Indefinite, NotApplied, StartRefused, Unstorable
from gateway.store.journal import EntryId
from gateway.store.journal.file import cost_bytes
from gateway.store.journal.journal import SqliteJournal
from tests.conformance.hand import started
from tests.support.eventually import eventually
from tests.support.failing_disk import FailingDisk

OWNER = "service shop, postgresql shop"
HEADERS = ((b"Content-Type", b"text/plain"), (b"X", b"1"), (b"x", b"\xff"), (b"X", b""))


def complete(body: bytes | None = b"\0\xffcharged", token: int = 7) -> Complete:
    return Complete(uuid4(), token, uuid4(), StoredResponse(201, b"Created", HEADERS, body), 10, 20)


OUTCOMES: tuple[OutcomeCommand, ...] = (
    complete(),
    complete(b""),
    complete(None),
    Release(uuid4(), 2**62, uuid4(), 30),
    Forget(uuid4(), 1, uuid4()),
    Abandon(uuid4(), 1, uuid4(), "timeout"),
    Postpone(uuid4(), 1, uuid4(), 2**40, "answered_503", is_answered=True),
    Postpone(uuid4(), 1, uuid4(), 0, "refused", is_answered=False),
    Bury(uuid4(), 1, uuid4(), "unauthorized", "answered_401", is_answered=True),
)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "state" / "journal"


@pytest.fixture
async def journal(directory: Path) -> AsyncIterator[SqliteJournal]:
    async with opened(directory) as journal:
        yield journal


def opened(directory: Path, owner: str = OWNER, **limits: int) -> AbstractAsyncContextManager[SqliteJournal]:
    return started(SqliteJournal(directory, owner, **limits))


async def waiting(journal: SqliteJournal) -> list[OutcomeCommand]:
    found: list[OutcomeCommand] = []
    after: EntryId | None = None
    while page := await journal.waiting(after, limit=3, bytes_max=1 << 20):
        found += [entry.command for entry in page]
        after = page[-1].entry_id
    return found


def files(directory: Path) -> list[str]:
    return sorted(path.name.partition(".")[2] for path in directory.iterdir())


def modes(directory: Path) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}


def databases(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.glob("*.db")}


async def told(journal: SqliteJournal, command: OutcomeCommand) -> list[OutcomeCommand | None]:
    return [each.command for each in await journal.outcomes(command.operation_id)]


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "journal"]


async def test_outcomes_come_back_as_they_went_in(journal: SqliteJournal) -> None:
    """Every command that ends an attempt is kept to the byte, and read until it is forgotten; in their order, however
    many are written at once, and whatever the size of a page."""
    ids = await asyncio.gather(*(journal.append("charge", outcome) for outcome in OUTCOMES))
    assert await waiting(journal) == list(OUTCOMES)
    for bytes_max, number in ((1, 1), (1 << 20, len(OUTCOMES))):
        page = await journal.waiting(None, limit=20, bytes_max=bytes_max)
        assert [(each.entry_id, each.route) for each in page] == [(each, "charge") for each in ids[:number]]
    for entry_id, outcome in zip(ids, OUTCOMES, strict=True):
        assert (await told(journal, outcome), journal.holds(outcome.operation_id)) == ([outcome], True)
        await journal.forget([entry_id])
        assert (await told(journal, outcome), journal.holds(outcome.operation_id)) == ([], False)
    assert await waiting(journal) == []
    assert journal.tally.waiting == journal.tally.bytes == 0


async def test_what_cannot_be_kept_fails_alone(journal: SqliteJournal) -> None:
    """An outcome that no row can hold is rejected; those written with it are kept."""
    good, bad = complete(), replace(complete(), token=2**63)
    answers = await asyncio.gather(
        *[journal.append("charge", outcome) for outcome in (good, bad)], return_exceptions=True
    )
    assert [type(answer) for answer in answers] == [EntryId, Unstorable]
    assert await waiting(journal) == [good]


LARGE = complete(b"x" * 100_000)


@pytest.mark.parametrize("limits", [{"rows_max": 3}, {"bytes_max": 4 * cost_bytes(LARGE) - 1}], ids=["rows", "bytes"])
async def test_it_is_bounded(directory: Path, limits: dict[str, int]) -> None:
    """What is too much is refused whole and at once; with room again it takes more, refused ones count too."""
    async with opened(directory, **limits) as journal:
        outcomes = [replace(LARGE, operation_id=uuid4()) for _ in range(5)]
        answers = await asyncio.gather(
            *[journal.append("charge", outcome) for outcome in outcomes], return_exceptions=True
        )
        kept = [answer for answer in answers if isinstance(answer, EntryId)]
        assert len(kept) == 3
        assert "the journal is full" in str(answers[-1])
        await journal.refuse([(kept[0], "no")])
        with pytest.raises(NotApplied, match="1 were refused"):
            await journal.append("charge", outcomes[4])
        await journal.forget(kept[1:])
        await journal.append("charge", outcomes[4])


async def test_an_empty_journal_leaves_nothing(directory: Path) -> None:
    """What is closed empty is removed; what holds something is one file, which the next start goes on with. Nothing is
    readable by anybody else."""
    async with opened(directory) as journal:
        await journal.forget([await journal.append("charge", complete())])
        assert (modes(directory), modes(directory.parent)) == ({0o600}, {0o700})
        assert {"db", "db-wal", "lock"} <= set(files(directory))
    assert files(directory) == []
    outcome = complete()
    async with opened(directory) as journal:
        await journal.append("charge", outcome)
    assert files(directory) == ["db", "lock"]
    async with opened(directory) as journal:
        assert await waiting(journal) == [outcome]
        await journal.append("charge", complete())
        assert files(directory).count("db") == 1
    assert threads() == []


async def test_another_owners_file_is_stepped_over(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Outcomes for another service or store are neither flushed nor removed, and it is said that they are there."""
    outcome = complete()
    async with opened(directory, "service other, postgresql shop") as other:
        await other.append("charge", outcome)
    before = databases(directory)
    async with opened(directory) as journal:
        assert await waiting(journal) == []
        assert await journal.adopt() == 0
    assert "belongs to another service or durable store" in caplog.text
    assert databases(directory) == before
    caplog.clear()
    async with opened(directory, "service other, postgresql shop") as other:
        async with opened(directory) as journal:
            assert await waiting(journal) == []
        assert "belongs to another service or durable store" not in caplog.text
        assert await waiting(other) == [outcome]


def index(path: Path) -> None:
    """A page that nobody reads before the next outcome comes."""
    with closing(apsw.Connection(str(path))) as connection:
        ((page,),) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'sqlite_autoindex_entry_1'")
        ((size,),) = connection.execute("PRAGMA page_size")
    content = bytearray(path.read_bytes())
    content[(page - 1) * size : page * size] = b"\xa5" * size
    path.write_bytes(content)


def tamper(statement: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        with closing(apsw.Connection(str(path))) as connection:
            connection.execute(statement)

    return change


UNFIT: dict[str, tuple[Callable[[Path], None], str]] = {
    "empty": (lambda path: os.truncate(path, 0), "damaged"),
    "a-page-lost": (index, "damaged"),
    "newer": (tamper("PRAGMA user_version = 99"), "newer version"),
    "of-another-owner": (tamper("UPDATE owner SET belongs_to = 'somebody'"), "move it away"),
}


@pytest.mark.parametrize(("spoil", "said"), UNFIT.values(), ids=UNFIT)
async def test_a_file_that_is_not_fit_stops_the_start(
    directory: Path, spoil: Callable[[Path], None], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It says what to do, and the file stays as it is; while a journal runs it is told and left alone."""
    async with opened(directory) as journal:
        await journal.append("charge", complete())
    (path,) = databases(directory)
    spoil(path)
    before = path.read_bytes()
    with pytest.raises(StartRefused, match=said):
        await SqliteJournal(directory, OWNER).start()
    assert threads() == []
    assert path.read_bytes() == before
    hidden = path.rename(path.with_name("hidden"))
    async with opened(directory) as journal:
        hidden.rename(path)
        assert await journal.adopt() == await journal.adopt() == 0
        assert caplog.text.count(str(path)) == 1
        await journal.append("charge", complete())
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "change", ["version = 2", "command = x'ff'", "operation_id = x''"], ids=["newer", "fields", "id"]
)
async def test_a_row_that_cannot_be_read_holds_nothing_up(directory: Path, change: str) -> None:
    """It stays for the program that wrote it, or for whoever looks into the file, and those behind it are read."""
    outcomes = [complete(), complete()]
    async with opened(directory) as journal:
        for outcome in outcomes:
            await journal.append("charge", outcome)
    (path,) = databases(directory)
    tamper(f"UPDATE entry SET {change} WHERE id = 1")(path)
    async with opened(directory) as journal:
        assert await waiting(journal) == outcomes[1:]
        assert journal.tally.waiting == 2
        assert await told(journal, outcomes[0]) == ([] if "operation_id" in change else [None])


@pytest.mark.parametrize("failure", ["sync", "write", "space"])
async def test_a_commit_that_fails_is_never_acknowledged(failure: str, disk: FailingDisk, directory: Path) -> None:
    """While the disk fails nothing is taken, what was taken can be read, and afterwards everything works by itself."""
    async with opened(directory) as journal:
        before, after = complete(), complete()
        await journal.append("charge", before)
        disk.fails.add(failure)
        for _ in range(3):
            with pytest.raises((Indefinite, NotApplied)):
                await journal.append("charge", after)
        assert await told(journal, before) == [before]
        disk.fails.clear()
        await journal.append("charge", after)
        assert await waiting(journal) == [before, after]
    async with opened(directory) as journal:
        assert await waiting(journal) == [before, after]


async def test_a_start_that_is_given_up_leaves_no_thread(directory: Path) -> None:
    """Cancelled at any await of its start, it ends what it had begun."""
    for turns in range(4):
        journal = SqliteJournal(directory, OWNER)
        starting = asyncio.create_task(journal.start())
        for _ in range(turns):
            await asyncio.sleep(0.001)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await eventually(lambda starting=starting: not (starting.cancelled() and threads()))
        await journal.close()
        assert threads() == []
    assert files(directory) == []
