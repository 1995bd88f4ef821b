"""Events, as values: all that metrics and logs learn about what the gateway does.

The code that does something publishes the event once. An event declares what it changes of the metrics, and its line in
the log; what counts and what writes know nothing of single events, nor of each other. An event never holds a key, a
body, a credential or a scope in clear. Publishing never fails and never waits: an observer that raises is a bug of the
observer, reported once per kind of event and otherwise ignored, so that it cannot change what happens to a request.

Label values are route names and constants of the program, never keys, scopes or paths, so the number of series is known
at the start. Series that an alert needs exist from the start, at 0, because a series that does not exist has no rate.

*Metrics* are declared as `counter name{labels}: text`. Labels are attributes of the event, or `label=attribute`; those
of an enumeration have all series from the start, others those in `series`. A gauge has the rule by which workers are
merged, a histogram its buckets: `gauge max name of attribute: text`. The attribute is put or observed, or is how many a
counter counts. `of attribute each items` takes it from each value of a mapping whose keys are the label, and `all
items` from tuples of labels and a number; other series of a gauge are then 0. With `if attribute` it has to be true,
with `if attribute=value` have that value. The text stands where a metric is declared first.

*Lines* are declared as `LEVEL if attribute: text | fields | fields of the JSON format alone`; the first applies. A text
may have several levels, as `ERROR if attribute, DEBUG`. Fields are attributes, or `field=attribute`; `field?` is left
out where it is empty, and so is `field*`, made of several words.
"""

from __future__ import annotations

import logging
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from enum import Enum, StrEnum
from operator import attrgetter
from textwrap import dedent
from typing import Any, ClassVar, Final, NamedTuple, TypeVar, cast, dataclass_transform
from uuid import UUID

from gateway import PROGRAM
from gateway.core import immutable
from gateway.core.delivery import ATTEMPTS_EXHAUSTED, UNAUTHORIZED, UNREADABLE
from gateway.core.lifecycle import DEADLINE
from gateway.core.message import trace_id_of
from gateway.core.operation import Event, RequestInfo
from gateway.core.verdict import Verdict
from gateway.core.webhook import Fault

# -- what an event declares --------------------------------------------------------------------------------------------

Labels = tuple[str, ...]
"""The values of the labels of a series, in the order of their names."""
Row = list[float]
"""The numbers of a series."""


Rule = Enum("Rule", "SUM MAX MIN OWN")
"""How the values of several workers are merged. `SUM`: each worker has its own part. `MAX`: all of them measure the
same thing, or the worst value counts. `MIN`: it holds only if it holds for every worker. `OWN`: only the supervisor
knows it."""
Configured = Enum("Configured", "ROUTES OBSERVED_ROUTES SINKS TIERS")
"""Values of a label that the configuration has."""
LabelValues = Iterable[str] | Configured


class Metric(NamedTuple):
    """A metric that events change: a gauge if it has a `rule`, a histogram if it has `bounds`, else a counter. `labels`
    has for each label the values that have their series from the start."""

    name: str
    text: str
    labels: Mapping[str, LabelValues]
    rule: Rule | None
    bounds: Sequence[float]


class Change(NamedTuple):
    """What an event changes of a metric: the series that these attributes choose, as it is declared. `how` is empty
    where it is one series that it changes, and a counter counts one more."""

    metric: Metric
    attributes: Sequence[str]
    value: str
    how: str
    items: str
    when: str


Value = str | int | float | UUID | None


class Line(NamedTuple):
    """The content of a line of the log. Fields that are None are left out. `detail` has the fields that only the JSON
    format writes, because the message has them already."""

    message: str
    fields: Mapping[str, Value] = {}
    detail: Mapping[str, Value] = {}


Read = Callable[[Any], Any]
"""Reads something from an event."""
Said = tuple[int, Read | None, Callable[[Any], Line]]
"""A line that events of one kind have: its level, whether it applies, None if always, and what makes it."""


class Fact:
    """An event."""

    __slots__ = ()

    counts: ClassVar[str] = ""
    series: ClassVar[Mapping[str, LabelValues]] = {}
    says: ClassVar[str] = ""
    is_of_request: ClassVar[bool] = False
    """Whether its lines are those of a request, which a log may leave out."""
    changes: ClassVar[Sequence[Change]] = ()
    """What `counts` declares."""
    lines: ClassVar[Sequence[Said]] = ()
    """What `says` declares."""


