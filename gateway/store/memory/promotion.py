"""When a promoted server is believed to be the continuation of the one before: a decision over values.

A *promotion* is a server that came to accept writes on a later timeline than the one that its memory was last accepted
on. The memory itself says so (`Epoch.parent`), so that a gateway without any note knows it, too. A *member* is a worker
that may grant, as the store lists it.

Theory of operation ------------------- *Members.* A worker grants nothing before the store lists it, and no longer than
`store.probation` after its last acknowledged beat: a response that comes later is not believed, and counts as lost. A
worker that has seen another one's beat unchanged for twice that time strikes it off the list. A worker that is not on
the list of a promoted server has therefore granted nothing that this server lacks: it is a prefix of the former
primary's commits, and being listed came first, or being struck off came last.

*Vouching.* A member vouches if the promoted server has every witness number that was acknowledged to it (`epoch`). The
living worker of a host also vouches for those of its host that have ended, by their notes, unless the host was
restarted since: then the last notes may be missing. Each vouch is for one memory by its whole identity.

*Proven* is a promotion if the memory continues the one that was met last, nothing contradicts that, every member has
vouched, and a worker that was in contact until the end accepts it. That last condition is for workers that have joined
since: they had to wait for `store.probation` where no standby had acknowledged the list with them on it, so none of
them has granted while it was in contact. The one that accepts gives the memory a new identity. It names the former one
as continued: notes about that one still count. A twin, promoted apart, lacks that identity.

*What this cannot know.* A primary and a worker that joined it alone, cut off together from the standbys and from every
other worker (H1); a standby that had not received the list and is promoted although others had (H2). Both need
replication that is not synchronous. A logical copy is no prefix (H3); its system identifier differs, so it is never
accepted. No client can stop a former primary: what promotes has to do that.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal, Protocol
from uuid import UUID

from gateway.core.operation import moment
from gateway.store.operations import Epoch

Promotion = Literal["refuse", "proven", "trusted"]
"""`store.promotion`: which promotions are believed."""
Synchronous = Literal["require", "prefer"]
"""`store.synchronous`: whether a server may grant without a standby that has what it acknowledges."""

BEAT_SECONDS: Final = 1.0
# A worker beats so many times in its probation, at the least.
BEATS_MIN: Final = 5
# Unchanged for so many times the probation, a beat is that of a member that grants no more.
SILENCE: Final = 2.0
_NAMED_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class Member:
    """A worker on the store's list. `beat` counts; `beat_us` is the store's time of it, for people only. `vouched_for`
    is the identity of the promoted memory that it vouched for last."""

    gateway_id: UUID
    host: str
    beat: int
    beat_us: int
    vouched_for: str = ""


@dataclass(frozen=True, slots=True)
class Joined:
    """How a worker was listed, with this beat. `was_listed`: it was on the list before. `is_synchronous`: a standby had
    the commit first. `may_fail_over`: a standby follows, or other hosts are configured."""

    beat: int
    was_listed: bool
    is_synchronous: bool
    may_fail_over: bool


class Verdict(StrEnum):
    """What to do about a promotion."""

    ACCEPT = "accepted"
    WAIT = "waiting"
    REFUSE = "refused"


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, why, and how many members have not vouched."""

    verdict: Verdict
    why: str
    unvouched: int = 0


def is_later(epoch: Epoch) -> bool:
    """Whether the server's timeline is later than that of the memory that it continues."""
    (before, its), (now, ours) = (identity.rsplit("/", 1) for identity in (epoch.parent, epoch.identity))
    return before == now and int(its, 16) < int(ours, 16)


def decide(
    policy: Promotion,
    epoch: Epoch,
    contradiction: str | None,
    members: Collection[Member],
    *,
    is_fresh: bool,
    is_patient: bool,
) -> Decision:
    """What to do about the promotion that `epoch` shows.

    `contradiction` is what this host's notes, or the shared one, hold against the memory as a continuation of its
    parent. `is_fresh`: this worker was in contact until the end. `is_patient`: votes are still waited for.
    """
    if contradiction is not None:
        return Decision(Verdict.REFUSE, contradiction)
    if policy == "refuse":
        return Decision(Verdict.REFUSE, "a standby was promoted, and store.promotion is refuse")
    if not is_later(epoch):
        return Decision(Verdict.REFUSE, "the store is on an earlier timeline than its data: a copy on another server")
    if policy == "trusted":
        return Decision(Verdict.ACCEPT, "store.promotion is trusted")
    silent = [member for member in members if member.vouched_for != epoch.identity]
    if silent:
        why = f"a standby was promoted, and {_named(silent)}"
    elif not is_fresh:
        why = "a standby was promoted, and no gateway was in contact with the former primary until then"
    else:
        return Decision(Verdict.ACCEPT, f"all {len(members)} gateways have there what was acknowledged to them")
    return Decision(Verdict.WAIT if is_patient else Verdict.REFUSE, why, len(silent))


def _named(members: Sequence[Member]) -> str:
    names = [
        f"gateway {str(each.gateway_id)[:8]} on host {each.host} has not spoken since {moment(each.beat_us)}"
        for each in members[:_NAMED_MAX]
    ]
    if len(members) > _NAMED_MAX:
        names.append(f"{len(members) - _NAMED_MAX} more")
    return ", ".join(names)


def seconds_before_grants(joined: Joined, synchronous: Synchronous, probation_seconds: float) -> float | None:
    """How long a worker that was not listed before waits until it grants; None: for as long as no standby is
    synchronous."""
    if joined.is_synchronous:
        return 0.0
    if synchronous == "require":
        return None
    return probation_seconds if joined.may_fail_over else 0.0


class Fleet(Protocol):
    """The members of one store. Each verb may raise `NotApplied`, `Indefinite` or `EpochChanged`."""

    async def join(self, gateway_id: UUID, notes: UUID, host: str, boot: str, ended: Collection[UUID]) -> Joined:
        """List this worker, which `compare_configuration` made known, and strike off those of this host that have
        `ended`, by the names of their notes. Repeatable."""

    async def beat(self, gateway_id: UUID, silent: Collection[tuple[UUID, int]]) -> tuple[bool, list[Member]]:
        """Raise this worker's beat, and strike off members whose beat is still the given one. Returns whether commits
        are synchronous, and the list before that; it is empty if this worker is not on it any more."""

    async def members(self) -> list[Member]:
        """The list."""

    async def vouch(self, identity: str, gateway_id: UUID, boot: str, ended: Collection[UUID]) -> None:
        """Vouch for this memory: in the name of this worker, and of those with these notes that ran since this boot of
        the host, where they are members."""

    async def accept_promotion(self, epoch: Epoch, memo: bytes, *, is_trusted: bool) -> bool:
        """Give the promoted memory a new identity and this memo, if it still has those of `epoch` and, unless
        `is_trusted`, every member has vouched. Returns whether that was done; False also if somebody else did."""
