"""What became known of one request on a protected route, for the fact that is published when it is answered."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from gateway.core.message import RequestHead
from gateway.core.verdict import Word
from gateway.observe.facts import RequestAnswered
from gateway.protect.route import Route
from gateway.protect.stopwatch import Stopwatch


@dataclass(slots=True)
class RequestTrace:
    """Filled in on the way. `arrived` and `wait_until` are on the loop's clock, in seconds."""

    head: RequestHead
    route: Route
    arrived: float
    operation_id: UUID | None = None
    upstream_status: int | None = None
    upstream_seconds: float | None = None
    attempt: int = 0
    wait_until: float | None = None
    """Until when it waits for others, in all; None while it has not begun to."""
    preferred: int | None = None
    """The caller's preference, in seconds, where that decided how long."""
    stopwatch: Stopwatch = field(default_factory=Stopwatch)

    def answered(self, word: Word, status: int, why: str | None) -> RequestAnswered:
        """The fact that it was answered so, at this moment."""
        head = self.head
        return RequestAnswered(
            route=self.route.name,
            word=word,
            status=status,
            duration_seconds=self.stopwatch.seconds,
            method=head.method.decode("latin-1"),
            operation_id=self.operation_id,
            upstream_status=self.upstream_status,
            upstream_seconds=self.upstream_seconds,
            attempt=self.attempt,
            request_id=head.text(b"x-request-id"),
            trace_id=head.text(b"traceparent"),
            why=why,
        )
