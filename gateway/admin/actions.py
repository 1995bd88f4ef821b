"""What can be asked of the admin port, each once: its role, its path, what is given, what carries it out, its page.

The API and the console are made of these tables: a new action is a line here, and a verb of `Operations`. What is given
is a query string or a JSON body, read as a model; unknown names are refused.
"""

from __future__ import annotations

import binascii
import json
import logging
from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Generic, Literal, Protocol, Self, TypeVar
from uuid import UUID

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from gateway.admin import resolution as rulings
from gateway.admin.access import ACKNOWLEDGE, ENTER, FORCE, READ, READ_RESPONSE, RELOAD, Action, Person, Role
from gateway.admin.journal import REFUSED, WAITING, response_of
from gateway.admin.journal import listed as journal_listed
from gateway.admin.listing import PAGE_SIZE_MAX, REQUEUE, WITHDRAW, Bulk, Verb, dead_letters, gathered, listed
from gateway.admin.operations import Operations, audit_by
from gateway.admin.reports import MemoryState, Report
from gateway.admin.resolution import Changed, Malformed, Refused
from gateway.admin.view import described, full_json
from gateway.config.leaf import duration_seconds
from gateway.core.delivery import REASONS, REQUEUE_LIMIT_MAX, REQUEUE_RATE_MAX
from gateway.core.operation import Audit, Record, Snapshot, State, microseconds
from gateway.options import EVERY_STATE, STATES
from gateway.store.base import Indefinite, NotApplied
from gateway.store.operations import Query
from gateway.upkeep.activity import WINDOWS

_LOG = logging.getLogger("gateway")

_FAULTS_MAX: Final = 5
MATCHES_CHANGED: Final = "matches-changed"
_STATES: Final = {**{name: frozenset((State(name),)) for name in STATES}, EVERY_STATE: frozenset(map(State, STATES))}
# Of a decision about many; with the patience of its last operation it ends before the response is due.
_BULK_SECONDS: Final = 30.0

M = TypeVar("M", bound=BaseModel)
A = TypeVar("A", bound="Asked")
Place = Mapping[str, str]
"""What a path names: `id` or `name`."""
Result = Changed | Refused | MemoryState | Bulk | str
"""What became of a change: a text at least."""


def parsed(model: type[M], given: dict[str, Any]) -> M:
    """These values as a model. Raises `Malformed`."""
    try:
        return model.model_validate(given)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)[:_FAULTS_MAX]
        raise Malformed("; ".join(_fault(model, each["type"], each["loc"], each["msg"]) for each in faults)) from None


def _fault(model: type[BaseModel], kind: str, place: tuple[int | str, ...], text: str) -> str:
    if kind == "extra_forbidden":
        # The name is not repeated: it may be anything.
        place = place[:-1]
        text = "an unknown name" if place else f"an unknown name; known here: {', '.join(model.model_fields)}"
    text = "Input should be an object" if kind == "model_type" else text.removeprefix("Value error, ")
    return f"{'.'.join(map(str, place))}: {text}" if place else text


def json_object(body: bytes) -> dict[str, Any]:
    """The JSON object of a body. Raises `Malformed`. A name that is given twice is refused, because it is not clear
    which value is meant. orjson would take the last."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) != len(pairs):
            raise ValueError("a member is named twice")
        return members

    try:
        given = json.loads(body, object_pairs_hook=unique)
    except (ValueError, RecursionError):
        raise Malformed("the body is not JSON, or names a member twice") from None
    if not isinstance(given, dict):
        raise Malformed("the body is not a JSON object")
    return given


# -- query strings ----------------------------------------------------------------------------------------------------


def _only(values: list[str]) -> str:
    if len(values) > 1:
        raise ValueError("it is given more than once")
    return values[0]


def _microseconds(text: str) -> int:
    seconds = duration_seconds(text)
    if seconds is None:
        raise Malformed("it is a duration such as 30s, 5m, 12h or 7d")
    return microseconds(seconds)


def states_named(names: list[str]) -> frozenset[State]:
    if not _STATES.keys() >= set(names):
        raise ValueError(f"it is one of {', '.join(_STATES)}")
    return frozenset().union(*(_STATES[name] for name in names))


def _known_reason(reason: str) -> str:
    if reason not in REASONS:
        raise ValueError(f"it is one of {', '.join(REASONS)}")
    return reason


_Once = BeforeValidator(_only)
_Reason = Annotated[str, AfterValidator(_known_reason)]


class Asking(BaseModel):
    """A query string as lists of values by name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    limit: Annotated[int, Field(ge=1, le=PAGE_SIZE_MAX), _Once] = 100


