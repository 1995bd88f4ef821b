"""Rows that are encrypted again: pages of records and audits, and their replacement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from gateway.core.operation import Audit, Record
from gateway.store.base import StoreError
from gateway.store.redis import inquiry, layout
from gateway.store.redis.change import Change, count_sealed, record_sealed_by, write_record
from gateway.store.redis.client import Client
from gateway.store.redis.connection import RedisCommand
from gateway.store.redis.entry import packed, unpacked
from gateway.store.rekeying import EXAMPLES_MAX, PAGE_ROWS_MAX, Kept, Place, Row, Values

_SEARCHED_MAX: Final = 1_000


async def page(client: Client, place: Place, after: Any, limit: int) -> list[Row]:
    """See `SealedRows`."""
    match place:
        case Place.RECORDS:
            ids: list[UUID] = []
            async for piece in inquiry.pieces(client, after):
                ids += piece
                if len(ids) >= limit:
                    break
            kept, _, _ = await client.kept(ids[:limit], "reads")
            return [
                Row(each, None if isinstance(found, StoreError) else found.record, _is_gone(found))
                for each, found in zip(ids, kept, strict=False)
            ]
        case Place.AUDITS:
            above = "-inf" if after is None else f"({int.from_bytes(after[:8])}"
            (names,), _ = await client.read([("ZRANGEBYSCORE", layout.AUDITS, above, "+inf", "LIMIT", 0, limit)])
            values = await inquiry.audit_values(client, names)
            return [_audit_row(name, value) for name, value in zip(names, values, strict=True)]
    # The rest is not kept here.
    return []


async def examples(client: Client, key_id: str) -> list[Kept]:
    """See `ManagedStore.sealed_examples`. No list leads to them, so it looks at `_SEARCHED_MAX` records at most."""
    found: list[Kept] = []
    after: UUID | None = None
    for _ in range(_SEARCHED_MAX // PAGE_ROWS_MAX):
        rows = await page(client, Place.RECORDS, after, PAGE_ROWS_MAX)
        found += [row.kept for row in rows if isinstance(row.kept, Record) and record_sealed_by(row.kept) == key_id]
        if not rows or len(found) >= EXAMPLES_MAX:
            break
        after = rows[-1].after
    return found[:EXAMPLES_MAX]


def _is_gone(found: Any) -> bool:
    return not isinstance(found, StoreError) and found.record is None


def _audit_row(name: bytes, value: bytes | None) -> Row:
    if value is None:
        return Row(name, None, is_gone=True)
    _, event, token, who, why = unpacked(value)
    return Row(name, Values(Place.AUDITS, (UUID(bytes=name[8:]), event, token, who, why)))


async def reseal(client: Client, changes: Sequence[tuple[Row, Kept]]) -> int:
    """See `SealedRows`."""
    calls: list[RedisCommand] = []
    for row, again in changes:
        change = await _replacement(client, row, again)
        if change is not None:
            calls.append(change.call(client.identity))
    done = await client.write(calls) if calls else []
    for outcome in done:
        if isinstance(outcome, StoreError):
            raise outcome
    return sum(outcome is True for outcome in done)


async def _replacement(client: Client, row: Row, again: Kept) -> Change | None:
    match row.kept, again:
        case Record() as old, Record():
            (kept,), _, _ = await client.kept((old.identity.operation_id,), "changes")
            if isinstance(kept, StoreError) or kept.record != old:
                return None
            change = kept.change()
            write_record(change, kept, again)
            return change
        case Values() as old, Values():
            key, name = layout.audits_key(old.columns[0]), row.after
            (value,), _ = await client.read([("HGET", key, name[:8])], "changes")
            if value is None:
                return None
            *about, who, why = unpacked(value)
            if (who, why) != old.values:
                return None
            change = Change()
            change.then("HSET", key, name[:8], packed((*about, *again.values)))
            sealed, now = (inquiry.audit_sealed_by(Audit(*each.values)) for each in (old, again))
            count_sealed(change, sealed, now)
            return change
    return None
