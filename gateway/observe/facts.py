"""Events, as values: all that metrics and logs learn about what the gateway does.

The code that does something publishes the event once; metrics and logs are observers and know nothing of each other. An
event never holds a key, a body, a credential or a scope in clear. Publishing never fails and never waits: an observer
that raises is a bug of the observer, reported once per kind of event and otherwise ignored, so that it cannot change
what happens to a request.
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
class TraceContext:
    """Where a sampled request is in a trace; ids in hex. `span_id` is the one that the service was given as its parent,
    `parent_id` the caller's, None where the trace begins here. `calls` gathers its calls of the store, with the Unix
    time in nanoseconds of their ends; None where they have no spans."""

    trace_id: str
    span_id: str
    parent_id: str | None = None
    scheme: str = "http"
    calls: list[tuple[int, StoreCalled]] | None = None


class Kind(StrEnum):
    """How a request on a protected route came by its reply; the first that applies.

    `waited`: for another request, whatever became of it. `refused`: all that is none of the others.
    """

    EXECUTED = "executed"
    WAITED = "waited"
    ACCEPTED = "accepted"
    REPLAYED = "replayed"
    REFUSED = "refused"


@immutable
class RequestAnswered:
    """A request on a protected route has its reply. `duration_seconds` is from its arrival to the head of the reply.

    `upstream_status` is the upstream's response to this request's own attempt, None when nothing was sent or no
    response came; `upstream_seconds` is how much of the duration that took, None likewise. `attempt` counts the claims
    of the operation so far, 0 when none is known. `request_id` and `trace_id` are as sent. `why` says why nothing could
    be sent to the upstream, or compared with the record. `differs` is in what a request under a used key differs from
    the recorded one, `first_operation` the one that a likely duplicate repeats; `scope` is whose request one of these
    is, as the beginning of a digest. `trace` is set where it is sampled; `origin` is then the trace of the attempt that
    the reply is from, or of the one in doubt that this request repeated, as far as the record has it.
    `waited_seconds` is how much of the duration it waited for another request, None if it did not.
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
    differs: tuple[str, ...] = ()
    first_operation: UUID | None = None
    scope: str | None = None
    kind: Kind = Kind.EXECUTED
    trace: TraceContext | None = None
    origin: str | None = None
    waited_seconds: float | None = None


@immutable
class RequestPassed:
    """An unprotected request was passed through.

    `verdict` says why `route` did not protect it; both are None where no route matched. `key_header` then names the key
    header that it has all the same, if any, and `path` is its normalised path. `why` says why the upstream gave no
    response, where that is so. `is_observed`: `route` only observes it, and `verdict` is None.
    """

    verdict: Verdict | None
    method: str
    status: int
    duration_seconds: float
    key_header: str | None = None
    path: str | None = None
    route: str | None = None
    why: str | None = None
    is_observed: bool = False

    @property
    def reason(self) -> str:
        """`no_route`, `observed`, `unkeyed` or `store_unavailable`."""
        if self.verdict is None:
            return "observed" if self.is_observed else "no_route"
        return "store_unavailable" if self.verdict is Verdict.UNPROTECTED else self.verdict


class StatusPart(StrEnum):
    """What a request to the status resource is for."""

    STATUS = "status"
    RESULT = "result"
    WITHDRAWAL = "withdrawal"


@immutable
class StatusAnswered:
    """A request to the status resource has its reply. `route` and `operation_id` are None unless it was shown one."""

    part: StatusPart
    method: str
    status: int
    duration_seconds: float
    verdict: Verdict | None = None
    route: str | None = None
    operation_id: UUID | None = None


@immutable
class OfClaim:
    """An event about a claim or an acceptance, which the token names."""

    route: str
    operation_id: UUID
    token: int


@immutable
class OperationClaimed(OfClaim):
    """A claim was granted. `is_takeover`: of an operation in doubt, to send it again."""

    attempt: int
    is_takeover: bool = False


@immutable
class OperationTakenOver(OfClaim):
    """An operation in doubt is sent again under a new claim. `request` describes the repeat."""

    attempt: int
    request: RequestInfo


