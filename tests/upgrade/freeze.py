"""Writes down what this program leaves behind, for programs to come: stores, a journal, marks, copies and notes.

`python -m tests.upgrade.freeze` fills `tests/upgrade/frozen/level-N`, N being the level of this program. Until the
first release of that level, that is done whenever what is stored changes, and never again after it: `test_frozen`
starts whatever program is in the tree on what is there.
"""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import yaml

from gateway.store.agreement import PROGRAM_LEVEL
from gateway.store.files import AttemptFiles
from tests.support import programs
from tests.support.eventually import eventually
from tests.support.fleet import key_of, send
from tests.support.gateway import GatewayProcess
from tests.support.house import ROUTE, config_text
from tests.support.postgres import PostgresInstallation, PostgresServer, workspace
from tests.support.redis import RedisServer
from tests.support.upstream import Answer, Ending, Received, RecordingUpstream

FROZEN: Final = Path(__file__).parent / "frozen"
HERE: Final = FROZEN / f"level-{PROGRAM_LEVEL}"
DATABASE: Final = "operations.db"
ASYNC: Final = (("Prefer", "respond-async"),)
MARKS: Final = {"unsent": (UUID(int=1), UUID(int=2)), "sent": (UUID(int=3), UUID(int=4))}
_KEPT: Final = {"replay": "3650d", "remember": "3650d"}
_ROUTES: Final[list[dict[str, Any]]] = [
    {**ROUTE, "retention": _KEPT},
    {
        **ROUTE,
        "name": "order",
        "match": {"path": "/orders"},
        "retention": _KEPT,
        "accept": {"identity": "unverified"},
        "delivery": {"schedule": ["1s"], "deliver_within": "365d"},
    },
]
_SECRETS: Final = {"encryption": [{"id": "frozen", "key": "00" * 32}], "identity_key": {"id": "f", "key": "1" * 64}}


def _config(store: Mapping[str, Any], directory: Path, upstream_url: str) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load(
        config_text(upstream_url, dict(store), directory, routes=_ROUTES, secrets=_SECRETS)
    )
    return config


def _answer(held: asyncio.Event, journaled: asyncio.Event) -> Callable[[Received], Answer]:
    def answer(received: Received) -> Answer:
        match key_of(received):
            case "released":
                return Answer(503, headers=(("Retry-After", "1"),), effect=False)
            case "doubt":
                return Answer(bytes_max=0, ending=Ending.RESET)
            case "claimed":
                return Answer(hold=held)
            case "journaled":
                return Answer(201, body=b"journaled", hold=journaled)
            case key:
                return Answer(
                    201, headers=(("Content-Type", "text/plain"), ("X-Key", key)), body=b"charged " + key.encode()
                )

    return answer


async def _live(
    gateway: GatewayProcess, upstream: RecordingUpstream, postgres: PostgresServer | None
) -> dict[str, dict[str, Any]]:
    """One of everything, then the death of the gateway. Returns what callers got."""
    held, journaled = asyncio.Event(), asyncio.Event()
    upstream.on("/charges", _answer(held, journaled))
    upstream.on("/orders", Answer(503, effect=False))
    answers = {key: await send(gateway.port, key) for key in ("done", "released", "doubt")}
    answers["accepted"] = await send(gateway.port, "accepted", target="/orders", headers=ASYNC)
    asking = {
        key: asyncio.create_task(send(gateway.port, key, deadline_seconds=60.0))
        for key in ("claimed", *(["journaled"] if postgres else []))
    }
    # What was accepted arrives there, too.
    await eventually(lambda: asking.keys() <= set(map(key_of, upstream.requests)), 60.0, "the service has them")
    if postgres is not None:
        # Without the store nothing more is delivered either.
        postgres.crash()
        journaled.set()
        answers["journaled"] = await asking["journaled"]
    gateway.kill()
    held.set()
    await asyncio.gather(*asking.values(), return_exceptions=True)
    if postgres is not None:
        postgres.launch()
        await eventually(postgres.is_ready, 60.0, "Postgres is ready")
    return {
        key: {
            "status": answer.status,
            "verdict": answer.header("Idempotency-Status"),
            "nonce": answer.header("X-Nonce"),
            "body": answer.body.decode(),
        }
        for key, answer in answers.items()
    }


