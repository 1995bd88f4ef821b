"""Samples what this process counts, every 30 seconds, and has the durable store keep it, once a minute.

Nothing of it is on a request's way: the counters exist anyway. Each process of a gateway has rows of its own, and
readers add them; one of several workers writes those of all in one statement. Of the last hour a process remembers its
own numbers, for when the store cannot be asked. What the store did not take is tried again; what a killed process has
not saved, at most a minute, is lost.

A process whose clock was set back goes on as another writer, so that nothing that it wrote is overwritten.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from typing import Final, NoReturn
from uuid import UUID, uuid4

from gateway.core.operation import MICROSECONDS, microseconds
from gateway.observe.activity import (
    BUCKET_US,
    HOUR,
    LONGER_US,
    MINUTE_US,
    WEEK,
    Buckets,
    Numbers,
    Window,
    difference,
    encoded,
    merge,
    totals,
)
from gateway.observe.metrics import Counted
from gateway.store.base import StoreError
from gateway.store.operations import Activities, ActivityRow
from gateway.upkeep.timer import Sleep, repeat

# Those of an hour, and of the ten minutes that it begins in.
_BUCKETS_MAX: Final = (HOUR.length_us + LONGER_US) // BUCKET_US
_UNSAVED_MAX: Final = HOUR.length_us // MINUTE_US
SAVE_SECONDS: Final = 10.0
# A stop waits no longer for a store that is slow or down.
_LAST_SECONDS: Final = 1.0

Rows = tuple[ActivityRow, ...]
Save = Callable[[str, Rows], Awaitable[bool | None]]
"""Has rows of a service written; the result is whether they are."""


@dataclass(eq=False, slots=True)
class ActivitySampler:
    """Samples what `take` returns. Pictures mark when it began, and when another one followed: a reload. It may have a
    supervisor `save`, but not what is left when it stops: that may be stopping too."""

    take: Callable[[], Counted]
    store: Activities
    service: str
    _: KW_ONLY
    ask_to_save: Save | None = None
    wall_seconds: Callable[[], float] = time.time
    sleep: Sleep = asyncio.sleep
    # What is written later is newer.
    _saving: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _is_over: bool = field(default=False, init=False)
    _writer: UUID = field(default_factory=uuid4, init=False)
    _marks: list[str] = field(default_factory=lambda: ["start"], init=False)
    _counted: Numbers = field(default_factory=dict, init=False)
    _buckets: dict[tuple[UUID, int], Numbers] = field(default_factory=dict, init=False)
    # The minutes that the store has yet to take.
    _unsaved: dict[tuple[UUID, int], None] = field(default_factory=dict, init=False)
    _last_us: int = field(default=0, init=False)

    def remembered(self) -> Buckets:
        """What this process counted in the last hour, up to now."""
        if not self._is_over:
            self.sample(self._bucket_us())
        return {key: {kind: dict(each) for kind, each in of.items()} for key, of in self._buckets.items()}

    def follow(self, before: ActivitySampler) -> None:
        """Go on in the place of the sampler of the gateway before, whose counts go on in what this one takes."""
        before._is_over = True
        self._writer, self._counted, self._last_us = before._writer, before._counted, before._last_us
        self._buckets, self._unsaved, self._marks = before._buckets, before._unsaved, [*before._marks, "reload"]
        self._saving = before._saving

    async def run(self) -> NoReturn:
        await repeat(self._pass, pause_seconds=1.0, at_once=True, sleep=self.sleep)

    async def _pass(self) -> float:
        # At the same moments in all processes.
        span_seconds = BUCKET_US / MICROSECONDS
        await self.sleep(span_seconds - self.wall_seconds() % span_seconds)
        if not self._is_over:
            # A timer may be early by a little.
            self.sample(round(self.wall_seconds() / span_seconds) * BUCKET_US - BUCKET_US)
            async with self._saving:
                await self.save()
        return 0.0

    def sample(self, at_us: int) -> None:
        """Count what happened since the last sample for the bucket that begins then."""
        if at_us < self._last_us - BUCKET_US:
            self._writer, self._last_us = uuid4(), 0
            self._marks.append("clock set back")
        # A sample in between may have begun the next one.
        at_us = max(at_us, self._last_us)
        now = totals(self.take())
        numbers = difference(self._counted, now)
        numbers["mark"] = dict.fromkeys(self._marks, 1.0)
        self._counted, self._last_us, self._marks = now, at_us, []
        merge(self._buckets.setdefault((self._writer, at_us), {}), numbers)
        self._unsaved[self._writer, at_us - at_us % MINUTE_US] = None
        for kept, keys_max in ((self._buckets, _BUCKETS_MAX), (self._unsaved, _UNSAVED_MAX)):
            for key in list(kept)[:-keys_max]:
                del kept[key]

    async def save(self, *, is_last: bool = False) -> None:
        """Have the store keep the earliest minute that it lacks and that is over; with `is_last`, all that it lacks.
        Where it cannot, the minute is tried again, and pictures have a mark."""
        now_us = microseconds(self.wall_seconds())
        for writer, minute_us in list(self._unsaved):
            # The times of another writer are of another clock.
            if not is_last and writer == self._writer and now_us < minute_us + MINUTE_US - BUCKET_US // 2:
                continue
            rows = self._row(writer, HOUR, minute_us), self._row(writer, WEEK, minute_us - minute_us % LONGER_US)
            if not await self._is_saved(rows, is_last=is_last):
                self._buckets[self._writer, self._last_us]["mark"]["store away"] = 1.0
                return
            self._unsaved.pop((writer, minute_us), None)
            if not is_last:
                return

    async def write(self, service: str, rows: Rows, until_seconds: float) -> bool:
        """Write rows of any process until then, on the monotonic clock; whether that was done. Later they could undo
        what another process writes in the place of this one."""
        with suppress(StoreError, TimeoutError):
            if (left_seconds := until_seconds - time.monotonic()) > 0:
                async with asyncio.timeout(left_seconds):
                    await self.store.save_activity(service, *rows)
                    return True
        return False

    async def close(self) -> None:
        """Sample and save what is left, for a bounded time, unless another one has followed."""
        if self._is_over:
            return
        self._is_over = True
        self.sample(self._bucket_us())
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_SECONDS), self._saving:
                await self.save(is_last=True)

    async def _is_saved(self, rows: Rows, *, is_last: bool) -> bool:
        if is_last or self.ask_to_save is None:
            return await self.write(self.service, rows, time.monotonic() + SAVE_SECONDS)
        with suppress(TimeoutError):
            async with asyncio.timeout(SAVE_SECONDS):
                return bool(await self.ask_to_save(self.service, rows))
        return False

    def _bucket_us(self) -> int:
        return microseconds(self.wall_seconds()) // BUCKET_US * BUCKET_US

    def _row(self, writer: UUID, window: Window, at_us: int) -> ActivityRow:
        own = [(at, each) for (by, at), each in self._buckets.items() if by == writer]
        parts = [(at, each) for at, each in own if at_us <= at < at_us + window.row_us]
        if window.span_us == window.row_us:
            whole: Numbers = {}
            for _, numbers in parts:
                merge(whole, numbers)
            parts = [(at_us, whole)]
        body = encoded((at - at_us, numbers) for at, numbers in parts)
        return ActivityRow(writer, window.row_us, at_us, at_us + window.length_us + HOUR.length_us, body)