@immutable
class EndedUnanswered:
    """An attempt ended when its caller waited no longer: the caller had got a reply such as a 504, or was gone.

    `verdict` and `status` are what the caller would have got; `duration_seconds` is from the claim to the end.
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


@immutable
class OperationAccepted(OfClaim):
    """A request was accepted: it is kept durably, `request_bytes` long, to be delivered later."""

    request_bytes: int


@immutable
class WebhookRefused:
    """A message to an inbox was refused before anything was stored, for this `reason`.

    `missing`, `invalid` and `stale` are said of its signature, `unsupported` and `unidentified` of its event;
    `throttled`: too many messages from its address were not signed.
    """

    route: str
    reason: str


@immutable
class WebhookVerified:
    """A message to an inbox was signed by these secrets."""

    route: str
    secret_ids: tuple[str, ...]


@immutable
class WebhookRepeated:
    """An event that an inbox has already was delivered to it again. `is_changed`: with another content, as `differs`
    says where that is known."""

    route: str
    operation_id: UUID
    is_changed: bool
    differs: tuple[str, ...] = ()


class RepeatResult(StrEnum):
    """What became of a request that its caller sent before under another key.

    `incomparable`: it lacks a value by which the route recognises repeats, so it is none.
    """

    COUNTED = "counted"
    REFUSED = "refused"
    INCOMPARABLE = "incomparable"


@immutable
class RepeatNoticed:
    """A caller sent a request again under another key. `first_operation` is that of the first one, and `scope` whose
    they are, as the beginning of a digest."""

    route: str
    result: RepeatResult
    operation_id: UUID
    first_operation: UUID | None
    scope: str


class FetchResult(StrEnum):
    """What came of an attempt to fetch the keys of an issuer."""

    FETCHED = "fetched"
    FAILED = "failed"


@immutable
class KeysFetched:
    """The keys of an issuer of tokens were fetched, or could not be."""

    result: FetchResult


class Decision(StrEnum):
    """What an authorising service made of a request."""

    ALLOWED = "allowed"
    REMEMBERED = "remembered"  # allowed before, and not asked about again
    REFUSED = "refused"
    UNAVAILABLE = "unavailable"


@immutable
class AuthorizationDecided:
    """An authorising service decided about a request, or could not."""

    decision: Decision


class DeliveryResult(StrEnum):
    """What became of an attempt to deliver an accepted request."""

    COMPLETED = "completed"
    POSTPONED = "postponed"
    DEAD_LETTER = "dead_letter"
    IN_DOUBT = "in_doubt"


@immutable
class DeliveryAttempted(OfClaim):
    """An attempt to deliver an accepted request ended. `OperationSettled` follows when the store has its outcome.

    `detail` is why it did not complete: the failure, the reason of the dead letter, or the doubt; empty otherwise.
    `upstream_status` is None when no response came. `attempt` counts as in `RequestAnswered`; `duration_seconds` is
    from the dispatch to the end, and `pause_seconds` from there to the next attempt, None when there is none by itself.
    `traceparent` is what the request has that was accepted.
    """

    attempt: int
    result: DeliveryResult
    detail: str
    upstream_status: int | None
    duration_seconds: float
    pause_seconds: float | None = None
    request: RequestInfo | None = None
    traceparent: str | None = None


@immutable
class BreakerChanged:
    """The breaker of an upstream opened, and nothing is delivered to it; or it closed, or is not needed any more.

    `upstream` as in `UpstreamChanged`, `detail` is why it opened.
    """

    upstream: str
    is_open: bool
    detail: str = ""


@immutable
class EventsPublished:
    """Publications to a sink ended, all with the same `result`. `events` are ids and types; `detail` is why they did
    not arrive.

    `detail` may hold a part of a response, and is for operators alone. `secret_ids` signed it.
    """

    sink: str
    events: tuple[tuple[str, str], ...]
    result: PublicationResult
    detail: str = ""
    secret_ids: tuple[str, ...] = ()


class PublicationResult(StrEnum):
    DELIVERED = "delivered"
    FAILED = "failed"
    UNKNOWN = "unknown"  # it may have arrived
    REFUSED = "refused"  # this event never will
    SUSPENDED = "suspended"  # nothing will, until an operator has mended something


@immutable
class SinkChanged:
    """A sink was suspended by what it answered, or its breaker opened (`is_failing`) or closed. `cause` holds no part
    of a response."""

    sink: str
    is_suspended: bool = False
    is_failing: bool = False
    cause: str = ""


@immutable
class SinkWaiting:
    """The events of one sink: how many wait, the age of the oldest in seconds, how many are dead."""

    sink: str
    pending: int
    oldest_seconds: float
    dead: int
    is_suspended: bool


@immutable
class EventsCounted:
    """What waits for the sinks of the service."""

    sinks: tuple[SinkWaiting, ...]


class ProbeFinding(StrEnum):
    """What an upstream's response to a probe says about the operation."""

    DONE = "done"
    NEVER_HAPPENED = "never_happened"
    ASK_AGAIN = "ask_again"


