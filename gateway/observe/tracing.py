"""Spans of requests on protected routes, and of what follows them, for an OpenTelemetry collector.

Owns which requests are sampled, what becomes of their `traceparent`, and which spans a reported request makes. Spans
are made after the response, from the event about the request, and sent in batches by a thread of this process: nothing
here waits for the collector. What does not fit the queue is dropped and counted.

Neither a span nor a link has a key, a scope, a fingerprint, a body, a credential, or more of the path than the route's
template.

The id of the span of a request that was sent is a digest of its trace, its operation and its attempt. So a later repeat
links to it by what the record has, wherever and whenever it comes; no store keeps span ids.

Whether a request is sampled is drawn; the draw is the lower half of the trace id that it begins, as samplers by ratio
elsewhere read it. Such a trace id is signed, in four of its bytes: so probes and deliveries are sampled where the
request that they follow was, without a word about it in the record, and no caller decides it by a forged trace id.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import re
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import KW_ONLY, dataclass, field
from hashlib import blake2b
from hmac import compare_digest
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, assert_never
from uuid import UUID

from gateway.core.identity.key import Network, is_within
from gateway.core.message import IndexedHeaders, RequestHead, header_values
from gateway.core.verdict import Verdict
from gateway.observe.facts import (
    AdminActed,
    AdminResult,
    DeliveryAttempted,
    DeliveryResult,
    Fact,
    Kind,
    ProbeMade,
    RequestAnswered,
    StoreCalled,
    TraceContext,
)

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import Link, SpanContext, SpanKind

    from gateway.core.identity.caller import Hop

_LOG = logging.getLogger("gateway")

# W3C Trace Context, section 3.2.2. Of a higher version only this part is read; version ff and ids of zeros are invalid.
_TRACEPARENT: Final = re.compile(
    rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?\Z"
)
# The last digit of the flags, of which one bit says that the caller samples this trace.
_NOT_SAMPLED: Final = frozenset(bytes([digit]) for digit in b"02468ace")
_QUEUE_MAX: Final = 4096
# Spans and their encoding are some 5 ms of computing a batch: no longer does the thread hold up the event loop at once.
_BATCH_MAX: Final = 64
_PAUSE_SECONDS: Final = 0.25
_EXPORT_SECONDS: Final = 5.0
# With what a stop does besides, no more than two seconds longer.
_STOP_SECONDS: Final = 1.5

_OUTCOMES: Final[Mapping[Verdict, str]] = {
    Verdict.STORED: "final",
    Verdict.JOURNALED: "final",
    Verdict.RELEASED: "retryable",
    Verdict.IN_DOUBT: "in_doubt",
    Verdict.UPSTREAM_UNREACHABLE: "not_sent",
}
_ERRORS: Final = (Verdict.IN_DOUBT, Verdict.UPSTREAM_UNREACHABLE)
# The actions of operators that change what a caller gets. Few enough to be sampled always.
_ACTIONS: Final = ("resolve", "purge", "erase")
_DRAWS: Final = 1 << 64
_CALLS_MAX: Final = 64
# The calls of the store for the request that this task works on. The server has a task for each request, and the tasks
# that it starts inherit it.
_CALLS: Final[ContextVar[list[tuple[int, StoreCalled]] | None]] = ContextVar("calls", default=None)

_Traced = RequestAnswered | ProbeMade | DeliveryAttempted | AdminActed


@dataclass(eq=False, slots=True)
class Tracing:
    """An observer of events. `templates` has the path of each route, `upstreams` the host and port that it leads to.
    Traced is this `share` of the requests whose caller does not decide. A `traceparent` of a `trusted` peer decides,
    and is the parent; with `accepts_all`, that of anybody. `store_system` names the durable store in spans of its
    calls; None for no such spans. `secret` signs trace ids."""

    share: float
    endpoint: str
    headers: Mapping[str, str]
    _: KW_ONLY
    trusted: tuple[Network, ...]
    accepts_all: bool
    service: str
    version: str
    templates: Mapping[str, str]
    upstreams: Mapping[str, tuple[str, int]]
    store_system: str | None = None
    secret: bytes = b""
    exported: int = field(default=0, init=False)
    failed: int = field(default=0, init=False)
    dropped: int = field(default=0, init=False)
    _key: bytes = field(init=False)
    _drawn_below: int = field(init=False)
    _queue: deque[tuple[int, _Traced]] = field(default_factory=deque, init=False)
    _wake: threading.Event = field(default_factory=threading.Event, init=False)
    _is_closing: bool = field(default=False, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)
    _exporter: Any = field(default=None, init=False)
    _resource: Resource | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Raises `ModuleNotFoundError` without the extra `otel`."""
        if find_spec("opentelemetry") is None:
            raise ModuleNotFoundError("traces need a package: pip install 'idempotency-gateway[otel]'")
        self._key = blake2b(self.secret, digest_size=32, person=b"trace ids").digest()
        self._drawn_below = round(self.share * _DRAWS)

    # -- in a request's way -------------------------------------------------------------------------------------------

    def begin(self, head: RequestHead, hop: Hop) -> tuple[RequestHead, TraceContext] | None:
        """The request with the `traceparent` that the service gets, and its context; None if it is not sampled."""
        draw = random.getrandbits(64)  # which requests are sampled is no secret
        is_drawn = draw < self._drawn_below
        values = header_values(head.headers, b"traceparent")
        # Trusted or not, a caller that does not ask for it changes nothing where the draw does not, either.
        if not is_drawn and (not values or values[0][-1:] in _NOT_SAMPLED):
            return None
        found = None
        if len(values) == 1 and (self.accepts_all or is_within(hop.peer, self.trusted)):
            # What is malformed counts as absent: W3C Trace Context, section 4.3.
            found = _TRACEPARENT.match(values[0])
        if not (is_drawn if found is None else int(found[4], 16) & 1):
            return None
        trace_id = self._new_trace_id(draw) if found is None else found[2].decode()
        parent_id = None if found is None else found[3].decode()
        calls: list[tuple[int, StoreCalled]] | None = None if self.store_system is None else []
        context = TraceContext(trace_id, os.urandom(8).hex(), parent_id, hop.scheme.decode(), calls)
        if calls is not None:
            _CALLS.set(calls)
        ours = (b"traceparent", f"00-{trace_id}-{context.span_id}-01".encode())
        # The state belongs to the trace that it came with.
        dropped = (b"traceparent",) if parent_id is not None else (b"traceparent", b"tracestate")
        kept = [header for header in head.headers if header[0].lower() not in dropped]
        return RequestHead(head.method, head.target, IndexedHeaders([*kept, ours])), context

    def _new_trace_id(self, draw: int) -> str:
        unsigned = f"{os.urandom(4).hex()}{draw:016x}"
        return f"{unsigned[:8]}{self._signature(unsigned)}{unsigned[8:]}"

    def _is_ours(self, trace_id: str) -> bool:
        """Whether the trace began at a gateway with this secret: then its first request was sampled."""
        return compare_digest(self._signature(trace_id[:8] + trace_id[16:]), trace_id[8:16])

    def _signature(self, unsigned: str) -> str:
        return blake2b(unsigned.encode(), digest_size=4, key=self._key).hexdigest()

    def wants(self, kind: type[Fact]) -> bool:
        return issubclass(kind, _Traced) or (kind is StoreCalled and self.store_system is not None)

    def __call__(self, fact: Fact) -> None:
        if isinstance(fact, StoreCalled):
            calls = _CALLS.get()
            if calls is not None and len(calls) < _CALLS_MAX:
                calls.append((time.time_ns(), fact))
            return
        if not isinstance(fact, _Traced) or not self._is_sampled(fact):
            return
        if len(self._queue) >= _QUEUE_MAX:
            self.dropped += 1
            return
        self._queue.append((time.time_ns(), fact))
        if len(self._queue) >= _BATCH_MAX:
            self._wake.set()

    def _is_sampled(self, fact: _Traced) -> bool:
        match fact:
            case RequestAnswered():
                return fact.trace is not None
            case AdminActed():
                return fact.action in _ACTIONS
            case ProbeMade():
                trace_id = fact.origin
            case DeliveryAttempted():
                named = _sampled_parent(fact)
                trace_id = None if named is None else named[0]
            case _:
                assert_never(fact)
        return (trace_id is not None and self._is_ours(trace_id)) or random.getrandbits(64) < self._drawn_below

    # -- beside the traffic -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread. Call this in the process that serves."""
        # A daemon, because a collector that hangs must not keep the process from exiting.
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """Send what is left, for at most two seconds."""
        self._is_closing = True
        self._wake.set()
        if self._thread is None:
            return
        await asyncio.to_thread(self._thread.join, _STOP_SECONDS)
        if self._thread.is_alive():
            # It tries again no more: the thread ends with the exchange that it is in.
            if self._exporter is not None:
                self._exporter.shutdown()
            _LOG.warning("the collector of traces did not respond in time: spans are lost")

    def _run(self) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace.export import SpanExportResult

        # Its own lines repeat with each batch; the counter says the same.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        exporter = OTLPSpanExporter(endpoint=self.endpoint, headers=self.headers, timeout=_EXPORT_SECONDS)
        self._exporter = exporter
        self._resource = Resource({"service.name": self.service, "service.version": self.version})
        was_failing = False
        while True:
            self._wake.wait(_PAUSE_SECONDS)
            is_last = self._is_closing
            self._wake.clear()
            while self._queue:
                facts = [self._queue.popleft() for _ in range(min(_BATCH_MAX, len(self._queue)))]
                spans = [span for ended_ns, fact in facts for span in self._spans(ended_ns, fact)]
                try:
                    is_sent = exporter.export(spans) is SpanExportResult.SUCCESS
                    why = "it refused them"
                except Exception as error:  # noqa: BLE001 -- whatever the collector does, the thread goes on
                    is_sent, why = False, type(error).__name__
                self.exported += len(spans) if is_sent else 0
                self.failed += 0 if is_sent else len(spans)
                if not is_sent and not was_failing:
                    _LOG.warning("spans could not be sent to the collector of traces: %s", why)
                was_failing = not is_sent
            if is_last:
                exporter.shutdown()  # type: ignore[no-untyped-call]
                return

    def _spans(self, ended_ns: int, fact: _Traced) -> list[ReadableSpan]:
        """The spans of the request, its attempt, its wait, and its calls of the store; or that of what follows one."""
        from opentelemetry.trace import SpanKind

        if not isinstance(fact, RequestAnswered):
            return [self._root(ended_ns, fact)]
        trace = fact.trace
        if trace is None:
            return []
        template = self.templates.get(fact.route, "")
        was_sent = fact.kind is Kind.EXECUTED and fact.verdict is not Verdict.UPSTREAM_UNREACHABLE
        # The service's parent is the attempt. Without one it is the request, which then has the id that was named.
        is_derived = was_sent and fact.operation_id is not None
        own_id = _span_id(trace.trace_id, fact.operation_id, fact.attempt) if is_derived else trace.span_id
        own = _context(trace.trace_id, own_id)
        make = self._span
        attributes: dict[str, str | int | bool] = {
            "http.request.method": fact.method,
            "http.route": template,
            # The template, because a path may hold what is nobody's business.
            "url.path": template,
            "url.scheme": trace.scheme,
            "http.response.status_code": fact.status,
            "idempotency.status": fact.verdict,
            "idempotency.route": fact.route,
            "idempotency.kind": fact.kind,
            "idempotency.replayed": fact.kind is Kind.REPLAYED,
        }
        if fact.operation_id is not None:
            attributes |= {"idempotency.operation.id": str(fact.operation_id), "idempotency.attempt": fact.attempt}
        error = None
        if fact.status >= 500 or fact.verdict in _ERRORS:
            error = str(fact.status) if fact.status >= 500 else str(fact.verdict)
        links = _links(fact)
        parent = None if trace.parent_id is None else _context(trace.trace_id, trace.parent_id, is_remote=True)
        name = f"{fact.method} {template}"
        spans = [make(name, SpanKind.SERVER, own, ended_ns, fact.duration_seconds, attributes, error, parent, links)]
        if was_sent:
            host, port = self.upstreams.get(fact.route, ("", 0))
            seconds = fact.duration_seconds if fact.upstream_seconds is None else fact.upstream_seconds
            status = fact.upstream_status
            attributes = {
                "http.request.method": fact.method,
                "server.address": host,
                "server.port": port,
                "idempotency.outcome": _OUTCOMES.get(fact.verdict, "unknown"),
            }
            if status is not None:
                attributes["http.response.status_code"] = status
            if fact.attempt > 1:
                attributes["http.request.resend_count"] = fact.attempt - 1
            error = "no_response" if status is None else str(status) if status >= 400 else None
            context = _context(trace.trace_id, trace.span_id)
            # Recorded is how long it took; what comes after it is the write of the record.
            spans.append(make(fact.method, SpanKind.CLIENT, context, ended_ns, seconds, attributes, error, own))
        if fact.waited_seconds is not None:
            context = _context(trace.trace_id, os.urandom(8).hex())
            attributes = {"idempotency.status": fact.verdict}
            name, seconds = "idempotency wait", fact.waited_seconds
            spans.append(make(name, SpanKind.INTERNAL, context, ended_ns, seconds, attributes, None, own, links))
        for called_ns, call in list(trace.calls or ()):
            context = _context(trace.trace_id, os.urandom(8).hex())
            attributes = {"db.system.name": self.store_system or "", "db.operation.name": call.verb}
            name, seconds = f"idempotency store {call.verb}", call.duration_seconds
            spans.append(make(name, SpanKind.CLIENT, context, called_ns, seconds, attributes, call.error, own))
        return spans

    def _root(self, ended_ns: int, fact: ProbeMade | DeliveryAttempted | AdminActed) -> ReadableSpan:
        """The span of what has no caller who waits for it, in a trace of its own."""
        from opentelemetry.trace import SpanKind

        attributes: dict[str, str | int | bool] = {}
        if fact.operation_id is not None:
            attributes |= {"idempotency.operation.id": str(fact.operation_id), "idempotency.attempt": fact.attempt}
        error = None
        match fact:
            case AdminActed():
                name, kind = f"idempotency {fact.action}", SpanKind.INTERNAL
                attributes["idempotency.result"] = fact.result
                error = "failed" if fact.result is AdminResult.FAILED else None
            case ProbeMade():
                name, kind = "idempotency probe", SpanKind.CLIENT
                attributes["idempotency.finding"] = fact.finding
            case DeliveryAttempted():
                name, kind = "idempotency delivery", SpanKind.CLIENT
                attributes["idempotency.outcome"] = fact.result
                if fact.upstream_status is not None:
                    attributes["http.response.status_code"] = fact.upstream_status
                error = None if fact.result is DeliveryResult.COMPLETED else str(fact.upstream_status or fact.result)
            case _:
                assert_never(fact)
        if not isinstance(fact, AdminActed):
            host, port = self.upstreams.get(fact.route, ("", 0))
            attributes |= {"idempotency.route": fact.route, "server.address": host, "server.port": port}
        context = _context(self._new_trace_id(random.getrandbits(64)), os.urandom(8).hex())
        return self._span(name, kind, context, ended_ns, fact.duration_seconds, attributes, error, links=_links(fact))

    def _span(
        self,
        name: str,
        kind: SpanKind,
        context: SpanContext,
        ended_ns: int,
        seconds: float,
        attributes: dict[str, str | int | bool],
        error: str | None,
        parent: SpanContext | None = None,
        links: Sequence[Link] = (),
    ) -> ReadableSpan:
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.trace import Status, StatusCode

        return ReadableSpan(
            name,
            context=context,
            parent=parent,
            resource=self._resource,
            attributes=attributes if error is None else {**attributes, "error.type": error},
            links=links,
            kind=kind,
            status=Status(StatusCode.UNSET if error is None else StatusCode.ERROR),
            start_time=ended_ns - int(seconds * 1e9),
            end_time=ended_ns,
            instrumentation_scope=InstrumentationScope("idempotency-gateway", self.version),
        )