class ListQuery(Asking):
    """Which operations to list; by default those in doubt or, with a reason, the dead letters."""

    state: Annotated[frozenset[State] | None, BeforeValidator(states_named)] = None
    route: frozenset[str] | None = None
    older_than: Annotated[int, BeforeValidator(_microseconds), _Once] = 0
    reason: Annotated[_Reason | None, _Once] = None
    after: Annotated[UUID | None, _Once] = None

    @property
    def query(self) -> Query:
        states = self.state or frozenset((State.IN_DOUBT if self.reason is None else State.DEAD_LETTER,))
        return Query(states, self.route, self.older_than, reason=self.reason, after=self.after, limit=self.limit)

    @model_validator(mode="after")
    def _has_reasons(self) -> Self:
        if self.reason is not None and self.query.states != {State.DEAD_LETTER}:
            raise ValueError("reason is for dead letters; leave out other states")
        return self


class JournalQuery(Asking):
    state: frozenset[Literal["waiting", "refused"]] = frozenset((WAITING, REFUSED))

    @property
    def is_refused(self) -> bool | None:
        """True for refused outcomes only, False for waiting ones only, None for both."""
        return None if len(self.state) > 1 else REFUSED in self.state


class ObservedQuery(Asking):
    route: Annotated[str, _Once] | None = None


class ActivityQuery(Asking):
    window: Annotated[Literal["hour", "week"], _Once] = "hour"


class DeadLettersQuery(Asking):
    route: Annotated[str | None, _Once] = None
    reason: Annotated[_Reason | None, _Once] = None
    older_than: Annotated[str | None, _Once] = None

    @property
    def query(self) -> Query:
        return _filter(self.route, self.reason, self.older_than, self.limit)


class EventsQuery(Asking):
    sink: Annotated[str, _Once]
    state: Annotated[Literal["dead", "waiting"], _Once] = "dead"
    after: Annotated[str | None, _Once] = None


# -- bodies -----------------------------------------------------------------------------------------------------------


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Asked(_Body):
    why: str = ""
    by: str | None = None

    def audit_as(self, person: Person) -> Audit:
        """The audit of what this person does. Raises `Malformed`."""
        if self.by is not None:
            audit_by(self.by, self.why)
        return audit_by(person.acting_for(self.by), self.why)


class EraseAsked(Asked):
    """`yes` confirms that the key may run again."""

    yes: bool = False


class _Completed(_Body):
    status: int
    headers: list[Annotated[list[str], Field(min_length=2, max_length=2)]] = []
    body_base64: str = ""


class ResolveAsked(Asked):
    """What became of an operation in doubt. `drop`: see `NothingHappened`; `token`, `force`: `Operations.resolve`."""

    completed: _Completed | None = None
    never_happened: bool = False
    drop: bool = False
    force: bool = False
    token: int | None = Field(None, ge=1)

    @property
    def ruling(self) -> rulings.Ruling:
        if (self.completed is not None) == self.never_happened:
            raise Malformed("say either completed, with the response, or never_happened: true")
        if self.completed is None:
            return rulings.NothingHappened(drops=self.drop)
        if self.drop:
            raise Malformed("drop is for never_happened: true")
        try:
            body = b64decode(self.completed.body_base64, validate=True)
        except binascii.Error:
            raise Malformed("completed.body_base64: it is not base64") from None
        headers = [(name, value) for name, value in self.completed.headers]
        return rulings.Happened(*response_of(self.completed.status, headers, body))


class DecideAsked(Asked):
    """A decision about one kept request. `token`: see `Operations.requeue`."""

    token: int | None = Field(None, ge=1)


def _filter(route: str | None, reason: str | None, older_than: str | None, limit: int) -> Query:
    """The dead letters that a filter names. Raises `Malformed`."""
    if route is None and reason is None and older_than is None:
        raise Malformed("say which: by route, reason or older_than")
    routes = None if route is None else frozenset((route,))
    return dead_letters(routes, reason, 0 if older_than is None else _microseconds(older_than), limit)


