"""The contract of a store: what is remembered, said once for every backend.

A store keeps one record per operation id and changes it only by the rows of `core.lifecycle.TABLE`. It knows nothing of
HTTP, routes or policy, and it decides nothing: a command finds its row or it is `Fenced`.

Theory of operation
-------------------
*Atomic.* Each command is one atomic change, or none, and durable when `apply` returns. Commands on one operation are
serialised by the store, wherever they come from; a token is drawn only after the record is locked, so tokens increase.

*Witnesses.* Every change that a command makes raises, in its own transaction, the number of the link that it came over,
the link's witness. Where the store was given files to note them in, the number is noted before `apply` returns
`Applied`, also where the command was recognised as one that took effect before (`epoch` says what that proves).

*The store's clock rules.* Leases and windows are set and judged by the store's clock. What it answers carries its own
`now_us`; a caller measures what has passed since on its boot-time clock, from the *start* of the call, and never
compares a store's time with a clock of its own. When the store's clock was set back, the next sweep sees to it that no
claim is leased for longer than `LEASE_US_MAX` from then.

*Indefinite is ordinary.* An answer can be lost after the command took effect. `Indefinite` says so; the way to know is
to apply *the same command* again, with the same attempt id: it is recognised. `NotApplied` says that nothing was
changed.

*Cancellation.* A cancelled `apply` may or may not have taken effect, like an `Indefinite` one, and disturbs no other
caller. If it had found a record already, and was only fetching the answer of that, its `CancelledError` carries
`KNOWN`: the caller then knows as much as `Unreadable` says.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final, Protocol
from uuid import UUID

from gateway.core.operation import Command, Result, Snapshot

# What a cancelled `apply` says when it had found a record.
KNOWN: Final = "the key is known"


boot_seconds: Final[Callable[[], float]] = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
"""Seconds since boot, suspended time included: it never jumps, as the wall clock does, and never stops."""


def wall_clock_us() -> int:
    """The host's clock, which all of its processes share and which a restart does not reset. It may jump."""
    return time.time_ns() // 1_000


class StoreError(Exception):
    """A store cannot do what it was asked to.

    The text is for the operator and holds no key, body or credential.
    """


class NotApplied(StoreError):
    """The store could not be asked: definitely nothing was changed. The same command may be applied again."""


class Indefinite(StoreError):
    """No answer came: the command may have taken effect. Apply the same command again to know."""


class EpochChanged(NotApplied):
    """Behind the connection is another memory than before: a failover, a restore. Start the store anew to use it."""


class Amnesic(StoreError):
    """The store lost its memory, and has of this key nothing, or only a release from before the loss. Whether the key
    was used since is not known. Nothing was changed."""


class Unreadable(StoreError):
    """This key has a record, which cannot be shown: a newer program wrote it, the answer under it cannot be had now, or
    somebody else may be about to claim it. Definitely nothing was changed.

    The store is there, and it is the key that may not be free: a caller who wants to execute must not.
    """


class Unstorable(StoreError):
    """This command can never be stored as it is; nothing was changed, and repeating it is useless."""


class StartRefused(StoreError):
    """The store must not be used as it is (newer schema, unsafe durability); the text says what to do."""


class Watch(Protocol):
    """A place to wait for news of one operation."""

    async def wait_changed(self, timeout_seconds: float) -> bool:
        """Return True on news since the watch was opened or last waited on, False after the timeout.

        News is a hint, never a fact: read the record. It may be missed, so the timeout is what polling falls back to.
        """


class Store(Protocol):
    """What requests call. Each verb may raise `NotApplied`, `Indefinite` or `Unreadable`, and a claim and `read` also
    `Amnesic`. What else a verb raises is said with it. `operations.ManagedStore` has the rest."""

    async def start(self) -> None:
        """Connect, bring the schema up to date, and verify that commits are durable. Raises `StartRefused`.

        An unreachable store raises `NotApplied`; `start` may then be called again. Verbs before it raise `NotApplied`.
        """

    async def close(self) -> None:
        """Give everything back. No verb is under way or follows."""

    async def apply(self, command: Command) -> Result:
        """Execute one command by its row. May raise `Unstorable`."""

    async def read(self, operation_id: UUID) -> Snapshot:
        """The settled record as the durable truth has it, response body included."""

    def watch(self, operation_id: UUID) -> AbstractAsyncContextManager[Watch]:
        """Wait for changes of one operation, made by this or another gateway.

        Raises nothing: at worst there is no news.
        """


class FastTier(Protocol):
    """A memory that may answer and never grants. It can lose anything at any moment; each verb may raise `StoreError`.

    Callers treat every error as "not found" or "not done"; nothing here is needed for correctness. `get`, `put` and
    `announce` may be refused before there is anything to wait for.
    """

    @property
    def up(self) -> bool:
        """Whether verbs are worth calling: its server was there at the last call. While False they fail at once."""

    def on_change(self, listener: Callable[[bool, str], None]) -> None:
        """Call `listener` each time `up` changes, or another cause is found for its being False, with that cause.

        It begins as False, for no cause.
        """

    @property
    def has_forgotten(self) -> bool:
        """Whether no copy is left there from before a purge that this process knows of."""

    def on_purge(self, listener: Callable[[UUID], None]) -> None:
        """Call `listener` with what was purged, by this gateway or another, as far as the news arrives."""

    def bind(self, identity: str, generation: str | None = None) -> None:
        """Keep the copies of this durable store from now on, and answer from none that was made under another
        `generation` than this one (`Epoch`; None: not known). Before the first time it is not `up`."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def get(self, operation_id: UUID) -> Awaitable[Snapshot | None]:
        """A completed record whose replay window is open, or None."""

    def put(self, snapshot: Snapshot, started_seconds: float) -> Awaitable[None]:
        """Keep an acknowledged completed record until its replay window ends, and wake all who wait for it.

        `started_seconds` is `boot_seconds()` from before the store call that gave the snapshot: the window is counted
        from there. Refused silently when anything was purged since then.
        """

    async def forget(self, operation_id: UUID) -> None:
        """The operation was purged: answer from no copy, of whatever operation, that was read before now.

        Where that could not be reported to the server, the tier answers nothing here until it was.
        """

    def announce(self, operation_id: UUID) -> Awaitable[None]:
        """Wake all who wait for this operation."""

    def watch(self, operation_id: UUID) -> AbstractAsyncContextManager[Watch]: ...
