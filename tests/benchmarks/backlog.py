"""What a claim and a delivery cost a store in which a million accepted requests wait, beside one in which few do."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Final, TypeVar

from gateway.core.operation import Accept, Applied, Command, Result, microseconds
from gateway.store.operations import ManagedStore
from gateway.store.postgres.store import PostgresStore
from gateway.store.sqlite.store import SqliteStore
from tests.benchmarks import load
from tests.benchmarks.filling import fill_accepted
from tests.benchmarks.options import add_stores
from tests.benchmarks.place import Place
from tests.benchmarks.subject import SERVING_CORE, pinned
from tests.benchmarks.table import show
from tests.conformance.hand import SERVICE, Hand, Script, all_of

T = TypeVar("T")

TARGET: Final = 1.2
_FEW: Final = 2_000
_AT_ONCE: Final = 64


class _Side:
    """A store, and what its calls cost."""

    def __init__(self, place: Place, store: ManagedStore, url: str) -> None:
        self.store = store
        self.spent_seconds = 0.0
        # In µs of CPU an operation, by work and round.
        self.costs: dict[str, list[float]] = {work: [] for work in _WORKS}
        self._place = place
        self._url = url

    async def call(self, calls: Iterable[Awaitable[T]]) -> list[T]:
        """The results of these calls, all at once."""
        theirs, ours = self._session_seconds(), time.process_time()
        results = await asyncio.gather(*calls)
        self.spent_seconds += time.process_time() - ours
        self.spent_seconds += self._session_seconds() - theirs
        return results

    def _session_seconds(self) -> float:
        return 0.0 if self._url.startswith("sqlite") else self._place.server.session_seconds(self._url)

    async def apply(self, hands: Iterable[Hand], speech: Callable[[Hand], Command]) -> None:
        """Have each say this, and expect it to be applied."""
        said = [(hand, speech(hand)) for hand in hands]
        results: list[Result] = await self.call([self.store.apply(command) for _, command in said])
        for (hand, command), result in zip(said, results, strict=True):
            assert isinstance(result, Applied)
            hand.see(command, result)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this measurement."""
    parser.add_argument("--pending", type=int, default=1_000_000, help="in the fuller store")
    add_stores(parser)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--waves", type=int, default=64, help=f"of {_AT_ONCE} operations, in a round of each work")


def run(place: Place, asked: argparse.Namespace) -> bool:
    """Measure, and print; whether every ratio is within its target."""
    is_within = True
    for kind in asked.stores:
        urls = [_filled(place, kind, pending) for pending in (_FEW, asked.pending)]
        with pinned(SERVING_CORE):
            few, many = load.undisturbed(lambda urls=urls: _measured(place, urls, asked))  # type: ignore[misc]
        rows = []
        for name, (_, target) in _WORKS.items():
            less, more = few.costs[name], many.costs[name]
            ratio = median(one / other for one, other in zip(more, less, strict=True))
            is_within = is_within and (target is None or ratio <= 1.2 * target)
            held = "" if target is None else f"≤ {target:.2f}"
            rows.append((name, f"{median(less):.0f}", f"{median(more):.0f}", f"{ratio:.2f}", held))
        names = (f"{kind}, µs of CPU", f"{_FEW:,} wait", f"{asked.pending:,} wait", "ratio", "target")
        show(names, rows)
    return is_within


def _filled(place: Place, kind: str, pending: int) -> str:
    began = time.perf_counter()
    settings = place.store(kind)
    url = settings["durable"]
    asyncio.run(_accept_one(_store(url)))
    fill_accepted(settings, pending - 1)
    print(f"filled {kind} with {pending:,} accepted requests in {time.perf_counter() - began:.0f} s", flush=True)
    return url


async def _accept_one(store: ManagedStore) -> None:
    await store.start()
    await store.apply(_acceptance(Hand()))
    await store.close()


def _store(url: str) -> ManagedStore:
    return SqliteStore(url.removeprefix("sqlite://")) if url.startswith("sqlite") else PostgresStore(url)


async def _measured(place: Place, urls: Sequence[str], asked: argparse.Namespace) -> list[_Side]:
    sides = [_Side(place, _store(url), url) for url in urls]
    for side in sides:
        await side.store.start()
    try:
        # In the first round a connection meets the pages that it will need.
        for number in range(asked.rounds + 1):
            for side in sides:
                for name, (work, _) in _WORKS.items():
                    before = side.spent_seconds
                    for _ in range(asked.waves):
                        await work(side)
                    if number:
                        side.costs[name].append((side.spent_seconds - before) / asked.waves / _AT_ONCE * 1e6)
    finally:
        for side in sides:
            await side.store.close()
    return sides


async def _claim(side: _Side) -> None:
    hands = [Hand() for _ in range(_AT_ONCE)]
    await side.apply(hands, Hand.claim)
    await side.apply(hands, Hand.complete_grant)


async def _accept(side: _Side) -> None:
    await side.apply([Hand() for _ in range(_AT_ONCE)], _acceptance)


def _acceptance(hand: Hand) -> Accept:
    return replace(hand.accept(), deliver_within_us=microseconds(86_400))


async def _deliver(side: _Side) -> None:
    """What a worker asks of the store, for each that is due when it has read its request."""
    (due,) = await side.call([side.store.find_due(SERVICE, all_of("charges"), _AT_ONCE)])
    hands = []
    for snapshot in due.found:
        assert snapshot.record is not None
        hands.append(Hand(Script(snapshot.record.identity)))
        hands[-1].look(snapshot)
    assert len(hands) == _AT_ONCE
    requests = await side.call([side.store.read_kept(hand.operation_id) for hand in hands])
    assert None not in requests
    await side.apply(hands, Hand.dispatch)
    await side.apply(hands, Hand.complete)


# Each with the target of its ratio.
_WORKS: Final[Mapping[str, tuple[Callable[[_Side], Awaitable[None]], float | None]]] = {
    "claim and completion": (_claim, TARGET),
    "acceptance": (_accept, None),
    "finding what is due, reading, dispatch and completion": (_deliver, TARGET),
}
