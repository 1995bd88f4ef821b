"""Accepts requests to be delivered later: keeps each one, encrypted, in the durable store, and hands it over.

No caller gets a reply to an acceptance before the store has committed it. An acceptance whose result is lost is applied
again with the same attempt id, until its result is known or patience ends. One that arrives after that does no harm:
nothing was promised, it is delivered like any other, and a repeat finds it.

Nothing is accepted beyond a route's limits (`Pending`). They are estimates, because a count for each request would cost
more than the request: they bound what is stored, to about what other gateways accept in a second, or in as long as the
store keeps a large count.
"""

from __future__ import annotations

import asyncio
import logging
import math
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final
from uuid import UUID, uuid4

from gateway.core import immutable
from gateway.core.confidential import KeyRing, Unopenable, of_request
from gateway.core.identity.body import Body
from gateway.core.identity.caller import Hop, hop_from
from gateway.core.message import IndexedHeaders, RequestHead
from gateway.core.operation import Accept, Audit, Command, Fenced, Requeue, Result, SealedRequest, Snapshot, State
from gateway.core.verdict import Claimable, Verdict
from gateway.observe.facts import Events, OperationAccepted
from gateway.protect.claiming import Seen
from gateway.protect.reply import Reply
from gateway.protect.request import Request, Slices, request_info
from gateway.protect.route import AcceptPolicy
from gateway.store.base import Amnesic, Indefinite, NotApplied, Store, StoreError
from gateway.store.operations import Backlog, RouteBacklog

# -- a request as it is kept -------------------------------------------------------------------------------------------
#
# A request as it is kept until it was delivered: encoded, and encrypted with the operation id and the acceptance id
# that it belongs to, so that one that was moved to another row cannot be opened. A reader of the store sees its length.

_VERSION: Final = 1
# Version, flags, the number of headers. The lengths of all parts but the body come next, then the parts.
_FIXED: Final = struct.Struct(">BBH")
_IS_SECURE, _HAS_ADDRESS, _HAS_KEY = 1, 2, 4
_HEADERS_MAX: Final = 0xFFFF


@immutable
class KeptRequest:
    """All that a delivery needs of a request. `canonical_key` as in `forwarding.Execution`."""

    head: RequestHead
    hop: Hop
    body: bytes
    canonical_key: bytes | None


def seal(kept: KeptRequest, ring: KeyRing, operation_id: UUID, acceptance_id: UUID) -> SealedRequest:
    """Takes about a millisecond for some MiB. Raises ValueError beyond 65535 headers or 4 GiB."""
    key_id, sealed = ring.seal(_encode(kept), of_request(operation_id, acceptance_id))
    return SealedRequest(acceptance_id, key_id, sealed)


def open_sealed(sealed: SealedRequest, ring: KeyRing, operation_id: UUID) -> KeptRequest:
    """Raises `Unopenable`: its key is not configured, it was changed or belongs to another operation or acceptance, or
    a newer program wrote it."""
    content = ring.open(sealed.key_id, sealed.sealed, of_request(operation_id, sealed.acceptance_id))
    try:
        return _decode(content)
    except (IndexError, ValueError, struct.error):
        # It is authentic, so a newer program wrote it.
        raise Unopenable("its format is unknown to this version of the gateway") from None


def _encode(kept: KeptRequest) -> bytes:
    head, hop = kept.head, kept.hop
    if len(head.headers) > _HEADERS_MAX:
        raise ValueError(f"a request with {len(head.headers)} headers")
    flags = _IS_SECURE if hop.scheme == b"https" else 0
    flags |= 0 if hop.address is None else _HAS_ADDRESS
    flags |= 0 if kept.canonical_key is None else _HAS_KEY
    parts = [head.method, head.target, hop.address or b"", kept.canonical_key or b""]
    for header in head.headers:
        parts += header
    try:
        lengths = struct.pack(f">{len(parts)}I", *map(len, parts))
    except struct.error:
        raise ValueError("a request with a part of more than 4 GiB") from None
    return b"".join((_FIXED.pack(_VERSION, flags, len(head.headers)), lengths, *parts, kept.body))


