"""One operation in flight in this process: what became of its claim and how it ended, for the callers who wait for it.

The task of the operation reports here (see `operations` and `attempt`), and its callers wait here. The first caller is
the one whose request is executed. It waits once, for whatever comes first: a claim that was refused, the result of the
attempt, or the end of its patience.

A response that is streamed is for the first caller alone. Where that one has left before it took it, the stream is
aborted, and the line in the log that its request would have had is published here.
"""

from __future__ import annotations

import asyncio

from gateway.core.immutable import immutable
from gateway.core.operation import OutcomeCommand, Record, Snapshot
from gateway.observe.facts import EndedUnanswered, Events
from gateway.protect.claiming import Admission, Granted, Seen, Unavailable
from gateway.protect.identification import KeyedRequest
from gateway.protect.leases import Lease
from gateway.protect.reply import Reply
from gateway.protect.stopwatch import Stopwatch
from gateway.protect.trace import request_info


@immutable
class AttemptResult:
    """How an attempt ended: `reply` for its first caller, and what the `others` get who waited.

    That is one reply for all of them, or the record as it is then, which says what each gets. `is_recorded`: the store
    has this or, because it is an answer, is going to. Otherwise others may go on with the operation once the lease is
    over, and it may end in another way.
    """

    reply: Reply
    others: Reply | Snapshot
    upstream_status: int | None = None
    upstream_seconds: float | None = None
    is_recorded: bool = False


class Operation:
    """One operation in flight. Its admission is known first; where that is `Granted`, an attempt is under way.

    `order` is its place among all that came to the records of this process. The body of its request belongs to it
    while it `keeps_body`: from the beginning, and beyond the admission where that is `Granted`. Else it is the first
    caller's again. `last_word` is at any moment the command that ends the claim truthfully, should everything stop.
    """

    __slots__ = (
        "_admission",
        "_events",
        "_first",
        "_is_first_result_final",
        "_is_overdue",
        "_lease",
        "_loop",
        "_record",
        "_result",
        "_stopwatch",
        "keeps_body",
        "last_word",
        "order",
        "request",
        "started_seconds",
    )

    def __init__(self, request: KeyedRequest, order: int, events: Events, loop: asyncio.AbstractEventLoop) -> None:
        self.request = request
        self.order = order
        self.started_seconds = loop.time()
        self.keeps_body = True
        self.last_word: OutcomeCommand | None = None
        self._record: Record | None = None
        self._lease: Lease | None = None
        self._events = events
        self._loop = loop
        self._stopwatch = Stopwatch()
        self._admission: asyncio.Future[Admission] = loop.create_future()
        # None: its patience is over. Done, or cancelled with the caller, it takes nothing more.
        self._first: asyncio.Future[AttemptResult | Seen | Unavailable | None] = loop.create_future()
        self._is_first_result_final = True
        self._is_overdue = False
        # What the others wait for; where nothing durable takes the outcome, there is a later one.
        self._result: asyncio.Future[AttemptResult] = loop.create_future()

    @property
    def is_claimed(self) -> bool:
        """Whether its claim was granted."""
        return self._record is not None

    @property
    def record(self) -> Record:
        """As it was when the claim was granted."""
        if self._record is None:
            raise RuntimeError("the record of an operation before its claim was granted")
        return self._record

    # -- for callers --------------------------------------------------------------------------------------------------

    async def wait_first(self, timeout_seconds: float) -> AttemptResult | Seen | Unavailable | None:
        """For the first caller, once: the result, or why there is no claim; None where its time ends before the result.

        What becomes of the claim is known soon, and waited for even when the time is over. A response that is streamed
        is then the caller's to read or abort. Cancelling this cancels nothing else.
        """
        timer = self._loop.call_later(max(0.0, timeout_seconds), self._end_patience)
        try:
            return await self._first
        except asyncio.CancelledError:
            if not self._first.cancelled() and isinstance(untaken := self._first.result(), AttemptResult):
                self._drop(untaken, is_final=self._is_first_result_final)
            raise
        finally:
            timer.cancel()

    async def wait_admission(self) -> Admission:
        """What became of the claim. Cancelling this cancels nothing else."""
        return await asyncio.shield(self._admission)

    async def wait_result(self, timeout_seconds: float) -> AttemptResult | None:
        """How the attempt ended, or None when that did not become known in time.

        Cancelling this cancels nothing else.
        """
        result = self._result
        await asyncio.wait((result,), timeout=max(0.0, timeout_seconds))
        return result.result() if result.done() else None

    def is_exclusive(self) -> bool:
        """Whether the claim is surely still this operation's. When False, it may or may not be."""
        return self._lease is not None and self._lease.is_trusted()

    # -- for its task -------------------------------------------------------------------------------------------------

    def granted(self, admission: Granted, lease: Lease, last_word: OutcomeCommand) -> None:
        """The claim was granted, and an attempt is made under it."""
        self._record, self._lease, self.last_word = admission.record, lease, last_word
        self._admission.set_result(admission)
        if self._is_overdue:
            self._end_patience()

    def not_granted(self, admission: Seen | Unavailable) -> None:
        """The claim was not granted, and nothing is executed."""
        self.keeps_body = False
        self._admission.set_result(admission)
        if self._first.done():
            self.request.body.close()
        else:
            self._first.set_result(admission)

    def publish(self, result: AttemptResult, *, is_final: bool = True) -> None:
        """The attempt ended so. Not `is_final`: the write goes on, and who comes from now on waits for its result."""
        if self._first.done():
            self._drop(result, is_final=is_final)
        else:
            self._is_first_result_final = is_final
            self._first.set_result(result)
        self._result.set_result(result)
        if not is_final:
            self._result = self._loop.create_future()

    @property
    def has_result(self) -> bool:
        """Whether the final result was published."""
        return self._result.done()

    # -- inside -------------------------------------------------------------------------------------------------------

    def _end_patience(self) -> None:
        """The first caller waits no longer, once it is known whether there is a claim."""
        self._is_overdue = True
        if self._record is not None and not self._first.done():
            self._first.set_result(None)

    def _drop(self, result: AttemptResult, *, is_final: bool) -> None:
        """The first caller takes nothing any more: the line in the log that its request would have had is this one."""
        reply, request = result.reply, self.request
        abort_stream(reply)
        if is_final and reply.verdict is not None:
            self._events.publish(
                EndedUnanswered(
                    route=request.route.name,
                    verdict=reply.verdict,
                    status=reply.status,
                    duration_seconds=self._stopwatch.seconds,
                    operation_id=request.identity.operation_id,
                    upstream_status=result.upstream_status,
                    attempt=self.record.attempts,
                    request=request_info(request.head),
                )
            )


def abort_stream(reply: Reply) -> None:
    """Give up what the reply would stream, if it does."""
    if not isinstance(reply.body, bytes):
        reply.body.abort()
