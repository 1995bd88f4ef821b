"""The load: so many connections, each with one request under way, for so long. Runs in the benchmark's own process."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, cycle

import uvloop

from tests.benchmarks.messages import Messages

# Until connections are open, caches are filled and batches have their size.
_WARM_SECONDS = 0.4

_numbers = count(int(time.time()) << 24)


def new_keys() -> Iterator[bytes]:
    """Keys that nobody used before, as long as a UUID."""
    return (b"00000000-0000-4000-8000-%012x" % number for number in _numbers)


@dataclass(frozen=True, slots=True)
class Shape:
    """What is asked: the path, how long both bodies are, and the word that every answer has to carry, None for none."""

    path: bytes
    body_bytes: int
    word: bytes | None

    def parts(self) -> tuple[bytes, bytes]:
        """The request before and after its key."""
        body = b'{"amount": 1000, "currency": "eur", "note": "'
        body += b"n" * (self.body_bytes - len(body) - 2) + b'"}'
        before = b"POST %b HTTP/1.1\r\nHost: api.test\r\nUser-Agent: load/1\r\nAccept: */*\r\n" % self.path
        before += b"Content-Type: application/json\r\nX-Tenant: tenant-1\r\n"
        before += b"X-Answer-Bytes: %d\r\nIdempotency-Key: " % self.body_bytes
        return before, b"\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


@dataclass(frozen=True, slots=True)
class Measured:
    """What one run found. `spent` is what `read` gave at the end, less what it gave when the warm-up was over.

    `requests_in_all` counts those of the warm-up too, and those that were still under way at the end.
    """

    requests: int
    requests_in_all: int
    seconds: float
    latencies: list[float]
    spent: tuple[float, ...]


class _Caller(Messages):
    def __init__(self, run: _Run) -> None:
        self._run = run

    def say(self) -> None:
        """Send the next request, if there is to be one."""
        key = next(self._run.keys, None)
        if key is None or self._run.is_over:
            self._run.left(self)
            return
        self._began = time.perf_counter()
        self.transport.write(self._run.before + key + self._run.after)

    def message_arrived(self, head: bytes) -> None:
        run = self._run
        if not head.startswith(b"HTTP/1.1 200") or run.wanted not in head:
            run.fail(f"an answer that was not expected:\n{head.decode('latin-1')}")
            return
        run.answered += 1
        if run.is_measuring:
            run.latencies.append(time.perf_counter() - self._began)
        self.say()

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self._run.busy:
            self._run.fail(f"a connection was lost: {exc}")


class _Run:
    def __init__(self, shape: Shape, keys: Iterator[bytes]) -> None:
        self.before, self.after = shape.parts()
        self.wanted = b"" if shape.word is None else b"\r\nIdempotency-Status: " + shape.word
        self.keys = keys
        self.answered = 0
        self.latencies: list[float] = []
        self.is_measuring = False
        self.is_over = False
        self.busy: set[_Caller] = set()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def open(self, port: int, connections: int) -> None:
        """Open all connections and let each say its first."""
        loop = asyncio.get_running_loop()
        callers = []
        for _ in range(connections):
            _, caller = await loop.create_connection(lambda: _Caller(self), "127.0.0.1", port)
            callers.append(caller)
        self.busy.update(callers)
        for caller in callers:
            caller.say()

    def left(self, caller: _Caller) -> None:
        """A connection is done."""
        self.busy.discard(caller)
        caller.transport.abort()
        if not self.busy and not self.ended.done():
            self.ended.set_result(None)

    def fail(self, text: str) -> None:
        """End the run in error, unless it is over anyway."""
        if not self.ended.done() and not self.is_over:
            self.is_over = True
            self.ended.set_exception(AssertionError(text))


def say_once(port: int, shape: Shape, keys: list[bytes], connections: int = 64) -> None:
    """Send one request under each key."""

    async def run() -> None:
        said = _Run(shape, iter(keys))
        await said.open(port, connections)
        await said.ended

    uvloop.run(run())


def measure(
    port: int,
    shape: Shape,
    keys: Iterator[bytes],
    *,
    connections: int,
    seconds: float,
    read: Callable[[], tuple[float, ...]],
) -> Measured:
    """Load the port for that long after a warm-up; `read` is asked at both ends of it."""

    async def run() -> Measured:
        said = _Run(shape, keys)
        await said.open(port, connections)
        try:
            await asyncio.wait((said.ended,), timeout=_WARM_SECONDS)
            before, answered, began = read(), said.answered, time.perf_counter()
            said.is_measuring = True
            await asyncio.wait((said.ended,), timeout=seconds)
            after, requests, ended = read(), said.answered - answered, time.perf_counter()
        finally:
            said.is_over = True
        await asyncio.wait_for(said.ended, 30.0)
        spent = tuple(late - early for early, late in zip(before, after, strict=True))
        return Measured(requests, said.answered, ended - began, sorted(said.latencies), spent)

    gc.collect()
    gc.disable()
    try:
        return uvloop.run(run())
    finally:
        gc.enable()


def again(keys: list[bytes]) -> Iterator[bytes]:
    """These keys, round and round."""
    return cycle(keys)