def _decode(content: bytes) -> KeptRequest:
    """Raises ValueError, IndexError or `struct.error` on anything else than one encoded request."""
    version, flags, headers = _FIXED.unpack_from(content)
    if version != _VERSION or flags & ~(_IS_SECURE | _HAS_ADDRESS | _HAS_KEY):
        raise ValueError("another format")
    parts = []
    lengths = struct.Struct(f">{4 + 2 * headers}I")
    at = _FIXED.size + lengths.size
    for length in lengths.unpack_from(content, _FIXED.size):
        parts.append(content[at : at + length])
        at += length
    if at > len(content):
        raise ValueError("shorter than its parts")
    method, target, address, key, *rest = parts
    peer = address.decode() if flags & _HAS_ADDRESS else None
    return KeptRequest(
        RequestHead(method, target, IndexedHeaders(zip(rest[::2], rest[1::2], strict=True))),
        hop_from(peer, is_secure=bool(flags & _IS_SECURE)),
        content[at:],
        key if flags & _HAS_KEY else None,
    )


# -- accepting ---------------------------------------------------------------------------------------------------------

_LOG = logging.getLogger("gateway")

# Two commands normally settle an acceptance. More of them are races with other gateways, which end.
_COMMANDS_MAX: Final = 8
_PAUSE_SECONDS_MIN: Final = 0.05
_PAUSE_SECONDS_MAX: Final = 1.0
# For all store calls of one acceptance. A healthy store responds long before.
_STORE_SECONDS_MAX: Final = 5.0
# The bodies that are being accepted at one time are in memory, however long ones are received.
_BYTES_MAX: Final = 256 << 20
# How old a count may be.
_FRESH_SECONDS: Final = 1.0
# How exactly its age is known.
_AGE_SLACK_SECONDS: Final = 0.001
# How many callers are counted one by one.
_SCOPES_MAX: Final = 10_000
_NOTHING_WAITS: Final = RouteBacklog()
_REQUEUED: Final = Audit("caller", "a repeat with the key delivers the dead letter again")

Clock = Callable[[], float]
HandOver = Callable[[Request, Snapshot], None]
"""Takes an accepted request, and the ownership of its body, to deliver it at once or to leave that to others."""


@immutable
class Accepted:
    """The request is kept, as this record says. Its body belongs to the delivery."""

    snapshot: Snapshot


