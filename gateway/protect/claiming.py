"""Gets a claim from the store, and leaves none behind for nobody.

Owns what happens between "may I execute?" and a definite answer. It knows the store's claim and what a record means for
a repeat (`core.verdict`), nothing of upstreams or replies.

An answer to a claim may be lost. Then the same statement is said again, with the same attempt id, until it is known or
patience ends: a caller waits about as long as a store does for one statement, however many are lost. A claim given up
without an answer may still arrive and be granted, so it is pursued in the background: said again until the store
answers, and ended at once if it was granted. Reading that the record is absent would prove nothing.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final
from uuid import UUID

from gateway.core.immutable import immutable
from gateway.core.operation import (
    Abandon,
    Applied,
    Claim,
    Fenced,
    Fingerprint,
    Identity,
    Lapsed,
    OutcomeCommand,
    ProbeTarget,
    Record,
    Release,
    RequestInfo,
    Result,
    Snapshot,
    Takeover,
    microseconds,
    operation_id_of,
)
from gateway.core.recovery import may_recover
from gateway.core.verdict import Claimable, Doubt, Judgement, judge
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
)

_LOG = logging.getLogger("gateway")

# A claim is granted, or refused for good, after two statements; more are races with others, which end.
_STATEMENTS_MAX: Final = 8
_PAUSES_SECONDS: Final = (0.0, 0.05, 0.2, 0.5, 1.0)
# For all of them together, pauses included. A store that is there answers long before.
_CLAIM_SECONDS_MIN: Final = 1.0
_CLAIM_SECONDS_MAX: Final = 5.0
_PURSUIT_PAUSE_SECONDS_MAX: Final = 5.0


def _new_attempt_id() -> UUID:
    """Unique is enough: it opens nothing. To ask the system hands the interpreter over to a thread of the store."""
    return UUID(int=random.getrandbits(128), version=4)


@immutable
class Granted:
    """The claim is ours. `started_seconds` is the boot-time clock's reading from before the granting call.

    `is_first`: nobody's request is known of this key but this one, because the claim was on absent, or on a record of
    which the fingerprint was forgotten.
    """

    record: Record
    now_us: int
    started_seconds: float
    is_first: bool = False


@immutable
class Seen:
    """The record forbids a claim by this request; `snapshot` is what it is."""

    snapshot: Snapshot


@immutable
class Unavailable:
    """There is no claim, and nothing was executed. `is_definite` when the store surely holds no claim of ours."""

    detail: str
    is_definite: bool
    is_amnesic: bool = False
    """The store answered, but it may have forgotten this key."""
    is_refused: bool = False
    """Not for want of a store, which is all that a route can choose to do without: nothing may be forwarded."""


Admission = Granted | Seen | Unavailable


@immutable
class Terms:
    """What a route says of claiming.

    `is_executed_anyway`: on an `Unavailable` that is not refused, the request is forwarded. `takes_over`: in doubt,
    it may be sent again. `probe` is where to ask, should this claim come into doubt, and `request` what is kept of the
    request for people. `patience_seconds` is how long the
    caller can wait at all; claiming takes as many of them, but one at least and five at most.
    """

    remember_us: int
    accepts_recipe_change: bool = False
    is_executed_anyway: bool = False
    takes_over: bool = False
    probe: ProbeTarget | None = None
    request: RequestInfo | None = None
    patience_seconds: float = math.inf


@immutable
class _Pursuit:
    """A claim whose answer is missing, or may come to be; `until` is the event loop's time when patience ends."""

    command: Claim | Takeover
    terms: Terms
    until: float

    def unexecuted(self) -> _Pursuit:
        """The same claim when its request is surely not forwarded."""
        return replace(self, terms=replace(self.terms, is_executed_anyway=False))


