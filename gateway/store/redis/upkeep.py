"""The sweep of records, audits and witnesses.

It owns how much one exchange may change. Whoever has not seen a change sweeps it again, so that nothing is waited for:
neither disks nor replicas.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final
from uuid import UUID

from gateway.core.lifecycle import written_down
from gateway.core.operation import Record, State
from gateway.store.base import EpochChanged, StoreError
from gateway.store.operations import AUDIT_KEEP_US, LAPSES_NAMED_MAX, WITNESS_KEEP_US, Swept
from gateway.store.redis import layout
from gateway.store.redis.change import Change
from gateway.store.redis.connection import RedisCommand
from gateway.store.redis.inquiry import Inquiry, drop_audit
from gateway.store.redis.news import News

# Records that are changed in one exchange.
_PIECE_MAX: Final = 50
# Records that cannot be read, and so are passed over.
_WITHHELD_MAX: Final = 10_000


class Upkeep(Inquiry):
    """See `ManagedStore`. `_withheld` are the records that were found since the start and cannot be read."""

    _news: News
    _withheld: set[bytes]

    async def sweep(self, limit: int) -> Swept:
        written, lapsed = Counter[State](), list[tuple[str, UUID]]()
        _, now_us = await self._read([])
        at_most = ("-inf", now_us, "LIMIT", 0, limit + len(self._withheld))
        found, _ = await self._read([("ZRANGEBYSCORE", key, *at_most) for key in (*layout.LEASES, *layout.DUE)])
        ids = dict.fromkeys(member for members in found for member in members if member not in self._withheld)
        due = [UUID(bytes=member) for member in ids][:limit]
        ahead = await self._ahead(now_us, min(limit - len(due), _PIECE_MAX))
        wanted = due + ahead
        for begin in range(0, len(wanted), _PIECE_MAX):
            for before, after in await self._sweep_some(wanted[begin : begin + _PIECE_MAX]):
                state, operation_id = State.ABSENT if after is None else after.state, before.identity.operation_id
                self._news.wake(operation_id)
                # One that only moved is still what it was.
                written[State.CLAIMED if state is before.state else state] += 1
                if state is not before.state and state is State.IN_DOUBT:
                    lapsed.append((before.identity.route, operation_id))
            # Let others have their turn.
            await asyncio.sleep(0)
        tidied = await self._tidy(limit - len(due))
        return Swept(
            written[State.IN_DOUBT],
            written[State.TOMBSTONE],
            written[State.ABSENT],
            len(due) + tidied >= limit or 0 < len(ahead) <= written[State.CLAIMED],
            written[State.DEAD_LETTER],
            tuple(lapsed[:LAPSES_NAMED_MAX]),
            # Leases that were moved, and audits.
            written[State.CLAIMED] + tidied,
        )

    async def _ahead(self, now_us: int, limit: int) -> list[UUID]:
        """Where to look for leases that begin in the future, because the clock was set back: those that end last."""
        if limit <= 0:
            return []
        last = ("+inf", f"({now_us}", "WITHSCORES", "LIMIT", 0, limit)
        lists, _ = await self._read([("ZREVRANGEBYSCORE", key, *last) for key in (*layout.LEASES, *layout.DOUBT)])
        found = [pair for each in lists for pair in zip(map(int, each[1::2]), each[::2], strict=True)]
        ids = [member[:16] for _, member in sorted(found, reverse=True)]
        return [UUID(bytes=each) for each in ids if each not in self._withheld][:limit]

    async def _sweep_some(self, operation_ids: list[UUID]) -> list[tuple[Record, Record | None]]:
        """Write down what time has made of these; returns what was changed. What another changed meanwhile is left."""
        kept, floor, now_us = await self._kept(operation_ids, "changes")
        calls, changes = list[RedisCommand](), list[tuple[Record, Record | None]]()
        for operation_id, each in zip(operation_ids, kept, strict=True):
            if isinstance(each, StoreError):
                if len(self._withheld) < _WITHHELD_MAX:
                    self._withheld.add(operation_id.bytes)
                continue
            record = each.record
            after = None if record is None else written_down(record, now_us)
            if record is None or after is record:
                continue
            change = each.change()
            change.free()
            each.replace(change, after, floor, now_us)
            if change.floor is not None:
                floor = max(record.token, now_us)
            calls.append(change.call(self._identity))
            changes.append((record, after))
        done = await self.primary.write(calls, keeps=False) if calls else []
        for outcome in done:
            if isinstance(outcome, EpochChanged):
                raise outcome
        return [change for change, outcome in zip(changes, done, strict=True) if outcome is True]

    async def _tidy(self, limit: int) -> int:
        """Extend or delete at most `limit` old audits, and delete witnesses; returns how many. A witness that was
        raised since the last look but one is kept."""
        if limit <= 0:
            return 0
        _, now_us = await self._read([])
        unraised_us = now_us - 2 * WITNESS_KEEP_US
        (names, links), _ = await self._read(
            [
                ("ZRANGEBYSCORE", layout.OLD_AUDITS, "-inf", now_us, "LIMIT", 0, limit),
                ("ZRANGEBYSCORE", layout.WITNESSES, "-inf", unraised_us, "LIMIT", 0, limit),
            ]
        )
        needed, _ = await self._read([("EXISTS", layout.record_key(UUID(bytes=name[8:]))) for name in names])
        changes: list[Change] = []
        for name, value, is_needed in zip(names, await self._audit_values(names), needed, strict=True):
            if is_needed or value is None:
                change = Change()
                change.then("ZADD", layout.OLD_AUDITS, now_us + AUDIT_KEEP_US, name)
            else:
                change = drop_audit(name, value)
            changes.append(change)
        if links:
            change = Change()
            change.then("ZREMRANGEBYSCORE", layout.WITNESSES, "-inf", unraised_us)
            changes.append(change)
        if changes:
            await self.primary.write([change.call(self._identity) for change in changes], keeps=False)
        return len(changes)
