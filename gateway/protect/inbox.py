"""Accepts the events of an inbox, and acknowledges them.

A sender learns one of two things: the event is stored, or it should send it again later. What becomes of the delivery
is none of its business: a status such as 409, 410 or 422 makes senders give up an endpoint. So every repeat is
acknowledged, whatever state the operation is in, and nothing is acknowledged before the durable store has it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Any, Final, assert_never
from uuid import UUID

from gateway.core.identity.key import Key, is_within
from gateway.core.message import IndexedHeaders, RequestHead, header_values
from gateway.core.operation import MICROSECONDS, Snapshot
from gateway.core.verdict import Claimable, Judgement, Refuse, Undelivered, Verdict, Wait
from gateway.core.webhook import (
    Challenge,
    Fault,
    Inbox,
    Refused,
    Unidentified,
    VerifiedEvent,
    examine_message,
    granted_origin,
    renewed,
)
from gateway.observe.facts import Events, WebhookRefused, WebhookRepeated, WebhookVerified
from gateway.protect.accepting import Accepted, Accepting
from gateway.protect.compose import mismatch
from gateway.protect.journaling import Journaling
from gateway.protect.reply import Reply, reason_phrase, refuse
from gateway.protect.request import Request, TakenBody, Untouched
from gateway.protect.route import AcceptPolicy, Route
from gateway.store.base import StoreError, wall_clock_us

# -- verification ------------------------------------------------------------------------------------------------------
#
# Verifies the messages of inboxes before anything of them is stored, and signs them again when they are late.
#
# Owns the throttle for those who send messages that are not signed. Their failures are all answered with one text. An
# address that failed often is refused for a while before its messages are read, unless a genuine message came from it:
# it may be a proxy in front of the sender, and the sender must not be locked out by its neighbours.

_VERDICTS: Final = {
    Fault.MISSING: Verdict.SIGNATURE_MISSING,
    Fault.INVALID: Verdict.SIGNATURE_INVALID,
    Fault.STALE: Verdict.SIGNATURE_STALE,
    Fault.UNSUPPORTED: Verdict.EVENT_UNSUPPORTED,
}
# RFC 9110 section 11.6.1 wants a challenge with every 401.
_BEARER: Final = b'Bearer realm="inbox"'
_SIGNATURE: Final = b'Signature realm="inbox"'

_FAILURES_MAX: Final = 20
_THROTTLED_SECONDS: Final = 60.0
_ADDRESSES_MAX: Final = 10_000


class Throttle:
    """The addresses that failed lately, and those that did not. `clock` counts seconds and never goes back."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._genuine: OrderedDict[str, None] = OrderedDict()

    def is_throttled(self, address: str) -> bool:
        count, since = self._failures.get(address, (0, 0.0))
        is_recent = self._clock() - since < _THROTTLED_SECONDS
        return is_recent and count >= _FAILURES_MAX and address not in self._genuine

    def count_failure(self, address: str) -> None:
        """A message from this address was not signed. The count begins anew a minute after it began."""
        now = self._clock()
        count, since = self._failures.pop(address, (0, now))
        if now - since >= _THROTTLED_SECONDS:
            count, since = 0, now
        self._failures[address] = count + 1, since
        _bound(self._failures)

    def count_genuine(self, address: str) -> None:
        self._genuine[address] = None
        self._genuine.move_to_end(address)
        _bound(self._genuine)


def _bound(addresses: OrderedDict[str, Any]) -> None:
    if len(addresses) > _ADDRESSES_MAX:
        addresses.popitem(last=False)


class Verifying:
    """The verification of one gateway process."""

    def __init__(self, events: Events, clock: Callable[[], float]) -> None:
        self._events = events
        self._throttle = Throttle(clock)

    def reply_unread(self, request: Request, route: Route, inbox: Inbox) -> Reply | Untouched | None:
        """What a request gets before its body is read; None for a message that has to be verified."""
        if request.head.method == b"OPTIONS":
            return _handshake(inbox, request.head) or Untouched(request, Verdict.UNKEYED)
        if not self._throttle.is_throttled(_address(request, route)):
            return None
        self._events.publish(WebhookRefused(route.name, "throttled"))
        detail = "Too many messages from this address were not signed by their sender."
        return refuse(
            Verdict.OVERLOADED,
            shape=route.shape,
            status=429,
            detail=detail,
            retry_after_seconds=round(_THROTTLED_SECONDS),
        )

    async def verify(self, request: Request, body: TakenBody, route: Route, inbox: Inbox) -> Key | Reply:
        """The key of the event, or what the sender of anything else gets."""
        headers, now = request.head.headers, wall_clock_us() / MICROSECONDS
        found = await body.read(lambda content: examine_message(inbox, headers, content, now=now))
        address = _address(request, route)
        if isinstance(found, Refused):
            if found.reason is not Fault.UNSUPPORTED:
                self._throttle.count_failure(address)
            self._events.publish(WebhookRefused(route.name, found.reason))
            return _refused(found.reason, route, inbox)
        self._throttle.count_genuine(address)
        self._events.publish(WebhookVerified(route.name, found.secret_ids))
        match found:
            case VerifiedEvent(key=key):
                return key
            case Challenge(text):
                plain = ((b"Content-Type", b"text/plain; charset=utf-8"), (b"Cache-Control", b"no-store"))
                return Reply(200, reason_phrase(200), plain, text.encode())
            case Unidentified(places, detail):
                self._events.publish(WebhookRefused(route.name, "unidentified"))
                if detail is None:
                    detail = f"{places.places} is missing."
                return refuse(Verdict.KEY_INVALID, shape=route.shape, detail=detail)
            case _:
                assert_never(found)


