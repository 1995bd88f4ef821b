"""The only place where the steps of one request are ordered: admit, execute, settle.

A request on a protected route comes in as a value and leaves as a reply. In between, in the order of the verdict table:
may it be looked at now, whose is it, is it whole, what is it (`Identifying`); then what the record says of it
(`_operate`).

Each operation that this process works on has one `Run`, in a task of its own: the claim, then the attempt. Whoever
comes with the same operation while it lasts joins it, so a herd of duplicates costs one claim. A duplicate compares its
own fingerprint with the claim's, waits for the ending, and shares it; it never claims, and never takes over.

Handlers come and go with their clients. Runs do not: only `drain` ends one early, and then says its last word for it.

An operation whose outcome is in the journal has no run any more. Until the durable store has the outcome, its
duplicates are answered by the journal.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, assert_never
from uuid import UUID

from gateway.core.message import RequestHead
from gateway.core.operation import Snapshot, State
from gateway.core.recovery import Probe
from gateway.core.verdict import Claimable, Doubt, Match, Refuse, Replay, Wait, Word, compare, judge
from gateway.observe.facts import Herald, RequestAnswered
from gateway.proxy.attempt import Ending
from gateway.proxy.claiming import Admission, Claiming, Granted, Seen, Unavailable
from gateway.proxy.compose import by_record, in_flight, in_flight_at, refuse_by, replay_of, shared_with
from gateway.proxy.conclusion import KeyedRequest
from gateway.proxy.identifying import Identifying
from gateway.proxy.journaling import Journaling
from gateway.proxy.leases import Leases
from gateway.proxy.preference import applied, wait_preference
from gateway.proxy.probing import Prober
from gateway.proxy.problem import refuse
from gateway.proxy.reply import Incoming, Repeatable, Reply, Untouched
from gateway.proxy.route import Route
from gateway.proxy.runs import Drained, Run, Runs
from gateway.proxy.spool import WholeBody
from gateway.proxy.waiting import Waiting
from gateway.store.base import Store, StoreError

_LOG = logging.getLogger("gateway")

# Joining a run that turns out not to hold a claim, and becoming the next one, ends after a few rounds.
_JOINS_MAX: Final = 4
# What a retry is answered with may be in memory after these.
_REPEATABLE: Final = (Word.STORED, Word.REPLAYED)
_SHUTTING_DOWN: Final = "The gateway is shutting down."

_Answer = Reply | Repeatable | Untouched


@dataclass(slots=True)
class _Story:
    """One request on its way, and what became known of it, for the fact that tells of it."""

    head: RequestHead
    route: Route
    arrived: float
    operation_id: UUID | None = None
    upstream_status: int | None = None
    upstream_seconds: float | None = None
    attempt: int = 0
    wait_until: float | None = None
    """Until when it waits for others, in all, on the loop's clock; None while it has not begun to."""
    preferred: int | None = None
    """The caller's preference, where that decided how long."""


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
        self._recall = recall
        self._store = store
        self._journaling = journaling
        self._claiming = claiming
        self._leases = leases
        self._waiting = waiting
        self._prober = prober
        self._herald = herald
        self._runs = Runs(store, journaling, claiming, leases, herald)
        self._arriving = 0
        self._waiters: Counter[str] = Counter()
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
        return self._waiters.total()

    @property
    def oldest_in_flight_seconds(self) -> float:
        """How long the oldest of them has been worked on."""
        return self._runs.oldest_seconds

    def answer(self, incoming: Incoming, route: Route) -> _Answer | Coroutine[Any, Any, _Answer]:
        """Answer a request on a protected route that passed rule 2: at once, where nothing has to be waited for.

        Else the rest of the way is returned. It raises what the request's body raises when it is cut short; then
        nothing was done, and nothing is done as long as nobody walks it.
        """
        story = _Story(incoming.head, route, self._loop.time())
        refusal = self._overload(route)
        if refusal is not None:
            return self._tell(story, refusal)
        request = self._identifying.identify_now(incoming, route)
        if request is None:
            return self._answer_later(story, incoming, None)
        if not isinstance(request, KeyedRequest):
            return self._tell(story, request)
        story.operation_id = request.identity.operation_id
        reply = self._by_memory(request, story)
        if reply is None:
            return self._answer_later(story, incoming, request)
        self._tell(story, reply)
        return Repeatable(reply, partial(self._again, request))

    def _again(self, request: KeyedRequest) -> Reply | None:
        """What a request that was answered before gets when it comes again, where memory has it."""
        if self._overload(request.route) is not None:
            return None
        story = _Story(request.head, request.route, self._loop.time(), request.identity.operation_id)
        reply = self._by_memory(request, story)
        if reply is not None:
            self._tell(story, reply)
        return reply

    async def handle(self, incoming: Incoming, route: Route) -> Reply | Untouched:
        """As `answer`, walked to its end."""
        answer = self.answer(incoming, route)
        found = answer if isinstance(answer, Reply | Repeatable | Untouched) else await answer
        return found.reply if isinstance(found, Repeatable) else found

    def _tell(self, story: _Story, answer: Reply | Untouched) -> Reply | Untouched:
        if isinstance(answer, Reply) and answer.word is not None:
            head = story.head
            self._herald.state(
                RequestAnswered(
                    route=story.route.name,
                    word=answer.word,
                    status=answer.status,
                    duration_seconds=self._loop.time() - story.arrived,
                    method=head.method.decode("latin-1"),
                    operation_id=story.operation_id,
                    upstream_status=story.upstream_status,
                    upstream_seconds=story.upstream_seconds,
                    attempt=story.attempt,
                    request_id=head.text(b"x-request-id"),
                    trace_id=head.text(b"traceparent"),
                )
            )
        return answer

    # -- rule 3, and what `Identifying` makes of the request -----------------------------------------------------------

    async def _answer_later(self, story: _Story, incoming: Incoming, request: KeyedRequest | None) -> _Answer:
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

    def _by_memory(self, request: KeyedRequest, story: _Story) -> Reply | None:
        """Rules 9 to 11 for an operation that this process remembers as completed: `_by_sight` without a question."""
        operation_id = request.identity.operation_id
        if self._runs.get(operation_id) is not None or self._journaling.holds(operation_id):
            return None
        snapshot = self._recall(operation_id)
        if snapshot is None or snapshot.record is None:
            return None
        match judge(snapshot, request.fingerprints, accept_recipe_change=request.route.accepts_recipe_change):
            case Replay(record):
                reply = replay_of(record, request.head.headers)
            case Refuse(word, record):
                reply = refuse_by(word, record, request.route)
            case _:
                return None
        story.attempt = snapshot.record.attempts
        request.body.close()
        return reply

    async def _operate(self, request: KeyedRequest, story: _Story) -> Reply | Untouched:
        mine: Run | None = None
        owns_body = True
        order = self._runs.next_order()
        try:
            for _ in range(_JOINS_MAX):
                run = self._runs.get(request.identity.operation_id)
                if run is None and self._journaling.holds(request.identity.operation_id):
                    reply = await self._by_journal(request, story)
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
                        return _with_preference(await self._join(run, request, admission, story), story)
                    case Seen(snapshot):
                        reply = await self._by_sight(snapshot, request, story, is_dated=run.order < order)
                        if reply is not None:
                            return _with_preference(reply, story)
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

    async def _lead(self, run: Run, admission: Granted, story: _Story) -> Reply:
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
            return self._still_running(run, admission, status=504)
        story.upstream_status = ending.upstream_status
        story.upstream_seconds = ending.upstream_seconds
        return ending.reply

    async def _join(self, run: Run, request: KeyedRequest, admission: Granted, story: _Story) -> Reply:
        """Rules 9 and 13 for a duplicate of a request that this process is executing."""
        route, record = request.route, admission.record
        story.attempt = record.attempts
        match, _ = compare(record.fingerprint, request.fingerprints)
        if match is Match.DIFFERENT or (match is Match.UNKNOWN and not route.accepts_recipe_change):
            return refuse_by(Word.KEY_REUSED, record, route)
        wait_seconds = self._patience_seconds(request, story)
        ending: Ending | None = None
        # It will not be executed, whatever comes: its body need not wait with it.
        request.body.close()
        overtaken = await self._overtaken(run)
        if overtaken is not None:
            reply_by_record = await self._by_sight(overtaken, request, story)
            return _after_wait(overtaken, request) if reply_by_record is None else reply_by_record
        with self._place(route) as has_place:
            if has_place:
                ending = await run.granted_attempt.wait_ended(wait_seconds)
        if ending is None:
            return self._still_running(run, admission)
        if isinstance(ending.others, Reply):
            return shared_with(ending.others, request.head.headers)
        return _after_wait(ending.others, request)

    def _patience_seconds(self, request: KeyedRequest, story: _Story) -> float:
        """How long this request waits from now on; what it waited before, for a probe or for others, is part of it."""
        now = self._loop.time()
        if story.wait_until is None:
            wait_seconds, story.preferred = _patience(request)
            story.wait_until = now + wait_seconds
        return max(0.0, story.wait_until - now)

    @contextmanager
    def _place(self, route: Route) -> Iterator[bool]:
        """A place among those who wait on this route, if there is one."""
        has_place = self._waiters[route.name] < route.in_flight.waiters_max
        self._waiters[route.name] += has_place
        try:
            yield has_place
        finally:
            self._waiters[route.name] -= has_place

    async def _overtaken(self, run: Run) -> Snapshot | None:
        """The record, when it has gone on without the attempt that still runs here; None when it has not, or may not.

        Such an attempt waits for an answer that nobody will get. Its duplicates must not wait for it.
        """
        attempt = run.granted_attempt
        if attempt.is_exclusive():
            return None
        try:
            snapshot = await self._store.read(run.request.identity.operation_id)
        except StoreError:
            return None
        record = snapshot.record
        if record is None or record.attempt_id != attempt.record.attempt_id:
            return snapshot
        return None if record.state in (State.CLAIMED, State.IN_DOUBT) else snapshot

    async def _by_sight(
        self, snapshot: Snapshot, request: KeyedRequest, story: _Story, *, is_dated: bool = False
    ) -> Reply | None:
        """Rules 9 to 14 for a record that somebody else made; None when it is free and may be claimed after all.

        `is_dated`: it may have been looked at before the request came, and what was seen be over since. None then too,
        but for what is completed and stays so.
        """
        if is_dated and snapshot.state is not State.COMPLETED:
            return None
        route, operation_id = request.route, request.identity.operation_id
        story.attempt = 0 if snapshot.record is None else snapshot.record.attempts
        match judge(snapshot, request.fingerprints, accept_recipe_change=route.accepts_recipe_change):
            case Replay(record):
                return replay_of(record, request.head.headers)
            case Refuse(word, record):
                return refuse_by(word, record, route)
            case Doubt(record, is_same):
                found = None
                if is_same and isinstance(route.recovery, Probe):
                    wait_seconds = self._patience_seconds(request, story)
                    with self._place(route) as has_place:
                        if has_place:
                            found = await self._prober.resolve(route, operation_id, wait_seconds)
                if found is None:
                    return refuse_by(Word.IN_DOUBT, record, route)
                return await self._by_sight(found, request, story)
            case Wait(record):
                wait_seconds = self._patience_seconds(request, story)
                latest = None
                request.body.close()
                with self._place(route) as has_place:
                    if has_place:
                        latest = await self._waiting.wait_settled(operation_id, wait_seconds)
                return in_flight_at(snapshot, record, route) if latest is None else _after_wait(latest, request)
            case Claimable():
                return None
            case judgement:
                assert_never(judgement)

    async def _by_journal(self, request: KeyedRequest, story: _Story) -> Reply | None:
        """Rules 9 to 14 for an operation whose outcome the durable store has yet to take; None when it has it."""
        try:
            snapshot = await self._journaling.find(request.identity.operation_id)
        except StoreError as error:
            _LOG.error("the journal cannot be read: %s", error)
            return refuse(
                Word.IN_DOUBT, shape=request.route.shape, status=503, operation_id=request.identity.operation_id
            )
        if snapshot is None:
            return None
        story.attempt = 0 if snapshot.record is None else snapshot.record.attempts
        return _after_wait(snapshot, request)

    def _still_running(self, run: Run, admission: Granted, status: int | None = None) -> Reply:
        """The holder is this process and renews its lease while it lives: a lease is what remains."""
        ran_seconds = self._loop.time() - run.started_seconds
        return in_flight(
            admission.record,
            run.request.route,
            ran_seconds=ran_seconds,
            remaining_seconds=self._leases.lease_seconds,
            status=status,
        )

    # -- the end ------------------------------------------------------------------------------------------------------

    def stop_admitting(self) -> None:
        """From now on refuse what would need a claim, so that `drain` comes to an end."""
        self._is_draining = True

    async def drain(self, timeout_seconds: float) -> Drained:
        """Let what runs come to its end; what has not after `timeout_seconds` is ended truthfully, by its last word."""
        self._is_draining = True
        drained = await self._runs.drain(timeout_seconds)
        await self._waiting.close()
        await self._prober.close()
        return drained


def _refuse(request: KeyedRequest, word: Word, *, detail: str | None = None) -> Reply:
    return refuse(
        word,
        shape=request.route.shape,
        operation_id=request.identity.operation_id,
        detail=detail,
    )


def _after_wait(snapshot: Snapshot, request: KeyedRequest) -> Reply:
    """What a waiter gets when its wait is over: what the record says, never a claim."""
    return by_record(
        snapshot,
        request.fingerprints,
        request.route,
        request.head.headers,
        request.identity.operation_id,
        free_word=Word.RELEASED,
    )


def _patience(request: KeyedRequest) -> tuple[float, int | None]:
    """How long a duplicate waits, in seconds, and the caller's preference if that decided."""
    policy = request.route.in_flight
    preferred = wait_preference(request.head.headers)
    if preferred is None:
        return policy.wait_seconds, None
    return min(preferred, policy.wait_seconds_max), min(preferred, int(policy.wait_seconds_max))


def _with_preference(reply: Reply, story: _Story) -> Reply:
    if story.preferred is None:
        return reply
    return replace(reply, headers=(*reply.headers, applied(story.preferred)))
