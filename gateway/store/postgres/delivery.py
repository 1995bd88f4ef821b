"""What workers and operators read of kept requests in Postgres, and the pauses of operation names.

It changes no record, except that the end of a pause moves the end of what it held up. It owns how much one statement
may read or lock.

Theory of operation
-------------------
*What is due* is read from an index that holds what is accepted and nothing else. Of each route no more is read than may
be returned, and of what the configuration does not deliver, at most a row of each of its routes.

*The backlog* is counted by the same indexes up to `BACKLOG_COUNT_MAX` rows. Beyond that it is estimated from a sample
of the table's pages, so a million rows cost no more than that. A large count is kept for a second or, where it took
long, for a few; it says how old it is.

*A pause* does not count against the time that an operation has. For that, `delivery.credited_us` notes up to when
pauses are in `deliver_until_us`. Sweeps add an hour to what would end within one, and `resume` adds the rest to
everything: the length of the pause less what was credited, which may take back a part of the last hour. So all of it
may be repeated. While it does so, piece by piece, sweeps add a minute to what would end within one, because it may have
been there.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from gateway.core.delivery import Delivering
from gateway.core.lifecycle import settle
from gateway.core.operation import MICROSECONDS, Audit, SealedRequest, Snapshot, State
from gateway.store.base import Unreadable
from gateway.store.operations import AUDITS_MAX, BACKLOG_COUNT_MAX, Backlog, Due, Pause, PauseAudit, RouteBacklog
from gateway.store.postgres.rows import WIDTH, record_of
from gateway.store.postgres.statements import load

# Rows whose end one statement of `resume` may move: it holds their locks. With a thousand, Postgres 18 reads a table of
# twenty thousand as a whole.
_CREDITED_MAX: Final = 500
# Pages of the table that an estimate reads, and their size in bytes.
_SAMPLED_PAGES: Final = 2_000
_PAGE_BYTES: Final = 8_192
# Rows beside the counts of what waits: a count of stopped lanes, and a pause.
_STOPPED: Final = "stopped"
_PAUSE_ROW: Final = "paused"
# Of more rows than this, the count is kept: for so many times as long as it took, within these seconds.
_COUNTED_ANEW_MAX: Final = 1_000
_KEPT_TIMES: Final = 50
_KEPT_SECONDS_MIN: Final = 1.0
_KEPT_SECONDS_MAX: Final = 5.0

_FIND_DUE: Final = load("find_due")
_READ_KEPT: Final = load("read_kept")
_COUNT_PENDING: Final = load("count_pending")
_COUNT_BACKLOG: Final = load("count_backlog")
_SAMPLE_BACKLOG: Final = load("sample_backlog")
_DELIVERY_BYTES: Final = load("delivery_bytes")
_PAUSED: Final = load("paused")
_PAUSE: Final = load("pause")
_PAUSE_AUDITS: Final = load("pause_audits")
_MOVE_PAUSES: Final = load("move_pauses")
_RESUME_PAUSE: Final = load("resume_pause")
_CREDIT_PAUSE: Final = load("credit_pause")
_RESUME: Final = load("resume")


@dataclass
class _Count:
    """The undelivered operations of one route, as they are added up."""

    accepted: float = 0
    request_bytes: float = 0
    oldest_us: int | None = None
    dead_letters: dict[str, float] = field(default_factory=dict)
    lanes_stopped: int = 0
    stopped_seconds: float = 0.0


class Deliveries:
    """These verbs of `ManagedStore`; each statement is its own transaction."""

    def __init__(self, fetch: Callable[..., Awaitable[Sequence[Any]]], clock_us: Callable[[], int | None]) -> None:
        self._fetch = fetch
        self._clock_us = clock_us
        # The last large count of each service: when it began, and until when it is used, on the event loop's clock.
        self._counted: dict[str, tuple[float, float, dict[str, RouteBacklog]]] = {}

    async def find_due(self, service: str, delivering: Delivering, limit: int) -> Due:
        found = []
        accepting = sorted(delivering.accepting)
        which = [route for route, _ in accepting], [operation for _, operation in accepting]
        others = sorted(delivering.alone), sorted(delivering.names)
        rows = await self._fetch(_FIND_DUE, self._clock_us(), service, limit, *which, *others)
        for now_us, _, *columns in rows:
            # A newer program wrote what is unreadable, and delivers it.
            with suppress(Unreadable):
                if (record := record_of(columns[:WIDTH], columns[WIDTH:])) is not None:
                    found.append(Snapshot(settle(record, now_us), now_us))
        return Due(found, frozenset(rows[0]["paused"]))

    async def read_kept(self, operation_id: UUID) -> SealedRequest | None:
        rows = await self._fetch(_READ_KEPT, operation_id)
        return SealedRequest(*rows[0]) if rows else None

    async def count_pending(self, service: str, route: str, scope_digest: bytes, limit: int) -> int:
        which = (service, route, scope_digest, limit)
        return int((await self._fetch(_COUNT_PENDING, self._clock_us(), *which))[0]["pending"])

    async def backlog(self, service: str) -> Backlog:
        clock = asyncio.get_running_loop().time
        now = clock()
        began, until, waiting = self._counted.get(service, (now, now, {}))
        if now < until:
            paused = {row[0]: Pause(*row[1:]) for row in await self._fetch(_PAUSED, service)}
            return Backlog(waiting, paused, now - began)
        counted, paused = await self._count_backlog(service)
        waiting = _by_route(counted)
        if sum(row["found"] for row in counted) > _COUNTED_ANEW_MAX:
            ended = clock()
            kept_seconds = min(max(_KEPT_TIMES * (ended - now), _KEPT_SECONDS_MIN), _KEPT_SECONDS_MAX)
            # Another count may have begun later, and ended sooner.
            if self._counted.get(service, (now,))[0] <= now:
                self._counted[service] = (now, ended + kept_seconds, waiting)
        return Backlog(waiting, paused)

    async def _count_backlog(self, service: str) -> tuple[list[dict[str, Any]], dict[str, Pause]]:
        rows = [dict(row) for row in await self._fetch(_COUNT_BACKLOG, self._clock_us(), service, BACKLOG_COUNT_MAX)]
        counted = [row for row in rows if row["waits"] != _PAUSE_ROW]
        paused = {
            row["route"]: Pause(row["oldest_us"], row["who"], row["dead_reason"])
            for row in rows
            if row["waits"] == _PAUSE_ROW
        }
        read = Counter[str]()
        for row in counted:
            read[row["waits"]] += row["found"]
        if max(read[State.ACCEPTED], read[State.DEAD_LETTER]) < BACKLOG_COUNT_MAX:
            return counted, paused
        pages = (await self._fetch(_DELIVERY_BYTES))[0]["size_bytes"] / _PAGE_BYTES
        share = min(1.0, _SAMPLED_PAGES / max(pages, 1.0))
        sampled = [dict(row) for row in await self._fetch(_SAMPLE_BACKLOG, self._clock_us(), service, 100 * share)]
        for row in sampled:
            row["found"] /= share
            row["request_bytes"] /= share
        # A sample may miss the oldest. What was counted of these has no part in the sums but that.
        sampled += [row if row["waits"] == _STOPPED else {**row, "found": 0, "request_bytes": 0} for row in counted]
        return sampled, paused

    async def pause(self, service: str, operation: str, audit: Audit) -> bool:
        return bool(await self._fetch(_PAUSE, self._clock_us(), service, operation, audit.who, audit.why))

    async def pause_audits(self, service: str) -> list[PauseAudit]:
        return [PauseAudit(*row) for row in await self._fetch(_PAUSE_AUDITS, service, AUDITS_MAX)]

    async def resume(self, service: str, operation: str, audit: Audit) -> bool:
        """Credit the pause, and end it afterwards. What fails in between is still paused; repeat it."""
        await self._fetch(_MOVE_PAUSES, self._clock_us())
        begin: UUID | None = UUID(int=0)
        while begin is not None:
            # On its own: it waits for sweeps, and later ones see it before anything is credited.
            if not await self._fetch(_RESUME_PAUSE, self._clock_us(), service, operation):
                return False
            which = (service, operation, begin, _CREDITED_MAX)
            (row,) = await self._fetch(_CREDIT_PAUSE, self._clock_us(), *which)
            begin = None if row["last_id"] is None else UUID(int=row["last_id"].int + 1)
        return bool(await self._fetch(_RESUME, self._clock_us(), service, operation, audit.who, audit.why))


def _by_route(counted: Sequence[dict[str, Any]]) -> dict[str, RouteBacklog]:
    counts: dict[str, _Count] = {}
    now_us = 0
    for row in counted:
        now_us, count = row["now_us"], counts.setdefault(row["route"], _Count())
        if row["waits"] == _STOPPED:
            count.lanes_stopped = row["found"]
            count.stopped_seconds = max(now_us - row["oldest_us"], 0) / MICROSECONDS
            continue
        if (reason := row["dead_reason"]) is not None:
            count.dead_letters[reason] = count.dead_letters.get(reason, 0) + row["found"]
            continue
        count.accepted += row["found"]
        count.request_bytes += row["request_bytes"]
        oldest_us = row["oldest_us"]
        count.oldest_us = oldest_us if count.oldest_us is None else min(count.oldest_us, oldest_us)
    return {
        route: RouteBacklog(
            round(count.accepted),
            round(count.request_bytes),
            0.0 if count.oldest_us is None else max(now_us - count.oldest_us, 0) / MICROSECONDS,
            {reason: round(found) for reason, found in count.dead_letters.items()},
            count.lanes_stopped,
            count.stopped_seconds,
        )
        for route, count in counts.items()
    }