def _handshake(inbox: Inbox, head: RequestHead) -> Reply | None:
    """The reply to a sender that asks whether it may deliver here; None for any other OPTIONS request. CloudEvents web
    hooks, section 4. Without the granted origin, the reply is no consent, whatever its status."""
    if not header_values(head.headers, b"webhook-request-origin"):
        return None
    allow = (b"Allow", b"OPTIONS, POST")
    origin = granted_origin(inbox, head.headers)
    if origin is None:
        return Reply(405, reason_phrase(405), (allow,), b"")
    return Reply(
        200, reason_phrase(200), (allow, (b"WebHook-Allowed-Origin", origin), (b"WebHook-Allowed-Rate", b"*")), b""
    )


async def signed_again(inbox: Inbox, head: RequestHead, body: TakenBody, operation_id: UUID) -> RequestHead:
    """The head as an attempt sends it now: with a signature that the service still accepts, where one can be made."""
    now, event_id = wall_clock_us() / MICROSECONDS, str(operation_id).encode()
    headers = await body.read(lambda content: renewed(inbox, head.headers, content, now=now, event_id=event_id))
    return head if headers is None else replace(head, headers=IndexedHeaders(headers))


def _refused(reason: Fault, route: Route, inbox: Inbox) -> Reply:
    verdict = _VERDICTS[reason]
    challenge = _BEARER if any(scheme.is_bearer for scheme in inbox.schemes) else _SIGNATURE
    authenticate = None if reason is Fault.UNSUPPORTED else challenge
    return refuse(verdict, shape=route.shape, authenticate=authenticate)


def _address(request: Request, route: Route) -> str:
    """Where a message comes from: its peer or, behind trusted proxies, the last address that none of them has."""
    address, trusted = request.hop.peer, route.target.forwarding.trusted_proxies
    if not is_within(address, trusted):
        return str(address)
    listed = b",".join(header_values(request.head.headers, b"x-forwarded-for")).split(b",")
    for text in reversed(listed[-16:]):
        try:
            address = ip_address(text.strip().decode("ascii"))
        except ValueError:
            break
        if not is_within(address, trusted):
            break
    return str(address)


# -- inbox -------------------------------------------------------------------------------------------------------------

_RETRY_AFTER_SECONDS: Final = 5


@dataclass(eq=False, slots=True)
class Receiving:
    """The inboxes of one gateway process. `recall` returns the record of a completed operation if this process
    remembers it."""

    accepting: Accepting
    journaling: Journaling
    events: Events
    recall: Callable[[UUID], Snapshot | None]

    async def receive(self, request: Request, inbox: Inbox, policy: AcceptPolicy) -> Reply:
        """The reply to a genuine event. The caller closes the request's body. When this is cancelled, the event may
        have been accepted all the same: the sender repeats it, and learns that."""
        snapshot = self.recall(request.identity.operation_id)
        if snapshot is None or snapshot.record is None:
            found = await self.accepting.accept(request, policy)
            if isinstance(found, Accepted):
                return _acknowledged(inbox, Verdict.ACCEPTED)
            if isinstance(found, Reply):
                # An event that was delivered may be repeated while the store is away.
                is_unknown = found.verdict in (Verdict.STORE_UNAVAILABLE, Verdict.IN_DOUBT)
                known = await self._find(request) if is_unknown else None
                return found if known is None else await self._reply_to_repeat(known, request, inbox, policy)
            snapshot = found.snapshot
        return await self._reply_to_repeat(snapshot, request, inbox, policy)

    async def _find(self, request: Request) -> Snapshot | None:
        with suppress(StoreError):
            return await self.journaling.find(request.identity.operation_id)
        return None

    async def _reply_to_repeat(self, snapshot: Snapshot, request: Request, inbox: Inbox, policy: AcceptPolicy) -> Reply:
        judgement = request.judge(snapshot)
        if isinstance(judgement, Undelivered) and judgement.is_same:
            await self.accepting.requeue(snapshot, policy)
        reply = reply_to_repeat(judgement, request, inbox)
        if reply.verdict is not Verdict.IN_FLIGHT:
            is_changed, differs = False, tuple[str, ...]()
            if isinstance(judgement, Refuse) and judgement.verdict is Verdict.KEY_REUSED:
                is_changed, differs = True, request.differences(judgement.record)
            operation_id = request.identity.operation_id
            self.events.publish(WebhookRepeated(request.route.name, operation_id, is_changed, differs))
        return reply


def reply_to_repeat(judgement: Judgement, request: Request, inbox: Inbox) -> Reply:
    match judgement:
        case Claimable() | Wait():
            # Not an event of this inbox: an earlier configuration executed it, and its sender still waits.
            return refuse(
                Verdict.IN_FLIGHT,
                shape=request.route.shape,
                status=503,
                operation_id=request.identity.operation_id,
                retry_after_seconds=_RETRY_AFTER_SECONDS,
            )
        case Refuse(Verdict.KEY_REUSED, record) if inbox.refuses_changed:
            return mismatch(record, request, status=409)
        case _:
            return _acknowledged(inbox, Verdict.EVENT_DUPLICATE)


def _acknowledged(inbox: Inbox, verdict: Verdict) -> Reply:
    status = inbox.acknowledgement
    return Reply(status, reason_phrase(status), ((b"Cache-Control", b"no-store"),), b"", verdict)
