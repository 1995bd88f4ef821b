"""The operations that this process works on: each in a task of its own, which claims and, if that is granted, attempts.

Owns their lives from the claim to the last word, whoever comes or goes meanwhile, and the one way in which they are
ended early: a drain, which says that last word for them. It knows no duplicates, and decides nothing about a request.

Invariant: of an operation there is one run at a time. When it is gone its outcome is in the record or in the journal;
that it is in neither, because both failed at the end, was told.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from itertools import count
from typing import Final, Protocol
from uuid import UUID

from gateway.core.operation import EVENT_OF, Applied, Event, LastWord, Record
from gateway.core.recovery import Resend
from gateway.observe.facts import Herald, OperationClaimed, OperationSettled, OperationTakenOver
from gateway.protect.attempt import Attempt, Ending
from gateway.protect.claiming import Admission, Claiming, Granted, Terms, Unavailable
from gateway.protect.conclusion import ClaimedRequest
from gateway.protect.identification import KeyedRequest
from gateway.protect.journaling import Journaling
from gateway.protect.leases import Leases
from gateway.protect.request_info import request_info
from gateway.protect.timing import Announcement
from gateway.store.base import Indefinite, NotApplied, Store, StoreError

_LOG = logging.getLogger("gateway")

# How long a drain tries to get the last word of an attempt into the store.
_LAST_WORD_SECONDS: Final = 3.0
_LAST_WORD_PAUSE_SECONDS: Final = 0.2


class Leader(Protocol):
    """The caller whose request a run is for. It is told in passing, inside the run's task: it waits for nothing, and
    never raises."""

    def admitted(self, run: Run, admission: Admission) -> None:
        """What became of the claim, once. Where it is not `Granted` the request's body is the leader's again."""

    def ended(self, ending: Ending) -> bool:
        """How the attempt ended, at most once and after a grant; False when nobody waits for it any more."""


@dataclass(slots=True)
class Run:
    """One operation in this process. `admission` resolves first; where it is granted, `attempt` is there.

    `order` is its place among all that came to the records of this process.
    """

    request: KeyedRequest
    leader: Leader
    order: int
    started_seconds: float
    admission: Announcement[Admission]
    attempt: Attempt | None = None

    @property
    def granted_attempt(self) -> Attempt:
        """The attempt, which is there once the admission is `Granted`."""
        if self.attempt is None:
            raise RuntimeError("an attempt before its claim was granted")
        return self.attempt


@dataclass(frozen=True, slots=True)
class Drained:
    """How many attempts a drain ended early: those whose last word the store has, or the journal, or neither.

    A claim that was cut off without an answer, and could not be ended, is `unsaid` too.
    """

    said: int = 0
    journaled: int = 0
    unsaid: int = 0

    def __add__(self, other: Drained) -> Drained:
        return Drained(self.said + other.said, self.journaled + other.journaled, self.unsaid + other.unsaid)


class Runs:
    """The runs of one gateway process."""

    def __init__(
        self, store: Store, journaling: Journaling, claiming: Claiming, leases: Leases, herald: Herald
    ) -> None:
        """To be made with the event loop running."""
        self._store = store
        self._journaling = journaling
        self._claiming = claiming
        self._leases = leases
        self._herald = herald
        self._loop = asyncio.get_running_loop()
        # By integers: before all else a request is looked up here, and an id is hashed by a function of Python.
        self._by_id: dict[int, Run] = {}
        self._tasks: dict[asyncio.Task[None], Run] = {}
        self._order = count()

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, operation_id: UUID) -> Run | None:
        """The run of this operation, if there is one."""
        return self._by_id.get(operation_id.int)

    @property
    def oldest_seconds(self) -> float:
        """How long the oldest has been worked on, 0 without one."""
        if not self._by_id:
            return 0.0
        return self._loop.time() - min(run.started_seconds for run in self._by_id.values())

    def next_order(self) -> int:
        """A place among all that came to the records of this process: runs, and whoever joins one."""
        return next(self._order)

    def begin(self, request: KeyedRequest, leader: Leader) -> None:
        """Work on an operation that has no run."""
        loop = self._loop
        run = Run(request, leader, self.next_order(), loop.time(), Announcement(loop))
        self._by_id[request.identity.operation_id.int] = run
        task = loop.create_task(self._live(run))
        self._tasks[task] = run
        task.add_done_callback(self._task_ended)

    async def _live(self, run: Run) -> None:
        """The life of a run: claim, and if that is granted, attempt."""
        request, route = run.request, run.request.route
        operation_id = request.identity.operation_id
        admission: Admission = Unavailable("the claim was cut off", is_definite=False, is_refused=True)
        try:
            terms = Terms(
                remember_us=route.retention.remember_us,
                accepts_recipe_change=route.accepts_recipe_change,
                is_executed_anyway=route.forwards_unprotected,
                takes_over=isinstance(route.recovery, Resend),
                probe=request.probe,
                request=request_info(request.head),
                patience_seconds=route.target.answer_within_seconds,
            )
            admission = await self._claiming.claim(request.identity, request.fingerprints, terms)
        finally:
            if not isinstance(admission, Granted):
                del self._by_id[operation_id.int]
                run.admission.announce(admission)
                run.leader.admitted(run, admission)
        if not isinstance(admission, Granted):
            return
        record = admission.record
        lease = self._leases.hold(record, admission.now_us, admission.started_seconds)
        self._herald.state(
            OperationClaimed(route.name, operation_id, record.token, record.attempts, is_takeover=record.carries_doubt)
        )
        if record.carries_doubt and terms.request is not None:
            self._herald.state(
                OperationTakenOver(route.name, operation_id, record.token, record.attempts, terms.request)
            )
        attempt = run.attempt = Attempt(
            ClaimedRequest(request, record, admission.is_first),
            lease,
            self._store,
            self._journaling,
            self._herald,
            run.leader.ended,
        )
        run.admission.announce(admission)
        run.leader.admitted(run, admission)
        try:
            await attempt.run()
        except Exception:
            # Nobody else says it, and a request that was never sent would leave its key in doubt.
            if attempt.last_word is not None:
                await self._say(record, attempt.last_word, "the gateway failed")
            raise
        finally:
            self._leases.drop(lease)
            del self._by_id[operation_id.int]

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.error("a run failed because of a bug", exc_info=error)

    async def drain(self, timeout_seconds: float) -> Drained:
        """Let what runs come to its end; what has not after `timeout_seconds` is ended truthfully, by its last word."""
        try:
            async with asyncio.timeout(timeout_seconds):
                while self._tasks:
                    await asyncio.wait(list(self._tasks))
                await self._claiming.wait_pursuits_ended()
        except TimeoutError:
            pass
        left = dict(self._tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        attempts = [run.attempt for run in left.values() if run.attempt is not None]
        words = [(attempt.record, attempt.last_word) for attempt in attempts if attempt.last_word is not None]
        lasts = [self._say(record, word, "the gateway stopped") for record, word in words]
        return sum(await asyncio.gather(self._end_pursuits(), *lasts), Drained())

    async def _end_pursuits(self) -> Drained:
        """Claims that were cut off just now are released if the store answers soon."""
        return Drained(unsaid=await self._claiming.close(_LAST_WORD_SECONDS))

    async def _say(self, record: Record, word: LastWord, why: str) -> Drained:
        """Say the last word of an attempt, which ended early, to the store or, failing that, to the journal."""
        is_late = False
        try:
            async with asyncio.timeout(_LAST_WORD_SECONDS):
                while True:
                    try:
                        result = await self._store.apply(word)
                    except (NotApplied, Indefinite):
                        is_late = True
                        await asyncio.sleep(_LAST_WORD_PAUSE_SECONDS)
                    else:
                        if isinstance(result, Applied):
                            self._tell_said(record, EVENT_OF[type(word)], why, is_late=is_late)
                        return Drained(said=1)
        except (TimeoutError, StoreError):
            pass
        try:
            await self._journaling.keep(record, word, detail=why)
        except StoreError:
            return Drained(unsaid=1)
        return Drained(journaled=1)

    def _tell_said(self, record: Record, event: Event, why: str, *, is_late: bool) -> None:
        identity = record.identity
        self._herald.state(
            OperationSettled(identity.route, identity.operation_id, record.token, event, why, None, is_late)
        )
