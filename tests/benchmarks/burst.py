"""Thousands of requests at once under one key, beside ten a second under others, which are not to notice."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice, product
from typing import Any, Final

from tests.benchmarks.place import STORES, Place
from tests.benchmarks.subject import OTHER_CORE, PROTECTED, SERVING_CORE, GatewayProgram
from tests.benchmarks.table import show
from tests.support.burst import Got, at_once, one_by_one, request_bytes
from tests.support.senders import TEXT, signed

# How much longer than without a burst a request under another key may take.
TARGET_MS: Final = 250.0
# `after`: milliseconds that the service takes; `seconds`: of the other keys.
OPTIONS: Final = {
    "counts": (5_000,), "kinds": ("equal",), "stores": STORES, "workers": (1,), "after": (0, 300), "seconds": 6.0,
}  # fmt: skip
_RATE: Final = 10.0
_PATH: Final = PROTECTED.decode()
_EVENTS: Final = {
    "name": "events",
    "match": {"path": _PATH},
    "inbox": {"preset": "github", "secrets": [{"id": "a", "key": TEXT}]},
    "scope": "shared",
    "outcome": {"preset": "success_only"},
}
# By kind: the settings of the gateway, and the answers to one request and to its repeats.
_KINDS: Final[dict[str, tuple[dict[str, Any], str, frozenset[str]]]] = {
    "equal": ({}, "200 stored", frozenset(("200 replayed", "409 in-flight"))),
    "events": ({"routes": [_EVENTS]}, "200 accepted", frozenset(("200 event-duplicate",))),
}
_ENCRYPTION: Final = {"encryption": [{"id": "bench", "key": "00" * 32}]}
_numbers = count()


def run(place: Place, asked: argparse.Namespace) -> bool:
    """Measure, and print; whether each burst was executed once, and held up no other key by more than the target."""
    rows: list[tuple[str, ...]] = []
    is_fine = True
    for store, workers, kind in product(asked.stores, asked.workers, asked.kinds):
        program = _gateway(place, store, workers, kind)
        for after_ms in asked.after:
            alone = _others(program, kind, after_ms, asked.seconds, lambda: None)
            for number in asked.counts:
                is_once, row = _burst(program, kind, after_ms, number, asked.seconds, alone)
                is_fine = is_fine and is_once
                rows.append((store, str(workers), kind, f"{number:,}", str(after_ms), *row))
        program.stop()
    names = "store", "workers", "kind", "at once", "service ms", "executed", "answers", "seconds", "others ms", "alone"
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    show(names, rows, after=f"load of the machine: {load}")
    return is_fine


def _gateway(place: Place, store: str, workers: int, kind: str) -> GatewayProgram:
    return place.gateway(
        f"{store}-{workers}-{kind}",
        place.store(store),
        settings={"workers": workers, "limits": {}, "log": {}, "secrets": _ENCRYPTION, **_KINDS[kind][0]},
        cores=(SERVING_CORE,) if workers == 1 else (SERVING_CORE, OTHER_CORE),
    )


def _burst(
    program: GatewayProgram, kind: str, after_ms: int, number: int, seconds: float, alone: Sequence[Got]
) -> tuple[bool, tuple[str, ...]]:
    """Whether all is as it should be, and a row."""
    _, once, repeated = _KINDS[kind]
    request = next(_requests(kind, after_ms))
    before = _forwarded(program)
    burst = at_once(program.port, [request], number)
    others = _others(program, kind, after_ms, seconds, burst.go)
    got = burst.wait()
    others_sent = sum(each.answers.total() for each in others)
    executed = _forwarded(program) - before - others_sent
    slowest_ms, alone_ms = (1000 * max(got.slowest_seconds for got in each) for each in (others, alone))
    is_fine = (
        executed == 1
        and set(got.answers) <= {once, *repeated}
        and got.answers[once] == 1
        and all(set(each.answers) == {once} for each in others)
        and slowest_ms - alone_ms <= TARGET_MS
    )
    answers = ", ".join(f"{times:,} {word}" for word, times in sorted(got.answers.items()))
    row = f"{executed:.0f}", answers, f"{got.slowest_seconds:.1f}", f"{slowest_ms:.0f}", f"{alone_ms:.0f}"
    return is_fine, row


def _forwarded(program: GatewayProgram) -> float:
    """How many requests the service has had, once it has all of those that were accepted."""
    while (told := program.told()).get("idempotency_backlog"):
        pass
    return told.get("idempotency_upstream_duration_seconds_count", 0.0)


def _others(program: GatewayProgram, kind: str, after_ms: int, seconds: float, go: Callable[[], object]) -> list[Got]:
    """What the other keys got beside what begins with `go`."""
    requests = _requests(kind, after_ms)
    number = int(seconds * _RATE)
    callers = [
        one_by_one(program.port, list(islice(requests, number)), rate=_RATE, keeps=keeps) for keeps in (False, True)
    ]
    for each in callers:
        each.go()
    go()
    return [each.wait() for each in callers]


def _requests(kind: str, after_ms: int) -> Iterator[bytes]:
    """One request after the other, each of another key."""
    after = ("X-Answer-After", str(after_ms))
    for number in _numbers:
        if kind == "events":
            body = b'{"number": %d}' % number
            yield request_bytes("", _PATH, (*signed("github", body, event=f"e{number}").items(), after), body)
        else:
            yield request_bytes(f"burst-{number}", _PATH, (after,))
