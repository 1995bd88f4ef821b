"""What gateways serve, as Postgres remembers it: the comparison of a configuration, and keys without a route.

It owns how long these rare and long reads may take. Each has a connection of its own, which is closed after it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

from gateway.core.identity.operation_id import derivation_of
from gateway.core.outbox import Outbox
from gateway.store.base import StoreError
from gateway.store.operations import Agreement, Living, Serving
from gateway.store.postgres.batch import Windows
from gateway.store.postgres.connection import Connection, Link, transaction
from gateway.store.postgres.dialer import Dialer
from gateway.store.postgres.schema import MIGRATE_SECONDS, add_partitions, windows_up_to
from gateway.store.postgres.statements import RECIPE_LOCK, load
from gateway.store.recipes import Name, Remembered, compare, names_without_route
from gateway.store.relational.inquiry import joined

_LOG = logging.getLogger("gateway")

_ALIVE: Final = load("alive")
_RECIPES: Final = load("recipes")
_WRITE_RECIPES: Final = load("write_recipes")
_RUNNING: Final = load("running")
_WRITE_GATEWAY: Final = load("write_gateway")
_WRITE_OUTBOX: Final = load("write_outbox")


class Agreements:
    """These verbs of `ManagedStore`."""

    def __init__(
        self,
        dialer: Dialer,
        clock_us: Callable[[], int | None],
        command_seconds: float,
        windows: Windows,
        outbox: Outbox,
    ) -> None:
        """`windows` gets the longest window of what is served."""
        self._dialer = dialer
        self._clock_us = clock_us
        self._command_seconds = command_seconds
        self._windows = windows
        self._outbox = outbox

    async def compare_configuration(self, serving: Serving, *, is_trial: bool) -> Agreement:
        async def agree(connection: Connection) -> Agreement:
            async with transaction(connection, {"lock_timeout": "5s"}):
                if not is_trial:
                    await connection.execute(f"SELECT pg_advisory_xact_lock({RECIPE_LOCK})")
                rows = await connection.fetch(_RUNNING, self._clock_us(), serving.gateway_id)
                running = {(row["service"], row["operation"]) for row in rows}
                comparison = compare(await known_operations(connection), running, serving)
                living: Mapping[Name, Living] = {}
                if comparison.questions:
                    await connection.execute(f"SET LOCAL statement_timeout = {round(MIGRATE_SECONDS * 1000)}")
                    living = await self._count_living(connection, comparison.names)
                agreement = comparison.agreement(living)
                if not agreement.conflicts and not is_trial:
                    await self._write(connection, serving, comparison.written)
                    await connection.execute(_WRITE_OUTBOX, serving.service, self._outbox.pack())
                return agreement

        async with self._own_link() as link:
            agreement = await link.run(agree, MIGRATE_SECONDS)
            if not agreement.conflicts and not is_trial:
                self._windows.configured_us = serving.replay_us
                await self._make_days(link)
        return agreement

    async def _write(self, connection: Connection, serving: Serving, written: Sequence[Remembered]) -> None:
        if written:
            columns = zip(
                *((row.service, row.operation, row.recipe, row.routes, row.is_current) for row in written), strict=True
            )
            await connection.execute(_WRITE_RECIPES, *map(list, columns))
        await connection.execute(
            _WRITE_GATEWAY,
            self._clock_us(),
            serving.gateway_id,
            serving.service,
            sorted(serving.recipes),
            serving.host,
            serving.replay_us,
        )

    async def _make_days(self, link: Link) -> None:
        """Make the partitions that this gateway needs first. Whoever sweeps makes all others, also if this fails."""
        windows_us = windows_up_to(self._windows.configured_us)
        try:
            await link.run(lambda connection: add_partitions(connection, windows_us, self._clock_us()))
        except StoreError as error:
            _LOG.warning("the partitions for this gateway's responses could not be made yet: %s", error)

    async def count_without_route(self, service: str, operations: Collection[str]) -> dict[str, int]:
        async def count(connection: Connection) -> dict[str, int]:
            names = names_without_route(await known_operations(connection), service, operations)
            if not names:
                return {}
            async with transaction(connection, {"lock_timeout": "1s"}):
                # A little shorter than the client's timeout; behind a pooler no session has one.
                await connection.execute(f"SET LOCAL statement_timeout = {round(self._command_seconds * 900)}")
                living = await self._count_living(connection, names)
                return {operation: counted.keys for (_, operation), counted in living.items()}

        async with self._own_link() as link:
            return await link.run(count)

    async def _count_living(self, connection: Connection, names: Collection[Name]) -> dict[Name, Living]:
        """The living keys of these operations, without operations that have none; in a transaction.

        It reads all records, without an index: it is needed very rarely.
        """
        await connection.execute("SET LOCAL enable_seqscan = on")
        ordered = sorted(names)
        rows = await connection.fetch(
            _ALIVE,
            self._clock_us(),
            [operation for _, operation in ordered],
            [derivation_of(*name) for name in ordered],
            [service for service, _ in ordered],
        )
        counted: dict[Name, Living] = {}
        for row in rows:
            name, living = ordered[row["place"] - 1], Living(row["keys"], row["until_us"], {row["key_id"]: row["keys"]})
            counted[name] = joined(counted.get(name, Living()), living)
        return counted

    @asynccontextmanager
    async def _own_link(self) -> AsyncIterator[Link]:
        link = self._dialer.link(compares_notes=False)
        try:
            yield link
        finally:
            await link.close()


async def known_operations(connection: Connection) -> list[Remembered]:
    """The operations, as `recipes` reads them."""
    rows = await connection.fetch(_RECIPES)
    return [Remembered(*row) for row in rows]