@immutable
class ProbeMade:
    """The upstream was probed about an operation in doubt. `origin` is the trace of the attempt in doubt, as far as the
    record has it."""

    route: str
    operation_id: UUID
    finding: ProbeFinding
    why: str
    duration_seconds: float = 0.0
    attempt: int = 0
    origin: str | None = None


@immutable
class OperationSettled(OfClaim):
    """The event that ended an attempt is in the record.

    `upstream_seconds` is how long the upstream was waited for, also in vain; None when nothing was sent. `is_late`: the
    first write of the event had to be repeated.
    """

    event: Event
    detail: str
    upstream_seconds: float | None
    is_late: bool


@immutable
class WriteRefused(OfClaim):
    """The outcome of an attempt was fenced off: the record had moved on without it."""

    event: Event
    state: str


@immutable
class OutcomeJournaled(OfClaim):
    """The durable store did not take the event that ended an attempt; it is in this host's journal instead.

    `upstream_seconds` as in `OperationSettled`, which follows without it when the durable store has the event.
    """

    event: Event
    detail: str
    upstream_seconds: float | None


@immutable
class JournalFailed:
    """An outcome that the durable store did not take could not be written to the journal either.

    `is_first`: the previous one could.
    """

    detail: str
    is_first: bool


@immutable
class RecordUnreadable:
    """A record cannot be decrypted: `why`. It completed, and its response is not known any more.

    `is_logged`: no such record was logged for a while.
    """

    operation_id: UUID
    why: str
    is_logged: bool


@immutable
class FlushRefused(OfClaim):
    """The durable store refused a journaled outcome; the journal keeps it for an operator."""

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
    """A call of a store returned or failed. `error` is the class of the error, None if it returned."""

    tier: str
    verb: str
    duration_seconds: float
    error: str | None = None


@immutable
class TierChanged:
    """A store became reachable or unreachable, or is unreachable for another cause. `tier` is `durable` or `fast`.

    `detail` is the cause. A tier starts as unreachable, without a cause.
    """

    tier: str
    up: bool
    detail: str = ""


@immutable
class UpstreamChanged:
    """No connection to an upstream can be made, for this `reason`; without a reason, they can be made again.

    `upstream` is its URL, which has no path.
    """

    upstream: str
    reason: str = ""
    detail: str = ""


@immutable
class NotesExchanged:
    """The durable store was compared with what gateways noted of it. It comes every few seconds while the store is
    up."""


@immutable
class StoreMet:
    """The durable store, which can be promoted, is used from now on, on this timeline."""

    timeline: int


@immutable
class SynchronyChanged:
    """Whether a standby has what the durable store acknowledges, from now on."""

    is_synchronous: bool


@immutable
class GrantsChanged:
    """Why this process grants no keys of the durable store from now on; empty: it grants them again.

    `is_brief`: it waits for its standbys to know of it, which ends by itself.
    """

    why: str = ""
    is_brief: bool = False


@immutable
class PromotionJudged:
    """A standby was promoted to this timeline, and this process found it `accepted`, `refused` or `waiting`.

    `unvouched` gateways have not spoken yet.
    """

    timeline: int
    result: str
    why: str
    unvouched: int


@immutable
class MemoryChanged:
    """The durable store lost its memory, and absent keys are refused for `left_seconds`; or that is over.

    `why` says what was noticed; `by`, who accepted the loss early.
    """

    is_lost: bool
    left_seconds: float
    why: str
    by: str


@immutable
class SweepDone:
    """What a sweep changed. `expired` were not delivered in time, and are dead letters.

    `named` has route and operation id of those that lapsed, at least of the first ones.
    """

    lapsed: int
    retired: int
    collected: int
    duration_seconds: float
    named: tuple[tuple[str, UUID], ...] = ()
    expired: int = 0


