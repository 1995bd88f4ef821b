"""How many statements a second the polls of an idle gateway come to, on each store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import uuid4

import apsw

from gateway import deliver as worker
from gateway.core.operation import MICROSECONDS
from gateway.events import relay
from gateway.store.memory.promotion import BEAT_SECONDS
from gateway.store.operations import ActivityRow, ManagedStore, Serving
from gateway.store.postgres.store import PostgresStore
from gateway.store.sqlite.store import SqliteStore
from gateway.upkeep import duty
from gateway.upkeep.activity import LONGER_US, MINUTE_US
from tests.benchmarks.idle import AROUND, LOGGED, TARGET
from tests.conformance.hand import SERVICE, all_of, started
from tests.support.postgres import Postgres

HOLDER: Final = uuid4()
TURNS: Final = ("sweep", "recovery shop 1", "tally shop 1")
NOTES_SECONDS: Final = 15.0
TALLY_SECONDS: Final = 15.0
SWEEP_SECONDS: Final = 30.0
ACTIVITY_SECONDS: Final = MINUTE_US / MICROSECONDS
COUNTED: Final = [ActivityRow(HOLDER, each, 0, 2**60, b"[]") for each in (MINUTE_US, LONGER_US)]

# What is asked, and how many seconds apart.
ASKED: Final[Mapping[str, tuple[Callable[[Any], Awaitable[object]], float]]] = {
    "find_due": (lambda store: store.find_due(SERVICE, all_of("charges"), 24), worker._IDLE_SECONDS_MAX),
    "lease_events": (lambda store: store.lease_events(SERVICE, {"lines": 16}, 1), relay._IDLE_SECONDS_MAX),
    "take_turns": (lambda store: store.take_turns(HOLDER, TURNS, 15_000_000), duty._KEEP_SECONDS),
    "tally": (lambda store: store.tally(), TALLY_SECONDS),
    "backlog": (lambda store: store.backlog(SERVICE), TALLY_SECONDS),
    "sinks": (lambda store: store.sinks(SERVICE), TALLY_SECONDS),
    "sweep": (lambda store: store.sweep(500), SWEEP_SECONDS),
    "save_activity": (lambda store: store.save_activity(SERVICE, *COUNTED), ACTIVITY_SECONDS),
    "check_memory": (lambda store: store.check_memory(), NOTES_SECONDS),
}
NOTE: Final = (lambda store: store.note_running(HOLDER, is_running=True), NOTES_SECONDS)
BEAT: Final = (lambda store: store.beat(HOLDER, ()), BEAT_SECONDS)


async def rate_of(store: ManagedStore, asked: Mapping[str, Any], statements: Callable[[], int]) -> float:
    """The statements a second. Each is asked twice, because the first answer may be about to be the only such one."""
    async with started(store):
        await store.compare_configuration(Serving(HOLDER, SERVICE, {}))
        rate = 0.0
        for ask, seconds in asked.values():
            await ask(store)
            before = statements()
            await ask(store)
            rate += (statements() - before) / seconds
        return rate


async def test_an_idle_gateway_on_sqlite(tmp_path: Path) -> None:
    """At most two statements a second, those apart that only frame a transaction."""
    path, found = tmp_path / "durable.db", list[str]()

    def trace(connection: apsw.Connection) -> None:
        connection.trace_v2(apsw.SQLITE_TRACE_STMT, lambda event: found.append(event["sql"]))

    apsw.connection_hooks.append(trace)
    try:
        rate = await rate_of(
            SqliteStore(path), {**ASKED, "note": NOTE}, lambda: sum(not text.startswith(AROUND) for text in found)
        )
    finally:
        apsw.connection_hooks.remove(trace)
    assert 1.0 < rate <= TARGET


async def test_an_idle_gateway_on_postgres(migrated_url: str, postgres_server: Postgres) -> None:
    """At most two statements a second, the beats of `store.promotion` among them."""
    name = urlsplit(migrated_url).path.removeprefix("/")
    await postgres_server.fetch(f"ALTER DATABASE {name} SET log_statement = 'all'")

    def statements() -> int:
        logged = LOGGED.findall(postgres_server.log.read_text(errors="replace"))
        return sum(not text.startswith(AROUND) for text in logged)

    rate = await rate_of(PostgresStore(migrated_url), {**ASKED, "beat": BEAT}, statements)
    assert 1.0 < rate <= TARGET
