"""The levels of programs and stores: which programs share a store, and what they write there. Pure.

Theory of operation
-------------------
*A level* is a number of a program. A release has the next one if it writes anything, or relies on anything, that the
release before does not know. Programs of two successive levels run on one store, and one Redis, for as long as wanted.

*The level of a store* says what may be written to it: no version of a format that a program of this level cannot read.
A new store has the level of the program that made it. After that `migrate --finish` alone raises it, and only while no
gateway of an older program runs. A program refuses a store of a later level, and one of a level before the last.

*Versions.* What is stored has the version of its format: records, outcomes in journals, kept requests, copies in Redis.
A program reads a range of versions; what it leaves alone, because it does not know it, it never changes. A copy in
Redis of another version counts as absent.

*Schemas.* A migration only adds what older programs do not notice. What is not needed any more goes with a program of
which no predecessor needs it. So a store's level, and not its schema, says whether a program may use it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from gateway import PROGRAM, __version__
from gateway.core.outbox import EventType
from gateway.store.base import StartRefused

PROGRAM_LEVEL: Final = 1
"""The level of this program."""
OLDEST_LEVEL: Final = max(1, PROGRAM_LEVEL - 1)
"""The lowest level of a store that it serves."""

RECORD_VERSION: Final = 1
"""The version of the records that it writes."""
RECORD_VERSIONS: Final = range(1, RECORD_VERSION + 1)
"""Those that it reads."""
EVENT_TYPES: Final = ", ".join(f"'{each}'" for each in EventType)
"""The types of events that it publishes, as SQL lists them. It leaves others alone."""
JOURNAL_VERSION: Final = 1
"""The version of the outcomes that it writes to journals."""
JOURNAL_VERSIONS: Final = range(1, JOURNAL_VERSION + 1)
"""Those that it reads."""

_FINISH: Final = f"{PROGRAM} migrate --finish"
_NAMED_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class OlderGateway:
    """A gateway of a program of a lower level that was seen running."""

    gateway_id: UUID
    host: str
    level: int


def why_refused(level: int, oldest: int = OLDEST_LEVEL, program: int = PROGRAM_LEVEL) -> str | None:
    """Why a program that serves these levels must not use a store of this one; None if it may."""
    if level > program:
        return (
            f"the store has level {level}, and this program, {__version__}, serves up to {program}: `{_FINISH}` of a "
            "newer program has ended the upgrade. Run that program"
        )
    if level < oldest:
        return (
            f"the store has level {level}, and this program, {__version__}, serves {oldest} and later: no release can "
            f"be left out. Run one of level {oldest} everywhere, then its `{_FINISH}`, then this one"
        )
    return None


def why_unfinished(level: int, program: int = PROGRAM_LEVEL) -> str | None:
    """What a store of a lower level than this program's means; None if it has this one."""
    if level >= program:
        return None
    return (
        f"the store has level {level}, and this program has {program}: what is new is off, and the release before may "
        f"still be used, until `{_FINISH}`"
    )


def check(level: int) -> None:
    """Raise `StartRefused` if this program must not use a store of this level."""
    if (why := why_refused(level)) is not None:
        raise StartRefused(why)


def check_finished(older: Sequence[OlderGateway]) -> None:
    """Raise `StartRefused` if gateways of an older program run, so that the level must not be raised."""
    if older:
        named = [f"{each.gateway_id} on host {each.host} (level {each.level})" for each in older[:_NAMED_MAX]]
        more = [f"{len(older) - _NAMED_MAX} more"] if len(older) > _NAMED_MAX else []
        raise StartRefused(
            f"gateways of an older program still run: {', '.join(named + more)}. Upgrade or stop them first; one that "
            "was killed counts for a minute"
        )
