"""What is done to the operations in Postgres beside commands: the sweep, the tally, and the agreement on identities.

It owns how much one statement may lock or look through, and when the answers of a past day go; what it says goes over
the one link that it is given, so that it never holds up a command.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

from gateway.core.identity import derivation_of
from gateway.core.operation import MICROSECONDS
from gateway.store.base import Epoch, RecipeConflict, StoreError, Swept, Tally
from gateway.store.postgres_link import Connection, Link
from gateway.store.postgres_schema import MIGRATE_SECONDS, drop_partition, look_epoch, transaction
from gateway.store.postgres_statements import EPOCH_LOCK, RECIPE_LOCK, load
from gateway.store.recipes import compare, strays

# One statement of a sweep: its row locks are held until it commits.
_SWEEP_ROWS_MAX: Final = 100
_WALK_ROWS_MAX: Final = 5_000
_WALKS_MAX: Final = 20
# For how long the statement that drew a token may have yet to commit.
_COMMIT_SECONDS: Final = 5.0
_DROP_PAUSE_SECONDS: Final = 60.0

_LAPSE: Final = load("lapse")
_EXPIRE: Final = load("expire")
_TIDY: Final = load("tidy")
_TALLY: Final = load("tally")
_BEGIN_EPOCH: Final = load("begin_epoch")
_ALIVE: Final = load("alive")


class Upkeep:
    """These verbs of `Store`, over one link."""

    def __init__(
        self,
        link: Link,
        clock_us: Callable[[], int | None],
        command_seconds: float,
        fetch: Callable[..., Awaitable[Sequence[Any]]],
        is_session: Callable[[], bool],
    ) -> None:
        """`fetch` says one statement over the link; `is_session` says whether the link's sessions are its own, with no
        pooler between.
        """
        self._link = link
        self._fetch = fetch
        self._clock_us = clock_us
        self._command_seconds = command_seconds
        self._is_session = is_session
        # When, on the event loop's clock, a past day may next be looked for.
        self._next_drop_at = 0.0
        # The last token that was drawn at the latest look, when that was, and the last one that is long settled.
        self._drawn_token, self._looked_at, self._settled_token = 0, float("-inf"), 0

    async def close(self) -> None:
        """Give the link back."""
        await self._link.close()

    async def sweep(self, limit: int) -> Swept:
        swept, shortened = Swept(), 0
        for _ in range(_WALKS_MAX):
            bound = min(limit - swept.lapsed - shortened, _SWEEP_ROWS_MAX)
            if bound <= 0:
                break
            row = await self._walk(bound)
            if not row["mine"]:
                return swept
            swept += Swept(row["lapsed"], named=_named(row))
            shortened += row["shortened"]
            if not row["more"] and row["lapsed"] + row["shortened"] < bound:
                break
        full = True
        while full and (left := limit - shortened - _written(swept)) > 0:
            bound = min(left, _SWEEP_ROWS_MAX)
            (row,) = await self._fetch(_EXPIRE, self._clock_us(), bound)
            part = Swept(row["lapsed"], row["retired"], row["collected"], named=_named(row))
            swept += part
            full = _written(part) >= bound
        bound = min(limit, _SWEEP_ROWS_MAX)
        (row,) = await self._fetch(_TIDY, self._clock_us(), bound)
        more = shortened + _written(swept) >= limit or row["looked_at"] >= bound
        await self._drop_past()
        return replace(swept, more=more)

    async def _walk(self, bound: int) -> Any:
        """One statement of the walk for lapsed claims, told up to which token nobody has yet to commit.

        The event loop's clock says so: it is not set, as the server's may be.
        """
        loop = asyncio.get_running_loop()
        if loop.time() - self._looked_at >= _COMMIT_SECONDS:
            self._settled_token = self._drawn_token
        (row,) = await self._fetch(_LAPSE, self._clock_us(), bound, _WALK_ROWS_MAX, self._settled_token)
        if self._settled_token == self._drawn_token:
            self._drawn_token, self._looked_at = row["drawn_token"], loop.time()
        return row

    async def look_epoch(self, links: Collection[UUID] = ()) -> Epoch:
        return await self._link.run(lambda connection: look_epoch(connection, links))

    async def begin_epoch(self, memo: bytes, beyond_token: int) -> None:
        async def begin(connection: Connection) -> None:
            async with transaction(connection, lock_timeout="1s"):
                await connection.execute(f"SELECT pg_advisory_xact_lock({EPOCH_LOCK})")
                await connection.fetch(_BEGIN_EPOCH, memo, beyond_token)

        await self._link.run(begin)

    async def tally(self) -> Tally:
        rows = await self._fetch(_TALLY, self._clock_us())
        oldest_us = max((row["oldest_us"] for row in rows), default=0)
        return Tally({row["route"]: row["in_doubt"] for row in rows}, oldest_us / MICROSECONDS)

    async def agree_recipes(
        self, service: str, recipes: Mapping[str, bytes], accept: frozenset[str]
    ) -> list[RecipeConflict]:
        async def agree(connection: Connection) -> list[RecipeConflict]:
            async with transaction(connection, lock_timeout="5s"):
                await connection.execute(f"SELECT pg_advisory_xact_lock({RECIPE_LOCK})")
                comparison = compare(await _known(connection), service, recipes, accept)
                alive: dict[str, int] = {}
                if comparison.doubtful:
                    await connection.execute(f"SET LOCAL statement_timeout = {round(MIGRATE_SECONDS * 1000)}")
                    alive = await self._count_alive(connection, service, comparison.doubtful)
                conflicts = comparison.conflicts(alive)
                if not conflicts and comparison.written:
                    await connection.execute(
                        """
                        INSERT INTO idempotency_gateway.recipe (operation, recipe)
                        SELECT * FROM unnest($1::text[], $2::bytea[])
                        ON CONFLICT (operation) DO UPDATE SET recipe = excluded.recipe
                        """,
                        list(comparison.written),
                        list(comparison.written.values()),
                    )
                if not conflicts and comparison.removed:
                    await connection.execute(
                        "DELETE FROM idempotency_gateway.recipe WHERE operation = ANY($1::text[])", comparison.removed
                    )
                return conflicts

        return await self._link.run(agree, MIGRATE_SECONDS)

    async def strays(self, service: str, operations: Collection[str]) -> dict[str, int]:
        async def count(connection: Connection) -> dict[str, int]:
            names = strays(await _known(connection), service, operations)
            if not names:
                return {}
            async with transaction(connection, lock_timeout="1s"):
                # A little shorter than the whole may take; behind a pooler no session says so.
                await connection.execute(f"SET LOCAL statement_timeout = {round(self._command_seconds * 900)}")
                return await self._count_alive(connection, service, dict.fromkeys(names, True))

        return await self._link.run(count)

    async def _count_alive(self, connection: Connection, service: str, asked: Mapping[str, bool]) -> dict[str, int]:
        """The living keys by operation name, where asked those of this service alone; in a transaction.

        Counted by going through all of them, which no index serves: it is asked once in a blue moon.
        """
        await connection.execute("SET LOCAL enable_seqscan = on")
        derivations = [derivation_of(service, operation) if is_own else None for operation, is_own in asked.items()]
        rows = await connection.fetch(_ALIVE, self._clock_us(), list(asked), derivations)
        return {row["operation"]: row["alive"] for row in rows}

    async def _drop_past(self) -> None:
        """Now and then, let one day's answers go."""
        now = asyncio.get_running_loop().time()
        if now < self._next_drop_at:
            return
        self._next_drop_at = now + _DROP_PAUSE_SECONDS
        try:
            dropped = await self._link.run(
                lambda connection: drop_partition(connection, self._clock_us(), is_session=self._is_session()),
                # Longer than the server lets it try, so that it is the server that gives up.
                2 * self._command_seconds,
            )
        except StoreError:
            # Another gateway is at it, or somebody reads for long: it stays for a later pass.
            return
        if dropped:
            self._next_drop_at = 0.0


async def _known(connection: Connection) -> dict[str, bytes]:
    """The recipes, as `recipes` reads them."""
    rows = await connection.fetch("SELECT operation, recipe FROM idempotency_gateway.recipe")
    return {row["operation"]: row["recipe"] for row in rows}


def _written(swept: Swept) -> int:
    return swept.lapsed + swept.retired + swept.collected


def _named(row: Any) -> tuple[tuple[str, UUID], ...]:
    return tuple(zip(row["routes"], row["operation_ids"], strict=True))
