"""A soak: one gateway that nobody restarts, whose durable store comes and goes under clients that retry and hang up.

`python -m tests.integration.soak --seconds 300`. A storm of the store alone: outcomes go to the journal, the service
cuts connections, duplicates wait, clients vanish. Afterwards the history is judged as a storm's is, and the books have
to balance: what the gateway counted is what clients and the service saw, every doubt is listed, the journal is empty,
and of all that was opened and allocated for it nothing is left.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import statistics
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.integration.storm import (
    HEAL_SECONDS,
    ROUTES,
    TO_DURABLE,
    World,
    compare_with_list,
    has_store,
    listed_in,
    settle,
    stop_in_order,
    trouble,
)
from tests.integration.storm_clients import PATHS, Clients, Intent
from tests.integration.storm_judge import judge
from tests.integration.storm_upstream import Deed, StormUpstream
from tests.observe.scrape import Scrape
from tests.support import http, long_run
from tests.support.eventually import eventually
from tests.support.fleet import process
from tests.support.gateway import GatewayProcess
from tests.support.house import BODY, JSON
from tests.support.postgres import PostgresInstallation, PostgresServer

LEASE_SECONDS: Final = 3.0
# Longer than a lease, which is renewed where the store is there. A short soak is not drawn out by it.
_SLOWEST_SECONDS: Final = 3.3
_CLIENTS: Final = 16
_HANG_UP_SECONDS: Final = 0.3
_IMPATIENT: Final = 0.1
# The store is back and nobody is at work: what is held stays as it is, what can be asked about was asked about once.
_PATIENCE_SECONDS: Final = dict(zip(PATHS, (0.0, 60.0, 1.5), strict=True))
_SAMPLE_SECONDS: Final = 0.5
# What one gateway may keep of a soak, however long: pools that fill, pages that stay with the allocator.
DESCRIPTORS_MAX: Final = 8
# The pool for what blocks (`asyncio.to_thread`) has as many threads as were ever at work at once, and keeps them.
THREADS_MAX: Final = min(32, (os.cpu_count() or 1) + 4)
MIB: Final = 1 << 20
GROWTH_MIB_MAX: Final = 8
# Shorter ones say nothing of growth: the first minute fills pools and caches.
LONG_SECONDS_MIN: Final = 120.0


@dataclass
class Usage:
    """What the process holds of the machine."""

    rss_bytes: int
    descriptors: int
    threads: int


@dataclass
class Report(long_run.Verdict):
    """What a soak came to. It passed when there are no `faults`."""

    words: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)
    numbers: dict[str, float] = field(default_factory=dict)

    def summary(self) -> str:
        answers = "answers: " + ", ".join(f"{verdict} {count}" for verdict, count in self.words.most_common())
        outages = "outages: " + ", ".join(f"{what} {count}" for what, count in sorted(self.done.items()))
        return "\n".join([answers, outages, *(f"{name}: {value:g}" for name, value in self.numbers.items())])


async def soak(directory: Path, installation: PostgresInstallation, *, seconds: float, seed: int) -> Report:
    """Run one in this directory."""
    report = Report()
    async with AsyncExitStack() as stack:
        postgres = stack.enter_context(PostgresServer(installation, directory / "pg").running())
        service = StormUpstream(random.Random(f"{seed} upstream"), slowest_seconds=min(_SLOWEST_SECONDS, seconds))
        upstream = await stack.enter_async_context(service)
        gateway = await stack.enter_async_context(
            process(
                {"durable": postgres.url}, directory / "gateway", upstream, routes=ROUTES,
                # The answers held in memory fill it early: what grows afterwards is no cache.
                store={"lease": f"{LEASE_SECONDS:g}s", "cache_bytes": "256KiB"},
                upstream={"response_timeout": "20s", "answer_within": "15s"},
                shutdown={"delay": "0s", "drain_timeout": "5s"},
            )
        )  # fmt: skip
        clients = Clients([gateway], seed, impatient=_IMPATIENT)
        world = World(postgres, None, upstream, [gateway], report.done)
        before = _usage(gateway)
        with upstream.holding_back():
            # One that surely hangs up without a response; the others do so by chance.
            await clients.call(Intent(PATHS[0], "hung-up", b'{"amount":1}'), gateway, _HANG_UP_SECONDS)
        usages = await _load(world, clients, seconds, seed)
        upstream.is_calm = True
        await _wait_quiet(gateway)
        unsettled, report.faults = await settle([gateway], clients, _PATIENCE_SECONDS)
        report.faults += await compare_with_list(gateway, clients, unsettled)
        await _wait_quiet(gateway)
        report.faults += judge(clients.calls, upstream.deeds, upstream.answers)
        report.faults += await _books(gateway, clients, upstream, report)
        report.numbers["in doubt"] = len(unsettled)
        is_long = seconds >= LONG_SECONDS_MIN
        if is_long:
            await eventually(lambda: _is_doubt_shown(gateway), 60.0, "idempotency_in_doubt is what is in doubt")
        report.faults += await _left(gateway, before, usages, report, is_long=is_long)
        report.faults += await stop_in_order(gateway)
        report.words = clients.words()
        return report


async def _load(world: World, clients: Clients, seconds: float, seed: int) -> list[Usage]:
    """Clients and outages, side by side; what the process held meanwhile."""
    (gateway,) = world.gateways
    usages: list[Usage] = []

    async def disturb() -> None:
        await trouble(world, TO_DURABLE, random.Random(f"{seed} outages"), time.monotonic() + seconds)
        clients.is_over = True

    async def tear() -> None:
        for number in itertools.count():
            if clients.is_over:
                return
            await _send_half(gateway.port, f"torn-{number}")

    async def watch() -> None:
        while not clients.is_over:
            usages.append(_usage(gateway))
            await asyncio.sleep(_SAMPLE_SECONDS)

    async with asyncio.TaskGroup() as group:
        for each in (disturb(), tear(), watch(), clients.run(_CLIENTS)):
            group.create_task(each)
    return usages


async def _send_half(port: int, key: str) -> None:
    """A request that breaks off inside its body."""
    fields = [JSON, ("Idempotency-Key", key), ("X-Tenant", "t1")]
    with suppress(OSError):
        async with http.Connection(port) as connection:
            await connection.send(http.request_bytes("POST", "/charges", fields, BODY)[:-5])
            await asyncio.sleep(0.05)
            connection.reset()


async def _wait_quiet(gateway: GatewayProcess) -> None:
    """Return when the gateway has its store, nothing to do, and nothing to write."""

    async def is_quiet() -> bool:
        scrape = await _scrape(gateway)
        idle = ("idempotency_in_flight", "idempotency_journal_waiting")
        return await has_store(gateway) and not any(scrape.total(name) for name in idle)

    await eventually(is_quiet, HEAL_SECONDS, "the gateway has nothing to do")


async def _books(gateway: GatewayProcess, clients: Clients, upstream: StormUpstream, report: Report) -> list[str]:
    """37: what the gateway counted is what clients saw and what the service received."""
    scrape = await _scrape(gateway)
    counted = Counter[str]()
    for each in scrape.series:
        if each.name == "idempotency_requests_total":
            counted[each.labels["verdict"]] += int(each.value)
    seen = Counter(call.verdict for call in clients.calls if call.verdict is not None)
    wrong = {verdict: (counted[verdict], seen[verdict]) for verdict in seen if counted[verdict] < seen[verdict]}
    more, unanswered = counted.total() - seen.total(), len(clients.calls) - seen.total()
    exchanges = "idempotency_upstream_exchanges_total"
    sent = _sum(scrape, exchanges) - scrape.total(exchanges, result="not_sent")
    probes = sum(arrival.deed is Deed.ASKED for arrival in upstream.deeds.values())
    requests = len(upstream.deeds) - probes
    claims, journaled = _sum(scrape, "idempotency_claims_total"), _sum(scrape, "idempotency_journaled_total")
    ended = _sum(scrape, "idempotency_settlements_total") + _sum(scrape, "idempotency_refused_writes_total")
    in_journal = _sum(scrape, "idempotency_journal_waiting") + _sum(scrape, "idempotency_journal_refused")
    report.numbers |= {
        "calls without a response": unanswered,
        "requests at the service": requests,
        "effects": len(upstream.effects),
        "takeovers": _sum(scrape, "idempotency_takeovers_total"),
        "journaled": journaled,
        "late writes": _sum(scrape, "idempotency_late_writes_total"),
    }
    balances = {
        f"fewer responses counted than clients saw: {wrong}": not wrong,
        f"{more} responses counted that nobody saw, {unanswered} calls had none": more <= unanswered,
        f"{sent:g} requests sent, {requests} and {probes} probes received": sent == requests + probes,
        f"{claims:g} claims counted, {requests} requests received": claims >= requests,
        # A journaled outcome that the record did without is counted nowhere when it leaves the journal.
        f"{claims - ended:g} claims of which no end was counted, {journaled:g} journaled": (
            0 <= claims - ended <= journaled
        ),
        f"{in_journal:g} outcomes left in the journal": in_journal == 0,
    }
    return [what for what, is_so in balances.items() if not is_so]


async def _is_doubt_shown(gateway: GatewayProcess) -> bool:
    """30: what is in doubt is in the gauge, taken every 15 seconds; probes may find out about some meanwhile."""
    in_doubt = len(await listed_in(gateway, "in_doubt"))
    return _sum(await _scrape(gateway), "idempotency_in_doubt") == in_doubt


async def _left(
    gateway: GatewayProcess, before: Usage, usages: list[Usage], report: Report, *, is_long: bool
) -> list[str]:
    """36: nothing is left of it: no connection, no thread, and no memory that grows with what was done."""
    quarter = len(usages) // 4
    early, late = usages[quarter : 2 * quarter], usages[3 * quarter :]
    memory_early, memory_late = (statistics.median(each.rss_bytes for each in some) / MIB for some in (early, late))
    await eventually(
        lambda: _usage(gateway).descriptors <= before.descriptors + DESCRIPTORS_MAX,
        what=f"no more than {before.descriptors} + {DESCRIPTORS_MAX} descriptors",
    )
    after = _usage(gateway)
    report.numbers |= {
        "descriptors at most": max(each.descriptors for each in usages),
        "descriptors after": after.descriptors,
        "threads after": after.threads,
        "memory in the second quarter (MiB)": round(memory_early, 1),
        "memory in the last quarter (MiB)": round(memory_late, 1),
    }
    found = []
    if after.threads > before.threads + THREADS_MAX:
        found.append(f"{after.threads} threads are left, {before.threads} there were")
    if is_long and memory_late - memory_early > GROWTH_MIB_MAX:
        found.append(f"memory grew by {memory_late - memory_early:.1f} MiB between the second and the last quarter")
    return found


async def _scrape(gateway: GatewayProcess) -> Scrape:
    return Scrape(await gateway.metrics())


def _sum(scrape: Scrape, name: str) -> float:
    return sum(each.value for each in scrape.series if each.name == name)


def _usage(gateway: GatewayProcess) -> Usage:
    directory = Path("/proc") / str(gateway.pid)
    pages = int((directory / "statm").read_text().split()[1])
    threads, descriptors = (len(list((directory / each).iterdir())) for each in ("task", "fd"))
    return Usage(pages * os.sysconf("SC_PAGE_SIZE"), descriptors, threads)


if __name__ == "__main__":
    sys.exit(long_run.main("soak", __doc__, soak, has_store=False, seconds=60.0))
