"""Every store keeps what each process counted, for as long as its rows say, and drops the rest in sweeps."""

from __future__ import annotations

from uuid import UUID, uuid4

from gateway.store.base import Store
from gateway.store.operations import ActivityRow
from tests.conformance.stores import Database
from tests.support.memory_store import EPOCH_US

MINUTE_US = 60_000_000
TEN_US = 10 * MINUTE_US
KEEP_US = 60 * MINUTE_US
ONE, OTHER = uuid4(), uuid4()


def row(writer: UUID, at_us: int, body: bytes, span_us: int = MINUTE_US, *, until_us: int | None = None) -> ActivityRow:
    return ActivityRow(writer, span_us, at_us, at_us + KEEP_US if until_us is None else until_us, body)


async def save(store: Store, writer: UUID, at_us: int, body: bytes = b"{}", service: str = "shop") -> None:
    await store.cold.save_activity(service, row(writer, at_us, body), row(writer, at_us - at_us % TEN_US, body, TEN_US))


async def found(store: Store, span_us: int = MINUTE_US, service: str = "shop") -> list[ActivityRow]:
    return await store.cold.activity(service, span_us, 0, 2 * EPOCH_US)


async def test_what_was_counted_is_read_by_all(store: Store, other_store: Store) -> None:
    """Of all writers of a service, the latest first; each span and each service for itself."""
    first, second = EPOCH_US - EPOCH_US % TEN_US, EPOCH_US - EPOCH_US % TEN_US + MINUTE_US
    await save(store, ONE, first, b"a")
    await save(other_store, OTHER, second, b"b")
    await save(store, ONE, first, b"other", service="post")
    assert await found(other_store) == [row(OTHER, second, b"b"), row(ONE, first, b"a")]
    assert {each.body for each in await found(store, TEN_US)} == {b"a", b"b"}
    assert await found(store, service="post") == [row(ONE, first, b"other")]
    assert await store.cold.activity("shop", MINUTE_US, first, second) == [row(ONE, first, b"a")]


async def test_several_are_written_at_once(store: Store, other_store: Store) -> None:
    """Each in its own place, and some in place of earlier ones. The last may be written again."""
    body = b"\x00\xff" * 5
    rows = [row(writer, EPOCH_US, body, span_us) for writer in (ONE, OTHER) for span_us in (MINUTE_US, TEN_US)]
    await save(store, ONE, EPOCH_US, b"earlier")
    for _ in range(2):
        await other_store.cold.save_activity("shop", *rows)
    await store.cold.save_activity("shop", row(OTHER, EPOCH_US + MINUTE_US, b"alone"))
    assert {(each.writer, each.body) for each in await found(store)} == {(ONE, body), (OTHER, body), (OTHER, b"alone")}
    assert {each for each in await found(store, TEN_US) if each.body != b"earlier"} == {rows[1], rows[3]}


async def test_a_sweep_drops_what_is_old(store: Store, database: Database) -> None:
    """When its time is over, and no earlier."""
    await save(store, ONE, EPOCH_US)
    await store.cold.sweep(100)
    assert len(await found(store)) == 1
    await database.advance(3_600)
    await store.cold.sweep(100)
    assert await found(store) == []
    assert await found(store, TEN_US) == []


async def test_a_sweep_drops_no_more_than_its_limit(store: Store, database: Database) -> None:
    """The rest waits for the next one."""
    for minute in range(5):
        await save(store, ONE, EPOCH_US + minute * MINUTE_US)
    await database.advance(24 * 3_600)
    await store.cold.sweep(3)
    assert await found(store) or await found(store, TEN_US)
    for _ in range(3):
        await store.cold.sweep(3)
    assert await found(store) == []
