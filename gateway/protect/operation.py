"""One operation in flight in this process: the result of its claim, and of its attempt, for the callers that wait.

The operation's task reports here (see `operations` and `attempt`), and its callers wait here. The first caller is the
one whose request is executed. It waits once, for whichever comes first: a claim that was not granted, the conclusion of
the attempt, or the end of its patience.

Only the first caller can take a streamed response. If it has left by then, the stream is aborted, and this module
publishes the event that its request would have had.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from gateway.core.immutable import immutable
from gateway.core.operation import OutcomeCommand, Record
from gateway.observe.facts import EndedUnanswered, Events
from gateway.protect.claiming import Admission, Granted, Seen, Unavailable
from gateway.protect.conclusion import Conclusion, abandoned, unused
from gateway.protect.leases import Lease
from gateway.protect.limits import Call, Limits
from gateway.protect.reply import Reply
from gateway.protect.request import Request
from gateway.protect.slices import Slices
from gateway.protect.trace import request_info
from gateway.store.base import NO_PLACE


@immutable
class DeliveryAttempt:
    """That an operation is in flight because its kept request is delivered.

    `record` is as it was read before the claim. `unopenable` is why the request cannot be opened, so that it is not
    sent; None where it was. `on_send` is called right before the first byte goes out.
    """

    record: Record
    unopenable: str | None = None
    on_send: Callable[[], None] = lambda: None


class Operation:
    """One operation in flight. The result of its claim, its admission, comes first; if that is `Granted`, an attempt
    is under way.

    `order`: see `Operations.orders`. `delivery` is set where a kept request is delivered: then its first caller is
    the worker, which wants no response. The operation owns the body of its request; when
    its claim is not granted, the body goes back to the first caller.

    `record`, `lease` and `is_first` are those of the granted claim. `has_sent`: a byte may have left under it.
    `command` records its outcome, once that is known; `is_settled`: store or journal have it.
    """

    __slots__ = (
        "_admission",
        "_admitted",
        "_began",
        "_ended",
        "_events",
        "_first",
        "_is_first_result_final",
        "_is_overdue",
        "_limits",
        "_loop",
        "_result",
        "_slices",
        "_waiters",
        "command",
        "delivery",
        "has_sent",
        "is_claimed",
        "is_first",
        "is_settled",
        "lease",
        "order",
        "origin",
        "place",
        "record",
        "request",
        "started_seconds",
    )

    record: Record
    lease: Lease
    is_first: bool

    def __init__(
        self,
        request: Request,
        order: int,
        events: Events,
        loop: asyncio.AbstractEventLoop,
        slices: Slices,
        limits: Limits,
        delivery: DeliveryAttempt | None = None,
    ) -> None:
        self.request = request
        self.delivery = delivery
        self.order = order
        self.started_seconds = loop.time()
        request.owner = self
        self.is_claimed = False
        self.has_sent = False
        self.command: OutcomeCommand | None = None
        self.is_settled = False
        self.origin: str | None = None
        self.place = NO_PLACE
        self._events = events
        self._loop = loop
        self._slices = slices
        self._limits = limits
        self._began = time.monotonic()
        # None: the first caller's patience is over. Once done, or cancelled with the caller, this takes no result.
        self._first: asyncio.Future[Conclusion | Seen | Unavailable | None] = loop.create_future()
        self._is_first_result_final = True
        self._is_overdue = False
        # The futures are there as soon as a duplicate waits for them.
        self._admission: Admission | None = None
        self._admitted: asyncio.Future[None] | None = None
        self._result: Conclusion | None = None
        self._ended: asyncio.Future[Conclusion] | None = None
        self._waiters = 0

    @property
    def final_command(self) -> OutcomeCommand | None:
        """The command that ends the claim if everything stops now; it never claims more than is known. None where there
        is no claim to end."""
        if not self.is_claimed or self.is_settled:
            return None
        if self.command is not None:
            return self.command
        return abandoned(self.record, "interrupted") if self.has_sent else unused(self.request, self.record)

    # -- for callers --------------------------------------------------------------------------------------------------

    async def wait_first(self, until: float) -> Conclusion | Seen | Unavailable | None:
        """For the first caller, once: the result, or why there is no claim; None when the time is over before that.
        `until` is on the loop's clock.

        Waits for the result of the claim even when the time is over, because that comes soon. The caller must read or
        abort a streamed response. Cancelling this cancels nothing else.
        """
        patience = Call(until, self._end_patience)
        self._limits.add(patience)
        try:
            return await self._first
        except asyncio.CancelledError:
            if not self._first.cancelled() and isinstance(unread := self._first.result(), Conclusion):
                self._drop(unread, is_final=self._is_first_result_final)
            raise
        finally:
            self._limits.due.pop(patience, None)

    async def wait_ended(self) -> Conclusion | Seen | Unavailable:
        """For a first caller that wants no response, once: how the attempt ended, or why there is no claim.

        Waits until nothing is left to be recorded. Cancelling this cancels nothing else.
        """
        first = await self._first
        if isinstance(first, Seen | Unavailable):
            return first
        if first is not None:
            abort_stream(first.reply)
        while self._result is None:
            await asyncio.wait((self._next_result(),))
        return self._result

    async def wait_admission(self) -> Admission:
        """The result of the claim. Cancelling this cancels nothing else."""
        while self._admission is None:
            if self._admitted is None:
                self._admitted = self._loop.create_future()
            await self._slices.until(self._admitted)
        return self._admission

    async def wait_result(self, timeout_seconds: float) -> Conclusion | None:
        """How the attempt ended, or None if that is not known in time. Cancelling this cancels nothing else."""
        if self._result is not None:
            return self._result
        result = self._next_result()
        self._waiters += 1
        try:
            await self._slices.until(result, timeout_seconds)
        finally:
            self._waiters -= 1
        return result.result() if result.done() else None

    @property
    def has_waiters(self) -> bool:
        """Whether duplicates wait for the result."""
        return self._waiters > 0

    def is_exclusive(self) -> bool:
        """Whether the claim surely still belongs to this operation. When False, it may or may not."""
        return self.is_claimed and self.lease.is_trusted()

    # -- for its task -------------------------------------------------------------------------------------------------

    def granted(self, admission: Granted, lease: Lease) -> None:
        """The claim was granted, and an attempt starts under it."""
        self.record, self.lease, self.is_first = admission.record, lease, admission.is_first
        self.origin, self.place = admission.origin, admission.place
        self.is_claimed = True
        self._admission = admission
        if self._admitted is not None:
            self._admitted.set_result(None)
        if self._is_overdue:
            self._end_patience()

    def not_granted(self, admission: Seen | Unavailable) -> None:
        """The claim was not granted, and nothing is executed."""
        self.request.owner = None
        self._admission = admission
        if self._admitted is not None:
            self._admitted.set_result(None)
        if self._first.done():
            self.request.taken.close()
        else:
            self._first.set_result(admission)

    def publish(self, result: Conclusion, *, is_final: bool = True) -> None:
        """The attempt ended. Not `is_final`: the write goes on, and duplicates to come wait for its result."""
        if self._first.done():
            self._drop(result, is_final=is_final)
        else:
            self._is_first_result_final = is_final
            self._first.set_result(result)
        if is_final:
            self._result = result
        if self._ended is not None:
            ended, self._ended = self._ended, None
            ended.set_result(result)

    @property
    def has_result(self) -> bool:
        """Whether the final result was published."""
        return self._result is not None

    # -- inside -------------------------------------------------------------------------------------------------------

    def _next_result(self) -> asyncio.Future[Conclusion]:
        if self._ended is None:
            self._ended = self._loop.create_future()
        return self._ended

    def _end_patience(self) -> None:
        """End the first caller's wait, as soon as the result of the claim is known."""
        self._is_overdue = True
        if self.is_claimed and not self._first.done():
            self._first.set_result(None)

    def _drop(self, result: Conclusion, *, is_final: bool) -> None:
        """Abort the reply to a first caller that has left, and publish the event that its request would have had."""
        reply, request = result.reply, self.request
        abort_stream(reply)
        if is_final and reply.verdict is not None:
            self._events.publish(
                EndedUnanswered(
                    route=request.route.name,
                    verdict=reply.verdict,
                    status=reply.status,
                    duration_seconds=time.monotonic() - self._began,
                    operation_id=request.identity.operation_id,
                    upstream_status=result.upstream_status,
                    attempt=self.record.attempts,
                    request=request_info(request.head),
                )
            )


def abort_stream(reply: Reply) -> None:
    """Abort the reply's stream, if it has one."""
    if not isinstance(reply.body, bytes):
        reply.body.abort()
