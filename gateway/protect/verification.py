"""Verifies the messages of inboxes before anything of them is stored, and signs them again when they are late.

Owns the throttle for those who send messages that are not signed. Their failures are all answered with one text. An
address that failed often is refused for a while before its messages are read, unless a genuine message came from it: it
may be a proxy in front of the sender, and the sender must not be locked out by its neighbours.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from ipaddress import ip_address
from typing import Final, assert_never
from uuid import UUID

from gateway.core.identity.key import Key
from gateway.core.message import Headers, RequestHead, header_values
from gateway.core.operation import MICROSECONDS
from gateway.core.verdict import Verdict
from gateway.core.webhook.examination import (
    Challenge,
    Inbox,
    Unidentified,
    VerifiedEvent,
    examine_message,
    granted_origin,
    renewed,
)
from gateway.core.webhook.signature import Fault, Refused
from gateway.observe.facts import Events, WebhookRefused, WebhookVerified
from gateway.protect.body import TakenBody
from gateway.protect.problem import refuse
from gateway.protect.reply import Reply, reason_phrase
from gateway.protect.request import Request, Untouched
from gateway.protect.route import Route
from gateway.store.base import wall_clock_us

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
        """Whether messages from this address are refused now."""
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
        if len(self._failures) > _ADDRESSES_MAX:
            self._failures.popitem(last=False)

    def count_genuine(self, address: str) -> None:
        """A message from this address was genuine."""
        self._genuine[address] = None
        self._genuine.move_to_end(address)
        if len(self._genuine) > _ADDRESSES_MAX:
            self._genuine.popitem(last=False)


class Verifying:
    """The verification of one gateway process."""

    def __init__(self, events: Events, clock: Callable[[], float]) -> None:
        """`clock` as in `Throttle`."""
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
                return _plain_text(text)
            case Unidentified(places, detail):
                self._events.publish(WebhookRefused(route.name, "unidentified"))
                if detail is None:
                    detail = f"{places.places} is missing."
                return refuse(Verdict.KEY_INVALID, shape=route.shape, detail=detail)
            case _:
                assert_never(found)


def _handshake(inbox: Inbox, head: RequestHead) -> Reply | None:
    """The reply to a sender that asks whether it may deliver here; None for any other OPTIONS request.

    CloudEvents web hooks, section 4. Without the granted origin, the reply is no consent, whatever its status.
    """
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
    return head if headers is None else replace(head, headers=headers)


def _refused(reason: Fault, route: Route, inbox: Inbox) -> Reply:
    verdict = _VERDICTS[reason]
    challenge = _BEARER if any(scheme.is_bearer for scheme in inbox.schemes) else _SIGNATURE
    authenticate = None if reason is Fault.UNSUPPORTED else challenge
    return refuse(verdict, shape=route.shape, authenticate=authenticate)


def _plain_text(text: str) -> Reply:
    headers: Headers = ((b"Content-Type", b"text/plain; charset=utf-8"), (b"Cache-Control", b"no-store"))
    return Reply(200, reason_phrase(200), headers, text.encode())


def _address(request: Request, route: Route) -> str:
    """Where a message comes from: its peer or, behind trusted proxies, the last address that none of them has."""
    address, trusted = request.hop.peer, route.target.forwarding.trusted_proxies
    if address is None or not any(address in network for network in trusted):
        return str(address)
    listed = b",".join(header_values(request.head.headers, b"x-forwarded-for")).split(b",")
    for text in reversed(listed[-16:]):
        try:
            address = ip_address(text.strip().decode("ascii"))
        except ValueError:
            break
        if not any(address in network for network in trusted):
            break
    return str(address)
