"""The files of `resolve`: a list of what happened, also when it is given again, and a response that is one whole."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from gateway import CommandWrong
from gateway.admin.commands import End, Line, read_list, resolve_all
from gateway.admin.journal import read_response, response_of, written
from gateway.admin.resolution import Happened, Malformed, NothingHappened
from gateway.core.message import StoredResponse
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
    with pytest.raises(CommandWrong) as refused:
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


CREATED_HEAD = b"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nLocation: /charges/1\r\n\r\n"


def test_as_curl_prints_it() -> None:
    """Status, reason, fields with their repeats, and every byte of the body."""
    head, body = read_response(b"HTTP/1.1 201 Created\r\nA: 1\r\nA:2 \r\nB:\r\n\r\n\x00\xff\n")
    assert (head.status, head.reason) == (201, b"Created")
    assert head.headers == ((b"A", b"1"), (b"A", b"2"), (b"B", b""))
    assert body == b"\x00\xff\n"


@pytest.mark.parametrize(
    "line",
    [b"HTTP/2 201 ", b"HTTP/2 201", b"HTTP/3 201", b"HTTP/1.0 201 OK then", b"HTTP/1.1 201"],
    ids=lambda line: line.decode().replace(" ", "_"),
)
def test_status_lines(line: bytes) -> None:
    """The status line of every version that curl speaks."""
    head, body = read_response(line + b"\r\nA: b\r\n\r\nx")
    assert (head.status, body) == (201, b"x")


def test_written_by_hand() -> None:
    """Lines that all end in LF are fine, and so is a response without a field."""
    assert read_response(b"HTTP/1.1 200 OK\nA: b\n\nx\n")[1] == b"x\n"
    head, body = read_response(b"HTTP/1.1 204 No Content\r\n\r\n")
    assert (head.status, head.headers, body) == (204, (), b"")


def test_interim_answers() -> None:
    """What curl prints before the response is passed over, within bounds."""
    interim = b"HTTP/1.1 100 Continue\r\n\r\n"
    assert read_response(interim + b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n" + CREATED_HEAD)[0].status == 201
    with pytest.raises(Malformed, match="more than 32 interim responses"):
        read_response(interim * 33 + CREATED_HEAD)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "no empty line ends the headers within 256 KiB"),
        (b"HTTP/1.1 200 OK\r\nA: b\r\n", "no empty line"),
        (b"HTTP/1.1 200 OK\r\nA: b\n\r\n\r\nx", "line 2 is not a header"),
        (b'{"id": 1}\r\n\r\n', "line 1 is not a status line such as HTTP/1.1 201 Created; save the response"),
        (b"HTTP/1.1 200 OK\r\n folded\r\n\r\n", "line 2 is not a header"),
        (b"HTTP/1.1 200 OK\r\nA b: c\r\n\r\n", "line 2 is not a header"),
        (b"HTTP/1.1 200 OK\r\nA: b\r\nC: \x00\r\n\r\n", "line 3 is not a header"),
        (b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", "101 is not the status of a final"),
        (b"HTTP/1.1 999 No\r\n\r\n", "999 is not the status of a final"),
        (b"HTTP/1.1 302 Found\r\nLocation: /\r\n\r\n" + CREATED_HEAD, "there are several responses"),
        (b"HTTP/1.1 200 Connection established\r\n\r\nHTTP/2 201 \r\n\r\n", "there are several responses"),
        (b"HTTP/1.1 204 No Content\r\n\r\nx", "a response with status 204 has no body, but this one has 1 bytes"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfour", "Content-Length says 5, but the body has 4 bytes"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nfour", "Content-Length says 4, 5, but"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\nplain", "Content-Encoding says gzip, but the body is not"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n" + gzip.compress(b"whole")[:-1],
            "Content-Encoding says gzip, but the body is not",
        ),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nfour\r\n0\r\n\r\n",
            "the body is still in chunks; save it without curl's --raw",
        ),
        (b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 1001 + b"\r\n", "more than 1000 headers"),
        (b"HTTP/1.1 200 OK\r\nA: " + b"b" * 300_000 + b"\r\n\r\n", "no empty line"),
    ],
    ids=[
        "empty", "no end", "mixed", "body alone", "folded", "space in name", "NUL", "101", "999", "redirect", "protect",
        "204 with body", "cut", "two lengths", "decoded", "cut gzip", "chunks", "fields", "long",
    ],
)  # fmt: skip
def test_refused(data: bytes, why: str) -> None:
    """What is no whole final response is refused, and the reason says what it was."""
    with pytest.raises(Malformed) as caught:
        read_response(data)
    assert why in str(caught.value)


def test_coded_bodies() -> None:
    """A body in the coding that it names is kept as it is; a coding that is not known here is not judged."""
    body = gzip.compress(b"whole")
    assert read_response(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n" + body)[1] == body
    assert read_response(b"HTTP/1.1 200 OK\r\nContent-Encoding: aes128gcm\r\n\r\nx")[1] == b"x"
    # As curl leaves it: the fields of the wire, the body without its chunks.
    assert read_response(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfour")[1] == b"four"


def test_from_values() -> None:
    """The same rules hold for a response that comes as values."""
    head, body = response_of(201, [("Content-Type", "text/plain"), ("X", "é")], b"x")
    assert (head.status, head.headers[1], body) == (201, (b"X", "é".encode("latin-1")), b"x")
    for headers in ([("A b", "c")], [("A", "b\r\nC: d")], [("A", "€")]):
        with pytest.raises(Malformed):
            response_of(200, headers, b"")


@pytest.mark.parametrize(
    "response",
    [
        StoredResponse(201, b"Created", ((b"Location", b"/charges/1"), (b"X", b"a"), (b"x", b"")), b'{"id":1}'),
        StoredResponse(200, b"", (), b""),
        StoredResponse(200, b"OK", ((b"Content-Encoding", b"gzip"), (b"X-Latin", b"\xe9")), gzip.compress(b"whole")),
        StoredResponse(422, b"No", (), b"\r\n\r\nA: b\r\n\x00\n\n"),
        StoredResponse(204, b"No Content", ((b"ETag", b'"1"'),), b""),
    ],
    ids=["fields", "nothing", "coded", "line ends", "no content"],
)
def test_written_as_it_is_read(response: StoredResponse) -> None:
    """A kept response comes back from a file as it was, to the byte."""
    head, body = read_response(written(response))
    assert StoredResponse(head.status, head.reason, head.headers, body) == response
