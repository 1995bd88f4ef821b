"""Outcomes that the durable store has not applied yet, on this host's disk: the contract of a journal.

An outcome is the last command of an attempt (`OutcomeCommand`). What a journal has acknowledged is on the disk and
stays there until it is forgotten. A journal decides nothing: the durable store decides whether an outcome still
applies.

`journal` is a process's journal, made of files (`file`), and the view of all journals of a host, whether their
processes run or have ended: for gateways that ask what became of an operation, and for operators, who clear them, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol
from uuid import UUID

from gateway.core.operation import OutcomeCommand, Record

# The most outcomes shown of one operation: it has one per attempt that ended while the store was down.
OF_ONE_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class EntryId:
    """The place of an outcome in a journal; valid in that journal only."""

    file: str
    row: int


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """An outcome that waits for the durable store. `route` is the name of the operation's route, for messages."""

    entry_id: EntryId
    route: str
    command: OutcomeCommand


@dataclass(frozen=True, slots=True)
class KeptEntry:
    """An outcome as operators see it, without its response body. Times are microseconds of the host's clock.

    `status` and `body_bytes` are the response's, None if there is none. `refused_us` and `refused_why` are None while
    the outcome waits; a refused one is kept and not retried.
    """

    operation_id: UUID
    token: int
    event: str
    route: str
    journaled_us: int
    status: int | None
    body_bytes: int | None
    refused_us: int | None
    refused_why: str | None


@dataclass(frozen=True, slots=True)
class JournalView:
    """What the journals of a host hold, oldest first, at `now_us` of its clock.

    `strangers`: files of another service or durable store, each with its owner. `faults`: what could not be read, and
    why. `has_more`: there are more entries than the limit.
    """

    now_us: int
    entries: tuple[KeptEntry, ...] = ()
    strangers: tuple[tuple[str, str], ...] = ()
    faults: tuple[str, ...] = ()
    has_more: bool = False


@dataclass(frozen=True, slots=True)
class KeptOutcome:
    """A complete outcome. `command` is None if only another version of the program can read it, or its response cannot
    be decrypted.

    `claim` is the record of the claim that a response ends, without what is confidential in it; None for other
    outcomes. `memory` is the lineage of the durable store that granted the claim (see `store.memory.epoch`), empty
    where that is not known.
    """

    entry_id: EntryId
    entry: KeptEntry
    command: OutcomeCommand | None
    claim: Record | None = None
    memory: str = ""


class HostJournals(Protocol):
    """Lets operators read and delete single outcomes in the journals of a host, also while gateways have these open.

    Blocks. Each verb may raise `StoreError` of `base`.
    """

    @property
    def directory(self) -> Path:
        """Where the journals are."""

    def outcomes(self, operation_id: UUID) -> list[KeptOutcome]:
        """The outcomes of one operation for one service and store, oldest first."""

    def drop(self, entry_id: EntryId) -> bool:
        """Delete a refused outcome; True if this call did it. A waiting outcome stays. Repeatable."""

    def sealed(self) -> Mapping[str, int]:
        """How many outcomes are encrypted with which keys, by their ids."""

    def reseal(self) -> tuple[int, int]:
        """Encrypt what all outcomes contain with the current key; returns how many were changed, and how many could not
        be read. Repeatable, and may be interrupted."""


@dataclass(frozen=True, slots=True)
class JournalTally:
    """How much a journal, or one of its files, holds. `oldest_us`: when the oldest waiting outcome was written, by the
    host's clock; None without one."""

    waiting: int = 0
    refused: int = 0
    bytes: int = 0
    oldest_us: int | None = None

    @property
    def rows(self) -> int:
        return self.waiting + self.refused


class Journal(Protocol):
    """Each verb may raise `NotApplied` of `base`, and what else it documents.

    Writing an outcome twice is harmless, and so is applying it twice to the durable store. Losing one is not.
    """

    @property
    def tally(self) -> JournalTally:
        """How much the journal holds, as of its last change."""

    def holds(self, operation_id: UUID) -> bool:
        """Whether this process's files have an outcome of the operation, be it waiting or refused."""

    async def outcomes(self, operation_id: UUID) -> list[KeptOutcome]:
        """The outcomes of the operation in all journals of this host for one service and store, oldest first.

        Whatever is encrypted stays so. The files of processes that have ended are adopted.
        """

    async def append(self, route: str, command: OutcomeCommand, memory: str = "") -> EntryId:
        """Keep an outcome; it is on the disk when this returns. `memory`: as in `KeptOutcome`.

        Raises `NotApplied` also when the journal is full, `Indefinite` when the outcome may be on the disk, and
        `Unstorable` when it can never be. If cancelled, the outcome may have been kept.
        """

    async def waiting(self, after: EntryId | None, *, limit: int, bytes_max: int) -> list[JournalEntry]:
        """Waiting outcomes behind `after`, oldest first, up to both limits; at least one if there is any."""

    async def forget(self, entry_ids: Sequence[EntryId]) -> None:
        """Delete outcomes that the durable store has applied. May raise `Indefinite`: then some may still wait."""

    async def refuse(self, refusals: Sequence[tuple[EntryId, str]]) -> None:
        """Mark outcomes that the durable store refused, with the reason. They are kept and wait no more. May raise
        `Indefinite`."""

    async def adopt(self) -> int:
        """Adopt the files of processes that have ended, and recount after deletions by operators.

        Returns the number of files adopted.
        """
