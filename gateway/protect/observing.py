"""What is seen of requests on observed routes, beside their way through the passthrough.

Owns the queue of what was seen, and the worker that judges and stores it. It knows no claim, lease, record or journal,
and nothing of a request waits for it: it never reads a body itself, never asks the store while a request is under way,
and gives up what does not fit. What it gives up is counted, by reason:

* `queue`: too many requests are observed at once, or wait for the store.
* `memory`: their bodies would take too much memory.
* `incomplete`: the request did not arrive completely, or its connection became a tunnel.
* `store`: the store is away or slow.
* `failed`: a bug, which is logged.

Rules 2 and 4 to 7 are those of the request path (`ambiguity`, `Identifying`), on a copy and after the response;
`core.observation` does the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import wraps
from typing import Concatenate, Final, ParamSpec
from uuid import UUID, uuid4

from gateway.core.identity.body import MISSING, digest
from gateway.core.message import Headers, ResponseHead
from gateway.core.observation import (
    KEEP_US,
    REKEYED_US,
    Enforcement,
    Exchange,
    ExchangeResult,
    Observation,
    findings,
    judge_new,
)
from gateway.core.operation import microseconds
from gateway.core.outcome import CONFLICT, meaning_of, resource_in, stored_response, windows_us
from gateway.core.verdict import Verdict
from gateway.observe.facts import DropReason, Events, ObservationDropped, RequestObserved
from gateway.observe.logs import Tasks
from gateway.protect.ambiguity import ambiguity
from gateway.protect.identification import Identifying
from gateway.protect.reply import Reply, RequestBody, ResponseStream, read_document
from gateway.protect.request import Request, TakenBody, Untouched
from gateway.protect.route import Route
from gateway.store.base import StoreError, end_tasks
from gateway.store.operations import ObservationStore
from gateway.upstream import Lost, NotSent, UpstreamResponse

# -- one observed request ----------------------------------------------------------------------------------------------
#
# One observed request: what is copied of it while it passes, and when its exchange is over.
#
# Everything here is called on the request's way. Nothing waits, raises, or holds its connection; what does not fit is
# given up.

_LOG = logging.getLogger("gateway")
P = ParamSpec("P")

# All heads and copies of bodies together.
_COPIED_BYTES_MAX: Final = 64 * 1024 * 1024
# What a header takes beside its bytes.
_HEADER_BYTES: Final = 128


class _Copy:
    """The bytes of a body that streams by, up to a limit. `is_over`: it was longer, and nothing is kept."""

    def __init__(self, observing: Observing, bytes_max: int) -> None:
        self._observing = observing
        self._bytes_max = bytes_max
        self._data = bytearray()
        self.length = 0
        self.is_over = False
        self.is_crowded = False

    def add(self, data: bytes) -> None:
        self.length += len(data)
        if self.is_over or self.is_crowded:
            return
        if self.length > self._bytes_max:
            self.is_over = True
        elif not self._observing.take_memory(len(data)):
            self.is_crowded = True
        else:
            self._data += data
            return
        self._give_back()

    def content(self) -> bytes:
        return bytes(self._data)

    def drop(self) -> None:
        """Hold nothing, and take no more."""
        self.is_crowded = True
        self._give_back()

    def _give_back(self) -> None:
        self._observing.give_back(len(self._data))
        self._data = bytearray()


class _CopiedRequest:
    """The body of a request on its way to the service: the same bytes at the same pace."""

    def __init__(self, body: RequestBody, sighting: Sighting) -> None:
        self._body = body
        self._sighting = sighting
        self.length: int | None = body.length

    def whole(self) -> bytes | None:
        data = self._body.whole()
        if data is not None:
            self._sighting.arrives(data)
            self._sighting.arrives(b"")
        return data

    async def stream(self) -> AsyncIterator[bytes]:
        async for data in self._body.stream():
            self._sighting.arrives(data)
            yield data
        self._sighting.arrives(b"")

    def crowd_out(self) -> bool:
        return self._body.crowd_out()

    def close(self) -> None:
        self._body.close()


class _CopiedResponse:
    def __init__(self, stream: ResponseStream, sighting: Sighting) -> None:
        self._stream = stream
        self._sighting = sighting

    async def read(self) -> bytes:
        try:
            data = await self._stream.read()
        except BaseException:
            self._sighting.end(ExchangeResult.UNKNOWN)
            raise
        self._sighting.returns(data)
        return data

    def abort(self) -> None:
        # The client may leave before the end, and what the service did is not known then: it never is of a part.
        self._stream.abort()
        self._sighting.end(ExchangeResult.UNKNOWN)


def _harmless(step: Callable[Concatenate[Sighting, P], None]) -> Callable[Concatenate[Sighting, P], None]:
    """A step that a request passes on its way: a bug in it is logged, and ends the observing instead of the request."""

    @wraps(step)
    def guarded(sighting: Sighting, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            step(sighting, *args, **kwargs)
        except Exception:  # noqa: BLE001 - whatever it is, the request goes on
            sighting.fail()

    return guarded


class Sighting:
    """One request that is observed. Everything here is called on its way; nothing here waits, raises, or holds its
    connection."""

    def __init__(self, observing: Observing, request: Request, route: Route, number: int) -> None:
        self._observing = observing
        self._heads_bytes = 0
        self.number = number
        self.route = route
        self.entry = uuid4()
        self.began_us = observing.now_us()
        self.began_seconds = observing.clock()
        self.is_whole = False
        self.is_over = False
        self.is_crowded = False
        self.sent = _Copy(observing, route.settings.body.max_bytes)
        self.received = _Copy(observing, route.keep.taken_bytes_max)
        self.head: ResponseHead | None = None
        self.ended: Exchange | None = None
        self.found: asyncio.Task[Observation | None] | None = None
        self.original = replace(request, body=TakenBody(b"", 0))
        self._hold(request.head.headers)

    def copied(self, request: Request) -> Request:
        """The request to forward: the same, its body copied as it streams by."""
        return replace(request, body=_CopiedRequest(request.body, self))

    def answered(self, result: UpstreamResponse | NotSent | Lost, reply: Reply) -> Reply:
        """The reply to write: the same, its body copied as it goes out."""
        try:
            return self._answered(result, reply)
        except Exception:  # noqa: BLE001 - as in `_harmless`
            self.fail()
            return reply

    @_harmless
    def arrives(self, data: bytes) -> None:
        """The next bytes of its body; empty at the end."""
        if data:
            self.sent.add(data)
        elif not self.is_over:
            self.is_whole = True
            self._observing.arrived(self)

    @_harmless
    def returns(self, data: bytes) -> None:
        """The next bytes of the response's body; empty at the proven end."""
        if data:
            self.received.add(data)
        else:
            self.end()

    @_harmless
    def end(self, result: ExchangeResult | None = None) -> None:
        """Its exchange is over; without a `result`, by the response. Only the first call counts."""
        if not self.is_over:
            self.is_over = True
            self.ended = Exchange(self._observing.now_us(), ExchangeResult.UNKNOWN if result is None else result)
            if result is not None:
                self.head = None
            self._observing.ended(self)

    def give_up(self) -> None:
        """Its connection is a tunnel from now on."""
        self.is_whole = False
        self.end(ExchangeResult.UNKNOWN)

    def fail(self) -> None:
        """Give it up because of the bug that was just caught."""
        _LOG.exception("a request was not observed because of a bug")
        self.is_over = True
        self._observing.failed(self)

    def release(self) -> None:
        """Hold no memory. Safe to repeat."""
        self.sent.drop()
        self.received.drop()
        self._observing.give_back(self._heads_bytes)
        self._heads_bytes = 0

    def _answered(self, result: UpstreamResponse | NotSent | Lost, reply: Reply) -> Reply:
        if isinstance(result, NotSent | Lost):
            self.end(ExchangeResult.NOT_SENT if isinstance(result, NotSent) else ExchangeResult.UNKNOWN)
            return reply
        if self.is_over:
            return reply
        self.head = result.head
        self._hold(result.head.headers)
        reply = self._observing.shown(self, reply)
        if isinstance(reply.body, bytes):
            self.received.add(reply.body)
            self.end()
            return reply
        return replace(reply, body=_CopiedResponse(reply.body, self))

    def _hold(self, headers: Headers) -> None:
        size = sum(len(name) + len(value) + _HEADER_BYTES for name, value in headers)
        if self._observing.take_memory(size):
            self._heads_bytes += size
        else:
            self.is_crowded = True


