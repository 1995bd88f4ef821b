"""What a gateway cannot decrypt, met by everything that it does: each gets a definite response, and nothing runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import pytest

from gateway.core.operation import State
from gateway.store.operations import Query
from tests.admin.shell import CUT, Shell
from tests.http.gateway.test_encryption import ACCEPT, KEYED, A, B
from tests.support.accepting import ASYNC
from tests.support.eventually import eventually
from tests.support.house import House, config_text, house, neighbour, sqlite_store, status_of
from tests.support.upstream import Answer, RecordingUpstream

SECRET = "Zqxjkvbpyw"
ANSWER = Answer(201, headers=(("Location", f"/made/{SECRET}"),), body=SECRET.encode())
BODY = b'{"it": "%s"}' % SECRET.encode()
ROUTE = {name: part for name, part in (KEYED | ACCEPT).items() if name != "in_flight"}
SINK = {"name": "lines", "kind": "webhook", "secrets": [{"id": "s", "key": "whsec_" + "c2VjcmV0" * 4}]}


def changes(sink: str, *keys: dict[str, str], workers: int = 0) -> dict[str, Any]:
    sinks = [{**SINK, "url": sink}]
    return {
        "routes": [ROUTE],
        "store": {"clear_keys": True, "cache_max_age": "0s"},
        "delivery": {"workers": workers},
        "events": {"sinks": sinks, "include": ["key", "response"], "types": ["operation.completed"]},
        "egress": {"https_only": False, "allow": ["127.0.0.0/8"], "ports": [int(sink.rpartition(":")[2].rstrip("/"))]},
        "secrets": {"encryption": list(keys), "unreadable": "accept"},
    }


def _nothing(_: Path) -> None:
    """The store stays as it is."""


CELLS = (("operation", "headers"), ("response", "body"), ("operation", "key"), ("operation", "probe_target"),
         ("operation", "resource"), ("request", "sealed"), ("event", "response"))  # fmt: skip


def _cut(database: Path) -> None:
    connection = apsw.Connection(str(database))
    for table, column in CELLS:
        cut = f"substr({column}, 1, length({column}) - 1)"
        connection.execute(f"UPDATE {table} SET {column} = {cut} WHERE {column} IS NOT NULL")
    connection.close()


def _exchanged(database: Path) -> None:
    """Each value is another row's, of the same kind."""
    connection = apsw.Connection(str(database))
    for table, column in CELLS:
        rows = list(connection.execute(f"SELECT rowid, {column} FROM {table} WHERE {column} IS NOT NULL"))
        assert len(rows) > 1
        for (row, _), (_, value) in zip(rows, rows[1:] + rows[:1], strict=True):
            connection.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (value, row))
    connection.close()


DAMAGE: dict[str, tuple[Callable[[Path], None], list[dict[str, str]]]] = {
    "cut": (_cut, [A]),
    "exchanged": (_exchanged, [A]),
    "key-missing": (_nothing, [B]),
    "key-another": (_nothing, [B, {**A, "key": "c3" * 32}]),
}
COUNT = 2


@dataclass
class Blind:
    """A gateway that cannot decrypt what is in its store, its operator, and what another one left."""

    home: House
    shell: Shell
    consumer: RecordingUpstream
    ids: dict[str, str]

    async def send(self, key: str, body: bytes = BODY) -> tuple[int, str | None]:
        response = await self.home.send(key, body, target="/s/cut" if key.startswith("doubt") else "/s/ok")
        assert SECRET.encode() not in response.body
        assert SECRET not in (response.header("Location") or "")
        return status_of(response)

    async def inspected(self, key: str) -> dict[str, Any]:
        found = await self.shell("inspect", self.ids[key], "--format", "jsonl")
        assert (found.code, SECRET in found.out) == (0, False)
        (row,) = found.rows()
        return row


async def _leave(home: House) -> dict[str, str]:
    """Operations in each state that keeps something; their ids by their keys."""
    home.upstream.on(None, Answer(503))
    home.upstream.on("/s/ok", ANSWER)
    home.upstream.on("/s/cut", CUT)
    for number in range(COUNT):
        for kind, target, headers, verdict in (
            ("done", "/s/ok", [], "stored"),
            ("doubt", "/s/cut", [], "in-doubt"),
            ("kept", "/s/ok", [ASYNC], "accepted"),
        ):
            response = await home.send(f"{kind}{number}", BODY, target=target, headers=headers)
            assert status_of(response)[1] == verdict
    records = [each.record for each in await home.gateway._store.cold.find(Query(frozenset(State), limit=100))]
    return {str(each.identity.key): str(each.identity.operation_id) for each in records if each is not None}