def _links(fact: _Traced) -> Sequence[Link]:
    """To the attempt that this repeats, resends or is about, where the record has its trace; of a delivery, to what the
    accepted request named as its parent, which is the span of that request if it was sampled."""
    from opentelemetry.trace import Link

    name = "original"
    if isinstance(fact, DeliveryAttempted):
        named = _sampled_parent(fact)
        if named is None:
            return ()
        (trace_id, linked), name = named, "accepted"
    else:
        if fact.origin is None or fact.operation_id is None:
            return ()
        is_resend = isinstance(fact, RequestAnswered) and fact.kind is Kind.EXECUTED
        trace_id, name = fact.origin, "resent" if is_resend else name
        linked = _span_id(trace_id, fact.operation_id, fact.attempt - is_resend)
    return (Link(_context(trace_id, linked, is_remote=True), {"idempotency.link": name}),)


def _sampled_parent(fact: DeliveryAttempted) -> tuple[str, str] | None:
    """Trace and span that the accepted request names, if they are sampled."""
    found = None if fact.traceparent is None else _TRACEPARENT.match(fact.traceparent.encode("latin-1"))
    return (found[2].decode(), found[3].decode()) if found is not None and int(found[4], 16) & 1 else None


def _context(trace_id: str, span_id: str, *, is_remote: bool = False) -> SpanContext:
    from opentelemetry.trace import SpanContext, TraceFlags

    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote, TraceFlags(TraceFlags.SAMPLED))


def _span_id(trace_id: str, operation_id: UUID | None, attempt: int) -> str:
    text = f"{trace_id} {operation_id} {attempt}"
    return blake2b(text.encode(), digest_size=8, person=b"span").hexdigest()
