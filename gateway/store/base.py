"""The contract of a store, defined once for every backend.

A store keeps one record per operation id and changes it only by the rows of `core.lifecycle.TABLE`. It knows nothing of
HTTP, routes or policy, and it decides nothing: a command matches a row, or its result is `Fenced`.

Theory of operation
-------------------
*Atomic.* Each command is one atomic change, or none, and durable when `apply` returns. The store serialises commands on
one operation, whichever gateway sends them. It draws a token only while it holds the record's lock, so tokens increase.

*Witnesses.* A store that was given witness files writes the number of its link's witness (`memory.epoch`) to them
before `apply` returns `Applied`, also for a repeated command that it recognised.

*The store's clock rules.* It sets and judges leases and windows, and each result carries it as `now_us`. A caller
measures elapsed time on its boot-time clock, from the *start* of the call, and never compares a store's time with a
clock of its own. Where the store's clock was set back, nothing waits the longer for it: what begins in the future
begins now, or is over (`core.lifecycle`).

*Indefinite is ordinary.* An acknowledgement can be lost after the command took effect; `apply` then raises
`Indefinite`. To find out, apply *the same command* again with the same attempt id: the store recognises it.
`NotApplied` means that nothing changed.

*Cancellation.* A cancelled `apply` may or may not have taken effect, like an `Indefinite` one, and disturbs no other
caller. If it had already found a record and was only fetching the response, its `CancelledError` carries `KNOWN`: the
caller then knows as much as after `Unreadable`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import UUID

from gateway.core.operation import Command, Result, Snapshot

if TYPE_CHECKING:
    from gateway.store.operations import Cold

# The argument of the `CancelledError` of an `apply` that had found a record.
KNOWN: Final = "the key is known"


boot_seconds: Final[Callable[[], float]] = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
"""Seconds since boot, suspended time included: it never jumps, as the wall clock does, and never stops."""


def wall_clock_us() -> int:
    """The host's clock, which all of its processes share and which a restart does not reset. It may jump."""
    return time.time_ns() // 1_000


async def end_tasks(tasks: Iterable[asyncio.Task[Any] | None]) -> None:
    """Cancel these tasks, and wait until they have ended, however they end."""
    begun = [each for each in tasks if each is not None]
    for task in begun:
        task.cancel()
    await asyncio.gather(*begun, return_exceptions=True)


class StoreError(Exception):
    """A store could not execute a call. The text is for the operator and holds no key, body or credential."""

    is_partial = False
    """Whether the store serves other keys meanwhile."""


class NotApplied(StoreError):
    """The call did not reach the store: definitely nothing changed. The same command may be applied again."""


class Indefinite(StoreError):
    """The acknowledgement is missing: the command may have taken effect. Apply the same command again to find out."""


class NotGranted(NotApplied):
    """This gateway may grant nothing now, for a reason that has nothing to do with the key. The store serves what it
    has."""

    is_partial = True


class EpochChanged(NotApplied):
    """The connection leads to other data than before: a failover, a restore. Restart the store to use it."""


class Amnesic(StoreError):
    """The store lost data, and for this key it has no record, or one from before the loss by which no attempt had an
    effect. The key may have been used since. Nothing was changed."""


class Unreadable(StoreError):
    """This key has a record that cannot be returned: a newer program wrote it, its response cannot be read now, or
    another claim on the key may be under way. Definitely nothing was changed. The store is up, but the key may be
    taken: the caller must not execute."""


class Unstorable(StoreError):
    """This command can never be stored as it is. Nothing was changed; do not repeat it."""


class StartRefused(StoreError):
    """The store must not be used as it is (newer schema, unsafe durability). The text says what to do."""


WORK: Final = UUID(int=0)
"""Is watched like an operation: something may be due by itself, or is paused or resumed."""


class Watch(Protocol):
    """A place to wait for news of one operation."""

    async def wait_changed(self, timeout_seconds: float) -> bool:
        """Return True on news since the watch was opened or last waited on, False after the timeout. News is only a
        hint, and can get lost: read the record, and poll at the timeout."""


class Store(Protocol):
    """What requests call. Each verb may raise `NotApplied`, `Indefinite` or `Unreadable`; `read`, and a claim, an
    acceptance, a dispatch and a withdrawal, also `Amnesic`. Each verb documents what else it raises. Layers in front of
    a store have these verbs, and no others."""

    @property
    def cold(self) -> Cold:
        """All that no request waits for."""

    async def start(self) -> None:
        """Connect, bring the schema up to date, and verify that commits are durable. Raises `StartRefused`, and
        `NotApplied` for an unreachable store; `start` may then be called again. Before it, verbs raise `NotApplied`."""

    async def close(self) -> None:
        """Release all resources. No verb is under way, and none follows."""

    def apply(self, command: Command, /) -> Awaitable[Result]:
        """Execute one command by its row of the table. May raise `Unstorable`. Await it at once. It may raise at the
        call, too."""

    def read(self, operation_id: UUID, /) -> Awaitable[Snapshot]:
        """The settled record as durably stored, response body included. As `apply`, await it at once."""

    def watch(self, operation_id: UUID) -> AbstractAsyncContextManager[Watch]:
        """Wait for changes of one operation, made by this or another gateway. Never raises; news may be missing."""


