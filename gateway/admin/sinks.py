"""What operators see and decide of sinks and their events: as values and as texts. Pure.

What a sink answered is shown here alone: it may hold a part of a response.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.admin.view import moment, printable, span
from gateway.core.operation import microseconds
from gateway.store.operations import KeptEvent, SinkBacklog

# So long a publication takes at most, and the search for it.
_BEHIND_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class SinkView:
    """A sink, configured or with events that are left. `kind` is None where the configuration has it no more."""

    name: str
    kind: str | None
    backlog: SinkBacklog

    @property
    def state(self) -> str:
        """`active`, `failing`, `behind` or `suspended`; `removed` where the configuration has it no more.

        What waits is what all gateways know of a sink. One that failed and is not through yet shows that it fails. What
        nobody tried for long shows that nobody publishes to it, or not as fast as events come.
        """
        if self.backlog.suspended_why is not None:
            return "suspended"
        if self.kind is None:
            return "removed"
        if self.backlog.last_error:
            return "failing"
        return "behind" if self.backlog.oldest_seconds > _BEHIND_SECONDS else "active"

    @property
    def why(self) -> str:
        """Why it is not active; empty where it is."""
        return self.backlog.suspended_why or self.backlog.last_error

    @property
    def document(self) -> dict[str, Any]:
        """The sink as JSON values."""
        backlog = self.backlog
        return {
            "name": self.name,
            "kind": self.kind,
            "state": self.state,
            "pending": backlog.pending,
            "oldest_seconds": round(backlog.oldest_seconds, 3),
            "dead": backlog.dead,
            "last_error": self.why or None,
        }

    def __str__(self) -> str:
        backlog = self.backlog
        oldest = f", oldest {span(microseconds(backlog.oldest_seconds))}" if backlog.pending else ""
        why = f": {printable(self.why)}" if self.why else ""
        return (
            f"{self.name}  {self.kind or '-'}  {self.state}, {backlog.pending} wait{oldest}, {backlog.dead} dead{why}"
        )


def views(kinds: Mapping[str, str], backlogs: Mapping[str, SinkBacklog]) -> list[SinkView]:
    """All sinks, those of the configuration (kinds by name) first."""
    removed = sorted(backlogs.keys() - kinds.keys())
    return [SinkView(name, kinds.get(name), backlogs.get(name, SinkBacklog())) for name in (*kinds, *removed)]


def event_document(event: KeptEvent) -> dict[str, Any]:
    """An event that was not published, as JSON values."""
    return {
        "id": event.event_id,
        "sink": event.sink,
        "type": event.type.value,
        "operation_id": str(event.operation_id),
        "time": moment(event.at_us),
        "state": "dead" if event.is_dead else "waiting",
        "tries": event.tries,
        "last_error": event.why or None,
    }


def event_line(event: KeptEvent) -> str:
    """An event that was not published, as a line."""
    why = f"  {printable(event.why)}" if event.why else ""
    return (
        f"{event.event_id}  {event.type.value}  {event.operation_id}  {moment(event.at_us)}  {event.tries} tries{why}"
    )
