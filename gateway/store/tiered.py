"""A durable store with copies in front of it: the process cache, then the fast tier. Itself a `Store`.

Every copy that it serves was acknowledged by the durable store, is within its replay window, and is at most
`cache_max_age_seconds` past a purge that the copy missed.

Theory of operation
-------------------
*What a copy may serve.* A claim or an acceptance on a completed record is always `Fenced` with that record: the table
has no such row, and completion is final. A copy serves that case only; every other command, and every `read`, goes to
the durable store. `recall` and `look_up` return a copy before there is a claim to make: most repeats need none.

*What becomes a copy.* Any completed record that the durable store returned. Its window counts from before the call. An
operation in flight has no copy, nor has an `Indefinite` completion. A copy goes to the fast tier in the background, and
wakes waiters on other gateways.

*Purges.* After a purge, whatever its outcome, the process drops its copy and the fast tier forgets all of its copies.
If a gateway dies before that, or cannot reach the fast tier, the next gateway that learns of the purge does it: all
compare `Epoch.generation` of the durable store with every exchange of notes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, ParamSpec, TypeVar
from uuid import UUID

from gateway.core import immutable
from gateway.core.operation import (
    MICROSECONDS,
    Applied,
    Command,
    Erase,
    Purge,
    Result,
    Snapshot,
    State,
    operation_id_of,
)
from gateway.store.base import (
    WORK,
    FastTier,
    Indefinite,
    NotApplied,
    OnPurge,
    Store,
    StoreError,
    Watch,
    boot_seconds,
    end_tasks,
)
from gateway.store.sealed import DURABLE, Copies, SealedStore, passing

# -- cache -------------------------------------------------------------------------------------------------------------
#
# Only acknowledged, completed records get in. Such a record changes only when its window ends, which every hit checks,
# or when it is purged. A purge reaches the cache as a `drop`, or else takes effect when the entry is `age_seconds_max`
# old. All times are boot-time seconds that the caller passes. Ages count from the start of the store call that returned
# the record, so that a slow call does not make an old record look young.

# The overhead of a record's objects in CPython, beside the bytes that they hold, and that of each header. The first
# replay adds its reply (`Record.replay`), which has the headers once more.
_RECORD_BYTES: Final = 2_050
_HEADER_BYTES: Final = 150

# One entry may take this part of the budget: a single huge response must not push out everything else.
_ENTRY_SHARE: Final = 16


@immutable
class _Entry:
    """`until_seconds`: its record may be returned until then, by its age and its replay window."""

    snapshot: Snapshot
    started_seconds: float
    until_seconds: float
    size_bytes: int
    token: int


class ProcessCache:
    """The completed records that this process remembers, so that a frequent replay costs no call of a store.

    Bounded in bytes, least recently used first out; every verb is O(1).
    """

    def __init__(
        self, bytes_max: int, age_seconds_max: float, on_new: Callable[[Snapshot, float], None] | None = None
    ) -> None:
        """A cache of 0 bytes, or of age 0, keeps nothing. `on_new` gets what `put` gets of a completed
        record of which no copy was here."""
        self._bytes_max = bytes_max
        self._entry_bytes_max = bytes_max // _ENTRY_SHARE
        self._age_seconds_max = age_seconds_max
        self._on_new = on_new
        self.entries: Final[OrderedDict[int, _Entry]] = OrderedDict()
        """By the integer of the operation id, because UUID hashes in Python code. What is in it may be over."""
        self._bytes = 0
        self._dropped_seconds = float("-inf")

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def size_bytes(self) -> int:
        """An estimate of what the entries occupy."""
        return self._bytes

    def get(self, operation_id: UUID, now_seconds: float) -> Snapshot | None:
        """The record as of now, or None."""
        number = operation_id.int
        entry = self.entries.get(number)
        if entry is None:
            return None
        if now_seconds >= entry.until_seconds:
            self._remove(number)
            return None
        self.entries.move_to_end(number)
        snapshot, elapsed_seconds = entry.snapshot, now_seconds - entry.started_seconds
        return Snapshot(snapshot.record, snapshot.now_us + int(elapsed_seconds * MICROSECONDS))

    def put(self, snapshot: Snapshot, started_seconds: float, *, is_copy: bool = False) -> None:
        """Keep a completed record from a store call that began at `started_seconds`; ignore any other. One that
        `is_copy` is news to nobody. Also ignored when that call began before the last drop, of any operation: it may
        have read what was dropped, and single drops need not be remembered."""
        record = snapshot.record
        if record is None or record.state is not State.COMPLETED:
            return
        number = record.identity.operation_id.int
        known = self.entries.get(number)
        if (
            self._on_new is not None
            and not is_copy
            and (
                known is None
                or started_seconds - known.started_seconds >= self._age_seconds_max
                or known.token != record.token
            )
        ):
            self._on_new(snapshot, started_seconds)
        if not self._age_seconds_max or started_seconds <= self._dropped_seconds:
            return
        if known is not None and known.started_seconds >= started_seconds:
            return
        size_bytes, response = _RECORD_BYTES, record.response
        if response is not None:
            size_bytes += _HEADER_BYTES * len(response.headers) + len(response.body or b"")
            for name, value in response.headers:
                size_bytes += 2 * (len(name) + len(value))
        if size_bytes > self._entry_bytes_max:
            return
        if known is not None:
            self._remove(number)
        if record.sealed is not None:
            # Nothing is written from here, so only the clear record is needed.
            snapshot = Snapshot(replace(record, sealed=None), snapshot.now_us)
        # Counted from the start of the call, so that it ends no later than by the store's clock.
        window_seconds = (record.replay_until_us - snapshot.now_us) / MICROSECONDS
        until_seconds = started_seconds + min(self._age_seconds_max, window_seconds)
        self.entries[number] = _Entry(snapshot, started_seconds, until_seconds, size_bytes, record.token)
        self._bytes += size_bytes
        while self._bytes > self._bytes_max:
            self._bytes -= self.entries.popitem(last=False)[1].size_bytes

    def drop(self, operation_id: UUID, now_seconds: float) -> None:
        """Forget the record, and refuse what was read before now."""
        self._dropped_seconds = max(self._dropped_seconds, now_seconds)
        self._remove(operation_id.int)

    def _remove(self, number: int) -> None:
        entry = self.entries.pop(number, None)
        if entry is not None:
            self._bytes -= entry.size_bytes


# -- tiered ------------------------------------------------------------------------------------------------------------

P = ParamSpec("P")
T = TypeVar("T")

FAST: Final = "fast"

# Constants, because a union inside `isinstance` is built on every call.
_PURGING: Final = (Purge, Erase)
_GONE: Final = (State.TOMBSTONE, State.ABSENT)

# How long `close` waits for copies that are still being sent.
_DRAIN_SECONDS: Final = 3.0

# How much may be under way to the fast tier; more is shed.
_SENDING_MAX: Final = 1_000
_SENDING_BYTES_MAX: Final = 32 * 1024 * 1024

_LOG = logging.getLogger("gateway")


@dataclass(slots=True)
class TierStats:
    """Counts since the start, for metrics. `shed`: copies and news dropped for lack of room."""

    cache_hits: int = 0
    fast_hits: int = 0
    fast_misses: int = 0
    fast_failures: int = 0
    shed: int = 0


class Tiered(Copies):
    """Satisfies the `Store` protocol of `base`. Owns both tiers: starts and closes them."""

    def __init__(
        self,
        durable: Store,
        fast: FastTier | None,
        *,
        cache_bytes: int,
        cache_max_age_seconds: float,
        clock: Callable[[], float] = boot_seconds,
        on_tier: Callable[[str, bool, str], None] | None = None,
        on_purge: OnPurge | None = None,
    ) -> None:
        """`on_tier` gets the name of a tier, whether it is up, and the cause if not, each time one of these changes. A
        tier is down at first, with an empty cause. `on_purge` is that of the durable store, where it tells of purges.
        """
        super().__init__()
        self.stats = TierStats()
        self._behind = durable
        gate = durable if isinstance(durable, SealedStore) else SealedStore(durable)
        gate.copy_to(self, clock)
        self.apply = gate.apply
        self.cold = passing(durable.cold, self._forward, take_turns=self._take_turns, announce_work=self._announce_work)
        self._fast = fast
        self._outbox = _Outbox(fast, self.stats)
        self._cache = ProcessCache(cache_bytes, cache_max_age_seconds, None if fast is None else self._outbox.send_copy)
        self.keep = self._cache.put
        # Looked into before the cache is asked: mostly there is nothing.
        self.cached = self._cache.entries
        self._clock = clock
        self._on_tier = on_tier
        self.durable_up = False
        """Whether the last call of the durable store succeeded, and so did its last write."""
        self._refuses_writes = False
        self._why_durable_down = ""
        self._durable_up_since_seconds = 0.0
        self._purges_unreported = 0
        for tell in (on_purge, None if fast is None else fast.on_purge):
            if tell is not None:
                tell(lambda operation_id: self._cache.drop(operation_id, clock()))
        if fast is not None:
            fast.on_change(lambda up, why: self._report(FAST, up, why))

    @property
    def durable_reachable_seconds(self) -> float:
        """For how long every call of the durable store has succeeded; 0 while it is down.

        A step of its clock counts as an outage: a forward one ends leases and grace periods before their time.
        """
        if not self.durable_up:
            return 0.0
        now_seconds = self._clock()
        return min(now_seconds - self._durable_up_since_seconds, self.steadiness.steady_seconds(now_seconds))

    @property
    def purges_pending(self) -> int:
        """Purges by this process that could not be reported to the fast tier yet."""
        if self._fast is None or self._fast.has_forgotten:
            self._purges_unreported = 0
        return self._purges_unreported

    async def start(self) -> None:
        """Start the fast tier first. It stays up while the durable store is unreachable, to serve copies."""
        if self._fast is not None:
            await self._fast.start()
        try:
            await self._forward(self._behind.start)
        except (NotApplied, Indefinite):
            raise
        except BaseException:
            if self._fast is not None:
                await self._fast.close()
            raise
        # It wrote what this gateway serves.
        self._set_durable_up(is_write=True)

    async def close(self) -> None:
        try:
            if self._fast is not None:
                await self._outbox.drain(_DRAIN_SECONDS if self._fast.up else 0)
                await self._fast.close()
        finally:
            await self._behind.close()

    def recall(self, operation_id: UUID) -> Snapshot | None:
        """The completed record that a claim's `Fenced` result would carry, if the process cache has it."""
        copy = self._cache.get(operation_id, self._clock())
        if copy is not None:
            self.stats.cache_hits += 1
        return copy

    def look_up(self, operation_id: UUID) -> asyncio.Future[Snapshot | None] | None:
        """Look up a completed record in the fast tier; the future may raise `StoreError`. None if the tier is down."""
        fast = self._fast
        if fast is None or not fast.up:
            return None
        started_seconds = self._clock()
        try:
            lookup = asyncio.ensure_future(fast.get(operation_id))
        except StoreError:
            self.stats.fast_failures += 1
            return None
        lookup.add_done_callback(partial(self._count_lookup, started_seconds))
        return lookup

    def _count_lookup(self, started_seconds: float, lookup: asyncio.Future[Snapshot | None]) -> None:
        if lookup.cancelled():
            return
        if lookup.exception() is not None:
            self.stats.fast_failures += 1
        elif (copy := lookup.result()) is None:
            self.stats.fast_misses += 1
        else:
            self.stats.fast_hits += 1
            self._cache.put(copy, started_seconds, is_copy=True)

    async def read(self, operation_id: UUID) -> Snapshot:
        started_seconds = self._clock()
        snapshot = await self._forward(self._behind.read, operation_id)
        self.steadiness.observe(snapshot.now_us, started_seconds, self._clock())
        self.keep(snapshot, started_seconds)
        return snapshot

    async def _take_turns(self, holder: UUID, names: Collection[str], lease_us: int) -> frozenset[str]:
        taken = await self._forward(self._behind.cold.take_turns, holder, names, lease_us)
        if taken:
            self._set_durable_up(is_write=True)
        return taken

    @asynccontextmanager
    async def watch(self, operation_id: UUID) -> AsyncIterator[Watch]:
        """News from the fast tier while it is up, from the durable store otherwise; of work from both: an operator's
        command announces it through the durable store alone, and a pooler in front of that brings no news."""
        async with AsyncExitStack() as stack:
            watch = _TieredWatch(self._behind, self._fast, operation_id, stack)
            await watch.choose()
            yield watch

    def _announce_work(self) -> None:
        self._behind.cold.announce_work()
        self._outbox.send_news(WORK)

    async def _forward(self, verb: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the durable store, and see by the outcome whether it is up."""
        try:
            result = await verb(*args, **kwargs)
        except (NotApplied, Indefinite) as error:
            self._set_durable_down(error)
            raise
        self._set_durable_up()
        return result

    # -- what the gate tells -------------------------------------------------------------------------------------------

    def observe(self, store_now_us: int, started_seconds: float, ended_seconds: float) -> None:
        """See `Copies`, also for the next two."""
        super().observe(store_now_us, started_seconds, ended_seconds)
        self._set_durable_up(is_write=True)

    async def end(self, command: Command, result: Result, started_seconds: float) -> None:
        if isinstance(command, _PURGING):
            self._forget_here(command)
            # Also if it was gone before: this may repeat a purge whose acknowledgement was lost.
            if result.snapshot.state in _GONE:
                await self._forget(command.operation_id, is_done=True)
        elif isinstance(result, Applied):
            self._outbox.send_news(operation_id_of(command))
        else:
            self.keep(result.snapshot, started_seconds)

    async def fail(self, command: Command, error: BaseException) -> None:
        if isinstance(error, NotApplied | Indefinite):
            self._set_durable_down(error, is_write=True)
        if isinstance(command, _PURGING):
            self._forget_here(command)
            if isinstance(error, StoreError):
                # The purge may have taken effect, or may yet.
                await self._forget(command.operation_id)

    def _forget_here(self, command: Purge | Erase) -> None:
        self._cache.drop(command.operation_id, self._clock())

    async def _forget(self, operation_id: UUID, *, is_done: bool = False) -> None:
        """Make the fast tier forget its copies. The generation is that of the purge only if this `is_done`."""
        if self._fast is None:
            return
        self._purges_unreported += 1
        generation: str | None = None
        if is_done:
            with suppress(StoreError):
                generation = (await self._forward(self._behind.cold.check_memory)).generation
        try:
            await self._fast.forget(operation_id, generation)
        except StoreError:
            self.stats.fast_failures += 1

    def _set_durable_up(self, *, is_write: bool = False) -> None:
        if not self.durable_up:
            if self._refuses_writes and not is_write:
                # It can be read, and takes nothing.
                return
            self._refuses_writes = False
            self.durable_up, self._why_durable_down = True, ""
            self._durable_up_since_seconds = self._clock()
            self._report(DURABLE, True, "")

    def _set_durable_down(self, error: StoreError, *, is_write: bool = False) -> None:
        if error.is_partial:
            # It is up, but not all of it has been since.
            self._durable_up_since_seconds = self._clock()
            return
        why = str(error)
        self._refuses_writes |= is_write
        if self.durable_up or why != self._why_durable_down:
            self.durable_up, self._why_durable_down = False, why
            self._report(DURABLE, False, why)

    def _report(self, tier: str, up: bool, why: str) -> None:
        if self._on_tier is not None:
            self._on_tier(tier, up, why)


class _TieredWatch:
    """Waits on the tiers that have news. Another choice of them counts as news: some may have been missed."""

    def __init__(self, durable: Store, fast: FastTier | None, operation_id: UUID, stack: AsyncExitStack) -> None:
        self._durable = durable
        self._fast = fast
        self._operation_id = operation_id
        self._stack = stack
        self._watches: dict[Store | FastTier, Watch] = {}
        self._chosen: list[Store | FastTier] = []

    async def choose(self) -> bool:
        """Watch what has news now; True if that is another choice than before."""
        before, self._chosen = self._chosen, [self._durable]
        if self._fast is not None and self._operation_id == WORK:
            self._chosen.append(self._fast)
        elif self._fast is not None and self._fast.up:
            self._chosen = [self._fast]
        for tier in self._chosen:
            if tier not in self._watches:
                self._watches[tier] = await self._stack.enter_async_context(tier.watch(self._operation_id))
        return self._chosen != before

    async def wait_changed(self, timeout_seconds: float) -> bool:
        if await self.choose():
            return True
        first, *others = (self._watches[tier].wait_changed(timeout_seconds) for tier in self._chosen)
        if not others:
            return await first
        waiting = [asyncio.ensure_future(each) for each in (first, *others)]
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            return any(task.result() for task in done)
        finally:
            await end_tasks(waiting)


class _Outbox:
    """Sends copies and news to the fast tier in the background.

    No caller waits for them: a lost copy costs a later caller one call of the durable store. What is under way is
    bounded; more is shed. Without a fast tier, or while it is down, nothing is sent.
    """

    def __init__(self, fast: FastTier | None, stats: TierStats) -> None:
        self._fast = fast
        self._stats = stats
        self.under_way: set[asyncio.Future[None]] = set()
        self._bytes = 0

    def send_copy(self, snapshot: Snapshot, started_seconds: float) -> None:
        """A completed record; `started_seconds` as `FastTier.put` takes it."""
        response = None if snapshot.record is None else snapshot.record.response
        size_bytes = 0 if response is None else len(response.body or b"")
        self._send(lambda fast: fast.put(snapshot, started_seconds), size_bytes)

    def send_news(self, operation_id: UUID) -> None:
        """Announce a change of the operation, without a record."""
        self._send(lambda fast: fast.announce(operation_id), 0)

    def _send(self, put: Callable[[FastTier], Awaitable[None]], size_bytes: int) -> None:
        fast = self._fast
        if fast is None or not fast.up:
            return
        if len(self.under_way) >= _SENDING_MAX or self._bytes + size_bytes > _SENDING_BYTES_MAX:
            self._stats.shed += 1
            return
        try:
            sending = asyncio.ensure_future(put(fast))
        except StoreError:
            self._stats.fast_failures += 1
            return
        self._bytes += size_bytes
        self.under_way.add(sending)
        sending.add_done_callback(lambda sent: self._finish(sent, size_bytes))

    async def drain(self, seconds: float) -> None:
        """Wait so long for what is being sent, then cancel the rest."""
        if self.under_way:
            _, late = await asyncio.wait(self.under_way, timeout=seconds)
            for sending in late:
                sending.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _finish(self, sent: asyncio.Future[None], size_bytes: int) -> None:
        self.under_way.discard(sent)
        self._bytes -= size_bytes
        if not sent.cancelled() and (error := sent.exception()) is not None:
            self._stats.fast_failures += 1
            if not isinstance(error, StoreError):
                _LOG.error("a copy was not sent because of a bug", exc_info=error)