_REQUEST_ID_CHARS_MAX: Final = 128
_ENDINGS: Final = (Event.COMPLETE, Event.RELEASE, Event.FORGET, Event.ABANDON, Event.POSTPONE, Event.BURY)
_SMALL: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
_BUCKETS: Final = {
    # For the gateway and its stores; a call of a store is given up after some ten seconds.
    "own": (*_SMALL, 2.5, 5.0, 15.0),
    # For calls of a store, of which there are many kinds.
    "store": (0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 15.0),
    # For whole requests, from a replay out of memory to an upstream that times out.
    "request": (*_SMALL[1:], 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0),
    # For what is only noticed when it takes seconds.
    "stall": (1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
    "sweep": (0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0),
}
_SERIES: Final[Mapping[str, LabelValues]] = {
    "route": Configured.ROUTES,
    "sink": Configured.SINKS,
    # By its class.
    "status": ("2xx", "3xx", "4xx", "5xx"),
}
_METRIC: Final = re.compile(
    r"(counter|gauge (sum|max|min|own)|histogram (\w+)) (\w+)(?:{(.+?)})?(?: of (\w+))?(?: (each|all) (\w+))?"
    r"(?: if ([\w=]+))?(?:: (.+))?"
)
_LEVEL: Final = r"[A-Z]+(?: if [\w=]+)?"
_LINE: Final = re.compile(rf"({_LEVEL}(?:, {_LEVEL})*): ([^|]+?)(?: \| ([^|]+?))?(?: \| ([^|]+))?")

METRICS: Final[dict[str, Metric]] = {}
"""All that events change, by name."""
E = TypeVar("E", bound=Fact)


@dataclass_transform(frozen_default=True)
def event(cls: type[E]) -> type[E]:
    cls = immutable(cls)
    hints = {each.name: str(each.type) for each in fields(cast("Any", cls))}
    cls.changes = declare(cls.counts, cls.series, hints)
    cls.lines = [said for each in _entries(cls.says) for said in _said(each)]
    return cls


def _entries(declared: str) -> list[str]:
    """What is declared, one a line; a line that is indented goes on with the one before."""
    return [" ".join(each.split()) for each in re.split(r"\n(?! )", dedent(declared).strip()) if each]


def declare(declared: str, series: Mapping[str, LabelValues], hints: Mapping[str, str]) -> Sequence[Change]:
    """Read what is declared of metrics; `hints` are the types of attributes, as they are written."""
    return [_change(each, series, hints) for each in _entries(declared)]


def _change(declared: str, series: Mapping[str, LabelValues], hints: Mapping[str, str]) -> Change:
    found = _METRIC.fullmatch(declared)
    if found is None:
        raise ValueError(declared)
    kind, rule, buckets, name, labels, value, how, items, when, text = found.groups("")
    pairs = [each.partition("=") for each in labels.split(",") if each]
    attributes = {label: attribute or label for label, _, attribute in pairs}
    if name not in METRICS:
        values = {label: series.get(label, _values_of(label, hints)) for label in attributes}
        METRICS[name] = Metric(name, text, values, Rule[rule.upper()] if rule else None, _BUCKETS.get(buckets, ()))
    how = how or ("each" if value and kind == "counter" else "")
    return Change(METRICS[name], tuple(attributes.values()), value, how, items, when)


def _values_of(label: str, hints: Mapping[str, str]) -> LabelValues:
    hint = globals().get(hints.get(label, ""))
    return tuple(hint) if isinstance(hint, type) and issubclass(hint, Enum) else _SERIES.get(label, ())


def _said(declared: str) -> list[Said]:
    found = _LINE.fullmatch(declared)
    if found is None:
        raise ValueError(declared)
    levels, text, *names = found.groups("")
    shown, detail = (", ".join(_field(each) for each in part.split()) for part in names)
    # Compiled, as value classes are by the standard library: a line is made for each request.
    source = f"lambda self: Line(f{text!r}, {{{shown}}}, {{{detail}}})"
    line = eval(source, {"Line": Line, "PROGRAM": PROGRAM})  # noqa: S307 -- of what this file declares
    pairs = (each.partition(" if ") for each in levels.split(", "))
    return [(logging.getLevelNamesMapping()[level], condition(when), line) for level, _, when in pairs]


def _field(declared: str) -> str:
    name, _, path = declared.rstrip("?*").partition("=")
    value = "round(self.duration_seconds * 1000, 3)" if name == "duration_ms" else f"self.{path or name}"
    if declared.endswith("*"):
        value = f"' '.join({value})"
    return f"{name!r}: {value}{' or None' if declared[-1] in '?*' else ''}"


def condition(declared: str) -> Read | None:
    """Tells of an event whether what is declared behind `if` is so; None where nothing is."""
    if not declared:
        return None
    name, _, value = declared.partition("=")
    read = attrgetter(name)
    return (lambda fact: read(fact) == value) if value else read


# -- requests ----------------------------------------------------------------------------------------------------------


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


Kind = StrEnum("Kind", "EXECUTED WAITED ACCEPTED REPLAYED REFUSED")
"""How a request on a protected route came by its reply; the first that applies. `waited`: for another request, whatever
became of it. `refused`: all that is none of the others."""


@event
class RequestAnswered(Fact):
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
    counts = """
    counter idempotency_requests_total{route,verdict}: Requests on protected routes, by verdict
    histogram request idempotency_request_duration_seconds{route,kind} of duration_seconds: From the arrival of a
        request on a protected route to the head of its response, waiting included
    counter idempotency_responses_total{route,status}: Responses to requests on protected routes, by the class of the
        status
    histogram own idempotency_overhead_seconds{route} of own_seconds: The same without the upstream's part, of the
        requests that were executed
    histogram request idempotency_fetch_duration_seconds{route} of upstream_seconds if verdict=fetched: How long the
        upstream took for the response to a repeat, where it is read from there
    """
    says = """
    INFO: {self.method} {self.route} {self.status} {self.verdict} | upstream_status duration_ms attempt? operation_id
        why differs* first_operation scope request_id=shown_request_id trace_id=shown_trace_id | method route status
        verdict
    """
    is_of_request = True

    @property
    def own_seconds(self) -> float | None:
        """The duration without the upstream's part, where an attempt was made."""
        if self.upstream_seconds is None or self.verdict is Verdict.FETCHED:
            return None
        return max(0.0, self.duration_seconds - self.upstream_seconds)

    @property
    def shown_request_id(self) -> str | None:
        return None if self.request_id is None else self.request_id[:_REQUEST_ID_CHARS_MAX]

    @property
    def shown_trace_id(self) -> str | None:
        return trace_id_of(self.trace_id)


@event
class RequestPassed(Fact):
    """An unprotected request was passed through. `verdict` says why `route` did not protect it; both are None where no
    route matched. `key_header` then names the key header that it has all the same, if any, and `path` is its normalised
    path. `why` says why the upstream gave no response, where that is so. `is_observed`: `route` only observes it, and
    `verdict` is None."""

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

    # `no_route_keyed`: no route matches the request although its client sent a key.
    series: ClassVar = {"reason": ("no_route", "no_route_keyed", "unkeyed", "store_unavailable")}
    counts = """
    counter idempotency_unprotected_requests_total{reason=counted_as} if counted_as: Requests that were passed through
        without protection
    histogram request idempotency_unprotected_duration_seconds of duration_seconds if counted_as: From the arrival of a
        request that is passed through to the head of its response
    counter idempotency_requests_total{route,verdict} if verdict
    """
    says = "INFO: {self.method} {self.status} unprotected | reason route duration_ms why"

    @property
    def counted_as(self) -> str:
        """Empty for an observed request, which is counted once it is judged."""
        return "" if self.is_observed else self.reason if self.key_header is None else "no_route_keyed"


StatusPart = StrEnum("StatusPart", "STATUS RESULT WITHDRAWAL")
"""What a request to the status resource is for."""


@event
class StatusAnswered(Fact):
    """A request to the status resource has its reply. `route` and `operation_id` are None unless it was shown one."""

    part: StatusPart
    method: str
    status: int
    duration_seconds: float
    verdict: Verdict | None = None
    route: str | None = None
    operation_id: UUID | None = None
    counts = """
    counter idempotency_status_requests_total{part,status}: Requests to the status resource, by what they are for and
        the class of the reply
    """
    says = """
    INFO: {self.method} {self.part} of an operation {self.status} | duration_ms verdict route operation_id | method
        status
    """
    is_of_request = True


RegionResult = StrEnum("RegionResult", "ANSWERED UNREACHED LOST")
"""What became of a request that was sent to another region."""


@event
class RegionAsked(Fact):
    """A request was sent to the region that its operation is at home in. `detail` says why it got no response."""

    region: str
    result: RegionResult
    detail: str = ""
    counts = """
    counter idempotency_region_requests_total{region,result}: Requests that were sent to the region that their operation
        is at home in, by what became of them here
    """
    # That a region cannot be reached is a line of its upstream's.
    says = "DEBUG: sent to region {self.region} | result detail"


@event
class RequestObserved(Fact):
    """A request on an observed route was judged: enforcement would have given it this verdict. Nothing came of it.
    `is_repeat`: it was equal to an earlier one under its key, and would not have run again. `is_rekeyed`: the same
    content came under another key shortly before."""

    route: str
    verdict: Verdict
    is_repeat: bool
    is_rekeyed: bool
    series: ClassVar = {"route": Configured.OBSERVED_ROUTES}
    counts = """
    counter idempotency_observed_requests_total{route,verdict}: Requests on observed routes, by the verdict that
        enforcement would have given
    counter idempotency_observed_repeats_total{route} if is_repeat: Those of them that were equal to an earlier one
        under their key, and would not have run again
    counter idempotency_observed_rekeyed_total{route} if is_rekeyed: Those of them whose caller and content came under
        another key within 10 minutes before
    """


DropReason = StrEnum("DropReason", "QUEUE MEMORY INCOMPLETE STORE FAILED")
"""Why what was seen of an observed request was given up; see `protect.observing`."""


@event
class ObservationDropped(Fact):
    """What was seen of so many observed requests was given up."""

    reason: DropReason
    number: int = 1
    counts = """
    counter idempotency_observations_dropped_total{reason} of number: Observed requests of which nothing is known, by
        reason
    """


# -- operations --------------------------------------------------------------------------------------------------------


@event
class OfClaim(Fact):
    """An event about a claim or an acceptance, which the token names."""

    route: str
    operation_id: UUID
    token: int


@event
class OperationClaimed(OfClaim):
    """A claim was granted. `is_takeover`: of an operation in doubt, to send it again."""

    attempt: int
    is_takeover: bool = False
    counts = """
    counter idempotency_claims_total{route}: Claims that were granted
    counter idempotency_takeovers_total{route} if is_takeover: Operations in doubt that were sent again
    """
    says = "DEBUG: claimed | route operation_id token attempt"


@event
class OperationTakenOver(OfClaim):
    """An operation in doubt is sent again under a new claim. `request` describes the repeat."""

    attempt: int
    request: RequestInfo
    says = """
    INFO: in doubt, sent again | route operation_id token attempt request_id=request.request_id
        trace_id=request.trace_id
    """


@event
class EndedUnanswered(Fact):
    """An attempt ended when its caller waited no longer: the caller had got a reply such as a 504, or was gone.
    `verdict` and `status` are what the caller would have got; `duration_seconds` is from the claim to the end.
    `upstream_status` as in `RequestAnswered`."""

    route: str
    verdict: Verdict
    status: int
    duration_seconds: float
    operation_id: UUID
    upstream_status: int | None
    attempt: int
    request: RequestInfo
    says = """
    INFO: {self.request.method} {self.route} {self.status} {self.verdict}, after its caller stopped waiting |
        upstream_status duration_ms attempt operation_id request_id=request.request_id trace_id=request.trace_id |
        method=request.method route status verdict
    """
    is_of_request = True


@event
class OperationSettled(OfClaim):
    """The event that ended an attempt is in the record. `upstream_seconds` is how long the upstream was waited for,
    also in vain; None when nothing was sent. `is_late`: the first write of the event had to be repeated."""

    event: Event
    detail: str
    upstream_seconds: float | None
    is_late: bool
    series: ClassVar = {"event": _ENDINGS}
    counts = """
    counter idempotency_settlements_total{route,event}: Attempts whose end was recorded, by event
    histogram request idempotency_upstream_duration_seconds{route} of upstream_seconds: How long the upstream took for
        an attempt
    counter idempotency_late_writes_total{route} if is_late: Attempts whose outcome had to be written more than once
    """
    says = """
    WARNING if is_late: {self.ending}, recorded late | route operation_id token event detail
    WARNING if event=abandon: in doubt | route operation_id token event detail
    DEBUG: settled | route operation_id token event detail
    """

    @property
    def ending(self) -> str:
        return "in doubt" if self.event is Event.ABANDON else "settled"


@event
class WriteRefused(OfClaim):
    """The outcome of an attempt was fenced off: the record had moved on without it."""

    event: Event
    state: str
    counts = """
    counter idempotency_refused_writes_total{route}: Attempts whose outcome the store refused, because the record had
        gone on without them
    """
    says = """
    ERROR: the store refused the outcome of an attempt: the record is {self.state} already | route operation_id token
        event
    """


@event
class OutcomeJournaled(OfClaim):
    """The durable store did not take the event that ended an attempt; it is in this host's journal instead.
    `upstream_seconds` as in `OperationSettled`, which follows without it when the durable store has the event."""

    event: Event
    detail: str
    upstream_seconds: float | None
    counts = """
    counter idempotency_journaled_total{route}: Attempts whose outcome was journaled, because the durable store did not
        take it
    histogram request idempotency_upstream_duration_seconds{route} of upstream_seconds
    """
    says = "WARNING: journaled: the durable store has not taken the outcome yet | route operation_id token event detail"


@event
class JournalFailed(Fact):
    """An outcome that the durable store did not take could not be written to the journal either. `is_first`: the
    previous one could."""

    detail: str
    is_first: bool
    counts = "counter idempotency_journal_failures_total: Outcomes that neither the durable store nor the journal took"
    says = "ERROR if is_first, DEBUG: neither the durable store nor the journal takes an outcome | detail"


@event
class FlushRefused(OfClaim):
    """The durable store refused a journaled outcome; the journal keeps it for an operator."""

    event: Event
    detail: str
    counts = "counter idempotency_refused_writes_total{route}"
    says = """
    ERROR: the durable store refused a journaled outcome, which is kept in the journal | route operation_id token event
        detail
    """


@event
class RecordUnreadable(Fact):
    """A record cannot be decrypted: `why`. It completed, and its response is not known any more. `is_logged`: no such
    record was logged for a while."""

    operation_id: UUID
    why: str
    is_logged: bool
    counts = """
    counter idempotency_unreadable_records_total: Reads of records that could not be decrypted: their key is missing, or
        they were changed
    """
    says = """
    ERROR if is_logged, DEBUG: a record cannot be decrypted; its response is not replayed any more |
        operation=operation_id detail=why
    """


@event
class LeaseLost(Fact):
    operation_id: UUID
    token: int
    detail: str
    counts = "counter idempotency_lost_leases_total: Running attempts that lost their lease"
    says = "WARNING: the lease of a running attempt is lost | operation_id token detail"


ProbeFinding = StrEnum("ProbeFinding", "DONE NEVER_HAPPENED ASK_AGAIN")
"""What an upstream's response to a probe says about the operation."""


@event
class ProbeMade(Fact):
    """The upstream was probed about an operation in doubt. `origin` is the trace of the attempt in doubt, as far as the
    record has it."""

    route: str
    operation_id: UUID
    finding: ProbeFinding
    why: str
    duration_seconds: float = 0.0
    attempt: int = 0
    origin: str | None = None
    counts = """
    counter idempotency_probes_total{route,finding}: Probes of upstreams about operations in doubt, by finding
    """
    says = "INFO: probed | route operation_id finding why?"


# -- callers and webhooks ----------------------------------------------------------------------------------------------


@event
class WebhookRefused(Fact):
    """A message to an inbox was refused before anything was stored, for this `reason`. `missing`, `invalid` and `stale`
    are said of its signature, `unsupported` and `unidentified` of its event; `throttled`: too many messages from its
    address were not signed."""

    route: str
    reason: str
    series: ClassVar = {"reason": (*Fault, "unidentified", "throttled")}
    counts = """
    counter idempotency_inbox_rejected_total{route,reason}: Messages to inboxes of which nothing was stored, by reason
    """


@event
class WebhookVerified(Fact):
    route: str
    secret_ids: tuple[str, ...]

    # By route or sink, and by the name that the configuration gives the secret.
    counts = """
    counter idempotency_secret_used_total{place,id} all used_secrets: Messages that a secret of a route or a sink signed
    """

    @property
    def used_secrets(self) -> list[tuple[str, str, int]]:
        return [(self.route, secret_id, 1) for secret_id in self.secret_ids]


@event
class WebhookRepeated(Fact):
    """An event that an inbox has already was delivered to it again. `is_changed`: with another content, as `differs`
    says where that is known."""

    route: str
    operation_id: UUID
    is_changed: bool
    differs: tuple[str, ...] = ()
    counts = """
    counter idempotency_inbox_duplicates_total{route}: Events that an inbox had already
    counter idempotency_inbox_changed_total{route} if is_changed: Those of them that had another content, and were not
        delivered
    """
    says = """
    WARNING if is_changed: an event came again with another content, and is not delivered | route operation_id differs*
    """


RepeatResult = StrEnum("RepeatResult", "COUNTED REFUSED INCOMPARABLE")
"""What became of a request that its caller sent before under another key. `incomparable`: it lacks a value by which the
route recognises repeats, so it is none."""


@event
class RepeatNoticed(Fact):
    """A caller sent a request again under another key. `first_operation` is that of the first one, and `scope` whose
    they are, as the beginning of a digest."""

    route: str
    result: RepeatResult
    operation_id: UUID
    first_operation: UUID | None
    scope: str
    counts = """
    counter idempotency_repeats_total{route,result}: Requests that came again under another key, counted or refused, and
        those that lack what is compared
    """
    # The line of a refused request says so.
    says = """
    WARNING if result=counted: a caller sent a request again under another key | route scope operation_id
        first_operation
    """


FetchResult = StrEnum("FetchResult", "FETCHED FAILED")
"""What came of an attempt to fetch the keys of an issuer."""


@event
class KeysFetched(Fact):
    result: FetchResult
    counts = "counter idempotency_key_set_fetches_total{result}: Attempts to fetch the keys of issuers of tokens"


Decision = StrEnum("Decision", "ALLOWED REMEMBERED REFUSED UNAVAILABLE")
"""What an authorising service made of a request. `remembered`: allowed before, and not asked about again."""


@event
class AuthorizationDecided(Fact):
    decision: Decision
    counts = "counter idempotency_forward_auth_total{decision}: Requests that an authorising service decided about"


# -- deliveries and sinks ----------------------------------------------------------------------------------------------


@event
class OperationAccepted(OfClaim):
    """A request was accepted: it is kept durably, `request_bytes` long, to be delivered later."""

    request_bytes: int
    counts = "counter idempotency_accepted_total{route}: Requests that were accepted, to be delivered later"
    says = "DEBUG: accepted | route operation_id token request_bytes"


DeliveryResult = StrEnum("DeliveryResult", "COMPLETED POSTPONED DEAD_LETTER IN_DOUBT")
"""What became of an attempt to deliver an accepted request."""


@event
class DeliveryAttempted(OfClaim):
    """An attempt to deliver an accepted request ended. `OperationSettled` follows when the store has its outcome.
    `detail` is why it did not complete: the failure, the reason of the dead letter, or the doubt; empty otherwise.
    `upstream_status` is None when no response came. `attempt` counts as in `RequestAnswered`; `duration_seconds` is
    from the dispatch to the end, and `pause_seconds` from there to the next attempt, None when there is none by itself.
    `traceparent` is what the request has that was accepted."""

    attempt: int
    result: DeliveryResult
    detail: str
    upstream_status: int | None
    duration_seconds: float
    pause_seconds: float | None = None
    request: RequestInfo | None = None
    traceparent: str | None = None
    counts = "counter idempotency_deliveries_total{route,result}: Attempts to deliver accepted requests, by result"
    says = """
    WARNING if result=dead_letter, INFO: delivery of {self.route}: {self.result} | detail? upstream_status duration_ms
        next_attempt_seconds attempt operation_id token request_id trace_id | route result
    """
    is_of_request = True

    @property
    def request_id(self) -> str | None:
        return None if self.request is None else self.request.request_id

    @property
    def trace_id(self) -> str | None:
        return None if self.request is None else self.request.trace_id

    @property
    def next_attempt_seconds(self) -> float | None:
        return None if self.pause_seconds is None else round(self.pause_seconds, 3)


@event
class BreakerChanged(Fact):
    """The breaker of an upstream opened, and nothing is delivered to it; or it closed, or is not needed any more.
    `upstream` as in `UpstreamChanged`, `detail` is why it opened."""

    upstream: str
    is_open: bool
    detail: str = ""
    counts = """
    gauge max idempotency_breaker_open{upstream} of is_open: Whether nothing is delivered to an upstream because it
        cannot be reached
    """
    says = """
    WARNING if is_open: the breaker is open: nothing is delivered | upstream detail?
    INFO: the breaker is closed | upstream detail?
    """


@event
class BacklogTaken(Fact):
    """What a service has not delivered, by route as its store counts it, and which of its routes are paused. `orphans`
    are the accepted operations that no route of this configuration delivers."""

    waiting: Mapping[str, Any]
    paused: tuple[str, ...]
    orphans: int
    series: ClassVar = {"reason": (UNAUTHORIZED, ATTEMPTS_EXHAUSTED, UNREADABLE, DEADLINE)}
    # Every worker counts the whole service.
    counts = """
    gauge max idempotency_backlog{route} of accepted each waiting: Accepted operations of the service that are not
        delivered
    gauge max idempotency_oldest_backlog_seconds{route} of oldest_seconds each waiting: Age of the oldest of them since
        its acceptance, 0 without one
    gauge max idempotency_backlog_bytes{route} of request_bytes each waiting: What their requests take up in the store
    gauge max idempotency_dead_letters{route,reason} all dead_letters: Accepted operations whose delivery was given up,
        until somebody decides about them, by reason
    gauge max idempotency_lanes_stopped{route} of lanes_stopped each waiting: Lanes whose first operation is in doubt or
        a dead letter, so that the others wait
    gauge max idempotency_oldest_stopped_lane_seconds{route} of oldest_stopped_seconds each waiting: For how long the
        first of them has been stopped, 0 without one
    gauge max idempotency_paused{route} all paused_routes: Whether an operator has paused the delivery
    gauge max idempotency_orphans of orphans: Accepted operations that no route of this gateway's configuration delivers
    """

    @property
    def dead_letters(self) -> list[tuple[str, str, int]]:
        return [(route, why, count) for route, each in self.waiting.items() for why, count in each.dead_letters.items()]

    @property
    def paused_routes(self) -> list[tuple[str, int]]:
        return [(route, 1) for route in self.paused]


PublicationResult = StrEnum("PublicationResult", "DELIVERED FAILED UNKNOWN REFUSED SUSPENDED")
"""What became of a publication. `unknown`: it may have arrived. `refused`: this event never will. `suspended`: nothing
will, until an operator has mended something."""


@event
class EventsPublished(Fact):
    """Publications to a sink ended, all with the same `result`. `events` are ids and types; `detail` is why they did
    not arrive. `detail` may hold a part of a response, and is for operators alone. `secret_ids` signed it."""

    sink: str
    events: tuple[tuple[str, str], ...]
    result: PublicationResult
    detail: str = ""
    secret_ids: tuple[str, ...] = ()
    counts = """
    counter idempotency_events_published_total{sink,result} of number: Publications of events to sinks, by what came of
        them
    counter idempotency_secret_used_total{place,id} all used_secrets
    """

    @property
    def number(self) -> int:
        return len(self.events)

    @property
    def used_secrets(self) -> list[tuple[str, str, int]]:
        return [(self.sink, secret_id, self.number) for secret_id in self.secret_ids]


@event
class SinkChanged(Fact):
    """A sink was suspended by what it answered, or its breaker opened (`is_failing`) or closed. `cause` holds no part
    of a response."""

    sink: str
    is_suspended: bool = False
    is_failing: bool = False
    cause: str = ""

    # What the sink answered is for operators alone.
    says = """
    ERROR if is_suspended: a sink is suspended: its events wait until it is resumed; see: {PROGRAM} sinks | sink
        detail=cause
    WARNING if is_failing: a sink fails: its events wait; see: {PROGRAM} sinks | sink detail=cause
    INFO: a sink takes events again | sink
    """


@event
class EventsCounted(Fact):
    sinks: Mapping[str, Any]

    # Every worker counts the whole service.
    counts = """
    gauge max idempotency_events_pending{sink} of pending each sinks: Events that a sink has yet to receive
    gauge max idempotency_oldest_event_seconds{sink} of oldest_seconds each sinks: Age of the oldest of them, 0 without
        one
    gauge max idempotency_events_dead{sink} of dead each sinks: Events that were given up, until somebody redelivers
        them
    gauge max idempotency_sink_suspended{sink} all suspended: Whether a sink gets nothing until an operator resumes it
    """

    @property
    def suspended(self) -> list[tuple[str, bool]]:
        return [(sink, each.suspended_why is not None) for sink, each in self.sinks.items()]


# -- stores and upstreams ----------------------------------------------------------------------------------------------


@event
class StoreCalled(Fact):
    """A call of a store returned or failed. `error` is the class of the error, None if it returned."""

    tier: str
    verb: str
    duration_seconds: float
    error: str | None = None
    counts = """
    histogram store idempotency_store_duration_seconds{tier,verb} of duration_seconds: How long a call of a store took,
        failed ones included
    counter idempotency_store_errors_total{tier,verb,error} if error: Calls of a store that failed, by what is known
        after it
    """
    says = "DEBUG if error: a call of the store failed | tier verb error"


@event
class TierChanged(Fact):
    """A store became reachable or unreachable, or is unreachable for another cause. `tier` is `durable` or `fast`.
    `detail` is the cause. A tier starts as unreachable, without a cause."""

    tier: str
    up: bool
    detail: str = ""


@event
class UpstreamChanged(Fact):
    """No connection to an upstream can be made, for this `reason`; without a reason, they can be made again. `upstream`
    is its URL, which has no path."""

    upstream: str
    reason: str = ""
    detail: str = ""


@event
class NotesExchanged(Fact):
    """The durable store was compared with what gateways noted of it. It comes every few seconds while the store is
    up."""


@event
class StoreMet(Fact):
    """The durable store, which can be promoted, is used from now on, on this timeline."""

    timeline: int
    counts = """
    gauge max idempotency_store_timeline of timeline: The timeline of the Postgres in use: a promotion raises it
    """


@event
class SynchronyChanged(Fact):
    is_synchronous: bool
    counts = """
    gauge min idempotency_store_synchronous of is_synchronous: Whether a standby has what the durable store acknowledges
    """


@event
class GrantsChanged(Fact):
    """Why this process grants no keys of the durable store from now on; empty: it grants them again. `is_brief`: it
    waits for its standbys to know of it, which ends by itself."""

    why: str = ""
    is_brief: bool = False
    says = """
    WARNING if is_lasting, INFO if why: no key is granted for now | why
    INFO: keys are granted
    """

    @property
    def is_lasting(self) -> bool:
        return bool(self.why) and not self.is_brief


@event
class PromotionJudged(Fact):
    """A standby was promoted to this timeline, and this process found it `accepted`, `refused` or `waiting`.
    `unvouched` gateways have not spoken yet."""

    timeline: int
    result: str
    why: str
    unvouched: int
    series: ClassVar = {"result": ("accepted", "refused")}
    counts = """
    counter idempotency_store_promotions_total{result} if result=accepted: Promotions of a standby that this gateway
        judged, by whether it found that nothing was lost
    counter idempotency_store_promotions_total{result} if result=refused
    gauge max idempotency_store_unvouched_gateways of unvouched: Gateways that have yet to say whether a promoted
        standby lost anything
    """
    says = "WARNING: a standby of the durable store was promoted: {self.result} | timeline why unvouched?"


@event
class MemoryChanged(Fact):
    """The durable store lost its memory, and absent keys are refused for `left_seconds`; or that is over. `why` says
    what was noticed; `by`, who accepted the loss early."""

    is_lost: bool
    left_seconds: float
    why: str
    by: str
    counts = """
    gauge max idempotency_store_amnesia of is_lost: Whether the durable store lost its memory, so that absent keys are
        refused
    """
    says = """
    ERROR if is_lost: the durable store lost its memory: requests with keys that it does not have are refused; see:
        {PROGRAM} memory | why for_seconds
    WARNING: the durable store is trusted again | why by?
    """

    @property
    def for_seconds(self) -> int:
        return round(self.left_seconds)


@event
class SweepDone(Fact):
    """What a sweep changed. `expired` were not delivered in time, and are dead letters. `named` has route and operation
    id of those that lapsed, at least of the first ones."""

    lapsed: int
    retired: int
    collected: int
    duration_seconds: float
    named: tuple[tuple[str, UUID], ...] = ()
    expired: int = 0
    counts = """
    counter idempotency_swept_total{event} all swept: Records that a sweep of this gateway moved on
    histogram sweep idempotency_sweep_duration_seconds of duration_seconds: How long a sweep took
    """
    series: ClassVar = {"event": (Event.LAPSE, Event.RETIRE, Event.COLLECT, Event.EXPIRE)}
    # Leases lapse when a gateway dies, and this line helps to find out why.
    says = """
    WARNING if expired: swept; some operations were not delivered in time, and are dead letters | lapsed expired?
        retired collected duration_ms
    INFO if lapsed, DEBUG: swept | lapsed expired? retired collected duration_ms
    """

    @property
    def swept(self) -> list[tuple[str, int]]:
        counts = (self.lapsed, self.retired, self.collected, self.expired)
        return list(zip((Event.LAPSE, Event.RETIRE, Event.COLLECT, Event.EXPIRE), counts, strict=True))


@event
class TallyTaken(Fact):
    """How many operations are in doubt, by route name, and the age of the oldest in seconds; how many are encrypted
    with which key, by its id."""

    in_doubt: tuple[tuple[str, int], ...]
    oldest_in_doubt_seconds: float
    sealed: tuple[tuple[str, int], ...] = ()

    # Every worker counts the whole store; routes that the configuration no longer has, too.
    counts = """
    gauge max idempotency_in_doubt{route} all in_doubt: Operations in doubt in the whole store, the same in each
        gateway: use the maximum, not the sum
    gauge max idempotency_oldest_in_doubt_seconds of oldest_in_doubt_seconds: For how long the oldest of them has been
        in doubt, 0 without one
    gauge max idempotency_encrypted_operations{key_id} all sealed: Operations, kept requests, events and audits in the
        whole store with something encrypted with this key, of each table up to 10000
    """
    says = "DEBUG if number: operations are in doubt | in_doubt=number oldest_seconds=oldest_in_doubt_seconds"

    @property
    def number(self) -> int:
        return sum(count for _, count in self.in_doubt)


# -- operators and the process -----------------------------------------------------------------------------------------


AdminResult = StrEnum("AdminResult", "DONE REFUSED FAILED")
"""What became of an operator's action, and of an attempt to sign in."""


@event
class AdminActed(Fact):
    """An operator asked for a change through the admin port. `action` is the program's name of it. The rest is about
    the one operation that it concerned: its last attempt, and the trace of that as in `ProbeMade`."""

    action: str
    result: AdminResult
    duration_seconds: float = 0.0
    operation_id: UUID | None = None
    attempt: int = 0
    origin: str | None = None
    counts = """
    counter idempotency_admin_actions_total{action,result}: Changes that operators asked for through the admin port, by
        result
    """


@event
class SignedIn(Fact):
    """Somebody signed in to the console, by a token or by another's word: `done`, or `refused` with a wrong one, too
    often, or named by a header from an address that may not name anybody."""

    result: AdminResult
    series: ClassVar = {"result": (AdminResult.DONE, AdminResult.REFUSED)}
    counts = "counter idempotency_admin_sign_ins_total{result}: Attempts to sign in to the console"


@event
class LoopStalled(Fact):
    lag_seconds: float
    counts = """
    histogram stall idempotency_loop_stall_seconds of lag_seconds: How long the event loop was held up, when it was
    """
    says = "WARNING: the event loop was blocked for {self.lag_seconds:.1f} s"


# -- publishing --------------------------------------------------------------------------------------------------------

Observer = Callable[[Any], None]


class Counting(NamedTuple):
    """How events of one kind are counted. `labels_of` reads from one what chooses its `series`, which `find` finds the
    first time: those that count one more, those that observe a value, and gauges that get one, with what reads it.
    `count_more` counts the other changes."""

    labels_of: Read
    find: Callable[[Any], Series]
    count_more: Callable[[Any], None] | None
    series: dict[object, Series]


Series = tuple[list[Row], list[tuple[Row, Sequence[float], Read]], list[tuple[Row, Read]]]


class Events:
    """Counts each event, and passes it to every observer, in order. `count` tells how events of a kind are counted. An
    observer may have a method `wants`, which says whether it ever needs events of a kind."""

    def __init__(self, *observers: Observer, count: Callable[[type[Fact]], Counting] | None = None) -> None:
        self._observers = observers
        self._count = count
        self._kinds: dict[type[Fact], tuple[Counting | None, list[Observer]]] = {}
        self._failed: set[tuple[Observer | None, type[Fact]]] = set()

    def add(self, observer: Observer) -> None:
        self._observers += (observer,)
        self.ask_again()

    def ask_again(self) -> None:
        """What an observer wants has changed."""
        self._kinds.clear()

    def publish(self, fact: Fact) -> None:
        kind = type(fact)
        counting, observers = self._kinds.get(kind) or self._find(kind)
        try:
            # Counted here and not in functions of their own: a new key has five events.
            if counting is not None:
                labels = counting.labels_of(fact)
                series = counting.series.get(labels)
                if series is None:
                    series = counting.series[labels] = counting.find(fact)
                for row in series[0]:
                    row[0] += 1.0
                for row, bounds, read in series[1]:
                    seconds = read(fact)
                    if seconds is not None:
                        row[bisect_left(bounds, seconds)] += 1.0
                        row[-1] += seconds
                for row, value_of in series[2]:
                    row[0] = float(value_of(fact))
                if counting.count_more is not None:
                    counting.count_more(fact)
        except Exception as error:  # noqa: BLE001
            self._failed_on(kind, None, error)
        for observer in observers:
            try:
                observer(fact)
            except Exception as error:  # noqa: BLE001
                self._failed_on(kind, observer, error)

    def _failed_on(self, kind: type[Fact], observer: Observer | None, error: Exception) -> None:
        if (observer, kind) not in self._failed:
            self._failed.add((observer, kind))
            logging.getLogger("gateway").error("an observer failed on %s", kind.__name__, exc_info=error)

    def _find(self, kind: type[Fact]) -> tuple[Counting | None, list[Observer]]:
        counting = None if self._count is None or not kind.changes else self._count(kind)
        found = self._kinds[kind] = counting, [each for each in self._observers if _wants(each, kind)]
        return found


def _wants(observer: Observer, kind: type[Fact]) -> bool:
    wants: Callable[[type[Fact]], bool] | None = getattr(observer, "wants", None)
    return wants is None or wants(kind)
