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
from tests.admin.shell import CREATED, doubt, lone_shell, shelled
from tests.support.house import status_of

Store = dict[str, Any]
ID, OTHER = (f"00000000-0000-8000-8000-00000000000{digit}" for digit in (1, 2))


def read(text: str) -> list[Line]:
    return read_list(text.encode(), {"a b.http": CREATED, "bad.http": b"no response"}.__getitem__)


def test_a_list() -> None:
    """Comments and empty lines are passed over; a file's name may have spaces, an id a token."""
    first, second = read(f"# found by hand\n\n{ID}@7 never-happened\r\n  {OTHER} completed a b.http \n")
    assert (first.number, first.operation_id, first.ruling, first.token) == (3, UUID(ID), NothingHappened(), 7)
    assert (second.number, second.operation_id, second.token) == (4, UUID(OTHER), None)
    assert isinstance(second.ruling, Happened)
    assert second.ruling.body == b'{"id":1}'


EXPECTED = "line 1: expected OPERATION_ID never-happened"
WRONG_LISTS = {
    "empty": ("", "it names no operation"),
    "verb": (f"{ID} perhaps", EXPECTED),
    "no-file": (f"{ID} completed", EXPECTED),
    "no-token": (f"{ID}@ never-happened", "line 1: expected a token behind @"),
    "no-answer": (f"{ID} completed bad.http", "line 1: bad.http: no empty line ends the headers"),
    "twice": (f"{ID} never-happened\n{ID} never-happened", f"line 2: {ID} is listed 2 times"),
    "too-many": ("\n".join(f"{uuid4()} never-happened" for _ in range(10_001)), "more than 10000 operations"),
}


@pytest.mark.parametrize("form", WRONG_LISTS)
def test_a_list_with_a_mistake(form: str) -> None:
    """It is refused as a whole, and each mistake is named with its line."""
    text, said = WRONG_LISTS[form]
    with pytest.raises(CommandWrong) as refused:
        read(text)
    assert said in str(refused.value)


async def ends(desk: Desk, *lines: Line, is_dry_run: bool = False) -> list[End]:
    found = resolve_all(desk.operations, lines, AUDIT, is_forced=False, is_dry_run=is_dry_run)
    return [end async for _, end, _ in found]


async def test_a_list_that_is_given_again_after_the_key_ran(desk: Desk) -> None:
    """That nothing happened was done; what ran since is no error, and a doubt of its own is not the list's to end."""
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
    # The same words about another doubt are a new command.
    assert await ends(desk, replace(line, token=again.token)) == [End.RESOLVED]
    assert len(await desk.operations.audits(operation_id)) == 2


async def test_many_in_one_command(sqlite: Store, tmp_path: Path) -> None:
    """A dry run changes nothing; then each is resolved and audited, what cannot be is named with its line, and given
    again the command does the rest."""
    async with shelled(sqlite, tmp_path) as (running, shell):
        doubts = [await doubt(running, f"k{number}") for number in range(3)]
        response = shell.file("response.http", CREATED)
        lines = [f"{doubts[0]} completed {response}", f"{doubts[1]} completed {response}", f"{ID} never-happened"]
        listed = shell.file("list", "\n".join([*lines, f"{doubts[2]} never-happened"]).encode())
        command = ("resolve", "--from", listed, "--why", "ticket 7", "--by", "alice")

        dry = await shell(*command, "--dry-run")
        assert (dry.code, dry.out.splitlines()[-1]) == (1, "2 would be resolved, 2 refused")
        assert len((await shell("inspect", "--list", "--format", "jsonl")).rows()) == 3
        first = await shell(*command)
        assert first.code == 1
        assert first.out.splitlines() == [*(f"{each}  resolved" for each in doubts[:2]), "2 resolved, 2 refused"]
        assert f"line 4: {doubts[2]}: A request of the last attempt may still arrive until" in first.err
        assert f"line 3: {ID}: Nothing is remembered of operation" in first.err
        again = await shell(*command, "--force")
        assert (again.code, again.out.splitlines()[-1]) == (1, "2 resolved already, 1 refused, 1 resolved")
        replayed = await running.send("k1")
        assert (replayed.status, replayed.body) == (201, b'{"id":1}')
        assert status_of(await running.send("k2")) == (201, "stored")
        for each in doubts:
            (about,) = (await shell("inspect", each, "--format", "jsonl")).rows()
            assert [audit["who"] for audit in about["audits"]] == ["alice"]


async def test_a_response_that_is_not_there(tmp_path: Path) -> None:
    """Its line is named, beside the other mistakes."""
    shell = lone_shell(tmp_path)
    listed = shell.file("list", f"{ID} never-happened\n{OTHER} completed nowhere.http\nx\n".encode())
    refused = await shell("resolve", "--from", listed, "--why", "x")
    assert refused.code == 2
    assert "line 2: nowhere.http cannot be read" in refused.err
    assert "line 3: expected" in refused.err


INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\n"
WHOLE = gzip.compress(b"whole")
LINES = (b"HTTP/2 201 ", b"HTTP/3 201", b"HTTP/1.0 201 OK then")
# What is in a file, and the status, the headers and the body that are read from it.
READ: dict[str, tuple[bytes, int, dict[bytes, bytes], bytes]] = {
    **{line.decode().replace(" ", "_"): (line + b"\r\nA: b\r\n\r\nx", 201, {b"A": b"b"}, b"x") for line in LINES},
    "LF alone": (b"HTTP/1.1 200 OK\nA: b\n\nx\n", 200, {b"A": b"b"}, b"x\n"),
    "interim": (INTERIM + b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n" + OK + b"\r\nx", 200, {}, b"x"),
    # A body is kept in the coding that it names, and a coding that is not known here is not judged.
    "unknown": (OK + b"Content-Encoding: aes128gcm\r\n\r\nx", 200, {b"Content-Encoding": b"aes128gcm"}, b"x"),
    # As curl leaves it: the fields of the wire, the body without its chunks.
    "chunked": (OK + b"Transfer-Encoding: chunked\r\n\r\nx", 200, {b"Transfer-Encoding": b"chunked"}, b"x"),
}


@pytest.mark.parametrize("form", READ)
def test_a_response_as_curl_prints_it(form: str) -> None:
    """The status line of every version that curl speaks, fields, and every byte of the body; also written by hand."""
    data, status, headers, body = READ[form]
    head, found = read_response(data)
    assert (head.status, head.headers, found) == (status, tuple(headers.items()), body)


MISTAKES = {
    "empty": (b"", "no empty line ends the headers within 256 KiB"),
    "mixed": (OK + b"A: b\n\r\n\r\nx", "line 2 is not a header"),
    "body alone": (b'{"id": 1}\r\n\r\n', "line 1 is not a status line such as HTTP/1.1 201 Created; save the response"),
    "folded": (OK + b" folded\r\n\r\n", "line 2 is not a header"),
    "NUL": (OK + b"A: b\r\nC: \x00\r\n\r\n", "line 3 is not a header"),
    "101": (b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n", "101 is not the status of a final"),
    "many interim": (INTERIM * 33 + CREATED, "more than 32 interim responses"),
    "redirect": (b"HTTP/1.1 302 Found\r\nLocation: /\r\n\r\n" + CREATED, "there are several responses"),
    "204 with body": (b"HTTP/1.1 204 No\r\n\r\nx", "a response with status 204 has no body, but this one has 1 bytes"),
    "cut": (OK + b"Content-Length: 5\r\n\r\nfour", "Content-Length says 5, but the body has 4 bytes"),
    "cut gzip": (OK + b"Content-Encoding: gzip\r\n\r\n" + WHOLE[:-1], "Content-Encoding says gzip, but the body is"),
    "chunks": (OK + b"Transfer-Encoding: chunked\r\n\r\n4\r\nfour\r\n0\r\n\r\n", "save it without curl's --raw"),
    "fields": (OK + b"A: b\r\n" * 1001 + b"\r\n", "more than 1000 headers"),
    "long": (OK + b"A: " + b"b" * 300_000 + b"\r\n\r\n", "no empty line"),
}


@pytest.mark.parametrize("form", MISTAKES)
def test_refused(form: str) -> None:
    """What is no whole final response is refused, and the reason says what it was."""
    data, why = MISTAKES[form]
    with pytest.raises(Malformed) as caught:
        read_response(data)
    assert why in str(caught.value)


def test_from_values() -> None:
    """The same rules hold for a response that comes as values."""
    head, body = response_of(201, [("X", "é")], b"x")
    assert (head.status, list(head.headers), body) == (201, [(b"X", "é".encode("latin-1"))], b"x")
    for headers in ([("A b", "c")], [("A", "b\r\nC: d")], [("A", "€")]):
        with pytest.raises(Malformed):
            response_of(200, headers, b"")


@pytest.mark.parametrize(
    "response",
    [
        StoredResponse(201, b"Created", ((b"Location", b"/charges/1"), (b"X", b"a"), (b"x", b"")), b'{"id":1}'),
        StoredResponse(200, b"OK", ((b"Content-Encoding", b"gzip"), (b"X-Latin", b"\xe9")), WHOLE),
        StoredResponse(422, b"No", (), b"\r\n\r\nA: b\r\n\x00\n\n"),
    ],
    ids=["fields", "coded", "line ends"],
)
def test_written_as_it_is_read(response: StoredResponse) -> None:
    """A kept response comes back from a file as it was, to the byte."""
    head, body = read_response(written(response))
    assert StoredResponse(head.status, head.reason, head.headers, body) == response