@asynccontextmanager
async def blind(directory: Path, damage: str) -> AsyncIterator[Blind]:
    """A gateway behind the damage. What the one before it has to publish waits for the damage, too."""
    change, keys = DAMAGE[damage]
    store = sqlite_store(directory)
    async with RecordingUpstream() as consumer:
        sink = f"{consumer.url}/"
        async with house(store, directory, **changes(sink, A)) as home:
            upstream = home.upstream
            shell = Shell(directory, config_text(upstream.url, store, directory, **changes(sink, A)))
            assert (await shell("sinks", "--suspend", "lines", "--why", SECRET)).code == 0
            ids = await _leave(home)
            await home.gateway.stop()
            assert consumer.requests == []
            change(directory / "store" / "operations.db")
            settings = changes(sink, *keys, workers=1)
            shell = Shell(directory, config_text(upstream.url, store, directory, **settings))
            upstream.requests.clear()
            async with neighbour(store, directory, upstream, **settings) as other:
                yield Blind(other, shell, consumer, ids)
            async with neighbour(store, directory, upstream, **changes(sink, A, workers=1)) as last:
                is_back = damage.startswith("key-")
                expected = (201, "replayed") if is_back else (409, "response-not-stored")
                assert status_of(await last.send("done0", BODY, target="/s/ok")) == expected
                assert upstream.requests == []
                if is_back:
                    shell = Shell(directory, config_text(upstream.url, store, directory, **changes(sink, A)))
                    assert (await shell("requeue", ids["kept0"], "--why", "the key is back")).code == 0
                    repeat = await last.send("kept0", BODY, target="/s/ok", headers=[("Prefer", "wait=20")])
                    assert (repeat.status, repeat.body, len(upstream.requests)) == (201, ANSWER.body, 1)


@pytest.mark.parametrize("damage", DAMAGE)
async def test_everything_is_answered_and_nothing_runs(tmp_path: Path, damage: str) -> None:
    """Repeats, status, operators, probes, deliveries, events and `rekey`; and with its key, a record is what it was."""
    async with blind(tmp_path, damage) as it:
        for _ in range(2):
            assert await it.send("done0") == (409, "response-not-stored")
            assert await it.send("done0", b"{}") == (422, "key-reused")
            assert await it.send("doubt0") == (409, "in-doubt")
        assert await it.send("doubt0", b"{}") == (422, "key-reused")

        for target, status, word in (("", 200, b'"completed"'), ("/result", 409, b'"response-not-stored"')):
            seen = await it.home.send(None, b"", target=f"/_operations/{it.ids['done0']}{target}", method="GET")
            assert (seen.status, word in seen.body, SECRET.encode() in seen.body) == (status, True, False)

        async def is_dead(key: str) -> bool:
            return (await it.inspected(key))["state"] == "dead_letter"

        for key in ("kept0", "kept1"):
            await eventually(lambda key=key: is_dead(key), 20, "it cannot be delivered")
            assert await it.send(key) == (409, "dead-letter")
        listed = await it.shell("inspect", "--list", "--state", "dead_letter", "--reason", "unreadable")
        assert len(listed.out.splitlines()) == 1 + COUNT

        assert (await it.shell("sinks", "--resume", "lines", "--why", "mended")).code == 0

        async def is_published_no_more() -> bool:
            found = await it.home.gateway._store.cold.find_events("shop", "lines", is_dead=True, after=None, limit=10)
            return len(found) == COUNT and all(each.why.startswith("unreadable: ") for each in found)

        await eventually(is_published_no_more, 20, "the events cannot be published")
        assert it.consumer.requests == []

        states = {key: (await it.inspected(key))["state"] for key in it.ids}
        assert states == {f"{kind}{number}": state for number in range(COUNT) for kind, state in
                          (("done", "completed"), ("doubt", "in_doubt"), ("kept", "dead_letter"))}  # fmt: skip
        said = await it.shell("rekey")
        assert (said.code, "Traceback" in said.err) == (3, False), said

        file = it.shell.file("answer", b"HTTP/1.1 201 Created\r\nContent-Length: 4\r\n\r\nmade")
        proved = await it.shell("resolve", it.ids["doubt1"], "--completed", file, "--why", "seen in the ledger")
        assert proved.code == 0, proved
        assert await it.send("doubt1") == (201, "recovered")
        assert (await it.shell("purge", it.ids["done1"], "--why", "for good")).code == 0
        assert await it.send("done1") == (410, "key-expired")
        assert (await it.shell("withdraw", it.ids["kept1"], "--why", "lost")).code == 0

        assert it.home.upstream.requests == []
