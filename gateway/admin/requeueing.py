"""Requeue many dead letters: those that match a filter when it begins, up to a limit, at a rate.

The operations are listed first, and then requeued one by one, each as a single requeue would be: fenced, audited, and
not twice by the same person for the same reason. So it may be interrupted and given again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

from gateway.admin.operations import PAGE_SIZE_MAX, Operations
from gateway.admin.resolution import Changed, Refusal, Refused
from gateway.core.operation import Audit, Snapshot, State
from gateway.store.base import Unreadable
from gateway.store.operations import Query

# Matches beyond the limit are counted up to this.
_COUNT_MAX: Final = 100_000


def dead_letters(routes: frozenset[str] | None, reason: str | None, age_us: int, limit: int) -> Query:
    """At most `limit` dead letters: of these routes (None: all), for this reason (None: any), dead for `age_us`."""
    return Query(frozenset((State.DEAD_LETTER,)), routes, age_us, reason=reason, limit=limit)


@dataclass(slots=True)
class Requeueing:
    """A bulk requeue. The counts hold at any time; one that is under way, or ended unknown, counts as left."""

    operation_ids: list[UUID]
    rate: int
    beyond: int = 0
    requeued: int = 0
    skipped: int = 0

    @property
    def left(self) -> int:
        """Matches that were not tried, those beyond the limit included."""
        return len(self.operation_ids) - self.requeued - self.skipped + self.beyond

    def __str__(self) -> str:
        return f"{self.requeued} requeued, {self.skipped} skipped, {self.left} left"

    @property
    def text(self) -> str:
        """The same as a sentence."""
        return f"{self}."

    @property
    def document(self) -> dict[str, Any]:
        """The same with its counts, as JSON values."""
        return {"detail": self.text, **self.counts}

    @property
    def counts(self) -> dict[str, int]:
        """The same as JSON values."""
        return {"requeued": self.requeued, "skipped": self.skipped, "left": self.left}

    async def run(
        self,
        operations: Operations,
        audit: Audit,
        *,
        seconds_max: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> AsyncIterator[tuple[UUID, Changed | Refused]]:
        """Requeue them in order, and yield what became of each; none begins later than `seconds_max` from now.

        Raises as `Operations.requeue`, except for a record that is unreadable: that is skipped.
        """
        started = due = clock()
        for operation_id in self.operation_ids:
            if due > clock():
                await sleep(due - clock())
            now = clock()
            if seconds_max is not None and now - started >= seconds_max:
                return
            # Counted from the later one, so that a slow store is not followed by a burst.
            due = max(due, now) + 1 / self.rate
            outcome = await _requeue(operations, operation_id, audit)
            if isinstance(outcome, Changed) and not outcome.is_repeat:
                self.requeued += 1
            else:
                self.skipped += 1
            yield operation_id, outcome


async def _requeue(operations: Operations, operation_id: UUID, audit: Audit) -> Changed | Refused:
    try:
        return await operations.requeue(operation_id, audit)
    except Unreadable as error:
        return Refused(Refusal.STATE, f"The record cannot be read: {error}", Snapshot(None, 0))


async def listed(operations: Operations, wanted: Query, rate: int) -> Requeueing:
    """The requeue of the dead letters that match now, `rate` a second. Raises `NotApplied`."""
    found = Requeueing([], rate)
    async for page in operations.pages(replace(wanted, limit=PAGE_SIZE_MAX)):
        for snapshot in page:
            record = snapshot.record
            if record is None or record.delivery is None or not operations.policies.is_own(record):
                continue
            # The query's age is since the acceptance.
            if record.delivery.since_us > snapshot.now_us - wanted.age_us:
                continue
            if len(found.operation_ids) < wanted.limit:
                found.operation_ids.append(record.identity.operation_id)
            else:
                found.beyond += 1
        if found.beyond >= _COUNT_MAX:
            break
    return found
