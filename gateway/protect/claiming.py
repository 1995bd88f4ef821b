"""Gets a claim from the store, renews its lease, and leaves no claim behind that nobody uses.

The result of a claim may be lost. Then the same command is applied again, with the same attempt id, until its result is
known or patience ends: a caller waits about as long as one store call may take, however many results are lost. A claim
that was given up without a result may still arrive and be granted. So it is pursued in the background: applied again
until the store responds, and ended at once if it was granted. Reading that the record is absent would prove nothing.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import Final, Protocol, Self
from uuid import UUID

from gateway.core import immutable
from gateway.core.operation import (
    MICROSECONDS,
    Abandon,
    Applied,
    Claim,
    ClaimingCommand,
    Dispatch,
    Fenced,
    Lapsed,
    Record,
    Renew,
    RequestInfo,
    Result,
    Snapshot,
    State,
    Takeover,
    microseconds,
    trace_of_attempt,
)
from gateway.core.outcome import end_unused
from gateway.core.recovery import Resend, may_recover
from gateway.core.verdict import Claimable, Doubt
from gateway.observe.facts import Events, LeaseLost, LoopStalled
from gateway.observe.logs import Tasks
from gateway.protect.request import Request
from gateway.protect.route import Route
from gateway.store.base import (
    KNOWN,
    Amnesic,
    Indefinite,
    NotApplied,
    Store,
    StoreError,
    Unreadable,
    Unstorable,
    boot_seconds,
    end_tasks,
)
from gateway.store.files import NO_PLACE, AttemptFiles
from gateway.upstream.connection import NEVER, Sweep

_LOG = logging.getLogger("gateway")

# -- limits ------------------------------------------------------------------------------------------------------------
#
# How long steps that every request takes may last: one timer for all of them.
#
# `asyncio.timeout` sets a timer and removes it again, which costs a request more than to find its record. Here a limit
# is a number that one sweep looks at. It is for what nearly always ends long before; rare waits have timers of their
# own.


class _Due(Protocol):
    when: float

    def end(self) -> object: ...


class Limits:
    """The limits of one kind of work. Lives on one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.due: dict[_Due, None] = {}
        """What ends at its time, unless it is taken out before. Whoever puts it in announces its time to the sweep,
        where that is earlier than the sweep's."""
        self.sweep = Sweep(loop, self._look)

    def _look(self) -> float:
        now = self.loop.time()
        for due in [each for each in self.due if each.when <= now]:
            # One of those before may have taken it out.
            if due in self.due:
                del self.due[due]
                due.end()
        return min((each.when for each in self.due), default=NEVER)


@dataclass(slots=True, eq=False)
class Limit:
    """A block that is cut off by `TimeoutError` at that time of the loop's clock, as by `asyncio.timeout_at`. Once."""

    limits: Limits
    when: float
    _is_over: bool = field(init=False, default=False)
    _cancelling: int = field(init=False)
    _task: asyncio.Task[object] = field(init=False)

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a limit is for a task")
        self._task, self._cancelling = task, task.cancelling()
        limits = self.limits
        limits.due[self] = None
        if self.when < limits.sweep.at:
            limits.sweep.by(self.when)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.limits.due.pop(self, None)
        # Only the own cancellation becomes a timeout.
        if self._is_over and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def end(self) -> None:
        self._is_over = True
        self._task.cancel()


# -- claims ------------------------------------------------------------------------------------------------------------

# Two commands normally settle a claim. More of them are races with other gateways, which end.
_COMMANDS_MAX: Final = 8
_PAUSES_SECONDS: Final = (0.0, 0.05, 0.2, 0.5, 1.0)
# For all commands together, pauses included. A healthy store responds long before.
_CLAIM_SECONDS_MIN: Final = 1.0
_CLAIM_SECONDS_MAX: Final = 5.0
_PURSUIT_PAUSE_SECONDS_MAX: Final = 5.0

# Of these errors, each proves that its command changed nothing; for the second ones, the store is not away.
_PROVEN: Final = (Amnesic, NotApplied, Unstorable, Unreadable)
_FINAL: Final = (Amnesic, Unstorable)


def _new_attempt_id() -> UUID:
    """A random UUID. Unique is enough, it is no secret: `uuid4` would make a system call, and so release the GIL."""
    return UUID(int=random.getrandbits(128), version=4)


