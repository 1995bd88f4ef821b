"""What happened, as values: the one way in which the gateway speaks about itself.

Whoever does something states the fact once; metrics and logs are observers of facts and know nothing of each other. A
fact never holds a key, a body, a credential or a scope in clear. Stating a fact cannot fail and cannot wait: an
observer that raises is a defect of the observer, reported once per kind and otherwise ignored, because telling must
never change doing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import StrEnum
from uuid import UUID

from gateway.core.immutable import immutable
from gateway.core.operation import Event, RequestInfo
from gateway.core.verdict import Verdict


@immutable
class RequestAnswered:
    """A request on a protected route has its reply. `duration_seconds` is from its arrival to the head of the reply.

    `upstream_status` is what the upstream said to this request's own attempt, None when it was not asked or did not
    say; `upstream_seconds` is how much of the duration that took, None likewise. `attempt` counts the claims of the
    operation so far, 0 when none is known. `request_id` and `trace_id` are as sent. `why` says why nothing could be
    sent to the upstream, or compared with the record.
    """

    route: str
    verdict: Verdict
    status: int
    duration_seconds: float
    method: str
    operation_id: UUID | None = None
    upstream_status: int | None = None
    attempt: int = 0
    request_id: str | None = None
    trace_id: str | None = None
    upstream_seconds: float | None = None
    why: str | None = None


@immutable
class RequestPassed:
    """A request that nothing protects was passed through.

    `verdict` says why `route` did not protect it; both are None where no route matched. `key_field` then names the key
    field that it carries all the same, if any, and `path` is its normalised path. `why` says why there is no answer of
    the upstream, where that is so.
    """

    verdict: Verdict | None
    method: str
    status: int
    duration_seconds: float
    key_field: str | None = None
    path: str | None = None
    route: str | None = None
    why: str | None = None

    @property
    def reason(self) -> str:
        """`no_route`, `unkeyed` or `store_unavailable`."""
        if self.verdict is None:
            return "no_route"
        return "store_unavailable" if self.verdict is Verdict.UNPROTECTED else self.verdict


@immutable
class OperationClaimed:
    """A claim was granted. `is_takeover`: on an operation in doubt, to send it again."""

    route: str
    operation_id: UUID
    token: int
    attempt: int
    is_takeover: bool = False


@immutable
class OperationTakenOver:
    """An operation in doubt is sent again under a new claim. `request` is what is kept of the repeat."""

    route: str
    operation_id: UUID
    token: int
    attempt: int
    request: RequestInfo


@immutable
class EndedUnanswered:
    """An attempt ended when its caller waited no longer: it was answered before, with a 504 say, or is gone.

    `verdict` and `status` are what it would have got; `duration_seconds` is from the claim to the end.
    `upstream_status` as in `RequestAnswered`.
    """

    route: str
    verdict: Verdict
    status: int
    duration_seconds: float
    operation_id: UUID
    upstream_status: int | None
    attempt: int
    request: RequestInfo


class ProbeFinding(StrEnum):
    """What an upstream's answer to a probe says of the operation."""

    DONE = "done"
    NEVER_HAPPENED = "never_happened"
    ASK_AGAIN = "ask_again"


@immutable
class ProbeMade:
    """The upstream was asked about an operation in doubt."""

    route: str
    operation_id: UUID
    finding: ProbeFinding
    why: str


@immutable
class OperationSettled:
    """The event that ended an attempt is in the record.

    `upstream_seconds` is how long the upstream was waited for, also in vain; None when nothing was sent. `is_late`: the
    first write of the event had to be repeated.
    """

    route: str
    operation_id: UUID
    token: int
    event: Event
    detail: str
    upstream_seconds: float | None
    is_late: bool


@immutable
class WriteRefused:
    """What an attempt had to say of its operation was fenced off: the record had gone on without it."""

    route: str
    operation_id: UUID
    token: int
    event: Event
    state: str