OnPurge = Callable[[Callable[[UUID], None]], None]
"""Takes a listener, and calls it with each operation that this or another gateway purged, as far as the news
arrives."""


class FastTier(Protocol):
    """A store of copies that never grants a claim. It may lose anything at any time. Each verb may raise `StoreError`,
    `get`, `put`, `first_of` and `announce` also at the call. Callers treat every error as "not found" or "not done":
    correctness never depends on this tier."""

    @property
    def up(self) -> bool:
        """Whether the server was reachable at the last call. While False, verbs fail at once."""

    def on_change(self, listener: Callable[[bool, str], None]) -> None:
        """Call `listener` with `up` and the cause each time `up` changes, or the cause of an outage does. `up` is False
        at first, with an empty cause."""

    @property
    def has_forgotten(self) -> bool:
        """Whether all copies from before the purges that this process knows of are gone."""

    def on_purge(self, listener: Callable[[UUID], None]) -> None:
        """Call `listener` with each operation that this or another gateway purged, as far as the news arrives."""

    def bind(self, identity: str, generation: str | None = None) -> None:
        """Serve copies of this durable store from now on, and only those made under this `generation` (`Epoch`; None:
        not known). Until the first `bind` the tier is not `up`."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def get(self, operation_id: UUID) -> Awaitable[Snapshot | None]:
        """A completed record whose replay window is open, or None."""

    def put(self, snapshot: Snapshot, started_seconds: float) -> Awaitable[None]:
        """Keep an acknowledged completed record until its replay window ends, and wake all its waiters. The window
        counts from `started_seconds`, before the store call that returned the snapshot. Ignored when anything was
        purged since then."""

    def first_of(self, content: bytes, operation_id: UUID, within_ms: int) -> Awaitable[UUID | None]:
        """The operation that was named first with this content, for so long after it was; this one if none was. None
        where the server does not know."""

    async def forget(self, operation_id: UUID, generation: str | None = None) -> None:
        """The operation was purged: serve no copy, of any operation, that was read before now. `generation` is the
        durable store's since then (`Epoch`; None: not known): where it is known, no later `bind` to it ends anything.
        If the server could not be informed, the tier serves nothing to this process until it was."""

    def announce(self, operation_id: UUID) -> Awaitable[None]:
        """Wake all waiters of this operation."""

    def watch(self, operation_id: UUID) -> AbstractAsyncContextManager[Watch]: ...


# -- news inside one process -------------------------------------------------------------------------------------------
#
# News inside one process: which watches wait for which operation, and how a change wakes them.
#
# It knows operation ids only, never records. News is only a hint: it is not kept for later watches, and several changes
# between two waits count as one. Everything runs on the event loop that opened the watch.


class LocalWatch:
    """One listener. Satisfies the `Watch` protocol of `base`."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def wake(self) -> None:
        self._changed.set()

    async def wait_changed(self, timeout_seconds: float) -> bool:
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._changed.wait()
        except TimeoutError:
            return False
        self._changed.clear()
        return True


class Watchers:
    """The watches of one process, by operation. Bounded by its callers: a watch is open only while one waits."""

    def __init__(self) -> None:
        self._watches: dict[UUID, set[LocalWatch]] = {}
        self.number = 0
        """How many watches of operations are open, without those of `WORK`."""

    def __len__(self) -> int:
        return sum(map(len, self._watches.values()))

    @asynccontextmanager
    async def watch(self, operation_id: UUID) -> AsyncIterator[LocalWatch]:
        """Listen while the context is open."""
        watch = LocalWatch()
        self._watches.setdefault(operation_id, set()).add(watch)
        self.number += operation_id != WORK
        try:
            yield watch
        finally:
            self.number -= operation_id != WORK
            listeners = self._watches[operation_id]
            listeners.discard(watch)
            if not listeners:
                del self._watches[operation_id]

    def announce(self, operation_id: UUID) -> None:
        """Wake the listeners of this operation."""
        # Mostly there are none, and UUID hashes in Python code.
        if self._watches:
            for watch in self._watches.get(operation_id, ()):
                watch.wake()

    def watched(self) -> frozenset[UUID]:
        """The operations that have listeners now."""
        return frozenset(self._watches)
