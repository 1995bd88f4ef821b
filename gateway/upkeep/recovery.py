"""Recovers operations in doubt without waiting for a client's retry: the background half of recovery.

Owns which operations are looked at, how many at once and how often. On routes with a probe it probes;
`protect.probing` owns the probes and their findings. An operation whose probes find nothing is probed less and less
often, and stays on the operator's list. On routes that send again it does so with accepted requests: their callers may
never come back. `core.delivery` decides when; after the last attempt they stay in doubt, on the operator's list.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import Final, NoReturn
from uuid import UUID

from gateway.core.identity.key import is_of
from gateway.core.operation import Record, Snapshot, State
from gateway.core.recovery import Probe, Resend
from gateway.protect.probing import Prober
from gateway.protect.route import Route
from gateway.store.base import StoreError
from gateway.store.operations import Query, Recoveries
from gateway.upkeep.timer import LOOK_SECONDS, repeat

_PAGE: Final = 50
# Operations in one pass; the next pass begins after them.
_PASS_MAX: Final = 500
_AT_ONCE: Final = 8


@dataclass(eq=False, slots=True)
class RecoveryWorker:
    """Recovers operations in doubt on the routes that have a way to, every `pass_seconds`, while it `has_turn`.
    `resend` begins another attempt to deliver a kept request whose pause is over by the store's clock; None where this
    process delivers nothing. `may_recover` says whether an operation in doubt may be taken over now."""

    store: Recoveries
    prober: Prober
    routes: InitVar[Mapping[str, Route]]
    _: KW_ONLY
    service: str
    may_recover: Callable[[Snapshot], bool] = lambda _: True
    resend: Callable[[Route, Record, int], None] | None = None
    has_turn: Callable[[], bool] = lambda: True
    pass_seconds: float = 5.0
    _routes: dict[str, Route] = field(init=False)
    # Where a pass reached its bound: many operations that cannot be resolved must not starve those after them.
    _after: UUID | None = field(default=None, init=False)

    def __post_init__(self, routes: Mapping[str, Route]) -> None:
        self._routes = recovered_by_name(routes, resends=self.resend is not None)

    async def run_once(self) -> int:
        """Recover what is due, up to a bound; returns how many were resolved. Raises `StoreError`."""
        if not self._routes:
            return 0
        resolved, seen = 0, 0
        after, self._after = self._after, None
        while seen < _PASS_MAX and self.has_turn():
            page = await self.store.find(
                Query(frozenset((State.IN_DOUBT,)), frozenset(self._routes), recoverable=True, after=after, limit=_PAGE)
            )
            resolved += await self._recover_all(page)
            seen += len(page)
            if len(page) < _PAGE or page[-1].record is None:
                return resolved
            after = page[-1].record.identity.operation_id
        self._after = after
        return resolved

    async def _recover_all(self, page: list[Snapshot]) -> int:
        places = asyncio.Semaphore(_AT_ONCE)

        async def recover(snapshot: Snapshot) -> bool:
            async with places:
                if snapshot.record is None or not self.has_turn():
                    return False
                route = self._routes.get(snapshot.record.identity.route)
                if route is None:
                    return False
                if isinstance(route.recovery, Resend):
                    # Services that share a store may have routes of one name, and keep requests under the same key.
                    is_own = is_of(snapshot.record.identity, self.service, route.operation)
                    if self.resend is not None and is_own and self.may_recover(snapshot):
                        self.resend(route, snapshot.record, snapshot.now_us)
                    return False
                try:
                    return await self.prober.probe_once(route, snapshot, is_urgent=False) is not None
                except StoreError:
                    return False

        return sum(await asyncio.gather(*[recover(snapshot) for snapshot in page]))

    async def run(self) -> NoReturn:
        await repeat(self._pass, pause_seconds=self.pass_seconds)

    async def _pass(self) -> float:
        if not self.has_turn():
            return min(LOOK_SECONDS, self.pass_seconds)
        await self.run_once()
        return self.pass_seconds


def recovered_by_name(routes: Mapping[str, Route], *, resends: bool) -> dict[str, Route]:
    """The routes whose operations are recovered here, by the route names in their records. A renamed route keeps its
    old name as its operation, and its old records have that as their route. If several routes share an operation, such
    records cannot be assigned."""
    recovered = {
        name: route
        for name, route in routes.items()
        if isinstance(route.recovery, Probe)
        or (resends and route.accept is not None and isinstance(route.recovery, Resend))
    }
    sharing = Counter(route.operation for route in routes.values())
    renamed = {
        route.operation: route
        for route in recovered.values()
        if route.operation not in routes and sharing[route.operation] == 1
    }
    return recovered | renamed
