"""Callers that come all at once, and callers that come one after the other, in processes of their own.

`python -m tests.support.burst`.
"""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final, Self

import uvloop

from tests.support import http

_ROOT: Final = Path(__file__).parents[2]
_SECONDS_MAX: Final = 90.0
JSON: Final = ("Content-Type", "application/json")


def request_bytes(
    key: str = "", target: str = "/charges", headers: Iterable[tuple[str, str]] = (), body: bytes = b'{"amount": 1200}'
) -> bytes:
    """A whole request, of tenant t1."""
    keyed = [("Idempotency-Key", key)] if key else []
    return http.request_bytes("POST", target, [JSON, ("X-Tenant", "t1"), *headers, *keyed], body)


@dataclass(frozen=True, slots=True)
class Got:
    """What the callers got: how often each answer came, as "201 stored", and how long the slowest took."""

    answers: Counter[str]
    slowest_seconds: float


class Callers:
    """A process of callers that was started; `wait` for it."""

    def __init__(self, **what: Any) -> None:
        command, pipe = [sys.executable, "-m", "tests.support.burst"], subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=_ROOT, text=True)
        self._say(json.dumps(what))
        assert self._process.stdout is not None
        # It has imported what it needs, and the requests are made.
        self._process.stdout.readline()

    def go(self) -> Self:
        self._say("go")
        return self

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def wait(self) -> Got:
        out, _ = self._process.communicate(timeout=2 * _SECONDS_MAX)
        got = json.loads(out)
        return Got(Counter(got["answers"]), got["slowest_seconds"])


def at_once(port: int, requests: list[bytes], count: int) -> Callers:
    """So many connections that are opened at once, and a request on each of them: these, in turn."""
    return _callers(port, list(islice(cycle(requests), count)))


def one_by_one(port: int, requests: list[bytes], *, rate: float = 10.0, keeps: bool = False) -> Callers:
    """These requests at this rate, each on a connection of its own or, with `keeps`, on kept ones."""
    return _callers(port, requests, rate=rate, keeps=keeps)


def _callers(port: int, requests: list[bytes], *, rate: float | None = None, keeps: bool = False) -> Callers:
    return Callers(port=port, requests=[each.decode() for each in requests], rate=rate, keeps=keeps)


async def _call(port: int, requests: list[str], rate: float | None, *, keeps: bool) -> dict[str, Any]:
    answers: Counter[str] = Counter()
    latencies = [0.0]
    kept: list[http.Connection] = []

    async def one(request: bytes) -> None:
        began = time.monotonic()
        try:
            async with AsyncExitStack() as stack:
                connection = kept.pop() if kept else await stack.enter_async_context(http.Connection(port))
                await connection.send(request)
                response = await connection.read_response("POST", _SECONDS_MAX)
                if keeps:
                    kept.append(connection)
                    stack.pop_all()
            answers[f"{response.status} {response.header('Idempotency-Status') or ''}".rstrip()] += 1
        except OSError as error:
            answers[f"lost: {type(error).__name__}"] += 1
        latencies.append(time.monotonic() - began)

    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for number, request in enumerate(requests):
            if rate is not None:
                await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
            group.create_task(one(request.encode()))
    for connection in kept:
        await connection.close()
    return {"answers": answers, "slowest_seconds": max(latencies)}


def main() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asked = json.loads(sys.stdin.readline())
    sys.stdout.write("\n")
    sys.stdout.flush()
    sys.stdin.readline()
    sys.stdout.write(json.dumps(uvloop.run(_call(**asked))))


if __name__ == "__main__":
    main()