class ManyAsked(Asked):
    """Which dead letters to requeue or to withdraw, by `route`, `reason` and how long they are dead; at most `limit`,
    at this rate. `matching`: only if so many match, those beyond the limit included."""

    route: str | None = None
    reason: _Reason | None = None
    older_than: str | None = None
    limit: int = Field(ge=1, le=REQUEUE_LIMIT_MAX)
    rate: int = Field(ge=1, le=REQUEUE_RATE_MAX)
    matching: int | None = Field(None, ge=0)

    @property
    def query(self) -> Query:
        return _filter(self.route, self.reason, self.older_than, self.limit)


class RedeliverAsked(Asked):
    """The sink to publish an event to; to all where it is dead if left out."""

    sink: str | None = None


class PauseAsked(Asked):
    """The route, or the operation name, to pause or resume."""

    route: str


class FindAsked(_Body):
    """`text`: whatever names an operation, see `operation_in`."""

    text: str


# -- changes ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Change(Generic[A]):
    """A change, by POST.

    Its page in the console says what it means; without a title there is none, or one of another kind. It has the path
    of the API where `page_path` is empty, and asks for the beginning of the operation's id, or the name of the service,
    as a confirmation where it is `typed`. `states`: the operations whose page leads to it. `command`: the command line
    that asks for it, and the option that does, as in `purge --erase`. `has_copies`: the copies in the fast tier are
    dropped, and requests that wait are woken."""

    action: Action
    path: str
    asked: type[A]
    carry_out: Callable[[Operations, Place, A, Audit], Awaitable[Result]]
    title: str = ""
    meaning: str = ""
    button: str = ""
    page_path: str = ""
    typed: bool = False
    states: tuple[State, ...] = ()
    command: str = ""
    has_copies: bool = False

    @property
    def option(self) -> str:
        """The name of the value that the option of its command has; empty without one."""
        return self.command.partition(" --")[2].replace("-", "_")


def operation_id_of(place: Place) -> UUID:
    """The operation that a path names. Raises `Malformed`."""
    try:
        return UUID(place["id"])
    except ValueError:
        raise Malformed("expected the id of an operation") from None


async def _resolve(operations: Operations, place: Place, asked: ResolveAsked, audit: Audit) -> Result:
    operation_id = operation_id_of(place)
    return await operations.resolve(operation_id, asked.ruling, audit, is_forced=asked.force, token=asked.token)


async def _many(operations: Operations, asked: ManyAsked, audit: Audit, verb: Verb) -> Bulk:
    bulk = await listed(operations, asked.query, asked.rate, verb)
    if asked.matching not in (None, bulk.matching):
        text = f"Nothing was changed: not {asked.matching}, but {bulk.matching} dead letters match by now."
        raise rulings.Fault(409, MATCHES_CHANGED, text, matching=bulk.matching)
    try:
        async for _outcome in bulk.run(operations, audit, seconds_max=_BULK_SECONDS):
            pass
    except (NotApplied, Indefinite) as error:
        raise rulings.unavailable(f"{bulk}. Stopped; repeat the request to go on: {error}", **bulk.counts) from error
    finally:
        _LOG.info("the admin API %s dead letters: %s, by %s: %s", verb.did, bulk, audit.who, audit.why)
    return bulk


_REQUEUE: Final = Action("requeue", Role.OPERATOR)
_WITHDRAW: Final = Action("withdraw", Role.OPERATOR)
_PAUSE: Final = Action("pause", Role.OPERATOR)
_SINK: Final = Action("sink", Role.OPERATOR)  # suspend and resume a sink

