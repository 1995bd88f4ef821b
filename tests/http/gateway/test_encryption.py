"""Encryption through a whole gateway: who has the key replays, and who lacks it runs nothing again."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from gateway.app.life import StartError
from gateway.app.stores import name_of, sealing_of
from gateway.config import parse
from gateway.core.message import StoredResponse
from gateway.core.operation import Complete
from gateway.store.journal.journal import SqliteJournal
from tests.admin.shell import Shell
from tests.support.eventually import eventually
from tests.support.house import House, config_text, house, neighbour, sqlite_store, status_of
from tests.support.upstream import Answer

SECRET = "a-sentinel-of-the-caller"
NEW, OLD = {"id": "new", "key": "0f" * 32}, {"id": "old", "key": "f0" * 32}
ANSWER = Answer(201, headers=(("Location", f"/{SECRET}"), ("Content-Type", "text/plain")), body=SECRET.encode())
CHANGES: dict[str, Any] = {
    "route": {"match": {"path": "/charges/{name}"}, "body": {"spool_over": "1KiB"}},
    "store": {"clear_keys": True},
}


async def send(home: House) -> tuple[int, str | None]:
    """A request with the secret in all of its parts."""
    response = await home.send(SECRET, SECRET.encode() * 1000, target=f"/charges/{SECRET}", tenant=SECRET)
    if response.header("Idempotency-Status") in ("stored", "replayed"):
        assert (response.body, response.header("Location")) == (SECRET.encode(), f"/{SECRET}")
    return status_of(response)


def _is_in_files(directory: Path) -> bool:
    return any(SECRET.encode() in each.read_bytes() for each in directory.rglob("*") if each.is_file())


@pytest.mark.parametrize("store", ["sqlite", "postgres-redis"], indirect=True)
async def test_who_has_the_key_replays(store: dict[str, Any], tmp_path: Path) -> None:
    """Also with a newer key before it. Without it, the operation completed and its response is gone: counted, and never
    run again."""
    async with house(store, tmp_path, secrets={"encryption": [OLD]}, **CHANGES) as home:
        home.upstream.on(f"/charges/{SECRET}", ANSWER)
        assert await send(home) == (201, "stored")
        assert not _is_in_files(tmp_path)
        both = {"encryption": [NEW, OLD]}
        async with neighbour(store, tmp_path / "b", home.upstream, secrets=both, **CHANGES) as other:
            assert await send(other) == (201, "replayed")
        for number, keys in enumerate(({"encryption": [NEW]}, {})):
            state, secrets = tmp_path / str(number), {**keys, "unreadable": "accept"}
            async with neighbour(store, state, home.upstream, secrets=secrets, **CHANGES) as other:
                assert await send(other) == (409, "response-not-stored")

                async def is_counted(other: House = other) -> bool:
                    text = (await other.status("/metrics")).body.decode()
                    return "idempotency_unreadable_records_total 0" not in text

                await eventually(is_counted)
        assert await send(home) == (201, "replayed")
        assert len(home.upstream.requests) == 1


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
