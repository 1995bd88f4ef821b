"""The only place where the steps of one request are ordered: admit, execute, settle.

A request on a protected route comes in as a value and leaves as a reply. In between, in the order of the verdict table:
may it be looked at now, whose is it, is it whole, what is it (`Identifying`); then what the record says of it.

Each operation that this process works on has one `Run`, in a task of its own: the claim, then the attempt. Whoever
comes with the same operation while it lasts joins it, so a herd of duplicates costs one claim. The first caller is told
by the run itself (`Lead`), so that it needs no task. What the others hear is said by `Duplicates`: none of them is
executed, nor do they ever claim or take over.

Callers come and go with their clients. Runs do not: only `drain` ends one early, and then says its last word for it.

An operation whose outcome is in the journal has no run any more. Until the durable store has the outcome, its
duplicates are answered by the journal.

Theory of operation. There are two ways through here, which ask the same questions in the same order. Where nothing has
to be waited for but the store and the upstream, as for nearly every request, the caller has no task: `answer` goes on
in the callbacks of the fast tier (`_look_ended`) and of the run (`_give`). Where a body, the journal or the run of
another has to be waited for, the way is a coroutine: `_answer_later`, `_look_and_join`, `_operate`. The first way leads
into the second where a claim has found a record (`Seen`) that does not decide by itself what the request gets.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final, assert_never
from uuid import UUID

from gateway.core.operation import Snapshot
from gateway.core.verdict import Word
from gateway.observe.facts import Herald
from gateway.protect.arrivals import Arrivals, NoPlace
from gateway.protect.claiming import Claiming, Granted, Seen, Unavailable
from gateway.protect.duplicates import Duplicates
from gateway.protect.identification import Identifying, KeyedRequest
from gateway.protect.journaling import Journaling
from gateway.protect.leading import Lead
from gateway.protect.leases import Leases
from gateway.protect.operations import Drained, Run, Runs
from gateway.protect.probing import Prober
from gateway.protect.problem import refuse
from gateway.protect.reply import Coming, Found, Incoming, Later, Repeatable, Reply, Untouched
from gateway.protect.route import Route
from gateway.protect.spool import WholeBody
from gateway.protect.story import Story
from gateway.protect.waiting import Waiting
from gateway.store.base import Store

_LOG = logging.getLogger("gateway")

# Joining a run that turns out not to hold a claim, and becoming the next one, ends after a few rounds.
_JOINS_MAX: Final = 4
# Only a request that came again is likely to come once more, and worth being known.
_REPLAYED: Final = Word.REPLAYED
_SHUTTING_DOWN: Final = "The gateway is shutting down."


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
        in_flight_max: int,
        recall: Callable[[UUID], Snapshot | None],
        look: Callable[[UUID], asyncio.Future[Snapshot | None] | None],
    ) -> None:
        """To be made with the event loop running. `recall` gives the record of a completed operation, where that needs
        no waiting; `look` asks for it where that costs less than a claim, and gives None where there is nobody to ask.
        """
        self._identifying = identifying
        self._in_flight_max = in_flight_max
        self._journaling = journaling
        self._claiming = claiming
        self._leases = leases
        self._herald = herald
        self._runs = Runs(store, journaling, claiming, leases, herald)
        self._duplicates = Duplicates(
            store=store,
            journaling=journaling,
            leases=leases,
            waiting=waiting,
            prober=prober,
            recall=recall,
        )
        self._look = look
        self._arrivals = Arrivals(in_flight_max)
        self._looks: dict[int, asyncio.Future[Snapshot | None]] = {}
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

    def answer(self, incoming: Incoming, route: Route) -> Found | Later[Found]:
        """Answer a request on a protected route that passed rule 2.

        At once, where nothing has to be waited for. Else with a future that comes to the answer, or to a coroutine with
        the rest of the way to it; if the future is cancelled, nobody hears the answer, and the operation goes on. Where
        the body has yet to come, with such a coroutine right away: nothing is done until it is awaited, and it raises
        what the body raises when it is cut short.
        """
        story = Story(incoming.head, route, self._loop.time())
        refusal = self._overload(route)
        if refusal is not None:
            return self._tell(story, refusal)
        request = self._identifying.identify_now(incoming, route)
        if request is None:
            return self._answer_later(story, incoming)
        if not isinstance(request, KeyedRequest):
            return self._tell(story, request)
        story.operation_id = request.identity.operation_id
        if self._is_worked_on(request):
            return self._join(request, story)
        reply = self._duplicates.by_memory(request, story)
        if reply is not None:
            request.body.close()
            self._tell(story, reply)
            return Repeatable(reply, partial(self._again, request))
        answer: Coming[Found] = self._loop.create_future()
        looked = self._look_up(request)
        if looked is not None:
            looked.add_done_callback(partial(self._look_ended, request, story, answer))
            return answer
        refusal = self._overload(route, begins_claim=True)
        if refusal is not None:
            request.body.close()
            return self._tell(story, refusal)
        self._execute(request, story, answer, partial(self._give, request, story, answer))
        return answer

    def _again(self, request: KeyedRequest) -> Reply | None:
        """What a request that was answered before gets when it comes again, where memory has it."""
        if self._overload(request.route) is not None or self._is_worked_on(request):
            return None
        story = Story(request.head, request.route, self._loop.time(), request.identity.operation_id)
        reply = self._duplicates.by_memory(request, story)
        if reply is not None:
            self._tell(story, reply)
        return reply

    def _tell(self, story: Story, answer: Reply | Untouched) -> Reply | Untouched:
        """State how a request is answered, and hand the answer on."""
        if isinstance(answer, Reply) and answer.word is not None:
            self._herald.state(story.answered(answer.word, answer.status, answer.why))
        return answer

    # -- rule 3, and what `Identifying` makes of the request -----------------------------------------------------------

    async def _answer_later(self, story: Story, incoming: Incoming) -> Found:
        # Asked again, because of those who began between the arrival and this.
        refusal = self._overload(story.route)
        if refusal is not None:
            return self._tell(story, refusal)
        try:
            with self._arrivals.place(incoming.body):
                request = await self._identifying.identify(incoming, story.route)
        except NoPlace:
            return self._tell(story, _overloaded(story.route, "Too many request bodies are on their way."))
        if not isinstance(request, KeyedRequest):
            return self._tell(story, request)
        story.operation_id = request.identity.operation_id
        return await (self._join if self._is_worked_on(request) else self._look_and_join)(request, story)

    def _overload(self, route: Route, *, begins_claim: bool = False) -> Reply | None:
        """Rule 3. Claims that are pursued keep others from being begun, and no repeat from an answer that is here."""
        pursued = self._claiming.pursued if begins_claim else 0
        if self._is_draining:
            detail = _SHUTTING_DOWN
        elif self._leases.is_stalled():
            detail = "The gateway was held up and is catching up."
        elif len(self._runs) + len(self._looks) + pursued >= self._in_flight_max:
            detail = "Too many requests are in flight."
        else:
            return None
        return _overloaded(route, detail)

    # -- rules 8 to 15, where nothing has to be waited for but the store and the upstream ------------------------------

    def _is_worked_on(self, request: KeyedRequest) -> bool:
        """Whether the operation has a run, or an outcome that the durable store has yet to take."""
        operation_id = request.identity.operation_id
        return self._runs.get(operation_id) is not None or self._journaling.holds(operation_id)

    def _look_up(self, request: KeyedRequest) -> asyncio.Future[Snapshot | None] | None:
        """What the fast tier has of the operation: asked once for all who come before it has answered."""
        number = request.identity.operation_id.int
        looked = self._looks.get(number)
        if looked is None:
            looked = self._look(request.identity.operation_id)
            if looked is not None:
                self._looks[number] = looked
                looked.add_done_callback(lambda _: self._looks.pop(number))
        return looked

    def _look_ended(
        self,
        request: KeyedRequest,
        story: Story,
        answer: Coming[Found],
        looked: asyncio.Future[Snapshot | None],
    ) -> None:
        """The fast tier has answered, or failed to: go on as `answer` does without it."""
        if answer.done():
            request.body.close()
            return
        try:
            if self._is_worked_on(request):
                answer.set_result(self._join(request, story))
                return
            reply = self._by_copy(request, story, looked) or self._overload(request.route, begins_claim=True)
        except Exception as error:  # noqa: BLE001 - it is the caller's answer
            request.body.close()
            answer.set_exception(error)
            return
        give = partial(self._give, request, story, answer)
        if reply is None:
            self._execute(request, story, answer, give)
        else:
            request.body.close()
            give(reply)

    def _by_copy(self, request: KeyedRequest, story: Story, looked: asyncio.Future[Snapshot | None]) -> Reply | None:
        if looked.cancelled() or looked.exception() is not None:
            return None
        snapshot = looked.result()
        return None if snapshot is None else self._duplicates.by_itself(snapshot, request, story)

    def _execute(
        self,
        request: KeyedRequest,
        story: Story,
        answer: asyncio.Future[Any],
        give: Callable[[Reply | Untouched | Seen], None],
    ) -> None:
        """Let the request be executed, if the store grants it."""
        unavailable = partial(self._unavailable, request)
        self._runs.begin(request, Lead(self._loop, story, answer, give, self._duplicates, unavailable))

    def _give(
        self, request: KeyedRequest, story: Story, answer: Coming[Found], found: Reply | Untouched | Seen
    ) -> None:
        if isinstance(found, Seen):
            answer.set_result(self._join(request, story, found.snapshot))
        else:
            answer.set_result(self._repeatable(request, self._tell(story, found)))

    def _repeatable(self, request: KeyedRequest, answer: Reply | Untouched) -> Found:
        if isinstance(answer, Reply) and answer.word is _REPLAYED:
            return Repeatable(answer, partial(self._again, request))
        return answer

    def _unavailable(self, request: KeyedRequest, run: Run, admission: Unavailable) -> Reply | Untouched:
        """Rule 8, as the route chose; or a claim that was cut off by a drain.

        What became of the run's claim is settled as its own route chose: where that says that nothing was executed, no
        duplicate is.
        """
        _LOG.debug("a claim was not possible: %s", admission.detail)
        if self._is_draining:
            return _refuse(request, Word.OVERLOADED, detail=_SHUTTING_DOWN)
        if admission.is_amnesic:
            # This store is there, and says that the key may have been used.
            return _refuse(request, Word.STORE_AMNESIA)
        is_wanted = request.route.forwards_unprotected and run.request.route.forwards_unprotected
        if is_wanted and not admission.is_refused:
            incoming = Incoming(request.head, WholeBody(request.body), request.hop)
            return Untouched(incoming, Word.UNPROTECTED)
        return _refuse(request, Word.STORE_UNAVAILABLE)

    # -- the same, where others have to be waited for ------------------------------------------------------------------

    async def _look_and_join(self, request: KeyedRequest, story: Story) -> Found:
        looked = self._look_up(request)
        if looked is not None:
            try:
                await asyncio.wait((looked,))
            except asyncio.CancelledError:
                request.body.close()
                raise
            reply = self._by_copy(request, story, looked)
            if reply is not None:
                request.body.close()
                return self._repeatable(request, self._tell(story, reply))
        return await self._join(request, story)

    async def _join(self, request: KeyedRequest, story: Story, seen: Snapshot | None = None) -> Found:
        """The rest of the way; `seen` is what a claim for this request has just found."""
        return self._repeatable(request, self._tell(story, await self._operate(request, story, seen)))

    async def _operate(self, request: KeyedRequest, story: Story, seen: Snapshot | None) -> Reply | Untouched:
        order = self._runs.next_order()
        found: Reply | Untouched | Seen | None = None if seen is None else Seen(seen)
        # Whether the body is with somebody else, who closes it.
        is_lent = False
        try:
            for _ in range(_JOINS_MAX):
                if found is None and not self._is_worked_on(request) and not self._is_draining:
                    refusal = self._overload(request.route, begins_claim=True)
                    if refusal is not None:
                        return refusal
                    is_lent = True
                    found = await self._lead(request, story)
                    is_lent = not isinstance(found, Seen)
                elif found is None:
                    found = await self._by_others(request, story, order)
                if isinstance(found, Seen):
                    found = await self._duplicates.by_sight(found.snapshot, request, story)
                if found is not None:
                    is_lent = is_lent or isinstance(found, Untouched)
                    return found
            return _refuse(request, Word.OVERLOADED, detail="Others keep changing the record of this key.")
        finally:
            if not is_lent:
                request.body.close()

    async def _lead(self, request: KeyedRequest, story: Story) -> Reply | Untouched | Seen:
        """Let the request be executed. The body is the run's meanwhile, and comes back with what was `Seen`."""
        answer: asyncio.Future[Reply | Untouched | Seen] = self._loop.create_future()
        self._execute(request, story, answer, answer.set_result)
        try:
            return await answer
        except asyncio.CancelledError:
            if not answer.cancelled() and answer.exception() is None:
                # In the very moment in which it had come.
                _let_go(answer.result(), request)
            raise

    async def _by_others(self, request: KeyedRequest, story: Story, order: int) -> Reply | Untouched | None:
        """What those come to who work on the operation already; None when they do no more."""
        run = self._runs.get(request.identity.operation_id)
        if run is None and self._journaling.holds(request.identity.operation_id):
            return await self._duplicates.by_journal(request, story)
        if run is None:
            return _refuse(request, Word.OVERLOADED, detail=_SHUTTING_DOWN)
        admission = await run.admission.wait()
        match admission:
            case Granted():
                return await self._duplicates.by_run(run, request, admission, story)
            case Seen(snapshot):
                return await self._duplicates.by_sight(snapshot, request, story, may_be_stale=run.order < order)
            case Unavailable():
                return self._unavailable(request, run, admission)
            case _:
                assert_never(admission)

    # -- the end ------------------------------------------------------------------------------------------------------

    async def drain(self, timeout_seconds: float) -> Drained:
        """Refuse what comes from now on, and let what runs come to its end.

        What has not after `timeout_seconds` is ended truthfully, by its last word.
        """
        self._is_draining = True
        drained = await self._runs.drain(timeout_seconds)
        await self._duplicates.close()
        return drained


def _overloaded(route: Route, detail: str) -> Reply:
    return refuse(Word.OVERLOADED, shape=route.shape, detail=detail)


def _let_go(found: Reply | Untouched | Seen, request: KeyedRequest) -> None:
    """Nobody takes this."""
    if isinstance(found, Seen | Untouched):
        request.body.close()
    elif not isinstance(found.body, bytes):
        found.body.abort()


def _refuse(request: KeyedRequest, word: Word, *, detail: str | None = None) -> Reply:
    return refuse(
        word,
        shape=request.route.shape,
        operation_id=request.identity.operation_id,
        detail=detail,
    )
