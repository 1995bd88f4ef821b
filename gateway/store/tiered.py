"""A durable store with copies in front of it: the process cache, then the fast tier. Itself a `Store`.

It changes nothing of what the durable store says, and it grants nothing by itself. Its invariant: what it answers
from a copy is what the durable store acknowledged, never past its window, and for no longer than
`cache_max_age_seconds` after a purge that the copy missed.

Theory of operation
-------------------
*What a copy may answer.* A claim on a completed record is `Fenced` with that record, always: the table has no such
row and completion is final. So a copy answers that, and only that; every other command, and every `read`, goes to the
durable store. `recall` and `look` give a copy before there is a claim to make: most repeats need none.

*What becomes a copy.* A completed record that the durable store gave back, whatever was asked. The window is counted
from before the call. No copy is made of what is in flight, nor of an answer that did not arrive: an `Indefinite`
completion is asked about, not believed.

*Spreading.* A copy goes to the fast tier behind the caller's back. Waiters of other gateways are woken along
with it.

*Purges.* After a purge, whatever its answer, the process drops its copy and the fast tier forgets all of its copies.
A gateway that dies before that, or cannot reach the fast tier, leaves it to the next that learns of the purge from the
durable store (`Epoch.generation`), which every gateway asks with every tally.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar
from uuid import UUID

from gateway.core.operation import (
    MICROSECONDS,
    Abandon,
    Applied,
    Claim,
    Command,
    Disprove,
    Erase,
    Fenced,
    Forget,
    Purge,
    Release,
    Result,
    Snapshot,
    State,
    operation_id_of,
)
from gateway.store.base import FastTier, Indefinite, NotApplied, StoreError, Watch, boot_seconds
from gateway.store.cache import ProcessCache
from gateway.store.operations import Forwarding, ManagedStore

T = TypeVar("T")

DURABLE: Final = "durable"
FAST: Final = "fast"

# By name, because a union that stands in a test is made anew each time.
_PURGING: Final = (Purge, Erase)
_GONE: Final = (State.TOMBSTONE, State.ABSENT)
_ENDING_UNANSWERED: Final = (Release, Forget, Abandon, Disprove)

# How long `close` waits for what is still to be spread.
_DRAIN_SECONDS: Final = 3.0

# What may wait to be spread; more is shed.
_SPREADING_MAX: Final = 1_000
_SPREADING_BYTES_MAX: Final = 32 * 1024 * 1024

# A smaller step of the store's clock goes unnoticed; whoever waits for things to settle waits for longer.
_UNSEEN_SECONDS: Final = 1.0
# Seconds a second: more than clocks drift apart, or are slewed.
_DRIFT: Final = 0.001

_LOG = logging.getLogger("gateway")


@dataclass(slots=True)
class TierStats:
    """Counts since the start, for whoever exports them. `shed`: copies and news that were given up for lack of room."""

    cache_hits: int = 0
    fast_hits: int = 0
    fast_misses: int = 0
    fast_failures: int = 0
    shed: int = 0


class Tiered(Forwarding):
    """Satisfies the `Store` protocol of `base`. Owns both tiers: starts and closes them."""

    def __init__(
        self,
        durable: ManagedStore,
        fast: FastTier | None,
        *,
        cache_bytes: int,
        cache_max_age_seconds: float,
        clock: Callable[[], float] = boot_seconds,
        on_tier: Callable[[str, bool, str], None] | None = None,
    ) -> None:
        """`on_tier` gets the name of a tier, whether it is up, and why not: each time that changes, and when the
        cause does. A tier begins as down, for no cause.
        """
        self.stats = TierStats()
        super().__init__(durable)
        self._fast = fast
        self._cache = ProcessCache(cache_bytes, cache_max_age_seconds)
        self._clock = clock
        self._on_tier = on_tier
        self._durable_up = False
        self._why_durable_down = ""
        self._durable_up_since_seconds = 0.0
        self._steadiness = Steadiness()
        self._spreading = _Spreading(fast, self.stats)
        self._purges_unreported = 0
        if fast is not None:
            fast.on_purge(lambda operation_id: self._cache.drop(operation_id, clock()))
            fast.on_change(lambda up, why: self._report(FAST, up, why))

    @property
    def durable_up(self) -> bool:
        """Whether the last thing that was asked of the durable store was answered."""
        return self._durable_up

    @property
    def durable_reachable_seconds(self) -> float:
        """For how long the durable store has answered whatever was asked of it; 0 while it does not.

        A step of its clock ahead counts as an absence: what a lease and a period of grace left is over without having
        passed.
        """
        if not self._durable_up:
            return 0.0
        return min(self._clock() - self._durable_up_since_seconds, self.durable_steady_seconds)

    @property
    def durable_steady_seconds(self) -> float:
        """For how long the durable store's clock has surely not been set ahead, as far as this gateway could see."""
        return self._steadiness.steady_seconds(self._clock())

    @property
    def fast_up(self) -> bool:
        return self._fast is not None and self._fast.up

    @property
    def purges_pending(self) -> int:
        """Purges by this process that could not be reported to the fast tier yet."""
        if self._fast is None or self._fast.has_forgotten:
            self._purges_unreported = 0
        return self._purges_unreported

    async def start(self) -> None:
        """The fast tier is started first and stays so when the durable store is unreachable: it may answer already."""
        if self._fast is not None:
            await self._fast.start()
        try:
            await self._asked(self._behind.start())
        except (NotApplied, Indefinite):
            raise
        except BaseException:
            if self._fast is not None:
                await self._fast.close()
            raise

    async def close(self) -> None:
        try:
            if self._fast is not None:
                await self._drain()
                await self._fast.close()
        finally:
            await self._behind.close()

    def recall(self, operation_id: UUID) -> Snapshot | None:
        """A completed record as `apply` would answer a claim with, where this process remembers it."""
        copy = self._cache.get(operation_id, self._clock())
        if copy is not None:
            self.stats.cache_hits += 1
        return copy

    def look(self, operation_id: UUID) -> asyncio.Future[Snapshot | None] | None:
        """The same from the fast tier: a completed record, None or a `StoreError`, soon. None where it is not asked."""
        fast = self._fast
        if fast is None or not fast.up:
            return None
        started_seconds = self._clock()
        try:
            looked = asyncio.ensure_future(fast.get(operation_id))
        except StoreError:
            self.stats.fast_failures += 1
            return None
        looked.add_done_callback(partial(self._note_looked, started_seconds))
        return looked

    def _note_looked(self, started_seconds: float, looked: asyncio.Future[Snapshot | None]) -> None:
        if looked.cancelled():
            return
        if looked.exception() is not None:
            self.stats.fast_failures += 1
        elif (copy := looked.result()) is None:
            self.stats.fast_misses += 1
        else:
            self.stats.fast_hits += 1
            self._cache.put(copy, started_seconds)

    async def apply(self, command: Command) -> Result:
        if isinstance(command, Claim):
            copy = self.recall(command.identity.operation_id)
            if copy is not None:
                return Fenced(copy)
        elif isinstance(command, _PURGING):
            return await self._apply_purge(command)
        started_seconds = self._clock()
        # As `_asked` does, without a coroutine more for every command.
        try:
            result = await self._behind.apply(command)
        except (NotApplied, Indefinite) as error:
            self._set_durable_down(error)
            raise
        self._set_durable_up()
        self._learn(result.snapshot, started_seconds)
        if isinstance(command, _ENDING_UNANSWERED) and isinstance(result, Applied):
            self._spreading.news(operation_id_of(command))
        return result

    async def read(self, operation_id: UUID) -> Snapshot:
        started_seconds = self._clock()
        snapshot = await self._asked(self._behind.read(operation_id))
        self._learn(snapshot, started_seconds)
        return snapshot

    @asynccontextmanager
    async def watch(self, operation_id: UUID) -> AsyncIterator[Watch]:
        """News from the fast tier while it is up, from the durable store otherwise."""
        async with AsyncExitStack() as stack:
            watch = _TieredWatch(self._behind, self._fast, operation_id, stack)
            await watch.listen()
            yield watch

    async def _forward(self, verb: str, call: Callable[[], Awaitable[T]]) -> T:
        return await self._asked(call())

    async def _asked(self, answer: Awaitable[T]) -> T:
        """The durable store's answer, having learned from it whether the store is up."""
        try:
            value = await answer
        except (NotApplied, Indefinite) as error:
            self._set_durable_down(error)
            raise
        self._set_durable_up()
        return value

    def _learn(self, snapshot: Snapshot, started_seconds: float) -> None:
        """Keep what the durable store says of a completed record. One that is in the cache was spread before."""
        self._steadiness.note(snapshot.now_us, started_seconds, self._clock())
        record = snapshot.record
        if record is None or record.state is not State.COMPLETED:
            return
        operation_id = record.identity.operation_id
        is_known = self._cache.get(operation_id, started_seconds) is not None
        self._cache.put(snapshot, started_seconds)
        if not is_known:
            self._spreading.copy(snapshot, started_seconds)

    async def _apply_purge(self, command: Purge | Erase) -> Result:
        operation_id = command.operation_id
        try:
            result = await self._asked(self._behind.apply(command))
        except StoreError:
            # It may have been done.
            await self._forget(operation_id)
            raise
        finally:
            self._cache.drop(operation_id, self._clock())
        # Also where it was gone before: this may be the repeat of a purge whose answer was lost.
        if result.snapshot.state in _GONE:
            await self._forget(operation_id)
        return result

    async def _forget(self, operation_id: UUID) -> None:
        """Have the fast tier forget its copies."""
        if self._fast is None:
            return
        self._purges_unreported += 1
        try:
            await self._fast.forget(operation_id)
        except StoreError:
            self.stats.fast_failures += 1

    async def _drain(self) -> None:
        """Give what is to be spread a last bounded chance."""
        tasks = set(self._spreading.under_way)
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=_DRAIN_SECONDS if self.fast_up else 0)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    def _set_durable_up(self) -> None:
        if not self._durable_up:
            self._durable_up, self._why_durable_down = True, ""
            self._durable_up_since_seconds = self._clock()
            self._report(DURABLE, True, "")

    def _set_durable_down(self, error: StoreError) -> None:
        why = str(error)
        if self._durable_up or why != self._why_durable_down:
            self._durable_up, self._why_durable_down = False, why
            self._report(DURABLE, False, why)

    def _report(self, tier: str, up: bool, why: str) -> None:
        if self._on_tier is not None:
            self._on_tier(tier, up, why)


