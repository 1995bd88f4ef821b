"""Requests to the admin port: query strings and JSON bodies as models. Unknown names are refused."""

from __future__ import annotations

import binascii
import json
from base64 import b64decode
from functools import cached_property
from typing import Annotated, Any, Final, Literal, Self, TypeVar
from uuid import UUID

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from gateway.admin.access import Person
from gateway.admin.fault import Malformed
from gateway.admin.journal import REFUSED, WAITING
from gateway.admin.operations import PAGE_SIZE_MAX, audit_by
from gateway.admin.provided_response import response_of
from gateway.admin.requeueing import dead_letters
from gateway.admin.resolution import Happened, NothingHappened, Ruling
from gateway.config.leaf import duration_seconds
from gateway.core.delivery import REASONS, REQUEUE_LIMIT_MAX, REQUEUE_RATE_MAX
from gateway.core.operation import Audit, State, microseconds
from gateway.options import EVERY_STATE, STATES
from gateway.store.operations import Query

_PAGE_SIZE: Final = 100
_FAULTS_MAX: Final = 5
_STATES: Final = {**{name: frozenset((State(name),)) for name in STATES}, EVERY_STATE: frozenset(map(State, STATES))}

M = TypeVar("M", bound=BaseModel)


def parsed(model: type[M], given: dict[str, Any]) -> M:
    """These values as a model. Raises `Malformed`."""
    try:
        return model.model_validate(given)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)[:_FAULTS_MAX]
        texts = [_fault(model, fault["type"], fault["loc"], fault["msg"]) for fault in faults]
        raise Malformed("; ".join(texts)) from None


def _fault(model: type[BaseModel], kind: str, place: tuple[int | str, ...], text: str) -> str:
    if kind == "extra_forbidden":
        # The name is not repeated: it may be anything.
        place = place[:-1]
        text = "an unknown name" if place else f"an unknown name; known here: {', '.join(model.model_fields)}"
    where = ".".join(map(str, place))
    text = "Input should be an object" if kind == "model_type" else text.removeprefix("Value error, ")
    return f"{where}: {text}" if where else text


