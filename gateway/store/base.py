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

*What is kept beside a record.* An audit is written in the very change that it tells of, once: a repeated command leaves
no second one. It is kept for 90 days (`AUDIT_KEEP_US`), and for 90 more each time its record is still there at the end
of them; so what was done to an operation can be asked for 90 days at least, also when it was erased or collected, and
audits are not kept for ever. A recovery lease (`recover`) is no part of the record, and one that a crash of the store
forgets costs a question, never an effect. Sweeps clear both away in bounded numbers, which `Swept` does not count.

*Cancellation.* A cancelled `apply` may or may not have taken effect, like an `Indefinite` one, and disturbs no other
caller. If it had found a record already, and was only fetching the answer of that, its `CancelledError` carries
`KNOWN`: whoever cancelled it then knows as much as `Withheld` says.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol
from uuid import UUID

from gateway.core.operation import MICROSECONDS, Command, Event, Result, Snapshot, State
from gateway.core.succession import ServedRoute

# What was done by hand or by probe is kept so long after it was done, and on from there while there is a record.
AUDIT_KEEP_US: Final = 90 * 86_400 * MICROSECONDS
# The witness of a link that raised nothing for so long may be removed; it is no earlier than that.
WITNESS_KEEP_US: Final = 90 * 86_400 * MICROSECONDS
# How many of them are shown of one operation.
AUDITS_MAX: Final = 200
# How long after a probe of an operation nobody asks again, not even for somebody who waits.
PROBE_FLOOR_US: Final = MICROSECONDS
# While more claims than this wait for a sweep, a lapse among them may be found only after it.
UNSWEPT_CLAIMS_MAX: Final = 20_000
# How many of those that lapsed a sweep names.
LAPSES_NAMED_MAX: Final = 100

# What a cancelled `apply` says when it had found a record.
KNOWN: Final = "the key is known"


boot_seconds: Final[Callable[[], float]] = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
"""Seconds since boot, suspended time included: it never jumps, as the wall clock does, and never stops."""


def wall_clock_us() -> int:
    """The host's clock, which all of its processes share and which a restart does not reset. It may jump."""
    return time.time_ns() // 1_000


class StoreError(Exception):
    """What a store says when it cannot do as asked.

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


class Withheld(StoreError):
    """This key has a record, which cannot be shown: a newer program wrote it, the answer under it cannot be had now, or
    somebody else may be about to claim it. Definitely nothing was changed.

    The store is there, and it is the key that may not be free: whoever wants to execute must not.
    """


class Rejected(StoreError):
    """This command can never be stored as it is; nothing was changed, and repeating it is useless."""


class StartRefused(StoreError):
    """The store must not be used as it is (newer schema, unsafe durability); the text says what to do."""


@dataclass(frozen=True, slots=True)
class Swept:
    """What one bounded pass of a sweep wrote down, as numbers of records; `more` when the bound was reached.

    `named` are route and operation id of those that lapsed, of `LAPSES_NAMED_MAX` at most.
    """

    lapsed: int = 0
    retired: int = 0
    collected: int = 0
    more: bool = False
    named: tuple[tuple[str, UUID], ...] = field(default=(), compare=False)

    def __add__(self, later: Swept) -> Swept:
        """What both did; whether there is more is for the later one to say."""
        return Swept(
            self.lapsed + later.lapsed,
            self.retired + later.retired,
            self.collected + later.collected,
            later.more,
            (self.named + later.named)[:LAPSES_NAMED_MAX],
        )


@dataclass(frozen=True, slots=True)
class Tally:
    """What an operator needs at a glance: operations in doubt by route name, and the oldest one's age."""

    in_doubt: Mapping[str, int] = field(default_factory=dict)
    oldest_in_doubt_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Serving:
    """What a gateway serves, as it tells the store at its start.

    `recipes` say by operation name how identities are made; `routes` are in routing order; `accepted` are the
    operation names whose routes accept that keys are lost. `gateway_id` is of one process.
    """

    gateway_id: UUID
    service: str
    recipes: Mapping[str, bytes]
    routes: tuple[ServedRoute, ...] = ()
    accepted: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Living:
    """How many keys of an operation name are remembered, and until when (microseconds of the store's clock).

    `until_us` is None where one of them is claimed or in doubt: that one is kept until it is resolved.
    """

    keys: int = 0
    until_us: int | None = 0


@dataclass(frozen=True, slots=True)
class RecipeConflict:
    """An operation whose keys a configuration would not find any more.

    `heirs` are the operation names of the new configuration that its requests lead to; empty where it has its requests,
    and its identities are made in another way. `is_served` says that another running gateway serves it.
    """

    service: str
    operation: str
    living: Living
    heirs: tuple[str, ...] = ()
    is_served: bool = False


