"""Ends the claims of processes that were killed before they sent anything.

Such a claim would lapse into doubt, although this host has it on record that no byte was sent under it. Owns when the
marks of ended workers are looked at, and which command follows. The store decides whether the command still applies: it
is fenced by the claim's token and attempt, which no other claim has.

A claim may reach the store after the process that asked for it has ended. So an attempt that the record does not have
is looked up again, until no claim can arrive any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NoReturn
from uuid import UUID

from gateway.core.operation import EVENT_OF, Applied, Identity, State
from gateway.core.outcome import end_unused
from gateway.observe.facts import Events, OperationSettled
from gateway.store.base import AttemptMarks, EndedWorker, Store, StoreError, UnsentAttempt, boot_seconds
from gateway.upkeep.timer import repeat

_LOG = logging.getLogger("gateway")

_PASS_SECONDS: Final = 5.0
_AT_ONCE: Final = 16
_WHY: Final = "interrupted"


class UnsentWorker:
    """Ends what ended workers of this host left unsent, at the start and every few seconds.

    `remember_us` returns for how long a released key of this identity is remembered; None where no route has it: then
    its claim lapses. `arrival_seconds` is how long a claim may be under way to the store.
    """

    def __init__(
        self,
        store: Store,
        marks: AttemptMarks,
        events: Events,
        *,
        remember_us: Callable[[Identity], int | None],
        arrival_seconds: float,
        clock: Callable[[], float] = boot_seconds,
    ) -> None:
        self._store = store
        self._marks = marks
        self._events = events
        self._remember_us = remember_us
        self._arrival_seconds = arrival_seconds
        self._clock = clock
        # Of each ended worker: what is left to do, and since when it has been known here.
        self._left: list[tuple[EndedWorker, tuple[UnsentAttempt, ...], float]] = []
        self._is_stopped = False

    def stop(self) -> None:
        """Begin nothing more."""
        self._is_stopped = True

    async def run_once(self) -> None:
        """End what can be ended; the rest is tried again."""
        now = await self._look()
        for ended, attempts, since in self._left.copy():
            if self._is_stopped:
                return
            may_arrive = now - since < self._arrival_seconds
            remaining = await self._end_all(attempts, may_arrive=may_arrive)
            self._left.remove((ended, attempts, since))
            if remaining:
                self._left.append((ended, remaining, since))
            else:
                ended.remove()

    async def unsent_of(self, operation_id: UUID) -> frozenset[UUID]:
        """The attempts of the operation under which ended workers had sent nothing, and whose claims may stand yet."""
        await self._look()
        attempts = [attempt for _, left, _ in self._left for attempt in left]
        return frozenset(attempt.attempt_id for attempt in attempts if attempt.operation_id == operation_id)

    async def _look(self) -> float:
        """Look for workers that have ended since; returns when that was."""
        now = self._clock()
        self._left += [(ended, ended.attempts, now) for ended in await self._take_ended()]
        return now

    async def run(self) -> NoReturn:
        """Do so until cancelled. What is left is for other workers then."""
        try:
            await repeat(self._pass, pause_seconds=_PASS_SECONDS, at_once=True)
        finally:
            for ended, _, _ in self._left:
                ended.leave()
            self._left.clear()

    async def _pass(self) -> float:
        await self.run_once()
        return _PASS_SECONDS

    async def _take_ended(self) -> list[EndedWorker]:
        """In a thread, because it waits for the disk. Cancelled, it leaves them to others."""
        taking = asyncio.ensure_future(asyncio.to_thread(self._marks.take_ended))
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            with suppress(Exception):
                for ended in await taking:
                    ended.leave()
            raise

    async def _end_all(self, attempts: tuple[UnsentAttempt, ...], *, may_arrive: bool) -> tuple[UnsentAttempt, ...]:
        """What has to be tried again."""
        places = asyncio.Semaphore(_AT_ONCE)

        async def end(attempt: UnsentAttempt) -> bool:
            async with places:
                try:
                    return await self._end(attempt) or not may_arrive
                except StoreError as error:
                    _LOG.debug("the claim of attempt %s cannot be ended yet: %s", attempt.attempt_id, error)
                    return False

        are_done = await asyncio.gather(*[end(attempt) for attempt in attempts])
        return tuple(attempt for attempt, is_done in zip(attempts, are_done, strict=True) if not is_done)

    async def _end(self, attempt: UnsentAttempt) -> bool:
        """End the attempt's claim, if the record is under it. False where the claim may not have arrived yet."""
        record = (await self._store.read(attempt.operation_id)).record
        if record is None or record.attempt_id != attempt.attempt_id:
            return False
        remember_us = self._remember_us(record.identity)
        if record.state not in (State.CLAIMED, State.IN_DOUBT) or remember_us is None:
            return True
        command = end_unused(record, remember_us, _WHY)
        if isinstance(await self._store.apply(command), Applied):
            identity = record.identity
            self._events.publish(
                OperationSettled(
                    identity.route,
                    identity.operation_id,
                    record.token,
                    EVENT_OF[type(command)],
                    "its gateway was killed before it sent anything",
                    None,
                    is_late=True,
                )
            )
        return True
