"""Rules 4 to 7: which operation a request is, and whose.

It claims nothing and uses no store. A request that it refuses leaves nothing behind. What it does for a route is a
plan: steps that are chosen when the route is made, so that no request asks for what its route does not do.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Hashable, Mapping
from contextlib import AsyncExitStack
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Final, Protocol, assert_never

from gateway.config.delivery import Order
from gateway.config.route import ForwardAuth
from gateway.core import immutable
from gateway.core.delivery import lane_of
from gateway.core.identity.fingerprint import Fingerprinter, RepeatPolicy
from gateway.core.identity.key import (
    IdentityUnavailable,
    Key,
    KeyFault,
    Scope,
    ScopeMissing,
    ScopeSpec,
    ScopeUnsuitable,
    Unverified,
    VerifiedSpec,
    identity_of,
    stored_digest,
)
from gateway.core.message import Headers, header_values
from gateway.core.outcome import version_of
from gateway.core.recovery import Probe, Resend, probe_values, render_probe
from gateway.core.verdict import Verdict
from gateway.core.webhook import Inbox
from gateway.protect.forwarding import responds_async, with_headers
from gateway.protect.inbox import Verifying
from gateway.protect.reply import PROBLEM, Reply, Shape, refuse
from gateway.protect.request import (
    INLINE_BYTES_MAX,
    NoSlot,
    Request,
    Spool,
    SpoolFailed,
    TakenBody,
    Untouched,
    UploadSlots,
)
from gateway.protect.route import AcceptPolicy, Route

# -- callers -----------------------------------------------------------------------------------------------------------
#
# A scope that is taken from headers is found at once. A part that has to be verified is given to its verifier, which
# may need a key that has to be fetched, or the word of another service; then the request waits. Nothing is claimed and
# nothing of the body is read meanwhile. A verifier reports a failure of its own as `IdentityUnavailable`: that says
# nothing about the caller.

# RFC 9110 section 11.6.1 wants a challenge with every 401. The scheme that the service takes is not known here.
_CHALLENGE: Final = b'Bearer realm="service"'
# RFC 6750 section 3. What stands in it has no quotes and no backslashes.
_INVALID_TOKEN: Final = b'Bearer error="invalid_token", error_description="%b"'


@immutable
class Verified:
    """What a verifier found out. `value` is framed and goes into the scope; `headers` go to the service, in place of
    the client's of the same names."""

    value: bytes
    headers: Headers = ()


@immutable
class Caller:
    """A caller that is known. `headers` as in `Verified`."""

    scope: Scope
    headers: Headers = ()


# A `Reply` is another service's own refusal, to be passed on as it is.
Unidentified = ScopeMissing | ScopeUnsuitable | IdentityUnavailable | Reply
Verification = Verified | Unidentified


class Closable(Protocol):
    """A verifier, or what verifiers share."""

    async def close(self) -> None:
        """End what runs in the background, and release connections. Safe to repeat."""
        return


class Verifier(Closable, Protocol):
    """Verifies one part of a scope. Raises nothing but cancellation."""

    def start(self) -> None:
        """Begin what runs in the background. Waits for nothing, and needs nobody to respond."""
        return

    def known(self, request: Request) -> Verification | None:
        """What is known without waiting; None where `ask` has to be awaited."""

    async def ask(self, request: Request) -> Verification:
        """What is found out; it has a limit of its own to how long that takes."""


