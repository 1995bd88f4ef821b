"""What operators see of a request on a protected route: what it was, and what became known of it on its way.

Never the query, a body or a credential: a path is enough to recognise a request in other logs. Everything is short and
printable, whatever was sent.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from gateway.core.message import RequestHead, header_values, trace_id_of
from gateway.core.operation import CUT, Record, RequestInfo, trace_of_attempt
from gateway.core.verdict import Verdict
from gateway.observe.facts import Kind, RequestAnswered, TraceContext
from gateway.protect.reply import Reply
from gateway.protect.route import Route

# Refusals that operators want to know the caller of.
_MISUSED: Final = (Verdict.KEY_REUSED, Verdict.LIKELY_DUPLICATE)
# Replies that repeat one that there was.
_REPLAYS: Final = (Verdict.REPLAYED, Verdict.RECOVERED, Verdict.FETCHED, Verdict.EVENT_DUPLICATE)
_HOST_CHARS_MAX: Final = 255
_PATH_CHARS_MAX: Final = 512


@dataclass(slots=True)
class RequestTrace:
    """Filled in along the way. `arrived` and `wait_until` are on the loop's clock, `began` on the monotonic one."""

    head: RequestHead
    route: Route
    arrived: float
    operation_id: UUID | None = None
    scope_digest: bytes = b""
    upstream_status: int | None = None
    upstream_seconds: float | None = None
    attempt: int = 0
    wait_until: float | None = None
    """When its time to wait for other requests ends; None until its first wait."""
    waits_from_seconds: float = 0.0
    """How long after its arrival that wait began."""
    is_executed: bool = False
    """Whether it is the request that was sent, or was to be."""
    is_reported_there: bool = False
    """Whether a gateway of another region replied to it, and has reported that."""
    preferred: int | None = None
    """The caller's preference, in seconds, if that decided how long it waits."""
    context: TraceContext | None = None
    origin: str | None = None
    began: float = field(default_factory=time.monotonic)
    """When it arrived, more finely than by the loop's clock, which counts whole milliseconds under uvloop."""

    def answered(self, verdict: Verdict, reply: Reply) -> RequestAnswered:
        """The event that the request got this reply now, with this verdict."""
        head, kind, duration_seconds = self.head, self._kind(verdict), self.seconds
        return RequestAnswered(
            route=self.route.name,
            verdict=verdict,
            status=reply.status,
            duration_seconds=duration_seconds,
            method=head.method.decode("latin-1"),
            operation_id=self.operation_id,
            upstream_status=self.upstream_status,
            upstream_seconds=self.upstream_seconds,
            attempt=self.attempt,
            request_id=head.text(b"x-request-id"),
            trace_id=head.text(b"traceparent"),
            why=reply.why,
            differs=reply.differs,
            first_operation=reply.first_operation,
            scope=scope_name(self.scope_digest) if verdict in _MISUSED and self.scope_digest else None,
            kind=kind,
            trace=self.context,
            origin=self.origin,
            waited_seconds=duration_seconds - self.waits_from_seconds if kind is Kind.WAITED else None,
        )

    @property
    def seconds(self) -> float:
        """How long ago it arrived."""
        return time.monotonic() - self.began

    def saw(self, record: Record | None) -> None:
        """The reply is from this record, which may have no request: a copy of it has none."""
        self.attempt = 0 if record is None else record.attempts
        if record is not None:
            self.origin = trace_of_attempt(record) or self.origin

    def _kind(self, verdict: Verdict) -> Kind:
        if self.is_executed:
            return Kind.EXECUTED
        if verdict is Verdict.ACCEPTED:
            return Kind.ACCEPTED
        if self.wait_until is not None:
            return Kind.WAITED
        return Kind.REPLAYED if verdict in _REPLAYS else Kind.REFUSED


def scope_name(scope_digest: bytes) -> str:
    """What distinguishes callers for operators: the beginning of the scope's digest."""
    return scope_digest[:6].hex()


def request_info(head: RequestHead) -> RequestInfo:
    """The request in short; a value over its limit ends in `CUT`."""
    hosts = header_values(head.headers, b"host")
    return RequestInfo(
        head.method.decode("latin-1"),
        _shown(hosts[0], _HOST_CHARS_MAX) if hosts else "",
        _shown(head.target.partition(b"?")[0], _PATH_CHARS_MAX),
        head.text(b"x-request-id"),
        trace_id_of(head.text(b"traceparent")),
    )


def _shown(octets: bytes, chars_max: int) -> str:
    """Visible ASCII unchanged, every other octet as `%XX`."""
    text = octets.decode("latin-1")
    if not (text.isascii() and text.isprintable() and " " not in text):
        text = "".join(char if "!" <= char <= "~" else f"%{ord(char):02X}" for char in text[:chars_max])
    return text if len(text) <= chars_max and len(octets) <= chars_max else text[: chars_max - 1] + CUT
