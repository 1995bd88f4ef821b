"""What stands before a durable store: it opens only to who makes identities as it remembers, and each call is told.

Owns no record. A store that is reached for the first time is asked whether this gateway's identity recipes are those
under which its living keys were made; until it has agreed nothing else reaches it, for a request whose key is looked
for under another identity is a request that runs again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Final, TypeVar
from uuid import UUID

from gateway.core.operation import EVENT_OF, Command, Result, Snapshot
from gateway.observe.facts import Herald, StoreCalled
from gateway.store.base import (
    AuditEntry,
    NotApplied,
    Query,
    RecipeConflict,
    Recovery,
    StartRefused,
    Store,
    StoreError,
    Swept,
    Tally,
    Watch,
)

T = TypeVar("T")

_TIER: Final = "durable"


class Front:
    """Satisfies the `Store` protocol of `base`; owns the store behind it.

    `recipes` are this gateway's by operation name; `accept` names those whose change is an accepted loss.
    """

    def __init__(self, store: Store, herald: Herald, recipes: Mapping[str, bytes], accept: frozenset[str]) -> None:
        self._store = store
        self._herald = herald
        self._recipes = recipes
        self._accept = accept
        self._is_open = False

    async def start(self) -> None:
        """Start the store and agree with it. Raises `StartRefused` where a change would forget living keys."""
        await self._told("start", self._store.start)
        conflicts = await self._told("agree_recipes", self._store.agree_recipes, self._recipes, self._accept)
        if conflicts:
            raise StartRefused(_what_would_be_lost(conflicts))
        self._is_open = True

    async def close(self) -> None:
        self._is_open = False
        await self._store.close()

    async def apply(self, command: Command) -> Result:
        return await self._asked(EVENT_OF[type(command)], self._store.apply, command)

    async def read(self, operation_id: UUID) -> Snapshot:
        return await self._asked("read", self._store.read, operation_id)

    async def sweep(self, limit: int) -> Swept:
        return await self._asked("sweep", self._store.sweep, limit)

    async def tally(self) -> Tally:
        return await self._asked("tally", self._store.tally)

    async def agree_recipes(self, recipes: Mapping[str, bytes], accept: frozenset[str]) -> list[RecipeConflict]:
        return await self._asked("agree_recipes", self._store.agree_recipes, recipes, accept)

    async def find(self, query: Query) -> list[Snapshot]:
        return await self._asked("find", self._store.find, query)

    async def recover(self, operation_id: UUID, token: int, lease_us: int, *, is_urgent: bool) -> Recovery | None:
        return await self._asked(
            "recover", partial(self._store.recover, is_urgent=is_urgent), operation_id, token, lease_us
        )

    async def put_off(self, recovery: Recovery, pause_us: int) -> None:
        return await self._asked("put_off", self._store.put_off, recovery, pause_us)

    async def audits(self, operation_id: UUID) -> list[AuditEntry]:
        return await self._asked("audits", self._store.audits, operation_id)

    def watch(self, operation_id: UUID) -> AbstractAsyncContextManager[Watch]:
        return self._store.watch(operation_id)

    async def _asked(self, verb: str, call: Callable[..., Coroutine[Any, Any, T]], *arguments: Any) -> T:
        if not self._is_open:
            raise NotApplied("the durable store was not reached yet")
        return await self._told(verb, call, *arguments)

    async def _told(self, verb: str, call: Callable[..., Coroutine[Any, Any, T]], *arguments: Any) -> T:
        started = time.perf_counter()
        error: str | None = None
        try:
            return await call(*arguments)
        except StoreError as failure:
            error = type(failure).__name__
            raise
        except asyncio.CancelledError:
            error = "Cancelled"
            raise
        finally:
            self._herald.state(StoreCalled(_TIER, verb, time.perf_counter() - started, error))


def _what_would_be_lost(conflicts: list[RecipeConflict]) -> str:
    named = "; ".join(f"{conflict.operation} with {conflict.alive} living keys" for conflict in conflicts)
    return (
        f"the service name, operation name, scope or key settings changed for: {named}. Under the new settings these "
        "keys are unknown, so that retries of them would run again. Undo the change, wait until the keys are forgotten "
        "(retention.remember), or accept the loss with `identity_change: accept` on the routes concerned."
    )