class Accepting:
    """The acceptances of one gateway process. Lives on one event loop."""

    def __init__(
        self, store: Store, events: Events, *, service: str, ring: KeyRing | None, hand_over: HandOver, clock: Clock
    ) -> None:
        """`ring` is None where no route accepts requests. `clock` counts seconds and never goes back."""
        self._store = store
        self._events = events
        self._service = service
        self._ring = ring
        self._hand_over = hand_over
        self._pending = Pending(store, service, clock)
        self._bytes_in_progress = 0
        # By operation: resolved when its acceptance that is under way has ended.
        self._under_way: dict[int, asyncio.Future[None]] = {}
        self._slices = Slices()
        self.in_progress = 0
        """How many requests are being accepted."""

    async def accept(self, request: Request, policy: AcceptPolicy) -> Accepted | Seen | Reply:
        """Keep the request; `Seen` where a record or another operation forbids that, a `Reply` where it is refused.

        One acceptance of an operation is under way at a time. Who comes meanwhile reads what became of it: thousands of
        repeats would keep the store from all other operations.
        Only `Accepted` takes the body. When this is cancelled, the acceptance may have arrived all the same.
        """
        # A longer body is refused before it is read.
        length = min(request.taken.length, policy.request_bytes_max)
        if self._bytes_in_progress + length > _BYTES_MAX:
            return request.refuse(Verdict.OVERLOADED, "Too many long requests are being accepted.")
        operation_id = request.identity.operation_id
        ended: asyncio.Future[None] | None = None
        self._bytes_in_progress += length
        try:
            while (earlier := self._under_way.get(operation_id.int)) is not None:
                await self._slices.until(earlier)
                async with asyncio.timeout(_STORE_SECONDS_MAX):
                    snapshot = await self._store.read(operation_id)
                if not isinstance(request.judge(snapshot), Claimable):
                    return Seen(snapshot)
            ended = self._under_way[operation_id.int] = asyncio.get_running_loop().create_future()
            self.in_progress += 1
            async with asyncio.timeout(_STORE_SECONDS_MAX):
                refusal = refuse_too_long(request, policy)
                if refusal is None and not await self._pending.has_room(request, policy):
                    refusal = request.refuse(Verdict.BACKLOG_FULL)
                if refusal is not None:
                    # Only a new request is refused: what was accepted before has its status.
                    snapshot = await self._store.read(operation_id)
                    return refusal if isinstance(request.judge(snapshot), Claimable) else Seen(snapshot)
            with self._pending.under_way(request):
                return await self._accept(request, policy)
        except Amnesic:
            return request.refuse(Verdict.STORE_AMNESIA)
        except ResultLost as error:
            _LOG.debug("an acceptance may have arrived: %s", error)
            return request.refuse(Verdict.IN_DOUBT, status=503)
        except (StoreError, TimeoutError) as error:
            _LOG.debug("an acceptance was not possible: %s", str(error) or "the store did not respond in time")
            return request.refuse(Verdict.STORE_UNAVAILABLE)
        finally:
            self._bytes_in_progress -= length
            if ended is not None:
                self.in_progress -= 1
                del self._under_way[operation_id.int]
                ended.set_result(None)

    async def requeue(self, snapshot: Snapshot, policy: AcceptPolicy) -> Snapshot:
        """The record of a dead letter after a repeat: requeued where the route does so and it is time, or as it is."""
        record = snapshot.record
        if record is None or record.state is not State.DEAD_LETTER or record.delivery is None:
            return snapshot
        if policy.requeue_after_us is None or snapshot.now_us < record.delivery.since_us + policy.requeue_after_us:
            return snapshot
        command = Requeue(
            record.identity.operation_id, record.token, uuid4(), policy.delivery.deliver_within_us, _REQUEUED
        )
        try:
            async with asyncio.timeout(_STORE_SECONDS_MAX):
                if await self._pending.is_paused(record.identity.operation):
                    return snapshot
                requeued = (await apply_until_known(self._store, command)).snapshot
        except (StoreError, TimeoutError) as error:
            _LOG.debug("a dead letter was not requeued: %s", str(error) or "the store did not respond in time")
            return snapshot
        self._store.cold.announce_work()
        return requeued

    async def _accept(self, request: Request, policy: AcceptPolicy) -> Accepted | Seen | Reply:
        """Raises `StoreError`."""
        kept = await self._sealed(request)
        read_token: int | None = None
        recorded = fingerprint = request.route.fingerprinter.with_parts(
            request.fingerprints[0], request.digests, request.identity.operation_id
        )
        for _ in range(_COMMANDS_MAX):
            # The same attempt id each time, because the request is sealed with it. None of the earlier ones applied.
            command = Accept(
                request.identity,
                kept.acceptance_id,
                self._service,
                fingerprint,
                kept,
                policy.delivery.deliver_within_us,
                read_token,
                request.probe,
                request_info(request.head),
                content=request.content_to_hold,
                lane=request.lane,
                stops_lane=policy.order is None or policy.order.on_stop == "stop",
            )
            result = await apply_until_known(self._store, command)
            snapshot = result.snapshot
            if isinstance(result, Fenced) and result.content_holder is not None:
                return Seen(snapshot, result.content_holder)
            record = snapshot.record
            # Also where it has been dispatched since.
            if record is not None and record.delivery and record.delivery.acceptance_id == kept.acceptance_id:
                self._pending.add(request)
                identity = record.identity
                self._events.publish(
                    OperationAccepted(identity.route, identity.operation_id, record.token, len(kept.sealed))
                )
                self._hand_over(request, snapshot)
                return Accepted(snapshot)
            judgement = request.judge(snapshot)
            if not isinstance(judgement, Claimable):
                return Seen(snapshot)
            read_token = judgement.read_token
            # The parts are those of the current one, which is first.
            is_current = judgement.fingerprint.recipe == recorded.recipe
            fingerprint = recorded if is_current else judgement.fingerprint
        return request.refuse(Verdict.OVERLOADED, "Other requests keep changing the record of this key.")

    async def _sealed(self, request: Request) -> SealedRequest:
        ring = self._ring
        if ring is None:
            raise RuntimeError("a route accepts requests, and there is no key to encrypt them with")
        operation_id, acceptance_id = request.identity.operation_id, uuid4()

        def seal_body(body: Body) -> SealedRequest:
            kept = KeptRequest(request.head, request.hop, body[:], request.canonical_key)
            return seal(kept, ring, operation_id, acceptance_id)

        return await request.taken.read(seal_body)