@dataclass(frozen=True, slots=True)
class Neighbour:
    """An operation of another service that runs, with requests that this service has under `heirs`: two services, not
    one under two names."""

    service: str
    operation: str
    heirs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Agreement:
    """What became of an agreement on identities: with any conflict nothing was remembered."""

    conflicts: tuple[RecipeConflict, ...] = ()
    neighbours: tuple[Neighbour, ...] = ()


@dataclass(frozen=True, slots=True)
class Query:
    """Which records to find: in these states, of these routes (None: all), claimed first at least `age_us` ago.

    With `recoverable` only those in doubt whose recovery nobody holds and whose pause is over. `after` is the operation
    id of the last one of the page before; at most `limit` are found, in the order of operation ids. Fewer than that is
    all there were.
    """

    states: frozenset[State]
    routes: frozenset[str] | None = None
    age_us: int = 0
    recoverable: bool = False
    after: UUID | None = None
    limit: int = 100


@dataclass(frozen=True, slots=True)
class RecoveryLease:
    """The right to find out what became of an operation in doubt, for one prober at a time.

    It is no state: record and token stay as they are, and a late answer of the holder may still win. `tries` counts
    those before this one in the same doubt, and `background_tries` of them those that were not urgent; a takeover
    begins another doubt.
    """

    operation_id: UUID
    token: int
    tries: int
    background_tries: int = 0


@dataclass(frozen=True, slots=True)
class RecoveryState:
    """What is kept of the probes of an operation in doubt under this token; under another it means nothing.

    `tries` counts the leases. Until `held_until_us` somebody asks; before `put_off_until_us` nobody does in the
    background. `asked_us` is when the last one came to its end, 0 before the first, and `finding` what it came to.
    """

    token: int
    tries: int
    held_until_us: int
    put_off_until_us: int
    asked_us: int
    finding: str


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """What was done to an operation, when (microseconds of the store's clock), by whom and why."""

    at_us: int
    event: Event
    token: int
    who: str
    why: str


@dataclass(frozen=True, slots=True)
class Epoch:
    """Which memory a store has, as of `now_us` of its clock.

    `identity` names it: it is another one after a failover or in a copy, and `token`, the last one drawn, is lower in
    an older state of the same. `memo` is what gateways wrote down about memories that were lost, empty if nothing.
    `generation` is another one after each purge and erasure, as of their own change; empty before the first.
    `witnesses` are the numbers of those links that were asked for, as far as the store has them.
    """

    identity: str
    token: int
    now_us: int
    memo: bytes
    generation: str = ""
    witnesses: Mapping[UUID, int] = field(default_factory=dict)


class Watch(Protocol):
    """A place to wait for news of one operation."""

    async def wait_changed(self, timeout_seconds: float) -> bool:
        """Return True on news since the watch was opened or last waited on, False after the timeout.

        News is a hint, never a fact: read the record. It may be missed, so the timeout is what polling falls back to.
        """


