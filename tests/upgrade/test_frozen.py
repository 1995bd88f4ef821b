"""What earlier programs left behind is served by this one: their stores, journals, marks, copies and configurations."""

from __future__ import annotations

import asyncio
import gzip
import json
import tarfile
import time
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import apsw
import pytest
import yaml

from gateway.core.operation import State
from gateway.store.agreement import OLDEST_LEVEL, PROGRAM_LEVEL
from gateway.store.files import AttemptFiles, MarkedAttempt, boot_of_this_machine
from gateway.store.redis.store import RedisSeen, decode
from tests.store.postgres_sessions import session
from tests.support.eventually import eventually
from tests.support.fleet import key_of, nonce_of, send, wait_answered
from tests.support.gateway import GatewayProcess
from tests.support.house import status_of
from tests.support.postgres import PostgresServer
from tests.support.redis import Redis
from tests.support.upstream import Answer, RecordingUpstream
from tests.upgrade.freeze import DATABASE, FROZEN, MARKS

_LEVELS: Final = [f"level-{level}" for level in range(OLDEST_LEVEL, PROGRAM_LEVEL + 1)]
_PATIENCE_SECONDS: Final = 60.0
# Where a copy has its era, and where it has the version of its format.
_ERA: Final = slice(11, 27)
_VERSION: Final = 27


@pytest.fixture(params=_LEVELS)
def frozen(request: pytest.FixtureRequest) -> Path:
    return FROZEN / str(request.param)


def unpacked(frozen: Path, name: str, directory: Path) -> None:
    with tarfile.open(frozen / f"{name}.tar.gz") as archive:
        archive.extractall(directory, filter="data")


async def serve_it(
    frozen: Path, durable: str, directory: Path, upstream: RecordingUpstream, got: dict[str, dict[str, Any]]
) -> None:
    """What was done is replayed, doubt stays, what was accepted is delivered, and what was free is executed: with the
    configuration of then."""
    config: dict[str, Any] = yaml.safe_load((frozen / "gateway.yaml").read_text())
    config["upstream"]["url"] = upstream.url
    config["store"]["durable"] = durable
    config["state_dir"] = str(directory / "state")
    upstream.on("/charges", Answer(201, body=b"executed now"))
    upstream.on("/orders", Answer(201, body=b"delivered now"))
    replayed: Any = {"verdicts": frozenset(("replayed",)), "deadline_seconds": _PATIENCE_SECONDS}
    async with GatewayProcess(config, directory) as gateway:
        for key in got.keys() & {"done", "journaled"}:
            answer = await wait_answered(gateway.port, key, **replayed)
            assert (answer.status, nonce_of(answer)) == (got[key]["status"], got[key]["nonce"])
            assert answer.body == got[key]["body"].encode()
        doubt = await send(gateway.port, "doubt")
        assert status_of(doubt)[1] == "in-doubt"
        assert doubt.json()["operation_id"] == json.loads(got["doubt"]["body"])["operation_id"]
        # Its gateway is gone, and its lease over.
        assert status_of(await send(gateway.port, "claimed"))[1] == "in-doubt"
        assert status_of(await send(gateway.port, "released")) == (201, "stored")
        await eventually(
            lambda: "accepted" in map(key_of, upstream.requests), _PATIENCE_SECONDS, "what was accepted is delivered"
        )
        again = await wait_answered(gateway.port, "accepted", target="/orders", **replayed)
        assert (again.status, again.body) == (201, b"delivered now")
        assert sorted(map(key_of, upstream.requests)) == ["accepted", "released"]
        assert gateway.terminate() == 0


def younger(frozen: Path) -> list[str]:
    """Statements after which what was accepted has as much time left as it had then."""
    age_us = time.time_ns() // 1_000 - json.loads((frozen / "answers.json").read_text())["frozen_us"]
    return [
        f"UPDATE delivery SET deliver_until_us = deliver_until_us + {age_us}",
        f"UPDATE operation SET due_us = due_us + {age_us} WHERE state = 'accepted'",
    ]