class Pending:
    """How many requests wait for delivery, as far as this process knows: what the store counted last, and what was
    accepted here since.

    A count is read again when it is needed and a second old. The store may have counted before that: what was accepted
    here since then is not in it. Callers are counted one by one only on routes where more wait than one caller may
    have.
    """

    def __init__(self, store: Store, service: str, clock: Clock) -> None:
        self._store = store
        self._service = service
        self._clock = clock
        self._backlog = Backlog()
        self._read_seconds = -math.inf
        # What had been added to each count when, oldest first; from the last count of the store on.
        self._added: list[tuple[float, dict[_Count, int]]] = []
        self._lock = asyncio.Lock()
        # Requests and their bytes.
        self._by_route: dict[str, tuple[_Count, _Count]] = {}
        self._by_scope: dict[tuple[str, bytes], _Count] = {}

    async def has_room(self, request: Request, policy: AcceptPolicy) -> bool:
        """Whether this request may wait, too. Raises `StoreError`."""
        await self._read_backlog()
        (of_route, bytes_of_route), limit = self._of_route(request), policy.pending_per_scope_max
        if bytes_of_route.total + request.taken.length > policy.settings.max_pending_bytes:
            return False
        if of_route.total < min(policy.settings.max_pending, limit):
            return True
        return of_route.total < policy.settings.max_pending and (await self._read_scope(request, limit)).total < limit

    async def is_paused(self, operation: str) -> bool:
        """Whether an operator paused this operation name. Raises `StoreError`."""
        await self._read_backlog()
        return operation in self._backlog.paused

    @contextmanager
    def under_way(self, request: Request) -> Iterator[None]:
        """Count an acceptance while it is under way."""
        counts = self._counts_of(request)
        for count, amount in counts:
            count.under_way += amount
        try:
            yield
        finally:
            for count, amount in counts:
                count.under_way -= amount

    def add(self, request: Request) -> None:
        """Count an acceptance until the store does."""
        for count, amount in self._counts_of(request):
            count.added += amount

    def _counts_of(self, request: Request) -> list[tuple[_Count, int]]:
        """What the request counts in, and how much there."""
        of_route, bytes_of_route = self._of_route(request)
        counts = [(of_route, 1), (bytes_of_route, request.taken.length)]
        of_scope = self._by_scope.get(_scope_of(request))
        return counts if of_scope is None else [*counts, (of_scope, 1)]

    async def _read_backlog(self) -> None:
        async with self._lock:
            started = self._clock()
            if started - self._read_seconds < _FRESH_SECONDS:
                return
            added = {count: count.added for counts in self._by_route.values() for count in counts}
            self._backlog = await self._store.cold.backlog(self._service)
            self._read_seconds = started
            included = self._added_before(started - self._backlog.age_seconds, (started, added))
            for name, counts in self._by_route.items():
                self._set(name, counts, included)

    def _added_before(self, counted_seconds: float, latest: tuple[float, dict[_Count, int]]) -> dict[_Count, int]:
        """What had been added when the store counted. What was noted before that is forgotten."""
        self._added.append(latest)
        while len(self._added) > 1 and self._added[1][0] <= counted_seconds + _AGE_SLACK_SECONDS:
            del self._added[0]
        # Of a count that is older than all notes, because another one overtook it, the first one is next to the truth.
        return self._added[0][1]

    async def _read_scope(self, request: Request, limit: int) -> _Count:
        count = self._by_scope.get(_scope_of(request))
        if count is None:
            if len(self._by_scope) >= _SCOPES_MAX:
                # The oldest one. What is under way in it counts on in the store.
                del self._by_scope[next(iter(self._by_scope))]
            count = self._by_scope[_scope_of(request)] = _Count()
        async with count.lock:
            started, included = self._clock(), count.added
            if started - count.read_seconds >= _FRESH_SECONDS:
                waiting = await self._store.cold.count_pending(self._service, *_scope_of(request), limit)
                count.counted, count.included, count.read_seconds = waiting, included, started
        return count

    def _of_route(self, request: Request) -> tuple[_Count, _Count]:
        name = request.route.name
        counts = self._by_route.get(name)
        if counts is None:
            counts = self._by_route[name] = _Count(), _Count()
            self._set(name, counts, {})
        return counts

    def _set(self, route_name: str, counts: tuple[_Count, _Count], included: Mapping[_Count, int]) -> None:
        waiting = self._backlog.waiting.get(route_name, _NOTHING_WAITS)
        for count, counted in zip(counts, (waiting.accepted, waiting.request_bytes), strict=True):
            count.counted, count.included = counted, included.get(count, 0)


