"""`resolve --from FILE`: what a list may say, and what becomes of its lines, also when it is given again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from gateway.admin.commands import End, Line, ListWrong, read_list, resolve_all
from gateway.admin.resolution import Happened, NothingHappened
from gateway.core.operation import State
from tests.admin.hand import AUDIT, LEASE_SECONDS, SETTLE_SECONDS, Desk
from tests.admin.shell import CREATED, doubt, shell_for
from tests.support.house import house, status_of
from tests.support.upstream import Answer

Store = dict[str, Any]
ID, OTHER = (f"00000000-0000-8000-8000-00000000000{digit}" for digit in (1, 2))
MANY = 200


def read(text: str) -> list[Line]:
    return read_list(text.encode(), {"a b.http": CREATED, "bad.http": b"no response"}.__getitem__)


def test_a_list() -> None:
    """Comments and empty lines are passed over; a file's name may have spaces, an id a token."""
    first, second = read(f"# found by hand\n\n{ID}@7 never-happened\r\n  {OTHER} completed a b.http \n")
    assert (first.number, first.operation_id, first.ruling, first.token) == (3, UUID(ID), NothingHappened(), 7)
    assert (second.number, second.operation_id, second.token) == (4, UUID(OTHER), None)
    assert isinstance(second.ruling, Happened)
    assert second.ruling.body == b'{"id":1}'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it names no operation"),
        ("abc never-happened", "line 1: expected OPERATION_ID never-happened"),
        (ID, "line 1: expected OPERATION_ID never-happened"),
        (f"{ID} perhaps", "line 1: expected OPERATION_ID never-happened"),
        (f"{ID} never-happened really", "line 1: expected OPERATION_ID never-happened"),
        (f"{ID} completed", "line 1: expected OPERATION_ID never-happened"),
        (f"{ID}@0 never-happened", "line 1: expected a token behind @"),
        (f"{ID}@ never-happened", "line 1: expected a token behind @"),
        (f"{ID} completed bad.http", "line 1: bad.http: no empty line ends the headers"),
        (f"{ID} never-happened\n{ID} never-happened", f"line 2: {ID} is listed 2 times"),
        (f"x\n{ID} never-happened\ny", "line 3: expected"),
        ("\n".join(f"{uuid4()} never-happened" for _ in range(10_001)), "more than 10000 operations"),
    ],
    ids=[
        "empty", "no-id", "no-verb", "verb", "more", "no-file", "token-zero", "no-token", "no-answer", "twice", "each",
        "too-many",
    ],
)  # fmt: skip
def test_a_list_with_a_mistake(text: str, said: str) -> None:
    """It is refused as a whole, and each mistake is named with its line."""
    with pytest.raises(ListWrong) as refused:
        read(text)
    assert said in str(refused.value)


async def ends(desk: Desk, *lines: Line, is_dry_run: bool = False) -> list[End]:
    found = resolve_all(desk.operations, lines, AUDIT, is_forced=False, is_dry_run=is_dry_run)
    return [end async for _, end, _ in found]


async def test_a_list_that_is_given_again_after_the_key_ran() -> None:
    """That nothing happened was done; what ran since is no error, and a doubt of its own is not the list's to end."""
    desk = Desk()
    record = await desk.in_state(State.IN_DOUBT, key="key-1")
    operation_id = record.identity.operation_id
    line = Line(1, operation_id, NothingHappened())
    desk.memory.clock.advance(LEASE_SECONDS + SETTLE_SECONDS)
    assert await ends(desk, line, is_dry_run=True) == [End.POSSIBLE]
    assert desk.record(operation_id) == record
    assert await ends(desk, line) == [End.RESOLVED]
    assert await ends(desk, line) == [End.ALREADY]
    again = desk.say(replace(desk.claim("key-1"), read_token=record.token))
    assert await ends(desk, line) == [End.ALREADY]
    desk.memory.clock.advance(LEASE_SECONDS + SETTLE_SECONDS)
    # Lapsed: in doubt, under another token.
    assert await ends(desk, line) == [End.REFUSED]
    assert await ends(desk, replace(line, token=record.token)) == [End.ALREADY]
    assert await ends(desk, replace(line, token=again.token)) == [End.RESOLVED]


async def test_many_in_one_command(sqlite: Store, tmp_path: Path) -> None:
    """A dry run changes nothing; then each is resolved and audited, what cannot be is listed, and the rest is done."""
    async with house(sqlite, tmp_path) as running:
        shell = shell_for(running, sqlite, tmp_path)
        doubts = [await doubt(running, f"k{number}") for number in range(3)]
        response = shell.file("response.http", CREATED)
        unknown = ID
        lines = [f"{doubts[0]} completed {response}", f"{doubts[1]} completed {response}", f"{unknown} never-happened"]
        listed = shell.file("list", "\n".join([*lines, f"{doubts[2]} never-happened"]).encode())
        command = ("resolve", "--from", listed, "--why", "ticket 7", "--by", "alice")

        dry = await shell(*command, "--dry-run")
        assert dry.code == 1
        assert dry.out.splitlines()[-1] == "2 would be resolved, 2 refused"
        assert len((await shell("inspect", "--list", "--format", "jsonl")).rows()) == 3

        first = await shell(*command)
        assert first.code == 1
        assert first.out.splitlines() == [*(f"{each}  resolved" for each in doubts[:2]), "2 resolved, 2 refused"]
        early, absent = sorted(first.err.splitlines(), key=lambda line: "line 3" in line)
        assert f"line 4: {doubts[2]}: A request of the last attempt may still arrive until" in early
        assert f"line 3: {unknown}: Nothing is remembered of operation" in absent

        again = await shell(*command, "--force")
        assert again.code == 1
        assert again.out.splitlines()[-1] == "2 resolved already, 1 refused, 1 resolved"
        replayed = await running.send("k1")
        assert (replayed.status, replayed.body) == (201, b'{"id":1}')
        running.upstream.on("/charges", Answer(201, body=b"run"))
        assert status_of(await running.send("k2")) == (201, "stored")
        last = await shell(*command, "--force")
        assert last.out.splitlines()[-1] == "3 resolved already, 1 refused"
        for each in doubts:
            (about,) = (await shell("inspect", each, "--format", "jsonl")).rows()
            assert [audit["who"] for audit in about["audits"]] == ["alice"]


async def test_two_hundred_on_the_model() -> None:
    """So many doubts are one list, each with its audit."""
    desk = Desk()
    records = [await desk.in_state(State.IN_DOUBT) for _ in range(MANY)]
    desk.memory.clock.advance(LEASE_SECONDS + SETTLE_SECONDS)
    lines = [Line(number, each.identity.operation_id, NothingHappened()) for number, each in enumerate(records, 1)]
    assert await ends(desk, *lines) == [End.RESOLVED] * MANY
    assert await ends(desk, *lines) == [End.ALREADY] * MANY
    for line in lines:
        (audit,) = desk.store.audits_now(line.operation_id)
        assert (audit.who, audit.why) == (AUDIT.who, AUDIT.why)


async def test_a_response_that_is_not_there(tmp_path: Path) -> None:
    """Its line is named, beside the other mistakes."""
    store = {"durable": f"sqlite://{tmp_path}/operations.db"}
    given = tmp_path / "list"
    given.write_text(f"{ID} never-happened\n{OTHER} completed nowhere.http\nx\n")
    async with house(store, tmp_path) as running:
        refused = await shell_for(running, store, tmp_path)("resolve", "--from", str(given), "--why", "x")
    assert refused.code == 2
    assert "line 2: nowhere.http cannot be read" in refused.err
    assert "line 3: expected" in refused.err
