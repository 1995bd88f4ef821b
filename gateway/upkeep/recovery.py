"""Probes operations in doubt without waiting for a client's retry: the background half of recovery.

Owns which operations are probed, how many at once and how often; `protect.probing` owns the probes and their findings.
It works only on routes with a probe. An operation whose probes find nothing is probed less and less often, and stays on
the operator's list.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Final, NoReturn
from uuid import UUID

from gateway.core.operation import Snapshot, State
from gateway.core.recovery import Probe
from gateway.protect.probing import Prober
from gateway.protect.route import Route
from gateway.store.base import StoreError
from gateway.store.operations import ManagedStore, Query
from gateway.upkeep.timer import repeat

_PAGE: Final = 50
# Operations in one pass; the next pass begins after them.
_PASS_MAX: Final = 500
_AT_ONCE: Final = 8


class RecoveryWorker:
    """Probes operations in doubt on the routes with a probe, every `pass_seconds`."""

    def __init__(
        self,
        store: ManagedStore,
        prober: Prober,
        routes: Mapping[str, Route],
        *,
        pass_seconds: float = 5.0,
    ) -> None:
        self._store = store
        self._prober = prober
        self._routes = _probed_by_name(routes)
        self._pass_seconds = pass_seconds
        self._is_stopped = False
        # Where a pass reached its bound: many operations that cannot be resolved must not starve those after them.
        self._after: UUID | None = None

    def stop(self) -> None:
        """Begin no more probes."""
        self._is_stopped = True

    async def run_once(self) -> int:
        """Probe what is due, up to a bound; returns how many were resolved. Raises `StoreError`."""
        if not self._routes:
            return 0
        resolved, seen = 0, 0
        after, self._after = self._after, None
        while seen < _PASS_MAX and not self._is_stopped:
            page = await self._store.find(
                Query(frozenset((State.IN_DOUBT,)), frozenset(self._routes), recoverable=True, after=after, limit=_PAGE)
            )
            resolved += await self._probe_all(page)
            seen += len(page)
            if len(page) < _PAGE or page[-1].record is None:
                return resolved
            after = page[-1].record.identity.operation_id
        self._after = after
        return resolved

    async def _probe_all(self, page: list[Snapshot]) -> int:
        places = asyncio.Semaphore(_AT_ONCE)

        async def probe(snapshot: Snapshot) -> bool:
            async with places:
                if self._is_stopped or snapshot.record is None:
                    return False
                route = self._routes[snapshot.record.identity.route]
                try:
                    return await self._prober.probe_once(route, snapshot, is_urgent=False) is not None
                except StoreError:
                    return False

        return sum(await asyncio.gather(*[probe(snapshot) for snapshot in page]))

    async def run(self) -> NoReturn:
        """Probe for ever, until cancelled."""
        await repeat(self._pass, pause_seconds=self._pass_seconds)

    async def _pass(self) -> float:
        await self.run_once()
        return self._pass_seconds


def _probed_by_name(routes: Mapping[str, Route]) -> dict[str, Route]:
    """The routes with a probe, by the route names in their records.

    A renamed route keeps its old name as its operation, and its old records have that as their route. If several routes
    share an operation, such records cannot be assigned.
    """
    probed = {name: route for name, route in routes.items() if isinstance(route.recovery, Probe)}
    sharing = Counter(route.operation for route in routes.values())
    renamed = {
        route.operation: route
        for route in probed.values()
        if route.operation not in routes and sharing[route.operation] == 1
    }
    return probed | renamed
