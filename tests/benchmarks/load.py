"""The load, in the benchmark's own process: so many connections with one request under way each, or so many requests a
second, for so long.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, Final

import uvloop

from tests.benchmarks.messages import Messages
from tests.benchmarks.subject import PROTECTED, Program

# Until connections are open, caches are filled and batches have their size.
WARM_SECONDS: Final = 0.4
CONNECTIONS: Final = 64
_TICK_SECONDS: Final = 0.001
# Requests that wait for a connection: more of them than this is no load at a fixed rate any more.
_DUE_MAX: Final = 20_000

_numbers = count(int(time.time()) << 24)
_attempts = count(1)
# What is another each time an SDK sends a request, also when it sends it again: request id, trace, retry counter.
_OF_THIS_ATTEMPT = (
    b"\r\nX-Request-Id: req_%016x\r\ntraceparent: 00-4bf92f3577b34da6%016x-00f067aa0ba902b7-01"
    b"\r\nX-Stainless-Retry-Count: %d"
)


def new_keys() -> Iterator[bytes]:
    """Keys that nobody used before, as long as a UUID."""
    return (b"00000000-0000-4000-8000-%012x" % number for number in _numbers)


@dataclass(frozen=True, slots=True)
class Shape:
    """What is asked: the path, how long both bodies are, and the word that every answer has to carry, None for none.

    `more` are further header fields, each with its end of line. `status` is that of every answer.
    """

    path: bytes
    body_bytes: int
    verdict: bytes | None
    more: bytes = b""
    status: int = 200

    def parts(self) -> tuple[bytes, bytes]:
        body = b'{"amount": 1000, "currency": "eur", "note": "'
        body += b"n" * (self.body_bytes - len(body) - 2) + b'"}'
        before = b"POST %b HTTP/1.1\r\nHost: api.test\r\nAccept: application/json\r\n" % self.path
        before += b"Content-Type: application/json\r\nX-Tenant: tenant-1\r\n"
        before += b"Authorization: Bearer sk_test_4eC39HqLyjWDarjtT1zdp7dc\r\n"
        before += b"User-Agent: Payments/Python 1.84.0\r\nX-Stainless-Lang: python\r\nX-Stainless-OS: Linux\r\n"
        before += b"X-Stainless-Package-Version: 1.84.0\r\nX-Stainless-Runtime: CPython\r\n"
        before += b"X-Answer-Bytes: %d\r\n%bIdempotency-Key: " % (self.body_bytes, self.more)
        return before, b"\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


NEW: Final = Shape(PROTECTED, 200, b"stored")
REPLAY: Final = Shape(PROTECTED, 200, b"replayed")


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

    def latency_ms(self, percent: int) -> float:
        """What so many of a hundred requests were answered within."""
        return self.latencies[len(self.latencies) * percent // 100] * 1e3


class _Caller(Messages):
    def __init__(self, run: _Run) -> None:
        self._run = run

    def say(self, due_seconds: float | None = None) -> None:
        """Send the next request, if there is to be one; its latency counts from when it was due, if that was before."""
        key = next(self._run.keys, None)
        if key is None or self._run.is_over:
            self._run.left(self)
            return
        self._began = time.perf_counter() if due_seconds is None else due_seconds
        number = next(_attempts)
        attempt = _OF_THIS_ATTEMPT % (number, number, number % 3)
        self.transport.write(self._run.before + key + attempt + self._run.after)

    def message_arrived(self, head: bytes) -> None:
        run = self._run
        if not head.startswith(run.status_line) or run.wanted not in head:
            run.fail(f"an answer that was not expected:\n{head.decode('latin-1')}")
            return
        run.answered += 1
        if run.is_measuring:
            run.latencies.append(time.perf_counter() - self._began)
        run.freed(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self._run.busy:
            self._run.fail(f"a connection was lost: {exc}")


class _Run:
    """With a `rate`, requests are due at that, whether or not the earlier ones were answered."""

    def __init__(self, shape: Shape, keys: Iterator[bytes], rate: float | None = None) -> None:
        self._rate = rate
        self._said = 0
        self._due: deque[float] = deque()
        self.before, self.after = shape.parts()
        self.wanted = b"" if shape.verdict is None else b"\r\nIdempotency-Status: " + shape.verdict
        self.status_line = b"HTTP/1.1 %d" % shape.status
        self.keys = keys
        self.answered = 0
        self.latencies: list[float] = []
        self.is_measuring = False
        self.is_over = False
        self.busy: set[_Caller] = set()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def open(self, port: int, connections: int) -> None:
        loop = asyncio.get_running_loop()
        callers = [
            (await loop.create_connection(lambda: _Caller(self), "127.0.0.1", port))[1] for _ in range(connections)
        ]
        self.busy.update(callers)
        self._idle = callers
        self._started = time.perf_counter()
        if self._rate is not None:
            self._tick(self._rate)
            return
        for caller in callers:
            caller.say()

    def freed(self, caller: _Caller) -> None:
        if self._rate is None or self._due or self.is_over:
            caller.say(self._due.popleft() if self._due else None)
        else:
            self._idle.append(caller)

    def left(self, caller: _Caller) -> None:
        self.busy.discard(caller)
        caller.transport.abort()
        if not self.busy and not self.ended.done():
            self.ended.set_result(None)

    def fail(self, text: str) -> None:
        if not self.ended.done() and not self.is_over:
            self.is_over = True
            self.ended.set_exception(AssertionError(text))

    def _tick(self, rate: float) -> None:
        idle, now = self._idle, time.perf_counter()
        if self.is_over:
            while idle:
                self.left(idle.pop())
            return
        owed = int((now - self._started) * rate) - self._said
        self._said += owed
        for _ in range(owed):
            if idle:
                idle.pop().say(now)
            else:
                self._due.append(now)
        if len(self._due) > _DUE_MAX:
            self.fail(f"{rate:.0f} requests a second are more than can be answered")
            return
        asyncio.get_running_loop().call_later(_TICK_SECONDS, self._tick, rate)


def say_once(port: int, shape: Shape, keys: list[bytes], connections: int = CONNECTIONS) -> None:
    async def run() -> None:
        said = _Run(shape, iter(keys))
        await said.open(port, connections)
        await said.ended

    uvloop.run(run())


def some_keys(count: int) -> list[bytes]:
    return list(islice(new_keys(), count))


def store_new(port: int, count: int) -> list[bytes]:
    """Send so many requests under new keys, which are returned."""
    keys = some_keys(count)
    say_once(port, NEW, keys)
    return keys


def measure(
    port: int,
    shape: Shape,
    keys: Iterator[bytes] | None = None,
    *,
    seconds: float,
    connections: int = CONNECTIONS,
    rate: float | None = None,
    read: Callable[[], tuple[float, ...]] = lambda: (),
    warm_seconds: float = WARM_SECONDS,
) -> Measured:
    """Load the port for that long after a warm-up, under new keys or these; `read` is asked at both ends of it.

    With a `rate`, so many requests a second: one that finds every connection busy waits, and its wait counts.
    """

    async def run() -> Measured:
        under = new_keys() if keys is None else keys
        said = _Run(shape, under, rate)
        await said.open(port, connections)
        try:
            await asyncio.wait((said.ended,), timeout=warm_seconds)
            before, answered, began = read(), said.answered, time.perf_counter()
            said.is_measuring = True
            await asyncio.wait((said.ended,), timeout=seconds)
            after, requests, ended = read(), said.answered - answered, time.perf_counter()
        finally:
            said.is_over = True
        await asyncio.wait_for(said.ended, 60.0)
        spent = tuple(late - early for early, late in zip(before, after, strict=True))
        return Measured(requests, said.answered, ended - began, sorted(said.latencies), spent)

    # Looks for garbage would hold it up.
    gc.collect()
    gc.disable()
    try:
        return uvloop.run(run())
    finally:
        gc.enable()


def saturation(port: int) -> float:
    """How many new keys a second it takes."""
    measured = measure(port, NEW, seconds=2.0)
    return measured.requests / measured.seconds


def cpu_us(program: Program, shape: Shape, keys: Iterator[bytes] | None = None, **how: Any) -> float:
    """CPU time of the program for each request, in microseconds; see `measure`."""
    measured = measure(program.port, shape, keys, read=lambda: (program.cpu_seconds(),), **how)
    if not measured.requests:
        raise AssertionError(f"{program.name}: nothing was answered in that time; give it more --seconds")
    return measured.spent[0] / measured.requests * 1e6
