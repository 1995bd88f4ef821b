"""The resource that shows callers what became of their operations, and calls off what is not delivered yet.

It serves `{path}/{id}` and `{path}/{id}/result` on the public listener, before any route. An operation is shown to
whoever is in its scope, as its route defines that, and to nobody else: ids are made of scope and key, so they may be
guessed. What is unknown, somebody else's or erased gets one and the same 404. Whether a credential is missing (401) or
cannot be verified now (503) is decided by the request alone, never by the operation.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Final, assert_never
from uuid import UUID, uuid4

from gateway.config.models import Cors
from gateway.core.identity.key import (
    IdentityUnavailable,
    ScopeMissing,
    ScopeSpec,
    ScopeUnsuitable,
    is_in_scope,
    is_of,
    stored_digest,
)
from gateway.core.message import Headers, header_values
from gateway.core.operation import Applied, Audit, Record, Snapshot, State, Withdraw, is_withdrawn
from gateway.core.outcome import version_of
from gateway.core.routing import normalise_path
from gateway.core.verdict import Verdict
from gateway.observe.facts import Events, StatusAnswered, StatusPart
from gateway.protect.accepting import apply_until_known
from gateway.protect.compose import (
    DONE,
    etag,
    in_doubt,
    is_stalled,
    operation_url,
    refuse_by,
    replay_of,
    status_reply,
    status_retry_after_seconds,
)
from gateway.protect.duplicates import Until, Waiting, with_preference
from gateway.protect.forwarding import preflight_reply, wait_preference
from gateway.protect.identification import Caller, Callers, Unidentified, Verified, refuse_caller
from gateway.protect.journaling import UNENDED, Journaling
from gateway.protect.regions import Regions
from gateway.protect.reply import Reply, Shape, Trouble, reason_phrase, refuse
from gateway.protect.request import Request
from gateway.protect.route import Route
from gateway.store.base import Amnesic, Store, StoreError

_LOG = logging.getLogger("gateway")

_READING: Final = (b"GET", b"HEAD")
_METHODS: Final = b"GET, HEAD, DELETE"
_RESULT_METHODS: Final = b"GET, HEAD"
_REST: Final = re.compile(rb"/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(/result)?")
# RFC 9110 section 8.8.3; the prefix of a weak one does not count (section 13.1.2).
_ENTITY_TAG: Final = re.compile(rb'(?:W/)?("[\x21\x23-\x7e\x80-\xff]*")')
# For the store calls of one request, without its wait.
_STORE_SECONDS_MAX: Final = 5.0
# A command is fenced off where another one came first. This many times is more than races come to.
_COMMANDS_MAX: Final = 4
_WITHDRAWN: Final = Audit("caller", "the caller called it off")

# Who asks, in each of the scopes that are served here.
Found = Mapping[ScopeSpec, Caller | Unidentified]


@dataclass(frozen=True, slots=True)
class _Changed:
    """Until the status is another one."""

    tag: bytes

    def __call__(self, snapshot: Snapshot) -> bool:
        return snapshot.record is None or etag(snapshot) != self.tag


@dataclass(frozen=True, slots=True)
class _Decided:
    """Until nothing more happens by itself."""

    route: Route

    def __call__(self, snapshot: Snapshot) -> bool:
        return snapshot.record is None or snapshot.state in DONE or is_stalled(snapshot.record, self.route)


def is_below(path: bytes, target: bytes) -> bool:
    """Whether a target is for the resource at this path, whatever it asks for."""
    normal = normalise_path(target)
    return normal == path or normal.startswith(path + b"/")


@dataclass(slots=True, eq=False, repr=False)
class StatusResource:
    """The status resource of one gateway process. Lives on one event loop.

    `routes` are at least one. `identity_secret` as in `operation_id`. `path` is where it is on the listener; `prefix`
    as in `AcceptPolicy.status_prefix`. `shape` is that of problems that are about no route.
    """

    store: Store
    journaling: Journaling
    waiting: Waiting
    callers: Callers
    routes: Sequence[Route]
    _: KW_ONLY
    service: str
    identity_secret: bytes | None
    path: str
    prefix: bytes
    in_flight_max: int
    events: Events
    clock: Callable[[], float]
    shape: Shape
    cors: Cors
    regions: Regions | None = None
    _path: bytes = field(init=False)
    _in_flight: int = field(init=False, default=0)
    _waiters: Counter[str] = field(init=False, default_factory=Counter)
    _routes: dict[str, list[Route]] = field(init=False, default_factory=dict)
    _scopes: frozenset[ScopeSpec] = field(init=False)
    _wait_seconds: float = field(init=False)

    def __post_init__(self) -> None:
        self._path = self.path.encode()
        for route in self.routes:
            self._routes.setdefault(route.operation, []).append(route)
        self._scopes = frozenset(route.scope for route in self.routes)
        self._wait_seconds = max(route.in_flight.max_wait for route in self.routes)

    def owns(self, target: bytes) -> bool:
        """Whether a request with this target is for this resource, whatever it asks for."""
        return is_below(self._path, target)

    async def respond(self, request: Request) -> Reply:
        started = self.clock()
        reply = await self._bounded(request)
        method, part = request.head.method, StatusPart.STATUS
        if normalise_path(request.head.target).endswith(b"/result"):
            part = StatusPart.RESULT
        elif method == b"DELETE":
            part = StatusPart.WITHDRAWAL
        self.events.publish(
            StatusAnswered(
                part,
                method.decode("latin-1"),
                reply.status,
                self.clock() - started,
                reply.verdict,
                # What it was shown, if it was.
                None if request.operation_id is None else request.route.name,
                request.operation_id,
            )
        )
        return reply

    def _not_found(self) -> Reply:
        """The same for what is unknown and for what is somebody else's."""
        return refuse(Trouble.NO_SUCH_OPERATION, shape=self.shape)

    async def _bounded(self, request: Request) -> Reply:
        if request.head.method not in (*_READING, b"DELETE"):
            allowed = None
            if request.head.method == b"OPTIONS":
                allowed = preflight_reply(self.cors, request.head.headers, _METHODS)
            return allowed or _not_allowed(_METHODS, self.shape)
        if self._in_flight >= self.in_flight_max:
            return refuse(Verdict.OVERLOADED, shape=self.shape)
        self._in_flight += 1
        try:
            return await self._respond(request)
        except Amnesic:
            return refuse(Verdict.STORE_AMNESIA, shape=self.shape)
        except (StoreError, TimeoutError) as error:
            _LOG.debug("the status of an operation cannot be read: %s", str(error) or "the store is slow")
            return refuse(Verdict.STORE_UNAVAILABLE, shape=self.shape)
        finally:
            self._in_flight -= 1

    async def _respond(self, request: Request) -> Reply:
        """Raises `StoreError` and `TimeoutError`."""
        if self.regions is not None:
            refusal = self.regions.receive(request, self.shape)
            if refusal is not None:
                return refusal
        head = request.head
        # Everybody that the caller may be. What has to be waited for is waited for at once.
        callers = await asyncio.gather(*(self.callers.find_caller(spec, request) for spec in self._scopes))
        found = dict(zip(self._scopes, callers, strict=True))
        if not any(isinstance(each, Caller) for each in found.values()):
            return _unidentified(found.values(), self.shape)
        asked = _REST.fullmatch(normalise_path(head.target).lower(), len(self._path))
        if asked is None:
            return self._not_found()
        operation_id = UUID(asked[1].decode())
        if self.regions is not None and (home := self.regions.elsewhere(operation_id)) is not None:
            return await self.regions.send(
                home,
                head,
                b"",
                request.hop,
                shape=self.shape,
                operation_id=operation_id,
                wait_seconds=self._wait_seconds,
            )
        snapshot = await self._find(operation_id)
        route = self._route_of(snapshot.record, found)
        if route is None:
            # It may be the caller's in a scope that cannot be verified now. That there is none would be a guess.
            unavailable = [each for each in found.values() if isinstance(each, IdentityUnavailable)]
            return refuse_caller(unavailable[0], self.shape) if unavailable else self._not_found()
        if route.authorize is not None:
            permission = await self.callers.authorize(route.authorize, request)
            if not isinstance(permission, Verified):
                return refuse_caller(permission, route.shape)
        request.route, request.operation_id = route, operation_id
        if head.method == b"DELETE":
            return _not_allowed(_RESULT_METHODS, self.shape) if asked[2] else await self._withdraw(snapshot, route)
        if asked[2]:
            return await self._result(snapshot, route, head.headers)
        return await self._status(snapshot, route, head.headers)

    async def _find(self, operation_id: UUID) -> Snapshot:
        """The record, as the journals of this host make it where its outcome is not known to the store."""
        try:
            async with asyncio.timeout(_STORE_SECONDS_MAX):
                snapshot = await self.store.read(operation_id)
        except (StoreError, TimeoutError):
            if (known := await self.journaling.find(operation_id)) is None:
                raise
            return known
        return await self._latest(snapshot, operation_id)

    async def _latest(self, snapshot: Snapshot, operation_id: UUID) -> Snapshot:
        if snapshot.state not in UNENDED:
            return snapshot
        return await self.journaling.find(operation_id, is_told_next=True) or snapshot

    def _route_of(self, record: Record | None, found: Found) -> Route | None:
        """The route of the operation, None where this caller is not in its scope. Routes may share an operation."""
        if record is None or not is_of(record.identity, self.service, record.identity.operation):
            return None
        secret = self.identity_secret
        shown: Route | None = None
        for route in self._routes.get(record.identity.operation, ()):
            caller = found[route.scope]
            if isinstance(caller, Caller) and is_in_scope(record.identity, stored_digest(caller.scope, secret)):
                if route.name == record.identity.route:
                    return route
                shown = shown or route
        return shown

    async def _status(self, snapshot: Snapshot, route: Route, headers: Headers) -> Reply:
        values = header_values(headers, b"if-none-match")
        tags = {tag for value in values for tag in _ENTITY_TAG.findall(value)}
        if b"*" in values and snapshot.record is not None:
            tags.add(_opaque(snapshot))
        preferred: int | None = None
        if snapshot.state not in DONE and (not tags or _opaque(snapshot) in tags):
            snapshot, preferred = await self._wait(snapshot, route, headers, _Changed(etag(snapshot)))
        if snapshot.record is None:
            return self._not_found()
        reply = status_reply(snapshot, self.prefix, route)
        if _opaque(snapshot) in tags:
            kept = tuple(header for header in reply.headers if header[0] != b"Content-Type")
            reply = Reply(304, reason_phrase(304), kept, b"")
        return with_preference(reply, preferred)

    async def _result(self, snapshot: Snapshot, route: Route, headers: Headers) -> Reply:
        """What a repeat of the request would get that does not wait for another attempt."""
        preferred: int | None = None
        is_decided = _Decided(route)
        if not is_decided(snapshot):
            snapshot, preferred = await self._wait(snapshot, route, headers, is_decided)
        if snapshot.record is None:
            return self._not_found()
        reply = with_preference(self._result_of(snapshot, snapshot.record, route, headers), preferred)
        return reply if route.settings.status_header else replace(reply, verdict=None)

    def _result_of(self, snapshot: Snapshot, record: Record, route: Route, headers: Headers) -> Reply:
        location = operation_url(self.prefix, record)
        match record.state:
            case State.ACCEPTED | State.CLAIMED:
                reply = status_reply(snapshot, self.prefix, route, status=202, verdict=Verdict.ACCEPTED)
                return replace(reply, headers=(*reply.headers, (b"Location", location)))
            case State.IN_DOUBT:
                return in_doubt(snapshot, record, route, is_same=True, location=location)
            case State.DEAD_LETTER:
                return refuse(Verdict.DEAD_LETTER, shape=route.shape, record=record, location=location)
            case State.COMPLETED if record.response is not None and record.response.body is not None:
                # A request without a version means the operation as it was asked for: that is no repeat of it.
                expected = version_of(route.keep.version, headers) if route.keep.is_version_strict else b""
                if expected and record.response.version != expected:
                    return refuse_by(Verdict.KEY_EXPIRED, record, route)
                return replay_of(record, headers)
            case State.COMPLETED:
                return refuse_by(Verdict.RESPONSE_NOT_STORED, record, route)
            case State.TOMBSTONE:
                return refuse(Verdict.KEY_EXPIRED, shape=route.shape, record=record)
            case State.RELEASED | State.ABSENT:
                verdict = Verdict.WITHDRAWN if is_withdrawn(record) else Verdict.RELEASED
                return refuse(verdict, shape=route.shape, status=409, record=record)
            case _:
                assert_never(record.state)

    async def _withdraw(self, snapshot: Snapshot, route: Route) -> Reply:
        if route.accept is None or route.accept.settings.withdraw == "refuse":
            return _not_allowed(_RESULT_METHODS, self.shape)
        for _ in range(_COMMANDS_MAX):
            record = snapshot.record
            if record is None:
                return self._not_found()
            if record.state is State.RELEASED:
                return status_reply(snapshot, self.prefix, route)
            if record.state not in (State.ACCEPTED, State.DEAD_LETTER):
                return self._not_withdrawn(snapshot, record, route)
            command = Withdraw(
                record.identity.operation_id, record.token, uuid4(), route.retention.remember_us, _WITHDRAWN
            )
            result = await apply_until_known(self.store, command)
            snapshot = result.snapshot
            if isinstance(result, Applied) and snapshot.record is not None:
                return status_reply(snapshot, self.prefix, route)
        return refuse(Verdict.OVERLOADED, shape=route.shape, detail="Others keep changing the operation.")

    def _not_withdrawn(self, snapshot: Snapshot, record: Record, route: Route) -> Reply:
        location = operation_url(self.prefix, record)
        if record.state is State.IN_DOUBT:
            return in_doubt(snapshot, record, route, is_same=True, location=location)
        if record.state is State.CLAIMED:
            return refuse(
                Verdict.IN_FLIGHT,
                shape=route.shape,
                record=record,
                detail="It is being delivered, and cannot be called off.",
                retry_after_seconds=status_retry_after_seconds(snapshot, route),
                location=location,
            )
        return refuse(Trouble.ALREADY_COMPLETED, shape=route.shape, record=record, location=location)

    async def _wait(
        self, snapshot: Snapshot, route: Route, headers: Headers, until: Until
    ) -> tuple[Snapshot, int | None]:
        """The record after the wait that the caller prefers, and that preference if it was heeded."""
        preferred, policy, record = wait_preference(headers), route.in_flight, snapshot.record
        if not preferred or record is None or self._waiters[route.name] >= policy.max_waiters:
            return snapshot, None
        operation_id = record.identity.operation_id
        seconds = min(preferred, policy.max_wait)
        self._waiters[route.name] += 1
        try:
            latest = await self.waiting.wait(operation_id, seconds, until)
        finally:
            self._waiters[route.name] -= 1
        return snapshot if latest is None else await self._latest(latest, operation_id), int(seconds)


def _opaque(snapshot: Snapshot) -> bytes:
    """The entity tag as it is compared."""
    return etag(snapshot).removeprefix(b"W/")


def _unidentified(found: Iterable[Caller | Unidentified], shape: Shape) -> Reply:
    """The reply to a request that is in no scope at all: what may help its caller most."""
    faults = [each for each in found if not isinstance(each, Caller)]
    faults.sort(key=lambda each: "" if isinstance(each, Reply) else each.detail)
    for kind in (IdentityUnavailable, Reply, ScopeMissing, ScopeUnsuitable):
        for fault in faults:
            if isinstance(fault, kind) and not (isinstance(fault, ScopeMissing) and not fault.is_credential):
                return refuse_caller(fault, shape)
    return refuse(Trouble.NO_SUCH_OPERATION, shape=shape)


def _not_allowed(allowed: bytes, shape: Shape) -> Reply:
    return refuse(Trouble.METHOD_NOT_ALLOWED, shape=shape, headers=((b"Allow", allowed),))
