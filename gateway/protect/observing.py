"""What is seen of requests on observed routes, beside their way through the passthrough.

Owns the queue of what was seen, and the worker that judges and stores it; `sighting` copies what streams by. It knows
no claim, lease, record or journal, and nothing of a request waits for it: it never reads a body itself, never asks the
store while a request is under way, and gives up what does not fit. What it gives up is counted, by reason:

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
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final
from uuid import UUID

from gateway.core.framing import digest
from gateway.core.identity.pointer import MISSING
from gateway.core.message import values_by_name
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
from gateway.core.outcome import CONFLICT, meaning_of, windows_us
from gateway.core.reading import resource_in
from gateway.core.replay import stored_response
from gateway.core.verdict import Verdict
from gateway.observe.facts import DropReason, Events, ObservationDropped, RequestObserved
from gateway.protect.ambiguity import ambiguity
from gateway.protect.body import TakenBody, WholeBody
from gateway.protect.decoding import read_document
from gateway.protect.identification import Identifying
from gateway.protect.reply import Reply, RequestBody
from gateway.protect.request import Request, Untouched
from gateway.protect.route import Route
from gateway.protect.sighting import Memory, Sighting, TooLong
from gateway.store.base import StoreError
from gateway.store.observations import ObservationStore

_LOG = logging.getLogger("gateway")

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


class Observing:
    """Observes requests of one service in one process. Lives on one event loop. `run` it, and `close` it at the end.

    `wall_us` is this host's time, `clock` counts seconds. With `shows_header`, responses carry what enforcement would
    have done as far as this process knows.
    """

    def __init__(
        self,
        service: str,
        identifying: Identifying,
        store: ObservationStore | None,
        events: Events,
        *,
        wall_us: Callable[[], int],
        clock: Callable[[], float],
        shows_header: bool,
    ) -> None:
        self._service = service
        self._identifying = identifying
        self._store = store
        self._events = events
        self._shows_header = shows_header
        self._wall_us = wall_us
        self.clock = clock
        self.memory = Memory()
        self._numbers = 0
        self._last_us = 0
        # By number, in the order in which they began.
        self._under_way: OrderedDict[int, Sighting] = OrderedDict()
        self._waiting: deque[Sighting] = deque()
        self._work = asyncio.Event()
        self._identifications: set[asyncio.Task[Observation | None]] = set()
        self._remembered: OrderedDict[UUID, list[Observation]] = OrderedDict()

    # -- on the way of a request: nothing here waits ------------------------------------------------------------------

    def begin(self, request: Request, route: Route) -> Sighting | None:
        """Observe a request that is about to be forwarded; None where there is no room."""
        if len(self._under_way) + len(self._waiting) >= _QUEUE_MAX:
            self._drop(DropReason.QUEUE)
            return None
        try:
            self._numbers += 1
            # Requests of this process keep their order when its host's time is set back.
            self._last_us = max(self._last_us + 1, self._wall_us())
            sighting = Sighting(self, self._identifying, request, route, self._numbers, self._last_us, self.clock())
            self._under_way[sighting.number] = sighting
        except Exception:  # noqa: BLE001 - as in `_harmless`
            _LOG.exception("a request was not observed because of a bug")
            self._drop(DropReason.FAILED)
            return None
        return sighting

    def arrived(self, sighting: Sighting) -> None:
        """Its body is complete. Only the header needs to know now what it asks for."""
        if self._shows_header:
            sighting.found = asyncio.get_running_loop().create_task(self._identified(sighting))
            self._identifications.add(sighting.found)
            sighting.found.add_done_callback(self._identifications.discard)

    def shown(self, sighting: Sighting, reply: Reply) -> Reply:
        """The reply with what enforcement would have done, where that is wanted."""
        if not self._shows_header:
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
        """Its observing met a bug."""
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
        by_name = values_by_name(head.headers)
        meaning = meaning_of(head.status, by_name, route.policy, carries_doubt=False)
        exchange = Exchange(
            self._wall_us(),
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
        """Judge and store what was seen, until cancelled."""
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
        for task in self._identifications:
            task.cancel()
        await asyncio.gather(*self._identifications, return_exceptions=True)

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
        body: RequestBody
        if sighting.sent.is_over:
            body = TooLong(sighting.sent.length)
        else:
            content = sighting.sent.content()
            body = WholeBody(TakenBody(content, len(content)))
        try:
            request = replace(original, body=body)
            found = await sighting.identifying.identify(request, route)
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
        """What it became, by the route's policy."""
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
        by_name = values_by_name(head.headers)
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
        if self._store is None:
            raise StoreError("there is no table of observations")
        routes = {observation.route: route for observation, route in found}
        new = {observation.entry: observation for observation, _ in found}
        ids = {each.operation_id for each in new.values() if each.operation_id is not None}
        first_us = min(each.began_us for each in new.values())
        before = await self._store.observed_before(self._service, ids) if ids else []
        contents = {each.content for each in new.values() if each.operation_id is not None}
        shared = await self._store.observed_contents(self._service, contents, first_us - REKEYED_US) if contents else []
        enforcements = {name: _enforcement(route) for name, route in routes.items()}
        judged = judge_new(before, new, shared, enforcements)
        await self._store.save_observations(self._service, list(judged.values()), self._wall_us() - KEEP_US)
        for entry in new:
            observation, finding = judged[entry]
            self._events.publish(
                RequestObserved(observation.route, finding.verdict, finding.is_repeat, finding.is_rekeyed)
            )

    def _forget(self, sighting: Sighting, reason: DropReason) -> None:
        sighting.release()
        self._drop(reason)

    def _drop(self, reason: DropReason, number: int = 1) -> None:
        self._events.publish(ObservationDropped(reason, number))


def _enforcement(route: Route) -> Enforcement:
    return Enforcement(
        route.policy,
        accepts_recipe_change=route.accepts_recipe_change,
        is_version_strict=route.keep.is_version_strict,
        is_fetched=route.keep.is_fetched,
        wait_us=microseconds(route.in_flight.wait),
    )
