"""Lanes: operations that are delivered in the order of their acceptance, one at a time.

A lane is one ordering value of one scope under one operation name. Its *line* consists of the operations that others
have to wait for: `rank` says where each one stands, and the lowest is the *head*. Only the head may be dispatched, and
only where it is accepted. So a lane waits while its head is under way, stops where the head is in doubt or a dead
letter (`stopped_us`), and goes on once the head is completed, withdrawn or disproved.

A store gives out numbers and changes the line under a lock of the lane, so numbers are in the order of the commits. In
the change that moves a record, it marks the head as not behind, and every other one as behind.

What keeps the order: retries, `pause`, `reinstate`, `takeover`, lapses, a late `complete`, and an outcome that waited
in a journal: none of them lets a later operation pass. A requeued dead letter takes its old place. What gives it up: a
dead letter that does not stop its lane is passed, and, requeued, is next of what is still waiting. An operation that
was withdrawn or disproved leaves the line; accepted again, it is the last.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gateway.core.framing import digest
from gateway.core.operation import Record, Snapshot, State, in_doubt_since_us

_UNDER_WAY: Final = (State.CLAIMED, State.IN_DOUBT)


def lane_of(service: str, operation: str, scope_digest: bytes, value: bytes) -> bytes:
    """The lane of an ordering value; `value` is its digest."""
    return digest(b"lane", service.encode(), operation.encode(), scope_digest, value)


def rank(record: Record) -> int | None:
    """Where the operation stands in the line of its lane, lowest first; None where no other one waits for it.

    What is under way or in doubt is before everything else, also before what was requeued with a lower number.
    """
    delivery = record.delivery
    if delivery is None or delivery.lane is None:
        return None
    if record.state in _UNDER_WAY:
        return 0
    return delivery.lane_number if record.state is State.ACCEPTED or delivery.stops_lane else None


def stopped_us(record: Record) -> int | None:
    """Since when the operation, as the head of its lane, keeps it stopped until somebody decides; None if it does not.

    Of one in doubt, that is when its doubt began.
    """
    delivery = record.delivery
    if delivery is None or delivery.lane is None:
        return None
    if record.state is State.IN_DOUBT:
        return in_doubt_since_us(record)
    return delivery.since_us if record.state is State.DEAD_LETTER and delivery.stops_lane else None


def moved_lane(before: Record | None, after: Record | None) -> bytes | None:
    """The lane whose line the change of a record moves; None where it moves none."""
    was, now = _place(before), _place(after)
    if was == now:
        return None
    return now[0] or was[0]


def _place(record: Record | None) -> tuple[bytes | None, int | None, bool]:
    if record is None or record.delivery is None:
        return None, None, False
    return record.delivery.lane, rank(record), record.delivery.is_behind


def with_turn(snapshot: Snapshot, *, is_behind: bool) -> Snapshot:
    """The snapshot of a record of a lane, with what the store found about its turn."""
    record = snapshot.record
    if record is None or record.delivery is None or record.delivery.is_behind is is_behind:
        return snapshot
    return replace(snapshot, record=replace(record, delivery=replace(record.delivery, is_behind=is_behind)))