CHANGES: Final[tuple[Change[Any], ...]] = (
    Change(Action("resolve", Role.OPERATOR), "/operations/{id}/resolve", ResolveAsked, _resolve),
    Change(
        _REQUEUE,
        "/operations/{id}/requeue",
        DecideAsked,
        lambda here, at, asked, audit: here.requeue(operation_id_of(at), audit, token=asked.token),
        "Requeue",
        "Its kept request is delivered to the service as soon as possible. No attempt of it had an effect.",
        "Requeue it",
        states=(State.DEAD_LETTER,),
        command="requeue",
        has_copies=True,
    ),
    Change(
        _WITHDRAW,
        "/operations/{id}/withdraw",
        DecideAsked,
        lambda here, at, asked, audit: here.withdraw(operation_id_of(at), audit, token=asked.token),
        "Withdraw",
        "Its kept request is dropped and never delivered. Nothing happened; if its caller sends it again, it runs.",
        "Withdraw it",
        states=(State.DEAD_LETTER, State.ACCEPTED),
        command="withdraw",
        has_copies=True,
    ),
    Change(
        _REQUEUE,
        "/requeue",
        ManyAsked,
        lambda here, _, asked, audit: _many(here, asked, audit, REQUEUE),
        "Requeue dead letters",
        "Their kept requests are delivered to the service, beside new requests. No attempt of them had an effect.",
        "Requeue them",
        "/dead-letters/requeue",
    ),
    Change(
        _WITHDRAW,
        "/withdraw",
        ManyAsked,
        lambda here, _, asked, audit: _many(here, asked, audit, WITHDRAW),
        "Withdraw dead letters",
        "Their kept requests are dropped and never delivered. Nothing happened; if a caller sends one again, it runs.",
        "Withdraw them",
        "/dead-letters/withdraw",
    ),
    Change(
        Action("purge", Role.ADMIN),
        "/operations/{id}/purge",
        Asked,
        lambda here, at, asked, audit: here.purge(operation_id_of(at), audit),
        "Purge",
        "Its recorded response is dropped for good: repeats get an error instead of it. The key is remembered and does "
        "not run again.",
        "Drop the response",
        states=(State.COMPLETED,),
        command="purge",
        has_copies=True,
    ),
    Change(
        Action("erase", Role.ADMIN),
        "/operations/{id}/erase",
        EraseAsked,
        lambda here, at, asked, audit: here.erase(operation_id_of(at), audit, is_sure=asked.yes),
        "Erase",
        "The key is forgotten: a request with it runs again, and may have its effect a second time. Do this only if no "
        "client will repeat it.",
        "Forget the key",
        typed=True,
        states=(State.RELEASED, State.TOMBSTONE),
        command="purge --erase",
        has_copies=True,
    ),
    Change(
        _PAUSE,
        "/pause",
        PauseAsked,
        lambda here, _, asked, audit: here.pause(asked.route, audit),
        "Pause deliveries",
        "Nothing of this operation name is delivered any more. Requests are accepted and kept; attempts under way go "
        "on.",
        "Pause it",
        "/pauses/{name}/pause",
        command="pause",
    ),
    Change(
        _PAUSE,
        "/resume",
        PauseAsked,
        lambda here, _, asked, audit: here.resume(asked.route, audit),
        "Resume deliveries",
        "What was accepted meanwhile is delivered, the longest due first.",
        "Resume it",
        "/pauses/{name}/resume",
        command="resume",
    ),
    Change(
        _SINK,
        "/sinks/{name}/suspend",
        Asked,
        lambda here, at, asked, audit: here.suspend_sink(at["name"], audit),
        "Suspend the sink",
        "Nothing is published to it any more; its events are kept.",
        "Suspend it",
        command="sinks --suspend",
    ),
    Change(
        _SINK,
        "/sinks/{name}/resume",
        Asked,
        lambda here, at, asked, audit: here.resume_sink(at["name"]),
        "Resume the sink",
        "Everything that waits for it is published, in order.",
        "Resume it",
        command="sinks --resume",
    ),
    Change(
        Action("redeliver", Role.OPERATOR),
        "/events/{id}/redeliver",
        RedeliverAsked,
        lambda here, at, asked, audit: here.redeliver(at["id"], asked.sink),
        "Redeliver the event",
        "The dead event is published again under the same id, to each sink where it is dead. Some may have it already.",
        "Publish it again",
        command="redeliver",
    ),
    Change(
        Action("accept_loss", Role.ADMIN),
        "/memory/accept-loss",
        Asked,
        lambda here, _, asked, audit: here.accept_loss(audit),
        "Accept the loss",
        "The store is trusted again: a request with a key that it lost runs, also if it ran before. Do this only if it "
        "is the right store.",
        "Trust the store",
        typed=True,
        command="memory --accept-loss",
        has_copies=True,
    ),
)

