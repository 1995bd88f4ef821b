"""Accepts the events of an inbox, and acknowledges them.

A sender learns one of two things: the event is stored, or it should send it again later. What becomes of the delivery
is none of its business: a status such as 409, 410 or 422 makes senders give up an endpoint. So every repeat is
acknowledged, whatever state the operation is in, and nothing is acknowledged before the durable store has it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final
from uuid import UUID

from gateway.core.immutable import immutable
from gateway.core.operation import Snapshot
from gateway.core.verdict import Claimable, Judgement, Refuse, Undelivered, Verdict, Wait
from gateway.core.webhook.examination import Inbox
from gateway.observe.facts import Events, WebhookRepeated
from gateway.protect.accepting import Accepted, Accepting
from gateway.protect.compose import mismatch
from gateway.protect.journaling import Journaling
from gateway.protect.problem import refuse
from gateway.protect.reply import Reply, reason_phrase
from gateway.protect.request import Request
from gateway.protect.route import AcceptPolicy
from gateway.store.base import StoreError

_RETRY_AFTER_SECONDS: Final = 5


class Receiving:
    """The inboxes of one gateway process."""

    def __init__(
        self,
        accepting: Accepting,
        journaling: Journaling,
        events: Events,
        recall: Callable[[UUID], Snapshot | None],
    ) -> None:
        """`recall` returns the record of a completed operation if this process remembers it."""
        self._accepting = accepting
        self._journaling = journaling
        self._events = events
        self._recall = recall

    async def receive(self, request: Request, inbox: Inbox, policy: AcceptPolicy) -> Reply:
        """The reply to a genuine event. The caller closes the request's body.

        When this is cancelled, the event may have been accepted all the same: the sender repeats it, and learns that.
        """
        snapshot = self._recall(request.identity.operation_id)
        if snapshot is None or snapshot.record is None:
            found = await self._accepting.accept(request, policy)
            if isinstance(found, Reply):
                # An event that was delivered may be repeated while the store is away.
                is_unknown = found.verdict in (Verdict.STORE_UNAVAILABLE, Verdict.IN_DOUBT)
                known = await self._find(request) if is_unknown else None
                return found if known is None else await self._reply_to_repeat(known, request, inbox, policy)
            snapshot = found.snapshot
            if isinstance(found, Accepted):
                return _acknowledged(inbox, Verdict.ACCEPTED)
        return await self._reply_to_repeat(snapshot, request, inbox, policy)

    async def _find(self, request: Request) -> Snapshot | None:
        with suppress(StoreError):
            return await self._journaling.find(request.identity.operation_id)
        return None

    async def _reply_to_repeat(self, snapshot: Snapshot, request: Request, inbox: Inbox, policy: AcceptPolicy) -> Reply:
        judgement = request.judge(snapshot)
        if isinstance(judgement, Undelivered) and judgement.is_same:
            await self._accepting.requeue(snapshot, policy)
        repeat = repeated(judgement, request, inbox)
        if repeat.reply.verdict is not Verdict.IN_FLIGHT:
            operation_id = request.identity.operation_id
            self._events.publish(WebhookRepeated(request.route.name, operation_id, repeat.is_changed, repeat.differs))
        return repeat.reply


@immutable
class Repeat:
    """The reply to a repeat of an event, and whether its content is another one, and in what."""

    reply: Reply
    is_changed: bool = False
    differs: tuple[str, ...] = ()


def repeated(judgement: Judgement, request: Request, inbox: Inbox) -> Repeat:
    """What becomes of a repeat."""
    match judgement:
        case Claimable() | Wait():
            # Not an event of this inbox: an earlier configuration executed it, and its sender still waits.
            return Repeat(
                refuse(
                    Verdict.IN_FLIGHT,
                    shape=request.route.shape,
                    status=503,
                    operation_id=request.identity.operation_id,
                    retry_after_seconds=_RETRY_AFTER_SECONDS,
                )
            )
        case Refuse(Verdict.KEY_REUSED, record):
            reply, differs = _acknowledged(inbox, Verdict.EVENT_DUPLICATE), request.differences(record)
            if inbox.refuses_changed:
                reply = mismatch(record, request, status=409)
            return Repeat(reply, is_changed=True, differs=differs)
        case _:
            return Repeat(_acknowledged(inbox, Verdict.EVENT_DUPLICATE))


def _acknowledged(inbox: Inbox, verdict: Verdict) -> Reply:
    status = inbox.acknowledgement
    return Reply(status, reason_phrase(status), ((b"Cache-Control", b"no-store"),), b"", verdict)
