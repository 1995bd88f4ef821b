"""A store that lost its memory: what callers hear, what operators see, and what it means to accept the loss."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.admin.hand import Admin
from tests.admin.shell import shell_for
from tests.support.eventually import eventually
from tests.support.house import House, neighbour, sqlite_store, status_of
from tests.support.postgres import PostgresServer
from tests.support.upstream import RecordingUpstream

ADMIN = {"admin": {"listen": "127.0.0.1:0", "token": Admin.token}}


async def restored_sqlite(store: dict[str, Any], directory: Path, upstream: RecordingUpstream) -> None:
    """One key is used before a copy of the file is made and one after it; then the copy takes the file's place."""
    path = Path(store["durable"].removeprefix("sqlite://"))
    async with neighbour(store, directory, upstream) as home:
        assert status_of(await home.send("before")) == (200, "stored")
    shutil.copy(path, directory / "copy.db")
    async with neighbour(store, directory, upstream) as home:
        assert status_of(await home.send("after")) == (200, "stored")
    shutil.copy(directory / "copy.db", path)


async def told(home: House, key: str) -> tuple[int, str | None]:
    return status_of(await home.send(key))


@pytest.mark.parametrize("way", ["command", "api"])
async def test_restored_sqlite(tmp_path: Path, way: str) -> None:
    """After a restore nothing that was used runs again; what is known is replayed. Accepting the loss ends it at once,
    in gateways that have run all the while, and once for all."""
    store = sqlite_store(tmp_path)
    async with RecordingUpstream() as upstream:
        await restored_sqlite(store, tmp_path, upstream)
        async with (
            neighbour(store, tmp_path, upstream, **ADMIN) as home,
            neighbour(store, tmp_path / "other", upstream) as other,
        ):
            shell, admin = shell_for(home, store, tmp_path), Admin(home.gateway.admin_address[1])
            for each in (home, other):
                assert await told(each, "after") == (503, "store-amnesia")
                assert await told(each, "before") == (200, "replayed")
                assert (await each.status("/readyz")).json()["parts"]["memory"] == "lost"
                assert b"idempotency_store_amnesia 1.0" in (await each.status("/metrics")).body

            looked = await shell("memory")
            assert looked.code == 0
            assert looked.out.startswith("The store lost its memory: the store is in an older state")
            assert looked.out.endswith("memory --accept-loss --why TEXT.\n")
            forgotten = upstream.requests[1].values("Idempotency-Operation")[0].decode()
            assert looked.out.strip() in (await shell("inspect", forgotten)).out
            answer = await admin("GET", f"/operations/{forgotten}")
            assert (answer.status, answer.json()["code"]) == (503, "store-amnesia")
            assert "lost its memory" in answer.json()["detail"]
            assert (await shell("memory", "--accept-loss")).code == 2
            assert len(upstream.requests) == 2

            if way == "api":
                answer = await admin("POST", "/memory/accept-loss", {"why": "checked by hand", "by": "bob"})
                assert (answer.status, answer.json()["is_lost"]) == (200, False)
            else:
                done = await shell.spawned("memory", "--accept-loss", "--why", "checked by hand", "--by", "bob")
                assert done.code == 0
            assert "bob (checked by hand) accepted the loss" in (await shell("memory")).out
            for each, key in ((home, "new"), (other, "newer")):
                assert await told(each, key) == (200, "stored")
                assert (await each.status("/readyz")).json()["parts"]["memory"] == "whole"
        async with neighbour(store, tmp_path, upstream) as home:
            assert await told(home, "after") == (200, "stored")
            assert await told(home, "before") == (200, "replayed")


async def test_restored_postgres(tmp_path: Path, own_postgres: PostgresServer) -> None:
    """A Postgres that was put back to an older state under a running gateway is noticed."""
    directory = own_postgres.directory
    copy = directory.with_name(directory.name + "-copy")
    async with RecordingUpstream() as upstream, neighbour({"durable": own_postgres.url}, tmp_path, upstream) as home:
        assert await told(home, "before") == (200, "stored")
        own_postgres.stop()
        shutil.copytree(directory, copy, symlinks=True)
        owner = directory.stat()
        for path in (copy, *copy.rglob("*")):
            shutil.chown(path, owner.st_uid, owner.st_gid)
        own_postgres.start()

        async def stored() -> bool:
            return (await told(home, "after"))[1] in ("stored", "replayed")

        await eventually(stored, 20)
        own_postgres.crash()
        shutil.rmtree(directory)
        copy.rename(directory)
        own_postgres.start()

        async def is_refused() -> bool:
            """Whether a key that was never used is refused for the lost memory; it never runs meanwhile."""
            answer = await told(home, "new")
            assert answer in [(503, "store-unavailable"), (503, "store-amnesia")]
            return answer == (503, "store-amnesia")

        await eventually(is_refused, 20)
        assert await told(home, "before") == (200, "replayed")
        assert len(upstream.requests) == 2