async def freeze(directory: Path) -> None:
    """Write everything down. Needs a directory of its own for the processes."""
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir(parents=True)
    installation = PostgresInstallation(directory / "installation")
    got: dict[str, Any] = {}
    with (
        PostgresServer(installation, directory / "pg").running() as postgres,
        RedisServer(directory / "redis").running() as redis,
    ):
        for name, server, store in (
            ("sqlite", None, {"durable": f"sqlite://{directory}/sqlite/{DATABASE}"}),
            ("postgres", postgres, {"durable": postgres.url, "fast": redis.url}),
        ):
            home = directory / name
            async with (
                RecordingUpstream() as upstream,
                GatewayProcess(_config(store, home, upstream.url), home) as gateway,
            ):
                got[name] = await _live(gateway, upstream, server)
            _pack(home, HERE / f"{name}.tar.gz", is_journaled=server is not None)
        (HERE / "postgres.sql").write_text(_dumped(postgres))
        with redis.client() as client:
            kept = {key.decode(): client.type(key) for key in client.scan_iter()}
            entries: dict[str, Any] = {key: client.get(key).hex() for key, kind in kept.items() if kind == b"string"}
            for key in (key for key, kind in kept.items() if kind == b"hash"):
                entries[key] = {field.decode(): value.decode() for field, value in client.hgetall(key).items()}
    (HERE / "redis.json").write_text(json.dumps(entries, indent=1, sort_keys=True) + "\n")
    got["frozen_us"] = time.time_ns() // 1_000
    (HERE / "answers.json").write_text(json.dumps(got, indent=1, sort_keys=True) + "\n")
    config = _config({"durable": "STORE"}, Path("DIRECTORY"), "http://UPSTREAM")
    (HERE / "gateway.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    _freeze_marks(directory / "marks")


def _freeze_marks(directory: Path) -> None:
    files = AttemptFiles(directory, b"the boot")
    files.open()
    for mark, ids in MARKS.items():
        place = files.mark_unsent(*ids)
        if mark == "sent":
            files.mark_sent(place)
    files.close()
    (path,) = directory.iterdir()
    (HERE / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))


def _pack(home: Path, target: Path, *, is_journaled: bool) -> None:
    def chosen(each: tarfile.TarInfo) -> tarfile.TarInfo | None:
        # Marks are of a boot, and are frozen by themselves. A journal that nothing waits in would be of another path.
        left_out = each.name.endswith(".attempts") or ("journal/" in each.name and not is_journaled)
        return None if left_out else each

    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path in (home / "state", *sorted(home.glob(f"{DATABASE}*"))):
            archive.add(path, path.name, filter=chosen)
    target.write_bytes(gzip.compress(packed.getvalue(), mtime=0))


def _dumped(postgres: PostgresServer) -> str:
    """Schema and rows, without what belongs to one version of the server or of its shell."""
    tool = programs.postgres().path.with_name("pg_dump")
    said = subprocess.run(
        [tool, "--inserts", "--no-owner", "--no-privileges", "--schema", "idempotency_gateway", postgres.url],
        stdout=subprocess.PIPE, text=True, check=True,
    ).stdout  # fmt: skip
    left_out = ("--", "SET ", "SELECT pg_catalog.set_config", "\\")
    lines = [line for line in said.splitlines() if line and not line.startswith(left_out)]
    return "\n".join(lines) + "\n"


def main() -> None:
    with workspace("freeze") as directory:
        asyncio.run(freeze(directory))
    for path in sorted(HERE.iterdir()):
        print(f"{path.relative_to(FROZEN.parent)} {path.stat().st_size}")


if __name__ == "__main__":
    main()
