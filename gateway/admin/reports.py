"""What operators see of pauses, sinks, their events, and observed routes: as JSON values, and these as text. Pure.

What a sink answered is shown here alone: it may hold a part of a response. The numbers of observed routes are those of
the last day. A gateway that was just switched to `enforce` remembers none of them: an observed key is a new key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

from gateway.admin.resolution import NoSuch, Policies, named
from gateway.admin.view import moment, printable, span
from gateway.core.operation import Audit, Record, microseconds
from gateway.store.memory.epoch import Amnesia, amnesia_of, memo_of
from gateway.store.operations import (
    Agreements,
    KeptEvent,
    ObservationStore,
    ObservedCount,
    Pause,
    PauseAudit,
    Publications,
    SinkBacklog,
)

Report = dict[str, Any]

# So long a publication takes at most, and the search for it.
_BEHIND_SECONDS: Final = 60.0
# Of more events of a sink than these, waiting or dead, no more are looked through for those of one operation.
_EVENTS_SEARCHED_MAX: Final = 500

NO_MEMORY: Final = "Enforcing starts with no memory: an observed key is a new key, and its next repeat runs once more."
"""What an operator has to know before the switch."""


# -- pauses -----------------------------------------------------------------------------------------------------------


def paused(operation: str, routes: Sequence[str], pause: Pause) -> Report:
    """An operation name that is paused, with the routes that have it."""
    since = moment(pause.since_us)
    return {"operation": operation, "routes": routes, "since": since, "by": pause.who, "why": pause.why}


def paused_line(pause: Report) -> str:
    about = named(pause["operation"], pause["routes"])
    return f"{about}, since {pause['since']}, by {printable(pause['by'])}: {printable(pause['why'])}"


def pause_audit(entry: PauseAudit) -> Report:
    at, event = moment(entry.at_us), "resume" if entry.is_resumed else "pause"
    return {"at": at, "operation": entry.operation, "event": event, "by": entry.who, "why": entry.why}


def pause_audit_line(entry: Report) -> str:
    said = f"{printable(entry['by'])}: {printable(entry['why'])}"
    return f"  {entry['at']}  {entry['operation']} {entry['event']}d by {said}"


# -- sinks and their events -------------------------------------------------------------------------------------------


def sinks(kinds: Mapping[str, str], backlogs: Mapping[str, SinkBacklog]) -> list[Report]:
    """Those of the configuration (kinds by name) first, and then those that have events left."""
    removed = sorted(backlogs.keys() - kinds.keys())
    return [_sink(name, kinds.get(name), backlogs.get(name, SinkBacklog())) for name in (*kinds, *removed)]


def _sink(name: str, kind: str | None, backlog: SinkBacklog) -> Report:
    """`kind` is None where the configuration has it no more."""
    return {
        "name": name,
        "kind": kind,
        "state": _state(kind, backlog),
        "pending": backlog.pending,
        "oldest_seconds": round(backlog.oldest_seconds, 3),
        "dead": backlog.dead,
        "last_error": backlog.suspended_why or backlog.last_error or None,
    }


def _state(kind: str | None, backlog: SinkBacklog) -> str:
    """What waits is what all gateways know of a sink. One that failed and is not through yet shows that it fails. What
    nobody tried for long shows that nobody publishes to it, or not as fast as events come."""
    if backlog.suspended_why is not None:
        return "suspended"
    if kind is None:
        return "removed"
    if backlog.last_error:
        return "failing"
    return "behind" if backlog.oldest_seconds > _BEHIND_SECONDS else "active"


def sink_line(sink: Report) -> str:
    oldest = f", oldest {span(microseconds(sink['oldest_seconds']))}" if sink["pending"] else ""
    return (
        f"{sink['name']}  {sink['kind'] or '-'}  {sink['state']}, {sink['pending']} wait{oldest}, {sink['dead']} dead"
        f"{_because(': ', sink)}"
    )


def event(kept: KeptEvent) -> Report:
    return {
        "id": kept.event_id,
        "sink": kept.sink,
        "type": kept.type.value,
        "operation_id": str(kept.operation_id),
        "time": moment(kept.at_us),
        "state": "dead" if kept.is_dead else "waiting",
        "tries": kept.tries,
        "last_error": kept.why or None,
    }


async def events_of(store: Publications, service: str, sinks: Iterable[str], operation_id: UUID) -> tuple[Report, ...]:
    """What each of these sinks has yet to receive of an operation; an event that was published is gone. Not `is_whole`
    where the sink has so many events that not all were looked through."""
    found = []
    for sink in sorted(sinks):
        events, is_whole = list[Report](), True
        for is_dead in (False, True):
            page = await store.find_events(service, sink, is_dead=is_dead, after=None, limit=_EVENTS_SEARCHED_MAX)
            is_whole = is_whole and len(page) < _EVENTS_SEARCHED_MAX
            events += (event(each) for each in page if each.operation_id == operation_id)
        found.append({"sink": sink, "events": events, "is_whole": is_whole})
    return tuple(found)


def events_text(of_sink: Report) -> str:
    """What a sink has yet to receive, in words."""
    told = [
        f"{each['type']} of {each['time']}: {each['state']}, {each['tries']} tries{_because(': ', each)}"
        for each in of_sink["events"]
    ]
    if not of_sink["is_whole"]:
        told.append(f"more wait or are dead than the {_EVENTS_SEARCHED_MAX} of each that were looked through")
    return "; ".join(told) or "it has received what it was to get"


def event_line(event: Report) -> str:
    about = "  ".join(event[name] for name in ("id", "type", "operation_id", "time"))
    return f"{about}  {event['tries']} tries{_because('  ', event)}"


def _because(separator: str, about: Report) -> str:
    return f"{separator}{printable(about['last_error'])}" if about["last_error"] else ""


# -- observed routes --------------------------------------------------------------------------------------------------


def _observed(name: str, mode: str | None, share: float, counts: Sequence[ObservedCount]) -> Report:
    """What was observed of one route. `mode` is `enforce`, `observe`, or None where the configuration has it no more;
    `share` is the enforced share of its keys. `counts` are by verdict, with examples of what would be refused."""
    about = {
        "requests": sum(each.number for each in counts),
        "refused": sum(each.number for each in counts if each.is_refused),
        "repeats": sum(each.repeats for each in counts),
        "rekeyed": sum(each.rekeyed for each in counts),
    }
    verdicts = [
        {
            "verdict": each.verdict.value,
            "refused": each.is_refused,
            "requests": each.number,
            "share": round(each.number / about["requests"], 6),
            "operations": [str(operation_id) for operation_id in each.operations],
        }
        for each in sorted(counts, key=lambda each: (not each.is_refused, -each.number))
    ]
    route = {"route": name, "mode": mode, "enforce_share": share, **about, "verdicts": verdicts}
    return {**route, "readiness": _readiness(**about), "note": NO_MEMORY if mode == "observe" else None}


def _readiness(requests: int, refused: int, repeats: int, rekeyed: int) -> str:
    """Whether it is ready to be enforced, in a sentence."""
    if not requests:
        return "Nothing was observed in the last 24 hours."
    more = f" {rekeyed:,} came under a new key each: fix that client first." if rekeyed else ""
    return f"{refused:,} of {requests:,} would have been refused; {repeats:,} would not have run again.{more}"


def observed_lines(route: Report) -> Iterator[str]:
    mode = {None: "no longer configured", "observe": "observed", "enforce": "enforced"}[route["mode"]]
    share = route["enforce_share"]
    enforced = f", {share:.4g} of its keys enforced" if 0 < share < 1 else ""
    yield f"{route['route']} ({mode}{enforced}): {route['readiness']}"
    for each in route["verdicts"]:
        refused, number = ", refused" if each["refused"] else "", each["requests"]
        yield f"  {each['verdict'].ljust(20)} {number:>10,}  {number / route['requests']:7.2%}{refused}"
        for operation_id in each["operations"]:
            yield f"      {operation_id}"


async def observed(store: ObservationStore, policies: Policies, route: str | None = None) -> list[Report]:
    """The observed routes, and those that were in the last day, by name. Raises as the store's verbs, and
    `NoSuch` for a route that neither the configuration nor the store knows."""
    configured = {each.name: each for each in policies.routes}
    by_route: dict[str, list[ObservedCount]] = {
        name: [] for name, each in configured.items() if each.mode == "observe" and route in (None, name)
    }
    for count in await store.count_observed(policies.service, route):
        by_route.setdefault(count.route, []).append(count)
    if route is not None and route not in by_route:
        if route not in configured:
            raise NoSuch("unknown", f"there is no route {route}; there are {', '.join(sorted(configured))}")
        by_route[route] = []
    found = []
    for name, counts in sorted(by_route.items()):
        policy = configured.get(name)
        mode, share = (None, 0.0) if policy is None else (policy.mode, policy.enforce_share)
        found.append(_observed(name, mode, share, counts))
    return found


# -- the store's memory ------------------------------------------------------------------------------------------------
#
# To accept its loss is to trust the store again: it grants keys that it does not have, also those that were used
# before.


@dataclass(frozen=True, slots=True)
class MemoryState:
    """What the store knows of its memory, as of `now_us` of its clock."""

    amnesia: Amnesia
    now_us: int
    is_unproven: bool = False
    """A standby was promoted, and the gateways have yet to find out whether it lost anything."""

    @property
    def is_lost(self) -> bool:
        """Whether requests with keys that the store does not have are refused."""
        return self.now_us < self.amnesia.until_us

    def refuses(self, record: Record | None) -> bool:
        """Whether the loss makes a first request with the key of this record, None if absent, be refused."""
        return self.amnesia.refuses(record, self.now_us)

    @property
    def text(self) -> str:
        return self.told(is_page=False)

    @property
    def document(self) -> dict[str, Any]:
        return {"is_lost": self.is_lost, "detail": self.text}

    def told(self, *, is_page: bool) -> str:
        """The same, for a reader with a page before them or with a terminal."""
        amnesia = self.amnesia
        if self.is_unproven:
            return (
                "A standby of the store was promoted, and no gateway has accepted that yet. They wait for each other "
                "for store.promotion_wait; their logs name who has not spoken. Then it counts as a lost memory."
            )
        if self.is_lost:
            left = span(amnesia.until_us - self.now_us)
            accept = "accept the loss" if is_page else "memory --accept-loss --why TEXT"
            return (
                f"The store lost its memory: {amnesia.why}. First requests with a key that it does not have are "
                f"refused until {moment(amnesia.until_us)}, for {left} more, because the key may have been used. "
                "If it is the right store, and keys that it lost may run again: "
                f"{accept}."
            )
        if amnesia.by:
            return f"The store lost its memory once ({amnesia.why}); {amnesia.by} accepted the loss."
        if amnesia.why:
            return f"The store lost its memory once ({amnesia.why}); the time for which keys are remembered is over."
        promoted = f" The last promotion was accepted: {amnesia.promotion}." if amnesia.promotion else ""
        return f"Nothing is known to be lost.{promoted}"


async def memory_state(store: Agreements) -> MemoryState:
    """The state of the store's memory. Raises as the store's verbs, and `StartRefused` for a memo from the future."""
    epoch = await store.check_memory()
    return MemoryState(amnesia_of(epoch), epoch.now_us, bool(epoch.parent))


async def accept_loss(store: Agreements, audit: Audit) -> MemoryState:
    """Trust the store again. Repeatable; changes nothing where nothing is refused. Raises as `memory_state`."""
    state = await memory_state(store)
    if not state.is_lost:
        return state
    accepted = replace(state.amnesia, until_us=0, by=f"{audit.who} ({audit.why})")
    await store.begin_epoch(memo_of(accepted), accepted.beyond)
    return await memory_state(store)