ACTIONS: Final = {
    each.value.upper(): each
    for each in (ENTER, READ, READ_RESPONSE, FORCE, ACKNOWLEDGE, RELOAD, *(change.action for change in CHANGES))
}
"""By the names that templates have for them."""


class Reloaded(Protocol):
    """The report of a reload: `applied`, `unchanged` or `refused`."""

    @property
    def result(self) -> str: ...
    @property
    def detail(self) -> str: ...
    @property
    def is_file_wrong(self) -> bool: ...
    @property
    def document(self) -> dict[str, Any]: ...


Reload = Callable[[], Awaitable[Reloaded]]
"""Read the file again, and wait for what comes of it. Never raises."""


async def reloaded(reload: Reload | None, refused: str = "") -> Reloaded:
    """The report of a reload. Raises `Fault` where it is refused, with the text `refused` before its own."""
    if reload is None:
        raise rulings.Fault(409, "no-file", "This gateway was not started from a file.")
    report = await reload()
    if report.result == "refused":
        members = {name: value for name, value in report.document.items() if name != "detail"}
        status = 422 if report.is_file_wrong else 409
        raise rulings.Fault(status, "reload-refused", f"{refused}{report.detail}", **members)
    return report


# -- questions --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Look:
    """A question, by GET: its query, and the document that responds. Without a model the query is not looked at."""

    path: str
    query: type[Asking] | None
    find: Callable[[Operations, Place, Any], Awaitable[Report]]


def _listed(records: list[Record], now_us: int) -> list[Report]:
    return [described(Snapshot(record, now_us), has_body=False) for record in records]


async def _list(operations: Operations, _: Place, asked: ListQuery) -> Report:
    found = await gathered(operations, asked.query, records_max=asked.limit)
    after = None if found.after is None else str(found.after)
    return {"operations": _listed(found.records, found.now_us), "next": after}


async def inspect(operations: Operations, operation_id: UUID) -> Report:
    """All that is known of an operation. Raises `Fault` where nothing is remembered of it."""
    inspected = await operations.inspect(operation_id)
    about = full_json(inspected)
    if inspected.snapshot.record is None:
        raise rulings.Fault(404, rulings.Refusal.UNKNOWN, about["next"], operation=about)
    return about


async def _dead_letters(operations: Operations, _: Place, asked: DeadLettersQuery) -> Report:
    found = await listed(operations, asked.query, REQUEUE_RATE_MAX)
    return {"matching": found.matching, "operations": _listed(found.first[: asked.limit], found.now_us)}


async def _paused(operations: Operations, _: Place, __: None) -> Report:
    audits = await operations.pause_audits()
    return {"paused": await operations.paused(), "audits": audits}


async def _sinks(operations: Operations, _: Place, __: None) -> Report:
    return {"sinks": await operations.sinks()}


async def _events(operations: Operations, _: Place, asked: EventsQuery) -> Report:
    is_dead, size = asked.state == "dead", asked.limit
    page = await operations.events(asked.sink, is_dead=is_dead, after=asked.after, limit=size)
    return {"events": page, "next": page[-1]["id"] if len(page) == size else None}


async def _memory(operations: Operations, _: Place, __: None) -> Report:
    return (await operations.memory()).document


async def _journal(operations: Operations, _: Place, asked: JournalQuery) -> Report:
    return journal_listed(await operations.journal(is_refused=asked.is_refused, limit=asked.limit))


async def _observed(operations: Operations, _: Place, asked: ObservedQuery) -> Report:
    try:
        return {"routes": await operations.observed(asked.route)}
    except rulings.NoSuch as error:
        raise rulings.Fault(404, error.code, f"{error}.") from None


async def _activity(operations: Operations, _: Place, asked: ActivityQuery) -> Report:
    return (await operations.activity(WINDOWS[asked.window])).document()


LOOKS: Final[tuple[Look, ...]] = (
    Look("/operations", ListQuery, _list),
    Look("/operations/{id}", None, lambda operations, place, _: inspect(operations, operation_id_of(place))),
    Look("/dead-letters", DeadLettersQuery, _dead_letters),
    Look("/paused", None, _paused),
    Look("/sinks", None, _sinks),
    Look("/events", EventsQuery, _events),
    Look("/memory", None, _memory),
    Look("/journal", JournalQuery, _journal),
    Look("/observed", ObservedQuery, _observed),
    Look("/activity", ActivityQuery, _activity),
)
