"""What can be asked of the admin port, each once: its role, its path, what is given, what carries it out, its page.

The API and the console are made of these tables: a new action is a line here, and a verb of `Operations`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

from gateway.admin.access import Action
from gateway.admin.fault import Fault, Malformed, NoSuch, unavailable
from gateway.admin.inspection import full_json
from gateway.admin.journal import listed as journal_listed
from gateway.admin.memory import MemoryState
from gateway.admin.operations import Operations
from gateway.admin.request import (
    Asked,
    Asking,
    DecideAsked,
    EraseAsked,
    EventsQuery,
    JournalQuery,
    ListQuery,
    ObservedQuery,
    PauseAsked,
    RedeliverAsked,
    RequeueAsked,
    ResolveAsked,
)
from gateway.admin.requeueing import Requeueing, listed
from gateway.admin.resolution import Changed, Refusal, Refused
from gateway.admin.sinks import event_document
from gateway.admin.view import described, moment
from gateway.core.operation import Audit, State
from gateway.store.base import Indefinite, NotApplied

_LOG = logging.getLogger("gateway")

A = TypeVar("A", bound=Asked)
Place = Mapping[str, str]
"""What a path names: `id` or `name`."""
Result = Changed | Refused | MemoryState | Requeueing | str
"""What became of a change: a text at least."""

# Of a bulk requeue; with the patience of its last operation it ends before the response is due.
_BULK_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Page:
    """How a browser asks for a change, and what it means. `typed` asks for the beginning of the operation's id, or the
    name of the service, as a confirmation. `path`: where it is not that of the API. `states`: the operations whose page
    leads to it."""

    title: str
    meaning: str
    button: str
    typed: bool = False
    path: str = ""
    states: tuple[State, ...] = ()


@dataclass(frozen=True, slots=True)
class Change(Generic[A]):
    """A change, by POST. Without a `page` the console has none, or one of another kind."""

    action: Action
    path: str
    asked: type[A]
    carry_out: Callable[[Operations, Place, A, Audit], Awaitable[Result]]
    page: Page | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """A question, by GET: its query, and the document that responds. Without a model the query is not looked at."""

    path: str
    query: type[Asking] | None
    find: Callable[[Operations, Place, Any], Awaitable[dict[str, Any]]]


def operation_id_of(place: Place) -> UUID:
    """The operation that a path names. Raises `Malformed`."""
    try:
        return UUID(place["id"])
    except ValueError:
        raise Malformed("expected the id of an operation") from None


# -- changes ----------------------------------------------------------------------------------------------------------


async def _resolve(operations: Operations, place: Place, asked: ResolveAsked, audit: Audit) -> Result:
    operation_id = operation_id_of(place)
    return await operations.resolve(operation_id, asked.ruling, audit, is_forced=asked.force, token=asked.token)


async def _requeue_many(operations: Operations, _: Place, asked: RequeueAsked, audit: Audit) -> Requeueing:
    bulk = await listed(operations, asked.query, asked.rate)
    try:
        async for _outcome in bulk.run(operations, audit, seconds_max=_BULK_SECONDS):
            pass
    except (NotApplied, Indefinite) as error:
        raise unavailable(f"{bulk}. Stopped; repeat the request to go on: {error}", **bulk.counts) from error
    finally:
        _LOG.info("the admin API requeued dead letters: %s, by %s: %s", bulk, audit.who, audit.why)
    return bulk


CHANGES: Final[tuple[Change[Any], ...]] = (
    Change(Action.RESOLVE, "/operations/{id}/resolve", ResolveAsked, _resolve),
    Change(
        Action.REQUEUE,
        "/operations/{id}/requeue",
        DecideAsked,
        lambda here, at, asked, audit: here.requeue(operation_id_of(at), audit, token=asked.token),
        Page(
            "Requeue",
            "Its kept request is delivered to the service as soon as possible. No attempt of it had an effect.",
            "Requeue it",
            states=(State.DEAD_LETTER,),
        ),
    ),
    Change(
        Action.WITHDRAW,
        "/operations/{id}/withdraw",
        DecideAsked,
        lambda here, at, asked, audit: here.withdraw(operation_id_of(at), audit, token=asked.token),
        Page(
            "Withdraw",
            "Its kept request is dropped and never delivered. Nothing happened; if its caller sends it again, it runs.",
            "Withdraw it",
            states=(State.DEAD_LETTER, State.ACCEPTED),
        ),
    ),
    Change(Action.REQUEUE, "/requeue", RequeueAsked, _requeue_many),
    Change(
        Action.PURGE,
        "/operations/{id}/purge",
        Asked,
        lambda here, at, asked, audit: here.purge(operation_id_of(at), audit),
        Page(
            "Purge",
            "Its recorded response is dropped for good: repeats get an error instead of it. The key is remembered and "
            "does not run again.",
            "Drop the response",
            states=(State.COMPLETED,),
        ),
    ),
    Change(
        Action.ERASE,
        "/operations/{id}/erase",
        EraseAsked,
        lambda here, at, asked, audit: here.erase(operation_id_of(at), audit, is_sure=asked.yes),
        Page(
            "Erase",
            "The key is forgotten: a request with it runs again, and may have its effect a second time. Do this only "
            "if no client will repeat it.",
            "Forget the key",
            typed=True,
            states=(State.RELEASED, State.TOMBSTONE),
        ),
    ),
    Change(
        Action.PAUSE,
        "/pause",
        PauseAsked,
        lambda here, _, asked, audit: here.pause(asked.route, audit),
        Page(
            "Pause deliveries",
            "Nothing of this operation name is delivered any more. Requests are accepted and kept; attempts under way "
            "go on.",
            "Pause it",
            path="/pauses/{name}/pause",
        ),
    ),
    Change(
        Action.PAUSE,
        "/resume",
        PauseAsked,
        lambda here, _, asked, audit: here.resume(asked.route, audit),
        Page(
            "Resume deliveries",
            "What was accepted meanwhile is delivered, the longest due first.",
            "Resume it",
            path="/pauses/{name}/resume",
        ),
    ),
    Change(
        Action.SINK,
        "/sinks/{name}/suspend",
        Asked,
        lambda here, at, asked, audit: here.suspend_sink(at["name"], audit),
        Page("Suspend the sink", "Nothing is published to it any more; its events are kept.", "Suspend it"),
    ),
    Change(
        Action.SINK,
        "/sinks/{name}/resume",
        Asked,
        lambda here, at, asked, audit: here.resume_sink(at["name"]),
        Page("Resume the sink", "Everything that waits for it is published, in order.", "Resume it"),
    ),
    Change(
        Action.REDELIVER,
        "/events/{id}/redeliver",
        RedeliverAsked,
        lambda here, at, asked, audit: here.redeliver(at["id"], asked.sink),
        Page(
            "Redeliver the event",
            "The dead event is published again under the same id, to each sink where it is dead. Some may have it "
            "already.",
            "Publish it again",
        ),
    ),
    Change(
        Action.ACCEPT_LOSS,
        "/memory/accept-loss",
        Asked,
        lambda here, _, asked, audit: here.accept_loss(audit),
        Page(
            "Accept the loss",
            "The store is trusted again: a request with a key that it lost runs, also if it ran before. Do this only "
            "if it is the right store.",
            "Trust the store",
            typed=True,
        ),
    ),
)


# -- questions --------------------------------------------------------------------------------------------------------


async def _list(operations: Operations, _: Place, asked: ListQuery) -> dict[str, Any]:
    query = asked.query
    found = [described(snapshot, has_body=False) for snapshot in await operations.page(query)]
    return {"operations": found, "next": found[-1]["operation_id"] if len(found) == query.limit else None}


async def _inspect(operations: Operations, place: Place, _: None) -> dict[str, Any]:
    inspected = await operations.inspect(operation_id_of(place))
    about = full_json(inspected)
    if inspected.snapshot.record is None:
        raise Fault(404, Refusal.UNKNOWN, about["next"], operation=about)
    return about


async def _paused(operations: Operations, _: Place, __: None) -> dict[str, Any]:
    audits = [
        {
            "at": moment(entry.at_us),
            "operation": entry.operation,
            "event": "resume" if entry.is_resumed else "pause",
            "by": entry.who,
            "why": entry.why,
        }
        for entry in await operations.pause_audits()
    ]
    return {"paused": [each.document for each in await operations.paused()], "audits": audits}


async def _sinks(operations: Operations, _: Place, __: None) -> dict[str, Any]:
    return {"sinks": [each.document for each in await operations.sinks()]}


async def _events(operations: Operations, _: Place, asked: EventsQuery) -> dict[str, Any]:
    is_dead, size = asked.state == "dead", asked.limit
    page = await operations.events(asked.sink, is_dead=is_dead, after=asked.after, limit=size)
    after = page[-1].event_id if len(page) == size else None
    return {"events": [event_document(event) for event in page], "next": after}


async def _memory(operations: Operations, _: Place, __: None) -> dict[str, Any]:
    state: MemoryState = await operations.memory()
    return state.document


async def _journal(operations: Operations, _: Place, asked: JournalQuery) -> dict[str, Any]:
    return journal_listed(await operations.journal(is_refused=asked.is_refused, limit=asked.limit))


async def _observed(operations: Operations, _: Place, asked: ObservedQuery) -> dict[str, Any]:
    try:
        return {"routes": [each.document for each in await operations.observed(asked.route)]}
    except NoSuch as error:
        raise Fault(404, error.code, f"{error}.") from None


LOOKS: Final[tuple[Look, ...]] = (
    Look("/operations", ListQuery, _list),
    Look("/operations/{id}", None, _inspect),
    Look("/paused", None, _paused),
    Look("/sinks", None, _sinks),
    Look("/events", EventsQuery, _events),
    Look("/memory", None, _memory),
    Look("/journal", JournalQuery, _journal),
    Look("/observed", ObservedQuery, _observed),
)
