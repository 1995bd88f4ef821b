"""Ends the claims of processes that were killed.

A claim under which nothing was sent would lapse into doubt, although this host has it on record that no byte went out.
One under which something was sent would seem to run for the rest of its lease, although this host knows that nobody
holds it: it is in doubt at once, as if its lease had ended. Owns when the marks of ended workers are looked at, and
which command follows. The store decides whether the command still applies: it is fenced by the claim's token and
attempt, which no other claim has.

A claim may reach the store after the process that asked for it has ended. So an attempt that the record does not have
is looked up again, until no claim can arrive any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NoReturn
from uuid import UUID

from gateway.core.lifecycle import LAPSED_DOUBT
from gateway.core.operation import EVENT_OF, Abandon, Applied, Identity, OutcomeCommand, Record, State
from gateway.core.outcome import end_unused
from gateway.observe.facts import Events, OperationSettled
from gateway.store.base import AttemptMarks, EndedWorker, MarkedAttempt, Store, StoreError, boot_seconds
from gateway.upkeep.timer import repeat

_LOG = logging.getLogger("gateway")

_PASS_SECONDS: Final = 5.0
_AT_ONCE: Final = 16
_WHY: Final = "interrupted"


@dataclass(slots=True, eq=False)
class _Left:
    """An ended worker, what is left to do of its attempts and whether they may have sent something, and since when it
    has been known here."""

    ended: EndedWorker
    attempts: list[tuple[MarkedAttempt, bool]]
    since: float


class UnsentWorker:
    """Ends what ended workers of this host left, at the start and every few seconds.

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
        self._left: list[_Left] = []
        self._is_stopped = False

    def stop(self) -> None:
        """Begin nothing more."""
        self._is_stopped = True

    async def run_once(self) -> None:
        """End what can be ended; the rest is tried again."""
        now = await self._look()
        for left in self._left.copy():
            if self._is_stopped:
                return
            await self._end_all(left, may_arrive=now - left.since < self._arrival_seconds)
            if not left.attempts:
                self._left.remove(left)
                left.ended.remove()

    async def unsent_of(self, operation_id: UUID) -> frozenset[UUID]:
        """The attempts of the operation under which ended workers had sent nothing, and whose claims may stand yet."""
        await self._look()
        attempts = [attempt for left in self._left for attempt, is_sent in left.attempts if not is_sent]
        return frozenset(attempt.attempt_id for attempt in attempts if attempt.operation_id == operation_id)

    async def _look(self) -> float:
        """Look for workers that have ended since; returns when that was."""
        now = self._clock()
        for ended in await self._take_ended():
            unsent, sent = ((each, False) for each in ended.attempts), ((each, True) for each in ended.sent)
            self._left.append(_Left(ended, [*unsent, *sent], now))
        return now

    async def run(self) -> NoReturn:
        """Do so until cancelled. What is left is for other workers then."""
        try:
            await repeat(self._pass, pause_seconds=_PASS_SECONDS, at_once=True)
        finally:
            for left in self._left:
                left.ended.leave()
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

    async def _end_all(self, left: _Left, *, may_arrive: bool) -> None:
        """End what can be ended; what has to be tried again stays."""
        places = asyncio.Semaphore(_AT_ONCE)

        async def end(attempt: MarkedAttempt, is_sent: bool) -> bool:
            async with places:
                try:
                    return await self._end(attempt, is_sent=is_sent, may_arrive=may_arrive)
                except StoreError as error:
                    _LOG.debug("the claim of attempt %s cannot be ended yet: %s", attempt.attempt_id, error)
                    return False

        are_done = await asyncio.gather(*[end(*each) for each in left.attempts])
        left.attempts = [each for each, is_done in zip(left.attempts, are_done, strict=True) if not is_done]

    async def _end(self, attempt: MarkedAttempt, *, is_sent: bool, may_arrive: bool) -> bool:
        """End the attempt's claim, if the record is under it; let it lapse at once if something may have been sent.
        False where the claim may not have arrived yet."""
        record = (await self._store.read(attempt.operation_id)).record
        if record is None or record.attempt_id != attempt.attempt_id:
            # It was granted before anything was sent.
            return is_sent or not may_arrive
        if is_sent:
            if record.state is State.CLAIMED:
                ids = (attempt.operation_id, record.token, record.attempt_id)
                await self._apply(record, Abandon(*ids, LAPSED_DOUBT), "its gateway was killed")
            return True
        remember_us = self._remember_us(record.identity)
        if record.state in (State.CLAIMED, State.IN_DOUBT) and remember_us is not None:
            why = "its gateway was killed before it sent anything"
            await self._apply(record, end_unused(record, remember_us, _WHY), why)
        return True

    async def _apply(self, record: Record, command: OutcomeCommand, why: str) -> None:
        if isinstance(await self._store.apply(command), Applied):
            of = (record.identity.route, record.identity.operation_id, record.token, EVENT_OF[type(command)])
            self._events.publish(OperationSettled(*of, why, None, is_late=not isinstance(command, Abandon)))
