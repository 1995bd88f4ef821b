"""Every store keeps what each process counted, for as long as its rows say, and drops the rest in sweeps."""

from __future__ import annotations

from uuid import UUID, uuid4

from gateway.store.base import Store
from gateway.store.operations import ActivityRow
from tests.conformance.stores import Database
from tests.support.memory_store import EPOCH_US

MINUTE_US = 60_000_000
TEN_US = 10 * MINUTE_US
ONE, OTHER = uuid4(), uuid4()


def row(writer: UUID, at_us: int, body: bytes, span_us: int = MINUTE_US) -> ActivityRow:
    return ActivityRow(writer, span_us, at_us, at_us + 60 * MINUTE_US, body)


async def save(store: Store, writer: UUID, at_us: int, body: bytes = b"{}", service: str = "shop") -> None:
    await store.cold.save_activity(service, row(writer, at_us, body), row(writer, at_us - at_us % TEN_US, body, TEN_US))


async def found(store: Store, span_us: int = MINUTE_US, service: str = "shop") -> list[ActivityRow]:
    return await store.cold.activity(service, span_us, 0, 2 * EPOCH_US)


async def test_what_was_counted_is_read_by_all(store: Store, other_store: Store) -> None:
    """Of all writers of a service, the latest first; each span and each service for itself. Several are written at
    once, each in its own place, some in place of earlier ones, and the last may be written again."""
    first = EPOCH_US - EPOCH_US % TEN_US
    second = first + MINUTE_US
    await save(store, ONE, first, b"a")
    await save(other_store, OTHER, second, b"b")
    await save(store, ONE, first, b"other", service="post")
    assert await found(other_store) == [row(OTHER, second, b"b"), row(ONE, first, b"a")]
    assert {each.body for each in await found(store, TEN_US)} == {b"a", b"b"}
    assert await found(store, service="post") == [row(ONE, first, b"other")]
    assert await store.cold.activity("shop", MINUTE_US, first, second) == [row(ONE, first, b"a")]
    body = b"\x00\xff" * 5
    rows = [row(writer, first, body, span_us) for span_us in (MINUTE_US, TEN_US) for writer in (ONE, OTHER)]
    for _ in range(2):
        await other_store.cold.save_activity("shop", *rows)
    assert {(each.writer, each.at_us, each.body) for each in await found(store)} == {
        (ONE, first, body), (OTHER, first, body), (OTHER, second, b"b"),
    }  # fmt: skip
    assert set(await found(store, TEN_US)) == set(rows[2:])


async def test_a_sweep_drops_what_is_old(store: Store, database: Database) -> None:
    """When its time is over, no earlier, and no more at once than its limit: the rest waits for the next one."""
    for minute in range(5):
        await save(store, ONE, EPOCH_US - minute * MINUTE_US)
    await save(store, OTHER, EPOCH_US)
    await store.cold.sweep(100)
    assert len(await found(store)) == 6
    await database.advance(3_599)
    await store.cold.sweep(3)
    assert len(await found(store)) + len(await found(store, TEN_US)) > 4
    for _ in range(4):
        await store.cold.sweep(3)
    assert [row.at_us for row in await found(store)] == [EPOCH_US] * 2
    await database.advance(1)
    await store.cold.sweep(100)
    assert await found(store) == []
    assert await found(store, TEN_US) == []
