"""Encryption that is switched on, and keys that are rotated, as gateways and operators do it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.app.life import StartError
from tests.admin.shell import CUT, Shell
from tests.support.accepting import ASYNC
from tests.support.house import House, config_text, house, neighbour, status_of
from tests.support.http import Response
from tests.support.sentinel import Sentinel
from tests.support.upstream import Answer, RecordingUpstream

Store = dict[str, Any]
A, B = {"id": "a", "key": "a1" * 32}, {"id": "b", "key": "b2" * 32}
SENTINEL = Sentinel("Zqxjkvbpyw")
TEXT = SENTINEL.text
ROUTE: dict[str, Any] = {
    "name": "charge",
    "match": {"path": "/s/{rest:.*}"},
    "key": {"header": "Idempotency-Key", "required": True},
    "scope": {"header": "X-Tenant", "from": "any"},
    "outcome": {"preset": "standard"},
    "in_flight": {"wait": "0s"},
    "recovery": {"probe": {"path": "/probes/{key}", "done": [{"status": [200]}], "settle": "1h"}},
}
ACCEPT = {"accept": {"identity": "unverified"}}
EVENTS = {"sinks": [{"name": "lines", "kind": "webhook", "url": "http://127.0.0.1:9/", "secrets": [
    {"id": "s", "key": "whsec_" + "c2VjcmV0" * 4}]}], "include": ["key", "location", "response"], "types": [
        "operation.completed", "operation.in_doubt"]}  # fmt: skip


def changes(*keys: dict[str, str], **secrets: Any) -> dict[str, Any]:
    """The configuration with these encryption keys."""
    found: dict[str, Any] = {
        "routes": [ROUTE | (ACCEPT if keys else {})],
        "store": {"clear_keys": True, "cache_max_age": "0s"},
        "delivery": {"workers": 0},
        "events": EVENTS,
        "egress": {"https_only": False, "allow": ["127.0.0.0/8"], "ports": [9]},
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


async def sent(home: House, key: str, kind: str) -> Response:
    """The request of this kind of operation."""
    target = f"/s/cut/{TEXT}" if kind == "in-doubt" else f"/s/{TEXT}"
    prefer = [ASYNC] if kind == "accepted" else []
    return await home.send(key, b'{"sent": "%s"}' % TEXT.encode(), tenant=TEXT, target=target, headers=prefer)


async def purge(run: Shell, prefix: str) -> None:
    """Leave a tombstone, its audit, and a pause."""
    found = await run("inspect", "--route", "charge", "--header", f"Idempotency-Key: {prefix}{TEXT}3", "--header",
                      f"X-Tenant: {TEXT}", "--format", "jsonl")  # fmt: skip
    (row,) = found.rows()
    assert (await run("purge", row["operation_id"], "--why", TEXT, "--by", TEXT)).code in (0, 3)


async def as_before(home: House, keys: dict[str, str]) -> None:
    """Each operation is what it was."""
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


def postgres_of(store: Store) -> str | None:
    return store["durable"] if store["durable"].startswith("postgresql") else None


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
        assert await SENTINEL.found(tmp_path / "state", postgres_of(store), store.get("fast")) == []
        with pytest.raises(StartError, match=r"records with key 'b', and secrets\.encryption has no such key"):
            async with neighbour(store, tmp_path, upstream, **changes(A)):
                pass
        checked = await shell(store, tmp_path, upstream, **changes(A))("check", "--store")
        assert (checked.code, "records with key 'b'" in checked.err) == (1, True)
        async with neighbour(store, tmp_path, upstream, **changes(A, unreadable="accept")) as blind:
            executed = posted(upstream)
            assert status_of(await sent(blind, f"a{TEXT}1", "stored")) == (409, "response-not-stored")
            assert posted(upstream) == executed
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
        run = shell(store, tmp_path, upstream, **changes(A))
        await purge(run, "a")
        postgres = postgres_of(store)
        directory = tmp_path / "store" if postgres is None else tmp_path / "state"
        assert await SENTINEL.found(directory, postgres, store.get("fast")) != []
        await home.gateway.stop()
        async with neighbour(store, tmp_path, upstream, **changes(A)) as later:
            await as_before(later, keys)
            said = await run("rekey")
            assert (said.code, said.err) == (0, ""), said
            await as_before(later, keys)
            await later.gateway.stop()
        assert await SENTINEL.found(directory, postgres, store.get("fast")) == []
        async with neighbour(store, tmp_path, upstream, **changes(A)) as last:
            await as_before(last, keys)


@pytest.mark.parametrize("before", [[], [B | {"id": "c"}]], ids=["encrypts", "opens"])
async def test_a_key_that_is_another_one_under_its_id(store: Store, tmp_path: Path, before: list[Any]) -> None:
    """No gateway starts with it, `check --store` says so, and what `rekey` cannot open with it is no success."""
    others = {"encryption": [*before, A | {"key": "c3" * 32}]}
    async with house(store, tmp_path, secrets={"encryption": [A]}) as home:
        assert status_of(await home.send("k1")) == (200, "stored")
        await home.gateway.stop()
        with pytest.raises(StartError, match="encrypted with key 'a' cannot be opened"):
            async with neighbour(store, tmp_path, home.upstream, secrets=others):
                pass
        run = shell(store, tmp_path, home.upstream, secrets=others)
        checked = await run("check", "--store")
        assert (checked.code, "encrypted with key 'a' cannot be opened" in checked.err) == (1, True)
        async with neighbour(store, tmp_path, home.upstream, secrets=others | {"unreadable": "accept"}) as blind:
            assert status_of(await blind.send("k1")) == (409, "response-not-stored")
        async with neighbour(store, tmp_path, home.upstream, secrets={"encryption": [A]}) as again:
            assert status_of(await again.send("k1")) == (200, "replayed")
    said = await run("rekey")
    assert said.code == 3
    assert f"records: encrypted 0 with key '{others['encryption'][0]['id']}'; left 1: " in said.out
    assert "key 'a' is another key than it was" in said.out
    assert "cannot be read: see above" in said.out


async def test_there_is_nothing_to_encrypt_with(tmp_path: Path) -> None:
    """Without a key it says what to write."""
    store = {"durable": f"sqlite://{tmp_path}/operations.db"}
    text = config_text("http://127.0.0.1:9", store, tmp_path)
    said = await Shell(tmp_path, text)("rekey")
    assert (said.code, "secrets: {encryption:" in said.err) == (1, True)
