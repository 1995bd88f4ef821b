"""Counts operations in doubt, for alerts: an operation in doubt stays so until it is resolved.

Every gateway counts the whole store, because none can know that another does. That includes the operations of other
services in it, since route names do not identify a service.
"""

from __future__ import annotations

import asyncio
from typing import NoReturn

from gateway.observe.facts import Events, TallyTaken
from gateway.store.operations import ManagedStore
from gateway.upkeep.timer import Sleep, repeat


class TallyTaker:
    """Takes the tally of one store every `pass_seconds` and publishes it."""

    def __init__(
        self, store: ManagedStore, events: Events, *, pass_seconds: float = 15.0, sleep: Sleep = asyncio.sleep
    ) -> None:
        self._store = store
        self._events = events
        self._pass_seconds = pass_seconds
        self._sleep = sleep
        self._is_stopped = False

    def stop(self) -> None:
        """Take no more tallies."""
        self._is_stopped = True

    async def run_once(self) -> None:
        """Take the tally. Raises `StoreError`; the last published tally then stands."""
        if self._is_stopped:
            return
        tally = await self._store.tally()
        self._events.publish(TallyTaken(tuple(sorted(tally.in_doubt.items())), tally.oldest_in_doubt_seconds))

    async def run(self) -> NoReturn:
        """Take the tally for ever, until cancelled."""
        await repeat(self._pass, pause_seconds=self._pass_seconds, sleep=self._sleep)

    async def _pass(self) -> float:
        await self.run_once()
        return self._pass_seconds
