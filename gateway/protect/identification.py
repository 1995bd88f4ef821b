"""Rules 4 to 7: which operation a request is, and whose.

Owns the way from a request as it came to an operation with fingerprints: the key, the scope, the whole body, the
digests. It claims nothing and uses no store. A request that it refuses leaves nothing behind.
"""

from __future__ import annotations

import logging
from functools import partial
from uuid import UUID

from gateway.config import Order
from gateway.core.identity.fingerprint import Digests
from gateway.core.identity.key import Key, KeyFault
from gateway.core.identity.operation_id import identity_of, stored_digest
from gateway.core.identity.scope import Scope
from gateway.core.lane import lane_of
from gateway.core.message import RequestHead, header_values, values_by_name
from gateway.core.operation import ProbeTarget
from gateway.core.reading import version_of
from gateway.core.recovery import Probe, Resend, probe_values, render_probe
from gateway.core.verdict import Verdict
from gateway.protect.body import (
    INLINE_BYTES_MAX,
    NoSlot,
    Spool,
    SpoolFailed,
    TakenBody,
    UploadSlots,
    WholeBody,
    taken_now,
)
from gateway.protect.callers import Caller, Callers, Verified, refuse_caller
from gateway.protect.forwarding import with_headers
from gateway.protect.preference import responds_async
from gateway.protect.problem import refuse
from gateway.protect.reply import Reply
from gateway.protect.request import Request, Untouched
from gateway.protect.route import Route
from gateway.protect.verification import Verifying

_LOG = logging.getLogger("gateway")