class Callers:
    """The callers of one configuration. Lives on one event loop."""

    def __init__(
        self,
        verifiers: Mapping[VerifiedSpec | ForwardAuth, Verifier],
        made: Mapping[Hashable, Closable] = MappingProxyType({}),
    ) -> None:
        """`verifiers` has one for each verified part of every scope that is asked for, and for each service that is
        asked for a permission alone. `made` has all that is to be closed, by what it is made of."""
        self.verifiers = verifiers
        self.made = made

    def start(self) -> None:
        for verifier in self.verifiers.values():
            verifier.start()

    async def close(self) -> None:
        """Close all that is made, even if closing some of it fails."""
        async with AsyncExitStack() as stack:
            for each in self.made.values():
                stack.push_async_callback(each.close)

    async def find_caller(self, spec: ScopeSpec, request: Request) -> Caller | Unidentified:
        """The caller, once each part is verified; waits only for what has to be asked. Safe to cancel."""
        verified: dict[VerifiedSpec, bytes] = {}
        headers: Headers = ()
        by_name = request.head.headers.by_name
        while isinstance(found := spec.find_scope(by_name, request.hop.peer, verified), Unverified):
            verifier = self.verifiers[found.part]
            verification = verifier.known(request) or await verifier.ask(request)
            if not isinstance(verification, Verified):
                return verification
            verified[found.part] = verification.value
            headers += verification.headers
        return Caller(found, headers) if isinstance(found, Scope) else found

    async def authorize(self, service: ForwardAuth, request: Request) -> Verified | Unidentified:
        """A permission of this service, with the headers that come with it, or what takes its place. Safe to cancel."""
        verifier = self.verifiers[service]
        return verifier.known(request) or await verifier.ask(request)


def refuse_caller(found: Unidentified, shape: Shape = PROBLEM) -> Reply:
    """Rule 5: the reply to a request whose caller is not known."""
    match found:
        case ScopeMissing(detail, is_credential, is_token):
            challenge = _INVALID_TOKEN % detail.encode() if is_token else _CHALLENGE if is_credential else None
            return refuse(Verdict.SCOPE_MISSING, shape=shape, detail=detail, authenticate=challenge)
        case ScopeUnsuitable(detail):
            return refuse(Verdict.SCOPE_UNSUITABLE, shape=shape, detail=detail)
        case IdentityUnavailable(detail, retry_after_seconds):
            return refuse(
                Verdict.IDENTITY_UNAVAILABLE, shape=shape, detail=detail, retry_after_seconds=retry_after_seconds
            )
        case Reply():
            return found
        case _:
            assert_never(found)


# -- identification ----------------------------------------------------------------------------------------------------

_LOG = logging.getLogger("gateway")


Found = Reply | Untouched | None
Step = Callable[["Identifying", Request, Route], Found | Awaitable[Found]]
"""Adds to what is known of a request, and returns None; or returns what becomes of the request instead."""


@dataclass(slots=True, eq=False, repr=False)
class Identifying:
    """Identifies requests for one service. `identity_secret` keys identities. With `keeps_clear_keys`, records hold
    keys in clear."""

    service: str
    spool: Spool
    upload_slots: UploadSlots
    verifying: Verifying
    callers: Callers
    _: KW_ONLY
    identity_secret: bytes | None = None
    keeps_clear_keys: bool = False
    plans: dict[Route, Plan] = field(init=False, default_factory=dict)
    """The plan of each route, made when it is first asked for."""

    async def identify(self, request: Request, route: Route) -> Reply | Untouched | None:
        """Rules 4 to 7: complete the request, or return what becomes of it otherwise.

        The caller owns the body that an identified request has taken; a refusal leaves none. Raises what the request's
        body raises when it is cut short.
        """
        request.route = route
        plan = self.plans.get(route)
        if plan is None:
            plan = self.plans[route] = plan_of(route)
        for step in plan.by_head:
            found = step(self, request, route)
            if found is not None and (isinstance(found, Reply | Untouched) or (found := await found) is not None):
                return found
        length, content = request.body.length, None
        if length is not None and length <= plan.bytes_max:
            content = request.body.whole()
        body = await self._read_body(request, route) if content is None else TakenBody(content, len(content))
        if isinstance(body, Reply):
            return body
        request.taken = body
        is_taken = False
        try:
            for step in plan.whole:
                found = step(self, request, route)
                if found is not None and (isinstance(found, Reply | Untouched) or (found := await found) is not None):
                    is_taken = isinstance(found, Untouched)
                    return found
            is_taken = True
            return None
        finally:
            if not is_taken:
                body.close()

    async def _read_body(self, request: Request, route: Route) -> TakenBody | Reply:
        """Rule 6 for a body that has not arrived yet, or is long. It needs an upload slot."""
        try:
            with self.upload_slots.slot(request.body):
                body = await self.spool.take(
                    request.body, bytes_max=route.settings.body.max_bytes, spool_over_bytes=route.spool_over_bytes
                )
        except NoSlot:
            return request.refuse(Verdict.OVERLOADED, "Too many request bodies are being received.")
        except SpoolFailed as error:
            _LOG.error("%s", error)
            return request.refuse(Verdict.OVERLOADED, "The gateway has no room for the body.")
        if body is None:
            return request.refuse(Verdict.BODY_TOO_LARGE, f"The limit is {route.settings.body.max_bytes} bytes.")
        return body


