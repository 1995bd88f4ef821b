"""Keeps outcomes in the journal while the durable store does not take them, and lists the completed operations.

The journal keeps them as the durable store does (`core.confidential`), and passes them on to it like that.

With the list, duplicates in this process get the response that the first caller got. It holds no responses in memory;
they are read from the journal when needed. Invariant: an operation is on the list from before its response is on the
disk until the durable store has taken or refused it. It leaves the list earlier when its replay window may be over: the
store may have taken the response at the first try although its result was lost, and the window counts from then.

Only responses are listed, because they are final. A release or a doubt may be in the durable store although its result
was lost, and then another gateway may have gone on with the operation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from gateway.core.confidential import NO_SEALING, Sealing
from gateway.core.lifecycle import no_token, step
from gateway.core.operation import EVENT_OF, Applied, Complete, OutcomeCommand, Record, Snapshot, microseconds
from gateway.observe.facts import Events, JournalFailed, OutcomeJournaled
from gateway.store.base import Indefinite, StoreError, boot_seconds
from gateway.store.journal import EntryId, Journal

# A slower disk does not help a caller that waits.
_APPEND_SECONDS: Final = 3.0


@dataclass(slots=True)
class _Kept:
    """An operation with a response in the journal. Without `entry_id` it is being written."""

    record: Record
    first_tried_seconds: float
    entry_id: EntryId | None = None


class Journaling:
    """The journal, for attempts and their duplicates."""

    def __init__(
        self,
        journal: Journal,
        events: Events,
        sealing: Sealing = NO_SEALING,
        *,
        clock: Callable[[], float] = boot_seconds,
    ) -> None:
        self._journal = journal
        self._events = events
        self._sealing = sealing
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
        first_tried_seconds: float | None = None,
    ) -> Snapshot:
        """Write the outcome of a claim to the disk; returns the record as it will be. `record` is the claim's.

        `first_tried_seconds` is when the command was first applied to the durable store, on the boot-time clock; by
        default now. Raises `StoreError`: then no caller may get the outcome as known. Retrying is safe.
        """
        operation_id, anticipated = record.identity.operation_id, _anticipated(record, command)
        # Listed before it is written: it may be flushed before `append` returns.
        kept = _Kept(record, self._clock() if first_tried_seconds is None else first_tried_seconds)
        if isinstance(command, Complete):
            self._kept[operation_id] = kept
        try:
            async with asyncio.timeout(_APPEND_SECONDS):
                kept.entry_id = await self._journal.append(record.identity.route, self._sealing.sealed(command))
        except BaseException as error:
            self._forget(operation_id, kept)
            if isinstance(error, TimeoutError):
                error = Indefinite("the journal did not respond in time")
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
        """Whether a response of this operation is in the journal."""
        # The list is mostly empty, and hashing a UUID calls a Python function.
        return bool(self._kept) and operation_id in self._kept

    async def find(self, operation_id: UUID) -> Snapshot | None:
        """The record as it will be; None when the durable store knows more than the journal. Raises `StoreError`."""
        kept = self._kept.get(operation_id)
        if kept is None or kept.entry_id is None:
            return None
        command = await self._journal.read(kept.entry_id)
        if command is None or self._may_be_over(kept, command):
            self._forget(operation_id, kept)
            return None
        return _anticipated(kept.record, self._sealing.opened_outcome(command))

    def flushed(self, operation_id: UUID, token: int) -> None:
        """The durable store has taken or refused the outcome of this claim: duplicates read the store again."""
        kept = self._kept.get(operation_id)
        if kept is not None and kept.record.token == token:
            del self._kept[operation_id]

    def _may_be_over(self, kept: _Kept, command: OutcomeCommand) -> bool:
        """Whether the replay window may be over, if the store took the response at the first try."""
        passed_us = microseconds(self._clock() - kept.first_tried_seconds)
        return isinstance(command, Complete) and passed_us >= command.replay_us

    def _forget(self, operation_id: UUID, kept: _Kept) -> None:
        if self._kept.get(operation_id) is kept:
            del self._kept[operation_id]


def _anticipated(record: Record, command: OutcomeCommand) -> Snapshot:
    """The record that the table makes of the claim and its outcome. The end of its replay window is unknown yet."""
    result, _ = step(record, command, record.claimed_us, no_token)
    if not isinstance(result, Applied) or result.snapshot.record is None:
        raise ValueError(f"{EVENT_OF[type(command)]} does not end this claim")
    return replace(result.snapshot, record=replace(result.snapshot.record, replay_until_us=0))