@immutable
class TallyTaken:
    """How many operations are in doubt, by route name, and the age of the oldest in seconds; how many are encrypted
    with which key, by its id."""

    in_doubt: tuple[tuple[str, int], ...]
    oldest_in_doubt_seconds: float
    sealed: tuple[tuple[str, int], ...] = ()


@immutable
class RouteWaiting:
    """The accepted operations of one route that are not delivered: how many, the bytes of their requests, and the age
    of the oldest in seconds; its dead letters, by reason; and its stopped lanes, with the age of the oldest stop."""

    route: str
    accepted: int
    request_bytes: int
    oldest_seconds: float
    dead_letters: tuple[tuple[str, int], ...] = ()
    lanes_stopped: int = 0
    oldest_stopped_seconds: float = 0.0


@immutable
class BacklogTaken:
    """What a service has not delivered, and which of its routes are paused.

    `orphans` are the accepted operations that no route of this configuration delivers.
    """

    waiting: tuple[RouteWaiting, ...]
    paused: tuple[str, ...]
    orphans: int


class AdminResult(StrEnum):
    """What became of an operator's action, and of an attempt to sign in."""

    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"


@immutable
class AdminActed:
    """An operator asked for a change through the admin port. `action` is the program's name of it.

    The rest is about the one operation that it concerned: its last attempt, and the trace of that as in `ProbeMade`.
    """

    action: str
    result: AdminResult
    duration_seconds: float = 0.0
    operation_id: UUID | None = None
    attempt: int = 0
    origin: str | None = None


@immutable
class SignedIn:
    """Somebody gave a token to sign in to the console: `done`, or `refused` with a wrong one or too often."""

    result: AdminResult


@immutable
class RequestObserved:
    """A request on an observed route was judged: enforcement would have given it this verdict. Nothing came of it.

    `is_repeat`: it was equal to an earlier one under its key, and would not have run again. `is_rekeyed`: the same
    content came under another key shortly before.
    """

    route: str
    verdict: Verdict
    is_repeat: bool
    is_rekeyed: bool


class DropReason(StrEnum):
    """Why what was seen of an observed request was given up; see `protect.observing`."""

    QUEUE = "queue"
    MEMORY = "memory"
    INCOMPLETE = "incomplete"
    STORE = "store"
    FAILED = "failed"


@immutable
class ObservationDropped:
    """What was seen of so many observed requests was given up."""

    reason: DropReason
    number: int = 1


class RegionResult(StrEnum):
    """What became of a request that was sent to another region."""

    ANSWERED = "answered"
    UNREACHED = "unreached"
    LOST = "lost"


@immutable
class RegionAsked:
    """A request was sent to the region that its operation is at home in. `detail` says why it got no response."""

    region: str
    result: RegionResult
    detail: str = ""


@immutable
class LoopStalled:
    """The event loop did not run for this long."""

    lag_seconds: float


Fact = (
    RequestAnswered
    | RequestPassed
    | StatusAnswered
    | OperationClaimed
    | OperationTakenOver
    | EndedUnanswered
    | OperationAccepted
    | WebhookRefused
    | WebhookVerified
    | WebhookRepeated
    | RepeatNoticed
    | AuthorizationDecided
    | KeysFetched
    | DeliveryAttempted
    | BreakerChanged
    | EventsPublished
    | SinkChanged
    | EventsCounted
    | OperationSettled
    | ProbeMade
    | WriteRefused
    | OutcomeJournaled
    | JournalFailed
    | RecordUnreadable
    | FlushRefused
    | LeaseLost
    | StoreCalled
    | TierChanged
    | UpstreamChanged
    | MemoryChanged
    | PromotionJudged
    | NotesExchanged
    | StoreMet
    | SynchronyChanged
    | GrantsChanged
    | SweepDone
    | TallyTaken
    | BacklogTaken
    | AdminActed
    | SignedIn
    | RequestObserved
    | ObservationDropped
    | RegionAsked
    | LoopStalled
)

Observer = Callable[[Fact], None]


class Events:
    """Passes each event to every observer, in order.

    An observer may have a method `wants`, which says whether it ever needs events of a kind.
    """

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers
        self._listeners: dict[type[Fact], list[Observer]] = {}
        self._failed: set[tuple[Observer, type[Fact]]] = set()

    def ask_again(self) -> None:
        """What an observer wants has changed."""
        self._listeners.clear()

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