# -- the steps ---------------------------------------------------------------------------------------------------------


def _event_by_head(inbox: Inbox, self: Identifying, request: Request, route: Route) -> Found:
    """A handshake of its sender, or a message of one who sent too many that were not signed."""
    return self.verifying.reply_unread(request, route, inbox)


async def _authorize(service: ForwardAuth, self: Identifying, request: Request, route: Route) -> Found:
    """Ask the service that decides about every request of the route, and hand on what it says."""
    permission = await self.callers.authorize(service, request)
    if not isinstance(permission, Verified):
        return refuse_caller(permission, route.shape)
    request.head = with_headers(request.head, permission.headers)
    return None


def _key_and_scope(self: Identifying, request: Request, route: Route) -> Found | Awaitable[Found]:
    """Rules 4 and 5 for a key in headers. A caller that has to be verified is waited for."""
    by_name = request.head.headers.by_name
    key = route.key.find_key(by_name, None)
    if key is None:
        return _without_key(request, route)
    request.key = key
    scope = route.scope.find_scope(by_name, request.hop.peer)
    if isinstance(scope, Scope):
        request.scope = scope
        return None
    return _caller(self, request, route) if isinstance(scope, Unverified) else refuse_caller(scope, route.shape)


async def _caller(self: Identifying, request: Request, route: Route) -> Found:
    """Rule 5. The body waits meanwhile, where it is."""
    found = await self.callers.find_caller(route.scope, request)
    if not isinstance(found, Caller):
        return refuse_caller(found, route.shape)
    request.scope = found.scope
    if found.headers:
        request.head = with_headers(request.head, found.headers)
    return None


async def _event(inbox: Inbox, self: Identifying, request: Request, route: Route) -> Found:
    """Rule 4 for an event: of what its sender did not sign, nothing but the size is looked at."""
    key = await self.verifying.verify(request, request.taken, route, inbox)
    if isinstance(key, Reply):
        return key
    request.key = key
    return None


async def _key_in_body(self: Identifying, request: Request, route: Route) -> Found:
    """Rule 4 for a key that is in the body, or a part of it."""
    key = await request.taken.read(partial(route.key.find_key, request.head.headers.by_name))
    if key is None:
        request.body = request.taken
        return _without_key(request, route)
    request.key = key
    return None


def _operation(self: Identifying, request: Request, route: Route) -> Found | Awaitable[Found]:
    """Rule 7: the request gets its identity and what it is compared by. A long body is read in a thread."""
    key, body, fingerprinter = request.key, request.taken, route.fingerprinter
    if isinstance(key, KeyFault):
        return request.refuse(Verdict.KEY_INVALID, key.detail)
    request.identity = identity_of(
        service=self.service,
        route=route.name,
        operation=route.operation,
        scope=request.scope,
        key=key,
        secret=self.identity_secret,
        keeps_clear_key=self.keeps_clear_keys,
    )
    content = body.content
    if not isinstance(content, bytes) or len(content) > INLINE_BYTES_MAX:
        return _fingerprints(request, fingerprinter)
    request.digests = digests = fingerprinter.digests(request.head, content, body.digest)
    request.fingerprints = digests.fingerprints
    return None


async def _fingerprints(request: Request, fingerprinter: Fingerprinter) -> None:
    body = request.taken
    request.digests = await body.read(partial(fingerprinter.digests, request.head, body_sha256=body.digest))
    request.fingerprints = request.digests.fingerprints


