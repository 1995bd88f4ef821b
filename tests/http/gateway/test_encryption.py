"""Encryption through a whole gateway: who has the key replays, and who lacks it runs nothing again."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import apsw
import pytest

from gateway.app.life import StartError
from gateway.app.stores import name_of, sealing_of
from gateway.config import parse
from gateway.core.message import StoredResponse
from gateway.core.operation import Complete, State
from gateway.store.journal.journal import SqliteJournal
from gateway.store.operations import Query
from tests.admin.shell import CUT, Shell
from tests.http.gateway.asking import metric
from tests.support.accepting import ASYNC
from tests.support.eventually import eventually
from tests.support.house import ROUTE, House, config_text, house, neighbour, sqlite_store, status_of
from tests.support.http import Response
from tests.support.sentinel import Sentinel
from tests.support.upstream import Answer, RecordingUpstream

Store = dict[str, Any]
NEW, OLD = {"id": "new", "key": "0f" * 32}, {"id": "old", "key": "f0" * 32}


async def test_an_outcome_that_waits_needs_its_key(tmp_path: Path) -> None:
    """A start without the key of what is in a journal of this host is refused, as one is that the store needs."""
    store = sqlite_store(tmp_path)
    text = config_text("http://127.0.0.1:1", store, tmp_path, secrets={"encryption": [OLD]})
    async with house(store, tmp_path, secrets={"encryption": [OLD]}) as home:
        upstream = home.upstream
    journal = SqliteJournal(tmp_path / "state" / "journal", name_of(parse(text)))
    await journal.start()
    outcome = Complete(uuid4(), 7, uuid4(), StoredResponse(201, b"Created", (), b"made"), 10, 20)
    await journal.append("charge", sealing_of(parse(text)).sealed(outcome))
    await journal.close()
    expected = r"1 records with key 'old', and secrets\.encryption has no such key"
    with pytest.raises(StartError, match=expected):
        async with neighbour(store, tmp_path, upstream, secrets={"encryption": [NEW]}):
            pass
    newer = config_text("http://127.0.0.1:1", store, tmp_path, secrets={"encryption": [NEW]})
    checked = await Shell(tmp_path, newer)("check", "--store")
    assert (checked.code, "1 records with key 'old'" in checked.err) == (1, True)
    accepting = {"encryption": [NEW], "unreadable": "accept"}
    for secrets in ({"encryption": [NEW, OLD]}, accepting):
        async with neighbour(store, tmp_path, upstream, secrets=secrets):
            pass


WITH_VALUES = b'{"id": 7,  "card": {"number": "4242424242424242"}}'
KEPT = b'{"id": 7,  "card": {"number": "[redacted]"}}'
REDACT = {"response": {"redact": ["/card/number", "header:X-Token"]}, "in_flight": {"wait": "20s"}}
HEADERS = (("Content-Type", "application/json"), ("X-Token", "s3cret-token"))
REDACTED = Answer(201, headers=HEADERS, body=WITH_VALUES)


async def test_only_the_first_request_gets_the_values(store: Store, tmp_path: Path) -> None:
    """And those that wait for it in the same process; later ones, on any gateway, get what was kept, and are told."""
    async with (
        house(store, tmp_path, route=REDACT) as home,
        neighbour(store, tmp_path / "n", home.upstream, route=REDACT) as other,
    ):
        first, hold = await home.begin("k1", answer=REDACTED)
        waiting = asyncio.create_task(home.send("k1"))
        await eventually(lambda: home.gateway.coordinator.waiters == 1)
        hold.set()
        for task, verdict in ((first, "stored"), (waiting, "replayed")):
            response = await task
            assert status_of(response) == (201, verdict)
            assert (response.body, response.header("X-Token")) == (WITH_VALUES, "s3cret-token")
            assert response.header("Idempotency-Redacted") is None
            assert response.header("Idempotency-Expires") is not None
        for place in (home, other):
            again = await place.send("k1")
            assert status_of(again) == (201, "replayed")
            assert (again.body, again.header("X-Token")) == (KEPT, "[redacted]")
            assert again.header("Idempotency-Redacted") == "true"
        assert len(home.upstream.requests) == 1
    for value in ("4242424242424242", "s3cret-token"):
        assert await Sentinel(value).found(tmp_path) == []


async def test_what_cannot_be_redacted_is_not_kept(tmp_path: Path) -> None:
    """The caller gets it once; a repeat is refused, and nothing is executed again."""
    async with house({"durable": f"sqlite://{tmp_path}/operations.db"}, tmp_path, route=REDACT) as home:
        home.upstream.on("/charges", Answer(headers=(), body=b"<html>4242424242424242</html>"))
        first = await home.send()
        assert (status_of(first), first.body) == ((200, "response-not-stored"), b"<html>4242424242424242</html>")
        again = await home.send()
        assert status_of(again) == (409, "response-not-stored")
        assert json.loads(again.body)["retryable"] is False
        # Long enough for a thread: the same.
        long = json.dumps({"card": {"number": "42"}, "text": "x" * 100_000}).encode()
        home.upstream.on("/charges", Answer(headers=(), body=long))
        assert (await home.send("k2")).body == long
        assert (await home.send("k2")).body == long.replace(b'"42"', b'"[redacted]"')


A, B = {"id": "a", "key": "a1" * 32}, {"id": "b", "key": "b2" * 32}
SENTINEL = Sentinel("Zqxjkvbpyw")
TEXT = SENTINEL.text
KEYED: dict[str, Any] = ROUTE | {
    "match": {"path": "/s/{rest:.*}"},
    "in_flight": {"wait": "0s"},
    "recovery": {"probe": {"path": "/probes/{key}", "done": [{"status": [200]}], "settle": "1h"}},
}
ACCEPT = {"accept": {"identity": "unverified"}}
SINK = {"name": "lines", "kind": "webhook", "secrets": [{"id": "s", "key": "whsec_" + "c2VjcmV0" * 4}]}
EVENTS = {"include": ["key", "location", "response"], "types": ["operation.completed"]}


def changes(*keys: dict[str, str], sink_port: int = 9, workers: int = 0, **secrets: Any) -> dict[str, Any]:
    """The configuration with these encryption keys."""
    found: dict[str, Any] = {
        "routes": [KEYED | (ACCEPT if keys else {})],
        "store": {"clear_keys": True, "cache_max_age": "0s"},
        "delivery": {"workers": workers},
        "events": EVENTS | {"sinks": [SINK | {"url": f"http://127.0.0.1:{sink_port}/"}]},
        "egress": {"https_only": False, "allow": ["127.0.0.0/8"], "ports": [sink_port]},
    }
    return found | ({"secrets": {"encryption": list(keys), **secrets}} if keys else {})


def shell(store: Store, directory: Path, upstream: RecordingUpstream, /, **settings: Any) -> Shell:
    return Shell(directory, config_text(upstream.url, store, directory, **settings))


async def used(home: House, prefix: str, *, accepts: bool) -> dict[str, str]:
    """Operations in all states that keep something; the kind of each by its key."""
    headers = (("Content-Type", "application/json"), ("Location", f"/made/{TEXT}"), ("X-Other", TEXT))
    home.upstream.on(f"/s/{TEXT}", Answer(201, headers=headers, body=b'{"made": "%s"}' % TEXT.encode()))
    home.upstream.on(f"/s/cut/{TEXT}", CUT)
    kinds = ["stored", "in-doubt", "key-expired", *["accepted"] * accepts]
    keys = {f"{prefix}{TEXT}{number}": kind for number, kind in enumerate(kinds, 1)}
    for key, kind in keys.items():
        home.upstream.on(f"/probes/{key}", Answer(503))
        reply = await sent(home, key, kind)
        assert status_of(reply)[1] == {"key-expired": "stored"}.get(kind, kind)
    return keys


async def sent(
    home: House, key: str, kind: str, body: bytes = b'{"sent": "%s"}' % TEXT.encode(), **options: Any
) -> Response:
    target = f"/s/cut/{TEXT}" if kind == "in-doubt" else f"/s/{TEXT}"
    prefer = {"headers": [ASYNC]} if kind == "accepted" else {}
    return await home.send(key, body, tenant=TEXT, target=target, **prefer | options)


async def purge(run: Shell, prefix: str) -> None:
    """Leave a tombstone, its audit, and a pause."""
    found = await run("inspect", "--route", "charge", "--header", f"Idempotency-Key: {prefix}{TEXT}3", "--header",
                      f"X-Tenant: {TEXT}", "--format", "jsonl")  # fmt: skip
    (row,) = found.rows()
    assert (await run("purge", row["operation_id"], "--why", TEXT, "--by", TEXT)).code in (0, 3)


async def as_before(home: House, keys: dict[str, str]) -> None:
    executed = posted(home.upstream)
    for key, kind in keys.items():
        reply = await sent(home, key, kind)
        assert status_of(reply)[1] == {"stored": "replayed"}.get(kind, kind), key
        if kind == "stored":
            assert (reply.body, reply.header("Location")) == (b'{"made": "%s"}' % TEXT.encode(), f"/made/{TEXT}")
    assert posted(home.upstream) == executed


def posted(upstream: RecordingUpstream) -> int:
    """How many requests were executed; probes are not."""
    return sum(received.method == "POST" for received in upstream.requests)


async def found(store: Store, directory: Path) -> list[str]:
    """Where the text is, in the store and in what a gateway keeps beside it."""
    postgres = store["durable"] if store["durable"].startswith("postgresql") else None
    files = [each for part in ("state", "store") for each in await SENTINEL.found(directory / part)]
    return files + await SENTINEL.found(directory / "nowhere", postgres, store.get("fast"))


async def test_a_rotation(store: Store, tmp_path: Path) -> None:
    """The new key first, `rekey` beside gateways that run, and the old key can go: nothing changed but what was stored,
    and nobody reads it without the new one."""
    async with house(store, tmp_path, **changes(A)) as home:
        upstream = home.upstream
        keys = await used(home, "a", accepts=True)
        run = shell(store, tmp_path, upstream, **changes(B, A))
        await purge(run, "a")
        assert (await run("pause", "charge", "--why", TEXT)).code == 0
        assert (await run("sinks", "--suspend", "lines", "--why", TEXT)).code == 0
        await as_before(home, keys)
        await home.gateway.stop()
        async with neighbour(store, tmp_path, upstream, **changes(B, A)) as later:
            keys |= await used(later, "b", accepts=True)
            del keys[f"b{TEXT}3"]
            tally = await later.gateway._store.cold.tally()
            assert set(tally.sealed) == {"a", "b"}
            said = await run("rekey")
            assert (said.code, said.err) == (0, ""), said
            assert "kept requests: encrypted 1 with key 'b'" in said.out
            assert set((await later.gateway._store.cold.tally()).sealed) == {"b"}
            await as_before(later, keys)
            again = await run("rekey")
            assert again.code == 0
            assert [
                line for line in again.out.splitlines() if ": encrypted " in line and "encrypted 0" not in line
            ] == []
            await later.gateway.stop()
        assert await found(store, tmp_path) == []
        with pytest.raises(StartError, match=r"records with key 'b', and secrets\.encryption has no such key"):
            async with neighbour(store, tmp_path, upstream, **changes(A)):
                pass
        checked = await shell(store, tmp_path, upstream, **changes(A))("check", "--store")
        assert (checked.code, "records with key 'b'" in checked.err) == (1, True)
        async with neighbour(store, tmp_path, upstream, **changes(A, unreadable="accept")) as blind:
            executed = posted(upstream)
            assert status_of(await sent(blind, f"a{TEXT}1", "stored")) == (409, "response-not-stored")
            assert posted(upstream) == executed
            await eventually(lambda: metric(blind, "unreadable_records_total"))
        async with neighbour(store, tmp_path, upstream, **changes(B)) as last:
            await as_before(last, keys)
            paused = await shell(store, tmp_path, upstream, **changes(B))("pause")
            assert paused.out.startswith("charge, since ")
            assert TEXT in (await shell(store, tmp_path, upstream, **changes(B))("sinks")).out


async def test_switched_on_in_a_living_store(store: Store, tmp_path: Path) -> None:
    """What was clear stays readable, and `rekey` encrypts it: nothing of it is left."""
    async with house(store, tmp_path, **changes()) as home:
        upstream = home.upstream
        keys = await used(home, "a", accepts=False)
        said = await shell(store, tmp_path, upstream, **changes())("rekey")
        assert (said.code, "secrets: {encryption:" in said.err) == (1, True)
        run = shell(store, tmp_path, upstream, **changes(A))
        await purge(run, "a")
        assert await found(store, tmp_path) != []
        await home.gateway.stop()
        async with neighbour(store, tmp_path, upstream, **changes(A)) as later:
            await as_before(later, keys)
            said = await run("rekey")
            assert (said.code, said.err) == (0, ""), said
            await as_before(later, keys)
            await later.gateway.stop()
        assert await found(store, tmp_path) == []
        async with neighbour(store, tmp_path, upstream, **changes(A)) as last:
            await as_before(last, keys)


# -- what cannot be decrypted ------------------------------------------------------------------------------------------


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


WRONG = A | {"key": "c3" * 32}
# What happens to the file, the keys that are left, and why nothing starts with them, unless that is accepted.
DAMAGE: dict[str, tuple[Callable[[Path], None], list[dict[str, str]], str]] = {
    "cut": (_cut, [A], ""),
    "exchanged": (_exchanged, [A], ""),
    "key-missing": (_nothing, [B], "records with key 'a', and secrets.encryption has no such key"),
    "key-another-opens": (_nothing, [B, WRONG], "encrypted with key 'a' cannot be opened"),
    "key-another-encrypts": (_nothing, [WRONG], "encrypted with key 'a' cannot be opened"),
}


@pytest.mark.parametrize("damage", DAMAGE)
async def test_what_cannot_be_decrypted(tmp_path: Path, damage: str) -> None:
    """Repeats, status, operators, probes, deliveries, events and `rekey` get a definite response, and nothing runs;
    with its key, a record is what it was."""
    change, keys, why = DAMAGE[damage]
    store = sqlite_store(tmp_path)
    async with RecordingUpstream() as consumer, house(store, tmp_path, **changes(A, sink_port=consumer.port)) as home:
        upstream = home.upstream
        run = shell(store, tmp_path, upstream, **changes(A, sink_port=consumer.port))
        assert (await run("sinks", "--suspend", "lines", "--why", TEXT)).code == 0
        kinds = await used(home, "a", accepts=True) | await used(home, "b", accepts=True)
        records = [each.record for each in await home.gateway._store.cold.find(Query(frozenset(State), limit=100))]
        ids = {str(each.identity.key): str(each.identity.operation_id) for each in records if each is not None}
        await home.gateway.stop()
        assert consumer.requests == []
        change(tmp_path / "store" / "operations.db")
        upstream.requests.clear()
        if why:
            refused = changes(*keys, sink_port=consumer.port)
            with pytest.raises(StartError, match=re.escape(why)):
                async with neighbour(store, tmp_path, upstream, **refused):
                    pass
            checked = await shell(store, tmp_path, upstream, **refused)("check", "--store")
            assert (checked.code, why in checked.err) == (1, True)
        settings = changes(*keys, sink_port=consumer.port, workers=1, unreadable="accept")
        run = shell(store, tmp_path, upstream, **settings)
        done, doubt, _, kept, _, other_doubt, other_done, other_kept = kinds
        async with neighbour(store, tmp_path, upstream, **settings) as blind:

            async def told(key: str, **options: Any) -> tuple[int, str | None]:
                reply = await sent(blind, key, kinds[key].replace("accepted", "stored"), **options)
                assert TEXT.encode() not in reply.body
                assert TEXT not in (reply.header("Location") or "")
                return status_of(reply)

            async def state_of(key: str) -> str:
                seen = await run("inspect", ids[key], "--format", "jsonl")
                assert (seen.code, TEXT in seen.out) == (0, False)
                return str(seen.rows()[0]["state"])

            async def is_dead(key: str) -> bool:
                return await state_of(key) == "dead_letter"

            async def is_published_no_more() -> bool:
                events = await blind.gateway._store.cold.find_events("shop", "lines", is_dead=True, after=None, limit=9)
                return len(events) == 4 and all(each.why.startswith("unreadable: ") for each in events)

            for _ in range(2):
                assert await told(done) == (409, "response-not-stored")
                assert await told(done, body=b"{}") == (422, "key-reused")
                assert await told(doubt) == (409, "in-doubt")
            assert await told(doubt, body=b"{}") == (422, "key-reused")
            for part, status, word in (("", 200, b'"completed"'), ("/result", 409, b'"response-not-stored"')):
                target = f"/_operations/{ids[done]}{part}"
                seen = await blind.send(None, b"", target=target, method="GET", tenant=TEXT)
                assert (seen.status, word in seen.body, TEXT.encode() in seen.body) == (status, True, False)
            for key in (kept, other_kept):
                await eventually(lambda key=key: is_dead(key), 20, "it cannot be delivered")
                assert await told(key) == (409, "dead-letter")
            listed = await run("inspect", "--list", "--state", "dead_letter", "--reason", "unreadable")
            assert len(listed.out.splitlines()) == 1 + 2
            assert (await run("sinks", "--resume", "lines", "--why", "mended")).code == 0
            await eventually(is_published_no_more, 20, "the events cannot be published")
            assert consumer.requests == []
            states = {"in-doubt": "in_doubt", "accepted": "dead_letter"}
            for key, kind in kinds.items():
                assert await state_of(key) == states.get(kind, "completed"), key
            said = await run("rekey")
            assert (said.code, "cannot be read: see above" in said.out, said.err) == (3, True, ""), said
            assert f"records: encrypted 0 with key '{keys[0]['id']}'; left 8: " in said.out
            assert ("key 'a' is still used by 14 records" in said.out) == (keys[0] == B)
            assert damage == "key-missing" or "key 'a' is another key than it was" in said.out
            answer = run.file("answer", b"HTTP/1.1 201 Created\r\nContent-Length: 4\r\n\r\nmade")
            proved = await run("resolve", ids[other_doubt], "--completed", answer, "--why", "seen in the ledger")
            assert proved.code == 0, proved
            assert await told(other_doubt) == (201, "recovered")
            assert (await run("purge", ids[other_done], "--why", "for good")).code == 0
            assert await told(other_done) == (410, "key-expired")
            assert (await run("withdraw", ids[other_kept], "--why", "lost")).code == 0
        settings = changes(A, sink_port=consumer.port, workers=1, unreadable="accept")
        async with neighbour(store, tmp_path, upstream, **settings) as last:
            is_back = damage.startswith("key-")
            expected = (201, "replayed") if is_back else (409, "response-not-stored")
            assert status_of(await sent(last, done, "stored")) == expected
            assert upstream.requests == []
            if is_back:
                run = shell(store, tmp_path, upstream, **settings)
                assert (await run("requeue", ids[kept], "--why", "the key is back")).code == 0
                repeat = await sent(last, kept, "stored", headers=[("Prefer", "wait=20")])
                assert (repeat.status, TEXT.encode() in repeat.body, posted(upstream)) == (201, True, 1)
