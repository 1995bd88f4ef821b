"""Callers that come all at once, and callers that come one after the other, in processes of their own.

`python -m tests.support.burst`.
"""

from __future__ import annotations

import asyncio
import json
import resource
import select
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from tests.support import http

_ROOT: Final = Path(__file__).parents[2]
_SECONDS_MAX: Final = 90.0
_STATUS: Final = b"\nidempotency-status:"
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
    latencies: list[float]


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
        return Got(Counter(got["answers"]), max(got["latencies"], default=0.0), got["latencies"])


def at_once(port: int, requests: list[bytes], count: int) -> Callers:
    """So many connections that are opened at once, and a request on each of them: these, in turn."""
    return Callers(kind="herd", port=port, count=count, requests=[each.decode() for each in requests])


def one_by_one(port: int, requests: list[bytes], *, rate: float = 10.0, keeps: bool = False) -> Callers:
    """These requests at this rate, each on a connection of its own or, with `keeps`, on kept ones."""
    return Callers(kind="paced", port=port, requests=[each.decode() for each in requests], rate=rate, keeps=keeps)


def _herd(port: int, requests: list[bytes], count: int) -> dict[str, Any]:
    poll = select.epoll()
    waiting: dict[int, socket.socket] = {}
    began = time.monotonic()
    for _ in range(count):
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex(("127.0.0.1", port))
        waiting[sock.fileno()] = sock
    for number in waiting:
        poll.register(number, select.EPOLLOUT)
    answers: Counter[str] = Counter()
    latencies = []
    arrived: dict[int, bytes] = {}
    sent = 0
    while waiting and time.monotonic() < began + _SECONDS_MAX:
        for number, _ in poll.poll(1.0, 4096):
            sock = waiting[number]
            try:
                if number not in arrived:
                    sock.send(requests[sent % len(requests)])
                    sent += 1
                    arrived[number] = b""
                    poll.modify(number, select.EPOLLIN)
                    continue
                data = sock.recv(64 * 1024)
            except OSError as error:
                word = f"lost: {error.strerror}"
            else:
                arrived[number] += data
                if data and b"\r\n\r\n" not in arrived[number]:
                    continue
                word = _word(arrived[number])
            answers[word] += 1
            latencies.append(time.monotonic() - began)
            poll.unregister(number)
            sock.close()
            del waiting[number]
    answers["no answer"] += len(waiting)
    return {"answers": +answers, "latencies": latencies}


async def _paced(port: int, requests: list[bytes], rate: float, *, keeps: bool) -> dict[str, Any]:
    answers: Counter[str] = Counter()
    latencies: list[float] = []
    kept: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def one(request: bytes) -> None:
        began = time.monotonic()
        try:
            reader, writer = kept.pop() if kept else await asyncio.open_connection("127.0.0.1", port)
            writer.write(request)
            arrived = await reader.readuntil(b"\r\n\r\n")
            answers[_word(arrived)] += 1
            if keeps:
                lengths = [line for line in arrived.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                await reader.readexactly(int(lengths[0].partition(b":")[2]))
                kept.append((reader, writer))
            else:
                writer.close()
        except (OSError, asyncio.IncompleteReadError) as error:
            answers[f"lost: {type(error).__name__}"] += 1
        latencies.append(time.monotonic() - began)

    began = time.monotonic()
    async with asyncio.timeout(_SECONDS_MAX), asyncio.TaskGroup() as group:
        for number, request in enumerate(requests):
            await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
            group.create_task(one(request))
    for _, writer in kept:
        writer.close()
    return {"answers": answers, "latencies": latencies}


def _word(arrived: bytes) -> str:
    head = arrived.split(b"\r\n\r\n")[0]
    if not head:
        return "closed"
    status, verdict = head[9:12], b""
    if (at := head.lower().find(_STATUS)) >= 0:
        verdict = head[at + len(_STATUS) :].split(b"\r\n")[0].split(b";")[0]
    return (status + verdict).decode()


def main() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asked = json.loads(sys.stdin.readline())
    sys.stdout.write("\n")
    sys.stdout.flush()
    sys.stdin.readline()
    requests = [each.encode() for each in asked["requests"]]
    if asked["kind"] == "herd":
        got = _herd(asked["port"], requests, asked["count"])
    else:
        got = asyncio.run(_paced(asked["port"], requests, asked["rate"], keeps=asked["keeps"]))
    sys.stdout.write(json.dumps(got))


if __name__ == "__main__":
    main()
