"""What upkeep, operators and starting gateways ask of a store, beside what requests call (`base`).

Nothing here is on the way of a request but the recovery lease of one that asks the service itself.

Theory of operation
-------------------
*What is kept beside a record.* An audit is written in the change that it describes, once: a repeated command leaves
no second one. It is kept for 90 days (`AUDIT_KEEP_US`), and for 90 more each time its record is still there at the end
of them; so what was done to an operation can be asked for 90 days at least, also when it was erased or collected, and
audits are not kept for ever. A recovery lease (`recover`) is no part of the record, and one that a crash of the store
forgets costs a question, never an effect. Sweeps clear both away in bounded numbers, which `Swept` does not count.

*Forwarding.* What stands before a durable store changes little of this, so that it is forwarded in one place
(`Forwarding`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar
from uuid import UUID

from gateway.core.operation import MICROSECONDS, Event, Snapshot, State
from gateway.core.succession import ServedRoute
from gateway.store.base import Store

T = TypeVar("T")

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
    """What a gateway serves, as the store learns at its start.

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


class ManagedStore(Store, Protocol):
    """Each verb may raise `NotApplied` or `Indefinite`; those about one operation may raise `Unreadable`, too."""

    async def sweep(self, limit: int) -> Swept:
        """Write down what time has done (`lifecycle.written_down`) to at most `limit` records.

        One sweeper works at a time among all gateways; a pass that finds another at work does nothing. It holds no
        lock that a command waits for longer than one record's.
        """

    async def tally(self) -> Tally:
        """Count what is in doubt, settled as of now."""

    async def compare_configuration(self, serving: Serving, *, is_trial: bool = False) -> Agreement:
        """Remember what a gateway serves and that it runs, unless living keys would be lost by it (`recipes`).

        Of gateways that agree at once one is first, and the others are compared with what that one serves. Repeatable.
        A trial says what an agreement would say, and changes nothing.
        """

    async def note_running(self, gateway_id: UUID, *, is_running: bool) -> None:
        """Note that a gateway which has agreed runs now, or that it has stopped.

        One that was not seen for `recipes.RUNNING_US` counts as stopped. Repeatable.
        """

    async def count_without_route(self, service: str, operations: Collection[str]) -> dict[str, int]:
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

    async def check_memory(self, links: Collection[UUID] = ()) -> Epoch:
        """Which memory this is, with the witnesses of these links.

        A store that meets another one, or one that lacks what it acknowledged, raises `EpochChanged`, until it is
        started anew.
        """

    async def begin_epoch(self, memo: bytes, beyond_token: int) -> None:
        """Replace the memo, and let no token be drawn that is not higher than this one."""


class Forwarding(ABC):
    """What is asked here of a store, forwarded to the one behind."""

    def __init__(self, behind: ManagedStore) -> None:
        self._behind = behind

    @abstractmethod
    async def _forward(self, verb: str, call: Callable[[], Awaitable[T]]) -> T:
        """Call the store behind. A class that derives from this learns from how that ended."""

    async def sweep(self, limit: int) -> Swept:
        return await self._forward("sweep", lambda: self._behind.sweep(limit))

    async def tally(self) -> Tally:
        return await self._forward("tally", self._behind.tally)

    async def compare_configuration(self, serving: Serving, *, is_trial: bool = False) -> Agreement:
        return await self._forward(
            "compare_configuration", lambda: self._behind.compare_configuration(serving, is_trial=is_trial)
        )

    async def note_running(self, gateway_id: UUID, *, is_running: bool) -> None:
        await self._forward("note_running", lambda: self._behind.note_running(gateway_id, is_running=is_running))

    async def count_without_route(self, service: str, operations: Collection[str]) -> dict[str, int]:
        return await self._forward("count_without_route", lambda: self._behind.count_without_route(service, operations))

    async def find(self, query: Query) -> list[Snapshot]:
        return await self._forward("find", lambda: self._behind.find(query))

    async def recover(self, operation_id: UUID, token: int, lease_us: int, *, is_urgent: bool) -> RecoveryLease | None:
        return await self._forward(
            "recover", lambda: self._behind.recover(operation_id, token, lease_us, is_urgent=is_urgent)
        )

    async def put_off(self, lease: RecoveryLease, pause_us: int, finding: str) -> None:
        await self._forward("put_off", lambda: self._behind.put_off(lease, pause_us, finding))

    async def recovery(self, operation_id: UUID) -> RecoveryState | None:
        return await self._forward("recovery", lambda: self._behind.recovery(operation_id))

    async def audits(self, operation_id: UUID) -> list[AuditEntry]:
        return await self._forward("audits", lambda: self._behind.audits(operation_id))

    async def check_memory(self, links: Collection[UUID] = ()) -> Epoch:
        return await self._forward("check_memory", lambda: self._behind.check_memory(links))

    async def begin_epoch(self, memo: bytes, beyond_token: int) -> None:
        await self._forward("begin_epoch", lambda: self._behind.begin_epoch(memo, beyond_token))