class Store(Protocol):
    """Every verb may raise `NotApplied` or `Indefinite`. Those about one operation may raise `Withheld`, too, and a
    claim and `read` also `Amnesic`. What else a verb raises is said with it."""

    async def start(self) -> None:
        """Connect, bring the schema up to date, and verify that commits are durable. Raises `StartRefused`.

        An unreachable store raises `NotApplied`; `start` may then be called again. Verbs before it raise `NotApplied`.
        """

    async def close(self) -> None:
        """Give everything back. No verb is under way or follows."""

    async def apply(self, command: Command) -> Result:
        """Execute one command by its row. May raise `Rejected`."""

    async def read(self, operation_id: UUID) -> Snapshot:
        """The settled record as the durable truth has it, response body included."""

    async def sweep(self, limit: int) -> Swept:
        """Write down what time has done (`lifecycle.written_down`) to at most `limit` records.

        One sweeper works at a time among all gateways; a pass that finds another at work does nothing. It holds no
        lock that a command waits for longer than one record's.
        """

    async def tally(self) -> Tally:
        """Count what is in doubt, settled as of now."""

    async def agree_recipes(self, serving: Serving, *, is_trial: bool = False) -> Agreement:
        """Remember what a gateway serves and that it runs, unless living keys would be lost by it (`recipes`).

        Of gateways that agree at once one is first, and the others are compared with what that one serves. Repeatable.
        A trial says what an agreement would say, and changes nothing.
        """

    async def note_running(self, gateway_id: UUID, *, is_running: bool) -> None:
        """Note that a gateway which has agreed runs now, or that it has stopped.

        One that is not heard of for `recipes.RUNNING_US` counts as stopped. Repeatable.
        """

    async def strays(self, service: str, operations: Collection[str]) -> dict[str, int]:
        """The living keys of the service's operation names that recipes are remembered of, but for these `operations`.

        Names without living keys are left out. Where there is such a name it goes through all records.
        """

    async def find(self, query: Query) -> list[Snapshot]:
        """The settled records that fit, without the bodies of their responses. Not for the way of a request.

        It is no snapshot of the whole: what changes meanwhile is found as it was or as it is. A record that only a
        newer program can read is left out; one of which that is true of the answer alone is not. A lapse that no sweep
        has come to yet is found too; a store may leave it for after the sweep while more than `UNSWEPT_CLAIMS_MAX`
        claims wait for that.
        """

    async def recover(self, operation_id: UUID, token: int, lease_us: int, *, is_urgent: bool) -> RecoveryLease | None:
        """Take the recovery lease of a record that is in doubt under this token, for `lease_us`.

        None when it is not in doubt under it, when somebody holds the lease, when the last one was given back less than
        `PROBE_FLOOR_US` ago, or when it was put off until later and nobody waits (`is_urgent`). A lease that is not
        given back ends by itself; so does one whose answer was lost, which nobody holds and a repeated call does not
        get.
        """

    async def put_off(self, lease: RecoveryLease, pause_us: int, finding: str) -> None:
        """Give the lease back with what was found; unless it is urgent nobody gets it for `pause_us`.

        Repeatable. Once somebody else had the lease it does nothing.
        """

    async def recovery(self, operation_id: UUID) -> RecoveryState | None:
        """What is kept of the probes of an operation; None where there was none, or its doubt is over for long."""

    async def audits(self, operation_id: UUID) -> list[AuditEntry]:
        """What was done to an operation with an `audit`, the latest `AUDITS_MAX`, oldest first."""

    async def look_epoch(self, links: Collection[UUID] = ()) -> Epoch:
        """Which memory this is, with the witnesses of these links.

        A store that meets another one, or one that lacks what it acknowledged, raises `EpochChanged`, until it is
        started anew.
        """

    async def begin_epoch(self, memo: bytes, beyond_token: int) -> None:
        """Replace the memo, and let no token be drawn that is not higher than this one."""

    def watch(self, operation_id: UUID) -> AbstractAsyncContextManager[Watch]:
        """Wait for changes of one operation, made by this or another gateway.

        Raises nothing: at worst there is no news.
        """


class FastTier(Protocol):
    """A memory that may answer and never grants. It can lose anything at any moment; each verb may raise `StoreError`.

    Callers treat every error as "not found" or "not done"; nothing here is needed for correctness. What is told in
    passing (`put`, `announce`), or asked (`get`), may be refused before there is anything to wait for.
    """

    @property
    def up(self) -> bool:
        """Whether verbs are worth calling: what was last heard of the tier was good. While False they fail at once."""

    def on_change(self, listener: Callable[[bool, str], None]) -> None:
        """Tell `listener` each time `up` changes, or another cause is found for its being False, with that cause.

        It begins as False, for no cause.
        """

    @property
    def has_forgotten(self) -> bool:
        """Whether no copy is left there from before a purge that this process knows of."""

    def on_purge(self, listener: Callable[[UUID], None]) -> None:
        """Tell `listener` what was purged, by this gateway or another, as far as the news arrives."""

    def bind(self, identity: str, generation: str | None = None) -> None:
        """Keep the copies of this durable store from now on, and answer from none that was made under another
        `generation` than this one (`Epoch`; None: not known). Before the first time it is not `up`."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def get(self, operation_id: UUID) -> Awaitable[Snapshot | None]:
        """A completed record whose replay window is open, or None."""

    def put(self, snapshot: Snapshot, started_seconds: float) -> Awaitable[None]:
        """Keep an acknowledged completed record until its replay window ends, and wake whoever waits for it.

        `started_seconds` is `boot_seconds()` from before the store call that gave the snapshot: the window is counted
        from there. Refused silently when anything was purged since then.
        """

    async def forget(self, operation_id: UUID) -> None:
        """The operation was purged: answer from no copy, of whatever operation, that was read before now.

        Where the tier could not be told, it answers nothing here until it was.
        """

    def announce(self, operation_id: UUID) -> Awaitable[None]:
        """Wake whoever waits for this operation."""

    def watch(self, operation_id: UUID) -> AbstractAsyncContextManager[Watch]: ...