async def _content(policy: RepeatPolicy, self: Identifying, request: Request, route: Route) -> None:
    """By what its repeats under other keys are recognised."""
    headers = request.head.headers
    values = await request.taken.read(partial(policy.values_of, headers))
    if request.digests is not None:
        request.content = policy.content_of(
            self.service, request.identity, headers, route.fingerprinter, request.digests, values
        )


def _probe(policy: Probe, self: Identifying, request: Request, route: Route) -> None:
    """What a probe of this operation will ask. Rendered now, because later the request is gone."""
    head, key, forwarding = request.head, request.key, route.target.forwarding
    text = key.text if isinstance(key, Key) else None
    values = probe_values(policy, head.target, request.identity.operation_id, text)
    hosts = header_values(head.headers, b"host")
    request.probe = render_probe(policy, values, forwarding.host or (hosts[0] if hosts else forwarding.authority))


def _canonical_key(self: Identifying, request: Request, route: Route) -> None:
    if isinstance(request.key, Key):
        request.canonical_key = request.key.header_value


def _version(self: Identifying, request: Request, route: Route) -> None:
    request.version = version_of(route.keep.version, request.head.headers)


def _preference(policy: AcceptPolicy, self: Identifying, request: Request, route: Route) -> None:
    request.is_async = responds_async(request.head, is_always=policy.is_always)


async def _lane(order: Order, self: Identifying, request: Request, route: Route) -> Found:
    """Put the request in its lane, or refuse it: one that is in none, or not accepted, would pass others."""
    if route.inbox is None and not request.is_async:
        detail = "Requests here are delivered in order, and this one has a meaning only now."
        return request.refuse(Verdict.ORDER_MISSING, detail)
    value = await request.taken.read(partial(order.value.find_key, request.head.headers.by_name))
    if isinstance(value, Key):
        identity, digest = request.identity, stored_digest(value, self.identity_secret)
        request.lane = lane_of(self.service, identity.operation, identity.scope_digest, digest)
        return None
    if order.missing == "unordered":
        return None
    detail = (
        f"Requests here are delivered in order, by {order.value.places}, which is missing or cannot be read. "
        "It has to be a string, or a whole number in plain digits."
    )
    return request.refuse(Verdict.ORDER_MISSING, detail)


def _without_key(request: Request, route: Route) -> Reply | Untouched:
    """Rule 4."""
    if route.is_key_required:
        return request.refuse(Verdict.KEY_MISSING, f"{route.key.places} is missing.")
    return Untouched(request, Verdict.UNKEYED)


# -- the plan ----------------------------------------------------------------------------------------------------------


@immutable
class Plan:
    """The steps of a route: those that the head decides, then, with at most `bytes_max` of body that need no slot,
    those with the whole request. What the route does not do is not in it."""

    by_head: tuple[Step, ...]
    whole: tuple[Step, ...]
    bytes_max: int


def plan_of(route: Route) -> Plan:
    """The steps of a route, in order. What the head can decide comes before the body, which is not read for nothing."""
    by_head: list[Step] = []
    whole: list[Step] = []
    inbox, accept, recovery = route.inbox, route.accept, route.recovery
    if inbox is not None:
        by_head.append(partial(_event_by_head, inbox))
        whole += [partial(_event, inbox), _caller]
    if route.authorize is not None:
        by_head.append(partial(_authorize, route.authorize))
    if inbox is None and not route.key.needs_body:
        by_head.append(_key_and_scope)
    elif inbox is None and route.is_key_required:
        # Whatever the body holds, a stranger is refused.
        by_head.append(_caller)
        whole.append(_key_in_body)
    elif inbox is None:
        whole += [_key_in_body, _caller]
    whole.append(_operation)
    if route.repeats is not None:
        whole.append(partial(_content, route.repeats))
    if isinstance(recovery, Probe):
        whole.append(partial(_probe, recovery))
    elif isinstance(recovery, Resend) and route.target.forwarding.key_headers:
        whole.append(_canonical_key)
    if route.keep.version is not None:
        whole.append(_version)
    if accept is not None:
        whole.append(partial(_preference, accept))
        if accept.order is not None:
            whole.append(partial(_lane, accept.order))
    return Plan(tuple(by_head), tuple(whole), min(route.settings.body.max_bytes, route.spool_over_bytes))
