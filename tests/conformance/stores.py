"""Every store the suite runs on. Adding one is adding its constructor, and a way to own its clock, to `STORES`."""

from __future__ import annotations

import os
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import asyncpg
import pytest

from gateway.core.confidential import EncryptionKey, KeyRing, Sealing
from gateway.core.outbox import NO_EVENTS, Outbox
from gateway.store.base import Store, boot_seconds
from gateway.store.memory.epoch import WitnessFiles
from gateway.store.postgres.store import PostgresStore
from gateway.store.redis import connection
from gateway.store.redis.durable import RedisStore
from gateway.store.redis.store import RedisFastTier
from gateway.store.sealed import SealedStore
from gateway.store.sqlite.store import SqliteStore
from gateway.store.tiered import Tiered
from tests.conformance.hand import REMEMBER_SECONDS, SERVICE
from tests.support.memory_store import ManualClock, Memory, MemoryStore
from tests.support.redis import Redis, RedisServer


class Database:
    """What a test holds of one backend: the data, and the clock that rules it, which is the test's own."""

    exact = True
    """Whether time stands still between two advances, so that every time can be foretold to the microsecond."""

    def __init__(self, opened: Callable[..., Store], clock: ManualClock | None = None) -> None:
        self._opened, self.clock = opened, clock or ManualClock()

    def open_store(self, witness_files: WitnessFiles | None = None, outbox: Outbox = NO_EVENTS) -> Store:
        """A further store object on the same data, not yet started. The test starts and closes it."""
        # A sweep makes the tombstones of services that it knows narrow.
        outbox = Outbox(SERVICE) if outbox is NO_EVENTS else outbox
        return self._opened(clock_us=self.clock, witness_files=witness_files, outbox=outbox)

    async def advance(self, seconds: float) -> None:
        """Let the store's clock, and every cache's, be so much later for all store objects on this data."""
        self.clock.advance(seconds)

    def set_back(self, seconds: float) -> None:
        """Set the store's clock back for all store objects on this data; no other clock notices."""
        self.clock.advance(-seconds)


class SqliteDatabase(Database):
    def __init__(self, path: Path) -> None:
        super().__init__(partial(SqliteStore, path))


class PostgresDatabase(Database):
    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(partial(PostgresStore, url, **options))


Opener = Callable[[pytest.FixtureRequest, Path], AbstractContextManager[Database]]


@contextmanager
def memory(_request: pytest.FixtureRequest, _directory: Path) -> Iterator[Database]:
    memory = Memory()
    yield Database(lambda clock_us, **options: MemoryStore(memory, **options), memory.clock)


@contextmanager
def sqlite(_request: pytest.FixtureRequest, directory: Path) -> Iterator[Database]:
    yield SqliteDatabase(directory / "state" / "operations.db")


@contextmanager
def postgres(request: pytest.FixtureRequest, _directory: Path) -> Iterator[Database]:
    yield PostgresDatabase(request.getfixturevalue("migrated_url"))


SHARE: Final = 0.1
# A transaction that lost so often in a row wins for once, as on a real engine.
IN_A_ROW_MAX: Final = 4


class SerializationFaults:
    """Fails statements, COMMIT among them, before they reach the server."""

    def __init__(self) -> None:
        self._random = random.Random(20)

    async def connect(self, *arguments: Any, **options: Any) -> Any:
        return _Failing(await asyncpg.connect(*arguments, **options), self)

    def hits(self, in_a_row: int) -> bool:
        return in_a_row < IN_A_ROW_MAX and self._random.random() < SHARE


class _Failing:
    """A connection of the driver, as far as a store uses it."""

    def __init__(self, behind: Any, faults: SerializationFaults) -> None:
        self._behind = behind
        self._faults = faults
        self._in_a_row = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._behind, name)
        return partial(self._unless_hit, found) if name in ("execute", "executemany", "fetch", "fetchrow") else found

    async def _unless_hit(self, call: Callable[..., Awaitable[Any]], query: str, *arguments: Any) -> Any:
        if self._behind.is_in_transaction() and query != "ROLLBACK" and self._faults.hits(self._in_a_row):
            self._in_a_row += 1
            raise asyncpg.SerializationError("injected")
        result = await call(query, *arguments)
        if query == "COMMIT":
            self._in_a_row = 0
        return result


@contextmanager
def portable(request: pytest.FixtureRequest, _directory: Path) -> Iterator[Database]:
    """Every tenth statement fails to serialize, at most a few times in a row."""
    url = request.getfixturevalue("postgres_url")
    yield PostgresDatabase(url, dialect="portable", connect=SerializationFaults().connect)


@contextmanager
def redis(request: pytest.FixtureRequest, _directory: Path) -> Iterator[Database]:
    server: RedisServer = request.getfixturevalue("durable_redis")
    server.flush()
    with pytest.MonkeyPatch.context() as patch:
        # Who watches is heard by the server first, however busy the machine is.
        patch.setattr(connection, "_SUBSCRIBE_SECONDS", 10.0)
        yield Database(partial(RedisStore, server.durable_url))


