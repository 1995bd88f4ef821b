"""Probes: asks the upstream what became of an operation in doubt, and records what it finds.

One probe at a time for each operation, for a retry that waits or for the background worker. A probe takes no token and
claims nothing. It holds a recovery lease beside the record, so that one prober asks at a time. Its finding is fenced on
the token that it read, so that a late result of the holder wins.

A probe is a safe request with the configuration's own credentials, never the caller's. If it cannot find out, nothing
changes, and the operation is probed again: in the background after a pause that grows with the background's own probes
alone. All gateways together probe an operation at most once in `PROBE_FLOOR_US`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Final
from uuid import UUID, uuid4

from gateway.core.identity.body import MISSING
from gateway.core.identity.key import is_of
from gateway.core.message import IndexedHeaders, RequestHead, ResponseHead
from gateway.core.operation import (
    MICROSECONDS,
    Audit,
    Disprove,
    ProbeTarget,
    Prove,
    Record,
    Reinstate,
    Snapshot,
    State,
    trace_of_attempt,
)
from gateway.core.outcome import resource_in, stored_response, version_of, windows_us
from gateway.core.recovery import (
    AskAgain,
    Done,
    Finding,
    NeverHappened,
    Probe,
    conclude_probe,
    pause_us,
    probe_target,
)
from gateway.observe.facts import Events, ProbeFinding, ProbeMade
from gateway.protect.reply import read_document
from gateway.protect.request import Slices
from gateway.protect.route import Route
from gateway.store.base import Store, StoreError, end_tasks
from gateway.store.operations import PROBE_FLOOR_US, RECOVERY_LEASE_US_MAX
from gateway.upstream import Lost, TooLong, UpstreamResponse

_LOG = logging.getLogger("gateway")

# A probe only reads; a slower one is repeated later.
PROBE_SECONDS_MAX: Final = 30.0
# So much of a response is read to see what it means; more where the route keeps more.
_BODY_BYTES_MIN: Final = 1024 * 1024
# Concurrent probes in this process, over all operations.
PROBES_MAX: Final = 64
_URGENT_PAUSE_SECONDS: Final = PROBE_FLOOR_US / MICROSECONDS
# Operations that this process warns about because they cannot be probed.
_UNPROBEABLE_MAX: Final = 1000
_LABELS: Final[Mapping[type[Finding], ProbeFinding]] = {
    Done: ProbeFinding.DONE,
    NeverHappened: ProbeFinding.NEVER_HAPPENED,
    AskAgain: ProbeFinding.ASK_AGAIN,
}
_WRITE_TRIES: Final = 4
_WRITE_PAUSE_SECONDS: Final = 0.2


@dataclass(slots=True)
class _Inquiry:
    """The probes of one operation, for the requests that wait for a finding."""

    task: asyncio.Task[Snapshot | None]
    waiters: int = 0


@dataclass(frozen=True, slots=True)
class _Response:
    head: ResponseHead
    body: bytes | None
    """None if it is longer than the limit."""


@dataclass(slots=True, eq=False, repr=False)
class Prober:
    """The probes of one process, for operations of its own service alone: its upstream knows no others.

    `may_recover` returns whether an operation in doubt may be recovered now, and `is_known` whether the journals of
    this host know how it ended; `steady_seconds` for how long the store's clock has surely not been set ahead.
    """

    store: Store
    events: Events
    _: KW_ONLY
    service: str
    may_recover: Callable[[Snapshot], bool]
    is_known: Callable[[UUID], Awaitable[bool]]
    who: str
    steady_seconds: Callable[[], float]
    _inquiries: dict[UUID, _Inquiry] = field(init=False, default_factory=dict)
    _unprobeable: set[UUID] = field(init=False, default_factory=set)
    _slots: asyncio.Semaphore = field(init=False, default_factory=lambda: asyncio.Semaphore(PROBES_MAX))
    _slices: Slices = field(init=False, default_factory=Slices)
    _is_closed: bool = field(init=False, default=False)

    async def resolve(self, route: Route, operation_id: UUID, wait_seconds: float) -> Snapshot | None:
        """Probe for a waiting request: the record once it is out of doubt, or None when that takes too long."""
        if self._is_closed:
            return None
        inquiry = self._inquiries.get(operation_id)
        if inquiry is None:
            task = asyncio.get_running_loop().create_task(self._inquire(route, operation_id))
            inquiry = self._inquiries[operation_id] = _Inquiry(task)
        inquiry.waiters += 1
        try:
            await self._slices.until(inquiry.task, wait_seconds)
        finally:
            inquiry.waiters -= 1
        return inquiry.task.result() if inquiry.task.done() and not inquiry.task.cancelled() else None

    async def _inquire(self, route: Route, operation_id: UUID) -> Snapshot | None:
        """Probe until there is a finding or no request waits. A probe that has started is completed."""
        try:
            while self._inquiries[operation_id].waiters:
                snapshot = await self.store.read(operation_id)
                found = await self.probe_once(route, snapshot, is_urgent=True)
                if found is not None:
                    return found
                await asyncio.sleep(_URGENT_PAUSE_SECONDS)
        except StoreError:
            pass
        finally:
            # In the same turn of the loop, so that no request joins an inquiry that has ended.
            del self._inquiries[operation_id]
        return None

    async def probe_once(self, route: Route, snapshot: Snapshot, *, is_urgent: bool) -> Snapshot | None:
        """Probe an operation of this service and route, if it may be probed now. Returns the record when it is not, or
        no longer, in doubt.

        Raises `StoreError`. When this is cancelled or fails, its recovery lease expires by itself.
        """
        record = snapshot.record
        if record is None or record.state is not State.IN_DOUBT:
            return snapshot
        if not is_of(record.identity, self.service, route.operation):
            return None
        policy = route.recovery
        if not isinstance(policy, Probe):
            return None
        target = probe_target(policy, record)
        if target is None:
            self._warn_unprobeable(route, record)
            return None
        operation_id = record.identity.operation_id
        if not self.may_recover(snapshot) or await self.is_known(operation_id):
            return None
        async with self._slots:
            # Half of what a store believes, and three times what an exchange may take.
            lease_us = RECOVERY_LEASE_US_MAX // 2
            lease = await self.store.cold.recover(operation_id, record.token, lease_us, is_urgent=is_urgent)
            if lease is None:
                return None
            # The store's clock before the first byte: a probe cannot see what reaches the upstream after it.
            before = await self.store.read(operation_id)
            if before.record is None or before.record.state is not State.IN_DOUBT:
                return before
            steady_seconds = self.steady_seconds()
            finding, response = await self._probe(route, policy, before.record, target, before.now_us, steady_seconds)
            match finding:
                case Done() if isinstance(response, _Response):
                    return await self._record_finding(await self._prove(route, before.record, response))
                case NeverHappened():
                    found = await self._record_finding(self._never_happened(route, before.record))
                    self.store.cold.announce_work()
                    return found
                case _:
                    # A waiting request brings the next probe nearer: after an urgent one, the pause starts anew, short.
                    pause = PROBE_FLOOR_US if is_urgent else pause_us(lease.background_tries)
                    await self.store.cold.put_off(lease, pause, _why(finding))
                    return None

    def _warn_unprobeable(self, route: Route, record: Record) -> None:
        operation_id = record.identity.operation_id
        if operation_id in self._unprobeable or len(self._unprobeable) >= _UNPROBEABLE_MAX:
            return
        self._unprobeable.add(operation_id)
        _LOG.warning(
            "operation %s of route %s is in doubt and cannot be probed, because what the probe asks by is not kept; "
            "resolve it by hand",
            operation_id,
            route.name,
        )

    async def _probe(
        self, route: Route, policy: Probe, record: Record, probe: ProbeTarget, began_us: int, steady_seconds: float
    ) -> tuple[Finding, _Response | str]:
        """The finding, and the response that it follows from, or why there is none."""
        began_seconds = time.monotonic()
        response = await self._exchange(route, policy, policy.method, probe.target, probe.host)
        finding: Finding
        if isinstance(response, _Response):
            finding = conclude_probe(policy, response.head, response.body or b"", record, began_us, steady_seconds)
            if isinstance(finding, Done) and finding.follow is not None:
                followed = await self._exchange(route, policy, "GET", finding.follow, probe.host)
                if isinstance(followed, _Response) and 200 <= followed.head.status < 300:
                    response = followed
                else:
                    finding = AskAgain("the response that it names cannot be fetched")
        else:
            finding = AskAgain(response)
        self.events.publish(
            ProbeMade(
                route.name,
                record.identity.operation_id,
                _LABELS[type(finding)],
                _why(finding),
                time.monotonic() - began_seconds,
                record.attempts,
                trace_of_attempt(record),
            )
        )
        return finding, response

    async def _exchange(self, route: Route, policy: Probe, method: str, target: bytes, host: bytes) -> _Response | str:
        """The upstream's response, or why there is none."""
        request = RequestHead(method.encode(), target, IndexedHeaders(((b"Host", host), *policy.headers)))
        # Uses the connections for protected requests: unprotected ones may hold all others for any time.
        result = await route.target.upstream.exchange(
            request, protected=True, may_send=lambda: True, response_timeout_seconds=PROBE_SECONDS_MAX
        )
        if not isinstance(result, UpstreamResponse):
            return str(result.reason)
        with result:
            body = await result.body.read_all(max(_BODY_BYTES_MIN, route.keep.body_bytes_max))
        if isinstance(body, Lost):
            return str(body.reason)
        return _Response(result.head, None if isinstance(body, TooLong) else body)

    async def _prove(self, route: Route, record: Record, response: _Response) -> Prove:
        keep, headers, body = route.keep, response.head.headers, response.body
        by_name = headers.by_name
        is_read = keep.reads_bodies and body is not None
        document = await read_document(headers, body or b"") if is_read else MISSING
        if body is not None and not keep.keeps_body(by_name, len(body)):
            body = None
        return Prove(
            record.identity.operation_id,
            record.token,
            uuid4(),
            # A probe sends no header of the caller's: of a version that those name, nothing is known.
            stored_response(b"GET", response.head, body, keep, version_of(keep.version, ())),
            *windows_us(by_name, route.retention.replay_us, route.retention.remember_us),
            Audit(self.who, f"a probe was answered {response.head.status}"),
            resource_in(keep.reference, by_name, document),
        )

    def _never_happened(self, route: Route, record: Record) -> Disprove | Reinstate:
        """A kept request is delivered then: its caller was promised that."""
        ids = (record.identity.operation_id, record.token, uuid4())
        audit = Audit(self.who, "a probe found that it never happened")
        if record.delivery is not None:
            return Reinstate(*ids, audit)
        return Disprove(*ids, route.retention.remember_us, audit)

    async def _record_finding(self, command: Prove | Disprove | Reinstate) -> Snapshot:
        """Record a finding. Retried on `StoreError`, and raises it in the end: applying it again is safe."""
        for _ in range(_WRITE_TRIES - 1):
            try:
                return (await self.store.apply(command)).snapshot
            except StoreError:
                await asyncio.sleep(_WRITE_PAUSE_SECONDS)
        return (await self.store.apply(command)).snapshot

    async def close(self) -> None:
        """End every probe. Requests that wait now or later get None."""
        self._is_closed = True
        await end_tasks(inquiry.task for inquiry in self._inquiries.values())


def _why(finding: Finding) -> str:
    return finding.why if isinstance(finding, AskAgain) else ""
