"""Notices requests that a caller sends again under another key, and replies to those that are refused.

Counting is best effort: this process remembers what it saw, up to a number, and Redis has what other gateways saw.
It decides nothing and no request waits for it. What is refused, the durable store decides, with the claim.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final
from uuid import UUID

from gateway.core.operation import MICROSECONDS, Content
from gateway.core.verdict import Verdict
from gateway.observe.facts import Events, RepeatNoticed, RepeatResult
from gateway.protect.problem import refuse
from gateway.protect.reply import Reply
from gateway.protect.request import Request, scope_name
from gateway.store.base import StoreError

_LOG = logging.getLogger("gateway")

# Some 200 bytes each.
_REMEMBERED_MAX: Final = 50_000
# Lookups in Redis that are under way. Beyond that, only this process's memory counts.
_LOOKUPS_MAX: Final = 1_000

FirstOf = Callable[[bytes, UUID, int], Awaitable[UUID | None]]
"""Remembers who sent a content first: its digest, the operation, and for how many milliseconds. Returns who did; None
where that cannot be known. May raise `StoreError`, also at the call."""


class Repeats:
    """The repeats that one gateway process notices. Lives on one event loop."""

    def __init__(self, events: Events, first_of: FirstOf | None, clock: Callable[[], float]) -> None:
        """`clock` counts seconds and never goes back."""
        self._events = events
        self._first_of = first_of
        self._clock = clock
        # By content: the operation that had it first, and until when, the oldest first.
        self._seen: OrderedDict[bytes, tuple[UUID, float]] = OrderedDict()
        self._lookups: set[asyncio.Task[None]] = set()

    def count(self, request: Request) -> None:
        """A request is about to be executed or was accepted: count it if its caller sent it before."""
        policy, content, operation_id = request.route.repeats, request.content, request.identity.operation_id
        if policy is None:
            return
        if content is None:
            self._publish(request, RepeatResult.INCOMPARABLE, None)
        elif not policy.refuses and not content.is_distinct:
            first = self._remember(content, operation_id)
            if first != operation_id:
                self._publish(request, RepeatResult.COUNTED, first)
            elif self._first_of is not None and len(self._lookups) < _LOOKUPS_MAX:
                task = asyncio.get_running_loop().create_task(self._look_up(request, content, self._first_of))
                self._lookups.add(task)
                task.add_done_callback(self._lookups.discard)

    def refuse(self, request: Request, first: UUID) -> Reply:
        """Rule 17: the reply to a request whose content another operation holds."""
        self._publish(request, RepeatResult.REFUSED, first)
        return refuse(
            Verdict.LIKELY_DUPLICATE,
            shape=request.route.shape,
            operation_id=request.identity.operation_id,
            first_operation=first,
        )

    async def close(self) -> None:
        """Give up the lookups under way."""
        for task in self._lookups:
            task.cancel()
        await asyncio.gather(*self._lookups, return_exceptions=True)

    def _remember(self, content: Content, operation_id: UUID) -> UUID:
        """The operation that had the content first: this one, if no other had."""
        now = self._clock()
        first, until = self._seen.get(content.digest, (operation_id, 0.0))
        if now < until:
            return first
        self._seen.pop(content.digest, None)
        self._seen[content.digest] = (operation_id, now + content.within_us / MICROSECONDS)
        while len(self._seen) > _REMEMBERED_MAX:
            self._seen.popitem(last=False)
        return operation_id

    async def _look_up(self, request: Request, content: Content, first_of: FirstOf) -> None:
        operation_id = request.identity.operation_id
        try:
            first = await first_of(content.digest, operation_id, content.within_us // 1_000)
        except StoreError as error:
            _LOG.debug("who sent a content first could not be asked: %s", error)
            return
        if first is not None and first != operation_id:
            self._publish(request, RepeatResult.COUNTED, first)

    def _publish(self, request: Request, result: RepeatResult, first: UUID | None) -> None:
        identity = request.identity
        self._events.publish(
            RepeatNoticed(request.route.name, result, identity.operation_id, first, scope_name(identity.scope_digest))
        )