class Layered(Database):
    """A database whose stores are each behind something."""

    def __init__(self, behind: Database, opened: Callable[..., Store]) -> None:
        super().__init__(opened)
        self.behind, self.exact = behind, behind.exact

    def open_store(self, witness_files: WitnessFiles | None = None, outbox: Outbox = NO_EVENTS) -> Store:
        return cast(Store, _Whole(self._opened(witness_files, outbox)))

    async def advance(self, seconds: float) -> None:
        await self.behind.advance(seconds)

    def set_back(self, seconds: float) -> None:
        self.behind.set_back(seconds)


class _Whole:
    """All verbs of the layer and of its `cold`."""

    def __init__(self, layer: Store) -> None:
        self._layer = layer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer if hasattr(self._layer, name) else self._layer.cold, name)


class TieredDatabase(Layered):
    """A durable database behind Redis and a process cache of each store object."""

    def __init__(self, durable: Database, redis: Redis) -> None:
        super().__init__(durable, self._tiered)
        self.exact, self._redis, self._ahead_seconds = False, redis, 0.0

    def _tiered(self, *options: Any) -> Store:
        fast = RedisFastTier(self._redis.url, clock=self._now)
        fast.bind("the-store")
        durable, now = self.behind.open_store(*options), self._now
        return Tiered(durable, fast, cache_bytes=10_000_000, cache_max_age_seconds=REMEMBER_SECONDS, clock=now)

    async def advance(self, seconds: float) -> None:
        await super().advance(seconds)
        self._ahead_seconds += seconds
        self._redis.flush()

    def _now(self) -> float:
        return boot_seconds() + self._ahead_seconds


def tiered(durable: Opener) -> Opener:
    @contextmanager
    def opened(request: pytest.FixtureRequest, directory: Path) -> Iterator[Database]:
        with durable(request, directory) as database:
            redis: Redis = request.getfixturevalue("redis_server")
            redis.flush()
            yield TieredDatabase(database, redis)

    return opened


def sealed(behind: Opener) -> Opener:
    """With stores that encrypt what they keep."""
    ring = KeyRing([EncryptionKey("k1", bytes(range(32)))], os.urandom)

    @contextmanager
    def opened(request: pytest.FixtureRequest, directory: Path) -> Iterator[Database]:
        with behind(request, directory) as database:

            def seal(witness_files: WitnessFiles | None, outbox: Outbox) -> Store:
                sealing = Sealing(ring)
                return SealedStore(database.open_store(witness_files, replace(outbox, sealing=sealing)), sealing)

            yield Layered(database, seal)

    return opened


# Each is entered once per test, outside an event loop, with the request (for fixtures like `postgres_url`) and an empty
# directory; it ends by giving everything back, the data included.
STORES: dict[str, Opener] = {
    "memory": memory,
    "portable": portable,
    "postgres": postgres,
    "redis": redis,
    "sealed-sqlite": sealed(sqlite),
    "sqlite": sqlite,
    "tiered-memory": tiered(memory),
    "tiered-postgres": tiered(postgres),
}
# These are made of stores that the whole suite is run on, or are a mode of one: what of it is about their own part. The
# rest is left to `make proof`.
_OF_PARTS: dict[str, frozenset[str]] = {
    "portable": frozenset(("test_fences", "test_machine", "test_races")),
    "sealed-sqlite": frozenset(
        ("test_events", "test_kept_requests", "test_machine", "test_sealed_examples", "test_values", "test_witness")
    ),
    "tiered-memory": frozenset(("test_fences", "test_lifetime", "test_machine", "test_races", "test_values")),
    "tiered-postgres": frozenset(),
}
# Where tokens grow within an operation alone.
OF_OWN_TOKENS = frozenset(("portable", "redis"))


def is_left_to_proof(store: str, module: str) -> bool:
    """Whether the module's tests say little about this store that they do not say about another."""
    return module not in _OF_PARTS.get(store, (module,))


# What a store refuses, because it is over several records: tests, or whole modules of them, that have to end with
# `Unsupported`.
_NOT_ALONE = frozenset(("test_contents", "test_events", "test_lanes", "test_ordered_events"))
_OF_DELIVERIES = frozenset(
    (
        "test_what_is_due_is_found_longest_due_first",
        "test_what_nobody_delivers_hides_nothing",
        "test_what_waits_is_counted_by_scope",
        "test_the_backlog_by_route",
        "test_a_pause_holds_everything_of_its_name",
        "test_a_pause_when_nothing_is_due",
        "test_pauses_and_their_ends_are_audited",
        "test_a_pause_moves_the_end_by_its_length",
        "test_what_waits_for_its_delivery",
        "test_a_pause_from_before",
        "test_events_from_before",
    )
)


def is_refused(store: str, module: str, test: str) -> bool:
    """Whether this store refuses what the test is about."""
    return store == "redis" and (module in _NOT_ALONE or test in _OF_DELIVERIES)