class Identifying:
    """Identifies requests for one service. `identity_secret` keys identities. With `keeps_clear_keys`, records hold
    keys in clear."""

    def __init__(
        self,
        service: str,
        spool: Spool,
        upload_slots: UploadSlots,
        verifying: Verifying,
        callers: Callers,
        *,
        identity_secret: bytes | None = None,
        keeps_clear_keys: bool = False,
    ) -> None:
        self._verifying = verifying
        self._callers = callers
        self._service = service
        self._identity_secret = identity_secret
        self._spool = spool
        self._upload_slots = upload_slots
        self._keeps_clear_keys = keeps_clear_keys

    async def identify(self, request: Request, route: Route) -> Reply | Untouched | None:
        """Rules 4 to 7: complete the request, or return what becomes of it otherwise. Decides by the head where
        possible, so that no body is read for nothing.

        The caller owns the body that an identified request has taken; a refusal leaves none. Raises what the request's
        body raises when it is cut short.
        """
        inbox = route.inbox
        if inbox is not None and (reply := self._verifying.reply_unread(request, route, inbox)) is not None:
            return reply
        if route.authorize is not None:
            permission = await self._callers.authorize(route.authorize, request)
            if not isinstance(permission, Verified):
                return refuse_caller(permission, route.shape)
            request.head = with_headers(request.head, permission.headers)
        key: Key | KeyFault | None = None
        caller: Caller | None = None
        by_name = values_by_name(request.head.headers)
        is_key_in_body = inbox is not None or route.key.needs_body
        if not is_key_in_body and (key := route.key.find_key(by_name, None)) is None:
            return _without_key(request, route)
        if not is_key_in_body or (inbox is None and route.is_key_required):
            # Whatever the body holds, a stranger is refused: so it is not read.
            scope = route.scope.find_scope(by_name, request.hop.peer)
            asked = Caller(scope) if isinstance(scope, Scope) else await self._caller_of(request, route)
            if isinstance(asked, Reply):
                return asked
            caller = asked
        bytes_max = min(route.settings.body.max_bytes, route.spool_over_bytes)
        body = taken_now(request.body, bytes_max=bytes_max) or await self._read_body(request, route)
        if isinstance(body, Reply):
            return body
        try:
            found = await self._identify_whole(request, route, key, caller, body)
        except BaseException:
            body.close()
            raise
        if isinstance(found, Reply):
            body.close()
        return found

    async def _identify_whole(
        self, request: Request, route: Route, key: Key | KeyFault | None, caller: Caller | None, body: TakenBody
    ) -> Reply | Untouched | None:
        """The same for a request whose body is here. `key` and `caller` are None where the head did not decide."""
        if key is None:
            in_body = await self._key_in_body(request, route, body)
            if isinstance(in_body, Reply):
                return in_body
            if in_body is None:
                request.body = WholeBody(body)
                return _without_key(request, route)
            key = in_body
        if caller is None:
            found = await self._caller_of(request, route)
            if isinstance(found, Reply):
                return found
            caller = found
        if isinstance(key, KeyFault):
            return refuse(Verdict.KEY_INVALID, shape=route.shape, detail=key.detail)
        if caller.headers:
            request.head = with_headers(request.head, caller.headers)
        head, fingerprinter, repeats, content = request.head, route.fingerprinter, route.repeats, body.content
        if isinstance(content, bytes) and len(content) <= INLINE_BYTES_MAX:
            digests = fingerprinter.digests(head, content, body.digest)
        else:
            digests = await body.read(partial(fingerprinter.digests, head, body_sha256=body.digest))
        repeated = None if repeats is None else await body.read(partial(repeats.values_of, head.headers))
        request.route, request.taken = route, body
        self._complete(request, route, key, caller.scope, digests, repeated)
        if route.accept is None:
            return None
        request.is_async = responds_async(head, is_always=route.accept.is_always)
        return None if route.accept.order is None else await self._put_in_order(request, route.accept.order)

    def _complete(
        self, request: Request, route: Route, key: Key, scope: Scope, digests: Digests, repeated: bytes | None
    ) -> None:
        """Give the request its identity and what it is compared by; nothing is left to refuse. `repeated` has the
        values by which its repeats are recognised (`RepeatPolicy.values_of`)."""
        head, recovery, fingerprinter = request.head, route.recovery, route.fingerprinter
        request.identity = identity = identity_of(
            service=self._service,
            route=route.name,
            operation=route.operation,
            scope=scope,
            key=key,
            secret=self._identity_secret,
            keeps_clear_key=self._keeps_clear_keys,
        )
        request.digests, request.fingerprints = digests, fingerprinter.alternatives(digests)
        if isinstance(recovery, Probe):
            request.probe = _probe_target(head, recovery, route, identity.operation_id, key)
        elif isinstance(recovery, Resend) and route.target.key_headers:
            request.canonical_key = key.header_value
        if route.keep.version is not None:
            request.version = version_of(route.keep.version, head.headers)
        if route.repeats is not None:
            request.content = route.repeats.content_of(
                self._service, identity, head.headers, fingerprinter, digests, repeated
            )

    async def _caller_of(self, request: Request, route: Route) -> Caller | Reply:
        """Rule 5. The body waits meanwhile, where it is."""
        found = await self._callers.find_caller(route.scope, request)
        return found if isinstance(found, Caller) else refuse_caller(found, route.shape)

    async def _key_in_body(self, request: Request, route: Route, body: TakenBody) -> Key | KeyFault | Reply | None:
        """The key, or the refusal of a webhook: of what its sender did not sign, nothing but the size is looked at."""
        if route.inbox is not None:
            return await self._verifying.verify(request, body, route, route.inbox)
        return await body.read(partial(route.key.find_key, values_by_name(request.head.headers)))

    async def _read_body(self, request: Request, route: Route) -> TakenBody | Reply:
        """Rule 6 for a body that has not arrived yet, or is long. It needs an upload slot."""
        try:
            with self._upload_slots.slot(request.body):
                body = await self._spool.take(
                    request.body, bytes_max=route.settings.body.max_bytes, spool_over_bytes=route.spool_over_bytes
                )
        except NoSlot:
            return refuse(Verdict.OVERLOADED, shape=route.shape, detail="Too many request bodies are being received.")
        except SpoolFailed as error:
            _LOG.error("%s", error)
            return refuse(Verdict.OVERLOADED, shape=route.shape, detail="The gateway has no room for the body.")
        if body is None:
            detail = f"The limit is {route.settings.body.max_bytes} bytes."
            return refuse(Verdict.BODY_TOO_LARGE, shape=route.shape, detail=detail)
        return body

    async def _put_in_order(self, request: Request, order: Order) -> Reply | None:
        """Put the request in its lane, or refuse it: one that is in none, or not accepted, would pass others."""
        route, by_name = request.route, values_by_name(request.head.headers)
        if route.inbox is None and not request.is_async:
            detail = "Requests here are delivered in order, and this one has a meaning only now."
            return refuse(Verdict.ORDER_MISSING, shape=route.shape, detail=detail)
        value = await request.taken.read(partial(order.value.find_key, by_name))
        if isinstance(value, Key):
            identity = request.identity
            request.lane = lane_of(
                self._service, identity.operation, identity.scope_digest, stored_digest(value, self._identity_secret)
            )
            return None
        if order.missing == "unordered":
            return None
        detail = (
            f"Requests here are delivered in order, by {order.value.places}, which is missing or cannot be read. "
            "It has to be a string, or a whole number in plain digits."
        )
        return refuse(Verdict.ORDER_MISSING, shape=route.shape, detail=detail)


def _without_key(request: Request, route: Route) -> Reply | Untouched:
    """Rule 4."""
    if route.is_key_required:
        detail = f"{route.key.places} is missing."
        return refuse(Verdict.KEY_MISSING, shape=route.shape, detail=detail)
    return Untouched(request, Verdict.UNKEYED)


def _probe_target(head: RequestHead, policy: Probe, route: Route, operation_id: UUID, key: Key) -> ProbeTarget | None:
    """What a probe of this operation will ask. Rendered now, because later the request is gone."""
    values = probe_values(policy, head.target, operation_id, key.text)
    hosts = header_values(head.headers, b"host")
    forwarding = route.target.forwarding
    return render_probe(policy, values, forwarding.host or (hosts[0] if hosts else forwarding.authority))