# -- observing ---------------------------------------------------------------------------------------------------------


# Requests that are under way, and as many that wait to be stored.
_QUEUE_MAX: Final = 10_000
_BATCH_MAX: Final = 500
_FLUSH_SECONDS: Final = 0.25
_STORE_SECONDS: Final = 5.0
_LAST_SECONDS: Final = 1.0
# A request that began earlier is waited for so long, because a later one is judged by it. The table is corrected after.
_HOLD_SECONDS: Final = 30.0
# Operations that are remembered here, and requests of each, for the header alone.
_REMEMBERED_MAX: Final = 1_000
_REMEMBERED_REQUESTS_MAX: Final = 20


@dataclass(eq=False, slots=True)
class Observing:
    """Observes requests of one service in one process. Lives on one event loop. `run` it, and `close` it at the end.
    `wall_us` is this host's time, `clock` counts seconds. With `shows_header`, responses carry what enforcement would
    have done as far as this process knows."""

    service: str
    identifying: Identifying
    store: ObservationStore | None
    events: Events
    _: KW_ONLY
    wall_us: Callable[[], int]
    clock: Callable[[], float]
    shows_header: bool
    _bytes_left: int = field(default_factory=lambda: _COPIED_BYTES_MAX, init=False)
    _numbers: int = field(default=0, init=False)
    _last_us: int = field(default=0, init=False)
    # By number, in the order in which they began.
    _under_way: OrderedDict[int, Sighting] = field(default_factory=OrderedDict, init=False)
    _waiting: deque[Sighting] = field(default_factory=deque, init=False)
    _work: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _identifications: Tasks = field(
        default_factory=lambda: Tasks("an observed request was not identified because of a bug"), init=False
    )
    _remembered: OrderedDict[UUID, list[Observation]] = field(default_factory=OrderedDict, init=False)

    # -- on the way of a request: nothing here waits ------------------------------------------------------------------

    def begin(self, request: Request, route: Route) -> Sighting | None:
        """Observe a request that is about to be forwarded; None where there is no room."""
        if len(self._under_way) + len(self._waiting) >= _QUEUE_MAX:
            self._drop(DropReason.QUEUE)
            return None
        try:
            self._numbers += 1
            sighting = Sighting(self, request, route, self._numbers)
            self._under_way[sighting.number] = sighting
        except Exception:  # noqa: BLE001 - as in `_harmless`
            _LOG.exception("a request was not observed because of a bug")
            self._drop(DropReason.FAILED)
            return None
        return sighting

    def now_us(self) -> int:
        """This host's time. Begins and ends of this process keep their order, however that time is set."""
        self._last_us = max(self._last_us + 1, self.wall_us())
        return self._last_us

    def take_memory(self, size: int) -> bool:
        """Whether there was as much left."""
        if size > self._bytes_left:
            return False
        self._bytes_left -= size
        return True

    def give_back(self, size: int) -> None:
        self._bytes_left += size

    def arrived(self, sighting: Sighting) -> None:
        """Its body is complete. Only the header needs to know now what it asks for."""
        if self.shows_header:
            sighting.found = self._identifications.spawn(self._identified(sighting))

    def shown(self, sighting: Sighting, reply: Reply) -> Reply:
        """The reply with what enforcement would have done, where that is wanted."""
        if not self.shows_header:
            return reply
        return replace(reply, would=self._guess(sighting, reply) or "unknown")

    def ended(self, sighting: Sighting) -> None:
        del self._under_way[sighting.number]
        if not sighting.is_whole:
            self._forget(sighting, DropReason.INCOMPLETE)
        elif sighting.is_crowded or sighting.sent.is_crowded:
            self._forget(sighting, DropReason.MEMORY)
        else:
            self._waiting.append(sighting)
            self._work.set()

    def failed(self, sighting: Sighting) -> None:
        if self._under_way.pop(sighting.number, None) is not None:
            self._forget(sighting, DropReason.FAILED)

    def _guess(self, sighting: Sighting, reply: Reply) -> Verdict | None:
        """What is known of it here, at the head of its response."""
        found = sighting.found
        if found is None or not found.done() or found.cancelled() or found.exception() is not None:
            return None
        observation, head = found.result(), sighting.head
        if observation is None or head is None:
            return None
        if observation.early is not None or observation.operation_id is None:
            return observation.early
        route = sighting.route
        by_name = head.headers.by_name
        meaning = meaning_of(head.status, by_name, route.policy, carries_doubt=False)
        exchange = Exchange(
            self.now_us(),
            ExchangeResult(meaning.value),
            head.status,
            is_kept=reply.length is None or route.keep.keeps_body(by_name, reply.length),
            replay_us=route.retention.replay_us,
            remember_us=route.retention.remember_us,
        )
        history = self._remembered.setdefault(observation.operation_id, [])
        if len(history) < _REMEMBERED_REQUESTS_MAX:
            history.append(replace(observation, exchange=exchange))
            history.sort(key=lambda each: each.began_us)
        while len(self._remembered) > _REMEMBERED_MAX:
            self._remembered.popitem(last=False)
        for seen, finding in zip(history, findings(history, _enforcement(route)), strict=True):
            if seen.entry == observation.entry:
                return finding.verdict
        return None

    # -- beside the traffic -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        while True:
            await self._work.wait()
            await asyncio.sleep(_FLUSH_SECONDS)
            self._work.clear()
            while batch := self._take():
                await self._flush(batch)
            if self._waiting:
                self._work.set()

    async def close(self) -> None:
        """Store what was seen last, if the store takes it at once."""
        try:
            async with asyncio.timeout(_LAST_SECONDS):
                while batch := self._take(is_last=True):
                    await self._flush(batch)
        except TimeoutError:
            while self._waiting:
                self._forget(self._waiting.popleft(), DropReason.STORE)
        await end_tasks(self._identifications)

    def _take(self, *, is_last: bool = False) -> list[Sighting]:
        """Some of those that may be judged: every request that began before them has ended, or takes too long."""
        oldest = next(iter(self._under_way.values()), None)
        is_held = oldest is not None and self.clock() - oldest.began_seconds < _HOLD_SECONDS and not is_last
        batch: list[Sighting] = []
        for _ in range(len(self._waiting)):
            sighting = self._waiting.popleft()
            if len(batch) >= _BATCH_MAX or (is_held and oldest is not None and sighting.number > oldest.number):
                self._waiting.append(sighting)
            else:
                batch.append(sighting)
        return batch

    async def _flush(self, batch: list[Sighting]) -> None:
        """Judge and store these. Each of them is counted, also where this is cancelled."""
        left, reason = len(batch), DropReason.STORE
        try:
            found: list[tuple[Observation, Route]] = []
            for sighting in batch:
                observation = await self._seen(sighting)
                if observation is None:
                    left -= 1
                    self._drop(DropReason.FAILED)
                else:
                    found.append((observation, sighting.route))
            async with asyncio.timeout(_STORE_SECONDS):
                await self._judge(found)
            left = 0
        except (StoreError, TimeoutError) as error:
            _LOG.debug("observations were dropped: %s", error)
        except Exception:  # noqa: BLE001 - the next ones are observed all the same
            _LOG.exception("observations were dropped because of a bug")
            reason = DropReason.FAILED
        finally:
            for sighting in batch:
                sighting.release()
            if left:
                self._drop(reason, left)

    async def _seen(self, sighting: Sighting) -> Observation | None:
        """What it asked for, and what it became; None after a bug, which is logged."""
        try:
            observation = await (self._identified(sighting) if sighting.found is None else sighting.found)
            if observation is None or observation.early is not None:
                return observation
            return replace(observation, exchange=await self._exchange(sighting))
        except Exception:  # noqa: BLE001 - the others of its batch are stored all the same
            _LOG.exception("a request was not observed because of a bug")
            return None

    async def _identified(self, sighting: Sighting) -> Observation | None:
        """Rules 2 and 4 to 7; None after a bug, which is logged."""
        route, original = sighting.route, sighting.original
        seen = Observation(sighting.entry, route.name, sighting.began_us)
        if ambiguity(original.head, route.once, route.compared) is not None:
            return replace(seen, early=Verdict.REQUEST_INVALID)
        # Of one over the route's limit, the length is enough for rule 6.
        body = TakenBody(sighting.sent.content(), sighting.sent.length)
        try:
            request = replace(original, body=body)
            found = await self.identifying.identify(request, route)
        except Exception:  # noqa: BLE001 - the others of its batch are stored all the same
            _LOG.exception("an observed request could not be identified")
            return None
        match found:
            case Untouched(_, verdict):
                return replace(seen, early=verdict)
            case Reply():
                return replace(seen, early=found.verdict or Verdict.SCOPE_MISSING)
            case None:
                request.taken.close()
                identity, fingerprints = request.identity, request.fingerprints
                content = digest(
                    b"observed", identity.operation.encode(), identity.scope_digest, fingerprints[0].digest
                )
                return replace(
                    seen,
                    operation_id=identity.operation_id,
                    fingerprints=tuple(fingerprints),
                    content=content,
                    version=request.version,
                )

    async def _exchange(self, sighting: Sighting) -> Exchange:
        exchange, head, route = sighting.ended, sighting.head, sighting.route
        if exchange is None:
            raise AssertionError("it has not ended")
        if head is None:
            return replace(exchange, remember_us=route.retention.remember_us)
        keep, received = route.keep, sighting.received
        body = None if received.is_over or received.is_crowded else received.content()
        document = MISSING
        is_conflict = head.status == CONFLICT
        if (keep.reads_bodies or is_conflict) and body is not None:
            document = await read_document(head.headers, body, takes_text=is_conflict)
        by_name = head.headers.by_name
        meaning = meaning_of(head.status, by_name, route.policy, carries_doubt=False, document=document)
        kept = body if body is not None and keep.keeps_body(by_name, len(body)) else None
        method = sighting.original.head.method
        stored = await asyncio.to_thread(stored_response, method, head, kept, keep) if keep.redaction else None
        replay_us, remember_us = windows_us(by_name, route.retention.replay_us, route.retention.remember_us)
        return Exchange(
            exchange.ended_us,
            ExchangeResult(meaning.value),
            head.status,
            is_kept=kept is not None if stored is None else stored.body is not None,
            names_resource=resource_in(keep.reference, by_name, document) is not None,
            replay_us=replay_us,
            remember_us=remember_us,
        )

    async def _judge(self, found: Sequence[tuple[Observation, Route]]) -> None:
        """Judge these with what was seen before, store all that changes, and count these."""
        if not found:
            return
        if self.store is None:
            raise StoreError("there is no table of observations")
        routes = {observation.route: route for observation, route in found}
        new = {observation.entry: observation for observation, _ in found}
        ids = {each.operation_id for each in new.values() if each.operation_id is not None}
        first_us = min(each.began_us for each in new.values())
        before = await self.store.observed_before(self.service, ids) if ids else []
        contents = {each.content for each in new.values() if each.operation_id is not None}
        shared = await self.store.observed_contents(self.service, contents, first_us - REKEYED_US) if contents else []
        enforcements = {name: _enforcement(route) for name, route in routes.items()}
        judged = judge_new(before, new, shared, enforcements)
        await self.store.save_observations(self.service, list(judged.values()), self.wall_us() - KEEP_US)
        for entry in new:
            observation, finding = judged[entry]
            self.events.publish(
                RequestObserved(observation.route, finding.verdict, finding.is_repeat, finding.is_rekeyed)
            )

    def _forget(self, sighting: Sighting, reason: DropReason) -> None:
        sighting.release()
        self._drop(reason)

    def _drop(self, reason: DropReason, number: int = 1) -> None:
        self.events.publish(ObservationDropped(reason, number))


def _enforcement(route: Route) -> Enforcement:
    return Enforcement(
        route.policy,
        accepts_recipe_change=route.accepts_recipe_change,
        is_version_strict=route.keep.is_version_strict,
        is_fetched=route.keep.is_fetched,
        wait_us=microseconds(route.in_flight.wait),
    )
