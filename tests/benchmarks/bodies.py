"""What large bodies cost: memory, and the longest that the event loop was held up."""

from __future__ import annotations

import argparse
import json
import signal
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

from tests.benchmarks import load
from tests.benchmarks.place import Place
from tests.benchmarks.subject import PROTECTED, UNPROTECTED, GatewayProgram
from tests.benchmarks.table import show
from tests.support.eventually import eventually_blocking

STALL_SECONDS_MAX: Final = 0.020
OPTIONS: Final = {"rounds": 5}
# What may be on the way at once: buffers of both sides, and what a thread has in its hands.
GROWTH_BYTES_MAX: Final = 16 << 20
_MIB: Final = 1 << 20
_PIECE: Final = b"x" * (256 << 10)
_QUIET_SECONDS: Final = 0.5
_TYPES: Final = {"bytes": "application/octet-stream", "JSON": "application/json"}


def run(place: Place, asked: argparse.Namespace) -> bool:
    """Measure, and print; whether memory is bounded, and the loop was held up for no longer than it may be."""
    file = place.directory / "pulse.json"
    route = {"body": {"max_bytes": "128MiB"}}
    program = place.gateway(
        "bodies", place.store("sqlite"), route=route, program=("tests.benchmarks.watched", str(file))
    )
    works: dict[str, Callable[[], object]] = {
        "nothing": lambda: time.sleep(_QUIET_SECONDS),
        "100 MiB passed through": lambda: _said(program, UNPROTECTED, 100 * _MIB, "bytes", 200),
        "answer of 100 MiB passed through": lambda: _said(program, UNPROTECTED, 200, "bytes", 100 * _MIB),
    }
    for kind in _TYPES:
        works[f"64 MiB of {kind} under a new key"] = partial(_protected, program, kind)
    rows, is_within = [], True
    for name, work in works.items():
        # The first time buffers and threads come into being, which are kept.
        work()
        found = [_measured(program, file, work) for _ in range(asked.rounds)]
        growth, wall, cpu = (max(one[part] for one in found) for part in range(3))
        is_within = is_within and growth <= GROWTH_BYTES_MAX and cpu <= 1.2 * STALL_SECONDS_MAX
        seconds, usual = (median(one[part] for one in found) for part in (3, 1))
        stalls = (f"{stall * 1e3:.1f}" for stall in (usual, wall, cpu))
        target = "" if name == "nothing" else f"≤ {STALL_SECONDS_MAX * 1e3:.0f}"
        rows.append((name, f"{seconds:.2f}", f"{growth / _MIB:.1f}", *stalls, target))
    names = "work", "seconds", "MiB more", "longest stall ms, median", "worst", "worst of it CPU", "target"
    show(names, rows)
    return is_within


def _measured(program: GatewayProgram, file: Path, work: Callable[[], object]) -> tuple[float, float, float, float]:
    """Bytes of memory at the most over before, seconds of the longest stall by clock and CPU, and seconds in all."""
    _pulse(program, file)
    program.forget_peak()
    held, began = program.rss_bytes(), time.perf_counter()
    work()
    seconds = time.perf_counter() - began
    wall, cpu = _pulse(program, file)
    return program.peak_bytes() - held, wall, cpu, seconds


def _pulse(program: GatewayProgram, file: Path) -> tuple[float, float]:
    program.tell(signal.SIGUSR1)
    eventually_blocking(file.exists, 30.0, "the pulse is told")
    wall, cpu = json.loads(file.read_text())
    file.unlink()
    return wall, cpu


def _protected(program: GatewayProgram, kind: str) -> None:
    head = _said(program, PROTECTED, 64 * _MIB, kind, 200)
    assert b"\r\nIdempotency-Status: stored\r\n" in head, head


def _said(program: GatewayProgram, path: bytes, body_bytes: int, kind: str, answer_bytes: int) -> bytes:
    """One request on a connection of its own, and all of its answer, whose head is returned."""
    head = b"POST %b HTTP/1.1\r\nHost: api.test\r\nX-Tenant: tenant-1\r\nConnection: close\r\n" % path
    head += b"Content-Type: %b\r\nContent-Length: %d\r\n" % (_TYPES[kind].encode(), body_bytes)
    head += b"X-Answer-Bytes: %d\r\nIdempotency-Key: %b\r\n\r\n" % (answer_bytes, next(load.new_keys()))
    with socket.create_connection(("127.0.0.1", program.port), 60.0) as connection:
        connection.sendall(head)
        for begin in range(0, body_bytes, len(_PIECE)):
            connection.sendall(_PIECE[: body_bytes - begin])
        start, total = b"", 0
        while data := connection.recv(256 << 10):
            if b"\r\n\r\n" not in start:
                start += data
            total += len(data)
    assert start.startswith(b"HTTP/1.1 200"), start[:200]
    assert total >= answer_bytes
    return start