async def test_a_file_of_sqlite(frozen: Path, tmp_path: Path) -> None:
    """With what its host had noted of it."""
    unpacked(frozen, "sqlite", tmp_path)
    connection = apsw.Connection(str(tmp_path / DATABASE))
    for statement in younger(frozen):
        connection.execute(statement)
    connection.close()
    got = json.loads((frozen / "answers.json").read_text())["sqlite"]
    async with RecordingUpstream() as upstream:
        await serve_it(frozen, f"sqlite://{tmp_path / DATABASE}", tmp_path, upstream, got)


async def test_a_database_of_postgres_and_a_journal(frozen: Path, own_postgres: PostgresServer, tmp_path: Path) -> None:
    """What waited in the journal is recorded. The notes of the host are about a server that is no more."""
    unpacked(frozen, "postgres", tmp_path)
    (tmp_path / "state" / "store-seen.json").unlink()
    for notes in (tmp_path / "state" / "witness").iterdir():
        notes.unlink()
    async with session(own_postgres.url) as admin:
        await admin.execute((frozen / "postgres.sql").read_text())
        await admin.execute("SET search_path = idempotency_gateway; " + "; ".join(younger(frozen)))
    got = json.loads((frozen / "answers.json").read_text())["postgres"]
    async with RecordingUpstream() as upstream:
        await serve_it(frozen, own_postgres.url, tmp_path, upstream, got)
    assert not list((tmp_path / "state" / "journal").glob("*.db"))


def test_marks_of_attempts(frozen: Path, tmp_path: Path) -> None:
    """What a gateway that was killed had not sent is known to the one after it."""
    (packed,) = frozen.glob("*.attempts.gz")
    content = bytearray(gzip.decompress(packed.read_bytes()))
    content[:56] = boot_of_this_machine().ljust(56, b"\0")
    content[56:64] = time.time_ns().to_bytes(8)
    content[64:72] = time.clock_gettime_ns(time.CLOCK_BOOTTIME).to_bytes(8)
    (tmp_path / packed.stem).write_bytes(content)
    (ended,) = AttemptFiles(tmp_path).take_ended()
    try:
        assert ended.attempts == (MarkedAttempt(*MARKS["unsent"]),)
    finally:
        ended.leave()


def test_copies_in_redis(frozen: Path) -> None:
    """A copy is read as what it was, or, where its version is not known any more, counts as absent."""
    entries = json.loads((frozen / "redis.json").read_text())
    copies = {key: bytes.fromhex(value) for key, value in entries.items() if key.endswith("}")}
    assert copies
    for key, copy in copies.items():
        operation_id = UUID(key[key.index("{") + 1 : -1])
        found = decode(copy, operation_id, copy[_ERA])
        if found is not None:
            assert (found[0].state, found[0].identity.operation_id) == (State.COMPLETED, operation_id)
        assert found is not None or frozen.name != _LEVELS[-1]
        unknown = copy[:_VERSION] + b"\xff" + copy[_VERSION + 1 :]
        assert decode(unknown, operation_id, copy[_ERA]) is None


async def test_the_note_that_gateways_share(frozen: Path, redis_url: str) -> None:
    """Which memory was seen last, its highest token, and what it had acknowledged."""
    entries = json.loads((frozen / "redis.json").read_text())
    ((key, note),) = [(key, value) for key, value in entries.items() if ":seen:" in key]
    with Redis(redis_url).client() as client:
        await asyncio.to_thread(client.hset, key, None, None, note)
    seen = await RedisSeen(redis_url, key.partition(":seen:")[2]).read()
    assert seen.identity == note["identity"]
    assert seen.token > 0
    links = note.keys() - {"identity", "token", "former"}
    assert {each.link.hex for each in seen.acknowledged} == links != set()