class _Count:
    """Requests or their bytes: `counted` by the store, all that were `added` here, of which the store has `included`
    the first so many, and `under_way`."""

    __slots__ = ("added", "counted", "included", "lock", "read_seconds", "under_way")

    def __init__(self) -> None:
        self.counted = self.added = self.included = self.under_way = 0
        self.read_seconds = -math.inf
        self.lock = asyncio.Lock()

    @property
    def total(self) -> int:
        return self.counted + self.added - self.included + self.under_way


class ResultLost(Indefinite):
    """The command may have taken effect, now or later. Applying it again is safe."""


async def apply_until_known(store: Store, command: Command) -> Result:
    """Apply a command until its result is known, for a bounded time. Raises `ResultLost`, or another `StoreError` where
    nothing was changed."""
    is_lost = False
    pause = _PAUSE_SECONDS_MIN
    try:
        async with asyncio.timeout(_STORE_SECONDS_MAX):
            while True:
                try:
                    return await store.apply(command)
                except Indefinite:
                    is_lost = True
                except StoreError as error:
                    if not is_lost:
                        raise
                    if not isinstance(error, NotApplied):
                        raise ResultLost(str(error)) from error
                await asyncio.sleep(pause)
                pause = min(2 * pause, _PAUSE_SECONDS_MAX)
    except TimeoutError:
        raise ResultLost("the store did not respond in time") from None


def refuse_too_long(request: Request, policy: AcceptPolicy) -> Reply | None:
    """The refusal of a request that is too long to be kept."""
    if request.taken.length <= policy.request_bytes_max:
        return None
    detail = f"The limit for requests that are delivered later is {policy.request_bytes_max} bytes."
    return request.refuse(Verdict.BODY_TOO_LARGE, detail)


def _scope_of(request: Request) -> tuple[str, bytes]:
    return request.route.name, request.identity.scope_digest
