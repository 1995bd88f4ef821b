"""This worker's place among those that may grant on a store: it joins, beats, and takes part in judging a promotion.

It owns the clock by which this worker is still believed to be listed, and what it saw of the others. `promotion` says
why, and decides.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final
from uuid import UUID, uuid4

from gateway.observe.facts import Events, GrantsChanged, SynchronyChanged
from gateway.store.base import NotApplied, StoreError, boot_seconds, end_tasks
from gateway.store.cold import Caller
from gateway.store.memory.promotion import (
    BEAT_SECONDS,
    BEATS_MIN,
    SILENCE,
    Decision,
    Fleet,
    Joined,
    Member,
    Promotion,
    Synchronous,
    decide,
    seconds_before_grants,
)
from gateway.store.memory.witness_files import Reading, WitnessFiles
from gateway.store.operations import Epoch
from gateway.store.worker_files import boot_of_this_machine

_LOG = logging.getLogger("gateway")

_AGAIN_SECONDS: Final = 0.25
_HISTORY_MAX: Final = 64
_NOT_KNOWN_YET: Final = "this gateway waits until its standbys have surely received its entry"
_NOT_SYNCHRONOUS: Final = "store.synchronous is require, and PostgreSQL has no synchronous standby"


class Unproven(NotApplied):
    """The server was promoted, and it is not known yet whether it lost anything."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """`store.promotion`, `store.promotion_wait`, `store.probation` and `store.synchronous`."""

    promotion: Promotion = "proven"
    wait_seconds: float = 30.0
    probation_seconds: float = 5.0
    synchronous: Synchronous = "prefer"


class Membership:
    """See the module."""

    def __init__(
        self,
        fleet: Fleet,
        gateway_id: UUID,
        conditions: Conditions,
        call: Caller,
        events: Events,
        witness_files: WitnessFiles | None,
        on_change: Callable[[], None],
        clock: Callable[[], float] = boot_seconds,
    ) -> None:
        """`on_change` is called whenever `until_seconds` or `why_no_grants` is another one."""
        self._fleet = fleet
        self._gateway_id = gateway_id
        self._conditions = conditions
        self._call = call
        self._events = events
        self._is_synchronous: bool | None = None
        self._clock = clock
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
        # When a promoted memory was first met.
        self._met: tuple[str, float] = ("", 0.0)
        self._task: asyncio.Task[None] | None = None

    # -- joining and beating ------------------------------------------------------------------------------------------

    async def join(self, reading: Reading) -> None:
        """Be listed in a memory that was compared with this reading, and beat from now on. Raises `StoreError`."""
        await self.pause()
        await self._join(reading.ended_ids)
        self._task = asyncio.get_running_loop().create_task(self._beat_for_ever())

    async def pause(self) -> None:
        """Beat no more, until `join`."""
        task, self._task = self._task, None
        await end_tasks((task,))

    async def _join(self, ended: Collection[UUID] = ()) -> None:
        started, notes = self._clock(), self._gateway_id if self._notes is None else self._notes.id
        joined: Joined = await self._call(self._fleet.join, self._gateway_id, notes, self._host, self._boot, ended)
        self._others.clear()
        self._beats.clear()
        self._beats.append((joined.beat, started))
        self.until_seconds = started + self._conditions.probation_seconds
        if not (joined.was_listed and self._is_established):
            self._is_established = False
            wait = seconds_before_grants(joined, self._conditions.synchronous, self._conditions.probation_seconds)
            self._ready_at = None if wait is None else self._clock() + wait
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
                self._ready_at = self._clock() + self._beat_seconds / 2
        if self._conditions.synchronous == "require" and not is_synchronous:
            self._grant(GrantsChanged(_NOT_SYNCHRONOUS))
        elif not self._is_established and (self._ready_at is None or self._clock() < self._ready_at):
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
                if self._clock() > self.until_seconds:
                    self._grant(GrantsChanged(f"the store was not reached for too long: {error}"))
            except Exception:  # noqa: BLE001  a bug must not end the beats; without them nothing is granted
                _LOG.exception("a beat failed because of a bug")

    async def _beat(self) -> None:
        started = self._clock()
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
        now, known = self._clock(), self._others
        self._others = {}
        for member in members:
            if member.gateway_id != self._gateway_id:
                beat, since = known.get(member.gateway_id, (-1, now))
                self._others[member.gateway_id] = (beat, since) if beat == member.beat else (member.beat, now)

    def _own_beat(self, members: Collection[Member]) -> int:
        return next((each.beat for each in members if each.gateway_id == self._gateway_id), 0)

    # -- judging a promotion ------------------------------------------------------------------------------------------

    async def judge(self, epoch: Epoch, contradiction: str | None, reading: Reading) -> Decision:
        """What to do about the promotion that `epoch` shows, after vouching for it if nothing contradicts that it
        continues its parent. Raises `StoreError`."""
        promotion = self._conditions.promotion
        if self._met[0] != epoch.identity:
            self._met = (epoch.identity, self._clock())
        members: list[Member] = []
        if contradiction is None and promotion == "proven":
            identity, ended = epoch.identity, reading.ended_ids
            await self._call(self._fleet.vouch, identity, self._gateway_id, self._boot, ended)
            members = await self._call(self._fleet.members)
        return decide(
            promotion,
            epoch,
            contradiction,
            members,
            is_fresh=self._is_fresh(members),
            is_patient=self._clock() - self._met[1] < self._conditions.wait_seconds,
        )

    async def accept(self, epoch: Epoch, memo: bytes) -> bool:
        """Accept it. Returns whether that was done; raises `StoreError`."""
        is_trusted = self._conditions.promotion == "trusted"
        done = await self._call(self._fleet.accept_promotion, epoch, memo, is_trusted=is_trusted)
        return bool(done)

    def _is_fresh(self, members: Collection[Member]) -> bool:
        """Whether the promoted server has a beat of this worker that is so recent that nobody who joined after it can
        have granted before this worker's last one."""
        has = self._own_beat(members)
        if self._beats and has >= self._beats[-1][0]:
            return True
        at = next((at for beat, at in self._beats if beat == has), None)
        limit = self._conditions.probation_seconds - 2 * self._beat_seconds
        return at is not None and self._beats[-1][1] - at <= limit
