"""When a promoted server is believed to be the continuation of the one before, and this worker's part in that.

A *promotion* is a server that came to accept writes on a later timeline than the one that its memory was last accepted
on. The memory itself says so (`Epoch.parent`), so that a gateway without any note knows it, too. A *member* is a worker
that may grant, as the store lists it.

Theory of operation
-------------------
*Members.* A worker grants nothing before the store lists it, and no longer than `store.probation` after its last
acknowledged beat: a response that comes later counts as lost. A worker that has seen another one's beat unchanged for
twice that time strikes it off the list. A worker that is not on the list of a promoted server has therefore granted
nothing that this server lacks: it is a prefix of the former primary's commits, and being listed came first, or being
struck off came last.

*Vouching.* A member vouches if the promoted server has every witness number that was acknowledged to it (`epoch`). The
living worker of a host also vouches for those of its host that have ended, by their notes, unless the host was
restarted since: then the last notes may be missing. Each vouch is for one memory by its whole identity.

*Proven* is a promotion if the memory continues the one that was met last, nothing contradicts that, every member has
vouched, and a worker that was in contact until the end accepts it. That last condition is for workers that have joined
since: they had to wait for `store.probation` where no standby had acknowledged the list with them on it, so none of
them has granted while it was in contact. The one that accepts gives the memory a new identity, which a twin, promoted
apart, lacks. It names the former one as continued: notes about that one still count.

*What this cannot know.* A primary and a worker that joined it alone, cut off together from the standbys and from every
other worker (H1); a standby that had not received the list and is promoted although others had (H2). Both need
replication that is not synchronous. A logical copy is no prefix (H3); its system identifier differs, so it is never
accepted. No client can stop a former primary: what promotes has to do that.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal, Protocol
from uuid import UUID, uuid4

from gateway.core.operation import moment
from gateway.observe.facts import Events, GrantsChanged, PromotionJudged, StoreMet, SynchronyChanged
from gateway.store.base import NotApplied, StoreError, boot_seconds, end_tasks
from gateway.store.files import boot_of_this_machine
from gateway.store.memory.epoch import Amnesia, Reading, WitnessFiles, after_promotion, lineage, memo_of
from gateway.store.operations import Epoch
from gateway.store.sealed import Caller

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
_AGAIN_SECONDS: Final = 0.25
_HISTORY_MAX: Final = 64
_NOT_KNOWN_YET: Final = "this gateway waits until its standbys have surely received its entry"
_NOT_SYNCHRONOUS: Final = "store.synchronous is require, and PostgreSQL has no synchronous standby"

_LOG = logging.getLogger("gateway")


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


@dataclass(frozen=True, slots=True)
class Conditions:
    """`store.promotion`, `store.promotion_wait`, `store.probation` and `store.synchronous`."""

    promotion: Promotion = "proven"
    wait_seconds: float = 30.0
    probation_seconds: float = 5.0
    synchronous: Synchronous = "prefer"


class Verdict(StrEnum):
    """What to do about a promotion: a `PromotionJudged.result`."""

    ACCEPT = "accepted"
    WAIT = "waiting"
    REFUSE = "refused"


class Unproven(NotApplied):
    """The server was promoted, and it is not known yet whether it lost anything."""


def timeline_of(identity: str) -> int:
    """The timeline in the identity of a memory that can be promoted."""
    return int(identity.rpartition("/")[2], 16)


def decide(
    policy: Promotion,
    epoch: Epoch,
    contradiction: str | None,
    members: Collection[Member],
    *,
    is_fresh: bool,
    is_patient: bool,
) -> PromotionJudged:
    """What to do about the promotion that `epoch` shows. `contradiction` is what the notes hold against the memory as a
    continuation of its parent. `is_fresh`: this worker was in contact until the end. `is_patient`: votes are still
    waited for."""
    now, before = epoch.identity, epoch.parent
    silent: list[Member] = []
    verdict = Verdict.REFUSE
    if contradiction is not None:
        why = contradiction
    elif policy == "refuse":
        why = "a standby was promoted, and store.promotion is refuse"
    elif lineage(before) != lineage(now) or timeline_of(before) >= timeline_of(now):
        why = "the store is on an earlier timeline than its data: a copy on another server"
    elif policy == "trusted":
        verdict, why = Verdict.ACCEPT, "store.promotion is trusted"
    elif silent := [member for member in members if member.vouched_for != now]:
        why = f"a standby was promoted, and {_named(silent)}"
        verdict = Verdict.WAIT if is_patient else Verdict.REFUSE
    elif not is_fresh:
        why = "a standby was promoted, and no gateway was in contact with the former primary until then"
        verdict = Verdict.WAIT if is_patient else Verdict.REFUSE
    else:
        verdict, why = Verdict.ACCEPT, f"all {len(members)} gateways have there what was acknowledged to them"
    return PromotionJudged(timeline_of(now), verdict.value, why, len(silent))


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


# -- a member ----------------------------------------------------------------------------------------------------------


class Membership:
    """This worker's place among those that may grant on a store: it joins, beats, and judges promotions."""

    def __init__(
        self,
        fleet: Fleet,
        gateway_id: UUID,
        conditions: Conditions,
        call: Caller,
        events: Events,
        witness_files: WitnessFiles | None,
        on_change: Callable[[], None],
    ) -> None:
        """`on_change` is called whenever `until_seconds` or `why_no_grants` is another one."""
        self._fleet = fleet
        self._gateway_id = gateway_id
        self._conditions = conditions
        self._call = call
        self._events = events
        self._is_synchronous: bool | None = None
        self._notes = witness_files
        self._beat_seconds = min(BEAT_SECONDS, conditions.probation_seconds / BEATS_MIN)
        self._host = socket.gethostname()
        # Without a name of it, one that vouches for nobody else.
        self._boot = boot_of_this_machine().decode() or uuid4().hex
        self._on_change = on_change
        self.until_seconds = float("inf")
        """Until when this worker is surely listed, on the boot-time clock. What a store acknowledges later does not
        count."""
        self.why_no_grants = ""
        """Why nothing may be granted now; empty if it may."""
        # The beats that were acknowledged, with the time before each call.
        self._beats: deque[tuple[int, float]] = deque(maxlen=_HISTORY_MAX)
        self._others: dict[UUID, tuple[int, float]] = {}
        # When this worker may grant after it was listed; None: not before a standby is synchronous.
        self._ready_at: float | None = None
        self._is_established = False
        # When a promoted memory was first met, and what was published last about it.
        self._met: tuple[str, float] = ("", 0.0)
        self._judged: PromotionJudged | None = None
        self._task: asyncio.Task[None] | None = None

    async def join(self, epoch: Epoch, reading: Reading) -> None:
        """Be listed in this memory, which was compared with this reading, and beat from now on. Raises `StoreError`."""
        await self.pause()
        await self._join(reading.ended_ids)
        self._judged = None
        self._events.publish(StoreMet(timeline_of(epoch.identity)))
        self._task = asyncio.get_running_loop().create_task(self._beat_for_ever())

    async def pause(self) -> None:
        """Beat no more, until `join`."""
        task, self._task = self._task, None
        await end_tasks((task,))

    async def _join(self, ended: Collection[UUID] = ()) -> None:
        started, notes = boot_seconds(), self._gateway_id if self._notes is None else self._notes.id
        joined: Joined = await self._call(self._fleet.join, self._gateway_id, notes, self._host, self._boot, ended)
        self._others.clear()
        self._beats.clear()
        self._beats.append((joined.beat, started))
        self.until_seconds = started + self._conditions.probation_seconds
        if not (joined.was_listed and self._is_established):
            self._is_established = False
            wait = seconds_before_grants(joined, self._conditions.synchronous, self._conditions.probation_seconds)
            self._ready_at = None if wait is None else boot_seconds() + wait
        self._permit(is_synchronous=joined.is_synchronous)

    def _permit(self, *, is_synchronous: bool) -> None:
        """Grant from now on, unless a condition forbids it."""
        if is_synchronous is not self._is_synchronous:
            self._is_synchronous = is_synchronous
            self._events.publish(SynchronyChanged(is_synchronous))
        if not self._is_established and self._conditions.synchronous == "require":
            # Where a later beat is, the entry is, too. The second look shows whether the first commit was synchronous.
            if not is_synchronous:
                self._ready_at = None
            elif self._ready_at is None:
                self._ready_at = boot_seconds() + self._beat_seconds / 2
        if self._conditions.synchronous == "require" and not is_synchronous:
            self._grant(GrantsChanged(_NOT_SYNCHRONOUS))
        elif not self._is_established and (self._ready_at is None or boot_seconds() < self._ready_at):
            self._grant(GrantsChanged(_NOT_KNOWN_YET, is_brief=True))
        else:
            self._is_established = True
            self._grant(GrantsChanged())

    def _grant(self, changed: GrantsChanged) -> None:
        """Grant, or not, and publish a change."""
        if changed.why != self.why_no_grants:
            self.why_no_grants = changed.why
            self._events.publish(changed)
        self._on_change()

    async def _beat_for_ever(self) -> None:
        pause = self._beat_seconds
        while True:
            await asyncio.sleep(pause)
            pause = self._beat_seconds
            try:
                await self._beat()
            except StoreError as error:
                pause = min(_AGAIN_SECONDS, self._beat_seconds)
                if boot_seconds() > self.until_seconds:
                    self._grant(GrantsChanged(f"the store was not reached for too long: {error}"))
            except Exception:  # noqa: BLE001  a bug must not end the beats; without them nothing is granted
                _LOG.exception("a beat failed because of a bug")

    async def _beat(self) -> None:
        started = boot_seconds()
        if started > self.until_seconds:
            # Nothing was seen for too long.
            self._others.clear()
        limit = SILENCE * self._conditions.probation_seconds
        silent = [(each, beat) for each, (beat, since) in self._others.items() if started - since > limit]
        is_synchronous, members = await self._call(self._fleet.beat, self._gateway_id, silent)
        if not members:
            await self._join()
            return
        self._observe(members)
        self._beats.append((self._own_beat(members) + 1, started))
        self.until_seconds = started + self._conditions.probation_seconds
        self._permit(is_synchronous=is_synchronous)

    def _observe(self, members: Collection[Member]) -> None:
        now, known = boot_seconds(), self._others
        self._others = {}
        for member in members:
            if member.gateway_id != self._gateway_id:
                beat, since = known.get(member.gateway_id, (-1, now))
                self._others[member.gateway_id] = (beat, since) if beat == member.beat else (member.beat, now)

    def _own_beat(self, members: Collection[Member]) -> int:
        return next((each.beat for each in members if each.gateway_id == self._gateway_id), 0)

    async def judge(self, epoch: Epoch, amnesia: Amnesia, contradiction: str | None, reading: Reading) -> str | None:
        """What was lost with the promotion that `epoch` shows; None where it is accepted, and written down as such.
        This worker vouches for it if nothing contradicts it. Raises `Unproven` while that is not known, and
        `StoreError`."""
        policy = self._conditions.promotion
        if self._met[0] != epoch.identity:
            self._met = (epoch.identity, boot_seconds())
        members: list[Member] = []
        if contradiction is None and policy == "proven":
            identity, ended = epoch.identity, reading.ended_ids
            await self._call(self._fleet.vouch, identity, self._gateway_id, self._boot, ended)
            members = await self._call(self._fleet.members)
        is_patient = boot_seconds() - self._met[1] < self._conditions.wait_seconds
        fresh = self._is_fresh(members)
        judged = decide(policy, epoch, contradiction, members, is_fresh=fresh, is_patient=is_patient)
        if judged.result == Verdict.ACCEPT:
            memo = memo_of(after_promotion(epoch, amnesia, f"timeline {judged.timeline}: {judged.why}"))
            is_trusted = policy == "trusted"
            if not await self._call(self._fleet.accept_promotion, epoch, memo, is_trusted=is_trusted):
                raise Unproven("another gateway judges the promotion of the durable store's standby")
        if judged != self._judged:
            self._judged = judged
            self._events.publish(judged)
        if judged.result == Verdict.WAIT:
            raise Unproven(judged.why)
        return judged.why if judged.result == Verdict.REFUSE else None

    def _is_fresh(self, members: Collection[Member]) -> bool:
        """Whether the promoted server has so recent a beat of this worker that nobody who joined after it can have
        granted before this worker's last one."""
        has = self._own_beat(members)
        if self._beats and has >= self._beats[-1][0]:
            return True
        at = next((at for beat, at in self._beats if beat == has), None)
        limit = self._conditions.probation_seconds - 2 * self._beat_seconds
        return at is not None and self._beats[-1][1] - at <= limit