class _TieredWatch:
    """Waits where news is to be had. After a change of place it says that there is news: some may have been missed."""

    def __init__(self, durable: ManagedStore, fast: FastTier | None, operation_id: UUID, stack: AsyncExitStack) -> None:
        self._durable = durable
        self._fast = fast
        self._operation_id = operation_id
        self._stack = stack
        self._watches: dict[str, Watch] = {}
        self._place: str | None = None

    async def listen(self) -> bool:
        """Go where news is to be had now; True when that is another place than before."""
        place = FAST if self._fast is not None and self._fast.up else DURABLE
        if place == self._place:
            return False
        if place not in self._watches:
            tier = self._fast if self._fast is not None and place == FAST else self._durable
            self._watches[place] = await self._stack.enter_async_context(tier.watch(self._operation_id))
        self._place = place
        return True

    async def wait_changed(self, timeout_seconds: float) -> bool:
        if await self.listen() or self._place is None:
            return True
        return await self._watches[self._place].wait_changed(timeout_seconds)


class _Spreading:
    """Copies and news on their way to the fast tier, behind the caller's back.

    No caller waits for them, and nothing depends on their arrival: a copy that is lost costs a later caller a question
    to the durable store. What is under way is bounded in number and bytes; more is shed. Without a fast tier, or while
    it is down, nothing is sent.
    """

    def __init__(self, fast: FastTier | None, stats: TierStats) -> None:
        self._fast = fast
        self._stats = stats
        self._under_way: set[asyncio.Future[None]] = set()
        self._bytes = 0

    @property
    def under_way(self) -> Collection[asyncio.Future[None]]:
        return self._under_way

    def copy(self, snapshot: Snapshot, started_seconds: float) -> None:
        """A completed record; `started_seconds` as `FastTier.put` takes it."""
        if self._fast is None:
            return
        response = snapshot.record.response if snapshot.record else None
        body = response.body if response else None
        self._send(lambda fast: fast.put(snapshot, started_seconds), len(body or b""))

    def news(self, operation_id: UUID) -> None:
        """That the operation changed, without a record."""
        self._send(lambda fast: fast.announce(operation_id), 0)

    def _send(self, put: Callable[[FastTier], Awaitable[None]], size_bytes: int) -> None:
        fast = self._fast
        if fast is None or not fast.up:
            return
        if len(self._under_way) >= _SPREADING_MAX or self._bytes + size_bytes > _SPREADING_BYTES_MAX:
            self._stats.shed += 1
            return
        try:
            sent = asyncio.ensure_future(put(fast))
        except StoreError:
            self._stats.fast_failures += 1
            return
        self._bytes += size_bytes
        self._under_way.add(sent)
        sent.add_done_callback(lambda sent: self._note(sent, size_bytes))

    def _note(self, sent: asyncio.Future[None], size_bytes: int) -> None:
        self._under_way.discard(sent)
        self._bytes -= size_bytes
        if not sent.cancelled() and (error := sent.exception()) is not None:
            self._stats.fast_failures += 1
            if not isinstance(error, StoreError):
                _LOG.error("a copy was not spread because of a bug", exc_info=error)


