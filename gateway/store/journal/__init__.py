"""Outcomes that the durable store has not taken yet, on this host's disk: the contract of a journal.

An outcome is the last command of an attempt (`OutcomeCommand`). What a journal has acknowledged is on the disk and
stays there until it is forgotten. It never decides anything: whether an outcome still holds is the durable store's to
say.

`journal` is that of a process, out of files (`file`); operators look in by `view`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol
from uuid import UUID

from gateway.core.operation import OutcomeCommand

# One operation has as many outcomes as attempts that ended while the store was away.
OF_ONE_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class EntryId:
    """Where an outcome is in a journal; means something to that journal alone."""

    file: str
    row: int


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """An outcome that waits for the durable store. `route` is the name of the operation's route, for telling."""

    entry_id: EntryId
    route: str
    command: OutcomeCommand


@dataclass(frozen=True, slots=True)
class KeptEntry:
    """An outcome as operators see it, without the bytes of its answer. Times are microseconds of the host's clock.

    `status` and `body_bytes` are the answer's, None where there is none. `refused_us` and `refused_why` are None
    while it waits; what was refused is kept, and not said to the durable store again.
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
    """What lies in the journals of a host, oldest first, at `now_us` of its clock.

    `strangers`: files of another service or durable store, and whose each is. `faults`: what could not be read, and
    why. `has_more`: there is more than was asked for.
    """

    now_us: int
    entries: tuple[KeptEntry, ...] = ()
    strangers: tuple[tuple[str, str], ...] = ()
    faults: tuple[str, ...] = ()
    has_more: bool = False


@dataclass(frozen=True, slots=True)
class KeptOutcome:
    """An outcome as a whole, as operators take it out. `command` is None where only another version can read it."""

    entry_id: EntryId
    entry: KeptEntry
    command: OutcomeCommand | None


class JournalDesk(Protocol):
    """Where operators take single outcomes out of the journals of a host, whoever has these open.

    Blocks. Each verb may raise `StoreError` of `base`.
    """

    @property
    def directory(self) -> Path:
        """Where the journals are."""

    def outcomes(self, operation_id: UUID) -> list[KeptOutcome]:
        """Those of one operation, of the service and store that this is of, oldest first."""

    def drop(self, entry_id: EntryId) -> bool:
        """Delete an outcome that was refused; whether this did it. What waits stays. May be repeated."""


@dataclass(frozen=True, slots=True)
class JournalTally:
    """What a journal holds. `oldest_us`: when the oldest outcome that waits was written, by the host's clock."""

    waiting: int = 0
    refused: int = 0
    bytes: int = 0
    oldest_us: int | None = None


class Journal(Protocol):
    """Each verb may raise `NotApplied` of `base`; see each for more.

    Writing an outcome twice is harmless, and so is saying it twice to the durable store. Losing one is not.
    """

    @property
    def tally(self) -> JournalTally:
        """How much the journal holds, as of its last change."""

    async def append(self, route: str, command: OutcomeCommand) -> EntryId:
        """Keep an outcome; it is on the disk when this returns.

        Raises `NotApplied` also when the journal is full, `Indefinite` when it may be on the disk, and `Unstorable`
        when it can never be. Cancelled, it may be kept.
        """

    async def read(self, entry_id: EntryId) -> OutcomeCommand | None:
        """An outcome that waits; None when it does not any more."""

    async def waiting(self, after: EntryId | None, *, limit: int, bytes_max: int) -> list[JournalEntry]:
        """Outcomes that wait, behind `after`, oldest first; one at least if there is any, up to both limits."""

    async def forget(self, entry_ids: Sequence[EntryId]) -> None:
        """The durable store has these. May raise `Indefinite`: then some may wait still."""

    async def refuse(self, refusals: Sequence[tuple[EntryId, str]]) -> None:
        """The durable store refused these, and why. They are kept and wait no more. May raise `Indefinite`."""

    async def adopt(self) -> int:
        """Look around: take over what processes that are gone have left, and count what operators took out.

        Returns how many files were taken over.
        """
