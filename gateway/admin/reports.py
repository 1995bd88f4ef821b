"""How operators are told of times, and of pauses, sinks, their events, observed routes and the store's memory: as JSON
values, and these as text.

What a sink answered is shown here alone: it may hold a part of a response. The numbers of observed routes are those of
the last day. A gateway that was just switched to `enforce` remembers none of them: an observed key is a new key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from gateway.core.operation import MICROSECONDS, Audit, Record, microseconds
from gateway.store.memory.epoch import Amnesia, amnesia_of, memo_of
from gateway.store.operations import Agreements, KeptEvent, ObservedCount, Pause, PauseAudit, Publications, SinkBacklog

Report = dict[str, Any]

# So long a publication takes at most, and the search for it.
_BEHIND_SECONDS: Final = 60.0
# Of more events of a sink than these, waiting or dead, no more are looked through for those of one operation.
_EVENTS_SEARCHED_MAX: Final = 500

NO_MEMORY: Final = "Enforcing starts with no memory: an observed key is a new key, and its next repeat runs once more."
"""What an operator has to know before the switch."""


# -- times and texts ---------------------------------------------------------------------------------------------------


def moment(at_us: int) -> str:
    """A store's time in RFC 3339, to the second."""
    return datetime.fromtimestamp(at_us // MICROSECONDS, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def span(duration_us: int) -> str:
    """A duration in its two largest units: `3d 4h`, `12m 5s`, `0s`."""
    seconds = max(0, duration_us) // MICROSECONDS
    parts: list[str] = []
    for unit, factor in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= factor or parts:
            parts.append(f"{seconds // factor}{unit}")
            seconds %= factor
    parts.append(f"{seconds}s")
    return " ".join(part for part in parts[:2] if part[0] != "0" or len(parts) == 1)


def ago(at_us: int, now_us: int) -> str:
    return f"{span(now_us - at_us)} ago" if at_us <= now_us else f"in {span(at_us - now_us)}"


def at_ago(at_us: int, now_us: int) -> str:
    return f"{moment(at_us)} ({ago(at_us, now_us)})"


def lasted(duration_us: int) -> str:
    """A duration, to the millisecond if it is short."""
    if duration_us < MICROSECONDS:
        return f"{max(0, duration_us) // 1000} ms"
    return f"{duration_us / MICROSECONDS:.1f} s" if duration_us < 60 * MICROSECONDS else span(duration_us)


def printable(text: str) -> str:
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def present(about: Mapping[str, Any]) -> Report:
    return {name: value for name, value in about.items() if value is not None}


def _because(separator: str, about: Report) -> str:
    return f"{separator}{printable(about['last_error'])}" if about["last_error"] else ""


# -- pauses -----------------------------------------------------------------------------------------------------------


def named(operation: str, routes: Sequence[str]) -> str:
    """An operation name, with the routes that have it."""
    if tuple(routes) == (operation,):
        return operation
    return f"{operation} ({', '.join(routes) if routes else 'no route of this configuration'})"


def paused(operation: str, routes: Sequence[str], pause: Pause) -> Report:
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
    return [
        {
            "name": name,
            "kind": kinds.get(name),
            "state": _state(kinds.get(name), backlog),
            "pending": backlog.pending,
            "oldest_seconds": round(backlog.oldest_seconds, 3),
            "dead": backlog.dead,
            "last_error": backlog.suspended_why or backlog.last_error or None,
        }
        for name in (*kinds, *sorted(backlogs.keys() - kinds.keys()))
        for backlog in (backlogs.get(name, SinkBacklog()),)
    ]


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
    waits = f"{sink['pending']} wait{oldest}, {sink['dead']} dead"
    return f"{sink['name']}  {sink['kind'] or '-'}  {sink['state']}, {waits}{_because(': ', sink)}"


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
    words = [
        f"{each['type']} of {each['time']}: {each['state']}, {each['tries']} tries{_because(': ', each)}"
        for each in of_sink["events"]
    ]
    if not of_sink["is_whole"]:
        words.append(f"more wait or are dead than the {_EVENTS_SEARCHED_MAX} of each that were looked through")
    return "; ".join(words) or "it has received what it was to get"


def event_line(event: Report) -> str:
    about = "  ".join(event[name] for name in ("id", "type", "operation_id", "time"))
    return f"{about}  {event['tries']} tries{_because('  ', event)}"


# -- observed routes --------------------------------------------------------------------------------------------------


def observed(name: str, mode: str | None, share: float, counts: Sequence[ObservedCount]) -> Report:
    """What was observed of one route. `mode` is `enforce`, `observe`, or None where the configuration has it no more;
    `share` is the enforced share of its keys. `counts` are by verdict, with examples of what would be refused."""
    requests, repeats, rekeyed = (
        sum(getattr(each, name) for each in counts) for name in ("number", "repeats", "rekeyed")
    )
    refused = sum(each.number for each in counts if each.is_refused)
    verdicts = [
        {
            "verdict": each.verdict.value,
            "refused": each.is_refused,
            "requests": each.number,
            "share": round(each.number / requests, 6),
            "operations": [str(operation_id) for operation_id in each.operations],
        }
        for each in sorted(counts, key=lambda each: (not each.is_refused, -each.number))
    ]
    readiness = "Nothing was observed in the last 24 hours."
    if requests:
        more = f" {rekeyed:,} came under a new key each: fix that client first." if rekeyed else ""
        would = f"{refused:,} of {requests:,} would have been refused"
        readiness = f"{would}; {repeats:,} would not have run again.{more}"
    about = {"requests": requests, "refused": refused, "repeats": repeats, "rekeyed": rekeyed, "verdicts": verdicts}
    note = NO_MEMORY if mode == "observe" else None
    return {"route": name, "mode": mode, "enforce_share": share, **about, "readiness": readiness, "note": note}


def observed_lines(route: Report) -> Iterator[str]:
    mode = {None: "no longer configured", "observe": "observed", "enforce": "enforced"}[route["mode"]]
    share = route["enforce_share"]
    enforced = f", {share:.4g} of its keys enforced" if 0 < share < 1 else ""
    yield f"{route['route']} ({mode}{enforced}): {route['readiness']}"
    for each in route["verdicts"]:
        refused, number = ", refused" if each["refused"] else "", each["requests"]
        yield f"  {each['verdict'].ljust(20)} {number:>10,}  {number / route['requests']:7.2%}{refused}"
        yield from (f"      {operation_id}" for operation_id in each["operations"])


# -- the store's memory ------------------------------------------------------------------------------------------------
#
# To accept its loss is to trust the store again: it grants keys that it does not have, also those that were used
# before.


@dataclass(frozen=True, slots=True)
class MemoryState:
    """What the store knows of its memory, as of `now_us` of its clock. `is_unproven`: a standby was promoted, and the
    gateways have yet to find out whether it lost anything."""

    amnesia: Amnesia
    now_us: int
    is_unproven: bool = False

    @property
    def is_lost(self) -> bool:
        """Whether requests with keys that the store does not have are refused."""
        return self.now_us < self.amnesia.until_us

    def refuses(self, record: Record | None) -> bool:
        """Whether the loss makes a first request with the key of this record, None if absent, be refused."""
        return self.amnesia.refuses(record, self.now_us)

    @property
    def text(self) -> str:
        return self.in_words(is_page=False)

    @property
    def document(self) -> Report:
        return {"is_lost": self.is_lost, "detail": self.text}

    def in_words(self, *, is_page: bool) -> str:
        """The same, for a reader with a page before them or with a terminal."""
        amnesia = self.amnesia
        if self.is_unproven:
            return (
                "A standby of the store was promoted, and no gateway has accepted that yet. They wait for each other "
                "for store.promotion_wait; their logs name who has not spoken. Then it counts as a lost memory."
            )
        if self.is_lost:
            accept = "accept the loss" if is_page else "memory --accept-loss --why TEXT"
            return (
                f"The store lost its memory: {amnesia.why}. First requests with a key that it does not have are "
                f"refused until {moment(amnesia.until_us)}, for {span(amnesia.until_us - self.now_us)} more, because "
                "the key may have been used. If it is the right store, and keys that it lost may run again: "
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
