"""What 2,000 simultaneous duplicates of one key cost, and whether a hot key slows the others."""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from statistics import median
from typing import Final

from tests.benchmarks import load
from tests.benchmarks.messages import Messages
from tests.benchmarks.options import add_rounds
from tests.benchmarks.place import Place
from tests.benchmarks.subject import PROTECTED, GatewayProgram
from tests.benchmarks.table import show

TARGET: Final = 1.2
_DUPLICATES: Final = 2_000
_HOLD_MS: Final = 1_000
_CONNECTIONS: Final = 64
_SETTLE_SECONDS: Final = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this measurement."""
    parser.add_argument("--duplicates", type=int, default=_DUPLICATES)
    add_rounds(parser, 5, 3.0)


def run(place: Place, asked: argparse.Namespace) -> bool:
    """Measure, and print; whether there was one claim, and no ratio is above its target."""
    roomy = {"in_flight": {"wait": "30s", "max_wait": "30s", "max_waiters": 100_000}}
    by_default = place.gateway("by-default", place.postgres())
    with_room = place.gateway("with-room", place.postgres(), route=roomy)
    rows, is_one = [], True
    for name, program in (("by default", by_default), ("room for all to wait", with_room)):
        # The first time the connections themselves take memory, which is kept.
        _herd(program, asked.duplicates, _HOLD_MS)
        is_first, row = _counted(program, asked.duplicates)
        is_one = is_one and is_first
        rows.append((name, *row))
    names = "waiters", "claims", "forwarded", "answers", "MiB before", "MiB at the most", "KiB each"
    show(names, rows, f"{asked.duplicates:,} duplicates of one key")
    worst = _others(with_room, asked)
    return is_one and worst <= 1.2 * TARGET


def _counted(program: GatewayProgram, duplicates: int) -> tuple[bool, tuple[str, ...]]:
    program.forget_peak()
    before, held = program.told(), program.peak_bytes()
    words = _herd(program, duplicates, _HOLD_MS)
    after, peak = program.told(), program.peak_bytes()
    claims, forwarded = (
        after[name] - before[name]
        for name in ("idempotency_claims_total", "idempotency_upstream_duration_seconds_count")
    )
    row = (
        f"{claims:.0f}",
        f"{forwarded:.0f}",
        ", ".join(f"{count:,} {verdict}" for verdict, count in sorted(words.items())),
        f"{held / 2**20:.0f}",
        f"{peak / 2**20:.0f}",
        f"{(peak - held) / 2**10 / duplicates:.1f}",
    )
    return claims == forwarded == words["stored"] == 1, row


def _others(program: GatewayProgram, asked: argparse.Namespace) -> float:
    rate = load.saturation(program.port) / 4
    keys = load.store_new(program.port, 512)
    alone, waiting, many, one = "alone", "while duplicates of one key wait", "beside replays of many", "beside one"
    found: dict[str, list[load.Measured]] = {name: [] for name in (alone, waiting, many, one)}
    for _ in range(asked.rounds):
        found[alone].append(_paced(program, rate, asked.seconds))
        found[waiting].append(_paced(program, rate, asked.seconds, herd=asked.duplicates))
        found[many].append(_paced(program, rate, asked.seconds, replayed=keys))
        found[one].append(_paced(program, rate, asked.seconds, replayed=keys[:1]))
    rows, worst = [], 0.0
    for name, to in ((alone, alone), (waiting, alone), (many, many), (one, many)):
        ratios = {
            percent: median(
                mine.latency_ms(percent) / its.latency_ms(percent)
                for mine, its in zip(found[name], found[to], strict=True)
            )
            for percent in (50, 99)
        }
        worst = max(worst, ratios[99])
        rows.append(
            (
                name,
                *(f"{median(each.latency_ms(percent) for each in found[name]):.2f}" for percent in (50, 99)),
                *(f"{ratio:.2f}" for ratio in ratios.values()),
                "" if name == to else f"≤ {TARGET:.2f}",
                "" if name == to else to,
            )
        )
    names = f"other keys, {rate:,.0f}/s", "p50 ms", "p99 ms", "ratio of p50", "ratio of p99", "target", "to"
    show(names, rows)
    return worst


def _paced(
    program: GatewayProgram, rate: float, seconds: float, *, herd: int = 0, replayed: list[bytes] | None = None
) -> load.Measured:
    """Other keys at this rate, beside a herd that waits all the time, or replays of these keys at the same rate."""

    async def together() -> load.Measured:
        beside: list[asyncio.Task[object]] = []
        if herd:
            # They have come, and go on waiting until the others were measured.
            sent = asyncio.Event()
            hold_ms = round((seconds + load.WARM_SECONDS + 2 * _SETTLE_SECONDS) * 1000)
            beside.append(asyncio.ensure_future(_duplicates(program.port, herd, hold_ms, sent)))
            await sent.wait()
            await asyncio.sleep(_SETTLE_SECONDS)
        if replayed is not None:
            paced = load.paced(
                program.port, load.REPLAY, load.again(replayed), rate=rate, connections=_CONNECTIONS, seconds=seconds
            )
            beside.append(asyncio.ensure_future(paced))
        mine = await load.paced(
            program.port, load.NEW, load.new_keys(), rate=rate, connections=_CONNECTIONS, seconds=seconds
        )
        await asyncio.gather(*beside)
        return mine

    return load.undisturbed(together)


class _Duplicate(Messages):
    def __init__(self, answered: asyncio.Queue[bytes]) -> None:
        self._answered = answered

    def message_arrived(self, head: bytes) -> None:
        _, _, rest = head.partition(b"\r\nIdempotency-Status: ")
        self._answered.put_nowait(rest.split(b"\r\n", 1)[0] or head.split(b"\r\n", 1)[0])
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._answered.put_nowait(b"lost")


def _herd(program: GatewayProgram, duplicates: int, hold_ms: int) -> Counter[str]:
    return load.undisturbed(lambda: _duplicates(program.port, duplicates, hold_ms))


async def _duplicates(port: int, duplicates: int, hold_ms: int, sent: asyncio.Event | None = None) -> Counter[str]:
    """The words of the answers to so many requests under one new key; `sent` is set when all were."""
    before, after = load.Shape(PROTECTED, 200, None, b"X-Answer-After: %d\r\n" % hold_ms).parts()
    request = before + next(load.new_keys()) + after
    answered: asyncio.Queue[bytes] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    opened = [
        (await loop.create_connection(lambda: _Duplicate(answered), "127.0.0.1", port))[0] for _ in range(duplicates)
    ]
    for transport in opened:
        transport.write(request)
    if sent is not None:
        sent.set()
    return Counter([(await answered.get()).decode() for _ in range(duplicates)])