def json_object(body: bytes) -> dict[str, Any]:
    """The JSON object of a body. Raises `Malformed`.

    A name that is given twice is refused, because it is not clear which value is meant. orjson would take the last.
    """
    try:
        given = json.loads(body, object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        raise Malformed("the body is not JSON, or names a member twice") from None
    if not isinstance(given, dict):
        raise Malformed("the body is not a JSON object")
    return given


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member is named twice")
    return members


# -- query strings ----------------------------------------------------------------------------------------------------


def _only(values: list[str]) -> str:
    """The value of a name that may be given only once."""
    if len(values) > 1:
        raise ValueError("it is given more than once")
    return values[0]


def _microseconds(text: str) -> int:
    seconds = duration_seconds(text)
    if seconds is None:
        raise ValueError("it is a duration such as 30s, 5m, 12h or 7d")
    return microseconds(seconds)


def _states(names: list[str]) -> frozenset[State]:
    if not _STATES.keys() >= set(names):
        raise ValueError(f"it is one of {', '.join(_STATES)}")
    return frozenset().union(*(_STATES[name] for name in names))


_Once = BeforeValidator(_only)


def _known_reason(reason: str) -> str:
    if reason not in REASONS:
        raise ValueError(f"it is one of {', '.join(REASONS)}")
    return reason


_Reason = Annotated[str, AfterValidator(_known_reason)]


class Asking(BaseModel):
    """A query string as lists of values by name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    limit: Annotated[int, Field(ge=1, le=PAGE_SIZE_MAX), _Once] = _PAGE_SIZE


class ListQuery(Asking):
    """Which operations to list; by default those in doubt or, with a reason, the dead letters."""

    state: Annotated[frozenset[State] | None, BeforeValidator(_states)] = None
    route: frozenset[str] | None = None
    older_than: Annotated[int, BeforeValidator(_microseconds), _Once] = 0
    reason: Annotated[_Reason | None, _Once] = None
    after: Annotated[UUID | None, _Once] = None

    @property
    def query(self) -> Query:
        usual = State.IN_DOUBT if self.reason is None else State.DEAD_LETTER
        return Query(
            states=self.state or frozenset((usual,)),
            routes=self.route,
            age_us=self.older_than,
            reason=self.reason,
            after=self.after,
            limit=self.limit,
        )

    @model_validator(mode="after")
    def _has_reasons(self) -> Self:
        if self.reason is not None and self.query.states != {State.DEAD_LETTER}:
            raise ValueError("reason is for dead letters; leave out other states")
        return self


class JournalQuery(Asking):
    """Which outcomes in the journals to list."""

    state: frozenset[Literal["waiting", "refused"]] = frozenset((WAITING, REFUSED))

    @property
    def is_refused(self) -> bool | None:
        """True for refused outcomes only, False for waiting ones only, None for both."""
        return None if len(self.state) > 1 else REFUSED in self.state


class ObservedQuery(Asking):
    """Which observed route to report on; all if left out."""

    route: Annotated[str, _Once] | None = None


class EventsQuery(Asking):
    """Which events of a sink to list: the dead ones, unless others are asked for."""

    sink: Annotated[str, _Once]
    state: Annotated[Literal["dead", "waiting"], _Once] = "dead"
    after: Annotated[str | None, _Once] = None


# -- bodies -----------------------------------------------------------------------------------------------------------


class Asked(BaseModel):
    """Who acts, and why."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    why: str = ""
    by: str | None = None

    def audit_as(self, person: Person) -> Audit:
        """The audit of what this person does. Raises `Malformed`."""
        return audit_by(person.acting_for(self.by), self.why)

    @model_validator(mode="after")
    def _can_be_audited(self) -> Self:
        audit_by("somebody" if self.by is None else self.by, self.why)
        return self


class EraseAsked(Asked):
    """`yes` confirms that the key may run again."""

    yes: bool = False


class _Completed(BaseModel):
    """A response of the service."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

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

    @cached_property
    def ruling(self) -> Ruling:
        if (self.completed is not None) == self.never_happened:
            raise ValueError("say either completed, with the response, or never_happened: true")
        if self.completed is None:
            return NothingHappened(drops=self.drop)
        if self.drop:
            raise ValueError("drop is for never_happened: true")
        try:
            body = b64decode(self.completed.body_base64, validate=True)
        except binascii.Error:
            raise ValueError("completed.body_base64: it is not base64") from None
        headers = [(name, value) for name, value in self.completed.headers]
        return Happened(*response_of(self.completed.status, headers, body))

    @model_validator(mode="after")
    def _can_be_ruled(self) -> Self:
        _ = self.ruling
        return self


class DecideAsked(Asked):
    """A decision about one kept request. `token`: see `Operations.requeue`."""

    token: int | None = Field(None, ge=1)


class RequeueAsked(Asked):
    """Which dead letters to requeue, by `route`, `reason` and how long they are dead; at most `limit`, at this rate."""

    route: str | None = None
    reason: _Reason | None = None
    older_than: str | None = None
    limit: int = Field(ge=1, le=REQUEUE_LIMIT_MAX)
    rate: int = Field(ge=1, le=REQUEUE_RATE_MAX)

    @cached_property
    def query(self) -> Query:
        if self.route is None and self.reason is None and self.older_than is None:
            raise ValueError("say which: by route, reason or older_than")
        routes = None if self.route is None else frozenset((self.route,))
        age_us = 0 if self.older_than is None else _microseconds(self.older_than)
        return dead_letters(routes, self.reason, age_us, self.limit)

    @model_validator(mode="after")
    def _is_bounded(self) -> Self:
        _ = self.query
        return self


class RedeliverAsked(Asked):
    """The sink to publish an event to; to all where it is dead if left out."""

    sink: str | None = None


class PauseAsked(Asked):
    """The route, or the operation name, to pause or resume."""

    route: str