class Steadiness:
    """Since when the durable store's clock has surely not been set ahead, as seen from one process.

    The store read its clock somewhere between question and answer, so each answer gives a lower and an upper bound of
    that clock's lead over the boot-time clock. A lower bound above the upper one of before is a step ahead. Clocks
    drift apart slowly, and by that much a lead may grow. So a step of more than `_UNSEEN_SECONDS` between two answers
    is noticed with the second of them. What was before the first is not known, and counts as a step.

    All seconds are the boot-time clock's.
    """

    __slots__ = ("_lead_max_seconds", "_noted_seconds", "_since_seconds")

    def __init__(self) -> None:
        self._lead_max_seconds = float("-inf")
        self._since_seconds = float("inf")
        self._noted_seconds = 0.0

    def note(self, store_now_us: int, started_seconds: float, ended_seconds: float) -> None:
        """The store's clock showed this at some moment of a call between these two."""
        now_seconds = store_now_us / MICROSECONDS
        drifted_seconds = self._lead_max_seconds + _DRIFT * max(0.0, ended_seconds - self._noted_seconds)
        if now_seconds - ended_seconds > drifted_seconds + _UNSEEN_SECONDS:
            self._since_seconds = ended_seconds
            drifted_seconds = float("inf")
        self._lead_max_seconds = min(drifted_seconds, now_seconds - started_seconds)
        self._noted_seconds = ended_seconds

    def steady_seconds(self, now_seconds: float) -> float:
        """For how long no step ahead was noticed; 0 before the first answer."""
        return max(0.0, now_seconds - self._since_seconds)
