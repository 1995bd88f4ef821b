"""What is done to the operations in Postgres beside commands: the sweep, the tally, and the agreement on identities.

It owns how much one statement may lock or look through, when room is made for the responses of coming days, and when
those of a past day go; what it says goes over the one link that it is given, so that it never holds up a command.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

from gateway.core.identity.operation_id import derivation_of
from gateway.core.operation import MICROSECONDS
from gateway.store.base import StoreError
from gateway.store.operations import Agreement, Epoch, Living, Serving, Swept, Tally
from gateway.store.postgres.batch import Windows
from gateway.store.postgres.link import Connection, Link
from gateway.store.postgres.schema import MIGRATE_SECONDS, add_partitions, drop_partition, look_epoch, transaction
from gateway.store.postgres.statements import EPOCH_LOCK, RECIPE_LOCK, load
from gateway.store.recipes import Name, Remembered, compare, strays

_LOG = logging.getLogger("gateway")

# One statement of a sweep: its row locks are held until it commits.
_SWEEP_ROWS_MAX: Final = 100
_WALK_ROWS_MAX: Final = 5_000
_WALKS_MAX: Final = 20
# For how long the statement that drew a token may have yet to commit.
_COMMIT_SECONDS: Final = 5.0
_DROP_PAUSE_SECONDS: Final = 60.0
# How often room is made for coming days, and how soon again where that failed: there is a day for it.
_MAKE_PAUSE_SECONDS: Final = 600.0
_MAKE_AGAIN_SECONDS: Final = 10.0

_LAPSE: Final = load("lapse")
_EXPIRE: Final = load("expire")
_TIDY: Final = load("tidy")
_TALLY: Final = load("tally")
_BEGIN_EPOCH: Final = load("begin_epoch")
_ALIVE: Final = load("alive")
_RECIPES: Final = load("recipes")
_WRITE_RECIPES: Final = load("write_recipes")
_RUNNING: Final = load("running")
_WRITE_GATEWAY: Final = load("write_gateway")
_NOTE_RUNNING: Final = load("note_running")
_NOTE_STOPPED: Final = load("note_stopped")


class Upkeep:
    """These verbs of `Store`, over one link."""

    def __init__(
        self,
        link: Link,
        clock_us: Callable[[], int | None],
        command_seconds: float,
        fetch: Callable[..., Awaitable[Sequence[Any]]],
        is_session: Callable[[], bool],
        windows: Windows,
    ) -> None:
        """`fetch` says one statement over the link; `is_session` says whether the link's sessions are its own, with no
        pooler between; room is made for responses with these `windows`.
        """
        self._link = link
        self._fetch = fetch
        self._clock_us = clock_us
        self._command_seconds = command_seconds
        self._is_session = is_session
        # When, on the event loop's clock, a past day may next be looked for.
        self._next_drop_at = 0.0
        self._windows = windows
        # When that may next be done for coming days.
        self._next_make_at = 0.0
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
        await self.make_days()
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

    async def agree_recipes(self, serving: Serving, *, is_trial: bool) -> Agreement:
        async def agree(connection: Connection) -> Agreement:
            async with transaction(connection, lock_timeout="5s"):
                if not is_trial:
                    await connection.execute(f"SELECT pg_advisory_xact_lock({RECIPE_LOCK})")
                rows = await connection.fetch(_RUNNING, self._clock_us(), serving.gateway_id)
                running = {(row["service"], row["operation"]) for row in rows}
                comparison = compare(await _known(connection), running, serving)
                living: Mapping[Name, Living] = {}
                if comparison.questions:
                    await connection.execute(f"SET LOCAL statement_timeout = {round(MIGRATE_SECONDS * 1000)}")
                    living = await self._count_living(connection, comparison.names)
                agreement = comparison.agreement(living)
                if not agreement.conflicts and not is_trial:
                    await self._write(connection, serving, comparison.written)
                return agreement

        return await self._link.run(agree, MIGRATE_SECONDS)

    async def _write(self, connection: Connection, serving: Serving, written: Sequence[Remembered]) -> None:
        if written:
            columns = zip(
                *((row.service, row.operation, row.recipe, row.routes, row.is_current) for row in written), strict=True
            )
            await connection.execute(_WRITE_RECIPES, *map(list, columns))
        await connection.execute(
            _WRITE_GATEWAY, self._clock_us(), serving.gateway_id, serving.service, sorted(serving.recipes)
        )

    async def note_running(self, gateway_id: UUID, *, is_running: bool) -> None:
        if is_running:
            await self._fetch(_NOTE_RUNNING, self._clock_us(), gateway_id)
        else:
            await self._fetch(_NOTE_STOPPED, gateway_id)

    async def strays(self, service: str, operations: Collection[str]) -> dict[str, int]:
        async def count(connection: Connection) -> dict[str, int]:
            names = strays(await _known(connection), service, operations)
            if not names:
                return {}
            async with transaction(connection, lock_timeout="1s"):
                # A little shorter than the whole may take; behind a pooler no session says so.
                await connection.execute(f"SET LOCAL statement_timeout = {round(self._command_seconds * 900)}")
                living = await self._count_living(connection, names)
                return {operation: counted.keys for (_, operation), counted in living.items()}

        return await self._link.run(count)

    async def _count_living(self, connection: Connection, names: Collection[Name]) -> dict[Name, Living]:
        """The living keys of these operations, but for those that have none; in a transaction.

        Counted by going through all of them, which no index serves: it is asked once in a blue moon.
        """
        await connection.execute("SET LOCAL enable_seqscan = on")
        asked = sorted(names)
        rows = await connection.fetch(
            _ALIVE, self._clock_us(), [operation for _, operation in asked], [derivation_of(*name) for name in asked]
        )
        return {asked[row["place"] - 1]: Living(row["keys"], row["until_us"]) for row in rows}

    async def make_days(self) -> None:
        """Now and then, make room for the responses of coming days, so that no completion has to."""
        now = asyncio.get_running_loop().time()
        if now < self._next_make_at:
            return
        self._next_make_at = now + _MAKE_PAUSE_SECONDS
        try:
            await self._link.run(
                lambda connection: add_partitions(connection, self._windows.in_use, self._clock_us()),
            )
        except StoreError as error:
            self._next_make_at = now + _MAKE_AGAIN_SECONDS
            _LOG.warning("room for the responses of coming days could not be made yet: %s", error)

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


async def _known(connection: Connection) -> list[Remembered]:
    """The operations, as `recipes` reads them."""
    rows = await connection.fetch(_RECIPES)
    return [Remembered(*row) for row in rows]


def _written(swept: Swept) -> int:
    return swept.lapsed + swept.retired + swept.collected


def _named(row: Any) -> tuple[tuple[str, UUID], ...]:
    return tuple(zip(row["routes"], row["operation_ids"], strict=True))
