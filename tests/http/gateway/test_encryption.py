"""Encryption through a whole gateway: who has the key replays, and who lacks it runs nothing again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.eventually import eventually
from tests.support.house import House, house, neighbour, status_of
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
