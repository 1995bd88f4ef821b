"""Upkeep: the sweep of its records, audits and witnesses.

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
from gateway.store.redis import inquiry, layout
from gateway.store.redis.change import Change, keep_token, write_record
from gateway.store.redis.client import Client
from gateway.store.redis.connection import RedisCommand

# Records that are changed in one exchange.
_PIECE_MAX: Final = 50
# Records that cannot be read, and so are passed over.
_WITHHELD_MAX: Final = 10_000


class Upkeep:
    """From one start of the store to its end."""

    def __init__(self, client: Client) -> None:
        self._client = client

        # Records that were found and cannot be read.
        self._withheld: set[bytes] = set()

    async def sweep(self, limit: int) -> tuple[Swept, list[UUID]]:
        """See `ManagedStore.sweep`; also returns which operations were changed."""
        written, lapsed, changed = Counter[State](), list[tuple[str, UUID]](), list[UUID]()
        now_us = (await self._client.read([]))[1]
        found, _ = await self._client.read(self._due(now_us, limit + len(self._withheld)))
        ids = dict.fromkeys(member for members in found for member in members if member not in self._withheld)
        due = [UUID(bytes=member) for member in ids][:limit]
        ahead = await self._ahead(now_us, min(limit - len(due), _PIECE_MAX))
        wanted = due + ahead
        for begin in range(0, len(wanted), _PIECE_MAX):
            for before, after in await self._sweep_some(wanted[begin : begin + _PIECE_MAX]):
                state = State.ABSENT if after is None else after.state
                changed.append(before.identity.operation_id)
                # One that only moved is still what it was.
                written[State.CLAIMED if state is before.state else state] += 1
                if state is not before.state and state is State.IN_DOUBT:
                    lapsed.append((before.identity.route, before.identity.operation_id))
            # Let others have their turn.
            await asyncio.sleep(0)
        tidied = await self._tidy(limit - len(due))
        swept = Swept(
            written[State.IN_DOUBT],
            written[State.TOMBSTONE],
            written[State.ABSENT],
            len(due) + tidied >= limit or 0 < len(ahead) <= written[State.CLAIMED],
            written[State.DEAD_LETTER],
            tuple(lapsed[:LAPSES_NAMED_MAX]),
            # Leases that were moved, and audits.
            written[State.CLAIMED] + tidied,
        )
        return swept, changed

    async def _sweep_some(self, operation_ids: list[UUID]) -> list[tuple[Record, Record | None]]:
        """Write down what time has made of these; returns what was changed. What another changed meanwhile is left."""
        kept, floor, now_us = await self._client.kept(operation_ids, "changes")
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
            keep_token(change, each, after, floor, now_us)
            write_record(change, each, after)
            if change.floor is not None:
                floor = max(record.token, now_us)
            calls.append(change.call(self._client.identity))
            changes.append((record, after))
        done = await self._client.write(calls, keeps=False) if calls else []
        for outcome in done:
            if isinstance(outcome, EpochChanged):
                raise outcome
        return [change for change, outcome in zip(changes, done, strict=True) if outcome is True]

    async def _tidy(self, limit: int) -> int:
        """Extend or delete at most `limit` old audits, and delete witnesses; returns how many."""
        if limit <= 0:
            return 0
        client = self._client
        now_us = (await client.read([]))[1]
        (names, links), _ = await client.read(self._old(now_us, limit))
        records: list[RedisCommand] = [("EXISTS", layout.record_key(UUID(bytes=name[8:]))) for name in names]
        needed, _ = await client.read(records)
        calls: list[RedisCommand] = []
        for name, value, is_needed in zip(names, await inquiry.audit_values(client, names), needed, strict=True):
            if is_needed or value is None:
                change = Change()
                change.then("ZADD", layout.OLD_AUDITS, now_us + AUDIT_KEEP_US, name)
            else:
                change = inquiry.drop_audit(name, value)
            calls.append(change.call(client.identity))
        if links:
            change = Change()
            change.then("ZREMRANGEBYSCORE", layout.WITNESSES, "-inf", now_us - 2 * WITNESS_KEEP_US)
            calls.append(change.call(client.identity))
        if calls:
            await client.write(calls, keeps=False)
        return len(calls)

    def _due(self, now_us: int, limit: int) -> list[RedisCommand]:
        """What the clock changes."""
        return [("ZRANGEBYSCORE", key, "-inf", now_us, "LIMIT", 0, limit) for key in (*layout.LEASES, *layout.DUE)]

    async def _ahead(self, now_us: int, limit: int) -> list[UUID]:
        """Where to look for leases that begin in the future, because the clock was set back: those that end last."""
        if limit <= 0:
            return []
        last = ("+inf", f"({now_us}", "WITHSCORES", "LIMIT", 0, limit)
        commands: list[RedisCommand] = [("ZREVRANGEBYSCORE", key, *last) for key in (*layout.LEASES, *layout.DOUBT)]
        lists, _ = await self._client.read(commands)
        found = [pair for each in lists for pair in zip(map(int, each[1::2]), each[::2], strict=True)]
        ids = [member[:16] for _, member in sorted(found, reverse=True)]
        return [UUID(bytes=each) for each in ids if each not in self._withheld][:limit]

    def _old(self, now_us: int, limit: int) -> list[RedisCommand]:
        """Audits and witnesses to be looked at. A witness that was raised since the last look but one is kept."""
        unraised_us = now_us - 2 * WITNESS_KEEP_US
        return [
            ("ZRANGEBYSCORE", layout.OLD_AUDITS, "-inf", now_us, "LIMIT", 0, limit),
            ("ZRANGEBYSCORE", layout.WITNESSES, "-inf", unraised_us, "LIMIT", 0, limit),
        ]