@immutable
class OutcomeJournaled:
    """The durable store did not take the event that ended an attempt; it is on this host's disk instead.

    `upstream_seconds` as in `OperationSettled`, which follows without it when the durable store has the event.
    """

    route: str
    operation_id: UUID
    token: int
    event: Event
    detail: str
    upstream_seconds: float | None


@immutable
class JournalFailed:
    """An outcome that the durable store did not take could not be written to the journal either.

    `is_first`: the time before it could.
    """

    detail: str
    is_first: bool


@immutable
class FlushRefused:
    """The durable store refused an outcome out of the journal, which keeps it for an operator."""

    route: str
    operation_id: UUID
    token: int
    event: Event
    detail: str


@immutable
class LeaseLost:
    """A running attempt can no longer trust its lease."""

    operation_id: UUID
    token: int
    detail: str


@immutable
class StoreCalled:
    """A verb of a store was answered, or not. `error` is the class of error, None when it was answered."""

    tier: str
    verb: str
    duration_seconds: float
    error: str | None = None


@immutable
class TierChanged:
    """A store became reachable or unreachable, or the cause of that is another one. `tier` is `durable` or `fast`.

    `detail` is the cause; a tier begins as unreachable, for none.
    """

    tier: str
    up: bool
    detail: str = ""


@immutable
class UpstreamChanged:
    """No connection to an upstream can be made, for this kind of `reason`; without one, they are made again.

    `upstream` is its URL, which has no path.
    """

    upstream: str
    reason: str = ""
    detail: str = ""


@immutable
class MemoryChanged:
    """The durable store lost its memory, and absent keys are refused for `left_seconds`; or that is over.

    `why` says what was noticed; `by`, who accepted the loss before its time.
    """

    is_lost: bool
    left_seconds: float
    why: str
    by: str


@immutable
class SweepDone:
    """What a sweep wrote down. `named` are route and operation id of those that lapsed, of the first at least."""

    lapsed: int
    retired: int
    collected: int
    duration_seconds: float
    named: tuple[tuple[str, UUID], ...] = ()


@immutable
class TallyTaken:
    """How many operations are in doubt, by route name, and the age of the oldest in seconds."""

    in_doubt: tuple[tuple[str, int], ...]
    oldest_in_doubt_seconds: float


@immutable
class LoopStalled:
    """The event loop did not run for this long."""

    lag_seconds: float


Fact = (
    RequestAnswered
    | RequestPassed
    | OperationClaimed
    | OperationTakenOver
    | EndedUnanswered
    | OperationSettled
    | ProbeMade
    | WriteRefused
    | OutcomeJournaled
    | JournalFailed
    | FlushRefused
    | LeaseLost
    | StoreCalled
    | TierChanged
    | UpstreamChanged
    | MemoryChanged
    | SweepDone
    | TallyTaken
    | LoopStalled
)

Observer = Callable[[Fact], None]


class Events:
    """Hands each fact to every observer, in the order in which they were given.

    An observer may have a method `wants`, which says of a kind of fact whether it may matter to it, now or ever.
    """

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers
        self._listeners: dict[type[Fact], list[Observer]] = {}
        self._failed: set[tuple[Observer, type[Fact]]] = set()

    def publish(self, fact: Fact) -> None:
        kind = type(fact)
        listeners = self._listeners.get(kind)
        if listeners is None:
            listeners = self._listeners[kind] = [each for each in self._observers if _wants(each, kind)]
        for observer in listeners:
            try:
                observer(fact)
            except Exception:
                if (observer, kind) not in self._failed:
                    self._failed.add((observer, kind))
                    logging.getLogger("gateway").exception("an observer failed on %s", kind.__name__)


def _wants(observer: Observer, kind: type[Fact]) -> bool:
    wants: Callable[[type[Fact]], bool] | None = getattr(observer, "wants", None)
    return wants is None or wants(kind)
