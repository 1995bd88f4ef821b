"""Asks the upstream what became of an operation in doubt, and writes down what it finds.

Owns one probe after the other for each operation: by a retrying request while it waits, or by the background worker. A
probe takes no token and claims nothing: it holds a recovery lease beside the record, so that one prober asks at a time,
and its finding is fenced on the token that it read, so that a late answer of the holder wins.

A probe is a safe request with the configuration's own credentials, never the caller's. What it cannot find out changes
nothing: the operation stays in doubt, and is asked about again. In the background that is after a growing pause, which
grows with the background's own probes alone: one for a request that waits never lengthens it, and is followed by one of
the background soon, in case that nobody comes again. No operation is asked about more often than every
`PROBE_FLOOR_US`, by all gateways together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, assert_never
from uuid import UUID, uuid4

from gateway.core.identity.operation_id import is_of
from gateway.core.message import Headers, RequestHead, ResponseHead
from gateway.core.operation import (
    MICROSECONDS,
    Audit,
    Disprove,
    ProbeTarget,
    Prove,
    Record,
    Snapshot,
    State,
    microseconds,
)
from gateway.core.outcome import windows_us
from gateway.core.recovery import (
    AskAgain,
    Done,
    Finding,
    NeverHappened,
    Probe,
    ProbeStart,
    conclude_probe,
    pause_us,
    probe_target,
)
from gateway.core.replay import stored_response
from gateway.observe.facts import Events, ProbeFinding, ProbeMade
from gateway.protect.route import Route
from gateway.store.base import StoreError
from gateway.store.operations import PROBE_FLOOR_US, ManagedStore
from gateway.upstream import BodyLost, Lost, NotSent, TooLong, UpstreamResponse

_LOG = logging.getLogger("gateway")

# A probe reads; one that is slower than this is asked again later.
PROBE_SECONDS_MAX: Final = 30.0
# Of an answer so much is read, to see what it means; more where the route keeps more.
_BODY_BYTES_MIN: Final = 1024 * 1024
# Of probes at once in this process, over all operations.
PROBES_MAX: Final = 64
_URGENT_PAUSE_SECONDS: Final = PROBE_FLOOR_US / MICROSECONDS
# Of operations that are warned about because they cannot be probed.
_UNASKABLE_MAX: Final = 1000
_WRITE_TRIES: Final = 4
_WRITE_PAUSE_SECONDS: Final = 0.2


@dataclass(slots=True)
class _Inquiry:
    """A probe that requests wait for."""

    task: asyncio.Task[Snapshot | None]
    waiters: int = 0


@dataclass(frozen=True, slots=True)
class _Heard:
    """A complete answer of the upstream."""

    head: ResponseHead
    body: bytes | None
    """None where it is longer than what is read of it."""


class Prober:
    """The probes of one process, for operations of its own service alone: nobody else's upstream knows of the others.

    `may_recover` says whether a record in doubt may be touched now, `steady_seconds` for how long the store's clock has
    surely not been set ahead.
    """

    def __init__(
        self,
        store: ManagedStore,
        events: Events,
        *,
        service: str,
        may_recover: Callable[[Snapshot], bool],
        who: str,
        steady_seconds: Callable[[], float],
    ) -> None:
        self._store = store
        self._events = events
        self._service = service
        self._may_recover = may_recover
        self._steady_seconds = steady_seconds
        self._who = who
        self._inquiries: dict[UUID, _Inquiry] = {}
        self._unaskable: set[UUID] = set()
        self._places = asyncio.Semaphore(PROBES_MAX)
        self._is_closed = False

    async def resolve(self, route: Route, operation_id: UUID, wait_seconds: float) -> Snapshot | None:
        """Probe for a request that waits; the record once it is out of doubt, or None when that takes too long."""
        if self._is_closed:
            return None
        inquiry = self._inquiries.get(operation_id)
        if inquiry is None:
            task = asyncio.get_running_loop().create_task(self._inquire(route, operation_id))
            inquiry = self._inquiries[operation_id] = _Inquiry(task)
        inquiry.waiters += 1
        try:
            await asyncio.wait((inquiry.task,), timeout=wait_seconds)
        finally:
            inquiry.waiters -= 1
        return inquiry.task.result() if inquiry.task.done() and not inquiry.task.cancelled() else None

    async def _inquire(self, route: Route, operation_id: UUID) -> Snapshot | None:
        """Probe until something is found or nobody waits. A probe that is under way comes to its end."""
        try:
            while self._inquiries[operation_id].waiters:
                snapshot = await self._store.read(operation_id)
                found = await self.probe_once(route, snapshot, is_urgent=True)
                if found is not None:
                    return found
                await asyncio.sleep(_URGENT_PAUSE_SECONDS)
        except StoreError:
            pass
        finally:
            # In the same turn: nobody may join one that has ended.
            del self._inquiries[operation_id]
        return None

    async def probe_once(self, route: Route, snapshot: Snapshot, *, is_urgent: bool) -> Snapshot | None:
        """Probe an operation, if somebody may and it is one of this service and route. Returns the record when it is
        not, or no longer, in doubt.

        Raises `StoreError`. If it is cancelled or fails, its recovery lease expires by itself.
        """
        record = snapshot.record
        if record is None or record.state is not State.IN_DOUBT:
            return snapshot
        if not is_of(record.identity, self._service, route.operation):
            return None
        policy = route.recovery
        if not isinstance(policy, Probe):
            return None
        target = probe_target(policy, record)
        if target is None:
            self._warn_unaskable(route, record)
            return None
        if not self._may_recover(snapshot):
            return None
        operation_id = record.identity.operation_id
        async with self._places:
            lease_us = microseconds(3 * PROBE_SECONDS_MAX)
            lease = await self._store.recover(operation_id, record.token, lease_us, is_urgent=is_urgent)
            if lease is None:
                return None
            # The store's clock from before the first byte: what arrives at the upstream after it, is not seen.
            before = await self._store.read(operation_id)
            if before.record is None or before.record.state is not State.IN_DOUBT:
                return before
            began = ProbeStart(before.now_us, self._steady_seconds())
            finding, heard = await self._ask(route, policy, before.record, began, target)
            match finding:
                case Done() if isinstance(heard, _Heard):
                    return await self._write(self._prove(route, before.record, heard))
                case NeverHappened():
                    return await self._write(self._disprove(route, before.record))
                case _:
                    # Who waits brings the next probe nearer: where it is urgent, the pause begins anew and is short.
                    pause = PROBE_FLOOR_US if is_urgent else pause_us(lease.background_tries)
                    await self._store.put_off(lease, pause, _why(finding))
                    return None

    def _warn_unaskable(self, route: Route, record: Record) -> None:
        """Once for each operation, and for so many."""
        operation_id = record.identity.operation_id
        if operation_id in self._unaskable or len(self._unaskable) >= _UNASKABLE_MAX:
            return
        self._unaskable.add(operation_id)
        _LOG.warning(
            "operation %s of route %s is in doubt and cannot be probed, because what the probe asks by is not kept; "
            "resolve it by hand",
            operation_id,
            route.name,
        )

    async def _ask(
        self, route: Route, policy: Probe, record: Record, began: ProbeStart, probe: ProbeTarget
    ) -> tuple[Finding, _Heard | str]:
        """What the upstream says, and what it said that by."""
        heard = await self._hear(route, policy, policy.method, probe.target, probe.host)
        finding: Finding
        if isinstance(heard, _Heard):
            finding = conclude_probe(policy, heard.head, heard.body or b"", record, began)
            if isinstance(finding, Done) and finding.follow is not None:
                followed = await self._hear(route, policy, "GET", finding.follow, probe.host)
                if isinstance(followed, _Heard) and 200 <= followed.head.status < 300:
                    heard = followed
                else:
                    finding = AskAgain("the answer that it names cannot be had")
        else:
            finding = AskAgain(heard)
        self._events.publish(ProbeMade(route.name, record.identity.operation_id, _word(finding), _why(finding)))
        return finding, heard

    async def _hear(self, route: Route, policy: Probe, method: str, target: bytes, host: bytes) -> _Heard | str:
        """The upstream's answer, or why there is none."""
        headers: Headers = ((b"Host", host), *policy.headers)
        request = RequestHead(method.encode(), target, headers)
        # As protected requests: what is not may have taken all connections for as long as it likes.
        result = await route.target.upstream.exchange(
            request, protected=True, may_send=lambda: True, response_timeout_seconds=PROBE_SECONDS_MAX
        )
        match result:
            case NotSent(reason) | Lost(reason):
                return str(reason)
            case UpstreamResponse():
                with result:
                    body = await result.body.read_all(max(_BODY_BYTES_MIN, route.keep.body_bytes_max))
                match body:
                    case BodyLost(reason):
                        return str(reason)
                    case TooLong():
                        return _Heard(result.head, None)
                    case bytes():
                        return _Heard(result.head, body)
                    case _:
                        assert_never(body)
            case _:
                assert_never(result)

    def _prove(self, route: Route, record: Record, heard: _Heard) -> Prove:
        body = heard.body
        if body is not None and not route.keep.keeps_body(heard.head.headers, len(body)):
            body = None
        return Prove(
            record.identity.operation_id,
            record.token,
            uuid4(),
            stored_response(b"GET", heard.head, body, route.keep),
            *windows_us(heard.head.headers, route.retention.replay_us, route.retention.remember_us),
            Audit(self._who, f"a probe was answered {heard.head.status}"),
        )

    def _disprove(self, route: Route, record: Record) -> Disprove:
        return Disprove(
            record.identity.operation_id,
            record.token,
            uuid4(),
            route.retention.remember_us,
            Audit(self._who, "a probe found that it never happened"),
        )

    async def _write(self, command: Prove | Disprove) -> Snapshot:
        """Write a finding down. An answer that is lost is asked for again; raises `StoreError` in the end."""
        for _ in range(_WRITE_TRIES - 1):
            try:
                return (await self._store.apply(command)).snapshot
            except StoreError:
                await asyncio.sleep(_WRITE_PAUSE_SECONDS)
        return (await self._store.apply(command)).snapshot

    async def close(self) -> None:
        """End every probe; those who wait, and whoever comes later, see that nothing was found in time."""
        self._is_closed = True
        tasks = [inquiry.task for inquiry in self._inquiries.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _word(finding: Finding) -> ProbeFinding:
    match finding:
        case Done():
            return ProbeFinding.DONE
        case NeverHappened():
            return ProbeFinding.NEVER_HAPPENED
        case AskAgain():
            return ProbeFinding.ASK_AGAIN
        case _:
            assert_never(finding)


def _why(finding: Finding) -> str:
    return finding.why if isinstance(finding, AskAgain) else ""
