"""The only place where the steps of one request are ordered: admit, execute, settle.

A request on a protected route comes in as a value and leaves as a reply. In between, in the order of the verdict table:
may it be looked at now, whose is it, is it whole, what is it (`Identifying`); then what the record says of it
(`_operate`).

Each operation that this process works on has one `Run`, in a task of its own: the claim, then the attempt. Whoever
comes with the same operation while it lasts joins it, so a herd of duplicates costs one claim. What those hear who are
not executed is said by `Duplicates`; they never claim, and never take over.

Handlers come and go with their clients. Runs do not: only `drain` ends one early, and then says its last word for it.

An operation whose outcome is in the journal has no run any more. Until the durable store has the outcome, its
duplicates are answered by the journal.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, assert_never
from uuid import UUID

from gateway.core.operation import Snapshot
from gateway.core.verdict import Word
from gateway.observe.facts import Herald
from gateway.proxy.claiming import Admission, Claiming, Granted, Seen, Unavailable
from gateway.proxy.conclusion import KeyedRequest
from gateway.proxy.duplicates import Duplicates
from gateway.proxy.identifying import Identifying
from gateway.proxy.journaling import Journaling
from gateway.proxy.leases import Leases
from gateway.proxy.probing import Prober
from gateway.proxy.problem import refuse
from gateway.proxy.reply import Incoming, Repeatable, Reply, Untouched
from gateway.proxy.route import Route
from gateway.proxy.runs import Drained, Run, Runs
from gateway.proxy.spool import WholeBody
from gateway.proxy.story import Story
from gateway.proxy.waiting import Waiting
from gateway.store.base import Store

_LOG = logging.getLogger("gateway")

# Joining a run that turns out not to hold a claim, and becoming the next one, ends after a few rounds.
_JOINS_MAX: Final = 4
# What a retry is answered with may be in memory after these.
_REPEATABLE: Final = (Word.STORED, Word.REPLAYED)
_SHUTTING_DOWN: Final = "The gateway is shutting down."

_Answer = Reply | Repeatable | Untouched


class Coordinator:
    """The protected half of one gateway process."""

    def __init__(
        self,
        *,
        identifying: Identifying,
        store: Store,
        journaling: Journaling,
        claiming: Claiming,
        leases: Leases,
        waiting: Waiting,
        prober: Prober,
        herald: Herald,
        in_flight_max: int = 1000,
        recall: Callable[[UUID], Snapshot | None] = lambda _: None,
    ) -> None:
        """To be made with the event loop running. `recall` gives the record of a completed operation, where that needs
        no waiting."""
        self._identifying = identifying
        self._in_flight_max = in_flight_max
        self._journaling = journaling
        self._claiming = claiming
        self._leases = leases
        self._herald = herald
        self._runs = Runs(store, journaling, claiming, leases, herald)
        self._duplicates = Duplicates(
            runs=self._runs,
            store=store,
            journaling=journaling,
            leases=leases,
            waiting=waiting,
            prober=prober,
            recall=recall,
        )
        self._arriving = 0
        self._is_draining = False
        self._loop = asyncio.get_running_loop()

    # -- seen from outside --------------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Operations that this process is working on."""
        return len(self._runs)

    @property
    def waiters(self) -> int:
        """Duplicates that wait for one of them, here or in another gateway."""
        return self._duplicates.waiters

    @property
    def oldest_in_flight_seconds(self) -> float:
        """How long the oldest of them has been worked on."""
        return self._runs.oldest_seconds

    def answer(self, incoming: Incoming, route: Route) -> _Answer | Coroutine[Any, Any, _Answer]:
        """Answer a request on a protected route that passed rule 2: at once, where nothing has to be waited for.

        Else the rest of the way is returned. It raises what the request's body raises when it is cut short; then
        nothing was done, and nothing is done as long as nobody walks it.
        """
        story = Story(incoming.head, route, self._loop.time())
        refusal = self._overload(route)
        if refusal is not None:
            return self._tell(story, refusal)
        request = self._identifying.identify_now(incoming, route)
        if request is None:
            return self._answer_later(story, incoming, None)
        if not isinstance(request, KeyedRequest):
            return self._tell(story, request)
        story.operation_id = request.identity.operation_id
        reply = self._duplicates.by_memory(request, story)
        if reply is None:
            return self._answer_later(story, incoming, request)
        self._tell(story, reply)
        return Repeatable(reply, partial(self._again, request))

    def _again(self, request: KeyedRequest) -> Reply | None:
        """What a request that was answered before gets when it comes again, where memory has it."""
        if self._overload(request.route) is not None:
            return None
        story = Story(request.head, request.route, self._loop.time(), request.identity.operation_id)
        reply = self._duplicates.by_memory(request, story)
        if reply is not None:
            self._tell(story, reply)
        return reply

    async def handle(self, incoming: Incoming, route: Route) -> Reply | Untouched:
        """As `answer`, walked to its end."""
        answer = self.answer(incoming, route)
        found = answer if isinstance(answer, Reply | Repeatable | Untouched) else await answer
        return found.reply if isinstance(found, Repeatable) else found

    def _tell(self, story: Story, answer: Reply | Untouched) -> Reply | Untouched:
        if isinstance(answer, Reply) and answer.word is not None:
            self._herald.state(story.answered(answer.word, answer.status, self._loop.time()))
        return answer

    # -- rule 3, and what `Identifying` makes of the request -----------------------------------------------------------

    async def _answer_later(self, story: Story, incoming: Incoming, request: KeyedRequest | None) -> _Answer:
        # Asked again, because of those who began between the arrival and this.
        refusal = self._overload(story.route)
        if refusal is not None:
            return self._tell(story, refusal)
        if request is None:
            self._arriving += 1
            try:
                found = await self._identifying.identify(incoming, story.route)
            finally:
                self._arriving -= 1
            if not isinstance(found, KeyedRequest):
                return self._tell(story, found)
            request = found
            story.operation_id = request.identity.operation_id
        answer = self._tell(story, await self._operate(request, story))
        if isinstance(answer, Reply) and answer.word in _REPEATABLE:
            return Repeatable(answer, partial(self._again, request))
        return answer

    def _overload(self, route: Route) -> Reply | None:
        """Rule 3."""
        if self._is_draining:
            detail = _SHUTTING_DOWN
        elif self._leases.is_stalled():
            detail = "The gateway was held up and is catching up."
        elif len(self._runs) + self._arriving + self._claiming.pursued >= self._in_flight_max:
            detail = "Too many requests are in flight."
        else:
            return None
        return refuse(Word.OVERLOADED, shape=route.shape, detail=detail, retry_after_seconds=1)

    # -- rules 8 to 15 ------------------------------------------------------------------------------------------------

    async def _operate(self, request: KeyedRequest, story: Story) -> Reply | Untouched:
        mine: Run | None = None
        owns_body = True
        order = self._runs.next_order()
        try:
            for _ in range(_JOINS_MAX):
                run = self._runs.get(request.identity.operation_id)
                if run is None and self._journaling.holds(request.identity.operation_id):
                    reply = await self._duplicates.by_journal(request, story)
                    if reply is not None:
                        return reply
                    continue
                if run is None:
                    if self._is_draining:
                        return _refuse(request, Word.OVERLOADED, detail=_SHUTTING_DOWN)
                    run = mine = self._runs.begin(request)
                    owns_body = False
                admission = await self._admission_of(run, is_mine=run is mine)
                owns_body = run is not mine or not isinstance(admission, Granted)
                match admission:
                    case Granted():
                        if run is mine:
                            return await self._lead(run, admission, story)
                        return await self._duplicates.by_run(run, request, admission, story)
                    case Seen(snapshot):
                        is_dated = run.order < order
                        reply = await self._duplicates.by_sight(snapshot, request, story, is_dated=is_dated)
                        if reply is not None:
                            return reply
                    case Unavailable():
                        _LOG.debug("a claim was not possible: %s", admission.detail)
                        answer = self._unavailable(request, run, admission)
                        owns_body = isinstance(answer, Reply)
                        return answer
                    case _:
                        assert_never(admission)
            return _refuse(request, Word.OVERLOADED, detail="Others keep changing the record of this key.")
        finally:
            if owns_body:
                request.body.close()

    async def _admission_of(self, run: Run, *, is_mine: bool) -> Admission:
        try:
            return await run.admission.wait()
        except asyncio.CancelledError:
            if is_mine:
                run.leave()
            raise

    def _unavailable(self, request: KeyedRequest, run: Run, admission: Unavailable) -> Reply | Untouched:
        """Rule 8, as the route chose; or a claim that was cut off by a drain.

        What became of the run's claim is settled as its own route chose: where that says that nothing was executed, no
        duplicate is.
        """
        if self._is_draining:
            return _refuse(request, Word.OVERLOADED, detail=_SHUTTING_DOWN)
        if admission.is_amnesic:
            # This store is there, and says that the key may have been used.
            return _refuse(request, Word.STORE_AMNESIA)
        is_wanted = request.route.forwards_unprotected and run.request.route.forwards_unprotected
        if is_wanted and not admission.is_refused:
            incoming = Incoming(request.head, WholeBody(request.body), request.peer, request.scheme)
            return Untouched(incoming, Word.UNPROTECTED)
        return _refuse(request, Word.STORE_UNAVAILABLE)

    async def _lead(self, run: Run, admission: Granted, story: Story) -> Reply:
        """Rule 15: this caller's request is the one that is executed."""
        attempt, route = run.granted_attempt, run.request.route
        story.attempt = admission.record.attempts
        patience_seconds = route.target.answer_within_seconds - (self._loop.time() - story.arrived)
        try:
            ending = await attempt.wait_ended(max(0.0, patience_seconds))
        except BaseException:
            attempt.leave()
            raise
        if ending is None:
            attempt.leave()
            return self._duplicates.still_running(run, admission, status=504)
        story.upstream_status = ending.upstream_status
        story.upstream_seconds = ending.upstream_seconds
        return ending.reply

    # -- the end ------------------------------------------------------------------------------------------------------

    def stop_admitting(self) -> None:
        """From now on refuse what would need a claim, so that `drain` comes to an end."""
        self._is_draining = True

    async def drain(self, timeout_seconds: float) -> Drained:
        """Let what runs come to its end; what has not after `timeout_seconds` is ended truthfully, by its last word."""
        self._is_draining = True
        drained = await self._runs.drain(timeout_seconds)
        await self._duplicates.close()
        return drained


def _refuse(request: KeyedRequest, word: Word, *, detail: str | None = None) -> Reply:
    return refuse(
        word,
        shape=request.route.shape,
        operation_id=request.identity.operation_id,
        detail=detail,
    )
