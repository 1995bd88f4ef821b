"""What a collector of traces that hangs can do: how much later responses come, and how much longer a stop takes."""

from __future__ import annotations

import argparse
import socket
from contextlib import closing
from statistics import median
from typing import Final

from tests.benchmarks import load
from tests.benchmarks.place import Place
from tests.benchmarks.subject import GatewayProgram
from tests.benchmarks.table import show

LATER_MS_MAX: Final = 2.0
LONGER_SECONDS_MAX: Final = 2.0
_CONNECTIONS: Final = 32
_PERCENTS: Final = (50, 99)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this measurement."""
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--stops", type=int, default=3)
    parser.add_argument("--rate", type=float, default=150.0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")


def run(place: Place, asked: argparse.Namespace) -> bool:
    """Measure, and print; whether both differences are small enough."""
    shutdown = {"shutdown": {"delay": "0s", "drain_timeout": "10s"}}
    with closing(socket.create_server(("127.0.0.1", 0))) as hanging:
        traces = {"endpoint": f"http://127.0.0.1:{hanging.getsockname()[1]}/v1/traces", "sample": 1.0}
        with_traces = place.gateway("traced", place.sqlite(), settings={**shutdown, "traces": traces})
        without = place.gateway("untraced", place.sqlite(), settings=shutdown)
        pairs = [
            [_latencies(program, asked.rate, asked.seconds) for program in (with_traces, without)]
            for _ in range(asked.rounds)
        ]
        told = with_traces.told()
        stops = [
            [_stopped_seconds(program, asked.rate) for program in (with_traces, without)] for _ in range(asked.stops)
        ]
    rows = [
        (
            f"p{percent}, ms",
            *(f"{median(pair[which][place_] for pair in pairs):.2f}" for which in (0, 1)),
            f"{later:.2f}",
        )
        for place_, percent in enumerate(_PERCENTS)
        for later in [median(one[place_] - other[place_] for one, other in pairs)]
    ]
    longer = median(one - other for one, other in stops)
    rows.append(("a stop, s", *(f"{median(pair[which] for pair in stops):.2f}" for which in (0, 1)), f"{longer:.2f}"))
    show(("", "collector hangs", "no traces", "difference"), rows)
    p99 = sorted(one[1] - other[1] for one, other in pairs)
    print(f"\np99 of the rounds: {', '.join(f'{later:+.2f}' for later in p99)} ms")
    lost = told["idempotency_spans_total"]
    print(f"{lost:.0f} spans were given up; at most {LATER_MS_MAX:g} ms and {LONGER_SECONDS_MAX:g} s", flush=True)
    return median(p99) <= LATER_MS_MAX and max(one - other for one, other in stops) <= LONGER_SECONDS_MAX


def _latencies(program: GatewayProgram, rate: float, seconds: float) -> tuple[float, ...]:
    """The percentiles of a round, in milliseconds."""
    measured = load.new_at(program.port, rate, seconds, _CONNECTIONS)
    return tuple(measured.latency_ms(percent) for percent in _PERCENTS)


def _stopped_seconds(program: GatewayProgram, rate: float) -> float:
    """How long it takes to stop after a second of load; it is started again."""
    _latencies(program, rate, 1.0)
    seconds = program.terminate()
    program.start()
    return seconds