class Claiming:
    """Claims for one gateway. `holder` names it in the records."""

    def __init__(
        self,
        store: Store,
        *,
        holder: str,
        lease_seconds: float,
        grace_seconds: float,
        reachable_seconds: Callable[[], float],
        clock: Callable[[], float] = boot_seconds,
    ) -> None:
        """`grace_seconds` is what the owner of a lapsed claim gets; `reachable_seconds` says for how long the store has
        answered by now.
        """
        self._store = store
        self._grace_seconds = grace_seconds
        self._reachable_seconds = reachable_seconds
        self._holder = holder
        self._lease_us = microseconds(lease_seconds)
        self._clock = clock
        self._pursuits: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    @property
    def pursued(self) -> int:
        """How many claims whose answer was lost are still being pursued."""
        return len(self._pursuits)

    async def claim(self, identity: Identity, ours: Sequence[Fingerprint], terms: Terms) -> Admission:
        """Claim, or take over, for a request with these fingerprints.

        Cancelled, the claim is pursued like one whose answer was lost, and the request must not be forwarded.
        """
        read_token: int | None = None
        fingerprint = ours[0]
        is_forgotten = False
        patience_seconds = min(max(terms.patience_seconds, _CLAIM_SECONDS_MIN), _CLAIM_SECONDS_MAX)
        until = self._loop.time() + patience_seconds
        for _ in range(_STATEMENTS_MAX):
            command = Claim(
                identity,
                _new_attempt_id(),
                self._holder,
                fingerprint,
                self._lease_us,
                read_token,
                terms.probe,
                terms.request,
            )
            answer = await self._say(_Pursuit(command, terms, until))
            if isinstance(answer, Unavailable) and terms.is_executed_anyway and not answer.is_refused:
                answer = await self._unless_known(answer, identity.operation_id, ours, terms, until)
            if isinstance(answer, Granted) and is_forgotten:
                return replace(answer, is_first=True)
            if not isinstance(answer, Seen):
                return answer
            judgement = _judge(answer.snapshot, ours, terms)
            match judgement:
                case Claimable():
                    read_token, fingerprint = judgement.read_token, judgement.fingerprint
                    # Fenced on the token that was read, the grant is on this very record.
                    is_forgotten = answer.snapshot.record is not None and answer.snapshot.record.fingerprint is None
                case Doubt(record, is_same=True) if terms.takes_over and self.may_recover(answer.snapshot):
                    taken = await self._take_over(record, terms, until)
                    if not isinstance(taken, Seen):
                        # Not `Unavailable` either: whatever the store says now, this operation is known to be in doubt.
                        return taken if isinstance(taken, Granted) else answer
                case _:
                    return answer
        return Unavailable("others keep changing the record", is_definite=True, is_refused=True)

    async def _unless_known(
        self, unavailable: Unavailable, operation_id: UUID, ours: Sequence[Fingerprint], terms: Terms, until: float
    ) -> Admission:
        """The same, or what forbids to forward the request without a claim: a record, in a store that can be read.

        A disk that is full takes no claim, and knows all the same what became of this key.
        """
        if not unavailable.is_definite:
            # What is there may be this very claim.
            return unavailable
        try:
            async with asyncio.timeout_at(until):
                snapshot = await self._store.read(operation_id)
        except (Amnesic, Unreadable) as error:
            return replace(unavailable, detail=str(error), is_amnesic=isinstance(error, Amnesic), is_refused=True)
        except (StoreError, TimeoutError):
            return unavailable
        judgement = _judge(snapshot, ours, terms)
        return unavailable if isinstance(judgement, Claimable) else Seen(snapshot)

    def may_recover(self, snapshot: Snapshot) -> bool:
        """Whether an operation in doubt may be taken over or probed now; see `core.recovery.may_recover`."""
        reachable_seconds = min(self._reachable_seconds(), 2 * self._grace_seconds)
        return may_recover(
            snapshot, grace_us=microseconds(self._grace_seconds), reachable_us=microseconds(reachable_seconds)
        )

    async def _take_over(self, record: Record, terms: Terms, until: float) -> Admission:
        operation_id = record.identity.operation_id
        command = Takeover(operation_id, record.token, _new_attempt_id(), self._holder, self._lease_us, terms.request)
        return await self._say(_Pursuit(command, terms, until))

    async def _say(self, pursuit: _Pursuit) -> Admission:
        """Say the claim until something is known of it, it was said often enough, or patience is over.

        No answer: it may have arrived, and is said again; from then on no error proves that it did not. An error that
        says that this statement changed nothing is an answer only where none before it was lost. That the store lost
        its memory is an answer always; an earlier statement may have been granted, and is then pursued.
        """
        # `is_withheld`: the key may be somebody else's, so that nothing may be forwarded without this claim.
        is_definite, is_refused, is_withheld = True, False, False
        detail = ""
        try:
            async with asyncio.timeout_at(pursuit.until):
                for pause in _PAUSES_SECONDS:
                    if pause:
                        await asyncio.sleep(pause)
                    started = self._clock()
                    try:
                        result = await self._store.apply(pursuit.command)
                    except Indefinite as error:
                        is_definite, is_refused, detail = False, is_withheld, str(error)
                    except Amnesic as error:
                        if not is_definite:
                            self._pursue(pursuit.unexecuted())
                        return Unavailable(str(error), is_definite=is_definite, is_amnesic=True, is_refused=True)
                    except (NotApplied, Unstorable, Unreadable) as error:
                        # After a lost answer, whoever is at the key may be the statement that it was the answer to.
                        is_withheld |= isinstance(error, Unreadable)
                        is_refused, detail = is_withheld or isinstance(error, Unstorable), str(error)
                        if is_definite:
                            return Unavailable(detail, is_definite=True, is_refused=is_refused)
                    else:
                        return self._admission_by(result, pursuit, started)
        except TimeoutError as over:
            # Cut off inside a statement, or in the pause after one that was lost.
            is_refused = is_withheld or (over.__cause__ is not None and KNOWN in over.__cause__.args)
            detail = "the store did not answer in time"
        except BaseException:
            # Cancelled, or a defect: neither forwards anything.
            self._pursue(pursuit.unexecuted())
            raise
        self._pursue(pursuit.unexecuted() if is_refused else pursuit)
        return Unavailable(detail, is_definite=False, is_refused=is_refused)

    def _admission_by(self, result: Result, pursuit: _Pursuit, started: float) -> Admission:
        match result:
            case Applied(Snapshot(Record() as record, now_us)):
                return Granted(record, now_us, started, is_first=record.attempts == 1)
            case Fenced(snapshot):
                return Seen(snapshot)
            case Lapsed() | Applied():
                self._pursue(pursuit.unexecuted())
                detail = "the claim's lease was over before its answer came"
                return Unavailable(detail, is_definite=False, is_refused=True)

    def _pursue(self, pursuit: _Pursuit) -> None:
        task = self._loop.create_task(self._end(pursuit))
        self._pursuits.add(task)
        task.add_done_callback(self._pursuit_ended)

    def _pursuit_ended(self, task: asyncio.Task[None]) -> None:
        self._pursuits.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.error("a claim is no longer pursued, because of a bug", exc_info=error)

    async def _end(self, pursuit: _Pursuit) -> None:
        """Say the claim until the store has answered, and end it where it was granted."""
        pause = 0.1
        while True:
            try:
                ending = _last_word_of(pursuit, await self._record_of(pursuit.command))
                if ending is not None:
                    await self._store.apply(ending)
            except Unstorable:
                # It never arrived, and its connection is gone.
                return
            except StoreError:
                await asyncio.sleep(pause)
                pause = min(pause * 2, _PURSUIT_PAUSE_SECONDS_MAX)
            else:
                return

    async def _record_of(self, command: Claim | Takeover) -> Record | None:
        """The record once the claim has surely arrived, or never will."""
        try:
            return (await self._store.apply(command)).snapshot.record
        except Amnesic:
            # Refused, and its connection is gone; a memory that nobody had compared may have granted it before.
            try:
                return (await self._store.read(operation_id_of(command))).record
            except Amnesic:
                # What there is, is no claim.
                return None

    async def wait_pursuits_ended(self) -> None:
        """Return when no claim is being pursued."""
        while self._pursuits:
            await asyncio.wait(self._pursuits)

    async def close(self, patience_seconds: float = 0.0) -> int:
        """Give up what is still pursued after that time; those leases lapse. Returns how many there were."""
        try:
            async with asyncio.timeout(patience_seconds):
                await self.wait_pursuits_ended()
        except TimeoutError:
            pass
        tasks = list(self._pursuits)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return len(tasks)


def _judge(snapshot: Snapshot, ours: Sequence[Fingerprint], terms: Terms) -> Judgement:
    return judge(snapshot, ours, accept_recipe_change=terms.accepts_recipe_change)


def _last_word_of(pursuit: _Pursuit, record: Record | None) -> OutcomeCommand | None:
    """What ends the claim, if the record is still under it."""
    command, terms = pursuit.command, pursuit.terms
    if record is None or record.attempt_id != command.attempt_id:
        return None
    ids = (operation_id_of(command), record.token, record.attempt_id)
    if terms.is_executed_anyway and isinstance(command, Claim):
        return Abandon(*ids, "unprotected")
    if record.carries_doubt:
        return Abandon(*ids, "unused")
    return Release(*ids, terms.remember_us)