@immutable
class Granted:
    """The claim is ours. `started_seconds` is the boot-time clock's reading from before the granting call.

    `is_first`: no other request with this key is known, because the claim was on an absent record, or on one whose
    fingerprint was forgotten. `place` is that of the attempt's mark, which the user of the claim has to remove.
    `origin` is the trace of the attempt in doubt that is sent again, as far as its record had it.
    """

    record: Record
    now_us: int
    started_seconds: float
    is_first: bool = False
    place: int = NO_PLACE
    origin: str | None = None


@immutable
class Seen:
    """The record forbids a claim by this request; or `content_holder`, another operation, has the same content."""

    snapshot: Snapshot
    content_holder: UUID | None = None


@immutable
class Unavailable:
    """There is no claim, and nothing was executed. `is_definite` when the store surely holds no claim of ours."""

    detail: str
    is_definite: bool
    is_amnesic: bool = False
    """The store responded, but it may have forgotten this key."""
    is_refused: bool = False
    """More is wrong than that the store is unavailable: no route may forward the request."""


Admission = Granted | Seen | Unavailable


@dataclass(slots=True, eq=False, repr=False)
class Claiming:
    """Claims for one gateway. `holder` names it in the records; `marks` are of the attempts under the claims.

    `grace_seconds` is how long the owner of a lapsed claim may still report; `reachable_seconds` returns for how long
    the store has been reachable. `is_known`: whether the journals of this host know how an operation ended.
    """

    store: Store
    marks: AttemptFiles
    _: KW_ONLY
    holder: str
    lease_seconds: float
    grace_seconds: float
    reachable_seconds: Callable[[], float]
    is_known: Callable[[UUID], Awaitable[bool]]
    clock: Callable[[], float] = boot_seconds
    pursuits: set[asyncio.Task[None]] = field(init=False, default_factory=set)
    """Of claims whose result was lost. Read only."""
    lease_us: int = field(init=False)
    limits: Limits = field(init=False)

    def __post_init__(self) -> None:
        self.lease_us = microseconds(self.lease_seconds)
        self.limits = Limits(asyncio.get_running_loop())

    async def claim(self, request: Request, info: RequestInfo) -> Admission:
        """Claim the operation of this request, or take it over. `info` is what operators see of the request.

        Uses between one and five seconds of its caller's patience. When cancelled, it pursues the claim like one whose
        result was lost. The request must not be forwarded then.
        """
        route, identity = request.route, request.identity
        read_token: int | None = None
        recorded = fingerprint = request.route.fingerprinter.with_parts(
            request.fingerprints[0], request.digests, request.identity.operation_id
        )
        is_forgotten, takes_over = False, isinstance(route.recovery, Resend)
        patience_seconds = min(max(route.target.answer_within_seconds, _CLAIM_SECONDS_MIN), _CLAIM_SECONDS_MAX)
        until = self.limits.loop.time() + patience_seconds
        for _ in range(_COMMANDS_MAX):
            command = Claim(
                identity,
                _new_attempt_id(),
                self.holder,
                fingerprint,
                self.lease_us,
                read_token,
                request.probe,
                info,
                None if route.repeats is None else request.content_to_hold,
            )
            admission = await self._apply(identity.operation_id, command, route, until)
            if isinstance(admission, Unavailable) and route.forwards_unprotected and not admission.is_refused:
                admission = await self._unless_known(admission, request, until)
            if isinstance(admission, Granted) and is_forgotten:
                return replace(admission, is_first=True)
            if not isinstance(admission, Seen) or admission.content_holder is not None:
                return admission
            judgement = request.judge(admission.snapshot)
            match judgement:
                case Claimable():
                    # The parts are those of the current one, which is first.
                    is_current = judgement.fingerprint is request.fingerprints[0]
                    read_token, fingerprint = judgement.read_token, recorded if is_current else judgement.fingerprint
                    # Fenced on the token that was read, the grant is on this very record.
                    is_forgotten = (
                        admission.snapshot.record is not None and admission.snapshot.record.fingerprint is None
                    )
                case Doubt(record, is_same=True) if takes_over and self.may_recover(admission.snapshot):
                    if await self.is_known(identity.operation_id):
                        return admission
                    taken = await self._take_over(record, route, info, until)
                    if not isinstance(taken, Seen):
                        # Not `Unavailable` either: whatever the store reports now, this operation is in doubt.
                        return taken if isinstance(taken, Granted) else admission
                case _:
                    return admission
        return Unavailable("others keep changing the record", is_definite=True, is_refused=True)

    async def _unless_known(self, unavailable: Unavailable, request: Request, until: float) -> Admission:
        """`unavailable`, or the record that forbids forwarding without a claim, if the store can be read.

        A store with a full disk takes no claim, but still has the record of this key.
        """
        if not unavailable.is_definite:
            # The record may be this very claim.
            return unavailable
        try:
            async with asyncio.timeout_at(until):
                snapshot = await self.store.read(request.identity.operation_id)
        except (Amnesic, Unreadable) as error:
            return replace(unavailable, detail=str(error), is_amnesic=isinstance(error, Amnesic), is_refused=True)
        except (StoreError, TimeoutError):
            return unavailable
        return unavailable if isinstance(request.judge(snapshot), Claimable) else Seen(snapshot)

    async def claim_kept(self, record: Record, route: Route, info: RequestInfo) -> Admission:
        """Claim an operation whose request is kept, to deliver it: one that is accepted, or in doubt.

        `record` is as it was read; where it has changed, or its next attempt is not due, the admission is `Seen`. An
        `Unavailable` is always refused: the request is delivered later, and must not be forwarded beside that. When
        cancelled: as `claim`.
        """
        operation_id, until = record.identity.operation_id, self.limits.loop.time() + _CLAIM_SECONDS_MAX
        if record.state is not State.IN_DOUBT:
            command = Dispatch(operation_id, record.token, _new_attempt_id(), self.holder, self.lease_us)
            admission = await self._apply(operation_id, command, route, until)
        elif await self.is_known(operation_id):
            return Unavailable("its outcome is in a journal of this host", is_definite=True, is_refused=True)
        else:
            admission = await self._take_over(record, route, info, until)
        return replace(admission, is_refused=True) if isinstance(admission, Unavailable) else admission

    def may_recover(self, snapshot: Snapshot) -> bool:
        """Whether an operation in doubt may be taken over or probed now; see `core.recovery.may_recover`."""
        reachable_seconds = min(self.reachable_seconds(), 2 * self.grace_seconds)
        return may_recover(
            snapshot, grace_us=microseconds(self.grace_seconds), reachable_us=microseconds(reachable_seconds)
        )

    async def _take_over(self, record: Record, route: Route, info: RequestInfo, until: float) -> Admission:
        operation_id = record.identity.operation_id
        command = Takeover(operation_id, record.token, _new_attempt_id(), self.holder, self.lease_us, info)
        admission = await self._apply(operation_id, command, route, until)
        return replace(admission, origin=trace_of_attempt(record)) if isinstance(admission, Granted) else admission

    async def _apply(self, operation_id: UUID, command: ClaimingCommand, route: Route, until: float) -> Admission:
        """Apply the claim until its result is known, the tries are used up, or patience is over: `until`, on the loop's
        clock.

        Without a result, the claim may have arrived. It is applied again, and from then on no error proves that it did
        not arrive. An error that proves that this command changed nothing is final only if no earlier result was lost.
        `Amnesic` is always final; an earlier command may have been granted, and is then pursued.
        """
        # `is_withheld`: another request may hold the key, so nothing may be forwarded without this claim.
        is_definite, is_refused, is_withheld = True, False, False
        detail, remember_us, place = "", route.retention.remember_us, NO_PLACE
        try:
            with Limit(self.limits, until):
                place = self.marks.mark_unsent(operation_id, command.attempt_id)
                for pause in _PAUSES_SECONDS:
                    if pause:
                        await asyncio.sleep(pause)
                    started = self.clock()
                    try:
                        result = await self.store.apply(command)
                    except Indefinite as error:
                        is_definite, is_refused, detail = False, is_withheld, str(error)
                    except _PROVEN as error:
                        # After a lost result, the record at the key may be the one that the lost claim made.
                        is_withheld |= isinstance(error, Unreadable)
                        is_amnesic = isinstance(error, Amnesic)
                        is_refused, detail = is_withheld or isinstance(error, _FINAL), str(error)
                        if is_definite or is_amnesic:
                            if not is_definite:
                                self._pursue(operation_id, command, remember_us)
                            return Unavailable(detail, is_definite, is_amnesic, is_refused)
                    else:
                        if isinstance(result, Applied) and (record := result.snapshot.record) is not None:
                            granted_place, place = place, NO_PLACE
                            now_us, is_first = result.snapshot.now_us, record.attempts == 1
                            return Granted(record, now_us, started, is_first, granted_place)
                        return self._not_granted(result, operation_id, command, remember_us)
        except TimeoutError as over:
            # Cut off during a command, or in the pause after one whose result was lost.
            is_refused = is_withheld or (over.__cause__ is not None and KNOWN in over.__cause__.args)
            detail = "the store did not respond in time"
        except BaseException:
            # Cancelled, or a bug: neither forwards anything.
            self._pursue(operation_id, command, remember_us)
            raise
        finally:
            if place != NO_PLACE:
                # Without a grant, the request may be forwarded all the same.
                self.marks.unmark(place)
        is_executed = route.forwards_unprotected and not is_refused
        self._pursue(operation_id, command, remember_us, is_executed=is_executed)
        return Unavailable(detail, is_definite=False, is_refused=is_refused)

    def _not_granted(self, result: Result, operation_id: UUID, command: ClaimingCommand, remember_us: int) -> Admission:
        if isinstance(result, Fenced):
            return Seen(result.snapshot, result.content_holder)
        self._pursue(operation_id, command, remember_us)
        return Unavailable("the claim's lease was over before its result came", is_definite=False, is_refused=True)

    def _pursue(
        self, operation_id: UUID, command: ClaimingCommand, remember_us: int, *, is_executed: bool = False
    ) -> None:
        """End the claim in the background, if it is granted yet. `is_executed`: its request is forwarded without it."""
        place = NO_PLACE if is_executed else self.marks.mark_unsent(operation_id, command.attempt_id)
        task = self.limits.loop.create_task(
            self._end_claim(operation_id, command, remember_us, is_executed=is_executed)
        )
        self.pursuits.add(task)
        task.add_done_callback(partial(self._pursuit_ended, place))

    def _pursuit_ended(self, place: int, task: asyncio.Task[None]) -> None:
        self.pursuits.discard(task)
        if task.cancelled():
            # The claim stands, and whoever reads the mark ends it.
            return
        self.marks.unmark(place)
        if (error := task.exception()) is not None:
            _LOG.error("a claim is no longer pursued, because of a bug", exc_info=error)

    async def _end_claim(
        self, operation_id: UUID, command: ClaimingCommand, remember_us: int, *, is_executed: bool
    ) -> None:
        """Apply the claim until the store responds, and end it if the record is under it."""
        pause = 0.1
        while True:
            try:
                record = await self._record_of(operation_id, command)
                if record is not None and record.attempt_id == command.attempt_id:
                    ends = end_unused(record, remember_us, "unused")
                    if is_executed and isinstance(command, Claim):
                        ends = Abandon(operation_id, record.token, record.attempt_id, "unprotected")
                    await self.store.apply(ends)
            except Unstorable:
                # It never arrived, and cannot any more: its connection is gone.
                return
            except StoreError:
                await asyncio.sleep(pause)
                pause = min(pause * 2, _PURSUIT_PAUSE_SECONDS_MAX)
            else:
                return

    async def _record_of(self, operation_id: UUID, command: ClaimingCommand) -> Record | None:
        """The record, once the claim has surely arrived or surely never will."""
        try:
            return (await self.store.apply(command)).snapshot.record
        except Amnesic:
            # Refused, and its connection is gone. Before the epochs were compared, the store may have granted it.
            try:
                return (await self.store.read(operation_id)).record
            except Amnesic:
                # There is no claim.
                return None

    async def wait_pursuits_ended(self) -> None:
        """Return when no claim is being pursued."""
        while self.pursuits:
            await asyncio.wait(self.pursuits)

    async def close(self, patience_seconds: float = 0.0) -> int:
        """Give up the claims still pursued after that time; their leases lapse. Returns how many there were."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_seconds):
                await self.wait_pursuits_ended()
        left = len(self.pursuits)
        await end_tasks(self.pursuits)
        return left


# -- leases ------------------------------------------------------------------------------------------------------------
#
# Renews the leases of live claims, and knows at any moment whether a claim may still be trusted.
#
# *State.* A lease is held from its grant until its attempt drops it. It is trusted until a moment on the boot-time
# clock. It is lost once that moment has passed, or once the store reports that the record has changed without us.
#
# *Trust window.* The store returned "so much remains" to a call that began at `started`. It read its clock after
# `started`, so the lease ends no earlier than `started + remaining`. A margin is subtracted for the pause between
# reading the clock and the first byte on the wire: max(1 s, a sixth of the lease). A slow reply of the store cannot
# stretch a lease, and after a suspend all leases are over.
#
# *Renewal.* Most operations finish within their first lease. The others are renewed when a third of the lease has
# passed, all in one pass, which the store makes one statement of. A pass never waits for an earlier one.
#
# *Failure.* After an error, the lease stays trusted until its own end, and the next pass tries again. `Lapsed` and
# `Fenced` end trust at once. Losing trust stops sending. It does not stop an attempt that was sent: its outcome may
# still be recorded if nobody took over.
#
# *A stalled loop* renews nothing either, and could admit requests the moment it continues; `is_stalled` detects that.


@dataclass(slots=True, eq=False)
class Lease:
    """The trust in one claim. `trusted_until_seconds` is on `clock`, the boot-time clock."""

    operation_id: UUID
    token: int
    attempt_id: UUID
    clock: Callable[[], float]
    trusted_until_seconds: float = 0.0
    renew_at_seconds: float = 0.0
    is_renewing: bool = False

    def is_trusted(self) -> bool:
        """Whether the claim is surely still exclusive. Check it in the same step as the first write."""
        return self.clock() < self.trusted_until_seconds


@dataclass(slots=True, eq=False, repr=False)
class Leases:
    """All leases of this process. `lease_seconds` is the length that claims and renewals ask for."""

    store: Store
    events: Events
    _: KW_ONLY
    lease_seconds: float
    clock: Callable[[], float] = boot_seconds
    held: dict[Lease, None] = field(init=False, default_factory=dict)
    """What is renewed, in the order of the grants: whoever ends an attempt takes its lease out."""
    margin_seconds: float = field(init=False)
    stalled_from_seconds: float = field(init=False)
    renewals: Tasks = field(init=False, default_factory=lambda: Tasks("a renewal failed because of a bug"))

    def __post_init__(self) -> None:
        self.margin_seconds = max(1.0, self.lease_seconds / 6)
        self._beat(self.clock())

    @property
    def pass_seconds(self) -> float:
        """How often `run_once` must be called, for a renewal to have two tries before trust ends."""
        return self.lease_seconds / 12

    def hold(self, record: Record, now_us: int, started_seconds: float, lease: Lease | None = None) -> Lease:
        """Trust a claim that was granted, or renewed if it has a lease, from now on. `now_us` is the store's time then.

        `started_seconds` is the clock's reading from before the call of the store.
        """
        if lease is None:
            lease = Lease(record.identity.operation_id, record.token, record.attempt_id, self.clock)
            self.held[lease] = None
        # At most what was asked for: more remains only if the store's clock was set back, and a sweep corrects that.
        remaining_seconds = min((record.lease_until_us - now_us) / MICROSECONDS, self.lease_seconds)
        lease.trusted_until_seconds = started_seconds + remaining_seconds - self.margin_seconds
        lease.renew_at_seconds = started_seconds + self.lease_seconds / 3
        return lease

    def is_stalled(self) -> bool:
        """Whether the loop was just stalled for longer than a third of a lease: nothing should be claimed now."""
        return self.clock() > self.stalled_from_seconds

    def run_once(self) -> None:
        """Record that the loop runs, and start the renewals that are due."""
        now = self.clock()
        # The last pass was a third of a lease before it would have counted as stalled.
        lag = now - (self.stalled_from_seconds - self.lease_seconds / 3) - self.pass_seconds
        self._beat(now)
        if lag > self.lease_seconds / 6:
            self.events.publish(LoopStalled(lag))
        for lease in self.held:
            if lease.renew_at_seconds <= now and not lease.is_renewing:
                lease.is_renewing = True
                self.renewals.spawn(self._renew(lease))

    async def run(self) -> None:
        """Call `run_once` for ever. The time before counts as no stall: a store may have taken long to start."""
        self._beat(self.clock())
        try:
            while True:
                self.run_once()
                await asyncio.sleep(self.pass_seconds)
        finally:
            await end_tasks(self.renewals)

    def _beat(self, now: float) -> None:
        self.stalled_from_seconds = now + self.lease_seconds / 3

    async def _renew(self, lease: Lease) -> None:
        started = self.clock()
        command = Renew(lease.operation_id, lease.token, lease.attempt_id, microseconds(self.lease_seconds))
        try:
            result = await self.store.apply(command)
        except StoreError:
            return
        finally:
            lease.is_renewing = False
        if lease not in self.held:
            return
        match result:
            case Applied(Snapshot(Record() as record, now_us)):
                self.hold(record, now_us, started, lease)
            case Applied(snapshot) | Lapsed(snapshot) | Fenced(snapshot):
                lease.trusted_until_seconds = 0.0
                lease.renew_at_seconds = float("inf")
                self.events.publish(LeaseLost(lease.operation_id, lease.token, str(snapshot.state)))
