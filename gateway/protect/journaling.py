"""What this process has answered and the durable store has not taken: kept in the journal, and remembered here.

Owns the list of such operations, so that a duplicate that comes here gets the answer that the first caller got. It
holds no answer in memory: that is in the journal, and read again when somebody asks. Its invariant: an operation is on
the list from before its answer is on the disk until the durable store has taken or refused it. It leaves the list
earlier where its window may be over: the store may have taken the answer when it was first told, although we did not
hear so, and the window counts from then.

Only answers are listed, because they are final. That an attempt had no effect, or that nobody knows, may be in the
durable store although we did not hear so; then somebody else can have gone on with the operation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from gateway.core.lifecycle import no_token, step
from gateway.core.operation import EVENT_OF, Applied, Complete, OutcomeCommand, Record, Snapshot, microseconds
from gateway.observe.facts import Events, JournalFailed, OutcomeJournaled
from gateway.store.base import Indefinite, StoreError, boot_seconds
from gateway.store.journal import EntryId, Journal

# A disk that takes longer is no help to somebody who waits.
_APPEND_SECONDS: Final = 3.0


@dataclass(slots=True)
class _Kept:
    """An operation with an answer in the journal; without `entry_id` it is being written."""

    record: Record
    said_seconds: float
    entry_id: EntryId | None = None


class Journaling:
    """The journal as attempts see it."""

    def __init__(self, journal: Journal, events: Events, *, clock: Callable[[], float] = boot_seconds) -> None:
        self._journal = journal
        self._events = events
        self._clock = clock
        self._kept: dict[UUID, _Kept] = {}
        self._is_failing = False

    async def keep(
        self,
        record: Record,
        command: OutcomeCommand,
        *,
        detail: str,
        upstream_seconds: float | None = None,
        said_seconds: float | None = None,
    ) -> Snapshot:
        """Bring the outcome of a claim onto the disk; returns the record as it will be. `record` is the claim's.

        `said_seconds` is when the durable store was first told, on the boot-time clock; now, if left out. Raises
        `StoreError`: then nothing may be told as known. Keeping it again is harmless.
        """
        operation_id, anticipated = record.identity.operation_id, _anticipated(record, command)
        # Before it is written, for it may be flushed before we hear that it was.
        kept = _Kept(record, self._clock() if said_seconds is None else said_seconds)
        if isinstance(command, Complete):
            self._kept[operation_id] = kept
        try:
            async with asyncio.timeout(_APPEND_SECONDS):
                kept.entry_id = await self._journal.append(record.identity.route, command)
        except BaseException as error:
            self._forget(operation_id, kept)
            if isinstance(error, TimeoutError):
                error = Indefinite("the journal did not answer in time")
            if isinstance(error, StoreError):
                self._events.publish(JournalFailed(str(error), is_first=not self._is_failing))
                self._is_failing = True
            raise error
        self._is_failing = False
        self._events.publish(
            OutcomeJournaled(
                record.identity.route,
                operation_id,
                record.token,
                EVENT_OF[type(command)],
                detail,
                upstream_seconds,
            )
        )
        return anticipated

    def holds(self, operation_id: UUID) -> bool:
        """Whether an answer to this operation is in the journal."""
        # Mostly nothing is, and an id is hashed by a function of Python.
        return bool(self._kept) and operation_id in self._kept

    async def find(self, operation_id: UUID) -> Snapshot | None:
        """The record as it will be, or None when the durable store knows more than the journal. Raises `StoreError`."""
        kept = self._kept.get(operation_id)
        if kept is None or kept.entry_id is None:
            return None
        command = await self._journal.read(kept.entry_id)
        if command is None or self._may_be_over(kept, command):
            self._forget(operation_id, kept)
            return None
        return _anticipated(kept.record, command)

    def flushed(self, operation_id: UUID, token: int) -> None:
        """The durable store has taken, or refused, the outcome of this claim: from now on it is asked again."""
        kept = self._kept.get(operation_id)
        if kept is not None and kept.record.token == token:
            del self._kept[operation_id]

    def _may_be_over(self, kept: _Kept, command: OutcomeCommand) -> bool:
        """Whether the store, if it took the answer without our hearing so, may have let it go since."""
        passed_us = microseconds(self._clock() - kept.said_seconds)
        return isinstance(command, Complete) and passed_us >= command.replay_us

    def _forget(self, operation_id: UUID, kept: _Kept) -> None:
        if self._kept.get(operation_id) is kept:
            del self._kept[operation_id]


def _anticipated(record: Record, command: OutcomeCommand) -> Snapshot:
    """What the table makes of the claim and its outcome. Until when it is replayed is not known yet."""
    result, _ = step(record, command, record.claimed_us, no_token)
    if not isinstance(result, Applied) or result.snapshot.record is None:
        raise ValueError(f"{EVENT_OF[type(command)]} does not end this claim")
    return replace(result.snapshot, record=replace(result.snapshot.record, replay_until_us=0))
