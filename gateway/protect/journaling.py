"""What this host knows of operations: keeps outcomes that the durable store does not take, and finds them.

The journal keeps them as the durable store does (`core.confidential`), and passes them on to it like that.

An outcome in a journal is the last command of an attempt, and `core.lifecycle` says what it makes of the record. So the
record as it will be is known here before the durable store has it. Before anybody is told that an outcome is not known,
that an operation is still running, or that the store is away, all journals of this host are asked (`find`), and the
marks of ended processes: an attempt that they had not sent had no effect.

While the durable store can be read, its record decides whether an outcome still applies. While it cannot, only a
response is told, because it is final: a release or a doubt may be in the store although its result was lost, and then
somebody may have gone on with the operation. It is told where the note of this host says that the memory that granted
the claim is the one to come back, and for as long as its replay window cannot be over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Final
from uuid import UUID

from gateway.core.confidential import NO_SEALING, Sealing
from gateway.core.lifecycle import no_token, step
from gateway.core.operation import EVENT_OF, Abandon, Applied, Complete, OutcomeCommand, Record, Snapshot, State
from gateway.core.outcome import end_unused
from gateway.observe.facts import Events, JournalFailed, OutcomeJournaled
from gateway.store.base import Indefinite, NotApplied, Store, StoreError, wall_clock_us
from gateway.store.journal import KeptOutcome, SqliteJournal

# A slower disk does not help a caller that waits; nor does a store that says nothing.
_DISK_SECONDS: Final = 3.0
_READ_SECONDS: Final = 1.0

UNENDED: Final = (State.CLAIMED, State.IN_DOUBT)
"""The states of which the journals may know how they ended."""


@dataclass(slots=True, eq=False, repr=False)
class Journaling:
    """The journals of this host, for attempts and their repeats.

    `memory_of` returns the lineage of the durable store's memory for an operation, by the note of this host.
    `unsent_of` returns the attempts of an operation under which ended processes of this host had sent nothing.
    """

    journal: SqliteJournal
    store: Store
    events: Events
    sealing: Sealing = NO_SEALING
    _: KW_ONLY
    memory_of: Callable[[UUID], Awaitable[str]]
    unsent_of: Callable[[UUID], Awaitable[Collection[UUID]]]
    wall_us: Callable[[], int] = wall_clock_us
    is_failing: bool = field(init=False, default=False)

    async def keep(
        self, record: Record, command: OutcomeCommand, *, detail: str, upstream_seconds: float | None = None
    ) -> Snapshot:
        """Write the outcome of a claim to the disk; returns the record as it will be. `record` is the claim's.

        Raises `StoreError`: then no caller may get the outcome as known. Retrying is safe.
        """
        route, operation_id = record.identity.route, record.identity.operation_id
        after = anticipated(record, [command], record.claimed_us)
        if after is None:
            raise ValueError(f"{EVENT_OF[type(command)]} does not end this claim")
        try:
            async with asyncio.timeout(_DISK_SECONDS):
                memory = await self.memory_of(operation_id)
                await self.journal.append(route, self.sealing.sealed(command), memory)
        except (StoreError, TimeoutError) as error:
            failure = error if isinstance(error, StoreError) else Indefinite("the journal did not respond in time")
            self.events.publish(JournalFailed(str(failure), is_first=not self.is_failing))
            self.is_failing = True
            raise failure from error
        self.is_failing = False
        event = EVENT_OF[type(command)]
        self.events.publish(OutcomeJournaled(route, operation_id, record.token, event, detail, upstream_seconds))
        return after

    async def find(self, operation_id: UUID, *, is_told_next: bool = False) -> Snapshot | None:
        """The record as the outcomes in the journals of this host make it; None where they change nothing.

        `is_told_next`: otherwise a record that was read before is told. An outcome may have left the journal for the
        store since, so it is read again, and returned where it has ended. Raises `StoreError` where nobody may be told
        more than to repeat later: a journal cannot be read, or only the durable store knows whether what it has still
        applies.
        """
        try:
            async with asyncio.timeout(_DISK_SECONDS):
                kept = await self.journal.outcomes(operation_id)
                unsent = await self.unsent_of(operation_id)
        except TimeoutError as error:
            raise Indefinite("the journals did not respond in time") from error
        if not kept and not unsent and not is_told_next:
            return None
        try:
            async with asyncio.timeout(_READ_SECONDS):
                snapshot = await self.store.read(operation_id)
        except (StoreError, TimeoutError):
            return await self._find_without_store(operation_id, kept)
        if (record := snapshot.record) is None:
            return None
        commands = [self._opened(each) for each in kept]
        if record.attempt_id in unsent and record.state in UNENDED:
            commands.append(end_unused(record, 0, "interrupted"))
        after = anticipated(record, commands, snapshot.now_us)
        return snapshot if after is None and is_told_next and record.state not in UNENDED else after

    async def knows(self, operation_id: UUID) -> bool:
        """Whether the journals of this host have, or may have, an outcome that the durable store does not have yet."""
        try:
            return await self.find(operation_id) is not None
        except StoreError:
            return True

    async def _find_without_store(self, operation_id: UUID, kept: Sequence[KeptOutcome]) -> Snapshot | None:
        memory = await self.memory_of(operation_id)
        commands = [self._opened(each) for each in kept]
        for each, command in zip(reversed(kept), reversed(commands), strict=True):
            if isinstance(command, Complete) and each.claim is not None and each.memory == memory != "":
                passed_us = self.wall_us() - each.entry.journaled_us
                if each.entry.refused_us is None and 0 <= passed_us < command.replay_us:
                    return anticipated(each.claim, [command], each.claim.claimed_us)
        if any(isinstance(command, Complete | Abandon) for command in commands):
            raise NotApplied("the journal has an outcome that waits for the durable store")
        return None

    def _opened(self, outcome: KeptOutcome) -> OutcomeCommand:
        if outcome.command is None:
            raise NotApplied("the journal has an outcome that only another version of this program can read")
        return self.sealing.opened_outcome(outcome.command)


def anticipated(record: Record, commands: Sequence[OutcomeCommand], now_us: int) -> Snapshot | None:
    """The record that the table makes of this one by these commands; None where they change nothing.

    The end of its replay window is not known yet.
    """
    after: Record | None = record
    for command in commands:
        result, changed = step(after, command, now_us, no_token)
        after = changed if isinstance(result, Applied) else after
    if after is None or after == record:
        return None
    return Snapshot(replace(after, replay_until_us=0), now_us)
