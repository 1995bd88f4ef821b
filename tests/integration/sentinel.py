"""A text in every part of requests and responses, and then the search for it: `python -m tests.integration.sentinel`.

A real gateway executes, accepts, refuses and takes webhooks; its durable store goes away for a while, it is killed and
started again, and an operator gives reasons. Everything that anybody sends contains the text. With encryption it is
nowhere afterwards, nor while outcomes are in the journal and bodies are in the spool: in no file of the state
directory, no row, no key or value of Redis, no metric and no line of the log.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.admin.shell import CUT, Shell
from tests.integration.test_journal import Outage, of_postgres, of_sqlite
from tests.support import http
from tests.support.eventually import eventually
from tests.support.fleet import config_of
from tests.support.gateway import GatewayProcess
from tests.support.http import Response
from tests.support.postgres import PostgresInstallation, PostgresServer, workspace
from tests.support.redis import GATEWAY_USER, RedisServer
from tests.support.senders import WHSEC, signed
from tests.support.sentinel import Sentinel
from tests.support.upstream import Answer, RecordingUpstream

SENTINEL: Final = Sentinel("Zqxjkvbpyw")
_T: Final = SENTINEL.text
_HEADERS: Final = (("Content-Type", "application/json"), ("Location", f"/made/{_T}"), ("X-Other", _T), ("Server", _T))
_BODY: Final = b'{"id": "%s", "text": "%s"}' % (_T.encode(), b"x" * 100)
_LONG: Final = b'{"text": "%s"}' % (_T.encode() * 1000)
_CREDENTIAL: Final = f"Bearer {_T}{_T}{_T}"
_AT_ONCE: Final = 8
_HELD: Final = 3
SECRETS: Final = {
    "encryption": [{"id": "k1", "key": "0f" * 32}],
    "identity_key": {"id": "i1", "key": "1f" * 32},
    "fingerprint_key": {"id": "f1", "key": "2f" * 32},
}


@contextlib.contextmanager
def of_redis(directory: Path) -> Iterator[Outage]:
    """A Redis that keeps operations alone, its files in `directory / "store"`: there the search looks at the end."""
    directory.mkdir(exist_ok=True)
    with RedisServer(directory / "store", append_only=True, options=GATEWAY_USER).running() as server:
        yield Outage({"durable": server.durable_url}, server.kill, server.start)


@dataclass
class Found:
    """Where the text was, by what the gateway was doing; and how much it had done."""

    places: dict[str, list[str]] = field(default_factory=dict)
    verdicts: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        done = ", ".join(f"{count} {verdict}" for verdict, count in sorted(self.verdicts.items()))
        found = "; ".join(f"{when}: {', '.join(sorted(set(places)))}" for when, places in self.places.items() if places)
        return f"{done}; {found or 'found nowhere'}"


def settings(*, is_encrypted: bool, is_one_record: bool = False) -> dict[str, Any]:
    """The configuration beside the store: without encryption nothing can be accepted.

    `is_one_record`: for a store that can keep nothing beside operations, neither requests nor events.
    """
    made: dict[str, Any] = {
        "name": "made",
        "match": {"path": "/s/{rest:.*}"},
        "key": {"header": "Idempotency-Key", "required": True},
        "scope": {"header": "X-Tenant", "from": "any"},
        "recovery": {"probe": {"path": "/probes/{key}", "done": [{"status": [200]}], "settle": "1h"}},
        "response": {"redact": ["header:X-Redacted"]},
    }
    keyed: dict[str, Any] = {
        "name": "keyed",
        "match": {"path": "/k/{rest:.*}"},
        "key": {"header": "Idempotency-Key"},
        "scope": {"api_key": "Authorization"},
    }
    routes = [made, keyed]
    if is_encrypted and not is_one_record:
        made["accept"] = {"identity": "unverified"}
        inbox = {"preset": "standard_webhooks", "secrets": [{"id": "1", "key": WHSEC}]}
        routes.append({"name": "hooks", "match": {"path": "/hooks"}, "inbox": inbox, "scope": "shared"})
    every: dict[str, Any] = {
        "outcome": {"preset": "standard"},
        "body": {"spool_over": "1KiB"},
        "in_flight": {"wait": "0s"},
    }
    sink = {"name": "sink", "kind": "webhook", "url": "http://127.0.0.1:9/", "secrets": [{"id": "s", "key": WHSEC}]}
    published: dict[str, Any] = {
        "events": {
            "sinks": [sink],
            "include": ["key", "location", "response"],
            "types": ["operation.completed", "operation.in_doubt", "operation.dead_lettered"],
        },
        "egress": {"https_only": False, "allow": ["127.0.0.0/8"], "ports": [9]},
    }
    return {
        "routes": [{**every, **route} for route in routes],
        "store": {"clear_keys": True, "journal_grace": "0s", "lease": "10s"},
        "log": {"level": "debug", "requests": "all"},
        "delivery": {"schedule": ["100ms"]},
        **({} if is_one_record else published),
        **({"secrets": SECRETS} if is_encrypted else {}),
    }


async def search(
    outage: Outage, directory: Path, *, operations: int, redis: str | None = None, is_encrypted: bool = True
) -> Found:
    """Run so many operations, and look for the text. `outage` has the durable store, `redis` is the fast tier."""
    found = Found()
    store = {**outage.section, **({} if redis is None else {"fast": redis})}
    durable = outage.section["durable"]
    postgres = durable if durable.startswith("postgresql") else None
    is_redis = durable.startswith("redis")
    async with _upstream() as upstream:
        beside = settings(is_encrypted=is_encrypted, is_one_record=is_redis)
        async with GatewayProcess(config_of(store, directory, upstream.url, **beside), directory) as gateway:
            run = _Run(gateway, upstream, found, is_encrypted and not is_redis, not is_redis)

            async def look(when: str, place: str = "state") -> None:
                # Nobody can ask a durable store that is away.
                stores = (None, redis) if when == "journal" else (postgres, durable if is_redis else redis)
                found.places[when] = await SENTINEL.found(directory / place, *stores)

            for begin in range(0, operations, _AT_ONCE):
                await asyncio.gather(*(run.operation(number) for number in range(begin, begin + _AT_ONCE)))
            await look("running")
            async with run.held() as answer:
                found.places["spool"] = await asyncio.to_thread(_spooled, gateway.pid)
                outage.begin()
                answer.set()
                await run.journaled()
                await look("journal")
            outage.end()
            await run.flushed()
            await run.operator()
            async with run.held() as answer:
                gateway.kill()
                answer.set()
            await gateway.start()
            await asyncio.gather(*(run.operation(number) for number in range(operations, operations + _AT_ONCE)))
            metrics = (await gateway.status("/metrics")).body
            found.places["metrics"] = ["/metrics"] if SENTINEL.is_in(metrics) else []
            gateway.terminate()
            await look("stopped")
            if postgres is None:
                await look("store", "store")
            found.places["log"] = ["gateway.log"] if SENTINEL.is_in(gateway.log.read_bytes()) else []
    return found


@dataclass
class _Run:
    """The traffic of one run."""

    gateway: GatewayProcess
    upstream: RecordingUpstream
    found: Found
    accepts: bool
    publishes: bool
    tasks: list[asyncio.Task[Response]] = field(default_factory=list)
    holds: int = 0

    async def operation(self, number: int) -> None:
        """One of the kinds of requests, with a key of its own."""
        key, kind = f"{_T}-{number}", number % 12
        match kind:
            case 4:
                await self.send(key, "/s/ok", _LONG)
            case 5:
                await self.send(key, "/k/ok", headers=[("Authorization", _CREDENTIAL)])
            case 6:
                await self.send(key, "/s/ok", headers=[("Prefer", "respond-async")])
            case 7:
                await self.send(key, "/s/ok")
                await self.send(key, "/s/ok", b"another %s" % _T.encode())
            case 8:
                await self.send(key, "/s/bad")
            case 9:
                await self.send(key, "/s/cut")
            case 10 if self.accepts:
                event = f"msg_{key}"
                message = b'{"type": "made", "data": "%s"}' % _T.encode()
                headers = list(signed("standard_webhooks", message, int(time.time()), event).items())
                await self._request("POST", "/hooks", [("Content-Type", "application/json"), *headers], message)
            case 11:
                await self.send(None, f"/elsewhere/{_T}")
                await self.send(f"{_T} {number}", "/s/ok")
                await self.send(key, "/k/ok", headers=[("Authorization", f"Digest {_T}")])
            case _:
                await self.send(key, "/s/ok")
                await self.send(key, "/s/ok")

    async def send(
        self, key: str | None, path: str, body: bytes = _BODY, headers: Iterable[tuple[str, str]] = ()
    ) -> Response:
        """A request in whose every part the text is."""
        fields = [
            ("Content-Type", "application/json"),
            ("X-Tenant", _T),
            ("X-Other", _T),
            ("Cookie", f"session={_T}"),
            ("User-Agent", _T),
            *([] if key is None else [("Idempotency-Key", key)]),
            *headers,
        ]
        return await self._request("POST", f"{path}/{_T}?{_T}={_T}", fields, body)

    async def _request(self, method: str, target: str, fields: list[tuple[str, str]], body: bytes) -> Response:
        response = await http.request(self.gateway.port, method, target, fields, body)
        self.found.verdicts[response.header("Idempotency-Status") or str(response.status)] += 1
        return response

    @asynccontextmanager
    async def held(self) -> AsyncIterator[asyncio.Event]:
        """Long requests that the service works on until the event is set."""
        hold = asyncio.Event()
        self.holds += 1
        self.upstream.on(f"/s/held/{_T}", Answer(201, headers=_HEADERS, body=_BODY, hold=hold))
        before = len(self.upstream.requests)
        self.tasks = [asyncio.create_task(self.send(key, "/s/held", _LONG)) for key in self._held_keys]
        try:
            await self.upstream.wait_for_requests(before + _HELD)
            yield hold
        finally:
            await asyncio.gather(*self.tasks, return_exceptions=True)

    @property
    def _held_keys(self) -> list[str]:
        return [f"{_T}-held-{self.holds}-{number}" for number in range(_HELD)]

    async def journaled(self) -> None:
        """Until the outcomes of those requests are in the journal."""
        for response in await asyncio.gather(*self.tasks):
            assert response.header("Idempotency-Status") == "journaled", response

    async def flushed(self) -> None:
        """Until the durable store has them."""

        async def is_replayed() -> bool:
            again = [await self.send(key, "/s/held", _LONG) for key in self._held_keys]
            return all(each.header("Idempotency-Status") == "replayed" for each in again)

        await eventually(is_replayed, 30, "the journal is flushed")

    async def operator(self) -> None:
        """An operator purges, resolves and pauses, and says why."""
        made = {
            tuple(each.values("Idempotency-Key")): each.values("Idempotency-Operation")[0].decode()
            for each in self.upstream.requests
            if each.target.startswith((b"/s/ok", b"/s/cut")) and each.values("Idempotency-Operation")
        }
        some = [operation for (key, *_), operation in made.items() if key.endswith((b"-0", b"-1"))]
        cut = [operation for (key, *_), operation in made.items() if key.endswith(b"-9")]
        said = ["--why", f"because {_T}", "--by", f"somebody {_T}"]
        words = [["purge", operation, *said] for operation in some]
        words += [["resolve", operation, "--never-happened", "--force", *said] for operation in cut]
        if self.publishes:
            words.append(["sinks", "--suspend", "sink", *said])
        if self.accepts:
            words += [["pause", "made", *said], ["resume", "made", *said]]
        shell = Shell(self.gateway.config_file.parent, "")
        shell.config = self.gateway.config_file
        for each in words:
            assert (await shell(*each)).code in (0, 1, 3)


def _spooled(pid: int) -> list[str]:
    """The spooled bodies of a process that have the text. They are files without a name."""
    found = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if "(deleted)" in str(descriptor.readlink()) and SENTINEL.is_in(descriptor.read_bytes()):
                found.append(f"{descriptor.readlink()}")
    return found


@asynccontextmanager
async def _upstream() -> AsyncIterator[RecordingUpstream]:
    async with RecordingUpstream() as upstream:
        upstream.on(None, Answer(503))
        upstream.on(f"/s/ok/{_T}", Answer(201, headers=_HEADERS, body=_BODY))
        upstream.on(f"/k/ok/{_T}", Answer(200, reason=_T, headers=(*_HEADERS, ("X-Redacted", _T)), body=_BODY))
        upstream.on(f"/s/bad/{_T}", Answer(500, headers=_HEADERS, body=_BODY))
        upstream.on(f"/s/cut/{_T}", CUT)
        upstream.on("/hooks", Answer(200, headers=_HEADERS, body=_BODY))
        yield upstream


def main() -> int:
    """Run it; the exit code says whether the text was found anywhere."""
    parser = argparse.ArgumentParser(prog="tests.integration.sentinel", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--operations", type=int, default=1000)
    parser.add_argument("--store", choices=("sqlite", "postgres", "postgres-redis", "redis"), default="sqlite")
    asked = parser.parse_args()
    with workspace("sentinel") as directory, ExitStack() as stack:
        place, redis = directory / "gateway", None
        if asked.store == "sqlite":
            outage = of_sqlite(place)
        elif asked.store == "redis":
            outage = stack.enter_context(of_redis(place))
        else:
            installation = PostgresInstallation(directory / "installation")
            outage = of_postgres(stack.enter_context(PostgresServer(installation, directory / "postgres").running()))
            if asked.store == "postgres-redis":
                redis = stack.enter_context(RedisServer(directory / "redis").running()).url
        found = asyncio.run(search(outage, place, operations=asked.operations, redis=redis))
    print(found)
    return 1 if any(found.places.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
